//! Why a value does not match a schema.

use crate::json_type::JsonType;

/// Why a value was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The value does not match.
    Mismatch {
        /// The position, as a JSON pointer.
        path: String,
        /// The mismatch at that position.
        what: String,
    },
    /// The evaluation exceeds the step budget, or nests more than [`DEPTH`](crate::DEPTH) subschemas.
    OverBudget,
}

/// The step budget is used up, or more than [`DEPTH`](crate::DEPTH) subschemas are nested: there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetExhausted;

/// A mismatch between a value and a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The position in the value, as a JSON pointer.
    pub path: String,
    /// A description. It quotes at most a few hundred bytes of each value.
    pub what: String,
    /// The kind of the mismatch.
    pub kind: MismatchKind,
}

/// The kind of a mismatch, as far as a caller can use it to correct a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MismatchKind {
    /// The value has none of these types.
    Type(Vec<JsonType>),
    /// The object has no member with this name.
    Missing(String),
    /// The value matches none of the subschemas of `anyOf` or `oneOf`: the mismatches with each of them, in order.
    /// A list is empty if the limit of mismatches was reached.
    Alternatives(Vec<Vec<Mismatch>>),
    /// Any other.
    Other,
}
