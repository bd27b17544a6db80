//! What restricted callers see of a commit: the changes of their views.
//!
//! A restricted query reads an authorized view of each table that it names, and depends on nothing
//! else. So a commit concerns it only if one of these views changes. The views are live queries of
//! their own, one for each table and distinct role, scope and policies. They are attached with the
//! queries that use them, and evaluated before these, at the cost of the commit.
//!
//! *Invariant:* a row that a caller may not see, before and after a commit, has no effect on its
//! live queries: it finds none, charges none, and sends no frame. If the views of a table cost too
//! much, all queries that use them are unknown alike, whatever they select.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use abide_schema::share::ShareKey;
use abide_schema::{Refusal, Row};

use crate::bindings::{
    AttachedBindings, Hit, HitList, HitsByBinding, SharedHits, UsedView, numbers,
};
use crate::catalog::Catalog;
use crate::delta::Delta;
use crate::delta::changes::{Changes, RowChange};
use crate::delta::exact::ExactRow;
use crate::delta::meter::{Budget, Cost, CountedSteps};
use crate::plan::fragment::PlainExpr;
use crate::route::binding_index::{BindingId, IdMap};
use crate::route::table_routes::Images;
use crate::sql::{LiveError, Sql};
use crate::template::{Binding, Template};

/// The views of all attached queries of restricted callers.
#[derive(Debug)]
pub(crate) struct Views {
    /// Finds the views that a commit may affect, by the conditions of the policies.
    attached: AttachedBindings,
    users: IdMap<BindingId, ViewUsers>,
}

/// The queries that use a view.
#[derive(Debug, Default)]
struct ViewUsers {
    all: BTreeSet<BindingId>,
    /// Those that no key finds: every change of the view affects them.
    without_key: BTreeSet<BindingId>,
}

/// The change of a view by a commit.
#[derive(Debug)]
pub(crate) enum ViewChange {
    Known(VisibleChange),
    /// It was not computed.
    Unknown,
}

/// The known change of a view.
#[derive(Debug)]
pub(crate) struct VisibleChange {
    /// The visible images of the table's changed rows with the number of each change, in ascending
    /// order.
    images: Vec<(usize, Images)>,
    /// Whether rows appeared or vanished that the commit did not change.
    elsewhere: bool,
    /// The old and new rows of the view.
    weights: HashMap<ExactRow, i64>,
}

/// The changes of views by a commit.
pub(crate) type ViewChanges = BTreeMap<BindingId, ViewChange>;

impl Views {
    pub(crate) fn new(catalog: Arc<Catalog>, budget: Option<Budget>) -> Views {
        let attached = AttachedBindings::new(catalog, budget.map(Budget::for_views));
        Views { attached, users: IdMap::default() }
    }

    /// Attaches the views of a query for one of its subscribers.
    pub(crate) fn attach(
        &mut self,
        views: &[Binding],
        by: &ShareKey,
    ) -> Result<Vec<UsedView>, Refusal> {
        let mut attached = Vec::new();
        for view in views {
            let id = match self.attached.share(view, by) {
                Some(id) => id,
                None => self.attached.add(view, &[], by).inspect_err(|_| {
                    self.detach(&attached, by);
                })?,
            };
            self.users.entry(id).or_default();
            attached.extend(view.template().named_tables().first().map(|table| {
                let table = *table;
                UsedView { table, id }
            }));
        }
        Ok(attached)
    }

    pub(crate) fn detach(&mut self, views: &[UsedView], by: &ShareKey) {
        for view in views {
            if self.attached.detach(view.id, by).is_some() {
                self.users.remove(&view.id);
            }
        }
    }

    /// Adds a query to the users of a view.
    pub(crate) fn add_user(&mut self, view: BindingId, query: BindingId, is_without_key: bool) {
        let users = self.users.entry(view).or_default();
        users.all.insert(query);
        if is_without_key {
            users.without_key.insert(query);
        }
    }

    pub(crate) fn remove_user(&mut self, view: BindingId, query: BindingId) {
        if let Some(users) = self.users.get_mut(&view) {
            users.all.remove(&query);
            users.without_key.remove(&query);
        }
    }

    /// Returns the work done so far.
    pub(crate) fn spent(&self) -> Cost {
        self.attached.work.spent
    }

    /// Returns the changes of all views by a commit that started at this CPU time. Views without a
    /// change are omitted.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) fn changes(
        &mut self,
        changes: &Changes,
        started: Duration,
        sql: &mut dyn Sql,
        laid_out: &mut BTreeSet<usize>,
    ) -> Result<ViewChanges, LiveError> {
        if self.users.is_empty() {
            return Ok(ViewChanges::new());
        }
        let allowance = self.attached.allowance(started);
        let affected = self.attached.affected(changes, &allowance, sql, laid_out);
        match self.attached.lay_out(affected.hits.keys(), changes, sql, laid_out) {
            Err(error @ LiveError::Broken(_)) => return Err(error),
            Err(_) => return Ok(self.unknown(&mut |_| true)),
            Ok(()) => {}
        }
        let mut found = ViewChanges::new();
        let mut unfinished = BTreeSet::new();
        for (id, hits) in affected.hits {
            let Some(view) = self.attached.binding(id).cloned() else { continue };
            let tables = view.template().named_tables();
            if tables.iter().any(|table| unfinished.contains(table)) {
                continue;
            }
            if allowance.is_over(self.attached.work.spent, sql) {
                unfinished.extend(tables);
                continue;
            }
            if affected.unknown.contains(&id) {
                found.insert(id, ViewChange::Unknown);
                continue;
            }
            let numbers = numbers(&hits);
            match self.delta(&view, changes, &numbers, sql) {
                Ok(delta) if delta.is_empty() => {}
                Ok(delta) => {
                    let change = VisibleChange::from_delta(view.template(), changes, &delta);
                    found.insert(id, ViewChange::Known(change));
                }
                Err(error @ LiveError::Broken(_)) => return Err(error),
                Err(LiveError::OverBudget | LiveError::Query(_)) => {
                    found.insert(id, ViewChange::Unknown);
                }
            }
        }
        if !unfinished.is_empty() {
            found.extend(self.unknown(&mut |view| {
                view.template().named_tables().iter().any(|table| unfinished.contains(table))
            }));
        }
        Ok(found)
    }

    /// Returns the views that meet a condition, all unknown.
    fn unknown(&self, condition: &mut dyn FnMut(&Binding) -> bool) -> ViewChanges {
        let attached = self.users.keys().filter_map(|id| Some((*id, self.attached.binding(*id)?)));
        attached
            .filter(|(_, view)| condition(view))
            .map(|(id, _)| (id, ViewChange::Unknown))
            .collect()
    }

    /// Returns the change of a view by changes that are laid out.
    fn delta(
        &mut self,
        view: &Binding,
        changes: &Changes,
        numbers: &[usize],
        sql: &mut dyn Sql,
    ) -> Result<Delta, LiveError> {
        let template = view.template();
        let seen = template.relevant_changes(changes);
        if !template.tables().iter().any(|table| template.has_changed(*table, &seen)) {
            return Ok(Delta::default());
        }
        let mut spent = Cost::default();
        let budget = self.attached.budget;
        sql.allow(template.allowance(budget, CountedSteps::All));
        let mut run = template.rule_context(view.params(), &seen, sql, &mut spent);
        let delta = template.rule().delta(&mut run, (!numbers.is_empty()).then_some(numbers));
        sql.allow(None);
        if delta == Err(LiveError::OverBudget) {
            // An interrupted statement reports no steps, so it counts with its full allowance.
            spent.steps = spent.steps.max(budget.map_or(0, |budget| budget.max));
        }
        self.attached.count(spent);
        delta
    }

    /// The queries that the changes of views affect, beside those that keys find. Queries of
    /// unknown views are unknown.
    pub(crate) fn add_users(
        &self,
        visible: &ViewChanges,
        hits: &mut HitsByBinding,
        unknown: &mut BTreeSet<BindingId>,
    ) {
        for (id, change) in visible {
            let Some(users) = self.users.get(id) else { continue };
            let Some(view) = self.attached.binding(*id) else { continue };
            let change = match change {
                ViewChange::Unknown => {
                    for query in &users.all {
                        hits.entry(*query).or_default();
                        unknown.insert(*query);
                    }
                    continue;
                }
                ViewChange::Known(change) => change,
            };
            if change.elsewhere {
                for query in &users.all {
                    hits.entry(*query).or_default();
                }
            }
            if change.images.is_empty() {
                continue;
            }
            for table in view.template().named_tables() {
                let all = change.images.iter();
                let list: SharedHits = all
                    .map(|(number, images)| Hit { table, number: *number, images: *images })
                    .collect();
                for query in &users.without_key {
                    hits.entry(*query).or_default().push(HitList::whole(&list));
                }
            }
        }
    }

    /// Returns the changes that a caller with these views sees, laid out. The tables of owners and
    /// policies have none, so that a query costs nothing for hidden rows. `None` if that would not
    /// lead from the same old rows to the same new ones: a commit that changes who sees a row.
    pub(crate) fn visible_changes(
        &mut self,
        used: &[UsedView],
        visible: &ViewChanges,
        changes: &Changes,
        tables: &BTreeSet<usize>,
        started: Duration,
        sql: &mut dyn Sql,
    ) -> Result<Option<Changes>, LiveError> {
        let catalog = Arc::clone(&self.attached.catalog);
        let mut seen = Changes::new();
        let mut to_check = Vec::new();
        let mut tables = tables.clone();
        for UsedView { table, id } in used {
            let change = match visible.get(id) {
                Some(ViewChange::Known(change)) => Some(change),
                Some(ViewChange::Unknown) => return Ok(None),
                None => None,
            };
            let name = catalog.table(*table).name;
            let all = changes.for_table(name);
            let rows = change
                .into_iter()
                .flat_map(|change| &change.images)
                .map(|(number, images)| images.select(&all[*number]))
                .collect();
            seen.set(name, rows);
            let Some(view) = self.attached.binding(*id).cloned() else { continue };
            let template = view.template();
            let by_view = template.relevant_changes(changes);
            let mut others = template.query.sources.iter().filter(|source| !source.is_named);
            if others.any(|source| template.has_changed(source.table, &by_view)) {
                tables.extend(template.tables());
                to_check.push((view, change));
            }
        }
        let spent = seen.lay_out(&catalog, tables, sql)?;
        self.attached.count(spent);
        for (view, change) in to_check {
            if self.attached.allowance(started).is_out_of_time(sql) {
                return Ok(None);
            }
            let weights = match self.delta(&view, &seen, &[], sql) {
                Ok(delta) => delta.weights(),
                Err(error @ LiveError::Broken(_)) => return Err(error),
                Err(_) => return Ok(None),
            };
            let is_same = match change {
                Some(change) => change.weights == weights,
                None => weights.is_empty(),
            };
            if !is_same {
                return Ok(None);
            }
        }
        Ok(Some(seen))
    }
}

impl ViewChange {
    /// `true` if a change of the table is visible in an image that a key matched.
    pub(crate) fn shows(&self, hit: &Hit) -> bool {
        let ViewChange::Known(change) = self else { return false };
        self.position(hit.number).is_some_and(|position| {
            let (_, visible) = change.images[position];
            (visible.old && hit.images.old) || (visible.new && hit.images.new)
        })
    }

    /// Returns the position of a change among the visible ones.
    pub(crate) fn position(&self, number: usize) -> Option<usize> {
        let ViewChange::Known(change) = self else { return None };
        change.images.binary_search_by_key(&number, |(known, _)| *known).ok()
    }
}

impl VisibleChange {
    fn from_delta(template: &Template, changes: &Changes, delta: &Delta) -> VisibleChange {
        let weights = delta.weights();
        let mut change = VisibleChange { images: Vec::new(), elsewhere: false, weights };
        let mut named = template.query.sources.iter().enumerate();
        let Some((source, table)) =
            named.find(|(_, source)| source.is_named).map(|(at, source)| (at, source.table))
        else {
            change.elsewhere = true;
            return change;
        };
        // Outputs that are not columns, such as an argument without its secrets, identify no row.
        let (outputs, columns): (Vec<usize>, Vec<usize>) = template
            .query
            .outputs()
            .iter()
            .enumerate()
            .filter_map(|(at, output)| match output.value.plain {
                PlainExpr::Column(known, column) if known == source => Some((at, column)),
                _ => None,
            })
            .unzip();
        let gone = rows_of_sign(&change.weights, -1, &outputs);
        let new = rows_of_sign(&change.weights, 1, &outputs);
        let mut gone_left = gone.clone();
        let mut new_left = new.clone();
        for (number, row) in changes.for_table(template.table_name(table)).iter().enumerate() {
            let mut images = Images { old: false, new: false };
            if let Some(old) = &row.old {
                let cells = select_cells(old, &columns);
                gone_left.remove(&cells);
                images.old = gone.contains(&cells);
            }
            if let Some(image) = &row.new {
                let cells = select_cells(image, &columns);
                new_left.remove(&cells);
                images.new = new.contains(&cells);
            }
            if images.old || images.new {
                change.images.push((number, images));
            }
        }
        change.elsewhere = !gone_left.is_empty() || !new_left.is_empty();
        change
    }
}

/// Returns these cells of the rows whose weights have a sign.
fn rows_of_sign(
    weights: &HashMap<ExactRow, i64>,
    sign: i64,
    positions: &[usize],
) -> HashSet<ExactRow> {
    let rows = weights.iter().filter(|(_, weight)| weight.signum() == sign);
    rows.map(|(row, _)| select_cells(&row.0, positions)).collect()
}

/// Returns the cells of a row at these positions.
fn select_cells(row: &Row, positions: &[usize]) -> ExactRow {
    ExactRow(positions.iter().map(|at| row[*at].clone()).collect())
}

impl Images {
    /// Returns these images of a changed row.
    fn select(self, change: &RowChange) -> RowChange {
        RowChange {
            old: change.old.clone().filter(|_| self.old),
            new: change.new.clone().filter(|_| self.new),
        }
    }
}
