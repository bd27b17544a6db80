//! The versions of the protocol, and what the server says about itself.

use serde_json::{Value as JsonValue, json};

use super::message::Request;

/// The generation without sessions.
pub(super) const MODERN: &str = "2026-07-28";

/// The generations with sessions, the newest first.
pub(super) const LEGACY: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

/// Returns the server's description of itself.
pub(super) fn server_info() -> JsonValue {
    json!({"name": "abide", "title": "Abide", "version": env!("CARGO_PKG_VERSION")})
}

/// Returns the version for a client that begins with `initialize`.
pub(super) fn legacy_version(request: &Request) -> &'static str {
    let wanted = request.params.get("protocolVersion").and_then(JsonValue::as_str);
    LEGACY.into_iter().find(|version| Some(*version) == wanted).unwrap_or(LEGACY[0])
}
