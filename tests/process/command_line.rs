//! The command line: help, normal output, JSON, errors with their hints, exit codes.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use expect_test::{ExpectFile, expect_file};
use serde_json::{Value as JsonValue, json};

use crate::program::{ExitedProcess, Process, abide, run};
use crate::server::Server;

#[test]
fn the_help_texts() {
    let mut text = run(["--help"]).good();
    let list = text.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: Vec<String> =
        list.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    for command in commands.iter().filter(|command| *command != "help") {
        let help = run([command, "--help"]).good();
        text.push_str(&format!("\n\n$ abide {command} --help\n{help}"));
    }
    expect_file!["golden/help.txt"].assert_eq(&text);
    let version = run(["--version"]).good();
    assert_eq!(version, format!("abide {}\n", env!("CARGO_PKG_VERSION")));
}

/// Commands typed one after the other, with the output as a user sees it.
struct Shell {
    server: Server,
    seen: String,
}

impl Shell {
    fn new() -> Shell {
        Shell { server: Server::start(), seen: String::new() }
    }

    fn type_in(&mut self, words: &[&str]) {
        let ended = self.server.run(words);
        self.show(words, &ended);
    }

    fn show(&mut self, words: &[&str], ended: &ExitedProcess) {
        let quoted = words.iter().map(|word| {
            let is_plain = !word.contains([' ', '*', '{', '\'']);
            if is_plain { format!(" {word}") } else { format!(" \"{word}\"") }
        });
        self.seen.push_str(&format!("$ abide{}\n", quoted.collect::<String>()));
        self.seen.push_str(&format!("{}{}", ended.stdout, ended.stderr));
        match ended.code {
            Some(0) => self.seen.push('\n'),
            code => self.seen.push_str(&format!("exit code {}\n\n", code.unwrap())),
        }
    }

    #[track_caller]
    fn check(&self, expected: ExpectFile) {
        let seen = self.seen.replace(&self.server.url(), "URL");
        let seen = seen.replace(self.server.folder().to_str().unwrap(), "FOLDER");
        expected.assert_eq(&scrubbed(&seen));
    }
}

/// The text without what differs between runs: times, ids and hashes.
fn scrubbed(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let mut scrubbed = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if !is_part(first) {
            scrubbed.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
        rest = after;
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        let is_hex = word.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        match word.len() {
            10 if digits == 8 && is_hex => {
                // The time of day follows.
                rest = &rest[" 00:00:00".len()..];
                scrubbed.push_str("YYYY-MM-DD hh:mm:ss");
            }
            16 if digits == 16 => scrubbed.push_str("MICROS"),
            32 if is_hex => scrubbed.push_str("SALT"),
            36 if is_hex => scrubbed.push_str("UUID"),
            64 if is_hex => scrubbed.push_str("HASH"),
            27.. if word.contains("_01") => {
                scrubbed.push_str(word.split('_').next().unwrap());
                scrubbed.push_str("_ULID");
            }
            _ => scrubbed.push_str(word),
        }
    }
    scrubbed
}

#[test]
fn a_session_at_the_terminal() {
    let mut shell = Shell::new();
    shell.type_in(&["call", "create_session", "agent=support", "id=s1", "title=A lost parcel"]);
    shell.type_in(&[
        "call",
        "append_message",
        "session_id=s1",
        "role=user",
        "content=Where is it?",
    ]);
    shell.type_in(&["call", "create_session", "agent=support", "--request-id", "r1"]);
    shell.type_in(&["call", "create_session", "agent=support", "--request-id", "r1"]);
    shell.type_in(&["sql", "SELECT id, status, title, seq FROM sessions WHERE id = :id", "id=s1"]);
    shell.type_in(&["sql", "SELECT role, content FROM agent_state"]);
    shell.type_in(&["sql", "SELECT id FROM sessions WHERE status = 'failed'"]);
    shell.type_in(&["sql", "SELECT count(*) FROM sessions", "--as-of", "1"]);
    shell.type_in(&["events"]);
    shell.type_in(&["events", "--session", "s1", "--last", "1"]);
    shell.type_in(&["watch", "SELECT id, status FROM sessions WHERE id = 's1'", "--count", "1"]);
    let sql = "SELECT id, status FROM sessions";
    shell.type_in(&["watch", sql, "--as-of", "1", "--count", "2"]);
    shell.type_in(&["watch", "SELECT seq FROM events ORDER BY seq LIMIT 2", "--count", "1"]);
    shell.type_in(&["explain", "SELECT id FROM sessions WHERE agent = :agent ORDER BY title"]);
    shell.check(expect_file!["golden/terminal.txt"]);
}

#[test]
fn the_same_with_json() {
    let mut shell = Shell::new();
    shell.type_in(&["call", "create_session", "agent=support", "id=s1", "--json"]);
    shell.type_in(&["sql", "SELECT id, seq, 1.0, NULL, x'00ff' FROM sessions", "--json"]);
    shell.type_in(&["events", "--json"]);
    shell.type_in(&["watch", "SELECT id FROM sessions", "--count", "1", "--json"]);
    let query = "SELECT id FROM sessions ORDER BY id LIMIT 1";
    shell.type_in(&["watch", query, "--as-of", "0", "--count", "2", "--json"]);
    shell.type_in(&["explain", "SELECT id FROM sessions WHERE agent = 'a'", "--json"]);
    shell.type_in(&["call", "create_session", "agent=support", "id=s1", "--json"]);
    shell.type_in(&["sql", "SELECT FROM", "--json"]);
    shell.check(expect_file!["golden/json.txt"]);
}

#[test]
fn errors_of_a_server() {
    let mut shell = Shell::new();
    shell.type_in(&["call", "create_session", "agent=a", "id=s1"]);
    shell.seen.clear();
    shell.type_in(&["call", "create_sesion", "agent=a"]);
    shell.type_in(&["call", "create_session"]);
    shell.type_in(&["call", "create_session", "agent=42"]);
    shell.type_in(&["call", "create_session", "agent=a", "colour=red"]);
    shell.type_in(&["call", "create_session", "agent=a", "id=s1"]);
    shell.type_in(&["call", "append_message", "session_id=s9", "role=user", "content=hi"]);
    shell.type_in(&["call", "resume_session", "session_id=s1"]);
    shell.type_in(&["call", "claim_tool_call", "call_id=c9"]);
    shell.type_in(&["sql", "SELEC 1"]);
    shell.type_in(&["sql", "SELECT idd FROM sessions"]);
    shell.type_in(&["sql", "DELETE FROM sessions"]);
    shell.type_in(&["sql", "SELECT * FROM nowhere"]);
    shell.type_in(&["sql", "SELECT 1; SELECT 2"]);
    shell.type_in(&["sql", "SELECT 1", "--as-of", "99"]);
    shell.type_in(&["sql", "SELECT :a"]);
    shell.type_in(&["sql", "SELECT :a", "a=1", "b=2"]);
    shell.type_in(&["watch", "SELECT random() FROM sessions"]);
    shell.type_in(&["watch", "SELECT * FROM nowhere"]);
    shell.type_in(&["watch", "SELECT id FROM sessions", "--as-of", "99"]);
    let unindexed = "SELECT a.id FROM agent_state a JOIN agent_state b ON b.content = a.role";
    shell.type_in(&["watch", unindexed]);
    shell.type_in(&["explain", unindexed]);
    shell.type_in(&["explain", "SELECT random() FROM sessions"]);
    shell.check(expect_file!["golden/refused.txt"]);
}

#[test]
fn invalid_command_lines() {
    let mut shell = Shell::new();
    shell.type_in(&["call", "create_session", "agent"]);
    shell.type_in(&["call", "create_session", "agent=a", "agent=b"]);
    shell.type_in(&["call", "create_session", "metadata:={"]);
    for words in ["frobnicate", "sql"] {
        shell.show(&[words], &run([words]));
    }
    shell.type_in(&["watch", "SELECT 1", "--db", "abide.db"]);
    shell.type_in(&["events", "--follow", "--db", "abide.db"]);
    shell.show(&["serve", "--retention-time", "7"], &run(["serve", "--retention-time", "7"]));
    shell.type_in(&["demo", "--conversations", "0"]);
    shell.check(expect_file!["golden/usage.txt"]);
}

#[test]
fn servers_that_cannot_be_reached() {
    let mut shell = Shell::new();
    shell.server.kill();
    shell.type_in(&["call", "create_session", "agent=a"]);
    shell.type_in(&["sql", "SELECT 1"]);
    shell.type_in(&["watch", "SELECT * FROM sessions"]);
    shell.type_in(&["events", "--json"]);
    let nowhere = ["sql", "SELECT 1", "--db", "nowhere/abide.db"];
    shell.show(&nowhere, &run(nowhere));
    let elsewhere = ["sql", "SELECT 1", "--url", "ftp://example.org"];
    shell.show(&elsewhere, &run(elsewhere));
    shell.check(expect_file!["golden/unreachable.txt"]);
}

/// Regression: an argument that is not UTF-8 was a panic.
#[test]
fn an_argument_that_is_not_utf_8_is_a_usage_error() {
    for words in [
        &["sql"][..],
        &["explain"],
        &["watch"],
        &["call"],
        &["call", "create_session"],
        &["events", "--session"],
        &["token", "create"],
        &["identity", "create"],
        &["role", "set"],
        &["prompt", "show"],
        &["agent", "abort"],
        &["mcp", "login"],
        &["serve", "--listen"],
        &["replay", "a.db", "--to"],
        &["init", "--url"],
        &["db", "create", "--token-file"],
        &["--json", "sql"],
        &[],
    ] {
        let invalid = OsStr::from_bytes(b"\xa0");
        let ended = Process::spawn(abide().args(words).arg(invalid)).ended();
        let is_usage = if words.first() == Some(&"--json") {
            ended.stderr.contains("\"code\":\"usage\"")
        } else {
            ended.stderr.starts_with("error: ") && ended.stderr.contains("   [usage]\n  hint: ")
        };
        assert!(ended.code == Some(2) && is_usage, "{words:?}: {ended:?}");
    }
}

/// `key=value` guesses, `key:=json` and `key@=text` do not.
#[test]
fn arguments_of_every_kind_arrive_as_typed() {
    let server = Server::start();
    server.run(&["call", "create_session", "agent=a", "id=s1"]).good();
    let cases = [
        ("data=42", json!(42)),
        ("data=1.50", json!(1.5)),
        ("data=true", json!(true)),
        ("data=[1, \"a\"]", json!([1, "a"])),
        ("data={\"a\": {\"b\": null}}", json!({"a": {"b": null}})),
        ("data=007", json!("007")),
        ("data=a=b", json!("a=b")),
        ("data=", json!("")),
        ("data=grüße 😊", json!("grüße 😊")),
        ("data=123456789012345678901234567890", json!("123456789012345678901234567890")),
        ("data@=42", json!("42")),
        ("data@={}", json!("{}")),
        ("data:=\"42\"", json!("42")),
    ];
    for (typed, meant) in cases {
        let words = ["call", "append_message", "session_id=s1", "role=user", "content@=", typed];
        server.run(&words).good();
        let sql = "SELECT arguments FROM events ORDER BY seq DESC LIMIT 1";
        let rows = server.run(&["sql", sql, "--json"]).json();
        let sent: JsonValue = serde_json::from_str(rows["rows"][0][0].as_str().unwrap()).unwrap();
        assert_eq!(sent["data"], meant, "{typed}");
        assert_eq!(sent["content"], "", "{typed}");
    }
}

#[test]
fn arguments_from_a_file_or_another_program() {
    let server = Server::start();
    let with_input = |words: &[&str], input: &str| -> ExitedProcess {
        let mut command: Command = abide();
        let mut echo = Command::new("printf").arg("%s").arg(input).stdout(Stdio::piped()).spawn();
        let echo = echo.as_mut().unwrap();
        command.args(words).args(["--url", &server.url()]).stdin(echo.stdout.take().unwrap());
        let ended = Process::spawn(&mut command).ended();
        echo.wait().unwrap();
        ended
    };
    let words = ["call", "create_session", "--json", "-"];
    let answer = with_input(&words, r#"{"agent": "support", "id": "s1"}"#).json();
    assert_eq!((&answer["seq"], &answer["result"]["id"]), (&json!(1), &json!("s1")));

    let file = server.sibling("arguments.json");
    write!(fs::File::create(&file).unwrap(), r#"{{"agent": "support", "id": "s2"}}"#).unwrap();
    let answer = server.run(&["call", "create_session", file.to_str().unwrap(), "--json"]).json();
    assert_eq!(answer["result"]["id"], "s2");

    for (input, why) in [("", "EOF"), ("[1]", "sequence"), ("{\"agent\": ", "EOF")] {
        let ended = with_input(&["call", "create_session", "-"], input);
        assert_eq!(ended.code, Some(2), "{input}: {ended:?}");
        assert!(ended.stderr.starts_with("error: stdin is not a JSON object: "), "{ended:?}");
        assert!(ended.stderr.contains(why) && ended.stderr.contains("[usage]"), "{ended:?}");
    }
    assert_eq!(server.verify(), 2, "nothing else was written");
}

/// `abide events | head`: a reader that closes the pipe is not an error.
#[test]
fn a_reader_that_closes_the_pipe() {
    let server = Server::start();
    let message = format!("content={}", "x".repeat(20_000));
    server.run(&["call", "create_session", "agent=a", "id=s1"]).good();
    for _ in 0..20 {
        let words = ["call", "append_message", "session_id=s1", "role=user", &message];
        server.run(&words).good();
    }
    let mut command = abide();
    command.args(["events", "--json", "--url", &server.url()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

/// A hint names this command for an unknown reducer.
#[test]
fn a_call_without_a_name_lists_the_reducers() {
    let listed = run(["call"]).good();
    assert!(listed.contains("\nappend_message "), "{listed}");
    assert!(!listed.contains("expire_run"), "only the engine calls it: {listed}");
}

/// A misspelled parameter was reported as a missing one, with the hint to give it.
#[test]
fn a_misspelled_parameter_is_named() {
    let server = Server::start();
    let sql = "SELECT id FROM sessions WHERE id = :sid AND title = :title";
    let hint = "hint: did you mean :sid? the statement has no parameter sdi\n";
    for command in ["sql", "watch"] {
        let refused = server.run(&[command, sql, "title=x", "sdi=x"]);
        assert!(refused.code == Some(1) && refused.stderr.ends_with(hint), "{refused:?}");
        let missing = server.run(&[command, sql, "title=x"]);
        let hint = "hint: give it after the statement: `sid=…`\n";
        assert!(missing.stderr.ends_with(hint), "{missing:?}");
    }
}
