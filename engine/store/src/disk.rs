//! The disk that files lie on: SQLite's VFS, and the sync beside it.
//!
//! The engine makes commits durable by itself ([`WalSync`](crate::WalSync)), outside of SQLite; so who
//! puts another disk under it, as the tests of lost power do, must put it under both.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// A disk. Names, folders and the lock beside a file are the system's in any case.
pub trait Disk: Send + Sync + fmt::Debug {
    /// The name under which SQLite knows its VFS; none for the system's own.
    fn vfs(&self) -> Option<&str>;

    /// Opens a file for syncing.
    ///
    /// # Errors
    /// The system's.
    fn open_to_sync(&self, path: &Path) -> io::Result<Box<dyn SyncData>>;
}

/// An open file that can be made durable.
pub trait SyncData: Send + Sync + fmt::Debug {
    /// Returns when every write that was complete before the call is on the disk.
    ///
    /// # Errors
    /// The system's.
    fn sync_data(&self) -> io::Result<()>;

    /// Writes everything that the file shows once more, so that the next sync brings it to the disk
    /// whatever became of earlier ones: after a sync that failed, the system takes for written what is
    /// not, also before a process that comes later.
    ///
    /// # Errors
    /// The system's.
    fn rewrite(&self) -> io::Result<()>;
}

/// How much is rewritten at a time.
const REWRITE_BYTES: usize = 1 << 20;

/// The machine's own.
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
