//! The size of requests in tokens: from the usage that the provider reported for the last request, where it did, and
//! from an estimate for the family of the model. A request that exceeds the window is never sent.

use abide_models::{ModelMessage, ModelRequest, TokenEstimate};

use crate::context::entry::SessionEntry;
use crate::context::truncation::Truncation;
use crate::run::driver::Driver;
use crate::run::step::{Failure, Step, StepError};

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
    /// The size of the next request of a run.
    pub(crate) fn of(driver: &Driver, model: &str) -> RequestSize {
        let answers = driver.entries.iter().rev().filter_map(SessionEntry::assistant);
        let recent = answers.take(RECENT);
        let mut reported = recent.filter(|it| it.estimated_tokens > 0);
        let ratio = reported.next().map_or(1.0, |it| {
            // A report that differs by more is no measurement of this text.
            (it.input_tokens as f64 / it.estimated_tokens as f64).clamp(0.5, 3.0)
        });
        RequestSize { estimate: TokenEstimate::of_model(model), ratio }
    }

    /// Estimated tokens, as the provider is expected to count them.
    pub(crate) fn tokens(&self, estimated: u64) -> u64 {
        (estimated as f64 * self.ratio).ceil() as u64
    }

    /// A number of tokens in terms of the estimate.
    pub(crate) fn estimated(&self, tokens: u64) -> u64 {
        (tokens as f64 / self.ratio).floor() as u64
    }

    /// Estimated tokens of messages.
    pub(crate) fn of_messages(&self, messages: &[ModelMessage]) -> u64 {
        messages.iter().map(|message| self.estimate.message(message)).sum()
    }
}

/// The least size of a shortened result in characters.
const LEAST_CHARS: usize = 400;

/// Makes a request fit into the window: the largest results of the latest turn are shortened, and the model can fetch
/// the rest of them.
///
/// Takes and returns its estimated tokens.
///
/// # Errors
/// `context_too_long` if what must not be omitted exceeds the window.
pub(crate) fn fit(
    driver: &Driver,
    request: &mut ModelRequest,
    size: RequestSize,
    mut estimated: u64,
) -> Step<u64> {
    let window = driver.definition.settings().context.window_tokens;
    loop {
        let tokens = size.tokens(estimated);
        if tokens <= window {
            return Ok(estimated);
        }
        let excess = usize::try_from((tokens - window) * 4).unwrap_or(usize::MAX);
        let results = request.messages.iter_mut().filter_map(|message| match message {
            ModelMessage::Tool { call_id, content, .. } => Some((call_id, content)),
            _ => None,
        });
        let largest = results.max_by_key(|(_, content)| content.len());
        let Some((call_id, content)) = largest.filter(|(_, it)| it.chars().count() > LEAST_CHARS)
        else {
            let why = format!(
                "the instructions, tools, the task and the latest turn take {tokens} tokens, and the window has \
                 {window}: choose a profile with a larger window_tokens, or shorten the instructions or the task"
            );
            return Err(StepError::Failed(Failure::new("context_too_long", why)));
        };
        let chars = content.chars().count();
        let max_chars = chars.saturating_sub(excess).max(chars / 2).max(LEAST_CHARS);
        let shortened = Truncation { max_chars, max_tokens: None }.apply(content, call_id).text;
        // The marker takes some space, so a result just above the least size may not get smaller.
        match shortened.len() < content.len() {
            true => *content = shortened,
            false => {
                let end = content.char_indices().nth(LEAST_CHARS);
                content.truncate(end.map_or(content.len(), |(at, _)| at));
            }
        }
        estimated = size.estimate.request(request);
    }
}
