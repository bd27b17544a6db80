//! A server as its tools share it: its definition, and its connection, which is opened again after failures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use abide_client::rows::Effect;
use rmcp::ServiceError;
use rmcp::model::{CancelTaskParams, Tool};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, Endpoint, ListLimits, Unavailable};
use super::parked::ParkedCalls;
use crate::registry::Tools;

/// Delay after the second consecutive failure, which doubles up to the maximum below, and between two lists of tools.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// State that a server's tools share.
pub(super) struct Server {
    pub(super) name: String,
    pub(super) prefix: String,
    pub(super) endpoint: Endpoint,
    pub(super) only: Option<Vec<String>>,
    pub(super) needs_approval: Vec<String>,
    pub(super) effects: BTreeMap<String, Effect>,
    /// Whether calls have their context in `_meta`.
    pub(super) sends_context: bool,
    pub(super) timeout: Duration,
    /// Maximum time for a task.
    pub(super) task_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) list_limits: ListLimits,
    pub(super) tools: Tools,
    pub(super) link: Mutex<ConnectionState>,
    pub(super) closing: CancellationToken,
    /// The calls whose questions wait for an answer.
    pub(super) parked: ParkedCalls,
    /// The names in the definition that had no effect when the tools were listed last.
    pub(super) unlisted: std::sync::Mutex<Vec<UnlistedName>>,
}

/// A name in the definition of a server that is that of none of its tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnlistedName {
    /// The name.
    pub name: String,
    /// A sentence with the setting, the name and what the server has.
    pub why: String,
}

/// The connection, if there is one.
#[derive(Default)]
pub(super) struct ConnectionState {
    pub(super) connection: Option<Arc<Connection>>,
    /// Number of consecutive failed attempts to connect.
    pub(super) failures: u32,
    /// No further attempt before this time.
    pub(super) rests_until: Option<Instant>,
    pub(super) last_error: Unavailable,
}

impl ConnectionState {
    pub(super) fn open(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|connection| connection.is_open())
    }
}

impl Server {
    /// Returns the connection, and connects if there is none.
    ///
    /// # Errors
    /// Why there is no connection. No request was sent.
    pub(super) async fn connection(self: &Arc<Server>) -> Result<Arc<Connection>, Unavailable> {
        // In a separate task, so that the cancellation of one call does not abort the attempt for others.
        let server = Arc::clone(self);
        let connecting = tokio::spawn(async move { server.connect().await });
        match connecting.await {
            Ok(connected) => connected,
            Err(_) => Err("the attempt to connect panicked".to_owned().into()),
        }
    }

    async fn connect(self: &Arc<Server>) -> Result<Arc<Connection>, Unavailable> {
        let mut link = self.link.lock().await;
        if let Some(connection) = link.open() {
            return Ok(Arc::clone(connection));
        }
        if self.closing.is_cancelled() {
            return Err("the server was closed".to_owned().into());
        }
        // A call comes again after a person has acted: it does not wait for the next attempt.
        let rests_until = link.rests_until.filter(|_| !link.last_error.needs_person);
        if let Some(until) = rests_until.filter(|until| Instant::now() < *until) {
            let wait = until.duration_since(Instant::now()).as_secs_f64();
            let why = format!("{}; the next attempt is in {wait:.1} s", link.last_error.why);
            return Err(why.into());
        }
        link.connection = None;
        match self.connect_and_list().await {
            Ok(connection) => {
                *link = ConnectionState {
                    connection: Some(Arc::clone(&connection)),
                    ..ConnectionState::default()
                };
                Ok(connection)
            }
            Err(error) => {
                link.failures += 1;
                let doublings = link.failures.saturating_sub(1).min(16);
                let wait = BACKOFF.saturating_mul(1 << doublings).min(BACKOFF_MAX);
                link.rests_until = Some(Instant::now() + wait);
                let why = &error.why;
                tracing::warn!(
                    name: "mcp_unavailable",
                    server = self.name,
                    why,
                    ?wait,
                    "an MCP server is unavailable"
                );
                link.last_error.clone_from(&error);
                Err(error)
            }
        }
    }

    /// Leaves a connection to the calls that wait on it: later calls open a new one.
    pub(super) async fn retire(&self, connection: &Arc<Connection>, why: &str) {
        let mut link = self.link.lock().await;
        if link.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            link.connection = None;
            link.last_error = why.to_owned().into();
        }
    }

    /// Cancels a task. A server that does not know it has nothing to cancel.
    ///
    /// # Errors
    /// Why the server cannot be reached.
    pub(super) async fn cancel_task(self: &Arc<Server>, task_id: &str) -> Result<(), String> {
        let connection = self.connection().await.map_err(|error| error.why)?;
        match connection.peer().cancel_task(CancelTaskParams::new(task_id)).await {
            Err(error @ (ServiceError::TransportSend(_) | ServiceError::TransportClosed)) => {
                Err(error.to_string())
            }
            _ => Ok(()),
        }
    }

    async fn connect_and_list(self: &Arc<Server>) -> Result<Arc<Connection>, Unavailable> {
        let connection = Connection::open(&self.endpoint, self.connect_timeout).await?;
        let listed = self.list(&connection).await;
        let listed = listed.map_err(|error| Unavailable {
            why: format!("it failed to list its tools: {}", error.why),
            ..error
        })?;
        self.publish(listed);
        let connection = Arc::new(connection);
        self.follow(&connection);
        Ok(connection)
    }

    /// Lists the tools again after each change, while the connection is open.
    fn follow(self: &Arc<Server>, connection: &Arc<Connection>) {
        let server = Arc::downgrade(self);
        let mut changes = connection.changes();
        let connection = Arc::downgrade(connection);
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let (Some(server), Some(connection)) = (server.upgrade(), connection.upgrade())
                else {
                    break;
                };
                match server.list(&connection).await {
                    Ok(listed) => server.publish(listed),
                    Err(Unavailable { why, .. }) => {
                        tracing::warn!(
                            name: "mcp_tools_not_listed",
                            server = server.name,
                            why,
                            "tools could not be listed"
                        )
                    }
                }
                drop((server, connection));
                // A server that reports a change whenever it is asked for its tools must not be asked without a pause.
                tokio::time::sleep(BACKOFF).await;
            }
        });
    }

    async fn list(&self, connection: &Connection) -> Result<Vec<Tool>, Unavailable> {
        let listing = connection.list(self.list_limits);
        tokio::time::timeout(self.connect_timeout, listing).await.unwrap_or_else(|_| {
            let seconds = self.connect_timeout.as_secs_f64();
            Err(format!("the list had no end after {seconds} s (connect_timeout_ms)").into())
        })
    }

    /// Retries until the first success, or until the server is closed.
    pub(super) fn keep_trying(self: &Arc<Server>) {
        let server = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let until = server.link.lock().await.rests_until.unwrap_or_else(Instant::now);
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = server.closing.cancelled() => return,
                }
                if server.connection().await.is_ok() {
                    return;
                }
            }
        });
    }
}
