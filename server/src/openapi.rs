//! `GET /openapi.json`: OpenAPI 3.1, generated from the engine's description.
//!
//! Each reducer is a path. Its schemas are in `components` with their definitions moved to the top level,
//! because a `$ref` to `#/$defs/…` would refer to the root of this document.

mod agents;
pub(crate) mod elements;
mod prompts;
mod sessions;

use abide_schema::Code;
use serde_json::{Map, Value as JsonValue, json};

use crate::auth::protected_resource;
use elements::{PLACE, answers, described_text, idempotency_key, list_of, object, schema_ref};

/// Returns the document, from the engine's description and the paths of the protocols.
pub(crate) fn document(
    described: &JsonValue,
    paths_of_protocols: Map<String, JsonValue>,
) -> JsonValue {
    let mut components = Components(fixed_schemas());
    let mut paths = paths_of_protocols;
    for reducer in described["reducers"].as_array().into_iter().flatten() {
        let name = reducer["name"].as_str().unwrap_or_default();
        paths.insert(format!("/v1/call/{name}"), reducer_path(name, reducer, &mut components));
    }
    let of_agents = agents::paths()
        .into_iter()
        .chain(agents::contract_paths())
        .chain(prompts::paths())
        .chain(sessions::paths());
    for (path, item) in fixed_paths().into_iter().chain(of_agents) {
        paths.insert(path.to_owned(), item);
    }
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
            "securitySchemes": {"bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token from `abide token create`, or a JSON Web Token from \
                    the configured issuer. Not required while neither exists.",
            }},
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
struct Components(Map<String, JsonValue>);

impl Components {
    /// Adds a schema and its definitions, and returns the reference to it. A definition keeps its name
    /// unless another definition has it.
    fn add(&mut self, name: String, mut schema: JsonValue) -> JsonValue {
        let mut definitions = Map::new();
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("$schema");
            schema.remove("title"); // Always `Arguments`.
            if let Some(JsonValue::Object(own)) = schema.remove("$defs") {
                definitions = own;
            }
        }
        let lifted = |reference: &str| {
            let definition = reference.strip_prefix("#/$defs/")?;
            Some(format!("{PLACE}{definition}"))
        };
        redirect(&mut schema, &lifted);
        definitions.values_mut().for_each(|definition| redirect(definition, &lifted));

        let taken: Vec<String> = definitions
            .iter()
            .filter(|&(definition, body)| self.0.get(definition).is_some_and(|other| other != body))
            .map(|(definition, _)| definition.clone())
            .collect();
        let renamed = |reference: &str| {
            let definition = reference.strip_prefix(PLACE)?;
            taken
                .iter()
                .any(|taken| taken == definition)
                .then(|| format!("{PLACE}{name}_{definition}"))
        };
        redirect(&mut schema, &renamed);
        for (definition, mut body) in definitions {
            redirect(&mut body, &renamed);
            let own = if taken.contains(&definition) {
                format!("{name}_{definition}")
            } else {
                definition
            };
            self.0.insert(own, body);
        }
        let reference = schema_ref(&name);
        self.0.insert(name, schema);
        reference
    }
}

/// Updates references to moved definitions.
fn redirect(schema: &mut JsonValue, moved: &impl Fn(&str) -> Option<String>) {
    match schema {
        JsonValue::Object(object) => {
            if let Some(JsonValue::String(reference)) = object.get_mut("$ref")
                && let Some(there) = moved(reference)
            {
                *reference = there;
            }
            object.values_mut().for_each(|value| redirect(value, moved));
        }
        JsonValue::Array(items) => items.iter_mut().for_each(|item| redirect(item, moved)),
        _ => {}
    }
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
            "duplicate": {"type": "boolean", "description":
                "An earlier call with the same request id already took effect."},
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
        "responses": answers("The call has completed and is durable.", "application/json", answer),
    }})
}

fn post_path(id: &str, meaning: &str, body: &str, answer: &str) -> JsonValue {
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

fn get_path(id: &str, meaning: &str, kind: &str) -> JsonValue {
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

/// Returns the fixed routes, independent of the reducers.
fn fixed_paths() -> [(&'static str, JsonValue); 14] {
    let json = "application/json";
    [
        (
            "/v1/batch",
            post_path("batch", "Runs several reducers in one transaction.", "batch", "batched"),
        ),
        ("/v1/sql", post_path("sql", "Runs one read-only statement.", "query", "rows")),
        (
            "/v1/explain",
            post_path(
                "explain",
                "Explains how a query would be maintained live, and at what cost.",
                "explained_query",
                "explanation",
            ),
        ),
        ("/v1/subscribe", subscribe_path()),
        ("/v1/ws", websocket_path()),
        ("/v1/schema", get_path("schema", "Tables, columns and reducers.", json)),
        ("/v1/live", get_path("live", "The live queries and their cost, for admins.", json)),
        ("/openapi.json", get_path("openapi", "This document.", json)),
        ("/health", get_path("health", "The server need not be restarted.", json)),
        ("/ready", get_path("ready", "The server accepts calls.", json)),
        ("/metrics", get_path("metrics", "Metrics for Prometheus.", "text/plain")),
        (protected_resource::PATH, resource_metadata("resource_metadata")),
        (protected_resource::PATH_OF_MCP, resource_metadata("mcp_resource_metadata")),
        ("/", get_path("page", "A page for people.", "text/html")),
    ]
}

fn resource_metadata(id: &str) -> JsonValue {
    let meaning = "Who issues tokens (RFC 9728); 404 without an issuer.";
    let schema = json!({"type": "object"});
    json!({"get": {"operationId": id, "tags": ["protocols"], "description": meaning,
        "responses": answers("Done.", "application/json", schema)}})
}

fn subscribe_path() -> JsonValue {
    json!({"get": {
        "operationId": "subscribe",
        "tags": ["engine"],
        "description": "A live query as server-sent events: snapshot, delta, progress, error. \
            The id of an event is the seq to resume from.",
        "parameters": [
            subscribe_parameter("sql", "query", true, "One SELECT."),
            subscribe_parameter("params", "query", false, "Its parameters, as a JSON object."),
            subscribe_parameter("after_seq", "query", false, "Only the changes after this seq."),
            subscribe_parameter("timeline", "query", false, "The timeline of after_seq."),
            subscribe_parameter(
                "as_of", "query", false,
                "The result as of this seq, followed by the changes since.",
            ),
            subscribe_parameter(
                "checksum", "query", false,
                "Send the result's checksum with each change.",
            ),
            subscribe_parameter(
                "explain", "query", false,
                "Send the statements that produce the deltas.",
            ),
            subscribe_parameter(
                "Last-Event-ID", "header", false,
                "The last event's id; it has priority.",
            ),
        ],
        "responses": answers("The events.", "text/event-stream", json!({"type": "string"})),
    }})
}

fn subscribe_parameter(name: &str, place: &str, required: bool, meaning: &str) -> JsonValue {
    let kind = match name {
        "after_seq" | "as_of" => "integer",
        "checksum" | "explain" => "boolean",
        _ => "string",
    };
    json!({
        "name": name, "in": place, "required": required, "description": meaning,
        "schema": {"type": kind},
    })
}

fn websocket_path() -> JsonValue {
    json!({"get": {
        "operationId": "websocket",
        "tags": ["engine"],
        "description": "The WebSocket protocol abide.v1: calls, queries and live \
            queries over one connection, one JSON object per message.",
        "responses": {
            "101": {"description": "The connection continues with the protocol abide.v1."},
            "default": {"$ref": "#/components/responses/problem"},
        },
    }})
}

/// Request and response schemas of the fixed routes.
fn fixed_schemas() -> Map<String, JsonValue> {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let seq = schema_ref("seq");
    let any = json!(true);
    let string = json!({"type": "string"});
    let map = json!({"type": "object"});
    let called = object(json!({"reducer": string, "args": map}), &["reducer"]);
    let done = object(json!({"seq": seq, "result": any}), &["seq", "result"]);
    let schemas = json!({
        "seq": {
            "type": "integer", "minimum": 0,
            "description": "A position in the event log: 1 for the first event, dense.",
        },
        "batch": object(json!({"calls": list_of(called)}), &["calls"]),
        "batched": object(
            json!({"seq": seq, "results": list_of(done), "duplicate": {"type": "boolean"}}),
            &["seq", "results", "duplicate"],
        ),
        "query": object(json!({"sql": string, "params": map, "as_of": seq}), &["sql"]),
        "rows": object(
            json!({"seq": seq, "columns": list_of(string.clone()), "rows": list_of(list_of(any))}),
            &["seq", "columns", "rows"],
        ),
        "explained_query": object(json!({"sql": string, "params": map}), &["sql"]),
        "explanation": explanation_schema(),
        "problem": object(
            json!({
                "type": string, "title": string, "status": {"type": "integer"},
                "code": {"type": "string", "enum": codes},
                "detail": {"type": "string", "description": "One sentence."},
                "hint": {"type": "string", "description": "How to fix it."},
                "retryable": {"type": "boolean",
                    "description": "The same request may succeed later."},
                "retry_after_ms": {"type": "integer", "description":
                    "The time until the next request, if a rate or quota of the caller refused this one."},
                "batch_position": {"type": "integer",
                    "description": "The position of the refused call in its batch, from 1."},
            }),
            &["type", "title", "status", "code", "detail", "retryable"],
        ),
    });
    match schemas {
        JsonValue::Object(schemas) => schemas,
        _ => Map::new(),
    }
}

/// Returns the response of `/v1/explain`.
fn explanation_schema() -> JsonValue {
    let name = json!({"type": "string"});
    let any = json!({"type": "object"});
    let plan = object(
        json!({
            "rule": described_text("The rule that produces its deltas."),
            "cost": described_text("The cost of a commit that affects it."),
            "state": described_text("The memory that it uses while it has subscribers."),
            "statements": list_of(described_text("A statement that produces its deltas.")),
        }),
        &["rule", "cost", "state"],
    );
    let scan = object(
        json!({
            "table": name, "columns": list_of(name.clone()), "statement": name,
            "part": {"type": "string", "enum": ["term", "lookup", "evaluation"]},
            "declare": described_text("The index that avoids it, as a table declares it."),
            "create": described_text("The same index as SQL."),
        }),
        &["table", "columns", "part", "statement"],
    );
    object(
        json!({
            "plan": plan,
            "routed_by": list_of(
                described_text("The equalities that a changed row must match to affect the query.")
            ),
            "scans": list_of(scan),
            "snapshot": described_text("The SELECT of the whole result."),
            "params": list_of(json!(true)),
            "columns": list_of(any.clone()), "key": list_of(name.clone()), "order": list_of(any),
            "top_n": {"type": "boolean", "description": "Deltas contain positions, not keys."},
            "refused": schema_ref("problem"),
        }),
        &["plan", "routed_by", "scans", "snapshot", "params", "columns", "key", "order"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflicting_definition_gets_another_name() {
        let schema = |kind: &str| {
            json!({
                "$schema": "x",
                "title": "Arguments",
                "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/B"}},
                "$defs": {"A": {"type": kind}, "B": {"items": {"$ref": "#/$defs/A"}}},
            })
        };
        let mut components = Components(Map::new());
        components.add("first".to_owned(), schema("string"));
        components.add("same".to_owned(), schema("string"));
        components.add("other".to_owned(), schema("integer"));
        let at = |name: &str| components.0[name].clone();
        assert_eq!(at("same")["properties"]["a"]["$ref"], "#/components/schemas/A");
        assert_eq!(at("other")["properties"]["a"]["$ref"], "#/components/schemas/other_A");
        assert_eq!(at("A")["type"], "string");
        assert_eq!(at("other_A")["type"], "integer");
        let names: Vec<&String> = components.0.keys().collect();
        assert_eq!(names, ["A", "B", "first", "other", "other_A", "same"]);
        assert_eq!(at("other").get("$defs"), None);
    }
}
