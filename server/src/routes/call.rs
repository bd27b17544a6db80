//! `POST /v1/call/{reducer}` and `POST /v1/batch`.

use abide_schema::wire::BatchCall;
use abide_schema::{Code, Refusal};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;

use super::{App, By, idempotency_key};
use crate::content::Content;
use crate::frames;
use crate::problem::Problem;
use crate::turns::begin;
use crate::unsent;

/// Runs one reducer.
pub(super) async fn call(
    State(app): State<App>,
    by: By,
    reducer: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: Content,
) -> Result<Response, Problem> {
    let Path(reducer) = reducer.map_err(|_| {
        Refusal::new(Code::UnknownReducer, "the reducer's name is not UTF-8")
            .hint("GET /v1/schema lists them")
    })?;
    let request_id = idempotency_key(&headers)?;
    let turn = app.turns.turn(by.quota_key(), content.bytes()).await;
    app.engine.check_room(&by, content.bytes())?;
    let args = content.value()?;
    let done = begin(turn, app.engine.call(&by, &reducer, &args, request_id)).await?;
    Ok(unsent::answer(&app.engine.buffers().account(&by), frames::call(None, &done)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch {
    calls: Vec<BatchCall>,
}

/// Runs several reducers in one transaction.
pub(super) async fn batch(
    State(app): State<App>,
    by: By,
    headers: HeaderMap,
    content: Content,
) -> Result<Response, Problem> {
    let looks = r#"{"calls": [{"reducer": "…", "args": {…}}, …]}"#;
    let turn = app.turns.turn(by.quota_key(), content.bytes()).await;
    app.engine.check_room(&by, content.bytes())?;
    let Batch { calls } = content.envelope(looks)?;
    let request_id = idempotency_key(&headers)?;
    let done = begin(turn, app.engine.batch(&by, &calls, request_id)).await?;
    Ok(unsent::answer(&app.engine.buffers().account(&by), frames::batch(None, &done)))
}
