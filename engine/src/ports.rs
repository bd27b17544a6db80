//! The one opening to the outside: the clock. Time comes in here and nowhere else; randomness a
//! reducer draws from the log itself.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use abide_schema::Micros;

/// Tells the time that events bear.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Now. The engine itself sees to it that events never run backwards.
    fn now(&self) -> Micros;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
    }
}
