//! One message to an MCP server by HTTP.
//!
//! The SDK's own client decodes a JSON body before anything can make it decodable: half a surrogate pair then costs the
//! response. So the request is made here. Its outcomes are the SDK's, and so are the streams of `GET`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error;

use abide_json_integers as integers;
use abide_sse::Parser;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::{
    ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::Sse;

use super::received;
use crate::media_type::{EVENT_STREAM, media_type};

pub(super) type HttpError = StreamableHttpError<reqwest::Error>;
pub(super) type Headers = HashMap<HeaderName, HeaderValue>;
pub(super) type Events = BoxStream<'static, Result<Sse, SseError>>;

const JSON: &str = "application/json";
const SESSION: &str = "mcp-session-id";

/// Headers that the protocol sets.
const RESERVED: [&str; 3] = ["accept", SESSION, "last-event-id"];

/// The beginning of the error for a 404 to a call of a tool that may have run; the SDK has no variant for it.
const NOT_FOUND: &str = "HTTP 404";

/// Maximum size of the body of a response that is not successful.
const REFUSAL_BYTES: usize = 64 << 10;

/// Returns the events of a server, with messages that the SDK can decode.
pub(super) fn decodable(events: Events) -> Events {
    events
        .map_ok(|event| Sse {
            data: event.data.map(|data| received::decodable(&data).into_owned()),
            ..event
        })
        .boxed()
}

/// A message, and where it goes.
pub(super) struct Post<'a> {
    pub(super) uri: &'a str,
    pub(super) message: &'a ClientJsonRpcMessage,
    pub(super) session_id: Option<&'a str>,
    pub(super) headers: &'a Headers,
    /// Maximum size of a message of the server.
    pub(super) max: usize,
}

impl Post<'_> {
    pub(super) async fn send(
        &self,
        http: &Client,
        token: Option<String>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let response = self.request(http, token)?.send().await?;
        if let Some(challenged) = challenge(&response) {
            return Err(self.executed_anyway(response).await.unwrap_or(challenged));
        }
        match response.status() {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => {
                Ok(StreamableHttpPostResponse::Accepted)
            }
            StatusCode::NOT_FOUND if self.session_id.is_some() => self.not_found(response).await,
            status if status.is_success() => self.read_answer(response).await,
            _ => self.refused(response).await,
        }
    }

    fn request(&self, http: &Client, token: Option<String>) -> Result<RequestBuilder, HttpError> {
        let mut request = http.post(self.uri).header(ACCEPT, format!("{EVENT_STREAM}, {JSON}"));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(name) = self.headers.keys().find(|name| RESERVED.contains(&name.as_str())) {
            return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
        }
        let headers = self.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        request = request.headers(headers.collect::<HeaderMap>());
        if let Some(session_id) = self.session_id {
            request = request.header(SESSION, session_id);
        }
        let body = serde_json::to_string(self.message)?;
        Ok(request.header(CONTENT_TYPE, JSON).body(body))
    }

    /// Returns the id of the request, if the message is one.
    fn request_id(&self) -> Option<&RequestId> {
        match self.message {
            ClientJsonRpcMessage::Request(request) => Some(&request.id),
            _ => None,
        }
    }

    async fn read_answer(
        &self,
        response: Response,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let session_id = header(&response, HeaderName::from_static(SESSION));
        // Some servers answer a notification with an empty 200 instead of 202.
        if self.request_id().is_none() && response.content_length() == Some(0) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if media_type(response.headers()) == EVENT_STREAM {
            let events = decodable(events(response, self.max));
            return Ok(StreamableHttpPostResponse::Sse(events, session_id));
        }
        if media_type(response.headers()) != JSON {
            let content_type = header(&response, CONTENT_TYPE);
            return Err(StreamableHttpError::UnexpectedContentType(content_type));
        }
        let body = body(response, self.max).await?;
        let text = integers::readable(&body);
        let read = serde_json::from_str::<ServerJsonRpcMessage>(&received::decodable(&text));
        let Some(id) = self.request_id() else {
            if let Err(why) = read {
                tracing::warn!(
                    name: "mcp_answer_ignored",
                    %why,
                    "an MCP server has answered a notification: it is ignored"
                );
                return Ok(StreamableHttpPostResponse::Accepted);
            }
            return Ok(StreamableHttpPostResponse::Json(read?, session_id));
        };
        // The server has answered: its response ends the request, and not the connection.
        let unreadable = |why: String| {
            let error = ErrorData::new(received::UNREADABLE, why, None);
            ServerJsonRpcMessage::error(error, Some(id.clone()))
        };
        let message = match read {
            Ok(ServerJsonRpcMessage::Error(error)) if error.id.is_none() => {
                ServerJsonRpcMessage::error(error.error, Some(id.clone()))
            }
            Ok(message) if self.is_answer(&message) => message,
            Ok(_) => unreadable("the response is not that of the request".to_owned()),
            Err(why) => unreadable(format!("the response cannot be read: {why}")),
        };
        Ok(StreamableHttpPostResponse::Json(message, session_id))
    }

    /// Reads an HTTP 404 to a request of a session.
    ///
    /// A server that no longer knows the session answers so before it executes anything, and the SDK then starts a new session and
    /// repeats the request. But a route that a proxy does not have, and a tool that found nothing, look the same, whatever their
    /// text says: their call may have run. So the SDK never repeats a call of a tool. The caller does, if the tool may run twice.
    async fn not_found(&self, response: Response) -> Result<StreamableHttpPostResponse, HttpError> {
        if !self.calls_tool() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let text = body(response, REFUSAL_BYTES).await.unwrap_or_default();
        let text = integers::readable(&text);
        let message = serde_json::from_str::<ServerJsonRpcMessage>(&received::decodable(&text));
        match message.ok().filter(|message| self.is_answer(message)) {
            // The server has processed this request, whatever its text says about a session.
            Some(message) if is_about_call(&message) => {
                Ok(StreamableHttpPostResponse::Json(message, None))
            }
            _ => {
                let why = format!("{NOT_FOUND}: {text}");
                Err(StreamableHttpError::UnexpectedServerResponse(why.into()))
            }
        }
    }

    /// Reads a response that asks for other credentials, and so says that the call was not executed. Returns an error that no login
    /// follows if it has the result of the call: then the call was executed, and must not be sent again.
    async fn executed_anyway(&self, response: Response) -> Option<HttpError> {
        if !self.calls_tool() || media_type(response.headers()) != JSON {
            return None;
        }
        let status = response.status();
        let body = body(response, self.max).await.ok()?;
        self.result_with_refusal(status, &integers::readable(&body))
    }

    fn result_with_refusal(&self, status: StatusCode, body: &str) -> Option<HttpError> {
        let message = serde_json::from_str::<ServerJsonRpcMessage>(&received::decodable(body));
        let is_result = message.is_ok_and(|message| {
            matches!(message, ServerJsonRpcMessage::Response(_)) && self.is_answer(&message)
        });
        (is_result && self.calls_tool()).then(|| {
            StreamableHttpError::UnexpectedServerResponse(
                format!("the server has answered the call with HTTP {status}: {body}").into(),
            )
        })
    }

    fn calls_tool(&self) -> bool {
        matches!(self.message, ClientJsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::CallToolRequest(_)))
    }

    /// Returns `true` if the message is the response to this request.
    fn is_answer(&self, message: &ServerJsonRpcMessage) -> bool {
        let id = match message {
            ServerJsonRpcMessage::Response(response) => Some(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        id.is_some() && id == self.request_id()
    }

    /// Reads a response that is not successful. It may have an error of the protocol.
    async fn refused(&self, response: Response) -> Result<StreamableHttpPostResponse, HttpError> {
        let status = response.status();
        let is_json = media_type(response.headers()) == JSON;
        let session_id = header(&response, HeaderName::from_static(SESSION));
        let may_recover = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
        let retry_after = header(&response, RETRY_AFTER);
        let unavailable = may_recover.then(|| HttpStatusError::new(status.as_u16(), retry_after));
        let unavailable = match unavailable {
            // The body of an answer to a call is for the person who finds out what it did.
            Some(unavailable)
                if !self.calls_tool() && (!is_json || status == StatusCode::TOO_MANY_REQUESTS) =>
            {
                return Err(unavailable.into());
            }
            other => other,
        };
        let body = match body(response, REFUSAL_BYTES).await {
            Ok(body) => integers::readable(&body).into_owned(),
            Err(too_large @ StreamableHttpError::ResponseBodyTooLarge { .. }) => {
                return Err(unavailable.map_or(too_large, StreamableHttpError::from));
            }
            Err(_) => "<failed to read response body>".to_owned(),
        };
        let is_forbidden = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status);
        let stated = serde_json::from_str::<ServerJsonRpcMessage>(&body).ok();
        let stated = stated.filter(|message| matches!(message, ServerJsonRpcMessage::Error(_)));
        if let Some(id) = self.discovery().filter(|_| status.is_client_error() && !is_forbidden) {
            // A server with an older protocol: the SDK then begins with `initialize`.
            let error = match stated {
                Some(ServerJsonRpcMessage::Error(stated)) => stated.error,
                _ => {
                    let why = format!("server/discover rejected with HTTP {status}: {body}");
                    ErrorData::invalid_request(why, None)
                }
            };
            let message = ServerJsonRpcMessage::error(error, Some(id.clone()));
            return Ok(StreamableHttpPostResponse::Json(message, None));
        }
        if is_forbidden && let Some(executed) = self.result_with_refusal(status, &body) {
            return Err(executed);
        }
        match (stated, unavailable) {
            // The server, or a gateway with the manners of the protocol, has failed: the tool may have run.
            (_, Some(_)) if self.calls_tool() => {
                let why = format!("HTTP {status}: {body}");
                Err(StreamableHttpError::UnexpectedServerResponse(why.into()))
            }
            (Some(mut message), _) if is_json && !is_forbidden => {
                // The response to this request is about it. A server that could not read the request does not know its id.
                if let (ServerJsonRpcMessage::Error(stated), Some(id)) =
                    (&mut message, self.request_id())
                {
                    stated.id = Some(id.clone());
                }
                Ok(StreamableHttpPostResponse::Json(message, session_id))
            }
            (_, Some(unavailable)) => Err(unavailable.into()),
            (_, None) => {
                let why = Cow::Owned(format!("HTTP {status}: {body}"));
                Err(StreamableHttpError::UnexpectedServerResponse(why))
            }
        }
    }

    /// Returns the id of the message if it is the request that begins a connection.
    fn discovery(&self) -> Option<&RequestId> {
        match self.message {
            ClientJsonRpcMessage::Request(request) if self.session_id.is_none() => {
                matches!(request.request, ClientRequest::DiscoverRequest(_)).then_some(&request.id)
            }
            _ => None,
        }
    }
}

fn header(response: &Response, name: HeaderName) -> Option<String> {
    let value = response.headers().get(name)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Returns `true` if the response, which came with HTTP 404, is about the call and not about its session.
fn is_about_call(message: &ServerJsonRpcMessage) -> bool {
    let ServerJsonRpcMessage::Error(error) = message else { return true };
    [ErrorCode::METHOD_NOT_FOUND, ErrorCode::INVALID_PARAMS, ErrorCode::RESOURCE_NOT_FOUND]
        .contains(&error.error.code)
}

/// Returns `true` if the session of a call of a tool may have ended, although the response does not say so. The call
/// may have run.
pub(super) fn may_have_lost_session(error: &HttpError) -> bool {
    matches!(error, StreamableHttpError::UnexpectedServerResponse(why) if why.starts_with(NOT_FOUND))
}

/// Why the server wants another token, if it does.
fn challenge(response: &Response) -> Option<HttpError> {
    let stated = header(response, WWW_AUTHENTICATE)?;
    match response.status() {
        StatusCode::UNAUTHORIZED => {
            Some(StreamableHttpError::AuthRequired(AuthRequiredError::new(stated)))
        }
        StatusCode::FORBIDDEN => {
            let error = InsufficientScopeError::new(stated, None);
            Some(StreamableHttpError::InsufficientScope(error))
        }
        _ => None,
    }
}

/// Reads a body of at most this many bytes.
async fn body(mut response: Response, max: usize) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if chunk.len() > max - body.len() {
            return Err(StreamableHttpError::ResponseBodyTooLarge { max_size: max });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Reads events of at most this many bytes.
fn events(response: Response, max: usize) -> Events {
    let source = EventSource { response, parser: Parser::new(max) };
    stream::try_unfold(source, async |mut source| {
        Ok(source.next().await.map_err(SseError::Body)?.map(|event| (event, source)))
    })
    .boxed()
}

/// A response with events.
struct EventSource {
    response: Response,
    parser: Parser,
}

impl EventSource {
    /// Returns the next event, or `None` at the end of the response.
    async fn next(&mut self) -> Result<Option<Sse>, Box<dyn Error + Send + Sync>> {
        loop {
            if let Some(event) = self.parser.next_event().transpose()? {
                return Ok(Some(Sse {
                    data: event.data.map(|data| integers::readable(&data).into_owned()),
                    event: event.event,
                    id: event.id,
                    retry: event.retry_ms,
                }));
            }
            let Some(chunk) = self.response.chunk().await? else { return Ok(None) };
            self.parser.feed(&chunk);
        }
    }
}
