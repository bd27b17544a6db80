//! The tools of the active agent. Each step needs them several times, and they seldom change.

use std::sync::{Mutex, PoisonError};

use abide_definitions::agent::AgentDefinition;
use abide_tools::{ToolView, Tools};

/// The view of one agent's tools, kept until the tools of the process change.
#[derive(Default)]
pub(crate) struct CachedView(Mutex<Option<Versioned>>);

/// The view, if all tools of the agent are known, and the number of changes after which it was made.
type Versioned = (u64, Option<ToolView>);

impl CachedView {
    /// The tools of this agent; `None` if one of them is not known. The agent is the same in each call.
    pub(crate) fn get(&self, tools: &Tools, definition: &AgentDefinition) -> Option<ToolView> {
        // Before the tools are read: a change between the two makes a new view the next time.
        let revision = *tools.revision().borrow();
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, view)) = &*cached
            && *of == revision
        {
            return view.clone();
        }
        let view = tools.view(definition.selection()).ok();
        *cached = Some((revision, view.clone()));
        view
    }
}
