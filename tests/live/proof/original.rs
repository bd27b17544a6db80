//! Whether the planner's query is equivalent to the text: both are run and their rows compared.
//!
//! The planner's query adds columns that carry the order, breaks ties by the key, and picks one of
//! equal values independently of the order of rows. Only these differences are allowed.

use std::collections::BTreeMap;

use abide_live::{Binding, Planner};
use abide_schema::{Row, Value};
use rusqlite::Connection;
use serde_json::{Map, Value as JsonValue};

use crate::client::Client;
use crate::proof::grammar::{Fidelity, Query};
use crate::world::{Bound, cells};

/// Compares a fresh result of the planner's query with the text.
pub(crate) fn check(
    db: &Connection,
    planner: &Planner,
    query: &Query,
    binding: &Binding,
    rows: &[Row],
) -> Result<(), String> {
    if query.fidelity == Fidelity::Open {
        return Ok(());
    }
    let params = query.named();
    // One of the two may fail where the other does not, because conditions are evaluated in another
    // order. A failure has no result to compare.
    let Ok(original) = run(db, &query.text(), &params) else { return Ok(()) };
    if !binding.is_top_n() {
        return same_rows(binding, rows, &original);
    }
    if original.len() != rows.len() {
        return Err(format!("{} rows instead of {}", rows.len(), original.len()));
    }
    top_n(db, planner, query, binding, rows)
}

fn same_rows(binding: &Binding, rows: &[Row], original: &[Row]) -> Result<(), String> {
    let output = || {
        let lines = |rows: &[Row]| rows.iter().map(|row| format!("\n    {row:?}")).collect();
        let [ours, theirs]: [String; 2] = [lines(rows), lines(original)];
        format!("the planner's query returns {ours}\nthe text returns {theirs}")
    };
    if rows.len() != original.len() {
        return Err(output());
    }
    let visible = binding.shape().columns.iter().filter(|column| !column.hidden).count();
    let client = Client::new(binding, Vec::new());
    let mut first = 0;
    while first < rows.len() {
        // Ties may come in any order.
        let ordered = !binding.shape().order.is_empty();
        let count = rows[first..]
            .iter()
            .take_while(|row| !ordered || client.is_tie(&rows[first], row))
            .count();
        let texts = |rows: &[Row]| {
            let mut texts: Vec<String> = rows[first..first + count]
                .iter()
                .map(|row| text(binding, &row[..visible]))
                .collect();
            texts.sort();
            texts
        };
        if texts(rows) != texts(original) {
            return Err(output());
        }
        first += count;
    }
    Ok(())
}

/// The rows of a top-N result are in the result without LIMIT, from its OFFSET.
fn top_n(
    db: &Connection,
    planner: &Planner,
    query: &Query,
    binding: &Binding,
    rows: &[Row],
) -> Result<(), String> {
    let unlimited = Query { limit: "".into(), ..query.clone() };
    let Ok(whole) = planner.bind(&unlimited.text(), &unlimited.named()) else { return Ok(()) };
    let mut statement = db.prepare(whole.snapshot_sql()).map_err(|why| why.to_string())?;
    let width = statement.column_count();
    let params = rusqlite::params_from_iter(whole.params().iter().map(Bound));
    let all: Result<Vec<Row>, _> = statement
        .query_map(params, |row| Ok(Row::from(cells(row, width))))
        .and_then(Iterator::collect);
    let Ok(all) = all else { return Ok(()) };
    let original = run(db, &unlimited.text(), &unlimited.named());
    if let Ok(original) = original {
        same_rows(&whole, &all, &original)?;
    }
    let mut left: BTreeMap<String, usize> = BTreeMap::new();
    let visible = binding.shape().columns.iter().filter(|column| !column.hidden).count();
    for row in &all {
        *left.entry(text(binding, &row[..visible])).or_default() += 1;
    }
    for row in rows {
        match left.get_mut(&text(binding, &row[..visible])) {
            Some(count) if *count > 0 => *count -= 1,
            _ => return Err(format!("{row:?} is not in the whole result")),
        }
    }
    if binding.shape().order.is_empty() {
        return Ok(());
    }
    let limit = query.limit.text();
    let offset = limit.split(" OFFSET ").nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let client = Client::new(binding, Vec::new());
    let misplaced =
        rows.iter().zip(all.iter().skip(offset)).find(|(row, at)| !client.is_tie(row, at));
    match misplaced {
        Some((row, at)) => Err(format!("{row:?} in the place of {at:?}")),
        None => Ok(()),
    }
}

/// A row as text: by exact type, or with equal values alike if the query chooses one of them.
fn text(binding: &Binding, row: &[Value]) -> String {
    if !binding.chooses() {
        return format!("{row:?}");
    }
    row.iter()
        .map(|value| match value {
            #[expect(clippy::cast_precision_loss, reason = "equal numbers stay equal")]
            Value::Integer(n) => format!("{:?}", *n as f64),
            // -0.0 + 0.0 is 0.0.
            Value::Real(x) => format!("{:?}", x + 0.0),
            Value::Text(text) => format!("{:?}", text.to_ascii_lowercase().trim_end_matches(' ')),
            other => format!("{other:?}"),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

fn run(db: &Connection, sql: &str, params: &Map<String, JsonValue>) -> rusqlite::Result<Vec<Row>> {
    let mut statement = db.prepare(sql)?;
    for (name, json) in params {
        let value = Value::from_json(json).expect("a parameter is a value");
        if let Some(at) = statement.parameter_index(&format!(":{name}"))? {
            statement.raw_bind_parameter(at, Bound(&value))?;
        }
    }
    let width = statement.column_count();
    let mut found = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        rows.push(Row::from(cells(row, width)));
    }
    Ok(rows)
}
