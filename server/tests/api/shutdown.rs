//! Shutdown of a server: requests in progress complete, subscribers are notified.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::http;
use crate::test_server::TestServer;

#[tokio::test]
async fn shutdown_answers_requests_and_notifies_subscribers() {
    let mut server = TestServer::open().await;
    let address = server.address;
    let mut socket = server.socket().await;
    let mut stream = server.request("GET", "/v1/subscribe?sql=SELECT+id+FROM+notes").begin().await;
    assert_eq!(http::head(&mut stream).await.status, 200);
    let mut idle = TcpStream::connect(address).await.expect("it listens");
    socket.say(r#"{"op":"call","id":"c1","reducer":"nothing"}"#).await;
    assert_eq!(socket.receive_op("result").await["id"], "c1");

    server.begin_shutdown();
    let closed = socket.closed().await.expect("a close frame");
    assert_eq!(u16::from(closed.code), 1001);
    assert_eq!(closed.reason.as_str(), "the server is shutting down");
    // The stream ends with a last chunk, as HTTP requires.
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("text");
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    assert_eq!(idle.read(&mut [0; 1]).await.expect("a close"), 0);
    server.ended().await;
    TcpStream::connect(address).await.expect_err("the listener is closed");
}

/// A peer that never answers the close frame does not block the shutdown.
#[tokio::test]
async fn a_silent_websocket_does_not_block_shutdown() {
    let mut server = TestServer::open().await;
    let socket = server.socket().await;
    server.begin_shutdown();
    server.ended().await;
    drop(socket);
}

/// One connection with only the beginning of HTTP/2 delayed the stop by seven seconds: it did not answer the last ping.
#[tokio::test]
async fn an_unauthenticated_connection_does_not_delay_shutdown() {
    let mut server = TestServer::open().await;
    let mut socket = TcpStream::connect(server.address).await.expect("it listens");
    socket
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .expect("it reads");
    // The server has begun HTTP/2.
    socket.read_exact(&mut [0; 9]).await.expect("its settings");
    tokio::time::pause();
    let begun = Instant::now();
    server.begin_shutdown();
    server.ended().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

/// A request whose body never ends does not block it beyond the grace period.
#[tokio::test]
async fn an_endless_request_is_cut_at_shutdown() {
    let mut server = TestServer::open().await;
    let request = server.request("POST", "/v1/call/nothing").header("content-length", "10");
    let mut socket = request.begin().await;
    // A request of the connection was served before the shutdown began.
    server.get("/health").await;
    tokio::time::pause();
    server.begin_shutdown();
    server.ended().await;
    let mut rest = Vec::new();
    let end = socket.read_to_end(&mut rest).await;
    let is_reset = |why: &std::io::Error| why.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(end.as_ref().err().is_none_or(is_reset), "{end:?}");
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.starts_with("HTTP/1.1 2"), "{rest}");
}
