//! The encoding of a commit's undo images.
//!
//! ```text
//! images = image*
//! image  = 0x00 cell{key}       the row was inserted: its primary key
//!        | 0x01 cell{columns}   the row existed: all its old cells
//! cell   = 0x00                 NULL
//!        | 0x01 varint          INTEGER, zigzag
//!        | 0x02 8 bytes         REAL, big-endian bits
//!        | 0x03 varint bytes    TEXT
//!        | 0x04 varint bytes    BLOB
//! varint = little-endian base 128
//! ```
//!
//! Only old images are stored: the new image of a row is the old image of its next change, or its
//! current row.

use abide_schema::{TableSpec, Value};

/// The state of one row before a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Image {
    /// The row did not exist; its key.
    Absent(Vec<Value>),
    /// The row existed; its cells.
    Present(Vec<Value>),
}

/// The bytes end early or have an invalid format.
#[derive(Debug, thiserror::Error)]
#[error("the change log is damaged")]
pub struct CorruptImage;

/// Appends one image.
pub fn encode(image: &Image, out: &mut Vec<u8>) {
    let (tag, cells) = match image {
        Image::Absent(key) => (0, key),
        Image::Present(row) => (1, row),
    };
    encode_cells(tag, cells, out);
}

/// Appends one image from an iterator of cells.
pub fn encode_cells<'a>(tag: u8, cells: impl IntoIterator<Item = &'a Value>, out: &mut Vec<u8>) {
    out.push(tag);
    for cell in cells {
        match cell {
            Value::Null => out.push(0),
            Value::Integer(n) => {
                out.push(1);
                push_varint(((n << 1) ^ (n >> 63)).cast_unsigned(), out);
            }
            Value::Real(x) => {
                out.push(2);
                out.extend_from_slice(&x.to_bits().to_be_bytes());
            }
            Value::Text(text) => push_bytes(3, text.as_bytes(), out),
            Value::Blob(bytes) => push_bytes(4, bytes, out),
        }
    }
}

/// Decodes all images of a table.
///
/// # Errors
/// [`CorruptImage`].
pub fn decode(table: &TableSpec, mut bytes: &[u8]) -> Result<Vec<Image>, CorruptImage> {
    let mut images = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        bytes = rest;
        images.push(match tag {
            0 => Image::Absent(take_cells(table.key.len(), &mut bytes)?),
            1 => Image::Present(take_cells(table.columns.len(), &mut bytes)?),
            _ => return Err(CorruptImage),
        });
    }
    Ok(images)
}

fn take_cells(count: usize, bytes: &mut &[u8]) -> Result<Vec<Value>, CorruptImage> {
    (0..count).map(|_| take_cell(bytes)).collect()
}

fn take_cell(bytes: &mut &[u8]) -> Result<Value, CorruptImage> {
    Ok(match take(1, bytes)?[0] {
        0 => Value::Null,
        1 => {
            let n = take_varint(bytes)?;
            Value::Integer((n >> 1).cast_signed() ^ -(n & 1).cast_signed())
        }
        2 => {
            let bits = take(8, bytes)?.try_into().map_err(|_| CorruptImage)?;
            Value::Real(f64::from_bits(u64::from_be_bytes(bits)))
        }
        3 => {
            let text = take_bytes(bytes)?.to_owned();
            Value::Text(String::from_utf8(text).map_err(|_| CorruptImage)?)
        }
        4 => Value::Blob(take_bytes(bytes)?.to_owned()),
        _ => return Err(CorruptImage),
    })
}

fn push_bytes(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    push_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn push_varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn take<'a>(count: usize, bytes: &mut &'a [u8]) -> Result<&'a [u8], CorruptImage> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(CorruptImage)?;
    *bytes = rest;
    Ok(taken)
}

fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], CorruptImage> {
    let count = usize::try_from(take_varint(bytes)?).map_err(|_| CorruptImage)?;
    take(count, bytes)
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64, CorruptImage> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(1, bytes)?[0];
        n |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(n);
        }
    }
    Err(CorruptImage)
}

#[cfg(test)]
mod tests {
    use abide_schema::Table as _;

    use super::*;
    use crate::system::RequestIdRow;

    #[test]
    fn images_round_trip() {
        let text = |text: &str| Value::Text(text.to_owned());
        let images = vec![
            Image::Absent(vec![text("local"), text("")]),
            Image::Present(vec![
                Value::Null,
                Value::Real(-0.5),
                Value::Integer(i64::MIN),
                Value::Integer(i64::MAX),
            ]),
            Image::Present(vec![
                Value::Blob(vec![0; 300]),
                text(&"é".repeat(200)),
                Value::Integer(-1),
                Value::Integer(0),
            ]),
        ];
        let mut bytes = Vec::new();
        images.iter().for_each(|image| encode(image, &mut bytes));
        assert_eq!(decode(RequestIdRow::SPEC, &bytes).expect("sound"), images);
        for length in 1..bytes.len() {
            // Truncated bytes give fewer images or an error, never a panic.
            if let Ok(fewer) = decode(RequestIdRow::SPEC, &bytes[..length]) {
                assert!(fewer.len() < images.len());
            }
        }
    }
}
