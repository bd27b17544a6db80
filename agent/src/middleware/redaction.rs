//! Where personal data is redacted in a run: in what models receive, in answers, and in calls and their results.

use abide_definitions::middleware::{Middleware, PiiAt};
use abide_models::{ModelMessage, ModelRequest, ModelResponse};
use abide_tools::ToolOutcome;

use crate::context::summary::Summary;
use crate::middleware::redactor::Redactor;
use crate::run::driver::Driver;

/// Returns the rules of the run for one kind of text.
fn redactor_for(driver: &Driver, place: PiiAt) -> Option<Redactor<'_>> {
    Redactor::for_place(driver.middleware().filter_map(Middleware::pii), place)
}

/// Returns the rules for answers.
pub(crate) fn answer_redactor(driver: &Driver) -> Option<Redactor<'_>> {
    redactor_for(driver, PiiAt::Response)
}

/// Redacts what a model receives. The instructions of the definition stay as they are.
pub(crate) fn redact_request(driver: &Driver, request: &mut ModelRequest) {
    let Some(redactor) = redactor_for(driver, PiiAt::Request) else { return };
    if let Some(system) = &mut request.system {
        let own = driver.agent.definition.instructions.as_deref().unwrap_or_default();
        let begin = if system.starts_with(own) { own.len() } else { 0 };
        *system =
            format!("{}{}", &system[..begin], redactor.redact_part(system, begin..system.len()));
    }
    for message in &mut request.messages {
        match message {
            ModelMessage::System { text } | ModelMessage::User { text } => {
                redactor.replace(text);
            }
            ModelMessage::Assistant { text, reasoning, calls, carry } => {
                let mut changed = redactor.replace(text);
                changed |= reasoning.as_mut().is_some_and(|text| redactor.replace(text));
                for call in calls {
                    changed |= redactor.replace_json(&mut call.arguments);
                }
                let mut carried = carry.clone().unwrap_or_default();
                if changed || redactor.redact_value(&mut carried) {
                    *carry = None;
                }
            }
            ModelMessage::Tool { content, .. } => {
                redactor.replace(content);
            }
        }
    }
}

/// Returns a text that another model than the agent's receives, redacted like a request.
pub(crate) fn for_model(driver: &Driver, text: &str) -> String {
    redactor_for(driver, PiiAt::Request).map_or_else(|| text.to_owned(), |it| it.redact_text(text))
}

/// Returns a text that is published in place of one of the model's, redacted like an answer.
pub(crate) fn as_answer(driver: &Driver, text: &str) -> String {
    answer_redactor(driver).map_or_else(|| text.to_owned(), |it| it.redact_text(text))
}

/// Redacts each text of a summary, as a part of a request or of what a model answers.
pub(crate) fn redact_summary(driver: &Driver, summary: &mut Summary, place: PiiAt) {
    let Some(redactor) = redactor_for(driver, place) else { return };
    for text in summary.texts_mut() {
        redactor.replace(text);
    }
}

/// Redacts an answer: text and reasoning, and the arguments of its calls.
pub(crate) fn redact_answer(driver: &Driver, answer: &mut ModelResponse) {
    let mut changed = false;
    if let Some(redactor) = answer_redactor(driver) {
        changed |= match driver.agent.definition.response_format {
            Some(_) => redactor.replace_json(&mut answer.text),
            None => redactor.replace(&mut answer.text),
        };
        changed |= answer.reasoning.as_mut().is_some_and(|text| redactor.replace(text));
        let mut carried = answer.carry.clone().unwrap_or_default();
        changed |= redactor.redact_value(&mut carried);
    }
    if let Some(redactor) = redactor_for(driver, PiiAt::Arguments) {
        for call in &mut answer.calls {
            changed |= redactor.replace_json(&mut call.arguments);
        }
    }
    if changed {
        // It contains the same texts, and may be signed.
        answer.carry = None;
    }
}

/// Redacts the outcome of a call.
pub(crate) fn redact_outcome(driver: &Driver, outcome: &mut ToolOutcome) {
    let Some(redactor) = redactor_for(driver, PiiAt::Results) else { return };
    redactor.replace_json(&mut outcome.text);
    redactor.redact_value(&mut outcome.content);
}

/// Returns a result that another process has recorded, as the model and the session's messages get it.
pub(crate) fn redact_result(driver: &Driver, text: String) -> String {
    match redactor_for(driver, PiiAt::Results) {
        Some(redactor) => redactor.redact_json(&text),
        None => text,
    }
}
