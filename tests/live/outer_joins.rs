//! RIGHT and FULL JOIN, with ON and with columns merged by USING.

use crate::deltas::follow;

pub(crate) const SIDES: &[&str] = &[
    "SELECT r.id, s.k FROM r RIGHT JOIN s ON r.b = s.b WHERE s.n = :v",
    "SELECT * FROM r RIGHT JOIN s ON r.b = s.b AND s.n > r.a",
    "SELECT r.id, s.k, p.n FROM r RIGHT JOIN s ON r.b = s.b JOIN p ON p.n = s.n",
    "SELECT r.id, s.k, p.n FROM r RIGHT JOIN s ON r.b = s.b LEFT JOIN p ON p.r_id = r.id",
    "SELECT r.id, s.k, p.n FROM r JOIN p ON p.r_id = r.id RIGHT JOIN s ON s.n = p.n",
    "SELECT r.id, s.k, p.n FROM r LEFT JOIN p ON p.r_id = r.id RIGHT JOIN s ON s.n = p.n",
    "SELECT q.id, s.k FROM (SELECT id, b FROM r WHERE a = :v) q RIGHT JOIN s ON s.b = q.b",
    "SELECT q.n, positive.id FROM s q RIGHT JOIN positive ON positive.bee = q.b",
    "SELECT pairs.rid, pairs.sk, p.g FROM p RIGHT JOIN pairs ON p.r_id = pairs.rid",
    "SELECT count(*), s.n FROM r RIGHT JOIN s ON r.b = s.b GROUP BY s.n",
    "SELECT * FROM r RIGHT JOIN s USING (b)",
    "SELECT * FROM r NATURAL RIGHT JOIN s",
    "SELECT r.*, b, s.* FROM r RIGHT JOIN s USING (b) WHERE b = :v",
    "SELECT r.id, b, s.k, p.n FROM r RIGHT JOIN s USING (b) JOIN p USING (n)",
    "SELECT id, b, k, g FROM r LEFT JOIN s USING (b) RIGHT JOIN p USING (n)",
    "SELECT r.id, s.k FROM r FULL JOIN s ON r.b = s.b AND r.a = s.n",
    "SELECT r.id, s.k FROM r FULL JOIN s ON s.b = r.b AND r.a = :v WHERE r.c IS NULL OR s.n > 1",
    "SELECT r.c, s.c FROM r FULL JOIN s ON s.c = r.c ORDER BY s.n DESC, r.a",
    "SELECT * FROM r FULL JOIN s USING (b)",
    "SELECT b, r.b AS rb, s.b AS sb FROM r FULL JOIN s USING (b) WHERE b = :v",
    "SELECT typeof(b), b = '2' AS two FROM r FULL JOIN s USING (b) ORDER BY b",
    "SELECT * FROM r NATURAL FULL JOIN s",
    "SELECT x.id, y.id AS other FROM r x FULL JOIN r y ON x.a = y.b",
    "SELECT r.id, p.g, p.n FROM r FULL JOIN p ON p.r_id = r.id",
    "SELECT r.id, s.k FROM r FULL JOIN s ON r.x = s.n",
    "SELECT r.id, s.k FROM r FULL JOIN s ON r.b < s.b",
    "SELECT r.id, s.k, p.g FROM r FULL JOIN s ON r.b = s.b LEFT JOIN p ON p.r_id = r.id",
    "SELECT r.c, count(*) FROM r FULL JOIN s ON r.b = s.b GROUP BY r.c",
    "SELECT id, b, k, g, n FROM r FULL JOIN s USING (b) FULL JOIN p USING (n)",
    "SELECT r.id, s.k FROM r FULL JOIN s ON r.b = s.b LIMIT 4",
    "SELECT r.id, EXISTS (SELECT 1 FROM s RIGHT JOIN p ON p.n = s.n WHERE p.r_id = r.id) FROM r",
    "SELECT r.id, s.k, p.g, p.n FROM r LEFT JOIN s ON s.b = r.b LEFT JOIN p ON p.r_id IS s.n",
    "SELECT r.id, s.k, p.g, p.n FROM r LEFT JOIN s ON s.b = r.b LEFT JOIN p ON p.r_id = \
     coalesce(s.n, r.a)",
    "SELECT r.id, s.k FROM (r JOIN p ON p.r_id = r.id) JOIN s ON s.b = r.b",
    "SELECT r.id, s.k FROM s JOIN (r JOIN p ON p.r_id = r.id) ON s.b = r.b",
    "SELECT r.id, s.k, n FROM r LEFT JOIN (s JOIN p USING (n)) ON s.b = r.b",
    "SELECT j.id, j.n FROM r AS o LEFT JOIN (r JOIN s USING (b)) AS j ON j.a = o.b",
    "SELECT o.id, r.id AS inner_id, s.k FROM p JOIN (r LEFT JOIN s ON s.b = r.b) ON r.id = p.r_id \
     JOIN r AS o ON o.a = p.n",
    "SELECT * FROM (r LEFT JOIN s ON s.b = r.b) JOIN p ON p.r_id = r.id",
    "SELECT r.id, s.k FROM (r FULL JOIN s ON s.b = r.b) JOIN p ON p.r_id = r.id",
];

#[test]
fn right_and_full_joins_follow_every_commit() {
    follow("sides", SIDES);
}
