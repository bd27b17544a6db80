//! What a new user types by mistake: file names, ids and names that do not exist. Each is refused with what is wrong and
//! what helps. Some of them succeeded without effect, some created a file, and some were reported as damage.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use expect_test::{Expect, expect};
use tempfile::TempDir;

use crate::program::{Process, abide, run};
use crate::server::Server;

/// A folder with the empty database `a.db`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    typed(folder.path(), "init --db a.db");
    folder
}

/// A command line with its output, typed in a folder. Words are separated by spaces.
fn typed(folder: &Path, line: &str) -> String {
    let ended = Process::spawn(abide().current_dir(folder).args(line.split_whitespace())).ended();
    format!("$ abide {line}\n{}{}", ended.stdout, ended.stderr)
}

#[track_caller]
fn check(folder: &Path, lines: &[&str], expected: Expect) {
    expected.assert_eq(&lines.iter().map(|line| typed(folder, line)).collect::<String>());
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_replay_past_the_end_of_the_log_is_refused() {
    let folder = folder();
    typed(folder.path(), "call create_session agent=a --db a.db");
    check(
        folder.path(),
        &["replay a.db --to 2 --into then.db", "replay a.db --to -1 --into then.db"],
        expect![""],
    );
    assert!(!folder.path().join("then.db").exists());
}

/// A mistyped name made a new, empty file, in which nothing was found and which took what was written.
#[test]
fn commands_that_use_a_file_do_not_create_it() {
    let folder = folder();
    fs::write(folder.path().join("empty"), "").unwrap();
    fs::set_permissions(folder.path().join("empty"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = names(folder.path());
    let lines = [
        "call create_session agent=a",
        "sql SELECT",
        "explain SELECT",
        "events",
        "token create ann",
        "token list",
        "token revoke x",
        "identity create ann --role app",
        "identity list",
        "identity change ann",
        "identity disable ann",
        "identity enable ann",
        "role set r --may append_message",
        "role remove r",
        "backup copy.db",
    ];
    for line in lines {
        for (file, what) in
            [("typo.db", "does not exist"), ("empty", "is empty, not a database file")]
        {
            let told = typed(folder.path(), &format!("{line} --db {file}"));
            assert!(
                told.contains(&format!(
                    "error: {file} {what}   [not_found]\n  hint: check the path"
                )) || told.contains(&format!("error: {file} {what}   [bad_request]")),
                "{told}"
            );
        }
    }
    for line in ["verify typo.db", "replay typo.db --into copy.db"] {
        let told = typed(folder.path(), line);
        assert!(told.contains("error: typo.db does not exist   [not_found]"), "{told}");
    }
    assert_eq!(names(folder.path()), before);
    check(
        folder.path(),
        &["init --db a.db", "init --db b.db --json", "init --db nowhere/b.db"],
        expect![""],
    );
    let told = typed(folder.path(), "token create root --role admin --db c.db");
    assert!(told.contains("\ncreated c.db\n"), "{told}");
}

/// They were reported as damaged databases, with the advice to restore a backup.
#[test]
fn what_is_no_database_is_named() {
    let folder = folder();
    fs::create_dir(folder.path().join("folder")).unwrap();
    fs::write(folder.path().join("text"), "hello").unwrap();
    fs::write(folder.path().join("empty"), "").unwrap();
    check(
        folder.path(),
        &[
            "verify folder",
            "backup copy.db --db folder",
            "replay folder --into copy.db",
            "events --db folder",
            "verify text",
            "backup copy.db --db text",
            "verify empty",
            "verify /dev/null",
        ],
        expect![""],
    );
}

#[test]
fn names_that_do_not_exist_are_refused_with_the_nearest() {
    let folder = folder();
    check(
        folder.path(),
        &[
            "role set clerk --may apend_message --db a.db",
            "role set clerk --may append_message,pay --db a.db",
            "role set clerk --may append_message --db a.db --json",
            "role remove admin --db a.db",
            "role remove clrk --db a.db",
            "role remove nothing --db a.db",
            "role set app --may append_message --db a.db",
            "identity create ann --role clrk --db a.db",
            "token create ann --role admn --db a.db",
            "token create ann --db a.db",
            "token revoke x --db a.db",
            "call set_policy table=session role=app --db a.db",
            "call set_policy table=sessions role=ap --db a.db",
            "call set_policy table=sessions role=readers --db a.db",
            "call set_policy table=sessions role=app condition=random()>1 --db a.db",
            "call set_policy table=approvals role=app hidden=[\"x\"] --db a.db",
        ],
        expect![""],
    );
}

#[test]
fn what_is_empty_is_said_to_be() {
    let folder = folder();
    let told = typed(folder.path(), "role list --db a.db");
    assert!(
        told.ends_with("\nauditor     nothing; it only reads\n\nno roles of your own\n"),
        "{told}"
    );
    check(folder.path(), &["token list --db a.db", "identity list --db a.db"], expect![""]);
}

/// It was a raw log line, with the time and the module.
#[test]
fn a_warning_is_a_plain_line() {
    let folder = folder();
    let db = folder.path().join("a.db");
    fs::set_permissions(&db, fs::Permissions::from_mode(0o644)).unwrap();
    for line in ["verify a.db", "backup copy.db --db a.db", "role list --db a.db"] {
        let told = typed(folder.path(), line);
        let warning =
            "\nwarning: a.db has mode 644: other users can read it; run  chmod 600 a.db\n";
        assert!(told.ends_with(warning), "{told}");
        assert_eq!(told.matches("warning").count(), 1, "{told}");
    }
}

/// A caller with a scope names its sessions without the namespace, as it does in arguments of reducers.
#[test]
fn events_of_a_session_take_its_short_id() {
    let folder = folder();
    let path = folder.path().join("a.db");
    let db = path.to_str().unwrap();
    let token = ["token", "create", "acme", "--role", "app", "--scope", "tenant=acme", "--db", db];
    let acme = run(token).good().trim_end().to_owned();
    let server = Server::start_on(&path);
    let asked = |words: &[&str]| server.run(&[words, &["--token", &acme]].concat());
    asked(&["call", "create_session", "agent=a", "id=s1"]).good();
    for id in ["s1", "tenant=acme/s1"] {
        let told = asked(&["events", "--session", id]).good();
        assert!(told.contains("create_session") && told.lines().count() == 1, "{told}");
    }
    let ended = asked(&["events", "--session", "s"]);
    expect![""].assert_eq(&ended.stderr);
}

/// It was silent, as if nothing had changed.
#[test]
fn a_pipe_hears_of_a_lost_connection() {
    let mut server = Server::start();
    let url = server.url();
    let watched = [
        &["watch", "SELECT id FROM sessions", "--url", &url][..],
        &["events", "--follow", "--url", &url],
    ];
    let watched = watched.map(|words| Process::spawn(abide().args(words)));
    server.run(&["call", "create_session", "agent=a", "id=s1"]).good();
    for process in &watched {
        assert!(process.line().contains("s1"));
    }
    server.kill();
    for process in &watched {
        assert_eq!(
            process.error_line(),
            format!("warning: connection to {url} lost; reconnecting")
        );
    }
    server.start_again();
    for process in &watched {
        let mut line = process.error_line();
        while line.starts_with("warning: reconnect attempt ") {
            line = process.error_line();
        }
        assert_eq!(line, format!("reconnected to {url}"));
    }
}
