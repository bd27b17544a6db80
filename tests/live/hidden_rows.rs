//! Hidden rows have no effect on what a restricted caller receives.
//!
//! The router compared the keys of a subscription with hidden rows too, and charged the matches to
//! the budget of the subscription. Beyond the budget it sent a frame. So a tenant that subscribed to
//! many ranges of an expensive query read two characters of each value that another tenant wrote.
//! The class: anything that a subscriber can notice and that depends on work done for rows that it may
//! not see. Here two worlds differ in hidden rows only, and every subscription of the caller gets the
//! same deltas and the same errors in both, within each budget and beyond it.
//!
//! Later, the router compared keys with visible changes only, but the steps of a delta were counted
//! on all rows that its statements visited: a query with LIMIT, or with a range of an index, steps over
//! hidden rows. With its own rows a caller can come so close to the budget that one more hidden row in
//! a range exceeds it. So one world also has more hidden rows, in every indexed range.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_live::{Binding, BindingId, Budget, Delta, LiveError, QueryPrincipal, Router, Sql as _};
use abide_schema::share::ShareKey;
use abide_schema::{Caller, Scope, Value};
use serde_json::{Map, json};

use crate::barrier::{BarrierFixture, TABLES};
use crate::budget::Metered;
use crate::world::{Database, net, read_state};

/// It counted visible rows of `a` once for each hidden row of `b` (more shapes: `hidden_joins`).
const JOIN_BY_A_RANGE: &str =
    "SELECT count(*) FROM messages a JOIN messages b ON b.id > a.id WHERE a.id >= :a AND b.id < :b";

/// A query for each rule and each kind of key.
const QUERIES: &[&str] = &[
    "SELECT id, title FROM sessions WHERE title >= :a AND title < :b",
    "SELECT id FROM sessions WHERE title = :a",
    "SELECT id FROM sessions WHERE title LIKE :a || '%' OR title LIKE 'a%'",
    "SELECT s0.id FROM sessions s0 JOIN sessions s1 ON s1.id = s0.id JOIN sessions s2 ON s2.id = s0.id \
     WHERE s0.title >= :a AND s0.title < :b AND s1.title >= :a AND s2.title < :b",
    "SELECT m.id FROM messages m JOIN sessions s ON s.id = m.session_id WHERE s.title = :a AND m.body < :b",
    "SELECT count(*), max(body) FROM messages WHERE body >= :a AND body < :b",
    "SELECT session_id, count(*) FROM messages WHERE body >= :a AND body < :b GROUP BY session_id",
    "SELECT lower(body), count(*) FROM messages WHERE body >= :a AND body < :b GROUP BY lower(body)",
    "SELECT id, body FROM messages WHERE body >= :a AND body < :b ORDER BY id LIMIT 2",
    "SELECT count(*) FROM messages WHERE body >= :a AND body < :b LIMIT 1",
    "SELECT DISTINCT body FROM messages WHERE body >= :a AND body < :b",
    "SELECT body FROM messages WHERE body >= :a UNION SELECT title FROM sessions WHERE title < :b",
    "SELECT id FROM sessions s WHERE EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id \
     AND m.body >= :a AND m.body < :b)",
    "SELECT s.id, m.body FROM sessions s LEFT JOIN messages m ON m.session_id = s.id WHERE s.title < :b \
     AND s.title >= :a",
    "SELECT id, row_number() OVER (PARTITION BY session_id ORDER BY id) FROM messages WHERE body >= :a \
     AND body < :b",
    "SELECT m.id, c.id FROM messages m FULL JOIN calls c ON c.session_id = m.session_id WHERE m.body < :b \
     AND m.body >= :a",
    "SELECT id FROM messages WHERE instr(body, :a) AND length(body) < length(:b) + 9",
    "SELECT id FROM messages WHERE id >= :a AND id < :b ORDER BY id LIMIT 2",
    "SELECT id FROM messages WHERE session_id >= :a ORDER BY body, id LIMIT 3",
    JOIN_BY_A_RANGE,
    "SELECT a.id FROM messages a JOIN calls b ON b.session_id = a.session_id WHERE a.id >= :a AND b.id >= :a",
    "SELECT id FROM sessions s WHERE (SELECT count(*) FROM messages m WHERE m.id >= :a AND m.id < :b) > 1",
    "SELECT body, group_concat(id) FROM messages WHERE id >= :a GROUP BY body",
];

/// Bounds of ranges that hidden values fall in, in one world or the other.
const BOUNDS: [&str; 6] = ["a", "b", "m", "n", "y", "z"];

/// The hidden values of each world.
const SECRETS: [[&str; 3]; 2] = [["a1", "m1", "y1"], ["b2", "n2", "z2"]];

/// How many more hidden rows each world gets by a commit.
const MORE_HIDDEN: [usize; 2] = [0, 12];

struct HiddenRowsWorld {
    fixture: BarrierFixture,
    router: Router,
    /// The bindings of the caller whose frames are compared.
    own: Vec<BindingId>,
    secrets: [&'static str; 3],
    /// Hidden rows in each range and table that only this world has.
    more_hidden: usize,
    /// Whether the same commits change them. The bound of a commit decides for all callers alike
    /// whether it is known who sees a change.
    changes_hidden: bool,
}

/// Number of known and unknown deltas of the caller.
#[derive(Debug, Default)]
struct Outcomes {
    known: usize,
    unknown: usize,
}

pub(crate) fn payer(tenant: &str) -> ShareKey {
    let scope = Scope::from([("tenant".to_owned(), tenant.to_owned())]);
    ShareKey::for_caller(&Caller::with("ann", "worker", BTreeSet::new(), scope))
}

fn bind(
    fixture: &BarrierFixture,
    sql: &str,
    bounds: &[&str],
    principal: &QueryPrincipal,
) -> Binding {
    let mut params = Map::new();
    for (name, value) in ["a", "b"].into_iter().zip(bounds) {
        if sql.contains(&format!(":{name}")) {
            params.insert(name.to_owned(), json!(value));
        }
    }
    let binding = fixture.planner.bind_within(sql, &params, principal);
    binding.unwrap_or_else(|refusal| panic!("{refusal}: {sql}"))
}

impl HiddenRowsWorld {
    /// `others_subscribe`: callers of another payer have the same queries, and had them before.
    fn new(
        budget: Budget,
        correlated: bool,
        world: usize,
        others_subscribe: bool,
    ) -> HiddenRowsWorld {
        let fixture = BarrierFixture::new();
        let mut router = Router::with_budget(Arc::clone(&fixture.catalog), budget);
        let mut own = Vec::new();
        for tenant in ["theirs", "ours"] {
            let principal = fixture.principal_of(tenant, correlated);
            for sql in QUERIES {
                if tenant == "ours" && others_subscribe {
                    // It spends more for the same template.
                    let binding = bind(&fixture, sql, &["", "~"], &principal);
                    router.attach(&binding, &payer("further")).expect("there is room");
                }
                for bounds in BOUNDS.windows(2) {
                    let binding = bind(&fixture, sql, bounds, &principal);
                    if tenant == "ours" && others_subscribe {
                        router.attach(&binding, &payer("further")).expect("there is room");
                    }
                    let id = router.attach(&binding, &payer(tenant)).expect("there is room");
                    if tenant == "ours" {
                        own.push(id);
                    }
                }
            }
        }
        let secrets = SECRETS[world];
        let more_hidden = MORE_HIDDEN[world];
        let changes_hidden = budget.commit == u64::MAX;
        HiddenRowsWorld { fixture, router, own, secrets, more_hidden, changes_hidden }
    }

    fn run(&mut self, sql: &str, params: &[&str]) {
        let params: Vec<Value> = params.iter().map(|text| Value::from(*text)).collect();
        self.fixture.db.run(sql, &params, &mut |_| {}).expect("a row is written");
    }

    fn write(&mut self, step: usize) {
        let session = "INSERT OR REPLACE INTO sessions VALUES (?1, ?2, ?3, ?4)";
        let message = "INSERT OR REPLACE INTO messages VALUES (?1, ?2, ?3)";
        let secret = self.secrets[step % 3];
        if step % 4 != 1 {
            self.run(session, &["theirs", secret, r#"{"tenant":"theirs"}"#, "open"]);
            self.run(session, &["HIDDEN-closed", secret, r#"{"tenant":"ours"}"#, "closed"]);
            self.run(message, &[&format!("t{step}"), "theirs", secret]);
            self.run(message, &[&format!("c{step}"), "HIDDEN-closed", secret]);
        }
        let shown = BOUNDS[step % BOUNDS.len()];
        if step % 4 != 2 {
            self.run(session, &["s", &format!("{shown}0"), r#"{"tenant":"ours"}"#, "open"]);
            self.run(message, &[&format!("m{step}"), "s", &format!("{shown}0")]);
        }
        if step == 0 {
            self.run(message, &["of s2", "s2", "m0"]);
        }
        // A row appears or vanishes although only its session changes.
        if step % 7 == 6 {
            let status = if step.is_multiple_of(2) { "open" } else { "closed" };
            self.run(session, &["s2", "m0", r#"{"tenant":"ours"}"#, status]);
        }
    }

    fn write_more_hidden(&mut self, step: usize) {
        for row in 0..self.more_hidden {
            let id = format!("{}{step}-{row}", BOUNDS[row % BOUNDS.len()]);
            let message = "INSERT INTO messages VALUES (?1, 'HIDDEN-closed', 'hidden')";
            self.run(message, &[&id]);
            self.run("INSERT INTO calls VALUES (?1, 'HIDDEN-theirs', 'hidden')", &[&id]);
        }
    }

    /// The deltas of the caller's queries, by their position.
    fn commit(&mut self, step: usize) -> BTreeMap<usize, Result<Delta, LiveError>> {
        if !self.changes_hidden {
            self.write_more_hidden(step);
        }
        let before = read_state(&self.fixture.db.0, &TABLES);
        self.write(step);
        if self.changes_hidden {
            self.write_more_hidden(step);
        }
        let changes = net(&before, &read_state(&self.fixture.db.0, &TABLES));
        let visible_rows = Some(&*self.fixture.visible_rows);
        let mut metered = Metered { visible_rows, ..Metered::new(&mut self.fixture.db) };
        let mut deltas: BTreeMap<BindingId, _> =
            self.router.commit(&changes, &mut metered).into_iter().collect();
        assert_eq!(metered.unlimited, [""; 0], "queries without a limit");
        let own = self.own.iter().enumerate();
        own.filter_map(|(at, id)| Some((at, deltas.remove(id)?))).collect()
    }
}

/// Compares the deltas of both worlds.
fn compare(budget: Budget, correlated: bool) -> Outcomes {
    let mut worlds = [0, 1].map(|world| HiddenRowsWorld::new(budget, correlated, world, false));
    let mut outcomes = Outcomes::default();
    for step in 0..28 {
        let [one, other] = worlds.each_mut().map(|world| world.commit(step));
        assert_eq!(one, other, "commit {step} of {budget:?}");
        for delta in one.values() {
            match delta {
                Ok(_) => outcomes.known += 1,
                Err(_) => outcomes.unknown += 1,
            }
        }
    }
    outcomes
}

#[test]
fn two_worlds_that_differ_in_hidden_rows_send_the_same_frames() {
    let average = |average: u64| Budget { average, max: 4 * average, ..Budget::UNLIMITED };
    let commit = |commit: u64| Budget { commit, statement: 50, ..Budget::UNLIMITED };
    for correlated in [false, true] {
        let free = compare(Budget::UNLIMITED, correlated);
        assert!(free.known > 100 && free.unknown == 0, "{free:?}");
        // Whether a row is visible takes more steps to find out by a subquery.
        let enough = if correlated { 700_000 } else { 140_000 };
        for budget in [average(60), average(200), commit(8_000), commit(40_000), commit(enough)] {
            let outcomes = compare(budget, correlated);
            assert!(outcomes.unknown > 0, "{budget:?} is never exceeded: {outcomes:?}");
        }
    }
}

/// Equal queries of callers that see the same rows were charged to the caller that came first. When it had spent its share,
/// or its template was paused, the others got `stale` frames too.
#[test]
fn what_others_spend_on_equal_queries_decides_nothing() {
    let average = Budget { average: 60, max: 4_000, ..Budget::UNLIMITED };
    let commit = Budget { commit: 40_000, statement: 50, ..Budget::UNLIMITED };
    for budget in [average, commit] {
        let mut worlds = [false, true].map(|others| HiddenRowsWorld::new(budget, false, 0, others));
        for step in 0..28 {
            let [alone, together] = worlds.each_mut().map(|world| world.commit(step));
            assert_eq!(alone, together, "commit {step} of {budget:?}");
        }
    }
}

/// Beyond the budget of views, all queries of a table are unknown alike.
#[test]
fn views_over_their_budget_tell_nothing_about_a_subscription() {
    let budget = Budget { commit: 2, ..Budget::UNLIMITED };
    let mut world = HiddenRowsWorld::new(budget, false, 0, false);
    for step in 0..8 {
        let deltas = world.commit(step);
        let unknown = deltas.values().filter(|delta| **delta == Err(LiveError::OverBudget));
        assert_eq!(unknown.count(), deltas.len(), "commit {step}");
        let sizes = [0, world.own.len()];
        assert!(sizes.contains(&deltas.len()), "commit {step}: {} queries differ", deltas.len());
    }
}

/// Returns the steps of commits that add 50 messages to a session of another tenant with so many messages, alone and together with
/// a message of the caller's, and of the query itself. A policy of the caller reads all messages of a session.
fn steps_of_a_policy_that_scans(existing: usize) -> [u64; 3] {
    let fixture = BarrierFixture::new();
    let of_session =
        "EXISTS (SELECT 1 FROM messages AS m WHERE m.session_id = sessions.id AND m.body = 'open')";
    let principal = fixture.principal_with("ours", &|table| match table {
        "sessions" => of_session.to_owned(),
        name => format!(
            "EXISTS (SELECT 1 FROM sessions WHERE sessions.id = {name}.session_id AND {of_session})"
        ),
    });
    let mut router = Router::new(Arc::clone(&fixture.catalog));
    let all = bind(&fixture, "SELECT id, body FROM messages", &[], &principal);
    router.attach(&all, &payer("ours")).expect("there is room");
    let mut db = fixture.db;
    let add = |db: &mut Database, id: &str, session: &str| {
        let cells = [id, session, "hello"].map(Value::from);
        let message = "INSERT INTO messages VALUES (?1, ?2, ?3)";
        db.run(message, &cells, &mut |_| {}).expect("a row is written");
    };
    for at in 0..existing {
        add(&mut db, &format!("before {at}"), "HIDDEN-theirs");
    }
    let [alone, together] = ["alone", "together"].map(|name| {
        let before = read_state(&db.0, &TABLES);
        let spent = router.counters().spent;
        for at in 0..50 {
            add(&mut db, &format!("{name} {at}"), "HIDDEN-theirs");
        }
        if name == "together" {
            add(&mut db, "ours", "s1");
        }
        let changes = net(&before, &read_state(&db.0, &TABLES));
        router.commit(&changes, &mut Metered::new(&mut db));
        (router.counters().spent - spent).steps
    });
    let snapshot = db.run(all.snapshot_sql(), all.params(), &mut |_| {});
    // Each row costs the lookup of its session.
    let steps = snapshot.expect("the query succeeds").steps / (existing as u64 + 100);
    [alone, together, steps]
}

/// A tenant's messages held the writer for seconds, because each was joined with all messages of its session to find the live queries
/// of another tenant, whose policy reads them. Later, 13,000 messages of one tenant ended the queries of another, because its policy was
/// tested on each of them before its scope. The class: work for rows that a caller does not see, which its policy multiplies.
#[test]
fn a_policy_that_scans_is_evaluated_for_visible_rows_only() {
    let [few, many] = [50, 800].map(steps_of_a_policy_that_scans);
    for (few, many) in few.into_iter().zip(many) {
        assert!(many <= few + few / 4, "{few} steps with 50 messages, {many} with 800");
    }
}
