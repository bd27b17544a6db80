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
use crate::subscriptions::shared_delta::{QueuedDelta, SharedDelta};
use crate::subscriptions::wakeups::{PacedWakeups, WakeupCounter};

/// Subscribers by binding.
type ListenerMap = HashMap<BindingId, Listeners>;

/// A subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ListenerKey {
    /// The number of its connection.
    connection: u64,
    /// Its key there.
    subscription: SubscriptionKey,
}

/// The subscribers of a binding, and their outboxes. Most bindings have one subscriber, which needs no map.
#[derive(Debug)]
enum Listeners {
    One(ListenerKey, Arc<Outbox>),
    Many(HashMap<ListenerKey, Arc<Outbox>>),
}

impl Listeners {
    fn add(&mut self, key: ListenerKey, outbox: Arc<Outbox>) {
        match self {
            Listeners::One(first, _) if *first == key => *self = Listeners::One(key, outbox),
            Listeners::One(first, first_outbox) => {
                let listeners = [(*first, Arc::clone(first_outbox)), (key, outbox)];
                *self = Listeners::Many(listeners.into());
            }
            Listeners::Many(all) => drop(all.insert(key, outbox)),
        }
    }

    /// Removes a subscriber. Returns whether none is left.
    fn remove(&mut self, key: ListenerKey) -> bool {
        match self {
            Listeners::One(only, _) => *only == key,
            Listeners::Many(all) => {
                all.remove(&key);
                all.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&ListenerKey, &Arc<Outbox>)> {
        let (one, many) = match self {
            Listeners::One(key, outbox) => (Some((key, outbox)), None),
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
    /// Returns a new outbox of a connection.
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
        let listener = ListenerKey { connection, subscription: key };
        let listener_outbox = Arc::clone(outbox);
        let mut listeners = self.lock();
        match listeners.entry(binding) {
            Entry::Occupied(mut listeners) => listeners.get_mut().add(listener, listener_outbox),
            Entry::Vacant(entry) => drop(entry.insert(Listeners::One(listener, listener_outbox))),
        }
        if let Some(why) = self.ended.get() {
            // It was created after the others were notified.
            outbox.end(why);
        }
    }

    pub(crate) fn unlisten(&self, binding: BindingId, connection: u64, key: SubscriptionKey) {
        let mut listeners = self.lock();
        if let Entry::Occupied(mut entry) = listeners.entry(binding)
            && entry.get_mut().remove(ListenerKey { connection, subscription: key })
        {
            entry.remove();
        }
    }

    /// `true` if a binding has subscribers.
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

    /// Returns the seq up to which every frame is in its outboxes.
    pub(crate) fn published(&self) -> Seq {
        *self.published.borrow()
    }

    /// Waits until every frame up to a seq is in its outboxes.
    ///
    /// # Errors
    /// Nothing more is published.
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

    /// Creates a hub without subscribers, for an engine that publishes nothing up to this seq.
    pub(crate) fn starting_at(seq: Seq) -> Hub {
        Hub {
            listeners: Mutex::default(),
            published: watch::Sender::new(seq),
            wakeups: Arc::default(),
            ended: OnceLock::new(),
        }
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

    /// Like [`Hub::publish`]; `on_frames` is called between building the frames and adding them to the outboxes.
    pub(crate) fn publish_in(
        &self,
        to: Seq,
        deltas: &[(BindingId, Arc<SharedDelta>)],
        metrics: &Metrics,
        on_frames: &dyn Fn(),
    ) -> usize {
        let mut frames: BTreeMap<u64, (Arc<Outbox>, Frame)> = BTreeMap::new();
        if !deltas.is_empty() {
            let listeners = self.lock();
            for (binding, delta) in deltas {
                for (key, outbox) in listeners.get(binding).into_iter().flat_map(Listeners::iter) {
                    let (_, frame) = frames
                        .entry(key.connection)
                        .or_insert_with(|| (Arc::clone(outbox), Frame { to, changes: Vec::new() }));
                    frame
                        .changes
                        .push((key.subscription, QueuedDelta::uncounted(Arc::clone(delta))));
                }
            }
        }
        on_frames();
        let connections = frames.len();
        let mut pace = PacedWakeups::new(&self.wakeups);
        for (outbox, mut frame) in frames.into_values() {
            metrics.deliveries_total.add(frame.changes.len() as u64);
            frame.changes.sort_by_key(|(key, _)| *key);
            if outbox.push(frame, metrics) {
                pace.count_woken(&mut std::thread::sleep);
            }
        }
        self.published.send_replace(to);
        connections
    }

    fn lock(&self) -> MutexGuard<'_, ListenerMap> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
