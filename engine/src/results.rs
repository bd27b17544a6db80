//! The results of a call, a batch and a query, as an embedding program gets them. Updates of live queries are in
//! `subscriptions/connection/update`.

use std::ops::ControlFlow;
use std::pin::Pin;

use abide_schema::{Row, Seq, ValueRef};
use abide_store::RowRef;

/// The future of a request to the engine. It is boxed, so that it is compiled once: a crate that awaits an `async fn`
/// of another crate compiles it again, with everything that it awaits.
pub type EngineFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedCall {
    /// Its position in the log, or that of the original call if it is a duplicate.
    pub seq: Seq,
    /// The result of the reducer, as JSON text.
    pub result: String,
    /// Whether an earlier call with the same request id already took effect.
    pub duplicate: bool,
}

/// The result of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedBatch {
    /// The seq of its last event.
    pub seq: Seq,
    /// One for each call.
    pub results: Vec<CommittedCall>,
    /// Whether an earlier batch with the same request id already took effect.
    pub duplicate: bool,
}

/// The columns of one table that a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumns {
    /// Those of the primary key.
    pub key: Vec<&'static str>,
    /// Those with JSON, which is stored as text.
    pub json: Vec<&'static str>,
}

/// The result of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryResult {
    /// The state that the query read; it is durable.
    pub seq: Seq,
    /// Column names.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Row>,
}

/// Takes the result of a query as it is read, on the thread of the reader.
pub trait RowSink: Send + 'static {
    /// Takes the state that is read and the names of the columns, once, before the rows.
    fn begin(&mut self, seq: Seq, columns: Vec<String>);

    /// Takes a row. After [`ControlFlow::Break`] no more are read, and the query has succeeded.
    fn row(&mut self, row: RowRef<'_>) -> ControlFlow<()>;
}

/// Collects a result.
#[derive(Debug, Default)]
pub(crate) struct CollectedResult(Option<QueryResult>);

impl CollectedResult {
    /// Returns the result of a query that has succeeded.
    pub(crate) fn into_result(self) -> QueryResult {
        self.0.expect("a query that has succeeded has begun")
    }
}

impl RowSink for CollectedResult {
    fn begin(&mut self, seq: Seq, columns: Vec<String>) {
        self.0 = Some(QueryResult { seq, columns, rows: Vec::new() });
    }

    fn row(&mut self, row: RowRef<'_>) -> ControlFlow<()> {
        let result = self.0.as_mut().expect("a result begins before its rows");
        result.rows.push(row.cells().map(ValueRef::to_value).collect());
        ControlFlow::Continue(())
    }
}
