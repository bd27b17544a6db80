//! The routes of standard protocols in the OpenAPI document. Their messages are defined by these protocols.

use abide_server::port::openapi::{answers, idempotency_key};
use serde_json::{Map, Value as JsonValue, json};

/// Returns the routes of the Responses API, the chat of the AI SDK, AG-UI, A2A, and MCP, by path.
pub(super) fn paths() -> Map<String, JsonValue> {
    let id = path_parameter("id", "The response.");
    let name = path_parameter("name", "The agent.");
    let mut create =
        operation("create_response", "Sends input to an agent, as docs/open-responses.md says.");
    create["requestBody"] = json_body();
    create["parameters"] = json!([idempotency_key()]);
    let mut get = operation("response", "Returns a response, or its events.");
    get["parameters"] = json!([
        id,
        {"name": "stream", "in": "query", "required": false, "schema": {"type": "boolean"},
            "description": "Return server-sent events."},
        {"name": "starting_after", "in": "query", "required": false,
            "schema": {"type": "integer"}, "description": "Only later events."},
    ]);
    let mut cancel = operation("cancel_response", "Aborts the run of a response.");
    cancel["parameters"] = json!([id]);
    let meaning = "Sends a message to an agent, as docs/ai-sdk.md says.";
    let mut chat = streaming_operation("send_chat", meaning, json!([name]));
    chat["requestBody"] = json_body();
    let chat_id = path_parameter("id", "The chat.");
    let meaning = "The last message of the assistant, and its continuation.";
    let mut resume = streaming_operation("resume_chat", meaning, json!([name, chat_id]));
    resume["responses"]["204"] = json!({"description": "The chat has no run."});
    let mut ag_ui =
        streaming_operation("run_ag_ui", "Runs an agent, as docs/ag-ui.md says.", json!([name]));
    ag_ui["requestBody"] = json_body();
    let mut all = a2a_paths();
    all.extend([
        ("/mcp", mcp_operations()),
        ("/v1/agents/{name}/chat", json!({"post": chat})),
        ("/v1/agents/{name}/chat/{id}/stream", json!({"get": resume})),
        ("/v1/agents/{name}/ag-ui", json!({"post": ag_ui})),
        ("/v1/responses", json!({"post": create})),
        ("/v1/responses/{id}", json!({"get": get})),
        ("/v1/responses/{id}/cancel", json!({"post": cancel})),
        ("/v1/models", json!({"get": operation("models", "Lists the agents as models.")})),
    ]);
    all.into_iter().map(|(path, item)| (path.to_owned(), item)).collect()
}

/// Returns an operation that answers with a stream.
fn streaming_operation(id: &str, meaning: &str, parameters: JsonValue) -> JsonValue {
    json!({"operationId": id, "tags": ["protocols"], "description": meaning,
        "parameters": parameters,
        "responses": answers("The events.", "text/event-stream", json!({"type": "string"}))})
}

/// Returns the route of MCP.
fn mcp_operations() -> JsonValue {
    let meaning = "One message of the Model Context Protocol, as docs/mcp.md says.";
    let mut message = operation("mcp", meaning);
    message["requestBody"] = json_body();
    message["responses"]["202"] = json!({"description": "The message needs no answer."});
    let meaning = "The notifications of a session of MCP.";
    let mut stream = operation("mcp_stream", meaning);
    let events = json!({"type": "string"});
    stream["responses"] = answers("The events.", "text/event-stream", events);
    let mut end = operation("end_mcp_session", "Ends a session of MCP.");
    end["responses"]["204"] = json!({"description": "The session has ended."});
    json!({"post": message, "get": stream, "delete": end})
}

fn path_parameter(name: &str, meaning: &str) -> JsonValue {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"},
        "description": meaning})
}

fn object_schema() -> JsonValue {
    json!({"type": "object"})
}

fn json_body() -> JsonValue {
    json!({"required": true, "content": {"application/json": {"schema": object_schema()}}})
}

fn operation(id: &str, meaning: &str) -> JsonValue {
    json!({"operationId": id, "tags": ["protocols"], "description": meaning,
        "responses": answers("Done.", "application/json", object_schema())})
}

/// Returns the routes of A2A.
fn a2a_paths() -> Vec<(&'static str, JsonValue)> {
    let agent = path_parameter("agent", "The agent.");
    let mut card = operation("a2a_card", "The card of an agent for A2A.");
    card["parameters"] = json!([agent]);
    let mut legacy_card = operation("a2a_legacy_card", "The card in the form of A2A 0.3.");
    legacy_card["parameters"] = json!([agent]);
    let keys = "The public key that verifies cards and push notifications, without authentication.";
    let mut call = operation("a2a_call", "A request of A2A in JSON-RPC, as docs/a2a.md says.");
    call["parameters"] = json!([agent]);
    call["requestBody"] = json_body();
    vec![
        (
            "/.well-known/agent-card.json",
            json!({"get": operation("a2a_cards", "The cards of all agents for A2A.")}),
        ),
        ("/a2a/{agent}", json!({"post": call})),
        ("/a2a/{agent}/.well-known/agent-card.json", json!({"get": card})),
        ("/a2a/{agent}/v0.3/.well-known/agent-card.json", json!({"get": legacy_card})),
        ("/.well-known/jwks.json", json!({"get": operation("signing_keys", keys)})),
    ]
}
