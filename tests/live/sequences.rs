//! Aggregates that depend on the order of rows get a total order.

use crate::deltas::follow;

pub(crate) const SEQUENCES: &[&str] = &[
    "SELECT group_concat(c) FROM r",
    "SELECT a, group_concat(c, '/') FROM r GROUP BY a",
    "SELECT a, string_agg(c, ',' ORDER BY b DESC) FROM r WHERE b = :v GROUP BY a",
    "SELECT a, group_concat(c ORDER BY c COLLATE NOCASE, x NULLS LAST) AS them FROM r GROUP BY a \
     ORDER BY them COLLATE BINARY COLLATE BINARY",
    "SELECT a, group_concat(DISTINCT c) FROM r GROUP BY a",
    "SELECT a, group_concat(DISTINCT c ORDER BY c DESC) FROM r GROUP BY a",
    "SELECT b, json_group_array(id) FILTER (WHERE a > 0) FROM r GROUP BY b",
    "SELECT b, json_group_array(json_object('id', id, 'c', c) ORDER BY c) AS rows FROM r GROUP BY \
     b",
    "SELECT b, json_group_object(c, a) FROM r WHERE c IS NOT NULL GROUP BY b",
    "SELECT a, hex(jsonb_group_array(b)), hex(jsonb_group_object(id, b)) FROM r GROUP BY a",
    "SELECT a, sum(x ORDER BY id), count(c ORDER BY c), sum(DISTINCT b) FROM r WHERE b < 100 \
     GROUP BY a",
    "SELECT r.id, group_concat(s.k) FROM r JOIN s ON s.b = r.b GROUP BY r.id",
    "SELECT r.id, r.c, group_concat(s.k ORDER BY s.n) FROM r LEFT JOIN s ON s.b = r.b GROUP BY \
     r.id",
    "SELECT id, (SELECT group_concat(g || n) FROM p WHERE p.r_id = r.id) AS them FROM r WHERE a = \
     :v",
    "SELECT s.k, t.them FROM s JOIN (SELECT b, group_concat(id) AS them FROM r GROUP BY b) t ON \
     t.b = s.b",
    "SELECT group_concat(q.n ORDER BY q.a) FROM (SELECT a, count(*) AS n FROM r GROUP BY a) q",
    "SELECT a FROM r GROUP BY a HAVING group_concat(c) > 'a' ORDER BY group_concat(id)",
    "SELECT a, group_concat(c) FROM r GROUP BY a ORDER BY 2 LIMIT 2",
    "SELECT a, json_group_array(b ORDER BY row) FROM (SELECT id AS row, a, b FROM r) GROUP BY a",
    "SELECT group_concat(c || (SELECT count(*) FROM s WHERE s.b = r.b)) FROM r WHERE a = :v",
];

#[test]
fn sequences_follow_every_commit() {
    follow("sequences", SEQUENCES);
}
