//! A remote agent, reached by A2A, as the agent of a run. The run is a task there. Its events are recorded as events of the run, each
//! with the original text; the text of its artifacts is the answer.
//!
//! A message is recorded before it is sent, and the task before it is followed ([`crate::remote_agent::rows`]). A driver that takes the run
//! over subscribes to the same task. It sends a message again only if the agent does not list its task, and with the same id. A driver
//! that has lost the answer to a message does not send it again: without a task the effects of the run are unknown.

use std::time::{Duration, Instant};

use abide_client::Call;
use abide_client::arguments::NewRunEvent;
use abide_client::rows::RunEventKind;
use abide_models::ModelRequest;
use abide_tools::{A2aClient, A2aConfig, A2aEvent, A2aEvents, A2aFailure, a2a_id};
use futures_util::FutureExt as _;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::context::entry::{self, AssistantEntry};
use crate::model;
use crate::model::outgoing::{self, Purpose};
use crate::model::structured::{self, StructuredAnswer};
use crate::remote_agent::input;
use crate::remote_agent::published_text::PublishedText;
use crate::remote_agent::rows::{self, RemoteRows};
use crate::remote_agent::task::{RemoteTask, TaskState};
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{DriveResult, RunFailure, Step, StepError, overtime};

/// Maximum number of events recorded in one batch.
const EVENTS: usize = 100;

/// The bytes of events after which a batch is recorded. A larger event is alone in its batch, so that no call is larger than an event.
const BATCH_BYTES: usize = 1 << 20;

/// The first and the longest pause between attempts to reach an agent, and between questions to one that does not
/// stream.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Follows the task of the run to its end, or to a question.
pub(crate) async fn drive(driver: &mut Driver) -> Step<DriveResult> {
    let config = driver.agent.definition.a2a.clone().unwrap_or_default();
    driver.read_state().await?;
    let rows = RemoteRows::read(driver).await?;
    let published = PublishedText::from(rows.asked.last().map_or(0, |asked| asked.published));
    model::budget::reserve(driver, &ModelRequest::default(), None).await?;
    let patience = Duration::from_secs(config.unreachable_seconds);
    let client = retry_temporary(driver, patience, || connect(driver, &config)).await?;
    let client = client.map_err(remote_failure)?;
    let mut task = RemoteTask::new(config.max_bytes);
    if let Some((id, context_id)) = rows.task.clone() {
        task.id = id;
        task.context_id = context_id;
    }
    let mut exchange = RemoteTaskRun {
        driver,
        client,
        patience,
        silence: Duration::from_secs(config.silent_seconds),
        rows,
        task,
        published,
        recorded: String::new(),
        described: String::new(),
        news: 0,
        last_news: Instant::now(),
        is_acknowledged: true,
    };
    exchange.run().await
}

async fn connect(driver: &Driver, config: &A2aConfig) -> Result<A2aClient, A2aFailure> {
    A2aClient::connect(config, &driver.shared.environment).await
}

/// The exchange with a remote agent about one task.
struct RemoteTaskRun<'d> {
    driver: &'d Driver,
    client: A2aClient,
    /// For how long an agent that cannot be reached is tried again.
    patience: Duration,
    /// For how long a task may work without anything new.
    silence: Duration,
    rows: RemoteRows,
    task: RemoteTask,
    published: PublishedText,
    /// The text of the last event of a stream that was recorded.
    recorded: String,
    /// The text of the last answer to a request for the task that was recorded.
    described: String,
    /// How many events were recorded.
    news: u64,
    /// When the last event was recorded, or the task began to be followed.
    last_news: Instant,
    /// The agent has reacted to the last message that was sent.
    is_acknowledged: bool,
}

impl RemoteTaskRun<'_> {
    async fn run(&mut self) -> Step<DriveResult> {
        // A run that was woken without a decision waits again.
        if self.rows.is_asked() && self.waits().await? {
            return Ok(DriveResult::Waits);
        }
        let mut events = self.begin().await?;
        loop {
            self.follow(events.take()).await?;
            match self.task.state() {
                TaskState::Completed => {
                    self.complete_artifacts().await?;
                    return self.finish().await;
                }
                TaskState::Failed(code) => return self.fail(code).await,
                _ => {
                    let published = self.published.bytes();
                    input::ask(self.driver, &mut self.rows, &self.task, published).await?;
                }
            }
            if self.waits().await? {
                return Ok(DriveResult::Waits);
            }
            events = self.send_answer().await?;
        }
    }

    /// Continues where the last driver stopped: sends the next message, if there is one to send.
    async fn begin(&mut self) -> Step<Option<A2aEvents>> {
        if self.rows.sent.is_empty() {
            let parts = self.task_parts();
            let context_id = self.context_id().await?;
            let message = self.rows.message(self.driver, &parts, &context_id);
            self.rows.record_message(self.driver, message, Vec::new()).await?;
            return self.send().await;
        }
        // The pieces that a driver published after the last question are void.
        let why = "the runtime ended while a remote agent worked; the task continues";
        if let Some(event) = model::restart::text_event(self.driver, why).await? {
            self.driver.record(&[event], None, Vec::new()).await?;
        }
        if self.rows.is_asked() {
            return self.send_answer().await;
        }
        if self.rows.task.is_some() && self.rows.asked.is_empty() {
            Ok(None)
        } else {
            self.send_unless_sent().await
        }
    }

    /// Returns the parts of the first message: what users have said since the last answer.
    fn task_parts(&self) -> Value {
        let entries = &self.driver.state.entries;
        let answered = entries.iter().rposition(|entry| entry::is_answer(entry));
        let new = &entries[answered.map_or(0, |at| at + 1)..];
        let said = new
            .iter()
            .filter(|entry| entry.role == "user" && entry::is_visible(entry) && !entry.is_denied());
        let said: Vec<&str> = said.filter_map(|entry| entry.content.as_deref()).collect();
        json!([{"text": said.join("\n\n")}])
    }

    /// Returns the context of the session: that of its last task, or a new one.
    async fn context_id(&self) -> Step<String> {
        let last = rows::earlier_tasks(self.driver).await?.into_iter().next();
        if let Some((_, context_id)) = last {
            return Ok(context_id);
        }
        let state = &self.driver.state;
        let since = state.session.as_ref().map_or(0, |session| session.created_at.0);
        let run = &state.run;
        Ok(a2a_id(&format!("context {} {since} {}", run.session_id, run.agent)))
    }

    /// Sends the last message that was recorded. It is sent again only if the agent has certainly not acted on it.
    async fn send(&mut self) -> Step<Option<A2aEvents>> {
        let since = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            match self.send_once().await? {
                Ok(events) => return Ok(Some(events)),
                Err(A2aFailure::Unreachable(why)) if since.elapsed() < self.patience => {
                    tracing::info!(
                        name: "remote_unreachable",
                        run = self.driver.state.run.id,
                        why,
                        "a remote agent is not reachable"
                    );
                }
                Err(failure) if failure.may_have_run() => return self.find_sent(failure).await,
                Err(failure) => return Err(remote_failure(failure)),
            }
            interruptible(self.driver, tokio::time::sleep(pause)).await?;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Looks for the last message after a failure that leaves open whether the agent has it: an agent that has it is followed.
    /// If there is no task, the agent may still have answered without one, and no agent has to recognize a repeated message. So it is
    /// not sent again.
    async fn find_sent(&mut self, failure: A2aFailure) -> Step<Option<A2aEvents>> {
        tracing::info!(
            name: "remote_answer_lost",
            run = self.driver.state.run.id,
            %failure,
            "the answer of a remote agent was lost"
        );
        match self.has_last_message().await {
            Ok(true) => {
                self.is_acknowledged = true;
                Ok(None)
            }
            Ok(false) | Err(StepError::Failed(_)) => {
                Err(StepError::Failed(RunFailure::new("outcome_unknown", failure.to_string())))
            }
            Err(stopped) => Err(stopped),
        }
    }

    async fn send_once(&mut self) -> Step<Result<A2aEvents, A2aFailure>> {
        outgoing::ready(self.driver, Purpose::RemoteTask).await?;
        // What is known of the task is from before the message: its question must not be answered twice.
        self.is_acknowledged = false;
        self.task.forget_state();
        self.task.new_stream();
        let mut params = json!({"message": self.rows.sent.last()});
        let method = if self.client.streams() {
            "SendStreamingMessage"
        } else {
            params["configuration"] = json!({"returnImmediately": true});
            "SendMessage"
        };
        interruptible(self.driver, self.client.stream(method, params)).await
    }

    /// Sends the last message of a driver that has ended, unless the agent has it.
    async fn send_unless_sent(&mut self) -> Step<Option<A2aEvents>> {
        if self.has_last_message().await? {
            self.is_acknowledged = true;
            return Ok(None);
        }
        self.send().await
    }

    /// Returns whether the agent has the last message that was recorded.
    async fn has_last_message(&mut self) -> Step<bool> {
        if self.rows.task.is_some() {
            let event = self.ask_for_task().await?.map_err(remote_failure)?;
            self.apply_description(event).await?;
            let asked = self.rows.asked.last().map(|asked| asked.key.as_str());
            // The same question: the answer has not arrived.
            return Ok(asked != Some(self.task.question_key().as_str()));
        }
        let context_id = self.rows.sent[0]["contextId"].clone();
        let params = json!({"contextId": context_id, "pageSize": 20});
        let listed = retry_temporary(self.driver, self.patience, || {
            self.client.call("ListTasks", params.clone())
        });
        let listed = match listed.await? {
            Ok(listed) => listed,
            Err(failure) if failure.is_unsupported() => {
                let why = "the runtime ended while it sent a message to a remote agent, and \
                           the agent cannot list its tasks: whether it has the message is unknown";
                return Err(StepError::Failed(RunFailure::new("outcome_unknown", why)));
            }
            Err(failure) => return Err(remote_failure(failure)),
        };
        let earlier = rows::earlier_tasks(self.driver).await?;
        let is_new = |task: &&Value| {
            let id = task["id"].as_str().filter(|id| !id.is_empty());
            id.is_some_and(|id| earlier.iter().all(|(earlier, _)| earlier != id))
        };
        let tasks = listed.result["tasks"].as_array();
        match tasks
            .into_iter()
            .flatten()
            .filter(|task| task["contextId"] == context_id)
            .find(is_new)
        {
            Some(task) => {
                self.record_task(&task["id"], &task["contextId"]).await?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Takes the decision on the last question over, and sends it.
    async fn send_answer(&mut self) -> Step<Option<A2aEvents>> {
        let Some(question) = self.rows.asked.last().cloned() else { return Ok(None) };
        let answer = input::answer(self.driver, &question).await?;
        let parts = answer.parts(self.client.reads_data());
        let message = self.rows.message(self.driver, &parts, "");
        self.rows.record_message(self.driver, message, answer.then).await?;
        self.send().await
    }

    /// Suspends the run until the last question is decided. Returns whether it waits.
    async fn waits(&self) -> Step<bool> {
        let Some(question) = self.rows.asked.last() else { return Ok(false) };
        match input::undecided(self.driver, question).await? {
            Some(call) => self.driver.suspend(&[call], "approval").await,
            None => Ok(false),
        }
    }

    /// Follows the task until it has ended, or asks something.
    async fn follow(&mut self, mut events: Option<A2aEvents>) -> Step {
        let mut pause = PAUSES.0;
        let mut silent_since = Instant::now();
        self.last_news = Instant::now();
        loop {
            self.check_silence()?;
            let mut is_readable = true;
            if let Some(open) = &mut events {
                let news = self.news;
                match self.consume(open).await? {
                    Ok(()) if self.is_acknowledged => {}
                    Ok(()) => {
                        let why = "the agent answered with neither a task nor a message";
                        let failure = A2aFailure::Unreadable(why.to_owned());
                        events = self.find_sent(failure).await?;
                        continue;
                    }
                    // The state of the task shows whether it goes on.
                    Err(failure)
                        if !matches!(failure, A2aFailure::Invalid(_))
                            && self.is_acknowledged
                            && self.rows.task.is_some() =>
                    {
                        let run = &self.driver.state.run.id;
                        tracing::info!(
                            name: "remote_stream_ended",
                            run,
                            %failure,
                            "a remote agent's stream ended"
                        );
                        is_readable = !matches!(failure, A2aFailure::Unreadable(_));
                        if !is_readable && silent_since.elapsed() >= self.patience {
                            return Err(remote_failure(failure));
                        }
                    }
                    Err(failure) if failure.may_have_run() => {
                        events = self.find_sent(failure).await?;
                        continue;
                    }
                    Err(failure) => return Err(remote_failure(failure)),
                }
                if self.task.state() != TaskState::Works {
                    return Ok(());
                }
                if self.news != news {
                    pause = PAUSES.0;
                    silent_since = Instant::now();
                }
                // The stream may not have been about the task, or may have lost its end.
                self.look_at_task().await?;
                if self.task.state() != TaskState::Works {
                    return Ok(());
                }
                self.check_silence()?;
                // An agent that ends its streams at once is not asked without a pause.
                interruptible(self.driver, tokio::time::sleep(pause)).await?;
                pause = (pause * 2).min(PAUSES.1);
            }
            events = None;
            if self.rows.task.is_none() {
                let why = "the agent answered with neither a task nor a message";
                return Err(StepError::Failed(RunFailure::new("remote_agent_invalid", why)));
            }
            match self.read_again().await? {
                Ok(stream) => {
                    events = stream;
                    if is_readable {
                        silent_since = Instant::now();
                    }
                }
                Err(failure)
                    if failure.is_temporary() && silent_since.elapsed() < self.patience => {}
                Err(failure) => return Err(remote_failure(failure)),
            }
            if events.is_none() {
                if self.task.state() != TaskState::Works {
                    return Ok(());
                }
                interruptible(self.driver, tokio::time::sleep(pause)).await?;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    /// Returns how long the task may still work without anything new.
    fn until_silent(&self) -> Duration {
        self.silence.saturating_sub(self.last_news.elapsed())
    }

    fn check_silence(&self) -> Step {
        if !self.until_silent().is_zero() {
            return Ok(());
        }
        let seconds = self.silence.as_secs();
        let why = format!(
            "the task has worked for {seconds} s without anything new (a2a.silent_seconds)"
        );
        Err(StepError::Failed(RunFailure::new("remote_agent_silent", why)))
    }

    /// Subscribes to the task, or reads it once.
    async fn read_again(&mut self) -> Step<Result<Option<A2aEvents>, A2aFailure>> {
        if self.client.streams() {
            let params = self.task_params();
            let stream = self.client.stream("SubscribeToTask", params);
            match interruptible(self.driver, stream).await? {
                Ok(events) => {
                    self.task.new_stream();
                    return Ok(Ok(Some(events)));
                }
                // It has ended, or it waits.
                Err(failure) if failure.is_unsupported() => {}
                Err(failure) => return Ok(Err(failure)),
            }
        }
        match self.ask_for_task().await? {
            Ok(event) => self.apply_description(event).await.map(|()| Ok(None)),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// Reads the task once, after a stream. If that fails, the next stream shows whether the agent can be reached.
    async fn look_at_task(&mut self) -> Step {
        let params = self.task_params();
        match interruptible(self.driver, self.client.call("GetTask", params)).await? {
            Ok(event) => self.apply_description(event).await,
            Err(failure @ A2aFailure::Invalid(_)) => Err(remote_failure(failure)),
            Err(failure) => {
                let run = &self.driver.state.run.id;
                tracing::info!(
                    name: "remote_task_unreadable",
                    run,
                    %failure,
                    "a remote task cannot be read after its stream"
                );
                Ok(())
            }
        }
    }

    fn task_params(&self) -> Value {
        json!({"id": self.rows.task.as_ref().map(|(id, _)| id)})
    }

    async fn ask_for_task(&self) -> Step<Result<A2aEvent, A2aFailure>> {
        let params = self.task_params();
        retry_temporary(self.driver, self.patience, || self.client.call("GetTask", params.clone()))
            .await
    }

    /// Records the events of a stream until it ends, or the task no longer works.
    async fn consume(&mut self, events: &mut A2aEvents) -> Step<Result<(), A2aFailure>> {
        loop {
            // An agent that repeats an event keeps its stream from being idle.
            let rest = self.until_silent();
            if rest.is_zero() {
                return Ok(Ok(()));
            }
            let next = timeout(rest, events.next());
            let first = match interruptible(self.driver, next).await? {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) => return Ok(Ok(())),
                Ok(Err(failure)) => return Ok(Err(failure)),
                // Nothing has come until the limit, which is then reached.
                Err(_) => continue,
            };
            let mut bytes = first.raw.len();
            let mut all = vec![first];
            let mut failure = None;
            while all.len() < EVENTS && bytes < BATCH_BYTES {
                match events.next().now_or_never() {
                    Some(Ok(Some(event))) => {
                        bytes += event.raw.len();
                        all.push(event);
                    }
                    Some(Err(error)) => {
                        failure = Some(error);
                        break;
                    }
                    Some(Ok(None)) | None => break,
                }
            }
            self.apply(all).await?;
            if self.task.state() != TaskState::Works {
                return Ok(Ok(()));
            }
            if let Some(failure) = failure {
                return Ok(Err(failure));
            }
        }
    }

    /// Records events of a stream, and what follows from them.
    async fn apply(&mut self, events: Vec<A2aEvent>) -> Step {
        let mut new = Batch::default();
        for A2aEvent { raw, result } in events {
            let read = self.task.apply(&result);
            // An event of another task says nothing about this one.
            let is_own = read != Ok(false);
            self.is_acknowledged |= is_own;
            if raw == self.recorded {
                continue;
            }
            self.recorded.clone_from(&raw);
            if is_own {
                self.news += 1;
                self.last_news = Instant::now();
            }
            self.record_event(&mut new, raw, read.map(drop)).await?;
        }
        new.record(self.driver).await
    }

    /// Records the answer to a request for the task, and what follows from it.
    async fn apply_description(&mut self, event: A2aEvent) -> Step {
        let A2aEvent { raw, result } = event;
        let read = self.task.describe(&result);
        self.is_acknowledged = true;
        if raw == self.described {
            return read.map_err(invalid);
        }
        // The first description may only repeat what the events have said.
        if !self.described.is_empty() {
            self.news += 1;
            self.last_news = Instant::now();
        }
        self.described.clone_from(&raw);
        let mut new = Batch::default();
        self.record_event(&mut new, raw, read).await?;
        new.record(self.driver).await
    }

    async fn record_event(
        &mut self,
        new: &mut Batch,
        raw: String,
        read: Result<(), String>,
    ) -> Step {
        let bytes = raw.len();
        new.push(self.driver, RunEventKind::Line, json!({"raw": raw}), bytes).await?;
        if self.rows.task.is_none() && !self.task.id.is_empty() {
            let id = json!(self.task.id);
            let context_id = json!(self.task.context_id);
            new.record(self.driver).await?;
            self.record_task(&id, &context_id).await?;
        }
        if let Err(why) = read {
            new.record(self.driver).await?;
            return Err(invalid(why));
        }
        self.publish(new).await
    }

    /// Adds what is new in the text of the task to a batch.
    async fn publish(&mut self, new: &mut Batch) -> Step {
        match self.published.extend(&self.task.text()) {
            Ok(None) => Ok(()),
            Ok(Some(piece)) => {
                let data = json!({"content": piece});
                new.push(self.driver, RunEventKind::Token, data, piece.len()).await
            }
            Err(whole) => {
                new.record(self.driver).await?;
                let why = "the remote agent has replaced its text";
                new.events.extend(model::restart::text_event(self.driver, why).await?);
                let data = json!({"content": whole});
                new.push(self.driver, RunEventKind::Token, data, whole.len()).await
            }
        }
    }

    /// Reads the artifacts of the completed task, unless its events had all of them.
    async fn complete_artifacts(&mut self) -> Step {
        if !self.task.needs_confirmation() {
            return Ok(());
        }
        match self.ask_for_task().await? {
            Ok(A2aEvent { raw, result }) => {
                let read = self.task.confirm(&result);
                let mut new = Batch::default();
                self.record_event(&mut new, raw, read).await?;
                new.record(self.driver).await?;
            }
            // The agent does not store tasks.
            Err(failure @ A2aFailure::Refused { .. }) => {
                let run = &self.driver.state.run.id;
                tracing::info!(
                    name: "remote_artifacts_unreadable",
                    run,
                    %failure,
                    "the artifacts of a remote task cannot be read"
                );
            }
            Err(failure) => return Err(remote_failure(failure)),
        }
        match self.task.missing() {
            Some(why) => Err(invalid(why)),
            None => Ok(()),
        }
    }

    async fn record_task(&mut self, id: &Value, context_id: &Value) -> Step {
        self.task.id = id.as_str().unwrap_or_default().to_owned();
        self.task.context_id = context_id.as_str().unwrap_or_default().to_owned();
        self.rows.record_task(self.driver, &self.task.id, &self.task.context_id).await
    }

    async fn finish(&self) -> Step<DriveResult> {
        let driver = self.driver;
        let answer = self.task.answer();
        if answer.trim().is_empty() && !driver.agent.definition.allow_empty_answers {
            let why = "the remote agent has completed the task without text or data: set \
                       allow_empty_answers if that can be an answer";
            return self.end(vec![driver.run_lease.fail("no_answer", why).into()]).await;
        }
        let mut output = Map::from_iter([("content".to_owned(), json!(answer))]);
        if let Some(schema) = &driver.agent.definition.response_format {
            match structured::check_program_answer(schema, self.task.data(), &answer) {
                StructuredAnswer::Fits(value) => {
                    drop(output.insert("structured".to_owned(), value))
                }
                StructuredAnswer::Mismatch(why) => {
                    let RunFailure { code, message } = structured::mismatch(&why);
                    return self.end(vec![driver.run_lease.fail(code, message).into()]).await;
                }
                StructuredAnswer::Free => {}
            }
        }
        output.insert("task_id".to_owned(), json!(self.rows.task.as_ref().map(|(id, _)| id)));
        let entry = AssistantEntry {
            run_id: driver.state.run.id.clone(),
            provider: "a2a".to_owned(),
            ..AssistantEntry::default()
        };
        let message = driver.message("assistant", answer.as_str(), &entry).into();
        self.end(vec![message, driver.run_lease.finish(output).into()]).await
    }

    async fn fail(&self, code: &str) -> Step<DriveResult> {
        let why = match self.task.status_text() {
            why if why.is_empty() => "the agent gave no reason".to_owned(),
            why => why,
        };
        self.end(vec![self.driver.run_lease.fail(code, why).into()]).await
    }

    /// Records the end of the run together with that of the task.
    async fn end(&self, mut calls: Vec<Call>) -> Step<DriveResult> {
        if self.rows.task.is_some() {
            calls.insert(0, rows::close(self.driver));
        }
        self.driver.record(&[], None, calls).await?;
        Ok(DriveResult::Ended)
    }
}

/// Events that are recorded together.
#[derive(Default)]
struct Batch {
    events: Vec<NewRunEvent>,
    bytes: usize,
}

impl Batch {
    /// Adds an event with this many bytes; records the others before it if they would be too large together.
    async fn push(
        &mut self,
        driver: &Driver,
        kind: RunEventKind,
        data: Value,
        bytes: usize,
    ) -> Step {
        if self.bytes + bytes > BATCH_BYTES {
            self.record(driver).await?;
        }
        self.bytes += bytes;
        self.events.push(run_event(kind, data));
        Ok(())
    }

    async fn record(&mut self, driver: &Driver) -> Step {
        self.bytes = 0;
        match std::mem::take(&mut self.events) {
            events if events.is_empty() => Ok(()),
            events => driver.record(&events, None, Vec::new()).await,
        }
    }
}

fn invalid(why: String) -> StepError {
    StepError::Failed(RunFailure::new("remote_agent_invalid", why))
}

fn remote_failure(failure: A2aFailure) -> StepError {
    let code = match &failure {
        A2aFailure::Unreachable(_) | A2aFailure::Lost(_) => "remote_agent_unavailable",
        // The agent may have done what was asked.
        A2aFailure::Unreadable(_) => "outcome_unknown",
        A2aFailure::Refused { .. } => "remote_agent_refused",
        A2aFailure::Invalid(_) => "remote_agent_invalid",
    };
    StepError::Failed(RunFailure::new(code, failure.to_string()))
}

/// Waits for something, until the run is to be stopped.
async fn interruptible<T>(driver: &Driver, what: impl Future<Output = T>) -> Step<T> {
    tokio::select! {
        done = what => Ok(done),
        () = driver.stop.cancelled() => Err(StepError::Aborted),
        () = driver.until_deadline() => Err(overtime()),
    }
}

/// Repeats a request without an effect while it fails temporarily.
async fn retry_temporary<T, F: Future<Output = Result<T, A2aFailure>>>(
    driver: &Driver,
    patience: Duration,
    mut attempt: impl FnMut() -> F,
) -> Step<Result<T, A2aFailure>> {
    let since = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        match interruptible(driver, attempt()).await? {
            Err(failure) if failure.is_temporary() && since.elapsed() < patience => {}
            done => return Ok(done),
        }
        interruptible(driver, tokio::time::sleep(pause)).await?;
        pause = (pause * 2).min(PAUSES.1);
    }
}
