//! What a model wrote as a tool's arguments, held to the tool's schema.
//!
//! They are taken as they are if they fit. Only if not, they are **repaired** (`repair.rs`): values that stand there
//! in another type than was asked for are re-typed, and the whole is held to the schema again. Nothing is added that
//! the model did not write, and what fits is never touched.
//!
//! A schema may come from an MCP server and arguments from a model, so what they cost together is bounded: before each
//! look at arguments it is counted how many subschemas apply to them (`abide-json-schema`). What is over the bound does not
//! fit.

mod repair;
mod told;

#[cfg(test)]
mod tests;

use abide_json_integers as integers;
use abide_json_schema::Schema;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

/// What was wrong with arguments is told up to so many places: whoever mends these will see the rest.
const TOLD_ERRORS: usize = 5;

/// The schema of a tool's arguments, ready to be held against.
pub struct Parameters {
    schema: Value,
    validator: Bounded,
}

/// A validator that looks at no value that takes it too long.
struct Bounded {
    validator: Validator,
    costs: Schema,
}

impl Bounded {
    fn affords(&self, value: &Value) -> bool {
        self.costs.cost(value, STEPS).is_ok()
    }

    /// Whether a value fits. One that takes too long does not.
    fn is_valid(&self, value: &Value) -> bool {
        self.affords(value) && self.validator.is_valid(value)
    }

    /// What is wrong with a value; no errors where the evaluation takes too long.
    fn iter_errors<'a>(&'a self, value: &'a Value) -> impl Iterator<Item = ValidationError<'a>> {
        self.affords(value).then(|| self.validator.iter_errors(value)).into_iter().flatten()
    }
}

/// Arguments that fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// What the tool is to be called with.
    pub arguments: Value,
    /// What was re-typed, in words, in the order in which it was. Empty if they came as they are.
    pub repairs: Vec<String>,
}

/// Why arguments do not fit, in words that let a model write better ones: what is wrong, and which parameters of
/// which types there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misfit(String);

impl Parameters {
    /// Reads a schema: any JSON Schema 2020-12, or of the draft that its `$schema` names. Nothing is fetched that it
    /// refers to.
    ///
    /// # Errors
    /// Why it is none.
    pub fn of(schema: &Value) -> Result<Parameters, String> {
        integers::check(&schema.to_string()).map_err(|found| found.to_string())?;
        let linear = jsonschema::options().with_pattern_options(PatternOptions::regex());
        // Patterns are matched in linear time where they can be. Those that look around cannot, and are matched
        // with a bound on how often they may step back.
        let validator = linear.build(schema).or_else(|_| {
            let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS);
            jsonschema::options().with_pattern_options(patterns).build(schema)
        });
        let validator = validator.map_err(|why| why.to_string())?;
        let validator = Bounded { validator, costs: Schema::compile_for_cost(schema)? };
        Ok(Parameters { schema: schema.clone(), validator })
    }

    /// Takes what a model wrote. Nothing at all stands for no arguments.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn fit_text(&self, text: &str) -> Result<Fitted, Misfit> {
        if text.trim().is_empty() {
            return self.fit(Value::Object(Map::new()));
        }
        let arguments = serde_json::from_str(text).map_err(|why| {
            let takes = told::parameters(&self.schema);
            Misfit(format!("the arguments are not JSON: {why}. {takes}"))
        })?;
        integers::check(text).map_err(|found| {
            let takes = told::parameters(&self.schema);
            Misfit(format!("the arguments do not fit: {found}; {}. {takes}", integers::HINT))
        })?;
        self.fit(arguments)
    }

    /// Takes arguments as they are, or repaired.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn fit(&self, arguments: Value) -> Result<Fitted, Misfit> {
        if self.validator.is_valid(&arguments) {
            return Ok(Fitted { arguments, repairs: Vec::new() });
        }
        repair::repair(&self.validator, &self.schema, &arguments)
            .ok_or_else(|| self.misfit(&arguments))
    }

    /// What is wrong with a value as it stands, whatever it is of; none if nothing is.
    #[must_use]
    pub fn wrong_with(&self, value: &Value) -> Option<String> {
        if !self.validator.affords(value) {
            let wrong = "it nests too many alternatives: the schema's for each level of it";
            return Some(wrong.to_owned());
        }
        let mut errors = self.validator.iter_errors(value);
        let told: Vec<String> =
            errors.by_ref().take(TOLD_ERRORS).map(|e| told::error(&e)).collect();
        let more = if errors.next().is_some() { ", and more" } else { "" };
        (!told.is_empty()).then(|| format!("{}{more}", told.join("; ")))
    }

    fn misfit(&self, arguments: &Value) -> Misfit {
        let wrong = self.wrong_with(arguments).unwrap_or_default();
        let takes = told::parameters(&self.schema);
        Misfit(format!("the arguments do not fit: {wrong}. {takes}"))
    }
}

/// Subschemas that may apply to arguments, each counted as often as it does. An error is kept for each in the worst case.
const STEPS: u64 = 300_000;

/// How often a pattern that looks around may step back: enough for any that was written for a name or a date.
const BACKTRACKS: usize = 100_000;
