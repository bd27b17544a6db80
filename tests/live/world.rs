//! A small database with random commits: the tables, the connection, and the state at every seq.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_live::{Catalog, Changes, Cost, Sql, SqlError, SqlErrorKind};
use abide_schema::table::{ColumnSpec, IndexSpec, Kind};
use abide_schema::{Row, TableSpec, Value};
pub(crate) use abide_tests::random::Random;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, StatementStatus, ToSql};

const fn column(name: &'static str, kind: Kind, nullable: bool) -> ColumnSpec {
    let json = false;
    let unique = false;
    ColumnSpec {
        name,
        doc: "",
        kind,
        nullable,
        json,
        one_of: &[],
        references: None,
        unique,
        scope: false,
    }
}

const fn index(columns: &'static [&'static str]) -> IndexSpec {
    IndexSpec { columns, unique: false, condition: None }
}

const fn table(
    name: &'static str,
    columns: &'static [ColumnSpec],
    key: &'static [usize],
    without_rowid: bool,
    indexes: &'static [IndexSpec],
) -> TableSpec {
    let constraints: &[&str] = &[];
    let triggers: &[&str] = &[];
    let shared = false;
    TableSpec { name, doc: "", columns, key, without_rowid, shared, indexes, constraints, triggers }
}

/// A rowid table with a column of every kind.
pub(crate) static R: TableSpec = table(
    "r",
    &[
        column("id", Kind::Integer, false),
        column("a", Kind::Integer, true),
        column("b", Kind::Integer, true),
        column("c", Kind::Text, true),
        column("x", Kind::Real, true),
        column("z", Kind::Blob, true),
    ],
    &[0],
    false,
    &[index(&["a"]), index(&["b"]), index(&["c"])],
);

/// A table with a text key.
pub(crate) static S: TableSpec = table(
    "s",
    &[
        column("k", Kind::Text, false),
        column("b", Kind::Integer, true),
        column("c", Kind::Text, true),
        column("n", Kind::Integer, false),
    ],
    &[0],
    true,
    &[index(&["b"]), index(&["c"])],
);

/// A table with a key of two columns.
pub(crate) static P: TableSpec = table(
    "p",
    &[
        column("g", Kind::Text, false),
        column("n", Kind::Integer, false),
        column("v", Kind::Real, true),
        column("r_id", Kind::Integer, true),
    ],
    &[0, 1],
    false,
    &[index(&["r_id"]), index(&["v"])],
);

pub(crate) static TABLES: [&TableSpec; 3] = [&R, &S, &P];

/// Rows by table and primary key (as debug text: only identity matters).
pub(crate) type State = BTreeMap<&'static str, BTreeMap<String, Row>>;

pub(crate) struct World {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) db: Database,
    pub(crate) state: State,
    pub(crate) random: Random,
}

/// A connection like those of the engine.
pub(crate) struct Database(pub(crate) Connection);

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let views = vec![
            ("positive", "SELECT id, a, b AS bee FROM r WHERE a > 0"),
            ("one_column", "SELECT b FROM s WHERE b IS NOT NULL"),
            ("pairs", "SELECT r.id AS rid, s.k AS sk, s.n FROM r JOIN s ON s.b = r.b"),
        ];
        let catalog = Arc::new(Catalog::new(TABLES.to_vec(), views.clone()));
        let connection = Connection::open_in_memory().expect("an in-memory database opens");
        connection.set_prepared_statement_cache_capacity(8_192);
        for table in TABLES {
            for statement in table.ddl() {
                connection.execute_batch(&statement).expect("the schema is valid");
            }
        }
        for (name, select) in views {
            let view = format!("CREATE VIEW {name} AS {select}");
            connection.execute_batch(&view).expect("the views are valid");
        }
        for statement in catalog.setup_sql() {
            connection.execute_batch(&statement).expect("the setup is valid");
        }
        let state = TABLES.iter().map(|table| (table.name, BTreeMap::new())).collect();
        World { catalog, db: Database(connection), state, random: Random::new(seed) }
    }

    /// Changes some random rows in the database, and returns the net changes.
    pub(crate) fn commit(&mut self) -> Changes {
        let before = self.state.clone();
        let writes = *self.random.pick(&[1, 1, 1, 2, 3, 6]);
        for _ in 0..writes {
            self.write();
        }
        net(&before, &self.state)
    }

    fn write(&mut self) {
        let table = *self.random.pick(&TABLES);
        let row = self.row(table);
        let key = identity(table, &row);
        let rows = self.state.get_mut(table.name).expect("the table is known");
        let gone = self.random.below(3) == 0;
        if gone {
            rows.remove(&key);
        } else {
            rows.insert(key, row.clone());
        }
        let key = table.key.iter().map(|at| table.columns[*at].name);
        let condition: Vec<String> =
            key.enumerate().map(|(n, c)| format!("{c} = ?{}", n + 1)).collect();
        let delete = format!("DELETE FROM {} WHERE {}", table.name, condition.join(" AND "));
        self.db.run(&delete, &table.key_of(&row), &mut |_| {}).expect("a row is deleted");
        if !gone {
            let marks = vec!["?"; row.len()].join(", ");
            let insert = format!("INSERT INTO {} VALUES ({marks})", table.name);
            self.db.run(&insert, &row, &mut |_| {}).expect("a row is inserted");
        }
    }

    fn row(&mut self, table: &TableSpec) -> Row {
        let cells = table.columns.iter().enumerate().map(|(at, column)| {
            let in_key = table.key.contains(&at);
            if column.nullable && self.random.below(5) == 0 {
                return Value::Null;
            }
            match column.kind {
                Kind::Integer if in_key => Value::Integer(self.random.below(9) as i64),
                Kind::Integer => {
                    Value::Integer(*self.random.pick(&[-1, 0, 1, 2, 2, 3, 9_007_199_254_740_993]))
                }
                Kind::Real => Value::Real(*self.random.pick(&[
                    -0.5,
                    0.0,
                    1.0,
                    2.0,
                    2.5,
                    0.1,
                    -0.3,
                    0.7,
                    9_007_199_254_740_992.0,
                    1e300,
                ])),
                Kind::Text if in_key => Value::from(*self.random.pick(&["k", "l", "m", "n", "o"])),
                Kind::Text => Value::from(*self.random.pick(&[
                    "",
                    "a",
                    "A",
                    "b",
                    "B ",
                    "b",
                    "1",
                    "01",
                    "1.0",
                    "2",
                    "é",
                    "É",
                    "a\0b",
                    "A\0B",
                    "{\"a\":1}",
                ])),
                Kind::Blob => {
                    Value::Blob(self.random.pick(&[&b""[..], b"a", b"1", &[0, 255]]).to_vec())
                }
            }
        });
        cells.collect()
    }

    pub(crate) fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Row>, SqlError> {
        let mut rows = Vec::new();
        self.db.run(sql, params, &mut |row| rows.push(Row::from(row)))?;
        Ok(rows)
    }
}

/// The rows of the tables.
pub(crate) fn read_state(db: &Connection, tables: &[&'static TableSpec]) -> State {
    let mut state = State::new();
    for table in tables {
        let rows = state.entry(table.name).or_default();
        let sql = format!("SELECT * FROM {}", table.name);
        let mut statement = db.prepare_cached(&sql).expect("a table can be read");
        let mut found = statement.query([]).expect("a table can be read");
        while let Some(row) = found.next().expect("a table can be read") {
            let row = Row::from(cells(row, table.columns.len()));
            rows.insert(identity(table, &row), row);
        }
    }
    state
}

/// The cells of a result row.
pub(crate) fn cells(row: &rusqlite::Row, width: usize) -> Vec<Value> {
    (0..width)
        .map(|at| match row.get_ref(at).expect("the column exists") {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(n) => Value::Integer(n),
            ValueRef::Real(x) => Value::Real(x),
            ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        })
        .collect()
}

fn identity(table: &TableSpec, row: &[Value]) -> String {
    format!("{:?}", table.key_of(row))
}

/// The net changes between two states.
pub(crate) fn net(before: &State, after: &State) -> Changes {
    let mut changes = Changes::new();
    for (name, after) in after {
        let before = &before[name];
        for (key, old) in before {
            changes.push(name, Some(old.clone()), after.get(key).cloned());
        }
        for (_, new) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
            changes.push(name, None, Some(new.clone()));
        }
    }
    changes
}

/// A value for rusqlite to bind.
pub(crate) struct Bound<'a>(pub(crate) &'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Value::Null => ValueRef::Null,
            Value::Integer(n) => ValueRef::Integer(*n),
            Value::Real(x) => ValueRef::Real(*x),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl Sql for Database {
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<Cost, SqlError> {
        let to_sql_error = |error: rusqlite::Error| SqlError {
            message: error.to_string(),
            kind: SqlErrorKind::Query,
        };
        let mut prepared = self.0.prepare_cached(statement).map_err(|error| {
            // SQL that the planner accepted must be valid.
            SqlError { message: format!("{error} in {statement}"), kind: SqlErrorKind::Store }
        })?;
        let width = prepared.column_count();
        let params = rusqlite::params_from_iter(params.iter().map(Bound));
        let mut rows = prepared.query(params).map_err(to_sql_error)?;
        while let Some(row) = rows.next().map_err(to_sql_error)? {
            let utf8 =
                |cell| !matches!(cell, ValueRef::Text(text) if std::str::from_utf8(text).is_err());
            if !(0..width).map(|at| row.get_ref(at).expect("the column exists")).all(utf8) {
                let message = "a text value is not valid UTF-8".to_owned();
                return Err(SqlError { message, kind: SqlErrorKind::Query });
            }
            each(&cells(row, width));
        }
        drop(rows);
        let steps = prepared.reset_status(StatementStatus::VmStep);
        Ok(Cost::from_steps(u64::try_from(steps).unwrap_or(0), 0))
    }
}
