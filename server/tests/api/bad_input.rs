//! Every kind of invalid input is refused with a code and a hint, nothing is partially written, and the server
//! keeps running.

use expect_test::{Expect, expect};
use futures_util::SinkExt as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::http::{self, check, escaped};
use crate::test_server::TestServer;

/// Checks the server after bad input: nothing was written, and it still accepts calls.
async fn unharmed(server: &TestServer) {
    let done = server.post("/v1/call/nothing", "{}").await;
    assert_eq!(done.body, r#"{"seq":1,"result":null,"duplicate":false}"#);
}

async fn check_posts(posts: &[(&str, &str)], expected: Expect) {
    let server = TestServer::open().await;
    let mut problems = String::new();
    for (path, body) in posts {
        let problem = server.post(path, body).await.problem();
        problems.push_str(&format!("{path} {body}\n    {problem}\n"));
    }
    expected.assert_eq(&problems);
    unharmed(&server).await;
}

#[tokio::test]
async fn invalid_calls_are_refused() {
    let deep = format!("{{\"book\":{}{}}}", "[".repeat(200), "]".repeat(200));
    check_posts(
        &[
            ("/v1/call/write_nots", "{}"),
            ("/v1/call/%FF", "{}"),
            ("/v1/call/", "{}"),
            ("/v1/call/write_note", ""),
            ("/v1/call/write_note", "[1]"),
            ("/v1/call/write_note", "7"),
            ("/v1/call/write_note", r#"{"book":"a"}"#),
            ("/v1/call/write_note", r#"{"book":1,"text":null}"#),
            ("/v1/call/write_note", r#"{"book":"a","text":null,"colour":"red"}"#),
            ("/v1/call/write_note", r#"{"book":"a","text":null,"weight":"immense"}"#),
            ("/v1/call/edit_note", r#"{"id":18446744073709551615,"text":"x"}"#),
            ("/v1/call/edit_note", r#"{"id":1e400,"text":"x"}"#),
            ("/v1/call/edit_note", r#"{"id":1.5,"text":"x"}"#),
            ("/v1/call/edit_note", r#"{"id":1,"text":"cut \ud83d"}"#),
            ("/v1/call/edit_note", r#"{"id":1,"text":"x""#),
            ("/v1/call/edit_note", r#"{"id":1,"text":"x"} {}"#),
            ("/v1/call/edit_note", r#"{"id":1,"text":"x"}"#),
            ("/v1/call/write_note", &deep),
        ],
        expect![[r#"
            /v1/call/write_nots {}
                404 unknown_reducer: there is no reducer "write_nots" (did you mean write_note?)
            /v1/call/%FF {}
                404 unknown_reducer: the reducer's name is not UTF-8 (GET /v1/schema lists the reducers)
            /v1/call/ {}
                404 not_found: no route matches /v1/call/ (GET /openapi.json lists the routes)
            /v1/call/write_note 
                422 bad_arguments: write_note: missing argument book (write_note takes book, text, weight?)
            /v1/call/write_note [1]
                422 bad_arguments: write_note: the arguments are not a JSON object (arguments are named: {"session_id": "…"})
            /v1/call/write_note 7
                422 bad_arguments: write_note: the arguments are not a JSON object (arguments are named: {"session_id": "…"})
            /v1/call/write_note {"book":"a"}
                422 bad_arguments: write_note: missing argument text (write_note takes book, text, weight?)
            /v1/call/write_note {"book":1,"text":null}
                422 bad_arguments: write_note: argument book: expected a string, found the integer 1 (write_note takes book, text, weight?)
            /v1/call/write_note {"book":"a","text":null,"colour":"red"}
                422 bad_arguments: write_note: unexpected argument colour (write_note takes book, text, weight?)
            /v1/call/write_note {"book":"a","text":null,"weight":"immense"}
                422 bad_arguments: write_note: argument weight: "immense" is not one of light, heavy (write_note takes book, text, weight?)
            /v1/call/edit_note {"id":18446744073709551615,"text":"x"}
                422 bad_arguments: the integer 18446744073709551615 at /id does not fit a signed 64-bit integer (send it as a string: JSON integers are signed 64-bit integers)
            /v1/call/edit_note {"id":1e400,"text":"x"}
                400 bad_request: the body is not JSON: number out of range at line 1 column 11 (send one JSON object in UTF-8, or an empty body if no arguments are needed)
            /v1/call/edit_note {"id":1.5,"text":"x"}
                422 bad_arguments: edit_note: argument id: expected an integer, found the number 1.5 (edit_note takes id, text)
            /v1/call/edit_note {"id":1,"text":"cut \ud83d"}
                422 bad_arguments: unpaired surrogate \ud83d in the string at /text (send whole characters: a text was cut by UTF-16 units; in JavaScript, toWellFormed() repairs it)
            /v1/call/edit_note {"id":1,"text":"x"
                400 bad_request: the body is not JSON: EOF while parsing an object at line 1 column 18 (send one JSON object in UTF-8, or an empty body if no arguments are needed)
            /v1/call/edit_note {"id":1,"text":"x"} {}
                400 bad_request: the body is not JSON: trailing characters at line 1 column 21 (send one JSON object in UTF-8, or an empty body if no arguments are needed)
            /v1/call/edit_note {"id":1,"text":"x"}
                404 not_found: there is no note 1 (-)
            /v1/call/write_note {"book":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}
                400 bad_request: the body is not JSON: recursion limit exceeded at line 1 column 135 (send one JSON object in UTF-8, or an empty body if no arguments are needed)
        "#]],
    )
    .await;
}

#[tokio::test]
async fn invalid_batches_are_refused() {
    check_posts(
        &[
            ("/v1/batch", ""),
            ("/v1/batch", "[[]]"),
            ("/v1/batch", "[}"),
            ("/v1/batch", "{}"),
            ("/v1/batch", r#"{"calls":[]}"#),
            ("/v1/batch", r#"{"calls":[{"args":{}}]}"#),
            ("/v1/batch", r#"{"calls":[{"reducer":"nothing","arguments":{}}]}"#),
            ("/v1/batch", r#"{"calls":[{"reducer":"nothing"},{"reducer":"something"}]}"#),
        ],
        expect![[r#"
            /v1/batch 
                400 bad_request: the body is empty (send a body like {"calls": [{"reducer": "…", "args": {…}}, …]})
            /v1/batch [[]]
                400 bad_request: the body is not a JSON object (send a body like {"calls": [{"reducer": "…", "args": {…}}, …]})
            /v1/batch [}
                400 bad_request: the body is not JSON: expected value at line 1 column 2 (send a body like {"calls": [{"reducer": "…", "args": {…}}, …]})
            /v1/batch {}
                400 bad_request: the body has an unexpected form: missing field `calls` at line 1 column 2 (send a body like {"calls": [{"reducer": "…", "args": {…}}, …]})
            /v1/batch {"calls":[]}
                400 bad_request: the batch is empty (-)
            /v1/batch {"calls":[{"args":{}}]}
                400 bad_request: the body has an unexpected form: missing field `reducer` at line 1 column 21 (send a body like {"calls": [{"reducer": "…", "args": {…}}, …]})
            /v1/batch {"calls":[{"reducer":"nothing","arguments":{}}]}
                400 bad_request: the body has an unexpected form: unknown field `arguments`, expected `reducer` or `args` at line 1 column 42 (send a body like {"calls": [{"reducer": "…", "args": {…}}, …]})
            /v1/batch {"calls":[{"reducer":"nothing"},{"reducer":"something"}]}
                404 unknown_reducer: there is no reducer "something" (GET /v1/schema lists the reducers)
        "#]],
    )
    .await;
}

#[tokio::test]
async fn invalid_queries_are_refused() {
    check_posts(
        &[
            ("/v1/sql", "{}"),
            ("/v1/sql", r#"{"sql":1}"#),
            ("/v1/sql", r#"{"sql":""}"#),
            ("/v1/sql", r#"{"sql":"SELEC 1"}"#),
            ("/v1/sql", r#"{"sql":"SELECT 1; SELECT 2"}"#),
            ("/v1/sql", r#"{"sql":"SELECT colour FROM notes"}"#),
            ("/v1/sql", r#"{"sql":"SELECT * FROM books"}"#),
            ("/v1/sql", r#"{"sql":"DELETE FROM notes"}"#),
            ("/v1/sql", r#"{"sql":"PRAGMA journal_mode = DELETE"}"#),
            ("/v1/sql", r#"{"sql":"ATTACH 'other.db' AS other"}"#),
            ("/v1/sql", r#"{"sql":"SELECT :a"}"#),
            ("/v1/sql", r#"{"sql":"SELECT 1","params":{"a":1}}"#),
            ("/v1/sql", r#"{"sql":"SELECT :a","params":{"a":[1]}}"#),
            ("/v1/sql", r#"{"sql":"SELECT :a","params":[1]}"#),
            ("/v1/sql", r#"{"sql":"SELECT 1","as_of":99}"#),
            ("/v1/sql", r#"{"sql":"SELECT 1","as_of":"then"}"#),
        ],
        expect![[r#"
            /v1/sql {}
                400 bad_request: the body has an unexpected form: missing field `sql` at line 1 column 2 (send a body like {"sql": "SELECT …", "params": {…}, "as_of": 40}, the last two optional)
            /v1/sql {"sql":1}
                400 bad_request: the body has an unexpected form: invalid type: integer `1`, expected a string at line 1 column 8 (send a body like {"sql": "SELECT …", "params": {…}, "as_of": 40}, the last two optional)
            /v1/sql {"sql":""}
                400 bad_sql: the statement is not a query (one SELECT, VALUES or WITH)
            /v1/sql {"sql":"SELEC 1"}
                400 bad_sql: near "SELEC": syntax error (at byte 0 of the statement)
            /v1/sql {"sql":"SELECT 1; SELECT 2"}
                400 bad_sql: more than one statement (send one statement at a time)
            /v1/sql {"sql":"SELECT colour FROM notes"}
                400 bad_sql: no such column: colour (at byte 7 of the statement; GET /v1/schema lists the columns of every table; write text in single quotes)
            /v1/sql {"sql":"SELECT * FROM books"}
                400 bad_sql: no such table: books (GET /v1/schema lists the tables)
            /v1/sql {"sql":"DELETE FROM notes"}
                400 bad_sql: the statement is not read-only (one SELECT, VALUES or WITH; to change data, call a reducer)
            /v1/sql {"sql":"PRAGMA journal_mode = DELETE"}
                400 bad_sql: the statement is not read-only (one SELECT, VALUES or WITH; to change data, call a reducer)
            /v1/sql {"sql":"ATTACH 'other.db' AS other"}
                400 bad_sql: the statement is not read-only (one SELECT, VALUES or WITH; to change data, call a reducer)
            /v1/sql {"sql":"SELECT :a"}
                422 bad_arguments: parameter :a is missing ("params": {"a": …})
            /v1/sql {"sql":"SELECT 1","params":{"a":1}}
                422 bad_arguments: the statement has no parameter a (omit it, or use it as :name)
            /v1/sql {"sql":"SELECT :a","params":{"a":[1]}}
                422 bad_arguments: parameter a is an array (a parameter is null, a number, a string or {"$blob": "<base64>"})
            /v1/sql {"sql":"SELECT :a","params":[1]}
                400 bad_request: the body has an unexpected form: invalid type: sequence, expected a map at line 1 column 28 (send a body like {"sql": "SELECT …", "params": {…}, "as_of": 40}, the last two optional)
            /v1/sql {"sql":"SELECT 1","as_of":99}
                400 bad_request: there is no state 99: the log ends at 0 (use a seq from 0 to 0)
            /v1/sql {"sql":"SELECT 1","as_of":"then"}
                400 bad_request: the body has an unexpected form: invalid type: string "then", expected i64 at line 1 column 32 (send a body like {"sql": "SELECT …", "params": {…}, "as_of": 40}, the last two optional)
        "#]],
    )
    .await;
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let server = TestServer::open().await;
    let mut problems = String::new();
    for (method, path) in [
        ("GET", "/nowhere"),
        ("GET", "/v1/call/nothing"),
        ("POST", "/health"),
        ("DELETE", "/v1/schema"),
        ("GET", "/v1/ws"),
        ("GET", "/v1/subscribe"),
        ("GET", "/v1/subscribe?sql=SELECT+1&after_seq=soon"),
        ("GET", "/v1/subscribe?sql=SELECT+1&params=%7B"),
        ("GET", "/v1/subscribe?sql=SELECT+1&colour=red"),
        ("GET", "/v1/subscribe?sql=SELECT+random()+FROM+notes"),
        ("GET", "/v1/subscribe?sql=SELECT+*+FROM+books"),
    ] {
        let response = server.request(method, path).send().await;
        let allow = response.header("allow").map(|allow| format!(" [allow: {allow}]"));
        let allow = allow.unwrap_or_default();
        problems.push_str(&format!("{method} {path}{allow}\n    {}\n", response.problem()));
    }
    expect![[r#"
        GET /nowhere
            404 not_found: no route matches /nowhere (GET /openapi.json lists the routes)
        GET /v1/call/nothing [allow: POST]
            405 bad_request: /v1/call/nothing does not support GET (the header Allow lists the supported methods)
        POST /health [allow: GET,HEAD]
            405 bad_request: /health does not support POST (the header Allow lists the supported methods)
        DELETE /v1/schema [allow: GET,HEAD]
            405 bad_request: /v1/schema does not support DELETE (the header Allow lists the supported methods)
        GET /v1/ws
            400 bad_request: this endpoint requires a WebSocket: connection header did not include 'upgrade' (open ws://…/v1/ws with the subprotocol abide.v1)
        GET /v1/subscribe
            400 bad_request: invalid query string: missing field `sql` (/v1/subscribe?sql=SELECT…&params={…}&after_seq=40; only sql is required; there are also timeline, as_of, checksum and explain)
        GET /v1/subscribe?sql=SELECT+1&after_seq=soon
            400 bad_request: invalid query string: after_seq: invalid digit found in string (/v1/subscribe?sql=SELECT…&params={…}&after_seq=40; only sql is required; there are also timeline, as_of, checksum and explain)
        GET /v1/subscribe?sql=SELECT+1&params=%7B
            400 bad_request: params is not a JSON object: EOF while parsing an object at line 1 column 1 (params={"sid": "s_42"}, percent-encoded)
        GET /v1/subscribe?sql=SELECT+1&colour=red
            400 bad_request: invalid query string: colour: unknown field `colour`, expected one of `sql`, `params`, `after_seq`, `timeline`, `as_of`, `checksum`, `explain`, `token` (/v1/subscribe?sql=SELECT…&params={…}&after_seq=40; only sql is required; there are also timeline, as_of, checksum and explain)
        GET /v1/subscribe?sql=SELECT+random()+FROM+notes
            422 unsupported_sql: random() is not deterministic, so this query cannot be live (run it once with `abide sql`)
        GET /v1/subscribe?sql=SELECT+*+FROM+books
            400 bad_sql: no such table: books (GET /v1/schema lists the tables)
    "#]].assert_eq(&problems);
    unharmed(&server).await;
}

#[tokio::test]
async fn invalid_headers_are_refused() {
    let server = TestServer::open().await;
    let call = || server.request("POST", "/v1/call/nothing");
    let long = "k".repeat(600);
    let mut problems = String::new();
    for key in ["é", "", &long] {
        let refused = call().header("idempotency-key", key).send().await;
        problems.push_str(&(refused.problem() + "\n"));
    }
    check(
        problems.trim_end(),
        expect![[r#"
        400 bad_request: the header idempotency-key is not visible ASCII (use a UUID)
        400 bad_request: a request id must have 1 to 512 bytes (-)
        400 bad_request: a request id must have 1 to 512 bytes (-)
    "#]],
    );
    let events = server.request("GET", "/v1/subscribe?sql=SELECT+1");
    let refused = events.header("last-event-id", "soon").send().await;
    check(
        &refused.problem(),
        expect![[r#"
            400 bad_request: the header Last-Event-ID is not the id of an event (send the unchanged id of the last event, or omit the header)
        "#]],
    );
    unharmed(&server).await;
}

/// A request without a host was accepted (RFC 9112, section 3.2).
#[tokio::test]
async fn a_request_of_http_1_1_has_a_host() {
    let server = TestServer::open().await;
    let mut answers = Vec::new();
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let socket = TcpStream::connect(server.address).await.expect("it listens");
        let mut socket = BufReader::new(socket);
        let text = format!("GET /health {version}\r\nconnection: close\r\n\r\n");
        socket.write_all(text.as_bytes()).await.expect("it reads");
        let mut response = http::head(&mut socket).await;
        socket.read_to_string(&mut response.body).await.expect("the whole answer");
        answers.push(response);
    }
    assert_eq!(answers[0].status, 200);
    check(
        &answers[1].problem(),
        expect![[r#"
        400 bad_request: the request has no header Host (HTTP/1.1 requires it, for example `Host: localhost:7341`)
    "#]],
    );
}

/// A compressed body was read as JSON, and refused as such if its bytes were none.
#[tokio::test]
async fn a_body_with_a_coding_is_refused() {
    let server = TestServer::open().await;
    let refused = post_coded(&server, "gzip").await;
    assert_eq!(refused.header("accept-encoding"), Some("identity"));
    check(
        &refused.problem(),
        expect![[r#"
        415 bad_request: the body has the content encoding "gzip", which is not supported (send the body without compression, and without the header Content-Encoding)
    "#]],
    );
    assert_eq!(post_coded(&server, "identity, br").await.status, 415);
    unharmed(&server).await;
    assert_eq!(post_coded(&server, "Identity").await.status, 200);
}

async fn post_coded(server: &TestServer, coding: &str) -> http::Response {
    let request = server.request("POST", "/v1/call/nothing");
    request.header("content-encoding", coding).body("{}").send().await
}

#[tokio::test]
async fn non_utf8_bodies_are_refused() {
    let server = TestServer::open().await;
    let refused = server.request("POST", "/v1/call/write_note").body(b"{\"book\":\"\xff\"}").send();
    check(
        &refused.await.problem(),
        expect![[r#"
        400 bad_request: the body is not UTF-8 from byte 9 on (encode text as UTF-8, and bytes as {"$blob": "<base64>"})
    "#]],
    );
    unharmed(&server).await;
}

#[tokio::test]
async fn too_large_bodies_are_refused() {
    let server = TestServer::open().await;
    let huge = vec![b' '; (16 << 20) + 1];
    let whole = server.request("POST", "/v1/call/nothing").body(&huge).send().await;
    check(
        &whole.problem(),
        expect![[r#"
        413 limit_exceeded: the body is larger than 16777216 bytes (send several requests, or store large content elsewhere and append a reference to it)
    "#]],
    );

    let mut chunks = format!("{:x}\r\n", huge.len()).into_bytes();
    chunks.extend_from_slice(&huge);
    chunks.extend_from_slice(b"\r\n0\r\n\r\n");
    let chunked = server.request("POST", "/v1/call/nothing").header("transfer-encoding", "chunked");
    let chunked = chunked.header("x-no", "content-length").body(chunks).send().await;
    assert_eq!(chunked.problem(), whole.problem());

    // A client that asks first is refused before it sends the body.
    let asking = server.request("POST", "/v1/call/nothing").header("expect", "100-continue");
    let mut socket = asking.header("content-length", "99999999").begin().await;
    assert_eq!(http::head(&mut socket).await.status, 413);
    unharmed(&server).await;
}

#[tokio::test]
async fn too_large_arguments_are_refused() {
    let server = TestServer::open().await;
    let large = format!(r#"{{"book":"a","text":"{}"}}"#, "x".repeat(9 << 20));
    check(
        &server.post("/v1/call/write_note", &large).await.problem(),
        expect![[r#"
        413 limit_exceeded: write_note: the arguments have 9437206 bytes; the limit is 8388608 (keep large content elsewhere and append a reference to it)
    "#]],
    );
    unharmed(&server).await;
}

const MESSAGES: [&str; 16] = [
    "",
    "hello",
    r#"["ping"]"#,
    "{}",
    r#"{"op":"sing","id":"x"}"#,
    r#"{"op":"call","id":"c1"}"#,
    r#"{"op":"call","id":7,"reducer":"nothing"}"#,
    r#"{"op":"call","id":"c2","reducer":"nothing","arguments":{}}"#,
    r#"{"op":"call","id":"c3","reducer":"something"}"#,
    r#"{"op":"call","id":"c4","reducer":"nothing","args":[]}"#,
    r#"{"op":"call","id":"c5","reducer":"nothing","request_id":""}"#,
    r#"{"op":"batch","id":"b1","calls":[]}"#,
    r#"{"op":"sql","id":"s1","sql":"DELETE FROM notes"}"#,
    r#"{"op":"subscribe","id":"q1","sql":"SELECT random() FROM notes"}"#,
    r#"{"op":"subscribe","id":"q2","sql":"SELECT * FROM books"}"#,
    r#"{"op":"subscribe","id":"q3","sql":"SELECT * FROM notes WHERE id = :id"}"#,
];

#[tokio::test]
async fn invalid_messages_are_refused() {
    let server = TestServer::open().await;
    let mut socket = server.socket().await;
    let long = format!(r#"{{"op":"unsubscribe","id":"{}"}}"#, "q".repeat(600));
    let mut errors = String::new();
    for message in MESSAGES.into_iter().chain([long.as_str()]) {
        socket.say(message).await;
        let error = socket.receive().await;
        assert_eq!(error["op"], "error", "{message}");
        let shown = if message.len() > 200 { "(long)" } else { message };
        let text = |name: &str| error[name].as_str().unwrap_or("-").to_owned();
        errors.push_str(&format!(
            "{shown}\n    {} {}: {} ({})\n",
            text("id"),
            text("code"),
            text("detail"),
            text("hint")
        ));
    }
    expect![[r#"

            - bad_request: the message is not JSON: EOF while parsing a value at line 1 column 0 (abide.v1 is one JSON object per text message)
        hello
            - bad_request: the message is not JSON: expected value at line 1 column 1 (abide.v1 is one JSON object per text message)
        ["ping"]
            - bad_request: the message is not a JSON object (abide.v1 is one JSON object per text message)
        {}
            - bad_request: the message has no op ("op" is one of subscribe, unsubscribe, call, batch, sql, explain, cancel, ack, ping)
        {"op":"sing","id":"x"}
            x bad_request: unknown op "sing" ("op" is one of subscribe, unsubscribe, call, batch, sql, explain, cancel, ack, ping)
        {"op":"call","id":"c1"}
            c1 bad_request: call: missing field `reducer` (send a message like {"op":"call","id":"c1","reducer":"…","args":{…},"request_id":"…"})
        {"op":"call","id":7,"reducer":"nothing"}
            - bad_request: call: invalid type: integer `7`, expected a string (send a message like {"op":"call","id":"c1","reducer":"…","args":{…},"request_id":"…"})
        {"op":"call","id":"c2","reducer":"nothing","arguments":{}}
            c2 bad_request: call: unknown field `arguments`, expected one of `id`, `reducer`, `args`, `request_id` (send a message like {"op":"call","id":"c1","reducer":"…","args":{…},"request_id":"…"})
        {"op":"call","id":"c3","reducer":"something"}
            c3 unknown_reducer: there is no reducer "something" (the schema lists the reducers)
        {"op":"call","id":"c4","reducer":"nothing","args":[]}
            c4 bad_arguments: nothing: the arguments are not a JSON object (arguments are named: {"session_id": "…"})
        {"op":"call","id":"c5","reducer":"nothing","request_id":""}
            c5 bad_request: a request id must have 1 to 512 bytes (-)
        {"op":"batch","id":"b1","calls":[]}
            b1 bad_request: the batch is empty (-)
        {"op":"sql","id":"s1","sql":"DELETE FROM notes"}
            s1 bad_sql: the statement is not read-only (one SELECT, VALUES or WITH; to change data, call a reducer)
        {"op":"subscribe","id":"q1","sql":"SELECT random() FROM notes"}
            q1 unsupported_sql: random() is not deterministic, so this query cannot be live (run it once with `abide sql`)
        {"op":"subscribe","id":"q2","sql":"SELECT * FROM books"}
            q2 bad_sql: no such table: books (the schema lists the tables)
        {"op":"subscribe","id":"q3","sql":"SELECT * FROM notes WHERE id = :id"}
            q3 bad_arguments: parameter id is missing (pass it in params: {"id": …})
        (long)
            - limit_exceeded: the id has 600 bytes; the limit is 512 (number them: q1, q2, …)
    "#]].assert_eq(&errors);
    socket.say(r#"{"op":"ping"}"#).await;
    assert_eq!(socket.receive().await["op"], "pong");
    unharmed(&server).await;
}

#[tokio::test]
async fn invalid_frames_are_refused() {
    let server = TestServer::open().await;
    let mut socket = server.socket().await;
    socket.0.send(Message::binary(vec![1, 2, 3])).await.expect("it listens");
    check(
        &socket.receive_text().await,
        expect![[r#"
        {"op":"error","code":"bad_request","detail":"the message is binary","hint":"abide.v1 is one JSON object per text message"}
    "#]],
    );

    let long = format!(r#"{{"op":"call","id":"c1","args":"{}"}}"#, "x".repeat(16 << 20));
    socket.0.send(Message::text(long)).await.expect("it listens");
    check(
        &socket.receive_text().await,
        expect![[r#"
        {"op":"error","id":"c1","code":"limit_exceeded","detail":"the message is larger than 16777216 bytes","hint":"split it, or store large content elsewhere and append a reference to it"}
    "#]],
    );
    socket.say(r#"{"op":"ping"}"#).await;
    assert_eq!(socket.receive().await["op"], "pong");

    // The head of a text frame of a terabyte, without its content.
    let head = [0x81, 0xFF, 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    socket.0.get_mut().write_all(&head).await.expect("it listens");
    check(
        &socket.receive_text().await,
        expect![[r#"
        {"op":"error","code":"limit_exceeded","detail":"the message is larger than 16777216 bytes","hint":"split it, or store large content elsewhere and append a reference to it"}
    "#]],
    );
    let closed = socket.closed().await.expect("a reason");
    assert_eq!((u16::from(closed.code), closed.reason.as_str()), (1009, "a message was too large"));

    let mut socket = server.socket().await;
    let not_utf8 = [0x81, 0x81, 0, 0, 0, 0, 0xFF];
    socket.0.get_mut().write_all(&not_utf8).await.expect("it listens");
    check(
        &socket.receive_text().await,
        expect![[r#"
        {"op":"error","code":"bad_request","detail":"the message is not UTF-8","hint":"encode text as UTF-8"}
    "#]],
    );
    assert_eq!(socket.closed().await.map(|closed| u16::from(closed.code)), Some(1007));

    let mut socket = server.socket().await;
    let not_masked = [0x81, 0x01, b'x'];
    socket.0.get_mut().write_all(&not_masked).await.expect("it listens");
    check(
        &socket.receive_text().await,
        expect![[r#"
        {"op":"error","code":"bad_request","detail":"received an unmasked frame from client"}
    "#]],
    );
    assert_eq!(socket.closed().await.map(|closed| u16::from(closed.code)), Some(1002));
    unharmed(&server).await;
}

/// They were stored as doubles: `100000000000000000000000` became `1e+23`.
#[tokio::test]
async fn integers_beyond_64_bits_are_refused_wherever_json_comes_in() {
    let server = TestServer::open().await;
    let mut output = String::new();
    for (path, body) in [
        ("call/write_note", r#"{"book":"a","text":"x","weight":100000000000000000000000}"#),
        ("batch", r#"{"calls":[{"reducer":"nothing","args":{"n":[18446744073709551615]}}]}"#),
        ("sql", r#"{"sql":"SELECT :n","params":{"n":-9223372036854775809}}"#),
        ("explain", r#"{"sql":"SELECT 1","params":{"n":18446744073709551615}}"#),
    ] {
        let answer = server.post(&format!("/v1/{path}"), body).await;
        output.push_str(&format!("POST {path} {}\n", answer.problem()));
    }
    let params = escaped(r#"{"n":100000000000000000000000}"#);
    let path = format!("/v1/subscribe?sql=SELECT+1&params={params}");
    let answer = server.request("GET", &path).send().await;
    output.push_str(&format!("GET subscribe {}\n", answer.problem()));
    let mut socket = server.socket().await;
    for message in [
        r#"{"op":"call","id":"c","reducer":"nothing","args":{"n":100000000000000000000000}}"#,
        r#"{"op":"batch","id":"b","calls":[{"reducer":"no","args":{"n":18446744073709551615}}]}"#,
        r#"{"op":"sql","id":"s","sql":"SELECT :n","params":{"n":-9223372036854775809}}"#,
        r#"{"op":"subscribe","id":"q","sql":"SELECT 1","params":{"n":18446744073709551615}}"#,
        r#"{"op":"explain","id":"e","sql":"SELECT 1","params":{"n":18446744073709551615}}"#,
    ] {
        socket.say(message).await;
        let error = socket.receive().await;
        let text = |name: &str| error[name].as_str().unwrap_or("-").to_owned();
        output.push_str(&format!("{} {}: {}\n", text("id"), text("code"), text("detail")));
    }
    expect![[r#"
        POST call/write_note 422 bad_arguments: the integer 100000000000000000000000 at /weight does not fit a signed 64-bit integer (send it as a string: JSON integers are signed 64-bit integers)
        POST batch 422 bad_arguments: the integer 18446744073709551615 at /calls/0/args/n/0 does not fit a signed 64-bit integer (send it as a string: JSON integers are signed 64-bit integers)
        POST sql 422 bad_arguments: the integer -9223372036854775809 at /params/n does not fit a signed 64-bit integer (send it as a string: JSON integers are signed 64-bit integers)
        POST explain 422 bad_arguments: the integer 18446744073709551615 at /params/n does not fit a signed 64-bit integer (send it as a string: JSON integers are signed 64-bit integers)
        GET subscribe 422 bad_arguments: the integer 100000000000000000000000 at /n does not fit a signed 64-bit integer (send it as a string: JSON integers are signed 64-bit integers)
        c bad_arguments: the integer 100000000000000000000000 at /args/n does not fit a signed 64-bit integer
        b bad_arguments: the integer 18446744073709551615 at /calls/0/args/n does not fit a signed 64-bit integer
        s bad_arguments: the integer -9223372036854775809 at /params/n does not fit a signed 64-bit integer
        q bad_arguments: the integer 18446744073709551615 at /params/n does not fit a signed 64-bit integer
        e bad_arguments: the integer 18446744073709551615 at /params/n does not fit a signed 64-bit integer
    "#]].assert_eq(&output);
    assert_eq!(server.engine.durable_seq().0, 0, "nothing was written");
    unharmed(&server).await;
}

/// Class: a name that serde_json reads as another value. A route that parses the body itself got the JSON in the text, whose integers
/// nobody had checked.
#[tokio::test]
async fn a_reserved_name_is_refused_wherever_json_comes_in() {
    let server = TestServer::open().await;
    let name = "$serde_json::private::RawValue";
    let mut output = String::new();
    for (path, value) in [
        ("call/nothing", json!({"args": {name: "18446744073709551615"}})),
        ("sql", json!({"sql": "SELECT :n", "params": {"n": {name: "18446744073709551615"}}})),
        ("batch", json!({"calls": [{"reducer": "nothing", "args": {"n": {name: "1"}}}]})),
    ] {
        for body in [value.to_string(), value.to_string().replace("$serde", r"\u0024serde")] {
            let answer = server.post(&format!("/v1/{path}"), &body).await;
            output.push_str(&format!("POST {path} {}\n", answer.problem()));
        }
    }
    let mut socket = server.socket().await;
    let params = json!({"n": {name: "18446744073709551615"}});
    for op in ["sql", "subscribe", "explain"] {
        let message = json!({"op": op, "id": op, "sql": "SELECT :n", "params": params});
        socket.say(&message.to_string()).await;
        let error = socket.receive().await;
        let text = |name: &str| error[name].as_str().unwrap_or("-").to_owned();
        output.push_str(&format!("{} {}: {}\n", text("id"), text("code"), text("detail")));
    }
    expect![[r#"
        POST call/nothing 422 bad_arguments: nothing: a member is named $serde_json::private::RawValue, which is reserved (rename the member)
        POST call/nothing 422 bad_arguments: nothing: a member is named $serde_json::private::RawValue, which is reserved (rename the member)
        POST sql 422 bad_arguments: a member is named $serde_json::private::RawValue, which is reserved (rename the member)
        POST sql 422 bad_arguments: a member is named $serde_json::private::RawValue, which is reserved (rename the member)
        POST batch 422 bad_arguments: a member is named $serde_json::private::RawValue, which is reserved (rename the member)
        POST batch 422 bad_arguments: a member is named $serde_json::private::RawValue, which is reserved (rename the member)
        sql bad_arguments: a member is named $serde_json::private::RawValue, which is reserved
        subscribe bad_arguments: a member is named $serde_json::private::RawValue, which is reserved
        explain bad_arguments: a member is named $serde_json::private::RawValue, which is reserved
    "#]].assert_eq(&output);
    unharmed(&server).await;
}

/// Regression: 16 MB of small objects took 3 GB while they were parsed, by any caller with a credential.
#[tokio::test]
async fn a_message_of_too_many_values_is_refused_before_it_is_parsed() {
    let server = TestServer::open().await;
    let objects = vec![r#"{"":0}"#; 200_000].join(",");
    let call = format!(r#"{{"book":"a","text":"x","more":[{objects}]}}"#);
    let refused = server.post("/v1/call/write_note", &call).await;
    assert_eq!(refused.status, 413, "{}", refused.body);
    assert!(refused.body.contains("more than 250000 values"), "{}", refused.body);
    let sql = format!(r#"{{"sql":"SELECT 1","params":{{"a":[{objects}]}}}}"#);
    assert_eq!(server.post("/v1/sql", &sql).await.status, 413);
    let mut socket = server.socket().await;
    let message =
        format!(r#"{{"op":"sql","id":"s1","sql":"SELECT 1","params":{{"a":[{objects}]}}}}"#);
    socket.say(&message).await;
    let error = socket.receive().await;
    assert_eq!((&error["id"], &error["code"]), (&json!("s1"), &json!("limit_exceeded")));
}

/// A client of OpenAI shows the member `error` only: the usual mistakes had no reason.
#[tokio::test]
async fn a_client_of_openai_with_a_wrong_route_gets_a_reason() {
    let server = TestServer::open().await;
    let mut errors = String::new();
    for path in ["/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/other"] {
        let body = server.post(path, "{}").await.body;
        let problem: serde_json::Value = serde_json::from_str(&body).expect("it is JSON");
        errors.push_str(&format!("{path}: {}\n", problem["error"]["message"]));
    }
    expect![[r#"
        /responses: "no route matches /responses (the base URL of an OpenAI client ends with /v1)"
        /v1/chat/completions: "no route matches /v1/chat/completions (use the Responses API: POST /v1/responses)"
        /v1/embeddings: "no route matches /v1/embeddings (GET /openapi.json lists the routes)"
        /v1/other: null
    "#]].assert_eq(&errors);
}
