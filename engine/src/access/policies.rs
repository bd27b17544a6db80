//! Visibility: computes what each kind of caller may see of every table, from the rows of `policies`
//! and the declarations of modules.
//!
//! The writer replaces the set of policies in the transaction that changes them, before
//! the commit. A reader checks, after it has opened its snapshot, that the policies that it
//! uses are the latest: then the snapshot contains no later ones ([`PolicyVersion`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_live::{
    AuthorizedViews, Binding, Condition, OWN, OwnerReference, Planner, PolicyVersion,
    QueryPrincipal, ScopeMembership, check_condition, select_of,
};
use abide_schema::reducer::{ColumnCopies, RowVisibility};
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::work::{PolicyChecker, Verdict};
use abide_schema::{Caller, Code, Refusal, Scope, Seq, TableSpec, Value, nearest};
use abide_store::{Layout, Snapshot, StoreError, Writer};
use serde_json::{Map, Value as JsonValue, json};

use crate::access::scope_rules::ScopeRules;
use crate::commit::registry;
use crate::queries::explain::PlanningDb;
use crate::subscriptions::resume::changed_since;

/// The table of policies, if a module declares it.
pub(crate) const TABLE: &str = "policies";

const EVENTS: &str = "events";
const SESSIONS: &str = "sessions";

/// The table of identities, if a module declares it.
const IDENTITIES: &str = "identities";
const ROLES: &str = "roles";

/// The role name that means all roles.
const EVERY_ROLE: &str = "*";

/// Also sees events without a session, if it has no scope: administrative calls are there.
const AUDITOR: &str = "auditor";

/// Maximum number of cached caller kinds. More means a deployment that generates scope keys.
const KINDS: usize = 1_000;

/// Maximum number of cached callers.
const VIEWERS: usize = 1_000;

const ROWS: &str = "SELECT table_name, role, condition, hidden FROM main.policies
  ORDER BY table_name, role, name";

/// A row of `policies`.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) condition: Option<String>,
    pub(crate) hidden: Vec<String>,
}

/// The policies by table and role.
pub(crate) type PolicyRows = BTreeMap<(String, String), Vec<Policy>>;

/// Reads the policies in the open transaction.
pub(crate) fn read_rows(writer: &Writer) -> Result<PolicyRows, StoreError> {
    let mut rows = PolicyRows::new();
    writer.run(ROWS, &[], &mut |row| {
        let [Value::Text(table), Value::Text(role), condition, hidden] = row else { return };
        let text = |value: &Value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        };
        let hidden = text(hidden).and_then(|text| serde_json::from_str(&text).ok());
        let policy = Policy { condition: text(condition), hidden: hidden.unwrap_or_default() };
        rows.entry((table.to_ascii_lowercase(), role.clone())).or_default().push(policy);
    })?;
    Ok(rows)
}

/// The policies of a table for a role: those of every role, and its own.
pub(crate) fn of_role<'a>(
    rows: &'a PolicyRows,
    table: &TableSpec,
    role: &'a str,
) -> impl Iterator<Item = &'a Policy> + Clone {
    let table = table.name.to_ascii_lowercase();
    let named = move |role: &str| rows.get(&(table.clone(), role.to_owned()));
    [EVERY_ROLE, role].into_iter().filter_map(named).flatten()
}

/// The columns of a table that the policies of a role hide: by name, or as a copy of another hidden
/// column.
pub(crate) fn hidden_of(
    rows: &PolicyRows,
    copies: &[ColumnCopies],
    table: &TableSpec,
    role: &str,
) -> Vec<String> {
    let of_role = rows.iter().filter(|((_, of), _)| of == EVERY_ROLE || of == role);
    let mut all: Vec<(String, String)> = Vec::new();
    for ((table, _), policies) in of_role {
        let names = policies.iter().flat_map(|policy| &policy.hidden);
        all.extend(names.map(|name| (table.clone(), name.to_ascii_lowercase())));
    }
    let mut next = 0;
    while let Some((table, name)) = all.get(next).cloned() {
        let of_it = copies.iter().filter(|((of, column), _)| *of == table && *column == name);
        for (table, name) in of_it.flat_map(|(_, into)| *into) {
            let copy = ((*table).to_owned(), (*name).to_owned());
            if !all.contains(&copy) {
                all.push(copy);
            }
        }
        next += 1;
    }
    all.retain(|(of, _)| of.eq_ignore_ascii_case(table.name));
    all.into_iter().map(|(_, name)| name).collect()
}

/// Which rows of a table the policies of a role permit: those of the table, and of the table that owns
/// its rows, as sessions own messages. `None` if they permit all.
pub(crate) fn permitted_rows(
    rows: &PolicyRows,
    tables: &[&'static TableSpec],
    owners: &[OwnerReference],
    table: &TableSpec,
    role: &str,
) -> Option<String> {
    let own = permitted(of_role(rows, table, role));
    let root = owners.last().and_then(|root| tables.iter().find(|spec| spec.name == root.table));
    let owned = root.and_then(|root| permitted(of_role(rows, root, role))).map(|condition| {
        let children = [table.name].into_iter().chain(owners.iter().map(|owner| owner.table));
        let links: Vec<(&str, &OwnerReference)> = children.zip(owners).collect();
        links.into_iter().rev().fold(condition, |condition, (child, owner)| {
            let OwnerReference { column, table: parent, key } = owner;
            // Rows without a parent, as some events are, are not hidden.
            format!(
                "\"{child}\".\"{column}\" IS NULL OR EXISTS (SELECT 1 FROM \"{parent}\" \
                 WHERE \"{parent}\".\"{key}\" = \"{child}\".\"{column}\" AND ({condition}\n))"
            )
        })
    });
    let conditions: Vec<&str> = [&own, &owned].into_iter().flatten().map(String::as_str).collect();
    (!conditions.is_empty()).then(|| joined(&conditions, " AND "))
}

/// What determines visibility: a role, and the keys of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PrincipalClass {
    role: String,
    keys: Vec<String>,
    /// Whether the caller had another scope before; see [`Caller::own_scope`].
    is_narrowed: bool,
}

/// Whether a caller's visibility is restricted.
pub(crate) fn is_bounded(caller: &Caller) -> bool {
    (caller.role() != Caller::ADMIN || !caller.scope().is_empty())
        && !makes(SeededBug::SightUnbounded)
}

impl PrincipalClass {
    /// The kind of a caller; `None` for an unrestricted one.
    fn of(caller: &Caller) -> Option<PrincipalClass> {
        let keys = || caller.scope().keys().cloned().collect();
        let is_narrowed = caller.own_scope().is_some();
        is_bounded(caller).then(|| PrincipalClass {
            role: caller.role().to_owned(),
            keys: keys(),
            is_narrowed,
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
    /// The owners of each table's rows, and the scope column that they lead to.
    owners: HashMap<&'static str, (Vec<OwnerReference>, &'static str)>,
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
        let declared = layout.modules.iter().flat_map(|module| &module.visibility);
        let declared = declared.map(|(table, sight)| (table.name, *sight));
        let scope_rules = ScopeRules::new(&layout.modules);
        let owned =
            layout.tables().filter_map(|table| Some((table.name, scope_rules.owners(table)?)));
        let mut owners: HashMap<_, _> = owned.collect();
        // Events name sessions, which a module may declare.
        if let Some((of_session, column)) = owners.get(SESSIONS).cloned() {
            let session = OwnerReference { column: "session_id", table: SESSIONS, key: "id" };
            owners.insert(EVENTS, ([vec![session], of_session].concat(), column));
        }
        let events = (EVENTS, RowVisibility::InScope);
        let policies = Arc::new(Policies {
            latest: Arc::default(),
            tables: layout.live_tables(),
            visibility: declared.chain([events]).collect(),
            secrets: layout.modules.iter().flat_map(|module| module.secrets.clone()).collect(),
            owners,
            copies: layout.modules.iter().flat_map(|module| module.copies.clone()).collect(),
            in_force: Mutex::default(),
        });
        if layout.tables().any(|table| table.name == TABLE) {
            policies.renew(writer)?;
        }
        Ok(policies)
    }

    /// Reloads the rows in the open transaction. Returns those in force before.
    fn renew(&self, writer: &Writer) -> Result<Arc<PolicyRows>, StoreError> {
        Ok(self.replace(Arc::new(read_rows(writer)?)))
    }

    fn replace(&self, rows: Arc<PolicyRows>) -> Arc<PolicyRows> {
        let mut in_force = self.lock();
        self.latest.fetch_add(1, Ordering::SeqCst);
        let fresh = ActivePolicies { rows, ..ActivePolicies::default() };
        std::mem::replace(&mut *in_force, fresh).rows
    }

    /// The viewer of a restricted caller; `None` for an unrestricted one.
    pub(crate) fn principal(&self, caller: &Caller) -> Option<QueryPrincipal> {
        if !is_bounded(caller) {
            return None;
        }
        let mut in_force = self.lock();
        if let Some((known, principal)) = in_force.principals.get(caller.principal())
            && known == caller
        {
            return Some(principal.clone());
        }
        // Under the lock, so that both are consistent.
        let (kind, policy_version) =
            (PrincipalClass::of(caller)?, PolicyVersion::latest(&self.latest));
        let authorized_views = match in_force.authorized_views.get(&kind) {
            Some(authorized_views) => Arc::clone(authorized_views),
            None => {
                let authorized_views = Arc::new(self.authorized_views(&in_force.rows, &kind));
                if in_force.authorized_views.len() >= KINDS {
                    in_force.authorized_views.clear();
                }
                in_force.authorized_views.insert(kind, Arc::clone(&authorized_views));
                authorized_views
            }
        };
        let principal =
            QueryPrincipal::new(authorized_views, values_in_both_scopes(caller), policy_version);
        if in_force.principals.len() >= VIEWERS {
            in_force.principals.clear();
        }
        in_force
            .principals
            .insert(caller.principal().to_owned(), (caller.clone(), principal.clone()));
        Some(principal)
    }

    /// Visibility for callers of one kind.
    fn authorized_views(&self, rows: &PolicyRows, kind: &PrincipalClass) -> AuthorizedViews {
        let tables = self.tables.iter().filter_map(|table| {
            let select = self.select(rows, kind, table)?;
            Some((table.name.to_owned(), select))
        });
        AuthorizedViews::new(tables)
    }

    /// A table as visible to such callers; `None` if it is hidden.
    fn shown(
        &self,
        rows: &PolicyRows,
        kind: &PrincipalClass,
        table: &TableSpec,
    ) -> Option<VisibleColumns> {
        let policies = || of_role(rows, table, &kind.role);
        let by_policies = hidden_of(rows, &self.copies, table, &kind.role);
        let mut hidden: Vec<&str> = by_policies.iter().map(String::as_str).collect();
        let mut conditions = Vec::new();
        match self.visibility.get(table.name).copied().unwrap_or(RowVisibility::Closed) {
            RowVisibility::Closed if policies().next().is_none() => return None,
            RowVisibility::Closed | RowVisibility::Open | RowVisibility::InScope => {}
            RowVisibility::InScopeExcept(columns) => hidden.extend(columns),
            RowVisibility::Where(condition, columns) => {
                conditions.push(condition.to_owned());
                hidden.extend(columns);
            }
        }
        if table.name == EVENTS {
            hidden.extend(hidden_of_log(rows, kind, policies().next().is_some()));
            if kind.keys.is_empty() && kind.role != AUDITOR {
                conditions.push("session_id IS NOT NULL".to_owned());
            }
        }
        // The declared conditions, and those of the policies of the table and of its owners.
        let owners = self.owners.get(table.name).map_or(&[][..], |(owners, _)| owners);
        conditions.extend(permitted_rows(rows, &self.tables, owners, table, &kind.role));
        let columns = table.columns.iter().map(|column| column.name);
        let is_shown = |name: &&str| !hidden.iter().any(|hidden| hidden.eq_ignore_ascii_case(name));
        let columns: Vec<&'static str> = columns.filter(is_shown).collect();
        let conditions: Vec<&str> = conditions.iter().map(String::as_str).collect();
        let condition = (!conditions.is_empty()).then(|| joined(&conditions, " AND "));
        let condition = match condition {
            Some(condition) if kind.is_narrowed => Some(in_both_scopes(&condition)),
            condition => condition,
        };
        (!columns.is_empty()).then_some(VisibleColumns { columns, condition })
    }

    /// The SELECT that replaces a table.
    fn select(
        &self,
        rows: &PolicyRows,
        kind: &PrincipalClass,
        table: &TableSpec,
    ) -> Option<String> {
        let VisibleColumns { columns, condition } = self.shown(rows, kind, table)?;
        let keys: Vec<&str> = kind.keys.iter().map(String::as_str).collect();
        let owned = self.owners.get(table.name).filter(|_| !keys.is_empty());
        // A key that cannot be named in SQL matches no row.
        let named = |key: &&str| key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let is_events = table.name == EVENTS && !keys.is_empty();
        if (owned.is_some() && !keys.iter().all(named)) || (owned.is_none() && is_events) {
            return None;
        }
        let within = owned.map(|(owners, column)| ScopeMembership {
            owners: owners.clone(),
            column,
            keys: &keys,
        });
        let select = select_of(table.name, &columns, within.as_ref(), condition.as_deref());
        // Only auditors see events without a session, including those of reducers with secrets.
        let is_whole_log = table.name == EVENTS && keys.is_empty() && kind.role == AUDITOR;
        Some(if is_whole_log { self.without_secrets(&columns, &select) } else { select })
    }

    /// The SELECT that replaces the log, without secret members of arguments and results.
    fn without_secrets(&self, columns: &[&str], select: &str) -> String {
        let mut shown: Vec<String> = columns.iter().map(|name| format!("\"{name}\"")).collect();
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
            shown[at] = format!("CASE{cases} ELSE \"{name}\" END AS \"{name}\"");
        }
        format!("SELECT {} FROM ({select})", shown.join(", "))
    }

    /// The tables and columns that a caller may see, for `/v1/schema`.
    pub(crate) fn describe(&self, caller: &Caller) -> Vec<JsonValue> {
        let Some(kind) = PrincipalClass::of(caller) else {
            return self.tables.iter().map(|table| table.describe()).collect();
        };
        let rows = Arc::clone(&self.lock().rows);
        let tables = self.tables.iter().filter_map(|table| {
            let shown = self.shown(&rows, &kind, table)?;
            self.select(&rows, &kind, table)?;
            Some(table.describe_columns(&shown.columns))
        });
        tables.collect()
    }

    fn lock(&self) -> MutexGuard<'_, ActivePolicies> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hidden columns of the log for callers of one kind. `authority` is for callers who manage permissions. Old
/// row images are hidden from a role that a policy restricts, unless a policy of the log permits them. Hashes
/// and salts cover all columns of all events, so only an auditor without scope and without
/// restricting policies sees them.
fn hidden_of_log(rows: &PolicyRows, kind: &PrincipalClass, is_said: bool) -> Vec<&'static str> {
    let mut hidden = Vec::new();
    if kind.role != AUDITOR && kind.role != Caller::ADMIN {
        hidden.push("authority");
    }
    let narrows = |policy: &Policy| policy.condition.is_some() || !policy.hidden.is_empty();
    let of_kind = rows.iter().filter(|((_, role), _)| role == EVERY_ROLE || *role == kind.role);
    let is_narrowed = of_kind.flat_map(|(_, policies)| policies).any(narrows);
    if is_narrowed && !is_said {
        hidden.extend(["arguments", "outcome"]);
    }
    if is_narrowed || kind.role != AUDITOR || !kind.keys.is_empty() {
        hidden.extend(["prev_hash", "hash", "salt"]);
    }
    hidden
}

/// The union of the conditions of all policies of one table and role; `None` if they permit all rows, as one policy
/// without a condition does.
pub(crate) fn permitted<'a>(policies: impl Iterator<Item = &'a Policy>) -> Option<String> {
    let conditions: Option<Vec<&str>> =
        policies.map(|policy| policy.condition.as_deref()).collect();
    conditions.filter(|conditions| !conditions.is_empty()).map(|all| joined(&all, " OR "))
}

/// Requires a condition in the scope of a narrowed caller, and in its previous one. An invalid condition
/// permits nothing.
fn in_both_scopes(condition: &str) -> String {
    match Condition::parse(condition) {
        Ok(parsed) if parsed.parameters().is_empty() => condition.to_owned(),
        Ok(parsed) => joined(&[condition, &parsed.of_own_scope()], " AND "),
        Err(_) => "0".to_owned(),
    }
}

/// Joins conditions; a trailing comment cannot affect the next one.
fn joined(conditions: &[&str], by: &str) -> String {
    let conditions: Vec<String> =
        conditions.iter().map(|condition| format!("({condition}\n)")).collect();
    conditions.join(by)
}

/// The writer's policies: those of the open transaction, and the ones they replaced.
#[derive(Debug)]
pub(crate) struct TransactionPolicies {
    policies: Arc<Policies>,
    /// Those in force before the open transaction changed them.
    replaced: Option<Arc<PolicyRows>>,
}

impl TransactionPolicies {
    pub(crate) fn new(policies: &Arc<Policies>) -> TransactionPolicies {
        TransactionPolicies { policies: Arc::clone(policies), replaced: None }
    }

    /// Puts the policies of the open transaction in force.
    pub(crate) fn renew(&mut self, writer: &Writer) -> Result<(), StoreError> {
        self.replaced = Some(self.policies.renew(writer)?);
        Ok(())
    }

    /// Whether the open transaction changed them.
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

/// The values that the replacing SQL may name, for both scopes.
fn values_in_both_scopes(caller: &Caller) -> BTreeMap<String, Value> {
    let mut values = values(caller, caller.scope());
    if let Some(own_scope) = caller.own_scope() {
        let own = self::values(caller, own_scope);
        values.extend(own.into_iter().map(|(name, value)| (format!("{OWN}{name}"), value)));
    }
    values
}

/// The values that conditions may name, for a caller with this scope.
pub(crate) fn values(caller: &Caller, scope: &Scope) -> BTreeMap<String, Value> {
    let text = |text: &str| Value::Text(text.to_owned());
    let capabilities: Vec<&String> = caller.capabilities().iter().collect();
    let own = [
        ("caller_id", text(caller.id())),
        ("caller_role", text(caller.role())),
        ("caller_scope", Value::Text(json!(scope).to_string())),
        ("caller_capabilities", Value::Text(json!(capabilities).to_string())),
    ];
    let scope = scope.iter().map(|(key, value)| (format!("scope_{key}"), text(value)));
    own.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(scope).collect()
}

const OUTDATED: &str = "visibility changed meanwhile";

/// The internal refusal for a reader whose policies are outdated: it must start
/// again. Callers never see it.
pub(crate) fn outdated() -> Refusal {
    Refusal::new(Code::Internal, OUTDATED)
}

/// Whether it is that refusal.
pub(crate) fn is_outdated(refusal: &Refusal) -> bool {
    refusal.code == Code::Internal && refusal.detail == OUTDATED
}

/// Whether a client with a result as of `from` may have it under other policies.
pub(crate) fn may_have_changed(
    state: &Snapshot<'_>,
    tables: &[&'static TableSpec],
    binding: &Binding,
    from: Seq,
) -> Result<bool, Refusal> {
    let Some(caller) = binding.asked_by() else { return Ok(false) };
    let named = |name: &str| tables.iter().find(|table| table.name == name).copied();
    for table in [TABLE, ROLES].into_iter().filter_map(named) {
        if changed_since(state, table, None, from)? {
            return Ok(true);
        }
    }
    named(IDENTITIES).map_or(Ok(false), |table| changed_since(state, table, Some(caller), from))
}

/// Validates a new policy.
#[derive(Debug)]
pub(crate) struct PolicyValidator {
    tables: Vec<&'static TableSpec>,
    reducers: Vec<&'static str>,
    planner: Planner,
    planning_db: Arc<PlanningDb>,
}

impl PolicyValidator {
    pub(crate) fn new(
        tables: Vec<&'static TableSpec>,
        reducers: Vec<&'static str>,
        planner: Planner,
        planning_db: Arc<PlanningDb>,
    ) -> PolicyValidator {
        PolicyValidator { tables, reducers, planner, planning_db }
    }

    /// Whether a role can name these reducers.
    pub(crate) fn check_reducer_names(&self, names: &BTreeSet<String>) -> Result<(), Refusal> {
        let known = |name: &&String| self.reducers.contains(&name.as_str());
        match names.iter().find(|name| !known(name)) {
            Some(unknown) => Err(registry::unknown(unknown, self.reducers.iter().copied())),
            None => Ok(()),
        }
    }
}

impl PolicyChecker for PolicyValidator {
    /// Whether a policy is valid: its table and columns exist, and its condition can be live and can be evaluated.
    fn check(&self, table: &str, condition: Option<&str>, hidden: &[String]) -> Verdict {
        let bad = |detail: String| Refusal::new(Code::BadArguments, detail);
        let spec = self.tables.iter().find(|spec| spec.name == table).ok_or_else(|| {
            let refusal = bad(format!("there is no table {table}"));
            match nearest(table, self.tables.iter().map(|spec| spec.name)) {
                Some(name) => refusal.hint(format!("did you mean {name}?")),
                None => refusal.hint("GET /v1/schema lists the tables"),
            }
        })?;
        if let Some(missing) = hidden.iter().find(|name| spec.column(name).is_none()) {
            let columns: Vec<&str> = spec.columns.iter().map(|column| column.name).collect();
            return Err(bad(format!("table {table} has no column {missing}"))
                .hint(format!("its columns are {}", columns.join(", "))));
        }
        if spec.columns.len() == hidden.len() {
            return Err(bad("every column would be hidden".to_owned())
                .hint("drop the table's policies; then only an admin sees it"));
        }
        let Some(condition) = condition else { return Ok(()) };
        check_condition(condition)?;
        let sql = format!("SELECT * FROM \"{table}\" WHERE ({condition}\n)");
        let binding = self.planner.bind_some(&sql, &Map::new(), None).map_err(of_condition)?;
        self.planning_db.check_plan(&binding).map_err(of_condition)?;
        self.planning_db.try_out(&binding).map_err(of_condition)
    }
}

/// Adjusts the refusal of a condition. A condition becomes a part of live queries, so the hint about one-shot
/// queries does not apply.
fn of_condition(refusal: Refusal) -> Refusal {
    if refusal.code != Code::UnsupportedSql {
        return refusal;
    }
    let why = refusal.detail.trim_end_matches(", so this query cannot be live");
    let detail = format!("a policy's condition must be able to be part of a live query: {why}");
    Refusal::new(Code::UnsupportedSql, detail)
        .hint("write a condition that depends only on stored rows and on the caller")
}
