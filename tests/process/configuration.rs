//! Options from a file, from the environment and from credentials: their order, their mistakes, and hostile files.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

use expect_test::{Expect, expect};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::geteuid;
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::{ExitedProcess, Process, abide, left_out};
use crate::server::Server;

/// An unprivileged user.
const OTHER_USER: u32 = 65_534;

/// A folder in which commands run.
struct Folder {
    folder: TempDir,
}

impl Folder {
    fn new() -> Folder {
        Folder { folder: tempfile::tempdir().unwrap() }
    }

    fn with(text: &str) -> Folder {
        let folder = Folder::new();
        folder.write("abide.toml", text);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(0o600)).unwrap();
    }

    fn run(&self, line: &str) -> ExitedProcess {
        self.run_with(&[], line)
    }

    /// Runs a command with these variables.
    fn run_with(&self, variables: &[(&str, &str)], line: &str) -> ExitedProcess {
        let mut command = abide();
        command.current_dir(self.folder.path()).envs(variables.iter().copied());
        Process::spawn(command.args(line.split(' '))).ended()
    }

    /// The value and the source of a key, as `config show` has them.
    #[track_caller]
    fn shown(
        &self,
        variables: &[(&str, &str)],
        options: &str,
        key: &str,
    ) -> (JsonValue, JsonValue) {
        let line = format!("config show --json{options}");
        let shown = self.run_with(variables, &line).json();
        let settings = shown["settings"].as_array().unwrap();
        let found = settings.iter().find(|it| it["key"] == key).unwrap();
        (found["value"].clone(), found["source"].clone())
    }

    /// Checks the message of a command that is refused because of the configuration.
    #[track_caller]
    fn check(&self, line: &str, expected: Expect) {
        let ended = self.run(line);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert_eq!(ended.stdout, "", "{ended:?}");
        expected.assert_eq(&ended.stderr);
    }
}

/// The command line comes first, then the environment, then the file, then the default.
#[test]
fn the_first_place_that_has_a_value_decides() {
    let folder = Folder::with("db = \"file.db\"\n\n[serve]\nlisten = \"127.0.0.1:1\"\n");
    let variables = [("ABIDE_DB", "variable.db"), ("ABIDE_SERVE_LISTEN", "127.0.0.1:2")];
    assert_eq!(folder.shown(&[], "", "db"), (json!("file.db"), json!("abide.toml:1")));
    assert_eq!(folder.shown(&variables, "", "db"), (json!("variable.db"), json!("ABIDE_DB")));
    assert_eq!(
        folder.shown(&variables, " --db typed.db", "db"),
        (json!("typed.db"), json!("--db"))
    );
    assert_eq!(
        folder.shown(&[], "", "serve.listen"),
        (json!("127.0.0.1:1"), json!("abide.toml:4"))
    );
    assert_eq!(
        folder.shown(&variables, "", "serve.listen"),
        (json!("127.0.0.1:2"), json!("ABIDE_SERVE_LISTEN"))
    );
    assert_eq!(folder.shown(&[], "", "serve.buffer-limit"), (json!("256MB"), json!("default")));
    assert_eq!(folder.shown(&[], "", "serve.jwt"), (json!(null), json!(null)));
    // The commands use what is shown.
    for (variables, options, file, id) in [
        (&[][..], "", "file.db", "s1"),
        (&variables[..], "", "variable.db", "s2"),
        (&variables[..], " --db typed.db", "typed.db", "s3"),
    ] {
        folder.run(&format!("db create {file}")).good();
        let call = format!("call create_session agent=a id={id}{options}");
        folder.run_with(variables, &call).good();
        let listed = folder.run(&format!("events --db {file} --json")).good();
        assert!(listed.contains(&format!("\"{id}\"")), "{file}: {listed}");
    }
    // An empty variable is not set, and a flag is a boolean.
    assert_eq!(folder.shown(&[("ABIDE_DB", "")], "", "db").0, json!("file.db"));
    let listed = folder.run_with(&[("ABIDE_JSON", "yes")], "events");
    assert!(listed.good().starts_with('{'));
}

/// The check accepted a folder of agents with which the server did not start.
#[test]
fn the_folder_of_the_agents_is_checked() {
    let folder = Folder::with("[serve]\nagents = \"project\"\n");
    let missing = folder.run("config check");
    let line = "error: abide.toml:2: there is no folder project   [usage]\n";
    assert!(missing.code == Some(2) && missing.stderr.starts_with(line), "{missing:?}");
    fs::create_dir(folder.path("project")).unwrap();
    fs::write(folder.path("project/abide.yaml"), "tols: []\n").unwrap();
    let wrong = folder.run("config check");
    assert!(wrong.code == Some(2) && wrong.stderr.contains("unknown field `tols`"), "{wrong:?}");
    assert!(wrong.stderr.contains("`abide agent check --agents project`"), "{wrong:?}");
    fs::write(folder.path("project/abide.yaml"), "{}\n").unwrap();
    folder.run("config check").good();
    let variable = [("ABIDE_DEV_AGENTS", "nofolder")];
    let missing = folder.run_with(&variable, "config check");
    let line = "error: ABIDE_DEV_AGENTS: there is no folder nofolder   [usage]\n";
    assert!(missing.code == Some(2) && missing.stderr.starts_with(line), "{missing:?}");
}

/// A server, a process that starts programs and so hides its environment, gets its options from all places, too.
#[test]
fn a_server_is_configured_by_a_file_and_variables() {
    let folder = Folder::with(
        "db = \"data/abide.db\"\n[serve]\nretention-events = 7\nwebhook-allow-private = [\"a\", \"b:1\"]\n",
    );
    fs::create_dir(folder.path("data")).unwrap();
    folder.run("init").good();
    let mut command = abide();
    command.current_dir(folder.path("data")).env("ABIDE_CONFIG", folder.path("abide.toml"));
    command.env("ABIDE_SERVE_LISTEN", "127.0.0.1:0").env("ABIDE_SERVE_AGENTS", "../.abide");
    // A secret of a tool, so that the process executes itself again.
    command.env("SHOP_KEY", "s3cret").env("ABIDE_TOKEN", "t0ken");
    command.env("ABIDE_SERVE_DRAIM", "1s");
    let server = Process::spawn(command.args(["serve", "--json"]));
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    // A path of the file is relative to the file.
    assert_eq!(greeting["db"], json!(folder.path("data/abide.db")), "{greeting}");
    assert_eq!(greeting["requires_token"], true, "{greeting}");
    let agents = greeting["agents"]["agents"].as_array().unwrap();
    assert!(agents.contains(&json!("default")), "{greeting}");
    let kept = fs::read(format!("/proc/{}/environ", server.id())).unwrap_or_default();
    let kept = String::from_utf8_lossy(&kept).into_owned();
    assert!(!kept.contains("s3cret") && !kept.contains("t0ken"), "{kept}");
    let url = format!("http://{}", greeting["listening"].as_str().unwrap());
    // Without --db, commands reach the server that has the file.
    let sql = ["sql", "SELECT 1"];
    let mut command = abide();
    command.current_dir(folder.folder.path()).env("ABIDE_TOKEN", "t0ken").args(sql);
    Process::spawn(&mut command).ended().good();
    let typed = folder.run("sql SELECT --db data/abide.db");
    assert!(typed.stderr.contains(&format!("connect to {url}")), "{typed:?}");
    let refused = folder.run_with(&[("ABIDE_TOKEN", "wrong")], "token list");
    assert!(refused.stderr.contains("[unauthenticated]"), "{refused:?}");
    server.terminate();
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Regression: only `config check` told it. It is told once, although the process executes itself again.
    let warnings = ended.stderr.lines().filter(|line| line.contains("variable_ignored"));
    let warnings: Vec<JsonValue> =
        warnings.map(|line| serde_json::from_str(line).unwrap()).collect();
    let [warning] = &warnings[..] else { panic!("{ended:?}") };
    assert_eq!(warning["variable"], "ABIDE_SERVE_DRAIM", "{warning}");
    assert_eq!(warning["meant"], "ABIDE_SERVE_DRAIN", "{warning}");
}

#[test]
fn a_mistake_is_one_sentence_with_the_fix() {
    for (text, expected) in [
        (
            "[serve]\nlistn = \"127.0.0.1:0\"\n",
            expect![[r#"
                error: abide.toml:2: there is no key serve.listn   [usage]
                  hint: did you mean serve.listen?
            "#]],
        ),
        (
            "listen = \"127.0.0.1:0\"\n",
            expect![[r#"
                error: abide.toml:1: there is no key listen   [usage]
                  hint: did you mean dev.listen or serve.listen?
            "#]],
        ),
        (
            "[serve]\nretention-time = 7\n",
            expect![[r#"
                error: abide.toml:2: "7" is not a valid value of serve.retention-time: expected a number and a unit: 90s, 30m, 12h, 7d or 4w   [usage]
                  hint: correct the value
            "#]],
        ),
        (
            "[serve]\nretention-events = \"many\"\n",
            expect![[r#"
                error: abide.toml:2: "many" is not a valid value of serve.retention-events: expected a whole number   [usage]
                  hint: correct the value
            "#]],
        ),
        (
            "[serve]\nlisten = 7341\n",
            expect![[r#"
                error: abide.toml:2: "7341" is not a valid value of serve.listen: expected an address and a port: 127.0.0.1:7341   [usage]
                  hint: correct the value
            "#]],
        ),
        (
            "[serve]\nlisten = \"nonsense\"\n",
            expect![[r#"
                error: abide.toml:2: "nonsense" is not a valid value of serve.listen: expected an address and a port: 127.0.0.1:7341   [usage]
                  hint: correct the value
            "#]],
        ),
        (
            "db = [\"a.db\"]\n",
            expect![[r#"
                error: abide.toml:1: db has a value of another type: list   [usage]
                  hint: the value is a text in quotes, or a whole number
            "#]],
        ),
        (
            "db = \"a.db\"\ndb = \"b.db\"\n",
            expect![[r#"
                error: abide.toml:2: the file is not TOML: duplicate key   [usage]
                  hint: a line is  key = "text",  key = 1,  key = true,  key = ["a", "b"]  or  [command]
            "#]],
        ),
        (
            "token = \"s3cret\"\nx = 1\n",
            expect![[r#"
                error: abide.toml:1: token is a secret, and this file is not for secrets   [usage]
                  hint: name a file that has it: token-file = "PATH"; `abide config check` lists more mistakes
            "#]],
        ),
    ] {
        let folder = Folder::with(text);
        folder.check("events", expected);
        let checked = folder.run("config check");
        assert_eq!(checked.code, Some(2), "{checked:?}");
        assert!(!checked.stderr.contains("s3cret"), "{checked:?}");
        // What needs no configuration works.
        folder.run("--help").good();
        folder.run("completions bash").good();
        folder.run("init").good();
    }
    let folder = Folder::with("[agent.run]\nyes = true\n[open]\nloopback = false\n");
    expect![[r#"
        abide.toml  ·  2 options from the file, 0 options from variables  ·  no errors
    "#]]
    .assert_eq(&folder.run("config check").good());
    let variables = [("ABIDE_SERVE_RETENTION_TIME", "7"), ("ABIDE_SERVE_LISTN", "x")];
    let checked = folder.run_with(&variables, "config check");
    expect![[r#"
        warning: ABIDE_SERVE_LISTN is not the variable of an option; did you mean ABIDE_SERVE_LISTEN?
        error: ABIDE_SERVE_RETENTION_TIME: "7" is not a valid value: expected a number and a unit: 90s, 30m, 12h, 7d or 4w   [usage]
          hint: correct the value
    "#]]
    .assert_eq(&checked.stderr);
    // The table is missing: every command that has the option is named.
    let checked = folder.run_with(&[("ABIDE_LISTEN", "127.0.0.1:1")], "config check");
    expect![[r#"
        warning: ABIDE_LISTEN is not the variable of an option; did you mean ABIDE_DEV_LISTEN or ABIDE_SERVE_LISTEN?
    "#]]
    .assert_eq(&checked.stderr);
    // A command that has the option says the same.
    let served = folder.run_with(&variables, "serve");
    assert_eq!(served.code, Some(2), "{served:?}");
    let detail = "\"7\" is not a valid value of ABIDE_SERVE_RETENTION_TIME: expected a number";
    assert!(served.stderr.contains(detail), "{served:?}");
}

/// Class: a file that another user can make: no panic, no wait, no flood of output, no escape sequence.
#[test]
fn a_hostile_file_costs_a_short_message() {
    let folder = Folder::new();
    let check = |what: &str, expected: &str| {
        let ended = folder.run("events");
        assert_eq!(ended.code, Some(2), "{what}: {ended:?}");
        assert!(ended.stderr.contains(expected), "{what}: {ended:?}");
        assert!(ended.stderr.len() < 4_096 && !ended.stderr.contains('\u{1b}'), "{what}");
        folder.run("config check --json");
        let path = folder.path("abide.toml");
        if path.is_dir() { fs::remove_dir(path).unwrap() } else { fs::remove_file(path).unwrap() }
    };
    let texts: [(&str, Vec<u8>, &str); 9] = [
        ("huge", vec![b'#'; 70_000], "it is larger than 65536 bytes"),
        ("bytes", b"db = \"\xff\"".to_vec(), "it is not UTF-8"),
        ("a zero byte", b"db = \"a\0\"".to_vec(), "the file is not TOML"),
        ("JSON", b"{\"db\": \"a\"}".to_vec(), "the file is not TOML"),
        ("deep", [&b"db = "[..], &[b'['; 50_000]].concat(), "the file is not TOML"),
        ("an escape", b"\"\\u001b[2J\" = 1".to_vec(), "there is no key"),
        ("a long key", [&b"x = 1\n"[..], &[b'k'; 60_000], b" = 1"].concat(), "there is no key x"),
        ("tables of tables", b"[[serve]]\nlisten = \"x\"".to_vec(), "there is no key serve"),
        ("a date", b"db = 2026-11-30".to_vec(), "another type: datetime"),
    ];
    for (what, text, expected) in texts {
        folder.write("abide.toml", text);
        check(what, expected);
    }
    fs::create_dir(folder.path("abide.toml")).unwrap();
    check("a folder", "it is a folder, not a file");
    mkfifoat(CWD, folder.path("abide.toml"), Mode::RWXU).unwrap();
    check("a pipe", "it is not a regular file");
    symlink("/dev/zero", folder.path("abide.toml")).unwrap();
    check("a device", "it is not a regular file");
    symlink("nowhere", folder.path("abide.toml")).unwrap();
    check("a link without a target", "it does not exist");
    folder.write("abide.toml", "");
    fs::set_permissions(folder.path("abide.toml"), Permissions::from_mode(0o666)).unwrap();
    check("a file that others can write", "another user owns it or can write it");
    if geteuid().is_root() {
        folder.write("abide.toml", "");
        chown(folder.path("abide.toml"), Some(OTHER_USER), None).unwrap();
        check("a file of another user", "another user owns it or can write it");
    } else {
        left_out("a configuration of another user: only root can make one");
    }
    let missing = folder.run("events --config nowhere.toml");
    assert!(missing.stderr.contains("--config names the file"), "{missing:?}");
    folder.write("abide.toml", "x = 1");
    assert_eq!(folder.run("events --db nowhere.db").code, Some(2));
    assert_eq!(folder.run("events --db nowhere.db --config /dev/null").code, Some(1));
}

/// Another user made a folder `.abide` in `/tmp`, and its programs ran as the user who typed `abide agent run` there.
#[test]
fn a_folder_of_agents_that_others_can_write_is_used_only_if_it_is_named() {
    let folder = Folder::new();
    folder.run("init --provider script").good();
    let check = |what: &str| {
        for line in [
            "agent run default Hello",
            "agent chat default",
            "agent check",
            "agent list",
            "agent memory list",
            "agent test tests",
            "mcp login github",
            "dev --listen 127.0.0.1:0",
        ] {
            let refused = folder.run(line);
            assert_eq!(refused.code, Some(1), "{what}: {line}: {refused:?}");
            for part in ["another user owns .abide", "[denied]", "name it: --agents .abide"] {
                assert!(refused.stderr.contains(part), "{what}: {line}: {refused:?}");
            }
        }
        folder.run("agent check --agents .abide").good();
        folder.run_with(&[("ABIDE_AGENT_AGENTS", ".abide")], "agent check").good();
        folder.write("abide.toml", "[agent]\nagents = \".abide\"\n");
        folder.run("agent check").good();
        fs::remove_file(folder.path("abide.toml")).unwrap();
    };
    for name in [".abide", ".abide/abide.yaml", ".abide/agents"] {
        let path = folder.path(name);
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        check(name);
        fs::set_permissions(&path, before).unwrap();
    }
    assert!(!folder.path(".abide/agents.db").exists(), "it was created");
    if geteuid().is_root() {
        chown(folder.path(".abide"), Some(OTHER_USER), None).unwrap();
        check("a folder of another user");
        chown(folder.path(".abide"), Some(0), None).unwrap();
    } else {
        left_out("a folder of agents of another user: only root can make one");
    }
    folder.run("agent check").good();
}

#[test]
fn a_token_is_read_from_a_file_or_a_credential_and_never_shown() {
    let folder = Folder::new();
    fs::create_dir(folder.path("credentials")).unwrap();
    folder.write("credentials/abide-token", "of-systemd\n");
    folder.write("one", "of-one\n");
    folder.write("two", "of-two\r\n");
    let credentials = folder.path("credentials");
    let credentials = credentials.to_str().unwrap();
    let source = |variables: &[(&str, &str)], options: &str| {
        let ended = folder.run_with(variables, &format!("config show --json{options}"));
        let text = ended.stdout.clone() + &ended.stderr;
        for secret in ["of-systemd", "of-one", "of-two", "of-variable"] {
            assert!(!text.contains(secret), "{text}");
        }
        let shown = ended.json();
        let settings = shown["settings"].as_array().unwrap();
        let token = settings.iter().find(|it| it["key"] == "token").unwrap();
        assert!(token.get("value").is_none(), "{token}");
        assert_eq!(token["set"], token["source"] != JsonValue::Null, "{token}");
        token["source"].as_str().unwrap_or("unset").to_owned()
    };
    let of_systemd = ("CREDENTIALS_DIRECTORY", credentials);
    let of_file = ("ABIDE_TOKEN_FILE", "one");
    assert_eq!(source(&[], ""), "unset");
    assert_eq!(
        source(&[of_systemd], ""),
        format!("CREDENTIALS_DIRECTORY ({credentials}/abide-token)")
    );
    assert_eq!(source(&[of_systemd, of_file], ""), "ABIDE_TOKEN_FILE (one)");
    assert_eq!(source(&[of_systemd, ("ABIDE_TOKEN", "of-variable")], ""), "ABIDE_TOKEN");
    // An empty variable counts as not set.
    assert_eq!(source(&[of_file, ("ABIDE_TOKEN", "")], ""), "ABIDE_TOKEN_FILE (one)");
    for empty in ["ABIDE_TOKEN", "ABIDE_TOKEN_FILE"] {
        assert_eq!(source(&[of_systemd, (empty, "")], ""), source(&[of_systemd], ""), "{empty}");
    }
    assert_eq!(source(&[("CREDENTIALS_DIRECTORY", "")], ""), "unset");
    assert_eq!(source(&[of_file], " --token-file two"), "--token-file (two)");
    folder.write("abide.toml", "token-file = \"two\"\n");
    assert_eq!(source(&[of_systemd], ""), "token-file in abide.toml (two)");
    assert_eq!(source(&[of_file], ""), "ABIDE_TOKEN_FILE (one)");
    fs::remove_file(folder.path("abide.toml")).unwrap();

    // A server and its clients use it.
    let db = folder.path("abide.db");
    let options = ["--token-file".to_owned(), folder.path("one").to_str().unwrap().to_owned()];
    let server = Server::start_with(&db, &options);
    let url = server.url();
    for (variables, is_good) in [
        (&[of_file][..], true),
        (&[("ABIDE_TOKEN", "of-one")][..], true),
        (&[("ABIDE_TOKEN_FILE", "two")][..], false),
        (&[of_systemd][..], false),
        (&[][..], false),
    ] {
        let ended = folder.run_with(variables, &format!("token list --url {url}"));
        assert_eq!(ended.code == Some(0), is_good, "{variables:?}: {ended:?}");
    }

    let both = [of_file, ("ABIDE_TOKEN", "of-variable")];
    let refused = |variables: &[(&str, &str)], expected: &str| {
        let ended = folder.run_with(variables, &format!("token list --url {url}"));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{expected}: {ended:?}");
        assert!(!ended.stderr.contains("of-"), "{ended:?}");
    };
    refused(&both, "ABIDE_TOKEN and ABIDE_TOKEN_FILE both have a token");
    folder.write("empty", "\n");
    folder.write("lines", "of-a\nof-b\n");
    folder.write("bytes", b"\xff");
    mkfifoat(CWD, folder.path("pipe"), Mode::RWXU).unwrap();
    for (file, expected) in [
        ("nowhere", "the token cannot be read from nowhere: it does not exist"),
        (".", "it is a folder, not a file"),
        ("pipe", "it is not a regular file"),
        ("bytes", "it is not UTF-8"),
        ("empty", "empty has no token"),
        ("lines", "lines has more than one line"),
    ] {
        refused(&[("ABIDE_TOKEN_FILE", file)], expected);
        refused(&[("ABIDE_TOKEN_FILE", file)], "hint: ABIDE_TOKEN_FILE names the file");
    }
    // Regression: a folder of credentials that cannot be searched was one without a token. A file is refused for root, too.
    let unsearchable = [("CREDENTIALS_DIRECTORY", "one")];
    refused(&unsearchable, "the token cannot be read from one/abide-token");
    let ended = folder.run_with(&unsearchable, "serve --db unserved.db --listen 127.0.0.1:0");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(!folder.path("unserved.db").exists());
    for (options, expected) in [
        ("--token of-typed --token-file one", "--token and --token-file both have a token"),
        ("--token-file nowhere", "hint: --token-file names the file"),
    ] {
        let ended = folder.run(&format!("token list --url {url} {options}"));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{expected}: {ended:?}");
    }
    // A command on a file needs none.
    let nowhere = [("ABIDE_TOKEN_FILE", "nowhere")];
    folder.run_with(&nowhere, "db create a.db").good();
    folder.run_with(&nowhere, "events --db a.db").good();
}

/// Class: a folder of someone else in which a user runs a command. Its file could send the user's token anywhere.
#[test]
fn a_token_is_not_sent_to_an_address_of_a_file_that_was_only_found() {
    let folder = Folder::with("url = \"http://192.0.2.1:7341\"\n");
    let token = [("ABIDE_TOKEN", "s3cret")];
    let refused = folder.run_with(&token, "token list");
    expect![[r#"
        error: the token of ABIDE_TOKEN is not sent to http://192.0.2.1:7341, an address of abide.toml, which was only found in this folder   [usage]
          hint: if you trust the file, name it: --config abide.toml, or export ABIDE_CONFIG=abide.toml
    "#]]
    .assert_eq(&refused.stderr);
    folder.run_with(&token, "config show --config abide.toml").good();
    folder
        .run_with(&[("ABIDE_TOKEN", "s3cret"), ("ABIDE_URL", "http://192.0.2.1:1")], "config show")
        .good();
    // An address of this machine is no one else's.
    let server = Server::start();
    folder.write("abide.toml", format!("url = {:?}\n", server.url()));
    folder.run_with(&token, "events").good();
}

/// The address and the file can both have a value: the command line comes before the environment, that before the file.
#[test]
fn a_command_uses_the_file_or_the_server_that_is_named_nearer() {
    let server = Server::start();
    let url = server.url();
    let folder = Folder::new();
    folder.run("db create a.db").good();
    let calls = Cell::new(0);
    let check = |text: &str, variables: &[(&str, &str)], options: &str, is_server: bool| {
        folder.write("abide.toml", text);
        calls.set(calls.get() + 1);
        let id = format!("call-{}", calls.get());
        let call = format!("call create_session agent=a id={id}{options}");
        folder.run_with(variables, &call).good();
        let listed = server.run(&["events", "--json"]).good();
        let is_listed = listed.contains(&format!("\"{id}\""));
        assert_eq!(is_listed, is_server, "{text:?} {variables:?} {options:?}");
    };
    let of_url = format!("url = {url:?}\n");
    let typed_url = format!(" --url {url}");
    check("db = \"a.db\"\n", &[], "", false);
    check("db = \"a.db\"\n", &[("ABIDE_URL", url.as_str())], "", true);
    check("db = \"a.db\"\n", &[], &typed_url, true);
    check(&of_url, &[], "", true);
    check(&of_url, &[("ABIDE_DB", "a.db")], "", false);
    check(&of_url, &[], " --db a.db", false);
    // In the same place, a command that can use a server does.
    check(&format!("db = \"a.db\"\n{of_url}"), &[], "", true);
    assert_eq!(folder.run("backup copy.db").code, Some(0), "it needs the file");
    assert!(folder.path("copy.db").exists());
}

/// Compose sets a variable without a value to an empty text. An empty `ABIDE_CA` ended every command.
/// `config check` reported no mistake, and `serve` named another variable.
#[test]
fn a_variable_that_is_not_text_is_named() {
    let folder = Folder::new();
    let run = |variable: &str, line: &str| {
        let mut command = abide();
        command.current_dir(folder.folder.path()).args(line.split(' '));
        Process::spawn(command.env(variable, OsStr::from_bytes(b"\xff"))).ended()
    };
    for (variable, line) in [
        ("ABIDE_SERVE_LISTEN", "config check"),
        ("ABIDE_SERVE_LISTEN", "serve"),
        ("ABIDE_URL", "config check"),
        ("ABIDE_URL", "serve"),
        ("ABIDE_TOKEN", "events"),
    ] {
        let refused = run(variable, line);
        assert_eq!(refused.code, Some(2), "{variable}: {line}: {refused:?}");
        let expected = format!("error: {variable}: the value is not UTF-8   [usage]\n");
        assert!(refused.stderr.starts_with(&expected), "{variable}: {line}: {refused:?}");
    }
    // A path can have any bytes.
    run("ABIDE_SERVE_FIRST_TOKEN", "config check").good();
}

#[test]
fn an_empty_variable_is_not_set() {
    let folder = Folder::new();
    let variables = [
        "ABIDE_CA",
        "ABIDE_CLIENT_CERT",
        "ABIDE_CLIENT_KEY",
        "ABIDE_CONFIG",
        "ABIDE_DB",
        "ABIDE_JSON",
        "ABIDE_TOKEN",
        "ABIDE_URL",
    ]
    .map(|name| (name, ""));
    let without = folder.run("config show").good();
    assert_eq!(folder.run_with(&variables, "config show").good(), without);
    // Whether a server listens at the default address or not: the address is no mistake.
    let asked = folder.run_with(&variables, "sql x");
    assert_ne!(asked.code, Some(2), "{asked:?}");
}
