//! An ask on its way: sent, lost, sent again, delivered twice, answered late, heard once.

use std::task::{Context, Poll};

use abide_engine::Engine;
use abide_schema::wire::{ClientMessage, ServerMessage};
use abide_schema::{Code, Seq};
use serde_json::Value as JsonValue;

use super::door::{self, Work};
use crate::checks::Finding;
use crate::checks::subscribers::broken;
use crate::rig::{self, Ask, Told};

/// One ask, until its answer was heard.
pub(super) struct Exchange {
    pub(super) ask: Ask,
    /// Copies on their way to the server.
    pub(super) sent: u32,
    /// Copies that the server works on.
    running: Vec<Work<String>>,
    /// Answers on their way back.
    pub(super) answers: Vec<String>,
    /// How long nothing has come, in looks at it.
    pub(super) waited: u32,
}

/// What an answer says.
pub(super) enum Said {
    /// It is done.
    Yes(Told, JsonValue),
    /// It will not be done.
    No,
    /// It may be done later, or have been done.
    Perhaps,
}

impl Exchange {
    pub(super) fn new(ask: Ask) -> Exchange {
        Exchange { ask, sent: 1, running: Vec::new(), answers: Vec::new(), waited: 0 }
    }

    /// Whether nothing of it is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.sent == 0 && self.running.is_empty() && self.answers.is_empty()
    }

    /// The message: the same each time that it is sent.
    fn text(&self) -> String {
        let (id, request_id) = (self.ask.request_id.clone(), Some(self.ask.request_id.clone()));
        let message = match self.ask.calls.as_slice() {
            [call] => {
                let (reducer, args) = (call.reducer.clone(), call.args.clone());
                ClientMessage::Call { id, reducer, args, request_id }
            }
            calls => ClientMessage::Batch { id, calls: calls.to_vec(), request_id },
        };
        serde_json::to_string(&message).expect("a message serialises")
    }

    /// A copy comes to the server.
    pub(super) fn arrive(&mut self, engine: &Engine) {
        self.sent -= 1;
        let caller = rig::caller(self.ask.caller);
        self.running.push(Box::pin(door::answer(engine.clone(), caller, self.text())));
    }

    /// Lets the server's work go on as far as it can.
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

    /// The server is gone, and with it all that was under way.
    pub(super) fn cut(&mut self) {
        (self.sent, self.running, self.answers) = (0, Vec::new(), Vec::new());
    }

    /// What an answer says.
    pub(super) fn read(text: &str) -> Result<Said, Finding> {
        let message: ServerMessage =
            serde_json::from_str(text).map_err(|why| broken(format!("{why}: {text}")))?;
        let text_of = |value: &JsonValue| value.to_string();
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
                let results = calls.iter().map(|(seq, result)| (*seq, text_of(result))).collect();
                Ok(Said::Yes(Told { results, duplicate }, first))
            }
            ServerMessage::Error {
                code: Code::Overloaded | Code::DiskFull | Code::Poisoned,
                ..
            } => Ok(Said::Perhaps),
            ServerMessage::Error { code: Code::Internal, detail, .. } => {
                Err(Finding::new("no internal errors", detail))
            }
            ServerMessage::Error { .. } => Ok(Said::No),
            other => Err(broken(format!("{other:?} is no answer to a call"))),
        }
    }
}
