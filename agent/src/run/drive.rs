//! The loop of a driver: it makes its rows current, decides what comes next, does it, and repeats. Each step is one batch under the
//! lease of the run.
//!
//! What comes next is [`RunState::decide`](crate::run::state::RunState::decide), which depends on rows alone. This file maps each
//! [`Action`] to the code that performs it: `model/request.rs` asks the model, `tools/calls.rs` runs calls, `tools/delivery.rs`
//! makes their results, `run/wait.rs` suspends the run. It also decides how the run ends ([`Driver::end_after`] after an error).

use std::collections::BTreeSet;
use std::time::Instant;

use abide_client::Code;
use abide_client::rows::{ToolCall, ToolCallStatus};
use serde_json::{Map, json};

use crate::agent_loop::{self, AgentLoops};
use crate::context::entry::{CallResult, RequestedCall};
use crate::middleware::observability;
use crate::model::structured::{self, StructuredAnswer};
use crate::run::decide::{Action, CallStep};
use crate::run::driver::Driver;
use crate::run::error::RuntimeError;
use crate::run::state::NewRows;
use crate::run::step::{DriveResult, RunFailure, Step, StepError};
use crate::tools::delivery::Delivery;
use crate::watchdog::{self, WatchdogStep};
use crate::{memory, middleware, model, program, remote_agent, run, tools};

impl Driver {
    /// Drives the run until it ends, waits, or another driver claims it.
    /// `loops` are those in Rust that definitions can select.
    pub(crate) async fn drive(mut self, loops: &AgentLoops) -> Result<DriveResult, RuntimeError> {
        let shutdown = self.shutdown.clone();
        // A program is ended by its loop, which records its last lines.
        let is_program = self.agent.definition.cli.is_some();
        let driven = tokio::select! {
            driven = self.drive_to_end(loops) => driven?,
            () = shutdown.stopped(), if !is_program => DriveResult::Released,
        };
        if driven == DriveResult::Ended {
            observability::run_ended(&self).await;
        }
        Ok(driven)
    }

    /// Drives the run until the work of this driver ends, and records how it ends.
    async fn drive_to_end(&mut self, loops: &AgentLoops) -> Result<DriveResult, RuntimeError> {
        match self.run_loop(loops).await {
            Ok(driven) => Ok(driven),
            Err(error) => self.end_after(error).await,
        }
    }

    /// Performs one action after the other, until the work of this driver ends.
    async fn run_loop(&mut self, loops: &AgentLoops) -> Step<DriveResult> {
        if self.agent.definition.cli.is_some() {
            return program::run::drive(self).await;
        }
        if self.agent.definition.a2a.is_some() {
            let shutdown = self.shutdown.clone();
            // The task at the remote agent goes on, and the next driver continues with it.
            return tokio::select! {
                biased;
                () = shutdown.draining() => Err(StepError::Released),
                driven = remote_agent::run::drive(self) => driven,
            };
        }
        loop {
            let Some(action) = self.next_action().await? else { return Ok(DriveResult::Waits) };
            let begun = Instant::now();
            let step = action.name();
            let ended = match action {
                Action::Ask => self.answer(loops).await?,
                Action::Calls(step) => self.perform(step).await?,
                Action::Suspend(reason) => {
                    self.suspend(&[], reason).await?.then_some(DriveResult::Waits)
                }
                Action::Finish(text) => self.finish(&text).await?,
                Action::EndAtLimit(text) => Some(self.end_at_limit(&text).await?),
            };
            self.shared.metrics.step(step, begun.elapsed());
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    /// Ends the run whose step did not complete: as failed, or as aborted. It is not ended if another driver holds it, or if the same
    /// step can succeed later.
    ///
    /// # Errors
    /// [`RuntimeError`] if the step can succeed later: the run is driven again after a pause (`run/drivers.rs`).
    async fn end_after(&self, error: StepError) -> Result<DriveResult, RuntimeError> {
        let end = match error {
            StepError::Failed(RunFailure { code, message }) => self.run_lease.fail(code, message),
            StepError::Aborted => self.run_lease.abort(self.why_aborted().await?),
            StepError::Ended => return Ok(DriveResult::Ended),
            StepError::Released => return Ok(DriveResult::Released),
            StepError::Refused(error) => match error.code() {
                Some(Code::LeaseLost) => return Ok(DriveResult::Lost),
                Some(Code::Conflict) if self.is_abort_requested().await? => {
                    self.run_lease.abort(self.why_aborted().await?)
                }
                Some(code) if ends_run(code) => {
                    self.run_lease.fail(code.as_str(), error.to_string())
                }
                _ => return Err(error.into()),
            },
        };
        match self.abide.call(end).await {
            Ok(_) => Ok(DriveResult::Ended),
            // `Denied` means that a runtime with another identity has claimed the run.
            Err(error) if matches!(error.code(), Some(Code::LeaseLost | Code::Denied)) => {
                Ok(DriveResult::Lost)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the next action, after it has made the rows current; `None` if the run pauses before the action.
    pub(crate) async fn next_action(&mut self) -> Step<Option<Action>> {
        self.check_shutdown()?;
        self.refresh().await?;
        let action = self.state.decide();
        let is_paused = run::pause::at_stage(self, &action).await?;
        Ok((!is_paused).then_some(action))
    }

    /// Checks that another step may begin.
    ///
    /// # Errors
    /// [`StepError::Released`] if the runtime stops.
    pub(crate) fn check_shutdown(&self) -> Step {
        // A run that is to be aborted ends as such.
        let is_released = self.shutdown.is_draining() && !self.stop.is_cancelled();
        if is_released { Err(StepError::Released) } else { Ok(()) }
    }

    /// Does what the calls of the last answer need. Returns how the work of this driver ends, if it ends with it.
    pub(crate) async fn perform(&mut self, step: CallStep) -> Step<Option<DriveResult>> {
        match step {
            CallStep::Request(missing) => self.request_one_by_one(missing).await?,
            CallStep::Run(ready) => self.run_calls(ready).await?,
            CallStep::Await => self.wait_for_calls().await?,
            CallStep::Interrupt(undecided) => {
                return Ok(self
                    .suspend(&undecided, "approval")
                    .await?
                    .then_some(DriveResult::Waits));
            }
            CallStep::Deliver(ended) => self.deliver(ended).await?,
        }
        Ok(None)
    }

    /// Answers the last message: with the loop of the definition if it names one, else with the model. Limits and guardrails come
    /// before either.
    async fn answer(&mut self, loops: &AgentLoops) -> Step<Option<DriveResult>> {
        self.check_limits()?;
        tools::undelivered::read(self).await?;
        structured::check_repairs(self)?;
        model::restart::announce_answer(self).await?;
        if middleware::request_check::denies(self).await? {
            return Ok(None);
        }
        let Some(name) = &self.agent.definition.agent_loop else {
            return self.ask_model().await.map(|()| None);
        };
        match loops.get(name) {
            Some(agent_loop) => agent_loop::drive(self, &*agent_loop).await,
            None => {
                let why = format!("this runtime has no loop {name}");
                Err(StepError::Failed(RunFailure::new("unknown_loop", why)))
            }
        }
    }

    /// Asks the model, unless something comes before it: a summary, or facts that are read. The next action asks again then.
    async fn ask_model(&mut self) -> Step {
        let has_read_facts = memory::facts::read(self).await?;
        let step = watchdog::act(self).await?;
        self.health.wants_compaction = step == WatchdogStep::Compact;
        if step == WatchdogStep::ReadAgain || has_read_facts {
            return Ok(());
        }
        match model::request::ask(self).await? {
            Some(claimed) => self.run_calls(vec![claimed]).await,
            None => Ok(()),
        }
    }

    /// Runs calls. If the batch that completes the only call also delivers its result, takes over the state after that batch.
    async fn run_calls(&mut self, ready: Vec<ToolCall>) -> Step {
        self.state.mark_outdated();
        match tools::calls::run_all(self, ready).await? {
            Some(delivered) => self.apply(NewRows::Step(delivered)).await,
            None => Ok(()),
        }
    }

    /// Requests calls that have no rows: the batch with their answer was refused because of one of them, which is not known. The
    /// refusal of a call becomes its result.
    async fn request_one_by_one(&mut self, missing: Vec<RequestedCall>) -> Step {
        let skipped = self.calls_past_limit();
        for call in missing {
            if skipped.contains(&call.call_id) {
                self.record_result(&call, &tools::delivery::skipped()).await?;
                continue;
            }
            let request = match tools::calls::to_request(self, &call, false) {
                Ok(request) => request,
                Err(text) => {
                    self.record_result(&call, &CallResult::error(text)).await?;
                    continue;
                }
            };
            match self.record(&[], None, vec![request.into()]).await {
                Ok(()) => {}
                Err(StepError::Refused(error))
                    if error.code().is_some_and(tools::calls::is_for_the_model) =>
                {
                    self.record_result(&call, &CallResult::error(error.to_string())).await?;
                }
                Err(halt) => return Err(halt),
            }
        }
        Ok(())
    }

    /// Gives the model the results of its calls, in the order in which it requested them.
    async fn deliver(&mut self, ended: Vec<(RequestedCall, ToolCall)>) -> Step {
        let mut events = Vec::new();
        let mut messages = Vec::new();
        for (call, row) in ended {
            let Delivery { result, handoff } = tools::delivery::deliver(self, &row).await?;
            if row.status == ToolCallStatus::Rejected {
                events.push(tools::approval::decision_event(&row, "rejected", None));
            }
            let (event, message) = self.result_records_with_handoff(&call, &result, handoff);
            events.push(event);
            messages.push(message.into());
        }
        self.record_step(&events, None, messages).await.map(drop)
    }

    /// Returns the ids of the calls of the last answer that exceed the limit of tool calls. The run has counted all of
    /// them.
    fn calls_past_limit(&self) -> BTreeSet<String> {
        let answer = self.state.last_answer();
        let calls = answer.map_or(&[][..], |(_, answer)| &answer.calls);
        let limit = self.agent.definition.settings().limits.tool_calls;
        let over = self.state.consumed().tool_calls - limit;
        let over = usize::try_from(over).unwrap_or(0).min(calls.len());
        calls[calls.len() - over..].iter().map(|call| call.call_id.clone()).collect()
    }

    /// Ends the run with the answer of the model, unless it has to be corrected.
    async fn finish(&mut self, text: &str) -> Step<Option<DriveResult>> {
        match structured::evaluate(self, text) {
            StructuredAnswer::Mismatch(why) if structured::may_repair(self) => {
                self.record(&[], None, vec![structured::repair(self, &why)]).await?;
                Ok(None)
            }
            evaluated => self.end(text, evaluated).await.map(Some),
        }
    }

    /// Ends a run whose model keeps calling tools beyond the limit. The text of its last answer, if any, is the
    /// result.
    async fn end_at_limit(&self, text: &str) -> Step<DriveResult> {
        if !text.trim().is_empty() {
            return self.end(text, structured::evaluate(self, text)).await;
        }
        let max = self.agent.definition.settings().limits.tool_calls;
        let why = format!(
            "the run has reached its limit of {max} tool calls, and the model gave no answer"
        );
        Err(StepError::Failed(RunFailure::new("tool_call_limit", why)))
    }

    /// Ends the run as done, with an answer.
    async fn end(&self, text: &str, evaluated: StructuredAnswer) -> Step<DriveResult> {
        let mut output = Map::from_iter([("content".to_owned(), json!(text))]);
        if let Some(entry) = self.state.entries.last() {
            output.insert("message_id".to_owned(), json!(entry.id));
        }
        let answer = self.state.last_answer();
        if let Some(stop) = answer.and_then(|(_, answer)| answer.stop.as_ref()) {
            output.insert("stop_reason".to_owned(), json!(stop));
        }
        match evaluated {
            StructuredAnswer::Free => {}
            StructuredAnswer::Fits(value) => drop(output.insert("structured".to_owned(), value)),
            StructuredAnswer::Mismatch(why) => return Err(structured::mismatch_error(&why)),
        }
        self.abide.call(self.run_lease.finish(output)).await?;
        Ok(DriveResult::Ended)
    }

    /// Returns `true` if an abort was requested meanwhile: the run can continue no more.
    async fn is_abort_requested(&self) -> Result<bool, RuntimeError> {
        let sql = "SELECT abort_requested_at IS NOT NULL FROM runs WHERE id = :id";
        let found: Vec<(bool,)> =
            self.abide.sql(sql).param("id", &self.run_lease.run_id).fetch().await?;
        Ok(found.into_iter().any(|(is_requested,)| is_requested))
    }

    async fn why_aborted(&self) -> Result<String, RuntimeError> {
        let sql = "SELECT reason FROM runs WHERE id = :id";
        let found: Vec<(Option<String>,)> =
            self.abide.sql(sql).param("id", &self.run_lease.run_id).fetch().await?;
        let reason = found.into_iter().next().and_then(|(reason,)| reason);
        Ok(reason.unwrap_or_else(|| "the run was aborted".to_owned()))
    }
}

/// Returns `true` if a refused step ends its run, because it would be refused again. After other refusals, such as that
/// of a full disk, the run is driven again later, as after a lost connection.
fn ends_run(code: Code) -> bool {
    !code.retryable()
}

#[cfg(test)]
mod tests;
