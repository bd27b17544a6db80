//! `abide upgrade`: a file whose pages are organised in another way is converted, with its log and its rows, also if the
//! program is killed meanwhile.

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
    let plan = file.run(&["--plan", "--json"]).json();
    assert_eq!((&plan["current"], &plan["after"]), (&json!(false), &json!(null)), "{plan}");
    let plan = file.run(&["--plan"]).good();
    assert!(plan.contains("The conversion needs") && plan.contains("are free"), "{plan}");

    let converted = file.run(&["--json"]).json();
    assert_eq!(converted["before"]["incremental"], false, "{converted}");
    assert_eq!(converted["after"]["incremental"], true, "{converted}");
    assert_eq!(converted["after"]["free_pages"], 0, "{converted}");
    assert_eq!(head(&file.db), file.head);
    assert!(file.run(&[]).good().contains("has the layout of new files"));
}

#[test]
fn a_file_that_is_served_is_not_converted() {
    let server = Server::start();
    let upgrade = |args: &[&str]| Process::spawn(abide().arg("upgrade").args(args)).ended();
    let db = server.db();
    // A new file needs no conversion, so the server is not disturbed.
    assert!(upgrade(&[db.to_str().unwrap()]).good().contains("has the layout of new files"));
    let missing = upgrade(&["missing.db"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("missing.db does not exist"), "{}", missing.stderr);
    let file = FormerFile::new();
    let reader = Connection::open(&file.db).unwrap();
    reader.execute_batch("PRAGMA journal_mode = WAL; BEGIN; SELECT count(*) FROM meta;").unwrap();
    let refused = file.run(&[]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("locked by another process"), "{}", refused.stderr);
    drop(reader);
    assert_eq!(head(&file.db), file.head);
}

#[test]
fn a_conversion_that_is_killed_leaves_the_old_file_or_the_new_one() {
    let file = FormerFile::new();
    let rollback = PathBuf::from(format!("{}-journal", file.db.display()));
    let mut process = Process::spawn(abide().arg("upgrade").arg(&file.db));
    while process.is_running() && !rollback.exists() {
        thread::yield_now();
    }
    process.kill();
    // The next command that writes rolls an interrupted conversion back.
    let converted = file.run(&["--json"]).json();
    assert!(converted["current"] == true || converted["after"]["incremental"] == true);
    assert_eq!(head(&file.db), file.head);
}
