//! The rows that a caller may see, computed in plain Rust from all rows, and a database with exactly these
//! rows: its results are the expected results of the engine.

use std::collections::BTreeMap;

use abide_schema::reducer::Caller;
use abide_schema::{Row, Seq, Value};
use abide_tests::world::World;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql};
use serde_json::Value as JsonValue;

const TABLES: [&str; 8] =
    ["sessions", "agent_state", "events", "tools", "notes", "remarks", "members", "policies"];
const VIEW: &str = "CREATE VIEW old_notes AS SELECT id, tenant, body FROM notes WHERE n < 2";

/// All rows of the tested tables.
pub(crate) struct AllRows {
    tables: BTreeMap<&'static str, (Vec<String>, Vec<Row>)>,
    /// The current policies, including for past rows.
    policies: Vec<Policy>,
}

struct Policy {
    table: String,
    role: String,
    condition: Option<String>,
    hidden: Vec<String>,
}

/// A row by column name.
struct NamedRow<'a>(&'a [String], &'a Row);

impl NamedRow<'_> {
    fn get(&self, name: &str) -> &Value {
        &self.1[self.0.iter().position(|column| column == name).unwrap()]
    }

    fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Value::Text(text) => text,
            _ => "",
        }
    }

    fn number(&self, name: &str) -> i64 {
        match self.get(name) {
            Value::Integer(n) => *n,
            other => panic!("{name} is {other:?}"),
        }
    }
}

impl AllRows {
    /// Reads a past or the current state.
    pub(crate) async fn read(world: &World, as_of: Option<Seq>) -> AllRows {
        let admin = Caller::local();
        let mut tables = BTreeMap::new();
        for table in TABLES {
            let sql = format!("SELECT * FROM {table}");
            let answer = super::ask(world.engine(), &admin, &sql, as_of).await.unwrap();
            tables.insert(table, (answer.columns, answer.rows));
        }
        let now = super::ask(world.engine(), &admin, "SELECT * FROM policies", None).await.unwrap();
        let policies = now.rows.iter().map(|row| {
            let row = NamedRow(&now.columns, row);
            let condition = match row.get("condition") {
                Value::Text(text) => Some(text.clone()),
                _ => None,
            };
            let hidden = serde_json::from_str(row.text("hidden")).unwrap();
            let table = row.text("table_name").to_owned();
            let role = row.text("role").to_owned();
            Policy { table, role, condition, hidden }
        });
        AllRows { tables, policies: policies.collect() }
    }

    /// The rows and columns that a caller may see.
    pub(crate) fn copy_for(&self, caller: &Caller) -> FilteredCopy {
        let db = Connection::open_in_memory().unwrap();
        db.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_DQS_DML, false).unwrap();
        for (table, (columns, rows)) in &self.tables {
            let policies: Vec<&Policy> = (self.policies.iter())
                .filter(|policy| policy.table == *table)
                .filter(|policy| policy.role == "*" || policy.role == caller.role())
                .collect();
            let closed = ["notes", "remarks", "members", "policies"].contains(table);
            if closed && policies.is_empty() {
                continue;
            }
            let of_log = if *table == "events" { self.hidden_of_log(caller) } else { &[] };
            let hidden = |name: &String| {
                of_log.contains(&name.as_str())
                    || policies.iter().any(|policy| policy.hidden.contains(name))
            };
            let shown: Vec<usize> =
                (0..columns.len()).filter(|at| !hidden(&columns[*at])).collect();
            let names: Vec<&str> = shown.iter().map(|at| columns[*at].as_str()).collect();
            db.execute_batch(&format!("CREATE TABLE {table} ({})", names.join(", "))).unwrap();
            let marks = vec!["?"; names.len()].join(", ");
            let mut insert = db.prepare(&format!("INSERT INTO {table} VALUES ({marks})")).unwrap();
            for row in rows {
                let named = NamedRow(columns, row);
                let permitted = policies.is_empty()
                    || policies.iter().any(|policy| self.permits(policy, &named, caller));
                let permitted = permitted && self.follows_its_session(table, &named, caller);
                if permitted && self.is_in_scope(table, &named, caller) {
                    let cells = shown.iter().map(|at| Bound(&row[*at]));
                    insert.execute(rusqlite::params_from_iter(cells)).unwrap();
                }
            }
        }
        let _ = db.execute_batch(VIEW);
        FilteredCopy(db)
    }

    /// The log columns that are hidden by default. (No policy of `desk` is about the log.)
    fn hidden_of_log(&self, caller: &Caller) -> &'static [&'static str] {
        let mut of_caller =
            self.policies.iter().filter(|it| it.role == "*" || it.role == caller.role());
        let narrowed = of_caller.any(|it| it.condition.is_some() || !it.hidden.is_empty());
        let all = &["arguments", "outcome", "prev_hash", "hash", "salt", "authority"];
        let is_bounded = !caller.scope().is_empty();
        match (narrowed, caller.role()) {
            (true, "admin" | "auditor") => &all[..5],
            (true, _) => all,
            (false, "admin" | "auditor") if !is_bounded => &[],
            (false, "admin" | "auditor") => &all[2..5],
            (false, _) => &all[2..],
        }
    }

    /// The rows of a table that a caller's reducers can access, without hidden columns; all rows if
    /// there is no policy.
    pub(crate) fn reachable_rows(&self, table: &str, caller: &Caller) -> Vec<JsonValue> {
        let unbounded = caller.role() == Caller::ADMIN && caller.scope().is_empty();
        let policies: Vec<&Policy> = (self.policies.iter())
            .filter(|policy| policy.table == table && !unbounded)
            .filter(|policy| policy.role == "*" || policy.role == caller.role())
            .collect();
        let (columns, rows) = &self.tables[table];
        let rows = rows.iter().map(|row| NamedRow(columns, row)).filter(|row| {
            let any = policies.iter().any(|policy| self.permits(policy, row, caller));
            (policies.is_empty() || any)
                && (unbounded || self.follows_its_session(table, row, caller))
                && (caller.scope().is_empty() || self.is_in_scope(table, row, caller))
        });
        let shown: Vec<&String> = columns
            .iter()
            .filter(|name| !policies.iter().any(|it| it.hidden.contains(name)))
            .collect();
        let cell = |row: &NamedRow<'_>, name: &String| (name.clone(), row.get(name).to_json());
        rows.map(|row| shown.iter().map(|name| cell(&row, name)).collect()).collect()
    }

    /// Whether a caller's reducers may write a note.
    pub(crate) fn may_write_note(&self, caller: &Caller, note: &[(&str, Value)]) -> bool {
        let (names, cells): (Vec<String>, Vec<Value>) =
            note.iter().map(|(name, cell)| ((*name).to_owned(), cell.clone())).unzip();
        let row = Row::from(cells);
        let mut any = false;
        for policy in self.policies.iter().filter(|policy| policy.table == "notes") {
            if policy.role != "*" && policy.role != caller.role() {
                continue;
            }
            if self.permits(policy, &NamedRow(&names, &row), caller) {
                return true;
            }
            any = true;
        }
        !any
    }

    /// Whether the policies of sessions permit the session of a row.
    fn follows_its_session(&self, table: &str, row: &NamedRow<'_>, caller: &Caller) -> bool {
        let is_owned = ["agent_state", "events", "remarks"].contains(&table);
        let policies: Vec<&Policy> = (self.policies.iter())
            .filter(|policy| policy.table == "sessions")
            .filter(|policy| policy.role == "*" || policy.role == caller.role())
            .collect();
        if !is_owned || policies.is_empty() || *row.get("session_id") == Value::Null {
            return true;
        }
        let (columns, sessions) = &self.tables["sessions"];
        let mut sessions = sessions.iter().map(|session| NamedRow(columns, session));
        let owner = sessions.find(|owner| owner.get("id") == row.get("session_id"));
        owner
            .is_some_and(|owner| policies.iter().any(|policy| self.permits(policy, &owner, caller)))
    }

    fn is_in_scope(&self, table: &str, row: &NamedRow<'_>, caller: &Caller) -> bool {
        let session = match table {
            "sessions" => "id",
            "agent_state" | "events" | "remarks" => "session_id",
            _ => return true,
        };
        if caller.scope().is_empty() {
            let administered = table == "events" && *row.get(session) == Value::Null;
            return !administered || caller.role() == "auditor";
        }
        let (columns, sessions) = &self.tables["sessions"];
        let owner = sessions.iter().map(|session| NamedRow(columns, session));
        let owner = owner.into_iter().find(|owner| owner.get("id") == row.get(session));
        let Some(owner) = owner else { return false };
        let scope: JsonValue = serde_json::from_str(owner.text("scope")).unwrap();
        caller.scope().iter().all(|(key, value)| scope[key].as_str() == Some(value))
    }

    /// The conditions of `desk`, one by one.
    fn permits(&self, policy: &Policy, row: &NamedRow<'_>, caller: &Caller) -> bool {
        let Some(condition) = &policy.condition else { return true };
        let is_member = |tenant: &str, user: &str| {
            let (columns, members) = &self.tables["members"];
            let mut members = members.iter().map(|member| NamedRow(columns, member));
            members.any(|member| member.text("tenant") == tenant && member.text("user") == user)
        };
        let scope = || caller.scope().get("tenant").map(String::as_str);
        match condition.as_str() {
            "tenant = :scope_tenant" => scope() == Some(row.text("tenant")),
            "owner = :caller_id" => row.text("owner") == caller.id(),
            "n > 2" => row.number("n") > 2,
            "id > 2" => row.number("id") > 2,
            "user = :caller_id" => row.text("user") == caller.id(),
            "id <> 's1'" => row.text("id") != "s1",
            "role <> 'system'" => row.text("role") != "system",
            ":caller_role = 'agent'" => caller.role() == "agent",
            text if text.starts_with("EXISTS") => is_member(row.text("tenant"), caller.id()),
            text if text.starts_with("tenant IN") => {
                caller.capabilities().contains(row.text("tenant"))
            }
            other => panic!("an unknown condition {other}"),
        }
    }
}

/// A database of the visible rows.
pub(crate) struct FilteredCopy(Connection);

impl FilteredCopy {
    /// The result of a query over it.
    pub(crate) fn rows(&self, sql: &str) -> rusqlite::Result<(Vec<String>, Vec<Row>)> {
        let mut statement = self.0.prepare(sql)?;
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = Vec::new();
        let mut found = statement.raw_query();
        while let Some(row) = found.next()? {
            rows.push(
                (0..columns.len())
                    .map(|at| match row.get_ref(at).unwrap() {
                        ValueRef::Null => Value::Null,
                        ValueRef::Integer(n) => Value::Integer(n),
                        ValueRef::Real(x) => Value::Real(x),
                        ValueRef::Text(text) => {
                            Value::Text(String::from_utf8_lossy(text).into_owned())
                        }
                        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
                    })
                    .collect(),
            );
        }
        Ok((columns, rows))
    }
}

/// Whether a query failed on a row, and is valid in itself.
pub(crate) fn fails_at_a_row(why: &rusqlite::Error) -> bool {
    let why = why.to_string();
    ["malformed JSON", "integer overflow"].iter().any(|text| why.contains(text))
}

/// Rows as texts, in order if the query has an order.
pub(crate) fn texts(sql: &str, rows: &[Row]) -> Vec<String> {
    let mut texts: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
    if !sql.contains("ORDER BY") || sql.contains("OVER") {
        texts.sort();
    }
    texts
}

struct Bound<'a>(&'a Value);

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
