//! sqllogictest files, cut at random points: the queries of a file are subscribed at any point
//! between its statements, and where the file has a query the client must hold its result.
//!
//! The files under `slt/` have the usual format: `statement ok`, `statement error`, and `query`
//! with types, sort mode and expected values, one per line. The expected values are SQLite's own;
//! `UPDATE_EXPECT=1` rewrites them. Each file starts with its tables, which are STRICT.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_live::{Binding, BindingId, Catalog, Planner, Router, Sql as _};
use abide_schema::share::ShareKey;
use abide_schema::table::{ColumnSpec, Kind};
use abide_schema::{Row, TableSpec, Value};
use rusqlite::Connection;
use serde_json::Map;

use crate::client::Client;
use crate::proof::schema::leak;
use crate::seed_budget::{TestBudget, each_seed};
use crate::world::{Database, Random, State, cells, net, read_state};

/// The number of cuts of each file.
const CUTS: TestBudget = TestBudget::Seeds(12);

/// The maximum percentage of refused queries.
const REFUSED_PERCENT: usize = 10;

/// One record of a file.
#[derive(Clone, Debug)]
enum Record {
    /// A statement that must succeed or fail.
    Statement { sql: String, succeeds: bool },
    /// A query with its expected result.
    Query(Query),
}

#[derive(Clone, Debug)]
struct Query {
    /// `I`, `T` or `R` for each column.
    types: String,
    /// `nosort`, `rowsort` or `valuesort`.
    sort: String,
    sql: String,
    expected: Vec<String>,
    line: usize,
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("live/slt");
    let files = abide_tests::files_under(&folder);
    assert!(files.len() >= 8, "the files exist");
    files
}

fn records(text: &str) -> Vec<Record> {
    let lines: Vec<&str> = text.lines().collect();
    let mut records = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = at + 1;
        let head: Vec<&str> = lines[at].split_whitespace().collect();
        at += 1;
        let mut sql = Vec::new();
        let until = |end: &str| !end.is_empty() && end != "----";
        if matches!(head.as_slice(), ["statement" | "query", ..]) {
            while at < lines.len() && until(lines[at].trim()) {
                sql.push(lines[at]);
                at += 1;
            }
        }
        let sql = sql.join("\n");
        match head.as_slice() {
            [] => {}
            [word, ..] if word.starts_with('#') => {}
            ["statement", outcome] => {
                records.push(Record::Statement { sql, succeeds: *outcome == "ok" });
            }
            ["query", types, sort] => {
                at += 1;
                let expected: Vec<String> = lines[at.min(lines.len())..]
                    .iter()
                    .take_while(|l| !l.is_empty())
                    .map(|line| (*line).to_owned())
                    .collect();
                at += expected.len();
                let types = (*types).to_owned();
                let sort = (*sort).to_owned();
                records.push(Record::Query(Query { types, sort, sql, expected, line }));
            }
            other => panic!("line {line}: {other:?} is not a record"),
        }
    }
    records
}

impl Query {
    /// Rows in the format of the files.
    fn values(&self, rows: &[Row]) -> Vec<String> {
        let value = |(value, kind): (&Value, char)| match (value, kind) {
            (Value::Null, _) => "NULL".to_owned(),
            (Value::Integer(n), 'R') => format!("{n}.000"),
            (Value::Integer(n), _) => n.to_string(),
            (Value::Real(x), 'I') => format!("{x:.0}"),
            (Value::Real(x), 'R') => format!("{x:.3}"),
            (Value::Real(x), _) => format!("{x:?}"),
            (Value::Text(text), _) if text.is_empty() => "(empty)".to_owned(),
            (Value::Text(text), _) => text.replace(|c: char| c.is_control(), "@"),
            (Value::Blob(bytes), _) => {
                bytes.iter().fold("x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
            }
        };
        let mut rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().zip(self.types.chars()).map(value).collect())
            .collect();
        if self.sort == "rowsort" {
            rows.sort();
        }
        let mut values: Vec<String> = rows.into_iter().flatten().collect();
        if self.sort == "valuesort" {
            values.sort();
        }
        values
    }
}

fn fresh(db: &Connection, sql: &str) -> rusqlite::Result<Vec<Row>> {
    let mut statement = db.prepare(sql)?;
    let width = statement.column_count();
    let mut found = statement.query([])?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        rows.push(Row::from(cells(row, width)));
    }
    Ok(rows)
}

/// The files contain SQLite's results.
#[test]
fn the_files_are_correct() {
    for file in files() {
        let text = std::fs::read_to_string(&file).expect("the file can be read");
        let db = Connection::open_in_memory().expect("an in-memory database opens");
        let mut right = String::new();
        for record in records(&text) {
            match record {
                Record::Statement { sql, succeeds } => {
                    let outcome = db.execute_batch(&sql);
                    assert_eq!(outcome.is_ok(), succeeds, "{file:?}: {sql}: {outcome:?}");
                    let word = if succeeds { "ok" } else { "error" };
                    write!(right, "statement {word}\n{sql}\n\n").expect("a text takes text");
                }
                Record::Query(query) => {
                    let rows = fresh(&db, &query.sql)
                        .unwrap_or_else(|why| panic!("{file:?}:{}: {why}", query.line));
                    let width = rows.first().map_or(query.types.len(), |row| row.len());
                    assert_eq!(width, query.types.len(), "{file:?}:{}: types", query.line);
                    let Query { types, sort, sql, expected, line } = &query;
                    let values = query.values(&rows);
                    write!(right, "query {types} {sort}\n{sql}\n----\n").expect("it takes text");
                    values.iter().for_each(|value| right += &format!("{value}\n"));
                    right.push('\n');
                    if std::env::var_os("UPDATE_EXPECT").is_none() {
                        assert_eq!(&values, expected, "{file:?}:{line}: {sql}");
                    }
                }
            }
        }
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let comments: String = text
                .lines()
                .take_while(|line| line.starts_with('#'))
                .map(|l| format!("{l}\n"))
                .collect();
            std::fs::write(&file, format!("{comments}\n{right}").trim_end().to_owned() + "\n")
                .expect("the file can be written");
        }
    }
}

/// The run of a file.
struct SltRun {
    db: Database,
    tables: Vec<&'static TableSpec>,
    planner: Planner,
    router: Router,
    state: State,
    live: BTreeMap<usize, Live>,
    refused: usize,
}

/// A subscribed query of the file.
struct Live {
    binding: Binding,
    id: BindingId,
    client: Client,
}

impl SltRun {
    /// With the tables and views of the first statements.
    fn new(records: &[Record]) -> (SltRun, usize) {
        let db = Connection::open_in_memory().expect("an in-memory database opens");
        let mut prelude = 0;
        for record in records {
            let Record::Statement { sql, .. } = record else { break };
            if !sql.trim_start().starts_with("CREATE") {
                break;
            }
            db.execute_batch(sql).expect("the tables are made");
            prelude += 1;
        }
        let tables = declared(&db);
        let catalog = Arc::new(Catalog::new(tables.clone(), views(&db)));
        for statement in catalog.setup_sql() {
            db.execute_batch(&statement).expect("the setup is valid");
        }
        let state = read_state(&db, &tables);
        let planner = Planner::new(Arc::clone(&catalog));
        let router = Router::new(catalog);
        let live = BTreeMap::new();
        let db = Database(db);
        (SltRun { db, tables, planner, router, state, live, refused: 0 }, prelude)
    }

    fn subscribe(&mut self, number: usize, query: &Query) {
        let Ok(binding) = self.planner.bind(&query.sql, &Map::new()) else {
            self.refused += 1;
            return;
        };
        let Some(rows) = self.snapshot(&binding) else { return };
        let id =
            self.router.attach(&binding, &ShareKey::Operator).expect("the router has a free slot");
        let client = Client::new(&binding, rows);
        self.live.insert(number, Live { binding, id, client });
    }

    /// `None` if the query fails by itself, for example on invalid JSON.
    fn snapshot(&mut self, binding: &Binding) -> Option<Vec<Row>> {
        let mut rows = Vec::new();
        let mut each = |row: &[Value]| rows.push(Row::from(row));
        let outcome = self.db.run(binding.snapshot_sql(), binding.params(), &mut each);
        outcome.ok().map(|_| rows)
    }

    fn run(&mut self, sql: &str, place: &str) {
        // Some statements must fail.
        let _ = self.db.0.execute_batch(sql);
        if !self.db.0.is_autocommit() {
            return;
        }
        let after = read_state(&self.db.0, &self.tables);
        let changes = net(&self.state, &after);
        self.state = after;
        let deltas: BTreeMap<_, _> =
            self.router.commit(&changes, &mut self.db).into_iter().collect();
        for number in self.live.keys().copied().collect::<Vec<_>>() {
            let live = self.live.get_mut(&number).expect("the query is live");
            let place = format!("{place}: {}", live.binding.snapshot_sql());
            let binding = live.binding.clone();
            let Some(fresh) = self.snapshot(&binding) else {
                self.live.remove(&number);
                continue;
            };
            let live = self.live.get_mut(&number).expect("the query is live");
            if let Some(delta) = deltas.get(&live.id) {
                let delta = delta.as_ref().unwrap_or_else(|why| panic!("{place}: {why}"));
                live.client.apply(delta).unwrap_or_else(|why| panic!("{place}: {why}"));
            }
            let held = &self.live[&number].client;
            assert!(held.holds(&fresh), "{place}\n{:#?}\nfresh {fresh:#?}", held.rows);
        }
    }
}

#[test]
fn queries_are_correct_from_any_cut() {
    for file in files() {
        let text = std::fs::read_to_string(&file).expect("the file can be read");
        let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let records = records(&text);
        let queries = records.iter().filter(|record| matches!(record, Record::Query(_))).count();
        each_seed(&format!("sqllogictest {name}"), CUTS, |seed| {
            let refused = cut(&format!("{name}, cut {seed}"), seed, &records);
            assert!(100 * refused <= REFUSED_PERCENT * queries, "{name}: {refused} are refused");
        });
    }
}

/// Runs a file with its queries subscribed at random points. Returns the number of refused queries.
fn cut(place: &str, seed: u64, records: &[Record]) -> usize {
    let mut random = Random::new(seed ^ 0x517);
    let (mut play, prelude) = SltRun::new(records);
    let points: Vec<usize> = (0..records.len())
        .map(|own| {
            // Mostly before the file's query, so that there is something to compare.
            let end = if random.below(4) == 0 { records.len() } else { own + 1 };
            prelude + random.below(end.saturating_sub(prelude).max(1))
        })
        .collect();
    let mut asked = vec![false; records.len()];
    for (at, record) in records.iter().enumerate().skip(prelude) {
        // Subscriptions start between commits.
        let between = play.db.0.is_autocommit();
        for own in (0..records.len()).filter(|own| between && points[*own] <= at) {
            if let (false, Record::Query(query)) = (asked[own], &records[own]) {
                asked[own] = true;
                play.subscribe(own, query);
            }
        }
        match record {
            Record::Statement { sql, .. } => play.run(sql, place),
            Record::Query(query) => {
                let Some(live) = play.live.get(&at) else { continue };
                let visible = live.binding.shape().columns.iter().filter(|c| !c.hidden).count();
                let rows: Vec<Row> =
                    live.client.rows.iter().map(|row| Row::from(&row[..visible])).collect();
                let place = format!("{place}, line {}: {}", query.line, query.sql);
                assert_eq!(query.values(&rows), query.expected, "{place}");
            }
        }
    }
    play.refused
}

/// The tables of a database as declarations.
fn declared(db: &Connection) -> Vec<&'static TableSpec> {
    let sql = "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND \
         name NOT LIKE 'sqlite%' ORDER BY name";
    let tables = fresh(db, sql).expect("SQLite lists its tables");
    let tables = tables.iter().map(|table| {
        let [Value::Text(name), Value::Integer(without_rowid)] = &table[..] else {
            panic!("a table has a name")
        };
        let (columns, key) = columns(db, name);
        &*Box::leak(Box::new(TableSpec {
            shared: false,
            name: name.clone().leak(),
            doc: "",
            columns: leak(columns),
            key: leak(key),
            without_rowid: *without_rowid == 1,
            indexes: &[],
            constraints: &[],
            triggers: &[],
        }))
    });
    tables.collect()
}

/// The columns of a table, and its key.
fn columns(db: &Connection, table: &str) -> (Vec<ColumnSpec>, Vec<usize>) {
    let sql = format!("SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')");
    let rows = fresh(db, &sql).expect("SQLite lists its columns");
    let mut columns = Vec::new();
    let mut key = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let [Value::Text(name), Value::Text(kind), Value::Integer(strict), Value::Integer(pk)] =
            &row[..]
        else {
            panic!("a column has a name and a type")
        };
        let kinds = [Kind::Integer, Kind::Real, Kind::Text, Kind::Blob];
        let kind = kinds.into_iter().find(|known| known.sql() == kind).expect("STRICT has four");
        let name = &*name.clone().leak();
        let nullable = *strict == 0 && *pk == 0;
        let json = false;
        let unique = false;
        columns.push(ColumnSpec {
            scope: false,
            name,
            doc: "",
            kind,
            nullable,
            json,
            one_of: &[],
            references: None,
            unique,
        });
        if *pk > 0 {
            key.push((*pk, at));
        }
    }
    assert!(!key.is_empty(), "{table} has a primary key");
    key.sort_unstable();
    (columns, key.into_iter().map(|(_, at)| at).collect())
}

fn views(db: &Connection) -> Vec<(&'static str, &'static str)> {
    let sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'view'";
    let rows = fresh(db, sql).expect("SQLite lists its views");
    let views = rows.iter().map(|row| {
        let [Value::Text(name), Value::Text(sql)] = &row[..] else { panic!("a view has a text") };
        let (_, select) = sql.split_once(" AS ").expect("a view is AS a SELECT");
        (&*name.clone().leak(), &*select.to_owned().leak())
    });
    views.collect()
}
