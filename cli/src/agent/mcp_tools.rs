//! The additions of a folder of agents to the MCP server: the tools and reducers that `abide.yaml` exposes. A call of a tool is a
//! row of `tool_calls` in a session of its caller, with the rights of the caller. A worker of this process runs it, so the
//! call continues without its client, and after a restart.

use std::fmt;
use std::pin::Pin;

use abide_agent::{McpExposure, ToolDeclaration, ToolView};
use abide_client::rows::{Effect, ToolCall, ToolCallStatus};
use abide_client::rules::{INPUT_TOOL, asked_by};
use abide_client::{Abide, Error};
use abide_engine::Engine;
use abide_protocols::{
    McpCancellation, McpFailure, McpFuture, McpHandler, McpItems, McpNotifier, McpReply,
    McpRequest, McpRevisions,
};
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Code, Refusal};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

/// The agent name of the sessions with calls of MCP clients.
pub(super) const AGENT: &str = "mcp";

/// The member of `_meta` that names another session for a call.
const SESSION: &str = "abide/session_id";

/// The call that a request follows.
const CALL: &str = "SELECT * FROM tool_calls WHERE call_id = :id";

/// The exposed tools and reducers.
pub(super) struct McpTools {
    engine: Engine,
    /// Reads the calls that callers have requested.
    abide: Abide,
    tools: ToolView,
    reducers: Vec<String>,
    revisions: watch::Sender<McpRevisions>,
}

impl fmt::Debug for McpTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpTools")
            .field("tools", &self.tools.names())
            .field("reducers", &self.reducers)
            .finish_non_exhaustive()
    }
}

impl McpTools {
    /// The exposed tools and reducers of an engine.
    pub(super) fn new(
        engine: &Engine,
        exposure: &McpExposure,
        changes: watch::Receiver<u64>,
    ) -> McpTools {
        let (revisions, _) = watch::channel(McpRevisions::default());
        tokio::spawn(count_changes(changes, revisions.clone()));
        McpTools {
            engine: engine.clone(),
            abide: Abide::embed(engine.clone()),
            tools: exposure.tools.clone(),
            reducers: exposure.reducers.clone(),
            revisions,
        }
    }

    /// The tools that can be called. A reducer of the same name is called instead.
    fn declarations(&self) -> impl Iterator<Item = ToolDeclaration> {
        let all = self.tools.declarations().into_iter();
        all.filter(|tool| !self.tools.is_blocked(&tool.name) && !self.reducers.contains(&tool.name))
    }

    async fn call(&self, request: McpRequest<'_>) -> Result<McpReply, McpFailure> {
        let call_id = match self.request_call(&request).await {
            Ok(call_id) => call_id,
            Err(refusal) => return Ok(McpReply::Complete(failed_result(&refusal.to_string()))),
        };
        let followed = self.follow(&call_id, request.notifier).await.map_err(|why| {
            tracing::warn!(
                name: "mcp_call_lost",
                error = %why,
                call_id,
                "a tool call cannot be followed"
            );
            McpFailure { code: -32603, message: "the server is stopping".to_owned(), data: None }
        });
        Ok(match followed? {
            McpReply::Complete(mut result) => {
                if let Some(arguments) = self.changed_arguments(request.caller, &call_id).await {
                    result["structuredContent"]["approved_arguments"] = arguments;
                }
                McpReply::Complete(result)
            }
            other => other,
        })
    }

    /// The arguments that the approver has put in place of those of the client, if the caller may see them.
    async fn changed_arguments(&self, caller: &Caller, call_id: &str) -> Option<Value> {
        let sql = "SELECT approved_arguments FROM approvals \
                   WHERE call_id = :id AND approved_arguments IS NOT NULL";
        let params = Map::from_iter([("id".to_owned(), json!(call_id))]);
        let found = self.engine.query(caller, sql, &params, None).await.ok()?;
        match found.rows.first()?.first()? {
            abide_schema::Value::Text(arguments) => serde_json::from_str(arguments).ok(),
            _ => None,
        }
    }

    /// Requests the call, or finds it, and returns its id.
    async fn request_call(&self, request: &McpRequest<'_>) -> Result<String, Refusal> {
        let named = request.params.get("_meta").and_then(|meta| meta[SESSION].as_str());
        let session_id = named.unwrap_or(request.session_id);
        let arguments = self.admit_arguments(request.params);
        let open = BatchCall {
            reducer: "open_session".to_owned(),
            args: json!({"id": session_id, "agent": AGENT, "title": "Tool calls over MCP"}),
        };
        let ask = BatchCall {
            reducer: "request_tool_call".to_owned(),
            args: json!({"call_id": request.id, "session_id": session_id,
                "tool_name": request.params["name"], "arguments": arguments}),
        };
        let calls = match named {
            None => vec![open, ask],
            Some(_) => {
                self.check_session(request.caller, &open.args).await?;
                vec![ask]
            }
        };
        let done = self
            .engine
            .batch(request.caller, &calls, None)
            .await
            .map_err(Refusal::outside_batch)?;
        let result = done.results.last().map(|last| last.result.as_str()).unwrap_or_default();
        let row: Value = serde_json::from_str(result).unwrap_or_default();
        Ok(row["call_id"].as_str().unwrap_or(request.id).to_owned())
    }

    /// The arguments of a call as its row has them. They are those of a model, and are repaired before anyone approves them; if that is
    /// impossible, the reducer refuses them.
    fn admit_arguments(&self, params: &Map<String, Value>) -> Value {
        let name = params["name"].as_str().unwrap_or_default();
        let arguments = match params.get("arguments") {
            None | Some(Value::Null) => json!({}),
            Some(arguments) => arguments.clone(),
        };
        let admitted = self.tools.admit(name, &arguments.to_string());
        admitted.map_or(arguments, |admitted| admitted.arguments)
    }

    /// Checks that a session which the client names is one whose calls this server runs. It is created if it is missing.
    async fn check_session(&self, caller: &Caller, open: &Value) -> Result<(), Refusal> {
        let opened = self.engine.call(caller, "open_session", open, None).await?;
        let session: Value = serde_json::from_str(&opened.result).unwrap_or_default();
        match session["agent"].as_str() {
            Some(AGENT) => Ok(()),
            agent => {
                let id = &session["id"];
                let agent = agent.unwrap_or_default();
                let detail = format!("session {id} belongs to the agent {agent}");
                let hint = format!("name a session of the agent {AGENT}, or omit {SESSION}");
                Err(Refusal::new(Code::Conflict, detail).hint(hint))
            }
        }
    }

    /// Waits until the call has ended, or waits for a decision.
    async fn follow(&self, call_id: &str, notifier: &McpNotifier) -> Result<McpReply, Error> {
        let mut rows = self.abide.subscribe(CALL).param("id", call_id).await?;
        let mut steps = 0.0;
        while rows.try_next().await?.is_some() {
            let Some(call) = rows.typed_rows::<ToolCall>()?.pop() else { continue };
            if call.status == ToolCallStatus::AwaitingApproval {
                return Ok(waiting_reply(&call, &self.find_open_calls(&call).await?));
            }
            if let Some(reply) = completed_reply(&call) {
                return Ok(reply);
            }
            steps += 1.0;
            let message = format!("{} is {}", call.tool_name, call.status);
            notifier.progress(steps, None, Some(&message)).await;
        }
        Err(Error::Closed)
    }

    /// Whether a worker runs a call.
    async fn has_begun(&self, caller: &Caller, id: &str) -> bool {
        let sql = "SELECT call_id FROM tool_calls WHERE call_id = :id AND status = 'claimed'";
        let stored = format!("{}{id}", caller.namespace());
        let query = self.abide.sql(sql).param("id", stored);
        let found: Result<Vec<(String,)>, Error> = query.fetch().await;
        found.is_ok_and(|rows| !rows.is_empty())
    }

    /// The calls to decide on: this call, or the questions of its server.
    async fn find_open_calls(&self, call: &ToolCall) -> Result<Vec<ToolCall>, Error> {
        let query = self.abide.sql(QUESTIONS).param("sid", &call.session_id);
        let mut asked: Vec<ToolCall> = query.param("tool", INPUT_TOOL).fetch().await?;
        asked.retain(|it| asked_by(&it.call_id) == Some(&call.call_id));
        Ok(if asked.is_empty() { vec![call.clone()] } else { asked })
    }
}

/// The questions of a call that waits for answers.
const QUESTIONS: &str = "SELECT * FROM tool_calls WHERE session_id = :sid \
    AND status = 'awaiting_approval' AND tool_name = :tool ORDER BY created_seq, call_id";

/// Counts the changes of the tools.
async fn count_changes(mut changes: watch::Receiver<u64>, revisions: watch::Sender<McpRevisions>) {
    while changes.changed().await.is_ok() {
        revisions.send_modify(|revisions| revisions.tools += 1);
    }
}

/// The reply to a request for a call that waits for decisions.
fn waiting_reply(call: &ToolCall, undecided: &[ToolCall]) -> McpReply {
    let mut text = format!("The call {} of {} waits for a decision.", call.call_id, call.tool_name);
    for question in undecided.iter().filter(|it| it.tool_name == INPUT_TOOL) {
        if let Some(message) = question.arguments.value()["message"].as_str() {
            text = format!("{text}\n{}: {message}", question.call_id);
        }
    }
    let result = call_result(call, &text, false);
    McpReply::Waiting {
        approvals: undecided
            .iter()
            .map(|it| {
                let args = it.arguments.value();
                json!({"tool_call_id": it.call_id, "tool_name": it.tool_name, "args": args})
            })
            .collect(),
        result,
    }
}

/// The reply to a request for a call that has ended.
fn completed_reply(call: &ToolCall) -> Option<McpReply> {
    let result = match call.status {
        ToolCallStatus::Pending | ToolCallStatus::Claimed | ToolCallStatus::AwaitingApproval => {
            return None;
        }
        ToolCallStatus::Succeeded => succeeded_result(call),
        ToolCallStatus::Unknown => {
            let why = call.error.as_deref().unwrap_or("the process that ran it disappeared");
            let text = format!(
                "Whether the call had an effect is unknown, so it does not run again: {why}"
            );
            call_result(call, &text, true)
        }
        status => {
            let error = call.error.clone().unwrap_or_else(|| format!("the call is {status}"));
            call_result(call, &error, true)
        }
    };
    Some(McpReply::Complete(result))
}

/// The result of a call that has succeeded, in this process or in another worker.
fn succeeded_result(call: &ToolCall) -> Value {
    let stored = call.result.as_ref().map(abide_client::Json::value).unwrap_or_default();
    let text = match &stored["text"] {
        Value::String(text) => text.clone(),
        _ => stored.to_string(),
    };
    let mut answer = call_result(call, &text, false);
    let content = stored.get("content").unwrap_or(&stored);
    answer["structuredContent"]["result"] = content.clone();
    // The answer of another MCP server has images and other content.
    if let Value::Array(content) = &content["content"] {
        answer["content"] = content.clone().into();
    }
    answer
}

fn call_result(call: &ToolCall, text: &str, is_error: bool) -> Value {
    let mut structured = json!({"call_id": call.call_id, "session_id": call.session_id,
        "status": call.status});
    let stored = call.result.as_ref().map(abide_client::Json::value).unwrap_or_default();
    if stored["exit_code"].is_i64() {
        structured["exit_code"] = stored["exit_code"].clone();
    }
    json!({"content": [{"type": "text", "text": text}], "structuredContent": structured,
        "isError": is_error})
}

fn failed_result(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}], "isError": true})
}

impl McpHandler for McpTools {
    fn items(&self, items: McpItems) -> Vec<Value> {
        match items {
            McpItems::Tools => self.declarations().map(tool_listing).collect(),
            McpItems::Resources | McpItems::ResourceTemplates | McpItems::Prompts => Vec::new(),
        }
    }

    fn answer<'a>(&'a self, request: McpRequest<'a>) -> McpFuture<'a> {
        Box::pin(async move {
            match request.method {
                "tools/call" => self.call(request).await,
                method => Err(McpFailure::invalid(format!("the method {method} is not supported"))),
            }
        })
    }

    fn cancel<'a>(
        &'a self,
        caller: &'a Caller,
        id: &'a str,
        how: McpCancellation,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if how == McpCancellation::Disconnected && self.has_begun(caller, id).await {
                return;
            }
            let args = json!({"call_id": id, "reason": "the MCP client has cancelled the call"});
            if let Err(refusal) = self.engine.call(caller, "cancel_tool_call", &args, None).await {
                // It has ended in the meantime, or was never requested.
                tracing::debug!(%refusal, id, "a call is not cancelled");
            }
        })
    }

    fn reducers(&self) -> Vec<String> {
        self.reducers.clone()
    }

    fn revisions(&self) -> Option<watch::Receiver<McpRevisions>> {
        Some(self.revisions.subscribe())
    }
}

/// A tool as `tools/list` has it.
fn tool_listing(tool: ToolDeclaration) -> Value {
    let mut annotations = match tool.annotations {
        Some(Value::Object(annotations)) => annotations,
        _ => Map::new(),
    };
    // The effect is what this server relies on; a hint of another server may be wrong.
    annotations.insert("readOnlyHint".to_owned(), json!(tool.effect == Effect::ReadOnly));
    annotations.insert("idempotentHint".to_owned(), json!(tool.effect != Effect::AtMostOnce));
    let mut schema = tool.parameters;
    if schema["type"].is_null() {
        schema["type"] = json!("object");
    }
    json!({"name": tool.name, "description": tool.description, "inputSchema": schema,
        "annotations": annotations})
}
