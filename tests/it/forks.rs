//! Forks of long sessions: they copy in steps that other callers do not notice, with the rights of their caller, and end
//! with the history as it was.
//!
//! A request of sixty bytes copied a session with 20,000 messages in one transaction: the writes of all other tenants
//! waited for half a second, again and again.

use std::collections::{BTreeMap, BTreeSet};

use abide_engine::replay;
use abide_reducers::modules;
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Code, Refusal, Seq, limits};
use abide_tests::world::{World, run};
use serde_json::{Value as JsonValue, json};

use crate::replica::Client;

fn batch_call(reducer: &str, args: JsonValue) -> BatchCall {
    BatchCall { reducer: reducer.to_owned(), args }
}

/// A caller of a tenant.
fn tenant_caller(tenant: &str, role: &str) -> Caller {
    let scope = BTreeMap::from([("tenant".to_owned(), tenant.to_owned())]);
    Caller::with(format!("{role}-{tenant}"), role, BTreeSet::new(), scope)
}

async fn number(world: &World, sql: &str) -> i64 {
    world.rows(sql).await[0][0].to_json().as_i64().expect("a number")
}

async fn texts(world: &World, sql: &str) -> Vec<JsonValue> {
    world
        .rows(sql)
        .await
        .iter()
        .map(|row| json!(row.iter().map(|it| it.to_json()).collect::<Vec<_>>()))
        .collect()
}

async fn ask(
    world: &World,
    who: &Caller,
    reducer: &str,
    args: JsonValue,
) -> Result<JsonValue, Refusal> {
    let done = world.engine().call(who, reducer, &args, None).await?;
    Ok(serde_json::from_str(&done.result).unwrap())
}

/// Rounds of a user's message, an answer with a call, and its result. More than two steps copy.
const ROUNDS: usize = limits::FORK_STEP_ROWS * 3 / 4;

/// Facts of the session: more than one step copies.
const FACTS: usize = limits::FORK_STEP_ROWS * 5 / 4;

/// A session `s` with calls and facts.
async fn history(world: &World, who: &Caller) {
    let local = Caller::local();
    ask(world, &local, "register_tool", json!({"name": "look", "effect": "read_only"}))
        .await
        .unwrap();
    ask(world, who, "create_session", json!({"agent": "clerk", "id": "s"})).await.unwrap();
    let mut calls = Vec::new();
    for nth in 0..ROUNDS {
        let call_id = format!("{}c{nth}", who.namespace());
        let answer = json!({"calls": [{"call_id": call_id, "name": "look"}]});
        calls.extend([
            batch_call("append_message", json!({"session_id": "s", "role": "user", "content": nth.to_string()})),
            batch_call("request_tool_call", json!({"call_id": call_id, "session_id": "s", "tool_name": "look", "arguments": {}})),
            batch_call("append_message", json!({"session_id": "s", "role": "assistant", "content": "I look.", "data": answer})),
            batch_call("cancel_tool_call", json!({"call_id": call_id})),
            batch_call("append_message", json!({"session_id": "s", "role": "tool", "content": "none", "data": {"call_id": call_id}})),
        ]);
    }
    let facts: Vec<JsonValue> =
        (0..FACTS).map(|nth| json!({"key": format!("k{nth}"), "value": "v"})).collect();
    for facts in facts.chunks(limits::MEMORIES_OF_A_CALL) {
        let save = json!({"namespace": "clerk", "session_id": "s", "facts": facts});
        calls.push(batch_call("save_memories", save));
    }
    for calls in calls.chunks(100) {
        world.engine().batch(who, calls, None).await.unwrap();
    }
}

/// What a session has, without the ids that differ in a copy.
async fn contents(world: &World, session: &str) -> Vec<Vec<JsonValue>> {
    let mut all = Vec::new();
    for sql in [
        "SELECT e.role, e.kind, e.content, c.status FROM agent_state AS e LEFT JOIN tool_calls AS c
         ON c.call_id = coalesce(e.data ->> '$.call_id', e.data ->> '$.calls[0].call_id') AND c.session_id = e.session_id
         WHERE e.session_id = '{}' ORDER BY e.id",
        "SELECT key, value FROM memories WHERE session_id = '{}' ORDER BY updated_at, id",
        "SELECT count(*) FROM tool_calls WHERE session_id = '{}'",
    ] {
        all.push(texts(world, &sql.replace("{}", session)).await);
    }
    all
}

/// The same file, opened without timers: a fork stops after its first step, as if the process was killed.
fn without_steps(world: &mut World) {
    world.close();
    let mut config = world.config(modules());
    config.timers = false;
    world.open_with(config);
}

fn with_steps(world: &mut World) {
    world.drop_engine();
    world.open();
}

/// Takes all steps that are left.
async fn complete(world: &World) {
    for _ in 0..1_000 {
        world.engine().fire_due().await.unwrap();
        if number(world, "SELECT count(*) FROM session_copies").await == 0 {
            return;
        }
    }
    panic!("the steps do not end");
}

fn check_replay(world: &mut World) {
    world.close();
    let into = world.path().with_extension("again");
    replay(&world.path(), &into, modules(), None, &mut |_| {}).unwrap();
    world.open();
}

#[test]
fn a_long_fork_copies_in_bounded_steps() {
    run(async {
        let mut world = World::new(modules);
        let local = Caller::local();
        history(&world, &local).await;
        let before = world.engine().durable_seq().0;
        let done = world.call("fork_session", json!({"session_id": "s", "id": "f"})).await.unwrap();
        let fork: JsonValue = serde_json::from_str(&done.result).unwrap();
        assert_eq!((&fork["messages"], &fork["calls"]), (&json!(3 * ROUNDS), &json!(ROUNDS)));
        assert!(fork["ended_at"].is_i64(), "the answer waits for the last step: {fork}");
        assert_eq!(done.seq, world.engine().durable_seq());
        assert_eq!(contents(&world, "f").await, contents(&world, "s").await);
        assert_eq!(
            texts(&world, "SELECT status, reason FROM sessions WHERE id = 'f'").await,
            [json!(["active", null])]
        );
        assert_eq!(number(&world, "SELECT count(*) FROM session_copies").await, 0);
        let rows = format!(
            "SELECT max(n), count(*) FROM (SELECT count(*) AS n FROM (SELECT seq FROM agent_state UNION ALL
             SELECT seq FROM tool_calls UNION ALL SELECT seq FROM memories) WHERE seq > {before} GROUP BY seq)"
        );
        let rows = texts(&world, &rows).await;
        let max = rows[0][0].as_i64().unwrap();
        assert!(max <= limits::FORK_STEP_ROWS as i64 + 1, "{max} rows of one event");
        assert!(rows[0][1].as_i64().unwrap() > 4, "{rows:?}");
        // A fork of the fork, at an event that the fork's steps had not reached.
        let early = json!({"session_id": "f", "id": "g", "at": before + 2});
        let early = ask(&world, &local, "fork_session", early).await.unwrap();
        assert!(early["messages"].as_i64().unwrap() < 3 * ROUNDS as i64, "{early}");
        check_replay(&mut world);
    });
}

/// A process that is killed after any step continues with the next one, and the copy is the same.
#[test]
fn a_fork_continues_after_a_crash_at_each_step() {
    run(async {
        let mut world = World::new(modules);
        let ann = tenant_caller("acme", "app");
        history(&world, &ann).await;
        let before = world.engine().durable_seq();
        ask(&world, &ann, "fork_session", json!({"session_id": "s", "id": "f"})).await.unwrap();
        let end = world.engine().durable_seq();
        let whole = contents(&world, "tenant=acme/f").await;
        assert_eq!(whole, contents(&world, "tenant=acme/s").await);
        world.close();
        for seq in before.0 + 1..end.0 {
            let mut crashed = World::new_without_engine(modules, &world.clock);
            replay(&world.path(), &crashed.path(), modules(), Some(Seq(seq)), &mut |_| {}).unwrap();
            crashed.open();
            complete(&crashed).await;
            assert_eq!(contents(&crashed, "tenant=acme/f").await, whole, "after event {seq}");
            let steps = "SELECT DISTINCT caller, authority IS NULL FROM events WHERE reducer = 'continue_fork'";
            assert_eq!(
                texts(&crashed, steps).await,
                [json!(["app-acme", 0])],
                "no step is one of the engine"
            );
            check_replay(&mut crashed);
        }
    });
}

#[test]
fn the_session_refuses_calls_until_the_last_step() {
    run(async {
        let mut world = World::new(modules);
        history(&world, &Caller::local()).await;
        without_steps(&mut world);
        let begun =
            ask(&world, &Caller::local(), "fork_session", json!({"session_id": "s", "id": "f"}))
                .await
                .unwrap();
        assert_eq!(begun["ended_at"], JsonValue::Null);
        let marks =
            "SELECT status, reason, ended_at FROM sessions JOIN session_forks ON session_id = id";
        assert_eq!(
            texts(&world, marks).await,
            [json!(["created", "the copy of the history is in progress", null])]
        );
        let before = world.state(None).await;
        for (reducer, args) in [
            ("append_message", json!({"session_id": "f", "role": "user", "content": "x"})),
            ("append_message", json!({"session_id": "f", "role": "tool", "content": "x"})),
            ("start_run", json!({"session_id": "f"})),
            ("set_timer", json!({"session_id": "f", "in_ms": 5})),
            (
                "request_tool_call",
                json!({"call_id": "x", "session_id": "f", "tool_name": "look", "arguments": {}}),
            ),
            ("create_session", json!({"agent": "x", "parent_id": "f"})),
            ("update_session", json!({"session_id": "f", "title": "x"})),
            ("suspend_session", json!({"session_id": "f"})),
            ("complete_session", json!({"session_id": "f"})),
            ("fail_session", json!({"session_id": "f", "code": "x", "message": "x"})),
            ("cancel_session", json!({"session_id": "f"})),
            ("fork_session", json!({"session_id": "f"})),
            (
                "save_memories",
                json!({"namespace": "clerk", "session_id": "f", "facts": [{"key": "x", "value": "x"}]}),
            ),
            (
                "request_supervisor_handoff",
                json!({"session_id": "f", "reason": "x", "required_capability": "x"}),
            ),
        ] {
            let refused = world.call(reducer, args).await.expect_err(reducer);
            assert_eq!(refused.code, Code::Conflict, "{reducer}: {refused}");
            assert!(refused.detail.contains("still being copied"), "{reducer}: {refused}");
            assert!(
                refused.hint.as_ref().is_some_and(|hint| hint.contains("wait")),
                "{reducer}: {refused}"
            );
        }
        assert!(before == world.state(None).await, "a refused call has no effect");
        with_steps(&mut world);
        complete(&world).await;
        world.append_message("f", "Go on.").await.unwrap();
        check_replay(&mut world);
    });
}

/// The copy is what there was when the session was forked, although the origin changes and ends between the steps.
#[test]
fn changes_of_the_origin_between_the_steps_are_not_copied() {
    run(async {
        let mut world = World::new(modules);
        history(&world, &Caller::local()).await;
        // It has not begun, so it is cancelled in the copy.
        let call =
            json!({"call_id": "late", "session_id": "s", "tool_name": "look", "arguments": {}});
        world.call("request_tool_call", call).await.unwrap();
        let answer = json!({"session_id": "s", "role": "assistant", "content": null,
            "data": {"calls": [{"call_id": "late", "name": "look"}]}});
        world.call("append_message", answer).await.unwrap();
        let before = contents(&world, "s").await;
        without_steps(&mut world);
        world.call("fork_session", json!({"session_id": "s", "id": "f"})).await.unwrap();
        world.call("cancel_tool_call", json!({"call_id": "late"})).await.unwrap();
        world.append_message("s", "Later.").await.unwrap();
        world.call("complete_session", json!({"session_id": "s"})).await.unwrap();
        with_steps(&mut world);
        complete(&world).await;
        let after = contents(&world, "f").await;
        assert_eq!(after[0][..3 * ROUNDS], before[0][..3 * ROUNDS]);
        let not_run = "The call did not run: the session was forked before it began.";
        let last = [
            json!(["assistant", "message", null, "cancelled"]),
            json!(["tool", "message", not_run, "cancelled"]),
        ];
        assert_eq!(after[0][3 * ROUNDS..], last);
        assert_eq!(after[1], before[1]);
        assert_eq!(after[2], [json!([ROUNDS + 1])]);
        check_replay(&mut world);
    });
}

/// The steps ran with the rights of the engine, had they been those of `system`.
#[test]
fn each_step_has_the_rights_of_its_caller() {
    run(async {
        let mut world = World::new(modules);
        let local = Caller::local();
        let clerk = tenant_caller("acme", "clerk");
        let role = json!({"name": "clerk", "reducers": ["fork_session"]});
        ask(&world, &local, "set_role", role).await.unwrap();
        for (table, condition) in [
            ("sessions", "1"),
            ("session_forks", "1"),
            ("tool_calls", "1"),
            ("memories", "1"),
            ("agent_state", "content <> '7' AND content <> '140'"),
        ] {
            let policy =
                json!({"table": table, "role": "clerk", "name": "p", "condition": condition});
            ask(&world, &local, "set_policy", policy).await.unwrap();
        }
        history(&world, &tenant_caller("acme", "app")).await;
        let fork = ask(&world, &clerk, "fork_session", json!({"session_id": "s", "id": "f"}))
            .await
            .unwrap();
        // Message 7 is copied by the first steps, 140 by the last one.
        assert_eq!(fork["messages"], 3 * ROUNDS - 2);
        let hidden = "SELECT count(*) FROM agent_state WHERE content IN ('7', '140') AND session_id LIKE '%/f'";
        assert_eq!(number(&world, hidden).await, 0);
        check_replay(&mut world);
    });
}

/// Revoking what a caller may do, between two steps of its fork.
#[test]
fn a_fork_fails_when_its_caller_is_revoked() {
    // An identity was looked for in the scope of the fork: with one that was moved, or with a fork in a narrower scope, none was
    // found, and the fork went on.
    let own = None;
    let narrower = Some("blue");
    let cases = [
        (own, "disable_identity", json!({"id": "ann"}), Code::Denied),
        (narrower, "disable_identity", json!({"id": "ann"}), Code::Denied),
        (own, "change_identity", json!({"id": "ann", "role": "auditor"}), Code::Denied),
        (narrower, "change_identity", json!({"id": "ann", "role": "auditor"}), Code::Denied),
        (own, "change_identity", json!({"id": "ann", "scope": {"tenant": "zeta"}}), Code::Denied),
        (
            narrower,
            "change_identity",
            json!({"id": "ann", "scope": {"tenant": "zeta"}}),
            Code::Denied,
        ),
        (own, "set_role", json!({"name": "clerk", "reducers": ["append_message"]}), Code::Denied),
        (
            own,
            "set_policy",
            json!({"table": "sessions", "role": "clerk", "name": "p", "condition": "0"}),
            Code::NotFound,
        ),
        (own, "remove_role", json!({"name": "clerk"}), Code::Denied),
    ];
    for (team, reducer, args, code) in cases {
        run(async {
            let mut world = World::new(modules);
            let local = Caller::local();
            let role = json!({"name": "clerk", "reducers": ["*"]});
            ask(&world, &local, "set_role", role).await.unwrap();
            let identity = json!({"id": "ann", "role": "clerk", "scope": {"tenant": "acme"}});
            ask(&world, &local, "create_identity", identity).await.unwrap();
            let scope = BTreeMap::from([("tenant".to_owned(), "acme".to_owned())]);
            let mut ann = Caller::with("ann", "clerk", BTreeSet::new(), scope);
            if let Some(team) = team {
                let scope = BTreeMap::from([("team".to_owned(), team.to_owned())]);
                ann = ann.acting_for(&scope).unwrap();
            }
            history(&world, &ann).await;
            without_steps(&mut world);
            let fork = json!({"session_id": "s", "id": "f"});
            world.engine().call(&ann, "fork_session", &fork, Some("once")).await.unwrap();
            let copied = "SELECT count(*) FROM agent_state WHERE session_id LIKE '%/f'";
            let before = number(&world, copied).await;
            ask(&world, &local, reducer, args).await.unwrap();
            with_steps(&mut world);
            complete(&world).await;
            let ends = "SELECT s.status, s.error_code, f.ended_at IS NOT NULL FROM sessions AS s
                JOIN session_forks AS f ON f.session_id = s.id";
            assert_eq!(
                texts(&world, ends).await,
                [json!(["failed", code.as_str(), 1])],
                "{reducer}"
            );
            assert_eq!(number(&world, copied).await, before, "{reducer}");
            assert_eq!(number(&world, "SELECT count(*) FROM session_copies").await, 0);
            // A retry was answered with the first step, as if the fork had succeeded.
            let retry = world.engine().call(&ann, "fork_session", &fork, Some("once")).await;
            assert_eq!(retry.unwrap_err().code, code, "{reducer}");
            check_replay(&mut world);
        });
    }
}

/// A limit that is exceeded after the first step: the caller gets the refusal, and the session is failed.
#[test]
fn a_fork_that_cannot_be_completed_is_refused() {
    run(async {
        let mut world = World::new(modules);
        history(&world, &Caller::local()).await;
        let calls: Vec<JsonValue> = (0..=limits::FORK_CALLS_OF_A_MESSAGE)
            .map(|nth| json!({"call_id": nth.to_string()}))
            .collect();
        let odd =
            json!({"session_id": "s", "role": "user", "content": "x", "data": {"calls": calls}});
        world.call("append_message", odd).await.unwrap();
        let args = json!({"session_id": "s", "id": "f"});
        let refused = world
            .engine()
            .call(&Caller::local(), "fork_session", &args, Some("once"))
            .await
            .unwrap_err();
        assert_eq!(refused.code, Code::LimitExceeded, "{refused}");
        assert!(refused.detail.contains("more than 1000 tool calls"), "{refused}");
        let ends = "SELECT status, error_code, error_message FROM sessions WHERE id = 'f'";
        let ends = texts(&world, ends).await;
        assert_eq!((&ends[0][0], &ends[0][1]), (&json!("failed"), &json!("limit_exceeded")));
        check_replay(&mut world);
    });
}

/// Results that are missing come behind the answer, also if more messages follow it than one step copies.
#[test]
fn an_answer_with_many_messages_behind_it_is_copied() {
    run(async {
        let mut world = World::new(modules);
        let local = Caller::local();
        ask(&world, &local, "register_tool", json!({"name": "look", "effect": "read_only"}))
            .await
            .unwrap();
        for (session, behind) in [("few", 5), ("many", 2 * limits::FORK_STEP_ROWS + 5)] {
            world.session(session).await;
            let call_id = format!("of_{session}");
            let call = json!({"call_id": call_id, "session_id": session, "tool_name": "look", "arguments": {}});
            world.call("request_tool_call", call).await.unwrap();
            world.call("cancel_tool_call", json!({"call_id": call_id})).await.unwrap();
            let answer = json!({"session_id": session, "role": "assistant", "content": "I look.",
                "data": {"calls": [{"call_id": call_id, "name": "look", "provider_call_id": "p"}]}});
            world.call("append_message", answer).await.unwrap();
            for nth in 0..behind {
                world.append_message(session, &nth.to_string()).await.unwrap();
            }
            let id = format!("f_{session}");
            let fork =
                ask(&world, &local, "fork_session", json!({"session_id": session, "id": id}))
                    .await
                    .unwrap();
            assert_eq!(fork["messages"], behind + 3);
            let place = format!(
                "SELECT (SELECT count(*) FROM agent_state AS b WHERE b.session_id = e.session_id AND b.id < e.id)
                 FROM agent_state AS e WHERE session_id = '{id}' AND role = 'tool' AND data ->> '$.provider_call_id' = 'p'"
            );
            let expected = if session == "few" { 2 } else { behind as i64 + 2 };
            assert_eq!(number(&world, &place).await, expected, "{session}");
        }
        check_replay(&mut world);
    });
}

/// The forks of one tenant wait for their turn, and so do the steps of each.
#[test]
fn tenants_take_turns() {
    run(async {
        let mut world = World::new(modules);
        for tenant in ["acme", "zeta"] {
            history_of(&world, tenant).await;
        }
        without_steps(&mut world);
        for nth in 0..5 {
            let args = json!({"session_id": "s", "id": format!("f{nth}")});
            ask(&world, &tenant_caller("zeta", "app"), "fork_session", args).await.unwrap();
        }
        ask(
            &world,
            &tenant_caller("acme", "app"),
            "fork_session",
            json!({"session_id": "s", "id": "f"}),
        )
        .await
        .unwrap();
        with_steps(&mut world);
        complete(&world).await;
        let acme = "SELECT max(seq) FROM events WHERE reducer = 'continue_fork' AND session_id = 'tenant=acme/f'";
        let steps = "SELECT count(*) FROM events WHERE reducer = 'continue_fork'";
        let own = number(&world, &format!("{steps} AND session_id = 'tenant=acme/f'")).await;
        let before = number(
            &world,
            &format!("{steps} AND seq < ({acme}) AND session_id <> 'tenant=acme/f'"),
        )
        .await;
        assert!(before <= own + 1, "{before} steps of others before {own}");
    });
}

async fn history_of(world: &World, tenant: &str) {
    let who = tenant_caller(tenant, "app");
    ask(world, &who, "create_session", json!({"agent": "clerk", "id": "s"})).await.unwrap();
    let calls: Vec<BatchCall> = (0..3 * limits::FORK_STEP_ROWS)
        .map(|nth| {
            batch_call(
                "append_message",
                json!({"session_id": "s", "role": "user", "content": nth.to_string()}),
            )
        })
        .collect();
    for calls in calls.chunks(100) {
        world.engine().batch(&who, calls, None).await.unwrap();
    }
}

/// Class: a call whose process has ended before its answer, and that nothing can continue. `agent fork` has no request id, so the
/// same command said that the session exists already, and every other call that its history is still being copied.
#[test]
fn the_same_fork_again_waits_for_the_copy() {
    run(async {
        let mut world = World::new(modules);
        let local = Caller::local();
        history(&world, &local).await;
        without_steps(&mut world);
        let args = json!({"session_id": "s", "id": "f"});
        let first = ask(&world, &local, "fork_session", args.clone()).await.unwrap();
        assert!(first["ended_at"].is_null(), "{first}");
        with_steps(&mut world);
        let again = ask(&world, &local, "fork_session", args.clone()).await.unwrap();
        assert_eq!(again["messages"], 3 * ROUNDS, "{again}");
        world.append_message("f", "It is complete.").await.unwrap();
        let late = world.engine().call(&local, "fork_session", &args, None).await.unwrap();
        assert!(late.duplicate, "it was forked again");
        // Another fork under the same id is none.
        for (name, value) in [("at", json!(1)), ("title", json!("Another."))] {
            let mut other = args.clone();
            other[name] = value;
            let refused = ask(&world, &local, "fork_session", other).await.unwrap_err();
            assert_eq!(refused.code, Code::Conflict, "{refused}");
        }
        let ann = Caller::with("ann", "app", BTreeSet::new(), BTreeMap::new());
        let refused = ask(&world, &ann, "fork_session", args).await.unwrap_err();
        assert_eq!(refused.code, Code::Conflict, "{refused}");
    });
}

/// A retry of a request waits for the same fork, and a batch for all of its forks.
#[test]
fn retries_and_batches_wait_for_the_end() {
    run(async {
        let mut world = World::new(modules);
        history(&world, &Caller::local()).await;
        without_steps(&mut world);
        let args = json!({"session_id": "s", "id": "f"});
        let first = world
            .engine()
            .call(&Caller::local(), "fork_session", &args, Some("once"))
            .await
            .unwrap();
        with_steps(&mut world);
        let again = world
            .engine()
            .call(&Caller::local(), "fork_session", &args, Some("once"))
            .await
            .unwrap();
        assert!(again.duplicate && !first.duplicate);
        world.append_message("f", "It is complete.").await.unwrap();
        // After the end a retry has the same result, and not that of the first step.
        let late = world
            .engine()
            .call(&Caller::local(), "fork_session", &args, Some("once"))
            .await
            .unwrap();
        assert_eq!((late.seq, &late.result), (again.seq, &again.result));
        let fork: JsonValue = serde_json::from_str(&late.result).unwrap();
        assert_eq!(fork["messages"], 3 * ROUNDS, "{fork}");
        let forks =
            ["g", "h"].map(|id| batch_call("fork_session", json!({"session_id": "s", "id": id})));
        let done = world.engine().batch(&Caller::local(), &forks, None).await.unwrap();
        for result in done.results {
            let fork: JsonValue = serde_json::from_str(&result.result).unwrap();
            assert_eq!(fork["messages"], 3 * ROUNDS, "{fork}");
        }
        world.append_message("g", "It is complete.").await.unwrap();
        world.append_message("h", "It is complete.").await.unwrap();
        check_replay(&mut world);
    });
}

/// A step copied one more row than it had room for, and the errors of calls were not counted at all: 200 of them can have
/// a gigabyte. The class: a loop over stored rows whose number is limited, and whose size is not.
#[test]
fn large_rows_are_copied_in_steps_of_bounded_bytes() {
    const BYTES: usize = 400 << 10;
    run(async {
        let mut world = World::new(modules);
        let local = Caller::local();
        let text = "x".repeat(BYTES);
        ask(&world, &local, "register_tool", json!({"name": "look", "effect": "read_only"}))
            .await
            .unwrap();
        ask(&world, &local, "create_session", json!({"agent": "clerk", "id": "s"})).await.unwrap();
        for nth in 0..8 {
            let call_id = format!("c{nth}");
            let call = json!({"call_id": call_id, "session_id": "s", "tool_name": "look", "arguments": {},
                "claim_lease_ms": 60_000});
            let call = ask(&world, &local, "request_tool_call", call).await.unwrap();
            let failed =
                json!({"call_id": call_id, "fencing_token": call["fencing_token"], "error": text});
            ask(&world, &local, "fail_tool_call", failed).await.unwrap();
        }
        let answer = json!({"calls": (0..8).map(|nth| json!({"call_id": format!("c{nth}"), "name": "look"})).collect::<Vec<_>>()});
        let answer =
            json!({"session_id": "s", "role": "assistant", "content": "I look.", "data": answer});
        ask(&world, &local, "append_message", answer).await.unwrap();
        for nth in 0..8 {
            let result = json!({"session_id": "s", "role": "tool", "content": "failed", "data": {"call_id": format!("c{nth}")}});
            ask(&world, &local, "append_message", result).await.unwrap();
        }
        for _ in 0..5 {
            // Two of them do not fit into a step.
            let message = json!({"session_id": "s", "role": "user", "content": text.repeat(2)});
            ask(&world, &local, "append_message", message).await.unwrap();
        }
        let fork = ask(&world, &local, "fork_session", json!({"session_id": "s", "id": "f"}))
            .await
            .unwrap();
        assert_eq!((&fork["messages"], &fork["calls"]), (&json!(14), &json!(8)));
        assert_eq!(contents(&world, "f").await, contents(&world, "s").await);
        let bytes = "SELECT max(bytes), count(*) FROM (SELECT sum(bytes) AS bytes FROM (
             SELECT seq, length(content) AS bytes FROM agent_state WHERE session_id = 'f'
             UNION ALL SELECT seq, length(error) FROM tool_calls WHERE session_id = 'f') GROUP BY seq)";
        let found = texts(&world, bytes).await;
        assert!(
            found[0][0].as_i64().unwrap() <= limits::FORK_STEP_BYTES as i64 + 1_000,
            "{found:?}"
        );
        check_replay(&mut world);
    });
}

/// Subscribers see the copy grow step by step, and its end. A run that would read a part of it cannot start, so nothing
/// exports one.
#[test]
fn subscribers_see_each_step() {
    run(async {
        let mut world = World::new(modules);
        let ann = tenant_caller("acme", "app");
        history(&world, &ann).await;
        ask(&world, &Caller::local(), "register_agent", json!({"name": "clerk", "definition": {}}))
            .await
            .unwrap();
        without_steps(&mut world);
        let mut clients = Vec::new();
        for who in [&ann, &Caller::local()] {
            let mut client = Client::new(world.engine().connect(who));
            for (id, sql) in [
                (
                    "messages",
                    "SELECT id, content FROM agent_state WHERE session_id = 'tenant=acme/f' ORDER BY id",
                ),
                ("number", "SELECT count(*) FROM tool_calls WHERE session_id = 'tenant=acme/f'"),
                ("fork", "SELECT messages, calls, ended_at IS NULL FROM session_forks"),
                ("session", "SELECT id, status, reason FROM sessions WHERE id = 'tenant=acme/f'"),
            ] {
                client.subscribe(id, sql, &serde_json::Map::new()).await.unwrap();
            }
            clients.push(client);
        }
        ask(&world, &ann, "fork_session", json!({"session_id": "s", "id": "f"})).await.unwrap();
        let refused = ask(&world, &ann, "start_run", json!({"session_id": "f", "id": "r"}))
            .await
            .unwrap_err();
        assert_eq!(refused.code, Code::Conflict, "{refused}");
        let refused = ask(&world, &ann, "export_run", json!({"id": "r"})).await.unwrap_err();
        assert_eq!(refused.code, Code::NotFound, "{refused}");
        let kept: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                let ids: Vec<String> = client.replicas.keys().cloned().collect();
                ids.into_iter().map(|id| (client.unsubscribe(&id).unwrap(), id)).collect::<Vec<_>>()
            })
            .collect();
        with_steps(&mut world);
        let mut clients = Vec::new();
        for (who, kept) in [&ann, &Caller::local()].into_iter().zip(kept) {
            let mut client = Client::new(world.engine().connect(who));
            for (replica, id) in kept {
                client.resume(&id, replica).await.unwrap();
            }
            clients.push(client);
        }
        complete(&world).await;
        let steps =
            number(&world, "SELECT count(*) FROM events WHERE reducer = 'continue_fork'").await;
        assert!(steps > 2, "{steps}");
        let end = world.engine().durable_seq();
        for client in &mut clients {
            client.read_to(end).await;
            assert!(client.frames > 1, "{} frames", client.frames);
            for (id, replica) in &client.replicas {
                assert_eq!(replica.rows, world.rows(&replica.sql).await, "{id}");
            }
            assert_eq!(client.replicas["messages"].rows.len(), 3 * ROUNDS);
            assert!(client.refusals.is_empty(), "{:?}", client.refusals);
        }
        // A copy can be exported like its origin, when it is complete.
        ask(&world, &ann, "start_run", json!({"session_id": "f", "id": "r"})).await.unwrap();
    });
}

/// The range of `at` was checked before the session: a caller that may not read any session learned how many events all tenants
/// together have written. The class: an argument that is checked against the state before the caller's authority.
#[test]
fn a_caller_without_the_session_learns_nothing_of_the_log() {
    run(async {
        let world = World::new(modules);
        world.session("s1").await;
        let zeta = crate::visibility::caller("zeta", "app", &[], &[("tenant", "zeta")]);
        for at in [json!(null), json!(0), json!(1), json!(1_000_000)] {
            let args = json!({"session_id": "s1", "at": at});
            let refusal =
                world.engine().call(&zeta, "fork_session", &args, None).await.unwrap_err();
            assert_eq!(
                (refusal.code, &*refusal.detail),
                (Code::NotFound, "there is no session s1")
            );
        }
        let refusal = world.call("fork_session", json!({"session_id": "s1", "at": 0})).await;
        assert_eq!(refusal.unwrap_err().code, Code::BadArguments);
    });
}
