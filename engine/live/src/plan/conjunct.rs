//! A condition that must hold, and what it requires of the rows: comparisons of columns with
//! parameters, by which a changed row finds the bindings that it can affect.

use crate::plan::collation::Collation;
use crate::plan::fragment::{Fragment, Mark, PlainExpr};

/// A condition that must hold, and what it requires.
#[derive(Clone, Debug)]
pub(crate) struct Conjunct {
    pub(crate) condition: Fragment,
    pub(crate) route: Route,
    /// The two columns that it equates, byte by byte.
    pub(crate) equal: Option<EqualColumns>,
    /// The two expressions that it equates.
    pub(crate) sides: Option<Box<(Fragment, Fragment)>>,
    pub(crate) origin: ConditionOrigin,
}

/// Where a condition comes from. Conditions are written in this order: a row is counted only if all
/// rows that are read with it are visible, and before a condition of the caller ends the work for
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConditionOrigin {
    /// It decides whether a restricted caller may see a row.
    Visibility,
    /// It counts such a row.
    Count,
    /// The query.
    Query,
}

impl Conjunct {
    /// `left = right`, of two columns.
    pub(crate) fn equal_columns(left: &Fragment, right: &Fragment) -> Conjunct {
        let mut condition = left.clone();
        condition.push_text("=");
        condition.push(right);
        condition.harmless = left.harmless && right.harmless;
        let sides = Some(Box::new((left.clone(), right.clone())));
        Conjunct {
            condition,
            route: Route::Any,
            equal: None,
            sides,
            origin: ConditionOrigin::Query,
        }
    }

    /// Makes it a condition of an authorized view, which has the rows that a restricted caller may
    /// see.
    ///
    /// SQLite must evaluate such a condition as soon as it has read the row. It turns a bare EXISTS
    /// into a join, which may follow the loops over other tables; `EXISTS (…) IS TRUE` stays a
    /// condition. And it must read the row before the owner of the row, the row of another table
    /// that has the scope: see [`Mark::ReadBefore`].
    pub(crate) fn become_visibility_condition(&mut self) {
        self.origin = ConditionOrigin::Visibility;
        if self.condition.is_exists() {
            self.condition.push_text("IS TRUE");
        }
        // `select_of` writes the join with an owner in this order.
        let Some((owner, row)) = self.sides.as_deref() else { return };
        let (PlainExpr::Column(owner_source, _), PlainExpr::Column(row_source, _)) =
            (owner.plain, row.plain)
        else {
            return;
        };
        if owner_source == row_source {
            return;
        }
        let mut condition = owner.clone();
        condition.push_text("=");
        condition.mark(Mark::ReadBefore);
        condition.push(row);
        self.condition = condition.harmless_if(self.condition.harmless);
    }
}

/// Two columns, each of a source.
pub(crate) type EqualColumns = ((usize, usize), (usize, usize));

/// The maximum number of alternatives with keys.
const ALTERNATIVES: usize = 32;

/// The maximum number of keys of one alternative. Beyond it, fewer columns are used.
const KEYS: usize = 256;

/// The comparison of a cell with parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Equal to one of them.
    Among,
    /// Greater or equal.
    AtLeast,
    /// Less or equal.
    AtMost,
    /// Matches by LIKE.
    Like,
    /// Matches by GLOB.
    Glob,
}

/// A comparison of a column with parameters, usually `column = ?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Equality {
    pub(crate) test: Comparison,
    pub(crate) source: usize,
    pub(crate) column: usize,
    pub(crate) collation: Collation,
    /// `IS` rather than `=`: NULL equals NULL.
    pub(crate) nulls_match: bool,
    /// Slots of the parameters.
    pub(crate) values: Vec<usize>,
}

/// The requirement of a condition: at least one alternative, and every equality of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Nothing that a key can express.
    Any,
    /// At least one of these.
    Alternatives(Vec<Vec<Equality>>),
}

impl Route {
    /// `true` if it requires columns to be among given values.
    pub(crate) fn is_of_keys(&self) -> bool {
        let Route::Alternatives(alternatives) = self else { return false };
        alternatives.iter().flatten().all(|equality| equality.test == Comparison::Among)
    }

    /// Both hold.
    pub(crate) fn and(self, other: Route) -> Route {
        match (self, other) {
            (Route::Any, route) | (route, Route::Any) => route,
            (Route::Alternatives(left), Route::Alternatives(right)) => {
                if left.len() * right.len() > ALTERNATIVES {
                    // Each side is necessary by itself; the one with fewer keys is cheaper.
                    let fewer = if left.len() <= right.len() { left } else { right };
                    return Route::Alternatives(fewer);
                }
                let pairs =
                    left.iter().flat_map(|left| right.iter().map(move |right| (left, right)));
                Route::Alternatives(
                    pairs.map(|(left, right)| [&left[..], right].concat()).collect(),
                )
            }
        }
    }

    /// At least one of them holds.
    pub(crate) fn or(self, other: Route) -> Route {
        match (self, other) {
            (Route::Alternatives(mut left), Route::Alternatives(right))
                if left.len() + right.len() <= ALTERNATIVES =>
            {
                left.extend(right);
                Route::Alternatives(left)
            }
            _ => Route::Any,
        }
    }

    /// Keeps the usable equalities. An alternative without any requires nothing.
    pub(crate) fn only(&self, usable: &dyn Fn(&Equality) -> bool) -> Route {
        let Route::Alternatives(alternatives) = self else { return Route::Any };
        let usable: Vec<Vec<Equality>> = alternatives
            .iter()
            .map(|equalities| {
                equalities.iter().filter(|equality| usable(equality)).cloned().collect::<Vec<_>>()
            })
            .collect();
        if usable.iter().any(Vec::is_empty) { Route::Any } else { Route::Alternatives(usable) }
    }

    /// Copies every `=` to the columns that are equal to its own.
    pub(crate) fn carried(mut self, equal: &[EqualColumns]) -> Route {
        let Route::Alternatives(alternatives) = &mut self else { return self };
        for equalities in alternatives {
            let mut at = 0;
            while let Some(known) = equalities.get(at).cloned() {
                at += 1;
                if known.nulls_match
                    || known.test != Comparison::Among
                    || known.collation != Collation::Binary
                {
                    continue;
                }
                let here = (known.source, known.column);
                for (left, right) in equal {
                    let other = if *left == here { *right } else { *left };
                    let is_linked = *left == here || *right == here;
                    let is_known = equalities
                        .iter()
                        .any(|equality| (equality.source, equality.column) == other);
                    if is_linked && !is_known {
                        equalities.push(Equality {
                            source: other.0,
                            column: other.1,
                            ..known.clone()
                        });
                    }
                }
            }
        }
        self
    }

    /// Drops the requirements that depend on one of these parameters.
    pub(crate) fn forget(&mut self, lost: &dyn Fn(usize) -> bool) {
        let Route::Alternatives(alternatives) = self else { return };
        let mut slots = alternatives.iter().flatten().flat_map(|equality| &equality.values);
        if slots.any(|slot| lost(*slot)) {
            *self = Route::Any;
        }
    }

    /// Renumbers the parameters.
    pub(crate) fn renumber(&mut self, new: &dyn Fn(usize) -> usize) {
        let Route::Alternatives(alternatives) = self else { return };
        for slot in alternatives.iter_mut().flatten().flat_map(|equality| &mut equality.values) {
            *slot = new(*slot);
        }
    }

    /// Returns the requirements on one source: for each alternative the equalities to use as a key,
    /// in the order of their columns, or the bounds of one column's range. `None` if some
    /// alternative requires nothing of it.
    pub(crate) fn alternatives_for(&self, source: usize) -> Option<Vec<Vec<&Equality>>> {
        let Route::Alternatives(alternatives) = self else { return None };
        let keyed = alternatives.iter().map(|equalities| {
            let here = || equalities.iter().filter(|equality| equality.source == source);
            let mut equalities_of_source: Vec<&Equality> =
                here().filter(|equality| equality.test == Comparison::Among).collect();
            if equalities_of_source.is_empty() {
                // Without a key, use the range of the first bounded column.
                let column = here().next().map(|range| (range.column, range.collation));
                return here()
                    .filter(|range| column == Some((range.column, range.collation)))
                    .collect();
            }
            equalities_of_source.sort_by_key(|equality| {
                (equality.column, equality.collation, equality.values.len())
            });
            equalities_of_source.dedup_by_key(|equality| (equality.column, equality.collation));
            equalities_of_source.sort_by_key(|equality| equality.values.len());
            let mut keys = 1;
            equalities_of_source.retain(|equality| {
                let fits = keys == 1 || keys * equality.values.len() <= KEYS;
                keys *= if fits { equality.values.len() } else { 1 };
                fits
            });
            equalities_of_source.sort_by_key(|equality| (equality.column, equality.collation));
            equalities_of_source
        });
        let keyed: Vec<Vec<&Equality>> = keyed.collect();
        (!keyed.iter().any(Vec::is_empty)).then_some(keyed)
    }
}
