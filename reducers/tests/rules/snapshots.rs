//! Snapshots and forks: what they copy, what they refuse, and what a forged one cannot do.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal, Row};
use abide_tests::world::{World, run};
use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# export_run
create_session {"agent":"support","id":"small","scope":{"tenant":"a"}}
start_run {"session_id":"small","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
record_pause@admin {"id":"mine","fencing_token":"$seq","stage":"after_agent","reason":"x"}
export_run {"id":"mine"}
# import_run
import_run {"id":"new","any_definition":true,"snapshot":{"format":"abide-run","version":4,"id":"snap","created_at":0,"is_copy":false,"tools":["put"],"agents":[{"name":"support","revision":1}],"runs":[{"id":"r","session_id":"s","agent":"support","revision":1,"scope":{"tenant":"a"},"metadata":{},"iterations":0,"tool_calls":0,"input_tokens":0,"output_tokens":0,"usage_missing":0,"budget_tokens":0,"budget_cost_micros":0,"began_at":0,"messages":[{"role":"user","kind":"message","content":"x"}],"calls":[]}]}}
# fork_session
create_session {"agent":"support","id":"small","scope":{"tenant":"a"}}
append_message {"session_id":"small","role":"user","content":"x"}
fork_session {"session_id":"small"}
# continue_fork
fork_session {"session_id":"big"}
+1
"#;

/// A caller of a tenant.
pub(super) fn of_tenant(tenant: &str, role: &str) -> Caller {
    let scope = BTreeMap::from([("tenant".to_owned(), tenant.to_owned())]);
    Caller::with(format!("{role}-{tenant}"), role, BTreeSet::new(), scope)
}

pub(super) async fn call(
    world: &World,
    who: &Caller,
    reducer: &str,
    args: JsonValue,
) -> Result<JsonValue, Refusal> {
    let done = world.engine().call(who, reducer, &args, None).await?;
    Ok(serde_json::from_str(&done.result).unwrap())
}

/// A file with the tools and the agent, and no sessions.
pub(super) async fn file() -> World {
    let world = World::new(abide_reducers::modules);
    for (reducer, args) in [
        ("register_tool", json!({"name": "pay"})),
        ("register_tool", json!({"name": "look", "effect": "read_only"})),
        ("register_tool", json!({"name": "task", "effect": "idempotent"})),
        (
            "register_agent",
            json!({"name": "clerk", "mode": "all",
                "definition": {"tools": ["pay", "look"], "limits": {"tokens": 1000},
                    "subagents": ["helper"]}}),
        ),
        ("register_agent", json!({"name": "helper", "mode": "subagent", "definition": {}})),
        ("register_agent", json!({"name": "vault", "mode": "subagent", "definition": {}})),
    ] {
        world.call(reducer, args).await.unwrap();
    }
    world
}

/// A paused run of a caller: one of its calls has succeeded, the other is requested.
pub(super) async fn paused(world: &World, who: &Caller) {
    paused_after(world, who, "complete_tool_call", json!({"result": {"text": "there"}})).await;
}

/// A paused run of a caller: one of its calls has ended by a reducer, the other is requested.
async fn paused_after(world: &World, who: &Caller, ends: &str, mut outcome: JsonValue) {
    let session = json!({"agent": "clerk", "id": "s1", "title": "A parcel"});
    call(world, who, "create_session", session).await.unwrap();
    let start = json!({"session_id": "s1", "id": "r1", "input": "Pay it."});
    let begun = call(world, who, "start_run", start).await.unwrap();
    let run = begun["id"].as_str().unwrap();
    let data = json!({"run_id": run, "iteration": 1, "calls": [
        {"call_id": format!("{run}~1.1"), "name": "look"},
        {"call_id": format!("{run}~1.2"), "name": "pay"}]});
    let answer =
        json!({"session_id": "s1", "role": "assistant", "content": "I look.", "data": data});
    call(world, who, "append_message", answer).await.unwrap();
    let claim = json!({"id": run, "driver": "d", "lease_ms": 60_000});
    let token = call(world, who, "claim_run", claim).await.unwrap()["fencing_token"].clone();
    for (rest, tool) in [("1.1", "look"), ("1.2", "pay")] {
        let request = json!({"call_id": format!("{run}~{rest}"), "session_id": "s1",
            "tool_name": tool, "arguments": {}, "run_id": run, "run_fencing_token": token});
        call(world, who, "request_tool_call", request).await.unwrap();
    }
    let first = format!("{run}~1.1");
    let claim = json!({"call_id": first, "lease_ms": 60_000});
    let claimed = call(world, who, "claim_tool_call", claim).await.unwrap();
    outcome["call_id"] = json!(first);
    outcome["fencing_token"] = claimed["fencing_token"].clone();
    call(world, who, ends, outcome).await.unwrap();
    let spent = json!({"iteration": true, "tool_calls": 2, "input_tokens": 40, "output_tokens": 2});
    let record = json!({"id": run, "fencing_token": token, "spent": spent});
    call(world, who, "record_run", record).await.unwrap();
    let pause = json!({"id": run, "fencing_token": token, "stage": "after_agent", "reason": "x"});
    call(world, who, "record_pause", pause).await.unwrap();
}

/// A snapshot of a run in a file of its own.
async fn snapshot() -> JsonValue {
    let world = file().await;
    let local = Caller::local();
    paused(&world, &local).await;
    call(&world, &local, "export_run", json!({"id": "r1"})).await.unwrap()
}

fn import(snapshot: &JsonValue) -> JsonValue {
    json!({"snapshot": snapshot})
}

fn line(row: &Row) -> String {
    let cells: Vec<JsonValue> = row.iter().map(|cell| cell.to_json()).collect();
    format!("{}\n", json!(cells))
}

async fn one(world: &World, sql: &str) -> JsonValue {
    world.rows(sql).await[0][0].to_json()
}

/// Regression: a snapshot did not have the exit code of a call that had failed.
#[test]
fn the_result_of_a_failed_call_moves_with_it() {
    run(async {
        let world = file().await;
        let local = Caller::local();
        let outcome = json!({"error": "no such order", "exit_code": 3});
        paused_after(&world, &local, "fail_tool_call", outcome).await;
        let snapshot = call(&world, &local, "export_run", json!({"id": "r1"})).await.unwrap();
        let there = file().await;
        there.call("import_run", import(&snapshot)).await.unwrap();
        let sql = "SELECT status, error, result FROM tool_calls ORDER BY call_id LIMIT 1";
        let row: Vec<JsonValue> =
            there.rows(sql).await[0].iter().map(|cell| cell.to_json()).collect();
        assert_eq!(json!(row), json!(["failed", "no such order", "{\"exit_code\":3}"]));
    });
}

#[test]
fn a_moved_run_ends_here_and_continues_there() {
    run(async {
        let world = file().await;
        let local = Caller::local();
        paused(&world, &local).await;
        let long = json!({"id": "r1", "tag": "x".repeat(10_000)});
        let refused = world.call("export_run", long).await.unwrap_err();
        assert_eq!(refused.code, Code::LimitExceeded);
        let export = json!({"id": "r1", "tag": "for review"});
        let snapshot = call(&world, &local, "export_run", export).await.unwrap();
        assert_eq!(snapshot["tag"], "for review");
        let again = world.call("export_run", json!({"id": "r1"})).await.unwrap();
        assert!(again.duplicate, "a repeated export returns the same snapshot");
        assert_eq!(serde_json::from_str::<JsonValue>(&again.result).unwrap(), snapshot);
        assert_eq!(one(&world, "SELECT status FROM runs").await, "aborted");
        assert_eq!(one(&world, "SELECT error_code FROM runs").await, "moved");
        let resumed = world.call("resume_run", json!({"id": "r1"})).await;
        assert_eq!(resumed.unwrap_err().code, Code::BadTransition);
        let open = one(&world, "SELECT status FROM tool_calls WHERE tool_name = 'pay'").await;
        assert_eq!(open, "cancelled", "its open call does not run here");

        let target = file().await;
        let imported = call(&target, &local, "import_run", import(&snapshot)).await.unwrap();
        assert_eq!(imported["status"], "running");
        let same = target.call("import_run", import(&snapshot)).await.unwrap();
        assert!(same.duplicate);
        let mut other = import(&snapshot);
        other["id"] = json!("r2");
        let refused = target.call("import_run", other).await.unwrap_err();
        assert_eq!(refused.code, Code::Conflict, "{refused}");
        let mut output = String::new();
        for sql in [
            "SELECT role, content, data FROM agent_state",
            "SELECT call_id, status, result, settled_by FROM tool_calls",
            "SELECT id, session_id, status, iterations, tool_calls, input_tokens FROM runs",
            "SELECT id, title, status FROM sessions",
            "SELECT run_id, tokens, token_limit FROM run_budgets",
            "SELECT run_id, origin_run_id, is_copy FROM run_imports",
            "SELECT data ->> '$.tag' FROM run_events WHERE number = 1",
        ] {
            output.extend(target.rows(sql).await.iter().map(line));
        }
        expect![[r#"
            ["user","Pay it.",null]
            ["assistant","I look.","{\"calls\":[{\"call_id\":\"r1~1.1\",\"name\":\"look\"},{\"call_id\":\"r1~1.2\",\"name\":\"pay\"}],\"iteration\":1,\"run_id\":\"r1\"}"]
            ["r1~1.1","succeeded","{\"text\":\"there\"}","local"]
            ["r1","r1","running",1,2,40]
            ["r1","A parcel","active"]
            ["r1",42,1000]
            ["r1","r1",0]
            ["for review"]
        "#]].assert_eq(&output);
    });
}

#[test]
fn only_a_run_that_waits_is_exported() {
    check(
        r#"
        register_agent name=clerk definition={}
        register_tool name=pay
        create_session agent=clerk id=s1
        start_run session_id=s1 id=r1
        export_run id=r1
        export_run id=r9
        claim_run id=r1 driver=d lease_ms=60000
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={} claim_lease_ms=60000
        record_pause id=r1 fencing_token=5 stage=after_agent reason=x
        export_run id=r1
        fail_tool_call call_id=c1 fencing_token=6 error=x
        abort_run id=r1
        export_run id=r1
        replay
        "#,
        expect![[r#"
            seq 1 {name: clerk, revision: 1, mode: primary}
            seq 2 {name: pay, version: 1, effect: at_most_once}
            seq 3 {id: s1, status: created}
            seq 4 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            refused bad_transition: run r1 is running; only a run that waits can be exported (hint: pause it first: `abide agent pause r1`)
            refused not_found: there is no run r9 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 5, lease_expires_at: 14:01:00}
            seq 6 {call_id: c1, status: claimed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:01:00}
            seq 7 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 5, reason: pause}
            refused conflict: a tool call of session s1 is running (hint: export the run when the call has ended; cancel_tool_call asks it to stop)
            seq 8 {call_id: c1, status: failed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:01:00, error: x}
            seq 9 {id: r1, revision: 1, status: aborted, turn: 2, iterations: 0, tool_calls: 0, events: 4, fencing_token: 5, reason: the run was aborted, error_code: aborted, error_message: the run was aborted}
            refused bad_transition: run r1 is aborted; only a run that waits can be exported (hint: `abide agent fork s1` copies the history of its session)
            the same up to 9
        "#]],
    );
}

/// Snapshots with a forged summary, plan, fact or measurement.
fn forged_contexts(good: &JsonValue) -> Vec<(&'static str, JsonValue)> {
    let context = |context: JsonValue| {
        let mut forged = good.clone();
        forged["runs"][0]["context"] = context;
        forged
    };
    let summary = |changes: JsonValue| {
        let mut summary = json!({"number": 1, "through": 2, "folded": 1, "goal": 2,
            "goal_folded": 1, "summary": {}, "kept": [1], "answers": 1, "handoffs": [], "origin": "model",
            "tokens_before": 9, "archived": []});
        for (name, value) in changes.as_object().unwrap() {
            summary[name] = value.clone();
        }
        context(json!({ "summary": summary }))
    };
    let archived = json!({"message": 1, "call_id": "other", "tool_name": "look", "number": 1,
        "characters": 900});
    let step = |status: &str| json!({"title": "Look", "status": status});
    let fact = |key: &str, namespace: &str| {
        json!({"namespace": namespace, "key": key,
            "value": "x", "confidence": 1.0})
    };
    let measured = json!({"tokens": -1, "token_drift": 0, "messages": 0, "new_messages": 0,
        "tool_messages": 0, "over_tooling": 0.0, "context_rot": 0.0, "repeats": 0, "signals": [],
        "unhealthy": 0});
    let measured = json!({"iteration": 1, "action": "none", "measured": measured});
    let two_steps = json!([step("in_progress"), step("in_progress")]);
    vec![
        ("summary beyond the messages", summary(json!({"through": 9, "goal": 9}))),
        ("summary of nothing", summary(json!({"through": 0, "folded": 0, "kept": []}))),
        ("summary folds more than it covers", summary(json!({"folded": 3}))),
        ("summary keeps what is not folded", summary(json!({"kept": [2]}))),
        ("summary number", summary(json!({"number": 0}))),
        ("summary answers", summary(json!({"answers": -1}))),
        ("archived twice", summary(json!({"archived": [archived, archived]}))),
        ("archived call of another", summary(json!({ "archived": [archived] }))),
        ("plan version", context(json!({"plan": {"version": 0, "steps": []}}))),
        ("plan with two steps", context(json!({"plan": {"version": 1, "steps": two_steps}}))),
        ("fact twice", context(json!({"facts": [fact("k", "clerk"), fact("k", "clerk")]}))),
        ("fact without a key", context(json!({"facts": [fact("", "clerk")]}))),
        ("fact in another space", context(json!({"facts": [fact("k", "clerk@tenant=v/")]}))),
        ("measurements", context(json!({ "health": [measured] }))),
        ("unknown member", context(json!({"plans": []}))),
    ]
}

/// A snapshot with another message of the driver of its run, and with another agent.
fn with_message(good: &JsonValue, role: &str, data: JsonValue, agent: &str) -> JsonValue {
    let mut forged = good.clone();
    let message = json!({"role": role, "kind": "message", "content": "x", "is_of_run": true,
        "data": data});
    forged["runs"][0]["messages"].as_array_mut().unwrap().push(message);
    forged["agents"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": agent, "revision": 1, "definition": {}}));
    forged
}

/// The data of a result that makes an agent active.
fn handoff(agent: &str, counters: JsonValue) -> JsonValue {
    let mut handoff = json!({"run_id": "r1", "agent": agent, "revision": 1, "at": 1});
    handoff.as_object_mut().unwrap().extend(counters.as_object().unwrap().clone());
    json!({"run_id": "r1", "call_id": "r1~1.1", "handoff": handoff})
}

/// Snapshots with messages that would make another agent active, or give a run more than its limits.
fn forged_messages(good: &JsonValue) -> Vec<(&'static str, JsonValue)> {
    let result = |data: JsonValue, agent: &str| with_message(good, "tool", data, agent);
    let answer = json!({"run_id": "r1", "iteration": i64::MAX});
    vec![
        ("handoff to an unnamed agent", result(handoff("vault", json!({})), "helper")),
        ("handoff to another's agent", result(handoff("vault", json!({})), "vault")),
        ("handoff to a primary agent", result(handoff("clerk", json!({})), "helper")),
        ("handoff after many calls", result(handoff("helper", json!({"tool_calls": 9})), "helper")),
        ("handoff before", result(handoff("helper", json!({"iterations": -1})), "helper")),
        ("handoff later", result(handoff("helper", json!({"at": i64::MAX})), "helper")),
        ("answer number", with_message(good, "assistant", answer, "helper")),
    ]
}

/// Snapshots with one forged part each.
fn forgeries(good: &JsonValue) -> Vec<(&'static str, JsonValue)> {
    let forge = |at: &str, value: JsonValue| {
        let mut forged = good.clone();
        *forged.pointer_mut(at).unwrap_or_else(|| panic!("there is no {at}")) = value;
        forged
    };
    let child = {
        let mut forged = good.clone();
        let mut child = forged["runs"][0].clone();
        child["parent_id"] = json!("r1");
        child["id"] = json!("someone-elses");
        forged["runs"].as_array_mut().unwrap().push(child);
        forged
    };
    let many: JsonValue =
        (0..20).map(|n| (format!("k{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let mut all = forged_contexts(good);
    all.extend(forged_messages(good));
    all.extend([
        ("format", forge("/format", json!("tar"))),
        ("version", forge("/version", json!(5))),
        ("version 3", forge("/version", json!(3))),
        ("no runs", forge("/runs", json!([]))),
        ("negative iterations", forge("/runs/0/iterations", json!(-5))),
        ("negative tokens", forge("/runs/0/input_tokens", json!(-1000))),
        ("negative budget", forge("/runs/0/budget_tokens", json!(-1000))),
        ("future", forge("/runs/0/began_at", json!(1i64 << 60))),
        ("derived id", forge("/runs/0/id", json!("other~1.1"))),
        ("empty id", forge("/runs/0/id", json!(""))),
        ("status", forge("/runs/0/calls/0/status", json!("claimed"))),
        ("status pending", forge("/runs/0/calls/0/status", json!("pending"))),
        ("result", forge("/runs/0/calls/0/status", json!("failed"))),
        ("tool", forge("/runs/0/calls/0/tool_name", json!("rm"))),
        ("tools", forge("/tools", json!(["pay", "rm"]))),
        ("agent", forge("/runs/0/agent", json!("boss"))),
        ("agents", forge("/agents", json!([]))),
        ("definition", forge("/agents/0/definition", json!({"tools": ["*"]}))),
        ("role", forge("/runs/0/messages/0/role", json!("a\nb"))),
        ("scope", forge("/runs/0/scope", many)),
        ("child", child),
    ]);
    all
}

#[test]
fn a_handoff_that_the_definitions_allow_is_imported() {
    run(async {
        let data = handoff("helper", json!({"iterations": 1, "tool_calls": 2}));
        let moved = with_message(&snapshot().await, "tool", data, "helper");
        let target = file().await;
        for definition in [json!({"instructions": "Help."}), json!({})] {
            let helper = json!({"name": "helper", "mode": "subagent", "definition": definition});
            target.call("register_agent", helper).await.unwrap();
        }
        target.call("import_run", import(&moved)).await.unwrap();
        let revision = "SELECT data ->> '$.handoff.revision' FROM agent_state \
                        WHERE data ->> '$.handoff.agent' = 'helper'";
        assert_eq!(one(&target, revision).await, json!(3), "the revision of this file");
    });
}

/// A forged snapshot is refused as a whole, and nothing is written.
#[test]
fn a_forged_snapshot_writes_nothing() {
    run(async {
        let forgeries = forgeries(&snapshot().await);
        let target = file().await;
        let before = target.state(None).await;
        let mut output = String::new();
        for (what, forged) in forgeries {
            let refused = target.call("import_run", import(&forged)).await.unwrap_err();
            output.push_str(&format!("{what}: {}: {}\n", refused.code, refused.detail));
            assert_eq!(before, target.state(None).await, "{what}");
        }
        expect![[r#"
            summary beyond the messages: bad_arguments: run 0 of the snapshot: through must be between 1 and 2, not 9
            summary of nothing: bad_arguments: run 0 of the snapshot: through must be between 1 and 2, not 0
            summary folds more than it covers: bad_arguments: run 0 of the snapshot: folded must be between 0 and 2, not 3
            summary keeps what is not folded: bad_arguments: run 0 of the snapshot: kept must be between 1 and 1, not 2
            summary number: bad_arguments: run 0 of the snapshot: number must be between 1 and 4294967295, not 0
            summary answers: bad_arguments: run 0 of the snapshot: answers must be between 0 and 2, not -1
            archived twice: bad_arguments: run 0 of the snapshot: invalid snapshot: the result in message 1 is archived twice
            archived call of another: bad_arguments: invalid snapshot: no message names the call other
            plan version: bad_arguments: run 0 of the snapshot: version must be between 1 and 4294967295, not 0
            plan with two steps: bad_transition: run 0 of the snapshot: 2 steps are in progress
            fact twice: bad_arguments: facts of namespace clerk have the same key
            fact without a key: bad_arguments: the key of a fact is empty
            fact in another space: bad_arguments: namespace "clerk@tenant=v/" is not valid
            measurements: bad_arguments: run 0 of the snapshot: tokens must be between 0 and 4294967295, not -1
            unknown member: bad_arguments: import_run: unexpected argument snapshot.runs[0].context.plans
            handoff to an unnamed agent: bad_arguments: invalid snapshot: agents does not name vault, which a message makes active
            handoff to another's agent: bad_arguments: invalid snapshot: agent clerk does not hand over to vault here
            handoff to a primary agent: bad_arguments: invalid snapshot: agent clerk does not hand over to clerk here
            handoff after many calls: bad_arguments: invalid snapshot: tool_calls of a handoff must be between 0 and 2
            handoff before: bad_arguments: invalid snapshot: iterations of a handoff must be between 0 and 1
            handoff later: bad_arguments: invalid snapshot: at of a handoff must be between 0 and 1795269600000000
            answer number: bad_arguments: invalid snapshot: an answer has the number 9223372036854775807
            format: bad_arguments: invalid snapshot: format must be "abide-run", not "tar"
            version: bad_arguments: invalid snapshot: version must be 4, not 5
            version 3: bad_arguments: invalid snapshot: version must be 4, not 3
            no runs: bad_arguments: invalid snapshot: runs must have 1 to 257 items, not 0
            negative iterations: bad_arguments: run 0 of the snapshot: iterations must be between 0 and 4294967295, not -5
            negative tokens: bad_arguments: run 0 of the snapshot: input_tokens must be between 0 and 9007199254740992, not -1000
            negative budget: bad_arguments: run 0 of the snapshot: budget_tokens must be between 0 and 9007199254740992, not -1000
            future: bad_arguments: run 0 of the snapshot: invalid snapshot: began_at is in the future
            derived id: bad_arguments: the id "other~1.1" contains ~, which is reserved
            empty id: bad_arguments: run 0 of the snapshot: id is empty
            status: bad_arguments: import_run: argument snapshot.runs[0].calls[0].status: "claimed" is not one of delegated, succeeded, failed, rejected, cancelled, unknown
            status pending: bad_arguments: import_run: argument snapshot.runs[0].calls[0].status: "pending" is not one of delegated, succeeded, failed, rejected, cancelled, unknown
            result: bad_arguments: run 0 of the snapshot: invalid snapshot: the result of call r1~1.1 contradicts its status failed
            tool: not_found: this file does not have the tools of the run: rm
            tools: not_found: this file does not have the tools of the run: rm
            agent: bad_arguments: invalid snapshot: agents does not name boss
            agents: bad_arguments: invalid snapshot: agents does not name clerk
            definition: conflict: agent clerk is defined differently here: limits, subagents, tools
            role: bad_arguments: run 0 of the snapshot: role contains the character U+000A
            scope: limit_exceeded: scope has 20 keys; the limit is 16
            child: bad_arguments: run 1 of the snapshot: invalid snapshot: it does not belong to a call of run r1
        "#]].assert_eq(&output);
    });
}

/// The snapshot had the budget of each run as it said: a run whose delegated run had spent everything got its whole budget
/// again.
#[test]
fn delegated_runs_count_against_the_budget_of_an_import() {
    run(async {
        let mut forged = snapshot().await;
        forged["runs"][0]["calls"].as_array_mut().unwrap().push(json!({"call_id": "r1~1.3",
            "tool_name": "task", "arguments": {}, "status": "delegated", "attempt": 1}));
        let mut child = forged["runs"][0].clone();
        for (name, value) in [
            ("id", json!("r1~1.3~run")),
            ("session_id", json!("r1~1.3")),
            ("parent_id", json!("r1")),
            ("agent", json!("helper")),
            ("messages", json!([])),
            ("calls", json!([])),
            ("input_tokens", json!(900)),
            ("budget_tokens", json!(0)),
        ] {
            child[name] = value;
        }
        forged["runs"].as_array_mut().unwrap().push(child);
        forged["runs"][0]["budget_tokens"] = json!(0);
        let agent = json!({"name": "helper", "revision": 1, "definition": {}});
        forged["agents"].as_array_mut().unwrap().push(agent);
        let target = file().await;
        target.call("import_run", import(&forged)).await.unwrap();
        let tokens = one(&target, "SELECT tokens FROM run_budgets WHERE run_id = 'r1'").await;
        assert_eq!(tokens, json!(42 + 902));
    });
}

/// The counters of a handoff are those of the run when it happened. Forged ones that count what follows gave the active agent
/// its limits again.
#[test]
fn a_handoff_does_not_count_what_follows() {
    run(async {
        let target = file().await;
        let handoff = handoff("helper", json!({"iterations": 2, "tool_calls": 2}));
        let mut forged = with_message(&snapshot().await, "tool", handoff, "helper");
        forged["runs"][0]["iterations"] = json!(2);
        let answer = json!({"role": "assistant", "kind": "message", "content": "x",
            "is_of_run": true, "data": {"run_id": "r1", "iteration": 2}});
        forged["runs"][0]["messages"].as_array_mut().unwrap().push(answer);
        let refusal = target.call("import_run", import(&forged)).await.unwrap_err();
        assert!(refusal.detail.contains("that follow it"), "{refusal}");
    });
}

/// A caller of a tenant cannot place a run in another tenant, take its ids, or bring approved calls with it.
#[test]
fn a_tenant_imports_into_its_own_scope_only() {
    run(async {
        let target = file().await;
        let mallory = of_tenant("m", "app");
        let victim = of_tenant("v", "app");
        paused(&target, &victim).await;
        let stored = one(&target, "SELECT id FROM runs").await;
        let mut forged = snapshot().await;
        let any = |snapshot: &JsonValue| {
            json!({"snapshot": snapshot, "any_definition": true,
            "id": "mine"})
        };
        forged["runs"][0]["scope"] = json!({"tenant": "v"});
        let refused = call(&target, &mallory, "import_run", any(&forged)).await.unwrap_err();
        assert_eq!(refused.code, Code::Denied, "{refused}");
        // The ids of the victim's rows: they become ids of the new run.
        forged["runs"][0]["scope"] = json!({});
        forged["runs"][0]["id"] = stored.clone();
        let call_id = format!("{}~1.1", stored.as_str().unwrap());
        forged["runs"][0]["calls"][0]["call_id"] = json!(call_id);
        forged["runs"][0]["messages"][1]["data"]["run_id"] = stored;
        forged["runs"][0]["messages"][1]["data"]["calls"][0]["call_id"] = json!(call_id);
        let all = "SELECT * FROM tool_calls ORDER BY call_id";
        let before = target.rows(all).await;
        let imported = call(&target, &mallory, "import_run", any(&forged)).await.unwrap();
        assert!(imported["id"].as_str().unwrap().starts_with("tenant=m/"), "{imported}");
        let after = target.rows(all).await;
        assert!(before.iter().all(|row| after.contains(row)), "the victim's rows are the same");
        let scopes = "SELECT s.scope FROM tool_calls AS c JOIN sessions AS s \
                      ON s.id = c.session_id WHERE c.settled_by = 'app-m'";
        assert_eq!(one(&target, scopes).await, r#"{"tenant":"m"}"#);
        // The open call of the snapshot is not there: it needs this file's approval.
        let open = "SELECT count(*) FROM tool_calls WHERE status = 'pending' \
                    AND session_id LIKE 'tenant=m/%'";
        assert_eq!(one(&target, open).await, 0);
        // Other tenants' runs do not exist for it.
        let theirs = json!({"id": "tenant=v/r1"});
        for reducer in ["export_run", "pause_run", "resume_run"] {
            let refused = call(&target, &mallory, reducer, theirs.clone()).await.unwrap_err();
            assert_eq!(refused.code, Code::NotFound, "{reducer}");
        }
        let theirs = json!({"session_id": "tenant=v/s1"});
        let refused = call(&target, &mallory, "fork_session", theirs).await.unwrap_err();
        assert_eq!(refused.code, Code::NotFound);
    });
}

/// A tenant's snapshot has no definition, and an import does not confirm a guess of one.
#[test]
fn a_snapshot_of_a_tenant_has_no_definition() {
    run(async {
        let world = file().await;
        let tenant = of_tenant("t", "app");
        paused(&world, &tenant).await;
        let copy = json!({"id": "r1", "copy": true});
        let copied = call(&world, &tenant, "export_run", copy.clone()).await.unwrap();
        assert_eq!(copied["agents"][0].get("definition"), None);
        let mut guess = copied.clone();
        guess["agents"][0]["definition"] =
            json!({"tools": ["pay", "look"], "limits": {"tokens": 1000}});
        for snapshot in [copied, guess] {
            let args = json!({"snapshot": snapshot, "id": "r2", "session_id": "s2"});
            let refused = call(&world, &tenant, "import_run", args).await.unwrap_err();
            let detail = "the definition of agent clerk at the origin cannot be compared with the \
                 one in this file";
            assert_eq!((refused.code, refused.detail.as_str()), (Code::Conflict, detail));
        }
        // Agents, workers and supervisors may not export.
        for role in ["agent", "worker", "supervisor"] {
            let who = of_tenant("t", role);
            let refused = call(&world, &who, "export_run", copy.clone()).await.unwrap_err();
            assert_eq!(refused.code, Code::Denied, "{role}");
        }
    });
}

/// A policy that hides a column from the role would make a snapshot that is not whole.
#[test]
fn a_hidden_column_refuses_an_export() {
    run(async {
        let world = file().await;
        let tenant = of_tenant("t", "app");
        paused(&world, &tenant).await;
        let policy = json!({"table": "tool_calls", "role": "app", "hidden": ["result"]});
        world.call("set_policy", policy).await.unwrap();
        let refused = call(&world, &tenant, "export_run", json!({"id": "r1"})).await.unwrap_err();
        assert_eq!(refused.code, Code::Denied, "{refused}");
    });
}

#[test]
fn a_fork_has_the_history_up_to_an_event() {
    run(async {
        let world = file().await;
        let local = Caller::local();
        paused(&world, &local).await;
        world.append_message("s1", "And now?").await.unwrap();
        let answered = one(&world, "SELECT seq FROM agent_state WHERE role = 'assistant'").await;
        let ended = one(&world, "SELECT seq FROM tool_calls WHERE status = 'succeeded'").await;
        let pending = "SELECT count(*) FROM tool_calls WHERE status = 'pending'";
        let open = one(&world, pending).await;
        let newest = json!(world.engine().durable_seq());
        let mut output = String::new();
        for (id, at) in [("before", answered), ("after", ended), ("newest", newest)] {
            let args = json!({"session_id": "s1", "id": id, "at": at});
            call(&world, &local, "fork_session", args).await.unwrap();
            for sql in [
                "SELECT session_id, role, content, rtrim(data ->> '$.call_id', '0123456789abcdef') FROM agent_state",
                "SELECT session_id, rtrim(call_id, '0123456789abcdef'), status, result FROM tool_calls",
            ] {
                let sql = format!("{sql} WHERE session_id = '{id}' ORDER BY rowid");
                output.extend(world.rows(&sql).await.iter().map(line));
            }
        }
        expect![[r#"
            ["before","user","Pay it.",null]
            ["before","assistant","I look.",null]
            ["before","tool","The call did not run: the session was forked before it began.","before~"]
            ["before","tool","The call did not run: the session was forked before it began.","before~"]
            ["before","before~","cancelled",null]
            ["before","before~","cancelled",null]
            ["after","user","Pay it.",null]
            ["after","assistant","I look.",null]
            ["after","tool","there","after~"]
            ["after","tool","The call did not run: the session was forked before it began.","after~"]
            ["after","after~","succeeded","{\"text\":\"there\"}"]
            ["after","after~","cancelled",null]
            ["newest","user","Pay it.",null]
            ["newest","assistant","I look.",null]
            ["newest","tool","there","newest~"]
            ["newest","tool","The call did not run: the session was forked before it began.","newest~"]
            ["newest","user","And now?",null]
            ["newest","newest~","succeeded","{\"text\":\"there\"}"]
            ["newest","newest~","cancelled",null]
        "#]]
        .assert_eq(&output);
        assert_eq!(open, one(&world, pending).await, "nothing is requested again");
        assert_eq!(one(&world, "SELECT count(*) FROM session_forks").await, 3);
    });
}

#[test]
fn a_fork_is_refused_outside_of_the_log() {
    check(
        r#"
        who tom app tenant=acme
        who ann app tenant=zeta
        create_session agent=support id=s1 as=tom
        append_message session_id=s1 role=user content=hello as=tom
        fork_session session_id=tenant=acme/s1 at=0
        fork_session session_id=tenant=acme/s1 at=9
        fork_session session_id=s9
        fork_session session_id=tenant=acme/s1 as=ann
        fork_session session_id=s1 at=1 id=early as=tom
        fork_session session_id=s1 id=f1 title=Again as=tom
        fork_session session_id=s1 id=f1 as=tom
        fork_session session_id=f1 id=a~b as=tom
        complete_session session_id=s1 as=tom
        fork_session session_id=s1 id=f2 as=tom
        sql SELECT id, status, title, scope FROM sessions ORDER BY id
        replay
        "#,
        expect![[r#"
            seq 1 {id: tenant=acme/s1, status: created, scope: {"tenant":"acme"}}
            seq 2 {id: 1}
            refused bad_arguments: at must be between 1 and 2, the newest event, not 0 (hint: at is a seq of the log: `abide events --session SESSION` lists them)
            refused bad_arguments: at must be between 1 and 2, the newest event, not 9 (hint: at is a seq of the log: `abide events --session SESSION` lists them)
            refused not_found: there is no session s9 (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no session tenant=acme/s1 (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            seq 3 {}
            seq 4 {}
            seq 4 again {}
            refused bad_arguments: the id "a~b" contains ~, which is reserved (hint: ids with ~ are derived from the run that they belong to)
            seq 5 {id: tenant=acme/s1, status: completed, scope: {"tenant":"acme"}}
            seq 6 {}
            ("tenant=acme/early", "created", null, "{\"tenant\":\"acme\"}") ("tenant=acme/f1", "active", "Again", "{\"tenant\":\"acme\"}") ("tenant=acme/f2", "active", null, "{\"tenant\":\"acme\"}") ("tenant=acme/s1", "completed", null, "{\"tenant\":\"acme\"}")
            the same up to 6
        "#]],
    );
}
