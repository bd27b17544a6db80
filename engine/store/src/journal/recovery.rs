//! Applies the records of a journal to a database that does not have them, after a crash. `Store::open` needs it, and
//! so do commands that only read (`read_only.rs`). Whether the WAL next to it belongs to the file is decided before, in
//! `leftover.rs`.
//!
//! SQLite's own recovery comes first. Its state ends at some group: before or after the end of the journal, because
//! neither waits for the other. Records up to that end are skipped; the following ones are applied while each
//! continues the log exactly. The first hole ends the journal: a record is acknowledged only when all before it are
//! durable, so nothing behind a hole was. A group that SQLite has and the journal has not was not acknowledged either,
//! and is complete: it stays.

use std::path::{Path, PathBuf};

use abide_schema::Seq;
use abide_schema::event::Hash;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use super::frame::{FRAMES_START, Record, RecordPosition, SegmentHeader, take_record};
use super::log_digest;
use super::row_operations::Applier;
use crate::companions::segments_of;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::migrate;
use crate::private;

/// The segments next to a database, with their content.
#[derive(Debug)]
pub(crate) struct FoundJournal {
    paths: Vec<PathBuf>,
    /// The segments that were used, in the order of their use.
    segments: Vec<UsedSegment>,
}

/// A segment that was used.
#[derive(Debug)]
struct UsedSegment {
    header: SegmentHeader,
    content: Vec<u8>,
}

impl FoundJournal {
    /// Reads the journal of a database; `None` if there is none.
    pub(crate) fn read(database: &Path, disk: &dyn Disk) -> std::io::Result<Option<FoundJournal>> {
        let mut paths = Vec::new();
        let mut segments = Vec::new();
        for path in segments_of(database)? {
            let checked = private::check_segment(database, &path);
            let content = match checked.and_then(|()| disk.open(&path)?.read()) {
                Ok(content) => content,
                // Another process has just removed it, so the database has everything that it held.
                Err(why) if why.kind() == std::io::ErrorKind::NotFound => continue,
                Err(why) => return Err(why),
            };
            if let Some(header) = SegmentHeader::decode(&content) {
                segments.push(UsedSegment { header, content });
            }
            paths.push(path);
        }
        if paths.is_empty() {
            return Ok(None);
        }
        segments.sort_by_key(|segment| segment.header.round);
        Ok(Some(FoundJournal { paths, segments }))
    }

    /// The last event of a database that ends at `head`, once this journal is applied.
    pub(crate) fn end_after(&self, head: Seq) -> Seq {
        let later = self.records().filter(|record| record.position.to > head);
        let mut end = head;
        for RecordPosition { from, to, .. } in later.map(|record| record.position) {
            if from != end {
                break;
            }
            end = to;
        }
        end
    }

    /// The number of the last use of a segment.
    pub(crate) fn last_round(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.header.round)
    }

    /// Whether every segment belongs to the log with this id.
    pub(crate) fn is_of(&self, log_id: &str) -> bool {
        let log = log_digest(log_id);
        self.segments.iter().all(|segment| segment.header.log == log)
    }

    /// The last event that was durable in the database file alone, when a segment was started.
    pub(crate) fn base(&self) -> Seq {
        self.segments.iter().map(|segment| segment.header.base).max().unwrap_or(Seq::ZERO)
    }

    /// Applies the records that the database does not have, in one transaction.
    ///
    /// # Errors
    /// The journal belongs to another file or to another state of this one; or the storage failed.
    pub(crate) fn apply(&self, connection: &mut Connection) -> Result<(), RecoveryError> {
        if self.segments.is_empty() {
            return Ok(());
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let format: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if format == 0 {
            return Err(RecoveryError::NewFile);
        }
        let log_id = migrate::meta(&transaction, "log_id")?.ok_or(RecoveryError::OtherFile)?;
        let mut end = read_end_of_log(&transaction)?;
        for UsedSegment { header, .. } in &self.segments {
            if header.log != log_digest(&log_id) {
                return Err(RecoveryError::OtherFile);
            }
            if header.base > end.seq {
                return Err(RecoveryError::Older { head: end.seq, base: header.base });
            }
        }
        let mut applier = Applier::default();
        for Record { position, operations } in self.records() {
            if position.to <= end.seq {
                continue;
            }
            if position.from != end.seq {
                break;
            }
            if position.before != end.hash.unwrap_or(position.before) {
                return Err(RecoveryError::OtherHistory { head: end.seq });
            }
            applier.apply(&transaction, operations)?;
            end = read_end_of_log(&transaction)?;
            if end.seq != position.to {
                return Err(RecoveryError::Unreadable { from: position.from });
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Removes the segments, once their records are durable in the database.
    pub(crate) fn remove(&self, disk: &dyn Disk) {
        for path in &self.paths {
            if let Err(why) = disk.remove(path) {
                tracing::warn!(%why, "a segment of the journal was not removed");
            }
        }
    }

    /// All records in the order of the segments. A segment ends at its first frame that is not valid.
    fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.segments.iter().flat_map(|UsedSegment { header, content }| {
            let mut frames = content.get(FRAMES_START..).unwrap_or_default();
            std::iter::from_fn(move || take_record(header.round, &mut frames))
        })
    }
}

/// Why the journal cannot be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    /// The database has no tables yet.
    #[error(
        "the file has no tables: its -wal is missing, or the journal next to it is of another file"
    )]
    NewFile,
    /// Its log is another one.
    #[error("the journal next to the file belongs to another database")]
    OtherFile,
    /// The database is older than the journal.
    #[error("the file ends at event {head}, but its journal continues from event {base}")]
    Older {
        /// The last event of the database.
        head: Seq,
        /// The last event that was durable in the database when the journal was written.
        base: Seq,
    },
    /// The database has other events.
    #[error("the journal next to the file does not continue event {head}")]
    OtherHistory {
        /// The last event of the database.
        head: Seq,
    },
    /// A record with a valid checksum did not produce the events that it names.
    #[error("the record of the journal after event {from} cannot be applied")]
    Unreadable {
        /// The last event before the record.
        from: Seq,
    },
    /// The storage failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for RecoveryError {
    fn from(error: rusqlite::Error) -> RecoveryError {
        RecoveryError::Store(error.into())
    }
}

/// The end of the log in the database.
struct LogEnd {
    /// The last event; 0 if there is none.
    seq: Seq,
    /// Its hash.
    hash: Option<Hash>,
}

fn read_end_of_log(connection: &Connection) -> rusqlite::Result<LogEnd> {
    let sql = "SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row([], |row| {
        Ok(LogEnd { seq: Seq(row.get(0)?), hash: Some(row.get::<_, Hash>(1)?) })
    });
    Ok(found.optional()?.unwrap_or(LogEnd { seq: Seq::ZERO, hash: None }))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::disk::SystemDisk;

    /// Another user who can write the folder could put a segment there, whose records became rows.
    #[test]
    fn only_segments_of_the_owner_are_read() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("a.db");
        let segment = folder.path().join("a.db-redo-1");
        let read = || FoundJournal::read(&path, &SystemDisk).map(|found| found.is_some());
        let mode = |file: &Path, mode| {
            fs::set_permissions(file, Permissions::from_mode(mode)).expect("it is ours");
        };
        for file in [&path, &segment] {
            fs::write(file, "x").expect("it is written");
            mode(file, 0o600);
        }
        assert!(read().expect("it is ours"));
        mode(&segment, 0o666);
        assert_eq!(read().expect_err("others write it").kind(), std::io::ErrorKind::InvalidData);
        mode(&path, 0o666);
        assert!(read().expect("others write the database, too"));
        fs::remove_file(&segment).expect("it is there");
        symlink(&path, &segment).expect("it is linked");
        assert_eq!(read().expect_err("a symlink").kind(), std::io::ErrorKind::InvalidData);
    }
}
