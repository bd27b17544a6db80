//! Descriptions of the server: `GET /v1/schema`, `GET /openapi.json`, and proofs of the log,
//! which are not implemented yet.

use abide_schema::{Code, Refusal};
use axum::extract::State;
use axum::response::Response;

use crate::app_state::{AppState, CallerExtension};
use crate::connections::read_limiter::ReadPermit;
use crate::problem::Problem;
use crate::routes::exchange::json;
use crate::{limits, openapi};

/// A description takes as long as a large message to process, so it waits for the same turns.
async fn turn(app: &AppState, by: &CallerExtension) -> Option<ReadPermit> {
    app.read_limiter.permit(by.quota_key(), limits::LARGE_BYTES).await
}

/// Tables, columns and reducers.
pub(super) async fn schema(State(app): State<AppState>, by: CallerExtension) -> Response {
    let _turn = turn(&app, &by).await;
    json(app.engine.describe_for(&by).to_string())
}

/// The same and the routes, as OpenAPI 3.1.
pub(super) async fn openapi(State(app): State<AppState>, by: CallerExtension) -> Response {
    let _turn = turn(&app, &by).await;
    json(openapi::document(&app.engine.describe_for(&by)).to_string())
}

/// Signed tree heads and proofs.
pub(super) async fn log() -> Problem {
    let refusal = Refusal::new(Code::NotFound, "this server does not serve proofs of the log yet");
    Problem(refusal.hint("abide verify FILE checks the whole log offline"))
}
