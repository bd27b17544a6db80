//! Random queries over every operator that can be live and some that cannot.
//!
//! `from` tables and joins · `values` expressions · `conditions` conditions · `forms` whole
//! statements: plain, grouped, distinct, compound, windowed.

use std::collections::BTreeMap;

use abide_schema::table::Kind;
use serde_json::{Map, Value as JsonValue};

use crate::proof::literals;
use crate::proof::schema::Schema;
use crate::proof::tree::Sql;
use crate::world::Random;

mod conditions;
mod forms;
mod from;
mod values;

/// A query and its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// All except LIMIT.
    pub(crate) body: Sql,
    /// LIMIT and OFFSET, if any.
    pub(crate) limit: Sql,
    pub(crate) params: BTreeMap<String, JsonValue>,
    pub(crate) fidelity: Fidelity,
}

/// How far SQLite's result of the text is deterministic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fidelity {
    /// In every cell, except where it chooses one of several equal values
    /// ([`abide_live::Binding::chooses`]).
    Exact,
    /// It depends on which of several rows comes first.
    Open,
}

impl Query {
    /// The whole text.
    pub(crate) fn text(&self) -> String {
        self.body.text() + &self.limit.text()
    }

    /// The whole text with the parameters' values inlined.
    pub(crate) fn inlined(&self) -> String {
        let mut value = |name: &str| {
            let value = abide_schema::Value::from_json(&self.params[name]);
            literals::literal(&value.expect("a parameter is a value"))
        };
        self.body.text_with(&mut value) + &self.limit.text_with(&mut value)
    }

    /// The parameters in the text.
    pub(crate) fn named(&self) -> Map<String, JsonValue> {
        let mut named = Map::new();
        let mut note = |name: &str| {
            named.insert(name.to_owned(), self.params[name].clone());
            String::new()
        };
        self.body.text_with(&mut note);
        self.limit.text_with(&mut note);
        named
    }

    /// Other values for the same parameters.
    pub(crate) fn with_other_values(&self, random: &mut Random) -> Query {
        let mut other = self.clone();
        for value in other.params.values_mut() {
            let kind = *random.pick(&[Kind::Integer, Kind::Text]);
            if !value.is_u64() || self.limit.text().is_empty() {
                *value = literals::param(random, kind);
            }
        }
        other
    }
}

/// A table, view or subquery in a FROM, as expressions see it.
#[derive(Clone, Debug)]
struct Source {
    alias: String,
    columns: Vec<(String, Kind)>,
    /// The columns of its primary key; empty if it has none.
    key: Vec<String>,
}

impl Source {
    /// Its primary key's columns.
    fn keys(&self) -> Vec<Sql> {
        self.key.iter().map(|key| Sql::Expr(vec![format!("{}.{key}", self.alias).into()])).collect()
    }
}

/// The columns that an expression may name.
#[derive(Clone, Debug, Default)]
struct Scope {
    own: Vec<Source>,
    /// The columns of enclosing queries.
    outer: Vec<Source>,
}

impl Scope {
    /// The scope for a nested query.
    fn around(&self) -> Vec<Source> {
        self.own.iter().chain(&self.outer).cloned().collect()
    }
}

/// The maximum nesting of queries.
const NESTED: usize = 2;

/// The generator of one query.
pub(crate) struct Grammar<'r> {
    random: &'r mut Random,
    schema: &'r Schema,
    aliases: usize,
    params: BTreeMap<String, JsonValue>,
    /// The visible CTEs with their columns.
    ctes: Vec<Source>,
    /// Whether parameters are allowed: not in a view.
    takes_params: bool,
    fidelity: Fidelity,
    /// The number of enclosing queries.
    nested: usize,
}

/// A query over a schema.
pub(crate) fn query(random: &mut Random, schema: &Schema) -> Query {
    let mut grammar = Grammar::new(random, schema);
    let (body, limit) = grammar.statement();
    let Grammar { params, fidelity, .. } = grammar;
    Query { body, limit, params, fidelity }
}

/// A schema with a view or two over its tables.
pub(crate) fn with_views(random: &mut Random, mut schema: Schema) -> Schema {
    for name in ["v", "w"] {
        if random.below(2) > 0 {
            continue;
        }
        let mut grammar = Grammar::new(random, &schema);
        grammar.takes_params = false;
        grammar.nested = 1;
        let sql = grammar.derived(&[]).0.text();
        schema.views.push((name, &*Box::leak(sql.into_boxed_str())));
    }
    schema
}

impl<'r> Grammar<'r> {
    fn new(random: &'r mut Random, schema: &'r Schema) -> Grammar<'r> {
        Grammar {
            random,
            schema,
            aliases: 0,
            params: BTreeMap::new(),
            ctes: Vec::new(),
            takes_params: true,
            fidelity: Fidelity::Exact,
            nested: 0,
        }
    }

    /// True once in this many times.
    fn one_in(&mut self, times: usize) -> bool {
        self.random.below(times) == 0
    }

    /// Generates a nested query.
    fn nest<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> T {
        self.nested += 1;
        let made = make(self);
        self.nested -= 1;
        made
    }

    fn at_most(&mut self, fidelity: Fidelity) {
        self.fidelity = self.fidelity.max(fidelity);
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        *self.random.pick(of)
    }
}
