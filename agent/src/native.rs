//! The agents that come with the runtime.

use std::collections::BTreeMap;

use crate::definition::{AgentDefinition, Permission, PromptSource};

/// Beginnings of names of tools that change something: `readonly` has none of them.
const WRITES: [&str; 8] =
    ["write*", "edit*", "create*", "delete*", "move*", "execute*", "run*", "bash*"];

/// `default`, `readonly` and `hitl_test`, with the tools that there are.
pub(crate) fn definitions(tools: &[String]) -> Vec<AgentDefinition> {
    let all = || vec!["*".to_owned()];
    let native = |name: &str, description: &str, prompt: &str| AgentDefinition {
        name: name.to_owned(),
        description: Some(description.to_owned()),
        system_prompt: Some(PromptSource::Inline(prompt.to_owned())),
        native: true,
        ..AgentDefinition::default()
    };
    let reads =
        |name: &&String| !WRITES.iter().any(|it| name.starts_with(it.trim_end_matches('*')));
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
        readonly.tools = tools.iter().filter(reads).cloned().collect();
        asks.tools = all();
    }
    asks.interrupt_on =
        tools.iter().map(|name| (name.clone(), Permission(true))).collect::<BTreeMap<_, _>>();
    vec![full, readonly, asks]
}
