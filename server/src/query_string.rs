//! The refusal of a query string that a route cannot read.

use std::error::Error as _;

use abide_schema::{Code, Refusal};
use axum::extract::rejection::QueryRejection;

/// Returns the refusal, with the reason of the parser.
#[must_use]
pub fn invalid_query_string(code: Code, rejection: &QueryRejection) -> Refusal {
    let reason = rejection.source().map_or_else(|| rejection.to_string(), ToString::to_string);
    Refusal::new(code, format!("invalid query string: {reason}"))
}
