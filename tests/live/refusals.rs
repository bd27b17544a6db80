//! Queries that cannot be live, and invalid queries: code, detail and hint.

use std::sync::Arc;

use abide_live::Planner;
use expect_test::{Expect, expect};
use serde_json::{Value as JsonValue, json};

use crate::world::World;

/// Every query with its result, and the hint below if there is one.
pub(crate) fn check(queries: &[&str], expected: Expect) {
    let none = json!({});
    let answers = queries.iter().map(|sql| format!("{sql}\n{}", answer(sql, &none)));
    expected.assert_eq(&answers.collect::<String>());
}

fn check_params(sql: &str, params: &[JsonValue], expected: Expect) {
    let answers = params.iter().map(|params| format!("{params}\n{}", answer(sql, params)));
    expected.assert_eq(&answers.collect::<String>());
}

fn answer(sql: &str, params: &JsonValue) -> String {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let params = params.as_object().expect("an object");
    match planner.bind(sql, params) {
        Ok(binding) => format!("    live: {}\n", binding.snapshot_sql()),
        Err(refusal) => {
            let hint = refusal.hint.map(|hint| format!("    {hint}\n")).unwrap_or_default();
            format!("    {}: {}\n{hint}", refusal.code, refusal.detail)
        }
    }
}

#[test]
fn invalid_statements_are_refused() {
    check(
        &[
            "",
            "  -- nothing\n",
            "SELEC id FROM r",
            "SELECT id FROM",
            "SELECT id FROM r WHERE",
            "SELECT id FROM r; SELECT 1",
            "SELECT 'abc",
            "DELETE FROM r",
            "PRAGMA user_version",
            "EXPLAIN SELECT id FROM r",
            "ATTACH 'x' AS y",
        ],
        expect![[r#"

                bad_sql: the statement is empty
                send one SELECT
              -- nothing

                bad_sql: the statement is empty
                send one SELECT
            SELEC id FROM r
                bad_sql: near "SELEC": syntax error
            SELECT id FROM
                bad_sql: incomplete input
            SELECT id FROM r WHERE
                bad_sql: incomplete input
            SELECT id FROM r; SELECT 1
                bad_sql: the text contains more than one statement
                send one SELECT at a time
            SELECT 'abc
                bad_sql: unterminated string literal
            DELETE FROM r
                bad_sql: only a SELECT can be watched
                to change data, call a reducer
            PRAGMA user_version
                bad_sql: only a SELECT can be watched
                to change data, call a reducer
            EXPLAIN SELECT id FROM r
                bad_sql: only a SELECT can be watched
                to change data, call a reducer
            ATTACH 'x' AS y
                bad_sql: only a SELECT can be watched
                to change data, call a reducer
        "#]],
    );
}

/// Functions within one row cannot be interrupted, so a query has a limit of them. No test reached it.
#[test]
fn a_query_with_too_many_functions_is_refused() {
    // Each argument counts as one operation, and so does the call.
    let call = |arguments: usize| format!("concat({})", vec!["c"; arguments].join(","));
    let query = |calls: usize| {
        let calls = vec![call(99); calls].join(",");
        format!("SELECT id, {calls} FROM r")
    };
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let bind = |sql: &str| planner.bind(sql, &serde_json::Map::new());
    let most = abide_schema::limits::LIVE_OPERATIONS;
    let operations = |calls: usize| bind(&query(calls)).expect("it can be live").operations();
    let of_one = operations(2) - operations(1);
    let calls = 1 + (most - operations(1)) / of_one;
    assert!(operations(calls) <= most);
    let refusal = bind(&query(calls + 1)).expect_err("it has too many functions");
    let found = operations(calls) + of_one;
    expect![[r#"
        limit_exceeded: the live query has FOUND operators, functions and paths; the limit is 8192
        read fewer values, or run it once with `abide sql`
    "#]]
    .assert_eq(&format!(
        "{}: {}\n{}\n",
        refusal.code,
        refusal.detail.replace(&found.to_string(), "FOUND"),
        refusal.hint.unwrap_or_default()
    ));
}

#[test]
fn unknown_names_are_refused() {
    check(
        &[
            "SELECT id FROM nowhere",
            "SELECT id FROM sqlite_schema",
            "SELECT id FROM temp.d_r",
            "SELECT absent FROM r",
            "SELECT r.absent FROM r",
            "SELECT q.id FROM r",
            "SELECT id FROM r WHERE c = \"text\"",
            "SELECT id FROM r ORDER BY 2",
            "SELECT nonsense(id) FROM r",
            "SELECT id FROM r WHERE c REGEXP 'a'",
            "SELECT c COLLATE german FROM r",
            "SELECT rowid FROM p",
        ],
        expect![[r#"
            SELECT id FROM nowhere
                bad_sql: no such table: nowhere
                the schema lists the tables
            SELECT id FROM sqlite_schema
                bad_sql: no such table: sqlite_schema
                the schema lists the tables
            SELECT id FROM temp.d_r
                bad_sql: unknown database temp
            SELECT absent FROM r
                bad_sql: no such column: absent
                the schema lists the columns of every table
            SELECT r.absent FROM r
                bad_sql: no such column: r.absent
                the schema lists the columns of every table
            SELECT q.id FROM r
                bad_sql: no such column: q.id
                the schema lists the columns of every table
            SELECT id FROM r WHERE c = "text"
                bad_sql: no such column: text
                write text in single quotes: 'text'
            SELECT id FROM r ORDER BY 2
                bad_sql: 1st ORDER BY term out of range - should be between 1 and 1
            SELECT nonsense(id) FROM r
                bad_sql: no such function: nonsense
            SELECT id FROM r WHERE c REGEXP 'a'
                bad_sql: no such function: REGEXP
            SELECT c COLLATE german FROM r
                bad_sql: no such collation sequence: german
                use BINARY, NOCASE or RTRIM
            SELECT rowid FROM p
                bad_sql: no such column: rowid
                the schema lists the columns of every table
        "#]],
    );
}

#[test]
fn non_deterministic_queries() {
    check(
        &[
            "SELECT random() FROM r",
            "SELECT id FROM r WHERE a > abs(RandomBlob(1))",
            "SELECT CURRENT_TIMESTAMP, id FROM r",
            "SELECT date('now') FROM r",
            "SELECT datetime() FROM r",
            "SELECT strftime('%s') FROM r",
            "SELECT strftime('%s', ' NOW ') FROM r",
            "SELECT date(c) FROM r",
            "SELECT date(a, c) FROM r",
            "SELECT date(:t) FROM r",
            "SELECT date(a, 'unixepoch', 'localtime') FROM r",
            "SELECT changes() FROM r",
            "SELECT sqlite_version() FROM r",
            "SELECT date(a / 1000000, 'unixepoch') FROM r",
        ],
        expect![[r#"
            SELECT random() FROM r
                unsupported_sql: random() is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT id FROM r WHERE a > abs(RandomBlob(1))
                unsupported_sql: randomblob() is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT CURRENT_TIMESTAMP, id FROM r
                unsupported_sql: CURRENT_TIMESTAMP is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT date('now') FROM r
                unsupported_sql: date('now') is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT datetime() FROM r
                unsupported_sql: datetime() is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT strftime('%s') FROM r
                unsupported_sql: strftime() is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT strftime('%s', ' NOW ') FROM r
                unsupported_sql: strftime(' NOW ') is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT date(c) FROM r
                unsupported_sql: date() of a time that is not a literal could mean the current time
                store times as numbers, and use literal modifiers
            SELECT date(a, c) FROM r
                unsupported_sql: date() of a modifier that is not a literal could mean the current time
                store times as numbers, and use literal modifiers
            SELECT date(:t) FROM r
                unsupported_sql: date() of a time that is not a literal could mean the current time
                store times as numbers, and use literal modifiers
            SELECT date(a, 'unixepoch', 'localtime') FROM r
                unsupported_sql: 'localtime' depends on the server's time zone
                keep times in UTC and convert them in the client
            SELECT changes() FROM r
                unsupported_sql: changes() is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT sqlite_version() FROM r
                unsupported_sql: sqlite_version() is not deterministic, so this query cannot be live
                run it once with `abide sql`
            SELECT date(a / 1000000, 'unixepoch') FROM r
                live: SELECT date("r"."a" / 1000000, 'unixepoch') AS "date(a / 1000000, 'unixepoch')" FROM main."r" AS "r"
        "#]],
    );
}

#[test]
fn queries_without_a_rule() {
    check(
        &[
            "SELECT row_number() OVER (ORDER BY id) FROM r",
            "SELECT group_concat(c) FROM r",
            "VALUES (1)",
            "SELECT 1",
            "SELECT value FROM json_each('[1]')",
            "SELECT id FROM r INDEXED BY r_a",
        ],
        expect![[r#"
            SELECT row_number() OVER (ORDER BY id) FROM r
                live: SELECT row_number() OVER (ORDER BY "r"."id") AS "row_number() OVER (ORDER BY id)" FROM main."r" AS "r"
            SELECT group_concat(c) FROM r
                live: SELECT group_concat("r"."c" ORDER BY "r"."id") AS "group_concat(c)" FROM main."r" AS "r"
            VALUES (1)
                unsupported_sql: a query that reads no table cannot be live
                run it once with `abide sql`
            SELECT 1
                unsupported_sql: a query that reads no table cannot be live
                run it once with `abide sql`
            SELECT value FROM json_each('[1]')
                unsupported_sql: a query that reads no table cannot be live
                run it once with `abide sql`
            SELECT id FROM r INDEXED BY r_a
                unsupported_sql: a query with INDEXED BY cannot be live
                run it once with `abide sql`
        "#]],
    );
}

#[test]
fn groups_must_have_one_value() {
    check(
        &[
            "SELECT a, b, count(*) FROM r GROUP BY a",
            "SELECT max(a), id FROM r",
            "SELECT id, a, count(*) FROM r GROUP BY id",
            "SELECT count(*) FROM r WHERE sum(a) > 1",
            "SELECT sum(a) AS total FROM r WHERE total > 1",
            "SELECT sum(count(*)) FROM r",
            "SELECT id FROM r GROUP BY count(*)",
            "SELECT a FROM r HAVING a > 1",
            "SELECT a FROM r GROUP BY 2",
            "SELECT coalesce(a, x) FROM r UNION SELECT n FROM s",
            "SELECT DISTINCT a FROM r ORDER BY b",
            "SELECT max(c COLLATE NOCASE) FROM r",
        ],
        expect![[r#"
            SELECT a, b, count(*) FROM r GROUP BY a
                unsupported_sql: a query whose column b is neither grouped nor aggregated cannot be live
                add it to GROUP BY, or use min() or max()
            SELECT max(a), id FROM r
                unsupported_sql: a query whose column id is neither grouped nor aggregated cannot be live
                add it to GROUP BY, or use min() or max()
            SELECT id, a, count(*) FROM r GROUP BY id
                live: SELECT "r"."id" AS "id", "r"."a" AS "a", count(*) AS "count(*)" FROM main."r" AS "r" GROUP BY ("r"."id")
            SELECT count(*) FROM r WHERE sum(a) > 1
                bad_sql: misuse of aggregate function sum()
            SELECT sum(a) AS total FROM r WHERE total > 1
                bad_sql: misuse of aliased aggregate total
            SELECT sum(count(*)) FROM r
                bad_sql: misuse of aggregate function count()
            SELECT id FROM r GROUP BY count(*)
                bad_sql: misuse of aggregate function count()
            SELECT a FROM r HAVING a > 1
                bad_sql: HAVING clause on a non-aggregate query
            SELECT a FROM r GROUP BY 2
                bad_sql: a GROUP BY term is out of range
            SELECT coalesce(a, x) FROM r UNION SELECT n FROM s
                unsupported_sql: UNION, EXCEPT or INTERSECT if the type of column coalesce(a, x) can differ between rows cannot be live
                use CAST(… AS …) on that column in every SELECT, or use UNION ALL
            SELECT DISTINCT a FROM r ORDER BY b
                unsupported_sql: an order by what SELECT DISTINCT does not show cannot be live
                run it once with `abide sql`
            SELECT max(c COLLATE NOCASE) FROM r
                unsupported_sql: min() or max() with COLLATE cannot be live
                a collation treats different texts as equal: use min(lower(…)) or max(lower(…))
        "#]],
    );
}

#[test]
fn invalid_joins_and_subqueries() {
    check(
        &[
            "SELECT id FROM r JOIN s ON r.b = s.b WHERE c = 'a'",
            "SELECT id FROM r JOIN s USING (id)",
            "SELECT * FROM r NATURAL FULL JOIN s",
            "SELECT id FROM r WHERE b IN (SELECT b, n FROM s)",
            "SELECT id FROM r WHERE b IN (SELECT b FROM s LIMIT 1)",
            "SELECT (SELECT b FROM s UNION SELECT n FROM s) FROM r",
            "SELECT q.a FROM (SELECT 1 AS a FROM s UNION ALL SELECT a FROM r) q WHERE q.a = :v",
            "SELECT id FROM r JOIN (SELECT 1 AS a FROM s UNION ALL SELECT n FROM s) q ON q.a = r.c",
            "SELECT id FROM (SELECT id FROM r LIMIT 1)",
            "SELECT id FROM (r JOIN s)",
            "WITH RECURSIVE q(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM q) SELECT n FROM q",
            "WITH q(x, y) AS (SELECT id FROM r) SELECT x FROM q",
            "WITH q AS (SELECT id FROM r WHERE a = ?) SELECT id FROM q",
            "SELECT a FROM r UNION SELECT k, n FROM s",
            "SELECT id FROM r LIMIT (SELECT count(*) FROM s)",
            "SELECT id FROM r LIMIT a",
        ],
        expect![[r#"
            SELECT id FROM r JOIN s ON r.b = s.b WHERE c = 'a'
                bad_sql: ambiguous column name: c
                qualify it with its table: t.column
            SELECT id FROM r JOIN s USING (id)
                bad_sql: cannot join using column id - column not present in both tables
            SELECT * FROM r NATURAL FULL JOIN s
                live: SELECT "r"."id" AS "id", "r"."a" AS "a", CAST(coalesce("r"."b", "s"."b") AS INTEGER) AS "b", CAST(coalesce("r"."c", "s"."c") AS TEXT) AS "c", "r"."x" AS "x", "r"."z" AS "z", "s"."k" AS "k", "s"."n" AS "n" FROM main."r" AS "r" FULL JOIN main."s" AS "s" ON ("r"."b" = "s"."b") AND ("r"."c" = "s"."c")
            SELECT id FROM r WHERE b IN (SELECT b, n FROM s)
                bad_sql: sub-select returns 2 columns - expected 1
            SELECT id FROM r WHERE b IN (SELECT b FROM s LIMIT 1)
                live: SELECT "r"."id" AS "id" FROM main."r" AS "r" WHERE ("r"."b" IN (SELECT "s"."b" AS "b" FROM main."s" AS "s" ORDER BY "s"."k" LIMIT 1))
            SELECT (SELECT b FROM s UNION SELECT n FROM s) FROM r
                live: SELECT (SELECT "s"."b" AS "b" FROM main."s" AS "s" UNION SELECT "s_2"."n" AS "n" FROM main."s" AS "s_2" ORDER BY 1 COLLATE BINARY) AS "(SELECT b FROM s UNION SELECT n FROM s)" FROM main."r" AS "r"
            SELECT q.a FROM (SELECT 1 AS a FROM s UNION ALL SELECT a FROM r) q WHERE q.a = :v
                unsupported_sql: a comparison of a column that the SELECTs of a compound make of different types cannot be live
                wrap the operands in CAST(… AS …)
            SELECT id FROM r JOIN (SELECT 1 AS a FROM s UNION ALL SELECT n FROM s) q ON q.a = r.c
                unsupported_sql: a comparison of a column that the SELECTs of a compound make of different types cannot be live
                wrap the operands in CAST(… AS …)
            SELECT id FROM (SELECT id FROM r LIMIT 1)
                live: SELECT "sub"."c1" AS "id" FROM (SELECT "r"."id" AS "c1" FROM main."r" AS "r" ORDER BY "r"."id" LIMIT 1) AS "sub"
            SELECT id FROM (r JOIN s)
                live: SELECT "r"."id" AS "id" FROM main."r" AS "r" JOIN main."s" AS "s"
            WITH RECURSIVE q(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM q) SELECT n FROM q
                unsupported_sql: a recursive query cannot be live
                run it once with `abide sql`
            WITH q(x, y) AS (SELECT id FROM r) SELECT x FROM q
                bad_sql: table q has 1 values for 2 columns
            WITH q AS (SELECT id FROM r WHERE a = ?) SELECT id FROM q
                bad_arguments: parameter 1 is missing
                pass it in params: {"1": …}
            SELECT a FROM r UNION SELECT k, n FROM s
                bad_sql: the SELECTs of a compound do not have the same number of columns
            SELECT id FROM r LIMIT (SELECT count(*) FROM s)
                unsupported_sql: a subquery in LIMIT cannot be live
                run it once with `abide sql`
            SELECT id FROM r LIMIT a
                bad_sql: no such column: a
                the schema lists the columns of every table
        "#]],
    );
}

#[test]
fn parameters_are_checked() {
    check_params(
        "SELECT id FROM r WHERE a = :sid AND b = ?7 AND c = @t",
        &[
            json!({"sid": 1, "7": 2}),
            json!({"sid": [1], "7": 2, "t": 3}),
            json!({"sid": 1, "7": {"a": 1}, "t": 3}),
            json!({"sid": 1, "7": 2, "t": 3, ":u": 4}),
            json!({"sid": 1, "7": 2, "t": 3}),
        ],
        expect![[r#"
            {"7":2,"sid":1}
                bad_arguments: parameter t is missing
                pass it in params: {"t": …}
            {"7":2,"sid":[1],"t":3}
                bad_arguments: parameter sid is an array, which is not a valid value
            {"7":{"a":1},"sid":1,"t":3}
                bad_arguments: parameter 7 is an object, which is not a valid value
            {"7":2,":u":4,"sid":1,"t":3}
                bad_arguments: the query has no parameter :u
                omit the sigil: sid for :sid, 1 for ?1
            {"7":2,"sid":1,"t":3}
                live: SELECT "r"."id" AS "id" FROM main."r" AS "r" WHERE ("r"."a" = ?1) AND ("r"."b" = ?2) AND ("r"."c" = ?3)
        "#]],
    );
    check_params(
        "SELECT id FROM (SELECT id, a + :v AS x FROM r)",
        &[json!({}), json!({"v": 1})],
        expect![[r#"
            {}
                bad_arguments: parameter v is missing
                pass it in params: {"v": …}
            {"v":1}
                live: SELECT "r"."id" AS "id" FROM main."r" AS "r"
        "#]],
    );
    check(
        &["SELECT id FROM r WHERE a = ?0", "SELECT id FROM r WHERE a = #1"],
        expect![[r##"
        SELECT id FROM r WHERE a = ?0
            bad_sql: variable number must be between ?1 and ?32766
        SELECT id FROM r WHERE a = #1
            bad_sql: near "#1": syntax error
    "##]],
    );
    check_params(
        "SELECT id FROM r WHERE a = ? AND b = ? AND c = ?2",
        &[json!({"1": 1, "2": 2})],
        expect![[r#"
            {"1":1,"2":2}
                live: SELECT "r"."id" AS "id" FROM main."r" AS "r" WHERE ("r"."a" = ?1) AND ("r"."b" = ?2) AND ("r"."c" = ?2)
        "#]],
    );
}

#[test]
fn only_compared_literals_are_lifted() {
    check(
        &[
            "SELECT id, a + 1, 'x' FROM r WHERE c = 'it''s' AND a IN (-5, x'00') ORDER BY 2, a % 2",
            "SELECT id FROM r WHERE x > 1.5 AND a < 9223372036854775808",
        ],
        expect![[r#"
            SELECT id, a + 1, 'x' FROM r WHERE c = 'it''s' AND a IN (-5, x'00') ORDER BY 2, a % 2
                live: SELECT "r"."id" AS "id", "r"."a" + 1 AS "a + 1", 'x' AS "'x'", "r"."a" % 2 AS "order2" FROM main."r" AS "r" WHERE ("r"."c" = ?1) AND ("r"."a" IN (?2, ?3)) ORDER BY 2 COLLATE BINARY ASC NULLS FIRST, 4 COLLATE BINARY ASC NULLS FIRST, 1
            SELECT id FROM r WHERE x > 1.5 AND a < 9223372036854775808
                live: SELECT "r"."id" AS "id" FROM main."r" AS "r" WHERE ("r"."x" > 1.5) AND ("r"."a" < 9223372036854775808)
        "#]],
    );
}
