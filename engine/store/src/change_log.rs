//! The encoding of a commit's undo images, and the old rows that follow from them.
//!
//! ```text
//! images = image*
//! image  = 0x00 cell{key}                        the row was inserted: its primary key
//!        | 0x01 cell{columns}                    the row was deleted: all its old cells
//!        | 0x02 cell{key} varint cell{bits}      the row was changed: its key, the set of changed columns, their old cells
//! ```
//!
//! Only old images are stored: the new image of a row is the old image of its next change, or its current row. The log of
//! a session repeats its long texts rarely; a changed row would repeat them at each change, so it stores what differs.

use std::collections::HashMap;

use abide_schema::{Row, TableSpec, Value};

use crate::cell_bytes::{
    self, CorruptCells, changed_columns, columns_in, push_varint, take_cells, take_varint,
};

/// The state of one row before a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Image {
    /// The row did not exist; its key.
    Absent(Vec<Value>),
    /// The row existed; its cells.
    Present(Vec<Value>),
    /// The row existed and was changed; only what differed.
    Changed {
        /// Its key, which never changes.
        key: Vec<Value>,
        /// The changed columns, a set of bits.
        columns: u64,
        /// Their old cells.
        cells: Vec<Value>,
    },
}

/// Appends one image.
pub fn encode(image: &Image, out: &mut Vec<u8>) {
    match image {
        Image::Absent(key) => encode_cells(0, key, out),
        Image::Present(row) => encode_cells(1, row, out),
        Image::Changed { key, columns, cells } => {
            encode_cells(2, key, out);
            push_varint(*columns, out);
            cells.iter().for_each(|cell| cell_bytes::push(cell, out));
        }
    }
}

/// Appends one image from an iterator of cells.
pub fn encode_cells<'a>(tag: u8, cells: impl IntoIterator<Item = &'a Value>, out: &mut Vec<u8>) {
    out.push(tag);
    cells.into_iter().for_each(|cell| cell_bytes::push(cell, out));
}

/// Appends the image of a row that was changed from `old` to `new`.
pub fn encode_change(table: &TableSpec, old: &[Value], new: &[Value], out: &mut Vec<u8>) {
    let columns = changed_columns(old, new);
    encode_cells(2, table.key.iter().map(|at| &old[*at]), out);
    push_varint(columns, out);
    columns_in(columns).for_each(|at| cell_bytes::push(&old[at], out));
}

/// Decodes all images of a table.
///
/// # Errors
/// `CorruptCells`: the bytes end early or have an invalid format.
pub fn decode(table: &TableSpec, bytes: &[u8]) -> Result<Vec<Image>, CorruptCells> {
    decode_with(table.key.len(), table.columns.len(), bytes)
}

/// Decodes all images of a table with so many columns, of which so many are the key.
pub(crate) fn decode_with(
    key: usize,
    width: usize,
    mut bytes: &[u8],
) -> Result<Vec<Image>, CorruptCells> {
    let mut images = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        bytes = rest;
        images.push(match tag {
            0 => Image::Absent(take_cells(key, &mut bytes)?),
            1 => Image::Present(take_cells(width, &mut bytes)?),
            2 => {
                let key = take_cells(key, &mut bytes)?;
                let columns = take_varint(&mut bytes)?;
                if columns_in(columns).last().is_some_and(|at| at >= width) {
                    return Err(CorruptCells);
                }
                let cells = take_cells(columns.count_ones() as usize, &mut bytes)?;
                Image::Changed { key, columns, cells }
            }
            _ => return Err(CorruptCells),
        });
    }
    Ok(images)
}

/// A row that changed, with its state before.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedRow {
    /// Its key.
    pub key: Vec<Value>,
    /// The row before the first change; `None` if it did not exist.
    pub old: Option<Row>,
}

/// Puts the rows of a table back to their state before some commits. Takes the images of these commits, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    places: HashMap<Vec<u8>, usize>,
    /// In the order of their first change.
    rows: Vec<UndoneRow>,
}

/// The known state of a row before the commits.
#[derive(Debug)]
struct UndoneRow {
    key: Vec<Value>,
    /// Oldest first: to put into the whole row, newest first.
    changed: Vec<OldCells>,
    /// The whole row after these; `None` while no image has it, so that it is the current one.
    whole: Option<Option<Vec<Value>>>,
}

/// The cells of a row that a commit changed, before it.
#[derive(Debug)]
struct OldCells {
    /// The changed columns, a set of bits.
    columns: u64,
    cells: Vec<Value>,
}

impl Undo {
    /// Adds the next image.
    pub(crate) fn add(&mut self, table: &TableSpec, image: Image) {
        let (key, changed, whole) = match image {
            Image::Absent(key) => (key, None, Some(None)),
            Image::Present(row) => (table.key_of(&row), None, Some(Some(row))),
            Image::Changed { key, columns, cells } => {
                (key, Some(OldCells { columns, cells }), None)
            }
        };
        let mut place = Vec::new();
        encode_cells(0, &key, &mut place);
        let nth = *self.places.entry(place).or_insert_with(|| {
            self.rows.push(UndoneRow { key, changed: Vec::new(), whole: None });
            self.rows.len() - 1
        });
        let row = &mut self.rows[nth];
        if row.whole.is_none() {
            row.changed.extend(changed);
            row.whole = whole;
        }
    }

    /// The rows before all commits. `current` returns the row that has a key now.
    pub(crate) fn finish<E: From<CorruptCells>>(
        self,
        current: impl Fn(&[Value]) -> Result<Option<Row>, E>,
    ) -> Result<Vec<ChangedRow>, E> {
        let undone = self.rows.into_iter().map(|UndoneRow { key, changed, whole }| {
            let mut old = match whole {
                Some(whole) => whole,
                None => current(&key)?.map(|row| row.to_vec()),
            };
            for OldCells { columns, cells } in changed.into_iter().rev() {
                let row = old.as_mut().ok_or(CorruptCells)?;
                for (at, cell) in columns_in(columns).zip(cells) {
                    *row.get_mut(at).ok_or(CorruptCells)? = cell;
                }
            }
            Ok(ChangedRow { key, old: old.map(Row::from) })
        });
        undone.collect()
    }
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
            Image::Changed {
                key: vec![text("local"), text("")],
                columns: 0b1100,
                cells: vec![Value::Blob(vec![0; 32]), Value::Null],
            },
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

    /// The state of a row is found from its current row and all images since.
    #[test]
    fn old_rows_follow_from_images() {
        let table = RequestIdRow::SPEC;
        let cells = |last: [i64; 2]| {
            let [a, b] = last.map(Value::Integer);
            vec![Value::from("local"), Value::from("r"), a, b]
        };
        let states =
            [None, Some([1, 1]), Some([1, 2]), Some([7, 2]), None, Some([3, 3]), Some([4, 3])];
        for from in 0..states.len() {
            let mut bytes = Vec::new();
            for pair in states.windows(2).skip(from) {
                match (pair[0].map(cells), pair[1].map(cells)) {
                    (Some(old), Some(new)) => encode_change(table, &old, &new, &mut bytes),
                    (Some(old), None) => encode_cells(1, &old, &mut bytes),
                    (None, Some(new)) => encode_cells(0, &table.key_of(&new), &mut bytes),
                    (None, None) => {}
                }
            }
            let mut undo = Undo::default();
            let images = decode(table, &bytes).expect("they are valid");
            images.into_iter().for_each(|image| undo.add(table, image));
            let current = states[states.len() - 1].map(cells).map(Row::from);
            let found = undo.finish(|_| Ok::<_, CorruptCells>(current.clone()));
            let found = found.expect("they are complete");
            assert_eq!(found.len(), usize::from(from < states.len() - 1));
            for row in found {
                assert_eq!(row.old, states[from].map(cells).map(Row::from), "from {from}");
            }
        }
    }

    #[test]
    fn a_change_of_a_row_that_is_missing_is_an_error() {
        let table = RequestIdRow::SPEC;
        let row = [Value::from("local"), Value::from("r"), Value::Null, Value::Null];
        let changed = Image::Changed { key: row[..2].to_vec(), columns: 8, cells: vec![0.into()] };
        let mut undo = Undo::default();
        undo.add(table, changed.clone());
        assert!(undo.finish(|_| Ok::<_, CorruptCells>(None)).is_err());
        let mut bytes = Vec::new();
        let wide = Image::Changed { key: row[..2].to_vec(), columns: 16, cells: vec![0.into()] };
        encode(&wide, &mut bytes);
        assert!(decode(table, &bytes).is_err(), "the table has four columns");
    }
}
