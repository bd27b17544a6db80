//! Leases: only the identity that claimed a call, a run or a handoff can end, extend or release it,
//! and only with the required capability. Tokens are the seq of the claim and were readable: an app
//! without the capability completed a worker's refund with its own result, and caused an
//! `at_most_once` call to run again.

use std::collections::BTreeMap;

use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Value};
use abide_tests::random::Random;
use abide_tests::world::{World, run};
use serde_json::{Map, Value as JsonValue, json};

fn caller(id: &str, role: &str, capabilities: &[&str]) -> Caller {
    let capabilities = capabilities.iter().map(|it| (*it).to_owned()).collect();
    Caller::with(id, role, capabilities, BTreeMap::new())
}

async fn call(
    world: &World,
    who: &Caller,
    reducer: &str,
    args: &JsonValue,
) -> Result<JsonValue, Code> {
    let done = world.engine().call(who, reducer, args, None).await;
    let done = done.map_err(|refusal| refusal.code)?;
    Ok(serde_json::from_str(&done.result).unwrap())
}

/// A refund, a run and a handoff that `worker-1` holds; their tokens.
async fn claims() -> (World, [i64; 3]) {
    let world = World::new(abide_reducers::modules);
    let worker = caller("worker-1", "app", &["refunds"]);
    world.session("s1").await;
    for (reducer, args) in [
        (
            "register_tool",
            json!({"name": "refund", "required_capability": "refunds",
            "retry": {"max_attempts": 9}}),
        ),
        ("register_agent", json!({"name": "support", "definition": {}})),
        (
            "request_tool_call",
            json!({"call_id": "c1", "session_id": "s1", "tool_name": "refund",
            "arguments": {}}),
        ),
        ("start_run", json!({"session_id": "s1", "id": "r1"})),
        ("create_session", json!({"agent": "support", "id": "s2"})),
    ] {
        world.call(reducer, args).await.unwrap();
    }
    let handoff = json!({"session_id": "s2", "reason": "x", "required_capability": "refunds"});
    let handoff = world.call("request_supervisor_handoff", handoff).await.unwrap();
    let handoff: JsonValue = serde_json::from_str(&handoff.result).unwrap();
    let claims = [
        ("claim_tool_call", json!({"call_id": "c1", "lease_ms": 60_000, "worker": "w"})),
        ("claim_run", json!({"id": "r1", "driver": "d", "lease_ms": 60_000})),
        ("claim_handoff", json!({"id": handoff["id"], "lease_ms": 60_000})),
    ];
    let mut tokens = [0; 3];
    for (token, (reducer, args)) in tokens.iter_mut().zip(claims) {
        let claimed = call(&world, &worker, reducer, &args).await.unwrap();
        *token = claimed["fencing_token"].as_i64().expect("the claim returns the token");
    }
    (world, tokens)
}

/// Every reducer that takes a fencing token or ends a claim, as its holder would call it.
async fn uses(world: &World, [call, run, handoff]: [i64; 3]) -> Vec<(&'static str, JsonValue)> {
    let ho = world.rows("SELECT id FROM handoff_requests").await[0][0].to_json();
    let mut uses = vec![
        (
            "heartbeat_tool_call",
            json!({"call_id": "c1", "fencing_token": call, "lease_ms": 70_000}),
        ),
        ("complete_tool_call", json!({"call_id": "c1", "fencing_token": call, "result": "forged"})),
        ("fail_tool_call", json!({"call_id": "c1", "fencing_token": call, "error": "forged"})),
        (
            "fail_tool_call",
            json!({"call_id": "c1", "fencing_token": call, "error": "forged",
            "retryable": true}),
        ),
        ("acknowledge_cancel", json!({"call_id": "c1", "fencing_token": call})),
        ("claim_run", json!({"id": "r1", "driver": "d", "lease_ms": 60_000})),
        ("heartbeat_run", json!({"id": "r1", "fencing_token": run, "lease_ms": 70_000})),
        ("record_run", json!({"id": "r1", "fencing_token": run, "spent": {"iteration": true}})),
        ("reserve_usage", json!({"id": "r1", "fencing_token": run, "tokens": 5})),
        (
            "withhold_answer",
            json!({"id": "r1", "fencing_token": run, "iteration": 1, "original": "forged"}),
        ),
        (
            "record_pause",
            json!({"id": "r1", "fencing_token": run, "stage": "after_agent", "reason": "forged"}),
        ),
        (
            "record_summary",
            json!({"id": "r1", "fencing_token": run, "summary": {"number": 1, "through_id": 1,
            "folded_id": 1, "goal_id": 1, "goal_folded_id": 1, "summary": "forged", "kept": [],
            "answers": 0, "handoffs": [], "origin": "model", "tokens_before": 1}}),
        ),
        (
            "write_plan",
            json!({"id": "r1", "fencing_token": run, "expected_version": 0, "steps": []}),
        ),
        ("wait_run", json!({"id": "r1", "fencing_token": run, "interrupt": {}})),
        ("finish_run", json!({"id": "r1", "fencing_token": run, "end": "done"})),
        (
            "request_tool_call",
            json!({"call_id": "r1~1", "session_id": "s1", "tool_name": "refund", "arguments": {},
            "run_id": "r1", "run_fencing_token": run}),
        ),
        (
            "start_child_run",
            json!({"call_id": "c1", "fencing_token": call, "agent": "support", "input": "x"}),
        ),
        ("heartbeat_handoff", json!({"id": ho, "fencing_token": handoff, "lease_ms": 70_000})),
        ("heartbeat_handoff", json!({"id": ho, "lease_ms": 70_000})),
        ("release_handoff", json!({"id": ho, "fencing_token": handoff})),
        ("resolve_handoff", json!({"id": ho, "fencing_token": handoff, "resolution": "forged"})),
        ("reject_handoff", json!({"id": ho, "fencing_token": handoff, "reason": "forged"})),
        (
            "write_entries",
            json!({"collection_id": "e1", "puts": [{"key": "forged"}], "run_id": "r1",
                "fencing_token": run}),
        ),
        (
            "delete_entries",
            json!({"collection_id": "e1", "prefix": "forged", "run_id": "r1",
                "fencing_token": run}),
        ),
    ];
    uses.extend(uses_of_agents(run));
    uses.extend(uses_of_exchanges(call));
    uses
}

/// The reducers for the messages, the health and the memory of a run.
fn uses_of_agents(run: i64) -> [(&'static str, JsonValue); 4] {
    [
        (
            "append_message",
            json!({"session_id": "s1", "role": "assistant", "content": "forged", "run_id": "r1",
            "run_fencing_token": run}),
        ),
        (
            "record_health",
            json!({"id": "r1", "fencing_token": run, "iteration": 1, "action": "stop",
            "health": {"tokens": 1, "token_drift": 0, "messages": 1, "new_messages": 1,
            "tool_messages": 0, "over_tooling": 0, "context_rot": 0, "repeats": 0,
            "signals": [], "unhealthy": 0}}),
        ),
        (
            "save_memories",
            json!({"namespace": "support", "facts": [{"key": "k", "value": "forged"}],
            "run_id": "r1", "fencing_token": run}),
        ),
        ("forget_memories", json!({"space": "support@/", "run_id": "r1", "fencing_token": run})),
    ]
}

/// The reducers for the exchange of a call with a server.
fn uses_of_exchanges(call: i64) -> [(&'static str, JsonValue); 4] {
    [
        (
            "record_exchange",
            json!({"call_id": "c1", "fencing_token": call,
            "entries": [{"kind": "task", "data": {"task_id": "forged"}}]}),
        ),
        ("suspend_tool_call", json!({"call_id": "c1", "fencing_token": call, "retry_ms": 5})),
        (
            "request_supervisor_handoff",
            json!({"session_id": "s1", "reason": "forged", "required_capability": "forged",
                "call_id": "c1", "call_fencing_token": call}),
        ),
        ("close_exchange", json!({"call_id": "c1", "fencing_token": call})),
    ]
}

/// Detects reducers with a token that are missing in the list above.
#[test]
fn every_reducer_with_a_token_is_tested() {
    run(async {
        let (world, tokens) = claims().await;
        let tried = uses(&world, tokens).await;
        for module in abide_reducers::modules() {
            for reducer in module.reducers {
                let takes_token = (reducer.arguments)().to_string().contains("fencing_token");
                let is_tried = tried.iter().any(|(name, _)| *name == reducer.name);
                assert!(is_tried || !takes_token, "{} takes a token", reducer.name);
            }
        }
    });
}

#[test]
fn non_holders_cannot_end_leases() {
    run(async {
        let (world, tokens) = claims().await;
        world.call("cancel_tool_call", json!({"call_id": "c1"})).await.unwrap();
        let rows = "SELECT c.status, c.attempt, c.lease_expires_at,
            r.status, r.lease_expires_at, r.iterations,
            h.status, h.lease_expires_at FROM tool_calls c, runs r, handoff_requests h";
        let before = world.rows(rows).await;
        let strangers = [
            caller("acme-app", "app", &[]),
            caller("worker-2", "app", &["refunds"]),
            Caller::new("root"),
            // The worker's name for itself is not an identity.
            caller("w", "app", &["refunds"]),
            caller("d", "app", &["refunds"]),
        ];
        for stranger in &strangers {
            for (reducer, args) in uses(&world, tokens).await {
                let answered = call(&world, stranger, reducer, &args).await;
                let code = answered.expect_err(&format!("{stranger:?} {reducer}"));
                assert!(
                    matches!(code, Code::Denied | Code::Conflict),
                    "{stranger:?} {reducer}: {code}"
                );
                assert_eq!(before, world.rows(rows).await, "{stranger:?} {reducer}");
            }
        }
        // A holder that lost the capability cannot end the call or resolve the handoff either.
        let demoted = caller("worker-1", "app", &[]);
        for (reducer, args) in uses(&world, tokens).await {
            let needs_none = [
                "release_handoff",
                "append_message",
                "request_tool_call",
                "reserve_usage",
                "withhold_answer",
                "record_pause",
                "record_health",
                "save_memories",
                "forget_memories",
                "record_summary",
                "write_plan",
                "write_entries",
                "delete_entries",
            ]
            .contains(&reducer);
            if !reducer.ends_with("_run") && !needs_none {
                let denied = call(&world, &demoted, reducer, &args).await;
                assert_eq!(denied.expect_err(reducer), Code::Denied, "{reducer}");
            }
        }
        let holder = caller("worker-1", "app", &["refunds"]);
        for (reducer, args) in uses(&world, tokens).await {
            if reducer.starts_with("heartbeat") || reducer == "record_run" {
                call(&world, &holder, reducer, &args).await.expect(reducer);
            }
        }
    });
}

/// A late result of the true holder is kept; one of another identity is not.
#[test]
fn late_results_are_accepted_from_the_former_holder_only() {
    run(async {
        let (world, [token, ..]) = claims().await;
        world.pass_ms(61_000).await;
        let late =
            |result: &str| json!({"call_id": "c1", "fencing_token": token, "result": result});
        for forger in [caller("acme-app", "app", &[]), Caller::new("root")] {
            let refused = call(&world, &forger, "complete_tool_call", &late("forged")).await;
            assert_eq!(refused.unwrap_err(), Code::Denied);
        }
        let reported = "SELECT count(*) FROM lost_leases WHERE reported_at IS NOT NULL";
        assert_eq!(world.rows(reported).await[0][0], Value::Integer(0));
        let holder = caller("worker-1", "app", &["refunds"]);
        let refused = call(&world, &holder, "complete_tool_call", &late("paid")).await;
        assert_eq!(refused.unwrap_err(), Code::LeaseLost);
        let kept = "SELECT result FROM lost_leases";
        assert_eq!(world.rows(kept).await[0][0], Value::from("\"paid\""));
    });
}

/// Restricted callers, including the holder, see no tokens in rows; a claim returns them to the
/// holder only.
#[test]
fn only_holders_see_fencing_tokens() {
    run(async {
        let (world, [token, ..]) = claims().await;
        let app = caller("acme-app", "app", &[]);
        for table in ["tool_calls", "lost_leases", "runs", "handoff_requests"] {
            let sql = format!("SELECT fencing_token FROM {table}");
            let refused = world.engine().query(&app, &sql, &Map::new(), None).await;
            assert_eq!(refused.unwrap_err().code, Code::BadSql, "{table}");
        }
        let view = "SELECT call_id FROM unknown_tool_calls";
        world.engine().query(&app, view, &Map::new(), None).await.unwrap();
        let cancel = json!({"call_id": "c1"});
        for who in [&app, &app] {
            let answer = call(&world, who, "cancel_tool_call", &cancel).await.unwrap();
            assert_eq!(answer["fencing_token"], JsonValue::Null);
        }
        let again =
            json!({"call_id": "c1", "session_id": "s1", "tool_name": "refund", "arguments": {}});
        let answer = call(&world, &app, "request_tool_call", &again).await.unwrap();
        assert_eq!(answer["fencing_token"], JsonValue::Null);
        let holder = caller("worker-1", "app", &["refunds"]);
        let answer = call(&world, &holder, "request_tool_call", &again).await.unwrap();
        assert_eq!(answer["fencing_token"], json!(token));
        for (reducer, args) in [
            ("start_run", json!({"session_id": "s1", "id": "r1"})),
            ("abort_run", json!({"id": "r1"})),
            ("abort_run", json!({"id": "r1"})),
        ] {
            let answer = call(&world, &app, reducer, &args).await.unwrap();
            assert_eq!(answer["fencing_token"], JsonValue::Null, "{reducer}");
        }
    });
}

/// Random callers, tokens and times: only the holder or time ends an attempt.
#[test]
fn only_holders_end_what_they_hold() {
    for seed in 0..20 {
        run(play(seed));
    }
}

async fn play(seed: u64) {
    let world = World::new(abide_reducers::modules);
    let mut random = Random::new(seed);
    let people = ["a", "b", "c"].map(|id| caller(id, "app", &["x"]));
    world.session("s1").await;
    let retry = json!({"max_attempts": 1_000});
    let tool =
        json!({"name": "put", "effect": "idempotent", "required_capability": "x", "retry": retry});
    world.call("register_tool", tool).await.unwrap();
    for nth in 0..4 {
        let args = json!({"call_id": format!("c{nth}"), "session_id": "s1", "tool_name": "put",
            "arguments": {}});
        world.call("request_tool_call", args).await.unwrap();
    }
    // By call: the last claimant and the token.
    let mut holders: BTreeMap<String, (usize, i64)> = BTreeMap::new();
    for _ in 0..120 {
        let nth = random.below(4);
        let by = random.below(3);
        let id = format!("c{nth}");
        let held = holders.get(&id).copied();
        if random.below(10) == 0 {
            world.pass_ms(random.below(2_000) as i64).await;
        }
        if random.below(3) == 0 {
            let args = json!({"call_id": id, "lease_ms": 1_500, "worker": "a"});
            if let Ok(row) = call(&world, &people[by], "claim_tool_call", &args).await {
                holders.insert(id, (by, row["fencing_token"].as_i64().unwrap()));
            }
            continue;
        }
        let token = match (held, random.below(4)) {
            (Some((_, token)), 0..=2) => token,
            _ => random.below(60) as i64,
        };
        let (reducer, args) = match random.below(3) {
            0 => ("heartbeat_tool_call", json!({"call_id": id, "fencing_token": token})),
            1 => (
                "fail_tool_call",
                json!({"call_id": id, "fencing_token": token, "error": "e",
                "retryable": true}),
            ),
            _ => {
                ("complete_tool_call", json!({"call_id": id, "fencing_token": token, "result": by}))
            }
        };
        if call(&world, &people[by], reducer, &args).await.is_ok() {
            assert_eq!(held, Some((by, token)), "seed {seed}: {reducer} {args} by {by}");
        }
    }
    for row in world.rows("SELECT call_id, result FROM tool_calls WHERE status = 'succeeded'").await
    {
        let Value::Text(id) = &row[0] else { panic!("{row:?}") };
        assert_eq!(row[1].to_json(), json!(holders[id.as_str()].0.to_string()), "seed {seed}");
    }
}

/// The writer caches the callers of claims. A refused batch leaves no event, so the next claim gets the same seq.
#[test]
fn a_claim_that_was_undone_has_no_holder() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let agent = json!({"name": "support", "definition": {}});
        world.call("register_agent", agent).await.unwrap();
        world.call("start_run", json!({"session_id": "s1", "id": "r1"})).await.unwrap();
        let first = caller("first", "app", &[]);
        let second = caller("second", "app", &[]);
        let token = world.engine().durable_seq().0 + 1;
        let claim = json!({"id": "r1", "driver": "d", "lease_ms": 60_000});
        let heartbeat = json!({"id": "r1", "fencing_token": token, "lease_ms": 70_000});
        let batch = [
            ("claim_run", claim.clone()),
            ("heartbeat_run", heartbeat.clone()),
            ("complete_session", json!({"session_id": "missing"})),
        ];
        let batch = batch.map(|(reducer, args)| BatchCall { reducer: reducer.to_owned(), args });
        let refused = world.engine().batch(&first, &batch, None).await.unwrap_err();
        assert_eq!((refused.code, refused.batch_position), (Code::NotFound, Some(3)));
        let claimed = call(&world, &second, "claim_run", &claim).await.unwrap();
        assert_eq!(claimed["fencing_token"], token, "the seq of the undone claim");
        call(&world, &second, "heartbeat_run", &heartbeat).await.unwrap();
        let denied = call(&world, &first, "heartbeat_run", &heartbeat).await;
        assert_eq!(denied, Err(Code::Denied));
    });
}
