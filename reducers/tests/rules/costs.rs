//! The cost of each reducer to the writer does not grow with the stored data. Every reducer of
//! every built-in module runs over a file with some rows of each kind and over one with ten times
//! as many, and SQLite's steps are counted.
//!
//! `cancel_session` with 9,001 descendants blocked the writer for 37.7 s.

use std::collections::BTreeSet;
use std::fs;

use abide_schema::Scope;
use abide_schema::reducer::Caller;
use abide_tests::world::{START, World, run};
use serde_json::Value as JsonValue;

/// Rows of each kind: more than any reducer handles at once.
const FEW: usize = 300;

/// Additional steps that a call may take with ten times as many rows, for limits that are not
/// reached with few rows. A scan of one kind of row takes at least 13,500 more.
const GROWTH: u64 = 2_000;

/// Steps of the dearest call: a step of a cleanup.
const MOST: u64 = 45_000;

/// One row of each kind, to be multiplied.
const BASE: &str = r#"
create_session {"agent":"support","id":"big","scope":{"tenant":"a"}}
create_session {"agent":"support","id":"other","scope":{"tenant":"b"}}
create_session {"agent":"support","id":"kid","parent_id":"big"}
append_message {"session_id":"big","role":"user","content":"hello"}
register_tool {"name":"put","effect":"idempotent"}
register_tool {"name":"queued","effect":"idempotent"}
register_tool {"name":"ask","needs_approval":true,"effect":"idempotent"}
register_tool {"name":"paced","effect":"idempotent","limits":{"calls_per_session":50,"concurrency":50,"rate":{"calls":50,"per_ms":60000}}}
register_agent {"name":"support","definition":{},"mode":"all"}
request_tool_call {"call_id":"pending","session_id":"big","tool_name":"put","arguments":{}}
request_tool_call {"call_id":"foreign","session_id":"other","tool_name":"queued","arguments":{}}
request_tool_call {"call_id":"claimed","session_id":"big","tool_name":"put","arguments":{},"claim_lease_ms":80000000}
request_tool_call {"call_id":"paced","session_id":"big","tool_name":"paced","arguments":{},"claim_lease_ms":80000000}
request_tool_call {"call_id":"asks","session_id":"big","tool_name":"ask","arguments":{}}
set_timer {"session_id":"big","in_ms":80000000,"id":"tm"}
start_run {"session_id":"kid","id":"ended"}
abort_run {"id":"ended"}
start_run {"session_id":"other","id":"foreign"}
create_session {"agent":"support","id":"grown","scope":{"tenant":"a"}}
start_run {"session_id":"grown","id":"grown"}
claim_run {"id":"grown","driver":"d","lease_ms":80000000}
request_tool_call {"call_id":"grown~1","session_id":"grown","tool_name":"put","arguments":{},"run_id":"grown","run_fencing_token":"$seq","claim_lease_ms":80000000}
start_child_run {"call_id":"grown~1","fencing_token":"$seq","agent":"support","input":"x"}
request_supervisor_handoff {"session_id":"kid","reason":"x","required_capability":"x"}
create_identity {"id":"ann","role":"app"}
create_token {"id":"aaaaaaaa","identity_id":"ann","hash":"0000000000000000000000000000000000000000000000000000000000000000","last_four":"abcd"}
write_entries {"collection_id":"box","scope":{"tenant":"a"},"puts":[{"key":"k","data":1}]}
save_memories {"namespace":"support","scope":{"tenant":"a"},"facts":[{"key":"k","value":"v"}]}
embed_memories {"model":"m","vectors":[{"memory_id":1,"seq":"$seq","vector":{"$blob":"AAAAAA=="}}]}
set_role {"name":"clerk","reducers":["append_message"]}
put_prompt {"name":"greeting","text":"x","labels":["l"],"scope":{"tenant":"a"}}
set_policy {"table":"timers","role":"clerk","name":"p","condition":"1"}
"#;

/// Table, the row to multiply, the maximum number of copies, and the columns that differ: `{n}` is
/// the number of the copy.
type Copies = (&'static str, &'static str, usize, &'static [(&'static str, &'static str)]);

const ALL: usize = usize::MAX;

/// Runs below one: all that it may have but a few that the cases start.
const TREE: usize = 250;

const COPIES: &[Copies] = &[
    ("sessions", "id = 'grown~1'", TREE, &[("id", "'grown~1' || {n}")]),
    (
        "tool_calls",
        "call_id = 'grown~1'",
        TREE,
        &[("call_id", "'grown~1' || {n}"), ("status", "'succeeded'"), ("lease_expires_at", "NULL")],
    ),
    (
        "tool_calls",
        "call_id = 'pending'",
        TREE,
        &[("call_id", "'below' || {n}"), ("session_id", "'grown~1' || {n}")],
    ),
    (
        "runs",
        "id = 'grown~1~run'",
        TREE,
        &[("id", "'grown~1' || {n} || '~run'"), ("session_id", "'grown~1' || {n}")],
    ),
    (
        "delegations",
        "run_id = 'grown~1~run'",
        TREE,
        &[("run_id", "'grown~1' || {n} || '~run'"), ("session_id", "'grown~1' || {n}")],
    ),
    (
        "delegations",
        "run_id = 'grown~1~run'",
        ALL,
        &[("run_id", "'far' || {n}"), ("parent_id", "'far'"), ("root_id", "'far'")],
    ),
    ("sessions", "id = 'kid'", ALL, &[("id", "'kid' || {n}"), ("status", "'active'")]),
    ("sessions", "id = 'other'", ALL, &[("id", "'other' || {n}")]),
    ("agent_state", "1", ALL, &[("id", "1000 + {n}")]),
    ("tool_versions", "name = 'put'", ALL, &[("version", "-{n}")]),
    ("tools", "name = 'put'", ALL, &[("name", "'put' || {n}")]),
    ("agents", "1", ALL, &[("name", "'agent' || {n}")]),
    ("agent_revisions", "1", ALL, &[("revision", "-{n}")]),
    ("tool_calls", "call_id = 'foreign'", ALL, &[("call_id", "'foreign' || {n}")]),
    ("tool_calls", "call_id = 'pending'", ALL, &[("call_id", "'pending' || {n}")]),
    ("tool_calls", "call_id = 'claimed'", ALL, &[("call_id", "'claimed' || {n}")]),
    ("tool_calls", "call_id = 'paced'", ALL, &[("call_id", "'paced' || {n}")]),
    ("tool_calls", "call_id = 'asks'", ALL, &[("call_id", "'asks' || {n}")]),
    (
        "tool_calls",
        "call_id = 'claimed'",
        ALL,
        &[("call_id", "'done' || {n}"), ("status", "'succeeded'"), ("lease_expires_at", "NULL")],
    ),
    ("tool_claims", "1", ALL, &[("seq", "1000 + {n}")]),
    ("approvals", "1", ALL, &[("id", "'ap' || {n}"), ("call_id", "'asks' || {n}")]),
    ("timers", "1", ALL, &[("id", "'tm' || {n}")]),
    ("timers", "1", ALL, &[("id", "'fired' || {n}"), ("status", "'fired'")]),
    ("runs", "id = 'ended'", ALL, &[("id", "'ended' || {n}"), ("session_id", "'big'")]),
    (
        "runs",
        "id = 'foreign'",
        ALL,
        &[("id", "'foreign' || {n}"), ("session_id", "'other' || {n}")],
    ),
    (
        "run_events",
        "run_id = 'ended' AND kind = 'error'",
        ALL,
        &[("id", "1000 + {n}"), ("run_id", "'ended' || {n}"), ("session_id", "'big'")],
    ),
    (
        "handoff_requests",
        "1",
        ALL,
        &[("id", "'ho' || {n}"), ("session_id", "'big'"), ("status", "'resolved'")],
    ),
    ("handoff_requests", "1", ALL, &[("id", "'open' || {n}"), ("session_id", "'other' || {n}")]),
    ("identities", "1", ALL, &[("id", "'id' || {n}")]),
    ("tokens", "1", ALL, &[("id", "'token' || {n}")]),
    ("roles", "1", ALL, &[("name", "'role' || {n}")]),
    ("policies", "1", 250, &[("role", "'none' || {n}")]),
    ("collections", "1", ALL, &[("id", "'box' || {n}")]),
    ("entries", "1", ALL, &[("key", "'k' || {n}")]),
    ("memories", "1", TREE, &[("id", "1000 + {n}"), ("key", "'k' || {n}")]),
    ("memories", "id = 1", ALL, &[("id", "10000 + {n}"), ("space", "'other' || {n}")]),
    ("prompts", "1", ALL, &[("name", "'prompt' || {n}")]),
    ("prompt_versions", "1", ALL, &[("version", "-{n}")]),
    ("prompt_labels", "1", 40, &[("label", "'l' || {n}")]),
    ("memory_vectors", "1", TREE, &[("memory_id", "1000 + {n}")]),
    ("waiting", "id = 'foreign' AND queue = 'tqueued'", ALL, &[("id", "'foreign' || {n}")]),
    ("waiting", "id = 'pending'", ALL, &[("id", "'pending' || {n}")]),
    ("waiting", "id = 'foreign' AND queue = 'r'", ALL, &[("id", "'foreign' || {n}")]),
];

/// The caller of a case: the first is unrestricted, the others belong to the first tenant.
fn caller(name: &str) -> Caller {
    let scope: Scope = [("tenant".to_owned(), "a".to_owned())].into();
    match name {
        "local" => Caller::local(),
        role => Caller::with("ann", role, ["*".to_owned()].into(), scope),
    }
}

/// The cases of each domain. `# reducer` starts a case, see [`Case`].
const CASES: &[&str] = &[
    crate::agents::COSTS,
    crate::approvals::COSTS,
    crate::cancellation::COSTS,
    crate::collections::COSTS,
    crate::corrections::COSTS,
    crate::exchanges::COSTS,
    crate::handoffs::COSTS,
    crate::health::COSTS,
    crate::identities::COSTS,
    crate::memory::COSTS,
    crate::messages::COSTS,
    crate::pauses::COSTS,
    crate::prompts::COSTS,
    crate::retries::COSTS,
    crate::runs::COSTS,
    crate::sessions::COSTS,
    crate::snapshots::COSTS,
    crate::summaries::COSTS,
    crate::timers::COSTS,
    crate::tool_calls::COSTS,
    crate::tools::COSTS,
    crate::webhooks::COSTS,
];

/// A test case of one reducer: preceding calls, and the call itself or the milliseconds to wait
/// until a timer calls it (`+10`). `$first` and `$seq` are the seq of the first and of the previous
/// call, `$id` the id in its result, and a name after `@` is the caller.
struct Case {
    reducer: &'static str,
    script: Vec<&'static str>,
}

fn cases() -> Vec<Case> {
    let cases = CASES.iter().flat_map(|cases| cases.split("\n# ").skip(1));
    let parts = cases.map(|case| case.split_once('\n').unwrap());
    parts.map(|(reducer, script)| Case { reducer, script: script.lines().collect() }).collect()
}

fn multiply(world: &World, times: usize) {
    let file = world.raw();
    file.execute_batch("PRAGMA foreign_keys = off; PRAGMA synchronous = off; BEGIN").unwrap();
    for (table, template, max, changes) in COPIES {
        let columns: Vec<String> = {
            let mut statement = file.prepare(&format!("PRAGMA table_info({table})")).unwrap();
            let names = statement.query_map([], |row| row.get(1)).unwrap();
            names.collect::<Result<_, _>>().unwrap()
        };
        let cells = columns.iter().map(|name| {
            let change = changes.iter().find(|(column, _)| column == name);
            change.map_or(format!("t.{name}"), |(_, to)| to.replace("{n}", "c.n"))
        });
        let cells = cells.collect::<Vec<_>>().join(", ");
        let sql = format!(
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?1)
             INSERT INTO {table} SELECT {cells} FROM c, (SELECT * FROM {table} WHERE {template} LIMIT 1) AS t"
        );
        let added = file.execute(&sql, [times.min(*max) as i64]).unwrap();
        assert_eq!(added, times.min(*max), "{table}: {template}");
    }
    file.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
}

/// The base file, with this many copies of each row.
fn file_with(times: usize) -> World {
    let mut world = World::new(abide_reducers::modules);
    run(async {
        let mut seq = String::new();
        for line in BASE.lines().filter(|line| !line.is_empty()) {
            let (reducer, args) = line.split_once(' ').unwrap();
            let args = serde_json::from_str(&args.replace("\"$seq\"", &seq)).unwrap();
            let done = world.call(reducer, args).await;
            seq = done.unwrap_or_else(|why| panic!("{line}: {why}")).seq.0.to_string();
        }
    });
    world.close();
    multiply(&world, times);
    world
}

/// Steps of the last line of a script, over a copy of a file.
fn steps(file: &World, Case { reducer, script }: &Case, who: &str) -> u64 {
    let mut world = World::new_without_engine(abide_reducers::modules, &file.clock);
    fs::copy(file.path(), world.path()).unwrap();
    // Without timers if no timer calls the reducer: otherwise the steps of a cleanup would count
    // for the preceding call.
    let mut config = world.config(abide_reducers::modules());
    config.timers = script.iter().any(|line| line.starts_with('+'));
    world.open_with(config);
    let is_step = is_step(reducer);
    run(async {
        let mut first = String::new();
        let mut seq = String::new();
        let mut id = String::new();
        let mut before = 0;
        world.pass_ms(0).await;
        for (nth, line) in script.iter().enumerate() {
            let line =
                line.replace("\"$seq\"", &seq).replace("\"$first\"", &first).replace("$id", &id);
            let is_last = nth + 1 == script.len();
            if nth == 0 || !is_step {
                before = world.engine().metrics().writer_steps_total.get();
            }
            if let Some(ms) = line.strip_prefix('+') {
                world.clock.advance_ms(ms.parse().unwrap());
                world.engine().fire_due().await.unwrap();
                continue;
            }
            let (name, args) = line.split_once(' ').unwrap();
            let args: JsonValue =
                serde_json::from_str(args).unwrap_or_else(|why| panic!("{line}: {why}"));
            // A call that must be refused names its caller.
            let (name, by) =
                name.split_once('@').unwrap_or((name, if is_last { who } else { "local" }));
            let done = world.engine().call(&caller(by), name, &args, None).await;
            match done {
                Ok(done) => {
                    seq = done.seq.0.to_string();
                    let result: JsonValue = serde_json::from_str(&done.result).unwrap();
                    if first.is_empty() {
                        first.clone_from(&seq);
                    }
                    id = result["id"].as_str().unwrap_or_default().to_owned();
                }
                Err(refusal) if *reducer == "record_denied" => {
                    assert_eq!(refusal.code.as_str(), "denied")
                }
                Err(refusal) => panic!("{reducer} by {who}: {line}: {refusal}"),
            }
        }
        if is_step {
            // The steps run without further calls.
            world.pass_ms(0).await;
        }
        let ran = world.rows(&format!("SELECT 1 FROM events WHERE reducer = '{reducer}'")).await;
        assert!(!ran.is_empty(), "{reducer} ran");
        let steps = world.engine().metrics().writer_steps_total.get() - before;
        // The preceding call runs the first step.
        let steps = if is_step { steps / (ran.len() as u64 + 1) } else { steps };
        world.close();
        file.clock.advance_ms((START.0 - file.clock_now()) / 1_000);
        steps
    })
}

/// Whether the engine calls a reducer several times, so that its cost is an average.
fn is_step(reducer: &str) -> bool {
    ["continue_cleanup", "continue_fork"].contains(&reducer)
}

/// Reducers that a caller with a scope may not call.
fn is_of_all(reducer: &str) -> bool {
    [
        "register_tool",
        "register_agent",
        "retire_agent",
        "set_policy",
        "drop_policy",
        "set_role",
        "remove_role",
    ]
    .contains(&reducer)
}

#[test]
fn no_reducer_costs_more_with_more_rows() {
    let modules = abide_reducers::modules();
    let called = modules.iter().flat_map(|module| &module.reducers).map(|it| it.name);
    let by_time = modules.iter().flat_map(|module| &module.deadlines).map(|it| it.reducer.name);
    let denial_recorders =
        modules.iter().flat_map(|module| &module.denial_recorders).map(|it| it.name);
    let declared: BTreeSet<&str> = called.chain(by_time).chain(denial_recorders).collect();
    let cases = cases();
    let tested: BTreeSet<&str> = cases.iter().map(|case| case.reducer).collect();
    let missing: Vec<_> = declared.difference(&tested).collect();
    assert!(missing.is_empty(), "the COSTS of their domains lack {missing:?}");
    let unknown: Vec<_> = tested.difference(&declared).collect();
    assert!(unknown.is_empty(), "COSTS have cases of unknown reducers: {unknown:?}");
    let few = file_with(FEW);
    let many = file_with(10 * FEW);
    let mut wrong = Vec::new();
    for case in &cases {
        for who in ["local", "admin"] {
            if who == "admin" && is_of_all(case.reducer) {
                continue;
            }
            let before = steps(&few, case, who);
            let after = steps(&many, case, who);
            // The last of a few steps has less to do, which lowers their average.
            let growth = if is_step(case.reducer) { before / 2 } else { GROWTH };
            if after > before + growth || after > MOST {
                wrong.push(format!("{} by {who}: {before} steps, then {after}", case.reducer));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
