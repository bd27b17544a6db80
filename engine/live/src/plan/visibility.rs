//! The order of evaluation in a query of a restricted caller: visibility conditions come before the
//! caller's own expressions.
//!
//! *Invariant:* no expression of a restricted query is evaluated on a row before the row is known
//! to be visible. Its run time or failure would reveal the row. Such an expression is wrapped in a
//! CASE on the visibility condition (see `guard_conjuncts`). A few comparisons of indexed columns
//! are exempt; without them SQLite could use no index.

use abide_schema::{Code, Refusal};

use crate::plan::block::path;
use crate::plan::conjunct::Conjunct;
use crate::plan::fragment::{Fragment, Mark, Piece};
use crate::plan::guard::{EarlyPredicate, SEEN, null_unless};
use crate::plan::lowering::Lowering;
use crate::plan::query::{Derived, SelectCore};

impl Lowering<'_> {
    /// `true` if the text was written by a restricted caller.
    pub(crate) fn is_bounded(&self) -> bool {
        self.principal.is_some() && !self.trusted
    }

    /// Wraps the conditions of a restricted caller so that none reveals an invisible row.
    ///
    /// Only [harmless](Fragment::harmless) conditions stay unchanged, so that SQLite can use an
    /// index for them. All others run only after the visibility conditions.
    pub(crate) fn guard_conjuncts(
        &mut self,
        core: &mut SelectCore,
        conjuncts: Vec<Conjunct>,
    ) -> Vec<Conjunct> {
        if !self.is_bounded() {
            return conjuncts;
        }
        let mut by_rank: Vec<usize> = (0..conjuncts.len()).collect();
        by_rank.sort_by_key(|at| EarlyPredicate::from_conjunct(core, &conjuncts[*at]));
        let mut kept = vec![false; conjuncts.len()];
        for at in by_rank {
            let probe = EarlyPredicate::from_conjunct(core, &conjuncts[at]);
            kept[at] = core.probes.keep(probe, core.count_named(&conjuncts[at].condition));
        }
        conjuncts
            .into_iter()
            .zip(kept)
            .map(|(mut conjunct, kept)| {
                if !kept {
                    let by_value = self.guard_value(core, &conjunct);
                    conjunct.condition = by_value
                        .unwrap_or_else(|| self.null_unless_visible(core, &conjunct.condition));
                }
                conjunct
            })
            .collect()
    }

    /// `indexed = other` of two columns. Only the rows of `other` must be visible before the index
    /// lookup.
    fn guard_value(&mut self, core: &mut SelectCore, conjunct: &Conjunct) -> Option<Fragment> {
        let (left, right) = &**conjunct.sides.as_ref()?;
        if left.harmless == right.harmless || left.collation.is_some() || right.collation.is_some()
        {
            return None;
        }
        let value = if left.harmless { right } else { left };
        if core.count_named(value) == 0 {
            // A column of an enclosing SELECT. Its row is already known to be visible here.
            return Some(conjunct.condition.clone());
        }
        // Then a CAST to the type of its affinity leaves the value as it is.
        self.kind_of(value).filter(|_| value.is_column())?;
        let guarded = self.null_unless_visible(core, value).with_affinity(self.affinity_of(value));
        let (left, right) = if left.harmless { (left, &guarded) } else { (&guarded, right) };
        let mut condition = left.clone();
        condition.push_text("=");
        condition.push(right);
        Some(condition)
    }

    /// Returns a value on visible rows; NULL on others.
    pub(crate) fn null_unless_visible(
        &mut self,
        core: &mut SelectCore,
        value: &Fragment,
    ) -> Fragment {
        match core.guards_of(value) {
            Some(guards) => null_unless(&guards, value),
            None => value.clone(),
        }
    }

    /// Called once all expressions of a SELECT are known: records the visibility conditions for
    /// those that may become conditions later.
    pub(crate) fn seal(&mut self, core: &mut SelectCore) {
        if !self.is_bounded() {
            return;
        }
        let guards_ask = core.guards.iter().any(|guard| guard.condition.has_subquery());
        let derived = core.from.iter().filter_map(|term| term.derived.as_ref());
        let mut cores = derived.flat_map(|derived| &derived.query.cores);
        core.opaque = guards_ask || cores.any(|(_, core)| core.opaque);
        core.fenced = core.having.as_ref().is_some_and(|having| !having.harmless);
        self.seal_within(core);
        // Also for queries that run once, because templates are shared by text.
        if core.may_be_restricted() {
            core.visible = core.guards_of(&Fragment::new());
        }
    }

    /// Conditions that connect a subquery with its enclosing rows are also used outside of it, to
    /// route its changes. The rows must be visible there too.
    fn seal_within(&mut self, core: &mut SelectCore) {
        for at in core.block + 1..self.blocks.len() {
            if !path(&self.blocks, at).any(|around| around == core.block) {
                continue;
            }
            for conjunct in self.blocks[at].conjuncts() {
                let condition = &conjunct.condition;
                if condition.harmless || core.count_named(condition) == 0 {
                    continue;
                }
                if let Some(guards) = core.guards_of(condition) {
                    conjunct.condition = null_unless(&guards, condition);
                }
            }
        }
    }

    /// Reads the SELECT that replaces a table. `None` if the caller is not restricted.
    pub(crate) fn authorized_view_of(&self, table: &str) -> Result<Option<String>, Refusal> {
        let Some(principal) = self.principal.filter(|_| !self.trusted) else { return Ok(None) };
        match principal.authorized_views.select(table) {
            Some(select) => Ok(Some(select.to_owned())),
            None => Err(Refusal::new(Code::BadSql, format!("no such table: {table}"))
                .hint("no table with this name is visible to you")),
        }
    }
}

impl EarlyPredicate {
    fn from_conjunct(core: &SelectCore, conjunct: &Conjunct) -> EarlyPredicate {
        match &conjunct.condition {
            condition if !condition.harmless || core.count_named(condition) == 0 => {
                EarlyPredicate::Nothing
            }
            _ if conjunct.sides.is_some() => EarlyPredicate::Join,
            condition if condition.has_subquery() => EarlyPredicate::Subquery,
            _ if conjunct.route.is_of_keys() => EarlyPredicate::Key,
            _ => EarlyPredicate::Range,
        }
    }
}

impl SelectCore {
    /// Returns the sources and subqueries of its FROM that a value names, each mention counted.
    fn count_named(&self, value: &Fragment) -> usize {
        value
            .pieces
            .iter()
            .filter(|piece| self.from.iter().any(|term| term.is_named(piece)))
            .count()
    }

    /// Returns the visibility conditions of the rows that a value names; of all rows if it names
    /// none. `None` if every row is visible.
    pub(crate) fn guards_of(&mut self, value: &Fragment) -> Option<Fragment> {
        let all = self.count_named(value) == 0;
        let mut conditions: Vec<Fragment> = Vec::new();
        for guard in &self.guards {
            if all || value.columns().any(|(source, _)| guard.sources.contains(&source)) {
                conditions.push(guard.condition.clone());
            }
        }
        for term in &mut self.from {
            if all || value.pieces.iter().any(|piece| term.is_named(piece)) {
                conditions
                    .extend(term.derived.as_mut().and_then(|derived| derived.visibility_column()));
            }
        }
        let mut conditions = conditions.into_iter();
        let mut guards = conditions.next()?;
        for condition in conditions {
            guards.push_text("AND");
            guards.push(&condition);
        }
        Some(guards)
    }

    /// Returns a condition on one of its values, behind the visibility conditions.
    pub(crate) fn shielded(&self, value: &Fragment, condition: Fragment) -> Fragment {
        match &self.visible {
            Some(visible) if !value.is_column() => null_unless(visible, &condition),
            _ => condition,
        }
    }

    /// `true` if some rule may turn its outputs, groups or filters into conditions.
    fn may_be_restricted(&self) -> bool {
        let outputs = self.outputs.iter().map(|output| &output.value);
        let by = self.group.iter().flatten().chain(self.frame.partitions.iter().flatten());
        let shown = outputs.clone().any(|value| !value.is_column() && !value.is_constant());
        let filtered = outputs
            .chain(&self.having)
            .any(|value| value.pieces.contains(&Piece::Mark(Mark::Filter)));
        by.into_iter().any(|by| !by.is_column()) || shown || filtered
    }
}

impl Derived {
    /// Returns the visibility of its rows as an extra column, which stays available wherever SQLite
    /// moves conditions on the subquery. `None` if all its rows are visible.
    fn visibility_column(&mut self) -> Option<Fragment> {
        let mut cores: Vec<&mut SelectCore> =
            self.query.cores.iter_mut().map(|(_, core)| core).collect();
        if cores.iter().all(|core| core.seen.is_none()) {
            let guards: Vec<Option<Fragment>> =
                cores.iter_mut().map(|core| core.guards_of(&Fragment::new())).collect();
            if guards.iter().all(Option::is_none) {
                return None;
            }
            for (core, guards) in cores.iter_mut().zip(guards) {
                core.seen = Some(match guards {
                    // True for every group, but unknown before the group is computed.
                    _ if core.aggregates() => Fragment::text("count(*) >= 0"),
                    None => Fragment::text("1"),
                    Some(guards) => {
                        let mut seen = Fragment::text("(");
                        seen.push(&guards);
                        seen.push_text(") IS TRUE");
                        seen
                    }
                });
            }
        }
        // NULL in an outer join's row without a row of the subquery.
        let mut seen = Fragment::derived(&self.alias, SEEN, self.number, usize::MAX);
        seen.push_text("IS NOT 0");
        Some(seen)
    }
}
