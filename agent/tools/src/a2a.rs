//! A client of A2A 1.0 and 0.3 over JSON-RPC: the card of a remote agent, and operations on its tasks.
//!
//! It keeps no state: the caller stores what it has sent, and the id of the task. It connects to public addresses only,
//! unless the configuration permits others. Headers can contain credentials, so they are sent only to the origin of the card.

mod config;
mod events;
mod failure;
mod legacy;
mod response;

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Method, Request, Response, StatusCode, Url};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::media_type::{EVENT_STREAM, media_type};
use crate::public_address::{self, PermittedHosts};
use abide_sandbox::Environment;

pub use config::A2aConfig;
pub use events::A2aEvents;
pub use failure::A2aFailure;
pub use response::A2aEvent;
use response::{ProtocolVersion, REQUEST_ID, host, result_of};

/// The version of the protocol.
const VERSION: &str = "1.0";

/// Maximum size of a card, in bytes.
const CARD_BYTES: usize = 1 << 20;

/// A remote agent whose card was read.
#[derive(Clone, Debug)]
pub struct A2aClient {
    http: A2aHttp,
    /// The address of its JSON-RPC interface.
    url: Url,
    headers: HeaderMap,
    tenant: Option<String>,
    streams: bool,
    reads_data: bool,
    /// The agent speaks version 0.3 only.
    version: ProtocolVersion,
}

/// Bounded requests to permitted hosts.
#[derive(Clone, Debug)]
struct A2aHttp {
    client: Client,
    hosts: PermittedHosts,
    /// Maximum size of an answer or of an event, in bytes.
    max_bytes: usize,
    /// Maximum time until an answer begins.
    timeout: Duration,
}

impl A2aClient {
    /// Reads the card of an agent.
    ///
    /// # Errors
    /// [`A2aFailure`]: the card cannot be read, or it offers no interface that this client speaks.
    pub async fn connect(
        config: &A2aConfig,
        environment: &Environment,
    ) -> Result<A2aClient, A2aFailure> {
        let headers = config.header_map(environment)?;
        let http = A2aHttp::new(config)?;
        let at = config.card_url()?;
        let mut request = Request::new(Method::GET, at.clone());
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(ACCEPT, JSON);
        let response = http.send(request).await?;
        let text = http.read_text(response, CARD_BYTES).await?;
        let card: Value = serde_json::from_str(&text).map_err(|_| {
            A2aFailure::Invalid(format!("{} has no card: the response is not JSON", host(&at)))
        })?;
        A2aClient::from_card(http, &at, headers, &card)
    }

    fn from_card(
        http: A2aHttp,
        at: &Url,
        headers: HeaderMap,
        card: &Value,
    ) -> Result<A2aClient, A2aFailure> {
        let all = card["supportedInterfaces"].as_array().map(Vec::as_slice).unwrap_or_default();
        let interface = all.iter().find(|it| {
            let version = it["protocolVersion"].as_str().unwrap_or_default();
            it["protocolBinding"] == "JSONRPC" && version.split('.').next() == Some("1")
        });
        let url = match interface {
            Some(interface) => Some(interface["url"].as_str().unwrap_or_default()),
            None => legacy::interface(card),
        };
        let Some(url) = url else {
            let why = format!("the card of {} offers no JSON-RPC of A2A 1.0 or 0.3", host(at));
            return Err(A2aFailure::Invalid(why));
        };
        let url = Url::parse(url).map_err(|why| {
            A2aFailure::Invalid(format!("the card of {} has the URL {url:?}: {why}", host(at)))
        })?;
        http.hosts.check(&url).map_err(A2aFailure::Invalid)?;
        if !headers.is_empty() && url.origin() != at.origin() {
            let why = format!(
                "the card of {} names an interface at {}; the configured headers are sent only to the host of the card",
                host(at),
                host(&url)
            );
            return Err(A2aFailure::Invalid(why));
        }
        let modes = card["defaultInputModes"].as_array();
        let reads_data = modes.is_some_and(|all| all.iter().any(|it| it == "application/json"));
        let tenant = interface.and_then(|interface| interface["tenant"].as_str());
        let tenant = tenant.filter(|tenant| !tenant.is_empty()).map(str::to_owned);
        let version = match interface {
            Some(_) => ProtocolVersion::V1_0,
            None => ProtocolVersion::V0_3,
        };
        let streams = card["capabilities"]["streaming"] == true;
        Ok(A2aClient { http, url, headers, tenant, streams, reads_data, version })
    }

    /// Returns `true` if the agent can stream the events of a task.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.streams
    }

    /// Returns `true` if the agent reads parts with data.
    #[must_use]
    pub fn reads_data(&self) -> bool {
        self.reads_data
    }

    /// Returns the host of the agent, for messages.
    #[must_use]
    pub fn host(&self) -> String {
        host(&self.url)
    }

    /// Performs an operation with one result.
    ///
    /// # Errors
    /// [`A2aFailure`].
    pub async fn call(&self, method: &str, params: Value) -> Result<A2aEvent, A2aFailure> {
        let response = self.http.send(self.request(method, params)?).await?;
        let text = self.http.read_text(response, self.http.max_bytes).await?;
        result_of(&self.url, text, self.version)
    }

    /// Performs an operation with a stream of results.
    ///
    /// # Errors
    /// [`A2aFailure`].
    pub async fn stream(&self, method: &str, params: Value) -> Result<A2aEvents, A2aFailure> {
        let response = self.http.send(self.request(method, params)?).await?;
        if media_type(response.headers()) == EVENT_STREAM {
            let url = self.url.clone();
            let max = self.http.max_bytes;
            return Ok(A2aEvents::new(url, response, max, self.version));
        }
        // An error, or the result of an agent that does not stream it.
        let text = self.http.read_text(response, self.http.max_bytes).await?;
        Ok(A2aEvents::from_event(result_of(&self.url, text, self.version)?))
    }

    fn request(&self, method: &str, mut params: Value) -> Result<Request, A2aFailure> {
        if let Some(tenant) = &self.tenant {
            params["tenant"] = json!(tenant);
        }
        let (method, version) = match self.version {
            ProtocolVersion::V0_3 => {
                params = legacy::convert_params(params);
                let method = legacy::method(method);
                let method = method.ok_or_else(|| A2aFailure::unsupported(self.host()))?;
                (method, legacy::VERSION)
            }
            ProtocolVersion::V1_0 => (method, VERSION),
        };
        let body = json!({"jsonrpc": "2.0", "id": REQUEST_ID, "method": method, "params": params});
        let mut request = Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = self.headers.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert("a2a-version", HeaderValue::from_static(version));
        *request.body_mut() = Some(body.to_string().into());
        Ok(request)
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl A2aHttp {
    fn new(config: &A2aConfig) -> Result<A2aHttp, A2aFailure> {
        let hosts = PermittedHosts::new(config.allow_private.iter().cloned());
        let client = hosts.client().build();
        let client = client.map_err(|why| A2aFailure::Invalid(why.to_string()))?;
        let timeout = Duration::from_millis(config.timeout_ms.max(1));
        Ok(A2aHttp { client, hosts, max_bytes: config.max_bytes, timeout })
    }

    /// Sends a request, and waits until a successful answer begins.
    async fn send(&self, request: Request) -> Result<Response, A2aFailure> {
        self.hosts.check(request.url()).map_err(A2aFailure::Invalid)?;
        let host = host(request.url());
        let sent = tokio::time::timeout(self.timeout, self.client.execute(request)).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let why = public_address::failure(&host, &error);
                return Err(if !error.is_connect() {
                    A2aFailure::Lost(why)
                } else if public_address::is_refusal(&error) {
                    A2aFailure::Invalid(why)
                } else {
                    A2aFailure::Unreachable(why)
                });
            }
            Err(_) => {
                return Err(A2aFailure::Lost(format!(
                    "{host} did not respond in time (timeout_ms)"
                )));
            }
        };
        let status = response.status();
        let why = || format!("{host} responded with HTTP {status}");
        match status {
            _ if status.is_success() => Ok(response),
            StatusCode::TOO_MANY_REQUESTS => Err(A2aFailure::Unreachable(why())),
            StatusCode::REQUEST_TIMEOUT => Err(A2aFailure::Lost(why())),
            _ if status.is_server_error() => Err(A2aFailure::Lost(why())),
            _ => Err(A2aFailure::Invalid(why())),
        }
    }

    /// Returns the body of an answer. It must be complete within the timeout.
    async fn read_text(&self, mut response: Response, max: usize) -> Result<String, A2aFailure> {
        let host = host(response.url());
        let mut body = Vec::new();
        let until = tokio::time::Instant::now() + self.timeout;
        loop {
            let chunk = tokio::time::timeout_at(until, response.chunk()).await;
            match chunk {
                Ok(Ok(Some(chunk))) if body.len() + chunk.len() > max => {
                    let why = format!("the response of {host} has more than {max} bytes");
                    return Err(A2aFailure::Invalid(why));
                }
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                Ok(Ok(None)) => break,
                Ok(Err(error)) => {
                    return Err(A2aFailure::Lost(public_address::failure(&host, &error)));
                }
                Err(_) => {
                    return Err(A2aFailure::Lost(format!(
                        "{host} did not respond in time (timeout_ms)"
                    )));
                }
            }
        }
        String::from_utf8(body)
            .map_err(|_| A2aFailure::Unreadable(format!("the response of {host} is not UTF-8")))
    }
}

/// Returns an id that depends on a name only, so that a repeated message has the same id. The name cannot be read from
/// it.
#[must_use]
pub fn a2a_id(name: &str) -> String {
    hex::encode(&Sha256::digest(name.as_bytes())[..16])
}

#[cfg(test)]
mod tests;
