//! Which rows of the outermost FROM a changed row can affect, derived from the conditions that
//! connect its source with them.
//!
//! The result may include too many rows but never too few: a condition counts only if it must hold
//! wherever the changed row matters.

use crate::plan::block::{Block, Item, ShownColumns, path};
use crate::plan::conjunct::{ConditionOrigin, Conjunct, EqualColumns};
use crate::plan::fragment::{DerivedColumns, Fragment};
use crate::plan::query::SelectCore;

/// The sources and conditions that lead from a changed source to the outermost rows.
#[derive(Debug)]
pub(crate) struct DependencyPath {
    pub(crate) sources: Vec<usize>,
    pub(crate) conditions: Vec<Fragment>,
    /// The conditions of policies with a subquery. Without them, rows that a caller does not see
    /// would find rows and groups to evaluate.
    pub(crate) visibility: Vec<Fragment>,
}

/// The path from a source to the outermost rows.
#[derive(Debug)]
pub(crate) struct SourcePath {
    pub(crate) dependency: DependencyPath,
    /// The SELECTs on the path, the outermost one last.
    pub(crate) path: Vec<usize>,
    /// The columns that are equal wherever the source matters.
    pub(crate) equal: Vec<EqualColumns>,
    /// The sources that have a row in every row on the path.
    certain: Vec<usize>,
    /// The values of columns of subqueries in FROM.
    known: DerivedColumns,
}

/// Returns the path from one source to the inner sources of its outermost SELECT. `None` if an
/// outer join on the path keeps unmatched rows.
pub(crate) fn source_path(blocks: &[Block], source: usize) -> Option<SourcePath> {
    let home = blocks.iter().position(|block| block.has_source(source))?;
    let path: Vec<usize> = path(blocks, home).collect();
    if path.iter().any(|at| blocks[*at].keeps_right()) {
        return None;
    }
    let certain: Vec<usize> = path.iter().flat_map(|at| blocks[*at].inner_sources()).collect();
    let dependency = DependencyPath::new(vec![source], Vec::new());
    let mut found =
        SourcePath { dependency, path, equal: Vec::new(), certain, known: DerivedColumns::new() };
    found.follow_left_joins(&blocks[home], source);
    for inner in found.certain.clone() {
        if !found.dependency.sources.contains(&inner) {
            found.dependency.sources.push(inner);
        }
    }
    let mut shown: Option<&ShownColumns> = None;
    for at in found.path.clone() {
        let block = &blocks[at];
        if let Some(shown) = shown {
            found.record_shown(shown);
            if let Some(on) = block.left_join(Item::Subquery(shown.subquery)) {
                found.demand(on);
                // From here on its rows may be all NULL.
                found.known.clear();
            }
        }
        found.demand(block.filter.iter().chain(&block.link));
        shown = block.shown.as_ref();
    }
    Some(found)
}

impl DependencyPath {
    /// Creates a path without conditions of policies.
    pub(crate) fn new(sources: Vec<usize>, conditions: Vec<Fragment>) -> DependencyPath {
        DependencyPath { sources, conditions, visibility: Vec::new() }
    }

    /// `true` if a condition connects a source with some of these, and with no other.
    pub(crate) fn connects(&self, placed: &[usize], source: usize) -> bool {
        self.conditions.iter().any(|condition| {
            let named: Vec<usize> = condition.columns().map(|(source, _)| source).collect();
            named.contains(&source)
                && named.iter().any(|other| placed.contains(other))
                && named.iter().all(|other| *other == source || placed.contains(other))
        })
    }

    /// `true` if conditions connect all of its sources.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected().sources.len() == self.sources.len()
    }

    /// Returns the part that conditions connect with its first source.
    pub(crate) fn connected(&self) -> DependencyPath {
        let mut sources = vec![self.sources[0]];
        let mut grew = true;
        while std::mem::take(&mut grew) {
            for condition in &self.conditions {
                let named: Vec<usize> = condition.columns().map(|(source, _)| source).collect();
                if named.iter().any(|source| sources.contains(source)) {
                    for source in named {
                        grew |= !sources.contains(&source);
                        if !sources.contains(&source) {
                            sources.push(source);
                        }
                    }
                }
            }
        }
        let conditions = self
            .conditions
            .iter()
            .filter(|condition| condition.columns().all(|(source, _)| sources.contains(&source)))
            .cloned()
            .collect();
        let visibility = self
            .visibility
            .iter()
            .filter(|condition| {
                condition.enclosing_sources().iter().all(|source| sources.contains(source))
            })
            .cloned()
            .collect();
        DependencyPath { sources, conditions, visibility }
    }
}

impl SourcePath {
    /// Returns a fragment in terms of the sources that are present in every row on the path.
    pub(crate) fn in_certain_sources(&self, fragment: &Fragment) -> Option<Fragment> {
        let fragment = fragment.substituted(&self.known)?;
        let certain = fragment.columns().all(|(source, _)| self.certain.contains(&source));
        (certain && fragment.is_flat()).then_some(fragment)
    }

    fn record_shown(&mut self, shown: &ShownColumns) {
        for (column, value) in shown.columns.iter().enumerate() {
            let value = value.as_ref().and_then(|value| value.substituted(&self.known));
            if let Some(value) = value {
                self.known.insert((shown.subquery, column), value);
            }
        }
    }

    /// Adds the conditions that name only sources present in every row. A source that may be all
    /// NULL proves nothing in WHERE, nor does one of another block.
    fn demand<'b>(&mut self, conjuncts: impl IntoIterator<Item = &'b Conjunct>) {
        let conjuncts: Vec<&Conjunct> = conjuncts.into_iter().collect();
        // The condition that counts a row contains all others of its view.
        let counts = conjuncts.iter().any(|conjunct| conjunct.origin == ConditionOrigin::Count);
        let deciding = if counts { ConditionOrigin::Count } else { ConditionOrigin::Visibility };
        for conjunct in conjuncts {
            self.dependency.conditions.extend(self.in_certain_sources(&conjunct.condition));
            if conjunct.origin == deciding && self.is_policy_with_subquery(&conjunct.condition) {
                self.dependency.visibility.push(conjunct.condition.clone());
            }
            self.equal.extend(conjunct.equal);
        }
    }

    /// `true` if a condition of a view reads tables in subqueries, for a row that is present in
    /// every row on the path.
    fn is_policy_with_subquery(&self, condition: &Fragment) -> bool {
        let enclosing = condition.enclosing_sources();
        condition.has_subquery()
            && !condition.derived
            && enclosing.iter().all(|source| self.certain.contains(source))
    }

    /// A source of a LEFT JOIN matters only if its ON holds. If the ON equates a column with
    /// another such source, that source has a row there, and its own ON holds; otherwise it may be
    /// all NULL.
    fn follow_left_joins(&mut self, block: &Block, source: usize) {
        let mut pending = vec![source];
        let mut demanded = Vec::new();
        while let Some(source) = pending.pop() {
            let Some(on) = block.left_join(Item::Source(source)) else { continue };
            demanded.extend(on);
            self.equal.extend(on.iter().filter_map(|conjunct| conjunct.equal));
            let equal = on.iter().filter_map(|conjunct| conjunct.equal);
            for (other, _) in equal.flat_map(|(left, right)| [left, right]) {
                if block.has_source(other) && !self.dependency.sources.contains(&other) {
                    self.dependency.sources.push(other);
                    pending.push(other);
                }
            }
        }
        for conjunct in demanded {
            let condition = &conjunct.condition;
            let names_known_sources = condition.columns().all(|(source, _)| {
                self.dependency.sources.contains(&source) || self.certain.contains(&source)
            });
            if condition.is_flat() && names_known_sources {
                self.dependency.conditions.push(condition.clone());
            }
        }
    }
}

impl SelectCore {
    /// Returns all its sources and conditions.
    pub(crate) fn dependency_path(&self) -> DependencyPath {
        let conditions = self.filter.iter().map(|conjunct| conjunct.condition.clone());
        DependencyPath::new(self.sources().unwrap_or_default(), conditions.collect())
    }
}
