//! What an opening would migrate: found by running the steps of the modules on a copy of the schema, without rows.

use std::collections::BTreeSet;
use std::path::Path;

use abide_schema::Module;
use rusqlite::Connection;

use crate::connect::broken;
use crate::error::{OpenError, StoreError};
use crate::layout::Layout;
use crate::migrate;
use crate::schema_check::copy_without_rows;
use crate::stored_schema::StoredSchema;

/// A module whose tables an opening would create or migrate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMigration {
    /// The module.
    pub module: &'static str,
    /// The version of its tables in the file; 0 if the file does not have it.
    pub from: u32,
    /// Its version in this program.
    pub to: u32,
    /// The steps; one if the module is new in the file.
    pub steps: Vec<PlannedStep>,
    /// Whether programs that open the file today open it afterwards.
    pub keeps_older_programs: bool,
    /// Bytes of its tables and indexes in the file.
    pub table_bytes: u64,
}

/// A step of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    /// The version after it.
    pub to: u32,
    /// What it does to the schema, such as `adds column notes.author`. Empty if it changes only rows, or rules of reducers.
    pub changes: Vec<String>,
}

/// Returns what an opening would migrate. The schema of the file must be checked.
pub(crate) fn plan(
    file: &Connection,
    path: &Path,
    layout: &Layout,
) -> Result<Vec<PlannedMigration>, OpenError> {
    let to_open_error = |why: rusqlite::Error| broken(path, why.into());
    let stored = StoredSchema::read(file).map_err(to_open_error)?;
    let copy = copy_without_rows(&stored, file, layout).map_err(|why| broken(path, why))?;
    let mut planned = Vec::new();
    for module in &layout.modules {
        let found = migrate::version_of(file, module).map_err(to_open_error)?;
        if found == Some(module.version) {
            continue;
        }
        let steps = match found {
            Some(from) => steps_from(&copy, module, from).map_err(|why| broken(path, why))?,
            None => vec![PlannedStep { to: module.version, changes: added_by(module) }],
        };
        planned.push(PlannedMigration {
            module: module.name,
            from: found.unwrap_or(0),
            to: module.version,
            steps,
            keeps_older_programs: found.is_none() && !migrate::has_triggers_or_views(module),
            table_bytes: table_bytes(file, module).map_err(to_open_error)?,
        });
    }
    Ok(planned)
}

/// Returns the modules of a file that this program does not have. Their tables stay as they are.
pub(crate) fn unknown_modules(file: &Connection, layout: &Layout) -> rusqlite::Result<Vec<String>> {
    // `module.<name>.<version>` is where the version began.
    let sql = "SELECT substr(name, 8) FROM meta
        WHERE name GLOB 'module.*' AND name NOT GLOB 'module.*.*' ORDER BY name";
    let mut statement = file.prepare(sql)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?;
    let names = names.collect::<rusqlite::Result<Vec<_>>>()?;
    let is_known = |name: &String| layout.modules.iter().any(|module| module.name == name);
    Ok(names.into_iter().filter(|name| !is_known(name)).collect())
}

/// The steps of a module after a version, each with the difference of the schemas before and after it.
fn steps_from(
    copy: &Connection,
    module: &Module,
    from: u32,
) -> Result<Vec<PlannedStep>, StoreError> {
    let mut steps = Vec::new();
    for step in module.steps.iter().filter(|step| step.to > from) {
        let before = read_objects(copy)?;
        copy.execute_batch(step.sql)?;
        let after = read_objects(copy)?;
        steps.push(PlannedStep { to: step.to, changes: describe(&before, &after) });
    }
    Ok(steps)
}

fn added_by(module: &Module) -> Vec<String> {
    let tables = module.tables.iter().map(|table| format!("adds table {}", table.name));
    let views = module.views.iter().map(|(name, _)| format!("adds view {name}"));
    tables.chain(views).collect()
}

/// Returns the objects of a schema and the columns of its tables, as a kind and a name.
fn read_objects(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let sql = "SELECT type || ' ' || name FROM sqlite_schema WHERE sql IS NOT NULL
        UNION ALL
        SELECT 'column ' || tables.name || '.' || columns.name
        FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
        WHERE tables.type = 'table'";
    let mut statement = connection.prepare(sql)?;
    let objects = statement.query_map([], |row| row.get(0))?;
    objects.collect()
}

/// Describes the difference of two schemas. The columns of a table that is added or dropped are not named.
fn describe(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let added = after.difference(before);
    let dropped = before.difference(after);
    let added = added
        .filter(|object| !is_of_whole_table(object, before))
        .map(|object| format!("adds {object}"));
    let dropped = dropped
        .filter(|object| !is_of_whole_table(object, after))
        .map(|object| format!("drops {object}"));
    added.chain(dropped).collect()
}

/// Whether an object of one schema is a column of a table that the other schema does not have.
fn is_of_whole_table(object: &str, others: &BTreeSet<String>) -> bool {
    let column = object.strip_prefix("column ").and_then(|column| column.split_once('.'));
    column.is_some_and(|(table, _)| !others.contains(&format!("table {table}")))
}

/// Bytes of the tables and indexes of a module in a file.
fn table_bytes(file: &Connection, module: &Module) -> rusqlite::Result<u64> {
    let mut bytes = 0;
    for table in &module.tables {
        bytes += bytes_of(file, table.name)?;
    }
    Ok(bytes)
}

/// Bytes of a table and its indexes in a file; 0 if it does not have the table.
pub(crate) fn bytes_of(file: &Connection, table: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT coalesce(sum(pgsize), 0) FROM dbstat
        WHERE aggregate = TRUE AND name IN (SELECT name FROM sqlite_schema WHERE tbl_name = ?1)";
    let bytes: i64 = file.prepare_cached(sql)?.query_row([table], |row| row.get(0))?;
    Ok(bytes.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_described_by_what_it_changes() {
        let connection = Connection::open_in_memory().expect("it opens");
        connection
            .execute_batch("CREATE TABLE a (x); CREATE TABLE b (x); CREATE INDEX a_x ON a (x);")
            .expect("it runs");
        for (step, changes) in [
            ("UPDATE a SET x = 1", vec![]),
            ("ALTER TABLE a ADD COLUMN y", vec!["adds column a.y"]),
            ("DROP TABLE b; CREATE TABLE c (x)", vec!["adds table c", "drops table b"]),
            (
                "DROP INDEX a_x; ALTER TABLE a DROP COLUMN x",
                vec!["drops column a.x", "drops index a_x"],
            ),
        ] {
            let before = read_objects(&connection).expect("it is read");
            connection.execute_batch(step).expect("it runs");
            let after = read_objects(&connection).expect("it is read");
            assert_eq!(describe(&before, &after), changes, "{step}");
        }
    }

    /// The plan of an upgrade needs it.
    #[test]
    fn the_bytes_of_a_table_are_measured() {
        let connection = Connection::open_in_memory().expect("it opens");
        connection
            .execute_batch("CREATE TABLE a (x); CREATE INDEX a_x ON a (x); CREATE TABLE b (x);")
            .expect("it runs");
        assert_eq!(bytes_of(&connection, "a").expect("dbstat is compiled in"), 2 * 4096);
        assert_eq!(bytes_of(&connection, "missing").expect("dbstat is compiled in"), 0);
    }
}
