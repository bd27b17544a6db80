//! Loops in Rust in place of the built-in one: the same routes, events, approvals, limits and ends.

use abide_agent::{AgentLoop, Catalog, LoopCallResult, LoopError, LoopRun};
use abide_client::Abide;
use abide_client::arguments::{AbortRun, DecideApproval, Decision};
use abide_client::rows::RunEventKind;
use abide_models::{ModelMessage, ModelRequest};
use expect_test::expect;
use futures_util::future::{BoxFuture, FutureExt as _, pending};
use serde_json::json;

use crate::fixture::{FixtureOptions, RuntimeFixture};

/// Looks at two orders and pays the first one: its way depends on what it has saved, so that it must be saved once.
pub(crate) struct Errands;

impl AgentLoop for Errands {
    fn drive<'a>(&'a self, run: &'a mut LoopRun<'_>) -> BoxFuture<'a, Result<String, LoopError>> {
        async move {
            run.publish("It is ").await?;
            if run.saved().is_none() {
                for order in ["A", "B"] {
                    run.call(&format!("look-{order}"), "look", &json!({"order": order})).await?;
                }
                run.save(&json!({"looked": 2})).await?;
            }
            let paid = run.call("pay", "pay", &json!({"order": "A"})).await?;
            let is_rejected = paid.text.starts_with("Rejected");
            Ok(if is_rejected { "It is not paid." } else { "It is paid." }.to_owned())
        }
        .boxed()
    }
}

async fn fixture(definition: &str, agent_loop: impl AgentLoop) -> RuntimeFixture {
    let definition = format!("loop: own\ntools: [look, pay]\n{definition}");
    let options = FixtureOptions::new(&definition, "answers: [{ text: The model. }]");
    let catalog = Catalog::new(options.folder.path(), options.tools.clone());
    let fixture = options.open_with(catalog.agent_loop("own", agent_loop)).await;
    assert_eq!(*fixture.problems.borrow(), [], "every file is valid");
    fixture
}

async fn approve(abide: &Abide, decision: Decision) {
    let sql = "SELECT call_id FROM tool_calls WHERE status = 'awaiting_approval'";
    let calls: Vec<(String,)> = abide.sql(sql).fetch().await.expect("it is read");
    let decision = DecideApproval::new(decision).call_id(&calls[0].0);
    abide.call(decision).await.expect("it is decided");
}

#[tokio::test]
async fn a_loop_says_calls_waits_and_answers_behind_the_same_events() {
    let fixture = fixture("interrupt_on: { pay: true }\n", Errands).await;
    fixture.begin("Pay order A.").await;
    let (before, interrupt) = fixture.output("r1", 0).await;
    approve(&fixture.abide, Decision::Approve).await;
    let (after, last) = fixture.output("r1", interrupt.number).await;
    assert_eq!(last.kind, RunEventKind::Done);
    expect![[r#"
        1 status {"status":"thinking"}
        1 says "It is "
        1 tool_call {"args":{"order":"A"},"id":"r1~loop.look-A","name":"look"}
        1 tool_result {"exit_code":0,"output":"look A is done","status":"succeeded","tool_call_id":"r1~loop.look-A"}
        1 tool_call {"args":{"order":"B"},"id":"r1~loop.look-B","name":"look"}
        1 tool_result {"exit_code":0,"output":"look B is done","status":"succeeded","tool_call_id":"r1~loop.look-B"}
        1 tool_call {"args":{"order":"A"},"id":"r1~loop.pay","name":"pay"}
        1 interrupt {"action_requests":[{"args":{"order":"A"},"status":"awaiting_approval","tool_call_id":"r1~loop.pay","tool_name":"pay"}],"agent":"clerk","args":{"order":"A"},"reason":"approval","session_id":"s1","tool_call_id":"r1~loop.pay","tool_name":"pay"}
        2 status {"status":"resuming"}
        2 status {"decision":"approved","status":"tool_approval","tool_call_id":"r1~loop.pay","tool_name":"pay"}
        2 tool_result {"exit_code":0,"output":"pay A is done","status":"succeeded","tool_call_id":"r1~loop.pay"}
        2 restart {"code":"runtime_restarted","error":"the loop begins its answer again","since":2}
        2 says "It is paid."
        2 status {"status":"idle"}
        2 done {"assistant_data":{"content":"It is paid.","message_id":9}}
    "#]].assert_eq(&(before + &after));
    expect![[r#"
        user: Pay order A. 
        assistant:  "r1~loop.look-A" "look"
        tool [r1~loop.look-A]: look A is done 
        assistant:  "r1~loop.look-B" "look"
        tool [r1~loop.look-B]: look B is done 
        assistant:  
        assistant:  "r1~loop.pay" "pay"
        tool [r1~loop.pay]: pay A is done 
        assistant: It is paid. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    assert_eq!(fixture.ledger(), ["look A", "look B", "pay A"]);
    fixture.close().await;
}

#[tokio::test]
async fn a_rejected_call_is_a_result() {
    let fixture = fixture("interrupt_on: { pay: true }\n", Errands).await;
    fixture.begin("Pay order A.").await;
    let (_, interrupt) = fixture.output("r1", 0).await;
    approve(&fixture.abide, Decision::Reject).await;
    let (_, last) = fixture.output("r1", interrupt.number).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is not paid.");
    assert_eq!(fixture.ledger(), ["look A", "look B"]);
    fixture.close().await;
}

/// Does something that a test names.
struct Does(&'static str);

impl AgentLoop for Does {
    fn drive<'a>(&'a self, run: &'a mut LoopRun<'_>) -> BoxFuture<'a, Result<String, LoopError>> {
        async move {
            match self.0 {
                "hang" => pending().await,
                "say nothing" => Ok(" ".to_owned()),
                "fail" => Err(LoopError::failed("no_luck", "It did not work.")),
                "tell" => Ok("The password is swordfish.".to_owned()),
                "say another" => {
                    run.publish("The password is ").await?;
                    Ok("I say nothing.".to_owned())
                }
                "call for ever" => {
                    for nth in 0.. {
                        run.call(&format!("{nth}"), "look", &json!({"order": "A"})).await?;
                    }
                    unreachable!("a limit ends the run")
                }
                "ask" => {
                    let messages = run.messages();
                    assert!(matches!(&messages[..], [ModelMessage::User { .. }]), "{messages:?}");
                    let request = ModelRequest { messages, ..ModelRequest::default() };
                    Ok(format!("It says: {}", run.ask(request).await?.text))
                }
                "call others" => {
                    let mut results = Vec::new();
                    for (key, tool, arguments) in [
                        ("unknown", "note", json!({"order": "A"})),
                        ("misfit", "look", json!({"orders": "A"})),
                        ("fits", "look", json!({"order": "A"})),
                        ("fits", "look", json!({"order": "another"})),
                    ] {
                        let LoopCallResult { text, is_error } =
                            run.call(key, tool, &arguments).await?;
                        results.push(format!("{} {text}", if is_error { "error" } else { "ok" }));
                    }
                    Ok(results.join("\n"))
                }
                other => panic!("unknown: {other}"),
            }
        }
        .boxed()
    }
}

/// Kind and data of the last event of a run.
async fn end(definition: &str, does: &'static str) -> String {
    let fixture = fixture(definition, Does(does)).await;
    fixture.begin("Hello.").await;
    let (_, last) = fixture.output("r1", 0).await;
    fixture.close().await;
    let data = &last.data;
    match data["assistant_data"]["content"].as_str() {
        Some(answer) => format!("{}: {answer}", last.kind),
        None => format!("{}: {}: {}", last.kind, data["code"], data["message"]),
    }
}

#[tokio::test]
async fn the_limits_and_rules_of_the_definition_apply_to_a_loop() {
    let guardrail =
        "middleware: [{ name: guardrail, at: response, deny: swordfish, message: No. }]\n";
    expect![[r#"error: "no_luck": "It did not work.""#]].assert_eq(&end("", "fail").await);
    expect![[r#"error: "execution_timeout": "the run has reached its time limit""#]]
        .assert_eq(&end("limits: { wall_clock_seconds: 1 }\n", "hang").await);
    expect![[r#"error: "recursion_limit": "the model has answered 3 times""#]]
        .assert_eq(&end("config: { recursion_limit: 3 }\n", "call for ever").await);
    expect![[r#"error: "recursion_limit": "the model has answered 9 times""#]].assert_eq(
        &end("limits: { tool_calls: 3 }\nconfig: { recursion_limit: 9 }\n", "call for ever").await,
    );
    expect![[r#"error: "no_answer": "the loop's answer is empty: set allow_empty_answers if that can be an answer""#]].assert_eq(&end("", "say nothing").await);
    expect!["done:  "].assert_eq(&end("allow_empty_answers: true\n", "say nothing").await);
    expect!["done: No."].assert_eq(&end(guardrail, "tell").await);
    expect!["done: It says: The model."].assert_eq(&end("", "ask").await);
    expect![[r#"
        done: error unknown tool note; available: look, pay
        error look: invalid arguments: "order" is a required property. Parameters: order (string, required)
        ok look A is done
        ok look A is done"#]].assert_eq(&end("", "call others").await);
}

#[tokio::test]
async fn an_answer_that_is_not_what_was_said_replaces_it() {
    let fixture = fixture("", Does("say another")).await;
    fixture.begin("Hello.").await;
    let (output, last) = fixture.output("r1", 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "I say nothing.");
    assert!(output.contains("restart"), "{output}");
    fixture.close().await;
}

#[tokio::test]
async fn an_abort_ends_a_loop_that_waits_for_nothing() {
    let fixture = fixture("", Does("hang")).await;
    fixture.begin("Hello.").await;
    fixture.until("SELECT 1 FROM runs WHERE driver IS NOT NULL").await;
    fixture.abide.call(AbortRun::new("r1")).await.expect("it runs");
    let (_, last) = fixture.output("r1", 0).await;
    assert_eq!(last.data["code"], "aborted", "{last:?}");
    fixture.close().await;
}

#[tokio::test]
async fn a_loop_that_does_not_exist_is_a_problem_of_the_file() {
    let options = FixtureOptions::new("loop: ovn\n", "answers: []");
    let catalog = Catalog::new(options.folder.path(), options.tools.clone());
    let fixture = options.open_with(catalog.agent_loop("own", Errands)).await;
    let problems: Vec<String> = fixture
        .problems
        .borrow()
        .iter()
        .map(|it| format!("{} {:?}", it.error, it.error.suggestion()))
        .collect();
    expect![[r#"unknown loop ovn; available: own Some("did you mean own?")"#]]
        .assert_eq(&problems.join("\n"));
    fixture.close().await;
}
