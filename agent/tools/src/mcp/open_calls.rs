//! The calls in progress on a connection, and the questions that a server of 2025-11-25 sends meanwhile.
//!
//! Such a question does not say which call it belongs to. It is accepted only while exactly one call is open: otherwise a
//! person could answer the question of another tenant's call. A call that waits for an answer keeps its connection for itself;
//! later calls use a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{ElicitRequestParams, ElicitResult};
use tokio::sync::{mpsc, oneshot};

/// A question of a server.
pub(super) struct Elicitation {
    pub(super) params: ElicitRequestParams,
    pub(super) reply: oneshot::Sender<ElicitResult>,
}

/// The open calls of a connection.
#[derive(Clone, Default)]
pub(super) struct OpenCalls(Arc<Mutex<Slots>>);

#[derive(Default)]
struct Slots {
    opened: u64,
    calls: BTreeMap<u64, mpsc::Sender<Elicitation>>,
}

/// A call that is open until this is dropped.
pub(super) struct OpenCall {
    calls: OpenCalls,
    number: u64,
    pub(super) questions: mpsc::Receiver<Elicitation>,
}

impl OpenCalls {
    /// Opens a call.
    pub(super) fn open(&self) -> OpenCall {
        // One question at a time: the server waits for each answer.
        let (sender, questions) = mpsc::channel(1);
        let mut slots = self.slots();
        slots.opened += 1;
        let number = slots.opened;
        slots.calls.insert(number, sender);
        drop(slots);
        OpenCall { calls: self.clone(), number, questions }
    }

    /// Passes a question to the only open call.
    ///
    /// # Errors
    /// Why it has no call.
    pub(super) fn ask(
        &self,
        params: ElicitRequestParams,
    ) -> Result<oneshot::Receiver<ElicitResult>, String> {
        let slots = self.slots();
        let mut calls = slots.calls.values();
        let (Some(call), None) = (calls.next(), calls.next()) else {
            let count = slots.calls.len();
            return Err(format!(
                "the server asked for input without naming the call, and {count} calls are in progress"
            ));
        };
        let (reply, answer) = oneshot::channel();
        let sent = call.try_send(Elicitation { params, reply });
        sent.map_err(|_| "the call has another question without an answer".to_owned())?;
        Ok(answer)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.calls.slots().calls.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> ElicitRequestParams {
        let question = serde_json::json!({"mode": "form", "message": "Who?",
            "requestedSchema": {"type": "object", "properties": {}}});
        serde_json::from_value(question).expect("a form")
    }

    #[test]
    fn a_question_is_passed_only_while_its_call_is_known() {
        let calls = OpenCalls::default();
        assert_eq!(
            calls.ask(question()).err().as_deref(),
            Some("the server asked for input without naming the call, and 0 calls are in progress")
        );
        let mut first = calls.open();
        let answer = calls.ask(question()).expect("one call is open");
        assert!(calls.ask(question()).is_err(), "the first question is not taken yet");
        assert!(first.questions.try_recv().is_ok());
        drop(answer);
        let second = calls.open();
        assert_eq!(
            calls.ask(question()).err().as_deref(),
            Some("the server asked for input without naming the call, and 2 calls are in progress")
        );
        drop(second);
        assert!(calls.ask(question()).is_ok());
    }
}
