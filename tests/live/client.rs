//! What a client does with a snapshot and deltas, and nothing more than the protocol tells it.

use std::cmp::Ordering;

use abide_live::{Binding, Delta, Window};
use abide_schema::wire::Shape;
use abide_schema::{Checksum, Row, Value};

#[derive(Clone)]
pub(crate) struct Client {
    shape: Shape,
    key: Vec<usize>,
    window: bool,
    pub(crate) rows: Vec<Row>,
    /// Of the rows, kept up by what each delta says of it.
    checksum: Checksum,
}

impl Client {
    pub(crate) fn new(binding: &Binding, rows: Vec<Row>) -> Client {
        let (shape, window) = (binding.shape(), binding.is_window());
        let position = |name: &String| {
            shape.columns.iter().position(|column| column.name == *name).expect("a key is a column")
        };
        let key = shape.key.iter().map(position).collect();
        let checksum = Checksum::of(&rows);
        Client { shape: shape.clone(), key, window, rows, checksum }
    }

    /// Works a delta in. A delete or update of what is not there, or an insert of what is, is an error;
    /// so is a change of the checksum that is not that of the rows.
    pub(crate) fn apply(&mut self, delta: &Delta) {
        if self.window {
            self.apply_window(delta);
        } else {
            self.apply_rows(delta);
        }
        self.checksum = self.checksum.plus(delta.checksum_change());
        assert_eq!(self.checksum, Checksum::of(&self.rows), "the checksum is that of the rows");
    }

    fn apply_rows(&mut self, delta: &Delta) {
        assert_eq!(delta.window, Window::default(), "positions where there is no window");
        for gone in &delta.deletes {
            let at = self.find(gone).unwrap_or_else(|| panic!("deleted {gone:?} is not there"));
            self.rows.remove(at);
        }
        for new in &delta.inserts {
            let taken = !self.key.is_empty() && self.find(&self.key_of(new)).is_some();
            assert!(!taken, "inserted {new:?} is there already");
            self.place(new.clone());
        }
        for new in &delta.updates {
            assert!(!self.key.is_empty(), "an update of a result without a key");
            let at = self
                .find(&self.key_of(new))
                .unwrap_or_else(|| panic!("updated {new:?} is not there"));
            assert!(!same(&self.rows[at], new), "an update that changes nothing");
            self.rows.remove(at);
            self.place(new.clone());
        }
    }

    fn apply_window(&mut self, delta: &Delta) {
        assert!(delta.deletes.is_empty() && delta.inserts.is_empty() && delta.updates.is_empty());
        assert!(delta.window.deletes.is_sorted_by(|a, b| a > b), "deletes go from the end");
        for at in &delta.window.deletes {
            self.rows.remove(*at);
        }
        assert!(delta.window.inserts.is_sorted_by(|a, b| a.at < b.at), "inserts go from the start");
        for placed in &delta.window.inserts {
            self.rows.insert(placed.at, placed.row.clone());
        }
        for placed in &delta.window.updates {
            assert!(!same(&self.rows[placed.at], &placed.row), "an update that changes nothing");
            self.rows[placed.at] = placed.row.clone();
        }
    }

    /// Whether it holds exactly these rows: in their order where the shape orders them and has a key,
    /// else as a multiset.
    pub(crate) fn holds(&self, rows: &[Row]) -> bool {
        let sorted = |rows: &[Row]| {
            let mut texts: Vec<String> = rows.iter().map(|row| exact(row)).collect();
            if !self.window && (self.shape.order.is_empty() || self.key.is_empty()) {
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

    fn compare(&self, left: &[Value], right: &[Value]) -> Ordering {
        let terms = self.shape.order.iter().map(|term| {
            let (left, right) = (&left[term.index], &right[term.index]);
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
        let keys = self.key.iter().map(|at| value_order(&left[*at], &right[*at], "BINARY"));
        terms.chain(keys).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

pub(crate) fn same(left: &[Value], right: &[Value]) -> bool {
    exact(left) == exact(right)
}

/// A row as text that tells types apart.
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
