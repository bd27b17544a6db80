//! On which occasions a plan is revised.

use abide_definitions::profile_settings::{PlanSettings, Replan};
use serde_json::{Value, json};

use super::{ReplanReason, occasion};
use crate::context::entry::{SessionEntry, test_row};

/// Messages: `a` is an answer, `+tool` a result and `-tool` a failure. The plan was written by event 3.
fn after(replan: Replan, messages: &str) -> Option<ReplanReason> {
    let entries: Vec<SessionEntry> = messages
        .split(' ')
        .zip(1..)
        .map(|(message, seq)| {
            let (role, data): (&str, Value) = match message.split_at(1) {
                ("a", _) => ("assistant", json!({"iteration": seq})),
                (sign, tool) => ("tool", json!({"name": tool, "is_error": sign == "-"})),
            };
            SessionEntry::from(test_row(seq, role, "", Some(&data)))
        })
        .collect();
    occasion(&PlanSettings { replan, replan_steps: 2 }, 3, &entries)
}

#[test]
fn replan_policy_never() {
    assert_eq!(after(Replan::Never, "a -look +manage_todo_list a -look a a a"), None);
}

#[test]
fn replan_policy_on_failure() {
    let policy = Replan::OnFailure;
    assert_eq!(after(policy, "a -look +manage_todo_list a +look"), None);
    assert_eq!(after(policy, "a -look +manage_todo_list a -manage_todo_list"), None);
    let failed = Some(ReplanReason::Failed("look".to_owned()));
    assert_eq!(after(policy, "a -pay +manage_todo_list a -look a +pay"), failed);
}

#[test]
fn replan_policy_on_conflict() {
    let policy = Replan::OnConflict;
    assert_eq!(after(policy, "a -manage_todo_list +manage_todo_list a -look"), None);
    let refused = Some(ReplanReason::Refused);
    assert_eq!(after(policy, "a +look +manage_todo_list a -manage_todo_list"), refused);
}

#[test]
fn replan_policy_every_n_steps() {
    let policy = Replan::EveryNSteps;
    assert_eq!(after(policy, "a a +manage_todo_list a +look"), None);
    assert_eq!(after(policy, "a a +manage_todo_list a +look a"), Some(ReplanReason::Unchanged));
}
