//! The deltas of all live bindings by a commit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use abide_schema::share::ShareKey;
use abide_schema::{Refusal, Row, limits};

use crate::bindings::{
    Affected, AttachedBindings, Hit, HitList, HitsByBinding, SharedHits, UsedView, WorkCounters,
    numbers,
};
use crate::catalog::Catalog;
use crate::delta::Delta;
use crate::delta::accumulator::BackfilledGroup;
use crate::delta::changes::Changes;
use crate::delta::meter::{Budget, Cost, CountedSteps, MeteredDelta, PayerCost, TemplateWork};
use crate::route::binding_index::BindingId;
use crate::sql::{LiveError, Sql};
use crate::template::{Binding, Template};
use crate::views::{ViewChanges, Views};

/// Finds the bindings that a commit affects and computes their deltas. Owned by the writer thread.
#[derive(Debug)]
pub struct Router {
    attached: AttachedBindings,
    /// What restricted callers see.
    views: Views,
    /// Bytes of cached state of all results.
    remembered: usize,
    backfills: Vec<BackfillRequest>,
}

/// A group whose accumulators are too expensive to fill within a commit. A reader fills them
/// ([`Binding::fill`]) and passes them to [`Router::apply_backfill`].
#[derive(Clone, Debug)]
pub struct BackfillRequest {
    /// The binding.
    pub id: BindingId,
    /// The binding as a value.
    pub binding: Binding,
    /// The group's values.
    pub group: Row,
    /// Whose turn the work takes.
    pub payer: ShareKey,
}

/// The deltas of a commit, as far as they are computed.
struct CommitDeltas {
    /// The CPU time at the start of the commit.
    started: Duration,
    spent_for: BTreeMap<ShareKey, PayerCost>,
    deltas: Vec<(BindingId, Result<Delta, LiveError>)>,
}

/// Bindings that changes may affect, as in [`HitsByBinding`].
type HitBindings = Vec<(BindingId, Vec<HitList>)>;

/// Lists that are derived from lists which bindings share: each is derived once, whatever parts of
/// it the bindings have.
#[derive(Debug, Default)]
struct DerivedHits(HashMap<*const Hit, DerivedList>);

#[derive(Debug)]
struct DerivedList {
    /// Kept, so that no other list gets its address.
    _original: SharedHits,
    derived: SharedHits,
    /// For each place of the original list, how many derived changes come before it.
    before: Vec<usize>,
}

impl DerivedHits {
    /// Returns the list that is derived from this one, and adds its length to `work`.
    fn derive(
        &mut self,
        list: &HitList,
        work: &mut u64,
        derive: &mut dyn FnMut(&Hit) -> Option<Hit>,
    ) -> HitList {
        let known = self.0.entry(list.all.as_ptr()).or_insert_with(|| {
            *work += list.all.len() as u64;
            let mut derived = Vec::new();
            let mut before = vec![0];
            for hit in list.all.iter() {
                derived.extend(derive(hit));
                before.push(derived.len());
            }
            DerivedList { _original: Arc::clone(&list.all), derived: derived.into(), before }
        });
        let part = known.before[list.part.start]..known.before[list.part.end];
        HitList { all: Arc::clone(&known.derived), part }
    }
}

impl Router {
    /// Creates an empty router.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>) -> Router {
        Router::limited(catalog, None)
    }

    /// Creates an empty router with a limit on the cost of deltas per commit.
    #[must_use]
    pub fn with_budget(catalog: Arc<Catalog>, budget: Budget) -> Router {
        Router::limited(catalog, Some(budget))
    }

    fn limited(catalog: Arc<Catalog>, budget: Option<Budget>) -> Router {
        Router {
            views: Views::new(Arc::clone(&catalog), budget),
            attached: AttachedBindings::new(catalog, budget),
            remembered: 0,
            backfills: Vec::new(),
        }
    }

    /// Returns the cost of each attached template, the most expensive first.
    #[must_use]
    pub fn templates(&self) -> Vec<TemplateWork> {
        self.attached.meters.work_by_template()
    }

    /// Approximate bytes of cached state.
    #[must_use]
    pub fn remembered_bytes(&self) -> usize {
        self.remembered
    }

    /// Returns the number of bindings that are checked at every change of some table.
    #[must_use]
    pub fn residual(&self) -> usize {
        self.attached.tables.iter().map(|table| table.residual.len()).sum()
    }

    /// Drops the cached state of all results, after the commit that produced it is rolled back.
    pub fn forget(&mut self) {
        self.attached.all.values_mut().for_each(|attached| attached.state = None);
        self.remembered = 0;
    }

    /// Attaches a binding for a subscriber. Equal bindings share one id, which must be detached as
    /// many times. Those of restricted callers share it with callers of the same payer only: what
    /// others spend decides nothing for them.
    ///
    /// # Errors
    /// The query has no key, and too many such queries are attached: `limit_exceeded` if they are
    /// the subscriber's, `overloaded` if they are those of others.
    pub fn attach(&mut self, binding: &Binding, by: &ShareKey) -> Result<BindingId, Refusal> {
        let views = self.views.attach(binding.views(), by)?;
        if let Some(id) = self.attached.share(binding, by) {
            return Ok(id);
        }
        let id = self.attached.add(binding, &views, by).inspect_err(|_| {
            self.views.detach(&views, by);
        })?;
        let attached = &self.attached.all[&id];
        for view in &views {
            self.views.add_user(view.id, id, attached.is_checked_at_each_change(view.table));
        }
        Ok(id)
    }

    /// Detaches a binding once, for a subscriber that it was attached for. The cost does not depend
    /// on other bindings.
    pub fn detach(&mut self, id: BindingId, by: &ShareKey) {
        let Some(attached) = self.attached.all.get(&id) else { return };
        self.views.detach(&attached.views, by);
        let Some(attached) = self.attached.detach(id, by) else { return };
        self.remembered -= attached.state.as_ref().map_or(0, |state| state.bytes());
        attached.views.iter().for_each(|view| self.views.remove_user(view.id, id));
    }

    /// Returns the number of distinct attached bindings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.attached.all.len()
    }

    /// `true` if no binding is attached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attached.all.is_empty()
    }

    /// Returns the work done so far.
    #[must_use]
    pub fn counters(&self) -> WorkCounters {
        self.attached.work
    }

    /// Computes the changes of all bindings' results by a commit; `sql` runs on the state after it.
    /// Returns the bindings whose result changed or is unknown, in the order of their ids.
    pub fn commit(
        &mut self,
        changes: &Changes,
        sql: &mut dyn Sql,
    ) -> Vec<(BindingId, Result<Delta, LiveError>)> {
        let started = sql.processor_time();
        let mut laid_out = BTreeSet::new();
        let visible = match self.changes_of_views(changes, started, sql, &mut laid_out) {
            Ok(visible) => visible,
            Err(error) => return self.all_fail(&error),
        };
        let allowance = self.attached.allowance(started);
        let Affected { mut hits, mut unknown } =
            self.attached.affected(changes, &allowance, sql, &mut laid_out);
        self.keep_visible(&mut hits, &visible);
        self.views.add_users(&visible, &mut hits, &mut unknown);
        // Bindings planned with outdated policies receive no more deltas.
        hits.retain(|id, _| self.attached.all[id].binding.is_latest());
        self.attached.work.bindings_probed += hits.len() as u64;
        let mut groups: BTreeMap<Vec<BindingId>, HitBindings> = BTreeMap::new();
        for (id, found) in hits {
            let views = self.attached.all[&id].views.iter().map(|view| view.id).collect();
            groups.entry(views).or_default().push((id, found));
        }
        let mut commit = CommitDeltas { started, spent_for: BTreeMap::new(), deltas: Vec::new() };
        for group in groups.into_values() {
            let views = self.attached.all[&group[0].0].views.clone();
            let is_unknown = group.iter().all(|(id, _)| unknown.contains(id));
            let seen = if is_unknown {
                Ok((changes.clone(), group))
            } else if views.is_empty() {
                let ids = group.iter().map(|(id, _)| id);
                self.attached
                    .lay_out(ids, changes, sql, &mut laid_out)
                    .map(|()| (changes.clone(), group))
            } else {
                laid_out.clear();
                self.lay_out_visible(&views, &visible, changes, group, started, sql)
            };
            match seen {
                Ok((seen, group)) => self.group_deltas(&seen, group, &unknown, sql, &mut commit),
                Err(error) => return self.all_fail(&error),
            }
        }
        let mut deltas = commit.deltas;
        deltas.sort_unstable_by_key(|(id, _)| *id);
        self.attached.work.deltas_made += deltas.len() as u64;
        if self.remembered > limits::LIVE_STATE_BYTES {
            self.forget_most();
        }
        deltas
    }

    /// Removes the changes that the callers of restricted queries do not see, and the queries that
    /// are left without one.
    fn keep_visible(&mut self, hits: &mut HitsByBinding, visible: &ViewChanges) {
        let mut by_views: HashMap<&[UsedView], DerivedHits> = HashMap::new();
        let AttachedBindings { all, work, .. } = &mut self.attached;
        hits.retain(|id, lists| {
            let views = all[id].views.as_slice();
            if views.is_empty() {
                return true;
            }
            let derived = by_views.entry(views).or_default();
            for list in lists.iter_mut() {
                *list = derived.derive(list, &mut work.matches, &mut |hit| {
                    is_visible(hit, views, visible).then_some(*hit)
                });
            }
            lists.retain(|list| !list.part.is_empty());
            !lists.is_empty()
        });
    }

    /// Returns the changes could not be laid out. Every binding gets the error, because those that
    /// a hidden row affects must not be told apart.
    fn all_fail(&self, error: &LiveError) -> Vec<(BindingId, Result<Delta, LiveError>)> {
        let mut ids: Vec<BindingId> = self.attached.all.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().map(|id| (id, Err(error.clone()))).collect()
    }

    fn changes_of_views(
        &mut self,
        changes: &Changes,
        started: Duration,
        sql: &mut dyn Sql,
        laid_out: &mut BTreeSet<usize>,
    ) -> Result<ViewChanges, LiveError> {
        let before = self.views.spent();
        let visible = self.views.changes(changes, started, sql, laid_out);
        self.attached.work.spent.add(self.views.spent() - before);
        visible
    }

    /// Lays out the changes that the caller of these queries sees, if possible. Returns the changes
    /// and the queries, whose change numbers are positions in them.
    fn lay_out_visible(
        &mut self,
        used: &[UsedView],
        visible: &ViewChanges,
        changes: &Changes,
        mut group: HitBindings,
        started: Duration,
        sql: &mut dyn Sql,
    ) -> Result<(Changes, HitBindings), LiveError> {
        let tables =
            group.iter().flat_map(|(id, _)| self.attached.all[id].binding.template().tables());
        let tables: BTreeSet<usize> = tables.collect();
        let before = self.views.spent();
        let seen = self.views.visible_changes(used, visible, changes, &tables, started, sql);
        self.attached.work.spent.add(self.views.spent() - before);
        let Some(seen) = seen? else {
            let ids = group.iter().map(|(id, _)| id);
            self.attached.lay_out(ids, changes, sql, &mut BTreeSet::new())?;
            return Ok((changes.clone(), group));
        };
        let mut position = |hit: &Hit| {
            let view = used.iter().find(|view| view.table == hit.table);
            let position = view.and_then(|view| visible.get(&view.id)?.position(hit.number));
            Some(Hit { number: position.expect("only visible changes affect the query"), ..*hit })
        };
        let mut derived = DerivedHits::default();
        for list in group.iter_mut().flat_map(|(_, lists)| lists) {
            *list = derived.derive(list, &mut self.attached.work.matches, &mut position);
        }
        Ok((seen, group))
    }

    /// The deltas of queries that see the same changes, which are laid out.
    fn group_deltas(
        &mut self,
        changes: &Changes,
        group: HitBindings,
        unknown: &BTreeSet<BindingId>,
        sql: &mut dyn Sql,
        commit: &mut CommitDeltas,
    ) {
        let mut seen: HashMap<*const Template, Changes> = HashMap::new();
        for (id, hits) in group {
            let payer = self.attached.all[&id].holders.payer().clone();
            let now = sql.processor_time();
            let own = commit.spent_for.entry(payer.clone()).or_default();
            let counted = self.attached.all[&id].binding.counted_steps();
            let is_over = self.attached.budget.is_some_and(|budget| {
                budget.counting(counted).is_over(&payer, *own)
                    || now.saturating_sub(commit.started) >= budget.commit_time
            });
            if unknown.contains(&id) || is_over {
                commit.deltas.push((id, Err(LiveError::OverBudget)));
                self.forget_one(id);
                continue;
            }
            let template = self.attached.all[&id].binding.template();
            let seen = seen
                .entry(std::ptr::from_ref(template))
                .or_insert_with(|| template.relevant_changes(changes).into_owned())
                .clone();
            let before = self.attached.work.spent;
            let numbers = numbers(&hits);
            let mut delta = self.delta(id, &seen, &numbers, sql);
            if counted == CountedSteps::Visible {
                delta = delta.map(Delta::sorted);
            }
            let spent = self.attached.work.spent - before;
            own.steps += self.attached.budget.map_or(0, |budget| budget.charge(spent, counted));
            own.time += sql.processor_time().saturating_sub(now);
            match delta {
                Ok(delta) if delta.is_empty() => {}
                other => commit.deltas.push((id, other)),
            }
        }
    }

    /// Drops the cached state of those callers that have the most, until the rest is within the
    /// limit.
    fn forget_most(&mut self) {
        let mut bytes_by_payer: BTreeMap<ShareKey, usize> = BTreeMap::new();
        self.attached.all.values().for_each(|attached| {
            let bytes = attached.state.as_ref().map_or(0, |state| state.bytes());
            if bytes > 0 {
                *bytes_by_payer.entry(attached.holders.payer().clone()).or_default() += bytes;
            }
        });
        let mut bytes_by_payer: Vec<(usize, ShareKey)> =
            bytes_by_payer.into_iter().map(|(key, bytes)| (bytes, key)).collect();
        bytes_by_payer.sort_unstable();
        let mut most = BTreeSet::new();
        while self.remembered > limits::LIVE_STATE_BYTES {
            let Some((bytes, key)) = bytes_by_payer.pop() else { break };
            self.remembered -= bytes;
            most.insert(key);
        }
        let dropped = self
            .attached
            .all
            .values_mut()
            .filter(|attached| most.contains(attached.holders.payer()));
        dropped.for_each(|attached| attached.state = None);
    }

    /// Drops the cached state of a result that missed a commit.
    fn forget_one(&mut self, id: BindingId) {
        let attached = self.attached.all.get_mut(&id).expect("only attached bindings are hit");
        self.remembered -= attached.state.take().map_or(0, |state| state.bytes());
        let work = &mut self.attached.meters.meter(attached.meter).work;
        work.deltas += 1;
        work.over_budget += 1;
    }

    /// Returns the delta of one binding, within its budget, from the changes in tables and columns
    /// that it reads.
    fn delta(
        &mut self,
        id: BindingId,
        seen: &Changes,
        numbers: &[usize],
        sql: &mut dyn Sql,
    ) -> Result<Delta, LiveError> {
        let attached = self.attached.all.get_mut(&id).expect("only attached bindings are hit");
        let template = attached.binding.template();
        if !template.tables().iter().any(|table| template.has_changed(*table, seen)) {
            return Ok(Delta::default());
        }
        let meter = self.attached.meters.meter(attached.meter);
        let before = attached.state.as_ref().map_or(0, |state| state.bytes());
        let mut state = attached.state.take();
        if !meter.may_run() {
            self.remembered -= before;
            return Err(LiveError::OverBudget);
        }
        if attached.binding.template().remembers() {
            state.get_or_insert_default();
        }
        let mut spent = Cost::default();
        let mut unfilled = Vec::new();
        let template = attached.binding.template();
        let counted = attached.binding.counted_steps();
        let started = sql.processor_time();
        sql.allow(template.allowance(self.attached.budget, counted));
        let mut run = template.rule_context(attached.binding.params(), seen, sql, &mut spent);
        run.state = state.as_deref_mut();
        run.unfilled = Some(&mut unfilled);
        // Bindings found by a lookup have no list of change numbers.
        let numbers = (!numbers.is_empty()).then_some(numbers);
        let delta = template.rule().delta(&mut run, numbers);
        sql.allow(None);
        let keeps = delta.is_ok() || !unfilled.is_empty();
        attached.state = state.filter(|state| keeps && state.bytes() > 0);
        let exceeded = delta == Err(LiveError::OverBudget);
        if exceeded {
            // An interrupted statement reports no steps, so it counts with its full allowance.
            let max = self.attached.budget.map_or(0, |budget| budget.counting(counted).max);
            match counted {
                CountedSteps::All => spent.steps = spent.steps.max(max),
                CountedSteps::Visible => spent.visible_steps = spent.visible_steps.max(max),
            }
        }
        let time = sql.processor_time().saturating_sub(started);
        // A wanted group is filled later and cheap from then on.
        let exceeded_for_good = exceeded && unfilled.is_empty();
        meter.spend(
            MeteredDelta { spent, counted, time },
            exceeded_for_good,
            self.attached.budget.filter(|_| exceeded == exceeded_for_good),
        );
        self.attached.work.spent.add(spent);
        let after = attached.state.as_ref().map_or(0, |state| state.bytes());
        self.remembered = self.remembered - before + after;
        self.backfills.extend(unfilled.into_iter().map(|group| BackfillRequest {
            id,
            binding: attached.binding.clone(),
            group,
            payer: attached.holders.payer().clone(),
        }));
        delta
    }

    /// Returns the bindings that were planned with outdated policies.
    #[must_use]
    pub fn outdated(&self) -> Vec<BindingId> {
        let old = self.attached.all.iter().filter(|(_, attached)| !attached.binding.is_latest());
        let mut ids: Vec<BindingId> = old.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the groups that became wanted since the last call.
    pub fn take_backfill_requests(&mut self) -> Vec<BackfillRequest> {
        std::mem::take(&mut self.backfills)
    }

    /// Adopts the accumulators of a wanted group, valid before these changes. The changes end at
    /// the state that `sql` runs on, the one after the last commit. `None` means that the
    /// accumulators could not be computed; the group is tried again when it is next touched.
    pub fn apply_backfill(
        &mut self,
        backfills: &BackfillRequest,
        filled: Option<BackfilledGroup>,
        changes: &Changes,
        sql: &mut dyn Sql,
    ) -> Result<(), LiveError> {
        let Some(attached) = self.attached.all.get_mut(&backfills.id) else { return Ok(()) };
        if filled.is_none() {
            // Its next attempts would cost the writer as much, and a reader too.
            let meter = self.attached.meters.meter(attached.meter);
            let counted = attached.binding.counted_steps();
            let delta = MeteredDelta { spent: Cost::default(), counted, time: Duration::ZERO };
            meter.spend(delta, true, self.attached.budget);
        }
        let Some(state) = attached.state.as_deref_mut() else { return Ok(()) };
        let before = state.bytes();
        let mut spent = Cost::default();
        let template = attached.binding.template();
        changes.lay_out(&self.attached.catalog, template.tables(), sql)?;
        sql.allow(template.allowance(self.attached.budget, attached.binding.counted_steps()));
        let mut run = template.rule_context(attached.binding.params(), changes, sql, &mut spent);
        let adopted = template.rule().apply_backfill(&mut run, state, &backfills.group, filled);
        sql.allow(None);
        self.attached.meters.meter(attached.meter).work.spent.add(spent);
        self.remembered = self.remembered - before + state.bytes();
        adopted
    }
}

/// `true` if a change concerns a query, in an image that its caller sees. Without views it sees
/// all.
fn is_visible(hit: &Hit, views: &[UsedView], visible: &ViewChanges) -> bool {
    let mut table_views = views.iter().filter(|view| view.table == hit.table);
    views.is_empty()
        || table_views.any(|view| visible.get(&view.id).is_some_and(|change| change.shows(hit)))
}
