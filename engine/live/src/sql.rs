//! How this crate runs SQL, and how running it fails.

use abide_schema::Value;

/// Runs SQL. The engine implements it over the writer's connection (the state after the commit, inside
/// the write transaction) and over a reader's. Statements repeat: cache them by their text.
///
/// The connection must have run [`Catalog::setup_sql`](crate::Catalog::setup_sql), and must be able to
/// write its temporary tables (`PRAGMA query_only` forbids that; opening the file read-only does not).
pub trait Sql {
    /// Runs one statement to its end and shows every row of it. `params[0]` is `?1`; there are never
    /// more of them than the statement has. Returns its work, in steps of SQLite's virtual machine:
    /// some ten of them for each row that is visited, and the same on every machine.
    ///
    /// # Errors
    /// [`SqlError`], which tells an error of the query from one of the store.
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<u64, SqlError>;

    /// From here on the statements together may take so much; the one that takes more fails
    /// with [`Fault::Budget`]. `None` lifts the bound. Who cannot interrupt a statement need not.
    fn allow(&mut self, _allowance: Option<Allowance>) {}
}

/// What statements may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Steps of SQLite's virtual machine, of all of them together.
    pub steps: u64,
    /// Bytes of one value: between two looks at the steps, a few values are made.
    pub value_bytes: usize,
}

/// Whose fault it is that a statement did not run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The query's own: an overflow, malformed JSON.
    Query,
    /// It took more steps than were allowed.
    Budget,
    /// The store's.
    Store,
}

/// Why a statement did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    /// What SQLite said.
    pub message: String,
    /// Whose fault it is.
    pub fault: Fault,
}

/// Why a delta could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// The query failed on the new state. It ends for its subscribers, with this message; all others
    /// go on.
    #[error("the query failed: {0}")]
    Query(String),
    /// It would have cost more than one query may cost a commit. Its result is unknown here: who
    /// listens must have the query run again elsewhere.
    #[error("the delta would cost too much")]
    OverBudget,
    /// The store failed; nothing of this commit can be trusted.
    #[error("the store failed: {0}")]
    Broken(String),
}

impl From<SqlError> for LiveError {
    fn from(error: SqlError) -> LiveError {
        match error.fault {
            Fault::Query => LiveError::Query(error.message),
            Fault::Budget => LiveError::OverBudget,
            Fault::Store => LiveError::Broken(error.message),
        }
    }
}
