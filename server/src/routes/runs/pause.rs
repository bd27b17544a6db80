//! Pauses of runs over REST. Each route is one reducer call.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::path;
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::problem::Problem;
use crate::routes::reducer_route::{ReducerRoute, arguments};

/// Requests that a run pauses.
pub(in crate::routes) async fn pause(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let shape = r#"{"stage": "after_agent", "reason": "…"}, or nothing"#;
    let args = arguments(&content, shape, "id", &path(id, "id of the run")?).await?;
    let route = ReducerRoute { reducer: "pause_run", result: "pause", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Resumes a paused run.
pub(in crate::routes) async fn resume(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let args = arguments(&content, "nothing", "id", &path(id, "id of the run")?).await?;
    let route = ReducerRoute { reducer: "resume_run", result: "run", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}
