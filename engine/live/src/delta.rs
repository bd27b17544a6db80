//! What one commit changed in one query's result.

use abide_schema::Row;
use abide_schema::value::write_row_json;

/// The change of one result. The result before, without the deletes, with the inserts and with the
/// updates in the place of the rows of the same key, is the result after.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Keys of the rows that left, or the whole rows where the shape has no key.
    pub deletes: Vec<Row>,
    /// Rows that came.
    pub inserts: Vec<Row>,
    /// New forms of rows that stayed.
    pub updates: Vec<Row>,
}

impl Delta {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deletes.is_empty() && self.inserts.is_empty() && self.updates.is_empty()
    }

    /// Appends `"deletes":[…],"inserts":[…],"updates":[…]`, without braces: the caller adds the
    /// subscription's id, and shares these bytes among all who get them.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let lists =
            [("deletes", &self.deletes), ("inserts", &self.inserts), ("updates", &self.updates)];
        for (at, (name, rows)) in lists.into_iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            out.extend_from_slice(format!("{comma}\"{name}\":[").as_bytes());
            for (at, row) in rows.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_row_json(row, out);
            }
            out.push(b']');
        }
    }
}
