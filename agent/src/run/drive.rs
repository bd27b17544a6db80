//! The loop that drives a run: read the state, choose the next step, execute it, repeat. Each step is one batch
//! under the run's lease.

use std::collections::BTreeSet;

use abide_client::{
    Code, Error, Micros, Run, RunStatus, Session, SessionStatus, ToolCall, ToolCallStatus,
};
use serde_json::{Map, Value, json};

use crate::context::entry::{CallResult, RequestedCall};
use crate::delegation::task;
use crate::middleware::observability;
use crate::model::structured::{self, StructuredAnswer};
use crate::run::driver::Driver;
use crate::run::error::RuntimeError;
use crate::run::next_step::{self, NextStep};
use crate::run::step::{DriveResult, Failure, Step, StepError, overtime};
use crate::tools::registry;
use crate::watchdog::health::{self, WatchdogStep};
use crate::{memory, middleware, model, program, remote_agent, run, tools};

impl Driver {
    /// Drives the run until it ends, waits, or another driver claims it.
    pub(crate) async fn drive(mut self) -> Result<DriveResult, RuntimeError> {
        let driven = self.drive_and_end().await?;
        if driven == DriveResult::Ended {
            observability::run_ended(&self).await;
        }
        Ok(driven)
    }

    /// Drives the run without counting it.
    async fn drive_and_end(&mut self) -> Result<DriveResult, RuntimeError> {
        let halted = match self.go_on().await {
            Ok(driven) => return Ok(driven),
            Err(halted) => halted,
        };
        let ended = match halted {
            StepError::Failed(Failure { code, message }) => self.run_lease.failed(code, message),
            StepError::Aborted => self.run_lease.aborted(self.why_aborted().await?),
            StepError::Ended => return Ok(DriveResult::Ended),
            StepError::Refused(error) => match error.code() {
                Some(Code::LeaseLost) => return Ok(DriveResult::Lost),
                Some(code) if ends_run(code) => {
                    self.run_lease.failed(code.as_str(), error.to_string())
                }
                _ => return Err(error.into()),
            },
        };
        match self.abide.call(ended).await {
            Ok(_) => Ok(DriveResult::Ended),
            // `Denied` means that a runtime with another identity has claimed the run.
            Err(error) if matches!(error.code(), Some(Code::LeaseLost | Code::Denied)) => {
                Ok(DriveResult::Lost)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn go_on(&mut self) -> Step<DriveResult> {
        if self.definition.cli.is_some() {
            return program::run::drive(self).await;
        }
        if self.definition.a2a.is_some() {
            return remote_agent::run::drive(self).await;
        }
        loop {
            let (session, calls) = self.current().await?;
            if let Some(reason) = rests(&session) {
                if self.wait(&[], Vec::new(), reason).await? {
                    return Ok(DriveResult::Waits);
                }
                continue;
            }
            let waiting = task::waiting(self, registry::started_runs(self, &calls)).await?;
            let next = next_step::next(&self.run, &self.entries, &calls, &waiting);
            if run::pause::at_stage(self, &next, &calls).await? {
                return Ok(DriveResult::Waits);
            }
            match next {
                NextStep::Ask => {
                    self.check_limits()?;
                    tools::undelivered::read(self).await?;
                    structured::check_repairs(self)?;
                    model::restart::of_answer(self).await?;
                    if middleware::request_check::denies(self).await? {
                        continue;
                    }
                    let is_read = memory::facts::read(self).await?;
                    let step = health::act(self).await?;
                    self.health.wants_compaction = step == WatchdogStep::Compact;
                    if step == WatchdogStep::LookAgain || is_read {
                        continue;
                    }
                    if let Some(claimed) = model::call::ask(self).await? {
                        self.run_calls(vec![claimed]).await?;
                    }
                }
                NextStep::Request(missing) => self.request(missing).await?,
                NextStep::Run(ready) => self.run_calls(ready).await?,
                NextStep::Await => self.wait_for_calls().await?,
                NextStep::Interrupt(undecided) => {
                    if self.wait(&undecided, waiting, "approval").await? {
                        return Ok(DriveResult::Waits);
                    }
                }
                NextStep::Deliver(ended) => self.deliver(ended).await?,
                NextStep::Finish(text) => match structured::evaluate(self, &text) {
                    StructuredAnswer::Mismatch(why) if structured::may_repair(self) => {
                        self.record(&[], None, vec![structured::repair(self, &why)]).await?;
                    }
                    evaluated => return self.finish(&text, evaluated).await,
                },
                NextStep::Stop(text) => return self.stop_calling(&text).await,
            }
        }
    }

    /// Checks the run's limits before the model is asked again.
    fn check_limits(&self) -> Step {
        let (limits, config) = (&self.definition.limits, &self.definition.config);
        let consumed = self.consumed();
        let over =
            |code: &str, message: String| Err(StepError::Failed(Failure::new(code, message)));
        let default = self.definition.settings().limits.recursion_limit();
        let iterations = config.recursion_limit.unwrap_or(default);
        if consumed.iterations >= iterations {
            return over("recursion_limit", format!("the model has answered {iterations} times"));
        }
        if let Some(max) = limits.tokens.filter(|max| consumed.tokens >= *max) {
            return over("token_limit", format!("the run has reached its limit of {max} tokens"));
        }
        let cost = consumed.cost_micros as f64 / 1e6;
        if let Some(max) = limits.cost_usd.filter(|max| cost >= *max) {
            return over("cost_limit", format!("the run has reached its limit of {max} dollars"));
        }
        let now = self.shared.settings.now();
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            return Err(overtime());
        }
        Ok(())
    }

    /// Runs calls. If the batch that completes the only call also delivers its result, takes over the state after that batch.
    async fn run_calls(&mut self, ready: Vec<ToolCall>) -> Step {
        self.current_calls = None;
        match tools::calls::run_all(self, ready).await? {
            Some(delivered) => self.take_over(delivered).await,
            None => Ok(()),
        }
    }

    /// Requests the missing calls one by one, because the batch of all of them was refused.
    async fn request(&mut self, missing: Vec<RequestedCall>) -> Step {
        let skipped = self.calls_past_limit();
        for asked in missing {
            if skipped.contains(&asked.call_id) {
                self.record_result(&asked, &tools::calls::skipped()).await?;
                continue;
            }
            let request = match tools::calls::to_request(self, &asked, false) {
                Ok(request) => request,
                Err(text) => {
                    self.record_result(&asked, &CallResult::error(text)).await?;
                    continue;
                }
            };
            match self.record(&[], None, vec![request.into()]).await {
                Ok(()) => {}
                Err(StepError::Refused(error))
                    if error.code().is_some_and(tools::calls::is_for_the_model) =>
                {
                    self.record_result(&asked, &CallResult::error(error.to_string())).await?;
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
        for (asked, row) in ended {
            let tools::calls::Delivery { result, handoff } =
                tools::calls::deliver(self, &row).await?;
            if row.status == ToolCallStatus::Rejected {
                events.push(tools::calls::decided(&row, "rejected", None));
            }
            let (event, message) = self.result_with_handoff(&asked, &result, handoff);
            events.push(event);
            messages.push(message.into());
        }
        self.record_step((&events, None), messages).await.map(drop)
    }

    /// The ids of the calls of the last answer that exceed the limit of tool calls. The run has counted all of them.
    fn calls_past_limit(&self) -> BTreeSet<String> {
        let answer = next_step::last_answer(&self.run, &self.entries);
        let calls = answer.map_or(&[][..], |(_, answer)| &answer.calls);
        let over = self.consumed().tool_calls - self.definition.settings().limits.tool_calls;
        let over = usize::try_from(over).unwrap_or(0).min(calls.len());
        calls[calls.len() - over..].iter().map(|call| call.call_id.clone()).collect()
    }

    async fn record_result(&self, asked: &RequestedCall, result: &CallResult) -> Step {
        let (event, message) = self.result(asked, result);
        self.record(&[event], None, vec![message.into()]).await
    }

    /// Suspends the run until a decision. Returns whether the run waits: the decision may have been made in the
    /// meantime.
    pub(crate) async fn wait(
        &self,
        undecided: &[ToolCall],
        waiting: Vec<Run>,
        reason: &str,
    ) -> Step<bool> {
        let below = task::undecided(self, waiting).await?;
        let undecided = undecided.to_vec();
        let session_id = &self.run.session_id;
        let own = tools::exchange::to_decide(&self.abide, session_id, undecided).await?;
        let own = own.iter().filter(|call| !registry::starts_run(self, call) || is_open(call));
        let own = own.map(|call| (&self.run, call));
        let all = own.chain(below.calls.iter().map(|(run, call)| (run, call)));
        let mut all: Vec<Value> = all.map(|(run, call)| self.request_of(run, call)).collect();
        tools::interrupted::add_files(self, &mut all).await;
        tools::approval::add_questions(self, &mut all).await?;
        let reason = match reason {
            "approval" => decision_of(&all),
            other => other,
        };
        // Without a call to decide on, it is a session that has to be resumed or taken back.
        let (session_id, reason) = match below.runs.first().filter(|_| all.is_empty()) {
            Some(run) => (&run.session_id, run.reason.as_deref().unwrap_or(reason)),
            None => (&self.run.session_id, reason),
        };
        let mut interrupt = interrupt(session_id, all, reason);
        interrupt.insert("agent".to_owned(), json!(self.definition.name));
        if reason == "pause" {
            let paused = below.runs.first().map(|run| run.id.as_str());
            interrupt.insert("run_id".to_owned(), json!(paused));
        }
        let ends_at = self.wait_deadline().map(Micros);
        let run = self.abide.call(self.run_lease.wait(interrupt, ends_at)).await?;
        Ok(run.status == RunStatus::Waiting)
    }

    /// A call that needs a decision. One of a delegated run names the run.
    fn request_of(&self, run: &Run, call: &ToolCall) -> Value {
        let mut request = json!({"tool_call_id": call.call_id, "tool_name": call.tool_name,
            "args": call.arguments.value(), "status": call.status.as_str()});
        if let Some(why) = call.error.as_deref().filter(|_| call.status == ToolCallStatus::Unknown)
        {
            request["error"] = json!(&why[..why.floor_char_boundary(REASON_BYTES)]);
        }
        if run.id != self.run.id {
            request["run_id"] = json!(run.id);
            request["session_id"] = json!(run.session_id);
            request["agent"] = json!(run.agent);
        }
        request
    }

    /// Waits until a call of the session changes.
    async fn wait_for_calls(&mut self) -> Step {
        let mut changes =
            self.abide.subscribe(OPEN_CALLS).param("sid", &self.run.session_id).await?;
        // The first update is the current state. It may differ from the state that was read before.
        changes.next().await;
        let (_, calls) = self.look().await?;
        let waiting = task::waiting(self, registry::started_runs(self, &calls)).await?;
        if next_step::next(&self.run, &self.entries, &calls, &waiting) != NextStep::Await {
            return Ok(());
        }
        let needs_permit = self.permit.take().is_some();
        tokio::select! {
            // A run that one of the calls has started continues.
            changed = task::one_changes(self, &waiting) => changed.map_err(StepError::from),
            update = changes.next() => match update {
                Some(_) => Ok(()),
                None => Err(StepError::Refused(Error::Closed)),
            },
            () = self.stop.cancelled() => Err(StepError::Aborted),
            () = self.until_deadline() => Err(overtime()),
        }?;
        if needs_permit {
            self.permit = tokio::select! {
                permit = self.shared.run_permit(&self.scope) => Some(permit),
                () = self.stop.cancelled() => return Err(StepError::Aborted),
                () = self.until_deadline() => return Err(overtime()),
            };
        }
        Ok(())
    }

    /// Ends a run whose model keeps calling tools beyond the limit. The text of its last answer, if any, is the
    /// result.
    async fn stop_calling(&self, text: &str) -> Step<DriveResult> {
        if !text.trim().is_empty() {
            return self.finish(text, structured::evaluate(self, text)).await;
        }
        let max = self.definition.settings().limits.tool_calls;
        let why = format!(
            "the run has reached its limit of {max} tool calls, and the model gave no answer"
        );
        Err(StepError::Failed(Failure::new("tool_call_limit", why)))
    }

    async fn finish(&self, text: &str, evaluated: StructuredAnswer) -> Step<DriveResult> {
        let mut output = Map::from_iter([("content".to_owned(), json!(text))]);
        if let Some(entry) = self.entries.last() {
            output.insert("message_id".to_owned(), json!(entry.id));
        }
        let answer = next_step::last_answer(&self.run, &self.entries);
        if let Some(stop) = answer.and_then(|(_, answer)| answer.stop.as_ref()) {
            output.insert("stop_reason".to_owned(), json!(stop));
        }
        match evaluated {
            StructuredAnswer::Free => {}
            StructuredAnswer::Fits(value) => drop(output.insert("structured".to_owned(), value)),
            StructuredAnswer::Mismatch(why) => return Err(structured::failed(&why)),
        }
        self.abide.call(self.run_lease.done(output)).await?;
        Ok(DriveResult::Ended)
    }

    async fn why_aborted(&self) -> Result<String, RuntimeError> {
        let sql = "SELECT reason FROM runs WHERE id = :id";
        let found: Vec<(Option<String>,)> =
            self.abide.sql(sql).param("id", &self.run_lease.run_id).fetch().await?;
        let reason = found.into_iter().next().and_then(|(reason,)| reason);
        Ok(reason.unwrap_or_else(|| "the run was aborted".to_owned()))
    }
}

/// The calls of a session that have not ended. Those that have are never read again: there may be thousands.
const OPEN_CALLS: &str = "SELECT call_id, status, retry_at FROM tool_calls WHERE session_id = :sid \
     AND status IN ('pending', 'awaiting_approval', 'claimed', 'unknown')";

/// Maximum size of the reason of an unknown outcome in an interrupt. The row of the call has all of it.
const REASON_BYTES: usize = 4096;

/// Whether a refused step ends its run, because it would be refused again. After other refusals, such as that of a full disk,
/// the run is driven again later, as after a lost connection.
fn ends_run(code: Code) -> bool {
    !code.retryable()
}

/// Why the session is suspended, if it is.
fn rests(session: &Session) -> Option<&'static str> {
    match session.status {
        SessionStatus::Suspended => Some("resume"),
        SessionStatus::HandedOff => Some("handoff"),
        _ => None,
    }
}

/// Whether a call needs a decision itself.
fn is_open(call: &ToolCall) -> bool {
    matches!(call.status, ToolCallStatus::AwaitingApproval | ToolCallStatus::Unknown)
}

/// The decision that the calls of an interrupt need, as the row of the run names it: a settlement if no call needs an approval.
fn decision_of(all: &[Value]) -> &'static str {
    let has = |status: ToolCallStatus| all.iter().any(|call| call["status"] == status.as_str());
    let settles = has(ToolCallStatus::Unknown) && !has(ToolCallStatus::AwaitingApproval);
    if settles { "settlement" } else { "approval" }
}

/// The event that asks for a decision: the first call in top-level fields, for clients that show one call at a time, and a list
/// of all calls.
fn interrupt(session_id: &str, all: Vec<Value>, reason: &str) -> Map<String, Value> {
    let mut fields = match all.first().cloned() {
        Some(Value::Object(first)) => first,
        _ => Map::new(),
    };
    fields.remove("status");
    fields.remove("error");
    fields.remove("run_id");
    fields.remove("agent");
    fields.remove("files");
    fields.remove("files_complete");
    fields.insert("session_id".to_owned(), json!(session_id));
    fields.insert("reason".to_owned(), json!(reason));
    fields.insert("action_requests".to_owned(), json!(all));
    fields
}

#[cfg(test)]
mod tests;
