//! A file opened for reading, which leaves its folder as it was.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::checkpoint::leave_wal_on_close;
use crate::companions::companion;
use crate::error::StoreError;
use crate::memory;

/// A read-only connection. SQLite creates a WAL and its index next to a file even to read it, and a read-only
/// connection cannot remove them.
#[derive(Debug)]
pub(crate) struct ReadOnlyFile {
    /// `None` only while it is dropped.
    connection: Option<Connection>,
    /// The file, if it had no WAL before.
    complete: Option<PathBuf>,
}

/// Whether a file is complete without the files next to it.
pub(crate) fn is_complete(path: &Path) -> bool {
    ["-wal", "-shm", "-journal"].iter().all(|suffix| !companion(path, suffix).exists())
}

impl ReadOnlyFile {
    /// `complete` is the file, if it was [complete](is_complete) before the connection was made.
    pub(crate) fn new(connection: Connection, complete: Option<PathBuf>) -> ReadOnlyFile {
        ReadOnlyFile { connection: Some(connection), complete }
    }
}

impl Deref for ReadOnlyFile {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("it is not being dropped")
    }
}

impl Drop for ReadOnlyFile {
    fn drop(&mut self) {
        drop(self.connection.take());
        let Some(path) = self.complete.take() else { return };
        if let Err(error) = remove_wal(&path) {
            tracing::debug!(%error, "the WAL of a file that was read is left");
        }
    }
}

/// Removes an empty WAL and its index. The last connection that closes does so, under SQLite's locks: if another process
/// has the file open, they stay.
fn remove_wal(path: &Path) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    memory::count();
    let connection = Connection::open_with_flags(path, flags)?;
    leave_wal_on_close(&connection, true)?;
    // A connection that has read nothing has no WAL to remove.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(leave_wal_on_close(&connection, false)?)
}
