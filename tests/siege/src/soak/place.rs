//! The disk: a small file system in memory of our own, which can be filled to its last byte and emptied again.
//! Where this user may not mount one, the file stands in an ordinary folder, and a full disk is left out.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::statvfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::Told;

/// What it holds beside what the clients write.
const BASE_MB: u64 = 160;
/// What fifty clients write in a minute, with room to spare.
const MINUTE_MB: u64 = 160;
/// More than that is no small disk.
const MOST_MB: u64 = 4_096;
/// With less than this free, the clients have filled it by themselves.
const LEAST_BYTES: u64 = 48 << 20;
/// What is written of the ballast at a time.
static PIECE: [u8; 64 << 10] = [0xab; 64 << 10];

/// See the [module](self).
pub(crate) struct Place {
    folder: TempDir,
    is_mounted: bool,
}

impl Place {
    /// One that is large enough for so long a soak.
    pub(crate) fn make(span: Duration) -> Told<Place> {
        let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
        let megabytes = (BASE_MB + MINUTE_MB * span.as_secs().div_ceil(60)).min(MOST_MB);
        let size =
            std::ffi::CString::new(format!("size={megabytes}m")).map_err(|why| why.to_string())?;
        let mounted =
            mount("abide-soak", folder.path(), "tmpfs", MountFlags::NOSUID, Some(size.as_c_str()));
        match &mounted {
            Ok(()) => println!("soak      a disk of {megabytes} MB (tmpfs)"),
            Err(why) => println!("left out: a full disk, tmpfs cannot be mounted: {why}"),
        }
        Ok(Place { folder, is_mounted: mounted.is_ok() })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether it can be filled without harm to anybody else.
    pub(crate) fn can_be_filled(&self) -> bool {
        self.is_mounted
    }

    /// Whether the clients have nearly filled it.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let free = statvfs(self.folder.path()).map_or(u64::MAX, |fs| fs.f_bavail * fs.f_frsize);
        self.is_mounted && free < LEAST_BYTES
    }

    /// Fills it to its last byte.
    pub(crate) fn fill(&self) -> Told {
        let mut ballast = File::create(self.ballast()).map_err(|why| format!("ballast: {why}"))?;
        // Ends where there is no room for the next piece, and then for the next byte.
        while ballast.write_all(&PIECE).is_ok() {}
        while ballast.write_all(&PIECE[..1]).is_ok() {}
        Ok(())
    }

    /// Makes room again.
    pub(crate) fn empty(&self) {
        // It may be gone already.
        let _ = fs::remove_file(self.ballast());
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted {
            // Detached: it goes when the last handle does, also after a failure.
            let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
        }
    }
}
