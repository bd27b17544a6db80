//! Migrations: the steps lead to the declared tables, or nothing is changed.

use std::fs;
use std::path::{Path, PathBuf};

use abide_engine::{Engine, OpenError, replay, verify_file};
use abide_schema::reducer::Caller;
use abide_schema::{Abort, Code, Context, Module, Row, Seq, Table, Value, reducer, table};
use abide_store::plan_upgrade;
use abide_tests::world::{World, run};
use rusqlite::Connection;
use serde_json::{Map, Value as JsonValue, json};

use crate::database::schema_of;
use crate::durability::{SmallDisk, companion};
use crate::recordings::left_out;
use crate::replica::Client;

/// A shelf, version 1.
#[table(name = "shelves")]
pub(crate) struct ShelfV1 {
    /// Its number.
    #[column(key)]
    pub(crate) id: i64,
    /// The event that last changed it.
    pub(crate) seq: Seq,
}

/// A shelf with a label, version 2.
#[table(name = "shelves", index(label))]
pub(crate) struct ShelfV2 {
    /// Its number.
    #[column(key)]
    pub(crate) id: i64,
    /// The event that last changed it.
    pub(crate) seq: Seq,
    /// The label.
    pub(crate) label: Option<String>,
}

/// A book on a shelf.
#[table(name = "books", without_rowid)]
pub(crate) struct Book {
    /// Its number.
    #[column(key)]
    pub(crate) isbn: String,
    /// The shelf.
    #[column(references = "shelves(id)")]
    pub(crate) shelf_id: i64,
}

/// To version 2: a column, by way of a new table, because SQLite formats added columns differently.
const LABELS: &str = "CREATE TABLE shelves_new (
  id INTEGER PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL,
  label TEXT
) STRICT;
INSERT INTO shelves_new SELECT id, seq, NULL FROM shelves;
DROP TABLE shelves;
CREATE TABLE shelves (
  id INTEGER PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL,
  label TEXT
) STRICT;
INSERT INTO shelves SELECT * FROM shelves_new;
DROP TABLE shelves_new;
CREATE INDEX shelves_label ON shelves (label)";

/// To version 3: another table.
const BOOKS: &str = "CREATE TABLE books (
  isbn TEXT PRIMARY KEY NOT NULL,
  shelf_id INTEGER NOT NULL REFERENCES shelves(id) DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID";

fn version(number: u32) -> Module {
    let module = Module::new("library");
    match number {
        1 => module.table::<ShelfV1>(),
        2 => module.step(LABELS).table::<ShelfV2>(),
        _ => module.step(LABELS).step(BOOKS).table::<ShelfV2>().table::<Book>(),
    }
}

/// The built-in modules and a library.
fn modules_with(library: Module) -> Vec<Module> {
    let mut modules = abide_reducers::modules();
    modules.push(library);
    modules
}

/// Opens a world's file with the built-in modules and a library, and closes it again.
fn open(world: &World, library: Module) -> Result<(), OpenError> {
    Engine::open(world.path(), world.config(modules_with(library))).map(|engine| engine.close())
}

fn new_world() -> World {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    world.close();
    world
}

fn schema(path: &Path) -> String {
    schema_of(&Connection::open(path).unwrap())
}

#[test]
fn the_steps_lead_to_the_declared_tables() {
    for first in 1..=3 {
        for last in first..=3 {
            let moved = new_world();
            let fresh = new_world();
            open(&moved, version(first)).unwrap();
            let raw = moved.raw();
            raw.execute_batch("INSERT INTO shelves (id, seq) VALUES (7, 1), (9, 1)").unwrap();
            drop(raw);
            for number in first..=last {
                open(&moved, version(number)).unwrap();
            }
            open(&fresh, version(last)).unwrap();
            assert_eq!(schema(&moved.path()), schema(&fresh.path()), "{first} to {last}");
            let count = "SELECT count(*) FROM shelves";
            let count: i64 = moved.raw().query_row(count, [], |row| row.get(0)).unwrap();
            assert_eq!(count, 2, "the rows are kept");
        }
    }
}

/// All steps at once, from the first version to the last.
#[test]
fn no_step_is_skipped() {
    let moved = new_world();
    let fresh = new_world();
    open(&moved, version(1)).unwrap();
    open(&moved, version(3)).unwrap();
    open(&fresh, version(3)).unwrap();
    assert_eq!(schema(&moved.path()), schema(&fresh.path()));
}

/// Checks that opening with this module fails with this message and does not change the file.
fn check_refused(library: Module, words: &str) {
    let world = new_world();
    open(&world, version(2)).unwrap();
    let before = (schema(&world.path()), fs::read(world.path()).unwrap());
    let error = open(&world, library).expect_err(words);
    let refusal = error.to_refusal().detail.replace(&world.path().display().to_string(), "FILE");
    assert_eq!(refusal, words);
    let after = (schema(&world.path()), fs::read(world.path()).unwrap());
    assert!(before == after, "{words}: the file was changed");
    open(&world, version(3)).expect("the correct steps still work");
}

#[test]
fn wrong_steps_change_nothing() {
    let declared = || Module::new("library").step(LABELS);
    let nothing = declared().step("SELECT 1").table::<ShelfV2>().table::<Book>();
    check_refused(nothing, "table books in FILE differs from its declaration");
    let other = "CREATE TABLE books (isbn TEXT PRIMARY KEY NOT NULL) STRICT, WITHOUT ROWID";
    let other = declared().step(other).table::<ShelfV2>().table::<Book>();
    check_refused(other, "table books in FILE differs from its declaration");
    let broken = declared().step("CREATE TABLE books (; SELEC").table::<ShelfV2>().table::<Book>();
    check_refused(broken, "FILE cannot be opened: near \";\": syntax error");
    let half = "CREATE TABLE books (isbn TEXT); INSERT INTO nowhere VALUES (1)";
    let half = declared().step(half).table::<ShelfV2>().table::<Book>();
    check_refused(half, "FILE cannot be opened: no such table: nowhere");
    let changed = Module::new("library").step(LABELS).table::<ShelfV1>();
    check_refused(changed, "table shelves in FILE differs from its declaration");
}

/// A note whose trigger runs after its row is written.
#[table(name = "notes", trigger = REFUSES_LATE)]
struct Note {
    /// Its number.
    #[column(key)]
    id: i64,
    /// The text.
    text: String,
}

const REFUSES_LATE: &str = "CREATE TRIGGER notes_text AFTER INSERT ON notes WHEN NEW.text = ''
BEGIN SELECT RAISE(FAIL, 'bad_arguments: the text is empty'); END";

/// SQLite kept the row of the refused call, and neither the log nor the journal had it.
#[test]
fn a_trigger_that_would_leave_a_refused_row_is_refused() {
    let world = new_world();
    let before = fs::read_dir(world.folder.path()).unwrap().count();
    let error = open(&world, Module::new("notes").table::<Note>()).unwrap_err();
    assert!(matches!(error, OpenError::Trigger { table: "notes" }), "{error}");
    assert_eq!(fs::read_dir(world.folder.path()).unwrap().count(), before);
}

#[test]
fn a_newer_module_is_refused() {
    let world = new_world();
    open(&world, version(3)).unwrap();
    let error = open(&world, version(2)).unwrap_err();
    let words = "was written by a newer Abide: module library has version 3, this one supports 2";
    assert!(error.to_string().ends_with(words), "{error}");
    open(&world, version(3)).unwrap();
}

/// The backups in a folder.
fn backups(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_backup = |name: &str| name.contains(".backup-") && !name.ends_with("-lock");
    files.filter(|path| is_backup(&path.to_string_lossy())).collect()
}

/// A file that older programs refuse after a migration is copied before it, once.
#[test]
fn a_migration_leaves_a_backup_that_the_older_program_opens() {
    let world = new_world();
    open(&world, version(1)).unwrap();
    assert_eq!(backups(world.folder.path()), [] as [PathBuf; 0], "a new module ends no program");
    world.raw().execute_batch("INSERT INTO shelves (id, seq) VALUES (7, 1)").unwrap();
    let before = schema(&world.path());
    open(&world, version(2)).unwrap();
    let found = backups(world.folder.path());
    let [backup] = &found[..] else { panic!("{found:?}") };
    assert!(matches!(open(&world, version(1)), Err(OpenError::Newer { .. })));
    assert_eq!(schema(backup), before);
    verify_file(backup, modules_with(version(1)), &mut |_| {}).unwrap();
    let engine = Engine::open(backup, world.config(modules_with(version(1)))).unwrap();
    engine.close();
    let count = "SELECT count(*) FROM shelves WHERE id = 7";
    let count: i64 =
        Connection::open(backup).unwrap().query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 1);
    open(&world, version(2)).unwrap();
    assert_eq!(backups(world.folder.path()).len(), 1, "nothing is migrated any more");
}

#[test]
fn a_migration_without_a_backup_makes_none() {
    let world = new_world();
    open(&world, version(1)).unwrap();
    let mut config = world.config(modules_with(version(2)));
    config.tuning.migration_backup = false;
    Engine::open(world.path(), config).unwrap().close();
    assert_eq!(backups(world.folder.path()), [] as [PathBuf; 0]);
}

/// To version 2, for a file without a shelf 7.
const LABELS_WITHOUT_SEVEN: &str = "CREATE TABLE shelves_new (
  id INTEGER PRIMARY KEY NOT NULL CHECK (id <> 7)
) STRICT;
INSERT INTO shelves_new SELECT id FROM shelves;
DROP TABLE shelves_new;
DROP TABLE shelves;
CREATE TABLE shelves (
  id INTEGER PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL,
  label TEXT
) STRICT;
CREATE INDEX shelves_label ON shelves (label)";

/// A step can fail on the rows of one file only. The copy that was made for it would be of no use.
#[test]
fn a_step_that_fails_leaves_the_file_and_no_backup() {
    let world = new_world();
    open(&world, version(1)).unwrap();
    world.raw().execute_batch("INSERT INTO shelves (id, seq) VALUES (7, 1)").unwrap();
    let before = (schema(&world.path()), fs::read_dir(world.folder.path()).unwrap().count());
    let library = Module::new("library").step(LABELS_WITHOUT_SEVEN).table::<ShelfV2>();
    for _ in 0..2 {
        let error = open(&world, library.clone()).unwrap_err();
        assert!(error.to_refusal().detail.contains("CHECK constraint failed"), "{error:?}");
        assert_eq!(backups(world.folder.path()), [] as [PathBuf; 0]);
    }
    let after = (schema(&world.path()), fs::read_dir(world.folder.path()).unwrap().count());
    assert_eq!(after, before);
    open(&world, version(2)).unwrap();
}

/// A process that was killed after its backup makes no second one; a file that only has the name of a backup is refused.
#[test]
fn a_backup_is_used_again_only_if_it_is_one() {
    let world = new_world();
    open(&world, version(1)).unwrap();
    let original = world.folder.path().join("original.db");
    fs::copy(world.path(), &original).unwrap();
    open(&world, version(2)).unwrap();
    let found = backups(world.folder.path());
    let [backup] = &found[..] else { panic!("{found:?}") };
    let take_back = || {
        fs::copy(&original, world.path()).unwrap();
    };

    take_back();
    // What a killed process leaves of a copy.
    let part = companion(backup, "-partial-1");
    fs::write(&part, "half").unwrap();
    open(&world, version(2)).unwrap();
    assert_eq!(backups(world.folder.path()).len(), 2, "the backup, and the part of another");

    take_back();
    fs::remove_file(backup).unwrap();
    open(&world, version(2)).unwrap();
    assert!(!part.exists() && backup.exists());

    take_back();
    fs::write(backup, "another file").unwrap();
    let error = open(&world, version(2)).unwrap_err().to_refusal();
    assert!(error.detail.contains("is not migrated and not changed"), "{error:?}");
    assert!(fs::read(world.path()).unwrap() == fs::read(&original).unwrap());
    fs::remove_file(backup).unwrap();
    std::os::unix::fs::symlink(world.path(), backup).unwrap();
    let error = open(&world, version(2)).unwrap_err().to_refusal();
    assert_eq!(error.code, Code::Conflict, "another name of the file itself: {error:?}");
    assert!(error.hint.unwrap().contains("--no-backup"));
}

#[test]
fn a_disk_without_space_for_the_backup_keeps_the_old_file() {
    let world = new_world();
    let Some(disk) = SmallDisk::mount(world.folder.path().join("small")) else {
        return left_out("a full disk: no file system can be mounted here");
    };
    open(&world, version(1)).unwrap();
    let path = disk.path().join("abide.db");
    fs::copy(world.path(), &path).unwrap();
    let ballast = disk.path().join("ballast");
    let free = (10 << 20) - fs::metadata(&path).unwrap().len();
    fs::write(&ballast, vec![1; usize::try_from(free).unwrap() - (256 << 10)]).unwrap();
    let before = fs::read(&path).unwrap();
    let migrate = || {
        let mut config = world.config(modules_with(version(2)));
        config.tuning.segment_bytes = 64 << 10;
        Engine::open(&path, config)
    };
    let refusal = migrate().unwrap_err().to_refusal();
    assert_eq!(refusal.code, Code::DiskFull, "{refusal:?}");
    assert!(refusal.detail.contains("is not migrated and not changed: its backup failed"));
    assert!(refusal.hint.as_deref().unwrap().starts_with("free some space; "), "{refusal:?}");
    assert!(fs::read(&path).unwrap() == before);
    assert_eq!(backups(disk.path()), [] as [PathBuf; 0]);
    fs::remove_file(&ballast).unwrap();
    migrate().unwrap().close();
    assert_eq!(backups(disk.path()).len(), 1);
}

/// What `abide upgrade --check` reads: the steps by what they change, and nothing written.
#[test]
fn a_plan_names_each_step_and_changes_nothing() {
    let world = new_world();
    open(&world, version(1)).unwrap();
    let files = || fs::read_dir(world.folder.path()).unwrap().count();
    let before = (fs::read(world.path()).unwrap(), files());
    let plan = plan_upgrade(&world.path(), modules_with(version(3))).unwrap();
    let [migration] = &plan.migrations[..] else { panic!("{plan:?}") };
    assert_eq!((migration.module, migration.from, migration.to), ("library", 1, 3));
    let changes: Vec<String> = migration.steps.iter().map(|step| step.changes.join(", ")).collect();
    assert_eq!(
        changes,
        ["adds column shelves.label, adds index shelves_label", "adds table books"]
    );
    assert!(!plan.keeps_older_programs() && plan.backup_bytes == plan.now.bytes());
    assert!(plan.migration_bytes > 0 && plan.is_writable);
    assert!((fs::read(world.path()).unwrap(), files()) == before, "something was written");

    // A new module, and a module that the program does not have.
    let plan = plan_upgrade(&world.path(), abide_reducers::modules()).unwrap();
    assert_eq!(plan.unknown_modules, ["library"]);
    assert!(plan.is_empty(), "{plan:?}");
    let fresh = new_world();
    let plan = plan_upgrade(&fresh.path(), modules_with(version(2))).unwrap();
    assert_eq!(plan.migrations[0].steps[0].changes, ["adds table shelves"]);
    assert!(plan.keeps_older_programs() && plan.backup_bytes == 0, "{plan:?}");
}

/// Writes a shelf.
#[reducer]
pub(crate) fn put_shelf(ctx: &mut Context<'_>) -> Result<ShelfV1, Abort> {
    let seq = ctx.seq;
    ctx.insert(ShelfV1 { id: 0, seq })
}

/// Changes the label of a shelf.
#[reducer]
pub(crate) fn label_shelf(ctx: &mut Context<'_>, id: i64, label: String) -> Result<ShelfV2, Abort> {
    let shelf = ShelfV2 { id, seq: ctx.seq, label: Some(label) };
    ctx.update(&shelf)?;
    Ok(shelf)
}

/// A step that adds a column, changes, removes and adds rows, and adds a table with a row.
const REORDER: &str = "CREATE TABLE shelves_new (
  id INTEGER PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL,
  label TEXT
) STRICT;
INSERT INTO shelves_new SELECT id, seq - 1, 'shelf ' || id FROM shelves WHERE id <> 2;
INSERT INTO shelves_new VALUES (9, 1, 'new');
DROP TABLE shelves;
CREATE TABLE shelves (
  id INTEGER PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL,
  label TEXT
) STRICT;
INSERT INTO shelves SELECT * FROM shelves_new;
DROP TABLE shelves_new;
CREATE INDEX shelves_label ON shelves (label);
CREATE TABLE books (
  isbn TEXT PRIMARY KEY NOT NULL,
  shelf_id INTEGER NOT NULL REFERENCES shelves(id) DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID;
INSERT INTO books SELECT '1', id FROM shelves WHERE id = 9";

fn reordered() -> Module {
    let library = Module::new("library").step(REORDER).table::<ShelfV2>().table::<Book>();
    library.reducer(label_shelf::definition())
}

/// Removes a shelf.
#[reducer]
pub(crate) fn drop_shelf(ctx: &mut Context<'_>, id: i64) -> Result<(), Abort> {
    ctx.delete::<ShelfV1>(id)
}

/// A shelf with another key, version 2.
#[table(name = "shelves", without_rowid)]
pub(crate) struct ShelfByLabel {
    /// The label.
    #[column(key)]
    pub(crate) label: String,
    /// The event that last changed it.
    pub(crate) seq: Seq,
}

const BY_LABEL: &str = "CREATE TABLE shelves_new (
  label TEXT PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO shelves_new SELECT 'shelf ' || id, seq FROM shelves;
DROP TABLE shelves;
CREATE TABLE shelves (
  label TEXT PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO shelves SELECT * FROM shelves_new;
DROP TABLE shelves_new";

/// A file was called damaged before a step that changes a primary key: its rows were read in the order of the new one.
#[test]
fn a_file_before_a_change_of_a_key_is_sound() {
    let by_label = || modules_with(Module::new("library").step(BY_LABEL).table::<ShelfByLabel>());
    let mut world = new_world();
    let first = version(1).reducer(put_shelf::definition());
    world.open_with(world.config(modules_with(first)));
    for _ in 0..2 {
        run(world.call("put_shelf", json!({}))).unwrap();
    }
    world.close();
    let by_its_program = verify_file(&world.path(), modules_with(version(1)), &mut |_| {}).unwrap();
    assert_eq!(verify_file(&world.path(), by_label(), &mut |_| {}).unwrap(), by_its_program);
    let plan = plan_upgrade(&world.path(), by_label()).unwrap();
    assert_eq!((plan.migrations[0].from, plan.migrations[0].to), (1, 2));
    let into = world.folder.path().join("replayed.db");
    let refused = replay(&world.path(), &into, by_label(), None, &mut |_| {}).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the file is not migrated: table shelves has other columns or another primary key than in this program"
    );
    assert!(!into.exists());
    Engine::open(world.path(), world.config(by_label())).unwrap().close();
    let migrated = verify_file(&world.path(), by_label(), &mut |_| {}).unwrap();
    assert_eq!(migrated.hash, by_its_program.hash);
    assert_ne!(migrated.tables, by_its_program.tables);
}

/// Undo images have the columns of their time, and a step changes rows without a call. Queries of an older state failed, or
/// returned wrong rows; so a step deleted the history. Now the images are converted. A subscription starts anew.
#[test]
fn a_step_keeps_the_history() {
    let mut world = new_world();
    let first = version(1).reducer(put_shelf::definition()).reducer(drop_shelf::definition());
    world.open_with(world.config(modules_with(first)));
    let mut states = Vec::new();
    let select = "SELECT id, seq FROM shelves ORDER BY id";
    for _ in 0..3 {
        let seq = run(world.call("put_shelf", json!({}))).unwrap().seq;
        states.push((seq, run(world.rows(select))));
    }
    let seq = run(world.call("drop_shelf", json!({"id": 1}))).unwrap().seq;
    states.push((seq, run(world.rows(select))));
    let seq = run(world.call("put_shelf", json!({}))).unwrap().seq;
    let mut client = Client::new(world.engine().connect(&Caller::local()));
    run(client.subscribe("q", "SELECT * FROM shelves ORDER BY id", &Map::new())).unwrap();
    let kept = client.unsubscribe("q").unwrap();
    drop(client);
    world.close();
    let at_migration = seq;
    for opening in 0..2 {
        world.open_with(world.config(modules_with(reordered())));
        for (seq, expected) in &states {
            let past = run(world.rows_as_of(select, Some(*seq)));
            assert_eq!(&past, expected, "event {seq}, opening {opening}");
        }
        let migrated = [[3, states[2].0.0 - 1], [4, at_migration.0 - 1], [9, 1]];
        let migrated = migrated.map(|row| row.map(Value::Integer).into_iter().collect::<Row>());
        let found = run(world.rows_as_of(select, Some(at_migration)));
        assert_eq!(found, migrated, "the state of the last event is the migrated one");
        for (seq, books) in [(states[2].0, 0), (at_migration, 1)] {
            let found = run(world.rows_as_of("SELECT count(*) FROM books", Some(seq)));
            assert_eq!(found[0][0], Value::Integer(books), "event {seq}");
        }
        // A row that the step has removed had no label.
        let labels =
            run(world.rows_as_of("SELECT label FROM shelves ORDER BY id", Some(states[2].0)));
        let labels: Vec<JsonValue> = labels.iter().map(|row| row[0].to_json()).collect();
        assert_eq!(labels, [json!(null), json!(null), json!("shelf 3")]);
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        run(client.resume("q", kept.clone())).unwrap();
        let (_, refusal) = client.refusals.pop().unwrap();
        assert_eq!(refusal.code, Code::ResyncRequired);
        assert_eq!(client.replicas["q"].rows[0].len(), 3, "with the new column");
        drop(client);
        // A later change of a migrated row does not hide the changes before it.
        run(world.call("label_shelf", json!({"id": 4, "label": "later"}))).unwrap();
        world.close();
    }
}

/// The journal of a file has the migrations of its tables. A copy from before one applies it with the same steps, and a
/// program with other steps does not.
#[test]
fn a_copy_from_before_a_migration_applies_it_from_the_journal() {
    let mut world = new_world();
    let first = || version(1).reducer(put_shelf::definition());
    world.open_with(world.config(modules_with(first())));
    run(world.call("put_shelf", json!({}))).unwrap();
    world.close();
    let folder = world.folder.path().to_owned();
    let before = folder.join("before.db");
    fs::copy(world.path(), &before).unwrap();
    world.open_with(world.config(modules_with(reordered())));
    run(world.call("label_shelf", json!({"id": 9, "label": "labelled"}))).unwrap();

    let open = |library: Module| {
        let into = folder.join("both.db");
        fs::copy(&before, &into).unwrap();
        fs::copy(companion(&world.path(), "-redo-1"), companion(&into, "-redo-1")).unwrap();
        let opened = Engine::open(&into, world.config(modules_with(library)));
        opened
            .map_err(|error| error.to_refusal().detail.replace(&into.display().to_string(), "FILE"))
    };
    let unknown = "FILE: the journal migrates module library from version 1 to 2 with steps that this program does not have";
    assert_eq!(open(first()).map(|_| ()), Err(unknown.to_owned()));
    let other = Module::new("library").step(LABELS).table::<ShelfV2>();
    assert_eq!(open(other).map(|_| ()), Err(unknown.to_owned()));
    let engine = open(reordered()).unwrap();
    let sql = "SELECT id, label FROM shelves ORDER BY id";
    let rows =
        |engine: &Engine| run(engine.query(&Caller::local(), sql, &Map::new(), None)).unwrap().rows;
    assert_eq!(rows(&engine), rows(world.engine()));
    engine.close();
    let library = || modules_with(reordered());
    verify_file(&folder.join("both.db"), library(), &mut |_| {}).unwrap();
}

mod later {
    use super::*;

    /// As [`super::put_shelf`]; from version 2 of the module on, the number of a shelf is that of its event.
    #[reducer]
    pub(crate) fn put_shelf(ctx: &mut Context<'_>) -> Result<ShelfV1, Abort> {
        let seq = ctx.seq;
        let id = if ctx.is_before("library", 2) { 0 } else { seq.0 };
        ctx.insert(ShelfV1 { id, seq })
    }
}

/// A rule of a module changed with its version 2: a replay applies to each event the rule that it ran by.
#[test]
fn a_replay_applies_the_rule_of_each_event() {
    let mut world = new_world();
    world.open_with(world.config(modules_with(version(1).reducer(put_shelf::definition()))));
    run(world.call("put_shelf", json!({}))).unwrap();
    world.close();
    let changed = || {
        let library = Module::new("library").step("SELECT 1").table::<ShelfV1>();
        modules_with(library.reducer(later::put_shelf::definition()))
    };
    let folder = world.folder.path().to_owned();
    let unchanged = folder.join("unchanged.db");
    replay(&world.path(), &unchanged, changed(), None, &mut |_| {}).unwrap();
    world.open_with(world.config(changed()));
    let seq = run(world.call("put_shelf", json!({}))).unwrap().seq;
    let ids = run(world.rows("SELECT id FROM shelves ORDER BY id"));
    assert_eq!(ids, [1, seq.0].map(|id| Row::from(vec![Value::Integer(id)])));
    world.close();
    let migrated = folder.join("migrated.db");
    replay(&world.path(), &migrated, changed(), None, &mut |_| {}).unwrap();
    // A replay stores which rules applied when, so that it can be replayed in turn.
    replay(&migrated, &folder.join("again.db"), changed(), None, &mut |_| {}).unwrap();
}

/// A module may be removed; its tables stay, and are used when it is added again.
#[test]
fn a_removed_module() {
    let world = new_world();
    open(&world, version(3)).unwrap();
    let world = world.opened();
    run(world.session("s2"));
    drop(world.engine().clone());
    let mut world = world;
    world.close();
    open(&world, version(3)).unwrap();
}

/// The tables of the built-in modules equal the golden schema: the engine opens a file of it without changing it.
#[test]
fn a_file_of_the_golden_schema_opens() {
    let golden = include_str!("../golden/schema-v5.sql");
    let world = new_world();
    let (path, current) = (world.folder.path().join("golden.db"), schema(&world.path()));
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch(golden).unwrap();
    raw.execute("ATTACH ?1 AS made", [world.path().display().to_string()]).unwrap();
    raw.execute_batch("INSERT INTO meta SELECT * FROM made.meta; DETACH made").unwrap();
    assert_eq!(schema_of(&raw), golden);
    drop(raw);
    let config = world.config(abide_reducers::modules());
    Engine::open(&path, config).unwrap().close();
    assert_eq!(schema(&path), current);
    assert_eq!(ShelfV1::SPEC.name, ShelfV2::SPEC.name, "two versions of one table");
}
