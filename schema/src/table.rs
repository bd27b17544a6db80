//! Table declarations: one [`TableSpec`] yields DDL, row type, column metadata and JSON Schema.
//!
//! Write `#[table(name = "…")]` on a struct (see `abide-macros`); everything else is derived.

use std::fmt::Write as _;

use abide_json_integers as integers;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as JsonValue, json};

use crate::canonical;
use crate::id::{Micros, Seq};
use crate::value::Value;

/// A column's storage class. All tables are STRICT, so SQLite enforces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 64-bit signed.
    Integer,
    /// Double.
    Real,
    /// UTF-8.
    Text,
    /// Bytes.
    Blob,
}

impl Kind {
    /// Returns the type as SQL names it.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            Kind::Integer => "INTEGER",
            Kind::Real => "REAL",
            Kind::Text => "TEXT",
            Kind::Blob => "BLOB",
        }
    }
}

/// One column of a table.
#[derive(Debug)]
pub struct ColumnSpec {
    /// Its name.
    pub name: &'static str,
    /// Its description, from the field's doc comment.
    pub doc: &'static str,
    /// The meaning of its values.
    pub kind: Kind,
    /// Whether it can be NULL.
    pub nullable: bool,
    /// Whether its text is canonical JSON.
    pub json: bool,
    /// The allowed texts; empty for any.
    pub one_of: &'static [&'static str],
    /// Its foreign key, as `table(column)`.
    pub references: Option<&'static str>,
    /// Whether its values are unique.
    pub unique: bool,
    /// Whether it holds the row's scope as a JSON object; see [`TableSpec::shared`].
    pub scope: bool,
}

impl ColumnSpec {
    /// `status = 'a' OR status = 'b'`. Not IN: SQLite builds a temporary b-tree for an IN list every
    /// time it checks a row, which costs more than writing the row.
    fn alternatives(&self) -> String {
        let terms = self.one_of.iter().map(|text| format!("{} = '{text}'", self.name));
        terms.collect::<Vec<_>>().join(" OR ")
    }
}

/// An index in addition to the primary key.
#[derive(Debug)]
pub struct IndexSpec {
    /// Its columns.
    pub columns: &'static [&'static str],
    /// Whether its values are unique.
    pub unique: bool,
    /// The condition of a partial index.
    pub condition: Option<&'static str>,
}

impl IndexSpec {
    /// Returns the words of its condition, including column names.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        let condition = self.condition.unwrap_or_default();
        condition.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
    }
}

/// A table declaration.
#[derive(Debug)]
pub struct TableSpec {
    /// Its name.
    pub name: &'static str,
    /// Description of a row, from the struct's doc comment.
    pub doc: &'static str,
    /// Its columns, in order.
    pub columns: &'static [ColumnSpec],
    /// Positions of the primary-key columns. For a single INTEGER column, the database assigns the key.
    pub key: &'static [usize],
    /// Whether rows are stored in the primary key's own b-tree: suitable for small rows with a text key.
    pub without_rowid: bool,
    /// Whether callers of any scope may change its rows. A row belongs to a scope through a column
    /// marked `scope`, or through the row that its first such reference names. Rows of other tables
    /// have no scope: a caller with a scope reads them through reducers, and changes them only if the
    /// table is shared.
    pub shared: bool,
    /// Further indexes.
    pub indexes: &'static [IndexSpec],
    /// Table constraints, as SQL.
    pub constraints: &'static [&'static str],
    /// Complete CREATE TRIGGER statements: rules that the database enforces. A trigger only refuses, and changes no row.
    /// An AFTER trigger uses RAISE(ABORT): RAISE(FAIL) would keep the row that it refuses.
    pub triggers: &'static [&'static str],
}

impl TableSpec {
    /// Returns the position of a column; SQL identifiers are case-insensitive.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Returns the primary-key cells of a row.
    #[must_use]
    pub fn key_of(&self, row: &[Value]) -> Vec<Value> {
        self.key.iter().map(|at| row[*at].clone()).collect()
    }

    /// Returns `true` if the database assigns the keys.
    #[must_use]
    pub fn numbered(&self) -> bool {
        matches!(self.key, [at] if self.columns[*at].kind == Kind::Integer && !self.without_rowid)
    }

    /// Returns the statements that create the table, its indexes and its triggers.
    #[must_use]
    pub fn ddl(&self) -> Vec<String> {
        let mut statements = vec![self.create_table()];
        for index in self.indexes {
            let unique = if index.unique { "UNIQUE " } else { "" };
            let name = self.index_name(index);
            let columns = index.columns.join(", ");
            let condition = index.condition.map(|sql| format!(" WHERE {sql}")).unwrap_or_default();
            statements.push(format!(
                "CREATE {unique}INDEX {name} ON {table} ({columns}){condition}",
                table = self.name
            ));
        }
        statements.extend(self.triggers.iter().map(|sql| (*sql).to_owned()));
        statements
    }

    /// Returns the name of one of its indexes.
    #[must_use]
    pub fn index_name(&self, index: &IndexSpec) -> String {
        format!("{}_{}", self.name, index.columns.join("_"))
    }

    fn create_table(&self) -> String {
        let mut sql = format!("CREATE TABLE {} (\n", self.name);
        for (at, column) in self.columns.iter().enumerate() {
            let _ = write!(sql, "  {} {}", column.name, column.kind.sql());
            if self.key == [at] {
                sql.push_str(" PRIMARY KEY");
            }
            if !column.nullable {
                sql.push_str(" NOT NULL");
            }
            if column.unique {
                sql.push_str(" UNIQUE");
            }
            if !column.one_of.is_empty() {
                let _ = write!(sql, " CHECK ({})", column.alternatives());
            }
            if let Some(target) = column.references {
                // Checked at COMMIT: an immediate check would make SQLite copy each page that the
                // statement modifies.
                let _ = write!(sql, " REFERENCES {target} DEFERRABLE INITIALLY DEFERRED");
            }
            sql.push_str(",\n");
        }
        if self.key.len() > 1 {
            let names: Vec<&str> = self.key.iter().map(|at| self.columns[*at].name).collect();
            let _ = writeln!(sql, "  PRIMARY KEY ({}),", names.join(", "));
        }
        for constraint in self.constraints {
            let _ = writeln!(sql, "  {constraint},");
        }
        sql.truncate(sql.len() - 2);
        sql.push_str(if self.without_rowid { "\n) STRICT, WITHOUT ROWID" } else { "\n) STRICT" });
        sql
    }

    /// Returns the conditions that each row fulfils: those of CHECK constraints, of the columns with these names.
    #[must_use]
    pub fn checks(&self, columns: &[String]) -> Vec<String> {
        let present: Vec<&ColumnSpec> = self
            .columns
            .iter()
            .filter(|column| columns.iter().any(|name| name == column.name))
            .collect();
        let mut checks: Vec<String> = present
            .iter()
            .filter(|column| !column.one_of.is_empty())
            .map(|column| column.alternatives())
            .collect();
        if present.len() == self.columns.len() {
            let constraints = self.constraints.iter().filter_map(|sql| sql.strip_prefix("CHECK "));
            checks.extend(constraints.map(str::to_owned));
        }
        checks
    }

    /// Returns the table as in `/v1/schema`: columns with types and descriptions, key, and the JSON Schema
    /// of a row.
    #[must_use]
    pub fn describe(&self) -> JsonValue {
        let all: Vec<&str> = self.columns.iter().map(|column| column.name).collect();
        self.describe_columns(&all)
    }

    /// Returns the table as in `/v1/schema`, restricted to these columns.
    #[must_use]
    pub fn describe_columns(&self, visible: &[&str]) -> JsonValue {
        let columns: Vec<JsonValue> = self
            .columns
            .iter()
            .filter(|column| visible.contains(&column.name))
            .map(|column| {
                json!({
                    "name": column.name,
                    "type": column.kind.sql(),
                    "nullable": column.nullable,
                    "json": column.json,
                    "description": column.doc,
                })
            })
            .collect();
        let key: Vec<&str> = self
            .key
            .iter()
            .map(|at| self.columns[*at].name)
            .filter(|name| visible.contains(name))
            .collect();
        json!({
            "name": self.name,
            "description": self.doc,
            "columns": columns,
            "key": key,
            "row_schema": self.row_schema(visible),
        })
    }

    /// Returns the JSON Schema (2020-12) of one row as an object of these columns.
    #[must_use]
    pub fn row_schema(&self, visible: &[&str]) -> JsonValue {
        let mut properties = Map::new();
        for column in self.columns.iter().filter(|column| visible.contains(&column.name)) {
            let base = match column.kind {
                Kind::Integer => "integer",
                Kind::Real => "number",
                Kind::Text => "string",
                Kind::Blob => "object",
            };
            let mut schema = Map::new();
            let kind = if column.nullable { json!([base, "null"]) } else { json!(base) };
            schema.insert("type".to_owned(), kind);
            schema.insert("description".to_owned(), column.doc.into());
            if column.json {
                schema.insert("contentMediaType".to_owned(), "application/json".into());
            }
            if !column.one_of.is_empty() {
                schema.insert("enum".to_owned(), json!(column.one_of));
            }
            properties.insert(column.name.to_owned(), schema.into());
        }
        json!({
            "type": "object",
            "title": self.name,
            "properties": properties,
            "required": visible,
            "additionalProperties": false,
        })
    }
}

/// A struct that is one row of a table. Implemented by `#[table]`.
pub trait Table: Serialize + Sized + Send + 'static {
    /// The declaration.
    const SPEC: &'static TableSpec;

    /// Returns the cells, in column order.
    fn into_row(self) -> Vec<Value>;

    /// Builds the struct from a row.
    ///
    /// # Errors
    /// [`WrongCell`] if the row is not of this table.
    fn from_row(row: &[Value]) -> Result<Self, WrongCell>;
}

/// A cell that its column's Rust type cannot hold.
#[derive(Debug, thiserror::Error)]
#[error("expected {expected}, found {}", describe(found))]
pub struct WrongCell {
    /// The expected type.
    pub expected: &'static str,
    /// The actual value.
    pub found: Value,
}

/// Returns a value in the words of an error. Texts and bytes can be long and private, so that they are not repeated.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Integer(integer) => format!("the integer {integer}"),
        Value::Real(number) => format!("the number {number}"),
        Value::Text(_) => "a text".to_owned(),
        Value::Blob(_) => "bytes".to_owned(),
    }
}

/// A Rust type that can be a column.
pub trait Cell: Sized {
    /// Its storage class.
    const KIND: Kind;
    /// Whether it can be NULL.
    const NULLABLE: bool = false;
    /// Whether it is JSON text.
    const JSON: bool = false;
    /// The allowed texts; empty for any.
    const ONE_OF: &'static [&'static str] = &[];

    /// Converts to a cell.
    fn into_value(self) -> Value;

    /// Converts from a cell.
    ///
    /// # Errors
    /// [`WrongCell`] if it has another storage class.
    fn from_value(value: &Value) -> Result<Self, WrongCell>;
}

macro_rules! cell {
    (
        $type:ty, $name:literal, $kind:ident, $pattern:pat => $read:expr, $self:ident => $write:expr
    ) => {
        impl Cell for $type {
            const KIND: Kind = Kind::$kind;

            fn into_value($self) -> Value {
                Value::$kind($write)
            }

            fn from_value(value: &Value) -> Result<Self, WrongCell> {
                match value {
                    $pattern => Ok($read),
                    other => Err(WrongCell { expected: $name, found: other.clone() }),
                }
            }
        }
    };
}

cell!(i64, "an integer", Integer, Value::Integer(n) => *n, self => self);
cell!(bool, "a Boolean", Integer, Value::Integer(n @ (0 | 1)) => *n == 1, self => i64::from(self));
cell!(f64, "a number", Real, Value::Real(x) => *x, self => self);
cell!(String, "a text", Text, Value::Text(text) => text.clone(), self => self);
cell!(Vec<u8>, "bytes", Blob, Value::Blob(bytes) => bytes.clone(), self => self);
cell!(Seq, "a seq", Integer, Value::Integer(n) => Seq(*n), self => self.0);
cell!(Micros, "a time", Integer, Value::Integer(n) => Micros(*n), self => self.0);

impl<T: Cell> Cell for Option<T> {
    const KIND: Kind = T::KIND;
    const NULLABLE: bool = true;
    const JSON: bool = T::JSON;
    const ONE_OF: &'static [&'static str] = T::ONE_OF;

    fn into_value(self) -> Value {
        self.map_or(Value::Null, Cell::into_value)
    }

    fn from_value(value: &Value) -> Result<Self, WrongCell> {
        match value {
            Value::Null => Ok(None),
            value => T::from_value(value).map(Some),
        }
    }
}

/// A column of canonical JSON text. On the wire it is that text; build it from any JSON value. A text that comes from
/// elsewhere, such as a file, is checked when it becomes one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Json(#[serde(deserialize_with = "json_text")] String);

/// Reads a text that is JSON.
fn json_text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    integers::check_parses(&text).map_err(|why| D::Error::custom(format!("not JSON: {why}")))?;
    Ok(text)
}

impl Json {
    /// Returns the canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the value. Null for a value that a program has built and no text of JSON has, such as one of thousands
    /// of levels: no call accepts one.
    #[must_use]
    pub fn value(&self) -> JsonValue {
        integers::parse(&self.0).unwrap_or_default()
    }
}

impl From<JsonValue> for Json {
    fn from(value: JsonValue) -> Json {
        Json::from(&value)
    }
}

impl From<&JsonValue> for Json {
    fn from(value: &JsonValue) -> Json {
        Json(canonical::to_text(value))
    }
}

impl Cell for Json {
    const KIND: Kind = Kind::Text;
    const JSON: bool = true;

    fn into_value(self) -> Value {
        Value::Text(self.0)
    }

    fn from_value(value: &Value) -> Result<Json, WrongCell> {
        let text = String::from_value(value)?;
        match integers::check_parses(&text) {
            Ok(()) => Ok(Json(text)),
            Err(_) => Err(WrongCell { expected: "JSON", found: value.clone() }),
        }
    }
}

/// A primary key as argument of a lookup: one cell, or a tuple of them.
pub trait Key {
    /// Returns the cells, in key order.
    fn cells(self) -> Vec<Value>;
}

impl Key for &str {
    fn cells(self) -> Vec<Value> {
        vec![self.into()]
    }
}

impl Key for &String {
    fn cells(self) -> Vec<Value> {
        vec![self.as_str().into()]
    }
}

impl Key for i64 {
    fn cells(self) -> Vec<Value> {
        vec![self.into()]
    }
}

impl<A: Into<Value>, B: Into<Value>, C: Into<Value>, D: Into<Value>> Key for (A, B, C, D) {
    fn cells(self) -> Vec<Value> {
        vec![self.0.into(), self.1.into(), self.2.into(), self.3.into()]
    }
}

impl<A: Into<Value>, B: Into<Value>, C: Into<Value>> Key for (A, B, C) {
    fn cells(self) -> Vec<Value> {
        vec![self.0.into(), self.1.into(), self.2.into()]
    }
}

impl<A: Into<Value>, B: Into<Value>> Key for (A, B) {
    fn cells(self) -> Vec<Value> {
        vec![self.0.into(), self.1.into()]
    }
}
