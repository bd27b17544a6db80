//! Known bugs of other engines: both sides of a join in one commit, a row that moves between
//! subscriptions, rows without a key, equal values of different types, an error that affects one
//! subscription only.

use expect_test::expect;
use serde_json::json;

use crate::fixture::RouterFixture;

#[test]
fn both_sides_of_a_join_change_in_one_commit() {
    let mut stage = RouterFixture::new(&["SELECT r.id, s.k FROM r JOIN s ON s.b = r.b"]);
    stage.commit(
        &["r: - -> [1, 0, 7]", r#"s: - -> ["k", 7, null, 1]"#],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,"k"]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [1, 0, 7] -> [1, 0, 8]", r#"s: ["k", 7, null, 1] -> ["k", 8, null, 1]"#],
        expect![""],
    );
    stage.commit(
        &["r: [1, 0, 8] -> [1, 0, 9]", r#"s: ["k", 8, null, 1] -> -"#, "r: - -> [2, 0, 8]"],
        expect![[r#"
            0: {"deletes":[[1,"k"]],"inserts":[],"updates":[]}
        "#]],
    );
}

#[test]
fn a_row_moves_from_one_subscription_to_another() {
    let mut stage = RouterFixture::new(&[
        "SELECT id, c FROM r WHERE c = 'a'",
        "SELECT id, c FROM r WHERE c = 'b'",
    ]);
    stage.commit(
        &[r#"r: - -> [1, 0, 0, "a"]"#],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,"a"]],"updates":[]}
    "#]],
    );
    stage.commit(
        &[r#"r: [1, 0, 0, "a"] -> [1, 0, 0, "b"]"#],
        expect![[r#"
        0: {"deletes":[[1]],"inserts":[],"updates":[]}
        1: {"deletes":[],"inserts":[[1,"b"]],"updates":[]}
    "#]],
    );
    stage.commit(&[r#"r: [1, 0, 0, "b"] -> [1, 5, 0, "b"]"#], expect![""]);
}

#[test]
fn rows_without_a_key_are_counted() {
    let mut stage = RouterFixture::new(&["SELECT a FROM r", "SELECT DISTINCT a FROM r"]);
    stage.commit(
        &["r: - -> [1, 5]", "r: - -> [2, 5]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[[5],[5]],"updates":[]}
        1: {"deletes":[],"inserts":[[5]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [1, 5] -> -"],
        expect![[r#"
        0: {"deletes":[[5]],"inserts":[],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [2, 5] -> [2, 6]"],
        expect![[r#"
        0: {"deletes":[[5]],"inserts":[[6]],"updates":[]}
        1: {"deletes":[[5]],"inserts":[[6]],"updates":[]}
    "#]],
    );
}

#[test]
fn one_and_one_point_zero_are_equal_but_not_identical() {
    let mut stage = RouterFixture::new(&[
        "SELECT id, coalesce(a, x) AS v FROM r",
        "SELECT coalesce(a, x) AS v, count(*) FROM r GROUP BY v",
    ]);
    stage.commit(
        &["r: - -> [1, null, null, null, 1.0]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,1.0]],"updates":[]}
        1: {"deletes":[],"inserts":[[1.0,1]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: - -> [2, 1]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[[2,1]],"updates":[]}
        1: {"deletes":[[1.0]],"inserts":[[1,2]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [1, null, null, null, 1.0] -> [1, 1, null, null, 1.0]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[],"updates":[[1,1]]}
    "#]],
    );
    stage.commit(
        &["r: [2, 1] -> -"],
        expect![[r#"
        0: {"deletes":[[2]],"inserts":[],"updates":[]}
        1: {"deletes":[],"inserts":[],"updates":[[1,1]]}
    "#]],
    );
}

#[test]
fn an_error_affects_one_subscription_only() {
    let mut stage = RouterFixture::new(&[
        "SELECT id, json_extract(c, '$.a') FROM r",
        "SELECT sum(a) FROM r",
        "SELECT count(*) FROM r",
    ]);
    stage.commit(
        &[r#"r: - -> [1, 9223372036854775807, 0, "{\"a\":1}"]"#],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,1]],"updates":[]}
        1: {"deletes":[[null]],"inserts":[[9223372036854775807]],"updates":[]}
        2: {"deletes":[[0]],"inserts":[[1]],"updates":[]}
    "#]],
    );
    stage.commit(
        &[r#"r: - -> [2, 1, 0, "no json"]"#],
        expect![[r#"
        0: the query failed: malformed JSON
        1: the query failed: integer overflow
        2: {"deletes":[[1]],"inserts":[[2]],"updates":[]}
    "#]],
    );
}

#[test]
fn a_top_n_result_has_positions() {
    let mut stage = RouterFixture::new(&["SELECT id, a FROM r ORDER BY a DESC LIMIT 2"]);
    stage.commit(
        &["r: - -> [1, 1]", "r: - -> [2, 2]", "r: - -> [3, 3]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[{"at":0,"row":[3,3]},{"at":1,"row":[2,2]}],"updates":[]}
    "#]],
    );
    stage.commit(&["r: - -> [4, 0]"], expect![""]);
    stage.commit(
        &["r: [3, 3] -> -"],
        expect![[r#"
        0: {"deletes":[{"at":0}],"inserts":[{"at":1,"row":[1,1]}],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [1, 1] -> [1, 9]"],
        expect![[r#"
        0: {"deletes":[{"at":1}],"inserts":[{"at":0,"row":[1,9]}],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [2, 2] -> [2, 3]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[],"updates":[{"at":1,"row":[2,3]}]}
    "#]],
    );
}

#[test]
fn not_in_with_a_null_matches_nothing() {
    let mut stage = RouterFixture::new(&["SELECT id FROM r WHERE b NOT IN (SELECT b FROM s)"]);
    stage.commit(
        &["r: - -> [1, 0, 1]", "r: - -> [2, 0, null]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1],[2]],"updates":[]}
    "#]],
    );
    stage.commit(
        &[r#"s: - -> ["k", null, null, 1]"#],
        expect![[r#"
        0: {"deletes":[[1],[2]],"inserts":[],"updates":[]}
    "#]],
    );
    stage.commit(
        &[r#"s: ["k", null, null, 1] -> ["k", 2, null, 1]"#],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1]],"updates":[]}
    "#]],
    );
}

#[test]
fn the_padded_row_of_a_left_join_is_inserted_and_deleted() {
    let mut stage = RouterFixture::new(&[
        "SELECT r.id, s.k FROM r LEFT JOIN s ON s.b = r.b",
        "SELECT r.id, count(s.k) AS n FROM r LEFT JOIN s ON s.b = r.b GROUP BY r.id",
    ]);
    stage.commit(
        &["r: - -> [1, 0, 7]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,null]],"updates":[]}
        1: {"deletes":[],"inserts":[[1,0]],"updates":[]}
    "#]],
    );
    stage.commit(
        &[r#"s: - -> ["k", 7, null, 1]"#, r#"s: - -> ["l", 7, null, 1]"#],
        expect![[r#"
        0: {"deletes":[[1,null]],"inserts":[[1,"k"],[1,"l"]],"updates":[]}
        1: {"deletes":[],"inserts":[],"updates":[[1,2]]}
    "#]],
    );
    stage.commit(
        &[r#"s: ["k", 7, null, 1] -> -"#],
        expect![[r#"
        0: {"deletes":[[1,"k"]],"inserts":[],"updates":[]}
        1: {"deletes":[],"inserts":[],"updates":[[1,1]]}
    "#]],
    );
    stage.commit(
        &[r#"s: ["l", 7, null, 1] -> ["l", 8, null, 1]"#],
        expect![[r#"
        0: {"deletes":[[1,"l"]],"inserts":[[1,null]],"updates":[]}
        1: {"deletes":[],"inserts":[],"updates":[[1,0]]}
    "#]],
    );
}

/// A table may have the name of another table's image or past form. The query was accepted, but
/// failed at the first commit that affected it, with an ambiguous column.
#[test]
fn table_names_that_equal_those_of_images() {
    let mut stage = RouterFixture::new(&[
        "SELECT r.id, d_r.k FROM r JOIN s AS d_r ON d_r.b = r.b",
        "SELECT a.id, was_a.k FROM r AS a LEFT JOIN s AS was_a ON was_a.b = a.b",
        "SELECT x.id, given_x.k, D_X.g FROM r AS x JOIN s AS given_x ON given_x.b = x.b
            LEFT JOIN p AS D_X ON D_X.r_id = x.id",
    ]);
    let row = r#"r: - -> [1, null, 7, null, null, null]"#;
    stage.commit(
        &[r#"s: - -> ["k", 7, null, 1]"#, row],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,"k"]],"updates":[]}
        1: {"deletes":[],"inserts":[[1,"k"]],"updates":[]}
        2: {"deletes":[],"inserts":[[1,"k",null]],"updates":[]}
    "#]],
    );
    stage.commit(
        &[r#"s: ["k", 7, null, 1] -> ["k", 8, null, 1]"#],
        expect![[r#"
        0: {"deletes":[[1,"k"]],"inserts":[],"updates":[]}
        1: {"deletes":[[1,"k"]],"inserts":[[1,null]],"updates":[]}
        2: {"deletes":[[1,"k",null]],"inserts":[],"updates":[]}
    "#]],
    );
}

/// Two terms of a join returned one group as 1 and as 1.0, and it was counted twice.
#[test]
fn a_group_of_equal_values_is_one_group() {
    let mut stage = RouterFixture::new(&[
        "SELECT count(*) FROM r JOIN s ON s.b = r.b GROUP BY coalesce(r.a, r.x)",
        "SELECT count(*) FROM r JOIN s ON s.b = r.b GROUP BY r.c COLLATE NOCASE",
    ]);
    stage.commit(
        &[r#"r: - -> [1, null, 7, "A", 1.0]"#, r#"s: - -> ["k", 7, null, 1]"#],
        expect![[r#"
            0: {"deletes":[],"inserts":[[1]],"updates":[]}
            1: {"deletes":[],"inserts":[[1]],"updates":[]}
        "#]],
    );
    stage.commit(
        &[r#"r: - -> [2, 1, 7, "a"]"#, r#"s: - -> ["l", 7, null, 1]"#],
        expect![[r#"
            0: {"deletes":[[1]],"inserts":[[4]],"updates":[]}
            1: {"deletes":[[1]],"inserts":[[4]],"updates":[]}
        "#]],
    );
}

/// An anti-join receives changes of rows that its condition does not name.
#[test]
fn a_missing_row_is_not_a_row_of_its_table() {
    let mut stage = RouterFixture::with(&[
        (
            "SELECT r.id, q.n FROM r LEFT JOIN (SELECT b, count(*) AS n FROM s GROUP BY b) q ON q.b = \
          r.b WHERE q.b IS :v",
            json!({"v": null}),
        ),
        ("SELECT r.id, s.k FROM r LEFT JOIN s ON s.b = r.b WHERE s.b IS :v", json!({"v": null})),
        (
            "SELECT r.id FROM r LEFT JOIN (SELECT DISTINCT b FROM s) q ON q.b = r.b WHERE q.b IS NULL",
            json!({}),
        ),
    ]);
    stage.commit(
        &["r: - -> [1, 0, 7]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,null]],"updates":[]}
        1: {"deletes":[],"inserts":[[1,null]],"updates":[]}
        2: {"deletes":[],"inserts":[[1]],"updates":[]}
    "#]],
    );
    stage.commit(
        &[r#"s: - -> ["k", 7, null, 1]"#],
        expect![[r#"
        0: {"deletes":[[1,null]],"inserts":[],"updates":[]}
        1: {"deletes":[[1,null]],"inserts":[],"updates":[]}
        2: {"deletes":[[1]],"inserts":[],"updates":[]}
    "#]],
    );
    stage.commit(
        &[r#"s: ["k", 7, null, 1] -> ["k", 8, null, 1]"#],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,null]],"updates":[]}
        1: {"deletes":[],"inserts":[[1,null]],"updates":[]}
        2: {"deletes":[],"inserts":[[1]],"updates":[]}
    "#]],
    );
}
