//! Storage errors, grouped by what the caller can do about them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use abide_schema::{Code, Listing, Refusal, SEE_LOG, lowercase_first};
use rusqlite::{ErrorCode, ffi};
use rustix::process::{Resource, getrlimit};

use crate::cell_bytes::CorruptCells;
use crate::holder::Holder;
use crate::partial_file::is_partial;
use crate::verify::VerifyError;

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A constraint or trigger of the database rejected the statement. The statement had no effect.
    #[error("{message}")]
    Constraint {
        /// The message of SQLite or of the trigger.
        message: String,
    },
    /// A row whose write was deferred was rejected when it was written. That can be in a statement of another call than
    /// the one that changed the row, so the whole group must be rolled back.
    #[error("a touched row of {table} was rejected")]
    Touched {
        /// The table.
        table: &'static str,
        /// Why.
        #[source]
        why: Box<StoreError>,
    },
    /// Another process holds the write lock.
    #[error("the database is locked by another process")]
    Busy,
    /// The disk is full, for the file or for the index of its WAL, or a file has the maximum size of the process. SQLite
    /// rolled the statement back.
    #[error("the disk is full")]
    Full,
    /// The statement itself is invalid: syntax, names, an overflow, malformed JSON.
    #[error("{message}")]
    Sql {
        /// SQLite's message.
        message: String,
        /// The byte offset in the statement, if SQLite reports one.
        offset: Option<usize>,
    },
    /// The statement exceeded a limit.
    #[error("{0}")]
    Limit(String),
    /// The system has no further open file or thread for the process. Nothing was written.
    #[error("{0}")]
    Unavailable(String),
    /// A row has a value that no version of Abide writes: the file was changed from outside.
    #[error("{0}")]
    Unreadable(String),
    /// An operation on a file failed outside of SQLite.
    #[error("{0}")]
    Io(String),
    /// The statement exceeded its time or its steps.
    #[error("the statement ran too long")]
    Interrupted,
    /// The storage cannot be trusted any more.
    #[error("{}", if is_damage(_0) { "the file is damaged" } else { "the storage failed" })]
    Broken(#[source] rusqlite::Error),
}

impl From<CorruptCells> for StoreError {
    fn from(error: CorruptCells) -> StoreError {
        let why = Box::new(error);
        let kind = rusqlite::types::Type::Blob;
        StoreError::from(rusqlite::Error::FromSqlConversionFailure(0, kind, why))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        if is_index_full(&error) || is_file_limited(&error) {
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
                let message = "the statement contains a NUL character".to_owned();
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

/// Whether there was no space for the index of the WAL. The index is not durable, so the error says
/// nothing about the state on the disk; for a COMMIT see [`Writer::commit`](crate::Writer::commit).
pub(crate) fn is_index_full(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|failure| failure.extended_code);
    code == Some(ffi::SQLITE_IOERR_SHMSIZE)
}

/// Whether a write failed that the limit of file sizes (`ulimit -f`) may have refused. SQLite does not tell that limit from
/// other errors of a write, and rolls back after each of them as on a full disk. Only a failed sync must not be repeated.
fn is_file_limited(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|failure| failure.extended_code);
    code == Some(ffi::SQLITE_IOERR_WRITE) && getrlimit(Resource::Fsize).current.is_some()
}

/// Whether SQLite found something in the file that it did not write there.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{
        FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error,
    };
    let is_of_other_type = matches!(
        error,
        FromSqlConversionFailure(..)
            | IntegralValueOutOfRange(..)
            | InvalidColumnType(..)
            | Utf8Error(..)
    );
    let code = error.sqlite_error_code();
    is_of_other_type || matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Adds SQLite's extended code to the message. Without it "disk I/O error" can mean about thirty
/// different errors.
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
    /// Whether only the statement is at fault, so that the transaction can continue without it.
    #[must_use]
    pub fn is_the_statements_own(&self) -> bool {
        matches!(self, StoreError::Sql { .. } | StoreError::Constraint { .. })
    }

    /// The refusal for a caller. A trigger may set the code itself: `RAISE(FAIL, 'bad_transition:
    /// …')`.
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
            StoreError::Touched { why, .. } => match &**why {
                StoreError::Constraint { .. } => why.to_refusal(),
                _ => Refusal::new(Code::Internal, self.to_string()).hint(SEE_LOG),
            },
            StoreError::Busy => Refusal::new(Code::Unavailable, self.to_string())
                .hint("another program has a write transaction open on the file; end it"),
            StoreError::Unavailable(_) => Refusal::new(Code::Unavailable, self.to_string())
                .hint("raise the limit of open files (ulimit -n)"),
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
            StoreError::Unreadable(why) => Refusal::new(Code::Internal, why.clone())
                .hint("the file was changed outside of Abide; `abide verify` finds such rows"),
            StoreError::Broken(why) if is_damage(why) => {
                Refusal::new(Code::Internal, self.to_string()).hint(FIND_DAMAGE)
            }
            StoreError::Broken(_) | StoreError::Io(_) => {
                Refusal::new(Code::Internal, self.to_string()).hint(SEE_LOG)
            }
        }
    }
}

/// The hint for a statement that SQLite rejects.
fn hint(message: &str, offset: Option<usize>) -> Option<String> {
    let columns = format!("{}; write text in single quotes", Listing::Columns.hint());
    let known = [
        ("no such table", Listing::Tables.hint()),
        ("no such column", &columns),
        ("more than one statement", "send one statement at a time"),
        ("incomplete input", "the statement ends too early"),
        ("the statement contains a NUL", "pass a string with a NUL character as a parameter"),
    ];
    let known = known.iter().find(|(begins, _)| message.starts_with(begins));
    let place = offset.map(|offset| format!("at byte {offset} of the statement"));
    match (place, known) {
        (Some(place), Some((_, hint))) => Some(format!("{place}; {hint}")),
        (None, Some((_, hint))) => Some((*hint).to_owned()),
        (place, None) => place,
    }
}

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file does not exist and may not be created.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The file exists but must be created.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// The folder of the file does not exist.
    #[error("there is no folder {}", .0.display())]
    NoFolder(PathBuf),
    /// The absolute path of the file is too long for SQLite.
    #[error("the absolute path of {} is too long for SQLite", .0.display())]
    TooLong(PathBuf),
    /// The file must be created, and files of an earlier database of that name are there.
    #[error("{} cannot be created: files of an earlier database are there", path.display())]
    LeftBehind {
        /// The file.
        path: PathBuf,
        /// Its files that are there.
        companions: Vec<PathBuf>,
    },
    /// The path is a symlink to a file that does not exist.
    #[error("{} is a symlink to a file that does not exist", .0.display())]
    Dangling(PathBuf),
    /// The path is a name of SQLite for a database without a file.
    #[error("{} names no file: Abide has no databases in memory", .0.display())]
    InMemory(PathBuf),
    /// It is a folder, a device, or empty.
    #[error("{} is {kind}, not a database file", path.display())]
    NotAFile {
        /// Its path.
        path: PathBuf,
        /// Its kind.
        kind: &'static str,
    },
    /// It is not a SQLite database.
    #[error("{} is not an Abide database: it is not a SQLite file", .0.display())]
    NotADatabase(PathBuf),
    /// The file is a SQLite database of another program.
    #[error("{} is a SQLite database of another program", .0.display())]
    NotOurs(PathBuf),
    /// The file has no tables: all that was written is in the WAL that it was copied without.
    #[error("{} is incomplete: it has no tables, which are in the -wal file next to the original", .0.display())]
    Incomplete(PathBuf),
    /// The file was written by a newer Abide.
    #[error(
        "{} was written by a newer Abide: {what} has version {found}, this one supports {known}",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file format, or the tables of a module.
        what: String,
        /// The file's version.
        found: i64,
        /// The newest supported version.
        known: i64,
    },
    /// The file was written before the first release of Abide, in a format that no release reads.
    #[error("{} was written by a version of Abide before 0.1, in format {found}", path.display())]
    Former {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
    /// A table in the file differs from its declaration.
    #[error("table {table} in {} differs from its declaration{}", path.display(), after_colon(difference.as_deref()))]
    TableDiffers {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
        /// What differs, if it is an index or a trigger of the table.
        difference: Option<String>,
    },
    /// The file has a trigger or a view that no module declares.
    #[error("{kind} {name} in {} is not declared by a module of this program", path.display())]
    Undeclared {
        /// The file.
        path: PathBuf,
        /// `trigger` or `view`.
        kind: String,
        /// Its name.
        name: String,
    },
    /// A trigger of a module refuses a row with RAISE(FAIL) after the row was written.
    #[error(
        "an AFTER trigger of table {table} uses RAISE(FAIL), which keeps the row that it refuses"
    )]
    Trigger {
        /// The table.
        table: &'static str,
    },
    /// Another process has the file open for writing.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
        /// The process, if it has announced itself.
        holder: Option<Box<Holder>>,
    },
    /// The file or its folder cannot be written.
    #[error("{} is not writable", .0.display())]
    ReadOnly(PathBuf),
    /// An I/O error of the system.
    #[error("{} cannot be opened", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        why: std::io::Error,
    },
    /// The database is missing, or empty, and a WAL or a journal of it is there.
    #[error("{} is missing or empty, but its -wal or -redo- files are there", _0.display())]
    Lost(PathBuf),
    /// A rollback journal of SQLite is next to the file, which has a WAL instead.
    #[error("{}-journal is not a file of this database, and SQLite would write it over the database", _0.display())]
    RollbackJournal(PathBuf),
    /// The file has no WAL yet, and a rollback journal: its creation was interrupted, or another program wrote it.
    #[error("{} was interrupted while it was created, or while another program wrote it", _0.display())]
    Interrupted(PathBuf),
    /// The file has other names (hard links).
    #[error("{} has several names (hard links): each would have a lock and a journal of its own", _0.display())]
    SeveralNames(PathBuf),
    /// The WAL next to the file, and its journal if there is one, do not fit the file.
    #[error("the -wal and -redo- files next to {} {why}", path.display())]
    ForeignWal {
        /// The file.
        path: PathBuf,
        /// What they are.
        why: &'static str,
    },
    /// The journal next to the file does not fit the file.
    #[error("{}: {why}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// The mismatch.
        why: String,
    },
    /// The disk has no space for a copy of the file.
    #[error(
        "{} needs {} MB of disk, and {} MB are free", path.display(),
        needed_bytes.div_ceil(1_000_000), available_bytes / 1_000_000
    )]
    NoSpace {
        /// The copy.
        path: PathBuf,
        /// Its bytes.
        needed_bytes: u64,
        /// The bytes of disk that this process can use there.
        available_bytes: u64,
    },
    /// The file was not migrated, because the backup before the migration failed.
    #[error("{} is not migrated: its backup failed", path.display())]
    Backup {
        /// The file, which was not changed.
        path: PathBuf,
        /// The backup.
        backup: PathBuf,
        /// Why it failed.
        #[source]
        why: Box<VerifyError>,
    },
    /// An error of SQLite.
    #[error("{} cannot be opened", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        #[source]
        why: StoreError,
    },
}

/// Returns the second half of a sentence, if there is one.
fn after_colon(text: Option<&str>) -> String {
    text.map(|text| format!(": {text}")).unwrap_or_default()
}

impl OpenError {
    /// The refusal for a user of the command line.
    #[must_use]
    pub fn to_refusal(&self) -> Refusal {
        let refusal = self.to_refusal_of_any_file();
        if self.is_of_partial_file() { refusal.hint(REMOVE_PARTIAL) } else { refusal }
    }

    /// `true` if the file cannot be used, and has the name of one that an interrupted command has left.
    #[must_use]
    pub fn is_of_partial_file(&self) -> bool {
        match self {
            OpenError::Incomplete(path)
            | OpenError::Interrupted(path)
            | OpenError::Lost(path)
            | OpenError::NotADatabase(path)
            | OpenError::NotAFile { path, .. }
            | OpenError::NotOurs(path)
            | OpenError::RollbackJournal(path)
            | OpenError::Store { path, why: StoreError::Broken(_) } => is_partial(path),
            _ => false,
        }
    }

    fn to_refusal_of_any_file(&self) -> Refusal {
        let source = std::error::Error::source(self);
        let detail = match source {
            Some(why) => format!("{self}: {why}"),
            None => self.to_string(),
        };
        let (code, hint) = match self {
            OpenError::Missing(_) => (Code::NotFound, "check the path"),
            OpenError::NoFolder(folder) => {
                let hint = format!("create it with `mkdir -p {}`", folder.display());
                return Refusal::new(Code::NotFound, detail).hint(hint);
            }
            OpenError::TooLong(_) => (
                Code::BadRequest,
                "use a folder with a shorter path: SQLite opens at most 512 bytes, with the suffix of a file next to the database",
            ),
            OpenError::Dangling(_) => {
                (Code::NotFound, "pass the file itself, or point the symlink to an existing file")
            }
            OpenError::Exists(_) => (Code::Conflict, "name a file that does not exist"),
            OpenError::LeftBehind { companions, .. } => {
                let names = companions.iter().map(|path| path.display().to_string());
                let names = names.collect::<Vec<_>>().join(" ");
                let hint = format!("name another file, or remove these first: {names}");
                return Refusal::new(Code::Conflict, detail).hint(hint);
            }
            OpenError::InMemory(_) => {
                (Code::BadRequest, "name a file; for a test, one in a temporary folder")
            }
            OpenError::NotAFile { .. } => (Code::BadRequest, "check the path"),
            OpenError::NotADatabase(_) | OpenError::NotOurs(_) => {
                (Code::BadRequest, "pass another file; this one was not changed")
            }
            OpenError::Incomplete(_) => (
                Code::BadRequest,
                "copy a database with `abide backup`, or all of its files while no process has it open",
            ),
            OpenError::Newer { .. } => (Code::BadRequest, "use the newer version of abide"),
            OpenError::Former { .. } => (
                Code::BadRequest,
                "export its runs with the version that wrote it (`abide agent export`), and import them into a new file (`abide agent import`)",
            ),
            OpenError::Undeclared { .. } => (
                Code::Conflict,
                "open the file with the program whose modules declare it; if it was added from outside, drop it there",
            ),
            OpenError::TableDiffers { .. } => (
                Code::Conflict,
                "the file was changed outside of Abide: restore a backup that verifies; a module whose tables have changed needs a new version and a migration step",
            ),
            OpenError::Trigger { .. } => {
                (Code::BadRequest, "declare it as a BEFORE trigger, or use RAISE(ABORT)")
            }
            OpenError::InUse { holder, path } => {
                let hint = in_use_hint(path, holder.as_deref());
                return Refusal::new(Code::FileLocked, detail).hint(hint);
            }
            OpenError::ReadOnly(_) => (
                Code::BadRequest,
                "check the permissions of the file and of its folder; to read a file that is read-only, copy it, \
                 with the files next to it, into a folder that you can write",
            ),
            OpenError::Io { why, .. } => {
                let refusal = Refusal::new(Code::BadRequest, detail).hint(system_hint(why.kind()));
                return refusal.explain_exhaustion(why);
            }
            OpenError::Lost(_) => (
                Code::Conflict,
                "put the file back; to do without its events, move the -wal and -redo- files away",
            ),
            OpenError::RollbackJournal(_) => (
                Code::Conflict,
                "move the -journal file away; it belongs to another file, or another program made it",
            ),
            OpenError::Interrupted(_) => (
                Code::Conflict,
                "start `abide serve` with it once, which takes back what was not complete, and stop it",
            ),
            OpenError::SeveralNames(_) => {
                (Code::Conflict, "copy the file, or remove its other names")
            }
            OpenError::ForeignWal { path, .. } => {
                return Refusal::new(Code::Conflict, detail).hint(foreign_wal_hint(path));
            }
            OpenError::Journal { .. } => (
                Code::Conflict,
                "restore the file that it belongs to; to do without its events, move the -redo- files away, and the -wal file if it came with them",
            ),
            OpenError::NoSpace { .. } => (Code::DiskFull, "free some space"),
            OpenError::Backup { path, backup, why } => return backup_refusal(path, backup, why),
            OpenError::Store { why: StoreError::Full, .. } => {
                (Code::DiskFull, "free some space; the file has the rows that it had")
            }
            OpenError::Store { why: StoreError::Busy, .. } => {
                (Code::Conflict, "close the program that has the file open, and try again")
            }
            OpenError::Store { why: StoreError::Unavailable(_), .. } => (
                Code::Unavailable,
                "raise the limits of the process: open files (ulimit -n), threads (ulimit -u)",
            ),
            OpenError::Store { why: StoreError::Io(_), .. } => (Code::Conflict, LOOK_BESIDE),
            OpenError::Store { why: StoreError::Broken(why), .. } if is_damage(why) => {
                (Code::Conflict, FIND_DAMAGE)
            }
            OpenError::Store { .. } => {
                (Code::Internal, "`abide verify` checks whether the file is sound")
            }
        };
        Refusal::new(code, detail).hint(hint)
    }
}

/// The refusal to migrate a file without a backup.
fn backup_refusal(path: &Path, backup: &Path, why: &VerifyError) -> Refusal {
    let Refusal { code, detail, hint, .. } = why.to_refusal();
    let file = path.display();
    let detail = format!("{file} is not migrated and not changed: its backup failed: {detail}");
    let first = match why {
        VerifyError::Open(OpenError::Exists(_)) => {
            format!("move {} away, which is not this backup", backup.display())
        }
        VerifyError::Open(_) => hint.unwrap_or_else(|| "check the folder of the file".to_owned()),
        _ => format!("`abide verify {file}` checks whether the file is sound"),
    };
    let hint = format!("{first}; to migrate without a backup, `abide upgrade {file} --no-backup`");
    Refusal::new(code, detail).hint(hint)
}

/// What to do about a damaged file.
const FIND_DAMAGE: &str =
    "restore a backup that verifies; `abide verify` says what it finds in the file";

/// What to do about a file that an interrupted command has left.
const REMOVE_PARTIAL: &str = "a backup, a replay or a migration that was interrupted leaves such a file: remove it, and the files next to it";

/// The hint about a file next to a database that is not used.
const LOOK_BESIDE: &str =
    "look at the files next to the database: who owns them, and whether a process has them open";

/// What to do about an error of the system.
fn system_hint(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "check the permissions of the file and of its folders"
        }
        // A file next to the database is of another user, of another kind, or damaged.
        ErrorKind::InvalidData => LOOK_BESIDE,
        _ => "check the path",
    }
}

/// How to use a file next to the WAL of another one.
fn foreign_wal_hint(path: &Path) -> String {
    format!(
        "to use the file as it is, move the other files away: `mkdir former && mv {0}-* former/`; to keep their events, \
         put back the file that they belong to",
        path.display()
    )
}

/// How to use a file that another process has open.
fn in_use_hint(path: &Path, holder: Option<&Holder>) -> String {
    match holder {
        // Its address is not believed, see `Holder`.
        Some(Holder { pid, is_foreign: true, .. }) => format!(
            "process {pid} of another user has it open; if it is a server, connect to its address with a token \
             (for commands: --url and --token-file instead of --db)"
        ),
        Some(Holder { pid, url: Some(url), socket: Some(_), .. }) => format!(
            "process {pid} serves it at {url}: connect to that address (for commands: --url instead of --db)"
        ),
        Some(holder) if holder.is_shared() => format!(
            "process {} has it open for the programs that use it with `abide open` or an SDK, and ends with \
             the last of them; commands with --db join it",
            holder.pid
        ),
        Some(Holder { pid, url: Some(url), .. }) => {
            format!(
                "process {pid} serves it: connect to {url} (for commands: --url instead of --db)"
            )
        }
        holder => {
            let holder = match holder {
                Some(Holder { pid, .. }) => format!("process {pid}"),
                None => "that command".to_owned(),
            };
            format!(
                "wait until {holder} ends; to use the file with several programs, start \
                 `abide serve --db {}` and give the others --url in place of --db",
                path.display()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(extended_code: i32) -> StoreError {
        let message = Some("disk I/O error".to_owned());
        rusqlite::Error::SqliteFailure(ffi::Error::new(extended_code), message).into()
    }

    /// The hint was that a command ends soon, and it was the server of another user.
    #[test]
    fn a_process_of_another_user_is_named() {
        let holder = Holder { pid: 7, is_foreign: true, ..Holder::default() };
        let hint = in_use_hint(Path::new("a.db"), Some(&holder));
        assert!(hint.starts_with("process 7 of another user has it open"), "{hint}");
        let own = in_use_hint(Path::new("a.db"), None);
        assert!(own.starts_with("wait until that command ends"), "{own}");
    }

    #[test]
    fn a_value_of_another_type_is_damage_and_not_a_failure_of_the_storage() {
        for error in [StoreError::from(CorruptCells), failure(ffi::SQLITE_CORRUPT_INDEX)] {
            assert_eq!(error.to_string(), "the file is damaged");
        }
        assert_eq!(failure(ffi::SQLITE_IOERR_READ).to_string(), "the storage failed");
    }

    /// A soak that filled its disk ended in "disk I/O error", and the engine then accepted nothing
    /// until it was restarted. A full WAL index is the probable cause; at that time the log did not
    /// contain SQLite's code, and since then it does. The simulator has the full scenario, on a
    /// disk that fails in this way.
    #[test]
    fn no_space_for_the_wal_index_is_disk_full() {
        assert!(matches!(failure(ffi::SQLITE_IOERR_SHMSIZE), StoreError::Full));
        let StoreError::Broken(why) = failure(ffi::SQLITE_IOERR_FSYNC) else {
            panic!("it is broken")
        };
        assert_eq!(why.to_string(), "disk I/O error, SQLite's code 1034");
    }
}
