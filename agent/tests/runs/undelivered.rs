//! What the next run of a session learns of calls whose run ended before the model had their results.
//!
//! Regression: after an abort the model read of every call only that there is no result, also of those that had succeeded, had
//! failed or had never begun; it then repeated what was done. The class: a text in place of a result that does not come from
//! the row of the call.

use std::mem;
use std::time::Duration;

use abide_agent::Settings;
use abide_client::arguments::{AbortRun, DecideApproval, Decision, ForkSession, StartRun};
use abide_models::{ModelMessage, Script};
use abide_tools::{Effect, Function, ToolContext};
use expect_test::{Expect, expect};
use schemars::JsonSchema;
use serde::Deserialize;
use tempfile::TempDir;

use crate::fixture::{
    FixtureOptions, RuntimeFixture, answering, open_ahead, temporary_folder, tools,
};
use crate::scripted_model::Watched;

/// `hang` never returns; the calls behind it do not begin, because three run at a time.
const SCRIPT: &str = r#"
answers:
  - calls:
      - { name: look, arguments: { order: A } }
      - { name: fail, arguments: { order: A } }
      - { name: hang, arguments: { order: A } }
      - { name: hang, arguments: { order: B } }
      - { name: hang, arguments: { order: C } }
      - { name: pay, arguments: { order: A } }
  - { text: I see. }
  - { text: I see. }
  - { text: I see. }
"#;

const DEFINITION: &str = "tools: [look, fail, hang, pay, read]\nprofile: fast\n";

/// Bytes of a result that is cut.
const LONG_TEXT: usize = 100_000;

#[derive(Deserialize, JsonSchema)]
struct Order {
    #[expect(dead_code, reason = "the schema of the tool has it")]
    order: String,
}

async fn open(folder: TempDir, model: &Watched, is_ahead: bool) -> RuntimeFixture {
    open_with(folder, model, is_ahead, &format!("name: clerk\n{DEFINITION}")).await
}

async fn open_with(
    folder: TempDir,
    model: &Watched,
    is_ahead: bool,
    definition: &str,
) -> RuntimeFixture {
    let tools = tools(folder.path().join("ledger"));
    let fail = |_: Order, _: ToolContext| async { Err::<String, _>("no such order".to_owned()) };
    let fail = Function::new("fail", "Fails.", fail).effect(Effect::ReadOnly);
    let hang = |_: Order, _: ToolContext| std::future::pending::<Result<String, String>>();
    let hang = Function::new("hang", "Never ends.", hang).effect(Effect::AtMostOnce);
    let read = |_: Order, _: ToolContext| async { Ok::<_, String>("long ".repeat(LONG_TEXT / 5)) };
    let read = Function::new("read", "Reads.", read).effect(Effect::ReadOnly);
    tools.add(read).expect("it is valid");
    tools.add(fail).expect("it is valid");
    tools.add(hang).expect("it is valid");
    let abide = open_ahead(folder.path(), is_ahead);
    // The grace is longer than a busy machine needs to stop a call.
    let settings = Settings {
        grace: Duration::from_secs(60),
        reload_interval: Duration::from_millis(50),
        ..Settings::named("runtime")
    };
    let options = FixtureOptions { folder, models: answering(model.clone()), tools, settings };
    options.define("clerk.yaml", definition);
    let fixture = options.open_file(abide).await;
    assert_eq!(*fixture.problems.borrow(), []);
    fixture
}

/// Runs a message in a session, and returns the results in the last request to the model.
async fn next_turn(fixture: &RuntimeFixture, model: &Watched, session: &str, expected: Expect) {
    let run = StartRun::new(session).input("Go on.");
    let run = fixture.abide.call(run).await.expect("the run starts").into_inner();
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.kind.as_str(), "done", "{:?}", last.data);
    let request = model.requests().pop().expect("the model is asked");
    let results = request.messages.iter().filter_map(|message| match message {
        ModelMessage::Tool { name, content, is_error, .. } => {
            Some(format!("{name} {}: {content}\n", if *is_error { "failed" } else { "ok" }))
        }
        _ => None,
    });
    expected.assert_eq(&results.collect::<String>());
}

#[tokio::test]
async fn the_next_run_reads_the_stored_outcomes() {
    let model = Watched::new(Script::from_text(SCRIPT).expect("it is valid").named("script"));
    let mut fixture = open(temporary_folder(), &model, false).await;
    fixture.begin("Go.").await;
    // Two have ended, and three run.
    let hang = "SELECT 1 FROM tool_calls WHERE call_id = 'r1~1.5' AND status = 'claimed'";
    fixture.until(hang).await;
    fixture.abide.call(AbortRun::new("r1")).await.expect("it is active");
    fixture.until("SELECT 1 FROM runs WHERE ended_at IS NOT NULL").await;
    // The calls that do not stop may have taken effect.
    for id in ["r1~1.3", "r1~1.4", "r1~1.5"] {
        let reported =
            format!("SELECT 1 FROM tool_calls WHERE call_id = '{id}' AND status = 'unknown'");
        fixture.until(&reported).await;
    }
    next_turn(&fixture, &model, "s1", expect![[r#"
        look ok: look A is done
        fail failed: no such order
        hang failed: The outcome is unknown: hang was cancelled. It may have taken effect: find out before you repeat it.
        hang failed: The outcome is unknown: hang was cancelled. It may have taken effect: find out before you repeat it.
        hang failed: The outcome is unknown: hang was cancelled. It may have taken effect: find out before you repeat it.
        pay failed: The call did not run: its run ended before it began.
    "#]]).await;
    let folder = mem::replace(&mut fixture.folder, temporary_folder());
    fixture.close().await;
    let fixture = open(folder, &model, true).await;
    next_turn(&fixture, &model, "s1", expect![[r#"
        look ok: look A is done
        fail failed: no such order
        hang failed: The outcome is unknown: hang was cancelled. It may have taken effect: find out before you repeat it.
        hang failed: The outcome is unknown: hang was cancelled. It may have taken effect: find out before you repeat it.
        hang failed: The outcome is unknown: hang was cancelled. It may have taken effect: find out before you repeat it.
        pay failed: The call did not run: its run ended before it began.
    "#]]).await;
    let fork = ForkSession::new("s1").id("s2");
    fixture.abide.call(fork).await.expect("it is copied");
    // The fork wrote them behind the later answers, as results without a call.
    let sql = "SELECT count(*) FROM agent_state WHERE session_id = 's2' AND role = 'tool'";
    let results: Vec<(i64,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(results, [(0,)]);
    next_turn(&fixture, &model, "s2", expect![[r#"
        look ok: look A is done
        fail failed: no such order
        hang failed: There is no result: the run ended before the call returned one. The call may have taken effect: find out before you repeat it.
        hang failed: There is no result: the run ended before the call returned one. The call may have taken effect: find out before you repeat it.
        hang failed: There is no result: the run ended before the call returned one. The call may have taken effect: find out before you repeat it.
        pay failed: The call did not run: its run ended before it began.
    "#]]).await;
    assert_eq!(fixture.ledger(), ["look A"]);
    fixture.close().await;
}

/// Regression: the approver of a payment changed 900 to 90, and the outcome is unknown. The model read only its own call with 900,
/// and looked for that. The class: what is said of a call that may have run must say with which arguments.
#[tokio::test]
async fn an_outcome_that_is_unknown_names_the_arguments_of_the_approver() {
    let script = r#"
answers:
  - calls: [{ name: hang, arguments: { order: A } }]
  - { text: I see. }
  - { text: I see. }
"#;
    let model = Watched::new(Script::from_text(script).expect("it is valid").named("script"));
    let folder = temporary_folder();
    let asks = format!("name: clerk\n{DEFINITION}interrupt_on: {{ hang: true }}\n");
    let mut fixture = open_with(folder, &model, false, &asks).await;
    let run = fixture.begin("Go.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.data["reason"], "approval", "{:?}", interrupt.data);
    let approve = DecideApproval::new(Decision::Approve).call_id("r1~1.1");
    let approve = approve.approved_arguments(serde_json::json!({"order": "B"}));
    fixture.abide.call(approve).await.expect("it is pending");
    fixture.until("SELECT 1 FROM tool_calls WHERE status = 'claimed'").await;
    fixture.abide.call(AbortRun::new("r1")).await.expect("it is active");
    fixture.until("SELECT 1 FROM runs WHERE ended_at IS NOT NULL").await;
    next_turn(&fixture, &model, "s1", expect![[r#"
        hang failed: The approver changed the arguments to {"order":"B"}.
        The outcome is unknown: hang was cancelled. It may have taken effect: find out before you repeat it.
    "#]]).await;
    let folder = mem::replace(&mut fixture.folder, temporary_folder());
    fixture.close().await;
    // The definition no longer asks.
    let fixture = open(folder, &model, true).await;
    fixture.until("SELECT 1 FROM tool_calls WHERE status = 'unknown'").await;
    next_turn(&fixture, &model, "s1", expect![[r#"
        hang failed: The approver changed the arguments to {"order":"B"}.
        The outcome is unknown: hang was cancelled. It may have taken effect: find out before you repeat it.
    "#]]).await;
    fixture.close().await;
}

/// `read` returns a long text, and `hang` never returns.
const LONG: &str = r#"
answers:
  - calls:
      - { name: read, arguments: { order: A } }
      - { name: hang, arguments: { order: A } }
  - { text: I see. }
"#;

/// A result that was cut says so, and a tool fetches the rest. The tool was offered for results of messages only.
#[tokio::test]
async fn a_long_result_can_be_fetched() {
    let model = Watched::new(Script::from_text(LONG).expect("it is valid").named("script"));
    let fixture = open(temporary_folder(), &model, false).await;
    fixture.begin("Go.").await;
    fixture
        .until("SELECT 1 FROM tool_calls WHERE call_id = 'r1~1.1' AND status = 'succeeded'")
        .await;
    fixture.until("SELECT 1 FROM tool_calls WHERE call_id = 'r1~1.2' AND status = 'claimed'").await;
    fixture.abide.call(AbortRun::new("r1")).await.expect("it is active");
    fixture.until("SELECT 1 FROM runs WHERE ended_at IS NOT NULL").await;
    let run = StartRun::new("s1").input("Go on.");
    let run = fixture.abide.call(run).await.expect("the run starts").into_inner();
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.kind.as_str(), "done", "{:?}", last.data);
    let request = model.requests().pop().expect("the model is asked");
    let read = request.messages.iter().find_map(|message| match message {
        ModelMessage::Tool { name, content, .. } if name == "read" => Some(content),
        _ => None,
    });
    let read = read.expect("the result is in the request");
    assert!(
        read.len() < LONG_TEXT && read.contains("of the result of call r1~1.1 were omitted"),
        "{read}"
    );
    assert!(request.tools.iter().any(|tool| tool.name == "get_tool_response"));
    fixture.close().await;
}

/// Regression: the model of a fork read of a call that waited for an approval that it may have taken effect.
#[tokio::test]
async fn a_fork_knows_which_calls_had_not_begun() {
    let script = r#"
answers:
  - calls:
      - { name: look, arguments: { order: A } }
      - { name: pay, arguments: { order: A } }
  - { text: I see. }
"#;
    let model = Watched::new(Script::from_text(script).expect("it is valid").named("script"));
    let folder = temporary_folder();
    let tools = tools(folder.path().join("ledger"));
    let settings = Settings::named("runtime");
    let options = FixtureOptions { folder, models: answering(model.clone()), tools, settings };
    let definition =
        "name: clerk\ntools: [look, pay]\ninterrupt_on: { pay: true }\nprofile: fast\n";
    options.define("clerk.yaml", definition);
    let fixture = options.open().await;
    let run = fixture.begin("Go.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.data["reason"], "approval", "{:?}", interrupt.data);
    fixture.abide.call(ForkSession::new("s1").id("s2")).await.expect("it is copied");
    let of_pay = "SELECT 1 FROM tool_calls WHERE tool_name = 'pay' AND session_id = 's2' \
                  AND status = 'cancelled' AND attempt = 0";
    fixture.until(of_pay).await;
    next_turn(
        &fixture,
        &model,
        "s2",
        expect![[r#"
            look failed: The call did not run: the session was forked before it began.
            pay failed: The call did not run: the session was forked before it began.
        "#]],
    )
    .await;
    fixture.close().await;
}
