//! `abide open`: programs of one user share the engine of a file. The engine is a process of its own, which ends with
//! its last user, however that ends.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use abide_client::arguments::CreateSession;
use abide_client::{Abide, Code, Error};
use expect_test::expect;
use rusqlite::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, PidfdFlags, Signal, geteuid, getsid, kill_process, kill_process_group, pidfd_open,
};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::{ExitedProcess, PATIENCE, Process, abide, left_out, program, run, worker};
use crate::server::Server;

/// An unprivileged user.
const OTHER_USER: u32 = 65_534;

/// A folder with a file that programs share.
struct SharedFile {
    folder: TempDir,
}

impl SharedFile {
    fn new() -> SharedFile {
        SharedFile { folder: tempfile::tempdir().unwrap() }
    }

    fn db(&self) -> PathBuf {
        self.folder.path().join("abide.db")
    }

    async fn client(&self) -> Abide {
        Abide::open_shared(self.db()).binary(program()).await.unwrap()
    }

    fn command(&self) -> Command {
        let mut command = abide();
        command.arg("open").arg(self.db()).arg("--json");
        command
    }

    /// `abide open`, with the line that it printed.
    fn open(&self) -> (Process, JsonValue) {
        let process = Process::spawn(&mut self.command());
        let line = serde_json::from_str(&process.line()).unwrap();
        (process, line)
    }

    /// The entry of the engine in the lock file.
    fn holder(&self) -> Option<JsonValue> {
        let text = fs::read_to_string(self.folder.path().join("abide.db-lock")).unwrap();
        (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap())
    }

    fn engine(&self) -> Engine {
        Engine::from_holder(&self.holder().expect("an engine"))
    }

    /// The names of all files in the folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The engine has closed the file: it is one plain SQLite file, and no socket is left.
    #[track_caller]
    fn assert_closed(&self, engine: &Engine) {
        assert_eq!(self.names(), ["abide.db", "abide.db-lock"]);
        assert_eq!(self.holder(), None);
        assert!(!engine.socket.parent().unwrap().exists(), "{:?} is left", engine.socket);
    }

    /// The ids of all sessions, without a server.
    fn sessions(&self) -> Vec<String> {
        let connection = Connection::open(self.db()).unwrap();
        let mut query = connection.prepare("SELECT id FROM sessions ORDER BY seq").unwrap();
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

/// The process of an engine.
#[derive(Debug)]
struct Engine {
    pid: Pid,
    socket: PathBuf,
    exit: std::os::fd::OwnedFd,
}

impl Engine {
    fn from_holder(holder: &JsonValue) -> Engine {
        let pid = i32::try_from(holder["pid"].as_i64().unwrap()).unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        let socket = PathBuf::from(holder["socket"].as_str().unwrap());
        Engine { pid, socket, exit: pidfd_open(pid, PidfdFlags::empty()).unwrap() }
    }

    fn is_running(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    #[track_caller]
    fn assert_ends(&self) {
        assert!(self.ends_within(PATIENCE), "{self:?} does not end");
    }

    fn ends_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).unwrap();
        let mut exit = [PollFd::new(&self.exit, PollFlags::IN)];
        retry_on_intr(|| poll(&mut exit, Some(&time))).unwrap() == 1
    }

    fn kill(&self) {
        kill_process(self.pid, Signal::KILL).unwrap();
        self.assert_ends();
    }

    fn terminate(&self) {
        kill_process(self.pid, Signal::TERM).unwrap();
    }
}

#[test]
fn a_killed_program_leaves_no_process_and_loses_nothing() {
    let file = SharedFile::new();
    let mut command = worker();
    command.arg("open").arg(program()).arg(file.db());
    let mut user = Process::spawn(&mut command);
    let output: Vec<String> = (0..20).map(|_| user.line()).collect();
    let engine = file.engine();
    user.kill();
    engine.assert_ends();
    file.assert_closed(&engine);
    let stored = file.sessions();
    assert_eq!(stored[..output.len()], output, "acknowledged but lost");
    run(["verify", file.db().to_str().unwrap()]).good();
}

#[tokio::test]
async fn a_killed_engine_is_started_again() {
    let file = SharedFile::new();
    let abide = file.client().await;
    let mut sessions = abide.subscribe("SELECT id FROM sessions ORDER BY id").await.unwrap();
    sessions.try_next().await.unwrap();
    let first = file.engine();
    for nth in 1..=3 {
        abide.call(CreateSession::new("a").id(format!("s{nth}"))).await.unwrap();
        let engine = file.engine();
        engine.kill();
        let update = sessions.try_next().await.unwrap().unwrap();
        assert_eq!(update.inserts::<String>().unwrap(), [format!("s{nth}")]);
    }
    abide.call(CreateSession::new("a").id("s4")).await.unwrap();
    assert_eq!(sessions.try_next().await.unwrap().unwrap().inserts::<String>().unwrap(), ["s4"]);
    let last = file.engine();
    assert_ne!(first.pid, last.pid);
    assert!(!first.socket.parent().unwrap().exists(), "the socket of a killed engine is removed");
    drop(sessions);
    abide.close().await;
    last.assert_ends();
    file.assert_closed(&last);
    assert_eq!(file.sessions(), ["s1", "s2", "s3", "s4"]);
}

/// A failed engine refuses all calls, and stays so as long as it runs.
#[cfg(debug_assertions)]
#[tokio::test]
async fn an_engine_that_failed_ends_and_is_replaced() {
    let file = SharedFile::new();
    let process = Process::spawn(file.command().env("ABIDE_TEST_PANIC", "Appended"));
    process.line();
    let engine = file.engine();
    let abide = file.client().await;
    let refused = abide.call(CreateSession::new("a").id("s1")).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::EngineFailed));
    engine.assert_ends();
    assert_eq!(process.ended().code, Some(1));
    abide.call(CreateSession::new("a").id("s2")).await.unwrap();
    assert_ne!(file.engine().pid, engine.pid);
    abide.close().await;
}

#[test]
fn programs_that_open_at_once_share_one_engine() {
    let file = SharedFile::new();
    let processes: Vec<Process> = (0..6).map(|_| Process::spawn(&mut file.command())).collect();
    let lines: Vec<JsonValue> =
        processes.iter().map(|it| serde_json::from_str(&it.line()).unwrap()).collect();
    let started = lines.iter().filter(|line| line["started"] == true);
    assert_eq!(started.count(), 1, "{lines:?}");
    assert!(lines.iter().all(|line| line["pid"] == lines[0]["pid"]), "{lines:?}");
    assert!(lines.iter().all(|line| line["socket"] == lines[0]["socket"]), "{lines:?}");
    let engine = Engine::from_holder(&lines[0]);
    engine.terminate();
    for process in processes {
        let ended = process.ended();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "one line, then the end");
    }
    file.assert_closed(&engine);
}

#[tokio::test]
async fn the_last_user_ends_the_engine() {
    let file = SharedFile::new();
    let (first, second) = tokio::join!(file.client(), file.client());
    first.call(CreateSession::new("a").id("s1")).await.unwrap();
    let found: Vec<String> = second.sql("SELECT id FROM sessions").fetch().await.unwrap();
    assert_eq!(found, ["s1"], "they share it");
    let engine = file.engine();
    first.close().await;
    assert!(engine.is_running());
    second.call(CreateSession::new("a").id("s2")).await.unwrap();
    second.close().await;
    engine.assert_ends();
    file.assert_closed(&engine);
    assert_eq!(file.sessions(), ["s1", "s2"]);
}

/// A program can find an engine at the moment at which it ends.
#[tokio::test]
async fn an_engine_that_is_ending_is_replaced() {
    let file = SharedFile::new();
    let mut clients = vec![file.client().await];
    for nth in 0..5 {
        let engine = file.engine();
        engine.terminate();
        clients.push(file.client().await);
        for (number, client) in clients.iter().enumerate() {
            let id = format!("s{nth}-{number}");
            client.call(CreateSession::new("a").id(id)).await.unwrap();
        }
        engine.assert_ends();
    }
    let engine = file.engine();
    for client in clients {
        client.close().await;
    }
    engine.assert_ends();
    assert_eq!(file.sessions().len(), 2 + 3 + 4 + 5 + 6);
}

/// Ctrl-C in a terminal goes to all processes of its foreground group. Here it is SIGKILL, because the tests themselves can
/// run with SIGINT ignored.
#[tokio::test]
async fn an_engine_is_detached_from_its_starter() {
    let file = SharedFile::new();
    let mut command = worker();
    command.arg("open").arg(program()).arg(file.db()).process_group(0);
    let user = Process::spawn(&mut command);
    user.line();
    let abide = file.client().await;
    let engine = file.engine();
    assert_eq!(getsid(Some(engine.pid)), Ok(engine.pid));
    let group = Pid::from_raw(i32::try_from(user.id()).unwrap()).unwrap();
    kill_process_group(group, Signal::KILL).unwrap();
    assert_eq!(user.ended().code, None, "the signal ended it");
    abide.call(CreateSession::new("a")).await.unwrap();
    assert!(engine.is_running());
}

/// A shell starts each command as the leader of a process group, which cannot start a session.
#[test]
fn a_leader_of_a_process_group_starts_the_engine_as_a_child() {
    let file = SharedFile::new();
    let ended = Process::spawn(file.command().process_group(0)).ended().json();
    assert_eq!(ended["started"], true);
    let engine = file.engine();
    assert!(engine.is_running());
    assert_eq!(getsid(Some(engine.pid)), Ok(engine.pid));
    engine.terminate();
    engine.assert_ends();
    let ended = Process::spawn(file.command().args(["--db", "x"]).process_group(0)).ended();
    assert_eq!(ended.code, Some(1));
    let line: JsonValue = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(line["error"]["code"], "bad_arguments");
}

/// The session and the process group of the first process of a container have leaders outside it, which have the id 0
/// inside.
#[test]
fn an_engine_is_detached_in_a_container() {
    let container = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork"]);
        command
    };
    if !container().arg("true").status().is_ok_and(|ended| ended.success()) {
        return left_out("an engine in a container: the system creates no namespaces");
    }
    let file = SharedFile::new();
    let mut command = container();
    // The end of the first process of a container ends the others.
    command.arg("sh").args(["-c", r#""$0" open "$1" --json; true"#]);
    command.arg(program()).arg(file.db());
    let ended = Process::spawn(&mut command).ended().json();
    assert_eq!(ended["started"], true);
}

#[tokio::test]
async fn a_user_of_a_file_with_tokens_is_the_local_admin() {
    let file = SharedFile::new();
    let db = file.db();
    run(["token", "create", "root", "--role", "admin", "--db", db.to_str().unwrap()]).good();
    let abide = file.client().await;
    abide.call(CreateSession::new("a")).await.unwrap();
    let callers: Vec<String> =
        abide.sql("SELECT caller FROM events ORDER BY seq DESC LIMIT 1").fetch().await.unwrap();
    assert_eq!(callers, ["local"]);
    abide.close().await;
}

/// The user of a process is not enough: a program in a sandbox has the same one. A program that sends a token of the file
/// expects its rights, not those of an admin.
#[test]
fn the_socket_needs_a_token() {
    let file = SharedFile::new();
    let db = file.db();
    let args = ["token", "create", "ann", "--role", "auditor", "--json", "--db"];
    let token = run(args.iter().copied().chain([db.to_str().unwrap()])).json();
    let token = token["token"].as_str().unwrap();
    let (process, line) = file.open();
    let call = |token: Option<&str>| {
        let mut socket = UnixStream::connect(line["socket"].as_str().unwrap()).unwrap();
        let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let request = format!(
            "POST /v1/call/create_session HTTP/1.1\r\nhost: x\r\n{}connection: close\r\n\
             content-length: 13\r\n\r\n{{\"agent\":\"a\"}}",
            authorization.unwrap_or_default()
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    let wrong = format!("{token}0");
    let secret = line["token"].as_str().unwrap();
    let shown = [None, Some(secret), Some(token), Some(&*wrong)];
    assert_eq!(shown.map(call), ["401", "200", "403", "401"]);
    process.terminate();
    assert_eq!(process.ended().code, Some(0));
}

#[tokio::test]
async fn a_loopback_port_needs_the_token() {
    let file = SharedFile::new();
    let process = Process::spawn(file.command().arg("--loopback"));
    let line: JsonValue = serde_json::from_str(&process.line()).unwrap();
    let url = line["url"].as_str().unwrap();
    let refused = Abide::connect(url).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Unauthenticated));
    let token = line["token"].as_str().unwrap();
    let abide = Abide::builder(url).token(token).connect().await.unwrap();
    abide.call(CreateSession::new("a")).await.unwrap();
    let shared = file.client().await;
    shared.call(CreateSession::new("a")).await.unwrap();
    assert_eq!(file.holder().unwrap()["pid"], process.id());
    tokio::join!(abide.close(), shared.close());
    process.terminate();
    assert_eq!(process.ended().code, Some(0));
}

/// Every connection kept the engine running, also one of another user without the token.
#[tokio::test]
async fn strangers_do_not_keep_a_loopback_engine_running() {
    let file = SharedFile::new();
    let process = Process::spawn(file.command().arg("--loopback"));
    let line: JsonValue = serde_json::from_str(&process.line()).unwrap();
    let url = line["url"].as_str().unwrap();
    let address = url.strip_prefix("http://").unwrap().to_owned();
    let stranger = std::thread::spawn(move || {
        // One connection after the other, each until the server closes it.
        while let Ok(mut socket) = std::net::TcpStream::connect(&address) {
            let probe =
                b"GET /ready HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer x\r\n\r\n";
            let _ = socket.write_all(probe);
            let _ = socket.read_to_end(&mut Vec::new());
        }
    });
    let token = line["token"].as_str().unwrap();
    let abide = Abide::builder(url).token(token).connect().await.unwrap();
    abide.call(CreateSession::new("a")).await.unwrap();
    abide.close().await;
    assert_eq!(process.ended().code, Some(0));
    stranger.join().unwrap();
}

/// The problem that `abide open` prints, without names that differ between runs.
#[track_caller]
fn problem(folder: &Path, ended: &ExitedProcess) -> String {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let line: JsonValue = serde_json::from_str(&ended.stdout).unwrap();
    let text = |name: &str| line["error"][name].as_str().unwrap_or_default();
    let text = format!("{}: {}\n{}\n", text("code"), text("detail"), text("hint"));
    text.replace(folder.to_str().unwrap(), "FOLDER")
}

#[tokio::test]
async fn a_file_that_is_served_is_locked() {
    let server = Server::start();
    let mut command = abide();
    let ended = Process::spawn(command.args(["open", "--json"]).arg(server.db())).ended();
    let text = problem(server.folder(), &ended);
    let text = text.replace(&server.url(), "URL").replace(&format!("{}", server.id()), "PID");
    expect![[r#"
        file_locked: FOLDER/abide.db is in use by another process
        process PID serves it: connect to URL (for commands: --url instead of --db)
    "#]]
    .assert_eq(&text);
    let refused = Abide::open_shared(server.db()).binary(program()).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::FileLocked));
}

/// A person decides, settles and looks with commands while programs have the file open.
#[test]
fn commands_share_a_file_that_programs_use() {
    let file = SharedFile::new();
    let (process, _) = file.open();
    let db = file.db();
    let db = db.to_str().unwrap();
    let created = run(["call", "create_session", "agent=a", "--db", db, "--json"]).json();
    let id = created["result"]["id"].as_str().unwrap();
    let found = run(["sql", "SELECT id FROM sessions", "--db", db, "--json"]);
    assert!(found.stdout.contains(id), "{found:?}");
    // Two engines cannot have one file.
    let ended = run(["serve", "--db", db, "--listen", "127.0.0.1:0"]);
    let stderr = ended.stderr.replace(file.folder.path().to_str().unwrap(), "FOLDER");
    expect![[r#"
        error: FOLDER/abide.db is in use by another process   [file_locked]
          hint: process PID has it open for the programs that use it with `abide open` or an SDK, and ends with the last of them; commands with --db join it
    "#]]
    .assert_eq(&stderr.replace(&process.id().to_string(), "PID"));
    process.terminate();
    assert_eq!(process.ended().code, Some(0));
}

/// Regression: the next program found the engine of a file that had been removed, and its data was lost with it.
#[tokio::test]
async fn a_removed_file_is_not_used_any_more() {
    let file = SharedFile::new();
    let user = file.client().await;
    user.call(CreateSession::new("a").id("old")).await.unwrap();
    fs::remove_file(file.db()).unwrap();
    let ended = Process::spawn(&mut file.command()).ended();
    let text = problem(file.folder.path(), &ended);
    assert!(text.contains("FOLDER/abide.db is missing or empty"), "{text}");
    user.close().await;
}

/// Regression: SQLite applied a WAL or a rollback journal that another user had put next to the database.
#[test]
fn files_of_another_user_beside_a_database_are_refused() {
    if !geteuid().is_root() {
        return left_out("files of another user: only root can make them");
    }
    let file = SharedFile::new();
    let db = file.db();
    let db = db.to_str().unwrap();
    assert_eq!(run(["db", "create", db]).code, Some(0));
    for suffix in ["-wal", "-shm", "-journal", "-lock"] {
        let path = format!("{db}{suffix}");
        let _ = fs::remove_file(&path);
        fs::write(&path, "theirs").unwrap();
        chown(&path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
        let ended = Process::spawn(&mut file.command()).ended();
        let text = problem(file.folder.path(), &ended);
        assert!(text.contains("belongs to a user who cannot write the database"), "{text}");
        if suffix != "-lock" {
            let read = run(["verify", db]);
            assert!(read.stderr.contains("belongs to a user"), "{read:?}");
        }
        assert_eq!(fs::read(&path).unwrap(), b"theirs", "it is left as it is");
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(run(["verify", db]).code, Some(0));
}

/// Regression: the commands said that no other process can write to the file, while a program had it open and shared it.
#[tokio::test]
async fn a_shared_file_is_watched_and_followed() {
    let file = SharedFile::new();
    let user = file.client().await;
    user.call(CreateSession::new("a").id("s1")).await.unwrap();
    let db = file.db();
    let db = db.to_str().unwrap();
    let mut watched = abide();
    watched.args(["watch", "SELECT id FROM sessions ORDER BY id", "--db", db]);
    let watched = Process::spawn(&mut watched);
    assert!(watched.line().contains("s1"));
    let followed = Process::spawn(abide().args(["events", "--follow", "--db", db]));
    assert!(followed.line().contains("create_session"));
    user.call(CreateSession::new("a").id("s2")).await.unwrap();
    assert!(watched.line().contains("s2"));
    assert!(followed.line().contains("s2"));
    for process in [watched, followed] {
        process.signal(Signal::INT);
        assert_eq!(process.ended().code, Some(0));
    }
    user.close().await;
    // Without such a program, the commands say how to get one.
    for line in [&["watch", "SELECT 1"][..], &["events", "--follow"]] {
        let alone = tempfile::tempdir().unwrap();
        let db = alone.path().join("a.db");
        let db = db.to_str().unwrap();
        run(["db", "create", db]).good();
        let refused = run([line, &["--db", db]].concat());
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("hint: start `abide serve --db"), "{refused:?}");
        let server = Server::start_on(Path::new(db));
        let refused = run([line, &["--db", db]].concat());
        let hint = format!("hint: use --url {} in place of --db", server.url());
        assert!(refused.code == Some(2) && refused.stderr.contains(&hint), "{refused:?}");
    }
}

#[test]
fn files_that_cannot_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, code: &str, detail: &str| {
        let db = folder.path().join(name);
        let ended = Process::spawn(abide().args(["open", "--json"]).arg(db)).ended();
        let text = problem(folder.path(), &ended);
        assert!(text.starts_with(&format!("{code}: FOLDER/{name} {detail}\n")), "{text}");
        assert!(text.lines().nth(1).is_some_and(|hint| !hint.is_empty()), "{text}");
    };
    let recipes = Connection::open(folder.path().join("recipes.db")).unwrap();
    recipes.execute_batch("CREATE TABLE recipes (title TEXT)").unwrap();
    fs::write(folder.path().join("text.db"), "no database".repeat(100)).unwrap();
    check("recipes.db", "bad_request", "is a SQLite database of another program");
    check("text.db", "bad_request", "is not an Abide database: it is not a SQLite file");
    let ended = Process::spawn(abide().args(["open", "--json", "/nowhere/abide.db"])).ended();
    assert!(problem(folder.path(), &ended).starts_with("not_found: there is no folder /nowhere"));
}

#[tokio::test]
async fn an_engine_of_another_version_or_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    let line = r#"{"protocol":"abide.v9","version":"9.1.0","pid":1,"started":false}"#;
    fs::write(&other, format!("#!/bin/sh\necho '{line}'\n")).unwrap();
    fs::set_permissions(&other, Permissions::from_mode(0o700)).unwrap();
    let db = folder.path().join("abide.db");
    let error = Abide::open_shared(&db).binary(&other).await.unwrap_err();
    assert!(matches!(error, Error::IncompatibleVersion { .. }), "{error}");
    assert!(error.to_string().contains("9.1.0") && error.hint().is_some(), "{error}");
    let error = Abide::open_shared(&db).binary("/nowhere/abide").await.unwrap_err();
    assert!(matches!(error, Error::EngineNotFound { .. }) && error.hint().is_some(), "{error}");
}

/// The command as an unprivileged user, on a copy of the program that this user can run.
fn as_other_user(folder: &Path, args: &[&str]) -> Command {
    let program = folder.join("program");
    if !program.exists() {
        fs::copy(crate::program::program(), &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(program);
    command.uid(OTHER_USER).gid(OTHER_USER).env_clear().stdin(Stdio::null()).args(args);
    command.current_dir("/");
    command
}

#[tokio::test]
async fn another_user_can_neither_connect_nor_impersonate_an_engine() {
    if !geteuid().is_root() {
        return left_out("another user: only root can change its user id");
    }
    let file = SharedFile::new();
    let folder = file.folder.path();
    let db = file.db();
    fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
    let db = db.to_str().unwrap();
    let (own, line) = file.open();
    let user = file.client().await;
    let foreign = Process::spawn(&mut as_other_user(folder, &["open", db, "--json"])).ended();
    assert!(problem(folder, &foreign).contains("is not writable"), "{foreign:?}");
    let socket = PathBuf::from(line["socket"].as_str().unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    let lock = folder.join("abide.db-lock");
    assert_eq!(mode(&lock), 0o600);
    // Even an open folder gives another user nothing: the engine asks the system who connects.
    fs::set_permissions(socket.parent().unwrap(), Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&lock, Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(db, Permissions::from_mode(0o666)).unwrap();
    let foreign = Process::spawn(&mut as_other_user(folder, &["open", db, "--json"])).ended();
    assert!(problem(folder, &foreign).contains("of another user"), "{foreign:?}");
    user.close().await;
    own.terminate();
    assert_eq!(own.ended().code, Some(0));

    // The other user serves the file first, in a folder that both can write.
    fs::remove_file(&lock).unwrap();
    chown(db, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    let theirs = Process::spawn(&mut as_other_user(folder, &["open", db, "--json"]));
    let line: JsonValue = serde_json::from_str(&theirs.line()).unwrap();
    assert_eq!(line["started"], true, "{line}");
    let ended = Process::spawn(&mut file.command()).ended();
    let text = problem(folder, &ended).replace(&theirs.id().to_string(), "PID");
    expect![[r#"
        file_locked: FOLDER/abide.db is in use by process PID of another user
        run this program as that user, or use `abide serve` with tokens
    "#]]
    .assert_eq(&text);
    // An address in a lock file of another user is not believed: the system does not say whose it is.
    let text = json!({"protocol": "abide.v1", "version": "0.1.0", "pid": 1,
        "url": "http://127.0.0.1:9", "token": "t"});
    fs::write(&lock, text.to_string()).unwrap();
    let ended = Process::spawn(&mut file.command()).ended();
    assert!(!problem(folder, &ended).contains("127.0.0.1"), "{ended:?}");
}
