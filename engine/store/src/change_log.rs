//! The encoding of a commit's undo images.
//!
//! ```text
//! images = image*
//! image  = 0x00 cell{key}       the row was inserted: its primary key
//!        | 0x01 cell{columns}   the row existed: all its old cells
//! ```
//!
//! Only old images are stored: the new image of a row is the old image of its next change, or its
//! current row.

use abide_schema::{TableSpec, Value};

use crate::cell_bytes::{self, CorruptCells, take_cells};

/// The state of one row before a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Image {
    /// The row did not exist; its key.
    Absent(Vec<Value>),
    /// The row existed; its cells.
    Present(Vec<Value>),
}

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
    cells.into_iter().for_each(|cell| cell_bytes::push(cell, out));
}

/// Decodes all images of a table.
///
/// # Errors
/// `CorruptCells`: the bytes end early or have an invalid format.
pub fn decode(table: &TableSpec, mut bytes: &[u8]) -> Result<Vec<Image>, CorruptCells> {
    let mut images = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        bytes = rest;
        images.push(match tag {
            0 => Image::Absent(take_cells(table.key.len(), &mut bytes)?),
            1 => Image::Present(take_cells(table.columns.len(), &mut bytes)?),
            _ => return Err(CorruptCells),
        });
    }
    Ok(images)
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
