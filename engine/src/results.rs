//! What a call, a batch and a query return.

use abide_schema::{Row, Seq};

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its place in the log, or that of the call which had done it before.
    pub seq: Seq,
    /// What the reducer returned, as JSON text.
    pub result: String,
    /// Whether an earlier call had already done it.
    pub duplicate: bool,
}

/// The answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchDone {
    /// The seq of its last event.
    pub seq: Seq,
    /// One for each call.
    pub results: Vec<Done>,
    /// Whether an earlier batch had already done it.
    pub duplicate: bool,
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The state it was asked of; durable.
    pub seq: Seq,
    /// Column names.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Row>,
}
