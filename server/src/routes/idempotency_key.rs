//! The header `Idempotency-Key`: the request id of a call.

use abide_schema::Refusal;
use axum::http::HeaderMap;

use crate::single;

/// Returns the request id from the header.
///
/// # Errors
/// `bad_request` if it occurs twice or is not visible ASCII.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    single::header(headers, &single::IDEMPOTENCY_KEY).map_err(|refusal| refusal.hint("use a UUID"))
}
