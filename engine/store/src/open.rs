//! Opening a file: identification, locking, migration and the configuration of SQLite.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_schema::seeded::{SeededBug, makes};
use abide_schema::{Seq, TableSpec, limits};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::checkpoint::{Checkpointer, leave_wal_on_close, sync_wal};
use crate::companions::{companion, segments_of};
use crate::connect::{
    broken, check_companions, check_folder, check_kind, check_length, check_not_lost,
    check_rollback_journal, check_single_name, check_versions, connect, connect_alone,
    connect_to_read, forbid_quoted_texts, has_journal, has_rollback_journal, limit_untrusted,
    overwrite_deleted,
};
use crate::disk::{Disk, SystemDisk};
use crate::error::{OpenError, StoreError};
use crate::holder::Holder;
use crate::journal::record::{Opening, RecordContent, RecordLayout};
use crate::journal::recovery::FoundJournal;
use crate::journal::{Journal, JournalOpening};
use crate::layout::{INCREMENTAL, Layout};
use crate::leftover::{apply_journal, check_wal, has_wal};
use crate::lock::{Lock, lock};
use crate::memory;
use crate::migrate::{self, MigratedFile};
use crate::migration_backup;
use crate::opened_file::OpenedFile;
use crate::private;
use crate::read_only::{has_log, is_complete};
use crate::reader::Reader;
use crate::schema_check::check_schema;
use crate::system;
use crate::timelines::Timelines;
use crate::writer::Writer;

/// An in-memory database with the tables and indexes of a layout and no rows: a plan over it
/// depends only on the declarations, not on stored data. It is writable.
///
/// # Errors
/// [`StoreError`].
pub fn blank(layout: &Layout) -> Result<Reader, StoreError> {
    memory::start_counting();
    let connection = Connection::open_in_memory()?;
    forbid_quoted_texts(&connection)?;
    migrate::create_tables(&connection, &system::tables())?;
    let declared: Vec<&'static TableSpec> = layout.tables().collect();
    migrate::create_tables(&connection, &declared)?;
    // Otherwise a plan could scan a table to build an index and report a search.
    connection.pragma_update(None, "automatic_index", false)?;
    Reader::new(connection)
}

/// The configuration of SQLite. The page size is measured; the cache sizes follow from their
/// purpose and are not measured yet.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Bytes of a page, for new files. `abide-bench -- pages`: below 4,096 calls are slower and
    /// files larger; above, the gain is negligible, and a single call writes whole pages.
    pub page_bytes: u32,
    /// Bytes of the writer's page cache. It holds the index leaves that a few thousand active
    /// sessions touch.
    pub writer_cache_bytes: u32,
    /// Bytes of each reader's page cache.
    pub reader_cache_bytes: u32,
    /// How long a statement waits for another process's lock, in milliseconds.
    pub busy_ms: u32,
    /// The WAL size that triggers a checkpoint, in bytes.
    pub checkpoint_bytes: u64,
    /// Bytes of a segment of the journal. A larger group gets a larger segment.
    pub segment_bytes: u64,
    /// The disk of the file.
    pub disk: Arc<dyn Disk>,
    /// The id of the timeline that this opening starts; a simulation sets it. `None`: an id derived from the log, the
    /// number of openings and random bytes.
    pub timeline: Option<String>,
    /// The entry of this process in the lock file, so that other processes can reach it. `None`: no entry.
    pub holder: Option<Holder>,
    /// Whether the file is copied before a migration after which older programs refuse it. Only on the system's disk.
    pub migration_backup: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            page_bytes: 4096,
            writer_cache_bytes: 64 << 20,
            reader_cache_bytes: 8 << 20,
            busy_ms: 5_000,
            checkpoint_bytes: limits::CHECKPOINT_WAL_BYTES,
            segment_bytes: limits::SEGMENT_BYTES,
            disk: Arc::new(SystemDisk),
            timeline: None,
            holder: None,
            migration_backup: true,
        }
    }
}

/// A database file that an opening has created. It is removed if the opening fails, as on a full disk: it has no rows, and a
/// command that creates a file would refuse it. It is dropped after the connection, and before the lock is released.
///
/// The lock file stays. Another process may wait for it, and would have a lock that nobody else sees.
struct CreatedFile {
    path: PathBuf,
    is_complete: bool,
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        // Without its database, a WAL would be that of a lost file.
        for suffix in ["-wal", "-shm", ""] {
            let _ = std::fs::remove_file(companion(&self.path, suffix));
        }
    }
}

/// One open file. No other process can open it for writing while this exists.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    layout: Layout,
    tuning: Tuning,
    log_id: String,
    timelines: Timelines,
    /// What the journal records of this opening.
    opening: JournalOpening,
    /// The database and its companions; none on another disk than the system's.
    files: Vec<OpenedFile>,
    /// The copy of the file before the migration of this opening.
    migration_backup: Option<PathBuf>,
    _lock: Lock,
}

impl Store {
    /// Opens a file, creates it if it does not exist, and migrates its tables.
    ///
    /// # Errors
    /// [`OpenError`]. A file of another program is not changed.
    pub fn open(path: &Path, layout: Layout, tuning: Tuning) -> Result<Store, OpenError> {
        Store::open_as(path, layout, tuning, None)
    }

    /// Like [`Store::open`]; a new file gets this log id. Used by a replay, which must produce the
    /// same log.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_as(
        path: &Path,
        layout: Layout,
        tuning: Tuning,
        log_id: Option<&str>,
    ) -> Result<Store, OpenError> {
        layout.check_triggers()?;
        check_kind(path)?;
        // Another disk makes its own files.
        let makes_files = tuning.disk.vfs().is_none();
        let path = &private::resolved(path)?;
        let lock_was_there = companion(path, "-lock").exists();
        if makes_files {
            check_folder(path)?;
            check_length(path)?;
            check_not_lost(path)?;
            check_single_name(path)?;
            check_rollback_journal(path)?;
        }
        let lock = lock(path, tuning.holder.as_ref())?;
        // A process makes the lock file before it creates a database, so a crash meanwhile leaves both.
        let may_have_no_tables = !makes_files || lock_was_there;
        if let Err(error) = identify(path, &*tuning.disk, may_have_no_tables) {
            // Leave no lock file next to a file of another program, or next to a copy. But keep one that existed:
            // if it were removed, a newer Abide could be started twice.
            if !lock_was_there {
                let _ = std::fs::remove_file(companion(path, "-lock"));
            }
            return Err(error);
        }
        let journal = FoundJournal::read(path, &*tuning.disk)
            .map_err(|why| OpenError::Io { path: path.to_owned(), why })?;
        check_wal(path, journal.as_ref(), &*tuning.disk)?;
        let mut created = None;
        if makes_files && !path.exists() {
            private::create_empty(path)?;
            created = Some(CreatedFile { path: path.to_owned(), is_complete: false });
        }
        private::warn_if_open(path);
        let had_no_wal = makes_files && is_complete(path);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut connection =
            connect(path, flags, &*tuning.disk).map_err(|why| broken(path, why))?;
        if connection.is_readonly("main").map_err(|why| broken(path, why.into()))? {
            return Err(OpenError::ReadOnly(path.to_owned()));
        }
        set_up_file(&connection, &tuning).map_err(|why| broken(path, why))?;
        if makes_files {
            check_wal_in_use(&connection, path)?;
        }
        // Before the journal is applied: its rows would fire a trigger that the author of the file has added.
        let applied = check_schema(&connection, path, &layout)
            .and_then(|()| apply_journal(&mut connection, path, &layout, journal, &*tuning.disk));
        if applied.is_err() && had_no_wal && !has_wal(path) {
            // Nothing was written. SQLite removes the WAL that it made, unless another process has the file open.
            let _ = leave_wal_on_close(&connection, false);
        }
        let journal = applied?;
        let backup = if makes_files && tuning.migration_backup {
            migration_backup::make_if_needed(&connection, path, &layout)
        } else {
            Ok(None)
        };
        // Its transaction is synced, with all that the WAL holds.
        let migrated = backup.and_then(|backup| {
            match migrate::migrate(&mut connection, path, &layout, log_id, tuning.timeline.clone())
            {
                Ok(migrated) => Ok((migrated, backup)),
                Err(error) => {
                    // The file is what it was, so its copy is of no use.
                    backup.iter().for_each(migration_backup::MigrationBackup::remove_if_new);
                    Err(error)
                }
            }
        });
        if migrated.is_err() && had_no_wal {
            // What a transaction that was rolled back has written to the WAL takes space.
            let _ = leave_wal_on_close(&connection, false);
        }
        let (MigratedFile { timelines, epoch, migrations }, backup) = migrated?;
        let opening = RecordContent::Opening(Opening {
            timeline: timelines.current().to_owned(),
            layout: RecordLayout::new(&layout),
        });
        let opening = JournalOpening {
            epoch,
            record: opening.encode(),
            migrations,
            first_round: 1 + journal.as_ref().map_or(0, FoundJournal::last_round),
        };
        if let Some(journal) = journal {
            journal.remove(&*tuning.disk);
        }
        let log_id = migrate::meta(&connection, "log_id")
            .map_err(|why| broken(path, why.into()))?
            .ok_or_else(|| OpenError::NotOurs(path.to_owned()))?;
        if let Some(created) = &mut created {
            created.is_complete = true;
        }
        let path = path.to_owned();
        let names = ["", "-wal", "-shm", "-lock"].iter().filter(|_| makes_files);
        let files = names.filter_map(|suffix| OpenedFile::at(companion(&path, suffix))).collect();
        Ok(Store {
            path,
            layout,
            tuning,
            log_id,
            timelines,
            opening,
            files,
            migration_backup: backup.map(|backup| backup.path),
            _lock: lock,
        })
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes that the file and the files next to it can still take.
    ///
    /// # Errors
    /// An I/O error of the system.
    pub fn free_bytes(&self) -> std::io::Result<u64> {
        self.tuning.disk.free_bytes(&self.path)
    }

    /// Whether the path still names the database that is open: it can be removed or replaced meanwhile.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.files.first().is_none_or(OpenedFile::is_in_place)
    }

    /// A file that was removed or replaced while it was open: the database, its WAL, the index of the WAL, or the lock.
    #[must_use]
    pub fn displaced(&self) -> Option<&Path> {
        self.files.iter().find(|file| !file.is_in_place()).map(OpenedFile::path)
    }

    /// The tables of the file.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The copy of the file from before the migration of this opening, if there was one.
    #[must_use]
    pub fn migration_backup(&self) -> Option<&Path> {
        self.migration_backup.as_deref()
    }

    /// The log's own id, the input of its genesis hash.
    #[must_use]
    pub fn log_id(&self) -> &str {
        &self.log_id
    }

    /// The timelines of the file: which opening wrote which part of the log. This opening started the last one.
    #[must_use]
    pub fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    /// The connection that writes. There must be only one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn writer(&self) -> Result<Writer, StoreError> {
        let connection = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        set_up(&connection, &self.tuning, self.tuning.writer_cache_bytes)?;
        // NORMAL: commits do not sync (the sync thread does), checkpoints do. Never OFF: a
        // checkpoint without a sync can destroy acknowledged commits.
        connection.pragma_update(None, "synchronous", synchronous())?;
        // Checkpoints run on their own connection.
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        overwrite_deleted(&connection)?;
        // The plan of a statement does not depend on the values that are bound to it. Otherwise SQLite prepares most deltas
        // of live queries, and each statement with a LIMIT, again whenever it runs: a sixth of the writer's time in steps of agents.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        Writer::new(connection, &self.layout)
    }

    /// A read-only connection.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn reader(&self) -> Result<Reader, StoreError> {
        let connection = self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        set_up(&connection, &self.tuning, self.tuning.reader_cache_bytes)?;
        Reader::new(connection)
    }

    /// The connection that checkpoints.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn checkpointer(&self) -> Result<Checkpointer, StoreError> {
        let connection = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        set_up(&connection, &self.tuning, 1 << 20)?;
        connection.pragma_update(None, "synchronous", synchronous())?;
        // On a clean shutdown it closes last and leaves one complete file.
        leave_wal_on_close(&connection, false)?;
        Ok(Checkpointer::new(connection))
    }

    /// A journal for the writer, whose rows are durable up to `head`.
    #[must_use]
    pub fn journal(&self, head: Seq) -> Journal {
        let Tuning { disk, segment_bytes, .. } = &self.tuning;
        let disk = Arc::clone(disk);
        Journal::new(disk, &self.path, &self.log_id, *segment_bytes, self.opening.clone(), head)
    }

    /// Removes the journal. Everything must be durable in the database file.
    ///
    /// # Errors
    /// An I/O error of the system.
    pub fn remove_journal(&self) -> std::io::Result<()> {
        let segments = segments_of(&self.path)?;
        segments.iter().try_for_each(|segment| self.tuning.disk.remove(segment))
    }

    /// Makes the whole content of the WAL durable, whatever a previous process has synced. The WAL must exist: open the
    /// writer first.
    ///
    /// # Errors
    /// An I/O error of the system.
    pub fn sync_wal(&self) -> std::io::Result<()> {
        sync_wal(&self.path, &*self.tuning.disk)
    }

    /// The WAL size that triggers a checkpoint, in bytes.
    #[must_use]
    pub fn checkpoint_bytes(&self) -> u64 {
        self.tuning.checkpoint_bytes
    }

    fn connect(&self, flags: OpenFlags) -> Result<Connection, StoreError> {
        connect(&self.path, flags, &*self.tuning.disk)
    }
}

/// Refuses a WAL that another user may have made just before SQLite would have, also one that was removed again. Nothing
/// is written to it before this.
fn check_wal_in_use(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    // SQLite opens the WAL when it reads.
    let read = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
    read.map_err(|why| broken(path, why.into()))?;
    check_companions(path).map_err(|why| broken(path, why))?;
    let wal = companion(path, "-wal");
    std::fs::symlink_metadata(&wal).map(drop).map_err(|why| OpenError::Io { path: wal, why })
}

/// OFF only for the seeded bug of a checkpoint without syncs.
fn synchronous() -> &'static str {
    if makes(SeededBug::CheckpointUnsynced) { "OFF" } else { "NORMAL" }
}

/// Identifies a file through a read-only connection, so that a file of another program is not
/// changed. (Not by reading the bytes: closing our handle would drop the locks that SQLite holds on
/// the file for this process.) A file with a header and without tables is incomplete, unless its tables are in a WAL or
/// a journal, or `may_have_no_tables`.
fn identify(path: &Path, disk: &dyn Disk, may_have_no_tables: bool) -> Result<(), OpenError> {
    if !path.exists() {
        return Ok(());
    }
    // Next to a file with a WAL, it was refused.
    if has_rollback_journal(path)? {
        // Power failed while the file was created, or while another program wrote it. The content
        // is known once SQLite has rolled that back, as it does at any next open.
        let connection = roll_back(path, disk).map_err(|why| broken(path, why))?;
        limit_untrusted(&connection).map_err(|why| broken(path, why.into()))?;
        return check_versions(&connection, path);
    }
    // Opening a file in WAL mode would create a WAL and an index next to it.
    if companion(path, "-wal").exists() {
        return connect_to_read(path, disk).map(drop);
    }
    let connection = connect_alone(path, disk)?;
    let is_empty = std::fs::metadata(path).is_ok_and(|meta| meta.len() == 0);
    if may_have_no_tables || is_empty || has_log(&connection, path)? || has_journal(path)? {
        return Ok(());
    }
    Err(OpenError::Incomplete(path.to_owned()))
}

/// Connects to a file and plays its rollback journal back.
fn roll_back(path: &Path, disk: &dyn Disk) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    if disk.vfs().is_none() {
        check_companions(path)?;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    }
    connect(path, flags, disk)
}

/// Sets what a file keeps, on a connection that may write rows of a journal or of a migration.
pub(crate) fn set_up_file(connection: &Connection, tuning: &Tuning) -> Result<(), StoreError> {
    connection.busy_timeout(Duration::from_millis(tuning.busy_ms.into()))?;
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
    if pages == 0 {
        // A file keeps these two; `upgrade` converts it.
        connection.pragma_update(None, "page_size", tuning.page_bytes)?;
        connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    overwrite_deleted(connection)
}

fn set_up(connection: &Connection, tuning: &Tuning, cache_bytes: u32) -> Result<(), StoreError> {
    connection.busy_timeout(Duration::from_millis(tuning.busy_ms.into()))?;
    // Negative: in KiB, whatever the page size.
    connection.pragma_update(None, "cache_size", -i64::from(cache_bytes / 1024))?;
    // The delta tables of live queries are temporary; they must never touch a disk.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(())
}
