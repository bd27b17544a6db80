//! Rows as Rust types: a serde deserializer over cells.
//!
//! A struct takes its fields from the columns of the same names; a tuple takes the columns in order; a
//! single column can be any plain type. A field that is itself a struct, map or list is parsed from the
//! JSON text in its column. `bool` accepts 0 and 1. `serde_json::Value` gets the wire form of a cell.

use abide_schema::{Row, Value};
use serde::de::value::{Error as Failure, SeqDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::Error;

/// Decodes all rows as a type.
pub(crate) fn decode_rows<'a, T: DeserializeOwned>(
    columns: &[&str],
    rows: impl IntoIterator<Item = &'a Row>,
) -> Result<Vec<T>, Error> {
    rows.into_iter().map(|cells| decode_row(columns, cells)).collect()
}

/// Decodes a row as a type. Cells beyond the columns are hidden.
pub(crate) fn decode_row<T: DeserializeOwned>(
    columns: &[&str],
    cells: &[Value],
) -> Result<T, Error> {
    let cells = cells.get(..columns.len()).unwrap_or(cells);
    T::deserialize(RowReader { columns, cells })
        .map_err(|why| Error::decode(format!("a row as {}", std::any::type_name::<T>()), why))
}

#[derive(Clone, Copy)]
struct RowReader<'a> {
    columns: &'a [&'a str],
    cells: &'a [Value],
}

impl<'a> RowReader<'a> {
    fn only_cell(self) -> Result<CellReader<'a>, Failure> {
        match self.cells {
            [cell] => Ok(CellReader(cell)),
            cells => {
                let count = cells.len();
                Err(Failure::custom(format!(
                    "a row of {count} columns cannot be read as a single value"
                )))
            }
        }
    }
}

macro_rules! of_the_only_cell {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            self.only_cell()?.$method(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for RowReader<'_> {
    type Error = Failure;

    of_the_only_cell! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_option
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.only_cell()?.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_map(Fields { row: self, next: 0 })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_seq(Cells(self.cells))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    forward_to_deserialize_any! { unit unit_struct map struct identifier ignored_any }
}

/// Columns and cells as the fields of a struct.
struct Fields<'a> {
    row: RowReader<'a>,
    next: usize,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failure> {
        let name = self.row.columns.get(self.next).filter(|_| self.next < self.row.cells.len());
        name.map(|name| seed.deserialize((*name).into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Failure> {
        let name = self.row.columns[self.next];
        let cell = &self.row.cells[self.next];
        self.next += 1;
        seed.deserialize(CellReader(cell))
            .map_err(|why| Failure::custom(format!("column {name}: {why}")))
    }
}

/// Cells in order.
struct Cells<'a>(&'a [Value]);

impl<'de> SeqAccess<'de> for Cells<'_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let Some((cell, rest)) = self.0.split_first() else { return Ok(None) };
        self.0 = rest;
        seed.deserialize(CellReader(cell)).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct CellReader<'a>(&'a Value);

/// Parses the JSON text in a cell with the method of the same name.
macro_rules! from_json_text {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self.0 {
            Value::Text(text) => serde_json::Deserializer::from_reader(text.as_bytes())
                .$method($($argument),*)
                .map_err(Failure::custom),
            _ => $self.deserialize_any($($argument),*),
        }
    };
}

impl<'de> Deserializer<'de> for CellReader<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Integer(n) => visitor.visit_i64(*n),
            Value::Real(x) => visitor.visit_f64(*x),
            Value::Text(text) => visitor.visit_str(text),
            Value::Blob(_) => self.0.to_json().deserialize_any(visitor).map_err(Failure::custom),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.0 {
            Value::Integer(n @ (0 | 1)) => visitor.visit_bool(*n == 1),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.0 {
            Value::Blob(bytes) => visitor.visit_bytes(bytes),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match self.0 {
            Value::Text(text) if text.starts_with('{') => {
                serde_json::Deserializer::from_reader(text.as_bytes())
                    .deserialize_enum(name, variants, visitor)
                    .map_err(Failure::custom)
            }
            Value::Text(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.0 {
            Value::Blob(bytes) => {
                visitor.visit_seq(SeqDeserializer::<_, Failure>::new(bytes.iter().copied()))
            }
            _ => from_json_text!(self.deserialize_seq(visitor)),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        from_json_text!(self.deserialize_map(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string unit unit_struct
        identifier ignored_any
    }
}
