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

use crate::access::policy_subject;
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
    seen: HashMap<Vec<u8>, bool>,
    /// Cache of policy decisions on rows. Cleared by every write.
    decided: HashMap<Vec<u8>, (Row, bool)>,
    /// Steps that policies have taken in this call.
    policy_steps: u64,
}

impl<'a> ScopedTransaction<'a> {
    pub(crate) fn new(
        rows: &'a mut GroupTransaction,
        scope_rules: &'a ScopeRules,
        caller: &'a Caller,
    ) -> Result<ScopedTransaction<'a>, Abort> {
        let role = rows.policies_of(caller).map_err(broken)?;
        let seen = HashMap::new();
        let decided = HashMap::new();
        Ok(ScopedTransaction {
            rows,
            scope_rules,
            caller,
            role,
            bypasses_policies: false,
            values: None,
            seen,
            decided,
            policy_steps: 0,
        })
    }

    fn owner(&self, table: &TableSpec) -> Option<ScopeOwner> {
        let has_scope = !self.caller.scope().is_empty();
        if has_scope { self.scope_rules.owners.of(table) } else { None }
    }

    /// The policy rule for a table's rows, if there is one.
    fn ruled(&self, table: &TableSpec) -> Option<Arc<RolePolicies>> {
        let role = self.role.as_ref().filter(|_| !self.bypasses_policies)?;
        role.rule(table).map(|_| Arc::clone(role))
    }

    /// Whether the caller may access an existing row.
    fn reaches(&mut self, table: &'static TableSpec, row: &Row) -> Result<bool, Abort> {
        if !self.in_scope(table, row)? {
            return Ok(false);
        }
        let Some(role) = self.ruled(table) else { return Ok(true) };
        let place = place(table, &table.key_of(row));
        if let Some((decided, permitted)) = self.decided.get(&place)
            && Arc::ptr_eq(decided, row)
        {
            return Ok(*permitted);
        }
        let permitted = self.permits(&role, table, row)?;
        self.decided.insert(place, (Arc::clone(row), permitted));
        Ok(permitted)
    }

    /// Whether a row is in the caller's scope.
    fn in_scope(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<bool, Abort> {
        match fault_points::row_scope(self.owner(table)) {
            None => Ok(true),
            Some(ScopeOwner::Itself(at)) => {
                let Value::Text(scope) = &row[at] else { return Ok(false) };
                let scope = serde_json::from_str(scope).ok();
                Ok(self.caller.reaches(scope.as_ref()))
            }
            Some(ScopeOwner::Of(at, owner)) => self.owner_in_scope(owner, &row[at]),
        }
    }

    /// Whether a row with this id exists in the caller's scope.
    fn is_in_scope(&mut self, table: &'static TableSpec, id: &str) -> Result<bool, Abort> {
        let row = self.rows.known(table, &[Value::from(id)])?;
        row.map_or(Ok(false), |row| self.in_scope(table, &row))
    }

    fn is_visible(&mut self, table: &'static TableSpec, id: &str) -> Result<bool, Abort> {
        let row = self.rows.known(table, &[Value::from(id)])?;
        row.map_or(Ok(false), |row| self.reaches(table, &row))
    }

    fn owner_in_scope(&mut self, owner: &'static TableSpec, key: &Value) -> Result<bool, Abort> {
        if *key == Value::Null {
            return Ok(false);
        }
        let place = place(owner, std::slice::from_ref(key));
        if let Some(seen) = self.seen.get(&place) {
            return Ok(*seen);
        }
        let row = self.rows.known(owner, std::slice::from_ref(key))?;
        let reached = row.map_or(Ok(false), |row| self.in_scope(owner, &row))?;
        self.seen.insert(place, reached);
        Ok(reached)
    }

    /// Whether the policies of a role permit a row.
    fn permits(
        &mut self,
        role: &RolePolicies,
        table: &TableSpec,
        row: &[Value],
    ) -> Result<bool, Abort> {
        let Some(rule) = role.rule(table) else { return Ok(true) };
        if rule.condition.asks_tables() {
            self.rows.flush().map_err(broken)?;
        }
        for values in self.values_of(rule) {
            let mut params: Vec<Value> = rule.columns.iter().map(|at| row[*at].clone()).collect();
            params.extend(values);
            let mut permitted = false;
            let run = |store: &Writer| store.run(&rule.of_row, &params, &mut |_| permitted = true);
            match self.limited(run)? {
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
    fn limited<T>(
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

    /// The parameters of a rule. A narrowed caller has two sets, for its scope and for its previous one; the rule
    /// must hold with both.
    fn values_of(&mut self, rule: &RowFilter) -> Vec<Vec<Value>> {
        let caller = self.caller;
        let all = self.values.get_or_insert_with(|| {
            [Some(caller.scope()), caller.own_scope()]
                .into_iter()
                .flatten()
                .map(|scope| policy_subject::values(caller, scope))
                .collect()
        });
        let names = rule.condition.parameters();
        all.iter()
            .map(|values| {
                names.iter().map(|name| values.get(name).cloned().unwrap_or(Value::Null)).collect()
            })
            .collect()
    }

    /// The rows of a table that the caller may access, as a table for FROM, and its parameters after those
    /// of the clause. `None` if there is no restriction.
    fn within(
        &mut self,
        table: &TableSpec,
        clause_params: &[Value],
    ) -> Option<(String, Vec<Value>)> {
        let name = table.name;
        let mut conditions = Vec::new();
        let mut params = clause_params.to_vec();
        if let Some(role) = self.ruled(table) {
            let rule = role.rule(table).expect("a table that is ruled has a rule");
            for values in self.values_of(rule) {
                conditions.push(rule.condition.sql(params.len() + 1));
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
        Some((format!("(SELECT {rowid}* FROM {name} WHERE {condition}) AS {name}"), params))
    }

    /// Refuses a new row that would be outside the caller's scope.
    fn check_new(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        match self.owner(table) {
            None if table.shared || self.caller.scope().is_empty() => Ok(()),
            None => Err(of_all(table).into()),
            Some(_) if self.in_scope(table, row)? => Ok(()),
            Some(ScopeOwner::Itself(_)) => {
                let detail =
                    format!("the row of {} would be outside the caller's scope", table.name);
                let hint = "give it the keys and values of the caller's scope";
                Err(Refusal::new(Code::Denied, detail).hint(hint).into())
            }
            Some(ScopeOwner::Of(at, _)) if row[at] == Value::Null => {
                let (table, column) = (table.name, table.columns[at].name);
                let detail = format!("a row of {table} without {column} would have no scope");
                Err(Refusal::new(Code::Denied, detail).hint(format!("give {column}")).into())
            }
            Some(ScopeOwner::Of(at, owner)) => Err(missing(owner, &row[at]).into()),
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
            let is_restricted = self.owner(named).is_some() || self.ruled(named).is_some();
            if !is_restricted || !is_new || *key == Value::Null {
                continue;
            }
            if self.get(named, std::slice::from_ref(key))?.is_none() {
                return Err(missing(named, key).into());
            }
        }
        Ok(())
    }

    /// Refuses a new row that the policies would hide from the caller.
    fn check_permitted(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        let Some(role) = self.ruled(table) else { return Ok(()) };
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
        Ok(row.ok_or_else(|| missing(table, key.first().unwrap_or(&Value::Null)))?)
    }

    /// Refuses a change that the caller may not make.
    fn check_change(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        let before = self.check_old(table, &table.key_of(row))?;
        self.check_new(table, row)?;
        self.check_references(table, row, Some(&before))?;
        self.check_permitted(table, row)?;
        self.decided.clear();
        Ok(())
    }

    /// Refuses an id that belongs to a hidden row.
    fn check_id(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        if self.owner(table).is_none() && self.ruled(table).is_none() {
            return Ok(());
        }
        let key = table.key_of(row);
        if self.rows.known(table, &key)?.is_none() || self.get(table, &key)?.is_some() {
            return Ok(());
        }
        // Only for rows that a policy hides within the caller's own scope, and for id arguments of custom modules that
        // are not declared `#[id(new, …)]`: all others are in the namespace of their scope.
        let detail = format!("this id cannot be used in {}", table.name);
        let hint = "omit it to get a generated one, or choose another";
        Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
    }
}

fn place(table: &TableSpec, key: &[Value]) -> Vec<u8> {
    let mut place = table.name.as_bytes().to_vec();
    change_log::encode_cells(0, key, &mut place);
    place
}

fn of_all(table: &TableSpec) -> Refusal {
    let detail = format!("{} are shared, and a caller with a scope cannot change them", table.name);
    Refusal::new(Code::Denied, detail).hint("use an identity without a scope")
}

fn missing(table: &TableSpec, key: &Value) -> Refusal {
    let key = match key {
        Value::Text(text) => text.clone(),
        key => key.to_json().to_string(),
    };
    Refusal::new(Code::NotFound, format!("there is no {key} in {}", table.name))
}

impl Transaction for ScopedTransaction<'_> {
    fn get(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Option<Row>, Abort> {
        let Some(row) = self.rows.get(table, key)? else { return Ok(None) };
        Ok(self.reaches(table, &row)?.then_some(row))
    }

    fn find(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<Vec<Row>, Abort> {
        let Some((within, params)) = self.within(table, params) else {
            return self.rows.find(table, clause, params);
        };
        self.rows.flush().map_err(broken)?;
        let columns: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
        let sql = format!("SELECT {} FROM {within} {clause}", columns.join(", "));
        let mut found = Vec::new();
        self.limited(|store| store.run(&sql, &params, &mut |row| found.push(Row::from(row))))?
            .map_err(broken)?;
        Ok(found)
    }

    fn count(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        match self.within(table, params) {
            Some((within, params)) => {
                self.rows.flush().map_err(broken)?;
                let count = |store: &Writer| count_in(store, &within, clause, &params);
                self.limited(count)?.map_err(broken)
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
        if derived || self.is_in_scope(table, &id)? {
            return Ok(id);
        }
        let qualified = format!("{namespace}{id}");
        // If the caller sees it under neither id, the error names the caller's id. A row that a policy hides would show by
        // its namespace that it exists.
        let is_missing =
            naming == IdArgumentKind::Existing && !self.is_visible(table, &qualified)?;
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
        self.decided.clear();
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
            return Err(of_all(table).into());
        }
        self.decided.clear();
        self.rows.delete(table, key)
    }
}
