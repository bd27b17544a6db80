//! A tool of an MCP server.

use std::sync::Arc;

use abide_client::Effect;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::call::McpCall;
use super::server::Server;
use crate::outcome::{Failure, ToolOutcome};
use crate::registry::{NAME_CHARS, matches_any};
use crate::tool::{Invocation, Tool, ToolDeclaration};

/// Maximum number of tools per server. A longer list is not usable for a model.
const TOOLS_MAX: usize = 1_000;

/// A tool of a server.
pub(super) struct McpTool {
    declaration: ToolDeclaration,
    /// The server's name for it.
    name: String,
    server: Arc<Server>,
}

impl McpTool {
    pub(super) fn of(server: Arc<Server>, tool: rmcp::model::Tool) -> McpTool {
        let name = tool.name.into_owned();
        let annotations = tool.annotations.map(|annotations| json!(annotations));
        let declared = annotations.as_ref().map(Effect::of_annotations);
        let effect = server.effects.get(&name).copied().or(declared).unwrap_or(Effect::AtMostOnce);
        let description = tool.description.map(|text| text.into_owned()).or(tool.title);
        let parameters = Value::Object(tool.input_schema.as_ref().clone());
        let declaration = ToolDeclaration {
            effect,
            needs_approval: matches_any(&server.needs_approval, &name),
            timeout: server.timeout,
            annotations,
            ..ToolDeclaration::new(
                name_here(&server.prefix, &name),
                description.unwrap_or_default(),
                parameters,
            )
        };
        McpTool { declaration, name, server }
    }
}

/// A tool name that models accept: other characters become `_`, and the end of a long name is replaced by a hash of
/// the whole name.
fn name_here(prefix: &str, name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let whole: String =
        format!("{prefix}{name}").chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if whole.len() <= NAME_CHARS {
        return whole;
    }
    let hash = Sha256::digest(format!("{prefix}{name}"));
    let hash = hex::encode(&hash[..4]);
    format!("{}_{hash}", &whole[..NAME_CHARS - hash.len() - 1])
}

impl Server {
    /// Replaces the tools of the registry by those that the server has listed.
    pub(super) fn publish(self: &Arc<Server>, mut listed: Vec<rmcp::model::Tool>) {
        if self.closing.is_cancelled() {
            return;
        }
        listed.retain(|tool| self.only.as_ref().is_none_or(|only| matches_any(only, &tool.name)));
        if listed.len() > TOOLS_MAX {
            tracing::warn!(server = self.name, "only the first {TOOLS_MAX} tools are used");
            listed.truncate(TOOLS_MAX);
        }
        let tools = listed
            .into_iter()
            .map(|tool| Arc::new(McpTool::of(Arc::clone(self), tool)) as Arc<dyn Tool>);
        for problem in self.tools.replace(&self.name, tools.collect()) {
            tracing::warn!(server = self.name, problem, "a tool is not used");
        }
    }
}

impl Tool for McpTool {
    fn declaration(&self) -> &ToolDeclaration {
        &self.declaration
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome> {
        let known_as = self.declaration.name.clone();
        let timeout = self.server.timeout;
        let call = McpCall::new(&self.server, &self.name, self.declaration.effect, invocation);
        async move {
            let cancel = call.invocation.cancel.clone();
            // Dropping the call sends a cancellation to the server.
            let done = tokio::select! {
                biased;
                () = cancel.cancelled() => None,
                done = tokio::time::timeout(timeout, call.run()) => Some(done),
            };
            match done {
                Some(done) => {
                    done.unwrap_or_else(|_| crate::function::timed_out(&known_as, timeout))
                }
                None => {
                    call.cancel().await;
                    ToolOutcome::failed(Failure::Cancelled, format!("{known_as} was cancelled"))
                }
            }
        }
        .boxed()
    }

    fn cancel_task(&self, data: Value) -> BoxFuture<'static, Result<(), String>> {
        let server = Arc::clone(&self.server);
        async move {
            match data["task_id"].as_str() {
                Some(task_id) => server.cancel_task(task_id).await,
                None => Ok(()),
            }
        }
        .boxed()
    }
}
