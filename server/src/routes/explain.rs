//! `POST /v1/explain`.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue};

use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::frames;
use crate::problem::Problem;
use crate::routes::response::json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainBody {
    sql: String,
    #[serde(default)]
    params: Map<String, JsonValue>,
}

/// Explains how a query would be maintained live, and at what cost.
pub(super) async fn explain(
    State(app): State<AppState>,
    by: CallerExtension,
    content: RequestBody,
) -> Result<Response, Problem> {
    let ExplainBody { sql, params } = content
        .envelope_in_turn(r#"{"sql": "SELECT …", "params": {…}}, the last optional"#)
        .await?;
    let explanation = app.engine.explain(&by, &sql, &params).await?;
    Ok(json(frames::encode_explanation(None, &explanation)))
}
