//! The subscriptions of a client across connections: maps frames to subscriptions and tracks where each
//! one resumes.
//!
//! The rule of the protocol: a subscription at seq s accepts a frame iff `from ≤ s < to`. A frame that
//! ends at or before s is a duplicate and is skipped; a frame that begins after s leaves a gap, so the
//! subscription is restarted from s.
//!
//! One kind of frame is an exception. The answer to `subscribe` with an `after_seq` is a delta too, but it
//! concerns that subscription alone: others may still expect changes of the same span, so it must not
//! advance them. It is recognised by the subscription that waits for it. If nothing changed it names no
//! subscription; then it belongs to the first that waits, since answers arrive in order. The same holds
//! for the delta that follows the snapshot of a past state.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use abide_schema::wire::ClientMessage;
use abide_schema::{Code, Refusal, Row, Seq};
use tokio::time::Instant;

use super::frame::{Change, Frame};
use super::mailbox::Mailbox;
use super::socket_connection::SocketConnection;
use crate::backend::{Backoff, Event, Start, SubscriptionQuery};

/// The id of one start of a subscription: each start has a new id, so that frames of an earlier one
/// cannot be mistaken for it.
type SubscriptionId = u64;

#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    all: BTreeMap<u64, Subscription>,
    names: HashMap<SubscriptionId, u64>,
    next_name: SubscriptionId,
    /// Starts without an answer, in order, with their positions. It includes subscriptions that were
    /// dropped: their answers still arrive.
    unanswered: VecDeque<(SubscriptionId, Start)>,
    /// The connection received everything up to here; `None` before its first frame.
    received: Option<Seq>,
    /// The timeline of the connection; `None` before its first frame.
    timeline: Option<String>,
    /// When to restart the first of those that wait.
    retry_at: Option<Instant>,
}

#[derive(Debug)]
struct Subscription {
    query: SubscriptionQuery,
    mailbox: Arc<Mailbox>,
    state: State,
    /// Where it starts as long as the mailbox has received nothing.
    start: Start,
    /// Everything up to here is in the mailbox.
    seq: Option<Seq>,
    /// The timeline of `seq`: that of the last connection on which it was live, or on which the consumer chose `seq`.
    timeline: Option<String>,
    /// Later changes are unknown until a rerun.
    stale: bool,
    /// The parts of a snapshot received so far.
    parts: Vec<Row>,
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// There is no connection.
    Off,
    /// Started, not answered.
    Begun(SubscriptionId),
    /// Receives every commit.
    Live(SubscriptionId),
    /// To be restarted at this time.
    Later(Instant),
    /// Its consumer does not read: to be restarted when it does.
    Dropped,
}

impl Subscription {
    /// The seq up to which it is complete, on a connection that has received everything up to `received`.
    fn complete_up_to(&self, received: Option<Seq>) -> Option<Seq> {
        if self.stale { self.seq } else { self.seq.max(received) }
    }
}

impl Subscriptions {
    pub(crate) fn add(
        &mut self,
        key: u64,
        query: SubscriptionQuery,
        start: Start,
        mailbox: Arc<Mailbox>,
        connection: Option<&mut SocketConnection<'_>>,
    ) {
        let subscription = Subscription {
            query,
            mailbox,
            state: State::Off,
            start,
            seq: start.seq(),
            // A consumer that stored `seq` in an earlier process cannot be checked. One that just read it can: the
            // connection may be lost before the first answer.
            timeline: self.timeline.clone(),
            stale: false,
            parts: Vec::new(),
            backoff: Backoff::new(),
        };
        self.all.insert(key, subscription);
        if let Some(connection) = connection {
            self.start(key, connection);
        }
    }

    /// The consumer reads again, and has everything up to a seq, or nothing to resume from.
    pub(crate) fn resume(
        &mut self,
        key: u64,
        start: Start,
        mut connection: Option<&mut SocketConnection<'_>>,
    ) {
        self.unsubscribe(key, connection.as_deref_mut());
        let Some(subscription) = self.all.get_mut(&key) else { return };
        (subscription.start, subscription.seq) = (start, start.seq());
        if let Some(connection) = connection {
            self.start(key, connection);
        }
    }

    /// The consumer dropped it.
    pub(crate) fn remove(&mut self, key: u64, connection: Option<&mut SocketConnection<'_>>) {
        self.unsubscribe(key, connection);
        self.all.remove(&key);
    }

    /// Restarts all on a new connection.
    pub(crate) fn restart_all(&mut self, connection: &mut SocketConnection<'_>) {
        let received = self.received.take();
        self.timeline = None;
        self.names.clear();
        self.unanswered.clear();
        self.retry_at = None;
        let mut again = Vec::new();
        for (key, subscription) in &mut self.all {
            if subscription.state == State::Dropped {
                continue;
            }
            if let State::Live(_) = subscription.state {
                subscription.seq = subscription.complete_up_to(received);
            }
            subscription.state = State::Off;
            again.push(*key);
        }
        for key in again {
            self.start(key, connection);
        }
    }

    /// The first frame of a connection.
    pub(crate) fn handle_hello(&mut self, frame: &Frame) {
        self.timeline.clone_from(&frame.timeline);
    }

    /// When to [`retry`](Subscriptions::retry).
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Restarts those whose retry time has come.
    pub(crate) fn retry(&mut self, connection: &mut SocketConnection<'_>) {
        let now = Instant::now();
        self.retry_at = None;
        let mut due = Vec::new();
        for (key, subscription) in &self.all {
            match subscription.state {
                State::Later(at) if at <= now => due.push(*key),
                State::Later(at) => {
                    self.retry_at = Some(self.retry_at.map_or(at, |first| first.min(at)));
                }
                _ => {}
            }
        }
        for key in due {
            self.start(key, connection);
        }
    }

    pub(crate) fn handle_snapshot(
        &mut self,
        mut frame: Frame,
        connection: &mut SocketConnection<'_>,
    ) {
        let Some((name, key)) = self.find(frame.id.as_deref()) else { return };
        let Some(subscription) = self.all.get_mut(&key) else { return };
        subscription.parts.extend(frame.take_rows());
        if frame.more {
            return;
        }
        let seq = frame.seq.unwrap_or(Seq::ZERO);
        let checksum = frame.checksum;
        let history_changed = frame.history_changed;
        let info = Arc::new(frame.take_info());
        let rows = std::mem::take(&mut subscription.parts);
        (subscription.seq, subscription.stale) = (Some(seq), false);
        subscription.timeline.clone_from(&self.timeline);
        let more_to_come = self.continues_from_past(name, seq);
        if !more_to_come {
            self.forget_answered(name);
        }
        let event = Event::Snapshot { seq, info, rows, checksum, history_changed };
        self.deliver(key, event, connection);
        if !more_to_come && self.received.is_some_and(|received| received > seq) {
            self.start(key, connection);
        }
    }

    /// Whether a snapshot is that of a past state, with the changes since still to follow.
    fn continues_from_past(&mut self, name: SubscriptionId, seq: Seq) -> bool {
        let waiting = self.unanswered.iter_mut().find(|(other, _)| *other == name);
        match waiting {
            Some((_, start @ Start::AsOf(_))) => {
                *start = Start::After(seq);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn handle_delta(&mut self, frame: Frame, connection: &mut SocketConnection<'_>) {
        let (Some(from), Some(to)) = (frame.from, frame.to) else { return };
        if let Some(name) = self.find_answered_start(from, &frame.changes) {
            let change = frame.changes.into_iter().next().unwrap_or_default();
            self.forget_answered(name);
            if let Some(key) = self.names.get(&name) {
                self.handle_resumed(*key, from, to, change, connection);
            }
            // Earlier changes for the other subscriptions arrived before the answer.
            self.received = self.received.max(Some(to));
            return;
        }
        if self.received.is_none_or(|received| from > received) {
            self.close_gap(from, connection);
        }
        let received = self.received;
        for change in frame.changes {
            let Some((name, key)) = self.find(Some(&change.id)) else { continue };
            let Some(subscription) = self.all.get_mut(&key) else { continue };
            let at = subscription.complete_up_to(received);
            if subscription.state == State::Live(name) && Some(from) <= at && at < Some(to) {
                if change.stale {
                    (subscription.seq, subscription.stale) = (at, true);
                    continue;
                }
                subscription.seq = Some(to);
                let event = change.into_event(to);
                self.deliver(key, event, connection);
            }
        }
        self.received = self.received.max(Some(to));
    }

    pub(crate) fn handle_rerun(&mut self, frame: Frame, connection: &mut SocketConnection<'_>) {
        let Some(to) = frame.seq else { return };
        for change in frame.changes {
            let Some((name, key)) = self.find(Some(&change.id)) else { continue };
            let Some(subscription) = self.all.get_mut(&key) else { continue };
            if subscription.state != State::Live(name) || Some(to) < subscription.seq {
                continue;
            }
            (subscription.seq, subscription.stale) = (Some(to), change.stale);
            let event = change.into_event(to);
            self.deliver(key, event, connection);
        }
    }

    pub(crate) fn handle_progress(&mut self, frame: &Frame) {
        let Some(seq) = frame.seq else { return };
        self.received = self.received.max(Some(seq));
        for subscription in self.all.values_mut() {
            if let State::Live(_) = subscription.state
                && !subscription.stale
                && subscription.seq < Some(seq)
            {
                subscription.seq = Some(seq);
                subscription.mailbox.push_progress(seq);
            }
        }
    }

    /// The server refuses or ends a subscription; `false` if the id is unknown.
    pub(crate) fn handle_refusal(&mut self, id: Option<&str>, refusal: Refusal) -> bool {
        let Some(name) = id.and_then(parse_subscription_id) else { return false };
        if refusal.code != Code::ResyncRequired {
            // Refusals do not wait for the answers before them.
            self.unanswered.retain(|(other, _)| *other != name);
        }
        let Some(subscription) = self.names.get(&name).and_then(|key| self.all.get_mut(key)) else {
            return true; // The consumer dropped it.
        };
        let key = self.names[&name];
        match refusal.code {
            // A snapshot follows.
            Code::ResyncRequired => subscription.parts.clear(),
            // Only one that has rows waits for space: the consumer of a new one must hear why it has none.
            code if code.is_temporary() || code == Code::DiskFull && subscription.seq.is_some() => {
                if subscription.state == State::Live(name) {
                    subscription.seq = subscription.complete_up_to(self.received);
                }
                let again = Instant::now() + subscription.backoff.next();
                subscription.state = State::Later(again);
                self.names.remove(&name);
                self.retry_at = Some(self.retry_at.map_or(again, |first| first.min(again)));
            }
            _ => {
                subscription.mailbox.end(refusal.into());
                self.unsubscribe(key, None);
                self.all.remove(&key);
            }
        }
        true
    }

    /// Ends all.
    pub(crate) fn end(&mut self, why: &crate::Error) {
        for subscription in std::mem::take(&mut self.all).into_values() {
            subscription.mailbox.end(why.clone());
        }
    }

    /// The start that a delta answers, if it is an answer.
    fn find_answered_start(&self, from: Seq, changes: &[Change]) -> Option<SubscriptionId> {
        let named = match changes {
            [] => None,
            [change] => Some(parse_subscription_id(&change.id)?),
            _ => return None,
        };
        let mut waiting = self.unanswered.iter();
        let found = waiting.find(|(name, start)| match named {
            Some(named) => *name == named,
            None => *start == Start::After(from),
        });
        found.map(|(name, _)| *name)
    }

    fn handle_resumed(
        &mut self,
        key: u64,
        from: Seq,
        to: Seq,
        change: Change,
        connection: &mut SocketConnection<'_>,
    ) {
        let Some(subscription) = self.all.get_mut(&key) else { return };
        if Some(from) > subscription.seq || self.received.is_some_and(|received| received > to) {
            self.start(key, connection);
            return;
        }
        if Some(to) < subscription.seq {
            return;
        }
        subscription.seq = Some(to);
        // Also without changes: it carries the shape of the result.
        self.deliver(key, change.into_event(to), connection);
    }

    /// A frame begins after the end of the previous one: subscriptions behind it restart.
    fn close_gap(&mut self, from: Seq, connection: &mut SocketConnection<'_>) {
        let received = self.received;
        let behind = self.all.iter().filter(|(_, subscription)| {
            let at = subscription.complete_up_to(received);
            matches!(subscription.state, State::Live(_)) && at < Some(from)
        });
        for key in behind.map(|(key, _)| *key).collect::<Vec<_>>() {
            tracing::warn!(
                name: "subscription_gap",
                %from,
                "the server left a gap; restarting a subscription"
            );
            if let Some(subscription) = self.all.get_mut(&key) {
                subscription.seq = subscription.complete_up_to(received);
            }
            self.unsubscribe(key, Some(connection));
            self.start(key, connection);
        }
    }

    fn find(&self, id: Option<&str>) -> Option<(SubscriptionId, u64)> {
        let name = parse_subscription_id(id?)?;
        Some((name, *self.names.get(&name)?))
    }

    fn start(&mut self, key: u64, connection: &mut SocketConnection<'_>) {
        self.unsubscribe(key, Some(connection));
        let Some(subscription) = self.all.get_mut(&key) else { return };
        self.next_name += 1;
        let name = self.next_name;
        let start = subscription.seq.map_or(subscription.start, Start::After);
        let (after_seq, as_of) = match start {
            Start::Now => (None, None),
            Start::After(seq) => (Some(seq), None),
            Start::AsOf(seq) => (None, Some(seq)),
        };
        let SubscriptionQuery { sql, params, checksum, explain } = subscription.query.clone();
        let id = format!("q{name}");
        let timeline = subscription.timeline.clone().filter(|_| after_seq.is_some());
        let message = ClientMessage::Subscribe {
            id,
            sql,
            params,
            after_seq,
            timeline,
            as_of,
            checksum,
            explain,
        };
        connection.send(encode(&message));
        subscription.state = State::Begun(name);
        subscription.stale = false;
        subscription.parts.clear();
        self.names.insert(name, key);
        self.unanswered.push_back((name, start));
    }

    fn forget_answered(&mut self, name: SubscriptionId) {
        // Answers arrive in order: those before it will not arrive any more.
        if let Some(at) = self.unanswered.iter().position(|(other, _)| *other == name) {
            self.unanswered.drain(..=at);
        }
        let key = self.names.get(&name);
        if let Some(subscription) = key.and_then(|key| self.all.get_mut(key)) {
            subscription.state = State::Live(name);
            subscription.timeline.clone_from(&self.timeline);
            subscription.backoff = Backoff::new();
        }
    }

    /// Unsubscribes the current start of a subscription.
    fn unsubscribe(&mut self, key: u64, connection: Option<&mut SocketConnection<'_>>) {
        let Some(subscription) = self.all.get_mut(&key) else { return };
        if let State::Begun(name) | State::Live(name) = subscription.state {
            self.names.remove(&name);
            if let Some(connection) = connection {
                connection.send(encode(&ClientMessage::Unsubscribe { id: format!("q{name}") }));
            }
        }
        subscription.state = State::Off;
    }

    /// Puts an event into the mailbox; if that has no room, unsubscribes until the consumer reads again.
    fn deliver(&mut self, key: u64, event: Event, connection: &mut SocketConnection<'_>) {
        let Some(subscription) = self.all.get_mut(&key) else { return };
        if subscription.mailbox.push(event).is_err() {
            self.unsubscribe(key, Some(connection));
            if let Some(subscription) = self.all.get_mut(&key) {
                subscription.state = State::Dropped;
            }
        }
    }
}

fn parse_subscription_id(id: &str) -> Option<SubscriptionId> {
    id.strip_prefix('q')?.parse().ok()
}

fn encode(message: &ClientMessage) -> String {
    serde_json::to_string(message).expect("a message has string keys and serialises")
}
