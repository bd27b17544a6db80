//! Whatever changes come, what is kept is what SQLite itself would give, in its order.

use std::collections::BTreeMap;

use abide_schema::wire::{Column, OrderTerm};
use proptest::collection::vec;
use proptest::prelude::*;
use rusqlite::types::Value as Sqlite;

use super::*;

const SORTED_BY: usize = 2;

/// Columns `id, a, b`, ordered by `b` in some way.
fn shape(keyed: bool, term: Option<(bool, bool, &str)>) -> Shape {
    let column = |name: &str| Column { name: name.to_owned(), kind: String::new(), hidden: false };
    let order = term.map(|(desc, nulls_last, collation)| OrderTerm {
        column: "b".to_owned(),
        index: SORTED_BY,
        desc,
        nulls: if nulls_last { "last" } else { "first" }.to_owned(),
        collation: collation.to_owned(),
    });
    Shape {
        columns: ["id", "a", "b"].map(column).to_vec(),
        key: if keyed { vec!["id".to_owned()] } else { vec![] },
        order: order.into_iter().collect(),
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let near = |n: i64| prop_oneof![Just(n - 1), Just(n), Just(n + 1)];
    prop_oneof![
        Just(Value::Null),
        near(0).prop_map(Value::Integer),
        near(1 << 53).prop_map(Value::Integer),
        Just(Value::Integer(i64::MAX)),
        near(0).prop_map(|n| Value::Real(n as f64)),
        near(1 << 53).prop_map(|n| Value::Real(n as f64)),
        prop_oneof![Just(-0.0), Just(0.5), Just(9.3e18), Just(f64::NEG_INFINITY)]
            .prop_map(Value::Real),
        "[abAB \0é]{0,3}".prop_map(Value::Text),
        vec(0..3_u8, 0..3).prop_map(Value::Blob),
    ]
}

fn any_term() -> impl Strategy<Value = Option<(bool, bool, &'static str)>> {
    let collation = prop_oneof![Just("BINARY"), Just("NOCASE"), Just("RTRIM")];
    prop::option::of((any::<bool>(), any::<bool>(), collation))
}

/// Some rows of few keys, so that the same come, change and leave again.
fn any_rows() -> impl Strategy<Value = BTreeMap<i64, Row>> {
    vec((0..40_i64, any_value(), any_value()), 0..40).prop_map(|rows| {
        let rows = rows.into_iter();
        rows.map(|(id, a, b)| (id, Row::from([Value::Integer(id), a, b]))).collect()
    })
}

/// What leads from one set of rows to another.
fn between(old: &BTreeMap<i64, Row>, new: &BTreeMap<i64, Row>, keyed: bool) -> Changes {
    let mut changes = Changes::default();
    for (id, row) in old {
        let stays = new.get(id);
        if stays.is_none() || (!keyed && !stays.is_some_and(|new| same(new, row))) {
            let key = if keyed { Row::from([Value::Integer(*id)]) } else { row.clone() };
            changes.deletes.push(key);
        }
    }
    for (id, row) in new {
        match old.get(id) {
            Some(old) if same(old, row) => {}
            Some(_) if keyed => changes.updates.push(row.clone()),
            _ => changes.inserts.push(row.clone()),
        }
    }
    changes
}

/// The ids of the rows as SQLite sorts them; ties by id.
fn sqlite_sorts(rows: &BTreeMap<i64, Row>, term: Option<(bool, bool, &str)>) -> Vec<i64> {
    let database = rusqlite::Connection::open_in_memory().expect("memory");
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, b)", []).expect("a table");
    for (id, row) in rows {
        let b = match row[SORTED_BY].clone() {
            Value::Null => Sqlite::Null,
            Value::Integer(n) => Sqlite::Integer(n),
            Value::Real(x) => Sqlite::Real(x),
            Value::Text(text) => Sqlite::Text(text),
            Value::Blob(bytes) => Sqlite::Blob(bytes),
        };
        database.execute("INSERT INTO t VALUES (?, ?)", (id, b)).expect("a row");
    }
    let order = term.map(|(desc, nulls_last, collation)| {
        let (desc, nulls) =
            (if desc { "DESC" } else { "" }, if nulls_last { "LAST" } else { "FIRST" });
        format!("b COLLATE {collation} {desc} NULLS {nulls}, ")
    });
    let sql = format!("SELECT id FROM t ORDER BY {}id", order.unwrap_or_default());
    let mut query = database.prepare(&sql).expect("a query");
    let ids = query.query_map([], |row| row.get(0)).expect("rows");
    ids.collect::<Result<_, _>>().expect("ids")
}

fn ids(rows: &Rows) -> Vec<i64> {
    let ids = rows.as_slice().iter().map(|row| match row[0] {
        Value::Integer(id) => id,
        _ => panic!("an id is an integer"),
    });
    ids.collect()
}

fn exact<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<String> {
    let mut texts: Vec<String> = rows.into_iter().map(|row| format!("{row:?}")).collect();
    texts.sort();
    texts
}

#[track_caller]
fn holds(rows: &Rows, expected: &BTreeMap<i64, Row>, term: Option<(bool, bool, &str)>) {
    assert_eq!(exact(rows.as_slice()), exact(expected.values()));
    let sorted = sqlite_sorts(expected, term);
    if rows.layout.key.is_empty() {
        // Ties may stand in any order: compare what is sorted by.
        let Some((_, _, collation)) = term else { return };
        let collation = Collation::parse(collation).expect("it is one");
        for (row, id) in rows.as_slice().iter().zip(sorted) {
            let (held, wanted) = (&row[SORTED_BY], &expected[&id][SORTED_BY]);
            assert!(compare(held, wanted, collation).is_eq(), "{held:?} stands for {wanted:?}");
        }
    } else {
        assert_eq!(ids(rows), sorted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_give_what_sqlite_gives(
        keyed: bool,
        term in any_term(),
        states in vec(any_rows(), 1..8),
    ) {
        let shape = shape(keyed, term);
        let first = states[0].values().rev().cloned().collect();
        let mut rows = Rows::new(&shape, first).expect("it is a snapshot");
        // Before anything changes, what came first stands as it came; here it is sorted at once.
        rows.apply(Changes::default()).expect("nothing fits everywhere");
        holds(&rows, &states[0], term);
        for pair in states.windows(2) {
            rows.apply(between(&pair[0], &pair[1], keyed)).expect("the changes fit");
            holds(&rows, &pair[1], term);
        }
    }

    #[test]
    fn a_newer_snapshot_is_told_as_its_difference(
        keyed: bool,
        term in any_term(),
        old in any_rows(),
        new in any_rows(),
    ) {
        let shape = shape(keyed, term);
        let snapshot = |rows: &BTreeMap<i64, Row>| {
            Rows::new(&shape, rows.values().cloned().collect()).expect("it is a snapshot")
        };
        let mut told = snapshot(&old);
        let mut rows = snapshot(&old);
        let changes = rows.become_snapshot(snapshot(&new));
        let expected = between(&old, &new, keyed);
        prop_assert_eq!(exact(&changes.inserts), exact(&expected.inserts));
        prop_assert_eq!(exact(&changes.updates), exact(&expected.updates));
        prop_assert_eq!(exact(&changes.deletes), exact(&expected.deletes));
        told.apply(changes).expect("the difference fits");
        holds(&told, &new, term);
    }
}

#[test]
fn one_commit_of_many_rows_and_many_of_one_give_the_same() {
    let row = |id: i64| Row::from([Value::Integer(id), Value::Null, Value::Integer(id % 7)]);
    let shape = shape(true, Some((true, false, "BINARY")));
    let mut one = Rows::new(&shape, (0..2_000).map(row).collect()).expect("it is a snapshot");
    let mut many = Rows::new(&shape, (0..2_000).map(row).collect()).expect("it is a snapshot");
    let key = |id: i64| Row::from([Value::Integer(id)]);
    let deletes: Vec<Row> = (500..1_500).map(key).collect();
    let inserts: Vec<Row> = (3_000..4_000).map(row).collect();
    one.apply(Changes { deletes: deletes.clone(), inserts: inserts.clone(), ..Changes::default() })
        .expect("it fits");
    for key in deletes {
        many.apply(Changes { deletes: vec![key], ..Changes::default() }).expect("it fits");
    }
    for row in inserts {
        many.apply(Changes { inserts: vec![row], ..Changes::default() }).expect("it fits");
    }
    assert_eq!(one.as_slice(), many.as_slice());
}

#[test]
fn a_window_stands_as_the_server_says() {
    let row = |id: i64| Row::from([Value::Integer(id), Value::Null, Value::Null]);
    let mut rows =
        Rows::new(&shape(true, None), [3, 1, 2].map(row).to_vec()).expect("it is a snapshot");
    let window = Window {
        deletes: vec![2, 0],
        inserts: vec![Placed { at: 0, row: row(9) }, Placed { at: 2, row: row(8) }],
        updates: vec![Placed { at: 1, row: row(7) }],
    };
    let told = rows.apply(Changes { window, ..Changes::default() }).expect("it fits");
    assert_eq!(ids(&rows), [9, 7, 8], "3, 1, 2 without its ends, with 9 before and 8 behind");
    assert_eq!(told.deletes, [2, 3].map(|id| Row::from([Value::Integer(id)])));
    assert_eq!((told.inserts.len(), told.updates.len()), (2, 1));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let row = |id: i64| Row::from([Value::Integer(id), Value::Null, Value::Null]);
    let changes = |deletes: Vec<Row>, inserts: Vec<Row>, updates: Vec<Row>| Changes {
        deletes,
        inserts,
        updates,
        ..Changes::default()
    };
    let placed = Window { deletes: vec![1], ..Window::default() };
    for wrong in [
        changes(vec![Row::from([Value::Integer(2)])], vec![], vec![]),
        changes(vec![], vec![row(1)], vec![]),
        changes(vec![], vec![], vec![row(2)]),
        changes(vec![], vec![Row::from([Value::Integer(2)])], vec![]),
        Changes { window: placed, ..Changes::default() },
    ] {
        let mut rows = Rows::new(&shape(true, None), vec![row(1)]).expect("it is a snapshot");
        assert!(rows.apply(wrong.clone()).is_err(), "{wrong:?}");
    }
    assert!(Rows::new(&shape(true, None), vec![row(1), row(1)]).is_err(), "a key twice");
}
