//! [`Abide`], the handle on a store of sessions, wherever its engine runs.

use std::collections::BTreeMap;
#[cfg(feature = "embedded")]
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use abide_schema::Scope;
use serde::Serialize;

use crate::Error;
use crate::backend::{Ask, Attempt, Query, Reply, Source, Start, persist};
#[cfg(feature = "embedded")]
use crate::embedded::Embedded;
use crate::explain::Explain;
use crate::link::Link;
use crate::remote::Remote;
use crate::request::{Batch, Call, Request};
use crate::sql::Sql;
use crate::subscription::Subscribe;

/// How long a call is tried, unless something else is said.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A store of sessions: a server's, or a file of this process. Clones share it.
#[derive(Clone, Debug)]
pub struct Abide {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    backend: Backend,
    deadline: Duration,
    /// Shared with the subscriptions.
    mismatches: Arc<AtomicU64>,
    /// Handles of the same server that [`Abide::acting_for`] has made and that are still in use.
    narrowed: Mutex<BTreeMap<Scope, Weak<Inner>>>,
}

#[derive(Debug)]
enum Backend {
    #[cfg(feature = "embedded")]
    Embedded(Embedded),
    Remote(Remote),
}

impl Abide {
    /// Connects to a server, such as `http://127.0.0.1:7341`. From then on a lost connection is made
    /// again by itself, for as long as this handle or a subscription of it lives.
    ///
    /// # Errors
    /// [`Error::Unreachable`] where nobody answers now; [`Error::Address`]; [`Error::Refused`] where
    /// the server wants a token.
    pub async fn connect(url: &str) -> Result<Abide, Error> {
        Abide::builder(url).connect().await
    }

    /// Connects with more than an address.
    pub fn builder(url: &str) -> Builder {
        Builder { url: url.to_owned(), token: None, deadline: DEADLINE }
    }

    /// Opens a file in this process, making it where there is none: no server, the same methods. The
    /// methods need a tokio runtime with time.
    ///
    /// # Errors
    /// [`Error::Refused`], with what is wrong with the file and what to do.
    #[cfg(feature = "embedded")]
    pub fn open(path: impl AsRef<Path>) -> Result<Abide, Error> {
        Abide::open_with(path, Vec::new())
    }

    /// Opens a file with modules of one's own beside the built-in ones. Their reducers are called
    /// with [`Abide::call`].
    ///
    /// # Errors
    /// As [`Abide::open`]; also where a table in the file is not as a module declares it.
    #[cfg(feature = "embedded")]
    pub fn open_with(
        path: impl AsRef<Path>,
        modules: Vec<abide_schema::Module>,
    ) -> Result<Abide, Error> {
        let mut all = abide_reducers::modules();
        all.extend(modules);
        let embedded = Embedded::open(path.as_ref(), all)?;
        Ok(Abide::over(Backend::Embedded(embedded), DEADLINE))
    }

    /// Over an engine that runs already, such as one that a server in this process has too.
    #[cfg(feature = "embedded")]
    #[must_use]
    pub fn embed(engine: abide_engine::Engine) -> Abide {
        Abide::over(Backend::Embedded(Embedded::over(engine)), DEADLINE)
    }

    /// The engine in this process; `None` where it is a server's.
    #[cfg(feature = "embedded")]
    #[must_use]
    pub fn engine(&self) -> Option<&abide_engine::Engine> {
        match &self.inner.backend {
            Backend::Embedded(embedded) => Some(embedded.engine()),
            Backend::Remote(_) => None,
        }
    }

    pub(crate) fn remote(remote: Remote, deadline: Duration) -> Abide {
        Abide::over(Backend::Remote(remote), deadline)
    }

    fn over(backend: Backend, deadline: Duration) -> Abide {
        let (mismatches, narrowed) = <(Arc<AtomicU64>, Mutex<_>)>::default();
        Abide { inner: Arc::new(Inner { backend, deadline, mismatches, narrowed }) }
    }

    /// The same store, reached within a scope: calls, queries and subscriptions of the handle are bounded by it, and
    /// by what bounds the caller anyway. For drivers, which work for one tenant at a time. With a server it is a
    /// connection of its own, which handles for the same scope share.
    ///
    /// # Errors
    /// `denied` where the caller's own scope has another text for a key. [`Error::Unreachable`] where the server
    /// does not answer.
    pub async fn acting_for(&self, scope: &Scope) -> Result<Abide, Error> {
        if scope.is_empty() {
            return Ok(self.clone());
        }
        let deadline = self.inner.deadline;
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => {
                Ok(Abide::over(Backend::Embedded(embedded.acting_for(scope)?), deadline))
            }
            Backend::Remote(remote) => {
                if let Some(inner) = self.narrowed().get(scope).and_then(Weak::upgrade) {
                    return Ok(Abide { inner });
                }
                let made = Abide::remote(remote.within(scope).await?, deadline);
                let mut narrowed = self.narrowed();
                narrowed.retain(|_, handle| handle.strong_count() > 0);
                // Another caller may have connected meanwhile; its connection serves both.
                if let Some(inner) = narrowed.get(scope).and_then(Weak::upgrade) {
                    return Ok(Abide { inner });
                }
                narrowed.insert(scope.clone(), Arc::downgrade(&made.inner));
                Ok(made)
            }
        }
    }

    fn narrowed(&self) -> MutexGuard<'_, BTreeMap<Scope, Weak<Inner>>> {
        self.inner.narrowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a reducer. The arguments serialise to an object; the result is JSON unless
    /// [`Request::returning`] says otherwise.
    pub fn call(&self, reducer: &str, args: impl Serialize) -> Request {
        Request::new(self, reducer, args)
    }

    /// Calls several reducers in one transaction, all or nothing.
    pub fn batch<C: Into<Call>>(&self, calls: impl IntoIterator<Item = C>) -> Batch {
        Batch::new(self, calls.into_iter().map(Into::into).collect())
    }

    /// Asks a read-only statement once.
    pub fn sql(&self, sql: impl Into<String>) -> Sql {
        Sql::new(self, sql.into())
    }

    /// Subscribes to a query: its result, and what changes in it.
    pub fn subscribe(&self, sql: impl Into<String>) -> Subscribe {
        Subscribe::new(self, sql.into())
    }

    /// Asks how a query would be kept live, and at what cost.
    pub fn explain(&self, sql: impl Into<String>) -> Explain {
        Explain::new(self, sql.into())
    }

    /// Whether there is a connection to the server; where the engine runs in this process, whether it
    /// is open. A server that vanishes without a word is missed after half a minute.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.link().connected()
    }

    /// The same, to be waited on.
    #[must_use]
    pub fn link(&self) -> Link {
        Link(match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.there(),
            Backend::Remote(remote) => remote.connected(),
        })
    }

    /// How often a lost connection was made again; 0 where the engine runs in this process.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(_) => 0,
            Backend::Remote(remote) => remote.reconnects(),
        }
    }

    /// How often the rows of any subscription were not what the server said they are, and were asked
    /// for afresh; see [`Subscribe::checksum`].
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.inner.mismatches.load(Ordering::Relaxed)
    }

    pub(crate) fn mismatch_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.inner.mismatches)
    }

    /// Closes it, for all clones: what was not answered is [`Error::Closed`], and subscriptions end.
    /// An engine in this process first finishes what it has taken in, and moves it into the file.
    pub async fn close(&self) {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.close().await,
            Backend::Remote(remote) => remote.close().await,
        }
        let narrowed: Vec<_> = self.narrowed().values().filter_map(Weak::upgrade).collect();
        for inner in narrowed {
            Box::pin(Abide { inner }.close()).await;
        }
    }

    pub(crate) async fn ask(&self, ask: Ask, deadline: Option<Duration>) -> Result<Reply, Error> {
        let patience = deadline.unwrap_or(self.inner.deadline);
        let outcome = persist(&ask, patience, || self.attempt(&ask)).await;
        outcome.map_err(|error| self.with_trouble(error))
    }

    /// Adds why there is no connection to the error of a deadline that passed.
    fn with_trouble(&self, error: Error) -> Error {
        match (error, &self.inner.backend) {
            (Error::TimedOut { what, waited, request_id, why: None }, Backend::Remote(remote)) => {
                Error::TimedOut { what, waited, request_id, why: remote.trouble() }
            }
            (error, _) => error,
        }
    }

    /// Waits for a subscription to begin, as long as for a call.
    pub(crate) async fn in_time<T>(&self, begun: impl Future<Output = T>) -> Result<T, Error> {
        let waited = self.inner.deadline;
        let what = "the subscription".to_owned();
        let timed_out = |_| Error::TimedOut { what, waited, request_id: None, why: None };
        tokio::time::timeout(waited, begun)
            .await
            .map_err(timed_out)
            .map_err(|e| self.with_trouble(e))
    }

    async fn attempt(&self, ask: &Ask) -> Attempt {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.ask(ask).await,
            Backend::Remote(remote) => remote.ask(ask).await,
        }
    }

    pub(crate) async fn open_source(
        &self,
        query: Query,
        start: Start,
    ) -> Result<Box<dyn Source>, Error> {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.subscribe(query, start).await,
            Backend::Remote(remote) => remote.subscribe(query, start),
        }
    }
}

/// A connection to be made.
#[must_use = "a builder does nothing until connect"]
#[derive(Clone)]
pub struct Builder {
    url: String,
    token: Option<String>,
    deadline: Duration,
}

impl Builder {
    /// With a bearer token, sent in the `Authorization` header.
    pub fn token(mut self, token: impl Into<String>) -> Builder {
        self.token = Some(token.into());
        self
    }

    /// How long a call is tried before it is [`Error::TimedOut`]; 60 s unless said.
    pub fn deadline(mut self, deadline: Duration) -> Builder {
        self.deadline = deadline;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`Abide::connect`].
    pub async fn connect(self) -> Result<Abide, Error> {
        let remote = Remote::connect(&self.url, self.token.as_deref()).await?;
        Ok(Abide::remote(remote, self.deadline))
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is a secret.
        f.debug_struct("Builder").field("url", &self.url).finish_non_exhaustive()
    }
}
