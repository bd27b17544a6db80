//! Archived files of every released format (`tests/fixtures/formats/`): each opens, migrates to the
//! current tables, verifies and replays, and retries return the original results. Newer formats are
//! refused without a change to the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_engine::OpenError;
use abide_schema::Seq;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_sim::checks::{acknowledged, log, rows};
use abide_sim::disk::{Fault, Machine};
use abide_sim::keep;
use abide_sim::rig::{Rig, SimRequest, VirtualClock, folder};
use expect_test::{Expect, expect};
use rusqlite::Connection;
use serde_json::{Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

/// The archive folder of a format.
fn kept_file(format: u32) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/formats");
    formats.join(format.to_string())
}

fn open(folder: &Path) -> Result<Rig, OpenError> {
    let clock = VirtualClock::new();
    // Long after: overdue timers fire when the file is opened.
    clock.advance_ms(365 * 24 * 3_600_000);
    Rig::open(folder, &Arc::new(Machine::new(Fault::None, 1)), &clock)
}

/// A summary of an old file, from its log.
fn summary(file: &Path) -> String {
    let raw = Connection::open(file).unwrap();
    let one = |sql: &str| raw.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    format!(
        "{} events by {} reducers, the last {}\n",
        one("SELECT CAST(count(*) AS TEXT) FROM events"),
        one("SELECT CAST(count(DISTINCT reducer) AS TEXT) FROM events"),
        one("SELECT lower(hex(substr(hash, 1, 8))) FROM events ORDER BY seq DESC LIMIT 1"),
    )
}

/// Opens the file of a killed process of that release; and again after a clean close.
fn check(format: u32, expected: Expect) {
    let (folder, again) = (folder(), folder());
    let history = keep::unpack(&kept_file(format), folder.path()).unwrap();
    let file = folder.path().join("abide.db");
    expected.assert_eq(&summary(&file));
    let before = log::check(&file).unwrap();
    // As it is, before a newer version has added its columns. (`verify --replay` said of a file with a fork that its rows
    // were changed outside of the log: the version after it fills a new column.)
    let into = again.path().join("before");
    fs::create_dir(&into).unwrap();
    rows::check(&file, &into).unwrap_or_else(|found| panic!("format {format}: {found}"));
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
        let into = again.path().join(life.to_string());
        fs::create_dir(&into).unwrap();
        rows::check(&file, &into).unwrap_or_else(|found| panic!("format {format}: {found}"));
    }
}

#[test]
fn format_1_opens_verifies_and_replays() {
    check(
        1,
        expect![[r#"
        98 events by 44 reducers, the last 199d880e815bf8c2
    "#]],
    );
}

/// Rewrites the first event of the archived file to one of a caller with a scope, as format 1
/// recorded it: the scope is in the event and in the fingerprint, and the request id is stored
/// without the scope.
fn make_first_request_scoped(file: &Path, caller: &Caller) -> (String, JsonValue) {
    let raw = Connection::open(file).unwrap();
    let (reducer, arguments, request): (String, String, String) = raw
        .query_row("SELECT reducer, arguments, request_id FROM events WHERE seq = 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!(reducer, "create_session");
    let mut fingerprint = Sha256::new();
    fingerprint.update(json!(caller.scope()).to_string());
    fingerprint.update((reducer.len() as u64).to_be_bytes());
    fingerprint.update(&reducer);
    fingerprint.update(Sha256::digest(&arguments));
    let fingerprint: [u8; 32] = fingerprint.finalize().into();
    let sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'events'";
    let triggers: Vec<(String, String)> = {
        let mut triggers = raw.prepare(sql).unwrap();
        let rows = triggers.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    for (name, _) in &triggers {
        raw.execute_batch(&format!("DROP TRIGGER {name}")).unwrap();
    }
    let changed = raw
        .execute(
            "UPDATE events SET caller = ?1, authority = ?2 WHERE seq = 1",
            (caller.id(), caller.authority()),
        )
        .unwrap()
        + raw
            .execute(
                "UPDATE request_ids SET caller = ?1, fingerprint = ?2 WHERE request_id = ?3",
                (caller.id(), fingerprint, &request),
            )
            .unwrap();
    assert_eq!(changed, 2);
    for (_, sql) in &triggers {
        raw.execute_batch(sql).unwrap();
    }
    (request, serde_json::from_str(&arguments).unwrap())
}

/// Format 1 stored the request ids of callers with a scope without the scope. After the upgrade a
/// retry was not found and ran again.
#[test]
fn a_scoped_retry_of_a_format_1_request_returns_the_first_result() {
    let folder = folder();
    keep::unpack(&kept_file(1), folder.path()).unwrap();
    let scoped_caller = |key: &str, value: &str| {
        let scope = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Caller::with("ann", "app", BTreeSet::new(), scope)
    };
    let acme = scoped_caller("tenant", "t1");
    let zeta = scoped_caller("desk", "zeta");
    let (request, args) = make_first_request_scoped(&folder.path().join("abide.db"), &acme);
    let rig = open(folder.path()).unwrap();
    let ask = |caller: &Caller, args: &JsonValue| {
        let engine = rig.engine();
        rig.run(engine.call(caller, "create_session", args, Some(&request)))
    };
    rig.settle();
    let before = rig.engine().durable_seq();
    let output = ask(&acme, &args).unwrap();
    assert_eq!((output.seq, output.duplicate, rig.engine().durable_seq()), (Seq(1), true, before));
    let stored: JsonValue = serde_json::from_str(&output.result).unwrap();
    assert_eq!(stored["id"], args["id"]);
    // The same identity in another scope has its own request ids.
    let own = ask(&zeta, &args).unwrap();
    assert!(!own.duplicate && own.seq > before && own.result.contains("desk=zeta/s1"));
    assert!(ask(&zeta, &args).unwrap().duplicate);
    // Another request with that id is not a conflict: it runs, and takes the id.
    let other = json!({"agent": "support", "id": "other"});
    assert!(!ask(&acme, &other).unwrap().duplicate);
    assert!(ask(&acme, &other).unwrap().duplicate);
    rig.close();
}

/// Events with salts.
#[test]
fn format_2_opens_verifies_and_replays() {
    check(
        2,
        expect![[r#"
        113 events by 55 reducers, the last 12ee6c896a51255b
    "#]],
    );
}

/// With a journal, in eight segments.
#[test]
fn format_3_opens_verifies_and_replays() {
    check(
        3,
        expect![[r#"
        227 events by 57 reducers, the last 45ef733718302a08
    "#]],
    );
}

/// With undo images of changed columns, and a journal that has long texts once.
#[test]
fn format_4_opens_verifies_and_replays() {
    check(
        4,
        expect![[r#"
        252 events by 75 reducers, the last 99dad31b4d321751
    "#]],
    );
}

/// A release with a new format archives a file of it: `abide-sim keep`.
#[test]
fn a_file_of_every_format_is_archived() {
    let known = u32::try_from(abide_store::FORMAT_VERSION).unwrap();
    for format in 1..=known {
        assert!(kept_file(format).is_dir(), "there is no file of format {format}");
    }
    assert!(!kept_file(known + 1).exists(), "format {} is not known yet", known + 1);
}

/// Opens the archived file as a later release would have left it; checks the error.
fn check_newer(sql: &str, words: &str) {
    let folder = folder();
    keep::unpack(&kept_file(1), folder.path()).unwrap();
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
    let format = "its format has version 5, this one supports 4";
    check_newer("PRAGMA user_version = 5", format);
    check_newer(
        "UPDATE meta SET value = '99' WHERE name = 'module.session'",
        "module session has version 99, this one supports 1",
    );
}
