//! The bindings of one table by the rows that can affect them, and who uses how much of the limits.

use std::collections::btree_map::Entry;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher as _;
use std::ops::Range;
use std::sync::Arc;

use abide_schema::limits::RESIDUAL_BINDINGS_PER_TABLE;
use abide_schema::share::{ShareKey, Shares};
use abide_schema::{Row, Value};

use crate::delta::changes::RowChange;
use crate::plan::collation::canonical;
use crate::route::binding_index::{BindingId, BindingIndex};
use crate::route::holders::{Holders, Released};
use crate::route::interval::{Interval, Intervals, Point};
use crate::route::{KeyColumn, hash_key};
use crate::template::Binding;

/// Maximum sets of columns by which one table is probed. Every change of the table pays a hash probe for each set.
const KEY_SETS: usize = 64;

/// Maximum lookups through one table: pairs of a template and a source. Every commit that changes the table pays a
/// statement for each of them.
const LOOKUPS: usize = 64;

/// Where a binding is indexed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteEntry {
    Key {
        table: usize,
        set: usize,
        key: u64,
    },
    Range {
        table: usize,
        column: KeyColumn,
        interval: Interval,
    },
    Lookup {
        table: usize,
        template: Arc<str>,
        source: usize,
        key: u64,
    },
    Residual {
        table: usize,
    },
    /// The binding of a restricted caller, which every change that the caller sees can affect.
    View {
        table: usize,
    },
}

/// Which images of a changed row have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Images {
    pub(crate) old: bool,
    pub(crate) new: bool,
}

/// A key of a changed row, by which a table finds bindings.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MatchedKey<'a> {
    /// The hash of its cells in the columns of a key set.
    Set { set: usize, key: u64 },
    /// Its cell in a column with ranges.
    Point { column: &'a KeyColumn, point: Point },
    /// Every row has this key.
    Residual,
}

/// The bindings that a change of one table can affect, and the use of the limits. A tenant can use a share of each
/// limit.
#[derive(Debug)]
pub(crate) struct TableRoutes {
    /// The bindings that compare columns of the table with values.
    pub(crate) sets: Vec<KeySet>,
    /// The use of the limit of key sets.
    pub(crate) sets_used: Shares,
    /// The bindings that restrict a column of the table to a range.
    pub(crate) ranges: BTreeMap<KeyColumn, Intervals>,
    /// By template and source: the bindings whose parameter restricts another table.
    pub(crate) lookups: BTreeMap<(Arc<str>, usize), LookupRoutes>,
    /// The use of the limit of lookups.
    pub(crate) lookups_used: Shares,
    /// The bindings that every change of the table can affect.
    pub(crate) residual: BTreeSet<BindingId>,
    /// The use of the limit of residual bindings.
    pub(crate) residual_used: Shares,
    /// The number of bindings with [`RouteEntry::View`]. They are checked only at changes that their own caller sees,
    /// so they cost the other tenants nothing: a tenant may have as many as its share of the residual bindings, and the
    /// sum over all tenants is not limited.
    pub(crate) views_used: Shares,
}

impl Default for TableRoutes {
    fn default() -> TableRoutes {
        TableRoutes {
            sets: Vec::new(),
            sets_used: Shares::new(KEY_SETS),
            ranges: BTreeMap::new(),
            lookups: BTreeMap::new(),
            lookups_used: Shares::new(LOOKUPS),
            residual: BTreeSet::new(),
            residual_used: Shares::new(RESIDUAL_BINDINGS_PER_TABLE),
            // It only counts: `places_by_view` checks the count of each tenant.
            views_used: Shares::new(usize::MAX),
        }
    }
}

/// The bindings of one template by the parameters that a lookup finds.
#[derive(Debug)]
pub(crate) struct LookupRoutes {
    /// One of them, to access the template.
    pub(crate) binding: Binding,
    pub(crate) index: BindingIndex,
    /// `None` while it is unused.
    pub(crate) holders: Option<Holders>,
}

/// All keys over one set of columns.
#[derive(Debug)]
pub(crate) struct KeySet {
    pub(crate) columns: Vec<KeyColumn>,
    pub(crate) index: BindingIndex,
    /// `None` while it is unused.
    pub(crate) holders: Option<Holders>,
}

impl RouteEntry {
    /// Returns the table.
    pub(crate) fn table(&self) -> usize {
        match self {
            RouteEntry::Key { table, .. }
            | RouteEntry::Range { table, .. }
            | RouteEntry::Lookup { table, .. }
            | RouteEntry::Residual { table }
            | RouteEntry::View { table } => *table,
        }
    }

    pub(crate) fn is_lookup_of(&self, table: usize) -> bool {
        matches!(self, RouteEntry::Lookup { table: other, .. } if *other == table)
    }
}

impl MatchedKey<'_> {
    /// `true` if both are cells in the same column with ranges.
    pub(crate) fn is_of_one_column(&self, other: &MatchedKey<'_>) -> bool {
        match (self, other) {
            (MatchedKey::Point { column, .. }, MatchedKey::Point { column: other, .. }) => {
                column == other
            }
            _ => false,
        }
    }

    fn point(&self) -> Option<Point> {
        match self {
            MatchedKey::Point { point, .. } => Some(point.clone()),
            MatchedKey::Set { .. } | MatchedKey::Residual => None,
        }
    }
}

impl TableRoutes {
    /// Adds a binding at a place of this table.
    pub(crate) fn add(
        &mut self,
        place: &RouteEntry,
        id: BindingId,
        binding: &Binding,
        by: &ShareKey,
    ) {
        match place {
            RouteEntry::Residual { .. } => {
                self.residual.insert(id);
            }
            RouteEntry::View { .. } => {}
            RouteEntry::Range { column, interval, .. } => {
                let intervals = self.ranges.entry(*column).or_default();
                intervals.insert(interval, id);
            }
            RouteEntry::Key { set, key, .. } => {
                self.sets[*set].index.add(*key, id);
            }
            RouteEntry::Lookup { template, source, key, .. } => {
                let name = (Arc::clone(template), *source);
                match self.lookups.entry(name) {
                    Entry::Occupied(mut known) => known.get_mut().index.add(*key, id),
                    Entry::Vacant(entry) => {
                        let holders = None;
                        let binding = binding.clone();
                        let index = BindingIndex::default();
                        let known = entry.insert(LookupRoutes { binding, index, holders });
                        known.index.add(*key, id);
                    }
                }
            }
        }
        self.add_use(place, by);
    }

    /// Removes a binding from a place of this table.
    pub(crate) fn remove(&mut self, place: &RouteEntry, id: BindingId, by: &ShareKey) {
        self.remove_use(place, by);
        match place {
            RouteEntry::Residual { .. } => {
                self.residual.remove(&id);
            }
            RouteEntry::View { .. } => {}
            RouteEntry::Range { column, interval, .. } => {
                if let Some(intervals) = self.ranges.get_mut(column) {
                    intervals.remove(interval, id);
                    if intervals.is_empty() {
                        self.ranges.remove(column);
                    }
                }
            }
            RouteEntry::Key { set, key, .. } => {
                self.sets[*set].index.remove(*key, id);
            }
            RouteEntry::Lookup { template, source, key, .. } => {
                let name = (Arc::clone(template), *source);
                if let Some(known) = self.lookups.get_mut(&name) {
                    known.index.remove(*key, id);
                    if known.index.is_empty() {
                        self.lookups.remove(&name);
                    }
                }
            }
        }
    }

    /// Returns what a place uses: the limit, and the holders of what bindings share there.
    fn used(&mut self, place: &RouteEntry) -> Option<(&mut Shares, Option<&mut Option<Holders>>)> {
        match place {
            RouteEntry::Range { .. } => None,
            RouteEntry::Residual { .. } => Some((&mut self.residual_used, None)),
            RouteEntry::View { .. } => Some((&mut self.views_used, None)),
            RouteEntry::Key { set, .. } => {
                Some((&mut self.sets_used, Some(&mut self.sets[*set].holders)))
            }
            RouteEntry::Lookup { template, source, .. } => {
                let known = self.lookups.get_mut(&(Arc::clone(template), *source))?;
                Some((&mut self.lookups_used, Some(&mut known.holders)))
            }
        }
    }

    fn add_use(&mut self, place: &RouteEntry, by: &ShareKey) {
        match self.used(place) {
            Some((_, Some(Some(holders)))) => holders.add(by),
            Some((shares, Some(unused))) => {
                shares.add(by, 1);
                *unused = Some(Holders::new(by.clone()));
            }
            Some((shares, None)) => shares.add(by, 1),
            None => {}
        }
    }

    fn remove_use(&mut self, place: &RouteEntry, by: &ShareKey) {
        let Some((shares, holders)) = self.used(place) else { return };
        let Some(slot) = holders else { return shares.remove(by, 1) };
        let Some(holders) = slot else { return };
        match holders.release(by) {
            Released::Kept => {}
            Released::PaidByOther => {
                shares.remove(by, 1);
                shares.add(holders.payer(), 1);
            }
            Released::Unused => {
                shares.remove(by, 1);
                *slot = None;
            }
        }
    }

    /// Counts a use for another caller.
    pub(crate) fn move_use(&mut self, place: &RouteEntry, from: &ShareKey, to: &ShareKey) {
        self.add_use(place, to);
        self.remove_use(place, from);
    }

    /// Calls `each` with every key that a change has, and the images that have it. There may be no
    /// binding with the key.
    pub(crate) fn keys<'a>(
        &'a self,
        change: &RowChange,
        hasher: &RandomState,
        each: &mut dyn FnMut(MatchedKey<'a>, Images),
    ) {
        for (at, set) in self.sets.iter().enumerate().filter(|(_, set)| !set.index.is_empty()) {
            let key = |row: &Row| {
                let cells: Vec<Value> = set
                    .columns
                    .iter()
                    .map(|(column, collation)| canonical(*collation, &row[*column]))
                    .collect();
                hash_key(hasher.build_hasher(), cells.iter())
            };
            let old = change.old.as_ref().map(key);
            let new = change.new.as_ref().map(key);
            for (key, images) in keys_of_images(old, new) {
                each(MatchedKey::Set { set: at, key }, images);
            }
        }
        for key_column in self.ranges.keys() {
            let (column, collation) = key_column;
            let point = |row: &Row| Point::from_value(canonical(*collation, &row[*column]));
            let old = change.old.as_ref().and_then(point);
            let new = change.new.as_ref().and_then(point);
            for (point, images) in keys_of_images(old, new) {
                each(MatchedKey::Point { column: key_column, point }, images);
            }
        }
        if !self.residual.is_empty() {
            let images = Images { old: change.old.is_some(), new: change.new.is_some() };
            each(MatchedKey::Residual, images);
        }
    }

    /// Calls `each` with every binding that one of these keys finds, once for each of its places,
    /// and with which of the keys find it. There is one key, or all are cells in one column,
    /// distinct and in ascending order.
    pub(crate) fn find(
        &self,
        keys: &[MatchedKey<'_>],
        each: &mut dyn FnMut(BindingId, Range<usize>),
    ) {
        match &keys[0] {
            MatchedKey::Set { set, key } => {
                self.sets[*set].index.find(*key, &mut |id| each(id, 0..1));
            }
            MatchedKey::Point { column, .. } => {
                let points: Vec<Point> = keys.iter().filter_map(MatchedKey::point).collect();
                if let Some(intervals) = self.ranges.get(column) {
                    intervals.find(&points, each);
                }
            }
            MatchedKey::Residual => self.residual.iter().for_each(|id| each(*id, 0..1)),
        }
    }
}

/// Returns the keys of two images, each with the images that have it.
fn keys_of_images<K: PartialEq>(old: Option<K>, new: Option<K>) -> Vec<(K, Images)> {
    if old == new {
        return old.into_iter().map(|key| (key, Images { old: true, new: true })).collect();
    }
    let old = old.map(|key| (key, Images { old: true, new: false }));
    let new = new.map(|key| (key, Images { old: false, new: true }));
    old.into_iter().chain(new).collect()
}
