//! The binary form of cells, in undo images and in the journal.
//!
//! ```text
//! cell   = 0x00                 NULL
//!        | 0x01 varint          INTEGER, zigzag
//!        | 0x02 8 bytes         REAL, big-endian bits
//!        | 0x03 varint bytes    TEXT
//!        | 0x04 varint bytes    BLOB
//! varint = little-endian base 128
//! ```

use abide_schema::Value;

/// The bytes end early or have an invalid format.
#[derive(Debug, thiserror::Error)]
#[error("the bytes are not valid cells")]
pub struct CorruptCells;

/// Appends a cell.
pub(crate) fn push(cell: &Value, out: &mut Vec<u8>) {
    match cell {
        Value::Null => out.push(0),
        Value::Integer(n) => push_integer(*n, out),
        Value::Real(x) => {
            out.push(2);
            out.extend_from_slice(&x.to_bits().to_be_bytes());
        }
        Value::Text(text) => push_text(text, out),
        Value::Blob(bytes) => push_blob(bytes, out),
    }
}

pub(crate) fn push_integer(n: i64, out: &mut Vec<u8>) {
    out.push(1);
    push_varint(((n << 1) ^ (n >> 63)).cast_unsigned(), out);
}

pub(crate) fn push_text(text: &str, out: &mut Vec<u8>) {
    out.push(3);
    push_bytes(text.as_bytes(), out);
}

pub(crate) fn push_blob(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(4);
    push_bytes(bytes, out);
}

/// Appends a length and bytes.
pub(crate) fn push_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    push_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

pub(crate) fn push_varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// The columns that differ between two images of a row, as a set of bits. A table has at most 64 columns.
pub(crate) fn changed_columns(old: &[Value], new: &[Value]) -> u64 {
    assert!(new.len() <= 64, "a table has at most 64 columns");
    (0..new.len()).filter(|at| old[*at] != new[*at]).fold(0, |set, at| set | 1_u64 << at)
}

/// The columns of a set of bits.
pub(crate) fn columns_in(set: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |at| set & (1 << at) != 0)
}

/// Takes a number of cells.
pub(crate) fn take_cells(count: usize, bytes: &mut &[u8]) -> Result<Vec<Value>, CorruptCells> {
    (0..count).map(|_| take_cell(bytes)).collect()
}

pub(crate) fn take_cell(bytes: &mut &[u8]) -> Result<Value, CorruptCells> {
    Ok(match take(1, bytes)?[0] {
        0 => Value::Null,
        1 => {
            let n = take_varint(bytes)?;
            Value::Integer((n >> 1).cast_signed() ^ -(n & 1).cast_signed())
        }
        2 => {
            let bits = take(8, bytes)?.try_into().map_err(|_| CorruptCells)?;
            Value::Real(f64::from_bits(u64::from_be_bytes(bits)))
        }
        3 => Value::Text(take_text(bytes)?),
        4 => Value::Blob(take_bytes(bytes)?.to_owned()),
        _ => return Err(CorruptCells),
    })
}

/// Returns the length of the text or the blob that follows; 0 for another cell.
pub(crate) fn content_bytes(cell: &[u8]) -> Result<usize, CorruptCells> {
    match cell.split_first() {
        Some((3 | 4, mut rest)) => take_count(&mut rest),
        _ => Ok(0),
    }
}

/// Takes a length and a text.
pub(crate) fn take_text(bytes: &mut &[u8]) -> Result<String, CorruptCells> {
    String::from_utf8(take_bytes(bytes)?.to_owned()).map_err(|_| CorruptCells)
}

pub(crate) fn take<'a>(count: usize, bytes: &mut &'a [u8]) -> Result<&'a [u8], CorruptCells> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(CorruptCells)?;
    *bytes = rest;
    Ok(taken)
}

pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], CorruptCells> {
    let count = take_count(bytes)?;
    take(count, bytes)
}

/// Takes a number of things that follow.
pub(crate) fn take_count(bytes: &mut &[u8]) -> Result<usize, CorruptCells> {
    usize::try_from(take_varint(bytes)?).map_err(|_| CorruptCells)
}

pub(crate) fn take_varint(bytes: &mut &[u8]) -> Result<u64, CorruptCells> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(1, bytes)?[0];
        n |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(n);
        }
    }
    Err(CorruptCells)
}
