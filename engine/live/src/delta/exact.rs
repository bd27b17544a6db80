//! Identity of rows by exact type and bits: 1 and 1.0 are two values, as in a result.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use abide_schema::{Row, Value};

/// A row as a map key.
#[derive(Clone, Debug)]
pub(crate) struct ExactRow(pub(crate) Row);

impl PartialEq for ExactRow {
    fn eq(&self, other: &ExactRow) -> bool {
        same(&self.0, &other.0)
    }
}

impl Eq for ExactRow {}

impl Hash for ExactRow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for value in self.0.iter() {
            hash_value(value, state);
        }
    }
}

/// `true` if two rows are identical in every cell.
pub(crate) fn same(left: &[Value], right: &[Value]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same_value(left, right))
}

fn same_value(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Real(left), Value::Real(right)) => left.to_bits() == right.to_bits(),
        (left, right) => left == right,
    }
}

/// Returns a total order of rows, of no meaning.
pub(crate) fn compare(left: &Row, right: &Row) -> Ordering {
    left.iter()
        .zip(right.iter())
        .map(|(left, right)| compare_values(left, right))
        .find(|order| order.is_ne())
        .unwrap_or_else(|| left.len().cmp(&right.len()))
}

fn compare_values(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) => left.cmp(right),
        (Value::Real(left), Value::Real(right)) => left.total_cmp(right),
        (Value::Text(left), Value::Text(right)) => left.cmp(right),
        (Value::Blob(left), Value::Blob(right)) => left.cmp(right),
        (left, right) => kind(left).cmp(&kind(right)),
    }
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Integer(_) => 1,
        Value::Real(_) => 2,
        Value::Text(_) => 3,
        Value::Blob(_) => 4,
    }
}

/// Feeds one cell to a hash, consistently with [`same`].
pub(crate) fn hash_value<H: Hasher>(value: &Value, state: &mut H) {
    std::mem::discriminant(value).hash(state);
    match value {
        Value::Null => {}
        Value::Integer(n) => n.hash(state),
        Value::Real(x) => x.to_bits().hash(state),
        Value::Text(text) => text.hash(state),
        Value::Blob(bytes) => bytes.hash(state),
    }
}
