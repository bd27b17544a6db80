//! How far a changed row reaches: from a source anywhere in a query, by the conditions that connect it,
//! to the rows of the outermost FROM that it may concern.
//!
//! What is found may be too much and never too little: a condition is used only if it must hold
//! wherever the changed row has a say.

use crate::core::Core;
use crate::fragment::Fragment;
use crate::from::Join;
use crate::lower::{Conjunct, EqualColumns, Lower};
use crate::route::{Equality, Route};

/// One SELECT of a statement, as a place where sources are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// The SELECT around it.
    parent: Option<usize>,
    /// Its sources, how they are joined, and the conditions of joins that are not inner.
    terms: Vec<(usize, Join, Vec<Conjunct>)>,
    /// What must hold of its inner sources.
    filter: Vec<Conjunct>,
    /// What connects its rows with those around it: `x = column` of `x IN (SELECT column …)`.
    pub(crate) link: Option<Conjunct>,
}

/// The sources and conditions that lead from a changed source to the outermost rows.
#[derive(Debug)]
pub(crate) struct Reach {
    pub(crate) sources: Vec<usize>,
    pub(crate) conditions: Vec<Fragment>,
}

impl Lower<'_> {
    /// Begins a SELECT within the present one.
    pub(crate) fn open_block(&mut self) -> (usize, Option<usize>) {
        let block = self.blocks.len();
        self.blocks.push(Block { parent: self.block, ..Block::default() });
        (block, self.block.replace(block))
    }

    /// Ends it.
    pub(crate) fn close_block(&mut self, (block, around): (usize, Option<usize>), core: &Core) {
        self.block = around;
        let known = &mut self.blocks[block];
        known.terms = core
            .from
            .iter()
            .filter_map(|term| term.source.map(|source| (source, term.join, term.on.clone())))
            .collect();
        known.filter.clone_from(&core.filter);
    }
}

impl Lower<'_> {
    /// What a row of a source must meet to matter: the conditions of its SELECT and of those around it,
    /// carried over columns that are equal. `session_id = sessions.id AND sessions.id = :id` is a key
    /// of both tables.
    pub(crate) fn route_of(&self, source: usize) -> Route {
        let Some(home) = self.blocks.iter().position(|block| block.has(source)) else {
            return Route::Any;
        };
        let mut conjuncts = Vec::new();
        let mut next = Some(home);
        while let Some(at) = next {
            let block = &self.blocks[at];
            if block.terms.iter().any(|(_, join, _)| join.keeps_right()) {
                return Route::Any;
            }
            conjuncts.extend(block.filter.iter().chain(&block.link));
            next = block.parent;
        }
        let certain = |other: usize| {
            let mut blocks = self.blocks.iter();
            blocks.any(|block| block.inner().any(|inner| inner == other))
        };
        let mut own: Vec<&Conjunct> = conjuncts.clone();
        if let Some((_, Join::Left, on)) =
            self.blocks[home].terms.iter().find(|(known, _, _)| *known == source)
        {
            // It may be all NULL where WHERE is asked: only its ON speaks of its rows.
            own = on.iter().collect();
            conjuncts.extend(on);
        }
        let demands = conjuncts.iter().fold(Route::Any, |route, conjunct| {
            let speaks = |equality: &Equality| {
                if equality.source == source {
                    own.iter().any(|own| std::ptr::eq(*own, *conjunct))
                } else {
                    certain(equality.source)
                }
            };
            route.and(conjunct.route.only(&speaks))
        });
        let kind = |(source, column): (usize, usize)| {
            self.catalog.table(self.sources[source].table).columns[column].kind
        };
        let equal = conjuncts.iter().filter_map(|conjunct| conjunct.equal);
        let equal: Vec<EqualColumns> =
            equal.filter(|(left, right)| kind(*left) == kind(*right)).collect();
        demands.carried(&equal)
    }
}

impl Block {
    /// Every fragment of it.
    pub(crate) fn fragments(&mut self) -> impl Iterator<Item = &mut Fragment> {
        let on = self.terms.iter_mut().flat_map(|(_, _, on)| on);
        let conjuncts = on.chain(&mut self.filter).chain(&mut self.link);
        conjuncts.map(|conjunct| &mut conjunct.condition)
    }

    /// The equalities between columns that it demands.
    pub(crate) fn equal(&self) -> impl Iterator<Item = EqualColumns> {
        let on = self.terms.iter().flat_map(|(_, _, on)| on);
        on.chain(&self.filter).chain(&self.link).filter_map(|conjunct| conjunct.equal)
    }

    fn has(&self, source: usize) -> bool {
        self.terms.iter().any(|(known, _, _)| *known == source)
    }

    /// The sources of which every row of it has one.
    pub(crate) fn inner(&self) -> impl Iterator<Item = usize> {
        let terms = self.terms.iter();
        terms.filter(|(_, join, _)| *join == Join::Inner).map(|(source, _, _)| *source)
    }
}

/// From one source to the inner sources of the outermost SELECT, which is the first block. Nothing
/// where the source is no part of it.
pub(crate) fn reach(blocks: &[Block], source: usize) -> Option<Reach> {
    let home = blocks.iter().position(|block| block.has(source))?;
    let mut found = Reach { sources: vec![source], conditions: Vec::new() };
    found.follow_left_joins(&blocks[home], source);
    let mut certain: Vec<usize> = Vec::new();
    let mut next = Some(home);
    let mut last = home;
    while let Some(at) = next {
        certain.extend(blocks[at].inner());
        last = at;
        next = blocks[at].parent;
    }
    if last != 0 {
        return None;
    }
    for inner in &certain {
        if !found.sources.contains(inner) {
            found.sources.push(*inner);
        }
    }
    let mut next = Some(home);
    while let Some(at) = next {
        let block = &blocks[at];
        for condition in block.filter.iter().chain(&block.link) {
            let condition = &condition.condition;
            let within = condition.columns().all(|(source, _)| certain.contains(&source));
            // A source that may be all NULL says nothing in WHERE, nor does one of another block.
            if within && condition.is_flat() {
                found.conditions.push(condition.clone());
            }
        }
        next = block.parent;
    }
    Some(found)
}

impl Reach {
    /// A source of a LEFT JOIN has a say only where its ON holds; so have those that its ON names.
    fn follow_left_joins(&mut self, block: &Block, source: usize) {
        let mut pending = vec![source];
        while let Some(source) = pending.pop() {
            let term = block.terms.iter().find(|(known, _, _)| *known == source);
            let Some((_, Join::Left, on)) = term else { continue };
            let named: Vec<usize> =
                on.iter().flat_map(|on| on.condition.columns()).map(|(source, _)| source).collect();
            for other in named {
                if block.has(other) && !self.sources.contains(&other) {
                    self.sources.push(other);
                    pending.push(other);
                }
            }
            let conditions = on.iter().map(|conjunct| &conjunct.condition);
            for condition in conditions.filter(|condition| condition.is_flat()) {
                if condition.columns().all(|(source, _)| block.has(source)) {
                    self.conditions.push(condition.clone());
                }
            }
        }
    }
}
