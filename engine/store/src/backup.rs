//! Copies a file, even while a server has it open, with SQLite's online backup of one state.

use std::path::Path;
use std::time::Duration;

use abide_schema::{Module, Refusal};
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use crate::error::OpenError;
use crate::layout::Layout;
use crate::partial_file::PartialFile;
use crate::read_only::{has_log, open_read_only};
use crate::verify::{Verified, VerifyError, verify_file};

/// Copies the current state of a file with the tables of `modules`. The copy is complete without a WAL, and gets its name
/// when it is verified: whoever finds a copy takes it for a good one. Returns what is in it.
///
/// # Errors
/// [`BackupError`], even if the target exists: nothing is overwritten.
pub fn backup(from: &Path, to: &Path, modules: Vec<Module>) -> Result<Verified, BackupError> {
    let source = open_read_only(from, &Layout { modules: modules.clone() })?;
    if !has_log(&source, from)? {
        return Err(OpenError::Incomplete(from.to_owned()).into());
    }
    let part = PartialFile::create(to)?;
    let copied = copy_into(&source, part.path());
    source.check_unchanged()?;
    copied.map_err(|why| OpenError::Store { path: to.to_owned(), why: why.into() })?;
    let verified =
        verify_file(part.path(), modules, &mut |_| {}).map_err(BackupError::Unverified)?;
    part.put_in_place()?;
    Ok(verified)
}

/// Why there is no copy of a file.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// It cannot be made.
    #[error(transparent)]
    Copy(#[from] OpenError),
    /// It does not verify, because the file that was copied does not, and is removed.
    #[error(transparent)]
    Unverified(VerifyError),
}

impl BackupError {
    /// Returns the refusal for a user of the command line.
    #[must_use]
    pub fn to_refusal(&self) -> Refusal {
        match self {
            BackupError::Copy(why) => why.to_refusal(),
            BackupError::Unverified(why) => why.to_refusal(),
        }
    }
}

/// Copies the pages of a database into a file that this process has just created.
pub(crate) fn copy_into(source: &Connection, to: &Path) -> rusqlite::Result<()> {
    let mut target = connect_to_target(to)?;
    Backup::new(source, &mut target)?.run_to_completion(i32::MAX, Duration::ZERO, None)
}

/// Connects to an empty file that this process has created. A process that is killed leaves no rollback journal next to it:
/// there is nothing to roll back to.
fn connect_to_target(path: &Path) -> rusqlite::Result<Connection> {
    // A symlink in its place was put there afterwards.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let target = Connection::open_with_flags(path, flags)?;
    target.pragma_update(None, "journal_mode", "MEMORY")?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::open::{Store, Tuning};

    /// A backup that was killed left a rollback journal, which belonged to no file.
    #[test]
    fn an_incomplete_copy_has_no_file_next_to_it() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("a.db");
        drop(Store::open(&path, Layout::default(), Tuning::default()).expect("it opens"));
        let source = Connection::open(&path).expect("it opens");
        let copy = folder.path().join("copy.db");
        fs::write(&copy, "").expect("it is created");
        let mut target = connect_to_target(&copy).expect("it connects");
        let copying = Backup::new(&source, &mut target).expect("it begins");
        copying.step(3).expect("it has more pages");
        let names = fs::read_dir(folder.path()).expect("it is listed");
        let names = names.map(|entry| entry.expect("it is listed").file_name());
        let of_copy = names.filter(|name| name.to_string_lossy().starts_with("copy.db"));
        assert_eq!(of_copy.collect::<Vec<_>>(), ["copy.db"]);
    }
}
