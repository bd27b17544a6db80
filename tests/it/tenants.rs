//! Two tenants in one file compared with one alone: the responses to a tenant do not depend on the
//! other. The calls are random, also with the other's ids; the oracle is the same engine without
//! the other's calls.
//!
//! Both tenants use the same names, and each other's, in short and in stored form. (Ids were shared
//! by all tenants: a tenant learned that an id was taken by another, and a run adopted rows that
//! another tenant had stored under the ids that its driver would use.) Shared values are excluded
//! from the comparison, as `docs/authority.md` says: the numbers of the log and of messages.

use std::collections::HashMap;

use abide_schema::caller::{CallLimits, RateLimit};
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Code, Refusal};
use abide_tests::world::{World, run};
use serde_json::{Map, Value as JsonValue, json};

use crate::traffic::{Random, for_seeds};

enum Step {
    /// A call of tenant `a` or `b`.
    Call(char, &'static str, JsonValue),
    PassMs(i64),
}

const TOOLS: [&str; 3] = ["look", "refund", "wire"];

/// A name as a caller may pass it: usually short; in stored form, of either tenant; or derived from
/// another's.
fn name(random: &mut Random, by: char, what: &str) -> String {
    let short = format!("{what}{}", random.below(4));
    match random.below(12) {
        0 => format!("tenant=a/{short}"),
        1 => format!("tenant=b/{short}"),
        2 => format!("tenant={by}/{short}"),
        3 => format!("tenant=a/r{}~{}", random.below(4), random.below(3)),
        4 => format!("tenant=a/r{}~{}~run", random.below(4), random.below(3)),
        _ => short,
    }
}

fn random_step(random: &mut Random) -> Step {
    if random.one_in(12) {
        return Step::PassMs(1 + random.below(9_000) as i64);
    }
    let by = if random.one_in(2) { 'a' } else { 'b' };
    let lease_ms = 1_000 + random.below(4_000);
    let (reducer, args) = match random.below(3) {
        0 => random_run_call(random, by, lease_ms),
        _ => random_session_call(random, by, lease_ms),
    };
    Step::Call(by, reducer, args)
}

fn random_session_call(
    random: &mut Random,
    by: char,
    lease_ms: usize,
) -> (&'static str, JsonValue) {
    let [session, call, new] = ["s", "c", "s"].map(|what| name(random, by, what));
    let tool = *random.pick(&TOOLS);
    match random.below(21) {
        0..=2 => ("create_session", json!({"agent": "x", "id": new})),
        3 => ("create_session", json!({"agent": "x", "id": new, "parent_id": session})),
        4 => ("append_message", json!({"session_id": session, "role": "user", "content": "hi"})),
        5 => ("suspend_session", json!({"session_id": session})),
        6 => ("resume_session", json!({"session_id": session})),
        7 if random.one_in(8) => ("cancel_session", json!({"session_id": session})),
        8 if random.one_in(8) => ("complete_session", json!({"session_id": session})),
        9..=11 => {
            let args = json!({"call_id": call, "session_id": session, "tool_name": tool,
                "arguments": {"n": random.below(2)}});
            ("request_tool_call", args)
        }
        12 => ("claim_tool_call", json!({"call_id": call, "lease_ms": lease_ms})),
        13 => ("claim_next_tool_call", json!({"tools": TOOLS, "lease_ms": lease_ms})),
        14 | 15 => ("complete_tool_call", json!({"call_id": call, "result": 1})),
        16 => ("decide_approval", json!({"call_id": call, "decision": "approve"})),
        17 => {
            let id = name(random, by, "t");
            let args = json!({"id": id, "in_ms": lease_ms, "session_id": session, "message": "x"});
            ("set_timer", args)
        }
        18 => ("cancel_timer", json!({"id": name(random, by, "t")})),
        19 => ("create_identity", json!({"id": name(random, by, "i"), "role": "app"})),
        7 | 8 => ("append_message", json!({"session_id": session, "role": "x", "content": null})),
        _ => ("settle_tool_call", json!({"call_id": call, "outcome": "failed"})),
    }
}

/// Calls of drivers, and calls that try to have a driver adopt foreign calls and children.
fn random_run_call(random: &mut Random, by: char, lease_ms: usize) -> (&'static str, JsonValue) {
    let [run, session] = ["r", "s"].map(|what| name(random, by, what));
    // The id of a run's call in the caller's namespace, as a driver would build it.
    let stored = format!("tenant={by}/r{}", random.below(4));
    let call = format!("{stored}~{}", random.below(3));
    match random.below(12) {
        0..=2 => ("start_run", json!({"session_id": session, "id": run, "agent": "x"})),
        3 => ("start_run", json!({"session_id": session, "id": run, "input": "x"})),
        4 | 5 => ("claim_run", json!({"id": run, "driver": "d", "lease_ms": 60_000})),
        6 | 7 => {
            let tool = *random.pick(&TOOLS);
            let of = name(random, by, "s");
            let args = json!({"call_id": call, "session_id": of, "tool_name": tool,
                "arguments": {"n": 1}, "run_id": stored});
            ("request_tool_call", args)
        }
        8 => ("claim_tool_call", json!({"call_id": call, "lease_ms": lease_ms})),
        9 => ("start_child_run", json!({"call_id": call, "agent": "x", "input": "do it"})),
        10 => ("finish_run", json!({"id": run, "end": "done"})),
        _ => ("abort_run", json!({"id": run})),
    }
}

/// Plays the calls of these tenants; returns the responses to `a`.
async fn play(steps: &[Step], tenants: &str) -> Vec<String> {
    let world = World::new(abide_reducers::modules);
    for (name, more) in [
        ("look", json!({"effect": "read_only"})),
        ("refund", json!({"effect": "at_most_once"})),
        ("wire", json!({"effect": "idempotent", "needs_approval": true})),
    ] {
        let mut args = json!({"name": name});
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.call("register_tool", args).await.unwrap();
    }
    let agent = json!({"name": "x", "definition": {}, "mode": "all"});
    world.call("register_agent", agent).await.unwrap();
    let mut received = Vec::new();
    let mut tokens = HashMap::new();
    for step in steps {
        let (by, reducer, mut args) = match step {
            Step::PassMs(ms) => {
                world.pass_ms(*ms).await;
                continue;
            }
            Step::Call(by, ..) if !tenants.contains(*by) => continue,
            Step::Call(by, reducer, args) => (*by, *reducer, args.clone()),
        };
        let caller = caller(by);
        // The token that the caller got for the row, by any of its names.
        let token_for = |args: &JsonValue, of: &str| {
            let id = args[of].as_str().unwrap().rsplit('/').next().unwrap();
            tokens.get(&(by, id.to_owned())).cloned().unwrap_or_else(|| json!(1))
        };
        match reducer {
            "complete_tool_call" | "start_child_run" => {
                args["fencing_token"] = token_for(&args, "call_id");
            }
            "finish_run" => args["fencing_token"] = token_for(&args, "id"),
            "request_tool_call" if args["run_id"].is_string() => {
                args["run_fencing_token"] = token_for(&args, "run_id");
            }
            _ => {}
        }
        let done = world.engine().call(&caller, reducer, &args, None).await;
        let answer = match done {
            Ok(done) => {
                let result: JsonValue = serde_json::from_str(&done.result).unwrap();
                let id = result["call_id"].as_str().or(result["id"].as_str());
                if let (Some(id), token @ JsonValue::Number(_)) = (id, &result["fencing_token"]) {
                    let id = id.rsplit('/').next().unwrap().to_owned();
                    tokens.insert((by, id), token.clone());
                }
                format!("{} {}", done.duplicate, without_numbers(result))
            }
            Err(refusal) => format!("{}: {} {:?}", refusal.code, refusal.detail, refusal.hint),
        };
        if by == 'a' {
            received.push(format!("{reducer} {args} → {}", without_made_ids(&answer)));
        }
    }
    received.iter().map(|line| without_tokens(line)).collect()
}

fn caller(by: char) -> Caller {
    let scope = [("tenant".to_owned(), by.to_string())];
    Caller::with(by.to_string(), "admin", ["*".to_owned()].into(), scope.into())
}

/// Without numbers of the log, and without digests, which are salted.
fn without_numbers(result: JsonValue) -> JsonValue {
    let JsonValue::Object(row) = result else { return result };
    let numbers = ["seq", "created_seq", "fencing_token", "arguments_hash"];
    row.into_iter()
        .filter(|(name, value)| {
            !(numbers.contains(&name.as_str()) || (name == "id" && value.is_number()))
        })
        .collect::<Map<_, _>>()
        .into()
}

/// With the same word for every generated id.
fn without_made_ids(text: &str) -> String {
    let words = text.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.map(|word| if word.starts_with("ap_") { "ap " } else { word }).collect()
}

/// Tokens in arguments are numbers of the log too.
fn without_tokens(line: &str) -> String {
    let mut parts = line.split("fencing_token\":");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| {
        format!("{line}fencing_token\":_{}", part.trim_start_matches(|c: char| c.is_ascii_digit()))
    })
}

#[test]
fn a_tenant_cannot_detect_another_tenant() {
    for_seeds("a_tenant_cannot_detect_another_tenant", 0..25, |seed| {
        let mut random = Random::new(seed);
        let steps: Vec<Step> = (0..400).map(|_| random_step(&mut random)).collect();
        let (alone, beside) = run(async { (play(&steps, "a").await, play(&steps, "ab").await) });
        assert_eq!(alone.len(), beside.len());
        for (at, (alone, beside)) in alone.iter().zip(&beside).enumerate() {
            assert_eq!(alone, beside, "answer {at}");
        }
        let done = alone.iter().filter(|line| line.contains("→ false")).count();
        assert!(done > 20, "only {done} calls of {} had an effect", alone.len());
    });
}

/// The concrete attacks: zeta requests each id that a driver of acme's run would use in advance, in
/// every order, and the run finds none of them.
#[test]
fn another_tenant_cannot_prepare_the_ids_of_a_run() {
    let prepared = [
        ("create_session", json!({"agent": "x", "id": "order-42"})),
        ("start_run", json!({"session_id": "order-42", "id": "order-42", "agent": "x"})),
        ("create_session", json!({"agent": "x", "id": "order-42~1"})),
        ("create_session", json!({"agent": "x", "id": "tenant=a/order-42~1"})),
        ("start_run", json!({"session_id": "order-42", "id": "order-42~1~run", "agent": "x"})),
        (
            "request_tool_call",
            json!({"call_id": "order-42~1", "session_id": "order-42", "tool_name": "look",
                "arguments": {}}),
        ),
        (
            "request_tool_call",
            json!({"call_id": "tenant=a/order-42~1", "session_id": "order-42", "tool_name": "look",
                "arguments": {}}),
        ),
    ];
    for shift in 0..=prepared.len() {
        let (output, with_zeta) = run(async {
            let alone = delegated(&[]).await;
            let mut prepared = prepared.to_vec();
            if shift < prepared.len() {
                prepared.rotate_left(shift);
            } else {
                prepared.reverse();
            }
            (alone, delegated(&prepared).await)
        });
        assert_eq!(output, with_zeta, "shifted by {shift}");
        assert!(output.iter().all(|line| line.starts_with("fresh ")), "{output:#?}");
    }
}

/// Runs zeta's preparation, and then returns the responses to acme's driver when it requests a call
/// with approval, claims another, and delegates.
async fn delegated(prepared: &[(&'static str, JsonValue)]) -> Vec<String> {
    let world = World::new(abide_reducers::modules);
    world.call("register_tool", json!({"name": "look", "effect": "idempotent"})).await.unwrap();
    let agent = json!({"name": "x", "definition": {}, "mode": "all"});
    world.call("register_agent", agent).await.unwrap();
    for (reducer, args) in prepared {
        // Some calls are refused, others create rows of zeta.
        let _ = world.engine().call(&caller('b'), reducer, args, None).await;
    }
    let mut output = Vec::new();
    let mut ask = async |reducer: &str, args: JsonValue| {
        let done = world
            .engine()
            .call(&caller('a'), reducer, &args, None)
            .await
            .unwrap_or_else(|refusal| panic!("{reducer}: {refusal}"));
        let result: JsonValue = serde_json::from_str(&done.result).unwrap();
        let fresh = if done.duplicate { "again" } else { "fresh" };
        output.push(format!("{fresh} {reducer} {}", without_numbers(result.clone())));
        result
    };
    ask("create_session", json!({"agent": "x", "id": "order-42"})).await;
    ask("start_run", json!({"session_id": "order-42", "id": "order-42", "agent": "x"})).await;
    let run = ask("claim_run", json!({"id": "order-42", "driver": "d", "lease_ms": 9_000})).await;
    let args_with_run = |rest: &str, more: JsonValue| {
        let id = run["id"].as_str().unwrap();
        let mut args = json!({"call_id": format!("{id}~{rest}"), "session_id": "order-42",
            "tool_name": "look", "arguments": {}, "run_id": id,
            "run_fencing_token": run["fencing_token"]});
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    };
    let asks = ask("request_tool_call", args_with_run("2", json!({"needs_approval": true}))).await;
    assert_eq!(asks["status"], "awaiting_approval");
    let call = ask("request_tool_call", args_with_run("1", json!({"claim_lease_ms": 9_000}))).await;
    let child = json!({"call_id": call["call_id"], "fencing_token": call["fencing_token"],
        "agent": "x", "input": "Do it."});
    let child = ask("start_child_run", child).await;
    assert_eq!(child["session_id"], call["call_id"]);
    output
}

/// A request of twelve bytes copies a session with thousands of messages. It counted as one call, so that a caller with five
/// calls a second held the writer most of the time.
#[test]
fn a_fork_counts_by_the_rows_that_it_changes() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s").await;
        for nth in 0..300 {
            world.append_message("s", &nth.to_string()).await.unwrap();
        }
        let rate = Some(RateLimit { calls: 2, per_ms: 1_000 });
        let ann = Caller::new("ann").limited(CallLimits { rate, ..CallLimits::default() });
        let fork = async |id: &str| {
            let args = json!({"session_id": "s", "id": id});
            world.engine().call(&ann, "fork_session", &args, None).await
        };
        fork("f1").await.unwrap();
        let refusal = fork("f2").await.unwrap_err();
        // It has changed more than 300 rows, so that it counts as three calls at least.
        is_delayed(&refusal);

        // Work that is undone costs as much.
        let rate = Some(RateLimit { calls: 3, per_ms: 3_000 });
        let bob = Caller::new("bob").limited(CallLimits { rate, ..CallLimits::default() });
        let call = |reducer: &str, args| BatchCall { reducer: reducer.to_owned(), args };
        let calls = [
            call("fork_session", json!({"session_id": "s", "id": "f3"})),
            call("fork_session", json!({"session_id": "s", "id": "f4"})),
            call("append_message", json!({"session_id": "none", "role": "user", "content": "x"})),
        ];
        let refusal = world.engine().batch(&bob, &calls, None).await.unwrap_err();
        assert_eq!(refusal.code, Code::NotFound);
        let args = json!({"agent": "support"});
        let refusal = world.engine().call(&bob, "create_session", &args, None).await.unwrap_err();
        is_delayed(&refusal);
    });
}

/// Rows were charged by the task that waits for the answer, after it: a caller that did not wait, because it had closed its
/// connection, was not charged at all.
#[test]
fn a_caller_that_does_not_wait_for_the_answer_is_charged() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s").await;
        for nth in 0..300 {
            world.append_message("s", &nth.to_string()).await.unwrap();
        }
        let rate = Some(RateLimit { calls: 2, per_ms: 1_000 });
        let ann = Caller::new("ann").limited(CallLimits { rate, ..CallLimits::default() });
        let args = json!({"session_id": "s", "id": "f"});
        let fork = world.engine().call(&ann, "fork_session", &args, None);
        // It is sent, and its answer is not awaited.
        tokio::select! {
            biased;
            _ = fork => panic!("the answer was there at once"),
            () = async {} => {}
        }
        world.append_message("s", "a later call of another caller").await.unwrap();
        world.pass_ms(0).await;
        let args = json!({"agent": "support"});
        let refusal = world.engine().call(&ann, "create_session", &args, None).await.unwrap_err();
        is_delayed(&refusal);
    });
}

/// The caller has to wait for a second at least.
#[track_caller]
fn is_delayed(refusal: &Refusal) {
    assert_eq!(refusal.code, Code::RateLimited);
    assert!(refusal.retry_after_ms.is_some_and(|ms| (1_000..5_000).contains(&ms)), "{refusal:?}");
}
