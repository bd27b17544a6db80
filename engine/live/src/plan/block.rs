//! The SELECTs of a statement and how they nest: the terms that each joins, its conditions, and the
//! columns that it shows to the enclosing one.

use sqlite3_parser::ast::{JoinOperator, JoinType};

use crate::plan::conjunct::{Conjunct, EqualColumns};
use crate::plan::fragment::Fragment;

/// One SELECT of a statement, with its sources.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// The enclosing SELECT.
    pub(crate) parent: Option<usize>,
    /// The terms that its FROM joins.
    pub(crate) terms: Vec<JoinTerm>,
    /// The conditions on its inner sources.
    pub(crate) filter: Vec<Conjunct>,
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
pub(crate) struct JoinTerm {
    pub(crate) item: Item,
    pub(crate) join: Join,
    /// The condition of an outer join.
    pub(crate) on: Vec<Conjunct>,
}

/// The object that a term of a FROM names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A table.
    Source(usize),
    /// A subquery, by its number.
    Subquery(usize),
}

impl Block {
    /// Returns its conditions.
    pub(crate) fn conjuncts(&mut self) -> impl Iterator<Item = &mut Conjunct> {
        self.terms
            .iter_mut()
            .flat_map(|term| &mut term.on)
            .chain(&mut self.filter)
            .chain(&mut self.link)
    }

    /// Returns all fragments.
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

    /// Returns the column equalities that it requires.
    pub(crate) fn equal_columns(&self) -> impl Iterator<Item = EqualColumns> {
        self.terms
            .iter()
            .flat_map(|term| &term.on)
            .chain(&self.filter)
            .chain(&self.link)
            .filter_map(|conjunct| conjunct.equal)
    }

    /// `true` if its FROM joins a source.
    pub(crate) fn has_source(&self, source: usize) -> bool {
        self.terms.iter().any(|term| term.item == Item::Source(source))
    }

    /// `true` if one of its joins keeps rows of the right side without a match.
    pub(crate) fn keeps_right(&self) -> bool {
        self.terms.iter().any(|term| term.join.keeps_right())
    }

    /// Returns the condition of the LEFT JOIN that may make an item all NULL.
    pub(crate) fn left_join(&self, item: Item) -> Option<&Vec<Conjunct>> {
        let mut terms = self.terms.iter();
        terms.find(|term| term.item == item && term.join == Join::Left).map(|term| &term.on)
    }

    /// Returns the sources that have a row in every one of its rows.
    pub(crate) fn inner_sources(&self) -> impl Iterator<Item = usize> {
        self.terms.iter().filter_map(|term| match term.item {
            Item::Source(source) if term.join == Join::Inner => Some(source),
            _ => None,
        })
    }
}

/// Returns a block and its enclosing blocks, from the inside out.
pub(crate) fn path(blocks: &[Block], home: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(home), |at| blocks[*at].parent)
}

/// How a term of FROM is joined to the preceding ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// JOIN, CROSS JOIN, comma.
    Inner,
    /// LEFT JOIN: this term may be all NULL.
    Left,
    /// RIGHT JOIN: the preceding terms may be all NULL.
    Right,
    /// FULL JOIN: both.
    Full,
}

impl Join {
    /// Returns the keyword.
    pub(crate) fn sql(self) -> &'static str {
        match self {
            Join::Inner => "JOIN",
            Join::Left => "LEFT JOIN",
            Join::Right => "RIGHT JOIN",
            Join::Full => "FULL JOIN",
        }
    }

    /// `true` if rows of this term are kept if no preceding row matches.
    pub(crate) fn keeps_right(self) -> bool {
        matches!(self, Join::Right | Join::Full)
    }
}

/// A join as it is written.
#[derive(Clone, Copy)]
pub(crate) struct JoinKind {
    pub(crate) join: Join,
    pub(crate) natural: bool,
}

/// Returns the join that an operator means.
pub(crate) fn join_kind(operator: JoinOperator) -> JoinKind {
    let JoinOperator::TypedJoin(Some(kind)) = operator else {
        return JoinKind { join: Join::Inner, natural: false };
    };
    let join = match (kind.contains(JoinType::LEFT), kind.contains(JoinType::RIGHT)) {
        (true, true) => Join::Full,
        (false, true) => Join::Right,
        (true, false) => Join::Left,
        (false, false) => Join::Inner,
    };
    JoinKind { join, natural: kind.contains(JoinType::NATURAL) }
}
