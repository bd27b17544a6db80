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
mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Number, Value};

/// Maximum nesting of subschemas during an evaluation: it recurses on the stack.
pub const DEPTH: usize = 384;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    nodes: Vec<Vec<Keyword>>,
}

/// Why a value was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The value does not match.
    Misfit {
        /// The position, as a JSON pointer.
        path: String,
        /// The mismatch at that position.
        what: String,
    },
    /// The evaluation exceeds the step budget, or nests more than [`DEPTH`] subschemas.
    OverBudget,
}

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

/// A subschema, as index into [`Schema::nodes`].
type Id = usize;

/// A keyword that constrains the value.
#[derive(Debug)]
enum Keyword {
    False,
    Ref(Id),
    Type(Types),
    Enum(Vec<Value>),
    Const(Value),
    Minimum(Number),
    Maximum(Number),
    ExclusiveMinimum(Number),
    ExclusiveMaximum(Number),
    MultipleOf(Number),
    MinLength(u64),
    MaxLength(u64),
    Pattern(Pattern),
    MinItems(u64),
    MaxItems(u64),
    UniqueItems,
    Items {
        prefix: Vec<Id>,
        rest: Option<Id>,
    },
    Contains {
        schema: Id,
        min: u64,
        max: Option<u64>,
    },
    MinProperties(u64),
    MaxProperties(u64),
    Required(Vec<String>),
    Properties {
        named: BTreeMap<String, Id>,
        patterns: Vec<(Pattern, Id)>,
        rest: Option<Id>,
    },
    PropertyNames(Id),
    DependentRequired(Vec<(String, Vec<String>)>),
    DependentSchemas(Vec<(String, Id)>),
    AllOf(Vec<Id>),
    AnyOf(Vec<Id>),
    OneOf(Vec<Id>),
    Not(Id),
    If {
        test: Id,
        then: Option<Id>,
        otherwise: Option<Id>,
    },
    /// Counted as if it applied to every member or item.
    Everywhere(Id),
}

/// A regular expression, matched in linear time.
#[derive(Debug)]
struct Pattern {
    source: String,
    /// `None` if compiled for costs only: then it matches everything.
    regex: Option<Regex>,
    /// Steps charged for each byte of text.
    steps_per_byte: usize,
}

/// The allowed types of a value.
#[derive(Debug)]
struct Types {
    names: Vec<&'static str>,
    /// Draft 4: a number written as a float is not an integer.
    by_notation: bool,
}
