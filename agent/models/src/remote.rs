//! A provider across the network: sends a request, reads the stream, and gives up in time.
//!
//! Redirects are not followed: they would carry the key to whoever is pointed at. Nothing is retried
//! here; that is [`crate::Chain`]'s.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Response, Url};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::frames::Frames;
use crate::protocol::{Decoder, Gathered};
use crate::verdict;
use crate::{
    ModelError, ModelErrorKind, ModelEvent, ModelProvider, ModelRequest, ModelStream, Protocol,
    Secret,
};

/// The most bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// How long numbers of tokens, or the end of the stream, may take to follow a complete answer.
const AFTERMATH: Duration = Duration::from_secs(5);

/// How long a stream of which nothing more is wanted may take to end, so that its connection is used
/// again.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long nothing may come before the answer counts as stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Until the first token: models that think say little before. Any byte begins it anew.
    pub first: Duration,
    /// Between bytes from then on.
    pub between: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { first: Duration::from_secs(60), between: Duration::from_secs(30) }
    }
}

/// How to reach a provider.
#[derive(Clone)]
pub struct RemoteSettings {
    /// The name that it goes by.
    pub id: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// Where; the protocol's own place if absent.
    pub base_url: Option<String>,
    /// The key, if it wants one.
    pub key: Option<Secret>,
    /// Headers that go with every request.
    pub headers: BTreeMap<String, String>,
    /// Fields that go into the body of every request, over ours; null takes one out.
    pub extra: Map<String, Value>,
    /// When to give up.
    pub patience: Patience,
}

impl RemoteSettings {
    /// At the protocol's own place, without a key.
    pub fn new(id: impl Into<String>, protocol: Protocol) -> Self {
        Self {
            id: id.into(),
            protocol,
            base_url: None,
            key: None,
            headers: BTreeMap::new(),
            extra: Map::new(),
            patience: Patience::default(),
        }
    }
}

/// URLs, headers and extra fields may bear keys too, so none of them is shown.
impl fmt::Debug for RemoteSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, protocol, patience, .. } = self;
        let mut shown = f.debug_struct("RemoteSettings");
        shown.field("id", id).field("protocol", protocol).field("patience", patience);
        shown.finish_non_exhaustive()
    }
}

/// A provider across the network.
#[derive(Clone)]
pub struct Remote {
    shared: Arc<Shared>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { id, protocol, patience, .. } = &*self.shared;
        let mut shown = f.debug_struct("Remote");
        shown.field("id", id).field("protocol", protocol).field("patience", patience);
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
    patience: Patience,
    client: Client,
}

impl Remote {
    /// Makes ready; nothing is sent.
    ///
    /// # Errors
    /// One sentence: a URL, a header or a key that cannot be used.
    pub fn new(settings: RemoteSettings) -> Result<Self, String> {
        let RemoteSettings { id, protocol, base_url, key, headers, extra, patience } = settings;
        let base_url = base_url.as_deref().or(protocol.default_base_url());
        let base_url = base_url.ok_or("it has no `base_url`")?;
        let base_url: Url =
            base_url.parse().map_err(|error| format!("its `base_url` is no URL: {error}"))?;
        if !matches!(base_url.scheme(), "http" | "https") {
            return Err("its `base_url` is neither http nor https".to_owned());
        }
        // Who has installed one before us has installed one as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder();
        if base_url.host_str().is_some_and(is_here) {
            client = client.no_proxy();
        }
        let client = client
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(patience.first)
            .user_agent(concat!("abide/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("the HTTP client does not start: {}", causes(error)))?;
        let headers = all_headers(protocol, key.as_ref(), &headers)?;
        let shared = Shared { id, protocol, base_url, key, headers, extra, patience, client };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl ModelProvider for Remote {
    fn id(&self) -> &str {
        &self.shared.id
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let protocol = self.shared.protocol;
        let asking = Asking {
            shared: Arc::clone(&self.shared),
            asked: request.model.clone(),
            step: Step::Ask(Box::new(request)),
            frames: Frames::new(protocol.framing()),
            decoder: protocol.decoder(),
            gathered: Gathered::default(),
        };
        stream::unfold(asking, async |mut asking| {
            let told = asking.next().await?;
            Some((told, asking))
        })
        .boxed()
    }
}

/// A request on its way through.
struct Asking {
    shared: Arc<Shared>,
    asked: String,
    step: Step,
    frames: Frames,
    decoder: Box<dyn Decoder>,
    gathered: Gathered,
}

enum Step {
    Ask(Box<ModelRequest>),
    Read(Response),
    /// All is read; this is told behind the events that came before it.
    Fail(ModelError),
    Over,
}

impl Asking {
    /// The next event, or why there is none.
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.gathered.next_event() {
                return Some(Ok(event));
            }
            let next = match std::mem::replace(&mut self.step, Step::Over) {
                Step::Ask(request) => self.shared.ask(&request).await.map(Step::Read),
                Step::Read(response) => self.read(response).await,
                Step::Fail(error) => return Some(Err(self.shared.discreet(error))),
                Step::Over => return None,
            };
            self.step = next.unwrap_or_else(Step::Fail);
        }
    }

    /// Takes what comes next of the body.
    async fn read(&mut self, mut response: Response) -> Result<Step, ModelError> {
        let patience = self.shared.patience;
        let limit = match (self.gathered.is_complete(), self.gathered.has_begun()) {
            (true, _) => AFTERMATH,
            (false, true) => patience.between,
            (false, false) => patience.first,
        };
        let chunk = match timeout(limit, response.chunk()).await {
            Ok(Ok(chunk)) => chunk,
            // The answer is whole: asked again it would only cost again.
            _ if self.gathered.is_complete() => None,
            Ok(Err(error)) => return Err(cut_off(error)),
            Err(_) => return Err(stalled(limit)),
        };
        let (frames, decoder, gathered) = (&mut self.frames, &mut self.decoder, &mut self.gathered);
        let mut each = |frame: &str| match gathered.is_over() {
            true => Ok(()),
            false => decoder.frame(frame, gathered),
        };
        match &chunk {
            Some(bytes) => frames.feed(bytes, &mut each)?,
            None => frames.finish(&mut each)?,
        }
        if chunk.is_some() && !self.gathered.is_over() {
            return Ok(Step::Read(response));
        }
        self.decoder.close(&mut self.gathered);
        self.gathered.end(&self.shared.id, &self.asked)?;
        if chunk.is_some() {
            tokio::spawn(timeout(FAREWELL, drain(response)));
        }
        Ok(Step::Over)
    }
}

impl Shared {
    /// Sends the request and looks at how the answer begins.
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
        let first = self.patience.first;
        let response = timeout(first, sent).await.map_err(|_| stalled(first))?;
        let response = response.map_err(unreachable)?;
        if response.status().is_success() && !speaks_json(&response, self.protocol) {
            return Ok(response);
        }
        Err(self.refused(response).await)
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

    /// Why there is no stream.
    async fn refused(&self, response: Response) -> ModelError {
        let (status, headers) = (response.status(), response.headers().clone());
        if status.is_redirection() {
            let to = headers.get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
            let to = to.parse::<Url>().map(|to| to.origin().ascii_serialization());
            let to = to.unwrap_or_else(|_| "elsewhere".to_owned());
            let message = format!(
                "the provider points to {to} ({status}), and redirects are not followed: \
                 name the right place as its `base_url`"
            );
            return ModelError::new(ModelErrorKind::BadRequest, message);
        }
        // Where the rest does not come, the status says enough.
        let body = timeout(self.patience.first, beginning(response)).await.unwrap_or_default();
        if status.is_success() {
            return match serde_json::from_str::<Value>(&body) {
                Ok(body) if !body["error"].is_null() => verdict::of_event(&body),
                _ => ModelError::broken("the provider answered with JSON and not with a stream"),
            };
        }
        verdict::of_response(status.as_u16(), &headers, &body)
    }

    /// The error without the key, should the provider repeat it.
    fn discreet(&self, error: ModelError) -> ModelError {
        match &self.key {
            Some(key) => ModelError { message: key.strike_from(&error.message), ..error },
            None => error,
        }
    }
}

/// Whether a host is this machine, which no proxy need be asked for.
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
        let mut value = value.map_err(|_| "the key holds what no header may hold")?;
        value.set_sensitive(true);
        all.insert(name, value);
    }
    for (name, value) in headers {
        let parsed: HeaderName =
            name.parse().map_err(|_| format!("`{name}` is no name of a header"))?;
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| format!("the header `{name}` holds what no header may hold"))?;
        value.set_sensitive(true); // Some gateways are opened by headers of their own.
        all.insert(parsed, value);
    }
    Ok(all)
}

/// Whether a stream of events was asked for and one JSON text comes.
fn speaks_json(response: &Response, protocol: Protocol) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    protocol != Protocol::Ollama && kind.is_some_and(|kind| kind.starts_with("application/json"))
}

/// The beginning of a body, as text.
async fn beginning(mut response: Response) -> String {
    let mut body = Vec::new();
    while body.len() < REFUSAL_BYTES_MAX
        && let Ok(Some(chunk)) = response.chunk().await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(REFUSAL_BYTES_MAX);
    String::from_utf8_lossy(&body).into_owned()
}

/// Reads what is left, which is at most an empty chunk.
async fn drain(mut response: Response) {
    while let Ok(Some(_)) = response.chunk().await {}
}

fn stalled(limit: Duration) -> ModelError {
    let message = format!("the provider was silent for {limit:?}");
    ModelError::new(ModelErrorKind::Stalled, message)
}

fn unreachable(error: reqwest::Error) -> ModelError {
    let message = format!("the provider cannot be reached: {}", causes(error));
    ModelError::new(ModelErrorKind::Unavailable, message)
}

fn cut_off(error: reqwest::Error) -> ModelError {
    ModelError::broken(format!("the stream was cut off: {}", causes(error)))
}

/// An error and what caused it. Without its URL, in which some gateways want a key.
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
