//! The header `Idempotency-Key`: the request id of a call.

use abide_schema::{Code, Refusal};
use axum::http::HeaderMap;

/// The request id from the header.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    key.to_str().map(Some).map_err(|_| {
        Refusal::new(Code::BadRequest, "the header Idempotency-Key is not visible ASCII")
            .hint("use a UUID")
    })
}
