//! The engine in this process, and its options.
//!
//! There are no sockets, and no JSON except what the engine itself uses. A call is a request of `request.rs`, which gives
//! it a request id; here it becomes a call of `Engine::call` by a caller without restrictions and without a credential;
//! the result comes back as JSON text and is decoded into the type of the request.
//!
//! A subscription is a connection of its own, so a slow consumer delays no other: the engine drops its
//! pending updates and catches it up when it reads again.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use abide_engine::{Change, CommittedBatch, Connection, Delta, Engine, SubscribeRequest, Update};
use abide_schema::reducer::Caller;
use abide_schema::{Code, Module, Refusal, Row, Scope, Seq};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::Error;
use crate::backend::{
    AppliedCall, Attempt, BackendReply, BackendRequest, Backoff, Event, RawResult, Source, Start,
    SubscriptionQuery,
};
use crate::live_result::{Changes, PositionedRow, TopNDelta};

pub use abide_engine::buffers::BufferLimits;
pub use abide_engine::{Clock, Retention, SystemClock};

/// The subscription's id on its own connection.
const ID: &str = "q";

/// Configuration of a file that this process opens.
#[derive(Clone, Debug)]
pub struct Config {
    /// Custom modules, in addition to the built-in ones.
    pub modules: Vec<Module>,
    /// How long the change log is kept: the limit for resumes and queries on the past.
    pub retention: Retention,
    /// Limits of memory buffered for subscriptions.
    pub buffers: BufferLimits,
    /// Whether deadlines run: timers fire, leases expire. Off for tools that only inspect a file.
    pub timers: bool,
    /// The source of time. Tests of your own agents can set one that they move.
    pub clock: Arc<dyn Clock>,
}

impl Default for Config {
    fn default() -> Config {
        let retention = Retention::default();
        let buffers = BufferLimits::default();
        let clock = Arc::new(SystemClock);
        Config { modules: Vec::new(), retention, buffers, timers: true, clock }
    }
}

impl From<Config> for abide_engine::Config {
    fn from(config: Config) -> abide_engine::Config {
        let Config { modules: custom, retention, buffers, timers, clock } = config;
        let mut modules = abide_reducers::modules();
        modules.extend(custom);
        let config = abide_engine::Config::new(modules);
        abide_engine::Config { retention, buffers, timers, clock, ..config }
    }
}

#[derive(Debug)]
pub(crate) struct Embedded {
    engine: Engine,
    caller: Caller,
    state: watch::Sender<EngineState>,
    /// Whether it accepts calls.
    accepts_calls: watch::Sender<bool>,
}

/// State of the engine with regard to closing through this handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EngineState {
    Open,
    Closing,
    /// All replies and events were delivered.
    Closed,
}

impl Embedded {
    pub(crate) fn open(path: &Path, config: Config) -> Result<Embedded, Error> {
        let opened = Engine::open(path, config.into());
        let engine = opened.map_err(|why| why.to_refusal())?;
        Ok(Embedded::new(engine))
    }

    pub(crate) fn new(engine: Engine) -> Embedded {
        let state = watch::Sender::new(EngineState::Open);
        let accepts_calls = watch::Sender::new(true);
        Embedded { engine, caller: Caller::new("embedded"), state, accepts_calls }
    }

    /// The same engine for a caller within a scope. Closing either closes both.
    pub(crate) fn acting_for(&self, scope: &Scope) -> Result<Embedded, Refusal> {
        let caller = self.caller.acting_for(scope)?;
        let engine = self.engine.clone();
        let state = self.state.clone();
        let accepts_calls = self.accepts_calls.clone();
        Ok(Embedded { engine, caller, state, accepts_calls })
    }

    pub(crate) fn accepts_calls(&self) -> watch::Receiver<bool> {
        self.accepts_calls.subscribe()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.caller.namespace()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) async fn until_durable(&self, seq: Seq) -> Result<(), Error> {
        self.engine.until_durable(seq).await.map_err(|refusal| self.to_error(refusal))
    }

    pub(crate) async fn ask(&self, ask: &BackendRequest) -> Attempt {
        let outcome = self.execute(ask).await;
        Attempt { outcome: outcome.map_err(|refusal| self.to_error(refusal)), uncertain: false }
    }

    async fn execute(&self, ask: &BackendRequest) -> Result<BackendReply, Refusal> {
        let Embedded { engine, caller, .. } = self;
        Ok(match ask {
            BackendRequest::Call { reducer, args, request_id } => {
                let done = engine.call(caller, reducer, args, Some(request_id)).await?;
                let result = RawResult(done.result);
                BackendReply::Called { seq: done.seq, duplicate: done.duplicate, result }
            }
            BackendRequest::Batch { calls, request_id } => {
                batch_reply(engine.batch(caller, calls, Some(request_id)).await?)
            }
            BackendRequest::Apply { calls, request_id, generated } => {
                // A request id lets a client fetch the reply of an earlier attempt. A reply cannot be lost in one process, so a
                // generated request id is not stored.
                let request_id = (!generated).then_some(request_id.as_str());
                batch_reply(engine.apply(caller, calls, request_id).await?)
            }
            BackendRequest::Sql { sql, params, as_of } => {
                let answer = engine.query(caller, sql, params, *as_of).await?;
                BackendReply::Rows { seq: answer.seq, columns: answer.columns, rows: answer.rows }
            }
            BackendRequest::Explain { sql, params } => {
                BackendReply::Explained(Box::new(engine.explain(caller, sql, params).await?))
            }
        })
    }

    pub(crate) async fn subscribe(
        &self,
        query: SubscriptionQuery,
        start: Start,
    ) -> Result<Box<dyn Source>, Error> {
        let engine = self.engine.clone();
        let caller = self.caller.clone();
        let begin = SubscriptionStart { engine, caller, query, state: self.state.subscribe() };
        let connection = begin.connect(start).await.map_err(|refusal| self.to_error(refusal))?;
        let mut state = self.state.subscribe();
        let closed = async move {
            // An error means that the handle was dropped; the engine lives on in this subscription.
            if state.wait_for(|state| *state == EngineState::Closed).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        Ok(Box::new(ConnectionPump {
            next: Mutex::new(wait_for_update(connection)),
            closed: Box::pin(closed),
            parts: Vec::new(),
            start,
            stale: false,
            begin,
        }))
    }

    pub(crate) async fn close(&self) {
        let first = self.state.send_if_modified(|state| {
            let first = *state == EngineState::Open;
            *state = EngineState::Closing.max(*state);
            first
        });
        if first {
            self.accepts_calls.send_replace(false);
            let engine = self.engine.clone();
            if tokio::task::spawn_blocking(move || engine.close()).await.is_err() {
                tracing::error!(name: "close_failed", "the engine did not close cleanly");
            }
            self.state.send_replace(EngineState::Closed);
        } else {
            // `self` holds the sender, so it cannot be dropped.
            let _ = self.state.subscribe().wait_for(|state| *state == EngineState::Closed).await;
        }
    }

    fn to_error(&self, refusal: Refusal) -> Error {
        closed_or_refused(*self.state.borrow(), refusal)
    }
}

/// Maps a refusal after [`Abide::close`](crate::Abide::close) to [`Error::Closed`].
fn closed_or_refused(state: EngineState, refusal: Refusal) -> Error {
    match refusal.code {
        Code::Unavailable if state > EngineState::Open => Error::Closed,
        _ => Error::Refused(refusal),
    }
}

fn batch_reply(done: CommittedBatch) -> BackendReply {
    let results = done
        .results
        .into_iter()
        .map(|call| AppliedCall { seq: call.seq, result: RawResult(call.result) })
        .collect();
    BackendReply::Batch { seq: done.seq, duplicate: done.duplicate, results }
}

/// How a subscription begins.
#[derive(Clone, Debug)]
struct SubscriptionStart {
    engine: Engine,
    caller: Caller,
    query: SubscriptionQuery,
    state: watch::Receiver<EngineState>,
}

impl SubscriptionStart {
    /// Starts it, as soon as there is room for it.
    async fn connect(&self, start: Start) -> Result<Connection, Refusal> {
        let mut backoff = Backoff::new();
        loop {
            let mut connection = self.engine.connect(&self.caller);
            let SubscriptionQuery { sql, params, checksum, explain } = &self.query;
            let from = match start {
                Start::Now => abide_engine::Start::Now,
                Start::After(seq) => abide_engine::Start::After(seq),
                Start::AsOf(seq) => abide_engine::Start::AsOf(seq),
            };
            let request = SubscribeRequest {
                id: ID,
                sql,
                params,
                start: from,
                timeline: None,
                checksum: *checksum,
                explain: *explain,
            };
            match connection.subscribe(&request).await {
                Ok(()) => return Ok(connection),
                Err(refusal) if self.is_passing(&refusal, start) => sleep(backoff.next()).await,
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Restarts it, after it was dropped for lack of room, or failed.
    async fn reconnect(self, start: Start) -> (Option<Connection>, Update) {
        sleep(Backoff::new().next()).await;
        match self.connect(start).await {
            Ok(mut connection) => {
                let update = connection.next().await;
                (Some(connection), update)
            }
            Err(refusal) => (None, Update::Error { id: ID.into(), refusal }),
        }
    }

    /// Whether to start again at `start` after this refusal. On a full disk only a subscription with rows waits for
    /// space: the consumer of a new one must hear why it has none.
    fn is_passing(&self, refusal: &Refusal, start: Start) -> bool {
        let passes = match refusal.code {
            code if code.is_temporary() => true,
            Code::DiskFull => matches!(start, Start::After(_)),
            _ => false,
        };
        passes && *self.state.borrow() == EngineState::Open
    }
}

/// The wait for an update, together with the connection, so that it can be cancelled and resumed.
type Next = Pin<Box<dyn Future<Output = (Option<Connection>, Update)> + Send>>;

fn wait_for_update(mut connection: Connection) -> Next {
    Box::pin(async move {
        let update = connection.next().await;
        (Some(connection), update)
    })
}

struct ConnectionPump {
    /// The lock makes it `Sync`; it is never taken.
    next: Mutex<Next>,
    closed: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    /// The parts of a snapshot received so far.
    parts: Vec<Row>,
    /// Where it would restart.
    start: Start,
    /// The rows are outdated until a rerun or a snapshot.
    stale: bool,
    begin: SubscriptionStart,
}

impl Source for ConnectionPump {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            let next = self.next.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut();
            let Poll::Ready((connection, update)) = next.poll(context) else {
                return self.closed.as_mut().poll(context).map(|()| Event::Ended(Error::Closed));
            };
            self.next = Mutex::new(match (&update, connection) {
                (Update::Error { refusal, .. }, _)
                    if self.begin.is_passing(refusal, self.start) =>
                {
                    Box::pin(self.begin.clone().reconnect(self.start))
                }
                (_, Some(connection)) => wait_for_update(connection),
                (_, None) => Box::pin(std::future::pending()),
            });
            let Some(event) = self.handle_update(update) else { continue };
            match &event {
                Event::Snapshot { seq: to, .. } | Event::Delta { to, .. } | Event::Progress(to) => {
                    self.start = Start::After(*to);
                }
                Event::Ended(_) => {}
            }
            return Poll::Ready(event);
        }
    }

    fn restart(&mut self) {
        self.parts.clear();
        (self.start, self.stale) = (Start::Now, false);
        self.next = Mutex::new(Box::pin(self.begin.clone().reconnect(Start::Now)));
    }
}

impl ConnectionPump {
    fn handle_update(&mut self, update: Update) -> Option<Event> {
        match update {
            Update::Snapshot(part) => {
                self.parts.extend(part.rows);
                if part.more {
                    return None;
                }
                self.stale = false;
                let rows = std::mem::take(&mut self.parts);
                let seq = part.seq;
                let info = part.info;
                let checksum = part.checksum;
                let history_changed = part.history_changed;
                Some(Event::Snapshot { seq, info, rows, checksum, history_changed })
            }
            Update::Delta { changes, .. }
                if changes.iter().any(|change| change.delta.is_stale()) =>
            {
                self.stale = true;
                None
            }
            Update::Rerun { seq, change, stale } => {
                self.stale = stale;
                Some(self.delta_event(seq, change))
            }
            Update::Delta { to, changes, .. } => Some(match changes.into_iter().next() {
                Some(change) => self.delta_event(to, change),
                None => Event::Progress(to),
            }),
            Update::Progress { .. } if self.stale => None,
            Update::Progress { seq } => Some(Event::Progress(seq)),
            // A snapshot follows.
            Update::Error { refusal, .. } if refusal.code == Code::ResyncRequired => None,
            Update::Error { refusal, .. } if self.begin.is_passing(&refusal, self.start) => {
                self.parts.clear();
                None
            }
            Update::Error { refusal, .. } => Some(Event::Ended(self.to_error(refusal))),
        }
    }

    fn delta_event(&self, to: Seq, change: Change) -> Event {
        let checksum = change.checksum;
        let info = change.info;
        Event::Delta { to, changes: copy_changes(change.delta.rows()), checksum, info }
    }

    fn to_error(&self, refusal: Refusal) -> Error {
        closed_or_refused(*self.begin.state.borrow(), refusal)
    }
}

/// All subscribers of a delta share its rows.
fn copy_changes(delta: &Delta) -> Changes {
    let Delta { deletes, inserts, updates, top_n, .. } = delta;
    let positioned_inserts =
        top_n.inserts.iter().map(|insert| PositionedRow { at: insert.at, row: insert.row.clone() });
    let positioned_updates =
        top_n.updates.iter().map(|update| PositionedRow { at: update.at, row: update.row.clone() });
    Changes {
        deletes: deletes.clone(),
        inserts: inserts.clone(),
        updates: updates.clone(),
        top_n: TopNDelta {
            deletes: top_n.deletes.clone(),
            inserts: positioned_inserts.collect(),
            updates: positioned_updates.collect(),
        },
        positions: None,
    }
}
