//! One file and several processes: which access is allowed, the errors otherwise, and that files
//! stay unchanged. Also full disks and read-only folders.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use abide_client::Abide;
use expect_test::{Expect, expect};
use rusqlite::Connection;
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::{ExitedProcess, Process, abide, left_out, program, run};
use crate::server::Server;

/// An unprivileged user.
const NOBODY: u32 = 65_534;

/// The exit code and stderr, without the folder's name.
#[track_caller]
fn check(folder: &Path, ended: &ExitedProcess, expected: Expect) {
    assert_eq!(ended.stdout, "", "{ended:?}");
    let stderr = ended.stderr.replace(folder.to_str().unwrap(), "FOLDER");
    expected.assert_eq(&format!("exit code {}\n{stderr}", ended.code.unwrap()));
}

fn serve(db: &Path) -> ExitedProcess {
    Process::spawn(abide().args(["serve", "--listen", "127.0.0.1:0", "--db"]).arg(db)).ended()
}

/// All files of a folder with their content.
fn listing(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect();
    files.sort();
    files
}

/// All but the first failed at once.
#[test]
fn commands_wait_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db").display().to_string();
    run(["db", "create", &db]).good();
    let start = |nth: usize| {
        let mut process = abide();
        process.args(["call", "create_session", "agent=a", &format!("id=s{nth}"), "--db", &db]);
        Process::spawn(&mut process)
    };
    let running: Vec<Process> = (0..6).map(start).collect();
    for process in running {
        process.ended().good();
    }
    let count = run(["sql", "--json", "SELECT count(*) FROM sessions", "--db", &db]).json();
    assert_eq!(count["rows"][0][0], 6);
}

/// A command does not wait for a process that does not end by itself, and names it.
#[test]
fn a_command_names_the_process_for_which_it_does_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db").display().to_string();
    run(["db", "create", &db]).good();
    let mut lock = fs::OpenOptions::new().write(true).open(format!("{db}-lock")).unwrap();
    lock.lock().unwrap();
    lock.write_all(br#"{"protocol":"","version":"","pid":4711}"#).unwrap();
    let ended = run(["call", "create_session", "agent=a", "--db", &db]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let hint = "hint: wait until process 4711 ends; to use the file with several programs, start";
    assert!(ended.stderr.contains(hint), "{ended:?}");
}

#[test]
fn a_file_has_one_server_and_other_commands_are_referred_to_it() {
    let mut server = Server::start();
    server.run(&["call", "create_session", "agent=support", "id=s1"]).good();
    let db = server.db();
    let db = db.to_str().unwrap();
    let others: [&[&str]; 4] = [
        &["serve", "--listen", "127.0.0.1:0"],
        &["call", "create_session", "agent=support"],
        &["sql", "SELECT * FROM sessions"],
        &["events"],
    ];
    for args in others {
        let ended = run(args.iter().copied().chain(["--db", db]));
        let stderr = ended.stderr.replace(&server.url(), "URL");
        let stderr = stderr.replace(&format!("process {}", server.id()), "process PID");
        check(
            server.folder(),
            &ExitedProcess { stderr, ..ended },
            expect![[r#"
                exit code 1
                error: FOLDER/abide.db is in use by another process   [file_locked]
                  hint: process PID serves it: connect to URL (for commands: --url instead of --db)
            "#]],
        );
    }
    server.run(&["call", "create_session", "agent=support", "id=s2"]).good();
    assert_eq!(server.verify(), 2);
    // The lock is released with its holder, however that ends.
    server.kill();
    run(["call", "create_session", "agent=support", "id=s3", "--db", db]).good();
    server.start_again();
    assert_eq!(server.verify(), 3);
}

#[test]
fn any_sqlite_tool_reads_the_file_while_it_is_served() {
    let server = Server::start();
    for nth in 1..=20 {
        server.run(&["call", "create_session", "agent=support", &format!("id=s{nth}")]).good();
        let count: i64 =
            server.raw().query_row("SELECT count(*) FROM sessions", [], |row| row.get(0)).unwrap();
        assert_eq!(count, nth, "acknowledged calls can be read");
    }
    let shell = Command::new("sqlite3")
        .args(["-readonly".as_ref(), server.db().as_os_str()])
        .arg("SELECT id FROM sessions WHERE seq = 20; PRAGMA integrity_check")
        .output();
    match shell {
        Ok(shell) => assert_eq!(String::from_utf8(shell.stdout).unwrap(), "s20\nok\n"),
        Err(_) => left_out("the sqlite3 program reading a served file: there is none here"),
    }
    server.run(&["call", "create_session", "agent=support"]).good();
    assert_eq!(server.verify(), 21);
}

#[test]
fn a_port_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let db = folder.path().join("abide.db");
    let ended = run(["serve", "--listen", &address, "--db", db.to_str().unwrap()]);
    let ended = ExitedProcess { stderr: ended.stderr.replace(&address, "ADDRESS"), ..ended };
    check(
        folder.path(),
        &ended,
        expect![[r#"
            exit code 1
            error: ADDRESS is in use by another program   [conflict]
              hint: stop that program, or listen on a free port with --listen 127.0.0.1:0
        "#]],
    );
    assert!(!db.exists(), "a server that does not start leaves no file");
}

#[test]
fn listening_beyond_this_machine_needs_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let db = db.to_str().unwrap();
    let ended = run(["serve", "--listen", "0.0.0.0:0", "--db", db]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("[denied]") && ended.stderr.contains("hint: "), "{ended:?}");
    assert!(!Path::new(db).exists());
}

/// Serving and using a file of another program is refused without changes.
#[track_caller]
fn check_foreign(make: impl FnOnce(&Path), expected: Expect) {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("theirs.db");
    make(&db);
    let before = listing(folder.path());
    let served = serve(&db);
    let called = run(["call", "create_session", "agent=a", "--db", db.to_str().unwrap()]);
    assert_eq!(served.stderr, called.stderr);
    check(folder.path(), &served, expected);
    assert!(listing(folder.path()) == before, "the file or its folder was changed");
}

fn make_sql(path: &Path, sql: &str) {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn files_of_other_programs_are_not_changed() {
    check_foreign(
        |path| fs::write(path, "Dear grandmother, ".repeat(500)).unwrap(),
        expect![[r#"
            exit code 1
            error: FOLDER/theirs.db is not an Abide database: it is not a SQLite file   [bad_request]
              hint: pass another file; this one was not changed
        "#]],
    );
    check_foreign(
        |path| {
            make_sql(path, "CREATE TABLE recipes (title TEXT); INSERT INTO recipes VALUES ('a')")
        },
        expect![[r#"
            exit code 1
            error: FOLDER/theirs.db is a SQLite database of another program   [bad_request]
              hint: pass another file; this one was not changed
        "#]],
    );
    check_foreign(
        |path| make_sql(path, "PRAGMA journal_mode = WAL; CREATE TABLE recipes (title TEXT)"),
        expect![[r#"
            exit code 1
            error: FOLDER/theirs.db is a SQLite database of another program   [bad_request]
              hint: pass another file; this one was not changed
        "#]],
    );
}

/// An existing lock file belongs to the newer version, and stays.
#[test]
fn a_newer_format_is_left_to_the_newer_abide() {
    check_foreign(
        |path| {
            run(["db", "create", path.to_str().unwrap()]).good();
            make_sql(path, "PRAGMA user_version = 99; PRAGMA wal_checkpoint(TRUNCATE)");
        },
        expect![[r#"
            exit code 1
            error: FOLDER/theirs.db was written by a newer Abide: its format has version 99, this one supports 5   [bad_request]
              hint: use the newer version of abide
        "#]],
    );
}

#[test]
fn a_missing_folder() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("nowhere/abide.db");
    check(
        folder.path(),
        &serve(&db),
        expect![[r#"
        exit code 1
        error: there is no folder FOLDER/nowhere   [not_found]
          hint: create it with `mkdir -p FOLDER/nowhere`
    "#]],
    );
    assert!(!folder.path().join("nowhere").exists());
}

#[test]
fn a_folder_that_cannot_be_written() {
    if !rustix::process::geteuid().is_root() {
        return left_out("a read-only folder: only root can change its user id");
    }
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    run(["db", "create", db.to_str().unwrap()]).good();
    let program = program_for_all();
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    for (mode, db) in [(0o500, db.clone()), (0o500, folder.path().join("new.db")), (0o700, db)] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        let before = listing(folder.path());
        let mut command = Command::new(program.path().join("abide"));
        command.uid(NOBODY).gid(NOBODY).env_clear().stdin(Stdio::null());
        command.args(["serve", "--listen", "127.0.0.1:0", "--db"]).arg(&db);
        let ended = Process::spawn(command.current_dir("/")).ended();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(" is not writable   [bad_request]\n"), "{ended:?}");
        assert!(ended.stderr.contains("\n  hint: check the permissions of the file"), "{ended:?}");
        assert!(listing(folder.path()) == before, "the folder was changed");
    }
}

/// A copy of the program that an unprivileged user can run.
fn program_for_all() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(program(), folder.path().join("abide")).unwrap();
    folder
}

/// A file system of a few megabytes, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<SmallDisk> {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=10m", "tmpfs"]).arg(&at).output();
        mount.is_ok_and(|output| output.status.success()).then_some(SmallDisk(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

/// The signal SIGXFSZ killed a server whose WAL reached the limit of file sizes.
#[tokio::test]
async fn a_limit_of_file_sizes_is_reported_as_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    // A block has 512 or 1,024 bytes.
    command.args(["-c", "ulimit -f 16384; exec \"$0\" \"$@\""]).arg(program());
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db"]);
    command.arg(folder.path().join("abide.db"));
    command.env_remove("ABIDE_TOKEN").env_remove("ABIDE_URL").env_remove("ABIDE_LOG");
    let mut process = Process::spawn(&mut command);
    let greeting: JsonValue = serde_json::from_str(&process.line()).unwrap();
    let url = format!("http://{}", greeting["listening"].as_str().unwrap());
    let abide = Abide::connect(&url).await.unwrap();
    abide.call_by_name("create_session", json!({"agent": "a", "id": "s1"})).await.unwrap();
    let message = json!({"session_id": "s1", "role": "user", "content": "x".repeat(30_000)});
    let mut refused = None;
    // More than the file and its WAL together can hold.
    for _ in 0..2_000 {
        // The query needs the rows in the WAL.
        let called = abide.call_by_name("append_message", &message).await.map(drop);
        let read = abide.sql("SELECT max(seq) FROM events").fetch::<i64>().await.map(drop);
        if let Err(why) = called.and(read) {
            refused = Some(why);
            break;
        }
    }
    let refused = refused.expect("the limit is reached");
    assert_eq!(refused.code(), Some(abide_client::Code::DiskFull), "{refused}");
    assert!(process.is_running());
    abide.close().await;
    process.kill();
}

/// A file that could not be created stayed without content, and the next attempt said that it exists. The hint of `abide init`
/// was to check the path.
#[test]
fn what_a_full_disk_prevents_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path().join("small")) else {
        return left_out("a full disk: no file system can be mounted here");
    };
    let rest = disk.0.join("rest");
    let mut filling = fs::File::create(&rest).unwrap();
    while filling.write_all(&[1; 512]).is_ok() {}
    let file = disk.0.join("n.db");
    let project = disk.0.join("shop");
    let commands = [
        ["db", "create", file.to_str().unwrap()],
        ["init", "--provider=script", project.to_str().unwrap()],
    ];
    for command in commands {
        let refused = run(command);
        assert_eq!(refused.code, Some(1), "{command:?}: {refused:?}");
        for part in ["[disk_full]", "hint: free some space"] {
            assert!(refused.stderr.contains(part), "{command:?}: {refused:?}");
        }
    }
    assert!(!file.exists(), "it has no content");
    drop(filling);
    fs::remove_file(&rest).unwrap();
    for command in commands {
        run(command).good();
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_and_survived() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path().join("small")) else {
        return left_out("a full disk: no file system can be mounted here");
    };
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let mut server = Server::start_on(&disk.0.join("abide.db"));
    let abide = server.client().await;
    abide.call_by_name("create_session", json!({"agent": "a", "id": "s1"})).await.unwrap();
    let message = json!({"session_id": "s1", "role": "user", "content": "x".repeat(30_000)});
    let mut rendered = 1;
    let refused = loop {
        match abide.call_by_name("append_message", &message).await {
            Ok(called) => rendered = called.seq.0,
            Err(refused) => break refused,
        }
    };
    assert!(rendered > 20, "full after {rendered} events");
    assert_eq!(refused.code(), Some(abide_client::Code::DiskFull));
    // The rows of answered calls have space: it is why the call was refused. Another program must not take it before.
    let count = abide.sql("SELECT max(seq) FROM events").fetch::<i64>().await.unwrap();
    assert_eq!(count, [rendered]);
    let rest = disk.0.join("rest");
    let mut filling = fs::File::create(&rest).unwrap();
    while filling.write_all(&[1; 512]).is_ok() {}
    let pairs = ["session_id=s1", "role=user", &format!("content={}", "x".repeat(30_000))];
    let ended = server.run(&["call", "append_message", pairs[0], pairs[1], pairs[2]]);
    check(
        folder.path(),
        &ended,
        expect![[r#"
        exit code 1
        error: the disk is full   [disk_full]
          hint: nothing was written; free some space and try again
    "#]],
    );
    let count = abide.sql("SELECT max(seq) FROM events").fetch::<i64>().await.unwrap();
    assert_eq!(count, [rendered]);

    fs::remove_file(&ballast).unwrap();
    fs::remove_file(&rest).unwrap();
    let again = abide.call_by_name("append_message", &message).await.unwrap();
    assert_eq!(again.seq.0, rendered + 1);
    assert_eq!(server.verify(), rendered + 1);
    server.terminate();
    assert_eq!(server.ended().code, Some(0));
    assert_eq!(server.verify(), rendered + 1);
}
