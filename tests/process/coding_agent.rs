//! The agent `default` with the built-in tools: it reads, edits and tests a small project in a sandbox, with a model that
//! answers from a script.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use expect_test::expect;
use serde_json::Value as JsonValue;

use crate::program::ExitedProcess;
use crate::project::Project;

const CONFIG: &str = "
models:
  default: { provider: script, model: scripted }
  providers: [{ id: script, kind: script, script: answers.yaml, models: [scripted] }]
sandbox: { workspace: .. }
";

const FIXES: &str = r#"
answers:
  - calls: [{ name: grep, arguments: { pattern: "expr" } }]
  - calls: [{ name: read_file, arguments: { path: add.sh } }]
  - calls: [{ name: execute, arguments: { command: "sh test.sh" } }]
  - calls: [{ name: edit_file, arguments: { path: add.sh, old: "$1 - $2", new: "$1 + $2" } }]
  - calls: [{ name: execute, arguments: { command: "sh test.sh" } }]
  - calls: [{ name: write_file, arguments: { path: notes/done.md, content: "It adds.\n" } }]
  - text: It is fixed.
"#;

const RUN: [&str; 6] = ["agent", "run", "default", "Fix the sum.", "--id", "fix"];

/// A run whose calls are approved.
fn agent(project: &Project, name: &str) -> ExitedProcess {
    project.run_on_file(&["agent", "run", name, "Fix the sum.", "--id", "fix", "--yes"])
}

#[test]
fn the_default_agent_fixes_a_project_in_a_sandbox() {
    let project = Project::configured(CONFIG, FIXES);
    let done = agent(&project, "default").good();
    expect![[r#"
        → grep {"pattern":"expr"}
        ← add.sh:1:expr $1 - $2
        → read_file {"path":"add.sh"}
        ← 1\texpr $1 - $2
        → execute {"command":"sh test.sh"}
        ← exit code 1
        → edit_file {"new":"$1 + $2","old":"$1 - $2","path":"add.sh"}
        ← edited add.sh: 1 replacement(s), the first at line 1
        → execute {"command":"sh test.sh"}
        ← passed
        → write_file {"content":"It adds.\n","path":"notes/done.md"}
        ← created notes/done.md (9 bytes)
        It is fixed.
    "#]]
    .assert_eq(&done);
    assert_eq!(fs::read_to_string(project.path("add.sh")).unwrap(), "expr $1 + $2\n");
    assert_eq!(
        project.touched_files(),
        [
            "grep read add.sh",
            "read_file read add.sh",
            "edit_file modified add.sh",
            "write_file created notes/done.md",
        ]
    );
}

#[test]
fn readonly_has_the_tools_that_change_nothing_and_hitl_test_asks_at_once() {
    let project = Project::configured(CONFIG, FIXES);
    let listed = project.run(&["agent", "list", "--db", ".abide/none.db"]);
    assert_ne!(listed.code, Some(0));
    let asked = project.run_on_file(&["agent", "run", "hitl_test", "Fix it.", "--id", "asks"]);
    assert_eq!(asked.code, Some(5), "{asked:?}");
    assert!(asked.stderr.contains("awaiting_approval grep"), "{asked:?}");
    // The built-in `default` ran commands without an approval.
    let asked = project.run_on_file(&RUN);
    assert!(asked.stderr.contains("awaiting_approval execute"), "{asked:?}");
    let sql = "SELECT agent, definition ->> '$.tools' FROM agent_revisions ORDER BY agent";
    let rows = names(&project.rows(sql));
    expect![[r#"
        ["default","[\"*\"]"]
        ["hitl_test","[\"*\"]"]
        ["readonly","[\"glob\",\"grep\",\"ls\",\"read_file\"]"]"#]]
    .assert_eq(&rows);
    // A model that asks for a tool that the agent does not have.
    let writes = "answers: [{ calls: [{ name: write_file, arguments: { path: a, content: b } }] }, \
                  { text: I cannot. }]";
    let project = Project::configured(CONFIG, writes);
    let refused = agent(&project, "readonly").good();
    assert!(refused.contains("unknown tool write_file"), "{refused}");
    assert!(!project.path("a").exists());
}

fn names(rows: &JsonValue) -> String {
    let lines = rows.as_array().unwrap().iter().map(JsonValue::to_string);
    lines.collect::<Vec<_>>().join("\n")
}

/// Regression: a program of the server survived `kill -9`, and a second one was started.
#[test]
fn a_command_ends_with_the_killed_server_and_does_not_run_again() {
    let project = Project::configured(
        CONFIG,
        r#"
answers:
  - calls: [{ name: execute, arguments: { command: "echo x >> add.sh; echo y > new.txt; exec 3>alive; echo begin >&3; setsid sleep 1000 & sleep 1000" } }]
  - text: It is settled.
"#,
    );
    let pipe = project.path("alive");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut run = project.spawn_on_file(&[&RUN[..], &["--yes"]].concat());
    let mut reader = BufReader::new(fs::File::open(&pipe).unwrap());
    let mut text = String::new();
    reader.read_line(&mut text).unwrap();
    run.kill();
    // Returns when no process has the pipe open any more.
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "begin\n");
    let waits = agent(&project, "default");
    assert_eq!(waits.code, Some(5), "{waits:?}");
    assert!(waits.stderr.contains("unknown execute"), "{waits:?}");
    let changed = "it was interrupted after it changed add.sh (modified), alive (modified), \
                   new.txt (created)";
    assert!(waits.stderr.contains(changed), "{waits:?}");
    // The event said `approval`, so clients asked for one that could not succeed.
    let sql = "SELECT data ->> '$.reason' FROM run_events \
               WHERE data ->> '$.action_requests[0].status' = 'unknown'";
    assert_eq!(names(&project.rows(sql)), r#"["settlement"]"#);
    let settle = [
        "call",
        "settle_tool_call",
        "call_id=fix~1.1",
        "outcome=failed",
        "error=killed",
        "evidence={}",
    ];
    let settled = project.run_on_file(&settle);
    assert_eq!(settled.code, Some(0), "{settled:?}");
    let done = agent(&project, "default").good();
    assert!(done.ends_with("It is settled.\n"), "{done}");
    // The call is settled as failed, and an auditor finds what it has changed.
    let files = project.run(&["agent", "files", "fix"]).good();
    let lines: Vec<String> = files
        .lines()
        .map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        lines,
        ["modified add.sh execute", "modified alive execute", "created new.txt execute"],
        "{files}"
    );
    let missing = project.run(&["agent", "files", "nothing"]);
    assert!(missing.stderr.starts_with("error: there is no session nothing"), "{missing:?}");
}

/// `write_file` and a command replaced the database that the server had open, and it went on.
#[test]
fn a_database_in_the_workspace_is_not_a_file_of_the_agent() {
    let project = Project::configured(
        CONFIG,
        r#"
answers:
  - calls: [{ name: ls, arguments: {} }, { name: write_file, arguments: { path: abide.db, content: x } }]
  - calls: [{ name: execute, arguments: { command: "rm -f abide.db*; echo x > abide.db-wal; exit 3" } }]
  - calls: [{ name: read_file, arguments: { path: missing.txt } }]
  - text: It is done.
"#,
    );
    let args = ["--db", "abide.db", "agent", "run", "default", "Go.", "--id", "r1", "--yes"];
    let ran = project.run(&args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("the database is in the workspace of the agents"), "{ran:?}");
    assert!(ran.stdout.contains("← add.sh …"), "{ran:?}");
    assert!(ran.stdout.contains("abide.db belongs to the database"), "{ran:?}");
    assert!(ran.stdout.contains("← exit code 3: stderr: ⏎ rm: "), "{ran:?}");
    assert!(project.run(&["verify", "abide.db"]).good().contains("events"));
    let files = project.run(&["--db", "abide.db", "agent", "files", "r1", "--json"]).good();
    let refused = files.lines().filter(|line| line.contains("\"refused\"")).count();
    assert_eq!(refused, 2, "{files}");
}

/// `serve --agents` used another file than the conversation.
#[test]
fn a_server_and_a_conversation_use_the_same_file() {
    let project = Project::configured(CONFIG, FIXES);
    let server =
        project.spawn(&["serve", "--json", "--listen", "127.0.0.1:0", "--agents", ".abide"]);
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    assert_eq!(greeting["db"], ".abide/agents.db", "{greeting}");
    // Without --db, the conversation uses the server. It ends with its input, which is empty.
    project.run(&["agent", "chat", "default"]).good();
    let url = format!("http://{}", greeting["listening"].as_str().unwrap());
    let locked = project.run(&["agent", "chat", "default", "--db", ".abide/agents.db"]);
    assert!(locked.stderr.contains(&format!("serves it: connect to {url}")), "{locked:?}");
    server.terminate();
    assert_eq!(server.ended().code, Some(0));
    assert!(!project.path("abide.db").exists());
}

#[test]
fn a_definition_that_needs_another_sandbox_is_refused() {
    let project = Project::configured(CONFIG, FIXES);
    let boxed = "tools: [ls]\nsandbox: docker\n";
    fs::write(project.path(".abide/agents/boxed.yaml"), boxed).unwrap();
    let check = project.run(&["agent", "check"]);
    assert_eq!(check.code, Some(1), "{check:?}");
    expect![[r#"
        .abide/agents/boxed.yaml:2:10: sandbox docker is not configured; this runtime has the sandbox local   [sandbox_unavailable]
          hint: configure it in abide.yaml, or remove sandbox from the definition
    "#]].assert_eq(&check.stdout);
    let server = project.spawn_on_file(&[
        "serve",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--agents",
        ".abide",
    ]);
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    assert_eq!(greeting["agents"]["sandbox"], "local", "{greeting}");
    let address = greeting["listening"].as_str().unwrap().to_owned();
    let output = get(&address, "/capabilities");
    assert_eq!(output["sandbox"], "local", "{output}");
    assert_eq!(output["programs"]["tools"], false, "{output}");
    let backends = output["sandbox_backends"].as_array().unwrap();
    let names: Vec<&JsonValue> = backends.iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["local", "bubblewrap", "docker"]);
    assert_eq!(backends[0]["available"], true, "{output}");
    for backend in backends {
        let why = if backend["available"] == true { "note" } else { "reason" };
        assert_ne!(backend[why].as_str(), Some(""), "{output}");
    }
    server.terminate();
    assert_eq!(server.ended().code, Some(0));
    let config = CONFIG.replace("workspace: ..", "workspace: .., backend: docker");
    fs::write(project.path(".abide/abide.yaml"), config).unwrap();
    let refused = project.run(&["agent", "check"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stdout.contains("the backend docker needs an image"), "{refused:?}");
}

/// A GET request; the body of the answer as JSON.
fn get(address: &str, path: &str) -> JsonValue {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}
