//! One-shot queries.

use std::fmt;
use std::time::Duration;

use abide_schema::{Row, Seq};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as JsonValue};

use crate::backend::{BackendReply, BackendRequest};
use crate::request::unexpected;
use crate::{Abide, Error, decode};

impl Abide {
    /// Runs a read-only statement once.
    pub fn sql(&self, sql: impl Into<String>) -> Sql {
        Sql::new(self, sql.into())
    }
}

/// Parameters by name.
#[derive(Clone, Default)]
pub(crate) struct Params {
    values: Map<String, JsonValue>,
    wrong: Option<String>,
}

impl Params {
    pub(crate) fn set(&mut self, name: &str, value: impl Serialize) {
        let name = name.trim_start_matches([':', '@', '$', '?']).to_owned();
        match serde_json::to_value(value) {
            Ok(value) => {
                self.values.insert(name, value);
            }
            Err(why) => self.wrong = Some(format!("{name}: {why}")),
        }
    }

    pub(crate) fn ready(self) -> Result<Map<String, JsonValue>, Error> {
        match self.wrong {
            Some(why) => Err(Error::decode("a parameter", &why)),
            None => Ok(self.values),
        }
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

/// A read-only statement, run once: finish it with [`Sql::fetch`] or [`Sql::rows`].
#[must_use = "a query is sent by fetch or rows"]
#[derive(Clone, Debug)]
pub struct Sql {
    abide: Abide,
    sql: String,
    params: Params,
    as_of: Option<Seq>,
    deadline: Option<Duration>,
}

impl Sql {
    pub(crate) fn new(abide: &Abide, sql: String) -> Sql {
        Sql { abide: abide.clone(), sql, params: Params::default(), as_of: None, deadline: None }
    }

    /// Sets the value of `:name` in the statement; the name of `?1` is `1`. Text, numbers, bools
    /// and options serialise to cells; bytes are `json!({"$blob": "<base64>"})`.
    pub fn param(mut self, name: &str, value: impl Serialize) -> Self {
        self.params.set(name, value);
        self
    }

    /// Reads the state as of this seq.
    pub fn as_of(mut self, seq: impl Into<Position>) -> Self {
        self.as_of = Some(seq.into().0);
        self
    }

    /// Sets how long to retry, instead of the client's default.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Returns the rows decoded as a type: structs by column name, tuples by position, plain types for
    /// a single column.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Decode`] if a row does not match the type.
    pub async fn fetch<T: DeserializeOwned>(self) -> Result<Vec<T>, Error> {
        self.rows().await?.typed()
    }

    /// Returns the rows undecoded.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn rows(self) -> Result<QueryResult, Error> {
        let Sql { abide, sql, params, as_of, deadline } = self;
        let ask = BackendRequest::Sql { sql, params: params.ready()?, as_of };
        match abide.ask(ask, deadline).await? {
            BackendReply::Rows { seq, columns, rows } => Ok(QueryResult { seq, columns, rows }),
            other => Err(unexpected(&other)),
        }
    }
}

/// The result of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryResult {
    /// The state that the query read; it is durable.
    pub seq: Seq,
    /// Column names.
    pub columns: Vec<String>,
    /// Rows, cell by cell.
    pub rows: Vec<Row>,
}

impl QueryResult {
    /// Decodes the rows as a type, like [`Sql::fetch`].
    ///
    /// # Errors
    /// [`Error::Decode`] if a row does not match the type.
    pub fn typed<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        decode::rows(&columns, &self.rows)
    }
}

/// A position in the log: a [`Seq`] or its number.
#[derive(Clone, Copy, Debug)]
pub struct Position(pub(crate) Seq);

impl From<Seq> for Position {
    fn from(seq: Seq) -> Position {
        Position(seq)
    }
}

impl From<i64> for Position {
    fn from(seq: i64) -> Position {
        Position(Seq(seq))
    }
}
