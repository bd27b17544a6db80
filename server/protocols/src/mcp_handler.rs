//! Interface to what a program adds to the MCP server: tools, resources and prompts of its own. An agent host provides it
//! with [`AgentRegistry::mcp`](crate::AgentRegistry::mcp).

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use abide_schema::reducer::Caller;
use serde_json::{Map, Value as JsonValue, json};
use tokio::sync::{mpsc, watch};

/// A list of MCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpItems {
    /// `tools/list`.
    Tools,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    ResourceTemplates,
    /// `prompts/list`.
    Prompts,
}

/// The number of changes of each list. A client that listens is notified when one of them differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct McpRevisions {
    /// Of the tools.
    pub tools: u64,
    /// Of the prompts.
    pub prompts: u64,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq)]
pub struct McpFailure {
    /// The code.
    pub code: i64,
    /// One sentence.
    pub message: String,
    /// More for programs.
    pub data: Option<JsonValue>,
}

impl McpFailure {
    /// Invalid parameters (-32602).
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> McpFailure {
        McpFailure { code: -32602, message: message.into(), data: None }
    }
}

/// The answer of a handler to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum McpReply {
    /// The result.
    Complete(JsonValue),
    /// The request needs input of the client. It comes again with the responses.
    InputRequired {
        /// Requests to the client, by name: `{method, params}`.
        requests: Map<String, JsonValue>,
        /// Returned with the responses. It is signed on the way.
        state: Option<JsonValue>,
    },
    /// Tool calls wait for decisions. The server asks the client for them, records them as the caller, and asks the
    /// handler again with the same [`McpRequest::id`].
    Waiting {
        /// The calls: `{tool_call_id, tool_name, args}`.
        approvals: Vec<JsonValue>,
        /// The result for a client that cannot be asked, or whose user has closed the form.
        result: JsonValue,
    },
}

/// How a client has cancelled a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpCancellation {
    /// By a message.
    Requested,
    /// By closing the connection, in 2026-07-28. What has begun is completed and recorded.
    Disconnected,
}

/// A request to a handler.
#[derive(Debug)]
pub struct McpRequest<'a> {
    /// `tools/call`, `resources/read`, `prompts/get` or `completion/complete`.
    pub method: &'a str,
    /// Its parameters.
    pub params: &'a Map<String, JsonValue>,
    /// The caller.
    pub caller: &'a Caller,
    /// The id of the request: equal for a call that the caller repeats with its idempotency key, and different for every other call.
    pub id: &'a str,
    /// The id of a session for the caller's calls: always the same for the same caller.
    pub session_id: &'a str,
    /// The capabilities of the client.
    pub capabilities: &'a JsonValue,
    /// The state of the [`McpReply::InputRequired`] that this request answers.
    pub state: Option<JsonValue>,
    /// The responses of the client, by name.
    pub responses: Map<String, JsonValue>,
    /// Notifies the client.
    pub notifier: &'a McpNotifier,
}

/// The answer, once it is there.
pub type McpFuture<'a> = Pin<Box<dyn Future<Output = Result<McpReply, McpFailure>> + Send + 'a>>;

/// Answers requests for what a program adds to the MCP server.
pub trait McpHandler: Debug + Send + Sync {
    /// Returns the entries of a list, as the protocol defines them, in an order that stays the same.
    fn items(&self, items: McpItems) -> Vec<JsonValue>;

    /// Answers a request for something in these lists.
    ///
    /// # Errors
    /// A JSON-RPC error. A tool that fails has a result with `isError` instead.
    fn answer<'a>(&'a self, request: McpRequest<'a>) -> McpFuture<'a>;

    /// Cancels a call that the client has cancelled: [`McpHandler::answer`] has been dropped.
    fn cancel<'a>(
        &'a self,
        _caller: &'a Caller,
        _id: &'a str,
        _how: McpCancellation,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::ready(()))
    }

    /// Returns the reducers that are tools.
    fn reducers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the changes of the lists.
    fn revisions(&self) -> Option<watch::Receiver<McpRevisions>> {
        None
    }
}

/// The severities of log messages (RFC 5424), the least severe first.
pub(crate) const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Sends notifications while a request is being answered.
#[derive(Clone, Debug)]
pub struct McpNotifier {
    out: mpsc::Sender<JsonValue>,
    progress_token: Option<JsonValue>,
    /// The index of the least severe level that the client wants.
    level: Option<usize>,
}

impl McpNotifier {
    pub(crate) fn new(
        out: mpsc::Sender<JsonValue>,
        progress_token: Option<JsonValue>,
        level: Option<&str>,
    ) -> McpNotifier {
        let level = level.and_then(level_index);
        McpNotifier { out, progress_token, level }
    }

    /// Reports progress, if the client has asked for it.
    pub async fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        let Some(token) = &self.progress_token else { return };
        let mut params = json!({"progressToken": token, "progress": progress});
        if let Some(total) = total {
            params["total"] = json!(total);
        }
        if let Some(message) = message {
            params["message"] = json!(message);
        }
        self.notify("notifications/progress", params).await;
    }

    /// Sends a log message, if the client wants messages of this level.
    pub async fn log(&self, level: &str, data: JsonValue) {
        let (Some(least), Some(at)) = (self.level, level_index(level)) else { return };
        if at >= least {
            self.notify("notifications/message", json!({"level": level, "data": data})).await;
        }
    }

    pub(crate) async fn notify(&self, method: &str, params: JsonValue) {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Waits until there is room. A client that has left gets nothing.
    pub(crate) async fn send(&self, message: JsonValue) {
        let _ = self.out.send(message).await;
    }
}

/// Returns the index of a level.
pub(crate) fn level_index(name: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == name)
}
