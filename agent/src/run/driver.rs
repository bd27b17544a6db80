//! The driver of one run: it makes its state current, decides what comes next, does it, and repeats. Each step is one batch under
//! the run's lease.
//!
//! What it knows is [`RunState`]; what comes next is [`RunState::decide`], which depends on rows alone; what it reads is in `read`,
//! and what it records in `record`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use abide_client::{Abide, Code, Scope, Session, ToolCall, ToolCallStatus};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::guardrail::Guardrail;
use abide_definitions::middleware::Middleware;
use abide_tools::{ScopePermit, ToolContext};
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::context::entry::{CallResult, HandoffEntry, RequestedCall};
use crate::middleware::observability;
use crate::model::structured::{self, StructuredAnswer};
use crate::run::active_agent::ActiveAgent;
use crate::run::context::RuntimeContext;
use crate::run::decide::Action;
use crate::run::error::RuntimeError;
use crate::run::lease::RunLease;
use crate::run::state::{Recorded, RunState};
use crate::run::step::{DriveResult, Failure, Step, StepError};
use crate::watchdog::health::{self, WatchdogStep};
use crate::watchdog::state::HealthState;
use crate::{agent_loop, catalog, memory, middleware, model, program, remote_agent, run, tools};

/// The driver of one run.
pub(crate) struct Driver {
    pub(crate) shared: Arc<RuntimeContext>,
    /// A client limited to the scope of the run's session, so rows or model output cannot make it reach other data.
    pub(crate) abide: Abide,
    /// The scope of the run's session.
    pub(crate) scope: Scope,
    /// The permit to drive the run; `None` while it waits for calls of others, and for a delegated run.
    pub(crate) permit: Option<ScopePermit>,
    pub(crate) run_lease: RunLease,
    /// Cancelled when the run is aborted or its lease is lost.
    pub(crate) stop: CancellationToken,
    /// The definition of the run's own agent. It differs from the active one only while a handoff is in effect.
    pub(crate) own: Arc<AgentDefinition>,
    /// The middleware of all agents when this driver began.
    pub(crate) deployment: Arc<Vec<Middleware>>,
    pub(crate) agent: ActiveAgent,
    pub(crate) state: RunState,
    /// The measurements of the run.
    pub(crate) health: HealthState,
    /// Whether no budget limits the run.
    pub(crate) unlimited: AtomicBool,
    /// Whether this driver has asked the model.
    pub(crate) has_asked: bool,
    /// The event that imported the run; 0 if there is none.
    pub(crate) imported_seq: OnceCell<i64>,
}

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
                Some(Code::Conflict) if self.is_abort_requested().await? => {
                    self.run_lease.aborted(self.why_aborted().await?)
                }
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
        if self.agent.definition.cli.is_some() {
            return program::run::drive(self).await;
        }
        if self.agent.definition.a2a.is_some() {
            return remote_agent::run::drive(self).await;
        }
        loop {
            let action = match self.next_action().await? {
                Ok(action) => action,
                Err(rests) => return Ok(rests),
            };
            if let Some(result) = self.perform(action).await? {
                return Ok(result);
            }
        }
    }

    /// Returns the next action; or how the work of this driver ends, if the run pauses before it.
    pub(crate) async fn next_action(&mut self) -> Step<Result<Action, DriveResult>> {
        self.refresh().await?;
        let action = self.state.decide();
        if run::pause::at_stage(self, &action).await? {
            return Ok(Err(DriveResult::Waits));
        }
        Ok(Ok(action))
    }

    /// Does an action. Returns how the work of this driver ends, if it ends with it.
    pub(crate) async fn perform(&mut self, action: Action) -> Step<Option<DriveResult>> {
        match action {
            Action::Rest(reason) => return self.waits(&[], reason).await,
            Action::Interrupt(undecided) => return self.waits(&undecided, "approval").await,
            Action::Ask => return self.answer().await,
            Action::Request(missing) => self.request(missing).await?,
            Action::Run(ready) => self.run_calls(ready).await?,
            Action::Await => self.wait_for_calls().await?,
            Action::Deliver(ended) => self.deliver(ended).await?,
            Action::Finish(text) => match structured::evaluate(self, &text) {
                StructuredAnswer::Mismatch(why) if structured::may_repair(self) => {
                    self.record(&[], None, vec![structured::repair(self, &why)]).await?;
                }
                evaluated => return self.finish(&text, evaluated).await.map(Some),
            },
            Action::Stop(text) => return self.stop_calling(&text).await.map(Some),
        }
        Ok(None)
    }

    /// Answers the last message: with the loop of the definition if it names one, else with the model.
    async fn answer(&mut self) -> Step<Option<DriveResult>> {
        self.check_limits()?;
        tools::undelivered::read(self).await?;
        structured::check_repairs(self)?;
        model::restart::of_answer(self).await?;
        if middleware::request_check::denies(self).await? {
            return Ok(None);
        }
        let Some(name) = &self.agent.definition.agent_loop else {
            return self.ask().await.map(|()| None);
        };
        match self.shared.loops.get(name) {
            Some(agent_loop) => agent_loop::drive(self, &*agent_loop).await,
            None => {
                let why = format!("this runtime has no loop {name}");
                Err(StepError::Failed(Failure::new("unknown_loop", why)))
            }
        }
    }

    /// Asks the model, unless something comes before it: a summary, or facts that are read.
    async fn ask(&mut self) -> Step {
        let has_read_facts = memory::facts::read(self).await?;
        let step = health::act(self).await?;
        self.health.wants_compaction = step == WatchdogStep::Compact;
        if step == WatchdogStep::LookAgain || has_read_facts {
            return Ok(());
        }
        match model::call::ask(self).await? {
            Some(claimed) => self.run_calls(vec![claimed]).await,
            None => Ok(()),
        }
    }

    /// Waits for decisions. Returns how the work of this driver ends if they have not been made meanwhile.
    async fn waits(&self, undecided: &[ToolCall], reason: &str) -> Step<Option<DriveResult>> {
        Ok(self.wait(undecided, reason).await?.then_some(DriveResult::Waits))
    }

    /// Runs calls. If the batch that completes the only call also delivers its result, takes over the state after that batch.
    async fn run_calls(&mut self, ready: Vec<ToolCall>) -> Step {
        self.state.calls_begin();
        match tools::calls::run_all(self, ready).await? {
            Some(delivered) => self.apply(Recorded::Step(delivered)).await,
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
        let answer = self.state.last_answer();
        let calls = answer.map_or(&[][..], |(_, answer)| &answer.calls);
        let limit = self.agent.definition.settings().limits.tool_calls;
        let over = self.state.consumed().tool_calls - limit;
        let over = usize::try_from(over).unwrap_or(0).min(calls.len());
        calls[calls.len() - over..].iter().map(|call| call.call_id.clone()).collect()
    }

    /// Ends a run whose model keeps calling tools beyond the limit. The text of its last answer, if any, is the
    /// result.
    async fn stop_calling(&self, text: &str) -> Step<DriveResult> {
        if !text.trim().is_empty() {
            return self.finish(text, structured::evaluate(self, text)).await;
        }
        let max = self.agent.definition.settings().limits.tool_calls;
        let why = format!(
            "the run has reached its limit of {max} tool calls, and the model gave no answer"
        );
        Err(StepError::Failed(Failure::new("tool_call_limit", why)))
    }

    async fn finish(&self, text: &str, evaluated: StructuredAnswer) -> Step<DriveResult> {
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
            StructuredAnswer::Mismatch(why) => return Err(structured::failed(&why)),
        }
        self.abide.call(self.run_lease.done(output)).await?;
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

    /// Takes over rows. If another agent is active afterwards, it is loaded.
    pub(crate) async fn apply(&mut self, recorded: Recorded) -> Step {
        if self.state.apply(recorded) {
            self.activate().await?;
        }
        Ok(())
    }

    /// Loads the definition of the active agent.
    async fn activate(&mut self) -> Step {
        let active = self.state.handoff().cloned();
        let abide = &self.shared.abide;
        let definition = match &active {
            Some(HandoffEntry { agent: Some(agent), revision, .. }) => {
                Arc::new(match catalog::revision::definition(abide, agent, *revision).await {
                    Ok(definition) => definition,
                    Err(RuntimeError::Abide(error)) => return Err(error.into()),
                    Err(unreadable) => {
                        let why = Failure::new("malformed_definition", unreadable.to_string());
                        return Err(StepError::Failed(why));
                    }
                })
            }
            _ => Arc::clone(&self.own),
        };
        let checked = self.shared.middleware.check(&definition);
        if let Err(refused) = checked.and_then(|()| self.shared.loops.check(&definition)) {
            let why = Failure::new(refused.code(), refused.to_string());
            return Err(StepError::Failed(why));
        }
        let loaded = ActiveAgent::load(abide, &self.shared.tools, definition).await?;
        self.agent = loaded.map_err(StepError::Failed)?;
        Ok(())
    }

    /// The guardrails that apply to the run now: those of its own agent, and those of the active agent.
    pub(crate) fn guardrails(&self) -> impl Iterator<Item = &Guardrail> {
        self.middleware().filter_map(Middleware::guardrail)
    }

    /// The middleware of the run now, in order: that of all agents, that of its own agent, and that of the active agent.
    pub(crate) fn middleware(&self) -> impl Iterator<Item = &Middleware> {
        let active = self.state.handoff().map(|_| &*self.agent.definition);
        let of_all = active.into_iter().flat_map(|it| &it.deployment_middleware);
        // What applies to all agents applies once.
        let is_new = |it: &&Middleware| {
            !self.deployment.contains(it) && !self.own.deployment_middleware.contains(it)
        };
        let own = self.own.all_middleware(&self.deployment);
        own.chain(of_all.filter(is_new)).chain(active.into_iter().flat_map(|it| &it.middleware))
    }

    /// The context of a tool, with the session as it was last read.
    pub(crate) fn tool_context(&self) -> ToolContext {
        self.state.session.as_ref().map(|session| self.context(session)).unwrap_or_default()
    }

    /// The context that tools are called with.
    pub(crate) fn context(&self, session: &Session) -> ToolContext {
        let scope = match session.scope.value() {
            Value::Object(scope) => scope,
            _ => Map::new(),
        };
        ToolContext {
            session_id: session.id.clone(),
            agent: self.agent.definition.name.clone(),
            scope,
            run_id: Some(self.state.run.id.clone()),
            // A session is one thread of messages.
            thread_id: Some(session.id.clone()),
            metadata: match session.metadata.value() {
                Value::Object(metadata) => metadata,
                _ => Map::new(),
            },
        }
    }
}

/// Whether a refused step ends its run, because it would be refused again. After other refusals, such as that of a full disk,
/// the run is driven again later, as after a lost connection.
fn ends_run(code: Code) -> bool {
    !code.retryable()
}

#[cfg(test)]
mod tests;
