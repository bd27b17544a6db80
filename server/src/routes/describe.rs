//! Descriptions of the server: `GET /v1/schema` and `GET /openapi.json`.

use axum::extract::State;
use axum::response::Response;

use crate::app_state::{AppState, CallerExtension};
use crate::openapi;
use crate::routes::exchange::json;

/// Tables, columns and reducers.
pub(super) async fn schema(State(app): State<AppState>, by: CallerExtension) -> Response {
    json(app.engine.describe_for(&by).to_string())
}

/// The same and the routes, as OpenAPI 3.1.
pub(super) async fn openapi(State(app): State<AppState>, by: CallerExtension) -> Response {
    json(openapi::document(&app.engine.describe_for(&by)).to_string())
}
