//! Runs of foreign programs: a shell script with Claude Code's output format. It is killed with its runtime at
//! every step, it is aborted, and it requests permissions.

use std::path::Path;
use std::process::{Command, ExitStatus};

use abide_agent::Events;
use abide_client::arguments::{AbortRun, CreateSession, DecideApproval, RegisterAgent, StartRun};
use abide_client::{Abide, Decision, RunEventKind};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::{FixtureOptions, LEASE, RuntimeFixture, define, runtime, transcript};

/// Reports its session id, sends a message, and answers. It records its arguments.
const ANSWERS: &str = r#"
echo "called with $*" >> calls
cat > /dev/null
echo '{"type":"system","subtype":"init","session_id":"p1"}'
echo '{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"Let me see."}]}}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"It is 42.","session_id":"p1",
"total_cost_usd":0.25,"usage":{"input_tokens":10,"output_tokens":5}}' | tr -d '\n'
"#;

/// The definition of an agent that runs a script in a folder.
fn script(folder: &Path, text: &str, more: &str) -> String {
    std::fs::write(folder.join("agent.sh"), text).expect("the file can be written");
    let folder = folder.display();
    format!(
        "cli: {{ command: [sh, agent.sh], program: claude, working_dir: '{folder}', \
         grace_seconds: 0.2{more} }}\n"
    )
}

async fn fixture(text: &str, more: &str) -> RuntimeFixture {
    let plan = FixtureOptions::of("", "answers: []");
    let definition = script(plan.folder.path(), text, more);
    plan.define("clerk.yaml", &definition);
    plan.open().await
}

#[tokio::test]
async fn the_usage_that_a_program_reports_is_recorded() {
    let fixture = fixture(ANSWERS, "").await;
    let run = fixture.begin("How much?").await;
    let (told, last) = fixture.told(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is 42.", "{told}");
    assert!(told.contains(r#""estimated_cost":0.25"#), "{told}");
    let sql = "SELECT input_tokens, output_tokens, cost_micros, iterations FROM runs";
    let took: Vec<(i64, i64, Option<i64>, i64)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(took, [(10, 5, Some(250_000), 1)]);
    fixture.close().await;
}

/// Permission to register an agent does not include permission to run programs on the runtime's machine. A
/// definition that exists only as a row does not run, neither under a new name nor under that of an agent in the
/// folder.
#[tokio::test]
async fn a_program_outside_the_folder_is_not_run() {
    let fixture = fixture(ANSWERS, "").await;
    let cli = json!({"command": ["touch", fixture.folder.path().join("harm")]});
    for name in ["intruder", "clerk"] {
        let definition = json!({"name": name, "cli": cli}).as_object().cloned();
        let agent = RegisterAgent::new(name, definition.expect("it is an object"));
        fixture.abide.call(agent).await.expect("the agent is registered");
        let session = CreateSession::new(name);
        let session = fixture.abide.call(session).await.expect("it is created");
        let run = StartRun::new(&session.id).input("Go.");
        let run = fixture.abide.call(run).await.expect("the run starts").into_inner();
        let (told, last) = fixture.told(&run.id, 0).await;
        assert_eq!(last.data["code"], "program_not_trusted", "{told}");
    }
    assert!(!fixture.folder.path().join("harm").exists());
    fixture.close().await;
}

/// Environment variable that makes this binary the victim process: its value is the folder.
const VICTIM: &str = "ABIDE_PROGRAM_VICTIM";
const DIES_AT: &str = "ABIDE_PROGRAM_DIES_AT";

/// The process that is killed: this binary, running only this test.
#[test]
fn victim() {
    let Ok(folder) = std::env::var(VICTIM) else { return };
    let dies_at = std::env::var(DIES_AT).ok().map(|seq| seq.parse().expect("a seq is a number"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(work(Path::new(&folder), dies_at));
}

/// Starts the run unless it exists, and drives it until it is over.
async fn work(folder: &Path, dies_at: Option<i64>) {
    define(folder, "clerk.yaml", &script(folder, ANSWERS, ""));
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
    let fixture = runtime(&abide, folder, "answers: []", LEASE);
    fixture.register().await.expect("it is registered");
    let stop = CancellationToken::new();
    let drives = fixture.run(stop.clone());
    let waits = async {
        let session = CreateSession::new("clerk").id("s1");
        let _ = abide.call(session).await;
        let run = StartRun::new("s1").id("r1").input("How much?");
        let _ = abide.call(run).await;
        let sql = "SELECT id FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL";
        let mut ended = abide.subscribe(sql).await.expect("the subscription starts");
        while ended.rows().len() == 0 {
            ended.next().await.expect("the file is open");
        }
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(drives, waits);
    driven.expect("the runtime runs");
    abide.close().await;
}

fn spawn(folder: &Path, dies_at: Option<i64>) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().expect("it has a path"));
    command.args(["--exact", "programs::victim"]).env(VICTIM, folder);
    match dies_at {
        Some(seq) => command.env(DIES_AT, seq.to_string()),
        None => command.env_remove(DIES_AT),
    };
    let output = command.output().expect("it starts");
    let killed = output.status.code().is_none();
    assert!(
        output.status.success() || killed,
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output.status
}

/// The run's status and transcript in a finished folder, and the program's invocations.
fn outcome(folder: &Path) -> (String, String, String) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (status, told) = runtime.block_on(async {
        let abide = Abide::open(folder.join("abide.db")).expect("the file opens");
        let sql = "SELECT status || coalesce(' ' || error_code, '') FROM runs WHERE id = 'r1'";
        let status: Vec<(String,)> = abide.sql(sql).fetch().await.expect("the query succeeds");
        let told = transcript(&abide).await;
        abide.close().await;
        (status[0].0.clone(), told)
    });
    let calls = std::fs::read_to_string(folder.join("calls")).unwrap_or_default();
    (status, told, calls)
}

/// A program that reported a session is resumed, not restarted. If it has reported nothing yet, it is started
/// again.
#[test]
fn a_program_is_resumed_after_a_kill_at_every_step() {
    let (mut killed, mut resumed) = (0, 0);
    for seq in 1.. {
        let folder = tempfile::tempdir().expect("a temporary folder");
        if spawn(folder.path(), Some(seq)).success() {
            break;
        }
        killed += 1;
        assert!(spawn(folder.path(), None).success(), "not resumed after a kill at {seq}");
        let (status, told, calls) = outcome(folder.path());
        assert_eq!(
            (status.as_str(), told.as_str()),
            ("done", "user: How much? \nassistant: It is 42. \n"),
            "killed at {seq}: {calls}"
        );
        resumed += i32::from(calls.contains("--resume p1"));
    }
    assert!(killed > 5, "killed only {killed} times");
    println!("killed at {killed} steps; {resumed} times the program was resumed");
}

#[tokio::test]
async fn an_abort_ends_the_program() {
    let hangs =
        "echo $$ > pid\necho '{\"type\":\"system\",\"subtype\":\"init\"}'\nexec sleep 600\n";
    let fixture = fixture(hangs, "").await;
    let run = fixture.begin("Go on.").await;
    let mut events = Events::of(&fixture.abide, &run.id, 0).await.expect("the subscription starts");
    loop {
        let event =
            events.next().await.expect("the stream continues").expect("the run has not ended");
        if event.kind == RunEventKind::Line {
            break;
        }
    }
    fixture.abide.call(AbortRun::new(&run.id).reason("enough")).await.expect("the abort succeeds");
    let (_, last) = fixture.told(&run.id, 0).await;
    assert_eq!(last.data, json!({"code": "aborted", "message": "enough"}));
    let pid = std::fs::read_to_string(fixture.folder.path().join("pid"))
        .expect("the program has started");
    let lives =
        Command::new("kill").args(["-0", pid.trim()]).output().expect("the kill command exists");
    assert!(!lives.status.success(), "process {pid} lives");
    fixture.close().await;
}

/// Requests permission to run `ls`, records the decision, answers.
const ASKS: &str = r#"
read hello; read prompt
echo '{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool",
"tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1"}}' | tr -d '\n'; echo
read decision; echo "$decision" > decision
echo '{"type":"result","subtype":"success","is_error":false,"result":"Listed."}'
"#;

/// The decision that the program receives.
async fn hears(decision: Decision, comment: Option<&str>) -> Value {
    let fixture = fixture(ASKS, ", input_format: stream-json").await;
    let run = fixture.begin("List.").await;
    fixture.until("SELECT call_id FROM approvals WHERE status = 'pending'").await;
    let sql = "SELECT call_id, arguments ->> '$.tool', arguments ->> '$.input.command' \
               FROM approvals";
    let mut asked: Vec<(String, String, String)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    let (call, tool, command) = asked.remove(0);
    assert_eq!((tool.as_str(), command.as_str()), ("Bash", "ls"));
    let decide = DecideApproval::new(decision).call_id(call);
    let decide = match comment {
        Some(comment) => decide.comment(comment),
        None => decide,
    };
    fixture.abide.call(decide).await.expect("the decision succeeds");
    let (told, last) = fixture.told(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "Listed.", "{told}");
    assert!(told.contains("waiting_for_approval"), "{told}");
    let heard = std::fs::read_to_string(fixture.folder.path().join("decision"))
        .expect("the program received a decision");
    fixture.close().await;
    let heard: Value = serde_json::from_str(&heard).expect("it is JSON");
    heard["response"]["response"].clone()
}

#[tokio::test]
async fn a_program_request_can_be_approved() {
    let heard = hears(Decision::Approve, None).await;
    assert_eq!(heard, json!({"behavior": "allow", "updatedInput": {"command": "ls"}}));
}

#[tokio::test]
async fn a_program_request_can_be_rejected_with_a_reason() {
    let heard = hears(Decision::Reject, Some("not here")).await;
    assert_eq!(heard["behavior"], "deny");
    assert_eq!(heard["message"], "not here");
}
