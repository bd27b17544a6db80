//! WebSockets: messages, their order, and slow clients.

use std::collections::BTreeMap;
use std::time::Duration;

use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Checksum, Value};
use serde_json::{Value as JsonValue, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::http;
use crate::test_server::{TIMELINE, TestServer};
use crate::ws::Socket;

/// Subscribes and receives the snapshot.
async fn subscribe(socket: &mut Socket, id: &str, sql: &str) -> JsonValue {
    socket.say(&format!(r#"{{"op":"subscribe","id":"{id}","sql":"{sql}"}}"#)).await;
    socket.receive_op("snapshot").await
}

#[tokio::test]
async fn one_frame_per_commit_covers_all_subscriptions() {
    let server = TestServer::open().await;
    let mut socket = server.socket().await;
    subscribe(&mut socket, "q1", "SELECT id, text FROM notes WHERE book = 'a'").await;
    subscribe(&mut socket, "q2", "SELECT id FROM notes WHERE weight = 'heavy'").await;
    let heavy = r#"{"book":"a","text":"x","weight":"heavy"}"#;
    server.post("/v1/call/write_note", heavy).await;
    let delta = socket.receive().await;
    assert_eq!((&delta["from"], &delta["to"]), (&json!(0), &json!(1)));
    let changes = json!([
        {"id": "q1", "deletes": [], "inserts": [[1, "x"]], "updates": []},
        {"id": "q2", "deletes": [], "inserts": [[1]], "updates": []},
    ]);
    assert_eq!(delta["changes"], changes);

    socket.say(r#"{"op":"unsubscribe","id":"q1"}"#).await;
    // Commands are executed in order: when the next subscription has started, this one is done.
    subscribe(&mut socket, "q3", "SELECT id FROM notes WHERE book = 'z'").await;
    server.post("/v1/call/burn_note", r#"{"id":1}"#).await;
    let delta = socket.receive_op("delta").await;
    let changes = json!([{"id": "q2", "deletes": [[1]], "inserts": [], "updates": []}]);
    assert_eq!(delta["changes"], changes);
}

#[tokio::test]
async fn calls_are_executed_in_the_order_they_were_sent() {
    let server = TestServer::open().await;
    server.post("/v1/call/write_note", r#"{"book":"a","text":"0"}"#).await;
    let mut socket = server.socket().await;
    let calls = 300;
    for at in 0..calls {
        let args = format!(r#"{{"id":1,"text":"{at}"}}"#);
        let call = format!(r#"{{"op":"call","id":"{at}","reducer":"edit_note","args":{args}}}"#);
        socket.say(&call).await;
    }
    let mut seqs = BTreeMap::new();
    while seqs.len() < calls {
        let answer = socket.receive_op("result").await;
        let id: usize = answer["id"].as_str().and_then(|id| id.parse().ok()).expect("our id");
        seqs.insert(id, answer["seq"].as_i64().expect("a seq"));
    }
    let seqs: Vec<i64> = seqs.into_values().collect();
    let expected: Vec<i64> = (2..=calls as i64 + 1).collect();
    assert_eq!(seqs, expected);
}

#[tokio::test]
async fn deltas_arrive_in_order() {
    let server = TestServer::open().await;
    server.post("/v1/call/write_note", r#"{"book":"a","text":"0"}"#).await;
    let mut listener = server.socket().await;
    let mut caller = server.socket().await;
    subscribe(&mut listener, "q", "SELECT id, text FROM notes").await;
    let calls = 300;
    for at in 1..=calls {
        let args = format!(r#"{{"id":1,"text":"{at}"}}"#);
        let call = format!(r#"{{"op":"call","id":"{at}","reducer":"edit_note","args":{args}}}"#);
        caller.say(&call).await;
    }
    let mut output = None;
    let last = loop {
        let delta = listener.receive_op("delta").await;
        // The first starts at or before the snapshot.
        let from = output.unwrap_or_else(|| delta["from"].clone());
        assert_eq!(delta["from"], from, "a delta is missing before {delta}");
        output = Some(delta["to"].clone());
        if delta["to"] == json!(calls + 1) {
            break delta["changes"][0]["updates"].clone();
        }
    };
    assert_eq!(last, json!([[1, calls.to_string()]]));
}

#[tokio::test]
async fn concurrent_requests_are_answered_by_id() {
    let server = TestServer::open().await;
    let mut socket = server.socket().await;
    for message in [
        r#"{"op":"call","id":"a","reducer":"write_note","args":{"book":"a","text":"x"}}"#,
        r#"{"op":"batch","id":"b","calls":[{"reducer":"nothing"},{"reducer":"nothing"}]}"#,
        r#"{"op":"sql","id":"c","sql":"SELECT 1"}"#,
        r#"{"op":"call","id":"d","reducer":"burn_note","args":{"id":9}}"#,
        r#"{"op":"subscribe","id":"e","sql":"SELECT id FROM notes"}"#,
        r#"{"op":"ack","seq":1}"#,
    ] {
        socket.say(message).await;
    }
    let mut received = BTreeMap::new();
    while received.len() < 5 {
        let message = socket.receive().await;
        if let Some(id) = message["id"].as_str() {
            received.insert(id.to_owned(), message["op"].as_str().expect("an op").to_owned());
        }
    }
    let received: Vec<(&str, &str)> =
        received.iter().map(|(id, op)| (id.as_str(), op.as_str())).collect();
    let expected =
        [("a", "result"), ("b", "result"), ("c", "rows"), ("d", "error"), ("e", "snapshot")];
    assert_eq!(received, expected);
}

#[tokio::test]
async fn a_retry_over_a_new_socket_is_a_duplicate() {
    let server = TestServer::open().await;
    let call = r#"{"op":"call","id":"c","reducer":"nothing","request_id":"r1"}"#;
    let mut seqs = Vec::new();
    for duplicate in [false, true] {
        let mut socket = server.socket().await;
        socket.say(call).await;
        let answer = socket.receive_op("result").await;
        assert_eq!(answer["duplicate"], duplicate);
        seqs.push(answer["seq"].clone());
    }
    assert_eq!(seqs[0], seqs[1]);
}

#[tokio::test]
async fn a_resume_sends_the_changes_in_between() {
    let server = TestServer::open().await;
    for text in ["one", "two", "three"] {
        let note = format!(r#"{{"book":"a","text":"{text}"}}"#);
        server.post("/v1/call/write_note", &note).await;
    }
    server.post("/v1/call/burn_note", r#"{"id":1}"#).await;
    let mut socket = server.socket().await;
    let sql = "SELECT id, text FROM notes WHERE book = 'a'";
    socket.say(&format!(r#"{{"op":"subscribe","id":"q","sql":"{sql}","after_seq":2}}"#)).await;
    let delta = socket.receive().await;
    assert_eq!((&delta["from"], &delta["to"]), (&json!(2), &json!(4)));
    let change = &delta["changes"][0];
    assert_eq!((&change["id"], delta["changes"].as_array().map(Vec::len)), (&json!("q"), Some(1)));
    assert_eq!(change["deletes"], json!([[1]]));
    assert_eq!(change["inserts"], json!([[3, "three"]]));
    assert_eq!(change["updates"], json!([]));
    // A client that has only a seq gets the columns.
    let columns =
        [json!({"name": "id", "type": "INTEGER"}), json!({"name": "text", "type": "TEXT"})];
    assert_eq!(change["columns"], json!(columns));
    assert_eq!(change["key"], json!(["id"]));

    // Also without changes, and with the timeline of the connection.
    let resume = format!(
        r#"{{"op":"subscribe","id":"r","sql":"{sql}","after_seq":4,"timeline":"{TIMELINE}"}}"#
    );
    socket.say(&resume).await;
    let change = socket.receive().await["changes"][0].clone();
    assert_eq!((&change["inserts"], &change["columns"]), (&json!([]), &json!(columns)));
}

/// The checksum of every change is that of the rows that a client must then hold.
#[tokio::test]
async fn every_change_has_a_checksum() {
    let server = TestServer::open().await;
    let mut socket = server.socket().await;
    let query = r#""sql":"SELECT text FROM notes ORDER BY weight","checksum":true"#;
    socket.say(&format!(r#"{{"op":"subscribe","id":"q",{query}}}"#)).await;
    let snapshot = socket.receive().await;
    assert_eq!(snapshot["checksum"], "0000000000000000", "{snapshot}");
    let mut output = Vec::new();
    for text in ["one", "two"] {
        let note = format!(r#"{{"book":"a","text":"{text}"}}"#);
        server.post("/v1/call/write_note", &note).await;
        output.push(socket.receive_op("delta").await["changes"][0].clone());
    }
    let rows: Vec<Vec<Value>> = (output.iter())
        .map(|change| {
            let row = change["inserts"][0].as_array().expect("a row");
            row.iter().map(|cell| Value::from_json(cell).expect("a cell")).collect()
        })
        .collect();
    assert_eq!(rows[0].len(), 2, "hidden columns are included");
    assert_eq!(output[0]["checksum"], Checksum::from_rows(&rows[..1]).to_string());
    assert_eq!(output[1]["checksum"], Checksum::from_rows(&rows).to_string());
    // A resume includes it too, although the client's rows are unknown.
    socket.say(&format!(r#"{{"op":"subscribe","id":"r",{query},"after_seq":1}}"#)).await;
    assert_eq!(socket.receive().await["changes"][0]["checksum"], output[1]["checksum"]);
    // Other subscriptions get none.
    subscribe(&mut socket, "s", "SELECT id FROM notes").await;
    server.post("/v1/call/burn_note", r#"{"id":1}"#).await;
    let changes = socket.receive_op("delta").await["changes"].clone();
    let with: Vec<bool> =
        changes.as_array().expect("three").iter().map(|c| c.get("checksum").is_some()).collect();
    assert_eq!(with, [true, true, false], "{changes}");
}

/// The result as of a past seq, then all changes since, then every change.
#[tokio::test]
async fn a_subscription_can_start_as_of_a_seq() {
    let server = TestServer::open().await;
    for text in ["one", "two", "three"] {
        let note = format!(r#"{{"book":"a","text":"{text}"}}"#);
        server.post("/v1/call/write_note", &note).await;
    }
    server.post("/v1/call/burn_note", r#"{"id":1}"#).await;
    let mut socket = server.socket().await;
    let sql = "SELECT id, text FROM notes ORDER BY id";
    socket.say(&format!(r#"{{"op":"subscribe","id":"q","sql":"{sql}","as_of":2}}"#)).await;
    let snapshot = socket.receive().await;
    assert_eq!((&snapshot["op"], &snapshot["seq"]), (&json!("snapshot"), &json!(2)));
    assert_eq!(snapshot["rows"], json!([[1, "one"], [2, "two"]]));
    let delta = socket.receive().await;
    assert_eq!((&delta["from"], &delta["to"]), (&json!(2), &json!(4)));
    assert_eq!(delta["changes"][0]["deletes"], json!([[1]]));
    assert_eq!(delta["changes"][0]["inserts"], json!([[3, "three"]]));
    server.post("/v1/call/burn_note", r#"{"id":2}"#).await;
    let delta = socket.receive().await;
    assert_eq!((&delta["from"], &delta["to"]), (&json!(4), &json!(5)));
    assert_eq!(delta["changes"][0]["deletes"], json!([[2]]));
}

/// A client does not read for a while: its queue is dropped, memory stays constant, and when it
/// reads again it ends with the result of the query, without a gap. Its own calls are answered in
/// between.
#[tokio::test]
async fn a_slow_reader_is_caught_up() {
    let server = TestServer::open().await;
    let mut socket = server.socket().await;
    subscribe(&mut socket, "q", "SELECT id, text FROM notes WHERE book = 'a'").await;
    let caller = Caller::new("writer");
    let text = "x".repeat(20_000);
    let write = |at: usize| BatchCall {
        reducer: "write_note".to_owned(),
        args: json!({"book": "a", "text": format!("{at}{text}")}),
    };
    for round in 0..100 {
        let calls: Vec<BatchCall> = (0..10).map(|at| write(round * 10 + at)).collect();
        server.engine.batch(&caller, &calls, None).await.expect("room");
        if round % 10 == 0 {
            socket.say(r#"{"op":"ping"}"#).await;
        }
    }
    let head = server.engine.durable_seq().0;
    let mut output = 0;
    let mut rows = BTreeMap::new();
    while output < head {
        let frame = socket.receive().await;
        if frame["op"] == "progress" {
            output = frame["seq"].as_i64().expect("a seq");
        }
        if frame["op"] != "delta" {
            continue;
        }
        let from = frame["from"].as_i64().expect("a seq");
        let to = frame["to"].as_i64();
        assert!(from <= output, "a gap: received up to {output}, and now from {from}");
        output = to.expect("a seq");
        for row in frame["changes"][0]["inserts"].as_array().expect("rows") {
            rows.insert(row[0].as_i64().expect("a key"), row[1].clone());
        }
    }
    assert!(server.engine.metrics().slow_consumers_total.get() > 0, "it was never slow");
    let ids: Vec<i64> = rows.keys().copied().collect();
    assert_eq!(ids, (1..=1000).collect::<Vec<i64>>());
    assert!(rows.values().all(|text| text.as_str().is_some_and(|text| text.len() > 20_000)));
}

#[tokio::test]
async fn a_client_that_closes_is_answered() {
    let server = TestServer::open().await;
    let mut socket = server.socket().await;
    let frame = CloseFrame { code: CloseCode::Normal, reason: "enough".into() };
    socket.0.close(Some(frame.clone())).await.expect("it listens");
    assert_eq!(socket.closed().await, Some(frame));
}

/// A connection that the server has upgraded.
async fn upgraded(server: &TestServer) -> BufReader<TcpStream> {
    let request = server
        .request("GET", "/v1/ws")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let mut socket = request.begin().await;
    assert_eq!(http::head(&mut socket).await.status, 101);
    socket
}

/// A peer that disappeared: no answer to any ping.
#[tokio::test]
async fn a_dead_peer_times_out() {
    let server = TestServer::open().await;
    let mut socket = upgraded(&server).await;
    tokio::time::pause();
    let mut received = Vec::new();
    socket.read_to_end(&mut received).await.expect("it ends");
    let pings = received.windows(2).filter(|bytes| *bytes == [0x89, 0x00]).count();
    assert_eq!(pings, 4);
}

/// The pongs for a client that read nothing were buffered without a limit, 160 MB in a second. The class: an answer that the
/// WebSocket library sends by itself does not wait for the socket.
#[tokio::test]
async fn a_client_that_pings_and_reads_nothing_is_not_read_from() {
    /// More than all buffers of two sockets.
    const MOST_BYTES: usize = 64 << 20;
    let server = TestServer::open().await;
    let (mut reading, mut writing) = tokio::io::split(upgraded(&server).await);
    // The largest ping, masked with zeros.
    let mut ping = vec![0x89, 0x80 | 125];
    ping.resize(6 + 125, 0);
    let pings = ping.repeat(1_000);
    let mut sent = 0;
    loop {
        let sending = writing.write(&pings[sent % pings.len()..]);
        let Ok(written) = timeout(Duration::from_secs(3), sending).await else { break };
        sent += written.expect("it is open");
        assert!(sent < MOST_BYTES, "the server reads without an end");
    }
    // It reads on when the client does, and answers the message behind the pings.
    let mut rest = ping[sent % ping.len()..].to_vec();
    let message = br#"{"op":"ping"}"#;
    rest.extend([0x81, 0x80 | message.len() as u8, 0, 0, 0, 0]);
    rest.extend(message);
    let write = async { writing.write_all(&rest).await.expect("it is open") };
    let read = async {
        let mut received: Vec<u8> = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        while !received.windows(4).any(|bytes| bytes == b"pong") {
            let count = reading.read(&mut buffer).await.expect("it is open");
            assert!(count > 0, "it was closed");
            // The text may be in two parts.
            received.drain(..received.len().saturating_sub(3));
            received.extend(&buffer[..count]);
        }
    };
    tokio::join!(write, read);
}

/// A peer that sends one byte of a message per second.
#[tokio::test]
async fn an_incomplete_message_times_out() {
    let server = TestServer::open().await;
    let (mut reading, mut writing) = tokio::io::split(upgraded(&server).await);
    // A text message of a megabyte, masked with zeros.
    let mut message = vec![0x81, 0xff];
    message.extend((1_u64 << 20).to_be_bytes());
    message.extend([0; 4]);
    writing.write_all(&message).await.expect("it reads");
    tokio::time::pause();
    let begun = Instant::now();
    let send_slowly = async {
        while writing.write_all(b"x").await.is_ok() {
            // tidy: on the paused clock of the test, it takes no time
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let mut received = Vec::new();
    let ended = async {
        tokio::select! {
            ended = reading.read_to_end(&mut received) => drop(ended),
            () = send_slowly => {}
        }
    };
    timeout(Duration::from_secs(600), ended).await.expect("the server closes it");
    let waited = begun.elapsed().as_secs();
    assert!((64..70).contains(&waited), "{waited} s");
}

/// A query that ends at its limit, after about ten seconds.
const ENDLESS: &str =
    "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";

pub(crate) fn query(id: &str, sql: &str) -> String {
    json!({"op": "sql", "id": id, "sql": sql}).to_string()
}

/// The readers of this caller are occupied by two endless queries, and another query waits for them.
pub(crate) async fn occupied(server: &TestServer) -> Socket {
    let mut socket = server.socket().await;
    // The queries of a caller run in order: when the first fast one is answered, the first endless one runs.
    for (id, sql) in [("slow1", ENDLESS), ("fast1", "SELECT 1")] {
        socket.say(&query(id, sql)).await;
    }
    assert_eq!(socket.receive_op("rows").await["id"], "fast1");
    for (id, sql) in [("slow2", ENDLESS), ("fast2", "SELECT 2")] {
        socket.say(&query(id, sql)).await;
    }
    // Messages are taken in order, so the queries are in the queue.
    socket.say(r#"{"op":"ping"}"#).await;
    assert_eq!(socket.receive().await["op"], "pong");
    socket
}

/// Much less than the limit of a query.
const SOON: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_cancelled_query_frees_its_reader_and_has_no_answer() {
    let server = TestServer::open().await;
    let mut socket = occupied(&server).await;
    socket.say(r#"{"op":"cancel","id":"slow1"}"#).await;
    let received = timeout(SOON, socket.receive()).await.expect("a reader is free");
    assert_eq!((&received["op"], &received["id"]), (&json!("rows"), &json!("fast2")));
    socket.say(r#"{"op":"cancel","id":"slow2"}"#).await;
    socket.say(r#"{"op":"cancel","id":"unknown"}"#).await;
    socket.say(&query("fast3", "SELECT 3")).await;
    assert_eq!(socket.receive().await["id"], "fast3", "cancelled queries have no answer");
    // A call cannot be cancelled.
    let call = r#"{"op":"call","id":"c1","reducer":"write_note","args":{"book":"a","text":"x"}}"#;
    socket.say(call).await;
    socket.say(r#"{"op":"cancel","id":"c1"}"#).await;
    assert_eq!(socket.receive().await["id"], "c1");
}

/// They ran to their limit, even after the client had closed, and other queries of the caller waited.
#[tokio::test]
async fn queries_end_with_their_connection() {
    let server = TestServer::open().await;
    let mut other = server.socket().await;
    drop(occupied(&server).await);
    other.say(&query("fast", "SELECT 1")).await;
    let received = timeout(SOON, other.receive_op("rows")).await.expect("a reader is free");
    assert_eq!(received["id"], "fast");

    let mut requests = Vec::new();
    for _ in 0..2 {
        let body = json!({"sql": ENDLESS}).to_string();
        requests.push(server.request("POST", "/v1/sql").body(body).begin().await);
    }
    drop(requests);
    other.say(&query("last", "SELECT 1")).await;
    timeout(SOON, other.receive_op("rows")).await.expect("a reader is free");
}
