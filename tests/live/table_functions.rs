//! json_each() and json_tree() in FROM, over a JSON column of a table next to them.

use crate::deltas::follow;

pub(crate) const LISTED: &[&str] = &[
    "SELECT r.id, j.value FROM r, json_each(json_array(r.a, r.b, r.a)) AS j",
    "SELECT r.id, j.key, j.type FROM r JOIN json_each(json_array(r.a, r.b)) AS j ON j.value = :v \
     WHERE r.c = :w",
    "SELECT r.id, j.* FROM r LEFT JOIN json_each(json_array(r.a, r.b)) AS j ON j.value > 1",
    "SELECT r.id, j.fullkey FROM r, json_tree(CASE WHEN json_valid(r.c) THEN r.c ELSE '[]' END, \
     '$.a') j",
    "SELECT id FROM r WHERE EXISTS (SELECT 1 FROM json_each(json_array(a, b)) WHERE value = :v)",
    "SELECT id, (SELECT sum(value) FROM json_each(json_array(a, r.id))) AS total FROM r WHERE a = 2",
    "SELECT id, (SELECT group_concat(value) FROM json_each(json_array(a, r.id))) AS them FROM r",
    "SELECT r.id, s.k, j.value FROM r, json_each(json_array(r.a, r.b)) j, s WHERE s.n = j.value",
    "SELECT r.id, s.k, j.value FROM r JOIN s ON s.b = r.b JOIN json_each(json_array(r.a, s.n)) j",
    "SELECT j.value, count(*) FROM r, json_each(json_array(r.a, r.b)) j GROUP BY j.value",
    "SELECT r.a, count(j.id), max(j.key) FROM r, json_each(json_array(r.a, r.b)) j GROUP BY r.a",
    "SELECT r.id, j.value, row_number() OVER (PARTITION BY r.a ORDER BY j.value) FROM r, \
     json_each(json_array(r.id, r.b)) j",
    "SELECT DISTINCT j.value FROM r, json_each(json_array(r.a, r.b)) j WHERE r.a = :v",
    "SELECT id FROM r WHERE a IN (SELECT value FROM json_each('[1, 2]'))",
    "SELECT id FROM r WHERE a IN (SELECT value FROM json_each(:list))",
    "SELECT s.k, t.v FROM s LEFT JOIN (SELECT r.b, j.value AS v FROM r, json_each(json_array(r.a, \
     r.id)) j) t ON t.b = s.b",
    "SELECT r.id, j.value FROM r, json_each(json_array(r.a, r.b)) j ORDER BY j.value, r.id LIMIT 3",
];

#[test]
fn elements_of_json_follow_every_commit() {
    follow("listed", LISTED);
}
