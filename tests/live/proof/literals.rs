//! Values that reveal errors: equal ones of different types, texts that differ by case or by a
//! space, numbers at the limits of a double, NULs, valid and invalid JSON.

use abide_schema::Value;
use abide_schema::table::Kind;
use serde_json::Value as JsonValue;

use crate::proof::tree::Sql;
use crate::world::Random;

const INTEGERS: [i64; 10] = [-1, 0, 1, 1, 2, 2, 3, 5, 9_007_199_254_740_993, 1_700_000_000];
const REALS: [f64; 11] =
    [-0.5, 0.0, 1.0, 1.0, 2.0, 2.5, 0.1, -0.3, 0.7, 9_007_199_254_740_992.0, 1e300];
const TEXTS: [&str; 19] = [
    "",
    "a",
    "a",
    "A",
    "b",
    "B ",
    "b",
    "1",
    "01",
    "1.0",
    "2",
    "é",
    "É",
    "a\0b",
    "A\0B",
    "{\"a\":1,\"b\":[2,\"x\"]}",
    "{\"a\":1.0}",
    "[1,2]",
    "it's",
];
const BLOBS: [&[u8]; 5] = [b"", b"a", b"1", &[0, 255], b"{\"a\":1}"];

/// A value of a kind.
pub(crate) fn random_of_kind(random: &mut Random, kind: Kind) -> Value {
    match kind {
        Kind::Integer if random.below(60) == 0 => Value::Integer(i64::MAX),
        Kind::Integer => Value::Integer(*random.pick(&INTEGERS)),
        Kind::Real => Value::Real(*random.pick(&REALS)),
        Kind::Text => Value::from(*random.pick(&TEXTS)),
        Kind::Blob => Value::Blob(random.pick(&BLOBS).to_vec()),
    }
}

/// A value of a key: few distinct ones, so that rows join.
pub(crate) fn random_key(random: &mut Random, kind: Kind) -> Value {
    match kind {
        Kind::Integer => Value::Integer(random.below(7) as i64),
        Kind::Real => Value::Real(*random.pick(&[0.5, 1.0, 2.0, -3.25])),
        Kind::Text => Value::from(*random.pick(&["k", "K", "l", "m", "1"])),
        Kind::Blob => Value::Blob(random.pick(&BLOBS[..4]).to_vec()),
    }
}

/// A caller's parameter: usually of the kind that it is compared with.
pub(crate) fn param(random: &mut Random, kind: Kind) -> JsonValue {
    let odd = ["null", "true", "\" 1\"", "\"2.0\"", "\"2e0\"", "\"a%\"", "\"A*\"", "\"_\"", "1.0"];
    if random.below(6) == 0 {
        let text = *random.pick(&odd);
        return serde_json::from_str(text).expect("it is JSON");
    }
    let kind = if random.below(8) == 0 {
        *random.pick(&[Kind::Integer, Kind::Real, Kind::Text, Kind::Blob])
    } else {
        kind
    };
    random_of_kind(random, kind).to_json()
}

/// A value as an SQL literal.
pub(crate) fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(n) => n.to_string(),
        Value::Real(x) => format!("{x:?}"),
        Value::Text(text) if text.contains('\0') => {
            let parts: Vec<String> = text.split('\0').map(quoted).collect();
            format!("({})", parts.join(" || char(0) || "))
        }
        Value::Text(text) => quoted(text),
        Value::Blob(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("x'{hex}'")
        }
    }
}

/// The literal as a tree.
pub(crate) fn literal_sql(value: &Value) -> Sql {
    Sql::Expr(vec![literal(value).into()])
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
