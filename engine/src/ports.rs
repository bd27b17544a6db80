//! The openings to the outside. Time comes in by the [`Clock`] and nowhere else, randomness by
//! [`Entropy`]; a replay takes both from the log. [`Turns`] let somebody else say when each thread goes on.

use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, io};

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

/// Gives the random bytes that events are salted with, and that ids follow from.
pub trait Entropy: Send + Sync + fmt::Debug {
    /// Fills the buffer with unpredictable bytes.
    ///
    /// # Errors
    /// Where there are none. The call that needs them is refused.
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

    /// Called when a thread comes to a named point within a step. A test panics here to show what
    /// such a panic costs.
    fn reach(&self, _: Point) {}

    /// Called when a thread has ended, in order or by a panic, and its waiters are answered.
    fn ended(&self, _: Stage) {}
}

/// A point within a step of a thread, where a test can make it panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// Writer: before it looks up what is due.
    Due,
    /// Writer: before it takes a subscription in.
    Attach,
    /// Writer: the router has the subscription; its caller is not answered yet.
    Attached,
    /// Writer: before it ends a subscription.
    Detach,
    /// Writer: before it takes accumulators in.
    Adopt,
    /// Writer: before it puts a denied attempt on record.
    Denied,
    /// Writer: a transaction is open and nothing is written.
    Begun,
    /// Writer: the calls have run; their rows are in the transaction.
    Ran,
    /// Writer: within the making of deltas, before a statement.
    Delta,
    /// Writer: before COMMIT.
    Commit,
    /// Writer: after COMMIT, before the sync thread has it.
    Committed,
    /// Writer: before it forgets undo images.
    Prune,
    /// Sync: before the WAL is synced.
    Sync,
    /// Sync: the WAL is synced; the durable seq has not moved.
    Synced,
    /// Sync: the durable seq has moved; nothing is answered yet.
    Durable,
    /// Sync: everything is answered; the publisher has nothing yet.
    Answered,
    /// Publisher: before it fills the outboxes.
    Publish,
    /// Publisher: frames are made, and not in their outboxes.
    Frames,
    /// Checkpointer: before it moves the WAL.
    Checkpoint,
    /// Checkpointer: while it holds the writer back.
    Gate,
    /// Reader: between two queries.
    Read,
    /// Reader: within a query, while a state stands still.
    Query,
    /// Reader: within the reading of accumulators.
    Fill,
}

impl Point {
    /// All of them.
    pub const ALL: [Point; 23] = [
        Point::Due,
        Point::Attach,
        Point::Attached,
        Point::Detach,
        Point::Adopt,
        Point::Denied,
        Point::Begun,
        Point::Ran,
        Point::Delta,
        Point::Commit,
        Point::Committed,
        Point::Prune,
        Point::Sync,
        Point::Synced,
        Point::Durable,
        Point::Answered,
        Point::Publish,
        Point::Frames,
        Point::Checkpoint,
        Point::Gate,
        Point::Read,
        Point::Query,
        Point::Fill,
    ];

    /// Whether a panic here costs only the query at hand.
    #[must_use]
    pub fn is_contained(self) -> bool {
        matches!(self, Point::Query | Point::Fill)
    }
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
