//! A file opened for reading, which leaves its folder as it was.
//!
//! A file that this process cannot write, or whose folder it cannot write, is read *alone*, without locks and without an
//! index of a WAL: SQLite could not create that index, or this process could not remove it. This needs a file without a
//! WAL and without records of a journal that it lacks; [`ReadOnlyFile::check_unchanged`] then reports a process that
//! wrote the file meanwhile.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use abide_schema::Seq;
use rusqlite::{Connection, OpenFlags};

use crate::checkpoint::leave_wal_on_close;
use crate::companions::companion;
use crate::connect::{
    broken, check_kind, check_length, check_not_lost, check_versions, connect, connect_alone,
    connect_to_read, is_writable, overwrite_deleted,
};
use crate::disk::SystemDisk;
use crate::error::{OpenError, StoreError};
use crate::journal::recovery::{FoundJournal, RecoveryError};
use crate::layout::Layout;
use crate::leftover::{apply_journal, check_wal, has_wal};
use crate::lock::{LockState, lock_once};
use crate::memory;
use crate::migrate;
use crate::private;
use crate::schema_check::check_schema;
use crate::vfs::without_rollback_journals;

/// Opens a file of ours read-only, in addition to the process that has it open: one state of it, whose schema is the
/// declared one.
pub(crate) fn open_read_only(path: &Path, layout: &Layout) -> Result<ReadOnlyFile, OpenError> {
    let path = &private::resolved(path)?;
    check_length(path)?;
    check_not_lost(path)?;
    let had_no_wal = is_complete(path);
    let opened = open_and_check(path, layout, had_no_wal);
    if opened.is_err() && had_no_wal && has_empty_wal(path) {
        remove_wal_or_log(path);
    }
    opened
}

/// As [`open_read_only`], but changes nothing: the journal of a process that was killed is checked and not applied. Also
/// returns the number of its events.
pub(crate) fn open_unchanged(
    path: &Path,
    layout: &Layout,
) -> Result<(ReadOnlyFile, u64), OpenError> {
    let path = &private::resolved(path)?;
    check_length(path)?;
    check_not_lost(path)?;
    let had_no_wal = is_complete(path);
    let opened = unapplied_events(path)
        .and_then(|unapplied| Ok((open_checked(path, layout, had_no_wal)?, unapplied)));
    if opened.is_err() && had_no_wal && has_empty_wal(path) {
        remove_wal_or_log(path);
    }
    opened
}

/// Returns the number of events that the next process to open a file takes from its journal.
fn unapplied_events(path: &Path) -> Result<u64, OpenError> {
    if !path.exists() {
        return Ok(0);
    }
    check_kind(path)?;
    let Some(FoundEnd { head, end }) = check_journal(path)? else { return Ok(0) };
    let is_held = matches!(LockState::read(path), Ok(LockState::Held(_)));
    Ok(if is_held { 0 } else { (end.0 - head.0).unsigned_abs() })
}

/// As [`open_read_only`]. On an error, SQLite may leave an empty WAL and its index.
fn open_and_check(
    path: &Path,
    layout: &Layout,
    had_no_wal: bool,
) -> Result<ReadOnlyFile, OpenError> {
    if path.exists() {
        check_kind(path)?;
        await_journal(path, layout)?;
    }
    open_checked(path, layout, had_no_wal)
}

/// Opens one state of a file, and checks its schema.
fn open_checked(path: &Path, layout: &Layout, had_no_wal: bool) -> Result<ReadOnlyFile, OpenError> {
    let file = if is_read_alone(path) {
        ReadOnlyFile {
            alone: Some(UnchangedFile::at(path.to_owned())),
            complete: None,
            connection: Some(connect_alone(path, &SystemDisk)?),
        }
    } else {
        ReadOnlyFile {
            alone: None,
            // Reading the end of the log, before, can have made a WAL.
            complete: (had_no_wal || is_complete(path)).then(|| path.to_owned()),
            connection: Some(connect_to_read(path, &SystemDisk)?),
        }
    };
    file.execute_batch("BEGIN").map_err(|why| broken(path, why.into()))?;
    check_schema(&file, path, layout)?;
    private::warn_if_open(path);
    Ok(file)
}

/// Whether a file is read without its WAL: no index of a WAL can be created and removed, and no WAL has rows.
fn is_read_alone(path: &Path) -> bool {
    path.exists() && !is_writable(path) && !has_wal(path) && !companion(path, "-journal").exists()
}

/// How long a reader waits until the process that serves a file has committed what it acknowledged.
const COMMIT_WAIT: Duration = Duration::from_secs(5);

/// The last event of a database, and the last one with its journal.
struct FoundEnd {
    head: Seq,
    end: Seq,
}

/// Checks that a journal belongs to the database next to it. Returns where both end; `None` without a journal.
fn check_journal(path: &Path) -> Result<Option<FoundEnd>, OpenError> {
    let journal = read_journal(path)?;
    // A process that has the file open has checked it.
    if !matches!(LockState::read(path), Ok(LockState::Held(_))) {
        check_wal(path, journal.as_ref(), &SystemDisk)?;
    }
    let Some(journal) = journal else { return Ok(None) };
    let log = connect_to_log(path)?;
    let head = head_of(&log, path)?;
    let end = journal.end_after(head);
    if !matches!(LockState::read(path), Ok(LockState::Held(_))) {
        let checked = journal.check_belongs(&log).and_then(|()| journal.check_complete(end));
        checked.map_err(|why| why.into_open_error(path))?;
    }
    Ok(Some(FoundEnd { head, end }))
}

/// Returns when the database has everything that its journal has: after the commit of the process that serves the file,
/// or by applying the journal if there is none.
fn await_journal(path: &Path, layout: &Layout) -> Result<(), OpenError> {
    let Some(FoundEnd { end, .. }) = check_journal(path)? else { return Ok(()) };
    let deadline = Instant::now() + COMMIT_WAIT;
    loop {
        if head_of(&connect_to_log(path)?, path)? >= end {
            return Ok(());
        }
        match lock_once(path, None) {
            Ok(_lock) => return apply_to_closed(path, layout),
            // SQLite has no notification of another process's commit.
            Err(OpenError::InUse { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
    }
}

fn read_journal(path: &Path) -> Result<Option<FoundJournal>, OpenError> {
    FoundJournal::read(path, &SystemDisk)
        .map_err(|why| OpenError::Io { path: path.to_owned(), why })
}

/// Connects to a file to read its log.
fn connect_to_log(path: &Path) -> Result<Connection, OpenError> {
    let connection = if is_read_alone(path) {
        connect_alone(path, &SystemDisk)?
    } else {
        connect_to_read(path, &SystemDisk)?
    };
    if !has_log(&connection, path)? {
        return Err(RecoveryError::NewFile.into_open_error(path));
    }
    Ok(connection)
}

/// Returns the last event of a log.
fn head_of(log: &Connection, path: &Path) -> Result<Seq, OpenError> {
    migrate::head(log).map_err(|why| broken(path, why.into()))
}

/// Returns `true` if the file has the tables of the log; a new file, and a copy without its WAL, has none.
pub(crate) fn has_log(connection: &Connection, path: &Path) -> Result<bool, OpenError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'meta')";
    let found = connection.query_row(sql, [], |row| row.get(0));
    found.map_err(|why| broken(path, why.into()))
}

/// Applies the journal of a file that is not open, for a reader.
fn apply_to_closed(path: &Path, layout: &Layout) -> Result<(), OpenError> {
    let to_open_error = |why: rusqlite::Error| broken(path, why.into());
    let journal = read_journal(path)?;
    check_wal(path, journal.as_ref(), &SystemDisk)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let mut connection = connect(path, flags, &SystemDisk).map_err(|why| broken(path, why))?;
    check_versions(&connection, path)?;
    check_schema(&connection, path, layout)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(to_open_error)?;
    overwrite_deleted(&connection).map_err(|why| broken(path, why))?;
    let journal = apply_journal(&mut connection, path, layout, journal, &SystemDisk)?;
    leave_wal_on_close(&connection, false).map_err(to_open_error)?;
    drop(connection);
    if let Some(journal) = journal {
        journal.remove(&SystemDisk);
    }
    Ok(())
}

/// A read-only connection. SQLite creates a WAL and its index next to a file even to read it, and a read-only
/// connection cannot remove them.
#[derive(Debug)]
pub(crate) struct ReadOnlyFile {
    /// `None` only while it is dropped.
    connection: Option<Connection>,
    /// The file, if it had no WAL before.
    complete: Option<PathBuf>,
    /// The file, if it is read alone.
    alone: Option<UnchangedFile>,
}

/// A file as it was when it was opened.
#[derive(Debug)]
struct UnchangedFile {
    path: PathBuf,
    state: Option<FileState>,
}

/// Device, number, bytes, and the time of the last change in seconds and nanoseconds.
type FileState = (u64, u64, u64, i64, i64);

impl UnchangedFile {
    fn at(path: PathBuf) -> UnchangedFile {
        UnchangedFile { state: state_of(&path), path }
    }

    fn is_unchanged(&self) -> bool {
        !has_wal(&self.path) && self.state.is_some() && self.state == state_of(&self.path)
    }
}

fn state_of(path: &Path) -> Option<FileState> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()))
}

/// Whether a file is complete without the files next to it.
pub(crate) fn is_complete(path: &Path) -> bool {
    ["-wal", "-shm", "-journal"].iter().all(|suffix| !companion(path, suffix).exists())
}

/// Whether there is a WAL without content.
fn has_empty_wal(path: &Path) -> bool {
    fs::metadata(companion(path, "-wal")).is_ok_and(|meta| meta.len() == 0)
}

impl ReadOnlyFile {
    /// Returns an error if another process has written a file that is read alone: what was read of it can be wrong.
    ///
    /// # Errors
    /// [`StoreError::Busy`].
    pub(crate) fn check_unchanged(&self) -> Result<(), OpenError> {
        match &self.alone {
            Some(file) if !file.is_unchanged() => {
                Err(OpenError::Store { path: file.path.clone(), why: StoreError::Busy })
            }
            _ => Ok(()),
        }
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
        if let Some(path) = self.complete.take() {
            remove_wal_or_log(&path);
        }
    }
}

fn remove_wal_or_log(path: &Path) {
    if let Err(error) = remove_wal(path) {
        tracing::debug!(%error, "the WAL of a file that was read is left");
    }
}

/// Removes an empty WAL and its index. The last connection that closes does so, under SQLite's locks: if another process
/// has the file open, they stay.
fn remove_wal(path: &Path) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    memory::start_counting();
    let vfs = without_rollback_journals()?;
    let connection = Connection::open_with_flags_and_vfs(path, flags, vfs)?;
    leave_wal_on_close(&connection, true)?;
    // A connection that has read nothing has no WAL to remove.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(leave_wal_on_close(&connection, false)?)
}
