//! Runs calls in the open transaction: rows through the overlay, one event per call.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use abide_log::{Chain, Digests};
use abide_schema::event::{Event, Salt};
use abide_schema::reducer::{Caller, Guard, IdSource, Reply, Transaction};
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::work::{PolicyChecker, WorkBudget};
use abide_schema::{Abort, Code, Context, Micros, Refusal, Row, Seq, TableSpec, Value};
use abide_store::{LastBefore, StoreError, Writer};
use sha2::{Digest as _, Sha256};

use crate::access::credentials::{CredentialChecker, expiry};
use crate::access::policies::{self, PolicyValidator};
use crate::access::row_policies::{RolePolicies, RowPolicies};
use crate::access::scope_rules::{ScopeRules, ScopedTransaction};
use crate::commit::outcome;
use crate::commit::overlay::Overlay;
use crate::commit::registry::PreparedCall;
use crate::commit::request_ids;
use crate::ports::{Clock, Entropy};

/// The state of the log and of the open transaction, and everything needed to run a call.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) store: Writer,
    pub(crate) overlay: Overlay,
    pub(crate) chain: Chain,
    /// The time of the last event: the next one is not earlier.
    pub(crate) last_at: Micros,
    pub(crate) clock: Arc<dyn Clock>,
    salts: SaltPool,
    /// Access of restricted callers by scope.
    scope_rules: Arc<ScopeRules>,
    /// Access of restricted callers by policies.
    pub(crate) row_policies: RowPolicies,
    /// Checks credentials.
    pub(crate) credentials: CredentialChecker,
    /// Set during a call once it has written something.
    wrote: bool,
    /// Whether the log itself has subscribers.
    pub(crate) keeps_events: bool,
    /// The events of this transaction, if there are such subscribers.
    pub(crate) events: Vec<Event>,
    /// Validates policies.
    policy_validator: Option<Arc<PolicyValidator>>,
    /// The last events of module versions with older rules.
    former: Vec<LastBefore>,
}

/// Salts for events, drawn from the entropy source in batches.
#[derive(Debug)]
struct SaltPool {
    source: Arc<dyn Entropy>,
    drawn: Vec<Salt>,
}

/// Salts per draw: so few bytes that a draw takes microseconds, and enough that one system
/// call serves hundreds of events.
const SALTS_PER_DRAW: usize = 256;

impl SaltPool {
    fn next(&mut self) -> std::io::Result<Salt> {
        if self.drawn.is_empty() {
            let mut drawn = vec![Salt::default(); SALTS_PER_DRAW];
            self.source.fill(drawn.as_flattened_mut())?;
            self.drawn = drawn;
        }
        Ok(self.drawn.pop().expect("salts were drawn"))
    }
}

/// Values that a replay takes from the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayedEvent {
    pub(crate) at: Micros,
    /// `None` in events of format 1.
    pub(crate) salt: Option<Salt>,
}

/// The result of one call.
#[derive(Debug)]
pub(crate) struct CallOutcome {
    /// Its own event's seq, or that of the original call.
    pub(crate) seq: Seq,
    pub(crate) result: String,
    pub(crate) duplicate: bool,
    /// The refusal for the caller, if the call was refused with a record.
    pub(crate) refusal: Option<Refusal>,
}

/// A position of the executor to roll back to.
#[derive(Clone, Debug)]
pub(crate) struct RollbackPoint {
    chain: Chain,
    last_at: Micros,
    events: usize,
}

impl Executor {
    pub(crate) fn new(
        store: Writer,
        chain: Chain,
        last_at: Micros,
        (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>),
        scope_rules: ScopeRules,
        credentials: CredentialChecker,
        former: Vec<LastBefore>,
    ) -> Executor {
        let salts = SaltPool { source: entropy, drawn: Vec::new() };
        let (overlay, row_policies, scope_rules) =
            (Overlay::default(), scope_rules.row_policies(), Arc::new(scope_rules));
        let (keeps_events, events) = (false, Vec::new());
        let (wrote, policy_validator) = (false, None);
        Executor {
            store,
            overlay,
            chain,
            last_at,
            clock,
            salts,
            scope_rules,
            row_policies,
            credentials,
            wrote,
            keeps_events,
            events,
            policy_validator,
            former,
        }
    }

    /// Sets the policy validator. A replay needs none: the log contains only valid policies.
    pub(crate) fn with_policy_validator(self, policy_validator: PolicyValidator) -> Executor {
        Executor { policy_validator: Some(Arc::new(policy_validator)), ..self }
    }

    /// Runs one call and appends its event. `work_budget` limits deferrable work, if given.
    pub(crate) fn run(
        &mut self,
        caller: &Caller,
        request_id: Option<&str>,
        call: &PreparedCall,
        work_budget: Option<WorkBudget<'_>>,
    ) -> Result<CallOutcome, Abort> {
        let salt = self.salts.next().map_err(|error| Abort::Broken(Box::new(error)))?;
        let recorded = ReplayedEvent { at: self.now(), salt: Some(salt) };
        self.run_within(recorded, caller, request_id, call, work_budget)
    }

    /// The time of a call that runs now.
    pub(crate) fn now(&self) -> Micros {
        self.clock.now().max(self.last_at)
    }

    /// Like [`Executor::run`], with the time and the salt of the log, and unlimited work.
    pub(crate) fn run_again(
        &mut self,
        recorded: ReplayedEvent,
        caller: &Caller,
        request_id: Option<&str>,
        call: &PreparedCall,
    ) -> Result<CallOutcome, Abort> {
        self.run_within(recorded, caller, request_id, call, None)
    }

    fn run_within(
        &mut self,
        recorded: ReplayedEvent,
        caller: &Caller,
        request_id: Option<&str>,
        call: &PreparedCall,
        work_budget: Option<WorkBudget<'_>>,
    ) -> Result<CallOutcome, Abort> {
        self.wrote = false;
        let (seq, at) = (self.chain.seq.next(), recorded.at);
        let mut seed = recorded.salt.map_or(IdSource::Chain(self.chain.hash), IdSource::Salt);
        if makes(SeededBug::RandomIds) {
            let unrecorded = RandomState::new().hash_one(seq).to_be_bytes();
            seed = IdSource::Salt([unrecorded, unrecorded].concat().try_into().unwrap_or_default());
        }
        let (reply, session_id) = if caller.is_unbounded() {
            run_in(Context::new(seq, at, caller, seed, self).within(work_budget), call, &[])?
        } else {
            let scope_rules = Arc::clone(&self.scope_rules);
            let mut rows = ScopedTransaction::new(self, &scope_rules, caller)?;
            let context = Context::new(seq, at, caller, seed, &mut rows).within(work_budget);
            run_in(context, call, &scope_rules.guards)?
        };
        if let Some(seq) = reply.duplicate_of {
            assert!(!self.wrote, "{} wrote rows and returned a duplicate", call.reducer);
            let result = self.shown(caller, call.reducer, reply.result);
            let result = result.map_err(broken)?;
            return Ok(CallOutcome { seq, result, duplicate: true, refusal: None });
        }
        self.append_event(recorded, caller, request_id, call, session_id, reply).map_err(broken)
    }

    /// Appends the event of a call that writes no rows and runs no reducer: see
    /// [`request_ids::RECORD`].
    pub(crate) fn record(
        &mut self,
        caller: &Caller,
        request_id: &str,
        call: &PreparedCall,
    ) -> Result<(), Abort> {
        let salt = self.salts.next().map_err(|error| Abort::Broken(Box::new(error)))?;
        self.record_again(
            ReplayedEvent { at: self.now(), salt: Some(salt) },
            caller,
            request_id,
            call,
        )
    }

    /// Like [`Executor::record`], with the time and the salt of the log.
    pub(crate) fn record_again(
        &mut self,
        recorded: ReplayedEvent,
        caller: &Caller,
        request_id: &str,
        call: &PreparedCall,
    ) -> Result<(), Abort> {
        let reply = request_ids::nothing();
        let done = self.append_event(recorded, caller, Some(request_id), call, None, reply);
        done.map(drop).map_err(broken)
    }

    /// The policies for a caller's reducers in the open transaction; `None` if unrestricted.
    pub(crate) fn policies_of(
        &mut self,
        caller: &Caller,
    ) -> Result<Option<Arc<RolePolicies>>, StoreError> {
        if self.row_policies.is_stale() {
            // A touched policy row must be written before it is read.
            self.flush()?;
        }
        self.row_policies.of(&self.store, caller)
    }

    /// The result for its caller: without hidden columns, and without the
    /// reducer's secrets if the caller is restricted. The log contains everything.
    pub(crate) fn shown(
        &mut self,
        caller: &Caller,
        reducer: &str,
        result: String,
    ) -> Result<String, StoreError> {
        let result = match policies::is_bounded(caller) {
            true => self.scope_rules.without_secrets(reducer, result),
            false => result,
        };
        Ok(match self.policies_of(caller)? {
            Some(of_role) => of_role.shown(result),
            None => result,
        })
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

    fn append_event(
        &mut self,
        recorded: ReplayedEvent,
        caller: &Caller,
        request_id: Option<&str>,
        call: &PreparedCall,
        session_id: Option<String>,
        reply: Reply,
    ) -> Result<CallOutcome, StoreError> {
        let outcome = match &reply.refusal {
            Some(refusal) => outcome::refused(refusal),
            None => call.echo.compact(&reply.result),
        };
        let digests =
            Digests { arguments: call.digest, outcome: Sha256::digest(outcome.as_bytes()).into() };
        let mut event = Event {
            seq: Seq::ZERO,
            at: recorded.at,
            session_id,
            reducer: call.reducer.to_owned(),
            caller: caller.id().to_owned(),
            request_id: request_id.map(str::to_owned),
            arguments: call.arguments.clone(),
            outcome,
            prev_hash: [0; 32],
            hash: [0; 32],
            authority: caller.authority().map(str::to_owned),
            salt: recorded.salt,
        };
        self.wrote = true;
        let before = self.chain.seq;
        self.chain.append(&mut event, &digests);
        assert_eq!(event.seq, before.next(), "the log is dense");
        self.store.append_event(&event)?;
        self.last_at = recorded.at;
        let Reply { result, refusal, .. } = reply;
        let result = self.shown(caller, call.reducer, result)?;
        let done = CallOutcome { seq: event.seq, result, duplicate: false, refusal };
        if self.keeps_events {
            self.events.push(event);
        }
        Ok(done)
    }

    /// Checks a caller's permission without running the call: for a stored result.
    pub(crate) fn guard(&mut self, caller: &Caller, reducer: &str) -> Result<(), Abort> {
        if caller.is_unbounded() {
            return Ok(());
        }
        let scope_rules = Arc::clone(&self.scope_rules);
        // Guards generate no ids.
        let (seq, at, seed) = (self.chain.seq.next(), self.now(), IdSource::Chain(self.chain.hash));
        let mut rows = ScopedTransaction::new(self, &scope_rules, caller)?;
        let mut context = Context::new(seq, at, caller, seed, &mut rows);
        guarded(&mut context, reducer, &scope_rules.guards)
    }

    /// Whether a caller's credential is still valid. `state` is the seq of the last commit that changed
    /// the credential tables.
    pub(crate) fn check_credential(
        &mut self,
        caller: &Caller,
        state: Seq,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let Some(credential) = caller.credential() else { return Ok(Ok(())) };
        let now = self.now();
        if let Some(expired) = expiry(&credential.credential, now) {
            return Ok(Err(expired));
        }
        if self.credentials.is_current(credential, state) {
            return Ok(Ok(()));
        }
        self.flush()?;
        self.credentials.check(&self.store, caller, credential, now)
    }

    /// Whether the last call wrote anything before it ended.
    pub(crate) fn wrote(&self) -> bool {
        self.wrote
    }

    /// Writes the touched rows.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        for touched in self.overlay.take_unwritten() {
            self.store.update(touched.table, &touched.stored, &touched.row)?;
        }
        Ok(())
    }

    /// A row was changed, or will be when touches are written.
    fn changed(
        &mut self,
        (table, key): (&'static TableSpec, &[Value]),
        (before, after): (Option<Row>, Option<Row>),
        is_put_off: bool,
    ) {
        self.wrote = true;
        self.row_policies.note(table);
        self.credentials.note(table);
        self.overlay.change(table, key, before, after, is_put_off);
    }

    pub(crate) fn mark(&self) -> RollbackPoint {
        RollbackPoint {
            chain: self.chain.clone(),
            last_at: self.last_at,
            events: self.events.len(),
        }
    }

    pub(crate) fn return_to(&mut self, mark: RollbackPoint) {
        self.row_policies.forget();
        self.credentials.forget();
        self.chain = mark.chain;
        self.last_at = mark.last_at;
        self.events.truncate(mark.events);
    }

    pub(crate) fn known(
        &mut self,
        table: &'static TableSpec,
        key: &[Value],
    ) -> Result<Option<Row>, Abort> {
        if let Some(row) = self.overlay.get(table, key) {
            return Ok(row);
        }
        let row = self.store.get(table, key).map_err(broken)?;
        self.overlay.note(table, key, row.clone());
        Ok(row)
    }
}

/// Runs a call after its guards. Returns its reply, and the session that it concerns.
fn run_in(
    mut context: Context<'_>,
    call: &PreparedCall,
    guards: &[Guard],
) -> Result<(Reply, Option<String>), Abort> {
    guarded(&mut context, call.reducer, guards)?;
    let reply = call.call.run(&mut context)?;
    Ok((reply, context.session_id().map(str::to_owned)))
}

/// Asks the guards whether a caller may call a reducer. The answer does not depend on visible rows.
fn guarded(context: &mut Context<'_>, reducer: &str, guards: &[Guard]) -> Result<(), Abort> {
    context.without_policies(|context| guards.iter().try_for_each(|guard| guard(context, reducer)))
}

impl Transaction for Executor {
    fn get(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Option<Row>, Abort> {
        self.known(table, key)
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
        let it = self.former.iter().find(|it| it.module == module && it.version == version);
        it.map_or(Seq::ZERO, |it| it.last)
    }

    fn caller_of(&mut self, seq: Seq) -> Result<Option<String>, Abort> {
        self.store.caller_of(seq).map_err(broken)
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

    fn insert(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<Row, Abort> {
        let row = self.store.insert(table, row).map_err(refused)?;
        self.changed((table, &table.key_of(&row)), (None, Some(row.clone())), false);
        Ok(row)
    }

    fn update(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        let key = table.key_of(&row);
        let before = self.known(table, &key)?;
        assert!(before.is_some(), "a reducer updates a missing row of {}", table.name);
        if let Some(stored) = self.overlay.stored(table, &key) {
            self.store.update(table, &stored, &row).map_err(refused)?;
        }
        self.changed((table, &key), (before, Some(row.into())), false);
        Ok(())
    }

    fn touch(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        let key = table.key_of(&row);
        let before = self.known(table, &key)?;
        assert!(before.is_some(), "a reducer touches a missing row of {}", table.name);
        self.changed((table, &key), (before, Some(row.into())), true);
        Ok(())
    }

    fn delete(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<(), Abort> {
        let before = self.known(table, key)?;
        assert!(before.is_some(), "a reducer deletes a missing row of {}", table.name);
        self.store.delete(table, key).map_err(refused)?;
        self.changed((table, key), (before, None), false);
        Ok(())
    }
}

/// A failed write: a constraint violation is a refusal; any other error is internal.
fn refused(error: StoreError) -> Abort {
    match error {
        StoreError::Constraint { .. } => Abort::Refused(error.to_refusal()),
        error => broken(error),
    }
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

pub(crate) fn broken(error: StoreError) -> Abort {
    Abort::Broken(Box::new(error))
}

/// The refusal for an abort.
pub(crate) fn refusal_of(abort: &Abort) -> Refusal {
    match abort {
        Abort::Refused(refusal) => refusal.clone(),
        Abort::Broken(error) => match error.downcast_ref::<StoreError>() {
            Some(error) => error.to_refusal(),
            None => Refusal::new(Code::Internal, format!("the reducer failed: {error}")),
        },
        // Work is deferred only with a budget; without one this cannot happen.
        Abort::Deferred => Refusal::new(Code::Internal, "the call was deferred"),
    }
}
