//! Readers plan policies: however hostile a condition is, and however many policies exist, `set_policy` takes the
//! writer few steps.

use std::collections::BTreeSet;

use abide_schema::reducer::Caller;
use abide_schema::{Scope, limits};
use abide_tests::world::{World, run};
use expect_test::expect;
use serde_json::json;

/// Conditions of at most 4 KB whose planning would take long.
fn hostile() -> Vec<(&'static str, String)> {
    let bytes = limits::POLICY_BYTES;
    let fill = |piece: &str, end: &str| piece.repeat((bytes - 200) / piece.len()) + end;
    let ctes = (1..40)
        .map(|n| format!("c{n} AS (SELECT a.x FROM c{m} a, c{m} b)", m = n - 1))
        .collect::<Vec<_>>()
        .join(", ");
    let tables = |n: usize| (0..n).map(|n| format!("sessions t{n}")).collect::<Vec<_>>().join(", ");
    let joined = |n: usize| {
        let on = (1..n).map(|n| format!("t{n}.parent_id = t{}.id", n - 1)).collect::<Vec<_>>();
        format!("EXISTS (SELECT 1 FROM {} WHERE {})", tables(n), on.join(" AND "))
    };
    let nested = (0..60).fold("1".to_owned(), |inner, n| {
        format!("EXISTS (SELECT 1 FROM sessions s{n} WHERE {inner})")
    });
    let cyclic = (0..24)
        .map(|n| format!("t{n}.id = t{}.parent_id", (n * 7 + 1) % 24))
        .collect::<Vec<_>>()
        .join(" OR ");
    vec![
        ("exponential CTEs", format!("id IN (WITH c0(x) AS (SELECT 1), {ctes} SELECT x FROM c39)")),
        ("a chain of operators", fill("1+", "1")),
        ("a deep chain", "(".repeat(bytes / 2 - 10) + "1" + &")".repeat(bytes / 2 - 10)),
        ("a chain of NOT", fill("NOT ", "1")),
        ("many alternatives", fill("id = 'x' OR ", "0")),
        ("a list", format!("id IN ({})", fill("1,", "1"))),
        ("a join of 20", joined(20)),
        ("a join of 60", joined(60)),
        ("a join by alternatives", format!("EXISTS (SELECT 1 FROM {} WHERE {cyclic})", tables(24))),
        ("nested subqueries", nested),
        ("many subqueries", fill("EXISTS (SELECT 1 FROM sessions) OR ", "0")),
        ("many CASEs", fill("CASE WHEN id THEN 1 ELSE 0 END + ", "0")),
    ]
}

/// Number of existing policies in the second of two worlds.
const MANY: i64 = limits::POLICIES - 1;

/// Maximum steps of the writer for a policy, by the number of policies: it reads and counts each of them once.
const MOST: [u64; 2] = [200, 200 + 7 * MANY as u64];

/// Maximum steps of the first call under the policy: it reads all policies, and checks one row.
const MOST_OF_CALL: [u64; 2] = [8_000, 8_000 + 7 * MANY as u64];

fn with_policies(count: i64) -> World {
    let mut world = World::new(abide_reducers::modules);
    run(async {
        world.session("s1").await;
        let role = json!({"name": "none", "reducers": ["set_timer"]});
        world.call("set_role", role).await.unwrap();
        let args = json!({"table": "timers", "role": "none", "condition": "1"});
        world.call("set_policy", args).await.unwrap();
    });
    world.close();
    let copied = world.raw().execute(
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)
         INSERT INTO policies SELECT p.table_name, 'none' || c.n, p.name, p.condition, p.hidden, p.set_by,
           p.created_at, p.updated_at, p.seq FROM c, policies AS p LIMIT ?1",
        [count - 1],
    );
    assert_eq!(copied.unwrap(), usize::try_from(count - 1).unwrap());
    world.open();
    world
}

/// Readers plan every condition, and the writer takes a bounded number of steps.
#[test]
fn a_hostile_policy_takes_the_writer_few_steps() {
    let mut all = Vec::new();
    for (nth, policies) in [1, MANY].into_iter().enumerate() {
        let world = with_policies(policies);
        // Work that happens once after a file is opened does not count.
        run(world.append_message("s1", "hello")).unwrap();
        let mut outcomes = Vec::new();
        for (name, condition) in hostile() {
            let metrics = || {
                let metrics = world.engine().metrics();
                (metrics.writer_steps_total.get(), metrics.deferred_total.get())
            };
            let before = metrics();
            let args = json!({"table": "sessions", "role": "app", "condition": condition});
            let done = run(world.call("set_policy", args));
            let between = metrics();
            let app = Caller::with("ann", "app", BTreeSet::new(), Scope::new());
            let args = json!({"session_id": "s1", "role": "user", "content": "x"});
            // The policy decides whether the call is refused.
            let _ = run(world.engine().call(&app, "append_message", &args, None));
            let after = metrics();
            assert_eq!(between.1, before.1 + 1, "{name}: a reader plans it");
            let steps = between.0 - before.0;
            let of_call = after.0 - between.0;
            assert!(steps <= MOST[nth], "{name}: {steps} steps over {policies} policies");
            assert!(of_call <= MOST_OF_CALL[nth], "{name}: then {of_call} steps");
            let outcome = done.map_or_else(|why| why.to_string(), |_| "done".to_owned());
            outcomes.push(format!("{name}: {outcome}"));
            let drop = json!({"table": "sessions", "role": "app"});
            let _ = run(world.call("drop_policy", drop));
        }
        all.push(outcomes.join("\n"));
    }
    assert_eq!(all[0], all[1]);
    let expected = expect![[r#"
        exponential CTEs: the query expands to more than 500 SELECTs
        a chain of operators: SQLite cannot plan the query
        a deep chain: the statement nests more than 100 levels deep
        a chain of NOT: the statement nests more than 100 levels deep
        many alternatives: done
        a list: done
        a join of 20: done
        a join of 60: the query reads more than 60 tables
        a join by alternatives: done
        nested subqueries: the statement nests more than 100 levels deep
        many subqueries: the query reads more than 60 tables
        many CASEs: done"#]];
    expected.assert_eq(&all[0]);
}

/// A policy that needs no plan is set immediately, and an invalid one is refused with the same error as before.
#[test]
fn a_policy_without_a_condition_is_not_deferred() {
    run(async {
        let world = World::new(abide_reducers::modules);
        for hidden in [json!(["title"]), json!(["nonsense"])] {
            let args = json!({"table": "sessions", "role": "app", "hidden": hidden});
            let done = world.call("set_policy", args).await;
            assert_eq!(done.is_ok(), hidden[0] == "title");
        }
        assert_eq!(world.engine().metrics().deferred_total.get(), 0);
    });
}

/// Regression: the writer evaluated conditions without a limit. One call under a condition with a cross join blocked it for
/// 13 s.
#[test]
fn an_expensive_policy_refuses_calls_and_delays_no_others() {
    let world = World::new(abide_reducers::modules);
    run(async {
        world.session("s1").await;
        let values = ["(VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))"; 9].join(", ");
        let condition = format!("(SELECT count(*) FROM {values}) > 0");
        let args = json!({"table": "sessions", "role": "app", "condition": condition});
        world.call("set_policy", args).await.unwrap();
        let app = Caller::with("ann", "app", BTreeSet::new(), Scope::new());
        let args = json!({"session_id": "s1", "role": "user", "content": "x"});
        let before = world.engine().metrics().writer_steps_total.get();
        let refusal = world.engine().call(&app, "append_message", &args, None).await.unwrap_err();
        assert_eq!(refusal.code.as_str(), "limit_exceeded", "{refusal}");
        let steps = world.engine().metrics().writer_steps_total.get() - before;
        assert!(steps <= 2 * limits::POLICY_STEPS, "{steps} steps");
        world.append_message("s1", "another caller is answered").await.unwrap();
    });
}
