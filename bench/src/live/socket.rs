//! A minimal WebSocket client. It parses messages only as far as necessary, so that the machine's time goes to the
//! server.

use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd as _;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Initial size of the buffer.
const BUFFER_BYTES: usize = 8 << 10;

/// The reading half.
pub(crate) struct Reader {
    socket: OwnedReadHalf,
    buffer: Vec<u8>,
    /// The part of the buffer that was read from the socket and not yet returned.
    filled: Range<usize>,
}

/// The writing half. The server treats its end as the end of the connection.
pub(crate) struct Writer(OwnedWriteHalf);

/// Connects with `abide.v1` and waits for the greeting.
pub(crate) async fn connect(address: SocketAddr) -> (Reader, Writer) {
    let socket = TcpStream::connect(address).await.expect("the server takes connections");
    socket.set_nodelay(true).expect("a TCP socket");
    let (read, write) = socket.into_split();
    let mut reader = Reader { socket: read, buffer: vec![0; BUFFER_BYTES], filled: 0..0 };
    let mut writer = Writer(write);
    let request = format!(
        "GET /v1/ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: abide.v1\r\n\r\n"
    );
    writer.0.write_all(request.as_bytes()).await.expect("the server reads");
    reader.skip_head().await;
    let hello = reader.next().await;
    assert!(hello.starts_with(br#"{"op":"hello""#), "{}", String::from_utf8_lossy(hello));
    (reader, writer)
}

impl Reader {
    /// Waits for the next text message.
    pub(crate) async fn next(&mut self) -> &[u8] {
        loop {
            if let Some(range) = self.take_message() {
                return &self.buffer[range];
            }
            self.fill().await;
        }
    }

    /// The next text message, if it is already in the buffer.
    pub(crate) fn buffered(&mut self) -> Option<&[u8]> {
        let range = self.take_message()?;
        Some(&self.buffer[range])
    }

    /// Reads more data from the socket.
    pub(crate) async fn fill(&mut self) {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.filled.end == self.buffer.len() {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
            if self.filled.end == self.buffer.len() {
                self.buffer.resize(2 * self.buffer.len(), 0);
            }
        }
        let read = self
            .socket
            .read(&mut self.buffer[self.filled.end..])
            .await
            .expect("the socket can be read");
        assert!(read > 0, "the server closed the socket");
        self.filled.end += read;
    }

    /// The next text message; answers pings before it.
    fn take_message(&mut self) -> Option<Range<usize>> {
        loop {
            let bytes = &self.buffer[self.filled.clone()];
            let [first, second, ..] = *bytes else { return None };
            let (length, head) = match second {
                126 => (usize::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?)), 4),
                127 => (u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?) as usize, 10),
                length => (usize::from(length), 2),
            };
            if bytes.len() < head + length {
                return None;
            }
            let start = self.filled.start + head;
            self.filled.start = start + length;
            match first {
                0x81 => return Some(start..start + length),
                0x89 => self.pong(start..start + length),
                other => panic!("unexpected frame: {other:#x}"),
            }
        }
    }

    fn pong(&self, payload: Range<usize>) {
        let mut frame = Vec::new();
        write_frame(0x8a, &self.buffer[payload], &mut frame);
        // If the socket's buffer is full, the next ping is answered instead.
        let _ = self.socket.as_ref().try_write(&frame);
    }

    async fn skip_head(&mut self) {
        loop {
            let read = &self.buffer[self.filled.clone()];
            if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                assert!(read.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(read));
                self.filled.start += end + 4;
                return;
            }
            self.fill().await;
        }
    }
}

impl Writer {
    /// The same socket for a blocking thread.
    pub(crate) fn for_thread(&self) -> ThreadWriter {
        let socket =
            self.0.as_ref().as_fd().try_clone_to_owned().expect("the descriptor can be cloned");
        ThreadWriter(socket.into())
    }

    /// Sends a text message the given number of times in one write.
    pub(crate) async fn send(&mut self, text: &str, times: usize) {
        let mut frames = Vec::new();
        for _ in 0..times {
            write_frame(0x81, text.as_bytes(), &mut frames);
        }
        self.0.write_all(&frames).await.expect("the server reads");
    }
}

/// A writing half without a runtime, because runtime timers are too coarse for thousands of calls per second.
pub(crate) struct ThreadWriter(std::net::TcpStream);

impl ThreadWriter {
    /// Sends a text message.
    pub(crate) fn send(&mut self, text: &str) {
        let mut frame = Vec::new();
        write_frame(0x81, text.as_bytes(), &mut frame);
        let mut left = frame.as_slice();
        while !left.is_empty() {
            match self.0.write(left) {
                Ok(written) => left = &left[written..],
                // The socket is non-blocking, because the runtime shares it.
                Err(why) if why.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(why) => panic!("the server does not read: {why}"),
            }
        }
    }
}

/// Frames of a client must be masked; a mask of zeros keeps the payload unchanged.
fn write_frame(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(opcode);
    match u8::try_from(payload.len()) {
        Ok(length @ ..126) => out.push(0x80 | length),
        _ => {
            out.push(0x80 | 126);
            let length = u16::try_from(payload.len()).expect("messages are short");
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
}
