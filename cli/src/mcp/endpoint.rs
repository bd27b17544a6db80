//! The endpoint `/mcp` of a server: messages are sent to it, and its messages are read.

use std::time::Duration;

use abide_agent::media_type;
use abide_schema::limits::MESSAGE_BYTES;
use abide_schema::{Code, Refusal, lowercase_first};
use abide_sse::Parser;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use rustls::CertificateError;
use serde_json::Value as JsonValue;

use crate::failure::Failure;
use crate::http_client::HttpServer;

/// The header with the session of a client of 2025-11-25.
pub(super) const SESSION_ID: &str = "mcp-session-id";

/// A server sends a comment every few seconds. Without one its machine has failed.
const SILENCE: Duration = Duration::from_secs(60);

/// The endpoint of a server.
pub(super) struct Endpoint {
    client: Client,
    url: String,
    authorization: Option<HeaderValue>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum SendError {
    /// The connection failed, or ended too early. The server may have received the message.
    Lost(String),
    /// The server does not know the session: it was restarted.
    SessionGone,
    /// It refuses the message.
    Refused(String),
}

impl From<reqwest::Error> for SendError {
    fn from(error: reqwest::Error) -> SendError {
        SendError::Lost(innermost_cause(&error))
    }
}

/// Returns the cause of an error. The error itself says only that the request was not sent.
fn innermost_cause(error: &reqwest::Error) -> String {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let system = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match system.and_then(|why| why.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "its certificate is signed by an authority that this machine does not trust; give it with --ca FILE".to_owned()
        }
        _ => lowercase_first(&cause.to_string()),
    }
}

impl Endpoint {
    pub(super) fn new(server: HttpServer) -> Result<Endpoint, Failure> {
        let client = server.client.read_timeout(SILENCE).build().map_err(|why| {
            Refusal::new(Code::Internal, format!("there is no HTTP client: {why}"))
        })?;
        let authorization = server.token.as_deref().map(bearer_value).transpose()?;
        Ok(Endpoint { client, url: format!("{}/mcp", server.url), authorization })
    }

    fn request(&self, method: Method, headers: HeaderMap) -> RequestBuilder {
        let mut request = self.client.request(method, &self.url).headers(headers);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request
    }

    /// Sends a message.
    pub(super) async fn post(
        &self,
        message: &JsonValue,
        headers: HeaderMap,
    ) -> Result<HttpResponse, SendError> {
        let request = self
            .request(Method::POST, headers)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(message.to_string());
        HttpResponse::receive(request.send().await?).await
    }

    /// Opens the stream of a session.
    pub(super) async fn get(&self, headers: HeaderMap) -> Result<HttpResponse, SendError> {
        let request = self.request(Method::GET, headers).header(ACCEPT, "text/event-stream");
        HttpResponse::receive(request.send().await?).await
    }

    /// Ends a session.
    pub(super) async fn delete(&self, headers: HeaderMap) {
        // If it fails, the server ends the session later.
        let _ = self.request(Method::DELETE, headers).send().await;
    }
}

/// Returns the value of the header `Authorization`. Debug output does not show it.
fn bearer_value(token: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
        Failure::usage("the token has characters that a header cannot have", "check --token")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The answer to a request: one message, or a stream of them.
pub(super) struct HttpResponse {
    /// The session that the server has started.
    pub(super) session: Option<String>,
    only: Option<JsonValue>,
    stream: Option<Response>,
    events: Parser,
}

impl HttpResponse {
    async fn receive(response: Response) -> Result<HttpResponse, SendError> {
        let session =
            response.headers().get(SESSION_ID).and_then(|it| it.to_str().ok()).map(str::to_owned);
        let is_stream = media_type(response.headers()) == "text/event-stream";
        let status = response.status();
        let events = Parser::new(MESSAGE_BYTES);
        let mut answer = HttpResponse { session, only: None, stream: None, events };
        if is_stream {
            answer.stream = Some(response);
            return Ok(answer);
        }
        let body = read_body(response).await?;
        if status == StatusCode::ACCEPTED {
            return Ok(answer);
        }
        let body: JsonValue = serde_json::from_slice(&body).unwrap_or_default();
        if body["jsonrpc"].is_null() {
            return Err(refusal_error(status, &body));
        }
        if status == StatusCode::NOT_FOUND && body["error"]["code"] == -32001 {
            return Err(SendError::SessionGone);
        }
        answer.only = Some(body);
        Ok(answer)
    }

    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<JsonValue>, SendError> {
        let Some(stream) = &mut self.stream else { return Ok(self.only.take()) };
        loop {
            if let Some(event) = self.events.next_event() {
                let event = event
                    .map_err(|why| SendError::Refused(format!("the server's response: {why}")))?;
                // Events without a message only keep the connection open.
                match serde_json::from_str(&event.text()) {
                    Ok(message) => return Ok(Some(message)),
                    Err(_) => continue,
                }
            }
            let Some(part) = stream.chunk().await? else { return Ok(None) };
            self.events.feed(&part);
        }
    }
}

/// A whole body, unless it is larger than any message of the server.
async fn read_body(mut response: Response) -> Result<Vec<u8>, SendError> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        if body.len() + part.len() > MESSAGE_BYTES {
            let why = format!("the server's response has more than {MESSAGE_BYTES} bytes");
            return Err(SendError::Refused(why));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// A refusal before the message was handled, such as that of a token.
fn refusal_error(status: StatusCode, body: &JsonValue) -> SendError {
    let said = body["detail"].as_str().map_or_else(|| format!("HTTP {status}"), str::to_owned);
    let is_temporary = [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    if status.is_server_error() || is_temporary {
        SendError::Lost(said)
    } else {
        SendError::Refused(said)
    }
}
