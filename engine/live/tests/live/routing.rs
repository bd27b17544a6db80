//! The router's work, counted: what does not concern a commit costs it nothing.

use std::sync::Arc;

use abide_live::{Changes, Planner, Router, Work};
use abide_schema::{Code, Row, Value};
use serde_json::{Map, json};

use crate::world::World;

fn work_with(others: i64) -> Work {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let mut attached = Vec::new();
    for n in 0..others + 1 {
        let params = Map::from_iter([("v".to_owned(), json!(n))]);
        let binding = planner.bind("SELECT * FROM r WHERE a = :v AND b = 1", &params);
        attached.push(router.attach(&binding.expect("it can be live")).expect("there is room"));
    }
    let before = router.counters();
    let row: Row = [1, 0, 1].map(Value::Integer).into_iter().chain(vec![Value::Null; 3]).collect();
    let mut changes = Changes::new();
    changes.push("r", None, Some(row));
    assert_eq!(router.commit(&changes, &mut world.db).len(), 1);
    let after = router.counters();
    attached.into_iter().for_each(|id| router.detach(id));
    assert!(router.is_empty());
    assert!(router.commit(&changes, &mut world.db).is_empty());
    Work {
        rows_routed: after.rows_routed - before.rows_routed,
        probes: after.probes - before.probes,
        bindings_probed: after.bindings_probed - before.bindings_probed,
        statements_run: after.statements_run - before.statements_run,
        deltas_made: after.deltas_made - before.deltas_made,
    }
}

#[test]
fn a_hundred_thousand_others_cost_nothing() {
    assert_eq!(work_with(0), work_with(100_000));
    assert_eq!(work_with(0).statements_run, 3, "clear, insert, evaluate");
}

#[test]
fn bindings_without_a_key_are_capped() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    let mut bind = |n: usize| {
        let params = Map::from_iter([("v".to_owned(), json!(n))]);
        let binding = planner.bind("SELECT * FROM r WHERE abs(a) = :v", &params);
        router.attach(&binding.expect("it can be live"))
    };
    let cap = abide_schema::limits::RESIDUAL_BINDINGS_PER_TABLE;
    let last = (0..cap).map(&mut bind).last().expect("there is a cap").expect("there is room");
    assert_eq!(bind(cap).expect_err("the cap is reached").code, Code::LimitExceeded);
    assert_eq!(bind(cap - 1), Ok(last), "one more of the same costs nothing");
    router.detach(last);
    router.detach(last);
    let params = Map::from_iter([("v".to_owned(), json!(cap))]);
    let binding =
        planner.bind("SELECT * FROM r WHERE abs(a) = :v", &params).expect("it can be live");
    router.attach(&binding).expect("there is room again");
}
