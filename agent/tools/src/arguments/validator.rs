//! A validator with bounded cost, and the arguments that pass it.

use abide_json_schema::Schema;
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

/// A validator that refuses values whose validation is too expensive.
pub(super) struct BoundedValidator {
    pub(super) validator: Validator,
    pub(super) costs: Schema,
}

impl BoundedValidator {
    pub(super) fn affords(&self, value: &Value) -> bool {
        self.costs.cost(value, STEPS).is_ok()
    }

    /// Whether a value is valid. A value that is too expensive is not.
    pub(super) fn is_valid(&self, value: &Value) -> bool {
        self.affords(value) && self.validator.is_valid(value)
    }

    /// The errors of a value; none if the validation is too expensive.
    pub(super) fn iter_errors<'a>(
        &'a self,
        value: &'a Value,
    ) -> impl Iterator<Item = ValidationError<'a>> {
        self.affords(value).then(|| self.validator.iter_errors(value)).into_iter().flatten()
    }
}

/// Maximum number of subschemas that may apply to arguments, with repetitions. In the worst case, each one stores
/// an error.
const STEPS: u64 = 300_000;

/// Valid arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedArguments {
    /// The arguments to call the tool with.
    pub arguments: Value,
    /// Descriptions of the conversions, in order; empty if there are none.
    pub repairs: Vec<String>,
}
