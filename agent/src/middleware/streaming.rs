//! The middleware `streaming`: what is published of an answer while it is made.

use abide_client::rows::{RunEventKind, ToolCall};
use abide_definitions::middleware::{Middleware, Streaming};
use serde_json::json;

use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::Step;

/// The setting from the middleware of a run. If several entries differ, less is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Text in pieces, as it arrives.
    pub(crate) tokens: bool,
    pub(crate) reasoning: bool,
    /// The status of the run at each step.
    pub(crate) status: bool,
}

impl Published {
    pub(crate) fn for_run(driver: &Driver) -> Published {
        let entries = driver.middleware().filter_map(|entry| match entry {
            Middleware::Streaming(streaming) => Some(streaming),
            _ => None,
        });
        // Without the middleware there is a status at the start and the end of a turn only.
        let mut published = Published { tokens: true, reasoning: true, status: false };
        for (at, Streaming { tokens, reasoning, status }) in entries.enumerate() {
            published.tokens &= tokens.unwrap_or(true);
            published.reasoning &= reasoning.unwrap_or(true);
            published.status = (at == 0 || published.status) && status.unwrap_or(true);
        }
        published
    }
}

/// Publishes that a model is asked.
pub(crate) async fn asks(driver: &Driver, model: &str) -> Step {
    let iteration = driver.state.run.iterations + 1;
    publish(driver, json!({"status": "thinking", "iteration": iteration, "model": model})).await
}

/// Publishes that tools run.
pub(crate) async fn runs(driver: &Driver, calls: &[ToolCall]) -> Step {
    let names: Vec<&str> = calls.iter().map(|call| call.tool_name.as_str()).collect();
    publish(driver, json!({"status": "working", "tools": names})).await
}

async fn publish(driver: &Driver, status: serde_json::Value) -> Step {
    if !Published::for_run(driver).status {
        return Ok(());
    }
    driver.record(&[run_event(RunEventKind::Status, status)], None, Vec::new()).await
}
