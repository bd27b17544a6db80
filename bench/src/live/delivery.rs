//! Part 3: the latency from a call to the delta at the last of many WebSockets, and deltas per second. A real
//! server on loopback; callers and listeners are in a separate process.

use std::net::SocketAddr;
use std::path::Path;

use abide_engine::{Config, Engine};
use abide_server::AccessConfig;
use serde_json::Value as JsonValue;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Scope;
use super::help_desk;
use super::process::{count_open_files, raise_open_files, run_child};
use super::report::{Section, format_count, format_figure, format_table};
use crate::cpu;
use crate::plot::{Axis, Line, Panel, Plot, QUIET};
use crate::statistics::{median, percentile};

/// The goal in deltas per second.
const GOAL: f64 = 150_000.0;
/// Open files in addition to the sockets.
const OTHER_FILES: usize = 100;

/// How calls are sent.
#[derive(Clone, Copy)]
enum Pace {
    /// This many per second, evenly spaced.
    Evenly(usize),
    /// The next call when one is answered, with this many in flight.
    Answered(usize),
}

/// Maximum number of calls in flight on one WebSocket.
const IN_FLIGHT: usize = 256;

/// The sizes of the measurement.
struct Plan {
    rounds: usize,
    /// Numbers of listeners, each with the number of calls.
    crowds: &'static [(usize, usize)],
    /// Number of listeners in the throughput measurement.
    listeners: usize,
    paces: &'static [Pace],
    seconds: f64,
}

const QUICK: Plan = Plan {
    rounds: 1,
    crowds: &[(1, 20), (20, 10)],
    listeners: 10,
    paces: &[Pace::Evenly(500), Pace::Answered(8)],
    seconds: 0.2,
};
const FULL: Plan = Plan {
    rounds: 2,
    crowds: &[(1, 1_000), (100, 500), (1_000, 100), (10_000, 30)],
    listeners: 100,
    paces: &[
        Pace::Evenly(250),
        Pace::Evenly(500),
        Pace::Evenly(1_000),
        Pace::Evenly(1_500),
        Pace::Evenly(2_000),
        Pace::Evenly(3_000),
        Pace::Evenly(4_000),
        Pace::Evenly(6_000),
        Pace::Answered(1),
        Pace::Answered(16),
        Pace::Answered(IN_FLIGHT),
    ],
    seconds: 4.0,
};

/// Latencies from a call to the last delta.
struct Latency {
    listeners: usize,
    answer_ms: Vec<f64>,
    last_ms: Vec<f64>,
}

/// Throughput with one pace; one value per round.
struct Throughput {
    pace: Pace,
    calls: Vec<f64>,
    commits: Vec<f64>,
    deltas: Vec<f64>,
    merged: Vec<f64>,
    lags: f64,
    sync_ms: Vec<f64>,
    cpu_us: Vec<f64>,
}

struct Server {
    engine: Engine,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
    runtime: Runtime,
    _dir: TempDir,
}

/// A call, and when its caller received what followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) answer_ms: f64,
    pub(crate) delta_ms: f64,
}

/// Makes calls one after the other on a WebSocket that subscribes to the row that they change.
pub(crate) fn deliver_to_one_listener(dir: &Path, calls: usize) -> Vec<Delivered> {
    let server = Server::start(&Scope { quick: false, dir: dir.to_owned() });
    let mut listener = Latency { listeners: 1, answer_ms: vec![], last_ms: vec![] };
    listener.measure(&server, calls);
    server.stop();
    let both = listener.answer_ms.into_iter().zip(listener.last_ms);
    both.map(|(answer_ms, delta_ms)| Delivered { answer_ms, delta_ms }).collect()
}

/// Measures both.
pub(crate) fn section(scope: &Scope) -> Section {
    let plan = if scope.quick { QUICK } else { FULL };
    let may_open = raise_open_files();
    let (crowds, left_out): (Vec<_>, Vec<_>) = plan
        .crowds
        .iter()
        .partition(|(listeners, _)| *listeners + OTHER_FILES + count_open_files() <= may_open);
    let server = Server::start(scope);
    let mut reaches: Vec<Latency> = crowds
        .iter()
        .map(|(listeners, _)| Latency { listeners: *listeners, answer_ms: vec![], last_ms: vec![] })
        .collect();
    let mut floods: Vec<Throughput> =
        plan.paces.iter().map(|pace| Throughput::new(*pace)).collect();
    for round in 1..=plan.rounds {
        for (reach, (listeners, calls)) in reaches.iter_mut().zip(&crowds) {
            eprintln!("part 3, round {round}: {listeners} listeners");
            reach.measure(&server, *calls);
        }
        for flood in &mut floods {
            eprintln!("part 3, round {round}: calls {}", flood.pace.name());
            flood.measure(&server, &plan);
        }
    }
    server.stop();
    let mut text = format_text(&plan, &reaches, &floods);
    for (listeners, _) in left_out {
        text += &format!(
            "\n\nOmitted: {} listeners, because a process may open only {may_open} files.",
            format_count(listeners)
        );
    }
    Section {
        number: 3,
        title: "From a call to the last subscriber",
        text,
        plots: vec![
            ("live-delivery.svg", reach_plot(&reaches)),
            ("live-deltas.svg", flood_plot(&plan, &floods)),
        ],
    }
}

impl Server {
    fn start(scope: &Scope) -> Server {
        let dir = TempDir::new_in(&scope.dir).expect("a folder for the file");
        let runtime = Runtime::new().expect("a tokio runtime");
        let config = Config::new(vec![help_desk::module()]);
        let engine = Engine::open(dir.path().join("abide.db"), config).expect("the engine opens");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let served =
            abide_server::serve(engine.clone(), listener, AccessConfig::loopback(), async {
                let _ = stopped.await;
            });
        let served = runtime.spawn(served);
        Server { engine, address, stop, served, runtime, _dir: dir }
    }

    /// The results of the listener process.
    fn listen(&self, arguments: &[String]) -> JsonValue {
        let address = format!("--address={}", self.address);
        let mut all = vec!["live-listen", &address];
        all.extend(arguments.iter().map(String::as_str));
        run_child(&all)
    }

    fn stop(self) {
        let _ = self.stop.send(());
        let served = self.runtime.block_on(self.served).expect("the server's task");
        served.expect("the server ends well");
        self.engine.close();
    }
}

impl Latency {
    fn measure(&mut self, server: &Server, calls: usize) {
        let listeners = format!("--listeners={}", self.listeners);
        let found = server.listen(&[listeners, format!("--calls={calls}")]);
        let figures = |name: &str| {
            let figures = found[name].as_array().into_iter().flatten();
            figures.filter_map(JsonValue::as_f64).collect::<Vec<_>>()
        };
        self.answer_ms.extend(figures("answer_ms"));
        self.last_ms.extend(figures("last_ms"));
    }
}

impl Pace {
    fn name(self) -> String {
        match self {
            Pace::Evenly(rate) => format!("{}/s, evenly", format_count(rate)),
            Pace::Answered(1) => "when answered".to_owned(),
            Pace::Answered(in_flight) => format!("when answered, {in_flight} in flight"),
        }
    }
}

impl Throughput {
    fn new(pace: Pace) -> Throughput {
        let calls = Vec::new();
        let commits = Vec::new();
        let deltas = Vec::new();
        let merged = Vec::new();
        let sync_ms = Vec::new();
        let cpu_us = Vec::new();
        Throughput { pace, calls, commits, deltas, merged, lags: 0.0, sync_ms, cpu_us }
    }

    fn measure(&mut self, server: &Server, plan: &Plan) {
        let before = Counted::read(&server.engine);
        let (rate, in_flight) = match self.pace {
            Pace::Evenly(rate) => (rate, IN_FLIGHT),
            Pace::Answered(in_flight) => (0, in_flight),
        };
        let found = server.listen(&[
            format!("--listeners={}", plan.listeners),
            format!("--seconds={}", plan.seconds),
            format!("--rate={rate}"),
            format!("--in-flight={in_flight}"),
        ]);
        let after = Counted::read(&server.engine);
        let number = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
        let deltas = number("deltas");
        let seconds = number("seconds");
        let commits = after.commits - before.commits;
        self.calls.push(number("calls") / number("called_s"));
        self.commits.push(commits / number("called_s"));
        self.deltas.push(deltas / seconds);
        self.merged.push(commits * plan.listeners as f64 - deltas);
        self.lags += after.lags - before.lags;
        self.sync_ms.push((after.sync_us - before.sync_us) / (after.syncs - before.syncs) / 1e3);
        self.cpu_us.push((after.cpu_s - before.cpu_s) * 1e6 / deltas);
    }
}

/// The server's counters.
struct Counted {
    commits: f64,
    lags: f64,
    syncs: f64,
    sync_us: f64,
    cpu_s: f64,
}

impl Counted {
    fn read(engine: &Engine) -> Counted {
        let metrics = engine.metrics();
        Counted {
            commits: metrics.commits_total.get() as f64,
            lags: metrics.slow_consumers_total.get() as f64,
            syncs: metrics.sync_seconds.count() as f64,
            sync_us: metrics.sync_seconds.sum().as_secs_f64() * 1e6,
            cpu_s: cpu::process_seconds(),
        }
    }
}

fn format_text(plan: &Plan, reaches: &[Latency], floods: &[Throughput]) -> String {
    let rows = reaches.iter().map(|reach| {
        let format_percentile =
            |figures: &[f64], share| format_figure(percentile(figures.iter().copied(), share), 2);
        vec![
            format_count(reach.listeners),
            format_count(reach.last_ms.len()),
            format_percentile(&reach.answer_ms, 0.5),
            format_percentile(&reach.answer_ms, 0.99),
            format_percentile(&reach.last_ms, 0.5),
            format_percentile(&reach.last_ms, 0.99),
        ]
    });
    let header = ["listeners", "calls", "answer p50 ms", "p99 ms", "last delta p50 ms", "p99 ms"];
    let reaches = format_table(&header, rows);
    let rows = floods.iter().map(|flood| {
        let median_of = |figures: &[f64]| median(figures.iter().copied());
        vec![
            flood.pace.name(),
            format_count(median_of(&flood.calls) as usize),
            format_count(median_of(&flood.commits) as usize),
            format_count(median_of(&flood.deltas) as usize),
            format_figure(median_of(&flood.calls) / median_of(&flood.commits), 1),
            format_count(median_of(&flood.merged) as usize),
            format_count(flood.lags as usize),
            format_figure(median_of(&flood.sync_ms), 2),
            format_figure(median_of(&flood.cpu_us), 1),
        ]
    });
    let header = [
        "calls made",
        "calls/s",
        "commits/s",
        "deltas/s",
        "calls/commit",
        "deltas merged",
        "lags",
        "sync ms",
        "server CPU µs/delta",
    ];
    let floods_table = format_table(&header, rows);
    let best = max_deltas_per_second(floods);
    format!(
        "Every listener is a separate WebSocket on loopback and subscribes to one row. A call on \
         the first WebSocket updates the row. The next call starts when the previous delta has \
         reached all listeners.\n\n\
         {reaches}\n\n\
         Then {listeners} listeners subscribe to the row, and calls are made for {seconds} s: \
         either at an even rate, or each one as soon as an earlier one is answered, with a fixed \
         number of calls in flight. *Deltas/s* counts the deltas that arrive, one for each commit \
         and listener. Calls that wait for the same sync share a commit and its delta, so this is \
         less than calls/s times listeners. *Merged* deltas are of commits that a listener received \
         together with a later one, because it had fallen behind. *Lags* count how often the queue \
         of a listener was dropped, because it had fallen too far behind: it then catches up from \
         its last event.\n\n{floods_table}\n\n\
         - Most deltas a second: {best} (goal: {goal}).",
        seconds = plan.seconds,
        listeners = plan.listeners,
        best = format_count(best as usize),
        goal = format_count(GOAL as usize),
    )
}

fn max_deltas_per_second(floods: &[Throughput]) -> f64 {
    floods.iter().map(|flood| median(flood.deltas.iter().copied())).fold(0.0, f64::max)
}

fn reach_plot(reaches: &[Latency]) -> Plot {
    let line = |name: &str, color, share, pick: fn(&Latency) -> &[f64]| {
        let points = reaches
            .iter()
            .map(|reach| (reach.listeners as f64, percentile(pick(reach).iter().copied(), share)));
        Line { name: name.to_owned(), color, dashed: share > 0.5, points: points.collect() }
    };
    let lines = vec![
        line("delta at the last listener, p99", 0, 0.99, |reach| &reach.last_ms),
        line("delta at the last listener, p50", 0, 0.5, |reach| &reach.last_ms),
        line("answer to the caller, p99", 1, 0.99, |reach| &reach.answer_ms),
        line("answer to the caller, p50", 1, 0.5, |reach| &reach.answer_ms),
    ];
    Plot {
        title: "From a call to its delta".to_owned(),
        x: Axis { label: "WebSockets that watch the row".to_owned(), log: true },
        y: Axis { label: "ms".to_owned(), log: true },
        panels: vec![Panel { title: String::new(), lines }],
    }
}

fn flood_plot(plan: &Plan, floods: &[Throughput]) -> Plot {
    let evenly = floods.iter().filter_map(|flood| match flood.pace {
        Pace::Evenly(rate) => Some((rate as f64, flood)),
        Pace::Answered(_) => None,
    });
    let line = |name: &str, color, dashed, y: &dyn Fn(f64, &Throughput) -> f64| {
        let points = evenly.clone().map(|(rate, flood)| (rate, y(rate, flood)));
        Line { name: name.to_owned(), color, dashed, points: points.collect() }
    };
    let lines = vec![
        line("one for each call and listener", QUIET, false, &|rate, _| {
            rate * plan.listeners as f64
        }),
        line("delivered", 0, false, &|_, flood| median(flood.deltas.iter().copied())),
        line("goal", QUIET, true, &|_, _| GOAL),
    ];
    Plot {
        title: format!("Deltas per second, {} listeners of one row", plan.listeners),
        x: Axis { label: "calls/s, made evenly".to_owned(), log: false },
        y: Axis { label: "deltas/s".to_owned(), log: false },
        panels: vec![Panel { title: String::new(), lines }],
    }
}
