//! HTTP tools, against a server on loopback that returns the requests it receives.

use std::time::{SystemTime, UNIX_EPOCH};

use abide_tools::{Failure, HttpTool, HttpToolConfig, Invocation, Tool};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use expect_test::{Expect, expect};
use futures_util::stream;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

use crate::{call, context, environment, output};

/// An object with an integer beyond 64 bits.
const LONG: &str = r#"{"id": 100000000000000000000000}"#;

/// Starts a server that returns each request as JSON, except on some paths. Returns its address.
async fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("the socket is bound");
    let router = Router::new()
        .route("/status/{code}", any(status))
        .route(
            "/away",
            any(|| async { (StatusCode::FOUND, [("location", "http://127.0.0.1:1/")]) }),
        )
        .route("/near", any(|| async { (StatusCode::FOUND, [("location", "/echo/near")]) }))
        .route("/bytes", any(|| async { ([("content-type", "image/png")], [0_u8, 159, 146, 150]) }))
        .route("/text", any(|| async { "plain text" }))
        .route("/long", any(|| async { ([("content-type", "application/json")], LONG) }))
        .route("/hang", any(std::future::pending::<Response>))
        .route("/endless", any(endless))
        .route("/broken", any(broken))
        .fallback(echo);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("the body is short");
    let kept = [
        "authorization",
        "content-type",
        "idempotency-key",
        "x-mine",
        "abide-context",
        "abide-signature",
    ];
    let headers: Value = kept
        .iter()
        .filter_map(|name| Some((*name, parts.headers.get(*name)?)))
        .map(|(name, value)| (name.to_owned(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    axum::Json(json!({
        "request": format!("{} {}", parts.method, parts.uri),
        "headers": headers,
        "body": String::from_utf8_lossy(&body),
    }))
    .into_response()
}

async fn status(axum::extract::Path(code): axum::extract::Path<u16>) -> Response {
    let status = StatusCode::from_u16(code).expect("it is a status");
    (status, axum::Json(json!({"why": "as asked"}))).into_response()
}

async fn endless() -> Response {
    Body::from_stream(stream::repeat_with(|| {
        Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1024]))
    }))
    .into_response()
}

async fn broken() -> Response {
    let pieces = vec![Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("gone"))];
    Body::from_stream(stream::iter(pieces)).into_response()
}

/// A definition with the server's address and four parameters.
fn config(server: &str, more: &Value) -> Value {
    let any_four = json!({"type": "object",
        "properties": {"id": {}, "q": {}, "limit": {}, "tags": {}}});
    let mut config = json!({"name": "api", "description": "", "parameters": any_four});
    let members = config.as_object_mut().expect("it is an object");
    members.extend(more.as_object().expect("it is an object").clone());
    let url = config["url"].as_str().expect("there is a url").replace("SERVER", server);
    config["url"] = json!(url);
    config
}

fn tool(config: Value) -> Result<HttpTool, String> {
    let config: HttpToolConfig = serde_json::from_value(config).map_err(|why| why.to_string())?;
    HttpTool::new(config, &environment()).map_err(|why| why.to_string())
}

/// The outcome of each call, with the server's address removed.
async fn check(more: Value, calls: &[Value], expected: Expect) {
    let server = server().await;
    let tool = tool(config(&server, &more)).expect("the definition is valid");
    let mut lines = Vec::new();
    for arguments in calls {
        lines.push(output(&call(&tool, arguments.clone()).await).replace(&server, "SERVER"));
    }
    expected.assert_eq(&lines.join("\n"));
}

/// Regression: the body became `{"id": 1e+23}`.
#[tokio::test]
async fn a_body_whose_integers_would_lose_digits_is_kept_as_text() {
    check(
        json!({"url": "SERVER/long"}),
        &[json!({})],
        expect![[r#"
            ok 0
            {"id": 100000000000000000000000}
            {"body":"{\"id\": 100000000000000000000000}","content_type":"application/json","status":200}"#]],
    )
    .await;
}

/// Regression: with the placeholder at the end of the path, or as the whole path, the number of slashes did not
/// change, and `..` and `.` were sent.
#[tokio::test]
async fn dot_segments_are_refused_everywhere_in_a_path() {
    let server = server().await;
    for path in ["/{id}", "/things/{id}", "/{id}/x", "/.{id}", "/things/.{id}", "/x-{id}"] {
        let config = json!({"name": "api", "description": "", "url": format!("{server}{path}"),
            "parameters": {"type": "object", "properties": {"id": {}}}});
        let config: HttpToolConfig = serde_json::from_value(config).expect("the config is valid");
        let tool = HttpTool::new(config, &environment()).expect("it is valid");
        for id in ["..", ".", "a/..", "../a", "a/../b", "..\\b", "./a", "..;", "..;/a", "a/.;b=c/d"]
        {
            let outcome = call(&tool, json!({"id": id})).await;
            assert_eq!(outcome.failure, Some(Failure::Arguments), "{path} {id}: {}", outcome.text);
        }
        let outcome = call(&tool, json!({"id": "a..b"})).await;
        assert!(outcome.text.contains("a..b"), "{}", outcome.text);
    }
}

#[tokio::test]
async fn arguments_stay_in_their_position() {
    check(
        json!({"url": "SERVER/things/{id}/parts?by={q}", "query": {"max": "{limit}", "of": "a b"}}),
        &[
            json!({"id": "7", "q": "x"}),
            json!({"id": "a/b?c#d", "q": "1&admin=true", "limit": 5}),
            json!({"id": "ü %2e", "q": ""}),
            json!({"id": "..", "q": "x"}),
            json!({"id": ".", "q": "x"}),
            json!({"id": "", "q": "x"}),
            json!({"id": "\\..\\..\\x", "q": "x"}),
            json!({"id": "@evil.example:80/", "q": "x"}),
            json!({"q": "x"}),
        ],
        expect![[r#"
            ok 0
            {"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /things/7/parts?by=x&of=a%20b"}
            {"body":{"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /things/7/parts?by=x&of=a%20b"},"content_type":"application/json","status":200}
            ok 0
            {"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /things/a%2Fb%3Fc%23d/parts?by=1%26admin%3Dtrue&max=5&of=a%20b"}
            {"body":{"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /things/a%2Fb%3Fc%23d/parts?by=1%26admin%3Dtrue&max=5&of=a%20b"},"content_type":"application/json","status":200}
            ok 0
            {"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /things/%C3%BC%20%252e/parts?by=&of=a%20b"}
            {"body":{"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /things/%C3%BC%20%252e/parts?by=&of=a%20b"},"content_type":"application/json","status":200}
            arguments 1
            api: the arguments would change the structure of the path
            {"error":{"code":"arguments","message":"api: the arguments would change the structure of the path"}}
            arguments 1
            api: the arguments would change the structure of the path
            {"error":{"code":"arguments","message":"api: the arguments would change the structure of the path"}}
            arguments 1
            api: id is empty, which is not allowed in a path
            {"error":{"code":"arguments","message":"api: id is empty, which is not allowed in a path"}}
            arguments 1
            api: the arguments would change the structure of the path
            {"error":{"code":"arguments","message":"api: the arguments would change the structure of the path"}}
            ok 0
            {"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /things/%40evil.example%3A80%2F/parts?by=x&of=a%20b"}
            {"body":{"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /things/%40evil.example%3A80%2F/parts?by=x&of=a%20b"},"content_type":"application/json","status":200}
            arguments 1
            api: id is missing; the url needs it
            {"error":{"code":"arguments","message":"api: id is missing; the url needs it"}}"#]],
    )
    .await;
}

#[tokio::test]
async fn bodies_contain_arguments() {
    let call = [json!({"id": 7, "q": "say \"hi\"", "tags": ["a", "b"]})];
    let post = |body: Value| json!({"url": "SERVER/x", "method": "POST", "body": body});
    check(post(json!("arguments")), &call, expect![[r#"
        ok 0
        {"body":"{\"id\":7,\"q\":\"say \\\"hi\\\"\",\"tags\":[\"a\",\"b\"]}","headers":{"content-type":"application/json","idempotency-key":"call-1"},"request":"POST /x"}
        {"body":{"body":"{\"id\":7,\"q\":\"say \\\"hi\\\"\",\"tags\":[\"a\",\"b\"]}","headers":{"content-type":"application/json","idempotency-key":"call-1"},"request":"POST /x"},"content_type":"application/json","status":200}"#]]).await;
    let template = json!({"json": {"query": {"text": "{q}", "top": "{limit}"}, "ids": ["{id}"],
        "tags": "{tags}", "note": "for {id}", "fixed": true}});
    check(post(template), &call, expect![[r#"
        ok 0
        {"body":"{\"fixed\":true,\"ids\":[7],\"note\":\"for 7\",\"query\":{\"text\":\"say \\\"hi\\\"\"},\"tags\":[\"a\",\"b\"]}","headers":{"content-type":"application/json","idempotency-key":"call-1"},"request":"POST /x"}
        {"body":{"body":"{\"fixed\":true,\"ids\":[7],\"note\":\"for 7\",\"query\":{\"text\":\"say \\\"hi\\\"\"},\"tags\":[\"a\",\"b\"]}","headers":{"content-type":"application/json","idempotency-key":"call-1"},"request":"POST /x"},"content_type":"application/json","status":200}"#]]).await;
    check(post(json!({"form": {"q": "{q}", "max": "{limit}", "to": "a&b"}})), &call, expect![[r#"
        ok 0
        {"body":"q=say%20%22hi%22&to=a%26b","headers":{"content-type":"application/x-www-form-urlencoded","idempotency-key":"call-1"},"request":"POST /x"}
        {"body":{"body":"q=say%20%22hi%22&to=a%26b","headers":{"content-type":"application/x-www-form-urlencoded","idempotency-key":"call-1"},"request":"POST /x"},"content_type":"application/json","status":200}"#]])
        .await;
    check(post(json!({"text": "{q}: {limit}."})), &call, expect![[r#"
        ok 0
        {"body":"say \"hi\": .","headers":{"content-type":"text/plain; charset=utf-8","idempotency-key":"call-1"},"request":"POST /x"}
        {"body":{"body":"say \"hi\": .","headers":{"content-type":"text/plain; charset=utf-8","idempotency-key":"call-1"},"request":"POST /x"},"content_type":"application/json","status":200}"#]]).await;
}

#[tokio::test]
async fn headers_come_from_the_definition_and_secrets_from_the_environment() {
    let secret = json!({"env": "TEST_TOKEN", "prefix": "Bearer "});
    let headers = json!({"authorization": secret, "x-mine": "{id}"});
    check(json!({"url": "SERVER/x", "headers": headers}), &[json!({"id": 1})], expect![[r#"
        ok 0
        {"body":"","headers":{"authorization":"Bearer s3cret","idempotency-key":"call-1","x-mine":"{id}"},"request":"GET /x"}
        {"body":{"body":"","headers":{"authorization":"Bearer s3cret","idempotency-key":"call-1","x-mine":"{id}"},"request":"GET /x"},"content_type":"application/json","status":200}"#]]).await;
    check(json!({"url": "SERVER/x", "idempotency_header": ""}), &[json!({})], expect![[r#"
        ok 0
        {"body":"","headers":{},"request":"GET /x"}
        {"body":{"body":"","headers":{},"request":"GET /x"},"content_type":"application/json","status":200}"#]]).await;
}

/// Regression: an id that is not ASCII was left out, so that a repeated PUT could have its effect twice.
#[tokio::test]
async fn every_call_id_is_sent_or_the_call_is_refused() {
    let server = server().await;
    let more = json!({"url": "SERVER/x", "method": "PUT"});
    let tool = tool(config(&server, &more)).expect("the definition is valid");
    for id in ["call-1", "é1", "订单", "a b"] {
        let outcome = tool.run(Invocation::new(id, json!({}), context())).await;
        assert_eq!(outcome.content["body"]["headers"]["idempotency-key"], id);
    }
    let outcome = tool.run(Invocation::new("a\nb", json!({}), context())).await;
    assert_eq!(outcome.failure, Some(Failure::Arguments));
    assert_eq!(outcome.text, "api: the id of the call cannot be sent as a header");
}

#[tokio::test]
async fn statuses_determine_success() {
    let more = json!({"url": "SERVER/status/{id}", "ok_statuses": [404]});
    let calls = [200, 204, 404, 409, 429, 500, 503].map(|status| json!({"id": status}));
    check(
        more,
        &calls,
        expect![[r#"
        ok 0
        {"why":"as asked"}
        {"body":{"why":"as asked"},"content_type":"application/json","status":200}
        ok 0

        {"body":"","content_type":"application/json","status":204}
        ok 0
        {"why":"as asked"}
        {"body":{"why":"as asked"},"content_type":"application/json","status":404}
        tool 1
        api responded with HTTP 409 Conflict
        {"why":"as asked"}
        {"body":{"why":"as asked"},"content_type":"application/json","status":409}
        unavailable 1
        api responded with HTTP 429 Too Many Requests
        {"why":"as asked"}
        {"body":{"why":"as asked"},"content_type":"application/json","status":429}
        tool 1
        api responded with HTTP 500 Internal Server Error
        {"why":"as asked"}
        {"body":{"why":"as asked"},"content_type":"application/json","status":500}
        lost 1
        api responded with HTTP 503 Service Unavailable
        {"why":"as asked"}
        {"body":{"why":"as asked"},"content_type":"application/json","status":503}"#]],
    )
    .await;
}

/// Class: an outcome that the peer may have produced and that is not known. The page of a gateway that has lost the answer of its
/// server was a failure of the tool, so that a payment could be repeated by the model.
#[tokio::test]
async fn a_gateway_without_an_answer_leaves_the_outcome_open() {
    let server = server().await;
    let more = json!({"url": "SERVER/status/{id}", "method": "POST"});
    let tool = tool(config(&server, &more)).expect("the definition is valid");
    for (status, failure) in [
        (301, Failure::Lost),
        (302, Failure::Lost),
        (303, Failure::Lost),
        (307, Failure::Tool),
        (308, Failure::Tool),
        (400, Failure::Tool),
        (429, Failure::Unavailable),
        (500, Failure::Tool),
        (408, Failure::Lost),
        (502, Failure::Lost),
        (503, Failure::Lost),
        (504, Failure::Lost),
        (524, Failure::Lost),
    ] {
        let outcome = call(&tool, json!({"id": status})).await;
        assert_eq!(outcome.failure, Some(failure), "{status}");
    }
}

#[tokio::test]
async fn redirects_are_followed_only_if_configured_and_within_the_host() {
    check(
        json!({"url": "SERVER/near"}),
        &[json!({})],
        expect![[r#"
        tool 1
        api responded with HTTP 302 Found to /echo/near; the redirect is not followed
        {"body":"","content_type":null,"status":302}"#]],
    )
    .await;
    check(json!({"url": "SERVER/near", "redirects": 1}), &[json!({})], expect![[r#"
        ok 0
        {"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /echo/near"}
        {"body":{"body":"","headers":{"idempotency-key":"call-1"},"request":"GET /echo/near"},"content_type":"application/json","status":200}"#]]).await;
    check(
        json!({"url": "SERVER/away", "redirects": 5}),
        &[json!({})],
        expect![[r#"
        tool 1
        api responded with HTTP 302 Found to http://127.0.0.1:1/; the redirect is not followed
        {"body":"","content_type":null,"status":302}"#]],
    )
    .await;
}

#[tokio::test]
async fn responses_of_all_kinds_are_kept() {
    check(
        json!({"url": "SERVER/text"}),
        &[json!({})],
        expect![[r#"
        ok 0
        plain text
        {"body":"plain text","content_type":"text/plain; charset=utf-8","status":200}"#]],
    )
    .await;
    check(
        json!({"url": "SERVER/bytes"}),
        &[json!({})],
        expect![[r#"
        ok 0
        [4 bytes of image/png]
        {"body_base64":"AJ+Slg==","content_type":"image/png","status":200}"#]],
    )
    .await;
    check(
        json!({"url": "SERVER/endless", "max_bytes": 10_000}),
        &[json!({})],
        expect![[r#"
        too_large 1
        the response of api has more than 10000 bytes
        {"error":{"code":"too_large","message":"the response of api has more than 10000 bytes"}}"#]],
    )
    .await;
    let broken = tool(config(&server().await, &json!({"url": "SERVER/broken"})));
    let outcome = call(&broken.expect("it is valid"), json!({})).await;
    assert_eq!(outcome.failure, Some(Failure::Lost), "{}", outcome.text);
}

#[tokio::test]
async fn a_timeout_differs_from_an_unreachable_server() {
    let more = json!({"url": "SERVER/hang", "timeout_ms": 100});
    check(
        more,
        &[json!({})],
        expect![[r#"
        timed_out 1
        api timed out after 0.1 s
        {"error":{"code":"timed_out","message":"api timed out after 0.1 s"}}"#]],
    )
    .await;
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = unused.local_addr().expect("the socket is bound");
    drop(unused);
    let tool = tool(config(&format!("http://{address}"), &json!({"url": "SERVER/x"})));
    let outcome = call(&tool.expect("it is valid"), json!({})).await;
    assert_eq!(outcome.failure, Some(Failure::Unavailable), "{}", outcome.text);
}

#[tokio::test]
async fn a_cancelled_request_ends_immediately() {
    let tool = tool(config(&server().await, &json!({"url": "SERVER/hang"}))).expect("it is valid");
    let invocation = Invocation::new("call-1", json!({}), context());
    let cancel = invocation.cancel.clone();
    let running = tokio::spawn(tool.run(invocation));
    cancel.cancel();
    assert_eq!(running.await.expect("the task does not panic").failure, Some(Failure::Cancelled));
}

#[tokio::test]
async fn invalid_definitions_are_refused() {
    let output: Vec<String> = [
        json!({"url": "ftp://host/"}),
        json!({"url": "http://{id}/"}),
        json!({"url": "http://host{id}/"}),
        json!({"url": "http://user:pass@host/"}),
        json!({"url": "http://host:99999/"}),
        json!({"url": "http://host/a/../{id}"}),
        json!({"url": "http://host/{nosuch}"}),
        json!({"url": "http://host/#{id}"}),
        json!({"url": "http://host/", "method": "GE T"}),
        json!({"url": "http://host/", "headers": {"a b": "c"}}),
        json!({"url": "http://host/", "headers": {"x": {"env": "NO_SUCH_VARIABLE"}}}),
        json!({"url": "http://host/", "headers": {"x": {"env": "X", "default": "y"}}}),
        json!({"url": "http://host/", "body": {"json": {"a": "{nosuch}"}}}),
        json!({"url": "http://host/", "bodies": {}}),
    ]
    .into_iter()
    .map(|more| tool(config("", &more)).err().expect("it is refused"))
    .collect();
    expect![[r#"
        invalid definition of api: url "ftp://host/" must begin with http:// or https://
        invalid definition of api: url "http://{id}/" has a placeholder or a user name before its path; the host must be fixed
        invalid definition of api: url "http://host{id}/" has a placeholder or a user name before its path; the host must be fixed
        invalid definition of api: url "http://user:pass@host/" has a placeholder or a user name before its path; the host must be fixed
        invalid definition of api: url "http://host:99999/" is invalid: invalid port number
        invalid definition of api: url "http://host/a/../{id}" is invalid: the arguments would change the structure of the path
        invalid definition of api: "/{nosuch}" has the placeholder nosuch, which is not a parameter
        invalid definition of api: url "http://host/#{id}" has a fragment, which cannot be sent
        invalid definition of api: "GE T" is not a valid HTTP method
        invalid definition of api: "a b" is not a valid header name
        invalid definition of api: the environment variable NO_SUCH_VARIABLE is not set
        a value is a string, or {env: NAME, prefix: STRING}
        invalid definition of api: "{nosuch}" has the placeholder nosuch, which is not a parameter
        unknown field `bodies`, expected one of `name`, `description`, `parameters`, `method`, `url`, `query`, `headers`, `body`, `idempotency_header`, `context_key`, `ok_statuses`, `redirects`, `max_bytes`, `timeout_ms`, `effect`, `needs_approval`, `approval`, `retry`, `required_capability`, `limits`"#]].assert_eq(&output.join("\n"));
}

#[test]
fn the_effect_follows_from_the_method() {
    let effect = |method: &str| {
        let more = json!({"url": "http://host/", "method": method});
        tool(config("", &more)).expect("it is valid").declaration().effect
    };
    let output = ["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH"]
        .map(|method| format!("{method} {}", effect(method)));
    expect![[r#"
        GET read_only
        HEAD read_only
        PUT idempotent
        DELETE idempotent
        POST at_most_once
        PATCH at_most_once"#]]
    .assert_eq(&output.join("\n"));
}

/// HMAC-SHA-256 with a short key, written as the standard says.
fn code_of(key: &str, text: &str) -> String {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key.bytes()).for_each(|(byte, key)| *byte ^= key);
        block.to_vec()
    };
    let inner = Sha256::digest([pad(0x36), text.as_bytes().to_vec()].concat());
    hex::encode(Sha256::digest([pad(0x5C), inner.to_vec()].concat()))
}

#[tokio::test]
async fn a_server_receives_the_context_of_a_call_in_signed_headers() {
    let server = server().await;
    let headers = json!({"abide-context": "forged", "abide-signature": "forged"});
    let config = json!({"method": "POST", "url": format!("{server}/orders/{{id}}?x=1"),
        "body": "arguments", "headers": headers, "context_key": {"env": "TEST_TOKEN"}});
    let tool = tool(config_of(config)).expect("the definition is valid");
    let arguments = json!({"id": "7", "q": "abide-context: forged"});
    let content = call(&tool, arguments.clone()).await.content;
    let sent = &content["body"]["headers"];
    let header = |name: &str| sent[name].as_str().expect("the header is sent").to_owned();
    let encoded = header("abide-context");
    let context_json = URL_SAFE_NO_PAD.decode(&encoded).expect("it is base64url");
    let context_json: Value = serde_json::from_slice(&context_json).expect("it is JSON");
    assert_eq!(context_json, context().to_json("call-1"));
    let signature = header("abide-signature");
    let (time, code) = signature
        .strip_prefix("t=")
        .and_then(|it| it.split_once(",v1="))
        .expect("a time and a code");
    let digest = hex::encode(Sha256::digest(arguments.to_string()));
    let text = format!("{time}\nPOST\n/orders/7?x=1\n{encoded}\n{digest}");
    assert_eq!(code, code_of("s3cret", &text));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let age = now.abs_diff(time.parse().expect("seconds"));
    assert!(age < 600, "the time is that of the request: {time}, now {now}");

    // No line is left out, and no other request has this code.
    let later = now + 3_600;
    let nothing = hex::encode(Sha256::digest(""));
    for (key, forged) in [
        ("s3cre", text.clone()),
        ("", text.clone()),
        ("s3cret", text.replacen(time, &later.to_string(), 1)),
        ("s3cret", text.replacen("POST", "GET", 1)),
        ("s3cret", text.replacen("/orders/7", "/orders/8", 1)),
        ("s3cret", text.replacen("?x=1", "", 1)),
        ("s3cret", text.replacen(&encoded, "forged", 1)),
        ("s3cret", text.replacen(&digest, &nothing, 1)),
        ("s3cret", text.lines().skip(1).collect::<Vec<_>>().join("\n")),
        ("s3cret", String::new()),
    ] {
        assert!(key != "s3cret" || forged != text, "it is another text: {forged}");
        assert_ne!(code, code_of(key, &forged), "{key} {forged}");
    }
}

/// Each call has a code of its own, so that a server can tell the context of one call from that of another. The tests had
/// no case in which a code must differ.
#[tokio::test]
async fn every_part_of_a_request_changes_its_code() {
    let server = server().await;
    let sent = async |method: &str, path: &str, id: &str, key: &str| {
        let config = json!({"method": method, "url": format!("{server}{path}/{{id}}"),
            "body": "arguments", "context_key": {"env": key}});
        let tool = tool(config_of(config)).expect("the definition is valid");
        let content = call(&tool, json!({"id": id, "q": "x"})).await.content;
        let headers = &content["body"]["headers"];
        let text = |name: &str| headers[name].as_str().expect("it is sent").to_owned();
        let signature = text("abide-signature");
        let (time, code) = signature
            .strip_prefix("t=")
            .and_then(|rest| rest.split_once(",v1="))
            .expect("a time and a code");
        let digest = hex::encode(Sha256::digest(content["body"]["body"].as_str().expect("a text")));
        let signed = format!("{time}\n{method}\n{path}/{id}\n{}\n{digest}", text("abide-context"));
        (code.to_owned(), signed)
    };
    let mut codes = Vec::new();
    for (method, path, id) in
        [("POST", "/a", "1"), ("PUT", "/a", "1"), ("POST", "/b", "1"), ("POST", "/a", "2")]
    {
        let (code, signed) = sent(method, path, id, "TEST_TOKEN").await;
        assert_eq!(code, code_of("s3cret", &signed), "{method} {path} {id}");
        assert_ne!(code, code_of("other", &signed));
        codes.push(code);
    }
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), 4);
}

fn config_of(more: Value) -> Value {
    let any = json!({"type": "object", "properties": {"id": {}, "q": {}}});
    let mut config = json!({"name": "api", "description": "", "parameters": any});
    let members = config.as_object_mut().expect("it is an object");
    members.extend(more.as_object().expect("it is an object").clone());
    config
}
