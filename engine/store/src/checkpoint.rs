//! The WAL: syncing it, and checkpointing it into the file.

use std::path::Path;

use abide_schema::seeded::{SeededBug, makes};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::companions::companion;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::file_sync::sync_database_file;

/// Makes the whole content of the WAL durable, including writes of other processes and writes whose sync failed before.
/// No process may write to the WAL meanwhile.
pub(crate) fn sync_wal(database: &Path, disk: &dyn Disk) -> std::io::Result<()> {
    // SQLite holds no lock on the WAL that closing this handle could drop.
    let wal = disk.open(&companion(database, "-wal"))?;
    if !makes(SeededBug::WalNotRewritten) {
        wal.rewrite()?;
    }
    wal.sync_data()
}

/// The size of the WAL in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalSize {
    /// Since SQLite started it from its beginning.
    pub total: u64,
    /// Not in the file yet.
    pub waiting: u64,
}

/// Moves the WAL into the file, on its own connection, without blocking readers or the writer.
#[derive(Debug)]
pub struct Checkpointer {
    connection: Connection,
}

impl Checkpointer {
    pub(crate) fn new(connection: Connection) -> Checkpointer {
        Checkpointer { connection }
    }

    /// The size of the WAL.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn wal_size(&self) -> Result<WalSize, StoreError> {
        let CheckpointPages { in_wal, in_file, .. } = run(&self.connection, "NOOP")?;
        let page: i64 = self.connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let bytes = |pages: i64| u64::try_from(pages.max(0) * page).unwrap_or(0);
        Ok(WalSize { total: bytes(in_wal), waiting: bytes(in_wal - in_file) })
    }

    /// Disables further checkpoints and keeps the WAL when this closes. Used when the WAL cannot be
    /// trusted: after a failed sync, reading the WAL may return other bytes than were written, and
    /// a checkpoint would copy them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn leave_wal(&self) -> Result<(), StoreError> {
        Ok(leave_wal_on_close(&self.connection, true)?)
    }

    /// Copies as much as readers allow, and syncs the file. `false` if nothing could be copied.
    ///
    /// SQLite syncs the file only after a checkpoint that has copied the whole WAL. Next to a busy writer only the writer's
    /// own checkpoint does. Without this sync, that checkpoint would wait for the disk to write everything that was copied
    /// here.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn copy_and_sync(&self) -> Result<bool, StoreError> {
        let before = run(&self.connection, "NOOP")?.in_file;
        let has_copied = run(&self.connection, "PASSIVE")?.in_file != before;
        if has_copied && !makes(SeededBug::CheckpointUnsynced) {
            sync_database_file(&self.connection)?;
        }
        Ok(has_copied)
    }

    /// Checkpoints everything, waiting for readers, and truncates the WAL file. Used at shutdown.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn truncate(&self) -> Result<bool, StoreError> {
        checkpoint(&self.connection, "TRUNCATE")
    }
}

/// Checkpoints the WAL; `true` if all of it was copied.
pub(crate) fn checkpoint(connection: &Connection, mode: &str) -> Result<bool, StoreError> {
    let CheckpointPages { is_busy, in_wal, in_file } = run(connection, mode)?;
    Ok(!is_busy && in_wal == in_file)
}

/// What SQLite reports of a checkpoint.
struct CheckpointPages {
    /// Whether another connection was in the way.
    is_busy: bool,
    /// Pages in the WAL.
    in_wal: i64,
    /// Pages of the WAL that are in the file.
    in_file: i64,
}

fn run(connection: &Connection, mode: &str) -> rusqlite::Result<CheckpointPages> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    connection.query_row(&sql, [], |row| {
        Ok(CheckpointPages { is_busy: row.get(0)?, in_wal: row.get(1)?, in_file: row.get(2)? })
    })
}

/// Whether the last connection to close keeps the WAL or checkpoints it.
pub(crate) fn leave_wal_on_close(connection: &Connection, leave: bool) -> rusqlite::Result<()> {
    let flag = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    let leave = leave && !makes(SeededBug::CheckpointAfterError);
    connection.set_db_config(flag, leave).map(drop)
}
