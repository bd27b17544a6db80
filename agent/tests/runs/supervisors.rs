//! The tool `request_supervisor`: an agent asks for a supervisor, its run waits, and the answer is the result of the call.

use abide_client::arguments::{
    AbortRun, ClaimHandoff, CreateSession, DecideApproval, Decision, ForkSession, RejectHandoff,
    RequestSupervisorHandoff, ResolveHandoff, StartRun,
};
use abide_client::rows::RunEventKind;
use abide_client::{Abide, Call, Code};
use expect_test::expect;
use serde_json::json;

use crate::fixture::{FixtureOptions, RuntimeFixture, providers};

const ASKS: &str = "answers:\n  \
    - { text: I ask., calls: [{ name: request_supervisor, arguments: { reason: May I pay? } }] }\n  \
    - text: Done.\n";

/// Claims the open handoff and resolves it.
async fn resolve(abide: &Abide, resolution: &str) {
    let id = open_handoff(abide).await;
    let claim = Call::from(ClaimHandoff::new(&id));
    let resolve = Call::from(ResolveHandoff::new(&id, resolution));
    abide.batch([claim, resolve]).await.expect("it is resolved");
}

async fn open_handoff(abide: &Abide) -> String {
    let sql = "SELECT id FROM handoff_requests WHERE status = 'pending'";
    let found: Vec<(String,)> = abide.sql(sql).fetch().await.expect("it is read");
    found.into_iter().next().expect("a handoff is open").0
}

#[tokio::test]
async fn the_answer_is_the_result_of_the_call() {
    let supervisor = "supervisor: { capability: boss, escalate_after_seconds: 60, escalate_to: \
                      chief, expires_after_seconds: 3600 }\n";
    let fixture = RuntimeFixture::start(supervisor, ASKS).await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.kind, RunEventKind::Interrupt);
    assert_eq!(interrupt.data["reason"], "handoff");
    // Clients learned only that the run waits for a handoff.
    let handoff = &interrupt.data["handoff"];
    assert_eq!(
        (&handoff["id"], &handoff["reason"]),
        (&json!(open_handoff(&fixture.abide).await), &json!("May I pay?"))
    );
    let sql = "SELECT h.reason, h.required_capability, h.escalate_to, c.call_id, s.status, r.status, \
               r.reason, c.status, (h.expires_at - h.created_at) / 1000000 \
               FROM handoff_requests AS h JOIN sessions AS s ON s.id = h.session_id \
               JOIN runs AS r ON r.session_id = s.id JOIN handoff_calls AS w ON w.handoff_id = h.id JOIN tool_calls AS c ON c.call_id = w.call_id";
    let rows = fixture.abide.sql(sql).rows().await.expect("it is read").rows;
    expect![[r#"[[Text("May I pay?"), Text("boss"), Text("chief"), Text("r1~1.1"), Text("handed_off"), Text("waiting"), Text("handoff"), Text("awaiting_approval"), Integer(3600)]]"#]].assert_eq(&format!("{rows:?}"));
    resolve(&fixture.abide, "Pay it.").await;
    let (rendered, _) = fixture.output(&run.id, interrupt.number).await;
    expect![[r#"
        2 status {"status":"resuming"}
        2 tool_result {"exit_code":0,"output":"Pay it.","status":"succeeded","tool_call_id":"r1~1.1"}
        2 says "Done."
        2 usage {"cached_tokens":null,"completeness":"unavailable","estimated_cost":null,"input_tokens":null,"model":"scripted","output_tokens":null,"provider":"script","reasoning_tokens":null}
        2 status {"status":"idle"}
        2 done {"assistant_data":{"content":"Done.","message_id":4}}
    "#]].assert_eq(&rendered);
    expect![[r#"
        user: Pay A. 
        assistant: I ask. "r1~1.1" "request_supervisor"
        tool [r1~1.1]: Pay it. 
        assistant: Done. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

#[tokio::test]
async fn a_rejection_is_an_error_for_the_model() {
    let fixture = RuntimeFixture::start("supervisor: { capability: boss }\n", ASKS).await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    let id = open_handoff(&fixture.abide).await;
    let claim = Call::from(ClaimHandoff::new(&id));
    let reject = Call::from(RejectHandoff::new(&id, "Not today."));
    fixture.abide.batch([claim, reject]).await.expect("it is rejected");
    fixture.output(&run.id, interrupt.number).await;
    expect![[r#"
        user: Pay A. 
        assistant: I ask. "r1~1.1" "request_supervisor"
        tool [r1~1.1]: Rejected: Not today. 
        assistant: Done. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

/// A request that nobody claims expires, and the run goes on.
#[tokio::test]
async fn an_unclaimed_request_expires() {
    let supervisor = "supervisor: { capability: boss, expires_after_seconds: 1 }\n";
    let fixture = RuntimeFixture::start(supervisor, ASKS).await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    fixture.output(&run.id, interrupt.number).await;
    expect![[r#"
        user: Pay A. 
        assistant: I ask. "r1~1.1" "request_supervisor"
        tool [r1~1.1]: there was no answer in time 
        assistant: Done. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

/// Class: a part of a run that its end leaves behind. The call was cancelled with the run, but its request stayed open and the
/// session handed off, so the next run was refused.
#[tokio::test]
async fn the_abort_of_a_run_withdraws_its_request() {
    let fixture = RuntimeFixture::start("supervisor: { capability: boss }\n", ASKS).await;
    let run = fixture.begin("Pay A.").await;
    fixture.output(&run.id, 0).await;
    let id = open_handoff(&fixture.abide).await;
    fixture.abide.call(ClaimHandoff::new(&id)).await.expect("it is claimed");
    fixture.abide.call(AbortRun::new("r1")).await.expect("it is aborted");
    let sql = "SELECT h.status, s.status, c.status FROM handoff_requests AS h JOIN sessions AS s \
               ON s.id = h.session_id JOIN tool_calls AS c ON c.session_id = s.id";
    let found: Vec<(String, String, String)> =
        fixture.abide.sql(sql).fetch().await.expect("it is read");
    let expected = ["cancelled", "active", "cancelled"].map(str::to_owned);
    assert_eq!(found, [expected.into()]);
    let refused = fixture.abide.call(ResolveHandoff::new(&id, "Pay it.")).await;
    let refused = refused.expect_err("nobody waits for it");
    assert_eq!(refused.code(), Some(Code::Conflict), "{refused}");
    let next = StartRun::new("s1").id("r2").input("Go on.");
    fixture.abide.call(next).await.expect("the session goes on");
    fixture.output("r2", 0).await;
    expect![[r#"
        user: Pay A. 
        assistant: I ask. "r1~1.1" "request_supervisor"
        user: Go on. 
        assistant: Done. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

/// The hint of the refusal named neither the handoff nor the commands that end it.
#[tokio::test]
async fn the_refusal_of_a_session_that_is_handed_off_names_the_commands() {
    let fixture = RuntimeFixture::start("supervisor: { capability: boss }\n", ASKS).await;
    fixture.abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
    let open = RequestSupervisorHandoff::new("s1", "A look.", "boss");
    fixture.abide.call(open).await.expect("it is handed off");
    let refused = fixture.abide.call(StartRun::new("s1").id("r2").input("Go on.")).await;
    let refused = refused.expect_err("it is handed off");
    let hint = refused.hint().unwrap_or_default();
    let query = hint.split('"').nth(1).expect("the hint has a query");
    let listed: Vec<(String, String)> = fixture.abide.sql(query).fetch().await.expect("it is read");
    assert_eq!(listed, [(open_handoff(&fixture.abide).await, "pending".to_owned())]);
    assert!(hint.contains("claim_handoff") && hint.contains("resolve_handoff"), "{hint}");
    fixture.close().await;
}

/// Class: a text in place of a result that does not come from the row of the call. The model of the fork read that the call may
/// have taken effect.
#[tokio::test]
async fn a_fork_says_that_no_supervisor_has_answered() {
    let fixture = RuntimeFixture::start("supervisor: { capability: boss }\n", ASKS).await;
    let run = fixture.begin("Pay A.").await;
    fixture.output(&run.id, 0).await;
    fixture.abide.call(ForkSession::new("s1").id("s2")).await.expect("it is forked");
    let sql = "SELECT content FROM agent_state WHERE session_id = 's2' AND role = 'tool'";
    let results: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    let expected = "No supervisor has answered: the session was forked before.".to_owned();
    assert_eq!(results, [(expected,)]);
    fixture.close().await;
}

/// A session has one handoff at a time: the second call of an answer asks after the first one has its answer. An approval that the
/// definition demands comes first.
#[tokio::test]
async fn calls_of_one_answer_ask_one_after_the_other() {
    let script = "answers:\n  - calls: [{ name: request_supervisor, arguments: { reason: One? } }, \
                  { name: request_supervisor, arguments: { reason: Two? } }]\n  - text: Done.\n";
    let definition =
        "supervisor: { capability: boss }\ninterrupt_on: { request_supervisor: true }\n";
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("Ask.").await;
    let (_, mut interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.data["reason"], "approval");
    for call in ["r1~1.1", "r1~1.2"] {
        let decide = DecideApproval::new(Decision::Approve).call_id(call);
        fixture.abide.call(decide).await.expect("it is approved");
    }
    for answer in ["First.", "Second."] {
        (_, interrupt) = fixture.output(&run.id, interrupt.number).await;
        assert_eq!(interrupt.data["reason"], "handoff", "{answer}");
        resolve(&fixture.abide, answer).await;
    }
    fixture.output(&run.id, interrupt.number).await;
    expect![[r#"
        user: Ask. 
        assistant:  "r1~1.1" "request_supervisor", "r1~1.2" "request_supervisor"
        tool [r1~1.1]: First. 
        tool [r1~1.2]: Second. 
        assistant: Done. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

/// An agent without a supervisor does not have the tool.
#[tokio::test]
async fn only_an_agent_with_a_supervisor_has_the_tool() {
    let fixture = RuntimeFixture::start("tools: [look]\n", ASKS).await;
    let run = fixture.begin("Pay A.").await;
    fixture.output(&run.id, 0).await;
    expect![[r#"
        user: Pay A. 
        assistant: I ask. "r1~1.1" "request_supervisor"
        tool [r1~1.1]: unknown tool request_supervisor; available: look 
        assistant: Done. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

/// The run that delegated waits as long as the delegated one.
#[tokio::test]
async fn a_delegated_run_asks_for_its_own_supervisor() {
    let clerk = "config: { provider: script }\nsubagents: [other]\n";
    let script = "answers:\n  - { calls: [{ name: task, arguments: { agent: other, task: Pay. } }] }\n  \
                  - text: Paid.\n";
    let models = providers(&[("script", script), ("other", ASKS)]);
    let plan = FixtureOptions { models, ..FixtureOptions::new(clerk, "answers: []") };
    plan.define(
        "other.yaml",
        "mode: subagent\nconfig: { provider: other }\nsupervisor: { capability: boss }\n",
    );
    let fixture = plan.open().await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.data["reason"], "handoff");
    assert_eq!(interrupt.data["session_id"], "r1~1.1");
    assert_eq!(interrupt.data["action_requests"], serde_json::json!([]));
    resolve(&fixture.abide, "Yes.").await;
    let (_, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.data["assistant_data"]["content"], "Paid.");
    let sql = "SELECT id, status FROM sessions ORDER BY id";
    let sessions: Vec<(String, String)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    let expected = [("r1~1.1", "completed"), ("s1", "active")];
    assert_eq!(sessions, expected.map(|(id, status)| (id.to_owned(), status.to_owned())));
    fixture.close().await;
}
