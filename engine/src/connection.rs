//! One client's subscriptions: snapshots without a gap, one frame a commit, and catching up.
//!
//! How a subscription begins, and why nothing is lost or doubled: (1) the writer takes it in between
//! two transactions, so from then on its deltas come to the outbox; (2) a reader reads the result, or
//! the change since `from`, at some seq S that is not before that; (3) frames up to S are dropped from
//! the outbox, later ones follow. A slow client is caught up in the same way from where it was.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_live::{Binding, Delta};
use abide_schema::wire::Shape;
use abide_schema::{Code, Refusal, Row, Seq, limits};
use abide_store::Reader;
use serde_json::{Map, Value as JsonValue};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::engine::Engine;
use crate::hub::{Frame, Mail, Outbox, SharedDelta, SubscriptionKey};
use crate::rerun::{Fresh, Version};
use crate::resume::{self, Resumed};
use crate::stale::{Reruns, Stale};
use crate::writer::{Attach, Job, Listening};

/// What a connection is told.
#[derive(Clone, Debug)]
pub enum Update {
    /// A subscription's result, or a part of it.
    Snapshot(SnapshotPart),
    /// What one commit changed, over all subscriptions of the connection.
    Delta {
        /// The connection had been told everything up to here.
        from: Seq,
        /// And now up to here.
        to: Seq,
        /// By subscription id.
        changes: Vec<(Arc<str>, Arc<SharedDelta>)>,
    },
    /// One subscription alone is brought up to here: after a delta that only said "stale", the query was
    /// run again. Its later changes come with the frames from there on.
    Rerun {
        /// The subscription.
        id: Arc<str>,
        /// Its rows are now those of this state.
        seq: Seq,
        /// What changed since it was last told.
        delta: Arc<SharedDelta>,
        /// It has changed again since, nobody knows yet how; another of these follows.
        stale: bool,
    },
    /// Nothing of interest happened up to here.
    Progress {
        /// Up to here.
        seq: Seq,
    },
    /// Something is wrong with a subscription. With code `refetch` a snapshot follows; with any other
    /// the subscription has ended.
    Error {
        /// The subscription.
        id: Arc<str>,
        /// Why.
        refusal: Refusal,
    },
}

/// A part of a subscription's result.
#[derive(Clone, Debug)]
pub struct SnapshotPart {
    /// The subscription.
    pub id: Arc<str>,
    /// The state it was read at.
    pub seq: Seq,
    /// Columns, key and order.
    pub shape: Arc<Shape>,
    /// The rows of this part.
    pub rows: Vec<Row>,
    /// More parts follow.
    pub more: bool,
    /// What was held before is void.
    pub reset: bool,
}

#[derive(Debug)]
pub(crate) struct Subscription {
    id: Arc<str>,
    pub(crate) binding: Binding,
    shape: Arc<Shape>,
    /// Its result was told up to here.
    seq: Seq,
    /// Set while its deltas cost too much to be made.
    pub(crate) stale: Option<Stale>,
    /// Its result as it was told last, if it was told by a rerun.
    pub(crate) held: Option<Arc<Version>>,
    _listening: Listening,
}

impl Subscription {
    fn new(
        id: Arc<str>,
        binding: Binding,
        shape: Arc<Shape>,
        listening: Listening,
    ) -> Subscription {
        let (seq, stale, held) = (Seq::ZERO, None, None);
        Subscription { id, binding, shape, seq, stale, held, _listening: listening }
    }
}

/// An update that waits to be taken.
#[derive(Debug)]
struct Ready {
    update: Update,
    /// Set where it concerns this subscription and nobody else; it goes when that ends.
    only_for: Option<Arc<str>>,
}

impl Ready {
    fn for_all(update: Update) -> Ready {
        Ready { update, only_for: None }
    }

    fn only_for(id: &Arc<str>, update: Update) -> Ready {
        Ready { update, only_for: Some(Arc::clone(id)) }
    }

    /// Takes a subscription out; `false` where nothing is left to say.
    fn without(&mut self, id: &str) -> bool {
        if let Update::Delta { changes, .. } = &mut self.update {
            changes.retain(|(of, _)| &**of != id);
        }
        self.only_for.as_deref() != Some(id)
    }
}

/// One client's subscriptions. One task owns it.
#[derive(Debug)]
pub struct Connection {
    engine: Engine,
    number: u64,
    outbox: Arc<Outbox>,
    subscriptions: BTreeMap<SubscriptionKey, Subscription>,
    keys: HashMap<Arc<str>, SubscriptionKey>,
    next_key: u64,
    /// Updates that are made and not yet taken.
    ready: VecDeque<Ready>,
    /// The connection was told everything up to here.
    told: Seq,
    next_progress: Instant,
    /// Frames were dropped and are not made up for yet.
    lagging: bool,
    reruns: Reruns,
}

impl Connection {
    pub(crate) fn new(engine: Engine) -> Connection {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let told = engine.inner.hub.published();
        Connection {
            engine,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            outbox: Arc::new(Outbox::default()),
            subscriptions: BTreeMap::new(),
            keys: HashMap::new(),
            next_key: 0,
            ready: VecDeque::new(),
            told,
            next_progress: Instant::now() + Duration::from_millis(limits::PROGRESS_MS),
            lagging: false,
            reruns: Reruns::default(),
        }
    }

    /// Everything up to here was told.
    #[must_use]
    pub fn told(&self) -> Seq {
        self.told
    }

    /// Subscribes. The snapshot (or, with `from`, what changed since) is the next thing that
    /// [`Connection::next`] yields for this id.
    ///
    /// # Errors
    /// The query cannot be live, a parameter is wrong, the id is taken, or a bound is reached.
    pub async fn subscribe(
        &mut self,
        id: &str,
        sql: &str,
        params: &Map<String, JsonValue>,
        from: Option<Seq>,
    ) -> Result<(), Refusal> {
        self.check_room(id)?;
        let binding = self.engine.inner.planner.bind(sql, params)?;
        let key = SubscriptionKey(self.next_key);
        self.next_key += 1;
        let listening = self.attach(&binding, key).await?;
        let shape = Arc::new(binding.shape().clone());
        let mut subscription = Subscription::new(id.into(), binding, shape, listening);
        // Given up in here, the subscription is dropped and with it its place at the writer.
        let (resumed, later) = self.begin_level(&subscription.binding, from).await?;
        subscription.seq = resumed.seq();
        let (id, shape) = (Arc::clone(&subscription.id), Arc::clone(&subscription.shape));
        self.make_ready(id, shape, resumed, from.unwrap_or(subscription.seq));
        self.keys.insert(Arc::clone(&subscription.id), key);
        self.subscriptions.insert(key, subscription);
        self.engine.inner.metrics.subscriptions_total.add(1);
        if let Some(frame) = later {
            self.take_frame(frame);
        }
        Ok(())
    }

    /// Ends a subscription; ending one that is not there is no error.
    pub fn unsubscribe(&mut self, id: &str) {
        if let Some(key) = self.keys.get(id).copied() {
            self.drop_subscription(key);
        }
        self.ready.retain_mut(|ready| ready.without(id));
    }

    /// Waits for the next update. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Update {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return ready.update;
            }
            if self.lagging {
                // Forgotten only when it is done, so that giving up the wait loses nothing.
                self.catch_up().await;
                self.lagging = false;
                continue;
            }
            if let Some((key, fresh)) = self.reruns.done() {
                self.take_fresh(key, fresh);
                continue;
            }
            // Read before the outbox: what is published later is not promised.
            let published = self.engine.inner.hub.published();
            match self.outbox.take() {
                Mail::Frame(frame) => self.take_frame(frame),
                Mail::Lagging => self.lagging = true,
                Mail::Ended(why) if !self.subscriptions.is_empty() => self.end_all(&why),
                Mail::Ended(_) => std::future::pending().await,
                Mail::Empty if Instant::now() >= self.next_progress => self.progress(published),
                Mail::Empty => {
                    tokio::select! {
                        () = self.outbox.filled() => {}
                        () = self.reruns.any_done() => {}
                        () = sleep_until(self.next_progress) => {}
                    }
                }
            }
        }
    }

    fn check_room(&self, id: &str) -> Result<(), Refusal> {
        if self.keys.contains_key(id) {
            let detail = format!("subscription {id:?} exists already on this connection");
            return Err(
                Refusal::new(Code::BadRequest, detail).hint("choose another id, or unsubscribe")
            );
        }
        if self.subscriptions.len() >= limits::SUBSCRIPTIONS_PER_CONNECTION {
            let most = limits::SUBSCRIPTIONS_PER_CONNECTION;
            let detail = format!("a connection has at most {most} subscriptions");
            return Err(Refusal::new(Code::LimitExceeded, detail).hint("open another connection"));
        }
        Ok(())
    }

    async fn attach(
        &mut self,
        binding: &Binding,
        key: SubscriptionKey,
    ) -> Result<Listening, Refusal> {
        let (reply, answer) = oneshot::channel();
        let attach = Attach {
            binding: binding.clone(),
            connection: self.number,
            key,
            outbox: Arc::clone(&self.outbox),
            reply,
        };
        self.engine.inner.send(Job::Attach(attach), 1)?;
        answer.await.map_err(|_| crate::readers::closing())?
    }

    /// Reads where a subscription starts, durable.
    async fn begin(&self, binding: &Binding, from: Option<Seq>) -> Result<Resumed, Refusal> {
        let (binding, tables) = (binding.clone(), Arc::clone(&self.engine.inner.tables));
        let read = move |reader: &mut Reader| match from {
            None => resume::snapshot(reader, &binding),
            Some(from) => resume::resume(reader, &tables, &binding, from),
        };
        let resumed = self.engine.inner.read(read).await?;
        self.engine.inner.wait_durable(resumed.seq()).await?;
        Ok(resumed)
    }

    /// As [`Connection::begin`], with the other subscriptions brought to where the answer ends. The
    /// answer to a resume is a frame, and a client takes a frame's end for all its subscriptions: what
    /// the others are still to hear of the time before must stand in front of it. Returns also a frame
    /// from after it, if one was met.
    async fn begin_level(
        &mut self,
        binding: &Binding,
        from: Option<Seq>,
    ) -> Result<(Resumed, Option<Frame>), Refusal> {
        loop {
            if self.lagging {
                self.catch_up().await;
                self.lagging = false;
            }
            let resumed = self.begin(binding, from).await?;
            let Resumed::Delta { seq, .. } = &resumed else { return Ok((resumed, None)) };
            let later = self.draw_level(*seq).await?;
            if !self.lagging {
                return Ok((resumed, later));
            }
        }
    }

    /// Takes in all that was published up to a seq. Returns a frame from after it, if one was met.
    async fn draw_level(&mut self, seq: Seq) -> Result<Option<Frame>, Refusal> {
        self.engine.inner.hub.wait_published(seq).await?;
        loop {
            match self.outbox.take() {
                Mail::Frame(frame) if frame.to > seq => return Ok(Some(frame)),
                Mail::Frame(frame) => self.take_frame(frame),
                Mail::Lagging => {
                    self.lagging = true;
                    return Ok(None);
                }
                Mail::Empty | Mail::Ended(_) => return Ok(None),
            }
        }
    }

    fn make_ready(&mut self, id: Arc<str>, shape: Arc<Shape>, resumed: Resumed, from: Seq) {
        let (seq, rows, refetch) = match resumed {
            Resumed::Delta { seq, delta } => {
                // From where every subscription of the connection is, this one included. It is named
                // also where nothing changed: that is the answer.
                let from = from.min(self.told).min(seq);
                let changes = vec![(Arc::clone(&id), SharedDelta::new(Ok(delta)))];
                let update = Update::Delta { from, to: seq, changes };
                self.ready.push_back(Ready::for_all(update));
                self.told_up_to(seq.max(self.told));
                return;
            }
            Resumed::Snapshot { seq, rows, refetch } => (seq, rows, refetch),
        };
        let reset = refetch.is_some();
        if let Some(refusal) = refetch {
            let update = Update::Error { id: Arc::clone(&id), refusal };
            self.ready.push_back(Ready::only_for(&id, update));
        }
        let mut rows = rows.into_iter().peekable();
        loop {
            let part: Vec<Row> = rows.by_ref().take(limits::SNAPSHOT_PART_ROWS).collect();
            let more = rows.peek().is_some();
            let (of, shape) = (Arc::clone(&id), Arc::clone(&shape));
            let part = SnapshotPart { id: of, seq, shape, rows: part, more, reset };
            self.ready.push_back(Ready::only_for(&id, Update::Snapshot(part)));
            if !more {
                return;
            }
        }
    }

    /// Turns a commit's frame into what the client is told of it.
    fn take_frame(&mut self, frame: Frame) {
        let (told, to) = (self.told, frame.to);
        if to <= told {
            return;
        }
        let mut changes = Vec::with_capacity(frame.changes.len());
        let mut ended = Vec::new();
        for (key, delta) in frame.changes {
            let Some(subscription) = self.subscriptions.get_mut(&key) else { continue };
            if to <= subscription.seq {
                continue;
            }
            if delta.is_stale() || subscription.stale.is_some() {
                if subscription.stale.is_none() {
                    changes.push((Arc::clone(&subscription.id), Arc::clone(&delta)));
                }
                self.reruns.take_news(&self.engine, key, subscription, (to, delta));
                continue;
            }
            subscription.held = None;
            match delta.rows() {
                Ok(_) => changes.push((Arc::clone(&subscription.id), delta)),
                Err(refusal) => ended.push((key, refusal.clone())),
            }
        }
        for (key, refusal) in ended {
            if let Some(id) = self.drop_subscription(key) {
                self.tell_ended(id, refusal);
            }
        }
        if !changes.is_empty() {
            let update = Update::Delta { from: told, to, changes };
            self.ready.push_back(Ready::for_all(update));
            self.told_up_to(to);
        }
    }

    /// Tells the result of a rerun, and what is known to have happened after it.
    fn take_fresh(&mut self, key: SubscriptionKey, fresh: Result<Fresh, Refusal>) {
        let Some(subscription) = self.subscriptions.get_mut(&key) else { return };
        let (id, shape) = (Arc::clone(&subscription.id), Arc::clone(&subscription.shape));
        let fresh = match fresh {
            Ok(fresh) => fresh,
            Err(refusal) => {
                self.drop_subscription(key);
                return self.tell_ended(id, refusal);
            }
        };
        let seq = fresh.version.seq;
        subscription.seq = seq;
        let later = self.reruns.settle(&self.engine, key, subscription, &fresh.version);
        let stale = subscription.stale.is_some();
        match fresh.delta {
            Some(delta) => self.tell_rerun(&id, seq, delta, stale),
            None => {
                let why = "the deltas of this query cost too much: it is run again as a whole";
                let refetch = Refusal::new(Code::Refetch, why).hint(
                    "`abide explain` tells what it costs; an index or a narrower WHERE may help",
                );
                let (rows, refetch) = (fresh.version.rows.clone(), Some(refetch));
                self.make_ready(
                    Arc::clone(&id),
                    shape,
                    Resumed::Snapshot { seq, rows, refetch },
                    seq,
                );
                if stale {
                    self.tell_rerun(&id, seq, SharedDelta::new(Ok(Delta::default())), true);
                }
            }
        }
        for (to, delta) in later {
            if let Some(subscription) = self.subscriptions.get_mut(&key) {
                (subscription.seq, subscription.held) = (to, None);
            }
            match delta.rows() {
                Ok(_) => self.tell_rerun(&id, to, delta, false),
                Err(refusal) => {
                    self.drop_subscription(key);
                    return self.tell_ended(id, refusal.clone());
                }
            }
        }
    }

    fn tell_rerun(&mut self, id: &Arc<str>, seq: Seq, delta: Arc<SharedDelta>, stale: bool) {
        let update = Update::Rerun { id: Arc::clone(id), seq, delta, stale };
        self.ready.push_back(Ready::only_for(id, update));
    }

    fn progress(&mut self, published: Seq) {
        if published > self.told {
            self.ready.push_back(Ready::for_all(Update::Progress { seq: published }));
        }
        self.told_up_to(published.max(self.told));
    }

    fn told_up_to(&mut self, seq: Seq) {
        self.told = seq;
        self.next_progress = Instant::now() + Duration::from_millis(limits::PROGRESS_MS);
    }

    /// Frames were dropped: makes up for them out of the change log, all subscriptions in one frame.
    async fn catch_up(&mut self) {
        let told = self.told;
        // What is run again anyway is, at the seq where the others will be, stale at worst.
        let wanted: Vec<(SubscriptionKey, Binding, Seq)> = (self.subscriptions.iter())
            .filter(|(_, subscription)| subscription.stale.is_none())
            .map(|(key, subscription)| {
                (*key, subscription.binding.clone(), subscription.seq.max(told))
            })
            .collect();
        let tables = Arc::clone(&self.engine.inner.tables);
        let caught_up =
            self.engine.inner.read(move |reader| resume::resume_all(reader, &tables, wanted)).await;
        match caught_up {
            Ok((seq, resumed)) if self.engine.inner.wait_durable(seq).await.is_ok() => {
                self.tell_caught_up(seq, resumed);
            }
            // The engine is closing or poisoned: there is nothing more to tell, and what the client
            // has is still true for the seq it has it at.
            _ => self.end_all(&crate::readers::closing()),
        }
    }

    fn tell_caught_up(&mut self, seq: Seq, resumed: resume::Each) {
        let (told, mut changes) = (self.told, Vec::new());
        for (key, subscription) in &mut self.subscriptions {
            if subscription.stale.is_some() {
                let news = (seq, SharedDelta::unknown());
                self.reruns.take_news(&self.engine, *key, subscription, news);
            }
        }
        for (key, resumed) in resumed {
            let Some(subscription) = self.subscriptions.get_mut(&key) else { continue };
            (subscription.seq, subscription.held) = (seq, None);
            let (id, shape) = (Arc::clone(&subscription.id), Arc::clone(&subscription.shape));
            match resumed {
                Ok(Resumed::Delta { delta, .. }) if delta.is_empty() => {}
                Ok(Resumed::Delta { delta, .. }) => {
                    changes.push((id, SharedDelta::new(Ok(delta))));
                }
                Ok(snapshot) => self.make_ready(id, shape, snapshot, seq),
                Err(refusal) => {
                    self.drop_subscription(key);
                    self.tell_ended(id, refusal);
                }
            }
        }
        if seq > told {
            let update = Update::Delta { from: told, to: seq, changes };
            self.ready.push_front(Ready::for_all(update));
            self.told_up_to(seq);
        }
    }

    fn tell_ended(&mut self, id: Arc<str>, refusal: Refusal) {
        self.ready.push_back(Ready::only_for(&Arc::clone(&id), Update::Error { id, refusal }));
    }

    fn end_all(&mut self, why: &Refusal) {
        for key in self.subscriptions.keys().copied().collect::<Vec<_>>() {
            if let Some(id) = self.drop_subscription(key) {
                self.tell_ended(id, why.clone());
            }
        }
    }

    fn drop_subscription(&mut self, key: SubscriptionKey) -> Option<Arc<str>> {
        let subscription = self.subscriptions.remove(&key)?;
        self.keys.remove(&subscription.id);
        Some(subscription.id)
    }
}
