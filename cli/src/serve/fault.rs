//! A deliberate panic of an engine thread, for tests of the real process: `ABIDE_TEST_PANIC=Attach` panics the
//! first time that this [`FaultPoint`] is reached. Debug builds only.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_engine::{Config, EngineThread, FaultPoint, StepScheduler};

const VARIABLE: &str = "ABIDE_TEST_PANIC";

#[derive(Debug)]
struct PanicAt {
    point: FaultPoint,
    done: AtomicBool,
}

impl StepScheduler for PanicAt {
    fn wait(&self, _: EngineThread) -> bool {
        false
    }

    fn at_fault_point(&self, point: FaultPoint) {
        let first = point == self.point && !self.done.swap(true, Ordering::Relaxed);
        assert!(!first, "panic on purpose at {point:?}");
    }
}

/// The configuration with the panic that the environment requests.
pub(crate) fn arm_requested_panic(config: Config) -> Config {
    let asked = env::var(VARIABLE).ok();
    let point = FaultPoint::ALL.into_iter().find(|point| asked == Some(format!("{point:?}")));
    match point {
        Some(point) => Config {
            scheduler: Arc::new(PanicAt { point, done: AtomicBool::new(false) }),
            ..config
        },
        None => config,
    }
}
