//! Descriptions of the server: `GET /v1/schema` and `GET /openapi.json`.

use axum::extract::State;
use axum::response::Response;

use crate::app_state::{AppState, CallerExtension};
use crate::connections::parse_turns::ParseTurn;
use crate::problem::Problem;
use crate::routes::response::counted_json;
use crate::{limits, openapi};

/// Waits for the turn of a large message: a description takes as long to make as such a message takes to parse.
async fn wait_for_turn(app: &AppState, by: &CallerExtension) -> Option<ParseTurn> {
    app.parse_turns.acquire(by, limits::LARGE_BYTES).await
}

/// `GET /v1/schema`: the tables and columns that the caller may see, and the reducers.
pub(super) async fn schema(
    State(app): State<AppState>,
    by: CallerExtension,
) -> Result<Response, Problem> {
    let _turn = wait_for_turn(&app, &by).await;
    let text = app.engine.describe_for(&by).to_string();
    Ok(counted_json(text, app.engine.buffers(), &by)?)
}

/// `GET /openapi.json`: the same and the routes, those of protocols too, as OpenAPI 3.1.
pub(super) async fn openapi(
    State(app): State<AppState>,
    by: CallerExtension,
) -> Result<Response, Problem> {
    let _turn = wait_for_turn(&app, &by).await;
    let protocols = app.protocols.as_ref().map(|protocols| protocols.openapi_paths());
    let schema = app.engine.describe_for(&by);
    let text = openapi::document(&schema, protocols.unwrap_or_default()).to_string();
    Ok(counted_json(text, app.engine.buffers(), &by)?)
}
