//! The routes of agents and runs in the OpenAPI document.

use serde_json::{Value as JsonValue, json};

use super::elements::{answers, idempotency_key, object, schema_ref};

/// `/agents`, `/capabilities` and the routes of runs.
pub(super) fn paths() -> [(&'static str, JsonValue); 7] {
    let name = || parameter("name", "path", "string", "The agent.");
    let id = || parameter("id", "path", "string", "The run.");
    let reason = object(json!({"reason": {"type": "string"}}), &[]);
    let definition = json!({"type": "object",
        "description": "An agent definition, see docs/agents.md."});
    let mut create = operation("create_agent", "Registers a new agent.", agent());
    create["requestBody"] = body(&definition);
    create["parameters"] = json!([idempotency_key()]);
    let mut change = operation(
        "change_agent",
        "Changes an agent with a JSON merge patch of its definition, which is checked as a whole.",
        agent(),
    );
    change["requestBody"] = body(&definition);
    change["parameters"] = json!([
        name(),
        idempotency_key(),
        parameter("If-Match", "header", "string", "The expected revision, from ETag.")
    ]);
    let mut retire = operation(
        "remove_agent",
        "Retires an agent and its inline agents: they start no more runs, and active runs continue.",
        agent(),
    );
    retire["parameters"] = json!([name(), idempotency_key()]);
    let mut start =
        operation("begin_run", "Starts a run, in a new session or an existing one.", run());
    start["requestBody"] = body(&wanted());
    start["parameters"] = json!([name(), idempotency_key()]);
    let mut abort = operation("abort_a_run", "Aborts a run.", run());
    abort["requestBody"] = json!({"content": {"application/json": {"schema": reason}}});
    abort["parameters"] = json!([id(), idempotency_key()]);
    let agents = object(
        json!({"seq": schema_ref("seq"), "agents": {"type": "array", "items": agent()}}),
        &["seq", "agents"],
    );
    [
        (
            "/agents",
            json!({"get": operation("agents", "Lists the agents.", agents),
                "post": as_created(create)}),
        ),
        (
            "/agents/{name}",
            json!({
                "get": with(operation("agent", "Returns an agent.", agent()), name()),
                "patch": change,
                "delete": retire,
            }),
        ),
        (
            "/capabilities",
            json!({"get": operation("capabilities", "The capabilities of this server.",
                json!({"type": "object"}))}),
        ),
        ("/v1/agents/{name}/runs", json!({"post": as_created(start)})),
        ("/v1/runs/{id}", json!({"get": with(operation("run", "Returns a run.", run()), id())})),
        ("/v1/runs/{id}/abort", json!({"post": abort})),
        ("/v1/runs/{id}/events", json!({"get": events(id())})),
    ]
}

fn events(id: JsonValue) -> JsonValue {
    let meaning = "The events of a run as server-sent events, until the run ends. \
        The id of an event is its number in the run.";
    let mut answers = answers("The events.", "text/event-stream", json!({"type": "string"}));
    answers["204"] = json!({"description": "The run has ended, and all events were sent."});
    json!({
        "operationId": "run_events",
        "tags": ["agents"],
        "description": meaning,
        "parameters": [id,
            parameter("Last-Event-ID", "header", "integer", "Only later events.")],
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
                "description": "At most 500 characters of the prompt."},
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
            "input": text("The user's message."),
            "session_id": text("The session; created if omitted."),
            "id": text("An id chosen by the caller. The same id means the same run."),
            "deadline_ms": {"type": "integer",
                "description": "Time limit of the run in milliseconds."},
            "title": text("For a new session."),
            "scope": {"type": "object", "description": "For a new session."},
            "metadata": {"description": "For a new session."},
        }),
        &["input"],
    )
}
