//! Subscribers by binding: distributes a commit's deltas to the outboxes of connections.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, OnceLock, PoisonError};

use abide_live::{BindingId, Delta};
use abide_schema::{Checksum, Refusal, Seq, limits};
use tokio::sync::{Notify, watch};

use crate::locks::{Mutex, MutexGuard};
use crate::metrics::Metrics;
use crate::queries::readers::closing;
use crate::subscriptions::buffers::{Account, Share, SharedBytes};
use crate::subscriptions::wakeups::{PacedWakeups, WakeupCounter};

/// A delta, or the end of a query, shared by all its subscribers.
#[derive(Debug)]
pub struct SharedDelta {
    outcome: Result<Delta, Refusal>,
    stale: bool,
    outdated: bool,
    json: OnceLock<Vec<u8>>,
    checksum_change: OnceLock<Checksum>,
    weight: OnceLock<usize>,
    /// Set when it is counted.
    bytes: OnceLock<Arc<SharedBytes>>,
}

impl SharedDelta {
    pub(crate) fn new(outcome: Result<Delta, Refusal>) -> Arc<SharedDelta> {
        Arc::new(SharedDelta::of(outcome))
    }

    fn of(outcome: Result<Delta, Refusal>) -> SharedDelta {
        SharedDelta {
            outcome,
            stale: false,
            outdated: false,
            json: OnceLock::new(),
            checksum_change: OnceLock::new(),
            weight: OnceLock::new(),
            bytes: OnceLock::new(),
        }
    }

    /// Visibility has changed: subscriptions are replanned.
    pub(crate) fn outdated() -> Arc<SharedDelta> {
        Arc::new(SharedDelta { outdated: true, ..SharedDelta::of(Ok(Delta::default())) })
    }

    /// Whether it only says that visibility has changed. It is never sent to clients.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// The change is unknown: the delta would have been too expensive.
    pub(crate) fn unknown() -> Arc<SharedDelta> {
        Arc::new(SharedDelta { stale: true, ..SharedDelta::of(Ok(Delta::default())) })
    }

    /// Whether it only marks the result as possibly changed: the new rows follow in an
    /// [`Update::Rerun`](crate::Update::Rerun) or a snapshot.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether it changes no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.outcome.as_ref().is_ok_and(Delta::is_empty)
    }

    /// The rows, or the reason why the query no longer has a result.
    pub fn rows(&self) -> &Result<Delta, Refusal> {
        &self.outcome
    }

    /// The rows as `"deletes":[…],"inserts":[…],"updates":[…]`, encoded once for all subscribers; or
    /// `"stale":true`.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        self.json.get_or_init(|| {
            let mut out = Vec::new();
            if self.stale {
                out.extend_from_slice(b"\"stale\":true");
            } else if let Ok(delta) = &self.outcome {
                delta.write_json(&mut out);
            }
            out
        })
    }

    /// The checksum change of the result, computed once for all subscribers.
    #[must_use]
    pub fn checksum_change(&self) -> Checksum {
        let of = || self.outcome.as_ref().map(Delta::checksum_change).unwrap_or_default();
        *self.checksum_change.get_or_init(of)
    }

    /// An upper bound of its encoded size.
    pub(crate) fn weight(&self) -> usize {
        *self.weight.get_or_init(|| {
            let Ok(delta) = &self.outcome else { return 256 };
            let placed = delta.window.inserts.iter().chain(&delta.window.updates);
            let rows = delta.deletes.iter().chain(&delta.inserts).chain(&delta.updates);
            let rows = rows.chain(placed.map(|placed| &placed.row));
            64 + 8 * delta.window.deletes.len()
                + rows.flat_map(|row| row.iter()).map(|cell| 4 + cell.size()).sum::<usize>()
        })
    }

    /// Its counted bytes: the rows and their JSON text.
    fn shared_bytes(&self) -> &Arc<SharedBytes> {
        self.bytes.get_or_init(|| SharedBytes::new(2 * self.weight()))
    }
}

/// A delta, as one connection holds it.
#[derive(Clone, Debug)]
pub struct HeldDelta {
    delta: Arc<SharedDelta>,
    /// Its share of the counted bytes; `None` if it is small.
    share: Option<Arc<Share>>,
}

impl HeldDelta {
    /// A delta that is small, or that is sent immediately.
    pub(crate) fn uncounted(delta: Arc<SharedDelta>) -> HeldDelta {
        HeldDelta { delta, share: None }
    }

    /// A delta that may be queued for long: counted if it is large.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn waiting(
        delta: Arc<SharedDelta>,
        account: &Account,
    ) -> Result<HeldDelta, Refusal> {
        let mut held = HeldDelta::uncounted(delta);
        if held.delta.weight() >= limits::COUNTED_BYTES {
            held.count(account)?;
        }
        Ok(held)
    }

    /// Counts it, whatever its size.
    fn count(&mut self, account: &Account) -> Result<(), Refusal> {
        self.share = Some(Arc::new(self.delta.shared_bytes().share(account)?));
        Ok(())
    }

    /// Its counted bytes; zero if it is small.
    pub(crate) fn counted_bytes(&self) -> usize {
        self.share.as_ref().map_or(0, |share| share.bytes())
    }
}

impl Deref for HeldDelta {
    type Target = SharedDelta;

    fn deref(&self) -> &SharedDelta {
        &self.delta
    }
}

/// A subscription within a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SubscriptionKey(pub(crate) u64);

/// One commit's changes for one connection.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) to: Seq,
    pub(crate) changes: Vec<(SubscriptionKey, HeldDelta)>,
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

    fn end(&self, why: &Refusal) {
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

/// Subscribers by binding.
type ListenerMap = HashMap<BindingId, Listeners>;

/// A subscription: the number of its connection, and its key there.
type ListenerKey = (u64, SubscriptionKey);

/// The subscribers of a binding, and their outboxes. Most bindings have one subscriber, which needs no map.
#[derive(Debug)]
enum Listeners {
    One(ListenerKey, Arc<Outbox>),
    Many(HashMap<ListenerKey, Arc<Outbox>>),
}

impl Listeners {
    fn add(&mut self, place: ListenerKey, outbox: Arc<Outbox>) {
        match self {
            Listeners::One(other, _) if *other == place => *self = Listeners::One(place, outbox),
            Listeners::One(other, others) => {
                let both = [(*other, Arc::clone(others)), (place, outbox)];
                *self = Listeners::Many(both.into());
            }
            Listeners::Many(all) => drop(all.insert(place, outbox)),
        }
    }

    /// Removes a subscriber. Returns whether none is left.
    fn remove(&mut self, place: ListenerKey) -> bool {
        match self {
            Listeners::One(only, _) => *only == place,
            Listeners::Many(all) => {
                all.remove(&place);
                all.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&ListenerKey, &Arc<Outbox>)> {
        let (one, many) = match self {
            Listeners::One(place, outbox) => (Some((place, outbox)), None),
            Listeners::Many(all) => (None, Some(all)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// All subscribers.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    listeners: Mutex<ListenerMap>,
    /// Every frame up to here is in its outboxes.
    published: watch::Sender<Seq>,
    wakeups: Arc<WakeupCounter>,
    /// Why nothing more is published.
    ended: OnceLock<Refusal>,
}

impl Hub {
    /// A new outbox of a connection.
    pub(crate) fn outbox(&self, account: Account) -> Arc<Outbox> {
        Arc::new(Outbox::new(account, Arc::clone(&self.wakeups)))
    }

    pub(crate) fn listen(
        &self,
        binding: BindingId,
        connection: u64,
        key: SubscriptionKey,
        outbox: &Arc<Outbox>,
    ) {
        let (place, its) = ((connection, key), Arc::clone(outbox));
        let mut listeners = self.lock();
        match listeners.entry(binding) {
            Entry::Occupied(mut listeners) => listeners.get_mut().add(place, its),
            Entry::Vacant(entry) => drop(entry.insert(Listeners::One(place, its))),
        }
        if let Some(why) = self.ended.get() {
            // It was created after the others were notified.
            outbox.end(why);
        }
    }

    pub(crate) fn unlisten(&self, binding: BindingId, connection: u64, key: SubscriptionKey) {
        let mut listeners = self.lock();
        if let Entry::Occupied(mut audience) = listeners.entry(binding)
            && audience.get_mut().remove((connection, key))
        {
            audience.remove();
        }
    }

    /// Ends all outboxes after their remaining frames.
    pub(crate) fn end(&self, why: &Refusal) {
        let listeners = self.lock();
        let why = self.ended.get_or_init(|| why.clone());
        for (_, outbox) in listeners.values().flat_map(Listeners::iter) {
            outbox.end(why);
        }
        drop(listeners);
        self.published.send_modify(|_| {});
    }

    /// Every frame up to here is in its outboxes.
    pub(crate) fn published(&self) -> Seq {
        *self.published.borrow()
    }

    /// Returns when every frame up to a seq is in its outboxes.
    pub(crate) async fn wait_published(&self, seq: Seq) -> Result<(), Refusal> {
        let mut published = self.published.subscribe();
        let ended = |seen: &Seq| *seen >= seq || self.ended.get().is_some();
        let seen = published.wait_for(ended).await.map(|seen| *seen);
        match seen {
            Ok(seen) if seen >= seq => Ok(()),
            _ => Err(self.ended.get().cloned().unwrap_or_else(closing)),
        }
    }

    /// Without subscribers. This engine publishes nothing up to this seq.
    pub(crate) fn starting_at(seq: Seq) -> Hub {
        let published = watch::Sender::new(seq);
        let (listeners, wakeups) = (Mutex::default(), Arc::default());
        Hub { listeners, published, wakeups, ended: OnceLock::new() }
    }

    /// Puts a durable commit's deltas into the subscribers' outboxes, one frame per connection, no
    /// faster than they read. Returns the number of these connections.
    pub(crate) fn publish(
        &self,
        to: Seq,
        deltas: &[(BindingId, Arc<SharedDelta>)],
        metrics: &Metrics,
    ) -> usize {
        self.publish_in(to, deltas, metrics, &|| {})
    }

    /// The same; `made` is called between building the frames and adding them to the outboxes.
    pub(crate) fn publish_in(
        &self,
        to: Seq,
        deltas: &[(BindingId, Arc<SharedDelta>)],
        metrics: &Metrics,
        made: &dyn Fn(),
    ) -> usize {
        let mut frames: BTreeMap<u64, (Arc<Outbox>, Frame)> = BTreeMap::new();
        if !deltas.is_empty() {
            let listeners = self.lock();
            for (binding, delta) in deltas {
                for ((connection, key), outbox) in
                    listeners.get(binding).into_iter().flat_map(Listeners::iter)
                {
                    let fresh = || (Arc::clone(outbox), Frame { to, changes: Vec::new() });
                    let (_, frame) = frames.entry(*connection).or_insert_with(fresh);
                    frame.changes.push((*key, HeldDelta::uncounted(Arc::clone(delta))));
                }
            }
        }
        made();
        let connections = frames.len();
        let mut pace = PacedWakeups::new(&self.wakeups);
        for (outbox, mut frame) in frames.into_values() {
            metrics.deliveries_total.add(frame.changes.len() as u64);
            frame.changes.sort_by_key(|(key, _)| *key);
            if outbox.push(frame, metrics) {
                pace.woke(&mut std::thread::sleep);
            }
        }
        self.published.send_replace(to);
        connections
    }

    fn lock(&self) -> MutexGuard<'_, ListenerMap> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
