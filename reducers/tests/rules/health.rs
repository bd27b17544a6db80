//! The measurements of runs, and what the watchdog did about them.

use abide_tests::world::{World, run};
use expect_test::expect;
use serde_json::json;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# record_health
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
record_health@admin {"id":"mine","fencing_token":"$seq","iteration":1,"health":{"tokens":9,"token_drift":9,"messages":2,"new_messages":1,"tool_messages":0,"over_tooling":0,"context_rot":0,"repeats":0,"signals":["token_drift"],"unhealthy":1},"action":"warn"}
"#;

#[test]
fn the_first_measurement_of_an_answer_stands() {
    check(
        r#"
        register_agent name=lead definition={}
        create_session agent=lead id=s1 scope={"tenant":"a"}
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        record_health id=r1 fencing_token=4 iteration=1 health={"tokens":9,"token_drift":9,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":["over_tooling"],"unhealthy":1} action=warn
        record_health id=r1 fencing_token=4 iteration=1 health={"tokens":9,"token_drift":9,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":[],"unhealthy":0}
        record_health id=r1 fencing_token=4 iteration=2 health={"tokens":9,"token_drift":0,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":["over_tooling"],"unhealthy":2} action=warn
        record_health id=r1 fencing_token=3 iteration=3 health={"tokens":9,"token_drift":0,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":[],"unhealthy":2} action=stop
        record_health id=r1 fencing_token=4 iteration=3 health={"tokens":-1,"token_drift":0,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":[],"unhealthy":2} action=stop
        record_health id=r1 fencing_token=4 iteration=3 health={"tokens":1,"token_drift":0,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":-1,"context_rot":0,"repeats":1,"signals":["mood"],"unhealthy":2} action=stop
        record_health id=r1 fencing_token=4 iteration=3 health={"tokens":1,"token_drift":0,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0,"context_rot":0,"repeats":1,"signals":["mood"],"unhealthy":2} action=stop
        sql SELECT run_id, iteration, tokens, token_drift, over_tooling, signals, action FROM run_health
        sql SELECT action, count FROM watchdog_actions
        replay
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created, scope: {"tenant":"a"}}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {}
            seq 5 again {}
            seq 6 {}
            refused lease_lost: run r1 is driven by d under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            refused bad_arguments: tokens must be between 0 and 4294967295, not -1
            refused bad_arguments: over_tooling must be between 0 and 1000000000, not -1
            refused bad_arguments: unknown signal mood (hint: the signals are token_drift, over_tooling, context_rot, repeats)
            ("r1", 1, 9, 9, 0.75, "[\"over_tooling\"]", "warn") ("r1", 2, 9, 0, 0.75, "[\"over_tooling\"]", "warn")
            ("warn", 2)
            the same up to 6
        "#]],
    );
}

/// The watchdog knows only after an answer whether there is enough to compact.
#[test]
fn a_compaction_is_recorded_when_it_begins() {
    check(
        r#"
        register_agent name=lead definition={}
        create_session agent=lead id=s1 scope={"tenant":"a"}
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        record_health id=r1 fencing_token=4 iteration=1 health={"tokens":9,"token_drift":9,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":["over_tooling"],"unhealthy":1}
        record_health id=r1 fencing_token=4 iteration=1 health={"tokens":1,"token_drift":9,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":["over_tooling"],"unhealthy":1} action=warn
        record_health id=r1 fencing_token=4 iteration=1 health={"tokens":1,"token_drift":9,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":["over_tooling"],"unhealthy":1} action=compact
        record_health id=r1 fencing_token=4 iteration=1 health={"tokens":1,"token_drift":9,"messages":4,"new_messages":4,"tool_messages":3,"over_tooling":0.75,"context_rot":0,"repeats":1,"signals":["over_tooling"],"unhealthy":1} action=compact
        sql SELECT iteration, tokens, action FROM run_health
        sql SELECT action, count FROM watchdog_actions
        replay
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created, scope: {"tenant":"a"}}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {}
            seq 5 again {}
            seq 6 {}
            seq 6 again {}
            (1, 9, "compact")
            ("compact", 1)
            the same up to 6
        "#]],
    );
}

#[test]
fn only_the_last_thousand_answers_of_a_run_have_rows() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let health = json!({"tokens": 1, "token_drift": 0, "messages": 1, "new_messages": 1,
            "tool_messages": 0, "over_tooling": 0, "context_rot": 0, "repeats": 0, "signals": [],
            "unhealthy": 0});
        let agent = json!({"name": "support", "definition": {}});
        world.call("register_agent", agent).await.unwrap();
        world.session("s1").await;
        world.call("start_run", json!({"session_id": "s1", "id": "r1"})).await.unwrap();
        let claim = json!({"id": "r1", "driver": "d", "lease_ms": 60_000});
        let token = world.call("claim_run", claim).await.unwrap().seq.0;
        for iteration in 1..=1_003 {
            let record = json!({"id": "r1", "fencing_token": token, "iteration": iteration,
                "health": health});
            world.call("record_health", record).await.unwrap();
        }
        let rows = world.rows("SELECT count(*), min(iteration) FROM run_health").await;
        assert_eq!(*rows[0], [1_000.into(), 4.into()]);
    });
}
