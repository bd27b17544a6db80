//! The routes of standard protocols in the OpenAPI document. Their messages are defined by these protocols.

use serde_json::{Value as JsonValue, json};

use super::elements::{answers, idempotency_key};

/// The routes of the Responses API.
pub(super) fn paths() -> [(&'static str, JsonValue); 4] {
    let object = || json!({"type": "object"});
    let operation = |id: &str, meaning: &str| {
        json!({"operationId": id, "tags": ["protocols"], "description": meaning,
            "responses": answers("Done.", "application/json", object())})
    };
    let id = || {
        json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"},
            "description": "The response."}])
    };
    let mut create =
        operation("create_response", "Sends input to an agent, as docs/open-responses.md says.");
    create["requestBody"] =
        json!({"required": true, "content": {"application/json": {"schema": object()}}});
    create["parameters"] = json!([idempotency_key()]);
    let mut get = operation("response", "Returns a response, or its events.");
    get["parameters"] = json!([
        id()[0],
        {"name": "stream", "in": "query", "required": false, "schema": {"type": "boolean"},
            "description": "Return server-sent events."},
        {"name": "starting_after", "in": "query", "required": false,
            "schema": {"type": "integer"}, "description": "Only later events."},
    ]);
    let mut cancel = operation("cancel_response", "Aborts the run of a response.");
    cancel["parameters"] = id();
    [
        ("/v1/responses", json!({"post": create})),
        ("/v1/responses/{id}", json!({"get": get})),
        ("/v1/responses/{id}/cancel", json!({"post": cancel})),
        ("/v1/models", json!({"get": operation("models", "Lists the agents as models.")})),
    ]
}
