//! A query result that is kept up to date: a snapshot with the later changes applied.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use abide_schema::wire::Shape;
use abide_schema::{Checksum, Row, Value};

use crate::order::{Collation, compare, compare_exactly};

/// The changes of a result. Deletes are keys, or whole rows if the result has no key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Changes {
    pub(crate) deletes: Vec<Row>,
    pub(crate) inserts: Vec<Row>,
    pub(crate) updates: Vec<Row>,
    /// All changes, for a query with LIMIT.
    pub(crate) top_n: TopNDelta,
    /// Positions of the rows in the three lists, after a top-N result's rows were moved into them.
    pub(crate) positions: Option<Positions>,
}

/// Positions of the changes in a top-N result (ORDER BY with LIMIT), counted from 0. The n-th entry of
/// each list is the position of the n-th row in the corresponding list of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Old positions of deleted rows, from last to first.
    pub deletes: Vec<usize>,
    /// New positions of inserted rows, from first to last.
    pub inserts: Vec<usize>,
    /// Positions of updated rows.
    pub updates: Vec<usize>,
}

/// The changes of a top-N result: deletes from the last position to the first, then inserts from
/// the first to the last, then updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TopNDelta {
    pub(crate) deletes: Vec<usize>,
    pub(crate) inserts: Vec<PositionedRow>,
    pub(crate) updates: Vec<PositionedRow>,
}

/// A row at a position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PositionedRow {
    pub(crate) at: usize,
    pub(crate) row: Row,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && self.top_n == TopNDelta::default()
    }

    /// Moves the rows of a top-N result into the three lists, and their positions into a separate value.
    pub(crate) fn with_positions(mut self) -> Changes {
        if self.top_n == TopNDelta::default() {
            return self;
        }
        let TopNDelta { deletes, inserts, updates } = std::mem::take(&mut self.top_n);
        self.positions = Some(Positions {
            deletes,
            inserts: inserts.iter().map(|insert| insert.at).collect(),
            updates: updates.iter().map(|update| update.at).collect(),
        });
        self.inserts.extend(inserts.into_iter().map(|insert| insert.row));
        self.updates.extend(updates.into_iter().map(|update| update.row));
        self
    }

    /// The whole result as inserts.
    pub(crate) fn from_all_rows(rows: Vec<Row>, is_top_n: bool) -> Changes {
        let inserts = (0..rows.len()).collect();
        let positions = is_top_n.then(|| Positions { inserts, ..Positions::default() });
        Changes { inserts: rows, positions, ..Changes::default() }
    }

    fn len(&self) -> usize {
        self.deletes.len() + self.inserts.len() + self.updates.len()
    }
}

/// A change that does not apply to the current rows, or an inconsistent shape.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Mismatch(String);

impl Mismatch {
    pub(crate) fn new(why: &str) -> Mismatch {
        Mismatch(why.to_owned())
    }

    fn beyond_end(at: usize) -> Mismatch {
        Mismatch(format!("position {at} is beyond the top-N result"))
    }
}

/// One term of the order.
#[derive(Debug)]
struct Term {
    at: usize,
    desc: bool,
    nulls_last: bool,
    collation: Collation,
}

/// How the rows of one shape compare, and what identifies them.
#[derive(Debug)]
struct Layout {
    terms: Vec<Term>,
    key: Vec<usize>,
    width: usize,
}

/// A result in its query's order; in key order if the query has no ORDER BY.
#[derive(Debug)]
pub(crate) struct Rows {
    layout: Layout,
    sorted: Vec<Row>,
    by_key: BTreeMap<Key, Row>,
    /// The snapshot in the order received, if that differs from the order kept here; until the first
    /// change. Positions of a top-N result refer to it.
    as_received: Option<Vec<Row>>,
    /// The server determines the positions.
    is_top_n: bool,
    /// Checksum of the rows, if the server sends one.
    checksum: Option<Checksum>,
}

/// The effect of a change on the rows, before it is applied.
#[derive(Debug, Default)]
struct Difference {
    removed: Vec<Row>,
    added: Vec<Row>,
    /// Keys with their new rows.
    keys: BTreeMap<Key, Option<Row>>,
    /// All rows of a top-N result at their new positions.
    top_n: Option<Vec<Row>>,
}

impl Rows {
    /// The rows of a snapshot, checked against the checksum if there is one.
    pub(crate) fn new(
        shape: &Shape,
        rows: Vec<Row>,
        expected: Option<Checksum>,
    ) -> Result<Rows, Mismatch> {
        let layout = Layout::from_shape(shape)?;
        for row in &rows {
            layout.check_width(row)?;
        }
        let by_key = layout.index_by_key(&rows)?;
        let checksum = expected.map(|_| Checksum::from_rows(&rows));
        check_checksum(checksum, expected)?;
        let mut sorted = rows;
        let is_top_n = shape.top_n;
        let in_order =
            is_top_n || sorted.is_sorted_by(|left, right| layout.compare(left, right).is_le());
        let as_received = (!in_order).then(|| sorted.clone());
        if !in_order {
            sorted.sort_by(|left, right| layout.compare(left, right));
        }
        Ok(Rows { layout, sorted, by_key, as_received, is_top_n, checksum })
    }

    /// The rows, in order.
    pub(crate) fn as_slice(&self) -> &[Row] {
        match &self.as_received {
            Some(rows) if !self.layout.terms.is_empty() => rows,
            _ => &self.sorted,
        }
    }

    /// Applies a change: deletes, then inserts, then updates. Applies all of it, or nothing if it does not
    /// fit or does not lead to the given checksum. Returns it without positions: deletes of a top-N result are
    /// reported by key too.
    pub(crate) fn apply(
        &mut self,
        mut changes: Changes,
        expected: Option<Checksum>,
    ) -> Result<Changes, Mismatch> {
        let is_top_n = self.is_top_n || changes.top_n != TopNDelta::default();
        let difference = if is_top_n {
            self.difference_of_top_n(&mut changes)?
        } else {
            self.difference_of_rows(&changes)?
        };
        let checksum = self.checksum.map(|mut sum| {
            difference.removed.iter().for_each(|row| sum.remove(row));
            difference.added.iter().for_each(|row| sum.add(row));
            sum
        });
        check_checksum(checksum, expected)?;
        self.checksum = checksum;
        self.as_received = None;
        match difference.top_n {
            Some(rows) => {
                self.sorted = rows;
                self.is_top_n = true;
            }
            None => {
                for (key, row) in difference.keys {
                    match row {
                        Some(row) => self.by_key.insert(key, row),
                        None => self.by_key.remove(&key),
                    };
                }
                self.replace_rows(difference.removed, difference.added);
            }
        }
        debug_assert!(
            self.checksum.is_none_or(|sum| sum == Checksum::from_rows(&self.sorted)),
            "the local checksum matches the rows"
        );
        Ok(changes.with_positions())
    }

    fn difference_of_top_n(&self, changes: &mut Changes) -> Result<Difference, Mismatch> {
        let mut rows = self.as_received.as_ref().unwrap_or(&self.sorted).clone();
        let mut difference = Difference::default();
        for at in &changes.top_n.deletes {
            if *at >= rows.len() {
                return Err(Mismatch::beyond_end(*at));
            }
            let removed = rows.remove(*at);
            changes.deletes.push(self.layout.key_or_row(&removed));
            difference.removed.push(removed);
        }
        for PositionedRow { at, row } in &changes.top_n.inserts {
            self.layout.check_width(row)?;
            if *at > rows.len() {
                return Err(Mismatch::beyond_end(*at));
            }
            rows.insert(*at, row.clone());
            difference.added.push(row.clone());
        }
        for PositionedRow { at, row } in &changes.top_n.updates {
            self.layout.check_width(row)?;
            let place = rows.get_mut(*at).ok_or_else(|| Mismatch::beyond_end(*at))?;
            difference.removed.push(std::mem::replace(place, row.clone()));
            difference.added.push(row.clone());
        }
        difference.top_n = Some(rows);
        Ok(difference)
    }

    fn difference_of_rows(&self, changes: &Changes) -> Result<Difference, Mismatch> {
        for row in changes.inserts.iter().chain(&changes.updates) {
            self.layout.check_width(row)?;
        }
        if self.layout.key.is_empty() {
            return self.difference_of_rows_without_key(changes);
        }
        let mut keys: BTreeMap<Key, Option<Row>> = BTreeMap::new();
        for key in &changes.deletes {
            let key = Key(key.clone());
            if !self.has_row(&keys, &key) {
                return Err(Mismatch::new("a deleted row does not exist"));
            }
            keys.insert(key, None);
        }
        for row in &changes.inserts {
            let key = self.layout.key_of(row);
            if self.has_row(&keys, &key) {
                return Err(Mismatch::new("an inserted row already exists"));
            }
            keys.insert(key, Some(row.clone()));
        }
        for row in &changes.updates {
            let key = self.layout.key_of(row);
            if !self.has_row(&keys, &key) {
                return Err(Mismatch::new("an updated row does not exist"));
            }
            keys.insert(key, Some(row.clone()));
        }
        let removed = keys.keys().filter_map(|key| self.by_key.get(key).cloned()).collect();
        let added = keys.values().flatten().cloned().collect();
        Ok(Difference { removed, added, keys, top_n: None })
    }

    /// Whether a row with this key exists after the earlier parts of a change.
    fn has_row(&self, changed: &BTreeMap<Key, Option<Row>>, key: &Key) -> bool {
        match changed.get(key) {
            Some(row) => row.is_some(),
            None => self.by_key.contains_key(key),
        }
    }

    fn difference_of_rows_without_key(&self, changes: &Changes) -> Result<Difference, Mismatch> {
        if !changes.updates.is_empty() {
            return Err(Mismatch("an update in a result without a key".to_owned()));
        }
        for row in &changes.deletes {
            self.layout.check_width(row)?;
        }
        let mut removed = changes.deletes.clone();
        removed.sort_by(|left, right| self.layout.compare(left, right));
        for equal in removed.chunk_by(|left, right| self.layout.compare(left, right).is_eq()) {
            let row = &equal[0];
            let first =
                self.sorted.partition_point(|other| self.layout.compare(other, row).is_lt());
            let count = self.sorted[first..]
                .partition_point(|other| self.layout.compare(other, row).is_eq());
            if count < equal.len() {
                return Err(Mismatch("a deleted row does not exist".to_owned()));
            }
        }
        let added = changes.inserts.clone();
        Ok(Difference { removed, added, ..Difference::default() })
    }

    /// Returns the difference from this result to a newer snapshot, and replaces it with the snapshot.
    pub(crate) fn become_snapshot(&mut self, new: Rows) -> Changes {
        let changes = if new.is_top_n {
            self.difference_by_position(&new)
        } else if new.layout.key.is_empty() {
            self.difference_of_multisets(&new)
        } else {
            self.difference_by_key(&new)
        };
        *self = new;
        changes
    }

    /// The part between the common prefix and the common suffix.
    fn difference_by_position(&self, new: &Rows) -> Changes {
        let old = &self.sorted[..];
        let new = &new.sorted[..];
        let head = old.iter().zip(new).take_while(|(old, new)| is_same_row(old, new)).count();
        let old_rest = &old[head..];
        let new_rest = &new[head..];
        let tail = old_rest
            .iter()
            .rev()
            .zip(new_rest.iter().rev())
            .take_while(|(old, new)| is_same_row(old, new))
            .count();
        let removed = &old_rest[..old_rest.len() - tail];
        let added = &new_rest[..new_rest.len() - tail];
        let mut top_n = TopNDelta::default();
        if self.have_same_keys(removed, added) {
            for (at, (old, new)) in removed.iter().zip(added).enumerate() {
                if !is_same_row(old, new) {
                    top_n.updates.push(PositionedRow { at: head + at, row: new.clone() });
                }
            }
            return Changes { top_n, ..Changes::default() }.with_positions();
        }
        top_n.deletes = (head..head + removed.len()).rev().collect();
        for (at, row) in added.iter().enumerate() {
            top_n.inserts.push(PositionedRow { at: head + at, row: row.clone() });
        }
        let deletes = removed.iter().rev().map(|row| self.layout.key_or_row(row)).collect();
        Changes { deletes, top_n, ..Changes::default() }.with_positions()
    }

    /// Whether the rows have the same keys in the same order. Keys that SQLite considers equal, such as 1 and 1.0, differ
    /// here. `false` if the result has no key.
    fn have_same_keys(&self, old: &[Row], new: &[Row]) -> bool {
        !self.layout.key.is_empty()
            && old.len() == new.len()
            && old.iter().zip(new).all(|(old, new)| {
                is_same_row(&self.layout.key_of(old).0, &self.layout.key_of(new).0)
            })
    }

    fn difference_by_key(&self, new: &Rows) -> Changes {
        let mut old: BTreeMap<Key, &Row> =
            self.sorted.iter().map(|row| (self.layout.key_of(row), row)).collect();
        let mut changes = Changes::default();
        for row in new.as_slice() {
            match old.remove(&new.layout.key_of(row)) {
                None => changes.inserts.push(row.clone()),
                Some(old) if is_same_row(old, row) => {}
                Some(_) => changes.updates.push(row.clone()),
            }
        }
        changes.deletes = old.into_keys().map(|key| key.0).collect();
        changes
    }

    fn difference_of_multisets(&self, new: &Rows) -> Changes {
        let mut changes = Changes::default();
        // A top-N result is ordered by position.
        let mut old_sorted = self.sorted.clone();
        old_sorted.sort_by(|left, right| new.layout.compare(left, right));
        let mut new_sorted = new.sorted.clone();
        new_sorted.sort_by(|left, right| new.layout.compare(left, right));
        let mut old_rows = old_sorted.iter().peekable();
        let mut new_rows = new_sorted.iter().peekable();
        loop {
            let order = match (old_rows.peek(), new_rows.peek()) {
                (None, None) => return changes,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(left), Some(right)) => new.layout.compare(left, right),
            };
            match order {
                Ordering::Less => changes.deletes.extend(old_rows.next().cloned()),
                Ordering::Greater => changes.inserts.extend(new_rows.next().cloned()),
                Ordering::Equal => {
                    old_rows.next();
                    new_rows.next();
                }
            }
        }
    }

    /// Replaces existing rows.
    fn replace_rows(&mut self, mut removed: Vec<Row>, added: Vec<Row>) {
        // For few rows, moving the tail of the list for each is cheapest; for many, one pass over all
        // rows is. The exact threshold matters little.
        let few = removed.len() + added.len() <= 8 + self.sorted.len() / 64;
        let layout = &self.layout;
        if few {
            for row in &removed {
                let at = self.sorted.binary_search_by(|other| layout.compare(other, row));
                self.sorted.remove(at.expect("checked before"));
            }
            for row in added {
                let at = self.sorted.partition_point(|other| layout.compare(other, &row).is_le());
                self.sorted.insert(at, row);
            }
            return;
        }
        removed.sort_by(|left, right| layout.compare(left, right));
        let mut leaving = removed.iter().peekable();
        self.sorted.retain(|row| {
            let leaves = leaving.peek().is_some_and(|next| layout.compare(row, next).is_eq());
            if leaves {
                leaving.next();
            }
            !leaves
        });
        assert!(leaving.next().is_none(), "checked before");
        self.sorted.extend(added);
        // The sort detects the sorted run and merges.
        self.sorted.sort_by(|left, right| layout.compare(left, right));
    }
}

/// Compares the local checksum with the server's.
fn check_checksum(kept: Option<Checksum>, expected: Option<Checksum>) -> Result<(), Mismatch> {
    match (kept, expected) {
        (Some(kept), Some(expected)) if kept != expected => {
            Err(Mismatch(format!("the rows have the checksum {kept}, the server has {expected}")))
        }
        _ => Ok(()),
    }
}

impl Layout {
    fn from_shape(shape: &Shape) -> Result<Layout, Mismatch> {
        let width = shape.columns.len();
        let terms = shape.order.iter().map(|term| {
            let collation = Collation::parse(&term.collation)
                .ok_or_else(|| Mismatch(format!("unknown collation {}", term.collation)))?;
            if term.index >= width {
                return Err(Mismatch(format!("there is no column {} to sort by", term.index)));
            }
            let nulls_last = term.nulls == "last";
            Ok(Term { at: term.index, desc: term.desc, nulls_last, collation })
        });
        let key = shape.key.iter().map(|name| {
            let at = shape.columns.iter().position(|column| column.name == *name);
            at.ok_or_else(|| Mismatch(format!("the key {name} is not among the columns")))
        });
        Ok(Layout {
            terms: terms.collect::<Result<_, _>>()?,
            key: key.collect::<Result<_, _>>()?,
            width,
        })
    }

    fn index_by_key(&self, rows: &[Row]) -> Result<BTreeMap<Key, Row>, Mismatch> {
        let mut by_key = BTreeMap::new();
        if self.key.is_empty() {
            return Ok(by_key);
        }
        for row in rows {
            if by_key.insert(self.key_of(row), row.clone()).is_some() {
                return Err(Mismatch("two rows of the snapshot have the same key".to_owned()));
            }
        }
        Ok(by_key)
    }

    fn check_width(&self, row: &Row) -> Result<(), Mismatch> {
        let cells = row.len();
        let columns = self.width;
        if cells == columns {
            return Ok(());
        }
        Err(Mismatch(format!("a row has {cells} cells, the result {columns} columns")))
    }

    /// How a deleted row is reported: by its key, or whole if there is no key.
    fn key_or_row(&self, row: &Row) -> Row {
        if self.key.is_empty() { row.clone() } else { self.key_of(row).0 }
    }

    fn key_of(&self, row: &Row) -> Key {
        Key(self.key.iter().map(|at| row[*at].clone()).collect())
    }

    /// Compares by the query's order, then the key; without a key, by all cells.
    fn compare(&self, left: &[Value], right: &[Value]) -> Ordering {
        for term in &self.terms {
            let order = term.compare(&left[term.at], &right[term.at]);
            if order.is_ne() {
                return order;
            }
        }
        if self.key.is_empty() {
            return first_difference(left.iter().zip(right), compare_exactly);
        }
        let keys = self.key.iter().map(|at| (&left[*at], &right[*at]));
        first_difference(keys, |left, right| compare(left, right, Collation::Binary))
    }
}

impl Term {
    fn compare(&self, left: &Value, right: &Value) -> Ordering {
        match (left, right) {
            (Value::Null, Value::Null) => Ordering::Equal,
            (Value::Null, _) if self.nulls_last => Ordering::Greater,
            (Value::Null, _) => Ordering::Less,
            (_, Value::Null) if self.nulls_last => Ordering::Less,
            (_, Value::Null) => Ordering::Greater,
            _ if self.desc => compare(right, left, self.collation),
            _ => compare(left, right, self.collation),
        }
    }
}

/// The cells of a key, ordered as SQLite orders them.
#[derive(Debug)]
struct Key(Row);

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        let cells = self.0.iter().zip(other.0.iter());
        first_difference(cells, |left, right| compare(left, right, Collation::Binary))
            .then(self.0.len().cmp(&other.0.len()))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

fn is_same_row(left: &Row, right: &Row) -> bool {
    Arc::ptr_eq(left, right)
        || first_difference(left.iter().zip(right.iter()), compare_exactly).is_eq()
}

fn first_difference<'a>(
    cells: impl Iterator<Item = (&'a Value, &'a Value)>,
    compare: impl Fn(&Value, &Value) -> Ordering,
) -> Ordering {
    cells
        .map(|(left, right)| compare(left, right))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests;
