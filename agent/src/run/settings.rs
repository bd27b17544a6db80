//! The settings of a runtime.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use abide_models::Retry;
use abide_tools::Concurrency;

/// The default of [`Settings::runs`]. Ten thousand runs take less than a gigabyte (docs/performance.md), and each has at most one
/// model request at a time.
pub(crate) const RUNS: Concurrency = Concurrency::new(10_000, 1_000);

/// Settings of a runtime.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The driver name under which the runtime claims runs. A runtime with the same name takes over the runs of its
    /// predecessor immediately, so two runtimes must not use one name at the same time.
    pub driver: String,
    /// Duration of leases of runs and calls. After a crash, another driver takes over after this time, and a call
    /// that must not run twice becomes `unknown`.
    pub lease: Duration,
    /// When model requests are retried.
    pub retry: Retry,
    /// How often the folder of definitions and the configuration are checked for changes.
    pub reload_interval: Duration,
    /// How long to wait for a tool that was asked to stop. After that, the tool is abandoned, and its call is
    /// treated as if its worker had crashed.
    pub grace: Duration,
    /// Maximum numbers of runs that are driven at a time. A delegated run, and a run that waits
    /// for calls of others, is not counted.
    pub runs: Concurrency,
    /// The clock of time limits. The file has the times of runs from its own clock, so both must agree.
    pub clock: SettingsClock,
}

/// A clock: microseconds since 1970.
#[derive(Clone)]
pub struct SettingsClock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl SettingsClock {
    /// Returns the clock that this function reads. For virtual time.
    #[must_use]
    pub fn new(now: impl Fn() -> i64 + Send + Sync + 'static) -> SettingsClock {
        SettingsClock(Arc::new(now))
    }

    /// Returns the machine's clock.
    #[must_use]
    pub fn system() -> SettingsClock {
        SettingsClock::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
        })
    }
}

impl fmt::Debug for SettingsClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SettingsClock").field(&(self.0)()).finish()
    }
}

impl Settings {
    /// Settings with a lease of ten seconds, a grace period of five seconds, a check of the folder each second, and 10,000
    /// runs at a time, of which 1,000 of one tenant.
    #[must_use]
    pub fn named(driver: impl Into<String>) -> Settings {
        Settings {
            driver: driver.into(),
            lease: Duration::from_secs(10),
            retry: Retry::default(),
            reload_interval: Duration::from_secs(1),
            grace: Duration::from_secs(5),
            runs: RUNS,
            clock: SettingsClock::system(),
        }
    }

    /// Microseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        (self.clock.0)()
    }
}
