//! The journal: makes a group of calls durable before SQLite commits it.
//!
//! A SQLite transaction costs the same for one call as for a thousand. So the writer keeps it open over many groups, and
//! appends one record per group to a file of its own, which is synced before the group is answered:
//!
//! ```text
//! group ─▶ rows, in SQLite's open transaction ──── many groups later ──▶ COMMIT ─▶ WAL ─▶ checkpoint ─▶ file
//!       └▶ record, in a segment ─▶ fdatasync ─▶ answers                                       │
//!                                     segments whose records are all in the file ◀────────────┘ are used again
//! ```
//!
//! Segments are written with zeros when they are created, and keep their size, so that a sync writes data only. When a
//! file is opened after a crash, [`recovery`] applies the records that its database does not have. A clean close needs
//! no journal afterwards, and removes it.
//!
//! Each segment begins with a record of the opening, which names the tables and columns of the records after it.
//! Migrations and the deletion of undo images are records too, so that whoever applies the records has the same file.
//!
//! In reading order: [`record`] the content of a record, and in [`row_operations`] that of rows · [`frame`] the layout of a
//! segment · this file, the writer's side · [`recovery`].

pub(crate) mod frame;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod row_operations;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_schema::event::Hash;
use abide_schema::{Seq, has_too_many_files, limits};
use sha2::{Digest as _, Sha256};

use crate::companions::segment;
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::opened_file::OpenedFile;
use frame::{FRAMES_START, RecordPosition, SegmentHeader};
use record::RecordContent;

/// The journal of an open file. The writer appends; the thread that syncs holds the segments.
#[derive(Debug)]
pub struct Journal {
    disk: Arc<dyn Disk>,
    database: PathBuf,
    log: [u8; 16],
    segment_bytes: u64,
    /// Segments with records that the database file may not have, oldest first. The last one is written.
    live: VecDeque<LiveSegment>,
    /// Segments to use again.
    free: Vec<Arc<Segment>>,
    /// The number of the next use of a segment.
    next_round: u64,
    /// The number in the name of the next segment.
    next_number: u64,
    /// Everything up to here is durable in the database file.
    base: Seq,
    /// What the records of this opening have in common.
    opening: JournalOpening,
}

/// What a journal needs to know of the opening that writes it.
#[derive(Clone, Debug)]
pub(crate) struct JournalOpening {
    /// The number of the opening.
    pub(crate) epoch: u64,
    /// The first record of each segment.
    pub(crate) record: Vec<u8>,
    /// The migrations since the last event, which no journal has kept. They come before the first segment's opening.
    pub(crate) migrations: Vec<Vec<u8>>,
    /// The number of the first use of a segment.
    pub(crate) first_round: u64,
}

/// A segment in use.
#[derive(Debug)]
struct LiveSegment {
    segment: Arc<Segment>,
    round: u64,
    used: u64,
    /// The last event of its last record.
    last: Seq,
}

/// A file of the journal.
#[derive(Debug)]
pub struct Segment {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    /// `None` on another disk than the system's.
    opened: Option<OpenedFile>,
    bytes: u64,
}

impl Segment {
    /// Returns when every record that was appended before the call is on the disk.
    ///
    /// # Errors
    /// An I/O error of the system. The durable state is then unknown: do not retry.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Whether its path still names it: it can be removed or replaced meanwhile.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.opened.as_ref().is_none_or(OpenedFile::is_in_place)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// How much larger a later segment is than the first one, at most; and how much smaller on a nearly full disk.
const GROWTH: u64 = 8;

/// The least space that must be left for the pages that a commit of SQLite appends to the WAL.
const ROW_SPACE: u64 = 1 << 20;

/// How many bytes of pages a commit appends to the WAL for each byte of its records, beyond [`ROW_SPACE`]. Measured
/// with long messages: 2.5.
const ROW_SPACE_FACTOR: u64 = 4;

/// Free segments that are kept: as many as a busy writer fills between two checkpoints. More are removed.
const FREE_SEGMENTS: usize = 32;

impl Journal {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        database: &Path,
        log_id: &str,
        segment_bytes: u64,
        opening: JournalOpening,
        base: Seq,
    ) -> Journal {
        Journal {
            disk,
            database: database.to_owned(),
            log: log_digest(log_id),
            segment_bytes,
            live: VecDeque::new(),
            free: Vec::new(),
            next_round: opening.first_round,
            next_number: 1,
            base,
            opening,
        }
    }

    /// Appends the record of a group, of [`Writer::take_record`](crate::Writer::take_record), and completes its header. It is
    /// durable once the returned segment is synced. `durable` is the last event that is so already.
    ///
    /// # Errors
    /// [`StoreError::Full`] and [`StoreError::Unavailable`]: nothing was appended, and a later append can succeed. Any other error is final.
    pub fn append(
        &mut self,
        durable: Seq,
        position: &RecordPosition,
        record: &mut [u8],
    ) -> Result<Arc<Segment>, StoreError> {
        let bytes = record.len() as u64;
        let has_room = self.live.back().is_some_and(|it| it.used + bytes <= it.segment.bytes);
        if !has_room {
            self.start_segment(durable, position, bytes).map_err(|why| failed(&why))?;
        }
        let current = self.live.back_mut().expect("a segment was started");
        frame::complete(current.round, self.opening.epoch, durable, position, record);
        let written = current.segment.file.write_at(record, current.used);
        written.map_err(|why| failed(&why))?;
        current.used += bytes;
        current.last = position.to;
        Ok(Arc::clone(&current.segment))
    }

    /// Appends a record that the undo images up to an event are deleted. It becomes durable with the next group: without it
    /// a copy keeps them longer.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_pruning(
        &mut self,
        durable: Seq,
        head: Seq,
        hash: Hash,
        floor: Seq,
    ) -> Result<(), StoreError> {
        let position = RecordPosition { from: head, to: head, before: hash, after: hash };
        let mut record = RecordContent::Pruning { floor }.encode();
        self.append(durable, &position, &mut record).map(drop)
    }

    /// Everything up to `durable` is durable in the database file: the segments below are used again.
    pub fn recycle(&mut self, durable: Seq) {
        self.base = self.base.max(durable);
        while self.live.len() > 1 && self.live[0].last <= self.base {
            let Some(LiveSegment { segment, .. }) = self.live.pop_front() else { break };
            if self.free.len() < FREE_SEGMENTS {
                self.free.push(segment);
            } else if let Err(why) = self.disk.remove(&segment.path) {
                tracing::warn!(
                    name: "segment_not_removed",
                    %why,
                    "a segment of the journal was not removed"
                );
            }
        }
    }

    /// The bytes of records that the database file may not have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.live.iter().map(|it| it.used).sum()
    }

    /// Whether the disk is nearly full. Rows that SQLite has not committed should then be few: what is in the journal
    /// is acknowledged, and must fit the WAL, too.
    #[must_use]
    pub fn is_space_low(&self) -> bool {
        self.disk.free_bytes(&self.database).is_ok_and(|free| free < limits::LOW_DISK_BYTES)
    }

    /// Refuses records for whose pages the disk has no space. A record may fit the journal, whose segments have their
    /// size in advance, when the WAL cannot grow. Its calls would be answered, and all queries refused until SQLite
    /// can commit. `record_bytes`: of all records that SQLite has not committed, with the next one.
    ///
    /// # Errors
    /// [`StoreError::Full`].
    pub fn check_row_space(&self, record_bytes: usize) -> Result<(), StoreError> {
        let bytes = ROW_SPACE.saturating_add(ROW_SPACE_FACTOR.saturating_mul(record_bytes as u64));
        // Without an answer of the system, the commit finds out.
        match self.disk.free_bytes(&self.database) {
            Ok(free) if free < bytes => Err(StoreError::Full),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Starts the next segment with the records of the opening, for a frame of that position and size.
    fn start_segment(
        &mut self,
        durable: Seq,
        position: &RecordPosition,
        frame_bytes: u64,
    ) -> io::Result<()> {
        let round = self.next_round;
        let header = SegmentHeader { round, log: self.log, base: self.base };
        let mut start = header.encode();
        start.resize(FRAMES_START, 0);
        let before = RecordPosition { to: position.from, after: position.before, ..*position };
        for record in self.opening.migrations.iter().chain([&self.opening.record]) {
            let mut frame = record.clone();
            frame::complete(round, self.opening.epoch, durable, &before, &mut frame);
            start.extend_from_slice(&frame);
        }
        let used = start.len() as u64;
        let least = used + frame_bytes;
        let segment = match self.free.iter().position(|free| free.bytes >= least) {
            Some(at) => self.free.swap_remove(at),
            None => Arc::new(self.create(least.max(self.next_bytes()))?),
        };
        if let Err(why) = segment.file.write_at(&start, 0) {
            self.free.push(segment);
            return Err(why);
        }
        self.next_round += 1;
        self.opening.migrations.clear();
        self.live.push_back(LiveSegment { segment, round, used, last: Seq::ZERO });
        Ok(())
    }

    /// The size of a new segment. They grow, because each creation waits for the disk.
    fn next_bytes(&self) -> u64 {
        if self.is_space_low() {
            return self.segment_bytes / GROWTH;
        }
        self.bytes().clamp(self.segment_bytes, self.segment_bytes * GROWTH)
    }

    fn create(&mut self, bytes: u64) -> io::Result<Segment> {
        loop {
            let path = segment(&self.database, self.next_number);
            self.next_number += 1;
            match self.disk.create(&path, bytes) {
                Ok(file) => {
                    let is_on_system = self.disk.vfs().is_none();
                    let opened = is_on_system.then(|| OpenedFile::at(path.clone())).flatten();
                    return Ok(Segment { file, path, opened, bytes });
                }
                // One that could not be removed.
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
                Err(why) => {
                    // It may exist in part.
                    let _ = self.disk.remove(&path);
                    return Err(why);
                }
            }
        }
    }
}

/// Identifies a log in the headers of its segments.
fn log_digest(log_id: &str) -> [u8; 16] {
    let digest = Sha256::digest(log_id.as_bytes());
    *digest.first_chunk().expect("a digest has 32 bytes")
}

fn failed(why: &io::Error) -> StoreError {
    if has_too_many_files(why) {
        return StoreError::Unavailable(
            "the journal cannot grow: too many files are open".to_owned(),
        );
    }
    match why.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            StoreError::Full
        }
        _ => StoreError::Io(format!("the journal cannot be written: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// The last one is the limit of file sizes, for which the signal SIGXFSZ ended the server.
    #[test]
    fn no_space_of_any_kind_is_disk_full() {
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
            assert!(matches!(failed(&errno.into()), StoreError::Full), "{errno}");
        }
        assert!(matches!(failed(&Errno::IO.into()), StoreError::Io(_)));
    }
}
