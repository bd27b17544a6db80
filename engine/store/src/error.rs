//! What can go wrong with a file, by what one can do about it.

use std::path::PathBuf;

use abide_schema::{Code, Refusal};
use rusqlite::{ErrorCode, ffi};

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A constraint or trigger of the database said no. The statement left nothing behind.
    #[error("{message}")]
    Constraint {
        /// SQLite's or the trigger's words.
        message: String,
    },
    /// Another process holds the write lock.
    #[error("the database is locked by another process")]
    Busy,
    /// The disk is full, for the file or for the index of its WAL; SQLite has undone the statement.
    #[error("the disk is full")]
    Full,
    /// The statement itself is at fault: syntax, names, an overflow, malformed JSON.
    #[error("{message}")]
    Sql {
        /// SQLite's words.
        message: String,
        /// Where in the statement, in bytes, if SQLite says.
        offset: Option<usize>,
    },
    /// The statement ran into a bound that was set for it.
    #[error("{0}")]
    Limit(String),
    /// The statement took longer, or more steps, than it was allowed.
    #[error("it ran too long")]
    Interrupted,
    /// The storage cannot be trusted any more.
    #[error("the storage failed")]
    Broken(#[source] rusqlite::Error),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        if is_index_full(&error) {
            return StoreError::Full;
        }
        let (code, message, offset) = match &error {
            rusqlite::Error::SqliteFailure(failure, message) => {
                (failure.code, message.clone(), None)
            }
            rusqlite::Error::SqlInputError { error, msg, offset, .. } => {
                (error.code, Some(msg.clone()), usize::try_from(*offset).ok())
            }
            rusqlite::Error::MultipleStatement => {
                let message = "more than one statement".to_owned();
                return StoreError::Sql { message, offset: None };
            }
            rusqlite::Error::NulError(_) => {
                let message = "the statement holds a NUL character".to_owned();
                return StoreError::Sql { message, offset: None };
            }
            _ => return StoreError::Broken(error),
        };
        let message = message.unwrap_or_else(|| error.to_string());
        match code {
            ErrorCode::ConstraintViolation => StoreError::Constraint { message },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Busy,
            ErrorCode::DiskFull => StoreError::Full,
            ErrorCode::OperationInterrupted => StoreError::Interrupted,
            ErrorCode::TooBig => StoreError::Limit(message),
            ErrorCode::Unknown
            | ErrorCode::TypeMismatch
            | ErrorCode::AuthorizationForStatementDenied
            | ErrorCode::ParameterOutOfRange => StoreError::Sql { message, offset },
            _ => StoreError::Broken(with_code(error)),
        }
    }
}

/// Whether there was no room for the index of the WAL. It is not durable, so that says nothing about what
/// is on the disk; of a COMMIT see [`Writer::commit`](crate::Writer::commit).
pub(crate) fn is_index_full(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|failure| failure.extended_code);
    code == Some(ffi::SQLITE_IOERR_SHMSIZE)
}

/// With SQLite's extended code in its words, which alone tell "disk I/O error" of thirty things.
fn with_code(error: rusqlite::Error) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(failure, Some(message)) => {
            let message = format!("{message}, SQLite's code {}", failure.extended_code);
            rusqlite::Error::SqliteFailure(failure, Some(message))
        }
        other => other,
    }
}

impl StoreError {
    /// Whether the statement is at fault and nothing else: the transaction can go on without it.
    #[must_use]
    pub fn is_the_statements_own(&self) -> bool {
        matches!(self, StoreError::Sql { .. } | StoreError::Constraint { .. })
    }

    /// As a caller is told. A trigger may name the code itself: `RAISE(FAIL, 'bad_transition: …')`.
    #[must_use]
    pub fn to_refusal(&self) -> Refusal {
        match self {
            StoreError::Constraint { message } => {
                let named = message
                    .split_once(": ")
                    .and_then(|(code, detail)| Some((Code::parse(code)?, detail)));
                match named {
                    Some((code, detail)) => Refusal::new(code, detail),
                    None => Refusal::new(Code::Conflict, lowercase_first(message)),
                }
            }
            StoreError::Busy => Refusal::new(Code::Overloaded, self.to_string())
                .hint("another program has a write transaction open on the file; end it"),
            StoreError::Full => Refusal::new(Code::DiskFull, self.to_string())
                .hint("nothing was written; free some space and try again"),
            StoreError::Sql { message, offset } => {
                let refusal = Refusal::new(Code::BadSql, lowercase_first(message));
                match hint(message, *offset) {
                    Some(hint) => refusal.hint(hint),
                    None => refusal,
                }
            }
            StoreError::Limit(why) => Refusal::new(Code::LimitExceeded, why.clone()),
            StoreError::Interrupted => Refusal::new(Code::LimitExceeded, self.to_string()),
            StoreError::Broken(_) => Refusal::new(Code::Internal, self.to_string())
                .hint("see the server's log for the cause"),
        }
    }
}

/// What helps with a statement that SQLite does not take.
fn hint(message: &str, offset: Option<usize>) -> Option<String> {
    let known = [
        ("no such table", "GET /v1/schema lists the tables"),
        ("no such column", "GET /v1/schema lists the columns; a text stands in single quotes"),
        ("more than one statement", "send one statement at a time"),
        ("incomplete input", "the statement ends too early"),
        ("the statement holds a NUL", "give a text that holds one as a parameter"),
    ];
    let known = known.iter().find(|(begins, _)| message.starts_with(begins));
    let place = offset.map(|offset| format!("at byte {offset} of the statement"));
    match (place, known) {
        (Some(place), Some((_, hint))) => Some(format!("{place}; {hint}")),
        (None, Some((_, hint))) => Some((*hint).to_owned()),
        (place, None) => place,
    }
}

fn lowercase_first(text: &str) -> String {
    let mut letters = text.chars();
    // "UNIQUE constraint failed" and "JSON path error" keep their capitals.
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            first.to_lowercase().collect::<String>() + &text[first.len_utf8()..]
        }
        _ => text.to_owned(),
    }
}

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such file, and none was to be made.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// It exists, and was to be made.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// It is a symlink to a file that does not exist.
    #[error("{} is a symlink to a file that does not exist", .0.display())]
    Dangling(PathBuf),
    /// It is not a SQLite database.
    #[error("{} is not a SQLite database", .0.display())]
    NotADatabase(PathBuf),
    /// It is a SQLite database of another program.
    #[error("{} is a SQLite database, but not one of Abide's", .0.display())]
    NotOurs(PathBuf),
    /// It was written by a newer Abide.
    #[error(
        "{} was written by a newer Abide: {what} is at version {found}, this one knows {known}",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The format, or a module's tables.
        what: String,
        /// The file's version.
        found: i64,
        /// The newest that we know.
        known: i64,
    },
    /// A table in the file is not as it is declared.
    #[error("table {table} in {} is not as it is declared", path.display())]
    TableDiffers {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
    },
    /// Another process has it open for writing.
    #[error("{} is being served by another process", .0.display())]
    InUse(PathBuf),
    /// It, or its folder, cannot be written.
    #[error("{} cannot be written", .0.display())]
    ReadOnly(PathBuf),
    /// The system said no.
    #[error("{} cannot be opened", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        #[source]
        why: std::io::Error,
    },
    /// SQLite said no.
    #[error("{} cannot be opened", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// Its words.
        #[source]
        why: StoreError,
    },
}

impl OpenError {
    /// As a person at a terminal is told.
    #[must_use]
    pub fn to_refusal(&self) -> Refusal {
        let source = std::error::Error::source(self);
        let detail = match source {
            Some(why) => format!("{self}: {why}"),
            None => self.to_string(),
        };
        let (code, hint) = match self {
            OpenError::Missing(_) => (Code::NotFound, "abide serve makes a new one"),
            OpenError::Dangling(_) => {
                (Code::NotFound, "name the file itself, or make the symlink point to one")
            }
            OpenError::Exists(_) => (Code::Conflict, "name a file that is not there yet"),
            OpenError::NotADatabase(_) | OpenError::NotOurs(_) => {
                (Code::BadRequest, "name another file; this one was left as it is")
            }
            OpenError::Newer { .. } => (Code::BadRequest, "use the newer abide"),
            OpenError::TableDiffers { .. } => {
                (Code::Conflict, "give the module a new version and a migration step")
            }
            OpenError::InUse(_) => (
                Code::Conflict,
                "talk to that server instead: leave out --db, or give its address with --url",
            ),
            OpenError::ReadOnly(_) => {
                (Code::BadRequest, "check the permissions of the file and of its folder")
            }
            OpenError::Io { .. } => (Code::BadRequest, "check the path"),
            OpenError::Store { why: StoreError::Full, .. } => (Code::DiskFull, "free some space"),
            OpenError::Store { why: StoreError::Busy, .. } => {
                (Code::Conflict, "close the program that has the file open, and try again")
            }
            OpenError::Store { .. } => (Code::Internal, "abide verify tells whether it is sound"),
        };
        Refusal::new(code, detail).hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(extended_code: i32) -> StoreError {
        let message = Some("disk I/O error".to_owned());
        rusqlite::Error::SqliteFailure(ffi::Error::new(extended_code), message).into()
    }

    /// A soak that filled its disk ended in "disk I/O error", and the engine accepted nothing more until it was
    /// restarted. That this was the cause is what fits; the log had no code then, which is why it has now. The
    /// whole story is told on a disk that does so, in the simulator's stories.
    #[test]
    fn no_room_for_the_index_of_the_wal_is_a_full_disk() {
        assert!(matches!(failure(ffi::SQLITE_IOERR_SHMSIZE), StoreError::Full));
        let StoreError::Broken(why) = failure(ffi::SQLITE_IOERR_FSYNC) else {
            panic!("it is broken")
        };
        assert_eq!(why.to_string(), "disk I/O error, SQLite's code 1034");
    }
}
