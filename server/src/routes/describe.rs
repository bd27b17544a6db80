//! Descriptions of the server: `GET /v1/schema` and `GET /openapi.json`.

use axum::extract::State;
use axum::response::Response;

use crate::app_state::{AppState, CallerExtension};
use crate::connections::parse_turns::ParseTurn;
use crate::problem::Problem;
use crate::routes::response::counted_json;
use crate::{limits, openapi};

/// A description takes as long as a large message to process, so it waits for the same turns.
async fn turn(app: &AppState, by: &CallerExtension) -> Option<ParseTurn> {
    app.parse_turns.acquire(by, limits::LARGE_BYTES).await
}

/// Tables, columns and reducers.
pub(super) async fn schema(
    State(app): State<AppState>,
    by: CallerExtension,
) -> Result<Response, Problem> {
    let _turn = turn(&app, &by).await;
    let text = app.engine.describe_for(&by).to_string();
    Ok(counted_json(text, app.engine.buffers(), &by)?)
}

/// Tables, columns, reducers and the routes, as OpenAPI 3.1.
pub(super) async fn openapi(
    State(app): State<AppState>,
    by: CallerExtension,
) -> Result<Response, Problem> {
    let _turn = turn(&app, &by).await;
    let protocols = app.protocols.as_ref().map(|protocols| protocols.openapi_paths());
    let document = openapi::document(&app.engine.describe_for(&by), protocols.unwrap_or_default());
    let text = document.to_string();
    Ok(counted_json(text, app.engine.buffers(), &by)?)
}
