//! Visibility of a restricted caller, over the same random cases: every result and every delta
//! equals that of the same text over a database with only the rows and columns that the caller may
//! see.
//!
//! SQLite builds the copy from the policies' conditions alone, after every commit. A query that
//! fails on the whole database but not on the copy would reveal hidden data.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use abide_live::{
    AuthorizedViews, Binding, BindingId, Catalog, LiveError, Planner, PolicyVersion,
    QueryPrincipal, Router, Sql as _, select_of,
};
use abide_schema::share::ShareKey;
use abide_schema::table::{IndexSpec, Kind};
use abide_schema::{Code, Row, TableSpec, Value};
use rusqlite::Connection;

use crate::client::Client;
use crate::proof::case::Case;
use crate::proof::grammar::Query;
use crate::proof::literals::literal;
use crate::proof::schema::{Schema, leak};
use crate::seed_budget::{TestBudget, print_note, repeat, tried};
use crate::world::{Bound, Database, Random, cells, net, read_state};

/// The budget in a full test run.
const SHARE: TestBudget = TestBudget::Seconds(6);

/// Steps of SQLite's virtual machine after which a query is skipped.
const STEPS: i32 = 60_000;

/// The visible part of a table.
#[derive(Debug)]
struct VisibleColumns {
    columns: Vec<&'static str>,
    condition: Option<String>,
}

/// A case with a restricted caller.
struct BoundedCase {
    case: Case,
    shown: BTreeMap<&'static str, VisibleColumns>,
    values: BTreeMap<String, Value>,
    /// The whole database.
    db: Database,
    planner: Planner,
    router: Router,
    principal: QueryPrincipal,
    /// The schema of the visible part.
    copied: Schema,
    copy: Database,
    copy_planner: Planner,
}

struct Live {
    query: usize,
    bounded: Binding,
    plain: Binding,
    id: BindingId,
    client: Client,
    ended: bool,
}

#[derive(Debug, Default)]
struct CaseCounts {
    cases: u64,
    live: u64,
    refused: u64,
    compared: u64,
    once: u64,
    ended: u64,
    /// Deltas that failed although the query did not.
    rerun: u64,
}

impl CaseCounts {
    fn add(&mut self, other: &CaseCounts) {
        self.cases += other.cases;
        self.live += other.live;
        self.refused += other.refused;
        self.compared += other.compared;
        self.once += other.once;
        self.ended += other.ended;
        self.rerun += other.rerun;
    }
}

/// The result of a query over the whole database.
enum QueryOutcome {
    Rows(Vec<Row>),
    Failed(String),
    /// A join without a condition, as slow as a hundred others.
    TooDear,
}

type Outcome<T> = Result<T, String>;

impl BoundedCase {
    fn new(seed: u64) -> BoundedCase {
        let case = Case::of_seed(seed);
        let mut random = Random::new(seed ^ 0x0b5c);
        let scope = Value::from(*random.pick(&["a", "b", "1", ""]));
        let values = [("scope_k".to_owned(), scope), ("caller_id".to_owned(), Value::from("b"))];
        let values = BTreeMap::from(values);
        let mut shown = shown(&mut random, &case.schema);
        let (copied, copy) = match copy_of(&case.schema, &shown) {
            Ok(copy) => copy,
            // A view names a hidden column: then nothing is hidden.
            Err(_) => {
                shown.iter_mut().for_each(|(name, shown)| {
                    shown.columns = all_columns(&case.schema, name);
                });
                copy_with(&case.schema, &shown)
            }
        };
        let selects = shown.iter().map(|(name, shown)| {
            let condition = shown.condition.as_deref();
            ((*name).to_owned(), select_of(name, &shown.columns, None, condition))
        });
        let authorized_views = Arc::new(AuthorizedViews::new(selects.collect::<Vec<_>>()));
        let latest = Arc::new(AtomicU64::new(0));
        let principal =
            QueryPrincipal::new(authorized_views, values.clone(), PolicyVersion::latest(&latest));
        let catalog = Arc::new(Catalog::new(case.schema.tables.clone(), case.schema.views.clone()));
        let copy_catalog = Arc::new(Catalog::new(copied.tables.clone(), copied.views.clone()));
        let db = database(&case.schema, &catalog);
        let planner = Planner::new(Arc::clone(&catalog));
        let router = Router::new(catalog);
        let copy_planner = Planner::new(copy_catalog);
        BoundedCase {
            case,
            shown,
            values,
            db,
            planner,
            router,
            principal,
            copied,
            copy,
            copy_planner,
        }
    }

    /// Updates the copy to the visible rows.
    fn update_views(&mut self) {
        for table in &self.copied.tables {
            let shown = &self.shown[table.name];
            let columns = shown.columns.join(", ");
            let condition = shown.condition.as_deref().unwrap_or("1");
            let sql = format!("SELECT {columns} FROM {} WHERE ({condition})", table.name);
            let mut statement = self.db.0.prepare(&sql).expect("a condition is good");
            for (name, value) in &self.values {
                if let Some(at) = statement.parameter_index(&format!(":{name}")).expect("a name") {
                    statement.raw_bind_parameter(at, Bound(value)).expect("a value is bound");
                }
            }
            let mut rows = Vec::new();
            let mut found = statement.raw_query();
            while let Some(row) = found.next().expect("a condition does not fail") {
                rows.push(cells(row, shown.columns.len()));
            }
            let delete = format!("DELETE FROM {}", table.name);
            self.copy.run(&delete, &[], &mut |_| {}).expect("a copy can be emptied");
            let marks = vec!["?"; shown.columns.len()].join(", ");
            let insert = format!("INSERT INTO {} VALUES ({marks})", table.name);
            for row in rows {
                self.copy.run(&insert, &row, &mut |_| {}).expect("a row can be copied");
            }
        }
    }

    fn play(&mut self) -> Outcome<CaseCounts> {
        let mut tally = CaseCounts { cases: 1, ..CaseCounts::default() };
        let mut live = Vec::new();
        for commit in 0..=self.case.commits.len() {
            for number in 0..self.case.subscriptions.len() {
                if self.case.subscriptions[number].at == commit {
                    self.update_views();
                    let begun = self.begin(number, &mut tally);
                    live.extend(begun.map_err(|why| self.output(number, commit, &why))?);
                }
            }
            if commit == self.case.commits.len() {
                break;
            }
            let before = read_state(&self.db.0, &self.case.schema.tables);
            for statement in &self.case.commits[commit] {
                let _ = self.db.0.execute_batch(&statement.text());
            }
            let changes = net(&before, &read_state(&self.db.0, &self.case.schema.tables));
            self.update_views();
            let routed = self.router.commit(&changes, &mut self.db);
            let mut routed: BTreeMap<BindingId, _> = routed.into_iter().collect();
            for one in live.iter_mut().filter(|one| !one.ended) {
                let delta = routed.get(&one.id).cloned();
                self.follow(one, delta, &mut tally)
                    .map_err(|why| self.output(one.query, commit, &why))?;
            }
            routed.clear();
        }
        Ok(tally)
    }

    fn begin(&mut self, number: usize, tally: &mut CaseCounts) -> Outcome<Option<Live>> {
        let query = self.case.subscriptions[number].query.clone();
        let text = query.text();
        let params = query.named();
        let bounded = self.planner.bind_within(&text, &params, &self.principal);
        let once = self.planner.bind_once(&text, &params, &self.principal);
        let plain = match self.copy_planner.bind(&text, &params) {
            Ok(plain) => plain,
            Err(refusal) => {
                tally.refused += 1;
                return match bounded {
                    Ok(_) => Err(format!("accepted, but refused over the copy: {refusal}")),
                    Err(_) => Ok(None),
                };
            }
        };
        let rows = self.run_copy(&plain);
        if let (Ok(once), Ok(rows)) = (&once, &rows) {
            tally.once += 1;
            let found = self.run_whole(once)?;
            self.same((&plain, once), &found, rows)?;
        }
        let bounded = match bounded {
            Ok(bounded) => bounded,
            Err(refusal) if refusal.code == Code::BadSql && !names_rowid(&text) => {
                return Err(format!("refused, but accepted over the copy: {refusal}"));
            }
            Err(_) => {
                tally.refused += 1;
                return Ok(None);
            }
        };
        let Ok(rows) = rows else {
            tally.ended += 1;
            return Ok(None);
        };
        let found = self.run_whole(&bounded)?;
        self.same((&plain, &bounded), &found, &rows)?;
        let QueryOutcome::Rows(found) = found else { return Ok(None) };
        let id = self
            .router
            .attach(&bounded, &ShareKey::Operator)
            .map_err(|refusal| refusal.to_string())?;
        tally.live += 1;
        let client = Client::new(&bounded, found);
        Ok(Some(Live { query: number, bounded, plain, id, client, ended: false }))
    }

    fn follow(
        &mut self,
        one: &mut Live,
        delta: Option<Result<abide_live::Delta, LiveError>>,
        tally: &mut CaseCounts,
    ) -> Outcome<()> {
        let Ok(expected) = self.run_copy(&one.plain) else {
            (one.ended, tally.ended) = (true, tally.ended + 1);
            return Ok(());
        };
        let fresh = self.run_whole(&one.bounded)?;
        self.same((&one.plain, &one.bounded), &fresh, &expected)?;
        let QueryOutcome::Rows(fresh) = fresh else {
            one.ended = true;
            return Ok(());
        };
        match delta {
            Some(Ok(delta)) => {
                let applied = one.client.apply(&delta);
                applied.map_err(|why| format!("an inconsistent delta: {why}"))?;
            }
            // A delta reads the previous state too, and what no row of the query needs. The engine runs the query again.
            Some(Err(LiveError::Query(_))) => {
                tally.rerun += 1;
                one.client = Client::new(&one.bounded, fresh.clone());
            }
            Some(Err(error)) => return Err(format!("a delta failed: {error}")),
            None => {}
        }
        tally.compared += 1;
        if !one.client.holds(&fresh) {
            return Err(format!("the client holds {:?}\ninstead of {fresh:?}", one.client.rows));
        }
        Ok(())
    }

    fn run_copy(&mut self, plain: &Binding) -> Result<Vec<Row>, String> {
        run(&mut self.copy, plain)
    }

    fn run_whole(&mut self, binding: &Binding) -> Outcome<QueryOutcome> {
        match run(&mut self.db, binding) {
            Ok(rows) => Ok(QueryOutcome::Rows(rows)),
            Err(why) if why.contains(" in SELECT") => Err(why),
            Err(why) if why == "interrupted" => Ok(QueryOutcome::TooDear),
            Err(why) => Ok(QueryOutcome::Failed(why)),
        }
    }

    /// Compares a result with that of the copy. A failure that the copy does not have must be due
    /// to a visible row.
    fn same(
        &mut self,
        (plain, bounded): (&Binding, &Binding),
        found: &QueryOutcome,
        rows: &[Row],
    ) -> Outcome<()> {
        let found = match found {
            QueryOutcome::Rows(found) => found,
            QueryOutcome::TooDear => return Ok(()),
            QueryOutcome::Failed(why) => {
                return Err(format!("it fails, but not over the copy: {why}"));
            }
        };
        if plain.is_top_n() && plain.shape().key != bounded.shape().key {
            // If the text has ties, the planner breaks them by the key. A partly visible table may
            // lack its key (seed 3203), and then any rows of the result are correct.
            return if found.len() == rows.len() {
                Ok(())
            } else {
                Err(format!("found {found:?}\nin the copy {rows:?}"))
            };
        }
        let width = plain.shape().columns.iter().filter(|column| !column.hidden).count();
        let texts = |rows: &[Row]| {
            let mut texts: Vec<String> =
                rows.iter().map(|row| format!("{:?}", &row[..width])).collect();
            // Ties may come in any order; a top-N result has no ties.
            if !plain.is_top_n() {
                texts.sort();
            }
            texts
        };
        let found = texts(found);
        let rows = texts(rows);
        if found == rows {
            return Ok(());
        }
        Err(format!("found {}\nin the copy {}", found.join("\n  "), rows.join("\n  ")))
    }

    fn output(&self, query: usize, commit: usize, why: &str) -> String {
        let query: &Query = &self.case.subscriptions[query].query;
        format!(
            "{why}\nafter commit {commit}, of  {}\n{:#?}\n{:?}\n{}",
            query.inlined(),
            self.shown,
            self.values,
            self.case,
        )
    }
}

fn names_rowid(text: &str) -> bool {
    ["rowid", "oid"].iter().any(|name| text.to_ascii_lowercase().contains(name))
}

fn run(db: &mut Database, binding: &Binding) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    db.0.progress_handler(STEPS, Some(|| true)).expect("a handler can be set");
    let outcome = db.run(binding.snapshot_sql(), binding.params(), &mut |row| {
        rows.push(Row::from(row));
    });
    db.0.progress_handler(0, None::<fn() -> bool>).expect("a handler can be taken off");
    outcome.map(|_| rows).map_err(|error| error.message)
}

fn database(schema: &Schema, catalog: &Catalog) -> Database {
    let connection = Connection::open_in_memory().expect("an in-memory database opens");
    connection.set_prepared_statement_cache_capacity(4_096);
    for statement in schema.ddl().into_iter().chain(catalog.setup_sql()) {
        let made = connection.execute_batch(&statement);
        made.unwrap_or_else(|why| panic!("{why} in {statement}"));
    }
    Database(connection)
}

fn all_columns(schema: &Schema, name: &str) -> Vec<&'static str> {
    let table = schema.tables.iter().find(|table| table.name == name).expect("a table");
    table.columns.iter().map(|column| column.name).collect()
}

/// The visible columns and rows of every table.
fn shown(random: &mut Random, schema: &Schema) -> BTreeMap<&'static str, VisibleColumns> {
    let shown = schema.tables.iter().map(|table| {
        let hides = random.below(5) == 0;
        let columns = table
            .columns
            .iter()
            .enumerate()
            .filter(|(at, _)| table.key.contains(at) || !hides || random.below(3) > 0)
            .map(|(_, column)| column.name)
            .collect();
        let condition = (random.below(5) > 0).then(|| condition(random, schema, table));
        (table.name, VisibleColumns { columns, condition })
    });
    shown.collect()
}

fn condition(random: &mut Random, schema: &Schema, table: &TableSpec) -> String {
    let column = |random: &mut Random, table: &TableSpec| {
        let column = random.pick(table.columns);
        (column.name, column.kind)
    };
    let (name, kind) = column(random, table);
    let value = |random: &mut Random, kind: Kind| match kind {
        Kind::Integer => Value::Integer(*random.pick(&[0, 1, 2, 3])),
        Kind::Real => Value::Real(*random.pick(&[0.0, 1.0, 2.5])),
        Kind::Text => Value::from(*random.pick(&["", "a", "b", "1"])),
        Kind::Blob => Value::Blob(b"a".to_vec()),
    };
    let compared = format!("{name} > {}", literal(&value(random, kind)));
    match random.below(8) {
        0 => compared,
        1 => format!("{name} = :scope_k"),
        2 => format!("{name} IS NOT NULL AND ({name} <> :caller_id OR {compared})"),
        3 => format!("NOT ({compared})"),
        4 => format!("typeof({name}) <> 'null' OR {name} IS NULL"),
        5 | 6 => {
            let other = *random.pick(&schema.tables);
            let (theirs, kind) = column(random, other);
            let value = literal(&value(random, kind));
            // By alias: another mention of the same table is another row.
            let link = format!("o.{theirs} = {}.{name} OR o.{theirs} > {value}", table.name);
            format!("EXISTS (SELECT 1 FROM {} AS o WHERE {link})", other.name)
        }
        _ => {
            let other = *random.pick(&schema.tables);
            let (theirs, _) = column(random, other);
            format!("{name} IN (SELECT {theirs} FROM {})", other.name)
        }
    }
}

/// Empty tables of the visible columns. An error if a view names a hidden column.
fn copy_of(
    schema: &Schema,
    shown: &BTreeMap<&'static str, VisibleColumns>,
) -> Result<(Schema, Database), String> {
    let (copied, db) = copy_with(schema, shown);
    for (name, _) in &copied.views {
        db.0.prepare(&format!("SELECT * FROM {name}")).map_err(|why| why.to_string())?;
    }
    Ok((copied, db))
}

fn copy_with(
    schema: &Schema,
    shown: &BTreeMap<&'static str, VisibleColumns>,
) -> (Schema, Database) {
    let tables = schema.tables.iter().map(|table| {
        let columns = &shown[table.name].columns;
        let kept = || table.columns.iter().filter(|column| columns.contains(&column.name));
        let at = |name: &str| kept().position(|column| column.name == name).expect("a key is kept");
        let key: Vec<usize> = table.key.iter().map(|key| at(table.columns[*key].name)).collect();
        let indexes = table
            .indexes
            .iter()
            .filter(|index| index.columns.iter().all(|name| columns.contains(name)))
            .map(|index| IndexSpec {
                columns: index.columns,
                unique: index.unique,
                condition: index.condition,
            });
        let spec = TableSpec {
            name: table.name,
            doc: "",
            columns: leak(kept().map(copy_column).collect()),
            key: leak(key),
            without_rowid: table.without_rowid,
            shared: table.shared,
            indexes: leak(indexes.collect()),
            constraints: &[],
            triggers: &[],
        };
        &*Box::leak(Box::new(spec))
    });
    let copied = Schema { tables: tables.collect(), views: schema.views.clone() };
    let catalog = Catalog::new(copied.tables.clone(), copied.views.clone());
    let db = database(&copied, &catalog);
    (copied, db)
}

fn copy_column(column: &abide_schema::table::ColumnSpec) -> abide_schema::table::ColumnSpec {
    abide_schema::table::ColumnSpec {
        name: column.name,
        doc: "",
        kind: column.kind,
        nullable: column.nullable,
        json: column.json,
        one_of: &[],
        references: None,
        unique: column.unique,
        scope: column.scope,
    }
}

#[test]
fn a_restricted_caller_sees_the_result_over_a_filtered_copy() {
    let (outcomes, _) = tried(SHARE, |seed| {
        let played = catch_unwind(AssertUnwindSafe(|| BoundedCase::new(seed).play()));
        played.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>();
            Err(format!("seed {seed} panicked: {text:?}"))
        })
    });
    let mut all = CaseCounts::default();
    let mut failures = Vec::new();
    for (seed, outcome) in outcomes {
        match outcome {
            Ok(tally) => all.add(&tally),
            Err(why) => failures.push(format!("{why}\n{}", repeat(seed))),
        }
    }
    print_note(&format!("bounded sight: {all:?}, {} fail", failures.len()));
    failures.sort_by_key(String::len);
    assert!(failures.is_empty(), "{}", failures[..failures.len().min(3)].join("\n\n=====\n"));
    assert!(all.live > 4 * all.cases, "most queries are refused, so the test proves too little");
}

/// Seeds that found a bug, beside the first ones of every run. 236: a policy with a subquery hides a row that changes in the same
/// commit in a column that the query does not read, and the client kept the row. 7899: a delta failed at a text that is not UTF-8,
/// and the query did not. 5422: a count that was compared with a text on visible rows had the affinity of a column, so 1 was equal to '1.0'.
#[test]
fn seeds_that_found_a_bug_find_nothing() {
    for seed in [236, 5422, 7899] {
        if let Err(why) = BoundedCase::new(seed).play() {
            panic!("{why}\n{}", repeat(seed));
        }
    }
}
