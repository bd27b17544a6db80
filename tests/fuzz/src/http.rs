//! Bytes at the door, as a stranger's program may send them: heads, bodies, WebSocket frames behind an upgrade. A server of this
//! process takes them in; nothing in it panics, and it answers the next client as if nothing had been.
//!
//! An input that begins with a zero byte is sent behind the handshake of a WebSocket.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use abide_engine::{Config, Engine};
use abide_server::{Access, serve};
use abide_sim::rig::folder;
use tokio::net::TcpListener;

/// An answer that takes longer counts as a fault of the server: it was told that nothing more is coming.
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
    // Who hangs up behind a question is not answered.
    let health = send(address, health, false);
    assert!(health.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&health));
}

/// Sends bytes, perhaps says that nothing more is coming, and reads what comes back until the other side ends.
fn send(address: SocketAddr, bytes: &[u8], hangs_up: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the server takes connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
    // It may close before it has read all.
    let _ = stream.write_all(bytes);
    if hangs_up {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let (mut answer, mut piece) = (Vec::new(), [0; 4 << 10]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return answer,
            Ok(length) => answer.extend_from_slice(&piece[..length]),
            // libFuzzer's own alarm, after half of what an input may take: a read with a time limit is not
            // taken up again by itself (signal(7)). It was taken for a server that says nothing.
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the server holds on to {:?}", String::from_utf8_lossy(bytes))
            }
            // Closed with bytes that it had not read.
            Err(_) => return answer,
        }
    }
}

/// Starts the server, which lives as long as the process.
fn begin() -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be had");
        runtime.block_on(async {
            let folder = folder();
            let config = Config::new(abide_reducers::modules());
            let engine = Engine::open(folder.path().join("abide.db"), config);
            let engine = engine.expect("a new file opens");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it listens");
            tell.send(address).expect("somebody waits for it");
            let served = serve(engine, listener, Access::loopback(), std::future::pending());
            served.await.expect("it serves for ever");
        });
    });
    told.recv().expect("the server starts")
}
