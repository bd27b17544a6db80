//! Who says when each thread of the engine goes on: one at a time, so that a run can be run again.
//!
//! Every thread stops before it takes what waits for it. The one that is let go does one step, and is
//! waited for until it stops again. So at any moment at most one of them runs, and what it finds
//! follows from what was done before.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_engine::{Stage, Turns};

/// How long a step may take: what takes longer has come to a standstill.
const STANDSTILL: Duration = Duration::from_secs(120);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Director {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Nobody is directed any more.
    free: bool,
    gates: BTreeMap<Stage, Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    stopped: bool,
    let_go: bool,
}

impl Director {
    /// Returns when so many threads have come to their gates.
    ///
    /// # Panics
    /// They do not come.
    pub fn gather(&self, threads: usize) {
        let mut state = self.lock();
        while state.gates.values().filter(|gate| gate.stopped).count() < threads {
            state = self.wait_for(state);
        }
    }

    /// Lets a thread do one step, and returns when it has.
    ///
    /// # Panics
    /// It does not come back.
    pub fn step(&self, stage: Stage) {
        let mut state = self.lock();
        let gate = state.gates.entry(stage).or_default();
        assert!(gate.stopped, "{stage:?} is not at its gate");
        (gate.stopped, gate.let_go) = (false, true);
        self.changed.notify_all();
        while !state.gates[&stage].stopped {
            state = self.wait_for(state);
        }
    }

    /// Lets everybody go on from here: for the end.
    pub fn free(&self) {
        self.lock().free = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, STANDSTILL);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "a thread of the engine does not come back: {:?}", *state);
        state
    }
}

impl Turns for Director {
    fn wait(&self, stage: Stage) -> bool {
        let mut state = self.lock();
        if !state.free {
            state.gates.entry(stage).or_default().stopped = true;
            self.changed.notify_all();
        }
        while !state.free && !state.gates[&stage].let_go {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let gate = state.gates.entry(stage).or_default();
        gate.let_go = false;
        !state.free
    }
}
