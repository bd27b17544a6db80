//! Runs as seen by users and clients.

use abide_client::arguments::{AbortRun, DecideApproval, Decision, StartRun};
use abide_client::rows::RunEventKind;
use expect_test::expect;

use crate::fixture::RuntimeFixture;

const TOOLS: &str =
    "tools: [look, note, pay]\nsystem_prompt: Be kind.\ninterrupt_on: { pay: true }\n";

const THREE_TOOLS: &str = r#"
answers:
  - text: Let me see.
    calls:
      - { name: look, arguments: { order: A } }
      - { name: look, arguments: { order: B } }
      - { name: note, arguments: { order: A } }
    usage: { input_tokens: 10, output_tokens: 4 }
  - calls: [{ name: pay, arguments: { order: A } }]
  - text: It is paid.
"#;

#[tokio::test]
async fn a_run_with_tools_and_an_approval() {
    let fixture = RuntimeFixture::start(TOOLS, THREE_TOOLS).await;
    let run = fixture.begin("Pay order A.").await;
    let (first, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.kind, RunEventKind::Interrupt);
    assert!(!fixture.ledger().contains(&"pay A".to_owned()), "the call is not approved");
    let call =
        interrupt.data["tool_call_id"].as_str().expect("the event has the call id").to_owned();
    let approval = DecideApproval::new(Decision::Approve).call_id(call);
    fixture.abide.call(approval).await.expect("the decision succeeds");
    let (second, _) = fixture.output(&run.id, interrupt.number).await;
    expect![[r#"
        1 status {"status":"thinking"}
        1 says "Let me see."
        1 usage {"cached_tokens":null,"completeness":"complete","estimated_cost":null,"input_tokens":10,"model":"scripted","output_tokens":4,"provider":"script","reasoning_tokens":null}
        1 tool_call {"args":{"order":"A"},"id":"r1~1.1","name":"look"}
        1 tool_call {"args":{"order":"B"},"id":"r1~1.2","name":"look"}
        1 tool_call {"args":{"order":"A"},"id":"r1~1.3","name":"note"}
        1 tool_result {"exit_code":0,"output":"look A is done","status":"succeeded","tool_call_id":"r1~1.1"}
        1 tool_result {"exit_code":0,"output":"look B is done","status":"succeeded","tool_call_id":"r1~1.2"}
        1 tool_result {"exit_code":0,"output":"note A is done","status":"succeeded","tool_call_id":"r1~1.3"}
        1 usage {"cached_tokens":null,"completeness":"unavailable","estimated_cost":null,"input_tokens":null,"model":"scripted","output_tokens":null,"provider":"script","reasoning_tokens":null}
        1 tool_call {"args":{"order":"A"},"id":"r1~2.1","name":"pay"}
        1 interrupt {"action_requests":[{"args":{"order":"A"},"status":"awaiting_approval","tool_call_id":"r1~2.1","tool_name":"pay"}],"agent":"clerk","args":{"order":"A"},"reason":"approval","session_id":"s1","tool_call_id":"r1~2.1","tool_name":"pay"}
        --
        2 status {"status":"resuming"}
        2 status {"decision":"approved","status":"tool_approval","tool_call_id":"r1~2.1","tool_name":"pay"}
        2 tool_result {"exit_code":0,"output":"pay A is done","status":"succeeded","tool_call_id":"r1~2.1"}
        2 says "It is paid."
        2 usage {"cached_tokens":null,"completeness":"unavailable","estimated_cost":null,"input_tokens":null,"model":"scripted","output_tokens":null,"provider":"script","reasoning_tokens":null}
        2 status {"status":"idle"}
        2 done {"assistant_data":{"content":"It is paid.","message_id":8}}
    "#]].assert_eq(&format!("{first}--\n{second}"));
    expect![[r#"
        user: Pay order A. 
        assistant: Let me see. "r1~1.1" "look", "r1~1.2" "look", "r1~1.3" "note"
        tool [r1~1.1]: look A is done 
        tool [r1~1.2]: look B is done 
        tool [r1~1.3]: note A is done 
        assistant:  "r1~2.1" "pay"
        tool [r1~2.1]: pay A is done 
        assistant: It is paid. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    let mut done = fixture.ledger();
    done.sort();
    assert_eq!(done, ["look A", "look B", "note A", "pay A"]);
    fixture.close().await;
}

#[tokio::test]
async fn refused_calls_are_reported_to_the_model() {
    let script = r#"
answers:
  - calls:
      - { name: nothing, arguments: {} }
      - { name: look, arguments: { order: 7 } }
      - { name: look, arguments: "{order" }
      - { name: note, arguments: { order: A } }
  - text: I could not.
"#;
    let fixture =
        RuntimeFixture::start("tools: [look, note]\nblocked_tools: [note]\n", script).await;
    let run = fixture.begin("Look.").await;
    let (rendered, _) = fixture.output(&run.id, 0).await;
    assert!(
        rendered.ends_with(
            "done {\"assistant_data\":{\"content\":\"I could not.\",\"message_id\":7}}\n"
        ),
        "{rendered}"
    );
    expect![[r#"
        user: Look. 
        assistant:  "r1~1.1" "nothing", "r1~1.2" "look", "r1~1.3" "look", "r1~1.4" "note"
        tool [r1~1.1]: unknown tool nothing; available: look, note 
        tool [r1~1.2]: look: invalid arguments: at /order: 7 is not of type "string". Parameters: order (string, required) 
        tool [r1~1.3]: look: the arguments are not JSON: key must be a string at line 1 column 2. Parameters: order (string, required) 
        tool [r1~1.4]: calls of note are blocked for this agent: continue without it 
        assistant: I could not. 
    "#]].assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

#[tokio::test]
async fn a_task_is_delegated_to_another_agent() {
    let definition = "
subagents:
  - { name: helper, tools: [look], system_prompt: You look things up. }
";
    let script = r#"
answers:
  - calls: [{ name: task, arguments: { agent: helper, task: "Look at A." } }]
  - text: All is well.
"#;
    // The helper uses the same script. Its first answer calls `task`, which fails because it has no subagents.
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("Is all well?").await;
    let (rendered, _) = fixture.output(&run.id, 0).await;
    // `delegation.rs` tests the events of the helper, whose number depends on timing.
    let own = rendered.lines().filter(|line| !line.contains(r#""status":"delegating""#));
    let rendered: String = own.map(|line| format!("{line}\n")).collect();
    expect![[r#"
        1 status {"status":"thinking"}
        1 usage {"cached_tokens":null,"completeness":"unavailable","estimated_cost":null,"input_tokens":null,"model":"scripted","output_tokens":null,"provider":"script","reasoning_tokens":null}
        1 tool_call {"args":{"agent":"helper","task":"Look at A."},"id":"r1~1.1","name":"task"}
        1 delegation {"from_agent":"clerk","run_id":"r1~1.1~run","session_id":"r1~1.1","task":"Look at A.","to_agent":"clerk/helper"}
        1 tool_result {"exit_code":0,"output":"All is well.","status":"succeeded","tool_call_id":"r1~1.1"}
        1 says "All is well."
        1 usage {"cached_tokens":null,"completeness":"unavailable","estimated_cost":null,"input_tokens":null,"model":"scripted","output_tokens":null,"provider":"script","reasoning_tokens":null}
        1 status {"status":"idle"}
        1 done {"assistant_data":{"content":"All is well.","message_id":8}}
    "#]].assert_eq(&rendered);
    let sql = "SELECT id, parent_id, agent, status FROM runs ORDER BY created_at";
    let runs: Vec<(String, Option<String>, String, String)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    expect![[
        r#"[("r1", None, "clerk", "done"), ("r1~1.1~run", Some("r1"), "clerk/helper", "done")]"#
    ]]
    .assert_eq(&format!("{runs:?}"));
    fixture.close().await;
}

#[tokio::test]
async fn aborted_in_the_middle_of_an_answer() {
    let script = "token_ms: 600000\nanswers: [{ text: one two three four }]\n";
    let fixture = RuntimeFixture::start("", script).await;
    let run = fixture.begin("Count.").await;
    // The first word is published; the second never arrives.
    let mut events = abide_agent::RunEvents::subscribe(&fixture.abide, &run.id, 0)
        .await
        .expect("the subscription starts");
    loop {
        let event =
            events.next().await.expect("the stream continues").expect("the run has not ended");
        if event.kind == RunEventKind::Token {
            break;
        }
    }
    fixture.abide.call(AbortRun::new(&run.id).reason("enough")).await.expect("the abort succeeds");
    let (rendered, _) = fixture.output(&run.id, 0).await;
    expect![[r#"
        1 status {"status":"thinking"}
        1 says "one "
        1 status {"status":"idle"}
        1 error {"code":"aborted","message":"enough"}
    "#]]
    .assert_eq(&rendered);
    // Regression: the text was published but not stored, so neither the user nor the next run found it in the
    // session.
    assert_eq!(fixture.transcript().await, "user: Count. \nassistant: one  \n");
    let sql = "SELECT kind FROM agent_state WHERE role = 'assistant'";
    let kinds: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(kinds, [("partial".to_owned(),)]);
    fixture.close().await;
}

#[tokio::test]
async fn a_guardrail_blocks_requests_and_answers() {
    let definition = r#"
middleware:
  - { name: guardrail, at: request, deny: "(?i)password", message: I do not talk about that. }
  - { name: guardrail, at: response, deny: "secret", message: I may not say that. }
"#;
    let script = "answers: [{ text: a secret }]\n";
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("What is it?").await;
    let (rendered, _) = fixture.output(&run.id, 0).await;
    assert!(rendered.contains("I may not say that."), "{rendered}");
    let again = StartRun::new("s1").input("What is the PASSWORD?");
    let again = fixture.abide.call(again).await.expect("the run starts").into_inner();
    let (rendered, _) = fixture.output(&again.id, 0).await;
    expect![[r#"
        1 status {"status":"thinking"}
        1 says "I do not talk about that."
        1 status {"status":"idle"}
        1 done {"assistant_data":{"content":"I do not talk about that.","message_id":4}}
    "#]]
    .assert_eq(&rendered);
    fixture.close().await;
}
