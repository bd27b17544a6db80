//! From a call to its delta, with one subscriber: a WebSocket that subscribes to the row that its own calls change.

use std::path::PathBuf;

use clap::Args;

use crate::live::delivery;
use crate::record::{DeltaRecord, Record};
use crate::statistics::{median, percentile};
use crate::{disk, report};

/// Options of `delta`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Number of calls per round, one after the other.
    #[arg(long, default_value_t = 2_000)]
    calls: usize,
    /// Print one line of JSON for each round instead of the table.
    #[arg(long)]
    json: bool,
    /// The folder for the files; it should be on a disk, not in memory.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) {
    let mut records = Vec::new();
    for round in 1..=options.rounds {
        eprintln!("round {round}: from a call to its delta");
        let probe_us = disk::sync_us(&options.dir);
        let calls = delivery::deliver_to_one_listener(&options.dir, options.calls);
        let after_answer_us = calls.iter().map(|call| (call.delta_ms - call.answer_ms) * 1e3);
        let record = Record::Delta(DeltaRecord {
            round,
            calls: calls.len(),
            probe_us,
            answer_p50_us: median(calls.iter().map(|call| call.answer_ms * 1e3)),
            delta_p50_us: median(calls.iter().map(|call| call.delta_ms * 1e3)),
            after_answer_p50_us: median(after_answer_us.clone()),
            after_answer_p99_us: percentile(after_answer_us, 0.99),
        });
        if options.json {
            record.print();
        }
        records.push(record);
    }
    if !options.json {
        println!("{}", report::delta_table(&records));
    }
}
