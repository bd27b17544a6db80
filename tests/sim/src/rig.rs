//! One engine on one machine, run step by step, with a virtual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use abide_engine::{
    Clock, Config, Engine, EngineThread, Entropy, Layout, OpenError, Retention, Tuning,
    sqlite_version,
};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Micros, Refusal, Seq, limits};
use abide_store::Store;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::checks::visibility;
use crate::director::Director;
use crate::disk::{FaultyDisk, Machine};

/// The start time of every run: 2026-11-21T14:00:00Z.
pub const START: Micros = Micros(1_795_269_600_000_000);

/// The threads of an engine: writer, sync, publisher, checkpointer and readers.
const THREADS: usize = 4 + limits::READERS;

/// Every log's id, which hashes depend on.
const LOG_ID: &str = "simulated";

/// A clock that is moved by hand in either direction. It also provides the entropy: the same bytes
/// in every run, and never the same twice within one run, across all restarts of the engine.
#[derive(Debug)]
pub struct VirtualClock {
    now: AtomicI64,
    draws: AtomicU64,
}

impl VirtualClock {
    /// A clock at [`START`].
    #[must_use]
    pub fn new() -> Arc<VirtualClock> {
        Arc::new(VirtualClock { now: AtomicI64::new(START.0), draws: AtomicU64::new(0) })
    }

    /// Moves the clock.
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

/// A request: a call or a batch.
#[derive(Clone, Debug)]
pub struct SimRequest {
    /// The caller.
    pub caller: &'static str,
    /// One call or a batch.
    pub calls: Vec<BatchCall>,
    /// The request id for retries.
    pub request_id: String,
}

/// The response: the seq and the result of each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimReply {
    /// In the order of the calls.
    pub results: Vec<(Seq, String)>,
    /// Whether it is the response to a retry.
    pub duplicate: bool,
}

impl SimRequest {
    /// Sends the request.
    ///
    /// # Errors
    /// The engine's refusal.
    pub async fn send(&self, engine: &Engine) -> Result<SimReply, Refusal> {
        let caller = caller(self.caller);
        let id = Some(self.request_id.as_str());
        if let [call] = self.calls.as_slice() {
            let done = engine.call(&caller, &call.reducer, &call.args, id).await?;
            let results = vec![(done.seq, done.result)];
            return Ok(SimReply { results, duplicate: done.duplicate });
        }
        let done = engine.batch(&caller, &self.calls, id).await?;
        let results = done.results.into_iter().map(|done| (done.seq, done.result));
        Ok(SimReply { results: results.collect(), duplicate: done.duplicate })
    }
}

/// A caller that may only read.
pub const STRANGER: &str = "stranger";

/// The caller of a name: a tenant's caller, the stranger, or an unrestricted one.
#[must_use]
pub fn caller(name: &str) -> Caller {
    if let Some(tenant) = visibility::tenant(name) {
        return visibility::caller(tenant);
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
    /// The path of the file.
    pub path: PathBuf,
    engine: Option<Engine>,
}

impl Rig {
    /// Opens a folder's file on a machine, or creates it.
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

    /// Opens a folder's file with a modified configuration, or creates it.
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
        // Small values, so that a short run includes checkpoints, WAL resets and pruning.
        config.retention = Retention { events: Some(64), age: None };
        config.tuning = Tuning {
            checkpoint_bytes: 48 << 10,
            segment_bytes: 16 << 10,
            disk: FaultyDisk::new(machine),
            ..Tuning::default()
        };
        machine.take_in(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
        let path = folder.join("abide.db");
        if !path.exists() {
            let layout = Layout { modules: config.modules.clone() };
            drop(Store::open_as(&path, layout, config.tuning.clone(), Some(LOG_ID))?);
        }
        // Messages name the timeline, and a seed must produce the same messages.
        let mut timeline = [0; 8];
        clock.fill(&mut timeline).expect("the simulated source of entropy does not fail");
        config.tuning.timeline = Some(format!("{:016x}", u64::from_be_bytes(timeline)));
        let director = Arc::new(Director::default());
        config.scheduler = Arc::clone(&director) as _;
        configure(&mut config);
        let engine = Engine::open(&path, config)?;
        director.wait_for_threads(THREADS);
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

    /// Lets the engine process all pending work, in order.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Lets one thread process one item; returns false if nothing is pending.
    pub fn step(&self) -> bool {
        let waiting = self.engine().waiting();
        // From the end of the pipeline to its start: a thread whose successor's queue is full would
        // block.
        let stage = if waiting.publications > 0 {
            EngineThread::Publish
        } else if waiting.commits > 0 {
            EngineThread::Sync
        } else if waiting.jobs > 0 {
            EngineThread::Writer
        } else if waiting.reads > 0 {
            EngineThread::Reader(0)
        } else {
            return false;
        };
        self.director.step(stage);
        true
    }

    /// Runs a future to its end, stepping the engine as needed.
    ///
    /// # Panics
    /// The future waits for something that never happens.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut idle_at = None;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            if self.step() {
                continue;
            }
            // The answer may wait for work that goes on in due rows, or that a fault has ended.
            let state = (self.engine().durable_seq(), self.engine().ready().is_err());
            assert!(idle_at != Some(state), "the engine is idle, but the response is missing");
            idle_at = Some(state);
            if state.1 {
                self.director.step(EngineThread::Writer);
            } else {
                let mut due = pin!(self.engine().fire_due());
                while due.as_mut().poll(&mut context).is_pending() && self.step() {}
            }
        }
    }

    /// Sends several requests at once, so that they share a transaction; returns the responses in
    /// order.
    pub fn put_together(&self, asks: &[SimRequest]) -> Vec<Result<SimReply, Refusal>> {
        let engine = self.engine();
        let mut futures: Vec<_> = asks.iter().map(|ask| Box::pin(ask.send(engine))).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut answers: Vec<Option<Result<SimReply, Refusal>>> = Vec::new();
        for future in &mut futures {
            answers.push(match future.as_mut().poll(&mut context) {
                Poll::Ready(answer) => Some(answer),
                // Queued for the writer, which has not been stepped yet.
                Poll::Pending => None,
            });
        }
        self.settle();
        let both = answers.into_iter().zip(futures);
        both.map(|(answer, future)| answer.unwrap_or_else(|| self.run(future))).collect()
    }

    /// Lets SQLite commit all answered calls, as any reader does.
    ///
    /// # Errors
    /// The engine's refusal.
    pub fn commit_rows(&self) -> Result<(), Refusal> {
        let engine = self.engine();
        let params = serde_json::Map::new();
        self.run(engine.query(&Caller::local(), "SELECT 1", &params, None)).map(drop)
    }

    /// Lets the checkpointer run once.
    pub fn checkpoint(&self) {
        self.director.step(EngineThread::Checkpoint);
    }

    /// Moves the clock and processes what is due.
    ///
    /// # Errors
    /// The engine's refusal.
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

    /// Closes the engine cleanly.
    pub fn close(mut self) {
        self.director.free();
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
    }
}

impl Drop for Rig {
    /// Drops the engine like a killed process.
    fn drop(&mut self) {
        self.director.free();
    }
}

/// A folder in memory if there is one: a sync is free there, and the machine defines what is
/// durable.
///
/// # Panics
/// The system has no space for it.
#[must_use]
pub fn folder() -> TempDir {
    let memory = "/dev/shm";
    let room = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    let made = if room > 1 << 30 { TempDir::new_in(memory) } else { TempDir::new() };
    made.unwrap_or_else(|why| panic!("no folder for SQLite {}: {why}", sqlite_version()))
}
