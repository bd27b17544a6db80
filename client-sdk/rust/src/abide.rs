//! [`Abide`], the handle on a session store, embedded or remote.

use std::collections::BTreeMap;
#[cfg(feature = "embedded")]
use std::path::Path;
#[cfg(feature = "tls")]
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use abide_schema::{Scope, Seq};
use tokio::sync::watch;

use crate::Error;
use crate::backend::{
    Attempt, BackendReply, BackendRequest, Source, Start, SubscriptionQuery, retry_until_deadline,
};
#[cfg(feature = "embedded")]
use crate::embedded::{Config, Embedded};
use crate::remote::{Remote, TlsOptions};

/// Default deadline of a call.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A session store: a remote server, or a file opened by this process. Clones share it.
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
    /// Live handles to the same server that [`Abide::acting_for`] created.
    scoped: Mutex<BTreeMap<Scope, Weak<Inner>>>,
}

#[derive(Debug)]
enum Backend {
    #[cfg(feature = "embedded")]
    Embedded(Embedded),
    Remote(Remote),
}

impl Abide {
    /// Connects to a server, such as `http://127.0.0.1:7341` or `https://agents.example`. The client reconnects automatically after
    /// a lost connection, as long as this handle or one of its subscriptions lives.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no server answers at the address; [`Error::NotAbide`] if another program does;
    /// [`Error::Tls`] if there is no encrypted connection; [`Error::Address`] if the URL is invalid;
    /// [`Error::Refused`] if the server requires a token.
    pub async fn connect(url: &str) -> Result<Abide, Error> {
        Abide::builder(url).connect().await
    }

    /// Returns a builder for a connection with options, such as a token.
    pub fn builder(url: &str) -> Builder {
        Builder { url: url.to_owned(), token: None, deadline: DEADLINE, tls: TlsOptions::default() }
    }

    /// Opens a database file in this process, and creates it if it does not exist. No server is involved;
    /// the methods are the same. They need a tokio runtime with time enabled.
    ///
    /// # Errors
    /// [`Error::Refused`] with the problem and a hint.
    #[cfg(feature = "embedded")]
    pub fn open(path: impl AsRef<Path>) -> Result<Abide, Error> {
        Abide::open_with(path, Config::default())
    }

    /// Opens a file with a configuration, such as custom modules in addition to the built-in ones. [`Abide::call`] calls
    /// their reducers too.
    ///
    /// # Errors
    /// Those of [`Abide::open`]; also if a table in the file differs from the declaration in a module.
    #[cfg(feature = "embedded")]
    pub fn open_with(path: impl AsRef<Path>, config: Config) -> Result<Abide, Error> {
        let embedded = Embedded::open(path.as_ref(), config)?;
        Ok(Abide::from_backend(Backend::Embedded(embedded), DEADLINE))
    }

    /// Wraps a running engine, such as one that a server in this process uses too.
    #[cfg(feature = "embedded")]
    #[must_use]
    pub fn embed(engine: abide_engine::Engine) -> Abide {
        Abide::from_backend(Backend::Embedded(Embedded::new(engine)), DEADLINE)
    }

    /// Returns the engine in this process; `None` for a remote server.
    #[cfg(feature = "embedded")]
    #[must_use]
    pub fn engine(&self) -> Option<&abide_engine::Engine> {
        match &self.inner.backend {
            Backend::Embedded(embedded) => Some(embedded.engine()),
            Backend::Remote(_) => None,
        }
    }

    pub(crate) fn remote(remote: Remote, deadline: Duration) -> Abide {
        Abide::from_backend(Backend::Remote(remote), deadline)
    }

    fn from_backend(backend: Backend, deadline: Duration) -> Abide {
        let mismatches = Arc::default();
        let scoped = Mutex::default();
        Abide { inner: Arc::new(Inner { backend, deadline, mismatches, scoped }) }
    }

    /// Returns a handle whose calls, queries and subscriptions are restricted to a scope, in addition to the
    /// caller's own scope. Intended for drivers, which work for one tenant at a time. A remote handle uses a
    /// separate connection, shared by all handles of the same scope.
    ///
    /// # Errors
    /// `denied` if the caller's own scope has a different value for a key. [`Error::Unreachable`] if the server
    /// does not answer.
    pub async fn acting_for(&self, scope: &Scope) -> Result<Abide, Error> {
        if scope.is_empty() {
            return Ok(self.clone());
        }
        let deadline = self.inner.deadline;
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => {
                Ok(Abide::from_backend(Backend::Embedded(embedded.acting_for(scope)?), deadline))
            }
            Backend::Remote(remote) => {
                if let Some(inner) = self.scoped().get(scope).and_then(Weak::upgrade) {
                    return Ok(Abide { inner });
                }
                let made = Abide::remote(remote.restricted_to(scope).await?, deadline);
                let mut scoped = self.scoped();
                scoped.retain(|_, handle| handle.strong_count() > 0);
                // Another task may have connected in the meantime; its connection serves both.
                if let Some(inner) = scoped.get(scope).and_then(Weak::upgrade) {
                    return Ok(Abide { inner });
                }
                scoped.insert(scope.clone(), Arc::downgrade(&made.inner));
                Ok(made)
            }
        }
    }

    /// Returns a handle with a connection of its own. The async runtime of the caller drives that connection: it works
    /// while another runtime, which drives the connection of this handle, is busy. An embedded engine has threads of its
    /// own and needs no connection.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the server does not answer; [`Error::Closed`] if this handle was closed.
    pub async fn separate(&self) -> Result<Abide, Error> {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(_) => Ok(self.clone()),
            Backend::Remote(remote) => {
                Ok(Abide::remote(remote.separate().await?, self.inner.deadline))
            }
        }
    }

    fn scoped(&self) -> MutexGuard<'_, BTreeMap<Scope, Weak<Inner>>> {
        self.inner.scoped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the client is connected; for an embedded engine, if it is open. A server that
    /// disappears without closing the connection is detected after 30 seconds.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.link().connected()
    }

    /// Returns the state of the connection ([`Abide::connected`]), as a value to wait on.
    #[must_use]
    pub fn link(&self) -> Link {
        Link(match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.accepts_calls(),
            Backend::Remote(remote) => remote.connected(),
        })
    }

    /// Returns the number of reconnects; 0 for an embedded engine.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(_) => 0,
            Backend::Remote(remote) => remote.reconnects(),
        }
    }

    /// Returns the prefix of the stored form of each id that the caller chooses, such as `tenant=acme/`; empty for a caller without a
    /// scope. Calls accept ids without it; rows, answers and queries have it. `None` before the first message of the server:
    /// it is known after any answer.
    #[must_use]
    pub fn namespace(&self) -> Option<String> {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => Some(embedded.namespace().to_owned()),
            Backend::Remote(remote) => remote.namespace(),
        }
    }

    /// Returns the number of times that the rows of a subscription did not match the server's checksum and were
    /// fetched again; see [`Subscribe::checksum`](crate::Subscribe::checksum).
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.inner.mismatches.load(Ordering::Relaxed)
    }

    pub(crate) fn mismatch_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.inner.mismatches)
    }

    /// Closes the store for all clones: unanswered requests return [`Error::Closed`], and subscriptions
    /// end. An embedded engine first completes the queued calls and checkpoints the WAL into the file.
    pub async fn close(&self) {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.close().await,
            Backend::Remote(remote) => remote.close().await,
        }
        let scoped: Vec<_> = self.scoped().values().filter_map(Weak::upgrade).collect();
        for inner in scoped {
            Box::pin(Abide { inner }.close()).await;
        }
    }

    pub(crate) async fn ask(
        &self,
        ask: BackendRequest,
        deadline: Option<Duration>,
    ) -> Result<BackendReply, Error> {
        let patience = deadline.unwrap_or(self.inner.deadline);
        let outcome = retry_until_deadline(&ask, patience, || self.attempt(&ask)).await;
        outcome.map_err(|error| self.with_last_error(error))
    }

    /// Adds the reason for the missing connection to a timeout error.
    fn with_last_error(&self, error: Error) -> Error {
        match (error, &self.inner.backend) {
            (Error::TimedOut { what, waited, request_id, why: None }, Backend::Remote(remote)) => {
                Error::TimedOut { what, waited, request_id, why: remote.last_error() }
            }
            (error, _) => error,
        }
    }

    /// Waits for a subscription to start, with the same deadline as a call.
    pub(crate) async fn within_deadline<T>(
        &self,
        begun: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let waited = self.inner.deadline;
        let what = "the subscription".to_owned();
        tokio::time::timeout(waited, begun).await.map_err(|_| {
            self.with_last_error(Error::TimedOut { what, waited, request_id: None, why: None })
        })
    }

    /// Waits until an event of an engine in this process is durable, and all events before it; see
    /// [`Batch::apply`](crate::Batch::apply). A server answers only when they are.
    ///
    /// # Errors
    /// [`Error::Refused`] if the engine has failed: the event will never be durable.
    #[cfg_attr(
        not(feature = "embedded"),
        expect(unused_variables, reason = "a server answers when the event is durable")
    )]
    pub async fn until_durable(&self, seq: Seq) -> Result<(), Error> {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.until_durable(seq).await,
            // A server answers when the event is durable.
            Backend::Remote(_) => Ok(()),
        }
    }

    async fn attempt(&self, ask: &BackendRequest) -> Attempt {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.ask(ask).await,
            Backend::Remote(remote) => remote.ask(ask).await,
        }
    }

    pub(crate) async fn open_source(
        &self,
        query: SubscriptionQuery,
        start: Start,
    ) -> Result<Box<dyn Source>, Error> {
        match &self.inner.backend {
            #[cfg(feature = "embedded")]
            Backend::Embedded(embedded) => embedded.subscribe(query, start).await,
            Backend::Remote(remote) => remote.subscribe(query, start),
        }
    }
}

/// The connection state, from [`Abide::link`]. It keeps no connection open.
#[derive(Clone, Debug)]
pub struct Link(watch::Receiver<bool>);

impl Link {
    /// Returns `true` if the client is connected.
    #[must_use]
    pub fn connected(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the connection was lost or made since the last wait, or since the link was created.
    /// Never returns after the client is dropped.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Options of a connection to a server: see [`Abide::builder`].
#[must_use = "a builder does nothing until connect"]
#[derive(Clone)]
pub struct Builder {
    url: String,
    token: Option<String>,
    deadline: Duration,
    tls: TlsOptions,
}

impl Builder {
    /// Sets a bearer token, sent in the `Authorization` header.
    pub fn token(mut self, token: impl Into<String>) -> Builder {
        self.token = Some(token.into());
        self
    }

    /// Sets how long a call is retried before it fails with [`Error::TimedOut`]. Default: 60 s.
    pub fn deadline(mut self, deadline: Duration) -> Builder {
        self.deadline = deadline;
        self
    }

    /// Trusts only the authorities of this PEM file, for an address that begins with `https` or `wss`. Default: those of the
    /// operating system.
    #[cfg(feature = "tls")]
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Builder {
        self.tls.ca = Some(path.into());
        self
    }

    /// Presents this certificate (PEM files of a certificate and of its key). On a server with `--tls-client-ca` it is the
    /// credential of an identity, in place of a token.
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Builder {
        self.tls.client = Some((certificate.into(), key.into()));
        self
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// Those of [`Abide::connect`]; [`Error::Refused`] if a file of TLS cannot be used.
    pub async fn connect(self) -> Result<Abide, Error> {
        let remote = Remote::connect(&self.url, self.token.as_deref(), &self.tls).await?;
        Ok(Abide::remote(remote, self.deadline))
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is a secret.
        f.debug_struct("Builder").field("url", &self.url).finish_non_exhaustive()
    }
}
