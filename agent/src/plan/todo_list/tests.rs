//! Changes of a plan, and the events that they publish.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{Plan, PlanArguments};

/// Executes calls in order. Shows the events or the refusal of each.
fn check(wishes: &[Value], expected: Expect) {
    let mut plan = Plan::default();
    let mut lines = Vec::new();
    for wish in wishes {
        let wish: PlanArguments =
            serde_json::from_value(wish.clone()).expect("the arguments are valid");
        let operation = wish.operation;
        match plan.changed(wish) {
            Ok(after) => {
                lines.extend(
                    after.new_events(&plan, operation).iter().map(|event| json!(event).to_string()),
                );
                plan = after;
            }
            Err(why) => lines.push(format!("refused: {why}")),
        }
    }
    expected.assert_eq(&(lines.join("\n") + "\n"));
}

fn step(id: i64, title: &str, status: &str) -> Value {
    json!({"id": id, "title": title, "status": status})
}

#[test]
fn each_change_publishes_the_plan_and_each_completed_step_once() {
    check(
        &[
            json!({"operation": "write", "todos": [
                step(1, "look", "in-progress"), step(2, "pay", "not-started")]}),
            json!({"operation": "update", "todos": [
                {"id": 1, "status": "completed"}, {"id": 2, "status": "in-progress"}]}),
            json!({"operation": "read"}),
            json!({"operation": "update", "todos": [{"id": 2, "status": "completed"}]}),
        ],
        expect![[r#"
            {"data":{"adherence":0.0,"items":[{"id":1,"status":"in-progress","title":"look"},{"id":2,"status":"not-started","title":"pay"}],"operation":"write","todos":["look","pay"],"version":1},"kind":"planning"}
            {"data":{"adherence":0.5,"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"in-progress","title":"pay"}],"operation":"update","todos":["look","pay"],"version":2},"kind":"planning"}
            {"data":{"description":"look","step_number":1,"total_steps":2},"kind":"step_complete"}
            {"data":{"adherence":0.5,"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"in-progress","title":"pay"}],"operation":"read","todos":["look","pay"],"version":2},"kind":"planning"}
            {"data":{"adherence":1.0,"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"completed","title":"pay"}],"operation":"update","todos":["look","pay"],"version":3},"kind":"planning"}
            {"data":{"description":"pay","step_number":2,"total_steps":2},"kind":"step_complete"}
        "#]],
    );
}

#[test]
fn a_renamed_step_stays_completed_in_an_update_but_not_in_a_new_plan() {
    check(
        &[
            json!({"operation": "write", "todos": [step(1, "look", "completed")]}),
            json!({"operation": "update", "todos": [{"id": 1, "title": "look closely"}]}),
            json!({"operation": "write", "todos": [step(1, "look closely", "completed")]}),
            json!({"operation": "write", "todos": [step(1, "pay", "completed")]}),
        ],
        expect![[r#"
            {"data":{"adherence":1.0,"items":[{"id":1,"status":"completed","title":"look"}],"operation":"write","todos":["look"],"version":1},"kind":"planning"}
            {"data":{"description":"look","step_number":1,"total_steps":1},"kind":"step_complete"}
            {"data":{"adherence":1.0,"items":[{"id":1,"status":"completed","title":"look closely"}],"operation":"update","todos":["look closely"],"version":2},"kind":"planning"}
            {"data":{"adherence":1.0,"items":[{"id":1,"status":"completed","title":"look closely"}],"operation":"write","todos":["look closely"],"version":3},"kind":"planning"}
            {"data":{"adherence":1.0,"items":[{"id":1,"status":"completed","title":"pay"}],"operation":"write","todos":["pay"],"version":4},"kind":"planning"}
            {"data":{"description":"pay","step_number":1,"total_steps":1},"kind":"step_complete"}
        "#]],
    );
}

#[test]
fn refused_calls_change_nothing() {
    check(
        &[
            json!({"operation": "update", "todos": [{"id": 1, "status": "completed"}]}),
            json!({"operation": "write", "todos": [step(2, "look", "not-started")]}),
            json!({"operation": "write", "todos": [{"id": 1}]}),
            json!({"operation": "write", "todos": [
                step(1, "look", "in-progress"), step(2, "pay", "in-progress")]}),
            json!({"operation": "write", "todos": [
                step(1, "a", "blocked"), step(1, "b", "blocked")]}),
            json!({"operation": "write", "expected_version": 3,
                "todos": [step(1, "a", "blocked")]}),
            json!({"operation": "write", "expected_version": 0,
                "todos": [step(1, "a", "blocked")]}),
            json!({"operation": "update", "todos": [{"id": 7, "status": "completed"}]}),
        ],
        expect![[r#"
            refused: there is no plan yet: write one first
            refused: the ids must be 1, 2, 3 … in order, but 2 is not 1
            refused: step 1 has no title
            refused: only one step can be in-progress
            refused: two steps have the id 1
            refused: the plan is at version 0, not 3: read it and repeat the change
            {"data":{"adherence":0.0,"items":[{"id":1,"status":"blocked","title":"a"}],"operation":"write","todos":["a"],"version":1},"kind":"planning"}
            refused: the plan has no step 7
        "#]],
    );
}

/// Regression: steps were compared by text alone. A renamed step was published twice, and only one of two steps
/// with equal text was published.
#[test]
fn steps_with_equal_text_are_distinct() {
    check(
        &[
            json!({"operation": "write", "todos": [
                step(1, "look", "completed"), step(2, "look", "in-progress")]}),
            json!({"operation": "update", "todos": [{"id": 2, "status": "completed"}]}),
        ],
        expect![[r#"
            {"data":{"adherence":0.5,"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"in-progress","title":"look"}],"operation":"write","todos":["look","look"],"version":1},"kind":"planning"}
            {"data":{"description":"look","step_number":1,"total_steps":2},"kind":"step_complete"}
            {"data":{"adherence":1.0,"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"completed","title":"look"}],"operation":"update","todos":["look","look"],"version":2},"kind":"planning"}
            {"data":{"description":"look","step_number":2,"total_steps":2},"kind":"step_complete"}
        "#]],
    );
}

#[test]
fn an_empty_plan_has_adherence_1() {
    check(
        &[json!({"operation": "write", "todos": []})],
        expect![[r#"
            {"data":{"adherence":1.0,"items":[],"operation":"write","todos":[],"version":1},"kind":"planning"}
        "#]],
    );
}
