//! Archived files of every released format (`tests/fixtures/formats/`): each opens, migrates to the
//! current tables, verifies and replays, and retries return the original results. Newer formats are
//! refused without a change to the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_engine::OpenError;
use abide_schema::Seq;
use abide_schema::wire::BatchCall;
use abide_sim::checks::{acknowledged, log, rows};
use abide_sim::disk::{Fault, Machine};
use abide_sim::keep;
use abide_sim::rig::{Rig, SimRequest, VirtualClock, folder};
use rusqlite::Connection;
use serde_json::json;

/// The format of the first release.
const FIRST: i64 = 5;

/// The archive folder of a format.
fn kept_file(format: i64) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/formats");
    formats.join(format.to_string())
}

fn open(folder: &Path) -> Result<Rig, OpenError> {
    let clock = VirtualClock::new();
    // Long after: overdue timers fire when the file is opened.
    clock.advance_ms(365 * 24 * 3_600_000);
    Rig::open(folder, &Arc::new(Machine::new(Fault::None, 1)), &clock)
}

/// Opens the file of a killed process of that release; and again after a clean close.
fn check(format: i64) {
    let folder = folder();
    let history = keep::unpack(&kept_file(format), folder.path()).unwrap();
    let file = folder.path().join("abide.db");
    let before = log::check(&file).unwrap();
    check_replay(&file, format);
    for life in 1..=2 {
        let rig = open(folder.path()).unwrap_or_else(|why| panic!("format {format}: {why}"));
        assert!(rig.engine().durable_seq() >= before.events, "format {format}");
        acknowledged::check(&rig, &history).unwrap_or_else(|found| panic!("{format}: {found}"));
        let args = json!({"agent": "support", "id": format!("life{life}")});
        let calls = vec![BatchCall { reducer: "create_session".to_owned(), args }];
        let ask = SimRequest { caller: "app", calls, request_id: format!("life {life}") };
        rig.run(ask.send(rig.engine())).unwrap();
        rig.close();
        let after = log::check(&file).unwrap();
        assert!(after.events >= Seq(before.events.0 + life), "format {format}: {after:?}");
        check_replay(&file, format);
    }
}

fn check_replay(file: &Path, format: i64) {
    let into = folder();
    rows::check(file, into.path()).unwrap_or_else(|found| panic!("format {format}: {found}"));
}

/// A release with a new format archives a file of it: `abide-sim keep`. Until then a new format has no file.
#[test]
fn a_file_of_every_released_format_opens_verifies_and_replays() {
    let known = abide_store::FORMAT_VERSION;
    for format in FIRST..=known {
        let is_archived = kept_file(format).is_dir();
        let is_in_work = format == known && format > FIRST;
        assert!(is_archived || is_in_work, "there is no file of format {format}");
        if is_archived {
            check(format);
        }
    }
    assert!(!kept_file(known + 1).exists(), "format {} is not known yet", known + 1);
}

/// Opens a file as a later release would have left it; checks the error.
fn check_newer(sql: &str, words: &str) {
    let folder = folder();
    open(folder.path()).unwrap().close();
    let file = folder.path().join("abide.db");
    let raw = Connection::open(&file).unwrap();
    raw.execute_batch(sql).unwrap();
    drop(raw);
    let before = fs::read(&file).unwrap();
    let error = open(folder.path()).expect_err(sql);
    assert!(error.to_string().ends_with(words), "{error}");
    assert_eq!(error.to_refusal().hint.as_deref(), Some("use the newer version of abide"));
    assert!(fs::read(&file).unwrap() == before, "{sql}: the file was changed");
}

#[test]
fn newer_files_are_refused() {
    let format = "its format has version 6, this one supports 5";
    check_newer("PRAGMA user_version = 6", format);
    check_newer(
        "UPDATE meta SET value = '99' WHERE name = 'module.session'",
        "module session has version 99, this one supports 1",
    );
}
