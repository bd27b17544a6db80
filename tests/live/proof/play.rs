//! Runs a case: every commit, every subscription and every way to follow it, each compared with
//! SQLite's own result.
//!
//! After each commit and for each live query: the router's delta equals that of the query alone;
//! the client's result equals a fresh query, by exact type and order; so does the result of a
//! client that receives a delta for every statement, and of clients that were disconnected and
//! receive one delta for a span. Sometimes the fresh query itself is compared with the text.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_live::{
    Binding, BindingId, Catalog, Changes, Delta, LiveError, Planner, Router, Sql as _, SqlErrorKind,
};
use abide_schema::share::ShareKey;
use abide_schema::{Code, Row};
use rusqlite::Connection;

use crate::client::{Client, as_set};
use crate::proof::case::Case;
use crate::proof::original;
use crate::world::{Database, State, net, read_state};

/// Steps of SQLite's virtual machine after which a query is skipped: a join without a condition
/// adds nothing and takes as long as a hundred others.
const STEPS: i32 = 60_000;

/// A failure, with its query and commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) query: usize,
    pub(crate) commit: usize,
    pub(crate) what: What,
    pub(crate) detail: String,
}

/// Kinds of failures: a shrunk case must fail in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Our code panicked.
    Panicked,
    /// Refused as bad SQL, but SQLite accepts it.
    RefusedThoughGood,
    /// Accepted, but SQLite refuses it.
    TakenThoughBad,
    /// The planner produced SQL that SQLite refuses.
    MadeBadSql,
    /// A fresh query differs from the text.
    NotTheText,
    /// A delta failed although the query does not.
    Failed,
    /// The router's delta differs from that of the query alone.
    RouterDisagrees,
    /// A delta is inconsistent with the client's result.
    DoesNotFit,
    /// The client's result differs from a fresh query.
    Differs,
    /// The result of a client that receives a delta for every statement differs.
    DiffersStepwise,
    /// The result of a client that was disconnected and received one delta for a span differs.
    DiffersResumed,
}

/// The extent of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct CaseCounts {
    pub(crate) cases: u64,
    pub(crate) commits: u64,
    pub(crate) queries: u64,
    pub(crate) live: u64,
    /// By reason.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Non-empty deltas, and all compared ones.
    pub(crate) deltas: u64,
    pub(crate) compared: u64,
    /// Queries that failed by themselves: an overflow, malformed JSON.
    pub(crate) ended: u64,
    /// Deltas that failed although the query did not, so that it was run again.
    pub(crate) rerun: u64,
}

impl CaseCounts {
    /// Adds another tally.
    pub(crate) fn add(&mut self, other: &CaseCounts) {
        self.cases += other.cases;
        self.commits += other.commits;
        self.queries += other.queries;
        self.live += other.live;
        self.deltas += other.deltas;
        self.compared += other.compared;
        self.ended += other.ended;
        self.rerun += other.rerun;
        for (why, count) in &other.refused {
            *self.refused.entry(why.clone()).or_default() += count;
        }
    }
}

/// Seeded bugs, to check that they are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InjectedBug {
    /// Nothing.
    #[default]
    None,
    /// The client ignores deletes.
    ForgetsDeletes,
    /// Changes of the last table are not routed.
    LosesTable,
}

/// Runs a case to its end.
pub(crate) fn play(case: &Case, bug: InjectedBug) -> Result<CaseCounts, Failure> {
    let mut stage = RunningCase::new(case, bug);
    for commit in 0..=case.commits.len() {
        stage.subscribe(commit)?;
        if commit < case.commits.len() {
            stage.commit(commit)?;
        }
    }
    stage.tally.cases = 1;
    Ok(stage.tally)
}

struct RunningCase<'c> {
    case: &'c Case,
    bug: InjectedBug,
    db: Database,
    planner: Planner,
    router: Router,
    /// Receives every statement as a commit.
    stepwise: Router,
    state: State,
    live: Vec<Live>,
    tally: CaseCounts,
}

/// A subscription.
struct Live {
    query: usize,
    binding: Binding,
    id: BindingId,
    stepwise_id: BindingId,
    client: Client,
    /// `None` once the query failed in the middle of a commit, where the others do not look.
    stepwise: Option<Client>,
    away: DisconnectedClients,
    ended: bool,
}

type Routed = BTreeMap<BindingId, Result<Delta, LiveError>>;

impl<'c> RunningCase<'c> {
    fn new(case: &'c Case, bug: InjectedBug) -> RunningCase<'c> {
        let catalog = Arc::new(Catalog::new(case.schema.tables.clone(), case.schema.views.clone()));
        let connection = Connection::open_in_memory().expect("an in-memory database opens");
        connection.set_prepared_statement_cache_capacity(4_096);
        for statement in case.schema.ddl().into_iter().chain(catalog.setup_sql()) {
            let made = connection.execute_batch(&statement);
            made.unwrap_or_else(|why| panic!("{why} in {statement}"));
        }
        let db = Database(connection);
        let planner = Planner::new(Arc::clone(&catalog));
        let [router, stepwise] = [Router::new(Arc::clone(&catalog)), Router::new(catalog)];
        let live = Vec::new();
        let tally = CaseCounts::default();
        let state = read_state(&db.0, &case.schema.tables);
        RunningCase { case, bug, db, planner, router, stepwise, state, live, tally }
    }

    /// Subscribes the queries that are due.
    fn subscribe(&mut self, commit: usize) -> Result<(), Failure> {
        for (number, subscribed) in self.case.subscriptions.iter().enumerate() {
            if subscribed.at != commit {
                continue;
            }
            let to_failure = |(what, detail)| Failure { query: number, commit, what, detail };
            self.tally.queries += 1;
            if let Some(live) = self.begin(number, commit).map_err(to_failure)? {
                self.tally.live += 1;
                self.live.push(live);
            }
        }
        Ok(())
    }

    /// `None` if the query is refused or fails at once.
    fn begin(&mut self, number: usize, commit: usize) -> Result<Option<Live>, (What, String)> {
        let query = &self.case.subscriptions[number].query;
        let text = query.text();
        let params = query.named();
        let taken = self.db.0.prepare(&text).map(drop);
        let bound = quietly(|| self.planner.bind(&text, &params))?;
        let binding = match (bound, taken) {
            (Ok(binding), Ok(())) => binding,
            (Ok(_), Err(why)) if is_lenient(&text, &why.to_string()) => return Ok(None),
            (Ok(_), Err(why)) => return Err((What::TakenThoughBad, why.to_string())),
            (Err(refusal), Ok(())) if refusal.code == Code::BadSql => {
                return Err((What::RefusedThoughGood, refusal.detail));
            }
            (Err(refusal), _) => {
                *self.tally.refused.entry(reason(&refusal.detail)).or_default() += 1;
                return Ok(None);
            }
        };
        self.db.0.progress_handler(STEPS, Some(|| true)).expect("a handler can be set");
        let rows = self.fresh(&binding);
        self.db.0.progress_handler(0, None::<fn() -> bool>).expect("a handler can be taken off");
        let Some(rows) = rows? else {
            self.tally.ended += 1;
            return Ok(None);
        };
        original::check(&self.db.0, &self.planner, query, &binding, &rows)
            .map_err(|why| (What::NotTheText, why))?;
        let id =
            self.router.attach(&binding, &ShareKey::Operator).expect("the router has a free slot");
        let stepwise_id = self
            .stepwise
            .attach(&binding, &ShareKey::Operator)
            .expect("the router has a free slot");
        let client = Client::new(&binding, rows);
        let away = DisconnectedClients::new(commit, &self.state, &client);
        let stepwise = Some(client.clone());
        let query = number;
        let ended = false;
        Ok(Some(Live { query, binding, id, stepwise_id, client, stepwise, away, ended }))
    }

    /// The whole result; `None` if the query fails by itself.
    fn fresh(&mut self, binding: &Binding) -> Result<Option<Vec<Row>>, (What, String)> {
        let mut rows = Vec::new();
        let outcome = self.db.run(binding.snapshot_sql(), binding.params(), &mut |row| {
            rows.push(Row::from(row));
        });
        match outcome {
            Ok(_) => Ok(Some(rows)),
            Err(error) if error.kind == SqlErrorKind::Store => {
                Err((What::MadeBadSql, error.message))
            }
            Err(_) => Ok(None),
        }
    }

    fn commit(&mut self, commit: usize) -> Result<(), Failure> {
        let before = self.state.clone();
        for statement in &self.case.commits[commit] {
            // A statement that violates a constraint changes nothing.
            let _ = self.db.0.execute_batch(&statement.text());
            let after = read_state(&self.db.0, &self.case.schema.tables);
            let changes = net(&self.state, &after);
            self.state = after;
            if !changes.is_empty() {
                self.step(commit, &changes)?;
            }
        }
        self.tally.commits += 1;
        let mut changes = net(&before, &self.state);
        if self.bug == InjectedBug::LosesTable {
            let lost = self.case.schema.tables.last().map_or("", |table| table.name);
            changes = without_table(&changes, lost);
        }
        let router = &mut self.router;
        let db = &mut self.db;
        let routed: Routed = router.commit(&changes, db).into_iter().collect();
        for at in 0..self.live.len() {
            if self.live[at].ended {
                continue;
            }
            let query = self.live[at].query;
            self.follow(at, commit, &changes, &routed).map_err(|(what, detail)| Failure {
                query,
                commit,
                what,
                detail,
            })?;
        }
        Ok(())
    }

    /// Sends the deltas of one statement.
    fn step(&mut self, commit: usize, changes: &Changes) -> Result<(), Failure> {
        let routed: Routed = self.stepwise.commit(changes, &mut self.db).into_iter().collect();
        for live in self.live.iter_mut().filter(|live| !live.ended) {
            let query = live.query;
            let to_failure =
                |detail| Failure { query, commit, what: What::DiffersStepwise, detail };
            match (routed.get(&live.stepwise_id), &mut live.stepwise) {
                (Some(Ok(delta)), Some(client)) => client.apply(delta).map_err(to_failure)?,
                (Some(Err(LiveError::Query(_))), _) => live.stepwise = None,
                (Some(Err(error)), _) => return Err(to_failure(error.to_string())),
                (None, _) | (_, None) => {}
            }
        }
        Ok(())
    }

    fn follow(
        &mut self,
        at: usize,
        commit: usize,
        changes: &Changes,
        routed: &Routed,
    ) -> Result<(), (What, String)> {
        let binding = self.live[at].binding.clone();
        let fresh = self.fresh(&binding)?;
        let db = &mut self.db;
        let alone = quietly(|| binding.delta(changes, db))?;
        let Some(fresh) = fresh else {
            self.live[at].ended = true;
            self.tally.ended += 1;
            return Ok(());
        };
        let routed = routed.get(&self.live[at].id).cloned().unwrap_or_else(|| Ok(Delta::default()));
        if routed.clone().map(as_set) != alone.clone().map(as_set) {
            let detail = format!("routed {routed:?}\nalone {alone:?}");
            return Err((What::RouterDisagrees, detail));
        }
        if let Err(LiveError::Query(_)) = routed {
            // A delta reads the previous state too, beyond a top-N result, and what no row of the query needs. The engine
            // runs the query again.
            self.tally.rerun += 1;
            self.live[at].client = Client::new(&binding, fresh);
            return Ok(());
        }
        let mut delta = routed.map_err(|error| (What::Failed, error.to_string()))?;
        if self.bug == InjectedBug::ForgetsDeletes {
            delta.deletes.clear();
        }
        let live = &mut self.live[at];
        live.client.apply(&delta).map_err(|why| (What::DoesNotFit, why))?;
        self.tally.deltas += u64::from(!delta.is_empty());
        self.tally.compared += 1;
        compare(&live.client, &fresh, What::Differs)?;
        if let Some(stepwise) = &live.stepwise {
            compare(stepwise, &fresh, What::DiffersStepwise)?;
        }
        let query = &self.case.subscriptions[live.query].query;
        if commit % 3 == at % 3 {
            original::check(&self.db.0, &self.planner, query, &binding, &fresh)
                .map_err(|why| (What::NotTheText, why))?;
        }
        self.resume(at, commit, &fresh)
    }

    /// Two clients that disconnected at the same time: one receives N → K → M, the other N → M.
    fn resume(&mut self, at: usize, commit: usize, fresh: &[Row]) -> Result<(), (What, String)> {
        let live = &mut self.live[at];
        let waited = commit - live.away.since.min(commit);
        if waited < 1 + at % 2 || (live.away.met && waited < 2 + at % 3) {
            return Ok(());
        }
        let coming = if live.away.met { 2 } else { 1 };
        for (state, client) in &mut live.away.clients[..coming] {
            let span = net(state, &self.state);
            let db = &mut self.db;
            let delta = quietly(|| live.binding.delta(&span, db))?;
            match delta {
                // The client gets a new snapshot.
                Err(LiveError::Query(_)) => *client = Client::new(&live.binding, fresh.to_vec()),
                Err(error) => return Err((What::Failed, error.to_string())),
                Ok(delta) => client.apply(&delta).map_err(|why| (What::DiffersResumed, why))?,
            }
            compare(client, fresh, What::DiffersResumed)?;
            *state = self.state.clone();
        }
        if std::mem::replace(&mut live.away.met, true) {
            live.away = DisconnectedClients::new(commit, &self.state, &live.client);
        }
        Ok(())
    }
}

/// Two clients that were last up to date after the same commit.
struct DisconnectedClients {
    since: usize,
    clients: [(State, Client); 2],
    /// Whether the first of them returned on the way.
    met: bool,
}

impl DisconnectedClients {
    fn new(since: usize, state: &State, client: &Client) -> DisconnectedClients {
        let one = || (state.clone(), client.clone());
        DisconnectedClients { since, clients: [one(), one()], met: false }
    }
}

/// Queries that we accept and SQLite refuses: with a RIGHT or FULL JOIN in FROM, SQLite loses track
/// of columns merged by USING.
fn is_lenient(text: &str, why: &str) -> bool {
    let has = |words: [&str; 2]| words.iter().any(|word| text.contains(word));
    has(["NATURAL", "USING"]) && has(["RIGHT", "FULL"]) && why.contains("ambiguous column name")
}

fn compare(client: &Client, fresh: &[Row], what: What) -> Result<(), (What, String)> {
    if client.holds(fresh) {
        return Ok(());
    }
    Err((
        what,
        format!("the client holds {}\na fresh query returns {}", rows(&client.rows), rows(fresh)),
    ))
}

fn rows(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("\n    {row:?}")).collect()
}

fn without_table(changes: &Changes, name: &str) -> Changes {
    let mut kept = Changes::new();
    for (table, rows) in changes.tables().filter(|(table, _)| *table != name) {
        for row in rows {
            kept.push(table, row.old.clone(), row.new.clone());
        }
    }
    kept
}

/// A refusal without names.
fn reason(detail: &str) -> String {
    let mut words: Vec<&str> = detail.split(' ').collect();
    for at in 1..words.len() {
        if ["column", "column:", "parameter"].contains(&words[at - 1]) {
            words[at] = "…";
        }
    }
    words.join(" ")
}

/// A panic as an ordinary failure.
fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, (What, String)> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned());
        (What::Panicked, text.unwrap_or_default())
    })
}
