//! The loop that drives a run: read the state, choose the next step, execute it, repeat. Each step is one batch
//! under the run's lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide_client::arguments::AppendMessage;
use abide_client::{
    Abide, AgentState, Call, Code, Error, Json, ModelUsage, NewRunEvent, Run, RunEventKind,
    RunStatus, Scope, Session, SessionStatus, ToolCall,
};
use abide_models::Models;
use abide_tools::{Environment, ToolContext, Tools};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::definition::AgentDefinition;
use crate::next_step::{self, NextStep};
use crate::run_lease::{RunLease, run_event};
use crate::runtime::{RuntimeError, Settings};
use crate::structured::{self, StructuredAnswer};
use crate::transcript::{self, RequestedCall};
use crate::trusted_programs::TrustedPrograms;
use crate::{model_call, program, tool_calls};

/// State shared by all drivers of a runtime.
pub(crate) struct RuntimeContext {
    pub(crate) abide: Abide,
    /// The active runs, as they were claimed. Only the claim returns the fencing token; it cannot be read later.
    pub(crate) run_leases: Mutex<BTreeMap<String, RunLease>>,
    pub(crate) tools: Tools,
    pub(crate) models: Models,
    pub(crate) settings: Settings,
    pub(crate) trusted_programs: TrustedPrograms,
    /// The environment variables that programs may inherit.
    pub(crate) environment: Environment,
}

impl RuntimeContext {
    /// A client whose scope is that of a session.
    pub(crate) async fn acting_for(&self, session_id: &str) -> Result<Abide, Error> {
        let sql = "SELECT scope FROM sessions WHERE id = :id";
        let found: Vec<(Json,)> = self.abide.sql(sql).param("id", session_id).fetch().await?;
        // A scope restricts a caller only by string values; other values are ignored.
        let scope: Scope = match found.first().map(|(scope,)| scope.value()) {
            Some(Value::Object(scope)) => {
                let texts = scope.into_iter().filter_map(|(key, value)| match value {
                    Value::String(text) => Some((key, text)),
                    _ => None,
                });
                texts.collect()
            }
            _ => Scope::new(),
        };
        self.abide.acting_for(&scope).await
    }
}

/// The driver of one run.
pub(crate) struct Driver {
    pub(crate) shared: Arc<RuntimeContext>,
    /// A client limited to the scope of the run's session, so rows or model output cannot make it reach other data.
    pub(crate) abide: Abide,
    pub(crate) run_lease: RunLease,
    pub(crate) definition: Arc<AgentDefinition>,
    /// The run as it was last read.
    pub(crate) run: Run,
    /// The session's messages so far. Messages are append-only, so only new ones are read.
    pub(crate) entries: Vec<AgentState>,
    /// Cancelled when the run is aborted or its lease is lost.
    pub(crate) stop: CancellationToken,
}

/// How a driver's work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriveResult {
    /// The run is over.
    Ended,
    /// The run waits for a decision.
    Waits,
    /// Another driver holds the run.
    Lost,
}

/// Why a run cannot go on, as shown to its user.
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: impl Into<String>, message: impl Into<String>) -> Failure {
        Failure { code: code.into(), message: message.into() }
    }
}

/// Why a step did not complete.
pub(crate) enum StepError {
    /// The run fails.
    Failed(Failure),
    /// The run was aborted.
    Aborted,
    /// The step was refused, or could not be sent.
    Refused(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> StepError {
        StepError::Refused(error)
    }
}

pub(crate) type Step<T = ()> = Result<T, StepError>;

impl Driver {
    /// Drives the run until it ends, waits, or another driver claims it.
    pub(crate) async fn drive(mut self) -> Result<DriveResult, RuntimeError> {
        let halted = match self.go_on().await {
            Ok(driven) => return Ok(driven),
            Err(halted) => halted,
        };
        let ended = match halted {
            StepError::Failed(Failure { code, message }) => self.run_lease.failed(code, message),
            StepError::Aborted => self.run_lease.aborted(self.why_aborted().await?),
            StepError::Refused(error) => match error.code() {
                Some(Code::LeaseLost) => return Ok(DriveResult::Lost),
                // The same request would be refused again, so the run fails with that error.
                Some(code) => self.run_lease.failed(code.as_str(), error.to_string()),
                None => return Err(error.into()),
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
            return program::drive(self).await;
        }
        loop {
            let (session, calls) = self.look().await?;
            if let Some(reason) = rests(&session) {
                if self.wait(&[], reason).await? {
                    return Ok(DriveResult::Waits);
                }
                continue;
            }
            match next_step::next(&self.run, &self.entries, &calls) {
                NextStep::Ask => {
                    self.check_limits()?;
                    model_call::ask(self).await?;
                }
                NextStep::Request(missing) => self.request(missing).await?,
                NextStep::Run(ready) => tool_calls::run_all(self, &session, ready).await?,
                NextStep::Await => self.wait_for_calls().await?,
                NextStep::Interrupt(undecided) => {
                    if self.wait(&undecided, "approval").await? {
                        return Ok(DriveResult::Waits);
                    }
                }
                NextStep::Deliver(ended) => self.deliver(ended).await?,
                NextStep::Finish(text) => match structured::judge(self, &text) {
                    StructuredAnswer::Misfit(why)
                        if structured::repairs(self) < structured::REPAIRS =>
                    {
                        self.record(&[], None, vec![structured::repair(self, &why)]).await?;
                    }
                    judged => return self.finish(&text, judged).await,
                },
                NextStep::Stop(text) => return self.stop_calling(&text).await,
            }
        }
    }

    /// Reads the session's messages.
    pub(crate) async fn look_at_messages(&mut self) -> Step {
        self.look().await.map(drop)
    }

    /// Reads the current state: the run, its session, its new messages, and the calls of its last answer.
    async fn look(&mut self) -> Step<(Session, Vec<ToolCall>)> {
        if self.stop.is_cancelled() {
            return Err(StepError::Aborted);
        }
        let abide = &self.abide;
        let runs: Vec<Run> = abide
            .sql("SELECT * FROM runs WHERE id = :id")
            .param("id", &self.run_lease.run_id)
            .fetch()
            .await?;
        self.run = runs.into_iter().next().ok_or_else(|| gone("run"))?;
        // A runtime with a restricted role does not see the token. Then the next recorded step detects a lost
        // lease.
        let token = self.run.fencing_token.unwrap_or(self.run_lease.fencing_token);
        if token != self.run_lease.fencing_token {
            return Err(StepError::Refused(Error::Refused(lost(&self.run_lease))));
        }
        if self.run.abort_requested_at.is_some() {
            return Err(StepError::Aborted);
        }
        let sessions: Vec<Session> = abide
            .sql("SELECT * FROM sessions WHERE id = :id")
            .param("id", &self.run.session_id)
            .fetch()
            .await?;
        let session = sessions.into_iter().next().ok_or_else(|| gone("session"))?;
        let newest = self.entries.last().map_or(0, |entry| entry.id);
        let new: Vec<AgentState> = abide
            .sql("SELECT * FROM agent_state WHERE session_id = :sid AND id > :newest ORDER BY id")
            .param("sid", &self.run.session_id)
            .param("newest", newest)
            .fetch()
            .await?;
        self.entries.extend(new);
        let calls = match next_step::last_answer(&self.run, &self.entries) {
            Some((_, said)) if !said.calls.is_empty() => {
                let ids: Vec<&str> = said.calls.iter().map(|call| call.call_id.as_str()).collect();
                let ids = serde_json::to_string(&ids).unwrap_or_default();
                let sql = "SELECT * FROM tool_calls \
                     WHERE call_id IN (SELECT value FROM json_each(:ids)) \
                     AND session_id = :sid";
                let query = abide.sql(sql).param("ids", ids);
                query.param("sid", &self.run.session_id).fetch().await?
            }
            _ => Vec::new(),
        };
        Ok((session, calls))
    }

    /// Checks the run's limits before the model is asked again.
    fn check_limits(&self) -> Step {
        let (limits, config, run) = (&self.definition.limits, &self.definition.config, &self.run);
        let over =
            |code: &str, message: String| Err(StepError::Failed(Failure::new(code, message)));
        // One answer per call, some spare, and at least forty.
        let default = (3 * limits.tool_calls() + 10).max(40);
        let iterations = config.recursion_limit.unwrap_or(default);
        if run.iterations >= iterations {
            return over("recursion_limit", format!("the model has answered {iterations} times"));
        }
        if let Some(most) =
            limits.tokens.filter(|most| run.input_tokens + run.output_tokens >= *most)
        {
            return over("token_limit", format!("the run has reached its limit of {most} tokens"));
        }
        let cost = run.cost_micros.unwrap_or(0) as f64 / 1e6;
        if let Some(most) = limits.cost_usd.filter(|most| cost >= *most) {
            return over("cost_limit", format!("the run has reached its limit of {most} dollars"));
        }
        let now = self.shared.settings.now();
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            return Err(overtime());
        }
        Ok(())
    }

    /// The run's deadline, in microseconds since 1970.
    pub(crate) fn deadline(&self) -> Option<i64> {
        let seconds = self.definition.limits.wall_clock_seconds;
        let own = seconds.map(|seconds| self.run.created_at.0 + seconds * 1_000_000);
        let given = self.run.deadline_at.map(|at| at.0);
        own.into_iter().chain(given).min()
    }

    /// Requests the missing calls one by one, because the batch of all of them was refused.
    async fn request(&mut self, missing: Vec<RequestedCall>) -> Step {
        for asked in missing {
            let request = match tool_calls::to_request(self, &asked) {
                Ok(request) => request,
                Err(text) => {
                    self.tell_result(&asked, &text, true, 1).await?;
                    continue;
                }
            };
            match self.record(&[], None, vec![request]).await {
                Ok(()) => {}
                Err(StepError::Refused(error))
                    if error.code().is_some_and(tool_calls::is_for_the_model) =>
                {
                    self.tell_result(&asked, &error.to_string(), true, 1).await?;
                }
                Err(halt) => return Err(halt),
            }
        }
        Ok(())
    }

    /// Gives the model the results of its calls, in the order in which it requested them.
    async fn deliver(&mut self, ended: Vec<(RequestedCall, ToolCall)>) -> Step {
        let (mut events, mut calls) = (Vec::new(), Vec::new());
        for (asked, row) in ended {
            let (text, is_error, exit_code) = tool_calls::outcome(self, &row);
            let (event, call) = self.result(&asked, &text, is_error, exit_code);
            events.push(event);
            calls.push(call);
        }
        self.record(&events, None, calls).await
    }

    async fn tell_result(
        &self,
        asked: &RequestedCall,
        text: &str,
        is_error: bool,
        code: i32,
    ) -> Step {
        let (event, call) = self.result(asked, text, is_error, code);
        self.record(&[event], None, vec![call]).await
    }

    /// The event and the message for the result of a call.
    pub(crate) fn result(
        &self,
        asked: &RequestedCall,
        text: &str,
        is_error: bool,
        exit_code: i32,
    ) -> (NewRunEvent, Call) {
        let data = json!({"tool_call_id": asked.call_id, "output": text, "exit_code": exit_code});
        let result = transcript::ToolEntry {
            call_id: asked.call_id.clone(),
            provider_call_id: asked.provider_call_id.clone(),
            name: asked.name.clone(),
            is_error,
            exit_code,
        };
        (run_event(RunEventKind::ToolResult, data), self.message("tool", text, &result).into())
    }

    /// The reducer call that appends a message to the session.
    pub(crate) fn message(
        &self,
        role: &str,
        text: impl Into<String>,
        data: &impl serde::Serialize,
    ) -> AppendMessage {
        let data = serde_json::to_value(data).unwrap_or_default();
        AppendMessage::new(&self.run.session_id, role, text.into()).data(data)
    }

    /// Records events, usage and the given calls in one batch, under the run's lease.
    pub(crate) async fn record(
        &self,
        events: &[NewRunEvent],
        spent: Option<&ModelUsage>,
        calls: Vec<Call>,
    ) -> Step {
        let lease = self.shared.settings.lease;
        let mut batch = vec![Call::of(self.run_lease.record(events, spent, lease))];
        batch.extend(calls);
        self.abide.batch(batch).await?;
        Ok(())
    }

    /// Suspends the run until a decision. Returns whether the run waits: the decision may have been made in the
    /// meantime.
    async fn wait(&self, undecided: &[ToolCall], reason: &str) -> Step<bool> {
        let interrupt = interrupt(&self.run.session_id, undecided, reason);
        let run = self.abide.call(self.run_lease.wait(interrupt)).await?;
        Ok(run.status == RunStatus::Waiting)
    }

    /// Waits until a call of the session changes.
    async fn wait_for_calls(&mut self) -> Step {
        let mut changes = self
            .abide
            .subscribe("SELECT call_id, status, retry_at FROM tool_calls WHERE session_id = :sid")
            .param("sid", &self.run.session_id)
            .await?;
        // The first update is the current state. It may differ from the state that was read before.
        changes.next().await;
        let (_, calls) = self.look().await?;
        if next_step::next(&self.run, &self.entries, &calls) != NextStep::Await {
            return Ok(());
        }
        tokio::select! {
            update = changes.next() => match update {
                Some(_) => Ok(()),
                None => Err(StepError::Refused(Error::Closed)),
            },
            () = self.stop.cancelled() => Err(StepError::Aborted),
            () = self.until_deadline() => Err(overtime()),
        }
    }

    /// Completes at the run's deadline; never if it has none.
    pub(crate) async fn until_deadline(&self) {
        match self.deadline() {
            Some(deadline) => {
                let left = (deadline - self.shared.settings.now()).max(0).unsigned_abs();
                tokio::time::sleep(Duration::from_micros(left)).await;
            }
            None => std::future::pending().await,
        }
    }

    /// Ends a run whose model keeps calling tools beyond the limit. The text of its last answer, if any, is the
    /// result.
    async fn stop_calling(&self, text: &str) -> Step<DriveResult> {
        if !text.trim().is_empty() {
            return self.finish(text, structured::judge(self, text)).await;
        }
        let most = self.definition.limits.tool_calls();
        let why = format!(
            "the run has reached its limit of {most} tool calls, and the model gave no answer"
        );
        Err(StepError::Failed(Failure::new("tool_call_limit", why)))
    }

    async fn finish(&self, text: &str, judged: StructuredAnswer) -> Step<DriveResult> {
        let mut output = Map::from_iter([("content".to_owned(), json!(text))]);
        if let Some(entry) = self.entries.last() {
            output.insert("message_id".to_owned(), json!(entry.id));
        }
        match judged {
            StructuredAnswer::Free => {}
            StructuredAnswer::Fits(value) => drop(output.insert("structured".to_owned(), value)),
            StructuredAnswer::Misfit(why) => return Err(structured::failed(&why)),
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

    /// The context that tools are called with.
    pub(crate) fn context(&self, session: &Session) -> ToolContext {
        let scope = match session.scope.value() {
            Value::Object(scope) => scope,
            _ => Map::new(),
        };
        ToolContext {
            session_id: session.id.clone(),
            agent: self.definition.name.clone(),
            scope,
            run_id: Some(self.run.id.clone()),
        }
    }
}

/// Why the session is suspended, if it is.
fn rests(session: &Session) -> Option<&'static str> {
    match session.status {
        SessionStatus::Suspended => Some("resume"),
        SessionStatus::HandedOff => Some("handoff"),
        _ => None,
    }
}

/// The event that asks for a decision: the first call in top-level fields, for compatibility, and a list of all
/// calls.
fn interrupt(session_id: &str, undecided: &[ToolCall], reason: &str) -> Map<String, Value> {
    let request = |call: &ToolCall| {
        let args = call.arguments.value();
        json!({"tool_call_id": call.call_id, "tool_name": call.tool_name, "args": args,
            "status": call.status.as_str()})
    };
    let all: Vec<Value> = undecided.iter().map(request).collect();
    let mut told = match all.first().cloned() {
        Some(Value::Object(first)) => first,
        _ => Map::new(),
    };
    told.remove("status");
    told.insert("session_id".to_owned(), json!(session_id));
    told.insert("reason".to_owned(), json!(reason));
    told.insert("action_requests".to_owned(), json!(all));
    told
}

/// The failure of a run that has reached its deadline.
pub(crate) fn overtime() -> StepError {
    StepError::Failed(Failure::new("execution_timeout", "the run has reached its time limit"))
}

fn gone(what: &str) -> StepError {
    StepError::Failed(Failure::new("not_found", format!("the {what} is no longer visible")))
}

fn lost(run_lease: &RunLease) -> abide_client::Refusal {
    let detail =
        format!("the lease of run {} expired, and another driver claimed it", run_lease.run_id);
    abide_client::Refusal::new(Code::LeaseLost, detail)
        .hint("this driver stops; the run continues with the other one")
}
