//! Own code in place of the built-in loop, behind the same routes, events and limits.
//!
//! The definition of an agent selects a loop by name (`loop: NAME`). Its code decides what happens between a message and its answer;
//! the driver keeps everything else: the lease, events, approvals, pauses, time limits, guardrails about messages and answers, and
//! the end of the run.
//!
//! A loop has no state of its own that must survive. After a crash, and after a wait for a person, the driver calls it again, and it
//! takes the same way: a call with the same key is not made a second time, and [`LoopRun::saved`] returns what was saved last.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use abide_client::arguments::ModelUsage;
use abide_client::rows::RunEventKind;
use abide_definitions::agent::AgentDefinition;
use abide_definitions::error::DefinitionError;
use abide_definitions::guardrail::GuardrailAt;
use abide_models::{ModelMessage, ModelRequest, ModelResponse, Stop, Usage, answer_of};
use abide_tools::ToolContext;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::context::entry::{AssistantEntry, CHECKPOINT, CallResult, CallStatus, RequestedCall};
use crate::middleware::{self, streaming::Published, verdict};
use crate::model::{self, choice, outgoing::Purpose, stopped};
use crate::run;
use crate::run::decide::Action;
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{DriveResult, RunFailure, Step, StepError, overtime};
use crate::tools::arguments::arguments_or_text;

/// A loop that drives the runs of agents in place of the built-in one.
pub trait AgentLoop: Send + Sync + 'static {
    /// Works on the last message of a conversation until it has the answer, and returns it.
    ///
    /// The driver calls this again from the start after a crash and after each wait of the run, so the way to a call must not depend
    /// on anything but rows. When the run is aborted or reaches its time limit, the future is dropped, outside of calls.
    ///
    /// # Errors
    /// [`LoopError`] of a method of `run`, which is to be returned as it is; or [`LoopError::failed`], which fails the run.
    fn drive<'a>(&'a self, run: &'a mut LoopRun<'_>) -> BoxFuture<'a, Result<String, LoopError>>;
}

/// Why a loop did not answer.
pub struct LoopError(Halt);

enum Halt {
    Step(StepError),
    /// The work of the driver ends with the call, for example because the run waits.
    DriverEnds(DriveResult),
}

impl LoopError {
    /// The run fails with this code and message.
    #[must_use]
    pub fn failed(code: impl Into<String>, message: impl Into<String>) -> LoopError {
        LoopError(Halt::Step(StepError::Failed(RunFailure::new(code, message))))
    }
}

impl From<StepError> for LoopError {
    fn from(error: StepError) -> LoopError {
        LoopError(Halt::Step(error))
    }
}

impl fmt::Debug for LoopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Halt::Step(StepError::Failed(RunFailure { code, message })) => {
                write!(f, "{code}: {message}")
            }
            Halt::Step(StepError::Aborted) => f.write_str("the run was aborted"),
            Halt::Step(StepError::Ended) => f.write_str("the run has ended"),
            Halt::Step(StepError::Released) => f.write_str("the runtime stops"),
            Halt::Step(StepError::Refused(error)) => write!(f, "{error}"),
            Halt::DriverEnds(_) => f.write_str("the run waits"),
        }
    }
}

/// The result of a tool call, as a model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopCallResult {
    /// The text.
    pub text: String,
    /// Whether the call failed, was rejected or did not run.
    pub is_error: bool,
}

/// A run, as a loop works on it.
pub struct LoopRun<'d> {
    driver: &'d mut Driver,
    /// What was published of the answer.
    published: String,
    /// Held while a call is made: it ends with its outcome, also if the run has to stop.
    call_lock: Arc<Mutex<()>>,
}

impl LoopRun<'_> {
    /// Returns the id of the run.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.driver.state.run.id
    }

    /// Returns the definition of the active agent.
    #[must_use]
    pub fn definition(&self) -> &AgentDefinition {
        &self.driver.agent.definition
    }

    /// Returns session, agent, scope and metadata, as tools receive them.
    #[must_use]
    pub fn context(&self) -> ToolContext {
        self.driver.tool_context()
    }

    /// Returns the conversation, oldest message first, with the calls of this run and their results.
    #[must_use]
    pub fn messages(&self) -> Vec<ModelMessage> {
        self.driver.state.conversation(&self.driver.agent.definition.settings().context)
    }

    /// Returns what [`LoopRun::save`] has saved last in this run.
    #[must_use]
    pub fn saved(&self) -> Option<Value> {
        let state = &self.driver.state;
        let saved = state.entries.iter().rfind(|entry| {
            entry.kind == CHECKPOINT && entry.run_id.as_ref() == Some(&state.run.id)
        })?;
        Some(saved.data.as_ref()?.value()["state"].clone())
    }

    /// Saves a value. It is durable before anything leaves the run afterwards.
    ///
    /// # Errors
    /// [`LoopError`] if the run has ended, or its lease is lost.
    pub async fn save(&mut self, value: &Value) -> Result<(), LoopError> {
        let data = json!({"run_id": self.driver.state.run.id, "state": value});
        let entry = self.driver.message("assistant", String::new(), &data).kind(CHECKPOINT);
        self.driver.record_step(&[], None, vec![entry.into()]).await?;
        Ok(())
    }

    /// Publishes the next piece of the answer, unless a guardrail, middleware or the definition holds answers back until they are
    /// complete.
    ///
    /// # Errors
    /// As [`LoopRun::save`].
    pub async fn publish(&mut self, text: &str) -> Result<(), LoopError> {
        if is_held(self.driver) || text.is_empty() {
            return Ok(());
        }
        self.published.push_str(text);
        let token = run_event(RunEventKind::Token, json!({"content": text}));
        Ok(self.driver.record(&[token], None, Vec::new()).await?)
    }

    /// Calls a tool of the agent, and returns its result. Approvals, limits and retries are those of the tool and of the
    /// definition. A second call with the same key in this run returns the first one's result.
    ///
    /// # Errors
    /// As [`LoopRun::save`]; also if the run waits for a decision on the call: the driver calls the loop again afterwards.
    pub async fn call(
        &mut self,
        key: &str,
        tool: &str,
        arguments: &Value,
    ) -> Result<LoopCallResult, LoopError> {
        let call_lock = Arc::clone(&self.call_lock);
        let _guard = call_lock.lock().await;
        let call_id = self.driver.run_lease.call_id(format_args!("loop.{key}"));
        if let Some(result) = self.find_result(&call_id) {
            return Ok(result);
        }
        self.driver.check_limits()?;
        self.driver.check_shutdown()?;
        self.request(&call_id, tool, arguments).await?;
        self.settle().await?;
        self.find_result(&call_id).ok_or_else(|| {
            let why = format!("a message came between call {call_id} and its result");
            LoopError::failed("lost_result", why)
        })
    }

    /// Asks the agent's model. The answer is not a part of the conversation, and calls in it are not made.
    ///
    /// # Errors
    /// As [`LoopRun::save`]; also if the model does not answer, or a limit of the run is reached.
    pub async fn ask(&mut self, mut request: ModelRequest) -> Result<ModelResponse, LoopError> {
        self.driver.check_limits()?;
        self.driver.check_shutdown()?;
        let driver = &*self.driver;
        let candidates = choice::agent_candidates(driver)?;
        middleware::redaction::redact_request(driver, &mut request);
        middleware::hooks::before_model(driver, &mut request)
            .map_err(|why| LoopError::failed("denied", why))?;
        model::budget::reserve(driver, &request, candidates.price).await?;
        let stream = candidates.ask(driver, Purpose::Answer, request).await?;
        let mut answer = tokio::select! {
            biased;
            () = driver.stop.cancelled() => return Err(StepError::Aborted.into()),
            () = driver.until_deadline() => return Err(overtime().into()),
            answer = answer_of(stream) => {
                answer.map_err(|why| LoopError::failed(why.code(), why.message))?
            }
        };
        let spent = choice::spent(&answer, 0);
        let usage = choice::usage(&answer);
        middleware::redaction::redact_answer(driver, &mut answer);
        self.driver.record_step(&[usage], Some(&spent), Vec::new()).await?;
        Ok(answer)
    }

    /// Returns the result of a call of this run, if the conversation has it.
    fn find_result(&self, call_id: &str) -> Option<LoopCallResult> {
        self.driver.state.entries.iter().rev().find_map(|entry| {
            let result = entry.tool().filter(|result| result.call_id == call_id)?;
            let text = entry.content.clone().unwrap_or_default();
            Some(LoopCallResult { text, is_error: result.is_error })
        })
    }

    /// Records a call as one that an answer of a model requests. The loop of the driver does the rest.
    async fn request(
        &mut self,
        call_id: &str,
        tool: &str,
        arguments: &Value,
    ) -> Result<(), LoopError> {
        let mut arguments = arguments.to_string();
        let denied = middleware::hooks::before_tool(self.driver, tool, &mut arguments).err();
        let run = &self.driver.state.run;
        let requested = RequestedCall {
            call_id: call_id.to_owned(),
            name: tool.to_owned(),
            arguments: arguments.clone(),
            provider_call_id: String::new(),
        };
        let entry = AssistantEntry {
            run_id: run.id.clone(),
            iteration: run.iterations + 1,
            calls: vec![requested.clone()],
            ..AssistantEntry::default()
        };
        let data = json!({"name": tool, "args": arguments_or_text(&arguments), "id": call_id});
        let mut events = vec![run_event(RunEventKind::ToolCall, data)];
        let mut messages = vec![self.driver.message("assistant", String::new(), &entry).into()];
        if let Some(why) = denied {
            let rejected = CallResult::without_success(CallStatus::Rejected, why);
            let (event, result) = self.driver.result_records(&requested, &rejected);
            events.push(event);
            messages.push(result.into());
        }
        let spent = ModelUsage { iteration: true, tool_calls: 1, ..ModelUsage::default() };
        self.driver.record_step(&events, Some(&spent), messages).await?;
        Ok(())
    }

    /// Does what the calls of the last answer need, until they have results.
    async fn settle(&mut self) -> Result<(), LoopError> {
        loop {
            let Some(action) = self.driver.next_action().await? else {
                return Err(LoopError(Halt::DriverEnds(DriveResult::Waits)));
            };
            let ended = match action {
                Action::Calls(step) => self.driver.perform(step).await?,
                Action::Suspend(reason) => {
                    self.driver.suspend(&[], reason).await?.then_some(DriveResult::Waits)
                }
                Action::Ask | Action::Finish(_) | Action::EndAtLimit(_) => return Ok(()),
            };
            if let Some(ended) = ended {
                return Err(LoopError(Halt::DriverEnds(ended)));
            }
        }
    }
}

/// Returns `true` if no piece of an answer leaves before all of it is checked.
fn is_held(driver: &Driver) -> bool {
    !Published::for_run(driver).tokens
        || driver.guardrails().any(|rule| rule.at == GuardrailAt::Response)
        || middleware::redaction::answer_redactor(driver).is_some()
        || middleware::hooks::hold_answers(driver)
}

/// Lets a loop work until it has the answer, and records it. Returns how the driver's work ends, if it ends without one.
pub(crate) async fn drive(
    driver: &mut Driver,
    agent_loop: &dyn AgentLoop,
) -> Step<Option<DriveResult>> {
    let why = "the loop begins its answer again";
    if let Some(restart) = model::restart::loop_event(driver, why).await? {
        driver.record(&[restart], None, Vec::new()).await?;
    }
    let stop = driver.stop.clone();
    let deadline = run::limits::sleep_until(driver.deadline(), driver.shared.settings.now());
    let call_lock = Arc::new(Mutex::new(()));
    let mut run = LoopRun { driver, published: String::new(), call_lock: Arc::clone(&call_lock) };
    let driven = tokio::select! {
        driven = agent_loop.drive(&mut run) => driven,
        () = async { stop.cancelled().await; drop(call_lock.lock().await) } => {
            return Err(StepError::Aborted);
        }
        () = async { deadline.await; drop(call_lock.lock().await) } => return Err(overtime()),
    };
    let published = run.published;
    match driven {
        Ok(text) => record_answer(driver, text, &published).await.map(|()| None),
        Err(LoopError(Halt::DriverEnds(ended))) => Ok(Some(ended)),
        Err(LoopError(Halt::Step(error))) => Err(error),
    }
}

/// Records the answer of a loop as that of a model, after the middleware and the guardrails about answers.
async fn record_answer(driver: &mut Driver, text: String, published: &str) -> Step {
    let mut answer = ModelResponse {
        text,
        reasoning: None,
        calls: Vec::new(),
        stop: Stop::End,
        usage: Usage::default(),
        cost_micros: None,
        provider: String::new(),
        model: String::new(),
        carry: None,
    };
    let definition = &driver.agent.definition;
    let needs_content = definition.response_format.is_none() && !definition.allow_empty_answers;
    if needs_content && stopped::is_empty(&answer) {
        let why = "the loop's answer is empty: set allow_empty_answers if that can be an answer";
        return Err(StepError::Failed(RunFailure::new("no_answer", why)));
    }
    middleware::redaction::redact_answer(driver, &mut answer);
    let denied = match middleware::hooks::after_model(driver, &mut answer) {
        Err(why) => Some(why),
        Ok(()) => verdict::rule_response(driver, &answer.text, false).await?.denied,
    };
    if let Some(message) = denied {
        return model::answer::withhold(driver, answer, Vec::new(), &message).await.map(drop);
    }
    let mut events = Vec::new();
    let rest = match answer.text.strip_prefix(published) {
        Some(rest) => rest,
        None => {
            let why = "the answer differs from what was published";
            events.extend(model::restart::loop_event(driver, why).await?);
            answer.text.as_str()
        }
    };
    if !rest.is_empty() {
        events.push(run_event(RunEventKind::Token, json!({"content": rest})));
    }
    let entry = AssistantEntry {
        run_id: driver.state.run.id.clone(),
        iteration: driver.state.run.iterations + 1,
        ..AssistantEntry::default()
    };
    let spent = ModelUsage { iteration: true, ..ModelUsage::default() };
    let message = driver.message("assistant", answer.text.clone(), &entry);
    driver.record_step(&events, Some(&spent), vec![message.into()]).await.map(drop)
}

/// The loops in Rust that a program registers, by the name that definitions use.
#[derive(Clone, Default)]
pub struct AgentLoops(BTreeMap<String, Arc<dyn AgentLoop>>);

impl AgentLoops {
    /// Adds a loop, or replaces the one with its name.
    pub fn add(&mut self, name: impl Into<String>, agent_loop: impl AgentLoop) {
        self.0.insert(name.into(), Arc::new(agent_loop));
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<dyn AgentLoop>> {
        self.0.get(name).cloned()
    }

    /// Checks that the loops of a definition and of its inline agents exist.
    pub(crate) fn check(&self, definition: &AgentDefinition) -> Result<(), DefinitionError> {
        let all = definition.with_inline();
        let mut named = all.iter().filter_map(|agent| agent.agent_loop.as_ref());
        match named.find(|name| !self.0.contains_key(*name)) {
            Some(name) => {
                let known = self.0.keys().cloned().collect();
                Err(DefinitionError::Loop { name: name.clone(), known })
            }
            None => Ok(()),
        }
    }
}

/// The names only: a loop has no text.
impl fmt::Debug for AgentLoops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
