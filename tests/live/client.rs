//! A client that applies a snapshot and deltas by the protocol alone.

use std::cmp::Ordering;

use abide_live::{Binding, Delta, TopNDelta};
use abide_schema::wire::Shape;
use abide_schema::{Checksum, Row, Value};

#[derive(Clone)]
pub(crate) struct Client {
    shape: Shape,
    key: Vec<usize>,
    top_n: bool,
    pub(crate) rows: Vec<Row>,
    /// The checksum of the rows, updated from each delta.
    checksum: Checksum,
}

impl Client {
    pub(crate) fn new(binding: &Binding, rows: Vec<Row>) -> Client {
        Client::from_shape(binding.shape(), binding.is_top_n(), rows)
    }

    /// A client with the rows of a snapshot.
    pub(crate) fn from_shape(shape: &Shape, top_n: bool, rows: Vec<Row>) -> Client {
        let key = shape
            .key
            .iter()
            .map(|name| {
                shape
                    .columns
                    .iter()
                    .position(|column| column.name == *name)
                    .expect("a key is a column")
            })
            .collect();
        let checksum = Checksum::from_rows(&rows);
        Client { shape: shape.clone(), key, top_n, rows, checksum }
    }

    /// Applies a delta.
    ///
    /// # Errors
    /// An inconsistent delta: a delete or update of an absent row, an insert of a present
    /// one, or a checksum change that does not match the rows.
    pub(crate) fn apply(&mut self, delta: &Delta) -> Result<(), String> {
        if self.top_n {
            self.apply_top_n(delta)?;
        } else {
            self.apply_rows(delta)?;
        }
        self.checksum = self.checksum.plus(delta.checksum_change());
        let right = self.checksum == Checksum::from_rows(&self.rows);
        require(right, || "the checksum does not match the rows".into())
    }

    fn apply_rows(&mut self, delta: &Delta) -> Result<(), String> {
        require(delta.top_n == TopNDelta::default(), || {
            "positions in a result that is not top-N".into()
        })?;
        for gone in &delta.deletes {
            let at = self.find(gone).ok_or_else(|| format!("deleted row {gone:?} is absent"))?;
            self.rows.remove(at);
        }
        for new in &delta.inserts {
            let taken = !self.key.is_empty() && self.find(&self.key_of(new)).is_some();
            require(!taken, || format!("inserted row {new:?} exists already"))?;
            self.place(new.clone());
        }
        for new in &delta.updates {
            require(!self.key.is_empty(), || "an update of a result without a key".into())?;
            let at = self
                .find(&self.key_of(new))
                .ok_or_else(|| format!("updated row {new:?} is absent"))?;
            require(!same(&self.rows[at], new), || {
                format!("an update to {new:?} without a change")
            })?;
            self.rows.remove(at);
            self.place(new.clone());
        }
        Ok(())
    }

    fn apply_top_n(&mut self, delta: &Delta) -> Result<(), String> {
        let by_key = delta.deletes.len() + delta.inserts.len() + delta.updates.len();
        require(by_key == 0, || "rows without a position in a top-N result".into())?;
        let TopNDelta { deletes, inserts, updates } = &delta.top_n;
        require(deletes.is_sorted_by(|a, b| a > b), || "deletes not in descending order".into())?;
        for at in deletes {
            require(*at < self.rows.len(), || format!("nothing to delete at {at}"))?;
            self.rows.remove(*at);
        }
        let rising = inserts.is_sorted_by(|a, b| a.at < b.at);
        require(rising, || "inserts not in ascending order".into())?;
        for placed in inserts {
            require(placed.at <= self.rows.len(), || format!("no place {}", placed.at))?;
            self.rows.insert(placed.at, placed.row.clone());
        }
        for placed in updates {
            let held = self
                .rows
                .get_mut(placed.at)
                .ok_or_else(|| format!("nothing to update at {}", placed.at))?;
            require(!same(held, &placed.row), || "an update that changes nothing".into())?;
            *held = placed.row.clone();
        }
        Ok(())
    }

    /// The visible columns of its rows.
    pub(crate) fn visible(&self) -> Vec<Row> {
        let width = self.shape.columns.iter().filter(|column| !column.hidden).count();
        self.rows.iter().map(|row| Row::from(&row[..width])).collect()
    }

    /// Whether it holds exactly these rows: in order if the shape has an order and a key, otherwise
    /// as a multiset.
    pub(crate) fn holds(&self, rows: &[Row]) -> bool {
        let sorted = |rows: &[Row]| {
            let mut texts: Vec<String> = rows.iter().map(|row| exact(row)).collect();
            if !self.top_n && (self.shape.order.is_empty() || self.key.is_empty()) {
                texts.sort();
            }
            texts
        };
        sorted(&self.rows) == sorted(rows)
    }

    fn place(&mut self, row: Row) {
        let at = self.rows.partition_point(|other| self.compare(other, &row) != Ordering::Greater);
        self.rows.insert(at, row);
    }

    fn key_of(&self, row: &[Value]) -> Row {
        if self.key.is_empty() {
            return row.into();
        }
        self.key.iter().map(|at| row[*at].clone()).collect()
    }

    fn find(&self, key: &[Value]) -> Option<usize> {
        self.rows.iter().position(|row| same(&self.key_of(row), key))
    }

    /// Whether two rows are equal in the order of the result.
    pub(crate) fn is_tie(&self, left: &[Value], right: &[Value]) -> bool {
        self.by_order(left, right).is_eq()
    }

    fn compare(&self, left: &[Value], right: &[Value]) -> Ordering {
        let by_key = self.key.iter().map(|at| value_order(&left[*at], &right[*at], "BINARY"));
        let by_key = by_key.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal);
        self.by_order(left, right).then(by_key)
    }

    fn by_order(&self, left: &[Value], right: &[Value]) -> Ordering {
        let mut terms = self.shape.order.iter().map(|term| {
            let left = &left[term.index];
            let right = &right[term.index];
            match (left, right) {
                (Value::Null, Value::Null) => Ordering::Equal,
                (Value::Null, _) if term.nulls == "first" => Ordering::Less,
                (Value::Null, _) => Ordering::Greater,
                (_, Value::Null) if term.nulls == "first" => Ordering::Greater,
                (_, Value::Null) => Ordering::Less,
                _ if term.desc => value_order(right, left, &term.collation),
                _ => value_order(left, right, &term.collation),
            }
        });
        terms.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

fn require(holds: bool, otherwise: impl Fn() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// A delta as a set: cached state may list its rows in another order.
pub(crate) fn as_set(delta: Delta) -> (Vec<String>, TopNDelta, Checksum) {
    let mut rows: Vec<String> = delta
        .deletes
        .iter()
        .chain(&delta.inserts)
        .chain(&delta.updates)
        .map(|row| format!("{row:?}"))
        .collect();
    let (deletes, inserts) = (delta.deletes.len(), delta.deletes.len() + delta.inserts.len());
    rows[..deletes].sort_unstable();
    rows[deletes..inserts].sort_unstable();
    rows[inserts..].sort_unstable();
    let checksum = delta.checksum_change();
    (rows, delta.top_n, checksum)
}

pub(crate) fn same(left: &[Value], right: &[Value]) -> bool {
    exact(left) == exact(right)
}

/// A row as text with exact types.
pub(crate) fn exact(row: &[Value]) -> String {
    format!("{row:?}")
}

/// SQLite's order of values: numbers, texts, blobs.
fn value_order(left: &Value, right: &Value, collation: &str) -> Ordering {
    let class = |value: &Value| match value {
        Value::Null => 0,
        Value::Integer(_) | Value::Real(_) => 1,
        Value::Text(_) => 2,
        Value::Blob(_) => 3,
    };
    let folded = |text: &str| match collation {
        "NOCASE" => {
            let end = text.find('\0').unwrap_or(text.len());
            text[..end].to_ascii_lowercase()
        }
        "RTRIM" => text.trim_end_matches(' ').to_owned(),
        _ => text.to_owned(),
    };
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) => left.cmp(right),
        (Value::Real(left), Value::Real(right)) => left.total_cmp(right),
        (Value::Integer(left), Value::Real(right)) => integer_real(*left, *right),
        (Value::Real(left), Value::Integer(right)) => integer_real(*right, *left).reverse(),
        (Value::Text(left), Value::Text(right)) => {
            let order = folded(left).cmp(&folded(right));
            if collation == "NOCASE" { order.then(left.len().cmp(&right.len())) } else { order }
        }
        (Value::Blob(left), Value::Blob(right)) => left.cmp(right),
        _ => class(left).cmp(&class(right)),
    }
}

fn integer_real(left: i64, right: f64) -> Ordering {
    if right >= 9.3e18 {
        return Ordering::Less;
    }
    if right <= -9.3e18 {
        return Ordering::Greater;
    }
    let whole = i128::from(left).cmp(&(right.trunc() as i128));
    whole.then(0.0.partial_cmp(&right.fract()).expect("no NaN is stored"))
}
