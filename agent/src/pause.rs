//! Pauses: whether a run stops at the stage of the loop that it has reached. The stage follows from rows, so a run that
//! is resumed, also by another driver, continues at the same place.
//!
//! A run pauses for `pause_run`, for a rule of its definition, or for a Rust callback. The row of the last pause has the
//! place that a resumed run has passed.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_client::arguments::RecordPause;
use abide_client::{Pause, PauseStage, PauseStatus, Run, RunStatus, ToolCall};
use serde::{Deserialize, Serialize};

use crate::driver::Driver;
use crate::next_step::{self, NextStep};
use crate::step::Step;
use crate::transcript::AssistantEntry;

/// A rule of a definition that pauses a run. All of its conditions must hold. Without a condition it pauses at every
/// such stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a pause, such as {at: after_agent, tools: [NAME]}")]
pub struct PauseRule {
    /// The stage.
    pub at: PauseStage,
    /// The last answer requests a call of one of these tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The model has given exactly this number of answers in the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<i64>,
    /// The run has consumed at least this number of input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i64>,
}

impl PauseRule {
    /// Checks that the conditions can hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        let negative = |number: Option<i64>| number.is_some_and(|number| number < 0);
        if negative(self.iteration) || negative(self.tokens) {
            return Err("a number of pause is negative".to_owned());
        }
        if self.at == PauseStage::AfterLoop && !self.tools.is_empty() {
            let why = "pause at after_loop has tools, but the last answer of a run has no calls";
            return Err(why.to_owned());
        }
        Ok(())
    }

    /// Why the run pauses, if the rule demands it.
    fn demands(&self, point: &PausePoint<'_>) -> Option<String> {
        let calls = |name: &String| point.tools.contains(&name.as_str());
        let tokens = point.run.input_tokens + point.run.output_tokens;
        let holds = self.at == point.stage
            && (self.tools.is_empty() || self.tools.iter().any(calls))
            && self.iteration.is_none_or(|wanted| wanted == point.run.iterations)
            && self.tokens.is_none_or(|least| tokens >= least);
        let why = || format!("the definition of agent {} pauses here", point.agent);
        holds.then(why)
    }
}

/// A stage that a run has reached, for a callback.
#[derive(Clone, Debug)]
pub struct PausePoint<'a> {
    /// The stage.
    pub stage: PauseStage,
    /// The run. `iterations` is the number of answers so far.
    pub run: &'a Run,
    /// The active agent.
    pub agent: &'a str,
    /// The text of the last answer; empty before the first one.
    pub text: &'a str,
    /// The tools that the last answer calls, in order.
    pub tools: Vec<&'a str>,
}

type Callback = dyn Fn(&PausePoint<'_>) -> Option<String> + Send + Sync;

/// The callback of a runtime; the default pauses nothing.
#[derive(Clone, Default)]
pub(crate) struct PauseCallback(Option<Arc<Callback>>);

impl fmt::Debug for PauseCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PauseCallback").field(&self.0.is_some()).finish()
    }
}

impl PauseCallback {
    pub(crate) fn of(
        callback: impl Fn(&PausePoint<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> PauseCallback {
        PauseCallback(Some(Arc::new(callback)))
    }

    /// Why the run pauses, if the callback demands it.
    fn demands(&self, point: &PausePoint<'_>) -> Option<String> {
        let callback = self.0.as_ref()?;
        // `AssertUnwindSafe` is sound: the run pauses, and nothing else depends on the callback's state. A run that
        // was to be supervised must not go on because its supervision failed.
        let asked = catch_unwind(AssertUnwindSafe(|| callback(point)));
        asked.unwrap_or_else(|_| Some("the pause callback panicked".to_owned()))
    }
}

/// Pauses the run if the stage that it has reached demands it. Returns whether it waits now.
pub(crate) async fn at_stage(driver: &Driver, next: &NextStep, calls: &[ToolCall]) -> Step<bool> {
    let reached = stages(driver, next, calls);
    if reached.is_empty() {
        return Ok(false);
    }
    let sql = "SELECT * FROM pauses WHERE run_id = :id";
    let found: Vec<Pause> = driver.abide.sql(sql).param("id", &driver.run.id).fetch().await?;
    let last = found.into_iter().next();
    for stage in reached {
        if last.as_ref().is_some_and(|pause| has_passed(pause, &driver.run, stage)) {
            continue;
        }
        let reason = demanded(driver, stage);
        if reason.is_none() && !last.as_ref().is_some_and(|pause| requests(pause, stage)) {
            continue;
        }
        let (id, token) = (&driver.run_lease.run_id, driver.run_lease.fencing_token);
        let record = RecordPause { reason, ..RecordPause::new(id, token, stage) };
        let run = driver.abide.call(record).await?;
        if run.status == RunStatus::Waiting {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The stages between the last step and the next one, in order.
fn stages(driver: &Driver, next: &NextStep, calls: &[ToolCall]) -> Vec<PauseStage> {
    use PauseStage::{AfterAgent, AfterLoop, AfterTools, BeforeGuardrails};
    let last = next_step::last_answer(&driver.run, &driver.entries);
    let last = last.filter(|(_, said)| said.iteration == driver.run.iterations);
    let untouched = calls.iter().all(|call| call.attempt == 0 && !call.status.is_terminal());
    match (next, last) {
        (NextStep::Ask, Some((_, said))) if !said.calls.is_empty() => {
            vec![AfterTools, BeforeGuardrails]
        }
        (NextStep::Ask, _) => vec![BeforeGuardrails],
        (NextStep::Finish(_) | NextStep::Stop(_), _) => vec![AfterAgent, AfterLoop],
        (NextStep::Deliver(_), _) => Vec::new(),
        (_, Some(_)) if untouched => vec![AfterAgent],
        _ => Vec::new(),
    }
}

/// Whether a run was resumed at this place or a later one.
fn has_passed(pause: &Pause, run: &Run, stage: PauseStage) -> bool {
    pause.iteration.zip(pause.stage).is_some_and(|last| (run.iterations, stage) <= last)
}

fn requests(pause: &Pause, stage: PauseStage) -> bool {
    pause.status == PauseStatus::Requested && pause.requested_stage.is_none_or(|it| it == stage)
}

/// Why a rule or the callback demands a pause.
fn demanded(driver: &Driver, stage: PauseStage) -> Option<String> {
    let (at, said) = next_step::last_answer(&driver.run, &driver.entries)
        .map_or((None, AssistantEntry::default()), |(at, said)| (Some(at), said));
    let text = at.and_then(|at| driver.entries[at].content.as_deref()).unwrap_or_default();
    let point = PausePoint {
        stage,
        run: &driver.run,
        agent: &driver.definition.name,
        text,
        tools: said.calls.iter().map(|call| call.name.as_str()).collect(),
    };
    let own = driver.own.pause.iter();
    let active = driver.handoff.as_ref().map_or(&[][..], |_| &driver.definition.pause);
    let mut rules = own.chain(active);
    rules
        .find_map(|rule| rule.demands(&point))
        .or_else(|| driver.shared.pause_callback.demands(&point))
}
