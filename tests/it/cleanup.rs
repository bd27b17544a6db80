//! Cleanups: one call changes a bounded number of rows, however much belongs to a session, and no
//! work starts in a session that is ending. `cancel_session` with 9,001 descendants blocked the
//! writer for 37 s.

use abide_engine::replay;
use abide_reducers::modules;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Refusal, limits};
use abide_tests::world::{World, run};
use serde_json::{Value as JsonValue, json};

fn batch_call(reducer: &str, args: JsonValue) -> BatchCall {
    BatchCall { reducer: reducer.to_owned(), args }
}

async fn batch(world: &World, calls: Vec<BatchCall>) -> Result<(), Refusal> {
    for calls in calls.chunks(limits::BATCH_CALLS) {
        world.engine().batch(&Caller::local(), calls, None).await?;
    }
    Ok(())
}

async fn number(world: &World, sql: &str) -> i64 {
    match &world.rows(sql).await[0][0] {
        abide_schema::Value::Integer(number) => *number,
        other => panic!("{sql}: {other:?}"),
    }
}

const CHILDREN: usize = 600;
const CALLS: usize = 250;

/// A session with many children, calls and timers; the last child has a child and a call of its
/// own.
async fn family() -> World {
    let world = World::new(modules);
    let mut calls = vec![
        batch_call("register_tool", json!({"name": "put", "effect": "idempotent"})),
        batch_call("register_tool", json!({"name": "ask", "needs_approval": true})),
        batch_call("register_agent", json!({"name": "support", "definition": {}})),
        batch_call("create_session", json!({"agent": "support", "id": "s1"})),
    ];
    for nth in 0..CHILDREN {
        let id = format!("c{nth:04}");
        calls.push(batch_call(
            "create_session",
            json!({"agent": "support", "id": id, "parent_id": "s1"}),
        ));
    }
    let child = json!({"agent": "support", "id": "grandchild", "parent_id": last_child()});
    calls.push(batch_call("create_session", child));
    for nth in 0..CALLS {
        let call_id = format!("t{nth:04}");
        let tool = if nth % 10 == 3 { "ask" } else { "put" };
        let lease = if nth % 10 == 5 { json!(60_000) } else { JsonValue::Null };
        calls.push(batch_call(
            "request_tool_call",
            json!({"call_id": call_id, "session_id": "s1",
            "tool_name": tool, "arguments": {}, "claim_lease_ms": lease}),
        ));
        calls.push(batch_call(
            "set_timer",
            json!({"in_ms": 1_000, "session_id": "s1", "message": "hello"}),
        ));
    }
    calls.push(batch_call(
        "request_tool_call",
        json!({"call_id": "below", "session_id": "grandchild",
        "tool_name": "put", "arguments": {}}),
    ));
    batch(&world, calls).await.unwrap();
    world
}

fn last_child() -> String {
    format!("c{:04}", CHILDREN - 1)
}

/// The maximum number of rows last changed by one event after `seq`.
async fn most_rows_of_one_event(world: &World, seq: i64) -> i64 {
    let tables = ["sessions", "tool_calls", "timers", "approvals", "runs", "cleanups"];
    let all = tables.map(|table| format!("SELECT seq FROM {table}")).join(" UNION ALL ");
    let sql = format!(
        "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM ({all}) WHERE seq > {seq} GROUP BY seq)"
    );
    number(world, &sql).await
}

fn check_replay(world: &mut World) {
    world.close();
    let into = world.path().with_extension("again");
    replay(&world.path(), &into, modules(), None, &mut |_| {}).unwrap();
    world.open();
}

const OPEN: &str =
    "SELECT (SELECT count(*) FROM sessions WHERE status NOT IN ('completed', 'failed'))
    + (SELECT count(*) FROM tool_calls WHERE status IN ('pending', 'awaiting_approval')
        OR status = 'claimed' AND cancel_requested_at IS NULL)
    + (SELECT count(*) FROM approvals WHERE status = 'pending')
    + (SELECT count(*) FROM timers WHERE status = 'pending') + (SELECT count(*) FROM cleanups)";

#[test]
fn a_cancellation_reaches_everything_in_bounded_steps() {
    run(async {
        let mut world = family().await;
        let before = world.engine().durable_seq().0;
        let done = world.call("cancel_session", json!({"session_id": "s1", "reason": "enough"}));
        assert!(done.await.unwrap().result.contains("\"cancel_requested_at\":1"));
        world.pass_ms(0).await;
        for nth in (5..CALLS).step_by(10) {
            let id = format!("t{nth:04}");
            let token = format!("SELECT fencing_token FROM tool_calls WHERE call_id = 't{nth:04}'");
            let token = number(&world, &token).await;
            let stopped = json!({"call_id": id, "fencing_token": token});
            world.call("acknowledge_cancel", stopped).await.unwrap();
        }
        assert_eq!(number(&world, OPEN).await, 0);
        let reasons = "SELECT count(*) FROM sessions WHERE cancel_reason = 'enough'";
        assert_eq!(number(&world, reasons).await, CHILDREN as i64 + 2);
        // A call that awaits approval has two rows.
        let max = most_rows_of_one_event(&world, before).await;
        assert!(max <= 2 * limits::CLEANUP_ROWS as i64, "{max} rows");
        let steps = "SELECT count(*) FROM events WHERE reducer = 'continue_cleanup'";
        assert!(number(&world, steps).await >= 10);
        check_replay(&mut world);
    });
}

/// The first step and the refused calls are in one batch, so that no other step runs in between.
#[test]
fn no_work_starts_during_cancellation() {
    run(async {
        let mut world = family().await;
        let before = world.state(None).await;
        let last = last_child();
        let attempts = [
            batch_call("create_session", json!({"agent": "support", "parent_id": "s1"})),
            batch_call("create_session", json!({"agent": "support", "parent_id": last})),
            batch_call("create_session", json!({"agent": "support", "parent_id": "grandchild"})),
            batch_call(
                "request_tool_call",
                json!({"call_id": "new", "session_id": "grandchild",
                "tool_name": "put", "arguments": {}}),
            ),
            batch_call(
                "append_message",
                json!({"session_id": "s1", "role": "user", "content": "x"}),
            ),
            batch_call(
                "append_message",
                json!({"session_id": last, "role": "user", "content": "x"}),
            ),
            batch_call("start_run", json!({"session_id": last})),
            batch_call("set_timer", json!({"session_id": last, "in_ms": 5})),
            batch_call(
                "request_supervisor_handoff",
                json!({"session_id": last, "reason": "x",
                "required_capability": "x"}),
            ),
            batch_call("claim_tool_call", json!({"call_id": format!("t{:04}", CALLS - 1)})),
            batch_call("claim_tool_call", json!({"call_id": "below"})),
            batch_call("claim_next_tool_call", json!({"tools": ["put"]})),
            batch_call(
                "decide_approval",
                json!({"call_id": format!("t{:04}", CALLS - 7),
                "decision": "approve"}),
            ),
        ];
        for attempt in attempts {
            let cancel = batch_call("cancel_session", json!({"session_id": "s1"}));
            let refused = batch(&world, vec![cancel, attempt.clone()])
                .await
                .expect_err(&format!("{attempt:?}"))
                .to_string();
            assert!(refused.contains("cancel"), "{attempt:?}: {refused}");
        }
        assert!(before == world.state(None).await, "a refused batch has no effect");
        // Another session's call is found behind the calls of the cancelled session, immediately or
        // after them.
        world.call("cancel_session", json!({"session_id": "s1"})).await.unwrap();
        world.session("s2").await;
        let other =
            json!({"call_id": "other", "session_id": "s2", "tool_name": "put", "arguments": {}});
        world.call("request_tool_call", other).await.unwrap();
        world.pass_ms(0).await;
        let claimed = world.call("claim_next_tool_call", json!({"tools": ["put"]})).await.unwrap();
        assert!(claimed.result.contains("\"other\""));
        check_replay(&mut world);
    });
}

/// A timer that comes due between the steps no longer adds an event to its session.
#[test]
fn a_timer_of_an_ended_session_does_not_fire() {
    run(async {
        let world = family().await;
        let complete = batch_call("complete_session", json!({"session_id": "s1"}));
        world.clock.advance_ms(2_000);
        // Due timers run first, except those beyond the limit of a transaction.
        batch(&world, vec![complete]).await.unwrap();
        world.pass_ms(0).await;
        let output = "SELECT count(*) FROM agent_state WHERE kind = 'timer'";
        let fired = "SELECT count(*) FROM timers WHERE status = 'fired'";
        assert_eq!(number(&world, output).await, number(&world, fired).await);
        let left = "SELECT count(*) FROM timers WHERE status = 'pending'";
        assert_eq!(number(&world, left).await, 0);
    });
}

#[test]
fn a_cleanup_continues_after_a_crash() {
    run(async {
        let mut world = family().await;
        world
            .call("fail_session", json!({"session_id": "s1", "code": "x", "message": "x"}))
            .await
            .unwrap();
        world.drop_engine();
        world.open();
        world.pass_ms(0).await;
        let open = "SELECT count(*) FROM tool_calls WHERE session_id = 's1' AND
            (status IN ('pending', 'awaiting_approval') OR cancel_requested_at IS NULL)";
        assert_eq!(number(&world, open).await, 0);
        // Children of a session that ended by itself are not cancelled.
        let children =
            "SELECT count(*) FROM sessions WHERE parent_id = 's1' AND status = 'created'";
        assert_eq!(number(&world, children).await, CHILDREN as i64);
        check_replay(&mut world);
    });
}

/// A run that starts in the session of an aborted one keeps its own calls.
#[test]
fn an_abort_cancels_the_calls_of_its_run() {
    run(async {
        let mut world = family().await;
        let start = json!({"session_id": "s1", "id": "r1"});
        world.call("start_run", start).await.unwrap();
        let next = vec![
            batch_call("abort_run", json!({"id": "r1"})),
            batch_call("start_run", json!({"session_id": "s1", "id": "r2"})),
            batch_call(
                "request_tool_call",
                json!({"call_id": "new", "session_id": "s1",
                "tool_name": "put", "arguments": {}}),
            ),
        ];
        batch(&world, next).await.unwrap();
        world.pass_ms(0).await;
        let open = "SELECT count(*) FROM tool_calls WHERE session_id = 's1' AND
            (status IN ('pending', 'awaiting_approval') OR cancel_requested_at IS NULL)";
        assert_eq!(number(&world, open).await, 1);
        let status = "SELECT count(*) FROM tool_calls WHERE call_id = 'new' AND status = 'pending'";
        assert_eq!(number(&world, status).await, 1);
        check_replay(&mut world);
    });
}

/// The first step cancels 100 calls. Other calls of the aborted run could be claimed and run until
/// the next step.
#[test]
fn a_call_of_an_aborted_run_cannot_be_claimed() {
    run(async {
        let mut world = family().await;
        world.call("start_run", json!({"session_id": "s1", "id": "r1"})).await.unwrap();
        let before = world.state(None).await;
        let abort = batch_call("abort_run", json!({"id": "r1"}));
        let last = json!({"call_id": format!("t{:04}", CALLS - 1)});
        let claim = batch_call("claim_tool_call", last);
        let refused = batch(&world, vec![abort.clone(), claim]).await.unwrap_err().to_string();
        assert!(refused.contains("being cancelled"), "{refused}");
        assert!(before == world.state(None).await, "a refused batch has no effect");
        // A call of another session is found behind them.
        let next = batch_call("claim_next_tool_call", json!({"tools": ["put"]}));
        let done = world.engine().batch(&Caller::local(), &[abort, next], None).await.unwrap();
        assert!(done.results[1].result.contains("\"below\""), "{}", done.results[1].result);
        check_replay(&mut world);
    });
}

/// A driver that was asked to stop may still request calls, but they are cancelled at once.
#[test]
fn a_call_requested_by_an_aborted_run_cannot_be_claimed() {
    run(async {
        let world = family().await;
        world.call("start_run", json!({"session_id": "grandchild", "id": "r1"})).await.unwrap();
        let claim = json!({"id": "r1", "driver": "d", "lease_ms": 60_000});
        let token = world.call("claim_run", claim).await.unwrap().seq.0;
        let request = |nth: i64| {
            json!({"call_id": format!("r1~{nth}"), "session_id": "grandchild", "tool_name": "put",
            "arguments": {}, "run_id": "r1", "run_fencing_token": token})
        };
        world.call("request_tool_call", request(1)).await.unwrap();
        world.call("claim_tool_call", json!({"call_id": "r1~1"})).await.unwrap();
        world.call("abort_run", json!({"id": "r1"})).await.unwrap();
        world.pass_ms(0).await;
        world.call("request_tool_call", request(2)).await.unwrap();
        let refused = world.call("claim_tool_call", json!({"call_id": "r1~2"})).await.unwrap_err();
        assert!(refused.detail.contains("is cancelled"), "{refused}");
    });
}

const BRANCHES: usize = 15;
const LEAVES: usize = 15;

/// Starts a child run for a call that the parent requests; returns its id.
async fn delegate(world: &World, run: &str, session: &str, token: i64, nth: usize) -> String {
    let call_id = format!("{run}~{nth:02}");
    let wanted = json!({"call_id": call_id, "session_id": session, "tool_name": "put",
        "arguments": {}, "run_id": run, "run_fencing_token": token, "claim_lease_ms": 60_000});
    let token = world.call("request_tool_call", wanted).await.unwrap().seq;
    let child =
        json!({"call_id": call_id, "fencing_token": token, "agent": "support", "input": "x"});
    world.call("start_child_run", child).await.unwrap();
    format!("{call_id}~run")
}

/// A run with 240 descendants, each with a waiting call. Those of the first level have drivers, and delegated to
/// the others. Returns the token of the top run, and of the last run with a driver.
async fn tree() -> (World, i64, i64) {
    let world = World::new(modules);
    let setup = vec![
        batch_call("register_tool", json!({"name": "put", "effect": "idempotent"})),
        batch_call("register_agent", json!({"name": "support", "definition": {}, "mode": "all"})),
        batch_call("create_session", json!({"agent": "support", "id": "s1"})),
        batch_call("start_run", json!({"session_id": "s1", "id": "r1"})),
    ];
    batch(&world, setup).await.unwrap();
    let top = world.drive("r1").await;
    let mut last = 0;
    let mut waits = Vec::new();
    for branch in 0..BRANCHES {
        let run = delegate(&world, "r1", "s1", top, branch).await;
        let session = format!("r1~{branch:02}");
        last = world.drive(&run).await;
        waits.push(session.clone());
        for leaf in 0..LEAVES {
            delegate(&world, &run, &session, last, leaf).await;
            waits.push(format!("{run}~{leaf:02}"));
        }
    }
    batch(
        &world,
        waits
            .into_iter()
            .enumerate()
            .map(|(nth, session)| {
                let call_id = format!("waits{nth:04}");
                let args = json!({"call_id": call_id, "session_id": session, "tool_name": "put",
            "arguments": {}});
                batch_call("request_tool_call", args)
            })
            .collect(),
    )
    .await
    .unwrap();
    (world, top, last)
}

/// The active runs without a request to abort, the waiting calls, and the unfinished cleanups.
const DELEGATED: &str = "SELECT (SELECT count(*) FROM runs WHERE status IN ('running', 'waiting')
        AND abort_requested_at IS NULL)
    + (SELECT count(*) FROM tool_calls WHERE status = 'pending'
        OR status = 'claimed' AND cancel_requested_at IS NULL)
    + (SELECT count(*) FROM cleanups)";

/// One transaction ended the whole tree.
#[test]
fn an_abort_ends_a_tree_of_runs_in_bounded_steps() {
    run(async {
        let descendants = BRANCHES * (LEAVES + 1);
        for (way, args) in [
            ("abort_run", json!({"id": "r1"})),
            ("finish_run", json!({"id": "r1", "end": "done"})),
            ("complete_session", json!({"session_id": "s1"})),
            ("cancel_session", json!({"session_id": "s1"})),
        ] {
            let (mut world, top, _) = tree().await;
            let mut args = args;
            if way == "finish_run" {
                args["fencing_token"] = top.into();
            }
            let before = world.engine().durable_seq().0;
            world.call(way, args).await.unwrap();
            // After a crash, the cleanup continues at the same position.
            world.drop_engine();
            world.open();
            world.pass_ms(0).await;
            // The calls of a run that ends by itself are not cancelled.
            let left = if way == "finish_run" { BRANCHES } else { 0 };
            assert_eq!(number(&world, DELEGATED).await, left as i64, "{way}");
            let aborted = "SELECT count(*) FROM runs WHERE abort_requested_at IS NOT NULL";
            let aborted = number(&world, aborted).await;
            assert!(aborted >= descendants as i64, "{way}: {aborted}");
            // The call of an ended run, and the session that is cancelled with it.
            let max = most_rows_of_one_event(&world, before).await;
            assert!(max <= 3 * limits::CLEANUP_ROWS as i64, "{way}: {max} rows");
            let steps = "SELECT count(*) FROM events WHERE reducer = 'continue_cleanup'";
            let steps = number(&world, steps).await;
            assert!((3..=12).contains(&steps), "{way}: {steps}");
            check_replay(&mut world);
        }
    });
}

/// The abort and the refused calls are one batch, so that no step runs in between.
#[test]
fn no_work_starts_below_an_aborted_run() {
    run(async {
        let (mut world, top, last) = tree().await;
        let branch = format!("r1~{:02}", BRANCHES - 1);
        let leaf = format!("{branch}~run~{:02}", LEAVES - 1);
        // A call that the last driven run holds, for which it could delegate.
        let run_id = format!("{branch}~run");
        let call_id = format!("{branch}~run~more");
        let wanted = json!({"call_id": call_id, "session_id": branch, "tool_name": "put",
            "arguments": {}, "run_id": run_id, "run_fencing_token": last,
            "claim_lease_ms": 60_000});
        let token = world.call("request_tool_call", wanted).await.unwrap().seq;
        let before = world.state(None).await;
        let waits = format!("waits{:04}", BRANCHES * (LEAVES + 1) - 1);
        let child = json!({"call_id": call_id, "fencing_token": token, "agent": "support",
            "input": "x"});
        let finish = json!({"id": "r1", "fencing_token": top, "end": "done"});
        let attempts = [
            batch_call("start_child_run", child),
            batch_call(
                "claim_run",
                json!({"id": format!("{leaf}~run"), "driver": "d", "lease_ms": 9_000}),
            ),
            batch_call("claim_next_run", json!({"driver": "d", "lease_ms": 9_000})),
            batch_call("claim_tool_call", json!({"call_id": waits})),
            batch_call("claim_next_tool_call", json!({"tools": ["put"]})),
        ];
        for end in [batch_call("abort_run", json!({"id": "r1"})), batch_call("finish_run", finish)]
        {
            for attempt in &attempts {
                let refused = batch(&world, vec![end.clone(), attempt.clone()])
                    .await
                    .expect_err(&format!("{attempt:?}"))
                    .to_string();
                let why = ["being aborted", "no run to claim", "being cancelled"];
                assert!(why.iter().any(|why| refused.contains(why)), "{attempt:?}: {refused}");
            }
        }
        assert!(before == world.state(None).await, "a refused batch leaves nothing");
        // A call that a run requests before its step is not claimed, and is cancelled with it.
        let wanted = json!({"call_id": format!("{branch}~run~last"), "session_id": branch,
            "tool_name": "put", "arguments": {}, "run_id": run_id, "run_fencing_token": last,
            "claim_lease_ms": 60_000});
        let both = vec![
            batch_call("abort_run", json!({"id": "r1"})),
            batch_call("request_tool_call", wanted),
        ];
        batch(&world, both).await.unwrap();
        let attempts = "SELECT max(attempt) FROM tool_calls WHERE call_id LIKE '%~last'";
        assert_eq!(number(&world, attempts).await, 0);
        world.pass_ms(0).await;
        assert_eq!(number(&world, DELEGATED).await, 0);
        check_replay(&mut world);
    });
}

/// Each session had its own cleanup and step.
#[test]
fn a_cancellation_takes_few_transactions() {
    run(async {
        let world = family().await;
        world.call("cancel_session", json!({"session_id": "s1"})).await.unwrap();
        let rows = "SELECT count(*) FROM cleanups";
        assert!(number(&world, rows).await <= 1);
        world.pass_ms(0).await;
        let steps = "SELECT count(*) FROM events WHERE reducer = 'continue_cleanup'";
        // Children, calls and timers count once each, and the call itself is the first step.
        let all = (CHILDREN + 2 * CALLS) as i64;
        let steps = number(&world, steps).await;
        let least = all / limits::CLEANUP_ROWS as i64;
        assert!(steps <= least + 2, "{steps} steps for {all} rows");
    });
}

#[test]
fn session_depth_is_limited() {
    run(async {
        let world = World::new(modules);
        world.session("d0").await;
        for depth in 1..=limits::SESSION_DEPTH {
            let id = format!("d{depth}");
            let parent = format!("d{}", depth - 1);
            let args = json!({"agent": "support", "id": id, "parent_id": parent});
            world.call("create_session", args).await.unwrap();
        }
        let deeper =
            json!({"agent": "support", "parent_id": format!("d{}", limits::SESSION_DEPTH)});
        let refused = world.call("create_session", deeper).await.unwrap_err();
        assert_eq!(refused.code.as_str(), "limit_exceeded");
        let below = batch_call(
            "set_timer",
            json!({"session_id": format!("d{}", limits::SESSION_DEPTH),
            "in_ms": 5}),
        );
        let cancel = batch_call("cancel_session", json!({"session_id": "d0"}));
        batch(&world, vec![cancel.clone(), below]).await.unwrap_err();
        batch(&world, vec![cancel]).await.unwrap();
        world.pass_ms(0).await;
        assert_eq!(number(&world, OPEN).await, 0);
    });
}

/// Regression: each cancellation took one bounded step, but a batch of 600 of them blocked the writer for 29 s.
#[test]
fn a_batch_is_bounded_in_steps() {
    const SESSIONS: usize = 12;
    let world = World::new(modules);
    run(async {
        let mut calls = Vec::new();
        for nth in 0..SESSIONS {
            let id = format!("s{nth}");
            calls.push(batch_call("create_session", json!({"agent": "support", "id": id})));
            calls.extend((0..90).map(|child| {
                let args =
                    json!({"agent": "support", "id": format!("{id}c{child}"), "parent_id": id});
                batch_call("create_session", args)
            }));
        }
        batch(&world, calls).await.unwrap();
        let cancel = |nth| batch_call("cancel_session", json!({"session_id": format!("s{nth}")}));
        let refusal = batch(&world, (0..SESSIONS).map(cancel).collect()).await.unwrap_err();
        assert_eq!(refusal.code.as_str(), "limit_exceeded");
        assert_eq!(refusal.hint.as_deref(), Some("send the calls in several batches"));
        let cancelled = "SELECT count(*) FROM sessions WHERE cancel_requested_at IS NOT NULL";
        assert_eq!(number(&world, cancelled).await, 0, "nothing of the batch is kept");
        batch(&world, vec![cancel(0), cancel(1)]).await.unwrap();
    });
}

/// One batch of a tenant, of 1,000 messages of 15 KB or with many rows in each call, kept all other callers waiting for half a
/// second.
#[test]
fn batches_are_bounded_in_bytes_and_rows() {
    let world = World::new(modules);
    run(async {
        let scope = [("tenant".to_owned(), "zeta".to_owned())];
        let zeta = Caller::with("zoe", "app", ["*".to_owned()].into(), scope.into());
        let session = batch_call("create_session", json!({"agent": "x", "id": "s"}));
        world.engine().batch(&zeta, &[session], None).await.unwrap();
        let append_call = |bytes: usize| {
            let args = json!({"session_id": "s", "role": "user", "content": "x".repeat(bytes)});
            batch_call("append_message", args)
        };
        for (calls, is_accepted) in [
            (vec![append_call(15_000); 60], true),
            (vec![append_call(15_000); 100], false),
            (vec![append_call(2 << 20), append_call(15_000)], true),
            (vec![append_call(2 << 20), append_call(2 << 20)], false),
        ] {
            let before = number(&world, "SELECT count(*) FROM agent_state").await;
            let done = world.engine().batch(&zeta, &calls, None).await;
            let added = number(&world, "SELECT count(*) FROM agent_state").await - before;
            match done {
                Ok(_) => assert!(is_accepted && added == calls.len() as i64),
                Err(refusal) => {
                    assert!(!is_accepted && added == 0, "{refusal}");
                    assert_eq!(refusal.code.as_str(), "limit_exceeded");
                    assert_eq!(refusal.hint.as_deref(), Some("send several batches"));
                }
            }
        }
        let puts = |nth: usize| {
            let puts: Vec<JsonValue> = (0..limits::ENTRIES_OF_A_CALL)
                .map(|key| json!({"key": format!("{key}"), "data": 1}))
                .collect();
            batch_call("write_entries", json!({"collection_id": format!("c{nth}"), "puts": puts}))
        };
        let refusal = batch(&world, (0..6).map(puts).collect()).await.unwrap_err();
        assert_eq!(refusal.code.as_str(), "limit_exceeded");
        assert_eq!(number(&world, "SELECT count(*) FROM entries").await, 0);
    });
}

/// The rows of a batch are limited, not only the steps that they take: each of these calls changes few rows.
#[test]
fn a_batch_is_bounded_in_rows() {
    let world = World::new(modules);
    run(async {
        let write_call = |nth: usize, rows: usize| {
            let puts: Vec<JsonValue> =
                (0..rows).map(|key| json!({"key": format!("{nth}.{key}"), "data": 1})).collect();
            batch_call("write_entries", json!({"collection_id": "box", "puts": puts}))
        };
        world.engine().batch(&Caller::local(), &[write_call(0, 1)], None).await.unwrap();
        let calls: Vec<BatchCall> = (0..400).map(|nth| write_call(nth, 19)).collect();
        let refusal = world.engine().batch(&Caller::local(), &calls, None).await.unwrap_err();
        assert_eq!(refusal.code.as_str(), "limit_exceeded");
        assert_eq!(number(&world, "SELECT count(*) FROM entries").await, 1);
        let first = refusal
            .detail
            .split(' ')
            .find_map(|word| word.parse::<usize>().ok())
            .expect("it says how many calls");
        // So many calls are accepted, and their steps would permit more.
        let before = world.engine().metrics().writer_steps_total.get();
        world.engine().batch(&Caller::local(), &calls[..first], None).await.unwrap();
        let steps = world.engine().metrics().writer_steps_total.get() - before;
        assert!(steps < limits::batch_steps(first), "{steps} steps of {first} calls");
        let rows = first as u64 * 19;
        assert!((limits::BATCH_ROWS * 9 / 10..=limits::BATCH_ROWS + 100).contains(&rows), "{rows}");
    });
}

/// Regression: 200 calls of 70 bytes that change a row of 4 MB blocked the writer for 42 s, and were answered with 780 MB.
#[test]
fn a_batch_is_bounded_in_bytes() {
    let world = World::new(modules);
    run(async {
        let metadata = json!({"text": "x".repeat(3_000_000)});
        let args = json!({"agent": "support", "id": "large", "metadata": metadata});
        world.call("create_session", args).await.unwrap();
        let call_of = |nth: usize| match nth % 2 {
            0 => batch_call("suspend_session", json!({"session_id": "large"})),
            _ => batch_call("resume_session", json!({"session_id": "large"})),
        };
        let refusal = batch(&world, (0..200).map(call_of).collect()).await.unwrap_err();
        assert_eq!(refusal.code.as_str(), "limit_exceeded");
        assert!(refusal.detail.starts_with("the first 2 of 200 calls"), "{}", refusal.detail);
        batch(&world, (0..2).map(call_of).collect()).await.unwrap();
    });
}

/// Regression: a batch of a few hundred bytes deleted gigabytes of entries, whose undo images it kept in memory: others
/// waited 27 s. Many such units in one group exceeded the largest value of SQLite, and all units of the group were refused.
#[test]
fn reads_of_batches_and_groups_are_bounded() {
    const COLLECTIONS: usize = 6;
    let world = World::new(modules);
    run(async {
        let value = "x".repeat(6 << 20);
        for nth in 0..COLLECTIONS {
            for key in ["a", "b"] {
                let puts = json!([{"key": key, "data": value}]);
                let args = json!({"collection_id": format!("c{nth}"), "puts": puts});
                world.call("write_entries", args).await.unwrap();
            }
        }
        let delete = |nth: usize| {
            let args = json!({"collection_id": format!("c{nth}"), "prefix": null});
            batch_call("delete_entries", args)
        };
        let refusal = batch(&world, (0..COLLECTIONS).map(delete).collect()).await.unwrap_err();
        assert_eq!(refusal.code.as_str(), "limit_exceeded");
        assert!(refusal.detail.starts_with("the first 1 of 6 calls"), "{}", refusal.detail);
        let rest = "SELECT count(*) FROM entries";
        assert_eq!(number(&world, rest).await, 12);

        // All arrive before the writer can take them.
        let before = world.engine().metrics().commits_total.get();
        let foreign = rusqlite::Connection::open(world.path()).unwrap();
        foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
        let calls = (0..COLLECTIONS).map(|nth| batch(&world, vec![delete(nth)]));
        let release = async {
            tokio::task::yield_now().await;
            drop(foreign);
        };
        let (outcomes, ()) = tokio::join!(futures_util::future::join_all(calls), release);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        assert_eq!(number(&world, rest).await, 0);
        let groups = world.engine().metrics().commits_total.get() - before;
        assert!(groups >= 2, "{groups} groups for 72 MB");
    });
}

/// A step counted its rows, and not their bytes: a session with a hundred calls of eight megabytes was cancelled in one
/// transaction that read, wrote and logged all of them, and every other caller waited for seconds. The class: a loop over
/// stored rows whose number is limited, and whose size is not.
#[test]
fn large_rows_are_ended_in_steps_of_bounded_bytes() {
    const BYTES: usize = 400 << 10;
    run(async {
        let mut world = World::new(modules);
        let text = "x".repeat(BYTES);
        let mut calls = vec![
            batch_call("register_tool", json!({"name": "put", "effect": "idempotent"})),
            batch_call("register_tool", json!({"name": "ask", "needs_approval": true})),
            batch_call("create_session", json!({"agent": "support", "id": "s1"})),
        ];
        for nth in 0..6 {
            let call = json!({"call_id": format!("c{nth}"), "session_id": "s1", "arguments": {"text": text},
                "tool_name": if nth < 2 { "ask" } else { "put" },
                "claim_lease_ms": if nth > 3 { json!(60_000) } else { JsonValue::Null }});
            calls.push(batch_call("request_tool_call", call));
            let timer = json!({"in_ms": 1_000, "session_id": "s1", "message": text});
            calls.push(batch_call("set_timer", timer));
            let child = format!("child{nth}");
            calls.push(batch_call(
                "create_session",
                json!({"agent": "support", "id": child, "parent_id": "s1"}),
            ));
            calls.push(batch_call(
                "complete_session",
                json!({"session_id": child, "result": {"text": text}}),
            ));
        }
        for call in calls {
            batch(&world, vec![call]).await.unwrap();
        }
        let before = world.engine().durable_seq().0;
        world.call("cancel_session", json!({"session_id": "s1"})).await.unwrap();
        world.pass_ms(0).await;
        let bytes = format!(
            "SELECT max(bytes), sum(bytes) FROM (SELECT sum(bytes) AS bytes FROM (SELECT seq, length(arguments) AS bytes FROM tool_calls
             UNION ALL SELECT seq, length(message) FROM timers) WHERE seq > {before} GROUP BY seq)"
        );
        let found = world.rows(&bytes).await;
        let found: Vec<i64> =
            found[0].iter().map(|cell| cell.to_json().as_i64().unwrap()).collect();
        assert!(found[1] > 12 * BYTES as i64, "{found:?}: all were ended");
        assert!(found[0] < (limits::CLEANUP_BYTES + BYTES) as i64, "{found:?}");
        // The results of children that have ended are read, too.
        let steps =
            number(&world, "SELECT count(*) FROM events WHERE reducer = 'continue_cleanup'").await;
        assert!(steps >= 18 * BYTES as i64 / (limits::CLEANUP_BYTES + BYTES) as i64, "{steps}");
        check_replay(&mut world);
    });
}
