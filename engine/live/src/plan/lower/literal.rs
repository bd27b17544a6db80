//! The values of literals and quoted names.

use abide_schema::Value;
use sqlite3_parser::ast::{Expr, Literal, UnaryOperator};

use crate::identifier::unquote;

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
