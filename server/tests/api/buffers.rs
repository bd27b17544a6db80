//! Buffered memory is limited: per caller, and in total.

use std::time::Duration;

use abide_engine::buffers::BufferLimits;
use abide_engine::{Budget, Config, Connection, Start, SubscribeRequest, Update};
use abide_schema::{Caller, Code, Seq};
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::test_server::TestServer;

pub(crate) const MB: usize = 1 << 20;

/// Larger than the buffers of two unread sockets.
const LARGE: usize = 7 * MB;

/// The timeout for any response.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Room for one large result of a caller, and for less than two of all callers.
const BUFFERS: BufferLimits = BufferLimits { total: 8 * MB, per_caller: 5 * MB };

/// A server whose sessions `s0`, `s1` and `s2` have messages of 4 MB each.
async fn server() -> TestServer {
    let server = TestServer::buffering(BUFFERS).await;
    fill(&server).await;
    server
}

async fn fill(server: &TestServer) {
    for nth in 0..3 {
        let session = format!("s{nth}");
        let args = json!({"id": session, "agent": "a"});
        let created = server.engine.call(&Caller::local(), "create_session", &args, None).await;
        created.unwrap_or_else(|why| panic!("{why}"));
        for _ in 0..8 {
            append(server, &session, MB / 2).await;
        }
    }
}

fn query(nth: usize) -> String {
    format!("SELECT id, content FROM agent_state WHERE session_id = 's{nth}'")
}

/// 100 clients that subscribed to one result of 10 MB and did not read cost 2 GB: each had its own copy of the rows.
#[tokio::test]
async fn equal_snapshots_are_shared_and_counted_once() {
    let server = server().await;
    let subscribed = async |caller: &str, nth: usize| {
        let mut connection = server.engine.connect(&Caller::new(caller));
        let sql = query(nth);
        let params = serde_json::Map::new();
        let answer = connection.subscribe(&SubscribeRequest::new("q", &sql, &params)).await;
        answer.map(|()| connection).map_err(|refusal| refusal.code)
    };
    let mut connections = Vec::new();
    for _ in 0..100 {
        connections.push(subscribed("ann", 0).await.expect("the rows are shared"));
    }
    let total = server.engine.buffers().total();
    assert!((4 * MB..5 * MB).contains(&total), "{total}");
    assert_eq!(subscribed("ann", 1).await.err(), Some(Code::Overloaded), "the limit per caller");
    assert_eq!(subscribed("bob", 1).await.err(), Some(Code::Overloaded), "the total limit");
    // A client that reads has nothing buffered.
    for mut connection in connections.drain(1..) {
        while connection.try_next().is_some() {}
    }
    assert_eq!(server.engine.buffers().total(), total, "one client still does not read");
    connections.clear();
    assert_eq!(server.engine.buffers().total(), 0);
    assert!(subscribed("ann", 1).await.is_ok());
}

/// Sends a query, and reads only the first bytes of the response.
async fn ask(server: &TestServer, sql: &str) -> (TcpStream, String) {
    begin(server, "POST /v1/sql", &json!({"sql": sql}).to_string()).await
}

/// Sends a request.
async fn send(server: &TestServer, line: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.expect("it listens");
    let head = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.expect("it reads");
    socket
}

/// Sends a request, and reads only the first bytes of the response.
async fn begin(server: &TestServer, line: &str, body: &str) -> (TcpStream, String) {
    let mut socket = send(server, line, body).await;
    let mut first = [0; 12];
    socket.read_exact(&mut first).await.expect("it answers");
    (socket, String::from_utf8_lossy(&first).into_owned())
}

/// Ten unread answers of `/state` took a gigabyte: only some routes counted what they send.
#[tokio::test]
async fn unread_responses_of_all_routes_are_counted() {
    let server = server().await;
    // Twelve megabytes as JSON.
    let content = "\u{1}".repeat(MB);
    for _ in 0..2 {
        let args = json!({"session_id": "s0", "role": "user", "content": content});
        let call = server.engine.call(&Caller::local(), "append_message", &args, None).await;
        call.unwrap_or_else(|why| panic!("{why}"));
    }
    for id in ["large", "large too"] {
        let args = json!({"id": id, "agent": "a", "metadata": {"content": content}});
        let created = server.engine.call(&Caller::local(), "create_session", &args, None).await;
        created.unwrap_or_else(|why| panic!("{why}"));
    }
    for path in
        ["/v1/sessions/s0/state?last=2", "/v1/sessions/s0/messages?limit=100", "/v1/sessions"]
    {
        let (unread, status) = begin(&server, &format!("GET {path}"), "").await;
        assert_eq!(status, "HTTP/1.1 200", "{path}");
        assert!(server.engine.buffers().total() >= 12 * MB, "{path}");
        let again = begin(&server, &format!("GET {path}"), "").await;
        assert_eq!(again.1, "HTTP/1.1 503", "{path}");
        // A call that has taken effect is not refused for want of room for its result: the connection ends.
        let title = format!("after {path}");
        let body = json!({"title": title}).to_string();
        let mut changed = send(&server, "PATCH /v1/sessions/large", &body).await;
        let mut answer = String::new();
        changed.read_to_string(&mut answer).await.expect("the connection ends");
        assert_eq!(answer, "", "{path}");
        let stored = "SELECT 1 FROM sessions WHERE id = 'large' AND title = :title";
        let params = serde_json::Map::from_iter([("title".to_owned(), json!(title))]);
        let found = server.engine.query(&Caller::local(), stored, &params, None).await;
        assert_eq!(found.map(|found| found.rows.len()), Ok(1), "{path}");
        drop(unread);
        until_empty(&server).await;
    }
}

/// A control character has six bytes in JSON: cells within the limit of a result became 384 MB, which were counted when
/// they were complete.
#[tokio::test]
async fn a_result_is_counted_while_it_is_encoded() {
    let server = server().await;
    let (_unread, status) = ask(&server, &control_characters(3, "")).await;
    assert_eq!(status, "HTTP/1.1 200", "a single result is accepted even if it is the largest");
    // This query has no end: it is refused as soon as its first rows have no room.
    let endless = "UNION ALL SELECT count(*) FROM n";
    assert_eq!(ask(&server, &control_characters(3, endless)).await.1, "HTTP/1.1 503");
}

/// A result of any length, which nobody reads, would leave no room for other callers.
#[tokio::test]
async fn a_result_has_a_maximum_length_as_json() {
    let server = server().await;
    let endless = "UNION ALL SELECT count(*) FROM n";
    let body = json!({"sql": control_characters(20, endless)}).to_string();
    let answer = server.post("/v1/sql", &body).await;
    let problem = answer.json();
    assert_eq!(problem["code"], "limit_exceeded", "{problem}");
    assert_eq!(problem["detail"], "the result has more than 96 MiB as JSON");
    assert_eq!(server.engine.buffers().total(), 0, "what was encoded is freed");
}

/// A query whose result has rows of a MiB of control characters. `n` has no end.
fn control_characters(rows: usize, rest: &str) -> String {
    format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n), \
         some (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM some WHERE i < {rows}) \
         SELECT replace(hex(zeroblob(524288)), '0', char(1)) FROM some {rest}"
    )
}

/// An unread response was held completely, for two minutes, on each connection.
#[tokio::test]
async fn unread_responses_are_counted() {
    let server = server().await;
    // Larger than the buffers of two sockets, so that it is not sent while the client does not read.
    let large = "SELECT a.id, a.content FROM agent_state a JOIN agent_state b \
        ON b.session_id = 's0' WHERE a.session_id = 's0'";
    let (unread, status) = ask(&server, large).await;
    assert_eq!(status, "HTTP/1.1 200");
    let total = server.engine.buffers().total();
    assert!(total >= 32 * MB, "{total}: a single result is accepted even if it is the largest");
    assert_eq!(ask(&server, &query(0)).await.1, "HTTP/1.1 503");
    assert_eq!(ask(&server, "SELECT 1").await.1, "HTTP/1.1 200", "small answers are not counted");
    drop(unread);
    until_empty(&server).await;
    // The parts form one JSON text. HTTP/1.0 has no chunk sizes.
    let body = json!({"sql": query(0)}).to_string();
    let head = format!("POST /v1/sql HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut socket = TcpStream::connect(server.address).await.expect("it listens");
    socket.write_all((head + &body).as_bytes()).await.expect("it reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("it answers");
    let (_, body) = text.split_once("\r\n\r\n").expect("a head");
    let answer: serde_json::Value = serde_json::from_str(body).expect("one JSON text");
    assert_eq!(answer["rows"].as_array().map(Vec::len), Some(8));
    assert_eq!(answer["columns"], json!(["id", "content"]));
    assert_eq!(answer["rows"][7][1].as_str().map(str::len), Some(MB / 2));
}

/// A client of HTTP/2 decides when it takes each of 64 responses. Descriptions and small results were not counted: 450 connections
/// held 3.5 GB.
#[tokio::test]
async fn responses_that_an_http2_client_does_not_take_are_counted() {
    let server = TestServer::buffering(BUFFERS).await;
    let mut socket = TcpStream::connect(server.address).await.expect("it listens");
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("it reads");
    socket.write_all(&settings).await.expect("it reads");
    for (stream, path) in [(1, "/v1/schema"), (3, "/openapi.json")] {
        let before = server.engine.buffers().total();
        // `:method GET`, `:scheme http`, and literals for `:path` and `:authority`.
        let mut fields = vec![0x82, 0x86, 0x44, path.len() as u8];
        fields.extend(path.as_bytes());
        fields.extend([0x41, 9]);
        fields.extend(b"localhost");
        let mut headers = vec![0, 0, fields.len() as u8, 1, 5, 0, 0, 0, stream];
        headers.extend(fields);
        socket.write_all(&headers).await.expect("it reads");
        until_at_least(&server, before + 100_000).await;
    }
    drop(socket);
    until_empty(&server).await;
}

/// 120 bodies of 7.9 MB that were sent slowly with one token held 1 GB.
#[tokio::test]
async fn request_bodies_are_counted() {
    let server = TestServer::buffering(BUFFERS).await;
    let begin = async |bytes: usize| {
        let mut socket = TcpStream::connect(server.address).await.expect("it listens");
        let head = "POST /v1/sql HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8000000\r\n\r\n";
        socket.write_all(head.as_bytes()).await.expect("it reads");
        // After a refusal, the server may not read the rest.
        let _ = socket.write_all(&vec![b' '; bytes]).await;
        socket
    };
    let first = begin(3 * MB).await;
    while server.engine.buffers().total() < 3 * MB {
        tokio::task::yield_now().await;
    }
    let mut second = begin(3 * MB).await;
    let mut status = [0; 12];
    second.read_exact(&mut status).await.expect("it answers");
    assert_eq!(status.as_slice(), b"HTTP/1.1 503");
    drop((first, second));
    until_empty(&server).await;
}

/// Requests of HTTP/2 with heads of 60 kB whose bodies did not come took 1.3 GB for 300 connections, and one of HTTP/1 could send a
/// head of 400 kB.
#[tokio::test]
async fn heads_are_counted_and_limited() {
    let server = TestServer::buffering(BUFFERS).await;
    let begin = async |bytes: usize| {
        let mut socket = TcpStream::connect(server.address).await.expect("it listens");
        let padding = "x".repeat(bytes);
        let head = format!(
            "POST /v1/sql HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\nx-a: {padding}\r\n\r\n"
        );
        // After a refusal, the server may not read the rest.
        let _ = socket.write_all(head.as_bytes()).await;
        socket
    };
    let waiting = begin(20_000).await;
    until_at_least(&server, 20_000).await;
    let mut refused = begin(100_000).await;
    let mut status = [0; 12];
    refused.read_exact(&mut status).await.expect("it answers");
    assert_eq!(status.as_slice(), b"HTTP/1.1 431");
    drop(waiting);
    until_empty(&server).await;
}

pub(crate) async fn until_empty(server: &TestServer) {
    while server.engine.buffers().total() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Waits until this many bytes are counted.
pub(crate) async fn until_at_least(server: &TestServer, bytes: usize) {
    let counted = async {
        while server.engine.buffers().total() < bytes {
            tokio::task::yield_now().await;
        }
    };
    let total = || server.engine.buffers().total();
    timeout(PATIENCE, counted).await.unwrap_or_else(|_| panic!("{} are counted", total()));
}

/// Appends a message of this size to a session.
async fn append(server: &TestServer, session: &str, bytes: usize) -> Seq {
    let args = json!({"session_id": session, "role": "user", "content": "x".repeat(bytes)});
    let done = server.engine.call(&Caller::local(), "append_message", &args, None).await;
    done.unwrap_or_else(|why| panic!("{why}")).seq
}

async fn subscribe(
    server: &TestServer,
    caller: &str,
    sql: &str,
    start: Start,
) -> Result<Connection, Code> {
    let mut connection = server.engine.connect(&Caller::new(caller));
    let params = serde_json::Map::new();
    let wanted = SubscribeRequest { start, ..SubscribeRequest::new("q", sql, &params) };
    connection.subscribe(&wanted).await.map_err(|refusal| refusal.code)?;
    Ok(connection)
}

/// Reads updates until the subscription ends; returns the code.
async fn ended(connection: &mut Connection) -> Code {
    loop {
        if let Update::Error { refusal, .. } = connection.next().await
            && refusal.code != Code::ResyncRequired
        {
            return refusal.code;
        }
    }
}

/// Deltas for clients that did not read were not counted: a megabyte for each connection, and any size for a single
/// commit.
#[tokio::test]
async fn deltas_that_wait_are_counted_once() {
    let server = server().await;
    let before = server.engine.durable_seq();
    let newer = |nth: usize| format!("{} AND seq > {before} AND content <> '{nth}'", query(0));
    let mut same = Vec::new();
    for caller in ["ann", "ann", "ann", "bob"] {
        let connection = subscribe(&server, caller, &newer(0), Start::Now).await;
        same.push(connection.expect("an empty result"));
    }
    let mut others = Vec::new();
    for nth in 1..4 {
        let connection = subscribe(&server, "ann", &newer(nth), Start::Now).await;
        others.push(connection.expect("an empty result"));
    }
    // Deltas are delivered to this subscriber last.
    let few = "SELECT id FROM agent_state WHERE session_id = 's0'";
    let mut last = subscribe(&server, "zoe", few, Start::Now).await.expect("a small result");
    append(&server, "s0", MB).await;
    while !matches!(last.next().await, Update::Delta { .. }) {}
    // Rows and text of a delta are 2 MB. Two fit into the 5 MB of ann; bob shares one with ann.
    let total = server.engine.buffers().total();
    assert!((4 * MB..5 * MB).contains(&total), "{total}");
    // Subscribers without room are caught up, or end with an error if there is no room for that either.
    assert_eq!(ended(&mut others[2]).await, Code::Overloaded);
    let output = same[3].next().await;
    assert!(matches!(output, Update::Snapshot(_)), "{output:?}");
    let output = same[3].next().await;
    assert!(matches!(&output, Update::Delta { changes, .. } if changes.len() == 1), "{output:?}");
    drop((output, same, others));
    assert_eq!(server.engine.buffers().total(), 0);
}

/// The result of a resume can be as large as a whole result, and was not counted.
#[tokio::test]
async fn deltas_of_resumes_are_counted() {
    let server = server().await;
    let before = server.engine.durable_seq();
    append(&server, "s0", 2 * MB).await;
    let mut first = subscribe(&server, "ann", &query(0), Start::After(before)).await;
    let first = first.as_mut().expect("room");
    let total = server.engine.buffers().total();
    assert!((4 * MB..5 * MB).contains(&total), "{total}");
    let second = subscribe(&server, "ann", &query(0), Start::After(before)).await;
    assert_eq!(second.err(), Some(Code::Overloaded));
    drop(first.try_next());
    assert_eq!(server.engine.buffers().total(), 0, "the delta was taken");
}

/// A rerun query keeps its whole result while it has subscribers, which was not counted.
#[tokio::test]
async fn results_of_reruns_are_counted() {
    let config = Config { buffers: BUFFERS, ..Config::new(abide_reducers::modules()) };
    let live_budget = Budget { average: 0, max: 0, commit: 0, ..Budget::UNLIMITED };
    let server = TestServer::configured(Config { live_budget, ..config }).await;
    fill(&server).await;
    let mut first = subscribe(&server, "ann", &query(0), Start::Now).await.expect("room");
    while first.try_next().is_some() {}
    assert_eq!(server.engine.buffers().total(), 0);
    append(&server, "s0", 1).await;
    while !matches!(first.next().await, Update::Snapshot(part) if !part.more) {}
    let total = server.engine.buffers().total();
    assert!((4 * MB..5 * MB).contains(&total), "{total}");
    // Another query of ann has no result yet; its result does not fit.
    let before = server.engine.durable_seq();
    let sql = format!("{} AND seq > {before}", query(1));
    let mut second = subscribe(&server, "ann", &sql, Start::Now).await.expect("an empty result");
    append(&server, "s1", MB).await;
    assert_eq!(ended(&mut second).await, Code::Overloaded);
    drop(first);
    assert_eq!(server.engine.buffers().total(), 0);
}

/// A server whose session `s0` has one message that is larger than the buffers of two sockets.
async fn house_of_one_large_row() -> TestServer {
    let server = TestServer::buffering(BUFFERS).await;
    let args = json!({"id": "s0", "agent": "a"});
    let created = server.engine.call(&Caller::local(), "create_session", &args, None).await;
    created.unwrap_or_else(|why| panic!("{why}"));
    append(&server, "s0", LARGE).await;
    server
}

/// Clients shared the rows of a result, but each had its own text while it was sent.
#[tokio::test]
async fn texts_that_are_sent_are_counted() {
    let server = house_of_one_large_row().await;
    let path = "/v1/subscribe?sql=SELECT%20id,content%20FROM%20agent_state";
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(server.address).await.expect("it listens");
        socket.write_all(head.as_bytes()).await.expect("it reads");
        streams.push(socket);
    }
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let mut socket = server.socket().await;
        let sql = "SELECT id, content FROM agent_state";
        socket.say(&json!({"op": "subscribe", "id": "q", "sql": sql}).to_string()).await;
        sockets.push(socket);
    }
    // The rows, and one text of them.
    until_at_least(&server, 2 * LARGE).await;
    assert!(server.engine.buffers().total() < 3 * LARGE, "one text at a time");
    // Each client gets its text when the ones before it have read theirs. Any of them can be the first, so all read.
    drop(streams);
    let read = sockets.iter_mut().map(async |socket| {
        let snapshot = socket.receive_op("snapshot").await;
        assert_eq!(snapshot["rows"][0][1].as_str().map(str::len), Some(LARGE));
    });
    futures_util::future::join_all(read).await;
    until_empty(&server).await;
}

/// The result of a small call can be large, and was not counted until it was sent.
#[tokio::test]
async fn answers_to_calls_are_counted() {
    let server = TestServer::buffering(BUFFERS).await;
    let call = async |reducer: &str, args| {
        let done = server.engine.call(&Caller::local(), reducer, &args, None).await;
        done.unwrap_or_else(|why| panic!("{reducer}: {why}"));
    };
    call("create_session", json!({"id": "s", "agent": "a"})).await;
    call("register_tool", json!({"name": "t"})).await;
    let arguments = json!({"text": "x".repeat(LARGE)});
    let args = json!({"session_id": "s", "call_id": "c", "tool_name": "t", "arguments": arguments});
    call("request_tool_call", args).await;
    let body = r#"{"call_id":"c"}"#;
    let head = format!(
        "POST /v1/call/cancel_tool_call HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut unread = TcpStream::connect(server.address).await.expect("it listens");
    unread.write_all(head.as_bytes()).await.expect("it reads");
    until_at_least(&server, LARGE).await;
    // There is no room for the next result: the call is committed, so its connection ends without a response.
    let mut second = TcpStream::connect(server.address).await.expect("it listens");
    second.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    // The connection may be reset.
    let _ = second.read_to_end(&mut answer).await;
    assert!(answer.len() < MB, "{} bytes", answer.len());
    let mut socket = server.socket().await;
    let call = json!({"op": "call", "id": "c", "reducer": "cancel_tool_call",
        "args": {"call_id": "c"}});
    socket.say(&call.to_string()).await;
    let output = socket.0.next().await;
    let Some(Ok(Message::Close(Some(frame)))) = output else { panic!("{output:?}") };
    assert_eq!(frame.code, CloseCode::Again);
    // When the first client has disconnected, there is room.
    drop(unread);
    until_empty(&server).await;
    let mut socket = server.socket().await;
    socket.say(&call.to_string()).await;
    assert!(socket.receive_text().await.len() > LARGE);
    until_empty(&server).await;
}

/// WebSocket messages that were sent slowly were buffered, and not counted.
#[tokio::test]
async fn messages_that_arrive_are_counted() {
    let server = TestServer::buffering(BUFFERS).await;
    // RFC 6455, section 5.2: one text frame, its length in 64 bits, masked with zeros.
    let mut begun = [0x81, 0xff].to_vec();
    begun.extend((4 * MB as u64).to_be_bytes());
    begun.extend([0; 4]);
    begun.resize(begun.len() + 3 * MB, b' ');
    let mut first = server.socket().await;
    first.0.get_mut().write_all(&begun).await.expect("it reads");
    until_at_least(&server, 3 * MB).await;
    let mut second = server.socket().await;
    // After a refusal half-way, the server may not accept the rest.
    let _ = second.0.get_mut().write_all(&begun).await;
    assert_eq!(second.receive_op("error").await["code"], "overloaded");
    let closed = second.closed().await.map(|frame| frame.code);
    assert!(closed.is_none_or(|code| code == CloseCode::Again), "{closed:?}");
    // The first message completes.
    let mut rest = vec![b' '; MB - 14];
    rest.extend(br#"{"op":"ping"} "#);
    first.0.get_mut().write_all(&rest).await.expect("it reads");
    assert_eq!(first.receive().await["op"], "pong");
    until_empty(&server).await;
}
