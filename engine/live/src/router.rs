//! The index over all live bindings: finds those that a commit affects, with a few hash probes.

use std::collections::hash_map::{Entry as MapEntry, RandomState};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use abide_schema::limits;
use abide_schema::share::{CommonScopeKeys, NoRoom, ShareKey};
use abide_schema::{Code, Refusal, Row, Value};

use crate::catalog::Catalog;
use crate::delta::Delta;
use crate::delta::accumulator::BackfilledGroup;
use crate::delta::changes::Changes;
use crate::delta::meter::{Budget, Cost, Meters, PayerCost, TemplateWork};
use crate::delta::state::RuleState;
use crate::plan::conjunct::{Comparison, Equality};
use crate::route::binding_index::{BindingId, BindingIndex, IdMap};
use crate::route::payers::{Holders, Released};
use crate::route::table_routes::{Images, KeySet, RouteEntry, TableRoutes};
use crate::route::{KeyColumn, hash_key, interval_of};
use crate::sql::{LiveError, Sql};
use crate::template::{Binding, Template};
use crate::views::{UsedView, ViewAllowance, ViewChanges, Views};

/// Counted work, for tests and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounters {
    /// Changed rows probed.
    pub rows_routed: u64,
    /// Hash probes.
    pub probes: u64,
    /// Bindings that a change may affect.
    pub bindings_probed: u64,
    /// SQLite's work.
    pub spent: Cost,
    /// Deltas that were not empty.
    pub deltas_made: u64,
}

/// Finds the bindings that a commit affects and computes their deltas. Owned by the writer thread.
#[derive(Debug)]
pub struct Router {
    catalog: Arc<Catalog>,
    bindings: IdMap<BindingId, AttachedBinding>,
    /// By the hash of template and parameters.
    ids: BindingIndex,
    next: u64,
    tables: Vec<TableRoutes>,
    /// Of all subscribers.
    common: CommonScopeKeys,
    hasher: RandomState,
    work: WorkCounters,
    meters: Meters,
    budget: Option<Budget>,
    /// Bytes of cached state of all results.
    remembered: usize,
    backfills: Vec<BackfillRequest>,
    /// What restricted callers see; `None` in the router of these views.
    views: Option<Box<Views>>,
}

#[derive(Debug)]
struct AttachedBinding {
    binding: Binding,
    holders: Holders,
    places: Vec<RouteEntry>,
    /// The views that a restricted query reads.
    views: Vec<UsedView>,
    meter: usize,
    /// Created when a commit first affects the binding.
    state: Option<Box<RuleState>>,
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

/// A change that matches a key of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) table: usize,
    /// The number of the change among those of its table.
    pub(crate) number: usize,
    /// The images that match.
    pub(crate) images: Images,
}

/// The bindings that a commit may affect.
#[derive(Debug)]
pub(crate) struct Affected {
    /// With the changes that match a key, none if a lookup found the binding.
    pub(crate) hits: BTreeMap<BindingId, Vec<Hit>>,
    /// Those whose lookup cost too much.
    pub(crate) unknown: BTreeSet<BindingId>,
}

/// The deltas of a commit, as far as they are computed.
struct CommitDeltas {
    /// The CPU time at the start of the commit.
    started: Duration,
    spent_for: BTreeMap<ShareKey, PayerCost>,
    deltas: Vec<(BindingId, Result<Delta, LiveError>)>,
}

/// Bindings that changes may affect, each with its hits.
type HitBindings = Vec<(BindingId, Vec<Hit>)>;

/// The subscriber of a binding that is about to be indexed, and what it is about to use.
struct NewPlaces<'a> {
    by: &'a ShareKey,
    places: BTreeSet<RouteEntry>,
    /// Tables and key sets, and whether the set is new.
    sets: Vec<(usize, usize, bool)>,
}

impl Router {
    /// An empty router.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>) -> Router {
        let views = Some(Box::new(Views::new(Arc::clone(&catalog))));
        Router { views, ..Router::of_views(catalog) }
    }

    /// An empty router of views.
    pub(crate) fn of_views(catalog: Arc<Catalog>) -> Router {
        let tables = (0..catalog.len()).map(|_| TableRoutes::default()).collect();
        Router {
            catalog,
            bindings: IdMap::default(),
            ids: BindingIndex::default(),
            next: 0,
            tables,
            common: CommonScopeKeys::default(),
            hasher: RandomState::new(),
            work: WorkCounters::default(),
            meters: Meters::default(),
            budget: None,
            remembered: 0,
            backfills: Vec::new(),
            views: None,
        }
    }

    /// An empty router with a limit on the cost of deltas per commit.
    #[must_use]
    pub fn with_budget(catalog: Arc<Catalog>, budget: Budget) -> Router {
        Router { budget: Some(budget), ..Router::new(catalog) }
    }

    /// The cost of each attached template, the most expensive first.
    #[must_use]
    pub fn templates(&self) -> Vec<TemplateWork> {
        self.meters.read()
    }

    /// Approximate bytes of cached state.
    #[must_use]
    pub fn remembered_bytes(&self) -> usize {
        self.remembered
    }

    /// The number of bindings that are checked at every change of some table.
    #[must_use]
    pub fn residual(&self) -> usize {
        self.tables.iter().map(|table| table.residual.len()).sum()
    }

    /// Drops the cached state of all results, after the commit that produced it is rolled back.
    pub fn forget(&mut self) {
        self.bindings.values_mut().for_each(|attached| attached.state = None);
        self.remembered = 0;
    }

    /// Attaches a binding for a subscriber. Equal bindings share one id, which must be detached as
    /// many times.
    ///
    /// # Errors
    /// The query has no key, and too many such queries are attached: `limit_exceeded` if they are
    /// the subscriber's, `overloaded` if they are those of others.
    pub fn attach(&mut self, binding: &Binding, by: &ShareKey) -> Result<BindingId, Refusal> {
        self.common.include(by);
        let views = match &mut self.views {
            Some(views) => views.attach(binding.views(), by)?,
            None => Vec::new(),
        };
        let hash = self.hasher.hash_one(binding);
        if let Some(id) = self.find(hash, binding) {
            let attached = self.bindings.get_mut(&id).expect("an id in use is attached");
            attached.holders.add(by);
            return Ok(id);
        }
        let places = self.places(binding, by).inspect_err(|_| {
            if let Some(attached) = &mut self.views {
                attached.detach(&views, by);
            }
        })?;
        let id = BindingId(self.next);
        self.next += 1;
        for place in &places {
            self.tables[place.table()].add(place, id, binding, by);
        }
        self.ids.add(hash, id);
        if let Some(all) = &mut self.views {
            for view in &views {
                let is_by_view = |place: &RouteEntry| matches!(place, RouteEntry::View { table, .. } if *table == view.table);
                all.add_user(view.id, id, !places.iter().any(is_by_view));
            }
        }
        let meter = self.meters.enter(binding.template().text(), by);
        let holders = Holders::new(by.clone());
        let attached = AttachedBinding {
            binding: binding.clone(),
            holders,
            places,
            views,
            meter,
            state: None,
        };
        self.bindings.insert(id, attached);
        Ok(id)
    }

    /// The id of an equal binding.
    fn find(&self, hash: u64, binding: &Binding) -> Option<BindingId> {
        let mut found = None;
        self.ids.find(hash, &mut |id| {
            if self.bindings[&id].binding == *binding {
                found = Some(id);
            }
        });
        found
    }

    /// Detaches a binding once, for a subscriber that it was attached for. The cost does not depend
    /// on other bindings.
    pub fn detach(&mut self, id: BindingId, by: &ShareKey) {
        let MapEntry::Occupied(mut attached) = self.bindings.entry(id) else { return };
        if let Some(views) = &mut self.views {
            views.detach(&attached.get().views, by);
        }
        match attached.get_mut().holders.release(by) {
            Released::Kept => return,
            Released::PaidByOther => return self.move_to_payer(id, by),
            Released::Unused => {}
        }
        let attached = attached.remove();
        self.ids.remove(self.hasher.hash_one(&attached.binding), id);
        self.meters.leave(attached.meter);
        self.remembered -= attached.state.as_ref().map_or(0, |state| state.bytes());
        for place in &attached.places {
            self.tables[place.table()].remove(place, id, by);
        }
        if let Some(views) = &mut self.views {
            attached.views.iter().for_each(|view| views.remove_user(view.id, id));
        }
    }

    /// Counts the places of a binding for its new payer.
    fn move_to_payer(&mut self, id: BindingId, from: &ShareKey) {
        let attached = self.bindings.get_mut(&id).expect("only attached bindings have a payer");
        self.meters.leave(attached.meter);
        let payer = attached.holders.payer();
        attached.meter = self.meters.enter(attached.binding.template().text(), payer);
        for place in &attached.places {
            self.tables[place.table()].move_use(place, from, attached.holders.payer());
        }
    }

    /// The number of distinct attached bindings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Whether no binding is attached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// The work done so far.
    #[must_use]
    pub fn counters(&self) -> WorkCounters {
        self.work
    }

    /// Computes the changes of all bindings' results by a commit; `sql` runs on the state after it.
    /// Returns the bindings whose result changed or is unknown, in the order of their ids.
    pub fn commit(
        &mut self,
        changes: &Changes,
        sql: &mut dyn Sql,
    ) -> Vec<(BindingId, Result<Delta, LiveError>)> {
        let started = sql.processor_time();
        let allowance = ViewAllowance { budget: self.budget, started };
        let mut laid_out = BTreeSet::new();
        let visible = match self.changes_of_views(changes, allowance, sql, &mut laid_out) {
            Ok(visible) => visible,
            Err(error) => return self.all_fail(&error),
        };
        let Affected { mut hits, mut unknown } = self.affected(changes, sql, &mut laid_out);
        hits.retain(|id, found| {
            let views = &self.bindings[id].views;
            found.retain(|hit| is_visible(hit, views, &visible));
            views.is_empty() || !found.is_empty()
        });
        if let Some(views) = &self.views {
            views.add_users(&visible, &mut hits, &mut unknown);
        }
        // Bindings planned with outdated policies receive no more deltas.
        hits.retain(|id, _| self.bindings[id].binding.is_latest());
        self.work.bindings_probed += hits.len() as u64;
        let mut groups: BTreeMap<Vec<BindingId>, HitBindings> = BTreeMap::new();
        for (id, found) in hits {
            let views = self.bindings[&id].views.iter().map(|view| view.id).collect();
            groups.entry(views).or_default().push((id, found));
        }
        let mut commit = CommitDeltas { started, spent_for: BTreeMap::new(), deltas: Vec::new() };
        for group in groups.into_values() {
            let views = self.bindings[&group[0].0].views.clone();
            let is_unknown = group.iter().all(|(id, _)| unknown.contains(id));
            let seen = if is_unknown {
                Ok((changes.clone(), group))
            } else if views.is_empty() {
                let ids = group.iter().map(|(id, _)| id);
                self.lay_out(ids, changes, sql, &mut laid_out).map(|()| (changes.clone(), group))
            } else {
                laid_out.clear();
                self.lay_out_visible(&views, &visible, changes, group, allowance, sql)
            };
            match seen {
                Ok((seen, group)) => self.group_deltas(&seen, group, &unknown, sql, &mut commit),
                Err(error) => return self.all_fail(&error),
            }
        }
        let mut deltas = commit.deltas;
        deltas.sort_unstable_by_key(|(id, _)| *id);
        self.work.deltas_made += deltas.len() as u64;
        if self.remembered > limits::LIVE_STATE_BYTES {
            self.forget_most();
        }
        deltas
    }

    /// The changes could not be laid out. Every binding gets the error, because those that a hidden
    /// row affects must not be told apart.
    fn all_fail(&self, error: &LiveError) -> Vec<(BindingId, Result<Delta, LiveError>)> {
        let mut ids: Vec<BindingId> = self.bindings.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().map(|id| (id, Err(error.clone()))).collect()
    }

    fn changes_of_views(
        &mut self,
        changes: &Changes,
        allowance: ViewAllowance,
        sql: &mut dyn Sql,
        laid_out: &mut BTreeSet<usize>,
    ) -> Result<ViewChanges, LiveError> {
        let Some(views) = &mut self.views else { return Ok(ViewChanges::new()) };
        let before = views.spent();
        let visible = views.changes(changes, allowance, sql, laid_out);
        self.work.spent.add(views.spent() - before);
        visible
    }

    /// The bindings that a commit may affect, by their keys and by lookups.
    pub(crate) fn affected(
        &mut self,
        changes: &Changes,
        sql: &mut dyn Sql,
        laid_out: &mut BTreeSet<usize>,
    ) -> Affected {
        let mut hits = self.route(changes);
        let mut unknown = BTreeSet::new();
        self.look_up(changes, sql, laid_out, &mut hits, &mut unknown);
        hits.retain(|id, _| self.bindings[id].binding.is_latest());
        Affected { hits, unknown }
    }

    /// Lays out the changes of all tables that these bindings read.
    pub(crate) fn lay_out<'i>(
        &mut self,
        ids: impl Iterator<Item = &'i BindingId>,
        changes: &Changes,
        sql: &mut dyn Sql,
        laid_out: &mut BTreeSet<usize>,
    ) -> Result<(), LiveError> {
        let mut tables = BTreeSet::new();
        let mut changed = BTreeSet::new();
        let mut templates: HashSet<*const Template> = HashSet::new();
        for id in ids {
            let template = self.bindings[id].binding.template();
            if !templates.insert(std::ptr::from_ref(template)) {
                continue;
            }
            let seen = template.seen(changes);
            for table in template.tables() {
                tables.insert(table);
                if template.has_changed(table, &seen) {
                    changed.insert(table);
                }
            }
        }
        tables.retain(|table| !laid_out.contains(table));
        // A table without changes that an affected query reads is left empty.
        let unseen = tables.iter().filter(|table| !changed.contains(table));
        let unseen: Vec<&str> = unseen.map(|table| self.catalog.table(*table).name).collect();
        let spent = changes.without(&unseen).lay_out(&self.catalog, tables.iter().copied(), sql)?;
        self.work.spent.add(spent);
        laid_out.extend(tables.intersection(&changed));
        Ok(())
    }

    /// Lays out the changes that the caller of these queries sees, if possible. Returns the changes
    /// and the queries, whose change numbers are positions in them.
    fn lay_out_visible(
        &mut self,
        used: &[UsedView],
        visible: &ViewChanges,
        changes: &Changes,
        mut group: HitBindings,
        allowance: ViewAllowance,
        sql: &mut dyn Sql,
    ) -> Result<(Changes, HitBindings), LiveError> {
        let tables = group.iter().flat_map(|(id, _)| self.bindings[id].binding.template().tables());
        let tables: BTreeSet<usize> = tables.collect();
        let views = self.views.as_mut().expect("the queries use views");
        let before = views.spent();
        let seen = views.visible_changes(used, visible, changes, &tables, allowance, sql);
        self.work.spent.add(views.spent() - before);
        let Some(seen) = seen? else {
            let ids = group.iter().map(|(id, _)| id);
            self.lay_out(ids, changes, sql, &mut BTreeSet::new())?;
            return Ok((changes.clone(), group));
        };
        for hit in group.iter_mut().flat_map(|(_, hits)| hits) {
            let view = used.iter().find(|view| view.table == hit.table);
            let position = view.and_then(|view| visible.get(&view.id)?.position(hit.number));
            hit.number = position.expect("only visible changes affect the query");
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
            let payer = self.bindings[&id].holders.payer().clone();
            let now = sql.processor_time();
            let own = commit.spent_for.entry(payer.clone()).or_default();
            let is_over = self.budget.is_some_and(|budget| {
                budget.is_over(&payer, *own)
                    || now.saturating_sub(commit.started) >= budget.commit_time
            });
            if unknown.contains(&id) || is_over {
                commit.deltas.push((id, Err(LiveError::OverBudget)));
                self.forget_one(id);
                continue;
            }
            let template = self.bindings[&id].binding.template();
            let seen = seen
                .entry(std::ptr::from_ref(template))
                .or_insert_with(|| template.seen(changes).into_owned())
                .clone();
            let before = self.work.spent;
            let mut numbers: Vec<usize> = hits.iter().map(|hit| hit.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let delta = self.delta(id, &seen, &numbers, sql);
            let spent = self.work.spent - before;
            own.steps += self.budget.map_or(spent.steps, |budget| budget.charge(spent));
            own.time += sql.processor_time().saturating_sub(now);
            match delta {
                Ok(delta) if delta.is_empty() => {}
                other => commit.deltas.push((id, other)),
            }
        }
    }

    /// Counts work that was done elsewhere.
    pub(crate) fn count(&mut self, spent: Cost) {
        self.work.spent.add(spent);
    }

    /// An attached binding.
    pub(crate) fn binding(&self, id: BindingId) -> Option<&Binding> {
        self.bindings.get(&id).map(|attached| &attached.binding)
    }

    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Drops the cached state of those callers that have the most, until the rest is within the
    /// limit.
    fn forget_most(&mut self) {
        let mut held: BTreeMap<ShareKey, usize> = BTreeMap::new();
        self.bindings.values().for_each(|attached| {
            let bytes = attached.state.as_ref().map_or(0, |state| state.bytes());
            if bytes > 0 {
                *held.entry(attached.holders.payer().clone()).or_default() += bytes;
            }
        });
        let mut held: Vec<(usize, ShareKey)> =
            held.into_iter().map(|(key, bytes)| (bytes, key)).collect();
        held.sort_unstable();
        let mut most = BTreeSet::new();
        while self.remembered > limits::LIVE_STATE_BYTES {
            let Some((bytes, key)) = held.pop() else { break };
            self.remembered -= bytes;
            most.insert(key);
        }
        let dropped = self.bindings.values_mut();
        let dropped = dropped.filter(|attached| most.contains(attached.holders.payer()));
        dropped.for_each(|attached| attached.state = None);
    }

    /// Drops the cached state of a result that missed a commit.
    fn forget_one(&mut self, id: BindingId) {
        let attached = self.bindings.get_mut(&id).expect("only attached bindings are hit");
        self.remembered -= attached.state.take().map_or(0, |state| state.bytes());
        let work = &mut self.meters.of(attached.meter).work;
        (work.deltas, work.over_budget) = (work.deltas + 1, work.over_budget + 1);
    }

    /// The delta of one binding, within its budget, from the changes in tables and columns that it
    /// reads.
    fn delta(
        &mut self,
        id: BindingId,
        seen: &Changes,
        numbers: &[usize],
        sql: &mut dyn Sql,
    ) -> Result<Delta, LiveError> {
        let attached = self.bindings.get_mut(&id).expect("only attached bindings are hit");
        let template = attached.binding.template();
        if !template.tables().iter().any(|table| template.has_changed(*table, seen)) {
            return Ok(Delta::default());
        }
        let meter = self.meters.of(attached.meter);
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
        let mut dear = Vec::new();
        let template = attached.binding.template();
        sql.allow(template.allowance(self.budget));
        let mut run = template.run(attached.binding.params(), seen, sql, &mut spent);
        (run.state, run.dear) = (state.as_deref_mut(), Some(&mut dear));
        // Bindings found by a lookup have no list of change numbers.
        let numbers = (!numbers.is_empty()).then_some(numbers);
        let delta = template.rule().delta(&mut run, numbers);
        sql.allow(None);
        let keeps = delta.is_ok() || !dear.is_empty();
        attached.state = state.filter(|state| keeps && state.bytes() > 0);
        let exceeded = delta == Err(LiveError::OverBudget);
        if exceeded {
            // An interrupted statement reports no steps, so it counts with its full allowance.
            spent.steps = spent.steps.max(self.budget.map_or(0, |budget| budget.max));
        }
        // A wanted group is filled later and cheap from then on.
        let exceeded_for_good = exceeded && dear.is_empty();
        meter.spend(
            spent,
            exceeded_for_good,
            self.budget.filter(|_| exceeded == exceeded_for_good),
        );
        self.work.spent.add(spent);
        let after = attached.state.as_ref().map_or(0, |state| state.bytes());
        self.remembered = self.remembered - before + after;
        self.backfills.extend(dear.into_iter().map(|group| BackfillRequest {
            id,
            binding: attached.binding.clone(),
            group,
            payer: attached.holders.payer().clone(),
        }));
        delta
    }

    /// The bindings that were planned with outdated policies.
    #[must_use]
    pub fn outdated(&self) -> Vec<BindingId> {
        let old = self.bindings.iter().filter(|(_, attached)| !attached.binding.is_latest());
        let mut ids: Vec<BindingId> = old.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Whether the visibility of a binding's result is restricted.
    #[must_use]
    pub fn is_bounded(&self, id: BindingId) -> bool {
        self.bindings.get(&id).is_some_and(|attached| attached.binding.is_bounded())
    }

    /// The groups that became wanted since the last call.
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
        let Some(attached) = self.bindings.get_mut(&backfills.id) else { return Ok(()) };
        if filled.is_none() {
            // Its next attempts would cost the writer as much, and a reader too.
            let meter = self.meters.of(attached.meter);
            meter.spend(Cost::default(), true, self.budget);
        }
        let Some(state) = attached.state.as_deref_mut() else { return Ok(()) };
        let (before, mut spent) = (state.bytes(), Cost::default());
        let template = attached.binding.template();
        changes.lay_out(&self.catalog, template.tables(), sql)?;
        sql.allow(template.allowance(self.budget));
        let mut run = template.run(attached.binding.params(), changes, sql, &mut spent);
        let adopted = template.rule().apply_backfill(&mut run, state, &backfills.group, filled);
        sql.allow(None);
        self.meters.of(attached.meter).work.spent.add(spent);
        self.remembered = self.remembered - before + state.bytes();
        adopted
    }

    /// The bindings that a commit may affect, with the numbers of the relevant changes.
    fn route(&mut self, changes: &Changes) -> BTreeMap<BindingId, Vec<Hit>> {
        let mut hits: BTreeMap<BindingId, Vec<Hit>> = BTreeMap::new();
        for (name, rows) in changes.tables() {
            let Some(table) = self.catalog.find(name) else { continue };
            let routes = &self.tables[table];
            for (number, change) in rows.iter().enumerate() {
                self.work.rows_routed += 1;
                routes.find(change, &self.hasher, &mut self.work.probes, &mut |id, images| {
                    let found = hits.entry(id).or_default();
                    let hit = Hit { table, number, images };
                    if found.last() != Some(&hit) {
                        found.push(hit);
                    }
                });
            }
        }
        hits
    }

    /// Adds the bindings that lookups find. If a lookup fails, all of its bindings are added, and
    /// each meets the error itself or does not. If a lookup costs too much, its bindings are
    /// unknown.
    fn look_up(
        &mut self,
        changes: &Changes,
        sql: &mut dyn Sql,
        laid_out: &mut BTreeSet<usize>,
        hits: &mut BTreeMap<BindingId, Vec<Hit>>,
        unknown: &mut BTreeSet<BindingId>,
    ) {
        for (name, _) in changes.tables() {
            let Some(table) = self.catalog.find(name) else { continue };
            for ((_, source), known) in &self.tables[table].lookups {
                let template = known.binding.template();
                let Some(lookup) = template.lookup(*source) else { continue };
                if !template.has_changed(table, &template.seen(changes)) {
                    continue;
                }
                let mut missing = template.tables();
                missing.retain(|table| !laid_out.contains(table));
                let (mut spent, spent_before) = (Cost::default(), &mut self.work.spent);
                let mut found = Vec::new();
                let outcome = changes.lay_out(&self.catalog, missing.iter().copied(), sql);
                let outcome = outcome.and_then(|laid| {
                    spent_before.add(laid);
                    laid_out.extend(missing);
                    sql.allow(template.allowance(self.budget));
                    template.look_up(lookup, changes, sql, &mut spent, &mut |cells| {
                        found.push(hash_key(self.hasher.build_hasher(), cells.iter()));
                    })
                });
                sql.allow(None);
                if outcome == Err(LiveError::OverBudget) {
                    spent.steps = spent.steps.max(self.budget.map_or(0, |budget| budget.max));
                }
                spent_before.add(spent);
                if let Some(holders) = &known.holders {
                    self.meters.spend_on(template.text(), holders.payer(), spent);
                }
                let mut add = |id| {
                    hits.entry(id).or_default();
                };
                match outcome {
                    Ok(()) => found.iter().for_each(|key| known.index.find(*key, &mut add)),
                    Err(error) => {
                        known.index.all(&mut add);
                        if error == LiveError::OverBudget {
                            known.index.all(&mut |id| {
                                unknown.insert(id);
                            });
                        }
                    }
                }
            }
        }
    }

    /// Where to index a binding: for every source under each of its keys, or among the residual.
    fn places(&mut self, binding: &Binding, by: &ShareKey) -> Result<Vec<RouteEntry>, Refusal> {
        let template = binding.template();
        let mut new = NewPlaces { by, places: BTreeSet::new(), sets: Vec::new() };
        let is_restricted = !binding.views().is_empty();
        for (at, source) in template.query.sources.iter().enumerate() {
            if is_restricted {
                if source.is_named {
                    let places = self.places_by_view(binding, at, &mut new)?;
                    new.places.extend(places);
                }
                continue;
            }
            if let Some(place) = self.better_place(binding, at, &new) {
                new.places.extend(place);
                continue;
            }
            let alternatives = template.query.routes[at].of_source(at);
            let keyed = alternatives.and_then(|alternatives| {
                self.keys(source.table, &alternatives, binding.params(), &mut new)
            });
            match keyed {
                Some(keys) => new.places.extend(keys),
                None => {
                    let place = self.place_without_key(binding, at, &new)?;
                    new.places.extend(place);
                }
            }
        }
        Ok(new.places.into_iter().collect())
    }

    /// The places of a named table of a restricted query. Its keys are compared with visible changes
    /// only. A lookup would read hidden rows, so every change of the view takes its place.
    fn places_by_view(
        &mut self,
        binding: &Binding,
        source: usize,
        new: &mut NewPlaces<'_>,
    ) -> Result<Vec<RouteEntry>, Refusal> {
        let template = binding.template();
        let table = template.query.sources[source].table;
        let lookup = template.lookup(source);
        if lookup.is_none_or(|lookup| !lookup.is_better) {
            let alternatives = template.query.routes[source].of_source(source);
            let keyed = alternatives
                .and_then(|alternatives| self.keys(table, &alternatives, binding.params(), new));
            if let Some(keys) = keyed {
                return Ok(keys);
            }
        }
        let is_counted = lookup.is_none();
        if is_counted {
            self.require_room(table, new.by)?;
        }
        Ok(vec![RouteEntry::View { table, is_counted }])
    }

    /// By a lookup that finds fewer bindings than the keys would.
    fn better_place(
        &self,
        binding: &Binding,
        source: usize,
        new: &NewPlaces<'_>,
    ) -> Option<Option<RouteEntry>> {
        binding.template().lookup(source).filter(|lookup| lookup.is_better)?;
        self.place_by_lookup(binding, source, new)
    }

    /// By a lookup if possible, otherwise among the residual. Nowhere if no row can match.
    fn place_without_key(
        &self,
        binding: &Binding,
        source: usize,
        new: &NewPlaces<'_>,
    ) -> Result<Option<RouteEntry>, Refusal> {
        if let Some(place) = self.place_by_lookup(binding, source, new) {
            return Ok(place);
        }
        let table = binding.template().query.sources[source].table;
        self.require_room(table, new.by)?;
        Ok(Some(RouteEntry::Residual { table }))
    }

    /// `None` if there is no lookup or no room for one.
    fn place_by_lookup(
        &self,
        binding: &Binding,
        source: usize,
        new: &NewPlaces<'_>,
    ) -> Option<Option<RouteEntry>> {
        let template = binding.template();
        let table = template.query.sources[source].table;
        let name = (Arc::clone(template.text()), source);
        let TableRoutes { lookups, lookups_used, .. } = &self.tables[table];
        let has_room = || {
            let pending = new.places.iter().filter(|place| place.is_lookup_of(table)).count();
            lookups_used.check(new.by, pending, &self.common).is_ok()
        };
        let room = lookups.contains_key(&name) || has_room();
        let key = template
            .lookup(source)
            .filter(|_| room)
            .and_then(|lookup| lookup.key(&self.catalog, &template.query, binding.params()))?;
        Some(key.map(|key| {
            let key = hash_key(self.hasher.build_hasher(), key.iter());
            RouteEntry::Lookup { table, template: name.0, source, key }
        }))
    }

    fn require_room(&self, table: usize, by: &ShareKey) -> Result<(), Refusal> {
        let name = self.catalog.table(table).name;
        let hint = "add a condition `column = value` to the query";
        let used = &self.tables[table].residual_used;
        match used.check(by, 0, &self.common) {
            Ok(()) => Ok(()),
            Err(NoRoom::Own) => {
                let own = used.used_by(by, &self.common);
                let detail =
                    format!("{own} of your live queries already check every change of {name}");
                Err(Refusal::new(Code::LimitExceeded, detail).hint(hint))
            }
            Err(NoRoom::Others) => {
                let detail = format!("too many live queries check every change of {name}");
                let hint = format!("try again in a moment, or {hint}");
                Err(Refusal::new(Code::Overloaded, detail).hint(hint))
            }
        }
    }

    /// The keys of all alternatives; `None` if one is not certain.
    fn keys(
        &mut self,
        table: usize,
        alternatives: &[Vec<&Equality>],
        params: &[Value],
        new: &mut NewPlaces<'_>,
    ) -> Option<Vec<RouteEntry>> {
        let spec = self.catalog.table(table);
        let mut places = Vec::new();
        for equalities in alternatives {
            if let Some(first) = equalities.first().filter(|first| first.test != Comparison::Among)
            {
                let interval = interval_of(spec.columns[first.column].kind, equalities, params)?;
                let column = (first.column, first.collation);
                places.extend(interval.map(|interval| RouteEntry::Range {
                    table,
                    column,
                    interval,
                }));
                continue;
            }
            let mut keys: Vec<Vec<Value>> = vec![Vec::new()];
            let mut columns: Vec<KeyColumn> = Vec::new();
            for equality in equalities {
                // A column without certain cells is omitted; the other columns still form the key.
                let kind = spec.columns[equality.column].kind;
                let Some(cells) = equality.cells(kind, params) else { continue };
                columns.push((equality.column, equality.collation));
                let longer = keys.iter().flat_map(|key| {
                    cells.iter().map(|cell| [&key[..], std::slice::from_ref(cell)].concat())
                });
                keys = longer.collect();
            }
            if columns.is_empty() {
                return None;
            }
            let set = self.key_set(table, columns, new)?;
            places.extend(keys.iter().map(|key| {
                let key = hash_key(self.hasher.build_hasher(), key.iter());
                RouteEntry::Key { table, set, key }
            }));
        }
        Some(places)
    }

    /// The key set of these columns, created if missing and within the limit.
    fn key_set(
        &mut self,
        table: usize,
        columns: Vec<KeyColumn>,
        new: &mut NewPlaces<'_>,
    ) -> Option<usize> {
        let TableRoutes { sets, sets_used, .. } = &mut self.tables[table];
        let known = sets.iter().position(|set| set.columns == columns);
        let is_new = known.is_none_or(|at| sets[at].holders.is_none())
            && !new.sets.contains(&(table, known.unwrap_or(usize::MAX), true));
        if is_new {
            let pending = new.sets.iter().filter(|(other, _, is_new)| *other == table && *is_new);
            sets_used.check(new.by, pending.count(), &self.common).ok()?;
        }
        let at = known.unwrap_or_else(|| {
            let fresh = KeySet { columns, index: BindingIndex::default(), holders: None };
            // The sets that the same binding is about to use are unused so far.
            let mut unused = sets.iter().enumerate().filter(|(_, set)| set.holders.is_none());
            let unused = unused
                .find(|(at, _)| !new.sets.iter().any(|taken| (taken.0, taken.1) == (table, *at)));
            match unused.map(|(at, _)| at) {
                Some(at) => {
                    sets[at] = fresh;
                    at
                }
                None => {
                    sets.push(fresh);
                    sets.len() - 1
                }
            }
        });
        new.sets.push((table, at, is_new));
        Some(at)
    }
}

/// Whether a change concerns a query, in an image that its caller sees. Without views it sees all.
fn is_visible(hit: &Hit, views: &[UsedView], visible: &ViewChanges) -> bool {
    let mut of_table = views.iter().filter(|view| view.table == hit.table);
    views.is_empty()
        || of_table.any(|view| visible.get(&view.id).is_some_and(|change| change.shows(hit)))
}
