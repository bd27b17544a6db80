//! A faulty disk: the visible content of files while the power is on, and the content that survives
//! a power failure.
//!
//! A [`Machine`] observes every write, truncation, sync and removal of files in one folder by
//! SQLite or by the engine itself. It stores the *durable* image of each file (the synced
//! content) and the later writes; the *live* image is the real file. It can lose power at any step;
//! then any subset of the unsynced writes survives, whole or torn. It can fail the nth call of a
//! kind, once or permanently, and it can be full.
//!
//! The model, with its sources:
//! - A sync makes a file's content durable, not its name. Names become durable when the folder is
//!   synced, as SQLite does with the first sync of a new journal or WAL. A removal without a sync
//!   of the folder may be undone by a crash.
//! - A write interrupted by a crash is torn between sectors of 512 bytes, not within one (SQLite's
//!   `SQLITE_IOCAP_POWERSAFE_OVERWRITE`, which the unix VFS promises).
//! - After a failed sync the system considers the pages clean: the data is on the disk or not, no
//!   later sync writes it, and later reads may return the disk's content. Every handle that was
//!   open reports the failure once.
//!
//! Not modelled: locks and the WAL index in shared memory belong to the unix VFS; the machine can
//! only refuse them. Reads return what was written; `verify` detects a disk that returns other
//! data.

mod image;
mod machine;
mod vfs;

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use abide_store::{Disk, DiskFile};

use machine::{CallVerdict, Synced};
pub use machine::{DiskCounts, Fault, Kind, Machine};

/// A [`Machine`] in the form that the engine takes.
pub struct FaultyDisk {
    machine: Arc<Machine>,
    vfs: vfs::Registered,
}

impl FaultyDisk {
    /// Registers a machine with SQLite.
    #[must_use]
    pub fn new(machine: &Arc<Machine>) -> Arc<FaultyDisk> {
        let vfs = vfs::Registered::new(machine);
        Arc::new(FaultyDisk { machine: Arc::clone(machine), vfs })
    }
}

impl fmt::Debug for FaultyDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyDisk").field("vfs", &self.vfs.name()).finish_non_exhaustive()
    }
}

impl Disk for FaultyDisk {
    fn vfs(&self) -> Option<&str> {
        Some(self.vfs.name())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.machine.find(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(self.handle(file, path)))
    }

    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        done(self.machine.call(Kind::Open))?;
        fs::File::create_new(path)?;
        let file = self.handle(self.machine.opened(path, || None), path);
        file.write_at(&vec![0; usize::try_from(bytes).map_err(io::Error::other)?], 0)?;
        file.sync_data()?;
        self.machine.sync_folder();
        Ok(Box::new(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        done(self.machine.call(Kind::Delete))?;
        fs::remove_file(path)?;
        self.machine.removed(path, false);
        Ok(())
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl FaultyDisk {
    fn handle(&self, file: u64, path: &Path) -> EngineFile {
        let reported = Mutex::new(self.machine.failures(file));
        EngineFile { machine: Arc::clone(&self.machine), file, reported, path: path.to_owned() }
    }
}

/// A file that the engine itself writes or syncs: the one that had the name when it was opened.
#[derive(Debug)]
struct EngineFile {
    machine: Arc<Machine>,
    file: u64,
    reported: Mutex<u64>,
    path: PathBuf,
}

impl DiskFile for EngineFile {
    fn read(&self) -> io::Result<Vec<u8>> {
        done(self.machine.call(Kind::Read))?;
        fs::read(&self.path)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let (verdict, written) = self.machine.write(self.file, start, bytes);
        let file = fs::File::options().write(true).open(&self.path)?;
        file.write_all_at(&bytes[..written], offset)?;
        done(verdict)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        match self.machine.sync(self.file, &mut reported) {
            Synced::Done => return Ok(()),
            Synced::Failed => {}
            // SQLite holds no lock on the file that another handle could drop.
            Synced::Forgotten(shows) => fs::write(&self.path, shows)?,
        }
        Err(io::Error::other("the disk failed"))
    }

    fn rewrite(&self) -> io::Result<()> {
        // The visible content does not change.
        let shows = fs::read(&self.path)?;
        done(self.machine.write(self.file, 0, &shows).0)
    }
}

/// The result of a call for the engine.
fn done(verdict: CallVerdict) -> io::Result<()> {
    match verdict {
        CallVerdict::Go => Ok(()),
        CallVerdict::Full => Err(io::ErrorKind::StorageFull.into()),
        CallVerdict::Fail | CallVerdict::Crash | CallVerdict::Down => {
            Err(io::Error::other("the disk failed"))
        }
    }
}
