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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use abide_tools::{Function, ToolContext};
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_view_follows_changes_of_the_tools() {
        let definition = AgentDefinition::from_yaml("name: clerk\ntools: [look]").expect("valid");
        let (tools, cached) = (Tools::new(), CachedView::default());
        assert!(cached.get(&tools, &definition).is_none(), "look is not known");
        let look = |_: Value, _: ToolContext| async { Ok::<_, String>("there") };
        let look = Arc::new(Function::new("look", "Looks.", look));
        tools.replace("shop", vec![look]);
        let names = cached.get(&tools, &definition).map(|view| view.names());
        assert_eq!(names, Some(vec!["look".to_owned()]));
        tools.withdraw("shop");
        assert!(cached.get(&tools, &definition).is_none(), "it is gone");
    }
}
