//! Row and column visibility for a restricted caller: the SELECT that replaces each table, shared
//! by callers of one kind, and the parameter values of one caller.
//!
//! A restricted query reads no table directly. Each table name expands to a SELECT
//! ([`AuthorizedViews`]), as a view does. Callers of one kind share that text, and so the template;
//! the caller's identity is a parameter. A table without such a SELECT is `no such table`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_schema::Value;

use crate::identifier::quoted;

/// The visible part of every table, for callers of one kind. Other tables do not exist for them.
#[derive(Debug)]
pub struct AuthorizedViews {
    /// Unique.
    pub(crate) number: u64,
    tables: HashMap<String, String>,
}

impl AuthorizedViews {
    /// Creates an outlook of these tables, each as its name and the SELECT that replaces it.
    #[must_use]
    pub fn new(tables: impl IntoIterator<Item = (String, String)>) -> AuthorizedViews {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let tables = tables.into_iter().map(|(name, sql)| (name.to_ascii_lowercase(), sql));
        AuthorizedViews { number, tables: tables.collect() }
    }

    /// Returns the SELECT that replaces a table.
    #[must_use]
    pub fn select(&self, table: &str) -> Option<&str> {
        self.tables.get(&table.to_ascii_lowercase()).map(String::as_str)
    }
}

/// A caller with restricted visibility.
#[derive(Clone, Debug)]
pub struct QueryPrincipal {
    pub(crate) authorized_views: Arc<AuthorizedViews>,
    values: Arc<BTreeMap<String, Value>>,
    policy_version: PolicyVersion,
}

impl QueryPrincipal {
    /// Creates a caller with this outlook, and the values of the parameters in its SELECTs, by name
    /// without the sigil.
    #[must_use]
    pub fn new(
        authorized_views: Arc<AuthorizedViews>,
        values: BTreeMap<String, Value>,
        policy_version: PolicyVersion,
    ) -> QueryPrincipal {
        QueryPrincipal { authorized_views, values: Arc::new(values), policy_version }
    }

    /// Returns the outlook.
    #[must_use]
    pub fn authorized_views(&self) -> &AuthorizedViews {
        &self.authorized_views
    }

    /// Returns the version of the policies that it was derived from.
    #[must_use]
    pub fn policy_version(&self) -> &PolicyVersion {
        &self.policy_version
    }

    /// Returns the caller's identity and policies.
    pub(crate) fn principal_key(&self) -> PrincipalKey {
        PrincipalKey { policy_version: self.policy_version.clone(), id: self.value("caller_id") }
    }

    /// Returns the value of a parameter; NULL if the caller has none.
    pub(crate) fn value(&self, name: &str) -> Value {
        self.values.get(name).cloned().unwrap_or(Value::Null)
    }
}

/// The caller and the policies of a restricted query. The identity affects the result only through
/// the parameters.
#[derive(Clone, Debug)]
pub(crate) struct PrincipalKey {
    pub(crate) policy_version: PolicyVersion,
    pub(crate) id: Value,
}

/// The version of the policies as of some commit, and whether it is still current.
#[derive(Clone, Debug)]
pub struct PolicyVersion {
    number: u64,
    latest: Arc<AtomicU64>,
}

impl PolicyVersion {
    /// Returns the current version. A change of the policies increments the number before the
    /// change becomes visible.
    #[must_use]
    pub fn latest(latest: &Arc<AtomicU64>) -> PolicyVersion {
        PolicyVersion { number: latest.load(Ordering::SeqCst), latest: Arc::clone(latest) }
    }

    /// `true` if the version is still current.
    #[must_use]
    pub fn is_latest(&self) -> bool {
        self.latest.load(Ordering::SeqCst) == self.number
    }
}

impl PartialEq for PolicyVersion {
    fn eq(&self, other: &PolicyVersion) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.latest, &other.latest)
    }
}

impl Eq for PolicyVersion {}

/// Returns the SELECT of some columns of a table's rows, restricted to a scope and a condition.
#[must_use]
pub fn select_of(
    table: &str,
    columns: &[&str],
    within: Option<&ScopeMembership<'_>>,
    condition: Option<&str>,
) -> String {
    let shown: Vec<String> =
        columns.iter().map(|column| format!("o0.{}", quoted(column))).collect();
    let mut sql = format!("SELECT {} FROM ", shown.join(", "));
    match condition {
        // A subquery of its own, because the condition names the table's columns.
        Some(condition) => {
            let condition = match within.filter(|within| within.is_tested_first) {
                // CASE, because SQLite tests a condition on one table before it looks its owners
                // up.
                Some(within) => {
                    format!("CASE WHEN {} THEN ({condition}\n) END", within.condition_on(table))
                }
                None => format!("({condition}\n)"),
            };
            sql.push_str(&format!("(SELECT * FROM {} WHERE {condition}) AS o0", quoted(table)));
        }
        None => sql.push_str(&format!("{} AS o0", quoted(table))),
    }
    let Some(ScopeMembership { owners, column, keys, .. }) = within else { return sql };
    for (at, owner) in owners.iter().enumerate() {
        let OwnerReference { column, table, key } = owner;
        let table = quoted(table);
        let column = quoted(column);
        let key = quoted(key);
        let next = at + 1;
        sql.push_str(&format!(" JOIN {table} AS o{next} ON o{next}.{key} = o{at}.{column}"));
    }
    let scope = format!("o{}.{}", owners.len(), quoted(column));
    for (at, key) in keys.iter().enumerate() {
        sql.push_str(if at > 0 { " AND " } else { " WHERE " });
        sql.push_str(&is_in_scope(&scope, key));
    }
    sql
}

/// Returns the condition that a scope has the caller's value for a key: a text, not an array with
/// the same spelling.
fn is_in_scope(scope: &str, key: &str) -> String {
    let path = scope_path(key);
    let parameter = scope_parameter(key);
    format!("json_extract({scope}, {path}) = :{parameter} AND json_type({scope}, {path}) = 'text'")
}

/// Returns the path of a key within a scope, as a text of SQL. Any key is possible: it is written
/// as in JSON.
#[must_use]
pub fn scope_path(key: &str) -> String {
    let name = serde_json::Value::from(key).to_string();
    format!("'$.{}'", name.replace('\'', "''"))
}

/// Returns the name of the parameter with the caller's value for a key of its scope. A key that a
/// parameter of SQL cannot have in its name is written in hexadecimal after `$`, which no other key
/// has.
#[must_use]
pub fn scope_parameter(key: &str) -> String {
    if key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return format!("scope_{key}");
    }
    let digits = key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("scope_${digits}")
}

/// The requirement that a row belongs to a scope, directly or through its owners.
#[derive(Clone, Debug)]
pub struct ScopeMembership<'a> {
    /// The owner of the row, its owner, and so on.
    pub owners: Vec<OwnerReference>,
    /// The column of the last owner that holds the scope.
    pub column: &'static str,
    /// The scope keys whose values must equal the caller's.
    pub keys: &'a [&'a str],
    /// Whether it is tested before the condition of the rows: a condition with a subquery may read
    /// many rows, and would do so for each row of other scopes.
    pub is_tested_first: bool,
}

impl ScopeMembership<'_> {
    /// Returns the requirement as a condition on a row of a table, which it names without an alias.
    fn condition_on(&self, table: &str) -> String {
        let Some((first, others)) = self.owners.split_first() else {
            return self.condition_on_scope(&qualified(table, self.column));
        };
        let mut sql = format!("EXISTS (SELECT 1 FROM {} AS s1", quoted(first.table));
        for (at, owner) in others.iter().enumerate() {
            let OwnerReference { column, table, key } = owner;
            let this = at + 1;
            let next = at + 2;
            let table = quoted(table);
            let column = quoted(column);
            let key = quoted(key);
            sql.push_str(&format!(" JOIN {table} AS s{next} ON s{next}.{key} = s{this}.{column}"));
        }
        let last_owner = format!("s{}.{}", self.owners.len(), quoted(self.column));
        let scope = self.condition_on_scope(&last_owner);
        let link = format!("s1.{} = {}", quoted(first.key), qualified(table, first.column));
        sql.push_str(&format!(" WHERE {link} AND {scope})"));
        sql
    }

    /// Returns the requirement as a condition on the column that holds the scope.
    fn condition_on_scope(&self, column: &str) -> String {
        let conditions: Vec<String> =
            self.keys.iter().map(|key| is_in_scope(column, key)).collect();
        conditions.join(" AND ")
    }
}

/// Returns `"table"."column"`.
fn qualified(table: &str, column: &str) -> String {
    format!("{}.{}", quoted(table), quoted(column))
}

/// An owning row that a column refers to.
#[derive(Clone, Copy, Debug)]
pub struct OwnerReference {
    /// The referencing column.
    pub column: &'static str,
    /// The owner's table.
    pub table: &'static str,
    /// The key of that table.
    pub key: &'static str,
}
