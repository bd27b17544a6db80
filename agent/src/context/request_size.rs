//! The size of requests in tokens: from the usage that the provider reported for the last request, where it did, and
//! from an estimate for the family of the model. A request that exceeds the window is never sent.

use abide_client::arguments::NewRunEvent;
use abide_client::rows::RunEventKind;
use abide_definitions::agent_tool::GET_TOOL_RESPONSE;
use abide_models::{ModelMessage, ModelRequest, TokenEstimate};
use serde_json::json;

use crate::context::entry::{self, SessionEntry, ToolEntry};
use crate::context::truncation::Truncation;
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{RunFailure, Step, StepError};
use crate::tools::response;

/// How many answers are searched for a reported number of tokens.
const RECENT: usize = 5;

/// The size of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSize {
    /// The estimate for the model.
    pub(crate) estimate: TokenEstimate,
    /// The quotient of reported and estimated tokens of the last request whose usage is known; otherwise 1.
    pub(crate) ratio: f64,
}

impl RequestSize {
    /// Returns the size of the next request of a run.
    pub(crate) fn for_next_request(driver: &Driver, model: &str) -> RequestSize {
        let answers = driver.state.entries.iter().rev().filter_map(SessionEntry::assistant);
        let recent = answers.take(RECENT);
        let mut reported = recent.filter(|it| it.estimated_tokens > 0);
        let ratio = reported.next().map_or(1.0, |it| {
            // A report that differs by more is no measurement of this text.
            (it.input_tokens as f64 / it.estimated_tokens as f64).clamp(0.5, 3.0)
        });
        RequestSize { estimate: TokenEstimate::for_model(model), ratio }
    }

    /// Estimated tokens, as the provider is expected to count them.
    pub(crate) fn tokens(&self, estimated: u64) -> u64 {
        (estimated as f64 * self.ratio).ceil() as u64
    }

    /// Returns a number of tokens in terms of the estimate.
    pub(crate) fn estimated(&self, tokens: u64) -> u64 {
        (tokens as f64 / self.ratio).floor() as u64
    }

    /// Estimated tokens of messages.
    pub(crate) fn count_messages(&self, messages: &[ModelMessage]) -> u64 {
        messages.iter().map(|message| self.estimate.message(message)).sum()
    }
}

/// The least size of a shortened result in characters.
const LEAST_CHARS: usize = 400;

/// Assumed characters per token.
const TOKEN_CHARS: u64 = 4;

/// A request that fits into the window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FittedRequest {
    /// Its estimated tokens.
    pub(crate) estimated: u64,
    /// How many results were cut.
    pub(crate) cut_results: i64,
    /// The characters that are left of them.
    pub(crate) cut_chars: usize,
}

impl FittedRequest {
    /// Returns the event that says that results were cut. It is recorded with the answer, when more are cut than for
    /// the answer before.
    pub(crate) fn event(&self, driver: &Driver) -> Option<NewRunEvent> {
        let before = driver.state.entries.iter().rev().find_map(SessionEntry::assistant);
        let is_known = before.is_some_and(|answer| answer.cut_results >= self.cut_results);
        let data = json!({"status": "results_cut", "results": self.cut_results,
            "characters": self.cut_chars});
        (!is_known && self.cut_results > 0).then(|| run_event(RunEventKind::Status, data))
    }
}

/// Makes a request fit into the window: the oldest results are cut first, so that as many of the newest as possible stay whole.
/// The model can fetch the rest of them with `get_tool_response`, which is added to its tools if it may call tools.
///
/// # Errors
/// `context_too_long` if what must not be omitted exceeds the window.
pub(crate) fn fit(
    driver: &Driver,
    request: &mut ModelRequest,
    size: RequestSize,
    may_call: bool,
    estimated: u64,
) -> Step<FittedRequest> {
    let window = driver.agent.definition.settings().context.window_tokens;
    let mut fitted = FittedRequest { estimated, ..FittedRequest::default() };
    if size.tokens(estimated) <= window {
        return Ok(fitted);
    }
    let is_offered = request.tools.iter().any(|tool| tool.name == GET_TOOL_RESPONSE);
    if may_call && !is_offered {
        request.tools.push(response::tool());
    }
    let ids = execution_ids(&driver.state.entries, &request.messages);
    for (at, id) in ids {
        fitted.estimated = size.estimate.request(request);
        if size.tokens(fitted.estimated) <= window {
            break;
        }
        let ModelMessage::Tool { content, .. } = &request.messages[at] else { continue };
        let whole = content.clone();
        let mut max_chars = whole.chars().count();
        if max_chars <= LEAST_CHARS {
            continue;
        }
        while size.tokens(fitted.estimated) > window && max_chars > LEAST_CHARS {
            let excess = (size.tokens(fitted.estimated) - window).saturating_mul(TOKEN_CHARS);
            let excess = usize::try_from(excess).unwrap_or(usize::MAX);
            max_chars = max_chars.saturating_sub(excess).max(LEAST_CHARS);
            let ModelMessage::Tool { content, .. } = &mut request.messages[at] else { break };
            *content = Truncation { max_chars, max_tokens: None }.apply(&whole, &id).text;
            fitted.estimated = size.estimate.request(request);
        }
        fitted.cut_results += 1;
        fitted.cut_chars += max_chars;
    }
    let tokens = size.tokens(fitted.estimated);
    if tokens <= window {
        return Ok(fitted);
    }
    let why = format!(
        "the instructions, tools, the task and the latest turn take {tokens} tokens, and the window has \
         {window}: choose a profile with a larger window_tokens, or shorten the instructions or the task"
    );
    Err(StepError::Failed(RunFailure::new("context_too_long", why)))
}

/// Returns the positions of the results in a request, oldest first, with the execution id of each. The ids of providers
/// may repeat.
fn execution_ids(entries: &[SessionEntry], messages: &[ModelMessage]) -> Vec<(usize, String)> {
    let results = entries.iter().filter(|entry| entry::is_result(entry));
    let results: Vec<&ToolEntry> = results.filter_map(SessionEntry::tool).collect();
    let mut rest = &results[..];
    let mut ids = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let ModelMessage::Tool { call_id, .. } = message else { continue };
        let found = rest.iter().position(|result| result.provider_call_id == *call_id);
        match found {
            Some(next) => {
                ids.push((at, rest[next].call_id.clone()));
                rest = &rest[next + 1..];
            }
            // A placeholder of a call without a result.
            None => ids.push((at, call_id.clone())),
        }
    }
    ids
}
