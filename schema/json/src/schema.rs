//! A compiled schema as a value: its subschemas and their keywords.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Number, Value};

use crate::json_type::JsonType;
use crate::number;

/// Maximum nesting of subschemas during an evaluation: it recurses on the stack.
pub const DEPTH: usize = 384;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    pub(crate) nodes: Vec<Node>,
}

/// A subschema, as index into [`Schema::nodes`].
pub(crate) type Id = usize;

/// A subschema.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) keywords: Vec<Keyword>,
    /// Evaluated after all keywords.
    pub(crate) unevaluated: Option<Unevaluated>,
}

/// `unevaluatedProperties` and `unevaluatedItems`.
#[derive(Debug)]
pub(crate) struct Unevaluated {
    pub(crate) properties: Option<Id>,
    pub(crate) items: Option<Id>,
    /// Whether it constrains the value: a schema other than `true` is given.
    pub(crate) constrains: bool,
}

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
    Items { prefix: Vec<Id>, rest: Option<Id> },
    Contains(Contains),
    MinProperties(u64),
    MaxProperties(u64),
    Required(Vec<String>),
    Properties { properties: BTreeMap<String, Id>, patterns: Vec<(Pattern, Id)>, rest: Option<Id> },
    PropertyNames(Id),
    DependentRequired(Vec<(String, Vec<String>)>),
    DependentSchemas(Vec<(String, Id)>),
    AllOf(Vec<Id>),
    AnyOf(Vec<Id>),
    OneOf(Vec<Id>),
    Not(Id),
    If { test: Id, then: Option<Id>, otherwise: Option<Id> },
}

/// `contains` with its limits.
#[derive(Debug)]
pub(crate) struct Contains {
    pub(crate) schema: Id,
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
    /// Whether the items that match count as evaluated, so that `unevaluatedItems` ignores them: since 2020-12.
    pub(crate) marks_matches: bool,
}

/// A regular expression, matched in linear time.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) source: String,
    pub(crate) regex: Regex,
    /// Steps charged for each byte of text.
    pub(crate) steps_per_byte: usize,
}

/// The allowed types of a value.
#[derive(Debug)]
pub(crate) struct Types {
    pub(crate) accepted: Vec<JsonType>,
    /// Draft 4: a number written as a float is not an integer.
    pub(crate) by_notation: bool,
}

impl Types {
    /// Returns `true` if a value has one of the types.
    pub(crate) fn accept(&self, value: &Value) -> bool {
        let is_integer = match value {
            Value::Number(number) if self.by_notation => number::is_written_whole(number),
            Value::Number(number) => number::is_whole(number),
            _ => false,
        };
        self.accepted.contains(&JsonType::from_value(value))
            || (is_integer && self.accepted.contains(&JsonType::Integer))
    }
}
