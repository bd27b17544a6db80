//! The built-in reducers as methods: what must be given is a parameter or a struct, what may be left
//! out is a method of the request or a field with a default.

use std::time::Duration;

use abide_reducers::approval::Decision;
use abide_reducers::tool::{ApprovalPolicy, ToolLimits};
use abide_reducers::tool_call::Outcome;
use abide_reducers::{Approval, Effect, HandoffRequest, Session, Timer, Tool, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as JsonValue, json};

use crate::{Abide, Request};

/// A session to be made.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewSession {
    /// The agent that it belongs to.
    pub agent: String,
    /// Its id; a new one is made where this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A title for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The session that it is made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// Keys of the builder's own, such as a tenant, that decide who may see it.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub scope: Map<String, JsonValue>,
    /// Anything else to keep with it.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, JsonValue>,
}

impl NewSession {
    /// A session of an agent, all else left out.
    #[must_use]
    pub fn of(agent: impl Into<String>) -> NewSession {
        NewSession { agent: agent.into(), ..NewSession::default() }
    }
}

/// A message, or another entry, to be appended to a session.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    /// Who speaks: system, user, assistant, tool, or any other name that a framework uses.
    pub role: String,
    /// What is said.
    pub content: Option<String>,
    /// What it is, where it is no message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whatever else belongs to it: tool calls, names, usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<JsonValue>,
}

impl Message {
    /// A message of any role; the content may be `None`.
    #[must_use]
    pub fn new<C: Into<String>>(role: impl Into<String>, content: impl Into<Option<C>>) -> Message {
        let content = content.into().map(Into::into);
        Message { role: role.into(), content, kind: None, data: None }
    }

    /// What the user says.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content.into())
    }

    /// What the agent says.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content.into())
    }

    /// What the agent is told to be.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content.into())
    }

    /// What a tool answered.
    #[must_use]
    pub fn tool(content: impl Into<String>) -> Message {
        Message::new("tool", content.into())
    }

    /// As an entry of another kind than `message`.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Message {
        self.kind = Some(kind.into());
        self
    }

    /// With whatever else belongs to it.
    #[must_use]
    pub fn data(mut self, data: impl Into<JsonValue>) -> Message {
        self.data = Some(data.into());
        self
    }
}

/// What `append_message` answers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Appended {
    /// The number of the `agent_state` row.
    pub id: i64,
}

/// A tool to be registered.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewTool {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<JsonValue>,
    /// What running it twice does; at most once where this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// The MCP annotations that it comes with; they say what running it twice does where `effect` is
    /// left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<JsonValue>,
    /// Whether somebody must approve each call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_approval: Option<bool>,
    /// How approvals are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalPolicy>,
    /// How long an attempt may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// How it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<JsonValue>,
    /// What whoever runs it must be capable of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_capability: Option<String>,
    /// How much of it the world behind it can bear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ToolLimits>,
}

impl NewTool {
    /// A tool of a name, all else left out.
    #[must_use]
    pub fn named(name: impl Into<String>) -> NewTool {
        NewTool { name: name.into(), ..NewTool::default() }
    }
}

/// A tool call to be asked for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewToolCall {
    /// Its id, made by the caller of session and position. A model provider's id is none: those repeat.
    pub call_id: String,
    /// The session.
    pub session_id: String,
    /// The tool.
    pub tool_name: String,
    /// Any JSON; text that is not JSON goes as a JSON string.
    pub arguments: JsonValue,
    /// The model provider's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_call_id: Option<String>,
    /// Claims it in the same breath, for so long: for agents that run their own tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_lease_ms: Option<i64>,
    /// Whether somebody must approve it, though the tool does not ask for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_approval: Option<bool>,
}

/// A timer to be set.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewTimer {
    /// How long from now, in milliseconds.
    pub in_ms: i64,
    /// Its id; a new one is made where this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The session that it is set for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the session is told then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the session, if it is suspended then, goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<bool>,
    /// Whatever else belongs to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<JsonValue>,
}

impl NewTimer {
    /// A timer of so long, all else left out.
    #[must_use]
    pub fn after(span: Duration) -> NewTimer {
        NewTimer { in_ms: millis(span), ..NewTimer::default() }
    }
}

/// Which approval is meant: by its own id (a text is one), or by that of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalOf {
    /// The approval's id.
    Id(String),
    /// The tool call's id.
    Call(String),
}

impl From<&str> for ApprovalOf {
    fn from(id: &str) -> ApprovalOf {
        ApprovalOf::Id(id.to_owned())
    }
}

impl From<&String> for ApprovalOf {
    fn from(id: &String) -> ApprovalOf {
        ApprovalOf::Id(id.clone())
    }
}

impl From<&Approval> for ApprovalOf {
    fn from(approval: &Approval) -> ApprovalOf {
        ApprovalOf::Id(approval.id.clone())
    }
}

impl From<&ToolCall> for ApprovalOf {
    fn from(call: &ToolCall) -> ApprovalOf {
        ApprovalOf::Call(call.call_id.clone())
    }
}

/// What may be left out of a call, as a type of its [`Request`]: each adds a method or two.
pub mod options {
    /// `reason(…)`.
    #[derive(Debug)]
    pub struct Reason;
    /// `result(…)`.
    #[derive(Debug)]
    pub struct Result;
    /// `lease(…)`.
    #[derive(Debug)]
    pub struct Lease;
    /// `lease(…)` and `worker(…)`.
    #[derive(Debug)]
    pub struct Claim;
    /// `retryable()`.
    #[derive(Debug)]
    pub struct Retryable;
    /// `evidence(…)`.
    #[derive(Debug)]
    pub struct Evidence;
    /// `data(…)`, `escalate(…)` and `expires_after(…)`.
    #[derive(Debug)]
    pub struct Handoff;
    /// `comment(…)` and `approved_arguments(…)`.
    #[derive(Debug)]
    pub struct Decided;
}

impl<T> Request<T, options::Reason> {
    /// Why.
    pub fn reason(self, reason: impl Into<String>) -> Self {
        self.arg("reason", reason.into())
    }
}

impl<T> Request<T, options::Result> {
    /// What it ends with.
    pub fn result(self, result: impl Serialize) -> Self {
        self.arg("result", result)
    }
}

impl<T> Request<T, options::Lease> {
    /// How long it holds, instead of the reducer's own measure.
    pub fn lease(self, lease: Duration) -> Self {
        self.arg("lease_ms", millis(lease))
    }
}

impl<T> Request<T, options::Claim> {
    /// How long the claim holds, instead of the reducer's own measure.
    pub fn lease(self, lease: Duration) -> Self {
        self.arg("lease_ms", millis(lease))
    }

    /// A name to be known by.
    pub fn worker(self, worker: impl Into<String>) -> Self {
        self.arg("worker", worker.into())
    }
}

impl<T> Request<T, options::Retryable> {
    /// It may be tried again.
    pub fn retryable(self) -> Self {
        self.arg("retryable", true)
    }
}

impl<T> Request<T, options::Evidence> {
    /// How that is known.
    pub fn evidence(self, evidence: impl Serialize) -> Self {
        self.arg("evidence", evidence)
    }
}

impl<T> Request<T, options::Handoff> {
    /// Whatever else the other side should know.
    pub fn data(self, data: impl Serialize) -> Self {
        self.arg("data", data)
    }

    /// If nobody has it by then, it asks for another capability.
    pub fn escalate(self, after: Duration, to: &str) -> Self {
        self.arg("escalate_after_ms", millis(after)).arg("escalate_to", to)
    }

    /// If nobody has it by then, the session gets it back unanswered.
    pub fn expires_after(self, after: Duration) -> Self {
        self.arg("expires_after_ms", millis(after))
    }
}

impl<T> Request<T, options::Decided> {
    /// Why it was decided so.
    pub fn comment(self, comment: impl Into<String>) -> Self {
        self.arg("comment", comment.into())
    }

    /// Arguments to run it with instead of those that were asked for.
    pub fn approved_arguments(self, arguments: impl Serialize) -> Self {
        self.arg("approved_arguments", arguments)
    }
}

pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Sessions and their messages.
impl Abide {
    /// Makes a session.
    pub fn create_session(&self, session: NewSession) -> Request<Session> {
        Request::new(self, "create_session", session)
    }

    /// Puts a session to rest until something arrives from outside.
    pub fn suspend_session(&self, id: &str) -> Request<Session, options::Reason> {
        Request::new(self, "suspend_session", json!({"session_id": id}))
    }

    /// Wakes a suspended session.
    pub fn resume_session(&self, id: &str) -> Request<Session, options::Reason> {
        Request::new(self, "resume_session", json!({"session_id": id}))
    }

    /// Ends a session well.
    pub fn complete_session(&self, id: &str) -> Request<Session, options::Result> {
        Request::new(self, "complete_session", json!({"session_id": id}))
    }

    /// Ends a session badly: a code for programs, a message for people.
    pub fn fail_session(&self, id: &str, code: &str, message: &str) -> Request<Session> {
        let args = json!({"session_id": id, "code": code, "message": message});
        Request::new(self, "fail_session", args)
    }

    /// Says that nobody wants a session any more. It ends at once, or when its workers have stopped.
    pub fn cancel_session(&self, id: &str) -> Request<Session, options::Reason> {
        Request::new(self, "cancel_session", json!({"session_id": id}))
    }

    /// Appends a message to a session. The first one makes a created session active.
    pub fn append_message(&self, session_id: &str, message: Message) -> Request<Appended> {
        Request::new(self, "append_message", message).arg("session_id", session_id)
    }
}

/// Tools and their calls.
impl Abide {
    /// Registers a tool, or a new version of one. Registering the same again changes nothing.
    pub fn register_tool(&self, tool: NewTool) -> Request<Tool> {
        Request::new(self, "register_tool", tool)
    }

    /// Asks for a tool to be run. The same again returns the stored row, marked as a duplicate.
    pub fn request_tool_call(&self, call: NewToolCall) -> Request<ToolCall> {
        Request::new(self, "request_tool_call", call)
    }

    /// Takes a pending call to run it. One claimant wins.
    pub fn claim_tool_call(&self, call_id: &str) -> Request<ToolCall, options::Claim> {
        Request::new(self, "claim_tool_call", json!({"call_id": call_id}))
    }

    /// Takes the pending call that has waited longest, of any of these tools.
    pub fn claim_next_tool_call(&self, tools: &[&str]) -> Request<ToolCall, options::Claim> {
        Request::new(self, "claim_next_tool_call", json!({"tools": tools}))
    }

    /// Says that the work on a claimed call goes on. The answer tells whether the call is still
    /// wanted: `cancel_requested_at`.
    pub fn heartbeat_tool_call(&self, claimed: &ToolCall) -> Request<ToolCall, options::Lease> {
        Request::new(self, "heartbeat_tool_call", held(claimed))
    }

    /// Ends a claimed call well.
    pub fn complete_tool_call(
        &self,
        claimed: &ToolCall,
        result: impl Serialize,
    ) -> Request<ToolCall> {
        Request::new(self, "complete_tool_call", held(claimed)).arg("result", result)
    }

    /// Ends a claimed call badly; or, where it is [`retryable`](Request::retryable), puts it back.
    pub fn fail_tool_call(
        &self,
        claimed: &ToolCall,
        error: &str,
    ) -> Request<ToolCall, options::Retryable> {
        Request::new(self, "fail_tool_call", held(claimed)).arg("error", error)
    }

    /// Says what became of a call whose worker vanished: it went well, with this result; or badly.
    pub fn settle_tool_call(
        &self,
        call_id: &str,
        outcome: Result<JsonValue, String>,
    ) -> Request<ToolCall, options::Evidence> {
        let request = Request::new(self, "settle_tool_call", json!({"call_id": call_id}));
        match outcome {
            Ok(result) => request.arg("outcome", Outcome::Succeeded).arg("result", result),
            Err(error) => request.arg("outcome", Outcome::Failed).arg("error", error),
        }
    }

    /// Says that a call is not wanted any more. A worker that is at it is asked to stop.
    pub fn cancel_tool_call(&self, call_id: &str) -> Request<ToolCall, options::Reason> {
        Request::new(self, "cancel_tool_call", json!({"call_id": call_id}))
    }

    /// Says that the work on a claimed call, which was asked to stop, has: the tool did not run.
    pub fn acknowledge_cancel(&self, claimed: &ToolCall) -> Request<ToolCall> {
        Request::new(self, "acknowledge_cancel", held(claimed))
    }

    /// Lets a call that needs approval run.
    pub fn approve(&self, which: impl Into<ApprovalOf>) -> Request<Approval, options::Decided> {
        self.decide_approval(which, Decision::Approve)
    }

    /// Keeps a call that needs approval from running.
    pub fn reject(&self, which: impl Into<ApprovalOf>) -> Request<Approval, options::Decided> {
        self.decide_approval(which, Decision::Reject)
    }

    /// Approves or rejects a call. The first decider wins.
    pub fn decide_approval(
        &self,
        which: impl Into<ApprovalOf>,
        decision: Decision,
    ) -> Request<Approval, options::Decided> {
        let request = Request::new(self, "decide_approval", json!({"decision": decision}));
        match which.into() {
            ApprovalOf::Id(id) => request.arg("id", id),
            ApprovalOf::Call(call_id) => request.arg("call_id", call_id),
        }
    }
}

/// Handoffs.
impl Abide {
    /// Puts a session into a supervisor's hands.
    pub fn request_supervisor_handoff(
        &self,
        session_id: &str,
        reason: &str,
        required_capability: &str,
    ) -> Request<HandoffRequest, options::Handoff> {
        let args = json!({
            "session_id": session_id,
            "reason": reason,
            "required_capability": required_capability,
        });
        Request::new(self, "request_supervisor_handoff", args)
    }

    /// Takes a pending handoff. One supervisor wins, however many watch.
    pub fn claim_handoff(&self, id: &str) -> Request<HandoffRequest, options::Lease> {
        Request::new(self, "claim_handoff", json!({"id": id}))
    }

    /// Says that one is still at a claimed handoff.
    pub fn heartbeat_handoff(&self, id: &str) -> Request<HandoffRequest, options::Lease> {
        Request::new(self, "heartbeat_handoff", json!({"id": id}))
    }

    /// Gives a claimed handoff back, for another supervisor.
    pub fn release_handoff(&self, id: &str) -> Request<HandoffRequest> {
        Request::new(self, "release_handoff", json!({"id": id}))
    }

    /// Answers a claimed handoff; the session goes on.
    pub fn resolve_handoff(&self, id: &str, resolution: &str) -> Request<HandoffRequest> {
        Request::new(self, "resolve_handoff", json!({"id": id, "resolution": resolution}))
    }

    /// Declines a claimed handoff; the session goes on.
    pub fn reject_handoff(&self, id: &str, reason: &str) -> Request<HandoffRequest> {
        Request::new(self, "reject_handoff", json!({"id": id, "reason": reason}))
    }
}

/// Timers.
impl Abide {
    /// Sets a timer. When it fires its row says so, and its session, if it has one, is told.
    pub fn set_timer(&self, timer: NewTimer) -> Request<Timer> {
        Request::new(self, "set_timer", timer)
    }

    /// Takes a timer back before it fires.
    pub fn cancel_timer(&self, id: &str) -> Request<Timer> {
        Request::new(self, "cancel_timer", json!({"id": id}))
    }
}

/// What proves that one holds a claim.
fn held(claimed: &ToolCall) -> JsonValue {
    json!({"call_id": claimed.call_id, "fencing_token": claimed.fencing_token})
}
