//! The keys of a query's rows, from the primary keys of its tables and the equalities of its joins.

use sqlite3_parser::ast::CompoundOperator;

use crate::plan::block::Join;
use crate::plan::conjunct::Conjunct;
use crate::plan::fragment::Fragment;
use crate::plan::lowering::Lowering;
use crate::plan::query::{Query, SelectCore};

impl Query {
    /// The primary keys of the sources, or the groups, if all of them are outputs.
    pub(crate) fn find_key(&mut self, lower: &Lowering) {
        if let [(_, core)] = self.cores.as_slice() {
            self.key = core.key(lower).unwrap_or_default();
        }
    }

    /// Returns the outputs that form a key of its rows: all of them if equal rows are merged and no
    /// smaller key exists.
    pub(crate) fn rows_key(&self, lower: &Lowering) -> Option<Vec<usize>> {
        let (last, core) = self.cores.last().expect("a query has a core");
        let is_set = match last {
            None => core.distinct,
            Some(operator) => *operator != CompoundOperator::UnionAll,
        };
        if is_set {
            return Some((0..self.outputs().len()).collect());
        }
        if last.is_some() {
            return None;
        }
        let is_one_row = core.group.is_none() && core.frame.aggregate;
        if is_one_row { Some(Vec::new()) } else { core.key(lower) }
    }
}

impl SelectCore {
    /// Returns the outputs that form a key of the rows.
    pub(crate) fn key(&self, lower: &Lowering) -> Option<Vec<usize>> {
        if self.distinct {
            return None;
        }
        if let Some(group) = &self.group {
            return group
                .iter()
                .map(|by| {
                    let by = lower.representative(by);
                    let at = self
                        .outputs
                        .iter()
                        .position(|output| output.value == by && !output.hidden)?;
                    self.is_first_of_name(at).then_some(at)
                })
                .collect();
        }
        if self.frame.aggregate {
            return None;
        }
        self.join_key(lower)
    }

    fn join_key(&self, lower: &Lowering) -> Option<Vec<usize>> {
        self.rows_key(lower)?
            .into_iter()
            .map(|column| {
                let mut outputs = self.outputs.iter();
                let at = outputs
                    .position(|output| output.value.plain == column.plain && !output.hidden)?;
                self.is_first_of_name(at).then_some(at)
            })
            .collect()
    }

    /// Returns the smallest key of the joined rows: a table that is joined by its whole primary key
    /// adds no columns.
    pub(crate) fn rows_key(&self, lower: &Lowering) -> Option<Vec<Fragment>> {
        let mut chosen = Vec::new();
        if let Some(sources) = self.sources() {
            chosen.clone_from(&sources);
            for source in sources.iter().rev() {
                let without: Vec<usize> =
                    chosen.iter().copied().filter(|other| other != source).collect();
                if self.determines(&without, &sources, lower) {
                    chosen = without;
                }
            }
        }
        if !self.tells_padded_apart() {
            return None;
        }
        let needed = self.from.iter().filter(|term| {
            term.source.is_none_or(|source| chosen.is_empty() || chosen.contains(&source))
        });
        let keys: Option<Vec<Vec<Fragment>>> = needed.map(|term| term.key.clone()).collect();
        Some(keys?.concat())
    }

    /// `true` if a row of a FULL JOIN without a left side can never equal one without a right side:
    /// a table's key is never NULL, but the key of a subquery may be NULL or empty.
    fn tells_padded_apart(&self) -> bool {
        self.from.iter().enumerate().all(|(at, right)| {
            right.join != Join::Full
                || right.source.is_some()
                || self.from[..at].iter().all(|left| left.source.is_some())
        })
    }

    fn determines(&self, chosen: &[usize], all: &[usize], lower: &Lowering) -> bool {
        if chosen.is_empty() || self.from.iter().any(|term| term.join.keeps_right()) {
            return chosen.len() == all.len();
        }
        let mut known = chosen.to_vec();
        let mut grew = true;
        while std::mem::take(&mut grew) {
            for term in &self.from {
                let Some(source) = term.source.filter(|source| !known.contains(source)) else {
                    continue;
                };
                let table = lower.catalog.table(lower.sources[source].table);
                let conjuncts = if term.join == Join::Inner { &self.filter } else { &term.on };
                let is_fixed = table.key.iter().all(|column| {
                    conjuncts.iter().any(|conjunct| conjunct.fixes(source, *column, &known, lower))
                });
                if is_fixed {
                    known.push(source);
                    grew = true;
                }
            }
        }
        known.len() == all.len()
    }

    fn is_first_of_name(&self, at: usize) -> bool {
        let name = &self.outputs[at].name;
        self.outputs.iter().position(|output| output.name == *name) == Some(at)
    }
}

impl Conjunct {
    /// `true` if a column has a single value once the rows of some sources are known.
    fn fixes(&self, source: usize, column: usize, known: &[usize], lower: &Lowering) -> bool {
        let here = (source, column);
        let Some((left, right)) = self.equal else { return false };
        let other = if left == here { right } else { left };
        (left == here || right == here)
            && known.contains(&other.0)
            && lower.column_kind(here) == lower.column_kind(other)
    }
}
