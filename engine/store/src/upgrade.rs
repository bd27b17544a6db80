//! What an upgrade of a file does, and the upgrade: the migration of its tables, and the conversion to the layout of pages
//! that new files have.
//!
//! A file keeps the mode of its free pages from its creation. Only `VACUUM` changes it: it writes all rows into a temporary
//! file, and its pages into the WAL, as one transaction. So a crash leaves the old file or the new one.

use std::path::{Path, PathBuf};

use abide_schema::{Module, Seq, Table as _};
use rusqlite::{Connection, OpenFlags};

use crate::checkpoint::leave_wal_on_close;
use crate::connect::{broken, check_single_name, connect, is_writable};
use crate::disk::{Disk as _, SystemDisk};
use crate::error::{OpenError, StoreError};
use crate::layout::{INCREMENTAL, Layout};
use crate::migration_plan::{self, PlannedMigration};
use crate::open::{Store, Tuning, set_up_file};
use crate::read_only::{has_log, open_unchanged};
use crate::system::ChangeLogRow;
use crate::{migrate, migration_backup};

/// How the pages of a file are organised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The pages of the file.
    pub pages: u64,
    /// The pages that hold nothing; later rows use them.
    pub free_pages: u64,
    /// `true` if free pages can be given back to the system without a `VACUUM`.
    pub is_incremental: bool,
}

impl PageLayout {
    fn read(connection: &Connection) -> rusqlite::Result<PageLayout> {
        Ok(PageLayout {
            page_bytes: read_number(connection, "page_size")?.unsigned_abs(),
            pages: read_number(connection, "page_count")?.unsigned_abs(),
            free_pages: read_number(connection, "freelist_count")?.unsigned_abs(),
            is_incremental: read_number(connection, "auto_vacuum")? == INCREMENTAL,
        })
    }

    /// Returns `true` if it is the layout of a new file.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.is_incremental
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }
}

fn read_number(connection: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, pragma, |row| row.get(0))
}

/// What an opening for writing and [`convert`] would do to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradePlan {
    /// The last event of the file.
    pub events: Seq,
    /// Events that a process which was killed has left in the journal. The next process to open the file applies them.
    pub unapplied_events: u64,
    /// The pages of the file now.
    pub now: PageLayout,
    /// The modules whose tables would be created or migrated.
    pub migrations: Vec<PlannedMigration>,
    /// Modules of the file that this program does not have. Their tables stay as they are.
    pub unknown_modules: Vec<String>,
    /// Bytes of disk that a backup needs in the folder of the file.
    pub backup_bytes: u64,
    /// Bytes of disk that the migration needs there. An estimate: a step can write any number of rows.
    pub migration_bytes: u64,
    /// Bytes of disk that the conversion needs there, at most: the pages in use once for the temporary file, and once for the
    /// WAL.
    pub conversion_bytes: u64,
    /// Bytes of disk that this process can use there.
    pub available_bytes: u64,
    /// Whether this process can write the file, and create others next to it.
    pub is_writable: bool,
}

impl UpgradePlan {
    /// Whether the file stays as it is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.migrations.is_empty() && self.now.is_current()
    }

    /// Whether programs that open the file today open it afterwards.
    #[must_use]
    pub fn keeps_older_programs(&self) -> bool {
        self.migrations.iter().all(|migration| migration.keeps_older_programs)
    }

    /// Whether the file is copied before, unless the caller does not want it.
    #[must_use]
    pub fn has_backup(&self) -> bool {
        !self.keeps_older_programs() || !self.now.is_current()
    }
}

/// Returns what an upgrade of a file would do. Nothing is changed, and a process may have the file open.
///
/// # Errors
/// [`OpenError`], also if this program cannot open the file for writing because of its content.
pub fn plan_upgrade(path: &Path, modules: Vec<Module>) -> Result<UpgradePlan, OpenError> {
    let layout = Layout { modules };
    let (file, unapplied_events) = open_unchanged(path, &layout)?;
    let to_open_error = |why: rusqlite::Error| broken(path, why.into());
    if !has_log(&file, path)? {
        return Err(OpenError::Incomplete(path.to_owned()));
    }
    check_single_name(path)?;
    let now = PageLayout::read(&file).map_err(to_open_error)?;
    let migrations = migration_plan::plan(&file, path, &layout)?;
    let history_bytes =
        migration_plan::bytes_of(&file, ChangeLogRow::SPEC.name).map_err(to_open_error)?;
    let changed: Vec<&PlannedMigration> =
        migrations.iter().filter(|migration| migration.from > 0).collect();
    let table_bytes: u64 = changed.iter().map(|migration| migration.table_bytes).sum();
    // A step that makes a table anew writes its rows twice, and SQLite keeps the pages before it. Undo images are rewritten.
    let migration_bytes = if changed.is_empty() { 0 } else { 3 * table_bytes + 2 * history_bytes };
    let used_bytes = (now.pages - now.free_pages) * now.page_bytes;
    let mut plan = UpgradePlan {
        events: migrate::head(&file).map_err(to_open_error)?,
        unapplied_events,
        now,
        migrations,
        unknown_modules: migration_plan::unknown_modules(&file, &layout).map_err(to_open_error)?,
        backup_bytes: 0,
        migration_bytes,
        conversion_bytes: if now.is_current() { 0 } else { 2 * used_bytes },
        available_bytes: SystemDisk
            .free_bytes(path)
            .map_err(|why| OpenError::Io { path: path.to_owned(), why })?,
        is_writable: is_writable(path),
    };
    if plan.has_backup() {
        plan.backup_bytes = now.bytes();
    }
    file.check_unchanged()?;
    Ok(plan)
}

/// Migrates the tables of a file, as every opening for writing does, and closes it. Returns the backup, if there was one.
///
/// # Errors
/// [`OpenError`]. The file then has its old tables.
pub fn migrate_file(
    path: &Path,
    modules: Vec<Module>,
    migration_backup: bool,
) -> Result<Option<PathBuf>, OpenError> {
    let tuning = Tuning { migration_backup, ..Tuning::default() };
    let store = Store::open(path, Layout { modules }, tuning)?;
    let checkpointer = store.checkpointer().map_err(|why| broken(path, why))?;
    checkpointer.truncate().map_err(|why| broken(path, why))?;
    Ok(store.migration_backup().map(Path::to_owned))
}

/// Converts a file to the layout of a new file. Returns its layout then, and the backup if there was one.
///
/// # Errors
/// [`OpenError`]. The file then has its old layout.
pub fn convert(
    path: &Path,
    modules: Vec<Module>,
    has_backup: bool,
) -> Result<(PageLayout, Option<PathBuf>), OpenError> {
    let tuning = Tuning::default();
    let layout = Layout { modules };
    // Also locks the file, until the end.
    let store = Store::open(path, layout.clone(), tuning.clone())?;
    let path = store.path();
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, &SystemDisk)
        .map_err(|why| broken(path, why))?;
    let backup =
        if has_backup { Some(migration_backup::make(&connection, path, &layout)?) } else { None };
    match vacuum(&connection, path, &tuning) {
        Ok(converted) => Ok((converted, backup.map(|backup| backup.path))),
        Err(why) => {
            backup.iter().for_each(migration_backup::MigrationBackup::remove_if_new);
            Err(broken(path, why))
        }
    }
}

fn vacuum(connection: &Connection, path: &Path, tuning: &Tuning) -> Result<PageLayout, StoreError> {
    // The last connection to close copies the WAL into the file. After an error it removes what the WAL has.
    leave_wal_on_close(connection, false)?;
    set_up_file(connection, tuning)?;
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    // The temporary file: other folders are often small, or in memory.
    let folder = std::path::absolute(path).ok();
    if let Some(folder) = folder.as_deref().and_then(Path::parent).and_then(Path::to_str) {
        connection.pragma_update(None, "temp_store_directory", folder)?;
    }
    connection.execute_batch("VACUUM")?;
    Ok(PageLayout::read(connection)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::system::RequestIdRow;
    use crate::writer::Writer;

    /// Long enough to be found, and on few pages.
    const MARKER: &str = "a value that must not stay";

    /// Writes undo images of many lengths with the marker: in a page, and on pages of their own.
    fn write_images(writer: &Writer) {
        for seq in 1..=200 {
            let images = MARKER.repeat(1 + 7 * seq).into_bytes();
            let seq = Seq(seq as i64);
            writer
                .log_changes(RequestIdRow::SPEC, Seq(seq.0 - 1), seq, images)
                .expect("they are written");
        }
    }

    /// Returns how often the marker is in the files of a folder.
    fn count_markers(folder: &Path) -> usize {
        let files =
            fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
        files
            .map(|path| {
                let bytes = fs::read(&path).expect("it can be read");
                bytes.windows(MARKER.len()).filter(|at| *at == MARKER.as_bytes()).count()
            })
            .sum()
    }

    /// Images are deleted when they expire. Their bytes must not stay in pages that other rows share, in free pages, or in
    /// the WAL.
    #[test]
    fn no_byte_of_deleted_rows_stays_after_a_checkpoint() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("abide.db");
        let store = Store::open(&path, Layout::default(), Tuning::default()).expect("it opens");
        let writer = store.writer().expect("it connects");
        let checkpointer = store.checkpointer().expect("it connects");
        writer.begin().expect("no other process writes");
        write_images(&writer);
        writer.commit().expect("it commits");
        assert!(checkpointer.truncate().expect("it copies"), "all pages are in the file");
        assert!(count_markers(folder.path()) > 1_000);
        for up_to in [3, 50, 199] {
            writer.begin().expect("no other process writes");
            writer.prune_change_log(Seq(up_to)).expect("they are deleted");
            writer.commit().expect("it commits");
        }
        assert!(checkpointer.truncate().expect("it copies"), "all pages are in the file");
        let kept = 1 + 7 * 200;
        let found = count_markers(folder.path());
        // Some are on two pages.
        assert!((kept - 50..=kept).contains(&found), "{found} markers, and one row has {kept}");
        let pages =
            PageLayout::read(&Connection::open(&path).expect("it opens")).expect("it is read");
        assert!(pages.is_current() && pages.free_pages > 100, "{pages:?}");
    }

    #[test]
    fn a_file_with_another_layout_is_converted_and_keeps_its_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("abide.db");
        let open = |tuning| Store::open(&path, Layout::default(), tuning).expect("it opens");
        let store = open(Tuning::default());
        let log_id = store.log_id().to_owned();
        let writer = store.writer().expect("it connects");
        write_images(&writer);
        writer.prune_change_log(Seq(100)).expect("they are deleted");
        drop((writer, store));
        let former = Connection::open(&path).expect("it opens");
        let none = "PRAGMA auto_vacuum = NONE; VACUUM;";
        former.execute_batch(none).expect("it is rewritten");
        drop(former);

        let plan = plan_upgrade(&path, Vec::new()).expect("it is ours");
        assert!(!plan.now.is_current() && !plan.now.is_incremental, "{plan:?}");
        assert!(plan.conversion_bytes >= plan.now.bytes() && plan.available_bytes > 0, "{plan:?}");

        // A reader keeps its state.
        let reader = Connection::open(&path).expect("it opens");
        reader.execute_batch("BEGIN; SELECT 1 FROM meta;").expect("it reads");
        let (converted, backup) = convert(&path, Vec::new(), true).expect("nobody has it open");
        let backup = Connection::open(backup.expect("there is a backup")).expect("it opens");
        assert!(!PageLayout::read(&backup).expect("it is read").is_current());
        assert!(converted.is_current(), "{converted:?}");
        assert_eq!(plan_upgrade(&path, Vec::new()).expect("it is ours").now, converted);
        drop(reader);
        let store = open(Tuning::default());
        assert_eq!(store.log_id(), log_id);
        let count = store.writer().expect("it connects").run(
            "SELECT count(*), sum(length(images)) FROM change_log",
            &[],
            &mut |row| {
                let bytes = (101..=200).map(|seq| 26 * (1 + 7 * seq)).sum::<i64>();
                assert_eq!(row, [100.into(), bytes.into()]);
            },
        );
        count.expect("it reads");
    }
}
