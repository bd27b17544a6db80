//! The system's disk, with code of a test before each sync: it can wait, or fail the sync.

use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use abide_store::{Disk, DiskFile, SystemDisk};

type BeforeSync = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// See the [module](self). SQLite syncs its own files without it.
#[derive(Clone)]
pub struct HookedDisk {
    before_sync: BeforeSync,
}

impl HookedDisk {
    /// A disk that calls a function before each sync. If it returns an error, that is the error of the sync.
    pub fn new(before_sync: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> HookedDisk {
        HookedDisk { before_sync: Arc::new(before_sync) }
    }

    fn file(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(HookedFile { disk: self.clone(), file })
    }
}

impl fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedDisk").finish_non_exhaustive()
    }
}

impl Disk for HookedDisk {
    fn vfs(&self) -> Option<&str> {
        None
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(SystemDisk.open(path)?))
    }

    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(SystemDisk.create(path, bytes)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        SystemDisk.free_bytes(path)
    }
}

#[derive(Debug)]
struct HookedFile {
    disk: HookedDisk,
    file: Box<dyn DiskFile>,
}

impl DiskFile for HookedFile {
    fn read(&self) -> io::Result<Vec<u8>> {
        self.file.read()
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        (self.disk.before_sync)()?;
        self.file.sync_data()
    }

    fn rewrite(&self) -> io::Result<()> {
        self.file.rewrite()
    }
}
