//! `/agents` and `/capabilities`: the agent registry over REST. The engine decides who may read and register, as for
//! any other call; the server's [`AgentRegistry`](crate::AgentRegistry) checks definitions.

use abide_engine::{Engine, QueryResult, sqlite_version};
use abide_schema::reducer::Caller;
use abide_schema::wire::{BatchCall, SUBPROTOCOL};
use abide_schema::{Code, Refusal, Value};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::{ETAG, IF_MATCH, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue, json};

use super::response::{committed_value, counted_value, json as as_json};
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::problem::Problem;
use crate::query_string::invalid_query_string;
use crate::routes::rows::deny_hidden;
use crate::single::idempotency_key;

/// Number of characters of a prompt that are shown.
const PROMPT_CHARS: usize = 500;

/// An example of a body.
const EXAMPLE_BODY: &str =
    r#"{"name": "clerk", "system_prompt": "…", "tools": ["…"]}, as docs/agents.md says"#;

/// The columns that [`agent_to_json`] reads, in its order. The definition follows them.
const COLUMNS: &str = "a.name, a.revision, a.mode, a.description, a.hidden, a.native, a.retired_at";

/// The agents with their newest revisions.
const AGENTS: &str = "agents a \
    LEFT JOIN agent_revisions r ON r.agent = a.name AND r.revision = a.revision";

/// Which agents a list has.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Those that can own a session.
    Primaries,
    /// Those that can get tasks.
    Subagents,
}

/// The filter of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    kind: Option<Kind>,
}

/// Lists the agents that can run or get tasks, except hidden ones.
pub(super) async fn list(
    State(app): State<AppState>,
    by: CallerExtension,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(ListQuery { kind }) = query.map_err(|why| {
        let hint = "omit it, or send ?kind=primaries or ?kind=subagents";
        invalid_query_string(Code::BadArguments, &why).hint(hint)
    })?;
    // An agent of the mode `all` is of both kinds.
    let excluded_mode = match kind {
        Some(Kind::Primaries) => "subagent",
        Some(Kind::Subagents) => "primary",
        None => "",
    };
    let condition = "a.hidden = 0 AND a.retired_at IS NULL AND a.mode <> :excluded_mode";
    let params = Map::from_iter([("excluded_mode".to_owned(), json!(excluded_mode))]);
    let answer = query_agents(&app.engine, &by, condition, &params).await?;
    let list = move || {
        let agents: Vec<JsonValue> = answer.rows.iter().map(|row| agent_to_json(row)).collect();
        json!({"seq": answer.seq, "agents": agents})
    };
    Ok(counted_value(&app, &by, list).await?)
}

/// Returns an agent, hidden or not.
pub(super) async fn get(
    State(app): State<AppState>,
    by: CallerExtension,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let name = read_name(name)?;
    let (_, agent) = find_agent(&app.engine, &by, &name).await?;
    let revision = agent["revision"].clone();
    Ok(with_tag(counted_value(&app, &by, move || agent).await?, &revision))
}

/// Registers a new agent, or a retired one again.
pub(super) async fn create(
    State(app): State<AppState>,
    by: CallerExtension,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let definition = read_object(&app, &by, &content).await?;
    let key = idempotency_key(&headers)?;
    let name = definition.get("name").and_then(JsonValue::as_str).unwrap_or_default();
    let expected = match find_agent(&app.engine, &by, name).await {
        Ok((_, agent)) => {
            let newest = agent["revision"].as_i64().unwrap_or_default();
            let is_retired = !agent["retired_at"].is_null();
            ExpectedRevision { revision: if is_retired { newest } else { 0 }, newest }
        }
        Err(refusal) if refusal.code == Code::NotFound => {
            ExpectedRevision { revision: 0, newest: 0 }
        }
        Err(refusal) => return Err(refusal.into()),
    };
    let name = register(&app, &by, definition.into(), expected, key).await?;
    let (_, agent) = find_agent(&app.engine, &by, &name).await?;
    let mut response = committed_agent(&app, &by, agent).await?;
    *response.status_mut() = StatusCode::CREATED;
    if let Ok(place) = format!("/agents/{name}").parse() {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// Changes an agent by a JSON merge patch (RFC 7396). With `If-Match` only if that is its newest
/// revision.
pub(super) async fn change(
    State(app): State<AppState>,
    by: CallerExtension,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let name = read_name(name)?;
    let patch = read_object(&app, &by, &content).await?;
    let key = idempotency_key(&headers)?;
    if patch.get("name").is_some_and(|other| other.as_str() != Some(name.as_str())) {
        let detail = format!("agent {name} cannot be renamed");
        return Err(Refusal::new(Code::BadArguments, detail)
            .hint("POST /agents creates one")
            .into());
    }
    let (mut definition, agent) = find_agent(&app.engine, &by, &name).await?;
    if definition.is_null() {
        let detail = format!("a policy hides the definition of agent {name}");
        return Err(Refusal::new(Code::Denied, detail)
            .hint("send the whole definition: POST /agents")
            .into());
    }
    let newest = agent["revision"].as_i64().unwrap_or_default();
    let revision = if_match(&headers)?.unwrap_or(newest);
    let expected = ExpectedRevision { revision, newest };
    merge_patch(&mut definition, patch.into());
    register(&app, &by, definition, expected, key).await?;
    let (_, agent) = find_agent(&app.engine, &by, &name).await?;
    Ok(committed_agent(&app, &by, agent).await?)
}

/// Retires an agent with its inline agents: they start no more runs, and active runs continue.
pub(super) async fn retire(
    State(app): State<AppState>,
    by: CallerExtension,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let name = read_name(name)?;
    let key = idempotency_key(&headers)?;
    find_agent(&app.engine, &by, &name).await?;
    let mut names = find_inline_agents(&app.engine, &by, &name).await?;
    names.push(name.clone());
    let calls: Vec<BatchCall> = names.iter().map(|name| retire_call(name)).collect();
    app.engine.batch(&by, &calls, key).await.map_err(Refusal::outside_batch)?;
    let (_, agent) = find_agent(&app.engine, &by, &name).await?;
    Ok(committed_agent(&app, &by, agent).await?)
}

fn retire_call(name: &str) -> BatchCall {
    BatchCall { reducer: "retire_agent".to_owned(), args: json!({"name": name}) }
}

/// Returns the inline agents that an agent has or had: their names begin with its name. A retry of a request finds the
/// same ones, so that it is the same call.
async fn find_inline_agents(
    engine: &Engine,
    by: &Caller,
    name: &str,
) -> Result<Vec<String>, Refusal> {
    // `0` follows `/`, so that the index of the names is used.
    let sql = "SELECT name FROM agents WHERE name >= :name || '/' AND name < :name || '0' \
               ORDER BY name";
    let params = Map::from_iter([("name".to_owned(), json!(name))]);
    let found = engine.query(by, sql, &params, None).await?;
    let names = found.rows.iter().filter_map(|row| match row.first() {
        Some(Value::Text(name)) => Some(name.to_string()),
        _ => None,
    });
    Ok(names.collect())
}

/// Returns the capabilities of this server.
pub(super) async fn capabilities(State(app): State<AppState>, by: CallerExtension) -> Response {
    let agents = app.agents.is_some();
    let mut stream_protocols = vec!["sse", SUBPROTOCOL];
    if agents {
        stream_protocols.extend(["mcp", "a2a", "responses", "ai-sdk", "ag-ui"]);
    }
    let mut reply = json!({
        "packages": {"abide": env!("CARGO_PKG_VERSION"), "sqlite": sqlite_version()},
        "stream_protocols": stream_protocols,
        // Without an agent host, no programs run.
        "sandbox_backends": [],
        "features": {"agents": agents, "mcp": agents, "a2a": agents, "responses": agents,
            "ai_sdk": agents, "ag_ui": agents, "artifacts": false},
        "middleware": [],
        "tools": [],
        "scope": {"keys": "any", "yours": by.scope()},
    });
    if let Some(agents) = &app.agents {
        merge_patch(&mut reply, agents.capabilities());
    }
    as_json(reply.to_string())
}

/// Parses the object of a body. Its turn ends here: the rest waits for files and for the disk.
async fn read_object(
    app: &AppState,
    by: &Caller,
    content: &RequestBody,
) -> Result<Map<String, JsonValue>, Refusal> {
    let _turn = app.admit_call(by, content.bytes()).await?;
    content.envelope(EXAMPLE_BODY)
}

/// The revision that a registration replaces.
#[derive(Clone, Copy)]
struct ExpectedRevision {
    /// It is 0 for a new agent.
    revision: i64,
    /// The newest revision: an earlier attempt of the same request may have made it.
    newest: i64,
}

/// Checks and registers a definition; returns its name.
async fn register(
    app: &AppState,
    by: &Caller,
    definition: JsonValue,
    expected: ExpectedRevision,
    key: Option<&str>,
) -> Result<String, Refusal> {
    let Some(agents) = app.agents.clone() else {
        let detail = "this server accepts no agent definitions";
        return Err(Refusal::new(Code::NotFound, detail).hint(NO_AGENTS));
    };
    refuse_without_permission(&app.engine, by, &definition).await?;
    let mut registrations = if by.scope().is_empty() {
        // Checking reads prompts, and files of prompts and skills.
        let checked = tokio::task::spawn_blocking(move || agents.registrations(definition)).await;
        checked.map_err(|why| {
            Refusal::new(Code::Internal, format!("the definition could not be checked: {why}"))
        })??
    } else {
        vec![json!({"name": definition["name"], "definition": definition})]
    };
    let Some(own) = registrations.last_mut() else {
        return Err(Refusal::new(Code::Internal, "the definition contains no agent"));
    };
    own["expected_revision"] = json!(expected.revision);
    let name = own["name"].as_str().unwrap_or_default().to_owned();
    // Inline agents that the definition no longer has.
    let mut gone = find_inline_agents(&app.engine, by, &name).await?;
    gone.retain(|old| registrations.iter().all(|new| new["name"] != **old));
    let own = registrations.len() - 1;
    let calls = registrations
        .into_iter()
        .map(|args| BatchCall { reducer: "register_agent".to_owned(), args });
    let mut calls: Vec<BatchCall> =
        calls.chain(gone.iter().map(|name| retire_call(name))).collect();
    let mut registered = app.engine.batch(by, &calls, key).await;
    if registered.as_ref().is_err_and(|refusal| refusal.code == Code::RequestIdConflict) {
        // A retry of the request that has made the newest revision: it replaced the revision before.
        calls[own].args["expected_revision"] = json!(expected.newest - 1);
        registered = app.engine.batch(by, &calls, key).await;
    }
    registered.map_err(Refusal::outside_batch)?;
    Ok(name)
}

/// Refuses a caller that may not register agents, before the definition is checked: a check takes time and memory, and
/// its result shows which prompts and tools exist.
async fn refuse_without_permission(
    engine: &Engine,
    by: &Caller,
    definition: &JsonValue,
) -> Result<(), Refusal> {
    if by.is_unrestricted() {
        return Ok(());
    }
    // No agent has this revision, so nothing is registered: a caller with the permission gets a conflict.
    let args = json!({"name": definition["name"], "definition": {}, "expected_revision": -1});
    match engine.call(by, "register_agent", &args, None).await {
        Err(refusal) if refusal.code == Code::Denied => Err(refusal),
        _ => Ok(()),
    }
}

const NO_AGENTS: &str = "start it with `abide serve --agents FOLDER`";

/// Returns the agents that a condition selects, by name: rows of [`COLUMNS`] and the definition, which is NULL if a
/// policy hides it from the caller.
async fn query_agents(
    engine: &Engine,
    by: &Caller,
    condition: &str,
    params: &Map<String, JsonValue>,
) -> Result<QueryResult, Refusal> {
    let sql = select_agents("r.definition", condition);
    match engine.query(by, &sql, params, None).await {
        // A statement that names a hidden column is an error.
        Err(refusal) if refusal.code == Code::BadSql => {
            let sql = select_agents("NULL", condition);
            engine.query(by, &sql, params, None).await.map_err(deny_hidden)
        }
        answer => answer,
    }
}

fn select_agents(definition: &str, condition: &str) -> String {
    format!("SELECT {COLUMNS}, {definition} FROM {AGENTS} WHERE {condition} ORDER BY a.name")
}

/// Returns an agent's definition, and its public form.
async fn find_agent(
    engine: &Engine,
    by: &Caller,
    name: &str,
) -> Result<(JsonValue, JsonValue), Refusal> {
    let params = Map::from_iter([("name".to_owned(), json!(name))]);
    let QueryResult { rows, .. } = query_agents(engine, by, "a.name = :name", &params).await?;
    let row = rows.first().ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no agent {name}"))
            .hint("GET /agents lists them")
    })?;
    let mut definition = read_definition(row);
    // Added again with every registration.
    if let Some(definition) = definition.as_object_mut() {
        definition.remove("instructions");
    }
    Ok((definition, agent_to_json(row)))
}

fn read_definition(row: &[Value]) -> JsonValue {
    match row.last() {
        Some(Value::Text(text)) => serde_json::from_str(text).unwrap_or_default(),
        _ => JsonValue::Null,
    }
}

/// Returns the public form of an agent, from a row of [`query_agents`].
fn agent_to_json(row: &[Value]) -> JsonValue {
    let cell = |at: usize| row.get(at).map_or(JsonValue::Null, Value::to_json);
    let definition = read_definition(row);
    let config = &definition["config"];
    json!({
        "name": cell(0), "revision": cell(1), "mode": cell(2), "description": cell(3),
        "hidden": cell(4) == 1, "native": cell(5) == 1, "retired_at": cell(6),
        "a2a_exposed": definition["a2a_exposed"].as_bool().unwrap_or(false),
        "mcp_exposed": definition["mcp_exposed"].as_bool().unwrap_or(false),
        "provider": config["provider"], "model": config["model"],
        "temperature": config["temperature"], "response_format": definition["response_format"],
        "interrupt_on": unless_null(&definition["interrupt_on"], json!({})),
        "tools": unless_null(&definition["tools"], json!([])),
        "skills": unless_null(&definition["skills"], json!([])),
        "system_prompt": prompt_excerpt(&definition),
    })
}

fn unless_null(value: &JsonValue, default: JsonValue) -> JsonValue {
    if value.is_null() { default } else { value.clone() }
}

/// Returns the beginning of a prompt: inline, or as read from its file.
fn prompt_excerpt(definition: &JsonValue) -> JsonValue {
    let text = match &definition["system_prompt"] {
        JsonValue::Null => return JsonValue::Null,
        JsonValue::String(text) => text.as_str(),
        _ => definition["instructions"].as_str().unwrap_or_default(),
    };
    json!(text.chars().take(PROMPT_CHARS).collect::<String>())
}

/// Merges one JSON value into another: null removes a member (RFC 7396).
fn merge_patch(into: &mut JsonValue, patch: JsonValue) {
    let JsonValue::Object(patch) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let Some(into) = into.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            into.remove(&name);
        } else {
            merge_patch(into.entry(name).or_insert(JsonValue::Null), value);
        }
    }
}

fn read_name(name: Result<Path<String>, PathRejection>) -> Result<String, Refusal> {
    let Path(name) = name.map_err(|_| {
        Refusal::new(Code::NotFound, "the agent's name is not UTF-8").hint("GET /agents")
    })?;
    Ok(name)
}

/// Returns the revision that a change applies to.
fn if_match(headers: &HeaderMap) -> Result<Option<i64>, Refusal> {
    let Some(tag) = headers.get(IF_MATCH) else { return Ok(None) };
    let number = tag.to_str().ok().and_then(|tag| tag.trim().trim_matches('"').parse().ok());
    number.map(Some).ok_or_else(|| {
        Refusal::new(Code::BadRequest, "the header If-Match is not a revision")
            .hint("send the ETag of GET /agents/{name}, or omit the header")
    })
}

/// Returns an agent that a call has changed.
async fn committed_agent(
    app: &AppState,
    by: &Caller,
    agent: JsonValue,
) -> Result<Response, Refusal> {
    let revision = agent["revision"].clone();
    Ok(with_tag(committed_value(app, by, move || agent).await?, &revision))
}

/// Adds the header ETag, which If-Match repeats.
fn with_tag(mut response: Response, revision: &JsonValue) -> Response {
    if let Ok(tag) = format!("\"{revision}\"").parse() {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_merged_as_in_rfc_7396() {
        // The cases of RFC 7396, appendix A, that are objects.
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ];
        for (mut into, patch, expected) in cases {
            merge_patch(&mut into, patch);
            assert_eq!(into, expected);
        }
    }

    #[test]
    fn prompts_are_truncated_to_500_characters() {
        let long = "é".repeat(501);
        let cut = prompt_excerpt(&json!({"system_prompt": long}));
        assert_eq!(cut.as_str().map(|cut| cut.chars().count()), Some(500));
        assert_eq!(prompt_excerpt(&json!({})), JsonValue::Null);
        let read = json!({"system_prompt": {"file": "x"}, "instructions": "Be kind."});
        assert_eq!(prompt_excerpt(&read), "Be kind.");
    }
}
