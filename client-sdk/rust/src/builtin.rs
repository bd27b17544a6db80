//! The built-in reducers as methods. Required arguments are parameters or struct fields; optional
//! arguments are methods of the request or fields with a default.

use std::time::Duration;

use abide_reducers::approval::Decision;
use abide_reducers::message::Appended;
use abide_reducers::tool::{ApprovalPolicy, ToolLimits};
use abide_reducers::tool_call::Outcome;
use abide_reducers::{Approval, Effect, HandoffRequest, Session, Timer, Tool, ToolCall};
use serde::Serialize;
use serde_json::{Map, Value as JsonValue, json};

use crate::{Abide, Request};

/// Arguments of `create_session`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewSession {
    /// The agent that owns it.
    pub agent: String,
    /// Its id; generated if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A title for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The parent session, for a session that works for another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// Application-defined keys, such as a tenant, that decide who can see the session.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub scope: Map<String, JsonValue>,
    /// Other data to store with it.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, JsonValue>,
}

impl NewSession {
    /// A session of an agent, with defaults for everything else.
    #[must_use]
    pub fn of(agent: impl Into<String>) -> NewSession {
        NewSession { agent: agent.into(), ..NewSession::default() }
    }
}

/// Arguments of `append_message`: a message or another entry.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    /// The author's role: `system`, `user`, `assistant`, `tool`, or any other name that a framework uses.
    pub role: String,
    /// The text.
    pub content: Option<String>,
    /// The kind of entry, if it is not a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Other data: tool calls, names, usage.
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

    /// A user message.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content.into())
    }

    /// An assistant message.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content.into())
    }

    /// A system message.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content.into())
    }

    /// A tool message: the result of a tool.
    #[must_use]
    pub fn tool(content: impl Into<String>) -> Message {
        Message::new("tool", content.into())
    }

    /// Sets the entry's kind, instead of `message`.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Message {
        self.kind = Some(kind.into());
        self
    }

    /// Adds other data.
    #[must_use]
    pub fn data(mut self, data: impl Into<JsonValue>) -> Message {
        self.data = Some(data.into());
        self
    }
}

/// Arguments of `register_tool`.
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
    /// Whether it can safely run twice; at most once if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Its MCP annotations; they determine the effect if `effect` is omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<JsonValue>,
    /// Whether each call needs an approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_approval: Option<bool>,
    /// How approvals are requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalPolicy>,
    /// Time limit of an attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// How failed attempts are retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<JsonValue>,
    /// Capability that a worker needs to run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_capability: Option<String>,
    /// Rate and concurrency limits that protect the system behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ToolLimits>,
}

impl NewTool {
    /// A tool with a name and defaults for everything else.
    #[must_use]
    pub fn named(name: impl Into<String>) -> NewTool {
        NewTool { name: name.into(), ..NewTool::default() }
    }
}

/// Arguments of `request_tool_call`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewToolCall {
    /// Its id, which the caller derives from session and position. Do not use a model provider's id: those
    /// repeat.
    pub call_id: String,
    /// The session.
    pub session_id: String,
    /// The tool.
    pub tool_name: String,
    /// Any JSON; text that is not JSON is sent as a JSON string.
    pub arguments: JsonValue,
    /// The model provider's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_call_id: Option<String>,
    /// Claims the call in the same transaction, for this long: for agents that run their own tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_lease_ms: Option<i64>,
    /// Requires an approval even if the tool does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_approval: Option<bool>,
}

/// Arguments of `set_timer`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewTimer {
    /// Delay in milliseconds.
    pub in_ms: i64,
    /// Its id; generated if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The session that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Its purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The message appended to the session when it fires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether it resumes the session if it is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<bool>,
    /// Other data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<JsonValue>,
}

impl NewTimer {
    /// A timer with a delay and defaults for everything else.
    #[must_use]
    pub fn after(span: Duration) -> NewTimer {
        NewTimer { in_ms: millis(span), ..NewTimer::default() }
    }
}

/// Selects an approval: by its own id (any text converts to it), or by the id of the tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalRef {
    /// The approval's id.
    Id(String),
    /// The tool call's id.
    Call(String),
}

impl From<&str> for ApprovalRef {
    fn from(id: &str) -> ApprovalRef {
        ApprovalRef::Id(id.to_owned())
    }
}

impl From<&String> for ApprovalRef {
    fn from(id: &String) -> ApprovalRef {
        ApprovalRef::Id(id.clone())
    }
}

impl From<&Approval> for ApprovalRef {
    fn from(approval: &Approval) -> ApprovalRef {
        ApprovalRef::Id(approval.id.clone())
    }
}

impl From<&ToolCall> for ApprovalRef {
    fn from(call: &ToolCall) -> ApprovalRef {
        ApprovalRef::Call(call.call_id.clone())
    }
}

/// Optional arguments of a call, as type parameter of its [`Request`]: each type adds a method or two.
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
    /// Sets the reason.
    pub fn reason(self, reason: impl Into<String>) -> Self {
        self.arg("reason", reason.into())
    }
}

impl<T> Request<T, options::Result> {
    /// Sets the result.
    pub fn result(self, result: impl Serialize) -> Self {
        self.arg("result", result)
    }
}

impl<T> Request<T, options::Lease> {
    /// Sets the lease time, instead of the reducer's default.
    pub fn lease(self, lease: Duration) -> Self {
        self.arg("lease_ms", millis(lease))
    }
}

impl<T> Request<T, options::Claim> {
    /// Sets the lease time of the claim, instead of the reducer's default.
    pub fn lease(self, lease: Duration) -> Self {
        self.arg("lease_ms", millis(lease))
    }

    /// Sets a name for the worker.
    pub fn worker(self, worker: impl Into<String>) -> Self {
        self.arg("worker", worker.into())
    }
}

impl<T> Request<T, options::Retryable> {
    /// Marks the failure as retryable.
    pub fn retryable(self) -> Self {
        self.arg("retryable", true)
    }
}

impl<T> Request<T, options::Evidence> {
    /// Adds evidence for the outcome.
    pub fn evidence(self, evidence: impl Serialize) -> Self {
        self.arg("evidence", evidence)
    }
}

impl<T> Request<T, options::Handoff> {
    /// Adds other data for the receiver.
    pub fn data(self, data: impl Serialize) -> Self {
        self.arg("data", data)
    }

    /// Escalates to another capability if the handoff is still unclaimed after this time.
    pub fn escalate(self, after: Duration, to: &str) -> Self {
        self.arg("escalate_after_ms", millis(after)).arg("escalate_to", to)
    }

    /// Returns the session unanswered if the handoff is still unclaimed after this time.
    pub fn expires_after(self, after: Duration) -> Self {
        self.arg("expires_after_ms", millis(after))
    }
}

impl<T> Request<T, options::Decided> {
    /// Sets a comment on the decision.
    pub fn comment(self, comment: impl Into<String>) -> Self {
        self.arg("comment", comment.into())
    }

    /// Replaces the requested arguments.
    pub fn approved_arguments(self, arguments: impl Serialize) -> Self {
        self.arg("approved_arguments", arguments)
    }
}

pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Sessions and their messages.
impl Abide {
    /// Creates a session.
    pub fn create_session(&self, session: NewSession) -> Request<Session> {
        Request::new(self, "create_session", session)
    }

    /// Suspends a session until something arrives for it.
    pub fn suspend_session(&self, id: &str) -> Request<Session, options::Reason> {
        Request::new(self, "suspend_session", json!({"session_id": id}))
    }

    /// Resumes a suspended session.
    pub fn resume_session(&self, id: &str) -> Request<Session, options::Reason> {
        Request::new(self, "resume_session", json!({"session_id": id}))
    }

    /// Completes a session.
    pub fn complete_session(&self, id: &str) -> Request<Session, options::Result> {
        Request::new(self, "complete_session", json!({"session_id": id}))
    }

    /// Fails a session: a code for programs, a message for people.
    pub fn fail_session(&self, id: &str, code: &str, message: &str) -> Request<Session> {
        let args = json!({"session_id": id, "code": code, "message": message});
        Request::new(self, "fail_session", args)
    }

    /// Cancels a session. It ends immediately, or when its workers have stopped.
    pub fn cancel_session(&self, id: &str) -> Request<Session, options::Reason> {
        Request::new(self, "cancel_session", json!({"session_id": id}))
    }

    /// Appends a message to a session. The first message activates a new session.
    pub fn append_message(&self, session_id: &str, message: Message) -> Request<Appended> {
        Request::new(self, "append_message", message).arg("session_id", session_id)
    }
}

/// Tools and their calls.
impl Abide {
    /// Registers a tool, or a new version of one. Registering an identical tool changes nothing.
    pub fn register_tool(&self, tool: NewTool) -> Request<Tool> {
        Request::new(self, "register_tool", tool)
    }

    /// Requests a tool call. An identical request returns the stored row, marked as a duplicate.
    pub fn request_tool_call(&self, call: NewToolCall) -> Request<ToolCall> {
        Request::new(self, "request_tool_call", call)
    }

    /// Claims a pending call to run it. Exactly one claimant wins.
    pub fn claim_tool_call(&self, call_id: &str) -> Request<ToolCall, options::Claim> {
        Request::new(self, "claim_tool_call", json!({"call_id": call_id}))
    }

    /// Claims the oldest pending call of any of these tools.
    pub fn claim_next_tool_call(&self, tools: &[&str]) -> Request<ToolCall, options::Claim> {
        Request::new(self, "claim_next_tool_call", json!({"tools": tools}))
    }

    /// Extends the lease on a claimed call. In the result, `cancel_requested_at` shows whether the call was
    /// cancelled.
    pub fn heartbeat_tool_call(&self, claimed: &ToolCall) -> Request<ToolCall, options::Lease> {
        Request::new(self, "heartbeat_tool_call", held(claimed))
    }

    /// Completes a claimed call.
    pub fn complete_tool_call(
        &self,
        claimed: &ToolCall,
        result: impl Serialize,
    ) -> Request<ToolCall> {
        Request::new(self, "complete_tool_call", held(claimed)).arg("result", result)
    }

    /// Fails a claimed call; if [`retryable`](Request::retryable), the call becomes pending again.
    pub fn fail_tool_call(
        &self,
        claimed: &ToolCall,
        error: &str,
    ) -> Request<ToolCall, options::Retryable> {
        Request::new(self, "fail_tool_call", held(claimed)).arg("error", error)
    }

    /// Records the real outcome of a call whose worker vanished: succeeded with a result, or failed.
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

    /// Cancels a call. A worker that runs it is asked to stop.
    pub fn cancel_tool_call(&self, call_id: &str) -> Request<ToolCall, options::Reason> {
        Request::new(self, "cancel_tool_call", json!({"call_id": call_id}))
    }

    /// Confirms that a claimed call was stopped as requested: the tool did not run.
    pub fn acknowledge_cancel(&self, claimed: &ToolCall) -> Request<ToolCall> {
        Request::new(self, "acknowledge_cancel", held(claimed))
    }

    /// Approves a call that needs approval.
    pub fn approve(&self, which: impl Into<ApprovalRef>) -> Request<Approval, options::Decided> {
        self.decide_approval(which, Decision::Approve)
    }

    /// Rejects a call that needs approval.
    pub fn reject(&self, which: impl Into<ApprovalRef>) -> Request<Approval, options::Decided> {
        self.decide_approval(which, Decision::Reject)
    }

    /// Approves or rejects a call. The first decision wins.
    pub fn decide_approval(
        &self,
        which: impl Into<ApprovalRef>,
        decision: Decision,
    ) -> Request<Approval, options::Decided> {
        let request = Request::new(self, "decide_approval", json!({"decision": decision}));
        match which.into() {
            ApprovalRef::Id(id) => request.arg("id", id),
            ApprovalRef::Call(call_id) => request.arg("call_id", call_id),
        }
    }
}

/// Handoffs.
impl Abide {
    /// Hands a session off to a supervisor.
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

    /// Claims a pending handoff. Exactly one supervisor wins.
    pub fn claim_handoff(&self, id: &str) -> Request<HandoffRequest, options::Lease> {
        Request::new(self, "claim_handoff", json!({"id": id}))
    }

    /// Extends the lease on a claimed handoff.
    pub fn heartbeat_handoff(&self, id: &str) -> Request<HandoffRequest, options::Lease> {
        Request::new(self, "heartbeat_handoff", json!({"id": id}))
    }

    /// Releases a claimed handoff to other supervisors.
    pub fn release_handoff(&self, id: &str) -> Request<HandoffRequest> {
        Request::new(self, "release_handoff", json!({"id": id}))
    }

    /// Resolves a claimed handoff; the session continues.
    pub fn resolve_handoff(&self, id: &str, resolution: &str) -> Request<HandoffRequest> {
        Request::new(self, "resolve_handoff", json!({"id": id, "resolution": resolution}))
    }

    /// Rejects a claimed handoff; the session continues.
    pub fn reject_handoff(&self, id: &str, reason: &str) -> Request<HandoffRequest> {
        Request::new(self, "reject_handoff", json!({"id": id, "reason": reason}))
    }
}

/// Timers.
impl Abide {
    /// Sets a timer. When it fires, its row changes and its session, if any, gets its message.
    pub fn set_timer(&self, timer: NewTimer) -> Request<Timer> {
        Request::new(self, "set_timer", timer)
    }

    /// Cancels a timer before it fires.
    pub fn cancel_timer(&self, id: &str) -> Request<Timer> {
        Request::new(self, "cancel_timer", json!({"id": id}))
    }
}

/// The arguments that prove ownership of a claim.
fn held(claimed: &ToolCall) -> JsonValue {
    json!({"call_id": claimed.call_id, "fencing_token": claimed.fencing_token})
}
