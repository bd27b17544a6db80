//! Digests of rows: of those that a call has written, which its event commits to, and of a whole table.
//!
//! ```text
//! rows_hash = SHA-256("abide.rows.v1\n" salt operation*)
//! table_hash = SHA-256("abide.table.v1\n" table (count cell{count})*)  all rows of a table, in the order of its primary key
//!
//! operation = table 0x01 count cell{count}                            a new row: its cells, in the order of the columns
//!           | table 0x02 count key-cell{count} count (column cell){count}
//!                                                                     an existing row: its key, then the cells that differ
//!           | table 0x03 count key-cell{count}                        a deleted row
//! table     = length, UTF-8
//! column    = its position in the table, from 0
//! cell      = 0x00                          NULL
//!           | 0x01 integer                  two's complement
//!           | 0x02 real                     IEEE 754, binary64; 0.0 for -0.0
//!           | 0x03 length UTF-8             TEXT of at most 1,024 bytes
//!           | 0x04 length bytes             a BLOB of at most 1,024 bytes
//!           | 0x05 length SHA-256           longer TEXT
//!           | 0x06 length SHA-256           a longer BLOB
//! ```
//!
//! Numbers have 8 bytes, big-endian. There is one operation for each row that the call has left different from what it
//! was before, by table name and then by the bytes of the key, so the digest does not depend on the order of the writes.
//! A call that has changed no row has the digest of no operation. The salt is that of the event: without it, nobody can
//! confirm a guess of a row with the digest.

use std::ops::Range;

use abide_schema::event::{Hash, Salt};
use abide_schema::{Row, TableSpec, Value};
use sha2::{Digest as _, Sha256};

use crate::encoding::push_text;

const ROWS_TAG: &[u8] = b"abide.rows.v1\n";
const TABLE_TAG: &[u8] = b"abide.table.v1\n";

const INSERTED: u8 = 1;
const UPDATED: u8 = 2;
const DELETED: u8 = 3;

/// Maximum length of a text or a blob that enters as it is. A longer one enters as its digest, which the thread of the
/// caller may have computed.
pub const LONG_CELL_BYTES: usize = 1_024;

/// Number of writes for which memory is kept from one call to the next.
const KEPT_WRITES: usize = 64;

/// Bytes of each buffer that are kept from one call to the next.
const KEPT_BYTES: usize = 16 << 10;

/// The rows that a call has written so far. The buffers are used again for the next call.
#[derive(Debug, Default)]
pub struct WrittenRows {
    writes: Vec<WrittenRow>,
    /// The bytes of the keys, one after the other.
    keys: Vec<u8>,
    /// The bytes that are hashed.
    bytes: Vec<u8>,
}

/// One write.
#[derive(Debug)]
struct WrittenRow {
    table: &'static TableSpec,
    /// Where the bytes of its key are.
    key: Range<usize>,
    before: Option<Row>,
    after: Option<Row>,
}

/// The digest of a long cell, if it is known without hashing it.
pub type KnownDigest<'a> = &'a dyn Fn(&[u8]) -> Option<Hash>;

impl WrittenRows {
    /// Adds a write: the row before it, with the earlier writes of the call, and the row after it.
    pub fn push(
        &mut self,
        table: &'static TableSpec,
        key: &[Value],
        before: Option<Row>,
        after: Option<Row>,
    ) {
        let start = self.keys.len();
        push_cells(&mut self.keys, key, &|_| None);
        let key = start..self.keys.len();
        self.writes.push(WrittenRow { table, key, before, after });
    }

    /// Forgets all writes.
    pub fn clear(&mut self) {
        self.writes.clear();
        self.keys.clear();
        self.bytes.clear();
        // A call can write tens of thousands of rows, and long cells.
        self.writes.shrink_to(KEPT_WRITES);
        self.keys.shrink_to(KEPT_BYTES);
        self.bytes.shrink_to(KEPT_BYTES);
    }

    /// Returns the digest of the writes, for an event with this salt, and forgets them.
    #[must_use]
    pub fn take_digest(&mut self, salt: &Salt, known: KnownDigest<'_>) -> Hash {
        let WrittenRows { writes, keys, bytes } = self;
        let place = |write: &WrittenRow| (write.table.name, &keys[write.key.clone()]);
        // The sort is stable: the first write of a row has the row from before the call, and its last one the row after
        // it.
        writes.sort_by(|a, b| place(a).cmp(&place(b)));
        bytes.extend_from_slice(ROWS_TAG);
        bytes.extend_from_slice(salt);
        for writes in writes.chunk_by(|a, b| place(a) == place(b)) {
            let (first, last) = (&writes[0], &writes[writes.len() - 1]);
            let key = &keys[first.key.clone()];
            push_operation(bytes, first, key, last.after.as_deref(), known);
        }
        let digest = Sha256::digest(&*bytes).into();
        self.clear();
        digest
    }
}

/// The digest of all rows of a table, which are added one by one.
#[derive(Clone, Debug)]
pub struct TableDigest {
    hash: Sha256,
    rows: u64,
}

impl TableDigest {
    /// Returns the digest of no rows.
    #[must_use]
    pub fn new(table: &TableSpec) -> TableDigest {
        let mut bytes = TABLE_TAG.to_vec();
        push_text(&mut bytes, table.name);
        TableDigest { hash: Sha256::new_with_prefix(bytes), rows: 0 }
    }

    /// Adds the next row, in the order of the primary key.
    pub fn add(&mut self, row: &[Value]) {
        let mut bytes = Vec::with_capacity(256);
        push_cells(&mut bytes, row, &|_| None);
        self.hash.update(&bytes);
        self.rows += 1;
    }

    /// Returns the number of rows, and their digest.
    #[must_use]
    pub fn finish(self) -> (u64, Hash) {
        (self.rows, self.hash.finalize().into())
    }
}

/// Appends what a call has done to a row, from its first write and the row after its last one, unless it is as before.
fn push_operation(
    bytes: &mut Vec<u8>,
    first: &WrittenRow,
    key: &[u8],
    after: Option<&[Value]>,
    known: KnownDigest<'_>,
) {
    let WrittenRow { table, before, .. } = first;
    match (before.as_deref(), after) {
        (None, None) => {}
        (None, Some(row)) => {
            push_start(bytes, table, INSERTED);
            push_cells(bytes, row, known);
        }
        (Some(_), None) => {
            push_start(bytes, table, DELETED);
            bytes.extend_from_slice(key);
        }
        (Some(before), Some(after)) => {
            let differing = (0..after.len()).filter(|at| before.get(*at) != after.get(*at));
            let count = differing.clone().count();
            if count == 0 {
                return;
            }
            push_start(bytes, table, UPDATED);
            bytes.extend_from_slice(key);
            push_number(bytes, count);
            for at in differing {
                push_number(bytes, at);
                push_cell(bytes, &after[at], known);
            }
        }
    }
}

fn push_start(bytes: &mut Vec<u8>, table: &TableSpec, kind: u8) {
    push_text(bytes, table.name);
    bytes.push(kind);
}

fn push_cells(bytes: &mut Vec<u8>, cells: &[Value], known: KnownDigest<'_>) {
    push_number(bytes, cells.len());
    for cell in cells {
        push_cell(bytes, cell, known);
    }
}

fn push_cell(bytes: &mut Vec<u8>, cell: &Value, known: KnownDigest<'_>) {
    match cell {
        Value::Null => bytes.push(0),
        Value::Integer(integer) => {
            bytes.push(1);
            bytes.extend_from_slice(&integer.to_be_bytes());
        }
        Value::Real(real) => {
            bytes.push(2);
            // SQLite stores no -0.0: the sum is 0.0.
            bytes.extend_from_slice(&(real + 0.0).to_bits().to_be_bytes());
        }
        Value::Text(text) => push_content(bytes, 3, text.as_bytes(), known),
        Value::Blob(blob) => push_content(bytes, 4, blob, known),
    }
}

/// Appends a text or a blob. The tag of a long one is larger by two.
fn push_content(bytes: &mut Vec<u8>, tag: u8, content: &[u8], known: KnownDigest<'_>) {
    if content.len() <= LONG_CELL_BYTES {
        bytes.push(tag);
        push_number(bytes, content.len());
        bytes.extend_from_slice(content);
        return;
    }
    bytes.push(tag + 2);
    push_number(bytes, content.len());
    let digest = known(content).unwrap_or_else(|| Sha256::digest(content).into());
    bytes.extend_from_slice(&digest);
}

fn push_number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend_from_slice(&(number as u64).to_be_bytes());
}

#[cfg(test)]
mod tests;
