//! The log: without gaps, chained, and complete; rows follow from it alone.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use abide_engine::{Config, ReplayError, RowDifference, VerifyError, backup, replay, verify_file};
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Code, Seq, Table, TableSpec};
use abide_store::{EventRow, RequestIdRow};
use abide_tests::world::{World, run};
use rusqlite::Connection;
use serde_json::{Map, json};

use crate::traffic::{Traffic, for_seeds};

/// A world with random traffic until its log has this many events.
fn busy_world(seed: u64, events: i64) -> World {
    let world = World::new(abide_reducers::modules);
    run(async {
        let mut traffic = Traffic::new(seed);
        while world.engine().durable_seq().0 < events {
            let _ = traffic.step(&world).await;
        }
    });
    world
}

/// The seq that a failed verification reports.
fn error_seq(error: &VerifyError) -> Option<i64> {
    match error {
        VerifyError::Chain(at) => Some(at.seq.0),
        VerifyError::Unreadable { seq, .. } | VerifyError::LostTail { seq, .. } => Some(seq.0),
        _ => None,
    }
}

/// Verifies a file of [`small_file`].
fn verify_small(path: &Path) -> Result<Seq, VerifyError> {
    verify_file(path, Vec::new(), &mut |_| {}).map(|verified| verified.events)
}

fn verify(path: &Path) -> Result<Seq, VerifyError> {
    verify_file(path, abide_reducers::modules(), &mut |_| {}).map(|verified| verified.events)
}

#[test]
fn seq_is_dense_despite_refusals() {
    for_seeds("log::seq_is_dense", 0..3, |seed| {
        let mut world = busy_world(seed, 200);
        let seqs: Vec<i64> = run(async {
            let rows = world.rows("SELECT seq FROM events ORDER BY seq").await;
            rows.iter().map(|row| row[0].to_json().as_i64().unwrap()).collect()
        });
        assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
        world.close();
        assert_eq!(verify(&world.path()).unwrap().0, seqs.len() as i64);
    });
}

#[test]
fn a_log_verifies_while_it_grows() {
    let world = busy_world(7, 60);
    let before = verify(&world.path()).unwrap();
    run(async {
        world.session("s_more").await;
    });
    assert_eq!(verify(&world.path()).unwrap().0, before.0 + 2);
}

/// The position of an event's record in a file, and its content. SQLite's record format:
/// <https://www.sqlite.org/fileformat2.html#record_format>.
struct Record {
    seq: i64,
    start: u64,
    end: u64,
}

/// The tables that a verification reads.
const VERIFIED: &str = "'events', 'meta', 'request_ids', 'change_log'";

/// A file of about thirty events, vacuumed so that no record is in it twice. It has only the tables that are verified, because each
/// verification opens the file, which parses the whole schema.
fn small_file() -> (World, Vec<Record>) {
    let mut world = busy_world(11, 40);
    world.close();
    let raw = world.raw();
    let others = format!(
        "SELECT format('PRAGMA foreign_keys = off; DROP %s %w;', type, name) FROM sqlite_schema
         WHERE type IN ('view', 'table') AND name NOT LIKE 'sqlite_%' AND name NOT LIKE '%_fts_%'
         AND name NOT IN ({VERIFIED}) ORDER BY type DESC"
    );
    let mut statement = raw.prepare(&others).unwrap();
    let drops: Result<Vec<String>, _> =
        statement.query_map([], |row| row.get(0)).unwrap().collect();
    drop(statement);
    drops
        .unwrap()
        .iter()
        .for_each(|sql| raw.execute_batch(sql).unwrap_or_else(|why| panic!("{sql}: {why}")));
    raw.execute_batch("PRAGMA journal_mode = DELETE; VACUUM").unwrap();
    let bytes = fs::read(world.path()).unwrap();
    let sql = "SELECT seq, unhex(hex(prev_hash) || hex(hash) || hex(salt) || hex(rows_hash)),
        8 + coalesce(length(CAST(session_id AS BLOB)), 0)
        + length(CAST(reducer AS BLOB)) + length(CAST(caller AS BLOB))
        + coalesce(length(CAST(request_id AS BLOB)), 0) + length(CAST(arguments AS BLOB))
        + length(CAST(outcome AS BLOB)) + 112 FROM events";
    let mut statement = raw.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| {
        let seq: i64 = row.get(0)?;
        let tail: Vec<u8> = row.get(1)?;
        let length: i64 = row.get(2)?;
        Ok((seq, tail, length.cast_unsigned()))
    });
    let mut records = Vec::new();
    for row in rows.unwrap() {
        let (seq, tail, length) = row.unwrap();
        let found: Vec<usize> =
            bytes.windows(112).enumerate().filter(|(_, w)| *w == tail).map(|(at, _)| at).collect();
        // A record that is too long for its page continues on another page; those are skipped.
        if let [at] = found.as_slice()
            && length < 900
        {
            let end = *at as u64 + 112;
            records.push(Record { seq, start: end - length, end });
        }
    }
    drop(statement);
    drop(raw);
    (world, records)
}

/// Changes every byte of every cell of every event in the file, one at a time.
#[test]
fn every_changed_byte_of_an_event_is_detected() {
    let (world, records) = small_file();
    assert!(records.len() > 25, "only {} events", records.len());
    let half = records.len() / 2;
    std::thread::scope(|scope| {
        for (nth, records) in [&records[..half], &records[half..]].into_iter().enumerate() {
            let copy = world.folder.path().join(format!("copy{nth}.db"));
            fs::copy(world.path(), &copy).unwrap();
            assert!(verify_small(&copy).is_ok());
            scope.spawn(move || records.iter().for_each(|record| tamper(&copy, record)));
        }
    });
}

fn tamper(path: &Path, record: &Record) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    for at in record.start..record.end {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        // A bit that changes case, the last bit of a digit, or one that makes the text invalid
        // UTF-8, by offset.
        let flip = [0x20, 0x01, 0x80][usize::try_from(at % 3).unwrap()];
        file.write_all_at(&[byte[0] ^ flip], at).unwrap();
        let verdict = verify_small(path);
        file.write_all_at(&byte, at).unwrap();
        let error = verdict.expect_err("a changed byte passed");
        let offset = at - record.start;
        assert_eq!(error_seq(&error), Some(record.seq), "byte {offset}: {error}");
    }
}

/// The bytes before the cells encode their lengths and types.
#[test]
fn every_changed_record_header_is_detected() {
    let (world, records) = small_file();
    let file = fs::OpenOptions::new().read(true).write(true).open(world.path()).unwrap();
    for record in &records {
        // At least fourteen bytes: the header's length and thirteen types. The first type is that of
        // seq, which is the rowid and not read from the record.
        for at in record.start - 12..record.start {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            for flip in [0x01, 0x02, 0x40] {
                file.write_all_at(&[byte[0] ^ flip], at).unwrap();
                let verdict = verify_small(&world.path());
                file.write_all_at(&byte, at).unwrap();
                let error = verdict.expect_err("a changed header passed");
                assert_eq!(error_seq(&error), Some(record.seq), "{error}");
            }
        }
    }
}

/// Runs SQL on a copy of a file while it has no triggers; returns the result of verification.
fn after(world: &World, sql: &str) -> Result<Seq, VerifyError> {
    let copy: PathBuf = world.folder.path().join("tampered.db");
    let _ = fs::remove_file(&copy);
    fs::copy(world.path(), &copy).unwrap();
    let raw = Connection::open(&copy).unwrap();
    let drop_triggers = "DROP TRIGGER events_appended; DROP TRIGGER events_no_update;
        DROP TRIGGER events_no_delete;";
    let triggers = <EventRow as Table>::SPEC.triggers.join(";");
    raw.execute_batch(&format!("{drop_triggers}{sql}; {triggers}")).unwrap();
    drop(raw);
    verify(&copy)
}

/// Changes every cell by raw SQL.
#[test]
fn every_cell_changed_by_sql_is_detected() {
    let mut world = busy_world(12, 25);
    world.close();
    let last = verify(&world.path()).unwrap().0;
    let changes = [
        "at = at + 1",
        "session_id = CASE WHEN session_id IS NULL THEN 's1' END",
        "session_id = coalesce(session_id, '') || 'x'",
        "reducer = reducer || ' '",
        "reducer = upper(reducer)",
        "caller = 'someone'",
        "caller = caller || char(0)",
        "request_id = CASE WHEN request_id IS NULL THEN '' END",
        "arguments = '{}'",
        "arguments = ' ' || arguments",
        "outcome = outcome || ' '",
        "prev_hash = zeroblob(32)",
        "prev_hash = hash, hash = prev_hash",
        "hash = zeroblob(32)",
        "hash = zeroblob(33)",
        "salt = zeroblob(16)",
        "salt = zeroblob(17)",
        "rows_hash = zeroblob(32)",
        "rows_hash = zeroblob(31)",
        "reducer = CAST(x'FF' AS TEXT)",
    ];
    for seq in 1..=last {
        for change in changes {
            // An update without effect is not a change.
            let sql = format!("UPDATE events SET {change} WHERE seq = {seq}");
            let error = after(&world, &sql).expect_err(&sql);
            assert_eq!(error_seq(&error), Some(seq), "{sql}: {error}");
        }
    }
}

#[test]
fn removed_added_or_swapped_events_are_detected() {
    let mut world = busy_world(13, 40);
    world.close();
    let last = verify(&world.path()).unwrap().0;
    let check = |sql: &str, seqs: &[i64]| {
        let error = after(&world, sql).expect_err(sql);
        assert!(seqs.contains(&error_seq(&error).unwrap()), "{sql}: {error}");
    };
    check(&format!("DELETE FROM events WHERE seq = {last}"), &[last]);
    check(&format!("DELETE FROM events WHERE seq > {}", last - 5), &[last, last - 4]);
    check("DELETE FROM events", &[last, 1]);
    for seq in 1..last {
        check(&format!("DELETE FROM events WHERE seq = {seq}"), &[seq]);
    }
    check("UPDATE events SET seq = -5 WHERE seq = 5", &[5, -5]);
    check("UPDATE events SET seq = 500 WHERE seq = 5", &[5]);
    check("UPDATE events SET seq = 0 WHERE seq = 1", &[0, 1]);
    check(&format!("UPDATE events SET seq = {} WHERE seq = {last}", last + 1), &[last]);
    let swap = "UPDATE events SET seq = -1 WHERE seq = 7; UPDATE events SET seq = 7 WHERE seq = 8;
        UPDATE events SET seq = 8 WHERE seq = -1";
    check(swap, &[7]);
    let shift = "DELETE FROM events WHERE seq = 3; UPDATE events SET seq = -seq WHERE seq > 3;
        UPDATE events SET seq = -seq - 1 WHERE seq < 0";
    check(shift, &[3]);
    let add = format!(
        "INSERT INTO events SELECT {}, at, session_id, reducer, caller, request_id, arguments,
            outcome, prev_hash, hash, authority, salt, rows_hash FROM events WHERE seq = {last}",
        last + 1
    );
    check(&add, &[last + 1]);
    check("UPDATE meta SET value = 'another' WHERE name = 'log_id'", &[1]);
}

/// An event of one log is invalid in another, even as its first.
#[test]
fn events_cannot_be_moved_to_another_log() {
    let mut worlds = [World::new(abide_reducers::modules), World::new(abide_reducers::modules)];
    for world in &mut worlds {
        run(world.session("s1"));
        world.close();
    }
    let other = worlds[1].path();
    let sql = format!(
        "ATTACH '{}' AS other; DELETE FROM main.events;
        INSERT INTO main.events SELECT * FROM other.events",
        other.display()
    );
    let error = after(&worlds[0], &sql).expect_err("an event of another log passed");
    assert_eq!(error_seq(&error), Some(1));
}

#[test]
fn a_damaged_page_elsewhere_is_reported() {
    let mut world = busy_world(14, 60);
    world.close();
    let raw = world.raw();
    // The index of a table becomes that of another one.
    let sql = "UPDATE sqlite_schema SET rootpage = (
            SELECT rootpage FROM sqlite_schema WHERE name = 'approvals_session_id')
        WHERE name = 'events_session_id'";
    raw.execute_batch(&format!("PRAGMA writable_schema = ON; {sql}")).unwrap();
    drop(raw);
    let found = verify(&world.path());
    assert!(matches!(found, Err(VerifyError::Damaged(_))), "{found:?}");
}

#[test]
fn a_replay_gives_the_same_rows() {
    for_seeds("log::a_replay_gives", 20..24, |seed| {
        let mut world = busy_world(seed, 300);
        let (state, head) = run(async { (world.state(None).await, world.engine().durable_seq()) });
        world.close();
        let into = world.folder.path().join("replayed.db");
        let mut seen = BTreeSet::new();
        let modules = abide_reducers::modules();
        let reached = replay(&world.path(), &into, modules, None, &mut |seq| seen.extend([seq]));
        assert_eq!(reached.unwrap(), head);
        assert_eq!(seen.len() as i64, head.0);
        let again = open_copy(&world, &into);
        assert_eq!(run(again.state(None)), state);
        assert_eq!(
            verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap().events,
            head
        );
    });
}

/// A replayed file also answers retries. Once the replay lost request ids, and the retry of a
/// message was stored a second time.
#[test]
fn a_replayed_file_answers_retries() {
    let mut world = World::new(abide_reducers::modules);
    let append_call = |text: &str| BatchCall {
        reducer: "append_message".to_owned(),
        args: json!({"session_id": "s", "role": "user", "content": text}),
    };
    let tool = BatchCall { reducer: "register_tool".to_owned(), args: json!({"name": "look"}) };
    let tenant = Caller::with(
        "app",
        "app",
        BTreeSet::new(),
        [("tenant".to_owned(), "acme".to_owned())].into(),
    );
    let made = BatchCall { reducer: "create_session".to_owned(), args: json!({"agent": "a"}) };
    // The second call of the batch was made before: the log has no event for it.
    let requests = [
        (Caller::local(), vec![append_call("alone")], "k1"),
        (Caller::local(), vec![append_call("both"), tool.clone(), append_call("too")], "k2"),
        (Caller::local(), vec![append_call("two"), append_call("calls")], "k3"),
        (tenant, vec![made], "k1"),
    ];
    let ask = async |world: &World| {
        let mut output = Vec::new();
        for (caller, calls, id) in &requests {
            let done = world.engine().batch(caller, calls, Some(id)).await.unwrap();
            let results = done.results.iter().map(|done| (done.seq, done.result.clone()));
            output.push((done.duplicate, results.collect::<Vec<_>>()));
        }
        output
    };
    let output = run(async {
        world.session("s").await;
        world.call("register_tool", tool.args.clone()).await.unwrap();
        ask(&world).await
    });
    world.close();
    let into = world.folder.path().join("replayed.db");
    let modules = abide_reducers::modules();
    replay(&world.path(), &into, modules, None, &mut |_| {}).unwrap();
    let again = open_copy(&world, &into);
    run(async {
        let count = "SELECT count(*) FROM agent_state";
        let before = again.rows(count).await;
        for (asked, (is_duplicate, results)) in output.iter().zip(ask(&again).await) {
            assert!(is_duplicate && !asked.0);
            assert_eq!(asked.1, results);
        }
        assert_eq!(again.rows(count).await, before);
        // Undo images are not rebuilt, and past states need them.
        let past = again.engine().query(&Caller::local(), count, &Map::new(), Some(Seq(2))).await;
        assert_eq!(past.unwrap_err().code, Code::HistoryExpired);
        let (caller, calls, id) = &requests[1];
        let other = again.engine().batch(caller, &calls[..1], Some(id)).await;
        assert_eq!(other.unwrap_err().code, Code::RequestIdConflict);
    });
}

/// A replay that ends within a batch does not record the batch's request id.
#[test]
fn a_replay_that_ends_within_a_batch() {
    let mut world = World::new(abide_reducers::modules);
    run(async {
        world.session("s").await;
        let say = BatchCall {
            reducer: "append_message".to_owned(),
            args: json!({"session_id": "s", "role": "user", "content": "hi"}),
        };
        let calls = [say.clone(), say.clone(), say];
        world.engine().batch(&Caller::local(), &calls, Some("k")).await.unwrap();
    });
    world.close();
    for (to, kept) in [(2, 0), (3, 0), (4, 0), (5, 1)] {
        let into = world.folder.path().join(format!("to{to}.db"));
        let modules = abide_reducers::modules();
        replay(&world.path(), &into, modules, Some(Seq(to)), &mut |_| {}).unwrap();
        let raw = Connection::open(&into).unwrap();
        let count = "SELECT count(*) FROM request_ids";
        let count: i64 = raw.query_row(count, [], |row| row.get(0)).unwrap();
        assert_eq!(count, kept, "to {to}");
    }
}

/// Request ids are compared like other rows.
#[test]
fn a_request_id_changed_by_hand_is_found_by_replay() {
    for sql in [
        "DELETE FROM request_ids",
        "UPDATE request_ids SET seqs = '[2]'",
        "UPDATE request_ids SET fingerprint = zeroblob(32)",
        "UPDATE request_ids SET request_id = request_id || 'x'",
    ] {
        let mut world = World::new(abide_reducers::modules);
        run(async {
            let args = json!({"agent": "a", "id": "s"});
            let engine = world.engine();
            engine.call(&Caller::local(), "create_session", &args, Some("k")).await.unwrap();
        });
        world.close();
        world.raw().execute_batch(sql).unwrap();
        let into = world.folder.path().join("replayed.db");
        let modules = abide_reducers::modules();
        match replay(&world.path(), &into, modules, None, &mut |_| {}) {
            Err(ReplayError::Rows { table: "request_ids", .. }) => {}
            other => panic!("{sql}: {other:?}"),
        }
    }
}

/// The state at any commit equals that of a replay up to it, and the result of `as_of`.
#[test]
fn a_replay_to_a_seq_is_the_state_as_of_it() {
    for_seeds("log::a_replay_to", 30..32, |seed| {
        let world = World::new(abide_reducers::modules);
        let boundaries = run(async {
            let mut traffic = Traffic::new(seed);
            let mut boundaries = vec![0];
            for _ in 0..80 {
                let _ = traffic.step(&world).await;
                boundaries.push(world.engine().durable_seq().0);
            }
            boundaries.dedup();
            boundaries
        });
        for seq in boundaries.iter().step_by(7) {
            let into = world.folder.path().join(format!("to{seq}.db"));
            let modules = abide_reducers::modules();
            let reached = replay(&world.path(), &into, modules, Some(Seq(*seq)), &mut |_| {});
            assert_eq!(reached.unwrap(), Seq(*seq));
            let replayed = open_copy(&world, &into);
            let as_of = run(world.state(Some(Seq(*seq))));
            assert_eq!(run(replayed.state(None)), as_of, "at seq {seq}");
        }
    });
}

/// Another world over another file, with a stopped clock.
fn open_copy(world: &World, path: &Path) -> World {
    let mut other = World::new_without_engine(abide_reducers::modules, &world.clock);
    fs::copy(path, other.path()).unwrap();
    other.open_with(Config { timers: false, ..other.config(abide_reducers::modules()) });
    other
}

#[test]
fn a_row_changed_by_hand_is_found_by_replay() {
    let changes = [
        ("agent_state", "UPDATE agent_state SET content = 'never said' WHERE id = 3"),
        ("agent_state", "DELETE FROM agent_state WHERE id = 3"),
        (
            "agent_state",
            "INSERT INTO agent_state SELECT 1000, session_id, role, kind, content,
            data, created_at, seq, run_id FROM agent_state WHERE id = 3",
        ),
        ("tools", "UPDATE tools SET needs_approval = 1 - needs_approval"),
        (
            "sessions",
            "UPDATE sessions SET title = coalesce(title, '') || '.'
            WHERE status NOT IN ('completed', 'failed')",
        ),
        ("handoff_requests", "DELETE FROM handoff_requests"),
    ];
    for (table, sql) in changes {
        let mut world = busy_world(15, 200);
        world.close();
        world.raw().execute_batch(sql).unwrap();
        let into = world.folder.path().join("replayed.db");
        let modules = abide_reducers::modules();
        match replay(&world.path(), &into, modules, None, &mut |_| {}) {
            Err(ReplayError::Rows { table: found, .. }) => assert_eq!(found, table),
            other => panic!("{sql}: {other:?}"),
        }
    }
}

/// The first rows of a table, by their number.
const ROWS_OF_TABLE: usize = 2;

/// Changes a cell of the nth row of a table. Returns `false` if there is no such row, or a constraint forbids the value.
fn change_cell(file: &Path, table: &TableSpec, row: usize, column: &str) -> bool {
    let raw = Connection::open(file).unwrap();
    raw.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON;").unwrap();
    let keys: Vec<&str> = table.key.iter().map(|at| table.columns[*at].name).collect();
    let keys = keys.join(", ");
    let name = table.name;
    let sql = format!(
        "UPDATE {name} SET {column} = CASE typeof({column}) WHEN 'integer' THEN {column} + 1
         WHEN 'real' THEN {column} + 1.5 WHEN 'blob' THEN zeroblob(length({column}) + 1)
         WHEN 'text' THEN {column} || ' ' ELSE 1 END
         WHERE ({keys}) = (SELECT {keys} FROM {name} ORDER BY {keys} LIMIT 1 OFFSET {row})"
    );
    raw.execute(&sql, []) == Ok(1)
}

/// Each cell of some rows of every table that has rows.
#[test]
fn every_changed_cell_of_a_row_is_found_and_named() {
    let mut world = busy_world(11, 40);
    world.close();
    let file = world.folder.path().join("changed.db");
    let into = world.folder.path().join("again.db");
    let modules = abide_reducers::modules();
    let tables = modules.iter().flat_map(|module| module.tables.iter().copied());
    let mut found = 0;
    let mut found_tables = BTreeSet::new();
    for table in tables.chain([RequestIdRow::SPEC]) {
        for row in 0..ROWS_OF_TABLE {
            for (at, column) in table.columns.iter().enumerate() {
                fs::copy(world.path(), &file).unwrap();
                if !change_cell(&file, table, row, column.name) {
                    continue;
                }
                found_tables.insert(table.name);
                let what = format!("row {row} of {}.{}", table.name, column.name);
                match replay(&file, &into, abide_reducers::modules(), None, &mut |_| {}) {
                    Ok(_) => panic!("{what}: nothing is found"),
                    Err(ReplayError::Rows { table: named, difference }) => {
                        assert_eq!(named, table.name, "{what}: {difference}");
                        let is_named = match &difference {
                            RowDifference::Cell { column: named, .. } => *named == column.name,
                            RowDifference::Unknown { .. } | RowDifference::Missing { .. } => {
                                table.key.contains(&at)
                            }
                        };
                        assert!(is_named, "{what}: {difference}");
                        found += 1;
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
    assert!(found_tables.len() > 6 && found > 80, "{found} in {found_tables:?}");
}

#[test]
fn a_replay_overwrites_nothing() {
    let mut world = busy_world(16, 20);
    world.close();
    let into = world.folder.path().join("there.db");
    fs::write(&into, "mine").unwrap();
    let modules = abide_reducers::modules();
    let error = replay(&world.path(), &into, modules, None, &mut |_| {}).unwrap_err();
    assert!(error.to_string().ends_with("exists already"), "{error}");
    assert_eq!(fs::read(&into).unwrap(), b"mine");
    let error = backup(&world.path(), &into, abide_reducers::modules()).unwrap_err();
    assert!(error.to_string().ends_with("exists already"), "{error}");
    assert_eq!(fs::read(&into).unwrap(), b"mine");
}

/// A backup is one consistent state, complete in itself, even while the engine writes.
#[test]
fn a_backup_verifies() {
    let world = busy_world(17, 100);
    let copy = world.folder.path().join("backup.db");
    let head = world.engine().durable_seq();
    backup(&world.path(), &copy, abide_reducers::modules()).unwrap();
    assert!(!world.folder.path().join("backup.db-wal").exists());
    assert_eq!(verify(&copy).unwrap(), head);
    let state = run(world.state(None));
    assert_eq!(run(open_copy(&world, &copy).state(None)), state);
}

/// SQLite's integrity check accepted an empty page of an index whatever its type byte was. The first write to the table then
/// ended the engine.
#[test]
fn a_page_of_an_empty_index_with_another_type_is_found() {
    const PAGE: usize = 4096;
    const LEAF_OF_INDEX: u8 = 0x0a;
    const INTERIOR_OF_INDEX: u8 = 0x02;
    let mut world = busy_world(17, 20);
    world.close();
    let roots: Vec<(String, i64)> = {
        let raw = world.raw();
        raw.execute_batch("PRAGMA journal_mode = DELETE").unwrap();
        let sql = "SELECT name, rootpage FROM sqlite_schema WHERE type = 'index' AND rootpage > 0";
        let mut roots = raw.prepare(sql).unwrap();
        let roots = roots.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        roots.collect::<Result<_, _>>().unwrap()
    };
    let mut bytes = fs::read(world.path()).unwrap();
    let mut flipped = 0;
    for (name, root) in roots {
        let page = (usize::try_from(root).unwrap() - 1) * PAGE;
        let cells = u16::from_be_bytes([bytes[page + 3], bytes[page + 4]]);
        if bytes[page] != LEAF_OF_INDEX || cells > 0 {
            continue;
        }
        flipped += 1;
        bytes[page] = INTERIOR_OF_INDEX;
        fs::write(world.path(), &bytes).unwrap();
        let verdict = verify(&world.path());
        assert!(matches!(verdict, Err(VerifyError::Damaged(_))), "{name}: {verdict:?}");
        bytes[page] = LEAF_OF_INDEX;
    }
    assert!(flipped > 20, "only {flipped} indexes are empty");
}
