//! Approvals of tool calls in a run: what starts before, which events report decisions, and the order of results.

use abide_client::arguments::{ApprovalPolicy, DecideApproval, Decision};
use abide_client::rows::RunEventKind;
use abide_tools::{Function, Invocation, ToolDeclaration};
use expect_test::expect;
use serde_json::json;

use crate::fixture::{FixtureOptions, RuntimeFixture};

const DEFINITION: &str = "tools: [look, note, pay]\ninterrupt_on: { pay: true, note: true }\n";

/// One answer with a call without an approval between calls that need one.
const SCRIPT: &str = r#"
answers:
  - calls:
      - { name: pay, arguments: { order: A } }
      - { name: look, arguments: { order: B } }
      - { name: note, arguments: { order: C } }
  - text: Done.
"#;

/// The first undecided call halts the whole answer: no call of it starts before all decisions. Then the approved calls run
/// one by one, in their order, before the others. Results are in the order of the calls.
#[tokio::test]
async fn an_undecided_call_halts_the_whole_answer() {
    let fixture = RuntimeFixture::start(DEFINITION, SCRIPT).await;
    let run = fixture.begin("Go on.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.data["action_requests"].as_array().map(Vec::len), Some(2));
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    let approve = |id: &str| DecideApproval::new(Decision::Approve).call_id(id);
    fixture.abide.call(approve("r1~1.3")).await.expect("it is pending");
    assert_eq!(fixture.ledger(), [""; 0], "nothing starts before the last decision");
    let sql = "SELECT status FROM runs";
    let status: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(status, [("waiting".to_owned(),)]);
    fixture.abide.call(approve("r1~1.1")).await.expect("it is pending");
    let (_, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.kind, RunEventKind::Done);
    assert_eq!(fixture.ledger(), ["pay A", "note C", "look B"]);
    expect![[r#"
        user: Go on. 
        assistant:  "r1~1.1" "pay", "r1~1.2" "look", "r1~1.3" "note"
        tool [r1~1.1]: pay A is done 
        tool [r1~1.2]: look B is done 
        tool [r1~1.3]: note C is done 
        assistant: Done. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

/// Class: a pattern that a check understands and the enforcement does not. `interrupt_on: { "*": true }` was accepted, and every tool
/// ran without an approval; so was a pattern of a rule that pauses. The own name of a tool counts more than a pattern, and the
/// plan of the runtime, which nobody can name, is not meant.
#[tokio::test]
async fn patterns_demand_approvals_and_pauses() {
    let script = SCRIPT.replace(
        "- calls:",
        "- calls:\n      - { name: manage_todo_list, arguments: { operation: read } }",
    );
    for (asks, asked) in [
        (r#"{ "*": true }"#, vec!["look", "note", "pay"]),
        (r#"{ "p*": true, "no*": true, "n*": false }"#, vec!["note", "pay"]),
        (r#"{ "*": true, look: false }"#, vec!["note", "pay"]),
    ] {
        let definition = format!("tools: [\"*\"]\nplanning: true\ninterrupt_on: {asks}\n");
        let fixture = RuntimeFixture::start(&definition, &script).await;
        fixture.begin("Go on.").await;
        fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
        let sql = "SELECT c.tool_name FROM approvals a JOIN tool_calls c ON c.call_id = a.call_id ORDER BY 1";
        let found: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        let found: Vec<&str> = found.iter().map(|(name,)| name.as_str()).collect();
        assert_eq!(found, asked, "{asks}");
        fixture.close().await;
    }
    let pauses = "tools: [\"*\"]\npause: [{ at: after_agent, tools: [\"p*\"] }]\n";
    let fixture = RuntimeFixture::start(pauses, SCRIPT).await;
    fixture.begin("Go on.").await;
    fixture.until("SELECT run_id FROM pauses WHERE stage = 'after_agent'").await;
    assert_eq!(fixture.ledger(), [""; 0], "nothing starts before the pause ends");
    fixture.close().await;
}

/// `tool_approval` events: a pending approval is the interrupt; a decision is a status event when it takes effect. A
/// rejection is the result of the call, with the comment, and the run continues.
#[tokio::test]
async fn decisions_are_events_when_they_take_effect() {
    let fixture = RuntimeFixture::start(DEFINITION, SCRIPT).await;
    let run = fixture.begin("Go on.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    let reject = DecideApproval::new(Decision::Reject).call_id("r1~1.3").comment("Not this one.");
    fixture.abide.call(reject).await.expect("it is pending");
    let approve = DecideApproval::new(Decision::Approve).call_id("r1~1.1");
    fixture.abide.call(approve).await.expect("it is pending");
    let (output, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.kind, RunEventKind::Done);
    let reported = output.lines().filter(|line| line.contains("tool_approval"));
    let reported: String = reported.map(|line| format!("{line}\n")).collect();
    expect![[r#"
        2 status {"decision":"approved","status":"tool_approval","tool_call_id":"r1~1.1","tool_name":"pay"}
        2 status {"comment":"Not this one.","decision":"rejected","status":"tool_approval","tool_call_id":"r1~1.3","tool_name":"note"}
    "#]]
    .assert_eq(&reported);
    assert_eq!(fixture.ledger(), ["pay A", "look B"]);
    let transcript = fixture.transcript().await;
    assert!(transcript.contains("tool [r1~1.3]: Rejected: Not this one."), "{transcript}");
    fixture.close().await;
}

/// The question of an approval is in the interrupt, and the arguments that the approver has changed are in the events, in the row of
/// the result and in the next request, beside those of the model. Regression: the tool ran with `EDITED`, and the model, which never
/// learned it, told the user that order A was paid. The class: a decision of a person that only the row of the approval has.
#[tokio::test]
async fn changed_arguments_are_visible() {
    let script =
        "answers:\n  - calls: [{ name: wire, arguments: { order: A } }]\n  - text: Done.\n";
    let plan = FixtureOptions::new("tools: [wire]\n", script);
    let order = json!({"type": "object", "properties": {"order": {"type": "string"}}});
    // The settings of an approval alone require one.
    let mut declaration = ToolDeclaration::new("wire", "Wires money.", order);
    declaration.approval = Some(ApprovalPolicy {
        prompt: Some("Wire this?".to_owned()),
        defaults: Some(json!({"order": "B"})),
        ..ApprovalPolicy::default()
    });
    let wire = Function::untyped(declaration, |call: Invocation| async move {
        Ok::<_, String>(format!("wired {}", call.arguments["order"]))
    });
    plan.tools.add(wire).expect("the name is free");
    let fixture = plan.open().await;
    let run = fixture.begin("Go on.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.kind, RunEventKind::Interrupt, "{:?}", interrupt.data);
    for data in [&interrupt.data, &interrupt.data["action_requests"][0]] {
        assert_eq!(
            (&data["prompt"], &data["defaults"]),
            (&json!("Wire this?"), &json!({"order": "B"}))
        );
    }
    let approve = DecideApproval::new(Decision::Approve).call_id("r1~1.1");
    let approve = approve.approved_arguments(json!({"order": "EDITED"}));
    fixture.abide.call(approve).await.expect("it is pending");
    let (output, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.kind, RunEventKind::Done);
    for event in [r#""status":"tool_approval""#, "tool_result"] {
        let line = output.lines().find(|line| line.contains(event)).expect("there is one");
        assert!(line.contains(r#""approved_args":{"order":"EDITED"}"#), "{line}");
    }
    let sql = "SELECT data ->> '$.approved_arguments' FROM agent_state WHERE role = 'tool'";
    let stored: Vec<(Option<String>,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(stored, [(Some(r#"{"order":"EDITED"}"#.to_owned()),)]);
    fixture.close().await;
}
