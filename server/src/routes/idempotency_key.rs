//! The header `Idempotency-Key`: the request id of a call.

use abide_schema::Refusal;
use axum::http::HeaderMap;

use crate::single;

/// The request id from the header.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    single::header(headers, &single::IDEMPOTENCY_KEY).map_err(|refusal| refusal.hint("use a UUID"))
}
