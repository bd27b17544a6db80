//! Calls of servers of 2025-11-25 whose questions wait for an answer. Such a server waits on its connection, so this process keeps
//! the request open; the call itself is put back, and no worker holds it. If the process ends, the exchange is lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, CallToolResponse, ElicitResult, ElicitationAction};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::connection::Connection;
use super::open_calls::{Elicitation, OpenCall};
use crate::exchange::InputAnswer;

/// Calls of a server that wait at the same time. Each keeps a connection, which can be a process.
const PARKED: usize = 16;

/// The answer to a call.
type CallResult = Result<CallToolResponse, ServiceError>;

/// A request without an answer. Dropping it sends its cancellation.
pub(super) struct ParkedCall {
    pub(super) connection: Arc<Connection>,
    running: JoinHandle<CallResult>,
    /// Becomes true with the answer.
    ended: watch::Receiver<bool>,
    open: OpenCall,
    reply: Option<oneshot::Sender<ElicitResult>>,
}

impl ParkedCall {
    /// Sends a request.
    pub(super) fn begin(connection: &Arc<Connection>, params: CallToolRequestParams) -> ParkedCall {
        let (ending, ended) = watch::channel(false);
        let open = connection.open_calls.open();
        let peer = connection.peer().clone();
        let running: JoinHandle<CallResult> = tokio::spawn(async move {
            let result = peer.call_tool_once(params).await;
            ending.send_replace(true);
            result
        });
        ParkedCall { connection: Arc::clone(connection), running, ended, open, reply: None }
    }

    /// Returns the answer, or else the next question.
    pub(super) async fn next(&mut self) -> Result<CallResult, Elicitation> {
        tokio::select! {
            biased;
            Some(question) = self.open.questions.recv() => Err(question),
            ended = &mut self.running => {
                Ok(ended.unwrap_or(Err(ServiceError::TransportClosed)))
            }
        }
    }

    /// Answers the question that it waits for.
    pub(super) fn reply(&mut self, answer: &InputAnswer) {
        let result = match answer {
            InputAnswer::Accepted(content) => {
                let mut accepted = ElicitResult::new(ElicitationAction::Accept);
                accepted.content.clone_from(content);
                accepted
            }
            InputAnswer::Declined => ElicitResult::new(ElicitationAction::Decline),
            InputAnswer::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
        };
        // Without a receiver, the server has withdrawn the question.
        let _ = self.reply.take().map(|reply| reply.send(result));
    }

    /// Answers a question that no person can be asked.
    pub(super) fn decline(&self, question: Elicitation) {
        let _ = question.reply.send(ElicitResult::new(ElicitationAction::Cancel));
    }
}

impl Drop for ParkedCall {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// The parked calls of a server, by call id.
#[derive(Default)]
pub(super) struct ParkedCalls(Mutex<HashMap<String, ParkedCall>>);

impl ParkedCalls {
    /// Parks a call until its question is answered.
    ///
    /// # Errors
    /// The call and the question, if too many calls wait.
    pub(super) fn park(
        &self,
        call_id: &str,
        mut call: ParkedCall,
        question: Elicitation,
    ) -> Result<(), Box<(ParkedCall, Elicitation)>> {
        let mut calls = self.calls();
        if calls.len() >= PARKED {
            return Err(Box::new((call, question)));
        }
        call.reply = Some(question.reply);
        calls.insert(call_id.to_owned(), call);
        Ok(())
    }

    /// Takes a call out.
    pub(super) fn take(&self, call_id: &str) -> Option<ParkedCall> {
        self.calls().remove(call_id)
    }

    /// Ends all calls.
    pub(super) fn clear(&self) {
        self.calls().clear();
    }

    /// Becomes true with the answer to a parked call.
    pub(super) fn ended(&self, call_id: &str) -> Option<watch::Receiver<bool>> {
        self.calls().get(call_id).map(|call| call.ended.clone())
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, ParkedCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
