//! Runs calls in the open transaction, and appends one event per call to the chain.
//!
//! Here a call gets its seq, its time and its salt, which determine the ids that it generates; a restricted caller gets
//! its guards and a view of its rows; and the reducer runs. `run_unit` decides which calls run; `replay` runs them
//! again with the values of the log.

use std::sync::Arc;

use abide_log::{Chain, Digests};
use abide_schema::event::{Event, Salt};
use abide_schema::reducer::{Caller, Reply};
use abide_schema::work::WorkBudget;
use abide_schema::{Abort, Context, Micros, Refusal, Seq};
use abide_store::StoreError;
use sha2::{Digest as _, Sha256};

use crate::access::policy_rows::is_restricted;
use crate::access::scope_rules::ScopeRules;
use crate::access::scoped_transaction::ScopedTransaction;
use crate::commit::outcome;
use crate::commit::registry::PreparedCall;
use crate::commit::request_ids;
use crate::commit::transaction::{GroupTransaction, broken};
use crate::commit::unit::CallOutcome;
use crate::fault_points;
use crate::ports::{Clock, Entropy, EventSources};

/// The state of the log and of the open transaction, and everything needed to run a call.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) transaction: GroupTransaction,
    pub(crate) chain: Chain,
    /// The time of the last event: the next one is not earlier.
    last_at: Micros,
    /// The salt of the last event that was appended.
    pub(crate) last_salt: Salt,
    pub(crate) clock: Arc<dyn Clock>,
    salts: SaltPool,
    /// Access of restricted callers.
    pub(crate) scope_rules: ScopeRules,
    /// Whether the log itself has subscribers.
    pub(crate) keeps_events: bool,
    /// The events of this transaction, if there are such subscribers.
    pub(crate) events: Vec<Event>,
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
    pub(crate) salt: Salt,
}

/// The end of the log.
#[derive(Clone, Debug)]
pub(crate) struct LogPosition {
    pub(crate) chain: Chain,
    /// The time of the last event.
    pub(crate) last_at: Micros,
}

/// A position of the executor to roll back to.
#[derive(Clone, Debug)]
pub(crate) struct RollbackPoint {
    log: LogPosition,
    events: usize,
}

impl Executor {
    pub(crate) fn new(
        transaction: GroupTransaction,
        log: LogPosition,
        sources: EventSources,
        scope_rules: ScopeRules,
    ) -> Executor {
        Executor {
            transaction,
            chain: log.chain,
            last_at: log.last_at,
            last_salt: Salt::default(),
            clock: sources.clock,
            salts: SaltPool { source: sources.entropy, drawn: Vec::new() },
            scope_rules,
            keeps_events: false,
            events: Vec::new(),
        }
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
        let recorded = ReplayedEvent { at: self.now(), salt };
        self.run_within(recorded, caller, request_id, call, work_budget)
    }

    /// Returns the time of a call that runs now: that of the clock, and not earlier than the last event.
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

    /// Runs one call with this time and salt. A duplicate, which the reducer itself recognizes by its rows, appends no
    /// event.
    fn run_within(
        &mut self,
        recorded: ReplayedEvent,
        caller: &Caller,
        request_id: Option<&str>,
        call: &PreparedCall,
        work_budget: Option<WorkBudget<'_>>,
    ) -> Result<CallOutcome, Abort> {
        self.transaction.begin_call();
        let seq = self.chain.seq.next();
        let at = recorded.at;
        let salt = fault_points::salt_of_ids(recorded.salt, seq);
        let rows = &mut self.transaction;
        let rules = &self.scope_rules;
        let (reply, session_id) = if caller.is_unrestricted() {
            run_call(Context::new(seq, at, caller, salt, rows).within(work_budget), call)?
        } else {
            let mut rows = ScopedTransaction::new(rows, rules, caller)?;
            let mut context = Context::new(seq, at, caller, salt, &mut rows).within(work_budget);
            rules.run_guards(&mut context, call.reducer)?;
            run_call(context, call)?
        };
        if let Some(seq) = reply.duplicate_of {
            assert!(
                !self.transaction.wrote(),
                "{} wrote rows and returned a duplicate",
                call.reducer
            );
            let result = self.visible_result(caller, call.reducer, reply.result).map_err(broken)?;
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
        self.record_again(ReplayedEvent { at: self.now(), salt }, caller, request_id, call)
    }

    /// Like [`Executor::record`], with the time and the salt of the log.
    pub(crate) fn record_again(
        &mut self,
        recorded: ReplayedEvent,
        caller: &Caller,
        request_id: &str,
        call: &PreparedCall,
    ) -> Result<(), Abort> {
        self.transaction.begin_call();
        let reply = request_ids::record_reply();
        self.append_event(recorded, caller, Some(request_id), call, None, reply)
            .map(drop)
            .map_err(broken)
    }

    /// Returns the result for its caller: without hidden columns, and without the
    /// reducer's secrets if the caller is restricted. The log contains everything.
    pub(crate) fn visible_result(
        &mut self,
        caller: &Caller,
        reducer: &str,
        result: String,
    ) -> Result<String, StoreError> {
        let result = if is_restricted(caller) {
            self.scope_rules.without_secrets(reducer, result)
        } else {
            result
        };
        Ok(match self.transaction.policies_of(caller)? {
            Some(policies) => policies.without_hidden_columns(result),
            None => result,
        })
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
            Some(refusal) => outcome::encode_refusal(refusal),
            None => outcome::encode_result(&reply.result, &call.arguments),
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
            // The store takes them from the call, without a copy.
            arguments: String::new(),
            outcome,
            prev_hash: [0; 32],
            hash: [0; 32],
            authority: caller.authority().map(str::to_owned),
            salt: recorded.salt,
            rows_hash: self.transaction.take_rows_hash(&recorded.salt, call),
        };
        let before = self.chain.seq;
        self.chain.append(&mut event, &digests);
        assert_eq!(event.seq, before.next(), "the log is dense");
        self.transaction.append_event(&event, &call.arguments)?;
        self.last_at = recorded.at;
        self.last_salt = recorded.salt;
        let Reply { result, refusal, .. } = reply;
        let result = self.visible_result(caller, call.reducer, result)?;
        let done = CallOutcome { seq: event.seq, result, duplicate: false, refusal };
        if self.keeps_events {
            call.arguments.text().clone_into(&mut event.arguments);
            self.events.push(event);
        }
        Ok(done)
    }

    /// Checks a caller's permission without running the call: for a stored result.
    pub(crate) fn check_may_call(&mut self, caller: &Caller, reducer: &str) -> Result<(), Abort> {
        if caller.is_unrestricted() {
            return Ok(());
        }
        let seq = self.chain.seq.next();
        let at = self.now();
        // Guards generate no ids.
        let salt = Salt::default();
        let rules = &self.scope_rules;
        let mut rows = ScopedTransaction::new(&mut self.transaction, rules, caller)?;
        let mut context = Context::new(seq, at, caller, salt, &mut rows);
        rules.run_guards(&mut context, reducer)
    }

    /// Returns the refusal of a credential that is no longer valid. `state` is the seq of the last commit that changed
    /// the credential tables.
    pub(crate) fn check_credential(
        &mut self,
        caller: &Caller,
        state: Seq,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let now = self.now();
        self.transaction.check_credential(caller, state, now)
    }

    /// Returns the position to which [`Executor::return_to`] goes back. It has the log only: the rows are rolled back
    /// by SQLite and by the overlay.
    pub(crate) fn mark(&self) -> RollbackPoint {
        let log = LogPosition { chain: self.chain.clone(), last_at: self.last_at };
        RollbackPoint { log, events: self.events.len() }
    }

    /// Goes back to a position, after the rows were rolled back.
    pub(crate) fn return_to(&mut self, mark: RollbackPoint) {
        let RollbackPoint { log, events } = mark;
        self.transaction.calls_undone();
        self.chain = log.chain;
        self.last_at = log.last_at;
        self.events.truncate(events);
    }

    /// `true` if calls have written anything since, or the last call has before it ended.
    pub(crate) fn has_written_since(&self, mark: &RollbackPoint) -> bool {
        self.transaction.wrote() || self.chain.seq != mark.log.chain.seq
    }
}

/// Runs a call. Returns its reply, and the session that it concerns.
fn run_call(
    mut context: Context<'_>,
    call: &PreparedCall,
) -> Result<(Reply, Option<String>), Abort> {
    let reply = call.run(&mut context)?;
    Ok((reply, context.session_id().map(str::to_owned)))
}
