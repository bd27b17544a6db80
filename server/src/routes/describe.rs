//! Descriptions of the server: `GET /v1/schema` and `GET /openapi.json`.

use axum::extract::State;
use axum::response::Response;

use crate::app_state::{AppState, CallerExtension};
use crate::connections::read_limiter::ReadPermit;
use crate::routes::response::json;
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

/// Tables, columns, reducers and the routes, as OpenAPI 3.1.
pub(super) async fn openapi(State(app): State<AppState>, by: CallerExtension) -> Response {
    let _turn = turn(&app, &by).await;
    json(openapi::document(&app.engine.describe_for(&by)).to_string())
}
