//! Waits for a state of one row, without polling.

use serde::de::DeserializeOwned;

use crate::{Abide, Error, Subscription};

/// A query with at most one row, whose parameter `id` names the row.
pub(super) struct LiveRow(Subscription);

impl LiveRow {
    pub(super) async fn of(abide: &Abide, sql: &str, id: &str) -> Result<LiveRow, Error> {
        Ok(LiveRow(abide.subscribe(sql).param("id", id).await?))
    }

    /// The row at its next change; at first as it is. A missing row is waited for.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        while self.0.try_next().await?.is_some() {
            if let Some(row) = self.0.typed_rows()?.into_iter().next() {
                return Ok(row);
            }
        }
        Err(Error::Closed)
    }

    /// Waits until the row satisfies a condition.
    pub(super) async fn until<T: DeserializeOwned>(
        mut self,
        is_done: impl Fn(&T) -> bool,
    ) -> Result<T, Error> {
        loop {
            let row = self.next().await?;
            if is_done(&row) {
                return Ok(row);
            }
        }
    }
}
