//! `GET /`: a plain page for browsers.

use axum::extract::{Extension, State};
use axum::response::Html;

use crate::app_state::{AppState, CallerExtension};

/// Returns a description, the state of the log, and links. The state is shown only to authenticated callers.
pub(crate) async fn page(State(app): State<AppState>, by: Option<CallerExtension>) -> Html<String> {
    let version = env!("CARGO_PKG_VERSION");
    let head = match by {
        Some(Extension(_)) => {
            format!("<p>The log is at event <b>{}</b>.", app.engine.durable_seq())
        }
        None => "<p>Requests need a bearer token.".to_owned(),
    };
    Html(format!(
        r#"<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Abide</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 4rem auto; padding: 0 1rem;
         color-scheme: light dark }}
  pre {{ overflow-x: auto; padding: .75rem; border: 1px solid #8884; border-radius: .25rem }}
</style>
<h1>Abide {version}</h1>
<p>A durable session engine for AI agents: every call is one event in an append-only log, and every
query can be subscribed to.
{head}
<ul>
  <li><a href="/v1/schema">Tables and reducers</a>
  <li><a href="/openapi.json">OpenAPI</a>
  <li><a href="/metrics">Metrics</a>, <a href="/health">health</a>, <a href="/ready">readiness</a>
</ul>
<pre>abide watch "SELECT * FROM sessions"
abide call create_session agent=support</pre>
"#
    ))
}
