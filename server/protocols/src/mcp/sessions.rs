//! Sessions of clients that speak MCP 2025-11-25 or an earlier version: subscriptions, requests of the server that wait
//! for a response, and requests of the client that can be cancelled.
//!
//! Sessions are in memory. The official clients do not start a new one after a restart of the server, so the
//! [id](SessionId) of a session has what is needed to continue it. A continued session has no subscriptions and the
//! default log level.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_engine::buffers::Reservation;
use abide_schema::Refusal;
use abide_schema::reducer::Caller;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value as JsonValue, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::limits;
use crate::mcp_handler::level_index;

/// The sessions of all clients.
#[derive(Debug, Default)]
pub(super) struct McpSessions {
    by_id: Mutex<HashMap<String, Arc<McpSession>>>,
    /// Ids of sessions that their clients have ended, the oldest first: they are not continued.
    ended: Mutex<VecDeque<String>>,
    uses: AtomicU64,
}

/// The id of a session: random bytes, the capabilities of the client, and a digest that binds both to its caller. It needs no
/// signature. A caller that presents it has authenticated, and an invented id is worth as much as `initialize`.
#[derive(Debug)]
struct SessionId {
    text: String,
    capabilities: JsonValue,
}

impl SessionId {
    fn new(owner: &Caller, capabilities: JsonValue) -> SessionId {
        let random = uuid::Uuid::new_v4().simple().to_string();
        let encoded = BASE64_URL_SAFE_NO_PAD.encode(capabilities.to_string());
        let digest = SessionId::digest(owner, &random, &encoded);
        SessionId { text: format!("{random}.{encoded}.{digest}"), capabilities }
    }

    /// Parses an id; `None` if it is not one of this caller.
    fn parse(text: &str, by: &Caller) -> Option<SessionId> {
        let mut parts = text.split('.');
        let [random, encoded, digest] = [parts.next()?, parts.next()?, parts.next()?];
        let is_own = parts.next().is_none()
            && random.len() == 32
            && digest == SessionId::digest(by, random, encoded);
        let decoded = BASE64_URL_SAFE_NO_PAD.decode(encoded).ok().filter(|_| is_own)?;
        let fits = decoded.len() <= limits::MCP_CAPABILITIES_BYTES;
        let capabilities = serde_json::from_slice(&decoded).ok().filter(|_| fits)?;
        Some(SessionId { text: text.to_owned(), capabilities })
    }

    fn digest(by: &Caller, random: &str, capabilities: &str) -> String {
        let bound = json!([identity(by), random, capabilities]);
        hex::encode(&Sha256::digest(bound.to_string().as_bytes())[..16])
    }
}

/// Requests of the server that wait for a response, by id.
type PendingRequests = HashMap<String, oneshot::Sender<Result<JsonValue, JsonValue>>>;

/// A session.
#[derive(Debug)]
pub(super) struct McpSession {
    id: String,
    /// The caller that has started it.
    owner: Caller,
    tenant: String,
    capabilities: JsonValue,
    /// Counts uses, so that the one that was not used for the longest time makes room.
    used: AtomicU64,
    level: AtomicUsize,
    subscriptions: watch::Sender<BTreeSet<String>>,
    /// Counts the subscriptions for the owner.
    hold: Mutex<Reservation>,
    /// Requests of the server, by id.
    pending_requests: Mutex<PendingRequests>,
    /// Requests of the client that are being answered, by their ids as JSON. The token cancels the answer.
    in_progress: Mutex<HashMap<String, AnswerInProgress>>,
    /// Counts the requests that were begun: a client can use an id twice.
    begun: AtomicU64,
    stream: Arc<Semaphore>,
    ended: CancellationToken,
}

impl McpSessions {
    /// Starts a session. If there are too many of the caller, or of the callers of its scope, the one of them that was
    /// not used for the longest time ends; if there are too many of all, one of the scope that has the most. `hold` counts
    /// the subscriptions of the session.
    pub(super) fn start(
        &self,
        owner: &Caller,
        tenant: String,
        capabilities: JsonValue,
        hold: Reservation,
    ) -> Arc<McpSession> {
        self.keep(owner, tenant, SessionId::new(owner, capabilities), hold)
    }

    fn keep(
        &self,
        owner: &Caller,
        tenant: String,
        id: SessionId,
        hold: Reservation,
    ) -> Arc<McpSession> {
        let SessionId { text: id, capabilities } = id;
        let session = Arc::new(McpSession {
            id,
            owner: owner.clone(),
            tenant: tenant.clone(),
            capabilities,
            used: AtomicU64::new(self.uses.fetch_add(1, Ordering::Relaxed)),
            level: AtomicUsize::new(0),
            subscriptions: watch::Sender::default(),
            hold: Mutex::new(hold),
            pending_requests: Mutex::default(),
            in_progress: Mutex::default(),
            begun: AtomicU64::new(0),
            stream: Arc::new(Semaphore::new(1)),
            ended: CancellationToken::new(),
        });
        let mut all = self.lock();
        // Another request has continued it in the meantime.
        if let Some(existing) = all.get(&session.id) {
            return Arc::clone(existing);
        }
        let own = all.values().filter(|other| other.tenant == tenant).count();
        let crowded = if own >= limits::MCP_SESSIONS_PER_CALLER {
            Some(tenant)
        } else if all.len() >= limits::MCP_SESSIONS {
            most_common(all.values().map(|other| &*other.tenant)).map(str::to_owned)
        } else {
            None
        };
        if let Some(crowded) = crowded {
            let candidates = all.values().filter(|other| other.tenant == crowded);
            let oldest = candidates.min_by_key(|other| other.used.load(Ordering::Relaxed)).cloned();
            if let Some(oldest) = oldest {
                all.remove(&oldest.id);
                oldest.ended.cancel();
            }
        }
        all.insert(session.id.clone(), Arc::clone(&session));
        session
    }

    /// Returns the session with this id, if it belongs to the caller. A session from before a restart continues;
    /// `parts` returns its tenant, and the reservation that counts its subscriptions.
    pub(super) fn find(
        &self,
        id: &str,
        by: &Caller,
        parts: impl FnOnce() -> (String, Reservation),
    ) -> Option<Arc<McpSession>> {
        let known = self.lock().get(id).cloned();
        let session = match known {
            Some(session) => session,
            None => {
                let id = SessionId::parse(id, by)?;
                if self.ended().contains(&id.text) {
                    return None;
                }
                let (tenant, hold) = parts();
                self.keep(by, tenant, id, hold)
            }
        };
        if session.owner != *by {
            return None;
        }
        session.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(session)
    }

    /// Ends a session. Its id is remembered, so that it is not continued.
    pub(super) fn end(&self, session: &McpSession) {
        self.lock().remove(&session.id);
        session.ended.cancel();
        let mut ended = self.ended();
        if ended.len() >= limits::MCP_SESSIONS {
            ended.pop_front();
        }
        ended.push_back(session.id.clone());
    }

    fn ended(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<McpSession>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what binds something in the memory of the server to its caller: the same subject of another issuer, or with another
/// role or scope, is another caller. The id of a caller contains its issuer.
pub(super) fn identity(by: &Caller) -> String {
    json!([by.id(), by.role(), by.scope(), by.own_scope()]).to_string()
}

/// Returns the key that occurs most often.
fn most_common<'a>(keys: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(key, _)| key)
}

impl McpSession {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn capabilities(&self) -> &JsonValue {
        &self.capabilities
    }

    /// Returns the least severe level of log messages for the client.
    pub(super) fn log_level(&self) -> &'static str {
        crate::mcp_handler::LEVELS[self.level.load(Ordering::Relaxed)]
    }

    /// Sets the least severe level. Returns `false` if there is no level of this name.
    pub(super) fn set_log_level(&self, name: &str) -> bool {
        let Some(level) = level_index(name) else { return false };
        self.level.store(level, Ordering::Relaxed);
        true
    }

    /// Adds a subscription. Returns `false` if the session has too many.
    pub(super) fn subscribe(&self, uri: &str) -> Result<bool, Refusal> {
        let mut outcome = Ok(true);
        self.subscriptions.send_if_modified(|uris| {
            let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
            if uris.contains(uri) {
                return false;
            }
            if uris.len() >= limits::MCP_SUBSCRIPTIONS {
                outcome = Ok(false);
                return false;
            }
            if let Err(refusal) = hold.grow(uri.len()) {
                outcome = Err(refusal);
                return false;
            }
            uris.insert(uri.to_owned())
        });
        outcome
    }

    /// Removes a subscription, if it exists.
    pub(super) fn unsubscribe(&self, uri: &str) {
        self.subscriptions.send_if_modified(|uris| {
            let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
            let is_removed = uris.remove(uri);
            if is_removed {
                hold.shrink(uri.len());
            }
            is_removed
        });
    }

    pub(super) fn subscriptions(&self) -> watch::Receiver<BTreeSet<String>> {
        self.subscriptions.subscribe()
    }

    /// Returns the right to be the stream of the session, of which there is one.
    pub(super) fn stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.stream).try_acquire_owned().ok()
    }

    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Registers a request of the server.
    pub(super) fn ask(self: &Arc<Self>) -> AskedRequest {
        // Not a counter: a response to a request from before a restart must not answer another request.
        let id = format!("abide-{}", uuid::Uuid::new_v4().simple());
        let (answer, response) = oneshot::channel();
        self.lock_pending_requests().insert(id.clone(), answer);
        AskedRequest { id, response, session: Arc::clone(self) }
    }

    /// Passes on the response to a request of the server. An unknown one is ignored: nothing waits for it any more.
    pub(super) fn respond(&self, id: &JsonValue, outcome: Result<JsonValue, JsonValue>) {
        let answer = id.as_str().and_then(|id| self.lock_pending_requests().remove(id));
        if let Some(answer) = answer {
            let _ = answer.send(outcome);
        }
    }

    fn lock_pending_requests(&self) -> MutexGuard<'_, PendingRequests> {
        self.pending_requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request of the client that the server begins to answer. While the returned value exists,
    /// [`McpSession::cancel`] with the id of the request cancels `cancelled`.
    pub(super) fn begin(
        self: &Arc<Self>,
        id: &JsonValue,
        cancelled: CancellationToken,
    ) -> InProgress {
        let id = id.to_string();
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        self.lock_in_progress().insert(id.clone(), AnswerInProgress { number, cancelled });
        InProgress { id, number, session: Arc::clone(self) }
    }

    /// Cancels a request of the client, if it is being answered.
    pub(super) fn cancel(&self, id: &JsonValue) {
        if let Some(answer) = self.lock_in_progress().get(&id.to_string()) {
            answer.cancelled.cancel();
        }
    }

    fn lock_in_progress(&self) -> MutexGuard<'_, HashMap<String, AnswerInProgress>> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of the server that waits for its response.
#[derive(Debug)]
pub(super) struct AskedRequest {
    pub(super) id: String,
    response: oneshot::Receiver<Result<JsonValue, JsonValue>>,
    session: Arc<McpSession>,
}

impl AskedRequest {
    /// Waits for the response. `None` if the session ends first.
    pub(super) async fn response(&mut self) -> Option<Result<JsonValue, JsonValue>> {
        tokio::select! {
            response = &mut self.response => response.ok(),
            () = self.session.ended.cancelled() => None,
        }
    }
}

impl Drop for AskedRequest {
    fn drop(&mut self) {
        self.session.lock_pending_requests().remove(&self.id);
    }
}

/// How an answer is cancelled.
#[derive(Debug)]
struct AnswerInProgress {
    number: u64,
    cancelled: CancellationToken,
}

/// A request of the client that is being answered and can be cancelled, until this is dropped.
#[derive(Debug)]
pub(super) struct InProgress {
    id: String,
    number: u64,
    session: Arc<McpSession>,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut in_progress = self.session.lock_in_progress();
        // A client that uses an id twice has replaced it.
        if in_progress.get(&self.id).is_some_and(|answer| answer.number == self.number) {
            in_progress.remove(&self.id);
        }
    }
}
