//! What several routes do with a request or a response.

use abide_schema::{Code, Refusal};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse as _, Response};

/// The request id from the header.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    key.to_str().map(Some).map_err(|_| {
        Refusal::new(Code::BadRequest, "the header Idempotency-Key is not visible ASCII")
            .hint("use a UUID")
    })
}

/// A JSON text as a response.
pub(super) fn json(text: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Maps the refusal of a route's own query. Such a query names only existing tables and columns, so an
/// unknown one is hidden from the caller.
pub(super) fn hidden(refusal: Refusal) -> Refusal {
    match refusal.code {
        Code::BadSql => {
            Refusal::new(Code::Denied, "a policy hides rows or columns that this route needs")
                .hint("ask an admin for access to them, or read the visible ones with POST /v1/sql")
        }
        _ => refusal,
    }
}
