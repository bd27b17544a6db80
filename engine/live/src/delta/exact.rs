//! Identity of rows by exact type and bits: 1 and 1.0 are two values, as in a result.

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

/// Whether two rows are identical in every cell.
pub(crate) fn same(left: &[Value], right: &[Value]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same_value(left, right))
}

fn same_value(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Real(left), Value::Real(right)) => left.to_bits() == right.to_bits(),
        (left, right) => left == right,
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
