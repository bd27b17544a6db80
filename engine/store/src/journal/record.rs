//! The content of a record: what a frame has after its header.
//!
//! ```text
//! record = 0x01 layout_id:8 operations          the rows of a group of calls, see `row_operations.rs`
//!        | 0x02 timeline layout                 an opening of the file, the first record of each segment
//!        | 0x03 module varint{from} varint{to} sql:32 rows:32
//!                                               a migration of a module's tables
//!        | 0x04 varint{floor}                   the undo images up to this event are deleted
//! layout = varint{count} (module varint{version} varint{count} (table varint{count} column{count}){count}){count}
//! timeline, module, table, column = varint bytes, UTF-8
//! ```
//!
//! An opening names the tables and columns that the following rows have, so a record can be read without the program that
//! wrote it. `layout_id` are the first bytes of the SHA-256 of the layout. The tables of the engine are those of a module
//! without a name, whose version is that of the file's format.
//!
//! Every change of the file except the calls' rows is a record of its own, so that another copy which applies the same
//! records gets the same content.

use abide_schema::event::Hash;
use abide_schema::{Seq, TableSpec};
use sha2::{Digest as _, Sha256};

use crate::cell_bytes::{
    CorruptCells, push_bytes, push_varint, take, take_count, take_text, take_varint,
};
use crate::journal::frame::FRAME_HEADER;
use crate::layout::{FORMAT_VERSION, Layout};
use crate::system;

const ROWS: u8 = 1;
const OPENING: u8 = 2;
const MIGRATION: u8 = 3;
const PRUNING: u8 = 4;

/// The offset of the operations in a record of rows, with the header of its frame.
pub(crate) const OPERATIONS_START: usize = FRAME_HEADER + 1 + size_of::<LayoutId>();

/// Identifies a layout in the records of rows.
pub(crate) type LayoutId = [u8; 8];

/// The content of a record.
#[derive(Debug, PartialEq)]
pub(crate) enum RecordContent<'a> {
    /// The row operations of a group of calls.
    Rows {
        /// The layout that they were written under.
        layout: LayoutId,
        operations: &'a [u8],
    },
    /// The file was opened for writing.
    Opening(Opening),
    /// The tables of a module were migrated.
    Migration(Migration),
    /// The undo images up to this event were deleted.
    Pruning { floor: Seq },
}

/// An opening of the file for writing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Opening {
    /// The id of the timeline that it starts.
    pub(crate) timeline: String,
    /// The tables that records of this opening have.
    pub(crate) layout: RecordLayout,
}

/// A migration of a module's tables from one version to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Migration {
    pub(crate) module: String,
    /// The version before; 0 if the file did not have the module.
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The digest of the statements that ran.
    pub(crate) sql: Hash,
    /// The digest of all rows of the module's tables afterwards.
    pub(crate) rows: Hash,
}

/// Why a record cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnreadableRecord {
    /// A newer program wrote it.
    UnknownKind(u8),
    /// It has a valid checksum and an invalid format.
    Corrupt,
}

impl From<CorruptCells> for UnreadableRecord {
    fn from(_: CorruptCells) -> UnreadableRecord {
        UnreadableRecord::Corrupt
    }
}

impl<'a> RecordContent<'a> {
    /// Reads the content of a frame.
    pub(crate) fn decode(mut bytes: &'a [u8]) -> Result<RecordContent<'a>, UnreadableRecord> {
        let bytes = &mut bytes;
        let content = match take(1, bytes)?[0] {
            ROWS => {
                let layout = take_array(bytes)?;
                return Ok(RecordContent::Rows { layout, operations: bytes });
            }
            OPENING => {
                let timeline = take_text(bytes)?;
                RecordContent::Opening(Opening { timeline, layout: RecordLayout::take(bytes)? })
            }
            MIGRATION => RecordContent::Migration(Migration {
                module: take_text(bytes)?,
                from: take_version(bytes)?,
                to: take_version(bytes)?,
                sql: take_array(bytes)?,
                rows: take_array(bytes)?,
            }),
            PRUNING => {
                let floor = i64::try_from(take_varint(bytes)?).map_err(|_| CorruptCells)?;
                RecordContent::Pruning { floor: Seq(floor) }
            }
            kind => return Err(UnreadableRecord::UnknownKind(kind)),
        };
        if bytes.is_empty() { Ok(content) } else { Err(UnreadableRecord::Corrupt) }
    }

    /// Returns the record, after room for the header of its frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; FRAME_HEADER];
        match self {
            RecordContent::Rows { layout, operations } => {
                out.push(ROWS);
                out.extend_from_slice(layout);
                out.extend_from_slice(operations);
            }
            RecordContent::Opening(Opening { timeline, layout }) => {
                out.push(OPENING);
                push_bytes(timeline.as_bytes(), &mut out);
                layout.push(&mut out);
            }
            RecordContent::Migration(Migration { module, from, to, sql, rows }) => {
                out.push(MIGRATION);
                push_bytes(module.as_bytes(), &mut out);
                push_varint(u64::from(*from), &mut out);
                push_varint(u64::from(*to), &mut out);
                out.extend_from_slice(sql);
                out.extend_from_slice(rows);
            }
            RecordContent::Pruning { floor } => {
                out.push(PRUNING);
                push_varint(floor.0.unsigned_abs(), &mut out);
            }
        }
        out
    }
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], CorruptCells> {
    take(N, bytes)?.try_into().map_err(|_| CorruptCells)
}

fn take_version(bytes: &mut &[u8]) -> Result<u32, CorruptCells> {
    u32::try_from(take_varint(bytes)?).map_err(|_| CorruptCells)
}

/// The tables and columns that records have, by module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordLayout {
    pub(crate) modules: Vec<RecordModule>,
}

/// A module in a [`RecordLayout`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordModule {
    pub(crate) name: String,
    pub(crate) version: u64,
    tables: Vec<RecordTable>,
}

/// A table in a [`RecordLayout`].
#[derive(Clone, Debug, PartialEq)]
struct RecordTable {
    name: String,
    columns: Vec<String>,
}

impl RecordLayout {
    /// Returns the layout of the records that a program with these modules writes.
    pub(crate) fn new(layout: &Layout) -> RecordLayout {
        let engine = RecordModule::new("", FORMAT_VERSION.unsigned_abs(), &system::tables());
        let modules = layout.modules.iter().map(|module| {
            RecordModule::new(module.name, u64::from(module.version), &module.tables)
        });
        RecordLayout { modules: std::iter::once(engine).chain(modules).collect() }
    }

    pub(crate) fn id(&self) -> LayoutId {
        let mut bytes = Vec::new();
        self.push(&mut bytes);
        *Sha256::digest(&bytes).first_chunk().expect("a digest has 32 bytes")
    }

    /// Returns a table that the record of this layout has and its module does not declare. A module that this program does
    /// not have, or has in another version, can have any table.
    pub(crate) fn undeclared_table(&self, layout: &Layout) -> Option<&str> {
        let declared = RecordLayout::new(layout);
        self.modules.iter().find_map(|module| {
            let mut known = declared.modules.iter();
            let known = known.find(|it| it.name == module.name && it.version == module.version)?;
            let mut tables = module.tables.iter();
            let undeclared =
                tables.find(|table| known.tables.iter().all(|it| it.name != table.name));
            undeclared.map(|table| table.name.as_str())
        })
    }

    /// Returns the columns of a table, if it has the table.
    pub(crate) fn columns(&self, table: &str) -> Option<&[String]> {
        let mut tables = self.modules.iter().flat_map(|module| &module.tables);
        tables.find(|it| it.name == table).map(|it| it.columns.as_slice())
    }

    fn push(&self, out: &mut Vec<u8>) {
        push_varint(self.modules.len() as u64, out);
        for module in &self.modules {
            push_bytes(module.name.as_bytes(), out);
            push_varint(module.version, out);
            push_varint(module.tables.len() as u64, out);
            for table in &module.tables {
                push_bytes(table.name.as_bytes(), out);
                push_varint(table.columns.len() as u64, out);
                table.columns.iter().for_each(|column| push_bytes(column.as_bytes(), out));
            }
        }
    }

    fn take(bytes: &mut &[u8]) -> Result<RecordLayout, CorruptCells> {
        let modules = take_all(bytes, |bytes| {
            Ok(RecordModule {
                name: take_text(bytes)?,
                version: take_varint(bytes)?,
                tables: take_all(bytes, |bytes| {
                    Ok(RecordTable {
                        name: take_text(bytes)?,
                        columns: take_all(bytes, take_text)?,
                    })
                })?,
            })
        })?;
        Ok(RecordLayout { modules })
    }
}

/// Takes a count and as many things. A wrong count ends with the bytes.
fn take_all<T>(
    bytes: &mut &[u8],
    take_one: impl Fn(&mut &[u8]) -> Result<T, CorruptCells>,
) -> Result<Vec<T>, CorruptCells> {
    (0..take_count(bytes)?).map(|_| take_one(bytes)).collect()
}

impl RecordModule {
    fn new(name: &str, version: u64, tables: &[&'static TableSpec]) -> RecordModule {
        let tables = tables.iter().map(|table| RecordTable {
            name: table.name.to_owned(),
            columns: table.columns.iter().map(|column| column.name.to_owned()).collect(),
        });
        RecordModule { name: name.to_owned(), version, tables: tables.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents() -> Vec<RecordContent<'static>> {
        let layout = RecordLayout::new(&Layout::default());
        let id = layout.id();
        vec![
            RecordContent::Rows { layout: id, operations: b"some operations" },
            RecordContent::Opening(Opening { timeline: "9f2c".to_owned(), layout }),
            RecordContent::Migration(Migration {
                module: "library".to_owned(),
                from: 1,
                to: 300,
                sql: [1; 32],
                rows: [2; 32],
            }),
            RecordContent::Pruning { floor: Seq(1 << 40) },
        ]
    }

    #[test]
    fn records_round_trip() {
        for content in contents() {
            let record = content.encode();
            assert_eq!(RecordContent::decode(&record[FRAME_HEADER..]), Ok(content));
        }
    }

    #[test]
    fn cut_records_and_those_of_newer_programs_are_named() {
        for content in &contents()[1..] {
            let record = content.encode();
            let bytes = &record[FRAME_HEADER..];
            for length in 0..bytes.len() {
                let cut = RecordContent::decode(&bytes[..length]);
                assert_eq!(cut, Err(UnreadableRecord::Corrupt), "{length}");
            }
            let longer = [bytes, &[0]].concat();
            assert_eq!(RecordContent::decode(&longer), Err(UnreadableRecord::Corrupt));
        }
        assert_eq!(RecordContent::decode(&[9, 1, 2]), Err(UnreadableRecord::UnknownKind(9)));
    }
}
