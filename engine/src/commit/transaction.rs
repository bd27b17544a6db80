//! The open transaction: rows in SQLite and in the overlay, and what depends on the rows that it has changed.
//!
//! It implements the [`Transaction`] of reducers for callers without restrictions. Other callers reach it through
//! `access/scoped_transaction.rs`. A written row is checked by SQLite, in the statement that writes it: by the
//! constraints and triggers of its table, whose messages become refusals.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use abide_log::WrittenRows;
use abide_schema::caller::Scope;
use abide_schema::event::{Event, Hash, Salt};
use abide_schema::reducer::{Caller, Transaction};
use abide_schema::work::PolicyChecker;
use abide_schema::{
    Abort, CallArguments, Code, Micros, Refusal, Row, SEE_LOG, Seq, TableSpec, Value,
};
use abide_store::{StoreError, VersionStart, Writer};

use crate::access::credentials::{CredentialChecker, expiry};
use crate::access::policy_rows::is_restricted;
use crate::access::policy_validator::PolicyValidator;
use crate::access::row_policies::{RolePolicies, RowPolicies};
use crate::access::tenants::Tenants;
use crate::commit::outcome::long_values;
use crate::commit::overlay::{Overlay, RowWrite};
use crate::commit::registry::PreparedCall;

/// The rows of the open transaction, with unrestricted access.
#[derive(Debug)]
pub(crate) struct GroupTransaction {
    pub(crate) store: Writer,
    pub(crate) overlay: Overlay,
    /// Access of restricted callers by policies.
    row_policies: RowPolicies,
    /// Checks credentials.
    credentials: CredentialChecker,
    /// Set during a call once it has written something.
    wrote: bool,
    /// The rows that the call has written.
    written: WrittenRows,
    /// Rows that calls have changed so far, including those of transactions that were rolled back.
    rows_changed: u64,
    /// Validates policies.
    policy_validator: Option<Arc<PolicyValidator>>,
    /// For limits of a tenant. A replay has none.
    tenants: Tenants,
    /// After which events the file reached the versions of the modules: earlier events run by older rules.
    version_starts: Vec<VersionStart>,
    /// A cache of the callers of claims. Each call of the holder of a lease reads the caller of its claim.
    callers: HashMap<Seq, String>,
}

/// Maximum number of cached callers. A full cache is cleared.
const CACHED_CALLERS: usize = 4_096;

impl GroupTransaction {
    pub(crate) fn new(
        store: Writer,
        row_policies: RowPolicies,
        credentials: CredentialChecker,
        version_starts: Vec<VersionStart>,
    ) -> GroupTransaction {
        GroupTransaction {
            store,
            overlay: Overlay::default(),
            row_policies,
            credentials,
            wrote: false,
            written: WrittenRows::default(),
            rows_changed: 0,
            policy_validator: None,
            tenants: Tenants::default(),
            version_starts,
            callers: HashMap::new(),
        }
    }

    /// Sets the policy validator. A replay needs none: the log contains only valid policies.
    pub(crate) fn set_policy_validator(&mut self, policy_validator: PolicyValidator) {
        self.policy_validator = Some(Arc::new(policy_validator));
    }

    /// Sets what names the tenants of scopes.
    pub(crate) fn set_tenants(&mut self, tenants: Tenants) {
        self.tenants = tenants;
    }

    /// A call begins.
    pub(crate) fn begin_call(&mut self) {
        self.wrote = false;
        self.written.clear();
    }

    /// `true` if the last call has written anything.
    pub(crate) fn wrote(&self) -> bool {
        self.wrote
    }

    /// Returns the number of rows that calls have changed since the start: the difference is the work of the calls
    /// between.
    pub(crate) fn rows_changed(&self) -> u64 {
        self.rows_changed
    }

    /// Returns the digest of the rows that the call has written, for its event.
    pub(crate) fn take_rows_hash(&mut self, salt: &Salt, call: &PreparedCall) -> Hash {
        self.written.take_digest(salt, &|content| call.known_digest(content))
    }

    /// Stores the event of a call with these arguments. Those of the event itself are not read.
    pub(crate) fn append_event(
        &mut self,
        event: &Event,
        arguments: &CallArguments,
    ) -> Result<(), StoreError> {
        self.wrote = true;
        self.store.append_event(event, arguments.text(), long_values(arguments))
    }

    /// Returns the policies for a caller's reducers in the open transaction; `None` if unrestricted.
    pub(crate) fn policies_of(
        &mut self,
        caller: &Caller,
    ) -> Result<Option<Arc<RolePolicies>>, StoreError> {
        if !is_restricted(caller) {
            return Ok(None);
        }
        if self.row_policies.is_stale() {
            // A touched policy row must be written before it is read.
            self.flush()?;
        }
        self.row_policies.for_caller(&self.store, caller)
    }

    /// Counts the rows of `SELECT * FROM from <clause>`.
    pub(crate) fn count_in(
        &mut self,
        from: &str,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.flush().map_err(broken)?;
        count_in(&self.store, from, clause, params).map_err(broken)
    }

    /// Returns the refusal of a credential that is no longer valid. `state` is the seq of the last commit that changed
    /// the credential tables.
    pub(crate) fn check_credential(
        &mut self,
        caller: &Caller,
        state: Seq,
        now: Micros,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let Some(credential) = caller.credential() else { return Ok(Ok(())) };
        if let Some(expired) = expiry(&credential.credential, now) {
            return Ok(Err(expired));
        }
        if self.credentials.is_current(credential, state) {
            return Ok(Ok(()));
        }
        self.flush()?;
        self.credentials.check(&self.store, caller, credential, now)
    }

    /// Writes the touched rows. Those that are rejected remain to be written, so that the group cannot end without them.
    ///
    /// # Errors
    /// [`StoreError::Touched`] if a row is rejected, and the other errors of the storage.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        let store = &self.store;
        self.overlay.write_touched(|table, stored, row| {
            store.update(table, stored, row).map_err(|error| touch_error(table, error))
        })
    }

    /// Records a changed row.
    fn record_change(
        &mut self,
        table: &'static TableSpec,
        key: &[Value],
        before: Option<Row>,
        after: Option<Row>,
        write: RowWrite,
    ) {
        self.wrote = true;
        self.written.push(table, key, before.clone(), after.clone());
        self.rows_changed += 1;
        self.row_policies.record_write(table);
        self.credentials.record_write(table);
        self.overlay.record_change(table, key, before, after, write);
    }

    /// Calls were rolled back: what was derived from their rows is read again.
    pub(crate) fn calls_undone(&mut self) {
        self.row_policies.forget();
        self.credentials.forget();
        // The next calls reuse the seqs of the undone events.
        self.callers.clear();
    }

    /// The transaction was committed, or rolled back before anything was written.
    pub(crate) fn group_finished(&mut self) {
        self.credentials.end_transaction();
        self.overlay.group_finished();
    }

    /// The transaction was rolled back.
    pub(crate) fn rolled_back(&mut self) {
        self.credentials.end_transaction();
        self.overlay.forget();
    }

    /// Returns a row by its key, from the overlay if it is known there.
    pub(crate) fn read_row(
        &mut self,
        table: &'static TableSpec,
        key: &[Value],
    ) -> Result<Option<Row>, Abort> {
        if let Some(row) = self.overlay.get(table, key) {
            return Ok(row);
        }
        let row = self.store.get(table, key).map_err(broken)?;
        self.overlay.record_read(table, key, row.clone());
        Ok(row)
    }
}

impl Transaction for GroupTransaction {
    fn get(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Option<Row>, Abort> {
        self.read_row(table, key)
    }

    fn find(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<Vec<Row>, Abort> {
        self.flush().map_err(broken)?;
        self.store.find(table, clause, params).map_err(broken)
    }

    fn count(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.count_in(table.name, clause, params)
    }

    fn last_before(&mut self, module: &str, version: u32) -> Seq {
        let mut starts = self.version_starts.iter();
        let start = starts.find(|start| start.module == module && start.version == version);
        start.map_or(Seq::ZERO, |start| start.after)
    }

    fn caller_of(&mut self, seq: Seq) -> Result<Option<String>, Abort> {
        if let Some(caller) = self.callers.get(&seq) {
            return Ok(Some(caller.clone()));
        }
        let caller = self.store.caller_of(seq).map_err(broken)?;
        if self.callers.len() >= CACHED_CALLERS {
            self.callers.clear();
        }
        if let Some(caller) = &caller {
            self.callers.insert(seq, caller.clone());
        }
        Ok(caller)
    }

    fn policy_checker(&self) -> Option<Arc<dyn PolicyChecker>> {
        self.policy_validator
            .clone()
            .map(|policy_validator| policy_validator as Arc<dyn PolicyChecker>)
    }

    fn check_reducer_names(&mut self, names: &BTreeSet<String>) -> Result<(), Abort> {
        let Some(policy_validator) = &self.policy_validator else { return Ok(()) };
        policy_validator.check_reducer_names(names).map_err(Abort::Refused)
    }

    fn is_replay(&self) -> bool {
        self.policy_validator.is_none()
    }

    fn tenant_of(&self, scope: &Scope) -> Scope {
        self.tenants.tenant_of(scope)
    }

    fn insert(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<Row, Abort> {
        let row = self.store.insert(table, row).map_err(abort_write)?;
        self.record_change(table, &table.key_of(&row), None, Some(row.clone()), RowWrite::Done);
        Ok(row)
    }

    fn update(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        let key = table.key_of(&row);
        let before = self.read_row(table, &key)?;
        assert!(before.is_some(), "a reducer updates a missing row of {}", table.name);
        if let Some(stored) = self.overlay.stored(table, &key) {
            self.store.update(table, &stored, &row).map_err(abort_write)?;
        }
        self.record_change(table, &key, before, Some(row.into()), RowWrite::Done);
        Ok(())
    }

    fn touch(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        let key = table.key_of(&row);
        let before = self.read_row(table, &key)?;
        assert!(before.is_some(), "a reducer touches a missing row of {}", table.name);
        self.record_change(table, &key, before, Some(row.into()), RowWrite::Deferred);
        Ok(())
    }

    fn delete(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<(), Abort> {
        let before = self.read_row(table, key)?;
        assert!(before.is_some(), "a reducer deletes a missing row of {}", table.name);
        self.store.delete(table, key).map_err(abort_write)?;
        self.record_change(table, key, before, None, RowWrite::Done);
        Ok(())
    }
}

/// Returns the abort of a call whose write failed: a constraint violation is a refusal, any other error is internal.
fn abort_write(error: StoreError) -> Abort {
    match error {
        StoreError::Constraint { .. } => Abort::Refused(error.to_refusal()),
        error => broken(error),
    }
}

/// Returns the error of a touched row that was not written. It is not an error of the statement that had to write it
/// first: that can be one of another unit.
fn touch_error(table: &TableSpec, error: StoreError) -> StoreError {
    if !error.is_the_statements_own() {
        return error;
    }
    if !matches!(error, StoreError::Constraint { .. }) {
        tracing::error!(
            name: "touched_row_failed",
            %error,
            table = table.name,
            "a touched row could not be written"
        );
    }
    StoreError::Touched { table: table.name, why: Box::new(error) }
}

/// Counts the rows of `SELECT * FROM from <clause>`.
pub(crate) fn count_in(
    store: &Writer,
    from: &str,
    clause: &str,
    params: &[Value],
) -> Result<i64, StoreError> {
    let mut count = 0;
    let sql = format!("SELECT count(*) FROM {from} {clause}");
    store.run(&sql, params, &mut |row| {
        if let [Value::Integer(n)] = row {
            count = *n;
        }
    })?;
    Ok(count)
}

/// Returns the abort of a call by a storage error.
pub(crate) fn broken(error: StoreError) -> Abort {
    Abort::Broken(Box::new(error))
}

/// Returns the refusal for an abort.
pub(crate) fn refusal_of(abort: &Abort) -> Refusal {
    match abort {
        Abort::Refused(refusal) => refusal.clone(),
        Abort::Broken(error) => match error.downcast_ref::<StoreError>() {
            Some(error) => error.to_refusal(),
            None => {
                tracing::error!(name: "reducer_failed", %error, "a reducer failed");
                Refusal::new(Code::Internal, "the reducer failed").hint(SEE_LOG)
            }
        },
        // Work is deferred only with a budget; without one this cannot happen.
        Abort::Deferred => Refusal::new(Code::Internal, "the call was deferred"),
    }
}
