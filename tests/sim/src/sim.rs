//! The simulator: apps, workers, supervisors, auditors and subscribers over the real engine and the
//! real messages, with a network that loses, duplicates, delays and reorders, slow readers, clock
//! jumps, crashes, and a faulty disk.
//!
//! A seed determines everything. A run is a sequence of actions: a thread of the engine performs
//! one step, a message arrives, a client sends a request, the clock moves, the power fails. The
//! engine's threads are real; a [`Director`](crate::director::Director) lets one run at a time. So
//! the same seed gives the same trace, whose hash [`run`] returns.
//!
//! `session` the server's side of a connection · `exchange` a request in flight · `clients` the callers
//! · `watcher` the subscribers · `world` the state and its actions.

mod clients;
mod exchange;
mod session;
mod watcher;
mod world;

use sha2::{Digest as _, Sha256};

use crate::checks::Finding;

/// The length of a run, in actions.
pub const ACTIONS: usize = 1_500;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The hash of all events in order.
    pub trace: String,
    /// The last event.
    pub events: i64,
    /// Acknowledged calls.
    pub acknowledged: usize,
    /// Crashes and kills.
    pub crashes: u32,
    /// Lost messages.
    pub lost: u32,
    /// Deltas applied by subscribers.
    pub deltas: u64,
    /// Effects that workers ran.
    pub effects: u32,
}

/// A hash of everything that happened; prints every line on request.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hash: Sha256,
    tells: bool,
}

impl Trace {
    pub(crate) fn note(&mut self, line: &str) {
        self.hash.update((line.len() as u64).to_be_bytes());
        self.hash.update(line);
        if self.tells {
            println!("{line}");
        }
    }

    fn end(self) -> String {
        let hash: [u8; 32] = self.hash.finalize().into();
        hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Runs a seed. With `tells`, prints the trace.
///
/// # Errors
/// A checker's finding.
pub fn run(seed: u64, tells: bool) -> Result<Report, Finding> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without sockets can be had");
    let _inside = runtime.enter();
    let trace = Trace { hash: Sha256::new(), tells };
    world::World::new(seed, trace, &runtime)?.run()
}
