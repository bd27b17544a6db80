//! How this crate runs SQL, and how running it fails.

use abide_schema::Value;

/// Runs SQL. The engine implements it over the writer's connection (the state after the commit, inside
/// the write transaction) and over a reader's. Statements repeat: cache them by their text.
///
/// The connection must have run [`Catalog::setup_sql`](crate::Catalog::setup_sql), and must be able to
/// write its temporary tables (`PRAGMA query_only` forbids that; opening the file read-only does not).
pub trait Sql {
    /// Runs one statement to its end and shows every row of it. `params[0]` is `?1`; there are never
    /// more of them than the statement has.
    ///
    /// # Errors
    /// [`SqlError`], which tells an error of the query from one of the store.
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<(), SqlError>;
}

/// Why a statement did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    /// What SQLite said.
    pub message: String,
    /// Whether the store failed. Otherwise it is the query's own fault: an overflow, malformed JSON.
    pub broken: bool,
}

/// Why a delta could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// The query failed on the new state. It ends for its subscribers, with this message; all others
    /// go on.
    #[error("the query failed: {0}")]
    Query(String),
    /// The store failed; nothing of this commit can be trusted.
    #[error("the store failed: {0}")]
    Broken(String),
}

impl From<SqlError> for LiveError {
    fn from(error: SqlError) -> LiveError {
        if error.broken {
            LiveError::Broken(error.message)
        } else {
            LiveError::Query(error.message)
        }
    }
}
