//! Pauses: a run stops at a stage of its loop and waits until it is resumed. It has no driver and no lease meanwhile.
//!
//! ```text
//! requested ─▶ paused ─▶ resumed          requested: by pause_run; the driver reaches the stage later
//!     └─────────────────────▲             paused without a request: a rule of the definition, or a Rust callback
//! ```
//!
//! The row stays when the run is resumed. It has the place that the run has passed, so a driver does not pause there
//! again.

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{Abort, Code, Context, Micros, Module, Refusal, limits, reducer};
use serde_json::json;

use crate::run::drive::find_claimed;
use crate::run::{self, PAUSED, Run, RunEventKind, RunStatus};
use crate::{budget, check, lease};

pub(crate) mod rows;

pub use rows::{Pause, PauseStage, PauseStatus};

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("pause")
        .visible::<Pause>(RowVisibility::InScope)
        .reducer(pause_run::definition())
        .reducer(record_pause::definition())
        .reducer(resume_run::definition())
}

/// Requests that a run pauses at a stage of its loop, or at the next one if none is named. Tools that run are not
/// interrupted. A run that waits for a decision pauses after that decision. A repeated request replaces the former one.
#[reducer(roles(app, agent, supervisor))]
pub fn pause_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The stage; the next one if omitted.
    stage: Option<PauseStage>,
    /// Why, for people.
    reason: Option<String>,
) -> Result<ReducerResult<Pause>, Abort> {
    let run = run::find(ctx, &id)?;
    check_reason(reason.as_deref())?;
    if run.status.is_terminal() {
        let detail = format!("run {id} is {} and cannot be paused", run.status);
        let hint = another_run_hint(&run);
        return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
    }
    let before = ctx.get::<Pause>(&id)?;
    if let Some(before) = &before {
        let is_same = before.status == PauseStatus::Requested
            && before.requested_stage == stage
            && before.reason == reason;
        if before.status == PauseStatus::Paused || is_same {
            return Ok(ReducerResult::Duplicate(before.seq, before.clone()));
        }
    }
    let requested_by = Some(ctx.caller.id().to_owned());
    let pause = Pause {
        status: PauseStatus::Requested,
        requested_stage: stage,
        reason,
        requested_by,
        requested_at: ctx.now,
        ..new_pause(ctx, &run, before.as_ref())
    };
    save(ctx, pause, before.is_some()).map(ReducerResult::Fresh)
}

/// Pauses a run at a stage that it has reached: for its driver. With `reason` a rule or a callback demands it. Without
/// `reason` it takes effect only while `pause_run` requests it for the stage; otherwise the run continues.
#[reducer(roles(app, agent))]
pub fn record_pause(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    stage: PauseStage,
    /// Why, for people.
    reason: Option<String>,
    /// When the run ends if it still waits: the time limit of an agent that has taken over the turn, if it includes waits.
    ends_at: Option<Micros>,
) -> Result<Run, Abort> {
    let mut run = find_claimed(ctx, &id, fencing_token)?;
    check_reason(reason.as_deref())?;
    let before = ctx.without_policies(|ctx| ctx.get::<Pause>(&id))?;
    let request = before.clone().filter(|pause| {
        pause.status == PauseStatus::Requested
            && pause.requested_stage.is_none_or(|requested| requested == stage)
    });
    if run.abort_requested_at.is_some() || (reason.is_none() && request.is_none()) {
        return Ok(run);
    }
    let request = request.as_ref();
    let requested_stage = request.and_then(|it| it.requested_stage);
    let pause = Pause {
        status: PauseStatus::Paused,
        requested_stage,
        stage: Some(stage),
        iteration: Some(run.iterations),
        reason: reason.or_else(|| request.and_then(|it| it.reason.clone())),
        requested_by: request.and_then(|it| it.requested_by.clone()),
        requested_at: request.map_or(ctx.now, |it| it.requested_at),
        paused_at: Some(ctx.now),
        ..new_pause(ctx, &run, None)
    };
    let event = json!({"run_id": run.id, "session_id": run.session_id, "reason": PAUSED,
        "stage": stage, "iteration": run.iterations, "why": pause.reason,
        "action_requests": []});
    ctx.without_policies(|ctx| save(ctx, pause, before.is_some()))?;
    budget::release(ctx, &run)?;
    run::limit_wait(ctx, &run, ends_at)?;
    run::add_consequence(ctx, &mut run, RunEventKind::Interrupt, event)?;
    run.status = RunStatus::Waiting;
    run.reason = Some(PAUSED.to_owned());
    run.release_driver();
    run::save(ctx, run)
}

/// Resumes a paused run: a driver continues it at the same place. For a run that has not paused yet, it withdraws the
/// request. The caller, and the one that started the run, must be allowed to start runs of its agent.
#[reducer(roles(app, agent, supervisor))]
pub fn resume_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
) -> Result<ReducerResult<Run>, Abort> {
    let mut run = run::find(ctx, &id)?;
    let is_paused = run.status == RunStatus::Waiting && run.reason.as_deref() == Some(PAUSED);
    let before = ctx.without_policies(|ctx| ctx.get::<Pause>(&id))?;
    let is_requested = before.as_ref().is_some_and(|it| it.status == PauseStatus::Requested)
        && !run.status.is_terminal();
    if !is_paused && !is_requested {
        lease::hide_token(ctx, &mut run.fencing_token)?;
        let resumed = before.filter(|it| it.status == PauseStatus::Resumed);
        if let Some(resumed) = resumed.filter(|_| run.status == RunStatus::Running) {
            return Ok(ReducerResult::Duplicate(resumed.seq, run));
        }
        let status = match &run.reason {
            Some(reason) if run.status == RunStatus::Waiting => format!("waiting for {reason}"),
            _ => run.status.to_string(),
        };
        let detail = format!("run {id} is {status}, not paused");
        let hint = if run.status.is_terminal() {
            another_run_hint(&run)
        } else {
            format!(
                "`abide agent pause {}` pauses it; decide_approval, settle_tool_call and resume_session continue a \
                 run that waits for them",
                check::shell_word(&id)
            )
        };
        return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
    }
    run::starter::check_allowed(ctx, &run, Some(&ctx.caller.clone()))?;
    if let Some(mut pause) = before {
        pause.status = PauseStatus::Resumed;
        pause.resumed_at = Some(ctx.now);
        ctx.without_policies(|ctx| save(ctx, pause, true))?;
    }
    if !is_paused {
        lease::hide_token(ctx, &mut run.fencing_token)?;
        return Ok(ReducerResult::Fresh(run));
    }
    let mut run = run::continue_after_pause(ctx, run)?;
    lease::hide_token(ctx, &mut run.fencing_token)?;
    Ok(ReducerResult::Fresh(run))
}

/// Sets the place that an imported run has passed.
pub(crate) fn restore(
    ctx: &mut Context<'_>,
    run: &Run,
    stage: PauseStage,
    iteration: i64,
) -> Result<(), Abort> {
    let pause = Pause {
        status: PauseStatus::Resumed,
        stage: Some(stage),
        iteration: Some(iteration),
        resumed_at: Some(ctx.now),
        ..new_pause(ctx, run, None)
    };
    ctx.without_policies(|ctx| save(ctx, pause, false)).map(drop)
}

/// Returns a pause of a run without its status: what the former one knows of the last stage.
fn new_pause(ctx: &Context<'_>, run: &Run, before: Option<&Pause>) -> Pause {
    Pause {
        run_id: run.id.clone(),
        session_id: run.session_id.clone(),
        status: PauseStatus::Requested,
        requested_stage: None,
        stage: before.and_then(|it| it.stage),
        iteration: before.and_then(|it| it.iteration),
        reason: None,
        requested_by: None,
        requested_at: ctx.now,
        paused_at: None,
        resumed_at: None,
        seq: ctx.seq,
    }
}

fn save(ctx: &mut Context<'_>, mut pause: Pause, exists: bool) -> Result<Pause, Abort> {
    pause.seq = ctx.seq;
    if exists {
        ctx.update(&pause)?
    } else {
        drop(ctx.insert(pause.clone())?)
    }
    Ok(pause)
}

fn check_reason(reason: Option<&str>) -> Result<(), Refusal> {
    match reason {
        Some(reason) if reason.len() > limits::REASON_BYTES => {
            let bytes = reason.len();
            let max = limits::REASON_BYTES;
            let detail = format!("reason has {bytes} bytes; the limit is {max}");
            Err(Refusal::new(Code::LimitExceeded, detail))
        }
        _ => Ok(()),
    }
}

/// How to go on in the session of a run that has ended.
fn another_run_hint(run: &Run) -> String {
    let session = check::shell_word(&run.session_id);
    let agent = check::shell_word(&run.agent);
    format!(
        "`abide agent run --session {session} {agent} MESSAGE` starts another run in the session"
    )
}
