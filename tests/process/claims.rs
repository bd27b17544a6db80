//! Workers as real processes: they race for the same calls and one wins each; they are killed
//! before, during and after an effect, and the call then behaves as its tool declares.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use abide_client::arguments::{Outcome, SettleToolCall};
use abide_client::{Abide, Call};
use serde_json::{Value as JsonValue, json};
use tokio::time::timeout;

use crate::program::{PATIENCE, Process, worker};
use crate::server::Server;

const RACERS: usize = 32;
const CALLS: usize = 1_000;
const HANDOFFS: usize = 200;

async fn batch(abide: &Abide, calls: impl Iterator<Item = Call>) {
    for part in calls.collect::<Vec<_>>().chunks(250) {
        abide.batch(part.to_vec()).await.unwrap();
    }
}

/// One process wins each claim, and the database agrees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_wins_each_claim() {
    let server = Server::start();
    let abide = server.client().await;
    abide.call_by_name("register_tool", json!({"name": "look"})).await.unwrap();
    abide.call_by_name("create_session", json!({"agent": "support", "id": "s1"})).await.unwrap();
    let calls = (0..CALLS).map(|n| {
        let args = json!({"call_id": format!("c{n:04}"), "session_id": "s1",
            "tool_name": "look", "arguments": n});
        Call::new("request_tool_call", args)
    });
    batch(&abide, calls).await;
    let handoffs = (0..HANDOFFS).flat_map(|n| {
        let id = format!("h{n:03}");
        let asked = json!({"session_id": id, "reason": "help", "required_capability": "refunds"});
        let created = Call::new("create_session", json!({"agent": "support", "id": id}));
        [created, Call::new("request_supervisor_handoff", asked)]
    });
    batch(&abide, handoffs).await;

    let url = server.url();
    let racer = |n: usize| Process::spawn(worker().args([&url, "race", &format!("racer-{n}")]));
    let mut racers: Vec<Process> = (0..RACERS).map(racer).collect();
    for racer in &racers {
        assert_eq!(racer.line(), "ready");
    }
    racers.iter_mut().for_each(Process::go);
    let mut winners = BTreeMap::new();
    let mut wins = [0; RACERS];
    for (n, racer) in racers.into_iter().enumerate() {
        for what in racer.ended().good().lines() {
            let before = winners.insert(what.to_owned(), n);
            assert_eq!(before, None, "{what} was won twice");
            wins[n] += 1;
        }
    }
    assert_eq!(winners.len(), CALLS + HANDOFFS, "everything was won");
    assert!(wins.iter().filter(|wins| **wins > 0).count() > 1, "it was no race: {wins:?}");

    let claimed: Vec<(String, String, i64)> =
        abide.sql("SELECT call_id, claimed_by, attempt FROM tool_calls").fetch().await.unwrap();
    assert_eq!(claimed.len(), CALLS);
    for (call_id, claimed_by, attempt) in claimed {
        let winner = winners[&format!("call {call_id}")];
        assert_eq!((claimed_by, attempt), (format!("racer-{winner}"), 1));
    }
    let claims = "SELECT reducer, count(*) FROM events WHERE reducer LIKE 'claim%' GROUP BY 1";
    let claims: Vec<(String, usize)> = abide.sql(claims).fetch().await.unwrap();
    let expected = [("claim_handoff", HANDOFFS), ("claim_tool_call", CALLS)];
    assert_eq!(claims, expected.map(|(reducer, count)| (reducer.to_owned(), count)));
}

/// The moment of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KillPoint {
    Before,
    During,
    After,
}

/// The duration of a worker's lease, in milliseconds.
const LEASE_MS: &str = "300";

/// A server with a session, a tool with an effect, one pending call of it, and an external record
/// of effects.
struct ClaimFixture {
    server: Server,
    abide: Abide,
    world: PathBuf,
}

impl ClaimFixture {
    async fn set(effect: &str) -> ClaimFixture {
        let server = Server::start();
        let abide = server.client().await;
        let world = server.sibling("world");
        let tool = json!({"name": "send", "effect": effect});
        abide.call_by_name("register_tool", tool).await.unwrap();
        abide
            .call_by_name("create_session", json!({"agent": "support", "id": "s1"}))
            .await
            .unwrap();
        let call =
            json!({"call_id": "c1", "session_id": "s1", "tool_name": "send", "arguments": {}});
        abide.call_by_name("request_tool_call", call).await.unwrap();
        ClaimFixture { server, abide, world }
    }

    fn worker(&self, name: &str, lease_ms: &str) -> Process {
        let url = self.server.url();
        let world = self.world.to_str().unwrap();
        Process::spawn(worker().args([&url, "run", name, "c1", world, lease_ms]))
    }

    /// How often the effect was recorded.
    fn count_output(&self, what: &str) -> usize {
        let world = fs::read_to_string(&self.world).unwrap_or_default();
        world.lines().filter(|line| *line == format!("{what} c1")).count()
    }

    /// Waits until the call is no longer claimed; returns its status.
    async fn wait_until_released(&self) -> String {
        let sql = "SELECT status FROM tool_calls WHERE call_id = 'c1' AND status <> 'claimed'";
        let mut live = self.abide.subscribe(sql).await.unwrap();
        loop {
            if let Some(status) = live.typed_rows::<String>().unwrap().pop() {
                return status;
            }
            timeout(PATIENCE, live.try_next()).await.expect("the call stays claimed").unwrap();
        }
    }

    async fn fetch_one(&self, sql: &str) -> JsonValue {
        let answer = self.abide.sql(sql).rows().await.unwrap();
        answer.rows.first().map(|row| row[0].to_json()).unwrap_or_default()
    }
}

/// Runs a worker up to a moment, and kills it there.
fn killed_at(moment: KillPoint, mut worker: Process) {
    let places = ["claimed", "began", "done"];
    let last = match moment {
        KillPoint::Before => 0,
        KillPoint::During => 1,
        KillPoint::After => 2,
    };
    for (at, place) in places[..=last].iter().enumerate() {
        assert_eq!(worker.line(), *place);
        if at < last {
            worker.go();
        }
    }
    worker.kill();
}

/// Lets a worker run to its end.
fn finish(mut worker: Process) -> String {
    for place in ["claimed", "began", "done"] {
        assert_eq!(worker.line(), place);
        worker.go();
    }
    worker.line()
}

async fn may_run_again(effect: &str) {
    for moment in [KillPoint::Before, KillPoint::During, KillPoint::After] {
        let fixture = ClaimFixture::set(effect).await;
        killed_at(moment, fixture.worker("first", LEASE_MS));
        assert_eq!(fixture.wait_until_released().await, "pending", "{moment:?}");
        assert_eq!(finish(fixture.worker("second", "30000")), "completed");
        let status = "SELECT status || attempt || claimed_by FROM tool_calls";
        assert_eq!(fixture.fetch_one(status).await, "succeeded2second");
        let twice = usize::from(moment == KillPoint::After);
        assert_eq!(fixture.count_output("done"), 1 + twice, "{moment:?}: at least once");
    }
}

#[tokio::test]
async fn a_read_only_call_is_run_again() {
    may_run_again("read_only").await;
}

#[tokio::test]
async fn an_idempotent_call_is_run_again() {
    may_run_again("idempotent").await;
}

#[tokio::test]
async fn a_call_that_must_not_run_twice_is_not_run_again() {
    for moment in [KillPoint::Before, KillPoint::During, KillPoint::After] {
        let mut fixture = ClaimFixture::set("at_most_once").await;
        killed_at(moment, fixture.worker("first", LEASE_MS));
        assert_eq!(fixture.wait_until_released().await, "unknown", "{moment:?}");
        assert_eq!(fixture.fetch_one("SELECT claimed_by FROM unknown_tool_calls").await, "first");
        // Neither another worker nor another server runs it.
        assert_eq!(fixture.worker("second", "30000").line(), "refused conflict");
        fixture.server.kill();
        fixture.server.start_again();
        assert_eq!(fixture.worker("third", "30000").line(), "refused conflict");
        // An operator checks the effect and settles the call.
        let happened = fixture.count_output("done");
        assert_eq!(happened, usize::from(moment == KillPoint::After), "{moment:?}");
        let settle = match happened {
            1 => SettleToolCall::new("c1", Outcome::Succeeded).result("done"),
            _ => SettleToolCall::new("c1", Outcome::Failed).error("nothing there"),
        };
        let settled = fixture.abide.call(settle.evidence("the file")).await;
        let expected = if happened == 1 { "succeeded" } else { "failed" };
        assert_eq!(settled.unwrap().value.status.as_str(), expected);
        assert_eq!(fixture.fetch_one("SELECT count(*) FROM unknown_tool_calls").await, 0);
    }
}

/// A slow worker: its late report has no effect, but is kept.
#[tokio::test]
async fn a_late_report_is_kept_without_effect() {
    let fixture = ClaimFixture::set("at_most_once").await;
    let mut slow = fixture.worker("slow", LEASE_MS);
    for place in ["claimed", "began"] {
        assert_eq!(slow.line(), place);
        slow.go();
    }
    assert_eq!(slow.line(), "done");
    assert_eq!(fixture.wait_until_released().await, "unknown");
    slow.go();
    assert_eq!(slow.line(), "refused lease_lost");
    assert_eq!(slow.ended().code, Some(0));
    let kept = "SELECT claimed_by || late_outcome || late_result FROM unknown_tool_calls";
    assert_eq!(fixture.fetch_one(kept).await, "slowsucceeded\"done\"");
    let output = fixture.server.run(&["events", "--last", "1"]).good();
    assert!(output.contains("  complete_tool_call  "), "{output}");
    assert!(output.contains("  refused lease_lost  {\"call_id\":\"c1\""), "{output}");
}
