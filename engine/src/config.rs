//! Configuration of an engine.

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
    /// Maximum number of due rows of one kind and one tenant in memory.
    pub due_of_a_tenant: usize,
    /// Schedules each thread's steps; by default unrestricted.
    pub scheduler: Arc<dyn StepScheduler>,
}

impl Config {
    /// These modules, the machine's clock, the default tuning.
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
        let clock = Arc::new(SystemClock);
        let tuning = Tuning::default();
        let retention = Retention::default();
        let entropy = Arc::new(SystemEntropy);
        let scheduler = Arc::new(FreeRunning);
        let buffers = BufferLimits::default();
        let timers = true;
        let due_of_a_tenant = limits::DUE_OF_A_TENANT;
        Config {
            modules,
            clock,
            entropy,
            tuning,
            live_budget,
            retention,
            buffers,
            timers,
            due_of_a_tenant,
            scheduler,
        }
    }
}
