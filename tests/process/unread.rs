//! Memory of a server for clients that do not read or send slowly: limited for each caller and in
//! total, and released after they disconnect.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use abide_schema::limits;
use serde_json::{Value as JsonValue, json};

use crate::memory::bytes;
use crate::program::{PATIENCE, left_out, run};
use crate::server::Server;

const MB: u64 = 1 << 20;

/// Memory in addition to the counted buffers: caches of readers, stacks, connection buffers, and the rows that readers
/// encode.
const BESIDE: u64 = 96 * MB;

/// Memory that may remain: caches fill, and small connections are not counted.
const REMAINS: u64 = 32 * MB;

/// A server with two tenants, of which `acme` has a session `s` of 10 MB.
struct UnreadFixture {
    server: Server,
    acme: String,
    zeta: String,
    /// Its memory before the test.
    before: u64,
}

impl UnreadFixture {
    /// `None` if the system does not report the memory of a process.
    fn new(options: &[&str]) -> Option<UnreadFixture> {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("abide.db");
        let token = |words: &[&str]| {
            let words = [&["token", "create"], words, &["--db", db.to_str().unwrap()]].concat();
            run(words).good().trim_end().to_owned()
        };
        token(&["root", "--role", "admin", "--capability", "*"]);
        let acme = token(&["acme", "--role", "app", "--scope", "tenant=acme"]);
        let zeta = token(&["zeta", "--role", "app", "--scope", "tenant=zeta"]);
        let mut server = Server::start_in(folder);
        server.restart_with(options);
        let mut fixture = UnreadFixture { server, acme, zeta, before: 0 };
        let session = json!({"id": "s", "agent": "a"});
        let answer = fixture.post(&fixture.acme, "/v1/call/create_session", &session);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let content = "x".repeat(100 << 10);
        let args = json!({"session_id": "s", "role": "user", "content": content});
        let call = json!({"reducer": "append_message", "args": args});
        for _ in 0..17 {
            let batch = json!({"calls": vec![&call; 6]});
            let answer = fixture.post(&fixture.acme, "/v1/batch", &batch);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        let Some(before) = bytes(fixture.server.id(), "VmRSS") else {
            left_out("the memory of clients that do not read: this system has no /proc");
            return None;
        };
        fixture.before = before;
        Some(fixture)
    }

    fn connect(&self, token: &str, head: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.server.address()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("{head}\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        socket
    }

    /// Sends a request and reads nothing.
    fn ask(&self, token: &str, path: &str, body: &JsonValue) -> TcpStream {
        let mut socket = self.connect(token, &format!("POST {path} HTTP/1.1"));
        let body = body.to_string();
        let rest = format!("connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(rest.as_bytes()).unwrap();
        socket
    }

    /// Sends a request and reads the whole response.
    fn post(&self, token: &str, path: &str, body: &JsonValue) -> String {
        let mut answer = String::new();
        self.ask(token, path, body).read_to_string(&mut answer).unwrap();
        answer
    }

    /// Opens a WebSocket, subscribes, and reads only the start of the reply.
    fn subscribe(&self, token: &str, from: u64) -> (TcpStream, String) {
        let mut socket = self.connect(token, "GET /v1/ws HTTP/1.1");
        let rest = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
            sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: abide.v1\r\n\r\n";
        socket.write_all(rest.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(byte(&mut socket));
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        let sql = "SELECT id, content FROM agent_state WHERE seq >= :from";
        let params = json!({"from": from});
        let text = json!({"op": "subscribe", "id": "q", "sql": sql, "params": params}).to_string();
        // RFC 6455, 5.2: one text frame, its length in 16 bits, masked with zeros.
        let length = u16::try_from(text.len()).unwrap().to_be_bytes();
        let header = [0x81, 0x80 | 126, length[0], length[1], 0, 0, 0, 0];
        socket.write_all(&[header.as_slice(), text.as_bytes()].concat()).unwrap();
        let hello = frame_bytes(&mut socket);
        socket.read_exact(&mut vec![0; hello]).unwrap();
        let mut begin = vec![0; frame_bytes(&mut socket).min(100)];
        socket.read_exact(&mut begin).unwrap();
        (socket, String::from_utf8(begin).unwrap())
    }

    /// Checks that another tenant gets responses: a call, a query, a subscription.
    fn check_zeta(&self) {
        let answer = self.post(&self.zeta, "/v1/call/create_session", &json!({"agent": "a"}));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let query = json!({"sql": "SELECT count(*) FROM sessions"});
        let answer = self.post(&self.zeta, "/v1/sql", &query);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (_, begin) = self.subscribe(&self.zeta, 0);
        assert!(begin.contains(r#""op":"snapshot""#), "{begin}");
    }

    /// Checks that peak memory is within this many counted bytes.
    fn check_peak(&self, counted: u64) {
        let peak = bytes(self.server.id(), "VmHWM").unwrap();
        let max = self.before + counted + BESIDE;
        assert!(peak < max, "it held {peak} bytes, {} before", self.before);
    }

    /// Checks that memory falls back after all clients have disconnected. Prints the values (`--nocapture`).
    fn check_fall(&self, attack: &str) {
        let peak = bytes(self.server.id(), "VmHWM").unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            let held = bytes(self.server.id(), "VmRSS").unwrap();
            if held < self.before + REMAINS {
                let [before, peak, held] = [self.before, peak, held].map(|bytes| bytes / MB);
                println!("{attack:32} before {before:4} MB  peak {peak:4} MB  after {held:4} MB");
                return;
            }
            assert!(Instant::now() < until, "it holds {held} bytes, {} before", self.before);
            // Gives the server time before the next check.
            self.post(&self.zeta, "/v1/sql", &json!({"sql": "SELECT 1"}));
        }
    }
}

fn byte(socket: &mut TcpStream) -> u8 {
    let mut byte = [0];
    socket.read_exact(&mut byte).unwrap();
    byte[0]
}

/// Reads the header of a server's frame; returns the payload length.
fn frame_bytes(socket: &mut TcpStream) -> usize {
    byte(socket);
    let more = match byte(socket) {
        126 => 2,
        127 => 8,
        short => return usize::from(short),
    };
    (0..more).fold(0, |length, _| length << 8 | usize::from(byte(socket)))
}

/// 100 clients that subscribed to a result of 10 MB and never read made a server use 2 GB, most of
/// which it kept after they disconnected. The budgets are a quarter of the default: debug builds
/// encode slowly.
#[test]
fn subscribers_that_never_read() {
    let options = ["--buffer-limit", "64MB", "--buffer-limit-per-caller", "24MB"];
    let Some(fixture) = UnreadFixture::new(&options) else { return };
    let mut open = Vec::new();
    for _ in 0..100 {
        let (socket, begin) = fixture.subscribe(&fixture.acme, 0);
        assert!(begin.contains(r#""op":"snapshot""#), "{begin}");
        open.push(socket);
    }
    // Other results are not shared with those: there is space for one more.
    let refused = (1..4).filter(|from| {
        let (socket, begin) = fixture.subscribe(&fixture.acme, *from);
        open.push(socket);
        begin.contains(r#""code":"overloaded""#)
    });
    assert!(refused.count() >= 2);
    fixture.check_zeta();
    fixture.check_peak(24 * MB);
    drop(open);
    fixture.check_fall("subscribers that never read");
}

/// An unread response of 60 MB cost 80 MB on each connection, for two minutes.
#[test]
fn responses_that_are_never_read() {
    let Some(fixture) = UnreadFixture::new(&[]) else { return };
    let sql = "SELECT a.id, a.content FROM agent_state a, (VALUES (1), (2), (3), (4), (5), (6))";
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..12 {
        let mut socket = fixture.ask(&fixture.acme, "/v1/sql", &json!({"sql": sql}));
        let mut status = [0; 12];
        socket.read_exact(&mut status).unwrap();
        match &status {
            b"HTTP/1.1 200" => {}
            b"HTTP/1.1 503" => refused += 1,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
        open.push(socket);
    }
    assert_eq!(refused, 11, "one fits into 96 MB");
    fixture.check_zeta();
    // One is held. The others are counted while they are produced, up to the rest of the caller's room.
    fixture.check_peak(limits::BUFFERED_BYTES_PER_CALLER as u64);
    drop(open);
    fixture.check_fall("answers that are never read");
}

/// 120 bodies of 7.9 MB that one token sent slowly took 1 GB.
#[test]
fn bodies_that_never_end() {
    let Some(fixture) = UnreadFixture::new(&[]) else { return };
    let body = vec![b' '; 7_900_000];
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..120 {
        let mut socket = fixture.connect(&fixture.acme, "POST /v1/sql HTTP/1.1");
        let rest = format!("content-length: {}\r\n\r\n", body.len() + 1);
        socket.write_all(rest.as_bytes()).unwrap();
        // After a refusal in the middle, the rest may not be accepted.
        let _ = socket.write_all(&body);
        open.push(socket);
    }
    for socket in &mut open[20..] {
        let mut status = [0; 12];
        socket.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 503");
        refused += 1;
    }
    assert_eq!(refused, 100, "twelve fit into 96 MB");
    fixture.check_zeta();
    fixture.check_peak(96 * MB);
    drop(open);
    fixture.check_fall("bodies that never end");
}
