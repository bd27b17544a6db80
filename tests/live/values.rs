//! SQLite's value semantics that incremental engines often get wrong: affinity, NULL, sums that
//! overflow or become real, equal sort keys, reused keys.

use expect_test::expect;
use serde_json::json;

use crate::fixture::RouterFixture;

#[test]
fn a_parameter_is_compared_like_its_column() {
    let mut stage = RouterFixture::with(&[
        ("SELECT id FROM r WHERE c = :v", json!({"v": 7})),
        ("SELECT id FROM r WHERE a = :v", json!({"v": "7"})),
        ("SELECT id FROM r WHERE a IN (:v, 9)", json!({"v": "7"})),
        ("SELECT id FROM r WHERE a BETWEEN :v AND 8", json!({"v": "7"})),
        ("SELECT id FROM r WHERE +c = :v", json!({"v": 7})),
        ("SELECT id FROM r WHERE x = :v", json!({"v": 7})),
    ]);
    stage.commit(
        &[r#"r: - -> [1, 7, null, "7", 7.0]"#],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1]],"updates":[]}
        1: {"deletes":[],"inserts":[[1]],"updates":[]}
        2: {"deletes":[],"inserts":[[1]],"updates":[]}
        3: {"deletes":[],"inserts":[[1]],"updates":[]}
        5: {"deletes":[],"inserts":[[1]],"updates":[]}
    "#]],
    );
}

#[test]
fn null_never_joins_but_always_groups() {
    let mut stage = RouterFixture::new(&[
        "SELECT r.id, s.k FROM r JOIN s ON s.b = r.b",
        "SELECT r.id, s.k FROM r JOIN s ON s.b IS r.b",
        "SELECT b, count(*) FROM r GROUP BY b",
        "SELECT DISTINCT b FROM r",
    ]);
    stage.commit(
        &["r: - -> [1, 0, null]", "r: - -> [2, 0, null]", r#"s: - -> ["k", null, null, 1]"#],
        expect![[r#"
            1: {"deletes":[],"inserts":[[1,"k"],[2,"k"]],"updates":[]}
            2: {"deletes":[],"inserts":[[null,2]],"updates":[]}
            3: {"deletes":[],"inserts":[[null]],"updates":[]}
        "#]],
    );
    stage.commit(
        &["r: [1, 0, null] -> -"],
        expect![[r#"
        1: {"deletes":[[1,"k"]],"inserts":[],"updates":[]}
        2: {"deletes":[],"inserts":[],"updates":[[null,1]]}
    "#]],
    );
}

#[test]
fn a_sum_that_overflows_is_an_error() {
    let mut stage = RouterFixture::new(&["SELECT sum(a) FROM r", "SELECT total(a) FROM r"]);
    stage.commit(
        &["r: - -> [1, 9223372036854775807]"],
        expect![[r#"
        0: {"deletes":[[null]],"inserts":[[9223372036854775807]],"updates":[]}
        1: {"deletes":[[0.0]],"inserts":[[9.223372036854776e+18]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: - -> [2, 1]"],
        expect![[r#"
        0: the query failed: integer overflow
    "#]],
    );
}

#[test]
fn a_sum_may_exceed_the_limit_between_two_rows_of_a_commit() {
    let mut stage = RouterFixture::new(&["SELECT sum(a) FROM r"]);
    stage.commit(
        &["r: - -> [1, 9223372036854775807]"],
        expect![[r#"
        0: {"deletes":[[null]],"inserts":[[9223372036854775807]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [1, 9223372036854775807] -> -", "r: - -> [2, 1]"],
        expect![[r#"
        0: {"deletes":[[9223372036854775807]],"inserts":[[1]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: - -> [3, 9223372036854775806]"],
        expect![[r#"
        0: {"deletes":[[1]],"inserts":[[9223372036854775807]],"updates":[]}
    "#]],
    );
}

#[test]
fn one_real_makes_a_sum_real_until_it_is_deleted() {
    let mut stage = RouterFixture::new(&["SELECT sum(coalesce(a, x)) FROM r"]);
    stage.commit(
        &["r: - -> [1, 5]"],
        expect![[r#"
        0: {"deletes":[[null]],"inserts":[[5]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: - -> [2, null, null, null, 2.0]"],
        expect![[r#"
        0: {"deletes":[[5]],"inserts":[[7.0]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [2, null, null, null, 2.0] -> -"],
        expect![[r#"
        0: {"deletes":[[7.0]],"inserts":[[5]],"updates":[]}
    "#]],
    );
}

#[test]
fn a_sum_of_doubles_does_not_drift() {
    let mut stage = RouterFixture::new(&["SELECT sum(x), avg(x), total(x) FROM r"]);
    stage.commit(
        &[
            "r: - -> [1, null, null, null, 0.1]",
            "r: - -> [2, null, null, null, 1e300]",
            "r: - -> [3, null, null, null, 0.2]",
        ],
        expect![[r#"
            0: {"deletes":[[null,null,0.0]],"inserts":[[1e+300,3.3333333333333335e+299,1e+300]],"updates":[]}
        "#]],
    );
    stage.commit(&["r: [2, null, null, null, 1e300] -> -"], expect![[r#"
        0: {"deletes":[[1e+300,3.3333333333333335e+299,1e+300]],"inserts":[[0.30000000000000004,0.15000000000000002,0.30000000000000004]],"updates":[]}
    "#]]);
}

#[test]
fn equal_sort_keys_at_the_edge_of_a_top_n_result() {
    let mut stage = RouterFixture::new(&["SELECT id, a FROM r ORDER BY a LIMIT 2"]);
    stage.commit(
        &["r: - -> [3, 5]", "r: - -> [2, 5]", "r: - -> [4, 5]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[{"at":0,"row":[2,5]},{"at":1,"row":[3,5]}],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: - -> [1, 5]"],
        expect![[r#"
        0: {"deletes":[{"at":1}],"inserts":[{"at":0,"row":[1,5]}],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [2, 5] -> -"],
        expect![[r#"
        0: {"deletes":[{"at":1}],"inserts":[{"at":1,"row":[3,5]}],"updates":[]}
    "#]],
    );
}

#[test]
fn a_reused_key_is_an_update() {
    let mut stage = RouterFixture::new(&["SELECT id, a FROM r", "SELECT a FROM r"]);
    stage.commit(
        &["r: - -> [1, 5]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[[1,5]],"updates":[]}
        1: {"deletes":[],"inserts":[[5]],"updates":[]}
    "#]],
    );
    stage.commit(
        &["r: [1, 5] -> [1, 6]"],
        expect![[r#"
        0: {"deletes":[],"inserts":[],"updates":[[1,6]]}
        1: {"deletes":[[5]],"inserts":[[6]],"updates":[]}
    "#]],
    );
}

#[test]
fn literals_are_values_of_one_template() {
    let queries: Vec<String> =
        (0..500).map(|n| format!("SELECT id FROM r WHERE a = {n} AND c = 'it''s {n}'")).collect();
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    let mut stage = RouterFixture::new(&queries);
    assert_eq!(stage.router.templates().len(), 1);
    stage.commit(
        &[r#"r: - -> [1, 77, 0, "it's 77"]"#],
        expect![[r#"
        77: {"deletes":[],"inserts":[[1]],"updates":[]}
    "#]],
    );
}
