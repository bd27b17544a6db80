//! Texts that could break a parser: each is refused or planned, without other effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_live::{AuthorizedViews, Planner, PolicyVersion, QueryPrincipal, select_of};
use abide_schema::Code;
use serde_json::{Map, json};

use crate::world::{Random, World};

const SEEDS: &[&str] = &[
    "SELECT a, b AS \"x y\", [c], `id` FROM r AS t WHERE a = 1 AND (b = ?1 OR c LIKE 'a%' \
     ESCAPE '\\') ORDER BY 1 DESC, c COLLATE NOCASE NULLS LAST LIMIT 5 OFFSET 2",
    "WITH q(x) AS (SELECT id FROM r) SELECT DISTINCT x, count(*) FILTER (WHERE x > 2) FROM q \
     GROUP BY x HAVING count(*) > 1",
    "SELECT r.id, s.k FROM r LEFT JOIN s USING (b) WHERE EXISTS (SELECT 1 FROM p WHERE \
     p.r_id = r.id) UNION ALL SELECT 1, 2",
    "SELECT CASE WHEN a IN (1, 2) THEN CAST(c AS TEXT) ELSE x'00' END, -9223372036854775808, \
     0xFF, 1e5, date(a, 'unixepoch') FROM r WHERE c NOT IN (SELECT c FROM s) -- é",
    "SELECT * FROM r NATURAL JOIN s, (SELECT max(n) OVER (PARTITION BY g) FROM p) WHERE :a = \
     @b /* c */ AND $d IS NOT ?",
];

fn bind(planner: &Planner, sql: &str) {
    match planner.bind(sql, &Map::new()) {
        Ok(binding) => assert!(!binding.snapshot_sql().is_empty()),
        Err(refusal) => {
            assert!(!refusal.detail.is_empty() && refusal.detail != "internal", "{sql}")
        }
    }
}

#[test]
fn mutated_texts_never_panic() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut random = Random::new(7);
    for round in 0..6_000 {
        let mut text: Vec<char> = SEEDS[round % SEEDS.len()].chars().collect();
        for _ in 0..1 + random.below(4) {
            let at = random.below(text.len());
            let other = random.below(text.len());
            match random.below(6) {
                0 => drop(text.remove(at)),
                1 => text.insert(
                    at,
                    *random.pick(&[
                        '\'', '"', '(', ')', '[', '?', ':', '\0', 'é', ';', ',', '.', '-', '*',
                    ]),
                ),
                2 => text.swap(at, other),
                3 => text.truncate(at.max(1)),
                4 => drop(text.drain(at.min(other)..at.max(other))),
                _ => {
                    let copy: Vec<char> = text[at.min(other)..at.max(other)].to_vec();
                    text.splice(at..at, copy);
                }
            }
            if text.is_empty() {
                text.push('S');
            }
        }
        bind(&planner, &text.into_iter().collect::<String>());
    }
}

#[test]
fn nesting_and_length_are_limited() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    for (open, close) in [
        ("(", ")"),
        ("- ", ""),
        ("NOT ", ""),
        ("~", ""),
        ("CASE WHEN ", " THEN 1 END"),
        ("abs(", ")"),
        ("1 IN (", ")"),
        ("CAST(", " AS TEXT)"),
    ] {
        for count in [10, 99, 101, 3_000, 20_000] {
            bind(
                &planner,
                &format!("SELECT {}a{} FROM r", open.repeat(count), close.repeat(count)),
            );
        }
    }
    for tail in [
        " + 1",
        " AND 1",
        " OR a = 1",
        " ISNULL",
        " COLLATE NOCASE",
        " = 1",
        " || c",
        " LIKE 'x'",
        " BETWEEN 1 AND 2",
        " IN (1)",
    ] {
        for count in [10, 99, 101, 5_000] {
            bind(&planner, &format!("SELECT id FROM r WHERE a{}", tail.repeat(count)));
        }
    }
    for count in [10, 20_000] {
        bind(&planner, &format!("SELECT id FROM r WHERE a IN ({}1)", "1,".repeat(count)));
        bind(&planner, &format!("SELECT * FROM {}r{}", "(".repeat(count), ")".repeat(count)));
        bind(&planner, &format!("SELECT {}1 FROM r", "1,".repeat(count)));
        bind(&planner, &format!("SELECT {}1 FROM r", "é".repeat(count)));
        bind(&planner, &format!("SELECT 1 FROM r{}", " UNION SELECT 1".repeat(count / 10)));
        bind(&planner, &format!("SELECT 1 FROM r{}", ", r".repeat(count / 2)));
    }
}

/// A CTE is expanded at each mention: a text of 600 bytes stood for 2^29 SELECTs, and took 42 s at
/// fourteen levels, on a thread that serves all connections.
#[test]
fn texts_with_exponential_expansion_are_refused() {
    // The stack size of a reader.
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(multiply);
    thread.expect("there is room for a thread").join().expect("every text is refused");
}

fn multiply() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let selects = [("r".to_owned(), select_of("r", &["id", "a"], None, None))];
    let authorized_views = AuthorizedViews::new(selects);
    let policy_version = PolicyVersion::latest(&Arc::default());
    let principal =
        QueryPrincipal::new(Arc::new(authorized_views), BTreeMap::new(), policy_version);
    let levels = |first: &str, next: &str, levels: usize| {
        let level = |at: usize| {
            let next = next.replace("$", &format!("a{}", at - 1));
            format!(", a{at} AS ({next})")
        };
        let all: String = (1..levels).map(level).collect();
        format!("WITH a0 AS ({first}){all} SELECT * FROM a{}", levels - 1)
    };
    let shapes = [
        ("SELECT 1 x UNION ALL SELECT 2", "SELECT p.x FROM $ p, $ q"),
        ("SELECT 1 x", "SELECT x FROM $ UNION ALL SELECT x FROM $"),
        ("SELECT 1 x", "SELECT x FROM $ WHERE x IN (SELECT x FROM $)"),
        ("SELECT 1 x", "SELECT (SELECT x FROM $) + (SELECT x FROM $) AS x"),
        ("SELECT 1 x", "SELECT EXISTS (SELECT 1 FROM $) AND EXISTS (SELECT 1 FROM $) AS x"),
        ("SELECT id AS x FROM r", "SELECT x + x AS x FROM $"),
        ("SELECT id AS x FROM r", "SELECT CASE WHEN x THEN x ELSE x END AS x FROM $"),
        ("SELECT id AS x, a AS y FROM r", "SELECT *, * FROM $"),
        (
            "SELECT a AS x, count(*) AS n FROM r GROUP BY a",
            "SELECT x, p.n + q.n AS n FROM $ p JOIN $ q USING (x)",
        ),
    ];
    for (first, next) in shapes {
        for count in [12, 13, 14, 20, 29, 90] {
            let sql = levels(first, next, count);
            let refusals = [
                planner.bind(&sql, &Map::new()).err(),
                planner.bind_within(&sql, &Map::new(), &principal).err(),
                planner.bind_once(&sql, &Map::new(), &principal).err(),
            ];
            let once = refusals[2].as_ref().map(|refusal| refusal.code);
            // One join for each level stays within the limits for a while.
            assert!(count < 20 || once.is_some(), "{count} levels of {next}");
            for refusal in refusals.into_iter().flatten() {
                let known = [Code::LimitExceeded, Code::UnsupportedSql, Code::BadSql];
                assert!(known.contains(&refusal.code), "{refusal} {next}");
            }
        }
    }
}

/// The parser prints the text of a CTE by recursion, and a chain of operators is as deep as it is
/// long: the stack overflow ended the whole process.
#[test]
fn chains_within_a_cte_are_limited() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    for (head, chain) in [
        ("", " + 1"),
        ("", " AND 1"),
        ("", " ISNULL"),
        ("", " = 1"),
        ("", " COLLATE NOCASE"),
        ("~", ""),
        ("- ", ""),
        ("NOT ", ""),
        ("", " -> 1"),
        ("", " BETWEEN 1 AND 2"),
        ("(", " + 1)"),
        ("CASE ", " WHEN 1 THEN 1 END"),
        ("(", " + 1".repeat(500).as_str()),
    ] {
        let each = (head.len() + chain.len()).max(1);
        for count in [10, 500, 2_000, 60_000 / each] {
            let text = format!("{}1{}", head.repeat(count), chain.repeat(count));
            bind(&planner, &format!("WITH q(x) AS (SELECT {text}) SELECT * FROM q"));
        }
    }
}

/// A parameter in an unused part of the text once broke the numbering of all others.
#[test]
fn parameters_in_unused_columns_are_harmless() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    for sql in [
        "SELECT id FROM (SELECT id, (SELECT max(n) FROM s WHERE n < :v) AS m FROM r) WHERE id = :w",
        "SELECT id FROM (SELECT id FROM r ORDER BY (SELECT max(n) FROM s WHERE n < :v)) WHERE id = :w",
        "SELECT q.id FROM s LEFT JOIN (SELECT id, b FROM r ORDER BY a + :v) q ON q.b = s.b AND s.n = \
         :w",
        "SELECT q.id FROM (SELECT id FROM r ORDER BY rank() OVER (PARTITION BY a + :v ORDER BY b)) q \
         WHERE q.id = :w",
        "SELECT id FROM r WHERE a = :w WINDOW w AS (ORDER BY (SELECT max(n) FROM s WHERE n < :v))",
        "SELECT EXISTS (SELECT :v FROM s WHERE s.n = :w) FROM r",
    ] {
        let params = [("v".to_owned(), json!(1)), ("w".to_owned(), json!(2))];
        let binding = planner.bind(sql, &Map::from_iter(params)).expect(sql);
        assert!(!binding.params().is_empty(), "{sql}");
        assert!(!binding.explain().statements.is_empty(), "{sql}");
    }
}

/// Each level mentions the one below once: three columns per level must not make it 3^n.
#[test]
fn nested_groups_are_planned_quickly() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut sql = "SELECT a, b, c FROM r".to_owned();
    for level in 0..40 {
        sql = format!("SELECT a, b, c FROM ({sql}) AS q{level} GROUP BY a, b, c");
    }
    assert!(planner.bind(&sql, &Map::new()).is_ok());
}
