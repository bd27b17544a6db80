//! Limits at their maximum depth and number: at the limit, one below and one above, for each level of a chain of delegations.
//!
//! A budget was checked for the run and its parent, and a mistake at the fifth level was in no test. Each test fails when the check
//! of one level is removed.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use abide_client::{Abide, Config};
use abide_models::{ConfigContext, Models};

use crate::fixture::{FixtureOptions, RuntimeFixture, providers};
use crate::limits::MovedClock;

/// The deepest level of a chain of delegations.
const DEEPEST: usize = 5;

/// Tokens and millionths of a dollar of each answer.
const TOKENS: i64 = 1_100;
const MICROS: i64 = 2_800;

const USAGE: &str = "usage: { input_tokens: 1000, output_tokens: 100 }";

/// A level of a chain: its limits, and how many calls of `look` it makes if it is the last one.
struct Chain {
    /// Of the runs from the first to the deepest one.
    limits: Vec<String>,
    /// What the last one does.
    last: String,
    /// The definition of the last one, besides its limits.
    tools: &'static str,
}

/// An answer that calls `look`.
fn looks() -> String {
    format!("  - {{ calls: [{{ name: look, arguments: {{ order: A }} }}], {USAGE} }}\n")
}

impl Chain {
    /// Agents that delegate to one another; the last one looks six times at most.
    fn new(levels: usize) -> Chain {
        Chain {
            limits: vec!["{}".to_owned(); levels + 1],
            last: format!("{}  - {{ text: Looked., {USAGE} }}\n", looks().repeat(6)),
            tools: "tools: [look]\n",
        }
    }

    fn limit(mut self, level: usize, limits: &str) -> Chain {
        self.limits[level] = limits.to_owned();
        self
    }

    /// The folder and the models. Each answer has a price.
    fn options(&self) -> FixtureOptions {
        let options = FixtureOptions::new(&self.definition(0), "answers: []");
        let folder = options.folder.path();
        let mut config = "providers:\n".to_owned();
        for level in 0..self.limits.len() {
            let script = match self.next(level) {
                None => format!("answers:\n{}", self.last),
                Some(next) => format!(
                    "answers:\n  - {{ calls: [{{ name: task, arguments: {{ agent: {next}, task: Look. }} }}], \
                     {USAGE} }}\n  - {{ text: Done., {USAGE} }}\n"
                ),
            };
            std::fs::write(folder.join(format!("p{level}.yaml")), script).expect("it is written");
            writeln!(
                config,
                "  - {{ id: p{level}, kind: script, script: p{level}.yaml, models: [m{level}], \
                 price: {{ input_per_million: 2, output_per_million: 8 }} }}"
            )
            .expect("writing to a string succeeds");
            if level > 0 {
                let definition = format!("mode: subagent\n{}", self.definition(level));
                options.define(&format!("a{level}.yaml"), &definition);
            }
        }
        let config = abide_yaml::from_str(&config).expect("it is a configuration");
        let models = Models::new(config, &ConfigContext { environment: &|_| None, folder });
        FixtureOptions { models: models.expect("it is valid"), ..options }
    }

    /// The agent that a level delegates to; `None` for the last one.
    fn next(&self, level: usize) -> Option<String> {
        (level + 1 < self.limits.len()).then(|| format!("a{}", level + 1))
    }

    fn definition(&self, level: usize) -> String {
        let works = match self.next(level) {
            Some(next) => format!("subagents: [{next}]\n"),
            None => self.tools.to_owned(),
        };
        format!("config: {{ provider: p{level} }}\nlimits: {}\n{works}", self.limits[level])
    }

    /// Runs the chain to the end of its first run.
    async fn run(&self) -> RuntimeFixture {
        let fixture = self.options().open().await;
        assert_eq!(*fixture.problems.borrow(), []);
        fixture.begin("Look.").await;
        fixture.until("SELECT 1 FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL").await;
        fixture
    }
}

/// The runs of a chain from the first to the deepest one: the code of the error or the status, and the number of answers.
async fn ends(fixture: &RuntimeFixture) -> Vec<(String, i64)> {
    let sql = "SELECT coalesce(r.error_code, r.status), r.iterations FROM runs AS r \
               LEFT JOIN delegations AS d ON d.run_id = r.id ORDER BY coalesce(d.depth, 0)";
    fixture.abide.sql(sql).fetch().await.expect("they are read")
}

/// A budget of any level stops the deepest run when the answers below that level have used it up: those of the levels
/// between, and three of the deepest run.
#[tokio::test]
async fn budgets_of_each_level_stop_the_deepest_run() {
    for (code, of_answer) in [("token_limit", TOKENS), ("cost_limit", MICROS)] {
        for level in 0..=DEEPEST {
            for (more, answers) in [(-1, 3), (0, 3), (1, 4)] {
                let between = i64::try_from(DEEPEST - level).expect("it is small");
                let limit = (between + 3) * of_answer + more;
                let limits = match code {
                    "token_limit" => format!("{{ tokens: {limit} }}"),
                    _ => format!("{{ cost_usd: {} }}", limit as f64 / 1e6),
                };
                let fixture = Chain::new(DEEPEST).limit(level, &limits).run().await;
                let ended = ends(&fixture).await;
                let above = vec![("done".to_owned(), 2); level];
                let below = vec![(code.to_owned(), 1); DEEPEST - level];
                let deepest = vec![(code.to_owned(), answers)];
                let expected = [above, below, deepest].concat();
                assert_eq!(ended, expected, "{code} of level {level}: {limit}");
                fixture.close().await;
            }
        }
    }
}

/// Each run must have ended when the time of a level above it is over, and its row says when that is.
#[tokio::test]
async fn the_time_limit_of_each_level_ends_the_deepest_run() {
    for level in 0..=DEEPEST {
        let chain = Chain {
            last: "  - { calls: [{ name: pay, arguments: { order: A } }] }\n".to_owned(),
            tools: "tools: [pay]\ninterrupt_on: { pay: true }\n",
            ..Chain::new(DEEPEST)
                .limit(level, "{ wall_clock_seconds: 600, wall_clock_counts_waits: true }")
        };
        let options = chain.options();
        let clock = Arc::new(MovedClock::default());
        let config = Config { clock: clock.clone(), ..Config::default() };
        let file = options.folder.path().join("abide.db");
        let abide = Abide::open_with(file, config).expect("the file opens");
        let fixture = options.open_file(abide).await;
        fixture.begin("Pay.").await;
        fixture.until("SELECT 1 FROM runs WHERE id = 'r1' AND status = 'waiting'").await;
        let sql = "SELECT r.created_at, r.deadline_at FROM runs AS r \
                   LEFT JOIN delegations AS d ON d.run_id = r.id ORDER BY coalesce(d.depth, 0)";
        let times: Vec<(i64, Option<i64>)> = fixture.abide.sql(sql).fetch().await.expect("read");
        let must_end = Some(times[level].0 + 600_000_000);
        let deadlines: Vec<Option<i64>> = times.iter().map(|(_, deadline)| *deadline).collect();
        let expected = [vec![None; level], vec![must_end; DEEPEST + 1 - level]].concat();
        assert_eq!(deadlines, expected, "level {level}");
        let engine = fixture.abide.engine().expect("it is embedded");
        clock.0.store(590_000_000, Ordering::SeqCst);
        engine.fire_due().await.expect("it is open");
        let sql = "SELECT 1 FROM runs WHERE ended_at IS NOT NULL";
        let ended: Vec<(i64,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        assert_eq!(ended, [], "level {level}: before the limit");
        clock.0.store(601_000_000, Ordering::SeqCst);
        engine.fire_due().await.expect("it is open");
        fixture.until("SELECT 1 FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL").await;
        let ended: Vec<String> = ends(&fixture).await.into_iter().map(|(how, _)| how).collect();
        assert_eq!(ended[..level], vec!["done"; level], "level {level}");
        assert_eq!(ended[level], "execution_timeout", "level {level}");
        // A run whose parent has ended first is aborted.
        let has_ended = |how: &String| ["execution_timeout", "aborted"].contains(&how.as_str());
        assert!(ended[level..].iter().all(has_ended), "level {level}: {ended:?}");
        assert_eq!(fixture.ledger(), [""; 0]);
        fixture.close().await;
    }
}

/// A run may make as many calls as its limit says; the next one is skipped.
#[tokio::test]
async fn the_limit_of_calls_holds_at_each_level() {
    for level in 0..=DEEPEST {
        // The last level looks six times, the others delegate once.
        let calls = if level == DEEPEST { 6 } else { 1 };
        for (limit, looks) in [(calls, 6), (calls - 1, if level == DEEPEST { 5 } else { 0 })] {
            let limits = format!("{{ tool_calls: {limit} }}");
            let fixture = Chain::new(DEEPEST).limit(level, &limits).run().await;
            assert_eq!(fixture.ledger().len(), looks, "level {level}, {limit} calls");
            let runs = if looks == 0 { level + 1 } else { DEEPEST + 1 };
            assert_eq!(ends(&fixture).await.len(), runs, "level {level}, {limit} calls");
            fixture.close().await;
        }
    }
}

/// A chain is as deep as the server and the first agent permit. The run at the limit continues without the next one.
#[tokio::test]
async fn a_chain_ends_at_the_limit_of_its_depth() {
    for (limits, deepest) in
        [("{}", DEEPEST), ("{ delegation_depth: 9 }", DEEPEST), ("{ delegation_depth: 5 }", 5)]
            .into_iter()
            .chain([("{ delegation_depth: 4 }", 4), ("{ delegation_depth: 1 }", 1)])
            .chain([("{ delegation_depth: 0 }", 0)])
    {
        let fixture = Chain::new(DEEPEST + 1).limit(0, limits).run().await;
        let expected = vec![("done".to_owned(), 2); deepest + 1];
        assert_eq!(ends(&fixture).await, expected, "{limits}");
        let refused = format!(
            "SELECT 1 FROM agent_state WHERE role = 'tool' \
             AND content LIKE '%deep; the limit is {deepest}%'"
        );
        let refused: Vec<(i64,)> = fixture.abide.sql(&refused).fetch().await.expect("it is read");
        assert_eq!(refused.len(), 1, "{limits}");
        fixture.close().await;
    }
}

/// The number of runs below the first one, including those that a subagent starts, at its maximum and above it.
#[tokio::test]
async fn the_number_of_descendants_is_limited_at_its_maximum() {
    for (limits, of_root, of_each, started) in [
        ("", 3, 0, 3),
        ("descendants: 3,", 3, 0, 3),
        ("descendants: 2,", 3, 0, 2),
        ("descendants: 6,", 2, 2, 6),
        ("descendants: 5,", 2, 2, 5),
        ("descendants: 300,", 257, 0, 256),
    ] {
        let delegates = |to: &str, times: usize| {
            let call = format!("{{ name: task, arguments: {{ agent: {to}, task: Go. }} }}");
            match times {
                0 => "answers: [{ text: Done. }]".to_owned(),
                _ => {
                    format!(
                        "answers: [{{ calls: [{}] }}, {{ text: Done. }}]",
                        vec![call; times].join(", ")
                    )
                }
            }
        };
        let scripts = [
            ("script", delegates("middle", of_root)),
            ("middle", delegates("leaf", of_each)),
            ("leaf", "answers: [{ text: Done. }]".to_owned()),
        ];
        let scripts: Vec<(&str, &str)> =
            scripts.iter().map(|(id, script)| (*id, script.as_str())).collect();
        let clerk = format!(
            "config: {{ provider: script }}\nsubagents: [middle]\n\
             limits: {{ {limits} tool_calls: 1000, parallel_tools: 16 }}\n"
        );
        let options = FixtureOptions {
            models: providers(&scripts),
            ..FixtureOptions::new(&clerk, "answers: []")
        };
        let middle = "mode: subagent\nconfig: { provider: middle }\nsubagents: [leaf]\n";
        options.define("middle.yaml", middle);
        options.define("leaf.yaml", "mode: subagent\nconfig: { provider: leaf }\n");
        let fixture = options.open().await;
        let run = fixture.begin("Go.").await;
        let (_, last) = fixture.output(&run.id, 0).await;
        assert_eq!(last.data["assistant_data"]["content"], "Done.", "{limits}");
        let sql = "SELECT count(*), sum(status = 'done') FROM runs WHERE parent_id IS NOT NULL";
        let runs: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        assert_eq!(runs, [(started, started)], "{limits}");
        let sql = "SELECT count(*) FROM agent_state WHERE role = 'tool' \
                   AND content LIKE '%descendants; the limit is%'";
        let refused: Vec<(i64,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        let asked = i64::try_from(of_root + of_root * of_each).expect("it is small");
        assert_eq!(refused, [(asked - started,)], "{limits}");
        fixture.close().await;
    }
}
