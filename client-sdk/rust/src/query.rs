//! Queries that run once.

use std::fmt;
use std::time::Duration;

use abide_schema::{Row, Seq};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as JsonValue};

use crate::backend::{BackendReply, BackendRequest};
use crate::request::unexpected_reply;
use crate::row_decode::{decode_row, decode_rows};
use crate::{Abide, Error};

impl Abide {
    /// Returns a read-only statement that runs once, when one of its functions `fetch…` or [`Query::rows`] is awaited.
    ///
    /// ```
    /// use abide_client::Abide;
    /// use abide_client::arguments::CreateSession;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("agents.db");
    /// let abide = Abide::open(path)?;
    /// abide.call(CreateSession::new("support")).await?;
    ///
    /// let agents: Vec<String> = abide
    ///     .sql("SELECT agent FROM sessions WHERE status = :status")
    ///     .param("status", "created")
    ///     .fetch()
    ///     .await?;
    /// assert_eq!(agents, ["support"]);
    /// # abide.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sql(&self, sql: impl Into<String>) -> Query {
        Query::new(self, sql.into())
    }
}

/// Parameters by name.
#[derive(Clone, Default)]
pub(crate) struct Params {
    values: Map<String, JsonValue>,
    /// Why a value cannot be sent. It is returned when the request is.
    encode_error: Option<Error>,
}

impl Params {
    pub(crate) fn set(&mut self, name: &str, value: impl Serialize) {
        let name = name.trim_start_matches([':', '@', '$', '?']).to_owned();
        match serde_json::to_value(value) {
            Ok(value) => {
                self.values.insert(name, value);
            }
            Err(why) => {
                self.encode_error = Some(Error::encode(format!("the parameter {name}"), why))
            }
        }
    }

    pub(crate) fn ready(self) -> Result<Map<String, JsonValue>, Error> {
        self.encode_error.map_or(Ok(self.values), Err)
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

/// A read-only statement that runs once: when [`fetch`](Query::fetch), [`fetch_one`](Query::fetch_one),
/// [`fetch_optional`](Query::fetch_optional) or [`rows`](Query::rows) is awaited.
#[must_use = "a query is sent by a function that fetches rows"]
#[derive(Clone, Debug)]
pub struct Query {
    abide: Abide,
    sql: String,
    params: Params,
    as_of: Option<Seq>,
    deadline: Option<Duration>,
}

impl Query {
    pub(crate) fn new(abide: &Abide, sql: String) -> Query {
        Query { abide: abide.clone(), sql, params: Params::default(), as_of: None, deadline: None }
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

    /// Returns all rows, decoded as a type: structs by column name, tuples by position, plain types for a single column.
    ///
    /// # Errors
    /// [`Error::Refused`] if the statement is invalid, or reads what the caller may not; [`Error::Decode`] if a row does
    /// not match the type; [`Error::TimedOut`] if the server does not answer.
    pub async fn fetch<T: DeserializeOwned>(self) -> Result<Vec<T>, Error> {
        self.rows().await?.typed()
    }

    /// Returns the first row, decoded like those of [`fetch`](Query::fetch). Further rows are ignored.
    ///
    /// ```
    /// # use abide_client::Abide;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let abide = Abide::open(folder.path().join("agents.db"))?;
    /// let sessions: i64 = abide.sql("SELECT count(*) FROM sessions").fetch_one().await?;
    /// assert_eq!(sessions, 0);
    /// # abide.close().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::RowNotFound`] if there is no row; otherwise those of [`fetch`](Query::fetch).
    pub async fn fetch_one<T: DeserializeOwned>(self) -> Result<T, Error> {
        self.fetch_optional().await?.ok_or(Error::RowNotFound)
    }

    /// Returns the first row, decoded like those of [`fetch`](Query::fetch), or `None` if there is no row. Further rows
    /// are ignored.
    ///
    /// ```
    /// # use abide_client::Abide;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let abide = Abide::open(folder.path().join("agents.db"))?;
    /// let query = abide.sql("SELECT agent FROM sessions WHERE id = :id").param("id", "order-8812");
    /// let agent: Option<String> = query.fetch_optional().await?;
    /// assert_eq!(agent, None);
    /// # abide.close().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`fetch`](Query::fetch).
    pub async fn fetch_optional<T: DeserializeOwned>(self) -> Result<Option<T>, Error> {
        let QueryResult { columns, rows, .. } = self.rows().await?;
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        rows.first().map(|row| decode_row(&columns, row)).transpose()
    }

    /// Returns all rows, cell by cell, with the names of the columns and the seq of the state that was read.
    ///
    /// # Errors
    /// [`Error::Refused`] if the statement is invalid, or reads what the caller may not; [`Error::TimedOut`] if the
    /// server does not answer.
    pub async fn rows(self) -> Result<QueryResult, Error> {
        let Query { abide, sql, params, as_of, deadline } = self;
        let ask = BackendRequest::Sql { sql, params: params.ready()?, as_of };
        match abide.ask(ask, deadline).await? {
            BackendReply::Rows { seq, columns, rows } => Ok(QueryResult { seq, columns, rows }),
            other => Err(unexpected_reply(&other)),
        }
    }
}

/// The result of a [`Query`].
#[derive(Clone, Debug, PartialEq)]
pub struct QueryResult {
    /// The state that the query read; it is durable.
    pub seq: Seq,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows, cell by cell.
    pub rows: Vec<Row>,
}

impl QueryResult {
    /// Returns the rows decoded as a type, like [`Query::fetch`].
    ///
    /// # Errors
    /// [`Error::Decode`] if a row does not match the type.
    pub fn typed<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        decode_rows(&columns, &self.rows)
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
