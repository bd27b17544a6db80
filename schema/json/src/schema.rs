//! A compiled schema as a value: its keywords, and why a value does not match.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Number, Value};

/// Maximum nesting of subschemas during an evaluation: it recurses on the stack.
pub const DEPTH: usize = 384;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    pub(crate) nodes: Vec<Vec<Keyword>>,
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

/// A subschema, as index into [`Schema::nodes`].
pub(crate) type Id = usize;

/// A keyword that constrains the value.
#[derive(Debug)]
pub(crate) enum Keyword {
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
pub(crate) struct Pattern {
    pub(crate) source: String,
    /// `None` if compiled for costs only: then it matches everything.
    pub(crate) regex: Option<Regex>,
    /// Steps charged for each byte of text.
    pub(crate) steps_per_byte: usize,
}

/// The allowed types of a value.
#[derive(Debug)]
pub(crate) struct Types {
    pub(crate) names: Vec<&'static str>,
    /// Draft 4: a number written as a float is not an integer.
    pub(crate) by_notation: bool,
}
