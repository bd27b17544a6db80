//! Random tables: one to five of them, columns of every kind, keys of one or several columns, with
//! and without indexes.
//!
//! A declaration is static, as in a real program, so generated ones are leaked.

use abide_schema::TableSpec;
use abide_schema::table::{ColumnSpec, IndexSpec, Kind};

use crate::world::Random;

/// The schema of a case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schema {
    pub(crate) tables: Vec<&'static TableSpec>,
    pub(crate) views: Vec<(&'static str, &'static str)>,
}

const TABLES: [&str; 5] = ["r", "s", "p", "orders", "Notes"];
/// Shared among tables, so that NATURAL and USING match.
const COLUMNS: [&str; 8] = ["a", "b", "c", "d", "x", "Total", "name", "data"];
const KEYS: [&str; 4] = ["id", "k", "g", "n"];
const KINDS: [Kind; 8] = [
    Kind::Integer,
    Kind::Integer,
    Kind::Integer,
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Real,
    Kind::Blob,
];

impl Schema {
    /// A random schema without views.
    pub(crate) fn random(random: &mut Random) -> Schema {
        let count = *random.pick(&[1, 2, 2, 3, 3, 4, 5]);
        let tables = TABLES[..count].iter().map(|name| table(random, name)).collect();
        Schema { tables, views: Vec::new() }
    }

    /// The statements that make it.
    pub(crate) fn ddl(&self) -> Vec<String> {
        let tables = self.tables.iter().flat_map(|table| table.ddl());
        let views = self.views.iter().map(|(name, sql)| format!("CREATE VIEW {name} AS {sql}"));
        tables.chain(views).collect()
    }
}

/// Leaks a list.
pub(crate) fn leak<T>(items: Vec<T>) -> &'static [T] {
    Box::leak(items.into_boxed_slice())
}

fn table(random: &mut Random, name: &'static str) -> &'static TableSpec {
    let mut columns = Vec::new();
    let width = match random.below(4) {
        0 | 1 => 1,
        2 => 2,
        _ => 1 + random.below(3),
    };
    for name in &KEYS[..width] {
        let kind = if width == 1 { key_kind(random) } else { *random.pick(&KINDS) };
        columns.push(column(name, kind, false, false));
    }
    // An integer key that the database numbers has the usual name; a text key as often.
    for name in COLUMNS.iter().take(1 + random.below(COLUMNS.len())) {
        let kind = *random.pick(&KINDS);
        let nullable = random.below(4) > 0;
        let unique = random.below(20) == 0;
        columns.push(column(name, kind, nullable, unique));
    }
    let key: Vec<usize> = (0..width).collect();
    if random.below(4) == 0 {
        // The key need not come first.
        columns.rotate_left(width);
        let key: Vec<usize> = key.iter().map(|at| at + columns.len() - width).collect();
        return declare(random, name, columns, key);
    }
    declare(random, name, columns, key)
}

fn key_kind(random: &mut Random) -> Kind {
    *random.pick(&[Kind::Integer, Kind::Integer, Kind::Integer, Kind::Text, Kind::Text, Kind::Blob])
}

fn column(name: &'static str, kind: Kind, nullable: bool, unique: bool) -> ColumnSpec {
    let json = false;
    ColumnSpec {
        name,
        doc: "",
        kind,
        nullable,
        json,
        one_of: &[],
        references: None,
        unique,
        scope: false,
    }
}

fn declare(
    random: &mut Random,
    name: &'static str,
    columns: Vec<ColumnSpec>,
    key: Vec<usize>,
) -> &'static TableSpec {
    let mut indexes: Vec<IndexSpec> = Vec::new();
    for _ in 0..*random.pick(&[0, 0, 1, 2, 4]) {
        let width = 1 + random.below(2.min(columns.len()));
        let first = random.below(columns.len());
        let names: Vec<&'static str> =
            (0..width).map(|at| columns[(first + at) % columns.len()].name).collect();
        if indexes.iter().any(|index| *index.columns == *names) {
            continue;
        }
        let condition = (random.below(6) == 0).then(|| {
            let text = format!("{} IS NOT NULL", names[0]);
            &*Box::leak(text.into_boxed_str())
        });
        indexes.push(IndexSpec { columns: leak(names), unique: false, condition });
    }
    let spec = TableSpec {
        shared: false,
        name,
        doc: "",
        columns: leak(columns),
        key: leak(key),
        without_rowid: random.below(3) == 0,
        indexes: leak(indexes),
        constraints: &[],
        triggers: &[],
    };
    Box::leak(Box::new(spec))
}
