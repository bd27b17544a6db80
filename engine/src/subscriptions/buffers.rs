//! Counts the bytes buffered for clients: incoming request bodies and outgoing results. Counted per caller
//! and for the whole process, so that clients that do not read, or that send slowly, are refused with
//! `overloaded` before the process runs out of memory.
//!
//! Each client decides how fast its bytes leave. Without a count, memory would only be bounded by the
//! number of connections times the largest result.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_schema::caller::Caller;
use abide_schema::{Code, Refusal, Row, limits};
use tokio::sync::Notify;

/// Limits of buffered bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// Bytes of all callers together. The last quarter is reserved for callers of whom little waits, so that the
    /// others cannot lock them out. A single result or body that is larger is taken where nothing else waits.
    pub total: usize,
    /// Bytes of one caller. A single result or body that is larger is taken where nothing else of the caller waits.
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

impl BufferLimits {
    /// What all callers together may have, for a caller that then has so many bytes itself.
    fn total_for(self, own: usize) -> usize {
        if own <= self.total / LITTLE { self.total } else { self.total - self.total / RESERVED }
    }
}

/// A caller of whom at most this part of the total waits may use the reserve.
const LITTLE: usize = 256;

/// The part of the total that is reserved for such callers.
const RESERVED: usize = 4;

/// The count. Clones share it.
#[derive(Clone, Debug)]
pub struct Buffers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: BufferLimits,
    held: Mutex<Reserved>,
    /// The total has fallen far.
    fallen: Notify,
    /// Something has left.
    fewer: Notify,
}

#[derive(Debug, Default)]
struct Reserved {
    total: usize,
    /// The largest total since [`Buffers::restart_peak`].
    peak: usize,
    callers: HashMap<Arc<str>, usize>,
}

impl Buffers {
    pub(crate) fn new(limits: BufferLimits) -> Buffers {
        let (fallen, fewer) = (Notify::new(), Notify::new());
        Buffers(Arc::new(Shared { limits, held: Mutex::default(), fallen, fewer }))
    }

    /// Where a caller's bytes are counted.
    #[must_use]
    pub fn account(&self, caller: &Caller) -> Account {
        Account { buffers: self.clone(), caller: caller.quota_key().into() }
    }

    /// A hold of a caller, of no bytes yet.
    #[must_use]
    pub fn reserve(&self, caller: &Caller) -> Reservation {
        self.account(caller).reserve()
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

    fn lock(&self) -> MutexGuard<'_, Reserved> {
        // Every change is one step, so a poisoned lock is consistent.
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the bytes of one caller are counted.
#[derive(Clone, Debug)]
pub struct Account {
    buffers: Buffers,
    caller: Arc<str>,
}

/// Bytes to be counted.
#[derive(Clone, Copy)]
struct Bytes {
    /// As the caller's.
    own: usize,
    /// In the total: none where another caller has them too.
    total: usize,
    /// Of what is counted already, so many belong to what these are a part or a copy of.
    beside: usize,
}

impl Account {
    /// A hold of no bytes yet.
    #[must_use]
    pub fn reserve(&self) -> Reservation {
        Reservation { account: self.clone(), bytes: 0 }
    }

    /// What is larger than a bound is taken where nothing else waits, so that every result and body within its own
    /// bound is possible.
    fn add(&self, bytes: Bytes) -> Result<(), Refusal> {
        let limits = self.buffers.0.limits;
        let mut held = self.buffers.lock();
        let before = held.callers.get(&self.caller).copied().unwrap_or(0);
        let own = before + bytes.own;
        if before > bytes.beside && own > limits.per_caller {
            return Err(full("too many bytes of yours wait to be sent or received"));
        }
        let total = held.total + bytes.total;
        if bytes.total > 0 && held.total > bytes.beside && total > limits.total_for(own) {
            return Err(full("too many bytes wait to be sent or received"));
        }
        if bytes.own > 0 {
            held.total = total;
            held.peak = held.peak.max(total);
            *held.callers.entry(Arc::clone(&self.caller)).or_default() += bytes.own;
        }
        Ok(())
    }

    fn subtract(&self, own: usize, total: usize) {
        let mut held = self.buffers.lock();
        held.total -= total;
        let fallen = held.has_fallen();
        if let Some(of_caller) = held.callers.get_mut(&self.caller) {
            *of_caller -= own;
            if *of_caller == 0 {
                held.callers.remove(&self.caller);
            }
        }
        drop(held);
        let Shared { fallen: far, fewer, .. } = &*self.buffers.0;
        fewer.notify_waiters();
        if fallen {
            far.notify_one();
        }
    }
}

/// Bytes of one caller that are counted until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Account,
    bytes: usize,
}

impl Reservation {
    /// Counts more bytes.
    ///
    /// # Errors
    /// `overloaded` where too much waits of the caller, or of all; then nothing more is counted.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.grow_beside(bytes, 0)
    }

    /// The same where `beside` bytes are already counted for what these bytes are a copy of.
    fn grow_beside(&mut self, bytes: usize, beside: usize) -> Result<(), Refusal> {
        let beside = self.bytes + beside;
        self.account.add(Bytes { own: bytes, total: bytes, beside })?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts more bytes as soon as there is room for them. They are a copy of something for which `beside` bytes
    /// are already counted.
    pub async fn wait_to_grow(&mut self, bytes: usize, beside: usize) {
        let buffers = self.account.buffers.clone();
        loop {
            let mut fewer = pin!(buffers.0.fewer.notified());
            // From here on nothing that leaves is missed.
            fewer.as_mut().enable();
            if self.grow_beside(bytes, beside).is_ok() {
                return;
            }
            fewer.await;
        }
    }

    /// Counts fewer: some have left.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.subtract(bytes, bytes);
    }

    /// How many it counts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.shrink(self.bytes);
        }
    }
}

/// Bytes that several connections wait for. They are counted once in the total, and once for each caller that
/// has a [`Share`] of them, however many connections it has.
#[derive(Debug)]
pub(crate) struct SharedBytes {
    bytes: usize,
    /// How many shares each caller has.
    shares: Mutex<HashMap<Arc<str>, usize>>,
}

impl SharedBytes {
    /// Counted from the first share on.
    pub(crate) fn new(bytes: usize) -> Arc<SharedBytes> {
        Arc::new(SharedBytes { bytes, shares: Mutex::default() })
    }

    /// Counts them for one connection of a caller.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn share(self: &Arc<SharedBytes>, account: &Account) -> Result<Share, Refusal> {
        let mut shares = self.lock();
        match shares.get_mut(&account.caller) {
            Some(count) => *count += 1,
            None => {
                let total = if shares.is_empty() { self.bytes } else { 0 };
                account.add(Bytes { own: self.bytes, total, beside: 0 })?;
                shares.insert(Arc::clone(&account.caller), 1);
            }
        }
        drop(shares);
        Ok(Share { of: Arc::clone(self), account: account.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`SharedBytes`].
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<SharedBytes>,
    account: Account,
}

impl Share {
    pub(crate) fn bytes(&self) -> usize {
        self.of.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.of.lock();
        let Some(count) = shares.get_mut(&self.account.caller) else { return };
        *count -= 1;
        if *count == 0 {
            shares.remove(&self.account.caller);
            let total = if shares.is_empty() { self.of.bytes } else { 0 };
            self.account.subtract(self.of.bytes, total);
        }
    }
}

impl Reserved {
    fn has_fallen(&self) -> bool {
        self.total <= self.peak / 2 && self.peak - self.total >= limits::RECLAIMED_BYTES
    }
}

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

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn hold_of(buffers: &Buffers, caller: &str, bytes: usize) -> Result<Reservation, Code> {
        let mut hold = buffers.reserve(&Caller::new(caller));
        hold.grow(bytes).map(|()| hold).map_err(|refusal| refusal.code)
    }

    #[test]
    fn buffers_are_limited_per_caller_and_in_total() {
        let buffers = Buffers::new(BufferLimits { total: 1_024, per_caller: 400 });
        let hold = |caller: &str, bytes| hold_of(&buffers, caller, bytes);
        let large = hold("ann", 5_000).expect("alone, even the largest is taken");
        assert_eq!(hold("ann", 1).err(), Some(Code::Overloaded));
        assert_eq!(hold("bob", 4).err(), Some(Code::Overloaded), "not beyond the total");
        drop(large);
        assert_eq!(buffers.total(), 0);
        let first = hold("ann", 400).expect("room");
        assert_eq!(hold("ann", 1).err(), Some(Code::Overloaded), "a caller's own bound");
        let second = hold("bob", 368).expect("the rest");
        assert_eq!(hold("cat", 5).err(), Some(Code::Overloaded), "the bound of all");
        drop((first, second));
        assert_eq!(buffers.total(), 0);
        assert!(buffers.lock().callers.is_empty());
    }

    /// Callers of whom little waited could together have as much as the total once more.
    #[test]
    fn the_reserve_for_little_is_within_the_total() {
        let buffers = Buffers::new(BufferLimits { total: 1_024, per_caller: 1_024 });
        let hold = |caller: &str, bytes| hold_of(&buffers, caller, bytes);
        let large = hold("ann", 768).expect("three quarters");
        assert_eq!(hold("ann", 1).err(), Some(Code::Overloaded));
        let little: Vec<Reservation> =
            (0..64).map(|nth| hold(&format!("caller {nth}"), 4).expect("the reserve")).collect();
        assert_eq!(buffers.total(), 1_024);
        assert_eq!(hold("zoe", 1).err(), Some(Code::Overloaded), "the total is reached");
        drop((large, little));
        assert_eq!(buffers.total(), 0);
    }

    #[test]
    fn shared_bytes_count_once_in_all_and_once_for_each_caller() {
        let buffers = Buffers::new(BufferLimits { total: 1_024, per_caller: 400 });
        let account = |caller: &str| buffers.account(&Caller::new(caller));
        let (ann, bob) = (account("ann"), account("bob"));
        let bytes = SharedBytes::new(300);
        let shares: Vec<Share> =
            [&ann, &ann, &bob].map(|of| bytes.share(of).expect("room")).into_iter().collect();
        assert_eq!(buffers.total(), 300);
        let other = SharedBytes::new(101);
        assert!(other.share(&ann).is_err(), "300 count as hers");
        assert!(other.share(&bob).is_err(), "and as his");
        let mut shares = shares.into_iter();
        drop((shares.next(), shares.next()));
        assert_eq!(buffers.total(), 300, "bob has them still");
        assert!(other.share(&ann).is_ok(), "she has them no more");
        drop(shares);
        assert_eq!(buffers.total(), 0);
        assert!(buffers.lock().callers.is_empty());
    }

    /// Copies of a result are made one after the other where there is no room for several.
    #[tokio::test]
    async fn a_copy_waits_for_room_and_not_for_what_it_is_a_copy_of() {
        let buffers = Buffers::new(BufferLimits { total: 1_024, per_caller: 400 });
        let ann = buffers.account(&Caller::new("ann"));
        let _share = SharedBytes::new(300).share(&ann).expect("room");
        let (mut first, mut second) = (ann.reserve(), ann.reserve());
        first.wait_to_grow(300, 300).await;
        let mut waits = pin!(second.wait_to_grow(300, 300));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(first);
        waits.await;
        assert_eq!(buffers.total(), 600);
    }

    #[test]
    fn a_large_drop_below_the_peak_is_reported_once() {
        let buffers = Buffers::new(BufferLimits::default());
        let fallen = || {
            let mut context = Context::from_waker(Waker::noop());
            pin!(buffers.fallen()).poll(&mut context).is_ready()
        };
        let mut hold = buffers.reserve(&Caller::new("ann"));
        hold.grow(4 * limits::RECLAIMED_BYTES).expect("room");
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
