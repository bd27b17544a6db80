//! One-time queries: the readers' pool, the present and the past, and the plans of live queries.

pub(crate) mod as_of;
mod cancellation;
pub(crate) mod changes;
pub(crate) mod explain;
pub(crate) mod failure;
pub(crate) mod output;
pub(crate) mod planned;
pub(crate) mod query;
pub(crate) mod reader_drain;
pub(crate) mod reader_sql;
pub(crate) mod readers;
pub(crate) mod service;
pub(crate) mod statement_limits;
pub(crate) mod tables;
