//! Window functions with a common partition, maintained by the touched partitions.

use crate::deltas::follow;

pub(crate) const WINDOWED: &[&str] = &[
    "SELECT id, a, row_number() OVER (PARTITION BY a ORDER BY b) AS n FROM r",
    "SELECT id, row_number() OVER (ORDER BY b DESC, c) AS n FROM r WHERE a = :v",
    "SELECT id, row_number() OVER () FROM r",
    "SELECT c, row_number() OVER (PARTITION BY b) FROM r WHERE a IS :v",
    "SELECT id, rank() OVER (PARTITION BY a ORDER BY b) AS rank, dense_rank() OVER (PARTITION BY \
     a ORDER BY b) AS dense, percent_rank() OVER (PARTITION BY a ORDER BY b) AS percent, \
     cume_dist() OVER (PARTITION BY a ORDER BY b) AS dist FROM r",
    "SELECT id, ntile(3) OVER (PARTITION BY a ORDER BY b NULLS LAST) FROM r",
    "SELECT id, lag(id) OVER w, lead(id, 2, -1) OVER w FROM r WINDOW w AS (PARTITION BY a ORDER \
     BY b)",
    "SELECT id, lag(x, 1, 0.5) OVER (PARTITION BY b ORDER BY a DESC NULLS LAST) FROM r WHERE c = \
     :w",
    "SELECT id, first_value(c) OVER (PARTITION BY a ORDER BY b) FROM r",
    "SELECT id, last_value(c) OVER (PARTITION BY a ORDER BY b ROWS BETWEEN 1 PRECEDING AND 1 \
     FOLLOWING) FROM r",
    "SELECT id, last_value(id) OVER (PARTITION BY a ORDER BY b RANGE BETWEEN CURRENT ROW AND \
     UNBOUNDED FOLLOWING) FROM r",
    "SELECT id, nth_value(c, 2) OVER (PARTITION BY a ORDER BY b, id) FROM r",
    "SELECT id, nth_value(c, 2) OVER (PARTITION BY a) FROM r",
    "SELECT id, count(*) OVER (PARTITION BY a) AS n, sum(b) OVER (PARTITION BY a) FROM r ORDER BY \
     n DESC",
    "SELECT id, sum(b) OVER (PARTITION BY a ORDER BY id) FROM r WHERE b < 100",
    "SELECT id, sum(b) OVER (PARTITION BY a ORDER BY c) FROM r WHERE b < 100",
    "SELECT id, sum(b) OVER (PARTITION BY a ORDER BY c ROWS 2 PRECEDING) FROM r WHERE b < 100",
    "SELECT id, sum(b) OVER (PARTITION BY a ORDER BY b RANGE BETWEEN 1 PRECEDING AND 1 \
     FOLLOWING) FROM r WHERE b < 100",
    "SELECT id, count(*) OVER (PARTITION BY a ORDER BY b GROUPS BETWEEN 1 PRECEDING AND CURRENT \
     ROW) FROM r",
    "SELECT id, count(*) OVER (PARTITION BY a ORDER BY b GROUPS BETWEEN 1 PRECEDING AND CURRENT \
     ROW EXCLUDE TIES) FROM r",
    "SELECT id, count(*) OVER (PARTITION BY a ORDER BY b RANGE UNBOUNDED PRECEDING EXCLUDE GROUP) \
     FROM r",
    "SELECT id, min(c) OVER (PARTITION BY a ORDER BY b GROUPS CURRENT ROW EXCLUDE CURRENT \
     ROW) FROM r",
    "SELECT id, max(id) OVER (PARTITION BY a ORDER BY b ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING \
     EXCLUDE CURRENT ROW) FROM r",
    "SELECT id, sum(x) OVER (PARTITION BY a ORDER BY id) AS running FROM r",
    "SELECT id, sum(x) OVER (PARTITION BY a) AS whole, avg(x) OVER (PARTITION BY a ORDER BY b \
     ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM r",
    "SELECT id, total(b) OVER (PARTITION BY a ORDER BY b), avg(b) OVER (PARTITION BY a) FROM r",
    "SELECT id, count(*) FILTER (WHERE b > 1) OVER (PARTITION BY a ORDER BY id) FROM r",
    "SELECT id, group_concat(c, '-') OVER (PARTITION BY a ORDER BY b ROWS UNBOUNDED PRECEDING) \
     FROM r",
    "SELECT id, group_concat(c) OVER (PARTITION BY a) AS all_of_them FROM r",
    "SELECT id, json_group_array(c) FILTER (WHERE b = 2) OVER (PARTITION BY a ORDER BY id) FROM r",
    "SELECT id, string_agg(c, '') OVER (ORDER BY id DESC) FROM r WHERE a = :v",
    "SELECT id, sum(b) OVER w1, rank() OVER w2, row_number() OVER w3 FROM r WHERE b < 100 WINDOW \
     w1 AS (PARTITION BY a), w2 AS (w1 ORDER BY b), w3 AS (PARTITION BY c, a ORDER BY b)",
    "SELECT id, row_number() OVER (PARTITION BY a ORDER BY b), row_number() OVER (PARTITION BY b \
     ORDER BY a) FROM r",
    "SELECT id, rank() OVER (PARTITION BY c COLLATE NOCASE ORDER BY c COLLATE RTRIM) FROM r",
    "SELECT id, rank() OVER (PARTITION BY upper(c), a ORDER BY b) FROM r",
    "SELECT id, count(*) OVER (PARTITION BY coalesce(a, x)) FROM r",
    "SELECT a, count(*), rank() OVER (ORDER BY count(*) DESC) FROM r GROUP BY a",
    "SELECT a, b, count(*) AS n, row_number() OVER (PARTITION BY a ORDER BY count(*) DESC) AS \
     place FROM r GROUP BY a, b",
    "SELECT a, b, sum(count(*)) OVER (PARTITION BY a ORDER BY b) FROM r GROUP BY a, b HAVING \
     count(*) > 1",
    "SELECT upper(c) AS u, row_number() OVER (ORDER BY max(id)) FROM r GROUP BY u",
    "SELECT count(*), row_number() OVER () FROM r",
    "SELECT DISTINCT a, count(*) OVER (PARTITION BY a) FROM r",
    "SELECT DISTINCT a, first_value(id) OVER (PARTITION BY a, b ORDER BY id) AS f FROM r",
    "SELECT DISTINCT count(*) OVER (PARTITION BY a) FROM r",
    "SELECT DISTINCT a, count(*) FROM r GROUP BY a, b",
    "SELECT r.id, s.k, row_number() OVER (PARTITION BY r.a ORDER BY s.n DESC) FROM r JOIN s ON \
     s.b = r.b",
    "SELECT r.id, s.k, count(s.k) OVER (PARTITION BY r.id) AS n FROM r LEFT JOIN s ON s.b = r.b",
    "SELECT r.id, s.k, row_number() OVER (PARTITION BY s.n ORDER BY r.a) AS n FROM r LEFT JOIN s \
     ON s.b = r.b",
    "SELECT r.id, s.k, row_number() OVER (ORDER BY s.n, r.a) AS n FROM r FULL JOIN s ON s.b = r.b",
    "SELECT id, rank() OVER (PARTITION BY a ORDER BY b) FROM r WHERE b IN (SELECT b FROM s)",
    "SELECT id, (SELECT count(*) FROM s WHERE s.b = r.b) AS n, rank() OVER (PARTITION BY a ORDER \
     BY (SELECT count(*) FROM s WHERE s.b = r.b)) FROM r",
    "SELECT id, rank() OVER (PARTITION BY a ORDER BY b) AS n FROM r ORDER BY n, a LIMIT 4",
    "SELECT id FROM r ORDER BY row_number() OVER (PARTITION BY a ORDER BY b DESC), a",
    "SELECT id, n FROM (SELECT id, a, row_number() OVER (PARTITION BY a ORDER BY b DESC) AS n \
     FROM r) WHERE n <= 2",
    "SELECT q.id, q.a FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY b DESC) AS n \
     FROM r WHERE c <> :w) q WHERE q.n = 1 AND q.a = :v",
    "SELECT s.k, q.id FROM s JOIN (SELECT id, b, row_number() OVER (PARTITION BY b ORDER BY id \
     DESC) AS n FROM r) q ON q.b = s.b WHERE q.n = 1",
    "SELECT s.k, q.id FROM s LEFT JOIN (SELECT id, b, row_number() OVER (PARTITION BY b ORDER BY \
     id DESC) AS n FROM r) q ON q.b = s.b AND q.n = 1 WHERE s.n = :v",
    "SELECT s.k, q.id FROM s LEFT JOIN (SELECT id, b, row_number() OVER (PARTITION BY a ORDER BY \
     id DESC) AS n FROM r) q ON q.b = s.b AND q.n = 1",
    "SELECT id FROM r WHERE id IN (SELECT first_value(r_id) OVER (PARTITION BY g ORDER BY n) FROM \
     p)",
    "SELECT id, (SELECT rank() OVER (ORDER BY n) FROM s WHERE s.b = r.b ORDER BY k LIMIT 1) FROM \
     r",
    "SELECT g, n, v - lag(v) OVER (PARTITION BY g ORDER BY n) AS step FROM p",
    "SELECT k, n, rank() OVER (ORDER BY n) AS place FROM s WHERE b = :v",
    "WITH ranked AS (SELECT id, a, rank() OVER (PARTITION BY a ORDER BY b) AS place FROM r) \
     SELECT x.id, y.id AS other FROM ranked x JOIN ranked y ON x.a = y.a AND x.place < y.place",
    "SELECT id, ntile(:n) OVER (PARTITION BY a ORDER BY b) FROM r",
    "SELECT id, sum(b) OVER (PARTITION BY a ORDER BY id ROWS BETWEEN :n PRECEDING AND CURRENT \
     ROW) FROM r WHERE b < 100",
    "SELECT id, rank() OVER (PARTITION BY a + :n ORDER BY b) FROM r",
];

#[test]
fn windows_of_partitions_follow_every_commit() {
    follow("windowed", WINDOWED);
}
