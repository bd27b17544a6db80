//! The plots.

use super::contenders::CONTENDERS;
use super::tables::{all_reads, opens, reads_at, rounded_mib, sessions, sizes, turns_of};
use crate::plot::{Axis, Line, Panel, Plot, QUIET};
use crate::record::Record;
use crate::statistics::median;

/// Turns per second by the number of sessions, all contenders.
pub(super) fn peers_plot(records: &[Record]) -> Plot {
    let panel = |title: &str, at_once: bool| {
        let lines =
            CONTENDERS.iter().filter(|contender| contender.at_once == at_once).map(|contender| {
                let points = sessions(records).into_iter().map(|sessions| {
                    let runs = turns_of(records, contender.name, sessions);
                    (sessions as f64, median(runs.map(|run| run.turns_per_second)))
                });
                Line {
                    name: contender.label.to_owned(),
                    color: contender.color,
                    dashed: contender.dashed,
                    points: points.filter(|point| point.1.is_finite()).collect(),
                }
            });
        let lines = lines.filter(|line| !line.points.is_empty()).collect();
        Panel { title: title.to_owned(), lines }
    };
    Plot {
        title: "Durable turns per second".to_owned(),
        x: Axis { label: "sessions".to_owned(), log: true },
        y: Axis { label: "turns/s".to_owned(), log: true },
        panels: vec![
            panel("a turn is one request", true),
            panel("a turn is four requests, each durable", false),
        ],
    }
}

/// Turns per second by the rate of queries.
pub(super) fn reads_plot(records: &[Record]) -> Plot {
    let mut rates: Vec<f64> = all_reads(records).map(|run| run.reads_due_per_second).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let points = rates
        .into_iter()
        .map(|rate| (rate, median(reads_at(records, rate).map(|run| run.turns_per_second))));
    let line = line("turns per second", 0, points);
    Plot {
        title: "Durable turns under queries, embedded".to_owned(),
        x: Axis { label: "queries/s".to_owned(), log: true },
        y: Axis { label: "turns/s".to_owned(), log: false },
        panels: vec![Panel { title: String::new(), lines: vec![line] }],
    }
}

/// The time of an opening by the size of the journal.
pub(super) fn open_plot(records: &[Record]) -> Plot {
    let line_of = |name: &str, color, wal_lost| {
        let points = sizes(records).into_iter().map(|mib| {
            let runs = opens(records)
                .filter(move |run| rounded_mib(run) == mib && run.wal_lost == wal_lost);
            (mib as f64, median(runs.map(|run| run.open_ms)))
        });
        line(name, color, points)
    };
    let goal = sizes(records).into_iter().map(|mib| (mib as f64, 1_000.0));
    let goal = Line { dashed: true, ..line("goal", QUIET, goal) };
    Plot {
        title: "Opening a file after SIGKILL under load".to_owned(),
        x: Axis { label: "journal, MiB".to_owned(), log: false },
        y: Axis { label: "ms".to_owned(), log: false },
        panels: vec![Panel {
            title: String::new(),
            lines: vec![
                line_of("as the kill left it", 0, false),
                line_of("with an empty WAL: all of the journal is applied", 1, true),
                goal,
            ],
        }],
    }
}

fn line(name: &str, color: usize, points: impl Iterator<Item = (f64, f64)>) -> Line {
    let points = points.filter(|point| point.1.is_finite()).collect();
    Line { name: name.to_owned(), color, dashed: false, points }
}
