//! SQLite's order of values, for results that the client keeps in order.
//!
//! <https://www.sqlite.org/datatype3.html#comparisons>: NULL, numbers, texts, blobs; numbers by their
//! exact value regardless of representation; texts by a collation; blobs byte by byte.

use std::cmp::Ordering;

use abide_schema::Value;

/// How texts compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collation {
    /// Byte by byte.
    Binary,
    /// Ignores the case of the 26 ASCII letters.
    NoCase,
    /// Ignores trailing spaces.
    Rtrim,
}

impl Collation {
    /// Looks up a collation by name; SQL names compare without case.
    pub(crate) fn parse(name: &str) -> Option<Collation> {
        let known = [
            ("BINARY", Collation::Binary),
            ("NOCASE", Collation::NoCase),
            ("RTRIM", Collation::Rtrim),
        ];
        known
            .into_iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, collation)| collation)
    }
}

/// Compares two values.
pub(crate) fn compare(left: &Value, right: &Value, collation: Collation) -> Ordering {
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) => left.cmp(right),
        // NaN is stored as NULL, so any two reals compare.
        (Value::Real(left), Value::Real(right)) => {
            left.partial_cmp(right).unwrap_or(Ordering::Equal)
        }
        (Value::Integer(left), Value::Real(right)) => compare_integer_to_real(*left, *right),
        (Value::Real(left), Value::Integer(right)) => {
            compare_integer_to_real(*right, *left).reverse()
        }
        (Value::Text(left), Value::Text(right)) => {
            compare_texts(left.as_bytes(), right.as_bytes(), collation)
        }
        (Value::Blob(left), Value::Blob(right)) => left.cmp(right),
        _ => storage_class(left).cmp(&storage_class(right)),
    }
}

/// Distinguishes values that SQLite considers equal: 1 and 1.0, 0.0 and -0.0. Total.
pub(crate) fn compare_exactly(left: &Value, right: &Value) -> Ordering {
    compare(left, right, Collation::Binary).then_with(|| match (left, right) {
        (Value::Real(left), Value::Real(right)) => left.total_cmp(right),
        (Value::Integer(_), Value::Real(_)) => Ordering::Less,
        (Value::Real(_), Value::Integer(_)) => Ordering::Greater,
        _ => Ordering::Equal,
    })
}

fn storage_class(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Integer(_) | Value::Real(_) => 1,
        Value::Text(_) => 2,
        Value::Blob(_) => 3,
    }
}

/// By exact value: above 2^53 not every integer is a double.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked before")]
fn compare_integer_to_real(left: i64, right: f64) -> Ordering {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    if right >= TWO_TO_63 {
        return Ordering::Less;
    }
    if right < -TWO_TO_63 {
        return Ordering::Greater;
    }
    let whole = left.cmp(&(right.trunc() as i64));
    whole.then_with(|| 0.0.partial_cmp(&right.fract()).unwrap_or(Ordering::Equal))
}

fn compare_texts(left: &[u8], right: &[u8], collation: Collation) -> Ordering {
    match collation {
        Collation::Binary => left.cmp(right),
        Collation::Rtrim => trim_end_spaces(left).cmp(trim_end_spaces(right)),
        Collation::NoCase => {
            // sqlite3StrNICmp stops at a NUL; then the lengths decide.
            fold_until_nul(left).cmp(&fold_until_nul(right)).then(left.len().cmp(&right.len()))
        }
    }
}

fn fold_until_nul(text: &[u8]) -> Vec<u8> {
    text.iter().take_while(|byte| **byte != 0).map(u8::to_ascii_lowercase).collect()
}

fn trim_end_spaces(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_ascending(values: &[Value], collation: Collation) {
        for (i, left) in values.iter().enumerate() {
            for (j, right) in values.iter().enumerate() {
                assert_eq!(compare(left, right, collation), i.cmp(&j), "{left:?} {right:?}");
            }
        }
    }

    #[test]
    fn values_sort_in_sqlite_order() {
        let values = [
            Value::Null,
            Value::Real(f64::NEG_INFINITY),
            Value::Real(-1e19),
            Value::Integer(i64::MIN),
            Value::Real(-9_223_372_036_854_774_784.0),
            Value::Real(-0.5),
            Value::Integer(0),
            Value::Real(0.5),
            Value::Integer((1 << 53) - 1),
            Value::Real(9_007_199_254_740_992.0),
            Value::Integer((1 << 53) + 1),
            Value::Integer(i64::MAX),
            Value::Real(9_223_372_036_854_775_808.0),
            Value::Real(f64::INFINITY),
            Value::from(""),
            Value::from("B"),
            Value::from("a"),
            Value::from("a "),
            Value::from("é"),
            Value::Blob(vec![]),
            Value::Blob(vec![0]),
            Value::Blob(vec![0, 0]),
            Value::Blob(vec![1]),
        ];
        assert_ascending(&values, Collation::Binary);
    }

    #[test]
    fn collations_compare_texts() {
        assert_ascending(&["a", "B", "b ", "b\0", "é"].map(Value::from)[..3], Collation::NoCase);
        let equal = |left: &str, right: &str, collation| {
            compare(&left.into(), &right.into(), collation) == Ordering::Equal
        };
        assert!(equal("Straße", "STRAßE", Collation::NoCase));
        assert!(!equal("É", "é", Collation::NoCase), "only the 26 letters fold");
        assert!(
            equal("x\0a", "X\0b", Collation::NoCase),
            "as in SQLite, a NUL ends the comparison"
        );
        assert!(equal("a", "a   ", Collation::Rtrim));
        assert!(!equal("a", "a\t", Collation::Rtrim));
    }

    #[test]
    fn exact_comparison_distinguishes_values_sqlite_considers_equal() {
        for (left, right) in
            [(Value::Integer(1), Value::Real(1.0)), (Value::Real(-0.0), Value::Real(0.0))]
        {
            assert_eq!(compare(&left, &right, Collation::Binary), Ordering::Equal);
            assert_eq!(compare_exactly(&left, &right), Ordering::Less);
            assert_eq!(compare_exactly(&right, &left), Ordering::Greater);
        }
    }
}
