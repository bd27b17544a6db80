//! The summands of a join's delta: statements in which some sources stand for their changes.

use crate::catalog::{Catalog, WEIGHT};
use crate::delta::dependency::DependencyPath;
use crate::plan::fragment::{Fragment, Renderer, SourceForm, Statement};
use crate::plan::query::Query;

/// The maximum number of joined tables. Beyond it the 2^n − 1 terms are too many.
pub(crate) const JOINED: usize = 5;

/// One summand of a join's delta: some sources stand for their changes.
#[derive(Debug)]
pub(crate) struct Term {
    /// The tables (catalog positions) whose changes it reads.
    pub(crate) changed: Vec<usize>,
    pub(crate) sign: i64,
    pub(crate) statement: Statement,
}

impl Term {
    /// The statement of the term.
    pub(crate) fn statement(&self) -> &Statement {
        &self.statement
    }
}

/// The rows of a term.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// Summands of a Z-set.
    Weighted,
    /// Only whether there are any rows.
    Distinct,
}

/// The summands of a join's delta, with these outputs: one for each set of its sources that may
/// have changed, or of those sets that contain one source.
pub(crate) fn terms(
    catalog: &Catalog,
    query: &Query,
    dependency: &DependencyPath,
    always: Option<usize>,
    shown: &[Fragment],
    show: Show,
) -> Vec<Term> {
    let mut terms = Vec::new();
    for subset in 1_usize..1 << dependency.sources.len() {
        let mut changed = Vec::new();
        let mut rest = Vec::new();
        for (at, source) in dependency.sources.iter().enumerate() {
            if subset & (1 << at) == 0 { rest.push(*source) } else { changed.push(*source) }
        }
        if always.is_some_and(|source| !changed.contains(&source)) {
            continue;
        }
        let mut out = Renderer::new(catalog, &query.sources);
        out.has_fixed_order = true;
        changed.iter().for_each(|source| out.forms[*source] = SourceForm::Changed);
        let weights: Vec<String> =
            changed.iter().map(|source| format!("{}.{WEIGHT}", out.alias(*source))).collect();
        match show {
            Show::Weighted => out.text(&format!("SELECT {}", weights.join(" * "))),
            Show::Distinct => out.text("SELECT DISTINCT 1"),
        }
        for value in shown {
            out.text(",");
            out.fragment(value);
        }
        for (at, source) in join_order(dependency, &changed, &rest).into_iter().enumerate() {
            out.text(if at == 0 { "FROM" } else { "CROSS JOIN" });
            out.source(source);
        }
        write_conditions(&mut out, dependency.conditions.iter());
        terms.push(Term {
            changed: changed.iter().map(|source| query.sources[*source].table).collect(),
            sign: if changed.len() % 2 == 1 { 1 } else { -1 },
            statement: out.finish(),
        });
    }
    terms
}

/// The join order: the changes first, then always a table connected with the preceding ones. CROSS
/// JOIN makes SQLite keep that order; its planner does not know how small the changes are.
fn join_order(dependency: &DependencyPath, changed: &[usize], rest: &[usize]) -> Vec<usize> {
    let connects = |placed: &[usize], source: usize| {
        dependency.conditions.iter().any(|condition| {
            let named: Vec<usize> = condition.columns().map(|(source, _)| source).collect();
            named.contains(&source)
                && named.iter().any(|other| placed.contains(other))
                && named.iter().all(|other| *other == source || placed.contains(other))
        })
    };
    let mut order: Vec<usize> = changed[..1].to_vec();
    let mut left: Vec<usize> = changed[1..].iter().chain(rest).copied().collect();
    while !left.is_empty() {
        let next = left.iter().position(|source| connects(&order, *source)).unwrap_or(0);
        order.push(left.remove(next));
    }
    order
}

pub(crate) fn write_conditions<'f>(
    out: &mut Renderer,
    conditions: impl Iterator<Item = &'f Fragment>,
) {
    for (at, condition) in conditions.enumerate() {
        out.text(if at > 0 { "AND (" } else { "WHERE (" });
        out.fragment(condition);
        out.text(")");
    }
}
