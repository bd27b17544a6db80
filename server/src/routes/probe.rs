//! `GET /health` and `GET /ready`, for supervisors and load balancers.

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use crate::app_state::{AppState, SessionExtension};
use crate::problem::Problem;

/// The process runs, and its engine has not failed. It is also healthy while it is about to stop and while the disk is
/// full: starting it again would not help.
pub(super) async fn health(State(app): State<AppState>) -> Result<Response, Problem> {
    app.engine.ready()?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(super::response::json(json!({"status": "ok", "version": version}).to_string()))
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
