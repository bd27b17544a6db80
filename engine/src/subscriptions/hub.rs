//! Subscribers by binding: distributes a commit's deltas to the outboxes of connections.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, PoisonError};

use abide_live::BindingId;
use abide_schema::{Refusal, Seq};
use tokio::sync::watch;

use crate::commit::queue::closing;
use crate::locks::{Mutex, MutexGuard};
use crate::metrics::Metrics;
use crate::subscriptions::buffers::Account;
use crate::subscriptions::outbox::{Frame, Outbox, SubscriptionKey};
use crate::subscriptions::shared_delta::{HeldDelta, SharedDelta};
use crate::subscriptions::wakeups::{PacedWakeups, WakeupCounter};

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
        let place = (connection, key);
        let its = Arc::clone(outbox);
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

    /// Whether a binding has subscribers.
    pub(crate) fn has_listeners(&self, binding: BindingId) -> bool {
        self.lock().contains_key(&binding)
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
        let seen = published
            .wait_for(|seen| *seen >= seq || self.ended.get().is_some())
            .await
            .map(|seen| *seen);
        match seen {
            Ok(seen) if seen >= seq => Ok(()),
            _ => Err(self.ended.get().cloned().unwrap_or_else(closing)),
        }
    }

    /// Without subscribers. This engine publishes nothing up to this seq.
    pub(crate) fn starting_at(seq: Seq) -> Hub {
        let published = watch::Sender::new(seq);
        let listeners = Mutex::default();
        let wakeups = Arc::default();
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

    /// Like [`Hub::publish`]; `made` is called between building the frames and adding them to the outboxes.
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
                    let (_, frame) = frames
                        .entry(*connection)
                        .or_insert_with(|| (Arc::clone(outbox), Frame { to, changes: Vec::new() }));
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
