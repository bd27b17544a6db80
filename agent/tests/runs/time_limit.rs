//! `wall_clock_seconds` limits the time in which a run works. A wait for a person does not count, unless the definition says so.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abide_agent::{Settings, SettingsClock};
use abide_client::arguments::{DecideApproval, Decision, ExportRun, ImportRun};
use abide_client::embedded::Clock as _;
use abide_client::rows::RunSnapshot;
use abide_client::{Abide, Config};
use abide_tools::{Effect, Function, ToolContext};
use schemars::JsonSchema;
use serde::Deserialize;
use tempfile::TempDir;

use crate::fixture::{self, FixtureOptions, RuntimeFixture, providers, temporary_folder};
use crate::limits::MovedClock;

/// The argument of the tool `work`.
#[derive(Deserialize, JsonSchema)]
struct Work {
    seconds: i64,
}

/// An agent that works for some time and waits for an approval of `pay`, with a clock that moves when it works.
struct Worker {
    clock: Arc<MovedClock>,
    /// Whether it hands over to another agent before, which does the rest and has the limit.
    hands_over: bool,
    /// How long it works after the wait.
    seconds: i64,
}

const LIMIT: &str =
    "tools: [pay, work]\ninterrupt_on: { pay: true }\nlimits: { wall_clock_seconds: 600 }\n";
const HOUR: i64 = 3_600;

/// More than a call of `work` moves the clock.
const LASTS: Duration = Duration::from_secs(3_000);

impl Worker {
    fn new(seconds: i64) -> Worker {
        Worker { clock: Arc::new(MovedClock::default()), hands_over: false, seconds }
    }

    /// Starts a runtime over the file in a folder. The file, the runtime and the tool have the same clock.
    async fn open(&self, folder: TempDir) -> RuntimeFixture {
        let work = |seconds| {
            format!("{{ calls: [{{ name: work, arguments: {{ seconds: {seconds} }} }}] }}")
        };
        let rest = format!(
            "{}, {{ calls: [{{ name: pay, arguments: {{ order: A }} }}] }}, {}, {{ text: Done. }}]",
            work(50),
            work(self.seconds)
        );
        let (clerk, script, other) = if self.hands_over {
            // It has no limit of its own.
            let clerk = "subagents: [other]\ntools: [work]\n";
            let hands_over = "{ calls: [{ name: handoff_to_other }] }";
            let script = format!("answers: [{}, {hands_over}]", work(1_000));
            (clerk, script, format!("answers: [{{}}, {{}}, {rest}"))
        } else {
            (LIMIT, format!("answers: [{rest}"), "answers: []".to_owned())
        };
        let of_tool = Arc::clone(&self.clock);
        let of_settings = Arc::clone(&self.clock);
        let tool = Function::new("work", "Works.", move |work: Work, _: ToolContext| {
            of_tool.0.fetch_add(work.seconds * 1_000_000, Ordering::SeqCst);
            async { Ok::<_, String>("done") }
        })
        .effect(Effect::ReadOnly)
        .timeout(LASTS);
        let tools = fixture::tools(folder.path().join("ledger"));
        tools.add(tool).expect("it is a tool");
        // No lease expires when the clock moves.
        let lease = Duration::from_secs(80_000);
        let clock = SettingsClock::new(move || of_settings.now().0);
        let settings = Settings { lease, clock, ..Settings::named("runtime") };
        let models = providers(&[("script", &script), ("other", &other)]);
        let plan = FixtureOptions { folder, models, tools, settings };
        plan.define("clerk.yaml", &format!("name: clerk\nconfig: {{ provider: script }}\n{clerk}"));
        let other = "mode: subagent\nas_handoff: {}\nconfig: { provider: other }\n";
        plan.define("other.yaml", &format!("{other}{LIMIT}"));
        let config = Config { clock: self.clock.clone(), ..Config::default() };
        let file = plan.folder.path().join("abide.db");
        let fixture = plan.open_file(Abide::open_with(file, config).expect("the file opens")).await;
        assert_eq!(*fixture.problems.borrow(), []);
        fixture
    }

    /// Starts the run, which waits for its approval.
    async fn begin(&self) -> RuntimeFixture {
        let fixture = self.open(temporary_folder()).await;
        fixture.begin("Go on.").await;
        waits(&fixture).await;
        fixture
    }

    fn an_hour_passes(&self) {
        self.clock.0.fetch_add(HOUR * 1_000_000, Ordering::SeqCst);
    }
}

async fn waits(fixture: &RuntimeFixture) {
    fixture.until("SELECT 1 FROM runs WHERE status = 'waiting' OR ended_at IS NOT NULL").await;
    let engine = fixture.abide.engine().expect("it is embedded");
    engine.fire_due().await.expect("it is open");
    let sql = "SELECT status, reason FROM runs WHERE ended_at IS NULL";
    let found: Vec<(String, String)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(found, [("waiting".to_owned(), "approval".to_owned())]);
}

/// Approves the call, and returns the code or the kind of the last event.
async fn end(fixture: RuntimeFixture) -> String {
    waits(&fixture).await;
    let sql = "SELECT id FROM approvals WHERE status = 'pending'";
    let pending: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    let decide = DecideApproval::new(Decision::Approve).id(&pending[0].0);
    fixture.abide.call(decide).await.expect("it is pending");
    let ended = "SELECT coalesce(error_code, status) FROM runs WHERE ended_at IS NOT NULL";
    fixture.until(ended).await;
    let found: Vec<(String,)> = fixture.abide.sql(ended).fetch().await.expect("it is read");
    fixture.close().await;
    found[0].0.clone()
}

/// How much a run may work after a wait, with a limit of 600 seconds of which it has worked 50, and what becomes of it.
const ENDS: [(i64, &str); 2] = [(450, "done"), (550, "execution_timeout")];

/// Regression: a run that had waited an hour for an approval ended before it could continue.
#[tokio::test]
async fn a_run_continues_after_a_wait_with_the_time_that_is_left() {
    for (seconds, expected) in ENDS {
        let worker = Worker::new(seconds);
        let fixture = worker.begin().await;
        worker.an_hour_passes();
        assert_eq!(end(fixture).await, expected, "{seconds}");
    }
}

/// The limit of an agent that has taken over the turn counts only the work since then.
#[tokio::test]
async fn an_agent_that_took_over_continues_after_a_wait_with_the_time_that_is_left() {
    for (seconds, expected) in ENDS {
        let worker = Worker { hands_over: true, ..Worker::new(seconds) };
        let fixture = worker.begin().await;
        worker.an_hour_passes();
        assert_eq!(end(fixture).await, expected, "{seconds}");
    }
}

/// The waited time is in the file: another runtime continues with it.
#[tokio::test]
async fn the_time_that_is_left_survives_a_restart() {
    for (seconds, expected) in ENDS {
        let worker = Worker { hands_over: true, ..Worker::new(seconds) };
        let mut fixture = worker.begin().await;
        let folder = mem::replace(&mut fixture.folder, temporary_folder());
        fixture.close().await;
        worker.an_hour_passes();
        let fixture = worker.open(folder).await;
        assert_eq!(end(fixture).await, expected, "{seconds}");
    }
}

/// A snapshot has the time that the run has worked. The time until its import is a wait, too.
#[tokio::test]
async fn the_time_that_is_left_moves_with_the_run() {
    for hands_over in [false, true] {
        for (seconds, expected) in ENDS {
            let worker = Worker { hands_over, ..Worker::new(seconds) };
            let fixture = worker.begin().await;
            worker.an_hour_passes();
            let export = fixture.abide.call(ExportRun::new("r1")).await.expect("it waits");
            let snapshot: RunSnapshot = export.into_inner();
            fixture.close().await;
            worker.an_hour_passes();
            let there = worker.open(temporary_folder()).await;
            there.abide.call(ImportRun::new(snapshot)).await.expect("it is imported");
            waits(&there).await;
            worker.an_hour_passes();
            assert_eq!(end(there).await, expected, "{seconds}, {hands_over}");
        }
    }
}
