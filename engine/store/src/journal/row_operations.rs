//! The row operations of a group, in the order in which they ran.
//!
//! ```text
//! operations = operation*
//! operation  = 0x01 table count cell{count}                      insert: all cells
//!            | 0x02 table count cell{count} varint cell{bits}    update: key, set of changed columns, their cells
//!            | 0x03 table count cell{count}                      delete: key
//! cell       = as in undo images
//!            | 0x05 varint{count} (varint bytes varint{position} varint{length}){count} varint bytes
//!                                     TEXT: pieces of text and, between them, texts that the operations had before,
//!                                     by position and length in bytes. Only the arguments of an event.
//! table      = varint                 the nth table of these operations, from 0
//!            | varint varint bytes    the same number as there were tables before: a new one, with its name
//! count      = varint
//! ```
//!
//! The arguments of an event repeat the long texts of the rows that its call has written: a message, the arguments of a tool
//! call, its result. So a record has each of them once.
//!
//! Columns are numbered as in the layout that the record names, and are found by their names. No reducer runs again: a new
//! version of a rule cannot change what was acknowledged.

use std::collections::HashMap;
use std::ops::Range;

use abide_schema::event::Event;
use abide_schema::{Table as _, TableSpec, Value, limits};
use rusqlite::Connection;

use crate::cell;
use crate::cell_bytes::{
    self, CorruptCells, columns_in, content_bytes, push, push_blob, push_bytes, push_integer,
    push_text, push_varint, take, take_bytes, take_count, take_text, take_varint,
};
use crate::error::StoreError;
use crate::journal::record::{LayoutId, OPERATIONS_START, RecordContent, RecordLayout};
use crate::system::{self, ChangeLogRow, EventRow, MetaRow};

const INSERT: u8 = 1;
const UPDATE: u8 = 2;
const DELETE: u8 = 3;

/// The tag of a text with repeats.
const REPEATS: u8 = 5;

/// Maximum bytes of a cell, which a few bytes of a damaged record could make endless: no query reads a longer one, and no
/// call writes it.
const CELL_BYTES: usize = limits::QUERY_VALUE_BYTES;

/// Maximum cells of an operation: a set of columns has 64 bits.
const CELLS: usize = 64;

/// Shorter texts are written again: a reference takes up to ten bytes, and a search for it some time.
const LONG: usize = 64;

/// Room for what follows a long text in a record, such as the event of its call: a buffer that has grown by the length of the
/// text would double for the next byte.
const ROOM_BYTES: usize = 1_024;

/// Collects the operations of a group, as the record of the group.
#[derive(Debug)]
pub(crate) struct RowOperations {
    /// The room for the header of the frame, the kind of the record, the id of its layout, and the operations.
    bytes: Vec<u8>,
    tables: Vec<&'static str>,
    /// Where the long texts of the rows since the last event are.
    long_texts: Vec<Range<usize>>,
    savepoint: OperationsSavepoint,
}

/// The lengths of the bytes and of the tables at the savepoint of a unit.
#[derive(Clone, Copy, Debug)]
struct OperationsSavepoint {
    bytes: usize,
    tables: usize,
}

impl RowOperations {
    pub(crate) fn new(layout: LayoutId) -> RowOperations {
        RowOperations {
            bytes: RecordContent::Rows { layout, operations: &[] }.encode(),
            tables: Vec::new(),
            long_texts: Vec::new(),
            savepoint: OperationsSavepoint { bytes: OPERATIONS_START, tables: 0 },
        }
    }

    /// An insertion of a row with all its cells.
    pub(crate) fn insert(&mut self, table: &'static str, row: &[Value]) {
        self.start(INSERT, table);
        self.push_all(row.len(), row);
    }

    /// An insertion into the log, without a copy of the event, with these arguments instead of its own. `repeated` are the
    /// places in them, in order, that the rows of its call may repeat.
    pub(crate) fn insert_event(
        &mut self,
        table: &'static str,
        event: &Event,
        arguments: &str,
        repeated: impl Iterator<Item = Range<usize>>,
    ) {
        self.start(INSERT, table);
        let repeats: Vec<RepeatedText> = repeated
            .filter_map(|place| {
                let same = self.find(&arguments[place.clone()])?;
                Some(RepeatedText { place, same })
            })
            .collect();
        self.long_texts.clear();
        let out = &mut self.bytes;
        push_varint(13, out);
        push_integer(event.seq.0, out);
        push_integer(event.at.0, out);
        push_optional_text(event.session_id.as_deref(), out);
        push_text(&event.reducer, out);
        push_text(&event.caller, out);
        push_optional_text(event.request_id.as_deref(), out);
        push_with_repeats(arguments, &repeats, out);
        push_text(&event.outcome, out);
        push_blob(&event.prev_hash, out);
        push_blob(&event.hash, out);
        push_optional_text(event.authority.as_deref(), out);
        push_blob(&event.salt, out);
        push_blob(&event.rows_hash, out);
    }

    /// An update of the columns in `changed`, a set of bits.
    pub(crate) fn update(&mut self, table: &TableSpec, row: &[Value], changed: u64) {
        self.start(UPDATE, table.name);
        self.push_all(table.key.len(), table.key.iter().map(|at| &row[*at]));
        push_varint(changed, &mut self.bytes);
        for at in columns_in(changed) {
            self.push(&row[at]);
        }
    }

    /// A deletion of the row with a key.
    pub(crate) fn delete(&mut self, table: &'static str, key: &[Value]) {
        self.start(DELETE, table);
        self.push_all(key.len(), key);
    }

    /// Sets the savepoint.
    pub(crate) fn begin_unit(&mut self) {
        self.savepoint = OperationsSavepoint { bytes: self.bytes.len(), tables: self.tables.len() };
    }

    /// Drops the operations since the savepoint.
    pub(crate) fn undo_unit(&mut self) {
        let OperationsSavepoint { bytes, tables } = self.savepoint;
        self.bytes.truncate(bytes);
        self.tables.truncate(tables);
        self.long_texts.retain(|text| text.end <= bytes);
    }

    /// Whether there is no operation.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == OPERATIONS_START
    }

    /// Returns the record, after room for the header of its frame.
    pub(crate) fn into_record(self) -> Vec<u8> {
        self.bytes
    }

    fn start(&mut self, kind: u8, table: &'static str) {
        self.bytes.push(kind);
        if let Some(nth) = self.tables.iter().position(|known| *known == table) {
            return push_varint(nth as u64, &mut self.bytes);
        }
        push_varint(self.tables.len() as u64, &mut self.bytes);
        push_bytes(table.as_bytes(), &mut self.bytes);
        self.tables.push(table);
    }

    fn push_all<'a>(&mut self, count: usize, cells: impl IntoIterator<Item = &'a Value>) {
        push_varint(count as u64, &mut self.bytes);
        cells.into_iter().for_each(|cell| self.push(cell));
    }

    fn push(&mut self, cell: &Value) {
        if cell.size() > ROOM_BYTES {
            self.bytes.reserve(cell.size() + ROOM_BYTES);
        }
        push(cell, &mut self.bytes);
        if let Value::Text(text) = cell
            && text.len() >= LONG
        {
            self.long_texts.push(self.bytes.len() - text.len()..self.bytes.len());
        }
    }

    /// Where the rows since the last event have a long text.
    fn find(&self, text: &str) -> Option<Range<usize>> {
        if text.len() < LONG {
            return None;
        }
        let mut known = self.long_texts.iter();
        known.find(|place| self.bytes[place.start..place.end] == *text.as_bytes()).cloned()
    }
}

fn push_optional_text(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        Some(text) => push_text(text, out),
        None => push(&Value::Null, out),
    }
}

/// A part of a text that a record has already.
struct RepeatedText {
    /// Where it is in the text.
    place: Range<usize>,
    /// Where the same bytes are in the record.
    same: Range<usize>,
}

/// Appends a text to a record. `repeats` are parts of it, in order.
fn push_with_repeats(text: &str, repeats: &[RepeatedText], out: &mut Vec<u8>) {
    if repeats.is_empty() {
        return push_text(text, out);
    }
    out.push(REPEATS);
    push_varint(repeats.len() as u64, out);
    let mut done = 0;
    for RepeatedText { place, same } in repeats {
        push_bytes(&text.as_bytes()[done..place.start], out);
        push_varint((same.start - OPERATIONS_START) as u64, out);
        push_varint(same.len() as u64, out);
        done = place.end;
    }
    push_bytes(&text.as_bytes()[done..], out);
}

/// What the cells of an operation can be.
#[derive(Clone, Copy, Debug)]
struct CellRules {
    /// Maximum bytes of a cell.
    bytes: usize,
    /// Whether one of them can be a text with repeats.
    has_repeats: bool,
}

impl CellRules {
    fn new(kind: u8, table: &str) -> CellRules {
        // The undo images of a commit are one value, which is as long as the rows that it changed.
        let has_images = table == ChangeLogRow::SPEC.name;
        CellRules {
            bytes: if has_images { limits::UNDO_IMAGES_BYTES } else { CELL_BYTES },
            has_repeats: kind == INSERT && table == EventRow::SPEC.name,
        }
    }
}

/// Takes a number of cells of an operation. `all` are the bytes of all operations.
fn take_row(
    all: &[u8],
    count: usize,
    mut rules: CellRules,
    bytes: &mut &[u8],
) -> Result<Vec<Value>, CorruptCells> {
    if count > CELLS {
        return Err(CorruptCells);
    }
    let mut row = Vec::with_capacity(count);
    for _ in 0..count {
        let has_repeats = bytes.first() == Some(&REPEATS);
        row.push(if has_repeats && rules.has_repeats {
            rules.has_repeats = false;
            take_repeating_text(all, bytes)?
        } else if content_bytes(bytes)? > rules.bytes {
            return Err(CorruptCells);
        } else {
            cell_bytes::take_cell(bytes)?
        });
    }
    Ok(row)
}

/// Takes a text with repeats. Its length is checked before there is room for it.
fn take_repeating_text(all: &[u8], bytes: &mut &[u8]) -> Result<Value, CorruptCells> {
    let before = all.len() - bytes.len();
    take(1, bytes)?;
    let mut text = Vec::new();
    for _ in 0..take_count(bytes)? {
        push_piece(take_bytes(bytes)?, &mut text)?;
        let start = take_count(bytes)?;
        let length = take_count(bytes)?;
        let end = start.checked_add(length).filter(|end| *end <= before).ok_or(CorruptCells)?;
        push_piece(&all[start..end], &mut text)?;
    }
    push_piece(take_bytes(bytes)?, &mut text)?;
    String::from_utf8(text).map(Value::Text).map_err(|_| CorruptCells)
}

/// Appends a piece to a text that is read from a record.
fn push_piece(piece: &[u8], text: &mut Vec<u8>) -> Result<(), CorruptCells> {
    if text.len() + piece.len() > CELL_BYTES {
        return Err(CorruptCells);
    }
    text.extend_from_slice(piece);
    Ok(())
}

/// The columns of a table.
#[derive(Debug)]
struct Columns {
    /// By the numbers that the operations have.
    names: Vec<String>,
    /// Those of the primary key, in its order.
    key: Vec<String>,
}

impl Columns {
    /// Returns the columns of a table in a record, with the key that the table has in the file. The names are in a record, too:
    /// they are part of statements only if the file has them.
    fn read(
        connection: &Connection,
        layout: &RecordLayout,
        table: &str,
    ) -> Result<Columns, ApplyError> {
        let names = layout.columns(table).ok_or_else(|| other_columns(table))?.to_vec();
        // SQLite does not distinguish the cases of a name, and has tables of its own.
        let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_list WHERE schema = 'main' AND name = ?1 AND type = 'table'
            AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\')";
        let is_table: bool =
            connection.prepare_cached(sql)?.query_row([table], |row| row.get(0))?;
        if !is_table {
            return Err(ApplyError::Damaged(format!("the file has no table {table}")));
        }
        let sql = "SELECT name, pk > 0 FROM pragma_table_info(?1, 'main') ORDER BY pk";
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query([table])?;
        let mut in_file = Vec::new();
        let mut key = Vec::new();
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            if row.get(1)? {
                key.push(name.clone());
            }
            in_file.push(name);
        }
        if names.iter().any(|name| !in_file.contains(name)) {
            return Err(other_columns(table));
        }
        Ok(Columns { names, key })
    }
}

/// Returns `"column" = ?n` for each of these columns; n counts from `first`.
fn assign<'a>(columns: impl Iterator<Item = &'a String>, first: usize) -> Vec<String> {
    columns.zip(first..).map(|(column, nth)| format!("\"{column}\" = ?{nth}")).collect()
}

fn other_columns(table: &str) -> ApplyError {
    ApplyError::Damaged(format!("it has other columns of {table}"))
}

/// Refuses an operation on a table of the engine that no call makes: calls add rows to the log, to the request ids and to the
/// undo images. What a file says of itself is in other records, and in none.
fn check_is_of_call(kind: u8, table: &str) -> Result<(), ApplyError> {
    if table == MetaRow::SPEC.name {
        return Err(ApplyError::Damaged(format!("it changes {table}, which no call writes")));
    }
    let is_of_engine = system::tables().iter().any(|declared| declared.name == table);
    if is_of_engine && kind != INSERT {
        let why = format!("it changes a row of {table}, to which calls only add rows");
        return Err(ApplyError::Damaged(why));
    }
    Ok(())
}

/// Why operations cannot be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// They are not those of calls.
    #[error("{0}")]
    Damaged(String),
    /// The storage failed, or refuses a row.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for ApplyError {
    fn from(error: rusqlite::Error) -> ApplyError {
        ApplyError::Store(error.into())
    }
}

impl From<ApplyError> for StoreError {
    fn from(error: ApplyError) -> StoreError {
        match error {
            ApplyError::Damaged(why) => StoreError::Io(format!("a record of the journal: {why}")),
            ApplyError::Store(why) => why,
        }
    }
}

/// Applies recorded operations to a file.
#[derive(Debug)]
pub(crate) struct Applier {
    layout: RecordLayout,
    tables: HashMap<String, Columns>,
}

impl Applier {
    /// Returns an applier for the operations of records with this layout.
    pub(crate) fn new(layout: RecordLayout) -> Applier {
        Applier { layout, tables: HashMap::new() }
    }

    /// The layout of the records.
    pub(crate) fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    /// Applies the operations of a group in the open transaction.
    pub(crate) fn apply(
        &mut self,
        connection: &Connection,
        operations: &[u8],
    ) -> Result<(), ApplyError> {
        let mut named = Vec::new();
        let mut rest = operations;
        while !rest.is_empty() {
            let operation = Operation::take(operations, &mut named, &mut rest)
                .map_err(|damaged| ApplyError::Damaged(damaged.to_string()))?;
            self.apply_one(connection, &operation)?;
        }
        Ok(())
    }

    fn apply_one(
        &mut self,
        connection: &Connection,
        operation: &Operation,
    ) -> Result<(), ApplyError> {
        let Operation { kind, table, cells, changed, values } = operation;
        check_is_of_call(*kind, table)?;
        if !self.tables.contains_key(table) {
            let columns = Columns::read(connection, &self.layout, table)?;
            self.tables.insert(table.clone(), columns);
        }
        let Columns { names, key } = &self.tables[table];
        let by_key = assign(key.iter(), 1).join(" AND ");
        let sql = match *kind {
            INSERT => {
                let columns: Vec<String> =
                    names.iter().map(|column| format!("\"{column}\"")).collect();
                let marks: Vec<String> = (1..=cells.len()).map(|at| format!("?{at}")).collect();
                let columns = columns.join(", ");
                let marks = marks.join(", ");
                format!("INSERT OR FAIL INTO \"{table}\" ({columns}) VALUES ({marks})")
            }
            UPDATE => {
                if columns_in(*changed).last().is_some_and(|at| at >= names.len()) {
                    return Err(other_columns(table));
                }
                let set = assign(columns_in(*changed).map(|at| &names[at]), key.len() + 1);
                format!("UPDATE OR FAIL \"{table}\" SET {} WHERE {by_key}", set.join(", "))
            }
            _ => format!("DELETE FROM \"{table}\" WHERE {by_key}"),
        };
        let mut statement = connection.prepare_cached(&sql)?;
        if statement.parameter_count() != cells.len() + values.len() {
            return Err(other_columns(table));
        }
        for (at, value) in cells.iter().chain(values).enumerate() {
            cell::bind_one(&mut statement, at + 1, value)?;
        }
        match statement.raw_execute()? {
            1 => Ok(()),
            _ => Err(ApplyError::Damaged(format!("it changes a row that {table} does not have"))),
        }
    }
}

/// One decoded operation.
#[derive(Debug, PartialEq)]
struct Operation {
    kind: u8,
    table: String,
    /// The row, or its key.
    cells: Vec<Value>,
    changed: u64,
    values: Vec<Value>,
}

impl Operation {
    /// Takes the next operation. `all` are the bytes of all operations, of which `bytes` is the rest.
    fn take(
        all: &[u8],
        named: &mut Vec<String>,
        bytes: &mut &[u8],
    ) -> Result<Operation, CorruptCells> {
        let kind = take(1, bytes)?[0];
        let nth = take_count(bytes)?;
        if nth == named.len() {
            named.push(take_text(bytes)?);
        }
        let table = named.get(nth).ok_or(CorruptCells)?.clone();
        let count = take_count(bytes)?;
        let rules = CellRules::new(kind, &table);
        let cells = take_row(all, count, rules, bytes)?;
        let (changed, values) = match kind {
            INSERT | DELETE => (0, Vec::new()),
            UPDATE => {
                let changed = take_varint(bytes)?;
                (changed, take_row(all, changed.count_ones() as usize, rules, bytes)?)
            }
            _ => return Err(CorruptCells),
        };
        Ok(Operation { kind, table, cells, changed, values })
    }
}

#[cfg(test)]
mod tests {
    use abide_schema::{Micros, Seq};

    use super::*;

    #[test]
    fn a_rolled_back_savepoint_leaves_no_operation_and_no_table() {
        let mut operations = RowOperations::new([7; 8]);
        operations.insert("a", &[Value::Integer(1)]);
        operations.begin_unit();
        operations.insert("b", &[Value::from("gone")]);
        operations.delete("a", &[Value::Integer(1)]);
        operations.undo_unit();
        operations.insert("c", &[Value::Null]);
        operations.insert("a", &[Value::Real(0.5)]);
        let record = operations.into_record();
        let mut named = Vec::new();
        let mut found = Vec::new();
        let bytes = &record[OPERATIONS_START..];
        let mut rest = bytes;
        while !rest.is_empty() {
            let it = Operation::take(bytes, &mut named, &mut rest).expect("the bytes are valid");
            found.push((it.kind, it.table, it.cells));
        }
        let inserted = |table: &str, cell| (INSERT, table.to_owned(), vec![cell]);
        let expected = [
            inserted("a", Value::Integer(1)),
            inserted("c", Value::Null),
            inserted("a", Value::Real(0.5)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn cut_bytes_are_an_error_or_fewer_operations() {
        let mut operations = RowOperations::new([7; 8]);
        operations.insert("sessions", &[Value::from("s1"), Value::Blob(vec![7; 40])]);
        operations.delete("sessions", &[Value::from("s1")]);
        let record = operations.into_record();
        let bytes = &record[OPERATIONS_START..];
        for length in 1..bytes.len() {
            let mut named = Vec::new();
            let mut rest = &bytes[..length];
            let mut count = 0;
            while !rest.is_empty()
                && Operation::take(&bytes[..length], &mut named, &mut rest).is_ok()
            {
                count += 1;
            }
            assert!(count < 2, "{length} bytes");
        }
    }

    fn event() -> Event {
        Event {
            seq: Seq(1),
            at: Micros(2),
            session_id: None,
            reducer: "append_message".to_owned(),
            caller: "ann".to_owned(),
            request_id: Some("r".to_owned()),
            arguments: String::new(),
            outcome: "null".to_owned(),
            prev_hash: [3; 32],
            hash: [4; 32],
            authority: None,
            salt: [5; 16],
            rows_hash: [6; 32],
        }
    }

    /// Writes rows with texts and then an event with these texts in its arguments; checks which of them the operations have
    /// once, and that they decode to the same.
    fn check_repeats(rows: &[&str], in_arguments: &[&str], once: &[bool]) {
        let mut operations = RowOperations::new([7; 8]);
        let mut arguments = String::from("{");
        let cells: Vec<Value> = rows.iter().map(|text| Value::from(*text)).collect();
        operations.insert("sessions", &cells);
        let mut places = Vec::new();
        for text in in_arguments {
            arguments.push_str("\"é\":\"");
            places.push(arguments.len()..arguments.len() + text.len());
            arguments.push_str(text);
            arguments.push('"');
        }
        operations.insert_event("events", &event(), &arguments, places.into_iter());
        let record = operations.into_record();
        let bytes = &record[OPERATIONS_START..];
        let mut named = Vec::new();
        let mut rest = bytes;
        let mut next = || Operation::take(bytes, &mut named, &mut rest).expect("they are valid");
        assert_eq!(next().cells, cells);
        assert_eq!(next().cells[6], Value::from(arguments.as_str()));
        for (text, once) in in_arguments.iter().zip(once) {
            let found = bytes.windows(text.len()).filter(|part| *part == text.as_bytes()).count();
            assert_eq!(found == 1, *once, "{text}");
        }
    }

    #[test]
    fn an_event_repeats_no_long_text_of_a_row() {
        let [a, b, c] = ["a", "b", "é"].map(|text| text.repeat(100));
        check_repeats(&[&a, &b], &[&b, &a], &[true, true]);
        check_repeats(&[&a, &c], &[&c, &b, "short"], &[true, true, true]);
        check_repeats(&[&a, "short"], &[&a[1..], "short"], &[false, false]);
        check_repeats(&[], &[&a], &[true]);
    }

    /// Changes that were rolled back are not in the record, so nothing may refer to them; and a text before the last event belongs to
    /// another call.
    #[test]
    fn texts_that_were_rolled_back_are_not_referred_to() {
        let [kept, gone] = ["k", "g"].map(|text| text.repeat(100));
        let mut operations = RowOperations::new([7; 8]);
        operations.insert("a", &[Value::from(kept.as_str())]);
        operations.begin_unit();
        operations.insert("a", &[Value::from(gone.as_str())]);
        operations.undo_unit();
        operations.insert("a", &[Value::from("x".repeat(120))]);
        let arguments = kept.clone() + &gone;
        let places = [0..100, 100..200];
        operations.insert_event("events", &event(), &arguments, places.into_iter());
        let record = operations.into_record();
        let bytes = &record[OPERATIONS_START..];
        let mut named = Vec::new();
        let mut rest = bytes;
        let mut last = Vec::new();
        while !rest.is_empty() {
            let taken = Operation::take(bytes, &mut named, &mut rest).expect("they are valid");
            last = taken.cells;
        }
        assert_eq!(last[6], Value::from(arguments));
    }

    /// Decodes all operations of a record; `None` if one is not valid.
    fn decode(record: &[u8]) -> Option<Vec<Operation>> {
        let bytes = &record[OPERATIONS_START..];
        let mut named = Vec::new();
        let mut rest = bytes;
        let mut found = Vec::new();
        while !rest.is_empty() {
            found.push(Operation::take(bytes, &mut named, &mut rest).ok()?);
        }
        Some(found)
    }

    /// A record of some kilobytes became a text of 256 MB, and the file then had an event that nothing could read.
    #[test]
    fn a_text_with_repeats_is_no_longer_than_a_query_reads() {
        let text = "x".repeat(64 << 10);
        for (count, is_valid) in [(200, true), (300, false)] {
            let mut operations = RowOperations::new([7; 8]);
            operations.insert("sessions", &[Value::from(text.as_str())]);
            let places = (0..count).map(|nth| nth * text.len()..(nth + 1) * text.len());
            operations.insert_event("events", &event(), &text.repeat(count), places);
            let record = operations.into_record();
            assert!(record.len() < 2 * text.len());
            assert_eq!(decode(&record).is_some(), is_valid, "{count}");
        }
    }

    #[test]
    fn a_cell_is_no_longer_than_a_query_reads() {
        for (table, is_valid) in [("sessions", false), ("change_log", true)] {
            let mut operations = RowOperations::new([7; 8]);
            operations.insert(table, &[Value::Blob(vec![7; CELL_BYTES + 1])]);
            assert_eq!(decode(&operations.into_record()).is_some(), is_valid, "{table}");
        }
    }

    /// Each cell could be as long as a text can be, and their number was that of the record's bytes.
    #[test]
    fn only_the_arguments_of_an_event_have_repeats() {
        let row = |kind: u8, table: &str, cells: &[u8]| {
            let mut record = vec![0; OPERATIONS_START];
            record.extend_from_slice(&[kind, 0, table.len() as u8]);
            record.extend_from_slice(table.as_bytes());
            record.push(cells.len() as u8);
            for cell in cells {
                record.push(*cell);
                if *cell == REPEATS {
                    record.extend_from_slice(&[0, 0]);
                }
            }
            decode(&record).is_some()
        };
        assert!(row(INSERT, "events", &[0, REPEATS]));
        assert!(!row(INSERT, "events", &[REPEATS, REPEATS]));
        assert!(!row(INSERT, "sessions", &[REPEATS]));
        assert!(!row(DELETE, "events", &[REPEATS]));
        assert!(row(INSERT, "sessions", &[0; CELLS]));
        assert!(!row(INSERT, "sessions", &[0; CELLS + 1]));
    }

    #[test]
    fn a_reference_to_what_follows_is_an_error() {
        let at = |start: u64, length: u64| {
            let mut bytes = b"before".to_vec();
            bytes.push(REPEATS);
            push_varint(1, &mut bytes);
            push_bytes(b"", &mut bytes);
            push_varint(start, &mut bytes);
            push_varint(length, &mut bytes);
            push_bytes(b"!", &mut bytes);
            let mut rest = &bytes[6..];
            take_repeating_text(&bytes, &mut rest).map_err(|_| ())
        };
        assert_eq!(at(0, 6), Ok(Value::from("before!")));
        for (start, length) in [(0, 7), (6, 1), (7, 0), (u64::MAX, 2)] {
            assert_eq!(at(start, length), Err(()), "{start} {length}");
        }
    }
}
