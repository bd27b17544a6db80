//! The visibility conditions of a SELECT of a restricted caller, and the conditions that may run
//! before them.

use crate::plan::fragment::Fragment;

/// The visibility condition of some terms of a FROM.
#[derive(Clone, Debug)]
pub(crate) struct VisibilityGuard {
    /// The sources of those terms.
    pub(crate) sources: Vec<usize>,
    pub(crate) condition: Fragment,
}

/// The permitted effects of a restricted caller's condition before a row is known to be visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EarlyPredicate {
    /// Compare columns of two tables for equality.
    Join,
    /// Compare an indexed column with given values.
    Key,
    /// Look an indexed column up in a subquery, which is evaluated once.
    Subquery,
    /// Compare indexed columns in another way.
    Range,
    /// Nothing; it must wait.
    Nothing,
}

/// The conditions of one SELECT that run on rows which the caller may not see.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EarlyPredicates {
    comparisons: usize,
    /// Whether a subquery is evaluated if some row meets the other conditions.
    asks: bool,
}

impl EarlyPredicates {
    /// The maximum number of such comparisons in one SELECT. A few cost as little as the index step
    /// that they avoid; thousands of the same would make the run time reveal the row.
    const MOST: usize = 32;

    /// `true` if another condition with so many comparisons may be added. A subquery must be the
    /// only one: its evaluation would reveal that a row meets the others.
    pub(crate) fn keep(&mut self, probe: EarlyPredicate, comparisons: usize) -> bool {
        let alone = match probe {
            EarlyPredicate::Nothing => false,
            EarlyPredicate::Join => true,
            EarlyPredicate::Key | EarlyPredicate::Range => !self.asks,
            EarlyPredicate::Subquery => !self.asks && self.comparisons == 0,
        };
        if !alone || self.comparisons + comparisons > EarlyPredicates::MOST {
            return false;
        }
        match probe {
            EarlyPredicate::Join => {}
            EarlyPredicate::Subquery => self.asks = true,
            _ => self.comparisons += comparisons,
        }
        true
    }
}

/// Returns a value, or NULL if the guards do not hold. SQLite evaluates only the branch that is
/// taken.
pub(crate) fn null_unless(guards: &Fragment, value: &Fragment) -> Fragment {
    let mut out = Fragment::text("CASE WHEN");
    out.push(guards);
    out.push_text("THEN (");
    out.push(value);
    out.push_text(") END");
    out
}

/// The column of a subquery in FROM that says whether its row is visible.
pub(crate) const SEEN: &str = "seen";
