//! The tables.

use std::collections::BTreeSet;

use super::contenders::{CONTENDERS, ours};
use super::disks::Disk;
use crate::live::report::{format_figure, format_table};
use crate::record::{DeltaRecord, EngineFigures, OpenRecord, ReadsRecord, Record, TurnsRecord};
use crate::statistics::{median, thousands};

/// The runs of a contender with a number of sessions.
pub(super) fn turns_of<'a>(
    records: &'a [Record],
    contender: &'a str,
    sessions: usize,
) -> impl Iterator<Item = &'a TurnsRecord> + Clone {
    let runs = records.iter().filter_map(|record| match record {
        Record::Turns(run) => Some(run),
        _ => None,
    });
    runs.filter(move |run| run.contender == contender && run.sessions == sessions)
}

/// The ratio of turns per second of two contenders: the median of the ratios of the rounds. NaN without a round that has
/// both.
pub(super) fn ratio(records: &[Record], ours: &str, theirs: &str, sessions: usize) -> f64 {
    let ratios = turns_of(records, ours, sessions).filter_map(|our| {
        let mut theirs = turns_of(records, theirs, sessions);
        let their = theirs.find(|their| their.round == our.round)?;
        Some(our.turns_per_second / their.turns_per_second)
    });
    median(ratios)
}

/// All numbers of sessions.
pub(super) fn sessions(records: &[Record]) -> BTreeSet<usize> {
    let runs = records.iter().filter_map(|record| match record {
        Record::Turns(run) => Some(run.sessions),
        _ => None,
    });
    runs.collect()
}

pub(super) fn reads_at(records: &[Record], rate: f64) -> impl Iterator<Item = &ReadsRecord> {
    all_reads(records).filter(move |run| run.reads_due_per_second == rate)
}

pub(super) fn all_reads(records: &[Record]) -> impl Iterator<Item = &ReadsRecord> + Clone {
    records.iter().filter_map(|record| match record {
        Record::Reads(run) => Some(run),
        _ => None,
    })
}

pub(super) fn deltas(records: &[Record]) -> impl Iterator<Item = &DeltaRecord> + Clone {
    records.iter().filter_map(|record| match record {
        Record::Delta(run) => Some(run),
        _ => None,
    })
}

pub(super) fn opens(records: &[Record]) -> impl Iterator<Item = &OpenRecord> + Clone {
    records.iter().filter_map(|record| match record {
        Record::Open(run) => Some(run),
        _ => None,
    })
}

/// The loss of turns per second under queries, relative to the run without queries of the same round, if the disk was in
/// the same state.
pub(super) fn loss(records: &[Record], rate: f64) -> f64 {
    let losses = reads_at(records, rate).filter_map(|run| {
        let alone = reads_at(records, 0.0).find(|alone| {
            alone.round == run.round && Disk::from_reads(alone) == Disk::from_reads(run)
        })?;
        Some(1.0 - run.turns_per_second / alone.turns_per_second)
    });
    median(losses)
}

/// A number like `12,345`.
pub(super) fn with_commas(number: f64) -> String {
    thousands(number).replace(' ', ",")
}

/// A figure, or a dash if there is none.
fn format_cell(number: f64, digits: usize) -> String {
    if number.is_finite() { format_figure(number, digits) } else { "–".to_owned() }
}

/// The durable turns of Abide compared with the floor.
pub(crate) fn turns_table(records: &[Record]) -> String {
    let mut rows = Vec::new();
    for contender in &CONTENDERS {
        for sessions in sessions(records) {
            let runs = turns_of(records, contender.name, sessions);
            let engines = runs.clone().filter_map(|run| Some((run, run.engine.as_ref()?)));
            if engines.clone().next().is_none() {
                continue;
            }
            let median_of = |pick: fn(&TurnsRecord) -> f64| median(runs.clone().map(pick));
            let median_of_engine = |pick: fn(&EngineFigures) -> f64| {
                median(engines.clone().map(|(_, engine)| pick(engine)))
            };
            let ratio = engines
                .clone()
                .map(|(run, engine)| run.turns_per_second / engine.floor_turns_per_second);
            let stored = runs.clone().find_map(|run| run.stored_per_payload_byte);
            let median_ms =
                |pick: fn(&TurnsRecord) -> Option<f64>| median(runs.clone().filter_map(pick)) / 1e3;
            rows.push(vec![
                format!("{}, {}", contender.label, contender.turn),
                sessions.to_string(),
                format_cell(median_of(|run| run.turns_per_second), 0),
                format_cell(median_of_engine(|engine| engine.floor_turns_per_second), 0),
                format_cell(median(ratio), 2),
                format_cell(median_ms(|run| run.request_p50_us), 2),
                format_cell(median_ms(|run| run.request_p99_us), 2),
                format_cell(median(engines.clone().filter_map(|it| it.1.without_sync_p50_us)), 0),
                format_cell(median_of_engine(|engine| engine.calls_per_group), 1),
                format_cell(median_of_engine(|engine| engine.sync_us), 0),
                format_cell(median_of_engine(|engine| engine.writer_cpu_us), 1),
                format_cell(median_of_engine(|engine| engine.floor_cpu_us), 1),
                format_cell(stored.unwrap_or(f64::NAN), 2),
                format_cell(median_of_engine(|engine| engine.floor_stored_per_payload_byte), 2),
                format_cell(
                    median(engines.clone().filter_map(|it| it.1.written_per_payload_byte)),
                    2,
                ),
            ]);
        }
    }
    let header = [
        "",
        "sessions",
        "turns/s",
        "floor turns/s",
        "ratio",
        "request p50 ms",
        "p99 ms",
        "p50 without sync µs",
        "calls/group",
        "sync µs",
        "writer CPU µs/call",
        "floor",
        "stored/payload byte",
        "floor",
        "written/payload byte",
    ];
    format_table(&header, rows)
}

/// Other programs compared with Abide, and what makes their answers durable.
pub(super) fn peers_table(records: &[Record]) -> String {
    let disks = Disk::list_in(records);
    let records_by_disk: Vec<Vec<Record>> =
        disks.iter().map(|disk| disk.records(records)).collect();
    let mut rows = Vec::new();
    let mut durable = Vec::new();
    for contender in &CONTENDERS {
        for sessions in sessions(records) {
            let runs = turns_of(records, contender.name, sessions);
            let Some(first) = runs.clone().next() else { continue };
            let name = format!("{} {}", contender.label, first.version);
            let line = format!("- {name}: {}", first.durability);
            if !durable.contains(&line) {
                durable.push(line);
            }
            let mut row = vec![name, contender.turn.to_owned(), sessions.to_string()];
            for records_of_disk in &records_by_disk {
                let runs = || turns_of(records_of_disk, contender.name, sessions);
                let ratio =
                    ratio(records_of_disk, ours(contender.at_once), contender.name, sessions);
                row.extend([
                    format_cell(median(runs().map(|run| run.turns_per_second)), 0),
                    format_probes(runs()),
                    if contender.is_ours() { String::new() } else { format_cell(ratio, 2) },
                ]);
            }
            rows.push(row);
        }
    }
    let mut header = vec![String::new(), "a turn is".to_owned(), "sessions".to_owned()];
    for disk in disks {
        let rate = format!("turns/s, {}", disk.name());
        let sync = "fdatasync µs before · during".to_owned();
        header.extend([rate, sync, "Abide / this".to_owned()]);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    format!("{}\n\nAn answer is durable by:\n\n{}", format_table(&header, rows), durable.join("\n"))
}

/// The time of a sync before and during runs.
fn format_probes<'a>(runs: impl Iterator<Item = &'a TurnsRecord> + Clone) -> String {
    let before = median(runs.clone().map(|run| run.probe_us));
    let during = median(runs.filter_map(|run| run.probe_during_us));
    if before.is_finite() {
        format!("{} · {}", format_cell(before, 0), format_cell(during, 0))
    } else {
        "–".to_owned()
    }
}

/// Turns under queries.
pub(crate) fn reads_table(records: &[Record]) -> String {
    let rates: BTreeSet<u64> =
        all_reads(records).map(|run| run.reads_due_per_second as u64).collect();
    let rows = rates.into_iter().map(|rate| {
        let due = rate as f64;
        let median_of = |pick: fn(&ReadsRecord) -> f64| median(reads_at(records, due).map(pick));
        let median_of_known =
            |pick: fn(&ReadsRecord) -> Option<f64>| median(reads_at(records, due).filter_map(pick));
        vec![
            thousands(due),
            format_cell(median_of(|run| run.reads_per_second), 0),
            format_cell(median_of(|run| run.turns_per_second), 0),
            format_cell(100.0 * loss(records, due), 0),
            format_cell(median_of_known(|run| run.read_p50_us) / 1e3, 2),
            format_cell(median_of_known(|run| run.read_p99_us) / 1e3, 2),
            format_cell(median_of(|run| run.probe_us), 0),
        ]
    });
    let header =
        ["queries/s", "answered/s", "turns/s", "loss %", "query p50 ms", "p99 ms", "fdatasync µs"];
    format_table(&header, rows)
}

/// From calls to their deltas.
pub(crate) fn delta_table(records: &[Record]) -> String {
    let median_of = |pick: fn(&DeltaRecord) -> f64| median(deltas(records).map(pick));
    let row = vec![
        format_cell(deltas(records).map(|run| run.calls as f64).sum(), 0),
        format_cell(median_of(|run| run.answer_p50_us), 0),
        format_cell(median_of(|run| run.delta_p50_us), 0),
        format_cell(median_of(|run| run.after_answer_p50_us), 0),
        format_cell(median_of(|run| run.after_answer_p99_us), 0),
        format_cell(median_of(|run| run.probe_us), 0),
    ];
    let header = [
        "calls",
        "answer p50 µs",
        "delta p50 µs",
        "answer → delta p50 µs",
        "p99 µs",
        "fdatasync µs",
    ];
    format_table(&header, [row])
}

/// Openings after SIGKILL.
pub(crate) fn open_table(records: &[Record]) -> String {
    let rows = sizes(records).into_iter().flat_map(|mib| {
        [false, true].map(|wal_lost| {
            let runs = opens(records)
                .filter(move |run| rounded_mib(run) == mib && run.wal_lost == wal_lost);
            let ms = || runs.clone().map(|run| run.open_ms);
            vec![
                format!("{mib}{}", if wal_lost { ", WAL lost" } else { "" }),
                format_cell(median(runs.clone().map(|run| run.events as f64)), 0),
                format_cell(median(ms()), 0),
                format_cell(ms().fold(f64::NAN, f64::max), 0),
                format_cell(median(runs.clone().map(|run| run.probe_us)), 0),
            ]
        })
    });
    let header = ["journal MiB", "events", "open p50 ms", "slowest ms", "fdatasync µs"];
    format_table(&header, rows)
}

/// The sizes of journals, in MiB.
pub(super) fn sizes(records: &[Record]) -> BTreeSet<u64> {
    opens(records).map(rounded_mib).collect()
}

/// The size of a journal in MiB. It exceeds the wanted size by some groups.
pub(super) fn rounded_mib(run: &OpenRecord) -> u64 {
    run.journal_bytes >> 20
}
