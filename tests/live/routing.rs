//! The router's counted work: an unrelated binding costs a commit nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use abide_live::{Binding, BindingId, Changes, Planner, Router, Sql as _, WorkCounters};
use abide_schema::share::ShareKey;
use abide_schema::{Caller, Code, Row, Scope, Value};
use serde_json::{Map, json};

use crate::barrier::BarrierFixture;
use crate::world::World;

fn work_with(others: i64) -> WorkCounters {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let mut attached = Vec::new();
    for n in 0..others + 1 {
        let params = Map::from_iter([("v".to_owned(), json!(n))]);
        let binding = planner.bind("SELECT * FROM r WHERE a = :v AND b = 1", &params);
        attached.push(
            router
                .attach(&binding.expect("the query can be live"), &ShareKey::Operator)
                .expect("the router has a free slot"),
        );
    }
    let before = router.counters();
    let row: Row = [1, 0, 1].map(Value::Integer).into_iter().chain(vec![Value::Null; 3]).collect();
    let mut changes = Changes::new();
    changes.push("r", None, Some(row));
    assert_eq!(router.commit(&changes, &mut world.db).len(), 1);
    let after = router.counters();
    attached.into_iter().for_each(|id| router.detach(id, &ShareKey::Operator));
    assert!(router.is_empty());
    assert!(router.commit(&changes, &mut world.db).is_empty());
    WorkCounters {
        rows_routed: after.rows_routed - before.rows_routed,
        probes: after.probes - before.probes,
        matches: after.matches - before.matches,
        bindings_probed: after.bindings_probed - before.bindings_probed,
        spent: after.spent - before.spent,
        deltas_made: after.deltas_made - before.deltas_made,
    }
}

#[test]
fn a_hundred_thousand_other_bindings_cost_nothing() {
    assert_eq!(work_with(0), work_with(100_000));
    assert_eq!(work_with(0).spent.statements, 3, "clear, insert, evaluate");
}

/// A commit of 450 rows of one session made 900,000 entries for the 2,000 queries of that session, and filtered each, before the
/// time of live queries was first looked at: writes of other tenants waited for seconds. The class: work of the number of changes
/// times the number of queries.
#[test]
fn queries_with_one_key_share_the_changes_that_have_it() {
    const QUERIES: i64 = 200;
    const ROWS: i64 = 50;
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    for n in 0..QUERIES {
        let binding = bind(&planner, &format!("SELECT a, {n} AS x FROM r WHERE a = 1"), json!({}));
        router.attach(&binding, &ShareKey::Operator).expect("the router has a free slot");
    }
    let mut changes = Changes::new();
    for id in 0..ROWS {
        let cells = [id, 1, 1].map(Value::Integer).into_iter();
        changes.push("r", None, Some(cells.chain(vec![Value::Null; 3]).collect()));
    }
    let deltas = router.commit(&changes, &mut world.db);
    assert_eq!(deltas.len() as i64, QUERIES);
    assert_eq!(router.counters().matches as i64, ROWS + QUERIES);
}

/// Each row found each of the queries with a range around it: a batch of 450 rows made 900,000 lists for 2,000 queries with
/// `created_at > ?`, before the time of live queries was first looked at. The class is the same.
#[test]
fn queries_with_ranges_share_the_changes_in_them() {
    const QUERIES: i64 = 200;
    const ROWS: i64 = 50;
    let mut fixture = BarrierFixture::new();
    let ours = fixture.principal_of("ours", false);
    for principal in [None, Some(&ours)] {
        let mut router = Router::new(Arc::clone(&fixture.catalog));
        for n in 0..QUERIES {
            let sql = [
                "SELECT id FROM messages WHERE body > ?",
                "SELECT id FROM messages WHERE body BETWEEN ? AND 'z'",
                "SELECT id FROM messages WHERE body GLOB 'm*' AND body <> ?",
                "SELECT id FROM messages WHERE body < 'c' OR body >= ?",
            ][n as usize % 4];
            let params = Map::from_iter([("1".to_owned(), json!(format!("l{n:03}")))]);
            let binding = match principal {
                Some(principal) => fixture.planner.bind_within(sql, &params, principal),
                None => fixture.planner.bind(sql, &params),
            };
            let binding = binding.unwrap_or_else(|refusal| panic!("{refusal}: {sql}"));
            router.attach(&binding, &tenant("ours")).expect("a range needs no slot");
        }
        let mut changes = Changes::new();
        for n in 0..ROWS {
            let row = [format!("new {n}"), "s1".to_owned(), format!("m{n:02}")];
            changes.push("messages", None, Some(row.map(Value::from).into_iter().collect()));
        }
        let deltas = router.commit(&changes, &mut fixture.db);
        assert_eq!(deltas.len() as i64, QUERIES);
        // Of each of two columns: the rows that match, those that are visible, and their places among these.
        let most = QUERIES + 3 * 2 * ROWS;
        let matches = router.counters().matches as i64;
        assert!(matches <= most, "{matches} for {QUERIES} queries and {ROWS} rows");
    }
}

#[test]
fn bindings_without_a_key_are_limited() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let mut bind = |n: usize| {
        let params = Map::from_iter([("v".to_owned(), json!(n))]);
        let binding = planner.bind("SELECT * FROM r WHERE abs(a) = :v", &params);
        router.attach(&binding.expect("the query can be live"), &ShareKey::Operator)
    };
    let cap = abide_schema::limits::RESIDUAL_BINDINGS_PER_TABLE;
    let last = (0..cap)
        .map(&mut bind)
        .last()
        .expect("there is a cap")
        .expect("the router has a free slot");
    assert_eq!(bind(cap).expect_err("the cap is reached").code, Code::LimitExceeded);
    assert_eq!(bind(cap - 1), Ok(last), "an equal binding needs no further slot");
    router.detach(last, &ShareKey::Operator);
    router.detach(last, &ShareKey::Operator);
    let params = Map::from_iter([("v".to_owned(), json!(cap))]);
    let binding =
        planner.bind("SELECT * FROM r WHERE abs(a) = :v", &params).expect("the query can be live");
    router.attach(&binding, &ShareKey::Operator).expect("a slot is free again");
}

fn bind(planner: &Planner, sql: &str, params: serde_json::Value) -> Binding {
    let params = params.as_object().expect("an object").clone();
    planner.bind(sql, &params).expect("the query can be live")
}

fn inserted(a: i64, c: &str) -> Changes {
    let mut row = vec![Value::Integer(1), Value::Integer(a), Value::Null, Value::from(c)];
    row.resize(6, Value::Null);
    let mut changes = Changes::new();
    changes.push("r", None, Some(Row::from(row)));
    changes
}

/// The share of a tenant, of the limit of queries without a key.
fn tenant(name: &str) -> ShareKey {
    let scope = Scope::from([("tenant".to_owned(), name.to_owned())]);
    ShareKey::for_caller(&Caller::with("ann", "worker", BTreeSet::new(), scope))
}

/// Attaches queries of a caller until one is refused: their number, and the refusal.
fn attach_all(
    router: &mut Router,
    by: &ShareKey,
    bindings: impl Iterator<Item = Binding>,
) -> (Vec<BindingId>, Option<Code>) {
    let mut attached = Vec::new();
    for binding in bindings {
        match router.attach(&binding, by) {
            Ok(id) => attached.push(id),
            Err(refusal) => return (attached, Some(refusal.code)),
        }
    }
    (attached, None)
}

/// One caller attached as many queries without a key as the router has room for, and all live queries of other
/// tenants, of the operator and of the server itself were refused.
#[test]
fn one_tenant_leaves_room_for_others_and_for_the_operator() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let queries = |of: usize| {
        let planner = &planner;
        let sql = "SELECT * FROM r WHERE abs(a) = :v";
        (0..).map(move |n: usize| bind(planner, sql, json!({"v": of * 10_000 + n})))
    };
    let cap = abide_schema::limits::RESIDUAL_BINDINGS_PER_TABLE;
    let (own, why) = attach_all(&mut router, &tenant("b"), queries(0));
    assert_eq!((own.len(), why), (cap / 4, Some(Code::LimitExceeded)), "its share");
    let (more, why) = attach_all(&mut router, &tenant("b"), queries(0).take(cap / 4));
    assert_eq!((more.len(), why), (cap / 4, None), "equal queries are no further ones");
    more.into_iter().for_each(|id| router.detach(id, &tenant("b")));
    for other in ["c", "d"].into_iter().enumerate() {
        let (number, why) = attach_all(&mut router, &tenant(other.1), queries(other.0 + 1));
        assert_eq!((number.len(), why), (cap / 4, Some(Code::LimitExceeded)));
    }
    let (last, why) = attach_all(&mut router, &tenant("a"), queries(3));
    assert_eq!((last.len(), why), (cap / 8, Some(Code::Overloaded)), "others caused it");
    let (operator, why) = attach_all(&mut router, &ShareKey::Operator, queries(4));
    assert_eq!((operator.len(), why), (cap / 8, Some(Code::Overloaded)), "the reserve");
    own.into_iter().for_each(|id| router.detach(id, &tenant("b")));
    let (more, why) = attach_all(&mut router, &tenant("a"), queries(5));
    assert_eq!((last.len() + more.len(), why), (cap / 4, Some(Code::LimitExceeded)));
}

/// Lookups and key sets were counted for all callers together too. A query that has neither is checked at every change, and
/// these are limited.
#[test]
fn one_tenant_leaves_lookups_and_key_sets_for_others() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let conditions = |n: usize| " AND r.a <> 1".repeat(n);
    let lookup = |n: usize| {
        let sql = "SELECT p.g, r.c FROM p JOIN r ON r.id = p.r_id WHERE r.c = :c";
        bind(&planner, &format!("{sql}{}", conditions(n)), json!({"c": "x"}))
    };
    let (own, why) = attach_all(&mut router, &tenant("b"), (0..80).map(lookup));
    assert_eq!((own.len(), why, router.residual()), (80, None, 80 - 16));
    let (other, why) = attach_all(&mut router, &tenant("a"), (80..96).map(lookup));
    assert_eq!((other.len(), why, router.residual()), (16, None, 80 - 16), "it has lookups");
    other.into_iter().for_each(|id| router.detach(id, &tenant("a")));
    own.into_iter().for_each(|id| router.detach(id, &tenant("b")));
    assert_eq!((router.residual(), router.len()), (0, 0));

    let columns = ["id", "a", "b", "c", "x", "z"];
    let key_set = |n: usize| {
        let terms: Vec<String> = (0..6)
            .filter(|bit| n >> bit & 1 == 1)
            .map(|bit| columns[bit])
            .map(|column| format!("{column} = 1"))
            .collect();
        bind(&planner, &format!("SELECT id FROM r WHERE {}", terms.join(" AND ")), json!({}))
    };
    let (own, why) = attach_all(&mut router, &tenant("b"), (1..40).map(key_set));
    assert_eq!((own.len(), why), (39, None));
    let of_own = router.residual();
    assert!(of_own > 0, "it has used its key sets");
    let (other, why) = attach_all(&mut router, &tenant("a"), (48..60).map(key_set));
    assert_eq!((other.len(), why, router.residual()), (12, None, of_own), "it has key sets");
}

/// A restricted caller could attach any number of queries without a key where a lookup would have found unrestricted
/// ones, and each change that it saw was compared with all of them. What others attach must not count for it.
#[test]
fn the_queries_of_a_restricted_caller_without_a_key_are_limited() {
    let fixture = BarrierFixture::new();
    let mut router = Router::new(Arc::clone(&fixture.catalog));
    let principals = ["a", "b"].map(|name| fixture.principal_of(name, false));
    let queries = |of: usize| {
        let planner = &fixture.planner;
        let principal = &principals[of];
        (0..).map(move |n: usize| {
            let sql = "SELECT id FROM messages WHERE instr(body, :v)";
            let params = json!({"v": n.to_string()});
            let params = params.as_object().expect("an object");
            planner.bind_within(sql, params, principal).expect("the query can be live")
        })
    };
    let share = abide_schema::limits::RESIDUAL_BINDINGS_PER_TABLE / 4;
    for (of, name) in ["a", "b"].into_iter().enumerate() {
        let (own, why) = attach_all(&mut router, &tenant(name), queries(of));
        assert_eq!((own.len(), why), (share, Some(Code::LimitExceeded)), "{name}");
        router.detach(own[0], &tenant(name));
        let (more, _) = attach_all(&mut router, &tenant(name), queries(of));
        assert_eq!(more.len(), share, "equal queries are no further ones, and one has ended");
        more.into_iter().for_each(|id| router.detach(id, &tenant(name)));
    }
}

/// A query that two tenants have is counted for the other one when the first one ends it.
#[test]
fn a_shared_query_is_counted_once() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let sql = "SELECT * FROM r WHERE abs(a) = :v";
    let shared = bind(&planner, sql, json!({"v": -1}));
    let queries = || (0..).map(|n: usize| bind(&planner, sql, json!({"v": n})));
    let first = router.attach(&shared, &tenant("a")).expect("there is room");
    assert_eq!(router.attach(&shared, &tenant("b")), Ok(first));
    let cap = abide_schema::limits::RESIDUAL_BINDINGS_PER_TABLE;
    let (own, _) = attach_all(&mut router, &tenant("b"), queries());
    assert_eq!(own.len(), cap / 4, "the shared one is counted for the other tenant");
    router.detach(first, &tenant("a"));
    router.detach(own[0], &tenant("b"));
    let (more, _) = attach_all(&mut router, &tenant("b"), queries().take(1));
    assert!(more.is_empty(), "it is counted now");
    router.detach(first, &tenant("b"));
    let (more, _) = attach_all(&mut router, &tenant("b"), queries().take(1));
    assert_eq!(more.len(), 1);
}

#[test]
fn a_change_finds_exactly_the_ranges_that_contain_it() {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let mut ranges: Vec<(BindingId, i64, i64)> = Vec::new();
    for n in 0..3_000_i64 {
        let low = n * 7_919 % 1_000;
        let high = n * 7_919 % 1_000 + n * 31 % 50;
        let sql = "SELECT id FROM r WHERE a BETWEEN :low AND :high";
        let binding = bind(&planner, sql, json!({"low": low, "high": high}));
        ranges.push((
            router.attach(&binding, &ShareKey::Operator).expect("ranges need no slot"),
            low,
            high,
        ));
    }
    for detached in ranges.split_off(1_500) {
        router.detach(detached.0, &ShareKey::Operator);
    }
    for a in [-1, 0, 3, 500, 777, 1_049, 2_000] {
        let before = router.counters().bindings_probed;
        let deltas = router.commit(&inserted(a, ""), &mut world.db);
        let found: Vec<BindingId> = deltas.into_iter().map(|(id, _)| id).collect();
        let mut wanted: Vec<BindingId> = ranges
            .iter()
            .filter(|(_, low, high)| (low..=high).contains(&&a))
            .map(|(id, _, _)| *id)
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        assert_eq!(found, wanted, "a = {a}");
        assert_eq!(
            router.counters().bindings_probed - before,
            wanted.len() as u64,
            "no false positives"
        );
    }
}

#[test]
fn prefixes_and_open_ranges_are_not_residual() {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    for n in 0..5_000 {
        let like =
            bind(&planner, "SELECT id FROM r WHERE c LIKE ?", json!({"1": format!("P{n}x%")}));
        router.attach(&like, &ShareKey::Operator).expect("a prefix needs no slot");
        let above = bind(&planner, "SELECT id FROM r WHERE a > ?", json!({"1": n + 100}));
        router.attach(&above, &ShareKey::Operator).expect("a range needs no slot");
    }
    assert_eq!(router.commit(&inserted(103, "p42X!"), &mut world.db).len(), 1 + 3);
    // `>` is looked up as `>=`; SQLite rejects the boundary value.
    assert_eq!(router.counters().bindings_probed, 1 + 4);
}

#[test]
fn a_parameter_on_another_table_is_looked_up_once_for_all() {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let sql = "SELECT p.g, p.n, r.c FROM p JOIN r ON r.id = p.r_id WHERE r.c = :c";
    let ids: Vec<BindingId> = (0..3_000)
        .map(|n| {
            let binding = bind(&planner, sql, json!({"c": format!("agent {n}")}));
            router.attach(&binding, &ShareKey::Operator).expect("a lookup needs no slot")
        })
        .collect();
    let r = [Value::Integer(7), Value::Null, Value::Null, Value::from("agent 42")];
    let r: Row = r.into_iter().chain([Value::Null, Value::Null]).collect();
    let p: Row = vec![Value::from("g"), Value::Integer(1), Value::Null, Value::Integer(7)].into();
    world.db.run("INSERT INTO r VALUES (?, ?, ?, ?, ?, ?)", &r, &mut |_| {}).expect("inserted");
    world.db.run("INSERT INTO p VALUES (?, ?, ?, ?)", &p, &mut |_| {}).expect("inserted");
    let mut changes = Changes::new();
    changes.push("p", None, Some(p));
    let before = router.counters();
    let deltas = router.commit(&changes, &mut world.db);
    assert_eq!(deltas.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[42]]);
    let after = router.counters();
    assert_eq!(after.bindings_probed - before.bindings_probed, 1);
    assert_eq!(
        (after.spent - before.spent).statements,
        5,
        "three for the temporary table, lookup, join"
    );
    ids.into_iter().for_each(|id| router.detach(id, &ShareKey::Operator));
    assert!(router.commit(&changes, &mut world.db).is_empty());
    assert_eq!(router.counters().spent, after.spent);
}
