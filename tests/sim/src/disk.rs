//! A disk that fails: what the files show while the power is on, and what of it would be there after.
//!
//! A [`Machine`] is told of every write, truncation, sync and removal that SQLite, or the engine's own
//! sync thread, makes on the files of one folder. It keeps the *durable* image of each file (what was
//! synced) and the writes since; the *live* image is the real file beside it. It can lose its power at
//! any step, and then any subset of the unsynced writes is there afterwards, whole or torn; it can fail
//! the nth call of a kind, once or from then on; and it can be full.
//!
//! What is modelled, and after what:
//! - A sync makes a file's content durable, not its name. Names become durable when the folder is
//!   synced, as SQLite does with the first sync of a new journal or WAL; a removal without a sync of the
//!   folder may be undone by a crash.
//! - A write that a crash catches is torn at sectors of 512 bytes, not within one (SQLite's
//!   `SQLITE_IOCAP_POWERSAFE_OVERWRITE`, which the unix VFS promises).
//! - After a failed sync the system takes the pages for clean: what was to be synced is on the disk or
//!   not, no later sync brings it back, and what is read afterwards may be what is on the disk. Every
//!   handle that was open hears of the failure once.
//!
//! What is not: locks and the WAL index in shared memory are the unix VFS's own; the machine only
//! refuses them. Reads return what was written; a disk that lies is for `verify` to find.

mod image;
mod machine;
mod vfs;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use abide_store::{Disk, SyncData};

pub use machine::{Fault, Kind, Machine, Tally};
use machine::{Synced, Verdict};

/// A [`Machine`] as the engine is given it.
pub struct FaultyDisk {
    machine: Arc<Machine>,
    vfs: vfs::Registered,
}

impl FaultyDisk {
    /// Makes a machine known to SQLite.
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

    fn open_to_sync(&self, path: &Path) -> io::Result<Box<dyn SyncData>> {
        let file = self.machine.find(path).ok_or(io::ErrorKind::NotFound)?;
        let heard = Mutex::new(self.machine.failures(file));
        let path = path.to_owned();
        Ok(Box::new(SyncedFile { machine: Arc::clone(&self.machine), file, heard, path }))
    }
}

/// The engine's own handle on a file: on the file that had the name when it was opened.
#[derive(Debug)]
struct SyncedFile {
    machine: Arc<Machine>,
    file: u64,
    heard: Mutex<u64>,
    path: PathBuf,
}

impl SyncData for SyncedFile {
    fn sync_data(&self) -> io::Result<()> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match self.machine.sync(self.file, &mut heard) {
            Synced::Done => return Ok(()),
            Synced::Failed => {}
            // Of a WAL, on which SQLite holds no lock that another handle could drop.
            Synced::Forgotten(shows) => fs::write(&self.path, shows)?,
        }
        Err(io::Error::other("the disk failed"))
    }

    fn rewrite(&self) -> io::Result<()> {
        // The file itself shows the same before and after.
        let shows = fs::read(&self.path)?;
        match self.machine.write(self.file, 0, &shows) {
            (Verdict::Go, _) => Ok(()),
            _ => Err(io::Error::other("the disk failed")),
        }
    }
}
