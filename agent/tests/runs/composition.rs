//! Agents as tools, and agents that take over the turn.

use abide_agent::Catalog;
use abide_client::arguments::{ClaimToolCall, CompleteToolCall, DecideApproval, Decision};
use abide_client::rows::RunEventKind;
use expect_test::expect;
use serde_json::json;

use crate::fixture::{FixtureOptions, RuntimeFixture, providers};

/// A clerk with these fields and another agent.
fn plan(clerk: &str, other: &str, scripts: [&str; 2]) -> FixtureOptions {
    let clerk = format!("config: {{ provider: script }}\nsubagents: [other]\n{clerk}");
    let models = providers(&[("script", scripts[0]), ("other", scripts[1])]);
    let plan = FixtureOptions { models, ..FixtureOptions::new(&clerk, "answers: []") };
    let other = format!("mode: subagent\nconfig: {{ provider: other }}\n{other}");
    plan.define("other.yaml", &other);
    plan
}

async fn open(plan: FixtureOptions) -> RuntimeFixture {
    let fixture = plan.open().await;
    assert_eq!(*fixture.problems.borrow(), [], "every file is valid");
    fixture
}

#[tokio::test]
async fn as_tool_is_a_tool_under_its_own_name() {
    let research = "as_tool: { name: research, description: Looks things up. }\ntools: [look]\n";
    let script = "answers:\n  \
        - { calls: [{ name: research, arguments: { input: Where is A? } }] }\n  - text: There.\n";
    let found =
        "answers:\n  - { calls: [{ name: look, arguments: { order: A } }] }\n  - text: In B.\n";
    let fixture = open(plan("", research, [script, found])).await;
    let run = fixture.begin("Where?").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "There.");
    assert!(
        rendered.contains(
            r#"tool_call {"args":{"input":"Where is A?"},"id":"r1~1.1","name":"research"}"#
        ),
        "{rendered}"
    );
    assert!(
        rendered
            .contains(r#"tool_result {"exit_code":0,"output":"In B.","status":"succeeded","tool_call_id":"r1~1.1"}"#),
        "{rendered}"
    );
    let sql = "SELECT c.tool_name, r.id, r.parent_id, r.agent, m.content FROM tool_calls AS c \
               JOIN runs AS r ON r.session_id = c.call_id \
               JOIN agent_state AS m ON m.session_id = r.session_id AND m.role = 'user'";
    let rows: Vec<(String, String, String, String, String)> =
        fixture.abide.sql(sql).fetch().await.expect("it is read");
    expect![[r#"[("research", "r1~1.1~run", "r1", "other", "Where is A?")]"#]]
        .assert_eq(&format!("{rows:?}"));
    fixture.close().await;
}

/// An inline agent belongs to its parent, and so does its name. The tool has the short name.
#[tokio::test]
async fn an_inline_agent_can_be_a_tool() {
    let clerk = "config: { provider: script }\nsubagents:\n  \
                 - { name: helper, as_tool: {}, config: { provider: other } }\n";
    let script = "answers:\n  \
        - { calls: [{ name: helper, arguments: { input: Where? } }] }\n  - text: There.\n";
    let models = providers(&[("script", script), ("other", "answers: [{ text: In B. }]")]);
    let plan = FixtureOptions { models, ..FixtureOptions::new(clerk, "answers: []") };
    let fixture = open(plan).await;
    let run = fixture.begin("Where?").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "There.");
    let sql = "SELECT agent FROM runs ORDER BY agent";
    let agents: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(agents, [("clerk".to_owned(),), ("clerk/helper".to_owned(),)]);
    fixture.close().await;
}

#[tokio::test]
async fn as_tool_checks_the_arguments_and_passes_them_as_json() {
    let input = "as_tool: { name: sum, input: { type: object, required: [a, b], properties: \
                 { a: { type: integer }, b: { type: integer } }, additionalProperties: false } }\n";
    let script = "answers:\n  \
        - { calls: [{ name: sum, arguments: { a: 1 } }, { name: task, arguments: { agent: other, task: x } }] }\n  \
        - { calls: [{ name: sum, arguments: { a: 1, b: 2 } }] }\n  - text: Three.\n";
    let fixture = open(plan("", input, [script, "answers: [{ text: '3' }]"])).await;
    let run = fixture.begin("Sum?").await;
    fixture.output(&run.id, 0).await;
    expect![[r#"
        user: Sum? 
        assistant:  "r1~1.1" "sum", "r1~1.2" "task"
        tool [r1~1.1]: sum: invalid arguments: "b" is a required property. Parameters: a (integer, required), b (integer, required) 
        tool [r1~1.2]: there is no tool task: this agent has no subagents 
        assistant:  "r1~2.1" "sum"
        tool [r1~2.1]: 3 
        assistant: Three. 
    "#]].assert_eq(&fixture.transcript().await);
    let sql = "SELECT content FROM agent_state WHERE session_id <> 's1' AND role = 'user'";
    let asked: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(asked, [(r#"{"a":1,"b":2}"#.to_owned(),)]);
    fixture.close().await;
}

/// An approval of the tool itself, named in the parent's definition.
#[tokio::test]
async fn a_call_of_an_agent_can_need_an_approval() {
    let script = "answers: [{ calls: [{ name: research, arguments: { input: x } }] }]";
    let fixture = open(plan(
        "interrupt_on: { research: true }\n",
        "as_tool: { name: research }\n",
        [script, "answers: []"],
    ))
    .await;
    let run = fixture.begin("Where?").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.kind, RunEventKind::Interrupt);
    assert_eq!(last.data["tool_name"], "research");
    fixture.close().await;
}

const TAKES_OVER: &str =
    "as_handoff: { name: to_billing }\ntools: [pay]\nsystem_prompt: You bill.\n";

#[tokio::test]
async fn as_handoff_takes_over_the_turn_until_it_answers() {
    let first = "answers: [{ text: One moment., calls: \
                 [{ name: to_billing, arguments: { message: Order A. } }] }]";
    // The answers of both agents count.
    let second =
        "answers: [{}, { calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]";
    let fixture = open(plan("tools: [look]\n", TAKES_OVER, [first, second])).await;
    let run = fixture.begin("Pay A.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "Paid.");
    let event = r#"{"from_agent":"clerk","handoff":true,"task":"Order A.","to_agent":"other"}"#;
    assert!(rendered.contains(&format!("delegation {event}\n")), "{rendered}");
    expect![[r#"
        user: Pay A. 
        assistant: One moment. "r1~1.1" "to_billing"
        tool [r1~1.1]: ok: agent other continues 
        assistant:  "r1~2.1" "pay"
        tool [r1~2.1]: pay A is done 
        assistant: Paid. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    let sql = "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM sessions)";
    let rows: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(rows, [(1, 1)], "the same session and run");
    assert_eq!(fixture.ledger(), ["pay A"]);
    fixture.close().await;
}

#[tokio::test]
async fn a_handoff_ends_when_the_agent_hands_back() {
    let first = "answers: [{ calls: [{ name: to_billing, arguments: {} }] }, {}, \
                 { calls: [{ name: pay, arguments: { order: A } }, { name: hand_back, arguments: {} }] }, \
                 { text: All is well. }]";
    let second =
        "answers: [{}, { calls: [{ name: hand_back, arguments: { message: Not mine. } }] }]";
    let fixture = open(plan("tools: [look]\n", TAKES_OVER, [first, second])).await;
    let run = fixture.begin("Pay A.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "All is well.");
    // The first agent has its own tools again, and none of the other.
    expect![[r#"
        user: Pay A. 
        assistant:  "r1~1.1" "to_billing"
        tool [r1~1.1]: ok: agent other continues 
        assistant:  "r1~2.1" "hand_back"
        tool [r1~2.1]: ok: the other agent continues 
        assistant:  "r1~3.1" "pay", "r1~3.2" "hand_back"
        tool [r1~3.1]: unknown tool pay; available: look 
        tool [r1~3.2]: there is no tool hand_back: no agent has handed over 
        assistant: All is well. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    assert_eq!(fixture.ledger(), [""; 0]);
    fixture.close().await;
}

#[tokio::test]
async fn the_limits_of_the_agent_that_takes_over_apply() {
    let first = "answers: [{ calls: [{ name: look, arguments: { order: A } }] }, \
                 { calls: [{ name: to_billing, arguments: {} }] }]";
    let second = "repeat: true\nanswers: [{ calls: [{ name: pay, arguments: { order: A } }] }]";
    let limited = format!("{TAKES_OVER}limits: {{ tool_calls: 1 }}\n");
    let fixture = open(plan("tools: [look]\n", &limited, [first, second])).await;
    let run = fixture.begin("Pay A.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["code"], "tool_call_limit");
    assert_eq!(fixture.ledger(), ["look A", "pay A"]);
    fixture.close().await;
}

/// The answer of the agent that takes over is an answer of the run, so the run's guardrails apply as well.
#[tokio::test]
async fn guardrails_of_both_agents_apply_to_a_handoff() {
    let guarded =
        "middleware:\n  - { name: guardrail, at: response, deny: swordfish, message: No. }\n";
    let first = "answers: [{ calls: [{ name: to_billing, arguments: {} }] }]";
    let second = "answers: [{}, { text: It is swordfish. }]";
    let fixture = open(plan(guarded, TAKES_OVER, [first, second])).await;
    let run = fixture.begin("What is it?").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "No.");
    fixture.close().await;
}

#[test]
fn agent_check_reports_composition_errors() {
    let plan = FixtureOptions::new("", "answers: []");
    for (file, text) in [
        ("a.yaml", "mode: subagent\nas_tool: { name: look }"),
        ("b.yaml", "mode: subagent\nas_tool: { name: task }"),
        ("c.yaml", "mode: subagent\nas_tool: { name: same }"),
        ("d.yaml", "mode: subagent\nas_handoff: { name: same }"),
        ("e.yaml", "as_tool: {}"),
        ("f.yaml", "mode: all\nas_tool: { input: { type: 7 } }"),
        ("g.g.yaml", "mode: all\nas_tool: {}"),
        ("h.yaml", "mode: all\nas_handoff: {}\ncli: { command: [claude] }"),
        (
            "i.yaml",
            "cli: { command: [claude] }\nmiddleware: [{ name: guardrail, at: response, deny: x, message: y }]",
        ),
        (
            "j.yaml",
            "middleware: [{ name: guardrail, at: response, deny: x, check: y, message: z }]",
        ),
        ("k.yaml", "limits: { delegation_seconds: -1 }"),
    ] {
        plan.define(file, text);
    }
    let (_, problems) = Catalog::new(plan.folder.path(), plan.tools.clone()).read();
    let lines: Vec<String> = problems
        .iter()
        .map(|it| format!("{}: {}", it.path.file_name().unwrap_or_default().display(), it.error))
        .collect();
    expect![[r#"
        a.yaml: as a tool the agent needs another name: look exists
        b.yaml: the tool name task belongs to the runtime: choose another name
        d.yaml: agents c and d both use the tool name same
        e.yaml: an agent with as_tool or as_handoff needs mode: subagent or all
        f.yaml: as_tool.input is not a supported JSON Schema: type must be the name of a type, not 7
        g.g.yaml: "g.g" is not a tool name; a name has 1 to 64 letters, digits, _ and -; set name
        h.yaml: an agent with cli cannot take over a turn: remove as_handoff
        i.yaml: an agent with cli takes only the middleware observability, because its output cannot be held back
        j.yaml: a guardrail has exactly one of deny, schema, verdict and check
        k.yaml: limits.delegation_seconds is -1; it must be at least 1"#]].assert_eq(&lines.join("\n"));
}

/// Calls of handoffs have no required capability. A worker of the tenant claimed one, and its result named the agent that became
/// active, and the revision.
#[tokio::test]
async fn the_result_of_a_worker_does_not_select_the_agent() {
    let first = "answers: [{ calls: [{ name: to_billing }, \
                 { name: note, arguments: { order: A } }] }]";
    let second = "answers: [{}, { text: I bill. }]";
    let clerk = "tools: [note]\ninterrupt_on: { note: true }\n";
    let options = plan(clerk, TAKES_OVER, [first, second]);
    options.define("vault.yaml", "mode: subagent\nconfig: { provider: script }\ntools: [pay]\n");
    let fixture = open(options).await;
    let run = fixture.begin("Bill A.").await;
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    let claimed =
        fixture.abide.call(ClaimToolCall::new("r1~1.1")).await.expect("it is pending").into_inner();
    let token = claimed.fencing_token.expect("it is claimed");
    let result = json!({"text": "ok", "content": {"handoff": {"agent": "vault", "revision": 1}}});
    let done = CompleteToolCall::new("r1~1.1", token, result);
    fixture.abide.call(done).await.expect("it is claimed");
    let approve = DecideApproval::new(Decision::Approve).call_id("r1~1.2");
    fixture.abide.call(approve).await.expect("it is pending");
    let (_, last) = fixture.output(&run.id, 0).await;
    let last = match last.kind {
        RunEventKind::Interrupt => fixture.output(&run.id, last.number).await.1,
        _ => last,
    };
    assert_eq!(last.data["assistant_data"]["content"], "I bill.");
    fixture.close().await;
}
