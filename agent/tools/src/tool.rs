//! What a tool is: a declaration, for the model and for the row that its calls are held to, and a way
//! to run it. Which tools there are is the registry's business.

use std::time::Duration;

use abide_client::{ApprovalPolicy, Effect, NewTool, Retry, ToolLimits};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::outcome::ToolOutcome;

/// How long one run may take where a tool does not say: most answers come within seconds, and an agent that
/// waits in vain for longer is a person who waits in vain.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Something that an agent may call.
pub trait Tool: Send + Sync + 'static {
    /// What it is called, what it takes, and what running it means.
    fn declaration(&self) -> &ToolDeclaration;

    /// Runs it. The arguments have been held to [`ToolDeclaration::parameters`] by
    /// [`ToolView::admit`](crate::ToolView::admit).
    ///
    /// The future ends within [`ToolDeclaration::timeout`], and soon after the invocation is cancelled. To drop it
    /// stops the tool as well, as far as it can be stopped.
    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome>;
}

/// What is said of a tool before it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDeclaration {
    /// Its name: letters, digits, `_` and `-`, at most 64, which is what all providers take.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments, an object.
    pub parameters: Value,
    /// What running it twice would mean.
    pub effect: Effect,
    /// Whether somebody must approve each call.
    pub needs_approval: bool,
    /// How approvals are asked for.
    pub approval: Option<ApprovalPolicy>,
    /// How long one run may take.
    pub timeout: Duration,
    /// How a call is tried again that failed for now.
    pub retry: Option<Retry>,
    /// What whoever runs it must be capable of.
    pub required_capability: Option<String>,
    /// What the world behind it can bear.
    pub limits: Option<ToolLimits>,
    /// The MCP annotations that it came with.
    pub annotations: Option<Value>,
}

impl ToolDeclaration {
    /// A tool that takes what the schema says, and of which nothing else is assumed: it may not run twice, nobody
    /// need approve it.
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

    /// The arguments of `register_tool` that make it known to Abide.
    #[must_use]
    pub fn manifest(&self) -> NewTool {
        let retry = self.retry.as_ref().map(|retry| json!(retry));
        NewTool {
            description: Some(self.description.clone()),
            input_schema: Some(self.parameters.clone()),
            effect: Some(self.effect),
            annotations: self.annotations.clone(),
            needs_approval: Some(self.needs_approval),
            approval: self.approval.clone(),
            timeout_ms: Some(i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX)),
            retry,
            required_capability: self.required_capability.clone(),
            limits: self.limits.clone(),
            ..NewTool::named(&self.name)
        }
    }
}

/// On whose behalf a tool is called. None of it comes from the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolContext {
    /// The session.
    pub session_id: String,
    /// The agent's name.
    pub agent: String,
    /// The session's scope: keys of the builder's own, such as a tenant.
    pub scope: Map<String, Value>,
    /// The run, where there is one.
    pub run_id: Option<String>,
}

/// One call, about to be run.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The call's id. The same call has the same id each time that it is tried.
    pub call_id: String,
    /// What the tool is called with.
    pub arguments: Value,
    /// On whose behalf.
    pub context: ToolContext,
    /// Cancelled when the outcome is not wanted any more.
    pub cancel: CancellationToken,
}

impl Invocation {
    /// A call that nobody means to cancel.
    #[must_use]
    pub fn new(call_id: impl Into<String>, arguments: Value, context: ToolContext) -> Invocation {
        Invocation { call_id: call_id.into(), arguments, context, cancel: CancellationToken::new() }
    }
}
