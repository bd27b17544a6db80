//! `GET /v1/live`: the live queries and their cost. `/metrics` names them by digests alone.

use abide_engine::{TemplateWork, template_digest};
use abide_schema::{Code, Refusal};
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value as JsonValue, json};

use crate::app_state::{AppState, CallerExtension};
use crate::metrics::check_unscoped;
use crate::problem::Problem;
use crate::routes::response::counted_json;

/// Lists the live queries of all callers, most expensive first.
pub(super) async fn live(
    State(app): State<AppState>,
    by: CallerExtension,
) -> Result<Response, Problem> {
    check_unscoped(&app, &by, "/v1/live")?;
    if !by.is_unrestricted() {
        let detail = "/v1/live shows the queries of all callers, and you are not an admin";
        app.engine.note_denied(&by, "/v1/live", detail);
        let refusal = Refusal::new(Code::Denied, detail);
        return Err(refusal.hint("use an identity of the role admin").into());
    }
    let templates = app.engine.live_templates().await?;
    let templates: Vec<JsonValue> = templates.iter().map(describe_template).collect();
    let text = json!({"templates": templates}).to_string();
    Ok(counted_json(text, app.engine.buffers(), &by)?)
}

fn describe_template(work: &TemplateWork) -> JsonValue {
    json!({
        "template": template_digest(&work.sql),
        "sql": &*work.sql,
        "bindings": work.bindings,
        "deltas": work.deltas,
        "over_budget": work.over_budget,
        "statements": work.spent.statements,
        "steps": work.spent.steps,
    })
}
