//! Random statements that change one or many rows: insert, replace, update keys, delete.

use abide_schema::TableSpec;
use abide_schema::Value;

use crate::proof::literals;
use crate::proof::schema::Schema;
use crate::proof::tree::{Sql, clause, commas, seq};
use crate::world::Random;

/// The statements of one commit. One that violates a constraint changes nothing.
pub(crate) type Commit = Vec<Sql>;

/// A commit of a few statements.
pub(crate) fn commit(random: &mut Random, schema: &Schema) -> Commit {
    let count = *random.pick(&[1, 1, 1, 2, 3, 6]);
    (0..count).map(|_| statement(random, schema)).collect()
}

/// The initial rows.
pub(crate) fn fill(random: &mut Random, schema: &Schema) -> Commit {
    let tables = schema.tables.iter();
    tables.map(|table| insert(random, table, 1 + random_rows(table.key.len()))).collect()
}

fn random_rows(key_columns: usize) -> usize {
    4 + 2 * key_columns
}

fn statement(random: &mut Random, schema: &Schema) -> Sql {
    let table = *random.pick(&schema.tables);
    match random.below(10) {
        0..=3 => {
            let rows = *random.pick(&[1, 1, 1, 2, 4]);
            insert(random, table, rows)
        }
        4..=6 => update(random, table),
        7 | 8 => seq!["DELETE FROM ", table.name, " WHERE ", condition(random, table)],
        _ => {
            // Sometimes all rows of a table.
            let all = random.below(4) == 0;
            let limit = if all { " IS NOT NULL" } else { " IS NULL" };
            let column = random.pick(table.columns).name;
            seq!["DELETE FROM ", table.name, " WHERE ", column, limit]
        }
    }
}

fn insert(random: &mut Random, table: &TableSpec, rows: usize) -> Sql {
    let action = *random.pick(&["REPLACE", "REPLACE", "REPLACE", "IGNORE"]);
    let rows = (0..rows).map(|_| {
        let cells = (0..table.columns.len()).map(|at| literals::literal(&cell(random, table, at)));
        Sql::from(format!("({})", cells.collect::<Vec<_>>().join(", ")))
    });
    let rows = commas(rows.collect());
    seq![format!("INSERT OR {action} INTO {} VALUES ", table.name), rows]
}

fn update(random: &mut Random, table: &TableSpec) -> Sql {
    let action = *random.pick(&["REPLACE", "IGNORE"]);
    let mut set: Vec<Sql> = Vec::new();
    for _ in 0..1 + random.below(2) {
        let at = random.below(table.columns.len());
        let name = table.columns[at].name;
        if set.iter().any(|item| item.text().starts_with(&format!("{name} ="))) {
            continue;
        }
        let value = if random.below(4) == 0 {
            random.pick(table.columns).name.to_owned()
        } else {
            literals::literal(&cell(random, table, at))
        };
        set.push(format!("{name} = {value}").into());
    }
    let wherein = seq![" WHERE ", condition(random, table)];
    seq![format!("UPDATE OR {action} {} SET ", table.name), commas(set), wherein]
}

fn condition(random: &mut Random, table: &TableSpec) -> Sql {
    let columns: Vec<usize> = if random.below(2) == 0 {
        table.key.to_vec()
    } else {
        vec![random.below(table.columns.len())]
    };
    let terms = columns
        .iter()
        .map(|at| {
            let name = table.columns[*at].name;
            let comparison = *random.pick(&["=", "=", "=", "IS", ">=", "<"]);
            Sql::from(format!(
                "{name} {comparison} {}",
                literals::literal(&cell(random, table, *at))
            ))
        })
        .collect();
    seq!["1", clause(" AND ", " AND ", terms)]
}

fn cell(random: &mut Random, table: &TableSpec, at: usize) -> Value {
    let column = &table.columns[at];
    if table.key.contains(&at) {
        return literals::random_key(random, column.kind);
    }
    if column.nullable && random.below(5) == 0 {
        return Value::Null;
    }
    literals::random_of_kind(random, column.kind)
}
