//! What a result looks like: names as SQLite gives them, types, key, order, hidden columns.

use std::sync::Arc;

use abide_live::Planner;
use expect_test::{Expect, expect};
use serde_json::Map;

use crate::world::World;

fn check(sql: &str, expected: Expect) {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let binding =
        planner.bind(sql, &Map::new()).unwrap_or_else(|refusal| panic!("{sql}: {refusal}"));
    let shape = binding.shape();
    let columns = shape.columns.iter().map(|column| {
        let hidden = if column.hidden { " hidden" } else { "" };
        format!("{}:{}{hidden}", column.name, column.kind)
    });
    let order = shape.order.iter().map(|term| {
        let desc = if term.desc { "desc" } else { "asc" };
        format!("{}@{} {desc} nulls {} {}", term.column, term.index, term.nulls, term.collation)
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    let order = order.collect::<Vec<_>>().join(", ");
    expected.assert_eq(&format!("{columns} | {} | {order}", shape.key.join(", ")));

    // SQLite is the judge of names.
    let names = |sql: &str| -> Vec<String> {
        let statement = world.db.0.prepare(sql).expect("SQLite takes it");
        statement.column_names().map(str::to_owned).collect()
    };
    let visible: Vec<String> = shape
        .columns
        .iter()
        .filter(|column| !column.hidden)
        .map(|column| column.name.clone())
        .collect();
    assert_eq!(names(sql), visible, "the names of {sql}");
    let all: Vec<String> = shape.columns.iter().map(|column| column.name.clone()).collect();
    assert_eq!(names(binding.snapshot_sql()), all, "the names of {}", binding.snapshot_sql());
    world.query(binding.snapshot_sql(), binding.params()).expect("the snapshot runs");
}

#[test]
fn columns_are_named_as_sqlite_names_them() {
    check(
        "SELECT * FROM r",
        expect!["id:INTEGER, a:INTEGER, b:INTEGER, c:TEXT, x:REAL, z:BLOB | id | "],
    );
    check(
        "SELECT ID, (A), +b, a  +  1, a+1 AS n FROM r",
        expect!["id:INTEGER, a:INTEGER, +b:, a  +  1:, n: | id | "],
    );
    check(
        "SELECT 'x', count_of.c COLLATE NOCASE, c IS DISTINCT FROM 'y', \"c\" FROM r count_of",
        expect!["'x':, count_of.c COLLATE NOCASE:TEXT, c IS DISTINCT FROM 'y':, c:TEXT |  | "],
    );
    check(
        "SELECT rowid, max(a, b) /* why */ FROM r -- so",
        expect!["id:INTEGER, max(a, b) /* why */: | id | "],
    );
    check(
        "SELECT r.*, r.id FROM r",
        expect!["id:INTEGER, a:INTEGER, b:INTEGER, c:TEXT, x:REAL, z:BLOB, id:INTEGER | id | "],
    );
    check("SELECT CASE a WHEN 1 THEN 2 END FROM r", expect!["CASE a WHEN 1 THEN 2 END: |  | "]);
}

#[test]
fn the_key_is_the_primary_key_where_all_of_it_is_shown() {
    check("SELECT n, g FROM p", expect!["n:INTEGER, g:TEXT | g, n | "]);
    check("SELECT n, v FROM p", expect!["n:INTEGER, v:REAL |  | "]);
    check("SELECT g AS n, n AS g FROM p", expect!["n:TEXT, g:INTEGER | n, g | "]);
    check("SELECT a AS id, id FROM r", expect!["id:INTEGER, id:INTEGER |  | "]);
    check("SELECT id + 0 AS id FROM r", expect!["id: |  | "]);
}

#[test]
fn order_names_columns_and_hides_what_is_not_shown() {
    check(
        "SELECT id, c AS a FROM r ORDER BY a DESC, b, 1 NULLS LAST",
        expect![
            "id:INTEGER, a:TEXT, order2:INTEGER hidden | id | a@1 desc nulls last BINARY, order2@2 asc nulls first BINARY, id@0 asc nulls last BINARY"
        ],
    );
    check(
        "SELECT id, c COLLATE NOCASE AS n FROM r ORDER BY n, c, lower(c), c COLLATE RTRIM",
        expect![
            "id:INTEGER, n:TEXT, order2:TEXT hidden, order3: hidden | id | n@1 asc nulls first NOCASE, order2@2 asc nulls first BINARY, order3@3 asc nulls first BINARY, order2@2 asc nulls first RTRIM"
        ],
    );
}

#[test]
fn an_explanation_tells_keys_and_statements() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let sql = "SELECT id FROM r WHERE a = 1 AND (b = 2 OR c = 'x')";
    let binding = planner.bind(sql, &Map::new()).expect("it can be live");
    expect![[r#"
        Explanation {
            cost: "the changed rows that match its keys",
            statements: [
                "SELECT \"d_r\"._i, \"d_r\".\"id\" FROM temp.\"d_r\" AS \"d_r\" WHERE (\"d_r\".\"a\" = ?1) AND ((\"d_r\".\"b\" = ?2 OR \"d_r\".\"c\" = ?3)) AND (\"d_r\"._i BETWEEN ?4 AND ?5) ORDER BY \"d_r\"._i",
            ],
            state: "none",
            routed_by: [
                "r: a, b or a, c",
            ],
        }"#]].assert_eq(&format!("{:#?}", binding.explain()));
}

fn check_cost(sql: &str, expected: Expect) {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let binding =
        planner.bind(sql, &Map::new()).unwrap_or_else(|refusal| panic!("{sql}: {refusal}"));
    let explanation = binding.explain();
    let scans = binding.scans(&mut world.db).expect("SQLite explains its plans");
    let mut scans: Vec<String> =
        scans.iter().map(|scan| format!("{}({})", scan.table, scan.columns.join(", "))).collect();
    scans.dedup();
    let (cost, keys) = (explanation.cost, explanation.routed_by.join("; "));
    expected.assert_eq(&format!("{cost} | {keys} | scans {}", scans.join(", ")));
}

#[test]
fn each_query_has_the_cheapest_rule() {
    check_cost(
        "SELECT id FROM r WHERE a = 1",
        expect!["the changed rows that match its keys | r: a | scans "],
    );
    check_cost(
        "SELECT r.id, s.k FROM r JOIN s ON s.b = r.b WHERE r.a = 1",
        expect!["the joined rows of the changed rows | r: a; s: every change | scans "],
    );
    check_cost(
        "SELECT r.c, s.n FROM r JOIN s ON s.n = r.id WHERE r.id = 1",
        expect!["the joined rows of the changed rows | r: id; s: n | scans "],
    );
    check_cost(
        "SELECT a, count(*) FROM r WHERE b = 1 GROUP BY a",
        expect!["the rows of the touched groups, twice | r: b | scans "],
    );
    check_cost(
        "SELECT count(*) FROM r WHERE b = 1",
        expect!["the rows of the touched groups, twice | r: b | scans "],
    );
    check_cost(
        "SELECT DISTINCT a FROM r WHERE b = 1",
        expect!["the rows of the touched groups, twice | r: b | scans "],
    );
    check_cost(
        "SELECT r.id, s.k FROM r LEFT JOIN s ON s.b = r.b WHERE r.a = 1",
        expect!["the rows that the changed rows reach, twice | r: a; s: every change | scans "],
    );
    check_cost(
        "SELECT r.id, count(p.g) FROM r LEFT JOIN p ON p.r_id = r.id GROUP BY r.id",
        expect![
            "the rows that the changed rows reach, twice | r: every change; p: every change | scans "
        ],
    );
    check_cost(
        "SELECT id FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.b = r.b AND s.n = 1)",
        expect!["the rows that the changed rows reach, twice | r: every change; s: n | scans "],
    );
    check_cost(
        "SELECT id FROM r WHERE b NOT IN (SELECT b FROM s)",
        expect![
            "the rows that the changed rows reach, twice | r: every change; s: every change | scans r()"
        ],
    );
    check_cost(
        "SELECT id, (SELECT count(*) FROM p WHERE p.r_id = r.id) FROM r WHERE a = 1",
        expect!["the rows that the changed rows reach, twice | r: a; p: every change | scans "],
    );
    check_cost(
        "SELECT id FROM r WHERE a = 1 ORDER BY b LIMIT 10",
        expect!["the window, twice, where a changed row matches | r: a | scans "],
    );
    check_cost(
        "SELECT r.id, s.k FROM r FULL JOIN s ON s.b = r.b",
        expect!["the whole query, twice | r: every change; s: every change | scans r(b), s(b)"],
    );
    check_cost(
        "SELECT a FROM r WHERE b = 1 UNION SELECT n FROM s WHERE b = 2",
        expect!["the whole query, twice | r: b; s: b | scans "],
    );
    check_cost(
        "SELECT bee FROM positive WHERE id = 1",
        expect!["the changed rows that match its keys | r: id | scans "],
    );
    check_cost(
        "SELECT n FROM (SELECT a, count(*) AS n FROM r WHERE b = 1 GROUP BY a)",
        expect!["the whole query, twice | r: b | scans "],
    );
}
