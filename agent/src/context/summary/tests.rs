//! The structured summary: parsing, the integrity check, the size, and the summary without a model.

use abide_models::TokenEstimate;

use super::*;

fn fact(key: &str, value: &str, confidence: f64) -> Fact {
    Fact { key: key.to_owned(), value: value.to_owned(), confidence }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn an_answer_is_read_with_or_without_a_fence() {
    let json = r#"{"stable_facts":[{"key":"port","value":80,"confidence":7}],"raw_summary":"x"}"#;
    let read = Summary::from_answer(&format!("```json\n{json}\n```")).expect("it is a summary");
    assert_eq!(read.stable_facts, [fact("port", "80", 1.0)]);
    assert_eq!(read.raw_summary, "x");
    let prose = format!("Of {{all}} of it:\n{{}}\n{json} is the summary, with [1] and {{}}.");
    assert_eq!(Summary::from_answer(&prose), Some(read));
    for wrong in ["", "I cannot.", "{}", "{\"stable_facts\": 5}", "}{", "{\"raw_summary\": \" \"}"]
    {
        assert_eq!(Summary::from_answer(wrong), None, "{wrong}");
    }
}

#[test]
fn the_integrity_check_restores_lost_critical_facts() {
    let before = Summary {
        stable_facts: vec![
            fact("path", "/etc", 0.9),
            fact("guess", "maybe", 0.5),
            fact("old", "1", 0.9),
            fact("other", "the old value", 0.9),
        ],
        ..Summary::default()
    };
    let mut after = Summary {
        discarded_obsolete: texts(&["OLD", "the old value"]),
        raw_summary: "x".to_owned(),
        ..Summary::default()
    };
    let repairs = after.repair(&before);
    assert_eq!(repairs.lost, ["path"]);
    assert_eq!(after.stable_facts, [fact("path", "/etc", 0.9)]);
}

#[test]
fn the_integrity_check_removes_revived_obsolete_items() {
    let before =
        Summary { discarded_obsolete: texts(&["use port 80", "old_path"]), ..Summary::default() };
    let mut after = Summary {
        stable_facts: vec![fact("old_path", "/tmp", 1.0), fact("path", "/srv", 1.0)],
        active_goals: texts(&["Use port 80", "deploy"]),
        ..Summary::default()
    };
    let repairs = after.repair(&before);
    assert_eq!(repairs.revived, ["old_path", "Use port 80"]);
    assert_eq!(after.stable_facts, [fact("path", "/srv", 1.0)]);
    assert_eq!(after.active_goals, ["deploy"]);
    assert_eq!(after.discarded_obsolete, ["use port 80", "old_path"], "they stay obsolete");
}

#[test]
fn a_summary_is_shortened_to_its_limit() {
    let estimate = TokenEstimate::for_model("m");
    for facts in [0, 3, 200] {
        let mut summary = Summary {
            stable_facts: (0..facts)
                .map(|n| fact(&format!("k{n}"), "é".repeat(600).as_str(), 0.9))
                .collect(),
            active_goals: texts(&["deploy"]),
            discarded_obsolete: (0..50).map(|n| format!("obsolete {n}")).collect(),
            raw_summary: "It went on and on. ".repeat(5_000),
            ..Summary::default()
        };
        summary.shorten(1_000, estimate);
        assert!(estimate.text(&summary.text()) <= 1_000);
        assert_eq!(summary.active_goals, ["deploy"]);
    }
}

/// Without a usable answer of the model, what is known stays, and the part is shortened.
#[test]
fn a_fallback_summary_keeps_what_is_known() {
    let before = Summary {
        stable_facts: vec![fact("path", "/etc", 0.9)],
        raw_summary: "It began.".to_owned(),
        ..Summary::default()
    };
    let part = ["user: Hello\n\nthere".to_owned(), format!("result: {}", "x".repeat(500))];
    let after = Summary::fallback(&before, &part);
    assert_eq!(after.stable_facts, before.stable_facts);
    let lines: Vec<&str> = after.raw_summary.lines().collect();
    assert_eq!(lines[..2], ["It began.", "user: Hello there"]);
    assert_eq!(lines[2].chars().count(), 161);
}
