//! The single writer: runs queued jobs in one transaction, in order.
//!
//! *Invariant:* only this thread writes the file and advances the
//! log. *Invariant:* the outcome of a unit and every delta leave through the sync thread. Only registrations of
//! subscriptions and requests for metrics are answered here.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use abide_live::{
    BackfillRequest, BackfilledGroup, Binding, BindingId, Changes, LiveError, Router, TemplateWork,
};
use abide_schema::reducer::Caller;
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::work::SharedWork;
use abide_schema::{Abort, Code, Refusal, Seq, TableSpec, limits};
use abide_store::{Reader, StoreError, change_log};
use tokio::sync::oneshot;

use crate::access::denials::{self, Denial, Denials};
use crate::access::policies::{self, TransactionPolicies};
use crate::commit::deferred::Deferred;
use crate::commit::durable::{Commit, ReplyEnvelope, UnitResult};
use crate::commit::execute::{CallOutcome, Executor, broken};
use crate::commit::outcome::{expand, refusal_in};
use crate::commit::overlay::NetChange;
use crate::commit::queue::Queue;
use crate::commit::registry::{PreparedCall, Registry};
use crate::commit::request_ids::{self, Request};
use crate::commit::retention::ChangeLog;
use crate::commit::table_watchers::TableWatchers;
use crate::commit::timers::Timers;
use crate::commit::unit::Unit;
use crate::commit::writer_sql::WriterSql;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::{EngineThread, FaultPoint, StepScheduler};
use crate::queries::readers::ReaderJob;
use crate::subscriptions::hub::{Hub, Outbox, SharedDelta, SubscriptionKey};
use crate::subscriptions::resume::{self, ReaderSql};
use crate::threads::panic_text;

/// Jobs of the writer.
#[derive(Debug)]
pub(crate) enum WriterJob {
    /// Calls to run, all or nothing.
    Unit(Unit),
    /// A subscription to attach, between two transactions.
    Attach(Attach),
    /// A subscription that ended.
    Detach(BindingId),
    /// Accumulators that a reader has filled.
    Backfill(BackfillResult),
    /// A request was denied by the server.
    Denied(Denial),
    /// Asks for the cost of each template.
    Templates(oneshot::Sender<Vec<TemplateWork>>),
}

/// Accumulators for a live query as of a seq; `None` if they could not be read.
#[derive(Debug)]
pub(crate) struct BackfillResult {
    wanted: BackfillRequest,
    filled: Option<(Seq, BackfilledGroup)>,
}

/// A subscription to attach.
#[derive(Debug)]
pub(crate) struct Attach {
    pub(crate) binding: Binding,
    pub(crate) connection: u64,
    pub(crate) key: SubscriptionKey,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) reply: oneshot::Sender<Result<Registration, Refusal>>,
}

/// A subscription's registration at the writer and in the hub. Dropping it releases both.
#[derive(Debug)]
pub(crate) struct Registration {
    jobs: Arc<Queue<WriterJob>>,
    hub: Arc<Hub>,
    binding: BindingId,
    connection: u64,
    key: SubscriptionKey,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.hub.unlisten(self.binding, self.connection, self.key);
        // Only a closed queue refuses an item without weight, and then there is nothing to detach from.
        let _ = self.jobs.push(None, WriterJob::Detach(self.binding), 0);
    }
}

/// The writer thread. It ends when its queue is closed and drained.
pub(crate) struct WriterThread {
    pub(crate) executor: Executor,
    pub(crate) timers: Timers,
    pub(crate) policies: TransactionPolicies,
    pub(crate) registry: Arc<Registry>,
    pub(crate) router: Router,
    pub(crate) jobs: Arc<Queue<WriterJob>>,
    pub(crate) commits: Arc<Queue<Commit>>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    /// Selects the denied attempts to record.
    pub(crate) denials: Denials,
    pub(crate) watchers: Arc<TableWatchers>,
    /// Held during each transaction; the checkpointer holds it to let the WAL restart.
    pub(crate) gate: Arc<Mutex<()>>,
    /// The tables with undo images.
    pub(crate) tables: Vec<&'static TableSpec>,
    pub(crate) change_log: ChangeLog,
    /// Number of attached subscriptions.
    pub(crate) attached: usize,
    /// Reads the state between two transactions.
    pub(crate) reader: Reader,
    /// The readers' queue.
    pub(crate) fillers: Arc<Queue<ReaderJob>>,
    /// The tables that can be queried live.
    pub(crate) live_tables: Arc<[&'static TableSpec]>,
    pub(crate) scheduler: Arc<dyn StepScheduler>,
}

/// The weight of a commit in the queue of unsynced ones: one, and more if it is large, so that a sync, which
/// all callers wait for, never covers many megabytes.
fn weight(units: &[Unit]) -> usize {
    1 + units.iter().map(Unit::bytes).sum::<usize>() / limits::UNSYNCED_UNIT_BYTES
}

/// A refused call had already written, so the transaction must start over.
struct NeedsSavepoint;

/// Why a unit failed.
enum UnitFailure {
    /// Only this unit is refused.
    Refused(Refusal),
    /// Work must be done before it runs.
    Deferred(Vec<(usize, SharedWork)>),
    /// It failed after writing rows in the transaction.
    NeedsSavepoint,
    /// The transaction cannot continue.
    Storage(StoreError),
}

impl WriterThread {
    pub(crate) fn run(mut self) {
        let mut jobs = Vec::new();
        loop {
            self.scheduler.wait(EngineThread::Writer);
            let sleep = self.timers.sleep(self.executor.now());
            if !self.jobs.take_within(sleep, limits::COMMIT_BYTES, &mut jobs) {
                break;
            }
            let mut units = self.due();
            for job in jobs.drain(..) {
                match job {
                    WriterJob::Unit(unit) => units.push(unit),
                    WriterJob::Attach(attach) => self.attach(attach),
                    WriterJob::Detach(binding) => self.detach(binding),
                    WriterJob::Backfill(apply_backfill) => self.apply_backfill(apply_backfill),
                    WriterJob::Denied(denial) => {
                        self.scheduler.at_fault_point(FaultPoint::Denied);
                        units.extend(self.record(&denial));
                    }
                    // The requester may have gone.
                    WriterJob::Templates(reply) => drop(reply.send(self.router.templates())),
                }
            }
            if !units.is_empty() {
                self.commit(units);
                self.order_fills();
            }
        }
        self.commits.close();
    }

    /// Calls for due rows.
    fn due(&mut self) -> Vec<Unit> {
        self.scheduler.at_fault_point(FaultPoint::Due);
        let now = self.executor.now();
        let asked = match self.health.check() {
            Ok(()) => self.timers.due(&self.executor.store, now),
            Err(_) => {
                self.timers.rest(now);
                return Vec::new();
            }
        };
        let due = asked.unwrap_or_else(|error| {
            self.timers.rest(now);
            match error {
                StoreError::Broken(why) => self.health.poison(&why),
                error => tracing::warn!(%error, "due rows could not be read"),
            }
            Vec::new()
        });
        let mut units = Vec::with_capacity(due.len());
        for due in due {
            match self.registry.ready_any(due.reducer, &due.arguments) {
                Ok(call) => units.push(Unit::of_engine(vec![call], Some(due))),
                Err(refusal) => self.timers.refused(&due, &refusal, now),
            }
        }
        units
    }

    /// The call that records a denied attempt, if it should be recorded.
    fn record(&mut self, denial: &Denial) -> Vec<Unit> {
        self.metrics.denied_total.add(1);
        let Some(arguments) = self.denials.admit(denial, self.executor.now()) else {
            return Vec::new();
        };
        let calls = self.denials.denial_recorders.iter().filter_map(|denial_recorder| {
            let ready = self.registry.ready_any(denial_recorder, &arguments);
            ready
                .inspect_err(|why| tracing::error!(%why, "a denied attempt could not be recorded"))
                .ok()
        });
        vec![Unit::of_engine(calls.collect(), None)]
    }

    /// The commit pipeline: units → transaction → answers and deltas to the sync thread.
    fn commit(&mut self, units: Vec<Unit>) {
        self.commit_with(units, Vec::new());
    }

    /// Like `commit`; `carried` is answered with it, once it is durable.
    fn commit_with(&mut self, units: Vec<Unit>, carried: Vec<ReplyEnvelope>) {
        let gate = Arc::clone(&self.gate);
        let held = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let start = self.executor.mark();
        let transacted = match self.health.check() {
            Err(refusal) => Err(refusal),
            Ok(()) => match self.transact(&units) {
                Err(error @ StoreError::Constraint { .. }) if units.len() > 1 => {
                    // Deferred foreign key violation at COMMIT. SQLite does not report which row: run each
                    // unit alone, so that only the violating one is refused.
                    self.undo(start, &error);
                    drop(held);
                    self.commit_with(Vec::new(), carried);
                    return units.into_iter().for_each(|unit| self.commit(vec![unit]));
                }
                transacted => transacted.map_err(|error| self.undo(start, &error)),
            },
        };
        let (outcomes, deltas) = match transacted {
            Ok(transacted) => transacted,
            Err(refusal) => (units.iter().map(|_| Err(refusal.clone())).collect(), Vec::new()),
        };
        drop(held);
        self.count(&units, &outcomes, deltas.len());
        self.metrics.writer_steps_total.set(self.executor.store.steps());
        let weight = weight(&units);
        let (mut answers, mut denied, mut records) = (carried, Vec::new(), Vec::new());
        for (unit, mut outcome) in units.into_iter().zip(outcomes) {
            if let Ok(UnitResult { deferred, .. }) = &mut outcome
                && !deferred.is_empty()
            {
                Deferred::start(unit, std::mem::take(deferred), &self.jobs, &self.fillers);
                continue;
            }
            let record = self.denied(&unit, &outcome);
            let to = if record.is_empty() { &mut answers } else { &mut denied };
            to.push(ReplyEnvelope { reply: unit.reply, outcome });
            records.extend(record);
        }
        self.scheduler.at_fault_point(FaultPoint::Committed);
        let mut commit = Commit { to: self.executor.chain.seq, answers, deltas };
        self.publish_before_sync(&mut commit);
        self.commits.push_wait(commit, weight);
        if !records.is_empty() {
            // A caller that receives `denied` can already find the record.
            self.commit_with(records, denied);
        }
    }

    /// For the seeded bugs that do not wait for the sync.
    fn publish_before_sync(&self, commit: &mut Commit) {
        if makes(SeededBug::AckBeforeSync) {
            for ReplyEnvelope { reply, outcome } in commit.answers.drain(..) {
                // The caller may have gone.
                let _ = reply.send(outcome);
            }
        }
        if makes(SeededBug::DeltaBeforeSync) {
            self.hub.publish(commit.to, &std::mem::take(&mut commit.deltas), &self.metrics);
        }
    }

    /// The record of a denied unit.
    fn denied(&mut self, unit: &Unit, outcome: &UnitOutcome) -> Vec<Unit> {
        let Err(refusal) = outcome else { return Vec::new() };
        let reducers: Vec<&'static str> = unit.calls.iter().map(|call| call.reducer).collect();
        let denial = denials::of_unit(&unit.caller, &reducers, refusal);
        denial.map(|denial| self.record(&denial)).unwrap_or_default()
    }

    /// Runs the units in one transaction. After an error nothing of it is kept.
    fn transact(&mut self, units: &[Unit]) -> Result<TransactionResult, StoreError> {
        let (start, from) = (self.executor.mark(), self.executor.chain.seq);
        self.executor.store.begin()?;
        self.scheduler.at_fault_point(FaultPoint::Begun);
        let outcomes = match self.run_units(units, false)? {
            Ok(outcomes) => outcomes,
            Err(NeedsSavepoint) => {
                // Rare: reducers check before they write. Start over, each unit with a savepoint.
                self.metrics.savepoint_reruns_total.add(1);
                self.executor.store.rollback()?;
                self.executor.overlay.forget();
                self.executor.return_to(start);
                self.executor.store.begin()?;
                let careful = self.run_units(units, true)?;
                careful.unwrap_or_else(|NeedsSavepoint| unreachable!("a savepoint undoes any unit"))
            }
        };
        self.scheduler.at_fault_point(FaultPoint::Ran);
        let to = self.executor.chain.seq;
        if to == from {
            self.executor.store.rollback()?;
            self.executor.credentials.settled();
            self.executor.overlay.committed();
            return Ok((outcomes, Vec::new()));
        }
        self.executor.flush()?;
        let changes = self.executor.overlay.changes();
        if changes.iter().any(|change| change.table.name == policies::TABLE) {
            // Before the commit: a reader that sees it then finds its policies outdated.
            self.policies.renew(&self.executor.store)?;
        }
        self.timers.note(&changes);
        self.log_changes(&changes, from, to)?;
        let touched = self.watchers.touched(&changes);
        let deltas = self.deltas(changes)?;
        self.scheduler.at_fault_point(FaultPoint::Commit);
        self.executor.store.commit()?;
        self.policies.keep();
        touched.tell(to);
        self.executor.credentials.settled();
        self.executor.overlay.committed();
        self.executor.events.clear();
        self.metrics.commits_total.add(1);
        self.prune_change_log(to);
        Ok((outcomes, deltas))
    }

    /// Rolls back a failed transaction. Returns the refusal for its callers.
    fn undo(
        &mut self,
        start: crate::commit::execute::RollbackPoint,
        error: &StoreError,
    ) -> Refusal {
        self.router.forget();
        self.policies.put_back();
        self.executor.credentials.settled();
        self.executor.overlay.forget();
        self.executor.return_to(start);
        self.executor.events.clear();
        let undone = self.executor.store.rollback();
        if let StoreError::Broken(why) = error {
            self.health.poison(why);
        } else if let Err(why) = undone {
            self.health.poison(&why);
        }
        self.health.check().err().unwrap_or_else(|| error.to_refusal())
    }

    /// Runs units in order. The outer error ends the transaction, the inner one requests a careful rerun.
    fn run_units(
        &mut self,
        units: &[Unit],
        careful: bool,
    ) -> Result<Result<Vec<UnitOutcome>, NeedsSavepoint>, StoreError> {
        let mut outcomes = Vec::with_capacity(units.len());
        for unit in units {
            // Batches are often refused half-way, so each has a savepoint from the start.
            let outcome = if careful || unit.calls.len() > 1 {
                self.run_on_savepoint(unit)
            } else {
                self.run_unit(unit)
            };
            match outcome {
                Ok(done) => outcomes.push(Ok(done)),
                Err(UnitFailure::Refused(refusal)) => outcomes.push(Err(refusal)),
                Err(UnitFailure::Deferred(deferred)) => {
                    outcomes.push(Ok(UnitResult { calls: Vec::new(), duplicate: false, deferred }));
                }
                Err(UnitFailure::NeedsSavepoint) => return Ok(Err(NeedsSavepoint)),
                Err(UnitFailure::Storage(error)) => return Err(error),
            }
        }
        Ok(Ok(outcomes))
    }

    fn run_on_savepoint(&mut self, unit: &Unit) -> Result<UnitResult, UnitFailure> {
        let mark = self.executor.mark();
        self.executor.store.savepoint().map_err(UnitFailure::Storage)?;
        self.executor.overlay.begin_unit();
        let failure = match self.run_calls(unit) {
            Ok(done) => {
                self.executor.overlay.keep_unit();
                self.executor.store.release().map_err(UnitFailure::Storage)?;
                return Ok(done);
            }
            Err((failure @ (UnitFailure::Refused(_) | UnitFailure::Deferred(_)), _)) => failure,
            Err((failure, _)) => return Err(failure),
        };
        self.executor.store.rollback_to_savepoint().map_err(UnitFailure::Storage)?;
        self.executor.overlay.undo_unit();
        if !makes(SeededBug::GapAfterRefusal) {
            self.executor.return_to(mark);
        }
        Err(failure)
    }

    fn run_unit(&mut self, unit: &Unit) -> Result<UnitResult, UnitFailure> {
        self.run_calls(unit).map_err(|(failure, wrote)| match failure {
            UnitFailure::Refused(_) | UnitFailure::Deferred(_) if wrote => {
                UnitFailure::NeedsSavepoint
            }
            failure => failure,
        })
    }

    /// Runs the calls of a unit, or answers from the original request. The flag of an error says
    /// whether rows were written before it.
    fn run_calls(&mut self, unit: &Unit) -> Result<UnitResult, (UnitFailure, bool)> {
        self.check_credential(&unit.caller).map_err(|failure| (failure, false))?;
        if let Some(request) = &unit.request
            && !makes(SeededBug::RequestIdIgnored)
            && let Some(done) = self.earlier(unit, request).map_err(|failure| (failure, false))?
        {
            return Ok(done);
        }
        let request_id = unit.request.as_ref().map(|request| request.id.as_str());
        let (mut calls, deferred) = (Vec::with_capacity(unit.calls.len()), RefCell::default());
        let begun = self.executor.store.steps();
        for (nth, call) in unit.calls.iter().enumerate() {
            if nth > 0 && self.executor.store.steps() - begun > limits::batch_steps(nth) {
                return Err((UnitFailure::Refused(too_many_steps(nth, unit)), true));
            }
            let work_budget = unit.work_budget(nth, &deferred);
            let run = || self.executor.run(&unit.caller, request_id, call, work_budget);
            let outcome = catch_unwind(AssertUnwindSafe(run))
                .unwrap_or_else(|panic| Err(panicked(&panic_text(panic.as_ref()))));
            match outcome {
                Ok(CallOutcome { refusal: Some(refusal), .. }) if unit.calls.len() > 1 => {
                    // A batch is all or nothing: no record of the refusal is kept either.
                    let abort = Abort::Refused(refusal);
                    return Err((fail(abort, call, calls.len(), unit), true));
                }
                Ok(done) => calls.push(done),
                Err(abort) => {
                    let wrote = self.executor.wrote() || calls.iter().any(|done| !done.duplicate);
                    let failure = fail(abort, call, calls.len(), unit);
                    return Err((or_deferred(failure, deferred), wrote));
                }
            }
        }
        let deferred = deferred.into_inner();
        if !deferred.is_empty() {
            return Err((UnitFailure::Deferred(deferred), true));
        }
        if let Some(request) = &unit.request
            && !makes(SeededBug::RequestIdIgnored)
            && calls.iter().any(|done| !done.duplicate)
        {
            let remembered = self.remember(&unit.caller, request, &calls);
            let last = unit.calls.len() - 1;
            remembered.map_err(|abort| (fail(abort, &unit.calls[last], last, unit), true))?;
        }
        Ok(UnitResult { calls, duplicate: false, deferred })
    }

    /// Refuses a caller whose credential was revoked while its call was queued.
    fn check_credential(&mut self, caller: &Caller) -> Result<(), UnitFailure> {
        if caller.credential().is_none() {
            return Ok(());
        }
        let state = self.watchers.credentials();
        let checked = self.executor.check_credential(caller, state);
        checked.map_err(UnitFailure::Storage)?.map_err(UnitFailure::Refused)
    }

    /// The result of an earlier use of a request id. A caller that may no longer call the reducer does
    /// not get the stored result.
    fn earlier(
        &mut self,
        unit: &Unit,
        request: &Request,
    ) -> Result<Option<UnitResult>, UnitFailure> {
        let caller = &unit.caller;
        let found = self.executor.store.request(caller.principal(), &request.id);
        let found = found.map_err(UnitFailure::Storage)?;
        let found = match found {
            None => request_ids::of_format_1(&self.executor.store, unit, request)
                .map_err(UnitFailure::Storage)?,
            found => found,
        };
        let Some(found) = found else { return Ok(None) };
        for (position, call) in unit.calls.iter().enumerate() {
            let may = self.executor.guard(caller, call.reducer);
            may.map_err(|abort| fail(abort, call, position, unit))?;
        }
        if found.fingerprint != request.fingerprint {
            let detail =
                format!("request id {:?} was already used for another request", request.id);
            return Err(UnitFailure::Refused(Refusal::new(Code::RequestIdConflict, detail).hint(
                "a retry must repeat reducer and arguments exactly; use a new id for a new request",
            )));
        }
        let seqs = request_ids::seqs_of(&found);
        let mut calls = Vec::with_capacity(seqs.len());
        for seq in seqs {
            let event = self.executor.store.event(seq).map_err(UnitFailure::Storage)?;
            let refusal = event.as_ref().and_then(|event| refusal_in(&event.outcome));
            let result = event.as_ref().map_or_else(
                || "null".to_owned(),
                |event| expand(&event.outcome, &event.arguments),
            );
            let reducer = event.as_ref().map_or("", |event| &event.reducer);
            let result = self.executor.shown(caller, reducer, result);
            let result = result.map_err(UnitFailure::Storage)?;
            calls.push(CallOutcome { seq, result, duplicate: true, refusal });
        }
        Ok(Some(UnitResult { calls, duplicate: true, deferred: Vec::new() }))
    }

    /// Stores the calls of a request id. If one of them was a duplicate, an extra event logs them: the request's own events
    /// do not name that call.
    fn remember(
        &mut self,
        caller: &Caller,
        request: &Request,
        calls: &[CallOutcome],
    ) -> Result<(), Abort> {
        let seqs: Vec<Seq> = calls.iter().map(|done| done.seq).collect();
        if calls.iter().any(|done| done.duplicate) {
            self.executor.record(caller, &request.id, &request.record(&seqs))?;
        }
        self.executor.store.remember_request(request.row(caller, &seqs)).map_err(broken)
    }

    /// Stores the old images of the commit, one row per table.
    fn log_changes(&self, changes: &[NetChange], from: Seq, to: Seq) -> Result<(), StoreError> {
        for table in &self.tables {
            let mut images = Vec::new();
            for change in changes.iter().filter(|change| change.table.name == table.name) {
                match (&change.old, &change.new) {
                    (Some(old), _) => change_log::encode_cells(1, old.iter(), &mut images),
                    (None, Some(new)) => {
                        change_log::encode_cells(0, &table.key_of(new), &mut images);
                    }
                    (None, None) => {}
                }
            }
            if !images.is_empty() {
                self.executor.store.log_changes(table, from, to, images)?;
            }
        }
        Ok(())
    }

    /// The changes of the commit in the results of live queries.
    fn deltas(&mut self, net: Vec<NetChange>) -> Result<Deltas, StoreError> {
        if self.attached == 0 {
            return Ok(Vec::new());
        }
        let mut changes = Changes::new();
        for mut change in net {
            if makes(SeededBug::LostOldRow) && change.new.is_some() {
                change.old = None;
            }
            changes.push(change.table.name, change.old, change.new);
        }
        for event in &self.executor.events {
            changes.push("events", None, Some(abide_store::event_row(event)));
        }
        let mut sql = WriterSql { store: &self.executor.store, scheduler: &*self.scheduler };
        let deltas = self.router.commit(&changes, &mut sql);
        // All deltas of this commit use the new policies.
        let renewed = self.policies.are_renewed();
        let outdated = if renewed { self.router.outdated() } else { Vec::new() };
        let outdated = outdated.into_iter().map(|id| Ok((id, SharedDelta::outdated())));
        let work = self.router.counters();
        self.metrics.live_rows_routed_total.set(work.rows_routed);
        self.metrics.live_bindings_probed_total.set(work.bindings_probed);
        self.metrics.live_statements_total.set(work.spent.statements);
        self.metrics.live_steps_total.set(work.spent.steps);
        self.metrics.live_state_bytes.set(self.router.remembered_bytes() as u64);
        self.metrics.live_residual_bindings.set(self.router.residual() as u64);
        deltas
            .into_iter()
            .map(|(binding, delta)| match delta {
                Ok(delta) => Ok((binding, SharedDelta::new(Ok(delta)))),
                Err(LiveError::Query(_)) if self.router.is_bounded(binding) => {
                    let refusal = Refusal::new(Code::BadSql, "the live query failed");
                    Ok((binding, SharedDelta::new(Err(refusal.hint("subscribe again")))))
                }
                Err(LiveError::Query(why)) => {
                    let refusal =
                        Refusal::new(Code::BadSql, format!("the live query failed: {why}"));
                    Ok((binding, SharedDelta::new(Err(refusal.hint("subscribe again")))))
                }
                Err(LiveError::OverBudget) => Ok((binding, SharedDelta::unknown())),
                Err(LiveError::Broken(why)) => Err(StoreError::Sql { message: why, offset: None }),
            })
            .chain(outdated)
            .collect()
    }

    /// Prunes undo images beyond the retention limit.
    fn prune_change_log(&mut self, head: Seq) {
        self.scheduler.at_fault_point(FaultPoint::Prune);
        let store = &self.executor.store;
        let pruned = self.change_log.prune(store, head, self.executor.clock.now());
        self.metrics.change_log_oldest_seq.set(self.change_log.floor().0.unsigned_abs());
        if let Err(error) = pruned {
            tracing::warn!(%error, "the change log was not pruned");
            if let Err(why) = store.rollback() {
                self.health.poison(&why);
            }
        }
    }

    /// Lets readers fill accumulators that are too expensive to fill within a commit.
    fn order_fills(&mut self) {
        for wanted in self.router.take_backfill_requests() {
            let (jobs, scheduler) = (Arc::clone(&self.jobs), Arc::clone(&self.scheduler));
            let fill = move |reader: &mut Reader| {
                let run = || {
                    scheduler.at_fault_point(FaultPoint::Fill);
                    resume::fill(reader, &wanted.binding, &wanted.group)
                };
                let run = catch_unwind(AssertUnwindSafe(run));
                let (filled, panic) = match run {
                    Ok(filled) => (filled, None),
                    Err(panic) => (Ok(None), Some(panic)),
                };
                let filled = filled.unwrap_or_else(|refusal| {
                    tracing::warn!(%refusal, "accumulators of a live query could not be filled");
                    None
                });
                // If the queue is closed, there are no live queries.
                let _ = jobs.push(None, WriterJob::Backfill(BackfillResult { wanted, filled }), 0);
                // The router gets no accumulators for these groups; the reader's thread handles its panic.
                if let Some(panic) = panic {
                    resume_unwind(panic);
                }
            };
            if self.fillers.push(Some(Caller::SYSTEM), Box::new(fill), 1).is_err() {
                tracing::warn!("no reader is free to fill the accumulators of a live query");
            }
        }
    }

    /// Brings accumulators from their seq to the current state.
    fn apply_backfill(&mut self, apply_backfill: BackfillResult) {
        self.scheduler.at_fault_point(FaultPoint::Backfill);
        let BackfillResult { wanted, filled } = apply_backfill;
        let (from, filled) = filled.unzip();
        let state = match self.reader.snapshot() {
            Ok(state) => state,
            Err(error) => return tracing::warn!(%error, "the current state could not be read"),
        };
        let since = |from| {
            let changes =
                resume::changes_since(&state, &self.live_tables, &wanted.binding, from).ok()?;
            changes.ok()
        };
        let changes = from.and_then(since);
        let filled = filled.filter(|_| changes.is_some());
        let changes = changes.unwrap_or_default();
        let mut sql = ReaderSql::new(&state);
        if let Err(error) = self.router.apply_backfill(&wanted, filled, &changes, &mut sql) {
            tracing::warn!(%error, "accumulators of a live query could not be applied");
        }
    }

    fn attach(&mut self, attach: Attach) {
        self.scheduler.at_fault_point(FaultPoint::Attach);
        let Attach { binding, connection, key, outbox, reply } = attach;
        if !binding.is_latest() {
            return drop(reply.send(Err(policies::outdated())));
        }
        let attached = self.router.attach(&binding).map(|id| {
            self.attached += 1;
            if binding.tables().contains(&"events") {
                self.executor.keeps_events = true;
            }
            self.scheduler.at_fault_point(FaultPoint::Attached);
            self.hub.listen(id, connection, key, &outbox);
            let (jobs, hub) = (Arc::clone(&self.jobs), Arc::clone(&self.hub));
            Registration { jobs, hub, binding: id, connection, key }
        });
        // If the subscriber has gone, dropping the registration releases it.
        let _ = reply.send(attached);
    }

    fn detach(&mut self, binding: BindingId) {
        self.scheduler.at_fault_point(FaultPoint::Detach);
        self.router.detach(binding);
        self.attached -= 1;
        if self.attached == 0 {
            self.executor.keeps_events = false;
        }
    }

    fn count(&mut self, units: &[Unit], outcomes: &[UnitOutcome], deltas: usize) {
        let now = self.executor.now();
        for (unit, outcome) in units.iter().zip(outcomes) {
            match (&unit.due, outcome) {
                (Some(due), Ok(_)) => {
                    self.metrics.deadline_calls_total.add(1);
                    self.timers.done(due);
                }
                (Some(due), Err(refusal)) => self.timers.refused(due, refusal, now),
                (None, _) => {}
            }
            match outcome {
                Ok(done) if done.calls.iter().any(|call| call.refusal.is_some()) => {
                    self.metrics.refusals_total.add(1);
                }
                Ok(done) if !done.deferred.is_empty() => self.metrics.deferred_total.add(1),
                Ok(done) if done.duplicate => self.metrics.duplicates_total.add(1),
                Ok(done) => self.metrics.calls_total.add(done.calls.len() as u64),
                Err(refusal) => {
                    self.metrics.refusals_total.add(1);
                    self.metrics.refusals_by_code_total.add(refusal.code.as_str(), 1);
                }
            }
        }
        self.metrics.deltas_total.add(deltas as u64);
    }
}

type UnitOutcome = Result<UnitResult, Refusal>;
type Deltas = Vec<(BindingId, Arc<SharedDelta>)>;
type TransactionResult = (Vec<UnitOutcome>, Deltas);

/// The refusal of a batch that blocks the writer for too long.
fn too_many_steps(calls: usize, unit: &Unit) -> Refusal {
    let all = unit.calls.len();
    let detail = format!("the first {calls} of {all} calls take too long for one transaction");
    Refusal::new(Code::LimitExceeded, detail).hint("send the calls in several batches")
}

/// The failure of a unit; deferred work may have caused it, so that is done first and the unit runs again.
fn or_deferred(failure: UnitFailure, deferred: RefCell<Vec<(usize, SharedWork)>>) -> UnitFailure {
    match (failure, deferred.into_inner()) {
        (UnitFailure::Refused(_), work) if !work.is_empty() => UnitFailure::Deferred(work),
        (failure, _) => failure,
    }
}

/// Classifies a failed call: does it end the transaction, or only its own unit?
fn fail(abort: Abort, call: &PreparedCall, position: usize, unit: &Unit) -> UnitFailure {
    let mut refusal = match abort {
        Abort::Refused(refusal) => refusal,
        // The caller of `fail` replaces this by the deferred work.
        Abort::Deferred => Refusal::new(Code::Internal, "the call was deferred"),
        Abort::Broken(error) => {
            match error.downcast::<StoreError>() {
                Ok(error) if !error.is_the_statements_own() => return UnitFailure::Storage(*error),
                Ok(error) => {
                    tracing::error!(%error, reducer = call.reducer, "a reducer's own SQL failed");
                }
                Err(error) => tracing::error!(%error, reducer = call.reducer, "a reducer failed"),
            }
            let detail = format!("{} failed with an internal error", call.reducer);
            Refusal::new(Code::Internal, detail).hint("see the server's log for the cause")
        }
    };
    if unit.calls.len() > 1 {
        refusal.detail =
            format!("call {} of the batch ({}): {}", position + 1, call.reducer, refusal.detail);
    }
    UnitFailure::Refused(refusal)
}

fn panicked(why: &str) -> Abort {
    Abort::Broken(format!("it panicked: {why}").into())
}
