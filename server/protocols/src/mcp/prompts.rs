//! Prompts: those of the handler, and the stored ones that the caller may see, in their newest version.

use abide_schema::{Code, template};
use abide_server::port::prompts;
use serde_json::{Map, Value as JsonValue, json};

use super::exchange::McpRequestContext;
use super::handler::ask_handler;
use super::message::{Request, to_failure};
use super::tools::has_item;
use crate::mcp_handler::{McpFailure, McpItems};

/// Stored prompts after which the list ends. A client shows them to a person.
const PROMPTS: usize = 5_000;

/// Returns all prompts: first those of the handler.
pub(super) async fn list(exchange: &McpRequestContext) -> Result<Vec<JsonValue>, McpFailure> {
    let handler_prompts = handler_prompts(exchange);
    let mut all = handler_prompts.clone();
    let mut after = String::new();
    loop {
        let page = prompts::find_page(&exchange.app.engine, exchange.by(), &after).await;
        let (_, page) = match page {
            // A policy hides the prompts.
            Err(refusal) if refusal.code == Code::Denied => return Ok(all),
            page => page.map_err(to_failure)?,
        };
        let last = page.last().and_then(|last| last["name"].as_str());
        let Some(last) = last.filter(|_| all.len() < PROMPTS) else { return Ok(all) };
        after = last.to_owned();
        let stored =
            page.iter().filter(|prompt| !is_handler_prompt(&handler_prompts, &prompt["name"]));
        let stored: Vec<JsonValue> = stored.map(prompt_to_json).collect();
        all.extend(stored);
    }
}

fn handler_prompts(exchange: &McpRequestContext) -> Vec<JsonValue> {
    exchange.handler().map(|handler| handler.items(McpItems::Prompts)).unwrap_or_default()
}

fn is_handler_prompt(all: &[JsonValue], name: &JsonValue) -> bool {
    has_item(all, "name", name.as_str().unwrap_or_default())
}

/// Returns a stored prompt as the protocol describes it.
fn prompt_to_json(prompt: &Map<String, JsonValue>) -> JsonValue {
    let variables = prompt["variables"].as_array().into_iter().flatten();
    let arguments: Vec<JsonValue> =
        variables.map(|name| json!({"name": name, "required": true})).collect();
    let mut item = json!({"name": prompt["name"], "arguments": arguments});
    if let Some(description) = prompt["description"].as_str() {
        item["description"] = json!(description);
    }
    item
}

/// `prompts/get`.
pub(super) async fn get(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let name = request.required_text("name")?;
    match exchange.handler() {
        Some(handler) if is_handler_prompt(&handler_prompts(exchange), &json!(name)) => {
            return ask_handler(exchange, &*handler, request).await;
        }
        _ => {}
    }
    let values = match request.params.get("arguments") {
        None => template::Values::new(),
        Some(values) => serde_json::from_value(values.clone())
            .map_err(|_| McpFailure::invalid("arguments must be an object of strings"))?,
    };
    let found = prompts::find(&exchange.app.engine, exchange.by(), name, prompts::LATEST).await;
    let (_, prompt) = match found {
        Err(refusal) if matches!(refusal.code, Code::NotFound | Code::Denied) => {
            return Err(McpFailure::invalid(format!("unknown prompt {name:?}")));
        }
        found => found.map_err(to_failure)?,
    };
    let text = prompts::render_text(&prompt, &values).map_err(to_failure)?;
    let content = json!({"type": "text", "text": text});
    let mut result = json!({"messages": [{"role": "user", "content": content}]});
    if let Some(description) = prompt["description"].as_str() {
        result["description"] = json!(description);
    }
    Ok(result)
}
