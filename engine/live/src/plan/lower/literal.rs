//! The values of literals and quoted names.

use abide_schema::Value;
use abide_schema::table::Kind;
use sqlite3_parser::ast::{Expr, Literal, UnaryOperator};

use super::Slot;

/// The value of a literal that can become a parameter. Numbers with a fraction and those beyond 64
/// bits stay in the text, because only SQLite parses them exactly as SQLite does.
pub(crate) fn liftable(expr: &Expr) -> Option<Value> {
    match expr {
        Expr::Literal(Literal::Numeric(text)) => integer(text, "").map(Value::Integer),
        Expr::Literal(Literal::String(text)) => Some(Value::Text(unquote(text))),
        Expr::Literal(Literal::Blob(hex)) => blob(hex).map(Value::Blob),
        Expr::Unary(UnaryOperator::Negative, Expr::Literal(Literal::Numeric(text))) => {
            integer(text, "-").map(Value::Integer)
        }
        _ => None,
    }
}

/// The kind of a literal that became a parameter; `None` for a caller's parameter.
pub(super) fn kind_of(slot: &Slot) -> Option<Kind> {
    match slot {
        Slot::Literal(Value::Integer(_)) => Some(Kind::Integer),
        Slot::Literal(Value::Text(_)) => Some(Kind::Text),
        Slot::Literal(Value::Blob(_)) => Some(Kind::Blob),
        Slot::Literal(Value::Null | Value::Real(_)) | Slot::Caller(_) | Slot::Principal(_) => None,
    }
}

/// Whether SQLite reads an expression as an integer.
pub(super) fn is_integer(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(Literal::Numeric(text)) if integer(text, "").is_some())
}

fn integer(text: &str, sign: &str) -> Option<i64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty();
    if plain { format!("{sign}{text}").parse().ok() } else { None }
}

fn blob(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// A name or text without its quotes: `"a""b"` is `a"b`, `[a]` is `a`.
pub(crate) fn unquote(raw: &str) -> String {
    let Some(quote @ ('"' | '\'' | '`' | '[')) = raw.chars().next() else { return raw.to_owned() };
    let inner = raw.get(1..raw.len() - 1).unwrap_or_default();
    if quote == '[' {
        return inner.to_owned();
    }
    inner.replace(&format!("{quote}{quote}"), &quote.to_string())
}
