//! Structured answers: a definition's `response_format` applies to the final answer of a run. The model gets one
//! chance to correct an answer that does not match; then the run fails. A mismatch is never reported as a
//! structured answer.

use abide_client::Call;
use abide_json_integers as integers;
use abide_tools::Parameters;
use serde_json::Value;

use crate::driver::Driver;
use crate::next_step;
use crate::step::{Failure, StepError};
use crate::transcript::{REPAIR, RepairEntry, data};

/// How often a model may correct its answer in one run.
pub(crate) const REPAIRS: usize = 1;

/// An answer, checked against the schema.
pub(crate) enum StructuredAnswer {
    /// There is no schema, or a guardrail has replaced the answer.
    Free,
    /// It matches.
    Fits(Value),
    /// It does not match, for this reason.
    Mismatch(String),
}

/// Checks the run's last answer.
pub(crate) fn judge(driver: &Driver, text: &str) -> StructuredAnswer {
    let Some(schema) = &driver.definition.response_format else { return StructuredAnswer::Free };
    let of_the_model = next_step::last_answer(&driver.run, &driver.entries)
        .is_some_and(|(_, said)| said.iteration > 0 && said.original.is_none());
    if !of_the_model {
        return StructuredAnswer::Free;
    }
    of_text(schema, text)
}

/// Checks the answer of a foreign program: its structured output if it has one, else its text.
pub(crate) fn of_program(schema: &Value, told: Option<Value>, text: &str) -> StructuredAnswer {
    match told {
        Some(value) => held_to(schema, value),
        None => of_text(schema, text),
    }
}

fn of_text(schema: &Value, text: &str) -> StructuredAnswer {
    let text = unfenced(text);
    match serde_json::from_str(text) {
        Ok(value) => match integers::check(text) {
            Ok(()) => held_to(schema, value),
            Err(found) => StructuredAnswer::Mismatch(format!("{found}: use a string")),
        },
        Err(why) => StructuredAnswer::Mismatch(format!("it is not JSON: {why}")),
    }
}

/// Checks a value against a schema.
fn held_to(schema: &Value, value: Value) -> StructuredAnswer {
    match Parameters::of(schema) {
        Ok(schema) => schema
            .wrong_with(&value)
            .map_or(StructuredAnswer::Fits(value), StructuredAnswer::Mismatch),
        Err(why) => StructuredAnswer::Mismatch(format!(
            "the response_format is not a supported JSON Schema: {why}"
        )),
    }
}

/// How many corrections this run has already requested.
pub(crate) fn repairs(driver: &Driver) -> usize {
    let told = driver.entries.iter().filter(|entry| entry.kind == REPAIR);
    told.filter(|entry| data::<RepairEntry>(entry).run_id == driver.run.id).count()
}

/// The call that asks the model for a correction.
pub(crate) fn repair(driver: &Driver, why: &str) -> Call {
    let text = format!(
        "Your answer does not match the required format: {why}. Answer again, with JSON in that format and \
         nothing else."
    );
    let told = RepairEntry { run_id: driver.run.id.clone() };
    driver.message("system", text, &told).kind(REPAIR).into()
}

/// The failure of a run without a matching answer.
pub(crate) fn failed(why: &str) -> StepError {
    StepError::Failed(mismatch(why))
}

/// The failure of a run without a matching answer, before it is a step's result.
pub(crate) fn mismatch(why: &str) -> Failure {
    let message = format!("the answer does not match the response_format: {why}");
    Failure::new("response_format_mismatch", message)
}

/// The text without the code fence that many models add.
fn unfenced(text: &str) -> &str {
    let text = text.trim();
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    match inner.and_then(|inner| inner.split_once('\n')) {
        Some((language, inner)) if language.trim().chars().all(char::is_alphanumeric) => {
            inner.trim()
        }
        _ => text,
    }
}
