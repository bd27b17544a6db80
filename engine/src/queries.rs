//! One-time queries: the readers' pool, the present and the past, and the plans of live queries.

pub(crate) mod as_of;
pub(crate) mod explain;
pub(crate) mod query;
pub(crate) mod readers;
