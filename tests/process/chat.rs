//! `abide agent init` and `abide agent chat`: an empty folder becomes a project whose agent reads, edits and tests files
//! in a sandbox, asks before it writes, and survives SIGKILL of its process. The model answers from a script.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::{ExitedProcess, PATIENCE, Process, abide};
use crate::server::Server;

/// A folder after `abide agent init`, with a project that has a defect.
struct Project {
    folder: TempDir,
}

const FIXES: &str = r#"
answers:
  - { text: Let me look., calls: [{ name: read_file, arguments: { path: add.sh } }] }
  - calls: [{ name: edit_file, arguments: { path: add.sh, old: "$1 - $2", new: "$1 + $2" } }]
  - calls: [{ name: execute, arguments: { command: "sh test.sh" } }]
  - text: It is **fixed** now.
  - text: You are welcome.
"#;

impl Project {
    fn new(answers: &str) -> Project {
        let project = Project { folder: tempfile::tempdir().unwrap() };
        project.run(&["agent", "init", "--provider", "script"]).good();
        fs::write(project.path(".abide/answers.yaml"), answers).unwrap();
        fs::write(project.path("add.sh"), "expr $1 - $2\n").unwrap();
        fs::write(project.path("test.sh"), "test $(sh add.sh 2 2) = 4 && echo passed\n").unwrap();
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, args: &[&str]) -> ExitedProcess {
        Process::spawn(abide().current_dir(self.folder.path()).args(args)).ended()
    }

    /// A conversation with these lines on a pipe.
    fn piped(&self, lines: &str, args: &[&str]) -> ExitedProcess {
        let file = self.path("typed");
        fs::write(&file, lines).unwrap();
        let mut command = abide();
        command.current_dir(self.folder.path()).args(["agent", "chat", "default"]).args(args);
        Process::spawn(command.stdin(File::open(file).unwrap())).ended()
    }

    fn on_a_terminal(&self, args: &[&str]) -> Terminal {
        let mut words = vec!["agent", "chat", "default"];
        words.extend(args);
        Terminal::spawn(self, &words)
    }

    fn rows(&self, sql: &str) -> JsonValue {
        self.run(&["sql", "--db", ".abide/agents.db", "--json", sql]).json()["rows"].take()
    }

    fn session(&self) -> String {
        self.rows("SELECT id FROM sessions")[0][0].as_str().unwrap().to_owned()
    }

    /// The files that the calls touched: the query of docs/sandboxes.md.
    fn touched(&self) -> JsonValue {
        self.rows(
            "SELECT file.value ->> '$.action', file.value ->> '$.path' FROM tool_calls, \
             json_each(tool_calls.result, '$.content.files') AS file ORDER BY tool_calls.created_at",
        )
    }
}

/// A process on a pseudo-terminal.
struct Terminal {
    child: Child,
    master: File,
    output: Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    fn spawn(project: &Project, args: &[&str]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
        let mut command = abide();
        command.current_dir(project.folder.path()).args(args);
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        drop(slave);
        let master = File::from(master);
        let mut reader = master.try_clone().unwrap();
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A terminal whose other end is closed reads as an error.
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { child, master, output, shown: String::new() }
    }

    /// Waits until a text is shown; returns everything up to it.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        while !self.shown.contains(text) {
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(why) => panic!("{why}: no {text:?} in {:?}", self.shown),
            }
        }
        let (before, after) = self.shown.split_once(text).unwrap();
        let (before, after) = (format!("{before}{text}"), after.to_owned());
        self.shown = after;
        before
    }

    fn enter(&mut self, line: &str) {
        self.master.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn press_ctrl_c(&self) {
        let id = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(id, Signal::INT).unwrap();
    }

    /// SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn exit_code(mut self) -> Option<i32> {
        // Its output is read to the end, so that it can end.
        while let Ok(bytes) = self.output.recv_timeout(PATIENCE) {
            self.shown += &String::from_utf8_lossy(&bytes);
        }
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn init_writes_a_folder_that_works_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = abide();
        command.current_dir(folder.path()).args(args);
        for key in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"] {
            command.env_remove(key);
        }
        Process::spawn(&mut command).ended()
    };
    expect_test::expect![[r#"
        created  .abide/abide.yaml
        created  .abide/agents/default.yaml
        created  .abide/.gitignore

        next:
          export OPENAI_API_KEY=…   # or another provider in .abide/abide.yaml
          abide agent check
          abide agent chat default
    "#]]
    .assert_eq(&run(&["agent", "init"]).good());
    let check = run(&["agent", "check"]).good();
    assert!(check.ends_with("3 agents, no errors\n"), "{check}");
    let config = folder.path().join(".abide/abide.yaml");
    let before = fs::read_to_string(&config).unwrap();
    let again = run(&["agent", "init", "--provider", "script"]).good();
    assert!(again.contains("exists   .abide/abide.yaml\n"), "{again}");
    assert_eq!(fs::read_to_string(&config).unwrap(), before);
    for provider in ["anthropic", "openai", "gemini", "ollama", "script"] {
        let other = ["--agents", provider];
        run(&[&["agent", "init", "--provider", provider], &other[..]].concat()).good();
        run(&[&["agent", "check"], &other[..]].concat()).good();
    }
    // A file that a link points to is not written either.
    let target = folder.path().join("target");
    fs::create_dir(folder.path().join("linked")).unwrap();
    std::os::unix::fs::symlink(&target, folder.path().join("linked/abide.yaml")).unwrap();
    run(&["agent", "init", "--agents", "linked"]).good();
    assert!(!target.exists());
}

/// Without a terminal a line is a message, and a call that needs an approval ends the conversation: a message is not a
/// decision.
#[test]
fn a_piped_conversation_waits_for_decisions_and_continues() {
    let project = Project::new(FIXES);
    let waits = project.piped("Fix the sum.\ny\n", &[]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    assert!(waits.stdout.starts_with("Let me look.\n→ read_file"), "{waits:?}");
    assert!(waits.stderr.contains("waits: awaiting_approval edit_file"), "{waits:?}");
    let session = project.session();
    let again = format!("abide agent chat --session {session} default\n");
    assert!(waits.stderr.contains(&format!("  then: {again}")), "{waits:?}");
    assert_eq!(fs::read_to_string(project.path("add.sh")).unwrap(), "expr $1 - $2\n");
    let done = project.piped("Thanks.\n", &["--session", &session, "--yes"]).good();
    assert!(done.contains("› Fix the sum.\nLet me look.\n→ read_file"), "{done}");
    assert!(done.ends_with("← passed\nIt is **fixed** now.\nYou are welcome.\n"), "{done}");
    let expected = json!([["read", "add.sh"], ["modified", "add.sh"]]);
    assert_eq!(project.touched(), expected);
    // `agent run --session` is the next turn, and the same id is the same run.
    fs::write(project.path(".abide/answers.yaml"), format!("{FIXES}  - text: Again.\n")).unwrap();
    let args = ["--db", ".abide/agents.db", "agent", "run", "default"];
    let args = [&args[..], &["And?", "--session", &session, "--id", "r9"]].concat();
    assert_eq!(project.run(&args).good(), "Again.\n");
    assert_eq!(project.run(&args).good(), "Again.\n");
    let count = project.rows("SELECT count(*), count(DISTINCT session_id) FROM runs");
    assert_eq!(count, json!([[3, 1]]));
    let mut other = args.clone();
    other[5] = "Something else?";
    let other = project.run(&other);
    assert!(other.stderr.contains("run r9 of agent default started with: And?"), "{other:?}");
}

#[test]
fn a_conversation_that_cannot_begin_says_why() {
    let project = Project::new(FIXES);
    let stderr = |args: &[&str]| {
        let refused = project.run(args);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.stderr
    };
    let unknown = stderr(&["agent", "chat", "noname"]);
    assert!(unknown.starts_with("error: there is no agent noname   [not_found]\n"), "{unknown}");
    let unknown = stderr(&["agent", "chat", "default", "--session", "s9"]);
    assert!(unknown.starts_with("error: there is no session s9   [not_found]\n"), "{unknown}");
    let folder = stderr(&["agent", "chat", "default", "--agents", "nofolder"]);
    assert!(folder.contains("hint: abide agent init  creates it"), "{folder}");
    assert_eq!(project.rows("SELECT count(*) FROM sessions"), json!([[0]]));
}

/// SIGKILL in the middle of an answer, at a question and in a command: each time the same conversation continues, asks
/// what it must ask, and shows the answer once.
#[test]
fn a_conversation_survives_kills_at_each_step() {
    let project = Project::new(&format!("token_ms: 40\n{}", FIXES.trim_start()));
    fs::write(
        project.path("test.sh"),
        "[ -e go ] || { echo begun > begun; sleep 1000; }; sh add.sh 2 2\n",
    )
    .unwrap();
    // Opening one end of a named pipe waits for the other end.
    assert!(Command::new("mkfifo").arg(project.path("begun")).status().unwrap().success());
    let mut terminal = project.on_a_terminal(&[]);
    terminal.until("› ");
    terminal.enter("Fix the sum.");
    terminal.until("Let ");
    terminal.kill();
    let session = project.session();
    let continues = || project.on_a_terminal(&["--session", &session]);

    let mut terminal = continues();
    let shown = terminal.until("approve? [y/N] ");
    assert_eq!(shown.matches("Let ").count(), 1, "the answer is shown once: {shown}");
    assert!(shown.contains("› Fix the sum.") && shown.contains("edit_file"), "{shown}");
    terminal.kill();
    assert_eq!(fs::read_to_string(project.path("add.sh")).unwrap(), "expr $1 - $2\n");

    let mut terminal = continues();
    terminal.until("approve? [y/N] ");
    terminal.enter("y");
    terminal.until("execute");
    terminal.until("approve? [y/N] ");
    assert_eq!(fs::read_to_string(project.path("add.sh")).unwrap(), "expr $1 + $2\n");
    terminal.enter("y");
    assert_eq!(fs::read_to_string(project.path("begun")).unwrap(), "begun\n");
    terminal.kill();

    // The command may have taken effect, so it does not run again.
    fs::write(project.path("go"), "").unwrap();
    let mut terminal = continues();
    terminal.until("Did it take effect? [y/n, Enter leaves it open] ");
    terminal.enter("n");
    let answer = terminal.until("now.");
    assert!(answer.contains("It is \u{1b}[0;1mfixed\u{1b}[0m now."), "{answer:?}");
    terminal.until("› ");
    terminal.enter("/quit");
    terminal.until(&format!("continue:  abide agent chat --session {session} default"));
    assert_eq!(terminal.exit_code(), Some(0));
    assert_eq!(project.touched(), json!([["read", "add.sh"], ["modified", "add.sh"]]));
    let calls = project.rows("SELECT tool_name, status FROM tool_calls ORDER BY created_at");
    let expected =
        json!([["read_file", "succeeded"], ["edit_file", "succeeded"], ["execute", "failed"]]);
    assert_eq!(calls, expected);
    let restarts = "SELECT count(*) > 0 FROM run_events WHERE kind = 'restart'";
    assert_eq!(project.rows(restarts), json!([[1]]));
    assert!(project.run(&["verify", ".abide/agents.db"]).good().contains("events"));
}

#[test]
fn ctrl_c_stops_the_answer_and_twice_leaves() {
    let slow = "token_ms: 200\nanswers:\n  - { text: \"one two three four five six seven eight \
                nine ten eleven twelve thirteen fourteen fifteen sixteen\" }\n  \
                - { calls: [{ name: write_file, arguments: { path: a, content: b } }] }\n  \
                - { text: Good. }\n";
    let project = Project::new(slow);
    let mut terminal = project.on_a_terminal(&[]);
    terminal.until("› ");
    terminal.enter("Count.");
    terminal.until("two");
    terminal.press_ctrl_c();
    terminal.until("stopping the answer; Ctrl-C again leaves");
    terminal.until("stopped");
    // The conversation continues. At a question, Ctrl-C stops the run as well.
    terminal.until("› ");
    terminal.enter("Write.");
    terminal.until("approve? [y/N] ");
    terminal.press_ctrl_c();
    terminal.until("stopped");
    terminal.until("› ");
    terminal.press_ctrl_c();
    terminal.until("Ctrl-C again leaves");
    terminal.press_ctrl_c();
    terminal.until("continue:");
    assert_eq!(terminal.exit_code(), Some(0));
    let runs = project.rows("SELECT status FROM runs ORDER BY created_at");
    assert_eq!(runs, json!([["aborted"], ["aborted"]]));
    let partial = project.rows("SELECT content FROM agent_state WHERE kind = 'partial'");
    assert!(partial[0][0].as_str().unwrap().starts_with("one two"), "{partial}");
    assert!(!project.path("a").exists());
}

/// The same at a server: SIGKILL of the server in the middle of an answer and at a question, while the conversation
/// stays open.
#[test]
fn a_conversation_outlives_its_server() {
    let project = Project::new(&format!("token_ms: 100\n{}", FIXES.trim_start()));
    let agents = project.path(".abide").display().to_string();
    let mut server = Server::start();
    server.restart_with(&["--agents", &agents]);
    let mut terminal = project.on_a_terminal(&["--url", &server.url()]);
    terminal.until("› ");
    terminal.enter("Fix the sum.");
    terminal.until("Let ");
    server.kill();
    server.start_again();
    terminal.until("edit_file");
    terminal.until("approve? [y/N] ");
    server.kill();
    server.start_again();
    terminal.enter("y");
    terminal.until("approve? [y/N] ");
    terminal.enter("y");
    terminal.until("passed");
    terminal.until("now.");
    terminal.until("› ");
    terminal.enter("/quit");
    assert_eq!(terminal.exit_code(), Some(0));
    assert_eq!(fs::read_to_string(project.path("add.sh")).unwrap(), "expr $1 + $2\n");
}
