//! The trait of tools: a declaration, for the model and for the registered row, and a method to run it. The
//! registry holds the tools.

use std::time::Duration;

use abide_client::arguments::{ApprovalPolicy, RegisterTool, Retry, ToolLimits};
use abide_client::rows::Effect;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::exchange::Exchange;
use crate::outcome::ToolOutcome;

/// The default timeout of a call. Most answers take seconds, and users wait for the agent meanwhile.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Something that an agent may call.
pub trait Tool: Send + Sync + 'static {
    /// Returns the name, the parameters and the properties of the tool.
    fn declaration(&self) -> &ToolDeclaration;

    /// Runs the tool. The arguments are valid for [`ToolDeclaration::parameters`];
    /// [`ToolView::admit`](crate::ToolView::admit) has checked them.
    ///
    /// The future completes within [`ToolDeclaration::timeout`], and soon after the invocation is cancelled.
    /// Dropping it also stops the tool, as far as possible.
    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome>;

    /// Returns `true` if calls stay in this process. Nothing outside of it learns their ids, so that a call which only
    /// reads can run before it is durable.
    fn is_local(&self) -> bool {
        false
    }

    /// Returns the files that a call has changed whose outcome is unknown, because the process was killed: an object
    /// with `files` and `files_complete`, as in results; `None` if the tool cannot know.
    fn interrupted(&self, _call_id: String) -> BoxFuture<'static, Option<Value>> {
        Box::pin(std::future::ready(None))
    }

    /// Cancels a task that a call has left on the tool's server, from the data of its step. An error is temporary.
    fn cancel_task(&self, _data: Value) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The declaration of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDeclaration {
    /// The name: letters, digits, `_` and `-`, at most 64 characters, as all providers accept.
    pub name: String,
    /// The description for the model.
    pub description: String,
    /// The JSON Schema of the arguments, an object.
    pub parameters: Value,
    /// The effect of a repeated call.
    pub effect: Effect,
    /// Whether each call needs approval. See [`ToolDeclaration::requires_approval`].
    pub needs_approval: bool,
    /// How approvals are requested. If it is given, each call needs one.
    pub approval: Option<ApprovalPolicy>,
    /// Timeout of a call.
    pub timeout: Duration,
    /// How calls with temporary failures are retried.
    pub retry: Option<Retry>,
    /// The capability that a worker needs to run it.
    pub required_capability: Option<String>,
    /// Rate and concurrency limits.
    pub limits: Option<ToolLimits>,
    /// The MCP annotations of the tool.
    pub annotations: Option<Value>,
}

/// How long a claim lasts beyond the timeout of the call: the worker stops the tool and reports the timeout. Otherwise the call
/// would look like one whose worker had crashed, and it could run again.
const REPORT: Duration = Duration::from_secs(30);

impl ToolDeclaration {
    /// Creates a declaration with defaults: the tool must run at most once and needs no approval.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: Value,
    ) -> ToolDeclaration {
        ToolDeclaration {
            name: name.into(),
            description: description.into(),
            parameters,
            effect: Effect::AtMostOnce,
            needs_approval: false,
            approval: None,
            timeout: DEFAULT_TIMEOUT,
            retry: None,
            required_capability: None,
            limits: None,
            annotations: None,
        }
    }

    /// Returns `true` if each call needs approval: if the declaration says so, or says how approvals are requested.
    #[must_use]
    pub fn requires_approval(&self) -> bool {
        self.needs_approval || self.approval.is_some()
    }

    /// Returns the arguments of `register_tool`.
    #[must_use]
    pub fn manifest(&self) -> RegisterTool {
        RegisterTool {
            description: Some(self.description.clone()),
            input_schema: Some(self.parameters.clone()),
            effect: Some(self.effect),
            annotations: self.annotations.as_ref().and_then(Value::as_object).cloned(),
            needs_approval: Some(self.requires_approval()),
            approval: self.approval.clone(),
            timeout_ms: Some(
                i64::try_from(self.timeout.saturating_add(REPORT).as_millis()).unwrap_or(i64::MAX),
            ),
            retry: self.retry.clone(),
            required_capability: self.required_capability.clone(),
            limits: self.limits.clone(),
            name: self.name.clone(),
        }
    }
}

/// The variable with the context, for programs.
pub(crate) const CONTEXT_VARIABLE: &str = "ABIDE_CONTEXT";

/// Maximum size of the metadata in a context, as JSON. The system limits a variable to 128 KiB, and servers limit
/// headers.
const METADATA_BYTES: usize = 4 << 10;

/// The context of a call. None of it comes from the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolContext {
    /// The session.
    pub session_id: String,
    /// The agent's name.
    pub agent: String,
    /// The session's scope: application-defined keys, such as a tenant.
    pub scope: Map<String, Value>,
    /// The run, if there is one.
    pub run_id: Option<String>,
    /// The thread of messages that the session continues. It is the session's own id unless the session says
    /// otherwise.
    pub thread_id: Option<String>,
    /// The session's metadata.
    pub metadata: Map<String, Value>,
}

impl ToolContext {
    /// Returns the context of a call as JSON: `call_id`, `session_id`, `thread_id`, `run_id`, `agent`, `scope` and
    /// `metadata`. Metadata of more than 4 KiB is omitted.
    #[must_use]
    pub fn to_json(&self, call_id: &str) -> Value {
        let metadata = Value::Object(self.metadata.clone());
        let is_small = metadata.to_string().len() <= METADATA_BYTES;
        json!({
            "call_id": call_id,
            "session_id": self.session_id,
            "thread_id": self.thread_id,
            "run_id": self.run_id,
            "agent": self.agent,
            "scope": self.scope,
            "metadata": if is_small { metadata } else { Value::Null },
        })
    }
}

/// A call to run.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The call's id. Retries of a call have the same id.
    pub call_id: String,
    /// The arguments.
    pub arguments: Value,
    /// The context.
    pub context: ToolContext,
    /// Cancelled when the outcome is no longer needed.
    pub cancel: CancellationToken,
    /// The exchange of the call with a server so far.
    pub exchange: Exchange,
}

impl Invocation {
    /// Creates a call that is never cancelled.
    #[must_use]
    pub fn new(call_id: impl Into<String>, arguments: Value, context: ToolContext) -> Invocation {
        Invocation {
            call_id: call_id.into(),
            arguments,
            context,
            cancel: CancellationToken::new(),
            exchange: Exchange::default(),
        }
    }

    /// Returns the context as JSON.
    pub(crate) fn context_json(&self) -> Value {
        self.context.to_json(&self.call_id)
    }
}
