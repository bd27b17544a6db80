//! A tool of an MCP server.

use std::sync::{Arc, PoisonError};

use abide_client::rows::Effect;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::call::McpCall;
use super::server::{Server, UnlistedName};
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
    pub(super) fn new(server: Arc<Server>, tool: rmcp::model::Tool) -> McpTool {
        let name = tool.name.into_owned();
        let annotations = tool.annotations.map(|annotations| json!(annotations));
        let declared = annotations.as_ref().map(Effect::from_annotations);
        let named_here = name_here(&server.prefix, &name);
        let configured = server.effects.get(&name).or_else(|| server.effects.get(&named_here));
        let effect = configured.copied().or(declared).unwrap_or(Effect::AtMostOnce);
        let description = tool.description.map(|text| text.into_owned()).or(tool.title);
        let parameters = Value::Object(tool.input_schema.as_ref().clone());
        let declaration = ToolDeclaration {
            effect,
            needs_approval: server.selects(&server.needs_approval, &name),
            timeout: server.timeout,
            annotations,
            ..ToolDeclaration::new(named_here, description.unwrap_or_default(), parameters)
        };
        McpTool { declaration, name, server }
    }
}

/// Returns a tool name that models accept: other characters become `_`. The end of a long name, and of a name with such
/// characters, is a hash of the whole name: two tools never have one name, or an approval of one would hold for the
/// other.
fn name_here(prefix: &str, name: &str) -> String {
    let whole = format!("{prefix}{name}");
    let accepted: String = whole
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' })
        .collect();
    if accepted == whole && whole.len() <= NAME_CHARS {
        return whole;
    }
    let hash = hex::encode(&Sha256::digest(whole)[..4]);
    let beginning: String = accepted.chars().take(NAME_CHARS - hash.len() - 1).collect();
    format!("{beginning}_{hash}")
}

impl Server {
    /// Returns `true` if names of a definition select a tool, by the server's name for it or by its name here.
    fn selects(&self, patterns: &[String], name: &str) -> bool {
        matches_any(patterns, name) || matches_any(patterns, &name_here(&self.prefix, name))
    }

    /// Returns the names in the definition that are those of none of the listed tools, each with a sentence. A wrong
    /// name in `needs_approval` would let a call run without an approval.
    fn unlisted_in(&self, listed: &[rmcp::model::Tool]) -> Vec<UnlistedName> {
        let only = self.only.iter().flatten().map(|name| ("only", name));
        let approvals = self.needs_approval.iter().map(|name| ("needs_approval", name));
        let effects = self.effects.keys().map(|name| ("effects", name));
        let all: Vec<&str> = listed.iter().map(|tool| tool.name.as_ref()).collect();
        let unknown = only.chain(approvals).chain(effects).filter(|(_, name)| {
            let patterns = std::slice::from_ref(*name);
            *name != "*" && !all.iter().any(|tool| self.selects(patterns, tool))
        });
        let has = if all.is_empty() { "no tools".to_owned() } else { all.join(", ") };
        let unlisted = unknown.map(|(setting, name)| UnlistedName {
            name: name.clone(),
            why: format!(
                "{setting} of MCP server {} names {name}, which the server does not have; it has {has}",
                self.name
            ),
        });
        unlisted.collect()
    }

    /// Replaces the tools of the registry by those that the server has listed.
    pub(super) fn publish(self: &Arc<Server>, mut listed: Vec<rmcp::model::Tool>) {
        if self.closing.is_cancelled() {
            return;
        }
        let unlisted = self.unlisted_in(&listed);
        for problem in &unlisted {
            tracing::warn!(name: "mcp_tool_warning", server = self.name, "{}", problem.why);
        }
        *self.unlisted.lock().unwrap_or_else(PoisonError::into_inner) = unlisted;
        listed.retain(|tool| self.only.as_ref().is_none_or(|only| self.selects(only, &tool.name)));
        if listed.len() > TOOLS_MAX {
            tracing::warn!(
                name: "mcp_tools_cut",
                server = self.name,
                "only the first {TOOLS_MAX} tools are used"
            );
            listed.truncate(TOOLS_MAX);
        }
        let tools = listed
            .into_iter()
            .map(|tool| Arc::new(McpTool::new(Arc::clone(self), tool)) as Arc<dyn Tool>);
        for problem in self.tools.replace(&self.name, tools.collect()) {
            tracing::warn!(
                name: "mcp_tool_unused",
                server = self.name,
                problem,
                "a tool is not used"
            );
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
