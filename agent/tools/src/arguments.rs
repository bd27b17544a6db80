//! Validation of a model's tool arguments against the tool's schema.
//!
//! Valid arguments are used unchanged. Only invalid ones are **repaired** (`repair.rs`): values of a wrong type are
//! converted, and the result is validated again. Nothing is added that the model did not write.
//!
//! A schema may come from an MCP server and arguments from a model, so each validation counts its steps
//! (`abide-json-schema`). Arguments that take too many are invalid. The schemas that are refused here are also
//! refused by `register_tool`.

mod decimals;
mod messages;
mod repair;
mod validator;

#[cfg(test)]
mod tests;

use abide_json_integers as integers;
use abide_json_schema::BudgetExhausted;
use serde_json::{Map, Value};

use validator::BoundedValidator;
pub use validator::CheckedArguments;

/// Maximum number of errors to report; the model sees further ones in its next attempt.
const TOLD_ERRORS: usize = 5;

/// Maximum number of collected errors, including those of alternatives.
const COLLECTED_ERRORS: usize = 100;

/// Maximum length of a number in an error.
const SHOWN_BYTES: usize = 80;

/// A compiled schema of a tool's arguments.
pub struct Parameters {
    schema: Value,
    validator: BoundedValidator,
}

/// Why arguments are invalid, as a text that helps a model to correct them: the errors, and the parameters with
/// their types.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArgumentsError(String);

impl Parameters {
    /// Compiles a schema: JSON Schema 2020-12, or the draft in its `$schema`. Remote references are not fetched.
    ///
    /// # Errors
    /// Why the schema is invalid or not supported.
    pub fn compile(schema: &Value) -> Result<Parameters, String> {
        integers::check(&schema.to_string()).map_err(|found| found.to_string())?;
        let validator = BoundedValidator::compile(schema)?;
        Ok(Parameters { schema: schema.clone(), validator })
    }

    /// Validates a model's text. For a tool without parameters an empty text means no arguments. For other tools it is an
    /// error, even if no parameter is required: providers leave it empty for a call whose arguments were lost, and the tool
    /// would run with other arguments than the model chose.
    ///
    /// # Errors
    /// Why the arguments are invalid.
    pub fn fit_text(&self, text: &str) -> Result<CheckedArguments, ArgumentsError> {
        if matches!(text.trim(), "" | "\"\"") {
            if self.has_parameters() {
                let takes = messages::parameters(&self.schema);
                let why = format!("the arguments are empty; send {{}} for none. {takes}");
                return Err(ArgumentsError(why));
            }
            return self.fit(Value::Object(Map::new()));
        }
        let arguments = serde_json::from_str(text).map_err(|why| {
            let takes = messages::parameters(&self.schema);
            ArgumentsError(format!("the arguments are not JSON: {why}. {takes}"))
        })?;
        integers::check_depth(&arguments).map_err(|found| {
            let hint = integers::DEPTH_HINT;
            ArgumentsError(format!("invalid arguments: the JSON {found}; {hint}"))
        })?;
        integers::check(text).map_err(|found| {
            let takes = messages::parameters(&self.schema);
            ArgumentsError(format!("invalid arguments: {found}; {}. {takes}", integers::HINT))
        })?;
        if let Some(number) = decimals::first_inexact(text) {
            let shown = &number[..number.len().min(SHOWN_BYTES)];
            let takes = messages::parameters(&self.schema);
            return Err(ArgumentsError(format!(
                "invalid arguments: the number {shown} has more digits than a double keeps; round it, or send it as a string. {takes}"
            )));
        }
        self.fit(arguments)
    }

    /// Whether the schema names a property, or could accept one that it does not name.
    fn has_parameters(&self) -> bool {
        let is_named = |name: &str| {
            self.schema[name].as_object().is_some_and(|properties| !properties.is_empty())
        };
        let combines = ["$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"];
        is_named("properties")
            || is_named("patternProperties")
            || is_named("additionalProperties")
            || combines.iter().any(|keyword| self.schema.get(*keyword).is_some())
    }

    /// Validates arguments, and repairs them if necessary.
    ///
    /// # Errors
    /// Why the arguments are invalid.
    pub fn fit(&self, arguments: Value) -> Result<CheckedArguments, ArgumentsError> {
        if self.validator.is_valid(&arguments) {
            return Ok(CheckedArguments { arguments, repairs: Vec::new() });
        }
        repair::repair(&self.validator, &self.schema, &arguments)
            .ok_or_else(|| self.mismatch(&arguments))
    }

    /// Validates arguments that may no longer change, because an approver may have seen them.
    ///
    /// # Errors
    /// Why the arguments are invalid.
    pub fn accept(&self, arguments: Value) -> Result<CheckedArguments, ArgumentsError> {
        if self.validator.is_valid(&arguments) {
            Ok(CheckedArguments { arguments, repairs: Vec::new() })
        } else {
            Err(self.mismatch(&arguments))
        }
    }

    /// The errors of any value, without repair; `None` if it is valid.
    #[must_use]
    pub fn wrong_with(&self, value: &Value) -> Option<String> {
        let first = match self.validator.first(value) {
            Ok(first) => first?,
            Err(BudgetExhausted) => {
                return Some("it has too many levels of nested alternatives".to_owned());
            }
        };
        let errors = self.validator.mismatches(value, COLLECTED_ERRORS);
        if errors.is_empty() {
            // Finding all of them is too expensive.
            let (path, what) = first;
            return Some(messages::error_at(&path, &what));
        }
        let messages_list: Vec<String> =
            errors.iter().take(TOLD_ERRORS).map(messages::error).collect();
        let more = if errors.len() > TOLD_ERRORS { ", and further errors" } else { "" };
        Some(format!("{}{more}", messages_list.join("; ")))
    }

    fn mismatch(&self, arguments: &Value) -> ArgumentsError {
        let wrong = self.wrong_with(arguments).unwrap_or_default();
        let takes = messages::parameters(&self.schema);
        ArgumentsError(format!("invalid arguments: {wrong}. {takes}"))
    }
}
