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

use crate::access::policy_rows::is_restricted;
use crate::access::policy_rows::{self, PolicyRows};

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
    by_role: HashMap<String, Arc<RolePolicies>>,
    stale: bool,
}

impl RowPolicies {
    pub(crate) fn new(
        tables: Vec<&'static TableSpec>,
        policy_tables: Option<PolicyTables>,
        owners: HashMap<&'static str, Vec<OwnerReference>>,
        copies: Vec<ColumnCopies>,
    ) -> RowPolicies {
        RowPolicies {
            tables,
            owners,
            copies,
            policy_tables,
            rows: PolicyRows::new(),
            by_role: HashMap::new(),
            stale: policy_tables.is_some(),
        }
    }

    /// A call wrote a row of this table.
    pub(crate) fn record_write(&mut self, table: &TableSpec) {
        self.stale |= self.policy_tables.is_some_and(|from| from.policies.name == table.name);
    }

    /// Calls were rolled back.
    pub(crate) fn forget(&mut self) {
        self.stale = self.policy_tables.is_some();
    }

    /// `true` if the policies must be reloaded.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Returns the policies for a caller; `None` if none applies.
    pub(crate) fn for_caller(
        &mut self,
        store: &Writer,
        caller: &Caller,
    ) -> Result<Option<Arc<RolePolicies>>, StoreError> {
        if !is_restricted(caller) {
            return Ok(None);
        }
        if let Some(from) = self.policy_tables.filter(|_| self.stale) {
            self.rows = policy_rows::read_policies(store, &from)?;
            self.by_role.clear();
            self.stale = false;
        }
        if self.rows.is_empty() {
            return Ok(None);
        }
        let policies = match self.by_role.get(caller.role()) {
            Some(policies) => Arc::clone(policies),
            None => {
                if self.by_role.len() >= ROLES {
                    self.by_role.clear();
                }
                let policies = Arc::new(RolePolicies::new(self, caller.role()));
                self.by_role.insert(caller.role().to_owned(), Arc::clone(&policies));
                policies
            }
        };
        Ok((!policies.is_empty()).then_some(policies))
    }
}

/// The policies for callers of one role.
#[derive(Debug)]
pub(crate) struct RolePolicies {
    filters: HashMap<&'static str, RowFilter>,
    /// The tables with hidden columns.
    hidden: Vec<HiddenColumns>,
    /// The columns of every table, to recognise rows in a result.
    shapes: Vec<BTreeSet<&'static str>>,
}

/// The hidden columns of a table.
#[derive(Debug)]
struct HiddenColumns {
    all: BTreeSet<&'static str>,
    hidden: Vec<&'static str>,
}

/// Which rows of a table are visible.
#[derive(Debug)]
pub(crate) struct RowFilter {
    pub(crate) condition: Condition,
    /// Evaluates the condition for a given row: parameters are the columns below, then the caller's values.
    pub(crate) statement: String,
    /// The positions of the columns that it may name.
    pub(crate) columns: Vec<usize>,
}

impl RolePolicies {
    fn new(
        RowPolicies { tables, owners, copies, rows, .. }: &RowPolicies,
        role: &str,
    ) -> RolePolicies {
        let mut filters = HashMap::new();
        let mut hidden = Vec::new();
        for table in tables {
            let owners = owners.get(table.name).map_or(&[][..], Vec::as_slice);
            let permitted = policy_rows::permitted_rows(rows, tables, owners, table, role);
            if let Some(condition) = permitted {
                filters.insert(table.name, RowFilter::new(table, &condition));
            }
            let names = policy_rows::hidden_columns(rows, copies, table, role);
            let all = column_names(table);
            let columns: Vec<&'static str> = all
                .iter()
                .filter(|name| names.iter().any(|hidden| hidden.eq_ignore_ascii_case(name)))
                .copied()
                .collect();
            if !columns.is_empty() {
                hidden.push(HiddenColumns { all, hidden: columns });
            }
        }
        RolePolicies {
            filters,
            hidden,
            shapes: tables.iter().map(|table| column_names(table)).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.filters.is_empty() && self.hidden.is_empty()
    }

    /// Returns the filter of a table's rows; `None` if all are visible.
    pub(crate) fn filter(&self, table: &TableSpec) -> Option<&RowFilter> {
        self.filters.get(table.name)
    }

    /// Removes hidden columns from the rows in a result. An object with all columns of a table is
    /// a row of it; other parts of a result are not examined.
    pub(crate) fn without_hidden_columns(&self, result: String) -> String {
        let mut names = self.hidden.iter().flat_map(|table| &table.hidden);
        if !names.any(|name| result.contains(&format!("\"{name}\":"))) {
            return result;
        }
        let Ok(mut value) = integers::parse(&result) else { return result };
        self.remove_hidden(&mut value);
        value.to_string()
    }

    fn remove_hidden(&self, value: &mut JsonValue) {
        match value {
            JsonValue::Array(values) => {
                values.iter_mut().for_each(|value| self.remove_hidden(value))
            }
            JsonValue::Object(members) => {
                members.values_mut().for_each(|value| self.remove_hidden(value));
                self.remove_hidden_columns(members);
            }
            _ => {}
        }
    }

    fn remove_hidden_columns(&self, members: &mut Map<String, JsonValue>) {
        // An unmodified row belongs to the table with exactly these columns, not to one with a subset.
        let whole =
            self.shapes.iter().any(|all| all.len() == members.len() && has_members(members, all));
        let hidden = self
            .hidden
            .iter()
            .filter(|table| has_members(members, &table.all))
            .filter(|table| !whole || table.all.len() == members.len());
        let names: Vec<&str> = hidden.flat_map(|table| table.hidden.iter().copied()).collect();
        for name in names {
            members.remove(name);
        }
    }
}

fn column_names(table: &TableSpec) -> BTreeSet<&'static str> {
    table.columns.iter().map(|column| column.name).collect()
}

fn has_members(object: &Map<String, JsonValue>, names: &BTreeSet<&str>) -> bool {
    names.iter().all(|name| object.contains_key(*name))
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
        let mut cells: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(nth, at)| {
                let column = &table.columns[*at];
                format!("CAST(?{} AS {}) AS \"{}\"", nth + 1, column.kind.sql(), column.name)
            })
            .collect();
        if cells.is_empty() {
            cells.push("1".to_owned());
        }
        let cells = cells.join(", ");
        let condition_sql = condition.sql(columns.len() + 1);
        let statement =
            format!("SELECT 1 FROM (SELECT {cells}) AS \"{}\" WHERE {condition_sql}", table.name);
        RowFilter { condition, statement, columns }
    }
}
