//! A server at the other end of one WebSocket.
//!
//! One task, the [`actor`], owns the socket and all pending requests; handles send it commands through a
//! channel. The callers bound that channel: each waits for its own reply.

mod actor;
mod dial;
mod frame;
mod inbox;
mod mailbox;
mod shared_file;
mod socket_connection;
mod subscriptions;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use abide_schema::limits::MESSAGE_BYTES;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Refusal, Scope, Seq};
use serde::Serialize;
use serde_json::{Map, Value as JsonValue};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{oneshot, watch};

use crate::Error;
use crate::backend::{Attempt, BackendRequest, Source, Start, SubscriptionQuery};
use actor::{Actor, Command, Shared};
pub(crate) use dial::TlsOptions;
use dial::{Address, Dial};
use inbox::Inbox;
use mailbox::Mailbox;
pub(crate) use shared_file::SharedFile;

/// The handle. Dropping the last handle and the last subscription closes the connection.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The address for further connections; `None` in tests that make them.
    address: Option<Box<Address>>,
    commands: UnboundedSender<Command>,
    shared: Arc<Shared>,
    next: AtomicU64,
}

impl Remote {
    pub(crate) async fn connect(
        url: &str,
        token: Option<&str>,
        options: &TlsOptions,
    ) -> Result<Remote, Error> {
        Remote::connect_to(Address::parse(url, token, options)?).await
    }

    /// Connects to the engine that programs of this user share for a file, with this token in place of the engine's own.
    pub(crate) async fn open(file: SharedFile, token: Option<&str>) -> Result<Remote, Error> {
        Remote::connect_to(Address::for_shared_file(file, token)?).await
    }

    /// A separate connection to the same server, restricted to a scope.
    pub(crate) async fn restricted_to(&self, scope: &Scope) -> Result<Remote, Error> {
        let address = self.address.clone().ok_or(Error::Closed)?;
        Remote::connect_to((*address).restricted_to(scope)?).await
    }

    /// A separate connection to the same server.
    pub(crate) async fn separate(&self) -> Result<Remote, Error> {
        let address = self.address.clone().ok_or(Error::Closed)?;
        if self.shared.close_reason.get().is_some() {
            return Err(Error::Closed);
        }
        Remote::connect_to(*address).await
    }

    async fn connect_to(address: Address) -> Result<Remote, Error> {
        let remote = Remote::connect_with(address.clone().dial()).await?;
        Ok(Remote { address: Some(Box::new(address)), ..remote })
    }

    async fn connect_with(dial: Dial) -> Result<Remote, Error> {
        let socket = dial().await?;
        let (commands, to_do) = mpsc::unbounded_channel();
        let shared = Arc::<Shared>::default();
        shared.connected.send_replace(true);
        let actor = Actor::new(dial, to_do, Arc::clone(&shared));
        tokio::spawn(actor.run(socket));
        Ok(Remote { address: None, commands, shared, next: AtomicU64::new(1) })
    }

    pub(crate) fn reconnects(&self) -> u64 {
        self.shared.reconnects.load(Ordering::Relaxed)
    }

    /// The namespace of the caller, as the last connection stated it.
    pub(crate) fn namespace(&self) -> Option<String> {
        self.shared.namespace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there is a connection.
    pub(crate) fn connected(&self) -> watch::Receiver<bool> {
        self.shared.connected.subscribe()
    }

    /// Why there is no connection at the moment.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.shared.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close { done }).is_ok() {
            // An error means that it was closed in the meantime.
            let _ = closed.await;
        }
    }

    pub(crate) async fn ask(&self, ask: &BackendRequest) -> Attempt {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let text = match encode_request(id, ask) {
            Ok(text) => text,
            Err(error) => return Attempt { outcome: Err(error), uncertain: false },
        };
        let (reply, answer) = oneshot::channel();
        let mut forget = CancelOnDrop { id, commands: &self.commands, armed: true };
        // If the actor has ended, the reply is dropped with the command.
        let is_query = ask.is_query();
        let _ = self.commands.send(Command::Ask { id, text, is_query, reply });
        let attempt = answer.await;
        forget.armed = false;
        attempt.unwrap_or_else(|_| Attempt { outcome: Err(self.close_reason()), uncertain: false })
    }

    pub(crate) fn subscribe(
        &self,
        query: SubscriptionQuery,
        start: Start,
    ) -> Result<Box<dyn Source>, Error> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let mailbox = Arc::<Mailbox>::default();
        let commands = self.commands.clone();
        let subscribe = Command::Subscribe { key, query, start, mailbox: Arc::clone(&mailbox) };
        commands.send(subscribe).map_err(|_| self.close_reason())?;
        Ok(Box::new(Inbox { key, mailbox, commands, resume_from: start }))
    }

    fn close_reason(&self) -> Error {
        self.shared.close_reason.get().cloned().unwrap_or(Error::Closed)
    }
}

/// Notifies the actor that a caller no longer waits for a reply.
struct CancelOnDrop<'a> {
    id: u64,
    commands: &'a UnboundedSender<Command>,
    armed: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            // Without an actor there is nothing to forget.
            let _ = self.commands.send(Command::Cancel { id: self.id });
        }
    }
}

/// A request on the wire: the forms of [`abide_schema::wire::ClientMessage`], with borrowed parts.
#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Message<'a> {
    Call { id: &'a str, reducer: &'a str, args: &'a JsonValue, request_id: &'a str },
    Batch { id: &'a str, calls: &'a [BatchCall], request_id: &'a str },
    Sql { id: &'a str, sql: &'a str, params: &'a Map<String, JsonValue>, as_of: Option<Seq> },
    Explain { id: &'a str, sql: &'a str, params: &'a Map<String, JsonValue> },
}

fn encode_request(id: u64, ask: &BackendRequest) -> Result<String, Error> {
    let id = &id.to_string();
    let message = match ask {
        BackendRequest::Call { reducer, args, request_id } => {
            Message::Call { id, reducer, args, request_id }
        }
        BackendRequest::Batch { calls, request_id }
        | BackendRequest::Apply { calls, request_id, .. } => {
            Message::Batch { id, calls, request_id }
        }
        BackendRequest::Sql { sql, params, as_of } => {
            Message::Sql { id, sql, params, as_of: *as_of }
        }
        BackendRequest::Explain { sql, params } => Message::Explain { id, sql, params },
    };
    let text = serde_json::to_string(&message).map_err(|why| Error::encode("a message", why))?;
    if text.len() > MESSAGE_BYTES {
        let bytes = text.len();
        let detail = format!("the message has {bytes} bytes; the limit is {MESSAGE_BYTES}");
        let refusal = Refusal::new(Code::LimitExceeded, detail);
        return Err(refusal.hint("split it, or store large content elsewhere").into());
    }
    Ok(text)
}
