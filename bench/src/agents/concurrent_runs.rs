//! Many concurrent runs, in a separate process to measure its memory.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tokio::runtime::Runtime;

use super::fixture::AgentFixture;
use super::model::Pace;
use crate::live::process::run_child;
use crate::live::report::{format_count, format_figure, format_table};

/// Options of the process.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of concurrent runs.
    #[arg(long)]
    runs: usize,
    /// The folder for the file.
    #[arg(long)]
    dir: PathBuf,
}

/// Answers of each run: two tool calls, and the final answer.
const ANSWERS: usize = 3;

pub(super) fn measure_in_child(options: &super::Options, runs: usize) -> String {
    let dir = options.dir.to_str().expect("the folder's name is UTF-8");
    let found = run_child(&["agents-crowd", "--runs", &runs.to_string(), "--dir", dir]);
    let number = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
    let row = vec![
        format_count(runs),
        format_count(number("asked_most") as usize),
        format_figure(number("seconds"), 1),
        format_figure(runs as f64 / number("seconds"), 0),
        format_figure((runs * ANSWERS) as f64 / number("seconds"), 0),
        format_figure(number("before_mib"), 0),
        format_figure(number("peak_mib"), 0),
    ];
    let header = [
        "concurrent runs",
        "max. concurrent requests",
        "seconds in total",
        "runs/s",
        "answers/s",
        "MiB before",
        "MiB peak",
    ];
    let met = if number("peak_mib") <= 1_024.0 { "met" } else { "missed" };
    format!(
        "**Concurrent runs**, all started before the driver. Each has {ANSWERS} answers that take a second, and \
         two tool calls. Resident memory is that of the whole process with the engine (goal: 10,000 within \
         1 GiB: {met}).\n\n{}",
        format_table(&header, [row])
    )
}

/// The main function of the process. Prints the results as JSON.
pub(crate) fn measure(options: &Options) {
    let runtime = Runtime::new().expect("a tokio runtime");
    let report = runtime.block_on(async {
        let pace = Pace {
            answers: ANSWERS,
            first: Duration::from_secs(1),
            pieces: 1,
            between: Duration::ZERO,
        };
        let mut fixture = AgentFixture::new(&options.dir, pace).await;
        fixture.start_runs(0, options.runs).await;
        let before = status_mib("VmRSS:");
        let began = Instant::now();
        fixture.start_driver();
        fixture.wait_until_done().await;
        let seconds = began.elapsed().as_secs_f64();
        let report = json!({"seconds": seconds, "asked_most": fixture.notes.max_concurrent_requests(),
            "before_mib": before, "peak_mib": status_mib("VmHWM:")});
        fixture.close().await;
        report
    });
    println!("{report}");
}

/// A value of this process in MiB; 0 if the system does not report it (Linux does).
fn status_mib(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
