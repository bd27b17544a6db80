//! Attempts to cancel tasks at servers of others: which are due, and how many run at a time. An attempt that fails is repeated
//! after a pause that doubles, for a day.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abide_client::Error;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

/// Maximum number of concurrent requests: a server that does not answer delays the others by its timeout only.
const AT_ONCE: usize = 8;

/// The first and the longest pause between attempts for one task.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// For how long a task is tried, in microseconds: one day.
pub(crate) const TRY_FOR_US: i64 = 24 * 3600 * 1_000_000;

/// When the next attempt is due, and the pause after it. Without a time there is none.
type Next = (Option<Instant>, Duration);

/// The attempts so far, by the key of the task.
#[derive(Debug, Default)]
pub(crate) struct CancelAttempts(Mutex<BTreeMap<String, Next>>);

impl CancelAttempts {
    /// Returns the keys that are not tried now.
    pub(crate) fn not_due(&self) -> Vec<String> {
        let now = Instant::now();
        let attempts = self.lock();
        let later = attempts.iter().filter(|(_, (due, _))| due.is_none_or(|due| due > now));
        later.map(|(key, _)| key.clone()).collect()
    }

    /// An attempt has failed: the next one follows after a pause.
    pub(crate) fn later(&self, key: &str) {
        let mut attempts = self.lock();
        let (due, pause) = attempts.entry(key.to_owned()).or_insert((None, PAUSES.0));
        *due = Some(Instant::now() + *pause);
        *pause = (*pause * 2).min(PAUSES.1);
    }

    /// No attempt follows in this process.
    pub(crate) fn never(&self, key: &str) {
        self.lock().insert(key.to_owned(), (None, PAUSES.0));
    }

    /// The task has gone.
    pub(crate) fn forget(&self, key: &str) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Next>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries all these tasks, some at a time.
///
/// # Errors
/// The first error of an attempt. Those that have begun with it are dropped.
pub(crate) async fn try_all<'a, T>(
    tasks: &'a [T],
    attempt: impl Fn(&'a T) -> BoxFuture<'a, Result<(), Error>>,
) -> Result<(), Error> {
    for some in tasks.chunks(AT_ONCE) {
        let mut running: FuturesUnordered<_> = some.iter().map(&attempt).collect();
        while let Some(tried) = running.next().await {
            tried?;
        }
    }
    Ok(())
}
