//! SIGKILL at every step: a process drives a run with three tools, an approval and parallel calls. It is killed
//! when the log reaches seq 1, 2, 3 … The next process must finish the run with the same result, and a tool that
//! must not run twice has run at most once.

use std::path::Path;
use std::process::{Command, ExitStatus};

use abide_client::arguments::{CreateSession, DecideApproval, StartRun};
use abide_client::{Abide, Decision};
use tokio_util::sync::CancellationToken;

use crate::fixture::{LEASE, ledger, runtime, transcript};

/// Environment variable that makes this binary the victim process: its value is the folder.
const VICTIM: &str = "ABIDE_AGENT_VICTIM";
const DIES_AT: &str = "ABIDE_AGENT_DIES_AT";

const SCRIPT: &str = r#"
answers:
  - text: Let me see.
    calls:
      - { name: look, arguments: { order: A } }
      - { name: look, arguments: { order: B } }
      - { name: note, arguments: { order: A } }
  - calls: [{ name: pay, arguments: { order: A } }]
  - text: It is paid.
"#;

/// The error of the `pay` call if the process died between the claim and the payment.
const NOT_PAID: &str = "it was not paid";

/// The process that is killed: this binary, running only this test.
#[test]
fn victim() {
    let Ok(folder) = std::env::var(VICTIM) else { return };
    let dies_at = std::env::var(DIES_AT).ok().map(|seq| seq.parse().expect("a seq is a number"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(work(Path::new(&folder), dies_at));
}

/// Starts the run unless it exists, drives it, and decides as its supervisor, until it is over.
async fn work(folder: &Path, dies_at: Option<i64>) {
    std::fs::create_dir_all(folder.join("agents")).expect("the folder can be created");
    let definition = "tools: [look, note, pay]\ninterrupt_on: { pay: true }\n";
    std::fs::write(folder.join("agents/clerk.yaml"), definition).expect("the file can be written");
    let abide = Abide::open(folder.join("abide.db")).expect("the file opens");
    if let Some(seq) = dies_at {
        let engine = abide.engine().expect("it is embedded").clone();
        std::thread::spawn(move || {
            while engine.durable_seq().0 < seq {
                std::hint::spin_loop();
            }
            let me = std::process::id().to_string();
            let killed = Command::new("kill").args(["-KILL", &me]).status();
            unreachable!("the process survived the kill: {killed:?}");
        });
    }
    let fixture = runtime(&abide, folder, SCRIPT, LEASE);
    fixture.register().await.expect("it is registered");
    let stop = CancellationToken::new();
    let drives = fixture.run(stop.clone());
    let asks = async {
        let session = CreateSession::new("clerk").id("s1");
        let _ = abide.call(session).await;
        let run = StartRun::new("s1").id("r1").input("Pay order A.");
        let _ = abide.call(run).await;
        supervise(&abide, folder).await;
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(drives, asks);
    driven.expect("the runtime runs");
    abide.close().await;
}

/// Approves pending calls and settles unknown ones, until the run is over.
async fn supervise(abide: &Abide, folder: &Path) {
    let sql = "SELECT status FROM runs WHERE id = 'r1'";
    let mut runs = abide.subscribe(sql).await.expect("the subscription starts");
    let sql =
        "SELECT call_id, status FROM tool_calls WHERE status IN ('awaiting_approval', 'unknown')";
    let mut calls = abide.subscribe(sql).await.expect("the subscription starts");
    loop {
        tokio::select! {
            update = runs.next() => {
                update.expect("the file is open");
                let now: Vec<(String,)> = runs.typed_rows().expect("the id is text");
                if now.iter().any(|(status,)| status == "done" || status == "failed") {
                    return;
                }
            }
            update = calls.next() => {
                update.expect("the file is open");
                let waiting: Vec<(String, String)> = calls.typed_rows().expect("text columns");
                for (id, status) in waiting {
                    decide(abide, folder, &id, &status).await;
                }
            }
        }
    }
}

async fn decide(abide: &Abide, folder: &Path, id: &str, status: &str) {
    if status == "unknown" {
        return settle(abide, folder, id).await;
    }
    let call = DecideApproval::new(Decision::Approve).call_id(id);
    abide.call(call).await.expect("the decision succeeds");
}

async fn settle(abide: &Abide, folder: &Path, call_id: &str) {
    let paid = ledger(&folder.join("ledger")).contains(&"pay A".to_owned());
    let args = match paid {
        true => serde_json::json!({"call_id": call_id, "outcome": "succeeded",
            "result": {"text": "pay A is done"}, "evidence": "the ledger"}),
        false => serde_json::json!({"call_id": call_id, "outcome": "failed", "error": NOT_PAID,
            "evidence": "the ledger"}),
    };
    abide.call_by_name("settle_tool_call", args).await.expect("the call is settled");
}

fn spawn(folder: &Path, dies_at: Option<i64>) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().expect("it has a path"));
    command.args(["--exact", "killed::victim"]).env(VICTIM, folder);
    match dies_at {
        Some(seq) => command.env(DIES_AT, seq.to_string()),
        None => command.env_remove(DIES_AT),
    };
    let output = command.output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stdout);
    let killed = !output.status.success() && output.status.code().is_none();
    assert!(output.status.success() || killed, "{told}{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

/// The transcript in a finished folder, and the ledger.
fn outcome(folder: &Path) -> (String, Vec<String>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let told = runtime.block_on(async {
        let abide = Abide::open(folder.join("abide.db")).expect("the file opens");
        let told = transcript(&abide).await;
        abide.close().await;
        told
    });
    (told, ledger(&folder.join("ledger")))
}

#[test]
fn at_every_step() {
    let unkilled = tempfile::tempdir().expect("a temporary folder");
    assert!(spawn(unkilled.path(), None).success());
    let (expected, _) = outcome(unkilled.path());
    assert!(expected.ends_with("assistant: It is paid. \n"), "{expected}");
    let (mut killed, mut unpaid) = (0, 0);
    for seq in 1.. {
        let folder = tempfile::tempdir().expect("a temporary folder");
        if spawn(folder.path(), Some(seq)).success() {
            break;
        }
        killed += 1;
        assert!(spawn(folder.path(), None).success(), "not resumed after a kill at {seq}");
        let (told, done) = outcome(folder.path());
        let paid = done.iter().filter(|what| *what == "pay A").count();
        assert!(paid <= 1, "paid {paid} times after a kill at {seq}");
        if told.contains(NOT_PAID) {
            assert_eq!(paid, 0, "killed at {seq}: {done:?}");
            assert_eq!(told.replace(NOT_PAID, "pay A is done"), expected, "killed at {seq}");
            unpaid += 1;
        } else {
            assert_eq!((told.as_str(), paid), (expected.as_str(), 1), "killed at {seq}");
        }
    }
    assert!(killed > 15, "killed only {killed} times");
    println!("killed at {killed} steps; {unpaid} of them before the payment");
}
