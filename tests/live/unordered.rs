//! Results that depend on the order of unordered rows: the order is made total if that keeps the
//! meaning, otherwise the query is refused with an alternative.

use std::sync::Arc;

use abide_live::Planner;
use expect_test::expect;
use serde_json::Map;

use crate::refusals::check;
use crate::world::World;

#[test]
fn windows_get_the_keys_of_their_rows() {
    check(
        &[
            "SELECT row_number() OVER (ORDER BY a) FROM r",
            "SELECT lag(c) OVER (PARTITION BY a ORDER BY b RANGE 1 PRECEDING) FROM r",
            "SELECT rank() OVER (ORDER BY a) FROM r",
            "SELECT sum(a) OVER (ORDER BY b) FROM r",
            "SELECT sum(a) OVER (ORDER BY b ROWS 1 PRECEDING) FROM r",
            "SELECT sum(x) OVER (PARTITION BY a) FROM r",
            "SELECT first_value(c) OVER (ORDER BY b) FROM r",
            "SELECT last_value(c) OVER (ORDER BY b RANGE BETWEEN CURRENT ROW AND UNBOUNDED \
             FOLLOWING) FROM r",
            "SELECT last_value(c) OVER (ORDER BY b, id) FROM r",
            "SELECT row_number() OVER (ORDER BY s.n) FROM r JOIN s ON s.k = r.c",
            "SELECT a, row_number() OVER (ORDER BY count(*)) FROM r GROUP BY a",
            "SELECT row_number() OVER w FROM p WINDOW v AS (PARTITION BY g), w AS (v ORDER BY v)",
        ],
        expect![[r#"
            SELECT row_number() OVER (ORDER BY a) FROM r
                live: SELECT row_number() OVER (ORDER BY "r"."a", "r"."id") AS "row_number() OVER (ORDER BY a)" FROM main."r" AS "r"
            SELECT lag(c) OVER (PARTITION BY a ORDER BY b RANGE 1 PRECEDING) FROM r
                live: SELECT lag("r"."c") OVER (PARTITION BY "r"."a" ORDER BY "r"."b", "r"."id") AS "lag(c) OVER (PARTITION BY a ORDER BY b RANGE 1 PRECEDING)" FROM main."r" AS "r"
            SELECT rank() OVER (ORDER BY a) FROM r
                live: SELECT rank() OVER (ORDER BY "r"."a") AS "rank() OVER (ORDER BY a)" FROM main."r" AS "r"
            SELECT sum(a) OVER (ORDER BY b) FROM r
                live: SELECT sum("r"."a") OVER (ORDER BY "r"."b") AS "sum(a) OVER (ORDER BY b)" FROM main."r" AS "r"
            SELECT sum(a) OVER (ORDER BY b ROWS 1 PRECEDING) FROM r
                live: SELECT sum("r"."a") OVER (ORDER BY "r"."b", "r"."id" ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS "sum(a) OVER (ORDER BY b ROWS 1 PRECEDING)" FROM main."r" AS "r"
            SELECT sum(x) OVER (PARTITION BY a) FROM r
                live: SELECT sum("r"."x") OVER (PARTITION BY "r"."a" ORDER BY "r"."id" ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS "sum(x) OVER (PARTITION BY a)" FROM main."r" AS "r"
            SELECT first_value(c) OVER (ORDER BY b) FROM r
                live: SELECT first_value("r"."c") OVER (ORDER BY "r"."b", "r"."id" ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS "first_value(c) OVER (ORDER BY b)" FROM main."r" AS "r"
            SELECT last_value(c) OVER (ORDER BY b RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) FROM r
                live: SELECT last_value("r"."c") OVER (ORDER BY "r"."b", "r"."id" ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS "last_value(c) OVER (ORDER BY b RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)" FROM main."r" AS "r"
            SELECT last_value(c) OVER (ORDER BY b, id) FROM r
                live: SELECT last_value("r"."c") OVER (ORDER BY "r"."b", "r"."id") AS "last_value(c) OVER (ORDER BY b, id)" FROM main."r" AS "r"
            SELECT row_number() OVER (ORDER BY s.n) FROM r JOIN s ON s.k = r.c
                live: SELECT row_number() OVER (ORDER BY "s"."n", "r"."id") AS "row_number() OVER (ORDER BY s.n)" FROM main."r" AS "r" JOIN main."s" AS "s" WHERE ("s"."k" = "r"."c")
            SELECT a, row_number() OVER (ORDER BY count(*)) FROM r GROUP BY a
                live: SELECT "r"."a" AS "a", row_number() OVER (ORDER BY count(*), "r"."a") AS "row_number() OVER (ORDER BY count(*))" FROM main."r" AS "r" GROUP BY ("r"."a")
            SELECT row_number() OVER w FROM p WINDOW v AS (PARTITION BY g), w AS (v ORDER BY v)
                live: SELECT row_number() OVER (PARTITION BY "p"."g" ORDER BY "p"."v", "p"."n") AS "row_number() OVER w" FROM main."p" AS "p"
        "#]],
    );
}

#[test]
fn windows_bounded_by_peers_are_refused() {
    check(
        &[
            "SELECT last_value(c) OVER (ORDER BY b) FROM r",
            "SELECT nth_value(c, 2) OVER (ORDER BY b) FROM r",
            "SELECT group_concat(c) OVER (ORDER BY b) FROM r",
            "SELECT sum(x) OVER (ORDER BY b) FROM r",
            "SELECT min(coalesce(a, x)) OVER (ORDER BY b) FROM r",
            "SELECT first_value(c) OVER (ORDER BY b GROUPS 1 PRECEDING) FROM r",
            "SELECT count(*) OVER (ORDER BY b ROWS 2 PRECEDING EXCLUDE TIES) FROM r",
            "SELECT row_number() OVER () FROM (SELECT a FROM r UNION ALL SELECT n FROM s)",
        ],
        expect![[r#"
            SELECT last_value(c) OVER (ORDER BY b) FROM r
                unsupported_sql: last_value() over rows that can be peers in its window cannot be live
                add a key to the window's ORDER BY, or use a ROWS frame
            SELECT nth_value(c, 2) OVER (ORDER BY b) FROM r
                unsupported_sql: nth_value() over rows that can be peers in its window cannot be live
                add a key to the window's ORDER BY, or use a ROWS frame
            SELECT group_concat(c) OVER (ORDER BY b) FROM r
                unsupported_sql: group_concat() over rows that can be peers in its window cannot be live
                add a key to the window's ORDER BY, or use a ROWS frame
            SELECT sum(x) OVER (ORDER BY b) FROM r
                unsupported_sql: sum() over rows that can be peers in its window cannot be live
                add a key to the window's ORDER BY, or use a ROWS frame
            SELECT min(coalesce(a, x)) OVER (ORDER BY b) FROM r
                unsupported_sql: min() over rows that can be peers in its window cannot be live
                add a key to the window's ORDER BY, or use a ROWS frame
            SELECT first_value(c) OVER (ORDER BY b GROUPS 1 PRECEDING) FROM r
                unsupported_sql: first_value() over rows that can be peers in its window cannot be live
                add a key to the window's ORDER BY, or use a ROWS frame
            SELECT count(*) OVER (ORDER BY b ROWS 2 PRECEDING EXCLUDE TIES) FROM r
                unsupported_sql: count() over rows that can be peers in its window cannot be live
                add a key to the window's ORDER BY, or use a ROWS frame
            SELECT row_number() OVER () FROM (SELECT a FROM r UNION ALL SELECT n FROM s)
                unsupported_sql: row_number() over rows without a unique key cannot be live
                select the keys of the tables in every subquery of FROM
        "#]],
    );
}

#[test]
fn invalid_windows_are_refused() {
    check(
        &[
            "SELECT row_number() FROM r",
            "SELECT id FROM r WHERE row_number() OVER () = 1",
            "SELECT a FROM r GROUP BY a HAVING rank() OVER (ORDER BY a) = 1",
            "SELECT sum(row_number() OVER ()) FROM r",
            "SELECT sum(rank() OVER ()) OVER () FROM r",
            "SELECT abs(a) OVER () FROM r",
            "SELECT count(DISTINCT a) OVER () FROM r",
            "SELECT row_number() FILTER (WHERE a > 1) OVER () FROM r",
            "SELECT count(*) OVER nowhere FROM r",
            "SELECT count(*) OVER (w PARTITION BY a) FROM r WINDOW w AS (PARTITION BY b)",
            "SELECT count(*) OVER (w ORDER BY a) FROM r WINDOW w AS (ORDER BY b)",
            "SELECT count(*) OVER (w) FROM r WINDOW w AS (ORDER BY b ROWS 1 PRECEDING)",
            "SELECT count(*) OVER (ORDER BY a ROWS b PRECEDING) FROM r",
            "SELECT a, row_number() OVER (ORDER BY b) FROM r GROUP BY a",
            "SELECT count(*) OVER (PARTITION BY ?) FROM r WINDOW w AS (PARTITION BY ?)",
        ],
        expect![[r#"
            SELECT row_number() FROM r
                bad_sql: misuse of window function row_number()
            SELECT id FROM r WHERE row_number() OVER () = 1
                bad_sql: misuse of window function row_number()
            SELECT a FROM r GROUP BY a HAVING rank() OVER (ORDER BY a) = 1
                bad_sql: misuse of window function rank()
            SELECT sum(row_number() OVER ()) FROM r
                bad_sql: misuse of window function row_number()
            SELECT sum(rank() OVER ()) OVER () FROM r
                bad_sql: misuse of window function rank()
            SELECT abs(a) OVER () FROM r
                bad_sql: abs() may not be used as a window function
            SELECT count(DISTINCT a) OVER () FROM r
                bad_sql: DISTINCT is not supported for window functions
            SELECT row_number() FILTER (WHERE a > 1) OVER () FROM r
                bad_sql: FILTER clause may only be used with aggregate window functions
            SELECT count(*) OVER nowhere FROM r
                bad_sql: no such window: nowhere
                define it: `WINDOW name AS (PARTITION BY … ORDER BY …)`
            SELECT count(*) OVER (w PARTITION BY a) FROM r WINDOW w AS (PARTITION BY b)
                bad_sql: cannot override PARTITION clause of window: w
            SELECT count(*) OVER (w ORDER BY a) FROM r WINDOW w AS (ORDER BY b)
                bad_sql: cannot override ORDER BY clause of window: w
            SELECT count(*) OVER (w) FROM r WINDOW w AS (ORDER BY b ROWS 1 PRECEDING)
                bad_sql: cannot override frame specification of window: w
            SELECT count(*) OVER (ORDER BY a ROWS b PRECEDING) FROM r
                bad_sql: no such column: b
                the schema lists the columns of every table
            SELECT a, row_number() OVER (ORDER BY b) FROM r GROUP BY a
                unsupported_sql: a query whose column b is neither grouped nor aggregated cannot be live
                add it to GROUP BY, or use min() or max()
            SELECT count(*) OVER (PARTITION BY ?) FROM r WINDOW w AS (PARTITION BY ?)
                bad_arguments: parameter 1 is missing
                pass it in params: {"1": …}
        "#]],
    );
}

#[test]
fn ordered_aggregates_get_the_keys_of_their_rows() {
    check(
        &[
            "SELECT group_concat(c, ';') FROM r",
            "SELECT group_concat(DISTINCT c) FROM r",
            "SELECT string_agg(c, ';' ORDER BY a DESC NULLS LAST) FROM r",
            "SELECT json_group_array(g ORDER BY v) FROM p GROUP BY r_id",
            "SELECT group_concat(q.n) FROM (SELECT a, count(*) AS n FROM r GROUP BY a) q",
        ],
        expect![[r#"
            SELECT group_concat(c, ';') FROM r
                live: SELECT group_concat("r"."c", ';' ORDER BY "r"."id") AS "group_concat(c, ';')" FROM main."r" AS "r"
            SELECT group_concat(DISTINCT c) FROM r
                live: SELECT group_concat(DISTINCT "r"."c" ORDER BY "r"."c") AS "group_concat(DISTINCT c)" FROM main."r" AS "r"
            SELECT string_agg(c, ';' ORDER BY a DESC NULLS LAST) FROM r
                live: SELECT string_agg("r"."c", ';' ORDER BY "r"."a" DESC NULLS LAST, "r"."id") AS "string_agg(c, ';' ORDER BY a DESC NULLS LAST)" FROM main."r" AS "r"
            SELECT json_group_array(g ORDER BY v) FROM p GROUP BY r_id
                live: SELECT json_group_array("p"."g" ORDER BY "p"."v", "p"."g", "p"."n") AS "json_group_array(g ORDER BY v)" FROM main."p" AS "p" GROUP BY ("p"."r_id")
            SELECT group_concat(q.n) FROM (SELECT a, count(*) AS n FROM r GROUP BY a) q
                live: SELECT group_concat("q"."c2" ORDER BY "q"."c1") AS "group_concat(q.n)" FROM (SELECT "r"."a" AS "c1", count(*) AS "c2" FROM main."r" AS "r" GROUP BY ("r"."a")) AS "q"
        "#]],
    );
}

#[test]
fn ordered_aggregates_without_a_total_order_are_refused() {
    check(
        &[
            "SELECT group_concat(q.v) FROM (SELECT a AS v FROM r UNION ALL SELECT n FROM s) q",
            "SELECT group_concat(DISTINCT c ORDER BY a) FROM r",
            "SELECT group_concat(DISTINCT coalesce(a, x)) FROM r",
            "SELECT sum(DISTINCT coalesce(a, x)) FROM r",
            "SELECT group_concat(DISTINCT c, ',') FROM r",
            "SELECT abs(a ORDER BY b) FROM r",
            "SELECT id, (SELECT sum(r.a) FROM s) FROM r",
            "SELECT id, (SELECT group_concat(r.c) FROM s WHERE s.b = r.b) FROM r",
            "SELECT q.id FROM (SELECT id, 0 AS zero FROM r) q WHERE (SELECT sum(q.zero) FROM s)",
            "SELECT DISTINCT coalesce(a, x), count(*) FROM r GROUP BY coalesce(a, x), b",
            "SELECT DISTINCT c COLLATE NOCASE, rank() OVER (ORDER BY a) FROM r",
        ],
        expect![[r#"
            SELECT group_concat(q.v) FROM (SELECT a AS v FROM r UNION ALL SELECT n FROM s) q
                unsupported_sql: group_concat() over rows without a unique key cannot be live
                select the keys of the tables in every subquery of FROM
            SELECT group_concat(DISTINCT c ORDER BY a) FROM r
                unsupported_sql: group_concat(DISTINCT …) ordered by another expression cannot be live
                order it by its argument
            SELECT group_concat(DISTINCT coalesce(a, x)) FROM r
                unsupported_sql: group_concat(DISTINCT …) of an expression with more than one possible type cannot be live
                wrap it in CAST(… AS …)
            SELECT sum(DISTINCT coalesce(a, x)) FROM r
                unsupported_sql: sum(DISTINCT …) of an expression with more than one possible type cannot be live
                wrap it in CAST(… AS …)
            SELECT group_concat(DISTINCT c, ',') FROM r
                bad_sql: DISTINCT aggregates must have exactly one argument
            SELECT abs(a ORDER BY b) FROM r
                bad_sql: ORDER BY may not be used with non-aggregate abs()
            SELECT id, (SELECT sum(r.a) FROM s) FROM r
                unsupported_sql: sum() over columns of an enclosing query only cannot be live
                move it to the enclosing query
            SELECT id, (SELECT group_concat(r.c) FROM s WHERE s.b = r.b) FROM r
                unsupported_sql: group_concat() over columns of an enclosing query only cannot be live
                move it to the enclosing query
            SELECT q.id FROM (SELECT id, 0 AS zero FROM r) q WHERE (SELECT sum(q.zero) FROM s)
                unsupported_sql: sum() over columns of an enclosing query only cannot be live
                move it to the enclosing query
            SELECT DISTINCT coalesce(a, x), count(*) FROM r GROUP BY coalesce(a, x), b
                unsupported_sql: SELECT DISTINCT over groups or windows whose column coalesce(a, x) has more than one possible type cannot be live
                wrap it in CAST(… AS …), or remove DISTINCT
            SELECT DISTINCT c COLLATE NOCASE, rank() OVER (ORDER BY a) FROM r
                unsupported_sql: SELECT DISTINCT over groups or windows whose column c COLLATE NOCASE has more than one possible type cannot be live
                wrap it in CAST(… AS …), or remove DISTINCT
        "#]],
    );
}

#[test]
fn invalid_from_items() {
    check(
        &[
            "SELECT v FROM (SELECT coalesce(a, x) AS v FROM r UNION ALL SELECT n FROM s LIMIT 2)",
            "SELECT v FROM (SELECT t.v FROM (SELECT a AS v FROM r UNION ALL SELECT n FROM s) t LIMIT 2)",
            "SELECT * FROM r FULL JOIN s USING (b) FULL JOIN p ON p.n = s.n",
            "SELECT * FROM (SELECT id, a AS n FROM r) x FULL JOIN (SELECT k, c AS n FROM s) y USING (n)",
            "SELECT * FROM generate_series(1, 3)",
            "SELECT r.id FROM r, json_each(json_array(a, id)) AS j",
            "SELECT id FROM r WHERE EXISTS (SELECT 1 FROM json_each(json_array(value)))",
            "SELECT id FROM r, json_each(r.c) RIGHT JOIN s ON s.b = r.b",
            "SELECT r.id FROM r, json_each()",
            "SELECT id FROM r WHERE id IN s",
            "SELECT id FROM r WHERE id IN nowhere",
            "SELECT id FROM r WHERE id IN (VALUES (1), (2, 3))",
        ],
        expect![[r#"
            SELECT v FROM (SELECT coalesce(a, x) AS v FROM r UNION ALL SELECT n FROM s LIMIT 2)
                unsupported_sql: LIMIT over rows that can be equal but not identical cannot be live
                wrap its columns in CAST(… AS …)
            SELECT v FROM (SELECT t.v FROM (SELECT a AS v FROM r UNION ALL SELECT n FROM s) t LIMIT 2)
                unsupported_sql: LIMIT in a subquery whose rows have no unique key cannot be live
                use min() or max()
            SELECT * FROM r FULL JOIN s USING (b) FULL JOIN p ON p.n = s.n
                live: SELECT "r"."id" AS "id", "r"."a" AS "a", CAST(coalesce("r"."b", "s"."b") AS INTEGER) AS "b", "r"."c" AS "c", "r"."x" AS "x", "r"."z" AS "z", "s"."k" AS "k", "s"."c" AS "c", "s"."n" AS "n", "p"."g" AS "g", "p"."n" AS "n", "p"."v" AS "v", "p"."r_id" AS "r_id" FROM main."r" AS "r" FULL JOIN main."s" AS "s" ON ("r"."b" = "s"."b") FULL JOIN main."p" AS "p" ON ("p"."n" = "s"."n")
            SELECT * FROM (SELECT id, a AS n FROM r) x FULL JOIN (SELECT k, c AS n FROM s) y USING (n)
                unsupported_sql: USING with RIGHT or FULL JOIN of columns of different types cannot be live
                use ON instead
            SELECT * FROM generate_series(1, 3)
                unsupported_sql: the table-valued function generate_series() cannot be live
                use json_each() or json_tree()
            SELECT r.id FROM r, json_each(json_array(a, id)) AS j
                bad_sql: ambiguous column name: id
                qualify it with its table: t.column
            SELECT id FROM r WHERE EXISTS (SELECT 1 FROM json_each(json_array(value)))
                bad_sql: the arguments of json_each() name its own columns
                qualify the column with its table: t.column
            SELECT id FROM r, json_each(r.c) RIGHT JOIN s ON s.b = r.b
                unsupported_sql: a table-valued function with RIGHT or FULL JOIN cannot be live
                use a LEFT JOIN
            SELECT r.id FROM r, json_each()
                bad_sql: json_each() takes a JSON text and an optional path
            SELECT id FROM r WHERE id IN s
                bad_sql: sub-select returns 4 columns - expected 1
            SELECT id FROM r WHERE id IN nowhere
                bad_sql: no such table: nowhere
                the schema lists the tables
            SELECT id FROM r WHERE id IN (VALUES (1), (2, 3))
                bad_sql: all VALUES must have the same number of terms
        "#]],
    );
}

/// SQLite must have every function that the planner accepts; otherwise a live query could not run.
#[test]
fn every_known_function_exists_in_sqlite() {
    let mut world = World::new(1);
    let rows = world.query("SELECT DISTINCT name FROM pragma_function_list", &[]);
    let mut names: Vec<String> = rows
        .expect("SQLite lists its functions")
        .iter()
        .map(|row| match &row[0] {
            abide_schema::Value::Text(name) => name.clone(),
            other => panic!("{other:?} is not a name"),
        })
        .collect();
    names.extend(["sqrt", "ln", "pow", "floor", "median", "nonsense"].map(str::to_owned));
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut unknown = Vec::new();
    for name in names {
        if name.contains('-') {
            continue;
        }
        let sql = format!("SELECT \"{name}\"(a) FROM r");
        let refused = planner.bind(&sql, &Map::new()).err().map(|refusal| refusal.detail);
        let planned = refused.is_none_or(|why| !why.starts_with("no such function"));
        let known = match world.db.0.prepare(&sql) {
            Ok(_) => true,
            Err(error) => !error.to_string().contains("no such function"),
        };
        assert!(known || !planned, "SQLite has no {name}()");
        if known && !planned {
            unknown.push(name);
        }
    }
    unknown.sort();
    expect![
        "bm25 current_date current_time current_timestamp fts5 fts5_get_locale fts5_insttoken \
        fts5_locale fts5_source_id highlight match snippet sqlite_log subtype"
    ]
    .assert_eq(&unknown.join(" "));
}
