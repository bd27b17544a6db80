//! `abide init` and `abide dev`: an empty folder becomes a project, whose agent asks for an approval, and a server that
//! follows the files.

use std::fs;

use expect_test::expect;
use tempfile::TempDir;

use crate::program::{ExitedProcess, Process, abide};

/// The keys of providers decide on the model of a new project.
fn command(folder: &TempDir, line: &str) -> std::process::Command {
    let mut command = abide();
    command.current_dir(folder.path()).args(line.split(' '));
    for key in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"] {
        command.env_remove(key);
    }
    command
}

fn run(folder: &TempDir, line: &str) -> ExitedProcess {
    Process::spawn(&mut command(folder, line)).ended()
}

#[test]
fn an_empty_folder_becomes_a_project_that_asks_for_an_approval() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder, "init").good();
    assert!(run(&folder, "agent check").good().ends_with("no errors\n"));
    // Without a terminal the run waits; all commands have the same default database.
    let waits = run(&folder, "agent run default Hello --id r1");
    assert_eq!(waits.code, Some(5), "{waits:?}");
    let decide = waits.stderr.lines().find_map(|line| line.trim().strip_prefix("hint: abide "));
    let decide = decide.unwrap().replace('\'', "");
    assert!(decide.contains("--db .abide/agents.db"), "{decide}");
    assert!(!folder.path().join("notes.txt").exists());
    run(&folder, &decide).good();
    run(&folder, "agent run default Hello --id r1").good();
    assert_eq!(fs::read_to_string(folder.path().join("notes.txt")).unwrap(), "Abide was here.\n");
    run(&folder, "agent files r1").good();
    let recorded = run(&folder, "agent record r1").good();
    assert!(recorded.contains("note"), "{recorded}");
}

#[test]
fn a_project_is_made_in_another_folder_and_never_twice() {
    let folder = tempfile::tempdir().unwrap();
    let made = run(&folder, "init shop").good();
    expect![[r#"
        created  shop/.abide/agents/default.yaml
        created  shop/.abide/.gitignore
        created  shop/.abide/answers.yaml
        created  shop/.abide/abide.yaml

        next:
          cd shop
          abide agent chat default   # it asks before it writes a note
          abide dev                  # a server that follows changes of the files

        It answers from a script. For a real model, see the section models of shop/.abide/abide.yaml.
    "#]]
    .assert_eq(&made);
    let config = folder.path().join("shop/.abide/abide.yaml");
    let before = fs::read_to_string(&config).unwrap();
    let again = run(&folder, "init shop");
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("shop/.abide/abide.yaml exists already"), "{again:?}");
    assert_eq!(fs::read_to_string(&config).unwrap(), before);
    fs::write(folder.path().join("file"), "").unwrap();
    let file = run(&folder, "init file");
    assert!(file.code == Some(1) && file.stderr.contains("cannot be written"), "{file:?}");
    assert_eq!(fs::read_to_string(folder.path().join("file")).unwrap(), "");
    // The lines of the other models can be used.
    let lines = before.lines().skip_while(|line| !line.contains("provider: anthropic,"));
    let lines: Vec<&str> = lines.take(3).filter_map(|line| line.strip_prefix("# ")).collect();
    assert_eq!(lines.len(), 3, "{before}");
    let script = before.lines().skip_while(|line| *line != "models:").skip(1).take(3);
    let script = script.collect::<Vec<_>>().join("\n");
    fs::write(&config, before.replacen(&script, &lines.join("\n"), 1)).unwrap();
    let checked = run(&folder, "agent check --agents shop/.abide");
    assert!(checked.stdout.contains("ANTHROPIC_API_KEY"), "{checked:?}");
}

/// Nearly every first command was typed so, and `init` made a file.
#[test]
fn init_with_a_file_names_the_command_that_creates_it() {
    let folder = tempfile::tempdir().unwrap();
    for (line, file) in [
        ("init x.db", "x.db"),
        ("init --db x.db", "x.db"),
        ("init --db y", "y"),
        ("init a.SQLite", "a.SQLite"),
    ] {
        let refused = run(&folder, line);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let expected = format!(
            "error: `abide init` makes a project, not a database file   [usage]\n  \
             hint: `abide db create {file}` creates the file\n"
        );
        assert_eq!(refused.stderr, expected);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    run(&folder, "db create x.db").good();
    run(&folder, "events --db x.db").good();
}

#[test]
fn dev_serves_the_project_and_reads_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let missing = run(&folder, "dev --listen 127.0.0.1:0");
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("hint: `abide init` creates it"), "{missing:?}");
    run(&folder, "init").good();
    let dev = Process::spawn(&mut command(&folder, "dev --listen 127.0.0.1:0"));
    let mut greeting = String::new();
    while !greeting.contains("Ctrl-C stops") {
        greeting += &format!("{}\n", dev.line());
    }
    let (_, url) = greeting.split_once("http://").unwrap();
    let url = format!("http://{}", url.lines().next().unwrap());
    let greeting = greeting.replace(&url, "URL");
    for part in [
        "  folder   .abide, read again when a file changes\n",
        "  file     .abide/agents.db, ",
        "  access   no token yet: every user of this machine is an admin; ",
        "in another terminal:\n  abide agent chat ",
        "\n  abide watch --url URL ",
    ] {
        assert!(greeting.contains(part), "no {part:?} in {greeting}");
    }
    // The commands of agents find the server by the file that it has open.
    let waits = run(&folder, "agent run default Hello --id r1");
    assert_eq!(waits.code, Some(5), "{waits:?}");
    let decide = format!("--url {url} decide_approval");
    assert!(waits.stderr.contains(&decide), "{waits:?}");
    fs::write(folder.path().join(".abide/agents/clerk.yaml"), "system_prompt: Be brief.\n")
        .unwrap();
    let reloaded = dev.line();
    assert!(reloaded.starts_with("reloaded  agents:") && reloaded.contains("clerk"), "{reloaded}");
    dev.terminate();
    let ended = dev.ended();
    assert!(ended.code == Some(0) && ended.stdout.contains("stopped"), "{ended:?}");
}
