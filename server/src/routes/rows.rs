//! The rows of a route's own query, as JSON objects.

use abide_engine::buffers::size_of_rows;
use abide_engine::{Engine, QueryResult};
use abide_schema::limits::COUNTED_BYTES;
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal, Seq};
use serde_json::{Map, Value as JsonValue};

use crate::routes::response::off_the_runtime;

/// A row as an object.
pub type Object = Map<String, JsonValue>;

/// The columns of the built-in tables that routes return whose values are JSON, stored as text. No other column of these tables has
/// such a name; a table of another module can have one.
pub const JSON_COLUMNS: [&str; 10] = [
    "data",
    "defaults",
    "definition",
    "interrupt",
    "metadata",
    "output",
    "progress",
    "result",
    "scope",
    "variables",
];

/// Runs a query with the rights of the caller, now or as of an event. JSON columns become JSON.
pub(in crate::routes) async fn query_rows<const N: usize>(
    engine: &Engine,
    by: &Caller,
    sql: &str,
    params: [(&str, JsonValue); N],
    at: Option<Seq>,
) -> Result<(Seq, Vec<Object>), Refusal> {
    let params = params.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let found = engine.query(by, sql, &params, at).await.map_err(deny_hidden)?;
    let seq = found.seq;
    // The rows exist twice while they are converted.
    let mut hold = engine.buffers().reserve(by);
    let bytes = size_of_rows(&found.rows);
    if bytes >= COUNTED_BYTES {
        hold.grow(bytes)?;
    }
    Ok((seq, off_the_runtime(move || objects(&found)).await?))
}

/// Returns the rows of a query over built-in tables.
#[must_use]
pub fn objects(found: &QueryResult) -> Vec<Object> {
    objects_with(found, &JSON_COLUMNS)
}

/// Returns the rows of a query, of which these columns are JSON.
#[must_use]
pub fn objects_with(found: &QueryResult, json_columns: &[&str]) -> Vec<Object> {
    let mut objects = Vec::with_capacity(found.rows.len());
    for row in &found.rows {
        let cells = found.columns.iter().zip(row.iter());
        let mut object = cells.map(|(name, cell)| (name.clone(), cell.to_json())).collect();
        decode_columns(&mut object, json_columns);
        objects.push(object);
    }
    objects
}

/// The result of a built-in reducer that returns a row, in the same form as the row of a query.
pub(in crate::routes) fn row_of_result(result: &str) -> JsonValue {
    let mut row: JsonValue = serde_json::from_str(result).unwrap_or_default();
    if let Some(object) = row.as_object_mut() {
        decode_columns(object, &JSON_COLUMNS);
    }
    row
}

/// Replaces the text of JSON columns by its value.
fn decode_columns(row: &mut Object, json_columns: &[&str]) {
    for name in json_columns {
        if let Some(value) = row.get_mut(*name)
            && let Some(decoded) = value.as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            *value = decoded;
        }
    }
}

/// Returns the ids that a caller can mean. As in reducers: an id chosen by a caller with a scope is stored in the
/// namespace of that scope.
pub(in crate::routes) fn stored_ids(by: &Caller, id: &str) -> Vec<String> {
    let mut ids = vec![id.to_owned()];
    if !by.namespace().is_empty() {
        ids.push(format!("{}{id}", by.namespace()));
    }
    ids
}

/// Maps the refusal of a route's own query. Such a query names only existing tables and columns, so an
/// unknown one is hidden from the caller.
#[must_use]
pub fn deny_hidden(refusal: Refusal) -> Refusal {
    match refusal.code {
        Code::BadSql => {
            Refusal::new(Code::Denied, "a policy hides rows or columns that this route needs")
                .hint("ask an admin for access to them, or read the visible ones with POST /v1/sql")
        }
        _ => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::JSON_COLUMNS;

    /// Columns are decoded by their names here, so a name means JSON in every table that routes return.
    #[test]
    fn the_names_of_json_columns_are_those_of_the_declarations() {
        let returned = [
            "agent_state",
            "agents",
            "approvals",
            "entries",
            "identities",
            "prompt_labels",
            "prompts",
            "run_events",
            "runs",
            "sessions",
            "tool_calls",
            "webhooks",
        ];
        let modules = abide_reducers::modules();
        let tables = modules.iter().flat_map(|module| &module.tables);
        let tables = tables.filter(|table| returned.contains(&table.name));
        let mut found = 0;
        for table in tables {
            found += 1;
            for column in table.columns.iter().filter(|it| JSON_COLUMNS.contains(&it.name)) {
                assert!(column.json, "{}.{}", table.name, column.name);
            }
        }
        assert_eq!(found, returned.len());
    }
}
