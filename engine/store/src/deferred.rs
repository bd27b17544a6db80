//! Asks SQLite whether the open transaction violates a deferred constraint.

use rusqlite::{Connection, ffi};

/// Whether a foreign key is violated so far. SQLite counts violations per transaction, and a COMMIT fails while there is
/// one: <https://www.sqlite.org/c3ref/c_dbstatus_options.html>, `SQLITE_DBSTATUS_DEFERRED_FKS`.
#[expect(unsafe_code, reason = "rusqlite has no function for the status of a connection")]
pub(crate) fn violates_foreign_keys(connection: &Connection) -> bool {
    let mut current = 0;
    let mut highest = 0;
    // SAFETY: the handle is that of an open connection, which this thread borrows; both results are valid places.
    let answered = unsafe {
        let status = ffi::SQLITE_DBSTATUS_DEFERRED_FKS;
        ffi::sqlite3_db_status(connection.handle(), status, &raw mut current, &raw mut highest, 0)
    };
    assert_eq!(answered, ffi::SQLITE_OK, "SQLite knows this status");
    current != 0
}
