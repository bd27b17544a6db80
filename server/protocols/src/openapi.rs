//! The routes of standard protocols in the OpenAPI document. Their messages are defined by these protocols.

use abide_server::port::openapi::{answers, idempotency_key};
use serde_json::{Map, Value as JsonValue, json};

/// Returns the routes of the Responses API, the chat of the AI SDK, AG-UI, A2A, and MCP, by path.
pub(super) fn paths() -> Map<String, JsonValue> {
    let id = || {
        json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"},
            "description": "The response."}])
    };
    let mut create =
        operation("create_response", "Sends input to an agent, as docs/open-responses.md says.");
    create["requestBody"] = body();
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
    let name = || {
        json!({"name": "name", "in": "path", "required": true, "schema": {"type": "string"},
            "description": "The agent."})
    };
    let meaning = "Sends a message to an agent, as docs/ai-sdk.md says.";
    let mut chat = streamed("send_chat", meaning, json!([name()]));
    chat["requestBody"] = body();
    let chat_id = json!({"name": "id", "in": "path", "required": true,
        "schema": {"type": "string"}, "description": "The chat."});
    let meaning = "The last message of the assistant, and its continuation.";
    let mut resume = streamed("resume_chat", meaning, json!([name(), chat_id]));
    resume["responses"]["204"] = json!({"description": "The chat has no run."});
    let mut ag_ui = streamed("run_ag_ui", "Runs an agent, as docs/ag-ui.md says.", json!([name()]));
    ag_ui["requestBody"] = body();
    let mut all = a2a();
    all.extend([
        ("/mcp", mcp()),
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
fn streamed(id: &str, meaning: &str, parameters: JsonValue) -> JsonValue {
    json!({"operationId": id, "tags": ["protocols"], "description": meaning,
        "parameters": parameters,
        "responses": answers("The events.", "text/event-stream", json!({"type": "string"}))})
}

/// Returns the route of MCP.
fn mcp() -> JsonValue {
    let object = || json!({"type": "object"});
    let operation = |id: &str, meaning: &str| {
        json!({"operationId": id, "tags": ["protocols"], "description": meaning,
            "responses": answers("Done.", "application/json", object())})
    };
    let meaning = "One message of the Model Context Protocol, as docs/mcp.md says.";
    let mut message = operation("mcp", meaning);
    message["requestBody"] =
        json!({"required": true, "content": {"application/json": {"schema": object()}}});
    message["responses"]["202"] = json!({"description": "The message needs no answer."});
    let meaning = "The notifications of a session of MCP.";
    let mut stream = operation("mcp_stream", meaning);
    let events = json!({"type": "string"});
    stream["responses"] = answers("The events.", "text/event-stream", events);
    let mut end = operation("end_mcp_session", "Ends a session of MCP.");
    end["responses"]["204"] = json!({"description": "The session has ended."});
    json!({"post": message, "get": stream, "delete": end})
}

fn object() -> JsonValue {
    json!({"type": "object"})
}

fn body() -> JsonValue {
    json!({"required": true, "content": {"application/json": {"schema": object()}}})
}

fn operation(id: &str, meaning: &str) -> JsonValue {
    json!({"operationId": id, "tags": ["protocols"], "description": meaning,
        "responses": answers("Done.", "application/json", object())})
}

/// Returns the routes of A2A.
fn a2a() -> Vec<(&'static str, JsonValue)> {
    let agent = || {
        json!([{"name": "agent", "in": "path", "required": true, "schema": {"type": "string"},
            "description": "The agent."}])
    };
    let mut card = operation("a2a_card", "The card of an agent for A2A.");
    card["parameters"] = agent();
    let mut legacy_card = operation("a2a_legacy_card", "The card in the form of A2A 0.3.");
    legacy_card["parameters"] = agent();
    let keys = "The public key that verifies cards and push notifications, without authentication.";
    let mut call = operation("a2a_call", "A request of A2A in JSON-RPC, as docs/a2a.md says.");
    call["parameters"] = agent();
    call["requestBody"] = body();
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
