//! Planning: from the text of a query to a resolved query, its SELECTs as fragments of SQL.

pub(crate) mod block;
pub(crate) mod collation;
pub(crate) mod condition;
pub(crate) mod conjunct;
pub(crate) mod expansion;
pub(crate) mod fragment;
pub(crate) mod from;
pub(crate) mod functions;
pub(crate) mod guard;
pub(crate) mod kind;
pub(crate) mod lex;
pub(crate) mod lower;
pub(crate) mod lowering;
pub(crate) mod order;
pub(crate) mod principal;
pub(crate) mod provenance;
pub(crate) mod query;
pub(crate) mod row_key;
pub(crate) mod scope;
pub(crate) mod select;
pub(crate) mod select_core;
pub(crate) mod syntax;
pub(crate) mod visibility;
pub(crate) mod window_spec;
