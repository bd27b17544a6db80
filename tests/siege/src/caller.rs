//! A caller whose calls are timed: a thread of its own with one connection, which asks, waits for the answer and
//! asks again, as an agent's turn does. What it waits is what others are made to wait by a siege.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Told;
use crate::figures::percentile;
use crate::pace::pause_thread;

/// After this a connection is taken for lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// What it waited for its answers.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Of each answered call, in milliseconds.
    pub(crate) ms: Vec<f64>,
    /// Calls that were refused with 429 or 503, and made again when they were told to.
    pub(crate) refused: u64,
    /// Times that the connection was lost.
    pub(crate) lost: u64,
}

impl Waits {
    pub(crate) fn p50(&self) -> f64 {
        percentile(&self.ms, 50.0)
    }

    pub(crate) fn p99(&self) -> f64 {
        percentile(&self.ms, 99.0)
    }

    pub(crate) fn longest(&self) -> f64 {
        self.ms.iter().copied().fold(0.0, f64::max)
    }
}

/// At work until it is told to stop.
pub(crate) struct Caller {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Told<Waits>>,
}

impl Caller {
    /// Begins to append messages to a session.
    pub(crate) fn start(address: SocketAddr, token: &str, session: &str) -> Caller {
        let body =
            format!(r#"{{"session_id":"{session}","role":"user","content":"Where is it?"}}"#);
        Caller::repeat(address, token, "/v1/call/append_message", body)
    }

    /// Begins to repeat a request.
    pub(crate) fn repeat(
        address: SocketAddr,
        token: &str,
        path: &'static str,
        body: String,
    ) -> Caller {
        let stop = Arc::new(AtomicBool::new(false));
        let head = format!("Authorization: Bearer {token}\r\n");
        let line = Line { address, path, head, body, stop: Arc::clone(&stop) };
        Caller { stop, thread: thread::spawn(move || line.run()) }
    }

    /// Lets it end; what it waited.
    pub(crate) fn stop(self) -> Told<Waits> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err("the caller panicked".to_owned()))
    }
}

struct Line {
    address: SocketAddr,
    path: &'static str,
    head: String,
    body: String,
    stop: Arc<AtomicBool>,
}

impl Line {
    fn run(&self) -> Told<Waits> {
        let mut waits = Waits::default();
        let mut stream = None;
        while !self.stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            // A refused call counts from its first attempt: that is what its caller waits.
            while let Some(wait) = self.attempt(&mut stream, &mut waits)? {
                pause_thread(wait);
                if begun.elapsed() > PATIENCE {
                    return Err(format!("a call was not answered in {PATIENCE:?}"));
                }
            }
            waits.ms.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(waits)
    }

    /// One attempt; how long to wait before the next, if there has to be one.
    fn attempt(
        &self,
        stream: &mut Option<BufReader<TcpStream>>,
        waits: &mut Waits,
    ) -> Told<Option<Duration>> {
        let answer = match self.ask(stream) {
            Ok(answer) => answer,
            Err(_) => {
                *stream = None;
                waits.lost += 1;
                return Ok(Some(Duration::from_millis(20)));
            }
        };
        match answer {
            (200, _) => Ok(None),
            (429 | 503, Some(seconds)) => {
                waits.refused += 1;
                Ok(Some(Duration::from_secs(seconds)))
            }
            (status, after) => Err(format!("a call was answered {status}, Retry-After {after:?}")),
        }
    }

    /// The status, and how many seconds to wait where it is said.
    fn ask(
        &self,
        stream: &mut Option<BufReader<TcpStream>>,
    ) -> std::io::Result<(u16, Option<u64>)> {
        if stream.is_none() {
            let socket = TcpStream::connect(self.address)?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            *stream = Some(BufReader::new(socket));
        }
        let Some(reader) = stream else { return Err(std::io::ErrorKind::NotConnected.into()) };
        let (path, head, body) = (self.path, &self.head, &self.body);
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: abide\r\n{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        reader.get_mut().write_all(request.as_bytes())?;
        let (mut line, mut status, mut after, mut length) = (String::new(), 0, None, 0);
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let text = line.trim_end();
            if text.is_empty() {
                break;
            }
            let lower = text.to_ascii_lowercase();
            if let Some(rest) = lower.strip_prefix("http/1.1 ") {
                status = rest.get(..3).and_then(|digits| digits.parse().ok()).unwrap_or(0);
            } else if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            } else if let Some(value) = lower.strip_prefix("retry-after:") {
                after = value.trim().parse().ok();
            }
        }
        reader.read_exact(&mut vec![0; length])?;
        Ok((status, after))
    }
}
