//! The bytes that a turn takes: in the journal, in undo images, and in the file. Times are noisy; bytes are not, so a change
//! that stores something twice fails here.

use std::fs;

use abide_schema::reducer::Caller;
use expect_test::expect;
use serde_json::json;

use crate::world::{World, run};

/// Turns before the first count, when all pages of small tables exist.
const FIRST: usize = 50;

/// Turns that are counted.
const TURNS: usize = 200;

/// Bytes of a turn's texts: as in `bench/src/turns.rs`.
const PAYLOAD: usize = 300 + 200 + 500 + 400;

/// A user message, a tool call that is claimed at once, its result, and the answer.
async fn turn(world: &World, nth: usize) {
    let text = |bytes: usize| "Where is my parcel? ".repeat(bytes / 20);
    let (call_id, caller) = (format!("s1/{nth:06}"), Caller::new("local"));
    let mut token = 0;
    for step in 0..4 {
        let (reducer, args) = match step {
            0 => (
                "append_message",
                json!({"session_id": "s1", "role": "user", "content": text(300)}),
            ),
            1 => (
                "request_tool_call",
                json!({"call_id": call_id, "session_id": "s1", "tool_name": "lookup",
                    "arguments": {"order": text(180)}, "claim_lease_ms": 30_000}),
            ),
            2 => (
                "complete_tool_call",
                json!({"call_id": call_id, "fencing_token": token, "result": {"found": text(480)}}),
            ),
            _ => (
                "append_message",
                json!({"session_id": "s1", "role": "assistant", "content": text(400)}),
            ),
        };
        let id = format!("{nth:018}-{step:017}");
        let done = world.engine().call(&caller, reducer, &args, Some(&id)).await.unwrap();
        token = done.seq.0;
    }
}

#[test]
fn a_turn_takes_few_bytes() {
    let mut world = World::new();
    run(world.session("s1"));
    run(world.call("register_tool", json!({"name": "lookup"}))).unwrap();
    let count = |world: &mut World, turns: std::ops::Range<usize>| {
        let before = world.engine().metrics().journal_bytes.get();
        run(async {
            for nth in turns {
                turn(world, nth).await;
            }
        });
        let journal = world.engine().metrics().journal_bytes.get() - before;
        world.close();
        let sql = "SELECT sum(length(images)) FROM change_log";
        let images: i64 = world.raw().query_row(sql, [], |row| row.get(0)).unwrap();
        let file = fs::metadata(world.path()).unwrap().len();
        world.open();
        [journal, images.unsigned_abs(), file]
    };
    let before = count(&mut world, 0..FIRST);
    let after = count(&mut world, FIRST..FIRST + TURNS);
    let [journal, images, file] =
        [after[0], after[1] - before[1], after[2] - before[2]].map(|bytes| bytes as f64);
    let turns = TURNS as f64;
    let payload = turns * PAYLOAD as f64;
    let counted = format!(
        "journal: {:.1} bytes per payload byte\nundo images: {:.0} bytes per turn\n\
         file: {:.1} bytes per payload byte\n",
        journal / payload,
        images / turns,
        file / payload
    );
    expect![[r#"
        journal: 3.4 bytes per payload byte
        undo images: 82 bytes per turn
        file: 4.8 bytes per payload byte
    "#]]
    .assert_eq(&counted);
}
