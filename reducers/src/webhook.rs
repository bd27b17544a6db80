//! Webhooks: where the events of a run are sent. The events of a run are the outbox: they are written in the transaction that
//! causes them. A webhook has the number of the last event that was delivered, so a sender continues after it, even in
//! another process.
//!
//! ```text
//! active ─▶ done          the run has ended, and its last event is delivered
//!    └────▶ failed        the sender has given up
//! ```
//!
//! A webhook that is not active has no secrets.

use abide_schema::id::forbidden_character;
use abide_schema::reducer::{DERIVED, ReducerResult, RowVisibility, WaitingRows};
use abide_schema::{
    Abort, Code, Context, Micros, Module, Refusal, Seq, TextEnum, Value, limits, reducer, table,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check;
use crate::run::{self, Run};

/// Status of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum WebhookStatus {
    /// Events are sent to it.
    Active,
    /// Its run has ended, and all events were delivered.
    Done,
    /// Delivery was given up.
    Failed,
}

/// A webhook of a run.
#[table(
    name = "webhooks",
    without_rowid,
    index(run_id),
    index(session_id),
    index(status, where = "status = 'active'"),
    index(due_at, where = "status = 'active' AND due_at IS NOT NULL")
)]
pub struct Webhook {
    /// The id of its run, `~`, and its name.
    #[column(key)]
    pub id: String,
    /// The run.
    #[column(references = "runs(id)")]
    pub run_id: String,
    /// The session of the run.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Its name, unique in the run.
    pub name: String,
    /// Where events are sent.
    pub url: String,
    /// A secret of the receiver: it is sent with each event, and signs it.
    pub token: Option<String>,
    /// The scheme of the header `authorization`.
    pub scheme: Option<String>,
    /// The credentials of that header.
    pub credentials: Option<String>,
    /// Its status.
    pub status: WebhookStatus,
    /// The number of the last event of the run that was delivered.
    pub delivered: i64,
    /// Attempts since then that have failed.
    pub attempts: i64,
    /// When the next attempt is due, after one that has failed.
    pub due_at: Option<Micros>,
    /// Why the last attempt has failed.
    pub error: Option<String>,
    /// The caller that set it.
    pub set_by: String,
    /// The restrictions of that caller, as in the log; null if it has none. Only events that it can see are sent.
    pub authority: Option<String>,
    /// The event that set it: a delivery to a webhook that was replaced meanwhile is not recorded.
    pub set_seq: Seq,
    /// When it was set first.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// The result of calls on webhooks: without the secrets of the row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookState {
    /// Its id.
    pub id: String,
    /// Its run.
    pub run_id: String,
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: WebhookStatus,
    /// The number of the last event that was delivered.
    pub delivered: i64,
    /// The event that set it.
    pub set_seq: Seq,
}

impl From<Webhook> for WebhookState {
    fn from(row: Webhook) -> WebhookState {
        let Webhook { id, run_id, name, status, delivered, set_seq, .. } = row;
        WebhookState { id, run_id, name, status, delivered, set_seq }
    }
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("webhook")
        .visible::<Webhook>(RowVisibility::InScopeExcept(&["token", "credentials", "authority"]))
        .secret(&put_webhook::definition(), "token")
        .secret(&put_webhook::definition(), "credentials")
        // Those of runs with events that are not delivered.
        .waiting(WaitingRows {
            kind: "outbox",
            query: "SELECT w.updated_at AS since FROM webhooks w JOIN runs r ON r.id = w.run_id \
                    WHERE w.status = 'active' AND r.events > w.delivered",
        })
        .reducer(put_webhook::definition())
        .reducer(delete_webhook::definition())
        .reducer(record_delivery::definition())
        .deadline::<Webhook>(
            "due_at",
            "status = 'active' AND due_at IS NOT NULL",
            retry_webhook::definition(),
        )
}

/// Sets where the events of a run are sent, or replaces a webhook of the same name. Events that the caller cannot see are
/// not sent.
#[reducer(roles(app, agent))]
pub fn put_webhook(
    ctx: &mut Context<'_>,
    /// The run.
    #[id(Run)]
    run_id: String,
    /// Its name, unique in the run.
    name: String,
    /// Where events are sent: http or https.
    url: String,
    /// A secret of the receiver: it is sent with each event, and signs it.
    token: Option<String>,
    /// The scheme of the header `authorization`, such as `Bearer`.
    scheme: Option<String>,
    /// The credentials of that header.
    credentials: Option<String>,
    /// The number of the event after which the first one is sent; the last event of the run if omitted.
    after: Option<i64>,
) -> Result<ReducerResult<WebhookState>, Abort> {
    check::name("name", &name)?;
    check_url(&url)?;
    check_secret("token", token.as_deref())?;
    check_secret("credentials", credentials.as_deref())?;
    check_scheme(scheme.as_deref(), credentials.is_some())?;
    // The event names no session: events of a session are visible to everyone in its scope, with their arguments.
    let run = ctx.get::<Run>(&run_id)?.ok_or_else(|| run::unknown_run(&run_id))?;
    check::in_range("after", after, &(0..=run.events))?;
    let id = format!("{}{DERIVED}{name}", run.id);
    let before = ctx.without_policies(|ctx| ctx.get::<Webhook>(&id))?;
    if before.is_none() {
        check_room(ctx, &run.id)?;
    }
    let ended = run.status.is_terminal();
    let now = ctx.now;
    let seq = ctx.seq;
    let mut webhook = Webhook {
        id,
        run_id: run.id,
        session_id: run.session_id,
        name,
        url,
        token,
        scheme,
        credentials,
        status: WebhookStatus::Active,
        delivered: after.unwrap_or(run.events),
        attempts: 0,
        due_at: None,
        error: None,
        set_by: ctx.caller.id().to_owned(),
        authority: ctx.caller.authority().map(str::to_owned),
        set_seq: seq,
        created_at: before.as_ref().map_or(now, |before| before.created_at),
        updated_at: now,
        seq,
    };
    if ended && webhook.delivered == run.events {
        webhook.close(WebhookStatus::Done);
    }
    match before {
        Some(before) if before.is_same(&webhook) => {
            return Ok(ReducerResult::Duplicate(before.seq, before.into()));
        }
        Some(_) => ctx.without_policies(|ctx| ctx.update(&webhook))?,
        None => drop(ctx.without_policies(|ctx| ctx.insert(webhook.clone()))?),
    }
    Ok(ReducerResult::Fresh(webhook.into()))
}

/// Deletes a webhook: no further event is sent to it.
#[reducer(roles(app, agent))]
pub fn delete_webhook(
    ctx: &mut Context<'_>,
    #[id(Webhook)] id: String,
) -> Result<WebhookState, Abort> {
    let webhook = find(ctx, &id)?;
    ctx.delete::<Webhook>(&id)?;
    Ok(webhook.into())
}

/// Records what the sender of a webhook has delivered, and why it has stopped.
#[reducer]
pub fn record_delivery(
    ctx: &mut Context<'_>,
    #[id(Webhook)] id: String,
    /// `set_seq` of the webhook: a conflict if it was replaced.
    set_seq: i64,
    /// The number of the last event of the run that was delivered.
    delivered: i64,
    /// Why the next attempt has failed.
    error: Option<String>,
    /// After how many milliseconds it is tried again. With an error and without a time, it is given up.
    retry_in_ms: Option<i64>,
) -> Result<WebhookState, Abort> {
    let mut webhook = find(ctx, &id)?;
    if webhook.set_seq != Seq(set_seq) || webhook.status != WebhookStatus::Active {
        let detail = match webhook.status {
            WebhookStatus::Active => format!("webhook {id} was replaced"),
            status => format!("webhook {id} is {status}"),
        };
        let hint = "read the webhook again before the next delivery";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    if let Some(bytes) = error.as_ref().map(String::len).filter(|it| *it > limits::REASON_BYTES) {
        let max = limits::REASON_BYTES;
        let detail = format!("error has {bytes} bytes; the limit is {max}");
        return Err(Refusal::new(Code::LimitExceeded, detail).into());
    }
    let run_id = webhook.run_id.clone();
    let run = ctx
        .without_policies(|ctx| ctx.get::<Run>(&run_id))?
        .ok_or_else(|| run::unknown_run(&run_id))?;
    check::in_range("delivered", Some(delivered), &(webhook.delivered..=run.events))?;
    if delivered > webhook.delivered {
        webhook.delivered = delivered;
        webhook.attempts = 0;
    }
    webhook.due_at = check::time_after("retry_in_ms", ctx.now, retry_in_ms)?;
    match (&error, retry_in_ms) {
        (None, Some(_)) => {
            let detail = "retry_in_ms is valid only with error";
            let hint = "a delivery is retried only if it failed";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
        (None, None) if run.status.is_terminal() && delivered == run.events => {
            webhook.close(WebhookStatus::Done);
        }
        (None, None) => webhook.attempts = 0,
        (Some(_), Some(_)) => webhook.attempts += 1,
        (Some(_), None) => webhook.close(WebhookStatus::Failed),
    }
    webhook.error = error;
    save(ctx, webhook).map(WebhookState::from)
}

/// Ends the pause after an attempt that has failed.
#[reducer]
pub fn retry_webhook(
    ctx: &mut Context<'_>,
    id: String,
    due_at: Micros,
) -> Result<WebhookState, Abort> {
    let mut webhook = find(ctx, &id)?;
    let waits = webhook.status == WebhookStatus::Active && webhook.due_at == Some(due_at);
    if !waits || ctx.now < due_at {
        return Err(check::not_due(&id, due_at).into());
    }
    webhook.due_at = None;
    save(ctx, webhook).map(WebhookState::from)
}

impl Webhook {
    /// Nothing is sent any more, so the secrets are not needed.
    fn close(&mut self, status: WebhookStatus) {
        self.status = status;
        self.due_at = None;
        self.token = None;
        self.credentials = None;
    }

    /// Returns `true` if setting it again changes nothing.
    fn is_same(&self, other: &Webhook) -> bool {
        self.url == other.url
            && self.token == other.token
            && self.scheme == other.scheme
            && self.credentials == other.credentials
            && self.set_by == other.set_by
            && self.authority == other.authority
            && self.status == other.status
    }
}

fn save(ctx: &mut Context<'_>, mut webhook: Webhook) -> Result<Webhook, Abort> {
    webhook.updated_at = ctx.now;
    webhook.seq = ctx.seq;
    ctx.update(&webhook)?;
    Ok(webhook)
}

fn find(ctx: &mut Context<'_>, id: &str) -> Result<Webhook, Abort> {
    let webhook = ctx.get::<Webhook>(id)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no webhook {id}"))
            .hint_query("SELECT id, run_id, name, status FROM webhooks")
    })?;
    ctx.about(&webhook.session_id);
    Ok(webhook)
}

/// A policy may hide some of them.
fn check_room(ctx: &mut Context<'_>, run_id: &str) -> Result<(), Abort> {
    let params = [Value::from(run_id)];
    let count = ctx.without_policies(|ctx| ctx.count::<Webhook>("WHERE run_id = ?1", &params))?;
    if count < limits::WEBHOOKS_OF_A_RUN {
        return Ok(());
    }
    let detail =
        format!("run {run_id} has {count} webhooks; the limit is {}", limits::WEBHOOKS_OF_A_RUN);
    let hint = "delete one with delete_webhook";
    Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into())
}

/// Checks the form only. The sender checks where the address leads.
fn check_url(url: &str) -> Result<(), Refusal> {
    let max = limits::WEBHOOK_URL_BYTES;
    if url.len() > max {
        let detail = format!("url has {} bytes; the limit is {max}", url.len());
        return Err(Refusal::new(Code::LimitExceeded, detail));
    }
    let is_http = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    if !is_http || url.contains(' ') || forbidden_character(url).is_some() {
        let detail = "url must begin with http:// or https://";
        return Err(Refusal::new(Code::BadArguments, detail));
    }
    Ok(())
}

/// Checks a secret that becomes a header.
fn check_secret(what: &str, text: Option<&str>) -> Result<(), Refusal> {
    let Some(text) = text else { return Ok(()) };
    let max = limits::WEBHOOK_SECRET_BYTES;
    if text.len() > max {
        let detail = format!("{what} has {} bytes; the limit is {max}", text.len());
        return Err(Refusal::new(Code::LimitExceeded, detail));
    }
    if text.is_empty() || !text.bytes().all(|byte| (0x20..0x7F).contains(&byte)) {
        let detail = format!("{what} is empty or contains characters that a header cannot have");
        return Err(Refusal::new(Code::BadArguments, detail).hint("printable ASCII is allowed"));
    }
    Ok(())
}

fn check_scheme(scheme: Option<&str>, has_credentials: bool) -> Result<(), Refusal> {
    match scheme {
        None if has_credentials => {
            let detail = "scheme is required with credentials";
            Err(Refusal::new(Code::BadArguments, detail).hint("give scheme, such as Bearer"))
        }
        Some(scheme)
            if scheme.is_empty()
                || scheme.len() > 64
                || !scheme.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') =>
        {
            let detail = "scheme must be the name of an authentication scheme";
            Err(Refusal::new(Code::BadArguments, detail).hint("such as Bearer or Basic"))
        }
        _ => Ok(()),
    }
}
