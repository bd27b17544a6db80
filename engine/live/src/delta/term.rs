//! The summands of a join's delta: statements in which some sources stand for their changes.

use std::collections::BTreeSet;

use crate::catalog::{Catalog, WEIGHT};
use crate::delta::changes::Changes;
use crate::delta::dependency::DependencyPath;
use crate::plan::fragment::{Fragment, Mark, Piece, Renderer, SourceForm, Statement};
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
    /// What replaces the statement if a table that policies read in subqueries changed.
    with_changed_policies: Option<PolicyVariant>,
}

/// The form of a term in which subqueries of policies read the state of their row.
#[derive(Debug)]
struct PolicyVariant {
    /// The tables that the subqueries read.
    tables: BTreeSet<usize>,
    statement: Statement,
}

impl Term {
    /// Returns the statements of the term.
    pub(crate) fn statements(&self) -> impl Iterator<Item = &Statement> {
        let variant = self.with_changed_policies.iter().map(|variant| &variant.statement);
        std::iter::once(&self.statement).chain(variant)
    }

    /// Returns the statement to run; `None` if a table has no change that it would read.
    pub(crate) fn statement_after(
        &self,
        catalog: &Catalog,
        changes: &Changes,
    ) -> Option<&Statement> {
        let mut changed = self.changed.iter().map(|table| catalog.table(*table).name);
        if changed.any(|table| changes.for_table(table).is_empty()) {
            return None;
        }
        let Some(variant) = &self.with_changed_policies else { return Some(&self.statement) };
        let mut read = variant.tables.iter().map(|table| catalog.table(*table).name);
        let is_changed = read.any(|table| !changes.for_table(table).is_empty());
        Some(if is_changed { &variant.statement } else { &self.statement })
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

/// Returns the summands of a join's delta, with these outputs: one for each set of its sources that
/// may have changed, or of those sets that contain one source.
pub(crate) fn terms(
    catalog: &Catalog,
    query: &Query,
    dependency: &DependencyPath,
    always: Option<usize>,
    shown: &[Fragment],
    show: Show,
) -> Vec<Term> {
    let outline = TermOutline { catalog, query, dependency, shown, show };
    let own = dependency.visibility.iter().flat_map(Fragment::own_sources);
    let read_by_policies: BTreeSet<usize> = own.map(|source| query.sources[source].table).collect();
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
        terms.push(Term {
            changed: changed.iter().map(|source| query.sources[*source].table).collect(),
            sign: if changed.len() % 2 == 1 { 1 } else { -1 },
            statement: outline.render(&changed, &rest, false),
            with_changed_policies: (!read_by_policies.is_empty()).then(|| PolicyVariant {
                tables: read_by_policies.clone(),
                statement: outline.render(&changed, &rest, true),
            }),
        });
    }
    terms
}

/// What the terms of one dependency have in common.
struct TermOutline<'a> {
    catalog: &'a Catalog,
    query: &'a Query,
    dependency: &'a DependencyPath,
    shown: &'a [Fragment],
    show: Show,
}

impl TermOutline<'_> {
    /// Returns the statement in which these sources stand for their changes. `policies_changed`:
    /// tables that subqueries of policies read may have changed.
    fn render(&self, changed: &[usize], rest: &[usize], policies_changed: bool) -> Statement {
        let mut out = Renderer::new(self.catalog, &self.query.sources);
        out.has_fixed_order = true;
        changed.iter().for_each(|source| out.forms[*source] = SourceForm::Changed);
        let weights: Vec<String> =
            changed.iter().map(|source| format!("{}.{WEIGHT}", out.alias(*source))).collect();
        match self.show {
            Show::Weighted => out.push_text(&format!("SELECT {}", weights.join(" * "))),
            Show::Distinct => out.push_text("SELECT DISTINCT 1"),
        }
        for value in self.shown {
            out.push_text(",");
            out.push(value);
        }
        let order = join_order(self.dependency, changed, rest);
        for (at, source) in order.iter().enumerate() {
            out.push_text(if at == 0 { "FROM" } else { "CROSS JOIN" });
            out.push_source(*source);
        }
        write_conditions(&mut out, self.dependency.conditions.iter());
        let last = *order.last().expect("a term has a changed source");
        for (at, condition) in self.dependency.visibility.iter().enumerate() {
            let is_first = at == 0 && self.dependency.conditions.is_empty();
            out.push_text(if is_first { "WHERE (" } else { "AND (" });
            // What counts visible rows must count each of them once, not once for each row that it
            // is joined with.
            let waits = !condition.pieces.contains(&Piece::Mark(Mark::Visible));
            if waits {
                out.push_case_after(last);
            }
            if policies_changed {
                out.push_in_state_of_row(condition);
            } else {
                out.push_in_state(condition, SourceForm::After);
            }
            out.push_text(if waits { ") END)" } else { ")" });
        }
        out.finish()
    }
}

/// Returns the join order: the changes first, then always a table connected with the preceding
/// ones. CROSS JOIN makes SQLite keep that order; its planner does not know how small the changes
/// are.
fn join_order(dependency: &DependencyPath, changed: &[usize], rest: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = changed[..1].to_vec();
    let mut left: Vec<usize> = changed[1..].iter().chain(rest).copied().collect();
    while !left.is_empty() {
        let next = left.iter().position(|source| dependency.connects(&order, *source)).unwrap_or(0);
        order.push(left.remove(next));
    }
    order
}

pub(crate) fn write_conditions<'f>(
    out: &mut Renderer,
    conditions: impl Iterator<Item = &'f Fragment>,
) {
    for (at, condition) in conditions.enumerate() {
        out.push_text(if at > 0 { "AND (" } else { "WHERE (" });
        out.push(condition);
        out.push_text(")");
    }
}
