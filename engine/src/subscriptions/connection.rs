//! One client's subscriptions: gapless snapshots, one frame per commit, and catching up.
//!
//! How a subscription starts without gap or duplicate: (1) the writer attaches it between
//! two transactions; from then on its deltas reach the outbox; (2) a reader reads the result, or
//! the changes since `from`, at a seq S that is not earlier; (3) frames up to S are dropped from
//! the outbox, later ones follow. A slow client is caught up in the same way from its last position.

mod rebind;
mod request;
mod rerun_updates;
mod reruns;
mod subscription;
mod update;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_live::Binding;
use abide_schema::share::ShareKey;
use abide_schema::{Caller, Code, Refusal, Seq, limits};
use serde_json::{Map, Value as JsonValue};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::commit::jobs::{Attach, Registration, WriterJob};
use crate::engine::inner::Inner;
use crate::fault_points;
use crate::queries::failure::QueryFailure;
use crate::results::EngineFuture;
use crate::subscriptions::buffers::Reservation;
use crate::subscriptions::outbox::{Frame, Outbox, OutboxItem, SubscriptionKey};
use crate::subscriptions::resume::{self, ResumeResult};
use crate::subscriptions::shared_delta::ResultChange;

pub use request::{Start, SubscribeRequest};
use reruns::PendingReruns;
use subscription::{PendingDelta, Subscription};
use update::QueuedUpdate;
pub use update::{Change, SnapshotPart, Update};

/// One client's subscriptions. One task owns it.
#[derive(Debug)]
pub struct Connection {
    engine: Arc<Inner>,
    /// The subscriber: updates contain only what this caller may see.
    caller: Caller,
    share: ShareKey,
    number: u64,
    outbox: Arc<Outbox>,
    /// Boxed, because half of each map node is empty.
    subscriptions: BTreeMap<SubscriptionKey, Box<Subscription>>,
    keys: HashMap<Arc<str>, SubscriptionKey>,
    next_key: u64,
    /// Updates that are ready to be sent.
    ready: VecDeque<QueuedUpdate>,
    /// The client received everything up to here.
    sent_up_to: Seq,
    next_progress: Instant,
    /// Expires at or before the next progress message.
    timer: Option<Pin<Box<Sleep>>>,
    /// Frames were dropped and the client is not caught up yet.
    lagging: bool,
    reruns: PendingReruns,
}

/// A subscription that is attached, and its first answer.
struct BegunSubscription {
    key: SubscriptionKey,
    subscription: Subscription,
    resumed: ResumeResult,
    /// A frame after the answer, if one was read.
    later: Option<Frame>,
}

impl Connection {
    pub(crate) fn new(engine: Arc<Inner>, caller: Caller) -> Connection {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        // A later subscription starts at a later state, even if this state is not sent yet.
        let sent_up_to = *engine.queries.durable.borrow();
        let account = engine.buffers.account(&caller);
        Connection {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            outbox: engine.hub.outbox(account.clone()),
            subscriptions: BTreeMap::new(),
            keys: HashMap::new(),
            next_key: 0,
            ready: VecDeque::new(),
            sent_up_to,
            next_progress: Instant::now() + Duration::from_millis(limits::PROGRESS_MS),
            timer: None,
            lagging: false,
            reruns: PendingReruns::new(account),
            engine,
            share: ShareKey::for_caller(&caller),
            caller,
        }
    }

    /// Returns the subscriber.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the seq up to which the client received everything.
    #[must_use]
    pub fn sent_up_to(&self) -> Seq {
        self.sent_up_to
    }

    /// Subscribes. The first answer (the result, the changes, or both) is the next update of [`Connection::next`]
    /// for this id.
    ///
    /// # Errors
    /// The query cannot be live, a parameter is invalid, the id is in use, a limit is reached, or the requested
    /// past state does not exist.
    pub fn subscribe<'a>(
        &'a mut self,
        request: &'a SubscribeRequest<'a>,
    ) -> EngineFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            self.engine.allow(&self.caller, 1)?;
            self.check_room(request.id)?;
            let parameters = self.reserve_parameters(request)?;
            let BegunSubscription { key, mut subscription, resumed, later } = loop {
                match self.try_subscribe(request).await {
                    Ok(begun) => break begun,
                    Err(QueryFailure::Refused(refusal)) => return Err(refusal),
                    Err(QueryFailure::Outdated) => {}
                }
            };
            subscription.parameter_bytes = parameters;
            self.answer(&mut subscription, resumed);
            self.keys.insert(Arc::clone(&subscription.id), key);
            self.subscriptions.insert(key, Box::new(subscription));
            self.engine.metrics.subscriptions_total.add(1);
            if let Some(frame) = later {
                self.take_frame(frame);
            }
            Ok(())
        })
    }

    /// Checks whether a subscription would be refused now: for a caller that first does something else, which would
    /// then be without it. Counts as no call.
    ///
    /// # Errors
    /// Those of [`Connection::subscribe`].
    pub fn check_subscribe<'a>(
        &'a mut self,
        sql: &'a str,
        params: &'a Map<String, JsonValue>,
    ) -> EngineFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            loop {
                let binding = self.engine.queries.plan(&self.caller, sql, params).await?;
                let key = SubscriptionKey(self.next_key);
                self.next_key += 1;
                match self.attach(&binding, key, sql).await {
                    Ok(_registration) => return Ok(()),
                    Err(QueryFailure::Refused(refusal)) => return Err(refusal),
                    Err(QueryFailure::Outdated) => {}
                }
            }
        })
    }

    /// Subscribes with the current policies.
    async fn try_subscribe(
        &mut self,
        request: &SubscribeRequest<'_>,
    ) -> Result<BegunSubscription, QueryFailure> {
        let binding = self.engine.queries.plan(&self.caller, request.sql, request.params).await?;
        let key = SubscriptionKey(self.next_key);
        self.next_key += 1;
        if fault_points::attaches_after_snapshot() {
            return self.begin_before_attach(key, binding, request).await;
        }
        let registration = self.attach(&binding, key, request.sql).await?;
        // On cancellation, dropping the subscription also releases its slot at the writer.
        let subscription = Subscription::new(request, binding, registration);
        let (resumed, later) = self.begin_and_drain(&subscription.binding, request).await?;
        Ok(BegunSubscription { key, subscription, resumed, later })
    }

    /// The seeded bug of [`fault_points::attaches_after_snapshot`], which the simulator must find: reads the first
    /// answer before the writer attaches the subscription, so the subscriber misses the commits between the two.
    async fn begin_before_attach(
        &mut self,
        key: SubscriptionKey,
        binding: Binding,
        request: &SubscribeRequest<'_>,
    ) -> Result<BegunSubscription, QueryFailure> {
        let (resumed, later) = self.begin_and_drain(&binding, request).await?;
        let registration = self.attach(&binding, key, request.sql).await?;
        let subscription = Subscription::new(request, binding, registration);
        Ok(BegunSubscription { key, subscription, resumed, later })
    }

    /// Ends a subscription; no error if it does not exist.
    pub fn unsubscribe(&mut self, id: &str) {
        if let Some(key) = self.keys.get(id).copied() {
            self.drop_subscription(key);
        }
        self.ready.retain_mut(|ready| ready.without(id));
    }

    /// Returns the next update, if one is ready. Allows sending several updates together.
    pub fn try_next(&mut self) -> Option<Update> {
        while self.ready.is_empty() && !self.lagging {
            match self.outbox.take() {
                OutboxItem::Frame(frame) => self.take_frame(frame),
                OutboxItem::Lagging => self.lagging = true,
                OutboxItem::Empty | OutboxItem::Ended(_) => break,
            }
        }
        self.ready.pop_front().map(|ready| ready.update)
    }

    /// Waits for the next update. Cancelling the wait loses nothing.
    pub async fn next(&mut self) -> Update {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return ready.update;
            }
            if self.lagging {
                // Cleared only when it is done, so that cancelling the wait loses nothing.
                self.catch_up().await;
                self.lagging = false;
                continue;
            }
            if let Some((key, result)) = self.reruns.take_finished() {
                self.apply_rerun(key, result);
                continue;
            }
            // Read before the outbox: later publications are not covered.
            let published = self.engine.hub.published();
            match self.outbox.take() {
                OutboxItem::Frame(frame) => self.take_frame(frame),
                OutboxItem::Lagging => self.lagging = true,
                OutboxItem::Ended(why) if !self.subscriptions.is_empty() => self.end_all(&why),
                OutboxItem::Ended(_) => std::future::pending().await,
                OutboxItem::Empty if Instant::now() >= self.next_progress => {
                    self.progress(published)
                }
                OutboxItem::Empty => {
                    // Set when it expires, not with every update: that would be most of its cost.
                    let due = self.next_progress;
                    let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
                    tokio::select! {
                        () = self.outbox.filled() => {}
                        () = self.reruns.wait_finished() => {}
                        () = timer.as_mut() => timer.as_mut().reset(due),
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
            let max = limits::SUBSCRIPTIONS_PER_CONNECTION;
            let detail = format!("a connection has at most {max} subscriptions");
            return Err(Refusal::new(Code::LimitExceeded, detail).hint("open another connection"));
        }
        Ok(())
    }

    /// Counts the parameters of a live query, if they are large.
    fn reserve_parameters(
        &self,
        request: &SubscribeRequest<'_>,
    ) -> Result<Option<Reservation>, Refusal> {
        let bytes = request.parameter_bytes();
        let max = limits::LIVE_PARAMETER_BYTES;
        if bytes > max {
            let detail =
                format!("the parameters of a live query have {bytes} bytes; the limit is {max}");
            return Err(Refusal::new(Code::LimitExceeded, detail)
                .hint("compare with a shorter value, or run the query once"));
        }
        if bytes <= limits::SMALL_LIVE_PARAMETER_BYTES {
            return Ok(None);
        }
        let mut reservation = self.engine.live_parameters.reserve(&self.caller);
        reservation.grow(bytes).map_err(|_| {
            Refusal::new(Code::Overloaded, "the parameters of all live queries have too many bytes")
                .hint("end other live queries with long parameters, or use shorter ones")
        })?;
        Ok(Some(reservation))
    }

    /// Attaches a subscription at the writer: the deltas of later commits reach the outbox.
    async fn attach(
        &mut self,
        binding: &Binding,
        key: SubscriptionKey,
        sql: &str,
    ) -> Result<Registration, QueryFailure> {
        let bytes = subscription_bytes(binding, sql);
        let (reply, answer) = oneshot::channel();
        let attach = Attach {
            binding: binding.clone(),
            by: self.share.clone(),
            bytes,
            connection: self.number,
            key,
            outbox: Arc::clone(&self.outbox),
            reply,
        };
        self.engine.send(Some(&self.engine.turn(&self.caller)), WriterJob::Attach(attach), 1)?;
        answer.await.map_err(|_| self.engine.health.fail_for_dropped_reply())?
    }

    /// Reads the first answer of a subscription, and waits until the state that it shows is durable.
    async fn begin(
        &self,
        binding: &Binding,
        request: &SubscribeRequest<'_>,
    ) -> Result<ResumeResult, QueryFailure> {
        let binding = binding.clone();
        let tables = Arc::clone(&self.engine.queries.tables);
        let start = request.start;
        let checksum = request.checksum;
        let has_other_history = self.has_other_history(request);
        let shared = self.engine.shared_results(&self.caller);
        let resumed = self
            .engine
            .queries
            .read_for(&self.caller, move |reader| {
                if has_other_history {
                    resume::begin_again(reader, &binding, &shared)
                } else {
                    resume::begin(reader, &tables, &binding, start, checksum, &shared)
                }
            })
            .await?;
        self.engine.queries.wait_durable(resumed.seq()).await?;
        Ok(resumed)
    }

    /// Returns `true` if the client's rows are of a state that the file does not have.
    fn has_other_history(&self, request: &SubscribeRequest<'_>) -> bool {
        match (request.start, request.timeline) {
            (Start::After(seq), Some(timeline)) => {
                !self.engine.store.timelines().contain(timeline, seq)
            }
            _ => false,
        }
    }

    /// Reads like [`Connection::begin`], and brings the other subscriptions to the seq of the answer. An answer with
    /// changes is a frame, and a client applies the seq of a frame to all its subscriptions, so earlier changes of the
    /// others must be sent before it. Also returns a frame after the answer, if one was read.
    async fn begin_and_drain(
        &mut self,
        binding: &Binding,
        request: &SubscribeRequest<'_>,
    ) -> Result<(ResumeResult, Option<Frame>), QueryFailure> {
        loop {
            if self.lagging {
                self.catch_up().await;
                self.lagging = false;
            }
            let resumed = self.begin(binding, request).await?;
            if let ResumeResult::Snapshot { .. } = resumed {
                return Ok((resumed, None));
            }
            let later = self.drain_outbox(resumed.seq()).await?;
            if !self.lagging {
                return Ok((resumed, later));
            }
        }
    }

    /// Processes everything published up to a seq. Returns a later frame, if one was read.
    async fn drain_outbox(&mut self, seq: Seq) -> Result<Option<Frame>, Refusal> {
        self.engine.hub.wait_published(seq).await?;
        loop {
            match self.outbox.take() {
                OutboxItem::Frame(frame) if frame.to > seq => return Ok(Some(frame)),
                OutboxItem::Frame(frame) => self.take_frame(frame),
                OutboxItem::Lagging => {
                    self.lagging = true;
                    return Ok(None);
                }
                OutboxItem::Empty | OutboxItem::Ended(_) => return Ok(None),
            }
        }
    }

    fn answer(&mut self, subscription: &mut Subscription, resumed: ResumeResult) {
        let is_frame = !matches!(resumed, ResumeResult::Snapshot { .. });
        let seq = resumed.seq();
        self.ready.extend(subscription.answer(resumed, self.sent_up_to));
        if is_frame {
            self.set_sent_up_to(seq.max(self.sent_up_to));
        }
    }

    /// Converts a commit's frame into updates for the client.
    fn take_frame(&mut self, frame: Frame) {
        let sent_up_to = self.sent_up_to;
        let to = frame.to;
        if to <= sent_up_to {
            return;
        }
        let has_outdated = frame.changes.iter().any(|(key, delta)| {
            self.subscriptions.contains_key(key) && matches!(delta.change(), ResultChange::Outdated)
        });
        if has_outdated {
            // Policies have changed: catch up with the new ones.
            self.lagging = true;
            return;
        }
        let mut changes = Vec::with_capacity(frame.changes.len());
        for (key, delta) in frame.changes {
            let Some(subscription) = self.subscriptions.get_mut(&key) else { continue };
            if to <= subscription.seq {
                continue;
            }
            if delta.is_stale() || subscription.stale.is_some() {
                if subscription.stale.is_none() {
                    changes.push(subscription.unknown_change(delta.clone()));
                }
                let pending = PendingDelta { seq: to, delta };
                self.reruns.push_delta(&self.engine, key, subscription, pending);
                continue;
            }
            changes.push(subscription.change(to, delta));
        }
        if !changes.is_empty() {
            let update = Update::Delta { from: sent_up_to, to, changes };
            self.ready.push_back(QueuedUpdate::for_all(update));
            self.set_sent_up_to(to);
        }
    }

    fn progress(&mut self, published: Seq) {
        if published > self.sent_up_to {
            self.ready.push_back(QueuedUpdate::for_all(Update::Progress { seq: published }));
        }
        self.set_sent_up_to(published.max(self.sent_up_to));
    }

    fn set_sent_up_to(&mut self, seq: Seq) {
        self.sent_up_to = seq;
        self.next_progress = Instant::now() + Duration::from_millis(limits::PROGRESS_MS);
    }

    /// Frames were dropped, or visibility has changed: catches up all subscriptions from the change log,
    /// in one frame.
    fn catch_up(&mut self) -> EngineFuture<'_, ()> {
        Box::pin(async move {
            loop {
                self.replan().await;
                let requests = self.catch_up_requests();
                let tables = Arc::clone(&self.engine.queries.tables);
                let shared = self.engine.shared_results(&self.caller);
                let caught_up = self.engine.queries.read_for(&self.caller, move |reader| {
                    resume::resume_all(reader, &tables, requests, &shared)
                });
                match caught_up.await {
                    Ok((_, resumed)) if resumed.iter().any(is_outdated) => {}
                    Ok((seq, resumed)) => match self.engine.queries.wait_durable(seq).await {
                        Ok(()) => return self.send_catch_up(seq, resumed),
                        Err(why) => return self.end_all(&why),
                    },
                    // Nothing more can be sent, and the client's rows are still correct for the seq
                    // that it has.
                    Err(why) => return self.end_all(&why),
                }
            }
        })
    }

    fn send_catch_up(&mut self, seq: Seq, resumed: resume::ResumeResults) {
        let sent_up_to = self.sent_up_to;
        let mut changes = Vec::new();
        self.extend_stale(seq);
        for (key, resumed) in resumed {
            let Some(subscription) = self.subscriptions.get_mut(&key) else { continue };
            subscription.previous = None;
            match resumed {
                Ok(ResumeResult::Delta { delta, .. }) if delta.is_empty() => subscription.seq = seq,
                Ok(ResumeResult::Delta { delta, .. }) => {
                    changes.push(subscription.change(seq, delta))
                }
                Ok(whole) => self.ready.extend(subscription.answer(whole, sent_up_to)),
                Err(failure) => {
                    if let (Some(id), QueryFailure::Refused(refusal)) =
                        (self.drop_subscription(key), failure)
                    {
                        self.send_ended(id, refusal);
                    }
                }
            }
        }
        if seq > sent_up_to {
            let update = Update::Delta { from: sent_up_to, to: seq, changes };
            // After whole results: a client with an outdated result holds none at this seq.
            self.ready.push_back(QueuedUpdate::for_all(update));
            self.set_sent_up_to(seq);
        }
    }

    fn send_ended(&mut self, id: Arc<str>, refusal: Refusal) {
        self.ready
            .push_back(QueuedUpdate::only_for(&Arc::clone(&id), Update::Error { id, refusal }));
    }

    fn end_all(&mut self, why: &Refusal) {
        for key in self.subscriptions.keys().copied().collect::<Vec<_>>() {
            if let Some(id) = self.drop_subscription(key) {
                self.send_ended(id, why.clone());
            }
        }
    }

    fn drop_subscription(&mut self, key: SubscriptionKey) -> Option<Arc<str>> {
        let subscription = self.subscriptions.remove(&key)?;
        self.keys.remove(&subscription.id);
        Some(subscription.id)
    }
}

/// `true` if a subscription was caught up with outdated policies.
fn is_outdated(caught_up: &(SubscriptionKey, Result<ResumeResult, QueryFailure>)) -> bool {
    matches!(caught_up.1, Err(QueryFailure::Outdated))
}

/// Returns the bytes that a subscription of a restricted caller takes; it keeps its text for the next plan. Large
/// parameters are counted separately.
fn subscription_bytes(binding: &Binding, sql: &str) -> usize {
    if binding.is_bounded() { limits::SUBSCRIPTION_OVERHEAD_BYTES + sql.len() } else { 0 }
}
