//! Row access of a restricted caller's reducers by policies: the conditions of its role in
//! the open transaction, evaluated for single rows and added to reads of many.
//!
//! The stored policies are reloaded when a call may have changed them, not at a commit: the policies for a
//! call depend on the preceding calls in the log, not on how calls were batched into commits. So
//! a replay, which batches them differently, applies the same policies.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use abide_live::{Condition, OwnerReference};
use abide_schema::reducer::{ColumnCopies, PolicyTables};
use abide_schema::{Caller, TableSpec, integers};
use abide_store::{StoreError, Writer};
use serde_json::{Map, Value as JsonValue};

use crate::access::policy_rows::{self, PolicyRows};
use crate::access::policy_subject::is_restricted;

/// Maximum number of cached roles. More means an issuer that generates roles.
const ROLES: usize = 1_000;

/// The policies that apply to reducers.
#[derive(Debug)]
pub(crate) struct RowPolicies {
    tables: Vec<&'static TableSpec>,
    /// The owners of each table's rows.
    owners: HashMap<&'static str, Vec<OwnerReference>>,
    copies: Vec<ColumnCopies>,
    /// Where policies are stored. Nothing is read if no module declares it.
    policy_tables: Option<PolicyTables>,
    rows: PolicyRows,
    of_roles: HashMap<String, Arc<RolePolicies>>,
    stale: bool,
}

impl RowPolicies {
    pub(crate) fn new(
        tables: Vec<&'static TableSpec>,
        policy_tables: Option<PolicyTables>,
        owners: HashMap<&'static str, Vec<OwnerReference>>,
        copies: Vec<ColumnCopies>,
    ) -> RowPolicies {
        let rows = PolicyRows::new();
        let of_roles = HashMap::new();
        let stale = policy_tables.is_some();
        RowPolicies { tables, owners, copies, policy_tables, rows, of_roles, stale }
    }

    /// A call wrote a row of this table.
    pub(crate) fn note(&mut self, table: &TableSpec) {
        self.stale |= self.policy_tables.is_some_and(|from| from.policies.name == table.name);
    }

    /// Calls were rolled back.
    pub(crate) fn forget(&mut self) {
        self.stale = self.policy_tables.is_some();
    }

    /// Whether the policies must be reloaded.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    /// The policies for a caller; `None` if none applies.
    pub(crate) fn of(
        &mut self,
        store: &Writer,
        caller: &Caller,
    ) -> Result<Option<Arc<RolePolicies>>, StoreError> {
        if !is_restricted(caller) {
            return Ok(None);
        }
        if let Some(from) = self.policy_tables.filter(|_| self.stale) {
            self.rows = policy_rows::read_rows(store, &from)?;
            self.of_roles.clear();
            self.stale = false;
        }
        if self.rows.is_empty() {
            return Ok(None);
        }
        let of_role = match self.of_roles.get(caller.role()) {
            Some(of_role) => Arc::clone(of_role),
            None => {
                if self.of_roles.len() >= ROLES {
                    self.of_roles.clear();
                }
                let of_role = Arc::new(RolePolicies::new(self, caller.role()));
                self.of_roles.insert(caller.role().to_owned(), Arc::clone(&of_role));
                of_role
            }
        };
        Ok((!of_role.is_empty()).then_some(of_role))
    }
}

/// The policies for callers of one role.
#[derive(Debug)]
pub(crate) struct RolePolicies {
    rules: HashMap<&'static str, RowFilter>,
    /// Tables with hidden columns: all columns, and the hidden ones.
    hidden: Vec<(BTreeSet<&'static str>, Vec<&'static str>)>,
    /// The columns of every table, to recognise rows in a result.
    shapes: Vec<BTreeSet<&'static str>>,
}

/// Which rows of a table are visible.
#[derive(Debug)]
pub(crate) struct RowFilter {
    pub(crate) condition: Condition,
    /// Evaluates the condition for a given row: parameters are the columns below, then the caller's values.
    pub(crate) of_row: String,
    /// The positions of the columns that it may name.
    pub(crate) columns: Vec<usize>,
}

impl RolePolicies {
    fn new(
        RowPolicies { tables, owners, copies, rows, .. }: &RowPolicies,
        role: &str,
    ) -> RolePolicies {
        let mut rules = HashMap::new();
        let mut hidden = Vec::new();
        let columns_of = |table: &TableSpec| -> BTreeSet<&'static str> {
            table.columns.iter().map(|column| column.name).collect()
        };
        for table in tables {
            let owners = owners.get(table.name).map_or(&[][..], Vec::as_slice);
            let permitted = policy_rows::permitted_rows(rows, tables, owners, table, role);
            if let Some(condition) = permitted {
                rules.insert(table.name, RowFilter::new(table, &condition));
            }
            let names = policy_rows::hidden_of(rows, copies, table, role);
            let all = columns_of(table);
            let columns: Vec<&'static str> = all
                .iter()
                .filter(|name| names.iter().any(|it| it.eq_ignore_ascii_case(name)))
                .copied()
                .collect();
            if !columns.is_empty() {
                hidden.push((all, columns));
            }
        }
        RolePolicies {
            rules,
            hidden,
            shapes: tables.iter().map(|table| columns_of(table)).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.hidden.is_empty()
    }

    /// The rule for a table's rows; `None` if all are visible.
    pub(crate) fn rule(&self, table: &TableSpec) -> Option<&RowFilter> {
        self.rules.get(table.name)
    }

    /// Removes hidden columns from the rows in a result. An object with all columns of a table is
    /// a row of it; other parts of a result are not examined.
    pub(crate) fn shown(&self, result: String) -> String {
        let names = self.hidden.iter().flat_map(|(_, columns)| columns);
        if !names.into_iter().any(|name| result.contains(&format!("\"{name}\":"))) {
            return result;
        }
        let Ok(mut value) = integers::parse(&result) else { return result };
        self.hide(&mut value);
        value.to_string()
    }

    fn hide(&self, value: &mut JsonValue) {
        match value {
            JsonValue::Array(values) => values.iter_mut().for_each(|value| self.hide(value)),
            JsonValue::Object(members) => {
                members.values_mut().for_each(|value| self.hide(value));
                self.hide_columns(members);
            }
            _ => {}
        }
    }

    fn hide_columns(&self, members: &mut Map<String, JsonValue>) {
        let holds =
            |columns: &BTreeSet<&str>| columns.iter().all(|name| members.contains_key(*name));
        // An unmodified row belongs to the table with exactly these columns, not to one with a subset.
        let whole = self.shapes.iter().any(|all| all.len() == members.len() && holds(all));
        let hidden = self
            .hidden
            .iter()
            .filter(|(all, _)| holds(all) && (!whole || all.len() == members.len()));
        let names: Vec<&str> = hidden.flat_map(|(_, columns)| columns.iter().copied()).collect();
        for name in names {
            members.remove(name);
        }
    }
}

impl RowFilter {
    fn new(table: &TableSpec, text: &str) -> RowFilter {
        // An invalid condition permits nothing. set_policy refuses it, but a file may come from anywhere.
        let condition = Condition::parse(text)
            .unwrap_or_else(|_| Condition::parse("0").expect("it is a condition"));
        let text = text.to_ascii_lowercase();
        let columns: Vec<usize> = (0..table.columns.len())
            .filter(|at| {
                text.contains('*') || text.contains(&table.columns[*at].name.to_ascii_lowercase())
            })
            .collect();
        // CAST gives a value its column's affinity without changing it: tables are STRICT.
        let cells = columns.iter().enumerate().map(|(nth, at)| {
            let column = &table.columns[*at];
            format!("CAST(?{} AS {}) AS \"{}\"", nth + 1, column.kind.sql(), column.name)
        });
        let mut cells: Vec<String> = cells.collect();
        if cells.is_empty() {
            cells.push("1".to_owned());
        }
        let cells = cells.join(", ");
        let holds = condition.sql(columns.len() + 1);
        let of_row = format!("SELECT 1 FROM (SELECT {cells}) AS \"{}\" WHERE {holds}", table.name);
        RowFilter { condition, of_row, columns }
    }
}
