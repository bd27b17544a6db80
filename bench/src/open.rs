//! The time to open a file after SIGKILL under load. A child process writes turns with checkpoints held back, until its
//! journal has the wanted size, and is killed. Then the file is opened twice: as the kill left it, and a copy whose WAL
//! is empty, because a loss of power can take the WAL, which is not synced: the whole journal is then applied.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abide_engine::{Config, Engine, EngineThread, FaultPoint, StepScheduler};
use clap::Args;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::record::{OpenRecord, Record};
use crate::turns::fixture::{FILE, Fixture, Way};
use crate::{disk, report};

/// Options of `open`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Sizes of the journal in MiB, one kill each.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 32, 64])]
    journal_mib: Vec<u64>,
    /// Print one line of JSON for each opening instead of the table.
    #[arg(long)]
    json: bool,
    /// The folder for the files; it should be on a disk, not in memory.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

/// Options of the child process.
#[derive(Args, Debug)]
pub(crate) struct LoadOptions {
    /// The folder for the file.
    #[arg(long)]
    dir: PathBuf,
    /// Bytes of journal after which the process reports its state.
    #[arg(long)]
    journal_bytes: u64,
}

/// The child's report.
#[derive(Debug, Serialize, Deserialize)]
struct Loaded {
    journal_bytes: u64,
    /// The last event that was acknowledged before the report.
    acknowledged: i64,
}

/// Sessions that take turns until the kill.
const SESSIONS: usize = 64;

pub(crate) fn run(options: &Options) {
    let mut records = Vec::new();
    for round in 1..=options.rounds {
        for mib in &options.journal_mib {
            eprintln!("round {round}: opening with {mib} MiB of journal");
            for record in measure(options, round, mib << 20).map(Record::Open) {
                if options.json {
                    record.print();
                }
                records.push(record);
            }
        }
    }
    if !options.json {
        println!("{}", report::open_table(&records));
    }
}

fn measure(options: &Options, round: usize, journal_bytes: u64) -> [OpenRecord; 2] {
    let dir = TempDir::new_in(&options.dir).expect("a folder for the files");
    let killed = dir.path().join("killed");
    let without_wal = dir.path().join("without-wal");
    std::fs::create_dir(&killed).expect("a folder");
    let loaded = load_and_kill(&killed, journal_bytes);
    copy(&killed, &without_wal);
    let wal = without_wal.join(format!("{FILE}-wal"));
    std::fs::File::create(wal).expect("the WAL of the copy can be emptied");
    [(killed, false), (without_wal, true)].map(|(folder, wal_lost)| {
        let probe_us = disk::sync_us(dir.path());
        let (open_ms, events) = open(&folder.join(FILE));
        let Loaded { journal_bytes, acknowledged } = loaded;
        assert!(events >= acknowledged, "{acknowledged} acknowledged, {events} found");
        OpenRecord { round, journal_bytes, wal_lost, probe_us, open_ms, events, acknowledged }
    })
}

/// Opens a file, closes it and verifies it. Returns the milliseconds of the opening, and the number of events.
fn open(path: &Path) -> (f64, i64) {
    let runtime = Runtime::new().expect("a tokio runtime");
    let started = Instant::now();
    let engine =
        Engine::open(path, Config::new(abide_reducers::modules())).expect("the file opens");
    // Returns when the writer takes calls.
    runtime.block_on(engine.fire_due()).expect("the writer answers");
    let open_ms = started.elapsed().as_secs_f64() * 1e3;
    engine.close();
    let verified = abide_engine::verify_file(path, abide_reducers::modules(), &mut |_| {})
        .expect("the file verifies");
    (open_ms, verified.events.0)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("the folder exists").flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("the file is copied");
    }
}

/// Runs the child process until it reports, and kills it at that moment.
fn load_and_kill(dir: &Path, journal_bytes: u64) -> Loaded {
    let program = std::env::current_exe().expect("the program has a path");
    let mut child = Command::new(program)
        .arg("open-load")
        .arg("--dir")
        .arg(dir)
        .arg(format!("--journal-bytes={journal_bytes}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map(Killed)
        .expect("the program starts again");
    let output = child.0.stdout.take().expect("its output is a pipe");
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).expect("its output can be read");
    drop(child);
    serde_json::from_str(&line).expect("it reports its state")
}

/// A child process that gets SIGKILL when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It fails only if the process has ended already, which the missing report shows.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child process: takes turns until it is killed.
pub(crate) fn load(options: &LoadOptions) {
    // The database file itself has the tables, so that it can be opened without its WAL.
    let path = options.dir.join(FILE);
    let engine = Engine::open(path, Config::new(abide_reducers::modules()));
    engine.expect("the engine opens").close();
    let mut config = Config::new(abide_reducers::modules());
    config.scheduler = Arc::new(HeldCheckpoints);
    Runtime::new().expect("a tokio runtime").block_on(async {
        let fixture = Fixture::open_with(&options.dir, Way::Embedded, SESSIONS, config).await;
        let engine = fixture.engine.clone();
        let acknowledged = Arc::clone(&fixture.acknowledged);
        let full = options.journal_bytes;
        let report = async move {
            let mut look = tokio::time::interval(Duration::from_millis(1));
            while engine.metrics().journal_bytes.get() < full {
                look.tick().await;
            }
            let journal_bytes = engine.metrics().journal_bytes.get();
            let acknowledged = acknowledged.load(Ordering::SeqCst);
            let report = serde_json::to_string(&Loaded { journal_bytes, acknowledged });
            println!("{}", report.expect("a report is JSON"));
        };
        // The load continues after the report, until the kill.
        tokio::join!(report, fixture.take_turns(usize::MAX));
    });
}

/// Holds checkpoints back: the journal is then not used again.
#[derive(Debug)]
struct HeldCheckpoints;

impl StepScheduler for HeldCheckpoints {
    fn wait(&self, _: EngineThread) -> bool {
        false
    }

    fn at_fault_point(&self, point: FaultPoint) {
        if point == FaultPoint::Checkpoint {
            loop {
                std::thread::park();
            }
        }
    }
}
