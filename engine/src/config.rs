//! Configuration of an engine. Limits that no program can change are in [`abide_schema::limits`].

use std::sync::Arc;
use std::time::Duration;

use abide_live::Budget;
use abide_schema::{Module, limits};
use abide_store::Tuning;

use crate::commit::retention::Retention;
use crate::ports::{Clock, Entropy, FreeRunning, StepScheduler, SystemClock, SystemEntropy};
use crate::subscriptions::buffers::BufferLimits;

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Tables and reducers: built-in and custom modules alike.
    pub modules: Vec<Module>,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// The source of event salts, from which generated ids are derived.
    pub entropy: Arc<dyn Entropy>,
    /// SQLite settings.
    pub tuning: Tuning,
    /// The cost budget for the delta of one live query in a commit. A reader runs more expensive queries
    /// again instead.
    pub live_budget: Budget,
    /// How long the change log is kept: the limit for resumes and queries on the past.
    pub retention: Retention,
    /// Limits of memory buffered for clients.
    pub buffers: BufferLimits,
    /// Whether deadlines run: timers fire, leases expire. Off for tools that only inspect a file.
    pub timers: bool,
    /// For how long after the start the time in which no process had the file open does not count for leases: their holders
    /// could not renew them. A lease that had ten seconds left at the last event then has ten seconds after the start. By
    /// default zero: leases expire by the clock alone.
    pub lease_grace: Duration,
    /// Maximum number of due rows of one kind and one tenant in memory.
    pub due_of_a_tenant: usize,
    /// Schedules each thread's steps; by default unrestricted.
    pub scheduler: Arc<dyn StepScheduler>,
}

impl Config {
    /// Creates a configuration with these modules, the clock of the machine, and the default tuning.
    #[must_use]
    pub fn new(modules: Vec<Module>) -> Config {
        let live_budget = Budget {
            average: limits::LIVE_DELTA_STEPS,
            max: limits::LIVE_DELTA_MOST_STEPS,
            commit: limits::LIVE_COMMIT_STEPS,
            statement: limits::LIVE_STATEMENT_STEPS,
            time: Duration::from_millis(limits::LIVE_DELTA_MS),
            commit_time: Duration::from_millis(limits::LIVE_COMMIT_MS),
            fill_time: Duration::from_millis(limits::LIVE_FILL_MS),
        };
        Config {
            modules,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            tuning: Tuning::default(),
            live_budget,
            retention: Retention::default(),
            buffers: BufferLimits::default(),
            timers: true,
            lease_grace: Duration::ZERO,
            due_of_a_tenant: limits::DUE_OF_A_TENANT,
            scheduler: Arc::new(FreeRunning),
        }
    }
}
