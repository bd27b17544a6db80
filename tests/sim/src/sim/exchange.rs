//! A request in flight: sent, lost, resent, delivered twice, answered late, completed once.

use std::task::{Context, Poll};

use abide_engine::Engine;
use abide_schema::wire::{ClientMessage, ServerMessage};
use abide_schema::{Code, Seq};
use serde_json::Value as JsonValue;

use super::session::{self, PendingWork};
use crate::checks::Finding;
use crate::checks::subscribers::broken;
use crate::rig::{self, SimReply, SimRequest};

/// One request, until its response is received.
pub(super) struct Exchange {
    pub(super) ask: SimRequest,
    /// Copies in flight to the server.
    pub(super) sent: u32,
    /// Copies that the server processes.
    running: Vec<PendingWork<String>>,
    /// Responses in flight.
    pub(super) answers: Vec<String>,
    /// How many polls passed without progress.
    pub(super) waited: u32,
}

/// The meaning of a response.
pub(super) enum ParsedReply {
    /// Done.
    Yes(SimReply, JsonValue),
    /// Refused for good.
    No,
    /// Unknown: retry.
    Perhaps,
}

impl Exchange {
    pub(super) fn new(ask: SimRequest) -> Exchange {
        Exchange { ask, sent: 1, running: Vec::new(), answers: Vec::new(), waited: 0 }
    }

    /// Whether no copy is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.sent == 0 && self.running.is_empty() && self.answers.is_empty()
    }

    /// The message, identical for each copy.
    fn text(&self) -> String {
        let id = self.ask.request_id.clone();
        let request_id = Some(self.ask.request_id.clone());
        let message = match self.ask.calls.as_slice() {
            [call] => {
                let reducer = call.reducer.clone();
                let args = call.args.clone();
                ClientMessage::Call { id, reducer, args, request_id }
            }
            calls => ClientMessage::Batch { id, calls: calls.to_vec(), request_id },
        };
        serde_json::to_string(&message).expect("a message serialises")
    }

    /// A copy arrives at the server.
    pub(super) fn arrive(&mut self, engine: &Engine) {
        self.sent -= 1;
        let caller = rig::caller(self.ask.caller);
        self.running.push(Box::pin(session::answer(engine.clone(), caller, self.text())));
    }

    /// Advances the server's work as far as possible.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let answers = &mut self.answers;
        let before = answers.len();
        self.running.retain_mut(|work| match work.as_mut().poll(context) {
            Poll::Ready(text) => {
                answers.push(text);
                false
            }
            Poll::Pending => true,
        });
        answers.len() > before
    }

    /// The server crashed: everything in flight is lost.
    pub(super) fn cut(&mut self) {
        (self.sent, self.running, self.answers) = (0, Vec::new(), Vec::new());
    }

    /// Parses a response.
    pub(super) fn read(text: &str) -> Result<ParsedReply, Finding> {
        let message: ServerMessage =
            serde_json::from_str(text).map_err(|why| broken(format!("{why}: {text}")))?;
        match message {
            ServerMessage::Result { seq, result, results, duplicate, .. } => {
                let calls: Vec<(Seq, JsonValue)> = match (result, results) {
                    (Some(result), _) => vec![(seq, result)],
                    (None, results) => {
                        let results = results.unwrap_or_default().into_iter();
                        results.map(|call| (call.seq, call.result)).collect()
                    }
                };
                let first = calls.first().map(|(_, result)| result.clone()).unwrap_or_default();
                let results =
                    calls.iter().map(|(seq, result)| (*seq, result.to_string())).collect();
                Ok(ParsedReply::Yes(SimReply { results, duplicate }, first))
            }
            ServerMessage::Error {
                code:
                    Code::RateLimited
                    | Code::Overloaded
                    | Code::Unavailable
                    | Code::DiskFull
                    | Code::EngineFailed,
                ..
            } => Ok(ParsedReply::Perhaps),
            ServerMessage::Error { code: Code::Internal, detail, .. } => {
                Err(Finding::new("no internal errors", detail))
            }
            ServerMessage::Error { .. } => Ok(ParsedReply::No),
            other => Err(broken(format!("{other:?} is not a response to a call"))),
        }
    }
}
