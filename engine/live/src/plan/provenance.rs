//! Where the columns of a statement come from, and what its conditions require of each source.

use crate::plan::block::{Block, Item, JoinTerm, path};
use crate::plan::conjunct::{Conjunct, EqualColumns, Route};
use crate::plan::fragment::{Fragment, PlainExpr};
use crate::plan::lowering::Lowering;
use crate::plan::query::SelectCore;

/// A nested SELECT that is being read.
pub(crate) struct OpenBlock {
    pub(crate) number: usize,
    parent: Option<usize>,
}

impl Lowering<'_> {
    /// Opens a nested SELECT.
    pub(crate) fn open_block(&mut self) -> OpenBlock {
        let number = self.blocks.len();
        self.blocks.push(Block { parent: self.block, ..Block::default() });
        OpenBlock { number, parent: self.block.replace(number) }
    }

    /// Closes it.
    pub(crate) fn close_block(&mut self, block: OpenBlock, core: &SelectCore) {
        self.block = block.parent;
        let known = &mut self.blocks[block.number];
        let joined = core.from.iter().filter_map(|term| {
            let item = term.source.map(Item::Source).or_else(|| term.number.map(Item::Subquery))?;
            Some(JoinTerm { item, join: term.join, on: term.on.clone() })
        });
        known.terms = joined.collect();
        known.filter.clone_from(&core.filter);
    }

    /// Returns the conditions that a row of a source must meet to matter: those of its SELECT and
    /// of the enclosing ones, carried over equal columns. `session_id = sessions.id AND sessions.id
    /// = :id` is a key of both tables.
    pub(crate) fn route_of(&self, source: usize) -> Route {
        let Some(home) = self.blocks.iter().position(|block| block.has_source(source)) else {
            return Route::Any;
        };
        let mut conjuncts: Vec<&Conjunct> = Vec::new();
        let mut own: Vec<&Conjunct> = Vec::new();
        // Whether a row of the source may be all NULL in the conditions from here on.
        let mut padded = false;
        let mut from = Some(Item::Source(source));
        for at in path(&self.blocks, home) {
            let block = &self.blocks[at];
            if block.keeps_right() {
                return Route::Any;
            }
            if let Some(on) = from.and_then(|item| block.left_join(item)) {
                conjuncts.extend(on);
                own.extend(on.iter().filter(|_| !padded));
                padded = true;
            }
            let demanded = block.filter.iter().chain(&block.link);
            conjuncts.extend(demanded.clone());
            if !padded {
                own.extend(demanded);
            }
            from = block.shown.as_ref().map(|shown| Item::Subquery(shown.subquery));
        }
        let mut demands = Route::Any;
        for conjunct in &conjuncts {
            let is_own = own.iter().any(|own| std::ptr::eq(*own, *conjunct));
            demands = demands.and(conjunct.route.only(&|equality| {
                if equality.source == source { is_own } else { self.is_certain(equality.source) }
            }));
        }
        let equal: Vec<EqualColumns> = conjuncts
            .iter()
            .filter_map(|conjunct| conjunct.equal)
            .filter(|(left, right)| self.column_kind(*left) == self.column_kind(*right))
            .collect();
        demands.carried(&equal)
    }

    /// `true` if a source has a row in every row of its SELECT.
    fn is_certain(&self, source: usize) -> bool {
        self.blocks.iter().any(|block| block.inner_sources().any(|inner| inner == source))
    }

    /// Returns the table columns that a fragment stands for: one, or, for a column of a compound
    /// subquery in FROM, the known ones of its SELECTs.
    pub(crate) fn origins(&self, fragment: &Fragment) -> Vec<(usize, usize)> {
        match fragment.plain {
            PlainExpr::Column(source, column) => vec![(source, column)],
            PlainExpr::Derived(subquery, column) => {
                let shown = self.blocks.iter().filter_map(|block| block.shown.as_ref());
                shown
                    .filter(|shown| shown.subquery == subquery)
                    .filter_map(|shown| shown.columns.get(column)?.as_ref())
                    .flat_map(|value| self.origins(value))
                    .collect()
            }
            PlainExpr::Param(_) | PlainExpr::Other => Vec::new(),
        }
    }

    /// Returns the single table column that a fragment stands for.
    pub(crate) fn origin(&self, fragment: &Fragment) -> Option<(usize, usize)> {
        if let PlainExpr::Derived(subquery, _) = fragment.plain {
            let shown = self.blocks.iter().filter_map(|block| block.shown.as_ref());
            if shown.filter(|shown| shown.subquery == subquery).count() > 1 {
                return None;
            }
        }
        self.origins(fragment).first().copied()
    }
}
