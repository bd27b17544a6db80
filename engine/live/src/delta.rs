//! The change of one query's result by one commit.

pub(crate) mod accumulator;
pub(crate) mod aggregates;
pub(crate) mod changes;
pub(crate) mod dependency;
pub(crate) mod evaluation;
pub(crate) mod exact;
pub(crate) mod meter;
pub(crate) mod partitions;
pub(crate) mod rule;
pub(crate) mod rule_context;
pub(crate) mod state;
pub(crate) mod term;
pub(crate) mod top_n;

use std::collections::HashMap;

use abide_schema::{Checksum, Row, Value};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::delta::exact::ExactRow;

/// The change of one result. Remove the deletes, add the inserts and replace rows by the updates of
/// the same key: the old result becomes the new one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Keys of the removed rows, or whole rows if the shape has no key.
    pub deletes: Vec<Row>,
    /// Added rows.
    pub inserts: Vec<Row>,
    /// New versions of kept rows.
    pub updates: Vec<Row>,
    /// The change of a query with LIMIT: positions instead of keys.
    pub top_n: TopNDelta,
    /// The old rows of deletes and updates. Subscribers do not receive them, but the checksum
    /// covers them. They are kept as rows because most results have no subscriber that verifies the
    /// checksum.
    gone: Vec<Row>,
}

/// The change of a top-N result. Deletes come first, from the last position to the first, then
/// inserts from the first to the last, then updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopNDelta {
    /// Positions of the removed rows.
    pub deletes: Vec<usize>,
    /// Added rows, each at its position once all earlier inserts are applied.
    pub inserts: Vec<PositionedRow>,
    /// New versions of kept rows.
    pub updates: Vec<PositionedRow>,
}

/// A row at a position.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionedRow {
    /// The position.
    pub at: usize,
    /// The row.
    pub row: Row,
}

impl Delta {
    /// Returns `true` if nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deletes.is_empty()
            && self.inserts.is_empty()
            && self.updates.is_empty()
            && self.top_n == TopNDelta::default()
    }

    /// Returns the same delta with sorted rows. The order in which they were found can depend on rows
    /// that a restricted caller does not see. The changes of a top-N result keep their order.
    #[must_use]
    pub(crate) fn sorted(mut self) -> Delta {
        for rows in [&mut self.deletes, &mut self.inserts, &mut self.updates, &mut self.gone] {
            rows.sort_unstable_by(exact::compare);
        }
        self
    }

    /// Adds a row that only the new result has. Not for a top-N result, whose rows have positions.
    pub(crate) fn insert(&mut self, row: Row) {
        self.inserts.push(row);
    }

    /// Adds a row that only the old result has.
    pub(crate) fn delete(&mut self, key: &[usize], old: Row) {
        self.deletes.push(key_of(key, &old));
        self.gone.push(old);
    }

    /// Adds a row whose cells have changed. The result has a key, and the key of the row is the same in both.
    pub(crate) fn update(&mut self, old: Row, new: Row) {
        self.gone.push(old);
        self.updates.push(new);
    }

    /// Returns the difference between the checksums of the new and the old result.
    #[must_use]
    pub fn checksum_change(&self) -> Checksum {
        let placed = self.top_n.inserts.iter().chain(&self.top_n.updates);
        let rows = self.inserts.iter().chain(&self.updates).chain(placed.map(|placed| &placed.row));
        let mut change = Checksum::from_rows(rows);
        self.gone.iter().for_each(|row| change.remove(row));
        change
    }

    /// Returns the old and new rows with their weights.
    pub(crate) fn weights(&self) -> HashMap<ExactRow, i64> {
        let placed = self.top_n.inserts.iter().chain(&self.top_n.updates);
        let new = self.inserts.iter().chain(&self.updates).chain(placed.map(|placed| &placed.row));
        let mut weights = HashMap::new();
        for (row, weight) in self.gone.iter().map(|row| (row, -1)).chain(new.map(|row| (row, 1))) {
            *weights.entry(ExactRow(row.clone())).or_default() += weight;
        }
        weights
    }

    /// Returns the delta as JSON texts, which all subscribers can share.
    #[must_use]
    pub fn to_json(&self) -> DeltaJson {
        let deleted = self.top_n.deletes.iter().map(|at| DeltaItem::Position { at: *at });
        DeltaJson {
            deletes: json_list(&self.deletes, deleted),
            inserts: json_list(&self.inserts, positioned(&self.top_n.inserts)),
            updates: json_list(&self.updates, positioned(&self.top_n.updates)),
        }
    }

    /// Builds a delta from a Z-set: rows with their weights. `key` holds the positions of the key
    /// columns.
    pub(crate) fn from_weights(key: &[usize], weights: Weights) -> Delta {
        let mut delta = Delta::default();
        let mut gone: HashMap<ExactRow, Row> = HashMap::new();
        for (row, weight) in weights.rows() {
            if weight >= 0 {
                continue;
            }
            if key.is_empty() {
                (0..-weight).for_each(|_| delta.delete(key, row.clone()));
            } else {
                gone.insert(ExactRow(key_of(key, &row)), row);
            }
        }
        for (row, weight) in weights.rows() {
            if weight <= 0 {
                continue;
            }
            if key.is_empty() {
                (0..weight).for_each(|_| delta.insert(row.clone()));
            } else if let Some(old) = gone.remove(&ExactRow(key_of(key, &row))) {
                delta.update(old, row);
            } else {
                delta.insert(row);
            }
        }
        if !key.is_empty() {
            let left = weights.rows().filter(|(row, weight)| {
                *weight < 0 && gone.contains_key(&ExactRow(key_of(key, row)))
            });
            left.for_each(|(row, _)| delta.delete(key, row));
        }
        delta
    }

    /// Builds a delta from the old and the new result; of a top-N result, in order.
    pub(crate) fn between(top_n: bool, key: &[usize], old: &[Row], new: &[Row]) -> Delta {
        if top_n {
            return Delta::between_top_n(key, old, new);
        }
        let mut weights = Weights::default();
        old.iter().for_each(|row| weights.add(row.clone(), -1));
        new.iter().for_each(|row| weights.add(row.clone(), 1));
        Delta::from_weights(key, weights)
    }

    /// Builds a delta from the old and the new rows of a top-N result.
    pub(crate) fn between_top_n(key: &[usize], old: &[Row], new: &[Row]) -> Delta {
        let stays = common(key, old, new);
        let mut top_n = TopNDelta::default();
        let mut old_stays = vec![false; old.len()];
        let mut new_stays = vec![None; new.len()];
        for (from, to) in stays {
            old_stays[from] = true;
            new_stays[to] = Some(from);
        }
        let mut gone = Vec::new();
        for at in (0..old.len()).rev().filter(|at| !old_stays[*at]) {
            top_n.deletes.push(at);
            gone.push(old[at].clone());
        }
        for (at, row) in new.iter().enumerate() {
            let placed = PositionedRow { at, row: row.clone() };
            match new_stays[at] {
                None => top_n.inserts.push(placed),
                Some(from) if !exact::same(&old[from], row) => {
                    top_n.updates.push(placed);
                    gone.push(old[from].clone());
                }
                Some(_) => {}
            }
        }
        Delta { top_n, gone, ..Delta::default() }
    }
}

/// A Z-set that keeps the order in which its rows were added.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    at: HashMap<ExactRow, usize>,
    rows: Vec<(Row, i64)>,
}

impl Weights {
    /// Adds a row with a weight.
    pub(crate) fn add(&mut self, row: Row, weight: i64) {
        let next = self.rows.len();
        let at = *self.at.entry(ExactRow(row.clone())).or_insert(next);
        if at == next {
            self.rows.push((row, weight));
        } else {
            self.rows[at].1 += weight;
        }
    }

    /// Returns the number of distinct rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the rows with their weights.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (Row, i64)> {
        self.rows.iter().map(|(row, weight)| (row.clone(), *weight))
    }
}

/// Returns the key cells of a row; the whole row if there is no key.
pub(crate) fn key_of(key: &[usize], row: &Row) -> Row {
    if key.is_empty() { row.clone() } else { key.iter().map(|at| row[*at].clone()).collect() }
}

/// Returns the longest run of rows that are in both lists in the same order, as positions in
/// either: the rows that need not move (longest increasing subsequence, by patience sorting).
fn common(key: &[usize], old: &[Row], new: &[Row]) -> Vec<(usize, usize)> {
    let mut places: HashMap<ExactRow, Vec<usize>> = HashMap::new();
    for (at, row) in old.iter().enumerate().rev() {
        places.entry(ExactRow(key_of(key, row))).or_default().push(at);
    }
    let mut pairs = Vec::new();
    for (to, row) in new.iter().enumerate() {
        if let Some(from) = places.get_mut(&ExactRow(key_of(key, row))).and_then(Vec::pop) {
            pairs.push((from, to));
        }
    }
    let mut piles: Vec<usize> = Vec::new();
    let mut before = vec![None; pairs.len()];
    for at in 0..pairs.len() {
        let pile = piles.partition_point(|top| pairs[*top].0 < pairs[at].0);
        before[at] = pile.checked_sub(1).map(|under| piles[under]);
        if pile == piles.len() {
            piles.push(at);
        } else {
            piles[pile] = at;
        }
    }
    let mut run = Vec::new();
    let mut next = piles.last().copied();
    while let Some(at) = next {
        run.push(pairs[at]);
        next = before[at];
    }
    run
}

/// The rows of a delta as JSON texts. A subscriber's frame is composed around them.
#[derive(Clone, Debug, Serialize)]
pub struct DeltaJson {
    /// Keys of the removed rows, whole rows, or positions.
    pub deletes: Box<RawValue>,
    /// Added rows.
    pub inserts: Box<RawValue>,
    /// New versions of kept rows.
    pub updates: Box<RawValue>,
}

impl DeltaJson {
    /// Returns the length of the texts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.deletes.get().len() + self.inserts.get().len() + self.updates.get().len()
    }
}

/// An entry of a list of a delta.
#[derive(Serialize)]
#[serde(untagged)]
enum DeltaItem<'a> {
    Row(&'a [Value]),
    Position { at: usize },
    PositionedRow { at: usize, row: &'a [Value] },
}

fn positioned(rows: &[PositionedRow]) -> impl Iterator<Item = DeltaItem<'_>> {
    rows.iter().map(|placed| DeltaItem::PositionedRow { at: placed.at, row: &placed.row })
}

fn json_list<'a>(rows: &'a [Row], placed: impl Iterator<Item = DeltaItem<'a>>) -> Box<RawValue> {
    let items: Vec<DeltaItem<'_>> =
        rows.iter().map(|row| DeltaItem::Row(row)).chain(placed).collect();
    to_raw_value(&items).expect("writing JSON into memory cannot fail")
}

/// Returns an integer cell that this crate wrote.
pub(crate) fn integer(value: &Value) -> i64 {
    match value {
        Value::Integer(n) => *n,
        _ => unreachable!("numbers and weights of images are integers"),
    }
}
