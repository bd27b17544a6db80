//! The rows of groups that are acknowledged, or will be, and that SQLite has not committed yet; and what readers see.
//!
//! Readers see what SQLite has committed. *Invariant:* a reader that starts sees every group that the writer had
//! finished at that moment: it asks the writer to commit if it must ([`VisibleRows::is_behind`]).

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use abide_schema::{Refusal, Seq, limits};
use tokio::sync::oneshot;

/// How far the writer is, and how far readers can see.
#[derive(Debug)]
pub(crate) struct VisibleRows {
    finished: AtomicI64,
    committed: AtomicI64,
}

impl VisibleRows {
    pub(crate) fn starting_at(head: Seq) -> VisibleRows {
        VisibleRows { finished: AtomicI64::new(head.0), committed: AtomicI64::new(head.0) }
    }

    /// The writer has finished a group.
    pub(crate) fn finish(&self, to: Seq) {
        self.finished.store(to.0, Ordering::SeqCst);
    }

    /// SQLite has committed all finished groups.
    pub(crate) fn commit(&self) {
        self.committed.store(self.finished.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// `true` if a reader would miss a finished group.
    pub(crate) fn is_behind(&self) -> bool {
        self.committed.load(Ordering::SeqCst) < self.finished.load(Ordering::SeqCst)
    }
}

/// The reply to a reader that waits for a commit.
pub(crate) type CommitReply = oneshot::Sender<Result<(), Refusal>>;

/// The groups in SQLite's open transaction.
#[derive(Debug)]
pub(crate) struct OpenRows {
    /// Their records in the journal, to apply again if SQLite rolls the transaction back.
    records: Vec<Vec<u8>>,
    bytes: usize,
    /// Of `bytes`, before SQLite commits.
    most_bytes: usize,
    /// When the first of them finished.
    since: Instant,
    /// When the last of them finished.
    last: Instant,
    /// When SQLite committed last.
    committed_at: Instant,
    /// The readers that wait.
    readers: Vec<CommitReply>,
    /// Why the last commit failed. No group runs until one succeeds.
    failure: Option<Refusal>,
}

impl OpenRows {
    pub(crate) fn new(now: Instant) -> OpenRows {
        OpenRows {
            records: Vec::new(),
            bytes: 0,
            most_bytes: limits::OPEN_TRANSACTION_BYTES,
            since: now,
            last: now,
            committed_at: now,
            readers: Vec::new(),
            failure: None,
        }
    }

    /// Adds a finished group.
    pub(crate) fn push(&mut self, record: Vec<u8>, now: Instant) {
        if self.records.is_empty() {
            self.since = now;
        }
        self.last = now;
        self.bytes += record.len();
        self.records.push(record);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the size of all records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the record of each group, in order.
    pub(crate) fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().map(Vec::as_slice)
    }

    /// Sets whether the disk is nearly full: then SQLite commits more often, so that the journal stays short.
    pub(crate) fn set_space_low(&mut self, is_low: bool) {
        self.most_bytes = if is_low {
            limits::OPEN_TRANSACTION_BYTES_LOW
        } else {
            limits::OPEN_TRANSACTION_BYTES
        };
    }

    /// Adds a reader that waits for the next commit.
    pub(crate) fn await_commit(&mut self, reader: CommitReply) {
        self.readers.push(reader);
    }

    /// `true` if SQLite should commit now. `is_busy`: calls arrive, so readers may share a commit.
    pub(crate) fn is_due(&self, now: Instant, is_busy: bool) -> bool {
        let readers_share =
            is_busy && (now.saturating_duration_since(self.committed_at) < limits::READER_COMMIT);
        (!self.readers.is_empty() && !readers_share)
            || self.bytes >= self.most_bytes
            || (!self.is_empty() && self.time_left(now) == Duration::ZERO)
    }

    /// Returns how long until [`OpenRows::is_due`] without further calls; `None` if there is nothing to commit.
    pub(crate) fn due_in(&self, now: Instant) -> Option<Duration> {
        if !self.readers.is_empty() {
            return Some(Duration::ZERO);
        }
        (!self.is_empty()).then(|| self.time_left(now))
    }

    /// Returns how long the transaction may stay open without further calls.
    fn time_left(&self, now: Instant) -> Duration {
        let open = now.saturating_duration_since(self.since);
        let left = limits::OPEN_TRANSACTION.saturating_sub(open);
        if self.failure.is_some() {
            // A full disk usually stays full for a while.
            return left;
        }
        let idle = now.saturating_duration_since(self.last);
        left.min(limits::OPEN_TRANSACTION_IDLE.saturating_sub(idle))
    }

    /// Returns why the last commit failed, if it did.
    pub(crate) fn failure(&self) -> Option<&Refusal> {
        self.failure.as_ref()
    }

    /// Records whether SQLite has committed, and answers the readers.
    pub(crate) fn settle(&mut self, outcome: &Result<(), Refusal>, now: Instant) {
        self.failure = outcome.as_ref().err().cloned();
        // The time of the next attempt after a failure counts from here.
        self.since = now;
        self.last = now;
        if outcome.is_ok() {
            self.records.clear();
            self.bytes = 0;
            self.committed_at = now;
        }
        for reader in self.readers.drain(..) {
            // It may have gone.
            let _ = reader.send(outcome.clone());
        }
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use abide_schema::Code;

    use super::*;

    #[test]
    fn a_commit_is_due_by_size_by_time_and_for_readers() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut rows = OpenRows::new(start);
        assert!(!rows.is_due(at(0), false), "nothing is open");
        rows.settle(&Ok(()), at(0));
        rows.push(vec![0; 10], at(0));
        assert!(!rows.is_due(at(2), true) && rows.is_due(at(3), true), "no calls arrive");
        (1..50).for_each(|nth| rows.push(Vec::new(), at(2 * nth)));
        assert!(!rows.is_due(at(99), true) && rows.is_due(at(100), true), "after its time");
        rows.settle(&Ok(()), at(0));
        rows.push(vec![0; 10], at(0));
        let (reader, _answer) = oneshot::channel();
        rows.await_commit(reader);
        assert!(rows.is_due(at(1), false), "no calls arrive, so nothing is saved by waiting");
        rows.push(vec![0; 10], at(2));
        assert!(!rows.is_due(at(3), true) && rows.is_due(at(4), true), "readers share a commit");
        rows.settle(&Ok(()), at(4));
        rows.push(vec![0; limits::OPEN_TRANSACTION_BYTES], at(5));
        assert!(rows.is_due(at(5), true), "its size");
        rows.settle(&Ok(()), at(5));
        rows.push(vec![0; limits::OPEN_TRANSACTION_BYTES_LOW], at(6));
        assert!(!rows.is_due(at(6), true));
        rows.set_space_low(true);
        assert!(rows.is_due(at(6), true), "the disk is nearly full");
        let mut rows = OpenRows::new(start);
        rows.push(vec![0; 10], at(0));
        rows.settle(&Err(Refusal::new(Code::DiskFull, "the disk is full")), at(3));
        assert!(!rows.is_due(at(102), false) && rows.is_due(at(103), false), "after a failure");
    }
}
