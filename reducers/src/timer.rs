//! Timers. When a timer fires, its row becomes `fired`, which subscribers see; if it has a session, the
//! session gets a message or is resumed.

use abide_schema::caller::Scope;
use abide_schema::reducer::{ReducerResult, RowVisibility, WaitingRows};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, canonical, limits, reducer,
    table,
};
use serde_json::{Value as JsonValue, json};

use crate::check;
use crate::cleanup::rows::Room;
use crate::message::rows::{NewEntry, append};
use crate::session::scope::text_entries;
use crate::session::{self, Session, SessionStatus};

/// Status of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum TimerStatus {
    /// Not due yet.
    Pending,
    /// Fired.
    Fired,
    /// Cancelled before it fired.
    Cancelled,
}

const ENDED: &str = "CREATE TRIGGER timers_ended BEFORE UPDATE ON timers
WHEN OLD.status <> 'pending'
BEGIN SELECT RAISE(FAIL, 'conflict: the timer has ended'); END";

/// A timer.
#[table(
    name = "timers",
    index(due_at, where = "status = 'pending'"),
    index(session_id, status, id, where = "session_id IS NOT NULL"),
    trigger = ENDED
)]
pub struct Timer {
    /// Its id, chosen by the caller, or `tm_` and a ULID.
    #[column(key)]
    pub id: String,
    /// The session that it belongs to.
    #[column(references = "sessions(id)")]
    pub session_id: Option<String>,
    /// Its purpose.
    pub name: Option<String>,
    /// Its status.
    pub status: TimerStatus,
    /// When it is due.
    pub due_at: Micros,
    /// The message appended to the session when it fires.
    pub message: Option<String>,
    /// Whether it resumes the session if it is suspended.
    pub resume: bool,
    /// Other data.
    pub data: Option<Json>,
    /// When it fired: at the due time or later.
    pub fired_at: Option<Micros>,
    /// When it was set.
    pub created_at: Micros,
    /// The event that set it.
    pub created_seq: Seq,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

// Each scope that consists of one key of a session's scope has a row as well: it can be that of the tenant.
/// The number of pending timers of one scope. A scope without pending timers has no row.
#[table(name = "timer_counts", without_rowid, shared)]
pub struct TimerCount {
    /// The scope, as that of the sessions; `{}` for timers without a session.
    #[column(key)]
    pub scope: String,
    /// Pending timers.
    pub pending: i64,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("timer")
        .visible::<Timer>(RowVisibility::InScope)
        // Those that are due.
        .waiting(WaitingRows {
            kind: "timers",
            query: "SELECT due_at AS since FROM timers WHERE status = 'pending' AND due_at <= :now \
                    ORDER BY due_at",
        })
        .reducer(set_timer::definition())
        .reducer(cancel_timer::definition())
        .table::<TimerCount>()
        .deadline::<Timer>("due_at", "status = 'pending'", fire_timer::definition())
}

/// Sets a timer, for a time or for a delay from now. When it fires, its row becomes `fired`; with a session
/// and a `message`, the message is appended to the session; with `resume` a suspended session is resumed.
/// Setting an identical timer with the same `id` changes nothing.
#[reducer(roles(app, agent))]
pub fn set_timer(
    ctx: &mut Context<'_>,
    /// Delay in milliseconds; or give `due_at`.
    in_ms: Option<i64>,
    /// When it is due; or give `in_ms`.
    due_at: Option<Micros>,
    /// Its id; generated if omitted.
    #[id(new, Timer)]
    id: Option<String>,
    /// The session that it belongs to.
    #[id(Session)]
    session_id: Option<String>,
    /// Its purpose.
    name: Option<String>,
    /// The message appended to the session when it fires.
    message: Option<String>,
    /// Whether it resumes the session if it is suspended.
    resume: Option<bool>,
    /// Other data.
    data: Option<JsonValue>,
) -> Result<ReducerResult<Timer>, Abort> {
    check::optional_name("id", id.as_deref())?;
    check::optional_name("name", name.as_deref())?;
    let resume = resume.unwrap_or(false);
    if session_id.is_none() && (message.is_some() || resume) {
        let detail = "message and resume require session_id";
        let hint = "give session_id, or omit message and resume";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
    }
    let due_at = resolve_due_at(ctx.now, in_ms, due_at)?;
    let now = ctx.now;
    let seq = ctx.seq;
    let timer = Timer {
        id: id.unwrap_or_else(|| ctx.new_id("tm")),
        session_id,
        name,
        status: TimerStatus::Pending,
        due_at,
        message,
        resume,
        data: data.map(Json::from),
        fired_at: None,
        created_at: now,
        created_seq: seq,
        updated_at: now,
        seq,
    };
    if let Some(before) = ctx.get::<Timer>(&timer.id)? {
        return repeat_timer(before, &timer, in_ms);
    }
    if let Some(session_id) = &timer.session_id {
        let session = session::find_accepting(ctx, session_id)?;
        session::touch(ctx, session)?;
    }
    add_pending(ctx, &timer)?;
    ctx.insert(timer).map(ReducerResult::Fresh)
}

/// Cancels a timer before it fires.
#[reducer(roles(app, agent))]
pub fn cancel_timer(
    ctx: &mut Context<'_>,
    #[id(Timer)] id: String,
) -> Result<ReducerResult<Timer>, Abort> {
    let mut timer = find(ctx, &id)?;
    match timer.status {
        TimerStatus::Cancelled => Ok(ReducerResult::Duplicate(timer.seq, timer)),
        TimerStatus::Fired => {
            let at = timer.fired_at.unwrap_or(timer.due_at);
            Err(Refusal::new(Code::Conflict, format!("timer {id} fired at {at}"))
                .hint("only a pending timer can be cancelled")
                .into())
        }
        TimerStatus::Pending => {
            timer.status = TimerStatus::Cancelled;
            save_ended(ctx, timer).map(ReducerResult::Fresh)
        }
    }
}

/// Fires a timer that is due. If its session is ending or has ended, it is cancelled instead.
#[reducer]
pub fn fire_timer(ctx: &mut Context<'_>, id: String, due_at: Micros) -> Result<Timer, Abort> {
    let mut timer = find(ctx, &id)?;
    let waits = timer.status == TimerStatus::Pending && timer.due_at == due_at;
    if !waits || ctx.now < due_at {
        return Err(check::not_due(&id, due_at).into());
    }
    if let Some(session_id) = timer.session_id.clone()
        && !deliver(ctx, &timer, &session_id)?
    {
        timer.status = TimerStatus::Cancelled;
        return save_ended(ctx, timer);
    }
    timer.status = TimerStatus::Fired;
    timer.fired_at = Some(ctx.now);
    save_ended(ctx, timer)
}

/// Cancels timers of a session that is ending or has ended, as many as there is room for.
pub(crate) fn cancel_some_of_session(
    ctx: &mut Context<'_>,
    session_id: &str,
    room: &mut Room,
) -> Result<(), Abort> {
    // One at a time, because each can have megabytes. A cancelled timer is not found again.
    let next = "WHERE session_id = ?1 AND session_id IS NOT NULL AND status = 'pending'
        ORDER BY id LIMIT 1";
    while room.is_left()
        && let Some(mut timer) = ctx.find::<Timer>(next, &[session_id.into()])?.pop()
    {
        room.take(1, timer.bytes());
        timer.status = TimerStatus::Cancelled;
        save_ended(ctx, timer)?;
    }
    Ok(())
}

impl Timer {
    /// Returns the bytes of its values that have no limit of their own.
    fn bytes(&self) -> usize {
        let data = self.data.as_ref().map_or(0, |data| data.as_str().len());
        data + self.message.as_ref().map_or(0, String::len)
    }
}

/// Returns `true` if a session has a timer with this status.
pub(crate) fn has_any(
    ctx: &mut Context<'_>,
    session_id: &str,
    status: TimerStatus,
) -> Result<bool, Abort> {
    let first = "WHERE session_id = ?1 AND session_id IS NOT NULL AND status = ?2 LIMIT 1";
    let params = [session_id.into(), status.as_str().into()];
    Ok(!ctx.find::<Timer>(first, &params)?.is_empty())
}

/// Delivers a timer to its session. Returns whether the session still accepts it.
fn deliver(ctx: &mut Context<'_>, timer: &Timer, session_id: &str) -> Result<bool, Abort> {
    let Some(session) = ctx.get::<Session>(session_id)? else { return Ok(false) };
    if session::is_closing(ctx, &session)? {
        return Ok(false);
    }
    if let Some(message) = &timer.message {
        let data = json!({
            "timer_id": timer.id,
            "name": timer.name,
            "data": timer.data.as_ref().map(Json::value),
        });
        let content = Some(message.clone());
        append(ctx, &session, NewEntry::new("system", "timer", content, Some(Json::from(data))))?;
    }
    if timer.resume && session.status == SessionStatus::Suspended {
        session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
    } else {
        session::touch(ctx, session)?;
    }
    Ok(true)
}

fn resolve_due_at(
    now: Micros,
    in_ms: Option<i64>,
    due_at: Option<Micros>,
) -> Result<Micros, Refusal> {
    match (check::time_after("in_ms", now, in_ms)?, due_at) {
        (Some(due_at), None) => Ok(due_at),
        (None, Some(due_at)) => {
            let last = now.plus_ms(*limits::AHEAD_MS.end());
            if due_at < Micros(0) || due_at > last {
                let detail = format!("due_at must be a time between 1970 and {last}");
                let hint = "due_at is in microseconds since 1970; in_ms is a delay from now";
                return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
            }
            Ok(due_at)
        }
        _ => Err(Refusal::new(Code::BadArguments, "exactly one of in_ms and due_at is required")
            .hint("in_ms is a delay in milliseconds; due_at is a time in microseconds since 1970")),
    }
}

/// Handles a timer whose id exists: identical, or a conflict.
fn repeat_timer(
    before: Timer,
    timer: &Timer,
    in_ms: Option<i64>,
) -> Result<ReducerResult<Timer>, Abort> {
    // A delay counts from the first request.
    let due_at = in_ms.map_or(timer.due_at, |in_ms| before.created_at.plus_ms(in_ms));
    let same = before.due_at == due_at
        && before.session_id == timer.session_id
        && before.name == timer.name
        && before.message == timer.message
        && before.resume == timer.resume
        && before.data == timer.data;
    if same {
        return Ok(ReducerResult::Duplicate(before.created_seq, before));
    }
    let detail = format!(
        "timer {} already exists with other attributes, due at {}",
        before.id, before.due_at
    );
    Err(Refusal::new(Code::Conflict, detail)
        .hint(format!(
            "cancel it with `abide call cancel_timer {}` and set one with a new id",
            check::shell_word(&format!("id={}", before.id))
        ))
        .into())
}

/// Counts a timer that becomes pending, if one more may be.
fn add_pending(ctx: &mut Context<'_>, timer: &Timer) -> Result<(), Abort> {
    // The count is that of all callers of the scope, and nothing else of their timers is shown.
    ctx.without_policies(|ctx| {
        let scope = scope_of(ctx, timer)?;
        let entries = text_entries(&scope.value());
        if !ctx.is_replay() {
            check_limit(ctx, scope.as_str(), &entries)?;
        }
        change_counts(ctx, scope.as_str(), &entries, 1)
    })
}

/// Counts a timer no longer that was pending.
fn remove_pending(ctx: &mut Context<'_>, timer: &Timer) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        let scope = scope_of(ctx, timer)?;
        let entries = text_entries(&scope.value());
        change_counts(ctx, scope.as_str(), &entries, -1)
    })
}

/// Returns the scope of a timer, which is that of its session.
fn scope_of(ctx: &mut Context<'_>, timer: &Timer) -> Result<Json, Abort> {
    let session = match timer.session_id.as_deref() {
        Some(id) => ctx.get::<Session>(id)?,
        None => None,
    };
    Ok(session.map_or_else(|| Json::from(json!({})), |session| session.scope))
}

/// Changes the number of pending timers of a scope, and of each of its keys.
fn change_counts(
    ctx: &mut Context<'_>,
    scope: &str,
    entries: &Scope,
    by: i64,
) -> Result<(), Abort> {
    change_count(ctx, scope, by)?;
    for (key, value) in entries {
        let part = scope_part(key, value);
        if part != scope {
            change_count(ctx, &part, by)?;
        }
    }
    Ok(())
}

/// Returns the scope that consists of one key.
fn scope_part(key: &str, value: &str) -> String {
    canonical::to_text(&json!({key: value}))
}

/// Checks that one more timer may be pending.
fn check_limit(ctx: &mut Context<'_>, scope: &str, entries: &Scope) -> Result<(), Abort> {
    let mut pending = pending_in(ctx, scope)?;
    let tenant = ctx.tenant_of(entries);
    // A caller can narrow its scope at will, so all scopes of a tenant have the limit together. Of a tenant with several keys
    // each key has at least its timers.
    if tenant.len() < entries.len() {
        let mut pending_of_tenant = i64::MAX;
        for (key, value) in &tenant {
            pending_of_tenant = pending_of_tenant.min(pending_in(ctx, &scope_part(key, value))?);
        }
        pending = pending.max(pending_of_tenant);
    }
    let max = match scope {
        "{}" => limits::TIMERS_WITHOUT_SCOPE,
        _ => limits::TIMERS_OF_A_SCOPE,
    };
    if pending >= max { Err(too_many(max).into()) } else { Ok(()) }
}

fn pending_in(ctx: &mut Context<'_>, scope: &str) -> Result<i64, Abort> {
    Ok(ctx.get::<TimerCount>(scope)?.map_or(0, |row| row.pending))
}

fn change_count(ctx: &mut Context<'_>, scope: &str, by: i64) -> Result<(), Abort> {
    let Some(mut row) = ctx.get::<TimerCount>(scope)? else {
        return ctx.insert(TimerCount { scope: scope.to_owned(), pending: by }).map(drop);
    };
    row.pending += by;
    match row.pending {
        0 => ctx.delete::<TimerCount>(scope),
        _ => ctx.touch(row),
    }
}

fn too_many(max: i64) -> Refusal {
    let detail = format!(
        "the sessions of this scope, or of its tenant, have {max} pending timers, which is the limit"
    );
    Refusal::new(Code::LimitExceeded, detail)
        .hint("wait until timers fire, or cancel some with cancel_timer")
}

/// Stores a timer that is pending no longer.
fn save_ended(ctx: &mut Context<'_>, mut timer: Timer) -> Result<Timer, Abort> {
    remove_pending(ctx, &timer)?;
    timer.updated_at = ctx.now;
    timer.seq = ctx.seq;
    ctx.update(&timer)?;
    Ok(timer)
}

fn find(ctx: &mut Context<'_>, id: &str) -> Result<Timer, Abort> {
    let timer = ctx.get::<Timer>(id)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no timer {id}"))
            .hint_query("SELECT id, status, due_at FROM timers")
    })?;
    if let Some(session_id) = &timer.session_id {
        ctx.about(session_id);
    }
    Ok(timer)
}
