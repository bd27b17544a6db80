//! One engine on one machine, run step by step, with a clock that stands still until it is moved.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use abide_engine::{
    Clock, Config, Engine, Entropy, Layout, OpenError, Retention, Stage, Tuning, sqlite_version,
};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Micros, Refusal, Seq, limits};
use abide_store::Store;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::checks::sight;
use crate::director::Director;
use crate::disk::{FaultyDisk, Machine};

/// When every run begins: 2026-11-21T14:00:00Z.
pub const START: Micros = Micros(1_795_269_600_000_000);

/// The threads of an engine: writer, sync, publisher, checkpointer and readers.
const THREADS: usize = 4 + limits::READERS;

/// Every log's id: hashes follow from it.
const LOG_ID: &str = "simulated";

/// A clock that is moved by hand, in either direction. It also gives the run its entropy: the same bytes in
/// every run, and never the same twice in one run, over all lives of its engine.
#[derive(Debug)]
pub struct VirtualClock {
    now: AtomicI64,
    draws: AtomicU64,
}

impl VirtualClock {
    /// One that shows [`START`].
    #[must_use]
    pub fn new() -> Arc<VirtualClock> {
        Arc::new(VirtualClock { now: AtomicI64::new(START.0), draws: AtomicU64::new(0) })
    }

    /// Moves it.
    pub fn advance_ms(&self, ms: i64) {
        self.now.fetch_add(ms * 1000, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        Micros(self.now.load(Ordering::Relaxed))
    }
}

impl Entropy for VirtualClock {
    fn fill(&self, buffer: &mut [u8]) -> io::Result<()> {
        for block in buffer.chunks_mut(32) {
            let drawn = self.draws.fetch_add(1, Ordering::Relaxed);
            let bytes: [u8; 32] = Sha256::digest(drawn.to_be_bytes()).into();
            block.copy_from_slice(&bytes[..block.len()]);
        }
        Ok(())
    }
}

/// What is asked of the engine: a call, or several in a batch.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Who asks.
    pub caller: &'static str,
    /// One, or a batch.
    pub calls: Vec<BatchCall>,
    /// By which it can be asked again.
    pub request_id: String,
}

/// What was answered: of each call its seq and result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// In the order of the calls.
    pub results: Vec<(Seq, String)>,
    /// Whether it had been done before.
    pub duplicate: bool,
}

impl Ask {
    /// Asks it.
    ///
    /// # Errors
    /// The engine's.
    pub async fn put(&self, engine: &Engine) -> Result<Told, Refusal> {
        let (caller, id) = (caller(self.caller), Some(self.request_id.as_str()));
        if let [call] = self.calls.as_slice() {
            let done = engine.call(&caller, &call.reducer, &call.args, id).await?;
            let results = vec![(done.seq, done.result)];
            return Ok(Told { results, duplicate: done.duplicate });
        }
        let done = engine.batch(&caller, &self.calls, id).await?;
        let results = done.results.into_iter().map(|done| (done.seq, done.result));
        Ok(Told { results: results.collect(), duplicate: done.duplicate })
    }
}

/// A caller who may only look.
pub const STRANGER: &str = "stranger";

/// Who somebody is: a tenant's, the stranger, or somebody whom nothing bounds.
#[must_use]
pub fn caller(name: &str) -> Caller {
    if let Some(tenant) = sight::tenant(name) {
        return sight::caller(tenant);
    }
    match name {
        STRANGER => Caller::with(name, "auditor", BTreeSet::new(), BTreeMap::new()),
        name => Caller::new(name),
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Rig {
    /// Its clock.
    pub clock: Arc<VirtualClock>,
    /// Its threads.
    pub director: Arc<Director>,
    /// Where the file lies.
    pub path: PathBuf,
    engine: Option<Engine>,
}

impl Rig {
    /// Opens a folder's file on a machine, making it where there is none.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// The folder cannot be read.
    pub fn open(
        folder: &Path,
        machine: &Arc<Machine>,
        clock: &Arc<VirtualClock>,
    ) -> Result<Rig, OpenError> {
        Rig::open_with(folder, machine, clock, |_| {})
    }

    /// The same, with some of its configuration changed.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// The folder cannot be read.
    pub fn open_with(
        folder: &Path,
        machine: &Arc<Machine>,
        clock: &Arc<VirtualClock>,
        configure: impl FnOnce(&mut Config),
    ) -> Result<Rig, OpenError> {
        let mut config = Config::new(abide_reducers::modules());
        config.clock = Arc::clone(clock) as Arc<dyn Clock>;
        config.entropy = Arc::clone(clock) as Arc<dyn Entropy>;
        // Small, so that a short run meets checkpoints, a WAL that starts over, and pruning.
        config.retention = Retention { events: Some(64), age: None };
        config.tuning = Tuning {
            checkpoint_bytes: 96 << 10,
            disk: FaultyDisk::new(machine),
            ..Tuning::default()
        };
        machine.take_in(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
        let path = folder.join("abide.db");
        if !path.exists() {
            let layout = Layout { modules: config.modules.clone() };
            drop(Store::open_as(&path, layout, config.tuning.clone(), Some(LOG_ID))?);
        }
        let director = Arc::new(Director::default());
        config.turns = Arc::clone(&director) as _;
        configure(&mut config);
        let engine = Engine::open(&path, config)?;
        director.gather(THREADS);
        Ok(Rig { clock: Arc::clone(clock), director, path, engine: Some(engine) })
    }

    /// The engine.
    ///
    /// # Panics
    /// It is closed.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the engine is open")
    }

    /// Lets the engine do all that waits, in the order in which it comes.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Lets one thread do what waits for it; false where nothing waits.
    pub fn step(&self) -> bool {
        let waiting = self.engine().waiting();
        // From the end to the beginning: a thread whose successor's queue is full would stand still.
        let stage = if waiting.publications > 0 {
            Stage::Publish
        } else if waiting.commits > 0 {
            Stage::Sync
        } else if waiting.jobs > 0 {
            Stage::Writer
        } else if waiting.reads > 0 {
            Stage::Reader(0)
        } else {
            return false;
        };
        self.director.step(stage);
        true
    }

    /// Runs a future to its end, and the engine as it needs it.
    ///
    /// # Panics
    /// It waits for something that does not come.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            assert!(self.step(), "the engine is at rest, and its answer has not come");
        }
    }

    /// Puts several asks at once, so that they share a transaction; the answers in their order.
    pub fn put_together(&self, asks: &[Ask]) -> Vec<Result<Told, Refusal>> {
        let engine = self.engine();
        let mut futures: Vec<_> = asks.iter().map(|ask| Box::pin(ask.put(engine))).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut answers: Vec<Option<Result<Told, Refusal>>> = Vec::new();
        for future in &mut futures {
            answers.push(match future.as_mut().poll(&mut context) {
                Poll::Ready(answer) => Some(answer),
                // Handed to the writer, which has not been let go yet.
                Poll::Pending => None,
            });
        }
        self.settle();
        let both = answers.into_iter().zip(futures);
        both.map(|(answer, future)| answer.unwrap_or_else(|| self.run(future))).collect()
    }

    /// Lets the checkpointer look, and move what there is to move.
    pub fn checkpoint(&self) {
        self.director.step(Stage::Checkpoint);
    }

    /// Moves the clock, and lets time do what is due by then.
    ///
    /// # Errors
    /// The engine's.
    pub fn pass_ms(&self, ms: i64) -> Result<(), Refusal> {
        self.clock.advance_ms(ms);
        loop {
            let before = self.engine().durable_seq();
            self.run(self.engine().fire_due())?;
            if self.engine().durable_seq() == before {
                return Ok(());
            }
        }
    }

    /// Stops in good order.
    pub fn close(mut self) {
        self.director.free();
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
    }
}

impl Drop for Rig {
    /// Goes without a word, as a killed process does.
    fn drop(&mut self) {
        self.director.free();
    }
}

/// A folder in memory where there is one: a sync costs nothing there, and what is durable is the
/// machine's to say.
///
/// # Panics
/// The system has no room for it.
#[must_use]
pub fn folder() -> TempDir {
    let memory = "/dev/shm";
    let room = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    let made = if room > 1 << 30 { TempDir::new_in(memory) } else { TempDir::new() };
    made.unwrap_or_else(|why| panic!("no folder for SQLite {}: {why}", sqlite_version()))
}
