//! Which changed rows can affect a query: the equalities that its condition requires, as keys of a
//! hash probe.
//!
//! A probe is a filter with false positives, which SQLite rejects later. It must not have false
//! negatives. If SQLite's comparison of two values is not certain, there is no key, and the binding
//! is checked at every change of its table.

pub(crate) mod binding_index;
pub(crate) mod holders;
pub(crate) mod interval;
pub(crate) mod lookup;
pub(crate) mod table_routes;

use std::hash::{Hash, Hasher};

use abide_schema::Value;
use abide_schema::table::Kind;

use crate::plan::collation::{Collation, canonical};
use crate::plan::conjunct::{Comparison, Equality};
use crate::route::interval::{High, Interval, Point};

impl Equality {
    /// Returns the cells that satisfy it; `None` if not certain.
    pub(crate) fn cells(&self, kind: Kind, params: &[Value]) -> Option<Vec<Value>> {
        let mut cells = Vec::new();
        for slot in &self.values {
            match probe(kind, self.collation, self.nulls_match, &params[*slot]) {
                KeyProbe::Key(cell) => cells.push(cell),
                KeyProbe::Never => {}
                KeyProbe::Unsure => return None,
            }
        }
        Some(cells)
    }
}

/// A column of a key: its position and collation.
pub(crate) type KeyColumn = (usize, Collation);

/// A parameter as part of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyProbe {
    /// Equals the cells with this value after [`canonical`].
    Key(Value),
    /// Equals no cell.
    Never,
    /// Not certain.
    Unsure,
}

/// Returns the interval of a column given by the bounds of one alternative. Bounds that are not
/// certain leave that side open; `None` if no bound is certain. `Some(None)` is an empty interval.
pub(crate) fn interval_of(
    kind: Kind,
    bounds: &[&Equality],
    params: &[Value],
) -> Option<Option<Interval>> {
    let mut interval = Interval { low: None, high: High::Endless };
    let mut certain = false;
    for bound in bounds {
        let value = &params[bound.values[0]];
        if *value == Value::Null {
            return Some(None);
        }
        let Some(points) = bound_points(kind, bound, value) else { continue };
        certain = true;
        interval.low = interval.low.max(points.low);
        interval.high = interval.high.min(points.high.map_or(High::Endless, High::At));
    }
    certain.then_some(Some(interval))
}

/// The points between which the cells lie that meet a bound.
struct BoundPoints {
    low: Option<Point>,
    high: Option<Point>,
}

/// Returns the points of a bound; `None` if they are not certain.
fn bound_points(kind: Kind, bound: &Equality, value: &Value) -> Option<BoundPoints> {
    let wildcards: &[char] = match bound.test {
        Comparison::Among | Comparison::AtLeast => {
            let low = probe_point(kind, bound.collation, value)?;
            return Some(BoundPoints { low: Some(low), high: None });
        }
        Comparison::AtMost => {
            let high = probe_point(kind, bound.collation, value)?;
            return Some(BoundPoints { low: None, high: Some(high) });
        }
        Comparison::Like => &['%', '_', '\0'],
        Comparison::Glob => &['*', '?', '[', '\0'],
    };
    let (Kind::Text, Value::Text(pattern)) = (kind, value) else { return None };
    let prefix = pattern.split(wildcards).next().filter(|prefix| !prefix.is_empty())?;
    let prefix = Point::from_value(canonical(bound.collation, &Value::Text(prefix.to_owned())))?;
    let Point::Text(bytes) = &prefix else { return None };
    // No UTF-8 contains this byte, so every text with the prefix is less.
    let beyond = Point::Text([bytes, &[0xff][..]].concat().into());
    Some(BoundPoints { low: Some(prefix), high: Some(beyond) })
}

fn probe_point(kind: Kind, collation: Collation, value: &Value) -> Option<Point> {
    match probe(kind, collation, false, value) {
        KeyProbe::Key(value) => Point::from_value(value),
        KeyProbe::Never | KeyProbe::Unsure => None,
    }
}

/// Returns the value that equals a parameter in a column of this kind, by SQLite's affinity rules:
/// a text compared with a numeric column becomes a number if it looks like one, a number compared
/// with a text column becomes text, a blob is unchanged.
pub(crate) fn probe(
    kind: Kind,
    collation: Collation,
    nulls_match: bool,
    value: &Value,
) -> KeyProbe {
    let canonical_key = |value: &Value| KeyProbe::Key(canonical(collation, value));
    match (kind, value) {
        (_, Value::Null) if nulls_match => KeyProbe::Key(Value::Null),
        (_, Value::Null) => KeyProbe::Never,
        (Kind::Integer, Value::Integer(_) | Value::Real(_)) | (Kind::Real, Value::Real(_)) => {
            canonical_key(value)
        }
        // An index seek on a REAL column rounds the integer first; a comparison does not.
        (Kind::Real, Value::Integer(n)) if n.unsigned_abs() <= 1 << 53 => canonical_key(value),
        (Kind::Real, Value::Integer(_)) => KeyProbe::Unsure,
        (Kind::Integer | Kind::Real, Value::Text(text)) => match plain_integer(text) {
            Some(n) => canonical_key(&Value::Integer(n)),
            None if text.starts_with(|c: char| c.is_ascii_alphabetic()) => KeyProbe::Never,
            None => KeyProbe::Unsure,
        },
        (Kind::Text, Value::Text(_)) | (Kind::Blob, Value::Blob(_)) => canonical_key(value),
        (Kind::Text, Value::Integer(n)) => canonical_key(&Value::Text(n.to_string())),
        (Kind::Text, Value::Real(_)) => KeyProbe::Unsure,
        (Kind::Integer | Kind::Real | Kind::Text, Value::Blob(_)) => KeyProbe::Never,
        (Kind::Blob, _) => KeyProbe::Never,
    }
}

/// Returns the number that a text denotes, if it is unambiguous.
fn plain_integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain =
        !digits.is_empty() && digits.len() <= 15 && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// Returns the hash of a key, cell by cell.
pub(crate) fn hash_key<'v, H: Hasher>(mut state: H, cells: impl Iterator<Item = &'v Value>) -> u64 {
    for cell in cells {
        crate::delta::exact::hash_value(cell, &mut state);
        0xff_u8.hash(&mut state);
    }
    state.finish()
}
