//! Visibility: computes what each class of callers may see of every table, from the stored policies
//! and the declarations of modules.
//!
//! The writer replaces the set of policies in the transaction that changes them, before
//! the commit. A reader checks, after it has opened its snapshot, that the policies that it
//! uses are the latest: then the snapshot contains no later ones ([`PolicyVersion`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_live::{
    AuthorizedViews, Condition, OwnerReference, PolicyVersion, QueryPrincipal, ScopeMembership,
    select_of,
};
use abide_schema::reducer::{ColumnCopies, PolicyTables, RowVisibility};
use abide_schema::{Caller, TableSpec};
use abide_store::{Layout, StoreError, Writer};
use serde_json::Value as JsonValue;

use crate::access::policy_rows::{
    self, EVERY_ROLE, PolicyRows, hidden_columns, is_restricted, join_conditions, permitted_rows,
    policies_for_role, values_in_both_scopes,
};
use crate::access::row_owners::{OwnerPath, RowOwners};
use crate::results::TableColumns;

const EVENTS: &str = "events";
/// Also sees events without a session, if it has no scope: administrative calls are there.
const AUDITOR: &str = "auditor";

/// Maximum number of cached classes of callers. More means a deployment that generates scope keys.
const CLASSES: usize = 1_000;

/// Maximum number of cached callers.
const PRINCIPALS: usize = 1_000;

/// The inputs of visibility: a role, and the keys of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PrincipalClass {
    role: String,
    keys: Vec<String>,
    /// Whether the caller had another scope before; see [`Caller::own_scope`].
    is_narrowed: bool,
}

impl PrincipalClass {
    /// Returns the class of a caller; `None` for an unrestricted one.
    fn from_caller(caller: &Caller) -> Option<PrincipalClass> {
        is_restricted(caller).then(|| PrincipalClass {
            role: caller.role().to_owned(),
            keys: caller.scope().keys().cloned().collect(),
            is_narrowed: caller.own_scope().is_some(),
        })
    }
}

/// The visible part of a table, apart from the scope.
#[derive(Debug)]
struct VisibleColumns {
    columns: Vec<&'static str>,
    condition: Option<String>,
}

/// The policies in force.
#[derive(Debug)]
pub(crate) struct Policies {
    latest: Arc<AtomicU64>,
    tables: Vec<&'static TableSpec>,
    visibility: HashMap<&'static str, RowVisibility>,
    /// Reducers, and members of their arguments and results that are hidden in the log.
    secrets: Vec<(&'static str, &'static str)>,
    /// How the rows of each table lead to a scope.
    owners: HashMap<&'static str, OwnerPath>,
    /// Where policies are stored; `None` if no module stores any.
    policy_tables: Option<PolicyTables>,
    copies: Vec<ColumnCopies>,
    in_force: Mutex<ActivePolicies>,
}

#[derive(Debug, Default)]
struct ActivePolicies {
    rows: Arc<PolicyRows>,
    authorized_views: HashMap<PrincipalClass, Arc<AuthorizedViews>>,
    /// Recent callers, by id.
    principals: HashMap<String, (Caller, QueryPrincipal)>,
}

impl Policies {
    /// Loads the policies of a file.
    pub(crate) fn load(layout: &Layout, writer: &Writer) -> Result<Arc<Policies>, StoreError> {
        let declared = layout
            .modules
            .iter()
            .flat_map(|module| &module.visibility)
            .map(|(table, visibility)| (table.name, *visibility));
        let tables: Vec<&'static TableSpec> = layout.tables().collect();
        let row_owners = RowOwners::new(&tables);
        let owned = tables.iter().filter_map(|table| Some((table.name, row_owners.path(table)?)));
        let mut owners: HashMap<_, _> = owned.collect();
        let sessions = layout.modules.iter().find_map(|module| module.sessions);
        if let Some(sessions) = sessions
            && let Some(OwnerPath { references, scope_column }) = owners.get(sessions.name).cloned()
        {
            let table = sessions.name;
            let key = sessions.columns[sessions.key[0]].name;
            let session = OwnerReference { column: "session_id", table, key };
            let references = [vec![session], references].concat();
            owners.insert(EVENTS, OwnerPath { references, scope_column });
        }
        let events = (EVENTS, RowVisibility::InScope);
        let policies = Arc::new(Policies {
            latest: Arc::default(),
            tables: layout.live_tables(),
            visibility: declared.chain([events]).collect(),
            secrets: layout.modules.iter().flat_map(|module| module.secrets.clone()).collect(),
            owners,
            policy_tables: layout.modules.iter().find_map(|module| module.policy_tables),
            copies: layout.modules.iter().flat_map(|module| module.copies.clone()).collect(),
            in_force: Mutex::default(),
        });
        policies.renew(writer)?;
        Ok(policies)
    }

    /// Reloads the rows in the open transaction. Returns those in force before.
    fn renew(&self, writer: &Writer) -> Result<Arc<PolicyRows>, StoreError> {
        let rows = match &self.policy_tables {
            Some(from) => policy_rows::read_policies(writer, from)?,
            None => PolicyRows::new(),
        };
        Ok(self.replace(Arc::new(rows)))
    }

    /// `true` if a change of this table changes the policies.
    fn are_stored_in(&self, table: &TableSpec) -> bool {
        self.policy_tables.is_some_and(|tables| tables.policies.name == table.name)
    }

    fn replace(&self, rows: Arc<PolicyRows>) -> Arc<PolicyRows> {
        let mut in_force = self.lock();
        self.latest.fetch_add(1, Ordering::SeqCst);
        let fresh = ActivePolicies { rows, ..ActivePolicies::default() };
        std::mem::replace(&mut *in_force, fresh).rows
    }

    /// Returns the viewer of a restricted caller; `None` for an unrestricted one.
    pub(crate) fn principal(&self, caller: &Caller) -> Option<QueryPrincipal> {
        if !is_restricted(caller) {
            return None;
        }
        let mut in_force = self.lock();
        if let Some((known, principal)) = in_force.principals.get(caller.principal())
            && known == caller
        {
            return Some(principal.clone());
        }
        // Under the lock, so that both are consistent.
        let class = PrincipalClass::from_caller(caller)?;
        let policy_version = PolicyVersion::latest(&self.latest);
        let authorized_views = match in_force.authorized_views.get(&class) {
            Some(authorized_views) => Arc::clone(authorized_views),
            None => {
                let authorized_views = Arc::new(self.authorized_views(&in_force.rows, &class));
                if in_force.authorized_views.len() >= CLASSES {
                    in_force.authorized_views.clear();
                }
                in_force.authorized_views.insert(class, Arc::clone(&authorized_views));
                authorized_views
            }
        };
        let principal =
            QueryPrincipal::new(authorized_views, values_in_both_scopes(caller), policy_version);
        if in_force.principals.len() >= PRINCIPALS {
            in_force.principals.clear();
        }
        in_force
            .principals
            .insert(caller.principal().to_owned(), (caller.clone(), principal.clone()));
        Some(principal)
    }

    /// Visibility for callers of one class.
    fn authorized_views(&self, rows: &PolicyRows, class: &PrincipalClass) -> AuthorizedViews {
        let tables = self.tables.iter().filter_map(|table| {
            let select = self.select(rows, class, table)?;
            Some((table.name.to_owned(), select))
        });
        AuthorizedViews::new(tables)
    }

    /// Returns what such callers see of a table; `None` if they see nothing.
    fn visible_columns(
        &self,
        rows: &PolicyRows,
        class: &PrincipalClass,
        table: &TableSpec,
    ) -> Option<VisibleColumns> {
        let has_policy = policies_for_role(rows, table, &class.role).next().is_some();
        let by_policies = hidden_columns(rows, &self.copies, table, &class.role);
        let mut hidden: Vec<&str> = by_policies.iter().map(String::as_str).collect();
        let mut conditions = Vec::new();
        match self.visibility.get(table.name).copied().unwrap_or(RowVisibility::Closed) {
            RowVisibility::Closed if !has_policy => return None,
            RowVisibility::Closed | RowVisibility::Open | RowVisibility::InScope => {}
            RowVisibility::InScopeExcept(columns) => hidden.extend(columns),
            RowVisibility::Where(condition, columns) => {
                conditions.push(condition.to_owned());
                hidden.extend(columns);
            }
        }
        if table.name == EVENTS {
            hidden.extend(hidden_log_columns(rows, class, has_policy));
            if class.keys.is_empty() && class.role != AUDITOR {
                conditions.push("session_id IS NOT NULL".to_owned());
            }
        }
        // The declared conditions, and those of the policies of the table and of its owners.
        let owners = self.owners.get(table.name).map_or(&[][..], |path| &path.references);
        conditions.extend(permitted_rows(rows, &self.tables, owners, table, &class.role));
        let columns: Vec<&'static str> = table
            .columns
            .iter()
            .map(|column| column.name)
            .filter(|name| !hidden.iter().any(|hidden| hidden.eq_ignore_ascii_case(name)))
            .collect();
        let conditions: Vec<&str> = conditions.iter().map(String::as_str).collect();
        let condition = (!conditions.is_empty()).then(|| {
            let condition = join_conditions(&conditions, " AND ");
            if class.is_narrowed { in_both_scopes(&condition) } else { condition }
        });
        (!columns.is_empty()).then_some(VisibleColumns { columns, condition })
    }

    /// Returns the SELECT that replaces a table; `None` if such callers do not see it.
    fn select(
        &self,
        rows: &PolicyRows,
        class: &PrincipalClass,
        table: &TableSpec,
    ) -> Option<String> {
        let VisibleColumns { columns, condition } = self.visible_columns(rows, class, table)?;
        let keys: Vec<&str> = class.keys.iter().map(String::as_str).collect();
        let owned = self.owners.get(table.name).filter(|_| !keys.is_empty());
        let is_events = table.name == EVENTS && !keys.is_empty();
        if owned.is_none() && is_events {
            return None;
        }
        let within = owned.map(|path| ScopeMembership {
            owners: path.references.clone(),
            column: path.scope_column,
            keys: &keys,
            is_tested_first: self.has_subquery(rows, class, table),
        });
        let select = select_of(table.name, &columns, within.as_ref(), condition.as_deref());
        // Only auditors see events without a session, including those of reducers with secrets.
        let is_whole_log = table.name == EVENTS && keys.is_empty() && class.role == AUDITOR;
        Some(if is_whole_log { self.without_secrets(&columns, &select) } else { select })
    }

    /// `true` if a policy of the table, or of the table that owns its rows, has a subquery.
    fn has_subquery(&self, rows: &PolicyRows, class: &PrincipalClass, table: &TableSpec) -> bool {
        let root = self.owners.get(table.name).and_then(|path| path.references.last());
        let owner = root.and_then(|root| self.tables.iter().find(|table| table.name == root.table));
        [Some(table), owner.copied()]
            .into_iter()
            .flatten()
            .flat_map(|table| policies_for_role(rows, table, &class.role))
            .any(|policy| {
                let condition = policy.condition.as_deref().unwrap_or_default();
                condition.to_ascii_lowercase().contains("select")
            })
    }

    /// Returns the SELECT that replaces the log, without secret members of arguments and results.
    fn without_secrets(&self, columns: &[&str], select: &str) -> String {
        let mut expressions: Vec<String> =
            columns.iter().map(|name| format!("\"{name}\"")).collect();
        for (at, name) in columns.iter().enumerate() {
            if !["arguments", "outcome"].contains(name) || self.secrets.is_empty() {
                continue;
            }
            let mut paths = BTreeMap::<&str, String>::new();
            for (reducer, member) in &self.secrets {
                paths.entry(reducer).or_default().push_str(&format!("'$.\"{member}\"', "));
            }
            let cases = paths.iter().map(|(reducer, paths)| {
                // A result that contains a mark of the log format is stored as a text under "$result".
                format!(
                    " WHEN reducer = '{reducer}' \
                     THEN json_remove(\"{name}\", {paths}'$.\"$result\"')"
                )
            });
            let cases: String = cases.collect();
            expressions[at] = format!("CASE{cases} ELSE \"{name}\" END AS \"{name}\"");
        }
        format!("SELECT {} FROM ({select})", expressions.join(", "))
    }

    /// Returns the tables and columns that a caller may see, for `/v1/schema`.
    pub(crate) fn describe(&self, caller: &Caller) -> Vec<JsonValue> {
        let Some(class) = PrincipalClass::from_caller(caller) else {
            return self.tables.iter().map(|table| table.describe()).collect();
        };
        let rows = Arc::clone(&self.lock().rows);
        self.tables
            .iter()
            .filter_map(|table| {
                let visible = self.visible_columns(&rows, &class, table)?;
                self.select(&rows, &class, table)?;
                Some(table.describe_columns(&visible.columns))
            })
            .collect()
    }

    /// Returns the visible columns of a table that are its key or JSON; `None` if the caller may not see the table.
    pub(crate) fn columns_of(&self, caller: &Caller, name: &str) -> Option<TableColumns> {
        let table = self.tables.iter().find(|table| table.name == name)?;
        let key = table.key.iter().map(|at| table.columns[*at].name).collect();
        let json = table.columns.iter().filter(|column| column.json);
        let mut columns = TableColumns { key, json: json.map(|column| column.name).collect() };
        if let Some(class) = PrincipalClass::from_caller(caller) {
            let rows = Arc::clone(&self.lock().rows);
            let visible = self.visible_columns(&rows, &class, table)?;
            self.select(&rows, &class, table)?;
            columns.key.retain(|name| visible.columns.contains(name));
            columns.json.retain(|name| visible.columns.contains(name));
        }
        Some(columns)
    }

    fn lock(&self) -> MutexGuard<'_, ActivePolicies> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the hidden columns of the log for callers of one class. `authority` is for callers who manage permissions.
/// Old row images are hidden from a role that a policy restricts, unless a policy of the log permits them. Hashes and
/// salts cover all columns of all events, so only an auditor without scope and without restricting policies sees them.
fn hidden_log_columns(
    rows: &PolicyRows,
    class: &PrincipalClass,
    has_own_policy: bool,
) -> Vec<&'static str> {
    let mut hidden = Vec::new();
    if class.role != AUDITOR && class.role != Caller::ADMIN {
        hidden.push("authority");
    }
    let class_policies =
        rows.iter().filter(|((_, role), _)| role == EVERY_ROLE || *role == class.role);
    let has_restriction = class_policies
        .flat_map(|(_, policies)| policies)
        .any(|policy| policy.condition.is_some() || !policy.hidden.is_empty());
    if has_restriction && !has_own_policy {
        hidden.extend(["arguments", "outcome"]);
    }
    if has_restriction || class.role != AUDITOR || !class.keys.is_empty() {
        hidden.extend(["prev_hash", "hash", "salt", "rows_hash"]);
    }
    hidden
}

/// Requires a condition in the scope of a narrowed caller, and in its previous one. An invalid condition
/// permits nothing.
fn in_both_scopes(condition: &str) -> String {
    match Condition::parse(condition) {
        Ok(parsed) if parsed.parameters().is_empty() => condition.to_owned(),
        Ok(parsed) => join_conditions(&[condition, &parsed.sql_in_own_scope()], " AND "),
        Err(_) => "0".to_owned(),
    }
}

/// The writer's policies: those of the open transaction, and the ones they replaced.
#[derive(Debug)]
pub(crate) struct TransactionPolicies {
    policies: Arc<Policies>,
    /// The policies in force before the open transaction changed them.
    replaced: Option<Arc<PolicyRows>>,
}

impl TransactionPolicies {
    pub(crate) fn new(policies: &Arc<Policies>) -> TransactionPolicies {
        TransactionPolicies { policies: Arc::clone(policies), replaced: None }
    }

    /// `true` if a change of this table changes the policies.
    pub(crate) fn are_stored_in(&self, table: &TableSpec) -> bool {
        self.policies.are_stored_in(table)
    }

    /// Puts the policies of the open transaction in force.
    pub(crate) fn renew(&mut self, writer: &Writer) -> Result<(), StoreError> {
        self.replaced = Some(self.policies.renew(writer)?);
        Ok(())
    }

    /// `true` if the open transaction changed them.
    pub(crate) fn are_renewed(&self) -> bool {
        self.replaced.is_some()
    }

    /// The transaction was committed.
    pub(crate) fn keep(&mut self) {
        self.replaced = None;
    }

    /// The transaction was rolled back.
    pub(crate) fn put_back(&mut self) {
        if let Some(rows) = self.replaced.take() {
            self.policies.replace(rows);
        }
    }
}
