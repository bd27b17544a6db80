//! The goals, with the figures of the run.

use super::disks::Disk;
use super::tables::{deltas, loss, opens, ratio, reads_at, rounded_mib, turns_of};
use crate::live::report;
use crate::record::{EngineFigures, Record};
use crate::statistics::median;

/// A bound.
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A goal and what was measured.
struct Goal {
    what: &'static str,
    bound: Bound,
    /// The unit, with its space.
    unit: &'static str,
    digits: usize,
    measured: f64,
    /// The time of one `fdatasync` of the same run, in microseconds.
    sync_us: f64,
}

/// The table, with the figures of each disk.
pub(super) fn table(records: &[Record]) -> String {
    let disks = Disk::list_in(records);
    let mut header = vec![String::new(), "goal".to_owned()];
    let mut rows: Vec<Vec<String>> =
        goals(records).iter().map(|goal| vec![goal.what.to_owned(), goal.format_bound()]).collect();
    for disk in disks {
        header.extend([disk.name().to_owned(), String::new(), "fdatasync µs".to_owned()]);
        for (row, goal) in rows.iter_mut().zip(goals(&disk.records(records))) {
            row.extend(goal.cells());
        }
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    report::format_table(&header, rows)
}

impl Goal {
    fn format_bound(&self) -> String {
        match self.bound {
            Bound::AtLeast(bound) => format!("≥ {}", self.with_unit(bound)),
            Bound::AtMost(bound) => format!("≤ {}", self.with_unit(bound)),
        }
    }

    /// The measured value, whether it is enough, and the time of a sync.
    fn cells(&self) -> [String; 3] {
        if !self.measured.is_finite() {
            return ["–".to_owned(), "not measured".to_owned(), "–".to_owned()];
        }
        let met = match self.bound {
            Bound::AtLeast(bound) => self.measured >= bound,
            Bound::AtMost(bound) => self.measured <= bound,
        };
        let met = if met { "met" } else { "missed" };
        [self.with_unit(self.measured), met.to_owned(), report::format_figure(self.sync_us, 0)]
    }

    fn with_unit(&self, number: f64) -> String {
        format!("{}{}", report::format_figure(number, self.digits), self.unit)
    }
}

const SESSIONS: usize = 64;

fn goals(records: &[Record]) -> Vec<Goal> {
    let mut goals = throughput_goals(records);
    goals.extend(embedded_goals(records));
    goals.extend(other_goals(records));
    goals
}

fn probe_us(records: &[Record], contender: &str, sessions: usize) -> f64 {
    median(turns_of(records, contender, sessions).map(|run| run.probe_us))
}

fn throughput_goals(records: &[Record]) -> Vec<Goal> {
    let floor = turns_of(records, "embedded", SESSIONS)
        .filter_map(|run| Some(run.turns_per_second / run.engine.as_ref()?.floor_turns_per_second));
    let sync_us = |contender| probe_us(records, contender, SESSIONS);
    let at_least = |what, bound, digits, measured, sync_us| {
        let bound = Bound::AtLeast(bound);
        Goal { what, bound, unit: " ×", digits, measured, sync_us }
    };
    vec![
        at_least(
            "embedded, 64 sessions: turns/s over plain SQLite without sync",
            1.0,
            2,
            median(floor),
            sync_us("embedded"),
        ),
        at_least(
            "WebSocket, 64 connections, one batch per turn: turns/s over PostgreSQL, one transaction",
            2.5,
            2,
            ratio(records, "websocket-batch", "postgresql", SESSIONS),
            sync_us("websocket-batch"),
        ),
        at_least(
            "WebSocket, 64 connections, four awaited calls: turns/s over PostgreSQL, four transactions",
            1.5,
            2,
            ratio(records, "websocket", "postgresql-calls", SESSIONS),
            sync_us("websocket"),
        ),
    ]
}

fn embedded_goals(records: &[Record]) -> Vec<Goal> {
    let engine = |sessions, pick: fn(&EngineFigures) -> Option<f64>| {
        let runs = turns_of(records, "embedded", sessions);
        median(runs.filter_map(|run| pick(run.engine.as_ref()?)))
    };
    let stored = turns_of(records, "embedded", SESSIONS);
    let stored = median(stored.filter_map(|run| run.stored_per_payload_byte));
    let at_most = |what, bound, unit, digits, measured, sessions| {
        let bound = Bound::AtMost(bound);
        Goal {
            what,
            bound,
            unit,
            digits,
            measured,
            sync_us: probe_us(records, "embedded", sessions),
        }
    };
    vec![
        at_most(
            "single caller, embedded: p50 of a call without its sync",
            60.0,
            " µs",
            0,
            engine(1, |engine| engine.without_sync_p50_us),
            1,
        ),
        at_most(
            "writer CPU per call, embedded, 64 sessions",
            20.0,
            " µs",
            1,
            engine(SESSIONS, |engine| Some(engine.writer_cpu_us)),
            SESSIONS,
        ),
        at_most("bytes on disk per payload byte", 3.0, "", 2, stored, SESSIONS),
        at_most(
            "bytes written per payload byte, embedded, 64 sessions",
            6.0,
            "",
            2,
            engine(SESSIONS, |engine| engine.written_per_payload_byte),
            SESSIONS,
        ),
    ]
}

fn other_goals(records: &[Record]) -> Vec<Goal> {
    let opened = opens(records).filter(|run| rounded_mib(run) >= 64 && !run.wal_lost);
    vec![
        Goal {
            what: "loss of write throughput under 1,000 queries/s, 64 sessions",
            bound: Bound::AtMost(25.0),
            unit: " %",
            digits: 0,
            measured: 100.0 * loss(records, 1_000.0),
            sync_us: median(reads_at(records, 1_000.0).map(|run| run.probe_us)),
        },
        Goal {
            what: "from the answer of a call to its delta, one subscriber, p50",
            bound: Bound::AtMost(50.0),
            unit: " µs",
            digits: 0,
            measured: median(deltas(records).map(|run| run.after_answer_p50_us)),
            sync_us: median(deltas(records).map(|run| run.probe_us)),
        },
        Goal {
            what: "open after SIGKILL under load, 64 MiB of journal, slowest",
            bound: Bound::AtMost(1.0),
            unit: " s",
            digits: 2,
            measured: opened.clone().map(|run| run.open_ms / 1e3).fold(f64::NAN, f64::max),
            sync_us: median(opened.map(|run| run.probe_us)),
        },
    ]
}
