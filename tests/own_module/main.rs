//! `examples/own-module`: a package outside of the workspace, with a table and a reducer of its own, as real processes.
//!
//! The tests build a copy of it that turns on `serde_json/preserve_order`, as any dependency of a user's program can. The
//! log must not depend on that: the same calls are logged with the same texts as by the standard binary, whose file this
//! program replays.
//!
//! A binary of its own, so that the build of the example does not compete with tests of running processes.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

#[path = "../process/program.rs"]
#[expect(dead_code, reason = "the tests of processes use all of it")]
mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use program::{ExitedProcess, Process};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value as JsonValue;
use tempfile::TempDir;

/// Calls, with the keys of all objects in an order that is not theirs in the log. Some repeat an earlier call in another
/// order.
const CALLS: [(&str, &str); 8] = [
    (
        "create_session",
        r#"{"title": "A parcel", "scope": {"tenant": "acme", "area": "eu"}, "id": "s1",
            "metadata": {"z": {"b": 1, "a": [{"y": 1, "x": 2}]}, "m": null, "a": 1.50},
            "agent": "support"}"#,
    ),
    (
        "register_tool",
        r#"{"name": "refund", "retry": {"max_attempts": 3, "backoff_ms": 10},
            "effect": "idempotent",
            "input_schema": {"type": "object", "required": ["order"],
                "properties": {"order": {"type": "integer", "minimum": 1},
                    "note": {"type": "string"}}}}"#,
    ),
    (
        "register_tool",
        r#"{"retry": {"backoff_ms": 10, "max_attempts": 3}, "name": "refund",
            "effect": "idempotent",
            "input_schema": {"type": "object", "required": ["order"],
                "properties": {"note": {"type": "string"},
                    "order": {"minimum": 1, "type": "integer"}}}}"#,
    ),
    (
        "append_message",
        r#"{"session_id": "s1", "role": "user", "content": "Refund it",
            "data": {"z": 1, "k": {"d": 1, "c": 2}}}"#,
    ),
    (
        "request_tool_call",
        r#"{"tool_name": "refund", "session_id": "s1", "call_id": "c1",
            "arguments": {"order": 8812, "note": "x"}}"#,
    ),
    (
        "request_tool_call",
        r#"{"call_id": "c1", "arguments": {"note": "x", "order": 8812}, "session_id": "s1",
            "tool_name": "refund"}"#,
    ),
    ("create_session", r#"{"id": "s2", "agent": "support"}"#),
    (
        "complete_session",
        r#"{"session_id": "s2", "result": {"status": "done", "by": {"who": 1, "at": 2}}}"#,
    ),
];

const NOTE: &str = r#"{"session_id": "s1", "body": "Call back on Monday"}"#;

/// The part that the two binaries must write alike: everything except times, generated ids and salts.
const WRITTEN: [&str; 5] = [
    "SELECT seq, reducer, arguments FROM events ORDER BY seq",
    "SELECT metadata, scope, result FROM sessions",
    "SELECT version, input_schema, retry FROM tools ORDER BY version",
    "SELECT data FROM agent_state",
    "SELECT arguments FROM tool_calls",
];

/// The example as a user builds it.
fn own_module() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(build)
}

/// Builds a copy of the example, with one more dependency. The profile and the folder are the workspace's, so that only what
/// depends on `serde_json` is compiled again.
fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let artifacts = program::program().ancestors().nth(2).unwrap();
    let package = artifacts.join("own-module");
    for folder in ["src", ".cargo"] {
        fs::create_dir_all(package.join(folder)).unwrap();
    }
    let example = root.join("examples/own-module");
    for file in ["src/main.rs", "src/notes.rs", ".cargo/config.toml"] {
        fs::copy(example.join(file), package.join(file)).unwrap();
    }
    // JSON objects keep the order in which their keys were written.
    let dependency =
        "[dependencies]\nserde_json = { version = \"1\", features = [\"preserve_order\"] }\n";
    let manifest = fs::read_to_string(example.join("Cargo.toml")).unwrap();
    let manifest = manifest.replace("[dependencies]\n", dependency);
    let manifest = manifest.replace("../../cli", root.join("cli").to_str().unwrap());
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // The versions of the workspace, which are known to build and are downloaded.
    fs::copy(root.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let mut build = program::cargo();
    build.args(["build", "--quiet", "--config"]).arg(root.join("Cargo.toml"));
    build.arg("--target-dir").arg(artifacts).current_dir(package);
    assert!(build.status().unwrap().success(), "the example does not build");
    artifacts.join("debug/own-module")
}

/// One of the two binaries, and a folder for its files.
struct Program {
    path: &'static Path,
    folder: TempDir,
}

impl Program {
    fn new(path: &'static Path) -> Program {
        Program { path, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn spawn(&self, args: &[&str]) -> Process {
        let mut command = Command::new(self.path);
        for name in ["ABIDE_URL", "ABIDE_TOKEN", "ABIDE_LOG", "ABIDE_LOG_FORMAT"] {
            command.env_remove(name);
        }
        Process::spawn(command.args(args).current_dir(self.folder.path()).stdin(Stdio::null()))
    }

    fn run(&self, args: &[&str]) -> ExitedProcess {
        self.spawn(args).ended()
    }

    fn call(&self, url: &str, reducer: &str, arguments: &str) -> JsonValue {
        fs::write(self.file("arguments.json"), arguments).unwrap();
        self.run(&["call", "--json", "--url", url, reducer, "arguments.json"]).json()
    }

    /// Serves a file, makes the calls, and is killed.
    fn serve_and_kill(&self, calls: &[(&str, &str)]) {
        let mut server = self.spawn(&["serve", "--listen", "127.0.0.1:0", "--json"]);
        let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
        let url = format!("http://{}", greeting["listening"].as_str().unwrap());
        let duplicates: Vec<bool> = calls
            .iter()
            .map(|(reducer, arguments)| {
                self.call(&url, reducer, arguments)["duplicate"].as_bool().unwrap()
            })
            .collect();
        let expected = [false, false, true, false, false, true, false, false, false];
        assert_eq!(duplicates, expected[..calls.len()]);
        server.kill();
    }

    /// The content of its file, read without Abide, once the journal of the killed server is applied.
    fn written(&self) -> String {
        self.run(&["verify", "abide.db"]).good();
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let file = Connection::open_with_flags(self.file("abide.db"), flags).unwrap();
        WRITTEN
            .iter()
            .map(|sql| {
                let mut query = file.prepare(sql).unwrap();
                let columns = query.column_count();
                let row = |row: &rusqlite::Row<'_>| {
                    let cells = (0..columns).map(|at| row.get::<_, rusqlite::types::Value>(at));
                    Ok(format!("{:?}\n", cells.collect::<Result<Vec<_>, _>>()?))
                };
                query.query_map([], row).unwrap().collect::<Result<String, _>>().unwrap()
            })
            .collect()
    }
}

#[test]
fn a_program_with_its_own_module_has_the_complete_command_line() {
    let own = Program::new(own_module());
    let note = [("add_note", NOTE)];
    own.serve_and_kill(&[&CALLS[..], &note[..]].concat());

    let output = own.run(&["verify", "abide.db", "--replay", "--json"]).json();
    assert_eq!((&output["replayed"], &output["events"]), (&true.into(), &7.into()));
    own.run(&["replay", "abide.db", "--into", "again.db"]).good();
    let notes =
        own.run(&["sql", "--json", "--db", "again.db", "SELECT id, body FROM notes"]).json();
    assert_eq!(notes["rows"].to_string(), r#"[[1,"Call back on Monday"]]"#);
    let added =
        own.run(&["call", "--json", "--db", "again.db", "add_note", "session_id=s1", "body=b"]);
    assert_eq!(added.json()["result"]["id"], 2);
    let unknown = own.run(&["call", "--db", "again.db", "add_note", "session_id=s3", "body=b"]);
    assert!(unknown.stderr.contains("[conflict]"), "{unknown:?}");
}

#[test]
fn the_order_of_keys_in_the_program_does_not_reach_its_log() {
    let own = Program::new(own_module());
    let standard = Program::new(program::program());
    own.serve_and_kill(&CALLS);
    standard.serve_and_kill(&CALLS);
    assert_eq!(own.written(), standard.written());

    // A file of the standard binary gets the tables of the module when it is opened.
    let file = standard.file("abide.db");
    let file = file.to_str().unwrap();
    own.run(&["call", "--db", file, "add_note", "session_id=s1", "body=b"]).good();
    let output = own.run(&["verify", file, "--replay", "--json"]).json();
    assert_eq!((&output["replayed"], &output["events"]), (&true.into(), &7.into()));
}

#[test]
fn the_example_is_built_like_the_packages_of_abide() {
    let (_, profile) =
        include_str!("../../examples/own-module/Cargo.toml").split_once("[profile.dist]").unwrap();
    assert!(include_str!("../../Cargo.toml").contains(profile));
    let (_, options) =
        include_str!("../../examples/own-module/.cargo/config.toml").split_once("[env]").unwrap();
    assert!(include_str!("../../.cargo/config.toml").contains(options.trim()));
}

#[test]
fn the_pages_show_the_example() {
    let page = include_str!("../../docs/own-modules.md");
    assert!(page.contains(include_str!("../../examples/own-module/src/main.rs")));
    assert!(page.contains(include_str!("../../examples/own-module/src/notes.rs")));
    // A user has no folder of the repository.
    let manifest = include_str!("../../examples/own-module/Cargo.toml");
    assert!(page.contains(&manifest.replace(r#"path = "../../cli""#, r#"git = "…""#)));
    assert!(page.contains(include_str!("../../examples/own-module/.cargo/config.toml")));
    let (_, entry) =
        include_str!("../../examples/own-module/src/main.rs").split_once("\nfn main").unwrap();
    assert!(include_str!("../../README.md").contains(entry));
}
