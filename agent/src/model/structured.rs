//! Structured answers: a definition's `response_format` applies to the final answer of a run. The provider enforces
//! it, or the model calls the hidden tool `response`, whose arguments are the answer; it has no events and no rows of
//! its own. Text counts in both cases if JSON in it matches. The model can correct an answer that does not match a few times;
//! then the run fails. A mismatch is never reported as a structured answer.

use abide_client::Call;
use abide_client::rules::DERIVED;
use abide_definitions::agent_tool::RESPONSE;
use abide_json_integers as integers;
use abide_models::{ModelCall, StructuredOutput, ToolSpec};
use abide_tools::Parameters;
use serde_json::{Value, json};

use crate::context::entry::{REPAIR, RepairEntry, SessionEntry, data};
use crate::model;
use crate::model::embedded_json;
use crate::run::driver::Driver;
use crate::run::step::{RunFailure, Step, StepError};

/// How often a model may correct its answer in one run, if the provider enforces the schema.
const REPAIRS: usize = 1;

/// How often it may correct an answer that is a call of the tool `response`: such models are often smaller.
const RESPONSE_REPAIRS: usize = 3;

/// The part of the instructions about the tool.
pub(crate) const RESPONSE_RULES: &str = "When the work is done, call the tool response exactly \
once. Its arguments are your final answer. Do not write the answer as text.";

/// Returns the schema of the answer if the model gives it by the tool.
pub(crate) fn by_tool(driver: &Driver, output: StructuredOutput) -> Option<&Value> {
    driver.agent.definition.response_format.as_ref().filter(|_| output == StructuredOutput::Tool)
}

/// Returns the tool as the model sees it. Arguments are an object, so another answer is the member `value` of one.
pub(crate) fn spec(schema: &Value) -> ToolSpec {
    let parameters = if schema["type"] == "object" {
        schema.clone()
    } else {
        json!({"type": "object", "properties": {"value": schema}, "required": ["value"],
            "additionalProperties": false})
    };
    let description = "Gives the final answer. Call it exactly once, when the work is done.";
    ToolSpec { name: RESPONSE.to_owned(), description: description.to_owned(), parameters }
}

/// Returns the answer in the first call of the tool: its JSON, or why it does not match.
pub(crate) fn answer_in_calls(
    schema: &Value,
    calls: &[ModelCall],
) -> Option<Result<String, String>> {
    let call = calls.iter().find(|call| call.name == RESPONSE)?;
    let spec = spec(schema);
    let fitted = Parameters::compile(&spec.parameters)
        .and_then(|it| it.fit_text(&call.arguments).map_err(|why| format!("{RESPONSE}: {why}")));
    let answer = fitted.map(|fitted| {
        if schema["type"] == "object" {
            fitted.arguments
        } else {
            fitted.arguments["value"].clone()
        }
    });
    Some(answer.map(|answer| answer.to_string()))
}

/// Returns `true` if the model may correct its answer once more.
pub(crate) fn may_repair(driver: &Driver) -> bool {
    let output = model::choice::agent_candidates(driver).map(|it| it.structured_output);
    let max = match output.unwrap_or_default() {
        StructuredOutput::Native => REPAIRS,
        StructuredOutput::Tool => RESPONSE_REPAIRS,
    };
    repairs(driver) < max
}

/// Fails a run whose model calls the tool with wrong arguments again and again.
pub(crate) fn check_repairs(driver: &Driver) -> Step {
    if driver.agent.definition.response_format.is_none() {
        return Ok(());
    }
    let Some(last) = driver.state.entries.iter().rfind(|entry| is_refused_response(driver, entry))
    else {
        return Ok(());
    };
    if repairs(driver) > RESPONSE_REPAIRS {
        Err(mismatch_error(last.content.as_deref().unwrap_or_default()))
    } else {
        Ok(())
    }
}

/// Returns `true` if an entry is the error of a call of the tool in this run.
fn is_refused_response(driver: &Driver, entry: &SessionEntry) -> bool {
    let Some(result) = entry.tool() else { return false };
    let of_run =
        result.call_id.rsplit_once(DERIVED).is_some_and(|(run, _)| run == driver.state.run.id);
    of_run && result.is_error && result.name == RESPONSE
}

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
pub(crate) fn evaluate(driver: &Driver, text: &str) -> StructuredAnswer {
    let Some(schema) = &driver.agent.definition.response_format else {
        return StructuredAnswer::Free;
    };
    let of_the_model =
        driver.state.last_answer().is_some_and(|(_, answer)| answer.is_of_the_model());
    if !of_the_model {
        return StructuredAnswer::Free;
    }
    check_text(schema, text)
}

/// Checks the answer of a command-line program: its structured output if it has one, else its text.
pub(crate) fn check_program_answer(
    schema: &Value,
    reported: Option<Value>,
    text: &str,
) -> StructuredAnswer {
    let Some(value) = reported else { return check_text(schema, text) };
    match parameters(schema) {
        Ok(schema) => check_value(&schema, value),
        Err(why) => StructuredAnswer::Mismatch(why),
    }
}

/// Checks the JSON in a text. If several values match, the last one is the answer.
fn check_text(schema: &Value, text: &str) -> StructuredAnswer {
    let schema = match parameters(schema) {
        Ok(schema) => schema,
        Err(why) => return StructuredAnswer::Mismatch(why),
    };
    let values = embedded_json::find(text);
    // Prose has brackets of other kinds, so an object explains a mismatch best.
    let explains = values.iter().rposition(|json| json.value.is_object());
    let explains = explains.or(values.len().checked_sub(1));
    let mut mismatch = None;
    for (at, json) in values.into_iter().enumerate().rev() {
        let checked = match integers::check(json.source) {
            Ok(()) => check_value(&schema, json.value),
            Err(found) => StructuredAnswer::Mismatch(format!("{found}: use a string")),
        };
        match checked {
            StructuredAnswer::Mismatch(why) if Some(at) == explains => mismatch = Some(why),
            StructuredAnswer::Mismatch(_) => {}
            fitting => return fitting,
        }
    }
    StructuredAnswer::Mismatch(mismatch.unwrap_or_else(|| not_json(text)))
}

/// Says why a text without any JSON is no answer.
fn not_json(text: &str) -> String {
    let text = text.trim();
    match serde_json::from_str::<Value>(text) {
        _ if text.is_empty() => "it is empty".to_owned(),
        Ok(_) => "it is not JSON".to_owned(),
        Err(why) => format!("it is not JSON: {why}"),
    }
}

fn parameters(schema: &Value) -> Result<Parameters, String> {
    Parameters::compile(schema)
        .map_err(|why| format!("the response_format is not a supported JSON Schema: {why}"))
}

/// Checks a value against a schema.
fn check_value(schema: &Parameters, value: Value) -> StructuredAnswer {
    if let Err(found) = integers::check_depth(&value) {
        return StructuredAnswer::Mismatch(format!("it {found}"));
    }
    schema.wrong_with(&value).map_or(StructuredAnswer::Fits(value), StructuredAnswer::Mismatch)
}

/// Returns how many corrections this run has already requested.
fn repairs(driver: &Driver) -> usize {
    driver
        .state
        .entries
        .iter()
        .filter(|entry| {
            (entry.kind == REPAIR && data::<RepairEntry>(entry).run_id == driver.state.run.id)
                || is_refused_response(driver, entry)
        })
        .count()
}

/// Returns the call that asks the model for a correction.
pub(crate) fn repair(driver: &Driver, why: &str) -> Call {
    let text = format!(
        "Your answer does not match the required format: {why}. Answer again, with JSON in that format and \
         nothing else."
    );
    let reported = RepairEntry { run_id: driver.state.run.id.clone() };
    driver.message("system", text, &reported).kind(REPAIR).into()
}

/// Returns the failure of a run without a matching answer.
pub(crate) fn mismatch_error(why: &str) -> StepError {
    StepError::Failed(mismatch(why))
}

/// Returns the failure of a run without a matching answer, before it is a step's result.
pub(crate) fn mismatch(why: &str) -> RunFailure {
    let message = format!("the answer does not match the response_format: {why}");
    RunFailure::new("response_format_mismatch", message)
}
