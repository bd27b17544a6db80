//! Runs of one tenant, after another tenant has created rows with every id that the drivers use. Regression: the
//! ids of calls, sessions and child runs were derived from the run's id, which callers choose, and were shared by
//! all tenants. A run continued with arguments and results of another tenant, an approval was skipped, and a task
//! ran in a session that another tenant could read. Both tenants must see the same as without the attack.
//!
//! Limits of delegation are tested here, too.

use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::{
    AbortRun, ClaimToolCall, CompleteToolCall, CreateSession, DecideApproval, Decision,
    RequestToolCall, StartRun,
};
use abide_client::rows::RunEventKind;
use abide_client::{Abide, Error, Scope};
use abide_tools::{Concurrency, Effect, Function, ToolContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fixture::{FixtureOptions, RuntimeFixture};

const DEFINITION: &str = "
tools: [look, pay]
interrupt_on: { pay: true }
subagents:
  - { name: helper, tools: [look], mode: subagent, system_prompt: You look things up. }
";

const SCRIPT: &str = r#"
answers:
  - calls:
      - { name: look, arguments: { order: A } }
      - { name: task, arguments: { agent: helper, task: "Look at A." } }
  - calls: [{ name: pay, arguments: { order: A } }]
  - text: It is paid.
"#;

/// Waits until no run is active.
async fn until_all_ended(fixture: &RuntimeFixture) {
    let sql = "SELECT id FROM runs WHERE ended_at IS NULL";
    let mut active = fixture.abide.subscribe(sql).await.expect("the subscription starts");
    while let Some(Ok(_)) = active.next().await {
        if active.rows().len() == 0 {
            return;
        }
    }
    panic!("the database was closed before all runs had ended");
}

async fn tenant(fixture: &RuntimeFixture, name: &str) -> Abide {
    let scope = Scope::from([("tenant".to_owned(), name.to_owned())]);
    fixture.abide.acting_for(&scope).await.expect("an embedded client has no restrictions")
}

/// The attacker's preparation, in one of several orders: rows of every kind with the ids that the drivers of acme's
/// run use, in the former, the current and the stored form.
async fn prepare(zeta: &Abide, order: usize) {
    let mut ids: Vec<String> = Vec::new();
    for run in ["order-42", "tenant=acme/order-42"] {
        for call in [":1:1", ":1:2", ":2:1", "~1.1", "~1.2", "~2.1"] {
            ids.push(format!("{run}{call}"));
            ids.push(format!("{run}{call}:run"));
            ids.push(format!("{run}{call}~run"));
            ids.push(format!("{run}{call}~run~1.1"));
        }
        ids.push(run.to_owned());
    }
    let steps = ids.len();
    ids.rotate_left(order * 7 % steps);
    if order % 2 == 1 {
        ids.reverse();
    }
    let mine = CreateSession::new("spy").id("mine");
    zeta.call(mine).await.expect("the session is its own");
    for id in ids {
        // Some are refused, and some become zeta's own rows.
        let session = CreateSession::new("spy").id(&id);
        let _: Result<_, Error> = zeta.call(session).await;
        for tool in ["look", "pay", "task"] {
            let arguments = json!({"order": "FORGED", "agent": "helper", "task": "FORGED"});
            let call = RequestToolCall::new(&id, "mine", tool, arguments);
            if let Ok(call) = zeta.call(call).await
                && let Ok(claimed) = zeta.call(ClaimToolCall::new(&call.value.call_id)).await
                && let Some(token) = claimed.value.fencing_token
            {
                let forged = json!({"text": "FORGED", "content": "FORGED", "exit_code": 0});
                let _: Result<_, Error> =
                    zeta.call(CompleteToolCall::new(&call.value.call_id, token, forged)).await;
            }
        }
        let run = StartRun::new(&id).id(&id).agent("spy");
        let _: Result<_, Error> = zeta.call(run).await;
    }
}

/// Everything that a tenant sees of runs, without seqs and times.
async fn sight(abide: &Abide) -> Vec<Vec<Value>> {
    let mut seen = Vec::new();
    for sql in [
        "SELECT id, agent, status, parent_id, scope, metadata FROM sessions ORDER BY id",
        "SELECT id, session_id, agent, parent_id, status, turn, output ->> '$.content' FROM runs ORDER BY id",
        "SELECT call_id, session_id, tool_name, arguments, status, result FROM tool_calls ORDER BY 1",
        "SELECT call_id, tool_name, arguments, status, decided_by FROM approvals ORDER BY 1",
        "SELECT session_id, role, content FROM agent_state ORDER BY session_id, id",
        "SELECT run_id, parent_id, root_id, call_id, depth FROM delegations ORDER BY 1",
        // How often a helper reports to the run above it depends on timing.
        "SELECT run_id, kind FROM run_events WHERE kind NOT IN ('token', 'done') \
         AND data ->> '$.status' IS NOT 'delegating' ORDER BY run_id, number",
    ] {
        let rows: Vec<Vec<Value>> = abide
            .sql(sql)
            .rows()
            .await
            .expect("it can be read")
            .rows
            .iter()
            .map(|row| row.iter().map(abide_client::Value::to_json).collect())
            .collect();
        seen.extend(rows);
    }
    seen
}

/// Handles acme's order from the request to the answer. Returns what acme sees, what zeta sees, and the ledger.
async fn handled(attack: Option<usize>) -> (Vec<Vec<Value>>, Vec<Vec<Value>>, Vec<String>) {
    let plan = FixtureOptions::new(DEFINITION, SCRIPT);
    plan.define("spy.yaml", "name: spy\nmode: all\n");
    let fixture = plan.open().await;
    let acme = tenant(&fixture, "acme").await;
    let zeta = tenant(&fixture, "zeta").await;
    if let Some(order) = attack {
        prepare(&zeta, order).await;
        // Its own runs, if any started, end before acme's run.
        until_all_ended(&fixture).await;
    }
    let before = sight(&zeta).await;
    let done_before = fixture.ledger().len();
    let session = CreateSession::new("clerk").id("order-42");
    acme.call(session).await.expect("it is created");
    let run = StartRun::new("order-42").id("order-42").input("Pay A.");
    let run = acme.call(run).await.expect("the run starts").into_inner();
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.kind, RunEventKind::Interrupt, "{:?}", interrupt.data);
    let call =
        interrupt.data["tool_call_id"].as_str().expect("the event has the call id").to_owned();
    assert!(
        !fixture.ledger()[done_before..].contains(&"pay A".to_owned()),
        "the call is not approved yet"
    );
    let approval = DecideApproval::new(Decision::Approve).call_id(call);
    acme.call(approval).await.expect("the decision succeeds");
    let (_, done) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(done.kind, RunEventKind::Done, "{:?}", done.data);
    assert_eq!(sight(&zeta).await, before, "zeta does not see acme's run");
    let seen = (sight(&acme).await, before, fixture.ledger()[done_before..].to_vec());
    fixture.close().await;
    seen
}

#[tokio::test]
async fn a_run_is_not_affected_by_rows_of_another_tenant() {
    let (alone, nothing, done) = handled(None).await;
    assert_eq!(nothing, Vec::<Vec<Value>>::new());
    assert!(done.contains(&"pay A".to_owned()), "{done:?}");
    for order in 0..4 {
        let (beside, theirs, done_beside) = handled(Some(order)).await;
        assert_eq!(alone, beside, "order {order}");
        assert_eq!(done, done_beside, "order {order}");
        assert!(!theirs.is_empty(), "the attacker created rows");
    }
}

/// The driver of a run is limited to the scope of the run's session, and the log records that.
#[tokio::test]
async fn a_driver_acts_within_the_scope_of_the_session() {
    let fixture = RuntimeFixture::start("tools: [look]\n", "answers: [{ text: Hello. }]").await;
    let acme = tenant(&fixture, "acme").await;
    let session = acme.call(CreateSession::new("clerk")).await.expect("it is created").into_inner();
    let run = StartRun::new(&session.id).input("Hello?");
    let run = acme.call(run).await.expect("the run starts").into_inner();
    fixture.output(&run.id, 0).await;
    let sql = "SELECT DISTINCT reducer, authority ->> '$.scope.tenant' FROM events \
               WHERE reducer IN ('record_run', 'append_message', 'finish_run') ORDER BY 1";
    let events: Vec<(String, Option<String>)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    let of = |reducer: &str| (reducer.to_owned(), Some("acme".to_owned()));
    assert_eq!(events, [of("append_message"), of("finish_run"), of("record_run")]);
    fixture.close().await;
}

/// A model that delegates twice in each answer, to agents that do the same. The tree stops growing at its limit,
/// and an abort of the root run ends all of it.
#[tokio::test]
async fn delegation_is_limited_and_an_abort_ends_the_whole_tree() {
    // Each level may delegate only to the next one; other requests are refused.
    let calls = ["two", "two", "three", "three", "four", "four"]
        .map(|agent| format!("{{ name: task, arguments: {{ agent: {agent}, task: Go on. }} }}"))
        .join(", ");
    let answers = vec![format!("  - calls: [{calls}]\n"); 40].concat();
    let plan = FixtureOptions::new(
        "subagents: [two]\nlimits: { descendants: 12, delegation_depth: 2 }\n",
        &format!("answers:\n{answers}"),
    );
    plan.define("two.yaml", "name: two\nmode: subagent\nsubagents: [three]\n");
    plan.define("three.yaml", "name: three\nmode: subagent\nsubagents: [four]\n");
    plan.define("four.yaml", "name: four\nmode: subagent\n");
    let fixture = plan.open().await;
    assert_eq!(*fixture.problems.borrow(), []);
    let run = fixture.begin("Go.").await;
    fixture
        .until(
            "SELECT id FROM run_events WHERE kind = 'tool_result' AND data LIKE '%the limit is%'",
        )
        .await;
    fixture.abide.call(AbortRun::new(&run.id)).await.expect("it is aborted");
    until_all_ended(&fixture).await;
    let counts: Vec<(i64, i64, i64)> = fixture
        .abide
        .sql(
            "SELECT (SELECT count(*) FROM runs), (SELECT max(depth) FROM delegations), \
              (SELECT count(*) FROM delegations)",
        )
        .fetch()
        .await
        .expect("it can be read");
    let [(runs, depth, delegated)] = counts[..] else { panic!("one row") };
    assert!(runs == delegated + 1 && delegated <= 12 && depth <= 2, "{counts:?}");
    tokio::time::timeout(Duration::from_secs(60), fixture.close())
        .await
        .expect("the runtime stops");
}

/// An agent that delegates to itself, directly or indirectly, is invalid in a file and at registration.
#[tokio::test]
async fn a_delegation_cycle_is_refused() {
    let plan =
        FixtureOptions::new("subagents: [other]\nmode: all\n", "answers: [{ text: Hello. }]");
    plan.define("other.yaml", "name: other\nmode: all\nsubagents: [clerk]\n");
    plan.define("own.yaml", "name: own\nmode: all\nsubagents: [own]\n");
    plan.define("good.yaml", "name: good\n");
    let fixture = plan.open().await;
    let problems: Vec<String> =
        fixture.problems.borrow().iter().map(|problem| problem.error.to_string()).collect();
    assert_eq!(
        problems,
        [
            "delegation cycle: clerk → other → clerk",
            "delegation cycle: other → clerk → other",
            "delegation cycle: own → own"
        ]
    );
    let names: Vec<(String,)> = fixture
        .abide
        .sql("SELECT name FROM agents WHERE NOT native ORDER BY name")
        .fetch()
        .await
        .expect("it can be read");
    assert_eq!(names, [("good".to_owned(),)]);
    let register = async |name: &str, subagents: Value| {
        let args = json!({"name": name, "definition": {"subagents": subagents}});
        fixture.abide.call_by_name("register_agent", args).await.map(drop)
    };
    register("a", json!(["b"])).await.expect("b does not exist yet");
    register("b", json!([{"name": "c", "subagents": ["d"]}])).await.expect("there is no cycle");
    for (name, subagents) in [("d", json!(["a"])), ("e", json!(["e"])), ("b/c", json!(["a"]))] {
        let refused = register(name, subagents).await.expect_err("the cycle is refused");
        assert!(refused.to_string().contains("would delegate to itself"), "{name}: {refused}");
    }
    fixture.close().await;
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A run beyond the limit of its scope has no driver, and delays no run of another scope.
#[tokio::test]
async fn a_tenant_at_its_limit_of_runs_leaves_room_for_another() {
    let script = "answers: [{ calls: [{ name: hold, arguments: {} }] }, { text: Done. }]";
    let mut plan = FixtureOptions::new("tools: [hold]\n", script);
    plan.define("other.yaml", "name: other\nmode: all\n");
    plan.settings.runs = Concurrency::new(2, 1);
    let holds = Arc::new(Semaphore::new(0));
    let released = Arc::new(Semaphore::new(0));
    let begun = Arc::clone(&holds);
    let release = Arc::clone(&released);
    let hold = move |_: Nothing, _: ToolContext| {
        let begun = Arc::clone(&begun);
        let release = Arc::clone(&release);
        async move {
            begun.add_permits(1);
            release.acquire().await.map(|_| "held".to_owned()).map_err(|why| why.to_string())
        }
    };
    let hold = Function::new("hold", "Waits.", hold).effect(Effect::ReadOnly);
    plan.tools.add(hold).expect("the tool is valid");
    let fixture = plan.open().await;
    let acme = tenant(&fixture, "acme").await;
    let zeta = tenant(&fixture, "zeta").await;
    let begin = async |tenant: &Abide, agent: &str| {
        let session =
            tenant.call(CreateSession::new(agent)).await.expect("it is created").into_inner();
        let run = StartRun::new(&session.id).input("Hold.");
        tenant.call(run).await.expect("the run starts").value.id
    };
    let runs = [begin(&acme, "clerk").await, begin(&acme, "clerk").await];
    drop(holds.acquire().await.expect("one of them holds"));
    let other = begin(&zeta, "other").await;
    fixture.output(&other, 0).await;
    let sql = "SELECT count(*) FROM runs WHERE status = 'running' AND driver IS NULL";
    let waiting: Vec<(i64,)> = fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(waiting, [(1,)], "the second run of acme waits");
    released.add_permits(1);
    for run in runs {
        let (_, done) = fixture.output(&run, 0).await;
        assert_eq!(done.kind, RunEventKind::Done, "{:?}", done.data);
    }
    fixture.close().await;
}

/// A handoff and a task are for the tenant that started the run, although the driver has every permission. The model learns that
/// it was refused, and the turn goes on.
#[tokio::test]
async fn an_agent_takes_over_only_for_those_whom_it_admits() {
    let plan = FixtureOptions::new(
        "subagents: [billing, ledger]\n",
        r#"
answers:
  - calls: [{ name: handoff_to_billing, arguments: { message: "Go on." } }]
  - calls: [{ name: task, arguments: { agent: ledger, task: "Look." } }]
  - text: I stay.
"#,
    );
    let allow = "allow: { scopes: [{ tenant: zeta }] }\n";
    plan.define("billing.yaml", &format!("mode: subagent\nas_handoff: {{}}\n{allow}"));
    plan.define("ledger.yaml", &format!("mode: subagent\n{allow}"));
    let fixture = plan.open().await;
    assert_eq!(*fixture.problems.borrow(), []);
    let acme = tenant(&fixture, "acme").await;
    let session = acme.call(CreateSession::new("clerk")).await.expect("it is created").into_inner();
    let run = acme
        .call(StartRun::new(&session.id).input("Pay."))
        .await
        .expect("the run starts")
        .into_inner();
    let (output, done) = fixture.output(&run.id, 0).await;
    assert_eq!(done.kind, RunEventKind::Done, "{output}");
    for refusal in ["there is no tool handoff_to_billing", "there is no agent ledger"] {
        assert!(output.contains(refusal), "{output}");
    }
    assert!(!output.contains("delegation"), "{output}");
    fixture.close().await;
}
