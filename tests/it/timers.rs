//! Timers of all kinds: in order, once, bounded, and across restarts.

use std::time::Duration;

use abide_engine::{Config, Engine, SubscribeRequest, Update};
use abide_schema::caller::Scope;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TableSpec, limits, reducer, table,
};
use abide_tests::world::{START, World, run};
use rusqlite::{Connection, params_from_iter};
use serde_json::{Map, json};

use crate::traffic::{Traffic, for_seeds};

/// A row of a user's module with a deadline.
#[table(name = "eggs", index(done_at, where = "boiled = 0"))]
pub(crate) struct Egg {
    /// Its number.
    #[column(key)]
    pub(crate) id: i64,
    /// The deadline.
    pub(crate) done_at: Micros,
    /// Whether the deadline has passed.
    pub(crate) boiled: bool,
    /// The failure mode, for tests of broken reducers.
    pub(crate) flaw: Option<String>,
    /// The event that last changed it.
    pub(crate) seq: Seq,
}

/// Creates eggs: one for each number, due after this many milliseconds.
#[reducer]
pub(crate) fn boil(
    ctx: &mut Context<'_>,
    after_ms: Vec<i64>,
    flaw: Option<String>,
) -> Result<Json, Abort> {
    let now = ctx.now;
    let seq = ctx.seq;
    for after_ms in &after_ms {
        let done_at = now.plus_ms(*after_ms);
        ctx.insert(Egg { id: 0, done_at, boiled: false, flaw: flaw.clone(), seq })?;
    }
    Ok(Json::from(json!(after_ms.len())))
}

/// An egg is due.
#[reducer]
pub(crate) fn take_out(ctx: &mut Context<'_>, id: i64, done_at: Micros) -> Result<Json, Abort> {
    let mut egg = ctx.get::<Egg>(id)?.expect("the row exists");
    assert!(
        !egg.boiled && egg.done_at == done_at && done_at <= ctx.now,
        "the timer fires at its deadline"
    );
    match egg.flaw.as_deref() {
        Some("refused") => return Err(Refusal::new(Code::Conflict, "it is cracked").into()),
        Some("panics") => panic!("it bursts"),
        _ => {}
    }
    egg.boiled = egg.flaw.as_deref() != Some("stays");
    egg.seq = ctx.seq;
    ctx.update(&egg)?;
    Ok(Json::from(json!(id)))
}

/// Throws the eggs with a flaw away.
#[reducer]
pub(crate) fn throw_away(ctx: &mut Context<'_>) -> Result<Json, Abort> {
    let flawed = ctx.find::<Egg>("WHERE flaw IS NOT NULL", &[])?;
    for egg in &flawed {
        ctx.delete::<Egg>(egg.id)?;
    }
    Ok(Json::from(json!(flawed.len())))
}

fn kitchen() -> Module {
    let waits = "boiled = 0";
    Module::new("kitchen").table::<Egg>().reducer(boil::definition()).deadline::<Egg>(
        "done_at",
        waits,
        take_out::definition(),
    )
}

fn modules() -> Vec<Module> {
    let mut modules = abide_reducers::modules();
    modules.push(kitchen());
    modules
}

fn kitchen_world() -> World {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    reopened(world)
}

fn reopened(mut world: World) -> World {
    let config = world.config(modules());
    world.open_with(config);
    world
}

async fn numbers(world: &World, sql: &str) -> Vec<i64> {
    let rows = world.rows(sql).await;
    rows.iter().map(|row| row[0].to_json().as_i64().unwrap()).collect()
}

#[test]
fn in_the_order_of_their_deadlines() {
    let world = kitchen_world();
    run(async {
        world.call("boil", json!({"after_ms": [50, 20, 70, 10]})).await.unwrap();
        world.call("set_timer", json!({"in_ms": 30})).await.unwrap();
        world.call("set_timer", json!({"in_ms": 60})).await.unwrap();
        world.pass_ms(69).await;
        let order = "SELECT json_extract(arguments, '$.due_at', '$.done_at') FROM events
            WHERE caller = 'system' ORDER BY seq";
        let received: Vec<String> =
            world.rows(order).await.iter().map(|row| row[0].to_json().to_string()).collect();
        let after = |ms: i64| START.plus_ms(ms).0;
        let egg = |ms| format!("\"[null,{}]\"", after(ms));
        let timer = |ms| format!("\"[{},null]\"", after(ms));
        assert_eq!(received, [egg(10), egg(20), timer(30), egg(50), timer(60)]);
        assert_eq!(numbers(&world, "SELECT count(*) FROM eggs WHERE NOT boiled").await, [1]);
    });
}

/// A thousand simultaneous deadlines are processed in parts, with other calls in between.
#[test]
fn a_transaction_processes_a_bounded_number_of_timers() {
    let world = kitchen_world();
    let max = i64::try_from(limits::DUE_PER_COMMIT).unwrap();
    run(async {
        let after_ms: Vec<i64> = (0..2 * max + 10).map(|n| 1_000 + n % 7).collect();
        world.call("boil", json!({"after_ms": after_ms})).await.unwrap();
        world.clock.advance_ms(60_000);
        let boiled = "SELECT count(*) FROM eggs WHERE boiled";
        let before = world.engine().metrics().commits_total.get();
        world.engine().fire_due().await.unwrap();
        let first = numbers(&world, boiled).await[0];
        assert!(first >= max, "{first}");
        for _ in 0..3 {
            world.engine().fire_due().await.unwrap();
        }
        assert_eq!(numbers(&world, boiled).await, [2 * max + 10]);
        assert_eq!(world.engine().metrics().commits_total.get() - before, 3);
        assert_eq!(world.engine().metrics().deadline_calls_total.get(), 2 * max as u64 + 10);
    });
}

/// Deadlines that pass while the file is closed are processed once at the next start.
#[test]
fn deadlines_that_passed_while_closed() {
    let mut world = kitchen_world();
    run(async {
        world.session("s1").await;
        let timer = json!({"id": "t1", "in_ms": 60_000, "session_id": "s1", "message": "wake up"});
        world.call("set_timer", timer).await.unwrap();
        world.call("boil", json!({"after_ms": [1_000, 3_600_000]})).await.unwrap();
    });
    for kind in ["killed", "closed", "closed"] {
        match kind {
            "killed" => world.drop_engine(),
            _ => world.close(),
        }
        world.clock.advance_ms(120_000);
        world = reopened(world);
        run(async {
            // The first response already reflects them.
            let output = world.append_message("s1", "hello").await.unwrap();
            assert!(output.seq > Seq(5), "{output:?}");
            assert_eq!(
                numbers(&world, "SELECT count(*) FROM agent_state WHERE kind = 'timer'").await,
                [1]
            );
            assert_eq!(numbers(&world, "SELECT count(*) FROM eggs WHERE boiled").await, [1]);
            let fired = "SELECT count(*) FROM events WHERE caller = 'system'";
            assert_eq!(numbers(&world, fired).await, [2]);
        });
    }
}

/// A broken reducer affects its own rows, not later ones.
#[test]
fn broken_rows_do_not_block_others() {
    for flaw in ["refused", "panics"] {
        let mut world = kitchen_world();
        run(async {
            world.call("boil", json!({"after_ms": [10, 10, 10], "flaw": flaw})).await.unwrap();
            world.call("boil", json!({"after_ms": [20, 20, 20]})).await.unwrap();
            world.call("boil", json!({"after_ms": [5_000]})).await.unwrap();
            world.pass_ms(1_000).await;
            let boiled = "SELECT id FROM eggs WHERE boiled ORDER BY id";
            assert_eq!(numbers(&world, boiled).await, [4, 5, 6]);
            let refused = world.engine().metrics().refusals_total.get();
            assert_eq!(refused, 3, "each was tried once");
            world.pass_ms(4_000).await;
            assert_eq!(numbers(&world, boiled).await, [4, 5, 6, 7]);
            assert_eq!(world.engine().metrics().refusals_total.get(), refused);
            assert_eq!(numbers(&world, "SELECT count(*) FROM events").await, [7]);
        });
        // A fixed reducer or row is tried again after a restart.
        world.close();
        world.raw().execute_batch("UPDATE eggs SET flaw = NULL").unwrap();
        world = reopened(world);
        run(async {
            world.pass_ms(0).await;
            assert_eq!(numbers(&world, "SELECT count(*) FROM eggs WHERE NOT boiled").await, [0]);
        });
    }
}

/// A reducer that touches its row and leaves it due was called again immediately, with an event
/// each time: the log grew as fast as the disk allowed.
#[test]
fn a_timer_without_effect_is_not_repeated_forever() {
    let world = kitchen_world();
    run(async {
        world.call("boil", json!({"after_ms": [10], "flaw": "stays"})).await.unwrap();
        world.call("boil", json!({"after_ms": [20]})).await.unwrap();
        world.clock.advance_ms(30);
        for _ in 0..8 {
            world.engine().fire_due().await.unwrap();
        }
        let calls = "SELECT count(*) FROM events WHERE reducer = 'take_out'";
        assert_eq!(numbers(&world, calls).await, [2]);
        world.call("boil", json!({"after_ms": [10]})).await.unwrap();
        world.pass_ms(10).await;
        assert_eq!(numbers(&world, calls).await, [3], "other timers run");
        assert_eq!(numbers(&world, "SELECT id FROM eggs WHERE boiled").await, [2, 3]);
    });
}

/// With very many broken rows the whole kind is suspended, so that the engine does not retry them
/// all the time.
#[test]
fn a_kind_with_too_many_broken_rows_is_suspended() {
    let world = kitchen_world();
    run(async {
        let many = vec![10; limits::DUE_STUCK + 300];
        world.call("boil", json!({"after_ms": many, "flaw": "refused"})).await.unwrap();
        world.call("boil", json!({"after_ms": [20]})).await.unwrap();
        world.pass_ms(1_000).await;
        for _ in 0..limits::DUE_STUCK / limits::DUE_PER_COMMIT + 10 {
            world.pass_ms(1_000).await;
        }
        let refused = world.engine().metrics().refusals_total.get();
        assert!(refused < 2 * limits::DUE_STUCK as u64, "{refused}");
        world.call("set_timer", json!({"in_ms": 10})).await.unwrap();
        world.pass_ms(10).await;
        let fired = numbers(&world, "SELECT count(*) FROM timers WHERE status = 'fired'").await;
        assert_eq!(fired, [1], "other kinds continue");
    });
}

/// A clock that is set back makes no timer due again, and delays none forever.
#[test]
fn a_clock_that_runs_backwards() {
    let world = kitchen_world();
    run(async {
        world.call("boil", json!({"after_ms": [1_000, 10_000]})).await.unwrap();
        world.pass_ms(5_000).await;
        world.pass_ms(-4_500).await;
        assert_eq!(numbers(&world, "SELECT id FROM eggs WHERE boiled").await, [1]);
        world.pass_ms(9_400).await;
        assert_eq!(numbers(&world, "SELECT id FROM eggs WHERE boiled").await, [1]);
        world.pass_ms(100).await;
        assert_eq!(numbers(&world, "SELECT id FROM eggs WHERE boiled").await, [1, 2]);
    });
}

/// With the machine's clock and without calls, subscribers receive the change.
#[test]
fn timers_fire_without_calls() {
    let world = World::new(abide_reducers::modules);
    let path = world.folder.path().join("timers_fire_without_calls.db");
    let engine = Engine::open(path, Config::new(abide_reducers::modules())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut connection = engine.connect(&Caller::local());
        let fired = "SELECT id, fired_at >= due_at FROM timers WHERE status = 'fired'";
        let none = Map::new();
        connection.subscribe(&SubscribeRequest::new("q", fired, &none)).await.unwrap();
        assert!(matches!(connection.next().await, Update::Snapshot(part) if part.rows.is_empty()));
        for in_ms in [0, 30, 0, 5] {
            let args = json!({"id": format!("t{in_ms}-{}", engine.durable_seq()), "in_ms": in_ms});
            engine.call(&Caller::new("ann"), "set_timer", &args, None).await.unwrap();
            let Update::Delta { changes, .. } = next_delta(&mut connection).await else { panic!() };
            let rows = changes[0].delta.rows();
            assert_eq!(format!("{rows:?}").matches("Integer(1)").count(), 1, "{rows:?}");
        }
    });
    engine.close();
}

async fn next_delta(connection: &mut abide_engine::Connection) -> Update {
    loop {
        if let update @ Update::Delta { .. } = connection.next().await {
            return update;
        }
    }
}

/// The status of a call of the tool `pay`, and whether its worker can still renew the lease.
async fn claim_of(world: &World, call_id: &str, fencing_token: i64) -> (String, bool) {
    let sql = format!("SELECT status FROM tool_calls WHERE call_id = '{call_id}'");
    let status = world.rows(&sql).await[0][0].to_json().as_str().unwrap().to_owned();
    let renewal = json!({"call_id": call_id, "fencing_token": fencing_token, "lease_ms": 1_000});
    (status, world.call("heartbeat_tool_call", renewal).await.is_ok())
}

/// A worker could not reach the server while it was restarted, and lost its lease in the first transaction after the start: its
/// call was left for a person. The time in which no process had the file open does not count, up to a limit.
#[test]
fn leases_do_not_expire_while_no_process_has_the_file_open() {
    const HOUR: i64 = 3_600_000;
    for (grace_s, lease_ms, after_ms, is_held) in [
        (0, 10_000, 0, false),
        (30, 10_000, 9_999, true),
        (30, 10_000, 10_000, false),
        // Longer than the limit.
        (30, 60_000, 29_999, true),
        (30, 60_000, 30_000, false),
        // It would have been valid in any case.
        (0, HOUR + 1_000, 999, true),
        (30, HOUR + 1_000, 31_000, false),
    ] {
        let mut world = World::new(abide_reducers::modules);
        let token = run(async {
            world.session("s1").await;
            let tool = json!({"name": "pay", "effect": "at_most_once"});
            world.call("register_tool", tool).await.unwrap();
            let args = json!({"call_id": "c1", "session_id": "s1", "tool_name": "pay",
                "arguments": {}, "claim_lease_ms": lease_ms});
            world.call("request_tool_call", args).await.unwrap().seq.0
        });
        world.close();
        world.clock.advance_ms(HOUR);
        let lease_grace = Duration::from_secs(grace_s);
        let config = Config { lease_grace, ..world.config(abide_reducers::modules()) };
        world.open_with(config);
        run(async {
            world.pass_ms(after_ms).await;
            let expected = if is_held { ("claimed", true) } else { ("unknown", false) };
            let claim = claim_of(&world, "c1", token).await;
            assert_eq!((&*claim.0, claim.1), expected, "{grace_s} {lease_ms} {after_ms}");
        });
    }
}

/// A lease that is taken after the start has its own length: one of a second ended only 30 seconds after the start, and so
/// nobody took over the work of a worker that vanished in that time.
#[test]
fn a_lease_that_is_taken_after_the_start_is_not_longer() {
    let mut world = World::new(abide_reducers::modules);
    let claim = |call_id: &str, lease_ms: i64| {
        json!({"call_id": call_id, "session_id": "s1", "tool_name": "pay", "arguments": {},
            "claim_lease_ms": lease_ms})
    };
    let old = run(async {
        world.session("s1").await;
        let tool = json!({"name": "pay", "effect": "at_most_once"});
        world.call("register_tool", tool).await.unwrap();
        world.call("request_tool_call", claim("old", 10_000)).await.unwrap().seq.0
    });
    world.close();
    world.clock.advance_ms(3_600_000);
    let lease_grace = Duration::from_secs(30);
    let config = Config { lease_grace, ..world.config(abide_reducers::modules()) };
    world.open_with(config);
    run(async {
        let mut tokens = Vec::new();
        for call_id in ["c1", "c2"] {
            let claimed = world.call("request_tool_call", claim(call_id, 1_000)).await.unwrap();
            tokens.push(claimed.seq.0);
        }
        let [held, unknown] = [("claimed", true), ("unknown", false)]
            .map(|(status, is_held)| (status.to_owned(), is_held));
        world.pass_ms(999).await;
        // The question renews the lease.
        assert_eq!(claim_of(&world, "c1", tokens[0]).await, held);
        world.pass_ms(1).await;
        assert_eq!(claim_of(&world, "c1", tokens[0]).await, held);
        assert_eq!(claim_of(&world, "c2", tokens[1]).await, unknown);
        world.pass_ms(1_000).await;
        assert_eq!(claim_of(&world, "c1", tokens[0]).await, unknown);
        world.pass_ms(7_999).await;
        assert_eq!(claim_of(&world, "old", old).await, held, "10 s after the start");
        world.pass_ms(1_000).await;
        assert_eq!(claim_of(&world, "old", old).await, unknown, "it was renewed for one second");
    });
}

/// A suspended kind, a group that was rolled back, and an error of the storage make the writer read all due rows again.
/// New leases among them are due by another clock, and were forgotten until the one of the old leases reached them.
#[test]
fn leases_that_are_taken_after_the_start_are_not_longer_after_a_suspension() {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    world.close();
    world.clock.advance_ms(3_600_000);
    let mut modules = abide_reducers::modules();
    modules.push(kitchen().reducer(throw_away::definition()).lease());
    world.open_with(Config { lease_grace: Duration::from_secs(30), ..world.config(modules) });
    run(async {
        let many = vec![10; limits::DUE_STUCK + 300];
        world.call("boil", json!({"after_ms": many, "flaw": "refused"})).await.unwrap();
        world.call("boil", json!({"after_ms": [20]})).await.unwrap();
        world.clock.advance_ms(30);
        for _ in 0..limits::DUE_STUCK / limits::DUE_PER_COMMIT + 10 {
            world.engine().fire_due().await.unwrap();
        }
        let boiled = "SELECT count(*) FROM eggs WHERE boiled";
        assert_eq!(numbers(&world, boiled).await, [0], "the kind is suspended");
        world.call("throw_away", json!({})).await.unwrap();
        world.pass_ms(1_000).await;
        assert_eq!(numbers(&world, boiled).await, [1]);
    });
}

/// A read-only open changes nothing in the file, even if timers are due.
#[test]
fn no_timers_in_a_read_only_open() {
    let mut world = World::new(abide_reducers::modules);
    run(async {
        world.session("s1").await;
        world.call("register_tool", json!({"name": "put", "effect": "idempotent"})).await.unwrap();
        let args = json!({"call_id": "c1", "session_id": "s1", "tool_name": "put",
            "arguments": {}, "claim_lease_ms": 1_000});
        world.call("request_tool_call", args).await.unwrap();
    });
    world.close();
    world.clock.advance_ms(60_000);
    let looking = Config { timers: false, ..world.config(abide_reducers::modules()) };
    world.open_with(looking);
    run(async {
        world.pass_ms(0).await;
        assert_eq!(world.engine().durable_seq(), Seq(4));
        // A claim does not depend on the expiry of the lease being processed.
        let claimed = world.call("claim_tool_call", json!({"call_id": "c1"})).await.unwrap();
        let claimed: serde_json::Value = serde_json::from_str(&claimed.result).unwrap();
        assert_eq!((&claimed["attempt"], &claimed["fencing_token"]), (&json!(2), &json!(5)));
        let late = json!({"call_id": "c1", "fencing_token": 4, "result": 1});
        let late = world.call("complete_tool_call", late).await.unwrap_err();
        assert_eq!(late.code, Code::LeaseLost);
        assert_eq!(
            numbers(&world, "SELECT fencing_token FROM lost_leases WHERE result = '1'").await,
            [4]
        );
    });
}

/// Waiting timers cost nothing: the next one is found by an index, in order.
#[test]
fn the_next_timer_is_found_by_an_index() {
    let mut world = kitchen_world();
    world.close();
    let raw = world.raw();
    let deadlines = modules().into_iter().flat_map(|module| module.deadlines);
    let mut checked = 0;
    for deadline in deadlines {
        let plan_of = |sql: String| plan(&raw, &format!("EXPLAIN QUERY PLAN {sql}"));
        let next_rows = plan_of(deadline.query("'{}'"));
        let table = deadline.table.name;
        let column = deadline.column;
        let is_range = next_rows.contains(&format!("{column}>?"))
            || next_rows.contains(&format!("({column},"));
        assert!(next_rows.contains("SEARCH") && is_range, "{table}.{column}: {next_rows}");
        // Rows of calls with equal due times are sorted: the index has other columns behind the time.
        let sorts = next_rows.contains("TEMP B-TREE");
        let sorts_ties = next_rows.contains("USE TEMP B-TREE FOR LAST TERM OF ORDER BY");
        assert!(!sorts || (sorts_ties && table == "tool_calls"), "{table}.{column}: {next_rows}");
        let next_time = plan_of(deadline.next_query());
        assert!(next_time.contains("SEARCH"), "{table}.{column}: {next_time}");
        assert!(!next_time.contains("TEMP B-TREE"), "{table}.{column}: {next_time}");
        let one_row = plan_of(deadline.row_query("'{}'"));
        let key = table_key(deadline.table);
        assert!(one_row.contains(&key), "{table}.{column}: {one_row}");
        checked += 1;
    }
    assert_eq!(checked, 14);
}

/// The start of a search by key.
fn table_key(table: &TableSpec) -> String {
    let first = if table.numbered() { "rowid" } else { table.columns[table.key[0]].name };
    format!("({first}=?")
}

fn plan(raw: &Connection, sql: &str) -> String {
    let mut statement = raw.prepare(sql).unwrap();
    let unbound = vec![0; statement.parameter_count()];
    let rows = statement.query_map(params_from_iter(unbound), |row| row.get(3)).unwrap();
    rows.map(Result::unwrap).collect::<Vec<String>>().join("; ")
}

/// At the end nothing waits for a passed deadline, and nothing is claimed without a holder.
#[test]
fn nothing_waits_forever() {
    for_seeds("timers::nothing_waits_forever", 60..66, |seed| {
        let world = World::new(abide_reducers::modules);
        run(async {
            let mut traffic = Traffic::new(seed);
            for _ in 0..400 {
                let _ = traffic.step(&world).await;
            }
            // One day, at first in steps of a second: deadlines that start meanwhile end too.
            for _ in 0..100 {
                world.pass_ms(1_000).await;
            }
            world.pass_ms(86_400_000).await;
            let waits = "SELECT
                (SELECT count(*) FROM tool_calls WHERE status = 'claimed' OR retry_at IS NOT NULL) +
                (SELECT count(*) FROM timers WHERE status = 'pending') +
                (SELECT count(*) FROM approvals WHERE status = 'pending' AND expires_at IS NOT NULL) +
                (SELECT count(*) FROM handoff_requests WHERE status = 'claimed'
                    OR status = 'pending' AND (escalate_at IS NOT NULL OR expires_at IS NOT NULL))";
            assert_eq!(numbers(&world, waits).await, [0]);
            assert!(
                numbers(&world, "SELECT count(*) FROM events WHERE caller = 'system'").await[0] > 5
            );
            // A session is fully cancelled once none of its work runs.
            let half = "SELECT count(*) FROM sessions WHERE cancel_requested_at IS NOT NULL
                AND status <> 'failed' AND status <> 'completed'";
            assert_eq!(numbers(&world, half).await, [0]);
        });
    });
}

/// Makes so many rows of a session that are due in a minute: by timers, leases of calls, approvals, or handoffs and runs of
/// child sessions.
async fn fill(world: &World, kind: &str, tenant: &str, count: usize) {
    let session = json!({"agent": "x", "id": tenant, "scope": {"tenant": tenant}});
    world.call("create_session", session).await.unwrap();
    let rows = (0..count).flat_map(|nth| match kind {
        "timer" => vec![("set_timer", json!({"session_id": tenant, "in_ms": 60_000}))],
        "lease" => {
            let call = json!({"call_id": format!("{tenant}{nth}"), "session_id": tenant,
                "tool_name": "put", "arguments": {}, "claim_lease_ms": 60_000});
            vec![("request_tool_call", call)]
        }
        "approval" => {
            let call = json!({"call_id": format!("{tenant}{nth}"), "session_id": tenant,
                "tool_name": "ask", "arguments": {}});
            vec![("request_tool_call", call)]
        }
        "run" => {
            let child = format!("{tenant}{nth}");
            let start = json!({"session_id": child, "id": child, "deadline_ms": 60_000});
            let session = json!({"agent": "x", "id": child, "parent_id": tenant});
            vec![
                ("create_session", session),
                ("start_run", start),
                ("suspend_session", json!({"session_id": child})),
            ]
        }
        _ => {
            let child = format!("{tenant}{nth}");
            let handoff = json!({"session_id": child, "reason": "help",
                "required_capability": "x", "expires_after_ms": 60_000});
            let child = json!({"agent": "x", "id": child, "parent_id": tenant});
            vec![("create_session", child), ("request_supervisor_handoff", handoff)]
        }
    });
    let calls: Vec<BatchCall> =
        rows.map(|(reducer, args)| BatchCall { reducer: reducer.to_owned(), args }).collect();
    for calls in calls.chunks(200) {
        world.engine().batch(&Caller::local(), calls, None).await.unwrap();
    }
    if kind == "run" {
        // Only the deadline of a run without a driver has a call of the engine.
        for nth in 0..count {
            let child = format!("{tenant}{nth}");
            let token = world.drive(&child).await;
            let wait = json!({"id": child, "fencing_token": token, "interrupt": {}});
            world.call("wait_run", wait).await.unwrap();
        }
    }
}

/// One tenant's due rows delayed the deadlines of all others: 300,000 timers by a minute, also those that passed while the
/// file was closed. Due rows were processed in the order of their times, whoever they belonged to.
#[test]
fn tenants_take_turns() {
    let kinds = ["timer", "lease", "handoff", "approval", "run"];
    let cases = kinds.map(|kind| [(kind, false), (kind, true)]);
    for (kind, is_closed) in cases.into_iter().flatten() {
        let mut world = World::new(abide_reducers::modules);
        let many = 2 * limits::DUE_PER_COMMIT + 100;
        run(async {
            let tool = json!({"name": "put", "effect": "at_most_once"});
            world.call("register_tool", tool).await.unwrap();
            let tool = json!({"name": "ask", "approval": {"expires_after_ms": 60_000}});
            world.call("register_tool", tool).await.unwrap();
            world.call("register_agent", json!({"name": "x", "definition": {}})).await.unwrap();
            fill(&world, kind, "zeta", many).await;
            world.clock.advance_ms(10);
            fill(&world, kind, "acme", 1).await;
        });
        if is_closed {
            world.close();
        }
        world.clock.advance_ms(61_000);
        if is_closed {
            world.open();
        }
        run(async {
            world.pass_ms(0).await;
            let fired = "SELECT count(*) FROM events WHERE caller = 'system'";
            assert_eq!(numbers(&world, fired).await, [many as i64 + 1], "{kind}");
            let acme =
                "SELECT max(seq) FROM events WHERE caller = 'system' AND session_id LIKE 'acme%'";
            let before = numbers(&world, &format!("{fired} AND seq < ({acme})")).await[0];
            assert!(before < limits::DUE_PER_COMMIT as i64, "{kind}: {before}");
        });
    }
}

/// A row that is already due, and one with a due time that was processed before, are found in the middle of many due rows.
#[test]
fn rows_that_become_due_late_are_found() {
    let world = kitchen_world();
    run(async {
        let many = vec![1_000; 3 * limits::DUE_PER_COMMIT];
        world.call("boil", json!({"after_ms": many})).await.unwrap();
        world.clock.advance_ms(2_000);
        world.engine().fire_due().await.unwrap();
        world.call("set_timer", json!({"due_at": 1, "id": "old"})).await.unwrap();
        world.call("set_timer", json!({"in_ms": 0, "id": "now"})).await.unwrap();
        world.call("boil", json!({"after_ms": [-1_500, -1_000, 0]})).await.unwrap();
        world.pass_ms(0).await;
        assert_eq!(numbers(&world, "SELECT count(*) FROM eggs WHERE NOT boiled").await, [0]);
        assert_eq!(
            numbers(&world, "SELECT count(*) FROM timers WHERE status = 'pending'").await,
            [0]
        );
    });
}

/// A tenant could set any number of timers, for one moment.
#[test]
fn pending_timers_of_a_scope_are_limited() {
    let mut world = World::new(abide_reducers::modules);
    let set = |tenant: &str| ("set_timer", json!({"session_id": tenant, "in_ms": 60_000}));
    run(async {
        for tenant in ["zeta", "acme"] {
            let session = json!({"agent": "x", "id": tenant, "scope": {"tenant": tenant}});
            world.call("create_session", session).await.unwrap();
        }
        let first = json!({"session_id": "zeta", "in_ms": 60_000, "id": "first"});
        world.call("set_timer", first).await.unwrap();
        world.call("set_timer", set("zeta").1).await.unwrap();
    });
    world.close();
    let all_but_one = limits::TIMERS_OF_A_SCOPE - 1;
    let counted = "UPDATE timer_counts SET pending = ?1 WHERE pending = 2";
    assert_eq!(world.raw().execute(counted, [all_but_one]).unwrap(), 1);
    world.open();
    run(async {
        world.call("set_timer", set("zeta").1).await.unwrap();
        let refusal = world.call("set_timer", set("zeta").1).await.unwrap_err();
        assert_eq!(refusal.code, Code::LimitExceeded);
        assert!(refusal.hint.is_some_and(|hint| hint.contains("cancel_timer")), "it has a hint");
        world.call("set_timer", set("acme").1).await.unwrap();
        world.call("cancel_timer", json!({"id": "first"})).await.unwrap();
        world.call("set_timer", set("zeta").1).await.unwrap();
        world.call("cancel_session", json!({"session_id": "zeta"})).await.unwrap();
        world.pass_ms(61_000).await;
        let counts = numbers(&world, "SELECT pending FROM timer_counts ORDER BY scope").await;
        assert_eq!(counts, [all_but_one - 2], "those of the other scope have fired");
    });
}

/// A caller of a tenant set ten thousand timers in each of any number of narrower scopes. The class: a limit that counts by
/// the exact scope, which a caller chooses.
#[test]
fn narrower_scopes_do_not_multiply_the_timers_of_a_tenant() {
    let mut world = World::new(modules);
    let scope = |keys: &[(&str, &str)]| -> Scope {
        keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let acme = Caller::with("acme", "app", ["*".to_owned()].into(), scope(&[("tenant", "acme")]));
    let zeta = Caller::with("zeta", "app", ["*".to_owned()].into(), scope(&[("tenant", "zeta")]));
    let narrow = |user: &str| acme.acting_for(&scope(&[("u", user)])).unwrap();
    let in_ms = |session: &str| json!({"session_id": session, "in_ms": 60_000});
    let open = async |world: &World, caller: &Caller, id: &str| {
        let session = json!({"agent": "x", "id": id});
        world.engine().call(caller, "create_session", &session, None).await.unwrap();
    };
    run(async {
        open(&world, &zeta, "z").await;
        for user in ["u1", "u2"] {
            open(&world, &narrow(user), user).await;
            world.engine().call(&narrow(user), "set_timer", &in_ms(user), None).await.unwrap();
        }
    });
    world.close();
    let counted = "UPDATE timer_counts SET pending = ?1 WHERE pending = 2";
    assert_eq!(world.raw().execute(counted, [limits::TIMERS_OF_A_SCOPE - 1]).unwrap(), 1);
    world.open();
    run(async {
        let engine = world.engine();
        engine.call(&zeta, "set_timer", &in_ms("z"), None).await.unwrap();
        engine.call(&narrow("u1"), "set_timer", &in_ms("u1"), None).await.unwrap();
        for user in ["u1", "u2"] {
            let refused = engine.call(&narrow(user), "set_timer", &in_ms(user), None).await;
            assert_eq!(refused.unwrap_err().code, Code::LimitExceeded);
        }
        engine.call(&zeta, "set_timer", &in_ms("z"), None).await.unwrap();
    });
}

/// Timers with large messages fired in one transaction, as many as small ones: 256 messages of eight megabytes. What has no
/// room comes first in the next transaction, whose tenant it is. The class: rows are counted, and their bytes are not.
#[test]
fn large_timers_fire_in_transactions_of_bounded_bytes() {
    const BYTES: usize = 300 << 10;
    run(async {
        let world = World::new(abide_reducers::modules);
        for tenant in ["zeta", "acme", "beta"] {
            let session = json!({"agent": "x", "id": tenant, "scope": {"tenant": tenant}});
            world.call("create_session", session).await.unwrap();
        }
        let set = async |tenant: &str, bytes: usize| {
            let timer = json!({"session_id": tenant, "due_at": START.0 + 1_000_000, "message": "x".repeat(bytes)});
            world.call("set_timer", timer).await.unwrap();
        };
        for _ in 0..20 {
            set("zeta", BYTES).await;
        }
        for tenant in ["acme", "beta"] {
            set(tenant, 10).await;
        }
        let before = world.engine().metrics().commits_total.get();
        world.pass_ms(2_000).await;
        let fired = "SELECT count(*) FROM timers WHERE status = 'fired'";
        assert_eq!(numbers(&world, fired).await, [22]);
        let commits = world.engine().metrics().commits_total.get() - before;
        assert!(commits >= 20 * BYTES as u64 / (limits::DUE_BYTES + BYTES as u64), "{commits}");
        let others = "SELECT count(*) FROM timers WHERE session_id = 'zeta' AND seq < (SELECT max(seq) FROM timers WHERE session_id <> 'zeta')";
        assert!(numbers(&world, others).await[0] < 4);
    });
}

/// The rows in memory were limited together: those of one tenant and one kind took the room of all others, which waited
/// until they were processed. What has no room now is read again, so that each row runs once.
#[test]
fn rows_without_room_in_memory_are_read_again() {
    let many = limits::DUE_OF_A_TENANT + 2 * limits::DUE_READ_PER_COMMIT;
    let mut world = World::new(abide_reducers::modules);
    run(async {
        world.call("register_agent", json!({"name": "x", "definition": {}})).await.unwrap();
        fill(&world, "timer", "zeta", 1).await;
        world.clock.advance_ms(10);
        for kind in ["timer", "handoff"] {
            fill(&world, kind, if kind == "timer" { "acme" } else { "beta" }, 1).await;
        }
    });
    world.close();
    let file = Connection::open(world.path()).unwrap();
    file.execute_batch("PRAGMA synchronous = off").unwrap();
    let columns: Vec<String> = {
        let mut statement = file.prepare("PRAGMA table_info(timers)").unwrap();
        statement.query_map([], |row| row.get(1)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let cells: Vec<&str> =
        columns.iter().map(|name| if name == "id" { "'tm' || n" } else { name.as_str() }).collect();
    let sql = format!(
        "WITH RECURSIVE c(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM c WHERE n < ?1)
         INSERT INTO timers SELECT {} FROM c, (SELECT * FROM timers WHERE session_id = 'zeta')",
        cells.join(", ")
    );
    file.execute(&sql, [many as i64]).unwrap();
    file.execute("UPDATE timer_counts SET pending = ?1 WHERE scope LIKE '%zeta%'", [many as i64])
        .unwrap();
    file.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(file);
    world.clock.advance_ms(61_000);
    world.open();
    run(async {
        let of_others =
            "SELECT count(*) FROM events WHERE caller = 'system' AND session_id NOT LIKE 'zeta%'";
        let mut rounds = 0;
        while numbers(&world, of_others).await[0] < 2 {
            world.engine().fire_due().await.unwrap();
            rounds += 1;
        }
        assert!(rounds <= many / limits::DUE_READ_PER_COMMIT + 3, "{rounds} rounds");
        world.pass_ms(0).await;
        let fired = "SELECT count(*) FROM timers WHERE status <> 'fired'";
        assert_eq!(numbers(&world, fired).await, [0]);
        let twice =
            "SELECT count(*) - count(DISTINCT arguments) FROM events WHERE reducer = 'fire_timer'";
        assert_eq!(numbers(&world, twice).await, [0]);
        assert_eq!(world.engine().metrics().refusals_total.get(), 0);
    });
}

/// While rows of a tenant were passed over, its lane took the rows that came later as soon as it had room for them. So it was
/// never empty as long as the tenant set timers, and those that were passed over never fired. The class: what waits for a
/// queue to be empty, and a queue that does not become empty.
#[test]
fn rows_that_were_passed_over_run_before_later_ones() {
    const OF_A_TENANT: usize = 100;
    run(async {
        let mut world = World::new(abide_reducers::modules);
        world.close();
        let mut config = world.config(modules());
        config.due_of_a_tenant = OF_A_TENANT;
        world.open_with(config);
        let session = json!({"agent": "x", "id": "zeta", "scope": {"tenant": "zeta"}});
        world.call("create_session", session).await.unwrap();
        let set = async |first: usize, count: usize, due_at: i64| {
            let timer =
                |nth| json!({"session_id": "zeta", "id": format!("t{nth:04}"), "due_at": due_at});
            let calls: Vec<BatchCall> = (first..first + count)
                .map(|nth| BatchCall { reducer: "set_timer".to_owned(), args: timer(nth) })
                .collect();
            world.engine().batch(&Caller::local(), &calls, None).await.unwrap();
        };
        let first = 4 * OF_A_TENANT;
        for nth in 0..4 {
            set(nth * OF_A_TENANT, OF_A_TENANT, START.0 + 1_000).await;
        }
        world.clock.advance_ms(1_000);
        // Each of these transactions fires fewer timers than it adds.
        let mut set_later = 0;
        while numbers(
            &world,
            "SELECT count(*) FROM timers WHERE id < 't0400' AND status = 'pending'",
        )
        .await[0]
            > 0
        {
            assert!(set_later < 20 * OF_A_TENANT, "those that were passed over do not fire");
            set(first + set_later, OF_A_TENANT, world.clock_now()).await;
            set_later += OF_A_TENANT;
        }
        world.pass_ms(0).await;
        let fired = "SELECT count(*) FROM timers WHERE status = 'fired'";
        assert_eq!(numbers(&world, fired).await, [(first + set_later) as i64]);
        let too_early = "SELECT count(*) FROM timers WHERE id >= 't0400' AND seq < (SELECT max(seq) FROM timers WHERE id < 't0400')";
        assert_eq!(numbers(&world, too_early).await, [0]);
    });
}

/// Rows that a transaction had no time for came back behind all others with their due time. The class: an order that is kept
/// in memory, and lost when a row leaves it for a while.
#[test]
fn rows_that_are_put_back_keep_their_order() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.call("create_session", json!({"agent": "x", "id": "s"})).await.unwrap();
        let message = "x".repeat(300 << 10);
        for nth in 0..20 {
            let timer = json!({"session_id": "s", "id": format!("t{nth:02}"), "due_at": START.0 + 1_000, "message": message});
            world.call("set_timer", timer).await.unwrap();
        }
        world.pass_ms(1_000).await;
        let of_order = "SELECT CAST(substr(id, 2) AS INTEGER) FROM timers ORDER BY seq";
        assert_eq!(numbers(&world, of_order).await, (0..20).collect::<Vec<_>>());
    });
}
