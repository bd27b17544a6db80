//! A single request and its response, as an outcome.

use abide_json_integers as integers;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::Plan;
use crate::error_text::describe_causes;
use crate::media_type::is_json;
use crate::outcome::{Failure, ToolOutcome};
use crate::tool::Invocation;

impl Plan {
    pub(super) async fn call(&self, invocation: &Invocation) -> ToolOutcome {
        let name = &self.name;
        let nothing = Map::new();
        let arguments = invocation.arguments.as_object().unwrap_or(&nothing);
        let url = match self.address.fill(arguments) {
            Ok(url) => url,
            Err(why) => return ToolOutcome::failed(Failure::Arguments, format!("{name}: {why}")),
        };
        let mut headers = self.headers.clone();
        if let Some(header) = &self.idempotency_header {
            // A call id can have letters beyond ASCII, which a header has as bytes.
            let Ok(id) = HeaderValue::from_bytes(invocation.call_id.as_bytes()) else {
                let why = format!("{name}: the id of the call cannot be sent as a header");
                return ToolOutcome::failed(Failure::Arguments, why);
            };
            headers.insert(header, id);
        }
        let body = self.body(arguments);
        if let Some(key) = &self.context_key {
            let context = invocation.context_json().to_string();
            let text = body.as_ref().map_or("", |(text, _)| text.as_str());
            key.sign(&mut headers, &self.method, &url, &context, text);
        }
        let mut request = self.client.request(self.method.clone(), url);
        if let Some((body, media_type)) = body {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(media_type));
            request = request.body(body);
        }
        match request.headers(headers).send().await {
            Ok(response) => self.answer(response).await,
            Err(error) => self.unanswered(&error),
        }
    }

    /// Returns the outcome if there is no response.
    fn unanswered(&self, error: &reqwest::Error) -> ToolOutcome {
        let (failure, what) = if error.is_connect() {
            (Failure::Unavailable, "cannot be reached")
        } else {
            (Failure::Lost, "did not respond")
        };
        let text = format!("the server of {} {what}: {}", self.name, describe_causes(error));
        ToolOutcome::failed(failure, text)
    }

    async fn answer(&self, mut response: Response) -> ToolOutcome {
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > self.max_bytes => {
                    let max = self.max_bytes;
                    let why = format!("the response of {} has more than {max} bytes", self.name);
                    return ToolOutcome::failed(Failure::TooLarge, why);
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => {
                    let why = describe_causes(&error);
                    let text = format!(
                        "the connection was lost while reading the response of {}: {why}",
                        self.name
                    );
                    return ToolOutcome::failed(Failure::Lost, text);
                }
            }
        }
        self.outcome(status, &headers, body)
    }

    fn outcome(&self, status: StatusCode, headers: &HeaderMap, body: Vec<u8>) -> ToolOutcome {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let media_type = header(CONTENT_TYPE).map(str::to_owned);
        let mut content = Map::from_iter([
            ("status".to_owned(), json!(status.as_u16())),
            ("content_type".to_owned(), json!(media_type)),
        ]);
        let text = match String::from_utf8(body) {
            Ok(text) => {
                // A body that JSON cannot represent exactly is stored as text.
                let is_exact = is_json(media_type.as_deref().unwrap_or_default())
                    && integers::check(&text).is_ok();
                let readable = integers::readable(text.as_bytes());
                let parsed = is_exact.then(|| serde_json::from_str(&readable));
                let body = match parsed {
                    // The outcome has the body within two objects.
                    Some(Ok(value))
                        if integers::check_depth_within(&value, integers::MAX_DEPTH - 2)
                            .is_ok()
                            && !integers::has_reserved_name(&value) =>
                    {
                        value
                    }
                    _ => Value::String(text.clone()),
                };
                content.insert("body".to_owned(), body);
                text
            }
            Err(bytes) => {
                let bytes = bytes.into_bytes();
                content.insert("body_base64".to_owned(), json!(STANDARD.encode(&bytes)));
                let media_type = media_type.as_deref().unwrap_or("unknown type");
                format!("[{} bytes of {media_type}]", bytes.len())
            }
        };
        let content = Value::Object(content);
        if status.is_success() || self.ok_statuses.contains(&status.as_u16()) {
            return ToolOutcome { text, content, is_error: false, exit_code: 0, failure: None };
        }
        let to = header(LOCATION).filter(|_| status.is_redirection());
        let to = to.map(|to| format!(" to {to}; the redirect is not followed")).unwrap_or_default();
        let body = if text.is_empty() { String::new() } else { format!("\n{text}") };
        let failure = match status {
            // "Retry later" means that the request was not processed.
            StatusCode::TOO_MANY_REQUESTS => Failure::Unavailable,
            // The server gave up waiting, or a gateway has no answer of the server, which may have processed the request.
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Failure::Lost,
            // The request was processed, and its result is elsewhere.
            StatusCode::SEE_OTHER => Failure::Lost,
            // Servers answer a form that they have processed with these, too; 307 and 308 ask for the same request elsewhere.
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND if !self.method.is_safe() => {
                Failure::Lost
            }
            _ if (520..=527).contains(&status.as_u16()) => Failure::Lost,
            _ => Failure::Tool,
        };
        ToolOutcome {
            text: format!("{} responded with HTTP {status}{to}{body}", self.name),
            content,
            ..ToolOutcome::failed(failure, "")
        }
    }
}
