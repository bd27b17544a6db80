//! The WAL: syncing it, and checkpointing it into the file.

use std::path::Path;

use abide_schema::seeded::{SeededBug, makes};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::companions::companion;
use crate::disk::Disk;
use crate::error::StoreError;

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

/// Moves the WAL into the file, on its own connection, without blocking readers or the writer.
#[derive(Debug)]
pub struct Checkpointer {
    connection: Connection,
}

impl Checkpointer {
    pub(crate) fn new(connection: Connection) -> Checkpointer {
        Checkpointer { connection }
    }

    /// Bytes in the WAL that are not in the file yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn waiting_bytes(&self) -> Result<u64, StoreError> {
        let sql = "PRAGMA wal_checkpoint(NOOP)";
        let (in_wal, moved) = self
            .connection
            .query_row(sql, [], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
        let page: i64 = self.connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        Ok(u64::try_from((in_wal - moved).max(0) * page).unwrap_or(0))
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

    /// Checkpoints as much as readers allow; `true` if that was all.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn passive(&self) -> Result<bool, StoreError> {
        checkpoint(&self.connection, "PASSIVE")
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
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    let (busy, in_wal, moved) = connection.query_row(&sql, [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
    })?;
    Ok(busy == 0 && in_wal == moved)
}

/// Whether the last connection to close keeps the WAL or checkpoints it.
pub(crate) fn leave_wal_on_close(connection: &Connection, leave: bool) -> rusqlite::Result<()> {
    let flag = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    let leave = leave && !makes(SeededBug::CheckpointAfterError);
    connection.set_db_config(flag, leave).map(drop)
}
