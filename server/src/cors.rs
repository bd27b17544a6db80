//! Cross-origin requests of browsers (CORS, in the Fetch standard): which pages may read a response, also a refusal. A page
//! may read what it may ask for. A server without credentials answers pages of this machine only. With credentials the
//! token decides, and no cookie does: a page of any origin may read the answer to a token that it has, or the reason why
//! it has no valid one.

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::auth::access::is_loopback_origin;
use crate::auth::authenticator::Authenticator;

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");

/// Seconds for which a browser keeps the answer to a preflight. The first token of a file changes the answer.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("60");

/// What scripts may read of a response besides its body and the headers that they may always read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "ETag, Location, Retry-After, WWW-Authenticate, Abide-Authentication, Mcp-Session-Id, X-Vercel-AI-UI-Message-Stream",
);

/// Middleware around everything: answers preflights of pages that may read the responses, and marks the responses.
pub(crate) async fn share(
    State(authenticator): State<Authenticator>,
    request: Request,
    next: Next,
) -> Response {
    let origin = allowed_origin(&authenticator, request.uri(), request.headers()).await;
    let headers = request.headers();
    let is_preflight =
        request.method() == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response =
        if origin.is_some() && is_preflight { preflight(headers) } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    response
}

/// Returns the origin of the page that sends a request, if it may read the response.
async fn allowed_origin(
    authenticator: &Authenticator,
    uri: &Uri,
    headers: &HeaderMap,
) -> Option<HeaderValue> {
    let mut origins = headers.get_all(ORIGIN).iter();
    // A request with two origins is refused, and no page may read why.
    let (Some(origin), None) = (origins.next(), origins.next()) else { return None };
    let is_of_machine = origin.to_str().is_ok_and(is_loopback_origin);
    // MCP demands the check of the origin with credentials too.
    let is_allowed = is_of_machine
        || (uri.path() != "/mcp" && authenticator.requires_credentials().await.unwrap_or(false));
    is_allowed.then(|| origin.clone())
}

fn preflight(headers: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let allowed = response.headers_mut();
    allowed.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // Clients of the standard protocols add headers of their own. None of them authenticates by itself.
    if let Some(names) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        allowed.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    allowed.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    response
}
