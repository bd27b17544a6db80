//! The driver of one run: the rows that it has read, and the ways in which every step reads and records. It does not
//! decide what comes next.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use abide_client::arguments::{AppendMessage, RecordRun};
use abide_client::{
    Abide, AgentState, Call, Code, Error, ModelUsage, NewRunEvent, Pause, Run, RunEventKind, Scope,
    Seq, Session, ToolCall,
};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::guardrail::Guardrail;
use abide_definitions::middleware::Middleware;
use abide_models::ModelMessage;
use abide_tools::{ScopePermit, ToolContext, ToolView};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::context::entry::{self, CallResult, HandoffEntry, RequestedCall, SessionEntry};
use crate::context::session_entries::SessionEntries;
use crate::context::summarized::SummarizedContext;
use crate::context::transcript;
use crate::delegation::composition::Composition;
use crate::memory::space::MemorySpace;
use crate::run::context::RuntimeContext;
use crate::run::error::RuntimeError;
use crate::run::lease::{RunLease, run_event};
use crate::run::step::{Failure, Step, StepError};
use crate::run::step_batch::{RecordedStep, StepBatch, StepCall};
use crate::watchdog::state::HealthState;
use crate::{catalog, run};

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
    /// The definition of the active agent.
    pub(crate) definition: Arc<AgentDefinition>,
    /// The middleware of all agents when this driver began.
    pub(crate) deployment: Arc<Vec<Middleware>>,
    /// The definition of the run's own agent. It differs from `definition` only while a handoff is in effect.
    pub(crate) own: Arc<AgentDefinition>,
    /// The tools of the active agent.
    pub(crate) tools: ToolView,
    /// The agents that the active agent can use.
    pub(crate) composition: Composition,
    /// The handoffs that are in effect. The agent of the last one is active.
    pub(crate) handoffs: Vec<HandoffEntry>,
    /// The summary that stands for older messages; `None` before the rows were first read.
    pub(crate) context: Option<SummarizedContext>,
    /// Whether the model has seen a result that was cut.
    pub(crate) has_cut_results: bool,
    /// Whether no budget limits the run.
    pub(crate) unlimited: AtomicBool,
    /// The run, as last read or as returned by the last recorded step.
    pub(crate) run: Run,
    /// The session as it was last read; `None` before that. Its `seq` can be older than the driver's own writes.
    pub(crate) session: Option<Session>,
    /// The last pause of the run, as of `known_seq`.
    pub(crate) pause: Option<Pause>,
    /// The session's messages that the model sees. Messages are append-only, so only new ones are read; those that a
    /// summary stands for are omitted.
    pub(crate) entries: SessionEntries,
    /// The request guardrails of the active agent allow the messages up to this id.
    pub(crate) checked_id: i64,
    /// The event as of which the session, the pause and the messages above are known; `None` if they are not.
    pub(crate) known_seq: Option<Seq>,
    /// The last event of the last recorded step, which may not be durable yet.
    pub(crate) recorded_seq: Seq,
    /// The calls of the last answer after a step whose condition held; [`Driver::current`] takes them. `None`: the rows must
    /// be read.
    pub(crate) current_calls: Option<Vec<ToolCall>>,
    /// Cancelled when the run is aborted or its lease is lost.
    pub(crate) stop: CancellationToken,
    /// Whether this driver has asked the model.
    pub(crate) has_asked: bool,
    /// Where the active agent keeps its facts, once it has been looked up.
    pub(crate) memory: OnceCell<MemorySpace>,
    /// The event that imported the run; 0 if there is none.
    pub(crate) imported_seq: OnceCell<i64>,
    /// The measurements of the run.
    pub(crate) health: HealthState,
}

impl Driver {
    /// Reads the session's messages.
    pub(crate) async fn look_at_messages(&mut self) -> Step {
        self.look().await.map(drop)
    }

    /// The current state: the session, and the calls of the run's last answer. It is read, unless the last step was recorded on
    /// the condition that nothing else has changed.
    pub(crate) async fn current(&mut self) -> Step<(Session, Vec<ToolCall>)> {
        let known = self.session.clone().zip(self.current_calls.take());
        match known {
            Some(known) if !self.stop.is_cancelled() && self.run.abort_requested_at.is_none() => {
                Ok(known)
            }
            _ => self.look().await,
        }
    }

    /// Reads the current state: the run, its session, its new messages, and the calls of its last answer.
    pub(crate) async fn look(&mut self) -> Step<(Session, Vec<ToolCall>)> {
        if self.stop.is_cancelled() {
            return Err(StepError::Aborted);
        }
        self.load_context().await?;
        // At the same time, because each takes mostly waiting. While the lease is held, only this driver changes the run, and
        // its last step has ended, so the messages are not older than the run.
        let (run, session, pause, new) = tokio::try_join!(
            self.row::<Run>("SELECT * FROM runs WHERE id = :id", &self.run_lease.run_id),
            self.row::<Session>("SELECT * FROM sessions WHERE id = :id", &self.run.session_id),
            self.row::<Pause>("SELECT * FROM pauses WHERE run_id = :id", &self.run_lease.run_id),
            self.new_messages(),
        )?;
        self.known_seq = [run.1, session.1, pause.1, new.1].into_iter().min();
        self.run = run.0.ok_or_else(|| gone("run"))?;
        // A runtime with a restricted role does not see the token. Then the next recorded step detects a lost
        // lease.
        let token = self.run.fencing_token.unwrap_or(self.run_lease.fencing_token);
        if token != self.run_lease.fencing_token {
            return Err(StepError::Refused(Error::Refused(lost(&self.run_lease))));
        }
        if self.run.abort_requested_at.is_some() {
            return Err(StepError::Aborted);
        }
        let session = session.0.ok_or_else(|| gone("session"))?;
        self.session = Some(session.clone());
        self.pause = pause.0;
        self.extend(new.0).await?;
        let abide = &self.abide;
        let calls = match run::next_step::last_answer(&self.run, &self.entries) {
            Some((at, answer))
                if run::next_step::open(answer, &self.entries[at + 1..]).next().is_some() =>
            {
                let ids: Vec<&str> =
                    answer.calls.iter().map(|call| call.call_id.as_str()).collect();
                let ids = serde_json::to_string(&ids).unwrap_or_default();
                // With `+` the ids are looked up. Otherwise all calls of the session would be read.
                let sql = "SELECT * FROM tool_calls \
                     WHERE call_id IN (SELECT value FROM json_each(:ids)) \
                     AND +session_id = :sid";
                let query = abide.sql(sql).param("ids", ids);
                query.param("sid", &self.run.session_id).fetch().await?
            }
            _ => Vec::new(),
        };
        Ok((session, calls))
    }

    /// A row, and the event as of which it was read.
    async fn row<T: DeserializeOwned>(&self, sql: &str, id: &str) -> Step<(Option<T>, Seq)> {
        let found = self.abide.sql(sql).param("id", id).rows().await?;
        Ok((found.typed()?.into_iter().next(), found.seq))
    }

    /// Reads the messages that the model sees, before the first step.
    async fn load_context(&mut self) -> Step {
        if self.context.is_some() {
            return Ok(());
        }
        let context = SummarizedContext::load(&self.abide, &self.run.session_id).await?;
        self.handoffs = context.handoffs(&self.run);
        let kept = context.kept_entries(&self.abide, &self.run.session_id).await?;
        self.entries = SessionEntries::with_kept(kept);
        self.context = Some(context);
        match self.handoffs.is_empty() {
            true => Ok(()),
            false => self.activate().await,
        }
    }

    /// The messages after those that were read, and the event as of which they were read.
    async fn new_messages(&self) -> Step<(Vec<SessionEntry>, Seq)> {
        let folded = self.context.as_ref().map_or(0, SummarizedContext::folded_id);
        let newest = self.entries.last().map_or(0, |entry| entry.id).max(folded);
        let sql = "SELECT * FROM agent_state WHERE session_id = :sid AND id > :newest ORDER BY id";
        let query = self.abide.sql(sql).param("sid", &self.run.session_id);
        let found = query.param("newest", newest).rows().await?;
        let rows: Vec<AgentState> = found.typed()?;
        Ok((rows.into_iter().map(SessionEntry::from).collect(), found.seq))
    }

    /// Adds new messages, which may change the active agent.
    async fn extend(&mut self, new: Vec<SessionEntry>) -> Step {
        let before = self.handoffs.len();
        let last = self.handoffs.last().cloned();
        entry::apply_handoffs(&mut self.handoffs, &self.run, &new);
        self.has_cut_results |= new.iter().any(entry::is_cut);
        self.entries.extend(new);
        if before != self.handoffs.len() || last.as_ref() != self.handoffs.last() {
            self.activate().await?;
        }
        Ok(())
    }

    /// Reads the newest summary, after a step has recorded it, and forgets the messages that it stands for.
    pub(crate) async fn summarized(&mut self) -> Step {
        let context = SummarizedContext::load(&self.abide, &self.run.session_id).await?;
        self.entries.retain(|id| context.shows(id));
        self.context = Some(context);
        Ok(())
    }

    /// Loads the definition of the active agent.
    async fn activate(&mut self) -> Step {
        let active = self.handoffs.last().cloned();
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
        if let Err(refused) = self.shared.middleware.check(&definition) {
            let why = Failure::new(refused.code(), refused.to_string());
            return Err(StepError::Failed(why));
        }
        self.composition =
            Composition::load(abide, &definition).await?.map_err(StepError::Failed)?;
        self.definition = definition;
        self.tools = self.shared.tools.view_of_known(self.definition.selection());
        self.memory = OnceCell::new();
        self.checked_id = 0;
        Ok(())
    }

    /// The handoff that made the active agent active; `None` for the run's own agent.
    pub(crate) fn handoff(&self) -> Option<&HandoffEntry> {
        self.handoffs.last()
    }

    /// The guardrails that apply to the run now: those of its own agent, and those of the active agent.
    pub(crate) fn guardrails(&self) -> impl Iterator<Item = &Guardrail> {
        self.middleware().filter_map(Middleware::guardrail)
    }

    /// The middleware of the run now, in order: that of all agents, that of its own agent, and that of the active agent.
    pub(crate) fn middleware(&self) -> impl Iterator<Item = &Middleware> {
        let active = self.handoff().map(|_| &*self.definition);
        let of_all = active.into_iter().flat_map(|it| &it.deployment_middleware);
        // What applies to all agents applies once.
        let is_new = |it: &&Middleware| {
            !self.deployment.contains(it) && !self.own.deployment_middleware.contains(it)
        };
        let own = self.own.all_middleware(&self.deployment);
        own.chain(of_all.filter(is_new)).chain(active.into_iter().flat_map(|it| &it.middleware))
    }

    /// The consumption of the run since the active agent took over.
    pub(crate) fn consumed(&self) -> Consumption {
        let run = &self.run;
        let before = self.handoff();
        let since = |now: i64, then: fn(&HandoffEntry) -> i64| now - before.map_or(0, then);
        Consumption {
            iterations: since(run.iterations, |it| it.iterations),
            tool_calls: since(run.tool_calls, |it| it.tool_calls),
            tokens: since(run.input_tokens + run.output_tokens, |it| it.tokens),
            cost_micros: since(run.cost_micros.unwrap_or(0), |it| it.cost_micros),
        }
    }

    /// The run's deadline, in microseconds since 1970. The run does not wait while it has a driver.
    pub(crate) fn deadline(&self) -> Option<i64> {
        let began = self.run.created_at.0;
        let own = ends_after(&self.own, began, self.work_began());
        let given = self.run.deadline_at.map(|at| at.0);
        [own, self.handoff_deadline(), given].into_iter().flatten().min()
    }

    /// The deadline of an agent that has taken over the turn.
    fn handoff_deadline(&self) -> Option<i64> {
        let handoff = self.handoff()?;
        let work_began = self.work_began().saturating_add(handoff.worked_us);
        ends_after(&self.definition, handoff.at, work_began)
    }

    /// When the run would have begun if it had never waited.
    fn work_began(&self) -> i64 {
        self.run.created_at.0.saturating_add(self.run.waited_us.unwrap_or(0))
    }

    /// When a wait that begins now ends the run: the deadline of an agent that has taken over the turn, if waits count. The row of
    /// the run does not have it, so each wait reports it.
    pub(crate) fn wait_deadline(&self) -> Option<i64> {
        self.handoff_deadline().filter(|_| self.definition.limits.wall_clock_counts_waits)
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

    /// The conversation as the model sees it: what always stays, the summary of older messages, and the newer ones.
    pub(crate) fn conversation(&self) -> Vec<ModelMessage> {
        let Some(context) = &self.context else { return transcript::messages(&self.entries) };
        let folded = context.folded_id();
        let first = self.entries.iter().position(|entry| entry.id > folded);
        let (kept, rest) = self.entries.split_at(first.unwrap_or(self.entries.len()));
        let mut messages = transcript::messages(kept);
        let kept = messages.len();
        let settings = self.definition.settings().context;
        messages.extend(transcript::reduced_messages(rest, context.through_id(), &settings));
        if let Some(summary) = context.message() {
            // The task comes first, even while it is not omitted yet.
            let is_user = |message: &ModelMessage| matches!(message, ModelMessage::User { .. });
            let task = || messages.iter().position(is_user).map_or(0, |at| at + 1);
            messages.insert(if kept > 0 { kept } else { task() }, summary);
        }
        messages
    }

    /// Records events, usage and the given calls in one batch, under the run's lease.
    pub(crate) async fn record(
        &self,
        events: &[NewRunEvent],
        spent: Option<&ModelUsage>,
        calls: Vec<Call>,
    ) -> Step {
        let mut batch = vec![Call::of(self.recording(events, spent))];
        batch.extend(calls);
        self.abide.batch(batch).await?;
        Ok(())
    }

    /// Records events, usage and the given calls like [`Driver::record`], and takes over the state afterwards. Returns the
    /// rows of the tool calls that it has requested.
    pub(crate) async fn record_step(
        &mut self,
        (events, spent): (&[NewRunEvent], Option<&ModelUsage>),
        after: Vec<StepCall>,
    ) -> Step<Vec<ToolCall>> {
        let batch = self.step_batch((events, spent), after);
        self.send_step(&batch).await
    }

    /// Sends the batch of a step, and takes over the state afterwards like [`Driver::record_step`].
    pub(crate) async fn send_step(&mut self, batch: &StepBatch) -> Step<Vec<ToolCall>> {
        let recorded = batch.send(&self.abide).await?;
        let calls = recorded.calls.clone();
        self.take_over(recorded).await?;
        Ok(calls)
    }

    /// A batch that records a step. The condition is that the known state has not changed.
    pub(crate) fn step_batch(
        &self,
        (events, spent): (&[NewRunEvent], Option<&ModelUsage>),
        after: Vec<StepCall>,
    ) -> StepBatch {
        let unchanged_since = self.known_seq.map(|seq| seq.0);
        let recording = RecordRun { unchanged_since, ..self.recording(events, spent) };
        StepBatch { before: Vec::new(), recording, after }
    }

    /// Takes over the state after a recorded step.
    pub(crate) async fn take_over(&mut self, step: RecordedStep) -> Step {
        (self.run, self.recorded_seq) = (step.run, step.seq);
        (self.known_seq, self.current_calls) = (step.known_seq, None);
        if self.known_seq.is_some() {
            self.extend(step.entries).await?;
            self.current_calls = Some(step.calls);
        }
        Ok(())
    }

    /// Waits until all recorded steps are durable. A crash then does not undo what the next effect depends on.
    pub(crate) async fn until_durable(&self) -> Step {
        Ok(self.abide.until_durable(self.recorded_seq).await?)
    }

    /// What is recorded of the run with a step: events, usage, and a renewed lease.
    fn recording(&self, events: &[NewRunEvent], spent: Option<&ModelUsage>) -> RecordRun {
        self.run_lease.record(events, spent, self.shared.settings.lease)
    }

    /// The reducer call that appends a message to the session.
    pub(crate) fn message(
        &self,
        role: &str,
        text: impl Into<String>,
        data: &impl serde::Serialize,
    ) -> AppendMessage {
        let data = serde_json::to_value(data).unwrap_or_default();
        let lease = &self.run_lease;
        AppendMessage::new(&self.run.session_id, role, text.into())
            .data(data)
            .run_id(&lease.run_id)
            .run_fencing_token(lease.fencing_token)
    }

    /// The event and the message for the result of a call.
    pub(crate) fn result(
        &self,
        asked: &RequestedCall,
        result: &CallResult,
    ) -> (NewRunEvent, AppendMessage) {
        self.result_with_handoff(asked, result, None)
    }

    /// The event and the message for the result of a call that may change the active agent.
    pub(crate) fn result_with_handoff(
        &self,
        asked: &RequestedCall,
        result: &CallResult,
        handoff: Option<HandoffEntry>,
    ) -> (NewRunEvent, AppendMessage) {
        let CallResult { text, status, exit_code, approved_arguments } = result;
        let mut data = json!({"tool_call_id": asked.call_id, "output": text, "status": status,
            "exit_code": exit_code});
        if let Some(arguments) = approved_arguments {
            data["approved_args"] = arguments.clone();
        }
        let entry = entry::ToolEntry {
            call_id: asked.call_id.clone(),
            provider_call_id: asked.provider_call_id.clone(),
            name: asked.name.clone(),
            is_error: result.is_error(),
            exit_code: *exit_code,
            approved_arguments: approved_arguments.clone(),
            status: Some(*status),
            handoff,
        };
        (run_event(RunEventKind::ToolResult, data), self.message("tool", text, &entry))
    }

    /// The context of a tool, with the session as it was last read.
    pub(crate) fn tool_context(&self) -> ToolContext {
        self.session.as_ref().map(|session| self.context(session)).unwrap_or_default()
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
            // A session is one thread of messages.
            thread_id: Some(session.id.clone()),
            metadata: match session.metadata.value() {
                Value::Object(metadata) => metadata,
                _ => Map::new(),
            },
        }
    }
}

/// When an agent that began at this time reaches its time limit, in microseconds since 1970. `work_began` is when it would have
/// begun if the run had not waited since then: waits count only if the definition says so.
fn ends_after(definition: &AgentDefinition, began: i64, work_began: i64) -> Option<i64> {
    let seconds = definition.limits.wall_clock_seconds?;
    let since = if definition.limits.wall_clock_counts_waits { began } else { work_began };
    Some(since.saturating_add(seconds.saturating_mul(1_000_000)))
}

/// The consumption of a run.
pub(crate) struct Consumption {
    pub(crate) iterations: i64,
    pub(crate) tool_calls: i64,
    pub(crate) tokens: i64,
    pub(crate) cost_micros: i64,
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
