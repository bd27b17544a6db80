//! The interface through which this crate runs SQL, and its errors.

use std::time::Duration;

use abide_schema::Value;

use crate::delta::meter::Cost;

/// Runs SQL. The engine implements it over the writer's connection (the state after the commit,
/// inside the write transaction) and over a reader's. Statements repeat: cache them by their text.
///
/// The connection must have run [`Catalog::setup_sql`](crate::Catalog::setup_sql), and must be able
/// to write its temporary tables (`PRAGMA query_only` forbids that; opening the file read-only does
/// not).
pub trait Sql {
    /// Runs one statement to its end and calls `each` with every row. `params[0]` is `?1`; there
    /// are never more of them than the statement has. Returns its work, which is the same on every
    /// machine.
    ///
    /// # Errors
    /// [`SqlError`], which distinguishes an error of the query from one of the store.
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<Cost, SqlError>;

    /// Limits all following statements together. The statement that exceeds the allowance fails
    /// with [`SqlErrorKind::Budget`]. `None` lifts the limit. An implementation that cannot
    /// interrupt a statement may ignore it.
    fn allow(&mut self, _allowance: Option<StatementLimits>) {}

    /// Returns the CPU time of this thread, as a safety net for costs that are not steps. An
    /// implementation whose work must be the same in every run returns zero.
    fn processor_time(&self) -> Duration {
        Duration::ZERO
    }
}

/// The limits of statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementLimits {
    /// Steps of SQLite's virtual machine, of all statements together.
    pub steps: u64,
    /// Steps for rows that a restricted caller sees, of all statements together.
    pub visible_steps: u64,
    /// CPU time of all statements together.
    pub time: Duration,
    /// Bytes of one value. A few values are created between two checks of the steps.
    pub value_bytes: usize,
}

/// The cause of a failed statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlErrorKind {
    /// The query failed, for example by an overflow or by malformed JSON.
    Query,
    /// The statement reached a limit.
    Budget,
    /// The store failed.
    Store,
}

/// The error of a failed statement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    /// SQLite's message.
    pub message: String,
    /// The cause.
    pub kind: SqlErrorKind,
}

/// Why a delta was not computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// A statement of the delta failed, for example by an overflow. The query itself may fail or
    /// not: a reader must run it again. Other queries are unaffected.
    #[error("the query failed: {0}")]
    Query(String),
    /// The delta exceeds the budget. The result is unknown here; a reader must run the query again.
    #[error("the delta would cost too much")]
    OverBudget,
    /// The store failed. Nothing of this commit can be trusted.
    #[error("the store failed: {0}")]
    Broken(String),
}

impl From<SqlError> for LiveError {
    fn from(error: SqlError) -> LiveError {
        match error.kind {
            SqlErrorKind::Query => LiveError::Query(error.message),
            SqlErrorKind::Budget => LiveError::OverBudget,
            SqlErrorKind::Store => LiveError::Broken(error.message),
        }
    }
}
