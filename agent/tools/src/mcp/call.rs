//! A call of a server's tool, over as many requests as the server needs. When the server asks for input, or continues the call as a
//! task, the step is recorded first: so the call waits without a worker, and any worker of the tool can continue it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_client::arguments::{NewExchange, NewInput};
use abide_client::rows::{Effect, ExchangeKind};
use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorCode, GetTaskParams,
    InputRequest, InputRequests, InputResponses, ProtocolVersion, RequestMetaObject, TaskPayload,
    UpdateTaskParams,
};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::authorized::oauth_cause;
use super::connection::{Connection, Unavailable};
use super::open_calls::Elicitation;
use super::outcome::{failure, failure_for_code, outcome, transport_error};
use super::parked::ParkedCall;
use super::post::may_have_lost_session;
use super::server::Server;
use crate::exchange::{ExchangeLog, ExchangeStep, InputAnswer, LOGIN_FIELD};
use crate::oauth::OAuthError;
use crate::outcome::{Failure, ToolOutcome};
use crate::tool::Invocation;

/// The member of `_meta` with the context of a call.
const CONTEXT: &str = "abide/context";

/// Maximum number of answers in a row with which a server asks for nothing but another request.
const EMPTY_ROUNDS: usize = 10;

/// The shortest and the longest pause between two looks at a task, whatever its server suggests.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The pause if the server suggests none.
const PAUSE: Duration = Duration::from_secs(1);

/// A task that goes on is put back this long before the timeout of the attempt, or after three quarters of it.
const MARGIN: Duration = Duration::from_secs(5);

/// The value of `via` in a step that asks a person to log in.
const LOGIN: &str = "login";

/// Maximum length of the text that asks a person to log in: the server names the scopes.
const LOGIN_TEXT_BYTES: usize = 4096;

/// Maximum length of the part of a foreign task id that is shown.
const TASK_ID_BYTES: usize = 100;

/// Time for the request to cancel a task.
const CANCEL: Duration = Duration::from_secs(5);

/// A call of a tool.
pub(super) struct McpCall {
    server: Arc<Server>,
    /// The server's name of the tool.
    name: String,
    effect: Effect,
    pub(super) invocation: Invocation,
    /// When the attempt ends: a task that goes on is put back before.
    until: Instant,
    /// The task that is followed.
    task_id: Mutex<Option<String>>,
    /// The last request got a 404 that may be about its session.
    has_lost_session: AtomicBool,
}

/// How a request continues the exchange.
#[derive(Clone, Default)]
struct Resumption {
    responses: Option<InputResponses>,
    state: Option<String>,
}

/// Where the exchange stands.
enum Position<'a> {
    /// Nothing was sent, or everything that was sent has ended.
    Start,
    /// The server has asked, and the answers are known.
    Asked(&'a Value),
    /// The answers were about to be sent.
    Answered(&'a Value),
    /// The server works on a task.
    Task,
}

/// A task of the server.
struct Task<'a> {
    id: &'a str,
    age: Duration,
}

impl McpCall {
    pub(super) fn new(
        server: &Arc<Server>,
        name: &str,
        effect: Effect,
        invocation: Invocation,
    ) -> McpCall {
        let margin = (server.timeout / 4).min(MARGIN);
        McpCall {
            server: Arc::clone(server),
            name: name.to_owned(),
            effect,
            invocation,
            until: Instant::now() + server.timeout - margin,
            task_id: Mutex::default(),
            has_lost_session: AtomicBool::new(false),
        }
    }

    fn task_id(&self) -> MutexGuard<'_, Option<String>> {
        self.task_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the call to its end, or until it has to wait.
    pub(super) async fn run(&self) -> ToolOutcome {
        let parked = self.server.parked.take(&self.invocation.call_id);
        if let (Some(parked), Some(answer)) = (parked, self.invocation.exchange.answers.first()) {
            return self.answer_parked(parked, answer).await;
        }
        if let Some(declined) = self.declined_login() {
            return declined;
        }
        match self.position() {
            Position::Start => self.send_call(Resumption::default()).await,
            Position::Task => self.follow(None).await,
            Position::Asked(asked) => self.send_answers(asked).await,
            Position::Answered(answered) => {
                let responses = serde_json::from_value(answered["responses"].clone()).ok();
                if answered["via"] == "task" {
                    return self.follow(responses).await;
                }
                // A server that has asked for a login has rejected the request with the answers.
                let was_rejected = answered["via"] == "result" && self.login_answer().is_some();
                if !was_rejected && !self.effect.may_run_again() {
                    return self.lost("the worker ended after it had sent the answers");
                }
                let state = answered["state"].as_str().map(str::to_owned);
                self.send_call(Resumption { responses, state }).await
            }
        }
    }

    /// Sends the cancellation of the task, if the call itself was cancelled.
    pub(super) async fn cancel(&self) {
        let Some(log) = &self.invocation.exchange.log else { return };
        let Some(task_id) = self.task_id().clone() else { return };
        if log.wants_cancel().await {
            let sent = tokio::time::timeout(CANCEL, self.server.cancel_task(&task_id)).await;
            tracing::debug!(task_id, ?sent, "the cancellation of a task was sent");
        }
    }

    async fn connect(&self) -> Result<Arc<Connection>, ToolOutcome> {
        match self.server.connection().await {
            Ok(connection) => Ok(connection),
            Err(error) => Err(self.without_connection(error).await),
        }
    }

    async fn without_connection(&self, error: Unavailable) -> ToolOutcome {
        if error.needs_person {
            return self.wait_for_login(&error.why).await;
        }
        let text = format!("MCP server {} is unavailable: {}", self.server.name, error.why);
        ToolOutcome::failed(Failure::Unavailable, text)
    }

    /// Sends the call. A 404 does not prove that its session has ended and the tool has not run: only a call that may run again is
    /// sent again, in a new session.
    async fn send_call(&self, resumption: Resumption) -> ToolOutcome {
        let outcome = self.call_once(resumption.clone()).await;
        let is_repeated = self.has_lost_session.swap(false, Ordering::Relaxed);
        if is_repeated && self.effect.may_run_again() {
            self.call_once(resumption).await
        } else {
            outcome
        }
    }

    /// Returns the outcome of a request without an answer. If its credentials were rejected, and a person can renew
    /// them, the call waits for that: the server has not processed the request.
    async fn handle_error(&self, connection: &Arc<Connection>, error: ServiceError) -> ToolOutcome {
        if let ServiceError::TransportSend(error) = &error
            && transport_error(error).is_some_and(may_have_lost_session)
        {
            self.has_lost_session.store(true, Ordering::Relaxed);
            self.server.retire(connection, "its session may have ended").await;
        }
        match oauth_cause(&error) {
            Some(why) if why.needs_person() => self.wait_for_login(&why.to_string()).await,
            _ => failure(&self.server, connection, error).await,
        }
    }

    /// Puts the call back until a person has logged in to the server. Neither the model nor a retry can.
    async fn wait_for_login(&self, why: &str) -> ToolOutcome {
        let text = format!("MCP server {} cannot be used: {why}", self.server.name);
        if self.invocation.exchange.log.is_none() {
            return ToolOutcome::failed(Failure::Unavailable, text);
        }
        let text = &text[..text.floor_char_boundary(LOGIN_TEXT_BYTES)];
        let schema = json!({"type": "object", "properties": {LOGIN_FIELD:
            {"type": "boolean", "title": "I have logged in", "default": true}}});
        let message = format!("{text}; then accept");
        let input = NewInput { message, schema: Some(schema), url: None };
        let data = json!({"via": LOGIN, "why": text});
        self.suspend(NewExchange { kind: ExchangeKind::Asked, data }, vec![input]).await
    }

    /// Returns the answer to the request to log in, if that is the last step.
    fn login_answer(&self) -> Option<&InputAnswer> {
        let exchange = &self.invocation.exchange;
        exchange.steps.last().filter(|step| is_login(step)).and(exchange.answers.first())
    }

    /// Returns the outcome if a person does not log in.
    fn declined_login(&self) -> Option<ToolOutcome> {
        let answer = self.login_answer()?;
        if let InputAnswer::Accepted(content) = answer
            && content.as_ref().is_none_or(|content| content[LOGIN_FIELD] != false)
        {
            return None;
        }
        let text = format!("MCP server {} requires a login, which was declined", self.server.name);
        // A task, or a request before this one, may have had an effect.
        let failure = match self.position() {
            Position::Start => Failure::Denied,
            _ => Failure::Lost,
        };
        Some(ToolOutcome::failed(failure, text))
    }

    fn lost(&self, why: &str) -> ToolOutcome {
        let text = format!("the exchange with MCP server {} was lost: {why}", self.server.name);
        ToolOutcome::failed(Failure::Lost, text)
    }

    /// Returns the exchange with the server. Requests to log in are not part of it.
    fn steps(&self) -> impl DoubleEndedIterator<Item = &ExchangeStep> {
        let steps = &self.invocation.exchange.steps;
        // Steps before a task that has ended belong to an earlier attempt.
        let first = steps
            .iter()
            .rposition(|step| step.kind == ExchangeKind::Task && !step.is_open)
            .map_or(0, |at| at + 1);
        steps[first..].iter().filter(|step| !is_login(step))
    }

    fn position(&self) -> Position<'_> {
        match self.steps().next_back() {
            None => Position::Start,
            Some(ExchangeStep { kind: ExchangeKind::Asked, data, .. }) => Position::Asked(data),
            Some(ExchangeStep { kind: ExchangeKind::Answered, data, .. }) => {
                Position::Answered(data)
            }
            Some(ExchangeStep { kind: ExchangeKind::Task, .. }) => Position::Task,
        }
    }

    fn current_task(&self) -> Option<Task<'_>> {
        let mut tasks = self.steps().filter(|step| step.kind == ExchangeKind::Task);
        let task = tasks.next_back()?;
        Some(Task { id: task.data["task_id"].as_str()?, age: task.age })
    }

    /// Sends the answers to the questions of a result or of a task.
    async fn send_answers(&self, asked: &Value) -> ToolOutcome {
        if asked["via"] == "request" {
            // The process that held the connection has ended. Nothing shows what the tool did before it asked.
            return if self.effect.may_run_again() {
                self.send_call(Resumption::default()).await
            } else {
                self.lost("the connection on which the server asked has ended")
            };
        }
        let names = asked["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let answers = self.invocation.exchange.answers.iter().map(InputAnswer::to_json);
        let responses: InputResponses = names.map(str::to_owned).zip(answers).collect();
        let via = asked["via"].clone();
        let state = asked["state"].as_str().map(str::to_owned);
        let step = NewExchange {
            kind: ExchangeKind::Answered,
            data: json!({"via": via, "responses": responses, "state": state}),
        };
        if let Some(log) = &self.invocation.exchange.log
            && let Err(error) = log.record(vec![step]).await
        {
            return error.outcome();
        }
        if via == "task" {
            self.follow(Some(responses)).await
        } else {
            self.send_call(Resumption { responses: Some(responses), state }).await
        }
    }

    /// Sends the call once, and does what its answer requires.
    async fn call_once(&self, resumption: Resumption) -> ToolOutcome {
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err(unavailable) => return unavailable,
        };
        let mut params = match self.params() {
            Ok(params) => params,
            Err(invalid) => return invalid,
        };
        params.input_responses = resumption.responses;
        params.request_state = resumption.state;
        for round in 0..EMPTY_ROUNDS {
            let response = if connection.is_of_older_era() {
                let parked = ParkedCall::begin(&connection, params.clone());
                return self.until_answered(parked).await;
            } else {
                connection.peer().call_tool_once(params.clone()).await
            };
            match response {
                Ok(CallToolResponse::Complete(result)) => return outcome(&self.server, &result),
                Ok(CallToolResponse::Task(task)) => {
                    return self.begin_task(&connection, &task.task.task_id).await;
                }
                Ok(CallToolResponse::InputRequired(required)) => {
                    let requests = required.input_requests.unwrap_or_default();
                    if !requests.is_empty() {
                        let state = required.request_state.as_deref();
                        return self.ask("result", &requests, state).await;
                    }
                    // Without a state, the next request would be a second call: nothing would mark it as the continuation.
                    if required.request_state.is_none() {
                        return self.lost("it has asked for input, but for none that can be given");
                    }
                    params.input_responses = None;
                    params.request_state = required.request_state;
                    tokio::time::sleep(PAUSES.0 * (1 << round.min(4))).await;
                }
                Ok(_) => return self.lost("its answer has an unknown type"),
                Err(error) => return self.handle_error(&connection, error).await,
            }
        }
        self.lost(&format!("it has asked for another request {EMPTY_ROUNDS} times"))
    }

    fn params(&self) -> Result<CallToolRequestParams, ToolOutcome> {
        let arguments = match self.invocation.arguments.clone() {
            Value::Object(members) => members,
            Value::Null => Map::new(),
            _ => {
                let text = "the arguments of an MCP tool must be an object".to_owned();
                return Err(ToolOutcome::failed(Failure::Arguments, text));
            }
        };
        let mut params = CallToolRequestParams::new(self.name.clone()).with_arguments(arguments);
        if self.server.sends_context {
            let mut meta = RequestMetaObject::default();
            meta.0.0.insert(CONTEXT.to_owned(), self.invocation.context_json());
            params.meta = Some(meta);
        }
        Ok(params)
    }

    /// Records questions and puts the call back.
    async fn ask(&self, via: &str, requests: &InputRequests, state: Option<&str>) -> ToolOutcome {
        let mut inputs = Vec::new();
        for request in requests.values() {
            match input_of(request) {
                Some(input) => inputs.push(input),
                None => return self.unsupported("something else than input of a person"),
            }
        }
        let names: Vec<&String> = requests.keys().collect();
        let data = json!({"via": via, "names": names, "requests": requests, "state": state});
        self.suspend(NewExchange { kind: ExchangeKind::Asked, data }, inputs).await
    }

    fn unsupported(&self, what: &str) -> ToolOutcome {
        let text =
            format!("MCP server {} asks for {what}, which is not supported", self.server.name);
        ToolOutcome::failed(Failure::Tool, text)
    }

    async fn suspend(&self, step: NewExchange, inputs: Vec<NewInput>) -> ToolOutcome {
        let Some(log) = &self.invocation.exchange.log else {
            return self.unsupported("input during the call");
        };
        match log.suspend(vec![step], inputs, None).await {
            Ok(()) => ToolOutcome::failed(Failure::Suspended, "the call waits for input"),
            Err(error) => error.outcome(),
        }
    }

    /// Records the id of a task, before anything else happens to it.
    async fn begin_task(&self, connection: &Arc<Connection>, task_id: &str) -> ToolOutcome {
        let Some(log) = self.invocation.exchange.log.clone() else {
            return self.unsupported("a task to be followed");
        };
        let step = NewExchange { kind: ExchangeKind::Task, data: json!({"task_id": task_id}) };
        if let Err(error) = log.record(vec![step]).await {
            return error.outcome();
        }
        let task = Task { id: task_id, age: Duration::ZERO };
        self.follow_task(Arc::clone(connection), &task, None, &*log).await
    }

    /// Follows the recorded task. The responses answer its questions.
    async fn follow(&self, responses: Option<InputResponses>) -> ToolOutcome {
        let (Some(task), Some(log)) = (self.current_task(), &self.invocation.exchange.log) else {
            return self.lost("its task was not recorded");
        };
        match self.connect().await {
            Ok(connection) => self.follow_task(connection, &task, responses, &**log).await,
            Err(unavailable) => unavailable,
        }
    }

    async fn follow_task(
        &self,
        mut connection: Arc<Connection>,
        task: &Task<'_>,
        mut responses: Option<InputResponses>,
        log: &dyn ExchangeLog,
    ) -> ToolOutcome {
        *self.task_id() = Some(task.id.to_owned());
        let since = Instant::now();
        let mut pause = PAUSE;
        loop {
            match self.poll_task(&connection, task.id, &mut responses).await {
                Ok(TaskPoll::Ended(outcome)) => return *outcome,
                Ok(TaskPoll::Asks(requests)) => return self.ask("task", &requests, None).await,
                Ok(TaskPoll::Works(suggested)) => pause = suggested,
                Err(error) if is_lost(&error) && !needs_person(&error) => {
                    tracing::info!(
                        name: "tool_task_unreachable",
                        server = self.server.name,
                        %error,
                        "a task cannot be reached"
                    );
                    pause = (pause * 2).min(PAUSES.1);
                }
                // The server refuses to show the task, which may have had its effect.
                Err(ServiceError::McpError(error)) => {
                    return self.lost(&format!("its task cannot be read: {}", error.message));
                }
                Err(error) => return self.handle_error(&connection, error).await,
            }
            if task.age + since.elapsed() > self.server.task_timeout {
                let _ = self.server.cancel_task(task.id).await;
                let text = format!("the task of MCP server {} takes too long", self.server.name);
                return ToolOutcome::failed(Failure::TimedOut, text);
            }
            if Instant::now() + pause >= self.until {
                return match log.suspend(Vec::new(), Vec::new(), Some(pause)).await {
                    Ok(()) => ToolOutcome::failed(Failure::Suspended, "the task goes on"),
                    Err(error) => error.outcome(),
                };
            }
            tokio::time::sleep(pause).await;
            if !connection.is_open() {
                match self.server.connection().await {
                    Ok(again) => connection = again,
                    Err(error) if error.needs_person => {
                        return self.without_connection(error).await;
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// Sends answers that were not sent yet, and reads the state of a task.
    async fn poll_task(
        &self,
        connection: &Connection,
        task_id: &str,
        responses: &mut Option<InputResponses>,
    ) -> Result<TaskPoll, ServiceError> {
        let peer = connection.peer();
        if let Some(answers) = responses.clone() {
            peer.update_task(UpdateTaskParams::new(task_id, answers)).await?;
            *responses = None;
        }
        let found = peer.get_task(GetTaskParams::new(task_id)).await?.task;
        if found.task.task_id != task_id {
            let other = beginning(&found.task.task_id);
            let why = format!("it has answered about the task {other:?} instead of {task_id:?}");
            return Ok(TaskPoll::Ended(Box::new(self.lost(&why))));
        }
        let suggested = found.task.poll_interval_ms.map_or(PAUSE, Duration::from_millis);
        Ok(match found.payload {
            TaskPayload::InputRequired { mut input_requests } => {
                let answered = self.answered_names();
                input_requests.retain(|name, _| !answered.contains(name));
                if input_requests.is_empty() {
                    TaskPoll::Works(suggested.clamp(PAUSES.0, PAUSES.1))
                } else {
                    TaskPoll::Asks(input_requests)
                }
            }
            TaskPayload::Completed { result } => {
                TaskPoll::Ended(Box::new(self.task_outcome(result)))
            }
            TaskPayload::Failed { error } => {
                let why = error.get("message").and_then(Value::as_str).unwrap_or("no reason");
                let text = format!("MCP server {} returned an error: {why}", self.server.name);
                let code = serde_json::from_value(json!(error.get("code")));
                let failure = code.map_or(Failure::Tool, failure_for_code);
                TaskPoll::Ended(Box::new(ToolOutcome {
                    content: json!({ "error": error }),
                    ..ToolOutcome::failed(failure, text)
                }))
            }
            TaskPayload::Cancelled => {
                let text = format!("MCP server {} has cancelled the task", self.server.name);
                TaskPoll::Ended(Box::new(ToolOutcome::failed(Failure::Tool, text)))
            }
            _ => TaskPoll::Works(suggested.clamp(PAUSES.0, PAUSES.1)),
        })
    }

    /// Returns the names of the questions that have an answer: they are unique in a task.
    fn answered_names(&self) -> Vec<String> {
        let asked = self.steps().filter(|step| step.kind == ExchangeKind::Asked);
        let names = asked.flat_map(|step| step.data["names"].as_array().into_iter().flatten());
        names.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn task_outcome(&self, result: Map<String, Value>) -> ToolOutcome {
        match serde_json::from_value::<CallToolResult>(Value::Object(result)) {
            Ok(result) => outcome(&self.server, &result),
            Err(why) => self.lost(&format!("the result of its task is invalid: {why}")),
        }
    }

    /// Waits for the result of a call of 2025-11-25, or for a question.
    async fn until_answered(&self, mut parked: ParkedCall) -> ToolOutcome {
        loop {
            match parked.next().await {
                Ok(Err(error)) => return self.handle_error(&parked.connection, error).await,
                Ok(Ok(CallToolResponse::Complete(result))) => {
                    return outcome(&self.server, &result);
                }
                Ok(Ok(_)) => return self.unsupported("an answer of a newer protocol"),
                Err(question) => {
                    let Some(input) = input_of_params(&question) else {
                        parked.decline(question);
                        continue;
                    };
                    let data = json!({"via": "request", "request": question.params});
                    let step = NewExchange { kind: ExchangeKind::Asked, data };
                    let Some(log) = self.invocation.exchange.log.clone() else {
                        parked.decline(question);
                        continue;
                    };
                    // Before the call is put back: the answer can come at once.
                    let call_id = &self.invocation.call_id;
                    let connection = Arc::clone(&parked.connection);
                    let parking = self.server.parked.park(call_id, parked, question);
                    if let Err(refused) = parking {
                        let (back, question) = *refused;
                        parked = back;
                        parked.decline(question);
                        continue;
                    }
                    let why = "its connection belongs to a call that waits for input";
                    self.server.retire(&connection, why).await;
                    let suspended = self.suspend(step, vec![input]).await;
                    if suspended.failure != Some(Failure::Suspended) {
                        // Dropping the call sends its cancellation to the server.
                        drop(self.server.parked.take(call_id));
                    } else {
                        self.server.watch_parked(call_id, log);
                    }
                    return suspended;
                }
            }
        }
    }

    /// Gives the answer to the server that has waited for it.
    async fn answer_parked(&self, mut parked: ParkedCall, answer: &InputAnswer) -> ToolOutcome {
        let data = json!({"via": "request", "responses": {"request": answer.to_json()}});
        let step = NewExchange { kind: ExchangeKind::Answered, data };
        if let Some(log) = &self.invocation.exchange.log
            && let Err(error) = log.record(vec![step]).await
        {
            return error.outcome();
        }
        parked.reply(answer);
        self.until_answered(parked).await
    }
}

/// The state of a task.
enum TaskPoll {
    Ended(Box<ToolOutcome>),
    Asks(InputRequests),
    /// It goes on; the pause before the next look.
    Works(Duration),
}

/// Returns the beginning of the id of a task that the server has not given to this call.
fn beginning(task_id: &str) -> &str {
    &task_id[..task_id.floor_char_boundary(TASK_ID_BYTES)]
}

/// Returns `true` if a step asks a person to log in.
fn is_login(step: &ExchangeStep) -> bool {
    step.kind == ExchangeKind::Asked && step.data["via"] == LOGIN
}

/// Returns `true` if the credentials of a request were rejected, and a person can renew them.
fn needs_person(error: &ServiceError) -> bool {
    oauth_cause(error).is_some_and(OAuthError::needs_person)
}

/// Returns `true` if the server may answer a later request.
fn is_lost(error: &ServiceError) -> bool {
    match error {
        ServiceError::McpError(error) => error.code == ErrorCode::INTERNAL_ERROR,
        ServiceError::TransportSend(_) | ServiceError::TransportClosed => true,
        _ => false,
    }
}

/// Returns a question to a person; `None` for other requests.
fn input_of(request: &InputRequest) -> Option<NewInput> {
    match request {
        InputRequest::Elicitation(request) => input_of_json(&json!(request.params)),
        _ => None,
    }
}

fn input_of_params(question: &Elicitation) -> Option<NewInput> {
    input_of_json(&json!(question.params))
}

fn input_of_json(params: &Value) -> Option<NewInput> {
    let message = params["message"].as_str()?.to_owned();
    let schema = params.get("requestedSchema").filter(|schema| !schema.is_null()).cloned();
    let url = params["url"].as_str().map(str::to_owned);
    Some(NewInput { message, schema, url })
}

impl Connection {
    /// Returns `true` if its server sends questions as requests of its own.
    fn is_of_older_era(&self) -> bool {
        let info = self.peer().peer_info();
        info.is_none_or(|info| info.protocol_version < ProtocolVersion::NO_INITIALIZE)
    }
}

impl Server {
    /// Ends a parked call when it is cancelled, and withdraws its question when the server no longer waits for the answer.
    pub(super) fn watch_parked(self: &Arc<Server>, call_id: &str, log: Arc<dyn ExchangeLog>) {
        let Some(mut ended) = self.parked.ended(call_id) else { return };
        let server = Arc::downgrade(self);
        let call_id = call_id.to_owned();
        tokio::spawn(async move {
            tokio::select! {
                () = log.until_ended() => {
                    if let Some(server) = server.upgrade() {
                        drop(server.parked.take(&call_id));
                    }
                }
                has_ended = async { ended.wait_for(|ended| *ended).await.is_ok() } => {
                    if has_ended {
                        log.withdraw().await;
                    }
                }
            }
        });
    }
}
