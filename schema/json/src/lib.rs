//! JSON Schema with a bound on every evaluation.
//!
//! It changes when the supported part of JSON Schema changes. Untrusted callers supply schemas, and an
//! evaluation can take exponential time: a recursive `oneOf` tries every branch at every level. So an
//! [evaluation](Schema::check) counts its steps, stops when the budget is used up, and keeps one error, or
//! a limited number of them, instead of a tree. The outcome depends on schema, value and budget alone, so a replay decides the same.
//!
//! Supported drafts: 2020-12, 2019-09, 7, 6 and 4 (selected by "$schema"; default 2020-12). `format` and the
//! `content…` keywords are annotations, as the specification allows. References must stay within the same
//! document. [`Schema::compile`] refuses a nested `$id` and patterns that cannot be matched in linear time, such as
//! lookaround; unknown keywords are annotations.

mod compile;
mod equality;
mod evaluate;
mod json_type;
mod mismatch;
mod number;
mod schema;
mod text;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use json_type::JsonType;
pub use mismatch::{BudgetExhausted, Failure, Mismatch, MismatchKind};
pub use schema::{DEPTH, Schema};

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// A description of the invalid or unsupported part.
    pub fn compile(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema)
    }

    /// Checks a value within a step budget. A step is a subschema, a comparison or a few bytes of text.
    ///
    /// # Errors
    /// A [`Failure`]: the first mismatch.
    pub fn check(&self, value: &Value, steps: u64) -> Result<(), Failure> {
        evaluate::check(self, value, steps)
    }

    /// Returns the mismatches of a value, at most `most` (at least 1), including those in alternatives; none if the
    /// value matches. Needs more steps than [`check`](Schema::check) of a value that does not match.
    ///
    /// # Errors
    /// [`BudgetExhausted`] if the evaluation exceeds the step budget.
    pub fn mismatches(
        &self,
        value: &Value,
        steps: u64,
        most: usize,
    ) -> Result<Vec<Mismatch>, BudgetExhausted> {
        evaluate::mismatches(self, value, steps, most)
    }
}
