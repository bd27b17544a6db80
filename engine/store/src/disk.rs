//! The disk below the files: SQLite's VFS, and the files that the engine writes and syncs itself.
//!
//! The journal and the sync of SQLite's WAL do not go through SQLite. A replacement disk, as in the power-loss
//! tests, must therefore replace both.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::private;

/// A disk. Folders and the lock file always belong to the system.
pub trait Disk: Send + Sync + fmt::Debug {
    /// The name of the SQLite VFS; `None` for the system's default.
    fn vfs(&self) -> Option<&str>;

    /// Opens an existing file; one that is read-only, to read it.
    ///
    /// # Errors
    /// An I/O error of the system.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Creates a file of zeros that only its owner can access. The file and its name are durable, and later writes
    /// within its length allocate nothing.
    ///
    /// # Errors
    /// An I/O error of the system; [`io::ErrorKind::StorageFull`] if there is no space.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file. A crash may undo the removal.
    ///
    /// # Errors
    /// An I/O error of the system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// The bytes that files next to this one can still take; [`u64::MAX`] on a file system without a size.
    ///
    /// # Errors
    /// An I/O error of the system.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// An open file.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// The whole visible content.
    ///
    /// # Errors
    /// An I/O error of the system.
    fn read(&self) -> io::Result<Vec<u8>>;

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// An I/O error of the system. Some of the bytes may be written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when every write that was complete before the call is on the disk.
    ///
    /// # Errors
    /// An I/O error of the system.
    fn sync_data(&self) -> io::Result<()>;

    /// Rewrites the whole visible content of the file, so that the next sync writes it to the disk
    /// regardless of earlier failures. After a failed sync the system considers dirty pages clean,
    /// also for a later process.
    ///
    /// # Errors
    /// An I/O error of the system.
    fn rewrite(&self) -> io::Result<()>;
}

/// Bytes to write at a time.
const PART_BYTES: usize = 1 << 20;

/// The system's disk.
#[derive(Debug)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn vfs(&self) -> Option<&str> {
        None
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = match File::options().read(true).write(true).open(path) {
            // Its content can be read, in a folder that is read-only.
            Err(why) if is_read_only(&why) => File::open(path)?,
            opened => opened?,
        };
        Ok(Box::new(file))
    }

    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        let file = private::create_file(path)?;
        let zeros = vec![0; PART_BYTES.min(usize::try_from(bytes).unwrap_or(PART_BYTES))];
        let mut offset = 0;
        while offset < bytes {
            let part = usize::try_from(bytes - offset).unwrap_or(PART_BYTES).min(zeros.len());
            file.write_all_at(&zeros[..part], offset)?;
            offset += part as u64;
        }
        file.sync_all()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(Box::new(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(path)?;
        // A tmpfs without a limit, and some network file systems.
        if disk.f_blocks == 0 {
            return Ok(u64::MAX);
        }
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

fn is_read_only(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

impl DiskFile for File {
    fn read(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.metadata()?.len()).map_err(io::Error::other)?;
        let mut content = vec![0; length];
        self.read_exact_at(&mut content, 0)?;
        Ok(content)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn rewrite(&self) -> io::Result<()> {
        let mut part = vec![0; PART_BYTES];
        let mut offset = 0;
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
