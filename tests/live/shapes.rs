//! The shape of a result: SQLite's column names, types, key, order, hidden columns.

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
    let key = shape.key.join(", ");
    expected.assert_eq(&format!("columns {columns}\nkey {key}\norder {order}\n"));

    // SQLite determines the names.
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
        expect![[r#"
        columns id:INTEGER, a:INTEGER, b:INTEGER, c:TEXT, x:REAL, z:BLOB
        key id
        order 
    "#]],
    );
    check(
        "SELECT ID, (A), +b, a  +  1, a+1 AS n FROM r",
        expect![[r#"
        columns id:INTEGER, a:INTEGER, +b:, a  +  1:, n:
        key id
        order 
    "#]],
    );
    check(
        "SELECT 'x', n.c COLLATE NOCASE, c IS DISTINCT FROM 'y', \"c\" FROM r n",
        expect![[r#"
        columns 'x':, n.c COLLATE NOCASE:TEXT, c IS DISTINCT FROM 'y':, c:TEXT
        key 
        order 
    "#]],
    );
    check(
        "SELECT rowid, max(a, b) /* why */ FROM r -- so",
        expect![[r#"
        columns id:INTEGER, max(a, b) /* why */:
        key id
        order 
    "#]],
    );
    check(
        "SELECT r.*, r.id FROM r",
        expect![[r#"
        columns id:INTEGER, a:INTEGER, b:INTEGER, c:TEXT, x:REAL, z:BLOB, id:INTEGER
        key id
        order 
    "#]],
    );
    check(
        "SELECT CASE a WHEN 1 THEN 2 END FROM r",
        expect![[r#"
        columns CASE a WHEN 1 THEN 2 END:
        key 
        order 
    "#]],
    );
}

#[test]
fn the_key_is_the_primary_key_if_all_of_it_is_shown() {
    check(
        "SELECT n, g FROM p",
        expect![[r#"
        columns n:INTEGER, g:TEXT
        key g, n
        order 
    "#]],
    );
    check(
        "SELECT n, v FROM p",
        expect![[r#"
        columns n:INTEGER, v:REAL
        key 
        order 
    "#]],
    );
    check(
        "SELECT g AS n, n AS g FROM p",
        expect![[r#"
        columns n:TEXT, g:INTEGER
        key n, g
        order 
    "#]],
    );
    check(
        "SELECT a AS id, id FROM r",
        expect![[r#"
        columns id:INTEGER, id:INTEGER
        key 
        order 
    "#]],
    );
    check(
        "SELECT id + 0 AS id FROM r",
        expect![[r#"
        columns id:
        key 
        order 
    "#]],
    );
}

#[test]
fn order_names_columns_and_adds_hidden_ones() {
    check(
        "SELECT id, c AS a FROM r ORDER BY a DESC, b, 1 NULLS LAST",
        expect![[r#"
        columns id:INTEGER, a:TEXT, order2:INTEGER hidden
        key id
        order a@1 desc nulls last BINARY, order2@2 asc nulls first BINARY, id@0 asc nulls last BINARY
    "#]],
    );
    check(
        "SELECT id, c COLLATE NOCASE AS n FROM r ORDER BY n, c, lower(c), c COLLATE RTRIM",
        expect![[r#"
            columns id:INTEGER, n:TEXT, order2:TEXT hidden, order3: hidden
            key id
            order n@1 asc nulls first NOCASE, order2@2 asc nulls first BINARY, order3@3 asc nulls first BINARY, order2@2 asc nulls first RTRIM
        "#]],
    );
}

#[test]
fn an_explanation_has_keys_and_statements() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let sql = "SELECT id FROM r WHERE a = 1 AND (b = 2 OR c = 'x')";
    let binding = planner.bind(sql, &Map::new()).expect("the query can be live");
    expect![[r#"
        Explanation {
            rule: "row_filter",
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

/// Every query with its rule, its route and its scans.
pub(crate) fn check_costs(queries: &[&str], expected: Expect) {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut output = String::new();
    for sql in queries {
        let binding = planner.bind(sql, &Map::new()).expect("the query can be live");
        let explanation = binding.explain();
        let scans = binding.scans(&mut world.db).expect("SQLite explains its plans");
        let mut scans: Vec<String> = scans
            .iter()
            .map(|scan| {
                let part = scan.purpose.name();
                let table = scan.table;
                format!(", {part} scans {table}({})", scan.columns.join(", "))
            })
            .collect();
        scans.dedup();
        let rule = explanation.rule;
        let cost = explanation.cost;
        let keys = explanation.routed_by.join("; ");
        let scans = scans.concat();
        output += &format!("{sql}\n    {rule}: {cost}\n    {keys}{scans}\n");
    }
    expected.assert_eq(&output);
}

#[test]
fn each_query_has_the_cheapest_rule() {
    check_costs(
        &[
            "SELECT id FROM r WHERE a = 1",
            "SELECT r.id, s.k FROM r JOIN s ON s.b = r.b WHERE r.a = 1",
            "SELECT r.c, s.n FROM r JOIN s ON s.n = r.id WHERE r.id = 1",
            "SELECT a, count(*) FROM r WHERE b = 1 GROUP BY a",
            "SELECT DISTINCT a FROM r WHERE b = 1",
            "SELECT r.id, s.k FROM r LEFT JOIN s ON s.b = r.b WHERE r.a = 1",
            "SELECT r.id, count(p.g) FROM r LEFT JOIN p ON p.r_id = r.id GROUP BY r.id",
            "SELECT id FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.b = r.b AND s.n = 1)",
            "SELECT id FROM r WHERE b NOT IN (SELECT b FROM s)",
            "SELECT id, (SELECT count(*) FROM p WHERE p.r_id = r.id) FROM r WHERE a = 1",
            "SELECT r.id, s.k FROM r FULL JOIN s ON s.b = r.b",
            "SELECT a FROM r WHERE b = 1 UNION SELECT n FROM s WHERE b = 2",
            "SELECT bee FROM positive WHERE id = 1",
            "SELECT n FROM (SELECT a, count(*) AS n FROM r WHERE b = 1 GROUP BY a)",
        ],
        expect![[r#"
            SELECT id FROM r WHERE a = 1
                row_filter: the changed rows that match its keys
                r: a
            SELECT r.id, s.k FROM r JOIN s ON s.b = r.b WHERE r.a = 1
                join: the joined rows of the changed rows
                r: a; s: a shared lookup
            SELECT r.c, s.n FROM r JOIN s ON s.n = r.id WHERE r.id = 1
                join: the joined rows of the changed rows
                r: id; s: n, term scans s(n)
            SELECT a, count(*) FROM r WHERE b = 1 GROUP BY a
                incremental_aggregate: the joined rows of the changed rows; a touched group on first use
                r: b
            SELECT DISTINCT a FROM r WHERE b = 1
                incremental_aggregate: the joined rows of the changed rows; a touched group on first use
                r: b
            SELECT r.id, s.k FROM r LEFT JOIN s ON s.b = r.b WHERE r.a = 1
                row_reevaluation: the rows that the changed rows reach, twice
                r: a; s: a shared lookup
            SELECT r.id, count(p.g) FROM r LEFT JOIN p ON p.r_id = r.id GROUP BY r.id
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; p: every change
            SELECT id FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.b = r.b AND s.n = 1)
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; s: n
            SELECT id FROM r WHERE b NOT IN (SELECT b FROM s)
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; s: every change, term scans r()
            SELECT id, (SELECT count(*) FROM p WHERE p.r_id = r.id) FROM r WHERE a = 1
                row_reevaluation: the rows that the changed rows reach, twice
                r: a; p: a shared lookup
            SELECT r.id, s.k FROM r FULL JOIN s ON s.b = r.b
                partition_reevaluation: the rows of the touched join keys, twice
                r: every change; s: every change
            SELECT a FROM r WHERE b = 1 UNION SELECT n FROM s WHERE b = 2
                partition_reevaluation: the rows equal to the touched ones, twice
                r: b; s: b
            SELECT bee FROM positive WHERE id = 1
                row_filter: the changed rows that match its keys
                r: id
            SELECT n FROM (SELECT a, count(*) AS n FROM r WHERE b = 1 GROUP BY a)
                partition_reevaluation: the rows of the touched groups, twice
                r: b
        "#]],
    );
}

#[test]
fn each_query_with_a_limit_has_the_cheapest_rule() {
    check_costs(
        &[
            "SELECT id FROM r WHERE a = 1 ORDER BY b LIMIT 10",
            "SELECT b, count(*) FROM r WHERE a = 1 GROUP BY b ORDER BY 2 LIMIT 10",
        ],
        expect![[r#"
            SELECT id FROM r WHERE a = 1 ORDER BY b LIMIT 10
                top_n: the top-N result, if a changed row sorts before its end
                r: a
            SELECT b, count(*) FROM r WHERE a = 1 GROUP BY b ORDER BY 2 LIMIT 10
                conditional_reevaluation: the whole query, if a changed row matches
                r: a
        "#]],
    );
}

/// The indexes required by queries that may not be live without one.
fn check_gate(queries: &[&str], expected: Expect) {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut output = String::new();
    for sql in queries {
        let binding = planner.bind(sql, &Map::new()).expect("it is a query");
        assert_eq!(binding.verdict(), None, "{sql}");
        let verdict_found =
            binding.check_plan(&mut world.db).expect("SQLite explains its plans").clone();
        assert_eq!(binding.verdict(), Some(&verdict_found), "the verdict is cached");
        output += &match verdict_found {
            Ok(()) => format!("{sql}\n    may be live\n"),
            Err(no) => {
                format!("{sql}\n    {}: {}\n    {}\n", no.code, no.detail, no.hint.expect("a hint"))
            }
        };
    }
    expected.assert_eq(&output);
}

#[test]
fn a_query_that_would_scan_a_table_at_every_commit_names_the_missing_index() {
    check_gate(
        &[
            "SELECT r.c, s.n FROM r JOIN s ON s.n = r.b",
            "SELECT r.c FROM r LEFT JOIN s ON s.n = r.b",
            "SELECT id FROM r WHERE x IN (SELECT v FROM p)",
            "SELECT r.a, count(*) FROM r JOIN s ON s.n = r.b GROUP BY r.a",
            "SELECT r.id FROM r JOIN s ON s.n = r.b ORDER BY r.id LIMIT 3",
            "SELECT r.id FROM r JOIN s ON s.k = r.c JOIN p ON p.n = s.n",
            "SELECT r.id FROM r, s WHERE s.n = 4",
            "SELECT r.id FROM r JOIN s ON s.b = r.b JOIN p ON p.r_id = r.id",
            // No index avoids these scans: no equality, all rows needed, another affinity.
            "SELECT r.id FROM r JOIN s ON s.n < r.b",
            "SELECT r.id FROM r, s",
            "SELECT id FROM r WHERE b NOT IN (SELECT b FROM s)",
            "SELECT r.id FROM r JOIN s ON s.c = r.id",
            // Evaluations of a whole query may scan.
            "SELECT r.id FROM r FULL JOIN s ON s.n = r.b",
            "SELECT DISTINCT x FROM r",
        ],
        expect![[r#"
            SELECT r.c, s.n FROM r JOIN s ON s.n = r.b
                unsupported_sql: every change would scan s, which has no index on n
                declare `#[table(name = "s", index(n))]`, which is `CREATE INDEX s_n ON s (n)`, or run it once with `abide sql`
            SELECT r.c FROM r LEFT JOIN s ON s.n = r.b
                may be live
            SELECT id FROM r WHERE x IN (SELECT v FROM p)
                unsupported_sql: every change would scan r, which has no index on x
                declare `#[table(name = "r", index(x))]`, which is `CREATE INDEX r_x ON r (x)`, or run it once with `abide sql`
            SELECT r.a, count(*) FROM r JOIN s ON s.n = r.b GROUP BY r.a
                unsupported_sql: every change would scan s, which has no index on n
                declare `#[table(name = "s", index(n))]`, which is `CREATE INDEX s_n ON s (n)`, or run it once with `abide sql`
            SELECT r.id FROM r JOIN s ON s.n = r.b ORDER BY r.id LIMIT 3
                unsupported_sql: every change would scan s, which has no index on n
                declare `#[table(name = "s", index(n))]`, which is `CREATE INDEX s_n ON s (n)`, or run it once with `abide sql`
            SELECT r.id FROM r JOIN s ON s.k = r.c JOIN p ON p.n = s.n
                unsupported_sql: every change would scan p, which has no index on n
                declare `#[table(name = "p", index(n))]`, which is `CREATE INDEX p_n ON p (n)`, or run it once with `abide sql`
            SELECT r.id FROM r, s WHERE s.n = 4
                unsupported_sql: every change would scan s, which has no index on n
                declare `#[table(name = "s", index(n))]`, which is `CREATE INDEX s_n ON s (n)`, or run it once with `abide sql`
            SELECT r.id FROM r JOIN s ON s.b = r.b JOIN p ON p.r_id = r.id
                may be live
            SELECT r.id FROM r JOIN s ON s.n < r.b
                may be live
            SELECT r.id FROM r, s
                may be live
            SELECT id FROM r WHERE b NOT IN (SELECT b FROM s)
                may be live
            SELECT r.id FROM r JOIN s ON s.c = r.id
                may be live
            SELECT r.id FROM r FULL JOIN s ON s.n = r.b
                may be live
            SELECT DISTINCT x FROM r
                may be live
        "#]],
    );
}

/// The binding's parameter is on s, which changes of r reach by s.n: the term may use the index on
/// s.b instead, but the lookup for all bindings cannot.
#[test]
fn a_lookup_needs_its_index_too() {
    check_gate(
        &["SELECT r.id FROM r JOIN s ON s.n = r.b WHERE s.b = 1"],
        expect![[r#"
            SELECT r.id FROM r JOIN s ON s.n = r.b WHERE s.b = 1
                unsupported_sql: every change would scan s, which has no index on n
                declare `#[table(name = "s", index(n))]`, which is `CREATE INDEX s_n ON s (n)`, or run it once with `abide sql`
        "#]],
    );
}
