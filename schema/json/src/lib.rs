//! JSON Schema with a bound on every evaluation.
//!
//! It changes when the supported part of JSON Schema changes. Untrusted callers supply schemas, and an
//! evaluation can take exponential time: a recursive `oneOf` tries every branch at every level. So an
//! [evaluation](Schema::check) counts its steps, stops when the budget is used up, and keeps one error instead of
//! a tree. The outcome depends on schema, value and budget alone, so a replay decides the same.
//!
//! Supported drafts: 2020-12, 2019-09, 7, 6 and 4 (selected by "$schema"; default 2020-12). `format` and the
//! `content…` keywords are annotations, as the specification allows. References must stay within the same
//! document. [`Schema::compile`] refuses `$dynamicRef`, `$recursiveRef`, `unevaluatedProperties` and
//! `unevaluatedItems`; unknown keywords are annotations.

mod compile;
mod evaluate;
mod number;
mod schema;
mod text;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use schema::{DEPTH, Failure, Schema};

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// A description of the invalid or unsupported part.
    pub fn compile(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema, compile::CompilePurpose::Verdict)
    }

    /// Compiles a schema for [`Schema::cost`] only: another implementation, which supports more, gives the
    /// verdict. Unsupported keywords are counted as if every part of them applied everywhere.
    ///
    /// # Errors
    /// A description of the invalid part.
    pub fn compile_for_cost(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema, compile::CompilePurpose::Cost)
    }

    /// Checks a value within a step budget. A step is a subschema, a comparison or a few bytes of text.
    ///
    /// # Errors
    /// A [`Failure`]: the first mismatch.
    pub fn check(&self, value: &Value, steps: u64) -> Result<(), Failure> {
        evaluate::check(self, value, steps)
    }

    /// The number of steps to evaluate every applicable subschema, even after a mismatch. An implementation that
    /// collects all errors does at least this work.
    ///
    /// # Errors
    /// [`Failure::OverBudget`] if it exceeds `most`.
    pub fn cost(&self, value: &Value, most: u64) -> Result<u64, Failure> {
        evaluate::cost(self, value, most)
    }
}
