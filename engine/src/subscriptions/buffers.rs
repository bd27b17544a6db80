//! Counts the bytes buffered for clients: incoming request bodies and outgoing results. They are counted per caller
//! and for the whole process. Clients that do not read, or that send slowly, get `overloaded` before the process
//! runs out of memory.
//!
//! Each client decides how fast its bytes leave. Without a count, memory would be bounded only by the number of
//! connections times the largest result.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_schema::caller::Caller;
use abide_schema::{Code, Refusal, Row, limits};
use tokio::sync::Notify;

use crate::access::tenants::Tenants;

/// Limits of buffered bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// Bytes of all callers together. The last quarter is reserved for callers that use little, so that the others
    /// cannot lock them out. A larger single result or body is accepted if nothing else is buffered.
    pub total: usize,
    /// Bytes of one caller. A larger single result or body is accepted if nothing else of the caller is buffered.
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
    /// Returns the limit of the total for a caller that then has this many bytes.
    fn total_for(self, own: usize) -> usize {
        if own <= self.total / LITTLE { self.total } else { self.total - self.total / RESERVED }
    }
}

/// Reciprocal of the part of the total up to which a caller may use the reserve.
const LITTLE: usize = 256;

/// Reciprocal of the part of the total that is reserved for such callers.
const RESERVED: usize = 4;

/// The count. Clones share it.
#[derive(Clone, Debug)]
pub struct Buffers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: BufferLimits,
    tenants: Tenants,
    reserved: Mutex<Reserved>,
    /// Bytes were released.
    fewer: Notify,
}

#[derive(Debug, Default)]
struct Reserved {
    total: usize,
    tenants: HashMap<Arc<str>, usize>,
}

impl Buffers {
    pub(crate) fn new(limits: BufferLimits, tenants: Tenants) -> Buffers {
        Buffers(Arc::new(Shared {
            limits,
            tenants,
            reserved: Mutex::default(),
            fewer: Notify::new(),
        }))
    }

    /// Returns the account of a caller: that of its tenant.
    #[must_use]
    pub fn account(&self, caller: &Caller) -> Account {
        Account { buffers: self.clone(), tenant: self.0.tenants.key(caller).into() }
    }

    /// Returns an empty reservation for a caller.
    #[must_use]
    pub fn reserve(&self, caller: &Caller) -> Reservation {
        self.account(caller).reserve()
    }

    /// Returns the number of counted bytes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, Reserved> {
        // Every change is one step, so a poisoned lock is consistent.
        self.0.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The account of one tenant.
#[derive(Clone, Debug)]
pub struct Account {
    buffers: Buffers,
    tenant: Arc<str>,
}

/// A number of bytes to be counted.
#[derive(Clone, Copy)]
struct Bytes {
    /// Counted for the caller.
    own: usize,
    /// Counted in the total; zero if they are shared and another caller's share already counts them.
    total: usize,
    /// Bytes already counted for the same data: the new bytes are a part or a copy of it.
    original: usize,
}

impl Account {
    /// Returns the name of the tenant, see [`Tenants::key`].
    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns an empty reservation.
    #[must_use]
    pub fn reserve(&self) -> Reservation {
        Reservation { account: self.clone(), bytes: 0 }
    }

    /// Counts bytes. Data larger than a limit is accepted if nothing else is buffered, so that every result and body
    /// within its own limit is possible.
    fn add(&self, bytes: Bytes) -> Result<(), Refusal> {
        let limits = self.buffers.0.limits;
        let mut reserved = self.buffers.lock();
        let before = reserved.tenants.get(&self.tenant).copied().unwrap_or(0);
        let own = before + bytes.own;
        if before > bytes.original && own > limits.per_caller {
            return Err(full("too many bytes of the caller wait to be sent or received"));
        }
        let total = reserved.total + bytes.total;
        if bytes.total > 0 && reserved.total > bytes.original && total > limits.total_for(own) {
            return Err(full("too many bytes wait to be sent or received"));
        }
        if bytes.own > 0 {
            reserved.total = total;
            *reserved.tenants.entry(Arc::clone(&self.tenant)).or_default() += bytes.own;
        }
        Ok(())
    }

    fn subtract(&self, own: usize, total: usize) {
        let mut reserved = self.buffers.lock();
        reserved.total -= total;
        if let Some(bytes) = reserved.tenants.get_mut(&self.tenant) {
            *bytes -= own;
            if *bytes == 0 {
                reserved.tenants.remove(&self.tenant);
            }
        }
        drop(reserved);
        self.buffers.0.fewer.notify_waiters();
    }
}

/// Bytes of one caller, which are counted until the reservation is dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Account,
    bytes: usize,
}

impl Reservation {
    /// Counts more bytes.
    ///
    /// # Errors
    /// `overloaded` if the caller, or all callers together, have too much buffered; then nothing more is counted.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.grow_copy(bytes, 0)
    }

    /// Counts more bytes, if `original` bytes are already counted for the original of these bytes.
    fn grow_copy(&mut self, bytes: usize, original: usize) -> Result<(), Refusal> {
        let original = self.bytes + original;
        self.account.add(Bytes { own: bytes, total: bytes, original })?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts more bytes as soon as there is room for them. They are a copy of data for which `original` bytes are
    /// already counted.
    pub async fn wait_to_grow(&mut self, bytes: usize, original: usize) {
        let buffers = self.account.buffers.clone();
        loop {
            let mut fewer = pin!(buffers.0.fewer.notified());
            // Registers the waiter before the attempt, so that no release is missed.
            fewer.as_mut().enable();
            if self.grow_copy(bytes, original).is_ok() {
                return;
            }
            fewer.await;
        }
    }

    /// Counts fewer bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.subtract(bytes, bytes);
    }

    /// Returns the number of counted bytes.
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

/// Bytes that several connections share. They are counted once in the total, and once for each caller with a
/// [`Share`], however many connections it has.
#[derive(Debug)]
pub(crate) struct SharedBytes {
    bytes: usize,
    /// Number of shares of each caller.
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
        match shares.get_mut(&account.tenant) {
            Some(count) => *count += 1,
            None => {
                let total = if shares.is_empty() { self.bytes } else { 0 };
                account.add(Bytes { own: self.bytes, total, original: 0 })?;
                shares.insert(Arc::clone(&account.tenant), 1);
            }
        }
        drop(shares);
        Ok(Share { data: Arc::clone(self), account: account.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of one connection in [`SharedBytes`]. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Share {
    data: Arc<SharedBytes>,
    account: Account,
}

impl Share {
    pub(crate) fn bytes(&self) -> usize {
        self.data.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.data.lock();
        let Some(count) = shares.get_mut(&self.account.tenant) else { return };
        *count -= 1;
        if *count == 0 {
            shares.remove(&self.account.tenant);
            let total = if shares.is_empty() { self.data.bytes } else { 0 };
            self.account.subtract(self.data.bytes, total);
        }
    }
}

fn full(detail: &str) -> Refusal {
    Refusal::new(Code::Overloaded, detail)
        .hint("read the pending results, or request smaller ones with LIMIT; then retry")
}

/// Returns the approximate memory of rows in bytes.
#[must_use]
pub fn size_of_rows(rows: &[Row]) -> usize {
    let cell = size_of::<abide_schema::Value>();
    rows.iter().map(|row| 32 + row.iter().map(|value| cell + value.size()).sum::<usize>()).sum()
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use std::collections::BTreeSet;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn reserve(buffers: &Buffers, caller: &str, bytes: usize) -> Result<Reservation, Code> {
        let mut reservation = buffers.reserve(&Caller::new(caller));
        reservation.grow(bytes).map(|()| reservation).map_err(|refusal| refusal.code)
    }

    #[test]
    fn buffers_are_limited_per_caller_and_in_total() {
        let buffers =
            Buffers::new(BufferLimits { total: 1_024, per_caller: 400 }, Tenants::default());
        let large = reserve(&buffers, "ann", 5_000).expect("a single large result is accepted");
        assert_eq!(reserve(&buffers, "ann", 1).err(), Some(Code::Overloaded));
        assert_eq!(
            reserve(&buffers, "bob", 4).err(),
            Some(Code::Overloaded),
            "the total is exceeded"
        );
        drop(large);
        assert_eq!(buffers.total(), 0);
        let first = reserve(&buffers, "ann", 400).expect("room");
        assert_eq!(
            reserve(&buffers, "ann", 1).err(),
            Some(Code::Overloaded),
            "the limit of a caller"
        );
        let second = reserve(&buffers, "bob", 368).expect("the rest");
        assert_eq!(
            reserve(&buffers, "cat", 5).err(),
            Some(Code::Overloaded),
            "the limit of all callers"
        );
        drop((first, second));
        assert_eq!(buffers.total(), 0);
        assert!(buffers.lock().tenants.is_empty());
    }

    /// Two identities of one tenant could use up what other tenants need.
    #[test]
    fn the_callers_of_one_tenant_share_a_limit() {
        let buffers =
            Buffers::new(BufferLimits { total: 4_096, per_caller: 400 }, Tenants::default());
        let reserve = |id: &str, scope: &[(&str, &str)]| {
            let pairs = scope.iter().map(|(key, value)| (key.to_string(), value.to_string()));
            let scope = pairs.collect();
            let caller = Caller::with(id, "app", BTreeSet::new(), scope);
            let mut reservation = buffers.reserve(&caller);
            reservation.grow(300).map(|()| reservation).map_err(|refusal| refusal.code)
        };
        let _first = reserve("ann", &[("tenant", "zeta")]).expect("room");
        assert_eq!(reserve("bob", &[("tenant", "zeta")]).err(), Some(Code::Overloaded));
        let narrower = reserve("bob", &[("tenant", "zeta"), ("desk", "1")]);
        assert_eq!(narrower.err(), Some(Code::Overloaded), "a further scope key");
        let _other = reserve("bob", &[("tenant", "acme")]).expect("another tenant has its own");
    }

    /// Callers that use little could together use as much as the total once more.
    #[test]
    fn the_reserve_for_little_is_within_the_total() {
        let buffers =
            Buffers::new(BufferLimits { total: 1_024, per_caller: 1_024 }, Tenants::default());
        let large = reserve(&buffers, "ann", 768).expect("three quarters");
        assert_eq!(reserve(&buffers, "ann", 1).err(), Some(Code::Overloaded));
        let little: Vec<Reservation> = (0..64)
            .map(|nth| reserve(&buffers, &format!("caller {nth}"), 4).expect("the reserve"))
            .collect();
        assert_eq!(buffers.total(), 1_024);
        assert_eq!(
            reserve(&buffers, "zoe", 1).err(),
            Some(Code::Overloaded),
            "the total is reached"
        );
        drop((large, little));
        assert_eq!(buffers.total(), 0);
    }

    #[test]
    fn shared_bytes_count_once_in_all_and_once_for_each_caller() {
        let buffers =
            Buffers::new(BufferLimits { total: 1_024, per_caller: 400 }, Tenants::default());
        let account = |caller: &str| buffers.account(&Caller::new(caller));
        let ann = account("ann");
        let bob = account("bob");
        let bytes = SharedBytes::new(300);
        let shares: Vec<Share> = [&ann, &ann, &bob]
            .map(|account| bytes.share(account).expect("room"))
            .into_iter()
            .collect();
        assert_eq!(buffers.total(), 300);
        let other = SharedBytes::new(101);
        assert!(other.share(&ann).is_err(), "300 bytes count for ann");
        assert!(other.share(&bob).is_err(), "and for bob");
        let mut shares = shares.into_iter();
        drop((shares.next(), shares.next()));
        assert_eq!(buffers.total(), 300, "bob still has them");
        assert!(other.share(&ann).is_ok(), "ann no longer has them");
        drop(shares);
        assert_eq!(buffers.total(), 0);
        assert!(buffers.lock().tenants.is_empty());
    }

    /// Copies of a result are made one after the other if there is no room for several.
    #[tokio::test]
    async fn a_copy_waits_for_room_and_not_for_what_it_is_a_copy_of() {
        let buffers =
            Buffers::new(BufferLimits { total: 1_024, per_caller: 400 }, Tenants::default());
        let ann = buffers.account(&Caller::new("ann"));
        let _share = SharedBytes::new(300).share(&ann).expect("room");
        let mut first = ann.reserve();
        let mut second = ann.reserve();
        first.wait_to_grow(300, 300).await;
        let mut waits = pin!(second.wait_to_grow(300, 300));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(first);
        waits.await;
        assert_eq!(buffers.total(), 600);
    }
}
