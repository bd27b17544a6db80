//! A caller whose calls are timed: a thread with one connection that sends a request, waits for the
//! response and sends the next, as an agent's turn does. Its waits measure how the load affects
//! other callers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::CheckResult;
use crate::figures::percentile;
use crate::pace::pause_thread;

/// After this time a connection counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// The response times.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    /// Of each completed call, in milliseconds.
    pub(crate) ms: Vec<f64>,
    /// Calls that were refused with 429 or 503, and retried after Retry-After.
    pub(crate) refused: u64,
    /// Lost connections.
    pub(crate) lost: u64,
}

impl Latencies {
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

/// A running caller.
pub(crate) struct Caller {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<CheckResult<Latencies>>,
}

impl Caller {
    /// Starts to append messages to a session.
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
        let line = CallLoop { address, path, head, body, stop: Arc::clone(&stop) };
        Caller { stop, thread: thread::spawn(move || line.run()) }
    }

    /// Stops the caller; returns its response times.
    pub(crate) fn stop(self) -> CheckResult<Latencies> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err("the caller panicked".to_owned()))
    }
}

struct CallLoop {
    address: SocketAddr,
    path: &'static str,
    head: String,
    body: String,
    stop: Arc<AtomicBool>,
}

impl CallLoop {
    fn run(&self) -> CheckResult<Latencies> {
        let mut waits = Latencies::default();
        let mut stream = None;
        while !self.stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            // A refused call counts from its first attempt, because its caller waits from then on.
            while let Some(wait) = self.attempt(&mut stream, &mut waits)? {
                pause_thread(wait);
                if begun.elapsed() > PATIENCE {
                    return Err(format!("no response to a call within {PATIENCE:?}"));
                }
            }
            waits.ms.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(waits)
    }

    /// One attempt. Returns how long to wait before the next, if it was refused.
    fn attempt(
        &self,
        stream: &mut Option<BufReader<TcpStream>>,
        waits: &mut Latencies,
    ) -> CheckResult<Option<Duration>> {
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
            (status, after) => Err(format!("a call returned {status}, Retry-After {after:?}")),
        }
    }

    /// Sends a request. Returns the status and Retry-After, if present.
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
        let path = self.path;
        let head = &self.head;
        let body = &self.body;
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: abide\r\n{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        reader.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        let mut status = 0;
        let mut after = None;
        let mut length = 0;
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
