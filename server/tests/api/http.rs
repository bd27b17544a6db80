//! HTTP/1.1 by hand, to send requests that no library would.

use expect_test::Expect;
use serde_json::Value as JsonValue;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::test_server::TestServer;

/// A response as it came.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> JsonValue {
        serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {}", self.body))
    }

    /// Status, code, detail and hint of a problem document; checks their common properties.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        assert_eq!(problem["type"], "about:blank");
        let text = |name: &str| problem[name].as_str().unwrap_or("-").to_owned();
        format!("{} {}: {} ({})", self.status, text("code"), text("detail"), text("hint"))
    }
}

/// Compares one line with an expectation that ends with a newline.
pub(crate) fn check(actual: &str, expected: Expect) {
    expected.assert_eq(&format!("{actual}\n"));
}

/// A request.
pub(crate) struct Request<'a> {
    server: &'a TestServer,
    head: String,
    body: Vec<u8>,
}

impl TestServer {
    pub(crate) fn request(&self, method: &str, path: &str) -> Request<'_> {
        let head = format!("{method} {path} HTTP/1.1\r\n");
        Request { server: self, head, body: Vec::new() }
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request("GET", path).send().await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Response {
        self.request("POST", path).body(body).send().await
    }
}

impl Request<'_> {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    /// Sends it and returns the connection to read from.
    pub(crate) async fn begin(self) -> BufReader<TcpStream> {
        let mut socket = TcpStream::connect(self.server.address).await.expect("it listens");
        let mut head = self.head;
        if !head.contains("connection: ") {
            head.push_str("connection: close\r\n");
        }
        if !head.contains("host: ") {
            head.push_str(&format!("host: {}\r\n", self.server.address));
        }
        if !self.body.is_empty() && !head.contains("content-length") {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        socket.write_all(head.as_bytes()).await.expect("it reads");
        socket.write_all(&self.body).await.expect("it reads");
        BufReader::new(socket)
    }

    pub(crate) async fn send(self) -> Response {
        let mut socket = self.begin().await;
        let mut response = head(&mut socket).await;
        let mut body = Vec::new();
        socket.read_to_end(&mut body).await.expect("the whole answer");
        response.body = String::from_utf8(body).expect("UTF-8");
        response
    }
}

/// Reads a response up to its body.
pub(crate) async fn head(socket: &mut BufReader<TcpStream>) -> Response {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await.expect("a head");
        if line.trim_end().is_empty() {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let status = lines.first().and_then(|line| line.split(' ').nth(1)).expect("a status");
    let headers = lines.iter().skip(1).filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_lowercase(), value.to_owned()))
    });
    Response {
        status: status.parse().expect("a number"),
        headers: headers.collect(),
        body: String::new(),
    }
}

/// Percent-encodes a query string value.
pub(crate) fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}
