//! Snapshots of runs over REST: export and import. Each route is one reducer call.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value as JsonValue;

use super::path;
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::problem::Problem;
use crate::routes::reducer_route::{ReducerRoute, arguments};

/// The body of an import, for errors.
const IMPORT: &str = concat!(
    r#"{"snapshot": {…}, "id": "…", "session_id": "…", "any_definition": false}"#,
    ", all except snapshot optional"
);

/// Exports a run that waits.
pub(in crate::routes) async fn export(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let shape = r#"{"copy": true, "tag": "…"}, or nothing"#;
    let args = arguments(&content, shape, "id", &path(id, "id of the run")?).await?;
    let route = ReducerRoute { reducer: "export_run", result: "snapshot", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Imports a snapshot.
pub(in crate::routes) async fn import(
    State(app): State<AppState>,
    by: CallerExtension,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let args: JsonValue = content.envelope_in_turn(IMPORT).await?;
    let route = ReducerRoute { reducer: "import_run", result: "run", status: StatusCode::CREATED };
    route.answer(&app, &by, &headers, &content, args).await
}
