//! A provider on loopback that says what a test tells it to: real sockets, every byte decided.
//!
//! It runs on a thread of its own, so that a test may stop its clock and the provider's goes on.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// What is said to one request, and what becomes of the connection.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) then: Then,
}

/// What comes after the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The connection ends.
    End,
    /// It stays open and silent until the caller goes.
    Silence,
}

/// A request, as it came in.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    /// In lower case, sorted.
    pub(crate) headers: Vec<String>,
    pub(crate) body: String,
}

/// What the provider saw.
#[derive(Debug)]
pub(crate) enum Seen {
    Request(Request),
    /// All is said, and the connection is held in silence.
    Silent,
    /// The caller closed the connection.
    Gone,
}

/// The provider.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) seen: mpsc::UnboundedReceiver<Seen>,
}

impl Reply {
    /// A stream of server-sent events.
    pub(crate) fn events(body: impl Into<Vec<u8>>) -> Self {
        Self::of(200, "content-type: text/event-stream\r\n", body)
    }

    /// A stream of lines, as Ollama has it.
    pub(crate) fn lines(body: impl Into<Vec<u8>>) -> Self {
        Self::of(200, "content-type: application/x-ndjson\r\n", body)
    }

    /// Any answer. `headers` end each with a line break.
    pub(crate) fn of(status: u16, headers: &str, body: impl Into<Vec<u8>>) -> Self {
        let head = format!("HTTP/1.1 {status} So\r\n{headers}connection: close\r\n\r\n");
        Self { head, body: body.into(), then: Then::End }
    }

    pub(crate) fn silent(self) -> Self {
        Self { then: Then::Silence, ..self }
    }
}

impl Server {
    /// Answers one request with each of these, in order; then nobody is there any more.
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
                    let (connection, _) = listener.accept().await.expect("somebody calls");
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

    /// Until the provider has said all and is silent.
    pub(crate) async fn silence(&mut self) {
        while !matches!(self.seen.recv().await.expect("it says all"), Seen::Silent) {}
    }

    /// Until the caller has closed the connection.
    pub(crate) async fn gone(&mut self) {
        while !matches!(self.seen.recv().await.expect("the caller goes"), Seen::Gone) {}
    }
}

async fn serve(connection: TcpStream, reply: Reply, tell: &mpsc::UnboundedSender<Seen>) {
    connection.set_nodelay(true).expect("the socket takes options");
    let mut connection = BufReader::new(connection);
    let Some(request) = read(&mut connection).await else { return };
    let mut told = tell.send(Seen::Request(request)).is_ok();
    let wrote = async {
        connection.write_all(reply.head.as_bytes()).await?;
        connection.write_all(&reply.body).await?;
        connection.flush().await
    };
    // A caller may go before it has read all.
    if wrote.await.is_ok() && reply.then == Then::Silence {
        told &= tell.send(Seen::Silent).is_ok();
        let mut rest = Vec::new();
        let _ = connection.read_to_end(&mut rest).await;
        told &= tell.send(Seen::Gone).is_ok();
    }
    // A test that does not look has dropped its end.
    let _ = told;
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
