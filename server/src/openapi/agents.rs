//! The routes of agents and runs in the OpenAPI document.

use serde_json::{Value as JsonValue, json};

use super::{answers, idempotency_key, object, schema_ref};

/// `/agents`, `/capabilities` and the routes of runs.
pub(super) fn paths() -> [(&'static str, JsonValue); 7] {
    let name = || parameter("name", "path", "string", "The agent.");
    let id = || parameter("id", "path", "string", "The run.");
    let reason = object(json!({"reason": {"type": "string"}}), &[]);
    let definition = json!({"type": "object",
        "description": "An agent definition, see docs/agents.md."});
    let mut create = operation("create_agent", "Registers an agent that there is not.", agent());
    create["requestBody"] = body(&definition);
    create["parameters"] = json!([idempotency_key()]);
    let mut change = operation(
        "change_agent",
        "Changes an agent: a JSON merge patch of its definition, checked as a whole.",
        agent(),
    );
    change["requestBody"] = body(&definition);
    change["parameters"] = json!([
        name(),
        idempotency_key(),
        parameter("If-Match", "header", "string", "The revision that is meant, as ETag gave it.")
    ]);
    let mut start =
        operation("begin_run", "Begins a run, in a session of its own or a given one.", run());
    start["requestBody"] = body(&wanted());
    start["parameters"] = json!([name(), idempotency_key()]);
    let mut abort = operation("abort_a_run", "Says that nobody wants a run any more.", run());
    abort["requestBody"] = json!({"content": {"application/json": {"schema": reason}}});
    abort["parameters"] = json!([id(), idempotency_key()]);
    let agents = object(
        json!({"seq": schema_ref("seq"), "agents": {"type": "array", "items": agent()}}),
        &["seq", "agents"],
    );
    [
        (
            "/agents",
            json!({"get": operation("agents", "The agents that there are.", agents),
                "post": as_created(create)}),
        ),
        (
            "/agents/{name}",
            json!({
                "get": with(operation("agent", "One agent.", agent()), name()),
                "patch": change,
            }),
        ),
        (
            "/capabilities",
            json!({"get": operation("capabilities", "What this server can do.",
                json!({"type": "object"}))}),
        ),
        ("/v1/agents/{name}/runs", json!({"post": as_created(start)})),
        (
            "/v1/runs/{id}",
            json!({"get": with(operation("run", "Where a run stands.", run()), id())}),
        ),
        ("/v1/runs/{id}/abort", json!({"post": abort})),
        ("/v1/runs/{id}/events", json!({"get": events(id())})),
    ]
}

fn events(id: JsonValue) -> JsonValue {
    let meaning = "What a run tells, as server-sent events, until it is over. The id of an event \
        is its number in the run.";
    let mut answers = answers("The events.", "text/event-stream", json!({"type": "string"}));
    answers["204"] = json!({"description": "The run is over, and all of it was told."});
    json!({
        "operationId": "run_events",
        "tags": ["agents"],
        "description": meaning,
        "parameters": [id,
            parameter("Last-Event-ID", "header", "integer", "Only what was told after it.")],
        "responses": answers,
    })
}

fn operation(id: &str, meaning: &str, answer: JsonValue) -> JsonValue {
    json!({
        "operationId": id,
        "tags": ["agents"],
        "description": meaning,
        "responses": answers("Done.", "application/json", answer),
    })
}

/// The same with status 201 for a new object.
fn as_created(mut operation: JsonValue) -> JsonValue {
    let responses = operation["responses"].as_object_mut();
    if let Some((responses, ok)) = responses.and_then(|all| all.remove("200").map(|ok| (all, ok))) {
        responses.insert("201".to_owned(), ok);
    }
    operation
}

fn with(mut operation: JsonValue, parameter: JsonValue) -> JsonValue {
    operation["parameters"] = json!([parameter]);
    operation
}

fn body(schema: &JsonValue) -> JsonValue {
    json!({"required": true, "content": {"application/json": {"schema": schema}}})
}

fn parameter(name: &str, place: &str, kind: &str, meaning: &str) -> JsonValue {
    json!({"name": name, "in": place, "required": place == "path", "description": meaning,
        "schema": {"type": kind}})
}

fn agent() -> JsonValue {
    let text = || json!({"type": ["string", "null"]});
    let flag = || json!({"type": "boolean"});
    let names = || json!({"type": "array", "items": {"type": "string"}});
    object(
        json!({
            "name": {"type": "string"}, "revision": {"type": "integer"},
            "mode": {"type": "string", "enum": ["primary", "subagent", "all"]},
            "description": text(), "hidden": flag(), "native": flag(), "a2a_exposed": flag(),
            "retired_at": {"type": ["integer", "null"]},
            "provider": text(), "model": text(), "temperature": {"type": ["number", "null"]},
            "response_format": {"type": ["object", "null"]}, "interrupt_on": {"type": "object"},
            "tools": names(), "skills": names(),
            "system_prompt": {"type": ["string", "null"],
                "description": "At most 500 characters of it."},
        }),
        &["name", "revision", "mode"],
    )
}

fn run() -> JsonValue {
    object(
        json!({"seq": schema_ref("seq"), "run": {"type": "object",
            "description": "The row of `runs`."}, "duplicate": {"type": "boolean"}}),
        &["seq", "run"],
    )
}

fn wanted() -> JsonValue {
    let text = |meaning: &str| json!({"type": "string", "description": meaning});
    object(
        json!({
            "input": text("What the user says."),
            "session_id": text("The session; one is made where this is left out."),
            "id": text("An id of the caller's own. The same again is the same run."),
            "deadline_ms": {"type": "integer",
                "description": "Milliseconds after which it must be over."},
            "title": text("Of the session that is made."),
            "scope": {"type": "object", "description": "Of the session that is made."},
            "metadata": {"description": "Of the session that is made."},
        }),
        &["input"],
    )
}
