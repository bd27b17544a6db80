//! The attached bindings, and the index that finds those that a commit may affect with a few hash
//! probes.

use std::collections::hash_map::{Entry as MapEntry, RandomState};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use abide_schema::share::{CommonScopeKeys, NoRoom, ShareKey, Shares};
use abide_schema::{Code, Refusal, Value, limits};

use crate::catalog::Catalog;
use crate::delta::changes::Changes;
use crate::delta::meter::{Budget, Cost, CountedSteps, Meters};
use crate::delta::state::RuleState;
use crate::plan::conjunct::{Comparison, Equality};
use crate::route::binding_index::{BindingId, BindingIndex, IdMap};
use crate::route::holders::{Holders, Released};
use crate::route::table_routes::{Images, KeySet, MatchedKey, RouteEntry, TableRoutes};
use crate::route::{KeyColumn, hash_key, interval_of};
use crate::sql::{LiveError, Sql};
use crate::template::{Binding, Template};

/// The hint of a refusal for want of a key.
const ADD_A_KEY: &str = "add a condition `column = value` to the query";

/// Counted work, for tests and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounters {
    /// Changed rows probed.
    pub rows_routed: u64,
    /// Hash probes.
    pub probes: u64,
    /// Changes in lists of those that match keys, and parts of such lists for bindings.
    pub matches: u64,
    /// Bindings that a change may affect.
    pub bindings_probed: u64,
    /// SQLite's work.
    pub spent: Cost,
    /// Deltas that were not empty.
    pub deltas_made: u64,
}

/// The attached bindings, by the rows that can affect them.
#[derive(Debug)]
pub(crate) struct AttachedBindings {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) all: IdMap<BindingId, AttachedBinding>,
    /// By the hash of template and parameters.
    ids: BindingIndex,
    next: u64,
    pub(crate) tables: Vec<TableRoutes>,
    /// Of all subscribers.
    common: CommonScopeKeys,
    hasher: RandomState,
    pub(crate) work: WorkCounters,
    pub(crate) meters: Meters,
    pub(crate) budget: Option<Budget>,
}

/// An attached binding.
#[derive(Debug)]
pub(crate) struct AttachedBinding {
    pub(crate) binding: Binding,
    pub(crate) holders: Holders,
    places: Vec<RouteEntry>,
    /// The views that a restricted query reads.
    pub(crate) views: Vec<UsedView>,
    pub(crate) meter: usize,
    /// Created when a commit first affects the binding.
    pub(crate) state: Option<Box<RuleState>>,
}

/// A view that an attached query uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UsedView {
    pub(crate) table: usize,
    pub(crate) id: BindingId,
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

/// The changes that match one key, or those with a cell in a column with ranges, in the order of
/// the cells. All bindings share the list: thousands of bindings can have the key of each of a
/// commit's rows, or a range around them, and their number must not multiply that of the rows.
pub(crate) type SharedHits = Arc<[Hit]>;

/// The changes that concern a binding: a part of a shared list.
#[derive(Clone, Debug)]
pub(crate) struct HitList {
    pub(crate) all: SharedHits,
    pub(crate) part: Range<usize>,
}

impl HitList {
    /// Of a binding that all changes of a list concern.
    pub(crate) fn whole(all: &SharedHits) -> HitList {
        HitList { all: Arc::clone(all), part: 0..all.len() }
    }

    fn hits(&self) -> &[Hit] {
        &self.all[self.part.clone()]
    }
}

/// Bindings that changes may affect, each with a list for each of its places.
pub(crate) type HitsByBinding = BTreeMap<BindingId, Vec<HitList>>;

/// Returns the numbers of the changes in these lists, in ascending order.
pub(crate) fn numbers(lists: &[HitList]) -> Vec<usize> {
    let mut numbers: Vec<usize> =
        lists.iter().flat_map(HitList::hits).map(|hit| hit.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// The bindings that a commit may affect.
#[derive(Debug)]
pub(crate) struct Affected {
    /// Without a list if a lookup found the binding.
    pub(crate) hits: HitsByBinding,
    /// Those whose lookup cost too much.
    pub(crate) unknown: BTreeSet<BindingId>,
}

/// The subscriber of a binding that is about to be indexed, and what it is about to use.
struct NewPlaces<'a> {
    by: &'a ShareKey,
    places: BTreeSet<RouteEntry>,
    sets: Vec<UsedKeySet>,
}

/// A key set that a new binding is about to use.
struct UsedKeySet {
    table: usize,
    /// The position of the set among those of its table.
    set: usize,
    is_new: bool,
}

/// What the work of one commit may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitAllowance {
    budget: Option<Budget>,
    /// The CPU time at the start of the commit.
    started: Duration,
    /// The work of all commits before.
    spent_before: Cost,
}

impl CommitAllowance {
    /// `true` if no further work may begin. `spent` is the work of all commits.
    pub(crate) fn is_over(&self, spent: Cost, sql: &dyn Sql) -> bool {
        let spent = spent - self.spent_before;
        self.budget.is_some_and(|budget| budget.charge(spent, CountedSteps::All) > budget.commit)
            || self.is_out_of_time(sql)
    }

    /// `true` if the commit has taken its CPU time.
    pub(crate) fn is_out_of_time(&self, sql: &dyn Sql) -> bool {
        self.budget.is_some_and(|budget| {
            sql.processor_time().saturating_sub(self.started) >= budget.commit_time
        })
    }
}

impl AttachedBinding {
    /// `true` if every change of a table that its caller sees affects it, because it has no key.
    pub(crate) fn is_checked_at_each_change(&self, table: usize) -> bool {
        self.places.contains(&RouteEntry::View { table })
    }
}

impl AttachedBindings {
    /// No bindings.
    pub(crate) fn new(catalog: Arc<Catalog>, budget: Option<Budget>) -> AttachedBindings {
        let tables = (0..catalog.len()).map(|_| TableRoutes::default()).collect();
        AttachedBindings {
            catalog,
            all: IdMap::default(),
            ids: BindingIndex::default(),
            next: 0,
            tables,
            common: CommonScopeKeys::default(),
            hasher: RandomState::new(),
            work: WorkCounters::default(),
            meters: Meters::default(),
            budget,
        }
    }

    /// Attaches a subscriber to an equal binding, if there is one that it may share.
    pub(crate) fn share(&mut self, binding: &Binding, by: &ShareKey) -> Option<BindingId> {
        self.common.include(by);
        let id = self.find(self.hash(binding, by), binding, by)?;
        self.all.get_mut(&id).expect("an id in use is attached").holders.add(by);
        Some(id)
    }

    /// Attaches a binding that no equal one can be shared for.
    ///
    /// # Errors
    /// It has no key, and too many such bindings are attached.
    pub(crate) fn add(
        &mut self,
        binding: &Binding,
        views: &[UsedView],
        by: &ShareKey,
    ) -> Result<BindingId, Refusal> {
        let places = self.places(binding, by)?;
        let id = BindingId(self.next);
        self.next += 1;
        for place in &places {
            self.tables[place.table()].add(place, id, binding, by);
        }
        self.ids.add(self.hash(binding, by), id);
        let attached = AttachedBinding {
            binding: binding.clone(),
            holders: Holders::new(by.clone()),
            places,
            views: views.to_vec(),
            meter: self.meters.enter(binding.template().text(), by),
            state: None,
        };
        self.all.insert(id, attached);
        Ok(id)
    }

    /// Detaches a binding once. Returns it if it has no other subscriber.
    pub(crate) fn detach(&mut self, id: BindingId, by: &ShareKey) -> Option<AttachedBinding> {
        let MapEntry::Occupied(mut attached) = self.all.entry(id) else { return None };
        match attached.get_mut().holders.release(by) {
            Released::Kept => return None,
            Released::PaidByOther => {
                self.move_to_payer(id, by);
                return None;
            }
            Released::Unused => {}
        }
        let attached = attached.remove();
        self.ids.remove(self.hash(&attached.binding, by), id);
        self.meters.leave(attached.meter);
        for place in &attached.places {
            self.tables[place.table()].remove(place, id, by);
        }
        Some(attached)
    }

    /// Returns the id of an equal binding that this payer may share.
    fn find(&self, hash: u64, binding: &Binding, by: &ShareKey) -> Option<BindingId> {
        let mut found = None;
        self.ids.find(hash, &mut |id| {
            let attached = &self.all[&id];
            let is_shared = binding.views().is_empty() || attached.holders.payer() == by;
            if is_shared && attached.binding == *binding {
                found = Some(id);
            }
        });
        found
    }

    /// Returns the hash of what identifies a binding.
    fn hash(&self, binding: &Binding, payer: &ShareKey) -> u64 {
        let payer = match payer {
            _ if binding.views().is_empty() => 0,
            ShareKey::Operator => 0,
            ShareKey::Caller(id) => self.hasher.hash_one(id),
            ShareKey::Scope(scope) => self.hasher.hash_one(scope),
        };
        self.hasher.hash_one((binding, payer))
    }

    /// Counts the places of a binding for its new payer.
    fn move_to_payer(&mut self, id: BindingId, from: &ShareKey) {
        let attached = self.all.get_mut(&id).expect("only attached bindings have a payer");
        self.meters.leave(attached.meter);
        let payer = attached.holders.payer();
        attached.meter = self.meters.enter(attached.binding.template().text(), payer);
        for place in &attached.places {
            self.tables[place.table()].move_use(place, from, attached.holders.payer());
        }
    }

    /// What the work of a commit may cost that started at this CPU time and now begins here.
    pub(crate) fn allowance(&self, started: Duration) -> CommitAllowance {
        CommitAllowance { budget: self.budget, started, spent_before: self.work.spent }
    }

    /// Returns the bindings that a commit may affect, by their keys and by lookups.
    pub(crate) fn affected(
        &mut self,
        changes: &Changes,
        allowance: &CommitAllowance,
        sql: &mut dyn Sql,
        laid_out: &mut BTreeSet<usize>,
    ) -> Affected {
        let mut hits = self.route(changes);
        let mut unknown = BTreeSet::new();
        self.look_up(changes, allowance, sql, laid_out, &mut hits, &mut unknown);
        hits.retain(|id, _| self.all[id].binding.is_latest());
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
            let template = self.all[id].binding.template();
            if !templates.insert(std::ptr::from_ref(template)) {
                continue;
            }
            let seen = template.relevant_changes(changes);
            for table in template.tables() {
                tables.insert(table);
                if template.has_changed(table, &seen) {
                    changed.insert(table);
                }
            }
        }
        tables.retain(|table| !laid_out.contains(table));
        // A table without changes that an affected query reads is left empty.
        let unseen: Vec<&str> = tables
            .iter()
            .filter(|table| !changed.contains(table))
            .map(|table| self.catalog.table(*table).name)
            .collect();
        let spent = changes.without(&unseen).lay_out(&self.catalog, tables.iter().copied(), sql)?;
        self.work.spent.add(spent);
        laid_out.extend(tables.intersection(&changed));
        Ok(())
    }

    /// Counts work that was done elsewhere.
    pub(crate) fn count(&mut self, spent: Cost) {
        self.work.spent.add(spent);
    }

    /// Returns an attached binding.
    pub(crate) fn binding(&self, id: BindingId) -> Option<&Binding> {
        self.all.get(&id).map(|attached| &attached.binding)
    }

    /// Returns the bindings that a commit may affect, with the numbers of the relevant changes.
    fn route(&mut self, changes: &Changes) -> HitsByBinding {
        let mut hits: IdMap<BindingId, Vec<HitList>> = IdMap::default();
        for (name, rows) in changes.tables() {
            let Some(table) = self.catalog.find(name) else { continue };
            let routes = &self.tables[table];
            let mut matched: BTreeMap<MatchedKey<'_>, Vec<Hit>> = BTreeMap::new();
            for (number, change) in rows.iter().enumerate() {
                self.work.rows_routed += 1;
                routes.keys(change, &self.hasher, &mut |key, images| {
                    self.work.probes += u64::from(key != MatchedKey::Residual);
                    matched.entry(key).or_default().push(Hit { table, number, images });
                });
            }
            let (keys, lists): (Vec<MatchedKey<'_>>, Vec<Vec<Hit>>) = matched.into_iter().unzip();
            let mut lists = lists.into_iter();
            for keys in keys.chunk_by(MatchedKey::is_of_one_column) {
                let mut all: Vec<Hit> = Vec::new();
                // Where the changes with each of these keys begin, and the end.
                let mut bounds = vec![0];
                for list in lists.by_ref().take(keys.len()) {
                    all.extend(list);
                    bounds.push(all.len());
                }
                let all: SharedHits = all.into();
                self.work.matches += all.len() as u64;
                routes.find(keys, &mut |id, part| {
                    self.work.matches += 1;
                    let part = bounds[part.start]..bounds[part.end];
                    hits.entry(id).or_default().push(HitList { all: Arc::clone(&all), part });
                });
            }
        }
        hits.into_iter().collect()
    }

    /// Adds the bindings that lookups find. If a lookup fails, all of its bindings are added, and
    /// each meets the error itself or does not. If a lookup costs too much, or
    /// those before it did, its bindings are unknown.
    fn look_up(
        &mut self,
        changes: &Changes,
        allowance: &CommitAllowance,
        sql: &mut dyn Sql,
        laid_out: &mut BTreeSet<usize>,
        hits: &mut HitsByBinding,
        unknown: &mut BTreeSet<BindingId>,
    ) {
        for (name, _) in changes.tables() {
            let Some(table) = self.catalog.find(name) else { continue };
            for ((_, source), known) in &self.tables[table].lookups {
                let template = known.binding.template();
                let Some(lookup) = template.lookup(*source) else { continue };
                if !template.has_changed(table, &template.relevant_changes(changes)) {
                    continue;
                }
                if allowance.is_over(self.work.spent, sql) {
                    known.index.for_each(&mut |id| {
                        hits.entry(id).or_default();
                        unknown.insert(id);
                    });
                    continue;
                }
                let mut missing = template.tables();
                missing.retain(|table| !laid_out.contains(table));
                let mut spent = Cost::default();
                let mut found = Vec::new();
                let laid = changes.lay_out(&self.catalog, missing.iter().copied(), sql);
                let outcome = laid.and_then(|laid| {
                    self.work.spent.add(laid);
                    laid_out.extend(missing);
                    sql.allow(template.allowance(self.budget, CountedSteps::All));
                    template.look_up(lookup, changes, sql, &mut spent, &mut |cells| {
                        found.push(hash_key(self.hasher.build_hasher(), cells.iter()));
                    })
                });
                sql.allow(None);
                if outcome == Err(LiveError::OverBudget) {
                    spent.steps = spent.steps.max(self.budget.map_or(0, |budget| budget.max));
                }
                self.work.spent.add(spent);
                if let Some(holders) = &known.holders {
                    self.meters.spend_on(template.text(), holders.payer(), spent);
                }
                let mut affected = Vec::new();
                match &outcome {
                    Ok(()) => {
                        for key in &found {
                            known.index.find(*key, &mut |id| affected.push(id));
                        }
                    }
                    Err(_) => known.index.for_each(&mut |id| affected.push(id)),
                }
                if outcome == Err(LiveError::OverBudget) {
                    unknown.extend(&affected);
                }
                for id in affected {
                    hits.entry(id).or_default();
                }
            }
        }
    }

    /// Returns where to index a binding: for every source under each of its keys, or among the
    /// residual.
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
            if let Some(place) = self.place_by_better_lookup(binding, at, &new) {
                new.places.extend(place);
                continue;
            }
            let alternatives = template.query.routes[at].alternatives_for(at);
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

    /// Returns the places of a named table of a restricted query. Its keys are compared with
    /// visible changes only. A lookup would read hidden rows, so every change of the view takes its
    /// place.
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
            let alternatives = template.query.routes[source].alternatives_for(source);
            let keyed = alternatives
                .and_then(|alternatives| self.keys(table, &alternatives, binding.params(), new));
            if let Some(keys) = keyed {
                return Ok(keys);
            }
        }
        let used = self.tables[table].views_used.used_by(new.by, &self.common);
        if used >= Shares::share(limits::RESIDUAL_BINDINGS_PER_TABLE) {
            return Err(self.too_many_without_key(table, used));
        }
        Ok(vec![RouteEntry::View { table }])
    }

    /// By a lookup that finds fewer bindings than the keys would.
    fn place_by_better_lookup(
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
        let pending = new.places.iter().filter(|place| place.is_lookup_of(table)).count();
        let has_room = lookups.contains_key(&name)
            || lookups_used.check(new.by, pending, &self.common).is_ok();
        let key = template
            .lookup(source)
            .filter(|_| has_room)
            .and_then(|lookup| lookup.key(&self.catalog, &template.query, binding.params()))?;
        Some(key.map(|key| {
            let key = hash_key(self.hasher.build_hasher(), key.iter());
            RouteEntry::Lookup { table, template: name.0, source, key }
        }))
    }

    fn require_room(&self, table: usize, by: &ShareKey) -> Result<(), Refusal> {
        let name = self.catalog.table(table).name;
        let used = &self.tables[table].residual_used;
        match used.check(by, 0, &self.common) {
            Ok(()) => Ok(()),
            Err(NoRoom::Own) => {
                Err(self.too_many_without_key(table, used.used_by(by, &self.common)))
            }
            Err(NoRoom::Others) => {
                let detail = format!("too many live queries check every change of {name}");
                let hint = format!("try again in a moment, or {ADD_A_KEY}");
                Err(Refusal::new(Code::Overloaded, detail).hint(hint))
            }
        }
    }

    fn too_many_without_key(&self, table: usize, own: usize) -> Refusal {
        let name = self.catalog.table(table).name;
        let detail = format!("{own} of your live queries already check every change of {name}");
        Refusal::new(Code::LimitExceeded, detail).hint(ADD_A_KEY)
    }

    /// Returns the keys of all alternatives; `None` if one is not certain.
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

    /// Returns the key set of these columns, created if missing and within the limit.
    fn key_set(
        &mut self,
        table: usize,
        columns: Vec<KeyColumn>,
        new: &mut NewPlaces<'_>,
    ) -> Option<usize> {
        let TableRoutes { sets, sets_used, .. } = &mut self.tables[table];
        let known = sets.iter().position(|set| set.columns == columns);
        let is_new = known.is_none_or(|at| sets[at].holders.is_none())
            && !new
                .sets
                .iter()
                .any(|used| used.is_new && used.table == table && Some(used.set) == known);
        if is_new {
            let pending = new.sets.iter().filter(|used| used.is_new && used.table == table);
            sets_used.check(new.by, pending.count(), &self.common).ok()?;
        }
        let at = known.unwrap_or_else(|| {
            let fresh = KeySet { columns, index: BindingIndex::default(), holders: None };
            // The sets that the same binding is about to use are unused so far.
            let unused = (0..sets.len()).find(|at| {
                sets[*at].holders.is_none()
                    && !new.sets.iter().any(|used| used.table == table && used.set == *at)
            });
            match unused {
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
        new.sets.push(UsedKeySet { table, set: at, is_new });
        Some(at)
    }
}
