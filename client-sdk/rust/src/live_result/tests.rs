//! After any sequence of changes, the kept rows equal SQLite's own result, in its order.

use std::collections::BTreeMap;

use abide_schema::wire::{Column, OrderTerm};
use proptest::collection::vec;
use proptest::prelude::*;
use rusqlite::types::Value as Sqlite;

use super::*;

const SORTED_BY: usize = 2;

/// Columns `id, a, b`, with an optional ordering by `b`.
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
        top_n: false,
    }
}

/// The server's checksum of these rows.
fn output<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Option<Checksum> {
    Some(Checksum::from_rows(rows))
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

/// Random rows with few keys, so that the same keys are inserted, changed and deleted again.
fn any_rows() -> impl Strategy<Value = BTreeMap<i64, Row>> {
    vec((0..40_i64, any_value(), any_value()), 0..40).prop_map(|rows| {
        let rows = rows.into_iter();
        rows.map(|(id, a, b)| (id, Row::from([Value::Integer(id), a, b]))).collect()
    })
}

/// The changes from one set of rows to another.
fn between(old: &BTreeMap<i64, Row>, new: &BTreeMap<i64, Row>, keyed: bool) -> Changes {
    let mut changes = Changes::default();
    for (id, row) in old {
        let stays = new.get(id);
        if stays.is_none() || (!keyed && !stays.is_some_and(|new| is_same_row(new, row))) {
            let key = if keyed { Row::from([Value::Integer(*id)]) } else { row.clone() };
            changes.deletes.push(key);
        }
    }
    for (id, row) in new {
        match old.get(id) {
            Some(old) if is_same_row(old, row) => {}
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
        let desc = if desc { "DESC" } else { "" };
        let nulls = if nulls_last { "LAST" } else { "FIRST" };
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
        // Ties can have any order: compare the sort column.
        let Some((_, _, collation)) = term else { return };
        let collation = Collation::parse(collation).expect("it is one");
        for (row, id) in rows.as_slice().iter().zip(sorted) {
            let held = &row[SORTED_BY];
            let wanted = &expected[&id][SORTED_BY];
            assert!(compare(held, wanted, collation).is_eq(), "{held:?} instead of {wanted:?}");
        }
    } else {
        assert_eq!(ids(rows), sorted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_lead_to_the_rows_of_sqlite(
        keyed: bool,
        term in any_term(),
        states in vec(any_rows(), 1..8),
    ) {
        let shape = shape(keyed, term);
        let first: Vec<Row> = states[0].values().rev().cloned().collect();
        let sum = output(&first);
        let mut rows = Rows::new(&shape, first, sum).expect("it is a snapshot");
        // Before the first change the snapshot keeps its order; an empty change sorts it.
        rows.apply(Changes::default(), sum).expect("an empty change always applies");
        holds(&rows, &states[0], term);
        for pair in states.windows(2) {
            let changes = between(&pair[0], &pair[1], keyed);
            rows.apply(changes, output(pair[1].values())).expect("the changes fit");
            holds(&rows, &pair[1], term);
        }
    }

    #[test]
    fn a_newer_snapshot_is_reported_as_a_difference(
        keyed: bool,
        term in any_term(),
        old in any_rows(),
        new in any_rows(),
    ) {
        let shape = shape(keyed, term);
        let snapshot = |rows: &BTreeMap<i64, Row>| {
            let sum = output(rows.values());
            Rows::new(&shape, rows.values().cloned().collect(), sum).expect("it is a snapshot")
        };
        let mut again = snapshot(&old);
        let mut rows = snapshot(&old);
        let changes = rows.become_snapshot(snapshot(&new));
        let expected = between(&old, &new, keyed);
        prop_assert_eq!(exact(&changes.inserts), exact(&expected.inserts));
        prop_assert_eq!(exact(&changes.updates), exact(&expected.updates));
        prop_assert_eq!(exact(&changes.deletes), exact(&expected.deletes));
        again.apply(changes, output(new.values())).expect("the difference fits");
        holds(&again, &new, term);
    }
}

/// Applies the reported positions to a list of rows, as a consumer would.
fn by_positions(mut rows: Vec<Row>, output: &Changes) -> Vec<Row> {
    let positions = output.positions.clone().unwrap_or_default();
    let key = |row: &Row| Row::from([row[0].clone()]);
    for (at, gone) in positions.deletes.iter().zip(&output.deletes) {
        assert!(is_same_row(&key(&rows.remove(*at)), gone), "the key of the row that leaves");
    }
    for (at, row) in positions.inserts.iter().zip(&output.inserts) {
        rows.insert(*at, row.clone());
    }
    for (at, row) in positions.updates.iter().zip(&output.updates) {
        rows[*at] = row.clone();
    }
    let counts = [positions.deletes.len(), positions.inserts.len(), positions.updates.len()];
    assert_eq!(counts, [output.deletes.len(), output.inserts.len(), output.updates.len()]);
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_newer_top_n_result_is_reported_by_positions(
        old in vec((0..6_i64, 0..3_i64), 0..6),
        new in vec((0..6_i64, 0..3_i64), 0..6),
    ) {
        let shape = Shape { top_n: true, ..shape(true, None) };
        let top_n = |rows: &[(i64, i64)]| -> Vec<Row> {
            let mut seen = std::collections::BTreeSet::new();
            let rows = rows.iter().filter(|(id, _)| seen.insert(*id));
            let row = |(id, v): &(i64, i64)| [Value::Integer(*id), Value::Integer(*v), Value::Null];
            rows.map(|known| Row::from(row(known))).collect()
        };
        let (old, new) = (top_n(&old), top_n(&new));
        let mut rows = Rows::new(&shape, old.clone(), output(&old)).expect("a snapshot");
        let fresh = Rows::new(&shape, new.clone(), output(&new)).expect("a snapshot");
        let changes = rows.become_snapshot(fresh);
        prop_assert_eq!(rows.as_slice(), &*new, "a top-N result keeps the order received");
        prop_assert_eq!(by_positions(old, &changes), new);
    }
}

#[test]
fn one_large_commit_equals_many_small_ones() {
    let row = |id: i64| Row::from([Value::Integer(id), Value::Null, Value::Integer(id % 7)]);
    let shape = shape(true, Some((true, false, "BINARY")));
    let mut one = Rows::new(&shape, (0..2_000).map(row).collect(), None).expect("it is a snapshot");
    let mut many =
        Rows::new(&shape, (0..2_000).map(row).collect(), None).expect("it is a snapshot");
    let key = |id: i64| Row::from([Value::Integer(id)]);
    let deletes: Vec<Row> = (500..1_500).map(key).collect();
    let inserts: Vec<Row> = (3_000..4_000).map(row).collect();
    let all = Changes { deletes: deletes.clone(), inserts: inserts.clone(), ..Changes::default() };
    one.apply(all, None).expect("it fits");
    for key in deletes {
        many.apply(Changes { deletes: vec![key], ..Changes::default() }, None).expect("it fits");
    }
    for row in inserts {
        many.apply(Changes { inserts: vec![row], ..Changes::default() }, None).expect("it fits");
    }
    assert_eq!(one.as_slice(), many.as_slice());
}

#[test]
fn a_top_n_result_has_the_order_of_the_server() {
    let row = |id: i64| Row::from([Value::Integer(id), Value::Null, Value::Null]);
    let mut rows =
        Rows::new(&shape(true, None), [3, 1, 2].map(row).to_vec(), None).expect("it is a snapshot");
    let top_n = TopNDelta {
        deletes: vec![2, 0],
        inserts: vec![PositionedRow { at: 0, row: row(9) }, PositionedRow { at: 2, row: row(8) }],
        updates: vec![PositionedRow { at: 1, row: row(7) }],
    };
    let output = rows.apply(Changes { top_n, ..Changes::default() }, None).expect("it fits");
    assert_eq!(
        ids(&rows),
        [9, 7, 8],
        "3, 1, 2 without its first and last row, with 9 before and 8 after"
    );
    assert_eq!(output.deletes, [2, 3].map(|id| Row::from([Value::Integer(id)])));
    assert_eq!((output.inserts.len(), output.updates.len()), (2, 1));
    let to_rows = |ids: [i64; 3]| ids.map(row).to_vec();
    assert_eq!(by_positions(to_rows([3, 1, 2]), &output), to_rows([9, 7, 8]));
}

#[test]
fn inconsistent_changes_are_errors() {
    let row = |id: i64| Row::from([Value::Integer(id), Value::Null, Value::Null]);
    let changes = |deletes: Vec<Row>, inserts: Vec<Row>, updates: Vec<Row>| Changes {
        deletes,
        inserts,
        updates,
        ..Changes::default()
    };
    let placed = TopNDelta { deletes: vec![1], ..TopNDelta::default() };
    for wrong in [
        changes(vec![Row::from([Value::Integer(2)])], vec![], vec![]),
        changes(vec![], vec![row(1)], vec![]),
        changes(vec![], vec![], vec![row(2)]),
        changes(vec![], vec![Row::from([Value::Integer(2)])], vec![]),
        Changes { top_n: placed, ..Changes::default() },
    ] {
        let held = vec![row(1)];
        let mut rows = Rows::new(&shape(true, None), held.clone(), None).expect("a snapshot");
        assert!(rows.apply(wrong.clone(), None).is_err(), "{wrong:?}");
        assert_eq!(rows.as_slice(), held, "nothing of it is applied");
        rows.apply(changes(vec![], vec![row(2)], vec![]), None)
            .expect("a valid change still applies");
    }
    assert!(Rows::new(&shape(true, None), vec![row(1), row(1)], None).is_err(), "a key twice");
}

/// Changes that apply, each with one cell, row or position tampered with.
#[test]
fn a_checksum_detects_wrong_changes_that_apply() {
    let row = |id: i64, a: &str| Row::from([Value::Integer(id), Value::from(a), Value::Null]);
    let key = |id: i64| Row::from([Value::Integer(id)]);
    let placed = |at: usize, row: Row| PositionedRow { at, row };
    let held = vec![row(1, "one"), row(2, "two"), row(3, "three")];
    let top_n = |deletes: Vec<usize>, inserts: Vec<PositionedRow>, updates: Vec<PositionedRow>| {
        Changes { top_n: TopNDelta { deletes, inserts, updates }, ..Changes::default() }
    };
    let rows = |deletes: Vec<Row>, inserts: Vec<Row>, updates: Vec<Row>| Changes {
        deletes,
        inserts,
        updates,
        ..Changes::default()
    };
    // Keyed or not; what the server sent; what arrived.
    let cases = [
        (true, rows(vec![key(1)], vec![], vec![]), rows(vec![key(2)], vec![], vec![])),
        (true, rows(vec![key(1)], vec![], vec![]), rows(vec![], vec![], vec![])),
        (
            true,
            rows(vec![], vec![row(4, "four")], vec![]),
            rows(vec![], vec![row(4, "Four")], vec![]),
        ),
        (true, rows(vec![], vec![row(4, "")], vec![]), rows(vec![], vec![row(5, "")], vec![])),
        (
            true,
            rows(vec![], vec![], vec![row(2, "zwei"), row(3, "drei")]),
            rows(vec![], vec![], vec![row(2, "zwei")]),
        ),
        (
            false,
            rows(vec![row(1, "one")], vec![], vec![]),
            rows(vec![row(3, "three")], vec![], vec![]),
        ),
        (
            false,
            rows(vec![], vec![row(4, "four")], vec![]),
            rows(vec![], vec![row(4, "four"), row(4, "four")], vec![]),
        ),
        (true, top_n(vec![2], vec![], vec![]), top_n(vec![1], vec![], vec![])),
        (
            true,
            top_n(vec![0], vec![placed(2, row(4, "four"))], vec![]),
            top_n(vec![], vec![placed(2, row(4, "four"))], vec![]),
        ),
        (
            true,
            top_n(vec![], vec![], vec![placed(1, row(2, "zwei"))]),
            top_n(vec![], vec![], vec![placed(1, row(2, "zwo"))]),
        ),
    ];
    for (keyed, meant, came) in cases {
        let shape = shape(keyed, None);
        let fresh = || Rows::new(&shape, held.clone(), output(&held)).expect("a snapshot");
        let mut right = fresh();
        right.apply(meant.clone(), None).expect("it fits");
        let sum = output(right.as_slice());
        fresh().apply(meant, sum).expect("it fits, and is what was meant");

        fresh().apply(came.clone(), None).expect("without the checksum nothing is noticed");
        let mut rows = fresh();
        let wrong = rows.apply(came.clone(), sum).expect_err("it is found");
        assert!(wrong.to_string().contains("checksum"), "{wrong}: {came:?}");
        assert_eq!(rows.as_slice(), held, "nothing of it is shown");
    }
    let snapshot = Rows::new(&shape(true, None), held[..2].to_vec(), output(&held));
    assert!(snapshot.is_err(), "a snapshot that lacks a row");
}
