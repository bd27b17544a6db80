//! Validation of a model's tool arguments against the tool's schema.
//!
//! Valid arguments are used unchanged. Only invalid ones are **repaired** (`repair.rs`): values of a wrong type are
//! converted, and the result is validated again. Nothing is added that the model did not write.
//!
//! A schema may come from an MCP server and arguments from a model, so the cost of validation is limited: before
//! each validation, the number of subschemas that apply to the arguments is counted (`abide-json-schema`).
//! Arguments above the limit are invalid.

mod messages;
mod repair;
mod validator;

#[cfg(test)]
mod tests;

use abide_json_integers as integers;
use abide_json_schema::Schema;
use jsonschema::PatternOptions;
use serde_json::{Map, Value};

use validator::BoundedValidator;
pub use validator::CheckedArguments;

/// Maximum number of errors to report; the model sees further ones in its next attempt.
const TOLD_ERRORS: usize = 5;

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
    /// Why the schema is invalid.
    pub fn of(schema: &Value) -> Result<Parameters, String> {
        integers::check(&schema.to_string()).map_err(|found| found.to_string())?;
        let linear = jsonschema::options().with_pattern_options(PatternOptions::regex());
        // Patterns are matched in linear time if possible. Patterns with lookaround need backtracking, which is
        // limited.
        let validator = linear.build(schema).or_else(|_| {
            let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS);
            jsonschema::options().with_pattern_options(patterns).build(schema)
        });
        let validator = validator.map_err(|why| why.to_string())?;
        let validator = BoundedValidator { validator, costs: Schema::compile_for_cost(schema)? };
        Ok(Parameters { schema: schema.clone(), validator })
    }

    /// Validates a model's text. An empty text means no arguments.
    ///
    /// # Errors
    /// Why the arguments are invalid.
    pub fn fit_text(&self, text: &str) -> Result<CheckedArguments, ArgumentsError> {
        if text.trim().is_empty() {
            return self.fit(Value::Object(Map::new()));
        }
        let arguments = serde_json::from_str(text).map_err(|why| {
            let takes = messages::parameters(&self.schema);
            ArgumentsError(format!("the arguments are not JSON: {why}. {takes}"))
        })?;
        integers::check(text).map_err(|found| {
            let takes = messages::parameters(&self.schema);
            ArgumentsError(format!("invalid arguments: {found}; {}. {takes}", integers::HINT))
        })?;
        self.fit(arguments)
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
            .ok_or_else(|| self.misfit(&arguments))
    }

    /// The errors of any value, without repair; `None` if it is valid.
    #[must_use]
    pub fn wrong_with(&self, value: &Value) -> Option<String> {
        if !self.validator.affords(value) {
            let wrong = "it has too many levels of nested alternatives";
            return Some(wrong.to_owned());
        }
        let mut errors = self.validator.iter_errors(value);
        let told: Vec<String> =
            errors.by_ref().take(TOLD_ERRORS).map(|e| messages::error(&e)).collect();
        let more = if errors.next().is_some() { ", and further errors" } else { "" };
        (!told.is_empty()).then(|| format!("{}{more}", told.join("; ")))
    }

    fn misfit(&self, arguments: &Value) -> ArgumentsError {
        let wrong = self.wrong_with(arguments).unwrap_or_default();
        let takes = messages::parameters(&self.schema);
        ArgumentsError(format!("invalid arguments: {wrong}. {takes}"))
    }
}

/// Maximum number of backtracking steps of a pattern with lookaround: enough for patterns for names or dates.
const BACKTRACKS: usize = 100_000;
