//! A panic of an engine thread on purpose, for tests of the real process: `ABIDE_TEST_PANIC=Attach` panics the first
//! time that this [`Point`] is reached. Debug builds only.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_engine::{Config, Point, Stage, Turns};

const VARIABLE: &str = "ABIDE_TEST_PANIC";

#[derive(Debug)]
struct PanicAt {
    point: Point,
    done: AtomicBool,
}

impl Turns for PanicAt {
    fn wait(&self, _: Stage) -> bool {
        false
    }

    fn reach(&self, point: Point) {
        let first = point == self.point && !self.done.swap(true, Ordering::Relaxed);
        assert!(!first, "panic on purpose at {point:?}");
    }
}

/// The configuration with the panic that the environment asks for.
pub(super) fn armed(config: Config) -> Config {
    let asked = env::var(VARIABLE).ok();
    let point = Point::ALL.into_iter().find(|point| asked == Some(format!("{point:?}")));
    match point {
        Some(point) => {
            Config { turns: Arc::new(PanicAt { point, done: AtomicBool::new(false) }), ..config }
        }
        None => config,
    }
}
