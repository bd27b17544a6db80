//! SIGTERM while work is in progress: nothing new begins, what runs can end, and others report their results. A later signal
//! does not wait.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use abide_client::{Abide, Subscription};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::PATIENCE;
use crate::server::Server;

/// Runs with a tool that is running when the signal comes.
const RUNS: usize = 10;

/// Workers of other processes, each with a call.
const WORKERS: [&str; 3] = ["reports-at-once", "reports-after-the-restart", "renews-its-lease"];

/// A server with the agent `clerk`, whose tool `pay` is this shell script.
fn server(pay: &str, more: &[&str]) -> (Server, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("agents")).unwrap();
    let command = json!(["sh", "-c", pay.replace("FOLDER", folder.path().to_str().unwrap())]);
    write(
        "abide.yaml",
        &format!(
            "models:\n  providers: [{{ id: clerk, kind: script, script: answers.yaml, models: [clerk] }}]\n\
             programs:\n  - {{ name: pay, description: Pays., effect: at_most_once, stdin: empty, command: {command} }}\n"
        ),
    );
    write(
        "answers.yaml",
        "repeat: true\nanswers: [{ calls: [{ name: pay, arguments: {} }] }, { text: It is paid. }]\n",
    );
    write("agents/clerk.yaml", "tools: [pay]\nconfig: { provider: clerk }\n");
    let agents = ["--agents".to_owned(), folder.path().display().to_string()];
    let more = more.iter().map(|option| (*option).to_owned());
    let options: Vec<String> = agents.into_iter().chain(more).collect();
    (Server::start_with(&folder.path().join("abide.db"), &options), folder)
}

async fn start_runs(client: &Abide, count: usize) {
    for nth in 0..count {
        let session = json!({"agent": "clerk", "id": format!("s{nth}")});
        client.call_by_name("create_session", session).await.unwrap();
        let run =
            json!({"session_id": format!("s{nth}"), "id": format!("r{nth}"), "input": "Pay."});
        client.call_by_name("start_run", run).await.unwrap();
    }
}

/// Waits until a query has this many rows.
async fn until_rows(client: &Abide, sql: &str, count: usize) {
    let mut rows: Subscription = client.subscribe(sql).await.unwrap();
    while rows.rows().len() < count {
        rows.try_next().await.unwrap().unwrap();
    }
}

/// The status and the body of an answer.
#[track_caller]
fn request(server: &Server, method: &str, path: &str, body: &JsonValue) -> (u16, String) {
    let mut socket = TcpStream::connect(server.address()).unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let host = server.address();
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.0\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[track_caller]
fn call(server: &Server, reducer: &str, args: &JsonValue) -> (u16, JsonValue) {
    let (status, body) = request(server, "POST", &format!("/v1/call/{reducer}"), args);
    (status, serde_json::from_str(&body).unwrap())
}

/// Waits until the server says that it is about to stop.
#[track_caller]
fn until_draining(server: &Server) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (status, body) = request(server, "GET", "/ready", &JsonValue::Null);
        if status == 503 {
            assert!(body.contains("the server is about to stop"), "{body}");
            return;
        }
        assert_eq!(status, 200, "{body}");
        assert!(Instant::now() < until, "the server does not drain");
    }
}

/// Requests a call of the tool `ship`.
#[track_caller]
fn request_elsewhere(server: &Server, call_id: &str) {
    let requested = json!({"call_id": call_id, "session_id": "shop", "tool_name": "ship",
        "arguments": {}});
    let (status, answer) = call(server, "request_tool_call", &requested);
    assert_eq!(status, 200, "{answer}");
}

/// A worker of another process claims a call of the tool `ship`. Returns the fencing token.
#[track_caller]
fn claim_elsewhere(server: &Server, call_id: &str) -> i64 {
    request_elsewhere(server, call_id);
    let claim = json!({"call_id": call_id, "worker": call_id, "lease_ms": 30_000});
    let (status, claimed) = call(server, "claim_tool_call", &claim);
    assert_eq!(status, 200, "{claimed}");
    claimed["result"]["fencing_token"].as_i64().unwrap()
}

/// A deploy killed a running tool within milliseconds, closed the sockets of workers before they could report, and left calls
/// for a person.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deploy_with_running_tools_and_workers_leaves_no_unknown_call() {
    let pay = "while ! test -e FOLDER/go; do sleep 0.05; done; echo paid";
    let (mut server, folder) = server(pay, &[]);
    let client = server.client().await;
    start_runs(&client, RUNS).await;
    for (reducer, args) in [
        ("create_session", json!({"agent": "shop", "id": "shop"})),
        ("append_message", json!({"session_id": "shop", "role": "user", "content": "Ship it."})),
        ("register_tool", json!({"name": "ship", "effect": "at_most_once"})),
    ] {
        let (status, answer) = call(&server, reducer, &args);
        assert_eq!(status, 200, "{reducer}: {answer}");
    }
    let tokens = WORKERS.map(|worker| claim_elsewhere(&server, worker));
    let [reports, later, renews] = WORKERS;
    request_elsewhere(&server, "waits");
    let claimed = "SELECT call_id FROM tool_calls WHERE status = 'claimed'";
    until_rows(&client, claimed, RUNS + WORKERS.len()).await;

    server.terminate();
    until_draining(&server);
    let asked = server.run(&["health"]);
    assert_eq!(asked.code, Some(1), "{asked:?}");
    assert!(asked.stderr.contains("the server is about to stop"), "{asked:?}");
    // No new claims and runs.
    for (reducer, args) in [
        ("claim_tool_call", json!({"call_id": "waits"})),
        ("claim_next_tool_call", json!({"tools": ["ship"]})),
        ("claim_next_run", json!({"driver": "d", "lease_ms": 1000})),
        ("start_run", json!({"session_id": "s0", "id": "late", "input": "Pay."})),
    ] {
        let (status, refused) = call(&server, reducer, &args);
        assert_eq!(
            (status, &refused["code"]),
            (503, &json!("unavailable")),
            "{reducer}: {refused}"
        );
        assert_eq!(refused["retryable"], true, "{reducer}: {refused}");
    }
    // Results, heartbeats, and queries.
    let report = json!({"call_id": reports, "fencing_token": tokens[0], "result": "sent"});
    assert_eq!(call(&server, "complete_tool_call", &report).0, 200);
    let renewal = json!({"call_id": renews, "fencing_token": tokens[2], "lease_ms": 30_000});
    assert_eq!(call(&server, "heartbeat_tool_call", &renewal).0, 200);
    let running: Vec<(String,)> = client.sql(claimed).fetch().await.unwrap();
    assert_eq!(running.len(), RUNS + WORKERS.len() - 1, "the tools still run");

    fs::write(folder.path().join("go"), "").unwrap();
    let ended = server.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");

    server.start_again();
    let client = server.client().await;
    until_rows(&client, "SELECT id FROM runs WHERE status = 'done'", RUNS).await;
    for (worker, token) in [(later, tokens[1]), (renews, tokens[2])] {
        let report = json!({"call_id": worker, "fencing_token": token, "result": "sent"});
        let (status, done) = call(&server, "complete_tool_call", &report);
        assert_eq!((status, &done["result"]["status"]), (200, &json!("succeeded")), "{done}");
    }
    let sql =
        "SELECT status, attempt, count(*) FROM tool_calls GROUP BY status, attempt ORDER BY status";
    let calls: Vec<(String, i64, i64)> = client.sql(sql).fetch().await.unwrap();
    let each = i64::try_from(RUNS + WORKERS.len()).unwrap();
    assert_eq!(calls, [("pending".to_owned(), 0, 1), ("succeeded".to_owned(), 1, each)]);
    drop(client);
    server.stop();
}

/// A tool that says when it has begun, and that holds a pipe open as long as one of its processes is there.
const ENDLESS: &str = "exec 3>FOLDER/alive; echo begun >&3; sleep 1000 & sleep 1000";

/// Opens the pipe of [`ENDLESS`] when the tool has begun.
fn open_pipe(folder: &TempDir) -> BufReader<fs::File> {
    let mut pipe = BufReader::new(fs::File::open(folder.path().join("alive")).unwrap());
    let mut line = String::new();
    pipe.read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    pipe
}

/// Returns when no process of the tool is left.
fn until_gone(mut pipe: BufReader<fs::File>) {
    pipe.read_to_string(&mut String::new()).unwrap();
}

fn make_pipe(folder: &TempDir) {
    let path = folder.path().join("alive");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_running_tools_at_once() {
    let (mut server, folder) = server(ENDLESS, &["--drain", "1h"]);
    make_pipe(&folder);
    let client = server.client().await;
    start_runs(&client, 1).await;
    let pipe = open_pipe(&folder);
    server.terminate();
    until_draining(&server);
    // A signal counts as the second one half a second after the first.
    while server.is_running() {
        server.terminate();
        // tidy: the signals of a person who wants it to end now
        thread::sleep(Duration::from_millis(100));
    }
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("a second signal"), "{ended:?}");
    until_gone(pipe);
    assert!(server.verify() > 0);
}

/// `timeout` signals its child and then its process group, so a server under it got two signals, and its tools were killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_that_come_together_are_one() {
    let pay = "while ! test -e FOLDER/go; do sleep 0.05; done; echo paid";
    let (mut server, folder) = server(pay, &["--drain", "1h"]);
    let client = server.client().await;
    start_runs(&client, 1).await;
    until_rows(&client, "SELECT call_id FROM tool_calls WHERE status = 'claimed'", 1).await;
    let own = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::TERM] {
        kill_process(own, signal).unwrap();
    }
    until_draining(&server);
    fs::write(folder.path().join("go"), "").unwrap();
    let ended = server.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_that_do_not_end_in_time_are_stopped() {
    let (mut server, folder) = server(ENDLESS, &["--drain", "0s"]);
    make_pipe(&folder);
    let client = server.client().await;
    start_runs(&client, 1).await;
    let pipe = open_pipe(&folder);
    server.terminate();
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("tools and programs did not end in time"), "{ended:?}");
    until_gone(pipe);
}

/// A server without work does not wait.
#[test]
fn a_server_without_running_tools_stops_at_once() {
    let (mut server, _folder) = server("echo paid", &["--drain", "1h"]);
    server.stop();
}
