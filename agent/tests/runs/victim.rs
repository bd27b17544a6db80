//! Processes that tests kill with SIGKILL: this binary, running one test, which is the work of the process. It dies when
//! its log has reached an event, so a test can kill it at every step of its work.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicUsize};

use abide_client::{Abide, Seq};
use rustix::process::{Signal, getpid, kill_process};

use crate::fixture::{open_ahead, temporary_folder};

/// Environment variables of the process: its folder, and the event at which it dies.
const FOLDER: &str = "ABIDE_VICTIM";
const DIES_AT: &str = "ABIDE_VICTIM_DIES_AT";

/// Victims that run at a time: they also wait for the disk.
const AT_A_TIME: usize = 2;

/// A process that can be killed.
pub(crate) struct Victim {
    test: &'static str,
    variables: Vec<(&'static str, String)>,
}

impl Victim {
    /// A process whose work is a test of this binary, such as `killed::victim`.
    pub(crate) fn new(test: &'static str) -> Victim {
        Victim { test, variables: Vec::new() }
    }

    /// Adds an environment variable.
    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Victim {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// The process, for a folder.
    pub(crate) fn command(&self, folder: &Path, dies_at: Option<i64>) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("it has a path"));
        command.args(["--ignored", "--exact", self.test]).env(FOLDER, folder).env_remove(DIES_AT);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.envs(dies_at.map(|seq| (DIES_AT, seq.to_string())));
        command
    }

    /// Runs the process. Returns whether it has finished its work; otherwise it was killed.
    pub(crate) fn finishes(&self, folder: &Path, dies_at: Option<i64>) -> bool {
        let output = self.command(folder, dies_at).output().expect("it starts");
        let killed = output.status.code().is_none();
        assert!(
            output.status.success() || killed,
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        !killed
    }

    /// Kills the process at each event from one on, in a copy of a folder, and lets the next process finish there. `check`
    /// gets the folder and the event. Returns the number of kills.
    pub(crate) fn kill_at_each(
        &self,
        origin: &Path,
        from: i64,
        check: impl Fn(&Path, i64) + Sync,
    ) -> usize {
        let next = AtomicI64::new(from);
        let killed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            (0..AT_A_TIME).for_each(|_| {
                drop(scope.spawn(|| {
                    while self.kill_at(origin, next.fetch_add(1, Relaxed), &check) {
                        killed.fetch_add(1, Relaxed);
                    }
                }))
            })
        });
        killed.into_inner()
    }

    /// Kills the process at one event. Returns whether the process was killed; otherwise it had finished before.
    pub(crate) fn kill_at(&self, origin: &Path, seq: i64, check: impl Fn(&Path, i64)) -> bool {
        let folder = temporary_folder();
        copy(origin, folder.path());
        if self.finishes(folder.path(), Some(seq)) {
            return false;
        }
        assert!(self.finishes(folder.path(), None), "not resumed after a kill at {seq}");
        check(folder.path(), seq);
        true
    }
}

/// Copies the content of a folder.
pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("it has a type").is_dir() {
            std::fs::create_dir_all(&target).expect("the folder can be created");
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("the file can be copied");
        }
    }
}

/// The folder of this process, which is a victim.
pub(crate) fn folder() -> PathBuf {
    std::env::var_os(FOLDER).map(PathBuf::from).expect("another test starts it")
}

/// Does the work of a victim.
pub(crate) fn work(work: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(work);
}

/// Opens the file of a victim, which dies when the log has reached its event. A process that is not killed may follow one
/// that was.
pub(crate) fn open(folder: &Path) -> Abide {
    let dies_at: Option<i64> =
        std::env::var(DIES_AT).ok().map(|seq| seq.parse().expect("a seq is a number"));
    let follows = dies_at.is_none() && folder.join("abide.db").exists();
    let abide = open_ahead(folder, follows);
    if let Some(seq) = dies_at {
        die_at(&abide, seq);
    }
    abide
}

/// Kills this process when an event of a file is durable. A thread waits for it, because no task may delay the kill.
pub(crate) fn die_at(abide: &Abide, seq: i64) {
    let engine = abide.engine().expect("it is embedded").clone();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    std::thread::spawn(move || {
        // Fails if the work has ended before.
        if runtime.block_on(engine.until_durable(Seq(seq))).is_ok() {
            let killed = kill_process(getpid(), Signal::KILL);
            unreachable!("the process survived the kill: {killed:?}");
        }
    });
}

/// The last event of a file that no process has open.
pub(crate) fn last_event(folder: &Path) -> i64 {
    read(folder, async |abide| {
        let last: Vec<(i64,)> =
            abide.sql("SELECT max(seq) FROM events").fetch().await.expect("it is read");
        last[0].0
    })
}

/// Queries the file of a folder that no process has open.
pub(crate) fn read<T>(folder: &Path, query: impl AsyncFnOnce(&Abide) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let abide = Abide::open(folder.join("abide.db")).expect("the file opens");
        let result = query(&abide).await;
        abide.close().await;
        result
    })
}
