//! The disk below the files: SQLite's VFS, and the sync of the WAL.
//!
//! The engine syncs commits itself ([`WalSync`](crate::WalSync)), outside of SQLite. A replacement
//! disk, as in the power-loss tests, must therefore replace both.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// A disk. Names, folders and the lock file always belong to the system.
pub trait Disk: Send + Sync + fmt::Debug {
    /// The name of the SQLite VFS; `None` for the system's default.
    fn vfs(&self) -> Option<&str>;

    /// Opens a file for syncing.
    ///
    /// # Errors An I/O error of the system.
    fn open_to_sync(&self, path: &Path) -> io::Result<Box<dyn SyncData>>;
}

/// An open file that can be made durable.
pub trait SyncData: Send + Sync + fmt::Debug {
    /// Returns when every write that was complete before the call is on the disk.
    ///
    /// # Errors An I/O error of the system.
    fn sync_data(&self) -> io::Result<()>;

    /// Rewrites the whole visible content of the file, so that the next sync writes it to the disk
    /// regardless of earlier failures. After a failed sync the system considers dirty pages clean,
    /// also for a later process.
    ///
    /// # Errors An I/O error of the system.
    fn rewrite(&self) -> io::Result<()>;
}

/// Bytes to rewrite at a time.
const REWRITE_BYTES: usize = 1 << 20;

/// The system's disk.
#[derive(Debug)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn vfs(&self) -> Option<&str> {
        None
    }

    fn open_to_sync(&self, path: &Path) -> io::Result<Box<dyn SyncData>> {
        Ok(Box::new(File::options().read(true).write(true).open(path)?))
    }
}

impl SyncData for File {
    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn rewrite(&self) -> io::Result<()> {
        let (mut part, mut offset) = (vec![0; REWRITE_BYTES], 0);
        loop {
            let read = self.read_at(&mut part, offset)?;
            if read == 0 {
                return Ok(());
            }
            self.write_all_at(&part[..read], offset)?;
            offset += read as u64;
        }
    }
}
