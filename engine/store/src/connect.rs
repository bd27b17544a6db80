//! Connections to a file: the file with its WAL, or the file alone; and what SQLite reports about a file that it cannot
//! open.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use abide_schema::has_too_many_files;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use rustix::fs::{Access, access};

use crate::checkpoint::leave_wal_on_close;
use crate::companions::{companion, segments_of};
use crate::disk::Disk;
use crate::error::{OpenError, StoreError};
use crate::interrupt::set_value_bytes;
use crate::layout::{APPLICATION_ID, FORMAT_VERSION};
use crate::memory;
use crate::private;
use crate::vfs::without_rollback_journals;

/// Bytes of one statement of a schema, and of one value while the schema of an older file is migrated.
pub(crate) const STATEMENT_BYTES: usize = 1 << 20;

/// Connects to a file, with its WAL. Closing the connection leaves the WAL.
///
/// # Errors
/// [`StoreError`].
pub(crate) fn connect(
    path: &Path,
    flags: OpenFlags,
    disk: &dyn Disk,
) -> Result<Connection, StoreError> {
    memory::start_counting();
    // SQLite takes a name with this beginning for a URI.
    let is_uri = flags.contains(OpenFlags::SQLITE_OPEN_URI);
    let literal = Path::new(".").join(path);
    let path = if !is_uri && path.as_os_str().as_encoded_bytes().starts_with(b"file:") {
        &literal
    } else {
        path
    };
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match disk.vfs() {
        None => {
            check_companions(path)?;
            Connection::open_with_flags_and_vfs(path, flags, without_rollback_journals()?)?
        }
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs)?,
    };
    connection.set_prepared_statement_cache_capacity(512);
    // Otherwise the last connection to close would run a checkpoint.
    leave_wal_on_close(&connection, true)?;
    forbid_quoted_texts(&connection)?;
    // A file may come from anywhere: its schema may not call functions with side effects.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    Ok(connection)
}

/// Connects to a file of ours to read it, with its WAL.
///
/// # Errors
/// [`OpenError`].
pub(crate) fn connect_to_read(path: &Path, disk: &dyn Disk) -> Result<Connection, OpenError> {
    let path = &private::resolved(path)?;
    if !path.try_exists().map_err(|why| OpenError::Io { path: path.to_owned(), why })? {
        return Err(OpenError::Missing(path.to_owned()));
    }
    check_kind(path)?;
    if file_bytes(path) == 0 {
        // SQLite would remove the WAL.
        check_not_lost(path)?;
        return Err(OpenError::NotAFile { path: path.to_owned(), kind: "empty" });
    }
    check_rollback_journal(path)?;
    if has_rollback_journal(path)? {
        return Err(OpenError::Interrupted(path.to_owned()));
    }
    let connection =
        connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, disk).map_err(|why| broken(path, why))?;
    limit_untrusted(&connection).map_err(|why| broken(path, why.into()))?;
    check_versions(&connection, path)?;
    if disk.vfs().is_none() {
        // Another user may have put a WAL there just before SQLite has read it.
        check_companions(path).map_err(|why| broken(path, why))?;
    }
    Ok(connection)
}

/// Connects to a file of ours to read it alone: without its WAL, and without a lock. SQLite creates no file next to it.
/// Nothing may write the file meanwhile, except to compare: a result can then be wrong.
///
/// # Errors
/// [`OpenError`].
pub(crate) fn connect_alone(path: &Path, disk: &dyn Disk) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = connect(&immutable(path), flags, disk).map_err(|why| broken(path, why))?;
    limit_untrusted(&connection).map_err(|why| broken(path, why.into()))?;
    check_versions(&connection, path)?;
    Ok(connection)
}

/// A file's URI for SQLite, <https://www.sqlite.org/uri.html>, marked as immutable.
fn immutable(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut uri = std::ffi::OsString::from("file://");
    for part in absolute.as_os_str().as_encoded_bytes() {
        match part {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(char::from(*part).to_string());
            }
            byte => uri.push(format!("%{byte:02X}")),
        }
    }
    uri.push("?immutable=1");
    PathBuf::from(uri)
}

/// Refuses folders and devices by name. SQLite reports most of them as damaged files. A file would also be made for the names
/// that mean a database in memory to users of SQLite.
pub(crate) fn check_kind(path: &Path) -> Result<(), OpenError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name == ":memory:" || name.starts_with("file::memory:") {
        return Err(OpenError::InMemory(path.to_owned()));
    }
    let kind = match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => "a folder",
        Ok(meta) if !meta.is_file() => "a device or a pipe",
        _ => return Ok(()),
    };
    Err(OpenError::NotAFile { path: path.to_owned(), kind })
}

/// Refuses a file in a folder that does not exist.
pub(crate) fn check_folder(path: &Path) -> Result<(), OpenError> {
    match folder_of(path).try_exists() {
        Ok(false) => Err(OpenError::NoFolder(folder_of(path).to_owned())),
        // The error of the system is reported when the file is opened.
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Bytes of the longest path that SQLite opens. Its limit, `MAX_PATHNAME` in `os_unix.c`, also counts `-journal`.
const PATH_BYTES: usize = 512 - "-journal".len();

/// Refuses a file whose absolute path is too long. SQLite reports it as a file that it cannot open.
pub(crate) fn check_length(path: &Path) -> Result<(), OpenError> {
    // As SQLite does, without symlinks. Opening the file reports a folder that cannot be resolved.
    let Ok(folder) = std::fs::canonicalize(folder_of(path)) else { return Ok(()) };
    let absolute = folder.join(path.file_name().unwrap_or_default());
    if absolute.as_os_str().len() > PATH_BYTES {
        return Err(OpenError::TooLong(path.to_owned()));
    }
    Ok(())
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Refuses a missing or empty database next to a journal or a WAL: SQLite would remove the WAL, which may hold calls
/// that were answered.
///
/// # Errors
/// [`OpenError::Lost`]; the errors of the system.
pub fn check_not_lost(path: &Path) -> Result<(), OpenError> {
    let path = &private::resolved(path)?;
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() == 0 => {}
        Err(why) if why.kind() == ErrorKind::NotFound => {}
        // What else is wrong with it is reported when it is opened.
        Ok(_) | Err(_) => return Ok(()),
    }
    let has_rows = file_bytes(&companion(path, "-wal")) > 0 || has_journal(path)?;
    if has_rows { Err(OpenError::Lost(path.to_owned())) } else { Ok(()) }
}

/// Returns the size of a file; 0 if there is none.
fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}

/// Returns `true` if there is a segment of the journal next to a database.
pub(crate) fn has_journal(path: &Path) -> Result<bool, OpenError> {
    match segments_of(path) {
        Ok(segments) => Ok(!segments.is_empty()),
        // There is no folder.
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(false),
        Err(why) => Err(OpenError::Io { path: path.to_owned(), why }),
    }
}

/// Refuses a file with several names: each would have a lock, a WAL and a journal of its own.
pub(crate) fn check_single_name(path: &Path) -> Result<(), OpenError> {
    let has_others = std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.nlink() > 1);
    if has_others { Err(OpenError::SeveralNames(path.to_owned())) } else { Ok(()) }
}

/// The place of the version in which a file is written, in the header of a database, and its value for a WAL:
/// <https://www.sqlite.org/fileformat2.html#file_format_version_numbers>.
const WRITE_VERSION: usize = 18;
const WAL: u8 = 2;

/// Refuses a rollback journal next to a file with a WAL: Abide writes none and plays none back (see [`crate::vfs`]), but
/// another program would write its pages over those of the file, whatever file they are of.
pub(crate) fn check_rollback_journal(path: &Path) -> Result<(), OpenError> {
    if has_rollback_journal(path)? && is_in_wal_mode(path) {
        return Err(OpenError::RollbackJournal(path.to_owned()));
    }
    Ok(())
}

/// Returns `true` if there is a rollback journal with content: one that starts with a zero is not used.
pub(crate) fn has_rollback_journal(path: &Path) -> Result<bool, OpenError> {
    let mut first = [0];
    // Another user may have put it there, and opening a named pipe waits for its other end.
    private::check_companions(path).map_err(|why| match why.kind() {
        ErrorKind::InvalidData => broken(path, StoreError::Io(why.to_string())),
        // The folder cannot be searched: the cause is not a file next to the database.
        _ => OpenError::Io { path: path.to_owned(), why },
    })?;
    match File::open(companion(path, "-journal")).and_then(|mut file| file.read(&mut first)) {
        Ok(read) => Ok(read == 1 && first[0] != 0),
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(false),
        Err(why) => Err(OpenError::Io { path: path.to_owned(), why }),
    }
}

/// Returns `true` if the header of a database says that it has a WAL.
fn is_in_wal_mode(path: &Path) -> bool {
    let mut header = [0; WRITE_VERSION + 1];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && header[WRITE_VERSION] == WAL
}

/// Refuses files of other users; see [`private::check_companions`].
pub(crate) fn check_companions(path: &Path) -> Result<(), StoreError> {
    private::check_companions(path).map_err(|why| StoreError::Io(why.to_string()))
}

fn read_pragma(connection: &Connection, path: &Path, pragma: &str) -> Result<i64, OpenError> {
    connection
        .pragma_query_value(None, pragma, |row| row.get(0))
        .map_err(|why| broken(path, why.into()))
}

pub(crate) fn check_versions(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let application_id = read_pragma(connection, path, "application_id")?;
    let found = read_pragma(connection, path, "user_version")?;
    let is_new =
        application_id == 0 && found == 0 && read_pragma(connection, path, "schema_version")? == 0;
    if is_new {
        return Ok(());
    }
    if application_id != i64::from(APPLICATION_ID) {
        return Err(OpenError::NotOurs(path.to_owned()));
    }
    if found > FORMAT_VERSION {
        let what = "its format".to_owned();
        return Err(OpenError::Newer { path: path.to_owned(), what, found, known: FORMAT_VERSION });
    }
    if found < FORMAT_VERSION {
        return Err(OpenError::Former { path: path.to_owned(), found });
    }
    check_tables(connection, path)
}

/// The tables of the log that are not tables, the tables with a column that SQLite computes, and those that SQLite changes
/// when a row of another table changes.
const COMPUTED: &str = "\
    SELECT name FROM pragma_table_list
    WHERE schema = 'main' AND type <> 'table' AND name IN ('events', 'meta')
    UNION ALL
    SELECT tables.name FROM pragma_table_list AS tables, pragma_table_xinfo(tables.name, 'main') AS columns
    WHERE tables.schema = 'main' AND tables.type = 'table' AND columns.hidden IN (2, 3)
    UNION ALL
    SELECT tables.name FROM pragma_table_list AS tables, pragma_foreign_key_list(tables.name, 'main') AS keys
    WHERE tables.schema = 'main' AND tables.type = 'table'
      AND (keys.on_update NOT IN ('NO ACTION', 'RESTRICT') OR keys.on_delete NOT IN ('NO ACTION', 'RESTRICT'))
    LIMIT 1";

/// Refuses a file whose author lets SQLite run a query or an expression when a table of the log is read, for example an
/// endless view with the name `events`.
fn check_tables(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let found = connection.query_row(COMPUTED, [], |row| row.get(0)).optional();
    match found.map_err(|why| broken(path, why.into()))? {
        None => Ok(()),
        Some(table) => {
            Err(OpenError::TableDiffers { path: path.to_owned(), table, difference: None })
        }
    }
}

/// Limits what the statements of a file's schema can cost when SQLite parses them, and the bytes of a value that is read.
pub(crate) fn limit_untrusted(connection: &Connection) -> rusqlite::Result<()> {
    set_value_bytes(connection, abide_schema::limits::QUERY_VALUE_BYTES)?;
    let bytes = i32::try_from(STATEMENT_BYTES).expect("it is small");
    connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, bytes).map(drop)
}

/// Deleted values are overwritten with zeros, in the page that they were in. Otherwise they would stay in the file until
/// SQLite uses the place again.
pub(crate) fn overwrite_deleted(connection: &Connection) -> Result<(), StoreError> {
    Ok(connection.pragma_update(None, "secure_delete", true)?)
}

/// "pending" in double quotes is a column that does not exist, not a text.
pub(crate) fn forbid_quoted_texts(connection: &Connection) -> Result<(), StoreError> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    Ok(())
}

/// The error for a file that SQLite cannot open.
pub(crate) fn broken(path: &Path, why: StoreError) -> OpenError {
    use rusqlite::ErrorCode::{CannotOpen, NotADatabase, PermissionDenied, ReadOnly};
    let StoreError::Broken(error) = &why else {
        return OpenError::Store { path: path.to_owned(), why };
    };
    match error.sqlite_error_code() {
        Some(NotADatabase) => OpenError::NotADatabase(path.to_owned()),
        Some(ReadOnly) => OpenError::ReadOnly(path.to_owned()),
        Some(CannotOpen | PermissionDenied) => match access(path, Access::READ_OK) {
            Err(why) => OpenError::Io { path: path.to_owned(), why: why.into() },
            // SQLite could not create the index of the WAL.
            Ok(()) if !is_writable(path) => OpenError::ReadOnly(path.to_owned()),
            // SQLite does not say that it could open no further file.
            Ok(()) => match File::open(path) {
                Err(why) if has_too_many_files(&why) => {
                    OpenError::Io { path: path.to_owned(), why }
                }
                _ => OpenError::Store { path: path.to_owned(), why },
            },
        },
        _ => OpenError::Store { path: path.to_owned(), why },
    }
}

/// Whether this process can write a file and create others next to it.
pub(crate) fn is_writable(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok() && access(folder_of(path), Access::WRITE_OK).is_ok()
}
