//! The journal: a file and the journal next to it, however they were combined.

use std::fs;
use std::path::{Path, PathBuf};

use abide_engine::{Engine, VerifiedTable, verify_file};
use abide_schema::Seq;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_tests::world::{World, run};
use expect_test::{Expect, expect};
use rusqlite::Connection;
use serde_json::{Map, json};

use crate::durability::companion;

/// A world whose session has so many messages, after a clean close and another opening.
fn world_with(messages: usize) -> World {
    let mut world = World::new(abide_reducers::modules);
    run(async {
        world.session("s1").await;
        for nth in 0..messages {
            world.append_message("s1", &format!("message {nth}")).await.unwrap();
        }
    });
    world.reopen();
    world
}

fn append_message(world: &World, content: &str) -> Seq {
    run(world.append_message("s1", content)).unwrap().seq
}

/// Opens a copy of a database next to a copy of the journal of another one.
fn open_with_journal(database: &Path, journal: &World, into: &Path) -> Result<Engine, String> {
    fs::copy(database, into).unwrap();
    fs::copy(companion(&journal.path(), "-redo-1"), companion(into, "-redo-1")).unwrap();
    let opened = Engine::open(into, journal.config(abide_reducers::modules()));
    opened.map_err(|error| {
        let refusal = error.to_refusal();
        let folder = journal.folder.path().display().to_string();
        let detail = refusal.detail.replace(&folder, "FOLDER");
        format!("{}: {detail}\nhint: {}\n", refusal.code, refusal.hint.unwrap_or_default())
    })
}

fn check(database: &Path, journal: &World, expected: Expect) {
    let into = journal.folder.path().join("both.db");
    let before = fs::read(companion(&journal.path(), "-redo-1")).unwrap();
    expected.assert_eq(&open_with_journal(database, journal, &into).expect_err("it was opened"));
    assert!(fs::read(companion(&into, "-redo-1")).unwrap() == before, "the journal was changed");
    assert!(!companion(&into, "-wal").exists(), "a WAL was left");
}

/// A journal of another database was ignored by readers: the file was verified, and could not be served.
#[test]
fn a_reader_refuses_the_journal_of_another_database() {
    let mut world = world_with(3);
    world.close();
    let database = copied(&world, "alone.db");
    let other = world_with(2);
    append_message(&other, "in its journal");
    fs::copy(companion(&other.path(), "-redo-1"), companion(&database, "-redo-1")).unwrap();
    let refused = verify_file(&database, abide_reducers::modules(), &mut |_| {}).unwrap_err();
    let detail = refused.to_refusal().detail;
    assert!(detail.ends_with("belongs to another database"), "{detail}");
    assert!(!companion(&database, "-wal").exists(), "a WAL was left");
}

/// Continues a copy of the file of a world with these messages, and closes it.
fn continue_copy(database: &Path, world: &World, contents: &[&str]) {
    let engine = Engine::open(database, world.config(abide_reducers::modules())).unwrap();
    run(async {
        for content in contents {
            let args = json!({"session_id": "s1", "role": "user", "content": content});
            engine.call(&Caller::new("local"), "append_message", &args, None).await.unwrap();
        }
    });
    engine.close();
}

/// A reader and a server refuse a file with the same words. Neither may change it.
fn check_refused(database: &Path, world: &World, end_of_detail: &str) {
    let state = || ["", "-wal"].map(|suffix| fs::read(companion(database, suffix)).ok());
    let before = state();
    let verified = verify_file(database, abide_reducers::modules(), &mut |_| {})
        .expect_err("it was verified")
        .to_refusal();
    let opened = Engine::open(database, world.config(abide_reducers::modules()))
        .expect_err("it was opened")
        .to_refusal();
    assert_eq!(verified, opened);
    assert!(verified.detail.ends_with(end_of_detail), "{verified:?}");
    assert!(state() == before, "the file was changed");
}

/// Readers compared only the ends: a file that was ahead of the journal of another copy was verified.
#[test]
fn a_reader_refuses_the_journal_of_another_history_that_the_file_has_passed() {
    let world = world_with(3);
    let database = copied(&world, "other.db");
    append_message(&world, "one history");
    continue_copy(&database, &world, &["another history", "after it"]);
    fs::copy(companion(&world.path(), "-redo-1"), companion(&database, "-redo-1")).unwrap();
    check_refused(&database, &world, "does not continue event 7");
}

/// The records of another history that ended after the file, and began before its end, were taken for a torn end.
#[test]
fn a_record_that_begins_before_the_end_of_the_file_is_of_another_history() {
    let world = world_with(3);
    let database = copied(&world, "other.db");
    let call = |content: &str| BatchCall {
        reducer: "append_message".to_owned(),
        args: json!({"session_id": "s1", "role": "user", "content": content}),
    };
    let calls = ["one history", "of the same", "group"].map(call);
    run(world.engine().batch(&Caller::new("local"), &calls, None)).unwrap();
    continue_copy(&database, &world, &["another history"]);
    fs::copy(companion(&world.path(), "-redo-1"), companion(&database, "-redo-1")).unwrap();
    check_refused(&database, &world, "does not continue event 6");
}

/// Each event fills a page, so the WAL of the other copy has no event that the file has, too: SQLite put its pages over
/// those of the file, and the log broke between the two.
#[test]
fn the_wal_of_another_copy_without_a_journal() {
    let mut world = world_with(3);
    let database = copied(&world, "other.db");
    let fills_a_page = |letter: &str| letter.repeat(3_000);
    append_message(&world, &fills_a_page("a"));
    world.reopen();
    append_message(&world, &fills_a_page("b"));
    continue_copy(&database, &world, &[&fills_a_page("c")]);
    // A reader waits for the commit of SQLite.
    verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).unwrap();
    fs::copy(companion(&world.path(), "-wal"), companion(&database, "-wal")).unwrap();
    check_refused(&database, &world, " of it");
}

/// One bit of an answered record was enough to lose it, and those after it, without a word.
#[test]
fn a_record_that_was_damaged_after_its_answer_is_found() {
    let world = world_with(3);
    let database = copied(&world, "early.db");
    let end = world.engine().durable_seq();
    append_message(&world, "the damaged one");
    append_message(&world, "one after it");
    let answered = append_message(&world, "the last one");
    let redo = companion(&database, "-redo-1");
    let mut content = fs::read(companion(&world.path(), "-redo-1")).unwrap();
    let text = b"the damaged one";
    let at = content.windows(text.len()).position(|bytes| bytes == text).unwrap();
    content[at] ^= 1;
    fs::write(&redo, &content).unwrap();
    let verified = verify_file(&database, abide_reducers::modules(), &mut |_| {}).unwrap_err();
    let opened = Engine::open(&database, world.config(abide_reducers::modules())).unwrap_err();
    let one_before = Seq(answered.0 - 1);
    let expected = format!(
        "the journal next to the file is damaged: the file ends at event {end} with it, and events up to {one_before} were answered"
    );
    for detail in [verified.to_refusal().detail, opened.to_refusal().detail] {
        assert!(detail.ends_with(&expected), "{detail}");
    }
    assert!(fs::read(&redo).unwrap() == content, "the journal was changed");
}

/// One bit of a header was enough to lose all answered records of its segment: the segment was taken for one that a
/// crash had left before its first sync.
#[test]
fn a_header_that_was_damaged_after_the_answers_is_found() {
    let world = world_with(3);
    let database = copied(&world, "early.db");
    let end = world.engine().durable_seq();
    let first = append_message(&world, "the first one");
    let last = append_message(&world, "the last one");
    let redo = companion(&database, "-redo-1");
    let content = fs::read(companion(&world.path(), "-redo-1")).unwrap();
    let mut flipped = content.clone();
    flipped[20] ^= 1;
    let mut zeroed = content;
    zeroed[..512].fill(0);
    // Of a header of zeros, only what the last record names as durable is known to be answered.
    for (damaged, known) in [(&flipped, last), (&zeroed, first)] {
        fs::write(&redo, damaged).unwrap();
        check_refused(
            &database,
            &world,
            &format!(
                "the header of early.db-redo-1 is damaged: the file ends at event {end} without it, \
                 and it has events up to {known}"
            ),
        );
        assert!(fs::read(&redo).unwrap() == *damaged, "the journal was changed");
    }
    // Nothing is lost.
    run(world.rows("SELECT 1 FROM sessions"));
    let into = world.folder.path().join("both.db");
    with_wal_of(&world, &world.path(), &into, &["-wal"]);
    fs::write(companion(&into, "-redo-1"), &flipped).unwrap();
    let engine = Engine::open(&into, world.config(abide_reducers::modules())).unwrap();
    assert_eq!(engine.durable_seq(), last);
    engine.close();
}

/// The header and the first records are synced together: a crash before that can leave any of them.
#[test]
fn a_segment_whose_header_did_not_reach_the_disk_is_not_applied() {
    let world = world_with(3);
    let database = copied(&world, "early.db");
    let end = world.engine().durable_seq();
    append_message(&world, "not answered");
    let mut content = fs::read(companion(&world.path(), "-redo-1")).unwrap();
    content[..512].fill(0);
    fs::write(companion(&database, "-redo-1"), &content).unwrap();
    let engine = Engine::open(&database, world.config(abide_reducers::modules())).unwrap();
    assert_eq!(engine.durable_seq(), end);
    engine.close();
}

/// A copy of the database file alone.
fn copied(world: &World, name: &str) -> PathBuf {
    let to = world.folder.path().join(name);
    fs::copy(world.path(), &to).unwrap();
    to
}

#[test]
fn a_database_without_its_wal_gets_all_calls_from_the_journal() {
    let world = world_with(3);
    let database = copied(&world, "early.db");
    let last = append_message(&world, "only in the journal");
    let into = world.folder.path().join("both.db");
    let engine = open_with_journal(&database, &world, &into).unwrap();
    assert_eq!(engine.durable_seq(), last);
    let sql = "SELECT content FROM agent_state ORDER BY id DESC LIMIT 1";
    let answer = run(engine.query(&Caller::local(), sql, &Map::new(), None)).unwrap();
    assert_eq!(answer.rows[0][0].to_json(), json!("only in the journal"));
    engine.close();
    assert!(!companion(&into, "-redo-1").exists(), "a closed file has no journal");
    assert_eq!(verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap().events, last);
}

/// Everything that two copies which applied the same records have in common: tables, undo images, and what the file says of
/// itself. The copy starts one more opening.
fn content_of(path: &Path) -> (Vec<VerifiedTable>, Vec<String>) {
    let verified = verify_file(path, abide_reducers::modules(), &mut |_| {}).unwrap();
    let file = Connection::open(path).unwrap();
    let mut texts = Vec::new();
    for sql in [
        "SELECT seq || table_name || from_seq || hex(images) FROM change_log ORDER BY seq, table_name",
        "SELECT name || ' ' || value FROM meta WHERE name NOT IN ('epoch', 'timelines') ORDER BY name",
        "SELECT value FROM meta WHERE name = 'timelines'",
    ] {
        let mut statement = file.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        texts.extend(rows.map(Result::unwrap));
    }
    // The last timeline is that of the opening which applied the records.
    let timelines = texts.pop().unwrap();
    texts.push(timelines.rsplit_once(' ').unwrap().0.to_owned());
    (verified.tables, texts)
}

/// The undo images expire after twenty events, so the journal has records of that, too.
#[test]
fn the_same_records_lead_to_the_same_content_from_any_state() {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    world.close();
    let mut config = world.config(abide_reducers::modules());
    config.retention.events = Some(20);
    world.open_with(config);
    let mut copies = vec![copied(&world, "first.db")];
    for nth in 0..60 {
        append_message(&world, &format!("message {nth}"));
        if nth % 25 == 24 {
            // Copies the rows so far into the file, and keeps the journal.
            let raw = Connection::open(world.path()).unwrap();
            raw.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
            copies.push(copied(&world, &format!("after-{nth}.db")));
        }
    }
    // The journal does not grow after the last commit of SQLite, for which a reader waits.
    run(world.rows("SELECT 1 FROM sessions"));
    let mut contents = Vec::new();
    for (nth, copy) in copies.iter().enumerate() {
        let into = world.folder.path().join(format!("applied-{nth}.db"));
        open_with_journal(copy, &world, &into).unwrap().close();
        contents.push(content_of(&into));
    }
    assert!(
        contents[0].1.iter().any(|text| text.starts_with("change_log_floor 4")),
        "{contents:?}"
    );
    assert_eq!(contents[0], contents[1]);
    assert_eq!(contents[0], contents[2]);
}

/// The calls of another copy of the same database were deleted with their journal, which ended before the file did.
#[test]
fn the_journal_of_another_branch_that_is_shorter() {
    let world = world_with(3);
    let database = copied(&world, "common.db");
    let branch = folder_of(&world, "branch");
    let mut other = World::new(abide_reducers::modules);
    other.close();
    fs::copy(&database, other.path()).unwrap();
    other.open();
    for nth in 0..9 {
        append_message(&other, &format!("on the other branch {nth}"));
    }
    other.close();
    append_message(&world, "on this branch");
    append_message(&world, "after it");
    let into = branch.join("both.db");
    fs::copy(other.path(), &into).unwrap();
    fs::copy(companion(&world.path(), "-redo-1"), companion(&into, "-redo-1")).unwrap();
    let before = fs::read(&into).unwrap();
    let error = Engine::open(&into, world.config(abide_reducers::modules())).unwrap_err();
    let detail = error.to_refusal().detail;
    assert!(detail.contains("does not continue event"), "{detail}");
    assert!(fs::read(&into).unwrap() == before, "the file was changed");
}

/// A WAL and a journal of an earlier state of the file once rolled it back.
#[test]
fn the_wal_and_the_journal_of_an_earlier_state() {
    let world = world_with(3);
    append_message(&world, "in both");
    let folder = folder_of(&world, "mixed");
    let into = folder.join("mixed.db");
    run(world.rows("SELECT 1 FROM sessions"));
    for suffix in ["-wal", "-redo-1"] {
        fs::copy(companion(&world.path(), suffix), companion(&into, suffix)).unwrap();
    }
    let mut world = world;
    append_message(&world, "only in the later file");
    let last = append_message(&world, "the last one");
    world.close();
    fs::copy(world.path(), &into).unwrap();
    let error = Engine::open(&into, world.config(abide_reducers::modules())).unwrap_err();
    let detail = error.to_refusal().detail;
    assert!(detail.ends_with("belong to an earlier state of it"), "{detail}");
    let refused = verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("an earlier state"), "{refused}");
    for suffix in ["-wal", "-redo-1"] {
        fs::remove_file(companion(&into, suffix)).unwrap();
    }
    assert_eq!(verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap().events, last);
}

/// A reader of a file whose WAL is missing once succeeded without the calls that were in it.
#[test]
fn a_reader_notices_that_calls_between_the_file_and_its_journal_are_missing() {
    let world = world_with(3);
    let early = copied(&world, "early.db");
    append_message(&world, "in the WAL that is missing");
    let mut world = world;
    world.reopen();
    append_message(&world, "in the next journal");
    let into = folder_of(&world, "gap").join("gap.db");
    fs::copy(early, &into).unwrap();
    fs::copy(companion(&world.path(), "-redo-1"), companion(&into, "-redo-1")).unwrap();
    let refused = verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("but its journal continues from event"), "{refused}");
}

/// SQLite removes the WAL of an empty database, also for a reader.
#[test]
fn a_reader_of_an_emptied_file_keeps_its_wal() {
    let world = world_with(1);
    append_message(&world, "in the WAL");
    run(world.rows("SELECT 1 FROM sessions"));
    let into = folder_of(&world, "emptied").join("emptied.db");
    fs::write(&into, "").unwrap();
    let wal = companion(&into, "-wal");
    fs::copy(companion(&world.path(), "-wal"), &wal).unwrap();
    let refused = verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("is missing or empty"), "{refused}");
    assert!(fs::metadata(&wal).unwrap().len() > 0, "the WAL is gone");
}

/// A new folder for files next to each other.
fn folder_of(world: &World, name: &str) -> PathBuf {
    let folder = world.folder.path().join(name);
    fs::create_dir(&folder).unwrap();
    folder
}

/// A program that reads the file of a killed process must not miss what was answered.
#[test]
fn a_reader_applies_the_journal_of_a_killed_process() {
    let world = world_with(1);
    let database = copied(&world, "early.db");
    let last = append_message(&world, "only in the journal");
    let into = world.folder.path().join("both.db");
    fs::copy(database, &into).unwrap();
    fs::copy(companion(&world.path(), "-redo-1"), companion(&into, "-redo-1")).unwrap();
    assert_eq!(verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap().events, last);
}

/// While a server runs, a reader waits for the next commit of SQLite.
#[test]
fn a_reader_beside_a_server_misses_no_answered_call() {
    let world = world_with(1);
    for nth in 0..20 {
        let last = append_message(&world, &format!("answered {nth}"));
        assert_eq!(
            verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).unwrap().events,
            last
        );
    }
}

#[test]
fn the_journal_of_another_database() {
    let world = world_with(3);
    let other = world_with(3);
    append_message(&world, "more");
    let database = copied(&other, "other.db");
    check(
        &database,
        &world,
        expect![[r#"
        conflict: FOLDER/both.db: the journal next to the file belongs to another database
        hint: restore the file that it belongs to; to do without its events, move the -redo- files away, and the -wal file if it came with them
    "#]],
    );
}

#[test]
fn the_journal_of_a_database_that_was_removed() {
    let world = world_with(1);
    append_message(&world, "more");
    let empty = world.folder.path().join("empty.db");
    fs::write(&empty, "").unwrap();
    check(
        &empty,
        &world,
        expect![[r#"
            conflict: FOLDER/both.db is missing or empty, but its -wal or -redo- files are there
            hint: put the file back; to do without its events, move the -wal and -redo- files away
        "#]],
    );
}

/// The tables of a new file are in its WAL until the first checkpoint.
#[test]
fn a_new_database_without_its_wal() {
    let world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    let database = copied(&world, "new.db");
    check(
        &database,
        &world,
        expect![[r#"
        conflict: FOLDER/both.db: the file has no tables: its -wal is missing, or the journal next to it is of another file
        hint: restore the file that it belongs to; to do without its events, move the -redo- files away, and the -wal file if it came with them
    "#]],
    );
}

/// SQLite removes the WAL next to a missing database, so a refused start lost calls.
#[test]
fn a_refused_start_without_the_database_changes_nothing() {
    let mut world = world_with(1);
    let last = append_message(&world, "only in the WAL and the journal");
    let folder = tempfile::tempdir().unwrap();
    let [database, kept] = ["abide.db", "kept.db"].map(|name| folder.path().join(name));
    for suffix in ["-wal", "-redo-1"] {
        fs::copy(companion(&world.path(), suffix), companion(&database, suffix)).unwrap();
    }
    fs::copy(world.path(), &kept).unwrap();
    world.close();
    let config = || world.config(abide_reducers::modules());
    let error = Engine::open(&database, config()).unwrap_err().to_refusal();
    assert!(error.detail.ends_with("its -wal or -redo- files are there"), "{error:?}");
    let read = verify_file(&database, abide_reducers::modules(), &mut |_| {}).unwrap_err();
    assert_eq!(read.to_refusal().detail, error.detail);
    assert!(!database.exists(), "a database was created");
    fs::rename(&kept, &database).unwrap();
    let engine = Engine::open(&database, config()).unwrap();
    assert_eq!(engine.durable_seq(), last);
    engine.close();
}

#[test]
fn a_database_that_is_older_than_the_journal() {
    let mut world = world_with(3);
    let database = copied(&world, "older.db");
    append_message(&world, "closed into the file");
    world.reopen();
    append_message(&world, "in the journal");
    check(
        &database,
        &world,
        expect![[r#"
        conflict: FOLDER/both.db: the file ends at event 5, but its journal continues from event 6
        hint: restore the file that it belongs to; to do without its events, move the -redo- files away, and the -wal file if it came with them
    "#]],
    );
}

#[test]
fn a_database_with_another_history() {
    let mut world = world_with(3);
    let database = copied(&world, "other.db");
    append_message(&world, "one history");
    // The other history, of the same length.
    let config = world.config(abide_reducers::modules());
    world.clock.advance_ms(5);
    let engine = Engine::open(&database, config).unwrap();
    let args = json!({"session_id": "s1", "role": "user", "content": "another history"});
    let both = async {
        engine.call(&Caller::new("local"), "append_message", &args, None).await.unwrap();
    };
    run(both);
    engine.close();
    world.reopen();
    append_message(&world, "in the journal");
    check(
        &database,
        &world,
        expect![[r#"
        conflict: FOLDER/both.db: the journal next to the file does not continue event 6
        hint: restore the file that it belongs to; to do without its events, move the -redo- files away, and the -wal file if it came with them
    "#]],
    );
}

/// The files of `world` without a clean close, with another database file in the place of its own.
fn with_wal_of(world: &World, database: &Path, into: &Path, suffixes: &[&str]) {
    fs::copy(database, into).unwrap();
    for suffix in suffixes {
        fs::copy(companion(&world.path(), suffix), companion(into, suffix)).unwrap();
    }
}

/// Opens and verifies a file; neither may change it.
fn check_wal(world: &World, database: &Path, suffixes: &[&str], expected: &str) {
    let into = world.folder.path().join("both.db");
    with_wal_of(world, database, &into, suffixes);
    let state = || ["", "-wal"].map(|suffix| fs::read(companion(&into, suffix)).unwrap());
    let before = state();
    let verified = verify_file(&into, abide_reducers::modules(), &mut |_| {})
        .expect_err("it was verified")
        .to_refusal();
    let opened = Engine::open(&into, world.config(abide_reducers::modules()))
        .expect_err("it was opened")
        .to_refusal();
    assert_eq!((verified.code, &verified.detail), (opened.code, &opened.detail));
    let folder = world.folder.path().display().to_string();
    let text = format!("{}: {}\nhint: {}\n", opened.code, opened.detail, opened.hint.unwrap());
    assert_eq!(text.replace(&folder, "FOLDER"), expected);
    assert!(state() == before, "the file was changed");
}

/// A young database is in its WAL, as a whole: SQLite replaced a restored file by it, and it verified.
#[test]
fn the_wal_of_another_database() {
    let world = World::new(abide_reducers::modules);
    let other = world_with(3);
    run(world.session("s1"));
    let database = copied(&other, "other.db");
    for suffixes in [&["-wal"][..], &["-wal", "-redo-1"]] {
        check_wal(&world, &database, suffixes, BELONG_TO_ANOTHER);
    }
}

const BELONG_TO_ANOTHER: &str = "conflict: \
the -wal and -redo- files next to FOLDER/both.db belong to another database
hint: to use the file as it is, move the other files away: \
`mkdir former && mv FOLDER/both.db-* former/`; \
to keep their events, put back the file that they belong to
";

/// Pages of two states of one database were mixed.
#[test]
fn the_wal_of_a_later_state() {
    let mut world = world_with(1);
    let database = copied(&world, "older.db");
    for nth in 0..200 {
        append_message(&world, &format!("{nth} {}", "in the file ".repeat(100)));
    }
    world.reopen();
    append_message(&world, "in the WAL");
    // A reader waits for the commit of SQLite.
    verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).unwrap();
    let later = BELONG_TO_ANOTHER.replace("another database", "a later state of it");
    check_wal(&world, &database, &["-wal", "-redo-1"], &later);
}

/// What a killed process left is complete.
#[test]
fn the_wal_of_the_same_database() {
    for messages in [0, 3] {
        let world = world_with(messages);
        let last = append_message(&world, "in the WAL");
        verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).unwrap();
        let into = world.folder.path().join("both.db");
        with_wal_of(&world, &world.path(), &into, &["-wal", "-redo-1"]);
        assert_eq!(
            verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap().events,
            last
        );
    }
}

/// `replay` compares every row with those that the reducers make.
#[test]
fn recovery_gives_the_rows_that_a_replay_gives() {
    let world = world_with(2);
    let database = copied(&world, "early.db");
    run(async {
        let tool = json!({"name": "search", "effect": "idempotent"});
        world.call("register_tool", tool).await.unwrap();
        for nth in 0..30 {
            let id = format!("t{nth}");
            let args =
                json!({"session_id": "s1", "tool_name": "search", "call_id": id, "arguments": {}});
            world.call("request_tool_call", args).await.unwrap();
            world.append_message("s1", &"x".repeat(nth * 100)).await.unwrap();
        }
    });
    let into = world.folder.path().join("both.db");
    open_with_journal(&database, &world, &into).unwrap().close();
    let replayed = world.folder.path().join("replayed.db");
    let modules = abide_reducers::modules();
    abide_engine::replay(&into, &replayed, modules, None, &mut |_| {}).unwrap();
}
