//! `GET /health` and `GET /ready`, for supervisors and load balancers.

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use crate::app_state::{AppState, SessionExtension};
use crate::problem::Problem;

/// The process is running. `/ready` says whether it accepts calls.
pub(super) async fn health() -> Response {
    super::response::json(json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")}).to_string())
}

/// Calls are accepted, and the server is not about to stop.
pub(super) async fn ready(
    State(app): State<AppState>,
    session: Option<SessionExtension>,
) -> Result<Response, Problem> {
    app.engine.ready()?;
    app.drain.check()?;
    if session.is_none() {
        // The length of the log is not public.
        return Ok(super::response::json(json!({"status": "ready"}).to_string()));
    }
    let seq = app.engine.durable_seq();
    Ok(super::response::json(json!({"status": "ready", "seq": seq}).to_string()))
}
