//! The rows of runs and of their events, and what reads and writes them.

use abide_schema::{
    Abort, Code, Context, Json, Micros, Refusal, Seq, TextEnum, Value, limits, table,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as JsonValue, json};

use super::list;
use crate::claim_queue;

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
    /// Returns `true` if the status is final.
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
    /// `{tool_call_id, output, status, exit_code, approved_args}`: the result of a tool call. `status` is `succeeded`,
    /// `failed`, `rejected`, `skipped` or `cancelled`; `approved_args` are the arguments that ran if the approver changed them.
    ToolResult,
    /// `{todos}`: the current plan.
    Planning,
    /// `{step_number, total_steps, description}`.
    StepComplete,
    /// `{from_agent, to_agent, task}`: a task is delegated to another agent.
    Delegation,
    /// `{tool_call_id, tool_name, args, session_id, action_requests}`: a decision is required. Ends a turn.
    Interrupt,
    /// `{status}`: `thinking`, `idle`, or what the run waits for. `{status: "summarization", number, summary, archived,
    /// origin, tokens_before}`: a summary replaces older messages. `{status: "results_cut", results, characters}`: the
    /// oldest results were cut, so that the request fits into the window. `{status: "delegating", child}`: an event of a run
    /// that this one delegated, directly or indirectly. `child` is `{run_id, session_id, agent, number, turn, event,
    /// data}`, with the kind of the event in `event`. `{status: "tool_approval", tool_call_id, tool_name, decision,
    /// comment, approved_args}`: a decision on a call takes effect.
    Status,
    /// `{input_tokens, output_tokens, estimated_cost, provider, model, completeness}`.
    Usage,
    /// `{assistant_data}`: the answer. Ends the run.
    Done,
    /// `{message, code}`: why there is no answer. Ends the run.
    Error,
    /// `{content}`: a piece of the model's reasoning.
    Reasoning,
    /// `{since, code, error}`: the answer starts again; its `token` and `reasoning` events from the number `since` on
    /// are void.
    Restart,
    /// A line of an external program, unchanged.
    Line,
}

const EVENTS_STAY: &str = "CREATE TRIGGER run_events_stay BEFORE UPDATE ON run_events
BEGIN SELECT RAISE(FAIL, 'conflict: an event of a run cannot be changed'); END";

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
    index(deadline_at, where = "status = 'waiting' AND deadline_at IS NOT NULL"),
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
    /// The reason for which it waits, or why it was aborted.
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
    /// When it must have ended, whether it waits or not.
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
    /// Microseconds that it has waited, without the current wait. Null if it has not.
    #[column(omit_null)]
    pub waited_us: Option<i64>,
    /// When its current wait began.
    #[column(omit_null)]
    pub waiting_since: Option<Micros>,
}

/// When a run that waits ends, if an agent that has taken over its turn has a time limit that includes waits. It applies only
/// while the run waits; the next wait replaces it.
#[table(name = "wait_limits", without_rowid, index(session_id), index(ends_at))]
pub struct WaitLimit {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// When the run ends if it still waits.
    pub ends_at: Micros,
    /// The event that recorded it.
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

impl Run {
    /// Returns the bytes of its values that have no small limit.
    pub(crate) fn bytes(&self) -> usize {
        let output = self.output.as_ref().map_or(0, |output| output.as_str().len());
        output + self.error_message.as_ref().map_or(0, String::len)
    }
}

/// Loads a run; the event will name its session.
pub(crate) fn find(ctx: &mut Context<'_>, id: &str) -> Result<Run, Abort> {
    let run = ctx.get::<Run>(id)?.ok_or_else(|| unknown_run(id))?;
    ctx.about(&run.session_id);
    Ok(run)
}

pub(crate) fn unknown_run(id: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("there is no run {id}"))
        .hint_query("SELECT id, session_id, status FROM runs")
}

/// Returns the active run of a session, if any.
pub(crate) fn find_active(ctx: &mut Context<'_>, session_id: &str) -> Result<Option<Run>, Abort> {
    let active = "WHERE session_id = ?1 AND status IN ('running', 'waiting')";
    Ok(ctx.find::<Run>(active, &[Value::from(session_id)])?.into_iter().next())
}

/// Adds a status event.
pub(crate) fn add_status(ctx: &mut Context<'_>, run: &mut Run, status: &str) -> Result<(), Abort> {
    add_consequence(ctx, run, RunEventKind::Status, json!({"status": status}))
}

/// Adds an event that is a consequence of a call, whether or not its caller can see the events of the run. The caller of this saves
/// the run afterwards.
pub(crate) fn add_consequence(
    ctx: &mut Context<'_>,
    run: &mut Run,
    kind: RunEventKind,
    data: JsonValue,
) -> Result<(), Abort> {
    ctx.without_policies(|ctx| add_event(ctx, run, kind, data))
}

/// Adds an event as the caller, under its policies, and copies it to the runs above. The caller of this saves the run afterwards.
pub(super) fn add_event(
    ctx: &mut Context<'_>,
    run: &mut Run,
    kind: RunEventKind,
    data: JsonValue,
) -> Result<(), Abort> {
    insert_event(ctx, run, kind, Json::from(&data))?;
    match &run.parent_id {
        Some(parent) => copy_to_runs_above(ctx, run, parent.clone(), kind, data),
        None => Ok(()),
    }
}

fn insert_event(
    ctx: &mut Context<'_>,
    run: &mut Run,
    kind: RunEventKind,
    data: Json,
) -> Result<(), Abort> {
    run.events += 1;
    let created_at = ctx.now;
    let seq = ctx.seq;
    let event = ctx.insert(RunEvent {
        id: 0,
        run_id: run.id.clone(),
        session_id: run.session_id.clone(),
        number: run.events,
        turn: run.turn,
        kind,
        data,
        created_at,
        seq,
    });
    event.map(drop)
}

/// Copies an event of a delegated run to the active runs above it, as a status that names the run.
fn copy_to_runs_above(
    ctx: &mut Context<'_>,
    run: &Run,
    parent: String,
    kind: RunEventKind,
    data: JsonValue,
) -> Result<(), Abort> {
    let child = json!({"run_id": run.id, "session_id": run.session_id, "agent": run.agent,
        "number": run.events, "turn": run.turn, "event": kind, "data": data});
    let copy = Json::from(json!({"status": DELEGATING, "child": child}));
    ctx.without_policies(|ctx| {
        let mut above = Some(parent);
        let mut height = 0;
        while let Some(id) = above
            && height < limits::DELEGATION_DEPTH
        {
            // A run that is being aborted stops the runs below it, and does not report that.
            let Some(mut run) = ctx
                .get::<Run>(&id)?
                .filter(|run| !run.status.is_terminal() && run.abort_requested_at.is_none())
            else {
                break;
            };
            insert_event(ctx, &mut run, RunEventKind::Status, copy.clone())?;
            above = save(ctx, run)?.parent_id;
            height += 1;
        }
        Ok(())
    })
}

/// The status of a run that reports an event of a run that it delegated.
const DELEGATING: &str = "delegating";

/// The reason of a run that is paused. Only `resume_run` continues it.
pub(crate) const PAUSED: &str = "pause";

/// Writes a changed run. All changes of its status come here.
pub(crate) fn save(ctx: &mut Context<'_>, mut run: Run) -> Result<Run, Abort> {
    run.updated_at = ctx.now;
    run.seq = ctx.seq;
    let is_waiting = run.status == RunStatus::Waiting;
    if is_waiting != run.waiting_since.is_some() {
        run.count_wait(ctx.now);
    }
    let before = ctx.without_policies(|ctx| ctx.get::<Run>(&run.id))?;
    ctx.update(&run)?;
    if run.status.is_terminal() && before.as_ref().is_some_and(|it| !it.status.is_terminal()) {
        list::move_entries(ctx, &run.listed())?;
    }
    let was_claimable = before.is_some_and(|before| before.is_claimable());
    if was_claimable != run.is_claimable() {
        claim_queue::set(ctx, run.entry(), run.is_claimable())?;
    }
    Ok(run)
}

impl Run {
    /// Returns `true` if a driver can claim it now.
    fn is_claimable(&self) -> bool {
        self.status == RunStatus::Running && self.driver.is_none()
    }

    /// Begins to count a wait, or ends that.
    fn count_wait(&mut self, now: Micros) {
        match self.waiting_since.take() {
            Some(since) => {
                let waited = now.0.saturating_sub(since.0).max(0);
                self.waited_us = Some(self.waited_us.unwrap_or(0).saturating_add(waited));
            }
            None => self.waiting_since = Some(now),
        }
    }

    /// Returns the microseconds since its start in which it has not waited.
    pub(crate) fn worked_us(&self, now: Micros) -> i64 {
        let until = self.waiting_since.unwrap_or(now);
        let lived = until.0.saturating_sub(self.created_at.0);
        lived.saturating_sub(self.waited_us.unwrap_or(0)).max(0)
    }

    /// Marks it as ended; the caller saves it. `reason` is why it was aborted, if it was.
    pub(super) fn close(&mut self, now: Micros, reason: Option<String>) {
        self.ended_at = Some(now);
        self.reason = reason;
        self.release_driver();
    }

    /// Ends the claim of its driver; the caller saves it.
    pub(crate) fn release_driver(&mut self) {
        self.driver = None;
        self.lease_expires_at = None;
    }

    /// It as the lists of its agent have it.
    pub(crate) fn listed(&self) -> list::ListedRun<'_> {
        list::ListedRun {
            id: &self.id,
            agent: &self.agent,
            session_id: &self.session_id,
            ended_at: self.ended_at,
            is_delegated: self.parent_id.is_some(),
        }
    }

    /// Returns its queue entry.
    pub(crate) fn entry(&self) -> claim_queue::QueueEntry<'_> {
        let queue = claim_queue::RUNS.to_owned();
        let since = self.created_at.0;
        let id = &*self.id;
        let session_id = &*self.session_id;
        claim_queue::QueueEntry { queue, since, id, session_id }
    }
}
