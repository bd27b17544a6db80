//! Copies a file, even while a server has it open, with SQLite's online backup of one state.

use std::path::Path;
use std::time::Duration;

use abide_schema::Module;
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use crate::error::OpenError;
use crate::layout::Layout;
use crate::partial_file::PartialFile;
use crate::read_only::{has_log, open_read_only};

/// Copies the current state of a file with the tables of `modules`. The copy is complete without a WAL.
///
/// # Errors
/// [`OpenError`], even if the target exists: nothing is overwritten.
pub fn backup(from: &Path, to: &Path, modules: Vec<Module>) -> Result<(), OpenError> {
    let source = open_read_only(from, &Layout { modules })?;
    if !has_log(&source, from)? {
        return Err(OpenError::Incomplete(from.to_owned()));
    }
    let part = PartialFile::create(to)?;
    let copied = copy_into(&source, part.path());
    source.check_unchanged()?;
    copied.map_err(|why| OpenError::Store { path: to.to_owned(), why: why.into() })?;
    part.put_in_place()
}

/// Copies the pages of a database into a file that this process has just created.
pub(crate) fn copy_into(source: &Connection, to: &Path) -> rusqlite::Result<()> {
    // A symlink in its place was put there afterwards.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut target = Connection::open_with_flags(to, flags)?;
    Backup::new(source, &mut target)?.run_to_completion(i32::MAX, Duration::ZERO, None)
}
