//! Claims by callers with a scope: each claims the longest waiting item of its own scope, however
//! many rows of other scopes come before it.

use abide_engine::replay;
use abide_reducers::modules;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Scope, limits};
use abide_tests::world::{World, run};
use serde_json::{Value as JsonValue, json};

fn worker(scope: &[(&str, &str)]) -> Caller {
    let scope: Scope = scope.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Caller::with("w", "app", ["*".to_owned()].into(), scope)
}

async fn claim(world: &World, by: &Caller) -> Result<String, Code> {
    let args = json!({"tools": ["put"], "lease_ms": 1_000});
    let done = world
        .engine()
        .call(by, "claim_next_tool_call", &args, None)
        .await
        .map_err(|refusal| refusal.code)?;
    let call: JsonValue = serde_json::from_str(&done.result).unwrap();
    Ok(call["call_id"].as_str().unwrap().to_owned())
}

/// Sessions of two tenants with two teams each and the same names; calls and runs of each wait in
/// turn.
async fn tenants() -> World {
    let world = World::new(modules);
    let retry = json!({"max_attempts": 9, "backoff_ms": 0});
    let tool = json!({"name": "put", "effect": "idempotent", "retry": retry});
    world.call("register_tool", tool).await.unwrap();
    let agent = json!({"name": "support", "definition": {}});
    world.call("register_agent", agent).await.unwrap();
    for nth in 0..3 {
        for (tenant, team) in [("a", "x"), ("b", "x"), ("a", "y"), ("b", "y")] {
            let id = format!("{tenant}{team}{nth}");
            let scope = json!({"tenant": tenant, "team": team, "size": 3});
            let session = json!({"agent": "support", "id": id, "scope": scope});
            world.call("create_session", session).await.unwrap();
            let call =
                json!({"call_id": id, "session_id": id, "tool_name": "put", "arguments": {}});
            world.call("request_tool_call", call).await.unwrap();
            world.call("start_run", json!({"session_id": id, "id": id})).await.unwrap();
        }
    }
    world
}

#[test]
fn a_claim_takes_the_longest_waiting_call_of_the_scope() {
    run(async {
        let mut world = tenants().await;
        let of_a = worker(&[("tenant", "a")]);
        let of_by = worker(&[("tenant", "b"), ("team", "y")]);
        let of_none = worker(&[("tenant", "a"), ("team", "z")]);
        assert_eq!(claim(&world, &of_none).await, Err(Code::NotFound));
        assert_eq!(claim(&world, &of_by).await.unwrap(), "by0");
        for expected in ["ax0", "ay0", "ax1"] {
            assert_eq!(claim(&world, &of_a).await.unwrap(), expected);
        }
        // The leases expire. The calls wait again, at their old positions.
        world.pass_ms(2_000).await;
        for expected in ["ax0", "ay0", "ax1", "ay1", "ax2", "ay2"] {
            assert_eq!(claim(&world, &of_a).await.unwrap(), expected);
        }
        assert_eq!(claim(&world, &of_a).await, Err(Code::NotFound));
        world.call("cancel_session", json!({"session_id": "by0"})).await.unwrap();
        for expected in ["by1", "by2"] {
            assert_eq!(claim(&world, &of_by).await.unwrap(), expected);
        }
        for expected in ["bx0", "bx1", "bx2"] {
            assert_eq!(claim(&world, &Caller::local()).await.unwrap(), expected);
        }
        let left = "SELECT count(*) FROM waiting WHERE queue = 'tput'";
        assert_eq!(world.rows(left).await[0][0], 0.into());
        world.close();
        let into = world.path().with_extension("again");
        replay(&world.path(), &into, modules(), None, &mut |_| {}).unwrap();
    });
}

#[test]
fn a_driver_claims_the_longest_waiting_run_of_its_scope() {
    run(async {
        let world = tenants().await;
        let of_by = worker(&[("tenant", "b"), ("team", "y")]);
        for expected in ["by0", "by1", "by2"] {
            let args = json!({"driver": "d", "lease_ms": 60_000});
            let done = world.engine().call(&of_by, "claim_next_run", &args, None).await.unwrap();
            assert!(done.result.contains(&format!("\"id\":\"{expected}\"")), "{}", done.result);
        }
        let args = json!({"driver": "d", "lease_ms": 60_000});
        let refused = world.engine().call(&of_by, "claim_next_run", &args, None).await;
        assert_eq!(refused.unwrap_err().code, Code::NotFound);
    });
}

/// A server that was about to stop refused every claim, so a worker whose answer was lost could not learn that it had a
/// lease.
#[test]
fn a_repeated_claim_is_answered_while_the_process_is_about_to_stop() {
    run(async {
        let world = tenants().await;
        let by = Caller::local();
        let callers = world.engine().for_callers();
        let claim = json!({"tools": ["put"], "worker": "w", "lease_ms": 60_000});
        let request = BatchCall { reducer: "claim_next_tool_call".to_owned(), args: claim.clone() };
        let batch = [request.clone(), request];
        let first = callers.call(&by, "claim_next_tool_call", &claim, Some("r1")).await.unwrap();
        let both = callers.batch(&by, &batch, Some("r2")).await.unwrap();

        callers.refuse_calls_of(&["claim_next_tool_call"]);
        let again = callers.call(&by, "claim_next_tool_call", &claim, Some("r1")).await.unwrap();
        assert!(again.duplicate);
        assert_eq!((again.seq, again.result), (first.seq, first.result));
        let both_again = callers.batch(&by, &batch, Some("r2")).await.unwrap();
        assert!(both_again.duplicate);
        assert_eq!(both_again.seq, both.seq);

        let seq = world.engine().durable_seq();
        for request_id in [None, Some("r3")] {
            let refused = callers.call(&by, "claim_next_tool_call", &claim, request_id).await;
            assert_eq!(refused.unwrap_err().code, Code::Unavailable, "{request_id:?}");
            let refused = callers.batch(&by, &batch, request_id).await.unwrap_err();
            assert_eq!(refused.code, Code::Unavailable, "{request_id:?}");
            assert_eq!(refused.batch_position, Some(1), "{request_id:?}");
        }
        let other = json!({"tools": ["put"], "worker": "w", "lease_ms": 30_000});
        let conflict = callers.call(&by, "claim_next_tool_call", &other, Some("r1")).await;
        assert_eq!(conflict.unwrap_err().code, Code::RequestIdConflict);
        assert_eq!(world.engine().durable_seq(), seq, "nothing was written");
    });
}

/// A claim read up to a thousand calls at once, with their arguments: with those of a session that is cancelled, gigabytes.
/// The class: a loop over stored rows whose number is limited, and whose size is not.
#[test]
fn a_claim_reads_a_bounded_number_of_bytes() {
    const BYTES: usize = 7 << 20;
    run(async {
        let mut world = World::new(modules);
        world.close();
        let mut config = world.config(modules());
        // The first step of the cancellation is the only one.
        config.timers = false;
        world.open_with(config);
        world.call("register_tool", json!({"name": "put", "effect": "idempotent"})).await.unwrap();
        world.call("create_session", json!({"agent": "x", "id": "closing"})).await.unwrap();
        world.call("create_session", json!({"agent": "x", "id": "open"})).await.unwrap();
        let text = "x".repeat(BYTES);
        let request = async |session: &str, nth: usize, text: &str| {
            let call = json!({"call_id": format!("{session}{nth}"), "session_id": session, "tool_name": "put",
                "arguments": {"text": text}});
            world.call("request_tool_call", call).await.unwrap();
        };
        for nth in 0..2 + limits::CLAIM_BYTES / BYTES {
            request("closing", nth, &text).await;
        }
        request("open", 0, "x").await;
        world.call("cancel_session", json!({"session_id": "closing"})).await.unwrap();
        let next = json!({"tools": ["put"]});
        let refusal = world.call("claim_next_tool_call", next.clone()).await.unwrap_err();
        assert!(refusal.detail.contains("are being cancelled"), "{refusal}");
        world.close();
        world.open();
        world.pass_ms(0).await;
        let done = world.call("claim_next_tool_call", next).await.unwrap();
        assert!(done.result.contains("open0"), "{}", done.result);
    });
}

/// Each tool of a claim could examine a thousand calls, so one claim with a hundred tools held the writer for seconds. The class:
/// a limit for each element of a list that the caller chooses. The tools take turns, so that the claimable call of one is
/// found although the calls of others cannot be claimed.
#[test]
fn the_tools_of_a_claim_share_one_limit() {
    const TOOLS: usize = 4;
    run(async {
        let mut world = World::new(modules);
        world.close();
        let mut config = world.config(modules());
        // The first step of the cancellation is the only one.
        config.timers = false;
        world.open_with(config);
        let names: Vec<String> = (0..=TOOLS).map(|nth| format!("put{nth}")).collect();
        for name in &names {
            let tool = json!({"name": name, "effect": "idempotent"});
            world.call("register_tool", tool).await.unwrap();
        }
        world.call("create_session", json!({"agent": "x", "id": "closing"})).await.unwrap();
        world.call("create_session", json!({"agent": "x", "id": "open"})).await.unwrap();
        let request = |session: &str, tool: &str, nth: usize| BatchCall {
            reducer: "request_tool_call".to_owned(),
            args: json!({"call_id": format!("{tool}/{nth}"), "session_id": session, "tool_name": tool,
                "arguments": {}}),
        };
        for name in &names[..TOOLS] {
            let calls: Vec<BatchCall> = (0..limits::ROWS_EXAMINED_PER_CLAIM)
                .map(|nth| request("closing", name, nth))
                .collect();
            world.engine().batch(&Caller::local(), &calls, None).await.unwrap();
        }
        world.call("cancel_session", json!({"session_id": "closing"})).await.unwrap();
        let left = "SELECT count(*) FROM tool_calls WHERE status = 'pending'";
        let left = world.rows(left).await[0][0].to_json().as_u64().unwrap();
        assert!(left > 2 * limits::ROWS_EXAMINED_PER_CLAIM as u64, "{left} calls are left");
        let steps = || world.engine().metrics().writer_steps_total.get();
        let claim = async |tools: &[String]| {
            let before = steps();
            let done = world.call("claim_next_tool_call", json!({"tools": tools})).await;
            (done, steps() - before)
        };
        let (refused, one) = claim(&names[TOOLS - 1..TOOLS]).await;
        assert_eq!(refused.unwrap_err().code, Code::NotFound);
        let (refused, all) = claim(&names[..TOOLS]).await;
        assert_eq!(refused.unwrap_err().code, Code::NotFound);
        assert!(all < one + one / 2, "{all} steps for {TOOLS} tools, {one} for one");
        let call = request("open", &names[TOOLS], 0);
        world.call("request_tool_call", call.args).await.unwrap();
        let (done, _) = claim(&names).await;
        assert!(done.unwrap().result.contains("put4/0"));
    });
}
