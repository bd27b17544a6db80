//! What a live query returns, how the server maintains its result, and at what cost.

use std::future::IntoFuture;

pub use abide_schema::wire::{Column, Explanation, OrderTerm, Plan, Shape, TableScan};
use serde::Serialize;

use crate::backend::{BackendReply, BackendRequest};
use crate::query::Params;
use crate::request::{RequestFuture, unexpected_reply};
use crate::{Abide, Error};

impl Abide {
    /// Returns a request for an explanation: how a query would be maintained live, and at what cost.
    pub fn explain(&self, sql: impl Into<String>) -> Explain {
        Explain::new(self, sql.into())
    }
}

/// A query that is explained when it is awaited.
#[must_use = "a query is explained when it is awaited"]
#[derive(Clone, Debug)]
pub struct Explain {
    abide: Abide,
    sql: String,
    params: Params,
}

impl Explain {
    pub(crate) fn new(abide: &Abide, sql: String) -> Explain {
        Explain { abide: abide.clone(), sql, params: Params::default() }
    }

    /// Sets the value of `:name` in the statement; see [`Query::param`](crate::Query::param). Omitted parameters
    /// are NULL: their values hardly affect the explanation.
    pub fn param(mut self, name: &str, value: impl Serialize) -> Self {
        self.params.set(name, value);
        self
    }

    /// Sends the request. Awaiting does the same.
    ///
    /// # Errors
    /// [`Error::Refused`] if the query cannot be live at all. A query that only lacks an index is explained,
    /// with [`Explanation::refused`].
    pub async fn send(self) -> Result<Explanation, Error> {
        let ask = BackendRequest::Explain { sql: self.sql, params: self.params.ready()? };
        match self.abide.ask(ask, None).await? {
            BackendReply::Explained(explanation) => Ok(*explanation),
            other => Err(unexpected_reply(&other)),
        }
    }
}

impl IntoFuture for Explain {
    type Output = Result<Explanation, Error>;
    type IntoFuture = RequestFuture<Explanation>;

    fn into_future(self) -> RequestFuture<Explanation> {
        Box::pin(self.send())
    }
}
