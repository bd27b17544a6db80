//! Counts the bytes buffered for clients: incoming request bodies and outgoing results. Counted per caller
//! and for the whole process, so that clients that do not read, or that send slowly, are refused with
//! `overloaded` before the process runs out of memory.
//!
//! Each client decides how fast its bytes leave. Without a count, memory would only be bounded by the
//! number of connections times the largest result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_live::Binding;
use abide_schema::caller::Caller;
use abide_schema::{Code, Refusal, Row, Seq, limits};
use tokio::sync::Notify;

/// Limits of buffered bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// Bytes of all callers together.
    pub total: usize,
    /// Bytes of one caller.
    pub per_caller: usize,
}

impl Default for BufferLimits {
    fn default() -> BufferLimits {
        BufferLimits {
            total: limits::BUFFERED_BYTES,
            per_caller: limits::BUFFERED_BYTES_PER_CALLER,
        }
    }
}

/// The count. Clones share it.
#[derive(Clone, Debug)]
pub struct Buffers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: BufferLimits,
    held: Mutex<Held>,
    fallen: Notify,
}

#[derive(Debug, Default)]
struct Held {
    total: usize,
    /// The largest total since [`Buffers::restart_peak`].
    peak: usize,
    callers: HashMap<Arc<str>, usize>,
}

/// Bytes that are counted until it is dropped.
#[derive(Debug)]
pub struct Hold {
    buffers: Buffers,
    caller: Arc<str>,
    bytes: usize,
}

impl Buffers {
    pub(crate) fn new(limits: BufferLimits) -> Buffers {
        Buffers(Arc::new(Shared { limits, held: Mutex::default(), fallen: Notify::new() }))
    }

    /// A hold of a caller, of no bytes yet.
    #[must_use]
    pub fn hold(&self, caller: &Caller) -> Hold {
        Hold { buffers: self.clone(), caller: caller.quota_key().into(), bytes: 0 }
    }

    /// Number of bytes counted now.
    #[must_use]
    pub fn total(&self) -> usize {
        self.lock().total
    }

    /// Waits until the total has dropped to half of its peak or less, and by at least [`limits::RECLAIMED_BYTES`].
    /// The allocator then holds unused memory. Only one task may wait.
    pub async fn fallen(&self) {
        self.0.fallen.notified().await;
    }

    /// Starts the next measurement at the current total.
    pub fn restart_peak(&self) {
        let mut held = self.lock();
        held.peak = held.total;
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Every change is one step, so a poisoned lock is consistent.
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// Counts more bytes. An item larger than a limit is accepted if nothing else is buffered, so that every result
    /// and body within its own limit is possible. A caller with little buffered is accepted beyond the
    /// total, so that other callers cannot lock it out.
    ///
    /// # Errors
    /// `overloaded` where too much waits of the caller, or of all; then nothing more is counted.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let BufferLimits { total, per_caller } = self.buffers.0.limits;
        let mut held = self.buffers.lock();
        let own = held.callers.get(&self.caller).copied().unwrap_or(0);
        let alone = own == self.bytes;
        if !alone && own + bytes > per_caller {
            return Err(full("too many of your bytes are buffered"));
        }
        let little = own + bytes <= total / LITTLE && held.total + bytes <= 2 * total;
        if held.total != self.bytes && held.total + bytes > total && !little {
            return Err(full("too many bytes are buffered"));
        }
        held.add(&self.caller, bytes);
        drop(held);
        self.bytes += bytes;
        Ok(())
    }

    /// Counts more bytes unconditionally: for a result that can no longer be refused.
    pub fn force(&mut self, bytes: usize) {
        self.buffers.lock().add(&self.caller, bytes);
        self.bytes += bytes;
    }

    /// Counts fewer bytes: some were sent.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut held = self.buffers.lock();
        held.total -= bytes;
        let fallen = held.has_fallen();
        if let Some(own) = held.callers.get_mut(&self.caller) {
            *own -= bytes;
            if *own == 0 {
                held.callers.remove(&self.caller);
            }
        }
        drop(held);
        if fallen {
            self.buffers.0.fallen.notify_one();
        }
    }

    /// The number of bytes it counts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.shrink(self.bytes);
        }
    }
}

impl Held {
    fn add(&mut self, caller: &Arc<str>, bytes: usize) {
        if bytes > 0 {
            self.total += bytes;
            self.peak = self.peak.max(self.total);
            *self.callers.entry(Arc::clone(caller)).or_default() += bytes;
        }
    }

    fn has_fallen(&self) -> bool {
        self.total <= self.peak / 2 && self.peak - self.total >= limits::RECLAIMED_BYTES
    }
}

/// The share of the total that a caller can use when others have used it up.
const LITTLE: usize = 256;

fn full(detail: &str) -> Refusal {
    Refusal::new(Code::Overloaded, detail)
        .hint("read the pending results, or request smaller ones with LIMIT; then retry")
}

/// Approximate memory of rows in bytes.
#[must_use]
pub fn size_of_rows(rows: &[Row]) -> usize {
    let cell = size_of::<abide_schema::Value>();
    let of_row = |row: &Row| 32 + row.iter().map(|value| cell + value.size()).sum::<usize>();
    rows.iter().map(of_row).sum()
}

/// A whole result that connections have yet to send.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) rows: Vec<Row>,
    /// Counted for its first reader; `None` if it is small.
    _hold: Option<Hold>,
}

impl Whole {
    /// A result that is counted elsewhere, or not at all.
    pub(crate) fn uncounted(rows: Vec<Row>) -> Arc<Whole> {
        Arc::new(Whole { rows, _hold: None })
    }
}

/// The buffered whole results, by query and seq. Clients that subscribe to the same query at one seq share
/// its rows, and the query runs once.
#[derive(Debug, Default)]
pub(crate) struct Snapshots(Mutex<HashMap<Binding, (Seq, std::sync::Weak<Whole>)>>);

/// Finds and counts a connection's whole results.
#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) buffers: Buffers,
    pub(crate) caller: Caller,
}

impl Sharing {
    /// The result of a query at a seq, if another connection holds it.
    pub(crate) fn find(&self, binding: &Binding, seq: Seq) -> Option<Arc<Whole>> {
        let known = self.snapshots.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, whole) = known.get(binding)?;
        if *at == seq { whole.upgrade() } else { None }
    }

    /// Counts a result and shares it. Small results are cheaper to read again than to share.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn keep(
        &self,
        binding: &Binding,
        seq: Seq,
        rows: Vec<Row>,
    ) -> Result<Arc<Whole>, Refusal> {
        let bytes = size_of_rows(&rows);
        if bytes < limits::COUNTED_BYTES {
            return Ok(Whole::uncounted(rows));
        }
        let mut known = self.snapshots.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, whole)) = known.get(binding)
            && *at == seq
            && let Some(whole) = whole.upgrade()
        {
            return Ok(whole);
        }
        let whole = self.count(rows, bytes)?;
        known.retain(|_, (_, whole)| whole.strong_count() > 0);
        known.insert(binding.clone(), (seq, Arc::downgrade(&whole)));
        Ok(whole)
    }

    /// Counts a result that no other connection has.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn own(&self, rows: Vec<Row>) -> Result<Arc<Whole>, Refusal> {
        let bytes = size_of_rows(&rows);
        if bytes < limits::COUNTED_BYTES {
            return Ok(Whole::uncounted(rows));
        }
        self.count(rows, bytes)
    }

    fn count(&self, rows: Vec<Row>, bytes: usize) -> Result<Arc<Whole>, Refusal> {
        let mut hold = self.buffers.hold(&self.caller);
        hold.grow(bytes)?;
        Ok(Arc::new(Whole { rows, _hold: Some(hold) }))
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn buffers_are_limited_per_caller_and_in_total() {
        let buffers = Buffers::new(BufferLimits { total: 1_024, per_caller: 400 });
        let hold = |caller: &str, bytes| {
            let mut hold = buffers.hold(&Caller::new(caller));
            hold.grow(bytes).map(|()| hold).map_err(|refusal| refusal.code)
        };
        let large = hold("ann", 5_000).expect("alone, even the largest is taken");
        assert_eq!(hold("ann", 1).err(), Some(Code::Overloaded));
        assert_eq!(hold("bob", 5).err(), Some(Code::Overloaded));
        drop(large);
        assert_eq!(buffers.total(), 0);
        let held: Vec<Hold> = ["ann", "bob"].map(|it| hold(it, 400).expect("room")).into();
        assert_eq!(hold("ann", 1).err(), Some(Code::Overloaded), "the caller's own limit");
        let third = hold("cat", 224).expect("the rest");
        assert_eq!(hold("dan", 5).err(), Some(Code::Overloaded), "the total limit");
        let little = hold("dan", 4).expect("a little is always taken");
        drop((held, third, little));
        assert_eq!(buffers.total(), 0);
        assert!(buffers.lock().callers.is_empty());
    }

    #[test]
    fn a_large_drop_below_the_peak_is_reported_once() {
        let buffers = Buffers::new(BufferLimits::default());
        let fallen = || {
            let mut context = Context::from_waker(Waker::noop());
            pin!(buffers.fallen()).poll(&mut context).is_ready()
        };
        let mut hold = buffers.hold(&Caller::new("ann"));
        hold.force(4 * limits::RECLAIMED_BYTES);
        hold.shrink(limits::RECLAIMED_BYTES);
        assert!(!fallen(), "it is more than half of the peak");
        hold.shrink(limits::RECLAIMED_BYTES);
        assert!(fallen());
        buffers.restart_peak();
        hold.shrink(limits::RECLAIMED_BYTES - 1);
        assert!(!fallen(), "too little");
        hold.shrink(limits::RECLAIMED_BYTES);
        assert!(fallen());
    }
}
