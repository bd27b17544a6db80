//! The WAL: making it durable, and moving it into the file.

use std::path::Path;

use abide_schema::seeded::{Bug, makes};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::disk::{Disk, SyncData};
use crate::error::StoreError;
use crate::private::beside;

/// Makes commits durable: a handle on the WAL, synced by whoever owns it.
#[derive(Debug)]
pub struct WalSync {
    file: Box<dyn SyncData>,
}

impl WalSync {
    pub(crate) fn open(database: &Path, disk: &dyn Disk) -> std::io::Result<WalSync> {
        // Opened once and kept: the system reports a failed write-back once per open handle, and
        // this one must not miss it. SQLite holds no lock on the WAL that closing could drop.
        Ok(WalSync { file: disk.open_to_sync(&beside(database, "-wal"))? })
    }

    /// Returns when everything that the WAL holds is on the disk, whoever wrote it and whether or not a
    /// sync of it failed before. Nobody may write to it meanwhile.
    ///
    /// # Errors
    /// The system's.
    pub fn recover(&self) -> std::io::Result<()> {
        if !makes(Bug::WalNotRewritten) {
            self.file.rewrite()?;
        }
        self.file.sync_data()
    }

    /// Returns when every commit that was complete before the call is on the disk.
    ///
    /// # Errors
    /// The system's. After one, nothing is known about what is on the disk: do not try again.
    pub fn sync(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }
}

/// Moves the WAL into the file, on a connection of its own, without stopping anybody.
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

    /// When this closes, nothing more is moved, and the WAL stays. For when it cannot be trusted: after a
    /// sync that failed, what is read of the WAL may not be what was written, and would be moved all
    /// the same.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn leave_wal(&self) -> Result<(), StoreError> {
        Ok(leave_wal_on_close(&self.connection, true)?)
    }

    /// Moves what can be moved past no reader's back; `true` when all of it was.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn passive(&self) -> Result<bool, StoreError> {
        self.checkpoint("PASSIVE")
    }

    /// Moves everything, waiting for readers, and empties the WAL file: for the end of a run.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn truncate(&self) -> Result<bool, StoreError> {
        self.checkpoint("TRUNCATE")
    }

    fn checkpoint(&self, mode: &str) -> Result<bool, StoreError> {
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        let (busy, in_wal, moved) = self.connection.query_row(&sql, [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        })?;
        Ok(busy == 0 && in_wal == moved)
    }
}

/// Whether the last connection that closes leaves the WAL as it is, or moves it into the file.
pub(crate) fn leave_wal_on_close(connection: &Connection, leave: bool) -> rusqlite::Result<()> {
    let flag = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    let leave = leave && !makes(Bug::CheckpointAfterError);
    connection.set_db_config(flag, leave).map(drop)
}
