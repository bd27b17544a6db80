//! The cards of agents with `a2a_exposed`.

use abide_schema::{Caller, Code, Refusal, Value, canonical};
use abide_server::port::{
    CallerExtension, Problem, json_response as as_json, path, rows::deny_hidden,
};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use super::binding::VERSION;
use super::legacy;
use crate::signing_key::SigningKey;
use crate::start::{first_texts, params};
use crate::state::ProtocolState;

/// The exposed agents that can start runs. Their definitions are read without the restrictions of the caller, who may
/// not see them; of these only the flag leaves.
const EXPOSED: &str = "SELECT a.name FROM agents a \
    JOIN agent_revisions r ON r.agent = a.name AND r.revision = a.revision \
    WHERE a.hidden = 0 AND a.retired_at IS NULL AND a.mode <> 'subagent' \
    AND r.definition ->> '$.a2a_exposed' = 1";

/// The agents that a caller can see.
const VISIBLE: &str = "SELECT name, description, revision FROM agents WHERE hidden = 0";

/// Refuses an agent that is not exposed, or not for this caller to see.
pub(super) async fn check_exposed(
    app: &ProtocolState,
    by: &Caller,
    agent: &str,
) -> Result<(), Refusal> {
    find(app, by, agent).await.map(drop)
}

/// Returns the row of an exposed agent: name, description, revision.
async fn find(app: &ProtocolState, by: &Caller, agent: &str) -> Result<JsonValue, Refusal> {
    let sql = format!("{EXPOSED} AND a.name = :agent");
    let params = params([("agent", json!(agent))]);
    let exposed = first_texts(&app.engine, &Caller::local(), &sql, params.clone()).await?;
    let sql = format!("{VISIBLE} AND name = :agent");
    let visible = app.engine.query(by, &sql, &params, None).await.map_err(deny_hidden)?;
    let row = visible.rows.first().filter(|_| !exposed.is_empty());
    Ok(row
        .ok_or_else(|| {
            Refusal::new(Code::NotFound, format!("there is no agent {agent} for A2A"))
                .hint("an agent needs `a2a_exposed: true` in its definition")
        })?
        .iter()
        .map(Value::to_json)
        .collect())
}

/// Returns the only exposed agent that the caller can see: a client of gRPC need not name it.
pub(super) async fn find_only_agent(app: &ProtocolState, by: &Caller) -> Result<String, Refusal> {
    let exposed = first_texts(&app.engine, &Caller::local(), EXPOSED, Map::new()).await?;
    let visible = first_texts(&app.engine, by, VISIBLE, Map::new()).await?;
    let mut names = visible.into_iter().filter(|name| exposed.contains(name));
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name),
        (None, _) => Err(Refusal::new(Code::NotFound, "there is no agent for A2A")),
        (Some(_), Some(_)) => {
            let detail = "tenant does not name an agent";
            Err(Refusal::new(Code::BadArguments, detail).hint("take it from the agent's card"))
        }
    }
}

/// `GET /a2a/{agent}/.well-known/agent-card.json`.
pub(crate) async fn card(
    State(app): State<ProtocolState>,
    by: CallerExtension,
    agent: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let card = find_card(&app, &by, agent, &app.port.base_url(&uri, &headers)).await?;
    Ok(cacheable_response(
        &headers,
        sign_card(&app, card, &app.port.base_url(&uri, &headers)).to_string(),
    ))
}

/// `GET /a2a/{agent}/v0.3/.well-known/agent-card.json`: the card in the form of version 0.3.
pub(crate) async fn legacy_card(
    State(app): State<ProtocolState>,
    by: CallerExtension,
    agent: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let card = find_card(&app, &by, agent, &app.port.base_url(&uri, &headers)).await?;
    Ok(cacheable_response(&headers, legacy::card_to_legacy(&card).to_string()))
}

async fn find_card(
    app: &ProtocolState,
    by: &Caller,
    agent: Result<Path<String>, PathRejection>,
    base: &str,
) -> Result<JsonValue, Problem> {
    let row = find(app, by, &path(agent, "name of the agent")?).await?;
    let is_secured = app.port.requires_credentials().await?;
    Ok(agent_card(app, &row, base, is_secured))
}

/// `GET /.well-known/jwks.json`: the key that verifies signatures of cards and push notifications.
pub(crate) async fn signing_keys(State(app): State<ProtocolState>, headers: HeaderMap) -> Response {
    let keys = app.signing_key.as_ref().map(SigningKey::public_keys);
    cacheable_response(&headers, keys.unwrap_or_else(|| json!({"keys": []})).to_string())
}

/// Returns the card with what only authenticated clients learn: the tools of the agent that the caller can see, as
/// skills.
pub(super) async fn extended_card(
    app: &ProtocolState,
    by: &Caller,
    agent: &str,
    base: &str,
) -> Result<JsonValue, Refusal> {
    let row = find(app, by, agent).await?;
    let is_secured = app.port.requires_credentials().await?;
    let mut card = agent_card(app, &row, base, is_secured);
    let sql = "SELECT t.name, t.description FROM agent_revisions r \
               JOIN json_each(r.definition, '$.tools') AS named \
               JOIN tools t ON t.name = named.value \
               WHERE r.agent = :agent AND r.revision = :revision ORDER BY t.name LIMIT 100";
    let params = params([("agent", json!(agent)), ("revision", row[2].clone())]);
    let tools = app.engine.query(by, sql, &params, None).await.map_err(deny_hidden)?;
    if let Some(skills) = card["skills"].as_array_mut() {
        skills.extend(tools.rows.iter().filter_map(|row| {
            let Some(Value::Text(name)) = row.first() else { return None };
            let description = match row.get(1) {
                Some(Value::Text(text)) => text.to_string(),
                _ => format!("The tool {name}."),
            };
            Some(json!({"id": format!("{agent}/{name}"), "name": &**name,
                "description": description, "tags": ["tool"]}))
        }));
    }
    Ok(sign_card(app, card, base))
}

/// Returns the card with a signature, if the server has a key.
fn sign_card(app: &ProtocolState, mut card: JsonValue, base: &str) -> JsonValue {
    if let Some(key) = &app.signing_key {
        let keys = format!("{base}/.well-known/jwks.json");
        let (protected, signature) = key.sign_detached(&canonical::to_text(&card), &keys);
        card["signatures"] = json!([{"protected": protected, "signature": signature}]);
    }
    card
}

/// `GET /.well-known/agent-card.json`: the cards of all agents that the caller can see.
pub(crate) async fn list(
    State(app): State<ProtocolState>,
    by: CallerExtension,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let exposed = first_texts(&app.engine, &Caller::local(), EXPOSED, Map::new()).await?;
    let sql = format!("{VISIBLE} ORDER BY name");
    let visible = app.engine.query(&by, &sql, &Map::new(), None).await.map_err(deny_hidden)?;
    let is_secured = app.port.requires_credentials().await?;
    let base = app.port.base_url(&uri, &headers);
    let rows = visible.rows.iter().map(|row| row.iter().map(Value::to_json));
    let rows = rows.map(|cells| cells.collect::<JsonValue>());
    let rows = rows.filter(|row| exposed.iter().any(|name| row[0] == name.as_str()));
    let cards = rows.map(|row| sign_card(&app, agent_card(&app, &row, &base, is_secured), &base));
    let cards: Vec<JsonValue> = cards.collect();
    Ok(cacheable_response(&headers, json!({"agents": cards}).to_string()))
}

fn agent_card(app: &ProtocolState, row: &JsonValue, base: &str, is_secured: bool) -> JsonValue {
    let name = row[0].as_str().unwrap_or_default();
    let description = row[1].as_str().unwrap_or("An agent on Abide.");
    let url = format!("{base}/a2a/{}", utf8_percent_encode(name, NON_ALPHANUMERIC));
    let interface =
        |binding: &str| json!({"url": url, "protocolBinding": binding, "protocolVersion": VERSION});
    // All agents have the same service, so the client names the agent in each request.
    let authority = base.split_once("://").map_or(base, |(_, authority)| authority);
    let grpc = json!({"url": authority, "protocolBinding": "GRPC",
        "protocolVersion": VERSION, "tenant": name});
    let legacy =
        |binding: &str| json!({"url": url, "protocolBinding": binding, "protocolVersion": "0.3"});
    let mut card = json!({
        "name": name,
        "description": description,
        "version": row[2].to_string(),
        "supportedInterfaces": [interface("JSONRPC"), interface("HTTP+JSON"), grpc,
            legacy("JSONRPC"), legacy("HTTP+JSON")],
        "capabilities": {"streaming": true, "pushNotifications": app.webhooks.is_some(),
            "extendedAgentCard": true},
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": [{"id": name, "name": name, "description": description, "tags": ["agent"]}],
    });
    if is_secured {
        card["securitySchemes"] =
            json!({"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}});
        // An empty list is omitted in the signed form, so also here.
        card["securityRequirements"] = json!([{"schemes": {"bearer": {}}}]);
    }
    card
}

/// Returns a response that a client may keep for a minute, and then only confirms. Another caller gets its own.
fn cacheable_response(headers: &HeaderMap, text: String) -> Response {
    let tag = format!("\"{}\"", hex::encode(&Sha256::digest(text.as_bytes())[..16]));
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|list| list.split(',')).any(|known| known.trim() == tag);
    let cache = [(ETAG, tag), (CACHE_CONTROL, "private, max-age=60".to_owned())];
    if is_known {
        (StatusCode::NOT_MODIFIED, cache).into_response()
    } else {
        (cache, as_json(text)).into_response()
    }
}
