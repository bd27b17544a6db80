//! A buggy reducer that touches a row so that it violates a constraint.
//!
//! A touched row is written later: by the next read of many rows, which can be that of another call, or at the end of the
//! group. That read was once refused instead of the call that had touched the row, and the touched rows of acknowledged
//! calls, also those of other rows, were in the change log and in no table.

use abide_engine::{replay, verify_file};
use abide_schema::{Abort, Code, Context, Module, Row, Value, reducer, table};
use abide_tests::world::{World, run};
use serde_json::json;

/// A number of points, which is not negative.
#[table(name = "tallies", constraint = "CHECK (points >= 0)")]
pub(crate) struct Tally {
    /// Its name.
    #[column(key)]
    pub(crate) name: String,
    /// The points.
    pub(crate) points: i64,
}

/// Starts a tally.
#[reducer]
pub(crate) fn start_tally(ctx: &mut Context<'_>, name: String) -> Result<i64, Abort> {
    ctx.insert(Tally { name, points: 0 }).map(|tally| tally.points)
}

/// Adds points without a check.
#[reducer]
pub(crate) fn add_points(ctx: &mut Context<'_>, name: String, points: i64) -> Result<i64, Abort> {
    let tally = ctx.get::<Tally>(&name)?.expect("the test starts it first");
    let sum = tally.points + points;
    ctx.touch(Tally { points: sum, ..tally })?;
    Ok(sum)
}

/// Counts the tallies.
#[reducer]
pub(crate) fn count_tallies(ctx: &mut Context<'_>) -> Result<i64, Abort> {
    ctx.count::<Tally>("", &[])
}

/// Counts the tallies, and ignores an error.
#[reducer]
pub(crate) fn try_to_count_tallies(ctx: &mut Context<'_>) -> Result<i64, Abort> {
    Ok(ctx.count::<Tally>("", &[]).unwrap_or(-1))
}

fn modules() -> Vec<Module> {
    let tallies = Module::new("tallies").table::<Tally>().reducer(start_tally::definition());
    let tallies = tallies.reducer(add_points::definition());
    let tallies = tallies.reducer(count_tallies::definition());
    vec![tallies.reducer(try_to_count_tallies::definition())]
}

#[test]
fn a_rejected_touch_affects_its_own_call_only() {
    for count in ["count_tallies", "try_to_count_tallies"] {
        run(async {
            let mut world = World::new(modules);
            for name in ["a", "b"] {
                world.call("start_tally", json!({"name": name})).await.unwrap();
            }
            // The calls of a round wait together before the writer looks.
            let rounds = 20;
            let calls = (0..rounds).flat_map(|_| {
                [
                    world.call("add_points", json!({"name": "a", "points": -1})),
                    world.call("add_points", json!({"name": "b", "points": 1})),
                    world.call(count, json!({})),
                ]
            });
            let answers = futures_util::future::join_all(calls).await;
            for answers in answers.chunks(3) {
                let [rejected, accepted, counted] = answers else { unreachable!("of three") };
                let refusal = rejected.as_ref().expect_err("the row violates the constraint");
                assert_eq!(refusal.code, Code::Conflict);
                assert_eq!(refusal.detail, "CHECK constraint failed: points >= 0");
                assert!(accepted.is_ok(), "{accepted:?}");
                assert_eq!(counted.as_ref().map(|done| done.result.as_str()), Ok("2"));
            }
            let rows = world.rows("SELECT name, points FROM tallies ORDER BY name").await;
            let expected = [("a", 0), ("b", rounds)]
                .map(|(name, points)| Row::from([Value::from(name), Value::Integer(points)]));
            assert_eq!(rows, expected);
            world.close();
            verify_file(&world.path(), modules(), &mut |_| {}).unwrap();
            let again = world.path().with_extension("again");
            replay(&world.path(), &again, modules(), None, &mut |_| {}).unwrap();
        });
    }
}
