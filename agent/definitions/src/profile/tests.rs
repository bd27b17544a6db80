//! The resolution of definitions with a profile.

use std::path::Path;

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::agent::AgentDefinition;
use crate::profile_settings::{LimitSettings, Preset};
use crate::prompt_source::PromptStores;

/// The resolved settings of a definition, or the error.
fn check(definition: &str, settings: Expect) {
    let resolved = AgentDefinition::from_yaml(&format!("name: clerk\n{definition}"))
        .and_then(|it| it.resolved(Path::new("none"), &PromptStores::default()));
    settings.assert_eq(&match resolved {
        Ok(resolved) => lines(&json!(resolved.settings())),
        Err(error) => error.to_string(),
    });
}

/// One line for each part.
fn lines(settings: &Value) -> String {
    let parts = settings.as_object().expect("it is an object").iter();
    let lines: Vec<String> = parts.map(|(part, value)| format!("{part} {value}")).collect();
    lines.join("\n") + "\n"
}

#[test]
fn fast_has_its_settings() {
    check(
        "profile: fast",
        expect![[r#"
            context {"chunk_tokens":6000,"compact_above_tokens":24000,"compact_to_tokens":12000,"compaction":true,"last_answers":8,"policy":"hybrid","reduce_arguments":{},"reduce_results":{"*":"keep_structured"},"summary_token_limit":1500,"tool_responses":8,"window_tokens":32000}
            limits {"parallel_tools":3,"tool_calls":8}
            memory {"budget_tokens":500,"enabled":true,"namespace":"","read":"recent_only","scope":"scope","write":"auto_important"}
            plan {"replan":"never","replan_steps":10}
            planning false
            profile "fast"
            watchdog {"auto_compaction":true,"context_rot":0.65,"enabled":true,"over_tooling":0.7,"repeats":3,"stop_after":0,"stop_after_repeats":6,"token_drift":3200,"warn_after":6}
        "#]],
    );
}

#[test]
fn balanced_has_its_settings() {
    check(
        "profile: balanced",
        expect![[r#"
            context {"chunk_tokens":12000,"compact_above_tokens":72000,"compact_to_tokens":32000,"compaction":true,"last_answers":16,"policy":"hybrid","reduce_arguments":{},"reduce_results":{},"summary_token_limit":3000,"tool_responses":8,"window_tokens":96000}
            limits {"parallel_tools":5,"tool_calls":20}
            memory {"budget_tokens":1500,"enabled":true,"namespace":"","read":"hybrid","scope":"scope","write":"auto_important"}
            plan {"replan":"on_failure","replan_steps":10}
            planning false
            profile "balanced"
            watchdog {"auto_compaction":true,"context_rot":0.55,"enabled":true,"over_tooling":0.6,"repeats":3,"stop_after":0,"stop_after_repeats":6,"token_drift":7600,"warn_after":8}
        "#]],
    );
}

#[test]
fn deep_has_its_settings() {
    check(
        "profile: deep",
        expect![[r#"
            context {"chunk_tokens":16000,"compact_above_tokens":150000,"compact_to_tokens":60000,"compaction":true,"last_answers":30,"policy":"hybrid","reduce_arguments":{},"reduce_results":{},"summary_token_limit":4000,"tool_responses":8,"window_tokens":200000}
            limits {"parallel_tools":8,"tool_calls":40}
            memory {"budget_tokens":3000,"enabled":true,"namespace":"","read":"hybrid","scope":"scope","write":"auto_important"}
            plan {"replan":"on_failure","replan_steps":10}
            planning true
            profile "deep"
            watchdog {"auto_compaction":true,"context_rot":0.5,"enabled":true,"over_tooling":0.55,"repeats":3,"stop_after":0,"stop_after_repeats":6,"token_drift":11000,"warn_after":12}
        "#]],
    );
}

#[test]
fn research_has_its_settings() {
    check(
        "profile: research",
        expect![[r#"
            context {"chunk_tokens":24000,"compact_above_tokens":300000,"compact_to_tokens":105000,"compaction":true,"last_answers":60,"policy":"hybrid","reduce_arguments":{},"reduce_results":{},"summary_token_limit":6000,"tool_responses":8,"window_tokens":400000}
            limits {"parallel_tools":10,"tool_calls":80}
            memory {"budget_tokens":6000,"enabled":true,"namespace":"","read":"hybrid","scope":"scope","write":"auto_important"}
            plan {"replan":"on_failure","replan_steps":10}
            planning true
            profile "research"
            watchdog {"auto_compaction":true,"context_rot":0.45,"enabled":true,"over_tooling":0.5,"repeats":3,"stop_after":0,"stop_after_repeats":6,"token_drift":18600,"warn_after":16}
        "#]],
    );
}

#[test]
fn an_agent_without_a_profile_has_no_profile_settings() {
    check(
        "",
        expect![[r#"
            context {"chunk_tokens":12000,"compact_above_tokens":72000,"compact_to_tokens":32000,"compaction":true,"last_answers":16,"policy":"hybrid","reduce_arguments":{},"reduce_results":{},"summary_token_limit":3000,"tool_responses":8,"window_tokens":1000000}
            limits {"parallel_tools":5,"tool_calls":50}
            memory {"budget_tokens":1500,"enabled":false,"namespace":"","read":"hybrid","scope":"scope","write":"auto_important"}
            plan {"replan":"on_failure","replan_steps":10}
            planning false
            profile "none"
            watchdog {"auto_compaction":true,"context_rot":0.55,"enabled":false,"over_tooling":0.6,"repeats":3,"stop_after":0,"stop_after_repeats":6,"token_drift":7600,"warn_after":8}
        "#]],
    );
}

/// The preset, then the custom profile, then the fields of the definition.
#[test]
fn a_custom_profile_changes_a_preset() {
    let definition = "profile:\n  base: deep\n  context: { compact_above_tokens: 100000 }\n  \
                      watchdog: { enabled: false }\nlimits: { tool_calls: 7 }\nplanning: false\n";
    check(
        definition,
        expect![[r#"
            context {"chunk_tokens":16000,"compact_above_tokens":100000,"compact_to_tokens":60000,"compaction":true,"last_answers":30,"policy":"hybrid","reduce_arguments":{},"reduce_results":{},"summary_token_limit":4000,"tool_responses":8,"window_tokens":200000}
            limits {"parallel_tools":8,"tool_calls":7}
            memory {"budget_tokens":3000,"enabled":true,"namespace":"","read":"hybrid","scope":"scope","write":"auto_important"}
            plan {"replan":"on_failure","replan_steps":10}
            planning false
            profile "custom (deep)"
            watchdog {"auto_compaction":true,"context_rot":0.5,"enabled":false,"over_tooling":0.55,"repeats":3,"stop_after":0,"stop_after_repeats":6,"token_drift":11000,"warn_after":12}
        "#]],
    );
}

#[test]
fn custom_without_a_base_is_balanced() {
    check(
        "profile: custom",
        expect![[r#"
            context {"chunk_tokens":12000,"compact_above_tokens":72000,"compact_to_tokens":32000,"compaction":true,"last_answers":16,"policy":"hybrid","reduce_arguments":{},"reduce_results":{},"summary_token_limit":3000,"tool_responses":8,"window_tokens":96000}
            limits {"parallel_tools":5,"tool_calls":20}
            memory {"budget_tokens":1500,"enabled":true,"namespace":"","read":"hybrid","scope":"scope","write":"auto_important"}
            plan {"replan":"on_failure","replan_steps":10}
            planning false
            profile "custom (balanced)"
            watchdog {"auto_compaction":true,"context_rot":0.55,"enabled":true,"over_tooling":0.6,"repeats":3,"stop_after":0,"stop_after_repeats":6,"token_drift":7600,"warn_after":8}
        "#]],
    );
}

#[test]
fn a_misspelled_profile_is_refused() {
    check(
        "profile: depe",
        expect!["unknown value `depe`, expected one of fast, balanced, deep, research, custom"],
    );
    check(
        "profile: { base: depe }",
        expect!["unknown value `depe`, expected one of fast, balanced, deep, research"],
    );
    check(
        "profile: { context: { max_tokens: 5 } }",
        expect![
            "unknown field `max_tokens`, expected one of compaction, window_tokens, compact_above_tokens, compact_to_tokens, summary_token_limit, chunk_tokens, last_answers, tool_responses, policy, reduce_results, reduce_arguments"
        ],
    );
}

/// In the original, a limit alone silently moves the trigger. Here the numbers must fit each other.
#[test]
fn numbers_that_contradict_each_other_are_refused() {
    check(
        "profile: { base: fast, context: { compact_above_tokens: 50000 } }",
        expect!["profile.context.compact_above_tokens 50000 exceeds window_tokens 32000"],
    );
    check(
        "profile: { base: fast, context: { compact_above_tokens: 9000 } }",
        expect!["profile.context.compact_to_tokens 12000 is not below compact_above_tokens 9000"],
    );
    check(
        "profile: { context: { summary_token_limit: 20000 } }",
        expect![
            "profile.context.summary_token_limit 20000 exceeds half of compact_to_tokens 32000"
        ],
    );
    check(
        "profile: { context: { summary_token_limit: 1 } }",
        expect!["profile.context.summary_token_limit is 1; it must be at least 100"],
    );
    check(
        "profile: { context: { chunk_tokens: 0 } }",
        expect!["profile.context.chunk_tokens is 0; it must be from 100 to window_tokens 96000"],
    );
    check(
        "profile: { context: { last_answers: 0 } }",
        expect!["profile.context.last_answers is 0: the last answer always stays"],
    );
    check(
        "profile: { watchdog: { context_rot: 0 } }",
        expect!["profile.watchdog.context_rot is 0; it must be above 0"],
    );
}

/// A definition cannot bring its own numbers: they are computed from the profile.
#[test]
fn given_settings_are_replaced() {
    let fast = AgentDefinition::from_yaml("name: clerk\nprofile: fast\n").expect("it is valid");
    let fast = fast.resolved(Path::new("none"), &PromptStores::default()).expect("it is valid");
    let deep = serde_json::to_value(AgentDefinition {
        profile: Some(super::Profile::Preset(Preset::Deep)),
        ..fast
    });
    let deep = AgentDefinition::from_json(&deep.expect("it is JSON")).expect("it is valid");
    let deep = deep.resolved(Path::new("none"), &PromptStores::default()).expect("it is valid");
    assert_eq!(deep.settings().profile, "deep");
}

/// Which facts of a summary are saved: by hand, the important ones, or all.
#[test]
fn memory_write_is_one_of_its_values() {
    for (write, expected) in [
        ("manual", [false, false, false]),
        ("auto_important", [false, true, true]),
        ("always", [true, true, true]),
    ] {
        let text = format!("name: clerk\nprofile: {{ memory: {{ write: {write} }} }}\n");
        let definition = AgentDefinition::from_yaml(&text).expect("it is valid");
        let rule = definition.settings().memory.write;
        assert_eq!([0.69, 0.7, 1.0].map(|confidence| rule.takes(confidence)), expected, "{write}");
    }
}

#[test]
fn the_scope_of_a_memory_is_a_rule_or_a_list_of_keys() {
    for (scope, expected) in [
        ("session", json!("session")),
        ("scope", json!("scope")),
        ("[tenant, user]", json!(["tenant", "user"])),
    ] {
        let text = format!("name: clerk\nprofile: {{ memory: {{ scope: {scope} }} }}\n");
        let definition = AgentDefinition::from_yaml(&text).expect("it is valid");
        assert_eq!(json!(definition.settings().memory.scope), expected);
    }
    check(
        "profile: { memory: { scope: planet } }",
        expect!["expected session, scope or a list of keys of the scope"],
    );
    check(
        "profile: { memory: { scope: [] } }",
        expect!["profile.memory.scope is an empty list: name keys of the scope"],
    );
    check(
        "profile: { memory: { namespace: \"a@b\" } }",
        expect![[r#"profile.memory.namespace "a@b": letters, digits, . _ - and /, at most 100"#]],
    );
    check(
        "profile: { watchdog: { repeats: 1 } }",
        expect!["profile.watchdog.repeats is 1; it must be at least 2"],
    );
    check(
        "profile: { watchdog: { repeats: 9 } }",
        expect![
            "profile.watchdog.stop_after_repeats 6 is not above repeats 9: the model is warned first"
        ],
    );
}

#[test]
fn the_recursion_limit_follows_the_tool_calls() {
    let of = |tool_calls| LimitSettings { tool_calls, parallel_tools: 1 }.recursion_limit();
    assert_eq!([0, 8, 10, 11, 80].map(of), [40, 40, 40, 43, 250]);
}
