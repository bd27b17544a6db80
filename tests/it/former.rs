//! Logs with events by former rules. Replays give the same rows, and the file continues by the current rules.
//!
//! A kept file has cleanups by their first rules: one transaction ended a whole tree of runs, and each session of a cancelled
//! tree had its own step.

use std::fs;
use std::path::Path;

use abide_engine::replay;
use abide_reducers::modules;
use abide_schema::limits;
use abide_tests::unpacked;
use abide_tests::world::{World, run};
use rusqlite::Connection;
use serde_json::json;

/// The file that [`play`] and [`play_on`] wrote at the last commit with these rules (aa268eb).
const KEPT: &str = "fixtures/former/cleanup.db.zst";

/// Starts a child run for a call that the parent requests.
async fn delegate(world: &World, run: &str, session: &str, token: i64, nth: usize) -> String {
    let call_id = format!("{run}~{nth}");
    let wanted = json!({"call_id": call_id, "session_id": session, "tool_name": "look",
        "arguments": {}, "run_id": run, "run_fencing_token": token, "claim_lease_ms": 60_000});
    let token = world.call("request_tool_call", wanted).await.unwrap().seq;
    let child =
        json!({"call_id": call_id, "fencing_token": token, "agent": "support", "input": "x"});
    world.call("start_child_run", child).await.unwrap();
    call_id
}

/// A run with three child runs, one of which has two; each of their sessions has a waiting call.
async fn tree(world: &World, name: &str) -> i64 {
    world.call("create_session", json!({"agent": "support", "id": name})).await.unwrap();
    world.call("start_run", json!({"session_id": name, "id": name})).await.unwrap();
    let token = world.drive(name).await;
    for nth in 1..=3 {
        let session = delegate(world, name, name, token, nth).await;
        // `~` is reserved for ids that are derived from a run.
        let wait = json!({"call_id": format!("{} waits", session.replace('~', "-")),
            "session_id": session, "tool_name": "look", "arguments": {}});
        world.call("request_tool_call", wait).await.unwrap();
        if nth == 2 {
            let run = format!("{session}~run");
            let token = world.drive(&run).await;
            for nth in 1..=2 {
                delegate(world, &run, &session, token, nth).await;
            }
        }
    }
    token
}

/// Every operation that starts a cleanup.
async fn play(world: &World) {
    world.call("register_tool", json!({"name": "look", "effect": "idempotent"})).await.unwrap();
    let agent = json!({"name": "support", "definition": {}, "mode": "all"});
    world.call("register_agent", agent).await.unwrap();
    tree(world, "aborted").await;
    world.call("abort_run", json!({"id": "aborted"})).await.unwrap();
    let token = tree(world, "finished").await;
    let done = json!({"id": "finished", "fencing_token": token, "end": "done"});
    world.call("finish_run", done).await.unwrap();
    tree(world, "completed").await;
    world.call("complete_session", json!({"session_id": "completed"})).await.unwrap();
    tree(world, "cancelled").await;
    world.call("cancel_session", json!({"session_id": "cancelled"})).await.unwrap();
    world.pass_ms(0).await;
    for (name, children) in [("top", 120), ("left", 150)] {
        world.call("create_session", json!({"agent": "support", "id": name})).await.unwrap();
        for nth in 0..children {
            let (id, parent) = match nth % 3 {
                2 => (format!("{name}{nth}"), format!("{name}{}", nth - 1)),
                _ => (format!("{name}{nth}"), name.to_owned()),
            };
            let child = json!({"agent": "support", "id": id, "parent_id": parent});
            world.call("create_session", child).await.unwrap();
            if nth % 40 == 2 {
                let wait = json!({"call_id": format!("{id} waits"), "session_id": id,
                    "tool_name": "look", "arguments": {}});
                world.call("request_tool_call", wait).await.unwrap();
            }
        }
    }
    world.call("cancel_session", json!({"session_id": "top"})).await.unwrap();
    world.pass_ms(0).await;
}

/// Cleanups of which only the first step is complete.
async fn play_on(world: &mut World) {
    world.close();
    let mut config = world.config(modules());
    config.timers = false;
    world.open_with(config);
    tree(world, "both").await;
    world.call("abort_run", json!({"id": "both"})).await.unwrap();
    world.call("cancel_session", json!({"session_id": "left"})).await.unwrap();
}

/// The kept file, in a world without an engine.
fn open_kept_file() -> World {
    let mut world = World::new(modules);
    world.close();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(KEPT);
    for entry in fs::read_dir(world.folder.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::write(world.path(), unpacked(&file)).unwrap();
    world
}

fn check_replay(world: &World, name: &str) {
    let into = world.path().with_extension(name);
    replay(&world.path(), &into, modules(), None, &mut |_| {}).unwrap();
}

/// The final status of each session, run and call. By the former rules the session of a delegated run did not end with the run.
async fn read_ends(world: &World) -> Vec<abide_schema::Row> {
    let sql = "SELECT id, status, error_code FROM sessions
          WHERE id NOT IN (SELECT session_id FROM runs WHERE parent_id IS NOT NULL)
        UNION ALL SELECT id, status, error_code FROM runs
        UNION ALL SELECT call_id, status, cancel_requested_at IS NULL FROM tool_calls
        UNION ALL SELECT 'cleanups', count(*), NULL FROM cleanups ORDER BY 1";
    world.rows(sql).await
}

/// The file unchanged, migrated, and after the current engine has continued it.
#[test]
fn a_log_of_the_first_rules_replays() {
    let mut world = open_kept_file();
    check_replay(&world, "as-it-is");
    let head = |world: &World| -> i64 {
        let raw = Connection::open(world.path()).unwrap();
        raw.query_row("SELECT max(seq) FROM events", [], |row| row.get(0)).unwrap()
    };
    let before = head(&world);
    let mut config = world.config(modules());
    config.timers = false;
    world.open_with(config);
    world.close();
    assert_eq!(head(&world), before);
    check_replay(&world, "migrated");
    world.open();
    run(world.pass_ms(0));
    run(world.session("later"));
    world.close();
    assert!(head(&world) > before + 2, "what was left is done");
    check_replay(&world, "gone-on");
    // A replay stores which rules applied when, so that it can be replayed in turn.
    let again = world.path().with_extension("gone-on");
    replay(&again, &again.with_extension("again"), modules(), None, &mut |_| {}).unwrap();
}

/// Both versions of the rules have the same result.
#[test]
fn both_rules_end_the_same() {
    run(async {
        let mut old = open_kept_file();
        let mut new = World::new(modules);
        old.open();
        old.pass_ms(0).await;
        play(&new).await;
        play_on(&mut new).await;
        new.reopen();
        new.pass_ms(0).await;
        assert_eq!(read_ends(&old).await, read_ends(&new).await);
        let steps = "SELECT count(*) FROM events WHERE reducer = 'continue_cleanup'";
        let [old_steps, new_steps] = [&old, &new].map(|world| world.rows(steps));
        let old_steps = old_steps.await;
        let new_steps = new_steps.await;
        assert!(new_steps[0][0].to_json().as_i64() < Some(10), "{new_steps:?}, {old_steps:?}");
        new.close();
        check_replay(&new, "again");
    });
}

/// A file that comes to these versions of modules with a later event, so that its calls follow the rules before them. No step
/// of a cleanup or of a fork runs but the first, which is part of the call.
fn before(versions: &[(&str, u32)]) -> World {
    let mut world = World::new(modules);
    world.close();
    for (module, version) in versions {
        let known = format!("module.{module}.{version}");
        world.raw().execute("INSERT INTO meta VALUES (?1, '1000000')", [known]).unwrap();
    }
    let mut config = world.config(modules());
    config.timers = false;
    world.open_with(config);
    world
}

/// Limits of bytes came without a version: a replay of an older log ended fewer calls in the first step of a cancellation, and
/// `verify --replay` said that the file had been changed outside of the log. The class: a new limit of what one call does.
#[test]
fn a_cleanup_before_version_3_has_no_limit_of_bytes() {
    run(async {
        let mut world = before(&[("cleanup", 3)]);
        world.call("register_tool", json!({"name": "look", "effect": "idempotent"})).await.unwrap();
        world.call("create_session", json!({"agent": "support", "id": "s"})).await.unwrap();
        let text = "x".repeat(limits::CLEANUP_BYTES * 3 / 5);
        for nth in 0..3 {
            let call = json!({"call_id": format!("c{nth}"), "session_id": "s", "tool_name": "look",
                "arguments": {"text": text}});
            world.call("request_tool_call", call).await.unwrap();
            let timer = json!({"session_id": "s", "in_ms": 60_000, "message": text});
            world.call("set_timer", timer).await.unwrap();
        }
        world.call("cancel_session", json!({"session_id": "s"})).await.unwrap();
        let left = "SELECT (SELECT count(*) FROM tool_calls WHERE status = 'pending'),
            (SELECT count(*) FROM timers WHERE status = 'pending'), (SELECT count(*) FROM cleanups)";
        assert_eq!(*world.rows(left).await[0], [0.into(), 0.into(), 0.into()]);
        world.close();
        check_replay(&world, "again");
    });
}

#[test]
fn a_claim_before_version_6_has_no_limit_of_bytes() {
    const BYTES: usize = 7 << 20;
    run(async {
        let mut world = before(&[("tool_call", 6)]);
        world.call("register_tool", json!({"name": "look", "effect": "idempotent"})).await.unwrap();
        world.call("register_agent", json!({"name": "x", "definition": {}})).await.unwrap();
        world.call("create_session", json!({"agent": "x", "id": "s"})).await.unwrap();
        world.call("start_run", json!({"session_id": "s", "id": "r"})).await.unwrap();
        let token = world.drive("r").await;
        world.call("abort_run", json!({"id": "r"})).await.unwrap();
        let text = "x".repeat(BYTES);
        for nth in 0..2 + limits::CLAIM_BYTES / BYTES {
            let call = json!({"call_id": format!("r~{nth}"), "session_id": "s", "tool_name": "look",
                "arguments": {"text": text}, "run_id": "r", "run_fencing_token": token});
            world.call("request_tool_call", call).await.unwrap();
        }
        world.call("create_session", json!({"agent": "x", "id": "open"})).await.unwrap();
        let call =
            json!({"call_id": "open", "session_id": "open", "tool_name": "look", "arguments": {}});
        world.call("request_tool_call", call).await.unwrap();
        let done = world.call("claim_next_tool_call", json!({"tools": ["look"]})).await.unwrap();
        assert!(done.result.contains("\"open\""), "{}", done.result);
        world.close();
        check_replay(&world, "again");
    });
}

/// Errors of calls were not counted, and the last row of a step could have any size.
#[test]
fn a_fork_before_version_9_counts_no_errors() {
    const BYTES: usize = 1 << 20;
    run(async {
        let mut world = before(&[("snapshot", 9)]);
        world.call("register_tool", json!({"name": "look", "effect": "read_only"})).await.unwrap();
        world.call("create_session", json!({"agent": "support", "id": "s"})).await.unwrap();
        let calls = limits::FORK_BYTES / BYTES + 1;
        for nth in 0..calls {
            let call_id = format!("c{nth}");
            let call = json!({"call_id": call_id, "session_id": "s", "tool_name": "look",
                "arguments": {}, "claim_lease_ms": 60_000});
            let token = world.call("request_tool_call", call).await.unwrap().seq;
            let failed =
                json!({"call_id": call_id, "fencing_token": token, "error": "x".repeat(BYTES)});
            world.call("fail_tool_call", failed).await.unwrap();
        }
        let named: Vec<_> =
            (0..calls).map(|nth| json!({"call_id": format!("c{nth}"), "name": "look"})).collect();
        let answer = json!({"session_id": "s", "role": "assistant", "content": "I look.", "data": {"calls": named}});
        world.call("append_message", answer).await.unwrap();
        for nth in 0..calls {
            let result = json!({"session_id": "s", "role": "tool", "content": "failed",
                "data": {"call_id": format!("c{nth}")}});
            world.call("append_message", result).await.unwrap();
        }
        for _ in 0..2 {
            world.append_message("s", &"x".repeat(limits::FORK_STEP_BYTES * 3 / 5)).await.unwrap();
        }
        world.append_message("s", "The next step copies this.").await.unwrap();
        world.call("fork_session", json!({"session_id": "s", "id": "f"})).await.unwrap();
        let copied = "SELECT calls, messages FROM session_forks";
        let calls = calls as i64;
        assert_eq!(*world.rows(copied).await[0], [calls.into(), (1 + calls + 2).into()]);
        world.close();
        check_replay(&world, "again");
    });
}
