//! One test for each of the eleven kinds of events: the fields and their values. The declaration of the event is quoted above each
//! test.

use abide_client::Abide;
use abide_client::rows::RunEvent;
use serde_json::{Value, json};

use crate::fixture::RuntimeFixture;

/// The data of a run's events of one kind.
async fn events(definition: &str, script: &str, kind: &str) -> Vec<Value> {
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("Go on.").await;
    fixture.output(&run.id, 0).await;
    let rendered = of_kind(&fixture.abide, &run.id, kind).await;
    fixture.close().await;
    rendered
}

async fn of_kind(abide: &Abide, run: &str, kind: &str) -> Vec<Value> {
    let sql = "SELECT * FROM run_events WHERE run_id = :id AND kind = :kind ORDER BY number";
    let rows = abide.sql(sql).param("id", run).param("kind", kind).fetch::<RunEvent>().await;
    rows.expect("it can be read").into_iter().map(|event| event.data.value()).collect()
}

const LOOKS: &str =
    "answers: [{ calls: [{ name: look, arguments: { order: A } }] }, { text: So. }]";

/// `class TokenEvent: content: str`
#[tokio::test]
async fn a_token_event_has_the_content() {
    let rendered = events("", "answers: [{ text: one two }]", "token").await;
    let content: String = rendered.iter().filter_map(|it| it["content"].as_str()).collect();
    assert_eq!(content, "one two");
}

/// `class ToolCallEvent: name: str, args: dict[str, Any], id: str`
#[tokio::test]
async fn a_tool_call_event_has_name_and_arguments() {
    let rendered = events("tools: [look]\n", LOOKS, "tool_call").await;
    assert_eq!(rendered, [json!({"name": "look", "args": {"order": "A"}, "id": "r1~1.1"})]);
}

/// `class ToolResultEvent: tool_call_id: str, output: str, exit_code: int`
#[tokio::test]
async fn a_tool_result_event_has_output_and_exit_code() {
    let rendered = events("tools: [look]\n", LOOKS, "tool_result").await;
    let result = json!({"tool_call_id": "r1~1.1", "output": "look A is done",
        "status": "succeeded", "exit_code": 0});
    assert_eq!(rendered, [result]);
    let rendered = events("tools: [look]\nblocked_tools: [look]\n", LOOKS, "tool_result").await;
    assert_eq!(rendered[0]["exit_code"], 1, "a failure has a non-zero exit code");
}

/// Class: outcomes that cannot be distinguished. A failed, a skipped and a rejected call had only `exit_code: 1`.
#[tokio::test]
async fn a_tool_result_event_has_the_status_of_its_call() {
    let blocked = "tools: [look]\nblocked_tools: [look]\n";
    let skipped = "tools: [look]\nlimits: { tool_calls: 0 }\n";
    for (definition, status) in [(blocked, "failed"), (skipped, "skipped")] {
        let rendered = events(definition, LOOKS, "tool_result").await;
        assert_eq!(rendered[0]["status"], status, "{definition}");
    }
}

const PLANS: &str = "
answers:
  - calls:
      - name: manage_todo_list
        arguments: { operation: write, todos: [{ id: 1, title: look, status: completed }, { id: 2, title: pay, status: in-progress }] }
  - text: So.
";

/// `class PlanningEvent: todos: list[str]`
#[tokio::test]
async fn a_planning_event_has_the_plan() {
    let rendered = events("planning: true\n", PLANS, "planning").await;
    let items = json!([{"id": 1, "title": "look", "status": "completed"},
        {"id": 2, "title": "pay", "status": "in-progress"}]);
    assert_eq!(
        rendered,
        [json!({"todos": ["look", "pay"], "items": items, "version": 1, "operation": "write",
            "adherence": 0.5})]
    );
}

/// `class StepCompleteEvent: step_number: int, total_steps: int, description: str`
#[tokio::test]
async fn a_step_complete_event_follows_each_step() {
    let rendered = events("planning: true\n", PLANS, "step_complete").await;
    assert_eq!(rendered, [json!({"step_number": 1, "total_steps": 2, "description": "look"})]);
}

/// `class DelegationEvent: from_agent: str, to_agent: str, task: str`
#[tokio::test]
async fn a_delegation_event_names_the_run() {
    let script = "
answers:
  - calls: [{ name: task, arguments: { agent: helper, task: Look. } }]
  - text: So.
";
    let rendered = events("subagents: [{ name: helper }]\n", script, "delegation").await;
    let task = json!({"from_agent": "clerk", "to_agent": "clerk/helper", "task": "Look.",
        "run_id": "r1~1.1~run", "session_id": "r1~1.1"});
    assert_eq!(rendered, [task]);
}

/// `class InterruptEvent: tool_call_id: str, tool_name: str, args: dict[str, Any], session_id: str | None`
#[tokio::test]
async fn an_interrupt_event_has_the_requests() {
    let rendered =
        events("tools: [look]\ninterrupt_on: { look: true }\n", LOOKS, "interrupt").await;
    let call = json!({"tool_call_id": "r1~1.1", "tool_name": "look", "args": {"order": "A"},
        "status": "awaiting_approval", "approval_id": rendered[0]["approval_id"]});
    let interrupt = json!({"tool_call_id": "r1~1.1", "tool_name": "look", "args": {"order": "A"},
        "approval_id": rendered[0]["approval_id"], "agent": "clerk", "session_id": "s1",
        "reason": "approval", "action_requests": [call]});
    assert_eq!(rendered, [interrupt]);
}

/// `class StatusEvent: status: str    # "thinking" | "idle"`
#[tokio::test]
async fn a_status_event_follows_each_change() {
    let rendered = events("", "answers: [{ text: So. }]", "status").await;
    assert_eq!(rendered, [json!({"status": "thinking"}), json!({"status": "idle"})]);
}

const USED: &str = "answers: [{ text: So., usage: { input_tokens: 1000, output_tokens: 100 } }]";

/// `class UsageEvent: input_tokens: int, output_tokens: int, estimated_cost: float, provider: str, model: str`
#[tokio::test]
async fn a_usage_event_has_the_tokens() {
    let rendered = events("", USED, "usage").await;
    let usage = json!({"input_tokens": 1000, "output_tokens": 100, "estimated_cost": null,
        "provider": "script", "model": "scripted", "completeness": "complete",
        "cached_tokens": null, "reasoning_tokens": null});
    assert_eq!(rendered, [usage], "without a price there is no cost");
}

/// `class DoneEvent: assistant_data: dict[str, Any]`
#[tokio::test]
async fn a_done_event_has_the_answer() {
    let rendered = events("", "answers: [{ text: So. }]", "done").await;
    assert_eq!(rendered, [json!({"assistant_data": {"content": "So.", "message_id": 2}})]);
}

/// `class ErrorEvent: message: str, code: str`
#[tokio::test]
async fn an_error_event_has_code_and_message() {
    let rendered = events("", "answers: []", "error").await;
    let message = "the script has 0 answers, but number 1 is requested";
    assert_eq!(rendered, [json!({"message": message, "code": "no_recording"})]);
}
