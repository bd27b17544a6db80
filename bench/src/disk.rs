//! The disk: the time of one sync, alone and during a run, and the bytes that are written.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;

use crate::statistics::median;

/// Options of `sync`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The folder on the disk.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
    /// Probe until the standard input ends, during a run of another program.
    #[arg(long)]
    during: bool,
}

/// Number of syncs of a probe, on a quiet disk.
const SYNCS: usize = 200;
/// Number of syncs after which a probe of a busy disk ends, and the time.
const LEAST_SYNCS: usize = 20;
const LONGEST: Duration = Duration::from_millis(100);
const BLOCK: usize = 4 << 10;
/// Size of the file, whose blocks exist before the measurement.
const FILE_BLOCKS: usize = 256;
/// Time between two syncs during a run: they must not slow it.
const BETWEEN: Duration = Duration::from_millis(50);

/// Prints the median time of one sync in microseconds.
pub(crate) fn run(options: &Options) {
    if !options.during {
        return println!("{:.1}", sync_us(&options.dir));
    }
    let probe = Probe::start(&options.dir);
    let mut ignored = String::new();
    std::io::stdin().read_to_string(&mut ignored).expect("the standard input can be read");
    println!("{:.1}", probe.stop());
}

/// Parses the name of a folder that exists.
pub(crate) fn folder(text: &str) -> Result<PathBuf, String> {
    let folder = PathBuf::from(text);
    folder.is_dir().then_some(folder).ok_or_else(|| "there is no such folder".to_owned())
}

/// Median time of an `fdatasync` after one block of a file was overwritten, in microseconds.
pub(crate) fn sync_us(dir: &Path) -> f64 {
    let file = ProbeFile::new(dir);
    let started = Instant::now();
    let syncs = (0..SYNCS)
        .take_while(|number| *number < LEAST_SYNCS || started.elapsed() < LONGEST)
        .map(|number| file.sync_us(number));
    median(syncs.collect::<Vec<_>>())
}

/// A file whose blocks exist.
struct ProbeFile(File);

impl ProbeFile {
    fn new(dir: &Path) -> ProbeFile {
        let file = ProbeFile(tempfile::tempfile_in(dir).expect("a file in the folder"));
        (0..FILE_BLOCKS).for_each(|block| file.write(block));
        file.0.sync_all().expect("the disk takes the file");
        file
    }

    fn sync_us(&self, number: usize) -> f64 {
        self.write(number);
        let started = Instant::now();
        self.0.sync_data().expect("the disk takes the block");
        started.elapsed().as_secs_f64() * 1e6
    }

    fn write(&self, number: usize) {
        let content = [number as u8; BLOCK];
        let at = (number % FILE_BLOCKS * BLOCK) as u64;
        self.0.write_all_at(&content, at).expect("the disk takes the block");
    }
}

/// A thread that syncs a file of its own from time to time, during a run.
pub(crate) struct Probe {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Vec<f64>>,
}

impl Probe {
    pub(crate) fn start(dir: &Path) -> Probe {
        let file = ProbeFile::new(dir);
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut found = Vec::new();
            loop {
                found.push(file.sync_us(found.len()));
                if stopped.recv_timeout(BETWEEN) != Err(RecvTimeoutError::Timeout) {
                    return found;
                }
            }
        });
        Probe { stop, thread }
    }

    /// Median time of one sync in microseconds.
    pub(crate) fn stop(self) -> f64 {
        drop(self.stop);
        median(self.thread.join().expect("the probe's thread"))
    }
}

/// Counters of written bytes. Each exceeds what this process writes, for another reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// `write_bytes` of the process. The system counts a page when it becomes dirty, and all pages of a large folio when
    /// one of them does.
    process: Option<f64>,
    /// Bytes that the device of the folder wrote, for all processes.
    device: Option<f64>,
}

impl Written {
    /// Reads both.
    pub(crate) fn read(dir: &Path) -> Written {
        Written { process: process_written_bytes(), device: device_written_bytes(dir) }
    }

    /// The bytes since an earlier state: the smaller one. `None` if the system reports none.
    pub(crate) fn since(self, before: Written) -> Option<f64> {
        let difference =
            |after: Option<f64>, before: Option<f64>| Some((after? - before?).max(0.0));
        let process = difference(self.process, before.process);
        let device = difference(self.device, before.device);
        process.into_iter().chain(device).reduce(f64::min)
    }
}

fn process_written_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes:"))?;
    line.trim().parse().ok()
}

fn device_written_bytes(dir: &Path) -> Option<f64> {
    let device = std::fs::metadata(dir).ok()?.dev();
    // The layout of a device number in Linux.
    let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
    let minor = (device & 0xff) | (device >> 12 & 0xffff_ff00);
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    // The seventh number is that of the sectors written, of 512 bytes each.
    let sectors: f64 = text.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_writes_to_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let before = Written::read(folder.path());
        assert!(sync_us(folder.path()) > 0.0);
        assert!(Probe::start(folder.path()).stop() > 0.0);
        assert!(Written::read(folder.path()).since(before).is_none_or(|bytes| bytes >= 0.0));
    }
}
