//! The common part of the protocols over JSON-RPC: Abide is the client of a program, initialises it, opens a session, sends
//! one prompt, and answers requests for decisions. A decision is for one call, and cannot change its arguments.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Decision;
use super::json_rpc::{
    INVALID, NOT_OFFERED, Outgoing, error_response, request, request_failure, response,
};
use crate::event::{ErrorKind, Failure, NoticeCode, ProgramEvent, ProgramResult, Usage};
use crate::parser::{Session, notice, reason, status};
use crate::prompt::Prompt;

/// The ids of our requests: each is sent once.
pub(super) const INITIALIZE: u64 = 0;
pub(super) const SESSION: u64 = 1;
pub(super) const PROMPT: u64 = 2;
/// Ends the turn while another request may be open.
pub(super) const INTERRUPT: u64 = 3;

/// The client of one program. `A` is what the answer to a request for a decision needs.
#[derive(Debug)]
pub(super) struct JsonRpcClient<A> {
    /// The absolute path of the working directory.
    pub(super) folder: String,
    /// The session to continue.
    pub(super) resumes: Option<String>,
    pub(super) prompt: String,
    pub(super) session: Session,
    pub(super) outgoing: Outgoing,
    /// The request that is not answered yet. The next one is sent when the answer has arrived.
    awaited: Option<u64>,
    /// The method of the last request.
    method: String,
    /// Whether the turn was interrupted.
    pub(super) interrupted: bool,
    /// Pending requests for decisions: the id as it was sent, and what its answer needs.
    pending: BTreeMap<String, (Value, A)>,
}

impl<A> Default for JsonRpcClient<A> {
    fn default() -> Self {
        Self::new(String::new(), None)
    }
}

impl<A> JsonRpcClient<A> {
    pub(super) fn new(folder: String, resumes: Option<String>) -> Self {
        Self {
            folder,
            resumes,
            prompt: String::new(),
            session: Session::default(),
            outgoing: Outgoing::default(),
            awaited: Some(INITIALIZE),
            method: "initialize".to_owned(),
            interrupted: false,
            pending: BTreeMap::new(),
        }
    }

    /// Returns the first request. `params` are those of the protocol, without the name of this client.
    pub(super) fn opening(&mut self, prompt: &Prompt, mut params: Value) -> String {
        self.prompt = prompt.layout();
        let version = env!("CARGO_PKG_VERSION");
        params["clientInfo"] = json!({"name": "abide", "title": "Abide", "version": version});
        request(INITIALIZE, "initialize", params)
    }

    /// Sends the next request.
    pub(super) fn ask(&mut self, id: u64, method: &str, params: Value) {
        self.awaited = Some(id);
        method.clone_into(&mut self.method);
        self.outgoing.push(request(id, method, params));
    }

    /// Returns our request that an answer belongs to. An answer that is repeated, or that nobody asked for, belongs to none:
    /// the next request would be sent twice.
    pub(super) fn match_answer(&mut self, id: &Value) -> Option<u64> {
        let id = request_number(id);
        self.awaited.take_if(|awaited| Some(*awaited) == id)
    }

    /// Returns the event for an answer that does not have the id of the open request. An error, or the end of a turn,
    /// belongs to the open request nevertheless, and no other answer follows: so the run has failed. An answer that is
    /// repeated, comes early, or is that of a request that was never sent has no effect.
    pub(super) fn unexpected_answer(
        &mut self,
        id: &Value,
        result: Result<&Value, &Value>,
        message: &Value,
    ) -> ProgramEvent {
        let is_known = request_number(id).is_some_and(|id| id <= PROMPT);
        let is_of_open_request = match (self.awaited, result) {
            (None, _) => false,
            (Some(awaited), _) if is_known && awaited != PROMPT => false,
            // The turn can be ended while its start is not yet confirmed.
            (_, Err(_)) if request_number(id) == Some(INTERRUPT) && self.method == "turn/start" => {
                false
            }
            // A program may also log objects that have an error.
            (_, Err(error)) => {
                !id.is_null() || message["jsonrpc"] == "2.0" || error["code"].is_i64()
            }
            (Some(awaited), Ok(result)) => awaited == PROMPT && result["stopReason"].is_string(),
        };
        if !is_of_open_request {
            return match result {
                Err(error) if id.is_null() => {
                    notice(NoticeCode::Reported, reason(error, "the program reported an error"))
                }
                _ => status(message.clone()),
            };
        }
        self.awaited = None;
        let method = &self.method;
        ProgramEvent::Error(match result {
            Err(error) => request_failure(method, error),
            Ok(_) => {
                let why = format!("{method} failed: the program answered with the id {id}");
                Failure::new(ErrorKind::BadModelOutput, why)
            }
        })
    }

    /// The program has opened its session, a `what`. Returns the id if the prompt can be sent.
    pub(super) fn record_session(
        &mut self,
        session: Option<String>,
        what: &str,
        events: &mut Vec<ProgramEvent>,
    ) -> Option<String> {
        let Some(session) = session else {
            let why = format!("the program opened a {what} without an id");
            events.push(ProgramEvent::Error(Failure::new(ErrorKind::BadModelOutput, why)));
            return None;
        };
        events.extend(self.session.update(Some(&session)));
        if self.interrupted {
            let why = "the run was interrupted before the program had its prompt";
            events.push(ProgramEvent::Error(Failure::new(ErrorKind::Cancelled, why)));
            return None;
        }
        Some(session)
    }

    /// The program asks for a decision. Returns the id of the request; `None` if it is answered at once: a request with
    /// this id is pending, or the turn was interrupted, for which `cancelled` is the answer. The pending request is withdrawn:
    /// the program would take the answer to one for the answer to the other.
    pub(super) fn open_approval(
        &mut self,
        id: &Value,
        approval: A,
        cancelled: Value,
        events: &mut Vec<ProgramEvent>,
    ) -> Option<String> {
        let request_id = id.to_string();
        if self.pending.remove(&request_id).is_some() {
            self.outgoing.push(error_response(id, INVALID, "a request with this id is pending"));
            let why = format!("the program used request id {request_id} again: it is denied");
            events.push(notice(NoticeCode::Denied, why));
            events.push(ProgramEvent::ApprovalWithdrawn { request_id });
            return None;
        }
        if self.interrupted {
            self.outgoing.push(response(id, cancelled));
            return None;
        }
        self.pending.insert(request_id.clone(), (id.clone(), approval));
        Some(request_id)
    }

    /// Removes a pending request that is being decided.
    pub(super) fn take_approval(&mut self, request_id: &str) -> Option<(Value, A)> {
        self.pending.remove(request_id)
    }

    /// Denies the pending requests that meet a condition, and withdraws them: what they ask for has changed since they were
    /// shown. `denied` is the answer.
    pub(super) fn deny_changed(
        &mut self,
        has_changed: impl Fn(&A) -> bool,
        denied: impl Fn(&A) -> Value,
        events: &mut Vec<ProgramEvent>,
    ) {
        let changed = self.pending.extract_if(.., |_, (_, approval)| has_changed(approval));
        for (request_id, (id, approval)) in changed {
            self.outgoing.push(response(&id, denied(&approval)));
            let why = "the program changed a call while its approval was open: it is denied";
            events.push(notice(NoticeCode::Denied, why));
            events.push(ProgramEvent::ApprovalWithdrawn { request_id });
        }
    }

    /// The program no longer waits for this decision.
    pub(super) fn withdraw(&mut self, request_id: String) -> Option<ProgramEvent> {
        self.pending.remove(&request_id)?;
        Some(ProgramEvent::ApprovalWithdrawn { request_id })
    }

    /// The turn has ended: the program waits for no decision any more.
    pub(super) fn withdraw_all(&mut self) -> impl Iterator<Item = ProgramEvent> {
        let pending = std::mem::take(&mut self.pending).into_keys();
        pending.map(|request_id| ProgramEvent::ApprovalWithdrawn { request_id })
    }

    /// Interrupts the turn, and withdraws all pending requests. `cancelled` is the answer to each of them.
    pub(super) fn interrupt(&mut self, cancelled: impl Fn(&A) -> Value) -> super::Reply {
        self.interrupted = true;
        let mut reply = super::Reply::default();
        for (request_id, (id, approval)) in std::mem::take(&mut self.pending) {
            reply.text.push_str(&response(&id, cancelled(&approval)));
            reply.events.push(ProgramEvent::ApprovalWithdrawn { request_id });
        }
        reply
    }

    /// Refuses a request that this client does not offer.
    pub(super) fn refuse(&mut self, id: &Value, method: &str) {
        let why = format!("{method} is not offered by this client");
        self.outgoing.push(error_response(id, NOT_OFFERED, &why));
    }

    /// Returns the answer of the turn.
    pub(super) fn answer(
        &self,
        text: String,
        usage: Option<Usage>,
        details: Value,
    ) -> ProgramResult {
        let session_id = self.session.id().map(str::to_owned);
        ProgramResult { text, usage, session_id, details, ..ProgramResult::default() }
    }
}

/// Returns an id of ours. Some programs return it as a text.
fn request_number(id: &Value) -> Option<u64> {
    match id {
        Value::String(id) => id.parse().ok(),
        id => id.as_u64(),
    }
}

/// The effect of a decision where arguments cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PermissionOutcome {
    pub(super) allowed: bool,
    pub(super) interrupts: bool,
}

impl PermissionOutcome {
    /// Returns the ruling for a call with these arguments. A decision that changes them is a denial, with a notice.
    pub(super) fn from_decision(
        decision: Decision,
        arguments: &Value,
        events: &mut Vec<ProgramEvent>,
    ) -> PermissionOutcome {
        match decision {
            Decision::Allow { input } if input.as_ref().is_none_or(|input| input == arguments) => {
                PermissionOutcome { allowed: true, interrupts: false }
            }
            Decision::Allow { .. } => {
                let why = "the protocol cannot change the arguments of a call: it is denied";
                events.push(notice(NoticeCode::Denied, why));
                PermissionOutcome { allowed: false, interrupts: false }
            }
            Decision::Deny { interrupt, .. } => {
                PermissionOutcome { allowed: false, interrupts: interrupt }
            }
        }
    }
}
