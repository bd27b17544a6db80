//! Retention of changes: kept changes can be resumed from and queried, forgotten ones cause a
//! `resync_required`, and pruning never blocks a commit for long.

use std::time::Duration;

use abide_engine::{Retention, Start};
use abide_schema::reducer::Caller;
use abide_schema::{Abort, Code, Context, Json, Module, Seq, Value, reducer, table};
use abide_tests::world::{World, run};
use serde_json::{Map, json};

use crate::replica::{Client, Replica};
use crate::traffic::{Random, Traffic, for_seeds};

const MESSAGES: &str = "SELECT id, content FROM agent_state ORDER BY id";

/// The maximum that one commit prunes.
const SLICE: i64 = 2_000;

fn keeping(events: u64) -> World {
    let mut world = World::new(abide_reducers::modules);
    world.retention = Retention { events: Some(events), age: None };
    world.reopen();
    world
}

async fn floor(world: &World) -> i64 {
    // The change log is pruned after SQLite commits.
    world.commit_rows().await;
    world.engine().metrics().change_log_oldest_seq.get().cast_signed()
}

/// A client's result at the head.
async fn now(world: &World) -> Replica {
    let mut client = Client::new(world.engine().connect(&Caller::local()));
    client.subscribe("q", MESSAGES, &Map::new()).await.unwrap();
    client.unsubscribe("q").unwrap()
}

/// Resumes; returns the refusal, if any, and the number of messages held.
async fn resumed(world: &World, kept: &Replica) -> (Option<String>, usize) {
    let mut client = Client::new(world.engine().connect(&Caller::local()));
    client.resume("q", kept.clone()).await.unwrap();
    let fresh = world.rows(MESSAGES).await;
    assert_eq!(client.replicas["q"].visible_rows(), client.replicas["q"].format_rows(&fresh));
    let refusal = client.refusals.pop().map(|(_, refusal)| {
        assert_eq!(refusal.code, Code::ResyncRequired);
        refusal.detail
    });
    (refusal, client.replicas["q"].rows.len())
}

/// The number of messages at a past state, or the error.
async fn count_after(world: &World, seq: i64) -> Result<usize, String> {
    let once = world.engine().query(&Caller::local(), MESSAGES, &Map::new(), Some(Seq(seq))).await;
    let mut client = Client::new(world.engine().connect(&Caller::local()));
    let start = Start::AsOf(Seq(seq));
    let live = client.subscribe_from("q", MESSAGES, &Map::new(), start).await;
    match (once, live) {
        (Ok(once), Ok(())) => {
            // By now the replica has applied the later changes.
            let fresh = world.rows(MESSAGES).await;
            assert_eq!(
                client.replicas["q"].visible_rows(),
                client.replicas["q"].format_rows(&fresh)
            );
            Ok(once.rows.len())
        }
        (Err(once), Err(live)) => {
            assert_eq!(once, live, "refused with the same message");
            assert_eq!(once.code, Code::HistoryExpired);
            Err(once.detail)
        }
        (once, live) => panic!("once: {once:?}, live: {live:?}"),
    }
}

/// A row of a user's module with a long text.
#[table(name = "papers")]
pub(crate) struct Paper {
    /// Its number.
    #[column(key)]
    pub(crate) id: i64,
    /// Its text.
    pub(crate) text: String,
    /// The event that last changed it.
    pub(crate) seq: Seq,
}

const PAPERS: i64 = 4;
const PAPER_BYTES: usize = 6 << 20;

/// Writes papers that are together longer than one value may be.
#[reducer]
pub(crate) fn write_papers(ctx: &mut Context<'_>) -> Result<Json, Abort> {
    let seq = ctx.seq;
    for _ in 0..PAPERS {
        ctx.insert(Paper { id: 0, text: "x".repeat(PAPER_BYTES), seq })?;
    }
    Ok(Json::from(json!(PAPERS)))
}

/// Deletes the papers.
#[reducer]
pub(crate) fn shred_papers(ctx: &mut Context<'_>) -> Result<Json, Abort> {
    for id in 1..=PAPERS {
        ctx.delete::<Paper>(id)?;
    }
    Ok(Json::from(json!(PAPERS)))
}

/// The former rows of a commit are one value, which was stored whatever its length. Of more than 17 MiB, no query of a
/// past state could read it, and no subscription could resume.
#[test]
fn the_former_rows_of_a_commit_are_longer_than_other_values() {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    let mut modules = abide_reducers::modules();
    let archive = Module::new("archive").table::<Paper>();
    let archive = archive.reducer(write_papers::definition()).reducer(shred_papers::definition());
    modules.push(archive);
    world.open_with(world.config(modules));
    run(async {
        let lengths = "SELECT length(text) FROM papers";
        let written = world.call("write_papers", json!({})).await.unwrap().seq;
        world.call("shred_papers", json!({})).await.unwrap();
        assert!(world.rows(lengths).await.is_empty());
        let past = world.rows_as_of(lengths, Some(written)).await;
        let bytes = Value::Integer(PAPER_BYTES as i64);
        assert_eq!(past.iter().filter(|row| row[0] == bytes).count(), PAPERS as usize);
    });
}

#[test]
fn below_at_and_above_the_floor() {
    run(async {
        let mut world = keeping(8);
        world.session("s1").await;
        let mut held = vec![now(&world).await];
        for nth in 3..=20 {
            world.append_message("s1", &nth.to_string()).await.unwrap();
            held.push(now(&world).await);
        }
        for again in ["at once", "after a restart", "after a kill"] {
            assert_eq!(floor(&world).await, 12, "{again}");
            for kept in &held {
                let from = kept.seq;
                let (refusal, rows) = resumed(&world, kept).await;
                let gone = format!("changes are kept from seq 12 on, not from {from}");
                assert_eq!(refusal, (from < Seq(12)).then_some(gone), "{again}");
                assert_eq!(rows, 19);
            }
            assert_eq!(
                count_after(&world, 11).await,
                Err("changes are kept from seq 12 on, not from 11".into())
            );
            assert_eq!(count_after(&world, 12).await, Ok(11));
            assert_eq!(count_after(&world, 13).await, Ok(12));
            assert_eq!(count_after(&world, 20).await, Ok(19));
            match again {
                "at once" => world.reopen(),
                _ => {
                    world.drop_engine();
                    world.open();
                }
            }
        }
        // A longer retention from here on does not restore forgotten changes.
        world.retention = Retention { events: Some(100), age: None };
        world.reopen();
        world.append_message("s1", "and on").await.unwrap();
        assert_eq!(floor(&world).await, 12);
        assert!(count_after(&world, 11).await.is_err());
    });
}

#[test]
fn retention_of_nothing_and_of_everything() {
    run(async {
        let mut world = keeping(0);
        world.session("s1").await;
        let kept = now(&world).await;
        assert_eq!(resumed(&world, &kept).await, (None, 1), "at the head nothing is missing");
        world.append_message("s1", "more").await.unwrap();
        assert_eq!(floor(&world).await, 3);
        assert!(resumed(&world, &kept).await.0.is_some());
        assert_eq!(count_after(&world, 3).await, Ok(2));
        world.close();
        let left: i64 = (world.raw())
            .query_row("SELECT count(*) FROM change_log", [], |row| row.get(0))
            .unwrap();
        assert_eq!(left, 0);

        let mut world = World::new(abide_reducers::modules);
        world.retention = Retention { events: None, age: None };
        world.reopen();
        world.session("s1").await;
        world.clock.advance_ms(1_000 * 86_400_000);
        world.append_message("s1", "much later").await.unwrap();
        assert_eq!((floor(&world).await, count_after(&world, 0).await), (0, Ok(0)));
    });
}

/// After a shorter retention is set, every commit prunes a part of a long history.
#[test]
fn a_long_history_is_pruned_in_slices() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        world.session("s1").await;
        for _ in 0..5 {
            let call = abide_schema::wire::BatchCall {
                reducer: "append_message".to_owned(),
                args: serde_json::json!({"session_id": "s1", "role": "user", "content": "x"}),
            };
            let caller = Caller::new("local");
            world.engine().batch(&caller, &vec![call; 1_000], None).await.unwrap();
        }
        assert_eq!(floor(&world).await, 0);
        world.retention = Retention { events: Some(10), age: None };
        world.reopen();
        let mut floors = vec![floor(&world).await];
        while floors.last() != Some(&(world.engine().durable_seq().0 - 10)) {
            world.append_message("s1", "and on").await.unwrap();
            floors.push(floor(&world).await);
        }
        assert_eq!(floors, [0, 2_000, 4_000, 4_995]);
        assert!(floors.windows(2).all(|pair| pair[1] - pair[0] <= SLICE));
        assert_eq!(count_after(&world, 5_003).await, Ok(5_002));
        // The floor is in the middle of a batch: the state before the batch is still available.
        assert_eq!(count_after(&world, 4_995).await, Ok(4_001));
    });
}

/// Two thousand events can have gigabytes, and SQLite reads what it deletes: every caller waited. The class: a loop over
/// stored rows whose number is limited, and whose size is not.
#[test]
fn large_changes_are_pruned_in_slices_of_bounded_bytes() {
    const BYTES: usize = 4 << 20;
    run(async {
        let mut world = World::new(abide_reducers::modules);
        for nth in 0..14 {
            let data = format!("{nth}{}", "x".repeat(BYTES));
            let puts = serde_json::json!([{"key": "k", "data": data}]);
            world
                .call("write_entries", serde_json::json!({"collection_id": "box", "puts": puts}))
                .await
                .unwrap();
        }
        world.session("s1").await;
        world.retention = Retention { events: Some(2), age: None };
        world.reopen();
        let mut floors = vec![floor(&world).await];
        while *floors.last().unwrap() < 14 {
            world.append_message("s1", "and on").await.unwrap();
            floors.push(floor(&world).await);
        }
        // The first event has no old entry; then each commit prunes some five.
        assert!(floors.windows(2).all(|pair| pair[1] - pair[0] <= 6), "{floors:?}");
        assert!(floors.windows(2).any(|pair| pair[1] - pair[0] > 1), "{floors:?}");
    });
}

#[test]
fn old_changes_are_pruned() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        let day = 86_400_000;
        world.retention = Retention { events: None, age: Some(Duration::from_millis(7 * day)) };
        world.reopen();
        let advance = |days: u64| world.clock.advance_ms((days * day).cast_signed());
        world.session("s1").await;
        advance(3);
        world.append_message("s1", "on the third day").await.unwrap();
        advance(3);
        world.append_message("s1", "on the sixth").await.unwrap();
        assert_eq!(
            (floor(&world).await, count_after(&world, 0).await),
            (0, Ok(0)),
            "all changes are recent"
        );
        advance(2);
        assert_eq!(floor(&world).await, 0, "without commits nothing is pruned");
        world.append_message("s1", "on the eighth").await.unwrap();
        assert_eq!(floor(&world).await, 2, "the changes of the first day");
        assert!(count_after(&world, 1).await.is_err());
        assert_eq!(count_after(&world, 2).await, Ok(1));
        advance(30);
        world.append_message("s1", "a month later").await.unwrap();
        assert_eq!(floor(&world).await, 5, "all but the last");
    });
}

/// Both limits apply: the one that is reached first counts.
#[test]
fn the_nearer_of_two_limits() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        let age = Some(Duration::from_secs(60));
        world.retention = Retention { events: Some(4), age };
        world.reopen();
        world.session("s1").await;
        for _ in 0..4 {
            world.append_message("s1", "at once").await.unwrap();
        }
        assert_eq!(floor(&world).await, 2, "six events at once: too many");
        world.clock.advance_ms(120_000);
        world.append_message("s1", "late").await.unwrap();
        assert_eq!(floor(&world).await, 6, "too old");
    });
}

/// Clients that return after random times, some of them too late.
#[test]
fn returning_clients_hold_the_query() {
    for_seeds("retention::returning_clients", 0..6, |seed| {
        run(async {
            let world = keeping(5);
            let mut traffic = Traffic::new(seed);
            let mut random = Random::new(!seed);
            let mut away: Vec<Replica> = Vec::new();
            let mut refetched = 0;
            let mut deltas = 0;
            let queries = [
                "SELECT * FROM agent_state",
                "SELECT status, count(*) FROM sessions GROUP BY status",
                "SELECT id, title FROM sessions ORDER BY updated_at DESC, id LIMIT 4",
                "SELECT s.id, m.id AS message FROM sessions s JOIN agent_state m
                    ON m.session_id = s.id",
            ];
            for _ in 0..400 {
                let _ = traffic.step(&world).await;
                let mut client = Client::new(world.engine().connect(&Caller::local()));
                match random.below(8) {
                    0 => {
                        let sql = random.pick(&queries);
                        client.subscribe("q", sql, &Map::new()).await.unwrap();
                        away.push(client.unsubscribe("q").unwrap());
                    }
                    1 if !away.is_empty() => {
                        let back = away.swap_remove(random.below(away.len()));
                        client.resume("q", back).await.unwrap();
                        let replica = &client.replicas["q"];
                        let fresh = world.rows(&replica.sql).await;
                        let fresh = replica.format_rows(&fresh);
                        assert_eq!(replica.visible_rows(), fresh, "{}", replica.sql);
                        match client.refusals.len() {
                            0 => deltas += 1,
                            _ => refetched += 1,
                        }
                    }
                    _ => {}
                }
            }
            assert!(deltas > 5 && refetched > 5, "{deltas} deltas, {refetched} refetches");
        });
    });
}
