//! The queue of frames of one connection. `hub` fills it and `connection` empties it; it is bounded for itself, and
//! what all clients buffer is bounded in `buffers`.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use abide_schema::{Refusal, Seq, limits};
use tokio::sync::Notify;

use crate::locks::{Mutex, MutexGuard};
use crate::metrics::Metrics;
use crate::subscriptions::buffers::Account;
use crate::subscriptions::shared_delta::QueuedDelta;
use crate::subscriptions::wakeups::WakeupCounter;

/// A subscription within a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SubscriptionKey(pub(crate) u64);

/// One commit's changes for one connection.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) to: Seq,
    pub(crate) changes: Vec<(SubscriptionKey, QueuedDelta)>,
}

impl Frame {
    fn count(&mut self, account: &Account) -> Result<(), Refusal> {
        self.changes.iter_mut().try_for_each(|(_, delta)| delta.count(account))
    }
}

/// Frames queued for one connection. Bounded: if a client does not read, they are dropped, and the client is caught
/// up from the change log when it reads again.
///
/// Frames count for the caller while [`limits::COUNTED_BYTES`] or more are queued; most leave before.
#[derive(Debug)]
pub(crate) struct Outbox {
    account: Account,
    state: Mutex<OutboxState>,
    filled: Notify,
    /// Counts woken connections that have read their outbox.
    wakeups: Arc<WakeupCounter>,
}

#[derive(Debug, Default)]
struct OutboxState {
    frames: VecDeque<(Frame, usize)>,
    bytes: usize,
    lagging: bool,
    /// The connection was woken and has not read its outbox since.
    woken: bool,
    ended: Option<Refusal>,
}

/// An item of an outbox.
#[derive(Debug)]
pub(crate) enum OutboxItem {
    /// The next frame.
    Frame(Frame),
    /// Frames were dropped; the client must be caught up from the last frame.
    Lagging,
    /// No item.
    Empty,
    /// The engine publishes nothing more.
    Ended(Refusal),
}

impl Outbox {
    pub(crate) fn new(account: Account, wakeups: Arc<WakeupCounter>) -> Outbox {
        Outbox { account, state: Mutex::default(), filled: Notify::default(), wakeups }
    }

    /// Adds a frame. Returns whether this woke the connection.
    pub(crate) fn push(&self, mut frame: Frame, metrics: &Metrics) -> bool {
        let weight: usize = frame.changes.iter().map(|(_, delta)| delta.weight()).sum();
        let mut state = self.lock();
        if state.lagging || state.ended.is_some() {
            return false;
        }
        let wakes = !std::mem::replace(&mut state.woken, true);
        let waiting = state.bytes + weight;
        let is_full = state.bytes > 0 && waiting > limits::OUTBOX_BYTES;
        let counts = waiting >= limits::COUNTED_BYTES;
        if is_full || counts && frame.count(&self.account).is_err() {
            *state = OutboxState { lagging: true, woken: true, ..OutboxState::default() };
            metrics.slow_consumers_total.add(1);
        } else {
            state.bytes += weight;
            state.frames.push_back((frame, weight));
        }
        drop(state);
        self.filled.notify_one();
        wakes
    }

    /// Takes the next item. After `Lagging`, frames are accepted again: the caller must then read a state that is
    /// newer than this call.
    pub(crate) fn take(&self) -> OutboxItem {
        let mut state = self.lock();
        if std::mem::take(&mut state.woken) {
            self.wakeups.add();
        }
        if std::mem::take(&mut state.lagging) {
            return OutboxItem::Lagging;
        }
        match state.frames.pop_front() {
            Some((frame, weight)) => {
                state.bytes -= weight;
                OutboxItem::Frame(frame)
            }
            None => state.ended.clone().map_or(OutboxItem::Empty, OutboxItem::Ended),
        }
    }

    /// The engine publishes nothing more; queued frames can still be taken.
    pub(crate) fn end(&self, why: &Refusal) {
        self.lock().ended = Some(why.clone());
        self.filled.notify_one();
    }

    /// Waits until something may be available.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
