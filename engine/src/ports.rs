//! The openings to the outside. Time comes in by the [`Clock`] and nowhere else; randomness a reducer
//! draws from the log itself. [`Turns`] let somebody else say when each thread goes on.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use abide_schema::Micros;

/// Tells the time that events bear.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Now. The engine itself sees to it that events never run backwards.
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

/// A thread of the engine that works through what waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Takes what waits into one transaction.
    Writer,
    /// Makes durable what is committed, and answers.
    Sync,
    /// Fills the outboxes.
    Publish,
    /// Moves the WAL into the file.
    Checkpoint,
    /// Reads, this one of several.
    Reader(usize),
}

/// Says when each thread takes its next step, for a simulator that runs the engine step by step: the
/// same choices then give the same run.
pub trait Turns: Send + Sync + fmt::Debug {
    /// Returns when the thread may take what waits for it, and do it. False where nobody directs it
    /// any more.
    fn wait(&self, stage: Stage) -> bool;
}

/// Every thread goes on when it likes.
#[derive(Debug)]
pub struct FreeTurns;

impl Turns for FreeTurns {
    fn wait(&self, _: Stage) -> bool {
        false
    }
}

/// How much waits for each thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Calls and subscriptions, for the writer.
    pub jobs: usize,
    /// Commits, for the sync.
    pub commits: usize,
    /// Durable commits, for the publisher.
    pub publications: usize,
    /// Queries, for the readers.
    pub reads: usize,
}
