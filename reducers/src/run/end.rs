//! How a run ends: its driver ends it, a caller aborts it, its time limit ends it while it waits, or its lease expires after an abort
//! was requested.

use abide_schema::reducer::ReducerResult;
use abide_schema::{Abort, Code, Context, Json, Micros, Refusal, TextEnum, reducer};
use serde_json::{Map, Value as JsonValue, json};

use super::delegated_session::LeftCalls;
use super::drive::{add_driver_events, find_claimed, find_continuing};
use super::stop::{ABORTED, ABORTED_MESSAGE, end_overdue, fail, stop, stop_alone};
use super::{
    NewRunEvent, Run, RunEventKind, RunStatus, WaitLimit, add_consequence, add_status,
    delegated_session, find, save,
};
use crate::cleanup::{self, Task};
use crate::{budget, check, delegation, lease};

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum RunEnd {
    /// With an answer.
    Done,
    /// With an error.
    Failed,
    /// By an abort.
    Aborted,
}

/// Ends a run. `output` is the answer; `code` and `message` say why there is none. A run that is being aborted, also with its
/// session, ends as failed or aborted: `done` is refused with `conflict`.
#[reducer(roles(app, agent))]
pub fn finish_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    fencing_token: i64,
    end: RunEnd,
    output: Option<Map<String, JsonValue>>,
    code: Option<String>,
    message: Option<String>,
    events: Option<Vec<NewRunEvent>>,
) -> Result<ReducerResult<Run>, Abort> {
    if let Some(ended) = find_ended_by(ctx, &id, fencing_token, end)? {
        return Ok(ReducerResult::Duplicate(ended.seq, ended));
    }
    let mut run = match end {
        RunEnd::Done => find_continuing(ctx, &id, fencing_token)?,
        RunEnd::Failed | RunEnd::Aborted => find_claimed(ctx, &id, fencing_token)?,
    };
    budget::release(ctx, &run)?;
    add_driver_events(ctx, &mut run, events.unwrap_or_default())?;
    match (end, code) {
        (RunEnd::Done, None) => {
            let output = output.unwrap_or_default();
            run.status = RunStatus::Done;
            run.output = Some(Json::from(JsonValue::Object(output.clone())));
            add_status(ctx, &mut run, "idle")?;
            add_consequence(ctx, &mut run, RunEventKind::Done, json!({"assistant_data": output}))?;
            run.close(ctx.now, None);
        }
        (RunEnd::Failed, Some(code)) => {
            check::name("code", &code)?;
            let message = message.unwrap_or_else(|| code.clone());
            fail(ctx, &mut run, RunStatus::Failed, &code, &message)?;
        }
        (RunEnd::Aborted, None) => {
            let message = message
                .or_else(|| run.reason.clone())
                .unwrap_or_else(|| ABORTED_MESSAGE.to_owned());
            fail(ctx, &mut run, RunStatus::Aborted, ABORTED, &message)?;
        }
        (RunEnd::Failed, None) => {
            let hint = "code is the error code of the run, such as code=timeout";
            let refusal = Refusal::new(Code::BadArguments, "end=failed requires code").hint(hint);
            return Err(refusal.into());
        }
        (RunEnd::Done | RunEnd::Aborted, Some(_)) => {
            let detail = "code is valid only with end=failed";
            let refusal = Refusal::new(Code::BadArguments, detail).hint("omit code");
            return Err(refusal.into());
        }
    }
    // Saved first: the runs that it delegated report to active runs only.
    let run = save(ctx, run)?;
    if end != RunEnd::Done && run.abort_requested_at.is_none() {
        // The next run of the session may ask for the same again: a worker that claims a call later would do it twice.
        let task = Task::abort(&run, ctx.seq);
        delegated_session::end(ctx, &run, LeftCalls::AreCancelled)?;
        cleanup::begin(ctx, task)?;
        return Ok(ReducerResult::Fresh(run));
    }
    delegated_session::end(ctx, &run, LeftCalls::Stay)?;
    stop_delegated(ctx, &run)?;
    Ok(ReducerResult::Fresh(run))
}

/// Aborts all active descendants of a run by a cleanup. An ended or aborted run delegates nothing more, nor do its
/// descendants, so none is missed.
fn stop_delegated(ctx: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    // The call that marked the run has started their cleanup.
    if run.abort_requested_at.is_some() || !delegation::has_delegated(ctx, &run.id)? {
        return Ok(());
    }
    cleanup::begin(ctx, Task::delegated(run))
}

/// Whether the caller is the last driver and repeats the call that ended the run: its result was lost. Returns the
/// run.
fn find_ended_by(
    ctx: &mut Context<'_>,
    id: &str,
    fencing_token: i64,
    end: RunEnd,
) -> Result<Option<Run>, Abort> {
    let run = find(ctx, id)?;
    let status = match end {
        RunEnd::Done => RunStatus::Done,
        RunEnd::Failed => RunStatus::Failed,
        RunEnd::Aborted => RunStatus::Aborted,
    };
    let last = run.status == status && run.fencing_token == Some(fencing_token);
    Ok((last && lease::is_holder(ctx, fencing_token)?).then_some(run))
}

/// Aborts a run. Without a driver it ends immediately; otherwise its
/// driver is asked to stop. Unclaimed tool calls are cancelled, workers of claimed ones are asked to stop.
#[reducer(roles(app, agent))]
pub fn abort_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    reason: Option<String>,
) -> Result<ReducerResult<Run>, Abort> {
    let mut run = find(ctx, &id)?;
    if run.status == RunStatus::Aborted || run.abort_requested_at.is_some() {
        lease::hide_token(ctx, &mut run.fencing_token)?;
        return Ok(ReducerResult::Duplicate(run.seq, run));
    }
    if run.status.is_terminal() {
        let detail = format!("run {id} is {} and cannot be aborted", run.status);
        return Err(Refusal::new(Code::BadTransition, detail).into());
    }
    let task = Task::abort(&run, ctx.seq);
    let mut run = stop_alone(ctx, run, reason.as_deref())?;
    cleanup::begin(ctx, task)?;
    lease::hide_token(ctx, &mut run.fencing_token)?;
    Ok(ReducerResult::Fresh(run))
}

/// Ends a run that still waits at its time limit, and the runs that it delegated. Its calls that no worker has claimed
/// are cancelled: a decision on them is refused from then on.
#[reducer]
pub fn expire_run(ctx: &mut Context<'_>, id: String, deadline_at: Micros) -> Result<Run, Abort> {
    let run = find(ctx, &id)?;
    let is_due = run.status == RunStatus::Waiting && run.deadline_at == Some(deadline_at);
    if !is_due || ctx.now < deadline_at {
        return Err(check::not_due(&id, deadline_at).into());
    }
    end_overdue_tree(ctx, run)
}

/// Ends a run that still waits at the time limit of the agent that has taken over its turn, as `expire_run` does.
#[reducer]
pub fn expire_wait(ctx: &mut Context<'_>, run_id: String, ends_at: Micros) -> Result<Run, Abort> {
    let run = find(ctx, &run_id)?;
    let limit = ctx.get::<WaitLimit>(&run_id)?;
    if limit.is_none_or(|limit| limit.ends_at != ends_at) || ctx.now < ends_at {
        return Err(check::not_due(&run_id, ends_at).into());
    }
    ctx.delete::<WaitLimit>(&run_id)?;
    match run.status {
        RunStatus::Waiting => end_overdue_tree(ctx, run),
        // It has continued: its driver ends it, unless the agent has handed back.
        _ => Ok(run),
    }
}

/// Ends an overdue run, and begins to end its calls and the runs that it delegated.
fn end_overdue_tree(ctx: &mut Context<'_>, run: Run) -> Result<Run, Abort> {
    let task = Task::abort(&run, ctx.seq);
    let run = end_overdue(ctx, run)?;
    cleanup::begin(ctx, task)?;
    Ok(run)
}

/// Handles the expired lease of a run: another driver can claim it. If an abort was requested, the run ends: nobody is left to do
/// it.
#[reducer]
pub fn lapse_run(
    ctx: &mut Context<'_>,
    id: String,
    lease_expires_at: Micros,
) -> Result<Run, Abort> {
    let mut run = find(ctx, &id)?;
    let is_running = run.status == RunStatus::Running;
    if !is_running || run.lease_expires_at != Some(lease_expires_at) || ctx.now < lease_expires_at {
        return Err(check::not_due(&id, lease_expires_at).into());
    }
    run.driver = None;
    run.lease_expires_at = None;
    if run.abort_requested_at.is_some() {
        let reason = run.reason.clone();
        return stop(ctx, run, reason.as_deref());
    }
    budget::release(ctx, &run)?;
    save(ctx, run)
}
