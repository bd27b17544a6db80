//! Failures of commands, as a table. The class: a command that waits without a limit, that prints what a peer has sent
//! however long it is, or that fails without a reason. A server that was not one made a command print 50 MB. Each command
//! ends in bounded time, with its exit code, and with one message of at most 4 KiB that has a code and a hint.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use serde_json::json;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Message, WebSocket, accept_hdr};

use crate::program::{ExitedProcess, Process, abide, run};
use crate::server::Server;

/// Maximum bytes that a command prints when it fails.
const SHORT: usize = 4 << 10;

const MEGABYTES: usize = 50 << 20;

/// What commands say that use a server.
const COMMANDS: [&[&str]; 8] = [
    &["sql", "SELECT 1"],
    &["sql", "--json", "SELECT 1"],
    &["call", "create_session", "agent=a"],
    &["events"],
    &["explain", "SELECT 1"],
    &["token", "list"],
    &["identity", "list"],
    &["watch", "SELECT id FROM sessions"],
];

/// Checks how a command has failed.
#[track_caller]
fn check(what: &str, ended: &ExitedProcess, exit_code: i32, code: &str) {
    let ExitedProcess { code: exit, stdout, stderr } = ended;
    let all = format!("{stdout}{stderr}");
    let shown: String = all.chars().take(2_000).collect();
    assert_eq!(*exit, Some(exit_code), "{what}: {shown}");
    let bytes = stdout.len() + stderr.len();
    assert!(bytes <= SHORT, "{what} printed {bytes} bytes: {shown}");
    let has_code =
        stderr.contains(&format!("[{code}]")) || all.contains(&format!("\"code\":\"{code}\""));
    assert!(has_code, "{what} has the code {code}: {shown}");
    let has_hint = stderr.contains("\n  hint: ") || all.contains("\"hint\":\"");
    assert!(has_hint, "{what} has a hint: {shown}");
    let is_safe = |c: char| c == '\n' || !abide_schema::id::is_invisible(c);
    assert!(all.chars().all(is_safe), "{what}: {shown:?}");
    let forged = stderr.lines().filter(|line| line.starts_with("error: ")).count();
    assert!(forged <= 1, "{what}: {shown}");
}

/// Starts a peer that treats each connection in the same way; returns its address.
fn peer(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            let stream = stream.unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Reads until the client closes.
fn wait(mut stream: TcpStream) {
    // A reset is an end too.
    let _ = stream.read_to_end(&mut Vec::new());
}

fn answers(status: &str, kind: &str, body: &str) -> impl Fn(TcpStream) + Clone + Send + 'static {
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        // The client closes before it has read everything.
        let _ = stream.write_all(response.as_bytes());
        wait(stream);
    }
}

#[expect(clippy::result_large_err, reason = "the type of the library's callback")]
fn with_protocol(_: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    let protocol = HeaderValue::from_static("abide.v1");
    response.headers_mut().insert("sec-websocket-protocol", protocol);
    Ok(response)
}

/// Sends these messages, and to each request this one with its id.
fn speaks(
    greeting: Vec<String>,
    answer: Option<serde_json::Value>,
) -> impl Fn(TcpStream) + Clone + Send + 'static {
    move |stream| {
        let Ok(mut socket): Result<WebSocket<TcpStream>, _> = accept_hdr(stream, with_protocol)
        else {
            return;
        };
        for message in &greeting {
            let _ = socket.send(Message::text(message.clone()));
        }
        while let Ok(message) = socket.read() {
            let Some(answer) = &answer else { continue };
            let request: serde_json::Value =
                serde_json::from_slice(&message.into_data()).unwrap_or_default();
            let mut answer = answer.clone();
            answer["id"] = request["id"].clone();
            if request["id"].is_string() && socket.send(Message::text(answer.to_string())).is_err()
            {
                return;
            }
        }
    }
}

fn hello() -> String {
    json!({"op": "hello", "server": "abide", "version": "0.1.0", "seq": 1, "timeline": "t1"})
        .to_string()
}

#[test]
fn a_server_that_is_none_costs_a_short_message() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let long = "x".repeat(MEGABYTES);
    let problem = |detail: &str, hint: &str| {
        json!({"code": "denied", "detail": detail, "hint": hint}).to_string()
    };
    let hostile = "no\nerror: a\u{1b}[2J\u{202e}\u{200b}\u{9b}31m";
    let error = |detail: &str| {
        let error = json!({"op": "error", "code": "bad_sql", "detail": detail, "hint": detail});
        speaks(vec![hello()], Some(error))
    };
    let goodbye = json!({"op": "error", "code": "overloaded", "detail": long, "hint": long});
    let json = "application/problem+json";
    let table: [(&str, String, i32, &str); 11] = [
        ("nothing listens", format!("http://{closed}"), 3, "unreachable"),
        ("it never answers", peer(wait), 3, "unreachable"),
        ("it closes at once", peer(drop), 3, "unreachable"),
        ("50 MB of HTTP", peer(answers("500 Oh", "text/plain", &long)), 3, "unreachable"),
        ("a page", peer(answers("200 OK", "text/html", "<html>")), 3, "unreachable"),
        ("50 MB of reason", peer(answers("403 No", json, &problem(&long, &long))), 1, "denied"),
        ("escapes", peer(answers("403 No", json, &problem(hostile, hostile))), 1, "denied"),
        ("not JSON", peer(speaks(vec!["{".repeat(1 << 20)], None)), 1, "internal"),
        ("a long error", peer(error(&"x".repeat(1 << 20))), 1, "bad_sql"),
        ("escapes in an error", peer(error(hostile)), 1, "bad_sql"),
        (
            "a long goodbye",
            peer(speaks(vec![hello(), goodbye.to_string()], None)),
            3,
            "unreachable",
        ),
    ];
    for (what, url, exit_code, code) in &table {
        // At once: some of them wait for a timeout.
        let commands = COMMANDS.iter().filter(|command| {
            // A subscription has no deadline: it reports the lost connection and waits for the server.
            *what != "a long goodbye" || command[0] != "watch"
        });
        let running: Vec<_> = commands
            .map(|command| {
                let process = Process::spawn(abide().args(*command).args(["--url", url.as_str()]));
                (command, process)
            })
            .collect();
        for (command, process) in running {
            check(&format!("{what}: {command:?}"), &process.ended(), *exit_code, code);
        }
    }
}

#[test]
fn a_token_that_is_none_is_refused_by_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("a.db");
    run(["token", "create", "root", "--role", "admin", "--db", db.to_str().unwrap()]).good();
    let server = Server::start_on(&db);
    for command in COMMANDS {
        for token in ["wrong", "abide_abcabcabc_wrong", &"x".repeat(7_000)] {
            let mut process = abide();
            process.args(command).args(["--url", &server.url(), "--token", token]);
            let ended = Process::spawn(&mut process).ended();
            let what = format!("{command:?} {token:.20}");
            check(&what, &ended, 1, "unauthenticated");
        }
    }
}

#[test]
fn a_file_that_cannot_be_used_costs_a_short_message() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let good = at("good.db");
    run(["db", "create", good.to_str().unwrap()]).good();
    private(&at("text.db"), "hello ".repeat(10_000).as_bytes());
    let mut damaged = fs::read(&good).unwrap();
    damaged[100..].fill(0xA5);
    private(&at("damaged.db"), &damaged);
    private(&at("empty.db"), b"");
    let name = "bad\u{1b}[2J\u{202e}.db";
    private(&at(name), b"no database, but long enough to have a header");
    fs::create_dir(at("folder.db")).unwrap();
    let held = at("held.db");
    let _server = Server::start_on(&held);
    for command in [&["sql", "SELECT 1"][..], &["call", "create_session", "agent=a"], &["events"]] {
        for (file, code) in [
            ("missing.db", "not_found"),
            ("nowhere/a.db", "not_found"),
            ("text.db", "bad_request"),
            ("damaged.db", ""),
            ("empty.db", "not_found"),
            (name, "bad_request"),
            ("folder.db", "bad_request"),
            ("held.db", "file_locked"),
        ] {
            let mut process = abide();
            process.args(command).arg("--db").arg(at(file));
            let ended = Process::spawn(&mut process).ended();
            let what = format!("{command:?} {file}");
            let found = ended.stderr.split_once("   [").and_then(|(_, rest)| rest.split_once(']'));
            let found = found.map_or("a code", |(found, _)| found).to_owned();
            check(&what, &ended, 1, if code.is_empty() { &found } else { code });
        }
    }
}

fn private(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_command_that_does_not_exist_costs_a_short_message() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(100_000);
    for args in [
        &["nosuch"][..],
        &["\u{1b}[2J"],
        &[&long],
        &["sql", "SELECT 1", "--nosuch"],
        &["sql", "SELECT 1", &format!("--{long}")],
        &["events", "--after", &long],
    ] {
        let ended = Process::spawn(abide().current_dir(folder.path()).args(args)).ended();
        let what: String = format!("{args:?}").chars().take(80).collect();
        check(&what, &ended, 2, "usage");
    }
    run(["agent", "init", "--agents", folder.path().join("p").to_str().unwrap()]);
    let mut agent = abide();
    agent.current_dir(folder.path());
    agent.args(["agent", "run", "--db", "p/agents.db", "--agents", "p", "nosuch", "hi"]);
    check("an unknown agent", &Process::spawn(&mut agent).ended(), 1, "not_found");
}

/// `/dev/full` refuses each write as a full disk does.
#[test]
fn output_that_cannot_be_written_costs_a_short_message() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("a.db");
    let db = db.to_str().unwrap();
    run(["db", "create", db]).good();
    run(["call", "create_session", "agent=a", "--db", db]).good();
    for command in [&["sql", "SELECT 1"][..], &["events"], &["token", "list", "--json"]] {
        let mut process = abide();
        process.args(command).args(["--db", db]);
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = process.stdout(full).stderr(Stdio::piped()).output().unwrap();
        let ended = ExitedProcess {
            code: output.status.code(),
            stdout: String::new(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        check(&format!("{command:?}"), &ended, 1, "disk_full");
    }
}

/// A token whose only copy could not be printed stayed valid, and the message did not name it.
#[test]
fn a_token_that_cannot_be_printed_is_named_with_the_command_that_revokes_it() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("a.db");
    let db = db.to_str().unwrap();
    for (form, output, code) in [
        ("text", Output::Full, "disk_full"),
        ("json", Output::Full, "disk_full"),
        ("text", Output::Closed, "bad_request"),
    ] {
        let mut create = abide();
        create.args(["token", "create", "root", "--db", db]);
        if form == "json" {
            create.arg("--json");
        }
        if !Path::new(db).exists() {
            create.args(["--role", "admin", "--capability", "*"]);
        }
        let ended = Process::spawn_with_stdout(&mut create, output.open()).ended();
        check(form, &ended, 1, code);
        let tokens = "SELECT id FROM tokens WHERE revoked_at IS NULL";
        let left = run(["sql", tokens, "--json", "--db", db]).json();
        let id = left["rows"][0][0].as_str().unwrap();
        let hint = format!("`abide token --db {db} revoke {id}` revokes it");
        assert!(ended.stderr.contains(&hint), "{ended:?}");
        run(["token", "--db", db, "revoke", id]).good();
    }
}

/// A stdout that cannot be written.
enum Output {
    Full,
    Closed,
}

impl Output {
    fn open(&self) -> OwnedFd {
        match self {
            Output::Full => File::options().write(true).open("/dev/full").unwrap().into(),
            Output::Closed => UnixStream::pair().unwrap().0.into(),
        }
    }
}

/// The password of an address was in the message of each command that could not reach it.
#[test]
fn no_message_has_the_password_of_an_address() {
    // Nothing listens at this port.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for url in [
        format!("http://ann:s3cret@127.0.0.1:{port}"),
        format!("ann:s3cret@127.0.0.1:{port}"),
        format!("http://ann:s3/cret@127.0.0.1:{port}"),
    ] {
        for command in COMMANDS.iter().chain(&[&["health"][..], &["health", "--json"]]) {
            let ended = run(command.iter().copied().chain(["--url", &url]));
            assert!(ended.code != Some(0), "{url} {command:?}: {ended:?}");
            let all = format!("{}{}", ended.stdout, ended.stderr);
            assert!(!all.contains("s3"), "{url} {command:?}: {ended:?}");
        }
    }
}
