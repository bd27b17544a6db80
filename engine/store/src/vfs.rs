//! The VFS of SQLite through which files are opened: that of the system, without rollback journals.
//!
//! SQLite looks for a file `abide.db-journal` whenever it opens a database, and writes the pages of one over the
//! database, even if they are of another one. Abide writes no journal, because its files have a WAL. A check of the folder
//! before is not enough: whoever can write the folder can put a journal there after the check.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use rusqlite::ffi;

/// The name of the VFS.
const NAME: &CStr = c"abide";

type AccessFn =
    unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *const c_char, c_int, *mut c_int) -> c_int;

/// The function of the system's VFS that looks for a file.
static SYSTEM_ACCESS: OnceLock<AccessFn> = OnceLock::new();

/// Returns the name of the VFS, which is registered by the first call.
///
/// # Errors
/// SQLite cannot be initialized.
pub(crate) fn without_rollback_journals() -> rusqlite::Result<&'static CStr> {
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    match *REGISTERED.get_or_init(register) {
        ffi::SQLITE_OK => Ok(NAME),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

#[expect(unsafe_code, reason = "rusqlite has no function for a VFS")]
fn register() -> c_int {
    // SAFETY: the system's VFS is a static of SQLite, and a copy of it works as the original does: its functions use of
    // their first argument only the application data, which is copied, too. The copy is never freed, and `access` has
    // the signature of the function that it replaces.
    unsafe {
        let Some(system) = ffi::sqlite3_vfs_find(std::ptr::null()).as_ref() else {
            return ffi::SQLITE_ERROR;
        };
        let Some(system_access) = system.xAccess else { return ffi::SQLITE_ERROR };
        SYSTEM_ACCESS.get_or_init(|| system_access);
        let mut vfs = *system;
        vfs.zName = NAME.as_ptr();
        vfs.xAccess = Some(access);
        ffi::sqlite3_vfs_register(Box::leak(Box::new(vfs)), 0)
    }
}

/// Looks for a file as the system's VFS does, except that no rollback journal exists.
#[expect(unsafe_code, reason = "SQLite calls it")]
unsafe extern "C" fn access(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    found: *mut c_int,
) -> c_int {
    let Some(system_access) = SYSTEM_ACCESS.get() else { return ffi::SQLITE_ERROR };
    // SAFETY: SQLite passes a name that ends with a zero, and a place for the result; both are valid during the call.
    unsafe {
        let is_journal = !name.is_null() && CStr::from_ptr(name).to_bytes().ends_with(b"-journal");
        if is_journal && flags == ffi::SQLITE_ACCESS_EXISTS {
            *found = 0;
            return ffi::SQLITE_OK;
        }
        system_access(vfs, name, flags, found)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rusqlite::{Connection, OpenFlags};

    use crate::companions::companion;
    use crate::connect::connect;
    use crate::disk::SystemDisk;
    use crate::layout::Layout;
    use crate::open::{Store, Tuning};

    /// Another user put a journal next to a database between the check of its folder and its opening.
    #[test]
    fn a_rollback_journal_is_not_played_back() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("a.db");
        drop(Store::open(&path, Layout::default(), Tuning::default()).expect("it opens"));
        let content = fs::read(&path).expect("it is read");

        // A journal that SQLite plays back: of a transaction of another database.
        let other = folder.path().join("other.db");
        let connection = Connection::open(&other).expect("it opens");
        let pages =
            "PRAGMA cache_size = 1; CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(99999));
                     BEGIN; UPDATE t SET x = randomblob(99999);";
        connection.execute_batch(pages).expect("it is written");
        connection.cache_flush().expect("it is written");
        let journal = companion(&path, "-journal");
        fs::copy(companion(&other, "-journal"), &journal).expect("it is copied");
        fs::set_permissions(&journal, fs::metadata(&path).expect("it is there").permissions())
            .expect("it is ours");

        for flags in [OpenFlags::SQLITE_OPEN_READ_ONLY, OpenFlags::SQLITE_OPEN_READ_WRITE] {
            let connection = connect(&path, flags, &SystemDisk).expect("it opens");
            let sql = "SELECT count(*) FROM events";
            let events: i64 = connection.query_row(sql, [], |row| row.get(0)).expect("it reads");
            assert_eq!(events, 0);
            drop(connection);
            assert!(fs::read(&path).expect("it is read") == content, "the database was changed");
        }

        // The same files through SQLite's own VFS: the test has a journal that is played back.
        let plain = Connection::open(&path).expect("it opens");
        let _ = plain.query_row("SELECT count(*) FROM events", [], |_| Ok(()));
        drop(plain);
        assert!(fs::read(&path).expect("it is read") != content, "the journal is not valid");
    }
}
