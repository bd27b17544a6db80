//! Copies a file, even while a server has it open, with SQLite's online backup of one state.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use abide_schema::Module;
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::companions::{companion, remove};
use crate::error::OpenError;
use crate::layout::Layout;
use crate::private;
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
    private::check_absent(to)?;
    // A copy that was interrupted must not be taken for a good one.
    let part = companion(to, &format!("-partial-{}", std::process::id()));
    let part = private::create(&part)?;
    let copied = copy_into(&source, &part)
        .map_err(|why| OpenError::Store { path: to.to_owned(), why: why.into() });
    let copied = source.check_unchanged().and(copied).and_then(|()| {
        put_in_place(&part, to).map_err(|why| match why.kind() {
            ErrorKind::AlreadyExists => OpenError::Exists(to.to_owned()),
            _ => OpenError::Io { path: to.to_owned(), why },
        })
    });
    if copied.is_err() {
        remove(&part);
    }
    copied
}

/// Gives a complete copy its name. Nothing is overwritten, if the file system can check that.
fn put_in_place(part: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, part, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => fs::rename(part, to)?,
        renamed => renamed?,
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Copies the pages of a database into a file that this process has just created.
fn copy_into(source: &Connection, to: &Path) -> rusqlite::Result<()> {
    // A symlink in its place was put there afterwards.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut target = Connection::open_with_flags(to, flags)?;
    Backup::new(source, &mut target)?.run_to_completion(i32::MAX, Duration::ZERO, None)
}
