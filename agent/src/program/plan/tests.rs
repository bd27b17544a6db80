//! Plans of command-line programs, in their own formats.

use abide_client::arguments::NewRunEvent;
use abide_client::rows::RunEventKind;
use serde_json::json;

use super::ProgramPlan;

/// The kinds of the events, with their relevant fields.
fn output(events: Vec<NewRunEvent>) -> Vec<String> {
    let output = events.into_iter().map(|NewRunEvent { kind, data }| match kind {
        RunEventKind::Planning => format!("{} v{}", data["todos"], data["version"]),
        _ => format!("done {} of {}", data["step_number"], data["total_steps"]),
    });
    output.collect()
}

#[test]
fn claude_code_reports_todos_with_a_tool() {
    let mut noted = ProgramPlan::default();
    let todos = |first: &str, second: &str| {
        json!({"todos": [{"content": "look", "status": first, "activeForm": "Looking"},
            {"content": "pay", "status": second, "activeForm": "Paying"}]})
    };
    let first = noted.read_call("TodoWrite", &todos("in_progress", "pending"));
    assert_eq!(output(first), [r#"["look","pay"] v1"#]);
    let second = noted.read_call("TodoWrite", &todos("completed", "in_progress"));
    assert_eq!(output(second), [r#"["look","pay"] v2"#, "done 1 of 2"]);
    let again = noted.read_call("TodoWrite", &todos("completed", "in_progress"));
    assert!(again.is_empty(), "the plan has not changed");
    assert!(noted.read_call("Bash", &todos("completed", "completed")).is_empty());
}

/// The lines are copied from a recording.
#[test]
fn codex_reports_its_list_as_an_item() {
    let mut noted = ProgramPlan::default();
    let line = |kind: &str, done: bool| {
        json!({"type": kind, "item": {"id": "item_0", "type": "todo_list", "items": [
            {"text": "Inspect repo structure", "completed": done},
            {"text": "Run tests", "completed": false}]}})
    };
    let started = noted.read_status(&line("item.started", false));
    assert_eq!(output(started), [r#"["Inspect repo structure","Run tests"] v1"#]);
    let updated = noted.read_status(&line("item.updated", true));
    assert_eq!(output(updated), [r#"["Inspect repo structure","Run tests"] v2"#, "done 1 of 2"]);
    assert!(noted.read_status(&line("item.completed", true)).is_empty());
    assert!(noted.read_status(&json!({"item": {"type": "reasoning"}})).is_empty());
}
