//! UNION, EXCEPT and INTERSECT in any chain, maintained by the rows that equal those of a change.

use std::sync::Arc;

use abide_live::Planner;
use serde_json::Map;

use crate::deltas::follow;
use crate::world::World;

pub(crate) const COMPOUNDS: &[&str] = &[
    "SELECT a FROM r UNION SELECT n FROM s",
    "SELECT a, c FROM r WHERE b = :v EXCEPT SELECT n, c FROM s WHERE b = :w",
    "SELECT b FROM r INTERSECT SELECT b FROM s WHERE n = :v",
    "SELECT b FROM r UNION ALL SELECT b FROM s EXCEPT SELECT r_id FROM p",
    "SELECT b, c FROM r UNION SELECT b, c FROM s UNION ALL SELECT n, g FROM p",
    "SELECT a FROM r EXCEPT SELECT b FROM s INTERSECT SELECT n FROM p UNION SELECT r_id FROM p",
    "SELECT 'r' AS t, id FROM r WHERE a = :v UNION SELECT 's', n FROM s",
    "SELECT 'r' AS t, count(*) AS n FROM r GROUP BY a UNION SELECT c, n FROM s",
    "SELECT a, count(*) FROM r GROUP BY a UNION ALL SELECT n, b FROM s",
    "SELECT a, count(*) FROM r GROUP BY a EXCEPT SELECT n, count(*) FROM s GROUP BY n",
    "SELECT count(*) FROM r UNION ALL SELECT count(*) FROM s",
    "SELECT 'r' AS t, count(*) FROM r UNION SELECT 's', n FROM s",
    "SELECT r.id, s.k FROM r LEFT JOIN s ON s.b = r.b UNION SELECT n, g FROM p",
    "SELECT r.a, s.c FROM r JOIN s ON s.b = r.b UNION SELECT p.n, r.c FROM p JOIN r ON r.id = \
     p.r_id",
    "SELECT r.a, s.c FROM r, s WHERE r.id = :v INTERSECT SELECT n, c FROM s",
    "SELECT id FROM r WHERE b IN (SELECT b FROM s) UNION SELECT n FROM p WHERE r_id = :v",
    "SELECT id FROM r WHERE b NOT IN (SELECT b FROM s UNION SELECT n FROM p)",
    "SELECT id FROM r WHERE (a, b) IN (SELECT n, b FROM s EXCEPT SELECT n, r_id FROM p)",
    "SELECT x FROM r UNION SELECT v FROM p",
    "SELECT z, id FROM r UNION SELECT z, a FROM r",
    "SELECT a FROM r UNION SELECT n FROM s ORDER BY 1 DESC",
    "SELECT a FROM r UNION SELECT n FROM s ORDER BY 1 DESC LIMIT 3",
    "SELECT a, id AS a FROM r UNION SELECT n, b FROM s ORDER BY a DESC",
    "SELECT DISTINCT a, b FROM r UNION ALL SELECT n, b FROM s",
    "SELECT DISTINCT a + 0 AS d, c FROM r UNION ALL SELECT n, c FROM s",
    "SELECT 1 AS one UNION SELECT a FROM r",
    "SELECT a FROM r EXCEPT VALUES (1), (2)",
    "SELECT upper(c) AS u FROM r UNION SELECT lower(c) FROM s",
    "SELECT c || 'x' FROM r INTERSECT SELECT c || 'x' FROM s",
    "SELECT CASE WHEN a > 1 THEN 'many' ELSE 'few' END AS w, id FROM r UNION SELECT c, n FROM s",
    "SELECT * FROM (SELECT a AS q, c FROM r UNION ALL SELECT n, c FROM s) WHERE q = :v",
    "SELECT * FROM (SELECT a AS q, c FROM r UNION SELECT n, c FROM s) WHERE c = :v ORDER BY q",
    "SELECT t.q, count(*) FROM (SELECT a AS q FROM r UNION ALL SELECT n FROM s) t GROUP BY t.q",
    "SELECT r.id, u.q FROM r JOIN (SELECT b AS q, n FROM s UNION SELECT n, r_id FROM p) u ON u.q \
     = r.b WHERE r.a = :v",
    "SELECT r.id, u.n FROM r LEFT JOIN (SELECT b AS q, n FROM s UNION ALL SELECT n, r_id FROM p) \
     u ON u.q = r.b",
    "SELECT id, a FROM r UNION ALL SELECT n, (SELECT max(r.a) FROM r WHERE r.b = s.b) FROM s",
    "SELECT a FROM r UNION ALL SELECT x FROM r UNION ALL SELECT c FROM s",
    "SELECT a, sum(b) FROM r GROUP BY a UNION ALL SELECT c, count(*) FROM s GROUP BY c",
];

#[test]
fn compounds_follow_every_commit() {
    follow("compounds", COMPOUNDS);
}

/// ORDER BY meant the first column of this name. SQLite orders by the column with the alias.
#[test]
fn order_by_means_an_alias_before_a_column_of_the_same_name() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    for (sql, column) in [
        ("SELECT a, id AS a FROM r UNION SELECT n, b FROM s ORDER BY a", 2),
        ("SELECT a, id AS b FROM r UNION SELECT n, b FROM s ORDER BY a", 1),
    ] {
        let binding = planner.bind(sql, &Map::new()).expect("the query can be live");
        let snapshot = binding.snapshot_sql();
        assert!(snapshot.contains(&format!("ORDER BY {column} ")), "{sql}: {snapshot}");
    }
}
