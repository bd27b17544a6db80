//! The work of a turn, counted: bytes in the journal, in undo images and in the file, steps of SQLite, pages of its WAL,
//! and allocations. Times are noisy; counts are not, so a change that stores or copies something twice fails here.

use std::alloc::System;
use std::ops::Range;
use std::process::Command;
use std::{env, fs};

use abide_schema::reducer::Caller;
use abide_tests::world::{World, run};
use expect_test::expect;
use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts the allocations of the process.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The variable of the process that counts allocations: other tests would count, too.
const ALONE: &str = "ABIDE_COUNTS_ALLOCATIONS";

/// Turns before the first count, when all pages of small tables exist.
const FIRST: usize = 50;

/// Turns that are counted.
const TURNS: usize = 200;

/// Bytes of a page in the WAL, with its header.
const FRAME: u64 = 4_096 + 24;

/// Steps of SQLite's virtual machine that a turn of four calls may take: 864 were counted. On a busy machine more groups are committed apart.
const STEPS: u64 = 1_000;

/// Pages that a commit may write: 20.3 were counted. A new page also changes the map of pages (`auto_vacuum`).
const PAGES: u64 = 22;

/// Allocations that a turn of four calls may need, the test's arguments included: 441 were counted.
const ALLOCATIONS: usize = 450;

/// Bytes of a turn's texts: as in `bench/src/turns.rs`.
const PAYLOAD: usize = 300 + 200 + 500 + 400;

/// A user message, a tool call that is claimed at once, its result, and the answer.
async fn turn(world: &World, nth: usize) {
    let text = |bytes: usize| "Where is my parcel? ".repeat(bytes / 20);
    let call_id = format!("s1/{nth:06}");
    let caller = Caller::new("local");
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

/// A file with a session and a tool, and the first turns.
fn prepared() -> World {
    let world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    run(world.call("register_tool", json!({"name": "lookup"}))).unwrap();
    take(&world, 0..FIRST);
    world
}

fn take(world: &World, turns: Range<usize>) {
    run(async {
        for nth in turns {
            turn(world, nth).await;
        }
    });
}

#[test]
fn a_turn_takes_few_bytes() {
    let mut world = prepared();
    let stored = |world: &mut World| {
        world.close();
        let sql = "SELECT sum(length(images)) FROM change_log";
        let images: i64 = world.raw().query_row(sql, [], |row| row.get(0)).unwrap();
        let file = fs::metadata(world.path()).unwrap().len();
        world.open();
        [images.unsigned_abs(), file]
    };
    let before = stored(&mut world);
    let journal_before = world.engine().metrics().journal_bytes.get();
    take(&world, FIRST..FIRST + TURNS);
    let journal = (world.engine().metrics().journal_bytes.get() - journal_before) as f64;
    let after = stored(&mut world);
    let [images, file] = [after[0] - before[0], after[1] - before[1]].map(|bytes| bytes as f64);
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
        journal: 3.8 bytes per payload byte
        undo images: 82 bytes per turn
        file: 4.8 bytes per payload byte
    "#]]
    .assert_eq(&counted);
}

#[test]
fn a_turn_takes_few_steps_of_sqlite() {
    let world = prepared();
    let before = world.engine().metrics().writer_steps_total.get();
    take(&world, FIRST..FIRST + TURNS);
    let steps = world.engine().metrics().writer_steps_total.get() - before;
    assert!(steps <= STEPS * TURNS as u64, "{} steps in a turn", steps / TURNS as u64);
}

/// One session's turns, with at least one commit of SQLite for each. A commit writes each page that it changed once, so more
/// turns in a commit write fewer pages for each.
#[test]
fn a_turn_writes_few_pages() {
    let world = prepared();
    let wal = world.path().with_extension("db-wal");
    let written = || fs::metadata(&wal).unwrap().len() / FRAME;
    let commits = || world.engine().metrics().row_commits_total.get();
    let query = || run(world.rows("SELECT 1 FROM sessions"));
    query();
    let pages_before = written();
    let commits_before = commits();
    for nth in FIRST..FIRST + TURNS {
        take(&world, nth..nth + 1);
        query();
    }
    let pages = written() - pages_before;
    let commits = commits() - commits_before;
    assert!(commits >= TURNS as u64, "{commits} commits");
    assert!(pages <= PAGES * commits, "{pages} pages in {commits} commits");
}

/// Of all threads of the process, with the client's part. The limit is a few above what was counted, because idle threads
/// allocate now and then.
#[test]
fn a_turn_allocates_seldom() {
    if env::var_os(ALONE).is_none() {
        let mut alone = Command::new(env::current_exe().unwrap());
        alone.args(["--exact", "turn_work::a_turn_allocates_seldom", "--nocapture"]);
        let counted = alone.env(ALONE, "1").output().unwrap();
        assert!(counted.status.success(), "{}", String::from_utf8_lossy(&counted.stderr));
        return;
    }
    let world = prepared();
    let region = Region::new(ALLOCATOR);
    take(&world, FIRST..FIRST + TURNS);
    let allocations = region.change().allocations / TURNS;
    assert!(allocations <= ALLOCATIONS, "{allocations} allocations in a turn");
}
