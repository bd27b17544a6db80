//! Classification of provider errors: from a status, headers and a body to a kind of error.
//!
//! The tables contain the providers' documented errors, as of 2026. Other errors are classified by status, and an
//! unknown error within a stream counts as a failure of the provider.

use std::time::{Duration, SystemTime};

use abide_json_integers as integers;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use crate::{ModelError, ModelErrorKind};

/// Maximum number of characters of a provider's message that an error repeats.
const WORDS_MAX: usize = 500;

/// Values of `code`, `type` or `status` in an error that are more specific than the HTTP status.
const NAMES: [(&str, ModelErrorKind); 17] = [
    ("insufficient_quota", ModelErrorKind::Unauthorized),
    ("billing_hard_limit_reached", ModelErrorKind::Unauthorized),
    ("billing_error", ModelErrorKind::Unauthorized),
    ("invalid_api_key", ModelErrorKind::Unauthorized),
    ("authentication_error", ModelErrorKind::Unauthorized),
    ("permission_error", ModelErrorKind::Unauthorized),
    ("UNAUTHENTICATED", ModelErrorKind::Unauthorized),
    ("PERMISSION_DENIED", ModelErrorKind::Unauthorized),
    ("context_length_exceeded", ModelErrorKind::ContextTooLong),
    ("request_too_large", ModelErrorKind::ContextTooLong),
    ("overloaded_error", ModelErrorKind::Overloaded),
    ("server_is_overloaded", ModelErrorKind::Overloaded),
    ("slow_down", ModelErrorKind::Overloaded),
    ("UNAVAILABLE", ModelErrorKind::Overloaded),
    ("rate_limit_error", ModelErrorKind::RateLimited),
    ("rate_limit_exceeded", ModelErrorKind::RateLimited),
    ("RESOURCE_EXHAUSTED", ModelErrorKind::RateLimited),
];

/// Values that are less specific than the status. They are used for events, which have no status. All others are
/// failures of the provider.
const GENERAL_NAMES: [&str; 5] = [
    "invalid_request_error",
    "invalid_prompt",
    "not_found_error",
    "model_not_found",
    "INVALID_ARGUMENT",
];

/// Lower-case phrases for a conversation that is too long, from providers without a code for it.
const TOO_LONG: [&str; 7] = [
    "available context size",
    "context length",
    "context window",
    "prompt is too long",
    "input is too long",
    "input token count",
    "maximum number of tokens",
];

/// Lower-case phrases for an invalid key or account, from providers without a code for it.
const NOT_ALLOWED: [&str; 3] =
    ["api key not valid", "credit balance is too low", "insufficient balance"];

/// Returns the error for a response with this status.
pub(crate) fn error_from_response(status: u16, headers: &HeaderMap, body: &str) -> ModelError {
    let body = json_or_text(body);
    let kind = kind_by_name(&body).unwrap_or_else(|| kind_by_status(status));
    let message = format!("the provider responded with HTTP {status}: {}", message_line(&body));
    ModelError { kind: refined(kind, &body), message, retry_after: retry_after(headers, &body) }
}

/// Returns the error for an event within a stream.
pub(crate) fn error_from_event(event: &Value) -> ModelError {
    let kind = kind_by_name(event).unwrap_or_else(|| kind_by_code(event));
    let message = format!("the provider reported an error: {}", message_line(event));
    let retry_after = retry_after(&HeaderMap::new(), event);
    ModelError { kind: refined(kind, event), message, retry_after }
}

/// Returns the error for an event whose name is `error`, whatever its data is.
pub(crate) fn error_from_text(data: &str) -> ModelError {
    error_from_event(&json_or_text(data))
}

/// Returns the error for an answer that stopped because it has failed. `details` has the provider's error or message,
/// if there is one.
pub(crate) fn error_from_stop(reason: &str, details: &Value) -> ModelError {
    if is_error(&details["error"]) {
        return error_from_event(details);
    }
    let mut message = format!("the provider ended the answer: {}", truncated_line(reason));
    if let Some(words) = details["message"].as_str().filter(|words| !words.is_empty()) {
        message = format!("{message}: {}", truncated_line(words));
    }
    ModelError::invalid_response(message)
}

/// Returns `true` if a field that reports an error does. Some servers send it empty with each event.
pub(crate) fn is_error(field: &Value) -> bool {
    match field {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Number(code) => code.as_i64() != Some(0),
        Value::Bool(true) => true,
    }
}

/// Returns `true` if an event without content is an error without a field `error`, as gateways, web frameworks and some
/// providers write it with the status 200.
pub(crate) fn reports_error(event: &Value) -> bool {
    let codes =
        ["code", "error_code", "errorCode", "errcode", "status_code", "statusCode", "StatusCode"];
    let texts = ["error_msg", "error_message", "errmsg", "exception", "detail", "errors"];
    let status = event["status"].as_str().unwrap_or_default().to_ascii_lowercase();
    let has_failed = codes.iter().any(|field| is_failure(&event[*field]));
    let has_succeeded = codes.iter().any(|field| !event[*field].is_null()) && !has_failed;
    event["object"] == "error"
        || event["type"] == "error"
        || has_failed
        || texts.iter().any(|field| is_error(&event[*field]))
        || matches!(status.as_str(), "error" | "fail" | "failed" | "failure")
        || event["status"].as_u64().is_some_and(|status| status >= 400)
        || event["success"] == false
        || event["message"].as_str().is_some_and(|message| !message.is_empty()) && !has_succeeded
        || is_failure(&event["base_resp"]["status_code"])
        || is_failure(&event["header"]["code"])
}

/// Returns `true` if a field with the code of an outcome has that of a failure.
fn is_failure(code: &Value) -> bool {
    match code {
        Value::Number(code) => code.as_i64().is_none_or(|code| code != 0 && code != 200),
        Value::String(code) => {
            !matches!(code.to_ascii_lowercase().as_str(), "" | "0" | "200" | "ok" | "success")
        }
        _ => false,
    }
}

fn json_or_text(body: &str) -> Value {
    let body = integers::readable(body.as_bytes());
    serde_json::from_str(&body).unwrap_or_else(|_| Value::from(body))
}

fn kind_by_status(status: u16) -> ModelErrorKind {
    match status {
        401..=403 => ModelErrorKind::Unauthorized,
        408 | 409 => ModelErrorKind::Unavailable,
        413 => ModelErrorKind::ContextTooLong,
        429 => ModelErrorKind::RateLimited,
        503 | 529 => ModelErrorKind::Overloaded,
        500.. => ModelErrorKind::Unavailable,
        _ => ModelErrorKind::BadRequest,
    }
}

/// Returns the error object, which providers put in different places.
fn error_object(body: &Value) -> &Value {
    let places = [
        "/0/error",
        "/error",
        "/response/error",
        "/errors/0",
        "/detail/0",
        "/base_resp",
        "/header",
    ];
    let found = places.iter().filter_map(|place| body.pointer(place));
    found.into_iter().find(|error| is_error(error)).unwrap_or(body)
}

/// Returns the codes of an error.
fn names(body: &Value) -> impl Iterator<Item = &str> {
    let error = error_object(body);
    ["code", "type", "status"].into_iter().filter_map(|field| error[field].as_str())
}

fn kind_by_name(body: &Value) -> Option<ModelErrorKind> {
    names(body)
        .find_map(|name| NAMES.iter().find_map(|(known, kind)| (*known == name).then_some(*kind)))
}

/// Classifies an event by its code or general name.
fn kind_by_code(event: &Value) -> ModelErrorKind {
    let error = error_object(event);
    let codes = ["code", "status", "statusCode", "StatusCode"];
    let code = codes.iter().find_map(|field| error[*field].as_u64());
    let code = code.and_then(|code| u16::try_from(code).ok());
    match code {
        Some(code) if code >= 400 => kind_by_status(code),
        _ if names(event).any(|name| GENERAL_NAMES.contains(&name)) => ModelErrorKind::BadRequest,
        _ => ModelErrorKind::Unavailable,
    }
}

/// Refines the kind by the provider's message, if there is no specific code.
fn refined(kind: ModelErrorKind, body: &Value) -> ModelErrorKind {
    if !matches!(kind, ModelErrorKind::BadRequest | ModelErrorKind::Unavailable) {
        return kind;
    }
    let message = message_line(body).to_lowercase();
    if TOO_LONG.iter().any(|phrase| message.contains(phrase)) {
        ModelErrorKind::ContextTooLong
    } else if NOT_ALLOWED.iter().any(|phrase| message.contains(phrase)) {
        ModelErrorKind::Unauthorized
    } else {
        kind
    }
}

/// Returns the provider's message, on one line and truncated.
fn message_line(body: &Value) -> String {
    let error = error_object(body);
    let fields =
        ["message", "msg", "status_msg", "error_msg", "error_message", "errmsg", "exception"];
    let of_error = fields.iter().map(|field| &error[*field]);
    let of_body = [error, &body["message"], &body["detail"]];
    let message = of_error.chain(of_body).find_map(Value::as_str).map(str::to_owned);
    truncated_line(&message.unwrap_or_else(|| error.to_string()))
}

/// Returns the text, on one line and truncated.
pub(crate) fn truncated_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return "no details".to_owned();
    }
    match line.char_indices().nth(WORDS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// Returns the retry delay that the provider asks for: in milliseconds, in seconds, as a date, or in the body (Gemini).
/// A date is compared with the provider's own clock if the response has a date.
fn retry_after(headers: &HeaderMap, body: &Value) -> Option<Duration> {
    let milliseconds = header_text(headers, "retry-after-ms");
    if let Some(milliseconds) = milliseconds.and_then(|value| value.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(milliseconds / 1000.0).ok();
    }
    if let Some(value) = header_text(headers, RETRY_AFTER.as_str()) {
        if let Ok(seconds) = value.parse::<f64>() {
            return Duration::try_from_secs_f64(seconds).ok();
        }
        let until = httpdate::parse_http_date(value).ok()?;
        let date = header_text(headers, DATE.as_str());
        let parsed = date.and_then(|date| httpdate::parse_http_date(date).ok());
        let now = parsed.unwrap_or_else(SystemTime::now);
        return Some(until.duration_since(now).unwrap_or_default());
    }
    let details = error_object(body)["details"].as_array()?;
    let delay = details.iter().find_map(|detail| detail["retryDelay"].as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use reqwest::header::HeaderValue;

    fn check(status: u16, body: &str, expected: Expect) {
        let error = error_from_response(status, &HeaderMap::new(), body);
        expected.assert_eq(&format!("{} · {error}", error.kind));
    }

    #[test]
    fn a_code_is_more_specific_than_a_status() {
        let quota =
            r#"{"error":{"message":"You exceeded your\nquota","type":"insufficient_quota"}}"#;
        let expected =
            expect!["unauthorized · the provider responded with HTTP 429: You exceeded your quota"];
        check(429, quota, expected);
        let long = r#"{"error":{"message":"too many","code":"context_length_exceeded"}}"#;
        check(
            400,
            long,
            expect!["context_too_long · the provider responded with HTTP 400: too many"],
        );
        let long = r#"{"type":"error","error":{"type":"invalid_request_error",
            "message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#;
        let expected = expect![
            "context_too_long · the provider responded with HTTP 400: prompt is too long: 210000 tokens > 200000 maximum"
        ];
        check(400, long, expected);
        // A general name is less specific than the status.
        let keyless =
            r#"{"error":{"message":"no key","type":"invalid_request_error","code":null}}"#;
        check(401, keyless, expect!["unauthorized · the provider responded with HTTP 401: no key"]);
        let gemini = r#"{"error":{"code":400,"message":"API key not valid. Pass a valid one.",
            "status":"INVALID_ARGUMENT"}}"#;
        check(
            400,
            gemini,
            expect![[r#"
            unauthorized · the provider responded with HTTP 400: API key not valid. Pass a valid one."#]],
        );
        let gemini = r#"[{"error":{"code":503,"message":"busy","status":"UNAVAILABLE"}}]"#;
        check(503, gemini, expect!["overloaded · the provider responded with HTTP 503: busy"]);
    }

    #[test]
    fn any_body_is_accepted() {
        check(500, "", expect!["unavailable · the provider responded with HTTP 500: no details"]);
        let html = "<html>\n  Bad gateway\n</html>";
        let expected = expect![
            "unavailable · the provider responded with HTTP 502: <html> Bad gateway </html>"
        ];
        check(502, html, expected);
        check(
            404,
            r#"{"error":"no such model"}"#,
            expect!["bad_request · the provider responded with HTTP 404: no such model"],
        );
        check(
            422,
            r#"{"detail":[{"loc":1}]}"#,
            expect![[r#"bad_request · the provider responded with HTTP 422: {"loc":1}"#]],
        );
        let long = "é".repeat(2 * WORDS_MAX);
        let error = error_from_response(400, &HeaderMap::new(), &long);
        assert_eq!(error.message.chars().filter(|c| *c == 'é').count(), WORDS_MAX);
    }

    #[test]
    fn a_retry_delay_has_many_forms() {
        let parsed = |headers: &[(&'static str, &'static str)], body: &str| {
            let pairs = headers.iter().map(|(name, value)| {
                (name.parse().expect("a name"), HeaderValue::from_static(value))
            });
            let headers: HeaderMap = pairs.collect();
            error_from_response(429, &headers, body).retry_after
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(parsed(&[("retry-after", "20")], ""), seconds(20));
        assert_eq!(parsed(&[("retry-after", " 1.5 ")], ""), Some(Duration::from_millis(1500)));
        assert_eq!(parsed(&[("retry-after-ms", "1500")], ""), Some(Duration::from_millis(1500)));
        let date = ("date", "Wed, 21 Oct 2026 07:28:00 GMT");
        let later = ("retry-after", "Wed, 21 Oct 2026 07:29:30 GMT");
        assert_eq!(parsed(&[date, later], ""), seconds(90));
        let before = ("retry-after", "Wed, 21 Oct 2026 07:00:00 GMT");
        assert_eq!(parsed(&[date, before], ""), seconds(0));
        for nonsense in ["-3", "soon", "NaN", "1e300", ""] {
            assert_eq!(parsed(&[("retry-after", nonsense)], ""), None, "{nonsense}");
        }
        let body = r#"{"error":{"code":429,"details":[{"@type":"x"},{"retryDelay":"34.5s"}]}}"#;
        assert_eq!(parsed(&[], body), Some(Duration::from_millis(34_500)));
    }
}
