//! Planning: from the text of a query to a template of resolved SQL, and what its statements read.

pub(crate) mod analysis;
pub(crate) mod condition;
pub(crate) mod expansion;
pub(crate) mod fragment;
pub(crate) mod from;
pub(crate) mod functions;
pub(crate) mod kind;
pub(crate) mod lex;
pub(crate) mod lower;
pub(crate) mod order;
pub(crate) mod planner;
pub(crate) mod principal;
pub(crate) mod select;
pub(crate) mod select_core;
pub(crate) mod template;
