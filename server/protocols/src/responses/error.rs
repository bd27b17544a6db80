//! Problem documents get the member `error` of this protocol, because its clients read nothing else.

use abide_server::port::PROBLEM_JSON;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value as JsonValue, json};

/// Bytes of a problem document: a sentence and a hint, which can repeat ids.
const PROBLEM_BYTES: usize = 64 << 10;

/// Returns `true` if a client of this protocol asks for a path, also with a wrong base URL or for another API of
/// OpenAI.
fn is_of_openai(path: &str) -> bool {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let apis = [
        "/responses",
        "/models",
        "/chat/completions",
        "/completions",
        "/embeddings",
        "/conversations",
    ];
    apis.iter().any(|api| {
        path.strip_prefix(api).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Middleware around all routes, because requests without credentials do not reach a route.
pub(crate) async fn add_error(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_concerned = is_of_openai(path);
    let response = next.run(request).await;
    if !is_concerned || response.headers().get(CONTENT_TYPE) != Some(&PROBLEM_JSON) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, PROBLEM_BYTES).await else {
        return Response::from_parts(parts, Body::empty());
    };
    let Ok(mut problem) = serde_json::from_slice::<JsonValue>(&bytes) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    let kind = match parts.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    let message = match problem["hint"].as_str() {
        Some(hint) => format!("{} ({hint})", problem["detail"].as_str().unwrap_or_default()),
        None => problem["detail"].as_str().unwrap_or_default().to_owned(),
    };
    problem["error"] =
        json!({"message": message, "type": kind, "code": problem["code"], "param": null});
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(problem.to_string()))
}
