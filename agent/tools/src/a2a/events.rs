//! The results of a stream: server-sent events, each with one response of JSON-RPC.

use std::time::Duration;

use reqwest::{Response, Url};

use super::failure::A2aFailure;
use super::response::{A2aEvent, host, result_of};
use crate::public_address;

/// Maximum time without a byte. Then the caller subscribes again: the connection may be dead.
const IDLE: Duration = Duration::from_secs(300);

/// A stream of results.
#[derive(Debug)]
pub struct A2aEvents {
    source: Option<Source>,
    /// The only result of an agent that answered without a stream.
    single: Option<A2aEvent>,
}

#[derive(Debug)]
struct Source {
    url: Url,
    response: Response,
    /// The bytes that are not read yet.
    bytes: Vec<u8>,
    /// How many of them contain no end of a line.
    searched: usize,
    /// The data of the current event.
    data: String,
    max_bytes: usize,
    is_legacy: bool,
}

impl A2aEvents {
    pub(super) fn new(
        url: Url,
        response: Response,
        max_bytes: usize,
        is_legacy: bool,
    ) -> A2aEvents {
        let (bytes, data) = (Vec::new(), String::new());
        let source = Source { url, response, bytes, searched: 0, data, max_bytes, is_legacy };
        A2aEvents { source: Some(source), single: None }
    }

    pub(super) fn of(event: A2aEvent) -> A2aEvents {
        A2aEvents { source: None, single: Some(event) }
    }

    /// The next result; `None` at the end of the stream. A call that is dropped loses nothing.
    ///
    /// # Errors
    /// [`A2aFailure::Lost`] if the connection is lost.
    pub async fn next(&mut self) -> Result<Option<A2aEvent>, A2aFailure> {
        match &mut self.source {
            Some(source) => source.next().await,
            None => Ok(self.single.take()),
        }
    }
}

impl Source {
    async fn next(&mut self) -> Result<Option<A2aEvent>, A2aFailure> {
        loop {
            while let Some(line) = self.line() {
                if line.is_empty() && !self.data.is_empty() {
                    let data = std::mem::take(&mut self.data);
                    return result_of(&self.url, data, self.is_legacy).map(Some);
                }
                if let Some(data) = line.strip_prefix("data:") {
                    if !self.data.is_empty() {
                        self.data.push('\n');
                    }
                    self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
                }
            }
            let lost = |why: String| A2aFailure::Lost(format!("{}: {why}", host(&self.url)));
            let chunk = tokio::time::timeout(IDLE, self.response.chunk()).await;
            let chunk = chunk.map_err(|_| lost("the stream is silent".to_owned()))?;
            let chunk = chunk
                .map_err(|why| A2aFailure::Lost(public_address::failure(&host(&self.url), &why)))?;
            let Some(chunk) = chunk else { return Ok(None) };
            if self.bytes.len() + self.data.len() + chunk.len() > self.max_bytes {
                let (host, most) = (host(&self.url), self.max_bytes);
                let why = format!("an event of {host} has more than {most} bytes");
                return Err(A2aFailure::Invalid(why));
            }
            self.bytes.extend_from_slice(&chunk);
        }
    }

    /// The next complete line, without its end.
    fn line(&mut self) -> Option<String> {
        let found = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(at) = found.map(|at| at + self.searched) else {
            self.searched = self.bytes.len();
            return None;
        };
        let mut line: Vec<u8> = self.bytes.drain(..=at).collect();
        self.searched = 0;
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}
