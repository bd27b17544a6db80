//! Parsing of definitions, and refusals.

use std::path::Path;
use std::sync::Arc;

use expect_test::{Expect, expect};
use serde_json::json;

use super::{AgentDefinition, AgentMode, DefinitionError};
use crate::prompt_source::{PromptSource, PromptStore, PromptStores};

/// Every field.
const WHOLE: &str = r#"
name: security-auditor
mode: subagent
description: Audits code for vulnerabilities
system_prompt: |
  You are a security expert.
tools: [run_semgrep, "check_*"]
blocked_tools: [run_semgrep]
excluded_tools: [check_secret]
skills: [audit]
memory: [AGENTS.md]
subagents: [helper, { name: inner, tools: [look] }]
interrupt_on: { run_semgrep: true }
middleware: [{ name: guardrail, at: request, deny: "password", message: No. }]
config:
  provider: openai
  model: gpt-4o
  temperature: 0.1
  max_tokens: 100
  recursion_limit: 7
  tool_token_limit_before_evict: 2000
  fallbacks: [{ provider: anthropic, model: claude }]
hidden: true
a2a_exposed: true
response_format: { type: object }
limits: { tool_calls: 4, parallel_tools: 2, wall_clock_seconds: 60, tokens: 1000, cost_usd: 0.5 }
"#;

fn check_refused(yaml: &str, expected: Expect) {
    let read = AgentDefinition::from_yaml(yaml);
    let error = read
        .and_then(|it| it.resolved(Path::new("nowhere"), &PromptStores::default()))
        .expect_err("the definition is refused");
    expected.assert_eq(&format!("{}: {error}", error.code()));
}

#[test]
fn every_field_round_trips() {
    let read = AgentDefinition::from_yaml(WHOLE).expect("the definition is valid");
    assert_eq!((read.mode, read.config.recursion_limit), (AgentMode::Subagent, Some(7)));
    assert_eq!(read.subagents[1].name(), "inner");
    let registered = read.to_register();
    let again: AgentDefinition = serde_json::from_value(json!(registered.definition))
        .expect("the registered definition is valid");
    assert_eq!(again, read, "a revision has all fields of the file");
    assert!(registered.hidden == Some(true) && registered.mode == Some(AgentMode::Subagent));
}

#[test]
fn markdown_takes_its_name_from_the_file_and_its_prompt_from_the_body() {
    let text = "---\nmode: all\ntools: [web_search]\n---\n\nYou are a research assistant.\n\
         ---\nStill you.\n";
    let read = AgentDefinition::from_markdown("researcher", text).expect("the definition is valid");
    assert_eq!((read.name.as_str(), read.mode), ("researcher", AgentMode::All));
    let prompt = "You are a research assistant.\n---\nStill you.".to_owned();
    assert_eq!(read.system_prompt, Some(PromptSource::Inline(prompt)));
    let plain = AgentDefinition::from_markdown("plain", "Be kind.").expect("it is valid");
    assert_eq!(plain.system_prompt, Some(PromptSource::Inline("Be kind.".to_owned())));
    let open = AgentDefinition::from_markdown("x", "---\nmode: all\n")
        .expect_err("the front matter is open");
    assert_eq!(open.code(), "malformed_definition");
    let twice = AgentDefinition::from_markdown("x", "---\nsystem_prompt: a\n---\nb");
    assert_eq!(twice.expect_err("two prompts").code(), "contradiction");
}

#[test]
fn invalid_definitions_are_refused() {
    for named in ["name: a b", "name: a/b", "name: {}"] {
        let read = AgentDefinition::from_yaml(named);
        let error = read.and_then(|it| it.resolved(Path::new("nowhere"), &PromptStores::default()));
        let code = error.expect_err(named).code();
        assert!(["bad_agent_name", "malformed_definition"].contains(&code), "{named}: {code}");
    }
    check_refused(
        "name: \"\"",
        expect![[
            r#"bad_agent_name: invalid agent name "": letters, digits, . _ and -, at most 100"#
        ]],
    );
    check_refused(
        "name: a\nsystem_prompt: { file: ../secret }",
        expect![
            "missing_text: prompts/../secret.md cannot be read: the name must not contain a path"
        ],
    );
    check_refused(
        "name: a\nsystem_prompt: { mlflow: greeting@v3 }",
        expect![
            "missing_text: prompt greeting@v3 cannot be read: abide.yaml has no `prompts: { mlflow: { url: … } }`"
        ],
    );
    check_refused(
        "name: a\ncli: { command: [claude] }\ntools: [look]",
        expect![
            "contradiction: an agent with cli uses the program's tools: remove tools and subagents"
        ],
    );
    for unknown in [
        "tool: [x]",
        "mode: sometimes",
        "middleware: [{ name: pii, kind: x }]",
        "config: { modell: x }",
    ] {
        let yaml = format!("name: a\n{unknown}\n");
        let error = AgentDefinition::from_yaml(&yaml).expect_err(unknown);
        assert_eq!(error.code(), "malformed_definition", "{unknown}: {error}");
    }
}

struct Shelf;

impl PromptStore for Shelf {
    fn prompt(&self, name: &str) -> Result<String, String> {
        match name {
            "greeting@v3" => Ok("Hello.".to_owned()),
            _ => Err("unknown prompt".to_owned()),
        }
    }
}

#[test]
fn texts_are_read_at_registration() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in [
        ("prompts/deploy.md", "Deploy."),
        ("skills/audit.md", "Look twice."),
        ("AGENTS.md", "Be brief."),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("the path has a parent"))
            .expect("the folder can be created");
        std::fs::write(path, text).expect("the file can be written");
    }
    let stores = PromptStores { store: Some(Arc::new(Shelf)), mlflow: None };
    let resolved = |yaml: &str| {
        AgentDefinition::from_yaml(yaml).and_then(|it| it.resolved(folder.path(), &stores))
    };
    let all =
        resolved("name: a\nsystem_prompt: { file: deploy }\nskills: [audit]\nmemory: [AGENTS.md]");
    let expected = "Deploy.\n\nBe brief.\n\n## Skill: audit\n\nLook twice.";
    assert_eq!(all.expect("all texts can be read").instructions.as_deref(), Some(expected));
    let stored = resolved("name: a\nsystem_prompt: { store: greeting@v3 }")
        .expect("the prompt is in the store");
    assert_eq!(stored.instructions.as_deref(), Some("Hello."));
    let missing = resolved("name: a\nskills: [none]").expect_err("the skill does not exist");
    assert!(matches!(missing, DefinitionError::Missing { .. }), "{missing}");
}

/// An agent that is a program has the program's tools: those of the runtime would never be called.
#[test]
fn a_program_has_no_tools_of_the_runtime() {
    for field in ["tools: [look]", "subagents: [helper]"] {
        let text = format!("name: a\ncli: {{ command: [claude] }}\n{field}\n");
        let refused = AgentDefinition::from_yaml(&text)
            .and_then(|it| it.resolved(Path::new(""), &PromptStores::default()))
            .expect_err("it is refused");
        let why = "an agent with cli uses the program's tools: remove tools and subagents";
        assert_eq!(refused.to_string(), why);
    }
}

/// The first slash separates, because names of models contain slashes, too.
#[test]
fn a_model_can_be_named_with_its_provider() {
    let text = "---\nmodel: router/meta/llama\n---\nBe brief.";
    let definition = AgentDefinition::from_markdown("a", text).and_then(AgentDefinition::expanded);
    let config = definition.expect("it is valid").config;
    assert_eq!(config.provider.as_deref(), Some("router"));
    assert_eq!(config.model.as_deref(), Some("meta/llama"));
    for (yaml, why) in [
        ("model: llama", r#"model is "llama": write PROVIDER/MODEL"#),
        ("model: /llama", r#"model is "/llama": write PROVIDER/MODEL"#),
        (
            "model: a/b\nconfig: { model: c }",
            "model and config both name a model: remove one of them",
        ),
    ] {
        let refused = AgentDefinition::from_yaml(yaml).and_then(AgentDefinition::expanded);
        assert_eq!(refused.expect_err("it is refused").to_string(), why);
    }
}

/// A short pattern can need megabytes: a definition with many of them would exhaust the memory of a server.
#[test]
fn a_pattern_that_needs_much_memory_is_refused() {
    let large = r"middleware: [{ name: pii, patterns: { card: '\w{190}N' } }]";
    check_refused(
        &format!("name: x\n{large}"),
        expect![
            "malformed_definition: a pattern needs more than 1048576 bytes; use a shorter repetition"
        ],
    );
}
