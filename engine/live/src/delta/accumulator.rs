//! The accumulators of a group: what its aggregates need to follow added and removed rows.

use abide_schema::{Row, Value};

use crate::delta::{exact, integer};
use crate::plan::fragment::Aggregate;

/// Bytes of an entry in addition to its cells: the map's slot, the row's header, the counters.
const ENTRY_BYTES: usize = 128;

/// The accumulators of a group, filled by a reader.
#[derive(Debug)]
pub struct BackfilledGroup(pub(crate) Group);

/// The cached state of a group.
#[derive(Debug)]
pub(crate) enum GroupState {
    /// Its accumulators.
    Group(Group),
    /// They are too expensive to fill here; a reader is about to fill them.
    AwaitingBackfill,
}

/// The accumulators of one group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The number of rows.
    pub(crate) rows: i64,
    pub(crate) sums: Vec<Accumulator>,
    /// The output row; `None` if HAVING does not hold or there are no rows.
    pub(crate) shown: Option<Row>,
}

/// The accumulator of one aggregate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accumulator {
    /// The number of non-NULL arguments.
    count: i64,
    /// The sum of the integer arguments.
    sum: i128,
    /// A bound on the sum of their magnitudes, in units of 2³². While it fits, no partial sum
    /// overflows, in any order.
    reach: i128,
    /// The number of arguments that are neither integers nor NULL.
    odd: i64,
    pub(crate) extremum: Option<Value>,
    /// Whether the extremum was removed.
    pub(crate) lost: bool,
}

impl GroupState {
    /// Returns its approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            GroupState::Group(group) => group.bytes(),
            GroupState::AwaitingBackfill => 0,
        }
    }
}

impl Group {
    /// Returns its approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let extrema = self.sums.iter().filter_map(|sum| sum.extremum.as_ref());
        self.sums.len() * size_of::<Accumulator>()
            + extrema.map(Value::size).sum::<usize>()
            + self.shown.as_ref().map_or(0, |row| row_bytes(row))
    }
}

impl Accumulator {
    /// Reads the cells that a statement shows for an aggregate.
    pub(crate) fn read<'v>(
        aggregate: Aggregate,
        next: &mut dyn FnMut() -> &'v Value,
    ) -> Accumulator {
        let mut sum = Accumulator::default();
        match aggregate {
            Aggregate::Rows | Aggregate::Other => {}
            Aggregate::Count => sum.count = integer(next()),
            Aggregate::Sum | Aggregate::Total | Aggregate::Average => {
                sum.count = integer(next());
                sum.sum = i128::from(integer(next())) << 32;
                sum.sum += i128::from(integer(next()));
                sum.reach = i128::from(integer(next()));
                sum.odd = integer(next());
            }
            Aggregate::Min | Aggregate::Max => {
                sum.extremum = Some(next().clone()).filter(|value| *value != Value::Null);
            }
        }
        sum
    }

    pub(crate) fn add(&mut self, aggregate: Aggregate, value: &Value, weight: i64) {
        if *value == Value::Null {
            return;
        }
        self.count += weight;
        match aggregate {
            Aggregate::Min | Aggregate::Max => self.compare(aggregate, value, weight),
            Aggregate::Sum | Aggregate::Total | Aggregate::Average => match value {
                Value::Integer(n) => {
                    self.sum += i128::from(*n) * i128::from(weight);
                    self.reach += reach(*n) * i128::from(weight);
                }
                _ => self.odd += weight,
            },
            Aggregate::Rows | Aggregate::Count | Aggregate::Other => {}
        }
    }

    /// Compares values of one column, and so of one type.
    fn compare(&mut self, aggregate: Aggregate, value: &Value, weight: i64) {
        let Some(extremum) = &self.extremum else {
            // NULL so far, or lost: only added rows can set it.
            self.lost |= weight < 0;
            self.extremum = Some(value.clone()).filter(|_| weight > 0);
            return;
        };
        if weight < 0 {
            self.lost |= exact::same(std::slice::from_ref(extremum), std::slice::from_ref(value));
            return;
        }
        let order = match (value, extremum) {
            (Value::Integer(value), Value::Integer(known)) => value.cmp(known),
            (Value::Real(value), Value::Real(known)) => value.total_cmp(known),
            (Value::Text(value), Value::Text(known)) => value.as_bytes().cmp(known.as_bytes()),
            (Value::Blob(value), Value::Blob(known)) => value.cmp(known),
            _ => {
                self.lost = true;
                return;
            }
        };
        let better = if aggregate == Aggregate::Min { order.is_lt() } else { order.is_gt() };
        if better {
            self.extremum = Some(value.clone());
        }
    }

    /// Returns the sum of integers that cannot have overflowed, in whatever order SQLite adds them.
    fn exact_sum(&self) -> Option<i64> {
        let is_certain = self.odd == 0 && self.reach < 1 << 31;
        i64::try_from(self.sum).ok().filter(|_| is_certain)
    }

    /// Returns the value that SQLite would compute; `None` if not certain.
    pub(crate) fn value(&self, aggregate: Aggregate, rows: i64) -> Option<Value> {
        Some(match aggregate {
            Aggregate::Rows => Value::Integer(rows),
            Aggregate::Count => Value::Integer(self.count),
            Aggregate::Sum if self.count == 0 => Value::Null,
            Aggregate::Sum => Value::Integer(self.exact_sum()?),
            Aggregate::Total => Value::Real(real(self.exact_sum()?)),
            Aggregate::Average if self.count == 0 => Value::Null,
            Aggregate::Average => Value::Real(real(self.exact_sum()?) / real(self.count)),
            Aggregate::Min | Aggregate::Max => self.extremum.clone().unwrap_or(Value::Null),
            Aggregate::Other => return None,
        })
    }
}

/// Returns the nearest double, as SQLite does before it divides.
#[expect(clippy::cast_precision_loss, reason = "SQLite rounds here too")]
fn real(n: i64) -> f64 {
    n as f64
}

/// Returns the magnitude of an integer in units of 2³², rounded up.
fn reach(n: i64) -> i128 {
    i128::from((n >> 32).abs() + 1)
}

/// Returns the approximate size of a cached row in bytes.
pub(crate) fn row_bytes(row: &[Value]) -> usize {
    ENTRY_BYTES + row.iter().map(|cell| size_of::<Value>() + cell.size()).sum::<usize>()
}
