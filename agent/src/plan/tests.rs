//! What may be done to a plan, and what is told of it.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{Plan, Wish};

/// Does one after another; what each tells, or why it is refused.
fn check(wishes: &[Value], expected: Expect) {
    let (mut plan, mut lines) = (Plan::default(), Vec::new());
    for wish in wishes {
        let wish: Wish = serde_json::from_value(wish.clone()).expect("it fits");
        let operation = wish.operation;
        match plan.changed(wish) {
            Ok(after) => {
                lines.extend(after.told(&plan, operation).iter().map(Value::to_string));
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
fn it_is_told_whole_at_each_change_and_each_step_once_when_it_is_done() {
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
            {"data":{"items":[{"id":1,"status":"in-progress","title":"look"},{"id":2,"status":"not-started","title":"pay"}],"todos":["look","pay"],"version":1},"kind":"planning"}
            {"data":{"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"in-progress","title":"pay"}],"todos":["look","pay"],"version":2},"kind":"planning"}
            {"data":{"description":"look","step_number":1,"total_steps":2},"kind":"step_complete"}
            {"data":{"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"in-progress","title":"pay"}],"todos":["look","pay"],"version":2},"kind":"planning"}
            {"data":{"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"completed","title":"pay"}],"todos":["look","pay"],"version":3},"kind":"planning"}
            {"data":{"description":"pay","step_number":2,"total_steps":2},"kind":"step_complete"}
        "#]],
    );
}

#[test]
fn a_done_step_with_other_words_is_done_already_but_not_in_another_plan() {
    check(
        &[
            json!({"operation": "write", "todos": [step(1, "look", "completed")]}),
            json!({"operation": "update", "todos": [{"id": 1, "title": "look closely"}]}),
            json!({"operation": "write", "todos": [step(1, "look closely", "completed")]}),
            json!({"operation": "write", "todos": [step(1, "pay", "completed")]}),
        ],
        expect![[r#"
            {"data":{"items":[{"id":1,"status":"completed","title":"look"}],"todos":["look"],"version":1},"kind":"planning"}
            {"data":{"description":"look","step_number":1,"total_steps":1},"kind":"step_complete"}
            {"data":{"items":[{"id":1,"status":"completed","title":"look closely"}],"todos":["look closely"],"version":2},"kind":"planning"}
            {"data":{"items":[{"id":1,"status":"completed","title":"look closely"}],"todos":["look closely"],"version":3},"kind":"planning"}
            {"data":{"items":[{"id":1,"status":"completed","title":"pay"}],"todos":["pay"],"version":4},"kind":"planning"}
            {"data":{"description":"pay","step_number":1,"total_steps":1},"kind":"step_complete"}
        "#]],
    );
}

#[test]
fn what_is_refused_changes_nothing() {
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
            refused: there is no plan yet: write one
            refused: the ids are 1, 2, 3 … in order, and 2 is not 1
            refused: step 1 has no title
            refused: at most one step is in-progress at a time
            refused: an id comes twice
            refused: the plan is at version 0, not 3: read it, and change that
            {"data":{"items":[{"id":1,"status":"blocked","title":"a"}],"todos":["a"],"version":1},"kind":"planning"}
            refused: the plan has no step 7
        "#]],
    );
}

/// The original went by the text alone: a step whose text was changed was told twice, and of two of one text only
/// one was.
#[test]
fn steps_of_one_text_are_two() {
    check(
        &[
            json!({"operation": "write", "todos": [
                step(1, "look", "completed"), step(2, "look", "not-started")]}),
            json!({"operation": "update", "todos": [{"id": 2, "status": "completed"}]}),
        ],
        expect![[r#"
            {"data":{"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"not-started","title":"look"}],"todos":["look","look"],"version":1},"kind":"planning"}
            {"data":{"description":"look","step_number":1,"total_steps":2},"kind":"step_complete"}
            {"data":{"items":[{"id":1,"status":"completed","title":"look"},{"id":2,"status":"completed","title":"look"}],"todos":["look","look"],"version":2},"kind":"planning"}
            {"data":{"description":"look","step_number":2,"total_steps":2},"kind":"step_complete"}
        "#]],
    );
}
