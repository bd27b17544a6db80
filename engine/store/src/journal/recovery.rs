//! Applies the records of a journal to a database that does not have them, after a crash. `Store::open` needs it, and
//! so do commands that only read (`read_only.rs`). Whether the WAL next to it belongs to the file is decided before, in
//! `leftover.rs`.
//!
//! SQLite's own recovery comes first. Its state ends at some group: before or after the end of the journal, because
//! neither waits for the other. Records up to that end are skipped; the following ones are applied while each
//! continues the log exactly. The first hole ends the journal: a record is acknowledged only when all before it are
//! durable, so nothing behind a hole was. A group that SQLite has and the journal has not was not acknowledged either,
//! and is complete: it stays.
//!
//! Records that belong between two events can be in the database or not. Each is applied unless the database already
//! has what it brings: a later opening, a version of a module, a higher floor. So the same records lead to the same
//! content from any earlier state. A record of a kind that this program does not know ends the recovery with
//! an error: nothing may be left out.

use std::path::{Path, PathBuf};

use abide_schema::Seq;
use abide_schema::event::Hash;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use super::frame::{
    FRAMES_START, NoHeader, Record, RecordPosition, SegmentHeader, VERSION, last_without_header,
    skip_to_record, take_record,
};
use super::log_digest;
use super::record::{LayoutId, Migration, Opening, RecordContent, RecordModule, UnreadableRecord};
use super::row_operations::{Applier, ApplyError};
use crate::companions::segments_of;
use crate::connect::broken;
use crate::disk::Disk;
use crate::error::{OpenError, StoreError};
use crate::layout::Layout;
use crate::migrate;
use crate::private;
use crate::timelines;

/// The segments next to a database, with their content.
#[derive(Debug)]
pub(crate) struct FoundJournal {
    paths: Vec<PathBuf>,
    /// The segments that were used, in the order of their use.
    segments: Vec<UsedSegment>,
    /// The segments whose header was damaged.
    damaged: Vec<DamagedSegment>,
}

/// A segment that was used.
#[derive(Debug)]
struct UsedSegment {
    header: SegmentHeader,
    content: Vec<u8>,
}

/// A segment with records that cannot be applied, because its header is not valid.
#[derive(Debug)]
struct DamagedSegment {
    path: PathBuf,
    /// The last event of its records.
    last: Seq,
}

impl FoundJournal {
    /// Reads the journal of a database; `None` if there is none.
    pub(crate) fn read(database: &Path, disk: &dyn Disk) -> std::io::Result<Option<FoundJournal>> {
        let mut paths = Vec::new();
        let mut segments = Vec::new();
        let mut damaged = Vec::new();
        for path in segments_of(database)? {
            let checked = private::check_segment(database, &path);
            let content = match checked.and_then(|()| read_segment(&path, disk)) {
                Ok(content) => content,
                // Another process has just removed it, so the database has everything that it held.
                Err(why) if why.kind() == std::io::ErrorKind::NotFound => continue,
                Err(why) => return Err(why),
            };
            match SegmentHeader::decode(&content) {
                // The next use has the next number.
                Ok(header) if header.round == u64::MAX => return Err(damaged_header(&path)),
                Ok(header) => segments.push(UsedSegment { header, content }),
                Err(NoHeader::Unused) if content.iter().all(|byte| *byte == 0) => {}
                Err(NoHeader::Unused) => {
                    // A crash before the first sync of a segment also leaves this.
                    let segment = path.display();
                    tracing::warn!(
                        name: "segment_invalid",
                        "{segment} has no valid header, and is not applied"
                    );
                    let last = last_without_header(&content);
                    if last > Seq::ZERO {
                        damaged.push(DamagedSegment { path: path.clone(), last });
                    }
                }
                Err(NoHeader::Version(found)) => return Err(unknown_version(&path, found)),
            }
            paths.push(path);
        }
        if paths.is_empty() {
            return Ok(None);
        }
        segments.sort_by_key(|segment| segment.header.round);
        Ok(Some(FoundJournal { paths, segments, damaged }))
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
    /// The journal belongs to another file or to another state of this one; it has a record that this program does not
    /// know; or the storage failed.
    pub(crate) fn apply(
        &self,
        connection: &mut Connection,
        path: &Path,
        layout: &Layout,
    ) -> Result<(), RecoveryError> {
        if self.segments.is_empty() && self.damaged.is_empty() {
            return Ok(());
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let format: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if format == 0 {
            return Err(RecoveryError::NewFile);
        }
        let end = read_end_of_log(&transaction)?;
        self.check_headers(&transaction, &end)?;
        let mut recovery = Recovery { connection: &transaction, path, layout, end, records: None };
        for record in self.records() {
            if !recovery.apply(&record)? {
                break;
            }
        }
        let end = recovery.end.seq;
        self.check_complete(end)?;
        transaction.commit()?;
        Ok(())
    }

    /// Refuses a journal of another database, or of another state or history of this one, also if the database has passed
    /// its events. Records that the database does not have are checked when they are applied.
    ///
    /// # Errors
    /// As [`FoundJournal::apply`].
    pub(crate) fn check_belongs(&self, connection: &Connection) -> Result<(), RecoveryError> {
        let end = read_end_of_log(connection)?;
        self.check_headers(connection, &end)?;
        for Record { position, .. } in self.records() {
            let place = end.place_of(&position, connection)?;
            if place == RecordPlace::AfterHole || position.to > end.seq {
                break;
            }
        }
        Ok(())
    }

    /// Refuses segments of another database, and of a later state of this one.
    fn check_headers(&self, connection: &Connection, end: &LogEnd) -> Result<(), RecoveryError> {
        let log_id = migrate::meta(connection, "log_id")?.ok_or(RecoveryError::OtherFile)?;
        if !self.is_of(&log_id) {
            return Err(RecoveryError::OtherFile);
        }
        let base = self.base();
        if base > end.seq {
            return Err(RecoveryError::Older { head: end.seq, base });
        }
        Ok(())
    }

    /// Refuses a journal that had later events than `end`, where the log ends with it. A segment whose header was
    /// damaged has them, or a record says that they were durable: the record of such an event was damaged after that,
    /// because a crash tears only records that were not synced.
    ///
    /// # Errors
    /// [`RecoveryError::DamagedHeader`] and [`RecoveryError::Damaged`].
    pub(crate) fn check_complete(&self, end: Seq) -> Result<(), RecoveryError> {
        // Former uses of a segment have only events that the database has.
        if let Some(DamagedSegment { path, last }) = self.damaged.iter().find(|it| it.last > end) {
            let segment = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(RecoveryError::DamagedHeader { segment, end, last: *last });
        }
        let mut durable = Seq::ZERO;
        for UsedSegment { header, content } in &self.segments {
            let mut rest = content.get(FRAMES_START..).unwrap_or_default();
            while let Some(record) = skip_to_record(header.round, &mut rest) {
                durable = durable.max(record.durable);
            }
        }
        if durable > end { Err(RecoveryError::Damaged { end, durable }) } else { Ok(()) }
    }

    /// Removes the segments, once their records are durable in the database.
    pub(crate) fn remove(&self, disk: &dyn Disk) {
        for path in &self.paths {
            if let Err(why) = disk.remove(path) {
                tracing::warn!(
                    name: "segment_not_removed",
                    %why,
                    "a segment of the journal was not removed"
                );
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

/// Reads a segment. A process that starts its use meanwhile writes the header and then the records, so a read can have the
/// former header, or zeros, before the new records. The next read then has the new header.
fn read_segment(path: &Path, disk: &dyn Disk) -> std::io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let content = file.read()?;
    let is_unused = SegmentHeader::decode(&content) == Err(NoHeader::Unused);
    if is_unused && content.iter().any(|byte| *byte != 0) { file.read() } else { Ok(content) }
}

fn unknown_version(segment: &Path, found: u32) -> std::io::Error {
    let segment = segment.display();
    let text = format!(
        "{segment} was written by another version of Abide: the journal has format {found}, and this version reads \
         format {VERSION}; open and close the file with the version that wrote it"
    );
    std::io::Error::new(std::io::ErrorKind::InvalidData, text)
}

fn damaged_header(segment: &Path) -> std::io::Error {
    let text = format!("the header of {} is damaged", segment.display());
    std::io::Error::new(std::io::ErrorKind::InvalidData, text)
}

/// The application of records to an open transaction.
struct Recovery<'a> {
    connection: &'a Connection,
    path: &'a Path,
    /// The tables that this program has.
    layout: &'a Layout,
    end: LogEnd,
    /// The layout of the following records, and what applies them.
    records: Option<(LayoutId, Applier)>,
}

impl Recovery<'_> {
    /// Applies a record, unless the database has it. Returns `false` if it does not continue the log.
    fn apply(&mut self, record: &Record<'_>) -> Result<bool, RecoveryError> {
        let position = &record.position;
        let content = RecordContent::decode(record.content);
        let from = position.from;
        if let Ok(RecordContent::Opening(opening)) = &content {
            self.read_opening(opening, from)?;
        }
        match self.end.place_of(position, self.connection)? {
            RecordPlace::Known => return Ok(true),
            RecordPlace::AfterHole => return Ok(false),
            RecordPlace::Next => {}
        }
        match content {
            // Rows without an event are not of a call.
            Ok(RecordContent::Rows { .. }) if position.to == from => {
                return Err(RecoveryError::Unreadable { from });
            }
            Ok(RecordContent::Pruning { floor }) if floor > from => {
                return Err(RecoveryError::Unreadable { from });
            }
            Ok(RecordContent::Rows { layout, operations }) => {
                self.apply_rows(position, layout, operations)?;
            }
            Ok(RecordContent::Opening(Opening { timeline, .. })) => {
                if record.epoch > migrate::epoch(self.connection)? {
                    migrate::continue_on(self.connection, record.epoch, from, &timeline)?;
                }
            }
            Ok(RecordContent::Migration(migration)) => {
                self.migrate(&migration)?;
                // The columns can be others.
                self.records = None;
            }
            Ok(RecordContent::Pruning { floor }) => {
                if floor > migrate::change_log_floor(self.connection)? {
                    migrate::prune_change_log(self.connection, floor)?;
                }
            }
            Err(UnreadableRecord::UnknownKind(kind)) => {
                return Err(RecoveryError::UnknownKind { kind, from });
            }
            Err(UnreadableRecord::Corrupt) => return Err(RecoveryError::Unreadable { from }),
        }
        Ok(true)
    }

    /// Notes the layout of the following records.
    fn read_opening(&mut self, opening: &Opening, from: Seq) -> Result<(), RecoveryError> {
        let Opening { timeline, layout } = opening;
        if !timelines::is_id(timeline) {
            let why = "the name of its timeline is invalid".to_owned();
            return Err(RecoveryError::Record { from, why });
        }
        let id = layout.id();
        if self.records.as_ref().is_some_and(|(known, _)| *known == id) {
            return Ok(());
        }
        if let Some(table) = layout.undeclared_table(self.layout) {
            let why = format!("it has a table {table}, which its module does not declare");
            return Err(RecoveryError::Record { from, why });
        }
        self.records = Some((id, Applier::new(layout.clone())));
        Ok(())
    }

    fn apply_rows(
        &mut self,
        position: &RecordPosition,
        layout: LayoutId,
        operations: &[u8],
    ) -> Result<(), RecoveryError> {
        let RecordPosition { from, to, after, .. } = *position;
        let known = self.records.take().filter(|(id, _)| *id == layout);
        let (_, mut applier) = known.ok_or(RecoveryError::Unreadable { from })?;
        for module in &applier.layout().modules {
            self.check_version(module, from)?;
        }
        applier.apply(self.connection, operations).map_err(|why| record_error(why, from))?;
        self.records = Some((layout, applier));
        self.end = read_end_of_log(self.connection)?;
        if self.end.seq == to && self.end.hash == Some(after) {
            Ok(())
        } else {
            Err(RecoveryError::Unreadable { from })
        }
    }

    /// Refuses rows of tables that the database has in another version.
    fn check_version(&self, module: &RecordModule, from: Seq) -> Result<(), RecoveryError> {
        let RecordModule { name, version, .. } = module;
        let found = if name.is_empty() {
            let format: i64 =
                self.connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
            Some(format.unsigned_abs())
        } else {
            migrate::module_version(self.connection, name)?.map(u64::from)
        };
        if found == Some(*version) {
            return Ok(());
        }
        let found = found.unwrap_or(0);
        let module = if name.is_empty() { "the file format" } else { name };
        Err(RecoveryError::OtherVersion { module: module.to_owned(), found, from, is: *version })
    }

    /// Migrates the tables of a module as the program did that wrote the record.
    fn migrate(&self, migration: &Migration) -> Result<(), RecoveryError> {
        let Migration { module: name, from, to, sql, rows } = migration;
        let found = migrate::module_version(self.connection, name)?.unwrap_or(0);
        if found >= *to {
            return Ok(());
        }
        let module = self.layout.modules.iter().find(|module| module.name == name);
        let is_same = module.is_some_and(|module| {
            module.version == *to
                && found == *from
                && migrate::digest_statements(module, found) == *sql
        });
        let Some(module) = module.filter(|_| is_same) else {
            return Err(RecoveryError::UnknownMigration {
                module: name.clone(),
                from: *from,
                to: *to,
            });
        };
        migrate::migrate_module(self.connection, self.path, module)?;
        if migrate::digest_rows(self.connection, module)? == *rows {
            return Ok(());
        }
        Err(RecoveryError::OtherMigration { module: name.clone(), to: *to })
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
    /// A record of the journal that was durable is damaged.
    #[error(
        "the journal next to the file is damaged: the file ends at event {end} with it, and events up to {durable} were answered"
    )]
    Damaged {
        /// The last event with the journal.
        end: Seq,
        /// The last event that was durable at some time.
        durable: Seq,
    },
    /// The header of a segment is damaged, and the segment has records that the database lacks.
    #[error(
        "the header of {segment} is damaged: the file ends at event {end} without it, and it has events up to {last}"
    )]
    DamagedHeader {
        /// The name of the segment.
        segment: String,
        /// The last event without the segment.
        end: Seq,
        /// The last event of the segment.
        last: Seq,
    },
    /// A record with a valid checksum did not produce the events that it names.
    #[error("the record of the journal after event {from} cannot be applied")]
    Unreadable {
        /// The last event before the record.
        from: Seq,
    },
    /// A record with a valid checksum has an operation that no call makes, or that SQLite refuses.
    #[error("the record of the journal after event {from} cannot be applied: {why}")]
    Record {
        /// The last event before the record.
        from: Seq,
        /// The operation.
        why: String,
    },
    /// A newer program wrote a record.
    #[error(
        "the journal has a record of kind {kind} after event {from}, which this version of Abide does not know"
    )]
    UnknownKind {
        /// The kind.
        kind: u8,
        /// The last event before the record.
        from: Seq,
    },
    /// The database has a module in another version than the record.
    #[error(
        "the journal has rows of version {is} of {module} after event {from}, and the file has version {found}"
    )]
    OtherVersion {
        /// The module, or the format of the file.
        module: String,
        /// The version of the file.
        found: u64,
        /// The last event before the record.
        from: Seq,
        /// The version of the record.
        is: u64,
    },
    /// The program does not have the steps of a migration.
    #[error(
        "the journal migrates module {module} from version {from} to {to} with steps that this program does not have"
    )]
    UnknownMigration {
        /// The module.
        module: String,
        /// The version before.
        from: u32,
        /// The version after.
        to: u32,
    },
    /// A migration led to other rows than when it was recorded.
    #[error(
        "the migration of module {module} to version {to} leads to other rows than in the journal"
    )]
    OtherMigration {
        /// The module.
        module: String,
        /// The version after.
        to: u32,
    },
    /// The file cannot be migrated.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The storage failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the error of a record whose operations cannot be applied. What SQLite refuses is wrong in the record; other errors
/// are of the storage.
fn record_error(error: ApplyError, from: Seq) -> RecoveryError {
    match error {
        ApplyError::Damaged(why) => RecoveryError::Record { from, why },
        ApplyError::Store(
            why @ (StoreError::Constraint { .. } | StoreError::Sql { .. } | StoreError::Limit(_)),
        ) => RecoveryError::Record { from, why: why.to_string() },
        ApplyError::Store(why) => RecoveryError::Store(why),
    }
}

impl RecoveryError {
    /// Returns the error of opening this file.
    pub(crate) fn into_open_error(self, path: &Path) -> OpenError {
        match self {
            RecoveryError::Open(why) => why,
            RecoveryError::Store(why) => broken(path, why),
            why => OpenError::Journal { path: path.to_owned(), why: why.to_string() },
        }
    }
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

/// Where a record belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordPlace {
    /// The database has its events.
    Known,
    /// It continues the log.
    Next,
    /// A record before it is missing.
    AfterHole,
}

impl LogEnd {
    /// Returns where a record belongs in a log with this end.
    ///
    /// # Errors
    /// The record is of another history, or its position is invalid.
    fn place_of(
        &self,
        position: &RecordPosition,
        connection: &Connection,
    ) -> Result<RecordPlace, RecoveryError> {
        let RecordPosition { from, to, before, after } = *position;
        let other_history = RecoveryError::OtherHistory { head: self.seq };
        if to < from {
            return Err(RecoveryError::Unreadable { from });
        }
        if to < self.seq || (from < to && to == self.seq) {
            let is_known =
                has_event(connection, from, before)? && has_event(connection, to, after)?;
            return if is_known { Ok(RecordPlace::Known) } else { Err(other_history) };
        }
        if from > self.seq {
            return Ok(RecordPlace::AfterHole);
        }
        // A record that ends after the log begins at its end: SQLite commits whole groups.
        if from < self.seq || before != self.hash.unwrap_or(before) {
            return Err(other_history);
        }
        Ok(RecordPlace::Next)
    }
}

/// Returns `true` if an event has the hash that a record names.
fn has_event(connection: &Connection, seq: Seq, hash: Hash) -> Result<bool, RecoveryError> {
    if seq == Seq::ZERO {
        return Ok(true);
    }
    let sql = "SELECT hash FROM events WHERE seq = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row([seq.0], |row| row.get::<_, Hash>(0));
    Ok(found.optional()? == Some(hash))
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
    use std::io;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::Mutex;

    use abide_schema::{Table as _, Value};

    use super::super::frame::{FRAME_HEADER, complete};
    use super::super::record::RecordLayout;
    use super::super::row_operations::RowOperations;
    use super::*;
    use crate::disk::{DiskFile, SystemDisk};
    use crate::open::{Store, Tuning};
    use crate::system::MetaRow;

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
        assert_eq!(read().expect_err("others write it").kind(), io::ErrorKind::InvalidData);
        mode(&path, 0o666);
        assert!(read().expect("others write the database, too"));
        fs::remove_file(&segment).expect("it is there");
        symlink(&path, &segment).expect("it is linked");
        assert_eq!(read().expect_err("a symlink").kind(), io::ErrorKind::InvalidData);
    }

    /// A disk whose files return one content, and then another one.
    #[derive(Debug)]
    struct ChangingDisk([Vec<u8>; 2]);

    #[derive(Debug)]
    struct ChangingFile(Mutex<Vec<Vec<u8>>>);

    impl Disk for ChangingDisk {
        fn vfs(&self) -> Option<&str> {
            None
        }

        fn open(&self, _path: &Path) -> io::Result<Box<dyn DiskFile>> {
            let [first, second] = self.0.clone();
            Ok(Box::new(ChangingFile(Mutex::new(vec![second, first]))))
        }

        fn create(&self, _path: &Path, _bytes: u64) -> io::Result<Box<dyn DiskFile>> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn remove(&self, _path: &Path) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
            Ok(0)
        }
    }

    impl DiskFile for ChangingFile {
        fn read(&self) -> io::Result<Vec<u8>> {
            self.0
                .lock()
                .expect("no thread panics")
                .pop()
                .ok_or(io::ErrorKind::UnexpectedEof.into())
        }

        fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }

        fn rewrite(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A command that read a file beside a server sometimes warned of `-redo-1`, whose use had just begun.
    #[test]
    fn a_segment_whose_use_begins_meanwhile_is_read_again() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("a.db");
        fs::write(&path, "").expect("it is written");
        fs::write(folder.path().join("a.db-redo-1"), "").expect("it is written");
        let mut complete = SegmentHeader { round: 1, log: [3; 16], base: Seq::ZERO }.encode();
        complete.resize(FRAMES_START, 0);
        complete.extend_from_slice(b"a record");
        let mut begun = complete.clone();
        begun[..FRAMES_START].fill(0);
        let segments = |contents| {
            let found = FoundJournal::read(&path, &ChangingDisk(contents)).expect("it is read");
            found.expect("there is a segment").segments.len()
        };
        assert_eq!(segments([begun.clone(), complete]), 1);
        assert_eq!(segments([begun.clone(), begun]), 0, "it stays invalid");
    }

    /// Returns what applying a segment with one record without an event, after that of an opening, leads to.
    fn apply(content: &[u8]) -> String {
        apply_after(&RecordLayout::new(&Layout::default()), Seq::ZERO, content)
    }

    /// As [`apply`], for a record with the events up to `to`, after an opening with this layout.
    fn apply_after(records: &RecordLayout, to: Seq, content: &[u8]) -> String {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("a.db");
        let layout = Layout::default();
        let store = Store::open(&path, layout.clone(), Tuning::default()).expect("it opens");
        let header = SegmentHeader { round: 1, log: log_digest(store.log_id()), base: Seq::ZERO };
        let mut segment = header.encode();
        segment.resize(FRAMES_START, 0);
        let at_start =
            RecordPosition { from: Seq::ZERO, to: Seq::ZERO, before: [0; 32], after: [0; 32] };
        let opening = RecordContent::Opening(Opening {
            timeline: "another".to_owned(),
            layout: records.clone(),
        });
        let record = [&[0; FRAME_HEADER], content].concat();
        let frames = [(opening.encode(), at_start), (record, RecordPosition { to, ..at_start })];
        for (mut frame, position) in frames {
            complete(1, 9, Seq::ZERO, &position, &mut frame);
            segment.extend_from_slice(&frame);
        }
        let segments = vec![UsedSegment { header, content: segment }];
        let journal = FoundJournal { paths: Vec::new(), segments, damaged: Vec::new() };
        let mut connection = Connection::open(&path).expect("it opens");
        match journal.apply(&mut connection, &path, &layout) {
            Ok(()) => {
                let epoch = migrate::epoch(&connection).expect("it is stored");
                let timelines = migrate::meta(&connection, "timelines").expect("it reads");
                let timelines = timelines.expect("there are some");
                format!("opening {epoch}, {}", timelines.rsplit(' ').next().expect("one"))
            }
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn records_that_cannot_be_applied_are_named() {
        let pruning = RecordContent::Pruning { floor: Seq::ZERO }.encode();
        assert_eq!(apply(&pruning[FRAME_HEADER..]), "opening 9, 0:another");
        let unknown = "the journal has a record of kind 77 after event 0, which this version of Abide does not know";
        assert_eq!(apply(&[77, 1, 2, 3]), unknown);
        assert_eq!(apply(&[4]), "the record of the journal after event 0 cannot be applied");
        let migration = RecordContent::Migration(Migration {
            module: "library".to_owned(),
            from: 0,
            to: 2,
            sql: [0; 32],
            rows: [0; 32],
        });
        let unknown = "the journal migrates module library from version 0 to 2 with steps that this program does not have";
        assert_eq!(apply(&migration.encode()[FRAME_HEADER..]), unknown);
        let layout = RecordLayout::new(&Layout::default());
        for name in ["", "a b", "a:b", "\u{1b}[2J", &"a".repeat(65)] {
            let opening = Opening { timeline: name.to_owned(), layout: layout.clone() };
            let opening = RecordContent::Opening(opening).encode();
            let invalid = "the record of the journal after event 0 cannot be applied: the name of its timeline is invalid";
            assert_eq!(apply(&opening[FRAME_HEADER..]), invalid, "{name}");
        }
        let rows = RecordContent::Rows { layout: [0; 8], operations: &[] }.encode();
        let unreadable = "the record of the journal after event 0 cannot be applied";
        assert_eq!(apply(&rows[FRAME_HEADER..]), unreadable, "of a layout that no opening has");
    }

    /// Applies one operation of a group with one event.
    fn apply_operation(records: &RecordLayout, change: &dyn Fn(&mut RowOperations)) -> String {
        let mut operations = RowOperations::new(records.id());
        change(&mut operations);
        apply_after(records, Seq(1), &operations.into_record()[FRAME_HEADER..])
    }

    /// A record with a valid checksum changed what the file says of itself, which no digest covers.
    #[test]
    fn a_record_has_only_rows_of_calls() {
        let records = RecordLayout::new(&Layout::default());
        let check = |change: &dyn Fn(&mut RowOperations), why: &str| {
            let found = apply_operation(&records, change);
            let expected =
                format!("the record of the journal after event 0 cannot be applied: {why}");
            assert_eq!(found, expected);
        };
        let text = Value::from("x");
        check(
            &|group| group.insert("meta", &[text.clone(), text.clone()]),
            "it changes meta, which no call writes",
        );
        check(
            &|group| group.update(MetaRow::SPEC, &["log_id".into(), text.clone()], 2),
            "it changes meta, which no call writes",
        );
        for table in ["request_ids", "events", "change_log"] {
            let why = format!("it changes a row of {table}, to which calls only add rows");
            check(&|group| group.delete(table, std::slice::from_ref(&text)), &why);
        }
        check(
            &|group| group.insert("sqlite_sequence", std::slice::from_ref(&text)),
            "it has other columns of sqlite_sequence",
        );
        check(
            &|group| {
                group.insert(
                    "request_ids",
                    &[text.clone(), text.clone(), text.clone(), text.clone()],
                )
            },
            "cannot store TEXT value in BLOB column request_ids.fingerprint",
        );
    }

    /// The layout of a record is in the journal itself, and could name any table.
    #[test]
    fn the_layout_of_a_record_is_that_of_its_modules() {
        let layout_with = |module: &str, version: u8, table: &str| {
            let mut bytes = vec![2, 0, 1];
            for (name, count) in [(module, version), (table, 1)] {
                bytes.push(name.len() as u8);
                bytes.extend_from_slice(name.as_bytes());
                bytes.push(count);
                if name == module {
                    bytes.push(1);
                }
            }
            bytes.extend_from_slice(&[1, b'x']);
            match RecordContent::decode(&bytes) {
                Ok(RecordContent::Opening(opening)) => opening.layout,
                other => panic!("{other:?}"),
            }
        };
        let insert = |group: &mut RowOperations| group.insert("META", &[Value::from("x")]);
        for (module, version, why) in [
            ("", 5, "it has a table META, which its module does not declare"),
            ("other", 0, "the journal has rows of version 0 of other"),
        ] {
            let found = apply_operation(&layout_with(module, version, "META"), &insert);
            assert!(found.contains(why), "{found}");
        }
    }
}
