//! The formulas, the thresholds, and which action follows.

use abide_client::rows::AgentState;
use abide_client::{Micros, Seq};
use abide_definitions::profile_settings::Preset;
use serde_json::json;

use super::*;
use crate::context::entry::test_row;

fn balanced() -> WatchdogSettings {
    Preset::Balanced.settings().watchdog
}

/// A row with these measurements.
fn row(iteration: i64, health: NewHealth, action: HealthAction) -> RunHealth {
    health.into_row("r", "s", iteration, action, Micros(0), Seq(1))
}

/// Judges answers one after the other; the actions, and the measurements of the last one.
fn play(
    settings: &WatchdogSettings,
    answers: impl IntoIterator<Item = Observation>,
) -> (Vec<HealthAction>, NewHealth) {
    let mut actions = Vec::new();
    let mut before = None::<RunHealth>;
    let mut compacted = None;
    let mut last = NewHealth::default();
    for (at, answer) in answers.into_iter().enumerate() {
        let iteration = at as i64 + 1;
        let answer = Observation { iteration, ..answer };
        let (health, action) = evaluate(settings, &answer, before.as_ref());
        let mut now = row(iteration, health.clone(), action);
        // There is always enough to compact.
        if wants_compaction(settings, &now, before.as_ref(), compacted) {
            now.action = HealthAction::Compact;
            compacted = Some(iteration);
        }
        let action = now.action;
        before = Some(now);
        actions.push(action);
        last = health;
    }
    (actions, last)
}

fn calm(tokens: i64) -> Observation {
    Observation { tokens, messages: 10, new_messages: 2, tool_messages: 1, ..Default::default() }
}

#[test]
fn token_drift_is_the_growth_since_the_answer_before() {
    use HealthAction::{Compact, None};
    let (actions, last) = play(&balanced(), [calm(90_000), calm(97_599), calm(97_000)]);
    assert_eq!((actions, last.token_drift), (vec![None, None, None], 0));
    let (actions, last) = play(&balanced(), [calm(1_000), calm(8_600)]);
    assert_eq!((actions, last.token_drift), (vec![None, Compact], 7_600));
    assert_eq!(last.signals, ["token_drift"]);
}

#[test]
fn over_tooling_is_the_share_of_tool_messages() {
    let busy = Observation { new_messages: 5, tool_messages: 3, ..calm(10) };
    let (actions, last) = play(&balanced(), [busy]);
    assert_eq!(last.over_tooling, 0.6);
    assert_eq!((actions, last.signals), (vec![HealthAction::Compact], vec!["over_tooling".into()]));
}

#[test]
fn context_rot_counts_summaries_twice() {
    let reductions = Reductions { summaries: 1, archived: 2, markers: 2 };
    let rotten = Observation { reductions, ..calm(10) };
    let (actions, last) = play(&balanced(), [rotten]);
    assert_eq!(last.context_rot, 0.6);
    assert_eq!((actions, last.signals), (vec![HealthAction::Compact], vec!["context_rot".into()]));
    // Without messages it is not divided by zero.
    let empty = Observation { messages: 0, new_messages: 0, tool_messages: 0, ..calm(10) };
    assert_eq!(play(&balanced(), [empty]).1.context_rot, 0.0);
}

/// Regression of the system that these formulas come from: each summary raises the rot, so compaction triggered
/// itself for ever.
#[test]
fn compaction_does_not_trigger_itself() {
    let reductions = Reductions { summaries: 3, archived: 0, markers: 0 };
    let settings = WatchdogSettings { warn_after: 0, ..balanced() };
    let rotten = std::iter::repeat_n(Observation { reductions, ..calm(10) }, 50);
    let (actions, _) = play(&settings, rotten);
    assert_eq!(actions.iter().filter(|it| **it == HealthAction::Compact).count(), 1);
    // Another sign may, but not at once.
    let busy = std::iter::repeat_n(Observation { tool_messages: 2, ..calm(10) }, 11);
    let (actions, _) = play(&settings, busy);
    let at: Vec<usize> = (0..11).filter(|at| actions[*at] == HealthAction::Compact).collect();
    assert_eq!(at, [0, 5, 10]);
}

#[test]
fn without_auto_compaction_signs_are_only_reported() {
    let settings = WatchdogSettings { auto_compaction: false, warn_after: 0, ..balanced() };
    let busy = std::iter::repeat_n(Observation { tool_messages: 2, ..calm(10) }, 9);
    let (actions, last) = play(&settings, busy);
    assert!(actions.iter().all(|action| *action == HealthAction::None));
    assert_eq!((last.signals, last.unhealthy), (vec!["over_tooling".to_owned()], 9));
}

#[test]
fn the_model_is_warned_again_and_again_and_then_stopped() {
    use HealthAction::{None, Stop, Warn};
    let settings =
        WatchdogSettings { auto_compaction: false, warn_after: 2, stop_after: 5, ..balanced() };
    let busy = Observation { tool_messages: 2, ..calm(10) };
    let (actions, _) = play(&settings, std::iter::repeat_n(busy.clone(), 5));
    assert_eq!(actions, [None, Warn, None, Warn, Stop]);
    // One healthy answer starts the count again.
    let (actions, _) = play(&settings, [busy.clone(), calm(10), busy.clone(), busy]);
    assert_eq!(actions, [None, None, None, Warn]);
}

#[test]
fn repeated_calls_are_a_warning_and_then_the_end() {
    use HealthAction::{None, Stop, Warn};
    let repeated = (1..=6).map(|repeats| Observation { repeats, ..calm(10) });
    let (actions, last) = play(&balanced(), repeated);
    assert_eq!(actions, [None, None, Warn, None, None, Stop]);
    assert_eq!(last.signals, ["repeats"]);
}

fn entry(role: &str, kind: &str, content: &str, data: Value) -> SessionEntry {
    let row = test_row(0, role, content, Some(&data));
    SessionEntry::from(AgentState { kind: kind.to_owned(), ..row })
}

fn call(arguments: &str) -> RequestedCall {
    RequestedCall { name: "look".to_owned(), arguments: arguments.to_owned(), ..Default::default() }
}

fn turn(arguments: &str, result: &str) -> [SessionEntry; 2] {
    let data = json!({"run_id": "r", "iteration": 1, "calls": [call(arguments)]});
    [entry("assistant", "message", "", data), entry("tool", "message", result, json!({}))]
}

#[test]
fn repeats_are_the_same_calls_with_the_same_results() {
    let of = |turns: &[[SessionEntry; 2]], arguments: &str| {
        let entries: Vec<SessionEntry> = turns.iter().flatten().cloned().collect();
        repeats("r", &entries, &[call(arguments)])
    };
    assert_eq!(of(&[], r#"{"a":1}"#), 1);
    assert_eq!(repeats("r", &turn("{}", "x"), &[]), 0);
    // The arguments are compared as JSON.
    let same = [turn(r#"{"a":1}"#, "x"), turn(r#"{ "a": 1 }"#, "x")];
    assert_eq!(of(&same, r#"{"a":1}"#), 3);
    assert_eq!(of(&same, r#"{"a":2}"#), 1);
    // A tool that is asked again until its result changes is not repeated work.
    let polled = [turn("{}", "10 %"), turn("{}", "20 %"), turn("{}", "30 %")];
    assert_eq!(of(&polled, "{}"), 2);
    // A warning in between changes nothing; a message of the user does.
    let mut warned = turn("{}", "x").to_vec();
    warned.push(entry("system", WARNING, "stop", json!({})));
    assert_eq!(repeats("r", &warned, &[call("{}")]), 2);
    warned.push(entry("user", "message", "again, please", json!({})));
    assert_eq!(repeats("r", &warned, &[call("{}")]), 1);
    // Another run of the session starts from one.
    assert_eq!(repeats("r2", &turn("{}", "x"), &[call("{}")]), 1);
}
