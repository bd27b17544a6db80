//! The collations of SQLite, and the canonical form of the values that each considers equal.

use abide_schema::Value;

/// The built-in collations of SQLite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Collation {
    /// Byte by byte.
    Binary,
    /// ASCII letters without case.
    NoCase,
    /// Trailing spaces ignored.
    RightTrim,
}

impl Collation {
    /// Parses the name of a collation.
    pub(crate) fn parse(name: &str) -> Option<Collation> {
        let all = [Collation::Binary, Collation::NoCase, Collation::RightTrim];
        all.into_iter().find(|collation| collation.sql().eq_ignore_ascii_case(name))
    }

    /// Returns the name in SQL.
    pub(crate) fn sql(self) -> &'static str {
        match self {
            Collation::Binary => "BINARY",
            Collation::NoCase => "NOCASE",
            Collation::RightTrim => "RTRIM",
        }
    }
}

/// Returns the canonical form of all values that SQLite considers equal: numbers by their
/// mathematical value, texts by the collation.
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
