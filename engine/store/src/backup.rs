//! A copy of a file, also while it is being served: SQLite's online backup of one state.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::Backup;

use crate::error::OpenError;
use crate::open::{beside, open_read_only};

/// Copies a file as it is at this moment. The copy is whole by itself: no WAL beside it.
///
/// # Errors
/// [`OpenError`], also where the target exists: nothing is ever overwritten.
pub fn backup(from: &Path, to: &Path) -> Result<(), OpenError> {
    let source = open_read_only(from)?;
    if to.exists() || beside(to, "-wal").exists() {
        return Err(OpenError::Exists(to.to_owned()));
    }
    let store = |why: rusqlite::Error| OpenError::Store { path: to.to_owned(), why: why.into() };
    let copied = (|| {
        let mut target = Connection::open(to)?;
        Backup::new(&source, &mut target)?.run_to_completion(i32::MAX, Duration::ZERO, None)
    })();
    if copied.is_err() {
        // Half a copy is worse than none.
        let _ = std::fs::remove_file(to);
    }
    copied.map_err(store)
}
