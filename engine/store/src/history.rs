//! Keeps undo images readable when a step of a module changes tables.
//!
//! An undo image is a row as it was before a commit ([`change_log`]). It has its columns by number, and a step adds and
//! removes columns, and changes rows without a call. So the images of a table are rewritten with the columns after the
//! step, and the rows that the step has changed get images, as if the last commit had changed them. A query of an
//! earlier state then finds the rows of that state, with the columns of today; a column that did not exist has the
//! value that the step gave it, or the default.
//!
//! The history ends at a step that changes the primary key of a table, or more rows than undo images may have bytes.

use std::collections::HashMap;

use abide_schema::{Seq, Value, limits};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::cell;
use crate::cell_bytes::{CorruptCells, columns_in, push, push_varint};
use crate::change_log::{self, Image, encode_cells};
use crate::migrate;

/// The tables that a step may change, as they were before it.
#[derive(Debug)]
pub(crate) struct HistoryBeforeStep {
    tables: Vec<TableBefore>,
    /// All tables of the file; `None` if it has no undo images, so that there is nothing to convert.
    existing: Option<Vec<String>>,
}

#[derive(Debug)]
struct TableBefore {
    name: String,
    shape: Shape,
    /// The temporary table with the rows.
    copy: String,
}

/// The columns of a table in the file.
#[derive(Clone, Debug, PartialEq)]
struct Shape {
    columns: Vec<Column>,
    /// The positions of the primary key, in its order.
    key: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq)]
struct Column {
    name: String,
    /// The expression of its default value.
    default: Option<String>,
}

impl HistoryBeforeStep {
    /// Keeps the rows of the tables that the statements of a step name. Without undo images there is nothing to keep.
    pub(crate) fn keep(connection: &Connection, step: &str) -> rusqlite::Result<HistoryBeforeStep> {
        let mut tables = Vec::new();
        if migrate::change_log_floor(connection)? >= migrate::head(connection)? {
            return Ok(HistoryBeforeStep { tables, existing: None });
        }
        let existing = tables_of(connection)?;
        for name in existing.iter().filter(|name| names(step, name)) {
            let copy = format!("abide_before_step_{}", tables.len());
            connection.execute_batch(&format!(
                "CREATE TEMP TABLE {copy} AS SELECT * FROM main.\"{name}\""
            ))?;
            let shape = Shape::read(connection, name)?;
            tables.push(TableBefore { name: name.clone(), shape, copy });
        }
        Ok(HistoryBeforeStep { tables, existing: Some(existing) })
    }

    /// Converts the images to the columns after the step, and adds images of the rows that the step has changed.
    pub(crate) fn convert(self, connection: &Connection) -> rusqlite::Result<()> {
        let head = migrate::head(connection)?;
        for table in &self.tables {
            let after = Shape::read(connection, &table.name)?;
            if after.columns.is_empty() {
                // The table is gone, and no query can read it.
                connection
                    .execute("DELETE FROM change_log WHERE table_name = ?1", [&table.name])?;
            } else if table.shape.key_names() != after.key_names()
                || !table.keep_images(connection, &after, head)?
            {
                // Images name their rows by a key that the table does not have any more, or are too long.
                migrate::drop_history(connection)?;
            }
            connection.execute_batch(&format!("DROP TABLE temp.{}", table.copy))?;
        }
        let Some(existing) = self.existing else { return Ok(()) };
        for table in tables_of(connection)? {
            if !existing.contains(&table) {
                let shape = Shape::read(connection, &table)?;
                let key = shape.key_columns("new").join(", ");
                let sql = format!("SELECT {key} FROM main.\"{table}\" AS new");
                let images = absent_images(connection, &sql, shape.key.len())?;
                if !append_images(connection, &table, head, &images)? {
                    migrate::drop_history(connection)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the tables of the file that have undo images.
fn tables_of(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(
        "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
         AND name NOT IN ('events', 'request_ids', 'change_log', 'meta') ORDER BY name",
    )?;
    let names = statement.query_map([], |row| row.get(0))?;
    names.collect()
}

/// Returns `true` if a statement has this name as a word.
fn names(sql: &str, name: &str) -> bool {
    sql.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
        .any(|word| word.eq_ignore_ascii_case(name))
}

impl Shape {
    /// Reads the columns of a table; there are none if the file does not have it.
    fn read(connection: &Connection, table: &str) -> rusqlite::Result<Shape> {
        let sql = "SELECT name, dflt_value, pk FROM pragma_table_info(?1, 'main') ORDER BY cid";
        let mut statement = connection.prepare(sql)?;
        let found = statement.query_map([table], |row| {
            Ok((Column { name: row.get(0)?, default: row.get(1)? }, row.get::<_, i64>(2)?))
        })?;
        let mut columns = Vec::new();
        let mut key = Vec::new();
        for (at, found) in found.enumerate() {
            let (column, place) = found?;
            columns.push(column);
            if place > 0 {
                key.push((place, at));
            }
        }
        key.sort_unstable();
        Ok(Shape { columns, key: key.into_iter().map(|(_, at)| at).collect() })
    }

    fn key_names(&self) -> Vec<&str> {
        self.key.iter().map(|at| self.columns[*at].name.as_str()).collect()
    }

    /// Returns `prefix."column"` for the columns of the key.
    fn key_columns(&self, prefix: &str) -> Vec<String> {
        self.key_names().iter().map(|name| format!("{prefix}.\"{name}\"")).collect()
    }
}

/// Where the columns of a table are after a step.
#[derive(Debug)]
struct Mapping {
    before: Shape,
    after: Shape,
    /// The position of each former column after the step.
    places: HashMap<usize, usize>,
    /// The row of default values after the step.
    defaults: Vec<Value>,
}

impl Mapping {
    fn new(connection: &Connection, before: &Shape, after: &Shape) -> rusqlite::Result<Mapping> {
        let mut places = HashMap::new();
        let mut defaults = Vec::new();
        for (at, column) in after.columns.iter().enumerate() {
            match before.columns.iter().position(|former| former.name == column.name) {
                Some(former) => {
                    places.insert(former, at);
                    defaults.push(Value::Null);
                }
                None => defaults.push(default_of(connection, column)?),
            }
        }
        Ok(Mapping { before: before.clone(), after: after.clone(), places, defaults })
    }

    /// Returns a whole former row with the columns after the step.
    fn row(&self, former: Vec<Value>) -> Vec<Value> {
        let mut row = self.defaults.clone();
        for (at, cell) in former.into_iter().enumerate() {
            if let Some(place) = self.places.get(&at) {
                row[*place] = cell;
            }
        }
        row
    }

    /// Appends the image of a row that existed before the step, if the step has changed or deleted it. `old` has the
    /// columns before the step, and `new` the columns after it, which are NULL if the table no longer has the row.
    fn push_difference(&self, old: Vec<Value>, new: &[Value], out: &mut Vec<u8>) {
        // No column of a key is NULL in a row.
        let is_deleted = self.after.key.iter().any(|at| new[*at] == Value::Null);
        if is_deleted {
            change_log::encode(&Image::Present(self.row(old)), out);
            return;
        }
        let mut columns = 0;
        for (before, after) in &self.places {
            if old[*before] != new[*after] {
                columns |= 1_u64 << after;
            }
        }
        if columns != 0 {
            let old = self.row(old);
            let key = self.after.key.iter().map(|at| old[*at].clone()).collect();
            let cells = columns_in(columns).map(|at| old[at].clone()).collect();
            change_log::encode(&Image::Changed { key, columns, cells }, out);
        }
    }

    /// Appends an image with the columns after the step.
    fn push_image(&self, image: Image, out: &mut Vec<u8>) {
        match image {
            Image::Absent(key) => change_log::encode(&Image::Absent(key), out),
            Image::Present(row) => change_log::encode(&Image::Present(self.row(row)), out),
            Image::Changed { key, columns, cells } => {
                let mut kept: Vec<(usize, Value)> = columns_in(columns)
                    .zip(cells)
                    .filter_map(|(at, cell)| Some((*self.places.get(&at)?, cell)))
                    .collect();
                kept.sort_by_key(|(place, _)| *place);
                if kept.is_empty() {
                    return;
                }
                encode_cells(2, &key, out);
                push_varint(kept.iter().fold(0, |set, (place, _)| set | 1 << place), out);
                kept.iter().for_each(|(_, cell)| push(cell, out));
            }
        }
    }
}

fn default_of(connection: &Connection, column: &Column) -> rusqlite::Result<Value> {
    let Some(expression) = &column.default else { return Ok(Value::Null) };
    connection.query_row(&format!("SELECT {expression}"), [], |row| Ok(cell::read(row.get_ref(0)?)))
}

fn corrupt(damaged: CorruptCells) -> rusqlite::Error {
    let kind = rusqlite::types::Type::Blob;
    rusqlite::Error::FromSqlConversionFailure(0, kind, Box::new(damaged))
}

impl TableBefore {
    /// Converts the images to the columns after the step, and adds those of the step. Returns `false` if they are too
    /// long to be read.
    fn keep_images(
        &self,
        connection: &Connection,
        after: &Shape,
        head: Seq,
    ) -> rusqlite::Result<bool> {
        let mapping = Mapping::new(connection, &self.shape, after)?;
        if !self.convert_images(connection, &mapping)? {
            return Ok(false);
        }
        match self.images_of_step(connection, &mapping)? {
            Some(images) => append_images(connection, &self.name, head, &images),
            None => Ok(false),
        }
    }

    /// Returns `false` if an image is too long then.
    fn convert_images(&self, connection: &Connection, mapping: &Mapping) -> rusqlite::Result<bool> {
        if mapping.before.columns.len() == mapping.after.columns.len()
            && mapping.places.iter().all(|(before, after)| before == after)
        {
            return Ok(true);
        }
        let sql = "SELECT seq FROM change_log WHERE table_name = ?1";
        let mut statement = connection.prepare(sql)?;
        let seqs = statement.query_map([&self.name], |row| row.get(0))?;
        let seqs = seqs.collect::<rusqlite::Result<Vec<i64>>>()?;
        for seq in seqs {
            let sql = "SELECT images FROM change_log WHERE seq = ?1 AND table_name = ?2";
            let images: Vec<u8> = connection
                .prepare_cached(sql)?
                .query_row(params![seq, self.name], |row| row.get(0))?;
            let mut converted = Vec::with_capacity(images.len());
            let former = change_log::decode_with(
                mapping.before.key.len(),
                mapping.before.columns.len(),
                &images,
            );
            for image in former.map_err(corrupt)? {
                mapping.push_image(image, &mut converted);
            }
            if converted.len() > limits::UNDO_IMAGES_BYTES {
                return Ok(false);
            }
            let sql = "UPDATE change_log SET images = ?3 WHERE seq = ?1 AND table_name = ?2";
            connection.prepare_cached(sql)?.execute(params![seq, self.name, converted])?;
        }
        Ok(true)
    }

    /// Returns images of the rows that the step has changed, deleted and inserted; `None` if they are too long.
    fn images_of_step(
        &self,
        connection: &Connection,
        mapping: &Mapping,
    ) -> rusqlite::Result<Option<Vec<u8>>> {
        let old_key = mapping.before.key_columns("old");
        let new_key = mapping.after.key_columns("new");
        let has_same_key = old_key
            .iter()
            .zip(&new_key)
            .map(|(old, new)| format!("{old} = {new}"))
            .collect::<Vec<_>>()
            .join(" AND ");
        let mut images = Vec::new();
        let rows_before = format!(
            "SELECT old.*, new.* FROM temp.{} AS old LEFT JOIN main.\"{}\" AS new ON {has_same_key}",
            self.copy, self.name
        );
        let old_width = mapping.before.columns.len();
        let width = old_width + mapping.after.columns.len();
        let mut statement = connection.prepare(&rows_before)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let mut old = Vec::with_capacity(width);
            for at in 0..width {
                old.push(cell::read(row.get_ref(at)?));
            }
            let new = old.split_off(old_width);
            mapping.push_difference(old, &new, &mut images);
            if images.len() > limits::UNDO_IMAGES_BYTES {
                return Ok(None);
            }
        }
        let keys_of_inserted_rows = format!(
            "SELECT {} FROM main.\"{}\" AS new WHERE NOT EXISTS (SELECT 1 FROM temp.{} AS old WHERE {has_same_key})",
            new_key.join(", "),
            self.name,
            self.copy
        );
        images.extend(absent_images(connection, &keys_of_inserted_rows, new_key.len())?);
        Ok(Some(images))
    }
}

/// Returns the images of rows that did not exist. The statement selects their keys.
fn absent_images(connection: &Connection, sql: &str, width: usize) -> rusqlite::Result<Vec<u8>> {
    let mut images = Vec::new();
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let mut key = Vec::new();
        for at in 0..width {
            key.push(cell::read(row.get_ref(at)?));
        }
        change_log::encode(&Image::Absent(key), &mut images);
    }
    Ok(images)
}

/// Adds images to those of the last commit. Returns `false` if they are too long together.
fn append_images(
    connection: &Connection,
    table: &str,
    head: Seq,
    images: &[u8],
) -> rusqlite::Result<bool> {
    if images.is_empty() {
        return Ok(true);
    }
    let sql = "SELECT images FROM change_log WHERE seq = ?1 AND table_name = ?2";
    let former: Option<Vec<u8>> =
        connection.query_row(sql, params![head.0, table], |row| row.get(0)).optional()?;
    if images.len() + former.as_ref().map_or(0, Vec::len) > limits::UNDO_IMAGES_BYTES {
        return Ok(false);
    }
    if let Some(mut all) = former {
        all.extend_from_slice(images);
        let sql = "UPDATE change_log SET images = ?3 WHERE seq = ?1 AND table_name = ?2";
        connection.execute(sql, params![head.0, table, all])?;
        return Ok(true);
    }
    let sql = "SELECT from_seq FROM change_log WHERE seq = ?1 LIMIT 1";
    let from: Option<i64> = connection.query_row(sql, [head.0], |row| row.get(0)).optional()?;
    let sql = "INSERT INTO change_log (seq, table_name, from_seq, images) VALUES (?1, ?2, ?3, ?4)";
    let from = from.unwrap_or(head.0 - 1);
    connection.execute(sql, params![head.0, table, from, images])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::open::{Store, Tuning};

    /// A step that changed more than a gigabyte of rows failed at the limit of SQLite for a value, and so the file
    /// could not be opened.
    #[test]
    fn images_that_nobody_could_read_are_not_added() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("abide.db");
        drop(Store::open(&path, Layout::default(), Tuning::default()).expect("it opens"));
        let connection = Connection::open(&path).expect("it opens");
        let add = |bytes: usize| append_images(&connection, "shelves", Seq(7), &vec![0; bytes]);
        assert!(add(1 << 10).expect("it is stored"));
        assert!(add(1 << 10).expect("it is stored"));
        assert!(!add(limits::UNDO_IMAGES_BYTES - 2 * (1 << 10) + 1).expect("it is compared"));
        let sql = "SELECT length(images) FROM change_log";
        let stored: i64 = connection.query_row(sql, [], |row| row.get(0)).expect("it is there");
        assert_eq!(stored, 2 << 10);
    }
}
