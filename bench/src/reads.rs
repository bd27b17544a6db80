//! The loss of write throughput under one-shot queries: 64 sessions take turns, while queries of their last messages
//! arrive at an even rate.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abide_client::Abide;
use abide_engine::Engine;
use clap::Args;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::disk::Probe;
use crate::record::{ReadsRecord, Record};
use crate::statistics::percentile;
use crate::turns::fixture::{Fixture, Way, id_of};
use crate::turns::{turns_of_each, verification::verify};
use crate::{disk, report};

/// Options of `reads`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of rounds; each rate runs once per round.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Queries per second, one run each. Losses are relative to the first.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 10, 100, 1_000])]
    rates: Vec<u32>,
    /// Number of sessions that take turns.
    #[arg(long, default_value_t = 64)]
    sessions: usize,
    /// Number of turns per run, of all sessions together.
    #[arg(long, default_value_t = 16_000)]
    turns: usize,
    /// Print one line of JSON for each run instead of the table.
    #[arg(long)]
    json: bool,
    /// The folder for the files; it should be on a disk, not in memory.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

const LAST_MESSAGES: &str =
    "SELECT role, content FROM agent_state WHERE session_id = :sid ORDER BY id DESC LIMIT 10";

pub(crate) fn run(options: &Options) {
    let runtime = Runtime::new().expect("a tokio runtime");
    let mut records = Vec::new();
    for round in 1..=options.rounds {
        for rate in &options.rates {
            eprintln!("round {round}: {rate} reads/s");
            let record = Record::Reads(measure(&runtime, options, round, *rate));
            if options.json {
                record.print();
            }
            records.push(record);
        }
    }
    if !options.json {
        println!("{}", report::reads_table(&records));
    }
}

fn measure(runtime: &Runtime, options: &Options, round: usize, rate: u32) -> ReadsRecord {
    let dir = TempDir::new_in(&options.dir).expect("a folder for the files");
    let probe_us = disk::sync_us(dir.path());
    let (sessions, turns) = (options.sessions, turns_of_each(options.turns, options.sessions));
    let (path, events, seconds, read_us, probe_during_us) = runtime.block_on(async {
        let fixture = Fixture::open(dir.path(), Way::Embedded, sessions).await;
        let stop = Arc::new(AtomicBool::new(false));
        let reader = tokio::spawn(read(fixture.engine.clone(), sessions, rate, Arc::clone(&stop)));
        let probe = Probe::start(dir.path());
        let (_, seconds) = fixture.take_turns(turns).await;
        let probe_during_us = probe.stop();
        stop.store(true, Ordering::Relaxed);
        let read_us = reader.await.expect("the reader");
        let path = fixture.path.clone();
        let events = fixture.events_after(turns);
        fixture.close().await;
        (path, events, seconds, read_us, probe_during_us)
    });
    verify(&path, events, sessions * turns);
    let us = |share| (!read_us.is_empty()).then(|| percentile(read_us.iter().copied(), share));
    ReadsRecord {
        round,
        sessions,
        reads_due_per_second: f64::from(rate),
        reads_per_second: read_us.len() as f64 / seconds,
        turns_per_second: (sessions * turns) as f64 / seconds,
        probe_us,
        probe_during_us: Some(probe_during_us),
        read_p50_us: us(0.5),
        read_p99_us: us(0.99),
    }
}

/// Queries the sessions in turn at an even rate, without waiting for earlier answers. Returns the time of each query
/// that was answered before the end.
async fn read(engine: Engine, sessions: usize, rate: u32, stop: Arc<AtomicBool>) -> Vec<f64> {
    if rate == 0 {
        return Vec::new();
    }
    let abide = Abide::embed(engine);
    let mut due = tokio::time::interval(Duration::from_secs(1) / rate);
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut queries = JoinSet::new();
    let mut read_us = Vec::new();
    for query in 0.. {
        due.tick().await;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let query = abide.sql(LAST_MESSAGES).param("sid", id_of(query % sessions));
        queries.spawn(async move {
            let started = Instant::now();
            query.rows().await.expect("the query is answered");
            started.elapsed().as_secs_f64() * 1e6
        });
        while let Some(done) = queries.try_join_next() {
            read_us.push(done.expect("a query"));
        }
    }
    let _late = queries.join_all().await;
    read_us
}
