//! Results as JSON, one record per line. The measurements print them with `--json`, the scripts of `bench/compare` add
//! those of other programs, and `report` reads them.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "measurement", rename_all = "kebab-case")]
pub(crate) enum Record {
    /// The machine, before the measurements.
    Machine {
        /// Markdown, one line per property.
        text: String,
    },
    /// A run of durable turns.
    Turns(TurnsRecord),
    /// A run of durable turns with concurrent queries.
    Reads(ReadsRecord),
    /// From calls to their deltas.
    Delta(DeltaRecord),
    /// The opening of a file after SIGKILL.
    Open(OpenRecord),
}

/// A run of one contender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TurnsRecord {
    /// The round, from 1. Ratios are taken within a round.
    pub(crate) round: usize,
    /// Its name: a way of Abide, or another program.
    pub(crate) contender: String,
    /// Sessions that take turns concurrently.
    pub(crate) sessions: usize,
    /// Turns of all sessions together.
    pub(crate) turns: usize,
    pub(crate) turns_per_second: f64,
    /// Median time of one `fdatasync` of a 4 KiB overwrite immediately before the run, in microseconds.
    pub(crate) probe_us: f64,
    /// Median time of one such `fdatasync` during the run. It includes the wait for a processor and for the syncs of the run.
    #[serde(default)]
    pub(crate) probe_during_us: Option<f64>,
    /// The settings that make an answer durable, as the contender reports them.
    pub(crate) durability: String,
    /// Its version.
    pub(crate) version: String,
    /// The time of a request (a call, a batch, or a peer's turn), in microseconds, if it was measured.
    #[serde(default)]
    pub(crate) request_p50_us: Option<f64>,
    #[serde(default)]
    pub(crate) request_p99_us: Option<f64>,
    /// Size of the database after the run for each byte of payload.
    #[serde(default)]
    pub(crate) stored_per_payload_byte: Option<f64>,
    /// Only Abide's runs have them.
    #[serde(default)]
    pub(crate) engine: Option<EngineFigures>,
}

/// Measurements that only an engine in this process can report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EngineFigures {
    pub(crate) calls_per_group: f64,
    /// Mean time of the engine's syncs, in microseconds.
    pub(crate) sync_us: f64,
    /// Median of a request's time without the sync that it waited for, in microseconds; only with one session.
    pub(crate) without_sync_p50_us: Option<f64>,
    /// Processor time of the writer thread for each call, in microseconds.
    pub(crate) writer_cpu_us: f64,
    /// Bytes that were written to the disk for each byte of payload, from the creation of the file until it is closed:
    /// an upper bound, see `disk`.
    pub(crate) written_per_payload_byte: Option<f64>,
    /// Turns per second that write these rows to plain SQLite, without syncs.
    pub(crate) floor_turns_per_second: f64,
    pub(crate) floor_cpu_us: f64,
    pub(crate) floor_stored_per_payload_byte: f64,
}

/// A run with concurrent queries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadsRecord {
    pub(crate) round: usize,
    pub(crate) sessions: usize,
    /// Queries per second that were due.
    pub(crate) reads_due_per_second: f64,
    /// Queries per second that were answered.
    pub(crate) reads_per_second: f64,
    pub(crate) turns_per_second: f64,
    pub(crate) probe_us: f64,
    #[serde(default)]
    pub(crate) probe_during_us: Option<f64>,
    #[serde(default)]
    pub(crate) read_p50_us: Option<f64>,
    #[serde(default)]
    pub(crate) read_p99_us: Option<f64>,
}

/// Sequential calls on a WebSocket that subscribes to the row that they change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeltaRecord {
    pub(crate) round: usize,
    pub(crate) calls: usize,
    pub(crate) probe_us: f64,
    /// From the call to its answer.
    pub(crate) answer_p50_us: f64,
    /// From the call to its delta.
    pub(crate) delta_p50_us: f64,
    /// From the answer of a call to its delta.
    pub(crate) after_answer_p50_us: f64,
    pub(crate) after_answer_p99_us: f64,
}

/// A file that is opened after its process was killed under load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenRecord {
    pub(crate) round: usize,
    /// The journal at the kill, in bytes of records.
    pub(crate) journal_bytes: u64,
    /// Whether SQLite's WAL was emptied before the opening, as a loss of power can do.
    pub(crate) wal_lost: bool,
    pub(crate) probe_us: f64,
    /// From the start of the opening until the engine accepts calls, in milliseconds.
    pub(crate) open_ms: f64,
    /// Events in the file, and how many of them the killed process had acknowledged at least.
    pub(crate) events: i64,
    pub(crate) acknowledged: i64,
}

impl Record {
    /// Prints the record as a line.
    pub(crate) fn print(&self) {
        println!("{}", serde_json::to_string(self).expect("a record is JSON"));
    }
}

/// Reads a file of records.
///
/// # Errors
/// A sentence with the line.
pub(crate) fn read(path: &Path) -> Result<Vec<Record>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|why| format!("{}: cannot be read: {why}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            serde_json::from_str(line)
                .map_err(|why| format!("{}:{}: not a record: {why}", path.display(), at + 1))
        })
        .collect()
}
