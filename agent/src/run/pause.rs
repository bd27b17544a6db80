//! Pauses: whether a run stops at the stage of the loop that it has reached. The stage follows from rows, so a run that
//! is resumed, even by another driver, continues at the same place.
//!
//! A run pauses for `pause_run`, for a rule of its definition, or for a Rust callback. The row of the last pause has the
//! place that a resumed run has passed.

use abide_client::Micros;
use abide_client::arguments::RecordPause;
use abide_client::rows::{Pause, PauseStage, PauseStatus, Run, RunStatus};
use abide_definitions::pause_rule::{PausePoint, PauseRule};

use crate::run::decide::{Action, CallStep};
use crate::run::driver::Driver;
use crate::run::step::Step;

/// Pauses the run if the stage that it has reached demands it. Returns whether it waits now.
pub(crate) async fn at_stage(driver: &Driver, action: &Action) -> Step<bool> {
    let reached = stages(driver, action);
    if reached.is_empty() {
        return Ok(false);
    }
    let last = driver.state.pause.as_ref();
    for stage in reached {
        if last.is_some_and(|pause| has_passed(pause, &driver.state.run, stage)) {
            continue;
        }
        let reason = demanded(driver, stage);
        if reason.is_none() && !last.is_some_and(|pause| requests(pause, stage)) {
            continue;
        }
        let id = &driver.run_lease.run_id;
        let token = driver.run_lease.fencing_token;
        let ends_at = driver.wait_deadline().map(Micros);
        let record = RecordPause { reason, ends_at, ..RecordPause::new(id, token, stage) };
        let run = driver.abide.call(record).await?.into_inner();
        if run.status == RunStatus::Waiting {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the stages between the last step and the next one, in order. They follow from the next action and the last
/// answer: after an answer with calls, the run is at `after_agent` until the first of them has begun, and at
/// `after_tools` when all have results.
fn stages(driver: &Driver, action: &Action) -> Vec<PauseStage> {
    use PauseStage::{AfterAgent, AfterLoop, AfterTools, BeforeGuardrails};
    let last = driver.state.last_answer();
    let last = last.filter(|(_, answer)| answer.iteration == driver.state.run.iterations);
    let untouched =
        driver.state.calls.iter().all(|call| call.attempt == 0 && !call.status.is_terminal());
    match (action, last) {
        (Action::Ask, Some((_, answer))) if !answer.calls.is_empty() => {
            vec![AfterTools, BeforeGuardrails]
        }
        (Action::Ask, _) => vec![BeforeGuardrails],
        (Action::Finish(_) | Action::EndAtLimit(_), _) => vec![AfterAgent, AfterLoop],
        (Action::Calls(CallStep::Deliver(_)) | Action::Suspend(_), _) => Vec::new(),
        (_, Some(_)) if untouched => vec![AfterAgent],
        _ => Vec::new(),
    }
}

/// Returns `true` if a run was resumed at this place or a later one: it does not pause there again.
fn has_passed(pause: &Pause, run: &Run, stage: PauseStage) -> bool {
    pause.iteration.zip(pause.stage).is_some_and(|last| (run.iterations, stage) <= last)
}

/// Returns `true` if `pause_run` has asked for a pause at this stage.
fn requests(pause: &Pause, stage: PauseStage) -> bool {
    pause.status == PauseStatus::Requested && pause.requested_stage.is_none_or(|it| it == stage)
}

/// Returns `true` if a rule or the callback can demand a pause.
pub(crate) fn may_be_demanded(driver: &Driver) -> bool {
    rules(driver).next().is_some() || driver.shared.pause_callback.is_set()
}

/// Returns the rules of the run's own agent and of the active one.
fn rules(driver: &Driver) -> impl Iterator<Item = &PauseRule> {
    let active = driver.state.handoff().map_or(&[][..], |_| &driver.agent.definition.pause);
    driver.own_definition.pause.iter().chain(active)
}

/// Why a rule or the callback demands a pause.
fn demanded(driver: &Driver, stage: PauseStage) -> Option<String> {
    let (at, answer) =
        driver.state.last_answer().map_or((None, None), |(at, answer)| (Some(at), Some(answer)));
    let text = at.and_then(|at| driver.state.entries[at].content.as_deref()).unwrap_or_default();
    let point = PausePoint {
        stage,
        run: &driver.state.run,
        agent: &driver.agent.definition.name,
        text,
        tools: answer
            .iter()
            .flat_map(|answer| &answer.calls)
            .map(|call| call.name.as_str())
            .collect(),
    };
    rules(driver)
        .find_map(|rule| rule.demands(&point))
        .or_else(|| driver.shared.pause_callback.demands(&point))
}
