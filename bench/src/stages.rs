//! Where the time of a lone caller's call goes: one WebSocket, one call after the other.
//!
//! The server and the engine name the moments that a call passes, and this file notes when. Those of the server and of the queue
//! are events of `tracing` at the level TRACE, the others are the engine's fault points.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use abide_engine::{Config, EngineThread, FaultPoint, StepScheduler};
use clap::Args;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::disk;
use crate::live::report;
use crate::statistics::{median, percentile};
use crate::turns::fixture::{Fixture, Way};

/// Options of `stages`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of turns, of four calls each. The first tenth is not measured.
    #[arg(long, default_value_t = 1_000)]
    turns: usize,
    /// The folder for the file; it should be on a disk, not in memory.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

/// The moments of a call, in order, each with the stage that ends with it.
const MOMENTS: [(&str, &str); 16] = [
    ("sent", ""),
    ("arrived", "client: encode, write; server: wake up, read"),
    ("admitted", "server: parse, admission"),
    ("queued", "engine: check, canonical text, digest"),
    ("taken", "writer: wake up"),
    ("begun", "writer: what is due, savepoint"),
    ("ran", "writer: the reducer"),
    ("flushed", "writer: rows, undo images, deltas"),
    ("journalled", "writer: write to the journal"),
    ("syncing", "sync thread: wake up"),
    ("synced", "sync thread: fdatasync"),
    ("durable", "sync thread: are the files in place?"),
    ("answered", "server: wake up the call's task, compose the frame"),
    ("sending", "server: wake up the connection's task"),
    ("written", "server: write to the socket"),
    ("received", "client: wake up, read, decode"),
];

/// When each moment was passed.
#[derive(Debug, Default)]
struct Moments(Mutex<Vec<(&'static str, Instant)>>);

impl Moments {
    fn note(&self, name: &'static str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((name, Instant::now()));
    }

    fn take(&self) -> Vec<(&'static str, Instant)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StepScheduler for Moments {
    fn wait(&self, _: EngineThread) -> bool {
        false
    }

    fn at_fault_point(&self, point: FaultPoint) {
        match point {
            FaultPoint::Due => self.note("taken"),
            FaultPoint::Begun => self.note("begun"),
            FaultPoint::Ran => self.note("ran"),
            FaultPoint::Append => self.note("flushed"),
            FaultPoint::Appended => self.note("journalled"),
            FaultPoint::Sync => self.note("syncing"),
            FaultPoint::Synced => self.note("synced"),
            FaultPoint::Durable => self.note("durable"),
            _ => {}
        }
    }
}

/// Notes the events of `tracing` whose names are moments.
#[derive(Debug)]
struct EventListener(Arc<Moments>);

impl Subscriber for EventListener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::TRACE
            && metadata.target().starts_with("abide_")
            && MOMENTS.iter().any(|(name, _)| *name == metadata.name())
    }

    fn event(&self, event: &Event<'_>) {
        self.0.note(event.metadata().name());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs the measurement and prints the table.
pub(crate) fn run(options: &Options) {
    let moments = Arc::<Moments>::default();
    tracing::subscriber::set_global_default(EventListener(Arc::clone(&moments)))
        .expect("no other subscriber is set");
    let probe_us = disk::sync_us(&options.dir);
    let runtime = Runtime::new().expect("a tokio runtime");
    let calls = runtime.block_on(measure(options, &moments));
    println!("{}", format_table(&calls));
    println!("{} calls; one fdatasync of a quiet file: {probe_us:.0} µs", calls.len());
}

/// The microseconds of each stage of each call.
async fn measure(options: &Options, moments: &Arc<Moments>) -> Vec<Vec<f64>> {
    let dir = TempDir::new_in(&options.dir).expect("a folder for the file");
    let mut config = Config::new(abide_reducers::modules());
    config.scheduler = Arc::clone(moments) as Arc<dyn StepScheduler>;
    let fixture = Fixture::open_with(dir.path(), Way::Websocket, 1, config).await;
    moments.take();
    let (requests, _) = fixture.take_turns(options.turns).await;
    fixture.close().await;
    let all = moments.take();
    let calls = requests.iter().skip(requests.len() / 10);
    calls.filter_map(|request| split_stages(&all, request.sent, request.received)).collect()
}

/// The microseconds of the stages of a call that was sent and answered at these times. `None` if it shared a group with
/// another call, of a deadline.
fn split_stages(
    all: &[(&'static str, Instant)],
    sent: Instant,
    received: Instant,
) -> Option<Vec<f64>> {
    let from = all.partition_point(|(_, at)| *at < sent);
    let to = all.partition_point(|(_, at)| *at < received);
    let within = &all[from..to];
    let mut passed = vec![sent];
    for (name, _) in &MOMENTS[1..MOMENTS.len() - 1] {
        let since = passed[passed.len() - 1];
        let mut found = within.iter().filter(|(other, at)| other == name && *at >= since);
        let at = match *name {
            // The writer looks for work before it sleeps, too.
            "taken" => {
                let begun = within.iter().find(|(other, at)| *other == "begun" && *at >= since)?.1;
                found.take_while(|(_, at)| *at <= begun).last()?.1
            }
            // The client can have the answer before the server's task goes on.
            "written" => found.next().map_or(received, |(_, at)| *at),
            _ => found.next()?.1,
        };
        passed.push(at);
    }
    passed.push(received);
    Some(passed.windows(2).map(|it| (it[1] - it[0]).as_secs_f64() * 1e6).collect())
}

fn format_table(calls: &[Vec<f64>]) -> String {
    let whole: Vec<f64> = calls.iter().map(|call| call.iter().sum()).collect();
    let mean_of_whole = mean(&whole);
    let row = |stage: &str, figures: &[f64]| {
        vec![
            stage.to_owned(),
            format!("{:.1}", median(figures.iter().copied())),
            format!("{:.1}", percentile(figures.iter().copied(), 0.9)),
            format!("{:.0} %", 100.0 * mean(figures) / mean_of_whole),
        ]
    };
    let stages = MOMENTS[1..].iter().enumerate().map(|(nth, (_, stage))| {
        let figures: Vec<f64> = calls.iter().map(|call| call[nth]).collect();
        row(stage, &figures)
    });
    let header = ["stage", "median µs", "p90 µs", "share of the mean"];
    report::format_table(&header, stages.chain([row("the whole call", &whole)]))
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stages of a call add up to its time, and every moment is passed.
    #[test]
    fn a_call_passes_every_moment() {
        let folder = tempfile::tempdir().expect("a folder");
        let moments = Arc::<Moments>::default();
        let listener = EventListener(Arc::clone(&moments));
        tracing::subscriber::set_global_default(listener).expect("no other subscriber is set");
        let options = Options { turns: 5, dir: folder.path().to_owned() };
        let runtime = Runtime::new().expect("a tokio runtime");
        let calls = runtime.block_on(measure(&options, &moments));
        assert_eq!(calls.len(), 18, "four calls a turn, without the first tenth");
        assert!(calls.iter().all(|call| call.len() == MOMENTS.len() - 1));
        assert!(format_table(&calls).contains("the whole call"));
    }
}
