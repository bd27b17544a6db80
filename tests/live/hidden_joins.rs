//! What a statement counts for a restricted caller does not depend on hidden rows, in any shape of join.
//!
//! The steps of a query were counted for each visible row, but at the place in the loops where SQLite knows
//! its owner. With `b.id > a.id` it walks the rows of `b`, hidden ones included, before it reads the owner of `a`. So a
//! visible row of `a` was counted once for each hidden row of `b`, and the limit of the query told how many
//! there are. The class: a loop over hidden rows around the place where a visible row is counted. Here two worlds differ in
//! hidden rows only, and each statement counts the same in both, to the last step.
//!
//! The same rows were counted more than once where SQLite put a loop over owners around another table, and where it turned an
//! EXISTS of a policy into a loop after the place where another row of the combination is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use abide_live::{
    AuthorizedViews, Binding, Budget, Changes, PolicyVersion, QueryPrincipal, Router, Sql as _,
    select_of,
};
use abide_schema::{Checksum, Code, Row};
use serde_json::Map;

use crate::barrier::{BarrierFixture, TABLES};
use crate::budget::Metered;
use crate::client::Client;
use crate::hidden_rows::payer;
use crate::world::{net, read_state};

/// FROM and WHERE of two or three tables. `LINK` is replaced by a condition between `a` and `b`, `NEXT` by one between `b` and `c`.
const SHAPES: &[&str] = &[
    "SELECT a.id, b.id FROM FIRST a JOIN SECOND b ON LINK",
    "SELECT count(*) FROM FIRST a JOIN SECOND b ON LINK WHERE a.id >= 's' AND b.id < 't'",
    "SELECT a.id, b.id FROM FIRST a JOIN SECOND b ON LINK WHERE a.id >= 'a' AND b.id >= 'a'",
    "SELECT a.id, b.id FROM FIRST a JOIN SECOND b ON LINK WHERE a.session_id >= 's' AND b.id < 't' AND b.id > 'a'",
    "SELECT a.id, b.id FROM FIRST a JOIN SECOND b ON LINK WHERE a.session_id IN ('s1', 's2')",
    "SELECT a.id FROM FIRST a, SECOND b WHERE LINK AND a.body <> 'x'",
    "SELECT count(*) FROM FIRST a CROSS JOIN SECOND b WHERE LINK",
    "SELECT a.id, count(*) FROM FIRST a JOIN SECOND b ON LINK GROUP BY a.id",
    "SELECT a.id, b.id FROM FIRST a JOIN SECOND b ON LINK ORDER BY a.id, b.id LIMIT 3",
    "SELECT a.id, b.id FROM FIRST a LEFT JOIN SECOND b ON LINK",
    "SELECT a.id, b.id FROM FIRST a RIGHT JOIN SECOND b ON LINK",
    "SELECT a.id, b.id FROM FIRST a FULL JOIN SECOND b ON LINK",
    "SELECT a.id FROM FIRST a WHERE EXISTS (SELECT 1 FROM SECOND b WHERE LINK)",
    "SELECT a.id FROM FIRST a WHERE NOT EXISTS (SELECT 1 FROM SECOND b WHERE LINK)",
    "SELECT a.id FROM FIRST a WHERE a.session_id IN (SELECT b.session_id FROM SECOND b WHERE LINK)",
    "SELECT a.id, (SELECT count(*) FROM SECOND b WHERE LINK) FROM FIRST a",
    "SELECT a.id, (SELECT max(b.id) FROM SECOND b WHERE LINK) AS n FROM FIRST a WHERE a.id > 'm'",
    "SELECT a.id FROM FIRST a JOIN (SELECT b.id, b.session_id, b.body FROM SECOND b WHERE b.body <> 'x') b ON LINK",
    "SELECT a.id, b.n FROM FIRST a JOIN (SELECT id, session_id, body, count(*) AS n FROM SECOND GROUP BY id, session_id, body) b ON LINK",
    "SELECT a.id, b.id, c.id FROM FIRST a JOIN SECOND b ON LINK JOIN calls c ON NEXT",
    "SELECT a.id, c.id FROM FIRST a JOIN SECOND b ON LINK LEFT JOIN calls c ON NEXT",
    "SELECT count(*) FROM calls c JOIN FIRST a ON a.session_id = c.session_id JOIN SECOND b ON LINK AND NEXT",
    "SELECT a.id FROM FIRST a JOIN SECOND b ON LINK WHERE NOT EXISTS (SELECT 1 FROM calls c WHERE NEXT)",
    "SELECT a.id FROM FIRST a JOIN SECOND b ON LINK UNION SELECT c.id FROM calls c JOIN SECOND b ON NEXT",
    "SELECT a.id, s.id FROM FIRST a JOIN SECOND b ON LINK JOIN sessions s ON s.id > a.session_id",
];

const CONDITIONS: &[&str] = &[
    "b.id > a.id",
    "b.id < a.id",
    "b.id >= a.session_id AND b.id < a.body",
    "b.session_id >= a.session_id",
    "b.session_id = a.session_id",
    "b.session_id = a.session_id AND b.id > a.id",
    "b.id = a.body",
    "b.id LIKE a.id || '%'",
    "b.id > a.id OR b.session_id = a.session_id",
    "b.session_id IN ('s1', 's2')",
    "length(b.body) >= length(a.body)",
    "1",
];

const PAIRS: [(&str, &str); 3] =
    [("messages", "messages"), ("messages", "calls"), ("notes", "messages")];

struct JoinWorld {
    fixture: BarrierFixture,
    has_hidden: bool,
}

impl JoinWorld {
    fn new(has_hidden: bool) -> JoinWorld {
        let mut world = JoinWorld { fixture: BarrierFixture::new(), has_hidden };
        if !has_hidden {
            for table in ["messages", "calls", "notes"] {
                world.run(&format!("DELETE FROM {table} WHERE session_id LIKE 'HIDDEN%'"));
            }
            world.run("DELETE FROM sessions WHERE id LIKE 'HIDDEN%'");
        }
        for number in 0..6 {
            if has_hidden {
                let scope = r#"{"tenant":"ours"}"#;
                let status = "closed";
                world.run(&format!(
                    "INSERT INTO sessions VALUES ('{}HIDDEN{number}', 'x', '{scope}', '{status}')",
                    ["a", "s", "z"][number % 3]
                ));
            }
            world.write(number);
        }
        world
    }

    fn run(&mut self, sql: &str) {
        self.fixture.db.run(sql, &[], &mut |_| {}).expect("a row is written");
    }

    /// Visible rows, and hidden ones before, between and behind them.
    fn write(&mut self, number: usize) {
        for table in ["messages", "calls", "notes"] {
            self.run(&format!(
                "INSERT OR REPLACE INTO {table} VALUES ('s{number}{table}', 's{}', 's{}')",
                1 + number % 2,
                number / 2
            ));
            if !self.has_hidden {
                continue;
            }
            for (nth, prefix) in ["", "a", "s", "s1", "s3", "z"].into_iter().enumerate() {
                let session = if nth % 2 == 0 { "HIDDEN-theirs" } else { "HIDDEN-closed" };
                self.run(&format!(
                    "INSERT INTO {table} VALUES ('{prefix}{number}h{nth}', '{session}', 's1-{nth}')"
                ));
            }
        }
    }

    /// The visible rows that a statement counts.
    fn count_once(&mut self, sql: &str, principal: &QueryPrincipal) -> u64 {
        let binding = self
            .fixture
            .planner
            .bind_once(sql, &Map::new(), principal)
            .unwrap_or_else(|refusal| panic!("{refusal}: {sql}"));
        self.fixture.visible_rows.store(0, Ordering::Relaxed);
        let ran = self.fixture.db.run(binding.snapshot_sql(), binding.params(), &mut |_| {});
        ran.unwrap_or_else(|error| panic!("{}: {}", error.message, binding.snapshot_sql()));
        self.fixture.visible_rows.load(Ordering::Relaxed)
    }
}

fn queries() -> Vec<String> {
    let mut queries = Vec::new();
    for (at, shape) in SHAPES.iter().enumerate() {
        for (nth, condition) in CONDITIONS.iter().enumerate() {
            let (first, second) = PAIRS[(at + nth) % PAIRS.len()];
            let other = CONDITIONS[(at * 5 + nth * 7 + 1) % CONDITIONS.len()];
            let other = other.replace("b.", "c.").replace("a.", "b.");
            let sql = shape.replace("FIRST", first).replace("SECOND", second);
            queries.push(
                sql.replace("LINK", &format!("({condition})"))
                    .replace("NEXT", &format!("({other})")),
            );
        }
    }
    queries
}

#[test]
fn a_query_counts_the_same_with_and_without_hidden_rows() {
    let mut all = 0;
    for correlated in [false, true] {
        let mut worlds = [false, true].map(JoinWorld::new);
        let principal = worlds[0].fixture.principal_of("ours", correlated);
        for sql in queries() {
            let [without, with] = worlds.each_mut().map(|world| world.count_once(&sql, &principal));
            assert_eq!(without, with, "{sql}");
            all += without;
        }
    }
    assert!(all > 10_000, "{all} rows were counted");
}

impl JoinWorld {
    /// A commit that changes visible rows, and hidden ones if there are any.
    fn commit(&mut self, step: usize) -> Changes {
        let before = read_state(&self.fixture.db.0, &TABLES);
        match step {
            0 => self.write(20),
            1 => self.run("UPDATE messages SET body = body || '!' WHERE id LIKE 's%0%'"),
            2 => self.run("UPDATE calls SET id = id || '!' WHERE session_id = 's1'"),
            3 => self.run("DELETE FROM messages WHERE id LIKE '%1%'"),
            _ => self.run(
                "INSERT OR REPLACE INTO notes SELECT id || 'n', session_id, body FROM calls \
                 WHERE id < 's3'",
            ),
        }
        net(&before, &read_state(&self.fixture.db.0, &TABLES))
    }

    /// The steps that each query counts for this commit.
    fn count_live(&mut self, router: &mut Router, step: usize) -> BTreeMap<Arc<str>, u64> {
        let changes = self.commit(step);
        let visible_rows = Some(&*self.fixture.visible_rows);
        let mut metered = Metered { visible_rows, ..Metered::new(&mut self.fixture.db) };
        for (_, delta) in router.commit(&changes, &mut metered) {
            delta.expect("the budget is unlimited");
        }
        router.templates().into_iter().map(|work| (work.sql, work.spent.visible_steps)).collect()
    }

    /// The rows of a query.
    fn result(&mut self, binding: &Binding) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let ran = self.fixture.db.run(binding.snapshot_sql(), binding.params(), &mut |row| {
            rows.push(row.into());
        });
        ran.unwrap_or_else(|error| panic!("{}: {}", error.message, binding.snapshot_sql()));
        rows
    }

    /// A router with these queries, and the query of each template.
    fn router(&self, queries: Vec<String>, correlated: bool) -> (Router, BTreeMap<String, String>) {
        let principal = self.fixture.principal_of("ours", correlated);
        let catalog = Arc::clone(&self.fixture.catalog);
        let mut router = Router::with_budget(catalog, Budget::UNLIMITED);
        let mut texts = BTreeMap::new();
        for (at, sql) in queries.into_iter().enumerate() {
            let binding = match self.fixture.planner.bind_within(&sql, &Map::new(), &principal) {
                Ok(binding) => binding,
                Err(refusal) => {
                    assert_eq!(refusal.code, Code::UnsupportedSql, "{refusal}: {sql}");
                    continue;
                }
            };
            // One tenant can have 250 queries without a key.
            let payer = payer(&format!("tenant {}", at / 200));
            router.attach(&binding, &payer).expect("there is room");
            texts.insert(binding.snapshot_sql().to_owned(), sql);
        }
        (router, texts)
    }
}

/// The policy of a table with a subquery decided only in the evaluation of the rows, groups and partitions that a change reaches,
/// and rows that it hides found some of them: more to evaluate, and beyond a number of them the whole query.
#[test]
fn a_live_query_counts_the_same_with_and_without_hidden_rows() {
    for correlated in [false, true] {
        let mut worlds = [false, true].map(JoinWorld::new);
        let [(mut without, texts), (mut with, _)] =
            worlds.each_ref().map(|world| world.router(queries(), correlated));
        assert!(texts.len() > 150, "{} live queries", texts.len());
        for step in 0..5 {
            let without = worlds[0].count_live(&mut without, step);
            let with = worlds[1].count_live(&mut with, step);
            for (sql, counted) in &without {
                assert_eq!(*counted, with[sql], "commit {step}: {}", texts[&**sql]);
            }
        }
    }
}

/// A commit that reaches more than 1,000 rows evaluates the whole query. Rows that only a policy with a subquery hides were among
/// them.
#[test]
fn many_hidden_rows_do_not_make_a_commit_evaluate_the_whole_query() {
    let queries = [
        "SELECT a.id, b.id FROM messages a JOIN messages b ON b.id > a.id",
        "SELECT a.id, b.id FROM messages a LEFT JOIN messages b ON b.id > a.id",
        "SELECT a.id, (SELECT count(*) FROM messages b WHERE b.id < a.id) FROM messages a",
        "SELECT b.id, count(*) FROM messages a JOIN messages b ON b.id > a.id GROUP BY b.id",
        "SELECT b.id, row_number() OVER (PARTITION BY b.id ORDER BY a.id) \
         FROM messages a JOIN messages b ON b.id > a.id",
    ];
    let mut worlds = [false, true].map(JoinWorld::new);
    worlds[1].run(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200) \
         INSERT INTO messages SELECT 'z' || i, 'HIDDEN-closed', 'x' FROM n",
    );
    let [(mut without, _), (mut with, _)] =
        worlds.each_ref().map(|world| world.router(queries.map(str::to_owned).to_vec(), true));
    let [few, many] = &mut worlds;
    let counted = few.count_live(&mut without, 0);
    assert!(counted.len() == queries.len() && counted.values().all(|steps| *steps > 0));
    assert_eq!(counted, many.count_live(&mut with, 0));
}

/// A caller whose policies only have a subquery.
fn principal_without_owners() -> QueryPrincipal {
    let selects = TABLES.iter().map(|table| {
        let columns: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
        let is_open = format!(
            "EXISTS (SELECT 1 FROM sessions AS s \
             WHERE s.id = {}.session_id AND s.status = 'open' OR s.status = 'all')",
            table.name
        );
        let condition = (table.name != "sessions").then_some(is_open);
        (table.name.to_owned(), select_of(table.name, &columns, None, condition.as_deref()))
    });
    let views = Arc::new(AuthorizedViews::new(selects.collect::<Vec<_>>()));
    QueryPrincipal::new(views, BTreeMap::new(), PolicyVersion::latest(&Arc::default()))
}

/// A policy with a subquery is decided in the state to which a row belongs, before or after the commit. The same commit hides rows,
/// or shows them, and changes them in columns of each kind: those that the policy reads, that only the query reads, and that
/// neither reads.
#[test]
fn rows_that_change_as_their_policy_hides_them_disappear() {
    let queries = [
        "SELECT a.id FROM messages a",
        "SELECT a.id, 'b' AS b FROM messages a ORDER BY a.id || a.id",
        "SELECT a.id, b.id FROM messages a LEFT JOIN calls b ON b.id > a.id",
        "SELECT a.id, (SELECT count(*) FROM calls b WHERE b.id < a.id) AS n FROM messages a",
        "SELECT a.id FROM messages a WHERE EXISTS (SELECT 1 FROM calls b WHERE b.session_id = a.session_id)",
        "SELECT a.session_id, count(*) AS n FROM messages a GROUP BY a.session_id",
        "SELECT a.id, row_number() OVER (PARTITION BY a.session_id ORDER BY a.id) AS n FROM messages a",
        "SELECT a.session_id FROM messages a UNION SELECT b.session_id FROM calls b",
        "SELECT a.id FROM messages a ORDER BY a.id LIMIT 3",
    ];
    let row_changes = [
        "UPDATE messages SET body = body || '!'",
        "UPDATE messages SET body = NULL WHERE id LIKE '%0%'",
        "UPDATE calls SET body = body || '!'",
        "UPDATE messages SET id = id || '!' WHERE id LIKE '%1%'",
        "UPDATE messages SET session_id = 's2' WHERE id LIKE '%2%'",
        "DELETE FROM messages WHERE id LIKE '%3%'",
    ];
    let mut changed_results = 0;
    for (row_change, has_owners) in row_changes.iter().flat_map(|sql| [(sql, false), (sql, true)]) {
        for sql in queries {
            let mut world = JoinWorld::new(true);
            let principal = if has_owners {
                world.fixture.principal_of("ours", true)
            } else {
                principal_without_owners()
            };
            let binding = world
                .fixture
                .planner
                .bind_within(sql, &Map::new(), &principal)
                .unwrap_or_else(|refusal| panic!("{refusal}: {sql}"));
            let catalog = Arc::clone(&world.fixture.catalog);
            let mut router = Router::with_budget(catalog, Budget::UNLIMITED);
            router.attach(&binding, &payer("ours")).expect("there is room");
            let mut client = Client::new(&binding, world.result(&binding));
            for status in ["closed", "open"] {
                let before = read_state(&world.fixture.db.0, &TABLES);
                world.run(&format!("UPDATE sessions SET status = '{status}' WHERE id = 's1'"));
                world.run(row_change);
                let changes = net(&before, &read_state(&world.fixture.db.0, &TABLES));
                let expected = world.result(&binding);
                let checksum = Checksum::from_rows(&expected);
                changed_results += usize::from(checksum != Checksum::from_rows(&client.rows));
                for (_, delta) in router.commit(&changes, &mut world.fixture.db) {
                    let applied = client.apply(&delta.expect("the budget is unlimited"));
                    applied.unwrap_or_else(|why| panic!("{why}, of {sql}"));
                }
                assert!(
                    checksum == Checksum::from_rows(&client.rows),
                    "{row_change}, s1 is {status}: {sql}\n{:?}\ninstead of {expected:?}",
                    client.rows
                );
            }
        }
    }
    assert!(changed_results > 160, "{changed_results} results changed");
}
