//! Responses without a stream: every status and its meaning.

use std::time::Duration;

use abide_models::{ModelErrorKind, Protocol};
use expect_test::{Expect, expect};

use super::server::{Reply, Server};
use super::{KEY, all, question, received, remote, shown};
use abide_models::ModelProvider as _;

async fn check(protocol: Protocol, reply: Reply, expected: Expect) {
    expected.assert_eq(&shown(&received(protocol, reply).await));
}

#[tokio::test]
async fn every_status_has_its_error_kind() {
    let kinds = [
        (400, ModelErrorKind::BadRequest),
        (401, ModelErrorKind::Unauthorized),
        (402, ModelErrorKind::Unauthorized),
        (403, ModelErrorKind::Unauthorized),
        (404, ModelErrorKind::BadRequest),
        (408, ModelErrorKind::Unavailable),
        (413, ModelErrorKind::ContextTooLong),
        (422, ModelErrorKind::BadRequest),
        (429, ModelErrorKind::RateLimited),
        (500, ModelErrorKind::Unavailable),
        (502, ModelErrorKind::Unavailable),
        (503, ModelErrorKind::Overloaded),
        (504, ModelErrorKind::Unavailable),
        (529, ModelErrorKind::Overloaded),
    ];
    for (status, kind) in kinds {
        let events = received(Protocol::OpenAi, Reply::new(status, "", "no")).await;
        let error = events[0].as_ref().expect_err("it is refused");
        assert_eq!((events.len(), error.kind), (1, kind), "{status}");
        assert_eq!(error.message, format!("the provider responded with HTTP {status}: no"));
    }
}

#[tokio::test]
async fn the_providers_message_is_quoted() {
    let anthropic =
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    check(
        Protocol::Anthropic,
        Reply::new(529, "", anthropic),
        expect!["error overloaded: the provider responded with HTTP 529: Overloaded"],
    )
    .await;
    let openai =
        r#"{"error":{"message":"Rate limit reached for gpt-5","code":"rate_limit_exceeded"}}"#;
    check(
        Protocol::OpenAiResponses,
        Reply::new(429, "retry-after: 7\r\n", openai),
        expect![
            "error rate_limited: the provider responded with HTTP 429: Rate limit reached for gpt-5 (after 7s)"
        ],
    )
    .await;
    let dates = "date: Wed, 21 Oct 2026 07:28:00 GMT\r\n\
        retry-after: Wed, 21 Oct 2026 07:29:00 GMT\r\n";
    check(
        Protocol::OpenAi,
        Reply::new(503, dates, ""),
        expect!["error overloaded: the provider responded with HTTP 503: no details (after 60s)"],
    )
    .await;
    let gemini = r#"[{"error":{"code":400,"status":"INVALID_ARGUMENT",
        "message":"The input token count (1200000) exceeds the maximum number of tokens allowed."}}]"#;
    check(
        Protocol::Gemini,
        Reply::new(400, "", gemini),
        expect![[r#"
            error context_too_long: the provider responded with HTTP 400: The input token count (1200000) exceeds the maximum number of tokens allowed."#]],
    )
    .await;
    check(
        Protocol::Ollama,
        Reply::new(404, "", r#"{"error":"model 'asked' not found"}"#),
        expect![
            "error bad_request: the provider responded with HTTP 404: model \\'asked\\' not found"
        ],
    )
    .await;
}

/// Following it would send the key to another server.
#[tokio::test]
async fn a_redirect_is_reported_and_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let mut elsewhere = Server::start(vec![Reply::events("")]).await;
        let headers = format!("location: {}/v1?key={KEY}\r\n", elsewhere.url);
        let events = received(Protocol::Anthropic, Reply::new(status, &headers, "")).await;
        let error = events[0].as_ref().expect_err("it is refused");
        assert_eq!(error.kind, ModelErrorKind::BadRequest);
        assert!(error.message.contains(&format!("redirects to {} ", elsewhere.url)), "{error}");
        assert!(error.message.contains("`base_url`") && !error.message.contains(KEY), "{error}");
        assert!(elsewhere.seen.try_recv().is_err(), "{status}: the redirect is not followed");
    }
}

#[tokio::test]
async fn a_key_is_removed_from_the_providers_message() {
    let body = format!("{{\"error\":{{\"message\":\"Incorrect API key provided: {KEY}.\"}}}}");
    let reply = Reply::new(401, "", body);
    let expected = expect![
        "error unauthorized: the provider responded with HTTP 401: Incorrect API key provided: [key]."
    ];
    check(Protocol::OpenAi, reply, expected).await;
    let event = format!("data: {{\"error\":{{\"message\":\"{KEY} expired\"}}}}\n\n");
    let expected = expect!["error unavailable: the provider reported an error: [key] expired"];
    check(Protocol::OpenAi, Reply::events(event), expected).await;
}

#[tokio::test]
async fn json_instead_of_a_stream() {
    let json = "content-type: application/json; charset=utf-8\r\n";
    let error = r#"{"error":{"message":"no such model","type":"invalid_request_error"}}"#;
    check(
        Protocol::OpenAiCompatible,
        Reply::new(200, json, error),
        expect!["error bad_request: the provider reported an error: no such model"],
    )
    .await;
    check(
        Protocol::OpenAiCompatible,
        Reply::new(200, json, r#"{"choices":[]}"#),
        expect!["error invalid_response: the provider responded with JSON instead of a stream"],
    )
    .await;
}

/// The status is reported even if the body does not end.
#[tokio::test]
async fn an_endless_error_body_is_truncated() {
    let events = received(Protocol::OpenAi, Reply::new(500, "", "no ".repeat(1 << 20))).await;
    let error = events[0].as_ref().expect_err("it is refused");
    assert_eq!(error.kind, ModelErrorKind::Unavailable);
    assert!(error.message.len() < 1000);
}

#[tokio::test]
async fn an_unreachable_provider() {
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}", free.local_addr().expect("it has an address"));
    drop(free);
    let events = all(remote(Protocol::OpenAi, &url).stream(question())).await;
    let error = events[0].as_ref().expect_err("no server listens");
    assert_eq!(error.kind, ModelErrorKind::Unavailable);
    assert!(error.message.starts_with("the provider cannot be reached: "), "{error}");
    assert!(!error.message.contains(&url), "{error}");
    assert_eq!(error.retry_after, None::<Duration>);
}
