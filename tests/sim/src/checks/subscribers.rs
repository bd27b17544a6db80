//! Subscribers converge and never see data that is not durable: a client's state, built only from
//! received messages, equals the result of its query.

use abide_schema::{Row, Seq, Value};

use super::Finding;

const NAME: &str = "subscribers converge";

/// Compares a client's rows with the result of its query at the same seq.
///
/// # Errors
/// They differ.
pub fn check_rows(sql: &str, seq: Seq, held: &[Row], fresh: &[Row]) -> Result<(), Finding> {
    let sorted = |rows: &[Row]| {
        let mut texts: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        texts.sort();
        texts
    };
    let held = sorted(held);
    let fresh = sorted(fresh);
    if held == fresh {
        return Ok(());
    }
    let missing: Vec<_> = fresh.iter().filter(|row| !held.contains(row)).take(2).collect();
    let extra: Vec<_> = held.iter().filter(|row| !fresh.contains(row)).take(2).collect();
    let what = format!("{sql} at {seq}: missing {missing:?}, superfluous {extra:?}");
    Err(Finding::new(NAME, what))
}

/// Checks that published data is durable.
///
/// # Errors
/// It is not durable.
pub fn check_durable(what: &str, seq: Seq, durable: Seq) -> Result<(), Finding> {
    if seq <= durable {
        return Ok(());
    }
    let what = format!("{what} contains {seq}, but only {durable} is durable");
    Err(Finding::new("published is durable", what))
}

/// A violation of the subscription protocol.
#[must_use]
pub fn broken(what: impl std::fmt::Display) -> Finding {
    Finding::new(NAME, what)
}

/// A row from the values of a message.
///
/// # Errors
/// A value is not a valid cell.
pub fn row_of(cells: &[serde_json::Value]) -> Result<Row, Finding> {
    let cells: Result<Vec<Value>, _> = cells.iter().map(Value::from_json).collect();
    cells.map(Into::into).map_err(|why| broken(format!("an invalid cell: {why}")))
}
