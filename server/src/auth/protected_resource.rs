//! OAuth protected resource metadata (RFC 9728): where a client gets a token of the issuer. It exists if the server has an
//! issuer of JSON Web Tokens.

use abide_schema::{Code, Refusal};
use axum::Json;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::Response;
use serde_json::{Value as JsonValue, json};

use crate::app_state::AppState;
use crate::problem::Problem;

/// The document for the server, and the beginning of the path of that for an endpoint.
pub(crate) const PATH: &str = "/.well-known/oauth-protected-resource";

/// The document for `/mcp`, whose clients look there first.
pub(crate) const PATH_OF_MCP: &str = "/.well-known/oauth-protected-resource/mcp";

/// Returns the metadata of the server or of `/mcp`.
pub(crate) async fn metadata(
    State(app): State<AppState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Json<JsonValue>, Problem> {
    let jwt = app.authenticator.access.jwt().ok_or_else(|| {
        Refusal::new(Code::NotFound, "this server has no issuer of tokens")
            .hint("abide serve --jwt names one: docs/authority.md")
    })?;
    let endpoint = uri.path().strip_prefix(PATH).unwrap_or_default();
    let resource = format!("{}{endpoint}", app.base_url(&uri, &headers));
    Ok(Json(json!({
        "resource": resource,
        "authorization_servers": [jwt.issuer()],
        "bearer_methods_supported": ["header"],
        "resource_name": "Abide",
    })))
}

/// Adds the way to the metadata to the refusal of a request without a valid token.
pub(crate) fn challenge(app: &AppState, response: &mut Response, uri: &Uri, headers: &HeaderMap) {
    let path = if uri.path() == "/mcp" { PATH_OF_MCP } else { PATH };
    let error = if headers.contains_key(AUTHORIZATION) { "error=\"invalid_token\", " } else { "" };
    let value = format!("Bearer {error}resource_metadata=\"{}{path}\"", app.base_url(uri, headers));
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(WWW_AUTHENTICATE, value);
    }
}
