//! What a process left next to a database: whether its WAL belongs to it, and the application of its journal.
//!
//! SQLite applies any WAL with the name of the database, because neither names the other. After `cp backup.db abide.db`
//! the WAL of the former file would replace the pages of the backup. So, before SQLite may change the file, its state
//! *alone* is compared with its state *with the WAL* and with the journal:
//!
//! 1. A file keeps its log id for ever. The id in the file alone must be that of each segment of the journal, and that
//!    of the file with its WAL.
//! 2. The log of the file with its WAL continues the log of the file alone: it has the last event of the file alone, with
//!    the same hash, and the next event, if there is one, refers to that hash.
//! 3. A segment names the last event that was durable in the database file alone when its use began (its *base*). If the
//!    file alone ends before a base, it is an older copy, and the file with its WAL must have every event between.
//!
//! A file that a process left behind is never refused: no page of its history has another log id, and its WAL completes
//! it. The file alone may be half of a checkpoint; a state that cannot be read decides nothing. The log id of a file
//! whose tables are still in its WAL is unknown, so any WAL fits it; such a file has no row that could be lost.
//!
//! The journal itself is checked when it is applied, see [`crate::journal::recovery`].

use std::path::Path;

use abide_log::genesis;
use abide_schema::Seq;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _};

use crate::checkpoint::sync_wal;
use crate::companions::companion;
use crate::connect::{connect_alone, connect_to_read};
use crate::disk::Disk;
use crate::error::{OpenError, StoreError};
use crate::journal::recovery::FoundJournal;
use crate::layout::Layout;
use crate::migrate;

/// Refuses a WAL of another database, or of another state of this one. `path` has no symlink.
///
/// # Errors
/// [`OpenError::ForeignWal`]; SQLite's errors with the WAL.
pub(crate) fn check_wal(
    path: &Path,
    journal: Option<&FoundJournal>,
    disk: &dyn Disk,
) -> Result<(), OpenError> {
    if !has_wal(path) {
        return Ok(());
    }
    let Some(alone) = connect_alone(path, disk).ok() else { return Ok(()) };
    let Some((log_id, head)) = state_of(&alone) else { return Ok(()) };
    let hash = hash_of(&alone, head).ok().flatten();
    drop(alone);
    let foreign_wal = |why: &'static str| OpenError::ForeignWal { path: path.to_owned(), why };
    if journal.is_some_and(|journal| !journal.is_of(&log_id)) {
        return Err(foreign_wal("belong to another database"));
    }
    let together = connect_to_read(path, disk)?;
    if migrate::meta(&together, "log_id").ok().flatten().as_ref() != Some(&log_id) {
        return Err(foreign_wal("belong to another database"));
    }
    // A crash leaves no page in the file that is newer than the WAL.
    if migrate::head(&together).is_ok_and(|end| end < head) {
        return Err(foreign_wal("belong to an earlier state of it"));
    }
    if let (Some(alone), Ok(Some(with_wal))) = (&hash, hash_of(&together, head))
        && *alone != with_wal
    {
        return Err(foreign_wal(OTHER_HISTORY));
    }
    let base = journal.map_or(Seq::ZERO, FoundJournal::base);
    if base > head && !has_events(&together, head, base) {
        return Err(foreign_wal("belong to a later state of it"));
    }
    let hash = if head == Seq::ZERO { Some(genesis(&log_id).to_vec()) } else { hash };
    match hash.and_then(|hash| find_break(&together, head, &hash)) {
        Some(why) => Err(foreign_wal(why)),
        None => Ok(()),
    }
}

const OTHER_HISTORY: &str = "belong to another history of it";
const OTHER_STATE: &str = "belong to another state of it";

/// Returns what a WAL is, if the file with it does not continue the log that the file has alone: up to an event with this
/// hash.
fn find_break(together: &Connection, head: Seq, hash: &[u8]) -> Option<&'static str> {
    // The seq of a file that another program has written can be any number.
    let next = head.0.checked_add(1)?;
    let check = || -> rusqlite::Result<Option<&'static str>> {
        if head > Seq::ZERO && hash_of(together, head)?.is_none() {
            return Ok(Some(OTHER_STATE));
        }
        let sql = "SELECT prev_hash FROM events WHERE seq = ?1";
        let linked = together.query_row(sql, [next], |row| row.get::<_, Vec<u8>>(0));
        Ok(match linked.optional()? {
            Some(linked) => (linked != hash).then_some(OTHER_HISTORY),
            None => (migrate::head(together)? > head).then_some(OTHER_STATE),
        })
    };
    match check() {
        Ok(found) => found,
        Err(why) if is_of_system(&why) => None,
        // The file alone can be read, and what a crash leaves can be read with the WAL.
        Err(_) => Some(OTHER_STATE),
    }
}

/// Whether an error says nothing about the content of a file.
fn is_of_system(error: &rusqlite::Error) -> bool {
    use ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, FileLockingProtocolFailed, OutOfMemory,
        PermissionDenied, ReadOnly, SystemIoFailure,
    };
    matches!(
        error.sqlite_error_code(),
        Some(
            CannotOpen
                | DatabaseBusy
                | DatabaseLocked
                | DiskFull
                | FileLockingProtocolFailed
                | OutOfMemory
                | PermissionDenied
                | ReadOnly
                | SystemIoFailure
        )
    )
}

/// Whether there is a WAL with content.
pub(crate) fn has_wal(path: &Path) -> bool {
    std::fs::metadata(companion(path, "-wal")).is_ok_and(|meta| meta.len() > 0)
}

/// The log id and the last event.
fn state_of(connection: &Connection) -> Option<(String, Seq)> {
    Some((migrate::meta(connection, "log_id").ok()??, migrate::head(connection).ok()?))
}

/// Returns the hash of an event, if there is the event.
fn hash_of(connection: &Connection, seq: Seq) -> rusqlite::Result<Option<Vec<u8>>> {
    let sql = "SELECT hash FROM events WHERE seq = ?1";
    connection.query_row(sql, [seq.0], |row| row.get(0)).optional()
}

/// Whether each event after `from`, up to `to`, can be read.
fn has_events(connection: &Connection, from: Seq, to: Seq) -> bool {
    let sql = "SELECT count(*) FROM events NOT INDEXED WHERE seq > ?1 AND seq <= ?2";
    let count = connection.query_row(sql, [from.0, to.0], |row| row.get::<_, i64>(0));
    count.map_err(StoreError::from).is_ok_and(|count| Some(count) == to.0.checked_sub(from.0))
}

/// Applies the journal of a process that did not close the file. Afterwards the records are in the WAL, and the WAL is
/// synced.
pub(crate) fn apply_journal(
    connection: &mut Connection,
    path: &Path,
    layout: &Layout,
    journal: Option<FoundJournal>,
    disk: &dyn Disk,
) -> Result<Option<FoundJournal>, OpenError> {
    let Some(journal) = journal else { return Ok(None) };
    journal.apply(connection, path, layout).map_err(|why| why.into_open_error(path))?;
    // Also what that process had in the WAL and could not sync: nothing else will hold it.
    sync_wal(path, disk).map_err(|why| OpenError::Io { path: path.to_owned(), why })?;
    Ok(Some(journal))
}
