//! The cost of complex queries: the rule, the route, and the avoidable table scans (none).

use expect_test::expect;

use crate::shapes::check_costs;

#[test]
fn compounds_cost_the_equal_rows() {
    check_costs(
        &[
            "SELECT a FROM r UNION SELECT b FROM s",
            "SELECT b, c FROM r WHERE a = 1 EXCEPT SELECT b, c FROM s INTERSECT SELECT n, g FROM p",
            "SELECT b, count(*) FROM r GROUP BY b UNION SELECT b, n FROM s",
            "SELECT r.a, s.c FROM r JOIN s ON s.b = r.b UNION SELECT b, c FROM s",
            "SELECT a, count(*) FROM r GROUP BY a UNION ALL SELECT c, count(*) FROM s GROUP BY c",
            "SELECT count(*) FROM r WHERE a = 1 UNION ALL SELECT count(*) FROM s WHERE b = 2",
            "SELECT * FROM (SELECT a AS x, c FROM r UNION ALL SELECT b, c FROM s) WHERE x = 1",
            "SELECT r.id, u.n FROM r LEFT JOIN (SELECT b, n FROM s UNION SELECT r_id, n FROM p) u ON \
             u.b = r.b WHERE r.a = 1",
            "SELECT id FROM r WHERE b IN (SELECT b FROM s UNION SELECT r_id FROM p)",
            "SELECT max(a) FROM r UNION SELECT max(n) FROM s",
        ],
        expect![[r#"
            SELECT a FROM r UNION SELECT b FROM s
                partition_reevaluation: the rows equal to the touched ones, twice
                r: every change; s: every change
            SELECT b, c FROM r WHERE a = 1 EXCEPT SELECT b, c FROM s INTERSECT SELECT n, g FROM p
                partition_reevaluation: the rows equal to the touched ones, twice
                r: a; s: every change; p: every change, evaluation scans p()
            SELECT b, count(*) FROM r GROUP BY b UNION SELECT b, n FROM s
                partition_reevaluation: the rows equal to the touched ones, twice
                r: every change; s: every change
            SELECT r.a, s.c FROM r JOIN s ON s.b = r.b UNION SELECT b, c FROM s
                partition_reevaluation: the rows equal to the touched ones, twice
                r: every change; s: every change; s: every change
            SELECT a, count(*) FROM r GROUP BY a UNION ALL SELECT c, count(*) FROM s GROUP BY c
                partition_reevaluation: the touched rows and groups of each SELECT, twice
                r: every change; s: every change
            SELECT count(*) FROM r WHERE a = 1 UNION ALL SELECT count(*) FROM s WHERE b = 2
                partition_reevaluation: the touched rows and groups of each SELECT, twice
                r: a; s: b
            SELECT * FROM (SELECT a AS x, c FROM r UNION ALL SELECT b, c FROM s) WHERE x = 1
                partition_reevaluation: the rows of the touched groups, twice
                r: a; s: b
            SELECT r.id, u.n FROM r LEFT JOIN (SELECT b, n FROM s UNION SELECT r_id, n FROM p) u ON u.b = r.b WHERE r.a = 1
                row_reevaluation: the rows that the changed rows reach, twice
                r: a; s: a shared lookup; p: a shared lookup
            SELECT id FROM r WHERE b IN (SELECT b FROM s UNION SELECT r_id FROM p)
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; s: every change; p: every change
            SELECT max(a) FROM r UNION SELECT max(n) FROM s
                partition_reevaluation: the whole query, twice, if a changed row matches
                r: every change; s: every change
        "#]],
    );
}

#[test]
fn both_sides_of_a_full_join_cost_their_keys() {
    check_costs(
        &[
            "SELECT * FROM r RIGHT JOIN s USING (b) WHERE b = 1",
            "SELECT r.id, s.k FROM r JOIN p ON p.r_id = r.id RIGHT JOIN s ON s.b = r.b",
            "SELECT * FROM r FULL JOIN s USING (b)",
            "SELECT r.id, p.n FROM r FULL JOIN p ON p.r_id = r.id AND p.v > 1 WHERE r.a IS NULL",
            "SELECT r.id, s.k FROM r FULL JOIN s ON r.b = s.b LEFT JOIN p ON p.r_id = r.id",
        ],
        expect![[r#"
            SELECT * FROM r RIGHT JOIN s USING (b) WHERE b = 1
                row_reevaluation: the rows that the changed rows reach, twice
                r: b; s: b
            SELECT r.id, s.k FROM r JOIN p ON p.r_id = r.id RIGHT JOIN s ON s.b = r.b
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; p: every change; s: every change
            SELECT * FROM r FULL JOIN s USING (b)
                partition_reevaluation: the rows of the touched join keys, twice
                r: every change; s: every change
            SELECT r.id, p.n FROM r FULL JOIN p ON p.r_id = r.id AND p.v > 1 WHERE r.a IS NULL
                partition_reevaluation: the rows of the touched join keys, twice
                r: every change; p: every change
            SELECT r.id, s.k FROM r FULL JOIN s ON r.b = s.b LEFT JOIN p ON p.r_id = r.id
                full_reevaluation: the whole query
                r: every change; s: every change; p: every change, evaluation scans r(), evaluation scans s()
        "#]],
    );
}

#[test]
fn windows_cost_their_partitions() {
    check_costs(
        &[
            "SELECT id, row_number() OVER (PARTITION BY a ORDER BY x) FROM r",
            "SELECT id, rank() OVER (PARTITION BY b, a ORDER BY x), sum(a) OVER (PARTITION BY b) FROM r \
             WHERE c = 'x'",
            "SELECT r.id, s.k, count(*) OVER (PARTITION BY r.b) FROM r LEFT JOIN s ON s.b = r.b",
            "SELECT a, b, count(*), rank() OVER (PARTITION BY a ORDER BY count(*)) FROM r GROUP BY a, b",
            "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY b ORDER BY n) AS nth FROM s) \
             WHERE nth = 1",
            "SELECT r.id, q.k FROM r LEFT JOIN (SELECT *, row_number() OVER (PARTITION BY b ORDER BY \
             n) AS nth FROM s) q ON q.b = r.b AND q.nth = 1",
            "SELECT id, rank() OVER (ORDER BY x) FROM r WHERE a = 1",
            "SELECT id, rank() OVER (ORDER BY x) FROM r",
        ],
        expect![[r#"
            SELECT id, row_number() OVER (PARTITION BY a ORDER BY x) FROM r
                partition_reevaluation: the touched partitions, twice
                r: every change
            SELECT id, rank() OVER (PARTITION BY b, a ORDER BY x), sum(a) OVER (PARTITION BY b) FROM r WHERE c = 'x'
                partition_reevaluation: the touched partitions, twice
                r: c
            SELECT r.id, s.k, count(*) OVER (PARTITION BY r.b) FROM r LEFT JOIN s ON s.b = r.b
                partition_reevaluation: the touched partitions, twice
                r: every change; s: every change
            SELECT a, b, count(*), rank() OVER (PARTITION BY a ORDER BY count(*)) FROM r GROUP BY a, b
                partition_reevaluation: the touched partitions, twice
                r: every change
            SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY b ORDER BY n) AS nth FROM s) WHERE nth = 1
                partition_reevaluation: the touched partitions, twice
                s: every change
            SELECT r.id, q.k FROM r LEFT JOIN (SELECT *, row_number() OVER (PARTITION BY b ORDER BY n) AS nth FROM s) q ON q.b = r.b AND q.nth = 1
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; s: every change
            SELECT id, rank() OVER (ORDER BY x) FROM r WHERE a = 1
                partition_reevaluation: the whole query, twice, if a changed row matches
                r: a
            SELECT id, rank() OVER (ORDER BY x) FROM r
                partition_reevaluation: the whole query, twice, if a changed row matches
                r: every change, evaluation scans r()
        "#]],
    );
}

#[test]
fn subqueries_in_from_cost_their_touched_groups() {
    check_costs(
        &[
            "SELECT b, n FROM (SELECT b, count(*) AS n FROM s GROUP BY b) WHERE n > 1",
            "SELECT r.id, q.n FROM r LEFT JOIN (SELECT b, count(*) AS n FROM s GROUP BY b) q ON q.b = \
             r.b WHERE r.a = 1",
            "SELECT q.b, q.n, r.id FROM (SELECT b, count(*) AS n FROM s GROUP BY b) q JOIN r ON r.b = \
             q.b",
            "SELECT x.b, x.n, y.n AS m FROM (SELECT b, count(*) AS n FROM s GROUP BY b) x LEFT JOIN \
             (SELECT r_id, count(*) AS n FROM p GROUP BY r_id) y ON y.r_id = x.b",
            "SELECT q.b FROM (SELECT DISTINCT b FROM s) q WHERE EXISTS (SELECT 1 FROM r WHERE r.b = \
             q.b)",
            "SELECT id FROM r WHERE b IN (SELECT b FROM s GROUP BY b HAVING count(*) > 1)",
            "SELECT id FROM r WHERE b IN (SELECT b FROM s WHERE n = 1)",
            "SELECT r.a, count(s.k), group_concat(s.k) FROM r LEFT JOIN s ON s.b = r.b GROUP BY r.a",
            "SELECT id FROM (SELECT id, a FROM r WHERE b = 1 ORDER BY a LIMIT 3)",
            "SELECT id, c FROM r ORDER BY (SELECT count(*) FROM s WHERE s.b = r.b)",
            "SELECT q.n, count(*) FROM (SELECT b, count(*) AS n FROM s GROUP BY b) q GROUP BY q.n",
        ],
        expect![[r#"
            SELECT b, n FROM (SELECT b, count(*) AS n FROM s GROUP BY b) WHERE n > 1
                partition_reevaluation: the rows of the touched groups, twice
                s: every change
            SELECT r.id, q.n FROM r LEFT JOIN (SELECT b, count(*) AS n FROM s GROUP BY b) q ON q.b = r.b WHERE r.a = 1
                row_reevaluation: the rows that the changed rows reach, twice
                r: a; s: a shared lookup
            SELECT q.b, q.n, r.id FROM (SELECT b, count(*) AS n FROM s GROUP BY b) q JOIN r ON r.b = q.b
                row_reevaluation: the rows that the changed rows reach, twice
                s: every change; r: every change
            SELECT x.b, x.n, y.n AS m FROM (SELECT b, count(*) AS n FROM s GROUP BY b) x LEFT JOIN (SELECT r_id, count(*) AS n FROM p GROUP BY r_id) y ON y.r_id = x.b
                partition_reevaluation: the rows of the touched groups, twice
                s: every change; p: every change
            SELECT q.b FROM (SELECT DISTINCT b FROM s) q WHERE EXISTS (SELECT 1 FROM r WHERE r.b = q.b)
                partition_reevaluation: the rows of the touched groups, twice
                s: every change; r: every change
            SELECT id FROM r WHERE b IN (SELECT b FROM s GROUP BY b HAVING count(*) > 1)
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; s: every change
            SELECT id FROM r WHERE b IN (SELECT b FROM s WHERE n = 1)
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; s: n
            SELECT r.a, count(s.k), group_concat(s.k) FROM r LEFT JOIN s ON s.b = r.b GROUP BY r.a
                partition_reevaluation: the rows of the touched groups, twice
                r: every change; s: every change
            SELECT id FROM (SELECT id, a FROM r WHERE b = 1 ORDER BY a LIMIT 3)
                partition_reevaluation: the whole query, twice, if a changed row matches
                r: b
            SELECT id, c FROM r ORDER BY (SELECT count(*) FROM s WHERE s.b = r.b)
                row_reevaluation: the rows that the changed rows reach, twice
                r: every change; s: every change
            SELECT q.n, count(*) FROM (SELECT b, count(*) AS n FROM s GROUP BY b) q GROUP BY q.n
                partition_reevaluation: the whole query, twice, if a changed row matches
                s: every change, evaluation scans s()
        "#]],
    );
}
