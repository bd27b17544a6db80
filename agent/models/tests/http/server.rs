//! A provider on loopback with scripted replies: real sockets, and control of every byte.
//!
//! It runs on its own thread, so it keeps running while a test pauses the clock.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// The reply to one request, and what happens to the connection.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) then: Then,
}

/// The bytes after the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The server closes the connection.
    End,
    /// The connection stays open without data until the client closes it.
    Silence,
    /// This text is sent again and again until the client closes the connection.
    Repeat(&'static str),
}

/// A received request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    /// In lower case, sorted.
    pub(crate) headers: Vec<String>,
    pub(crate) body: String,
}

/// The observations of the server.
#[derive(Debug)]
pub(crate) enum Seen {
    Request(Request),
    /// The reply is sent, and the connection is held open.
    Silent,
    /// The client closed the connection.
    Gone,
}

/// The server.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) seen: mpsc::UnboundedReceiver<Seen>,
}

impl Reply {
    /// A stream of server-sent events.
    pub(crate) fn events(body: impl Into<Vec<u8>>) -> Self {
        Self::new(200, "content-type: text/event-stream\r\n", body)
    }

    /// A stream of lines, as Ollama sends it.
    pub(crate) fn lines(body: impl Into<Vec<u8>>) -> Self {
        Self::new(200, "content-type: application/x-ndjson\r\n", body)
    }

    /// Any response. Each header ends with a line break.
    pub(crate) fn new(status: u16, headers: &str, body: impl Into<Vec<u8>>) -> Self {
        let head = format!("HTTP/1.1 {status} So\r\n{headers}connection: close\r\n\r\n");
        Self { head, body: body.into(), then: Then::End }
    }

    pub(crate) fn silent(self) -> Self {
        Self { then: Then::Silence, ..self }
    }
}

impl Server {
    /// Answers one request with each of these replies, in order, and then stops listening.
    pub(crate) async fn start(replies: Vec<Reply>) -> Self {
        let (tell, seen) = mpsc::unbounded_channel();
        let (bound, address) = tokio::sync::oneshot::channel::<SocketAddr>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
            runtime.expect("a runtime starts").block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
                let address = listener.local_addr().expect("it has an address");
                bound.send(address).expect("the test waits for it");
                for reply in replies {
                    let (connection, _) = listener.accept().await.expect("a client connects");
                    serve(connection, reply, &tell).await;
                }
            });
        });
        let address = address.await.expect("the server starts");
        Self { url: format!("http://{address}"), seen }
    }

    /// The next request.
    pub(crate) async fn request(&mut self) -> Request {
        loop {
            if let Seen::Request(request) = self.seen.recv().await.expect("a request comes") {
                return request;
            }
        }
    }

    /// Waits until the reply is sent and the connection is held open.
    pub(crate) async fn silence(&mut self) {
        while !matches!(self.seen.recv().await.expect("the reply is sent"), Seen::Silent) {}
    }

    /// Waits until the client has closed the connection.
    pub(crate) async fn gone(&mut self) {
        while !matches!(self.seen.recv().await.expect("the client closes"), Seen::Gone) {}
    }
}

async fn serve(connection: TcpStream, reply: Reply, tell: &mpsc::UnboundedSender<Seen>) {
    connection.set_nodelay(true).expect("the socket takes options");
    let mut connection = BufReader::new(connection);
    let Some(request) = read(&mut connection).await else { return };
    let mut output = tell.send(Seen::Request(request)).is_ok();
    let wrote = async {
        connection.write_all(reply.head.as_bytes()).await?;
        connection.write_all(&reply.body).await?;
        connection.flush().await
    };
    // The client may close before it has read everything.
    let has_written = wrote.await.is_ok();
    if let Then::Repeat(text) = reply.then {
        while connection.write_all(text.as_bytes()).await.is_ok() {}
    }
    if has_written && reply.then == Then::Silence {
        output &= tell.send(Seen::Silent).is_ok();
        let mut rest = Vec::new();
        let _ = connection.read_to_end(&mut rest).await;
        output &= tell.send(Seen::Gone).is_ok();
    }
    // A test that does not check has dropped the receiver.
    let _ = output;
}

async fn read(connection: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("a head is text");
    let (line, headers) = head.trim_end().split_once("\r\n").expect("it has headers");
    let mut headers: Vec<String> = headers.split("\r\n").map(str::to_lowercase).collect();
    headers.sort();
    let length = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().expect("a length is a number"));
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await.ok()?;
    let body = String::from_utf8(body).expect("a body is text");
    Some(Request { line: line.to_owned(), headers, body })
}
