//! Files that cannot be opened: a clear error, and no change to the file.

use std::fs;
use std::path::Path;

use abide_engine::{Engine, verify_file};
use abide_store::FORMAT_VERSION;
use abide_tests::world::{World, run};
use expect_test::{Expect, expect};
use rusqlite::Connection;

use crate::durability::{SmallDisk, companion};
use crate::recordings::left_out;

/// An empty folder, and a path in it.
fn empty() -> World {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    for entry in fs::read_dir(world.folder.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    world
}

fn open(world: &World, path: &Path) -> Result<Engine, String> {
    let opened = Engine::open(path, world.config(abide_reducers::modules()));
    opened.map_err(|error| {
        let refusal = error.to_refusal();
        let folder = world.folder.path().display().to_string();
        let detail = refusal.detail.replace(&folder, "FOLDER");
        let hint = refusal.hint.unwrap_or_default().replace(&folder, "FOLDER");
        format!("{}: {detail}\nhint: {hint}\n", refusal.code)
    })
}

/// Opens a file that another program created. Neither it nor the folder may change.
fn check(make: impl FnOnce(&Path), expected: Expect) {
    let world = empty();
    make(&world.path());
    let listing = |world: &World| -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(world.folder.path()).unwrap().map(Result::unwrap);
        let mut files: Vec<(String, Vec<u8>)> = entries
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read(entry.path()).unwrap_or_default())
            })
            .collect();
        files.sort();
        files
    };
    let before = listing(&world);
    expected.assert_eq(&open(&world, &world.path()).expect_err("the file was opened"));
    let after = listing(&world);
    let names = |files: &[(String, Vec<u8>)]| {
        files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&after), names(&before), "the files of the folder");
    assert!(after == before, "the file was changed");
}

fn make_sql(path: &Path, sql: &str) {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    check(
        |path| fs::write(path, "This is a letter to my grandmother. ".repeat(100)).unwrap(),
        expect![[r#"
            bad_request: FOLDER/abide.db is not an Abide database: it is not a SQLite file
            hint: pass another file; this one was not changed
        "#]],
    );
    check(
        |path| fs::write(path, "short").unwrap(),
        expect![[r#"
            bad_request: FOLDER/abide.db is not an Abide database: it is not a SQLite file
            hint: pass another file; this one was not changed
        "#]],
    );
}

#[test]
fn another_programs_database_is_refused() {
    check(
        |path| make_sql(path, "CREATE TABLE recipes (title TEXT)"),
        expect![[r#"
            bad_request: FOLDER/abide.db is a SQLite database of another program
            hint: pass another file; this one was not changed
        "#]],
    );
    check(
        |path| make_sql(path, "PRAGMA application_id = 7; CREATE TABLE t (a)"),
        expect![[r#"
            bad_request: FOLDER/abide.db is a SQLite database of another program
            hint: pass another file; this one was not changed
        "#]],
    );
    check(
        |path| make_sql(path, "PRAGMA journal_mode = WAL; CREATE TABLE recipes (title TEXT)"),
        expect![[r#"
            bad_request: FOLDER/abide.db is a SQLite database of another program
            hint: pass another file; this one was not changed
        "#]],
    );
    check(
        |path| make_sql(path, "PRAGMA user_version = 4"),
        expect![[r#"
            bad_request: FOLDER/abide.db is a SQLite database of another program
            hint: pass another file; this one was not changed
        "#]],
    );
}

#[test]
fn a_newer_format_is_refused() {
    check(
        |path| make_sql(path, "PRAGMA application_id = 1094863172; PRAGMA user_version = 6"),
        expect![[r#"
            bad_request: FOLDER/abide.db was written by a newer Abide: its format has version 6, this one supports 5
            hint: use the newer version of abide
        "#]],
    );
}

/// No release reads or writes a format before 5.
#[test]
fn a_former_format_is_refused() {
    check(
        |path| make_sql(path, "PRAGMA application_id = 1094863172; PRAGMA user_version = 4"),
        expect![[r#"
            bad_request: FOLDER/abide.db was written by a version of Abide before 0.1, in format 4
            hint: export its runs with the version that wrote it (`abide agent export`), and import them into a new file (`abide agent import`)
        "#]],
    );
    for format in 0..FORMAT_VERSION {
        let mut world = World::new(abide_reducers::modules);
        run(world.session("s1"));
        world.close();
        world.raw().pragma_update(None, "user_version", format).unwrap();
        check_refused_by_all(&world, "bad_request", "");
    }
}

#[test]
fn a_folder_is_refused() {
    check(
        |path| fs::create_dir(path).unwrap(),
        expect![[r#"
        bad_request: FOLDER/abide.db is a folder, not a database file
        hint: check the path
    "#]],
    );
}

/// Two servers could write one file, each with a lock and a journal of its own: the calls of one were lost.
#[test]
fn a_file_with_several_names_is_refused() {
    check(
        |path| {
            let mut world = World::new(abide_reducers::modules);
            world.close();
            fs::copy(world.path(), path).unwrap();
            fs::hard_link(path, path.with_file_name("other.db")).unwrap();
        },
        expect![[r#"
            conflict: FOLDER/abide.db has several names (hard links): each would have a lock and a journal of its own
            hint: copy the file, or remove its other names
        "#]],
    );
}

#[test]
fn a_missing_folder_is_refused() {
    let world = empty();
    let path = world.folder.path().join("nowhere/abide.db");
    expect![[r#"
        not_found: there is no folder FOLDER/nowhere
        hint: create it with `mkdir -p FOLDER/nowhere`
    "#]]
    .assert_eq(&open(&world, &path).unwrap_err());
    assert!(!world.folder.path().join("nowhere").exists());
}

#[test]
fn an_empty_file_becomes_a_new_database() {
    let world = empty();
    fs::write(world.path(), "").unwrap();
    let world = world.opened();
    run(world.session("s1"));
}

/// The path is part of a URI, in which some characters have a special meaning.
#[test]
fn a_path_with_special_characters_opens() {
    let world = empty();
    let folder = world.folder.path().join("50% off? #1 & Grüße");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("a b;c=d.db");
    for events in 0..3 {
        let engine = open(&world, &path).unwrap();
        assert_eq!(engine.durable_seq().0, events);
        let args = serde_json::json!({"agent": "support"});
        let caller = abide_schema::reducer::Caller::new("local");
        run(engine.call(&caller, "create_session", &args, None)).unwrap();
        engine.close();
    }
    make_sql(&folder.join("other?.db"), "CREATE TABLE recipes (title TEXT)");
    let error = open(&world, &folder.join("other?.db")).unwrap_err();
    assert!(error.contains("of another program"), "{error}");
}

#[test]
fn two_engines_do_not_share_a_file() {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    expect![[r#"
        file_locked: FOLDER/abide.db is in use by another process
        hint: wait until that command ends; to use the file with several programs, start `abide serve --db FOLDER/abide.db` and give the others --url in place of --db
    "#]]
    .assert_eq(&open(&world, &world.path()).unwrap_err());
    run(world.append_message("s1", "unharmed")).unwrap();
    world.close();
    assert!(open(&world, &world.path()).is_ok(), "the lock is released with its holder");
}

#[test]
fn tables_changed_by_hand() {
    for (sql, difference) in [
        ("ALTER TABLE tools ADD COLUMN color TEXT", ""),
        ("DROP TRIGGER events_no_delete", ": trigger events_no_delete is missing"),
        (
            "DROP TRIGGER events_no_delete;
             CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT 1; END",
            ": trigger events_no_delete is another one",
        ),
        (
            "DROP INDEX tool_calls_tool_name_session_id",
            ": index tool_calls_tool_name_session_id is missing",
        ),
        ("CREATE INDEX mine ON tools (name, version)", ": index mine was added"),
        (
            "CREATE TRIGGER mine AFTER INSERT ON agent_state BEGIN DELETE FROM tools; END",
            ": trigger mine was added",
        ),
        ("DROP TABLE approvals", ""),
    ] {
        let mut world = World::new(abide_reducers::modules);
        run(world.session("s1"));
        world.close();
        world.raw().execute_batch(sql).unwrap();
        let error = open(&world, &world.path()).expect_err(sql);
        assert!(error.starts_with("conflict: table "), "{sql}: {error}");
        let expected = format!(" differs from its declaration{difference}\n");
        assert!(error.contains(&expected), "{sql}: {error}");
    }
}

#[test]
fn a_file_that_cannot_be_written() {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    world.close();
    let mut permissions = fs::metadata(world.folder.path()).unwrap().permissions();
    let writable = permissions.clone();
    permissions.set_readonly(true);
    fs::set_permissions(world.folder.path(), permissions).unwrap();
    let denied = fs::write(world.folder.path().join("probe"), "").is_err();
    let opened = open(&world, &world.path());
    fs::set_permissions(world.folder.path(), writable).unwrap();
    if !denied {
        return left_out("a read-only folder: this user may write everywhere");
    }
    assert_eq!(opened.unwrap_err(), NOT_WRITABLE);
}

const NOT_WRITABLE: &str = "bad_request: FOLDER/abide.db is not writable
hint: check the permissions of the file and of its folder; to read a file that is read-only, copy it, with the files next to it, into a folder that you can write
";

#[test]
fn a_read_only_file_system() {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    world.close();
    let Some(disk) = SmallDisk::mount(world.folder.path().join("small")) else {
        return left_out("a read-only file system: none can be mounted here");
    };
    let path = disk.path().join("abide.db");
    fs::copy(world.path(), &path).unwrap();
    disk.make_read_only();
    let verified = verify_file(&path, abide_reducers::modules(), &mut |_| {})
        .expect("a file can be read where nothing can be written");
    assert!(verified.events.0 > 0);
    for path in [path, disk.path().join("new.db")] {
        let error = open(&world, &path).unwrap_err();
        assert!(error.starts_with("bad_request: FOLDER/small/"), "{error}");
        assert!(error.contains(" is not writable\nhint: check the permissions"), "{error}");
    }
    let names = fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["abide.db"]);
}

#[test]
fn a_file_that_cannot_be_verified() {
    let world = empty();
    let verify = |path: &Path| {
        verify_file(path, abide_reducers::modules(), &mut |_| {}).unwrap_err().to_refusal().code
    };
    let missing = world.folder.path().join("nowhere.db");
    assert_eq!(verify(&missing).as_str(), "not_found");
    assert!(!missing.exists(), "verification creates nothing");
    fs::write(world.path(), "a letter ".repeat(1_000)).unwrap();
    assert_eq!(verify(&world.path()).as_str(), "bad_request");
}

/// SQLite evaluates more of a file than the rows that are read: the integrity check evaluates the expressions of indexes,
/// their conditions and CHECK constraints for each row, the first write fires triggers, and computed columns and views run
/// queries. An index over a large `zeroblob` cost `verify` and `backup` 15 s and 1.2 GB for three rows, and a foreign
/// trigger was copied and reported as `rows ok`, though the server refused the file. Everything that opens a file compares
/// the complete schema first.
#[test]
fn a_file_with_expressions_of_its_author_is_refused_before_they_are_evaluated() {
    let costly = "length(hex(zeroblob(400000000 + length(id)))) > 0";
    for (sql, subject) in [
        (
            "ALTER TABLE events RENAME TO former; CREATE VIEW events AS
             WITH RECURSIVE count(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count)
             SELECT former.* FROM count, former",
            "table events",
        ),
        ("CREATE TABLE large (id INTEGER, text TEXT AS (printf('%.*c', 900000000, 'x')))", "table large"),
        (
            "CREATE TABLE mine (id TEXT REFERENCES sessions(id) ON UPDATE CASCADE, CHECK (length(id)))",
            "table mine",
        ),
        (
            "CREATE TABLE mine (id TEXT);
             CREATE TRIGGER evil AFTER DELETE ON mine BEGIN DELETE FROM sessions; END",
            "trigger evil",
        ),
        (&format!("CREATE INDEX evil ON sessions ({costly})"), "table sessions"),
        (&format!("CREATE INDEX evil ON sessions (agent) WHERE {costly}"), "table sessions"),
        ("CREATE INDEX evil ON sessions (agent COLLATE NOCASE)", "table sessions"),
        (
            "CREATE TRIGGER evil AFTER INSERT ON sessions
             BEGIN UPDATE sessions SET agent = 'other' WHERE id = NEW.id; END",
            "table sessions",
        ),
        ("CREATE TRIGGER evil BEFORE UPDATE ON meta BEGIN SELECT 1; END", "table meta"),
        ("DROP VIEW model_usage; CREATE VIEW model_usage AS SELECT * FROM tokens", "table model_usage"),
        ("CREATE VIEW mine AS SELECT * FROM tokens", "view mine"),
        (
            "PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = replace(sql, 'agent TEXT', 'agent TEXT COLLATE NOCASE')
             WHERE name = 'sessions'",
            "table sessions",
        ),
        (
            "PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = replace(sql, ') STRICT', ', CHECK (length(hex(zeroblob(400000000))))) STRICT')
             WHERE name = 'sessions'",
            "table sessions",
        ),
    ] {
        let mut world = World::new(abide_reducers::modules);
        run(world.session("s1"));
        world.close();
        world.raw().execute_batch(sql).unwrap();
        check_refused_by_all(&world, "conflict", &format!("{subject} in "));
    }
}

/// An empty WAL and its index were left next to a file that was refused.
#[test]
fn no_wal_is_left_next_to_a_file_that_is_refused() {
    for sql in ["DROP INDEX tool_calls_tool_name_session_id", "PRAGMA application_id = 7"] {
        let mut world = World::new(abide_reducers::modules);
        run(world.session("s1"));
        world.close();
        world.raw().execute_batch(sql).unwrap();
        let left = || ["-wal", "-shm"].map(|suffix| companion(&world.path(), suffix).exists());
        assert_eq!(left(), [false, false], "before");
        verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).expect_err(sql);
        assert_eq!(left(), [false, false], "verified: {sql}");
        open(&world, &world.path()).expect_err(sql);
        assert_eq!(left(), [false, false], "opened: {sql}");
    }
}

/// Tables of removed modules stay in a file.
#[test]
fn the_expressions_of_other_tables_are_not_evaluated() {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    world.close();
    let sql = "CREATE TABLE mine (id TEXT, CHECK (length(hex(zeroblob(400000000))) > length(id)));
        CREATE INDEX mine_id ON mine (length(hex(zeroblob(400000000 + length(id)))));
        PRAGMA ignore_check_constraints = ON;";
    world.raw().execute_batch(sql).unwrap();
    let verified = verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).unwrap();
    assert_eq!(verified.events.0, 2);
    open(&world, &world.path()).unwrap().close();
}

/// The author of a file can name an older version of its tables, whose declaration is not known.
#[test]
fn a_file_that_claims_an_older_version_is_compared_after_the_steps() {
    let index = "CREATE INDEX evil ON sessions (length(hex(zeroblob(400000000 + length(id)))))";
    for claim in [
        "UPDATE meta SET value = '0' WHERE name = 'module.timer'",
        "DELETE FROM meta WHERE name = 'module.session'",
    ] {
        let mut world = World::new(abide_reducers::modules);
        run(world.session("s1"));
        world.close();
        world.raw().execute_batch(&format!("{index}; {claim}")).unwrap();
        check_refused_by_all(&world, "", "");
    }
}

/// Refuses the file in each command that opens it, with the same error.
fn check_refused_by_all(world: &World, code: &str, detail: &str) {
    let modules = abide_reducers::modules;
    let path = world.path();
    let copy = world.folder.path().join("copy.db");
    let verified = verify_file(&path, modules(), &mut |_| {}).unwrap_err().to_refusal();
    let copied = abide_engine::backup(&path, &copy, modules()).unwrap_err().to_refusal();
    let replayed = abide_engine::replay(&path, &copy, modules(), None, &mut |_| {}).unwrap_err();
    assert!(!copy.exists());
    let opened = match Engine::open(&path, world.config(modules())) {
        Ok(_) => panic!("the file was opened"),
        Err(error) => error.to_refusal(),
    };
    assert_eq!((verified.code, &verified.detail), (opened.code, &opened.detail));
    assert_eq!(copied.detail, opened.detail);
    assert!(opened.detail.starts_with(&replayed.to_string()), "{replayed}: {opened}");
    if !code.is_empty() {
        assert_eq!(opened.code.as_str(), code, "{opened}");
    }
    assert!(opened.detail.starts_with(detail), "{opened}");
}

/// An event with a text of 900 MB cost `verify` 2.7 GB. No call can write a value that is larger than what a query returns.
#[test]
fn a_value_that_no_call_can_write_is_not_read() {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    world.close();
    let sql = "DROP TRIGGER events_no_update;
        UPDATE events SET arguments = printf('%.*c', 40000000, 'x');
        CREATE TRIGGER events_no_update BEFORE UPDATE ON events
        BEGIN SELECT RAISE(FAIL, 'denied: the log is append-only'); END";
    world.raw().execute_batch(sql).unwrap();
    let refused = verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).unwrap_err();
    let refused = refused.to_refusal();
    assert_eq!(refused.detail, "event 1: the row cannot be read: string or blob too big");
}

/// A file of this name was made, and stayed.
#[test]
fn a_database_in_memory_is_refused() {
    let world = empty();
    for name in [":memory:", "file::memory:?cache=shared"] {
        let refused = open(&world, &world.folder.path().join(name)).expect_err("it has no file");
        let expected = expect![[r#"
            bad_request: FOLDER/NAME names no file: Abide has no databases in memory
            hint: name a file; for a test, one in a temporary folder
        "#]];
        expected.assert_eq(&refused.replace(name, "NAME"));
    }
    assert_eq!(fs::read_dir(world.folder.path()).unwrap().count(), 0);
}
