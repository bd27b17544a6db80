//! Typing errors of a new user: file names, ids and names that do not exist. Each is refused with the error and a
//! hint. Some of them succeeded without effect, some created a file, and some were reported as damage.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;

use expect_test::{Expect, expect};
use tempfile::TempDir;

use crate::program::{Process, abide, run};
use crate::server::Server;

/// A folder with the empty database `a.db`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    typed(folder.path(), "db create a.db");
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
        expect![[r#"
            $ abide replay a.db --to 2 --into then.db
            error: the log ends at event 1, before event 2   [not_found]
              hint: --to 1 or less; without --to all events are replayed
            $ abide replay a.db --to -1 --into then.db
            error: "-1" is not a valid value of --to <SEQ>: -1 is not in 0..9223372036854775807   [usage]
              hint: `abide replay --help` describes the options
        "#]],
    );
    assert!(!folder.path().join("then.db").exists());
}

/// A mistyped name created a new, empty file.
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
        "role set r --allow append_message",
        "role remove r",
        "backup copy.db",
        "mcp",
        "agent chat default --session s1",
    ];
    for line in lines {
        for (file, what) in
            [("typo.db", "does not exist"), ("empty", "is empty, not a database file")]
        {
            let output = typed(folder.path(), &format!("{line} --db {file}"));
            assert!(
                output.contains(&format!(
                    "error: {file} {what}   [not_found]\n  hint: check the path"
                )) || output.contains(&format!("error: {file} {what}   [bad_request]")),
                "{output}"
            );
        }
    }
    for line in ["verify typo.db", "replay typo.db --into copy.db"] {
        let output = typed(folder.path(), line);
        assert!(output.contains("error: typo.db does not exist   [not_found]"), "{output}");
    }
    assert_eq!(names(folder.path()), before);
    check(
        folder.path(),
        &["db create a.db", "db create b.db --json", "db create nowhere/b.db"],
        expect![[r#"
            $ abide db create a.db
            error: a.db exists already   [conflict]
              hint: name a file that does not exist
            $ abide db create b.db --json
            {"created":"b.db"}
            $ abide db create nowhere/b.db
            error: there is no folder nowhere   [not_found]
              hint: create it with `mkdir -p nowhere`
        "#]],
    );
    let output = typed(folder.path(), "token create root --role admin --db c.db");
    assert!(output.contains("\ncreated c.db\n"), "{output}");
}

/// A command that failed because of its other arguments had made the database and its lock.
#[test]
fn a_refused_command_leaves_no_file() {
    let folder = folder();
    let before = names(folder.path());
    check(
        folder.path(),
        &[
            "serve --agents nosuch --listen 127.0.0.1:0 --db b.db",
            "serve --jwt nosuch.json --listen 127.0.0.1:0 --db b.db",
            "mcp --agents nosuch --db a.db",
            "agent run default hi --db b.db",
            "agent chat default --db b.db",
            "sql SELECT --db a.db/b.db",
            "sql SELECT --db a.db --url http://127.0.0.1:9",
        ],
        expect![[r#"
            $ abide serve --agents nosuch --listen 127.0.0.1:0 --db b.db
            error: there is no folder nosuch   [not_found]
              hint: `abide agent init --agents nosuch` creates it; --agents names another one
            $ abide serve --jwt nosuch.json --listen 127.0.0.1:0 --db b.db
            error: nosuch.json: no such file or directory (os error 2)   [bad_arguments]
              hint: --jwt names a JSON file about the issuer; its field `jwks` is the path of the keys
            $ abide mcp --agents nosuch --db a.db
            error: there is no folder nosuch   [not_found]
              hint: `abide agent init --agents nosuch` creates it; --agents names another one
            $ abide agent run default hi --db b.db
            error: there is no folder .abide   [not_found]
              hint: `abide init` creates it; --agents names another one
            $ abide agent chat default --db b.db
            error: there is no folder .abide   [not_found]
              hint: `abide init` creates it; --agents names another one
            $ abide sql SELECT --db a.db/b.db
            error: a.db/b.db cannot be read: Not a directory (os error 20)   [bad_request]
              hint: check the path, and the permissions of its folders
            $ abide sql SELECT --db a.db --url http://127.0.0.1:9
            error: --url cannot be combined with --db   [usage]
              hint: `abide sql --help` describes the options
        "#]],
    );
    assert_eq!(names(folder.path()), before);
    assert!(typed(folder.path(), "help --help").contains("Exit codes:"));
}

/// The error named the copy that could not be opened, and not the folder.
#[test]
fn a_missing_folder_of_a_copy_is_named() {
    let folder = folder();
    check(
        folder.path(),
        &["backup nowhere/copy.db --db a.db", "replay a.db --into nowhere/then.db"],
        expect![[r#"
            $ abide backup nowhere/copy.db --db a.db
            error: there is no folder nowhere   [not_found]
              hint: create it with `mkdir -p nowhere`
            $ abide replay a.db --into nowhere/then.db
            error: there is no folder nowhere   [not_found]
              hint: create it with `mkdir -p nowhere`
        "#]],
    );
}

/// A file whose WAL was left did not exist, for all commands but `serve`.
#[test]
fn a_file_of_which_only_the_wal_is_left_is_lost() {
    let folder = folder();
    fs::write(folder.path().join("lost.db-wal"), "rows").unwrap();
    fs::write(folder.path().join("emptied.db"), "").unwrap();
    fs::write(folder.path().join("emptied.db-redo-1"), "rows").unwrap();
    let before = names(folder.path());
    for file in ["lost.db", "emptied.db"] {
        for line in [
            format!("sql SELECT --db {file}"),
            format!("call create_session agent=a --db {file}"),
            format!("serve --listen 127.0.0.1:0 --db {file}"),
            format!("verify {file}"),
            format!("replay {file} --into then.db"),
            format!("upgrade {file} --check"),
            format!("backup copy.db --db {file}"),
        ] {
            let output = typed(folder.path(), &line);
            let lost = format!(
                "error: {file} is missing or empty, but its -wal or -redo- files are there   [conflict]"
            );
            assert!(output.contains(&lost), "{output}");
        }
    }
    assert_eq!(names(folder.path()), before);
}

/// The error was that of the system, without the name of the lock file: "Is a directory".
#[test]
fn a_lock_file_of_another_kind_is_named() {
    for make in ["mkdir", "mkfifo"] {
        let folder = folder();
        let lock = folder.path().join("a.db-lock");
        fs::remove_file(&lock).unwrap();
        let made = Command::new(make).arg(&lock).status();
        assert!(made.is_ok_and(|status| status.success()), "{make} is here");
        check(
            folder.path(),
            &["call create_session agent=a --db a.db"],
            expect![[r#"
                $ abide call create_session agent=a --db a.db
                error: a.db cannot be opened: a.db-lock is not a regular file; if no process uses it, remove it   [bad_request]
                  hint: look at the files next to the database: who owns them, and whether a process has them open
            "#]],
        );
    }
}

/// It was reported as a damaged file.
#[test]
fn a_path_that_is_too_long_for_sqlite_is_refused() {
    let folder = folder();
    let long = ["d".repeat(200), "d".repeat(200), "d".repeat(200)].join("/");
    let deep = folder.path().join(&long);
    fs::create_dir_all(&deep).unwrap();
    fs::copy(folder.path().join("a.db"), deep.join("a.db")).unwrap();
    check(
        &deep,
        &["db create b.db", "verify a.db", "sql SELECT --db a.db"],
        expect![[r#"
            $ abide db create b.db
            error: the absolute path of b.db is too long for SQLite   [bad_request]
              hint: use a folder with a shorter path: SQLite opens at most 512 bytes, with the suffix of a file next to the database
            $ abide verify a.db
            error: the absolute path of a.db is too long for SQLite   [bad_request]
              hint: use a folder with a shorter path: SQLite opens at most 512 bytes, with the suffix of a file next to the database
            $ abide sql SELECT --db a.db
            error: the absolute path of a.db is too long for SQLite   [bad_request]
              hint: use a folder with a shorter path: SQLite opens at most 512 bytes, with the suffix of a file next to the database
        "#]],
    );
    assert_eq!(names(&deep), ["a.db"]);
    let copied = typed(folder.path(), &format!("backup {long}/copy.db --db a.db"));
    assert!(copied.contains("copy.db is too long for SQLite   [bad_request]"), "{copied}");
    assert_eq!(names(&deep), ["a.db"]);
}

/// The hint named the lock of a removed file as if it were the file.
#[test]
fn a_file_is_created_again_when_its_companions_are_removed() {
    let folder = folder();
    typed(folder.path(), "replay a.db --into then.db");
    let twice = typed(folder.path(), "replay a.db --into then.db");
    fs::remove_file(folder.path().join("then.db")).unwrap();
    fs::write(folder.path().join("then.db-lock"), "").unwrap();
    let left = typed(folder.path(), "replay a.db --into then.db");
    fs::remove_file(folder.path().join("then.db-lock")).unwrap();
    let again = typed(folder.path(), "replay a.db --into then.db");
    expect![[r#"
        $ abide replay a.db --into then.db
        error: then.db exists already   [conflict]
          hint: name a file that does not exist
        $ abide replay a.db --into then.db
        error: then.db cannot be created: files of an earlier database are there   [conflict]
          hint: name another file, or remove these first: then.db-lock
        $ abide replay a.db --into then.db
        0 events  ·  the same outcomes  ·  then.db
    "#]]
    .assert_eq(&(twice + &left + &again));
}

/// A hint for the command line names a command, and a misspelled table.
#[test]
fn hints_of_the_engine_name_commands() {
    let folder = folder();
    typed(folder.path(), "call put_prompt name=clerk text=Hello --db a.db");
    check(
        folder.path(),
        &[
            "sql SELECT(1)FROM(sesions) --db a.db",
            "sql SELECT(1)FROM(nothing_like_it) --db a.db",
            "call frobnicate --db a.db",
            "prompt show clerk@prod --db a.db",
            "prompt show none@prod --db a.db",
        ],
        expect![[r#"
            $ abide sql SELECT(1)FROM(sesions) --db a.db
            error: no such table: sesions   [bad_sql]
              hint: did you mean sessions?
            $ abide sql SELECT(1)FROM(nothing_like_it) --db a.db
            error: no such table: nothing_like_it   [bad_sql]
              hint: `abide sql --db a.db "SELECT name FROM sqlite_schema WHERE type = 'table'"` lists the tables
            $ abide call frobnicate --db a.db
            error: there is no reducer "frobnicate"   [unknown_reducer]
              hint: `abide call --db a.db` lists the reducers
            $ abide prompt show clerk@prod --db a.db
            error: the prompt clerk has no version or label prod   [not_found]
              hint: it has no labels; `abide prompt --db a.db label` sets one
            $ abide prompt show none@prod --db a.db
            error: there is no prompt none@prod   [not_found]
              hint: `abide prompt --db a.db list` shows the prompts
        "#]],
    );
}

/// A folder with a file of each kind that commands refuse, and the database `a.db` with a token.
fn folder_of_wrong_files() -> TempDir {
    let folder = folder();
    fs::create_dir(folder.path().join("folder")).unwrap();
    fs::write(folder.path().join("text"), "hello").unwrap();
    let newer = rusqlite::Connection::open(folder.path().join("newer.db")).unwrap();
    newer.execute_batch("CREATE TABLE t (x)").unwrap();
    newer.pragma_update(None, "application_id", abide_store::APPLICATION_ID).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    run(["token", "create", "root", "--role", "admin", "--db", "a.db"].map(|word| match word {
        "a.db" => folder.path().join("a.db").into_os_string(),
        word => word.into(),
    }))
    .good();
    folder
}

/// The mistakes that need no server.
const USUAL_MISTAKES: [&str; 13] = [
    "wacth x",
    "frobnicate",
    "events --flolow",
    "sql x --frobnicate",
    "serve --retention-time 7",
    "identity change ann --clear scop",
    "events --last --json",
    "sql",
    "verify typo.db",
    "verify folder",
    "verify text",
    "verify newer.db",
    "serve --db newer.db --listen 127.0.0.1:0",
];

/// Each has a code, a sentence and a hint. Invalid command lines had no code, and no hint, also with `--json`.
#[test]
fn usual_mistakes_have_a_code_a_sentence_and_a_hint() {
    let folder = folder_of_wrong_files();
    let server = Server::start_on(&folder.path().join("a.db"));
    let url = server.url();
    let taken = server.address().to_owned();
    let of_servers = [
        "sql x --url http://127.0.0.1:9".to_owned(),
        format!("sql x --url {url} --token wrong"),
        format!("serve --db b.db --listen {taken}"),
    ];
    let lines = USUAL_MISTAKES.into_iter().chain(of_servers.iter().map(String::as_str));
    let mut output = String::new();
    for line in lines {
        let line = typed(folder.path(), line);
        assert!(
            line.contains("--json") || (line.contains("   [") && line.contains("\n  hint: ")),
            "{line}"
        );
        output += &line;
    }
    let output = output.replace(&url, "URL").replace(&taken, "ADDRESS");
    expect![[r#"
        $ abide wacth x
        error: there is no command "wacth"   [usage]
          hint: did you mean watch?
        $ abide frobnicate
        error: there is no command "frobnicate"   [usage]
          hint: `abide --help` lists the commands and options
        $ abide events --flolow
        error: there is no option --flolow   [usage]
          hint: did you mean --follow?
        $ abide sql x --frobnicate
        error: there is no option --frobnicate   [usage]
          hint: `abide sql <SQL> [NAME=VALUE]...`; `abide sql --help` describes the options
        $ abide serve --retention-time 7
        error: "7" is not a valid value of --retention-time <TIME>: expected a number and a unit: 90s, 30m, 12h, 7d or 4w   [usage]
          hint: `abide serve --help` describes the options
        $ abide identity change ann --clear scop
        error: "scop" is not a valid value of --clear <FIELD>   [usage]
          hint: did you mean scope?
        $ abide events --last --json
        {"code":"usage","detail":"--last <N> has no value","hint":"`abide events --help` describes the options","retryable":false,"title":"Usage","type":"about:blank"}
        $ abide sql
        error: <SQL> is missing   [usage]
          hint: `abide sql <SQL> [NAME=VALUE]...`; `abide sql --help` describes the options
        $ abide verify typo.db
        error: typo.db does not exist   [not_found]
          hint: check the path
        $ abide verify folder
        error: folder is a folder, not a database file   [bad_request]
          hint: check the path
        $ abide verify text
        error: text is not an Abide database: it is not a SQLite file   [bad_request]
          hint: pass another file; this one was not changed
        $ abide verify newer.db
        error: newer.db was written by a newer Abide: its format has version 99, this one supports 5   [bad_request]
          hint: use the newer version of abide
        $ abide serve --db newer.db --listen 127.0.0.1:0
        error: newer.db was written by a newer Abide: its format has version 99, this one supports 5   [bad_request]
          hint: use the newer version of abide
        $ abide sql x --url http://127.0.0.1:9
        error: http://127.0.0.1:9 cannot be reached: connection refused (os error 111)   [unreachable]
          hint: start the server with `abide serve`, or check the address
        $ abide sql x --url URL --token wrong
        error: the token is unknown   [unauthenticated]
          hint: check it for missing characters; an admin can create another: `abide token --url URL create`
        $ abide serve --db b.db --listen ADDRESS
        error: ADDRESS is in use by another program   [conflict]
          hint: stop that program, or listen on a free port with --listen 127.0.0.1:0
    "#]].assert_eq(&output);
}

/// They were reported as damaged databases, with the advice to restore a backup.
#[test]
fn a_file_that_is_not_a_database_is_refused_with_its_name() {
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
        expect![[r#"
            $ abide verify folder
            error: folder is a folder, not a database file   [bad_request]
              hint: check the path
            $ abide backup copy.db --db folder
            error: folder is a folder, not a database file   [bad_request]
              hint: check the path
            $ abide replay folder --into copy.db
            error: folder is a folder, not a database file   [bad_request]
              hint: check the path
            $ abide events --db folder
            error: folder is a folder, not a database file   [bad_request]
              hint: check the path
            $ abide verify text
            error: text is not an Abide database: it is not a SQLite file   [bad_request]
              hint: pass another file; this one was not changed
            $ abide backup copy.db --db text
            error: text is not an Abide database: it is not a SQLite file   [bad_request]
              hint: pass another file; this one was not changed
            $ abide verify empty
            error: empty is empty, not a database file   [bad_request]
              hint: check the path
            $ abide verify /dev/null
            error: /dev/null is a device or a pipe, not a database file   [bad_request]
              hint: check the path
        "#]],
    );
}

#[test]
fn names_that_do_not_exist_are_refused_with_the_nearest() {
    let folder = folder();
    // The answer has a moment in it.
    typed(folder.path(), "role set clerk --allow append_message --db a.db");
    check(
        folder.path(),
        &[
            "role set clerk --allow apend_message --db a.db",
            "role set clerk --allow append_message,pay --db a.db",
            "role remove admin --db a.db",
            "role remove clrk --db a.db",
            "role remove nothing --db a.db",
            "role set app --allow append_message --db a.db",
            "identity create ann --role clrk --db a.db",
            "token create ann --role admn --db a.db",
            "token create ann --db a.db",
            "token revoke x --db a.db",
        ],
        expect![[r#"
            $ abide role set clerk --allow apend_message --db a.db
            error: there is no reducer "apend_message"   [unknown_reducer]
              hint: did you mean append_message?
            $ abide role set clerk --allow append_message,pay --db a.db
            error: there is no reducer "pay"   [unknown_reducer]
              hint: `abide call --db a.db` lists the reducers
            $ abide role remove admin --db a.db
            error: admin is a built-in role and cannot be changed   [conflict]
              hint: only roles of your own can be removed
            $ abide role remove clrk --db a.db
            error: there is no role clrk   [not_found]
              hint: did you mean clerk?
            $ abide role remove nothing --db a.db
            error: there is no role nothing   [not_found]
              hint: the roles are admin, app, agent, worker, supervisor, auditor, clerk; `abide role --db a.db set` creates others
            $ abide role set app --allow append_message --db a.db
            error: app is a built-in role and cannot be changed   [conflict]
              hint: choose another name for a role of your own
            $ abide identity create ann --role clrk --db a.db
            error: there is no role clrk   [not_found]
              hint: did you mean clerk?
            $ abide token create ann --role admn --db a.db
            error: there is no role admn   [not_found]
              hint: did you mean admin?
            $ abide token create ann --db a.db
            error: there is no identity ann   [not_found]
              hint: --role ROLE also creates the identity; `abide identity --db a.db list` lists them
            $ abide token revoke x --db a.db
            error: there is no token x   [not_found]
              hint: `abide token --db a.db list` lists them
        "#]],
    );
}

#[test]
fn unknown_names_in_policies_are_refused_with_the_nearest() {
    let folder = folder();
    // The answer has a moment in it.
    typed(folder.path(), "role set clerk --allow append_message --db a.db");
    check(
        folder.path(),
        &[
            "call set_policy table=session role=app --db a.db",
            "call set_policy table=sessions role=ap --db a.db",
            "call set_policy table=sessions role=readers --db a.db",
            "call set_policy table=sessions role=app condition=random()>1 --db a.db",
            "call set_policy table=approvals role=app hidden=[\"x\"] --db a.db",
        ],
        expect![[r#"
            $ abide call set_policy table=session role=app --db a.db
            error: there is no table session   [bad_arguments]
              hint: did you mean sessions?
            $ abide call set_policy table=sessions role=ap --db a.db
            error: there is no role ap   [not_found]
              hint: did you mean app?
            $ abide call set_policy table=sessions role=readers --db a.db
            error: there is no role readers   [not_found]
              hint: the roles are admin, app, agent, worker, supervisor, auditor, clerk; `abide role --db a.db set` creates others
            $ abide call set_policy table=sessions role=app condition=random()>1 --db a.db
            error: a policy's condition must be able to be part of a live query: random() is not deterministic   [unsupported_sql]
              hint: write a condition that depends only on stored rows and on the caller
            $ abide call set_policy table=approvals role=app hidden=["x"] --db a.db
            error: table approvals has no column x   [bad_arguments]
              hint: its columns are id, call_id, session_id, tool_name, status, arguments, arguments_hash, approved_arguments, prompt, defaults, required_capability, decided_by, comment, expires_at, created_at, updated_at, seq
        "#]],
    );
}

#[test]
fn empty_results_are_reported() {
    let folder = folder();
    let output = typed(folder.path(), "role list --db a.db");
    assert!(
        output.ends_with("\nauditor     nothing; it only reads\n\nno roles of your own\n"),
        "{output}"
    );
    check(
        folder.path(),
        &["token list --db a.db", "identity list --db a.db"],
        expect![[r#"
        $ abide token list --db a.db
        no tokens
        $ abide identity list --db a.db
        no identities
    "#]],
    );
}

/// A warning was a raw log line, with the time and the module. A command that opens its file twice printed it twice.
#[test]
fn a_warning_is_a_plain_line() {
    let folder = folder();
    let db = folder.path().join("a.db");
    fs::set_permissions(&db, fs::Permissions::from_mode(0o644)).unwrap();
    for line in [
        "verify a.db",
        "verify a.db --rows",
        "upgrade a.db",
        "replay a.db --into then.db",
        "backup copy.db --db a.db",
        "role list --db a.db",
    ] {
        let output = typed(folder.path(), line);
        let warning =
            "\nwarning: a.db has mode 644: other users can read it; run `chmod 600 a.db`\n";
        assert!(output.ends_with(warning), "{output}");
        assert_eq!(output.matches("warning").count(), 1, "{output}");
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
        let output = asked(&["events", "--session", id]).good();
        assert!(output.contains("create_session") && output.lines().count() == 1, "{output}");
    }
    let ended = asked(&["events", "--session", "s"]);
    expect![[r#"
        error: there is no session s   [not_found]
          hint: `abide sql --url URL 'SELECT id FROM sessions'` lists them
    "#]]
    .assert_eq(&ended.stderr.replace(&server.url(), "URL"));
}

/// A lost connection was silent, as if nothing had changed.
#[test]
fn a_lost_connection_is_reported_in_a_pipe() {
    let mut server = Server::start();
    let url = server.url();
    let watched = [
        &["watch", "SELECT id FROM sessions", "--url", &url][..],
        &["events", "--follow", "--url", &url],
    ]
    .map(|words| Process::spawn(abide().args(words)));
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
    // Of the next attempts, only some have a line.
    for process in &watched {
        let line = process.error_line();
        assert_eq!(line, format!("warning: no connection to {url} after 1 attempt"));
    }
    server.start_again();
    for process in &watched {
        let mut line = process.error_line();
        while line.starts_with(&format!("warning: no connection to {url} after ")) {
            line = process.error_line();
        }
        assert_eq!(line, format!("reconnected to {url}"));
    }
}

/// A second `--scope` with the same key replaced the first, and `backup` copied the local file, whatever `--url` named.
#[test]
fn options_that_contradict_each_other_are_refused() {
    let lines = [
        "token create x --role app --scope tenant=a --scope tenant=b --db a.db",
        "identity create x --role app --scope tenant=a --scope tenant=b --db a.db",
        "backup copy.db --url http://127.0.0.1:9",
        "backup copy.db --url http://127.0.0.1:7341",
        "verify a.db --url http://127.0.0.1:9",
        "replay a.db --into then.db --url http://127.0.0.1:9",
        "init --url http://127.0.0.1:9",
        "serve --url http://127.0.0.1:9",
        "verify a.db --db b.db",
        "upgrade a.db --url http://127.0.0.1:9",
        "upgrade a.db --db b.db",
        "open --db b.db",
        "verify --db b.db",
        "replay --db b.db",
        "upgrade --db=b.db --check",
    ];
    check(
        folder().path(),
        &lines,
        expect![[r#"
            $ abide token create x --role app --scope tenant=a --scope tenant=b --db a.db
            error: --scope names the key "tenant" twice   [usage]
              hint: a scope has one value for each key
            $ abide identity create x --role app --scope tenant=a --scope tenant=b --db a.db
            error: --scope names the key "tenant" twice   [usage]
              hint: a scope has one value for each key
            $ abide backup copy.db --url http://127.0.0.1:9
            error: `backup` cannot copy through a server   [usage]
              hint: name the file: `abide backup COPY --db FILE`
            $ abide backup copy.db --url http://127.0.0.1:7341
            error: `backup` cannot copy through a server   [usage]
              hint: name the file: `abide backup COPY --db FILE`
            $ abide verify a.db --url http://127.0.0.1:9
            error: the command works on a file, not on the server that --url names   [usage]
              hint: name the file: `abide verify FILE`
            $ abide replay a.db --into then.db --url http://127.0.0.1:9
            error: the command works on a file, not on the server that --url names   [usage]
              hint: name the file: `abide replay FILE --into COPY`
            $ abide init --url http://127.0.0.1:9
            error: the command works on a file, not on the server that --url names   [usage]
              hint: `abide init --help` describes the options
            $ abide serve --url http://127.0.0.1:9
            error: the command works on a file, not on the server that --url names   [usage]
              hint: --listen is the address at which the server listens
            $ abide verify a.db --db b.db
            error: the file is an argument of the command, not the option --db   [usage]
              hint: name the file: `abide verify FILE`
            $ abide upgrade a.db --url http://127.0.0.1:9
            error: the command works on a file, not on the server that --url names   [usage]
              hint: name the file: `abide upgrade FILE`
            $ abide upgrade a.db --db b.db
            error: the file is an argument of the command, not the option --db   [usage]
              hint: name the file: `abide upgrade FILE`
            $ abide open --db b.db
            error: the file is an argument of the command, not the option --db   [usage]
              hint: name the file: `abide open FILE`
            $ abide verify --db b.db
            error: the file is an argument of the command, not the option --db   [usage]
              hint: name the file: `abide verify FILE`
            $ abide replay --db b.db
            error: the file is an argument of the command, not the option --db   [usage]
              hint: name the file: `abide replay FILE --into COPY`
            $ abide upgrade --db=b.db --check
            error: the file is an argument of the command, not the option --db   [usage]
              hint: name the file: `abide upgrade FILE`
        "#]],
    );
}

/// The commands of hints used the default file or server.
#[test]
fn commands_in_hints_name_the_file() {
    let lines = [
        "prompt show nope --db a.db",
        "token revoke nope --db a.db",
        "identity disable nope --db a.db",
        "token create nope --db a.db",
    ];
    check(
        folder().path(),
        &lines,
        expect![[r#"
            $ abide prompt show nope --db a.db
            error: there is no prompt nope   [not_found]
              hint: `abide prompt --db a.db list` shows the prompts
            $ abide token revoke nope --db a.db
            error: there is no token nope   [not_found]
              hint: `abide token --db a.db list` lists them
            $ abide identity disable nope --db a.db
            error: there is no identity nope   [not_found]
              hint: `abide identity --db a.db list` lists them; `abide identity --db a.db create` creates one
            $ abide token create nope --db a.db
            error: there is no identity nope   [not_found]
              hint: --role ROLE also creates the identity; `abide identity --db a.db list` lists them
        "#]],
    );
}

/// A shell had taken the quotes, and the text was stored.
#[test]
fn a_value_that_begins_as_json_is_json() {
    let folder = folder();
    let call = |value: &str| {
        let args = ["call", "--db", "a.db", "create_session", "agent=a", value];
        let ended = Process::spawn(abide().current_dir(folder.path()).args(args)).ended();
        (ended.code, ended.stderr)
    };
    let (code, stderr) = call("metadata={order: 8812}");
    assert_eq!(code, Some(2), "{stderr}");
    expect![[r#"
        error: the value of metadata begins as JSON and is not: key must be a string at line 1 column 2   [usage]
          hint: quote it for the shell: metadata='{"a": 1}'; to send the text:  'metadata@={order: 8812}'
    "#]].assert_eq(&stderr);
    assert_eq!(call("title=[draft] a parcel").0, Some(2));
    assert_eq!(call("title@=[draft] a parcel").0, Some(0));
    assert_eq!(call("metadata={\"order\": 8812}").0, Some(0));
}

/// Hints named another table, or only a place.
#[test]
fn statements_of_other_programs_and_wrong_names_have_a_way_out() {
    let folder = folder();
    let output = [
        "PRAGMA table_info(sessions)",
        ".tables",
        ".schema tool_calls",
        "SHOW TABLES",
        "SELECT call_id, results FROM tool_calls",
    ]
    .map(|sql| {
        let args = ["sql", "--db", "a.db", sql];
        let ended = Process::spawn(abide().current_dir(folder.path()).args(args)).ended();
        format!("$ {sql}\n{}", ended.stderr)
    })
    .concat();
    expect![[r#"
        $ PRAGMA table_info(sessions)
        error: the statement is not read-only   [bad_sql]
          hint: `abide sql --db a.db "SELECT * FROM sessions LIMIT 1"` shows the columns
        $ .tables
        error: near ".": syntax error   [bad_sql]
          hint: `abide sql --db a.db "SELECT name FROM sqlite_schema WHERE type = 'table'"` lists the tables
        $ .schema tool_calls
        error: near ".": syntax error   [bad_sql]
          hint: `abide sql --db a.db "SELECT * FROM tool_calls LIMIT 1"` shows the columns
        $ SHOW TABLES
        error: near "SHOW": syntax error   [bad_sql]
          hint: `abide sql --db a.db "SELECT name FROM sqlite_schema WHERE type = 'table'"` lists the tables
        $ SELECT call_id, results FROM tool_calls
        error: no such column: results   [bad_sql]
          hint: at byte 16 of the statement; `abide sql --db a.db "SELECT * FROM tool_calls LIMIT 1"` shows the columns of a table; write text in single quotes
    "#]].assert_eq(&output);
}

/// `abide sql` said "did you mean", the others did not.
#[test]
fn every_command_with_a_statement_knows_the_nearest_table() {
    let server = Server::start();
    for command in ["sql", "watch", "explain"] {
        let ended = server.run(&[command, "SELECT * FROM sesions"]);
        assert!(ended.stderr.ends_with("hint: did you mean sessions?\n"), "{command}: {ended:?}");
    }
}

/// The second server for one file reported another program on its port.
#[test]
fn a_server_that_runs_already_is_named() {
    let server = Server::start();
    let db = server.db();
    let db = db.to_str().unwrap();
    let address = server.address();
    let ended = run(["serve", "--db", db, "--listen", address]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let text = ended.stderr.replace(db, "FILE").replace(address, "ADDRESS");
    expect![[r#"
        error: a server serves FILE already, at ADDRESS   [conflict]
          hint: use that server; to start it again, stop it first
    "#]]
    .assert_eq(&text);
}

/// It was "not reachable".
#[test]
fn another_program_on_the_port_is_named() {
    for response in
        ["HTTP/1.0 404 Not Found\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
            while request.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            stream.write_all(response.as_bytes()).unwrap();
        });
        let ended = run(["sql", "SELECT 1", "--url", &url]);
        answering.join().unwrap();
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(
            ended.stderr.starts_with(&format!("error: {url} is not an Abide server: ")),
            "{ended:?}"
        );
        assert!(
            ended.stderr.contains("hint: check the URL: another program listens there"),
            "{ended:?}"
        );
    }
    let ended = run(["sql", "SELECT 1", "--url", "http://127.0.0.1:9/v1"]);
    assert!(ended.stderr.contains("its path ends with /v1"), "{ended:?}");
}

/// Any token was accepted, silently.
#[test]
fn a_server_without_tokens_says_that_a_token_has_no_effect() {
    let server = Server::start();
    let sql = |args: &[&str]| server.run(&[&["sql", "SELECT 1"], args].concat());
    let ended = sql(&["--token", "abide_wrong_token"]);
    let text = ended.stderr.replace(&server.url(), "URL");
    assert_eq!(ended.code, Some(0), "{text}");
    expect![[r#"
        warning: URL checks no tokens, because it has none: the token has no effect
    "#]]
    .assert_eq(&text);
    assert_eq!(sql(&[]).stderr, "");
}

#[test]
fn the_nearest_command_has_common_letters() {
    let folder = folder();
    let output = typed(folder.path(), "agent lst");
    assert!(output.contains("hint: did you mean list?"), "{output}");
}

/// The hint was for authors of modules, and later the command `verify`, which had the same error and the same hint. Its
/// exit code was 1.
#[test]
fn a_file_whose_tables_were_changed_from_outside_fails_verification() {
    let folder = folder();
    let file = rusqlite::Connection::open(folder.path().join("a.db")).unwrap();
    file.execute_batch("DROP TRIGGER events_no_delete").unwrap();
    drop(file);
    check(
        folder.path(),
        &["sql x --db a.db"],
        expect![[r#"
        $ abide sql x --db a.db
        error: table events in a.db differs from its declaration: trigger events_no_delete is missing   [conflict]
          hint: the file was changed outside of Abide: restore a backup that verifies; a module whose tables have changed needs a new version and a migration step
    "#]],
    );
    for (change, expected) in [
        ("DROP TRIGGER events_no_delete", "table events in "),
        ("DROP INDEX approvals_status", "table approvals in "),
        ("DROP TABLE agent_state", "table agent_state in "),
        ("CREATE VIEW seen AS SELECT 1", "view seen in "),
    ] {
        let folder = self::folder();
        let file = rusqlite::Connection::open(folder.path().join("a.db")).unwrap();
        file.execute_batch(change).unwrap();
        drop(file);
        for args in [
            &["verify", "a.db"][..],
            &["replay", "a.db", "--into", "then.db"],
            &["backup", "copy.db", "--db", "a.db"],
        ] {
            let ended = Process::spawn(abide().current_dir(folder.path()).args(args)).ended();
            assert_eq!(ended.code, Some(4), "{args:?} after {change}: {ended:?}");
            assert!(ended.stderr.contains(expected), "{args:?} after {change}: {ended:?}");
            assert!(!ended.stderr.contains("`abide verify`"), "{args:?} after {change}: {ended:?}");
        }
    }
}

/// The fork was an empty session.
#[test]
fn a_fork_before_the_session_began_is_refused() {
    let folder = folder();
    for line in
        ["call create_session agent=a --db a.db", "call create_session agent=a id=s1 --db a.db"]
    {
        typed(folder.path(), line);
    }
    let lines = ["agent fork s1 --at 1 --db a.db", "agent fork nope --at 1 --db a.db"];
    check(
        folder.path(),
        &lines,
        expect![[r#"
            $ abide agent fork s1 --at 1 --db a.db
            error: session s1 begins at event 2, after event 1   [bad_arguments]
              hint: `abide events --db a.db --session s1` lists its events
            $ abide agent fork nope --at 1 --db a.db
            error: there is no session nope   [not_found]
              hint: `abide sql --db a.db 'SELECT id FROM sessions'` lists them
        "#]],
    );
    let forked = typed(folder.path(), "agent fork s1 --at 2 --db a.db");
    assert!(forked.contains("origin_id"), "{forked}");
}
