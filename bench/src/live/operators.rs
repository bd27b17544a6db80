//! Part 2: the cost of a commit for a query that it affects, by table size, compared with running the query again.
//!
//! Tables of all sizes exist at the same time and take commits in turn. Each commit goes through a router with all
//! queries. So all values in a row of the report were measured at almost the same time.

use std::time::{Duration, Instant};

use abide_live::{Binding, Planner, Router};
use abide_schema::share::ShareKey;
use serde_json::{Value as JsonValue, json};

use super::Scope;
use super::help_desk::{AGENT, HelpDesk, ROLE, TEAM};
use super::report::{Section, format_count, format_figure, format_table};
use crate::plot::{Axis, Line, Panel, Plot};
use crate::statistics::{median, percentile};

struct Operator {
    name: &'static str,
    sql: &'static str,
    params: fn() -> JsonValue,
}

const OPERATORS: [Operator; 6] = [
    Operator {
        name: "filter",
        sql: "SELECT id, session_id, tokens FROM messages WHERE role = :role",
        params: || json!({"role": ROLE}),
    },
    Operator {
        name: "two-way join",
        sql: "SELECT m.id, m.tokens, s.status FROM messages m \
              JOIN sessions s ON s.id = m.session_id WHERE s.agent_id = :agent",
        params: || json!({"agent": AGENT}),
    },
    Operator {
        name: "four-way join",
        sql: "SELECT r.id, r.score, m.tokens, s.status, a.team FROM reviews r \
              JOIN messages m ON m.id = r.message_id JOIN sessions s ON s.id = m.session_id \
              JOIN agents a ON a.id = s.agent_id WHERE a.team = :team",
        params: || json!({"team": TEAM}),
    },
    Operator {
        name: "GROUP BY",
        sql: "SELECT role, count(*), sum(tokens), max(tokens) FROM messages GROUP BY role",
        params: || json!({}),
    },
    Operator { name: "count(*)", sql: "SELECT count(*) FROM messages", params: || json!({}) },
    Operator {
        name: "top 10",
        sql: "SELECT id, session_id, tokens FROM messages ORDER BY tokens DESC LIMIT 10",
        params: || json!({}),
    },
];

/// Each kind of commit, with the most tokens and with few.
const ROUND: usize = 6;

/// One query over tables of one size.
struct Watched {
    operator: &'static Operator,
    router: Router,
    binding: Binding,
    first_us: f64,
    delta_us: Vec<f64>,
    delta_steps: Vec<f64>,
    again_us: Vec<f64>,
    again_steps: Vec<f64>,
    rows: usize,
    deltas: usize,
}

/// Tables of one size, and all queries over them.
struct Tables {
    messages: i64,
    help_desk: HelpDesk,
    watched: Vec<Watched>,
    spent: Duration,
}

/// Measures all queries at all sizes.
pub(crate) fn section(scope: &Scope) -> Section {
    let (sizes, rounds, budget): (&[i64], usize, Duration) = if scope.quick {
        (&[100, 1_000], 3, Duration::from_secs(2))
    } else {
        (&[1_000, 10_000, 100_000, 1_000_000], 200, Duration::from_secs(60))
    };
    let mut all: Vec<Tables> = sizes.iter().map(|messages| fill_tables(*messages, scope)).collect();
    for round in 0..rounds {
        for tables in all.iter_mut().filter(|tables| tables.spent < budget) {
            let started = Instant::now();
            tables.run_round(round);
            tables.spent += started.elapsed();
        }
    }
    for watched in all.iter().flat_map(|tables| &tables.watched) {
        assert!(watched.deltas > 0, "no commit changed {}", watched.operator.name);
    }
    Section {
        number: 2,
        title: "The cost of a commit for a query that it affects",
        text: format_text(&all),
        plots: vec![("live-operators.svg", plot(&all))],
    }
}

fn fill_tables(messages: i64, scope: &Scope) -> Tables {
    eprintln!("part 2: {messages} messages");
    let mut help_desk = HelpDesk::new(messages, &scope.dir);
    let planner = Planner::new(help_desk.catalog.clone());
    let watched = OPERATORS.iter().map(|operator| {
        let JsonValue::Object(params) = (operator.params)() else {
            unreachable!("parameters are an object")
        };
        let binding = planner.bind(operator.sql, &params).expect("the query can be live");
        let mut router = Router::new(help_desk.catalog.clone());
        router.attach(&binding, &ShareKey::Operator).expect("the limit is not reached");
        Watched {
            operator,
            router,
            binding,
            first_us: 0.0,
            delta_us: Vec::new(),
            delta_steps: Vec::new(),
            again_us: Vec::new(),
            again_steps: Vec::new(),
            rows: 0,
            deltas: 0,
        }
    });
    let mut watched: Vec<Watched> = watched.collect();
    // The first change may create state. The warm-up covers each kind of commit.
    for commit in 0..2 * ROUND {
        let changes = help_desk.change();
        for watched in &mut watched {
            let (us, _) = watched.commit(&changes, &mut help_desk);
            if commit == 0 {
                watched.first_us = us;
            }
        }
        help_desk.commit();
    }
    Tables { messages, help_desk, watched, spent: Duration::ZERO }
}

impl Tables {
    /// Makes each kind of commit once, and then runs each query again.
    fn run_round(&mut self, round: usize) {
        for commit in 0..ROUND {
            let changes = self.help_desk.change();
            // The first query runs with cold pages, so the order rotates.
            self.watched.rotate_left(1);
            for watched in &mut self.watched {
                let (us, steps) = watched.commit(&changes, &mut self.help_desk);
                watched.delta_us.push(us);
                watched.delta_steps.push(steps);
            }
            if commit == round % ROUND {
                self.watched
                    .iter_mut()
                    .for_each(|watched| watched.run_query_again(&mut self.help_desk));
            }
            self.help_desk.commit();
        }
    }
}

impl Watched {
    /// Measures a commit in microseconds and steps.
    fn commit(&mut self, changes: &abide_live::Changes, help_desk: &mut HelpDesk) -> (f64, f64) {
        help_desk.database.take_steps();
        let started = Instant::now();
        let deltas = self.router.commit(changes, &mut help_desk.database);
        let us = started.elapsed().as_secs_f64() * 1e6;
        for (_, delta) in &deltas {
            assert!(delta.is_ok(), "{}: {delta:?}", self.operator.name);
        }
        self.deltas += deltas.len();
        (us, help_desk.database.take_steps() as f64)
    }

    fn run_query_again(&mut self, help_desk: &mut HelpDesk) {
        help_desk.database.take_steps();
        let started = Instant::now();
        self.rows =
            help_desk.database.count_rows(self.binding.snapshot_sql(), self.binding.params());
        self.again_us.push(started.elapsed().as_secs_f64() * 1e6);
        self.again_steps.push(help_desk.database.take_steps() as f64);
    }
}

/// The reported values of one query at one size.
struct Measured {
    messages: i64,
    rows: usize,
    first_us: f64,
    delta_us: f64,
    delta_p99_us: f64,
    delta_steps: f64,
    again_us: f64,
    again_steps: f64,
}

fn collect_measured(all: &[Tables], operator: &str) -> Vec<Measured> {
    let of_operator = all.iter().map(|tables| {
        let watched = tables
            .watched
            .iter()
            .find(|watched| watched.operator.name == operator)
            .expect("every query is watched at every size");
        Measured {
            messages: tables.messages,
            rows: watched.rows,
            first_us: watched.first_us,
            delta_us: median(watched.delta_us.iter().copied()),
            delta_p99_us: percentile(watched.delta_us.iter().copied(), 0.99),
            delta_steps: median(watched.delta_steps.iter().copied()),
            again_us: median(watched.again_us.iter().copied()),
            again_steps: median(watched.again_steps.iter().copied()),
        }
    });
    of_operator.collect()
}

fn format_text(all: &[Tables]) -> String {
    let mut rows = Vec::new();
    let mut growth = Vec::new();
    for operator in &OPERATORS {
        let found = collect_measured(all, operator.name);
        for found in &found {
            rows.push(vec![
                operator.name.to_owned(),
                format_count(found.messages as usize),
                format_count(found.rows),
                format_figure(found.delta_us, 1),
                format_figure(found.delta_p99_us, 1),
                format_count(found.delta_steps as usize),
                format_figure(found.again_us, 1),
                format_count(found.again_steps as usize),
                format_figure(found.again_us / found.delta_us, 1),
                format_figure(found.first_us, 0),
            ]);
        }
        if let (Some(first), Some(last)) = (found.first(), found.last()) {
            let us = last.delta_us / first.delta_us;
            let steps = last.delta_steps / first.delta_steps;
            let us = format_figure(us, 1);
            let steps = format_figure(steps, 1);
            growth
                .push(format!("- {}: {us} times the time, {steps} times the steps", operator.name));
        }
    }
    let header = [
        "query",
        "messages",
        "result rows",
        "delta p50 µs",
        "p99 µs",
        "steps",
        "again p50 µs",
        "steps",
        "again / delta",
        "first delta µs",
    ];
    let queries = OPERATORS
        .iter()
        .map(|operator| format!("- {}: `{}`", operator.name, operator.sql))
        .collect::<Vec<_>>()
        .join("\n");
    format!(
        "A commit adds, changes or removes a message and its review, and updates their session. *Delta* \
         is the router's work: it writes the changed rows to temporary tables, finds the query, and \
         computes its delta. *Again* is a new run of the query with all its rows; where *again / delta* \
         is below 1, running the query again would be faster. *Steps* are instructions of SQLite's \
         virtual machine; their number does not depend on the machine. *First delta* is the delta of the \
         first commit after a subscription started. It also builds the state that later deltas use, such \
         as the counts of groups. (In an engine a thread for queries builds it if that takes too \
         long.)\n\n{queries}\n\n{}\n\n\
         From the smallest to the largest tables, a delta takes:\n\n{}",
        format_table(&header, rows),
        growth.join("\n"),
    )
}

fn plot(all: &[Tables]) -> Plot {
    let panels = OPERATORS.iter().map(|operator| {
        let found = collect_measured(all, operator.name);
        let line = |name: &str, color, pick: fn(&Measured) -> f64| {
            let points = found.iter().map(|found| (found.messages as f64, pick(found)));
            Line { name: name.to_owned(), color, dashed: color == 1, points: points.collect() }
        };
        let lines = vec![
            line("query run again, p50", 1, |found| found.again_us),
            line("its delta, p50", 0, |found| found.delta_us),
        ];
        Panel { title: operator.name.to_owned(), lines }
    });
    Plot {
        title: "A delta compared with running the query again".to_owned(),
        x: Axis { label: "rows of messages".to_owned(), log: true },
        y: Axis { label: "µs".to_owned(), log: true },
        panels: panels.collect(),
    }
}
