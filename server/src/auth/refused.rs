//! Refused credentials: all are counted, and a record tells the operator at most once a minute. Anybody can send them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The pause between two records.
const PAUSE: Duration = Duration::from_secs(60);

/// The refused credentials of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusedCredentials(Arc<Refused>);

#[derive(Debug, Default)]
struct Refused {
    count: AtomicU64,
    last: Mutex<Option<LastRecord>>,
}

/// The last record: when it was written, and the count then.
#[derive(Clone, Copy, Debug)]
struct LastRecord {
    at: Instant,
    count: u64,
}

impl RefusedCredentials {
    /// Counts a request, and logs how many there were since the last record.
    pub(crate) fn add(&self) {
        let count = self.0.count.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(refused) = self.due(count) {
            tracing::warn!(name: "credentials_refused", count = refused, "requests had no valid credentials");
        }
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Returns the number of requests since the last record, if another one is due.
    fn due(&self, count: u64) -> Option<u64> {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match *last {
            Some(LastRecord { at, .. }) if at.elapsed() < PAUSE => return None,
            Some(LastRecord { count, .. }) => count,
            None => 0,
        };
        *last = Some(LastRecord { at: Instant::now(), count: count.max(before) });
        Some(count.saturating_sub(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_one_record_a_minute_that_counts_it() {
        let refused = RefusedCredentials::default();
        assert_eq!(refused.due(1), Some(1), "the first one is told at once");
        for count in 2..100 {
            assert_eq!(refused.due(count), None);
        }
        tokio::time::advance(PAUSE).await;
        assert_eq!(refused.due(100), Some(99));
        assert_eq!(refused.due(101), None);
    }
}
