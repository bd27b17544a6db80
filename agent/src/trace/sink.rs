//! Where traces go: a file, an OpenTelemetry collector, or any HTTP server. A sink that fails never fails a run.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_definitions::project_config::TraceSink;
use abide_tools::{Environment, http_client};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};
use serde_json::{Map, Value, json};

use crate::trace::names;
use crate::trace::spans::Span;

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often a request is made, and the wait before the second attempt; it doubles.
const ATTEMPTS: u32 = 3;
const WAIT: Duration = Duration::from_millis(500);

/// A sink in Rust: it gets the spans of one run, as objects of the file sink.
pub(crate) type SinkFunction = Arc<dyn Fn(&[Value]) -> Result<(), String> + Send + Sync>;

/// A sink that is ready.
pub(crate) enum ReadySink {
    File(PathBuf),
    Function(SinkFunction),
    Http { client: Client, url: Url, headers: HeaderMap, is_otlp: bool },
}

impl ReadySink {
    /// Opens a sink.
    ///
    /// # Errors
    /// Why it cannot be used, in one sentence.
    pub(crate) fn open(
        sink: &TraceSink,
        folder: &Path,
        environment: &Environment,
    ) -> Result<ReadySink, String> {
        let (url, headers, headers_env, is_otlp) = match sink {
            TraceSink::File { path } => return Ok(ReadySink::File(folder.join(path))),
            TraceSink::Otlp { url, headers, headers_env } => (url, headers, headers_env, true),
            TraceSink::Http { url, headers, headers_env } => (url, headers, headers_env, false),
        };
        let url = Url::parse(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| format!("traces: {url} is not an HTTP URL"))?;
        let mut all = HeaderMap::new();
        all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in headers {
            let (name, value) = parse_header(name, value)?;
            all.insert(name, value);
        }
        for (name, variable) in headers_env {
            let value = environment.value(variable);
            let value = value
                .ok_or_else(|| format!("traces: there is no environment variable {variable}"))?;
            let (name, mut value) = parse_header(name, value)?;
            value.set_sensitive(true);
            all.insert(name, value);
        }
        let client =
            http_client().timeout(TIMEOUT).build().map_err(|why| format!("traces: {why}"))?;
        Ok(ReadySink::Http { client, url, headers: all, is_otlp })
    }
}

impl ReadySink {
    /// Sends the spans of one run.
    ///
    /// # Errors
    /// Why the sink has not accepted them, in one sentence.
    pub(crate) async fn send(&self, spans: &[Span]) -> Result<(), String> {
        match self {
            ReadySink::File(path) => {
                let lines = spans.iter().map(|span| format!("{}\n", line(span)));
                let path = path.clone();
                let text = lines.collect::<String>();
                let write = tokio::task::spawn_blocking(move || append(&path, &text));
                write.await.map_err(|why| why.to_string())?
            }
            ReadySink::Function(function) => {
                let function = Arc::clone(function);
                let lines = spans.iter().map(line);
                let lines: Vec<Value> = lines.collect();
                let call = tokio::task::spawn_blocking(move || function(&lines));
                call.await.map_err(|_| "the sink panicked".to_owned())?
            }
            ReadySink::Http { client, url, headers, is_otlp } => {
                let body = if *is_otlp {
                    otlp(spans)
                } else {
                    Value::Array(spans.iter().map(line).collect())
                };
                post(client, url, headers, &body.to_string()).await
            }
        }
    }
}

fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("traces: {name:?} is not a valid header name"))?;
    let value = HeaderValue::from_str(value).map_err(|_| {
        format!("traces: the value of header {name} has characters that are not allowed")
    })?;
    Ok((parsed, value))
}

fn append(path: &Path, text: &str) -> Result<(), String> {
    let wrong = |why: std::io::Error| format!("{}: {why}", path.display());
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.map_err(wrong)?.write_all(text.as_bytes()).map_err(wrong)
}

async fn post(client: &Client, url: &Url, headers: &HeaderMap, body: &str) -> Result<(), String> {
    let mut attempt = 1;
    let mut wait = WAIT;
    loop {
        let request = client.post(url.clone()).headers(headers.clone());
        let (why, again) = match request.body(body.to_owned()).send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => {
                let status = answer.status();
                let again = status.is_server_error() || status.as_u16() == 429;
                (format!("the server responded with HTTP {status}"), again)
            }
            // The error's text can have the address with a secret in it.
            Err(why) if why.is_timeout() => ("the server did not respond in time".to_owned(), true),
            Err(why) => (why.without_url().to_string(), true),
        };
        if !again || attempt == ATTEMPTS {
            return Err(why);
        }
        tokio::time::sleep(wait).await;
        attempt += 1;
        wait *= 2;
    }
}

/// Returns a span as a line of the file sink.
fn line(span: &Span) -> Value {
    let mut all = json!({"trace_id": span.trace_id, "span_id": span.span_id, "name": span.name,
        "kind": if span.is_client { "client" } else { "internal" },
        "start_us": span.from, "end_us": span.until, "attributes": span.attributes});
    if let Some(parent) = &span.parent_id {
        all["parent_span_id"] = json!(parent);
    }
    if let Some(error) = &span.error {
        all["error"] = json!(error);
    }
    all
}

/// Returns the body of a request in OTLP's JSON encoding.
fn otlp(spans: &[Span]) -> Value {
    let spans: Vec<Value> = spans.iter().map(otlp_span).collect();
    let service = Map::from_iter([(names::SERVICE_NAME.to_owned(), json!("abide"))]);
    let scope = json!({"name": "abide", "version": env!("CARGO_PKG_VERSION")});
    json!({"resourceSpans": [{"resource": {"attributes": otlp_attributes(&service)},
        "scopeSpans": [{"scope": scope, "spans": spans}]}]})
}

fn otlp_span(span: &Span) -> Value {
    const INTERNAL: u8 = 1;
    const CLIENT: u8 = 3;
    const ERROR: u8 = 2;
    let mut attributes = span.attributes.clone();
    if let Some(error) = &span.error {
        attributes.insert(names::ERROR_TYPE.to_owned(), json!(error));
    }
    let mut all = json!({"traceId": span.trace_id, "spanId": span.span_id, "name": span.name,
        "kind": if span.is_client { CLIENT } else { INTERNAL },
        "startTimeUnixNano": nanos(span.from), "endTimeUnixNano": nanos(span.until),
        "attributes": otlp_attributes(&attributes)});
    if let Some(parent) = &span.parent_id {
        all["parentSpanId"] = json!(parent);
    }
    if let Some(error) = &span.error {
        all["status"] = json!({"code": ERROR, "message": error});
    }
    all
}

fn otlp_attributes(attributes: &Map<String, Value>) -> Value {
    let all = attributes.iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) => json!({"stringValue": text}),
            // 64-bit integers are texts in this encoding.
            Value::Number(number) if number.is_i64() => json!({"intValue": number.to_string()}),
            Value::Bool(flag) => json!({"boolValue": flag}),
            other => json!({"stringValue": other.to_string()}),
        };
        json!({"key": name, "value": value})
    });
    Value::Array(all.collect())
}

fn nanos(micros: i64) -> String {
    (i128::from(micros) * 1_000).to_string()
}
