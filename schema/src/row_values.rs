//! Reading a row of a table from JSON, or from another format of `serde` that describes itself.
//!
//! `#[table]` implements `Deserialize` with it. Only the first step depends on the format, and only the last one on the
//! type of a column, so that the compiler does not generate code for each pair of a table and a format.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value as JsonValue;

use crate::table::{Cell, ColumnSpec, Kind, TableSpec};
use crate::value::Value;

/// The values of a row, in the order of the columns.
#[derive(Clone, Debug)]
pub struct RowValues {
    columns: &'static [ColumnSpec],
    values: Vec<Option<JsonValue>>,
}

impl RowValues {
    /// Reads an object with the names of the columns. It ignores other names.
    ///
    /// # Errors
    /// Those of the deserializer, and for anything but an object.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        table: &'static TableSpec,
        deserializer: D,
    ) -> Result<RowValues, D::Error> {
        deserializer.deserialize_map(RowVisitor(table))
    }

    /// Takes the value of the column at a position; a nullable column may be missing. The forms of
    /// [`Value::to_json`] are accepted, too.
    ///
    /// # Errors
    /// A text that names the column, if it is missing or has a value of another type.
    pub fn take<T: Cell + DeserializeOwned>(&mut self, at: usize) -> Result<T, String> {
        let column = self.columns[at].name;
        let cell = match self.values[at].take() {
            None if !T::NULLABLE => return Err(format!("missing column {column}")),
            Some(value) if is_wire_form(T::KIND, &value) => from_wire_form(&value),
            value => T::deserialize(value.unwrap_or_default()).map_err(|why| why.to_string()),
        };
        cell.map_err(|why| format!("column {column}: {why}"))
    }
}

/// Returns `true` if a value has the form of the protocol, which can differ from that of the column's type: a Boolean
/// is 0 or 1, and bytes are an object.
fn is_wire_form(kind: Kind, value: &JsonValue) -> bool {
    (kind != Kind::Text && value.is_object()) || (kind == Kind::Integer && value.is_number())
}

fn from_wire_form<T: Cell>(value: &JsonValue) -> Result<T, String> {
    let cell = Value::from_json(value).map_err(|why| why.to_string())?;
    T::from_value(&cell).map_err(|why| why.to_string())
}

struct RowVisitor(&'static TableSpec);

impl<'de> Visitor<'de> for RowVisitor {
    type Value = RowValues;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a row of {}", self.0.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RowValues, A::Error> {
        let columns = self.0.columns;
        let mut values = vec![None; columns.len()];
        let mut next = 0;
        while let Some(found) = map.next_key_seed(ColumnSeed { columns, next })? {
            match found {
                Some(at) => {
                    values[at] = Some(map.next_value::<JsonValue>()?);
                    next = at + 1;
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(RowValues { columns, values })
    }
}

/// The position of the column with a name. Rows of queries have the columns in their order, so the search begins after
/// the last one.
struct ColumnSeed {
    columns: &'static [ColumnSpec],
    next: usize,
}

impl<'de> DeserializeSeed<'de> for ColumnSeed {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<usize>, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for ColumnSeed {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a column")
    }

    fn visit_str<E>(self, name: &str) -> Result<Option<usize>, E> {
        let (before, after) = self.columns.split_at(self.next);
        let later = after.iter().position(|column| column.name == name);
        Ok(later
            .map(|at| at + self.next)
            .or_else(|| before.iter().position(|column| column.name == name)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::Table;

    #[crate::table(name = "parts")]
    struct Part {
        #[column(key)]
        id: String,
        is_new: bool,
        weight: f64,
        count: Option<i64>,
        picture: Option<Vec<u8>>,
        r#type: Option<String>,
    }

    fn part(json: JsonValue) -> Result<Part, String> {
        serde_json::from_value(json).map_err(|why| why.to_string())
    }

    #[test]
    fn a_row_is_read_as_it_is_written() {
        let written = Part {
            id: "a".to_owned(),
            is_new: true,
            weight: 1.5,
            count: Some(2),
            picture: Some(vec![0, 255]),
            r#type: Some("new".to_owned()),
        };
        let json = serde_json::to_value(&written).expect("it can be written");
        assert_eq!(part(json).as_ref(), Ok(&written));
        let text = serde_json::to_string(&written).expect("it can be written");
        assert_eq!(serde_json::from_str::<Part>(&text).ok().as_ref(), Some(&written));
    }

    #[test]
    fn a_row_is_read_in_the_form_of_the_protocol() {
        let written = Part {
            id: "a".to_owned(),
            is_new: true,
            weight: f64::INFINITY,
            count: None,
            picture: Some(vec![0, 255]),
            r#type: Some("new".to_owned()),
        };
        let cells = written.clone().into_row();
        let columns = Part::SPEC.columns.iter().map(|column| column.name.to_owned());
        let json: serde_json::Map<String, JsonValue> =
            columns.zip(cells.iter().map(Value::to_json)).collect();
        assert_eq!(part(json.into()), Ok(written));
    }

    #[test]
    fn nullable_columns_may_be_missing_and_unknown_ones_are_ignored() {
        let found = part(json!({"other": [1], "weight": 2, "is_new": false, "id": "a"}));
        let expected = Part {
            id: "a".to_owned(),
            is_new: false,
            weight: 2.0,
            count: None,
            picture: None,
            r#type: None,
        };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn an_error_names_the_column() {
        let error = |json| part(json).expect_err("it is no part");
        assert_eq!(error(json!({"id": "a", "is_new": true})), "missing column weight");
        assert_eq!(
            error(json!({"id": 7, "is_new": true, "weight": 1})),
            "column id: invalid type: integer `7`, expected a string"
        );
        assert_eq!(
            error(json!({"id": "a", "is_new": 2, "weight": 1})),
            "column is_new: expected a Boolean, found the integer 2"
        );
        assert_eq!(
            error(json!({"id": {"a": 1}, "is_new": true, "weight": 1})),
            "column id: invalid type: map, expected a string"
        );
        assert_eq!(error(json!([])), "invalid type: sequence, expected a row of parts");
    }
}
