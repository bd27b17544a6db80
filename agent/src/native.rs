//! The agents that come with the runtime.

use std::collections::BTreeMap;

use abide_tools::{Effect, ToolDeclaration};

use crate::definition::{AgentDefinition, Permission, PromptSource};

/// `default`, `readonly` and `hitl_test`, with the tools that there are. `readonly` has those that declare that
/// they change nothing: a name promises nothing, and who declares nothing may do anything.
pub(crate) fn definitions(tools: &[ToolDeclaration]) -> Vec<AgentDefinition> {
    let all = || vec!["*".to_owned()];
    let native = |name: &str, description: &str, prompt: &str| AgentDefinition {
        name: name.to_owned(),
        description: Some(description.to_owned()),
        system_prompt: Some(PromptSource::Inline(prompt.to_owned())),
        native: true,
        ..AgentDefinition::default()
    };
    let mut full = native(
        "default",
        "Does what it is asked, with every tool that there is.",
        "You are a careful assistant. Use the tools that you have; say what you did.",
    );
    let mut readonly = native(
        "readonly",
        "Looks and tells; it has no tool that writes or executes.",
        "You look things up and explain them. You change nothing.",
    );
    let mut asks = native(
        "hitl_test",
        "Goes straight to protected calls, to try out approvals.",
        "Call the tool that fits the request at once. Each call waits for somebody's approval.",
    );
    if !tools.is_empty() {
        full.tools = all();
        let reads = tools.iter().filter(|tool| tool.effect == Effect::ReadOnly);
        readonly.tools = reads.map(|tool| tool.name.clone()).collect();
        asks.tools = all();
    }
    let approved = tools.iter().map(|tool| (tool.name.clone(), Permission(true)));
    asks.interrupt_on = approved.collect::<BTreeMap<_, _>>();
    vec![full, readonly, asks]
}
