//! The single writer: runs queued jobs in groups, in order.
//!
//! ```text
//! units ─▶ group ─▶ run each unit ─▶ rows, undo images, deltas ─▶ journal ─▶ sync thread: sync ─▶ answers
//!            ▲                                                                 │
//!            └── the same units, on savepoints or each alone, or the record of a denied call
//!
//! many groups, a reader, or a checkpoint ─▶ COMMIT
//! ```
//!
//! SQLite's transaction stays open over many groups: see [`abide_store::Journal`]. In reading order: `run` the loop ·
//! `run_groups` the work list · `run_and_journal` one group · `hand_over` to the sync thread (`durable`) ·
//! `commit_rows` and `checkpoint`.
//!
//! *Invariant:* only this thread writes rows and advances the log; the checkpointer copies pages that SQLite has
//! committed.
//! *Invariant:* the outcome of a unit that ran to its end and every delta leave through the sync thread. Answered at
//! once are registrations of subscriptions, requests for metrics, the batches of [`crate::Engine::apply`], and units
//! that were deferred too often, or that find no room on their way through the readers: these have written nothing.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abide_schema::caller::Caller;
use abide_schema::{CallArguments, Refusal, Seq, limits};
use abide_store::{Journal, RecordPosition, Segment, StoreError};
use tokio::sync::watch;

use crate::access::denials::{Denial, Denials};
use crate::access::policies::TransactionPolicies;
use crate::access::rate_limiter::RateLimiter;
use crate::access::tenants::Tenants;
use crate::commit::checkpointer::{MAX_PAUSE, WriterPause};
use crate::commit::deferred::DeferredUnit;
use crate::commit::durable::Commit;
use crate::commit::execute::{Executor, RollbackPoint};
use crate::commit::fair_queue::{Entry, Turn};
use crate::commit::jobs::{BackfillResult, WriterJob};
use crate::commit::live_queries::LiveQueries;
use crate::commit::open_rows::{OpenRows, VisibleRows};
use crate::commit::queue::Queue;
use crate::commit::registry::Registry;
use crate::commit::retention::ChangeLog;
use crate::commit::run_unit::TransactionFailure;
use crate::commit::table_watchers::TableWatchers;
use crate::commit::timers::{ContinuedCall, Timers};
use crate::commit::unit::{
    AnswerAt, CommitGroup, LastStep, PendingAnswers, ReplyEnvelope, Unit, UnitOutcome, UnitResult,
};
use crate::fault_points::{self, FaultPoint};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::{EngineThread, StepScheduler};
use crate::queries::readers::ReaderJob;
use crate::subscriptions::shared_delta::Deltas;

/// The writer thread. It ends when its queue is closed and drained.
pub(crate) struct WriterThread {
    pub(crate) executor: Executor,
    pub(crate) timers: Timers,
    /// The answers to calls whose work goes on in later transactions.
    pub(crate) continued: PendingAnswers,
    pub(crate) rate_limiter: Arc<RateLimiter>,
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
    pub(crate) journal: Journal,
    /// The last durable event.
    pub(crate) durable: watch::Receiver<Seq>,
    /// The groups that SQLite has not committed.
    pub(crate) open_rows: OpenRows,
    pub(crate) visible: Arc<VisibleRows>,
    pub(crate) change_log: ChangeLog,
    /// The readers' queue, for deferred work.
    pub(crate) readers: Arc<Queue<ReaderJob>>,
    pub(crate) tenants: Tenants,
    pub(crate) scheduler: Arc<dyn StepScheduler>,
    /// Whether a test schedules the steps.
    pub(crate) is_directed: bool,
    /// The pause after each group while the WAL grows about as fast as it is copied.
    pub(crate) pause: Arc<WriterPause>,
    pub(crate) started: Instant,
    /// The number of groups that still get a savepoint, and one for each unit, because one was rolled back.
    pub(crate) groups_on_savepoint: u32,
    /// When a full disk was logged last.
    pub(crate) disk_full_logged: Cell<Option<Instant>>,
}

/// The pause between two records of a full disk: each refused group would have one.
const DISK_FULL_PAUSE: Duration = Duration::from_secs(60);

/// The time after which no further unit of a group begins. A full group of ordinary calls takes half of it.
const GROUP_TIME: Duration = Duration::from_millis(20);

/// The groups that get a savepoint after one was rolled back. Without it, a rollback puts the rows of all open groups
/// back, which takes as long as to write them: callers whose calls are refused may not cause that often.
const GROUPS_ON_SAVEPOINT: u32 = 256;

/// A group that is in the journal, or that has written nothing.
struct FinishedGroup {
    /// One for each unit that ran: not all do in a group that reads much or takes long.
    outcomes: Vec<UnitOutcome>,
    deltas: Deltas,
    /// Where its record is.
    segment: Option<Arc<Segment>>,
}

/// A group that was rolled back.
enum RolledBack {
    /// It can run with a savepoint for each unit.
    NeedsSavepoints,
    /// Its rows violate a deferred constraint, or a touched row was rejected; the refusal is for the unit that did it.
    Violation(Refusal),
    /// All its units are refused.
    Refused(Refusal),
}

impl WriterThread {
    pub(crate) fn run(mut self) {
        let mut jobs = Vec::new();
        self.open_rows.set_space_low(self.journal.is_space_low());
        loop {
            self.is_directed = self.scheduler.wait(EngineThread::Writer);
            if !self.is_directed {
                // A group that starts while another one waits for the disk is answered no sooner. Calls that arrive
                // meanwhile join it, and a group of many calls costs less than many groups.
                self.commits.wait_until_taken();
            }
            let wait = self.max_wait();
            if !self.jobs.take_within(wait, limits::COMMIT_BYTES, &mut jobs) {
                break;
            }
            if !self.continued.is_empty()
                && let Err(refusal) = self.health.check()
            {
                // No step runs any more.
                for answer in self.continued.release_all() {
                    ReplyEnvelope { outcome: Err(refusal.clone()), ..answer }.send();
                }
            }
            let mut units = self.take_due_units();
            for job in jobs.drain(..) {
                match job {
                    WriterJob::Unit(unit) => units.push(unit),
                    WriterJob::Attach(attach) => self.live.attach(attach),
                    WriterJob::Detach(ended) => self.live.detach(&ended),
                    WriterJob::Backfill(backfill) => {
                        // It reads the current state. Without that, the group goes on without accumulators.
                        self.commit_rows();
                        let filled = backfill.filled.filter(|_| !self.visible.is_behind());
                        self.live.apply_backfill(BackfillResult { filled, ..backfill });
                    }
                    WriterJob::CommitRows(reader) => self.open_rows.await_commit(reader),
                    WriterJob::Checkpoint(drained) => {
                        self.checkpoint();
                        drop(drained);
                    }
                    WriterJob::Denied(denial) => {
                        self.scheduler.at_fault_point(FaultPoint::Denied);
                        units.extend(self.record_denial(&denial));
                    }
                    // The requester may have gone.
                    WriterJob::Templates(reply) => drop(reply.send(self.live.templates())),
                }
            }
            let is_busy = !(units.is_empty() || self.is_directed);
            if !units.is_empty() {
                let begun = self.instant();
                self.executor.keeps_events = self.live.reads_log();
                self.run_groups(units);
                self.queue_backfills();
                // As long as the group took, so that the WAL grows at half the speed.
                let took = self.instant().saturating_duration_since(begun);
                self.pause.wait(took.min(MAX_PAUSE));
            }
            if self.open_rows.is_due(self.instant(), is_busy) {
                self.commit_rows();
            }
        }
        // The queue is closed: what was accepted is finished, so that closing the file leaves nothing to recover.
        self.commit_rows();
        let answers = self.continued.release_all();
        if !answers.is_empty() {
            let to = self.executor.chain.seq;
            self.commits.push_wait(Commit { to, answers, deltas: Vec::new(), segment: None }, 1);
        }
        self.commits.close();
    }

    /// Lets readers fill accumulators of live queries, from the current state.
    fn queue_backfills(&mut self) {
        let requests = self.live.router.take_backfill_requests();
        if !requests.is_empty() {
            self.commit_rows();
            self.live.queue_backfills(requests);
        }
    }

    /// Returns how long nothing has to be done without a job.
    fn max_wait(&self) -> Option<Duration> {
        let rows = self.open_rows.due_in(self.instant());
        self.timers.due_in(self.executor.now()).into_iter().chain(rows).min()
    }

    /// Returns the time for [`OpenRows`]: not the clock of events, which can be set back or stand still. In a directed
    /// run it does not advance, so that the same steps commit the same groups.
    fn instant(&self) -> Instant {
        if self.is_directed { self.started } else { Instant::now() }
    }

    /// The commit pipeline. Every group leaves the work list finished and handed to the sync thread, or as other
    /// groups of the same units. A group that denied a call is followed by the group that records it.
    fn run_groups(&mut self, units: Vec<Unit>) {
        let mut work = VecDeque::from([CommitGroup::new(units, Vec::new())]);
        while let Some(mut group) = work.pop_front() {
            let finished = match self.run_group(&group) {
                Ok(finished) => {
                    if let Some(rest) = group.split_off(finished.outcomes.len()) {
                        work.extend(self.put_back(rest, group.units.last()));
                    }
                    finished
                }
                Err(RolledBack::NeedsSavepoints) => {
                    // Rare: reducers check before they write, and the groups after it have savepoints.
                    self.metrics.savepoint_reruns_total.add(1);
                    work.push_front(group.with_savepoints());
                    continue;
                }
                Err(RolledBack::Violation(_)) if group.units.len() > 1 => {
                    // SQLite does not report which row violates a deferred constraint, and nothing tells which unit
                    // has touched a row: only a unit that runs alone can be refused for it.
                    for alone in group.into_single_units().into_iter().rev() {
                        work.push_front(alone);
                    }
                    continue;
                }
                Err(RolledBack::Violation(refusal) | RolledBack::Refused(refusal)) => {
                    let outcomes = group.all_refused(&refusal);
                    FinishedGroup { outcomes, deltas: Vec::new(), segment: None }
                }
            };
            if let Some(records) = self.hand_over(group, finished) {
                work.push_front(records);
            }
        }
    }

    /// Puts the units back that did not run because the first ones of their group took long. They wait for their turns
    /// again: a caller whose call arrived meanwhile does not wait for all of them. After due rows they are the next
    /// group, since further due rows would run before them. So are those that record refusals, which answers wait for.
    fn put_back(&mut self, mut rest: CommitGroup, last: Option<&Unit>) -> Option<CommitGroup> {
        if !rest.pending_answers.is_empty() {
            return Some(rest);
        }
        self.timers.put_back(rest.take_due());
        if rest.units.is_empty() || last.is_some_and(|last| last.due.is_some()) {
            return (!rest.units.is_empty()).then_some(rest);
        }
        let ended = last.and_then(|last| self.turn_of(last));
        let entries = rest.units.into_iter().map(|unit| {
            let turn = self.turn_of(&unit);
            let weight = unit.weight();
            Entry { turn, item: WriterJob::Unit(unit), weight, is_reserved: false }
        });
        self.jobs.put_back(entries.collect(), ended.as_ref());
        None
    }

    /// Returns whose turn a unit takes; `None` for a unit of the engine itself.
    fn turn_of(&self, unit: &Unit) -> Option<Turn> {
        let is_internal = unit.caller.id() == Caller::SYSTEM;
        (!is_internal).then(|| Turn::from_caller(&unit.caller, &self.tenants))
    }

    /// Runs a group, all or nothing.
    fn run_group(&mut self, group: &CommitGroup) -> Result<FinishedGroup, RolledBack> {
        if self.open_rows.failure().is_some() {
            // Rows that SQLite cannot commit must not accumulate.
            self.commit_rows();
        }
        let failure = self.health.refusal().or_else(|| self.open_rows.failure().cloned());
        if let Some(refusal) = failure {
            return Err(RolledBack::Refused(refusal));
        }
        let start = self.executor.mark();
        self.run_and_journal(group).map_err(|failure| self.roll_back(start, failure))
    }

    /// From the start of the group to its record in the journal. The order matters: touched rows are written before the
    /// deltas read them; undo images are rows of the record, so they come before it; the deltas see the state after
    /// the group, and nobody else does before the record is in the journal.
    fn run_and_journal(
        &mut self,
        group: &CommitGroup,
    ) -> Result<FinishedGroup, TransactionFailure> {
        let from = self.executor.chain.seq;
        let before = self.executor.chain.hash;
        self.restore_rows()?;
        self.groups_on_savepoint = self.groups_on_savepoint.saturating_sub(1);
        let is_guarded = self.groups_on_savepoint > 0;
        self.executor.transaction.store.begin_group(is_guarded)?;
        let on_savepoint = is_guarded || group.on_savepoints;
        self.scheduler.at_fault_point(FaultPoint::Begun);
        let mut outcomes = Vec::with_capacity(group.units.len());
        let begun = self.executor.transaction.store.bytes_read();
        let begun_at = self.instant();
        for unit in &group.units {
            outcomes.push(self.executor.run_unit(unit, on_savepoint, &self.watchers)?);
            let read = self.executor.transaction.store.bytes_read() - begun;
            let max = match unit.due {
                Some(_) => limits::DUE_BYTES,
                None => limits::GROUP_READ_BYTES,
            };
            let took = self.instant().saturating_duration_since(begun_at);
            if read > max || took > GROUP_TIME {
                // Other callers wait, and the undo images of one group are one value for each table.
                break;
            }
        }
        self.scheduler.at_fault_point(FaultPoint::Ran);
        let to = self.executor.chain.seq;
        if to == from {
            self.leave_group()?;
            self.executor.transaction.group_finished();
            return Ok(FinishedGroup { outcomes, deltas: Vec::new(), segment: None });
        }
        self.executor.transaction.flush()?;
        let store = &self.executor.transaction.store;
        let overlay = &self.executor.transaction.overlay;
        let changes = overlay.changes();
        if changes.iter().any(|change| self.policies.are_stored_in(change.table)) {
            // Before readers can see them: a reader that does then finds its policies outdated.
            self.policies.renew(store)?;
        }
        self.timers.record_changes(&changes);
        self.change_log.record(store, &changes, from, to)?;
        let touched = self.watchers.touched(&changes);
        let mut deltas = self.live.deltas(store, changes, &self.executor.events)?;
        if self.policies.are_renewed() {
            deltas.extend(self.live.outdated());
        }
        self.scheduler.at_fault_point(FaultPoint::Append);
        let mut record = store.take_record()?;
        let segment = if fault_points::journals() {
            let after = self.executor.chain.hash;
            let position = RecordPosition { from, to, before, after };
            let durable = *self.durable.borrow();
            self.journal.check_row_space(self.open_rows.bytes() + record.len())?;
            Some(self.journal.append(durable, &position, &mut record)?)
        } else {
            None
        };
        // The journal has it. If it could not be kept here, the next record would not continue the log: final.
        store.end_group().map_err(|why| StoreError::Io(format!("a group was not kept: {why}")))?;
        self.open_rows.push(record, self.instant());
        self.policies.keep();
        self.visible.finish(to);
        touched.notify(to);
        self.executor.transaction.group_finished();
        self.executor.events.clear();
        self.metrics.commits_total.add(1);
        self.metrics.journal_bytes.set(self.journal.bytes());
        Ok(FinishedGroup { outcomes, deltas, segment })
    }

    /// Rolls back the open group, and the transaction if it holds no other. If the group has no savepoint, the rows of
    /// the other groups are rolled back and put back.
    fn leave_group(&mut self) -> Result<(), StoreError> {
        self.executor.transaction.store.roll_back_group()?;
        if self.open_rows.is_empty() {
            return self.executor.transaction.store.rollback();
        }
        if let Err(error) = self.restore_rows() {
            // The next group, or the next commit, tries again.
            tracing::warn!(
                name: "rows_not_restored",
                %error,
                "the rows of acknowledged calls were not put back yet"
            );
        }
        Ok(())
    }

    /// Puts the rows of finished groups back into a transaction, if SQLite has rolled theirs back.
    fn restore_rows(&mut self) -> Result<(), StoreError> {
        let store = &self.executor.transaction.store;
        if !store.transaction_is_gone() || self.open_rows.is_empty() {
            return Ok(());
        }
        self.timers.read_again();
        store.apply_again(self.open_rows.records())
    }

    /// Lets SQLite commit the finished groups, and answers the readers that wait for it.
    fn commit_rows(&mut self) {
        let outcome = match self.health.check() {
            Ok(()) if self.open_rows.is_empty() => Ok(()),
            Ok(()) => self.commit_open_rows(),
            Err(refusal) => Err(refusal),
        };
        self.open_rows.settle(&outcome, self.instant());
        self.open_rows.set_space_low(self.journal.is_space_low());
    }

    fn commit_open_rows(&mut self) -> Result<(), Refusal> {
        self.scheduler.at_fault_point(FaultPoint::CommitRows);
        let restored = self.restore_rows();
        let store = &self.executor.transaction.store;
        if let Err(error) = restored.and_then(|()| store.commit()) {
            self.log_full_disk(&error);
            let undone = store.rollback();
            // A constraint cannot fail here: each group has checked its own.
            let is_transient = matches!(error, StoreError::Full | StoreError::Busy);
            match undone {
                // The rows are in the journal, and are applied again before the next attempt.
                Ok(()) if is_transient => {}
                Ok(()) => self.health.poison(&error),
                Err(why) => self.health.poison(&why),
            }
            return Err(self.health.check().err().unwrap_or_else(|| error.to_refusal()));
        }
        if fault_points::recycles_before_checkpoint() {
            self.recycle_journal();
        }
        self.prune_change_log();
        self.visible.commit();
        self.metrics.row_commits_total.add(1);
        Ok(())
    }

    /// Copies the rest of the WAL into the file, and uses the journal again up to there.
    fn checkpoint(&mut self) {
        self.commit_rows();
        let refused = fault_points::refuses_checkpoint(self.health.check().is_err());
        // If SQLite could not commit, the journal is the only place that has the rows: its segments must stay.
        if refused || !self.open_rows.is_empty() {
            return;
        }
        self.scheduler.at_fault_point(FaultPoint::CheckpointLock);
        match self.executor.transaction.store.checkpoint() {
            Ok(true) => self.recycle_journal(),
            // A reader holds an older state.
            Ok(false) => {}
            Err(StoreError::Broken(why)) => self.health.poison(&why),
            Err(error) => tracing::warn!(
                name: "checkpoint_failed",
                %error,
                "a checkpoint failed and will be retried"
            ),
        }
    }

    fn recycle_journal(&mut self) {
        self.journal.recycle(self.executor.chain.seq);
        self.metrics.journal_bytes.set(self.journal.bytes());
    }

    /// Rolls back a group. After this nothing of it is kept.
    fn roll_back(&mut self, start: RollbackPoint, failure: TransactionFailure) -> RolledBack {
        if let TransactionFailure::Store(error) = &failure {
            self.log_full_disk(error);
        }
        match &failure {
            TransactionFailure::Store(StoreError::Broken(why)) => self.health.poison(why),
            // The end of the journal is unknown.
            TransactionFailure::Store(error @ StoreError::Io(_)) => self.health.poison(error),
            _ => {}
        }
        self.groups_on_savepoint = GROUPS_ON_SAVEPOINT;
        let undone = self.leave_group();
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
            StoreError::Constraint { .. } | StoreError::Touched { .. } => {
                RolledBack::Violation(refusal)
            }
            _ => RolledBack::Refused(refusal),
        }
    }

    /// Logs a full disk once a minute.
    fn log_full_disk(&self, error: &StoreError) {
        let was_logged =
            self.disk_full_logged.get().is_some_and(|at| at.elapsed() < DISK_FULL_PAUSE);
        if matches!(error, StoreError::Full) && !was_logged {
            self.disk_full_logged.set(Some(Instant::now()));
            tracing::warn!(name: "disk_full", "the disk is full: calls are refused until there is space");
        }
    }

    /// Hands a group to the sync thread, which then sends the answers and the deltas. Returns the group that
    /// records its denied units: their answers wait until the record is durable, so that a caller that receives
    /// `denied` can already find it.
    fn hand_over(&mut self, group: CommitGroup, finished: FinishedGroup) -> Option<CommitGroup> {
        let FinishedGroup { outcomes, deltas, segment } = finished;
        // Before the answers: a caller that has one sends its next call, and a caller that does not wait for one pays
        // too. A unit that waits for work runs again, and pays once.
        for (unit, outcome) in group.units.iter().zip(&outcomes) {
            if !matches!(outcome, UnitOutcome::Deferred(_)) {
                self.rate_limiter.add(&unit.caller, unit.further_calls(), self.executor.now());
            }
        }
        let last_steps = self.settle_deadlines(&group.units, &outcomes);
        self.count(&outcomes, deltas.len());
        self.metrics.writer_steps_total.set(self.executor.transaction.store.steps());
        let weight = group.weight();
        let CommitGroup { units, pending_answers: mut answers, .. } = group;
        for step in &last_steps {
            answers.extend(self.continued.release(step));
        }
        let mut records = Vec::new();
        let mut pending_answers = Vec::new();
        for (unit, outcome) in units.into_iter().zip(outcomes) {
            let outcome = match outcome {
                UnitOutcome::Done(done) => Ok(done),
                UnitOutcome::Refused(refusal) => Err(refusal),
                UnitOutcome::Deferred(work) => {
                    let turn = Turn::from_caller(&unit.caller, &self.tenants);
                    DeferredUnit::start(unit, work, turn, &self.jobs, &self.readers);
                    continue;
                }
            };
            let record = match &outcome {
                Ok(_) => None,
                Err(refusal) => self.record_refusal(&unit, refusal),
            };
            let unfinished =
                outcome.as_ref().map_or_else(|_| Vec::new(), |done| self.unfinished(&unit, done));
            let answer = ReplyEnvelope { reply: unit.reply, outcome };
            if !unfinished.is_empty() {
                self.continued.add(answer, unfinished);
                continue;
            }
            if unit.answer_at == AnswerAt::Applied && answer.is_success() {
                answer.send();
            } else if record.is_some() {
                pending_answers.push(answer);
            } else {
                answers.push(answer);
            }
            records.extend(record);
        }
        self.scheduler.at_fault_point(FaultPoint::Appended);
        let mut commit = Commit { to: self.executor.chain.seq, answers, deltas, segment };
        commit.release_early(&self.live.hub, &self.metrics);
        self.commits.push_wait(commit, weight);
        (!records.is_empty()).then(|| CommitGroup::new(records, pending_answers))
    }

    /// Returns the calls for due rows.
    fn take_due_units(&mut self) -> Vec<Unit> {
        self.scheduler.at_fault_point(FaultPoint::Due);
        let now = self.executor.now();
        // Without the rows of all finished groups, a deadline would be forgotten, or found twice.
        if self.health.check().is_err() || self.restore_rows().is_err() {
            self.timers.pause(now);
            return Vec::new();
        }
        let due =
            self.timers.take_due(&self.executor.transaction.store, now).unwrap_or_else(|error| {
                self.timers.pause(now);
                match error {
                    StoreError::Broken(why) => self.health.poison(&why),
                    error => tracing::warn!(
                        name: "deadlines_unreadable",
                        %error,
                        "due rows could not be read"
                    ),
                }
                Vec::new()
            });
        let mut units = Vec::with_capacity(due.len());
        for due in due {
            match self.registry.prepare_any(due.reducer, CallArguments::from_value(&due.arguments))
            {
                Ok(call) => units.push(Unit::from_due_row(call, due)),
                Err(refusal) => self.timers.refused(&due, &refusal, now),
            }
        }
        units
    }

    /// Returns the call that records a denied attempt, if it should be recorded.
    fn record_denial(&mut self, denial: &Denial) -> Option<Unit> {
        self.metrics.denied_total.add(1);
        let arguments = self.denials.admit(denial, self.executor.now())?;
        let calls = self.denials.denial_recorders.iter().filter_map(|denial_recorder| {
            let arguments = CallArguments::from_value(&arguments);
            self.registry
                .prepare_any(denial_recorder, arguments)
                .inspect_err(|why| {
                    tracing::error!(
                        name: "denial_not_recorded",
                        %why,
                        "a denied attempt could not be recorded"
                    )
                })
                .ok()
        });
        Some(Unit::internal(calls.collect(), None))
    }

    /// Returns the record of a refused unit, if it was denied.
    fn record_refusal(&mut self, unit: &Unit, refusal: &Refusal) -> Option<Unit> {
        let reducers: Vec<&'static str> = unit.calls.iter().map(|call| call.reducer).collect();
        let denial = Denial::from_refusal(&unit.caller, &reducers, refusal)?;
        self.record_denial(&denial)
    }

    /// Prunes undo images beyond the retention limit.
    fn prune_change_log(&mut self) {
        self.scheduler.at_fault_point(FaultPoint::Prune);
        let store = &self.executor.transaction.store;
        let head = self.executor.chain.seq;
        let former_floor = self.change_log.floor();
        let pruned = self.change_log.prune(store, head, self.executor.clock.now());
        let floor = self.change_log.floor();
        self.metrics.change_log_oldest_seq.set(floor.0.unsigned_abs());
        if let Err(error) = pruned {
            tracing::warn!(name: "change_log_not_pruned", %error, "the change log was not pruned");
            if let Err(why) = store.rollback() {
                self.health.poison(&why);
            }
        } else if floor > former_floor && fault_points::journals() {
            let durable = *self.durable.borrow();
            let hash = self.executor.chain.hash;
            let recorded = self.journal.append_pruning(durable, head, hash, floor);
            if let Err(error) = recorded {
                // Nothing depends on it here. A group that cannot be appended is refused.
                tracing::warn!(
                    name: "pruning_not_recorded",
                    %error,
                    "the journal has no record of the pruned change log"
                );
            }
        }
    }

    /// Reports the outcome of each unit that a deadline started to the timers. Returns the continued calls that have
    /// ended.
    fn settle_deadlines(&mut self, units: &[Unit], outcomes: &[UnitOutcome]) -> Vec<LastStep> {
        let now = self.executor.now();
        let mut ended = Vec::new();
        for (unit, outcome) in units.iter().zip(outcomes) {
            let Some(due) = &unit.due else { continue };
            match outcome {
                UnitOutcome::Refused(refusal) => self.timers.refused(due, refusal, now),
                _ => {
                    self.timers.done(due);
                    self.metrics.deadline_calls_total.add(1);
                }
            }
            let Some(call) = due.continued.clone() else { continue };
            let failure = call.failure.clone();
            let outcome = match (failure, outcome) {
                (Some(failure), _) => Err(failure),
                (None, UnitOutcome::Done(done)) if !self.is_unfinished(&call) => {
                    let Some(last) = done.calls.last() else { continue };
                    Ok((last.seq, last.result.clone()))
                }
                (None, _) => continue,
            };
            ended.push(LastStep { call, outcome });
        }
        ended
    }

    /// Returns the calls of a unit whose work goes on, with their positions.
    fn unfinished(&self, unit: &Unit, done: &UnitResult) -> Vec<(usize, ContinuedCall)> {
        if unit.due.is_some() {
            return Vec::new();
        }
        let store = &self.executor.transaction.store;
        let calls = unit.calls.iter().zip(&done.calls).enumerate();
        calls
            .filter_map(|(position, (call, done))| {
                let found = self.timers.unfinished(store, call.reducer, &done.result);
                Some((position, found.inspect_err(log_unreadable).ok().flatten()?))
            })
            .collect()
    }

    fn is_unfinished(&self, call: &ContinuedCall) -> bool {
        let found = self.timers.is_unfinished(&self.executor.transaction.store, call);
        found.inspect_err(log_unreadable).unwrap_or(false)
    }

    fn count(&self, outcomes: &[UnitOutcome], deltas: usize) {
        for outcome in outcomes {
            match outcome {
                UnitOutcome::Done(done) if done.refusal().is_some() => {
                    self.metrics.refusals_total.add(1);
                }
                UnitOutcome::Done(done) if done.duplicate => self.metrics.duplicates_total.add(1),
                UnitOutcome::Done(done) => self.metrics.calls_total.add(done.calls.len() as u64),
                UnitOutcome::Deferred(_) => self.metrics.deferred_total.add(1),
                UnitOutcome::Refused(refusal) => {
                    self.metrics.refusals_total.add(1);
                    self.metrics.refusals_by_code_total.add(refusal.code);
                }
            }
        }
        self.metrics.deltas_total.add(deltas as u64);
    }
}

/// Logs why the rows of a continued call could not be read. Its caller is answered early.
fn log_unreadable(error: &StoreError) {
    tracing::warn!(name: "call_rest_unreadable", %error, "the rest of a call could not be read");
}
