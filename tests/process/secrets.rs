//! Secrets of the process that starts tools. A tool program could read the provider's key in
//! `/proc/$PPID/environ`.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;

use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value as JsonValue, json};

use crate::program::{Process, abide, run};

/// An unprivileged user.
const NOBODY: u32 = 65_534;

/// Prints everything that a program can read of its parent, and its own environment.
const SPY: &str = "tr '\\0' ' ' < /proc/$PPID/environ; cat /proc/self/fd/[3-9]; echo own; env; \
                   head -c 1 /proc/$PPID/maps > /dev/null && echo open || echo closed";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_tool_cannot_read_secrets_of_its_parent() {
    let users: &[u32] = if is_root() { &[0, NOBODY] } else { &[1] };
    for user in users {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("agents");
        fs::create_dir_all(place.join("agents")).unwrap();
        let spy = json!({"name": "spy", "description": "Looks around.", "effect": "read_only",
            "stdin": "empty",
            "command": ["sh", "-c", SPY], "timeout_ms": 5000,
            "env": {"GIVEN": {"env": "MY_LOGIN"}}});
        let config = json!({"programs": [spy], "models": {"providers":
            [{"id": "script", "kind": "script", "script": "answers.json", "models": ["m"]}]}});
        let answers =
            json!({"answers": [{"calls": [{"name": "spy", "arguments": {}}]}, {"text": "Done."}]});
        fs::write(place.join("abide.yaml"), config.to_string()).unwrap();
        fs::write(place.join("answers.json"), answers.to_string()).unwrap();
        fs::write(place.join("agents/clerk.yaml"), "tools: [spy]\n").unwrap();
        // The program inherits it, as it inherits what a shell has left open.
        let left_open = memfd_create("left-open", MemfdFlags::empty()).unwrap();
        File::from(left_open.try_clone().unwrap()).write_all(b"s3cret-left-open").unwrap();
        let mut command = abide();
        if is_root() {
            for path in [folder.path(), &place, &place.join("agents")] {
                chown(path, Some(*user), Some(*user)).unwrap();
            }
            command.uid(*user).gid(*user);
        }
        command.current_dir(folder.path());
        command.args([
            "--db", "a.db", "agent", "run", "clerk", "Look.", "--id", "r1", "--agents", "agents",
        ]);
        command.env("OPENAI_API_KEY", "s3cret-key").env("MY_LOGIN", "s3cret-login");
        command.env("ABIDE_TOKEN", "s3cret-token").env("ODD", "s3cret-odd");
        let ended = Process::spawn(&mut command).ended();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let db = folder.path().join("a.db").display().to_string();
        let sql = "SELECT result, error FROM tool_calls";
        let rows: JsonValue = run(["sql", "--json", "--db", &db, sql]).json();
        let output = rows["rows"].to_string();
        assert!(output.contains("own"), "the tool ran: {output}");
        assert_eq!(
            output.matches("s3cret").count(),
            output.matches("GIVEN=s3cret-login").count(),
            "{output}"
        );
        assert!(
            output.contains("GIVEN=s3cret-login"),
            "it has the secrets configured for it: {output}"
        );
        // Root can read every process.
        assert!(*user == 0 || output.contains("closed"), "{output}");
    }
}

/// The token of the environment still works for the server, although it is removed from the
/// environment.
#[test]
fn a_server_that_starts_tools_keeps_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = abide();
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--agents", ".", "--db", "a.db"]);
    command.current_dir(folder.path()).env("ABIDE_TOKEN", "s3cret-token");
    let server = Process::spawn(&mut command);
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    let url = format!("http://{}", greeting["listening"].as_str().unwrap());
    let environment = fs::read(format!("/proc/{}/environ", server.id())).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&environment).contains("s3cret"), "of the process itself");
    let call = ["call", "create_session", "agent=a", "--url", &url];
    let without = run(call);
    assert!(without.stderr.contains("[unauthenticated]"), "{without:?}");
    run([&call[..], &["--token", "s3cret-token"]].concat()).good();
    server.terminate();
    assert_eq!(server.ended().code, Some(0));
}
