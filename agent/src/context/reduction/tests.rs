//! The replacement of covered results and arguments.

use expect_test::{Expect, expect};
use serde_json::json;

use super::{
    Reduction, ReductionRules, arguments_replacement, is_marker, result_replacement, rule_for,
};

fn rules(yaml: &str) -> ReductionRules {
    abide_yaml::from_str(yaml).expect("they are rules")
}

fn check(rule: &str, text: &str, reduced: Expect) {
    let rules = rules(&format!("{{ \"*\": {rule} }}"));
    let found = result_replacement(&rules, "look", "r1~4.2", text);
    if let Some(found) = &found {
        assert!(is_marker(found), "{found}");
    }
    reduced.assert_eq(found.as_deref().unwrap_or("stays"));
}

/// A result with long texts, many items and depth.
fn large() -> String {
    let item =
        json!({"name": "a".repeat(200), "tags": ["x", "y"], "deep": {"deeper": {"deepest": 1}}});
    json!({"total": 9, "items": vec![item; 9]}).to_string()
}

#[test]
fn keep_full_leaves_the_text() {
    check("keep_full", &large(), expect!["stays"]);
}

#[test]
fn keep_structured_keeps_the_structure() {
    check(
        "keep_structured",
        &large(),
        expect![[r#"
        STRUCTURED executionId:'r1~4.2' (2370 characters: get_tool_response returns its output)
        {"items":["{3 members}","{3 members}","{3 members}","… 6 more items"],"total":9}"#]],
    );
    check(
        "keep_structured",
        &"long ".repeat(400),
        expect![[r#"
        STRUCTURED executionId:'r1~4.2' (2000 characters: get_tool_response returns its output)
        long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long l
        […]
        ng long long long long long long long long long long long long long long long long long long long long long long long long long long "#]],
    );
    // An outline that is not shorter than the text does not replace it.
    check("keep_structured", &"x".repeat(250), expect!["stays"]);
}

#[test]
fn summarize_archive_names_the_archived_result() {
    check(
        "summarize_archive",
        &large(),
        expect![
            "SUMMARIZED executionId:'r1~4.2' (2370 characters: get_tool_response returns its output)"
        ],
    );
}

#[test]
fn drop_leaves_a_note() {
    check(
        "drop",
        &large(),
        expect![
            "DROPPED executionId:'r1~4.2' (2370 characters: get_tool_response returns its output)"
        ],
    );
}

#[test]
fn small_texts_and_own_tools_stay() {
    check("drop", &"x".repeat(200), expect!["stays"]);
    let rules = rules("{ \"*\": drop }");
    for tool in ["response", "manage_todo_list", "get_tool_response"] {
        assert_eq!(result_replacement(&rules, tool, "r1~1.1", &large()), None, "{tool}");
    }
}

/// The name of a tool counts first, then the longest prefix.
#[test]
fn the_most_specific_rule_counts() {
    let rules = rules(
        "{ \"*\": drop, \"files_*\": keep_full, \"files_big_*\": drop, files_big_map: keep_structured }",
    );
    let rule = |tool: &str| rule_for(&rules, tool);
    assert_eq!(rule("mail"), Reduction::Drop);
    assert_eq!(rule("files_read"), Reduction::KeepFull);
    assert_eq!(rule("files_big_read"), Reduction::Drop);
    assert_eq!(rule("files_big_map"), Reduction::KeepStructured);
    assert_eq!(rule_for(&ReductionRules::new(), "mail"), Reduction::SummarizeArchive);
}

/// Providers require that arguments are a JSON object.
#[test]
fn arguments_stay_an_object() {
    let arguments = json!({"text": "b".repeat(3_000), "to": "ann"}).to_string();
    let reduced = |rule: &str| {
        arguments_replacement(&rules(&format!("{{ mail: {rule} }}")), "mail", "r1~4.2", &arguments)
    };
    assert_eq!(reduced("keep_full"), None);
    for rule in ["keep_structured", "summarize_archive", "drop"] {
        let found = reduced(rule).expect("it is reduced");
        let found: serde_json::Value = serde_json::from_str(&found).expect("it is JSON");
        let marker = found["archived"].as_str().expect("it is text");
        assert!(is_marker(marker) && marker.ends_with("returns its input)"), "{marker}");
        let outline = found["outline"].as_str().map(|it| it.contains(r#""to":"ann""#));
        assert_eq!(outline, (rule == "keep_structured").then_some(true), "{rule}");
    }
}
