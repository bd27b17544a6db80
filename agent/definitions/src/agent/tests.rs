//! Parsing of definitions, and refusals.

use std::path::Path;
use std::sync::Arc;

use expect_test::{Expect, expect};
use serde_json::json;

use super::{AgentDefinition, AgentMode, DefinitionError};
use crate::project_config::ProjectConfig;
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

/// Fields of stored revisions were accepted from a file and replaced, so that an agent whose prompt was written as `instructions`
/// ran without one. Optional fields without a value were ignored: `approval:` with its settings forgotten asked nobody.
#[test]
fn what_is_written_is_never_ignored() {
    check_refused(
        "name: a\ninstructions: be kind",
        expect!["malformed_definition: unknown field `instructions`"],
    );
    check_refused(
        "name: a\nsubagents:\n- name: b\n  instructions: x",
        expect!["malformed_definition: unknown field `instructions`"],
    );
    check_refused("name: a\nnative: true", expect!["malformed_definition: unknown field `native`"]);
    let front = AgentDefinition::from_markdown("a", "---\ninstructions: x\n---\nBe kind.");
    assert_eq!(front.expect_err("a stored field").code(), "malformed_definition");
    for blank in
        ["model:", "system_prompt:", "sandbox:", "profile:", "limits: { cost_usd: }", "a2a:"]
    {
        let read = AgentDefinition::from_yaml(&format!("name: a\n{blank}\n"));
        let error = read.expect_err(blank).to_string();
        assert_eq!(error, "the value is missing: write one, or remove the field", "{blank}");
    }
    AgentDefinition::from_yaml("name: a\nmodel: null\nsandbox: ~\n").expect("null is a value");
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
    check_refused(
        "name: a\nallow_empty_answers: true\nresponse_format: { type: object }",
        expect![
            "contradiction: an empty answer never matches response_format: remove allow_empty_answers"
        ],
    );
    for unknown in [
        "tool: [x]",
        "allow_empty_answers: 1",
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

/// `NO` in a list of countries became `false`, `required: [x, y]` was refused because `y` was `true`, and `1_000` was a
/// number.
#[test]
fn only_true_and_false_are_booleans() {
    let text = "
name: a
hidden: true
tools: [yes, on]
limits: { tool_calls: 1_000 }
response_format:
  type: object
  properties: { x: {}, y: {}, n: { enum: [DE, NO, no, off, 1_000, 0x1F] } }
  required: [x, y]
  additionalProperties: False
";
    let read = AgentDefinition::from_yaml(text).expect("it is valid");
    assert_eq!(
        (read.tools, read.limits.tool_calls),
        (vec!["yes".into(), "on".into()], Some(1_000))
    );
    let schema = json!({
        "type": "object",
        "properties": {
            "x": {}, "y": {}, "n": { "enum": ["DE", "NO", "no", "off", "1_000", 31] },
        },
        "required": ["x", "y"],
        "additionalProperties": false,
    });
    assert_eq!(read.response_format, Some(schema));
    let (_, sections) = ProjectConfig::from_yaml("http_tools: []\nmcp: { tools: [y, no] }\n")
        .expect("it is a configuration");
    assert_eq!(json!(sections), json!({"http_tools": [], "mcp": {"tools": ["y", "no"]}}));
    check_refused("name: a\nhidden: yes", expect!["malformed_definition: expected true or false"]);
}

/// Limits that end each run before its first answer passed the check.
#[test]
fn numbers_that_no_run_can_work_with_are_refused() {
    let refused = |field: &str| {
        let error = AgentDefinition::from_yaml(&format!("name: a\n{field}"))
            .and_then(|it| it.resolved(Path::new("nowhere"), &PromptStores::default()))
            .err();
        let shown = error.map_or("valid".to_owned(), |error| format!("{}: {error}", error.code()));
        format!("{field}: {shown}\n")
    };
    let limits = [
        "tool_calls: -1",
        "tool_calls: 0",
        "descendants: -1",
        "descendants: 0",
        "delegation_depth: -1",
        "delegation_depth: 0",
        "delegation_seconds: 0",
        "wall_clock_seconds: -5",
        "wall_clock_seconds: 0",
        "wall_clock_seconds: 1, wall_clock_counts_waits: true",
        "wall_clock_counts_waits: true",
        "tokens: -1",
        "tokens: 0",
        "cost_usd: -0.5",
        "cost_usd: 0",
        "cost_usd: .nan",
        "cost_usd: .inf",
    ];
    let config = ["recursion_limit: 0", "recursion_limit: -3", "max_tokens: 0", "temperature: -1"];
    let of = |section: &str, field: &str| refused(&format!("{section}: {{ {field} }}"));
    let lines = limits.iter().map(|field| of("limits", field));
    let lines: String = lines.chain(config.iter().map(|field| of("config", field))).collect();
    expect![[r#"
        limits: { tool_calls: -1 }: contradiction: limits.tool_calls is -1; it must be at least 0
        limits: { tool_calls: 0 }: valid
        limits: { descendants: -1 }: contradiction: limits.descendants is -1; it must be at least 0
        limits: { descendants: 0 }: valid
        limits: { delegation_depth: -1 }: contradiction: limits.delegation_depth is -1; it must be at least 0
        limits: { delegation_depth: 0 }: valid
        limits: { delegation_seconds: 0 }: contradiction: limits.delegation_seconds is 0; it must be at least 1
        limits: { wall_clock_seconds: -5 }: contradiction: limits.wall_clock_seconds is -5; it must be at least 1
        limits: { wall_clock_seconds: 0 }: contradiction: limits.wall_clock_seconds is 0; it must be at least 1
        limits: { wall_clock_seconds: 1, wall_clock_counts_waits: true }: valid
        limits: { wall_clock_counts_waits: true }: contradiction: limits.wall_clock_counts_waits is true without wall_clock_seconds: set the number, or remove it
        limits: { tokens: -1 }: contradiction: limits.tokens is -1; it must be at least 1
        limits: { tokens: 0 }: contradiction: limits.tokens is 0; it must be at least 1
        limits: { cost_usd: -0.5 }: contradiction: limits.cost_usd is -0.5; it must be finite and above 0
        limits: { cost_usd: 0 }: contradiction: limits.cost_usd is 0; it must be finite and above 0
        limits: { cost_usd: .nan }: contradiction: limits.cost_usd is NaN; it must be finite and above 0
        limits: { cost_usd: .inf }: contradiction: limits.cost_usd is inf; it must be finite and above 0
        config: { recursion_limit: 0 }: contradiction: config.recursion_limit is 0; it must be at least 1
        config: { recursion_limit: -3 }: contradiction: config.recursion_limit is -3; it must be at least 1
        config: { max_tokens: 0 }: contradiction: config.max_tokens is 0; it must be at least 1
        config: { temperature: -1 }: contradiction: config.temperature is -1; it must be finite and at least 0
    "#]].assert_eq(&lines);
}

/// Each prompt had the hint of a prompt in the database.
#[test]
fn a_missing_prompt_has_the_hint_of_its_origin() {
    let stores = PromptStores { store: Some(Arc::new(Shelf)), mlflow: Some(Arc::new(Shelf)) };
    let hint = |origin: &str, stores: &PromptStores| {
        let text = format!("name: a\nsystem_prompt: {{ {origin} }}");
        let error = AgentDefinition::from_yaml(&text)
            .and_then(|it| it.resolved(Path::new("nowhere"), stores))
            .expect_err(&text);
        let hint = error.suggestion().unwrap_or_default();
        format!("{origin}: {error} [{}]\n  hint: {hint}\n", error.code())
    };
    let without = PromptStores::default();
    let lines = [
        hint("store: hello@1", &without),
        hint("store: hello@1", &stores),
        hint("mlflow: hello@1", &without),
        hint("mlflow: hello@1", &stores),
        hint("file: hello", &without),
    ];
    expect![[r#"
        store: hello@1: prompt hello@1 cannot be read: this command has no database [missing_text]
          hint: name the database with --db or --url
        store: hello@1: prompt hello@1 cannot be read: unknown prompt [missing_text]
          hint: store it with `abide prompt put`, or write it into a file in prompts/
        mlflow: hello@1: prompt hello@1 cannot be read: abide.yaml has no `prompts: { mlflow: { url: … } }` [missing_text]
          hint: add the server to abide.yaml: docs/prompts.md describes it
        mlflow: hello@1: prompt hello@1 cannot be read: unknown prompt [missing_text]
          hint: check the prompt on the MLflow server, and prompts.mlflow in abide.yaml
        file: hello: nowhere/prompts/hello.md cannot be read: No such file or directory (os error 2) [missing_text]
          hint: create the file in the agent folder, or correct its name
    "#]].assert_eq(&lines.concat());
}

/// The hint of a missing variable was the page about tools.
#[test]
fn a_missing_variable_has_a_hint() {
    let of_config = |code| {
        let why = "tool shop: the environment variable SHOP_TOKEN is not set".to_owned();
        DefinitionError::Config { code, why, subject: "shop".to_owned() }
    };
    for code in ["bad_tool_config", "bad_provider_config", "bad_trace_config"] {
        let hint = of_config(code).suggestion();
        let expected = "set the environment variable before you start the program";
        assert_eq!(hint.as_deref(), Some(expected), "{code}");
    }
}
