//! Part 1: the cost of a commit in the router with many subscriptions that it does not affect, each with its own
//! parameters. Also the memory and time of such a subscription.
//!
//! Each kind of query has its own process, so that its memory can be measured. In it, the routers of all sizes
//! exist at the same time and take each commit in turn.

use std::time::Instant;

use abide_live::{BindingId, Planner, Router, WorkCounters};
use abide_schema::share::ShareKey;
use clap::Args;
use serde_json::{Value as JsonValue, json};

use super::Scope;
use super::help_desk::HelpDesk;
use super::process::{resident_bytes, run_child};
use super::report::{Section, format_count, format_figure, format_table};
use super::whole;
use crate::cpu;
use crate::plot::{Axis, Line, Panel, Plot};
use crate::statistics::{median, percentile};

/// A kind of query, and the parameters of its n-th subscription.
struct Kind {
    name: &'static str,
    sql: &'static str,
    params: fn(usize) -> JsonValue,
}

/// A key that no session has.
fn no_match(n: usize) -> String {
    format!("x_{n:07}")
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "equality",
        sql: "SELECT id, role, content FROM messages WHERE session_id = :session",
        params: |n| json!({"session": no_match(n)}),
    },
    Kind {
        name: "two columns",
        sql: "SELECT id, content FROM messages WHERE session_id = :session AND role = :role",
        params: |n| json!({"session": no_match(n), "role": "tool"}),
    },
    Kind {
        name: "range",
        sql: "SELECT id, session_id FROM messages WHERE tokens BETWEEN :low AND :high",
        params: |n| {
            // Scattered, so that the tree is not built in order; a commit's tokens are between two ranges.
            let low = n.wrapping_mul(611_953) % 1_000_000 * 10;
            json!({"low": low, "high": low + 3})
        },
    },
    Kind {
        name: "join",
        sql: "SELECT m.id, m.content, s.status FROM messages m \
              JOIN sessions s ON s.id = m.session_id WHERE s.agent_id = :agent",
        params: |n| json!({"agent": n + 1_000}),
    },
];
/// All kinds in turn.
const MIXED: &str = "all four";

/// Options of the process that measures one kind.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// An index into [`KINDS`]; a larger value means all in turn.
    #[arg(long)]
    kind: usize,
    /// Numbers of subscriptions.
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Number of commits.
    #[arg(long)]
    commits: usize,
}

/// The state of one number of subscriptions.
struct SubscriptionSet {
    size: usize,
    router: Router,
    ids: Vec<BindingId>,
    register_s: f64,
    register_cpu_s: f64,
    bytes: f64,
    commit_us: Vec<f64>,
    before: WorkCounters,
}

/// Measures one kind and prints the results as JSON.
pub(crate) fn measure(options: &Options) {
    let mut help_desk = HelpDesk::new(1_000, &std::env::temp_dir());
    let planner = Planner::new(help_desk.catalog.clone());
    let mut crowds: Vec<SubscriptionSet> = options
        .sizes
        .iter()
        .map(|size| attach_subscriptions(&help_desk, &planner, options.kind, *size))
        .collect();
    let warm_up = options.commits / 10;
    for number in 0..warm_up + options.commits {
        if number == warm_up {
            crowds.iter_mut().for_each(|crowd| crowd.before = crowd.router.counters());
        }
        let changes = help_desk.change();
        for crowd in &mut crowds {
            let started = Instant::now();
            let deltas = crowd.router.commit(&changes, &mut help_desk.database);
            let us = started.elapsed().as_secs_f64() * 1e6;
            assert!(deltas.is_empty(), "no subscription is affected");
            if number >= warm_up {
                crowd.commit_us.push(us);
            }
        }
        help_desk.commit();
        // The first router runs with cold pages of a commit, so the order rotates.
        crowds.rotate_left(1);
    }
    crowds.sort_by_key(|crowd| crowd.size);
    let found: Vec<JsonValue> = crowds.into_iter().map(|crowd| to_json(crowd, options)).collect();
    println!("{}", json!(found));
}

fn attach_subscriptions(
    help_desk: &HelpDesk,
    planner: &Planner,
    kind: usize,
    size: usize,
) -> SubscriptionSet {
    let before = resident_bytes();
    let mut router = Router::new(help_desk.catalog.clone());
    let started = Instant::now();
    let cpu_before = cpu::process_seconds();
    let ids: Vec<BindingId> = (0..size)
        .map(|n| {
            let kind = KINDS.get(kind).unwrap_or(&KINDS[n % KINDS.len()]);
            let JsonValue::Object(params) = (kind.params)(n) else { return None };
            let binding = planner.bind(kind.sql, &params).ok()?;
            router.attach(&binding, &ShareKey::Operator).ok()
        })
        .collect::<Option<_>>()
        .expect("the queries can be live");
    let register_s = started.elapsed().as_secs_f64();
    let register_cpu_s = cpu::process_seconds() - cpu_before;
    assert_eq!(router.len(), size, "all subscriptions have different parameters");
    let bytes = resident_bytes() - before - (size_of::<BindingId>() * size) as f64;
    let before = router.counters();
    SubscriptionSet {
        size,
        router,
        ids,
        register_s,
        register_cpu_s,
        bytes,
        commit_us: Vec::new(),
        before,
    }
}

fn to_json(mut crowd: SubscriptionSet, options: &Options) -> JsonValue {
    let after = crowd.router.counters();
    let before = crowd.before;
    let each = |count: fn(&WorkCounters) -> u64| {
        (count(&after) - count(&before)) as f64 / options.commits as f64
    };
    let work = [
        each(|work| work.rows_routed),
        each(|work| work.probes),
        each(|work| work.spent.statements),
    ];
    // Not in insertion order; the sizes are not multiples of this prime.
    let scattered: Vec<BindingId> =
        (0..crowd.ids.len()).map(|n| crowd.ids[n * 7_919 % crowd.ids.len()]).collect();
    let started = Instant::now();
    scattered.into_iter().for_each(|id| crowd.router.detach(id, &ShareKey::Operator));
    let unregister_s = started.elapsed().as_secs_f64();
    assert!(crowd.router.is_empty(), "all are detached");
    json!({
        "size": crowd.size,
        "p50_us": median(crowd.commit_us.iter().copied()),
        "p99_us": percentile(crowd.commit_us.iter().copied(), 0.99),
        "work": work,
        "bytes": crowd.bytes / crowd.size.max(1) as f64,
        "register_s": crowd.register_s,
        "register_cpu_s": crowd.register_cpu_s,
        "unregister_s": unregister_s,
    })
}

/// The results of one kind with one number of subscriptions.
struct Measured {
    kind: &'static str,
    size: usize,
    p50_us: f64,
    p99_us: f64,
    work: [f64; 3],
    bytes: f64,
    register_s: f64,
    register_cpu_s: f64,
    unregister_s: f64,
}

/// Measures all kinds, each in its own process.
pub(crate) fn section(scope: &Scope) -> Section {
    let (sizes, commits): (&[usize], usize) = if scope.quick {
        (&[0, 1, 1_000], 300)
    } else {
        (&[0, 1, 1_000, 100_000, 1_000_000], 30_000)
    };
    let mut found = Vec::new();
    for kind in 0..=KINDS.len() {
        let name = KINDS.get(kind).map_or(MIXED, |kind| kind.name);
        eprintln!("part 1: {name}");
        // The smallest size has one subscription of each kind.
        let few = if kind < KINDS.len() { 1 } else { KINDS.len() };
        let sizes: Vec<String> =
            sizes.iter().map(|size| if *size == 1 { few } else { *size }.to_string()).collect();
        let output = run_child(&[
            "live-routing",
            &format!("--kind={kind}"),
            &format!("--sizes={}", sizes.join(",")),
            &format!("--commits={commits}"),
        ]);
        found.extend(output.as_array().into_iter().flatten().map(|one| read_measured(name, one)));
    }
    Section {
        number: 1,
        title: "The cost of a commit with subscriptions that it does not affect",
        text: format!("{}\n\n{}", format_text(&found, commits), whole::format_section(scope)),
        plots: vec![("live-routing.svg", plot(&found))],
    }
}

fn read_measured(kind: &'static str, json: &JsonValue) -> Measured {
    let number = |name: &str| json[name].as_f64().unwrap_or(f64::NAN);
    let work = [0, 1, 2].map(|at| json["work"][at].as_f64().unwrap_or(f64::NAN));
    Measured {
        kind,
        size: number("size") as usize,
        p50_us: number("p50_us"),
        p99_us: number("p99_us"),
        work,
        bytes: number("bytes"),
        register_s: number("register_s"),
        register_cpu_s: number("register_cpu_s"),
        unregister_s: number("unregister_s"),
    }
}

fn format_text(found: &[Measured], commits: usize) -> String {
    let rows = found.iter().map(|found| {
        let [rows, probes, statements] = found.work.map(|each| format_figure(each, 1));
        vec![
            found.kind.to_owned(),
            format_count(found.size),
            format_figure(found.p50_us, 2),
            format_figure(found.p99_us, 2),
            rows,
            probes,
            statements,
        ]
    });
    let header = ["query", "subscriptions", "p50 µs", "p99 µs", "rows", "probes", "statements"];
    let costs = format_table(&header, rows);
    let max = found.iter().map(|found| found.size).max().unwrap_or_default();
    let rows = found.iter().filter(|found| found.size == max).map(|found| {
        vec![
            found.kind.to_owned(),
            format_figure(found.bytes, 0),
            format_figure(found.register_s, 2),
            format_figure(found.register_cpu_s, 2),
            format_figure(found.unregister_s, 2),
        ]
    });
    let header =
        ["query", "bytes each", "subscribe all, s", "of which CPU, s", "unsubscribe all, s"];
    let takes = format_table(&header, rows);
    let queries = KINDS
        .iter()
        .map(|kind| format!("- {}: `{}`", kind.name, kind.sql))
        .collect::<Vec<_>>()
        .join("\n");
    let spread = found
        .iter()
        .map(|found| found.kind)
        .map(|kind| {
            let of_kind = found.iter().filter(|found| found.kind == kind && found.size > 0);
            let p50: Vec<f64> = of_kind.map(|found| found.p50_us).collect();
            p50.iter().copied().fold(f64::NEG_INFINITY, f64::max)
                - p50.iter().copied().fold(f64::INFINITY, f64::min)
        })
        .fold(0.0, f64::max);
    let register_s = found.iter().map(|found| found.register_s).fold(0.0, f64::max);
    let bytes =
        found.iter().filter(|found| found.size == max).map(|found| found.bytes).fold(0.0, f64::max);
    format!(
        "A commit changes a row of `messages`, its row of `sessions` and one of `reviews`. There is a \
         router for each number of subscriptions, and every one of {commits} commits goes through \
         all of them, one after the other. *p50* and *p99* are the router's time for a commit. The \
         last columns count, for each commit: changed rows examined, probes, SQL statements \
         run.\n\n{queries}\n\n{costs}\n\n\
         For {max} subscriptions (*bytes each* is the growth of the process's resident memory for \
         each subscription, in the planner, which parses and caches queries, and in the router):\n\n{takes}\n\n\
         - From the first subscription to {max}, the p50 differs by at most {spread} µs (goal: \
         2).\n\
         - The largest subscription takes {bytes:.0} bytes (goal: 1,024).\n\
         - {max} subscriptions start in at most {register_s:.1} s (goal for a million: 5).\n\n\
         In the join, the parameter restricts a column of `sessions`, but most of the changed rows \
         are in other tables. So each commit runs statements that read this column for the changed \
         rows. Their number depends on the number of different queries, not of subscriptions: the \
         time grows from 0 to 1 subscription, and not further.",
        commits = format_count(commits),
        max = format_count(max),
        spread = format_figure(spread, 2),
    )
}

fn plot(found: &[Measured]) -> Plot {
    let kinds = KINDS.iter().map(|kind| kind.name).chain([MIXED]).enumerate();
    let lines = kinds.map(|(color, kind)| {
        let of_kind = found.iter().filter(|found| found.kind == kind);
        let points = of_kind.map(|found| (found.size as f64, found.p50_us)).collect();
        Line { name: kind.to_owned(), color, dashed: false, points }
    });
    Plot {
        title: "Router time of a commit, p50".to_owned(),
        x: Axis { label: "subscriptions that the commit does not concern".to_owned(), log: true },
        y: Axis { label: "µs".to_owned(), log: true },
        panels: vec![Panel { title: String::new(), lines: lines.collect() }],
    }
}
