//! Everything that a command starts ends with it: background processes, sessions of their own, and commands whose server
//! is killed. A named pipe shows when no process holds it any more.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

use abide_tools::{Invocation, ToolContext};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use crate::{Home, backends};

/// Leaves processes behind in three ways: in the background, in a new session, and as an orphan of it.
const LEAVES: &str = "(exec sleep 1000) 3>alive & setsid sh -c '(setsid sleep 1000 &) ; \
                      sleep 1000' \
                      3>alive & \
                      exec 3>alive; echo begin >&3; ";

fn pipe(home: &Home) -> std::path::PathBuf {
    let path = home.path("project/alive");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
    path
}

/// Reads a pipe until no process has it open. Returns whether the command had begun.
fn until_released(path: &Path) -> String {
    let mut text = String::new();
    let mut pipe = BufReader::new(File::open(path).expect("the pipe can be opened"));
    pipe.read_to_string(&mut text).expect("the pipe can be read");
    text
}

#[tokio::test]
async fn background_processes_end_with_the_command() {
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        let path = pipe(&home);
        let reader = std::thread::spawn(move || until_released(&path));
        let outcome = home.sh(&format!("{LEAVES} exit 3")).await;
        assert_eq!(outcome.exit_code, 3, "{backend}: {}", outcome.text);
        assert_eq!(reader.join().expect("the reader ends"), "begin\n", "{backend}");
    }
}

#[tokio::test]
async fn a_command_that_ignores_signals_ends_at_its_time_limit() {
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        let path = pipe(&home);
        let reader = std::thread::spawn(move || until_released(&path));
        let command = format!("trap '' TERM INT HUP; echo out; {LEAVES} while :; do sleep 1; done");
        let arguments = json!({"command": command, "timeout_seconds": 1});
        let outcome = home.call("execute", arguments).await;
        assert_eq!(outcome.failure, None, "{backend}");
        assert_eq!(outcome.text, "out\nthe command was stopped after 1 s", "{backend}");
        assert_eq!(outcome.content["stopped"], true, "{backend}");
        assert_eq!(reader.join().expect("the reader ends"), "begin\n", "{backend}");
    }
}

#[tokio::test]
async fn a_dropped_call_ends_its_processes() {
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        let path = pipe(&home);
        let execute = home.tools.get("execute").expect("it exists");
        let arguments = json!({"command": format!("{LEAVES} sleep 1000")});
        let call = Invocation::new("call-1", arguments, ToolContext::default());
        let call = tokio::spawn(execute.run(call));
        let abort = call.abort_handle();
        let reader = std::thread::spawn(move || {
            let mut reader = BufReader::new(File::open(path).expect("the pipe can be opened"));
            let mut line = String::new();
            reader.read_line(&mut line).expect("the command begins");
            abort.abort();
            reader.read_to_string(&mut line).expect("the pipe can be read");
        });
        assert!(call.await.expect_err("it is dropped").is_cancelled());
        reader.join().expect("no process is left");
    }
}

/// Regression: a program of the server survived `kill -9` of the server.
#[test]
fn a_killed_server_leaves_no_process() {
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        let path = pipe(&home);
        let mut server = Command::new(env!("CARGO_BIN_EXE_abide-sandbox-exec"))
            .args(["run", &home.path("project").display().to_string(), backend.as_str()])
            .arg(format!("{LEAVES} sleep 1000"))
            .stdout(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut reader = BufReader::new(File::open(path).expect("the pipe can be opened"));
        let mut line = String::new();
        reader.read_line(&mut line).expect("the command begins");
        server.kill().expect("SIGKILL");
        server.wait().expect("it has ended");
        // Returns when no process holds the pipe.
        reader.read_to_string(&mut line).expect("the pipe can be read");
        assert_eq!(line, "begin\n", "{backend}");
    }
}

/// The kernel exempts root from `RLIMIT_NPROC`, so the supervisor counts, too. The bombs of the test have a last
/// generation, so that a defect does not stop the machine; no process ends by itself.
#[tokio::test]
async fn a_fork_bomb_is_stopped() {
    let same_group = "bomb() { if [ $1 -lt 7 ]; then bomb $(($1 + 1)) & bomb $(($1 + 1)) & fi; \
                      sleep 1000 & wait; }; bomb 0";
    let own_sessions = "cat > bomb <<'END'\nif [ $1 -lt 7 ]; then setsid sh bomb $(($1 + 1)) & \
                        setsid sh bomb $(($1 + 1)) & fi; sleep 1000 & wait\nEND\nsh bomb 0";
    for backend in backends() {
        for bomb in [same_group, own_sessions] {
            let home = Home::with(&json!({"backend": backend, "limits": {"processes": 40}}));
            let path = pipe(&home);
            let reader = std::thread::spawn(move || until_released(&path));
            let outcome = home.sh(&format!("exec 3>alive; echo begin >&3; {bomb}")).await;
            let stopped = "the command was stopped: it had more than 40 processes";
            assert!(outcome.text.ends_with(stopped), "{backend}: {}", outcome.text);
            assert_eq!(reader.join().expect("the reader ends"), "begin\n", "{backend}");
        }
    }
}

#[tokio::test]
async fn huge_output_is_bounded_and_both_pipes_are_drained() {
    let home = Home::new();
    let script = "i=0; while [ $i -lt 3 ]; do head -c 1000000 /dev/zero | tr '\\0' o; \
                  head -c 1000000 /dev/zero | tr '\\0' e >&2; i=$((i+1)); done; echo end; echo last >&2";
    let outcome = home.sh(script).await;
    assert_eq!(outcome.exit_code, 0);
    for (name, end, omitted) in [("stdout", "oend", 2_800_004), ("stderr", "elast", 2_800_005)] {
        let text = outcome.content[name].as_str().expect("it is text");
        assert!(text.len() < 201_000, "{name} has {} bytes", text.len());
        assert!(text.ends_with(end), "{name}");
        assert!(text.contains(&format!("[{omitted} bytes omitted]")), "{name}");
    }
    let outcome = home.sh("yes").await;
    assert!(outcome.text.ends_with("it wrote too much"));
}

#[tokio::test]
async fn resource_limits_apply() {
    let home = Home::with(&json!({"limits": {"file_mb": 1, "open_files": 16, "cpu_seconds": 1,
        "memory_mb": 256}}));
    let outcome = home.sh("ulimit -f; ulimit -n; ulimit -t; ulimit -d; ulimit -c").await;
    // Blocks of 512 bytes.
    assert_eq!(outcome.text, "2048\n16\n1\n262144\n0");
    let outcome = home.sh("head -c 3000000 /dev/zero > big; wc -c < big").await;
    assert!(outcome.text.starts_with("1048576"), "{}", outcome.text);
    let outcome = home.sh("while :; do :; done").await;
    assert_ne!(outcome.exit_code, 0, "{}", outcome.text);
}

#[tokio::test]
async fn a_cancelled_command_ends() {
    let home = Home::new();
    let path = pipe(&home);
    let execute = home.tools.get("execute").expect("it exists");
    let arguments = json!({"command": format!("{LEAVES} sleep 1000")});
    let call = Invocation::new("call-1", arguments, ToolContext::default());
    let cancel = call.cancel.clone();
    let reader = std::thread::spawn(move || {
        let mut reader = BufReader::new(File::open(path).expect("the pipe can be opened"));
        let mut line = String::new();
        reader.read_line(&mut line).expect("the command begins");
        cancel.cancel();
        reader.read_to_string(&mut line).expect("the pipe can be read");
    });
    let outcome = execute.run(call).await;
    assert_eq!(outcome.failure, Some(abide_tools::Failure::Cancelled));
    reader.join().expect("no process is left");
}

#[tokio::test]
async fn a_program_that_does_not_exist_did_not_run() {
    let home = Home::new();
    let outcome = home.call("execute", json!({"command": "true", "folder": "missing"})).await;
    let text = "execute: missing does not exist: glob finds files by name";
    assert_eq!(
        (outcome.text.as_str(), outcome.failure),
        (text, Some(abide_tools::Failure::Arguments))
    );
    let outcome = home.sh("nosuchprogram").await;
    assert_eq!(outcome.exit_code, 127, "{}", outcome.text);
}

#[tokio::test]
async fn a_program_leaves_space_on_the_disk() {
    let home = Home::with(&json!({"limits": {"free_mb": 1_u64 << 40}}));
    let outcome = home.sh("mkfifo end; read line < end").await;
    let why = "the command was stopped: the disk has less than 1099511627776 MB left";
    assert!(outcome.text.contains(why), "{}", outcome.text);
}

/// One tenant had hundreds of programs at a time. The lines of programs that run one after the other alternate.
#[tokio::test]
async fn programs_wait_for_each_other_at_the_limit() {
    let home = Home::with(&json!({"concurrency": {"total": 1, "per_scope": 1}}));
    home.write("log", "");
    let script = "echo begin >> log; cat /etc/hostname log > copy$$; echo end >> log";
    let runs = (0..4).map(|_| home.sh(script));
    for outcome in futures_util::future::join_all(runs).await {
        assert_eq!(outcome.failure, None, "{}", outcome.text);
    }
    assert_eq!(home.read("log"), "begin\nend\n".repeat(4));
}
