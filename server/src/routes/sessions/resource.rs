//! `/v1/sessions` as a collection: list, create, read and change sessions, and page through their messages. Reads are
//! queries with the rights of the caller; each change is one reducer call.

use abide_schema::{Code, Refusal};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue, json};

use super::find;
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::problem::Problem;
use crate::query_string::invalid_query_string;
use crate::routes::reducer_route::{ReducerRoute, arguments};
use crate::routes::response::counted_value;
use crate::routes::rows::{query_rows, stored_ids};
use crate::routes::runs::path;

/// Rows in a page without `limit`, and at most.
const PAGE: usize = 100;
const PAGE_MAX: usize = 500;

/// A page of sessions, in descending order of ids: generated ids begin with a time, so the newest come first. The order
/// is that of the primary key, so that a page costs the same wherever it begins.
const LIST: &str = "SELECT * FROM sessions \
    WHERE (:before IS NULL OR id < :before) AND (:agent IS NULL OR agent = :agent) \
      AND (:status IS NULL OR status = :status) \
      AND (:parent_id IS NULL OR parent_id = :parent_id OR parent_id = :stored_parent_id) \
    ORDER BY id DESC LIMIT :limit";

const MESSAGES_AFTER: &str = "SELECT * FROM agent_state WHERE session_id = :id AND id > :after \
    ORDER BY id LIMIT :limit";

const MESSAGES_BEFORE: &str = "SELECT * FROM agent_state WHERE session_id = :id AND id < :before \
    ORDER BY id DESC LIMIT :limit";

/// The status of a session. An unknown one is refused, so that a misspelt filter is no empty list.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Created,
    Active,
    Suspended,
    HandedOff,
    Completed,
    Failed,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Status::Created => "created",
            Status::Active => "active",
            Status::Suspended => "suspended",
            Status::HandedOff => "handed_off",
            Status::Completed => "completed",
            Status::Failed => "failed",
        }
    }
}

/// The filters of a list, and where its page begins.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::routes) struct ListQuery {
    agent: Option<String>,
    status: Option<Status>,
    parent_id: Option<String>,
    before: Option<String>,
    limit: Option<usize>,
}

/// Lists sessions.
pub(in crate::routes) async fn list(
    State(app): State<AppState>,
    by: CallerExtension,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let hint = "send any of ?agent=, ?status=, ?parent_id=, ?before= with next of the previous page, and ?limit=";
    let Query(ListQuery { agent, status, parent_id, before, limit }) =
        query.map_err(|why| invalid_query_string(Code::BadArguments, &why).hint(hint))?;
    let limit = page_size(limit)?;
    let stored_parent_id = parent_id.as_ref().and_then(|id| stored_ids(&by, id).pop());
    let params = [
        ("agent", json!(agent)),
        ("status", json!(status.map(Status::as_str))),
        ("parent_id", json!(parent_id)),
        ("stored_parent_id", json!(stored_parent_id)),
        ("before", json!(before)),
        ("limit", json!(limit + 1)),
    ];
    let (seq, mut sessions) = query_rows(&app.engine, &by, LIST, params, None).await?;
    let has_more = sessions.len() > limit;
    sessions.truncate(limit);
    let next = sessions.last().filter(|_| has_more).map(|last| last["id"].clone());
    let page = move || json!({"seq": seq, "next": next, "sessions": sessions});
    Ok(counted_value(&app, &by, page).await?)
}

/// Creates a session.
pub(in crate::routes) async fn create(
    State(app): State<AppState>,
    by: CallerExtension,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let args: Map<String, JsonValue> = content
        .envelope_in_turn(r#"{"agent": "…", "id": "…", "title": "…"}, all but the first optional"#)
        .await?;
    let route =
        ReducerRoute { reducer: "create_session", result: "session", status: StatusCode::CREATED };
    route.answer(&app, &by, &headers, &content, args.into()).await
}

/// Returns a session.
pub(in crate::routes) async fn get(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let id = path(id, "id of the session")?;
    let (seq, session) = find(&app.engine, &by, &id, None).await?;
    Ok(counted_value(&app, &by, move || json!({"seq": seq, "session": session})).await?)
}

/// Changes the title and the metadata of a session by a JSON merge patch (RFC 7396).
pub(in crate::routes) async fn change(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let shape = r#"{"title": "…", "metadata": {"ticket": 7}}, one of them"#;
    let id = path(id, "id of the session")?;
    let mut args = arguments(&content, shape, "session_id", &id).await?;
    if args.get("title").is_some_and(JsonValue::is_null) {
        // In a merge patch null removes; for the reducer null is an argument that is omitted.
        args["title"] = json!("");
    }
    let route =
        ReducerRoute { reducer: "update_session", result: "session", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Where a page of messages begins.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::routes) struct MessagesQuery {
    after: Option<i64>,
    before: Option<i64>,
    limit: Option<usize>,
}

/// Returns a page of the messages of a session, the oldest first. With `before` it is the page that ends there.
pub(in crate::routes) async fn messages(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<MessagesQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let hint = "send one of ?after= and ?before= with next of the previous page, and ?limit=";
    let id = path(id, "id of the session")?;
    let Query(MessagesQuery { after, before, limit }) =
        query.map_err(|why| invalid_query_string(Code::BadArguments, &why).hint(hint))?;
    if after.is_some() && before.is_some() {
        let detail = "invalid query string: after and before exclude each other";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
    }
    let limit = page_size(limit)?;
    let (seq, session) = find(&app.engine, &by, &id, None).await?;
    let (sql, edge) = match before {
        Some(before) => (MESSAGES_BEFORE, ("before", json!(before))),
        None => (MESSAGES_AFTER, ("after", json!(after.unwrap_or(0)))),
    };
    let params = [("id", session["id"].clone()), edge, ("limit", json!(limit + 1))];
    let (_, mut messages) = query_rows(&app.engine, &by, sql, params, Some(seq)).await?;
    let has_more = messages.len() > limit;
    messages.truncate(limit);
    // The last row that was read is where the next page in the same direction begins.
    let next = messages.last().filter(|_| has_more).map(|last| last["id"].clone());
    if before.is_some() {
        messages.reverse();
    }
    let page = move || json!({"seq": seq, "next": next, "messages": messages});
    Ok(counted_value(&app, &by, page).await?)
}

fn page_size(limit: Option<usize>) -> Result<usize, Refusal> {
    let limit = limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        let detail = format!("limit is {limit}, not between 1 and {PAGE_MAX}");
        return Err(Refusal::new(Code::BadArguments, detail));
    }
    Ok(limit)
}
