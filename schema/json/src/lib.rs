//! JSON Schema with a bound on every evaluation.
//!
//! Changes when the supported part of JSON Schema changes. Untrusted callers supply schemas, and an
//! evaluation may take exponential time: a recursive `oneOf` tries every way down at every level. So an
//! [evaluation](Schema::check) counts its steps, ends when they are used up, and keeps one error instead of a tree
//! of them. Whether it ends so depends on the schema, the value and the bound alone: a replay decides alike.
//!
//! 2020-12, 2019-09, draft 7, 6 and 4 are understood ("$schema" says which; 2020-12 without it). `format` and the
//! `content…` keywords are annotations, as the specification allows. References lead to places in the same
//! document. `$dynamicRef`, `$recursiveRef`, `unevaluatedProperties` and `unevaluatedItems` are refused by
//! [`Schema::compile`]; unknown keywords are annotations.

mod compile;
mod evaluate;
mod number;
mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Number, Value};

/// Levels of subschemas that an evaluation may stand in: it follows them on the stack.
pub const DEPTH: usize = 384;

/// A schema, ready for evaluation.
#[derive(Debug)]
pub struct Schema {
    nodes: Vec<Vec<Keyword>>,
}

/// Why a value was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It does not fit.
    Misfit {
        /// Where, as a JSON pointer.
        path: String,
        /// What is wrong there.
        what: String,
    },
    /// The evaluation takes more steps than were allowed, or nests more than [`DEPTH`] subschemas.
    OverBudget,
}

impl Schema {
    /// Reads a schema.
    ///
    /// # Errors
    /// What is wrong with it, or not supported.
    pub fn compile(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema, compile::Use::Verdict)
    }

    /// Reads a schema that only [`Schema::cost`] is asked of: another implementation gives the verdict, which
    /// supports more. What is not supported here is counted as if every part of it applied everywhere.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn compile_for_cost(schema: &Value) -> Result<Schema, String> {
        compile::compile(schema, compile::Use::Cost)
    }

    /// Whether a value fits, decided within so many steps. A step is a subschema, a comparison or some bytes that
    /// are looked at.
    ///
    /// # Errors
    /// A [`Failure`]: the first thing that is wrong.
    pub fn check(&self, value: &Value, steps: u64) -> Result<(), Failure> {
        evaluate::check(self, value, steps)
    }

    /// The steps that it takes to look at every subschema that applies, also behind one that does not fit. An
    /// implementation that collects all errors does at least this.
    ///
    /// # Errors
    /// [`Failure::OverBudget`] where they are more than `most`.
    pub fn cost(&self, value: &Value, most: u64) -> Result<u64, Failure> {
        evaluate::cost(self, value, most)
    }
}

/// A subschema, by its place in [`Schema::nodes`].
type Id = usize;

/// A keyword that decides something.
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
    /// Nothing where only costs are asked for: then it matches everything.
    regex: Option<Regex>,
    /// Steps that each byte of a text is counted as.
    steps_per_byte: usize,
}

/// Types that a value may have.
#[derive(Debug)]
struct Types {
    names: Vec<&'static str>,
    /// Draft 4: a number that is written as a float is no integer.
    by_notation: bool,
}
