//! The routes of agents and runs in the OpenAPI document.

use serde_json::{Value as JsonValue, json};

use super::elements::{answers, described_text, idempotency_key, object, schema_ref};

/// `/agents`, `/capabilities` and the routes of runs.
pub(super) fn paths() -> [(&'static str, JsonValue); 12] {
    let name = parameter("name", "path", "string", "The agent.");
    let id = parameter("id", "path", "string", "The run.");
    let definition = json!({"type": "object",
        "description": "An agent definition, see docs/agents.md."});
    let mut create = operation("create_agent", "Registers a new agent.", agent_schema());
    create["requestBody"] = json_body(&definition);
    create["parameters"] = json!([idempotency_key()]);
    let mut change = operation(
        "change_agent",
        "Changes an agent with a JSON merge patch of its definition, which is checked as a whole.",
        agent_schema(),
    );
    change["requestBody"] = json_body(&definition);
    change["parameters"] = json!([
        name,
        idempotency_key(),
        parameter("If-Match", "header", "string", "The expected revision, from ETag.")
    ]);
    let mut retire = operation(
        "remove_agent",
        "Retires an agent and its inline agents: they start no more runs, and active runs continue.",
        agent_schema(),
    );
    retire["parameters"] = json!([name, idempotency_key()]);
    let mut start =
        operation("begin_run", "Starts a run, in a new session or an existing one.", run_answer());
    start["requestBody"] = json_body(&request_body());
    start["parameters"] = json!([name, idempotency_key()]);
    let mut abort = operation("abort_a_run", "Aborts a run.", run_answer());
    abort["requestBody"] = optional_json_body(&reason_schema());
    abort["parameters"] = json!([id, idempotency_key()]);
    let agents = object(
        json!({"seq": schema_ref("seq"), "agents": {"type": "array", "items": agent_schema()}}),
        &["seq", "agents"],
    );
    let meaning = "Only agents that can own a session, or only those that can get tasks.";
    let mut kind = parameter("kind", "query", "string", meaning);
    kind["schema"]["enum"] = json!(["primaries", "subagents"]);
    [
        (
            "/agents",
            json!({"get": with_parameter(operation("agents", "Lists the agents.", agents), kind),
                "post": as_created(create)}),
        ),
        (
            "/agents/{name}",
            json!({
                "get":
                    with_parameter(operation("agent", "Returns an agent.", agent_schema()), name),
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
        (
            "/v1/runs/{id}",
            json!({"get":
                with_parameter(operation("run", "Returns a run.", run_answer()), id.clone())}),
        ),
        ("/v1/runs/{id}/abort", json!({"post": abort})),
        ("/v1/runs/{id}/events", json!({"get": events_operation(id.clone())})),
        ("/v1/runs/{id}/pause", json!({"post": pause_operation(id.clone())})),
        ("/v1/runs/{id}/resume", json!({"post": resume_operation(id.clone())})),
        ("/v1/runs/{id}/export", json!({"post": export_operation(id)})),
        ("/v1/imports", json!({"post": as_created(import_operation())})),
        ("/v1/sessions/{id}/fork", json!({"post": as_created(fork_operation())})),
    ]
}

/// Returns the routes that start a run and wait for it, list its checkpoints, read the state of a session, and abort
/// the active run of a session.
pub(super) fn contract_paths() -> [(&'static str, JsonValue); 4] {
    let name = parameter("name", "path", "string", "The agent.");
    let id = parameter("id", "path", "string", "The run.");
    [
        ("/v1/agents/{name}/invoke", json!({"post": invoke_operation(name)})),
        ("/v1/runs/{id}/checkpoints", json!({"get": checkpoints_operation(id)})),
        ("/v1/sessions/{id}/state", json!({"get": state_operation()})),
        ("/v1/sessions/{id}/abort", json!({"post": abort_session_operation()})),
    ]
}

fn invoke_operation(name: JsonValue) -> JsonValue {
    let mut request_body = request_body();
    request_body["properties"]["wait_ms"] = json!({"type": "integer", "minimum": 0, "maximum": 600_000,
        "description": "How long the request waits, in milliseconds; 60,000 if omitted."});
    let mut answer = run_answer();
    answer["properties"]["event"] = json!({"type": ["object", "null"],
        "description": "The event that ends the turn: done, error or interrupt."});
    let meaning = "Starts a run, and waits until its turn ends. The answer is 202 if the time is \
        over; the run continues, and the same request waits for it again if it names the run or \
        has the same key.";
    let mut invoke = operation("invoke_agent", meaning, answer.clone());
    invoke["requestBody"] = json_body(&request_body);
    invoke["parameters"] = json!([name, idempotency_key()]);
    invoke["responses"]["202"] = json!({"description": "The time is over.",
        "content": {"application/json": {"schema": answer}}});
    invoke
}

fn checkpoints_operation(id: JsonValue) -> JsonValue {
    let number = json!({"type": "integer"});
    let one =
        object(json!({"at": number, "turn": number, "events": number}), &["at", "turn", "events"]);
    let all = object(
        json!({"seq": schema_ref("seq"), "session_id": {"type": "string"},
            "checkpoints": {"type": "array", "items": one},
            "next": {"type": ["integer", "null"], "description": "`after` of the next page."}}),
        &["seq", "session_id", "checkpoints", "next"],
    );
    let meaning = "Lists the points from which a run can be continued, at most 500. `at` is for \
        the state of its session.";
    let mut list = with_parameter(operation("run_checkpoints", meaning, all), id);
    let after = parameter("after", "query", "integer", "Only checkpoints with more events.");
    match list["parameters"].as_array_mut() {
        Some(parameters) => parameters.push(after),
        None => list["parameters"] = json!([after]),
    }
    list
}

fn state_operation() -> JsonValue {
    let session = json!({"type": ["object", "null"], "description": "The row of `sessions`."});
    let run = json!({"type": ["object", "null"], "description": "The row of `runs`."});
    let rows = json!({"type": "array", "items": {"type": "object"},
        "description": "The last rows of `agent_state`."});
    let answer = object(
        json!({"seq": schema_ref("seq"), "session": session, "run": run,
            "messages": rows}),
        &["seq", "session", "run", "messages"],
    );
    let mut state = operation(
        "session_state",
        "Returns a session with its active or newest run and its last messages.",
        answer,
    );
    state["parameters"] = json!([
        parameter("id", "path", "string", "The session."),
        parameter(
            "at",
            "query",
            "integer",
            "The event after which the state is read; now if omitted."
        ),
        parameter("last", "query", "integer", "The number of messages; 100 if omitted."),
    ]);
    state
}

/// Returns the operation that aborts the active run of a session. Unlike the abort of a run by its id, it has no
/// parameter `Idempotency-Key`: when the request is repeated, another run can be active.
fn abort_session_operation() -> JsonValue {
    let aborted = json!({"type": "boolean", "description": "False if no run is active."});
    let run = json!({"type": ["object", "null"],
        "description": "The row of `runs`; null if no run is active."});
    let answer = object(
        json!({"seq": schema_ref("seq"), "aborted": aborted, "run": run}),
        &["seq", "aborted", "run"],
    );
    let mut abort = operation("abort_session_run", "Aborts the active run of a session.", answer);
    abort["requestBody"] = optional_json_body(&reason_schema());
    abort["parameters"] = json!([parameter("id", "path", "string", "The session.")]);
    abort
}

fn pause_operation(id: JsonValue) -> JsonValue {
    let stage = json!({"type": "string",
        "enum": ["before_guardrails", "after_agent", "after_tools", "after_loop"],
        "description": "The stage; the next one if omitted."});
    let body = object(json!({"stage": stage, "reason": {"type": "string"}}), &[]);
    let answer = row_answer("pause", "The row of `pauses`.");
    let mut pause = operation("pause_a_run", "Requests that a run pauses at a stage.", answer);
    pause["requestBody"] = optional_json_body(&body);
    pause["parameters"] = json!([id, idempotency_key()]);
    pause
}

fn resume_operation(id: JsonValue) -> JsonValue {
    let mut resume = operation("resume_a_run", "Resumes a paused run.", run_answer());
    resume["parameters"] = json!([id, idempotency_key()]);
    resume
}

fn export_operation(id: JsonValue) -> JsonValue {
    let meaning = "Exports a run that waits. It ends here with the code `moved`, unless `copy` is \
        set.";
    let body = object(json!({"copy": {"type": "boolean"}, "tag": {"type": "string"}}), &[]);
    let answer = row_answer("snapshot", "The snapshot, see docs/agent-runs.md.");
    let mut export = operation("export_a_run", meaning, answer);
    export["requestBody"] = optional_json_body(&body);
    export["parameters"] = json!([id, idempotency_key()]);
    export
}

fn import_operation() -> JsonValue {
    let request_body = object(
        json!({
            "snapshot": {"type": "object", "description": "A snapshot of an exported run."},
            "id": described_text("The id of the run here; that of the origin if omitted."),
            "session_id": described_text("The id of its session here; that of the run if omitted."),
            "any_definition": {"type": "boolean",
                "description": "Continue with the definitions here, even if they differ."},
        }),
        &["snapshot"],
    );
    let mut import =
        operation("import_a_run", "Imports a snapshot: the run continues.", run_answer());
    import["requestBody"] = json_body(&request_body);
    import["parameters"] = json!([idempotency_key()]);
    import
}

fn fork_operation() -> JsonValue {
    let request_body = object(
        json!({
            "at": {"type": "integer",
                "description": "The last event of the log to include; the newest if omitted."},
            "id": described_text("The id of the new session."),
            "title": described_text("The title of the new session."),
        }),
        &[],
    );
    let answer = row_answer("fork", "The row of `session_forks`.");
    let meaning = "Creates a session with the history of another one up to an event.";
    let mut fork = operation("fork_a_session", meaning, answer);
    fork["requestBody"] = optional_json_body(&request_body);
    let id = parameter("id", "path", "string", "The session.");
    fork["parameters"] = json!([id, idempotency_key()]);
    fork
}

/// Returns an answer with one object, `seq` and `duplicate`.
pub(super) fn row_answer(name: &str, meaning: &str) -> JsonValue {
    let row = json!({"type": "object", "description": meaning});
    object(
        json!({"seq": schema_ref("seq"), name: row, "duplicate": {"type": "boolean"}}),
        &["seq", name],
    )
}

fn events_operation(id: JsonValue) -> JsonValue {
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

pub(super) fn operation(id: &str, meaning: &str, answer: JsonValue) -> JsonValue {
    json!({
        "operationId": id,
        "tags": ["agents"],
        "description": meaning,
        "responses": answers("Done.", "application/json", answer),
    })
}

/// Adds the status 201 for a new object.
pub(super) fn as_created(mut operation: JsonValue) -> JsonValue {
    let responses = operation["responses"].as_object_mut();
    if let Some((responses, ok)) = responses.and_then(|all| all.remove("200").map(|ok| (all, ok))) {
        responses.insert("201".to_owned(), ok);
    }
    operation
}

pub(super) fn with_parameter(mut operation: JsonValue, parameter: JsonValue) -> JsonValue {
    operation["parameters"] = json!([parameter]);
    operation
}

pub(super) fn json_body(schema: &JsonValue) -> JsonValue {
    json!({"required": true, "content": {"application/json": {"schema": schema}}})
}

/// Returns a JSON body that a request can omit.
fn optional_json_body(schema: &JsonValue) -> JsonValue {
    json!({"content": {"application/json": {"schema": schema}}})
}

/// Returns the schema of a body with the reason of an abort.
fn reason_schema() -> JsonValue {
    object(json!({"reason": {"type": "string"}}), &[])
}

pub(super) fn parameter(name: &str, place: &str, kind: &str, meaning: &str) -> JsonValue {
    json!({"name": name, "in": place, "required": place == "path", "description": meaning,
        "schema": {"type": kind}})
}

fn agent_schema() -> JsonValue {
    let nullable_text = json!({"type": ["string", "null"]});
    let flag = json!({"type": "boolean"});
    let names = json!({"type": "array", "items": {"type": "string"}});
    object(
        json!({
            "name": {"type": "string"}, "revision": {"type": "integer"},
            "mode": {"type": "string", "enum": ["primary", "subagent", "all"]},
            "description": nullable_text, "hidden": flag, "native": flag, "a2a_exposed": flag,
            "mcp_exposed": flag,
            "retired_at": {"type": ["integer", "null"]},
            "provider": nullable_text, "model": nullable_text,
            "temperature": {"type": ["number", "null"]},
            "response_format": {"type": ["object", "null"]}, "interrupt_on": {"type": "object"},
            "tools": names, "skills": names,
            "system_prompt": {"type": ["string", "null"],
                "description": "At most 500 characters of the prompt."},
        }),
        &["name", "revision", "mode"],
    )
}

fn run_answer() -> JsonValue {
    object(
        json!({"seq": schema_ref("seq"), "run": {"type": "object",
            "description": "The row of `runs`."}, "duplicate": {"type": "boolean"}}),
        &["seq", "run"],
    )
}

fn request_body() -> JsonValue {
    object(
        json!({
            "input": {"type": ["string", "object", "array"],
                "description": "The user's message. The agent gets JSON as JSON text."},
            "session_id": described_text("The session; created if omitted."),
            "id": described_text("An id chosen by the caller. The same id means the same run."),
            "deadline_ms": {"type": "integer",
                "description": "Time limit of the run in milliseconds."},
            "title": described_text("For a new session."),
            "scope": {"type": "object", "description": "For a new session."},
            "metadata": {"description": "For a new session."},
        }),
        &["input"],
    )
}
