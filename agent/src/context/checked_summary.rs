//! A model's summary of older messages, after the middleware of the run. A summary is an output of a model like an answer: its
//! personal data is redacted, middleware in Rust can change it, and guardrails can deny it. Nothing of it is stored before.

use abide_definitions::middleware::PiiAt;
use abide_models::{ModelResponse, TokenEstimate};
use serde_json::json;

use crate::context::summarized::SummarizedContext;
use crate::context::summary::{Repairs, Summary};
use crate::middleware::{hooks, redaction, verdict};
use crate::run::driver::Driver;
use crate::run::step::Step;

/// A summary that may be stored, and its repairs.
pub(crate) struct CheckedSummary {
    pub(crate) summary: Summary,
    pub(crate) repairs: Repairs,
}

impl CheckedSummary {
    /// Repairs a summary after the one before it, and shortens it.
    pub(crate) fn new(
        mut summary: Summary,
        before: &Summary,
        max_tokens: u64,
        estimate: TokenEstimate,
    ) -> CheckedSummary {
        let repairs = summary.repair(before);
        summary.shorten(max_tokens, estimate);
        CheckedSummary { summary, repairs }
    }

    /// Returns the summary in a model's answer. `None` if the answer is not a summary, or if it is denied.
    pub(crate) async fn from_answer(
        driver: &Driver,
        answer: &ModelResponse,
        before: &Summary,
        max_tokens: u64,
        estimate: TokenEstimate,
    ) -> Step<Option<CheckedSummary>> {
        let Some(mut summary) = Summary::from_answer(&answer.text) else { return Ok(None) };
        // Before it is shortened: a part of an address does not match.
        redaction::redact_summary(driver, &mut summary, PiiAt::Response);
        let Some(summary) = apply_middleware(driver, answer, summary) else { return Ok(None) };
        let checked = CheckedSummary::new(summary, before, max_tokens, estimate);
        let is_allowed = verdict::allows_summary(driver, &checked.text()).await?;
        if !is_allowed {
            tracing::warn!(
                name: "summary_denied",
                run = driver.state.run.id,
                "a guardrail denies the model's summary"
            );
        }
        Ok(is_allowed.then_some(checked))
    }

    /// Returns all of its texts that are stored.
    fn text(&self) -> String {
        let Repairs { lost, revived } = &self.repairs;
        let repairs = lost.iter().chain(revived).cloned();
        [self.summary.items()].into_iter().chain(repairs).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the summary, as JSON, after `after_model` of middleware in Rust. `None` if it is denied, or not a summary
/// any more.
fn apply_middleware(driver: &Driver, answer: &ModelResponse, summary: Summary) -> Option<Summary> {
    if !hooks::hold_answers(driver) {
        return Some(summary);
    }
    let mut shown = ModelResponse {
        text: json!(summary).to_string(),
        reasoning: None,
        calls: Vec::new(),
        carry: None,
        ..answer.clone()
    };
    hooks::after_model(driver, &mut shown).ok()?;
    Summary::from_answer(&shown.text)
}

/// Returns the summary so far, as far as the run may show it. Another run of the session can have made it with other
/// middleware.
pub(crate) fn summary_so_far(driver: &Driver, context: &SummarizedContext) -> Summary {
    let mut summary = context.summary.clone();
    redaction::redact_summary(driver, &mut summary, PiiAt::Response);
    let is_of_model = context.row.as_ref().is_some_and(|row| row.origin == "model");
    if is_of_model && verdict::denies_other(driver, &summary.items()) {
        summary.retain(|text| !verdict::denies_other(driver, text));
    }
    summary
}
