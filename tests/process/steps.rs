//! Durable steps over crashes: a program (`client-sdk/rust/examples/refund.rs`) is killed in the middle of a tool and
//! runs again from its beginning. What then happens depends on the effect of the tool. Nothing else runs: the programs
//! share the file (`abide open`).

use std::fs;
use std::path::PathBuf;

use abide_client::Abide;
use abide_client::rows::Effect;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as JsonValue;
use tempfile::TempDir;

use crate::program::{Process, program, refund};

const PAID: &str = "The bank has paid. Press Enter to go on, or kill this program.";
const UNKNOWN: &str = "the worker of call order-8812/refund disappeared, and its tool must not \
    run twice\nfind out whether it ran, then record the outcome with `abide call settle_tool_call`\n";

struct Agent {
    folder: TempDir,
    effect: Effect,
}

impl Agent {
    fn with_effect(effect: Effect) -> Agent {
        Agent { folder: tempfile::tempdir().unwrap(), effect }
    }

    fn db(&self) -> PathBuf {
        self.folder.path().join("agents.db")
    }

    fn run(&self, mode: &str) -> Process {
        Process::spawn(refund().arg(self.db()).arg(mode))
    }

    /// Runs the program from its beginning.
    fn start(&self) -> Process {
        self.run(self.effect.as_str())
    }

    /// Kills the program in the middle of the tool.
    fn crash(&self) {
        let mut agent = self.start();
        assert_eq!(agent.line(), PAID);
        agent.kill();
    }

    /// How often the bank has paid.
    fn payments(&self) -> usize {
        let ledger = self.folder.path().join("agents.db.ledger");
        fs::read_to_string(ledger).unwrap().lines().count()
    }

    /// Runs the program again: its steps return what they returned.
    fn assert_replays(&self, expected: &str) {
        let payments = self.payments();
        assert_eq!(self.start().ended().good(), expected);
        assert_eq!(self.payments(), payments, "no step runs again");
    }

    /// The messages of the session.
    async fn messages(&self) -> Vec<String> {
        let abide = Abide::open_shared(self.db()).binary(program()).await.unwrap();
        let messages =
            abide.sql("SELECT content FROM agent_state ORDER BY id").fetch().await.unwrap();
        abide.close().await;
        messages
    }
}

#[tokio::test]
async fn tools_that_may_run_again_run_again_after_a_crash() {
    for effect in [Effect::Idempotent, Effect::ReadOnly] {
        let agent = Agent::with_effect(effect);
        agent.crash();
        let mut again = agent.start();
        assert_eq!(again.line(), PAID, "after the lease of the killed program");
        again.go();
        assert_eq!(again.ended().good(), "receipt 1\n");
        assert_eq!(agent.payments(), 2);
        agent.assert_replays("receipt 1\n");
        let expected = ["Please refund order 8812.", "It is done: receipt 1"];
        assert_eq!(agent.messages().await, expected, "each message once");
    }
}

#[tokio::test]
async fn a_tool_that_must_not_run_twice_has_an_unknown_outcome_after_a_crash() {
    let agent = Agent::with_effect(Effect::AtMostOnce);
    agent.crash();
    agent.assert_replays(UNKNOWN);
    agent.run("settle").ended().good();
    agent.assert_replays("receipt 7\n");
    agent.assert_replays("receipt 7\n");
    assert_eq!(agent.payments(), 1);
    let expected = ["Please refund order 8812.", "It is done: receipt 7"];
    assert_eq!(agent.messages().await, expected, "each message once");
}

/// The engine is killed in the middle of the tool: the step goes on, and its outcome is recorded.
#[tokio::test]
async fn a_step_survives_the_end_of_the_engine() {
    let agent = Agent::with_effect(Effect::AtMostOnce);
    let mut running = agent.start();
    assert_eq!(running.line(), PAID);
    let holder = fs::read(agent.folder.path().join("agents.db-lock")).unwrap();
    let holder: JsonValue = serde_json::from_slice(&holder).unwrap();
    let pid = i32::try_from(holder["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    running.go();
    assert_eq!(running.ended().good(), "receipt 1\n");
    agent.assert_replays("receipt 1\n");
    assert_eq!(agent.payments(), 1);
}
