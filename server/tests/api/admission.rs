//! What a message of a WebSocket has taken is returned, however the message ends: bytes, its turn, its room, its place in the
//! queue.

use abide_schema::limits::MESSAGE_BYTES;
use abide_schema::reducer::{Context, Definition};
use abide_schema::{Abort, reducer};
use abide_server::AccessConfig;
use serde_json::{Value as JsonValue, json};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::buffers::{MB, PATIENCE, until_at_least, until_empty};
use crate::notes;
use crate::sockets::{occupied, query};
use crate::test_server::TestServer;
use crate::ws::Socket;

/// Panics in the thread of the writer.
#[reducer]
fn panic_in_writer(_ctx: &mut Context<'_>) -> Result<(), Abort> {
    panic!("a reducer of the tests")
}

/// Panics in the task of the connection, before the engine has the call.
fn panic_in_task() -> Definition {
    Definition {
        name: "panic_in_task",
        decode: |_| panic!("arguments of the tests"),
        ..notes::nothing::definition()
    }
}

async fn server() -> TestServer {
    let module = notes::module().reducer(panic_in_writer::definition()).reducer(panic_in_task());
    TestServer::serving(AccessConfig::loopback(), vec![module]).await
}

/// A message of this size: it is counted, and needs a turn.
fn padded(message: &str, bytes: usize) -> String {
    format!("{message}{}", " ".repeat(bytes - message.len()))
}

fn call(id: &str, reducer: &str, args: JsonValue) -> String {
    json!({"op": "call", "id": id, "reducer": reducer, "args": args}).to_string()
}

/// Receives the answer to a message, without other messages.
async fn answer(socket: &mut Socket, id: &str) -> JsonValue {
    let answer = async {
        loop {
            let message = socket.receive().await;
            if message["id"] == id || message["op"] == id {
                return message;
            }
        }
    };
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| panic!("{id} has an answer"))
}

/// Checks that nothing is taken. A message that needs all the room of a socket waits for what was not returned.
async fn check_all_is_free(server: &TestServer, socket: &mut Socket) {
    timeout(PATIENCE, until_empty(server)).await.expect("no bytes are counted");
    assert_eq!(server.engine.backlog(), 0);
    let whole = padded(&call("whole", "nothing", json!({})), MESSAGE_BYTES);
    socket.say(&whole).await;
    assert_eq!(answer(socket, "whole").await["op"], "result");
}

#[tokio::test]
async fn an_answered_or_refused_message_returns_all() {
    let server = server().await;
    let mut socket = server.socket().await;
    let sql = "SELECT id FROM notes WHERE book = 'none'";
    let message = |op: &str, rest: JsonValue| {
        let mut message = json!({"op": op, "id": "m"});
        let rest = rest.as_object().cloned().unwrap_or_default();
        message.as_object_mut().expect("an object").extend(rest);
        message.to_string()
    };
    for (message, op) in [
        (call("m", "write_note", json!({"book": "a", "text": null})), "result"),
        (call("m", "write_note", json!({"book": 7})), "error"),
        (call("m", "edit_note", json!({"id": 99, "text": "x"})), "error"),
        (call("m", "no_such_reducer", json!({})), "error"),
        (call("m", "panic_in_writer", json!({})), "error"),
        (call("m", "panic_in_task", json!({})), "error"),
        (message("batch", json!({"calls": [{"reducer": "nothing"}]})), "result"),
        (message("batch", json!({"calls": [{"reducer": "panic_in_task"}]})), "error"),
        (message("sql", json!({"sql": "SELECT 1"})), "rows"),
        (message("sql", json!({"sql": "SELECT"})), "error"),
        (message("explain", json!({"sql": sql})), "explanation"),
        (message("explain", json!({"sql": "SELECT"})), "error"),
        (message("subscribe", json!({"sql": sql})), "snapshot"),
        (message("subscribe", json!({"sql": sql, "after_seq": 1, "as_of": 1})), "error"),
        (message("subscribe", json!({"sql": "SELECT"})), "error"),
        (message("sing", json!({})), "error"),
    ] {
        socket.say(&padded(&message, MB)).await;
        assert_eq!(answer(&mut socket, "m").await["op"], op, "{message}");
        timeout(PATIENCE, until_empty(&server)).await.unwrap_or_else(|_| panic!("{message}"));
    }
    socket.say(&padded("{", MB)).await;
    assert_eq!(answer(&mut socket, "error").await["code"], "bad_request");
    socket.say(&padded(r#"{"op":"ping"}"#, MESSAGE_BYTES + 1)).await;
    assert_eq!(answer(&mut socket, "error").await["code"], "limit_exceeded");
    for (message, op) in [("ping", "pong"), ("unsubscribe", "pong"), ("cancel", "pong")] {
        socket.say(&padded(&json!({"op": message, "id": "m"}).to_string(), MB)).await;
        if message != "ping" {
            socket.say(r#"{"op":"ping"}"#).await;
        }
        answer(&mut socket, op).await;
    }
    check_all_is_free(&server, &mut socket).await;
}

/// Regression: the bytes of a query and of a subscription were counted only until the message was parsed. Thousands of
/// connections, each with some messages of 8 MB that waited for a reader, held memory that nothing limited.
#[tokio::test]
async fn a_waiting_message_is_counted_until_it_is_cancelled_or_its_connection_ends() {
    let server = server().await;
    let mut socket = occupied(&server).await;
    socket.say(&padded(&query("waiting", "SELECT 1"), 3 * MB)).await;
    until_at_least(&server, 3 * MB).await;
    socket.say(r#"{"op":"cancel","id":"waiting"}"#).await;
    timeout(PATIENCE, until_empty(&server)).await.expect("it is cancelled");

    let explain = json!({"op": "explain", "id": "e", "sql": "SELECT id FROM notes"}).to_string();
    socket.say(&padded(&explain, 3 * MB)).await;
    until_at_least(&server, 3 * MB).await;
    drop(socket);
    let mut socket = server.socket().await;
    check_all_is_free(&server, &mut socket).await;
}

#[tokio::test]
async fn a_connection_that_breaks_returns_all() {
    let server = server().await;
    let text = "x".repeat(7 * MB);
    let args = json!({"book": "a", "text": text});
    let message = call("m", "write_note", args);
    let mut other = server.socket().await;
    other.say(&message).await;
    assert_eq!(answer(&mut other, "m").await["op"], "result");

    // Before the answer to a call.
    let mut socket = server.socket().await;
    socket.say(&message).await;
    drop(socket);
    timeout(PATIENCE, until_empty(&server)).await.expect("the connection has ended");

    // In the middle of a message: one text frame, its length in 64 bits, masked with zeros.
    let mut half = server.socket().await;
    let mut begun = [0x81, 0xff].to_vec();
    begun.extend((4 * MB as u64).to_be_bytes());
    begun.extend([0; 4]);
    begun.resize(begun.len() + 3 * MB, b' ');
    half.0.get_mut().write_all(&begun).await.expect("it reads");
    until_at_least(&server, 3 * MB).await;
    drop(half);
    timeout(PATIENCE, until_empty(&server)).await.expect("the connection has ended");

    // In the middle of an answer, which is larger than the buffers of two sockets.
    let mut unread = server.socket().await;
    unread.say(&padded(&query("s", "SELECT text FROM notes WHERE text IS NOT NULL"), MB)).await;
    until_at_least(&server, 7 * MB).await;
    // A subscription waits for it.
    let subscribe = json!({"op": "subscribe", "id": "q", "sql": "SELECT id FROM notes"});
    unread.say(&padded(&subscribe.to_string(), 3 * MB)).await;
    until_at_least(&server, 10 * MB).await;
    drop(unread);
    check_all_is_free(&server, &mut other).await;
}
