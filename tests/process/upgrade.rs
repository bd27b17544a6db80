//! `abide upgrade`: a file whose pages are organised in another way is converted, with its log and its rows, also if the
//! program is killed meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;

use crate::program::{Process, abide, run};
use crate::server::Server;

/// A file of the demo, whose free pages stay in the file.
struct FormerFile {
    _folder: TempDir,
    db: PathBuf,
    head: String,
}

impl FormerFile {
    fn new() -> FormerFile {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("former.db");
        let keep = db.to_str().unwrap();
        run(["demo", "--json", "--conversations", "3", "--keep", keep]).good();
        let file = Connection::open(&db).unwrap();
        file.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = NONE; VACUUM;")
            .unwrap();
        drop(file);
        let head = head(&db);
        FormerFile { _folder: folder, db, head }
    }

    /// The names in its folder.
    fn names(&self) -> Vec<String> {
        let folder = fs::read_dir(self.db.parent().unwrap()).unwrap();
        let mut names: Vec<String> =
            folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn run(&self, args: &[&str]) -> crate::program::ExitedProcess {
        Process::spawn(abide().arg("upgrade").arg(&self.db).args(args)).ended()
    }
}

/// The head of a file's log, if all its rows follow from the log.
fn head(db: &Path) -> String {
    let verified = run(["verify", "--rows", "--json", db.to_str().unwrap()]).json();
    verified["head"].as_str().unwrap().to_owned()
}

#[test]
fn a_file_is_converted_once_and_keeps_its_log() {
    let file = FormerFile::new();
    let before = file.names();
    let plan = file.run(&["--check", "--json"]).json();
    assert_eq!((&plan["current"], &plan["after"]), (&json!(false), &json!(null)), "{plan}");
    assert_eq!((&plan["opens"], &plan["format"]), (&json!(true), &json!(5)), "{plan}");
    assert_eq!((&plan["downgrade"], &plan["migrations"]), (&json!(true), &json!([])), "{plan}");
    let plan = file.run(&["--check"]).good();
    assert!(plan.contains("Conversion to the page layout") && plan.contains("are free"), "{plan}");
    assert_eq!(file.names(), before, "a check leaves no file");

    let converted = file.run(&["--json"]).json();
    assert_eq!(converted["before"]["incremental"], false, "{converted}");
    assert_eq!(converted["after"]["incremental"], true, "{converted}");
    assert_eq!(converted["after"]["free_pages"], 0, "{converted}");
    assert_eq!(head(&file.db), file.head);
    let backup = PathBuf::from(converted["backup"].as_str().unwrap());
    assert_eq!(head(&backup), file.head);
    assert!(file.run(&[]).good().contains("there is nothing to migrate or convert"));
}

/// What a check says of files that it can open, or not. It changes none of them, and leaves no file next to them.
#[test]
fn a_check_describes_any_file_and_changes_none() {
    let file = FormerFile::new();
    let newer = file.db.with_file_name("newer.db");
    fs::copy(&file.db, &newer).unwrap();
    Connection::open(&newer).unwrap().pragma_update(None, "user_version", 6).unwrap();
    let former = file.db.with_file_name("former-format.db");
    fs::copy(&file.db, &former).unwrap();
    Connection::open(&former).unwrap().pragma_update(None, "user_version", 4).unwrap();
    let garbage = file.db.with_file_name("garbage.db");
    fs::write(
        &garbage,
        "not a database, whatever its name says, and longer than a header".repeat(40),
    )
    .unwrap();
    let empty = file.db.with_file_name("empty.db");
    fs::write(&empty, "").unwrap();
    let before = file.names();
    for (path, format, words) in [
        (&newer, json!(6), "was written by a newer Abide"),
        (&former, json!(4), "before 0.1, in format 4"),
        (&garbage, json!(null), "it is not a SQLite file"),
        (&empty, json!(null), "is empty, not a database file"),
    ] {
        let content = fs::read(path).unwrap();
        let db = path.to_str().unwrap();
        let refused = run(["upgrade", db, "--check", "--json"]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let told: serde_json::Value = serde_json::from_str(&refused.stdout).unwrap();
        assert_eq!((&told["opens"], &told["format"]), (&json!(false), &format), "{told}");
        let detail = told["error"]["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{told}");
        let refused = run(["upgrade", db, "--check"]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(words) && refused.stderr.contains("hint:"), "{refused:?}");
        assert!(fs::read(path).unwrap() == content, "{db} was changed");
    }
    assert_eq!(file.names(), before);
}

/// The server of a file that is checked may run, or may have been killed with events in its journal.
#[test]
fn a_check_reads_a_file_that_a_server_has_open_or_left() {
    let file = FormerFile::new();
    file.run(&["--no-backup"]).good();
    assert!(file.names().iter().all(|name| !name.contains(".backup-")), "none was asked for");
    let mut server = Server::start_on(&file.db);
    server.run(&["call", "create_session", "agent=support"]).good();
    let served = file.run(&["--check", "--json"]).json();
    assert_eq!((&served["opens"], &served["in_use"]), (&json!(true), &json!(true)), "{served}");
    server.kill();
    let states = || -> Vec<_> {
        let names = file.names().into_iter().filter(|name| !name.ends_with("-shm"));
        names.map(|name| fs::read(file.db.with_file_name(name)).unwrap()).collect()
    };
    let before = states();
    let left = file.run(&["--check", "--json"]).json();
    assert_eq!((&left["opens"], &left["in_use"]), (&json!(true), &json!(false)), "{left}");
    assert!(states() == before, "the files were changed");
}

#[test]
fn a_file_that_is_served_is_not_converted() {
    let missing = Process::spawn(abide().args(["upgrade", "missing.db"])).ended();
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("missing.db does not exist"), "{}", missing.stderr);
    let file = FormerFile::new();
    let server = Server::start_on(&file.db);
    let refused = file.run(&[]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is in use by another process"), "{}", refused.stderr);
    assert!(refused.stderr.contains("hint: end the process"), "{}", refused.stderr);
    drop(server);
    file.run(&["--json"]).json();
}

/// SQLite writes such a file over a database, also over one that it does not belong to.
#[test]
fn a_rollback_journal_of_another_file_is_refused() {
    let file = FormerFile::new();
    file.run(&[]).good();
    let before = fs::read(&file.db).unwrap();
    let journal = format!("{}-journal", file.db.display());
    // Its header: no page, and a database of one page.
    let magic = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let mut header = magic.to_vec();
    for number in [0_u32, 1, 1, 512, 4_096] {
        header.extend(number.to_be_bytes());
    }
    header.resize(512, 0);
    fs::write(&journal, header).unwrap();
    let db = file.db.to_str().unwrap();
    let commands: [&[&str]; 5] = [
        &["serve", "--listen", "127.0.0.1:0", "--db", db],
        &["sql", "SELECT 1", "--db", db],
        &["verify", db],
        &["upgrade", db],
        &["backup", "copy.db", "--db", db],
    ];
    for command in commands {
        let refused = run(command);
        assert_eq!(refused.code, Some(1), "{command:?}: {refused:?}");
        assert!(refused.stderr.contains("-journal is not a file of this database"), "{refused:?}");
        assert!(fs::read(&file.db).unwrap() == before, "{command:?} changed the file");
    }
    fs::remove_file(journal).unwrap();
    assert_eq!(head(&file.db), file.head);
}

/// A file that has no WAL, which another program wrote when it was killed.
#[test]
fn a_transaction_that_another_program_left_is_taken_back() {
    let file = FormerFile::new();
    let former = Connection::open(&file.db).unwrap();
    former
        .execute_batch("PRAGMA cache_size = 1; BEGIN; UPDATE agent_state SET content = 'changed';")
        .unwrap();
    former.cache_flush().unwrap();
    let db = file.db.with_file_name("left.db");
    let journal = |db: &PathBuf| format!("{}-journal", db.display());
    fs::copy(&file.db, &db).unwrap();
    fs::copy(journal(&file.db), journal(&db)).unwrap();
    drop(former);

    let left = fs::read(&db).unwrap();
    let refused = run(["verify", db.to_str().unwrap()]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("while another program wrote it"), "{refused:?}");
    assert!(fs::read(&db).unwrap() == left, "the file was changed");
    Server::start_on(&db).stop();
    assert_eq!(head(&db), file.head);
}

#[test]
fn a_conversion_that_is_killed_leaves_the_old_file_or_the_new_one() {
    let file = FormerFile::new();
    let wal = PathBuf::from(format!("{}-wal", file.db.display()));
    let mut process = Process::spawn(abide().arg("upgrade").arg(&file.db));
    while process.is_running() && fs::metadata(&wal).map_or(0, |meta| meta.len()) < 200_000 {
        thread::yield_now();
    }
    process.kill();
    assert_eq!(head(&file.db), file.head);
    let converted = file.run(&["--json"]).json();
    assert!(converted["current"] == true || converted["after"]["incremental"] == true);
    assert_eq!(head(&file.db), file.head);
}
