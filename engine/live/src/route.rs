//! Which changed rows can affect a query: the equalities that its condition requires, as keys of a
//! hash probe.
//!
//! A probe is a filter with false positives, which SQLite rejects later. It must not have false
//! negatives. If SQLite's comparison of two values is not certain, there is no key, and the binding
//! is checked at every change of its table.

pub(crate) mod binding_index;
pub(crate) mod interval;
pub(crate) mod lookup;
pub(crate) mod router;

use std::hash::{Hash, Hasher};

use abide_schema::Value;
use abide_schema::table::Kind;

use crate::plan::fragment::Collation;
use crate::plan::lower::EqualColumns;
use crate::route::interval::{High, Interval, Point};

/// The maximum number of alternatives with keys.
const ALTERNATIVES: usize = 32;
/// The maximum number of keys of one alternative. Beyond it, fewer columns are used.
const KEYS: usize = 256;

/// The comparison of a cell with parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Equal to one of them.
    Among,
    /// Greater or equal.
    AtLeast,
    /// Less or equal.
    AtMost,
    /// Matches by LIKE.
    Like,
    /// Matches by GLOB.
    Glob,
}

/// A comparison of a column with parameters, usually `column = ?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Equality {
    pub(crate) test: Comparison,
    pub(crate) source: usize,
    pub(crate) column: usize,
    pub(crate) collation: Collation,
    /// `IS` rather than `=`: NULL equals NULL.
    pub(crate) nulls_match: bool,
    /// Slots of the parameters.
    pub(crate) values: Vec<usize>,
}

impl Equality {
    /// The cells that satisfy it; `None` if not certain.
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

/// What a condition requires: at least one alternative, and every equality of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Nothing that a key can express.
    Any,
    /// At least one of these.
    Alternatives(Vec<Vec<Equality>>),
}

impl Route {
    /// Whether it requires columns to be among given values.
    pub(crate) fn is_of_keys(&self) -> bool {
        let Route::Alternatives(alternatives) = self else { return false };
        alternatives.iter().flatten().all(|equality| equality.test == Comparison::Among)
    }

    /// Both hold.
    pub(crate) fn and(self, other: Route) -> Route {
        match (self, other) {
            (Route::Any, route) | (route, Route::Any) => route,
            (Route::Alternatives(left), Route::Alternatives(right)) => {
                if left.len() * right.len() > ALTERNATIVES {
                    // Each side is necessary by itself; the one with fewer keys is cheaper.
                    let fewer = if left.len() <= right.len() { left } else { right };
                    return Route::Alternatives(fewer);
                }
                let pairs =
                    left.iter().flat_map(|left| right.iter().map(move |right| (left, right)));
                Route::Alternatives(
                    pairs.map(|(left, right)| [&left[..], right].concat()).collect(),
                )
            }
        }
    }

    /// At least one of them holds.
    pub(crate) fn or(self, other: Route) -> Route {
        match (self, other) {
            (Route::Alternatives(mut left), Route::Alternatives(right))
                if left.len() + right.len() <= ALTERNATIVES =>
            {
                left.extend(right);
                Route::Alternatives(left)
            }
            _ => Route::Any,
        }
    }

    /// Keeps the usable equalities. An alternative without any requires nothing.
    pub(crate) fn only(&self, usable: &dyn Fn(&Equality) -> bool) -> Route {
        let Route::Alternatives(alternatives) = self else { return Route::Any };
        let usable = alternatives.iter().map(|equalities| {
            equalities.iter().filter(|equality| usable(equality)).cloned().collect::<Vec<_>>()
        });
        let usable: Vec<Vec<Equality>> = usable.collect();
        if usable.iter().any(Vec::is_empty) { Route::Any } else { Route::Alternatives(usable) }
    }

    /// Copies every `=` to the columns that are equal to its own.
    pub(crate) fn carried(mut self, equal: &[EqualColumns]) -> Route {
        let Route::Alternatives(alternatives) = &mut self else { return self };
        for equalities in alternatives {
            let mut at = 0;
            while let Some(known) = equalities.get(at).cloned() {
                at += 1;
                if known.nulls_match
                    || known.test != Comparison::Among
                    || known.collation != Collation::Binary
                {
                    continue;
                }
                let here = (known.source, known.column);
                for (left, right) in equal {
                    let other = if *left == here { *right } else { *left };
                    let has = |equality: &Equality| (equality.source, equality.column) == other;
                    if (*left == here || *right == here) && !equalities.iter().any(has) {
                        equalities.push(Equality {
                            source: other.0,
                            column: other.1,
                            ..known.clone()
                        });
                    }
                }
            }
        }
        self
    }

    /// Drops the requirements that depend on one of these parameters.
    pub(crate) fn forget(&mut self, lost: &dyn Fn(usize) -> bool) {
        let Route::Alternatives(alternatives) = self else { return };
        let mut slots = alternatives.iter().flatten().flat_map(|equality| &equality.values);
        if slots.any(|slot| lost(*slot)) {
            *self = Route::Any;
        }
    }

    /// Renumbers the parameters.
    pub(crate) fn renumber(&mut self, new: &dyn Fn(usize) -> usize) {
        let Route::Alternatives(alternatives) = self else { return };
        for slot in alternatives.iter_mut().flatten().flat_map(|equality| &mut equality.values) {
            *slot = new(*slot);
        }
    }

    /// The requirements on one source: for each alternative the equalities to use as a key, in the
    /// order of their columns, or the bounds of one column's range. `None` if some alternative
    /// requires nothing of it.
    pub(crate) fn of_source(&self, source: usize) -> Option<Vec<Vec<&Equality>>> {
        let Route::Alternatives(alternatives) = self else { return None };
        let keyed = alternatives.iter().map(|equalities| {
            let here = || equalities.iter().filter(|equality| equality.source == source);
            let mut of_source: Vec<&Equality> =
                here().filter(|equality| equality.test == Comparison::Among).collect();
            if of_source.is_empty() {
                // Without a key, use the range of the first bounded column.
                let column = here().next().map(|range| (range.column, range.collation));
                return here()
                    .filter(|range| column == Some((range.column, range.collation)))
                    .collect();
            }
            of_source.sort_by_key(|equality| {
                (equality.column, equality.collation, equality.values.len())
            });
            of_source.dedup_by_key(|equality| (equality.column, equality.collation));
            of_source.sort_by_key(|equality| equality.values.len());
            let mut keys = 1;
            of_source.retain(|equality| {
                let fits = keys == 1 || keys * equality.values.len() <= KEYS;
                keys *= if fits { equality.values.len() } else { 1 };
                fits
            });
            of_source.sort_by_key(|equality| (equality.column, equality.collation));
            of_source
        });
        let keyed: Vec<Vec<&Equality>> = keyed.collect();
        (!keyed.iter().any(Vec::is_empty)).then_some(keyed)
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

/// The interval of a column given by the bounds of one alternative. Bounds that are not certain
/// leave that side open; `None` if no bound is certain. `Some(None)` is an empty interval.
pub(crate) fn interval(
    kind: Kind,
    bounds: &[&Equality],
    params: &[Value],
) -> Option<Option<Interval>> {
    let (mut interval, mut certain) = (Interval { low: None, high: High::Endless }, false);
    for bound in bounds {
        let value = &params[bound.values[0]];
        if *value == Value::Null {
            return Some(None);
        }
        let Some((low, high)) = bound_points(kind, bound, value) else { continue };
        certain = true;
        interval.low = interval.low.max(low);
        interval.high = interval.high.min(high.map_or(High::Endless, High::At));
    }
    certain.then_some(Some(interval))
}

fn bound_points(
    kind: Kind,
    bound: &Equality,
    value: &Value,
) -> Option<(Option<Point>, Option<Point>)> {
    let point = || match probe(kind, bound.collation, false, value) {
        KeyProbe::Key(value) => Point::of(value),
        KeyProbe::Never | KeyProbe::Unsure => None,
    };
    let wildcards: &[char] = match bound.test {
        Comparison::Among | Comparison::AtLeast => return point().map(|point| (Some(point), None)),
        Comparison::AtMost => return point().map(|point| (None, Some(point))),
        Comparison::Like => &['%', '_', '\0'],
        Comparison::Glob => &['*', '?', '[', '\0'],
    };
    let (Kind::Text, Value::Text(pattern)) = (kind, value) else { return None };
    let prefix = pattern.split(wildcards).next().filter(|prefix| !prefix.is_empty())?;
    let prefix = Point::of(canonical(bound.collation, &Value::Text(prefix.to_owned())))?;
    let Point::Text(bytes) = &prefix else { return None };
    // No UTF-8 contains this byte, so every text with the prefix is less.
    let beyond = Point::Text([bytes, &[0xff][..]].concat().into());
    Some((Some(prefix), Some(beyond)))
}

/// The value that equals a parameter in a column of this kind, by SQLite's affinity rules: a text
/// compared with a numeric column becomes a number if it looks like one, a number compared with a
/// text column becomes text, a blob is unchanged.
pub(crate) fn probe(
    kind: Kind,
    collation: Collation,
    nulls_match: bool,
    value: &Value,
) -> KeyProbe {
    let key = |value: &Value| KeyProbe::Key(canonical(collation, value));
    match (kind, value) {
        (_, Value::Null) if nulls_match => KeyProbe::Key(Value::Null),
        (_, Value::Null) => KeyProbe::Never,
        (Kind::Integer, Value::Integer(_) | Value::Real(_)) | (Kind::Real, Value::Real(_)) => {
            key(value)
        }
        // An index seek on a REAL column rounds the integer first; a comparison does not.
        (Kind::Real, Value::Integer(n)) if n.unsigned_abs() <= 1 << 53 => key(value),
        (Kind::Real, Value::Integer(_)) => KeyProbe::Unsure,
        (Kind::Integer | Kind::Real, Value::Text(text)) => match plain_integer(text) {
            Some(n) => key(&Value::Integer(n)),
            None if text.starts_with(|c: char| c.is_ascii_alphabetic()) => KeyProbe::Never,
            None => KeyProbe::Unsure,
        },
        (Kind::Text, Value::Text(_)) | (Kind::Blob, Value::Blob(_)) => key(value),
        (Kind::Text, Value::Integer(n)) => key(&Value::Text(n.to_string())),
        (Kind::Text, Value::Real(_)) => KeyProbe::Unsure,
        (Kind::Integer | Kind::Real | Kind::Text, Value::Blob(_)) => KeyProbe::Never,
        (Kind::Blob, _) => KeyProbe::Never,
    }
}

/// The canonical form of all values that SQLite considers equal: numbers by their mathematical
/// value, texts by the collation.
pub(crate) fn canonical(collation: Collation, value: &Value) -> Value {
    match (value, collation) {
        (Value::Real(x), _) => {
            // Exact: every integral double in this range is an i64.
            let whole = x.fract() == 0.0 && *x >= -9.2e18 && *x <= 9.2e18;
            #[expect(clippy::cast_possible_truncation, reason = "it is integral and in range")]
            let n = *x as i64;
            if whole { Value::Integer(n) } else { Value::Real(*x) }
        }
        (Value::Text(text), Collation::NoCase) => {
            // SQLite stops comparing letters at a NUL, and then compares lengths.
            let (letters, rest) = text.split_once('\0').map_or((text.as_str(), ""), |both| both);
            let length = if rest.is_empty() { String::new() } else { format!("\0{}", text.len()) };
            Value::Text(letters.to_ascii_lowercase() + &length)
        }
        (Value::Text(text), Collation::RightTrim) => Value::Text(text.trim_end_matches(' ').into()),
        _ => value.clone(),
    }
}

/// The number that a text denotes, if it is unambiguous.
fn plain_integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain =
        !digits.is_empty() && digits.len() <= 15 && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// The hash of a key, cell by cell.
pub(crate) fn hash_key<'v, H: Hasher>(mut state: H, cells: impl Iterator<Item = &'v Value>) -> u64 {
    for cell in cells {
        crate::delta::exact::hash_value(cell, &mut state);
        0xff_u8.hash(&mut state);
    }
    state.finish()
}
