//! A delta over the budget is unknown, never wrong: the subscriber reads the result again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_live::{
    BackfillRequest, BackfilledGroup, Binding, BindingId, Budget, Changes, Cost, LiveError,
    Planner, Router, Sql, SqlError, SqlErrorKind, StatementLimits,
};
use abide_schema::share::ShareKey;
use abide_schema::{Caller, Row, Scope, Value};
use serde_json::Map;

use crate::client::Client;
use crate::seed_budget::{TestBudget, each_seed};
use crate::world::{Database, State, World, net};

const QUERIES: &[&str] = &[
    "SELECT a, count(*), sum(b), min(c), max(a) FROM r GROUP BY a",
    "SELECT count(*), total(b), avg(a), max(c) FROM r",
    "SELECT count(b) FILTER (WHERE a > 0) AS n FROM r HAVING count(*) > 3",
    "SELECT r.a, count(*), max(s.n) FROM r JOIN s ON s.b = r.b GROUP BY r.a",
    "SELECT DISTINCT b FROM r",
    "SELECT id, a FROM r ORDER BY a DESC, c COLLATE NOCASE LIMIT 3 OFFSET 1",
    "SELECT id, c FROM r WHERE b = 2 ORDER BY c LIMIT 2",
    "SELECT b FROM r EXCEPT SELECT b FROM s",
    "SELECT r.id, s.k FROM r JOIN s ON s.b = r.b WHERE s.c = 'a'",
    "SELECT * FROM r WHERE a = 2",
];

/// Enforces the allowance, as the writer does.
pub(crate) struct Metered<'a> {
    pub(crate) db: &'a mut Database,
    /// Counts the rows that restricted callers see, on a connection that has such a function.
    pub(crate) visible_rows: Option<&'a AtomicU64>,
    pub(crate) left: Option<StatementLimits>,
    /// The queries that ran without an allowance.
    pub(crate) unlimited: Vec<String>,
}

/// Steps for each visible row, as in the store.
const STEPS_OF_A_VISIBLE_ROW: u64 = 100;

impl<'a> Metered<'a> {
    pub(crate) fn new(db: &'a mut Database) -> Metered<'a> {
        Metered { db, visible_rows: None, left: None, unlimited: Vec::new() }
    }
}

impl Sql for Metered<'_> {
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<Cost, SqlError> {
        self.visible_rows.inspect(|rows| rows.store(0, Ordering::Relaxed));
        if self.left.is_none() && statement.starts_with("SELECT") {
            self.unlimited.push(statement.to_owned());
        }
        let Cost { steps, .. } = self.db.run(statement, params, each)?;
        let rows = self.visible_rows.map_or(0, |rows| rows.load(Ordering::Relaxed));
        let visible_steps = rows * STEPS_OF_A_VISIBLE_ROW;
        let is_over =
            self.left.is_some_and(|left| steps > left.steps || visible_steps > left.visible_steps);
        if let Some(left) = &mut self.left {
            left.steps = left.steps.saturating_sub(steps);
            left.visible_steps = left.visible_steps.saturating_sub(visible_steps);
        }
        if is_over {
            return Err(SqlError { message: "too long".to_owned(), kind: SqlErrorKind::Budget });
        }
        Ok(Cost::from_steps(steps, visible_steps))
    }

    fn allow(&mut self, allowance: Option<StatementLimits>) {
        self.left = allowance;
    }
}

struct Listener {
    binding: Binding,
    client: Client,
}

/// A reader that fills wanted groups, and finishes some commits later.
#[derive(Default)]
struct BackfillWorker {
    under_way: Vec<(BackfillRequest, Option<BackfilledGroup>, State)>,
}

impl BackfillWorker {
    fn begin(&mut self, world: &mut World, wanted: Vec<BackfillRequest>) {
        for wanted in wanted {
            let filled =
                wanted.binding.fill(&wanted.group, &mut world.db).expect("the statements run");
            self.under_way.push((wanted, filled, world.state.clone()));
        }
    }

    fn end(&mut self, world: &mut World, router: &mut Router) {
        for (wanted, filled, state) in self.under_way.drain(..) {
            let changes = net(&state, &world.state);
            router
                .apply_backfill(&wanted, filled, &changes, &mut world.db)
                .expect("the statements run");
        }
    }
}

fn run(seed: u64, budget: Budget) -> (usize, usize) {
    let mut world = World::new(seed);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::with_budget(Arc::clone(&world.catalog), budget);
    (0..6).for_each(|_| drop(world.commit()));
    let mut listeners: BTreeMap<BindingId, Listener> = BTreeMap::new();
    for sql in QUERIES {
        let binding = planner.bind(sql, &Map::new()).expect("the query can be live");
        let rows = world.query(binding.snapshot_sql(), binding.params()).expect("it runs");
        let client = Client::new(&binding, rows);
        listeners.insert(
            router.attach(&binding, &ShareKey::Operator).expect("the router has a free slot"),
            Listener { binding, client },
        );
    }
    let mut known = 0;
    let mut unknown = 0;
    let mut filler = BackfillWorker::default();
    for commit in 0..60 {
        let changes: Changes = world.commit();
        let mut metered = Metered::new(&mut world.db);
        for (id, delta) in router.commit(&changes, &mut metered) {
            let listener = listeners.get_mut(&id).expect("it is attached");
            match delta {
                Ok(delta) => {
                    known += 1;
                    listener.client.apply(&delta).expect("it fits");
                }
                Err(LiveError::OverBudget) => {
                    unknown += 1;
                    let sql = listener.binding.snapshot_sql();
                    let params = listener.binding.params();
                    let rows = world.query(sql, params).expect("it runs");
                    listener.client = Client::new(&listener.binding, rows);
                }
                Err(error) => panic!("{error}"),
            }
        }
        for listener in listeners.values() {
            let sql = listener.binding.snapshot_sql();
            let params = listener.binding.params();
            let fresh = world.query(sql, params).expect("it runs");
            assert!(listener.client.holds(&fresh), "seed {seed}, commit {commit}: {sql}");
        }
        if commit % 3 == 0 {
            filler.end(&mut world, &mut router);
        }
        filler.begin(&mut world, router.take_backfill_requests());
        if commit % 17 == 0 {
            router.forget();
        }
    }
    listeners.into_keys().for_each(|id| router.detach(id, &ShareKey::Operator));
    assert_eq!(router.remembered_bytes(), 0, "cached state is dropped with its binding");
    assert!(router.templates().is_empty(), "meters are dropped with their binding");
    (known, unknown)
}

#[test]
fn a_delta_over_budget_is_unknown_and_never_wrong() {
    let steps = |seed: u64| [30, 60, 120, 240][(seed % 4) as usize];
    let outcomes = each_seed("a budget", TestBudget::Seeds(80), |seed| {
        let steps = steps(seed);
        let budget =
            Budget { average: steps, max: 2 * steps, commit: 8 * steps, ..Budget::UNLIMITED };
        (steps, run(seed, budget))
    });
    for (steps, (known, unknown)) in sums(outcomes) {
        assert!(known > 0 && unknown > 0, "{steps}: {known} known, {unknown} unknown");
    }
}

/// Sums by budget.
fn sums(outcomes: Vec<(u64, (usize, usize))>) -> BTreeMap<u64, (usize, usize)> {
    outcomes.into_iter().fold(BTreeMap::new(), |mut sums, (steps, (known, unknown))| {
        let sum: &mut (usize, usize) = sums.entry(steps).or_default();
        *sum = (sum.0 + known, sum.1 + unknown);
        sums
    })
}

#[test]
fn without_a_budget_every_delta_is_known() {
    let budget = Budget::UNLIMITED;
    assert_eq!(run(1, budget).1, 0);
}

/// Number of the 200 live queries of one tenant that are over the budget of a commit. That of another tenant is not.
fn over_budget(commit: u64, statement: u64) -> usize {
    let mut world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let average = u64::MAX / 8;
    let max = u64::MAX / 8;
    let budget = Budget { average, max, commit, statement, ..Budget::UNLIMITED };
    let mut router = Router::with_budget(Arc::clone(&world.catalog), budget);
    (0..20).for_each(|_| drop(world.commit()));
    let tenant = |name: &str| {
        let scope = Scope::from([("tenant".to_owned(), name.to_owned())]);
        ShareKey::for_caller(&Caller::with("ann", "worker", BTreeSet::new(), scope))
    };
    let mut attach = |number: usize, by: &ShareKey| {
        let sql = format!("SELECT b, count(*), sum(a) FROM r WHERE abs(a) <> {number} GROUP BY b");
        let binding = planner.bind(&sql, &Map::new()).expect("the query can be live");
        router.attach(&binding, by).expect("there is room")
    };
    let many: Vec<BindingId> = (0..200).map(|number| attach(number, &tenant("b"))).collect();
    let other = attach(1_000, &tenant("a"));
    let mut changes = Changes::new();
    let row = |id: i64| -> Row {
        let cells = [Value::Integer(id), Value::Integer(7), Value::Integer(2)];
        cells.into_iter().chain([Value::Null, Value::Null, Value::Null]).collect()
    };
    changes.push("r", None, Some(row(1_000)));
    world.db.run("INSERT INTO r VALUES (?, ?, ?, ?, ?, ?)", &row(1_000), &mut |_| {}).expect("new");
    let deltas: BTreeMap<BindingId, Result<_, LiveError>> =
        router.commit(&changes, &mut world.db).into_iter().collect();
    let over =
        many.iter().filter(|id| deltas.get(*id) == Some(&Err(LiveError::OverBudget))).count();
    assert!(matches!(deltas.get(&other), Some(Ok(_))), "the other tenant has its own share");
    over
}

/// The deltas of one tenant used up the budget of each commit, and all others were run again by readers.
#[test]
fn one_tenant_uses_a_share_of_a_commit() {
    let over = over_budget(40_000, 0);
    assert!(over > 0 && over < 200, "{over} of 200 are over the budget");
}

/// Ten thousand deltas of few steps each took half a second of the writer, because the start of a statement was free.
#[test]
fn the_start_of_a_statement_counts() {
    assert_eq!(over_budget(4_000_000, 0), 0);
    let over = over_budget(4_000_000, 50_000);
    assert!(over > 0 && over < 200, "{over} of 200 are over the budget");
}
