//! Connecting: address parsing, the handshake, and its errors.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use abide_schema::wire::{AUTHENTICATION_HEADER, AUTHENTICATION_OFF, SCOPE_HEADER, SUBPROTOCOL};
use abide_schema::{Code, Refusal, Scope, lowercase_first};
use serde_json::{Value as JsonValue, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Error as SocketError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::http::{HeaderValue, Response, Uri};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::frame::cut;
use super::shared_file::{RunningEngine, SharedFile};
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::Error;
use crate::backend::Backoff;

/// Time limit for a connection attempt, name resolution and handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of attempts to connect to the engine of a file: it may end after it was found. Each attempt starts an
/// engine if none runs.
const TRIES: u32 = 5;

/// Maximum bytes of one message: a coalesced change of a large result is one message. The server limits
/// what it reads for one to 64 MB, which JSON may expand several times.
const MESSAGE_BYTES: usize = 512 << 20;

/// Read buffer of a connection: most messages are smaller.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Any byte stream.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Io for T {}

/// A connection after its handshake.
pub(crate) type Socket = WebSocketStream<Box<dyn Io>>;

/// A connection attempt.
pub(crate) type Dialing = Pin<Box<dyn Future<Output = Result<Socket, Error>> + Send>>;

/// Makes a connection.
pub(crate) type Dial = Arc<dyn Fn() -> Dialing + Send + Sync>;

/// A server's address and the credentials for it.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// The address, as errors name it.
    url: String,
    target: Target,
    scope: Scope,
    request: Request,
}

/// Where the server is.
#[derive(Clone, Debug)]
enum Target {
    Tcp { host: String, port: u16, tls: Option<Tls> },
    Shared(SharedFile),
}

/// The options of TLS, for addresses that begin with `https` or `wss`.
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "this build has no TLS"))]
pub(crate) struct TlsOptions {
    /// A PEM file with the only trusted authorities; without it, those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// PEM files with the certificate of the client, and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// No TLS: it cannot be created.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug)]
enum Tls {}

#[cfg(not(feature = "tls"))]
impl Tls {
    fn new(url: &str, _host: &str, _options: &TlsOptions) -> Result<Tls, Error> {
        let why = "this program is built without TLS; enable the feature `tls` of abide-client";
        Err(Error::Address { url: url.to_owned(), why: why.to_owned() })
    }

    async fn connect(&self, _stream: TcpStream) -> Result<TcpStream, Error> {
        match *self {}
    }

    fn explain(&self, _error: &io::Error) -> Option<Error> {
        match *self {}
    }
}

impl Address {
    pub(crate) fn parse(
        url: &str,
        token: Option<&str>,
        options: &TlsOptions,
    ) -> Result<Address, Error> {
        let address_error = |why: &str| Error::Address { url: url.to_owned(), why: why.to_owned() };
        let given: Uri =
            url.trim_end_matches('/').parse().map_err(|_| address_error("it is not a URL"))?;
        let has_tls = match given.scheme_str() {
            Some("http" | "ws") => false,
            Some("https" | "wss") => true,
            _ => return Err(address_error("it does not begin with http:// or https://")),
        };
        let authority = given.authority().ok_or_else(|| address_error("it has no host"))?;
        if given.query().is_some() || authority.as_str().contains('@') {
            return Err(address_error(
                "it contains more than a host and a path; pass a token with token(…)",
            ));
        }
        let path = given.path().trim_end_matches('/');
        if path.ends_with("/v1") {
            return Err(address_error(
                "its path ends with /v1, which the client adds itself; leave it out",
            ));
        }
        let scheme = if has_tls { "wss" } else { "ws" };
        let mut request = upgrade_request(&format!("{scheme}://{authority}{path}/v1/ws"))
            .map_err(|_| address_error("it is not a URL"))?;
        authorize(&mut request, token)?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if has_tls { 443 } else { 80 });
        let tls = if has_tls { Some(Tls::new(url, &host, options)?) } else { None };
        let target = Target::Tcp { host, port, tls };
        Ok(Address { url: url.to_owned(), target, scope: Scope::new(), request })
    }

    /// The engine of a file that programs share.
    ///
    /// With a token the caller is its identity; without one, the bearer of the engine's own token.
    pub(crate) fn for_shared_file(file: SharedFile, token: Option<&str>) -> Result<Address, Error> {
        let url = file.path.display().to_string();
        let mut request = upgrade_request("ws://localhost/v1/ws").map_err(|why| {
            Error::Address { url: url.clone(), why: lowercase_first(&why.to_string()) }
        })?;
        authorize(&mut request, token)?;
        Ok(Address { url, target: Target::Shared(file), scope: Scope::new(), request })
    }

    /// The address, restricted to a scope in addition to the current one.
    pub(crate) fn restricted_to(mut self, scope: &Scope) -> Result<Address, Error> {
        if scope.is_empty() {
            return Ok(self);
        }
        for (key, value) in scope {
            if self.scope.entry(key.clone()).or_insert_with(|| value.clone()) != value {
                let detail = format!("scope.{key} is outside the caller's own scope");
                return Err(Refusal::new(Code::Denied, detail).into());
            }
        }
        let value = HeaderValue::from_str(&ascii_json(&self.scope)).map_err(|_| {
            let detail = "the scope contains a character that is not allowed in a header";
            Refusal::new(Code::BadArguments, detail)
        })?;
        self.request.headers_mut().insert(SCOPE_HEADER, value);
        Ok(self)
    }

    #[cfg(test)]
    pub(crate) fn request(self) -> Request {
        self.request
    }

    pub(crate) fn dial(self) -> Dial {
        Arc::new(move || {
            let address = self.clone();
            Box::pin(async move {
                match &address.target {
                    Target::Tcp { host, port, tls } => {
                        let connecting = address.connect_tcp(host, *port, tls.as_ref());
                        address.within_limit(connecting).await
                    }
                    Target::Shared(file) => address.connect_shared(file).await,
                }
            })
        })
    }

    /// Waits for a connection, for at most [`CONNECT_TIMEOUT`].
    async fn within_limit(
        &self,
        connecting: impl Future<Output = Result<Socket, Error>> + Send,
    ) -> Result<Socket, Error> {
        timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| {
            let why = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
            Err(Error::unreachable(&self.url, why))
        })
    }

    /// Connects to the engine of a file, and starts it if none runs. Its start has no limit while the program runs: it may copy and
    /// migrate a large file.
    async fn connect_shared(&self, file: &SharedFile) -> Result<Socket, Error> {
        let mut backoff = Backoff::new();
        let mut tries = 1;
        loop {
            let engine = file.find().await?;
            match self.within_limit(self.connect_engine(engine)).await {
                // The engine ended after it was found.
                Err(Error::Unreachable { .. } | Error::NotAbide { .. }) if tries < TRIES => {
                    tries += 1
                }
                made => return made,
            }
            // tidy: the pause between two attempts; nothing reports that the engine has ended
            sleep(backoff.next()).await;
        }
    }

    async fn connect_engine(&self, engine: RunningEngine) -> Result<Socket, Error> {
        if let Some(path) = engine.socket {
            let mut request = self.request.clone();
            if !request.headers().contains_key(AUTHORIZATION) {
                authorize(&mut request, engine.token.as_deref())?;
            }
            let stream = connect_unix(&path).await;
            let stream = stream.map_err(|why| Error::unreachable(&self.url, why))?;
            return handshake(request, stream, &self.url).await;
        }
        let url = engine.url.unwrap_or_default();
        let address = Address::parse(&url, engine.token.as_deref(), &TlsOptions::default())?
            .restricted_to(&self.scope)?;
        let Target::Tcp { host, port, tls } = &address.target else {
            return Err(Error::Protocol { why: "abide open printed no address".to_owned() });
        };
        address.connect_tcp(host, *port, tls.as_ref()).await
    }

    async fn connect_tcp(&self, host: &str, port: u16, tls: Option<&Tls>) -> Result<Socket, Error> {
        let stream = TcpStream::connect((host, port))
            .await
            .map_err(|why| Error::unreachable(&self.url, why))?;
        // Messages are whole frames: waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        let request = self.request.clone();
        let Some(tls) = tls else { return handshake(request, Box::new(stream), &self.url).await };
        let stream = Box::new(tls.connect(stream).await?);
        handshake(request, stream, &self.url).await.map_err(|error| {
            // With TLS 1.3 a server refuses the certificate of a client after the handshake.
            let source = std::error::Error::source(&error);
            let explained = match source.and_then(|it| it.downcast_ref::<SocketError>()) {
                Some(SocketError::Io(why)) => tls.explain(why),
                _ => None,
            };
            explained.unwrap_or(error)
        })
    }
}

#[cfg(unix)]
async fn connect_unix(path: &str) -> io::Result<Box<dyn Io>> {
    let stream = UnixStream::connect(path).await?;
    // Both ends of this pair belong to this process, so its peer is the user of this process.
    let (own, _other) = UnixStream::pair()?;
    // Another user could have put a socket there, if the folder is in a place that others can write.
    if stream.peer_cred()?.uid() != own.peer_cred()?.uid() {
        let why = "the socket belongs to a process of another user";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(Box::new(stream))
}

#[cfg(not(unix))]
async fn connect_unix(_: &str) -> io::Result<Box<dyn Io>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The request that opens a WebSocket.
fn upgrade_request(uri: &str) -> Result<Request, SocketError> {
    let mut request = uri.into_client_request()?;
    let protocol = HeaderValue::from_static(SUBPROTOCOL);
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    Ok(request)
}

/// Adds a token to a request.
fn authorize(request: &mut Request, token: Option<&str>) -> Result<(), Error> {
    let Some(token) = token else { return Ok(()) };
    let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
        let detail = "the token has characters that are not allowed in a header";
        Refusal::new(Code::BadArguments, detail)
    })?;
    bearer.set_sensitive(true);
    request.headers_mut().insert(AUTHORIZATION, bearer);
    Ok(())
}

/// A scope as JSON of printable ASCII, which every proxy accepts in a header.
fn ascii_json(scope: &Scope) -> String {
    let mut text = String::new();
    for c in json!(scope).to_string().chars() {
        if c == ' ' || c.is_ascii_graphic() {
            text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}

/// Performs the handshake over any stream.
pub(crate) async fn handshake(
    request: Request,
    stream: Box<dyn Io>,
    url: &str,
) -> Result<Socket, Error> {
    let config = WebSocketConfig::default()
        // Each read fills a buffer of this size with zeros first: the default, 128 KiB, costs more than a typical message.
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES));
    let has_token = request.headers().contains_key(AUTHORIZATION);
    match client_async_with_config(request, stream, Some(config)).await {
        Ok((socket, response)) => {
            let checks = response.headers().get(AUTHENTICATION_HEADER);
            if has_token && checks.is_some_and(|value| value == AUTHENTICATION_OFF) {
                tracing::warn!(
                    name: "token_unused",
                    "{url} checks no tokens, because it has none: the token has no effect"
                );
            }
            Ok(socket)
        }
        Err(SocketError::Http(response)) => Err(rejection_error(url, &response)),
        // Another protocol than HTTP, or an HTTP server without WebSocket, has answered.
        Err(why @ (SocketError::Protocol(_) | SocketError::HttpFormat(_))) => {
            Err(Error::not_abide(url, why))
        }
        Err(why) => Err(Error::unreachable(url, why)),
    }
}

/// Maps a response that is not a WebSocket upgrade to an error.
fn rejection_error(url: &str, response: &Response<Option<Vec<u8>>>) -> Error {
    let body = response.body().as_deref().unwrap_or_default();
    let problem: JsonValue = serde_json::from_slice(body).unwrap_or_default();
    let status = response.status();
    if let (Some(code), Some(detail)) = (problem["code"].as_str(), problem["detail"].as_str()) {
        let code = Code::parse(code).unwrap_or(Code::Internal);
        let retry_after_ms = problem["retry_after_ms"].as_u64();
        let hint = problem["hint"].as_str().map(cut);
        let refusal = Refusal::new(code, cut(detail));
        return Refusal { hint, retry_after_ms, ..refusal }.into();
    }
    let refused = match status.as_u16() {
        401 => Refusal::new(Code::Unauthenticated, "the server requires a valid token"),
        403 => Refusal::new(Code::Denied, "the server responds with HTTP 403 and names no reason")
            .hint("check the token, and a proxy in front of the server"),
        _ => {
            let why = format!("it responds with HTTP {status} instead of opening a WebSocket");
            // A proxy reports that the server behind it does not answer.
            return if status.is_server_error() {
                Error::unreachable(url, why)
            } else {
                Error::not_abide(url, why)
            };
        }
    };
    refused.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_resolve_to_the_websocket_url() {
        for (url, host, port, uri) in [
            ("http://127.0.0.1:7341", "127.0.0.1", 7341, "ws://127.0.0.1:7341/v1/ws"),
            ("ws://[::1]:80/", "::1", 80, "ws://[::1]:80/v1/ws"),
            ("http://example.org/abide/", "example.org", 80, "ws://example.org/abide/v1/ws"),
        ] {
            let address =
                Address::parse(url, None, &TlsOptions::default()).expect("it is an address");
            let Target::Tcp { host: named, port: numbered, tls: None } = &address.target else {
                panic!("{url}");
            };
            assert_eq!((named.as_str(), *numbered), (host, port), "{url}");
            assert_eq!(address.request.uri(), uri, "{url}");
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for url in [
            "",
            "localhost:7341",
            "ftp://a",
            "https://",
            "wss://a/v1",
            "http://a?token=1",
            "http://me@a",
            "http://a/v1",
            "http://a/v1/",
        ] {
            let error = Address::parse(url, None, &TlsOptions::default()).expect_err(url);
            assert!(matches!(error, Error::Address { .. }), "{url}: {error}");
            assert!(error.hint().is_some());
        }
        let two_lines = Address::parse("http://a", Some("two\nlines"), &TlsOptions::default());
        assert!(two_lines.is_err());
    }

    /// An engine that copied and migrated a large file at its start was given up after 45 seconds.
    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn the_start_of_an_engine_has_no_limit() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let binary = folder.path().join("abide");
        let answer = r#"{"error":{"code":"disk_full","detail":"no space"}}"#;
        fs::write(&binary, format!("#!/bin/sh\necho '{answer}'\n")).expect("it is written");
        fs::set_permissions(&binary, Permissions::from_mode(0o755)).expect("it is ours");
        let file = SharedFile { path: folder.path().join("a.db"), binary, starts_engine: true };
        let address = Address::for_shared_file(file, None).expect("it is an address");
        // The clock is paused: any limit passes at once.
        let Err(error) = address.dial()().await else { panic!("the file is refused") };
        assert_eq!(error.code(), Some(Code::DiskFull), "{error}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn an_encrypted_address_names_the_feature_that_is_missing() {
        let error = Address::parse("https://a", None, &TlsOptions::default()).expect_err("no TLS");
        assert!(error.to_string().contains("the feature `tls`"), "{error}");
    }
}
