//! The machine: names and images of files, counted steps, and the planned fault.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, fs, io};

use super::image::{Image, Op};
use crate::random::Random;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Opening a file, or creating it.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Truncating.
    Truncate,
    /// Syncing, by SQLite or by the engine.
    Sync,
    /// Removing a file.
    Delete,
    /// Taking a lock, on the file or on the WAL index.
    Lock,
    /// Extending the WAL index.
    Extend,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 8] = [
        Kind::Open,
        Kind::Read,
        Kind::Write,
        Kind::Truncate,
        Kind::Sync,
        Kind::Delete,
        Kind::Lock,
        Kind::Extend,
    ];

    /// Whether a crash before it differs from a crash before the following call.
    fn changes(self) -> bool {
        !matches!(self, Kind::Read | Kind::Lock | Kind::Extend)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Open => "open",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Truncate => "truncate",
            Kind::Sync => "sync",
            Kind::Delete => "delete",
            Kind::Lock => "lock",
            Kind::Extend => "extend",
        })
    }
}

/// The first bytes of a segment of the journal.
const SEGMENT_MAGIC: &[u8] = b"abidejrn";

/// A planned fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The power fails in this step, counted from 1 over all disk changes.
    Crash {
        /// The step.
        step: u64,
    },
    /// A call fails.
    Fail {
        /// The kind of call.
        kind: Kind,
        /// The number of the call, from 1.
        nth: u64,
        /// Whether all later calls fail too.
        lasting: bool,
    },
    /// The disk is full after this many more bytes.
    Full {
        /// The number of bytes.
        bytes: u64,
    },
}

/// The counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Steps that change the disk.
    pub steps: u64,
    /// Calls by kind, in the order of [`Kind::ALL`].
    pub calls: [u64; 8],
    /// Calls that failed because of the fault.
    pub failed: u64,
    /// The syncs of a WAL, numbered like all syncs.
    pub wal_syncs: Vec<u64>,
    /// The steps in which the header of a segment of the journal was written.
    pub segment_headers: Vec<u64>,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallVerdict {
    /// It succeeds.
    Go,
    /// It fails; the machine continues.
    Fail,
    /// The disk is full.
    Full,
    /// The power fails during the call.
    Crash,
    /// The power is off.
    Down,
}

/// The result of a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Synced {
    /// Everything is durable.
    Done,
    /// It failed.
    Failed,
    /// It failed, and the file's visible content is now this.
    Forgotten(Vec<u8>),
}

/// A file name.
#[derive(Clone, Copy, Debug)]
struct Name {
    file: u64,
    durable: bool,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    down: bool,
    tally: DiskCounts,
    grown: u64,
    random: Random,
    files: BTreeMap<u64, Image>,
    names: BTreeMap<PathBuf, Name>,
    /// Removed names whose removal is not durable yet.
    removed: BTreeMap<PathBuf, u64>,
    last_file: u64,
    handles: u64,
}

/// See the [module](super).
#[derive(Debug)]
pub struct Machine(Mutex<State>);

impl Machine {
    /// A machine with this fault; the seed decides which data is lost.
    #[must_use]
    pub fn new(fault: Fault, seed: u64) -> Machine {
        Machine(Mutex::new(State {
            fault,
            down: false,
            tally: DiskCounts::default(),
            grown: 0,
            random: Random::new(seed),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            removed: BTreeMap::new(),
            last_file: 0,
            handles: 0,
        }))
    }

    /// Registers the files of a folder, all durable.
    ///
    /// # Errors
    /// An I/O error of the system.
    pub fn take_in(&self, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.to_string_lossy();
            // The lock file belongs to the system, and so does the WAL index, which does not
            // survive it.
            if !name.ends_with("-lock") && !name.ends_with("-shm") {
                let content = fs::read(&path)?;
                self.opened(&path, || Some(content));
            }
        }
        Ok(())
    }

    /// Plans another fault. Calls and steps continue to count.
    pub fn plan(&self, fault: Fault) {
        self.lock().fault = fault;
    }

    /// The counts so far.
    #[must_use]
    pub fn tally(&self) -> DiskCounts {
        self.lock().tally.clone()
    }

    /// Whether the power is off.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.lock().down
    }

    /// Cuts the power.
    pub fn cut_power(&self) {
        self.lock().down = true;
    }

    /// The number of SQLite's open handles on files of the folder.
    #[must_use]
    pub fn handles(&self) -> u64 {
        self.lock().handles
    }

    /// Whether any call failed because of the fault.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let state = self.lock();
        state.down || state.tally.failed > 0
    }

    /// Starts another process on a system that did not lose power. Calls count from 1 again.
    pub fn revive(&self, fault: Fault) {
        let mut state = self.lock();
        (state.down, state.fault, state.grown, state.tally) =
            (false, fault, 0, DiskCounts::default());
    }

    /// Cuts the power, and writes the surviving content to another folder.
    ///
    /// # Errors
    /// An I/O error of the system.
    pub fn restart(&self, into: &Path, seed: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.down = true;
        for (name, bytes) in state.survivors(&mut Random::new(seed)) {
            let name = name.file_name().expect("a file has a name");
            fs::write(into.join(name), bytes)?;
        }
        Ok(())
    }

    /// The file that currently has a name.
    pub(super) fn find(&self, path: &Path) -> Option<u64> {
        self.lock().names.get(path).map(|name| name.file)
    }

    /// Counts a call and returns its result.
    pub(super) fn call(&self, kind: Kind) -> CallVerdict {
        self.lock().call(kind)
    }

    /// Records that a file was opened; for a new file `content` returns its content, or that it was
    /// just created.
    pub(super) fn opened(&self, path: &Path, content: impl FnOnce() -> Option<Vec<u8>>) -> u64 {
        let mut state = self.lock();
        if let Some(name) = state.names.get(path) {
            return name.file;
        }
        state.last_file += 1;
        let file = state.last_file;
        let content = content();
        let durable = content.is_some();
        state.files.insert(file, Image::with_content(content.unwrap_or_default()));
        state.names.insert(path.to_owned(), Name { file, durable });
        file
    }

    /// Records an opened handle.
    pub(super) fn handle_made(&self) {
        self.lock().handles += 1;
    }

    /// Records a closed handle.
    pub(super) fn handle_closed(&self) {
        self.lock().handles -= 1;
    }

    /// Records a write, or the part that succeeds, and returns its result.
    pub(super) fn write(&self, file: u64, offset: usize, data: &[u8]) -> (CallVerdict, usize) {
        let mut state = self.lock();
        let verdict = state.call(Kind::Write);
        if offset == 0 && data.starts_with(SEGMENT_MAGIC) {
            let step = state.tally.steps;
            state.tally.segment_headers.push(step);
        }
        let verdict = state.check_space(verdict, data.len());
        let done = match verdict {
            // In the step of the power failure, the write may reach the disk in part.
            CallVerdict::Go | CallVerdict::Crash => data.len(),
            CallVerdict::Fail => data.len() / 2,
            CallVerdict::Full | CallVerdict::Down => 0,
        };
        if done > 0 {
            let op = Op::Write { offset, data: data[..done].to_vec() };
            state.image(file).add_pending(op);
        }
        (verdict, done)
    }

    /// Counts an extension of the WAL index and returns its result. The index is not durable and
    /// has no image.
    pub(super) fn extend(&self, bytes: usize) -> CallVerdict {
        let mut state = self.lock();
        let verdict = state.call(Kind::Extend);
        state.check_space(verdict, bytes)
    }

    /// Records a truncation, and returns its result.
    pub(super) fn truncate(&self, file: u64, bytes: usize) -> CallVerdict {
        let mut state = self.lock();
        let verdict = state.call(Kind::Truncate);
        if matches!(verdict, CallVerdict::Go | CallVerdict::Crash) {
            state.image(file).add_pending(Op::Truncate { bytes });
        }
        verdict
    }

    /// Syncs a file through a handle that has reported this many failures.
    pub(super) fn sync(&self, file: u64, reported: &mut u64) -> Synced {
        let mut state = self.lock();
        let verdict = state.call(Kind::Sync);
        if state.is_wal(file) {
            let nth = state.tally.calls[Kind::Sync as usize];
            state.tally.wal_syncs.push(nth);
        }
        let State { files, random, .. } = &mut *state;
        let image = files.get_mut(&file);
        let (Some(image), CallVerdict::Go | CallVerdict::Fail | CallVerdict::Full) =
            (image, verdict)
        else {
            return if verdict == CallVerdict::Go { Synced::Done } else { Synced::Failed };
        };
        if verdict != CallVerdict::Go {
            image.failures += 1;
            image.lose_pending(random);
            *reported = image.failures;
            // The pages are clean now and may be evicted at any time; a later read then returns the
            // disk's content.
            let forgets = random.one_in(2);
            return if forgets { Synced::Forgotten(image.durable()) } else { Synced::Failed };
        }
        // A failure is reported once on each handle that was open when it happened, whichever
        // handle synced.
        if *reported < image.failures {
            *reported = image.failures;
            return Synced::Failed;
        }
        image.sync();
        Synced::Done
    }

    /// The number of past failures, which a newly opened handle does not report.
    pub(super) fn failures(&self, file: u64) -> u64 {
        self.lock().files.get(&file).map_or(0, |image| image.failures)
    }

    /// Makes names and removals durable.
    pub(super) fn sync_folder(&self) {
        self.lock().sync_folder();
    }

    /// Records a removal.
    pub(super) fn removed(&self, path: &Path, sync_folder: bool) {
        let mut state = self.lock();
        if let Some(name) = state.names.remove(path)
            && name.durable
        {
            state.removed.insert(path.to_owned(), name.file);
        }
        if sync_folder {
            state.sync_folder();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether a file is SQLite's write-ahead log.
    fn is_wal(&self, file: u64) -> bool {
        let mut names = self.names.iter().filter(|(_, name)| name.file == file);
        names.any(|(path, _)| path.to_string_lossy().ends_with("-wal"))
    }

    fn call(&mut self, kind: Kind) -> CallVerdict {
        if self.down {
            return CallVerdict::Down;
        }
        let calls = &mut self.tally.calls[kind as usize];
        *calls += 1;
        let calls = *calls;
        if kind.changes() {
            self.tally.steps += 1;
        }
        match self.fault {
            Fault::Crash { step } if kind.changes() && self.tally.steps >= step => {
                self.down = true;
                CallVerdict::Crash
            }
            Fault::Fail { kind: failing, nth, lasting }
                if failing == kind && (calls == nth || (lasting && calls > nth)) =>
            {
                self.tally.failed += 1;
                CallVerdict::Fail
            }
            _ => CallVerdict::Go,
        }
    }

    /// Checks the space for a call that takes this many bytes.
    fn check_space(&mut self, verdict: CallVerdict, taken: usize) -> CallVerdict {
        let (CallVerdict::Go, Fault::Full { bytes }) = (verdict, self.fault) else {
            return verdict;
        };
        self.grown += taken as u64;
        if self.grown <= bytes {
            return verdict;
        }
        self.tally.failed += 1;
        CallVerdict::Full
    }

    fn image(&mut self, file: u64) -> &mut Image {
        self.files.get_mut(&file).expect("a file that is open is known")
    }

    fn sync_folder(&mut self) {
        self.names.values_mut().for_each(|name| name.durable = true);
        for file in std::mem::take(&mut self.removed).into_values() {
            self.files.remove(&file);
        }
    }

    /// The content that survives a power failure.
    fn survivors(&mut self, random: &mut Random) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = std::mem::take(&mut self.files);
        let mut removed = std::mem::take(&mut self.removed);
        let mut paths: Vec<(PathBuf, Option<Name>, Option<u64>)> = Vec::new();
        for (path, name) in std::mem::take(&mut self.names) {
            let old = removed.remove(&path);
            paths.push((path, Some(name), old));
        }
        paths.extend(removed.into_iter().map(|(path, old)| (path, None, Some(old))));
        let mut survivors = Vec::new();
        for (path, name, old) in paths {
            let file = match name {
                Some(Name { file, durable: true }) => Some(file),
                Some(Name { file, durable: false }) => *random.pick(&[Some(file), old, None]),
                None => *random.pick(&[old, None]),
            };
            if let Some(mut image) = file.and_then(|file| files.remove(&file)) {
                image.lose_pending(random);
                survivors.push((path, image.into_durable()));
            }
        }
        survivors
    }
}
