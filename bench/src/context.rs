//! The savings and costs of compaction: recorded conversations in small windows, and one run of thousands of turns. The model
//! answers as recorded, so the figures in tokens are counts and do not depend on the machine.
//!
//! It also checks what must hold for each request: it fits into the window, and it has the first task. If it does not,
//! the command fails.

mod model;
mod recordings;
mod sessions;

use std::path::PathBuf;

use clap::Args;
use tokio::runtime::Runtime;

use crate::live::report::{Machine, format_count, format_figure, format_table};
use crate::marks;
use crate::statistics::median;
use recordings::Recording;
use sessions::SessionFigures;

/// Options of `context`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Turns of the long run.
    #[arg(long, default_value_t = 2_000)]
    turns: usize,
    /// Files of recordings, or folders of them. The default is those of the repository, and those in
    /// `data/conversations` of `ABIDE_EXTERNAL_FIXTURES` if they exist.
    #[arg(long, value_name = "PATH")]
    recordings: Vec<PathBuf>,
    /// Of each file, every n-th conversation.
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// A document; the tables are written between its marks.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The folder for the files.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// A sentence if a request exceeds its window or lost the task, or a run failed.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let machine = Machine::read();
    let runtime = Runtime::new().expect("a tokio runtime");
    let files = recordings::list_files(&options.recordings);
    let mut rows = Vec::new();
    let mut all = Vec::new();
    let mut sum = Total::default();
    for file in &files {
        let recordings = recordings::read_file(file, options.every);
        eprintln!("{}: {} conversations …", file.display(), recordings.len());
        let held = runtime.block_on(sessions::repeat_all(&options.dir, &recordings));
        let total = Total::from_sessions(&held)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        rows.push(total.row(name.trim_end_matches(".jsonl.zst")));
        sum.add(&total);
        all.extend(recordings);
    }
    if files.len() > 1 {
        rows.push(sum.row("all"));
    }
    eprintln!("{} turns …", options.turns);
    let long = Recording::repeat_calls(&all, options.turns);
    let long = runtime.block_on(sessions::repeat_all(&options.dir, std::slice::from_ref(&long)));
    let total = Total::from_sessions(&long)?;
    let text = format!(
        "Made by `cargo run --release -p abide-bench -- context --out docs/performance.md`. The figures in tokens are \
         estimates at four characters per token, and the same on each machine.\n\n{}\n\n\
         **Recorded conversations**, each in the smallest window that its largest message permits, at least 8,000 \
         tokens. Without compaction each request has the whole conversation.\n\n{}\n\n{}\n",
        machine.text(),
        format_table(&HEADER, rows),
        long_run(&long[0], &total),
    );
    println!("{text}");
    if let Some(out) = &options.out {
        let document = std::fs::read_to_string(out).expect("the document can be read");
        let written = marks::replace(&document, "context", &format!("\n{text}"))?;
        std::fs::write(out, written).expect("the document can be written");
        eprintln!("written to {}", out.display());
    }
    Ok(())
}

const HEADER: [&str; 8] = [
    "recordings",
    "conversations",
    "answers",
    "tokens without",
    "tokens with",
    "of these for summaries",
    "with / without",
    "largest request / window",
];

/// Sums over sessions.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    sessions: usize,
    answers: usize,
    without: u64,
    with: u64,
    summaries: u64,
    largest: f64,
}

impl Total {
    fn from_sessions(sessions: &[SessionFigures]) -> Result<Total, String> {
        let mut total = Total::default();
        for session in sessions {
            session.check()?;
            total.add(&Total {
                sessions: 1,
                answers: session.answers.len(),
                without: session.without,
                with: session.answers.iter().chain(&session.summaries).sum(),
                summaries: session.summaries.iter().sum(),
                largest: session.largest_share(),
            });
        }
        Ok(total)
    }

    fn add(&mut self, other: &Total) {
        self.sessions += other.sessions;
        self.answers += other.answers;
        self.without += other.without;
        self.with += other.with;
        self.summaries += other.summaries;
        self.largest = self.largest.max(other.largest);
    }

    fn ratio(&self) -> f64 {
        self.with as f64 / self.without as f64
    }

    fn row(&self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            format_count(self.sessions),
            format_count(self.answers),
            format_figure(self.without as f64, 0),
            format_figure(self.with as f64, 0),
            format_figure(self.summaries as f64, 0),
            format_figure(self.ratio(), 2),
            format_figure(self.largest, 2),
        ]
    }
}

/// The turns at the beginning and at the end whose times are compared.
const COMPARED: usize = 200;

/// The table of the long run.
fn long_run(session: &SessionFigures, total: &Total) -> String {
    let turns = session.answers.len();
    let part = turns / 4;
    let tokens = |from: usize| session.answers[from..from + part].iter().sum::<u64>() as f64;
    let compared = COMPARED.min(part).max(1);
    let times = &session.turn_us;
    let first = times.iter().skip(20).take(compared).copied();
    let last = times.iter().rev().take(compared).copied();
    let first = median(first);
    let last = median(last);
    let met = if last <= 1.3 * first { "met" } else { "missed" };
    let rows = [
        ("window in tokens", format_figure(session.window as f64, 0)),
        ("largest request / window", format_figure(total.largest, 2)),
        ("summaries", format_count(session.summaries.len())),
        ("tokens without compaction", format_figure(total.without as f64, 0)),
        (
            "tokens with compaction, and with the requests for summaries",
            format_figure(total.with as f64, 0),
        ),
        ("with / without", format_figure(total.ratio(), 3)),
        (
            "tokens of the last quarter / second quarter",
            format_figure(tokens(turns - part) / tokens(part), 2),
        ),
        ("turn 20: ms of our own, median", format_figure(first / 1e3, 2)),
        ("last turn: ms of our own, median", format_figure(last / 1e3, 2)),
        ("last turn / turn 20", format_figure(last / first, 2)),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
    format!(
        "**One run of {} turns**: the calls and results of these conversations, one after the other, for the task of \
         the first one. The model takes no time, so the time is our own. Times are medians of {compared} turns, from \
         turn 20 on and at the end (goal: at most 1.3 times as long: {met}).\n\n{}",
        format_count(turns),
        format_table(&["figure", "value"], rows)
    )
}
