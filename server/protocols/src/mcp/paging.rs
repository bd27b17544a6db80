//! Pages of lists. A cursor is the key of the last entry of the page before.

use serde_json::{Map, Value as JsonValue, json};

use crate::mcp_handler::McpFailure;

/// Entries of one page of a list in memory.
const PAGE: usize = 500;

/// Returns the cursor of a request.
pub(super) fn read_cursor(params: &Map<String, JsonValue>) -> Result<Option<&str>, McpFailure> {
    match params.get("cursor") {
        None => Ok(None),
        Some(cursor) => cursor.as_str().map(Some).ok_or_else(invalid_cursor),
    }
}

pub(super) fn invalid_cursor() -> McpFailure {
    McpFailure::invalid("the cursor is not one of this list; begin again without it")
}

/// Returns the key before which a page with descending keys begins: `last`, or one after all others.
pub(super) fn start_before(last: &str) -> &str {
    if last.is_empty() { "\u{10ffff}" } else { last }
}

/// Returns a page of a list whose entries differ in the member `key`.
pub(super) fn page(
    member: &str,
    key: &str,
    mut items: Vec<JsonValue>,
    params: &Map<String, JsonValue>,
) -> Result<JsonValue, McpFailure> {
    if let Some(cursor) = read_cursor(params)? {
        let last = items.iter().rposition(|item| item[key] == cursor);
        items.drain(..=last.ok_or_else(invalid_cursor)?);
    }
    let has_more = items.len() > PAGE;
    items.truncate(PAGE);
    let next = items.last().filter(|_| has_more).map(|item| item[key].clone());
    let mut result = json!({member: items});
    if let Some(next) = next {
        result["nextCursor"] = next;
    }
    Ok(result)
}
