//! Places of errors, and the hints that belong to them.

use std::path::Path;

use expect_test::{Expect, expect};

use super::position_of;
use crate::agent::AgentDefinition;
use crate::error::DefinitionError;
use crate::prompt_source::PromptStores;

/// The errors of definitions: place, reason, code and hint.
fn check(definitions: &[&str], expected: Expect) {
    let lines: String = definitions
        .iter()
        .map(|text| {
            let read = AgentDefinition::from_yaml(text).and_then(AgentDefinition::expanded);
            let named = read.map(|it| AgentDefinition { name: "clerk".to_owned(), ..it });
            let resolved =
                named.and_then(|it| it.resolved(Path::new("none"), &PromptStores::default()));
            line(text, &resolved.expect_err(text))
        })
        .collect();
    expected.assert_eq(&lines);
}

fn line(text: &str, error: &DefinitionError) -> String {
    let at = error.place_in(text).map_or("no place".to_owned(), |at| at.to_string());
    let hint = error.suggestion().map(|it| format!("\n  hint: {it}")).unwrap_or_default();
    format!("{at}: {error} [{}]{hint}\n", error.code())
}

#[test]
fn a_place_is_found_by_a_whole_word() {
    let text = "# fly\nmodel: flying  # fly\ntools: [look,\n  fly, é, fl]\n";
    let place = |word| position_of(text, word).map(|at| at.to_string());
    assert_eq!(place("fly").as_deref(), Some("4:3"));
    assert_eq!(place("look").as_deref(), Some("3:9"));
    assert_eq!(place("fl").as_deref(), Some("4:11"), "characters, not bytes");
    assert_eq!(place("noname"), None);
    let model = position_of("tools: [a/small]\nmodel: a/small\n# small\n", "small");
    assert_eq!(model.map(|at| at.to_string()).as_deref(), Some("1:11"), "after a slash");
    let provider = position_of("# scrip\nmodel: scrip/scripted\n", "scrip");
    assert_eq!(provider.map(|at| at.to_string()).as_deref(), Some("2:8"), "before a slash");
    let whole = position_of("model: a/small\nname: small\n", "small");
    assert_eq!(whole.map(|at| at.to_string()).as_deref(), Some("2:7"), "the whole word first");
}

/// The errors of these settings had no place, and those that began with a backtick had no hint either.
#[test]
fn a_setting_has_its_place() {
    check(
        &[
            "description: x\nprofile:\n  context: { chunk_tokens: 3 }\n",
            "profile: { watchdog: { repeats: 1 } }\n",
            "profile: { plan: { replan_steps: 0 } }\n",
            "profile: { context: { summary_token_limit: 1 } }\n",
            // The number is that of the preset.
            "profile: { base: fast, context: { compact_above_tokens: 9000 } }\n",
            "profile: { context: { reduce_results: { \"files_**\": drop } } }\n",
            "description: A model.\nmodel: scripted\n",
            "system_prompt: |\n  limits: none\nlimits: { tool_calls: -1 }\n",
            "{\"config\": {\"max_tokens\": 9, \"recursion_limit\": 0}}",
            "response_format: { type: objct }\n",
            "pause: [{ at: after_agent, tokens: -1 }]\n",
        ],
        expect![[r#"
            3:14: profile.context.chunk_tokens is 3; it must be from 100 to window_tokens 96000 [contradiction]
              hint: a setting that the profile does not change is that of its preset: docs/agent-context.md lists them
            1:24: profile.watchdog.repeats is 1; it must be at least 2 [contradiction]
              hint: a setting that the profile does not change is that of its preset: docs/agent-context.md lists them
            1:20: profile.plan.replan_steps is 0; it must be at least 1 [contradiction]
              hint: a setting that the profile does not change is that of its preset: docs/agent-context.md lists them
            1:23: profile.context.summary_token_limit is 1; it must be at least 100 [contradiction]
              hint: a setting that the profile does not change is that of its preset: docs/agent-context.md lists them
            1:24: profile.context.compact_to_tokens 12000 is not below compact_above_tokens 9000 [contradiction]
              hint: a setting that the profile does not change is that of its preset: docs/agent-context.md lists them
            1:23: profile.context.reduce_results has "files_**", which is neither a tool name nor a prefix such as files_* [contradiction]
              hint: a setting that the profile does not change is that of its preset: docs/agent-context.md lists them
            2:1: model is "scripted": write PROVIDER/MODEL [contradiction]
              hint: name a provider and a model of abide.yaml, such as openai/gpt-4.1
            3:11: limits.tool_calls is -1; it must be at least 0 [contradiction]
              hint: correct the number, or remove the setting
            1:31: config.recursion_limit is 0; it must be at least 1 [contradiction]
              hint: correct the number, or remove the setting
            1:1: response_format is not a supported JSON Schema: type must be the name of a type, not "objct" [contradiction]
              hint: write a JSON Schema, such as `{ type: object, properties: { … } }`
            1:1: pause has a negative number [contradiction]
              hint: docs/agent-runs.md describes the conditions of a pause
        "#]],
    );
}

/// A wrong type had no hint, nor had a misspelled mode. The place of an unknown profile was that of its key.
#[test]
fn a_value_that_cannot_be_parsed_has_its_place_and_a_hint() {
    check(
        &[
            "tools: ls\n",
            "mode: prim\n",
            "interrupt_on: [ls]\n",
            "limits: { tool_calls: many }\n",
            "hidden: yes\n",
            "description: x\ntools: []\n\nprofile: deeep\n",
            "memory: [notes/foo.md]\n",
        ],
        expect![[r#"
            1:8: expected a list [malformed_definition]
              hint: write a list, such as `[NAME]`
            1:7: "prim" is not one of primary, subagent, all [malformed_definition]
              hint: did you mean primary?
            1:15: expected a map of fields [malformed_definition]
              hint: write a map, such as `{ NAME: VALUE }`
            1:23: expected an integer [malformed_definition]
              hint: write a whole number, such as 10
            1:9: expected true or false [malformed_definition]
              hint: write true or false: yes, no, on and off are texts
            4:10: unknown value `deeep`, expected one of fast, balanced, deep, research, custom [malformed_definition]
              hint: did you mean deep?
            1:16: none/notes/foo.md cannot be read: No such file or directory (os error 2) [missing_text]
              hint: create the file in the agent folder, or correct its name
        "#]],
    );
}

/// Class: the place of something is that of a word elsewhere. An error of a script was at the default model, which names
/// the provider of the script, or in a text that has the word.
#[test]
fn a_part_of_a_configuration_has_the_place_of_its_definition() {
    let text = "# script\nmodels:\n  default: { provider: script }\n  providers:\n    - { kind: script, id: script }\n\
        mcp_servers:\n  - description: the shop\n    name: shop\nsandbox: { backend: local }\n";
    let place = |subject: &str| {
        let error = DefinitionError::Config {
            code: "bad_provider_config",
            why: "it cannot be used".to_owned(),
            subject: subject.to_owned(),
        };
        error.place_in(text).map_or("no place".to_owned(), |at| at.to_string())
    };
    assert_eq!(place("script"), "5:27");
    assert_eq!(place("shop"), "8:11");
    assert_eq!(place("sandbox"), "9:1", "a section");
    assert_eq!(place("absent"), "no place");
}

/// Class: an error that is at the map around a wrong name, if the name is in another line.
#[test]
fn an_error_with_a_reason_of_its_own_is_at_the_name() {
    check(
        &[
            "middleware:\n  - at: request\n    name: gardrail\n",
            "middleware:\n  - name: pii\n    kinds: [email]\n    place: request\n",
            "middleware:\n  - name: pii\n    at:\n      - request\n      - answr\n",
            "mode:\n  prim\n",
            "interrupt_on: { ls: perhaps }\n",
            "system_prompt:\n  fil: a.md\n",
            "subagents:\n  - name: a\n    tols: []\n",
            "---\ntools: [ls]\nlimits:\n  tool_calls: many\n",
        ],
        expect![[r#"
            3:11: unknown middleware `gardrail`; available: `guardrail`, `tool_security`, `tool_retry`, `model_fallback`, `pii`, `observability`, `streaming` [malformed_definition]
              hint: did you mean guardrail?
            4:5: unknown setting `place` of the middleware pii, expected one of `at`, `kinds`, `patterns` [malformed_definition]
            5:9: unknown value `answr`, expected one of `request`, `response`, `arguments`, `results` [malformed_definition]
            2:3: "prim" is not one of primary, subagent, all [malformed_definition]
              hint: did you mean primary?
            1:21: expected true or false [malformed_definition]
              hint: write true or false: yes, no, on and off are texts
            2:3: unknown field `fil`, expected one of text, file, store, mlflow, variables [malformed_definition]
              hint: did you mean file?
            3:5: unknown field `tols`, expected one of name, system_prompt, tools, blocked_tools, excluded_tools, skills, memory, subagents, interrupt_on, as_tool, as_handoff, middleware, pause, model, config, mode, description, hidden, allow, a2a_exposed, mcp_exposed, response_format, allow_empty_answers, profile, planning, supervisor, limits, sandbox, loop, cli, a2a [malformed_definition]
              hint: did you mean tools?
            4:15: expected an integer [malformed_definition]
              hint: write a whole number, such as 10
        "#]],
    );
}

/// A cycle had no place.
#[test]
fn a_cycle_has_the_place_of_the_next_agent() {
    let names = |names: &[&str]| {
        DefinitionError::Cycle(names.iter().map(|name| (*name).to_owned()).collect())
    };
    let own = "# clerk\nname: clerk\nsubagents: [other, clerk]\n";
    let inline = "subagents:\n  - name: helper\n    subagents: [clerk]\n";
    let lines = [
        line(own, &names(&["clerk", "clerk"])),
        line(inline, &names(&["clerk", "clerk/helper", "clerk"])),
    ];
    expect![[r#"
        3:20: delegation cycle: clerk → clerk [delegation_cycle]
          hint: remove one of these names from subagents
        2:11: delegation cycle: clerk → clerk/helper → clerk [delegation_cycle]
          hint: remove one of these names from subagents
    "#]]
    .assert_eq(&lines.concat());
}
