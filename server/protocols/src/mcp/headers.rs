//! The headers of a request, and the generation of the protocol that it uses.

use std::sync::Arc;

use abide_server::port::{is_loopback_host, single};
use axum::http::header::{ACCEPT, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as JsonValue, json};

use super::exchange::{LEGACY, MODERN, Modern, ProtocolGeneration};
use super::message::{HttpFailure, Request};
use super::sessions::McpSession;
use crate::mcp_handler::McpFailure;

pub(super) const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// A page of another origin must not reach the server through the browser of a user, even if its name resolves to this
/// machine (DNS rebinding).
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), HttpFailure> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let host = origin.split_once("://").map(|(_, host)| host);
    let own = headers.get(HOST).and_then(|host| host.to_str().ok());
    if host.is_some_and(|host| is_loopback_host(host) || Some(host) == own) {
        return Ok(());
    }
    let message = format!("requests from the origin {origin:?} are not accepted");
    let failure = McpFailure { code: -32600, message, data: None };
    Err(HttpFailure { status: StatusCode::FORBIDDEN, id: JsonValue::Null, failure })
}

/// Returns `true` if the client reads server-sent events.
pub(super) fn accepts_events(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("text/event-stream") || value.contains("*/*"))
}

/// Returns the value of a header.
pub(super) fn read_header<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, McpFailure> {
    single::header(headers, name).map_err(|refusal| header_mismatch(refusal.detail))
}

/// Returns a key that is the same when a client repeats a call: the header `Idempotency-Key`, or `abide/request_id` in
/// `_meta`.
pub(super) fn idempotency_key(
    request: &Request,
    headers: &HeaderMap,
) -> Result<Option<String>, McpFailure> {
    let in_header = read_header(headers, &single::IDEMPOTENCY_KEY)?;
    Ok(in_header
        .or_else(|| request.meta("abide/request_id").and_then(JsonValue::as_str))
        .map(str::to_owned))
}

fn header_mismatch(message: String) -> McpFailure {
    McpFailure { code: -32020, message, data: None }
}

/// Returns the generation of a request, after a check of its headers.
pub(super) fn read_generation(
    request: &Request,
    headers: &HeaderMap,
    session: Option<Arc<McpSession>>,
) -> Result<ProtocolGeneration, HttpFailure> {
    let refused = |failure| HttpFailure::bad_request(request.id.clone(), failure);
    let in_header = read_header(headers, &MCP_PROTOCOL_VERSION).map_err(refused)?;
    let in_meta = request.meta(META_VERSION).and_then(JsonValue::as_str);
    let is_modern = in_meta.is_some()
        || request.method == "server/discover"
        || in_header.is_some_and(|version| version >= MODERN && session.is_none());
    if is_modern && !(request.method == "initialize" && in_meta.is_none()) {
        let modern = read_modern(request, headers, in_header, in_meta).map_err(refused)?;
        return Ok(ProtocolGeneration::Modern(modern));
    }
    match in_header {
        Some(version) if request.method != "initialize" && !LEGACY.contains(&version) => {
            Err(refused(unsupported_version(version)))
        }
        _ => Ok(ProtocolGeneration::Legacy(session)),
    }
}

fn read_modern(
    request: &Request,
    headers: &HeaderMap,
    in_header: Option<&str>,
    in_meta: Option<&str>,
) -> Result<Modern, McpFailure> {
    let capabilities = request.meta(META_CAPABILITIES).filter(|it| it.is_object());
    let (Some(version), Some(capabilities)) = (in_meta, capabilities) else {
        let missing = if in_meta.is_none() { META_VERSION } else { META_CAPABILITIES };
        return Err(McpFailure::invalid(format!("_meta of the request has no {missing}")));
    };
    if in_header != Some(version) {
        let message = format!("the header MCP-Protocol-Version is not {version}, as in _meta");
        return Err(header_mismatch(message));
    }
    if version != MODERN {
        return Err(unsupported_version(version));
    }
    check_standard(request, headers)?;
    let log_level = request.meta(META_LOG_LEVEL).and_then(JsonValue::as_str);
    Ok(Modern { capabilities: capabilities.clone(), log_level: log_level.map(str::to_owned) })
}

fn unsupported_version(version: &str) -> McpFailure {
    let supported: Vec<&str> = [MODERN].into_iter().chain(LEGACY).collect();
    let message = format!("unsupported protocol version {}", version.escape_debug());
    let data = json!({"supported": supported, "requested": version});
    McpFailure { code: -32022, message, data: Some(data) }
}

/// Proxies route by these headers, so they must say what the body says.
fn check_standard(request: &Request, headers: &HeaderMap) -> Result<(), McpFailure> {
    let method = read_header(headers, &MCP_METHOD)?;
    if method != Some(request.method.as_str()) {
        let method = request.method.escape_debug();
        return Err(header_mismatch(format!("the header Mcp-Method is not {method}")));
    }
    let member = match request.method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return Ok(()),
    };
    let Some(name) = request.params.get(member).and_then(JsonValue::as_str) else { return Ok(()) };
    let in_header = read_header(headers, &MCP_NAME)?.and_then(decode_value);
    match in_header {
        Some(given) if given == name => Ok(()),
        _ => Err(header_mismatch(format!("the header Mcp-Name is not {name:?}, as {member}"))),
    }
}

/// A value that is not visible ASCII is sent as `=?base64?…?=`.
fn decode_value(value: &str) -> Option<String> {
    let inner = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    match inner {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}
