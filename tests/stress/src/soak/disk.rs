//! The disk: a small tmpfs that can be filled completely and emptied again. If this user may not
//! mount one, the file is in an ordinary folder, and the full-disk fault is skipped.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::statvfs;
use tempfile::TempDir;

use crate::CheckResult;
use crate::server::output;

/// Capacity in addition to the clients' writes.
const BASE_MB: u64 = 160;
/// The writes of fifty clients in a minute, with a margin.
const MINUTE_MB: u64 = 160;
/// The maximum size.
const MOST_MB: u64 = 4_096;
/// With less free space, the clients have filled the disk themselves.
const LEAST_BYTES: u64 = 48 << 20;
/// The chunk that is written to fill the disk.
static PIECE: [u8; 64 << 10] = [0xab; 64 << 10];

/// See the [module](self).
pub(crate) struct SmallVolume {
    folder: TempDir,
    is_mounted: bool,
}

impl SmallVolume {
    /// Creates a disk that is large enough for a soak of this duration.
    pub(crate) fn make(span: Duration) -> CheckResult<SmallVolume> {
        let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
        let megabytes = (BASE_MB + MINUTE_MB * span.as_secs().div_ceil(60)).min(MOST_MB);
        let options = format!("size={megabytes}m,nosuid");
        // With the commands of the system: a feature of `rustix` would compile everything that depends on it again.
        let mounted = output(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &options, "abide-soak"])
                .arg(folder.path()),
        );
        match &mounted {
            Ok(_) => println!("soak      a disk of {megabytes} MB (tmpfs)"),
            Err(why) => println!("skipped: a full disk, tmpfs cannot be mounted: {why}"),
        }
        Ok(SmallVolume { folder, is_mounted: mounted.is_ok() })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether it can be filled without affecting other programs.
    pub(crate) fn can_be_filled(&self) -> bool {
        self.is_mounted
    }

    /// Whether the clients have nearly filled it.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let free = statvfs(self.folder.path()).map_or(u64::MAX, |fs| fs.f_bavail * fs.f_frsize);
        self.is_mounted && free < LEAST_BYTES
    }

    /// Fills it completely.
    pub(crate) fn fill(&self) -> CheckResult {
        let mut ballast = File::create(self.ballast()).map_err(|why| format!("ballast: {why}"))?;
        // Stops when the next chunk does not fit, and then when the next byte does not fit.
        while ballast.write_all(&PIECE).is_ok() {}
        while ballast.write_all(&PIECE[..1]).is_ok() {}
        Ok(())
    }

    /// Frees the space.
    pub(crate) fn empty(&self) {
        // It may be removed already.
        let _ = fs::remove_file(self.ballast());
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        if self.is_mounted {
            // Detached: it is unmounted with the last open handle, even after a failure.
            let _ = output(Command::new("umount").arg("--lazy").arg(self.folder.path()));
        }
    }
}
