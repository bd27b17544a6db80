//! Row access of a restricted caller's reducers: rows outside the caller's scope, and rows hidden by the
//! policies of its role, do not exist for it. This is the one place that enforces both for
//! reads and writes, for built-in and custom reducers alike; reducers need no checks of their own, and
//! the refusals are the same as for missing rows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use abide_schema::caller::Scope;
use abide_schema::reducer::{Caller, DERIVED, IdArgumentKind, Transaction};
use abide_schema::work::PolicyChecker;
use abide_schema::{Abort, Code, Refusal, Row, Seq, TableSpec, Value, limits};
use abide_store::{QueryLimits, StoreError, Writer, change_log};

use crate::access::policy_rows;
use crate::access::row_owners::{ScopeOwner, ScopeParameters};
use crate::access::row_policies::{RolePolicies, RowFilter};
use crate::access::scope_rules::ScopeRules;
use crate::commit::transaction::{GroupTransaction, broken, count_in};
use crate::fault_points;
use crate::queries::statement_limits::LIMITS;

/// The limits of reads within a call, besides their steps and their time.
const WITHIN_CALL: QueryLimits = QueryLimits { memory_bytes: usize::MAX, ..LIMITS };

/// The rows that a caller may access, during one call.
pub(crate) struct ScopedTransaction<'a> {
    rows: &'a mut GroupTransaction,
    scope_rules: &'a ScopeRules,
    caller: &'a Caller,
    /// The policies of its role; `None` if there are none.
    role: Option<Arc<RolePolicies>>,
    /// Whether policies are currently bypassed.
    bypasses_policies: bool,
    /// The values for conditions, computed on first use.
    values: Option<Vec<BTreeMap<String, Value>>>,
    /// Cache of owners: whether they are in the caller's scope.
    owners_in_scope: HashMap<Vec<u8>, bool>,
    /// Cache of policy decisions on rows. Cleared by every write.
    decisions: HashMap<Vec<u8>, (Row, bool)>,
    /// Steps that policies have taken in this call.
    policy_steps: u64,
}

/// The rows of a table that a caller may access.
struct AccessibleRows {
    /// As a table for FROM.
    from: String,
    /// The parameters of the clause after it, and then its own.
    params: Vec<Value>,
}

impl<'a> ScopedTransaction<'a> {
    pub(crate) fn new(
        rows: &'a mut GroupTransaction,
        scope_rules: &'a ScopeRules,
        caller: &'a Caller,
    ) -> Result<ScopedTransaction<'a>, Abort> {
        let role = rows.policies_of(caller).map_err(broken)?;
        Ok(ScopedTransaction {
            rows,
            scope_rules,
            caller,
            role,
            bypasses_policies: false,
            values: None,
            owners_in_scope: HashMap::new(),
            decisions: HashMap::new(),
            policy_steps: 0,
        })
    }

    fn owner(&self, table: &TableSpec) -> Option<ScopeOwner> {
        let has_scope = !self.caller.scope().is_empty();
        if has_scope { self.scope_rules.owners.owner(table) } else { None }
    }

    /// Returns the policies of the role, if they filter the rows of this table.
    fn policies_on(&self, table: &TableSpec) -> Option<Arc<RolePolicies>> {
        let role = self.role.as_ref().filter(|_| !self.bypasses_policies)?;
        role.filter(table).map(|_| Arc::clone(role))
    }

    /// `true` if the caller may access an existing row.
    fn can_access(&mut self, table: &'static TableSpec, row: &Row) -> Result<bool, Abort> {
        if !self.is_row_in_scope(table, row)? {
            return Ok(false);
        }
        let Some(role) = self.policies_on(table) else { return Ok(true) };
        let key_bytes = cache_key(table, &table.key_of(row));
        if let Some((decided, permitted)) = self.decisions.get(&key_bytes)
            && Arc::ptr_eq(decided, row)
        {
            return Ok(*permitted);
        }
        let permitted = self.permits(&role, table, row)?;
        self.decisions.insert(key_bytes, (Arc::clone(row), permitted));
        Ok(permitted)
    }

    /// `true` if a row is in the caller's scope.
    fn is_row_in_scope(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<bool, Abort> {
        match fault_points::row_scope(self.owner(table)) {
            None => Ok(true),
            Some(ScopeOwner::Column(at)) => {
                let Value::Text(scope) = &row[at] else { return Ok(false) };
                let scope = serde_json::from_str(scope).ok();
                Ok(self.caller.reaches(scope.as_ref()))
            }
            Some(ScopeOwner::Reference(at, owner)) => self.is_owner_in_scope(owner, &row[at]),
        }
    }

    /// `true` if a row with this id exists in the caller's scope.
    fn has_row_in_scope(&mut self, table: &'static TableSpec, id: &str) -> Result<bool, Abort> {
        let row = self.rows.read_row(table, &[Value::from(id)])?;
        row.map_or(Ok(false), |row| self.is_row_in_scope(table, &row))
    }

    fn has_visible_row(&mut self, table: &'static TableSpec, id: &str) -> Result<bool, Abort> {
        let row = self.rows.read_row(table, &[Value::from(id)])?;
        row.map_or(Ok(false), |row| self.can_access(table, &row))
    }

    fn is_owner_in_scope(&mut self, owner: &'static TableSpec, key: &Value) -> Result<bool, Abort> {
        if *key == Value::Null {
            return Ok(false);
        }
        let key_bytes = cache_key(owner, std::slice::from_ref(key));
        if let Some(is_in_scope) = self.owners_in_scope.get(&key_bytes) {
            return Ok(*is_in_scope);
        }
        let row = self.rows.read_row(owner, std::slice::from_ref(key))?;
        let reached = row.map_or(Ok(false), |row| self.is_row_in_scope(owner, &row))?;
        self.owners_in_scope.insert(key_bytes, reached);
        Ok(reached)
    }

    /// `true` if the policies of a role permit a row.
    fn permits(
        &mut self,
        role: &RolePolicies,
        table: &TableSpec,
        row: &[Value],
    ) -> Result<bool, Abort> {
        let Some(filter) = role.filter(table) else { return Ok(true) };
        if filter.condition.reads_tables() {
            self.rows.flush().map_err(broken)?;
        }
        for values in self.condition_values(filter) {
            let mut params: Vec<Value> = filter.columns.iter().map(|at| row[*at].clone()).collect();
            params.extend(values);
            let mut permitted = false;
            let run = self.run_limited(|store| {
                store.run(&filter.statement, &params, &mut |_| permitted = true)
            })?;
            match run {
                Ok(_) if permitted => {}
                Ok(_) => return Ok(false),
                // The error concerns this row; reporting it would reveal the row.
                Err(error) if error.is_the_statements_own() => return Ok(false),
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(true)
    }

    /// Runs a read that evaluates policies, within the steps that the call has left for them. A replay has no limits:
    /// the call was accepted, and a slower machine must accept it again.
    fn run_limited<T>(
        &mut self,
        read: impl FnOnce(&Writer) -> Result<T, StoreError>,
    ) -> Result<Result<T, StoreError>, Abort> {
        let store = &self.rows.store;
        if self.rows.is_replay() {
            return Ok(read(store));
        }
        let before = store.steps();
        let left = limits::POLICY_STEPS.saturating_sub(self.policy_steps);
        let time = Duration::from_millis(limits::POLICY_MS);
        let max = QueryLimits { time, of_processor: true, steps: left.max(1), ..WITHIN_CALL };
        store.allow(Some(&max)).map_err(broken)?;
        let done = read(store);
        store.allow(None).map_err(broken)?;
        self.policy_steps += store.steps() - before;
        if let Err(StoreError::Interrupted) = done {
            let detail = "the policies of the caller's role take too long to evaluate";
            let refusal = Refusal::new(Code::LimitExceeded, detail);
            return Err(refusal.hint("ask an admin for a policy that reads fewer rows").into());
        }
        Ok(done)
    }

    /// Returns the parameters of a filter. A narrowed caller has two sets, for its scope and for its previous one; the
    /// filter must hold with both.
    fn condition_values(&mut self, filter: &RowFilter) -> Vec<Vec<Value>> {
        let caller = self.caller;
        let all = self.values.get_or_insert_with(|| {
            [Some(caller.scope()), caller.own_scope()]
                .into_iter()
                .flatten()
                .map(|scope| policy_rows::condition_values(caller, scope))
                .collect()
        });
        let names = filter.condition.parameters();
        all.iter()
            .map(|values| {
                names.iter().map(|name| values.get(name).cloned().unwrap_or(Value::Null)).collect()
            })
            .collect()
    }

    /// Returns the rows of a table that the caller may access. `None` if there is no restriction.
    fn accessible_rows(
        &mut self,
        table: &TableSpec,
        clause_params: &[Value],
    ) -> Option<AccessibleRows> {
        let name = table.name;
        let mut conditions = Vec::new();
        let mut params = clause_params.to_vec();
        if let Some(role) = self.policies_on(table) {
            let filter = role.filter(table).expect("the policies have a filter for the table");
            for values in self.condition_values(filter) {
                conditions.push(filter.condition.sql(params.len() + 1));
                params.extend(values);
            }
        }
        if self.owner(table).is_some() {
            let scope = ScopeParameters { scope: self.caller.scope(), first: params.len() + 1 };
            conditions.extend(self.scope_rules.owners.condition(table, name, &scope));
            params.extend(self.caller.scope().values().map(|value| Value::from(value.as_str())));
        }
        if conditions.is_empty() {
            return None;
        }
        let rowid = if table.without_rowid { "" } else { "rowid AS rowid, " };
        let condition = conditions.join(" AND ");
        let from = format!("(SELECT {rowid}* FROM {name} WHERE {condition}) AS {name}");
        Some(AccessibleRows { from, params })
    }

    /// Refuses a new row that would be outside the caller's scope.
    fn check_new(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        match self.owner(table) {
            None if table.shared || self.caller.scope().is_empty() => Ok(()),
            None => Err(shared_table(table).into()),
            Some(_) if self.is_row_in_scope(table, row)? => Ok(()),
            Some(ScopeOwner::Column(_)) => {
                let detail =
                    format!("the row of {} would be outside the caller's scope", table.name);
                let hint = "give it the keys and values of the caller's scope";
                Err(Refusal::new(Code::Denied, detail).hint(hint).into())
            }
            Some(ScopeOwner::Reference(at, _)) if row[at] == Value::Null => {
                let column = table.columns[at].name;
                let table = table.name;
                let detail = format!("a row of {table} without {column} would have no scope");
                Err(Refusal::new(Code::Denied, detail).hint(format!("give {column}")).into())
            }
            Some(ScopeOwner::Reference(at, owner)) => Err(not_found(owner, &row[at]).into()),
        }
    }

    /// Refuses a new reference to a row that the caller may not access, with the error for a missing
    /// row.
    fn check_references(
        &mut self,
        table: &'static TableSpec,
        row: &[Value],
        before: Option<&Row>,
    ) -> Result<(), Abort> {
        let scope_rules = self.scope_rules;
        for (at, named) in scope_rules.references(table) {
            let key = &row[*at];
            let is_new = before.is_none_or(|before| before[*at] != *key);
            let is_restricted = self.owner(named).is_some() || self.policies_on(named).is_some();
            if !is_restricted || !is_new || *key == Value::Null {
                continue;
            }
            if self.get(named, std::slice::from_ref(key))?.is_none() {
                return Err(not_found(named, key).into());
            }
        }
        Ok(())
    }

    /// Refuses a new row that the policies would hide from the caller.
    fn check_permitted(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        let Some(role) = self.policies_on(table) else { return Ok(()) };
        if self.permits(&role, table, row)? {
            return Ok(());
        }
        let table = table.name;
        let role = self.caller.role();
        let detail = format!("no policy permits the role {role} this row of {table}");
        Err(Refusal::new(Code::Denied, detail)
            .hint("policies apply to writes as well as reads")
            .into())
    }

    /// Loads a row to be changed. If the caller may not access it, it does not exist.
    fn check_old(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Row, Abort> {
        let row = self.get(table, key)?;
        Ok(row.ok_or_else(|| not_found(table, key.first().unwrap_or(&Value::Null)))?)
    }

    /// Refuses a change that the caller may not make.
    fn check_change(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        let before = self.check_old(table, &table.key_of(row))?;
        self.check_new(table, row)?;
        self.check_references(table, row, Some(&before))?;
        self.check_permitted(table, row)?;
        self.decisions.clear();
        Ok(())
    }

    /// Refuses an id that belongs to a hidden row.
    fn check_id(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        if self.owner(table).is_none() && self.policies_on(table).is_none() {
            return Ok(());
        }
        let key = table.key_of(row);
        if self.rows.read_row(table, &key)?.is_none() || self.get(table, &key)?.is_some() {
            return Ok(());
        }
        // Only for rows that a policy hides within the caller's own scope, and for id arguments of custom modules that
        // are not declared `#[id(new, …)]`: all others are in the namespace of their scope.
        let detail = format!("this id cannot be used in {}", table.name);
        let hint = "omit it to get a generated one, or choose another";
        Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
    }
}

fn cache_key(table: &TableSpec, key: &[Value]) -> Vec<u8> {
    let mut bytes = table.name.as_bytes().to_vec();
    change_log::encode_cells(0, key, &mut bytes);
    bytes
}

fn shared_table(table: &TableSpec) -> Refusal {
    let detail = format!("{} are shared, and a caller with a scope cannot change them", table.name);
    Refusal::new(Code::Denied, detail).hint("use an identity without a scope")
}

fn not_found(table: &TableSpec, key: &Value) -> Refusal {
    let key = match key {
        Value::Text(text) => text.clone(),
        key => key.to_json().to_string(),
    };
    Refusal::new(Code::NotFound, format!("there is no {key} in {}", table.name))
}

impl Transaction for ScopedTransaction<'_> {
    fn get(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Option<Row>, Abort> {
        let Some(row) = self.rows.get(table, key)? else { return Ok(None) };
        Ok(self.can_access(table, &row)?.then_some(row))
    }

    fn find(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<Vec<Row>, Abort> {
        let Some(AccessibleRows { from, params }) = self.accessible_rows(table, params) else {
            return self.rows.find(table, clause, params);
        };
        self.rows.flush().map_err(broken)?;
        let columns: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
        let sql = format!("SELECT {} FROM {from} {clause}", columns.join(", "));
        let mut found = Vec::new();
        self.run_limited(|store| store.run(&sql, &params, &mut |row| found.push(Row::from(row))))?
            .map_err(broken)?;
        Ok(found)
    }

    fn count(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        match self.accessible_rows(table, params) {
            Some(AccessibleRows { from, params }) => {
                self.rows.flush().map_err(broken)?;
                self.run_limited(|store| count_in(store, &from, clause, &params))?.map_err(broken)
            }
            None => self.rows.count(table, clause, params),
        }
    }

    fn count_everywhere(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.rows.count(table, clause, params)
    }

    fn caller_of(&mut self, seq: Seq) -> Result<Option<String>, Abort> {
        self.rows.caller_of(seq)
    }

    fn last_before(&mut self, module: &str, version: u32) -> Seq {
        self.rows.last_before(module, version)
    }

    fn bypass_policies(&mut self, bypass: bool) -> bool {
        std::mem::replace(&mut self.bypasses_policies, bypass)
    }

    fn stored_id(
        &mut self,
        table: &'static TableSpec,
        id: String,
        naming: IdArgumentKind,
    ) -> Result<String, Abort> {
        let namespace = self.caller.namespace();
        let is_stored = id.is_empty() || id.starts_with(namespace);
        if is_stored || self.owner(table).is_none() {
            return Ok(id);
        }
        let derived = naming == IdArgumentKind::Derived && id.contains(DERIVED);
        if derived || self.has_row_in_scope(table, &id)? {
            return Ok(id);
        }
        let qualified = format!("{namespace}{id}");
        // If the caller sees it under neither id, the error names the caller's id. A row that a policy hides would show
        // by its namespace that it exists.
        let is_missing =
            naming == IdArgumentKind::Existing && !self.has_visible_row(table, &qualified)?;
        Ok(if is_missing { id } else { qualified })
    }

    fn policy_checker(&self) -> Option<Arc<dyn PolicyChecker>> {
        self.rows.policy_checker()
    }

    fn check_reducer_names(&mut self, names: &BTreeSet<String>) -> Result<(), Abort> {
        self.rows.check_reducer_names(names)
    }

    fn is_replay(&self) -> bool {
        self.rows.is_replay()
    }

    fn tenant_of(&self, scope: &Scope) -> Scope {
        self.rows.tenant_of(scope)
    }

    fn insert(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<Row, Abort> {
        self.check_new(table, &row)?;
        self.check_references(table, &row, None)?;
        let is_to_be_numbered = table.numbered() && row[table.key[0]] == Value::Null;
        if !is_to_be_numbered {
            self.check_permitted(table, &row)?;
            self.check_id(table, &row)?;
        }
        self.decisions.clear();
        let row = self.rows.insert(table, row)?;
        if is_to_be_numbered {
            // Its number is known now; a refusal rolls the call back.
            self.check_permitted(table, &row)?;
        }
        Ok(row)
    }

    fn update(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        self.check_change(table, &row)?;
        self.rows.update(table, row)
    }

    fn touch(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        self.check_change(table, &row)?;
        self.rows.touch(table, row)
    }

    fn delete(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<(), Abort> {
        self.check_old(table, key)?;
        if self.owner(table).is_none() && !table.shared && !self.caller.scope().is_empty() {
            return Err(shared_table(table).into());
        }
        self.decisions.clear();
        self.rows.delete(table, key)
    }
}
