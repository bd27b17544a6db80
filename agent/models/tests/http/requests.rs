//! Requests to providers: method, headers and body on the wire.

use std::collections::BTreeMap;

use abide_models::{
    EmbeddingRequest, ModelCall, ModelMessage, ModelProvider as _, ModelRequest, Protocol, Remote,
    RemoteSettings, ToolSpec, answer_of,
};
use expect_test::expect_file;
use serde_json::{Value, json};

use super::server::{Reply, Server};
use super::{KEY, remote};

/// A conversation with difficult cases: two calls at once, a duplicate id, an empty id, arguments that are not
/// JSON, an instruction in the middle, and a failed call.
fn conversation() -> ModelRequest {
    let call = |id: &str, name: &str, arguments: &str| ModelCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let result = |id: &str, name: &str, content: &str, is_error| ModelMessage::Tool {
        call_id: id.to_owned(),
        name: name.to_owned(),
        content: content.to_owned(),
        is_error,
    };
    let calls = |text: &str, reasoning: Option<&str>, calls: Vec<ModelCall>| {
        let text = text.to_owned();
        let reasoning = reasoning.map(str::to_owned);
        ModelMessage::Assistant { text, reasoning, calls, carry: None }
    };
    ModelRequest {
        model: "vendor-max".to_owned(),
        system: Some("Be brief.".to_owned()),
        messages: vec![
            ModelMessage::user("Weather in Oslo and Rome?"),
            calls(
                "Let me see.",
                Some("Two calls."),
                vec![
                    call("c1", "weather", "{ \"city\": \"Oslo\", \"at\": 1.0 }"),
                    call("c1", "weather", "{'city': 'Rome'}"),
                ],
            ),
            result("c1", "weather", "-3", false),
            result("c1", "weather", "bad arguments", true),
            calls("", None, vec![call("", "now", "")]),
            result("", "now", "12:00", false),
            ModelMessage::System { text: "The user is in a hurry.".to_owned() },
            ModelMessage::assistant("Oslo: -3."),
            ModelMessage::user("And Rome?"),
        ],
        tools: vec![ToolSpec {
            name: "weather".to_owned(),
            description: "Returns the weather".to_owned(),
            parameters: json!({ "type": "object", "properties": { "city": { "type": "string" } } }),
        }],
        temperature: Some(0.5),
        max_tokens: Some(100),
        response_schema: Some(json!({ "type": "object" })),
        ..ModelRequest::default()
    }
}

/// The request on the wire, with a formatted body.
async fn asked(remote: impl FnOnce(&str) -> Remote, request: ModelRequest) -> String {
    let mut server = Server::start(vec![Reply::events("")]).await;
    let remote = remote(&server.url);
    answer_of(remote.stream(request)).await.expect_err("there is no answer");
    let request = server.request().await;
    let headers = request.headers.into_iter().filter(|header| {
        !["host:", "content-length:", "user-agent:"].iter().any(|own| header.starts_with(own))
    });
    let body: Value = serde_json::from_str(&request.body).expect("it is JSON");
    let body = serde_json::to_string_pretty(&body).expect("JSON is written");
    let headers: Vec<String> = headers.collect();
    format!("{}\n{}\n\n{body}\n", request.line, headers.join("\n"))
}

async fn check(protocol: Protocol, golden: &str) {
    let text = asked(|url| remote(protocol, url), conversation()).await;
    let golden = format!("{}/tests/golden/request-{golden}.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![golden].assert_eq(&text);
}

#[tokio::test]
async fn openai_is_asked() {
    check(Protocol::OpenAi, "openai").await;
}

#[tokio::test]
async fn a_compatible_server_is_asked() {
    check(Protocol::OpenAiCompatible, "openai-compatible").await;
}

#[tokio::test]
async fn openai_responses_is_asked() {
    check(Protocol::OpenAiResponses, "openai-responses").await;
}

#[tokio::test]
async fn anthropic_is_asked() {
    check(Protocol::Anthropic, "anthropic").await;
}

#[tokio::test]
async fn gemini_is_asked() {
    check(Protocol::Gemini, "gemini").await;
}

#[tokio::test]
async fn ollama_is_asked() {
    check(Protocol::Ollama, "ollama").await;
}

/// Absent options are not sent.
#[tokio::test]
async fn a_minimal_request_has_minimal_fields() {
    let request = ModelRequest {
        model: "m".to_owned(),
        messages: vec![ModelMessage::user("Hi")],
        ..ModelRequest::default()
    };
    let text = asked(|url| remote(Protocol::OpenAiCompatible, url), request).await;
    let body: Value =
        serde_json::from_str(text.split_once("\n\n").expect("a body").1).expect("JSON");
    let fields: Vec<&String> = body.as_object().expect("an object").keys().collect();
    assert_eq!(fields, ["messages", "model", "stream", "stream_options"]);
}

/// Configured fields override ours, and null removes fields that a server does not support. A path and a query of
/// the base URL are kept.
#[tokio::test]
async fn configured_fields_override_ours() {
    let settings = |url: &str| RemoteSettings {
        base_url: Some(format!("{url}/deployments/x/?api-version=1")),
        headers: BTreeMap::from([("X-Gateway".to_owned(), "open".to_owned())]),
        extra: json!({ "stream_options": null, "reasoning_effort": "low", "model": "theirs" })
            .as_object()
            .cloned()
            .expect("it is an object"),
        ..RemoteSettings::new("tested", Protocol::OpenAiCompatible)
    };
    let text =
        asked(|url| Remote::new(settings(url)).expect("the settings are valid"), conversation())
            .await;
    let line = text.lines().next().expect("there is a line");
    assert_eq!(line, "POST /deployments/x/chat/completions?api-version=1 HTTP/1.1");
    assert!(text.contains("x-gateway: open") && !text.contains("authorization"), "{text}");
    assert!(
        text.contains("\"reasoning_effort\": \"low\"") && text.contains("\"theirs\""),
        "{text}"
    );
    assert!(!text.contains("stream_options"), "{text}");
}

#[tokio::test]
async fn debug_output_has_no_key() {
    let mut settings = RemoteSettings::new("tested", Protocol::OpenAi);
    settings.key = Some(abide_models::Secret::new(KEY));
    settings.base_url = Some(format!("http://{KEY}@localhost/?key={KEY}"));
    settings.headers.insert("x-key".to_owned(), KEY.to_owned());
    settings.extra.insert("key".to_owned(), json!(KEY));
    let shown = format!("{settings:?} {:?}", Remote::new(settings.clone()).expect("it is created"));
    assert!(shown.contains("tested") && !shown.contains(KEY), "{shown}");
}

#[test]
fn invalid_settings_are_refused() {
    let refused = |change: fn(&mut RemoteSettings)| {
        let mut settings = RemoteSettings::new("tested", Protocol::OpenAiCompatible);
        settings.base_url = Some("http://localhost".to_owned());
        change(&mut settings);
        Remote::new(settings).expect_err("it is refused")
    };
    let missing = refused(|settings| settings.base_url = None);
    assert_eq!(missing, "it has no `base_url`");
    let scheme = refused(|settings| settings.base_url = Some("ftp://localhost".to_owned()));
    assert_eq!(scheme, "its `base_url` must begin with http or https");
    let url = refused(|settings| settings.base_url = Some("localhost".to_owned()));
    assert_eq!(url, "its `base_url` is not a valid URL: relative URL without a base");
    let header = refused(|settings| {
        settings.headers.insert("x y".to_owned(), String::new());
    });
    assert_eq!(header, "`x y` is not a valid header name");
    let key = refused(|settings| settings.key = Some(abide_models::Secret::new("a\nb")));
    assert_eq!(key, "the key has characters that are not allowed in a header");
}

/// The `/embeddings` API is asked with the key, and other kinds of providers are not asked at all.
#[tokio::test]
async fn embeddings_are_asked() {
    let answer = r#"{"data":[{"index":0,"embedding":[0.5,1]}],"usage":{"prompt_tokens":3}}"#;
    let reply = Reply::new(200, "content-type: application/json\r\n", answer);
    let mut server = Server::start(vec![reply]).await;
    let provider = remote(Protocol::OpenAiCompatible, &server.url);
    let request = EmbeddingRequest { model: "e".to_owned(), texts: vec!["Hi".to_owned()] };
    let embedded = provider.embed(request.clone()).await.expect("it answers");
    assert_eq!((embedded.vectors, embedded.input_tokens), (vec![vec![0.5, 1.0]], Some(3)));
    let asked = server.request().await;
    assert!(asked.line.starts_with("POST ") && asked.line.contains("/embeddings "), "{asked:?}");
    assert!(asked.headers.iter().any(|header| header.contains(KEY)), "{asked:?}");
    let body: Value = serde_json::from_str(&asked.body).expect("it is JSON");
    assert_eq!(body, json!({"model": "e", "input": ["Hi"], "encoding_format": "float"}));
    let error = remote(Protocol::Anthropic, &server.url).embed(request).await;
    assert!(error.expect_err("it has no such API").message.contains("makes no embeddings"));
}
