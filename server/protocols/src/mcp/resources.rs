//! Resources: sessions, runs and tables as JSON, and resources of the handler. What is read is what a subscription
//! watches, so a resource has changed if and only if its text has.

use abide_server::port::rows::JSON_COLUMNS;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Map, Value as JsonValue, json};

use super::exchange::McpRequestContext;
use super::handler::ask_handler;
use super::message::Request;
use super::paging::{invalid_cursor, read_cursor, start_before};
use super::tools::has_item;
use crate::limits;
use crate::mcp_handler::{McpFailure, McpItems};

const SESSIONS: &str = "abide://sessions/";
const RUNS: &str = "abide://runs/";
const TABLES: &str = "abide://tables/";

/// A query of a resource: the member of the text that has its rows, its SQL and its parameters.
#[derive(Debug)]
pub(super) struct Part {
    member: &'static str,
    pub(super) sql: String,
    pub(super) params: Map<String, JsonValue>,
    /// It has one row.
    is_single: bool,
    /// The columns that are JSON.
    json_columns: Vec<&'static str>,
}

/// Returns the address of a session, a run or a table.
fn resource_uri(prefix: &str, id: &str) -> String {
    format!("{prefix}{}", utf8_percent_encode(id, NON_ALPHANUMERIC))
}

fn id_from_uri(uri: &str, prefix: &str) -> Option<String> {
    let id = percent_decode_str(uri.strip_prefix(prefix)?).decode_utf8().ok()?;
    (!id.is_empty()).then(|| id.into_owned())
}

/// Returns the queries of a resource. `None` for an address that is not one of the server's.
pub(super) fn resource_parts(exchange: &McpRequestContext, uri: &str) -> Option<Vec<Part>> {
    // As in other routes, an id in the namespace of the caller's scope is found without it.
    let namespace = exchange.by().namespace();
    let part = |member, sql: &str, id: &str, is_single| {
        let mut params = Map::from_iter([("id".to_owned(), json!(id))]);
        let mut sql = sql.to_owned();
        if !namespace.is_empty() {
            sql = sql.replace("= :id", "IN (:id, :own_id)");
            params.insert("own_id".to_owned(), json!(format!("{namespace}{id}")));
        }
        Part { member, sql, params, is_single, json_columns: JSON_COLUMNS.to_vec() }
    };
    if let Some(id) = id_from_uri(uri, SESSIONS) {
        let messages =
            "SELECT * FROM agent_state WHERE session_id = :id ORDER BY id DESC LIMIT 200";
        return Some(vec![
            part("session", "SELECT * FROM sessions WHERE id = :id", &id, true),
            part("messages", messages, &id, false),
        ]);
    }
    if let Some(id) = id_from_uri(uri, RUNS) {
        let events = "SELECT number, turn, kind, data, created_at FROM run_events \
            WHERE run_id = :id ORDER BY number DESC LIMIT 200";
        return Some(vec![
            part("run", "SELECT * FROM runs WHERE id = :id", &id, true),
            part("events", events, &id, false),
        ]);
    }
    let name = id_from_uri(uri, TABLES)?;
    let columns = exchange.app.engine.table_columns(exchange.by(), &name)?;
    let key: Vec<String> = columns.key.into_iter().map(quote_identifier).collect();
    let order = if key.is_empty() { "1".to_owned() } else { key.join(" DESC, ") };
    let sql = format!("SELECT * FROM {} ORDER BY {order} DESC LIMIT 200", quote_identifier(&name));
    let params = Map::new();
    let json_columns = columns.json;
    Some(vec![Part { member: "rows", sql, params, is_single: false, json_columns }])
}

fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns the tables that the caller may see.
fn describe_tables(exchange: &McpRequestContext) -> Vec<JsonValue> {
    exchange.app.engine.describe_tables(exchange.by())
}

/// The kinds of resources, in the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tables,
    Sessions,
    Runs,
    Handler,
}

const KINDS: [Kind; 4] = [Kind::Tables, Kind::Sessions, Kind::Runs, Kind::Handler];

/// Entries of one page.
const PAGE: usize = 100;

impl Kind {
    /// Returns the prefix of the cursors of the kind.
    fn prefix(self) -> &'static str {
        match self {
            Kind::Tables => "tables/",
            Kind::Sessions => "sessions/",
            Kind::Runs => "runs/",
            Kind::Handler => "handler/",
        }
    }

    /// Returns the entries after a key, with their keys. At most one more than a page.
    async fn entries_after(
        self,
        exchange: &McpRequestContext,
        key: &str,
    ) -> Result<Vec<(String, JsonValue)>, McpFailure> {
        match self {
            Kind::Tables => Ok(tables_after(exchange, key)),
            // Generated ids begin with the time, so the newest come first. The index of the key finds the page.
            Kind::Sessions => {
                let sql = "SELECT id, agent FROM sessions WHERE id < :before \
                    ORDER BY id DESC LIMIT 101";
                rows_after(exchange, SESSIONS, "session", sql, key).await
            }
            Kind::Runs => {
                let sql = "SELECT id, agent FROM runs WHERE id < :before \
                    ORDER BY id DESC LIMIT 101";
                rows_after(exchange, RUNS, "run", sql, key).await
            }
            Kind::Handler => {
                let Some(handler) = exchange.handler() else { return Ok(Vec::new()) };
                let mut items = handler.items(McpItems::Resources);
                if !key.is_empty() {
                    let last = items.iter().rposition(|item| item["uri"] == key);
                    items.drain(..=last.ok_or_else(invalid_cursor)?);
                }
                let mut entries = Vec::new();
                for item in items {
                    entries.push((item["uri"].as_str().unwrap_or_default().to_owned(), item));
                }
                Ok(entries)
            }
        }
    }
}

fn tables_after(exchange: &McpRequestContext, last: &str) -> Vec<(String, JsonValue)> {
    let mut all = Vec::new();
    for table in describe_tables(exchange) {
        let name = table["name"].as_str().unwrap_or_default();
        if name > last {
            let item = json!({"uri": resource_uri(TABLES, name), "name": format!("table {name}"),
                "description": table["description"], "mimeType": "application/json"});
            all.push((name.to_owned(), item));
        }
    }
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    all
}

async fn rows_after(
    exchange: &McpRequestContext,
    prefix: &str,
    kind: &str,
    sql: &str,
    last: &str,
) -> Result<Vec<(String, JsonValue)>, McpFailure> {
    let params = Map::from_iter([("before".to_owned(), json!(start_before(last)))]);
    // A policy may hide the columns.
    let rows = exchange.rows(sql, &params).await.unwrap_or_default();
    let items = rows.into_iter().map(|row| {
        let id = row["id"].as_str().unwrap_or_default();
        let agent = row["agent"].as_str().unwrap_or_default();
        let item = json!({"uri": resource_uri(prefix, id), "name": format!("{kind} {id}"),
            "description": format!("A {kind} of the agent {agent}."),
            "mimeType": "application/json"});
        (id.to_owned(), item)
    });
    Ok(items.collect())
}

/// `resources/list`: tables, sessions, runs, and resources of the handler. A cursor is the kind and the key of the last
/// entry.
pub(super) async fn list(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let (first, mut last) = match read_cursor(&request.params)? {
        None => (0, ""),
        Some(cursor) => {
            let mut kinds = KINDS.iter().enumerate();
            kinds
                .find_map(|(at, kind)| Some((at, cursor.strip_prefix(kind.prefix())?)))
                .ok_or_else(invalid_cursor)?
        }
    };
    let mut page = Vec::new();
    for kind in &KINDS[first..] {
        page.extend(
            kind.entries_after(exchange, last).await?.into_iter().map(|entry| (kind, entry)),
        );
        if page.len() > PAGE {
            break;
        }
        last = "";
    }
    let has_more = page.len() > PAGE;
    page.truncate(PAGE);
    let next = page.last().filter(|_| has_more);
    let next = next.map(|(kind, (key, _))| format!("{}{key}", kind.prefix()));
    let items: Vec<JsonValue> = page.into_iter().map(|(_, (_, item))| item).collect();
    let mut result = json!({"resources": items});
    if let Some(next) = next {
        result["nextCursor"] = json!(next);
    }
    Ok(result)
}

/// Returns the templates.
pub(super) fn templates(exchange: &McpRequestContext) -> Vec<JsonValue> {
    let mut all = vec![
        uri_template(SESSIONS, "id", "session", "A session and its last 200 messages."),
        uri_template(RUNS, "id", "run", "A run and its last 200 events."),
        uri_template(TABLES, "name", "table", "The last 200 rows of a table, by key."),
    ];
    if let Some(handler) = exchange.handler() {
        all.extend(handler.items(McpItems::ResourceTemplates));
    }
    all
}

fn uri_template(prefix: &str, variable: &str, name: &str, description: &str) -> JsonValue {
    json!({"uriTemplate": format!("{prefix}{{{variable}}}"), "name": name,
        "description": description, "mimeType": "application/json"})
}

/// `resources/read`.
pub(super) async fn read(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let uri = request.required_text("uri")?;
    let missing = || McpFailure {
        code: if exchange.is_modern() { -32602 } else { -32002 },
        message: "Resource not found".to_owned(),
        data: Some(json!({"uri": uri})),
    };
    let Some(parts) = resource_parts(exchange, uri) else {
        return match exchange.handler() {
            Some(handler) if handler_has(&handler.items(McpItems::Resources), uri) => {
                ask_handler(exchange, &*handler, request).await
            }
            Some(handler) if matches_template(&handler.items(McpItems::ResourceTemplates), uri) => {
                ask_handler(exchange, &*handler, request).await
            }
            _ => Err(missing()),
        };
    };
    let mut text = Map::new();
    let mut bytes = 0;
    for Part { member, sql, params, is_single, json_columns } in parts {
        let mut rows = exchange.rows_with(&sql, &params, json_columns).await?;
        let mut fitting = Vec::new();
        if is_single {
            let row = rows.pop().ok_or_else(missing)?;
            text.insert(member.to_owned(), row.into());
            continue;
        }
        for row in rows {
            let row = JsonValue::Object(row);
            bytes += row.to_string().len();
            if bytes > limits::MCP_RESULT_BYTES {
                text.insert("truncated".to_owned(), json!(true));
                break;
            }
            fitting.push(row);
        }
        text.insert(member.to_owned(), fitting.into());
    }
    // The credential may have been revoked while the query waited for a reader.
    let mut session = exchange.auth.clone();
    let checked = exchange.app.port.check(&mut session).await;
    checked.map_err(super::message::to_failure)?;
    let text = JsonValue::Object(text).to_string();
    Ok(json!({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]}))
}

pub(super) fn handler_has(items: &[JsonValue], uri: &str) -> bool {
    has_item(items, "uri", uri)
}

/// Returns `true` if an address begins and ends as one of the templates.
fn matches_template(templates: &[JsonValue], uri: &str) -> bool {
    templates.iter().filter_map(|item| item["uriTemplate"].as_str()).any(|template| {
        let begin = template.split('{').next().unwrap_or_default();
        let end = template.rsplit('}').next().unwrap_or_default();
        uri.len() > begin.len() + end.len() && uri.starts_with(begin) && uri.ends_with(end)
    })
}
