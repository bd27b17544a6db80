//! Calls of middleware in Rust at its places in a run.

use abide_definitions::middleware::{CustomMiddleware, Middleware};
use abide_models::{ModelRequest, ModelResponse};
use abide_tools::{Failure, ToolOutcome};
use serde_json::{Map, Value};

use crate::middleware::agent_middleware::{AgentMiddleware, MiddlewareContext};
use crate::run::driver::Driver;
use crate::tools::arguments::arguments_or_text;

/// Returns the middleware in Rust of a run, in order, with its settings.
fn custom_middleware(
    driver: &Driver,
) -> impl Iterator<Item = (&dyn AgentMiddleware, &Map<String, Value>)> {
    driver.middleware().filter_map(|entry| match entry {
        Middleware::Custom(CustomMiddleware { name, settings }) => {
            Some((driver.shared.middleware.get(name)?, settings))
        }
        _ => None,
    })
}

/// Calls each middleware until one denies, and returns its reason.
fn call_each(
    driver: &Driver,
    mut call: impl FnMut(&dyn AgentMiddleware, &MiddlewareContext<'_>) -> Result<(), String>,
) -> Result<(), String> {
    // Most runs have no middleware in Rust, and need no context, which copies the metadata of the session.
    let mut all = custom_middleware(driver).peekable();
    if all.peek().is_none() {
        return Ok(());
    }
    let context = driver.tool_context();
    all.try_for_each(|(middleware, settings)| {
        call(middleware, &MiddlewareContext { settings, context: &context })
    })
}

/// Returns `true` if answers are held until they are complete.
pub(crate) fn hold_answers(driver: &Driver) -> bool {
    custom_middleware(driver).any(|(middleware, _)| middleware.holds_answers())
}

pub(crate) fn before_model(driver: &Driver, request: &mut ModelRequest) -> Result<(), String> {
    call_each(driver, |middleware, context| middleware.before_model(context, request))
}

/// Calls the middleware with an answer. What the provider expects back is dropped if the answer changes.
pub(crate) fn after_model(driver: &Driver, answer: &mut ModelResponse) -> Result<(), String> {
    if custom_middleware(driver).next().is_none() {
        return Ok(());
    }
    let before = (answer.text.clone(), answer.reasoning.clone(), answer.calls.clone());
    let ruling = call_each(driver, |middleware, context| {
        if middleware.holds_answers() { middleware.after_model(context, answer) } else { Ok(()) }
    });
    if (&answer.text, &answer.reasoning, &answer.calls) != (&before.0, &before.1, &before.2) {
        answer.carry = None;
    }
    if ruling.is_err() {
        (answer.text, answer.reasoning, answer.calls) = before;
    }
    ruling
}

/// Calls the middleware with the arguments of a call, as the model wrote them. Returns whether they have changed.
pub(crate) fn before_tool(
    driver: &Driver,
    tool: &str,
    arguments: &mut String,
) -> Result<bool, String> {
    if custom_middleware(driver).next().is_none() {
        return Ok(false);
    }
    let before = arguments_or_text(arguments);
    let mut after = before.clone();
    call_each(driver, |middleware, context| middleware.before_tool(context, tool, &mut after))?;
    let is_changed = before != after;
    if is_changed {
        *arguments = after.to_string();
    }
    Ok(is_changed)
}

/// Calls the middleware with the outcome of a call.
pub(crate) fn after_tool(driver: &Driver, tool: &str, outcome: &mut ToolOutcome) {
    let ruling =
        call_each(driver, |middleware, context| middleware.after_tool(context, tool, outcome));
    if let Err(why) = ruling {
        // The call ran: only what is known of it is replaced.
        *outcome = match outcome.failure {
            Some(failure) => ToolOutcome::failed(failure, why),
            None => ToolOutcome::failed(Failure::Tool, why),
        };
    }
}
