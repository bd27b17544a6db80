//! `POST /v1/sql`.

use abide_schema::Seq;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue};

use super::{App, By, json};
use crate::content::Content;
use crate::frames;
use crate::problem::Problem;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    sql: String,
    #[serde(default)]
    params: Map<String, JsonValue>,
    #[serde(default)]
    as_of: Option<Seq>,
}

/// Runs one read-only statement.
pub(super) async fn sql(
    State(app): State<App>,
    by: By,
    content: Content,
) -> Result<Response, Problem> {
    let looks = r#"{"sql": "SELECT …", "params": {…}, "as_of": 40}, the last two optional"#;
    let Query { sql, params, as_of } = content.envelope(looks)?;
    let answer = app.engine.query(&by, &sql, &params, as_of).await?;
    Ok(json(frames::rows(None, &answer)))
}
