//! `/v1/prompts`: prompts with their versions and labels, over REST and for MCP. Reads are queries with the rights of the
//! caller; each change is one reducer call.

use abide_engine::Engine;
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal, Seq, template};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};

use super::reducer_route::{ReducerRoute, arguments};
use super::response::counted_value;
use super::rows::{Object, query_rows, stored_ids};
use super::runs::path;
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::problem::Problem;
use crate::query_string::invalid_query_string;

/// Prompts in one answer.
const PAGE: usize = 500;

/// A page of prompts, without their texts.
const LIST: &str = "SELECT p.name, p.description, p.version, v.variables, p.scope, p.updated_at \
    FROM prompts p JOIN prompt_versions v ON v.prompt = p.name AND v.version = p.version \
    WHERE p.name > :after ORDER BY p.name LIMIT :limit";

/// One version: the newest one for `latest`, or the one that a label points to.
const ONE: &str = "SELECT p.name, p.description, p.version AS newest, p.scope, v.version, v.text, \
      v.variables, v.created_by, v.created_at \
    FROM prompts p JOIN prompt_versions v ON v.prompt = p.name \
    WHERE p.name = :name AND v.version = CASE \
      WHEN :version > 0 THEN :version \
      WHEN :at = 'latest' THEN p.version \
      ELSE (SELECT l.version FROM prompt_labels l WHERE l.prompt = p.name AND l.label = :at) END";

const LABELS: &str = "SELECT label, version FROM prompt_labels WHERE prompt = :name ORDER BY label";

/// The newest version.
pub const LATEST: &str = "latest";

/// Returns a page of the prompts that a caller may see, in the order of their names.
///
/// # Errors
/// `denied` if a policy hides the prompts.
pub async fn find_page(
    engine: &Engine,
    by: &Caller,
    after: &str,
) -> Result<(Seq, Vec<Object>), Refusal> {
    let params = [("after", json!(after)), ("limit", json!(PAGE + 1))];
    query_rows(engine, by, LIST, params, None).await
}

/// Returns a version of a prompt, by its number or a label.
///
/// # Errors
/// `not_found` if the caller sees no such version.
pub async fn find(
    engine: &Engine,
    by: &Caller,
    name: &str,
    at: &str,
) -> Result<(Seq, Object), Refusal> {
    // `3` and `v3` are version 3. Versions begin at 1, so 0 stands for a label.
    let number = at.strip_prefix('v').unwrap_or(at).parse().unwrap_or(0_i64);
    for stored in stored_ids(by, name) {
        let params = [("name", json!(stored)), ("version", json!(number)), ("at", json!(at))];
        let (seq, found) = query_rows(engine, by, ONE, params, None).await?;
        if let Some(mut prompt) = found.into_iter().next() {
            let of_prompt = [("name", json!(stored))];
            let (_, labels) = query_rows(engine, by, LABELS, of_prompt, None).await?;
            let pairs = labels.into_iter().filter_map(|mut row| {
                Some((row.remove("label")?.as_str()?.to_owned(), row.remove("version")?))
            });
            prompt.insert("labels".to_owned(), JsonValue::Object(pairs.collect()));
            return Ok((seq, prompt));
        }
    }
    let detail = match at {
        LATEST => format!("there is no prompt {name}"),
        at => format!("there is no prompt {name} with the version or the label {at}"),
    };
    Err(Refusal::new(Code::NotFound, detail).hint("GET /v1/prompts lists them"))
}

/// Returns the text of a prompt with these values.
///
/// # Errors
/// `bad_arguments` if the values do not match the variables.
pub fn render_text(prompt: &Object, values: &template::Values) -> Result<String, Refusal> {
    let text = prompt.get("text").and_then(JsonValue::as_str).unwrap_or_default();
    template::render(text, values).map_err(|why| {
        Refusal::new(Code::BadArguments, why.to_string())
            .hint("give each variable of the prompt a string, and no other keys")
    })
}

/// Which version is meant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct At {
    at: Option<String>,
}

/// Where a page begins.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct After {
    after: Option<String>,
}

/// Lists prompts.
pub(super) async fn list(
    State(app): State<AppState>,
    by: CallerExtension,
    query: Result<Query<After>, QueryRejection>,
) -> Result<Response, Problem> {
    let after = query_parameters(query, "?after=NAME")?.after.unwrap_or_default();
    let (seq, mut prompts) = find_page(&app.engine, &by, &after).await?;
    let has_more = prompts.len() > PAGE;
    prompts.truncate(PAGE);
    let next = has_more.then(|| prompts.last().and_then(|last| last.get("name"))).flatten();
    let reply = json!({"seq": seq, "next": next, "prompts": prompts});
    Ok(counted_value(&app, &by, move || reply).await?)
}

/// Returns a version of a prompt.
pub(super) async fn get(
    State(app): State<AppState>,
    by: CallerExtension,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<At>, QueryRejection>,
) -> Result<Response, Problem> {
    let name = path(name, "name of the prompt")?;
    let at = query_parameters(query, "?at=VERSION or ?at=LABEL")?.at;
    let (seq, prompt) = find(&app.engine, &by, &name, at.as_deref().unwrap_or(LATEST)).await?;
    Ok(counted_value(&app, &by, move || json!({"seq": seq, "prompt": prompt})).await?)
}

/// Adds a version.
pub(super) async fn put(
    State(app): State<AppState>,
    by: CallerExtension,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let shape = r#"{"text": "…", "labels": ["production"]}, the last optional"#;
    let args = arguments(&content, shape, "name", &path(name, "name of the prompt")?).await?;
    let route = ReducerRoute { reducer: "put_prompt", result: "prompt", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// The body of a request to render a prompt.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenderBody {
    /// The version, by its number or a label. Default: the newest one.
    at: Option<String>,
    /// The values of the variables by name.
    #[serde(default)]
    variables: template::Values,
}

/// Returns the text of a version with values for its variables. A prompt without variables needs no body.
pub(super) async fn render(
    State(app): State<AppState>,
    by: CallerExtension,
    name: Result<Path<String>, PathRejection>,
    content: RequestBody,
) -> Result<Response, Problem> {
    let name = path(name, "name of the prompt")?;
    // Null if the body is empty. Any other value must be an object, which `envelope_in_turn` checks with a hint.
    let RenderBody { at, variables } = if content.value_in_turn().await?.is_null() {
        RenderBody::default()
    } else {
        content.envelope_in_turn(r#"{"variables": {"name": "…"}, "at": "production"}"#).await?
    };
    let (seq, prompt) = find(&app.engine, &by, &name, at.as_deref().unwrap_or(LATEST)).await?;
    let text = render_text(&prompt, &variables)?;
    let reply =
        json!({"seq": seq, "name": prompt["name"], "version": prompt["version"], "text": text});
    Ok(counted_value(&app, &by, move || reply).await?)
}

/// Points a label to a version.
pub(super) async fn label(
    State(app): State<AppState>,
    by: CallerExtension,
    names: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let (name, label) = prompt_and_label(names)?;
    let mut args = arguments(&content, r#"{"version": 3}"#, "name", &name).await?;
    args["label"] = json!(label);
    let route = ReducerRoute { reducer: "label_prompt", result: "label", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Removes a label.
pub(super) async fn unlabel(
    State(app): State<AppState>,
    by: CallerExtension,
    names: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let (name, label) = prompt_and_label(names)?;
    let args = json!({"name": name, "label": label});
    let route = ReducerRoute { reducer: "unlabel_prompt", result: "label", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

fn prompt_and_label(
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<(String, String), Refusal> {
    names.map(|Path(names)| names).map_err(|_| {
        Refusal::new(Code::NotFound, "a name in the URL is not UTF-8")
            .hint("percent-encode the name as UTF-8")
    })
}

fn query_parameters<T>(query: Result<Query<T>, QueryRejection>, shape: &str) -> Result<T, Refusal> {
    query.map(|Query(query)| query).map_err(|why| {
        invalid_query_string(Code::BadArguments, &why).hint(format!("omit it, or send {shape}"))
    })
}
