//! Providers without data for too long, and callers that cancel.

use std::time::Duration;

use abide_models::{
    ModelErrorKind, ModelEvent, ModelProvider as _, Protocol, Remote, RemoteSettings,
    StallTimeouts, Stop, answer_of,
};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::server::{Reply, Server, Then};
use super::{question, remote};

const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"So\"}}]}\n\n";

/// How long after the last data the stream fails, and with which error. The clock is paused and advances only to
/// pending timers.
async fn gives_up(reply: Reply, tokens: usize) -> (Duration, ModelErrorKind) {
    let mut server = Server::start(vec![reply.silent()]).await;
    let mut stream = remote(Protocol::OpenAi, &server.url).stream(question());
    for _ in 0..tokens {
        let event = stream.next().await.expect("a token arrives").expect("no error");
        assert_eq!(event, ModelEvent::Text("So".to_owned()));
    }
    // Read the provider's data before the clock is paused. Otherwise it would arrive too late.
    let next = tokio::spawn(async move {
        let error = stream.next().await.expect("the stream ends").expect_err("in an error");
        assert!(stream.next().await.is_none(), "an error ends the stream");
        error
    });
    server.silence().await;
    tokio::task::yield_now().await;
    tokio::time::pause();
    let began = Instant::now();
    let error = next.await.expect("the task does not panic");
    tokio::time::resume();
    (began.elapsed(), error.kind)
}

/// The clock is paused shortly after the wait began.
fn about(waited: Duration, seconds: u64) -> bool {
    let limit = Duration::from_secs(seconds);
    waited <= limit + Duration::from_millis(5) && waited > limit - Duration::from_secs(5)
}

#[tokio::test]
async fn no_first_token() {
    let (waited, kind) = gives_up(Reply::events(""), 0).await;
    assert_eq!(kind, ModelErrorKind::Stalled);
    assert!(about(waited, 60), "{waited:?}");
}

/// A byte is not a token: a provider that sends comments still has the longer timeout.
#[tokio::test]
async fn nothing_after_a_comment() {
    let (waited, kind) = gives_up(Reply::events(": thinking\n\n"), 0).await;
    assert_eq!(kind, ModelErrorKind::Stalled);
    assert!(about(waited, 60), "{waited:?}");
}

#[tokio::test]
async fn nothing_after_a_token() {
    let (waited, kind) = gives_up(Reply::events(TOKEN), 1).await;
    assert_eq!(kind, ModelErrorKind::Stalled);
    assert!(about(waited, 30), "{waited:?}");
}

/// The response headers do not arrive either.
#[tokio::test]
async fn no_answer_at_all() {
    let mute = Reply { head: String::new(), ..Reply::events("") };
    let (waited, kind) = gives_up(mute, 0).await;
    assert_eq!(kind, ModelErrorKind::Stalled);
    assert!(about(waited, 60), "{waited:?}");
}

/// An error response is reported although its body does not end.
#[tokio::test]
async fn an_error_body_that_does_not_end() {
    let reply = Reply::new(429, "retry-after: 5\r\n", "slow");
    let (waited, kind) = gives_up(reply, 0).await;
    assert_eq!(kind, ModelErrorKind::RateLimited);
    assert!(about(waited, 60), "{waited:?}");
}

/// Token counts may follow a complete answer. Their absence causes a short delay and no error.
#[tokio::test]
async fn silence_after_a_complete_answer() {
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let reply = Reply::events([TOKEN, stop].concat()).silent();
    let mut server = Server::start(vec![reply]).await;
    let stream = remote(Protocol::OpenAi, &server.url).stream(question());
    let answer = tokio::spawn(answer_of(stream));
    server.silence().await;
    tokio::time::pause();
    let began = Instant::now();
    let answer = answer.await.expect("the task does not panic").expect("there is an answer");
    assert_eq!((answer.text.as_str(), answer.stop), ("So", Stop::End));
    assert!(began.elapsed() <= Duration::from_secs(6), "{:?}", began.elapsed());
}

/// The time in which the caller was busy counted as silence of the provider: the token counts of a complete answer were not read
/// although they had arrived.
#[tokio::test]
async fn a_slow_caller_is_not_silence() {
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n";
    // So much that the token counts are in a later chunk.
    let comments = ": thinking\n\n".repeat(100_000);
    let reply = Reply::events([TOKEN, stop, &comments, usage, "data: [DONE]\n\n"].concat());
    let server = Server::start(vec![reply]).await;
    let mut stream = remote(Protocol::OpenAi, &server.url).stream(question());
    let event = stream.next().await.expect("a token arrives").expect("no error");
    assert_eq!(event, ModelEvent::Text("So".to_owned()));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(700)).await;
    tokio::time::resume();
    let answer = answer_of(stream).await.expect("there is an answer");
    assert_eq!((answer.usage.input_tokens, answer.usage.output_tokens), (Some(7), Some(1)));
}

/// Class: peers that do not end. Comments and empty events kept a request alive without a limit, before the first token, between
/// tokens and after a complete answer: any byte was progress.
#[tokio::test]
async fn a_stream_without_content_ends_in_every_protocol() {
    let limit = Duration::from_millis(100);
    let stall_timeouts = StallTimeouts { content: limit, ..StallTimeouts::default() };
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let complete = [TOKEN, stop].concat();
    let stalled = "stalled: the provider kept the connection open for 100ms without a part of the answer (content_timeout_seconds)";
    let empty_delta = "data: {\"choices\":[{\"delta\":{}}]}\n\n";
    for (protocol, begun, again, expected) in [
        (Protocol::OpenAi, "", ": keep-alive\n\n", stalled),
        (Protocol::OpenAi, "", empty_delta, stalled),
        (Protocol::OpenAi, "", "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n", stalled),
        (Protocol::OpenAi, TOKEN, empty_delta, stalled),
        (Protocol::OpenAi, &complete, empty_delta, "answer So"),
        (Protocol::OpenAi, &complete, ": keep-alive\n\n", "answer So"),
        (Protocol::OpenAiCompatible, TOKEN, "\n", stalled),
        (
            Protocol::OpenAiResponses,
            "",
            "data: {\"type\":\"response.in_progress\",\"response\":{}}\n\n",
            stalled,
        ),
        (
            Protocol::OpenAiResponses,
            "",
            "data: {\"type\":\"response.output_text.delta\",\"delta\":\"\"}\n\n",
            stalled,
        ),
        (Protocol::Anthropic, "", "event: ping\ndata: {\"type\": \"ping\"}\n\n", stalled),
        (
            Protocol::Gemini,
            "",
            "data: {\"candidates\":[{\"content\":{\"parts\":[]}}]}\n\n",
            stalled,
        ),
        (
            Protocol::Gemini,
            "",
            "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"\"}]}}]}\n\n",
            stalled,
        ),
        (
            Protocol::Ollama,
            "",
            "{\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":false}\n",
            stalled,
        ),
    ] {
        let reply = match protocol {
            Protocol::Ollama => Reply::lines(begun),
            _ => Reply::events(begun),
        };
        let server = Server::start(vec![Reply { then: Then::Repeat(again), ..reply }]).await;
        let settings = RemoteSettings {
            base_url: Some(server.url.clone()),
            stall_timeouts,
            ..RemoteSettings::new("tested", protocol)
        };
        let remote = Remote::new(settings).expect("the settings are valid");
        let shown = match answer_of(remote.stream(question())).await {
            Ok(answer) => format!("answer {}", answer.text),
            Err(error) => format!("{}: {error}", error.kind),
        };
        assert_eq!(shown, expected, "{protocol:?} {again}");
    }
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection() {
    let mut server = Server::start(vec![Reply::events(TOKEN).silent()]).await;
    let mut stream = remote(Protocol::OpenAi, &server.url).stream(question());
    stream.next().await.expect("a token arrives").expect("no error");
    drop(stream);
    server.gone().await;
}

#[tokio::test]
async fn nothing_is_sent_before_the_stream_is_polled() {
    let mut server = Server::start(vec![Reply::events(TOKEN).silent()]).await;
    let remote = remote(Protocol::OpenAi, &server.url);
    drop(remote.stream(question()));
    let mut stream = remote.stream(question());
    assert!(server.seen.try_recv().is_err(), "no request was sent");
    stream.next().await.expect("a token arrives").expect("no error");
    server.request().await;
}
