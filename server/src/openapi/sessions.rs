//! The routes of sessions as a collection in the OpenAPI document.

use serde_json::{Value as JsonValue, json};

use super::agents::{as_created, body, of_row, operation, parameter, with};
use super::elements::{idempotency_key, object, schema_ref};

/// `/v1/sessions`, one session, and its messages.
pub(super) fn paths() -> [(&'static str, JsonValue); 3] {
    [
        ("/v1/sessions", json!({"get": list(), "post": as_created(create())})),
        ("/v1/sessions/{id}", json!({"get": get(), "patch": change()})),
        ("/v1/sessions/{id}/messages", json!({"get": messages()})),
    ]
}

fn id() -> JsonValue {
    parameter("id", "path", "string", "The session.")
}

fn limit() -> JsonValue {
    let mut limit = parameter("limit", "query", "integer", "Rows of the page; 100 if omitted.");
    limit["schema"]["minimum"] = json!(1);
    limit["schema"]["maximum"] = json!(500);
    limit
}

fn list() -> JsonValue {
    let rows = json!({"type": "array", "items": {"type": "object"},
        "description": "Rows of `sessions`, in descending order of their ids."});
    let page = object(
        json!({"seq": schema_ref("seq"), "sessions": rows,
            "next": {"type": ["string", "null"], "description": "`before` of the next page."}}),
        &["seq", "sessions", "next"],
    );
    let mut status = parameter("status", "query", "string", "Only sessions with this status.");
    status["schema"]["enum"] =
        json!(["created", "active", "suspended", "handed_off", "completed", "failed"]);
    let mut list = operation("sessions", "Lists the sessions that the caller can see.", page);
    list["parameters"] = json!([
        parameter("agent", "query", "string", "Only sessions of this agent."),
        status,
        parameter("parent_id", "query", "string", "Only children of this session."),
        parameter("before", "query", "string", "Only smaller ids."),
        limit(),
    ]);
    list
}

fn create() -> JsonValue {
    let text = |meaning: &str| json!({"type": "string", "description": meaning});
    let request_body = object(
        json!({
            "agent": text("The agent that owns it."),
            "id": text("Its id; generated if omitted."),
            "title": text("A title for people."),
            "parent_id": text("The parent session."),
            "scope": {"type": "object", "description": "Keys that decide who can see it."},
            "metadata": {"type": "object", "description": "Other data to store with it."},
        }),
        &["agent"],
    );
    let mut create = operation("make_session", "Creates a session.", row());
    create["requestBody"] = body(&request_body);
    create["parameters"] = json!([idempotency_key()]);
    create
}

fn get() -> JsonValue {
    let session = json!({"type": "object", "description": "The row of `sessions`."});
    let answer = object(json!({"seq": schema_ref("seq"), "session": session}), &["seq", "session"]);
    with(operation("session", "Returns a session.", answer), id())
}

fn change() -> JsonValue {
    let patch = object(
        json!({
            "title": {"type": ["string", "null"], "description": "The title; null removes it."},
            "metadata": {"type": "object",
                "description": "Merged into the metadata; members that are null are removed."},
        }),
        &[],
    );
    let meaning = "Changes the title and the metadata of a session by a JSON merge patch.";
    let mut change = operation("change_session", meaning, row());
    change["requestBody"] = body(&patch);
    change["parameters"] = json!([id(), idempotency_key()]);
    change
}

fn messages() -> JsonValue {
    let rows = json!({"type": "array", "items": {"type": "object"},
        "description": "Rows of `agent_state`, the oldest first."});
    let page = object(
        json!({"seq": schema_ref("seq"), "messages": rows, "next": {"type": ["integer", "null"],
            "description": "`after` of the next page, or `before` if the request has `before`."}}),
        &["seq", "messages", "next"],
    );
    let mut messages =
        operation("session_messages", "Returns a page of the messages of a session.", page);
    messages["parameters"] = json!([
        id(),
        parameter("after", "query", "integer", "Only later messages, from the oldest."),
        parameter("before", "query", "integer", "Only earlier messages, from the newest."),
        limit(),
    ]);
    messages
}

/// Returns the answer of a change: the row of `sessions`.
fn row() -> JsonValue {
    of_row("session", "The row of `sessions`.")
}
