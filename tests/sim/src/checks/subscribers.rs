//! Subscribers converge, and never saw what was not durable: what a client holds, built from nothing but
//! what it was told, is what its query gives.

use abide_schema::{Row, Seq, Value};

use super::Finding;

const NAME: &str = "subscribers converge";

/// Holds what a client has to what its query gives at the same seq.
///
/// # Errors
/// They differ.
pub fn check_rows(sql: &str, seq: Seq, held: &[Row], fresh: &[Row]) -> Result<(), Finding> {
    let sorted = |rows: &[Row]| {
        let mut texts: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        texts.sort();
        texts
    };
    let (held, fresh) = (sorted(held), sorted(fresh));
    if held == fresh {
        return Ok(());
    }
    let missing: Vec<_> = fresh.iter().filter(|row| !held.contains(row)).take(2).collect();
    let extra: Vec<_> = held.iter().filter(|row| !fresh.contains(row)).take(2).collect();
    let what = format!("{sql} at {seq}: missing {missing:?}, and too much {extra:?}");
    Err(Finding::new(NAME, what))
}

/// What is told must be on the disk by then.
///
/// # Errors
/// It is not.
pub fn check_durable(what: &str, seq: Seq, durable: Seq) -> Result<(), Finding> {
    if seq <= durable {
        return Ok(());
    }
    let what = format!("{what} speaks of {seq}, and {durable} is durable");
    Err(Finding::new("told is durable", what))
}

/// What a client may not be told.
#[must_use]
pub fn broken(what: impl std::fmt::Display) -> Finding {
    Finding::new(NAME, what)
}

/// A cell by a value of a message.
///
/// # Errors
/// It is none.
pub fn row_of(cells: &[serde_json::Value]) -> Result<Row, Finding> {
    let cells: Result<Vec<Value>, _> = cells.iter().map(Value::from_json).collect();
    cells.map(Into::into).map_err(|why| broken(format!("a cell that is {why}")))
}
