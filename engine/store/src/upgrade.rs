//! Conversion of a file to the layout of pages that new files have.
//!
//! A file keeps the mode of its free pages from its creation. Only `VACUUM` changes it: it writes all rows into a temporary
//! file, and its pages into the WAL, as one transaction. So a crash leaves the old file or the new one.

use std::path::Path;

use abide_schema::Module;
use rusqlite::{Connection, OpenFlags};

use crate::checkpoint::leave_wal_on_close;
use crate::connect::{broken, connect};
use crate::disk::SystemDisk;
use crate::error::{OpenError, StoreError};
use crate::layout::{INCREMENTAL, Layout};
use crate::open::{Store, Tuning, set_up_file};
use crate::read_only::open_read_only;

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

/// What an [`upgrade`] would do to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpgradePlan {
    /// The file now.
    pub now: PageLayout,
    /// Bytes of disk that the conversion needs in the folder of the file, at most: its pages in use once for the temporary
    /// file, and once for the WAL.
    pub needed_bytes: u64,
    /// Bytes of disk that this process can use there.
    pub available_bytes: u64,
}

/// Returns what an upgrade of a file would do. The file is only read, after the journal of a killed process is applied.
///
/// # Errors
/// [`OpenError`].
pub fn plan_upgrade(path: &Path, modules: Vec<Module>) -> Result<UpgradePlan, OpenError> {
    let file = open_read_only(path, &Layout { modules })?;
    let now = PageLayout::read(&file).map_err(|why| broken(path, why.into()))?;
    file.check_unchanged()?;
    let disk = rustix::fs::statvfs(path)
        .map_err(|why| OpenError::Io { path: path.to_owned(), why: why.into() })?;
    Ok(UpgradePlan {
        now,
        needed_bytes: 2 * (now.pages - now.free_pages) * now.page_bytes,
        available_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
    })
}

/// Migrates the tables of a file, and converts it to the layout of a new file. Returns its layout then.
///
/// # Errors
/// [`OpenError`]. The file then has its old layout.
pub fn upgrade(path: &Path, modules: Vec<Module>) -> Result<PageLayout, OpenError> {
    let tuning = Tuning::default();
    // Also locks the file, until the end.
    let store = Store::open(path, Layout { modules }, tuning.clone())?;
    let path = store.path();
    vacuum(path, &tuning).map_err(|why| broken(path, why))
}

fn vacuum(path: &Path, tuning: &Tuning) -> Result<PageLayout, StoreError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, &SystemDisk)?;
    set_up_file(&connection, tuning)?;
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    // The temporary file: other folders are often small, or in memory.
    let folder = std::path::absolute(path).ok();
    if let Some(folder) = folder.as_deref().and_then(Path::parent).and_then(Path::to_str) {
        connection.pragma_update(None, "temp_store_directory", folder)?;
    }
    connection.execute_batch("VACUUM")?;
    let converted = PageLayout::read(&connection)?;
    // The last connection to close copies the WAL into the file.
    leave_wal_on_close(&connection, false)?;
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use abide_schema::{Seq, Table as _};

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
        assert!(plan.needed_bytes >= plan.now.bytes() && plan.available_bytes > 0, "{plan:?}");

        // A reader keeps its state.
        let reader = Connection::open(&path).expect("it opens");
        reader.execute_batch("BEGIN; SELECT 1 FROM meta;").expect("it reads");
        let converted = upgrade(&path, Vec::new()).expect("nobody has it open");
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
