//! The log of a server: formats, the access log, and what is in no record.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use abide_client::Abide;
use serde_json::{Map, Value as JsonValue, json};

use crate::agent::request_with;
use crate::program::{PATIENCE, Process, abide, run};

const TOKEN: &str = "s3cret-token";

/// Variables of the environment.
type Variables<'a> = &'a [(&'a str, &'a str)];

/// A server with this token and environment, and its address.
fn serve(folder: &Path, options: &[&str], env: Variables<'_>) -> (Process, String) {
    let server = Process::spawn(&mut serve_command(folder, options, env));
    let address = read_address(&server);
    (server, address)
}

fn serve_command(folder: &Path, options: &[&str], env: Variables<'_>) -> Command {
    let mut command = abide();
    command.current_dir(folder).env("ABIDE_TOKEN", TOKEN).envs(env.iter().copied());
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db", "a.db"]).args(options);
    command
}

fn read_address(server: &Process) -> String {
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    greeting["listening"].as_str().unwrap().to_owned()
}

/// Every record at the lowest level is one JSON object on one line, and none has a token, content, SQL or a query string.
#[test]
fn records_are_json_objects_without_secrets_and_content() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = serve(folder.path(), &[], &[("ABIDE_LOG", "trace")]);
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let ask = |method: &str, path: &str, body: JsonValue| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        request_with(&address, method, path, &bearer, &body).0
    };
    assert_eq!(ask("POST", "/v1/call/create_session", json!({"agent": "clerk", "id": "s1"})), 200);
    let content = "s3cret-content\n{\"level\":\"ERROR\"}\u{1b}[2J\u{202e}\u{2066}\u{7f}";
    let message = json!({"session_id": "s1", "role": "user", "content": content});
    assert_eq!(ask("POST", "/v1/call/append_message", message), 200);
    let query = json!({"sql": "SELECT 's3cret-sql' AS x WHERE :p <> ''", "params": {"p": content}});
    assert_eq!(ask("POST", "/v1/sql", query), 200);
    assert_eq!(ask("GET", "/v1/sessions?agent=s3cret-query", JsonValue::Null), 200);
    assert_eq!(ask("GET", "/s3cret-path", JsonValue::Null), 404);
    assert_eq!(ask("GET", "/v1/runs/s3cret-id", JsonValue::Null), 404);
    for _ in 0..3 {
        let wrong = "authorization: Bearer s3cret-guess\r\n";
        assert_eq!(request_with(&address, "GET", "/v1/schema", wrong, "").0, 401);
    }
    let url = format!("http://{address}");
    run(["sql", "SELECT 1", "--url", &url, "--token", TOKEN]).good();
    server.terminate();
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let mut requests = Vec::new();
    let mut refused = Vec::new();
    for line in ended.stderr.lines() {
        let record: Map<String, JsonValue> =
            serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
        for member in ["timestamp", "level", "target", "message"] {
            assert!(record[member].is_string(), "{member}: {line}");
        }
        assert!(!line.contains("s3cret") && !line.contains('\u{202e}'), "{line}");
        match record.get("event").and_then(JsonValue::as_str) {
            Some("request") => {
                assert_eq!(record["target"], "abide_server::access_log");
                assert!(record["duration_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{line}");
                let of = |name: &str| record.get(name).cloned().unwrap_or_default();
                requests.push((of("method"), of("route"), of("status"), of("seq")));
            }
            Some("credentials_refused") => refused.push(record["count"].clone()),
            _ => {}
        }
    }
    let none = JsonValue::Null;
    for expected in [
        (json!("POST"), json!("/v1/call/{reducer}"), json!(200), json!(1)),
        (json!("POST"), json!("/v1/call/{reducer}"), json!(200), json!(2)),
        (json!("POST"), json!("/v1/sql"), json!(200), none.clone()),
        (json!("GET"), json!("/v1/sessions"), json!(200), none.clone()),
        (json!("GET"), none.clone(), json!(404), none.clone()),
        (json!("GET"), json!("/v1/runs/{id}"), json!(404), none.clone()),
        (json!("GET"), json!("/v1/schema"), json!(401), none.clone()),
    ] {
        assert!(requests.contains(&expected), "{expected:?}\n{requests:?}");
    }
    let of_schema = requests.iter().filter(|it| it.1 == "/v1/schema").count();
    assert_eq!(of_schema, 3, "one record for each request: {requests:?}");
    assert_eq!(refused, [json!(1)], "one record a minute");
}

/// `abide serve | true` ended with the exit code 0, after which a supervisor that restarts failed services did not start it
/// again, and a full disk under its stdout ended it too.
#[test]
fn a_server_whose_stdout_cannot_be_written_runs() {
    let (closed, other_end) = UnixStream::pair().unwrap();
    drop(other_end);
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (stdout, why) in [
        (OwnedFd::from(closed), "stdout is closed"),
        (OwnedFd::from(full), "the output cannot be written: the disk is full"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = serve_command(folder.path(), &[], &[]);
        let server = Process::spawn_with_stdout(&mut command, stdout);
        let record = loop {
            let record: JsonValue = serde_json::from_str(&server.error_line()).unwrap();
            if record["event"] == "greeting_not_printed" {
                break record;
            }
        };
        assert_eq!((&record["level"], &record["why"]), (&json!("WARN"), &json!(why)), "{record}");
        let url = format!("http://{}", record["address"].as_str().unwrap());
        run(["health", "--url", &url]).good();
        server.terminate();
        let ended = server.ended();
        assert!(ended.code == Some(0), "{ended:?}");
        assert!(!ended.stderr.contains("greeting_not_printed"), "one record: {ended:?}");
    }
}

/// A worker that disappears leaves a call that a person must settle. The operator of the server learns it without a query.
#[test]
fn a_call_with_an_unknown_outcome_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = serve(folder.path(), &[], &[]);
    let url = format!("http://{address}");
    for words in [
        &["create_session", "agent=support", "id=s1"][..],
        &["register_tool", "name=refund", "effect=at_most_once"],
        &["request_tool_call", "call_id=c1", "session_id=s1", "tool_name=refund", "arguments={}"],
        &["claim_tool_call", "call_id=c1", "worker=w1", "lease_ms=100"],
    ] {
        run(["call", "--url", &url, "--token", TOKEN].iter().chain(words)).good();
    }
    let line = server.error_line();
    let record: JsonValue = serde_json::from_str(&line).unwrap();
    let of = |name: &str| record[name].as_str().unwrap_or_default();
    assert_eq!((of("level"), of("event")), ("WARN", "call_unknown"), "{line}");
    assert_eq!((of("call_id"), of("tool")), ("c1", "refund"), "{line}");
}

#[test]
fn the_format_is_chosen_by_an_option_or_the_environment() {
    let cases: [(&[&str], Variables<'_>); 3] = [
        (&["--log-format", "text"], &[]),
        (&[], &[("ABIDE_LOG_FORMAT", "text")]),
        (&["--log-format", "text"], &[("ABIDE_LOG_FORMAT", "json")]),
    ];
    for (options, env) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (server, address) = serve(folder.path(), options, env);
        assert_eq!(request_with(&address, "GET", "/v1/schema", "", "").0, 401);
        let line = server.error_line();
        let is_text = line.contains(" WARN abide_server::auth::refused: requests had no valid");
        assert!(is_text && line.ends_with(" event=credentials_refused"), "{line}");
    }
}

#[test]
fn a_variable_that_is_not_valid_is_told() {
    for (name, value, told) in [
        ("ABIDE_LOG_FORMAT", "yaml", "ABIDE_LOG_FORMAT is neither text nor json: yaml"),
        ("ABIDE_LOG", "abide=loud", "ABIDE_LOG is not a list of levels: "),
        ("ABIDE_LOG", "wran", r#"ABIDE_LOG is not a list of levels: "wran" is not a level"#),
    ] {
        let ended = Process::spawn(abide().args(["verify", "none.db"]).env(name, value)).ended();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.starts_with(&format!("error: {told}")), "{ended:?}");
        assert!(ended.stderr.contains("hint: "), "{ended:?}");
    }
}

/// The most verbose log: tens of records for each message of a WebSocket.
const VERBOSE: Variables<'static> = &[("ABIDE_LOG", "trace,tungstenite=trace")];

/// A socket that fails the test if no answer comes in time.
fn connect(address: &str) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The body of a response, whose status must be 200.
#[track_caller]
fn request_in_time(address: &str, method: &str, path: &str, body: &str) -> String {
    let mut socket = connect(address);
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.0\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{answer}");
    body.to_owned()
}

/// The number of log records that a server has dropped.
fn dropped_records(address: &str) -> u64 {
    let metrics = request_in_time(address, "GET", "/metrics", "");
    let name = "abide_dropped_log_records_total ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

/// Sends messages of a WebSocket until the server drops log records, and reads their answers.
fn overflow_log(address: &str) {
    let mut socket = connect(address);
    let upgrade = format!(
        "GET /v1/ws HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: abide.v1\r\n\r\n"
    );
    socket.write_all(upgrade.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    // RFC 6455, 5.2: one text frame, its length, masked with zeros.
    let text = br#"{"op":"ping"}"#;
    let header = [0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0];
    let pings = [header.as_slice(), text.as_slice()].concat().repeat(500);
    let pong = br#"{"op":"pong"}"#;
    let until = Instant::now() + PATIENCE;
    let mut received = Vec::new();
    while dropped_records(address) == 0 {
        assert!(Instant::now() < until, "no record was dropped");
        let mut sending = socket.try_clone().unwrap();
        let pings = pings.clone();
        let sender = thread::spawn(move || sending.write_all(&pings).unwrap());
        received.clear();
        while received.windows(pong.len()).filter(|part| *part == pong).count() < 500 {
            let mut part = [0; 16 << 10];
            let count = socket.read(&mut part).unwrap();
            assert!(count > 0, "the server has closed the connection");
            received.extend_from_slice(&part[..count]);
        }
        sender.join().unwrap();
    }
}

/// Regression: a record was written before its request went on, so a program that started a server and did not read its stderr
/// stopped it after 64 kB, and SIGTERM did not end it.
#[test]
fn a_server_whose_log_nobody_reads_answers_and_stops() {
    for is_closed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Process::spawn_unread(&mut serve_command(folder.path(), &[], VERBOSE));
        if is_closed {
            server.close_errors();
        }
        let address = read_address(&server);
        overflow_log(&address);
        let session = r#"{"agent": "clerk", "id": "s1"}"#;
        request_in_time(&address, "POST", "/v1/call/create_session", session);
        let query = r#"{"sql": "SELECT id FROM sessions"}"#;
        let rows = request_in_time(&address, "POST", "/v1/sql", query);
        assert!(rows.contains("s1"), "{rows}");
        server.terminate();
        // It ends while its last records wait.
        let ended = server.ended();
        assert_eq!(ended.code, Some(0), "closed: {is_closed}: {ended:?}");
    }
}

/// A reader that was too slow learns how many records are missing, and gets those of the end.
#[test]
fn records_that_are_missing_are_counted_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Process::spawn_unread(&mut serve_command(folder.path(), &[], VERBOSE));
    let address = read_address(&server);
    overflow_log(&address);
    let dropped = dropped_records(&address);
    server.read_errors();
    // After this record there is room again, so nothing more is missing at the end.
    let mut told = 0;
    while told == 0 {
        told = missing_records(&server.error_line());
    }
    server.terminate();
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    told += ended.stderr.lines().map(missing_records).sum::<u64>();
    assert!(told >= dropped, "{told} of {dropped}");
    let last = ended.stderr.lines().any(|line| line.contains(r#""event":"served""#));
    assert!(last, "the last records are missing");
}

/// The number of records that are missing where this one is.
fn missing_records(line: &str) -> u64 {
    let record: JsonValue =
        serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    let is_about_them = record["event"] == "log_records_dropped";
    if is_about_them { record["count"].as_u64().unwrap() } else { 0 }
}

/// Regression: only calls by name and batches had the event that they wrote, and calls over a WebSocket had no record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_access_log_has_the_event_of_each_route_and_message() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = serve(folder.path(), &[], &[("ABIDE_LOG", "info")]);
    let headers = format!(
        "authorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\na2a-version: 1.0\r\n"
    );
    let definition = json!({"name": "clerk", "a2a_exposed": true});
    let message = json!({"session_id": "s1", "role": "user", "content": "x"});
    let append = json!({"reducer": "append_message", "args": message});
    let send = json!({
        "jsonrpc": "2.0", "id": 7, "method": "SendMessage",
        "params": {
            "message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "x"}]},
            "configuration": {"returnImmediately": true},
        },
    });
    let response = json!({"model": "clerk", "input": "x", "background": true});
    let mut expected = Vec::new();
    let mut last = 0;
    for (method, path, route, body, events) in [
        (
            "POST",
            "/v1/call/register_agent",
            "/v1/call/{reducer}",
            json!({"name": "clerk", "definition": definition}),
            1,
        ),
        ("POST", "/v1/sessions", "/v1/sessions", json!({"agent": "clerk", "id": "s1"}), 1),
        ("PATCH", "/v1/sessions/s1", "/v1/sessions/{id}", json!({"title": "x"}), 1),
        ("POST", "/v1/batch", "/v1/batch", json!({"calls": [append, append]}), 2),
        ("POST", "/v1/sessions/s1/fork", "/v1/sessions/{id}/fork", json!({"id": "s2"}), 1),
        ("PUT", "/v1/prompts/p", "/v1/prompts/{name}", json!({"text": "x"}), 1),
        (
            "POST",
            "/v1/agents/clerk/runs",
            "/v1/agents/{name}/runs",
            json!({"input": "x", "session_id": "s1", "id": "r1"}),
            1,
        ),
        ("POST", "/v1/runs/r1/abort", "/v1/runs/{id}/abort", json!({}), 1),
        (
            "POST",
            "/v1/agents/clerk/invoke",
            "/v1/agents/{name}/invoke",
            json!({"input": "x", "session_id": "s1", "wait_ms": 0}),
            1,
        ),
        ("POST", "/v1/sessions/s1/abort", "/v1/sessions/{id}/abort", json!({}), 1),
        ("POST", "/v1/responses", "/v1/responses", response, 2),
        ("POST", "/a2a/clerk", "/a2a/{agent}", send, 3),
        ("DELETE", "/agents/clerk", "/agents/{name}", JsonValue::Null, 1),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, answer) = request_with(&address, method, path, &headers, &body);
        assert!((200..300).contains(&status), "{method} {path}: {answer}");
        last += events;
        expected.push((json!(method), json!(route), json!(last)));
    }
    let client = Abide::builder(&format!("http://{address}")).token(TOKEN).connect().await.unwrap();
    let done = client.call_by_name("append_message", message.clone()).await.unwrap();
    assert_eq!(done.seq.0, last + 1);
    client.call_by_name("append_message", json!({"session_id": "none"})).await.unwrap_err();
    drop(client);
    server.terminate();
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let records = ended.stderr.lines().map(|line| serde_json::from_str::<JsonValue>(line).unwrap());
    let (messages, requests): (Vec<JsonValue>, Vec<JsonValue>) = records
        .filter(|record| record["target"] == "abide_server::access_log")
        .partition(|record| record["event"] == "websocket_message");
    let written: Vec<_> = requests
        .iter()
        .filter(|record| record["status"] != 101)
        .map(|record| (record["method"].clone(), record["route"].clone(), record["seq"].clone()))
        .collect();
    assert_eq!(written, expected);
    let of_messages: Vec<_> = messages
        .iter()
        .map(|record| {
            assert!(record["duration_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{record}");
            let of = |name: &str| record[name].clone();
            (of("route"), of("op"), of("caller"), of("status"), of("seq"))
        })
        .collect();
    let of_message = |status: u16, seq: JsonValue| {
        (json!("/v1/ws"), json!("call"), json!("token"), json!(status), seq)
    };
    let none = JsonValue::Null;
    assert_eq!(of_messages, [of_message(200, json!(last + 1)), of_message(422, none)]);
}
