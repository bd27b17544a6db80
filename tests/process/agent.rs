//! `abide agent`: agents of a folder, with a model that replies from a script and a program as a
//! tool, run by the command itself, by a server, and again after a kill.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::expect;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::{ExitedProcess, Process, abide, program};
use crate::server::Server;

/// The environment of an agent: a folder with models, tools and a definition.
pub(crate) struct AgentFolder {
    folder: TempDir,
}

const TOOLS: &str = "
models:
  providers: [{ id: script, kind: script, script: answers.yaml, models: [scripted] }]
programs:
  - name: look
    description: Looks an order up.
    parameters: { type: object, properties: { order: { type: string } }, required: [order] }
    command: [sh, -c, 'echo look $1 >> LEDGER; echo it is there', sh, '{order}']
    effect: read_only
  - name: refund
    description: Pays an order back.
    parameters: { type: object, properties: { order: { type: string } }, required: [order] }
    command: [sh, -c, 'echo paid $1 >> LEDGER; echo done', sh, '{order}']
    effect: at_most_once
    needs_approval: true
";

const ANSWERS: &str = "
answers:
  - { text: Let me look., calls: [{ name: look, arguments: { order: A-7 } }],
      usage: { input_tokens: 10, output_tokens: 4 } }
  - { text: It can be paid back., calls: [{ name: refund, arguments: { order: A-7 } }] }
  - { text: Order A-7 is paid back., usage: { input_tokens: 20, output_tokens: 6 } }
";

const CLERK: &str = "description: Looks after orders\ntools: [look, refund]\n";

const INPUT: &str = "Pay order A-7 back.";

impl AgentFolder {
    pub(crate) fn new(answers: &str) -> AgentFolder {
        let agent_folder = AgentFolder { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(agent_folder.path("project/agents")).unwrap();
        let ledger = agent_folder.path("ledger").display().to_string();
        fs::write(agent_folder.path("project/abide.yaml"), TOOLS.replace("LEDGER", &ledger))
            .unwrap();
        fs::write(agent_folder.path("project/answers.yaml"), answers).unwrap();
        fs::write(agent_folder.path("project/agents/clerk.yaml"), CLERK).unwrap();
        agent_folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command in its folder, with its agents.
    fn spawn(&self, args: &[&str]) -> Process {
        let mut command = abide();
        command.current_dir(self.folder.path()).args(args).args(["--agents", "project"]);
        Process::spawn(&mut command)
    }

    fn run(&self, args: &[&str]) -> ExitedProcess {
        self.spawn(args).ended()
    }

    /// The run of all these tests, over the file.
    pub(crate) fn clerk(&self, more: &[&str]) -> ExitedProcess {
        let args = ["--db", "agents.db", "agent", "run", "clerk", INPUT, "--id", "order-7"];
        self.run(&[&args[..], more].concat())
    }

    fn ledger(&self) -> Vec<String> {
        lines(&self.path("ledger"))
    }

    /// The rows of the file, while no process has it open.
    fn rows(&self, sql: &str) -> JsonValue {
        let db = self.path("agents.db");
        crate::program::run(["sql", "--json", "--db", db.to_str().unwrap(), sql]).json()["rows"]
            .take()
    }
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The kinds of the events on stdout, which is pure JSON. The pieces of one reply count as one.
fn kinds(stdout: &str) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for line in stdout.lines() {
        let event: JsonValue =
            serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
        kinds.push(event["event"].as_str().unwrap().to_owned());
    }
    kinds.dedup();
    kinds
}

#[test]
fn a_run_waits_for_a_decision_and_continues() {
    let agent_folder = AgentFolder::new(ANSWERS);
    let waits = agent_folder.clerk(&[]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    expect![[r#"
        Let me look.
        10 tokens in, 4 out
        → look {"order":"A-7"}
        ← it is there
        It can be paid back.
        → refund {"order":"A-7"}
    "#]]
    .assert_eq(&waits.stdout);
    expect![[r#"
        waits: awaiting_approval refund {"order":"A-7"}
          hint: abide call --db agents.db decide_approval call_id=order-7~2.1 decision=approve
          then: abide agent run --db agents.db --agents project --id order-7 clerk 'Pay order A-7 back.'
    "#]].assert_eq(&waits.stderr);
    assert_eq!(agent_folder.ledger(), ["look A-7"]);

    // The hint as a shell parses it.
    let decide = ["call", "--db", "agents.db", "decide_approval", "call_id=order-7~2.1"];
    let mut command = abide();
    command.current_dir(agent_folder.folder.path()).args(decide).arg("decision=approve");
    Process::spawn(&mut command).ended().good();
    let done = agent_folder.clerk(&[]).good();
    assert!(
        done.ends_with(
            "\n← done\nOrder A-7 is paid back.\n20 tokens in, 6 out\n\
        total 30 tokens in, 10 out, without 1 answer whose usage is unknown\n"
        ),
        "{done}"
    );
    assert_eq!(agent_folder.ledger(), ["look A-7", "paid A-7"]);
    assert_eq!(agent_folder.clerk(&[]).good(), done, "the same command is the same run");
    assert_eq!(agent_folder.ledger().len(), 2, "and nothing runs twice");
}

/// A subagent of the clerk asks for an approval. The command hung: nothing reached the run of the clerk.
#[test]
fn an_approval_of_a_subagent_is_asked_for() {
    let delegates = "
answers:
  - calls: [{ name: task, arguments: { agent: helper, task: Pay it back. } }]
  - { text: It is arranged. }
";
    // The helper has the same script, and its definition another model.
    let agent_folder = AgentFolder::new(delegates);
    let models = "models:\n  default: { provider: script }\n  providers:\n    \
        - { id: helps, kind: script, script: helps.yaml, models: [helps] }\n    - ";
    let config = fs::read_to_string(agent_folder.path("project/abide.yaml")).unwrap();
    let config = config.replace("models:\n  providers: [", models).replace("] }]\n", "] }\n");
    fs::write(agent_folder.path("project/abide.yaml"), config).unwrap();
    let refunds =
        "answers: [{ calls: [{ name: refund, arguments: { order: A-7 } }] }, { text: Paid. }]";
    fs::write(agent_folder.path("project/helps.yaml"), refunds).unwrap();
    let helper = "mode: subagent\ntools: [refund]\nconfig: { provider: helps }\n";
    fs::write(agent_folder.path("project/agents/helper.yaml"), helper).unwrap();
    fs::write(agent_folder.path("project/agents/clerk.yaml"), "subagents: [helper]\n").unwrap();
    let waits = agent_folder.clerk(&[]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    expect![[r#"
        → task {"agent":"helper","task":"Pay it back."}
        ⇢ helper: Pay it back.
          helper → refund {"order":"A-7"}
          helper waits for approval
    "#]]
    .assert_eq(&waits.stdout);
    expect![[r#"
        waits: awaiting_approval helper: refund {"order":"A-7"}
          hint: abide call --db agents.db decide_approval call_id=order-7~1.1~run~1.1 decision=approve
          then: abide agent run --db agents.db --agents project --id order-7 clerk 'Pay order A-7 back.'
    "#]].assert_eq(&waits.stderr);
    let decide = ["call", "--db", "agents.db", "decide_approval", "call_id=order-7~1.1~run~1.1"];
    let mut command = abide();
    command.current_dir(agent_folder.folder.path()).args(decide).arg("decision=approve");
    Process::spawn(&mut command).ended().good();
    let done = agent_folder.clerk(&[]).good();
    assert!(done.ends_with("← Paid.\nIt is arranged.\n"), "{done}");
    assert_eq!(agent_folder.ledger(), ["paid A-7"]);
}

#[test]
fn a_denied_answer_is_not_printed() {
    let agent_folder = AgentFolder::new("answers: [{ text: Well. It is swordfish. }]");
    let guarded = "middleware:\n  \
        - { name: guardrail, at: response, deny: swordfish, message: I may not say that. }\n";
    fs::write(agent_folder.path("project/agents/clerk.yaml"), guarded).unwrap();
    assert_eq!(agent_folder.clerk(&[]).good(), "Well. I may not say that.\n");
    let events = agent_folder.clerk(&["--json"]).good();
    assert!(!events.contains("swordfish"), "{events}");
}

#[test]
fn with_json_stdout_is_pure_json() {
    let agent_folder = AgentFolder::new(ANSWERS);
    let waits = agent_folder.clerk(&["--json"]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    let kinds_of_events = kinds(&waits.stdout);
    let expected = [
        "status",
        "token",
        "usage",
        "tool_call",
        "tool_result",
        "token",
        "usage",
        "tool_call",
        "interrupt",
    ];
    assert_eq!(kinds_of_events, expected);
    let problem: JsonValue = serde_json::from_str(&waits.stderr).unwrap();
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("waits"), &json!(true)));
    let done = agent_folder.clerk(&["--json", "--yes"]).good();
    assert_eq!(kinds(&done).last().unwrap(), "done");
    assert_eq!(agent_folder.ledger(), ["look A-7", "paid A-7"]);
}

#[test]
fn a_run_that_cannot_start_leaves_nothing() {
    let agent_folder = AgentFolder::new(ANSWERS);
    let missing = crate::program::run(["agent", "check", "--agents", "nofolder"]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("there is no folder nofolder   [not_found]"), "{missing:?}");
    let unknown = agent_folder.run(&["--db", "agents.db", "agent", "run", "noname", "x"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("there is no agent noname   [not_found]\n"), "{unknown:?}");
    let misspelled = agent_folder.run(&["--db", "agents.db", "agent", "run", "clrk", "x"]);
    assert!(misspelled.stderr.contains("hint: did you mean clerk?"), "{misspelled:?}");
    assert!(!agent_folder.path("agents.db").exists(), "a refused run has created the database");
    agent_folder.clerk(&["--yes"]).good();
    let count = "SELECT count(*) FROM sessions";
    let sessions = agent_folder.rows(count);
    agent_folder.run(&["--db", "agents.db", "agent", "run", "noname", "x"]);
    assert_eq!(agent_folder.rows(count), sessions);
    let other =
        ["--db", "agents.db", "agent", "run", "clerk", "Something else.", "--id", "order-7"];
    let taken = agent_folder.run(&other);
    assert!(
        taken.stderr.contains("run order-7 of agent clerk started with: Pay order A-7 back."),
        "{taken:?}"
    );
    assert_eq!(taken.code, Some(1));
}

#[test]
fn a_failed_run_reports_the_reason() {
    let agent_folder = AgentFolder::new("answers: [{ error: { kind: unauthorized, times: 9 } }]");
    let failed = agent_folder.clerk(&[]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    expect![[r#"
        error: the run ended without an answer: scripted failure   [unauthorized]
    "#]]
    .assert_eq(&failed.stderr);
}

/// Regression: `agent list` showed the agents of the folder, whatever `--db` or `--url` named.
#[test]
fn agents_are_listed_from_the_folder_a_file_or_a_server() {
    let agent_folder = AgentFolder::new(ANSWERS);
    agent_folder.clerk(&["--yes"]).good();
    fs::remove_file(agent_folder.path("project/agents/clerk.yaml")).unwrap();
    let names = |listed: String| -> Vec<String> {
        listed
            .lines()
            .map(|line| line.split_whitespace().next().unwrap_or_default().to_owned())
            .collect()
    };
    let native = ["default", "hitl_test", "readonly"];
    let with_clerk = ["clerk", "default", "hitl_test", "readonly"];
    assert_eq!(names(agent_folder.run(&["agent", "list"]).good()), native);
    let of_file = agent_folder.run(&["agent", "list", "--db", "agents.db"]).good();
    assert_eq!(names(of_file), with_clerk);
    let missing = agent_folder.run(&["agent", "list", "--db", "none.db"]);
    assert!(missing.stderr.contains("none.db does not exist"), "{missing:?}");

    let mut server = Server::start();
    let url = server.url();
    server.run(&["call", "register_agent", "name=remote", "definition={}"]).good();
    let of_server = agent_folder.run(&["agent", "list", "--url", &url]).good();
    assert_eq!(names(of_server), ["remote"]);
    let mut by_variable = abide();
    by_variable.args(["agent", "list", "--json"]).env("ABIDE_URL", &url);
    let listed = Process::spawn(&mut by_variable).ended().good();
    let listed: JsonValue = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed["name"], &listed["mode"]), (&json!("remote"), &json!("primary")));
    server.stop();
}

/// A check shows the numbers that a profile resolves to: those of the preset, the custom profile and the definition.
#[test]
fn a_check_shows_the_numbers_of_profiles() {
    let agent_folder = AgentFolder::new(ANSWERS);
    let text = "profile: { base: deep, context: { compact_above_tokens: 90000 } }\n\
                limits: { tool_calls: 7 }\n";
    fs::write(agent_folder.path("project/agents/digger.yaml"), text).unwrap();
    expect![[r#"
        digger: profile custom (deep)
          limits    parallel_tools 8, tool_calls 7
          context   chunk_tokens 16000, compact_above_tokens 90000, compact_to_tokens 60000, compaction true, last_answers 30, policy "hybrid", reduce_arguments {}, reduce_results {}, summary_token_limit 4000, tool_responses 8, window_tokens 200000
          plan      replan "on_failure", replan_steps 10
          memory    budget_tokens 3000, enabled true, namespace "", read "hybrid", scope "scope", write "auto_important"
          watchdog  auto_compaction true, context_rot 0.5, enabled true, over_tooling 0.55, repeats 3, stop_after 0, stop_after_repeats 6, token_drift 11000, warn_after 12
          planning  true
        2 agents and 3 built in, no errors
    "#]]
    .assert_eq(&agent_folder.run(&["agent", "check"]).good());
    let report = agent_folder.run(&["agent", "check", "--json"]).good();
    let report: JsonValue = serde_json::from_str(&report).unwrap();
    assert_eq!(report["settings"]["context"]["compact_above_tokens"], 90_000);
    let wrong = "profile: { context: { compact_above_tokens: 9 } }\n";
    fs::write(agent_folder.path("project/agents/digger.yaml"), wrong).unwrap();
    let wrong = agent_folder.run(&["agent", "check"]);
    assert!(
        wrong.stdout.contains(
            "compact_to_tokens 32000 is not below compact_above_tokens 9   [contradiction]"
        ),
        "{wrong:?}"
    );
}

/// A definition that cannot work fails the check, with its file, line and a suggestion.
#[test]
fn a_check_reports_what_cannot_work() {
    let agent_folder = AgentFolder::new(ANSWERS);
    assert_eq!(agent_folder.run(&["agent", "check"]).good(), "1 agent and 3 built in, no errors\n");
    let broken = "tools: [look]\nsubagents:\n  - clrk\n";
    fs::write(agent_folder.path("project/agents/lead.yaml"), broken).unwrap();
    let wrong = agent_folder.run(&["agent", "check"]);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    expect![[r#"
        project/agents/lead.yaml:3:5: unknown subagent clrk; available: none   [unknown_subagent]
          hint: create the agent with `mode: subagent`, or remove its name
        error: the agent folder has 1 error   [bad_arguments]
    "#]]
    .assert_eq(&format!("{}{}", wrong.stdout, wrong.stderr));
    let wrong = agent_folder.run(&["agent", "check", "--json"]);
    let problem: JsonValue = serde_json::from_str(&wrong.stdout).unwrap();
    assert_eq!((&problem["line"], &problem["column"]), (&json!(3), &json!(5)));
    assert_eq!(problem["code"], "unknown_subagent");
    let misspelled = TOOLS.replace("kind: script", "kind: scirpt");
    fs::write(agent_folder.path("project/abide.yaml"), misspelled).unwrap();
    let wrong = agent_folder.run(&["agent", "check"]);
    expect![[r#"
        project/abide.yaml:3:35: unknown value `scirpt`, expected one of openai, openai_responses, anthropic, gemini, ollama, openai_compatible, replay, script   [malformed_definition]
          hint: did you mean script?
        project/agents/lead.yaml:3:5: unknown subagent clrk; available: none   [unknown_subagent]
          hint: create the agent with `mode: subagent`, or remove its name
        error: the agent folder has 2 errors; the tools and models of its definitions were not checked   [bad_arguments]
    "#]]
    .assert_eq(&format!("{}{}", wrong.stdout, wrong.stderr));
    let programs = "  - { name: lint, description: Checks., command: [nosuchprog], effect: read_only }
  - { name: send, description: Sends., command: [cat], effect: read_only, working_dir: /no/such/folder }
";
    fs::write(agent_folder.path("project/abide.yaml"), format!("{TOOLS}{programs}")).unwrap();
    let remote = "a2a: { url: 'http://10.0.0.1/a2a/x' }\n";
    fs::write(agent_folder.path("project/agents/remote.yaml"), remote).unwrap();
    let missing = agent_folder.run(&["agent", "check"]);
    expect![[r#"
        project/abide.yaml:17:88: there is no folder /no/such/folder for the tool send   [missing_folder]
          hint: create the folder
        project/abide.yaml:16:51: there is no program "nosuchprog" for the tool lint   [program_not_found]
          hint: install it, or name it with its path
        project/agents/lead.yaml:3:5: unknown subagent clrk; available: none   [unknown_subagent]
          hint: create the agent with `mode: subagent`, or remove its name
        warning: project/agents/remote.yaml:1:14: a2a.url: 10.0.0.1 is not a public address, and only public addresses can be used   [private_address]
          hint: name its host in a2a.allow_private
    "#]].assert_eq(&missing.stdout);
    let mut nowhere = abide();
    nowhere.current_dir(agent_folder.folder.path()).args(["agent", "check"]);
    let nowhere = Process::spawn(&mut nowhere).ended();
    assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
    assert!(nowhere.stderr.contains("there is no folder .abide   [not_found]"), "{nowhere:?}");
}

/// A server with agents says what it loaded, and what failed.
#[test]
fn a_server_says_which_agents_it_loaded() {
    let agent_folder = AgentFolder::new(ANSWERS);
    fs::write(agent_folder.path("project/agents/odd.yaml"), "tools: [fly]\n").unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0"];
    let text = agent_folder.spawn(&args);
    let mut greeting = String::new();
    while !greeting.contains("try: ") {
        greeting += &(text.line() + "\n");
    }
    let has = |line: &str| assert!(greeting.contains(line), "{greeting}");
    has(
        "  agents   clerk, default, hitl_test, readonly\n  models   script\n  tools    look, refund\n",
    );
    has("  failed   1 problem: `abide agent check --agents project` shows it\n");
    let warning = text.error_line();
    assert!(warning.contains("odd.yaml:1:9: unknown tool fly"), "{warning}");
    assert!(!warning.contains('\u{1b}'), "a log that is not a terminal has no colours");
    drop(text);
    let json = agent_folder.spawn(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    let greeting: JsonValue = serde_json::from_str(&json.line()).unwrap();
    assert_eq!(greeting["agents"]["tools"], json!(["look", "refund"]));
    assert_eq!(greeting["agents"]["errors"].as_array().map(Vec::len), Some(1));
}

/// A server says what it has read again, and why a file is not used. Agents with `observability` are in its metrics.
#[test]
fn a_server_says_what_it_has_read_again() {
    let agent_folder = AgentFolder::new("answers: [{ text: Hello. }]");
    let observed = format!("{CLERK}middleware: [observability]\n");
    fs::write(agent_folder.path("project/agents/clerk.yaml"), observed).unwrap();
    let server = agent_folder.spawn(&["serve", "--listen", "127.0.0.1:0", "--db", "agents.db"]);
    let greeting = server.line();
    let (_, address) = greeting.split_once("http://").unwrap();
    let url = format!("http://{address}");
    let said = |start: &str| loop {
        let line = server.line();
        if line.starts_with(start) {
            return line;
        }
    };
    let config = agent_folder.path("project/abide.yaml");
    let before = fs::read_to_string(&config).unwrap();
    let replace = |text: &str| {
        fs::write(agent_folder.path("beside"), text).unwrap();
        fs::rename(agent_folder.path("beside"), &config).unwrap();
    };
    replace(&format!("{before}tool_security: {{ blocked_tools: [refund] }}\n"));
    assert_eq!(said("reloaded"), "reloaded  tool_security:  new refund");
    replace(&before.replace("kind: script", "kind: scirpt"));
    let failed = said("failed");
    assert!(failed.starts_with("failed    project/abide.yaml:3:"), "{failed}");
    assert!(failed.contains("unknown value `scirpt`"), "{failed}");
    fs::write(agent_folder.path("project/agents/late.yaml"), "description: x\n").unwrap();
    assert_eq!(said("reloaded"), "reloaded  agents:  new late");

    // A reload reports what `agent check` does.
    let told = |part: &str| loop {
        let line = server.line();
        if line.contains(part) {
            return line;
        }
    };
    let missing =
        "  - { name: lint, description: Checks., command: [nosuchprog], effect: read_only }\n";
    replace(&before.replace("programs:\n", &format!("programs:\n{missing}")));
    let failed = told("there is no program \"nosuchprog\" for the tool lint");
    assert!(failed.starts_with("failed    project/abide.yaml:"), "{failed}");
    replace(&before);
    assert_eq!(told("removed lint"), "reloaded  programs:  removed lint");
    let remote = agent_folder.path("project/agents/remote.yaml");
    fs::write(&remote, "a2a: { url: 'http://10.0.0.1/a2a/x' }\n").unwrap();
    let warning = told("10.0.0.1 is not a public address");
    assert!(warning.starts_with("warning   project/agents/remote.yaml:1:14: "), "{warning}");
    fs::write(&remote, "subagents: [nobody]\n").unwrap();
    let failed = told("unknown subagent nobody");
    assert!(failed.starts_with("failed    project/agents/remote.yaml:1:13: "), "{failed}");

    let run = ["agent", "run", "clerk", INPUT, "--url", &url];
    agent_folder.run(&run).good();
    let (status, metrics) = request_to(address, "GET", "/metrics", "");
    assert_eq!(status, 200);
    let labels = r#"agent="clerk",provider="script",model="scripted""#;
    for line in [
        format!("abide_agent_model_calls_total{{{labels},outcome=\"answered\"}} 1"),
        "# TYPE abide_agent_model_call_seconds histogram".to_owned(),
        format!("abide_agent_model_call_seconds_count{{{labels}}} 1"),
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
    let root = ["token", "create", "root", "--role", "admin", "--capability", "*", "--url", &url];
    let root = crate::program::run(root).good();
    let acme =
        ["token", "create", "acme", "--role", "app", "--scope", "tenant=acme", "--url", &url];
    let acme = crate::program::run(acme.iter().chain(&["--token", root.trim_end()])).good();
    let header = format!("authorization: Bearer {}\r\n", acme.trim_end());
    let (status, refused) = request_with(address, "GET", "/metrics", &header, "");
    assert_eq!(status, 403, "{refused}");
}

/// SIGKILL during a model's reply, and right after a tool has run: the same command again
/// continues, and each tool has run once.
#[test]
fn after_a_kill_the_same_command_completes_the_run() {
    let slow = format!("token_ms: 150\n{}", ANSWERS.trim_start());
    let agent_folder = AgentFolder::new(&slow);
    let args = ["--json", "--db", "agents.db", "agent", "run", "clerk", INPUT, "--id", "order-7"];
    for stops_at in ["token", "tool_result"] {
        let mut process = agent_folder.spawn(&args);
        loop {
            let event: JsonValue = serde_json::from_str(&process.line()).unwrap();
            if event["event"] == stops_at {
                break;
            }
        }
        process.kill();
    }
    // People see each answer once, although its first words were delivered twice.
    let waits = agent_folder.clerk(&[]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    expect![[r#"
        Let me look.
        10 tokens in, 4 out
        → look {"order":"A-7"}
        ← it is there
        It can be paid back.
        → refund {"order":"A-7"}
    "#]]
    .assert_eq(&waits.stdout);
    let resumed = agent_folder.clerk(&["--json"]);
    let restarts = resumed.stdout.lines().filter(|line| line.contains("runtime_restarted")).count();
    assert!(restarts > 0, "{resumed:?}");
    let done = agent_folder.clerk(&["--json", "--yes"]).good();
    assert_eq!(kinds(&done).last().unwrap(), "done");
    assert_eq!(agent_folder.ledger(), ["look A-7", "paid A-7"]);
    let messages = agent_folder.rows("SELECT role, content FROM agent_state ORDER BY id");
    let expected = json!([
        ["user", INPUT],
        ["assistant", "Let me look."],
        ["tool", "it is there"],
        ["assistant", "It can be paid back."],
        ["tool", "done"],
        ["assistant", "Order A-7 is paid back."]
    ]);
    assert_eq!(messages, expected);
}

/// The run of a killed process stayed `running`: the abort said that its driver ends it, and the command that continues said that
/// it is aborted. The class: an end that only a process can write that is gone.
#[test]
fn an_abort_ends_the_run_of_a_killed_process() {
    let slow = format!("token_ms: 150\n{}", ANSWERS.trim_start());
    let agent_folder = AgentFolder::new(&slow);
    let args = ["--json", "--db", "agents.db", "agent", "run", "clerk", INPUT, "--id", "order-7"];
    let mut process = agent_folder.spawn(&args);
    while !process.line().contains("\"token\"") {}
    process.kill();
    let aborted = agent_folder.run(&["--db", "agents.db", "agent", "abort", "order-7"]);
    assert!(aborted.stderr.contains("its lease expires soon"), "{aborted:?}");
    assert!(aborted.good().contains("aborted"));
    let sql = "SELECT status, error_code, driver FROM runs";
    assert_eq!(agent_folder.rows(sql), json!([["aborted", "aborted", null]]));
    let again = agent_folder.clerk(&[]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(
        again.stderr.contains("[aborted]") && !again.stderr.contains("agent abort"),
        "{again:?}"
    );
    agent_folder.run(&[
        "--db",
        "agents.db",
        "agent",
        "run",
        "clerk",
        INPUT,
        "--session",
        "order-7",
    ]);
}

/// The hint was a command that waits for ever, and named no command that answers. Each command of the hint runs as it is printed.
#[test]
fn a_run_that_waits_for_a_supervisor_names_the_commands_that_answer() {
    let agent_folder = AgentFolder::new(
        "answers:\n  - { calls: [{ name: request_supervisor, arguments: { reason: It is much. } }] }\n  \
         - { text: Then I pay. }\n",
    );
    let clerk = "supervisor: { capability: refunds }\n";
    fs::write(agent_folder.path("project/agents/clerk.yaml"), clerk).unwrap();
    let waits = agent_folder.clerk(&[]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    assert!(waits.stderr.contains("waits for a supervisor: It is much."), "{waits:?}");
    let lines = waits.stderr.lines().filter_map(|line| line.split_once(": abide "));
    let commands: Vec<String> =
        lines.map(|(_, command)| format!("abide {}", command.trim())).collect();
    let [claim, resolve, again] = &commands[..] else { panic!("{waits:?}") };
    let folder = program().parent().unwrap().display().to_string();
    let sh = |command: &str| {
        let mut shell = Command::new("sh");
        shell
            .current_dir(agent_folder.folder.path())
            .env("PATH", format!("{folder}:/usr/bin:/bin"));
        Process::spawn(shell.args(["-c", command])).ended()
    };
    sh(claim).good();
    // It is claimed now, so the hint is shorter.
    let waits = agent_folder.clerk(&[]);
    assert!(waits.stderr.contains("claimed by"), "{waits:?}");
    assert!(!waits.stderr.contains("claim_handoff"), "{waits:?}");
    assert!(waits.stderr.contains(resolve), "{waits:?}");
    sh(resolve).good();
    assert!(sh(again).good().contains("Then I pay."));
    let result = "SELECT content FROM agent_state WHERE role = 'tool'";
    assert_eq!(agent_folder.rows(result), json!([["your answer"]]));
}

/// The answer of a program was not shown if the program had written another text before: only a final answer without any text
/// before it was.
#[test]
fn a_final_answer_that_differs_from_the_text_before_is_shown() {
    let agent_folder = AgentFolder::new(ANSWERS);
    let script = r#"
read prompt
echo '{"type":"system","subtype":"init","session_id":"p1","tools":[],"model":"m"}'
echo '{"type":"assistant","message":{"id":"m1","role":"assistant","content":[{"type":"text","text":"I am looking."}]},"session_id":"p1"}'
echo "{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"$(cat answer)\",\"session_id\":\"p1\"}"
"#;
    fs::write(agent_folder.path("looks.sh"), script).unwrap();
    let folder = agent_folder.folder.path().display();
    let cli =
        format!("cli: {{ command: [sh, looks.sh], program: claude, working_dir: '{folder}' }}\n");
    fs::write(agent_folder.path("project/agents/clerk.yaml"), cli).unwrap();
    for (id, answer, shown) in [
        ("r1", "It is 7.", "I am looking.\nIt is 7.\n"),
        ("r2", "I am looking.", "I am looking.\n"),
    ] {
        fs::write(agent_folder.path("answer"), answer).unwrap();
        let args = ["--db", "agents.db", "agent", "run", "clerk", INPUT, "--id", id];
        assert_eq!(agent_folder.run(&args).good(), shown, "{answer}");
    }
}

/// A program that acts as Claude Code, asks to run `ls`, records the response, and replies.
const ASKS: &str = r#"
read hello; read prompt
echo '{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool",'\
'"tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1"}}'
read decision; echo "$decision" > decision
echo '{"type":"result","subtype":"success","is_error":false,"result":"Listed."}'
"#;

/// An environment whose agent is an external program that asks for permission.
fn desk_of_a_program() -> AgentFolder {
    let agent_folder = AgentFolder::new(ANSWERS);
    fs::write(agent_folder.path("asks.sh"), ASKS).unwrap();
    let folder = agent_folder.folder.path().display();
    let cli = format!(
        "cli: {{ command: [sh, asks.sh], program: claude, working_dir: '{folder}', \
         input_format: stream-json }}\n"
    );
    fs::write(agent_folder.path("project/agents/clerk.yaml"), cli).unwrap();
    agent_folder
}

/// The program waits for the response, so a request that cannot be shown is denied at once.
#[test]
fn a_program_is_denied_without_a_terminal_and_allowed_with_yes() {
    let agent_folder = desk_of_a_program();
    let ended = agent_folder.clerk(&[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    expect![[r#"
        rejected Bash {"command":"ls"}: there is no terminal to ask; --yes approves all calls
    "#]]
    .assert_eq(&ended.stderr);
    let received = lines(&agent_folder.path("decision")).concat();
    assert!(received.contains(r#""behavior":"deny""#), "{received}");
    assert!(received.contains("no terminal to ask"), "{received}");

    let agent_folder = desk_of_a_program();
    let ended = agent_folder.clerk(&["--yes"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.stdout.contains("Listed."), "{ended:?}");
    let received = lines(&agent_folder.path("decision")).concat();
    assert!(received.contains(r#""behavior":"allow""#), "{received}");
}

/// Class: a process that outlives its parent. Without a terminal, SIGTERM ended the command by its default action, and the
/// program went on with its effects, unsupervised: in cron jobs, CI, `timeout 60 abide agent run …` and systemd.
#[test]
fn without_a_terminal_a_signal_ends_the_program_of_a_run() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let agent_folder = AgentFolder::new(ANSWERS);
        let script = "echo $$ > pid\necho '{\"kind\":\"it_is_up\"}'\nexec sleep 1000\n";
        fs::write(agent_folder.path("waits.sh"), script).unwrap();
        let folder = agent_folder.folder.path().display();
        let cli = format!(
            "cli: {{ command: [sh, waits.sh], working_dir: '{folder}', terminal: exit_zero }}\n"
        );
        fs::write(agent_folder.path("project/agents/clerk.yaml"), cli).unwrap();
        // The tests can run in the background of a shell, which ignores SIGINT, or under `nohup`.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,HUP").arg(abide().get_program());
        command.args(["--db", "agents.db", "agent", "run", "clerk", INPUT, "--json"]);
        command.args(["--agents", "project"]).current_dir(agent_folder.folder.path());
        let run = Process::spawn(&mut command);
        while !run.line().contains("it_is_up") {}
        run.signal(signal);
        let ended = run.ended();
        assert_eq!(ended.code, Some(130), "{signal:?}: {ended:?}");
        let pid = lines(&agent_folder.path("pid")).concat().parse().unwrap();
        let program = Pid::from_raw(pid).unwrap();
        assert!(test_kill_process(program).is_err(), "{signal:?}: the program is still there");
    }
}

/// The program gets the same signal, so that it can end as it does on a terminal, and no process of its group is left: neither one
/// that ignores the signal.
#[test]
fn the_program_of_a_run_gets_the_signal_and_its_group_ends() {
    let script = r#"
trap 'echo TERM > got; exit 1' TERM
trap 'echo HUP > got; exit 1' HUP
trap 'echo INT > got; exit 1' INT
exec 3>alive
sh -c 'trap "" TERM HUP INT; sleep 1000' &
echo begun >&3
while :; do sleep 0.05; done
"#;
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::INT, "INT")] {
        let agent_folder = AgentFolder::new(ANSWERS);
        fs::write(agent_folder.path("traps.sh"), script).unwrap();
        let alive = agent_folder.path("alive");
        mknodat(CWD, &alive, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let folder = agent_folder.folder.path().display();
        let cli = format!(
            "cli: {{ command: [sh, traps.sh], working_dir: '{folder}', terminal: exit_zero }}\n"
        );
        fs::write(agent_folder.path("project/agents/clerk.yaml"), cli).unwrap();
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,HUP").arg(abide().get_program());
        command.args(["--db", "agents.db", "agent", "run", "clerk", INPUT, "--json"]);
        command.args(["--agents", "project"]).current_dir(agent_folder.folder.path());
        let run = Process::spawn(&mut command);
        let mut pipe = BufReader::new(fs::File::open(&alive).unwrap());
        let mut line = String::new();
        pipe.read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        run.signal(signal);
        let ended = run.ended();
        assert_eq!(ended.code, Some(130), "{name}: {ended:?}");
        assert_eq!(lines(&agent_folder.path("got")), [name]);
        // Returns when no process has the pipe open any more.
        pipe.read_to_string(&mut line).unwrap();
    }
}

/// With a server, another client decides as the hint says, while the run is shown.
#[test]
fn a_programs_request_is_decided_elsewhere_while_its_run_is_shown() {
    let agent_folder = desk_of_a_program();
    let mut server = Server::start();
    let project = agent_folder.path("project");
    server.restart_with(&["--agents", project.to_str().unwrap()]);
    let url = server.url();
    let run =
        agent_folder.spawn(&["agent", "run", "clerk", INPUT, "--id", "order-7", "--url", &url]);
    assert_eq!(run.error_line(), r#"waits: Bash {"command":"ls"}"#);
    let hint = run.error_line();
    let decide =
        hint.strip_prefix("  hint: abide ").expect("the hint has the command for a decision");
    Process::spawn(abide().args(decide.split(' '))).ended().good();
    let ended = run.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.stdout.contains("Listed."), "{ended:?}");
    server.stop();
}

/// A server drives the run; a client that watches its tables receives the changes live.
#[test]
fn a_server_drives_a_run_and_a_watcher_sees_it_live() {
    let agent_folder = AgentFolder::new(ANSWERS);
    let mut server = Server::start();
    let project = agent_folder.path("project");
    server.restart_with(&["--agents", project.to_str().unwrap()]);
    let url = server.url();
    let watch = |sql: &str| Process::spawn(abide().args(["watch", "--json", "--url", &url, sql]));
    let events = watch("SELECT number, kind FROM run_events");
    let runs = watch("SELECT id, status FROM runs");
    for watched in [&events, &runs] {
        assert!(watched.line().contains("\"snapshot\""), "the snapshot is empty");
    }
    let args = ["agent", "run", "clerk", INPUT, "--id", "order-7", "--url", &url];
    let waits = agent_folder.run(&args);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    assert!(waits.stderr.contains(&format!("abide call --url {url} decide_approval")), "{waits:?}");
    assert_saw(&events, "\"interrupt\"");
    assert_saw(&runs, "\"waiting\"");
    server.run(&["call", "decide_approval", "call_id=order-7~2.1", "decision=approve"]).good();
    assert_saw(&events, "\"done\"");
    assert_saw(&runs, "\"done\"");
    let done = agent_folder.run(&args).good();
    assert!(done.contains("Order A-7 is paid back.\n"), "{done}");
    assert_eq!(agent_folder.ledger(), ["look A-7", "paid A-7"]);
    drop((events, runs));
    server.stop();
}

/// Reads a watcher's output until it contains this.
#[track_caller]
fn assert_saw(watched: &Process, what: &str) {
    while !watched.line().contains(what) {}
}

#[test]
fn lists_and_checks_definitions() {
    let agent_folder = AgentFolder::new(ANSWERS);
    let listed = agent_folder.run(&["agent", "list"]).good();
    assert!(listed.contains("clerk                 primary   Looks after orders\n"), "{listed}");
    let checked = agent_folder.run(&["agent", "check"]).good();
    assert_eq!(checked, "1 agent and 3 built in, no errors\n");
    fs::write(agent_folder.path("project/agents/broken.yaml"), "tools: [refnd]\n").unwrap();
    fs::write(agent_folder.path("project/agents/odd.yaml"), "middleware: [{ name: pi }]\n")
        .unwrap();
    fs::write(agent_folder.path("project/agents/typo.yaml"), "tool: [look]\n").unwrap();
    let checked = agent_folder.run(&["agent", "check", "--json"]);
    assert_eq!(checked.code, Some(1));
    let codes: Vec<(String, JsonValue)> = checked
        .stdout
        .lines()
        .map(|line| {
            let problem: JsonValue = serde_json::from_str(line).unwrap();
            let path = problem["path"].as_str().unwrap().to_owned();
            (path, problem["code"].clone())
        })
        .collect();
    let expected = [
        ("project/agents/broken.yaml", "unknown_tool"),
        ("project/agents/odd.yaml", "unknown_middleware"),
        ("project/agents/typo.yaml", "malformed_definition"),
    ];
    let expected: Vec<(String, JsonValue)> =
        expected.iter().map(|(path, code)| ((*path).to_owned(), json!(code))).collect();
    assert_eq!(codes, expected);
    let plain = agent_folder.run(&["agent", "check"]);
    assert!(
        plain.stdout.contains(
            "project/agents/broken.yaml:1:9: unknown tool refnd; available: look, refund"
        ),
        "{plain:?}"
    );
    let listed = agent_folder.run(&["agent", "list"]).good();
    assert!(
        listed.ends_with("3 problems in the folder: `abide agent check --agents project`\n"),
        "{listed}"
    );
}

/// Posted definitions are checked against the tools of the server's folder, and the server runs
/// them.
#[test]
fn a_posted_definition_is_checked_and_run() {
    let agent_folder = AgentFolder::new("answers: [{ text: Hello to you. }]");
    let mut server = Server::start();
    let project = agent_folder.path("project");
    server.restart_with(&["--agents", project.to_str().unwrap()]);
    let refused = http(&server, "POST", "/agents", &json!({"name": "new", "tools": ["refnd"]}));
    assert_eq!(refused.0, 422);
    let detail =
        "agent new is not valid: unknown_tool: unknown tool refnd; available: look, refund";
    assert_eq!(refused.1["detail"], detail);
    let middleware = json!({"name": "new", "middleware": [{"name": "pii", "kind": "email"}]});
    assert_eq!(http(&server, "POST", "/agents", &middleware).0, 422);
    let program = json!({"name": "new", "cli": {"command": ["sh", "-c", "id"]}});
    assert_eq!(http(&server, "POST", "/agents", &program).0, 422);
    let made = http(&server, "POST", "/agents", &json!({"name": "new", "tools": ["look"]}));
    assert_eq!((made.0, &made.1["revision"]), (201, &json!(1)));
    let begun = http(&server, "POST", "/v1/agents/new/runs", &json!({"input": "Hi.", "id": "r1"}));
    assert_eq!(begun.0, 201);
    let (status, rendered) = request(&server, "GET", "/v1/runs/r1/events", "");
    assert_eq!(status, 200);
    assert!(rendered.contains("event: done\n"), "it ends with the run: {rendered}");
    let run = http(&server, "GET", "/v1/runs/r1", &JsonValue::Null).1;
    assert_eq!(run["run"]["output"]["content"], "Hello to you.");
    server.stop();
}

/// A request and its response, which the server ends by closing the connection.
fn request(server: &Server, method: &str, path: &str, body: &str) -> (u16, String) {
    request_to(server.address(), method, path, body)
}

fn request_to(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    request_with(address, method, path, "", body)
}

/// A request with more headers, each with its end, and its response.
pub(crate) fn request_with(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    use std::io::{Read as _, Write as _};
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.0\r\nhost: {address}\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn http(server: &Server, method: &str, path: &str, body: &JsonValue) -> (u16, JsonValue) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, body) = request(server, method, path, &body);
    (status, serde_json::from_str(&body).unwrap())
}

/// A run is paused before it pays, exported, and continues in another file; there it is recorded and tested offline.
#[test]
fn a_run_is_paused_moved_recorded_and_tested() {
    let agent_folder = AgentFolder::new(ANSWERS);
    let clerk = "tools: [look, refund]\npause: [{ at: after_agent, tools: [refund] }]\n";
    fs::write(agent_folder.path("project/agents/clerk.yaml"), clerk).unwrap();
    let waits = agent_folder.clerk(&["--yes"]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    expect![[r#"
        waits: run order-7 is paused at after_agent
          hint: abide agent resume --db agents.db order-7
          then: abide agent run --yes --db agents.db --agents project --id order-7 clerk 'Pay order A-7 back.'
    "#]].assert_eq(&waits.stderr);

    let plain = |args: &[&str]| {
        let mut command = abide();
        command.current_dir(agent_folder.folder.path()).args(args);
        Process::spawn(&mut command).ended()
    };
    let exported = plain(&["--db", "agents.db", "agent", "export", "order-7"]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    fs::write(agent_folder.path("order-7.json"), &exported.stdout).unwrap();
    let here = agent_folder.clerk(&[]);
    assert!(here.stderr.contains("continues elsewhere   [moved]"), "{here:?}");
    let recorded = plain(&["--db", "agents.db", "agent", "record", "order-7"]);
    assert!(recorded.stderr.contains("run order-7 was moved to another file"), "{recorded:?}");

    let import = ["--db", "other.db", "agent", "import", "order-7.json"];
    let waits = agent_folder.run(&import);
    assert_eq!(waits.code, Some(5), "the payment needs the approval of this file: {waits:?}");
    expect![[r#"
        waits: awaiting_approval refund {"order":"A-7"}
          hint: abide call --db other.db decide_approval call_id=order-7~2.1 decision=approve
          then: abide agent import --db other.db --agents project order-7.json
    "#]]
    .assert_eq(&waits.stderr);
    let done = agent_folder.run(&[&import[..], &["--yes"]].concat()).good();
    assert!(done.contains("Order A-7 is paid back.\n"), "{done}");
    assert_eq!(agent_folder.ledger(), ["look A-7", "paid A-7"], "nothing has run twice");

    fs::create_dir(agent_folder.path("tests")).unwrap();
    let recorded = plain(&["--db", "other.db", "agent", "record", "order-7"]).good();
    fs::write(agent_folder.path("tests/refund.jsonl"), recorded).unwrap();
    let tested = agent_folder.run(&["agent", "test", "tests"]).good();
    assert_eq!(tested, "ok        refund\n1 recording: 1 same, 0 changed, 0 failed\n");
    let blocked = "tools: [look, refund]\nblocked_tools: [refund]\n";
    fs::write(agent_folder.path("project/agents/clerk.yaml"), blocked).unwrap();
    let tested = agent_folder.run(&["agent", "test", "tests"]);
    assert_eq!(tested.code, Some(1), "{tested:?}");
    expect![[r#"
        changed   refund
          result of refund (2.1)
            - done
            + error: calls of refund are blocked for this agent: continue without it
          call of refund (2.1)
            - needs an approval: approved
            + needs no approval
        1 recording: 0 same, 1 changed, 0 failed
    "#]]
    .assert_eq(&tested.stdout);
    agent_folder.run(&["agent", "test", "tests", "--accept"]).good();
    agent_folder.run(&["agent", "test", "tests"]).good();
    let none = agent_folder.run(&["agent", "test", "tests", "--only", "nothing"]);
    assert_eq!(none.code, Some(1), "{none:?}");
    assert_eq!(agent_folder.ledger().len(), 2, "a test runs no tool");

    let fork = ["--db", "other.db", "agent", "fork", "order-7", "--id", "again"];
    plain(&fork).good();
    let sql = "SELECT role, content FROM agent_state WHERE session_id = 'again'";
    let rows = plain(&["sql", "--json", "--db", "other.db", sql]).json();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 6, "{rows}");
}

/// A snapshot that is not one, or is too large, creates no file.
#[test]
fn a_wrong_snapshot_creates_no_file() {
    let agent_folder = AgentFolder::new(ANSWERS);
    fs::write(agent_folder.path("wrong.json"), "{\"format\": \"tar\"}").unwrap();
    for file in ["wrong.json", "absent.json"] {
        let refused = agent_folder.run(&["--db", "other.db", "agent", "import", file]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(!agent_folder.path("other.db").exists());
    }
}
