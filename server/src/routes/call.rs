//! `POST /v1/call/{reducer}` and `POST /v1/batch`.

use abide_schema::wire::BatchCall;
use abide_schema::{CallArguments, Code, Listing, Refusal};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;

use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::connections::parse_turns::begin;
use crate::frames;
use crate::problem::Problem;
use crate::single::idempotency_key;
use crate::unsent;

/// Runs one reducer.
pub(super) async fn call(
    State(app): State<AppState>,
    by: CallerExtension,
    reducer: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let Path(reducer) = reducer.map_err(|_| {
        Refusal::new(Code::UnknownReducer, "the reducer's name is not UTF-8")
            .hint(Listing::Reducers.hint())
    })?;
    let request_id = idempotency_key(&headers)?;
    let permit = app.admit_call(&by, content.bytes()).await?;
    let args = content.arguments()?;
    let done = begin(permit, app.engine.call(&by, &reducer, args, request_id)).await?;
    let account = app.engine.buffers().account(&by);
    Ok(unsent::committed_response(&account, frames::encode_call(None, &done)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody {
    calls: Vec<BatchCall<CallArguments>>,
}

/// Runs several reducers in one transaction.
pub(super) async fn batch(
    State(app): State<AppState>,
    by: CallerExtension,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let example = r#"{"calls": [{"reducer": "…", "args": {…}}, …]}"#;
    let permit = app.admit_call(&by, content.bytes()).await?;
    let BatchBody { calls } = content.envelope(example)?;
    let request_id = idempotency_key(&headers)?;
    let done = begin(permit, app.engine.batch(&by, calls, request_id)).await?;
    let account = app.engine.buffers().account(&by);
    Ok(unsent::committed_response(&account, frames::encode_batch(None, &done)))
}
