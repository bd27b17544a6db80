//! The agents that come with the runtime.

use std::collections::BTreeMap;

use abide_definitions::agent::{AgentDefinition, Permission};
use abide_definitions::prompt_source::PromptSource;
use abide_tools::{Effect, ToolDeclaration};

/// The prompt of `default` if it can change files.
const CODES: &str = "\
You are a careful software engineer. You work on the files of a workspace with the tools that you have. Find the \
relevant files with glob and grep, and read a file before you change it. Prefer edit_file with a small exact text. Run \
the tests after a change, if there are any. Change nothing that the task does not need. At the end, say what you \
changed and what you have verified.";

/// The tools that change files. A call of `default` waits for an approval, as in the project of `abide init`.
const CHANGES: [&str; 3] = ["edit_file", "execute", "write_file"];

/// `default`, `readonly` and `hitl_test`, with the available tools. `readonly` has only the tools that declare to
/// be read-only: a name proves nothing, and a tool without a declaration may do anything.
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
        "General assistant with all tools.",
        "You are a careful assistant. Use the tools that you have; say what you did.",
    );
    let mut readonly = native(
        "readonly",
        "Answers questions with read-only tools.",
        "You look things up and explain them. You change nothing.",
    );
    let mut asks = native(
        "hitl_test",
        "Calls tools immediately, each with an approval. For testing approvals.",
        "Call the tool that fits the request at once. Each call waits for approval.",
    );
    if tools.iter().any(|tool| tool.name == "edit_file") {
        full.system_prompt = Some(PromptSource::Inline(CODES.to_owned()));
    }
    if !tools.is_empty() {
        full.tools = all();
        let reads = tools.iter().filter(|tool| tool.effect == Effect::ReadOnly);
        readonly.tools = reads.map(|tool| tool.name.clone()).collect();
        asks.tools = all();
    }
    let approved = || tools.iter().map(|tool| (tool.name.clone(), Permission(true)));
    asks.interrupt_on = approved().collect::<BTreeMap<_, _>>();
    full.interrupt_on = approved().filter(|(name, _)| CHANGES.contains(&&**name)).collect();
    vec![full, readonly, asks]
}
