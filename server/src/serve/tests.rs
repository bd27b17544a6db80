//! Limits of the accept loop, in virtual time.

use std::net::SocketAddr;

use axum::extract::Extension;
use axum::routing::get;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::tls::TlsFiles;

/// The loop around one plain route.
struct TestListener {
    address: SocketAddr,
    lifecycle: Lifecycle,
    _shutdown: oneshot::Sender<()>,
    _accepting: JoinHandle<()>,
}

impl TestListener {
    async fn with_room(connections: u32) -> TestListener {
        TestListener::new(connections, None).await
    }

    async fn new(connections: u32, tls: Option<Tls>) -> TestListener {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let lifecycle = Lifecycle::new(connections);
        let router = Router::new().route(
            "/",
            get(|Extension(pending): Extension<Arc<UnauthenticatedConnection>>| async move {
                pending.mark_admitted();
                "in"
            }),
        );
        let full_router = Router::new().fallback(full);
        let (shutdown, wanted) = oneshot::channel::<()>();
        let inside = lifecycle.clone();
        let accepting = tokio::spawn(async move {
            let endpoint = Endpoint { listener: Listener::Tcp(listener), tls, router };
            accept(&endpoint, &full_router, &inside, async { drop(wanted.await) }).await;
        });
        TestListener { address, lifecycle, _shutdown: shutdown, _accepting: accepting }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }
}

/// The server's output until it closes.
async fn received(socket: &mut TcpStream) -> String {
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("text");
    text
}

const LAST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn a_full_server_refuses_and_recovers() {
    let listener = TestListener::with_room(1).await;
    let mut first = listener.connect().await;
    first.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
    first.readable().await.expect("it answers, and stays");

    let mut second = listener.connect().await;
    second.write_all(LAST).await.expect("it reads");
    let received_second = received(&mut second).await;
    assert!(received_second.starts_with("HTTP/1.1 503"), "{received_second}");
    assert!(received_second.contains("retry-after: 1"), "{received_second}");
    assert!(received_second.contains(r#""code":"overloaded""#), "{received_second}");

    drop(first);
    listener.lifecycle.wait_until_empty().await;
    let mut third = listener.connect().await;
    third.write_all(LAST).await.expect("it reads");
    assert!(received(&mut third).await.ends_with("\r\n\r\nin"));
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_head_times_out() {
    let listener = TestListener::with_room(1).await;
    let mut slow = listener.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: local").await.expect("it reads");
    let begun = Instant::now();
    received(&mut slow).await;
    let waited = begun.elapsed();
    assert!(
        waited >= limits::UNAUTHENTICATED_TIMEOUT && waited < limits::HEAD_TIMEOUT,
        "{waited:?}"
    );
    listener.lifecycle.wait_until_empty().await;
}

/// Incomplete heads from one address blocked a client at the same address for 30 seconds: they used all places.
#[tokio::test]
async fn incomplete_heads_make_room_for_complete_ones() {
    let listener = TestListener::with_room(8).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut socket = listener.connect().await;
        socket.write_all(b"GET / HTTP/1.1\r\nhost: local").await.expect("it reads");
        slow.push(socket);
    }
    let mut whole = listener.connect().await;
    whole.write_all(LAST).await.expect("it reads");
    let begun = Instant::now();
    assert!(received(&mut whole).await.ends_with("\r\n\r\nin"));
    assert!(
        begun.elapsed() < limits::UNAUTHENTICATED_TIMEOUT,
        "it does not wait for the end of a head"
    );
}

/// The accept loop waited for a place of a crowded address, a tenth of a second for every two of its connections, and
/// delayed all other addresses.
#[tokio::test]
async fn a_crowded_address_delays_no_other() {
    let listener = TestListener::with_room(8).await;
    let mut slow = Vec::new();
    for _ in 0..60 {
        let mut socket = listener.connect().await;
        socket.write_all(b"GET / HTTP/1.1\r\nhost: local").await.expect("it reads");
        slow.push(socket);
    }
    let other = tokio::net::TcpSocket::new_v4().expect("a socket");
    other.bind("127.0.0.2:0".parse().expect("an address")).expect("all of 127/8 is here");
    let begun = Instant::now();
    let mut other = other.connect(listener.address).await.expect("it listens");
    other.write_all(LAST).await.expect("it reads");
    assert!(received(&mut other).await.ends_with("\r\n\r\nin"));
    assert!(begun.elapsed() < 10 * limits::UNAUTHENTICATED_MIN_TIME, "{:?}", begun.elapsed());
    drop(slow);
}

/// TLS of a server, and a client that trusts it and offers these protocols.
fn tls(alpn: &[&[u8]]) -> (Tls, TlsConnector) {
    let folder = tempfile::tempdir().expect("a folder");
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let pair = KeyPair::generate().expect("a key");
    let params =
        CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name of a host");
    let signed = params.self_signed(&pair).expect("it is signed");
    std::fs::write(&certificate, signed.pem()).expect("it is written");
    std::fs::write(&key, pair.serialize_pem()).expect("it is written");
    let server = Tls::open(TlsFiles { certificate, key, client_ca: None }).expect("they fit");
    let mut roots = RootCertStore::empty();
    roots.add(signed.der().clone()).expect("it is a certificate");
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    (server, TlsConnector::from(Arc::new(config)))
}

async fn handshake(client: &TlsConnector, socket: TcpStream) -> TlsStream<TcpStream> {
    let name = ServerName::try_from("localhost").expect("it is a name");
    client.connect(name, socket).await.expect("it is trusted")
}

/// The first bytes of a handshake.
const HALF_HELLO: &[u8] = &[22, 3, 1, 2, 0, 1, 0];

#[tokio::test(start_paused = true)]
async fn an_incomplete_handshake_times_out() {
    let (tls, _) = tls(&[]);
    let listener = TestListener::new(1, Some(tls)).await;
    for first in [&HALF_HELLO[..0], HALF_HELLO] {
        let mut slow = listener.connect().await;
        slow.write_all(first).await.expect("it reads");
        let begun = Instant::now();
        let mut rest = Vec::new();
        // The system may report the bytes that the server has not read.
        let _ = slow.read_to_end(&mut rest).await;
        assert_eq!(rest, b"");
        assert!(begun.elapsed() >= limits::UNAUTHENTICATED_TIMEOUT, "{:?}", begun.elapsed());
        listener.lifecycle.wait_until_empty().await;
    }
}

#[tokio::test]
async fn incomplete_handshakes_make_room_for_complete_ones() {
    let (tls, client) = tls(&[b"http/1.1"]);
    let listener = TestListener::new(8, Some(tls)).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut socket = listener.connect().await;
        socket.write_all(HALF_HELLO).await.expect("it reads");
        slow.push(socket);
    }
    let begun = Instant::now();
    let mut whole = handshake(&client, listener.connect().await).await;
    whole.write_all(LAST).await.expect("it reads");
    let mut received = String::new();
    whole.read_to_string(&mut received).await.expect("it ends with a close_notify");
    assert!(received.ends_with("\r\n\r\nin"), "{received}");
    assert!(begun.elapsed() < limits::UNAUTHENTICATED_TIMEOUT, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_request_in_plain_text_learns_that_the_port_has_tls() {
    let (tls, _) = tls(&[]);
    let listener = TestListener::new(8, Some(tls)).await;
    let mut plain = listener.connect().await;
    plain.write_all(LAST).await.expect("it reads");
    let received = received(&mut plain).await;
    assert!(received.starts_with("HTTP/1.1 400"), "{received}");
    assert!(received.contains(r#""code":"bad_request""#), "{received}");
    assert!(received.contains("https://"), "{received}");
}

#[tokio::test]
async fn a_client_chooses_its_protocol_by_alpn() {
    let cases = [
        (["h2", "http/1.1"].as_slice(), Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ];
    for (offered, chosen) in cases {
        let offered: Vec<&[u8]> = offered.iter().map(|name| name.as_bytes()).collect();
        let (tls, client) = tls(&offered);
        let listener = TestListener::new(8, Some(tls)).await;
        let stream = handshake(&client, listener.connect().await).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), chosen.map(str::as_bytes));
    }
}
