//! Sends the events of tasks to webhooks, as push notifications.
//!
//! The events of a run are the outbox, and the row of a webhook has the number of the last event that was delivered. So
//! a notification is sent at least once, in order, even by another process after a crash. A repeated notification has
//! the same id.
//!
//! A live query returns the webhooks with events that are not delivered. A task serves each of them. A scope has at
//! most a share of the tasks, so slow receivers of one tenant do not delay the others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use abide_engine::{SubscribeRequest, Tenants, Update};
use abide_schema::{Caller, Code, Refusal, Row, Value};
use abide_server::port::AuthSession;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use futures_util::FutureExt as _;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Map, Value as JsonValue, json};
use tokio::task::JoinSet;

use super::binding::VERSION;
use super::task::{Framing, TaskEncoder, TaskIds};
use crate::follow::Follower;
use crate::limits;
use crate::start::{self, params};
use crate::state::ProtocolState;
use crate::turn::{Turn, TurnEnd};
use crate::webhooks::{WebhookRequest, WebhookSender};

/// The webhooks with events that are not delivered.
const WAITING: &str = "SELECT w.id, w.set_by, w.authority, w.set_seq, r.events FROM webhooks w \
    JOIN runs r ON r.id = w.run_id \
    WHERE w.status = 'active' AND w.due_at IS NULL AND r.events > w.delivered";

/// Sends notifications until the server stops.
pub(crate) async fn run(app: ProtocolState) {
    let Some(sender) = app.webhooks.clone() else { return };
    let draining = app.port.until_draining();
    tokio::select! {
        () = draining => {}
        () = async {
            loop {
                let refusal = serve(&app, &sender).await;
                tracing::warn!(
                    name: "push_interrupted",
                    %refusal,
                    "push notifications are interrupted"
                );
                tokio::time::sleep(limits::WEBHOOK_FAILURE_PAUSE).await;
            }
        } => {}
    }
}

/// Sends notifications until the live query ends.
async fn serve(app: &ProtocolState, sender: &Arc<dyn WebhookSender>) -> Refusal {
    let mut connection = app.engine.connect(&Caller::local());
    let none = Map::new();
    let request = SubscribeRequest::new("webhooks", WAITING, &none);
    if let Err(refusal) = connection.subscribe(&request).await {
        return refusal;
    }
    let mut outbox = Outbox { tenants: app.engine.tenants().clone(), ..Outbox::default() };
    let mut deliveries: JoinSet<Option<i64>> = JoinSet::new();
    loop {
        while let Some((id, looked_at)) = outbox.take_due() {
            let app = app.clone();
            let sender = Arc::clone(sender);
            let webhook = id.clone();
            let delivery =
                async move { deliver_webhook(&app, &*sender, &webhook, looked_at).await };
            let task = deliveries.spawn(delivery).id();
            outbox.mark_begun(task, id);
        }
        tokio::select! {
            update = connection.next() => {
                // Many updates are one look at all webhooks.
                let mut next = Some(update);
                while let Some(update) = next {
                    if let Err(refusal) = outbox.apply(&update) {
                        return refusal;
                    }
                    next = connection.next().now_or_never();
                }
            }
            Some(done) = deliveries.join_next_with_id() => match done {
                Ok((task, looked_at)) => outbox.mark_finished(task, looked_at),
                Err(panicked) => outbox.mark_finished(panicked.id(), None),
            },
        }
    }
}

/// A webhook with events that are not delivered.
#[derive(Debug)]
struct Waiting {
    /// The tenant of the caller that set it.
    share: String,
    set_seq: i64,
    /// How many events its run has.
    events: i64,
    /// How many of them were looked at: those that are not delivered need no notification.
    looked_at: i64,
}

/// The webhooks to serve, and those that are served.
#[derive(Debug, Default)]
struct Outbox {
    tenants: Tenants,
    waiting: BTreeMap<String, Waiting>,
    /// The ids and the shares of those that are served, by task.
    busy: BTreeMap<String, String>,
    tasks: HashMap<tokio::task::Id, String>,
    /// The ids of those that came again while they were served, for example because the pause after a failure has ended
    /// already. What their tasks have looked at was before.
    came_again: BTreeSet<String>,
    /// The share that was served last: the next one comes first.
    last_share: String,
    is_snapshot: bool,
}

impl Outbox {
    /// Takes over a change of the live query.
    fn apply(&mut self, update: &Update) -> Result<(), Refusal> {
        match update {
            Update::Snapshot(part) => {
                if !self.is_snapshot {
                    self.waiting.clear();
                }
                self.is_snapshot = part.more;
                self.apply_change(&[], part.rows.iter());
            }
            Update::Delta { changes, .. } => {
                for change in changes {
                    let delta = change.delta.rows();
                    self.apply_change(&delta.deletes, delta.inserts.iter().chain(&delta.updates));
                }
            }
            Update::Rerun { change, .. } => {
                let delta = change.delta.rows();
                self.apply_change(&delta.deletes, delta.inserts.iter().chain(&delta.updates));
            }
            Update::Error { refusal, .. } if refusal.code != Code::ResyncRequired => {
                return Err(refusal.clone());
            }
            Update::Error { .. } | Update::Progress { .. } => {}
        }
        Ok(())
    }

    fn apply_change<'a>(&mut self, deletes: &[Row], new: impl Iterator<Item = &'a Row>) {
        let ids = deletes.iter().filter_map(|row| as_text(row.first()?));
        let former: HashMap<&str, Option<Waiting>> =
            ids.map(|id| (id, self.waiting.remove(id))).collect();
        for row in new {
            let [Value::Text(id), Value::Text(set_by), authority, set_seq, events] = &**row else {
                continue;
            };
            let share = self.tenants.key(&Caller::recorded(set_by, as_text(authority)));
            let set_seq = integer_or_zero(set_seq);
            let events = integer_or_zero(events);
            let before = former.get(&**id).and_then(Option::as_ref);
            let same = before.or_else(|| self.waiting.get(&**id));
            let looked_at = same.filter(|it| it.set_seq == set_seq).map(|it| it.looked_at);
            if looked_at.is_none() && self.busy.contains_key(&**id) {
                self.came_again.insert(id.to_string());
            }
            let looked_at = looked_at.unwrap_or(0);
            let waiting = Waiting { share, set_seq, events, looked_at };
            self.waiting.insert(id.to_string(), waiting);
        }
    }

    /// Returns the next webhook to serve, and how many events of its run were looked at. Shares take turns.
    fn take_due(&mut self) -> Option<(String, i64)> {
        if self.busy.len() >= limits::WEBHOOK_DELIVERIES {
            return None;
        }
        let mut used: BTreeMap<&str, usize> = BTreeMap::new();
        for share in self.busy.values() {
            *used.entry(share).or_default() += 1;
        }
        let due = self.waiting.iter().filter(|(id, waiting)| {
            waiting.events > waiting.looked_at
                && used
                    .get(waiting.share.as_str())
                    .is_none_or(|used| *used < limits::WEBHOOK_DELIVERIES_PER_SCOPE)
                && !self.busy.contains_key(*id)
        });
        // The shares after the last one come first.
        let (id, waiting) =
            due.min_by_key(|(_, waiting)| (waiting.share <= self.last_share, &waiting.share))?;
        let id = id.clone();
        let share = waiting.share.clone();
        let looked_at = waiting.looked_at;
        self.last_share = share;
        Some((id, looked_at))
    }

    /// A task serves a webhook.
    fn mark_begun(&mut self, task: tokio::task::Id, id: String) {
        let share = self.waiting.get(&id).map(|waiting| waiting.share.clone());
        self.busy.insert(id.clone(), share.unwrap_or_default());
        self.tasks.insert(task, id);
    }

    /// A webhook is no longer served. Without a number it waits for the next event, or for a change of its row.
    fn mark_finished(&mut self, task: tokio::task::Id, looked_at: Option<i64>) {
        let Some(id) = self.tasks.remove(&task) else { return };
        self.busy.remove(&id);
        if self.came_again.remove(&id) {
            return;
        }
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.looked_at = looked_at.unwrap_or(waiting.events);
        }
    }
}

fn integer_or_zero(value: &Value) -> i64 {
    match value {
        Value::Integer(number) => *number,
        _ => 0,
    }
}

fn as_text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn owned_text(value: &Value) -> Option<String> {
    as_text(value).map(str::to_owned)
}

/// A webhook that is served.
struct Webhook {
    id: String,
    run_id: String,
    url: String,
    token: Option<String>,
    scheme: Option<String>,
    credentials: Option<String>,
    delivered: i64,
    attempts: i64,
    caller: Caller,
    set_seq: i64,
    events: i64,
}

/// Why the events of a webhook are not delivered.
enum Stop {
    /// The delivery is tried again after a pause.
    Later(String),
    /// The webhook gets no more notifications.
    Failed(String),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        match refusal.code {
            Code::NotFound => Stop::Failed("the caller that set it cannot see the run".to_owned()),
            _ => Stop::Later(format!("the events cannot be read: {}", refusal.detail)),
        }
    }
}

/// Sends the events of a webhook that are not delivered. Returns how many events of the run it has looked at; `None` if there is
/// nothing to send to it.
async fn deliver_webhook(
    app: &ProtocolState,
    sender: &dyn WebhookSender,
    id: &str,
    looked_at: i64,
) -> Option<i64> {
    let delivered = async {
        let Some(mut webhook) = find_webhook(app, id).await? else { return Ok(None) };
        let events = webhook.events;
        if !is_worth_a_look(app, &webhook, looked_at).await? {
            return Ok(Some(events));
        }
        let before = webhook.delivered;
        let stop = send_notifications(app, sender, &mut webhook).await.err();
        let has_progress = webhook.delivered > before;
        let Some(stop) = stop else { return Ok(Some(events)) };
        let failed_before = if has_progress { 0 } else { webhook.attempts };
        let attempts = failed_before + 1;
        let (why, retry) = match stop {
            Stop::Later(why) if attempts < limits::WEBHOOK_ATTEMPTS => {
                (why, Some(retry_pause(attempts)))
            }
            Stop::Later(why) | Stop::Failed(why) => (why, None),
        };
        record_delivery(app, &webhook, Some((why, retry))).await?;
        Ok::<_, Refusal>(Some(events))
    };
    match delivered.await {
        Ok(events) => events,
        Err(refusal) => {
            // It was replaced or deleted, or the engine is overloaded.
            tracing::debug!(%refusal, webhook = id, "a push notification is not recorded");
            tokio::time::sleep(limits::WEBHOOK_FAILURE_PAUSE).await;
            Some(looked_at)
        }
    }
}

/// Returns the webhook, if there is something to send to it.
async fn find_webhook(app: &ProtocolState, id: &str) -> Result<Option<Webhook>, Refusal> {
    let sql = "SELECT w.run_id, w.url, w.token, w.scheme, w.credentials, w.delivered, w.attempts, \
               w.set_by, w.authority, w.set_seq, r.events \
               FROM webhooks w JOIN runs r ON r.id = w.run_id \
               WHERE w.id = :id AND w.status = 'active' AND w.due_at IS NULL";
    let params = params([("id", json!(id))]);
    let found = app.engine.query(&Caller::local(), sql, &params, None).await?;
    let Some(row) = found.rows.first() else { return Ok(None) };
    Ok(Some(Webhook {
        id: id.to_owned(),
        run_id: owned_text(&row[0]).unwrap_or_default(),
        url: owned_text(&row[1]).unwrap_or_default(),
        token: owned_text(&row[2]),
        scheme: owned_text(&row[3]),
        credentials: owned_text(&row[4]),
        delivered: integer_or_zero(&row[5]),
        attempts: integer_or_zero(&row[6]),
        caller: Caller::recorded(as_text(&row[7]).unwrap_or_default(), as_text(&row[8])),
        set_seq: integer_or_zero(&row[9]),
        events: integer_or_zero(&row[10]),
    }))
}

/// Returns `true` if there may be a notification: pieces of text need none, and they are most of the events.
async fn is_worth_a_look(
    app: &ProtocolState,
    webhook: &Webhook,
    looked_at: i64,
) -> Result<bool, Refusal> {
    let sql = "SELECT 1 FROM run_events WHERE run_id = :run AND number > :after \
               AND kind NOT IN ('token', 'reasoning', 'line') LIMIT 1";
    let after = looked_at.max(webhook.delivered);
    let params = params([("run", json!(webhook.run_id)), ("after", json!(after))]);
    let found = app.engine.query(&Caller::local(), sql, &params, None).await?;
    Ok(!found.rows.is_empty())
}

/// Sends the notifications after the last one, in order, and records each event.
async fn send_notifications(
    app: &ProtocolState,
    sender: &dyn WebhookSender,
    webhook: &mut Webhook,
) -> Result<(), Stop> {
    check_identity(app, &webhook.caller).await?;
    let caller = webhook.caller.clone();
    let run = start::find(&app.engine, &caller, &webhook.run_id).await?;
    let ids = TaskIds::for_run(&caller, &run);
    let mut encoder = TaskEncoder::new(ids.clone(), Vec::new(), Framing::Lines);
    encoder.has_pieces = false;
    let session = AuthSession { caller: caller.clone() };
    let mut follower = Follower::new(app, session, &run, Turn::span(1, i64::MAX)).await?;
    let mut last = 0;
    while let Some(events) = follower.next_existing().await? {
        for event in &events {
            let mut text = String::new();
            for change in follower.turn.add(event) {
                encoder.encode_change(&follower.turn, &change, &mut text);
            }
            last = event.number;
            if event.number <= webhook.delivered || text.is_empty() {
                continue;
            }
            for (nth, body) in text.lines().enumerate() {
                let id = format!("{}.{}.{}", ids.task, event.number, nth + 1);
                send_notification(app, sender, webhook, id, body).await?;
            }
            webhook.delivered = event.number;
            record_delivery(app, webhook, None).await?;
        }
    }
    let has_ended = matches!(follower.turn.end, Some(TurnEnd::Done | TurnEnd::Failed { .. }));
    if has_ended && last > webhook.delivered {
        webhook.delivered = last;
        record_delivery(app, webhook, None).await?;
    }
    Ok(())
}

/// Refuses to send for an identity that was disabled.
async fn check_identity(app: &ProtocolState, caller: &Caller) -> Result<(), Stop> {
    let sql = "SELECT id FROM identities WHERE id = :id AND disabled_at IS NOT NULL";
    let params = params([("id", json!(caller.id()))]);
    let found = start::first_texts(&app.engine, &Caller::local(), sql, params).await?;
    if found.is_empty() {
        Ok(())
    } else {
        Err(Stop::Failed("the identity that set it is disabled".to_owned()))
    }
}

/// Sends one notification: a POST with an event of the task as JSON. It succeeds if the receiver responds with 2xx.
///
/// # Errors
/// [`Stop::Failed`] after HTTP 410, with which a receiver ends its subscription (Standard Webhooks); [`Stop::Later`]
/// after any other failure.
async fn send_notification(
    app: &ProtocolState,
    sender: &dyn WebhookSender,
    webhook: &Webhook,
    id: String,
    body: &str,
) -> Result<(), Stop> {
    let unix_seconds = (app.engine.now().0 / 1_000_000).to_string();
    let mut headers =
        vec![("content-type", "application/json".to_owned()), ("a2a-version", VERSION.to_owned())];
    if let (Some(scheme), Some(credentials)) = (&webhook.scheme, &webhook.credentials) {
        headers.push(("authorization", format!("{scheme} {credentials}")));
    }
    if let Some(token) = &webhook.token {
        headers.push(("x-a2a-notification-token", token.clone()));
    }
    let signed_content = format!("{id}.{unix_seconds}.{body}");
    let signatures = sign_notification(app, webhook.token.as_deref(), signed_content.as_bytes());
    if !signatures.is_empty() {
        headers.push(("webhook-signature", signatures.join(" ")));
    }
    headers.push(("webhook-id", id));
    headers.push(("webhook-timestamp", unix_seconds));
    let request = WebhookRequest { url: webhook.url.clone(), headers, body: body.to_owned() };
    match sender.send(request).await {
        Ok(200..=299) => Ok(()),
        Ok(410) => Err(Stop::Failed("the receiver responded with HTTP 410".to_owned())),
        Ok(status) => Err(Stop::Later(format!("the receiver responded with HTTP {status}"))),
        Err(why) => Err(Stop::Later(why)),
    }
}

/// Returns the signatures of a notification, as Standard Webhooks describes them: with the token of the receiver, and
/// with the key of the server.
fn sign_notification(app: &ProtocolState, token: Option<&str>, content: &[u8]) -> Vec<String> {
    let mut signatures = Vec::new();
    if let Some(token) = token {
        let key = EncodingKey::from_secret(token.as_bytes());
        // The library encodes as for a JWT (base64url without padding); Standard Webhooks requires base64.
        let encoded = jsonwebtoken::crypto::sign(content, &key, Algorithm::HS256).ok();
        let mac = encoded.and_then(|encoded| BASE64_URL_SAFE_NO_PAD.decode(encoded).ok());
        signatures.extend(mac.map(|mac| format!("v1,{}", BASE64_STANDARD.encode(mac))));
    }
    signatures.extend(app.signing_key.as_ref().map(|key| format!("v1a,{}", key.sign(content))));
    signatures
}

/// Records what is delivered, and the failure that followed, if there is one: its reason, and the pause before the next
/// attempt; no pause if the webhook is given up.
async fn record_delivery(
    app: &ProtocolState,
    webhook: &Webhook,
    failure: Option<(String, Option<Duration>)>,
) -> Result<(), Refusal> {
    let (error, retry) = failure.unzip();
    let retry_in_ms = retry.flatten().map(|pause| pause.as_millis() as i64);
    let error = error.map(|error| error.chars().take(500).collect::<String>());
    let args: JsonValue = json!({"id": webhook.id, "set_seq": webhook.set_seq,
        "delivered": webhook.delivered, "error": error, "retry_in_ms": retry_in_ms});
    app.engine.call(&Caller::local(), "record_delivery", &args, None).await.map(drop)
}

/// Returns the pause after an attempt: it doubles, and varies by half, so that receivers that failed together are not
/// tried together.
fn retry_pause(attempts: i64) -> Duration {
    let doubled = limits::WEBHOOK_PAUSE.saturating_mul(1 << (attempts - 1).clamp(0, 20));
    let max = doubled.min(limits::WEBHOOK_PAUSE_MAX);
    let random =
        u32::from_le_bytes(uuid::Uuid::new_v4().as_bytes()[..4].try_into().unwrap_or_default());
    max.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, tenant: &str, events: i64) -> Row {
        let scope = [("tenant".to_owned(), tenant.to_owned())].into();
        let caller = Caller::with("ann", "app", BTreeSet::new(), scope);
        let authority = caller.authority().map_or(Value::Null, Value::from);
        Row::from(vec![id.into(), "ann".into(), authority, 7.into(), events.into()])
    }

    /// The deliveries in progress, until none is left to begin.
    fn served(outbox: &mut Outbox) -> Vec<String> {
        let mut all = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it starts");
        while let Some((id, _)) = outbox.take_due() {
            let task = runtime.spawn(std::future::pending::<()>()).id();
            outbox.mark_begun(task, id.clone());
            all.push(id);
        }
        all
    }

    /// Receivers of one scope that do not answer leave room for other scopes.
    #[test]
    fn a_scope_has_a_share_and_scopes_take_turns() {
        let mut outbox = Outbox::default();
        for n in 0..100 {
            outbox.apply_change(&[], [row(&format!("a{n:02}"), "acme", 1)].iter());
        }
        outbox.apply_change(&[], [row("z1", "zeta", 1), row("z2", "zeta", 1)].iter());
        let begun = served(&mut outbox);
        assert_eq!(begun[..4], ["a00", "z1", "a01", "z2"]);
        let of_acme = begun.iter().filter(|id| id.starts_with('a')).count();
        assert_eq!(of_acme, limits::WEBHOOK_DELIVERIES_PER_SCOPE);
    }

    #[test]
    fn a_webhook_is_looked_at_again_after_new_events_only() {
        let mut outbox = Outbox::default();
        outbox.apply_change(&[], [row("a", "acme", 3)].iter());
        assert_eq!(served(&mut outbox), ["a"]);
        let task = *outbox.tasks.keys().next().expect("it is served");
        outbox.mark_finished(task, Some(3));
        assert_eq!(outbox.take_due(), None);
        outbox.apply_change(&[row("a", "acme", 3)], [row("a", "acme", 4)].iter());
        assert_eq!(outbox.take_due(), Some(("a".to_owned(), 3)));
        // After a pause it is tried again, although there is no new event.
        outbox.apply_change(&[row("a", "acme", 4)], [].iter());
        outbox.apply_change(&[], [row("a", "acme", 4)].iter());
        assert_eq!(outbox.take_due(), Some(("a".to_owned(), 0)));
    }

    /// The end of a pause arrived before the end of the task that had recorded it. The webhook was then marked as looked at,
    /// and no further attempt was made.
    #[test]
    fn a_webhook_that_comes_again_while_it_is_served_is_served_again() {
        let mut outbox = Outbox::default();
        outbox.apply_change(&[], [row("a", "acme", 3)].iter());
        assert_eq!(served(&mut outbox), ["a"]);
        let task = *outbox.tasks.keys().next().expect("it is served");
        outbox.apply_change(&[row("a", "acme", 3)], [].iter());
        outbox.apply_change(&[], [row("a", "acme", 3)].iter());
        outbox.mark_finished(task, Some(3));
        assert_eq!(outbox.take_due(), Some(("a".to_owned(), 0)));
    }

    #[test]
    fn pauses_grow_and_vary() {
        for (attempts, least_ms, most_ms) in
            [(1, 500, 1_000), (4, 4_000, 8_000), (11, 450_000, 900_000), (99, 450_000, 900_000)]
        {
            let all: BTreeSet<u128> = (0..20).map(|_| retry_pause(attempts).as_millis()).collect();
            assert!(all.iter().all(|ms| (least_ms..=most_ms).contains(ms)), "{all:?}");
            assert!(all.len() > 5, "{all:?}");
        }
    }
}
