//! Equality as JSON Schema defines it: numbers by value, objects without order.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::evaluate::{BYTES_PER_STEP, Budget};
use crate::mismatch::BudgetExhausted;
use crate::number;

/// Returns `true` if two values are equal.
pub(crate) fn are_equal(
    budget: &mut Budget,
    a: &Value,
    b: &Value,
) -> Result<bool, BudgetExhausted> {
    budget.spend(1)?;
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => Ok(number::compare(a, b) == Ordering::Equal),
        (Value::String(a), Value::String(b)) => {
            budget.spend(a.len().min(b.len()) / BYTES_PER_STEP)?;
            Ok(a == b)
        }
        (Value::Array(a), Value::Array(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b) {
                if !are_equal(budget, a, b)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Object(a), Value::Object(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (name, a) in a {
                budget.spend(1 + name.len() / BYTES_PER_STEP)?;
                let Some(b) = b.get(name) else { return Ok(false) };
                if !are_equal(budget, a, b)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (a, b) => Ok(a == b),
    }
}

/// Returns `true` if no two items are equal.
pub(crate) fn are_unique(budget: &mut Budget, items: &[Value]) -> Result<bool, BudgetExhausted> {
    let mut seen = BTreeSet::new();
    for item in items {
        let mut text = String::new();
        write_canonical(budget, item, &mut text)?;
        if !seen.insert(text) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes a text that is the same for equal values.
fn write_canonical(
    budget: &mut Budget,
    value: &Value,
    into: &mut String,
) -> Result<(), BudgetExhausted> {
    budget.spend(1)?;
    match value {
        Value::Number(number) => into.push_str(&number::canonical_text(number)),
        Value::Array(items) => {
            into.push('[');
            for item in items {
                write_canonical(budget, item, into)?;
                into.push(',');
            }
            into.push(']');
        }
        Value::Object(members) => {
            into.push('{');
            let mut names: Vec<&String> = members.keys().collect();
            names.sort_unstable();
            for name in names {
                write_quoted(budget, name, into)?;
                into.push(':');
                write_canonical(budget, &members[name], into)?;
                into.push(',');
            }
            into.push('}');
        }
        Value::String(text) => write_quoted(budget, text, into)?,
        Value::Null | Value::Bool(_) => into.push_str(&value.to_string()),
    }
    Ok(())
}

fn write_quoted(budget: &mut Budget, text: &str, into: &mut String) -> Result<(), BudgetExhausted> {
    budget.spend(1 + text.len() / BYTES_PER_STEP)?;
    write!(into, "{text:?}").expect("a String takes everything");
    Ok(())
}
