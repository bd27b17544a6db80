//! Delegated runs: their time limits, their approvals, their budgets and their events.

use std::future::pending;

use abide_client::arguments::{AbortRun, DecideApproval, Decision, ResumeSession, SuspendSession};
use abide_client::rows::RunEventKind;
use abide_tools::{Concurrency, Effect, Function, ToolContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fixture::{FixtureOptions, RuntimeFixture, providers};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A clerk that delegates to `helper`, with these fields and scripts.
fn plan(clerk: &str, helper: &str, scripts: [&str; 2]) -> FixtureOptions {
    let clerk = format!("config: {{ provider: script }}\nsubagents: [helper]\n{clerk}");
    let models = providers(&[("script", scripts[0]), ("helps", scripts[1])]);
    let plan = FixtureOptions { models, ..FixtureOptions::new(&clerk, "answers: []") };
    let helper = format!("mode: subagent\nconfig: {{ provider: helps }}\n{helper}");
    plan.define("helper.yaml", &helper);
    plan
}

const DELEGATES: &str = r#"
answers:
  - calls: [{ name: task, arguments: { agent: helper, task: Pay A. } }]
  - text: It is arranged.
"#;

const PAYS: &str = r#"
answers:
  - calls: [{ name: pay, arguments: { order: A } }]
  - text: Paid.
"#;

const ASKS: &str = "tools: [pay]\ninterrupt_on: { pay: true }\n";

/// The reason for which each run waits, and its end.
async fn runs(fixture: &RuntimeFixture) -> Vec<(String, String, Option<String>)> {
    let sql = "SELECT id, status, reason FROM runs ORDER BY id";
    fixture.abide.sql(sql).fetch().await.expect("the query succeeds")
}

fn row(id: &str, status: &str, reason: Option<&str>) -> (String, String, Option<String>) {
    (id.to_owned(), status.to_owned(), reason.map(str::to_owned))
}

/// Regression: the parent reported nothing and waited for ever.
#[tokio::test]
async fn an_approval_of_a_subagent_makes_its_parent_wait_visibly() {
    let fixture = plan("", ASKS, [DELEGATES, PAYS]).open().await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    let call_id = "r1~1.1~run~1.1";
    let request = json!({"tool_call_id": call_id, "tool_name": "pay", "args": {"order": "A"},
        "status": "awaiting_approval", "agent": "helper", "run_id": "r1~1.1~run",
        "session_id": "r1~1.1", "approval_id": interrupt.data["approval_id"]});
    let expected = json!({"action_requests": [request], "reason": "approval", "agent": "clerk",
        "session_id": "s1", "tool_call_id": call_id, "tool_name": "pay", "args": {"order": "A"},
        "approval_id": interrupt.data["approval_id"]});
    assert_eq!(interrupt.data, expected);
    fixture.until("SELECT id FROM runs WHERE id = 'r1' AND status = 'waiting'").await;
    let both = ["r1", "r1~1.1~run"].map(|id| row(id, "waiting", Some("approval")));
    assert_eq!(runs(&fixture).await, both);
    let sql = "SELECT id, status FROM sessions ORDER BY id";
    let sessions: Vec<(String, String)> = fixture.abide.sql(sql).fetch().await.expect("read");
    assert!(sessions.iter().all(|(_, status)| status == "suspended"), "{sessions:?}");
    let approval = DecideApproval::new(Decision::Approve).call_id("r1~1.1~run~1.1");
    fixture.abide.call(approval).await.expect("the decision succeeds");
    let (rendered, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is arranged.");
    assert!(
        rendered
            .contains(r#"tool_result {"exit_code":0,"output":"Paid.","status":"succeeded","tool_call_id":"r1~1.1"}"#),
        "{rendered}"
    );
    assert_eq!(fixture.ledger(), ["pay A"]);
    fixture.close().await;
}

#[tokio::test]
async fn a_rejection_reaches_the_subagent_and_the_parent_continues() {
    let fixture = plan("", ASKS, [DELEGATES, PAYS]).open().await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    let call_id = interrupt.data["tool_call_id"].as_str().expect("it names the call").to_owned();
    let decision = DecideApproval::new(Decision::Reject).call_id(call_id).comment("too much");
    fixture.abide.call(decision).await.expect("the decision succeeds");
    let (_, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is arranged.");
    assert_eq!(fixture.ledger(), [""; 0]);
    fixture.close().await;
}

/// Two delegations of one answer: each decision continues its run, and the parent asks again for what is left.
#[tokio::test]
async fn the_parent_waits_for_each_of_its_subagents() {
    let two = r#"
answers:
  - calls:
      - { name: task, arguments: { agent: helper, task: Pay A. } }
      - { name: task, arguments: { agent: helper, task: Pay B. } }
  - text: Both are arranged.
"#;
    let fixture = plan("", ASKS, [two, PAYS]).open().await;
    let run = fixture.begin("Pay A and B.").await;
    let mut after = 0;
    let mut asked = Vec::new();
    loop {
        let (_, last) = fixture.output(&run.id, after).await;
        after = last.number;
        if last.kind == RunEventKind::Done {
            break;
        }
        let requests = last.data["action_requests"].as_array().expect("a list").clone();
        let call_id = requests[0]["tool_call_id"].as_str().expect("a call").to_owned();
        asked.push(requests.len());
        let approval = DecideApproval::new(Decision::Approve).call_id(call_id);
        fixture.abide.call(approval).await.expect("the decision succeeds");
    }
    assert_eq!(asked, [2, 1]);
    fixture.close().await;
}

#[tokio::test]
async fn an_approval_surfaces_through_two_levels() {
    let plan = plan(
        "",
        "subagents: [deep]\n",
        [
            DELEGATES,
            r#"
answers:
  - calls: [{ name: task, arguments: { agent: deep, task: Pay A. } }]
  - text: Done.
"#,
        ],
    );
    let models = providers(&[
        ("script", DELEGATES),
        (
            "helps",
            "answers: [{ calls: [{ name: task, arguments: { agent: deep, task: Pay. } }] }, { text: Done. }]",
        ),
        ("deep", PAYS),
    ]);
    plan.define("deep.yaml", &format!("mode: subagent\nconfig: {{ provider: deep }}\n{ASKS}"));
    let fixture = FixtureOptions { models, ..plan }.open().await;
    let run = fixture.begin("Pay A.").await;
    let (rendered, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.data["action_requests"][0]["agent"], "deep");
    // Events of the run two levels below are here, too.
    assert!(rendered.contains(r#""agent":"deep","data":{"args":{"order":"A"}"#), "{rendered}");
    let call_id = interrupt.data["tool_call_id"].as_str().expect("it names the call").to_owned();
    let approval = DecideApproval::new(Decision::Approve).call_id(call_id);
    fixture.abide.call(approval).await.expect("the decision succeeds");
    let (_, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is arranged.");
    fixture.close().await;
}

#[tokio::test]
async fn the_abort_of_a_waiting_subagent_continues_its_parent() {
    let fixture = plan("", ASKS, [DELEGATES, PAYS]).open().await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    fixture.until("SELECT id FROM runs WHERE id = 'r1' AND status = 'waiting'").await;
    let abort = AbortRun::new("r1~1.1~run").reason("enough");
    fixture.abide.call(abort).await.expect("it is aborted");
    let (rendered, _) = fixture.output(&run.id, interrupt.number).await;
    assert!(rendered.contains("agent helper failed: enough"), "{rendered}");
    fixture.close().await;
}

/// A subagent whose session is suspended by a supervisor: the interrupt names that session.
#[tokio::test]
async fn a_suspended_subagent_is_named() {
    let plan = plan(
        "",
        "tools: [\"*\"]\n",
        [
            DELEGATES,
            "answers:\n  \
        - { calls: [{ name: wait, arguments: {} }] }\n  - { text: Well. }\n",
        ],
    );
    let (enter, mut entered) = tokio::sync::mpsc::unbounded_channel();
    let (go, gone) = tokio::sync::watch::channel(false);
    let wait = move |_: Nothing, _: ToolContext| {
        let enter = enter.clone();
        let mut gone = gone.clone();
        async move {
            enter.send(()).map_err(|why| why.to_string())?;
            gone.wait_for(|gone| *gone).await.map_err(|why| why.to_string())?;
            Ok::<_, String>("waited")
        }
    };
    plan.tools.add(Function::new("wait", "Waits.", wait)).expect("it is a tool");
    let fixture = plan.open().await;
    let run = fixture.begin("Wait.").await;
    entered.recv().await.expect("the tool runs");
    let suspend = SuspendSession::new("r1~1.1");
    fixture.abide.call(suspend).await.expect("it is suspended");
    go.send(true).expect("the tool listens");
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(
        interrupt.data,
        json!({"action_requests": [], "reason": "resume", "session_id": "r1~1.1", "agent": "clerk"})
    );
    fixture.abide.call(ResumeSession::new("r1~1.1")).await.expect("it is resumed");
    let (_, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is arranged.");
    fixture.close().await;
}

/// Regression: delegated work was ended after 60 seconds, the default timeout of a tool.
#[tokio::test]
async fn a_delegation_has_no_time_limit_of_its_own() {
    let fixture = plan(
        "limits: { wall_clock_seconds: 500, wall_clock_counts_waits: true }\n",
        "",
        [DELEGATES, "answers: [{ text: Paid. }]"],
    );
    let fixture = fixture.open().await;
    let run = fixture.begin("Pay A.").await;
    fixture.output(&run.id, 0).await;
    let sql = "SELECT (SELECT timeout_ms FROM tools WHERE name = 'task'), \
               (SELECT deadline_at FROM runs WHERE parent_id IS NOT NULL) \
               - (SELECT created_at FROM runs WHERE parent_id IS NULL)";
    let found: Vec<(Option<i64>, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(found, [(None, 500_000_000)], "the run's own limit");
    fixture.close().await;
}

#[tokio::test]
async fn delegation_seconds_end_a_delegated_run() {
    let plan = plan(
        "limits: { delegation_seconds: 1 }\n",
        "tools: [\"*\"]\n",
        [
            DELEGATES,
            "answers:\n  \
        - { calls: [{ name: wait, arguments: {} }] }\n",
        ],
    );
    let run = |_: Nothing, _: ToolContext| pending::<Result<(), String>>();
    let wait = Function::new("wait", "Waits.", run).effect(Effect::ReadOnly);
    plan.tools.add(wait).expect("it is a tool");
    let fixture = plan.open().await;
    let run = fixture.begin("Wait.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert!(
        rendered.contains("agent helper failed: the run has reached its time limit"),
        "{rendered}"
    );
    assert_eq!(last.data["assistant_data"]["content"], "It is arranged.");
    fixture.close().await;
}

/// Regression: limit 150; the parent used 114, its child 117, and the run was `done`.
#[tokio::test]
async fn tokens_of_a_subagent_count_against_the_budget_of_its_parent() {
    let parent = r#"
answers:
  - calls: [{ name: task, arguments: { agent: helper, task: Pay A. } }]
    usage: { input_tokens: 50, output_tokens: 7 }
  - { text: It is arranged., usage: { input_tokens: 50, output_tokens: 7 } }
"#;
    let child = "answers: [{ text: Paid., usage: { input_tokens: 100, output_tokens: 17 } }]";
    let fixture = plan("limits: { tokens: 150 }\n", "", [parent, child]).open().await;
    let run = fixture.begin("Pay A.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    let why = "run r1 has reached its limit of 150 tokens";
    assert_eq!(last.data, json!({"code": "token_limit", "message": why}));
    let sql = "SELECT tokens, reserved_tokens FROM run_budgets";
    let budget: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(budget, [(174, 0)]);
    fixture.close().await;
}

/// Totals of usage for each model, as a view.
#[tokio::test]
async fn usage_totals_per_model() {
    let parent = r#"
answers:
  - calls: [{ name: task, arguments: { agent: helper, task: Pay A. } }]
    usage: { input_tokens: 50, output_tokens: 7 }
  - { text: It is arranged., usage: { input_tokens: 60, output_tokens: 8 } }
"#;
    let child = "answers: [{ text: Paid., usage: { input_tokens: 100, output_tokens: 17 } }]";
    let fixture = plan("", "", [parent, child]).open().await;
    let run = fixture.begin("Pay A.").await;
    fixture.output(&run.id, 0).await;
    let sql = "SELECT provider, model, count(*), sum(input_tokens), sum(output_tokens) \
               FROM model_usage GROUP BY provider, model ORDER BY provider";
    let totals: Vec<(String, String, i64, i64, i64)> =
        fixture.abide.sql(sql).fetch().await.expect("it is read");
    let row = |provider: &str, count: i64, input: i64, output: i64| {
        (provider.to_owned(), format!("{provider}-model"), count, input, output)
    };
    assert_eq!(totals, [row("helps", 1, 100, 17), row("script", 2, 110, 15)]);
    fixture.close().await;
}

/// The limit of the parent ends a child, before its model is asked.
#[tokio::test]
async fn a_subagent_without_a_limit_stops_at_the_limit_of_its_parent() {
    let parent = r#"
answers:
  - calls: [{ name: task, arguments: { agent: helper, task: Look. } }]
    usage: { input_tokens: 5, output_tokens: 5 }
"#;
    let child = "repeat: true\nanswers: [{ calls: [{ name: look, arguments: { order: A } }], \
                 usage: { input_tokens: 5, output_tokens: 5 } }]";
    let fixture = plan("limits: { tokens: 40 }\n", "tools: [look]\n", [parent, child]);
    let fixture = fixture.open().await;
    let run = fixture.begin("Look.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    let why = "agent helper failed: run r1 has reached its limit of 40 tokens";
    assert!(rendered.contains(why), "{rendered}");
    assert_eq!(last.data["code"], "token_limit");
    assert_eq!(fixture.ledger(), ["look A"; 3]);
    fixture.close().await;
}

/// Concurrent runs of a tree reserve before they ask: they do not all spend the same remainder.
#[tokio::test]
async fn concurrent_subagents_share_the_rest_of_the_budget() {
    let call = "{ name: task, arguments: { agent: helper, task: Look. } }";
    let usage = "usage: { input_tokens: 5, output_tokens: 5 }";
    let parent = format!("answers:\n  - {{ calls: [{call}, {call}, {call}, {call}], {usage} }}\n");
    let child = format!("repeat: true\nanswers: [{{ text: Paid., {usage} }}]");
    let fixture = plan("limits: { tokens: 30 }\n", "", [&parent, &child]).open().await;
    let run = fixture.begin("Look.").await;
    fixture.output(&run.id, 0).await;
    let sql = "SELECT status, count(*) FROM runs WHERE parent_id = 'r1' GROUP BY status ORDER BY 1";
    let ended: Vec<(String, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(ended, [("done".to_owned(), 2), ("failed".to_owned(), 2)]);
    let sql = "SELECT tokens, (SELECT count(*) FROM reservations) FROM run_budgets";
    let budget: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(budget, [(30, 0)]);
    fixture.close().await;
}

#[tokio::test]
async fn events_of_a_subagent_appear_in_the_stream_of_its_parent() {
    let fixture = plan("", "tools: [pay]\n", [DELEGATES, PAYS]).open().await;
    let run = fixture.begin("Pay A.").await;
    fixture.output(&run.id, 0).await;
    let sql = "SELECT data FROM run_events WHERE run_id = 'r1' \
               AND data ->> 'status' = 'delegating' ORDER BY number";
    let found: Vec<(abide_client::Json,)> = fixture.abide.sql(sql).fetch().await.expect("read");
    let copies: Vec<Value> = found.iter().map(|(data,)| data.value()["child"].clone()).collect();
    let sql = "SELECT number, turn, kind, data FROM run_events WHERE run_id = 'r1~1.1~run' \
               ORDER BY number";
    let own: Vec<(i64, i64, String, abide_client::Json)> =
        fixture.abide.sql(sql).fetch().await.expect("it is read");
    let own: Vec<Value> = own
        .into_iter()
        .map(|(number, turn, event, data)| {
            json!({"run_id": "r1~1.1~run", "session_id": "r1~1.1", "agent": "helper",
                "number": number, "turn": turn, "event": event, "data": data.value()})
        })
        .collect();
    assert_eq!(copies, own);
    assert_eq!(copies.last().expect("there are some")["event"], "done");
    fixture.close().await;
}

/// A delegated run is not counted, so that the run that waits for it does not wait for ever.
#[tokio::test]
async fn a_delegated_run_needs_no_second_place() {
    let mut plan = plan("", "tools: [pay]\n", [DELEGATES, PAYS]);
    plan.settings.runs = Concurrency::new(1, 1);
    let fixture = plan.open().await;
    let run = fixture.begin("Pay A.").await;
    let (_, done) = fixture.output(&run.id, 0).await;
    assert_eq!(done.kind, RunEventKind::Done, "{:?}", done.data);
    fixture.close().await;
}
