//! The machine: names and images of files, the steps that are counted, and the fault that is to come.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, fs, io};

use super::image::{Image, Op};
use crate::random::Random;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Opening a file, which may make it.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making shorter.
    Truncate,
    /// Making durable, by SQLite or by the engine.
    Sync,
    /// Removing a file.
    Delete,
    /// Taking a lock, on the file or on the WAL index.
    Lock,
    /// Making the WAL index longer.
    Extend,
}

impl Kind {
    /// All of them.
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

    /// Whether a crash before it differs from a crash before the call that follows.
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

/// What is to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The power fails in this step, counted from 1 over all that changes the disk.
    Crash {
        /// The step.
        step: u64,
    },
    /// A call fails.
    Fail {
        /// Of which kind.
        kind: Kind,
        /// Which of them, from 1.
        nth: u64,
        /// Whether all that follow fail too.
        lasting: bool,
    },
    /// There is room for so many more bytes.
    Full {
        /// How many.
        bytes: u64,
    },
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Steps that change the disk.
    pub steps: u64,
    /// Calls by kind, as [`Kind::ALL`] has them.
    pub calls: [u64; 8],
    /// Calls that were made to fail.
    pub failed: u64,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is done.
    Go,
    /// It fails; the machine runs on.
    Fail,
    /// There is no room for it.
    Full,
    /// The power fails in it.
    Crash,
    /// There is no power.
    Down,
}

/// What became of a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Synced {
    /// Everything is durable.
    Done,
    /// It failed.
    Failed,
    /// It failed, and what the file shows from now on is this.
    Forgotten(Vec<u8>),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
struct Name {
    file: u64,
    durable: bool,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    down: bool,
    tally: Tally,
    grown: u64,
    random: Random,
    files: BTreeMap<u64, Image>,
    names: BTreeMap<PathBuf, Name>,
    /// What was removed, while the folder does not know it durably.
    removed: BTreeMap<PathBuf, u64>,
    last_file: u64,
    handles: u64,
}

/// See the [module](super).
#[derive(Debug)]
pub struct Machine(Mutex<State>);

impl Machine {
    /// A machine that goes wrong in this way; the seed decides what is lost by it.
    #[must_use]
    pub fn new(fault: Fault, seed: u64) -> Machine {
        Machine(Mutex::new(State {
            fault,
            down: false,
            tally: Tally::default(),
            grown: 0,
            random: Random::new(seed),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            removed: BTreeMap::new(),
            last_file: 0,
            handles: 0,
        }))
    }

    /// Learns what is in a folder, all of it durable.
    ///
    /// # Errors
    /// The system's.
    pub fn take_in(&self, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.to_string_lossy();
            // The lock is the system's, and so is the WAL index, which does not outlive it.
            if !name.ends_with("-lock") && !name.ends_with("-shm") {
                let content = fs::read(&path)?;
                self.opened(&path, || Some(content));
            }
        }
        Ok(())
    }

    /// Changes what is to go wrong. Calls and steps are counted on.
    pub fn plan(&self, fault: Fault) {
        self.lock().fault = fault;
    }

    /// What was counted so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.lock().tally.clone()
    }

    /// Whether the power has failed.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.lock().down
    }

    /// Takes the power away now.
    pub fn cut_power(&self) {
        self.lock().down = true;
    }

    /// How many handles SQLite has on files of the folder.
    #[must_use]
    pub fn handles(&self) -> u64 {
        self.lock().handles
    }

    /// Whether anything was made to fail.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let state = self.lock();
        state.down || state.tally.failed > 0
    }

    /// Another process begins, on a system that never lost its power. Calls are counted from 1 again.
    pub fn revive(&self, fault: Fault) {
        let mut state = self.lock();
        (state.down, state.fault, state.grown, state.tally) = (false, fault, 0, Tally::default());
    }

    /// Takes the power away, and puts what is there afterwards into another folder.
    ///
    /// # Errors
    /// The system's.
    pub fn restart(&self, into: &Path, seed: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.down = true;
        for (name, bytes) in state.survivors(&mut Random::new(seed)) {
            let name = name.file_name().expect("a file has a name");
            fs::write(into.join(name), bytes)?;
        }
        Ok(())
    }

    /// The file that has a name at the moment.
    pub(super) fn find(&self, path: &Path) -> Option<u64> {
        self.lock().names.get(path).map(|name| name.file)
    }

    /// Counts a call and says what becomes of it.
    pub(super) fn call(&self, kind: Kind) -> Verdict {
        self.lock().call(kind)
    }

    /// Notes a file that was opened; of one that is new to the machine `content` tells what is in it,
    /// or that it was made just now.
    pub(super) fn opened(&self, path: &Path, content: impl FnOnce() -> Option<Vec<u8>>) -> u64 {
        let mut state = self.lock();
        if let Some(name) = state.names.get(path) {
            return name.file;
        }
        state.last_file += 1;
        let (file, content) = (state.last_file, content());
        let durable = content.is_some();
        state.files.insert(file, Image::of(content.unwrap_or_default()));
        state.names.insert(path.to_owned(), Name { file, durable });
        file
    }

    /// Notes that a handle was made.
    pub(super) fn handle_made(&self) {
        self.lock().handles += 1;
    }

    /// Notes that a handle was given back.
    pub(super) fn handle_closed(&self) {
        self.lock().handles -= 1;
    }

    /// Notes a write, or as much of it as is done, and says what becomes of it.
    pub(super) fn write(&self, file: u64, offset: usize, data: &[u8]) -> (Verdict, usize) {
        let mut state = self.lock();
        let verdict = state.call(Kind::Write);
        let verdict = state.fit(verdict, data.len());
        let done = match verdict {
            // The step in which the power fails may be on the disk, or a part of it.
            Verdict::Go | Verdict::Crash => data.len(),
            Verdict::Fail => data.len() / 2,
            Verdict::Full | Verdict::Down => 0,
        };
        if done > 0 {
            let op = Op::Write { offset, data: data[..done].to_vec() };
            state.image(file).note(op);
        }
        (verdict, done)
    }

    /// Counts the WAL index growing by so many bytes, and says what becomes of it. It is not durable, and
    /// no image of it is kept.
    pub(super) fn extend(&self, bytes: usize) -> Verdict {
        let mut state = self.lock();
        let verdict = state.call(Kind::Extend);
        state.fit(verdict, bytes)
    }

    /// Notes a truncation, and says what becomes of it.
    pub(super) fn truncate(&self, file: u64, bytes: usize) -> Verdict {
        let mut state = self.lock();
        let verdict = state.call(Kind::Truncate);
        if matches!(verdict, Verdict::Go | Verdict::Crash) {
            state.image(file).note(Op::Truncate { bytes });
        }
        verdict
    }

    /// Makes a file durable by a handle on it that has heard of so many failures.
    pub(super) fn sync(&self, file: u64, heard: &mut u64) -> Synced {
        let mut state = self.lock();
        let verdict = state.call(Kind::Sync);
        let State { files, random, .. } = &mut *state;
        let image = files.get_mut(&file);
        let (Some(image), Verdict::Go | Verdict::Fail | Verdict::Full) = (image, verdict) else {
            return if verdict == Verdict::Go { Synced::Done } else { Synced::Failed };
        };
        if verdict != Verdict::Go {
            image.failures += 1;
            image.lose(random);
            *heard = image.failures;
            // The pages are clean now, and may go from memory at any time: then what is read again is
            // what is on the disk.
            let forgets = random.one_in(2);
            return if forgets { Synced::Forgotten(image.durable()) } else { Synced::Failed };
        }
        // A failure is told once to each handle that was open when it happened, whoever's sync it was.
        if *heard < image.failures {
            *heard = image.failures;
            return Synced::Failed;
        }
        image.sync();
        Synced::Done
    }

    /// How many failures a handle that is opened now has missed.
    pub(super) fn failures(&self, file: u64) -> u64 {
        self.lock().files.get(&file).map_or(0, |image| image.failures)
    }

    /// Makes names durable, and removals.
    pub(super) fn sync_folder(&self) {
        self.lock().sync_folder();
    }

    /// Notes a removal.
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
    fn call(&mut self, kind: Kind) -> Verdict {
        if self.down {
            return Verdict::Down;
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
                Verdict::Crash
            }
            Fault::Fail { kind: failing, nth, lasting }
                if failing == kind && (calls == nth || (lasting && calls > nth)) =>
            {
                self.tally.failed += 1;
                Verdict::Fail
            }
            _ => Verdict::Go,
        }
    }

    /// A call that is to be done takes so many bytes: there is room for them, or it is not.
    fn fit(&mut self, verdict: Verdict, taken: usize) -> Verdict {
        let (Verdict::Go, Fault::Full { bytes }) = (verdict, self.fault) else { return verdict };
        self.grown += taken as u64;
        if self.grown <= bytes {
            return verdict;
        }
        self.tally.failed += 1;
        Verdict::Full
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

    /// What is there after the power has failed.
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
                image.lose(random);
                survivors.push((path, image.into_durable()));
            }
        }
        survivors
    }
}
