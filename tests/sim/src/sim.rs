//! The simulator: apps, workers, supervisors, auditors and watchers over the real engine and the real
//! messages, with a network that loses, doubles, delays and reorders, slow readers, clocks that jump,
//! crashes, and a disk that fails.
//!
//! A seed decides everything. All that happens is one action after another: a thread of the engine does
//! one step, a message arrives, somebody asks for something, the clock moves, the power fails. The
//! engine's threads are real; a [`Director`](crate::director::Director) lets one go at a time. So the
//! same seed gives the same trace, which [`run`] returns the hash of.
//!
//! `door` the server's half of a connection · `exchange` an ask on its way · `people` who asks ·
//! `watcher` who watches · `world` what there is, and what can happen to it.

mod door;
mod exchange;
mod people;
mod watcher;
mod world;

use sha2::{Digest as _, Sha256};

use crate::checks::Finding;

/// How long a run is, in actions.
pub const ACTIONS: usize = 1_500;

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The hash of everything that happened, in order.
    pub trace: String,
    /// The last event.
    pub events: i64,
    /// Calls that were answered with a yes.
    pub told: usize,
    /// Crashes and kills.
    pub crashes: u32,
    /// Messages that were lost.
    pub lost: u32,
    /// Deltas that watchers worked in.
    pub deltas: u64,
    /// Effects that workers ran.
    pub effects: u32,
}

/// What happened, as a hash; every line of it too where somebody wants to read it.
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

/// Runs a seed; prints what happens where it `tells`.
///
/// # Errors
/// What a checker found.
pub fn run(seed: u64, tells: bool) -> Result<Report, Finding> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without sockets can be had");
    let _inside = runtime.enter();
    let trace = Trace { hash: Sha256::new(), tells };
    world::World::new(seed, trace, &runtime)?.run()
}
