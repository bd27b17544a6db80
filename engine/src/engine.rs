//! The handle of a running engine: open, call, query, connect, close.

pub(crate) mod inner;
mod startup;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_live::TemplateWork;
use abide_schema::metrics::{Metric, MetricFamily, MetricKind, MetricSample};
use abide_schema::reducer::{Caller, CredentialQueries, Definition, MetricSeries, WaitingRows};
use abide_schema::wire::{BatchCall, Explanation};
use abide_schema::{CallArguments, Code, Micros, Refusal, Seq, Value, limits};
use abide_store::{Layout, OpenError, Store, readable_views};
use serde_json::{Map, Value as JsonValue, json};
use tokio::sync::{oneshot, watch};

use crate::access::denials::Denial;
use crate::access::tenants::Tenants;
use crate::commit::durable::is_reached;
use crate::commit::jobs::WriterJob;
use crate::commit::queue::closing;
use crate::commit::registry::PreparedCall;
use crate::commit::unit::AnswerAt;
use crate::config::Config;
use crate::last_commit;
use crate::metrics::{Metrics, WaitingCount};
use crate::ports::{Backlog, EventSources};
use crate::queries::output::Delivery;
use crate::queries::service::QueryRequest;
use crate::results::{
    CollectedResult, CommittedBatch, CommittedCall, EngineFuture, QueryResult, RowSink,
    TableColumns,
};
use crate::subscriptions::buffers::Buffers;
use crate::subscriptions::connection::Connection;
use inner::{Inner, overloaded};
use startup::ThreadConfig;

/// The calls of a batch: a slice of [`BatchCall`], whose arguments are values, or a `Vec` whose arguments are
/// [`CallArguments`].
pub trait BatchCalls<'a>:
    IntoIterator<Item: Into<BatchCall<CallArguments>>, IntoIter: ExactSizeIterator + Send> + Send + 'a
{
}

impl<'a, C> BatchCalls<'a> for C where
    C: IntoIterator<Item: Into<BatchCall<CallArguments>>, IntoIter: ExactSizeIterator + Send>
        + Send
        + 'a
{
}

/// A running engine. Clones share it; it stops when the last one is dropped or it is closed.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
    /// Whether this handle is for callers of other processes.
    is_for_callers: bool,
}

impl Engine {
    /// Opens a file, creates it if necessary, and starts the threads.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: impl AsRef<Path>, config: Config) -> Result<Engine, OpenError> {
        let layout = Layout { modules: config.modules.clone() };
        let store = Store::open(path.as_ref(), layout, config.tuning.clone())?;
        let path = store.path().to_owned();
        if let Some(backup) = store.migration_backup() {
            tracing::warn!(
                name: "file_migrated",
                "the tables of {} were migrated, and older programs refuse the file; {} is the file before, to be \
                 removed when nobody goes back",
                path.display(),
                backup.display()
            );
        }
        let Config { clock, entropy, live_budget, retention, buffers, scheduler, .. } = config;
        let config = ThreadConfig {
            sources: EventSources { clock, entropy },
            live_budget,
            retention,
            buffers,
            timers: config.timers,
            lease_grace: config.lease_grace,
            due_of_a_tenant: config.due_of_a_tenant,
            scheduler,
        };
        let inner = startup::start(store, config).map_err(|why| OpenError::Store { path, why })?;
        Ok(Engine { inner, is_for_callers: false })
    }

    /// Runs a reducer with a value as its arguments, or with [`CallArguments`]. When this returns, its effects are
    /// durable.
    ///
    /// # Errors
    /// A [`Refusal`]; then nothing was written.
    pub fn call<'a>(
        &'a self,
        caller: &'a Caller,
        reducer: &'a str,
        args: impl Into<CallArguments> + Send + 'a,
        request_id: Option<&'a str>,
    ) -> EngineFuture<'a, Result<CommittedCall, Refusal>> {
        Box::pin(async move {
            // First, so that a call that is refused counts as well.
            self.inner.allow(caller, 1)?;
            let refusal = self.check_accepted(reducer, request_id)?;
            let calls = vec![self.inner.registry.prepare(reducer, args.into())?];
            let answer_at = AnswerAt::Durable;
            let done = self.inner.submit(caller, calls, request_id, refusal, answer_at).await?;
            let duplicate = done.duplicate;
            let call = done.calls.into_iter().next().expect("one call has one answer");
            last_commit::note(call.seq);
            Ok(CommittedCall {
                seq: call.seq,
                result: call.result,
                duplicate: duplicate || call.duplicate,
            })
        })
    }

    /// Whether a call of this size would be accepted now: lets a server refuse a request before reading its
    /// body.
    ///
    /// # Errors
    /// `overloaded` if too many bytes of the caller are queued already.
    pub fn check_room(&self, caller: &Caller, bytes: usize) -> Result<(), Refusal> {
        let weight = limits::CALL_OVERHEAD_BYTES + bytes;
        if self.inner.jobs.accepts(&self.inner.turn(caller), weight) {
            Ok(())
        } else {
            Err(overloaded())
        }
    }

    /// Runs several reducers in one transaction, all or nothing. When this returns, its effects are durable.
    ///
    /// # Errors
    /// The [`Refusal`] of the first refused call; then nothing of the batch was written.
    pub fn batch<'a>(
        &'a self,
        caller: &'a Caller,
        calls: impl BatchCalls<'a>,
        request_id: Option<&'a str>,
    ) -> EngineFuture<'a, Result<CommittedBatch, Refusal>> {
        Box::pin(self.run_batch(caller, calls, request_id, AnswerAt::Durable))
    }

    /// Runs a batch like [`Engine::batch`], and may return before its effects are durable, so that the caller can
    /// prepare what follows while the disk is written. No subscriber and no query sees them earlier. Until
    /// [`Engine::until_durable`] has returned for its seq, a crash can undo the batch: the caller must not show it, and
    /// must not start work that depends on it and has an effect.
    ///
    /// # Errors
    /// Those of [`Engine::batch`].
    pub fn apply<'a>(
        &'a self,
        caller: &'a Caller,
        calls: impl BatchCalls<'a>,
        request_id: Option<&'a str>,
    ) -> EngineFuture<'a, Result<CommittedBatch, Refusal>> {
        Box::pin(self.run_batch(caller, calls, request_id, AnswerAt::Applied))
    }

    /// Returns a handle for callers of other processes, which [`Engine::refuse_calls_of`] is about.
    #[must_use]
    pub fn for_callers(&self) -> Engine {
        Engine { inner: Arc::clone(&self.inner), is_for_callers: true }
    }

    /// Refuses calls of these reducers by other processes with `unavailable` from now on: this process is about to stop, and
    /// they begin work that it would have to leave. A repeated request still gets the answer of the first one. Everything
    /// else is accepted until [`Engine::close`]. Only the first call has an effect.
    pub fn refuse_calls_of(&self, reducers: &'static [&'static str]) {
        let _ = self.inner.refused_reducers.set(reducers);
    }

    /// Returns the refusal of a call that begins work while this process is about to stop. It applies unless the request
    /// is a repetition, which the writer finds out.
    ///
    /// # Errors
    /// The refusal of a call without a request id: it repeats nothing.
    fn check_accepted(
        &self,
        reducer: &str,
        request_id: Option<&str>,
    ) -> Result<Option<Refusal>, Refusal> {
        if !self.is_for_callers {
            return Ok(None);
        }
        match self.inner.refusal_of_new_work(reducer) {
            Some(refusal) if request_id.is_none() => Err(refusal),
            refusal => Ok(refusal),
        }
    }

    /// Waits until an event is durable, and all events before it. It may be a future event.
    ///
    /// # Errors
    /// A [`Refusal`]: the storage or a thread of the engine has failed, or the engine was closed before the event.
    pub fn until_durable(&self, seq: Seq) -> EngineFuture<'_, Result<(), Refusal>> {
        let Inner { queries, health, .. } = &*self.inner;
        Box::pin(async move {
            if is_reached(&queries.durable, seq, health).await? {
                Ok(())
            } else {
                Err(health.refusal().unwrap_or_else(closing))
            }
        })
    }

    async fn run_batch(
        &self,
        caller: &Caller,
        calls: impl BatchCalls<'_>,
        request_id: Option<&str>,
        answer_at: AnswerAt,
    ) -> Result<CommittedBatch, Refusal> {
        let calls = calls.into_iter();
        if calls.len() == 0 {
            return Err(Refusal::new(Code::BadRequest, "the batch is empty"));
        }
        if calls.len() > limits::BATCH_CALLS {
            let count = calls.len();
            let max = limits::BATCH_CALLS;
            let detail = format!("the batch has {count} calls; the limit is {max}");
            return Err(Refusal::new(Code::LimitExceeded, detail).hint("send several batches"));
        }
        self.inner.allow(caller, calls.len())?;
        let mut prepared = Vec::with_capacity(calls.len());
        let mut refusal_if_new = None;
        for (at, call) in calls.enumerate() {
            let BatchCall { reducer, args }: BatchCall<CallArguments> = call.into();
            let refusal =
                self.check_accepted(&reducer, request_id).map_err(|why| at_position(why, at))?;
            if refusal_if_new.is_none() {
                refusal_if_new = refusal.map(|why| at_position(why, at));
            }
            let call =
                self.inner.registry.prepare(&reducer, args).map_err(|why| at_position(why, at))?;
            prepared.push(call);
        }
        check_batch_bytes(caller, &prepared)?;
        let done =
            self.inner.submit(caller, prepared, request_id, refusal_if_new, answer_at).await?;
        let results: Vec<CommittedCall> = done
            .calls
            .into_iter()
            .map(|call| CommittedCall {
                seq: call.seq,
                result: call.result,
                duplicate: call.duplicate,
            })
            .collect();
        let seq = results.iter().map(|done| done.seq).max().unwrap_or(Seq::ZERO);
        last_commit::note(seq);
        Ok(CommittedBatch { seq, results, duplicate: done.duplicate })
    }

    /// Runs due deadlines immediately instead of waiting for the engine's timer. When this returns,
    /// their effects are durable, up to the limit of one transaction
    /// ([`limits::DUE_PER_COMMIT`]). For manual clocks.
    ///
    /// # Errors
    /// A [`Refusal`] if the engine accepts nothing any more.
    pub fn fire_due(&self) -> EngineFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            // A unit without calls: the writer runs due rows before any unit, in the same group.
            let system = Caller::system();
            let answer_at = AnswerAt::Durable;
            self.inner.submit(&system, Vec::new(), None, None, answer_at).await.map(drop)
        })
    }

    /// Runs one read-only statement. When this returns, the state that it read is durable.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn query<'a>(
        &'a self,
        caller: &'a Caller,
        sql: &'a str,
        params: &'a Map<String, JsonValue>,
        as_of: Option<Seq>,
    ) -> EngineFuture<'a, Result<QueryResult, Refusal>> {
        Box::pin(async move {
            let sink = CollectedResult::default();
            Ok(self.read_rows(caller, sql, params, as_of, sink).await?.into_result())
        })
    }

    /// Runs one read-only statement like [`Engine::query`], and passes its rows to `sink` as they are read. When this returns
    /// the sink, the state that it read is durable; the rows must not be shown before.
    ///
    /// # Errors
    /// A [`Refusal`]. The limits are those of [`Engine::query`].
    pub fn read_rows<'a, S: RowSink>(
        &'a self,
        caller: &'a Caller,
        sql: &'a str,
        params: &'a Map<String, JsonValue>,
        as_of: Option<Seq>,
        sink: S,
    ) -> EngineFuture<'a, Result<S, Refusal>> {
        Box::pin(async move {
            self.inner.allow(caller, 1)?;
            let request = QueryRequest { caller, sql, params, as_of };
            self.inner.queries.query(request, sink, Delivery::Whole).await
        })
    }

    /// Runs one read-only statement and passes its rows to `sink` as they are read, which can show them at once: the state that
    /// is read is durable before the first row. The result has any number of rows; the limits of time and steps are those
    /// of each row. The sink occupies a reader while it waits, so this is for a process whose only query it is.
    ///
    /// # Errors
    /// A [`Refusal`]. The sink may have had rows before it.
    pub fn stream_rows<'a, S: RowSink>(
        &'a self,
        caller: &'a Caller,
        sql: &'a str,
        params: &'a Map<String, JsonValue>,
        as_of: Option<Seq>,
        sink: S,
    ) -> EngineFuture<'a, Result<S, Refusal>> {
        Box::pin(async move {
            self.inner.allow(caller, 1)?;
            let request = QueryRequest { caller, sql, params, as_of };
            let delivery = self.inner.queries.row_by_row();
            self.inner.queries.query(request, sink, delivery).await
        })
    }

    /// Looks up credentials, on a dedicated reader, so that callers' queries do not delay
    /// authentication. Like every answer, it waits until the state that it read is durable.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn look_up<'a>(
        &'a self,
        sql: &'a str,
        params: &'a Map<String, JsonValue>,
    ) -> EngineFuture<'a, Result<QueryResult, Refusal>> {
        Box::pin(async move { self.inner.queries.look_up(sql, params).await })
    }

    /// Runs one read-only statement of the server itself, in a turn among the queries of callers. No metric counts it. When this
    /// returns, the state that it read is durable.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn read_uncounted<'a>(
        &'a self,
        sql: &'a str,
        params: &'a Map<String, JsonValue>,
    ) -> EngineFuture<'a, Result<QueryResult, Refusal>> {
        Box::pin(async move { self.inner.queries.measure(sql, params).await })
    }

    /// Explains how a query would be maintained live, and at what cost. Omitted parameters are NULL.
    ///
    /// # Errors
    /// A [`Refusal`] if the query cannot be live. A query that lacks an index is explained,
    /// together with the refusal that it would get.
    pub fn explain<'a>(
        &'a self,
        caller: &'a Caller,
        sql: &'a str,
        params: &'a Map<String, JsonValue>,
    ) -> EngineFuture<'a, Result<Explanation, Refusal>> {
        Box::pin(async move {
            self.inner.allow(caller, 1)?;
            self.inner.queries.explain(caller, sql, params).await
        })
    }

    /// Opens a connection for a caller's subscriptions.
    #[must_use]
    pub fn connect(&self, caller: &Caller) -> Connection {
        Connection::new(Arc::clone(&self.inner), caller.clone())
    }

    /// Returns the seq of the last commit since this call that changed any of these tables. It advances before
    /// any reply to that commit: checking it before each use keeps a cache exact.
    #[must_use]
    pub fn watch_tables(&self, tables: &'static [&'static str]) -> watch::Receiver<Seq> {
        self.inner.watchers.add(tables)
    }

    /// Returns how to look up tokens, if a module declares it.
    #[must_use]
    pub fn credential_queries(&self) -> Option<CredentialQueries> {
        self.inner.store.layout().modules.iter().find_map(|module| module.credential_queries)
    }

    /// Records a denied request that was not a reducer call, within the limits for recorded attempts
    /// of each caller. Does not wait for it.
    pub fn note_denied(&self, caller: &Caller, what: &str, why: &str) {
        let denial = Denial { caller: caller.clone(), what: what.to_owned(), why: why.to_owned() };
        let job = WriterJob::Denied(denial);
        let weight = limits::CALL_OVERHEAD_BYTES;
        // If the engine accepts nothing any more, no attempt succeeds either.
        let _ = self.inner.send(Some(&self.inner.turn(caller)), job, weight);
    }

    /// Returns the current time of the engine's clock.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.inner.clock.now()
    }

    /// Returns the last durable event.
    #[must_use]
    pub fn durable_seq(&self) -> Seq {
        *self.inner.queries.durable.borrow()
    }

    /// The timeline of the states since this engine was opened. A client that resumes in another process or on another
    /// connection states it ([`SubscribeRequest::timeline`](crate::SubscribeRequest::timeline)).
    #[must_use]
    pub fn timeline(&self) -> &str {
        self.inner.store.timelines().current()
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.inner.store.path().to_owned()
    }

    /// Whether calls are accepted and will be found again.
    ///
    /// # Errors
    /// The [`Refusal`] that callers currently get; `engine_failed` if the database file was removed or replaced: what
    /// is written now is lost when the process ends.
    pub fn ready(&self) -> Result<(), Refusal> {
        let Inner { health, store, .. } = &*self.inner;
        if let (Ok(()), Some(file)) = (health.check(), store.displaced()) {
            health.displaced(file);
        }
        health.check()
    }

    /// Returns the bytes that the database can still take on its disk, if the system tells. With few, calls are refused
    /// with `disk_full`, and the engine is still [ready](Engine::ready): queries are answered.
    #[must_use]
    pub fn disk_free_bytes(&self) -> Option<u64> {
        self.inner.store.free_bytes().ok()
    }

    /// Waits until the engine fails: a write or a sync to disk failed, or one of its threads panicked. From then on all
    /// requests are refused until the file is opened again.
    pub async fn failed(&self) {
        self.inner.health.poisoned().await;
    }

    /// Returns the bytes buffered for clients. A server counts its own buffers there.
    #[must_use]
    pub fn buffers(&self) -> &Buffers {
        &self.inner.buffers
    }

    /// Names the tenants of callers, for limits of a server of which each tenant has a share.
    #[must_use]
    pub fn tenants(&self) -> &Tenants {
        &self.inner.queries.tenants
    }

    /// Returns the counters.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Returns the cost of each live query template within commits, most expensive first.
    ///
    /// # Errors
    /// The engine is closing or poisoned.
    pub fn live_templates(&self) -> EngineFuture<'_, Result<Vec<TemplateWork>, Refusal>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.inner.send(None, WriterJob::Templates(reply), 0)?;
            answer.await.map_err(|_| self.inner.health.fail_for_dropped_reply())
        })
    }

    /// Returns the numbers of rows that modules declare for `/metrics` ([`abide_schema::Module::metric`]).
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn module_families(&self) -> EngineFuture<'_, Result<Vec<MetricFamily>, Refusal>> {
        Box::pin(async move {
            let mut all = Vec::new();
            let declared =
                self.inner.store.layout().modules.iter().flat_map(|module| &module.metrics);
            for MetricSeries { name, meaning, label, query } in declared {
                let found = self.inner.queries.measure(query, &Map::new()).await?;
                let samples = found.rows.iter().filter_map(|row| match &row[..] {
                    [Value::Text(value), Value::Integer(count)] => {
                        let labels = vec![(*label, value.clone())];
                        Some(MetricSample::new(labels, count.unsigned_abs() as f64))
                    }
                    _ => None,
                });
                let is_counter = name.ends_with("_total");
                let kind = if is_counter { MetricKind::Counter } else { MetricKind::Gauge };
                all.push(Metric { name, meaning, kind }.with(samples.collect()));
            }
            Ok(all)
        })
    }

    /// Counts the rows that wait, as modules declare them for `/metrics` ([`abide_schema::Module::waiting`]).
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn waiting_rows(&self) -> EngineFuture<'_, Result<Vec<WaitingCount>, Refusal>> {
        Box::pin(async move {
            let mut all = Vec::new();
            let now = self.now();
            let declared =
                self.inner.store.layout().modules.iter().flat_map(|module| &module.waiting);
            for WaitingRows { kind, query } in declared {
                let max = limits::WAITING_ROWS;
                let sql = format!(
                    "SELECT count(*), min(since) FROM ({query} LIMIT {max}) WHERE :now IS NOT NULL"
                );
                let params = [("now".to_owned(), now.0.into())].into_iter().collect();
                let found = self.inner.queries.measure(&sql, &params).await?;
                let Some([Value::Integer(count), since]) = found.rows.first().map(|row| &row[..])
                else {
                    continue;
                };
                let oldest = match since {
                    Value::Integer(since) => now.0.saturating_sub(*since).max(0).unsigned_abs(),
                    _ => 0,
                };
                let count = count.unsigned_abs();
                all.push(WaitingCount { kind, count, oldest: Duration::from_micros(oldest) });
            }
            Ok(all)
        })
    }

    /// Bytes of calls queued for the writer.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.inner.jobs.weight()
    }

    /// Queue lengths of the threads. For a scheduler ([`StepScheduler`](crate::ports::StepScheduler)).
    #[must_use]
    pub fn waiting(&self) -> Backlog {
        Backlog {
            jobs: self.inner.jobs.len(),
            commits: self.inner.commits.len(),
            publications: self.inner.to_publish.len(),
            reads: self.inner.queries.readers.queue().len(),
        }
    }

    /// Tables and reducers, as in `/v1/schema`.
    #[must_use]
    pub fn describe(&self) -> JsonValue {
        self.describe_for(&Caller::local())
    }

    /// Tables and reducers, restricted to the tables and columns that a caller may see.
    #[must_use]
    pub fn describe_for(&self, caller: &Caller) -> JsonValue {
        let tables = self.inner.queries.policies.describe(caller);
        let reducers: Vec<JsonValue> =
            self.inner.registry.definitions().map(describe_reducer).collect();
        let views = self.describe_views(&tables);
        json!({"tables": tables, "views": views, "reducers": reducers})
    }

    /// Returns the description of one reducer, which does not depend on the caller; `None` if there is none with this
    /// name.
    #[must_use]
    pub fn describe_reducer(&self, name: &str) -> Option<JsonValue> {
        let mut all = self.inner.registry.definitions();
        all.find(|definition| definition.name == name).map(describe_reducer)
    }

    /// Returns the described tables alone.
    #[must_use]
    pub fn describe_tables(&self, caller: &Caller) -> Vec<JsonValue> {
        self.inner.queries.policies.describe(caller)
    }

    /// Returns what a reader of one table needs to know of its columns, restricted in the same way; `None` if the
    /// caller may not see the table. Describes nothing, so it is cheap.
    #[must_use]
    pub fn table_columns(&self, caller: &Caller, table: &str) -> Option<TableColumns> {
        self.inner.queries.policies.columns_of(caller, table)
    }

    /// Returns the views over described tables.
    fn describe_views(&self, tables: &[JsonValue]) -> Vec<JsonValue> {
        let tables: Vec<(String, Vec<String>)> = tables
            .iter()
            .map(|table| {
                let columns = table["columns"].as_array().into_iter().flatten();
                (name_of(table), columns.map(name_of).collect())
            })
            .collect();
        match readable_views(self.inner.store.layout(), &tables) {
            Ok(views) => views
                .into_iter()
                .map(|(name, columns)| json!({"name": name, "columns": columns}))
                .collect(),
            Err(error) => {
                tracing::error!(
                    name: "views_not_described",
                    %error,
                    "the views cannot be described"
                );
                Vec::new()
            }
        }
    }

    /// Closes the engine: queued calls are run, made durable and answered, then the WAL is checkpointed.
    /// Returns when all of that is done. Blocks: call it from a thread, not from a task.
    pub fn close(&self) {
        self.inner.stop();
        let is_complete = self.inner.checkpoints.finish() && !self.inner.visible.is_behind();
        if is_complete && let Err(error) = self.inner.store.remove_journal() {
            tracing::warn!(
                name: "journal_not_removed",
                %error,
                "the journal was not removed; the next opening does"
            );
        }
    }
}

/// Returns the refusal of the call at this position of a batch.
fn at_position(refusal: Refusal, position: usize) -> Refusal {
    Refusal { batch_position: Some(position + 1), ..refusal }
}

/// Refuses a batch of a restricted caller that would keep the calls of others waiting. One call of it can be as large
/// as a single call.
fn check_batch_bytes(caller: &Caller, calls: &[PreparedCall]) -> Result<(), Refusal> {
    if caller.is_unrestricted() {
        return Ok(());
    }
    let sizes = calls.iter().map(|call| call.arguments.text().len());
    let others = sizes.clone().sum::<usize>() - sizes.max().unwrap_or(0);
    if others <= limits::BATCH_BYTES {
        return Ok(());
    }
    let max = limits::BATCH_BYTES;
    let detail = format!(
        "the calls of the batch have {others} bytes of arguments besides the largest call; the limit is {max}"
    );
    Err(Refusal::new(Code::LimitExceeded, detail).hint("send several batches"))
}

fn name_of(described: &JsonValue) -> String {
    described["name"].as_str().unwrap_or_default().to_owned()
}

/// Returns a reducer as `/v1/schema` has it.
fn describe_reducer(definition: &Definition) -> JsonValue {
    json!({
        "name": definition.name,
        "description": definition.doc,
        "arguments": (definition.arguments)(),
        "result": (definition.result)(),
    })
}
