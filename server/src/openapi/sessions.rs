//! The routes of sessions as a collection in the OpenAPI document.

use serde_json::{Value as JsonValue, json};

use super::agents::{as_created, json_body, operation, parameter, row_answer, with_parameter};
use super::elements::{described_text, idempotency_key, object, schema_ref};

/// `/v1/sessions`, one session, and its messages.
pub(super) fn paths() -> [(&'static str, JsonValue); 3] {
    [
        ("/v1/sessions", json!({"get": list_operation(), "post": as_created(create_operation())})),
        ("/v1/sessions/{id}", json!({"get": get_operation(), "patch": change_operation()})),
        ("/v1/sessions/{id}/messages", json!({"get": messages_operation()})),
    ]
}

fn id_parameter() -> JsonValue {
    parameter("id", "path", "string", "The session.")
}

fn limit_parameter() -> JsonValue {
    let mut limit = parameter("limit", "query", "integer", "Rows of the page; 100 if omitted.");
    limit["schema"]["minimum"] = json!(1);
    limit["schema"]["maximum"] = json!(500);
    limit
}

fn list_operation() -> JsonValue {
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
        limit_parameter(),
    ]);
    list
}

fn create_operation() -> JsonValue {
    let request_body = object(
        json!({
            "agent": described_text("The agent that owns it."),
            "id": described_text("Its id; generated if omitted."),
            "title": described_text("A title for people."),
            "parent_id": described_text("The parent session."),
            "scope": {"type": "object", "description": "Keys that decide who can see it."},
            "metadata": {"type": "object", "description": "Other data to store with it."},
        }),
        &["agent"],
    );
    let mut create = operation("make_session", "Creates a session.", session_answer());
    create["requestBody"] = json_body(&request_body);
    create["parameters"] = json!([idempotency_key()]);
    create
}

fn get_operation() -> JsonValue {
    let session = json!({"type": "object", "description": "The row of `sessions`."});
    let answer = object(json!({"seq": schema_ref("seq"), "session": session}), &["seq", "session"]);
    with_parameter(operation("session", "Returns a session.", answer), id_parameter())
}

fn change_operation() -> JsonValue {
    let patch = object(
        json!({
            "title": {"type": ["string", "null"], "description": "The title; null removes it."},
            "metadata": {"type": "object",
                "description": "Merged into the metadata; members that are null are removed."},
        }),
        &[],
    );
    let meaning = "Changes the title and the metadata of a session by a JSON merge patch.";
    let mut change = operation("change_session", meaning, session_answer());
    change["requestBody"] = json_body(&patch);
    change["parameters"] = json!([id_parameter(), idempotency_key()]);
    change
}

fn messages_operation() -> JsonValue {
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
        id_parameter(),
        parameter("after", "query", "integer", "Only later messages, from the oldest."),
        parameter("before", "query", "integer", "Only earlier messages, from the newest."),
        limit_parameter(),
    ]);
    messages
}

/// Returns the answer of a change: the row of `sessions`.
fn session_answer() -> JsonValue {
    row_answer("session", "The row of `sessions`.")
}
