//! Answers of a shape: a definition's `response_format` holds for the last answer of a run. A model that misses it is
//! told what is wrong, once; then the run fails. What does not fit is never told as if it did.

use abide_client::{Call, Message};
use abide_json_integers as integers;
use abide_tools::Parameters;
use serde_json::Value;

use crate::drive::{Driver, Failure, Halt};
use crate::stage;
use crate::transcript::{REPAIR, Repair, data};

/// How often a model is told in one run that its answer does not fit.
pub(crate) const REPAIRS: usize = 1;

/// An answer, held to what was asked for.
pub(crate) enum Judged {
    /// No shape was asked for, or a guardrail has spoken instead of the model.
    Free,
    /// It is this.
    Fits(Value),
    /// What is wrong with it.
    Misfit(String),
}

/// Judges the run's last answer.
pub(crate) fn judge(driver: &Driver, text: &str) -> Judged {
    let Some(schema) = &driver.definition.response_format else { return Judged::Free };
    let of_the_model = stage::last_answer(&driver.run, &driver.entries)
        .is_some_and(|(_, said)| said.iteration > 0 && said.original.is_none());
    if !of_the_model {
        return Judged::Free;
    }
    of_text(schema, text)
}

/// Judges what a foreign program answers: as data, where it tells some, else as text.
pub(crate) fn of_program(schema: &Value, told: Option<Value>, text: &str) -> Judged {
    match told {
        Some(value) => held_to(schema, value),
        None => of_text(schema, text),
    }
}

fn of_text(schema: &Value, text: &str) -> Judged {
    let text = unfenced(text);
    match serde_json::from_str(text) {
        Ok(value) => match integers::check(text) {
            Ok(()) => held_to(schema, value),
            Err(found) => Judged::Misfit(format!("{found}: write it as a string")),
        },
        Err(why) => Judged::Misfit(format!("it is not JSON: {why}")),
    }
}

/// A value, held to a schema.
fn held_to(schema: &Value, value: Value) -> Judged {
    match Parameters::of(schema) {
        Ok(schema) => schema.wrong_with(&value).map_or(Judged::Fits(value), Judged::Misfit),
        Err(why) => Judged::Misfit(format!("the response_format is no JSON Schema: {why}")),
    }
}

/// How often the model has been told so in this run.
pub(crate) fn repairs(driver: &Driver) -> usize {
    let told = driver.entries.iter().filter(|entry| entry.kind == REPAIR);
    told.filter(|entry| data::<Repair>(entry).run_id == driver.run.id).count()
}

/// The call that tells the model what is wrong with its answer.
pub(crate) fn repair(driver: &Driver, why: &str) -> Call {
    let text = format!(
        "Your answer does not have the form that was asked for: {why}. Answer again, with JSON of that form and \
         nothing else."
    );
    let told = Repair { run_id: driver.run.id.clone() };
    driver.message(Message::system(text).kind(REPAIR), &told)
}

/// What a run is told of that has no answer that fits.
pub(crate) fn failed(why: &str) -> Halt {
    let message = format!("the answer does not have the form that was asked for: {why}");
    Halt::Failed(Failure::new("response_format_mismatch", message))
}

/// The text without a code fence around it, which many models put there.
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
