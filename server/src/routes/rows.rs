//! The rows of a route's own query, as JSON objects.

use abide_engine::{Engine, QueryResult};
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal, Seq, Value};
use serde_json::{Map, Value as JsonValue};

/// A row as an object.
pub(in crate::routes) type Object = Map<String, JsonValue>;

/// Runs a query with the rights of the caller, now or as of an event. The text of `json_columns` becomes JSON.
pub(in crate::routes) async fn rows<const N: usize>(
    engine: &Engine,
    by: &Caller,
    sql: &str,
    params: [(&str, JsonValue); N],
    at: Option<Seq>,
    json_columns: &[&str],
) -> Result<(Seq, Vec<Object>), Refusal> {
    let params = params.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let found = engine.query(by, sql, &params, at).await.map_err(hidden)?;
    Ok((found.seq, objects(&found, json_columns)))
}

/// The rows of a result. The text of `json_columns` becomes JSON.
pub(in crate::routes) fn objects(found: &QueryResult, json_columns: &[&str]) -> Vec<Object> {
    let object = |row: &abide_schema::Row| {
        let cells = found.columns.iter().zip(row.iter()).map(|(name, cell)| {
            let value = match cell {
                Value::Text(text) if json_columns.contains(&name.as_str()) => {
                    serde_json::from_str(text).unwrap_or_default()
                }
                cell => cell.to_json(),
            };
            (name.clone(), value)
        });
        cells.collect()
    };
    found.rows.iter().map(object).collect()
}

/// The ids that a caller can mean. As in reducers: an id chosen by a caller with a scope is stored in the namespace of
/// that scope.
pub(in crate::routes) fn stored_ids(by: &Caller, id: &str) -> Vec<String> {
    let mut ids = vec![id.to_owned()];
    if !by.namespace().is_empty() {
        ids.push(format!("{}{id}", by.namespace()));
    }
    ids
}

/// Maps the refusal of a route's own query. Such a query names only existing tables and columns, so an
/// unknown one is hidden from the caller.
pub(super) fn hidden(refusal: Refusal) -> Refusal {
    match refusal.code {
        Code::BadSql => {
            Refusal::new(Code::Denied, "a policy hides rows or columns that this route needs")
                .hint("ask an admin for access to them, or read the visible ones with POST /v1/sql")
        }
        _ => refusal,
    }
}
