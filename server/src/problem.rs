//! Refusals over HTTP: `application/problem+json` (RFC 9457) with stable codes.

use abide_schema::{Code, Listing, Refusal};
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use crate::body;

/// The content type of a problem document.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Default seconds before a retry of an overloaded server: its queues drain in well under one.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// A refusal as a response.
#[derive(Debug)]
pub struct Problem(pub Refusal);

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        Problem(refusal)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let refusal = self.0.show_listings(route_of);
        let code = refusal.code;
        let wait_ms = refusal.retry_after_ms;
        note(&refusal);
        let status = StatusCode::from_u16(code.http_status());
        let mut response = (
            status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            [(CONTENT_TYPE, PROBLEM_JSON)],
            refusal.problem().to_string(),
        )
            .into_response();
        match code {
            Code::RateLimited if wait_ms.is_some() => {
                let seconds = wait_ms.unwrap_or_default().div_ceil(1_000).max(1);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            code if code.is_temporary() => {
                response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_S);
            }
            Code::Unauthenticated => {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            }
            _ => {}
        }
        response
    }
}

/// Returns the route that shows a listing, as a hint.
const fn route_of(listing: Listing) -> &'static str {
    match listing {
        Listing::Tables => "GET /v1/schema lists the tables",
        Listing::Columns => "GET /v1/schema lists the columns of every table",
        Listing::Reducers => "GET /v1/schema lists the reducers",
    }
}

/// Logs an internal error; other refusals are caused by the caller.
pub fn note(refusal: &Refusal) {
    if refusal.code == Code::Internal {
        tracing::error!(
            name: "request_failed",
            detail = %refusal.detail,
            "a request failed with an internal error"
        );
    }
}

/// Response for an unknown path.
pub(crate) async fn no_route(uri: Uri, request: Request) -> Problem {
    body::discard(request).await;
    let path = uri.path();
    let refusal = Refusal::new(Code::NotFound, format!("no route matches {path}"));
    Problem(match path.trim_end_matches('/') {
        "/responses" | "/models" => refusal.hint("the base URL of an OpenAI client ends with /v1"),
        of_openai if of_openai.ends_with("/completions") => {
            refusal.hint("use the Responses API: POST /v1/responses")
        }
        _ => refusal.hint("GET /openapi.json lists the routes"),
    })
}

/// Response for an unsupported method. The code is `bad_request`; the status is HTTP's 405, as
/// clients and proxies expect.
pub(crate) async fn wrong_method(method: Method, uri: Uri, request: Request) -> Response {
    body::discard(request).await;
    let detail = format!("{} does not support {method}", uri.path());
    let refusal =
        Refusal::new(Code::BadRequest, detail).hint("the header Allow lists the supported methods");
    with_status(&refusal, StatusCode::METHOD_NOT_ALLOWED)
}

/// Returns a refusal with another status than its code's.
pub(crate) fn with_status(refusal: &Refusal, status: StatusCode) -> Response {
    let mut problem = refusal.problem();
    problem["status"] = status.as_u16().into();
    if let Some(title) = status.canonical_reason() {
        problem["title"] = title.into();
    }
    (status, [(CONTENT_TYPE, PROBLEM_JSON)], problem.to_string()).into_response()
}
