//! Cards, and which of them are refused.

use expect_test::{Expect, expect};

use super::*;

fn config(url: &str, headers: &[(&str, &str)]) -> A2aConfig {
    let headers = headers.iter().map(|(name, value)| {
        ((*name).to_owned(), crate::environment::Setting::Literal((*value).to_owned()))
    });
    A2aConfig { url: url.to_owned(), headers: headers.collect(), ..A2aConfig::default() }
}

/// The client's reading of a card at `https://agents.example/clerk`.
fn check(headers: &[(&str, &str)], card: &Value, expected: Expect) {
    let config = config("https://agents.example/clerk/", headers);
    let at = config.card_url().expect("the address is valid");
    let headers = config.header_map(&Environment::default()).expect("the headers are valid");
    let http = A2aHttp::new(&config).expect("the client can be built");
    let read = match A2aClient::from_card(http, &at, headers, card) {
        Ok(client) => format!("{} streams: {}", client.url, client.streams),
        Err(failure) => failure.to_string(),
    };
    expected.assert_eq(&read);
}

fn card(url: &str, binding: &str, version: &str) -> Value {
    json!({"capabilities": {"streaming": true}, "supportedInterfaces": [
        {"url": "agents.example:443", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": url, "protocolBinding": binding, "protocolVersion": version}]})
}

#[test]
fn a_card_names_the_interface() {
    check(
        &[],
        &card("https://agents.example/rpc", "JSONRPC", "1.0"),
        expect!["https://agents.example/rpc streams: true"],
    );
    check(
        &[],
        &card("https://agents.example/rpc", "JSONRPC", "0.3"),
        expect!["https://agents.example/rpc streams: true"],
    );
    check(
        &[],
        &card("https://agents.example/rpc", "HTTP+JSON", "1.0"),
        expect!["the card of agents.example offers no JSON-RPC of A2A 1.0 or 0.3"],
    );
    let none = "the card of agents.example offers no JSON-RPC of A2A 1.0 or 0.3";
    let read = A2aClient::from_card(
        A2aHttp::new(&config("https://agents.example/", &[])).expect("it can be built"),
        &Url::parse("https://agents.example/").expect("it is a URL"),
        HeaderMap::new(),
        &json!([]),
    );
    assert_eq!(read.map(|client| client.url).map_err(|why| why.to_string()), Err(none.to_owned()));
}

/// A card comes from elsewhere: it must not direct requests, or credentials, to a place of its choice.
#[test]
fn a_card_cannot_direct_requests_elsewhere() {
    check(
        &[],
        &card("http://127.0.0.1:7341/admin", "JSONRPC", "1.0"),
        expect!["127.0.0.1 is not a public address, and only public addresses can be used"],
    );
    check(
        &[],
        &card("file:///etc/passwd", "JSONRPC", "1.0"),
        expect!["file: only http and https can be used"],
    );
    let elsewhere = card("https://other.example/rpc", "JSONRPC", "1.0");
    check(&[], &elsewhere, expect!["https://other.example/rpc streams: true"]);
    check(
        &[("authorization", "Bearer x")],
        &elsewhere,
        expect![
            "the card of agents.example names an interface at other.example; the configured headers are sent only to the host of the card"
        ],
    );
}

#[test]
fn the_address_is_that_of_an_agent_or_of_its_card() {
    for (url, expected) in [
        ("https://x.example", "https://x.example/.well-known/agent-card.json"),
        ("https://x.example/a/", "https://x.example/a/.well-known/agent-card.json"),
        ("https://x.example/card.json?v=1", "https://x.example/card.json?v=1"),
    ] {
        assert_eq!(config(url, &[]).card_url().map(|url| url.to_string()), Ok(expected.to_owned()));
    }
    for wrong in ["agents", "ftp://x.example/"] {
        assert!(config(wrong, &[]).card_url().is_err(), "{wrong}");
    }
}

#[test]
fn answers_are_results_or_errors() {
    let url = Url::parse("https://agents.example/rpc").expect("it is a URL");
    let all = [
        r#"{"jsonrpc": "2.0", "id": 1, "result": {"task": {}}}"#,
        r#"{"error": {"code": -32001, "message": "there is no task x"}}"#,
        r#"{"error": {}}"#,
        r#"{"id": 1, "result": 7}"#,
        r#"{"id": 1, "result": {"n": 99999999999999999999}}"#,
        "<html>",
    ];
    expect![[r#"
        {"task":{}}
        agents.example refused: there is no task x (-32001)
        agents.example refused: no reason (0)
        the response of agents.example has no result
        the response of agents.example cannot be stored: the integer 99999999999999999999 at /result/n does not fit a signed 64-bit integer
        agents.example did not respond with JSON-RPC"#]]
    .assert_eq(&all.map(|text| match result_of(&url, text.to_owned(), ProtocolVersion::V1_0) {
        Ok(event) => event.result.to_string(),
        Err(failure) => failure.to_string(),
    }).join("\n"));
}
