//! The results of a stream: server-sent events, each with one response of JSON-RPC.

use std::time::Duration;

use abide_sse::Parser;
use reqwest::{Response, Url};
use tokio::time::{Instant, timeout};

use super::failure::A2aFailure;
use super::response::{A2aEvent, ProtocolVersion, host, result_of};
use crate::public_address;

/// Maximum time without an event. Then the caller subscribes again: the connection may be dead, although a proxy keeps it open with
/// comments.
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
    events: Parser,
    version: ProtocolVersion,
    /// When the last event arrived, or the stream began.
    event_at: Instant,
}

impl A2aEvents {
    pub(super) fn new(
        url: Url,
        response: Response,
        max_bytes: usize,
        version: ProtocolVersion,
    ) -> A2aEvents {
        let events = Parser::new(max_bytes);
        let source = Source { url, response, events, version, event_at: Instant::now() };
        A2aEvents { source: Some(source), single: None }
    }

    pub(super) fn from_event(event: A2aEvent) -> A2aEvents {
        A2aEvents { source: None, single: Some(event) }
    }

    /// Returns the next result; `None` at the end of the stream. A call that is dropped loses nothing.
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
            if let Some(event) = self.events.next_event() {
                let event = event.map_err(|error| {
                    let host = host(&self.url);
                    let max = error.max_bytes;
                    A2aFailure::Invalid(format!("an event of {host} has more than {max} bytes"))
                })?;
                let data = event.text();
                // Servers send empty data to keep a connection open.
                if data.is_empty() {
                    continue;
                }
                self.event_at = Instant::now();
                return result_of(&self.url, data.into_owned(), self.version).map(Some);
            }
            let rest = IDLE.saturating_sub(self.event_at.elapsed());
            let chunk =
                if rest.is_zero() { None } else { timeout(rest, self.response.chunk()).await.ok() };
            let silent = || A2aFailure::Lost(format!("{}: the stream is silent", host(&self.url)));
            let chunk = chunk
                .ok_or_else(silent)?
                .map_err(|why| A2aFailure::Lost(public_address::failure(&host(&self.url), &why)))?;
            let Some(chunk) = chunk else { return Ok(None) };
            self.events.feed(&chunk);
        }
    }
}
