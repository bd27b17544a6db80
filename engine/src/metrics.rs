//! What the engine counts while it runs. Read by `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        /// Counters since the engine was opened, and a few gauges.
        #[derive(Debug, Default)]
        pub struct Metrics { $($(#[doc = $doc])+ pub $name: Counter,)+ }

        impl Metrics {
            /// Each counter: name, meaning, value.
            #[must_use]
            pub fn read(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$({
                    let meaning = concat!($($doc),+).trim_ascii_start();
                    (stringify!($name), meaning, self.$name.get())
                }),+]
            }
        }
    };
}

counters! {
    /// Calls that were run to a result.
    calls_total;
    /// Calls that were refused.
    refusals_total;
    /// Calls answered from an earlier one.
    duplicates_total;
    /// Calls that time made: timers, leases that ran out, deadlines.
    due_total;
    /// Transactions committed.
    commits_total;
    /// Transactions run a second time because a refused call had already written.
    careful_reruns_total;
    /// Syncs of the WAL.
    syncs_total;
    /// Microseconds spent in syncs of the WAL.
    sync_us_total;
    /// Checkpoints run.
    checkpoints_total;
    /// Queries answered.
    queries_total;
    /// Subscriptions made.
    subscriptions_total;
    /// Deltas made, before they are shared among subscribers.
    deltas_total;
    /// Deltas handed to subscribers.
    deliveries_total;
    /// Times a slow client's queue was dropped, to be caught up from its seq.
    lags_total;
    /// Rows looked at by the router of live queries.
    live_rows_routed;
    /// Live bindings that the router asked about a change.
    live_bindings_probed;
    /// SQL statements run for live queries within commits.
    live_statements_run;
    /// Steps of SQLite's virtual machine that these took.
    live_steps_run;
    /// Bytes remembered of live results.
    live_state_bytes;
    /// Live bindings that are asked about every change of some table.
    live_residual_bindings;
    /// Live queries run again as a whole, by a reader, because their deltas cost too much.
    live_reruns_total;
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets, for what is counted elsewhere.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Reads.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
