//! The stored ids of rows that a caller names by ids that it chose.

use crate::{Abide, Error};

/// The id that a query selects by `:id`. The id is looked for as it is given and then in the namespace of the caller: in this
/// order the server looks for it, too.
pub(super) async fn find(abide: &Abide, sql: &str, id: &str) -> Result<Option<String>, Error> {
    if let Some(found) = select(abide, sql, id).await? {
        return Ok(Some(found));
    }
    // The query was answered, and the namespace is stated before any answer.
    let namespace = abide.namespace().unwrap_or_default();
    if id.starts_with(&namespace) {
        return Ok(None);
    }
    select(abide, sql, &format!("{namespace}{id}")).await
}

async fn select(abide: &Abide, sql: &str, id: &str) -> Result<Option<String>, Error> {
    abide.sql(sql).param("id", id).fetch_optional().await
}
