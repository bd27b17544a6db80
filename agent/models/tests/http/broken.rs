//! Streams that end early, are invalid, or report an error.

use abide_models::{
    ModelErrorKind, ModelProvider as _, Protocol, Remote, RemoteSettings, Stop, answer_of,
};
use expect_test::{Expect, expect};

use super::server::{Reply, Server};
use super::{question, received, shown};

const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Sön\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

async fn check(protocol: Protocol, body: impl Into<Vec<u8>>, expected: Expect) {
    expected.assert_eq(&shown(&received(protocol, Reply::events(body)).await));
}

/// The first token, then the second up to a byte position within a fragment of it.
fn cut_after(piece: &str, bytes: usize) -> Vec<u8> {
    let at = TOKEN.find(piece).expect("the token contains the fragment") + bytes;
    [TOKEN.as_bytes(), &TOKEN.as_bytes()[..at]].concat()
}

#[tokio::test]
async fn an_empty_answer() {
    let expected = expect!["error invalid_response: the stream ended before an answer began"];
    check(Protocol::OpenAi, "", expected).await;
    let expected = expect!["error invalid_response: the stream ended before an answer began"];
    check(Protocol::Anthropic, ": hello\n\n", expected).await;
    let expected = expect!["error invalid_response: the stream ended before an answer began"];
    check(Protocol::OpenAi, "data: [DONE]\n\n", expected).await;
    let expected = expect!["error invalid_response: the stream ended before an answer began"];
    check(Protocol::Gemini, "<html>it works</html>", expected).await;
}

/// Regression: the answer of a provider of another kind was `invalid_response`, which is retried, with a message about
/// an early end.
#[tokio::test]
async fn an_answer_of_another_protocol_names_the_kind() {
    let anthropic = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":\
        {\"model\":\"m\",\"usage\":{\"input_tokens\":3}}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let chat = format!("{TOKEN}{STOP}");
    let foreign = |kind: &str| {
        format!(
            "error bad_request: provider `tested` does not respond in the format of its kind \
             `{kind}`: correct its `kind` or its `base_url`"
        )
    };
    for (protocol, body, kind) in [
        (Protocol::OpenAi, anthropic, "openai"),
        (Protocol::OpenAiCompatible, anthropic, "openai_compatible"),
        (Protocol::OpenAiResponses, anthropic, "openai_responses"),
        (Protocol::Gemini, anthropic, "gemini"),
        (Protocol::Anthropic, &chat, "anthropic"),
        (Protocol::OpenAiResponses, &chat, "openai_responses"),
        (Protocol::Gemini, &chat, "gemini"),
    ] {
        let refused = shown(&received(protocol, Reply::events(body)).await);
        assert_eq!(refused, foreign(kind), "{protocol:?}");
    }
}

/// Regression: OpenAI reports a refusal as text with the stop reason of a complete answer.
#[tokio::test]
async fn a_refusal_is_not_a_complete_answer() {
    let chat = "data: {\"choices\":[{\"delta\":{\"refusal\":\"No.\"}}]}\n\n";
    let refused = shown(&received(Protocol::OpenAi, Reply::events(format!("{chat}{STOP}"))).await);
    assert_eq!(refused, "text No.\nanswer Filtered -/-/-/-/unavailable asked");
    let streamed = "data: {\"type\":\"response.refusal.delta\",\"delta\":\"No.\"}\n\n\
        data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n";
    let whole = "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\
        \"output\":[{\"type\":\"message\",\"content\":[{\"type\":\"refusal\",\
        \"refusal\":\"No.\"}]}]}}\n\n";
    for body in [streamed, whole] {
        let refused = shown(&received(Protocol::OpenAiResponses, Reply::events(body)).await);
        assert_eq!(refused, "text No.\nanswer Filtered -/-/-/-/unavailable asked", "{body}");
    }
}

#[tokio::test]
async fn a_stream_cut_between_events() {
    let expected = expect![[r#"
        text Sön
        error invalid_response: the stream ended in the middle of an answer"#]];
    check(Protocol::OpenAi, TOKEN, expected).await;
}

#[tokio::test]
async fn a_stream_cut_within_a_line() {
    let expected = expect![[r#"
        text Sön
        error invalid_response: the stream has an invalid event: EOF while parsing an object at line 1 column 20"#]];
    check(Protocol::OpenAi, cut_after("delta\"", 6), expected).await;
}

#[tokio::test]
async fn a_stream_cut_within_a_character() {
    let expected = expect![[r#"
        text Sön
        error invalid_response: the stream has an invalid event: EOF while parsing a string at line 1 column 40"#]];
    check(Protocol::OpenAi, cut_after("ö", 1), expected).await;
}

/// A lost connection is not accepted as the end of an answer, unless the answer is complete.
#[tokio::test]
async fn a_body_shorter_than_it_should_be() {
    let short = |body: &str| {
        let mut reply = Reply::events(body);
        reply.head = reply.head.replace("connection: close", "content-length: 9999");
        reply
    };
    let events = received(Protocol::OpenAi, short(TOKEN)).await;
    assert_eq!(events.len(), 2);
    let error = events[1].as_ref().expect_err("the body is truncated");
    assert_eq!(error.kind, ModelErrorKind::InvalidResponse);
    assert!(error.message.starts_with("the connection was lost during the stream: "), "{error}");
    let expected = expect![[r#"
        text Sön
        answer End -/-/-/-/unavailable asked"#]];
    let whole = short(&[TOKEN, STOP].concat());
    expected.assert_eq(&shown(&received(Protocol::OpenAi, whole).await));
}

#[tokio::test]
async fn an_event_that_is_not_json() {
    let body = format!("{TOKEN}data: {{'choices': None}}\n\n{STOP}");
    let expected = expect![[r#"
        text Sön
        error invalid_response: the stream has an invalid event: key must be a string at line 1 column 2"#]];
    check(Protocol::OpenAi, body, expected).await;
}

#[tokio::test]
async fn an_error_inside_the_stream() {
    let body =
        format!("{TOKEN}data: {{\"error\":{{\"code\":503,\"message\":\"busy\"}}}}\n\n{STOP}");
    let expected = expect![[r#"
        text Sön
        error overloaded: the provider reported an error: busy"#]];
    check(Protocol::OpenAi, body, expected).await;
    let body = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\
        \"message\":\"Overloaded\"}}\n\n";
    let expected = expect!["error overloaded: the provider reported an error: Overloaded"];
    check(Protocol::Anthropic, body, expected).await;
    let body = "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\
        \"rate_limit_exceeded\",\"message\":\"too fast\"}}}\n\n";
    let expected = expect!["error rate_limited: the provider reported an error: too fast"];
    check(Protocol::OpenAiResponses, body, expected).await;
    let body = "data: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"oh\"}\n\n";
    let expected = expect!["error unavailable: the provider reported an error: oh"];
    check(Protocol::OpenAiResponses, body, expected).await;
    let body = "data: {\"error\":{\"code\":429,\"message\":\"later\",\
        \"details\":[{\"retryDelay\":\"3s\"}]}}\r\n\r\n";
    let expected = expect!["error rate_limited: the provider reported an error: later (after 3s)"];
    check(Protocol::Gemini, body, expected).await;
    let lines = "{\"message\":{\"content\":\"So\"}}\n{\"error\":\"out of memory\"}\n";
    let expected = expect![[r#"
        text So
        error unavailable: the provider reported an error: out of memory"#]];
    expected.assert_eq(&shown(&received(Protocol::Ollama, Reply::lines(lines)).await));
}

#[tokio::test]
async fn a_line_that_is_too_long() {
    let mut body = TOKEN.as_bytes().to_vec();
    body.extend_from_slice(b"data: ");
    body.resize(18 << 20, b'x');
    let expected = expect![[r#"
        text Sön
        error invalid_response: an event of the stream is longer than 16 MiB"#]];
    check(Protocol::OpenAi, body, expected).await;
}

/// The last event may lack its empty line, and the stop reason may be the only end marker.
#[tokio::test]
async fn lenient_ends_are_accepted() {
    let expected = expect![[r#"
        text Sön
        answer End -/-/-/-/unavailable asked"#]];
    check(Protocol::OpenAi, format!("{TOKEN}{}", STOP.trim_end()), expected).await;
}

/// The class: a text that an unread error had ended was a complete answer. A server that never sends a reason needs a setting.
#[tokio::test]
async fn a_text_without_a_stop_reason() {
    let body = format!("{TOKEN}data: [DONE]");
    let expected = expect![[r#"
        text Sön
        error invalid_response: the provider ended the answer without a `finish_reason`: if it never sends one, set `requires_stop_reason: false`"#]];
    check(Protocol::OpenAi, body.clone(), expected).await;
    let server = Server::start(vec![Reply::events(body)]).await;
    let mut settings = RemoteSettings::new("tested", Protocol::OpenAi);
    settings.base_url = Some(server.url.clone());
    settings.requires_stop_reason = false;
    let remote = Remote::new(settings).expect("the settings are valid");
    let answer = answer_of(remote.stream(question())).await.expect("it is accepted");
    assert_eq!((answer.text.as_str(), answer.stop), ("Sön", Stop::Other("unstated".to_owned())));
}

/// The token limit may truncate the arguments of a call. They are returned as far as they were received.
#[tokio::test]
async fn a_call_truncated_by_the_token_limit() {
    let call = "{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\"}}";
    let body = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n\
         data: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\":\"length\"}}]}}\n\ndata: [DONE]\n\n"
    );
    let expected = expect![[r#"
        call c f {\"a
        answer Length -/-/-/-/unavailable asked"#]];
    check(Protocol::OpenAi, body, expected).await;
}

/// A proxy that wants a login, or a wrong `base_url`: the error said that the stream ended early.
#[tokio::test]
async fn a_web_page_instead_of_a_stream() {
    let page =
        Reply::new(200, "content-type: text/html; charset=utf-8\r\n", "<html>Sign in</html>");
    let expected = expect![
        "error invalid_response: the provider responded with a web page instead of a stream: check its `base_url` and whether a login is required"
    ];
    expected.assert_eq(&shown(&received(Protocol::OpenAi, page).await));
}
