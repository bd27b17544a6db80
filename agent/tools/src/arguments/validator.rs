//! A validator with bounded cost, and the arguments that pass it.

use abide_json_schema::{BudgetExhausted, Failure, Mismatch, Schema};
use serde_json::Value;

/// Maximum number of steps of an evaluation: the same as for `request_tool_call`.
const STEPS: u64 = 500_000;

/// A validator that refuses values whose validation is too expensive.
pub(super) struct BoundedValidator {
    schema: Schema,
}

impl BoundedValidator {
    /// # Errors
    /// A description of the invalid or unsupported part of the schema.
    pub(super) fn compile(schema: &Value) -> Result<BoundedValidator, String> {
        Schema::compile(schema).map(|schema| BoundedValidator { schema })
    }

    /// Returns `true` if a value is valid. A value that is too expensive is not.
    pub(super) fn is_valid(&self, value: &Value) -> bool {
        self.schema.check(value, STEPS).is_ok()
    }

    /// Returns the mismatches of a value, at most `max`; none if it is too expensive to find all of them.
    pub(super) fn mismatches(&self, value: &Value, max: usize) -> Vec<Mismatch> {
        self.schema.mismatches(value, STEPS, max).unwrap_or_default()
    }

    /// Returns the first mismatch of an invalid value: its location and a description.
    ///
    /// # Errors
    /// [`BudgetExhausted`] if the value is too expensive.
    pub(super) fn first(&self, value: &Value) -> Result<Option<(String, String)>, BudgetExhausted> {
        match self.schema.check(value, STEPS) {
            Ok(()) => Ok(None),
            Err(Failure::Mismatch { path, what }) => Ok(Some((path, what))),
            Err(Failure::OverBudget) => Err(BudgetExhausted),
        }
    }
}

/// Valid arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedArguments {
    /// The arguments to call the tool with.
    pub arguments: Value,
    /// Descriptions of the conversions, in order; empty if there are none.
    pub repairs: Vec<String>,
}
