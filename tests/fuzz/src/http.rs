//! Raw bytes to the server, as any program may send them: heads, bodies, WebSocket frames after an
//! upgrade. A server in this process handles them without a panic, and then answers the next client
//! normally.
//!
//! An input that starts with a zero byte is sent after a WebSocket handshake.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use abide_engine::{Config, Engine};
use abide_protocols::AgentProtocols;
use abide_server::{AccessConfig, Services, serve_with};
use abide_sim::rig::folder;
use tokio::net::TcpListener;

/// A response that takes longer is a fault of the server: the client has closed its sending side.
const PATIENCE: Duration = Duration::from_secs(20);

const UPGRADE: &[u8] = b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: abide.v1\r\n\r\n";

/// See the [module](self).
pub fn run(input: &[u8]) {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    let address = *ADDRESS.get_or_init(begin);
    match input.strip_prefix(b"\0") {
        Some(frames) => drop(send(address, &[UPGRADE, frames].concat(), true)),
        None => drop(send(address, input, true)),
    }
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    // A client that hangs up after a request gets no response.
    let health = send(address, health, false);
    assert!(health.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&health));
}

/// Sends bytes, optionally closes the sending side, and reads until the server closes the
/// connection.
fn send(address: SocketAddr, bytes: &[u8], hangs_up: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the server takes connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
    // The server may close before it has read all.
    let _ = stream.write_all(bytes);
    if hangs_up {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let mut piece = [0; 4 << 10];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return answer,
            Ok(length) => answer.extend_from_slice(&piece[..length]),
            // libFuzzer's alarm after half of an input's time limit: a read with a timeout is not
            // restarted (signal(7)). It was mistaken for a server that does not respond.
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => {
                panic!(
                    "the server does not close the connection after {:?}",
                    String::from_utf8_lossy(bytes)
                )
            }
            // Closed with unread bytes.
            Err(_) => return answer,
        }
    }
}

/// Starts the server, which runs until the process ends.
fn begin() -> SocketAddr {
    let (tell, output) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be had");
        runtime.block_on(async {
            let folder = folder();
            let config = Config::new(abide_reducers::modules());
            let engine =
                Engine::open(folder.path().join("abide.db"), config).expect("a new file opens");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it listens");
            tell.send(address).expect("the receiver waits for it");
            let protocols = Some(std::sync::Arc::new(AgentProtocols::default()) as _);
            let services = Services { protocols, ..Services::default() };
            let access = AccessConfig::loopback();
            let served = serve_with(engine, listener, access, services, std::future::pending());
            served.await.expect("the server runs until the process ends");
        });
    });
    output.recv().expect("the server starts")
}
