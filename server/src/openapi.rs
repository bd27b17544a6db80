//! `GET /openapi.json`: OpenAPI 3.1 made from what the engine says about itself.
//!
//! Each reducer is a path. Its schemas go under `components` with their definitions lifted out of
//! them, because a `$ref` of `#/$defs/…` would point to the root of this document.

use abide_schema::Code;
use serde_json::{Map, Value as JsonValue, json};

/// The document.
pub(crate) fn document(described: &JsonValue) -> JsonValue {
    let mut components = Components::default();
    let mut paths = Map::new();
    for reducer in described["reducers"].as_array().into_iter().flatten() {
        let name = reducer["name"].as_str().unwrap_or_default();
        paths.insert(format!("/v1/call/{name}"), reducer_path(name, reducer, &mut components));
    }
    for (path, item) in fixed_paths() {
        paths.insert(path.to_owned(), item);
    }
    components.0.extend(fixed_schemas());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Abide",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A durable session engine for AI agents. Every call is one event in an \
                append-only log; every query can be subscribed to.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components.0,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "problem": {
                    "description": "A refusal; nothing was written.",
                    "content": {"application/problem+json": {"schema": schema_ref("problem")}},
                },
            },
        },
    })
}

/// The schemas by name.
#[derive(Default)]
struct Components(Map<String, JsonValue>);

impl Components {
    /// Adds a schema with its definitions.
    fn add(&mut self, name: String, mut schema: JsonValue) -> JsonValue {
        let lifted = schema.as_object_mut().and_then(|schema| {
            schema.remove("$schema");
            schema.remove("$defs")
        });
        let mut renamed = Vec::new();
        if let Some(JsonValue::Object(definitions)) = lifted {
            for (definition, body) in definitions {
                renamed.push((definition.clone(), self.place(&name, definition, &body), body));
            }
        }
        let targets: Vec<(String, String)> =
            renamed.iter().map(|(from, to, _)| (from.clone(), to.clone())).collect();
        for (_, to, mut body) in renamed {
            redirect(&mut body, &targets);
            self.0.insert(to, body);
        }
        redirect(&mut schema, &targets);
        let reference = schema_ref(&name);
        self.0.insert(name, schema);
        reference
    }

    /// The name for a definition: its own, unless another schema already means something else by it.
    fn place(&self, owner: &str, definition: String, body: &JsonValue) -> String {
        let mut redirected = body.clone();
        let here = |name: &str| (name.to_owned(), name.to_owned());
        let mut names = Vec::new();
        references(body, &mut names);
        let targets: Vec<_> = names.iter().map(|name| here(name)).collect();
        redirect(&mut redirected, &targets);
        match self.0.get(&definition) {
            Some(other) if *other != redirected => format!("{owner}_{definition}"),
            _ => definition,
        }
    }
}

const DEFINITIONS: &str = "#/$defs/";

/// The definitions that a schema refers to.
fn references(schema: &JsonValue, names: &mut Vec<String>) {
    match schema {
        JsonValue::Object(object) => {
            if let Some(name) = object.get("$ref").and_then(JsonValue::as_str) {
                names.extend(name.strip_prefix(DEFINITIONS).map(str::to_owned));
            }
            object.values().for_each(|value| references(value, names));
        }
        JsonValue::Array(items) => items.iter().for_each(|item| references(item, names)),
        _ => {}
    }
}

/// Points references to where the definitions are now.
fn redirect(schema: &mut JsonValue, targets: &[(String, String)]) {
    match schema {
        JsonValue::Object(object) => {
            if let Some(JsonValue::String(reference)) = object.get_mut("$ref")
                && let Some(name) = reference.strip_prefix(DEFINITIONS)
                && let Some((_, to)) = targets.iter().find(|(from, _)| from == name)
            {
                *reference = format!("#/components/schemas/{to}");
            }
            object.values_mut().for_each(|value| redirect(value, targets));
        }
        JsonValue::Array(items) => items.iter_mut().for_each(|item| redirect(item, targets)),
        _ => {}
    }
}

fn schema_ref(name: &str) -> JsonValue {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn reducer_path(name: &str, reducer: &JsonValue, components: &mut Components) -> JsonValue {
    let arguments = components.add(format!("{name}_arguments"), reducer["arguments"].clone());
    let result = components.add(format!("{name}_result"), reducer["result"].clone());
    let required = reducer["arguments"]["required"].as_array().is_some_and(|all| !all.is_empty());
    let answer = json!({
        "type": "object",
        "required": ["seq", "result", "duplicate"],
        "properties": {
            "seq": schema_ref("seq"),
            "result": result,
            "duplicate": {"type": "boolean", "description": "An earlier call had already done it."},
        },
    });
    json!({"post": {
        "operationId": name,
        "tags": ["reducers"],
        "description": reducer["description"],
        "parameters": [idempotency_key()],
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": arguments}},
        },
        "responses": answers("It is done, and on the disk.", "application/json", answer),
    }})
}

fn idempotency_key() -> JsonValue {
    json!({
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Makes a retry safe: the same key with the same arguments is answered from \
            the first call.",
        "schema": {"type": "string", "maxLength": abide_schema::limits::NAME_BYTES},
    })
}

fn answers(meaning: &str, kind: &str, schema: JsonValue) -> JsonValue {
    json!({
        "200": {"description": meaning, "content": {kind: {"schema": schema}}},
        "default": {"$ref": "#/components/responses/problem"},
    })
}

fn post(id: &str, meaning: &str, body: &str, answer: &str) -> JsonValue {
    let mut operation = json!({
        "operationId": id,
        "tags": ["engine"],
        "description": meaning,
        "requestBody": {
            "required": true,
            "content": {"application/json": {"schema": schema_ref(body)}},
        },
        "responses": answers("Done.", "application/json", schema_ref(answer)),
    });
    if id == "batch" {
        operation["parameters"] = json!([idempotency_key()]);
    }
    json!({"post": operation})
}

fn get(id: &str, meaning: &str, kind: &str) -> JsonValue {
    let schema = if kind == "application/json" {
        json!({"type": "object"})
    } else {
        json!({"type": "string"})
    };
    json!({"get": {
        "operationId": id,
        "tags": ["server"],
        "description": meaning,
        "responses": answers(meaning, kind, schema),
    }})
}

/// The routes that are there whatever the reducers.
fn fixed_paths() -> [(&'static str, JsonValue); 10] {
    let json = "application/json";
    [
        (
            "/v1/batch",
            post("batch", "Runs several reducers in one transaction.", "batch", "batched"),
        ),
        ("/v1/sql", post("sql", "Runs one read-only statement.", "query", "rows")),
        ("/v1/subscribe", subscribe()),
        ("/v1/ws", websocket()),
        ("/v1/schema", get("schema", "Tables, columns and reducers.", json)),
        ("/openapi.json", get("openapi", "This document.", json)),
        ("/health", get("health", "The process is up.", json)),
        ("/ready", get("ready", "Calls are taken.", json)),
        ("/metrics", get("metrics", "Metrics for Prometheus.", "text/plain")),
        ("/", get("page", "A page for people.", "text/html")),
    ]
}

fn subscribe() -> JsonValue {
    let parameter = |name: &str, place: &str, required: bool, meaning: &str| {
        let kind = if name == "from" || place == "header" { "integer" } else { "string" };
        json!({
            "name": name, "in": place, "required": required, "description": meaning,
            "schema": {"type": kind},
        })
    };
    json!({"get": {
        "operationId": "subscribe",
        "tags": ["engine"],
        "description": "A live query as server-sent events: snapshot, delta, progress, error. The id \
            of an event is the seq to resume from.",
        "parameters": [
            parameter("sql", "query", true, "One SELECT."),
            parameter("params", "query", false, "Its parameters, as a JSON object."),
            parameter("from", "query", false, "Only what changed since this seq."),
            parameter("Last-Event-ID", "header", false, "As from, and before it."),
        ],
        "responses": answers("The events.", "text/event-stream", json!({"type": "string"})),
    }})
}

fn websocket() -> JsonValue {
    json!({"get": {
        "operationId": "websocket",
        "tags": ["engine"],
        "description": "The WebSocket protocol abide.v1: calls, queries and live queries over one \
            connection, one JSON object a message.",
        "responses": {
            "101": {"description": "The protocol is abide.v1 from here on."},
            "default": {"$ref": "#/components/responses/problem"},
        },
    }})
}

/// What the routes above take and give.
fn fixed_schemas() -> Map<String, JsonValue> {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let object = |properties: JsonValue, required: &[&str]| json!({"type": "object", "properties": properties, "required": required});
    let seq = || schema_ref("seq");
    let any = || json!(true);
    let list = |of: JsonValue| json!({"type": "array", "items": of});
    let text = || json!({"type": "string"});
    let map = || json!({"type": "object"});
    let called = object(json!({"reducer": text(), "args": map()}), &["reducer"]);
    let done = object(json!({"seq": seq(), "result": any()}), &["seq", "result"]);
    let schemas = json!({
        "seq": {
            "type": "integer", "minimum": 0,
            "description": "A position in the event log: 1 for the first event, dense.",
        },
        "batch": object(json!({"calls": list(called)}), &["calls"]),
        "batched": object(
            json!({"seq": seq(), "results": list(done), "duplicate": {"type": "boolean"}}),
            &["seq", "results", "duplicate"],
        ),
        "query": object(json!({"sql": text(), "params": map(), "as_of": seq()}), &["sql"]),
        "rows": object(
            json!({"seq": seq(), "columns": list(text()), "rows": list(list(any()))}),
            &["seq", "columns", "rows"],
        ),
        "problem": object(
            json!({
                "type": text(), "title": text(), "status": {"type": "integer"},
                "code": {"type": "string", "enum": codes},
                "detail": {"type": "string", "description": "One sentence."},
                "hint": {"type": "string", "description": "What to do."},
                "retryable": {"type": "boolean", "description": "The same may succeed later."},
            }),
            &["type", "title", "status", "code", "detail", "retryable"],
        ),
    });
    match schemas {
        JsonValue::Object(schemas) => schemas,
        _ => Map::new(),
    }
}
