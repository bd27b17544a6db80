//! Runs one unit in the open transaction: answers a retry from the log, or runs the calls, all or nothing. `execute` runs a
//! single call, `writer` the group of the unit.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use abide_schema::event::Event;
use abide_schema::reducer::Caller;
use abide_schema::work::SharedWork;
use abide_schema::{Abort, Code, Refusal, SEE_LOG, Seq, integers, limits};
use abide_store::StoreError;
use serde::de::IgnoredAny;
use serde_json::Value as JsonValue;

use crate::commit::execute::{Executor, RollbackPoint};
use crate::commit::outcome::{decode_refusal, decode_result};
use crate::commit::registry::PreparedCall;
use crate::commit::request_ids::{self, Request};
use crate::commit::table_watchers::TableWatchers;
use crate::commit::transaction::broken;
use crate::commit::unit::{CallOutcome, Unit, UnitOutcome, UnitResult};
use crate::fault_points;
use crate::threads::panic_text;

/// Why a transaction cannot be committed.
#[derive(Debug)]
pub(crate) enum TransactionFailure {
    /// A unit was refused after it had written rows, and it had no savepoint.
    NeedsSavepoints,
    /// The storage failed, or a deferred constraint of the group, or one of its touched rows was rejected.
    Store(StoreError),
}

impl From<StoreError> for TransactionFailure {
    fn from(error: StoreError) -> TransactionFailure {
        TransactionFailure::Store(error)
    }
}

/// Why a unit failed.
enum UnitFailure {
    /// Only this unit is refused.
    Refused(Refusal),
    /// Work must be done before it runs.
    Deferred(Vec<(usize, SharedWork)>),
    /// The transaction cannot continue.
    Store(StoreError),
}

impl From<StoreError> for UnitFailure {
    fn from(error: StoreError) -> UnitFailure {
        match error {
            // The storage is sound, and other units do not read this row.
            StoreError::Unreadable(_) => UnitFailure::Refused(error.to_refusal()),
            error => UnitFailure::Store(error),
        }
    }
}

impl UnitFailure {
    /// Returns the outcome of the unit, in a transaction that continues.
    fn outcome(self) -> Result<UnitOutcome, StoreError> {
        match self {
            UnitFailure::Refused(refusal) => Ok(UnitOutcome::Refused(refusal)),
            UnitFailure::Deferred(work) => Ok(UnitOutcome::Deferred(work)),
            UnitFailure::Store(error) => Err(error),
        }
    }
}

impl Executor {
    /// Runs a unit. A unit that is refused or deferred leaves nothing in the transaction.
    ///
    /// # Errors
    /// The transaction must be rolled back.
    pub(crate) fn run_unit(
        &mut self,
        unit: &Unit,
        on_savepoint: bool,
        watchers: &TableWatchers,
    ) -> Result<UnitOutcome, TransactionFailure> {
        match self.answer_without_running(unit, watchers) {
            Ok(None) => {}
            Ok(Some(answered)) => return Ok(UnitOutcome::Done(answered)),
            Err(failure) => return Ok(failure.outcome()?),
        }
        let start = self.mark();
        if on_savepoint {
            self.transaction.store.begin_unit()?;
            self.transaction.overlay.begin_unit();
        }
        let begun = self.transaction.rows_changed();
        let outcome = self.run_calls(unit);
        unit.rows_changed.set(self.transaction.rows_changed() - begun);
        match outcome {
            Ok(done) => {
                if on_savepoint {
                    self.transaction.overlay.keep_unit();
                    self.transaction.store.keep_unit()?;
                }
                Ok(UnitOutcome::Done(done))
            }
            Err(failure) => {
                let outcome = failure.outcome()?;
                if on_savepoint {
                    self.undo_unit(start)?;
                } else if self.has_written_since(&start) {
                    return Err(TransactionFailure::NeedsSavepoints);
                }
                Ok(outcome)
            }
        }
    }

    /// Rolls back to the savepoint of a unit.
    fn undo_unit(&mut self, start: RollbackPoint) -> Result<(), StoreError> {
        self.transaction.store.undo_unit()?;
        self.transaction.overlay.undo_unit();
        if !fault_points::refused_keeps_seq() {
            self.return_to(start);
        }
        Ok(())
    }

    /// Answers a unit that must not run: its credential was revoked while it was queued, it is a retry, or the process is
    /// about to stop. It writes nothing.
    fn answer_without_running(
        &mut self,
        unit: &Unit,
        watchers: &TableWatchers,
    ) -> Result<Option<UnitResult>, UnitFailure> {
        if unit.caller.credential().is_some() {
            self.check_credential(&unit.caller, watchers.credentials())?
                .map_err(UnitFailure::Refused)?;
        }
        if let Some(request) = fault_points::remembered(unit.request.as_ref())
            && let Some(answered) = self.stored_result(unit, request)?
        {
            return Ok(Some(answered));
        }
        match &unit.refusal_if_new {
            Some(refusal) => Err(UnitFailure::Refused((**refusal).clone())),
            None => Ok(None),
        }
    }

    /// Runs the calls of a unit, and stores its request id.
    fn run_calls(&mut self, unit: &Unit) -> Result<UnitResult, UnitFailure> {
        let request_id = unit.request.as_ref().map(|request| request.id.as_str());
        let mut calls = Vec::with_capacity(unit.calls.len());
        let deferred = RefCell::default();
        let store = &self.transaction.store;
        let begun = store.steps();
        let begun_bytes = store.bytes_read();
        let begun_rows = self.transaction.rows_changed();
        let mut result_bytes = 0;
        for (nth, call) in unit.calls.iter().enumerate() {
            let store = &self.transaction.store;
            let is_too_large = store.steps() - begun > limits::batch_steps(nth)
                || store.bytes_read() - begun_bytes > limits::BATCH_READ_BYTES
                || self.transaction.rows_changed() - begun_rows > limits::BATCH_ROWS
                || result_bytes > limits::BATCH_RESULT_BYTES;
            if nth > 0 && is_too_large {
                return Err(UnitFailure::Refused(too_large(nth, unit)));
            }
            let work_budget = unit.work_budget(nth, &deferred);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                self.run(&unit.caller, request_id, call, work_budget)
            }))
            .unwrap_or_else(|panic| Err(panicked(&panic_text(panic.as_ref()))));
            match outcome {
                Ok(CallOutcome { refusal: Some(refusal), .. }) if unit.calls.len() > 1 => {
                    // A batch is all or nothing: no record of the refusal is kept either.
                    return Err(classify(Abort::Refused(refusal), call, nth, unit));
                }
                Ok(done) => {
                    result_bytes += done.result.len();
                    calls.push(done);
                }
                Err(abort) => {
                    return Err(deferred_first(
                        classify(abort, call, nth, unit),
                        deferred.into_inner(),
                    ));
                }
            }
        }
        let deferred = deferred.into_inner();
        if !deferred.is_empty() {
            return Err(UnitFailure::Deferred(deferred));
        }
        if let Some(request) = fault_points::remembered(unit.request.as_ref())
            && calls.iter().any(|done| !done.duplicate)
        {
            let last = unit.calls.len() - 1;
            self.remember(&unit.caller, request, &calls)
                .map_err(|abort| classify(abort, &unit.calls[last], last, unit))?;
        }
        Ok(UnitResult { calls, duplicate: false })
    }

    /// Returns the result of an earlier use of a request id. A caller that may no longer call the reducer does
    /// not get the stored result, and neither does one whose policies may hide rows of it.
    fn stored_result(
        &mut self,
        unit: &Unit,
        request: &Request,
    ) -> Result<Option<UnitResult>, UnitFailure> {
        let caller = &unit.caller;
        let store = &self.transaction.store;
        let Some(found) = store.request(caller.principal(), &request.id)? else {
            return Ok(None);
        };
        for (position, call) in unit.calls.iter().enumerate() {
            self.check_may_call(caller, call.reducer)
                .map_err(|abort| classify(abort, call, position, unit))?;
        }
        if !request.is_stored_in(&found) {
            let detail =
                format!("request id {:?} was already used for another request", request.id);
            return Err(UnitFailure::Refused(Refusal::new(Code::RequestIdConflict, detail).hint(
                "a retry must repeat reducer and arguments exactly; use a new id for a new request",
            )));
        }
        let seqs = request_ids::seqs_of(&found);
        if seqs.len() != unit.calls.len() {
            let why = format!("the stored events of request id {:?} are unreadable", request.id);
            return Err(StoreError::Unreadable(why).into());
        }
        let policies = self.transaction.policies_of(caller).map_err(UnitFailure::Store)?;
        let mut calls = Vec::with_capacity(seqs.len());
        for seq in seqs {
            let event = self.transaction.store.event(seq).map_err(UnitFailure::Store)?;
            // Not an event of another request that this one has repeated: any caller may have made it.
            let own = event.as_ref().filter(|event| {
                event.caller == caller.id() && event.request_id.as_ref() == Some(&request.id)
            });
            if policies.is_some()
                && own.is_some_and(|own| own.authority.as_deref() != caller.authority())
            {
                let detail =
                    format!("request id {:?} was already used with other rights", request.id);
                return Err(UnitFailure::Refused(
                    Refusal::new(Code::RequestIdConflict, detail)
                        .hint("repeat the request with the role and the capabilities of its first attempt"),
                ));
            }
            // The work of the call may have gone on in later transactions: then its result is that of the last step.
            let last_step = match &event {
                Some(first) => self.last_step(first).map_err(UnitFailure::Store)?,
                None => None,
            };
            if unit.calls.len() == 1
                && let Some(failure) = last_step.as_ref().and_then(step_failure)
            {
                return Err(UnitFailure::Refused(failure));
            }
            let event = last_step.or(event);
            let refusal = event.as_ref().and_then(|event| decode_refusal(&event.outcome));
            let result = event.as_ref().map_or_else(
                || "null".to_owned(),
                |event| decode_result(&event.outcome, &event.arguments),
            );
            if serde_json::from_str::<IgnoredAny>(&result).is_err() {
                let why = format!("the stored result of request id {:?} is unreadable", request.id);
                return Err(StoreError::Unreadable(why).into());
            }
            let reducer = event.as_ref().map_or("", |event| &event.reducer);
            let result =
                self.visible_result(caller, reducer, result).map_err(UnitFailure::Store)?;
            let seq = event.as_ref().map_or(seq, |event| event.seq);
            calls.push(CallOutcome { seq, result, duplicate: true, refusal });
        }
        Ok(Some(UnitResult { calls, duplicate: true }))
    }

    /// Returns the last step so far of a call whose work goes on in later transactions; `None` if it needs none.
    fn last_step(&self, first: &Event) -> Result<Option<Event>, StoreError> {
        let store = &self.transaction.store;
        let step = self.scope_rules.step_of(&first.reducer);
        let Some((step, session_id)) = step.zip(first.session_id.as_deref()) else {
            return Ok(None);
        };
        match store.last_of_run(session_id, first.seq, step)? {
            Some(last) => store.event(last),
            None => Ok(None),
        }
    }

    /// Stores the calls of a request id. If one of them was a duplicate, an extra event logs them: the request's own
    /// events do not name that call.
    fn remember(
        &mut self,
        caller: &Caller,
        request: &Request,
        calls: &[CallOutcome],
    ) -> Result<(), Abort> {
        let seqs: Vec<Seq> = calls.iter().map(|done| done.seq).collect();
        if calls.iter().any(|done| done.duplicate) {
            self.record(caller, &request.id, &request.record(&seqs))?;
        }
        let row = request.row(caller, &seqs, &self.last_salt);
        self.transaction.store.remember_request(row).map_err(broken)
    }
}

/// Returns why the work of a call could not be completed, if its last step says so: see `Module::continuing`.
fn step_failure(step: &Event) -> Option<Refusal> {
    let arguments: JsonValue = integers::parse(&step.arguments).ok()?;
    let error = arguments.get("error").filter(|error| !error.is_null())?;
    let code = Code::parse(error["code"].as_str()?)?;
    Some(Refusal::new(code, error["message"].as_str()?))
}

/// Returns the refusal of a batch that would block the writer: it takes too long, or reads, changes or returns too much.
fn too_large(calls: usize, unit: &Unit) -> Refusal {
    let all = unit.calls.len();
    let detail = format!("the first {calls} of {all} calls do too much for one transaction");
    Refusal::new(Code::LimitExceeded, detail).hint("send the calls in several batches")
}

/// Returns the failure of a unit. Deferred work may have caused a refusal, so that is done first and the unit runs
/// again.
fn deferred_first(failure: UnitFailure, deferred: Vec<(usize, SharedWork)>) -> UnitFailure {
    match failure {
        UnitFailure::Refused(_) if !deferred.is_empty() => UnitFailure::Deferred(deferred),
        failure => failure,
    }
}

/// Returns the failure of a unit by this abort of a call, which ends the transaction or only the unit.
fn classify(abort: Abort, call: &PreparedCall, position: usize, unit: &Unit) -> UnitFailure {
    let mut refusal = match abort {
        Abort::Refused(refusal) => refusal,
        // The caller replaces this by the deferred work.
        Abort::Deferred => Refusal::new(Code::Internal, "the call was deferred"),
        Abort::Broken(error) => {
            match error.downcast::<StoreError>() {
                Ok(error) if !error.is_the_statements_own() => return UnitFailure::Store(*error),
                Ok(error) => {
                    tracing::error!(
                        name: "reducer_failed",
                        %error,
                        reducer = call.reducer,
                        "a reducer's own SQL failed"
                    );
                }
                Err(error) => tracing::error!(
                    name: "reducer_failed",
                    %error,
                    reducer = call.reducer,
                    "a reducer failed"
                ),
            }
            let detail = format!("{} failed with an internal error", call.reducer);
            Refusal::new(Code::Internal, detail).hint(SEE_LOG)
        }
    };
    if unit.calls.len() > 1 {
        refusal.batch_position = Some(position + 1);
    }
    UnitFailure::Refused(refusal)
}

/// Returns the abort of a call that panicked.
fn panicked(why: &str) -> Abort {
    Abort::Broken(format!("it panicked: {why}").into())
}
