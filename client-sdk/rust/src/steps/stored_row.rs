//! The rows of steps: waits for a state of one row without polling, and finds the stored id of a row that a caller names by an id
//! that it chose.

use serde::de::DeserializeOwned;

use crate::{Abide, Error, Subscription};

/// A query with at most one row, whose parameter `id` names the row.
pub(super) struct LiveRow(Subscription);

impl LiveRow {
    pub(super) async fn subscribe(abide: &Abide, sql: &str, id: &str) -> Result<LiveRow, Error> {
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
    pub(super) async fn wait_until<T: DeserializeOwned>(
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

/// The id that a query selects by `:id`. The id is looked for as it is given and then in the namespace of the caller: in this
/// order the server looks for it, too.
pub(super) async fn find_stored_id(
    abide: &Abide,
    sql: &str,
    id: &str,
) -> Result<Option<String>, Error> {
    if let Some(found) = select_id(abide, sql, id).await? {
        return Ok(Some(found));
    }
    // The query was answered, and the namespace is stated before any answer.
    let namespace = abide.namespace().unwrap_or_default();
    if id.starts_with(&namespace) {
        return Ok(None);
    }
    select_id(abide, sql, &format!("{namespace}{id}")).await
}

async fn select_id(abide: &Abide, sql: &str, id: &str) -> Result<Option<String>, Error> {
    abide.sql(sql).param("id", id).fetch_optional().await
}
