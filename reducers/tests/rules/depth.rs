//! The depth of JSON: whatever a call accepts can be read again, within everything that is put around it.

use abide_engine::replay;
use abide_schema::integers::MAX_DEPTH;
use abide_schema::{Caller, Code, limits};
use abide_tests::world::run;
use serde_json::{Value as JsonValue, json};

use crate::snapshots::{call, file, paused};

/// A value of this many levels.
fn nested(levels: usize) -> JsonValue {
    (1..levels).fold(json!([]), |inner, level| match level % 2 {
        0 => json!([inner]),
        _ => json!({ "a": inner }),
    })
}

/// Arguments with a value of this many levels in a place that takes any JSON, and the maximum there.
fn cases(value: &JsonValue) -> Vec<(&'static str, JsonValue, usize)> {
    let record = MAX_DEPTH + limits::RECORD_DEPTH;
    vec![
        (
            "append_message",
            json!({"session_id": "s1", "role": "user", "content": "x", "data": value}),
            record,
        ),
        ("create_session", json!({"agent": "clerk", "metadata": {"a": value}}), MAX_DEPTH - 1),
        (
            "request_tool_call",
            json!({"call_id": "c1", "session_id": "s2", "tool_name": "look", "arguments": value}),
            MAX_DEPTH,
        ),
        (
            "decide_approval",
            json!({"call_id": "none", "decision": "approve", "approved_arguments": value}),
            MAX_DEPTH,
        ),
        (
            "set_timer",
            json!({"session_id": "s1", "in_ms": 60_000, "message": "x", "data": value}),
            MAX_DEPTH,
        ),
        (
            "settle_tool_call",
            json!({"call_id": "none", "outcome": "succeeded", "result": value}),
            MAX_DEPTH,
        ),
    ]
}

/// Regression: values of up to 127 levels were accepted, and written within other values. What had more levels then could not be
/// read: the file could not be replayed, an exported run was lost, and reducers panicked.
#[test]
fn what_is_accepted_at_any_depth_can_be_exported_imported_and_replayed() {
    run(async {
        let mut world = file().await;
        let local = Caller::local();
        paused(&world, &local).await;
        call(&world, &local, "create_session", json!({"agent": "clerk", "id": "s2"}))
            .await
            .unwrap();
        for levels in (1..=300).filter(|it| it % 23 == 1 || (60..=130).contains(it)) {
            for (reducer, mut args, max) in cases(&nested(levels)) {
                if reducer == "request_tool_call" {
                    args["call_id"] = json!(format!("c{levels}"));
                }
                let outcome = call(&world, &local, reducer, args).await;
                let is_too_deep =
                    outcome.as_ref().is_err_and(|refusal| refusal.code == Code::LimitExceeded);
                assert_eq!(is_too_deep, levels > max, "{reducer} {levels}: {outcome:?}");
                if let Err(refusal) = &outcome
                    && is_too_deep
                {
                    assert!(refusal.detail.contains("levels deep"), "{refusal}");
                    assert!(refusal.hint.is_some(), "{refusal}");
                }
            }
        }
        let exported = call(&world, &local, "export_run", json!({"id": "r1"})).await.unwrap();
        let there = file().await;
        call(&there, &local, "import_run", json!({"snapshot": exported})).await.unwrap();
        let again = call(&world, &local, "export_run", json!({"id": "r1"})).await.unwrap();
        assert_eq!(again, exported);
        let deep = json!({"snapshot": nested(200)});
        let refusal = call(&there, &local, "import_run", deep).await.unwrap_err();
        assert_eq!(refusal.code, Code::LimitExceeded, "{refusal}");
        world.close();
        let into = world.path().with_file_name("again.db");
        replay(&world.path(), &into, abide_reducers::modules(), None, &mut |_| {}).unwrap();
    });
}

/// A file from before the limit has deeper values. It is read and replayed, and a run whose snapshot no file could import is not
/// moved away.
#[test]
fn deeper_values_of_an_older_file_are_read() {
    run(async {
        let mut world = file().await;
        let local = Caller::local();
        paused(&world, &local).await;
        world.close();
        let mut modules = abide_reducers::modules();
        for module in &mut modules {
            module.reducers.iter_mut().for_each(|definition| definition.depth = 500);
        }
        world.open_with(world.config(modules));
        for levels in [120, 127, 128, 300, 450] {
            let data = nested(levels);
            let args = json!({"session_id": "s1", "role": "user", "content": "x", "data": data});
            call(&world, &local, "append_message", args).await.unwrap();
        }
        world.reopen();
        let refusal = call(&world, &local, "export_run", json!({"id": "r1"})).await.unwrap_err();
        assert_eq!(refusal.code, Code::LimitExceeded, "{refusal}");
        let run = world.rows("SELECT status FROM runs WHERE id = 'r1'").await;
        assert_eq!(run[0][0].to_json(), json!("waiting"));
        world.close();
        let into = world.path().with_file_name("again.db");
        replay(&world.path(), &into, abide_reducers::modules(), None, &mut |_| {}).unwrap();
    });
}
