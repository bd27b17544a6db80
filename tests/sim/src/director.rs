//! Who says when each thread of the engine goes on: one at a time, so that a run can be run again.
//!
//! Every thread stops before it takes what waits for it. The one that is let go does one step, and is
//! waited for until it stops again. So at any moment at most one of them runs, and what it finds
//! follows from what was done before.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_engine::{Point, Stage, Turns};

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
    /// Where a thread is to panic, and at which time that it comes there.
    panic_at: Option<(Point, u64)>,
    /// How often each point was reached since then.
    reached: BTreeMap<Point, u64>,
}

#[derive(Debug, Default)]
struct Gate {
    stopped: bool,
    let_go: bool,
    /// The thread is gone, and counts as stopped.
    ended: bool,
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
        if gate.ended {
            return;
        }
        assert!(gate.stopped, "{stage:?} is not at its gate");
        (gate.stopped, gate.let_go) = (false, true);
        self.changed.notify_all();
        while !state.gates[&stage].stopped {
            state = self.wait_for(state);
        }
    }

    /// Has the thread panic that comes to a point for the nth time from now on.
    pub fn panic_at(&self, point: Point, nth: u64) {
        let mut state = self.lock();
        state.panic_at = Some((point, nth));
        state.reached.clear();
    }

    /// Whether the panic that was ordered has taken place.
    pub fn has_panicked(&self) -> bool {
        self.lock().panic_at.is_none()
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

    fn reach(&self, point: Point) {
        let mut state = self.lock();
        let times = state.reached.entry(point).or_default();
        *times += 1;
        if state.panic_at == Some((point, state.reached[&point])) {
            state.panic_at = None;
            drop(state);
            // Without the panic hook, whose words would only be noise.
            std::panic::resume_unwind(Box::new(format!("panic on purpose at {point:?}")));
        }
    }

    fn ended(&self, stage: Stage) {
        let mut state = self.lock();
        let gate = state.gates.entry(stage).or_default();
        (gate.stopped, gate.ended) = (true, true);
        self.changed.notify_all();
    }
}
