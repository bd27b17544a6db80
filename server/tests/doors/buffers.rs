//! Buffered memory is limited: per caller, and in total.

use abide_engine::Wanted;
use abide_engine::buffers::BufferLimits;
use abide_schema::{Caller, Code};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::house::House;

const MB: usize = 1 << 20;

/// Room for one large result of a caller, and for less than two of all callers.
const BUFFERS: BufferLimits = BufferLimits { total: 8 * MB, per_caller: 5 * MB };

/// A server whose sessions `s0`, `s1` and `s2` have messages of 4 MB each.
async fn house() -> House {
    let house = House::buffering(BUFFERS).await;
    for nth in 0..3 {
        let id = format!("s{nth}");
        let call = async |reducer: &str, args| {
            let done = house.engine.call(&Caller::local(), reducer, &args, None).await;
            done.unwrap_or_else(|why| panic!("{reducer}: {why}"));
        };
        call("create_session", json!({"id": id, "agent": "a"})).await;
        for _ in 0..8 {
            let content = "x".repeat(MB / 2);
            let args = json!({"session_id": id, "role": "user", "content": content});
            call("append_message", args).await;
        }
    }
    house
}

fn query(nth: usize) -> String {
    format!("SELECT id, content FROM agent_state WHERE session_id = 's{nth}'")
}

/// 100 clients that subscribed to one result of 10 MB and did not read cost 2 GB: each had its own copy of the rows.
#[tokio::test]
async fn equal_snapshots_are_shared_and_counted_once() {
    let house = house().await;
    let subscribed = async |caller: &str, nth: usize| {
        let mut connection = house.engine.connect(&Caller::new(caller));
        let (sql, params) = (query(nth), serde_json::Map::new());
        let answer = connection.subscribe(&Wanted::new("q", &sql, &params)).await;
        answer.map(|()| connection).map_err(|refusal| refusal.code)
    };
    let mut connections = Vec::new();
    for _ in 0..100 {
        connections.push(subscribed("ann", 0).await.expect("the rows are shared"));
    }
    let total = house.engine.buffers().total();
    assert!((4 * MB..5 * MB).contains(&total), "{total}");
    assert_eq!(subscribed("ann", 1).await.err(), Some(Code::Overloaded), "the limit per caller");
    assert_eq!(subscribed("bob", 1).await.err(), Some(Code::Overloaded), "the total limit");
    // A client that reads holds nothing.
    for mut connection in connections.drain(1..) {
        while connection.try_next().is_some() {}
    }
    assert_eq!(house.engine.buffers().total(), total, "one client still does not read");
    connections.clear();
    assert_eq!(house.engine.buffers().total(), 0);
    assert!(subscribed("ann", 1).await.is_ok());
}

/// Sends a request, and reads only the first bytes of the response.
async fn ask(house: &House, sql: &str) -> (TcpStream, String) {
    let body = json!({"sql": sql}).to_string();
    let mut socket = TcpStream::connect(house.address).await.expect("it listens");
    let head = format!(
        "POST /v1/sql HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.expect("it reads");
    let mut first = [0; 12];
    socket.read_exact(&mut first).await.expect("it answers");
    (socket, String::from_utf8_lossy(&first).into_owned())
}

/// An unread response was held completely, for two minutes, on each connection.
#[tokio::test]
async fn unread_responses_are_counted() {
    let house = house().await;
    // Larger than the buffers of two sockets, so that it is not sent while the client does not read.
    let large = "SELECT a.id, a.content FROM agent_state a JOIN agent_state b \
        ON b.session_id = 's0' WHERE a.session_id = 's0'";
    let (unread, status) = ask(&house, large).await;
    assert_eq!(status, "HTTP/1.1 200");
    let total = house.engine.buffers().total();
    assert!(total >= 32 * MB, "{total}: a single result is accepted even if it is the largest");
    assert_eq!(ask(&house, &query(0)).await.1, "HTTP/1.1 503");
    assert_eq!(ask(&house, "SELECT 1").await.1, "HTTP/1.1 200", "small answers are not counted");
    drop(unread);
    until_empty(&house).await;
    // The parts form one JSON text. HTTP/1.0 has no chunk sizes.
    let body = json!({"sql": query(0)}).to_string();
    let head = format!("POST /v1/sql HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut socket = TcpStream::connect(house.address).await.expect("it listens");
    socket.write_all((head + &body).as_bytes()).await.expect("it reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("it answers");
    let (_, body) = text.split_once("\r\n\r\n").expect("a head");
    let answer: serde_json::Value = serde_json::from_str(body).expect("one JSON text");
    assert_eq!(answer["rows"].as_array().map(Vec::len), Some(8));
    assert_eq!(answer["columns"], json!(["id", "content"]));
    assert_eq!(answer["rows"][7][1].as_str().map(str::len), Some(MB / 2));
}

/// 120 bodies of 7.9 MB that were sent slowly with one token held 1 GB.
#[tokio::test]
async fn request_bodies_are_counted() {
    let house = House::buffering(BUFFERS).await;
    let begin = async |bytes: usize| {
        let mut socket = TcpStream::connect(house.address).await.expect("it listens");
        let head = "POST /v1/sql HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8000000\r\n\r\n";
        socket.write_all(head.as_bytes()).await.expect("it reads");
        // After a refusal, the server may not read the rest.
        let _ = socket.write_all(&vec![b' '; bytes]).await;
        socket
    };
    let first = begin(3 * MB).await;
    while house.engine.buffers().total() < 3 * MB {
        tokio::task::yield_now().await;
    }
    let mut second = begin(3 * MB).await;
    let mut status = [0; 12];
    second.read_exact(&mut status).await.expect("it answers");
    assert_eq!(status.as_slice(), b"HTTP/1.1 503");
    drop((first, second));
    until_empty(&house).await;
}

async fn until_empty(house: &House) {
    while house.engine.buffers().total() > 0 {
        tokio::task::yield_now().await;
    }
}
