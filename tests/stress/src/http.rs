//! A minimal HTTP client: one connection, one request at a time, status, headers, body.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The Retry-After header in seconds, if present.
    pub(crate) retry_after: Option<u64>,
    body: String,
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.body)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) stream: TcpStream,
    token: String,
}

impl Http {
    /// Connects. Requests carry the token.
    pub(crate) async fn connect(address: SocketAddr, token: &str) -> io::Result<Http> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Http { stream, token: token.to_owned() })
    }

    /// Posts a body and reads the response.
    pub(crate) async fn post(&mut self, path: &str, body: &str) -> io::Result<Response> {
        self.stream.write_all(self.head(path, body.len()).as_bytes()).await?;
        self.stream.write_all(body.as_bytes()).await?;
        self.answer().await
    }

    /// Gets a page that needs no credentials.
    pub(crate) async fn get(&mut self, path: &str) -> io::Result<Response> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: abide\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        self.answer().await
    }

    /// The head of a request with a body of this length.
    pub(crate) fn head(&self, path: &str, length: usize) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nHost: abide\r\nAuthorization: Bearer {}\r\n\
             Content-Length: {length}\r\n\r\n",
            self.token
        )
    }

    /// Reads one response.
    pub(crate) async fn answer(&mut self) -> io::Result<Response> {
        let mut bytes = Vec::new();
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if self.stream.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
        let header = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        let length = usize::try_from(header("content-length:").unwrap_or(0)).unwrap_or(0);
        while bytes.len() < head + length {
            if self.stream.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let status = text.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let body = String::from_utf8_lossy(&bytes[head..]).into_owned();
        Ok(Response { status, retry_after: header("retry-after:"), body })
    }
}
