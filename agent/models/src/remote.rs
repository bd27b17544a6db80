//! A network provider: sends a request, reads the stream, and applies timeouts.
//!
//! Redirects are not followed, because they would send the key to another server. [`crate::Chain`] does the
//! retries.

mod embed;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Response, Url};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use crate::classify;
use crate::frames::{Frame, Frames};
use crate::protocol::{Decoder, PartialResponse};
use crate::{
    EmbeddingRequest, Embeddings, ModelError, ModelErrorKind, ModelEvent, ModelProvider,
    ModelRequest, ModelStream, Protocol, Secret,
};

/// Maximum number of bytes of an error response that are read.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Maximum time that token counts or the end of the stream may take after a complete answer.
const AFTERMATH: Duration = Duration::from_secs(5);

/// The settings of the timeouts, for errors.
const FIRST_SETTING: &str = "first_token_timeout_seconds";
const IDLE_SETTING: &str = "idle_timeout_seconds";
const CONTENT_SETTING: &str = "content_timeout_seconds";

/// Maximum time to wait for the end of a stream that is no longer needed, so that its connection can be reused.
const FAREWELL: Duration = Duration::from_secs(1);

/// Timeouts after which a request has stalled: without a byte, and without a part of the answer.
///
/// A provider that thinks, or that writes the arguments of a call, keeps the connection open with comments and empty events. They
/// restart the timeouts of bytes. The timeout of content bounds how long a provider can do that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallTimeouts {
    /// Until the first token: reasoning models send little before it. Any byte restarts it.
    pub first: Duration,
    /// Between bytes after that.
    pub between: Duration,
    /// Until the first part of the answer, and between two parts: text, reasoning, or a part of a call.
    pub content: Duration,
}

impl Default for StallTimeouts {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(60),
            between: Duration::from_secs(30),
            content: Duration::from_secs(600),
        }
    }
}

/// The settings of a network provider.
#[derive(Clone)]
pub struct RemoteSettings {
    /// The id.
    pub id: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The base URL; the default is that of the protocol.
    pub base_url: Option<String>,
    /// The key, if one is needed.
    pub key: Option<Secret>,
    /// Headers to add to every request.
    pub headers: BTreeMap<String, String>,
    /// Fields to set in the body of every request. They override ours; null removes a field.
    pub extra: Map<String, Value>,
    /// Timeouts.
    pub stall_timeouts: StallTimeouts,
    /// Whether an answer of Chat Completions without a `finish_reason` is an error. If not, a text is accepted that `[DONE]` ends.
    /// Calls always need a reason.
    pub requires_stop_reason: bool,
}

impl RemoteSettings {
    /// Settings with the protocol's default URL and without a key.
    pub fn new(id: impl Into<String>, protocol: Protocol) -> Self {
        Self {
            id: id.into(),
            protocol,
            base_url: None,
            key: None,
            headers: BTreeMap::new(),
            extra: Map::new(),
            stall_timeouts: StallTimeouts::default(),
            requires_stop_reason: true,
        }
    }
}

/// URLs, headers and extra fields may contain keys, so they are omitted.
impl fmt::Debug for RemoteSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, protocol, stall_timeouts, .. } = self;
        let mut shown = f.debug_struct("RemoteSettings");
        shown.field("id", id).field("protocol", protocol).field("stall_timeouts", stall_timeouts);
        shown.finish_non_exhaustive()
    }
}

/// A network provider.
#[derive(Clone)]
pub struct Remote {
    shared: Arc<Shared>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { id, protocol, stall_timeouts, .. } = &*self.shared;
        let mut shown = f.debug_struct("Remote");
        shown.field("id", id).field("protocol", protocol).field("stall_timeouts", stall_timeouts);
        shown.finish_non_exhaustive()
    }
}

struct Shared {
    id: String,
    protocol: Protocol,
    base_url: Url,
    key: Option<Secret>,
    headers: HeaderMap,
    extra: Map<String, Value>,
    stall_timeouts: StallTimeouts,
    requires_stop_reason: bool,
    client: Client,
}

impl Remote {
    /// Creates the client; nothing is sent.
    ///
    /// # Errors
    /// One sentence: the URL, a header or the key is invalid.
    pub fn new(settings: RemoteSettings) -> Result<Self, String> {
        let RemoteSettings {
            id,
            protocol,
            base_url,
            key,
            headers,
            extra,
            stall_timeouts,
            requires_stop_reason,
        } = settings;
        let base_url: Url = base_url
            .as_deref()
            .or(protocol.default_base_url())
            .ok_or("it has no `base_url`")?
            .parse()
            .map_err(|error| format!("its `base_url` is not a valid URL: {error}"))?;
        if !matches!(base_url.scheme(), "http" | "https") {
            return Err("its `base_url` must begin with http or https".to_owned());
        }
        // An error means that a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder();
        if base_url.host_str().is_some_and(is_here) {
            client = client.no_proxy();
        }
        let client = client
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(stall_timeouts.first)
            .user_agent(concat!("abide/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("cannot create the HTTP client: {}", causes(error)))?;
        if key.as_ref().is_some_and(|key| !key.expose().is_empty() && !key.is_struck()) {
            let why =
                "the key is shorter than 12 characters, so it is not removed from error messages";
            tracing::warn!(name: "model_key_short", provider = id, "{why}");
        }
        let headers = all_headers(protocol, key.as_ref(), &headers)?;
        let shared = Shared {
            id,
            protocol,
            base_url,
            key,
            headers,
            extra,
            stall_timeouts,
            requires_stop_reason,
            client,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl ModelProvider for Remote {
    fn id(&self) -> &str {
        &self.shared.id
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let protocol = self.shared.protocol;
        let asking = RequestStream {
            shared: Arc::clone(&self.shared),
            asked: request.model.clone(),
            step: Step::Ask(Box::new(request)),
            frames: Frames::new(protocol.framing()),
            has_frames: false,
            decoder: protocol.decoder(self.shared.requires_stop_reason),
            gathered: PartialResponse::default(),
            without_content: Duration::ZERO,
            content_bytes: 0,
        };
        stream::unfold(asking, async |mut asking| {
            let item = asking.next().await?;
            Some((item, asking))
        })
        .boxed()
    }

    fn embed(
        &self,
        request: EmbeddingRequest,
    ) -> BoxFuture<'static, Result<Embeddings, ModelError>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let embedded = shared.embed(&request).await;
            embedded.map_err(|error| shared.without_key(error))
        })
    }
}

/// The state of a request.
struct RequestStream {
    shared: Arc<Shared>,
    asked: String,
    step: Step,
    frames: Frames,
    /// Whether the provider has sent any JSON object.
    has_frames: bool,
    decoder: Box<dyn Decoder>,
    gathered: PartialResponse,
    /// How long the body was read since the last part of the answer arrived, or the response began. The time in which the caller
    /// does not ask for the next event is not the provider's.
    without_content: Duration,
    /// The size of the answer when that part arrived.
    content_bytes: usize,
}

enum Step {
    Ask(Box<ModelRequest>),
    Read(Response),
    /// The stream has ended; return this after the remaining events.
    Fail(ModelError),
    Over,
}

impl RequestStream {
    /// Returns the next event, or the error.
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.gathered.next_event() {
                return Some(Ok(event));
            }
            let next = match std::mem::replace(&mut self.step, Step::Over) {
                Step::Ask(request) => {
                    let asked = self.shared.ask(&request).await;
                    self.without_content = Duration::ZERO;
                    asked.map(Step::Read)
                }
                Step::Read(response) => self.read(response).await,
                Step::Fail(error) => return Some(Err(self.shared.without_key(error))),
                Step::Over => return None,
            };
            self.step = next.unwrap_or_else(Step::Fail);
        }
    }

    /// Returns how long to wait for the next chunk of the body, and the error if none arrives in this time.
    fn patience(&self) -> (Duration, ModelError) {
        let StallTimeouts { first, between, content } = self.shared.stall_timeouts;
        let (limit, setting) = if self.gathered.has_begun() {
            (between, IDLE_SETTING)
        } else {
            (first, FIRST_SETTING)
        };
        let content = if self.gathered.is_complete() { content.min(AFTERMATH) } else { content };
        let rest = content.saturating_sub(self.without_content);
        if rest < limit {
            (rest, without_content(content))
        } else {
            (limit, stalled(limit, setting))
        }
    }

    /// Reads the next chunk of the body.
    async fn read(&mut self, mut response: Response) -> Result<Step, ModelError> {
        let (limit, stalled) = self.patience();
        let began = Instant::now();
        // A provider that always has a further byte never lets a timer expire.
        let next = if limit.is_zero() {
            Err(stalled)
        } else {
            match timeout(limit, response.chunk()).await {
                Ok(chunk) => chunk.map_err(cut_off),
                Err(_) => Err(stalled),
            }
        };
        let (chunk, is_cut) = match next {
            Ok(chunk) => (chunk, false),
            // The answer is complete; a retry would only cost more.
            Err(_) if self.gathered.is_complete() => (None, true),
            Err(error) => return Err(error),
        };
        let frames = &mut self.frames;
        let decoder = &mut self.decoder;
        let gathered = &mut self.gathered;
        let has_frames = &mut self.has_frames;
        let mut each = |frame: Frame<'_>| {
            *has_frames |= frame.data.trim_start().starts_with('{');
            gathered.take(decoder.as_mut(), frame)
        };
        match &chunk {
            Some(bytes) => frames.feed(bytes, &mut each)?,
            // What has arrived of the next frame is not needed.
            None if is_cut => {}
            None => frames.finish(&mut each)?,
        }
        let bytes = self.gathered.content_bytes();
        if bytes == self.content_bytes {
            self.without_content += began.elapsed();
        } else {
            self.content_bytes = bytes;
            self.without_content = Duration::ZERO;
        }
        if chunk.is_some() && !self.gathered.is_over() {
            return Ok(Step::Read(response));
        }
        self.decoder.close(&mut self.gathered);
        if self.has_frames && self.gathered.is_untouched() {
            return Err(self.shared.foreign());
        }
        self.gathered.end(&self.shared.id, &self.asked)?;
        if chunk.is_some() {
            tokio::spawn(timeout(FAREWELL, drain(response)));
        }
        Ok(Step::Over)
    }
}

impl Shared {
    /// Sends the request and checks the response headers.
    async fn ask(&self, request: &ModelRequest) -> Result<Response, ModelError> {
        let mut body = self.protocol.body(request);
        if let Some(body) = body.as_object_mut() {
            body.extend(self.extra.clone());
            body.retain(|field, value| !(value.is_null() && self.extra.contains_key(field)));
        }
        let sent = self
            .client
            .post(self.url(&request.model))
            .headers(self.headers.clone())
            .body(body.to_string())
            .send();
        let first = self.stall_timeouts.first;
        let response = timeout(first, sent).await.map_err(|_| stalled(first, FIRST_SETTING))?;
        let response = response.map_err(unreachable)?;
        if response.status().is_success() && has_content_type(&response, "text/html") {
            let why = "the provider responded with a web page instead of a stream: check its \
                       `base_url` and whether a login is required";
            return Err(ModelError::invalid_response(why));
        }
        if response.status().is_success() && !speaks_json(&response, self.protocol) {
            return Ok(response);
        }
        Err(self.response_error(response).await)
    }

    /// Returns the error of a stream in the format of another protocol. A retry would get the same.
    fn foreign(&self) -> ModelError {
        let message = format!(
            "provider `{}` does not respond in the format of its kind `{}`: correct its `kind` or \
             its `base_url`",
            self.id,
            self.protocol.kind()
        );
        ModelError::new(ModelErrorKind::BadRequest, message)
    }

    fn url(&self, model: &str) -> Url {
        let (path, query) = self.protocol.path(model);
        let mut url = self.base_url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path.split('/'));
        }
        if let Some((name, value)) = query {
            url.query_pairs_mut().append_pair(name, value);
        }
        url
    }

    /// Returns the error of a response without a stream.
    async fn response_error(&self, response: Response) -> ModelError {
        let status = response.status();
        let headers = response.headers().clone();
        if status.is_redirection() {
            let location = headers.get(LOCATION).and_then(|to| to.to_str().ok());
            let to = match location.unwrap_or_default().parse::<Url>() {
                Ok(url) => url.origin().ascii_serialization(),
                Err(_) => "elsewhere".to_owned(),
            };
            let message = format!(
                "the provider redirects to {to} ({status}), and redirects are not followed: \
                 name the right place as its `base_url`"
            );
            return ModelError::new(ModelErrorKind::BadRequest, message);
        }
        // If the body does not arrive, the status is sufficient.
        let body =
            timeout(self.stall_timeouts.first, read_beginning(response)).await.unwrap_or_default();
        if status.is_success() {
            return match serde_json::from_str::<Value>(&body) {
                Ok(body)
                    if classify::is_error(&body["error"])
                        || body["choices"].is_null() && classify::reports_error(&body) =>
                {
                    classify::error_from_event(&body)
                }
                _ => ModelError::invalid_response(
                    "the provider responded with JSON instead of a stream",
                ),
            };
        }
        classify::error_from_response(status.as_u16(), &headers, &body)
    }

    /// Removes the key from an error, in case the provider repeats it.
    fn without_key(&self, error: ModelError) -> ModelError {
        match &self.key {
            Some(key) => ModelError { message: key.strike_from(&error.message), ..error },
            None => error,
        }
    }
}

/// Returns `true` if a host is this machine, which is reached without a proxy.
fn is_here(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn all_headers(
    protocol: Protocol,
    key: Option<&Secret>,
    headers: &BTreeMap<String, String>,
) -> Result<HeaderMap, String> {
    let mut all = HeaderMap::new();
    all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some((name, value)) = protocol.fixed_header() {
        all.insert(name, HeaderValue::from_static(value));
    }
    if let Some(key) = key {
        let (name, before) = protocol.key_header();
        let value = HeaderValue::from_str(&format!("{before}{}", key.expose()));
        let mut value =
            value.map_err(|_| "the key has characters that are not allowed in a header")?;
        value.set_sensitive(true);
        all.insert(name, value);
    }
    for (name, value) in headers {
        let parsed: HeaderName =
            name.parse().map_err(|_| format!("`{name}` is not a valid header name"))?;
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| format!("header `{name}` has characters that are not allowed"))?;
        value.set_sensitive(true); // Some gateways are opened by headers of their own.
        all.insert(parsed, value);
    }
    Ok(all)
}

/// Returns `true` if the response is a single JSON text instead of a stream of events.
fn speaks_json(response: &Response, protocol: Protocol) -> bool {
    protocol != Protocol::Ollama && has_content_type(response, "application/json")
}

/// Returns `true` if the response states this media type. Its case and its parameters do not matter.
fn has_content_type(response: &Response, expected: &str) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case(expected)
}

/// Returns the first bytes of a body, as text.
async fn read_beginning(mut response: Response) -> String {
    let mut body = Vec::new();
    while body.len() < REFUSAL_BYTES_MAX
        && let Ok(Some(chunk)) = response.chunk().await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(REFUSAL_BYTES_MAX);
    String::from_utf8_lossy(&body).into_owned()
}

/// Reads the rest, which is at most an empty chunk.
async fn drain(mut response: Response) {
    while let Ok(Some(_)) = response.chunk().await {}
}

fn stalled(limit: Duration, setting: &str) -> ModelError {
    let message = format!("the provider sent no data for {limit:?} ({setting})");
    ModelError::new(ModelErrorKind::Stalled, message)
}

fn without_content(limit: Duration) -> ModelError {
    let message = format!(
        "the provider kept the connection open for {limit:?} without a part of the answer ({CONTENT_SETTING})"
    );
    ModelError::new(ModelErrorKind::Stalled, message)
}

fn unreachable(error: reqwest::Error) -> ModelError {
    let message = format!("the provider cannot be reached: {}", causes(error));
    ModelError::new(ModelErrorKind::Unavailable, message)
}

fn cut_off(error: reqwest::Error) -> ModelError {
    ModelError::invalid_response(format!(
        "the connection was lost during the stream: {}",
        causes(error)
    ))
}

/// Returns an error and its causes, without the URL, which may contain a key.
fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut causes = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        causes = format!("{causes}: {deeper}");
        cause = deeper.source();
    }
    causes
}
