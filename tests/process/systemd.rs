//! A service of systemd: notifications, a socket that systemd has opened, and the unit files.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value as JsonValue;

use crate::program::{ExitedProcess, PATIENCE, Process, abide, left_out, program};

/// If this environment variable is set, a missing tool is an error.
const NEEDED: &str = "ABIDE_TESTS_NEED_ALL";

/// The next notification.
#[track_caller]
fn notification(socket: &UnixDatagram) -> String {
    let mut state = [0; 512];
    let bytes = socket.recv(&mut state).expect("a notification");
    String::from_utf8(state[..bytes].to_vec()).unwrap()
}

/// The next notification that is not a sign of life.
#[track_caller]
fn change(socket: &UnixDatagram) -> String {
    loop {
        let state = notification(socket);
        if state != "WATCHDOG=1" {
            return state;
        }
    }
}

#[test]
fn systemd_is_told_the_state_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = abide();
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db"]);
    command.arg(folder.path().join("abide.db"));
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    let server = Process::spawn(&mut command);
    assert_eq!(change(&socket), "READY=1\nSTATUS=serving");
    while notification(&socket) != "WATCHDOG=1" {}
    server.signal(Signal::HUP);
    let reloading = change(&socket);
    let us = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
    assert!(us.parse::<u64>().unwrap() > 0, "{reloading}");
    assert_eq!(change(&socket), "READY=1\nSTATUS=serving");
    server.terminate();
    assert_eq!(change(&socket), "STOPPING=1\nSTATUS=finishing what has begun");
    let ended = server.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}

/// Starts a server with a descriptor as its descriptor 3. `pid` is the value of `LISTEN_PID`, which the shell expands.
fn serve_passed(passed: Stdio, pid: &str, db: &Path, more: &[&str]) -> Process {
    let script =
        format!("exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_PID={pid}; exec \"$0\" \"$@\"");
    let mut command = abide();
    // The shell keeps its process id when it becomes the server.
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(command.get_program());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db"]).arg(db).args(more);
    shell.args(command.get_args()).stdin(passed);
    Process::spawn(&mut shell)
}

#[track_caller]
fn listening(server: &Process) -> String {
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    greeting["listening"].as_str().unwrap().to_owned()
}

/// A server with agents executes itself again, without the variables that may be secret.
#[test]
fn a_server_takes_the_socket_that_systemd_has_opened() {
    for has_agents in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("agents")).unwrap();
        let agents = folder.path().display().to_string();
        let more: &[&str] = if has_agents { &["--agents", &agents] } else { &[] };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // A connection waits in the socket before the server starts.
        let mut waiting = TcpStream::connect(&address).unwrap();
        waiting.write_all(b"GET /health HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n").unwrap();
        let passed = Stdio::from(OwnedFd::from(listener.try_clone().unwrap()));
        let server = serve_passed(passed, "$$", &folder.path().join("abide.db"), more);
        assert_eq!(listening(&server), address, "agents: {has_agents}");
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(r#""status":"ok""#), "{answer}");
        server.terminate();
        let ended = server.ended();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        // It is still the socket of systemd.
        drop(TcpStream::connect(&address).unwrap());
    }
}

#[test]
fn a_socket_for_another_process_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let passed = Stdio::from(OwnedFd::from(listener));
    let server = serve_passed(passed, "1", &folder.path().join("abide.db"), &[]);
    assert_ne!(listening(&server), address);
    server.terminate();
    assert_eq!(server.ended().code, Some(0));
}

#[test]
fn what_is_no_listening_socket_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let refused = |passed: Stdio| -> ExitedProcess { serve_passed(passed, "$$", &db, &[]).ended() };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (datagrams, _other) = UnixDatagram::pair().unwrap();
    for (what, passed, expected) in [
        ("a file", Stdio::null(), "the passed socket: "),
        ("a connection", OwnedFd::from(connection).into(), "does not listen"),
        ("datagrams", OwnedFd::from(datagrams).into(), "the passed socket: "),
    ] {
        let ended = refused(passed);
        assert_eq!(ended.code, Some(1), "{what}: {ended:?}");
        assert!(ended.stderr.contains(expected), "{what}: {ended:?}");
        assert!(ended.stderr.contains("ListenStream="), "{what}: {ended:?}");
        assert!(!db.exists(), "{what}");
    }
}

/// Checks the unit files as systemd reads them, with the built program in place of the installed one.
#[test]
fn the_unit_files_are_valid_and_hardened() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let folder = tempfile::tempdir().unwrap();
    let service = fs::read_to_string(deploy.join("abide.service")).unwrap();
    let service = service.replace("/usr/bin/abide", program().to_str().unwrap());
    let copy = folder.path().join("abide.service");
    fs::write(&copy, &service).unwrap();
    fs::copy(deploy.join("abide.socket"), folder.path().join("abide.socket")).unwrap();
    let seconds = |name: &str| -> u64 {
        let line = service.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name}"));
        value.split_whitespace().next().unwrap().trim_end_matches('s').parse().unwrap()
    };
    let command = service.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
    let (_, drain) = command.split_once("--drain ").unwrap();
    let drain: u64 = drain.trim_end_matches('s').parse().unwrap();
    assert_eq!(seconds("TimeoutStopSec="), drain + 15);
    // After five failed starts systemd gave up, also when the disk had space again.
    assert_eq!(seconds("StartLimitIntervalSec="), 0);

    let analyze = |args: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        // Both files are found, and those of the system.
        command.env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()));
        command.args(args).arg(&copy).output()
    };
    let verified = match analyze(&["verify", "--man=no"]) {
        Ok(verified) => verified,
        Err(_) => {
            assert!(std::env::var_os(NEEDED).is_none(), "no systemd-analyze, and {NEEDED} is set");
            return left_out("the unit files, because there is no systemd-analyze");
        }
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("abide"), "{said}");
    // Tenths of the exposure from 0 to 10.
    let secured = analyze(&["security", "--offline=yes", "--threshold=20", "--no-pager"]).unwrap();
    assert!(secured.status.success(), "{}", String::from_utf8_lossy(&secured.stdout));
}
