//! Validation of arguments: the writer performs a few steps of it, and readers perform longer
//! validation with the same outcome. Arguments of 296 bytes and a recursive schema blocked the
//! writer, and every other caller, for 4.1 s.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use abide_engine::replay;
use abide_reducers::modules;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::work::{Verdict, WHOLE, Work};
use abide_schema::{Abort, Code, Context, Module, Refusal, limits, reducer};
use abide_tests::world::{World, run};
use serde_json::{Value as JsonValue, json};

/// Each attempt at some work: its number, its allowed steps, the thread.
static ATTEMPTS: Mutex<Vec<(i64, u64, String)>> = Mutex::new(Vec::new());

/// Work that takes many steps.
#[derive(Clone, Debug, PartialEq)]
struct Long(i64);

impl Work for Long {
    fn attempt(&self, steps: u64) -> Option<Verdict> {
        let name = thread::current().name().unwrap_or_default().to_owned();
        let mut attempts = ATTEMPTS.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.push((self.0, steps, name));
        let odd = || Refusal::new(Code::BadArguments, format!("{} is odd", self.0));
        (steps == WHOLE).then(|| if self.0 % 2 == 0 { Ok(()) } else { Err(odd()) })
    }
}

/// Accepts an even number after long work.
#[reducer]
pub(crate) fn take_even(ctx: &mut Context<'_>, number: i64) -> Result<i64, Abort> {
    ctx.settle(&Long(number))?;
    Ok(number)
}

static PASSES: AtomicUsize = AtomicUsize::new(0);

/// Needs further work whenever it runs.
#[reducer]
pub(crate) fn never_settled(ctx: &mut Context<'_>) -> Result<i64, Abort> {
    let pass = PASSES.fetch_add(2, Ordering::Relaxed);
    ctx.settle(&Long(pass as i64 + 1_000_000))?;
    Ok(0)
}

fn with_long_work() -> World {
    let mut world = World::new(modules);
    world.close();
    let mut all = modules();
    let module = Module::new("long").reducer(take_even::definition());
    all.push(module.reducer(never_settled::definition()));
    world.open_with(world.config(all));
    world
}

/// The attempts at the work of some numbers.
fn attempts(numbers: std::ops::Range<i64>) -> Vec<(i64, u64, String)> {
    let all = ATTEMPTS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter(|(number, ..)| numbers.contains(number)).cloned().collect()
}

#[test]
fn readers_do_the_work_that_is_too_long_for_the_writer() {
    run(async {
        let world = with_long_work();
        let done = world.call("take_even", json!({"number": 2})).await.unwrap();
        assert_eq!(done.result, "2");
        let refused = world.call("take_even", json!({"number": 3})).await.unwrap_err();
        assert_eq!(refused.to_string(), "3 is odd");
        let attempts = attempts(2..4);
        let of_writer = attempts.iter().filter(|(_, _, thread)| thread == "abide-writer");
        assert!(of_writer.clone().count() > 0, "{attempts:?}");
        assert!(of_writer.clone().all(|(_, steps, _)| *steps <= limits::WRITER_STEPS));
        let of_readers = attempts.iter().filter(|(_, steps, _)| *steps == WHOLE);
        assert_eq!(of_readers.clone().count(), 2, "{attempts:?}");
        assert!(of_readers.clone().all(|(_, _, thread)| thread.starts_with("abide-reader-")));
    });
}

/// The batch runs twice, however many of its calls need work, and is all or nothing.
#[test]
fn the_work_of_a_batch_is_done_at_once() {
    run(async {
        let world = with_long_work();
        let batch = |numbers: Vec<i64>| -> Vec<BatchCall> {
            let call = |number| json!({"number": number});
            numbers
                .into_iter()
                .map(|number| BatchCall { reducer: "take_even".to_owned(), args: call(number) })
                .collect()
        };
        let even: Vec<i64> = (100..200).step_by(2).collect();
        world.engine().batch(&Caller::local(), &batch(even), None).await.unwrap();
        assert_eq!(world.engine().metrics().deferred_total.get(), 1);
        assert_eq!(world.engine().durable_seq().0, 50);
        let wrong = world.engine().batch(&Caller::local(), &batch(vec![200, 201, 202]), None).await;
        let refused = wrong.unwrap_err().to_string();
        assert_eq!(refused, "call 2 of the batch: 201 is odd");
        assert_eq!(world.engine().durable_seq().0, 50);
    });
}

#[test]
fn a_call_is_not_deferred_forever() {
    run(async {
        let world = with_long_work();
        let refused = world.call("never_settled", json!({})).await.unwrap_err();
        assert_eq!(refused.code, Code::Overloaded);
        assert_eq!(world.engine().metrics().deferred_total.get(), limits::DEFERRALS as u64 + 1);
        world.call("take_even", json!({"number": 300})).await.unwrap();
    });
}

/// A schema of four alternatives that refer to the whole schema, and arguments with some levels.
fn recursive(levels: usize) -> (JsonValue, JsonValue) {
    let ways = ["a", "b", "c", "d"].map(
        |name| json!({"properties": {"not": {"$ref": "#/$defs/f"}, name: {"type": "string"}}}),
    );
    let schema = json!({"$defs": {"f": {"oneOf": ways}}, "$ref": "#/$defs/f"});
    let nested =
        (0..levels).fold(json!({"a": 1, "b": 1, "c": 1}), |inner, _| json!({"not": inner}));
    (schema, nested)
}

/// The deferred call has the same outcome as when the writer did all of the work, and so has a
/// replay.
#[test]
fn deferred_arguments_have_the_same_outcome() {
    run(async {
        let mut world = World::new(modules);
        world.session("s1").await;
        let (schema, _) = recursive(0);
        let tool = json!({"name": "find", "input_schema": schema});
        world.call("register_tool", tool).await.unwrap();
        let mut outcomes = Vec::new();
        for levels in [0, 1, 3, 4, 5, 6, 12, 36] {
            let before = world.engine().metrics().deferred_total.get();
            let args = json!({"call_id": format!("c{levels}"), "session_id": "s1",
                "tool_name": "find", "arguments": recursive(levels).1});
            let outcome = world.call("request_tool_call", args).await;
            let code = outcome.map_or_else(|refusal| refusal.code.as_str(), |_| "done");
            let deferred = world.engine().metrics().deferred_total.get() - before;
            outcomes.push(format!("{levels} levels: {code}, deferred {deferred}"));
        }
        expect_test::expect![[r#"
            0 levels: done, deferred 0
            1 levels: bad_arguments, deferred 0
            3 levels: bad_arguments, deferred 0
            4 levels: bad_arguments, deferred 1
            5 levels: bad_arguments, deferred 1
            6 levels: bad_arguments, deferred 1
            12 levels: limit_exceeded, deferred 1
            36 levels: limit_exceeded, deferred 1"#]]
        .assert_eq(&outcomes.join("\n"));
        world.close();
        let into = world.path().with_extension("again");
        replay(&world.path(), &into, modules(), None, &mut |_| {}).unwrap();
    });
}

/// Large schemas and patterns are compiled by readers, at registration and after the engine is
/// opened again.
#[test]
fn the_writer_compiles_small_schemas_only() {
    run(async {
        let world = World::new(modules);
        world.session("s1").await;
        let description = "d".repeat(limits::WRITER_SCHEMA_BYTES);
        let schemas = [
            ("small", json!({"type": "object"}), 0),
            ("large", json!({"description": description}), 1),
            ("pattern", json!({"properties": {"id": {"pattern": "^[a-z]{1,64}$"}}}), 1),
            ("names", json!({"patternProperties": {"^[a-z]{1,64}$": true}}), 1),
        ];
        for (name, schema, deferred) in schemas {
            let before = world.engine().metrics().deferred_total.get();
            let tool = json!({"name": name, "input_schema": schema});
            world.call("register_tool", tool).await.unwrap();
            let now = world.engine().metrics().deferred_total.get();
            assert_eq!(now - before, deferred, "{name}");
        }
    });
}

/// `serde_json` reads an object whose first member has a certain name as the JSON in it. Behind a member that sorts before it, the
/// name passed the parser, was stored, and made the row unreadable: its session refused every call, and a shared worker failed at it
/// for all tenants.
#[test]
fn a_name_that_makes_rows_unreadable_is_refused() {
    let world = World::new(modules);
    let caller = Caller::new("local");
    run(world.engine().call(&caller, "create_session", &json!({"agent": "a", "id": "s"}), None))
        .expect("a session");
    let reserved = abide_schema::integers::RESERVED_NAME;
    for metadata in
        [json!({reserved: "1"}), json!({"!": 2, reserved: "1"}), json!({"a": [{reserved: "["}]})]
    {
        let args = json!({"session_id": "s", "metadata": metadata});
        let refused = run(world.engine().call(&caller, "update_session", &args, None));
        let refusal = refused.expect_err("it is refused");
        assert_eq!(refusal.code, Code::BadArguments, "{refusal}");
        assert!(refusal.detail.contains(reserved), "{refusal}");
    }
    let args = json!({"session_id": "s", "role": "user", "content": reserved});
    run(world.engine().call(&caller, "append_message", &args, None)).expect("a text may have it");
}
