//! The work of a call, counted: its allocations and their bytes, for content of different sizes. Times are noisy; counts are
//! not, so a change that copies the content once more fails here.

use std::alloc::System;
use std::env;
use std::process::Command;

use abide_schema::reducer::Caller;
use abide_server::{AccessConfig, Services};
use serde_json::{Value as JsonValue, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::MaybeTlsStream;

use crate::test_server::TestServer;

/// Counts the allocations of the process.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The variable of the process that counts allocations: other tests would count, too.
const ALONE: &str = "ABIDE_COUNTS_ALLOCATIONS";

/// Calls before the first count.
const FIRST: usize = 50;

/// Calls that are counted.
const CALLS: usize = 200;

/// What a call may need.
struct Limit {
    content_bytes: usize,
    allocations: usize,
    /// Bytes of these allocations, of which each copy of the content is a part.
    bytes: usize,
}

/// An embedded caller, which has the arguments as a value.
const EMBEDDED: [Limit; 3] = [
    Limit { content_bytes: 100, allocations: 85, bytes: 8_500 },
    Limit { content_bytes: 1_000, allocations: 85, bytes: 13_500 },
    Limit { content_bytes: 64_000, allocations: 85, bytes: 290_000 },
];

/// A caller on a WebSocket, without the client's part.
const WEBSOCKET: [Limit; 3] = [
    Limit { content_bytes: 100, allocations: 95, bytes: 11_500 },
    Limit { content_bytes: 1_000, allocations: 95, bytes: 16_000 },
    Limit { content_bytes: 64_000, allocations: 107, bytes: 290_000 },
];

fn arguments(content_bytes: usize) -> JsonValue {
    let content = "Where is my parcel? ".repeat(content_bytes / 20);
    json!({"session_id": "s1", "role": "user", "content": content})
}

/// A server with the session of the calls.
async fn prepared() -> TestServer {
    let server = TestServer::with_services(AccessConfig::loopback(), Services::default()).await;
    let args = json!({"agent": "a", "id": "s1"});
    let created = server.engine.call(&Caller::new("local"), "create_session", &args, None).await;
    created.expect("a session");
    server
}

async fn embedded(server: &TestServer, args: &JsonValue, calls: usize) {
    let caller = Caller::new("local");
    for _ in 0..calls {
        let done = server.engine.call(&caller, "append_message", args, None).await;
        done.expect("the call is done");
    }
}

/// The frame of a message from a client. A mask of zeros leaves the payload as it is.
fn frame(message: &str) -> Vec<u8> {
    let mut frame = vec![0x81];
    match message.len() {
        bytes @ 0..126 => frame.push(0x80 | bytes as u8),
        bytes @ 126..0x1_0000 => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(bytes as u16).to_be_bytes());
        }
        bytes => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(bytes as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(message.as_bytes());
    frame
}

/// Sends a frame again and again, and awaits each answer. It allocates nothing itself.
async fn on_socket(stream: &mut TcpStream, frame: &[u8], calls: usize) {
    for _ in 0..calls {
        stream.write_all(frame).await.expect("it listens");
        await_result(stream).await;
    }
}

/// Reads up to the result of a call. Before it the server may report its progress.
async fn await_result(stream: &mut TcpStream) {
    loop {
        let mut message = [0; 125];
        stream.read_exact(&mut message[..2]).await.expect("a message");
        let bytes = usize::from(message[1]);
        assert!(message[0] == 0x81 && bytes <= message.len(), "a short text message");
        stream.read_exact(&mut message[..bytes]).await.expect("a message");
        if message.starts_with(br#"{"op":"result""#) {
            return;
        }
        let text = String::from_utf8_lossy(&message[..bytes]);
        assert!(text.starts_with(r#"{"op":"progress""#), "{text}");
    }
}

/// Allocations of a call and their bytes.
fn since(region: &Region<'_, System>) -> [usize; 2] {
    let change = region.change();
    [(change.allocations + change.reallocations) / CALLS, change.bytes_allocated / CALLS]
}

fn check(way: &str, limit: &Limit, [allocations, bytes]: [usize; 2]) {
    let content = limit.content_bytes;
    println!("{way}, {content} bytes of content: {allocations} allocations, {bytes} bytes");
    assert!(
        allocations <= limit.allocations && bytes <= limit.bytes,
        "{way}, {content} bytes of content: {allocations} allocations, {bytes} bytes",
    );
}

/// Of all threads of the process. The limits are about a tenth above what was counted: idle threads
/// allocate now and then, and what matters is a copy of the content, which is 64,000 bytes in the last line.
#[tokio::test]
async fn a_call_allocates_seldom() {
    if env::var_os(ALONE).is_none() {
        let mut alone = Command::new(env::current_exe().expect("a path"));
        alone.args(["--exact", "call_work::a_call_allocates_seldom", "--nocapture"]);
        let counted = alone.env(ALONE, "1").output().expect("it runs");
        let output = String::from_utf8_lossy(&counted.stdout);
        let errors = String::from_utf8_lossy(&counted.stderr);
        assert!(counted.status.success(), "{output}{errors}");
        return;
    }
    let server = prepared().await;
    for limit in EMBEDDED {
        let args = arguments(limit.content_bytes);
        embedded(&server, &args, FIRST).await;
        let region = Region::new(ALLOCATOR);
        embedded(&server, &args, CALLS).await;
        check("embedded", &limit, since(&region));
    }
    let mut socket = server.socket().await;
    let MaybeTlsStream::Plain(stream) = socket.0.get_mut() else { panic!("it is not encrypted") };
    for limit in WEBSOCKET {
        let args = arguments(limit.content_bytes);
        let message = json!({"op": "call", "id": "c1", "reducer": "append_message", "args": args});
        let frame = frame(&message.to_string());
        on_socket(stream, &frame, FIRST).await;
        let region = Region::new(ALLOCATOR);
        on_socket(stream, &frame, CALLS).await;
        check("websocket", &limit, since(&region));
    }
}
