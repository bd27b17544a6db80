//! Syncs the database file through SQLite's own handle.
//!
//! A second handle must not be used: closing it drops the locks that SQLite has on the file,
//! see <https://www.sqlite.org/howtocorrupt.html>, section 2.2.

use rusqlite::{Connection, ffi};

use crate::error::StoreError;

/// Returns when everything that any connection wrote into the database file is on the disk.
///
/// # Errors
/// [`StoreError::Broken`] for a failed sync: the durable state is unknown, do not retry.
#[expect(unsafe_code, reason = "rusqlite has no function for the file of a connection")]
pub(crate) fn sync_database_file(connection: &Connection) -> Result<(), StoreError> {
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the handle is that of an open connection, which this thread borrows. For this operation SQLite writes one
    // pointer to the place of the last argument. The file lives as long as the connection, and its methods are those of
    // its VFS.
    let code = unsafe {
        let operation = ffi::SQLITE_FCNTL_FILE_POINTER;
        let place = (&raw mut file).cast();
        let code =
            ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), operation, place);
        let sync = file.as_ref().and_then(|it| it.pMethods.as_ref()).and_then(|it| it.xSync);
        match sync {
            Some(sync) if code == ffi::SQLITE_OK => sync(file, ffi::SQLITE_SYNC_NORMAL),
            None if code == ffi::SQLITE_OK => ffi::SQLITE_MISUSE,
            _ => code,
        }
    };
    match code {
        ffi::SQLITE_OK => Ok(()),
        _ => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into()),
    }
}
