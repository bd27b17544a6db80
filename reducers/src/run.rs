//! Runs: an agent at work in a session, from a first input to done, failed or aborted.
//!
//! ```text
//! running ◀─▶ waiting          waiting: for an approval, for the settlement of an unknown outcome,
//!    │           │              for a supervisor. It has no driver meanwhile.
//!    └───────────┴─▶ done, failed, aborted
//! ```
//!
//! A session has one run at a time; the database enforces it. The driver of a run holds it under a lease with a
//! fencing token, like a worker holds a tool call: a driver that vanishes is replaced, and its later calls
//! are refused. The progress of a run is in rows (messages, tool calls, events), never in memory, so another
//! driver can continue it.
//!
//! A run reports its progress as **run events**, in order, each once. A turn ends with exactly one of `done`,
//! `error` or `interrupt`: a unique index enforces that too.
//!
//! This file has the rows, the start of a run and shared functions; then [`mod@drive`] and [`mod@end`].

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, Value, limits, reducer,
    table,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as JsonValue, json};

use crate::session::{Session, SessionStatus};
use crate::tool_call::{ToolCallStatus, cancel};
use crate::{agent, check, lease, message, session, waiting};

pub mod drive;
pub mod end;

pub use drive::{claim_next_run, claim_run, heartbeat_run, lapse_run, record_run};
pub use end::{RunEnd, abort_run, finish_run, wait_run};

/// Status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum RunStatus {
    /// It has a driver, or waits for one.
    Running,
    /// It waits for an external event.
    Waiting,
    /// Completed.
    Done,
    /// Failed.
    Failed,
    /// Aborted.
    Aborted,
}

impl RunStatus {
    /// Whether the status is final.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !matches!(self, RunStatus::Running | RunStatus::Waiting)
    }
}

/// The kind of a run event. Consumers only need to know the first eleven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum RunEventKind {
    /// `{content}`: a piece of the model's answer.
    Token,
    /// `{name, args, id}`: the model requests a tool call.
    ToolCall,
    /// `{tool_call_id, output, exit_code}`: the result of a tool call.
    ToolResult,
    /// `{todos}`: the current plan.
    Planning,
    /// `{step_number, total_steps, description}`.
    StepComplete,
    /// `{from_agent, to_agent, task}`: a task is delegated to another agent.
    Delegation,
    /// `{tool_call_id, tool_name, args, session_id, action_requests}`: a decision is required. Ends a turn.
    Interrupt,
    /// `{status}`: `thinking`, `idle`, or what the run waits for.
    Status,
    /// `{input_tokens, output_tokens, estimated_cost, provider, model, completeness}`.
    Usage,
    /// `{assistant_data}`: the answer. Ends the run.
    Done,
    /// `{message, code}`: why there is no answer. Ends the run.
    Error,
    /// `{content}`: a piece of the model's reasoning.
    Reasoning,
    /// Events since a `seq` are void: the model's answer was cut off, and it is asked again.
    Restart,
    /// A line of an external program, unchanged.
    Line,
}

const EVENTS_STAY: &str = "CREATE TRIGGER run_events_stay BEFORE UPDATE ON run_events
BEGIN SELECT RAISE(FAIL, 'conflict: what a run has told stands'); END";

const ENDED: &str = "CREATE TRIGGER runs_ended BEFORE UPDATE ON runs
WHEN OLD.status NOT IN ('running', 'waiting')
BEGIN SELECT RAISE(FAIL, 'bad_transition: the run has ended'); END";

const FENCING: &str = "CREATE TRIGGER runs_fencing BEFORE UPDATE OF fencing_token ON runs
WHEN NEW.fencing_token < OLD.fencing_token
BEGIN SELECT RAISE(FAIL, 'lease_lost: the run was claimed by another'); END";

/// An agent's run in a session.
#[table(
    name = "runs",
    unique(session_id, where = "status IN ('running', 'waiting')"),
    index(session_id, created_at),
    index(lease_expires_at, where = "status = 'running' AND lease_expires_at IS NOT NULL"),
    index(created_at, id, where = "status = 'running' AND driver IS NULL"),
    constraint = "CHECK ((driver IS NULL) = (lease_expires_at IS NULL))",
    trigger = ENDED,
    trigger = FENCING
)]
pub struct Run {
    /// Its id, chosen by the caller, or `run_` and a ULID.
    #[column(key)]
    pub id: String,
    /// The session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The agent.
    #[column(references = "agents(name)")]
    pub agent: String,
    /// The agent's revision at the start, which applies until the end.
    pub revision: i64,
    /// The run that delegated to it.
    #[column(references = "runs(id)")]
    pub parent_id: Option<String>,
    /// Its status.
    pub status: RunStatus,
    /// What it waits for, or why it was aborted.
    pub reason: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// The claim's fencing token: calls with another one are refused. It is the claim's seq, so it only increases.
    pub fencing_token: Option<i64>,
    /// When the lease expires.
    pub lease_expires_at: Option<Micros>,
    /// The current turn, from 1. A turn ends when the run waits.
    pub turn: i64,
    /// Answers of the model so far.
    pub iterations: i64,
    /// Tool calls requested by the model so far.
    pub tool_calls: i64,
    /// Input tokens, as far as reported by providers.
    pub input_tokens: i64,
    /// Output tokens, as far as reported by providers.
    pub output_tokens: i64,
    /// Answers whose usage the provider reported incompletely or not at all.
    pub usage_missing: i64,
    /// Its cost so far, in millionths of a dollar, if prices are known.
    pub cost_micros: Option<i64>,
    /// Number of events so far.
    pub events: i64,
    /// When it must have ended.
    pub deadline_at: Option<Micros>,
    /// When its abort was requested: its driver is asked to stop.
    pub abort_requested_at: Option<Micros>,
    /// Its answer.
    pub output: Option<Json>,
    /// Why it failed, for programs.
    pub error_code: Option<String>,
    /// Why it failed, for people.
    pub error_message: Option<String>,
    /// When it began.
    pub created_at: Micros,
    /// When it ended.
    pub ended_at: Option<Micros>,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// One event of a run.
#[table(
    name = "run_events",
    index(session_id),
    unique(run_id, number),
    unique(run_id, turn, where = "kind IN ('done', 'error', 'interrupt')"),
    trigger = EVENTS_STAY
)]
pub struct RunEvent {
    /// Its number among all run events; later ones are larger.
    #[column(key)]
    pub id: i64,
    /// The run.
    #[column(references = "runs(id)")]
    pub run_id: String,
    /// The run's session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Its number in the run: 1, 2, 3 …
    pub number: i64,
    /// The turn.
    pub turn: i64,
    /// Its kind.
    pub kind: RunEventKind,
    /// Its data.
    pub data: Json,
    /// When it happened.
    pub created_at: Micros,
    /// The event of the log that wrote it.
    pub seq: Seq,
}

/// A run event as sent by a driver.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRunEvent {
    /// Its kind.
    pub kind: RunEventKind,
    /// Its data.
    pub data: serde_json::Map<String, JsonValue>,
}

/// The module.
#[must_use]
pub fn module() -> Module {
    Module::new("run")
        .step(waiting::FILL_RUNS)
        .visible::<Run>(RowVisibility::InScopeExcept(&["fencing_token"]))
        .visible::<RunEvent>(RowVisibility::InScope)
        .copied(("runs", "output"), &[("run_events", "data")])
        .reducer(start_run::definition())
        .reducer(claim_run::definition())
        .reducer(claim_next_run::definition())
        .reducer(heartbeat_run::definition())
        .reducer(record_run::definition())
        .reducer(wait_run::definition())
        .reducer(finish_run::definition())
        .reducer(abort_run::definition())
        .deadline::<Run>(
            "lease_expires_at",
            "status = 'running' AND lease_expires_at IS NOT NULL",
            lapse_run::definition(),
        )
}

/// Starts a run of a session's agent, or of the named one. `input` is the user's
/// message. A run for a delegation is started by `start_child_run` instead.
/// A session has one run at a time. The same `id` for the same session is the same run.
#[reducer]
pub fn start_run(
    ctx: &mut Context<'_>,
    /// The session.
    #[id(Session)]
    session_id: String,
    /// The agent, if it is not the session's own.
    agent: Option<String>,
    /// The user's message.
    input: Option<String>,
    /// An id chosen by the caller. The same id means the same run.
    #[id(new, Run)]
    id: Option<String>,
    /// Time limit of the run in milliseconds.
    deadline_ms: Option<i64>,
) -> Result<ReducerResult<Run>, Abort> {
    if let Some(id) = &id {
        check::name("id", id)?;
        if let Some(before) = ctx.get::<Run>(id)? {
            return again(ctx, before, &session_id, agent.as_deref());
        }
    }
    let session = session::wanted(ctx, &session_id)?;
    let agent = agent.unwrap_or_else(|| session.agent.clone());
    let deadline_at = check::after("deadline_ms", ctx.now, deadline_ms)?;
    let new = NewRun { id, agent, as_subagent: false, input, parent_id: None, deadline_at };
    begin(ctx, session, new).map(ReducerResult::Fresh)
}

/// Attributes of a new run.
pub(crate) struct NewRun {
    pub(crate) id: Option<String>,
    pub(crate) agent: String,
    pub(crate) as_subagent: bool,
    pub(crate) input: Option<String>,
    pub(crate) parent_id: Option<String>,
    pub(crate) deadline_at: Option<Micros>,
}

/// Starts a run in a session without one.
pub(crate) fn begin(
    ctx: &mut Context<'_>,
    session: Session,
    NewRun { id, agent, as_subagent, input, parent_id, deadline_at }: NewRun,
) -> Result<Run, Abort> {
    let session_id = session.id.clone();
    let agent = agent::ready(ctx, &agent, as_subagent)?;
    if let Some(active) = ctx.without_policies(|ctx| active(ctx, &session_id))? {
        return Err(taken(ctx, &session_id, &active)?.into());
    }
    let session = open(ctx, session, input)?;
    let (now, seq) = (ctx.now, ctx.seq);
    let mut run = Run {
        id: id.unwrap_or_else(|| ctx.new_id("run")),
        session_id,
        agent: agent.name,
        revision: agent.revision,
        parent_id,
        status: RunStatus::Running,
        reason: None,
        driver: None,
        fencing_token: None,
        lease_expires_at: None,
        turn: 1,
        iterations: 0,
        tool_calls: 0,
        input_tokens: 0,
        output_tokens: 0,
        usage_missing: 0,
        cost_micros: None,
        events: 0,
        deadline_at,
        abort_requested_at: None,
        output: None,
        error_code: None,
        error_message: None,
        created_at: now,
        ended_at: None,
        updated_at: now,
        seq,
    };
    ctx.insert(run.clone())?;
    waiting::note(ctx, run.entry(), true)?;
    status(ctx, &mut run, "thinking")?;
    session::touch(ctx, session)?;
    save(ctx, run)
}

/// The refusal if a session already has a run; names the run only if the caller may see it.
fn taken(ctx: &mut Context<'_>, session_id: &str, active: &Run) -> Result<Refusal, Abort> {
    let detail = match ctx.get::<Run>(&active.id)? {
        Some(run) => format!("session {session_id} has run {}, which is {}", run.id, run.status),
        None => format!("session {session_id} has a run"),
    };
    let hint = "wait until it ends, or end it with  abide call abort_run";
    Ok(Refusal::new(Code::Conflict, detail).hint(hint))
}

/// Activates the session of a new run, with the user's message.
fn open(ctx: &mut Context<'_>, session: Session, input: Option<String>) -> Result<Session, Abort> {
    if session.status == SessionStatus::HandedOff {
        let detail = format!("session {} is handed off to a supervisor", session.id);
        return Err(Refusal::new(Code::BadTransition, detail).into());
    }
    if let Some(input) = input {
        let (role, kind) = ("user".to_owned(), "message".to_owned());
        message::append(ctx, &session, role, kind, Some(input), None)?;
    }
    match session.status {
        SessionStatus::Active => Ok(session),
        _ => session::to_status(ctx, session, SessionStatus::Active, |_| {}),
    }
}

fn again(
    ctx: &mut Context<'_>,
    mut before: Run,
    session_id: &str,
    agent: Option<&str>,
) -> Result<ReducerResult<Run>, Abort> {
    ctx.about(&before.session_id);
    let of_same = before.session_id == session_id && before.parent_id.is_none();
    if of_same && agent.is_none_or(|agent| agent == before.agent) {
        lease::hide(ctx, &mut before.fencing_token)?;
        return Ok(ReducerResult::Duplicate(before.seq, before));
    }
    let detail = match before.session_id == session_id {
        true => format!("run {} belongs to another agent or parent", before.id),
        false => format!("run {} belongs to another session", before.id),
    };
    Err(Refusal::new(Code::Conflict, detail).hint("omit id to get a generated one").into())
}

/// Loads a run; the event will name its session.
pub(crate) fn find(ctx: &mut Context<'_>, id: &str) -> Result<Run, Abort> {
    let run = ctx.get::<Run>(id)?.ok_or_else(|| missing(id))?;
    ctx.about(&run.session_id);
    Ok(run)
}

fn missing(id: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("there is no run {id}"))
}

/// The active run of a session, if any.
pub(crate) fn active(ctx: &mut Context<'_>, session_id: &str) -> Result<Option<Run>, Abort> {
    let active = "WHERE session_id = ?1 AND status IN ('running', 'waiting')";
    Ok(ctx.find::<Run>(active, &[Value::from(session_id)])?.into_iter().next())
}

/// What a run waits for while its session is suspended.
const RESUME: &str = "resume";

/// What a session's run has to wait for before it can continue, if anything.
pub(crate) fn awaited(ctx: &mut Context<'_>, session: &Session) -> Result<Option<String>, Abort> {
    use ToolCallStatus::{AwaitingApproval, Unknown};
    for (status, what) in [(AwaitingApproval, "approval"), (Unknown, "settlement")] {
        if cancel::any(ctx, &session.id, status)? {
            return Ok(Some(what.to_owned()));
        }
    }
    Ok(match session.status {
        SessionStatus::HandedOff => Some("handoff".to_owned()),
        _ => None,
    })
}

/// Continues a session's run if the last thing that it waited for has arrived, whether
/// the caller can see the run or not.
pub(crate) fn wake(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    ctx.without_policies(|ctx| go_on(ctx, session_id))
}

fn go_on(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    let waiting = "WHERE session_id = ?1 AND status IN ('running', 'waiting')";
    let runs = ctx.find::<Run>(waiting, &[Value::from(session_id)])?;
    let Some(mut run) = runs.into_iter().find(|run| run.status == RunStatus::Waiting) else {
        return Ok(());
    };
    let Some(session) = ctx.get::<Session>(session_id)? else { return Ok(()) };
    // A suspended session is woken by resume_session; a decision alone does not wake it.
    let rests = session.status == SessionStatus::Suspended && run.reason.as_deref() == Some(RESUME);
    if rests || session.status.is_terminal() || awaited(ctx, &session)?.is_some() {
        return Ok(());
    }
    if session.status == SessionStatus::Suspended {
        session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
    }
    run.status = RunStatus::Running;
    run.reason = None;
    run.turn += 1;
    status(ctx, &mut run, "resuming")?;
    save(ctx, run).map(drop)
}

/// Adds a status event.
fn status(ctx: &mut Context<'_>, run: &mut Run, status: &str) -> Result<(), Abort> {
    tell(ctx, run, RunEventKind::Status, json!({"status": status}))
}

/// Adds a consequence of a call to a run's events, whether or not its caller can see them; the run's row must
/// be written afterwards.
pub(crate) fn tell(
    ctx: &mut Context<'_>,
    run: &mut Run,
    kind: RunEventKind,
    data: JsonValue,
) -> Result<(), Abort> {
    ctx.without_policies(|ctx| add_event(ctx, run, kind, data))
}

fn add_event(
    ctx: &mut Context<'_>,
    run: &mut Run,
    kind: RunEventKind,
    data: JsonValue,
) -> Result<(), Abort> {
    run.events += 1;
    let (created_at, seq) = (ctx.now, ctx.seq);
    let event = ctx.insert(RunEvent {
        id: 0,
        run_id: run.id.clone(),
        session_id: run.session_id.clone(),
        number: run.events,
        turn: run.turn,
        kind,
        data: Json::from(data),
        created_at,
        seq,
    });
    event.map(drop)
}

/// Adds a driver's events; the events that end a turn are not allowed here.
fn tell_all(ctx: &mut Context<'_>, run: &mut Run, events: Vec<NewRunEvent>) -> Result<(), Abort> {
    if events.len() > limits::RUN_EVENTS {
        let detail = format!("{} events, at most {} are allowed", events.len(), limits::RUN_EVENTS);
        return Err(Refusal::new(Code::LimitExceeded, detail).into());
    }
    for NewRunEvent { kind, data } in events {
        use RunEventKind::{Done, Error, Interrupt};
        if matches!(kind, Done | Error | Interrupt) {
            let detail = format!("{kind} is recorded by finish_run and wait_run, once per turn");
            return Err(Refusal::new(Code::BadArguments, detail).into());
        }
        add_event(ctx, run, kind, JsonValue::Object(data))?;
    }
    Ok(())
}

pub(crate) fn save(ctx: &mut Context<'_>, mut run: Run) -> Result<Run, Abort> {
    run.updated_at = ctx.now;
    run.seq = ctx.seq;
    let before = ctx.without_policies(|ctx| ctx.get::<Run>(&run.id))?;
    ctx.update(&run)?;
    let waited = before.is_some_and(|before| before.waits());
    if waited != run.waits() {
        waiting::note(ctx, run.entry(), run.waits())?;
    }
    Ok(run)
}

impl Run {
    /// Whether a driver can claim it now.
    fn waits(&self) -> bool {
        self.status == RunStatus::Running && self.driver.is_none()
    }

    /// Its queue entry.
    fn entry(&self) -> waiting::QueueEntry<'_> {
        let queue = waiting::RUNS.to_owned();
        let (since, id, session_id) = (self.created_at.0, &*self.id, &*self.session_id);
        waiting::QueueEntry { queue, since, id, session_id }
    }
}
