//! Which rows of the outermost FROM a changed row can affect, derived from the conditions that
//! connect its source with them.
//!
//! The result may include too many rows but never too few: a condition counts only if it must hold
//! wherever the changed row matters.

use crate::plan::fragment::{DerivedColumns, Fragment, PlainExpr};
use crate::plan::from::Join;
use crate::plan::lower::{Conjunct, EqualColumns, Lowering};
use crate::plan::select_core::SelectCore;
use crate::route::{Equality, Route};

/// One SELECT of a statement, with its sources.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// The enclosing SELECT.
    parent: Option<usize>,
    /// The terms that its FROM joins.
    terms: Vec<JoinTerm>,
    /// The conditions on its inner sources.
    filter: Vec<Conjunct>,
    /// The condition that connects its rows with the enclosing ones: `x = column` for `x IN (SELECT
    /// column …)`.
    pub(crate) link: Option<Conjunct>,
    /// Its outputs for the enclosing SELECT, if it is (an arm of) a subquery in FROM.
    pub(crate) shown: Option<ShownColumns>,
}

/// The outputs of one SELECT of a subquery in FROM.
#[derive(Clone, Debug)]
pub(crate) struct ShownColumns {
    /// The number of the subquery.
    pub(crate) subquery: usize,
    /// For each output column the plain column behind it, if a changed row can affect only those
    /// rows of the subquery that have its own value of that column.
    pub(crate) columns: Vec<Option<Fragment>>,
}

/// A term of a FROM.
#[derive(Clone, Debug)]
struct JoinTerm {
    of: Item,
    join: Join,
    /// The condition of an outer join.
    on: Vec<Conjunct>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Source(usize),
    Subquery(usize),
}

/// The sources and conditions that lead from a changed source to the outermost rows.
#[derive(Debug)]
pub(crate) struct DependencyPath {
    pub(crate) sources: Vec<usize>,
    pub(crate) conditions: Vec<Fragment>,
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

impl Lowering<'_> {
    /// Opens a nested SELECT.
    pub(crate) fn open_block(&mut self) -> (usize, Option<usize>) {
        let block = self.blocks.len();
        self.blocks.push(Block { parent: self.block, ..Block::default() });
        (block, self.block.replace(block))
    }

    /// Closes it.
    pub(crate) fn close_block(
        &mut self,
        (block, around): (usize, Option<usize>),
        core: &SelectCore,
    ) {
        self.block = around;
        let known = &mut self.blocks[block];
        let joined = core.from.iter().filter_map(|term| {
            let subquery = || term.number.map(Item::Subquery);
            let of = term.source.map(Item::Source).or_else(subquery)?;
            Some(JoinTerm { of, join: term.join, on: term.on.clone() })
        });
        known.terms = joined.collect();
        known.filter.clone_from(&core.filter);
    }

    /// The conditions that a row of a source must meet to matter: those of its SELECT and of the
    /// enclosing ones, carried over equal columns. `session_id = sessions.id AND sessions.id = :id`
    /// is a key of both tables.
    pub(crate) fn route_of(&self, source: usize) -> Route {
        let Some(home) = self.blocks.iter().position(|block| block.has(source)) else {
            return Route::Any;
        };
        let (mut conjuncts, mut own): (Vec<&Conjunct>, Vec<&Conjunct>) = (Vec::new(), Vec::new());
        // Whether a row of the source may be all NULL in the conditions from here on.
        let mut padded = false;
        let mut from = Some(Item::Source(source));
        for at in path(&self.blocks, home) {
            let block = &self.blocks[at];
            if block.keeps_right() {
                return Route::Any;
            }
            if let Some(on) = from.and_then(|of| block.left_join(of)) {
                conjuncts.extend(on);
                own.extend(on.iter().filter(|_| !padded));
                padded = true;
            }
            let demanded = || block.filter.iter().chain(&block.link);
            conjuncts.extend(demanded());
            own.extend(demanded().filter(|_| !padded));
            from = block.shown.as_ref().map(|shown| Item::Subquery(shown.subquery));
        }
        let certain = |other: usize| {
            let mut blocks = self.blocks.iter();
            blocks.any(|block| block.inner().any(|inner| inner == other))
        };
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

    /// The table columns that a fragment stands for: one, or, for a column of a compound subquery
    /// in FROM, the known ones of its SELECTs.
    pub(crate) fn origins(&self, fragment: &Fragment) -> Vec<(usize, usize)> {
        match fragment.plain {
            PlainExpr::Column(source, column) => vec![(source, column)],
            PlainExpr::Derived(subquery, column) => {
                let shown = self.blocks.iter().filter_map(|block| block.shown.as_ref());
                let shown = shown.filter(|shown| shown.subquery == subquery);
                let columns = shown.filter_map(|shown| shown.columns.get(column)?.as_ref());
                columns.flat_map(|value| self.origins(value)).collect()
            }
            PlainExpr::Param(_) | PlainExpr::Other => Vec::new(),
        }
    }

    /// The single table column that a fragment stands for.
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

impl Block {
    /// Its conditions.
    pub(crate) fn conjuncts(&mut self) -> impl Iterator<Item = &mut Conjunct> {
        let on = self.terms.iter_mut().flat_map(|term| &mut term.on);
        on.chain(&mut self.filter).chain(&mut self.link)
    }

    /// All fragments.
    pub(crate) fn fragments(&mut self) -> impl Iterator<Item = &mut Fragment> {
        self.conjuncts().map(|conjunct| &mut conjunct.condition)
    }

    /// Drops the conditions that name one of these parameters.
    pub(crate) fn forget(&mut self, lost: &dyn Fn(usize) -> bool) {
        let kept = |conjunct: &Conjunct| !conjunct.condition.params().any(lost);
        self.terms.iter_mut().for_each(|term| term.on.retain(kept));
        self.filter.retain(kept);
        self.link = self.link.take().filter(kept);
    }

    /// The column equalities that it requires.
    pub(crate) fn equal(&self) -> impl Iterator<Item = EqualColumns> {
        let on = self.terms.iter().flat_map(|term| &term.on);
        on.chain(&self.filter).chain(&self.link).filter_map(|conjunct| conjunct.equal)
    }

    fn has(&self, source: usize) -> bool {
        self.terms.iter().any(|term| term.of == Item::Source(source))
    }

    fn keeps_right(&self) -> bool {
        self.terms.iter().any(|term| term.join.keeps_right())
    }

    /// The condition of the LEFT JOIN that may make an item all NULL.
    fn left_join(&self, of: Item) -> Option<&Vec<Conjunct>> {
        let mut terms = self.terms.iter();
        terms.find(|term| term.of == of && term.join == Join::Left).map(|term| &term.on)
    }

    /// The sources that have a row in every one of its rows.
    pub(crate) fn inner(&self) -> impl Iterator<Item = usize> {
        self.terms.iter().filter_map(|term| match term.of {
            Item::Source(source) if term.join == Join::Inner => Some(source),
            _ => None,
        })
    }
}

/// A block and its enclosing blocks, from the inside out.
pub(crate) fn path(blocks: &[Block], home: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(home), |at| blocks[*at].parent)
}

/// The path from one source to the inner sources of its outermost SELECT. `None` if an outer join
/// on the path keeps unmatched rows.
pub(crate) fn source_path(blocks: &[Block], source: usize) -> Option<SourcePath> {
    let home = blocks.iter().position(|block| block.has(source))?;
    let path: Vec<usize> = path(blocks, home).collect();
    if path.iter().any(|at| blocks[*at].keeps_right()) {
        return None;
    }
    let certain: Vec<usize> = path.iter().flat_map(|at| blocks[*at].inner()).collect();
    let dependency = DependencyPath { sources: vec![source], conditions: Vec::new() };
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
            found.learn(shown);
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
    /// The part that conditions connect with its first source.
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
        let among = |condition: &&Fragment| {
            condition.columns().all(|(source, _)| sources.contains(&source))
        };
        let conditions = self.conditions.iter().filter(among).cloned().collect();
        DependencyPath { sources, conditions }
    }
}

impl SourcePath {
    /// A fragment in terms of the sources that are present in every row on the path.
    pub(crate) fn of_certain(&self, fragment: &Fragment) -> Option<Fragment> {
        let fragment = fragment.substituted(&self.known)?;
        let certain = fragment.columns().all(|(source, _)| self.certain.contains(&source));
        (certain && fragment.is_flat()).then_some(fragment)
    }

    fn learn(&mut self, shown: &ShownColumns) {
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
        for conjunct in conjuncts {
            self.dependency.conditions.extend(self.of_certain(&conjunct.condition));
            self.equal.extend(conjunct.equal);
        }
    }

    /// A source of a LEFT JOIN matters only if its ON holds. If the ON equates a column with
    /// another such source, that source has a row there, and its own ON holds; otherwise it may be
    /// all NULL.
    fn follow_left_joins(&mut self, block: &Block, source: usize) {
        let (mut pending, mut demanded) = (vec![source], Vec::new());
        while let Some(source) = pending.pop() {
            let Some(on) = block.left_join(Item::Source(source)) else { continue };
            demanded.extend(on);
            self.equal.extend(on.iter().filter_map(|conjunct| conjunct.equal));
            let equal = on.iter().filter_map(|conjunct| conjunct.equal);
            for (other, _) in equal.flat_map(|(left, right)| [left, right]) {
                if block.has(other) && !self.dependency.sources.contains(&other) {
                    self.dependency.sources.push(other);
                    pending.push(other);
                }
            }
        }
        for conjunct in demanded {
            let named = |source: usize| {
                self.dependency.sources.contains(&source) || self.certain.contains(&source)
            };
            let condition = &conjunct.condition;
            if condition.is_flat() && condition.columns().all(|(source, _)| named(source)) {
                self.dependency.conditions.push(condition.clone());
            }
        }
    }
}
