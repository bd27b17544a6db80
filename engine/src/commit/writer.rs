//! The single writer: runs queued jobs in one transaction, in order.
//!
//! ```text
//! units ─▶ group ─▶ BEGIN ─▶ run each unit ─▶ rows, undo images, deltas ─▶ COMMIT ─▶ sync thread: sync ─▶ answers
//!            ▲                                                              │
//!            └── the same units, on savepoints or each alone, or the record of a denied call
//! ```
//!
//! *Invariant:* only this thread writes the file and advances the
//! log. *Invariant:* the outcome of a unit and every delta leave through the sync thread. Only registrations of
//! subscriptions and requests for metrics are answered here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use abide_schema::{Refusal, Seq, limits};
use abide_store::StoreError;

use crate::access::denials::{self, Denial, Denials};
use crate::access::policies::TransactionPolicies;
use crate::commit::deferred::Deferred;
use crate::commit::durable::{Commit, Deltas};
use crate::commit::execute::{Executor, RollbackPoint};
use crate::commit::group::CommitGroup;
use crate::commit::jobs::WriterJob;
use crate::commit::live_queries::LiveQueries;
use crate::commit::queue::Queue;
use crate::commit::registry::Registry;
use crate::commit::retention::ChangeLog;
use crate::commit::run_unit::TransactionFailure;
use crate::commit::table_watchers::TableWatchers;
use crate::commit::timers::Timers;
use crate::commit::unit::{ReplyEnvelope, Unit, UnitOutcome};
use crate::fault_points::FaultPoint;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::{EngineThread, StepScheduler};
use crate::queries::readers::ReaderJob;

/// The writer thread. It ends when its queue is closed and drained.
pub(crate) struct WriterThread {
    pub(crate) executor: Executor,
    pub(crate) timers: Timers,
    pub(crate) policies: TransactionPolicies,
    pub(crate) registry: Arc<Registry>,
    pub(crate) live: LiveQueries,
    pub(crate) jobs: Arc<Queue<WriterJob>>,
    pub(crate) commits: Arc<Queue<Commit>>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    /// Selects the denied attempts to record.
    pub(crate) denials: Denials,
    pub(crate) watchers: Arc<TableWatchers>,
    /// Held during each transaction; the checkpointer holds it to let the WAL restart.
    pub(crate) gate: Arc<Mutex<()>>,
    pub(crate) change_log: ChangeLog,
    /// The readers' queue, for deferred work.
    pub(crate) readers: Arc<Queue<ReaderJob>>,
    pub(crate) scheduler: Arc<dyn StepScheduler>,
}

/// A transaction that SQLite has committed, or that had nothing to commit.
struct Transacted {
    /// One for each unit of its group.
    outcomes: Vec<UnitOutcome>,
    deltas: Deltas,
}

/// A group whose transaction was rolled back.
enum RolledBack {
    /// It can be committed with a savepoint for each unit.
    NeedsSavepoints,
    /// Its rows violate a deferred constraint; the refusal is for the unit that did it.
    Violation(Refusal),
    /// All its units are refused.
    Refused(Refusal),
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
                    WriterJob::Attach(attach) => self.live.attach(attach),
                    WriterJob::Detach(binding) => self.live.detach(binding),
                    WriterJob::Backfill(backfill) => self.live.apply_backfill(backfill),
                    WriterJob::Denied(denial) => {
                        self.scheduler.at_fault_point(FaultPoint::Denied);
                        units.extend(self.record(&denial));
                    }
                    // The requester may have gone.
                    WriterJob::Templates(reply) => drop(reply.send(self.live.templates())),
                }
            }
            if !units.is_empty() {
                self.executor.keeps_events = self.live.reads_log();
                self.commit(units);
                self.live.order_backfills();
            }
        }
        self.commits.close();
    }

    /// The commit pipeline. Every group leaves the work list committed and handed to the sync thread, or as other
    /// groups of the same units. A group that denied a call is followed by the group that records it.
    fn commit(&mut self, units: Vec<Unit>) {
        let mut work = VecDeque::from([CommitGroup::new(units, Vec::new())]);
        while let Some(group) = work.pop_front() {
            let transacted = match self.transact(&group) {
                Ok(transacted) => transacted,
                Err(RolledBack::NeedsSavepoints) => {
                    // Rare: reducers check before they write.
                    self.metrics.savepoint_reruns_total.add(1);
                    work.push_front(group.with_savepoints());
                    continue;
                }
                Err(RolledBack::Violation(_)) if group.units.len() > 1 => {
                    // SQLite does not report which row violates the constraint: only a unit that runs alone can
                    // be refused for it.
                    for alone in group.split().into_iter().rev() {
                        work.push_front(alone);
                    }
                    continue;
                }
                Err(RolledBack::Violation(refusal) | RolledBack::Refused(refusal)) => {
                    Transacted { outcomes: group.all_refused(&refusal), deltas: Vec::new() }
                }
            };
            if let Some(records) = self.hand_over(group, transacted) {
                work.push_front(records);
            }
        }
    }

    /// Runs a group in one transaction. The checkpointer waits meanwhile.
    fn transact(&mut self, group: &CommitGroup) -> Result<Transacted, RolledBack> {
        let gate = Arc::clone(&self.gate);
        let _held = gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.health.check().map_err(RolledBack::Refused)?;
        let start = self.executor.mark();
        self.run_and_commit(group).map_err(|failure| self.roll_back(start, failure))
    }

    /// From BEGIN to COMMIT.
    fn run_and_commit(&mut self, group: &CommitGroup) -> Result<Transacted, TransactionFailure> {
        let from = self.executor.chain.seq;
        self.executor.transaction.store.begin()?;
        self.scheduler.at_fault_point(FaultPoint::Begun);
        let mut outcomes = Vec::with_capacity(group.units.len());
        for unit in &group.units {
            outcomes.push(self.executor.run_unit(unit, group.savepoints, &self.watchers)?);
        }
        self.scheduler.at_fault_point(FaultPoint::Ran);
        let to = self.executor.chain.seq;
        if to == from {
            self.executor.transaction.store.rollback()?;
            self.executor.transaction.committed();
            return Ok(Transacted { outcomes, deltas: Vec::new() });
        }
        self.executor.transaction.flush()?;
        let (store, overlay) =
            (&self.executor.transaction.store, &self.executor.transaction.overlay);
        let changes = overlay.changes();
        if changes.iter().any(|change| self.policies.are_stored_in(change.table)) {
            // Before the commit: a reader that sees it then finds its policies outdated.
            self.policies.renew(store)?;
        }
        self.timers.note(&changes);
        self.change_log.record(store, &changes, from, to)?;
        let touched = self.watchers.touched(&changes);
        let mut deltas = self.live.deltas(store, changes, &self.executor.events)?;
        if self.policies.are_renewed() {
            deltas.extend(self.live.outdated());
        }
        self.scheduler.at_fault_point(FaultPoint::Commit);
        // SQLite checks deferred constraints here.
        store.commit()?;
        self.policies.keep();
        touched.tell(to);
        self.executor.transaction.committed();
        self.executor.events.clear();
        self.metrics.commits_total.add(1);
        self.prune_change_log(to);
        Ok(Transacted { outcomes, deltas })
    }

    /// Rolls back a transaction. After this nothing of it is kept.
    fn roll_back(&mut self, start: RollbackPoint, failure: TransactionFailure) -> RolledBack {
        if let TransactionFailure::Store(StoreError::Broken(why)) = &failure {
            self.health.poison(why);
        }
        let undone = self.executor.transaction.store.rollback();
        self.executor.transaction.rolled_back();
        self.executor.return_to(start);
        if let Err(why) = &undone {
            self.health.poison(why);
        }
        let error = match (failure, undone) {
            (TransactionFailure::NeedsSavepoints, Ok(())) => return RolledBack::NeedsSavepoints,
            (TransactionFailure::NeedsSavepoints, Err(error))
            | (TransactionFailure::Store(error), _) => error,
        };
        self.live.forget();
        self.policies.put_back();
        let refusal = self.health.check().err().unwrap_or_else(|| error.to_refusal());
        match error {
            StoreError::Constraint { .. } => RolledBack::Violation(refusal),
            _ => RolledBack::Refused(refusal),
        }
    }

    /// Hands a transaction to the sync thread, which then sends the answers and the deltas. Returns the group that
    /// records its denied units: their answers are held until the record is durable, so that a caller that receives
    /// `denied` can already find it.
    fn hand_over(&mut self, group: CommitGroup, transacted: Transacted) -> Option<CommitGroup> {
        let Transacted { outcomes, deltas } = transacted;
        self.count(&group.units, &outcomes, deltas.len());
        self.metrics.writer_steps_total.set(self.executor.transaction.store.steps());
        let weight = group.weight();
        let CommitGroup { units, held_answers: mut answers, .. } = group;
        let mut records = Vec::new();
        let mut held_answers = Vec::new();
        for (unit, outcome) in units.into_iter().zip(outcomes) {
            let outcome = match outcome {
                UnitOutcome::Done(done) => Ok(done),
                UnitOutcome::Refused(refusal) => Err(refusal),
                UnitOutcome::Deferred(work) => {
                    Deferred::start(unit, work, &self.jobs, &self.readers);
                    continue;
                }
            };
            let record = match &outcome {
                Ok(_) => None,
                Err(refusal) => self.record_of(&unit, refusal),
            };
            let to = if record.is_some() { &mut held_answers } else { &mut answers };
            to.push(ReplyEnvelope { reply: unit.reply, outcome });
            records.extend(record);
        }
        self.scheduler.at_fault_point(FaultPoint::Committed);
        let mut commit = Commit { to: self.executor.chain.seq, answers, deltas };
        commit.release_early(&self.live.hub, &self.metrics);
        self.commits.push_wait(commit, weight);
        (!records.is_empty()).then(|| CommitGroup::new(records, held_answers))
    }

    /// Calls for due rows.
    fn due(&mut self) -> Vec<Unit> {
        self.scheduler.at_fault_point(FaultPoint::Due);
        let now = self.executor.now();
        let asked = match self.health.check() {
            Ok(()) => self.timers.due(&self.executor.transaction.store, now),
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
    fn record(&mut self, denial: &Denial) -> Option<Unit> {
        self.metrics.denied_total.add(1);
        let arguments = self.denials.admit(denial, self.executor.now())?;
        let calls = self.denials.denial_recorders.iter().filter_map(|denial_recorder| {
            let ready = self.registry.ready_any(denial_recorder, &arguments);
            ready
                .inspect_err(|why| tracing::error!(%why, "a denied attempt could not be recorded"))
                .ok()
        });
        Some(Unit::of_engine(calls.collect(), None))
    }

    /// The record of a refused unit, if it was denied.
    fn record_of(&mut self, unit: &Unit, refusal: &Refusal) -> Option<Unit> {
        let reducers: Vec<&'static str> = unit.calls.iter().map(|call| call.reducer).collect();
        let denial = denials::of_unit(&unit.caller, &reducers, refusal)?;
        self.record(&denial)
    }

    /// Prunes undo images beyond the retention limit.
    fn prune_change_log(&mut self, head: Seq) {
        self.scheduler.at_fault_point(FaultPoint::Prune);
        let store = &self.executor.transaction.store;
        let pruned = self.change_log.prune(store, head, self.executor.clock.now());
        self.metrics.change_log_oldest_seq.set(self.change_log.floor().0.unsigned_abs());
        if let Err(error) = pruned {
            tracing::warn!(%error, "the change log was not pruned");
            if let Err(why) = store.rollback() {
                self.health.poison(&why);
            }
        }
    }

    fn count(&mut self, units: &[Unit], outcomes: &[UnitOutcome], deltas: usize) {
        let now = self.executor.now();
        for (unit, outcome) in units.iter().zip(outcomes) {
            match (&unit.due, outcome) {
                (None, _) => {}
                (Some(due), UnitOutcome::Refused(refusal)) => {
                    self.timers.refused(due, refusal, now);
                }
                (Some(due), UnitOutcome::Done(_) | UnitOutcome::Deferred(_)) => {
                    self.metrics.deadline_calls_total.add(1);
                    self.timers.done(due);
                }
            }
            match outcome {
                UnitOutcome::Done(done) if done.calls.iter().any(|call| call.refusal.is_some()) => {
                    self.metrics.refusals_total.add(1);
                }
                UnitOutcome::Done(done) if done.duplicate => self.metrics.duplicates_total.add(1),
                UnitOutcome::Done(done) => self.metrics.calls_total.add(done.calls.len() as u64),
                UnitOutcome::Deferred(_) => self.metrics.deferred_total.add(1),
                UnitOutcome::Refused(refusal) => {
                    self.metrics.refusals_total.add(1);
                    self.metrics.refusals_by_code_total.add(refusal.code.as_str(), 1);
                }
            }
        }
        self.metrics.deltas_total.add(deltas as u64);
    }
}
