//! Stored and foreign text on a terminal. `abide agent run` once wrote a tool's output to the
//! terminal unfiltered: an escape sequence in it set the window's title, or cleared the screen of
//! the approval prompt. Here every command runs over a file in which every text is hostile, on a
//! terminal, on a pipe and with `--json`.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use abide_client::Abide;
use rusqlite::Connection;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::{abide, run};
use crate::server::Server;

/// Sets the title, clears the screen, hides what follows; then DEL, a C1 control, direction
/// overrides, and tag characters.
const HOSTILE: &str = "mark\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[8m\
                       \u{7f}\u{9b}2J\u{202e}\u{2066}\u{200f}\u{61c}\u{e0041}\rend";

/// The parts that must never be printed. (The terminal driver itself writes `\r` before `\n`.)
const FORBIDDEN: [&str; 11] = [
    "\u{1b}]",
    "\u{1b}[2J",
    "\u{1b}[8m",
    "\u{7}",
    "\u{7f}",
    "\u{9b}",
    "\u{202e}",
    "\u{2066}",
    "\u{200f}",
    "\u{61c}",
    "\u{e0041}",
];

#[track_caller]
fn assert_harmless(how: &str, output: &str) {
    for forbidden in FORBIDDEN {
        assert!(!output.contains(forbidden), "{forbidden:?} of {how}: {output:?}");
    }
    assert!(!output.contains("\rend"), "a carriage return of {how}: {output:?}");
}

/// What is asked on a terminal, and the line that answers it. What is typed before the question answers nothing.
struct Question {
    asked: &'static str,
    answer: &'static str,
}

/// Runs a command on a pseudo-terminal, answers its question, and returns everything that was shown.
fn on_a_terminal(args: &[String], mut question: Option<Question>) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
    let mut child = abide().args(args).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    drop(slave);
    let mut master = File::from(master);
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    // A terminal whose other end is closed reads as an error.
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&shown);
        if let Some(Question { answer, .. }) = question.take_if(|it| text.contains(it.asked)) {
            master.write_all(answer.as_bytes()).unwrap();
        }
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

/// Runs a command in all three ways. Returns its output, so that a test can check that the text was
/// present.
#[track_caller]
fn check(args: &[&str]) -> String {
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    let shown = on_a_terminal(&args, None);
    assert_harmless(&format!("{args:?} on a terminal"), &shown);
    let mut all = shown;
    for more in [None, Some("--json".to_owned())] {
        let words: Vec<String> = args.iter().cloned().chain(more).collect();
        let ended = run(&words);
        assert_harmless(&format!("{words:?}"), &ended.stdout);
        assert_harmless(&format!("{words:?} on stderr"), &ended.stderr);
        all += &(ended.stdout + &ended.stderr);
    }
    all
}

/// A file with a row in every table that calls can fill.
async fn filled(db: &Path) {
    let abide = Abide::open(db).unwrap();
    let calls = [
        (
            "create_session",
            json!({"agent": "a", "id": "s1", "title": HOSTILE, "metadata": {"k": HOSTILE}}),
        ),
        (
            "append_message",
            json!({"session_id": "s1", "role": "user", "content": HOSTILE, "data": {"k": HOSTILE}}),
        ),
        (
            "register_tool",
            json!({"name": "t", "description": HOSTILE, "approval": {"prompt": HOSTILE}}),
        ),
        (
            "request_tool_call",
            json!({"call_id": "c1", "session_id": "s1", "tool_name": "t",
                "arguments": {"k": HOSTILE}}),
        ),
        (
            "request_supervisor_handoff",
            json!({"session_id": "s1", "reason": HOSTILE, "data": {"k": HOSTILE}}),
        ),
        ("create_identity", json!({"id": "i", "role": "app"})),
        (
            "create_token",
            json!({"id": "t1", "identity_id": "i", "hash": "0".repeat(64), "label": "x"}),
        ),
        ("set_role", json!({"name": "r", "reducers": ["append_message"], "description": HOSTILE})),
        (
            "register_agent",
            json!({"name": "a", "definition": {"name": "a", "description": HOSTILE}}),
        ),
        ("set_policy", json!({"table": "tool_calls", "role": "r", "condition": "status = 'x'"})),
        ("put_prompt", json!({"name": "p", "text": HOSTILE, "description": HOSTILE})),
        (
            "set_timer",
            json!({"key": "k", "reducer": "append_message", "delay_ms": 1000, "arguments": {}}),
        ),
    ];
    for (reducer, arguments) in calls {
        // A text that a rule refuses is not stored.
        let _ = abide.call_by_name(reducer, arguments).await;
    }
    abide.close().await;
}

/// Writes the text into every text column, without the rules that the schema does not enforce.
fn tampered(db: &Path) -> Vec<String> {
    let raw = Connection::open(db).unwrap();
    let list = |sql: &str| -> Vec<String> {
        let mut statement = raw.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let triggers = list("SELECT sql FROM sqlite_master WHERE type = 'trigger'");
    for trigger in list("SELECT name FROM sqlite_master WHERE type = 'trigger'") {
        raw.execute_batch(&format!("DROP TRIGGER \"{trigger}\"")).unwrap();
    }
    raw.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    let tables = list(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name",
    );
    let mut changed = 0;
    for table in &tables {
        let of_type = format!("SELECT name FROM pragma_table_info('{table}') WHERE type = 'TEXT'");
        // The engine opens a file by its own tables.
        let is_own = ["meta", "change_log"].contains(&table.as_str());
        for column in list(&of_type).iter().filter(|_| !is_own) {
            let values = [
                format!(
                    "CASE WHEN json_valid({column}) THEN json_insert({column}, '$.hostile', ?1) ELSE {column} || ?1 END"
                ),
                format!("{column} || ?1"),
            ];
            changed += values
                .iter()
                .filter_map(|value| {
                    let sql =
                        format!("UPDATE {table} SET {column} = {value} WHERE {column} IS NOT NULL");
                    raw.execute(&sql, [HOSTILE]).ok()
                })
                .sum::<usize>();
        }
    }
    assert!(changed > 20, "{changed} values were changed");
    for trigger in triggers {
        raw.execute_batch(&trigger).unwrap();
    }
    tables
}

fn names(folder: &TempDir) -> (String, String) {
    let path = |name: &str| folder.path().join(name).display().to_string();
    (path("abide.db"), path(&format!("{}.db", HOSTILE.replace('/', ""))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_prints_an_escape_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let (db, hostile_name) = names(&folder);
    filled(Path::new(&db)).await;
    let copy = folder.path().join("tampered.db").display().to_string();
    fs::copy(&db, &copy).unwrap();
    let tables = tampered(Path::new(&copy));

    let below_hostile = format!("{hostile_name}/abide.db");
    let mut seen = String::new();
    let mut commands: Vec<Vec<&str>> = vec![
        vec!["call", HOSTILE, "--db", &db],
        vec!["call", "append_message", "role=user", "--db", &db],
        vec![
            "explain",
            "SELECT id AS \"mark\u{202e}\" FROM sessions WHERE agent = '\u{9b}'",
            "--db",
            &db,
        ],
        vec!["events", "--db", &copy],
        vec!["events", "--db", &db],
        vec!["token", "list", "--db", &copy],
        vec!["token", "revoke", HOSTILE, "--db", &copy],
        vec!["identity", "list", "--db", &copy],
        vec!["role", "list", "--db", &copy],
        vec!["mcp", "login", HOSTILE],
        vec!["mcp", "logout", HOSTILE],
        vec!["prompt", "list", "--db", &db],
        vec!["prompt", "show", "p", "--db", &db],
        vec!["prompt", "render", "p", "--db", &db],
        vec!["verify", &copy],
        vec!["verify", &copy, "--replay"],
        vec!["verify", &hostile_name],
        vec!["upgrade", &copy],
        vec!["upgrade", &hostile_name],
        vec!["backup", &hostile_name, "--db", &db],
        vec!["db", "create", &hostile_name],
        vec!["init", &hostile_name],
        vec!["init", "--db", &hostile_name],
        vec!["dev", "--agents", HOSTILE, "--listen", HOSTILE],
        vec!["config", "check", "--config", HOSTILE],
        vec!["completions", HOSTILE],
        vec!["config", "show", "--db", &hostile_name],
        vec!["replay", &copy, "--into", &hostile_name],
        vec!["serve", "--db", &hostile_name, "--listen", HOSTILE],
        vec!["open", &below_hostile],
        vec!["health", "--url", HOSTILE],
        vec!["mcp", "--url", HOSTILE],
        vec!["demo", "--data", &hostile_name],
        vec!["sql", "SELECT 1 AS \"mark\u{202e}\u{9b}\"", "--db", &db],
        vec!["sql", HOSTILE, "--db", &db],
        vec!["agent", "list", "--agents", HOSTILE],
        vec!["agent", "files", HOSTILE, "--db", &db],
    ];
    let selects: Vec<String> =
        tables.iter().map(|table| format!("SELECT * FROM {table}")).collect();
    commands.extend(selects.iter().map(|sql| vec!["sql", sql, "--db", &copy]));
    for command in &commands {
        seen += &check(command);
    }
    let server = Server::start_on(Path::new(&copy));
    let url = server.url();
    for sql in &selects {
        let command = ["watch", sql, "--count", "1", "--url", &url];
        seen += &check(&command);
        commands.push(vec!["watch"]);
    }
    seen += &check(&["watch", HOSTILE, "--url", &url]);
    assert!(seen.matches("mark").count() > 100, "the text was present");

    let help = run(["--help"]).good();
    let list = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    for command in list.lines().filter_map(|line| line.split_whitespace().next()) {
        let is_tried = command == "help" || commands.iter().any(|words| words[0] == command);
        assert!(is_tried, "abide {command} is tried with hostile text");
    }
}

/// JSON in ASCII, which is YAML too.
fn ascii(json: &JsonValue) -> String {
    let text = json.to_string();
    let units = text.encode_utf16();
    let escaped = units.map(|unit| match u8::try_from(unit) {
        Ok(byte @ b' '..=b'~') => char::from(byte).to_string(),
        _ => format!("\\u{unit:04x}"),
    });
    escaped.collect()
}

/// The screen of an approval prompt.
#[test]
fn a_run_and_its_prompt_escape_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("agents");
    fs::create_dir_all(place.join("agents")).unwrap();
    let hostile: JsonValue = HOSTILE.into();
    fs::write(folder.path().join("out"), HOSTILE).unwrap();
    let out = folder.path().join("out").display().to_string();
    let config = json!({
        "models": {"providers": [{"id": "script", "kind": "script", "script": "answers.json",
            "models": ["m"]}]},
        "programs": [{"name": "show", "description": "Shows.", "command": ["cat", out],
            "effect": "at_most_once",
            "needs_approval": true, "parameters": {"type": "object", "properties": {"k": {}}}}],
    });
    let answers = json!({"answers": [
        {"text": hostile, "calls": [{"name": "show", "arguments": {"k": hostile}}]},
        {"text": hostile},
    ]});
    fs::write(place.join("abide.yaml"), ascii(&config)).unwrap();
    fs::write(place.join("answers.json"), ascii(&answers)).unwrap();
    let clerk = json!({"description": hostile, "tools": ["show"]});
    fs::write(place.join("agents/clerk.yaml"), ascii(&clerk)).unwrap();
    fs::write(place.join("agents/wrong.yaml"), ascii(&json!({HOSTILE: 1}))).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let place = path("agents");
    let db = path("a.db");

    for what in ["list", "check"] {
        assert!(check(&["agent", what, "--agents", &place]).contains("mark"));
    }
    let run_arguments = |id: &str| -> Vec<String> {
        ["--db", &db, "agent", "run", "clerk", HOSTILE, "--id", id, "--agents", &place]
            .map(str::to_owned)
            .into()
    };
    let question = Question { asked: "approve? [y/N]", answer: "y\n" };
    let shown = on_a_terminal(&run_arguments("r1"), Some(question));
    assert_harmless("a run on a terminal", &shown);
    assert!(shown.contains("approve? [y/N]"), "{shown:?}");
    assert!(shown.matches("mark").count() >= 4, "{shown:?}");
    for more in [&[][..], &["--json".to_owned()]] {
        for id in ["r1", "r2"] {
            let ended = run([run_arguments(id), more.to_vec()].concat());
            assert_harmless("a run", &(ended.stdout + &ended.stderr));
        }
    }
}
