//! SIGTERM: accepted calls get a response, the file is left clean, and the process ends in time. SIGHUP stops a server only
//! on a terminal.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use tokio::task::JoinSet;

use crate::load::{Load, assert_log_is};
use crate::program::{PATIENCE, Process, abide, run};
use crate::server::Server;

/// The file is complete without its WAL.
#[track_caller]
fn assert_in_order(db: &Path) {
    let wal = db.with_file_name("abide.db-wal");
    let left = fs::metadata(&wal).map_or(0, |wal| wal.len());
    assert_eq!(left, 0, "bytes left in the WAL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_under_load_stops_cleanly_and_its_clients_continue() {
    let mut server = Server::start();
    let mut load = Load::start(&server).await;
    let ledger = Arc::clone(&load.ledger);
    for answers in [1, 10, 40] {
        ledger.wait_for_count(ledger.count() + answers).await;
        server.terminate();
        let ended = server.ended();
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
        assert_in_order(&server.db());
        let output = ledger.output();
        let log = crate::load::log(&server.raw());
        assert!(output.iter().all(|output| log.contains(output)), "acknowledged but lost");
        server.start_again();
    }
    load.finish().await;
    assert_log_is(&server.raw(), &ledger.output());
    server.stop();
    assert_in_order(&server.db());
}

/// All of these calls are in flight when the signal arrives. A call with a response is in the log;
/// a call without one was not started, and none waits forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_calls_get_a_response() {
    let mut server = Server::start();
    let abide = server.client().await;
    abide.call_by_name("create_session", json!({"agent": "a", "id": "s1"})).await.unwrap();
    let mut calls = JoinSet::new();
    for nth in 0..200 {
        let message = json!({"session_id": "s1", "role": "user", "content": format!("{nth}")});
        let call = abide.call_by_name("append_message", message).request_id(format!("r{nth}"));
        calls.spawn(async move { call.deadline(PATIENCE).await.map(|called| called.seq.0) });
    }
    // The first response: all calls are in flight, and most have no response yet.
    let first = calls.join_next().await.unwrap().unwrap().unwrap();
    server.terminate();
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_in_order(&server.db());
    server.start_again();
    let mut seqs = vec![first];
    while let Some(call) = calls.join_next().await {
        seqs.push(call.unwrap().unwrap());
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (2..=201).collect::<Vec<i64>>(), "each once");
    server.stop();
    assert_eq!(server.verify(), 201);
}

#[test]
fn a_second_signal_does_not_hang() {
    let mut server = Server::start();
    // A client that started a request and does not continue: the server waits, but not forever.
    let mut slow = TcpStream::connect(server.address()).unwrap();
    slow.write_all(b"POST /v1/sql HTTP/1.1\r\nhost: abide\r\ncontent-length: 100\r\n\r\n{")
        .unwrap();
    let mut quiet = TcpStream::connect(server.address()).unwrap();
    server.run(&["call", "create_session", "agent=a"]).good();
    server.terminate();
    server.terminate();
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_in_order(&server.db());
    assert_eq!(quiet.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
    server.start_again();
    server.terminate();
    server.terminate();
    assert_eq!(server.ended().code, Some(0));
    assert_eq!(server.verify(), 1);
}

#[test]
fn reports_the_log_at_start_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let mut command = abide();
    command.args(["serve", "--listen", "127.0.0.1:0", "--db"]).arg(&db);
    let process = Process::spawn(&mut command);
    let first = process.line();
    assert!(first.starts_with("abide "), "{first}");
    let url = first.split("  ·  ").nth(1).unwrap().to_owned();
    run(["call", "create_session", "agent=a", "--url", &url]).good();
    process.terminate();
    let ended = process.ended();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stdout.ends_with("\nstopped  ·  1 event in the log\n"), "{ended:?}");
    assert_eq!(ended.stderr, "");
}

/// A server with this standard input, and its URL. `option` of `env` says what the parent has set SIGHUP to.
fn start_under(option: &str, stdin: Stdio, db: &Path) -> (Process, String) {
    let mut command = abide();
    command.args(["serve", "--listen", "127.0.0.1:0", "--db"]).arg(db);
    let mut parent = Command::new("env");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => parent.env(name, value),
            None => parent.env_remove(name),
        };
    }
    parent.arg(option).arg(command.get_program()).args(command.get_args()).stdin(stdin);
    let server = Process::spawn(&mut parent);
    let greeting = server.line();
    let url = greeting.split("  ·  ").nth(1).unwrap().to_owned();
    (server, url)
}

/// SIGHUP killed a server without a service manager: `kill -HUP` after the renewal of a certificate was an outage.
#[test]
fn sighup_without_a_terminal_does_not_stop_a_server() {
    for option in ["--default-signal=HUP", "--ignore-signal=HUP"] {
        let folder = tempfile::tempdir().unwrap();
        let (server, url) = start_under(option, Stdio::null(), &folder.path().join("abide.db"));
        server.signal(Signal::HUP);
        run(["call", "create_session", "agent=a", "--url", &url]).good();
        server.terminate();
        let ended = server.ended();
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{option}: {ended:?}");
    }
}

/// A server whose terminal was closed was killed, and with it its tools.
#[test]
fn sighup_on_a_terminal_stops_a_server_unless_it_is_ignored() {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let stdin = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let (server, url) = start_under("--ignore-signal=HUP", stdin(), &db);
    server.signal(Signal::HUP);
    run(["call", "create_session", "agent=a", "--url", &url]).good();
    server.terminate();
    assert_eq!(server.ended().code, Some(0));
    let (server, _) = start_under("--default-signal=HUP", stdin(), &db);
    server.signal(Signal::HUP);
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with("stopped  ·  1 event in the log\n"), "{ended:?}");
    assert_in_order(&db);
}
