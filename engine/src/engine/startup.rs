//! Opens a file: recovers its state, and starts the threads. `inner` is what they share with the handles.

use std::cell::Cell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use abide_live::{Budget, Catalog, Planner, Router, WorkFunctions};
use abide_log::Chain;
use abide_schema::{Seq, limits};
use abide_store::{Checkpointer, LogHead, Reader, Store, StoreError, VersionStart, Writer};
use tokio::sync::watch;

use super::inner::Inner;
use crate::access::credentials::CredentialChecker;
use crate::access::denials::Denials;
use crate::access::policies::{Policies, TransactionPolicies};
use crate::access::policy_validator::PolicyValidator;
use crate::access::rate_limiter::RateLimiter;
use crate::access::scope_rules::ScopeRules;
use crate::access::tenants::Tenants;
use crate::commit::checkpointer::{CheckpointConfig, CheckpointThread};
use crate::commit::durable::{Syncer, sync_segments};
use crate::commit::execute::{Executor, LogPosition};
use crate::commit::live_queries::{LiveQueries, SubscriptionQuota};
use crate::commit::open_rows::{OpenRows, VisibleRows};
use crate::commit::queue::Queue;
use crate::commit::registry::Registry;
use crate::commit::retention::{ChangeLog, Retention};
use crate::commit::table_watchers::TableWatchers;
use crate::commit::timers::{LeaseClock, Timers};
use crate::commit::transaction::GroupTransaction;
use crate::commit::unit::PendingAnswers;
use crate::commit::writer::WriterThread;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::{EngineThread, EventSources, FreeRunning, StepScheduler};
use crate::queries::explain::PlanningDb;
use crate::queries::reader_drain::ReaderDrain;
use crate::queries::readers::{OpenReader, Readers, open_reader};
use crate::queries::service::QueryService;
use crate::queries::tables::LiveTables;
use crate::subscriptions::buffers::{BufferLimits, Buffers};
use crate::subscriptions::hub::Hub;
use crate::subscriptions::publisher::{Publication, publish};
use crate::subscriptions::rerun::SharedReruns;
use crate::threads::{NewThread, Threads};

/// The recovered state of a file, and the first connections, opened before any thread starts: a waiting thread
/// would outlive a failed open.
struct Recovered {
    writer: Writer,
    checkpointer: Checkpointer,
    /// The first of the pool. Opening it shows that the others can be opened.
    first_reader: Reader,
    /// The writer's own.
    reader: Reader,
    head: LogHead,
    chain: Chain,
    change_log_floor: Seq,
    policies: Arc<Policies>,
    /// After which events the file reached the versions of the modules.
    version_starts: Vec<VersionStart>,
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
    // The previous process may not have synced its WAL, or its sync may have failed; make it durable before
    // it counts.
    store.sync_wal().map_err(|why| io_error(&why))?;
    let change_log_floor = store.reader()?.snapshot()?.change_log_floor()?;
    let checkpointer = store.checkpointer()?;
    let first_reader = open_reader(store, set_up)?;
    let reader = open_reader(store, set_up)?;
    let policies = Policies::load(store.layout(), &writer)?;
    let version_starts = writer.version_starts(&store.layout().modules)?;
    Ok(Recovered {
        writer,
        checkpointer,
        first_reader,
        reader,
        head,
        chain,
        change_log_floor,
        policies,
        version_starts,
    })
}

/// Parameters of the threads; see [`Config`](crate::Config).
pub(super) struct ThreadConfig {
    pub(super) sources: EventSources,
    pub(super) live_budget: Budget,
    pub(super) retention: Retention,
    pub(super) buffers: BufferLimits,
    pub(super) timers: bool,
    pub(super) lease_grace: Duration,
    pub(super) due_of_a_tenant: usize,
    pub(super) scheduler: Arc<dyn StepScheduler>,
}

/// Starts the threads.
///
/// # Errors
/// The file cannot be read, or the system has no room for the threads. Then none of them is left.
pub(super) fn start(store: Store, config: ThreadConfig) -> Result<Arc<Inner>, StoreError> {
    let work_functions = WorkFunctions {
        read: abide_store::READ_FUNCTION,
        visible_read: abide_store::VISIBLE_READ_FUNCTION,
        visible: abide_store::VISIBLE_FUNCTION,
    };
    let catalog = Arc::new(
        Catalog::new(store.layout().live_tables(), store.layout().views())
            .counting_work(work_functions),
    );
    let set_up = catalog.setup_sql();
    let found = recover(&store, &set_up)?;
    let (durable, durable_seen) = watch::channel(found.head.seq);
    let shared =
        Shared::new(store, catalog, set_up, found.head.seq, &config.scheduler, config.buffers);
    let Shared { store, hub, metrics, threads, visible, .. } = &shared;
    metrics.change_log_oldest_seq.set(found.change_log_floor.0.unsigned_abs());
    let pools = ReaderPools::new(&shared, found.first_reader);
    let mut new_threads = pools.threads;
    let queries =
        query_service(&shared, pools.readers, pools.lookups, &found.policies, &durable_seen);
    let log = LogPosition { chain: found.chain, last_at: found.head.at };
    let modules = &store.layout().modules;
    let tables = store.layout().tables().collect();
    let clock = Arc::clone(&config.sources.clock);
    let lease_clock = LeaseClock::starting(clock.now(), found.head.at, config.lease_grace);
    let started = Instant::now();
    let rate_limiter = Arc::<RateLimiter>::default();
    let writer = WriterThread {
        executor: executor(&shared, found.writer, found.version_starts, log, config.sources),
        timers: Timers::new(
            if config.timers { modules } else { &[] },
            threads.tenants.clone(),
            config.due_of_a_tenant,
            lease_clock,
        ),
        continued: PendingAnswers::default(),
        rate_limiter: Arc::clone(&rate_limiter),
        policies: TransactionPolicies::new(&found.policies),
        registry: Arc::new(Registry::new(modules)),
        live: live_queries(&shared, &queries, found.reader, config.live_budget),
        jobs: Arc::clone(&threads.jobs),
        commits: Arc::clone(&threads.commits),
        health: Arc::clone(&threads.health),
        metrics: Arc::clone(metrics),
        denials: Denials::new(modules),
        watchers: Arc::new(TableWatchers::new(modules)),
        journal: store.journal(found.head.seq),
        durable: durable_seen.clone(),
        open_rows: OpenRows::new(started),
        visible: Arc::clone(visible),
        change_log: ChangeLog::new(config.retention, tables, found.change_log_floor),
        readers: Arc::clone(queries.readers.queue()),
        tenants: threads.tenants.clone(),
        scheduler: Arc::clone(&config.scheduler),
        is_directed: false,
        pause: Arc::default(),
        started,
        groups_on_savepoint: 0,
        disk_full_logged: Cell::default(),
    };
    let registry = Arc::clone(&writer.registry);
    let watchers = Arc::clone(&writer.watchers);
    let config = checkpoint_config(&writer, &durable_seen, store, &threads.drain);
    let checkpoints = CheckpointThread::start(found.checkpointer, config, threads)?;
    let syncer = sync_thread(&writer, durable, &threads.to_publish, store);
    new_threads.extend(pipeline_threads(threads, writer, syncer));
    let inner = Inner {
        jobs: Arc::clone(&threads.jobs),
        commits: Arc::clone(&threads.commits),
        to_publish: Arc::clone(&threads.to_publish),
        queries,
        registry,
        reruns: SharedReruns::default(),
        hub: Arc::clone(hub),
        health: Arc::clone(&threads.health),
        metrics: Arc::clone(metrics),
        checkpoints,
        threads: Mutex::default(),
        watchers,
        rate_limiter,
        buffers: threads.buffers.clone(),
        live_parameters: live_parameters(&threads.tenants),
        refused_reducers: OnceLock::new(),
        results: Arc::default(),
        clock,
        visible: Arc::clone(visible),
        store: Arc::clone(store),
    };
    start_all(new_threads, &inner)?;
    Ok(Arc::new(inner))
}

/// Starts threads. If one cannot be started, `inner` stops the others when it is dropped: their connections would keep
/// the file locked.
fn start_all(new_threads: Vec<NewThread>, inner: &Inner) -> Result<(), StoreError> {
    for thread in new_threads {
        let started = thread.start().inspect_err(|_| {
            // By the writer, which is the last of the threads, and so does not run.
            inner.commits.close();
            inner.to_publish.close();
        })?;
        inner.threads.lock().unwrap_or_else(PoisonError::into_inner).push(started);
    }
    Ok(())
}

/// Counts the parameters of live queries.
fn live_parameters(tenants: &Tenants) -> Buffers {
    let limits = BufferLimits {
        total: limits::ALL_LIVE_PARAMETER_BYTES,
        per_caller: limits::LIVE_PARAMETER_BYTES_PER_CALLER,
    };
    Buffers::new(limits, tenants.clone())
}

/// State shared by several parts of an engine.
struct Shared {
    store: Arc<Store>,
    catalog: Arc<Catalog>,
    /// Statements that prepare a connection for live queries.
    set_up: Vec<String>,
    planning_db: Arc<PlanningDb>,
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    visible: Arc<VisibleRows>,
    threads: Threads,
}

impl Shared {
    fn new(
        store: Store,
        catalog: Arc<Catalog>,
        set_up: Vec<String>,
        head: Seq,
        scheduler: &Arc<dyn StepScheduler>,
        buffers: BufferLimits,
    ) -> Shared {
        let hub = Arc::new(Hub::starting_at(head));
        let tenants = Tenants::default();
        let threads = Threads {
            health: Arc::new(Health::new(Arc::clone(&hub))),
            jobs: Arc::new(Queue::new(limits::WRITER_QUEUE_BYTES)),
            commits: unsynced(),
            to_publish: unsynced(),
            scheduler: Arc::clone(scheduler),
            buffers: Buffers::new(buffers, tenants.clone()),
            tenants,
            drain: Arc::default(),
        };
        Shared {
            planning_db: Arc::new(PlanningDb::new(store.layout().clone(), set_up.clone())),
            store: Arc::new(store),
            catalog,
            set_up,
            hub,
            metrics: Arc::default(),
            visible: Arc::new(VisibleRows::starting_at(head)),
            threads,
        }
    }
}

/// The readers.
struct ReaderPools {
    readers: Readers,
    /// For credential lookups.
    lookups: Readers,
    threads: Vec<NewThread>,
}

impl ReaderPools {
    fn new(shared: &Shared, first: Reader) -> ReaderPools {
        let store = Arc::clone(&shared.store);
        let set_up = shared.set_up.clone();
        let open: Arc<OpenReader> = Arc::new(move || open_reader(&store, &set_up));
        let visible = &shared.visible;
        let later = (1..limits::READERS).map(|_| None);
        let readers = [Some(first)].into_iter().chain(later).collect();
        let (readers, mut threads) =
            Readers::new("reader", readers, &open, visible, &shared.threads);
        // Not drained: no query of a caller delays a lookup. A lookup is short, so a later checkpoint finds no snapshot
        // of one.
        let undirected = Threads {
            scheduler: Arc::new(FreeRunning),
            drain: Arc::default(),
            ..shared.threads.clone()
        };
        let (lookups, thread) =
            Readers::new("credentials", vec![None], &open, visible, &undirected);
        threads.extend(thread);
        ReaderPools { readers, lookups, threads }
    }
}

fn query_service(
    shared: &Shared,
    readers: Readers,
    lookups: Readers,
    policies: &Arc<Policies>,
    durable: &watch::Receiver<Seq>,
) -> Arc<QueryService> {
    let layout = shared.store.layout();
    Arc::new(QueryService {
        readers,
        lookups,
        planner: Arc::new(Planner::new(Arc::clone(&shared.catalog))),
        planning_db: Arc::clone(&shared.planning_db),
        policies: Arc::clone(policies),
        tables: Arc::new(LiveTables::new(layout)),
        layout: layout.clone(),
        durable: durable.clone(),
        health: Arc::clone(&shared.threads.health),
        metrics: Arc::clone(&shared.metrics),
        tenants: shared.threads.tenants.clone(),
    })
}

/// Returns the writer's side of live queries.
fn live_queries(
    shared: &Shared,
    queries: &QueryService,
    reader: Reader,
    budget: Budget,
) -> LiveQueries {
    LiveQueries {
        router: Router::with_budget(Arc::clone(&shared.catalog), budget),
        hub: Arc::clone(&shared.hub),
        jobs: Arc::clone(&shared.threads.jobs),
        readers: Arc::clone(queries.readers.queue()),
        reader,
        tables: Arc::clone(&queries.tables),
        fill_time: budget.fill_time,
        attached: 0,
        quota: SubscriptionQuota::new(),
        reads_log: false,
        tenants: shared.threads.tenants.clone(),
        metrics: Arc::clone(&shared.metrics),
        scheduler: Arc::clone(&shared.threads.scheduler),
    }
}

/// Returns the executor of the writer's calls.
fn executor(
    shared: &Shared,
    writer: Writer,
    version_starts: Vec<VersionStart>,
    log: LogPosition,
    sources: EventSources,
) -> Executor {
    let modules = &shared.store.layout().modules;
    let rules = ScopeRules::new(modules);
    let credentials = CredentialChecker::new(modules);
    let mut transaction =
        GroupTransaction::new(writer, rules.row_policies(), credentials, version_starts);
    transaction.set_policy_validator(policy_validator(shared));
    transaction.set_tenants(shared.threads.tenants.clone());
    Executor::new(transaction, log, sources, rules)
}

/// Returns the sync thread for that writer's commits.
fn sync_thread(
    writer: &WriterThread,
    durable: watch::Sender<Seq>,
    to_publish: &Arc<Queue<Publication>>,
    store: &Arc<Store>,
) -> Syncer {
    let store = Arc::clone(store);
    Syncer {
        commits: Arc::clone(&writer.commits),
        to_publish: Arc::clone(to_publish),
        sync: Box::new(sync_segments),
        displaced: Box::new(move || (!store.is_in_place()).then(|| store.path().to_owned())),
        durable,
        hub: Arc::clone(&writer.live.hub),
        health: Arc::clone(&writer.health),
        metrics: Arc::clone(&writer.metrics),
        scheduler: Arc::clone(&writer.scheduler),
    }
}

/// Returns the configuration of the checkpointer next to this writer.
fn checkpoint_config(
    writer: &WriterThread,
    durable: &watch::Receiver<Seq>,
    store: &Arc<Store>,
    drain: &Arc<ReaderDrain>,
) -> CheckpointConfig {
    CheckpointConfig {
        durable: durable.clone(),
        metrics: Arc::clone(&writer.metrics),
        health: Arc::clone(&writer.health),
        jobs: Arc::clone(&writer.jobs),
        store: Arc::clone(store),
        scheduler: Arc::clone(&writer.scheduler),
        writer_pause: Arc::clone(&writer.pause),
        drain: Arc::clone(drain),
    }
}

/// Returns a queue of commits that are not yet durable or not yet published.
fn unsynced<T>() -> Arc<Queue<T>> {
    Arc::new(Queue::new(limits::UNSYNCED_COMMITS))
}

/// Returns the validator of policies.
fn policy_validator(shared: &Shared) -> PolicyValidator {
    let layout = shared.store.layout();
    let planner = Planner::new(Arc::clone(&shared.catalog));
    let reducers = Registry::new(&layout.modules).names();
    let planning_db = Arc::clone(&shared.planning_db);
    PolicyValidator::new(layout.live_tables(), reducers, planner, planning_db)
}

/// Returns the threads of the commit pipeline. The writer is the last one: it may write as soon as it runs, and waits for
/// the sync thread.
fn pipeline_threads(threads: &Threads, writer: WriterThread, syncer: Syncer) -> [NewThread; 3] {
    let hub = Arc::clone(&syncer.hub);
    let metrics = Arc::clone(&syncer.metrics);
    let to_publish = Arc::clone(&syncer.to_publish);
    let scheduler = Arc::clone(&syncer.scheduler);
    [
        threads.thread(EngineThread::Publish, move || {
            publish(&to_publish, &hub, &metrics, &*scheduler)
        }),
        threads.thread(EngineThread::Sync, move || syncer.run()),
        threads.thread(EngineThread::Writer, move || writer.run()),
    ]
}

fn io_error(why: &std::io::Error) -> StoreError {
    StoreError::Io(format!("the WAL cannot be synced: {why}"))
}
