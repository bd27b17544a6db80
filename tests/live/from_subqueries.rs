//! Subqueries in FROM that group, use LIMIT or list values, and joins around them.

use crate::deltas::follow;

pub(crate) const DERIVED: &[&str] = &[
    "SELECT t.a, t.n FROM (SELECT a, count(*) AS n FROM r GROUP BY a) AS t WHERE t.n > 1",
    "SELECT n FROM (SELECT count(*) AS n FROM r GROUP BY a) ORDER BY n",
    "SELECT t.n + 1, t.a FROM (SELECT a, b, count(*) AS n FROM r WHERE c <> :w GROUP BY a, b) t \
     WHERE t.a = :v",
    "SELECT t.n, count(*) FROM (SELECT a, count(*) AS n FROM r GROUP BY a) t GROUP BY t.n",
    "SELECT t.a, max(t.n) FROM (SELECT a, b, count(*) AS n FROM r GROUP BY a, b) t GROUP BY t.a",
    "SELECT r.id, q.n FROM r JOIN (SELECT b, count(*) AS n FROM s GROUP BY b) q ON q.b = r.b",
    "SELECT r.id, q.n FROM r LEFT JOIN (SELECT b, count(*) AS n FROM s GROUP BY b) q ON q.b = r.b \
     WHERE r.a = :v",
    "SELECT r.id, q.n FROM r LEFT JOIN (SELECT b, count(*) AS n FROM s GROUP BY b) q ON q.b = r.b \
     WHERE q.n IS NULL OR q.b = :v",
    "SELECT r.id, q.n FROM r LEFT JOIN (SELECT b, sum(n) AS n FROM s GROUP BY b) q ON q.b = r.b \
     AND q.n = r.a",
    "SELECT r.id, q.n FROM r JOIN (SELECT b, sum(n) AS n FROM s GROUP BY b) q ON q.n = r.a",
    "SELECT r.id, q.n FROM r, (SELECT count(*) AS n FROM s) q WHERE r.a = :v",
    "SELECT r.id, q.n FROM r LEFT JOIN (SELECT max(n) AS n FROM s) q ON q.n = r.a",
    "SELECT r.a, sum(q.n) FROM r JOIN (SELECT b, count(*) AS n FROM s GROUP BY b) q ON q.b = r.b \
     GROUP BY r.a",
    "SELECT x.a, x.n, y.n AS m FROM (SELECT a, count(*) AS n FROM r GROUP BY a) x JOIN (SELECT \
     b, count(*) AS n FROM s GROUP BY b) y ON y.b = x.a",
    "SELECT x.a, x.n, y.n AS m FROM (SELECT a, count(*) AS n FROM r GROUP BY a) x LEFT JOIN \
     (SELECT b, count(*) AS n FROM s GROUP BY b) y ON y.b = x.a WHERE x.a = :v",
    "SELECT q.b, r.id FROM (SELECT DISTINCT b FROM s) q JOIN r ON r.b = q.b WHERE r.c = :w",
    "SELECT q.b, q.c FROM (SELECT DISTINCT b, c FROM s WHERE n > 0) q WHERE q.b = :v",
    "SELECT q.u FROM (SELECT DISTINCT upper(c) AS u FROM r) q WHERE q.u > :w",
    "SELECT q.id, q.k FROM (SELECT r.id, r.a, s.k FROM r LEFT JOIN s ON s.b = r.b) q WHERE q.a = \
     :v",
    "SELECT q.a, count(q.k) FROM (SELECT r.a, s.k FROM r LEFT JOIN s ON s.b = r.b) q GROUP BY q.a",
    "SELECT a, count(*) FROM r WHERE b IN (SELECT b FROM s WHERE n = :v) GROUP BY a",
    "SELECT r.a, count(s.k) FROM r LEFT JOIN s ON s.b = r.b GROUP BY r.a",
    "SELECT s.n, count(*) FROM r LEFT JOIN s ON s.b = r.b GROUP BY s.n",
    "SELECT count(*), max(s.n) FROM r LEFT JOIN s ON s.b = r.b WHERE r.a = :v",
    "SELECT id FROM (SELECT id, a FROM r ORDER BY a DESC LIMIT 3) WHERE a > 0",
    "SELECT q.a, count(*) FROM (SELECT a FROM r ORDER BY b LIMIT 4 OFFSET 1) q GROUP BY q.a",
    "SELECT s.k, q.id FROM s JOIN (SELECT id, b FROM r WHERE c = :w ORDER BY a LIMIT 3) q ON q.b \
     = s.b",
    "SELECT s.k, q.id FROM s LEFT JOIN (SELECT id, b FROM r LIMIT 3) q ON q.b = s.b",
    "SELECT a, n FROM (SELECT a, count(*) AS n FROM r GROUP BY a ORDER BY n DESC LIMIT 2)",
    "SELECT a FROM (SELECT DISTINCT a FROM r LIMIT 2)",
    "SELECT v FROM (SELECT a AS v FROM r UNION SELECT n FROM s ORDER BY v DESC LIMIT 3)",
    "SELECT id FROM r WHERE b IN (SELECT b FROM s ORDER BY n DESC LIMIT 2)",
    "SELECT id FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.b = r.b LIMIT 1 OFFSET 1)",
    "SELECT id FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.b = r.b LIMIT :n)",
    "SELECT id, (SELECT b FROM s WHERE s.n = r.a UNION SELECT n FROM p WHERE p.r_id = r.id) AS \
     some FROM r",
    "SELECT id, (SELECT n FROM s WHERE s.b = r.b GROUP BY n ORDER BY count(*) DESC) AS top FROM r",
    "SELECT id, (SELECT DISTINCT c FROM s WHERE s.b = r.b) AS some FROM r",
    "SELECT id, (SELECT max(n) FROM s WHERE s.b = r.b LIMIT 1) AS m FROM r",
    "SELECT id, (SELECT q.n FROM (SELECT b, count(*) AS n FROM s GROUP BY b) q WHERE q.b = r.b) \
     FROM r",
    "SELECT id FROM r WHERE EXISTS (SELECT 1 FROM (SELECT b, count(*) AS n FROM s GROUP BY b) q \
     WHERE q.b = r.b AND q.n > 1)",
    "SELECT id FROM r WHERE b IN (SELECT b FROM s GROUP BY b HAVING count(*) > 1)",
    "SELECT id FROM r WHERE a NOT IN (SELECT count(*) FROM s GROUP BY b)",
    "WITH known AS (SELECT b FROM s WHERE n > 0) SELECT id FROM r WHERE b IN known",
    "SELECT id FROM r WHERE id NOT IN one_column",
    "SELECT r.id, v.column2 AS name FROM r JOIN (VALUES (1, 'one'), (2, 'two')) v ON v.column1 = \
     r.a",
    "WITH names(n, name) AS (VALUES (1, 'one'), (2, :w)) SELECT s.k, names.name FROM s LEFT JOIN \
     names USING (n)",
    "SELECT id FROM r WHERE (a, b) IN (VALUES (1, 2), (2, 2))",
    "SELECT v.column1, count(r.id) FROM (VALUES (1), (2), (3)) v LEFT JOIN r ON r.a = v.column1 \
     GROUP BY v.column1",
    "SELECT id, c FROM r ORDER BY (SELECT count(*) FROM s WHERE s.b = r.b) DESC",
    "SELECT id FROM r WHERE b IN (SELECT q.b FROM (SELECT b, sum(n) AS m FROM s GROUP BY b) q \
     WHERE q.m > :n)",
    "SELECT o.id, o.m FROM (SELECT q.id, q.m + 1 AS m FROM (SELECT r.id, max(s.n) AS m FROM r \
     LEFT JOIN s ON s.b = r.b GROUP BY r.id) q WHERE q.m > 0) o WHERE o.id = :v",
    "SELECT id, coalesce((SELECT sum(n) FROM s WHERE s.b = r.b), 0) AS total FROM r GROUP BY id",
    "SELECT * FROM (SELECT b, n FROM s EXCEPT SELECT n, r_id FROM p) e JOIN r ON r.b = e.b",
    "SELECT q.a, q.n, p.g, p.n AS pn FROM (SELECT a, count(*) AS n FROM r GROUP BY a) q LEFT JOIN \
     p ON p.n = q.a",
    "SELECT q.a, q.n FROM (SELECT a, count(*) AS n FROM r GROUP BY a) q WHERE EXISTS (SELECT 1 \
     FROM p WHERE p.n = q.a)",
    // A group value compares like its column: '2.0' is a number there, and 1 a text.
    "SELECT q.x FROM (SELECT d.x AS x, count(*) AS n FROM (SELECT DISTINCT x FROM r) d GROUP BY d.x) \
     q WHERE q.x = '2.0'",
    "SELECT q.c FROM (SELECT DISTINCT s.c FROM r FULL JOIN s ON s.b = r.b) q WHERE q.c <> 1",
    // An order by a constant column, which is not a position.
    "SELECT id, (SELECT one FROM (SELECT 1 AS one, k FROM s) ORDER BY one, 1 LIMIT 1) FROM r",
    "SELECT c COLLATE NOCASE, id FROM r GROUP BY 1, id ORDER BY 1",
    "SELECT q.a FROM (SELECT 1 AS a FROM s UNION ALL SELECT a FROM r) q WHERE q.a = 1",
];

#[test]
fn subqueries_in_from_follow_every_commit() {
    follow("derived", DERIVED);
}
