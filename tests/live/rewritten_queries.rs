//! The executed query differs from the text: names are resolved, joins reordered, ties broken,
//! columns expanded. It must be equivalent. SQLite runs both, and the visible columns are compared.

use std::sync::Arc;

use abide_live::Planner;
use abide_schema::{Row, Value};
use rusqlite::ToSql as _;
use serde_json::Map;

use crate::client::exact;
use crate::deltas::{FILTERS, GROUPS, JOINS, OUTER, SETS, SHARE, SUBQUERIES, params};
use crate::seed_budget::each_seed;
use crate::world::{Bound, Random, World, cells};

/// The rows of the original text.
fn as_written(
    world: &World,
    sql: &str,
    params: &Map<String, serde_json::Value>,
) -> Option<Vec<Row>> {
    let mut statement = world.db.0.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    for (name, json) in params {
        let value = Value::from_json(json).expect("it was bound before");
        let at = statement
            .parameter_index(&format!(":{name}"))
            .expect("no NUL in a name")
            .expect("the text has it");
        let bound = Bound(&value);
        statement.raw_bind_parameter(at, bound.to_sql().expect("a value")).expect("it is bound");
    }
    let width = statement.column_count();
    let mut rows = statement.raw_query();
    let mut all = Vec::new();
    loop {
        match rows.next() {
            Ok(Some(row)) => all.push(cells(row, width).into()),
            Ok(None) => return Some(all),
            Err(_) => return None,
        }
    }
}

fn sorted(rows: &[Row], width: usize, fold: bool) -> Vec<String> {
    let mut rows: Vec<String> = rows
        .iter()
        .map(|row| {
            if fold {
                exact(&row[..width].iter().map(folded).collect::<Vec<Value>>())
            } else {
                exact(&row[..width])
            }
        })
        .collect();
    rows.sort();
    rows
}

/// A value, with those that are equal alike: of two types, or under NOCASE.
fn folded(value: &Value) -> Value {
    match value {
        // Beyond 2^53 a real stands for several integers, which it does not equal.
        Value::Integer(number) if number.unsigned_abs() <= 1 << 53 => Value::Real(*number as f64),
        Value::Text(text) => Value::Text(text.to_ascii_lowercase()),
        other => other.clone(),
    }
}

/// Runs both, in a random state.
fn check(world: &mut World, planner: &Planner, sql: &str) {
    let params = params(sql, &mut world.random);
    let binding = planner.bind(sql, &params).unwrap_or_else(|refusal| panic!("{sql}: {refusal}"));
    let shown = binding.shape().columns.iter().filter(|column| !column.hidden).count();
    let Some(written) = as_written(world, sql, &params) else { return };
    let run = world
        .query(binding.snapshot_sql(), binding.params())
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let what = format!("{sql} with {params:?}\nis run as {}", binding.snapshot_sql());
    // Which of several equal values represents its group is SQLite's choice.
    let fold = binding.chooses();
    assert_eq!(sorted(&run, shown, fold), sorted(&written, shown, fold), "{what}");
}

/// Whether a text is not deterministic: which of equal rows come first, or the order of
/// concatenation.
fn leaves_open(sql: &str) -> bool {
    let open = ["LIMIT", "group_concat", "string_agg", "group_array", "group_object", "row_number"];
    let open_in_windows = ["lag(", "lead(", "ntile(", "_value(", "ROWS", "AS some", "AS top"];
    open.iter().chain(&open_in_windows).any(|word| sql.contains(word))
}

#[test]
fn the_executed_query_is_equivalent_to_the_text() {
    let lists = [FILTERS, GROUPS, JOINS, OUTER, SUBQUERIES, SETS].into_iter().chain([
        crate::compounds::COMPOUNDS,
        crate::outer_joins::SIDES,
        crate::windowed::WINDOWED,
        crate::from_subqueries::DERIVED,
        crate::table_functions::LISTED,
    ]);
    let queries: Vec<&str> = lists.flatten().copied().filter(|sql| !leaves_open(sql)).collect();
    each_seed("as written", SHARE, |seed| {
        let mut world = World::new(seed);
        world.random = Random::new(seed ^ 0x77);
        let planner = Planner::new(Arc::clone(&world.catalog));
        for _ in 0..20 {
            world.commit();
        }
        queries.iter().for_each(|sql| check(&mut world, &planner, sql));
    });
}
