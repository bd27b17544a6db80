//! Answers of the SDK, and what a scenario expects of them.

use abide_client::{Committed, Error, QueryResult, Subscription};
use abide_schema::Value;
use abide_schema::wire::CallResult;
use serde_json::{Value as JsonValue, json};

/// The answer to a step.
pub(super) enum Answer {
    Connected,
    Called(Committed<JsonValue>),
    Batch(Committed<Vec<CallResult>>),
    Rows(QueryResult),
    /// The stored id of a session; `None` if there is none.
    Session(Option<String>),
    /// With its name.
    Subscribed(String, Box<Subscription>),
}

impl Answer {
    /// As JSON, with the names of the format.
    pub(super) fn described(&self) -> JsonValue {
        match self {
            Answer::Connected => json!({}),
            Answer::Called(Committed { seq, duplicate, value }) => {
                json!({"seq": seq, "duplicate": duplicate, "result": value})
            }
            Answer::Batch(Committed { seq, duplicate, value }) => {
                let results: Vec<&JsonValue> = value.iter().map(|one| &one.result).collect();
                json!({"seq": seq, "duplicate": duplicate, "results": results})
            }
            Answer::Rows(QueryResult { seq, columns, rows }) => {
                let rows: Vec<JsonValue> = rows.iter().map(|row| cells(row)).collect();
                json!({"seq": seq, "columns": columns, "rows": rows})
            }
            Answer::Session(id) => json!({"id": id}),
            Answer::Subscribed(_, subscription) => {
                let rows: Vec<JsonValue> = subscription.rows().map(cells).collect();
                let columns: Vec<&str> =
                    subscription.columns().iter().map(|column| column.name.as_str()).collect();
                json!({"seq": subscription.seq(), "columns": columns, "rows": rows})
            }
        }
    }
}

/// A row on the wire.
pub(super) fn cells(row: &[Value]) -> JsonValue {
    row.iter().map(Value::to_json).collect()
}

/// Rows regardless of their order. As texts, because `0.0 == -0.0`.
pub(super) fn multiset(rows: &[JsonValue]) -> Vec<String> {
    let mut texts: Vec<String> = rows.iter().map(JsonValue::to_string).collect();
    texts.sort();
    texts
}

/// Whether two values have the same text: `0.0 == -0.0`.
pub(super) fn is_same(expected: &JsonValue, found: &JsonValue) -> bool {
    let expected = expected.to_string();
    let found = found.to_string();
    expected == found
}

/// Compares an answer with what a step expects.
pub(super) fn expect(expected: &JsonValue, answer: &Answer) -> Result<(), String> {
    let found = answer.described();
    for (name, value) in expected.as_object().into_iter().flatten() {
        let is_so = match name.as_str() {
            "result" | "results" => matches(value, &found[name]),
            "seq" | "duplicate" | "columns" | "id" => *value == found[name],
            "rows" => is_same(value, &found[name]),
            "error" => return Err(format!("it is not an error: {found}")),
            _ => return Err(format!("unknown expectation {name}")),
        };
        if !is_so {
            return Err(format!("{name} is {}", found[name]));
        }
    }
    Ok(())
}

/// Whether a result has at least what is expected.
pub(super) fn matches(expected: &JsonValue, found: &JsonValue) -> bool {
    match (expected, found) {
        (JsonValue::Object(fields), found) if fields.get("$any") == Some(&true.into()) => {
            !found.is_null()
        }
        (JsonValue::Object(fields), JsonValue::Object(found)) => fields
            .iter()
            .all(|(key, value)| matches(value, found.get(key).unwrap_or(&JsonValue::Null))),
        (JsonValue::Array(items), JsonValue::Array(found)) => {
            items.len() == found.len() && items.iter().zip(found).all(|(one, it)| matches(one, it))
        }
        (expected, found) => expected == found,
    }
}

/// Compares an error.
pub(super) fn check_error(expected: &JsonValue, error: &Error) -> Result<(), String> {
    let code = match error {
        Error::Refused(refusal) => refusal.code.as_str(),
        Error::TimedOut { .. } => "timed_out",
        Error::Unreachable { .. } | Error::NotAbide { .. } => "unreachable",
        Error::Closed => "closed",
        Error::Protocol { .. } => "protocol",
        _ => "unknown",
    };
    let detail = expected["detail"].as_str().unwrap_or_default();
    let hint = expected["hint"].as_bool().is_none_or(|wanted| wanted == error.hint().is_some());
    if expected["code"] == code && format!("{error:#}").contains(detail) && hint {
        Ok(())
    } else {
        Err(format!("the error is {code}: {error} ({:?})", error.hint()))
    }
}
