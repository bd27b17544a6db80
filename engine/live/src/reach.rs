//! How far a changed row reaches: from a source anywhere in a query, by the conditions that connect it,
//! to the rows of the outermost FROM that it may concern.
//!
//! What is found may be too much and never too little: a condition is used only if it must hold
//! wherever the changed row has a say.

use crate::core::Core;
use crate::fragment::Fragment;
use crate::from::Join;
use crate::lower::Lower;

/// One SELECT of a statement, as a place where sources are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// The SELECT around it.
    parent: Option<usize>,
    /// Its sources, how they are joined, and the conditions of joins that are not inner.
    terms: Vec<(usize, Join, Vec<Fragment>)>,
    /// What must hold of its inner sources.
    filter: Vec<Fragment>,
    /// What connects its rows with those around it: `x = column` of `x IN (SELECT column …)`.
    pub(crate) link: Option<Fragment>,
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
        let on = |term: &crate::from::FromTerm| {
            term.on.iter().map(|conjunct| conjunct.condition.clone()).collect()
        };
        let known = &mut self.blocks[block];
        known.terms = core
            .from
            .iter()
            .filter_map(|term| term.source.map(|source| (source, term.join, on(term))))
            .collect();
        known.filter = core.filter.iter().map(|conjunct| conjunct.condition.clone()).collect();
    }
}

impl Block {
    /// Every fragment of it.
    pub(crate) fn fragments(&mut self) -> impl Iterator<Item = &mut Fragment> {
        let on = self.terms.iter_mut().flat_map(|(_, _, on)| on);
        on.chain(&mut self.filter).chain(&mut self.link)
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
                on.iter().flat_map(Fragment::columns).map(|(source, _)| source).collect();
            for other in named {
                if block.has(other) && !self.sources.contains(&other) {
                    self.sources.push(other);
                    pending.push(other);
                }
            }
            for condition in on.iter().filter(|condition| condition.is_flat()) {
                if condition.columns().all(|(source, _)| block.has(source)) {
                    self.conditions.push(condition.clone());
                }
            }
        }
    }
}
