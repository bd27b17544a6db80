//! The writer's side of live queries: their registrations and the memory that these take, their deltas within a commit,
//! and their accumulators.
//!
//! Which queries a commit affects, and their deltas, are computed by `abide_live`; here it runs on the writer's
//! connection.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use abide_live::{
    BackfillRequest, Binding, Changes, Cost, Delta, LiveError, Router, Sql, SqlError, SqlErrorKind,
    StatementLimits, TemplateWork,
};
use abide_schema::event::Event;
use abide_schema::reducer::Caller;
use abide_schema::share::{CommonScopeKeys, NoRoom, ShareKey, Shares};
use abide_schema::{Code, Refusal, Row, Scope, Value, limits};
use abide_store::{Reader, StoreError, Writer};

use crate::access::tenants::Tenants;
use crate::commit::fair_queue::Turn;
use crate::commit::jobs::{
    Attach, BackfillResult, EndedSubscription, FilledGroup, Registration, WriterJob,
};
use crate::commit::overlay::NetChange;
use crate::commit::queue::Queue;
use crate::fault_points::{self, FaultPoint};
use crate::metrics::Metrics;
use crate::ports::StepScheduler;
use crate::queries::changes::changes_since;
use crate::queries::failure::QueryFailure;
use crate::queries::reader_sql::{ReaderSql, sql_error};
use crate::queries::readers::ReaderJob;
use crate::queries::statement_limits::{fill_limits, live_limits};
use crate::queries::tables::LiveTables;
use crate::subscriptions::hub::Hub;
use crate::subscriptions::shared_delta::{Deltas, ResultChange, SharedDelta};

/// The live queries that have subscribers.
pub(crate) struct LiveQueries {
    pub(crate) router: Router,
    pub(crate) hub: Arc<Hub>,
    /// The writer's own queue.
    pub(crate) jobs: Arc<Queue<WriterJob>>,
    /// The readers' queue.
    pub(crate) readers: Arc<Queue<ReaderJob>>,
    /// Reads the state between two transactions.
    pub(crate) reader: Reader,
    /// The tables that can be queried live.
    pub(crate) tables: Arc<LiveTables>,
    /// The processor time that the fill of a group's accumulators may take.
    pub(crate) fill_time: Duration,
    /// Number of attached subscriptions.
    pub(crate) attached: usize,
    /// The memory that they hold.
    pub(crate) quota: SubscriptionQuota,
    /// Whether one of them may read the log itself.
    pub(crate) reads_log: bool,
    /// Names whose turn a reader's work takes.
    pub(crate) tenants: Tenants,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) scheduler: Arc<dyn StepScheduler>,
}

impl LiveQueries {
    /// Registers a subscription, between two transactions.
    pub(crate) fn attach(&mut self, attach: Attach) {
        self.scheduler.at_fault_point(FaultPoint::Attach);
        let Attach { binding, by, bytes, connection, key, outbox, reply } = attach;
        if !binding.is_latest() {
            return drop(reply.send(Err(QueryFailure::Outdated)));
        }
        let id = self.quota.check(&by, bytes).and_then(|()| self.router.attach(&binding, &by));
        let registration = id.map(|id| {
            self.attached += 1;
            self.quota.add(&by, bytes);
            self.reads_log |= binding.tables().contains(&"events");
            self.scheduler.at_fault_point(FaultPoint::Attached);
            self.hub.listen(id, connection, key, &outbox);
            let jobs = Arc::clone(&self.jobs);
            let hub = Arc::clone(&self.hub);
            Registration { jobs, hub, binding: id, by, bytes, connection, key }
        });
        // If the subscriber has gone, dropping the registration releases it.
        let _ = reply.send(registration.map_err(QueryFailure::from));
    }

    /// Ends a subscription.
    pub(crate) fn detach(&mut self, ended: &EndedSubscription) {
        self.scheduler.at_fault_point(FaultPoint::Detach);
        self.router.detach(ended.binding, &ended.by);
        self.quota.remove(&ended.by, ended.bytes);
        self.attached -= 1;
        self.reads_log &= self.attached > 0;
    }

    /// Returns the cost of each template.
    pub(crate) fn templates(&self) -> Vec<TemplateWork> {
        self.router.templates()
    }

    /// `true` if a commit must keep its events for [`LiveQueries::deltas`].
    pub(crate) fn reads_log(&self) -> bool {
        self.reads_log
    }

    /// Returns the changes of the commit in the results of live queries. `store` is in the state after the changes.
    ///
    /// A delta that costs too much, or whose query fails, concerns only its subscribers: they get that instead.
    ///
    /// # Errors
    /// The storage failed; then the group is rolled back.
    pub(crate) fn deltas(
        &mut self,
        store: &Writer,
        net: Vec<NetChange>,
        events: &[Event],
    ) -> Result<Deltas, StoreError> {
        if self.attached == 0 {
            return Ok(Vec::new());
        }
        let mut changes = Changes::new();
        for NetChange { table, old, new } in net {
            let old = fault_points::old_image(old, new.as_ref());
            changes.push(table.name, old, new);
        }
        for event in events {
            changes.push("events", None, Some(abide_store::event_row(event)));
        }
        let mut sql = WriterSql { store, scheduler: &*self.scheduler };
        let deltas = self.router.commit(&changes, &mut sql);
        self.export_counters();
        deltas
            .into_iter()
            .map(|(binding, delta)| Ok((binding, SharedDelta::new(result_change(delta)?))))
            .collect()
    }

    /// Ends the use of plans whose policies are no longer in force. All deltas of a commit use its policies.
    pub(crate) fn outdated(&self) -> Deltas {
        self.router
            .outdated()
            .into_iter()
            .map(|binding| (binding, SharedDelta::new(ResultChange::Outdated)))
            .collect()
    }

    fn export_counters(&self) {
        let work = self.router.counters();
        self.metrics.live_rows_routed_total.set(work.rows_routed);
        self.metrics.live_bindings_probed_total.set(work.bindings_probed);
        self.metrics.live_statements_total.set(work.spent.statements);
        self.metrics.live_steps_total.set(work.spent.steps);
        self.metrics.live_state_bytes.set(self.router.remembered_bytes() as u64);
        self.metrics.live_residual_bindings.set(self.router.residual() as u64);
    }

    /// Drops what was computed for a transaction that is rolled back.
    pub(crate) fn forget(&mut self) {
        self.router.forget();
    }

    /// Lets readers fill accumulators that are too expensive to fill within a commit, in the turn of the tenant that
    /// pays for the live query.
    pub(crate) fn queue_backfills(&mut self, requests: Vec<BackfillRequest>) {
        for request in requests {
            let turn = self.turn_of(&request.payer);
            let unfilled = request.clone();
            let jobs = Arc::clone(&self.jobs);
            let scheduler = Arc::clone(&self.scheduler);
            let hub = Arc::clone(&self.hub);
            let time = self.fill_time;
            let job: ReaderJob = Box::new(move |reader| {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    scheduler.at_fault_point(FaultPoint::Fill);
                    if !hub.has_listeners(request.id) {
                        return Ok(None);
                    }
                    scheduler.at_fault_point(FaultPoint::FillBegun);
                    fill_group(reader, &request.binding, &request.group, time)
                }));
                let (filled, panic) = match outcome {
                    Ok(Ok(filled)) => (filled, None),
                    Ok(Err(refusal)) => {
                        tracing::warn!(
                            name: "live_state_not_filled",
                            %refusal,
                            "accumulators of a live query could not be filled"
                        );
                        (None, None)
                    }
                    Err(panic) => (None, Some(panic)),
                };
                // If the queue is closed, there are no live queries.
                let _ = jobs.push(None, WriterJob::Backfill(BackfillResult { request, filled }), 0);
                // The router gets no accumulators for these groups; the reader's thread handles its panic.
                if let Some(panic) = panic {
                    resume_unwind(panic);
                }
            });
            if self.readers.push(Some(&turn), job, 1).is_err() {
                // It is requested again when the group is next touched.
                self.apply_backfill(BackfillResult { request: unfilled, filled: None });
            }
        }
    }

    /// Returns the turn of a payer in the queue of the readers.
    fn turn_of(&self, payer: &ShareKey) -> Turn {
        let tenant = match payer {
            ShareKey::Operator => Caller::SYSTEM.to_owned(),
            ShareKey::Caller(id) => id.to_string(),
            ShareKey::Scope(scope) => {
                let caller = Caller::with("", "", BTreeSet::new(), Scope::clone(scope));
                self.tenants.key(&caller)
            }
        };
        Turn::from_tenant(&tenant)
    }

    /// Brings accumulators from their seq to the current state.
    pub(crate) fn apply_backfill(&mut self, backfill: BackfillResult) {
        self.scheduler.at_fault_point(FaultPoint::Backfill);
        let BackfillResult { request, filled } = backfill;
        let state = match self.reader.snapshot() {
            Ok(state) => state,
            Err(error) => {
                return tracing::warn!(
                    name: "live_state_not_filled",
                    %error,
                    "the current state could not be read"
                );
            }
        };
        let since_filled = filled.and_then(|filled| {
            let changes = changes_since(&state, &self.tables, &request.binding, filled.seq);
            Some((filled.group, changes.ok()?.ok()?))
        });
        let (group, changes) = since_filled.unzip();
        let changes = changes.unwrap_or_default();
        let mut sql = ReaderSql::new(&state);
        if let Err(error) = self.router.apply_backfill(&request, group, &changes, &mut sql) {
            tracing::warn!(
                name: "live_state_not_applied",
                %error,
                "accumulators of a live query could not be applied"
            );
        }
    }
}

/// Reads the accumulators of a group, and the seq of that state.
fn fill_group(
    reader: &mut Reader,
    binding: &Binding,
    group: &Row,
    time: Duration,
) -> Result<Option<FilledGroup>, Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let mut sql = ReaderSql::within(&state, fill_limits(binding, time));
    let filled = binding.fill(group, &mut sql).map_err(|error| {
        state
            .interrupted_for_checkpoint()
            .unwrap_or_else(|| Refusal::new(Code::BadSql, error.to_string()))
    })?;
    Ok(filled.map(|group| FilledGroup { seq: state.seq(), group }))
}

fn result_change(delta: Result<Delta, LiveError>) -> Result<ResultChange, StoreError> {
    match delta {
        Ok(delta) => Ok(ResultChange::Rows(delta)),
        // A delta evaluates expressions for rows of the state before the commit, and for rows that the query as a
        // whole may not reach. Whether the query fails is known when it is run again.
        Err(LiveError::OverBudget | LiveError::Query(_)) => Ok(ResultChange::Stale),
        Err(LiveError::Broken(why)) => Err(StoreError::Sql { message: why, offset: None }),
    }
}

/// The memory of the attached subscriptions: the callers of one tenant have a share of it.
pub(crate) struct SubscriptionQuota {
    bytes: Shares,
    common: CommonScopeKeys,
}

impl SubscriptionQuota {
    pub(crate) fn new() -> SubscriptionQuota {
        SubscriptionQuota {
            bytes: Shares::new(limits::SUBSCRIPTIONS_BYTES),
            common: CommonScopeKeys::default(),
        }
    }

    /// Checks that there is room for a subscription.
    ///
    /// # Errors
    /// `limit_exceeded` if the caller's tenant has used its share, `overloaded` if others have used the rest.
    pub(crate) fn check(&mut self, by: &ShareKey, bytes: usize) -> Result<(), Refusal> {
        self.common.include(by);
        let (code, detail, hint) = match self.bytes.check(by, bytes, &self.common) {
            Ok(()) => return Ok(()),
            Err(NoRoom::Own) => (
                Code::LimitExceeded,
                "your live queries hold too much memory",
                "end some of them, or use shorter parameters",
            ),
            Err(NoRoom::Others) => {
                (Code::Overloaded, "live queries hold too much memory", "try again in a moment")
            }
        };
        Err(Refusal::new(code, detail).hint(hint))
    }

    pub(crate) fn add(&mut self, by: &ShareKey, bytes: usize) {
        self.bytes.add(by, bytes);
    }

    pub(crate) fn remove(&mut self, by: &ShareKey, bytes: usize) {
        self.bytes.remove(by, bytes);
    }
}

/// Runs the SQL of live queries on the writer's connection.
pub(crate) struct WriterSql<'a> {
    pub(crate) store: &'a Writer,
    pub(crate) scheduler: &'a dyn StepScheduler,
}

impl Sql for WriterSql<'_> {
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<Cost, SqlError> {
        self.scheduler.at_fault_point(FaultPoint::Delta);
        let steps = self.store.run(statement, params, each).map_err(|error| match error {
            // A reader accepts longer values.
            StoreError::Limit(_) => {
                SqlError { message: error.to_string(), kind: SqlErrorKind::Budget }
            }
            error => sql_error(&error),
        })?;
        Ok(Cost::from_steps(steps.all, steps.visible))
    }

    fn allow(&mut self, allowance: Option<StatementLimits>) {
        if let Err(error) = self.store.allow(allowance.map(live_limits).as_ref()) {
            tracing::error!(
                name: "delta_limits_failed",
                %error,
                "the limits of a delta could not be set"
            );
        }
    }

    fn processor_time(&self) -> Duration {
        abide_store::processor_time()
    }
}
