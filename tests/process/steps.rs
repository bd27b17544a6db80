//! Durable steps over crashes: a program is killed in the middle of a tool and runs again from its beginning. What then
//! happens depends on the effect of the tool. Nothing else runs: the programs share the file (`abide open`).

use std::fs;
use std::path::PathBuf;

use abide_client::Abide;
use abide_client::arguments::SettleToolCall;
use abide_client::{Effect, Outcome};
use serde_json::json;
use tempfile::TempDir;

use crate::program::{Process, program, worker};

struct Agent {
    folder: TempDir,
    effect: Effect,
}

impl Agent {
    fn of(effect: Effect) -> Agent {
        Agent { folder: tempfile::tempdir().unwrap(), effect }
    }

    fn db(&self) -> PathBuf {
        self.folder.path().join("abide.db")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log.txt")
    }

    /// Runs the program from its beginning.
    fn start(&self) -> Process {
        let mut command = worker();
        command.arg("step").arg(program()).arg(self.db()).arg(self.effect.to_string());
        Process::spawn(command.arg(self.log()))
    }

    /// Kills the program in the middle of the tool.
    fn crash(&self) {
        let mut agent = self.start();
        assert_eq!(agent.line(), "running");
        agent.kill();
    }

    fn effects(&self) -> usize {
        fs::read_to_string(self.log()).unwrap().lines().count()
    }

    /// Runs the program again: its steps return what they returned, and the message is appended once.
    fn assert_replays(&self, receipt: &str) {
        let effects = self.effects();
        assert_eq!(self.start().ended().good(), format!("{receipt}\n"));
        assert_eq!(self.effects(), effects, "no step runs again");
    }
}

#[test]
fn tools_that_may_run_again_run_again_after_a_crash() {
    for effect in [Effect::Idempotent, Effect::ReadOnly] {
        let agent = Agent::of(effect);
        agent.crash();
        let mut again = agent.start();
        assert_eq!(again.line(), "running", "after the lease of the killed program");
        again.go();
        assert_eq!(again.ended().good(), "receipt 1\n");
        assert_eq!(agent.effects(), 2);
        agent.assert_replays("receipt 1");
    }
}

#[tokio::test]
async fn a_tool_that_must_not_run_twice_has_an_unknown_outcome_after_a_crash() {
    let agent = Agent::of(Effect::AtMostOnce);
    agent.crash();
    agent.assert_replays("unknown s1/refund");
    let abide = Abide::open_shared(agent.db()).binary(program()).await.unwrap();
    let settle = SettleToolCall::new("s1/refund", Outcome::Succeeded).result(json!("receipt 7"));
    abide.call(settle.evidence(json!("bank statement"))).await.unwrap();
    agent.assert_replays("receipt 7");
    let messages = abide.sql("SELECT count(*) FROM agent_state").fetch::<i64>().await.unwrap();
    assert_eq!(messages, [1]);
    abide.close().await;
}

/// The engine is killed in the middle of the tool: the step goes on, and its outcome is recorded.
#[tokio::test]
async fn a_step_survives_the_end_of_the_engine() {
    let agent = Agent::of(Effect::AtMostOnce);
    let mut running = agent.start();
    assert_eq!(running.line(), "running");
    let lock = fs::read_to_string(agent.folder.path().join("abide.db-lock")).unwrap();
    let holder: serde_json::Value = serde_json::from_str(&lock).unwrap();
    let pid = i32::try_from(holder["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    running.go();
    assert_eq!(running.ended().good(), "receipt 1\n");
    assert_eq!(agent.effects(), 1);
    agent.assert_replays("receipt 1");
    let abide = Abide::open_shared(agent.db()).binary(program()).await.unwrap();
    let calls = abide.sql("SELECT status, attempt FROM tool_calls").fetch::<(String, i64)>();
    assert_eq!(calls.await.unwrap(), [("succeeded".to_owned(), 1)]);
    abide.close().await;
}
