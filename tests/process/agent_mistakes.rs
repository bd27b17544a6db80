//! Mistakes of a new user in a folder of agents: each is reported before a run, or the run ends with the way out.

use std::fs;

use expect_test::expect;

use crate::agent::AgentFolder;
use crate::program::ExitedProcess;
use crate::project::Project;

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

/// A new agent with a mistake in its definition did not exist, and the hint was a query.
#[test]
fn a_run_of_a_broken_definition_is_explained() {
    let project = project("", "descriptio: x\n");
    for ended in [run(&project), project.run(&["agent", "chat", "clerk"])] {
        assert!(
            ended.stderr.contains("there is no agent clerk")
                && ended.stderr.contains("`abide agent check` shows why"),
            "{ended:?}"
        );
    }
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
                `abide agent init` creates it";
    for output in [project.run(&["agent", "check"]), run(&project)] {
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains(line), "{output:?}");
    }
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
