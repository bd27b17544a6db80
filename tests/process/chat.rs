//! `abide agent init` and `abide agent chat`: an empty folder becomes a project whose agent reads, edits and tests files
//! in a sandbox, asks before it writes, and survives SIGKILL of its process. The model answers from a script.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value as JsonValue, json};

use crate::program::{ExitedProcess, PATIENCE, Process, abide};
use crate::project::Project;
use crate::server::Server;

const FIXES: &str = r#"
answers:
  - { text: Let me look., calls: [{ name: read_file, arguments: { path: add.sh } }] }
  - calls: [{ name: edit_file, arguments: { path: add.sh, old: "$1 - $2", new: "$1 + $2" } }]
  - calls: [{ name: execute, arguments: { command: "sh test.sh" } }]
  - text: It is **fixed** now.
  - text: You are welcome.
"#;

/// A conversation with these lines on a pipe.
fn piped(project: &Project, lines: &str, args: &[&str]) -> ExitedProcess {
    piped_to(project, "default", lines, args)
}

/// A conversation with another agent, with these lines on a pipe.
fn piped_to(project: &Project, agent: &str, lines: &str, args: &[&str]) -> ExitedProcess {
    let file = project.path("typed");
    fs::write(&file, lines).unwrap();
    let mut command = abide();
    command.current_dir(project.folder()).args(["agent", "chat", agent]).args(args);
    Process::spawn(command.stdin(File::open(file).unwrap())).ended()
}

fn on_a_terminal(project: &Project, args: &[&str]) -> Terminal {
    let mut words = vec!["agent", "chat", "default"];
    words.extend(args);
    Terminal::spawn(project, &words)
}

fn session(project: &Project) -> String {
    project.rows("SELECT id FROM sessions")[0][0].as_str().unwrap().to_owned()
}

/// The files that the calls of [`FIXES`] touch.
const TOUCHED: [&str; 2] = ["read_file read add.sh", "edit_file modified add.sh"];

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
        command.current_dir(project.folder()).args(args);
        command.env("VISUAL", "echo no JSON >").env("EDITOR", "false");
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
        let before = format!("{before}{text}");
        let after = after.to_owned();
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

    /// The end of the input, at the beginning of a line.
    fn press_ctrl_d(&mut self) {
        self.master.write_all(b"\x04").unwrap();
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
        created  .abide/agents/default.yaml
        created  .abide/.gitignore
        created  .abide/answers.yaml
        created  .abide/abide.yaml

        next:
          abide agent chat default   # it asks before it writes a note
          abide dev                  # a server that follows changes of the files

        It answers from a script. For a real model, see the section models of .abide/abide.yaml.
    "#]]
    .assert_eq(&run(&["agent", "init"]).good());
    let check = run(&["agent", "check"]).good();
    assert!(check.ends_with("1 agent and 2 built in, no errors\n"), "{check}");
    let config = folder.path().join(".abide/abide.yaml");
    let before = fs::read_to_string(&config).unwrap();
    let again = run(&["agent", "init"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    let says =
        "error: .abide/abide.yaml exists already; nothing was written   [conflict]\n  hint: ";
    assert!(again.stderr.starts_with(says), "{again:?}");
    // The provider of an existing folder is not changed, which was not said.
    let other = run(&["agent", "init", "--provider", "openai"]);
    assert!(other.stderr.starts_with(says), "{other:?}");
    assert!(other.stderr.contains("default: { provider: openai, model: gpt-4.1 }"), "{other:?}");
    assert_eq!(fs::read_to_string(&config).unwrap(), before);
    // The other files are kept, too.
    let agent = folder.path().join(".abide/agents/default.yaml");
    fs::write(&agent, "description: mine\n").unwrap();
    fs::remove_file(&config).unwrap();
    let restored = run(&["init"]).good();
    assert!(restored.contains("exists   .abide/agents/default.yaml\n"), "{restored}");
    assert_eq!(fs::read_to_string(&agent).unwrap(), "description: mine\n");
    for provider in ["anthropic", "openai", "gemini", "ollama", "script"] {
        let other = ["--agents", provider];
        run(&[&["agent", "init", "--provider", provider], &other[..]].concat()).good();
        run(&[&["agent", "check"], &other[..]].concat()).good();
    }
    // A file that a link points to is not written either.
    let target = folder.path().join("target");
    fs::create_dir(folder.path().join("linked")).unwrap();
    std::os::unix::fs::symlink(&target, folder.path().join("linked/abide.yaml")).unwrap();
    assert_eq!(run(&["agent", "init", "--agents", "linked"]).code, Some(1));
    assert!(!target.exists());
}

/// Without a terminal a line is a message, and a call that needs an approval ends the conversation: a message is not a
/// decision.
#[test]
fn a_piped_conversation_waits_for_decisions_and_continues() {
    let project = Project::init(FIXES);
    let waits = piped(&project, "Fix the sum.\ny\n", &[]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    assert!(waits.stdout.starts_with("Let me look.\n→ read_file"), "{waits:?}");
    assert!(waits.stderr.contains("waits: awaiting_approval edit_file"), "{waits:?}");
    let session = session(&project);
    let again = format!("abide agent chat --session {session} default\n");
    assert!(waits.stderr.contains(&format!("  then: {again}")), "{waits:?}");
    assert_eq!(fs::read_to_string(project.path("add.sh")).unwrap(), "expr $1 - $2\n");
    let done = piped(&project, "Thanks.\n", &["--session", &session, "--yes"]).good();
    assert!(done.contains("› Fix the sum.\nLet me look.\n→ read_file"), "{done}");
    assert!(done.ends_with("← passed\nIt is **fixed** now.\nYou are welcome.\n"), "{done}");
    assert_eq!(project.touched_files(), TOUCHED);
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
    let project = Project::init(FIXES);
    let stderr = |args: &[&str]| {
        let refused = project.run(args);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.stderr
    };
    let unknown = stderr(&["agent", "chat", "noname"]);
    assert!(unknown.starts_with("error: there is no agent noname   [not_found]\n"), "{unknown}");
    let misspelled = stderr(&["agent", "chat", "defalt"]);
    assert!(misspelled.contains("hint: did you mean default?"), "{misspelled}");
    assert!(!project.path(".abide/agents.db").exists(), "nothing was created for them");
    project.run(&["db", "create", ".abide/agents.db"]).good();
    let unknown = stderr(&["agent", "chat", "default", "--session", "s9"]);
    assert!(unknown.starts_with("error: there is no session s9   [not_found]\n"), "{unknown}");
    let folder = stderr(&["agent", "chat", "default", "--agents", "nofolder"]);
    assert!(folder.contains("hint: `abide agent init --agents nofolder` creates it"), "{folder}");
    assert_eq!(project.rows("SELECT count(*) FROM sessions"), json!([[0]]));
}

/// The folder of `init` has a sandbox, which `agent test` refused.
#[test]
fn a_run_of_a_new_folder_is_recorded_and_tested() {
    let project = Project::init(FIXES);
    project.run_on_file(&["agent", "run", "default", "Fix it.", "--id", "r1", "--yes"]).good();
    fs::create_dir(project.path("tests")).unwrap();
    let recorded = project.run_on_file(&["agent", "record", "r1"]).good();
    fs::write(project.path("tests/fix.jsonl"), recorded).unwrap();
    fs::write(project.path("add.sh"), "kept").unwrap();
    let tested = project.run(&["agent", "test", "tests"]).good();
    assert_eq!(tested, "ok        fix\n1 recording: 1 same, 0 changed, 0 failed\n");
    assert_eq!(fs::read_to_string(project.path("add.sh")).unwrap(), "kept");
    // Without --db it used a server, unlike the conversation.
    let more = project.run(&["agent", "run", "default", "More.", "--session", "r1", "--yes"]);
    assert_eq!(more.code, Some(0), "{more:?}");
}

/// A decision of another client ends the question, in a conversation and in a run; a late answer is ignored, and only
/// `y`, `n`, their words and an empty line are answers.
#[test]
fn a_question_ends_when_another_client_decides() {
    let project = Project::init(FIXES);
    let agents = project.path(".abide").display().to_string();
    let mut server = Server::start();
    server.restart_with(&["--agents", &agents]);
    let approve = || {
        let sql = "SELECT call_id FROM tool_calls WHERE status = 'awaiting_approval'";
        let id = server.run(&["sql", "--json", sql]).json()["rows"][0][0].take();
        let id = format!("call_id={}", id.as_str().unwrap());
        server.run(&["call", "decide_approval", &id, "decision=approve"]).good();
    };
    let url = server.url();
    let mut terminal = on_a_terminal(&project, &["--url", &url]);
    let first = terminal.until("› ");
    assert!(first.contains("a conversation with default, session chat_"), "{first}");
    terminal.enter("/nothing");
    terminal.until("there is no command /nothing: /help lists them");
    terminal.enter("Fix the sum.");
    terminal.until("approve? [y/N] ");
    terminal.enter("/help");
    terminal.until("answer y or n");
    terminal.until("approve? [y/N] ");
    approve();
    terminal.until("the call was already approved by ");
    terminal.until("approve? [y/N] ");
    approve();
    terminal.until("the call was already approved by ");
    terminal.until("now.");
    terminal.until("› ");
    terminal.enter("y");
    terminal.until("ignored: the call was already approved by ");
    terminal.enter("/quit");
    terminal.until(&format!("continue:  abide agent chat --url {url} --session chat_"));
    assert_eq!(terminal.exit_code(), Some(0));
    let runs = server.run(&["sql", "--json", "SELECT count(*) FROM runs"]).json();
    assert_eq!(runs["rows"], json!([[1]]), "the late answer is no message");

    fs::write(project.path("add.sh"), "expr $1 - $2\n").unwrap();
    let run = ["agent", "run", "default", "Fix it.", "--url", &url];
    let mut terminal = Terminal::spawn(&project, &run);
    terminal.until("approve? [y/N] ");
    approve();
    terminal.until("the call was already approved by ");
    terminal.until("approve? [y/N] ");
    terminal.enter("yes");
    terminal.until("now.");
    assert_eq!(terminal.exit_code(), Some(0));
}

/// Asks before it pays, with a suggestion of the project.
const PAYS: &str = "
models: { providers: [{ id: script, kind: script, script: answers.yaml, models: [script] }] }
programs:
  - name: refund
    description: Pays an order back.
    parameters:
      type: object
      properties: { order: { type: string }, note: { type: string } }
      required: [order]
    command: [echo, paid, \"{order}\"]
    effect: at_most_once
    approval: { prompt: Refund this?, defaults: { note: none } }
";

/// The keys of a question were tested one by one and never as a person uses them: `s` after `e` threw the edit away, and approved the
/// arguments of the model.
#[test]
fn a_person_edits_takes_suggestions_and_comments_at_the_question() {
    let calls = ["A-1", "B-1", "C-1"]
        .map(|order| format!("{{ name: refund, arguments: {{ order: {order} }} }}"))
        .join(", ");
    let answers = format!("answers: [{{ calls: [{calls}] }}, {{ text: It is done. }}]\n");
    let project = Project::configured(PAYS, &answers);
    let agent = "tools: [refund]\nconfig: { provider: script }\n";
    fs::write(project.path(".abide/agents/clerk.yaml"), agent).unwrap();
    let mut terminal = Terminal::spawn(&project, &["agent", "chat", "clerk"]);
    terminal.until("› ");
    terminal.enter("Pay all of them.");
    let asked = terminal.until("approve? [y/N] ");
    assert!(asked.contains("Refund this?"), "{asked}");
    assert!(asked.contains(r#""order":"A-1""#), "{asked}");
    assert!(asked.contains("e edits the arguments, s takes the suggested ones; "), "{asked}");
    terminal.enter("e {order: A-2}");
    terminal.until("is not JSON");
    terminal.until("approve? [y/N] ");
    terminal.enter(r#"e {"orders": "A-2"}"#);
    terminal.until("approve? [y/N] ");
    terminal.enter("y");
    terminal.until("\"order\" is a required property");
    terminal.until("approve? [y/N] ");
    terminal.enter(r#"e {"order": "A-2"}"#);
    terminal.until("approve? [y/N] ");
    terminal.enter("s");
    let asked = terminal.until("approve? [y/N] ");
    assert!(asked.contains(r#"{"note":"none","order":"A-2"}"#), "{asked}");
    assert!(!asked.contains("s takes the suggested ones"), "{asked}");
    terminal.enter("y the customer called");
    terminal.until("approve? [y/N] ");
    terminal.enter("n not this customer");
    terminal.until("approve? [y/N] ");
    terminal.enter("y");
    terminal.until("It is done.");
    terminal.until("› ");
    terminal.enter("/quit");
    assert_eq!(terminal.exit_code(), Some(0));
    let decided =
        project.rows("SELECT status, comment, approved_arguments FROM approvals ORDER BY call_id");
    let edited = json!(r#"{"note":"none","order":"A-2"}"#);
    assert_eq!(
        decided,
        json!([
            ["approved", "the customer called", edited],
            ["rejected", "not this customer", null],
            ["approved", null, null]
        ])
    );
    let results =
        project.rows("SELECT result ->> '$.content.stdout' FROM tool_calls ORDER BY call_id");
    assert_eq!(results, json!([["paid A-2\n"], [null], ["paid C-1\n"]]));
}

/// A run on a server without agents was silent for ever.
#[test]
fn a_server_without_agents_is_named() {
    let project = Project::init(FIXES);
    let agents = project.path(".abide").display().to_string();
    let mut server = Server::start();
    let url = server.url();
    let run = ["agent", "run", "default", "Hi.", "--url", &url];
    let unknown = project.run(&run);
    let hint = format!(
        "error: there is no agent default   [not_found]\n  \
         hint: `abide agent list --url {url}` lists the agents of this server; `abide serve --agents FOLDER` adds those of a folder\n"
    );
    assert_eq!(unknown.stderr, hint);
    server.restart_with(&["--agents", &agents]);
    server.restart_with(&[]);
    let mut terminal = Terminal::spawn(&project, &run);
    terminal.until(
        "waiting: this server drives no agents: start it with `abide serve --agents FOLDER`",
    );
}

/// SIGKILL in the middle of an answer, at a question and in a command: each time the same conversation continues, asks
/// what it must ask, and shows the answer once.
#[test]
fn a_conversation_survives_kills_at_each_step() {
    let project = Project::init(&format!("token_ms: 40\n{}", FIXES.trim_start()));
    fs::write(
        project.path("test.sh"),
        "[ -e go ] || { echo begun > begun; sleep 1000; }; sh add.sh 2 2\n",
    )
    .unwrap();
    // Opening one end of a named pipe waits for the other end.
    assert!(Command::new("mkfifo").arg(project.path("begun")).status().unwrap().success());
    let mut terminal = on_a_terminal(&project, &[]);
    terminal.until("› ");
    terminal.enter("Fix the sum.");
    terminal.until("Let ");
    terminal.kill();
    let session = session(&project);
    let continues = || on_a_terminal(&project, &["--session", &session]);

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
    let shown = terminal.until("Did it take effect? [y/n, Enter leaves it open] ");
    assert!(shown.contains("it was interrupted after it changed "), "{shown}");
    let waits = "waiting for the lease of the process that ended (at most ";
    assert_eq!(shown.matches(waits).count(), 1, "{shown}");
    terminal.enter("n");
    let answer = terminal.until("now.");
    assert!(answer.contains("It is \u{1b}[0;1mfixed\u{1b}[0m now."), "{answer:?}");
    terminal.until("› ");
    terminal.enter("/quit");
    terminal.until(&format!("continue:  abide agent chat --session {session} default"));
    assert_eq!(terminal.exit_code(), Some(0));
    assert_eq!(project.touched_files(), TOUCHED);
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
    let project = Project::init(slow);
    let mut terminal = on_a_terminal(&project, &[]);
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

/// A run ended without the command that continues it, and a rejection named the process.
#[test]
fn ctrl_c_at_the_question_of_a_run_names_the_command_that_continues() {
    let project = Project::init(
        "answers:\n  - { calls: [{ name: write_file, arguments: { path: a, content: b } }] }\n  - { text: Good. }\n",
    );
    let run = ["--db", ".abide/agents.db", "agent", "run", "default", "Write.", "--id", "r1"];
    let mut terminal = Terminal::spawn(&project, &run);
    terminal.until("approve? [y/N] ");
    terminal.press_ctrl_c();
    let end = "continue:  abide agent run --db .abide/agents.db --id r1 default Write.";
    terminal.until(end);
    assert_eq!(terminal.exit_code(), Some(130));
    let mut terminal = Terminal::spawn(&project, &run);
    terminal.until("approve? [y/N] ");
    terminal.enter("n");
    terminal.until("Rejected: by the user");
    terminal.until("Good.");
    assert_eq!(terminal.exit_code(), Some(0));
}

/// Ctrl-D at a question was a rejection, which nobody had decided; at "edit again?" it opened the editor for ever. The class: the
/// end of the input as an answer. Whoever leaves decides nothing: the call waits, as without a terminal.
#[test]
fn the_end_of_the_input_decides_nothing() {
    let project = Project::init(
        "answers:\n  - { calls: [{ name: write_file, arguments: { path: a, content: b } }] }\n  - { text: Good. }\n",
    );
    let run = ["--db", ".abide/agents.db", "agent", "run", "default", "Write.", "--id", "r1"];
    let statuses = || project.rows("SELECT status FROM approvals");
    let command =
        "abide call --db .abide/agents.db decide_approval call_id=r1~1.1 decision=approve";
    for edits in [false, true] {
        let mut terminal = Terminal::spawn(&project, &run);
        terminal.until("approve? [y/N] ");
        if edits {
            // What is typed and wrong is asked for again.
            terminal.enter("e content=c");
            terminal.until("content=c is not JSON");
            terminal.until("approve? [y/N] ");
            // An editor that leaves something wrong.
            terminal.enter("e");
            terminal.until("edit again? [Y/n] ");
        }
        terminal.press_ctrl_d();
        terminal.until("waits: awaiting_approval write_file");
        terminal.until(command);
        assert_eq!(terminal.exit_code(), Some(5));
        assert_eq!(statuses(), json!([["pending"]]));
    }
    let session = ["--session", "r1"];
    let mut terminal = on_a_terminal(&project, &session);
    terminal.until("approve? [y/N] ");
    terminal.press_ctrl_d();
    terminal.until(command);
    assert_eq!(terminal.exit_code(), Some(5));
    assert_eq!(statuses(), json!([["pending"]]));
    let mut terminal = on_a_terminal(&project, &session);
    terminal.until("approve? [y/N] ");
    terminal.enter("y");
    terminal.until("Good.");
    terminal.press_ctrl_d();
    assert_eq!(terminal.exit_code(), Some(0));
    assert_eq!(statuses(), json!([["approved"]]));
}

/// The request of a program, which waits for the response: it was rejected, too. It asks again when the run continues.
#[test]
fn the_end_of_the_input_decides_nothing_on_the_request_of_a_program() {
    let project = Project::init(FIXES);
    asking_program(&project);
    let run = ["--db", ".abide/agents.db", "agent", "run", "lists", "List.", "--id", "r1"];
    let mut terminal = Terminal::spawn(&project, &run);
    terminal.until("approve? [y/N] ");
    terminal.press_ctrl_d();
    terminal.until("waits: awaiting_approval Bash {\"command\":\"ls\"}");
    terminal.until("hint: abide agent run --db .abide/agents.db --id r1 lists List.");
    assert_eq!(terminal.exit_code(), Some(5));
    let mut terminal = Terminal::spawn(&project, &run);
    // The program of the first request has ended with its request; this is that of the next one.
    terminal.until("approve? [y/N] ");
    terminal.enter("y");
    terminal.until("Listed.");
    assert_eq!(terminal.exit_code(), Some(0));
    let decisions = fs::read_to_string(project.path("decisions")).unwrap();
    assert_eq!(decisions.matches("\"behavior\":\"allow\"").count(), 1, "{decisions}");
    assert!(!decisions.contains("deny"), "{decisions}");
}

/// SIGKILL of the server in the middle of an answer and at a question, while the conversation
/// stays open.
#[test]
fn a_conversation_outlives_its_server() {
    let project = Project::init(&format!("token_ms: 100\n{}", FIXES.trim_start()));
    let agents = project.path(".abide").display().to_string();
    let mut server = Server::start();
    server.restart_with(&["--agents", &agents]);
    let mut terminal = on_a_terminal(&project, &["--url", &server.url()]);
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
    // At the prompt nothing disturbs what is typed.
    terminal.until("› ");
    server.kill();
    server.start_again();
    terminal.enter("Thanks.");
    let typed = terminal.until("Thanks.");
    assert!(!typed.contains("connect"), "{typed:?}");
    terminal.until("You are welcome.");
    terminal.until("› ");
    terminal.enter("/quit");
    assert_eq!(terminal.exit_code(), Some(0));
    assert_eq!(fs::read_to_string(project.path("add.sh")).unwrap(), "expr $1 + $2\n");
}

/// SIGKILL of the server in a command: its lease is lost, and the conversation says once what it waits for.
#[test]
fn a_conversation_at_a_server_says_that_it_waits_for_a_lease() {
    let answers = "answers:\n  - calls: [{ name: execute, \
                   arguments: { command: \"sh test.sh\" } }]\n  - { text: I see. }\n";
    let project = Project::init(answers);
    fs::write(project.path("test.sh"), "echo begun > begun; sleep 1000\n").unwrap();
    // Opening one end of a named pipe waits for the other end.
    assert!(Command::new("mkfifo").arg(project.path("begun")).status().unwrap().success());
    let agents = project.path(".abide").display().to_string();
    let mut server = Server::start();
    server.restart_with(&["--agents", &agents]);
    let mut terminal = on_a_terminal(&project, &["--url", &server.url()]);
    terminal.until("› ");
    terminal.enter("Test it.");
    terminal.until("approve? [y/N] ");
    terminal.enter("y");
    assert_eq!(fs::read_to_string(project.path("begun")).unwrap(), "begun\n");
    server.kill();
    server.start_again();
    let shown = terminal.until("Did it take effect? [y/n, Enter leaves it open] ");
    let waits = "waiting for the lease of the process that ended (at most ";
    assert_eq!(shown.matches(waits).count(), 1, "{shown}");
}

/// With a token of a tenant, and in JSON: the ids are those of the tenant, and another tenant finds neither the session nor
/// the run.
#[test]
fn a_conversation_of_a_tenant_is_its_own() {
    let project = Project::init(FIXES);
    let agents = project.path(".abide").display().to_string();
    let mut server = Server::start();
    server.restart_with(&["--agents", &agents]);
    let url = server.url();
    let create = |words: &[&str]| {
        let token = server.run(&[&["token", "create"], words].concat()).good();
        token.trim_end().to_owned()
    };
    let root = create(&["root", "--role", "admin", "--capability", "*"]);
    let tenant = |name: &str| {
        let scope = format!("tenant={name}");
        create(&[name, "--role", "app", "--scope", &scope, "--token", &root])
    };
    let acme = tenant("acme");
    let zeta = tenant("zeta");
    let by =
        |token: &str, args: &[&str]| server.run(&[args, &["--token", token, "--json"]].concat());
    let at_server = |token: &str, more: &[&str], lines: &str| {
        let args = [&["--url", &url, "--token", token, "--json"], more].concat();
        piped(&project, lines, &args)
    };
    let waits = at_server(&acme, &[], "Fix the sum.\n");
    assert_eq!(waits.code, Some(5), "{waits:?}");
    let lines: Vec<JsonValue> =
        waits.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let session = lines[0]["session_id"].as_str().unwrap();
    assert_eq!(lines.last().unwrap()["event"], "interrupt");
    let run = by(&acme, &["sql", "SELECT id FROM runs"]).json()["rows"][0][0].take();
    let run = run.as_str().unwrap();
    let foreign = at_server(&zeta, &["--session", session], "Hello.\n");
    assert!(foreign.stderr.contains("\"not_found\""), "{foreign:?}");
    let foreign = by(&zeta, &["agent", "abort", run]);
    assert!(foreign.code == Some(1) && foreign.stderr.contains("not_found"), "{foreign:?}");
    let aborted = by(&acme, &["agent", "abort", run, "--reason", "enough"]).json();
    assert_eq!(aborted["result"]["status"], "aborted", "{aborted}");
    let done = at_server(&acme, &["--session", session, "--yes"], "Thanks.\n").good();
    let kinds: Vec<JsonValue> = done.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(kinds.last().unwrap()["event"], "done", "{done}");
    let sql = "SELECT count(*), count(DISTINCT session_id), min(session_id) FROM runs";
    let rows = by(&acme, &["sql", sql]).json()["rows"].take();
    assert_eq!(rows, json!([[2, 1, session]]));
    assert_eq!(by(&zeta, &["sql", "SELECT count(*) FROM runs"]).json()["rows"], json!([[0]]));
}

/// Adds the agent `lists`, a program that asks for permission and notes the decisions.
fn asking_program(project: &Project) {
    let asks = r#"
echo '{"type":"system","subtype":"init","session_id":"p1","tools":[],"model":"m"}'
read hello; read prompt
echo '{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool",'\
'"tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1"}}'
read decision; echo "$decision" >> decisions
echo '{"type":"result","subtype":"success","is_error":false,"result":"Listed.","session_id":"p1"}'
"#;
    fs::write(project.path("asks.sh"), asks).unwrap();
    let folder = project.folder().display();
    let cli = format!(
        "cli: {{ command: [sh, asks.sh], program: claude, working_dir: '{folder}', \
         input_format: stream-json }}\n"
    );
    fs::write(project.path(".abide/agents/lists.yaml"), cli).unwrap();
}

/// A program asks for permission while it runs: each turn is one process, and in JSON the stdout is pure.
#[test]
fn a_conversation_with_a_program_asks_and_continues() {
    let project = Project::init(FIXES);
    asking_program(&project);
    let denied = piped_to(&project, "lists", "List.\n", &[]);
    assert_eq!(denied.code, Some(0), "{denied:?}");
    assert!(denied.stderr.contains("rejected Bash"), "{denied:?}");
    let session = session(&project);
    let args = ["--session", &session, "--yes", "--json"];
    let allowed = piped_to(&project, "lists", "List.\nAgain.\n", &args).good();
    let events: Vec<JsonValue> =
        allowed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answers = events.iter().filter(|event| event["event"] == "done");
    let answers: Vec<&JsonValue> =
        answers.map(|event| &event["data"]["assistant_data"]["content"]).collect();
    assert_eq!(answers, ["Listed.", "Listed."]);
    let decisions = fs::read_to_string(project.path("decisions")).unwrap();
    let allowed = decisions.lines().map(|line| line.contains("\"behavior\":\"allow\""));
    assert_eq!(allowed.collect::<Vec<_>>(), [false, true, true]);
}

/// Each line of a pasted text was a message, a line was cut without a word after 4,095 bytes, and a `y` that was typed
/// before the question was a message.
#[test]
fn pasted_and_long_lines_and_early_answers_are_no_surprise() {
    let slow = "token_ms: 100\nanswers:\n  - { text: \"one two three four five six\" }\n  \
                - { text: Good. }\n  - { text: Fine. }\n";
    let project = Project::init(slow);
    let mut terminal = on_a_terminal(&project, &[]);
    terminal.until("\u{1b}[?2004h");
    terminal.until("› ");
    terminal.enter("\u{1b}[200~first\nsecond\u{1b}[201~");
    terminal.until("two");
    terminal.enter("y");
    terminal.until("ignored: y was typed before a question");
    terminal.until("› ");
    terminal.enter(&"x".repeat(5_000));
    terminal.until("not sent: the terminal has cut a line after 4095 bytes");
    terminal.enter("Thanks.");
    terminal.until("Good.");
    terminal.until("› ");
    terminal.enter("/quit");
    terminal.until("\u{1b}[?2004l");
    assert_eq!(terminal.exit_code(), Some(0));
    let texts = project.rows("SELECT content FROM agent_state WHERE role = 'user' ORDER BY id");
    assert_eq!(texts, json!([["first\nsecond"], ["Thanks."]]));
}

/// A session of another agent continued without a word, and a file that another command has open led to an empty server.
#[test]
fn a_conversation_says_whose_session_it_is_and_how_to_share_a_file() {
    let project = Project::init("answers: [{ text: Hello. }, { text: Again. }]\n");
    piped(&project, "Hi.\n", &[]).good();
    let session = session(&project);
    let other = piped_to(&project, "readonly", "Hi.\n", &["--session", &session]);
    let says = format!(
        "session {session} is of the agent default; in this conversation readonly answers\n"
    );
    assert!(other.stderr.starts_with(&says), "{other:?}");
    let mut terminal = on_a_terminal(&project, &[]);
    terminal.until("› ");
    let locked = project.run(&["agent", "chat", "default"]);
    let hint =
        "abide serve --agents .abide  and  abide agent chat default --url http://127.0.0.1:7341\n";
    assert!(locked.stderr.ends_with(hint), "{locked:?}");
    // The hint of other commands started a server that drives no agents.
    let locked = project.run_on_file(&["sql", "SELECT 1"]);
    let serve = "`abide serve --db .abide/agents.db --agents .abide`";
    assert!(locked.stderr.contains(serve), "{locked:?}");
    terminal.kill();
}

/// A new folder does not say that commands cannot use the programs of a version manager, an unusable script was one long
/// line without its file, and a wrong setting hid all other errors.
#[test]
fn a_check_reports_the_script_the_definitions_and_programs_of_the_path() {
    let project = Project::init(FIXES);
    let home = project.path("home");
    fs::create_dir_all(home.join(".pyenv/shims")).unwrap();
    let check = |args: &[&str]| {
        let mut command = abide();
        command.current_dir(project.folder()).args(args);
        let path = format!("{}:/usr/bin:/bin", home.join(".pyenv/shims").display());
        Process::spawn(command.env("HOME", &home).env("PATH", path)).ended()
    };
    let checked = check(&["agent", "check"]);
    let readable = format!("add  readable: [{}]  to sandbox", home.join(".pyenv").display());
    assert!(checked.stderr.contains(&readable), "{checked:?}");
    check(&["agent", "init", "--agents", "other"]).good();
    let config = fs::read_to_string(project.path("other/abide.yaml")).unwrap();
    let line = format!("readable: [\"{}\"]", home.join(".pyenv").display());
    assert!(config.contains(&line), "{config}");

    fs::write(project.path(".abide/agents/odd.yaml"), "tool: [ls]\n").unwrap();
    let broken = "answers:\n  - text: a\n    cals: []\n";
    fs::write(project.path(".abide/answers.yaml"), broken).unwrap();
    let checked = check(&["agent", "check"]);
    let lines: Vec<&str> = checked.stdout.lines().collect();
    assert!(lines[0].contains("cannot read file `.abide/answers.yaml`: "), "{checked:?}");
    assert!(lines[0].contains("line 3, column 5"), "{checked:?}");
    // Class: an error at another place than the wrong value. It was at the default model in `abide.yaml`.
    assert!(lines[0].starts_with(".abide/answers.yaml:3:5: "), "{checked:?}");
    assert!(!lines[0].contains("\\n") && !lines[0].contains("<input>"), "{checked:?}");
    assert!(
        checked.stdout.contains(".abide/agents/odd.yaml:1:1: unknown field `tool`"),
        "{checked:?}"
    );
    let detail =
        "the agent folder has 2 errors; the tools and models of its definitions were not checked";
    assert!(checked.stderr.contains(detail), "{checked:?}");
}
