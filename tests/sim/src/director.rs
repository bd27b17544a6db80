//! Schedules the engine's threads one at a time, so that a run is reproducible.
//!
//! Every thread stops before it takes its next item. The released thread performs one step, and the
//! director waits until it stops again. At most one thread runs at any moment, so its input depends
//! only on the previous steps.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_engine::{EngineThread, FaultPoint, StepScheduler};

/// The time limit of a step; a thread that takes longer hangs.
const STANDSTILL: Duration = Duration::from_secs(120);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Director {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether all threads run freely.
    free: bool,
    gates: BTreeMap<EngineThread, ThreadGate>,
    /// The point at which a thread must panic, and on which visit.
    panic_at: Option<(FaultPoint, u64)>,
    /// How often each point was visited since then.
    reached: BTreeMap<FaultPoint, u64>,
}

#[derive(Debug, Default)]
struct ThreadGate {
    stopped: bool,
    let_go: bool,
    /// Whether the thread has ended; it then counts as stopped.
    ended: bool,
}

impl Director {
    /// Waits until this many threads have reached their gates.
    ///
    /// # Panics
    /// They do not arrive in time.
    pub fn wait_for_threads(&self, threads: usize) {
        let mut state = self.lock();
        while state.gates.values().filter(|gate| gate.stopped).count() < threads {
            state = self.wait_for(state);
        }
    }

    /// Lets a thread perform one step, and waits until it has.
    ///
    /// # Panics
    /// It does not stop in time.
    pub fn step(&self, stage: EngineThread) {
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

    /// Makes a thread panic on the nth visit of a point from now on.
    pub fn panic_at(&self, point: FaultPoint, nth: u64) {
        let mut state = self.lock();
        state.panic_at = Some((point, nth));
        state.reached.clear();
    }

    /// Whether the requested panic has occurred.
    pub fn has_panicked(&self) -> bool {
        self.lock().panic_at.is_none()
    }

    /// Releases all threads, at the end of a run.
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
        assert!(!waited.timed_out(), "a thread of the engine hangs: {:?}", *state);
        state
    }
}

impl StepScheduler for Director {
    fn wait(&self, stage: EngineThread) -> bool {
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

    fn at_fault_point(&self, point: FaultPoint) {
        let mut state = self.lock();
        let times = state.reached.entry(point).or_default();
        *times += 1;
        if state.panic_at == Some((point, state.reached[&point])) {
            state.panic_at = None;
            drop(state);
            // Without the panic hook, whose message would be noise.
            std::panic::resume_unwind(Box::new(format!("panic on purpose at {point:?}")));
        }
    }

    fn ended(&self, stage: EngineThread) {
        let mut state = self.lock();
        let gate = state.gates.entry(stage).or_default();
        (gate.stopped, gate.ended) = (true, true);
        self.changed.notify_all();
    }
}
