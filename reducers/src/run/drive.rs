//! Driving a run: under a lease, so that one driver at a time advances it. This file decides who may claim a run, and what the holder
//! of the lease may record. What follows when the lease expires is `lapse_run` in `run/end.rs`.

use abide_schema::{Abort, Code, Context, Refusal, Seq, limits, reducer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;

use super::rows::add_event;
use super::{NewRunEvent, Run, RunEventKind, RunStatus, find, save, starter, unknown_run};
use crate::claim_queue::{self, ClaimBudget, QueueScan};
use crate::pause::rows::Pause;
use crate::session::{self, Session};
use crate::{budget, check, delegation, lease};

/// The consumption of a model's answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelUsage {
    /// Whether this is an answer of the model.
    pub iteration: bool,
    /// Tool calls requested in it.
    pub tool_calls: i64,
    /// Input tokens, if the provider reported them.
    pub input_tokens: Option<i64>,
    /// Output tokens, if the provider reported them.
    pub output_tokens: Option<i64>,
    /// Its cost in millionths of a dollar, if known.
    pub cost_micros: Option<i64>,
}

impl ModelUsage {
    /// Returns `true` if it reports tool calls and no answer.
    fn is_calls_alone(&self) -> bool {
        let is_usage = self.input_tokens.is_some()
            || self.output_tokens.is_some()
            || self.cost_micros.is_some();
        self.tool_calls > 0 && !self.iteration && !is_usage
    }
}

/// Claims a run without a driver, or claims it again after a restart of the same identity with the same driver name.
/// The previous fencing token is no longer accepted.
#[reducer(roles(app, agent))]
pub fn claim_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The name of the driver.
    driver: String,
    /// Lease time.
    lease_ms: i64,
) -> Result<Run, Abort> {
    check::name("driver", &driver)?;
    let run = find(ctx, &id)?;
    if run.status != RunStatus::Running {
        let detail = format!("run {id} is {} and cannot be claimed", run.status);
        let hint = if run.status.is_terminal() {
            ENDED
        } else {
            "it can be claimed when the decision that it waits for is made"
        };
        return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
    }
    if delegation::is_cut_off(ctx, &id)? {
        let detail = format!("run {id} is being aborted with the run that delegated it");
        let hint = "claim another run with `abide call claim_next_run`";
        return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
    }
    if let Some(holder) = &run.driver {
        let token = run.fencing_token.unwrap_or_default();
        if *holder != driver || !lease::is_holder(ctx, token)? {
            let detail = format!("run {id} is claimed by {holder}");
            return Err(Refusal::new(Code::Conflict, detail)
                .hint("it can be claimed when that lease expires")
                .into());
        }
    }
    take(ctx, run, driver, lease_ms)
}

/// Claims the run that has waited longest for a driver. `not_found` if there is none.
#[reducer(roles(app, agent))]
pub fn claim_next_run(
    ctx: &mut Context<'_>,
    /// The name of the driver.
    driver: String,
    /// Lease time.
    lease_ms: i64,
) -> Result<Run, Abort> {
    check::name("driver", &driver)?;
    match longest_waiting(ctx)? {
        Some(run) => {
            ctx.about(&run.session_id);
            take(ctx, run, driver, lease_ms)
        }
        None => {
            let hint = "watch for runs: `abide watch \"SELECT id, agent FROM runs \
                        WHERE status = 'running' AND driver IS NULL\"`";
            Err(Refusal::new(Code::NotFound, "there is no run to claim").hint(hint).into())
        }
    }
}

/// The hint for a run that has ended.
const ENDED: &str = "start_run starts another run in the session";

/// Returns the run that has waited longest, unless a policy hides it or it is about to be aborted.
fn longest_waiting(ctx: &mut Context<'_>) -> Result<Option<Run>, Abort> {
    let mut scan = QueueScan::new(claim_queue::RUNS.to_owned());
    // An active run has no output, so that they are small.
    let mut budget = ClaimBudget::new();
    while let Some(id) = scan.next(ctx, &mut budget, find_waiting_behind)? {
        if let Some(run) = ctx.get::<Run>(&*id)?
            && !delegation::is_cut_off(ctx, &id)?
        {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// Returns the id of the run that has waited longest for a driver, behind another one.
fn find_waiting_behind(
    ctx: &mut Context<'_>,
    behind: Option<&str>,
) -> Result<Option<String>, Abort> {
    let behind = match behind {
        Some(id) => ctx.get::<Run>(id)?,
        None => None,
    };
    let (created_at, id) =
        behind.map_or((i64::MIN, String::new()), |run| (run.created_at.0, run.id));
    let next = "WHERE status = 'running' AND driver IS NULL AND (created_at, id) > (?1, ?2)
        ORDER BY created_at, id LIMIT 1";
    let found = ctx.find::<Run>(next, &[created_at.into(), id.as_str().into()])?;
    Ok(found.into_iter().next().map(|run| run.id))
}

fn take(ctx: &mut Context<'_>, mut run: Run, driver: String, lease_ms: i64) -> Result<Run, Abort> {
    run.lease_expires_at = Some(check::lease_end(ctx.now, lease_ms)?);
    run.driver = Some(driver);
    run.fencing_token = Some(ctx.seq.0);
    save(ctx, run)
}

/// Extends the lease on a run. The result shows whether an abort was requested.
#[reducer(roles(app, agent))]
pub fn heartbeat_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    fencing_token: i64,
    lease_ms: i64,
) -> Result<Run, Abort> {
    let mut run = find_claimed(ctx, &id, fencing_token)?;
    run.lease_expires_at = Some(check::lease_end(ctx.now, lease_ms)?);
    save(ctx, run)
}

/// Records events of a run, and its consumption. In a batch with messages and tool calls this makes
/// a step atomic: if the lease is lost, nothing of the batch takes effect.
#[reducer(roles(app, agent))]
pub fn record_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// Events to add to the run.
    events: Option<Vec<NewRunEvent>>,
    /// Usage of the model since the last record.
    spent: Option<ModelUsage>,
    /// Extends the lease by this time.
    lease_ms: Option<i64>,
    /// The event as of which the driver knows the session, its messages and the pause of the run. If they have changed
    /// after it, the call is refused with `conflict`; if not, the driver need not read them again.
    unchanged_since: Option<i64>,
) -> Result<Run, Abort> {
    let mut run = find_claimed(ctx, &id, fencing_token)?;
    if let Some(known) = unchanged_since {
        check_unchanged(ctx, &run, Seq(known))?;
    }
    if let Some(lease_ms) = lease_ms {
        run.lease_expires_at = Some(check::lease_end(ctx.now, lease_ms)?);
    }
    if let Some(spent) = spent {
        add_usage(&mut run, &spent)?;
        // Calls that a program reports while it runs say nothing about its usage.
        if !spent.is_calls_alone() {
            let reported = spent.input_tokens.zip(spent.output_tokens);
            let tokens = reported.map(|(input, output)| input + output);
            budget::settle(ctx, &run, tokens, spent.cost_micros)?;
        }
    }
    add_driver_events(ctx, &mut run, events.unwrap_or_default())?;
    save(ctx, run)
}

/// Adds a driver's events; the events that end a turn are not allowed here. A handoff is refused if the caller on whose behalf the
/// run works may not use the other agent.
pub(super) fn add_driver_events(
    ctx: &mut Context<'_>,
    run: &mut Run,
    events: Vec<NewRunEvent>,
) -> Result<(), Abort> {
    if events.len() > limits::RUN_EVENTS {
        let detail =
            format!("events has {} items; the limit is {}", events.len(), limits::RUN_EVENTS);
        let hint = "record them with several calls of record_run";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
    }
    for NewRunEvent { kind, data } in events {
        use RunEventKind::{Done, Error, Interrupt};
        if matches!(kind, Done | Error | Interrupt) {
            let detail = format!("{kind} is recorded by finish_run and wait_run, once per turn");
            let hint = "omit it, and end the turn with one of these calls";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
        if kind == RunEventKind::Delegation
            && data.get("handoff").is_some_and(|it| *it == true)
            && let Some(to) = data.get("to_agent").and_then(JsonValue::as_str)
        {
            starter::check_handoff(ctx, run, to)?;
        }
        add_event(ctx, run, kind, JsonValue::Object(data))?;
    }
    Ok(())
}

/// Checks that neither the session of a run nor its pause has changed after an event. Each message changes its session.
fn check_unchanged(ctx: &mut Context<'_>, run: &Run, known: Seq) -> Result<(), Abort> {
    let (session, pause) = ctx.without_policies(|ctx| -> Result<_, Abort> {
        Ok((ctx.get::<Session>(&run.session_id)?, ctx.get::<Pause>(&run.id)?))
    })?;
    let detail = match (session.map(|it| it.seq).filter(|seq| *seq > known), pause.map(|it| it.seq))
    {
        (Some(Seq(seq)), _) => format!("session {} has changed in event {seq}", run.session_id),
        (None, Some(Seq(seq))) if seq > known.0 => {
            format!("the pause of run {} has changed in event {seq}", run.id)
        }
        (None, _) => return Ok(()),
    };
    let hint = "read the session and the pause of the run, then repeat the call with a newer \
                unchanged_since, or without it";
    Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
}

fn add_usage(run: &mut Run, spent: &ModelUsage) -> Result<(), Refusal> {
    let counts = 0..=i64::from(u32::MAX);
    check::in_range("tool_calls", Some(spent.tool_calls), &counts)?;
    check::in_range("input_tokens", spent.input_tokens, &counts)?;
    check::in_range("output_tokens", spent.output_tokens, &counts)?;
    check::in_range("cost_micros", spent.cost_micros, &counts)?;
    run.iterations += i64::from(spent.iteration);
    run.tool_calls += spent.tool_calls;
    run.input_tokens += spent.input_tokens.unwrap_or(0);
    run.output_tokens += spent.output_tokens.unwrap_or(0);
    let has_usage = spent.input_tokens.is_some() && spent.output_tokens.is_some();
    run.usage_missing += i64::from(spent.iteration && !has_usage);
    if let Some(cost) = spent.cost_micros {
        run.cost_micros = Some(run.cost_micros.unwrap_or(0) + cost);
    }
    Ok(())
}

/// Loads a run, if the caller holds it with this token.
pub(crate) fn find_claimed(
    ctx: &mut Context<'_>,
    id: &str,
    fencing_token: i64,
) -> Result<Run, Abort> {
    let run = find_claimed_unnamed(ctx, id, fencing_token)?;
    ctx.about(&run.session_id);
    Ok(run)
}

/// Loads a run that its driver may continue: the caller holds it with this token, and neither the run, nor its session, nor a
/// run above it is being ended. Otherwise the only thing left to do is to end it as aborted.
pub(super) fn find_continuing(
    ctx: &mut Context<'_>,
    id: &str,
    fencing_token: i64,
) -> Result<Run, Abort> {
    let run = find_claimed(ctx, id, fencing_token)?;
    let session = ctx.without_policies(|ctx| ctx.get::<Session>(&*run.session_id))?;
    let is_closing = match &session {
        Some(session) => session::is_closing(ctx, session)?,
        None => false,
    };
    let detail = if run.abort_requested_at.is_some() {
        format!("run {id} is being aborted")
    } else if is_closing {
        format!("run {id} is being aborted with its session {}", run.session_id)
    } else if delegation::is_cut_off(ctx, id)? {
        format!("run {id} is being aborted with the run that delegated it")
    } else {
        return Ok(run);
    };
    let hint = "end it with `abide call finish_run end=aborted`, with its id and fencing token";
    Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
}

/// Loads a run, if the caller holds it with this token. The event does not name the session.
pub(crate) fn find_claimed_unnamed(
    ctx: &mut Context<'_>,
    id: &str,
    fencing_token: i64,
) -> Result<Run, Abort> {
    let run = ctx.get::<Run>(id)?.ok_or_else(|| unknown_run(id))?;
    let has_driver = run.status == RunStatus::Running && run.driver.is_some();
    // The current claim's token determines the holder: the given token could be any event of the caller.
    let is_holder = match run.fencing_token {
        Some(current) => lease::is_holder(ctx, current)?,
        None => false,
    };
    if is_holder && has_driver && run.fencing_token == Some(fencing_token) {
        return Ok(run);
    }
    if run.fencing_token.is_some() && !is_holder {
        let what = format!("run {id}");
        return Err(if has_driver {
            lease::not_the_holder(&what)
        } else {
            lease::was_not_the_holder(&what, run.status.as_str())
        }
        .into());
    }
    let detail = match (&run.driver, run.status) {
        (Some(driver), RunStatus::Running) => {
            format!("run {id} is driven by {driver} under another token")
        }
        (_, status) => format!("run {id} is {status} and has no driver"),
    };
    let hint = if run.status.is_terminal() {
        ENDED
    } else {
        "another driver may have claimed the run; stop, and claim it again to continue"
    };
    Err(Refusal::new(Code::LeaseLost, detail).hint(hint).into())
}
