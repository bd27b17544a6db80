//! The overhead of a step: from an answer of the model to the next request, with the answer on disk, and a tool
//! call claimed, run, recorded and published.

use std::time::Duration;

use tokio::runtime::Runtime;

use super::Options;
use super::fixture::AgentFixture;
use super::model::Pace;
use crate::disk::sync_us;
use crate::live::report::{format_figure, format_table};
use crate::statistics::{median, percentile};

/// Numbers of concurrent runs.
const AT_ONCE: [usize; 3] = [1, 16, 64];

pub(super) fn measure(options: &Options) -> String {
    let answers = if options.quick { 3 } else { 21 };
    let sync_ms = || format_figure(sync_us(&options.dir) / 1e3, 2);
    let before = sync_ms();
    let rows = AT_ONCE.map(|at_once| {
        let runtime = Runtime::new().expect("a tokio runtime");
        let rounds = if options.quick { 1 } else { 8_usize.div_ceil(at_once) };
        let found = runtime.block_on(measure_steps(options, at_once, rounds, answers));
        vec![
            at_once.to_string(),
            found.steps.to_string(),
            format_figure(median(found.gaps_ms.iter().copied()), 2),
            format_figure(percentile(found.gaps_ms, 0.99), 2),
            format_figure(found.events, 1),
            format_figure(found.commits, 2),
        ]
    });
    let header =
        ["concurrent runs", "steps", "overhead p50 ms", "p99 ms", "events/step", "commits/step"];
    format!(
        "**Overhead of a step**: from an answer of the model, which calls a tool that does nothing, to its next \
         request; the model takes 20 ms. The tool only reads, so a step waits for two groups and one sync. One `fdatasync` takes {before} ms before \
         these runs and {} ms after them.\n\n{}",
        sync_ms(),
        format_table(&header, rows)
    )
}

struct Measured {
    steps: usize,
    gaps_ms: Vec<f64>,
    events: f64,
    commits: f64,
}

async fn measure_steps(
    options: &Options,
    at_once: usize,
    rounds: usize,
    answers: usize,
) -> Measured {
    let pace =
        Pace { answers, first: Duration::from_millis(20), pieces: 0, between: Duration::ZERO };
    let mut fixture = AgentFixture::new(&options.dir, pace).await;
    fixture.start_driver();
    let commits = fixture.commit_count();
    let events = fixture.engine.durable_seq().0;
    for round in 0..rounds {
        fixture.start_runs(round * at_once, at_once).await;
        fixture.wait_until_done().await;
    }
    let gaps_ms = fixture.notes.gaps_ms();
    let steps = at_once * rounds * answers;
    let found = Measured {
        steps,
        gaps_ms,
        events: (fixture.engine.durable_seq().0 - events) as f64 / steps as f64,
        commits: (fixture.commit_count() - commits) / steps as f64,
    };
    fixture.close().await;
    found
}
