//! Interfaces to the environment. Time comes only from the [`Clock`], randomness only from
//! [`Entropy`]; a replay takes both from the log. A [`StepScheduler`] lets a test schedule the threads.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use abide_schema::Micros;

use crate::fault_points::FaultPoint;

/// The time source for events.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the current time. The engine ensures that event times never decrease.
    fn now(&self) -> Micros;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
    }
}

/// The source of event salts, from which generated ids are derived.
pub trait Entropy: Send + Sync + fmt::Debug {
    /// Fills the buffer with unpredictable bytes.
    ///
    /// # Errors
    /// If no random bytes are available. The call that needs them is refused.
    fn fill(&self, buffer: &mut [u8]) -> io::Result<()>;
}

/// The operating system's random number generator.
#[derive(Debug)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, buffer: &mut [u8]) -> io::Result<()> {
        getrandom::fill(buffer).map_err(io::Error::other)
    }
}

/// Where events take their times and salts from.
#[derive(Clone, Debug)]
pub(crate) struct EventSources {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

/// A thread of the engine that processes a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineThread {
    /// Runs queued calls in one transaction.
    Writer,
    /// Makes commits durable, and answers.
    Sync,
    /// Fills the outboxes.
    Publish,
    /// Checkpoints the WAL into the file.
    Checkpoint,
    /// Runs queries; one of several.
    Reader(usize),
}

/// Schedules the steps of each thread, for a simulator that runs the engine step by step: the
/// same choices give the same run.
pub trait StepScheduler: Send + Sync + fmt::Debug {
    /// Returns when the thread may process its queue: `true` if this step was scheduled, `false` if the thread runs
    /// freely. A thread that runs freely waits for its queue and its times.
    fn wait(&self, stage: EngineThread) -> bool;

    /// Called when a thread reaches a named point within a step. A test panics here to test the
    /// consequences.
    fn at_fault_point(&self, _: FaultPoint) {}

    /// Called when a thread has ended, normally or by a panic, and its waiters have replies.
    fn ended(&self, _: EngineThread) {}
}

/// No scheduling: every thread runs freely.
#[derive(Debug)]
pub struct FreeRunning;

impl StepScheduler for FreeRunning {
    fn wait(&self, _: EngineThread) -> bool {
        false
    }
}

/// Queue lengths of the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Calls and subscriptions, for the writer.
    pub jobs: usize,
    /// Commits, for the sync.
    pub commits: usize,
    /// Durable commits, for the publisher.
    pub publications: usize,
    /// Queries, for the readers.
    pub reads: usize,
}
