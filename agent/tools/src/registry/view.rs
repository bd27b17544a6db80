//! The tools of the registry that an agent may use, according to its definition.
//!
//! An **excluded** tool is invisible to the model. A **blocked** tool is visible, but calls to it are denied, so
//! that the model learns the reason.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Entry, RegistryState, Tools, ToolsError};
use crate::arguments::{ArgumentsError, CheckedArguments};
use crate::exchange::Exchange;
use crate::outcome::{Failure, ToolOutcome};
use crate::tool::{Invocation, Tool, ToolContext, ToolDeclaration};

/// The selection of tools in a definition. `*` at the end of a name matches any suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// The agent's tools; the default is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tools among them whose calls are denied.
    pub blocked: Vec<String>,
    /// Tools among them that are invisible.
    pub excluded: Vec<String>,
}

/// The tools of one agent.
#[derive(Clone)]
pub struct ToolView {
    tools: Tools,
    selection: Arc<Selection>,
}

impl Tools {
    /// Returns the tools that an agent may use.
    ///
    /// # Errors
    /// A name is unknown, and no source that has not listed its tools yet could provide it.
    pub fn view(&self, selection: Selection) -> Result<ToolView, ToolsError> {
        ToolView::new(self.clone(), selection)
    }

    /// Returns the tools that an agent may use. Unknown names select nothing: a tool can be removed while a run uses
    /// others.
    #[must_use]
    pub fn view_of_known(&self, selection: Selection) -> ToolView {
        ToolView { tools: self.clone(), selection: Arc::new(selection) }
    }

    /// Denies calls of these tools to all agents, in addition to earlier ones. A `*` at the end of a name matches any
    /// suffix. No definition can lift it.
    ///
    /// # Errors
    /// A name is unknown, and no source that has not listed its tools yet could provide it.
    pub fn block(&self, names: Vec<String>) -> Result<(), ToolsError> {
        let asked = Selection { blocked: names.clone(), ..Selection::default() };
        self.view(asked)?;
        self.change(|registry| registry.blocked.extend(names));
        Ok(())
    }
}

/// A call that may be run.
pub struct AdmittedCall {
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// The arguments to call it with.
    pub arguments: Value,
    /// Descriptions of the conversions of the model's arguments; usually empty.
    pub repairs: Vec<String>,
}

impl Selection {
    fn shows(&self, name: &str) -> bool {
        let selected = self.tools.as_ref().is_none_or(|tools| matches_any(tools, name));
        selected && !matches_any(&self.excluded, name)
    }

    fn blocks(&self, name: &str) -> bool {
        matches_any(&self.blocked, name)
    }
}

/// Returns `true` if one of the patterns matches the name.
pub(crate) fn matches_any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| tool_matches(pattern, name))
}

/// Returns `true` if a configuration means a tool by this name: the tool's own name, or a beginning of it followed by `*`.
#[must_use]
pub fn tool_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

impl ToolView {
    pub(super) fn new(tools: Tools, selection: Selection) -> Result<ToolView, ToolsError> {
        let Selection { tools: selected, blocked, excluded } = &selection;
        let patterns = selected.iter().flatten().chain(blocked).chain(excluded);
        tools.read(|stock| {
            let mut names: Vec<String> =
                patterns.filter(|pattern| !is_known(stock, pattern)).cloned().collect();
            names.dedup();
            if names.is_empty() {
                return Ok(());
            }
            let known = stock.names().into_iter().map(str::to_owned).collect();
            Err(ToolsError::Unknown { names, known })
        })?;
        Ok(tools.view_of_known(selection))
    }

    /// Returns the visible tools by name, including the blocked ones.
    #[must_use]
    pub fn declarations(&self) -> Vec<ToolDeclaration> {
        self.tools.read(|stock| {
            let visible = stock.entries.iter().filter(|(name, _)| self.selection.shows(name));
            visible.map(|(_, entry)| entry.tool.declaration().clone()).collect()
        })
    }

    /// Returns the names of the visible tools.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let all = self.tools.names().into_iter();
        all.filter(|name| self.selection.shows(name)).collect()
    }

    /// Returns `true` if calls of a tool are denied.
    #[must_use]
    pub fn is_blocked(&self, name: &str) -> bool {
        let by_all = self.tools.read(|stock| stock.blocks(name));
        by_all || self.selection.blocks(name)
    }

    /// Returns the tool with this name, if its calls are permitted.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<dyn Tool>> {
        self.entry(name).ok().map(|entry| entry.tool)
    }

    /// Checks a call as a model wrote it.
    ///
    /// # Errors
    /// The outcome for the model: the tool is unknown or blocked, or the arguments are invalid.
    pub fn admit(&self, name: &str, arguments: &str) -> Result<AdmittedCall, ToolOutcome> {
        let entry = self.entry(name)?;
        entry.admit(name, entry.parameters.fit_text(arguments))
    }

    /// Checks a recorded call before it runs. Its arguments are not repaired: an approver may have seen or edited them.
    ///
    /// # Errors
    /// As [`ToolView::admit`].
    pub fn admit_value(&self, name: &str, arguments: Value) -> Result<AdmittedCall, ToolOutcome> {
        let entry = self.entry(name)?;
        entry.admit(name, entry.parameters.accept(arguments))
    }

    fn entry(&self, name: &str) -> Result<Entry, ToolOutcome> {
        let found = self.tools.read(|stock| stock.entries.get(name).cloned());
        let Some(entry) = found.filter(|_| self.selection.shows(name)) else {
            let names = super::listed(&self.names());
            let text = format!("unknown tool {name}; available: {names}");
            return Err(ToolOutcome::failed(Failure::Denied, text));
        };
        if self.tools.read(|stock| stock.blocks(name)) {
            let text = format!("calls of {name} are blocked for all agents: continue without it");
            return Err(ToolOutcome::failed(Failure::Denied, text));
        }
        if self.selection.blocks(name) {
            let text = format!("calls of {name} are blocked for this agent: continue without it");
            return Err(ToolOutcome::failed(Failure::Denied, text));
        }
        Ok(entry)
    }
}

impl RegistryState {
    /// Returns `true` if calls of a tool are denied to all agents.
    fn blocks(&self, name: &str) -> bool {
        matches_any(&self.blocked, name) || matches_any(&self.configured_blocked, name)
    }
}

pub(super) fn is_known(stock: &RegistryState, pattern: &str) -> bool {
    let beginning = pattern.strip_suffix('*').unwrap_or(pattern);
    let is_there = stock.entries.contains_key(pattern)
        || (beginning != pattern && stock.entries.keys().any(|name| tool_matches(pattern, name)));
    // All tools can be none.
    is_there || stock.may_come(beginning) || pattern == "*"
}

impl Entry {
    fn admit(
        &self,
        name: &str,
        fitted: Result<CheckedArguments, ArgumentsError>,
    ) -> Result<AdmittedCall, ToolOutcome> {
        let CheckedArguments { arguments, repairs } = fitted.map_err(|mismatch| {
            ToolOutcome::failed(Failure::Arguments, format!("{name}: {mismatch}"))
        })?;
        Ok(AdmittedCall { tool: Arc::clone(&self.tool), arguments, repairs })
    }
}

impl AdmittedCall {
    /// Runs the call without cancellation.
    #[must_use]
    pub fn run(self, call_id: &str, context: ToolContext) -> BoxFuture<'static, ToolOutcome> {
        self.run_until(call_id, context, CancellationToken::new())
    }

    /// Runs the call until it is done or cancelled.
    #[must_use]
    pub fn run_until(
        self,
        call_id: &str,
        context: ToolContext,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, ToolOutcome> {
        self.continue_until(call_id, context, cancel, Exchange::default())
    }

    /// Runs a call with an exchange until it is done, suspended or cancelled: it may be a call that was suspended.
    #[must_use]
    pub fn continue_until(
        self,
        call_id: &str,
        context: ToolContext,
        cancel: CancellationToken,
        exchange: Exchange,
    ) -> BoxFuture<'static, ToolOutcome> {
        let call_id = call_id.to_owned();
        self.tool.run(Invocation { call_id, arguments: self.arguments, context, cancel, exchange })
    }
}
