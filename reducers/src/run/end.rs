//! How a turn ends: the run waits, or ends.

use abide_schema::reducer::ReducerResult;
use abide_schema::{Abort, Code, Context, Json, Refusal, TextEnum, reducer};
use serde_json::{Map, Value as JsonValue, json};

use super::drive::held;
use super::{
    NewRunEvent, RESUME, Run, RunEventKind, RunStatus, active, awaited, find, save, status, tell,
    tell_all,
};
use crate::cleanup::{self, Task};
use crate::session::{self, SessionStatus};
use crate::{check, delegation, lease};

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

/// Suspends a run until a decision is made. If it was made meanwhile, the run continues
/// immediately; otherwise it waits without a driver. `interrupt` is the event for consumers.
#[reducer]
pub fn wait_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    fencing_token: i64,
    interrupt: Map<String, JsonValue>,
) -> Result<Run, Abort> {
    let mut run = held(ctx, &id, fencing_token)?;
    let session = session::find(ctx, &run.session_id)?;
    let rests = session.status == SessionStatus::Suspended;
    let reason = awaited(ctx, &session)?.or_else(|| rests.then(|| RESUME.to_owned()));
    let Some(reason) = reason else { return Ok(run) };
    tell(ctx, &mut run, RunEventKind::Interrupt, JsonValue::Object(interrupt))?;
    if session.status == SessionStatus::Active {
        let why = format!("run {id} waits for {reason}");
        session::to_status(ctx, session, SessionStatus::Suspended, |it| it.reason = Some(why))?;
    }
    run.status = RunStatus::Waiting;
    run.reason = Some(reason);
    let_go(&mut run);
    save(ctx, run)
}

/// Ends a run. `output` is the answer; `code` and `message` say why there is none.
#[reducer]
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
    if let Some(ended) = ended_so(ctx, &id, fencing_token, end)? {
        return Ok(ReducerResult::Duplicate(ended.seq, ended));
    }
    let mut run = held(ctx, &id, fencing_token)?;
    tell_all(ctx, &mut run, events.unwrap_or_default())?;
    match (end, code) {
        (RunEnd::Done, None) => {
            let output = output.unwrap_or_default();
            run.status = RunStatus::Done;
            run.output = Some(Json::from(JsonValue::Object(output.clone())));
            status(ctx, &mut run, "idle")?;
            tell(ctx, &mut run, RunEventKind::Done, json!({"assistant_data": output}))?;
            close(ctx, run).map(ReducerResult::Fresh)
        }
        (RunEnd::Failed, Some(code)) => {
            check::name("code", &code)?;
            let message = message.unwrap_or_else(|| code.clone());
            fail(ctx, run, RunStatus::Failed, &code, &message).map(ReducerResult::Fresh)
        }
        (RunEnd::Aborted, None) => {
            let message = message.or_else(|| run.reason.clone());
            let message = message.unwrap_or_else(|| ABORTED_MESSAGE.to_owned());
            fail(ctx, run, RunStatus::Aborted, ABORTED, &message).map(ReducerResult::Fresh)
        }
        _ => {
            let detail = "finish_run: code is only valid for a failed run";
            Err(Refusal::new(Code::BadArguments, detail).into())
        }
    }
}

/// The code of an aborted run.
const ABORTED: &str = "aborted";
const ABORTED_MESSAGE: &str = "nobody wants the run any more";

/// The reason for aborting delegated runs.
pub(crate) const CUT_OFF: &str = "the run that delegated it has ended";

/// Whether the caller is the last driver and repeats the call that ended the run: its result was lost. Returns the
/// run.
fn ended_so(
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
#[reducer]
pub fn abort_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    reason: Option<String>,
) -> Result<ReducerResult<Run>, Abort> {
    let mut run = find(ctx, &id)?;
    if run.status == RunStatus::Aborted || run.abort_requested_at.is_some() {
        lease::hide(ctx, &mut run.fencing_token)?;
        return Ok(ReducerResult::Duplicate(run.seq, run));
    }
    if run.status.is_terminal() {
        let detail = format!("run {id} is {}, there is nothing to abort", run.status);
        return Err(Refusal::new(Code::BadTransition, detail).into());
    }
    let task = Task::abort(&run, ctx.seq);
    let mut run = stop(ctx, run, reason.as_deref())?;
    cleanup::begin(ctx, task)?;
    lease::hide(ctx, &mut run.fencing_token)?;
    Ok(ReducerResult::Fresh(run))
}

/// Aborts the run of a session that has ended or is about to end. A cleanup aborts the runs that it delegated; if
/// the session is cancelled, the session's own cleanup does, because it reaches their sessions.
pub(crate) fn abort_of_session(
    ctx: &mut Context<'_>,
    session_id: &str,
    is_cancelled: bool,
) -> Result<(), Abort> {
    let Some(run) = active(ctx, session_id)?.filter(is_wanted) else { return Ok(()) };
    let delegated = (!is_cancelled && !cleanup::is_former(ctx)).then(|| Task::delegated(&run));
    let run = stop(ctx, run, Some("the session has ended"))?;
    match delegated {
        Some(task) if delegation::delegates(ctx, &run.id)? => cleanup::later(ctx, task),
        _ => Ok(()),
    }
}

/// Whether a run is active, and its driver was not asked to stop.
pub(crate) fn is_wanted(run: &Run) -> bool {
    !run.status.is_terminal() && run.abort_requested_at.is_none()
}

/// Marks a run as aborted, and ends it if it has no driver. The caller handles the runs that it delegated.
pub(crate) fn stop(
    ctx: &mut Context<'_>,
    mut run: Run,
    reason: Option<&str>,
) -> Result<Run, Abort> {
    run.abort_requested_at = Some(ctx.now);
    if run.driver.is_some() {
        run.reason = reason.map(str::to_owned);
        stop_delegated(ctx, &run)?;
        return save(ctx, run);
    }
    if run.status == RunStatus::Waiting {
        // The turn has ended with its interrupt; the end of the run is reported in a new turn.
        run.turn += 1;
    }
    fail(ctx, run, RunStatus::Aborted, ABORTED, reason.unwrap_or(ABORTED_MESSAGE))
}

fn fail(
    ctx: &mut Context<'_>,
    mut run: Run,
    to: RunStatus,
    code: &str,
    message: &str,
) -> Result<Run, Abort> {
    run.status = to;
    run.error_code = Some(code.to_owned());
    run.error_message = Some(message.to_owned());
    status(ctx, &mut run, "idle")?;
    tell(ctx, &mut run, RunEventKind::Error, json!({"message": message, "code": code}))?;
    close(ctx, run)
}

fn close(ctx: &mut Context<'_>, mut run: Run) -> Result<Run, Abort> {
    run.ended_at = Some(ctx.now);
    run.reason = None;
    let_go(&mut run);
    stop_delegated(ctx, &run)?;
    save(ctx, run)
}

/// Aborts all active descendants of a run by a cleanup. An ended or aborted run delegates nothing more, nor do its
/// descendants, so none is missed.
fn stop_delegated(ctx: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    if cleanup::is_former(ctx) {
        return stop_all_delegated(ctx, run);
    }
    // The call that marked the run has started their cleanup.
    if run.abort_requested_at.is_some() || !delegation::delegates(ctx, &run.id)? {
        return Ok(());
    }
    cleanup::begin(ctx, Task::delegated(run))
}

/// The same by the rules of version 1 of cleanups, for replays: all at once.
fn stop_all_delegated(ctx: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        for child in delegation::children(ctx, &run.id)? {
            if is_wanted(&child) {
                cleanup::later(ctx, Task::abort_alone(&child, ctx.seq))?;
                stop(ctx, child, Some(CUT_OFF))?;
            }
        }
        Ok(())
    })
}

fn let_go(run: &mut Run) {
    run.driver = None;
    run.lease_expires_at = None;
}
