//! Snapshots that keep the WAL from being reset: those of long queries end, those of other processes do not.

use abide_engine::QueryResult;
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use abide_tests::world::{World, run};
use serde_json::Map;
use tokio::task::JoinHandle;

/// Runs until a limit of queries ends it.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
     SELECT max(i + (SELECT count(*) FROM sessions)) FROM n";

/// The WAL is long from 256 KiB on.
const CHECKPOINT_BYTES: u64 = 64 << 10;

/// With a session.
async fn world() -> World {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    let mut config = world.config(abide_reducers::modules());
    config.tuning.checkpoint_bytes = CHECKPOINT_BYTES;
    world.open_with(config);
    world.session("s1").await;
    world
}

/// Writes about 16 KiB.
async fn write(world: &World) {
    world.append_message("s1", &"x".repeat(8 << 10)).await.unwrap();
}

/// Writes until the WAL does not become longer, because SQLite starts it again from its beginning.
async fn write_until_wal_restarts(world: &World) {
    let before = wal_bytes(world);
    let mut bytes = 0;
    let mut constant = 0;
    while constant < 1_000 {
        write(world).await;
        let now = wal_bytes(world);
        constant = if now == bytes { constant + 1 } else { 0 };
        bytes = now;
        assert!(bytes - before < 256 << 20, "the WAL grows from {before} to {bytes} bytes");
    }
}

fn begin(world: &World) -> JoinHandle<Result<QueryResult, Refusal>> {
    let engine = world.engine().clone();
    tokio::spawn(async move { engine.query(&Caller::local(), ENDLESS, &Map::new(), None).await })
}

fn wal_bytes(world: &World) -> u64 {
    std::fs::metadata(world.path().with_extension("db-wal")).unwrap().len()
}

/// Queries of seconds that overlapped kept the WAL and the journal from being used again: half a gigabyte in 30 s, and a
/// recovery of 9 s.
#[test]
fn overlapping_long_queries_end_when_the_wal_is_long() {
    run(async {
        let world = world().await;
        let first = begin(&world);
        write(&world).await;
        let second = begin(&world);
        while !(first.is_finished() && second.is_finished()) {
            write(&world).await;
        }
        for query in [first, second] {
            let refusal = query.await.unwrap().unwrap_err();
            assert_eq!(refusal.code, Code::Overloaded, "{refusal}");
            assert!(refusal.detail.contains("write-ahead log"), "{refusal}");
        }
        write_until_wal_restarts(&world).await;
        assert!(world.engine().metrics().draining_checkpoints_total.get() >= 1);
    });
}

/// A snapshot of another process cannot be ended. Queries wait for a checkpoint less and less often.
#[test]
fn a_snapshot_of_another_process_costs_few_waits() {
    run(async {
        let world = world().await;
        world.commit_rows().await;
        let other = rusqlite::Connection::open(world.path()).unwrap();
        other.execute_batch("BEGIN; SELECT * FROM sessions").unwrap();
        let reads = "SELECT count(*) FROM sessions";
        while wal_bytes(&world) < 1_000 * CHECKPOINT_BYTES {
            write(&world).await;
            world.rows(reads).await;
        }
        let drains = world.engine().metrics().draining_checkpoints_total.get();
        assert!((1..=9).contains(&drains), "{drains} waits, although the size doubles eight times");
        // Once it ends, the WAL restarts.
        other.execute_batch("COMMIT").unwrap();
        write_until_wal_restarts(&world).await;
    });
}
