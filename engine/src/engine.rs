//! The handle of a running engine: open, call, query, connect, close.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use abide_live::{Binding, Budget, Catalog, Planner, QueryPrincipal, Router, TemplateWork};
use abide_log::Chain;
use abide_schema::reducer::{Caller, CredentialQueries};
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::wire::{BatchCall, Explanation};
use abide_schema::{Code, Micros, Refusal, Seq, TableSpec, Value, limits};
use abide_store::{
    Checkpointer, LastBefore, Layout, LogHead, OpenError, Reader, Store, StoreError, WalSync,
    Writer,
};
use serde_json::{Map, Value as JsonValue, json};
use tokio::sync::{oneshot, watch};

use crate::access::credentials::CredentialChecker;
use crate::access::denials::{Denial, Denials};
use crate::access::policies::{Policies, PolicyValidator, TransactionPolicies, is_outdated};
use crate::access::rate_limiter::RateLimiter;
use crate::access::scope_rules::ScopeRules;
use crate::commit::checkpointer::{CheckpointConfig, CheckpointThread};
use crate::commit::durable::{self, Commit, Publication, Syncer, UnitResult, publish};
use crate::commit::execute::Executor;
use crate::commit::queue::{Queue, Rejected};
use crate::commit::registry::{PreparedCall, Registry};
use crate::commit::request_ids::Request;
use crate::commit::retention::{ChangeLog, Retention};
use crate::commit::table_watchers::TableWatchers;
use crate::commit::timers::Timers;
use crate::commit::unit::Unit;
use crate::commit::writer::{WriterJob, WriterThread};
use crate::config::Config;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::{Backlog, Clock, EngineThread, Entropy, FreeRunning, StepScheduler};
use crate::queries::explain::{self, PlanningDb};
use crate::queries::query;
use crate::queries::readers::{OpenReader, Readers, closing, open_reader};
use crate::results::{CommittedBatch, CommittedCall, QueryResult};
use crate::subscriptions::buffers::{BufferLimits, Buffers};
use crate::subscriptions::connection::Connection;
use crate::subscriptions::hub::Hub;
use crate::subscriptions::rerun::SharedReruns;
use crate::subscriptions::resume;
use crate::subscriptions::shared_results::{ResultCache, SharedResults};
use crate::threads::Threads;

/// A running engine. Clones share it; it stops when the last one is dropped or it is closed.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    jobs: Arc<Queue<WriterJob>>,
    commits: Arc<Queue<Commit>>,
    to_publish: Arc<Queue<Publication>>,
    readers: Readers,
    /// A separate reader for credentials.
    lookups: Readers,
    registry: Arc<Registry>,
    planner: Arc<Planner>,
    policies: Arc<Policies>,
    /// The tables that can be queried live.
    pub(crate) tables: Arc<[&'static TableSpec]>,
    pub(crate) reruns: SharedReruns,
    pub(crate) hub: Arc<Hub>,
    durable: watch::Receiver<Seq>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    checkpoints: CheckpointThread,
    threads: Mutex<Vec<JoinHandle<()>>>,
    planning_db: Arc<PlanningDb>,
    watchers: Arc<TableWatchers>,
    rate_limiter: RateLimiter,
    buffers: Buffers,
    results: Arc<ResultCache>,
    clock: Arc<dyn Clock>,
    store: Arc<Store>,
}

impl Engine {
    /// Opens a file, creates it if necessary, and starts the threads.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: impl AsRef<Path>, config: Config) -> Result<Engine, OpenError> {
        let (path, layout) = (path.as_ref(), Layout { modules: config.modules.clone() });
        let store = Store::open(path, layout, config.tuning.clone())?;
        let path = store.path().to_owned();
        let Config { clock, entropy, live_budget, retention, buffers, timers, scheduler, .. } =
            config;
        let config =
            WriterConfig { clock, entropy, live_budget, retention, buffers, timers, scheduler };
        start(store, config).map_err(|why| OpenError::Store { path, why })
    }

    /// Runs a reducer. When this returns, its effects are durable.
    ///
    /// # Errors
    /// A [`Refusal`]; then nothing was written.
    pub async fn call(
        &self,
        caller: &Caller,
        reducer: &str,
        args: &JsonValue,
        request_id: Option<&str>,
    ) -> Result<CommittedCall, Refusal> {
        self.inner.allow(caller, 1)?;
        let call = self.inner.registry.ready(reducer, args)?;
        let done = self.inner.submit(caller, vec![call], request_id).await?;
        let duplicate = done.duplicate;
        let call = done.calls.into_iter().next().expect("one call has one answer");
        Ok(CommittedCall {
            seq: call.seq,
            result: call.result,
            duplicate: duplicate || call.duplicate,
        })
    }

    /// Whether a call of this size would be accepted now: lets a server refuse a request before reading its
    /// body.
    ///
    /// # Errors
    /// `overloaded` if too many bytes of the caller are queued already.
    pub fn check_room(&self, caller: &Caller, bytes: usize) -> Result<(), Refusal> {
        let weight = limits::CALL_OVERHEAD_BYTES + bytes;
        if self.inner.jobs.takes(caller.quota_key(), weight) { Ok(()) } else { Err(overloaded()) }
    }

    /// Runs several reducers in one transaction, all or nothing.
    ///
    /// # Errors
    /// The [`Refusal`] of the first refused call; then nothing of the batch was written.
    pub async fn batch(
        &self,
        caller: &Caller,
        calls: &[BatchCall],
        request_id: Option<&str>,
    ) -> Result<CommittedBatch, Refusal> {
        if calls.is_empty() {
            return Err(Refusal::new(Code::BadRequest, "the batch is empty"));
        }
        if calls.len() > limits::BATCH_CALLS {
            let (count, most) = (calls.len(), limits::BATCH_CALLS);
            let detail = format!("a batch of {count} calls, at most {most} are allowed");
            return Err(Refusal::new(Code::LimitExceeded, detail).hint("send several batches"));
        }
        self.inner.allow(caller, calls.len())?;
        let ready = calls.iter().enumerate().map(|(at, call)| {
            self.inner.registry.ready(&call.reducer, &call.args).map_err(|mut refusal| {
                refusal.detail = format!("call {} of the batch: {}", at + 1, refusal.detail);
                refusal
            })
        });
        let ready = ready.collect::<Result<Vec<_>, _>>()?;
        let done = self.inner.submit(caller, ready, request_id).await?;
        let results = done.calls.into_iter().map(|call| CommittedCall {
            seq: call.seq,
            result: call.result,
            duplicate: call.duplicate,
        });
        let results: Vec<CommittedCall> = results.collect();
        let seq = results.iter().map(|done| done.seq).max().unwrap_or(Seq::ZERO);
        Ok(CommittedBatch { seq, results, duplicate: done.duplicate })
    }

    /// Runs due deadlines immediately instead of waiting for the engine's timer. When this returns,
    /// their effects are durable, up to the limit of one transaction
    /// ([`limits::DUE_PER_COMMIT`]). For manual clocks.
    ///
    /// # Errors
    /// A [`Refusal`] if the engine accepts nothing any more.
    pub async fn fire_due(&self) -> Result<(), Refusal> {
        self.inner.submit(&Caller::system(), Vec::new(), None).await.map(drop)
    }

    /// Runs one read-only statement. When this returns, the state that it read is durable.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub async fn query(
        &self,
        caller: &Caller,
        sql: &str,
        params: &Map<String, JsonValue>,
        as_of: Option<Seq>,
    ) -> Result<QueryResult, Refusal> {
        self.inner.allow(caller, 1)?;
        if let Some(principal) = self.inner.policies.principal(caller) {
            return self.query_bounded(caller, principal, (sql, params), as_of).await;
        }
        let (sql, params) = query::prepare(sql, params)?;
        let layout = self.inner.store.layout().clone();
        let bytes: usize = params.values().map(Value::size).sum();
        let weight = 1 + bytes / limits::READER_QUEUE_UNIT_BYTES;
        let read = move |reader: &mut Reader| query::run(reader, &layout, &sql, &params, as_of);
        let answer = self.inner.readers.run(caller.reader_key(), weight, read).await??;
        if !makes(SeededBug::QueryBeforeSync) {
            self.inner.wait_durable(answer.seq).await?;
        }
        self.inner.metrics.queries_total.add(1);
        Ok(answer)
    }

    /// Looks up credentials, on a dedicated reader, so that callers' queries do not delay
    /// authentication. The state that it reads need not be durable yet.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub async fn look_up(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<QueryResult, Refusal> {
        let (sql, params) = query::prepare(sql, params)?;
        let layout = self.inner.store.layout().clone();
        let read = move |reader: &mut Reader| query::run(reader, &layout, &sql, &params, None);
        let answer = self.inner.lookups.run(Caller::SYSTEM, 1, read).await??;
        self.inner.wait_durable(answer.seq).await?;
        Ok(answer)
    }

    /// Explains how a query would be maintained live, and at what cost. Omitted parameters are NULL.
    ///
    /// # Errors
    /// A [`Refusal`] if the query cannot be live. A query that lacks an index is explained,
    /// together with the refusal that it would get.
    pub async fn explain(
        &self,
        caller: &Caller,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<Explanation, Refusal> {
        self.inner.allow(caller, 1)?;
        let principal = self.inner.policies.principal(caller);
        let (planner, planning_db) =
            (Arc::clone(&self.inner.planner), Arc::clone(&self.inner.planning_db));
        let (sql, params) = (sql.to_owned(), params.clone());
        let explain = move |_: &mut Reader| {
            let binding = planner.bind_some(&sql, &params, principal.as_ref())?;
            match principal {
                Some(principal) => planning_db.explain_bounded(&binding, &principal),
                None => planning_db.explain(&binding),
            }
        };
        self.inner.read(caller.reader_key(), explain).await
    }

    /// A query of a restricted caller: planned like a live query, so that it can access only
    /// what the caller may see.
    async fn query_bounded(
        &self,
        caller: &Caller,
        mut principal: QueryPrincipal,
        (sql, params): (&str, &Map<String, JsonValue>),
        as_of: Option<Seq>,
    ) -> Result<QueryResult, Refusal> {
        query::prepare(sql, params)?;
        let params: Map<String, JsonValue> = params
            .iter()
            .map(|(name, value)| {
                (name.trim_start_matches([':', '@', '$', '?']).to_owned(), value.clone())
            })
            .collect();
        let asked: Arc<(String, Map<String, JsonValue>)> = Arc::new((sql.to_owned(), params));
        let (binding, (seq, rows)) = loop {
            let (planner, tables) =
                (Arc::clone(&self.inner.planner), Arc::clone(&self.inner.tables));
            let (asked, asker) = (Arc::clone(&asked), principal.clone());
            // Planned on the reader: a long text may take some milliseconds.
            let read = move |reader: &mut _| {
                let binding = planner.bind_once(&asked.0, &asked.1, &asker)?;
                let found = resume::once(reader, &tables, &binding, as_of)?;
                Ok((binding, found))
            };
            match self.inner.read(caller.reader_key(), read).await {
                Err(refusal) if is_outdated(&refusal) => {
                    let now = self.inner.policies.principal(caller);
                    principal =
                        now.expect("whether a sight is bounded does not depend on policies");
                }
                answer => break answer?,
            }
        };
        self.inner.wait_durable(seq).await?;
        self.inner.metrics.queries_total.add(1);
        Ok(query::answer(&binding, seq, rows))
    }

    /// Opens a connection for a caller's subscriptions.
    #[must_use]
    pub fn connect(&self, caller: &Caller) -> Connection {
        Connection::new(self.clone(), caller.clone())
    }

    /// The seq of the last commit since this call that changed any of these tables. It advances before
    /// any reply to that commit: checking it before each use keeps a cache exact.
    #[must_use]
    pub fn watch_tables(&self, tables: &'static [&'static str]) -> watch::Receiver<Seq> {
        self.inner.watchers.add(tables)
    }

    /// How to look up tokens, if a module declares it.
    #[must_use]
    pub fn credential_queries(&self) -> Option<CredentialQueries> {
        self.inner.store.layout().modules.iter().find_map(|module| module.credential_queries)
    }

    /// Records a denied request that was not a reducer call, within the limits for recorded attempts
    /// of each caller. Does not wait for it.
    pub fn note_denied(&self, caller: &Caller, what: &str, why: &str) {
        let (what, why) = (what.to_owned(), why.to_owned());
        let denial = Denial { caller: caller.clone(), what, why };
        let (job, weight) = (WriterJob::Denied(denial), limits::CALL_OVERHEAD_BYTES);
        // If the engine accepts nothing any more, no attempt succeeds either.
        let _ = self.inner.send(Some(caller.quota_key()), job, weight);
    }

    /// The current time of the engine's clock.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.inner.clock.now()
    }

    /// The last durable event.
    #[must_use]
    pub fn durable_seq(&self) -> Seq {
        *self.inner.durable.borrow()
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.inner.store.path().to_owned()
    }

    /// Whether calls are accepted.
    ///
    /// # Errors
    /// The [`Refusal`] that callers currently get.
    pub fn ready(&self) -> Result<(), Refusal> {
        self.inner.health.check()
    }

    /// The bytes buffered for clients. A server counts its own buffers there.
    #[must_use]
    pub fn buffers(&self) -> &Buffers {
        &self.inner.buffers
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The cost of each live query template within commits, most expensive first.
    ///
    /// # Errors
    /// The engine is closing or poisoned.
    pub async fn live_templates(&self) -> Result<Vec<TemplateWork>, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.inner.send(None, WriterJob::Templates(reply), 0)?;
        answer.await.map_err(|_| self.inner.health.dropped())
    }

    /// Bytes of calls queued for the writer.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.inner.jobs.weight()
    }

    /// Queue lengths of the threads. For a scheduler ([`StepScheduler`]).
    #[must_use]
    pub fn waiting(&self) -> Backlog {
        Backlog {
            jobs: self.inner.jobs.len(),
            commits: self.inner.commits.len(),
            publications: self.inner.to_publish.len(),
            reads: self.inner.readers.queue().len(),
        }
    }

    /// Tables and reducers, as in `/v1/schema`.
    #[must_use]
    pub fn describe(&self) -> JsonValue {
        self.describe_for(&Caller::local())
    }

    /// The same, restricted to the tables and columns that a caller may see.
    #[must_use]
    pub fn describe_for(&self, caller: &Caller) -> JsonValue {
        let tables = self.inner.policies.describe(caller);
        let reducers: Vec<JsonValue> = (self.inner.registry.definitions())
            .map(|definition| {
                json!({
                    "name": definition.name,
                    "description": definition.doc,
                    "arguments": (definition.arguments)(),
                    "result": (definition.result)(),
                })
            })
            .collect();
        json!({"tables": tables, "reducers": reducers})
    }

    /// Closes the engine: queued calls are run, made durable and answered, then the WAL is checkpointed.
    /// Returns when all of that is done. Blocks: call it from a thread, not from a task.
    pub fn close(&self) {
        self.inner.stop();
        self.inner.checkpoints.finish();
    }
}

/// The recovered state of a file, and all connections, opened before any thread starts: a waiting thread
/// would outlive a failed open.
struct Recovered {
    writer: Writer,
    checkpointer: Checkpointer,
    readers: Vec<Reader>,
    /// For credential lookups.
    lookups: Reader,
    /// The writer's own.
    reader: Reader,
    wal: WalSync,
    head: LogHead,
    chain: Chain,
    change_log_floor: Seq,
    policies: Arc<Policies>,
    /// The last events before the versions of the modules.
    former: Vec<LastBefore>,
}

/// Reads the end of the log. SQLite has already recovered the WAL of the previous process.
fn recover(store: &Store, set_up: &[String]) -> Result<Recovered, StoreError> {
    let writer = store.writer()?;
    let head = writer.head()?;
    let chain = match head.hash {
        Some(hash) => Chain { seq: head.seq, hash },
        None => Chain::start(store.log_id()),
    };
    for statement in set_up {
        writer.run(statement, &[], &mut |_| {})?;
    }
    let wal = store.wal_sync().map_err(|why| io_error(&why))?;
    // The previous process may not have synced its WAL, or its sync may have failed; make it durable before
    // it counts.
    wal.recover().map_err(|why| io_error(&why))?;
    let change_log_floor = store.reader()?.snapshot()?.change_log_floor()?;
    let checkpointer = store.checkpointer()?;
    let readers = (0..limits::READERS).map(|_| open_reader(store, set_up));
    let readers = readers.collect::<Result<Vec<_>, _>>()?;
    let (lookups, reader) = (open_reader(store, set_up)?, open_reader(store, set_up)?);
    let policies = Policies::load(store.layout(), &writer)?;
    let former = writer.last_before(&store.layout().modules)?;
    Ok(Recovered {
        writer,
        checkpointer,
        readers,
        lookups,
        reader,
        wal,
        head,
        chain,
        change_log_floor,
        policies,
        former,
    })
}

/// Parameters of the writer; see [`Config`].
struct WriterConfig {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    live_budget: Budget,
    retention: Retention,
    buffers: BufferLimits,
    timers: bool,
    scheduler: Arc<dyn StepScheduler>,
}

fn start(store: Store, config: WriterConfig) -> Result<Engine, StoreError> {
    let catalog = Arc::new(Catalog::new(store.layout().live_tables(), store.layout().views()));
    let (store, set_up) = (Arc::new(store), catalog.setup_sql());
    let found = recover(&store, &set_up)?;
    let planning_db = Arc::new(PlanningDb::new(store.layout().clone(), set_up.clone()));
    let (durable, durable_seen) = watch::channel(found.head.seq);
    let hub = Arc::new(Hub::starting_at(found.head.seq));
    let (health, metrics) = (Arc::new(Health::new(Arc::clone(&hub))), Arc::new(Metrics::default()));
    metrics.change_log_oldest_seq.set(found.change_log_floor.0.unsigned_abs());
    let (jobs, gate) = (Arc::new(Queue::new(limits::WRITER_QUEUE_BYTES)), Arc::default());
    let (commits, to_publish) = (unsynced(), unsynced());
    let shared = Threads {
        health: Arc::clone(&health),
        jobs: Arc::clone(&jobs),
        commits: Arc::clone(&commits),
        to_publish: Arc::clone(&to_publish),
        scheduler: Arc::clone(&config.scheduler),
    };
    let again = Arc::clone(&store);
    let open: Arc<OpenReader> = Arc::new(move || open_reader(&again, &set_up));
    let (readers, mut threads) = Readers::start("reader", found.readers, &open, &shared);
    let undirected = Threads { scheduler: Arc::new(FreeRunning), ..shared.clone() };
    let (lookups, thread) = Readers::start("credentials", vec![found.lookups], &open, &undirected);
    threads.extend(thread);
    let live_tables: Arc<[&'static TableSpec]> = store.layout().live_tables().into();
    let modules = &store.layout().modules;
    let registry = Arc::new(Registry::new(modules));
    let watchers = Arc::new(TableWatchers::new(modules));
    let ports = (Arc::clone(&config.clock), Arc::clone(&config.entropy));
    let (rules, credentials) = (ScopeRules::new(modules), CredentialChecker::new(modules));
    let (writer, chain, at) = (found.writer, found.chain, found.head.at);
    let executor = Executor::new(writer, chain, at, ports, rules, credentials, found.former);
    let writer = WriterThread {
        timers: Timers::new(if config.timers { modules } else { &[] }),
        registry: Arc::clone(&registry),
        executor: executor.with_policy_validator(policy_validator(&store, &catalog, &planning_db)),
        policies: TransactionPolicies::new(&found.policies),
        router: Router::with_budget(Arc::clone(&catalog), config.live_budget),
        jobs: Arc::clone(&jobs),
        commits: Arc::clone(&commits),
        hub: Arc::clone(&hub),
        health: Arc::clone(&health),
        metrics: Arc::clone(&metrics),
        denials: Denials::new(modules),
        watchers: Arc::clone(&watchers),
        gate,
        tables: store.layout().tables().collect(),
        change_log: ChangeLog::new(config.retention, found.change_log_floor),
        attached: 0,
        reader: found.reader,
        fillers: Arc::clone(readers.queue()),
        live_tables: Arc::clone(&live_tables),
        scheduler: Arc::clone(&config.scheduler),
    };
    let checkpoints = CheckpointConfig::beside(&writer, &durable_seen, store.checkpoint_bytes());
    let checkpoints = CheckpointThread::start(found.checkpointer, checkpoints, &shared);
    let syncer = syncer_behind(&writer, found.wal, durable, &to_publish);
    threads.extend(spawn_all(&shared, writer, syncer));
    let inner = Inner {
        jobs,
        commits,
        to_publish,
        readers,
        lookups,
        registry,
        planner: Arc::new(Planner::new(catalog)),
        policies: found.policies,
        tables: live_tables,
        reruns: SharedReruns::default(),
        hub,
        durable: durable_seen,
        health,
        metrics,
        checkpoints,
        threads: Mutex::new(threads),
        planning_db,
        watchers,
        rate_limiter: RateLimiter::default(),
        buffers: Buffers::new(config.buffers),
        results: Arc::default(),
        clock: config.clock,
        store,
    };
    Ok(Engine { inner: Arc::new(inner) })
}

/// The sync thread for that writer's commits.
fn syncer_behind(
    writer: &WriterThread,
    wal: WalSync,
    durable: watch::Sender<Seq>,
    to_publish: &Arc<Queue<Publication>>,
) -> Syncer {
    Syncer {
        commits: Arc::clone(&writer.commits),
        to_publish: Arc::clone(to_publish),
        sync: Box::new(move || wal.sync()),
        durable,
        hub: Arc::clone(&writer.hub),
        health: Arc::clone(&writer.health),
        metrics: Arc::clone(&writer.metrics),
        scheduler: Arc::clone(&writer.scheduler),
    }
}

/// A queue of commits that are not yet durable or not yet published.
fn unsynced<T>() -> Arc<Queue<T>> {
    Arc::new(Queue::new(limits::UNSYNCED_COMMITS))
}

/// The validator of policies.
fn policy_validator(
    store: &Store,
    catalog: &Arc<Catalog>,
    planning_db: &Arc<PlanningDb>,
) -> PolicyValidator {
    let planner = Planner::new(Arc::clone(catalog));
    let layout = store.layout();
    let reducers = Registry::new(&layout.modules).names();
    PolicyValidator::new(layout.live_tables(), reducers, planner, Arc::clone(planning_db))
}

/// Starts the threads of the commit pipeline.
fn spawn_all(threads: &Threads, writer: WriterThread, syncer: Syncer) -> [JoinHandle<()>; 3] {
    let (listeners, counted) = (Arc::clone(&syncer.hub), Arc::clone(&syncer.metrics));
    let (to_publish, scheduler) = (Arc::clone(&syncer.to_publish), Arc::clone(&syncer.scheduler));
    [
        threads.spawn(EngineThread::Writer, move || writer.run()),
        threads.spawn(EngineThread::Sync, move || syncer.run()),
        threads.spawn(EngineThread::Publish, move || {
            publish(&to_publish, &listeners, &counted, &*scheduler)
        }),
    ]
}

fn io_error(why: &std::io::Error) -> StoreError {
    StoreError::Limit(format!("the WAL cannot be synced: {why}"))
}

impl Inner {
    /// Submits a unit to the writer and waits until it is durable.
    async fn submit(
        &self,
        caller: &Caller,
        calls: Vec<PreparedCall>,
        request_id: Option<&str>,
    ) -> Result<UnitResult, Refusal> {
        let request = request_id.map(|id| Request::new(id, &calls)).transpose()?;
        let weigh = |call: &PreparedCall| limits::CALL_OVERHEAD_BYTES + call.arguments.len();
        let weight = calls.iter().map(weigh).sum();
        let (reply, answer) = oneshot::channel();
        if caller.id() == Caller::SYSTEM && !calls.is_empty() {
            let detail = format!("{} is reserved for the engine", Caller::SYSTEM);
            return Err(Refusal::new(Code::Denied, detail));
        }
        let unit = Unit::new(caller.clone(), calls, request, reply);
        self.send(Some(caller.quota_key()), WriterJob::Unit(unit), weight)?;
        let done = answer.await.map_err(|_| self.health.dropped())??;
        // A recorded refusal is returned as a refusal.
        let refused = done.calls.iter().find_map(|call| call.refusal.clone());
        refused.map_or(Ok(done), Err)
    }

    /// Charges calls to the caller's limits.
    pub(crate) fn allow(&self, caller: &Caller, calls: usize) -> Result<(), Refusal> {
        self.rate_limiter.take(caller, calls, self.clock.now()).inspect_err(|_| {
            self.metrics.rate_limited_total.add(1);
        })
    }

    /// Where a caller's connections find and count whole results.
    pub(crate) fn shared_results(&self, caller: &Caller) -> SharedResults {
        let (cache, account) = (Arc::clone(&self.results), self.buffers.account(caller));
        SharedResults { cache, account }
    }

    /// Queues a job for the writer, for a caller or for the engine itself.
    pub(crate) fn send(
        &self,
        by: Option<&str>,
        job: WriterJob,
        weight: usize,
    ) -> Result<(), Refusal> {
        self.health.check()?;
        self.jobs.push(by, job, weight).map_err(|rejected| match rejected {
            Rejected::Full(_) => overloaded(),
            Rejected::Closed(_) => self.health.refusal().unwrap_or_else(closing),
        })
    }

    /// Runs something on a reader, for a caller of that id.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        by: &str,
        work: impl FnOnce(&mut Reader) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.readers.run(by, 1, work).await?
    }

    /// Plans a live query for a caller.
    pub(crate) async fn plan(
        &self,
        caller: &Caller,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<Binding, Refusal> {
        let principal = self.policies.principal(caller);
        let told = |refusal: Refusal, binding: &Binding, principal: Option<&QueryPrincipal>| {
            match principal {
                Some(principal) => explain::bounded(refusal, binding, principal),
                None => refusal,
            }
        };
        if let Some(known) = self.planner.bind_known(sql, params, principal.as_ref()) {
            let binding = known?;
            if let Some(verdict) = binding.verdict() {
                let verdict = verdict.clone();
                return match verdict {
                    Ok(()) => Ok(binding),
                    Err(refusal) => Err(told(refusal, &binding, principal.as_ref())),
                };
            }
        }
        let (planner, planning_db) = (Arc::clone(&self.planner), Arc::clone(&self.planning_db));
        let (sql, params) = (sql.to_owned(), params.clone());
        // Parsing a long text may take some milliseconds, and SQLite's planning more.
        let plan = move |_: &mut Reader| {
            let binding = match &principal {
                Some(principal) => planner.bind_within(&sql, &params, principal)?,
                None => planner.bind(&sql, &params)?,
            };
            match planning_db.check_plan(&binding) {
                Ok(()) => Ok(binding),
                Err(refusal) => Err(told(refusal, &binding, principal.as_ref())),
            }
        };
        self.read(caller.reader_key(), plan).await
    }

    /// Returns when a state is durable.
    pub(crate) async fn wait_durable(&self, seq: Seq) -> Result<(), Refusal> {
        durable::reached(&self.durable, seq, &self.health).await
    }

    fn stop(&self) {
        self.hub.end(&closing());
        self.jobs.close();
        self.readers.close();
        self.lookups.close();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine did not end cleanly");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

fn overloaded() -> Refusal {
    Refusal::new(Code::Overloaded, "too many calls wait for the writer")
        .hint("nothing was written; try again in a moment")
}

/// A parameter's value from its JSON form.
pub(crate) fn parameter(name: &str, value: &JsonValue) -> Result<Value, Refusal> {
    Value::from_json(value).map_err(|why| {
        Refusal::new(Code::BadArguments, format!("parameter {name} is {why}"))
            .hint("a parameter is null, a number, a text or {\"$blob\": \"<base64>\"}")
    })
}
