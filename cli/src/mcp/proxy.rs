//! Passes messages between a client on stdin and stdout and the endpoint of a server. Requests that a lost connection
//! leaves without an answer are sent again: a call has an idempotency key, so that it is the same call.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_schema::{Refusal, integers};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value as JsonValue, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::endpoint::{Endpoint, SendError};
use super::legacy_session::{LegacySession, VERSION};
use super::lines::{self, Line};
use super::subscription::Subscription;

/// How long a request waits for a server that does not answer, such as one that is being restarted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// How long requests may take after stdin was closed.
const LAST_REQUESTS: Duration = Duration::from_secs(60);

/// How long a call that the client has cancelled may take to stop.
const LAST_ANSWER: Duration = Duration::from_secs(5);

/// Requests that are open at the same time. More are refused: if the proxy waited, it would not read the cancellations
/// and the answers to forms that end the open ones.
const AT_ONCE: usize = 256;

/// Notifications and responses of the client that wait to be sent. A server that does not answer holds up only these:
/// further ones are dropped, so that the proxy goes on reading.
const QUEUED_NOTIFICATIONS: usize = 256;

/// The version of a request of 2026-07-28, in its `_meta`.
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// The idempotency key of a call, in its `_meta`.
const REQUEST_ID: &str = "abide/request_id";

/// A client and its server.
pub(super) struct Proxy {
    endpoint: Endpoint,
    /// Held while a message is written.
    writing: tokio::sync::Mutex<()>,
    session: tokio::sync::Mutex<LegacySession>,
    /// Requests without an answer, by id.
    in_progress: Mutex<HashMap<String, InProgress>>,
}

/// A request without an answer.
#[derive(Clone)]
struct InProgress {
    cancelled: CancellationToken,
    /// The idempotency key of a call.
    key: Option<String>,
}

/// A request on its way.
struct PendingRequest {
    message: JsonValue,
    subscription: Option<Subscription>,
    /// Whether the server has received the last attempt.
    is_reached: bool,
    cancelled: CancellationToken,
}

/// The tasks of messages of the client.
#[derive(Default)]
struct Tasks {
    requests: JoinSet<()>,
    /// The stream of the session, and subscriptions: they do not end by themselves.
    streams: JoinSet<()>,
}

impl Proxy {
    pub(super) fn new(endpoint: Endpoint) -> Proxy {
        Proxy {
            endpoint,
            writing: tokio::sync::Mutex::default(),
            session: tokio::sync::Mutex::default(),
            in_progress: Mutex::default(),
        }
    }

    /// Passes messages until stdin ends.
    pub(super) async fn run(self: &Arc<Self>) -> io::Result<()> {
        let mut lines = lines::read_stdin();
        let (notifications, queue) = mpsc::channel(QUEUED_NOTIFICATIONS);
        let mut sender = JoinSet::new();
        sender.spawn(Arc::clone(self).send_notifications(queue));
        let mut tasks = Tasks::default();
        while let Some(line) = lines.recv().await {
            let Line::Text(text) = line? else {
                self.write_error(&JsonValue::Null, -32600, "the message is too long").await?;
                continue;
            };
            if text.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<JsonValue>(&text) {
                Ok(message) if is_message(&message) => {
                    self.dispatch(message, &mut tasks, &notifications).await?;
                }
                Ok(other) => {
                    let why = "the line is not one message of JSON-RPC 2.0";
                    self.write_error(&other["id"], -32600, why).await?;
                }
                Err(why) => self.refuse_line(&text, &why).await?,
            }
        }
        drop(notifications);
        let answered = async {
            while tasks.requests.join_next().await.is_some() {}
            sender.join_next().await;
        };
        // The client has gone; what its calls have started continues.
        let _ = timeout(LAST_REQUESTS, answered).await;
        let session = self.session.lock().await;
        if session.has_begun() {
            let ended = self.endpoint.delete(session.headers());
            let _ = timeout(PAUSE, ended).await;
        }
        Ok(())
    }

    async fn dispatch(
        self: &Arc<Self>,
        message: JsonValue,
        tasks: &mut Tasks,
        notifications: &mpsc::Sender<JsonValue>,
    ) -> io::Result<()> {
        let proxy = Arc::clone(self);
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let is_request = !method.is_empty() && message.get("id").is_some();
        match method.as_str() {
            "subscriptions/listen" if is_request => {
                while tasks.streams.try_join_next().is_some() {}
                tasks.streams.spawn(async move { proxy.handle_request(message).await });
            }
            _ if is_request => {
                while tasks.requests.try_join_next().is_some() {}
                if tasks.requests.len() >= AT_ONCE {
                    let why = format!("{AT_ONCE} requests are open; wait for an answer");
                    return self.write_error(&message["id"], -32603, &why).await;
                }
                tasks.requests.spawn(async move { proxy.handle_request(message).await });
            }
            _ => {
                if notifications.try_send(message).is_err() {
                    tracing::warn!(
                        name: "mcp_message_dropped",
                        %method,
                        "a message of the client is dropped: too many wait"
                    );
                }
                if method == "notifications/initialized" && tasks.streams.is_empty() {
                    tasks.streams.spawn(async move { proxy.follow_session().await });
                }
            }
        }
        Ok(())
    }

    /// Sends the notifications of the client, and its responses to requests of the server, in their order.
    async fn send_notifications(self: Arc<Self>, mut queue: mpsc::Receiver<JsonValue>) {
        while let Some(message) = queue.recv().await {
            if message["method"] == "notifications/cancelled" {
                self.cancel(message).await;
            } else {
                self.notify(&message).await;
            }
        }
    }

    /// Sends a notification, or a response to a request of the server.
    async fn notify(&self, message: &JsonValue) {
        let headers = self.request_headers(message).await;
        if let Err(why) = self.endpoint.post(message, headers).await {
            tracing::warn!(
                name: "mcp_message_lost",
                ?why,
                "a message of the client did not reach the server"
            );
        }
    }

    /// Cancels a request. The server gets the notification first, so that it stops the work.
    async fn cancel(&self, mut message: JsonValue) {
        let id = message["params"]["requestId"].to_string();
        let entry = self.lock_in_progress().get(&id).cloned();
        let Some(InProgress { cancelled, key }) = entry else { return };
        if let Some(key) = key {
            message["params"]["_meta"][REQUEST_ID] = json!(key);
        }
        self.notify(&message).await;
        cancelled.cancel();
    }

    /// Passes a request to the server and the answer to the client, until it is answered or cancelled.
    async fn handle_request(self: Arc<Self>, mut message: JsonValue) {
        let id = message["id"].to_string();
        let key = ensure_request_id(&mut message);
        let cancelled = CancellationToken::new();
        let entry = InProgress { cancelled: cancelled.clone(), key };
        self.lock_in_progress().insert(id.clone(), entry);
        let mut pending = PendingRequest {
            subscription: Subscription::from_request(&message),
            message,
            is_reached: false,
            cancelled: cancelled.clone(),
        };
        let is_call = pending.message["method"] == "tools/call";
        let mut sending = std::pin::pin!(self.send_until_answered(&mut pending));
        let answered = tokio::select! {
            answered = &mut sending => answered,
            () = cancelled.cancelled() => {
                // A cancelled call is still answered, if it stops soon.
                if is_call { timeout(LAST_ANSWER, sending).await.unwrap_or(Ok(())) } else { Ok(()) }
            }
        };
        self.lock_in_progress().remove(&id);
        if let Err(why) = answered {
            // The client has closed its end of the pipe.
            tracing::debug!(error = %why, "a message did not reach the client");
        }
    }

    /// Sends a request until it is answered, and passes the answer on.
    async fn send_until_answered(&self, pending: &mut PendingRequest) -> io::Result<()> {
        let mut silent_since = Instant::now();
        loop {
            let session = self.session.lock().await.number;
            pending.is_reached = false;
            let failed = match self.send_once(pending).await {
                Ok(answered) => return answered,
                Err(failed) => failed,
            };
            if pending.is_reached {
                silent_since = Instant::now();
            }
            let failed = match failed {
                SendError::SessionGone => match self.renew(session).await {
                    Ok(()) => continue,
                    Err(failed) => failed,
                },
                other => other,
            };
            let why = match failed {
                SendError::Lost(_) | SendError::SessionGone
                    if silent_since.elapsed() < PATIENCE =>
                {
                    sleep(PAUSE).await;
                    continue;
                }
                SendError::Lost(why) => format!("the server does not respond: {why}"),
                SendError::SessionGone => "the server does not keep the session".to_owned(),
                SendError::Refused(why) => why,
            };
            return self.write_error(&pending.message["id"], -32603, &why).await;
        }
    }

    /// Sends a request once. The outer error is that of the server, the inner one that of the client.
    async fn send_once(&self, pending: &mut PendingRequest) -> Result<io::Result<()>, SendError> {
        let PendingRequest { message, subscription, is_reached, cancelled } = pending;
        let headers = self.request_headers(message).await;
        let mut answer = self.endpoint.post(message, headers).await?;
        *is_reached = true;
        while let Some(received) = answer.next().await? {
            let is_last = received["id"] == message["id"] && received["method"].is_null();
            let is_ok = received["error"].is_null();
            if is_last && (is_stopping(&received) || (is_ok && subscription.is_some())) {
                break;
            }
            if is_last && is_ok {
                let mut session = self.session.lock().await;
                match message["method"].as_str() {
                    Some("initialize") => session.start(answer.session.take(), message, &received),
                    _ => session.note_answered(message),
                }
            }
            let messages = match subscription {
                Some(subscription) => subscription.translate(received),
                None => vec![received],
            };
            for message in messages.iter().filter(|_| !cancelled.is_cancelled()) {
                if let Err(why) = self.write_message(message).await {
                    return Ok(Err(why));
                }
            }
            if is_last {
                return Ok(Ok(()));
            }
        }
        Err(SendError::Lost("the connection ended before the response".to_owned()))
    }

    /// Starts the session of the client again, unless another request has done so.
    async fn renew(&self, number: u64) -> Result<(), SendError> {
        let mut session = self.session.lock().await;
        if session.number != number {
            return Ok(());
        }
        session.renew(&self.endpoint).await?;
        for message in session.missed_notifications() {
            // An error shows when the request is answered.
            let _ = self.write_message(&message).await;
        }
        Ok(())
    }

    /// Passes the notifications of the session on.
    async fn follow_session(self: Arc<Self>) {
        loop {
            let (number, headers) = {
                let session = self.session.lock().await;
                (session.number, session.headers())
            };
            let ended = match self.endpoint.get(headers).await {
                Ok(mut answer) => loop {
                    match answer.next().await {
                        Ok(Some(message)) if self.write_message(&message).await.is_err() => return,
                        Ok(Some(_)) => {}
                        Ok(None) => break None,
                        Err(why) => break Some(why),
                    }
                },
                Err(why) => Some(why),
            };
            match ended {
                Some(SendError::Refused(why)) => {
                    tracing::debug!(why, "there are no notifications");
                    return;
                }
                Some(SendError::SessionGone) if self.renew(number).await.is_ok() => {}
                // A server that has restarted knows the session, and not its subscriptions.
                _ => {
                    sleep(PAUSE).await;
                    let _ = self.renew(number).await;
                }
            }
        }
    }

    /// The headers of a message: those of 2026-07-28 say what the message says, those before name the session.
    async fn request_headers(&self, message: &JsonValue) -> HeaderMap {
        let params = &message["params"];
        let method = message["method"].as_str().unwrap_or_default();
        let Some(version) = params["_meta"][META_VERSION].as_str() else {
            return match method {
                "initialize" => HeaderMap::new(),
                _ => self.session.lock().await.headers(),
            };
        };
        let member = match method {
            "tools/call" | "prompts/get" => "name",
            "resources/read" => "uri",
            _ => "taskId",
        };
        let mut headers = HeaderMap::new();
        let name = params[member].as_str().map(encode_header);
        for (header, value) in [
            (VERSION, Some(version)),
            (HeaderName::from_static("mcp-method"), Some(method)),
            (HeaderName::from_static("mcp-name"), name.as_deref()),
        ] {
            if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
                headers.insert(header, value);
            }
        }
        headers
    }

    /// Refuses a line that cannot be parsed. Half a surrogate pair is JSON: its sender waits for a response to its request.
    async fn refuse_line(&self, line: &[u8], why: &serde_json::Error) -> io::Result<()> {
        let text = String::from_utf8_lossy(line);
        let Err(found) = integers::check_surrogates(&text) else {
            return self.write_error(&JsonValue::Null, -32700, &format!("not JSON: {why}")).await;
        };
        let message: JsonValue =
            serde_json::from_str(&integers::readable(line)).unwrap_or_default();
        let is_request = message["method"].is_string();
        let id = if is_request { message["id"].clone() } else { JsonValue::Null };
        let refusal = Refusal::from(found);
        let error = json!({"code": -32602, "message": refusal.detail,
            "data": {"code": refusal.code.as_str(), "hint": refusal.hint}});
        self.write_message(&json!({"jsonrpc": "2.0", "id": id, "error": error})).await
    }

    async fn write_error(&self, id: &JsonValue, code: i64, why: &str) -> io::Result<()> {
        let error = json!({"code": code, "message": why});
        self.write_message(&json!({"jsonrpc": "2.0", "id": id, "error": error})).await
    }

    async fn write_message(&self, message: &JsonValue) -> io::Result<()> {
        let text = format!("{message}\n");
        let _writing = self.writing.lock().await;
        // A client that does not read blocks this thread only.
        let written = tokio::task::spawn_blocking(move || {
            let mut stdout = io::stdout().lock();
            stdout.write_all(text.as_bytes())?;
            stdout.flush()
        });
        written.await.map_err(io::Error::other)?
    }

    fn lock_in_progress(&self) -> MutexGuard<'_, HashMap<String, InProgress>> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it looks like a request, a notification or a response. The server checks the rest.
fn is_message(value: &JsonValue) -> bool {
    let is_response = value["method"].is_null() && !value["id"].is_null();
    value["jsonrpc"] == "2.0" && (value["method"].is_string() || is_response)
}

/// The idempotency key of a call. It gets one if it has none.
fn ensure_request_id(message: &mut JsonValue) -> Option<String> {
    if message["method"] != "tools/call" || !message["params"].is_object() {
        return None;
    }
    let meta = &mut message["params"]["_meta"];
    if meta.is_null() || (meta.is_object() && meta[REQUEST_ID].is_null()) {
        meta[REQUEST_ID] = json!(Uuid::new_v4().to_string());
    }
    meta.get(REQUEST_ID).and_then(JsonValue::as_str).map(str::to_owned)
}

/// Whether the server stops, while what the request has started continues after its next start.
fn is_stopping(answer: &JsonValue) -> bool {
    answer["error"]["code"] == -32603 && answer["error"]["data"]["run_id"].is_string()
}

/// A value as a header has it: what is not visible ASCII is encoded.
fn encode_header(value: &str) -> String {
    let is_plain = value.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        && value.trim() == value
        && !value.starts_with("=?");
    if is_plain { value.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(value)) }
}
