//! Oversized messages and bodies, many at once: they are refused in bounded memory, and a
//! connection survives if its message can be read to its end.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use abide_schema::limits::MESSAGE_BYTES;

use super::bounds;
use super::stage::OverloadFixture;
use crate::CheckResult;
use crate::figures::{count, figure};
use crate::http::Http;
use crate::socket::Socket;

/// The chunk that is sent repeatedly.
static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];

/// Sends all of them concurrently and checks the responses.
pub(crate) async fn run(fixture: &mut OverloadFixture) -> CheckResult {
    let address = fixture.server.address;
    let token = fixture.admin.clone();
    let caller = fixture.caller();
    let mut at_once = JoinSet::new();
    for _ in 0..fixture.size.oversize {
        let one = token.clone();
        let two = token.clone();
        let three = token.clone();
        at_once.spawn(async move { message(Socket::connect(address, &one).await).await });
        at_once.spawn(async move { frame(Socket::connect(address, &two).await).await });
        at_once.spawn(async move { body(Http::connect(address, &three).await).await });
    }
    let number = at_once.len() as u64;
    while let Some(ended) = at_once.join_next().await {
        ended.map_err(|why| why.to_string())??;
    }
    let waits = caller.stop()?;
    println!("oversize  {} concurrent messages, frames and bodies, each refused", count(number));
    figure("oversized messages, frames and bodies", number);
    fixture.hold_percentile(
        "oversize",
        &waits,
        bounds::FEW_CALLS_PERCENTILE,
        bounds::STORM_FACTOR,
        bounds::NOTICED_MS,
    )?;
    let subscribers = (fixture.size.connections as u64) * bounds::CONNECTION_BYTES;
    fixture
        .hold_memory("oversize", bounds::REST_BYTES + subscribers + number * bounds::MESSAGE_BYTES)
}

fn to_text(why: impl std::fmt::Display) -> String {
    format!("oversize: {why}")
}

/// A message that is too large but readable: it is refused, and the connection stays open.
async fn message(socket: Result<Socket, impl std::fmt::Display>) -> CheckResult {
    let mut socket = socket.map_err(to_text)?;
    let content = "x".repeat(MESSAGE_BYTES + (1 << 20));
    let call = json!({"op": "call", "id": "big", "reducer": "append_message",
        "args": {"session_id": "loud", "role": "user", "content": content}});
    if socket.send(&call).await.is_err() {
        // There was no room for it, so the rest was not read.
        return Ok(());
    }
    let Ok(output) = socket.receive_of("result").await else { return Ok(()) };
    if output["code"] == "overloaded" {
        return Ok(());
    }
    if output["code"] != "too_large" && output["code"] != "limit_exceeded" {
        return Err(format!("unexpected response to an oversized message: {output}"));
    }
    socket.send(&json!({"op": "ping"})).await.map_err(to_text)?;
    let output = socket.receive_of("pong").await.map_err(to_text)?;
    if output["op"] == "pong" {
        Ok(())
    } else {
        Err(format!("unexpected response to a ping: {output}"))
    }
}

/// A frame with a declared length of one terabyte: the connection is closed without allocating it.
async fn frame(socket: Result<Socket, impl std::fmt::Display>) -> CheckResult {
    let mut stream = socket.map_err(to_text)?.into_stream();
    let mut head = vec![0x81, 0xff];
    head.extend((1_u64 << 40).to_be_bytes());
    head.extend([0; 4]);
    stream.write_all(&head).await.map_err(to_text)?;
    for _ in 0..1_024 {
        // A closed connection accepts no more bytes.
        if stream.write_all(&PIECE).await.is_err() {
            return Ok(());
        }
    }
    closed(stream).await
}

/// A body of one gigabyte.
async fn body(http: std::io::Result<Http>) -> CheckResult {
    let mut http = http.map_err(to_text)?;
    let head = http.head("/v1/call/append_message", 1 << 30);
    http.stream.write_all(head.as_bytes()).await.map_err(to_text)?;
    for _ in 0..2_048 {
        if http.stream.write_all(&PIECE).await.is_err() {
            return Ok(());
        }
    }
    match http.answer().await {
        // 503: there was no room for the part that is read.
        Ok(answer) if ![413, 503].contains(&answer.status) => {
            Err(format!("a gigabyte is answered {answer}"))
        }
        // The response may be lost if the connection was closed after it.
        _ => Ok(()),
    }
}

/// Reads until the peer closes the connection.
async fn closed(mut stream: tokio::net::TcpStream) -> CheckResult {
    let mut piece = [0; 4 << 10];
    loop {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
    }
}
