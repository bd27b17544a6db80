//! Mistakes of a new user in a folder of agents: each is reported before a run, or the run ends with the way out.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use expect_test::expect;
use serde_json::json;

use crate::agent::AgentFolder;
use crate::program::{ExitedProcess, Process, abide};
use crate::project::Project;
use crate::server::Server;

const MODELS: &str = "models:
  default: { provider: script }
  providers:
    - { id: script, kind: script, script: answers.yaml, models: [scripted]";

/// A project without tools, with this provider and this agent.
fn project(provider: &str, agent: &str) -> Project {
    let config = format!("{MODELS}{provider} }}\n");
    let project = Project::configured(&config, "answers:\n  - text: Hello.\n");
    fs::write(project.path(".abide/agents/clerk.yaml"), agent).unwrap();
    project
}

fn run(project: &Project) -> ExitedProcess {
    project.run_on_file(&["agent", "run", "clerk", "Hi"])
}

/// A cost limit that no price supports stopped each run, and `agent check` reported nothing.
#[test]
fn a_cost_limit_needs_a_price() {
    let agent = "limits: { cost_usd: 2 }\n";
    let without = project("", agent);
    let checked = without.run(&["agent", "check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let line = ".abide/agents/clerk.yaml:1:11: limits.cost_usd needs a price";
    assert!(
        checked.stdout.contains(line) && checked.stdout.contains("[price_unknown]"),
        "{checked:?}"
    );
    let hint = "hint: give the provider a `price` in abide.yaml";
    assert!(checked.stdout.contains(hint), "{checked:?}");
    let ended = run(&without);
    assert!(ended.stderr.contains("[price_unknown]") && ended.stderr.contains(hint), "{ended:?}");
    let with = project(", price: { input_per_million: 3, output_per_million: 15 }", agent);
    with.run(&["agent", "check"]).good();
    run(&with).good();
}

/// The limits that `abide init` suggests had `cost_usd`, and the model has no price.
#[test]
fn the_suggested_settings_of_a_new_agent_work() {
    let project = Project::init("answers:\n  - text: Hello.\n");
    let path = project.path(".abide/agents/default.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let settings = ["limits:", "profile:", "a2a_exposed:", "mcp_exposed:"];
    let all = settings.iter().fold(text, |text, setting| {
        assert!(text.contains(&format!("\n# {setting}")), "{setting}");
        text.replace(&format!("\n# {setting}"), &format!("\n{setting}"))
    });
    fs::write(path, all).unwrap();
    project.run(&["agent", "check"]).good();
    project.run_on_file(&["agent", "run", "default", "Hi"]).good();
}

/// The hint of a missing secret was the page about tools.
#[test]
fn a_missing_secret_of_a_tool_names_the_environment() {
    let tool = "http_tools:
  - name: shop
    description: Shows orders.
    url: https://shop.example.com/orders
    headers: { authorization: { env: NO_SUCH_TOKEN } }
";
    let project = Project::configured(&format!("{MODELS} }}\n{tool}"), "answers: []\n");
    let checked = project.run(&["agent", "check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked.stdout.contains("the environment variable NO_SUCH_TOKEN is not set"),
        "{checked:?}"
    );
    let hint = "hint: set the environment variable before you start the program";
    assert!(checked.stdout.contains(hint), "{checked:?}");
}

/// The check named the missing variables of tools, and not those of a program that is an agent.
#[test]
fn a_missing_variable_of_a_program_is_named() {
    let agent = "cli:\n  command: [sh, -c, 'echo hi']\n  terminal: exit_zero\n  \
                 env: { KEY: { env: NO_SUCH_KEY }, PLAIN: text }\n";
    let project = project("", agent);
    let checked = project.run(&["agent", "check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked.stdout.contains("the environment variable NO_SUCH_KEY is not set")
            && checked.stdout.contains("hint: set the environment variable before"),
        "{checked:?}"
    );
}

/// A new agent with a mistake in its definition did not exist, and the hint was a query.
#[test]
fn a_run_of_a_broken_definition_is_explained() {
    let project = project("", "descriptio: x\n");
    for ended in [run(&project), project.run(&["agent", "chat", "clerk"])] {
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(
            ended.stderr.contains(".abide/agents/clerk.yaml:1:1: unknown field `descriptio`")
                && ended.stderr.contains("`abide agent check` lists all errors"),
            "{ended:?}"
        );
        assert!(!project.path(".abide/agents.db").exists(), "it was created");
    }
    let ended = project.run_on_file(&["agent", "run", "other", "Hi"]);
    assert!(
        ended.stderr.contains("there is no agent other")
            && ended.stderr.contains("`abide agent check` shows why"),
        "{ended:?}"
    );
}

/// Every command printed the problems of all agents of the folder, so that the one that mattered was overlooked. The class: a
/// message about something that the command does not use.
#[test]
fn a_command_mentions_the_agents_that_it_concerns() {
    let project = project("", "subagents: [helper]\n");
    let write = |name: &str, text: &str| {
        fs::write(project.path(&format!(".abide/agents/{name}.yaml")), text).unwrap();
    };
    write("helper", "mode: subagent\ntools: [fly]\n");
    write("stranger", "tools: [swim]\n");
    let ended = project.run_on_file(&["agent", "run", "clerk", "Hi"]);
    assert!(ended.stderr.contains("helper.yaml:2:9: unknown tool fly"), "{ended:?}");
    assert!(!ended.stderr.contains("stranger"), "{ended:?}");
    let ended = project.run_on_file(&["agent", "run", "default", "Hi"]);
    assert!(!ended.stderr.contains("unknown tool"), "{ended:?}");
    let checked = project.run(&["agent", "check"]);
    assert!(checked.stdout.contains("stranger.yaml:1:9: unknown tool swim"), "{checked:?}");
}

const PAYS: &str = "
programs:
  - name: pay
    description: Pays.
    parameters: { type: object, properties: { order: { type: string } }, required: [order] }
    command: [sh, -c, 'echo paid', sh, '{order}']
    effect: at_most_once
";

const PAYMENT: &str = "
answers:
  - { text: I pay., calls: [{ name: pay, arguments: { order: A-7 } }] }
  - text: Paid.
";

/// A project whose agent can pay, with this definition.
fn payer(agent: &str) -> Project {
    let project = Project::configured(&format!("{MODELS} }}\n{PAYS}"), PAYMENT);
    define(&project, agent);
    project
}

fn define(project: &Project, agent: &str) {
    fs::write(project.path(".abide/agents/clerk.yaml"), agent).unwrap();
}

/// The name of the tool in a new rule was misspelled. The run used the former revision, which pays without an approval.
#[test]
fn a_definition_with_an_error_starts_no_run() {
    let project = payer("tools: [pay]\ninterrupt_on: { pay: true }\n");
    let begin = |id: &str| project.run_on_file(&["agent", "run", "clerk", "Hi", "--id", id]);
    assert_eq!(begin("r1").code, Some(5));
    define(&project, "tools: [pay]\ninterrupt_on: { pays: true }\n");
    let refused = begin("r2");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let error = "error: cannot start a run: the definition of agent clerk is invalid: \
                 .abide/agents/clerk.yaml:2:17: unknown tool pays; available: pay   [usage]\n  \
                 hint: did you mean pay?\n        `abide agent check` lists all errors; \
                 a former revision is kept for runs that are in progress\n";
    assert!(refused.stderr.ends_with(error), "{refused:?}");
    let chat = project.run(&["agent", "chat", "clerk"]);
    assert_eq!(chat.code, Some(2), "{chat:?}");
    assert_eq!(project.rows("SELECT id FROM runs"), json!([["r1"]]));

    let warning = "warning: run r1 continues with revision 1 of agent clerk: \
                   its current definition has an error\n";
    for continued in [begin("r1"), project.run(&["agent", "chat", "clerk", "--session", "r1"])] {
        assert_eq!(continued.code, Some(5), "{continued:?}");
        assert!(continued.stderr.contains(warning), "{continued:?}");
    }
    // The name of the agent is not always that of the file.
    fs::remove_file(project.path(".abide/agents/clerk.yaml")).unwrap();
    fs::write(project.path(".abide/agents/other.yaml"), "name: clerk\ntols: [pay]\n").unwrap();
    assert_eq!(begin("r2").code, Some(2));
    // An error that does not prevent a run ends it.
    fs::remove_file(project.path(".abide/agents/other.yaml")).unwrap();
    define(&project, "model: script/nope\n");
    let failed = begin("r2");
    assert!(failed.code == Some(1) && failed.stderr.contains("[unknown_model]"), "{failed:?}");
}

/// The same command repeated the error of the run as if it were current, with the hint to remove its cause.
#[test]
fn a_run_that_has_ended_is_not_tried_again() {
    let project = project("", "model: script/nope\n");
    let begin =
        |more: &[&str]| project.run_on_file(&[&["agent", "run", "clerk", "Hi"], more].concat());
    assert_eq!(begin(&["--id", "k1"]).code, Some(1));
    define(&project, "description: x\n");
    let former = begin(&["--id", "k1"]);
    assert_eq!(former.code, Some(1), "{former:?}");
    assert!(former.stderr.starts_with("error: run k1 has ended at 2"), "{former:?}");
    let hint = "[unknown_model]\n  hint: use another --id for a new run, \
                or --session k1 in place of --id to go on in the session\n";
    assert!(former.stderr.ends_with(hint), "{former:?}");
    begin(&["--session", "k1"]).good();
}

/// Class: a hint that leads to another refusal. The session had ended with its run, and the hint went on in it.
#[test]
fn a_hint_about_an_ended_session_names_a_new_one() {
    let project = project("", "model: script/nope\n");
    let begin = || project.run_on_file(&["agent", "run", "clerk", "Hi", "--id", "k1"]);
    assert_eq!(begin().code, Some(1));
    project.run_on_file(&["call", "cancel_session", "session_id=k1"]).good();
    let former = begin();
    let hint = "hint: use another --id for a new run in a new session: the session k1 has ended\n";
    assert!(former.stderr.ends_with(hint), "{former:?}");
}

/// A run was not found under its id if it is in a session with another id.
#[test]
fn a_run_of_another_session_continues_under_its_id() {
    let project = project("", "description: x\n");
    fs::write(project.path(".abide/answers.yaml"), "repeat: true\nanswers:\n  - text: Hello.\n")
        .unwrap();
    let begin =
        |more: &[&str]| project.run_on_file(&[&["agent", "run", "clerk", "Hi"], more].concat());
    begin(&["--id", "a"]).good();
    begin(&["--session", "a", "--id", "b"]).good();
    let again = begin(&["--id", "b"]).good();
    assert!(again.contains("Hello."), "{again:?}");
    assert_eq!(project.rows("SELECT count(*) FROM runs"), json!([[2]]));
}

/// The hint for a file in place of its folder was a command that fails with `File exists`.
#[test]
fn a_file_in_place_of_the_folder_of_agents_names_the_folder() {
    let project = project("", "description: x\n");
    let refused = project.run(&["serve", "--agents", ".abide/abide.yaml"]);
    let expected = "error: .abide/abide.yaml is a file, not a folder   [bad_arguments]\n  \
                    hint: --agents names the folder that it is in: --agents .abide\n";
    assert_eq!(refused.stderr, expected, "{refused:?}");
}

/// A copy without the WAL was an internal error: `no such table: meta`. Later `verify` named the mistake, and every other command
/// opened the copy as a new database: after that `verify` said that its chain is sound.
#[test]
fn a_copy_without_its_wal_is_incomplete() {
    let server = Server::start();
    server.run(&["call", "create_session", "agent=a"]).good();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.db");
    fs::copy(server.db(), &copy).unwrap();
    let verified = crate::program::run(["verify", copy.to_str().unwrap()]);
    assert!(verified.stderr.contains("is incomplete: it has no tables"), "{verified:?}");
    assert!(verified.stderr.contains("`abide backup") && verified.code == Some(1), "{verified:?}");
    let bytes = fs::read(&copy).unwrap();
    let path = copy.to_str().unwrap();
    let target = folder.path().join("backup.db");
    for command in [
        vec!["--db", path, "sql", "SELECT 1"],
        vec!["--db", path, "call", "create_session", "agent=a"],
        vec!["--db", path, "events"],
        vec!["serve", "--db", path, "--listen", "127.0.0.1:0"],
        vec!["backup", target.to_str().unwrap(), "--db", path],
    ] {
        let refused = crate::program::run(command.iter().copied());
        assert!(
            refused.stderr.contains("is incomplete: it has no tables"),
            "{command:?} {refused:?}"
        );
        assert_eq!(fs::read(&copy).unwrap(), bytes, "{command:?} changed the file");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside the copy");
}

/// `verify` and `backup` said `no such table: events`, as an internal error, and hinted at `verify`.
#[test]
fn a_database_whose_wal_is_missing_says_so() {
    let mut server = Server::start();
    server.run(&["call", "create_session", "agent=a"]).good();
    server.kill();
    let path = server.db();
    fs::remove_file(server.sibling("abide.db-wal")).unwrap();
    let path = path.to_str().unwrap();
    let target = server.sibling("backup.db");
    for command in [
        vec!["verify", path],
        vec!["backup", target.to_str().unwrap(), "--db", path],
        vec!["--db", path, "sql", "SELECT 1"],
    ] {
        let refused = crate::program::run(command.iter().copied());
        assert!(refused.stderr.contains("its -wal is missing"), "{command:?} {refused:?}");
        assert!(refused.stderr.contains("[conflict]"), "{command:?} {refused:?}");
    }
    assert!(!target.exists(), "no backup is left");
}

/// The command ended with the code of success, and the run was in progress.
#[test]
fn a_closed_output_is_no_success() {
    let project = project("", "description: x\n");
    let words = "word ".repeat(10_000);
    let answer = format!("token_ms: 10\nanswers:\n  - text: \"first\\n{words}\"\n");
    fs::write(project.path(".abide/answers.yaml"), answer).unwrap();
    let mut command = abide();
    command.current_dir(project.folder()).args(["--db", ".abide/agents.db"]);
    command.args(["agent", "run", "clerk", "Hi", "--id", "r1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((&*line, output.status.code()), ("first\n", Some(141)), "{output:?}");
    let hint = "continue:  abide agent run --db .abide/agents.db --id r1 clerk Hi\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), hint);
    assert_eq!(project.rows("SELECT status FROM runs"), json!([["running"]]));
}

/// On a full disk, the command that continues the run was not printed.
#[test]
fn an_output_that_cannot_be_written_names_the_command_that_continues() {
    let project = project("", "description: x\n");
    let mut command = abide();
    command.current_dir(project.folder()).args(["--db", ".abide/agents.db"]);
    command.args(["agent", "run", "clerk", "Hi", "--id", "r1"]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = Process::spawn_with_stdout(&mut command, full).ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let hint = "continue:  abide agent run --db .abide/agents.db --id r1 clerk Hi\n";
    assert!(ended.stderr.contains(hint) && ended.stderr.contains("[disk_full]"), "{ended:?}");
}

/// The answers were one line: `no ideano ideano idea`.
#[test]
fn each_attempt_at_a_structured_answer_is_a_line() {
    let agent = "response_format: { type: object, properties: { x: { type: integer } } }\n";
    let project = project("", agent);
    let answers = "answers: [{ text: no idea }, { text: still none }, { text: '{\"x\": 1}' }]\n";
    fs::write(project.path(".abide/answers.yaml"), answers).unwrap();
    let ended = run(&project);
    assert_eq!(ended.stdout, "no idea\nstill none\n{\"x\": 1}\n", "{ended:?}");
}

/// The hints named arguments of calls, and a decision on a call whose run has ended had none.
#[test]
fn hints_of_agent_commands_name_their_options() {
    let project = payer("tools: [pay]\ninterrupt_on: { pay: true }\n");
    let begin = |id: &str| project.run_on_file(&["agent", "run", "clerk", "Hi", "--id", id]);
    assert_eq!(begin("moved").code, Some(5));
    assert_eq!(begin("ended").code, Some(5));
    let snapshot = project.run_on_file(&["agent", "export", "moved"]).good();
    fs::write(project.path("moved.json"), snapshot).unwrap();
    project.run_on_file(&["agent", "abort", "ended", "--reason", "too late"]).good();
    let other = ["--db", "other.db", "agent", "import", "moved.json"];
    assert_eq!(project.run(&other).code, Some(5));
    let check_refused = |args: &[&str]| {
        let refused = project.run_on_file(args);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.stderr
    };
    let decide = |id: &str| {
        check_refused(&[
            "call",
            "decide_approval",
            &format!("call_id={id}~1.1"),
            "decision=approve",
        ])
    };
    let output = [
        project.run(&[&other[..], &["--id", "again"]].concat()).stderr,
        check_refused(&["agent", "export", "ended"]),
        check_refused(&["agent", "pause", "ended"]),
        decide("ended"),
    ]
    .concat();
    expect![[r#"
        error: this snapshot was imported as run moved   [conflict]
          hint: a snapshot continues once; export with `abide agent export --db ORIGIN --copy` to continue several times
        error: run ended is aborted; only a run that waits can be exported   [bad_transition]
          hint: `abide agent fork --db .abide/agents.db ended` copies the history of its session
        error: run ended is aborted and cannot be paused   [bad_transition]
          hint: `abide agent run --db .abide/agents.db --session ended clerk MESSAGE` starts another run in the session
        error: call ended~1.1 was cancelled, because run ended has ended (aborted): too late   [conflict]
          hint: start another run in the session; a new call asks for a new approval
    "#]].assert_eq(&output);
    let moved = decide("moved");
    assert!(
        moved.contains("call moved~1.1 was cancelled, because run moved has ended (aborted): "),
        "{moved}"
    );
    assert!(moved.contains("hint: decide in the file in which the run continues"), "{moved}");

    fs::remove_dir_all(project.path(".abide")).unwrap();
    let import = project.run(&["--db", "third.db", "agent", "import", "moved.json"]);
    assert!(import.stderr.contains("there is no folder .abide   [not_found]"), "{import:?}");
    assert!(!project.path("third.db").exists(), "it was created");
}

/// Nothing was printed.
#[test]
fn a_session_without_files_is_reported() {
    let project = project("", "description: x\n");
    project.run_on_file(&["agent", "run", "clerk", "Hi", "--id", "r1"]).good();
    let files = project.run(&["agent", "files", "r1"]);
    assert_eq!((files.code, &*files.stdout, &*files.stderr), (Some(0), "", "no files\n"));
}

/// The check reported nothing, and each process that drives runs created a database before it refused the name.
#[test]
fn a_reducer_for_mcp_that_does_not_exist_is_named() {
    let config = format!("{MODELS} }}\nmcp: {{ reducers: [create_session, apend_message] }}\n");
    let project = Project::configured(&config, "answers:\n  - text: Hello.\n");
    define(&project, "description: x\n");
    let checked = project.run(&["agent", "check"]);
    let line = ".abide/abide.yaml:5:35: mcp.reducers: there is no reducer apend_message   \
                [unknown_reducer]\n  hint: did you mean append_message?\n";
    assert!(checked.code == Some(1) && checked.stdout.contains(line), "{checked:?}");
    let serve = ["serve", "--agents", ".abide", "--listen", "127.0.0.1:0"];
    for refused in [run(&project), project.run(&serve)] {
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let hint = "there is no reducer apend_message   [bad_arguments]\n  \
                    hint: did you mean append_message?\n";
        assert!(refused.stderr.contains(hint), "{refused:?}");
    }
    assert!(!project.path(".abide/agents.db").exists(), "it was created");
}

/// A model that was written with its provider had no place.
#[test]
fn an_unknown_model_has_a_place() {
    let checked = project("", "model: script/scripte\n").run(&["agent", "check"]);
    let line = ".abide/agents/clerk.yaml:1:15: no enabled provider has the model `scripte`";
    assert!(checked.stdout.contains(line), "{checked:?}");
}

/// `*` was an unknown tool, also next to any other mistake.
#[test]
fn all_tools_can_be_none() {
    let project = project("", "tools: [\"*\"]\n");
    let checked = project.run(&["agent", "check"]);
    assert!(
        checked.stderr.contains("note: there are no tools, so `*` in tools of clerk"),
        "{checked:?}"
    );
    checked.good();
    run(&project).good();
}

/// The hint of a missing key file was about the environment, and a run without a key had none.
#[test]
fn a_missing_key_has_the_hint_of_its_place() {
    for (place, hint) in [
        ("key_env: NO_SUCH_KEY", "set the environment variable before you start the program"),
        ("key_file: gone.key", "create the file with the key, or correct key_file in abide.yaml"),
    ] {
        let config = format!(
            "models:\n  default: {{ provider: far, model: m }}\n  providers:\n    - {{ id: far, kind: openai, {place} }}\n"
        );
        let project = Project::configured(&config, "");
        fs::write(project.path(".abide/agents/clerk.yaml"), "description: x\n").unwrap();
        for ended in [project.run(&["agent", "check"]), run(&project)] {
            let text = format!("{}{}", ended.stdout, ended.stderr);
            assert!(text.contains("key_missing") && text.contains(hint), "{text}");
        }
        assert!(!project.path(".abide/agents.db").exists(), "a run that cannot start created it");
        // The run of a file that exists is recorded, with its reason.
        project.run(&["db", "create", ".abide/agents.db"]).good();
        let failed = run(&project);
        assert!(failed.stderr.contains("[key_missing]"), "{failed:?}");
        assert_eq!(project.rows("SELECT error_code FROM runs"), json!([["key_missing"]]));
    }
}

#[test]
fn a_script_that_has_ended_names_repeat() {
    let project = project("", "description: x\n");
    let first = project.run_on_file(&["agent", "run", "clerk", "Hi", "--id", "r1"]);
    first.good();
    let ended = project.run_on_file(&["agent", "run", "clerk", "Hi again", "--session", "r1"]);
    assert!(ended.stderr.contains("the script has 1 answer, but number 2"), "{ended:?}");
    assert!(ended.stderr.contains("set `repeat: true`"), "{ended:?}");
}

/// The names of library types, and a contradiction without a place.
#[test]
fn numbers_of_a_definition_are_explained() {
    let text = |agent: &str| {
        let checked = project("", agent).run(&["agent", "check"]);
        assert_eq!(checked.code, Some(1), "{checked:?}");
        checked.stdout
    };
    let wrong = text("limits: { tool_calls: many }\n");
    assert!(wrong.contains("expected an integer") && !wrong.contains("i64"), "{wrong}");
    let wrong = text("profile: { base: balanced, context: { compact_above_tokens: 5000 } }\n");
    assert!(wrong.contains("clerk.yaml:1:28: profile.context."), "{wrong}");
    assert!(wrong.contains("docs/agent-context.md"), "{wrong}");
}

/// The server suggested a run of the first agent, which could be a subagent.
#[test]
fn the_greeting_of_a_server_names_an_agent_that_a_user_can_start() {
    let project = project("", "description: x\n");
    fs::write(project.path(".abide/agents/billing.yaml"), "mode: subagent\n").unwrap();
    let args = ["serve", "--agents", ".abide", "--listen", "127.0.0.1:0"];
    let server = project.spawn(&args);
    let then = loop {
        let line = server.line();
        if line.trim_start().starts_with("then") {
            break line;
        }
    };
    assert!(then.contains(" clerk \"Hello\""), "{then}");
    server.terminate();
    assert_eq!(server.ended().code, Some(0));
}

/// The rule was accepted, and the run did not pause.
#[test]
fn a_pause_rule_names_a_tool_of_the_agent() {
    let agent = "pause: [{ at: after_agent, tools: [refnd] }]\n";
    let checked = project("", agent).run(&["agent", "check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.stdout.contains("unknown tool refnd"), "{checked:?}");
    let of_runtime = "pause: [{ at: after_tools, tools: [manage_todo_list] }]\n";
    let checked = project("", of_runtime).run(&["agent", "check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

/// The server started without models, on another file than the one of the folder.
#[test]
fn a_server_for_agents_needs_their_folder() {
    let project = project("", "description: x\n");
    fs::remove_dir_all(project.path(".abide")).unwrap();
    let refused = project.run(&["serve", "--agents", ".abide", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("there is no folder .abide   [not_found]"), "{refused:?}");
}

/// Only its consequences were reported: models and tools that are not available.
#[test]
fn a_folder_without_a_configuration_is_reported() {
    let project = project("", "tools: [refnd]\n");
    fs::remove_file(project.path(".abide/abide.yaml")).unwrap();
    let line = ".abide/abide.yaml does not exist, so there are no models and no tools: \
                `abide init` creates it";
    for (output, code) in [(project.run(&["agent", "check"]), 1), (run(&project), 2)] {
        assert_eq!(output.code, Some(code), "{output:?}");
        assert!(output.stderr.contains(line), "{output:?}");
    }
    // A file with the other usual name was ignored without a word.
    fs::write(project.path(".abide/abide.yml"), "{}\n").unwrap();
    let line = ".abide/abide.yaml does not exist, so there are no models and no tools: \
                .abide/abide.yml is not read, rename it to abide.yaml";
    let output = project.run(&["agent", "check"]);
    assert!(output.stderr.contains(line), "{output:?}");
}

/// Only the first of several calls was named.
#[test]
fn every_call_that_waits_is_named_with_its_command() {
    let agent_folder = AgentFolder::new(
        "
answers:
  - { text: Both., calls: [{ name: refund, arguments: { order: A-7 } },
      { name: refund, arguments: { order: A-8 } }] }
",
    );
    let waits = agent_folder.clerk(&[]);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    expect![[r#"
        waits: awaiting_approval refund {"order":"A-7"}
          | awaiting_approval refund {"order":"A-8"}
          hint: abide call --db agents.db decide_approval call_id=order-7~1.1 decision=approve
          and:  abide call --db agents.db decide_approval call_id=order-7~1.2 decision=approve
          then: abide agent run --db agents.db --agents project --id order-7 clerk 'Pay order A-7 back.'
    "#]].assert_eq(&waits.stderr);
}
