//! Durable turns per second through the SDK, embedded and over WebSocket, compared with the floor.

pub(crate) mod fixture;
pub(crate) mod verification;

use std::path::{Path, PathBuf};

use abide_engine::Engine;
use clap::Args;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::disk::{Probe, Written};
use crate::payload::Payload;
use crate::record::{EngineFigures, Record, TurnsRecord};
use crate::statistics::percentile;
use crate::{cpu, disk, floor, report};
use fixture::{Fixture, Request, Way};
use verification::verify;

/// Options of `turns`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of rounds; each contender runs once per round. Medians are reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Number of turns per run with 64 sessions, of all sessions together; a single session takes an eighth of them.
    #[arg(long, default_value_t = 16_000)]
    turns: usize,
    /// Only these contenders.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Way>,
    /// Numbers of sessions that take turns concurrently.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64])]
    sessions: Vec<usize>,
    /// Print one line of JSON for each run instead of the table.
    #[arg(long)]
    json: bool,
    /// The folder for the files; it should be on a disk, not in memory.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

/// Bytes of one turn's payload.
pub(crate) const TURN_BYTES: usize = 300 + 200 + 500 + 400;

/// The means that makes an answer durable.
const DURABILITY: &str = "journal, fdatasync before the answer";

pub(crate) fn run(options: &Options) {
    let every = [Way::Embedded, Way::Websocket, Way::WebsocketBatch];
    let ways = if options.only.is_empty() { &every[..] } else { &options.only[..] };
    let runtime = Runtime::new().expect("a tokio runtime");
    let mut records = Vec::new();
    for round in 1..=options.rounds {
        for way in ways {
            for sessions in &options.sessions {
                eprintln!("round {round}: {}, {sessions} sessions", way.name());
                let turns = turns_of_each(options.turns, *sessions);
                let run = Run { way: *way, sessions: *sessions, turns };
                let record = Record::Turns(run.measure(&runtime, &options.dir, round));
                if options.json {
                    record.print();
                }
                records.push(record);
            }
        }
    }
    if !options.json {
        println!("{}", report::turns_table(&records));
    }
}

/// Turns of each session, so that runs with few sessions, which are slower, take about as long as others.
pub(crate) fn turns_of_each(all: usize, sessions: usize) -> usize {
    let share = (sessions as f64 / 64.0).sqrt();
    ((all as f64 * share) as usize / sessions).max(1)
}

/// One run.
struct Run {
    way: Way,
    sessions: usize,
    /// Turns of each session.
    turns: usize,
}

impl Run {
    fn measure(&self, runtime: &Runtime, dir: &Path, round: usize) -> TurnsRecord {
        let dir = TempDir::new_in(dir).expect("a folder for the files");
        let turns = self.sessions * self.turns;
        let payload = (turns * TURN_BYTES) as f64;
        let probe_us = disk::sync_us(dir.path());
        let before = Written::read(dir.path());
        let measured = runtime.block_on(self.ours(dir.path()));
        let written = Written::read(dir.path()).since(before);
        verify(&measured.path, measured.events, turns);
        let groups = measured.counted.calls / measured.counted.commits;
        let path = dir.path().join("floor.db");
        let floor = floor::run(&path, self.sessions, self.turns, groups, &Payload::new());
        let us = |share| percentile(measured.requests.iter().map(|it| it.us), share);
        let stored = std::fs::metadata(&measured.path).map_or(0, |file| file.len());
        TurnsRecord {
            round,
            contender: self.way.name().to_owned(),
            sessions: self.sessions,
            turns,
            turns_per_second: turns as f64 / measured.seconds,
            probe_us,
            probe_during_us: Some(measured.probe_us),
            durability: DURABILITY.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            request_p50_us: Some(us(0.5)),
            request_p99_us: Some(us(0.99)),
            stored_per_payload_byte: Some(stored as f64 / payload),
            engine: Some(EngineFigures {
                calls_per_group: groups,
                sync_us: measured.counted.sync_us / measured.counted.syncs,
                without_sync_p50_us: (self.sessions == 1).then(|| {
                    percentile(measured.requests.iter().map(|it| it.us - it.sync_us), 0.5)
                }),
                writer_cpu_us: measured.writer_s * 1e6 / measured.counted.calls,
                written_per_payload_byte: written.map(|bytes| bytes / payload),
                floor_turns_per_second: floor.turns_per_second,
                floor_cpu_us: floor.cpu_us,
                floor_stored_per_payload_byte: floor.file_bytes as f64 / payload,
            }),
        }
    }

    async fn ours(&self, dir: &Path) -> Measured {
        let fixture = Fixture::open(dir, self.way, self.sessions).await;
        let before = Counted::read(&fixture.engine);
        let writer_before = cpu::thread_seconds("abide-writer");
        let probe = Probe::start(dir);
        let (requests, seconds) = fixture.take_turns(self.turns).await;
        let probe_us = probe.stop();
        let writer_s = cpu::thread_seconds("abide-writer") - writer_before;
        let counted = Counted::read(&fixture.engine).since(&before);
        let path = fixture.path.clone();
        let events = fixture.events_after(self.turns);
        fixture.close().await;
        Measured { requests, seconds, probe_us, counted, writer_s, path, events }
    }
}

/// The result of a run of the engine.
struct Measured {
    requests: Vec<Request>,
    seconds: f64,
    probe_us: f64,
    counted: Counted,
    /// Processor time of the writer thread. It is comparable even if other processes load the machine.
    writer_s: f64,
    path: PathBuf,
    events: usize,
}

/// The engine's counters.
struct Counted {
    calls: f64,
    commits: f64,
    syncs: f64,
    sync_us: f64,
}

impl Counted {
    fn read(engine: &Engine) -> Counted {
        let metrics = engine.metrics();
        Counted {
            calls: metrics.calls_total.get() as f64,
            commits: metrics.commits_total.get() as f64,
            syncs: metrics.sync_seconds.count() as f64,
            sync_us: metrics.sync_seconds.sum().as_secs_f64() * 1e6,
        }
    }

    fn since(self, before: &Counted) -> Counted {
        Counted {
            calls: self.calls - before.calls,
            commits: self.commits - before.commits,
            syncs: self.syncs - before.syncs,
            sync_us: self.sync_us - before.sync_us,
        }
    }
}
