//! What cannot be live, and what is no query at all: the code, the sentence, the hint.

use std::sync::Arc;

use abide_live::Planner;
use expect_test::{Expect, expect};
use serde_json::{Value as JsonValue, json};

use crate::world::World;

fn check(sql: &str, expected: Expect) {
    check_params(sql, json!({}), expected);
}

fn check_params(sql: &str, params: JsonValue, expected: Expect) {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let params = params.as_object().expect("an object").clone();
    let answer = match planner.bind(sql, &params) {
        Ok(binding) => format!("live: {}", binding.snapshot_sql()),
        Err(refusal) => {
            let hint = refusal.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{}: {}{hint}", refusal.code, refusal.detail)
        }
    };
    expected.assert_eq(&answer);
}

#[test]
fn what_is_no_query() {
    check("", expect!["bad_sql: the statement is empty (send one SELECT)"]);
    check("  -- nothing\n", expect!["bad_sql: the statement is empty (send one SELECT)"]);
    check("SELEC id FROM r", expect![[r#"bad_sql: near "SELEC": syntax error"#]]);
    check("SELECT id FROM", expect!["bad_sql: incomplete input"]);
    check("SELECT id FROM r WHERE", expect!["bad_sql: incomplete input"]);
    check(
        "SELECT id FROM r; SELECT 1",
        expect!["bad_sql: there is more than one statement (send one SELECT at a time)"],
    );
    check("SELECT 'abc", expect!["bad_sql: a quoted text has no end"]);
    check(
        "DELETE FROM r",
        expect![
            "bad_sql: only a SELECT can be watched (change data through a reducer:  POST /v1/call/{reducer})"
        ],
    );
    check(
        "PRAGMA user_version",
        expect![
            "bad_sql: only a SELECT can be watched (change data through a reducer:  POST /v1/call/{reducer})"
        ],
    );
    check(
        "EXPLAIN SELECT id FROM r",
        expect![
            "bad_sql: only a SELECT can be watched (change data through a reducer:  POST /v1/call/{reducer})"
        ],
    );
    check(
        "ATTACH 'x' AS y",
        expect![
            "bad_sql: only a SELECT can be watched (change data through a reducer:  POST /v1/call/{reducer})"
        ],
    );
    check(
        "SELECT id FROM nowhere",
        expect!["bad_sql: no such table: nowhere (GET /v1/schema lists the tables)"],
    );
    check(
        "SELECT id FROM sqlite_schema",
        expect!["bad_sql: no such table: sqlite_schema (GET /v1/schema lists the tables)"],
    );
    check("SELECT id FROM temp.d_r", expect!["bad_sql: unknown database temp"]);
    check(
        "SELECT absent FROM r",
        expect![
            "bad_sql: no such column: absent (GET /v1/schema lists the columns of every table)"
        ],
    );
    check(
        "SELECT r.absent FROM r",
        expect![
            "bad_sql: no such column: r.absent (GET /v1/schema lists the columns of every table)"
        ],
    );
    check(
        "SELECT q.id FROM r",
        expect!["bad_sql: no such column: q.id (GET /v1/schema lists the columns of every table)"],
    );
    check(
        "SELECT id FROM r WHERE c = \"text\"",
        expect!["bad_sql: no such column: text (write a text in single quotes: 'text')"],
    );
    check(
        "SELECT id FROM r ORDER BY 2",
        expect!["bad_sql: 1st ORDER BY term out of range - should be between 1 and 1"],
    );
    check("SELECT nonsense(id) FROM r", expect!["bad_sql: no such function: nonsense"]);
    check("SELECT id FROM r WHERE c REGEXP 'a'", expect!["bad_sql: no such function: REGEXP"]);
    check(
        "SELECT c COLLATE german FROM r",
        expect!["bad_sql: no such collation sequence: german (there are BINARY, NOCASE and RTRIM)"],
    );
    check(
        "SELECT rowid FROM p",
        expect!["bad_sql: no such column: rowid (GET /v1/schema lists the columns of every table)"],
    );
}

#[test]
fn what_is_not_the_same_twice() {
    check(
        "SELECT random() FROM r",
        expect![
            "unsupported_sql: random() gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT id FROM r WHERE a > abs(RandomBlob(1))",
        expect![
            "unsupported_sql: randomblob() gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT CURRENT_TIMESTAMP, id FROM r",
        expect![
            "unsupported_sql: CURRENT_TIMESTAMP gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT date('now') FROM r",
        expect![
            "unsupported_sql: date('now') gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT datetime() FROM r",
        expect![
            "unsupported_sql: datetime() gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT strftime('%s') FROM r",
        expect![
            "unsupported_sql: strftime() gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT strftime('%s', ' NOW ') FROM r",
        expect![
            "unsupported_sql: strftime(' NOW ') gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT date(c) FROM r",
        expect![
            "unsupported_sql: date() of a time that is not known beforehand could mean the present (store times as numbers, and write modifiers as literals)"
        ],
    );
    check(
        "SELECT date(a, c) FROM r",
        expect![
            "unsupported_sql: date() of a modifier that is not known beforehand could mean the present (store times as numbers, and write modifiers as literals)"
        ],
    );
    check(
        "SELECT date(:t) FROM r",
        expect![
            "unsupported_sql: date() of a time that is not known beforehand could mean the present (store times as numbers, and write modifiers as literals)"
        ],
    );
    check(
        "SELECT date(a, 'unixepoch', 'localtime') FROM r",
        expect![
            "unsupported_sql: 'localtime' depends on the server's time zone (leave times in UTC and convert them where they are shown)"
        ],
    );
    check(
        "SELECT changes() FROM r",
        expect![
            "unsupported_sql: changes() gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT sqlite_version() FROM r",
        expect![
            "unsupported_sql: sqlite_version() gives another result each time, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT date(a / 1000000, 'unixepoch') FROM r",
        expect![[
            r#"live: SELECT date("r"."a" / 1000000, 'unixepoch') AS "date(a / 1000000, 'unixepoch')" FROM main."r" AS "r""#
        ]],
    );
}

#[test]
fn what_has_no_rule() {
    check(
        "SELECT row_number() OVER (ORDER BY id) FROM r",
        expect!["unsupported_sql: a window function cannot be live (run it once with  abide sql)"],
    );
    check(
        "SELECT group_concat(c) FROM r",
        expect![
            "unsupported_sql: group_concat() depends on the order of rows, so this query cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "VALUES (1)",
        expect!["unsupported_sql: a query of VALUES cannot be live (run it once with  abide sql)"],
    );
    check(
        "SELECT 1",
        expect![
            "unsupported_sql: a query that reads no table cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT value FROM json_each('[1]')",
        expect![
            "unsupported_sql: a table-valued function cannot be live (run it once with  abide sql)"
        ],
    );
    check(
        "SELECT id FROM r INDEXED BY r_a",
        expect![
            "unsupported_sql: a query with INDEXED BY cannot be live (run it once with  abide sql)"
        ],
    );
}

#[test]
fn parameters_must_fit() {
    let sql = "SELECT id FROM r WHERE a = :sid AND b = ?7 AND c = @t";
    check_params(
        sql,
        json!({"sid": 1, "7": 2}),
        expect![[r#"bad_arguments: parameter t is missing (pass it in params: {"t": …})"#]],
    );
    check_params(
        sql,
        json!({"sid": [1], "7": 2, "t": 3}),
        expect!["bad_arguments: parameter sid is an array, which is no value"],
    );
    check_params(
        sql,
        json!({"sid": 1, "7": {"a": 1}, "t": 3}),
        expect!["bad_arguments: parameter 7 is an object, which is no value"],
    );
    check_params(
        sql,
        json!({"sid": 1, "7": 2, "t": 3, ":u": 4}),
        expect![
            "bad_arguments: the query has no parameter :u (leave the sigil out: sid for :sid, 1 for ?1)"
        ],
    );
    check_params(
        sql,
        json!({"sid": 1, "7": 2, "t": 3}),
        expect![[
            r#"live: SELECT "r"."id" AS "id" FROM main."r" AS "r" WHERE ("r"."a" = ?1) AND ("r"."b" = ?2) AND ("r"."c" = ?3)"#
        ]],
    );
    check(
        "SELECT id FROM r WHERE a = ?0",
        expect!["bad_sql: variable number must be between ?1 and ?32766"],
    );
    check("SELECT id FROM r WHERE a = #1", expect![[r##"bad_sql: near "#1": syntax error"##]]);
    check_params(
        "SELECT id FROM r WHERE a = ? AND b = ? AND c = ?2",
        json!({"1": 1, "2": 2}),
        expect![[
            r#"live: SELECT "r"."id" AS "id" FROM main."r" AS "r" WHERE ("r"."a" = ?1) AND ("r"."b" = ?2) AND ("r"."c" = ?2)"#
        ]],
    );
}

#[test]
fn only_compared_literals_are_lifted() {
    check(
        "SELECT id, a + 1, 'x' FROM r WHERE c = 'it''s' AND a IN (-5, x'00') AND x > 1.5 AND a < 9223372036854775808 ORDER BY 2, a % 2",
        expect![[
            r#"live: SELECT "r"."id" AS "id", "r"."a" + 1 AS "a + 1", 'x' AS "'x'", "r"."a" % 2 AS "order2" FROM main."r" AS "r" WHERE ("r"."c" = ?1) AND ("r"."a" IN (?2, ?3)) AND ("r"."x" > 1.5) AND ("r"."a" < 9223372036854775808) ORDER BY 2 COLLATE BINARY ASC NULLS FIRST, 4 COLLATE BINARY ASC NULLS FIRST, 1"#
        ]],
    );
}
