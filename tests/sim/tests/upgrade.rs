//! A power failure during a migration: the file has the old or the new version, complete in either
//! case, and is migrated when it is opened again. A file of a newer version is refused without a
//! change.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use abide_engine::{Layout, OpenError, Tuning};
use abide_schema::{Module, Seq, table};
use abide_sim::disk::{Fault, FaultyDisk, Machine};
use abide_sim::rig::folder;
use abide_store::Store;
use rusqlite::Connection;

/// A shelf, version 1.
#[table(name = "shelves")]
struct ShelfV1 {
    /// Its number.
    #[column(key)]
    id: i64,
    /// The event that last changed it.
    seq: Seq,
}

/// A shelf with a label, version 2.
#[table(name = "shelves", index(label))]
struct ShelfV2 {
    /// Its number.
    #[column(key)]
    id: i64,
    /// The event that last changed it.
    seq: Seq,
    /// The label.
    label: Option<String>,
}

const LABELS: &str = "CREATE TABLE shelves_new (
  id INTEGER PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL,
  label TEXT
) STRICT;
INSERT INTO shelves_new SELECT id, seq, 'shelf ' || id FROM shelves;
DROP TABLE shelves;
CREATE TABLE shelves (
  id INTEGER PRIMARY KEY NOT NULL,
  seq INTEGER NOT NULL,
  label TEXT
) STRICT;
INSERT INTO shelves SELECT * FROM shelves_new;
DROP TABLE shelves_new;
CREATE INDEX shelves_label ON shelves (label)";

/// The number of shelves: several pages.
const SHELVES: i64 = 2_000;

fn open(folder: &Path, version: u32, machine: &Arc<Machine>) -> Result<Store, OpenError> {
    machine.take_in(folder).unwrap();
    let library = Module::new("library");
    let library = match version {
        1 => library.table::<ShelfV1>(),
        _ => library.step(LABELS).table::<ShelfV2>(),
    };
    let mut modules = abide_reducers::modules();
    modules.push(library);
    let tuning = Tuning { disk: FaultyDisk::new(machine), ..Tuning::default() };
    Store::open(&folder.join("abide.db"), Layout { modules }, tuning)
}

/// A file of version 1 with shelves in it.
fn old_file() -> tempfile::TempDir {
    let folder = folder();
    drop(open(folder.path(), 1, &Arc::new(Machine::new(Fault::None, 1))).unwrap());
    let connection = Connection::open(folder.path().join("abide.db")).unwrap();
    let fill = format!(
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < {SHELVES})
         INSERT INTO shelves SELECT id, 0 FROM n"
    );
    connection.execute_batch(&fill).unwrap();
    folder
}

fn copy(from: &Path) -> tempfile::TempDir {
    let into = folder();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        // The lock and the WAL index belong to a process.
        if !matches!(name.to_str(), Some("abide.db-lock" | "abide.db-shm")) {
            fs::copy(&path, into.path().join(name)).unwrap();
        }
    }
    into
}

#[test]
fn a_crash_during_a_migration_is_recovered() {
    let old = old_file();
    let mut still_old = 0;
    let mut new = 0;
    let steps = {
        let folder = copy(old.path());
        let machine = Arc::new(Machine::new(Fault::None, 1));
        drop(open(folder.path(), 2, &machine).unwrap());
        machine.tally().steps
    };
    assert!(steps > 20, "{steps} steps");
    for step in 1..=steps + 1 {
        let before = copy(old.path());
        let after = folder();
        let machine = Arc::new(Machine::new(Fault::Crash { step }, step));
        let opened = open(before.path(), 2, &machine).map(drop);
        assert!(opened.is_ok() || machine.is_down(), "step {step}: {opened:?}");
        machine.restart(after.path(), step).unwrap();
        // The file must have one of the two versions.
        let healthy = Arc::new(Machine::new(Fault::None, step));
        match open(after.path(), 1, &healthy) {
            Ok(_) => still_old += 1,
            Err(OpenError::Newer { found: 2, known: 1, .. }) => new += 1,
            Err(error) => panic!("step {step}: {error}"),
        }
        drop(open(after.path(), 2, &healthy).unwrap());
        let connection = Connection::open(after.path().join("abide.db")).unwrap();
        let labels = "SELECT count(*) FROM shelves WHERE label = 'shelf ' || id";
        let labelled: i64 = connection.query_row(labels, [], |row| row.get(0)).unwrap();
        assert_eq!(labelled, SHELVES, "step {step}");
    }
    assert!(still_old > 0 && new > 0, "{still_old} of the old version, {new} of the new");
}
