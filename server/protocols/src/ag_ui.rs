//! `POST /v1/agents/{name}/ag-ui`: AG-UI. A thread is a session, and a run of the client is one or more turns of a run.
//! A pending approval is an interrupt, and `resume` decides on it.

use std::collections::{HashMap, HashSet};

use abide_engine::buffers::Reservation;
use abide_schema::{Code, Refusal};
use abide_server::port::{ConnectionPermit, Problem, RequestBody, SessionExtension, path};
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue, json};

use crate::call::{CallItem, CallOutcome};
use crate::decision::{self, Decision};
use crate::follow::{Encoder, Follower, stream_turn};
use crate::limits;
use crate::start::Settlement;
use crate::state::ProtocolState;
use crate::thread::{self, ShownMessage, ThreadInput, ThreadRequest, UserMessage};
use crate::turn::{Change, Content, ItemState, Turn, TurnEnd};

/// An example of a body.
const EXAMPLE_BODY: &str = concat!(
    r#"{"threadId": "t1", "runId": "r1", "#,
    r#""messages": [{"id": "m1", "role": "user", "content": "…"}]}"#
);

/// `RunAgentInput`. The agent has its own tools, and the session its own state.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunAgentInput {
    thread_id: String,
    run_id: String,
    /// The last message of the user is the input. Those after it tell what the client has of the answer. Those before it must be
    /// those of the session, as far as the client has them.
    #[serde(default)]
    messages: Vec<AgMessage>,
    resume: Option<Vec<ResumeEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgMessage {
    id: Option<String>,
    role: String,
    content: Option<JsonValue>,
    #[serde(default)]
    tool_calls: Vec<AgToolCall>,
    tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct AgToolCall {
    id: String,
}

/// The events that a client has of a run whose stream was interrupted. It adds each event to its messages, so it must not get
/// these again.
#[derive(Debug, Default)]
struct Seen {
    /// Texts by message; what of them is not repeated yet.
    texts: HashMap<String, String>,
    calls: HashSet<String>,
    results: HashSet<String>,
    /// Counts this for the caller.
    hold: Option<Reservation>,
}

impl Seen {
    /// Returns the events that a client with these messages has of the run of its last message.
    fn from_messages(messages: &[AgMessage], mut hold: Reservation) -> Result<Seen, Refusal> {
        let mut seen = Seen::default();
        let from = messages.iter().rposition(|message| message.role == "user").unwrap_or(0);
        for message in &messages[from..] {
            if message.role == "user" {
                continue;
            }
            if let (Some(id), Some(JsonValue::String(text))) = (&message.id, &message.content) {
                seen.texts.insert(id.clone(), text.clone());
            }
            seen.calls.extend(message.tool_calls.iter().map(|call| call.id.clone()));
            seen.results.extend(message.tool_call_id.clone());
        }
        let texts = seen.texts.iter().map(|(id, text)| id.len() + text.len());
        let ids = seen.calls.iter().chain(&seen.results).map(String::len);
        let bytes = texts.chain(ids).sum();
        if bytes > limits::TURN_UNCOUNTED_BYTES {
            hold.grow(bytes)?;
            seen.hold = Some(hold);
        }
        Ok(seen)
    }

    /// Returns the part of a piece of a text that the client does not have.
    fn take_unseen<'a>(&mut self, id: &str, piece: &'a str) -> &'a str {
        let Some(known) = self.texts.get_mut(id) else { return piece };
        let rest = match known.strip_prefix(piece) {
            Some(more) => {
                *known = more.to_owned();
                return "";
            }
            None => piece.strip_prefix(known.as_str()).unwrap_or(piece),
        };
        self.texts.remove(id);
        rest
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResumeEntry {
    interrupt_id: String,
    status: ResumeStatus,
    #[serde(default)]
    payload: JsonValue,
    #[serde(flatten)]
    others: Map<String, JsonValue>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum ResumeStatus {
    Resolved,
    Cancelled,
}

/// Runs the agent, or continues a run that waits. The same message of the same thread is the same run, so a client
/// that lost its connection repeats the request.
pub(crate) async fn run(
    State(app): State<ProtocolState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    agent: Result<Path<String>, PathRejection>,
    content: RequestBody,
) -> Result<Response, Problem> {
    let agent = path(agent, "name of the agent")?;
    let mut wanted: RunAgentInput = content.envelope_in_turn(EXAMPLE_BODY).await?;
    let run_of_client = std::mem::take(&mut wanted.run_id);
    let thread = wanted.thread_id.clone();
    let hold = app.engine.buffers().reserve(&session.caller);
    let seen = Seen::from_messages(&wanted.messages, hold)?;
    let request = read_request(agent, wanted)?;
    let sent = thread::send(&app, &session.caller, &content, request).await;
    drop(content);
    let (run, turns) = sent?;
    let follower = Follower::new(&app, session, &run, turns).await?;
    let encoder =
        AgUiEncoder { thread, run_of_client, run_id: run.id, seen, shown: HashSet::new() };
    Ok(stream_turn(follower, encoder, place))
}

fn bad_body(detail: &str) -> Refusal {
    Refusal::new(Code::BadArguments, detail).hint(format!("send {EXAMPLE_BODY}"))
}

fn read_request(agent: String, wanted: RunAgentInput) -> Result<ThreadRequest, Refusal> {
    let RunAgentInput { thread_id: thread, mut messages, resume, .. } = wanted;
    let resume = resume.unwrap_or_default();
    let input = if resume.is_empty() {
        let at = messages.iter().rposition(|message| message.role == "user");
        let at = at.ok_or_else(|| bad_body("there is no message of the user"))?;
        let last = messages.drain(at..).next();
        ThreadInput::Message(last.ok_or_else(|| bad_body("there is no message"))?.into_input()?)
    } else {
        let mut decisions = Vec::new();
        let mut settlements = Vec::new();
        for entry in resume {
            decision::check_members("an entry of resume", &entry.others, &ENTRY_MEMBERS)?;
            match read_settlement(&entry)? {
                Some(settlement) => settlements.push(settlement),
                None => decisions.push(read_decision(entry)?),
            }
        }
        ThreadInput::Decisions(decisions, settlements)
    };
    let history = messages.iter().filter_map(AgMessage::to_shown).collect();
    Ok(ThreadRequest { agent, thread, history, input })
}

impl AgMessage {
    /// Returns the text of a message of the user.
    fn text(&self) -> Result<String, Refusal> {
        match &self.content {
            Some(JsonValue::String(text)) => Ok(text.clone()),
            Some(JsonValue::Array(parts)) => {
                let mut whole = String::new();
                for part in parts {
                    match (part["type"].as_str(), part["text"].as_str()) {
                        (Some("text"), Some(text)) => whole.push_str(text),
                        _ => return Err(bad_body("each part of a message must be a text part")),
                    }
                }
                Ok(whole)
            }
            _ => Err(bad_body("the message of the user has no text")),
        }
    }

    fn into_input(self) -> Result<UserMessage, Refusal> {
        let text = self.text()?;
        Ok(UserMessage { id: self.id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string()), text })
    }

    /// Returns the message as a part of a history, if it has an id that says what it is.
    fn to_shown(&self) -> Option<ShownMessage> {
        let id = self.id.as_ref()?;
        if self.role == "user" {
            return Some(ShownMessage::User(UserMessage {
                id: id.clone(),
                text: self.text().ok()?,
            }));
        }
        let of_run = id.strip_prefix("msg_").or_else(|| id.strip_prefix("rs_"))?;
        let (number, run) = of_run.split_once('_')?;
        number.parse::<u64>().ok()?;
        Some(ShownMessage::OfRun(run.to_owned()))
    }
}

/// The arguments of a settlement.
const OUTCOME: [&str; 4] = ["outcome", "result", "error", "evidence"];

/// The members of an entry of `resume`. The protocol lets `metadata` be anything.
const ENTRY_MEMBERS: [&str; 4] = ["interruptId", "status", "payload", "metadata"];

/// Returns the outcome of a call, if the answer has one.
fn read_settlement(entry: &ResumeEntry) -> Result<Option<Settlement>, Refusal> {
    let payload = entry.payload.as_object().filter(|_| entry.status == ResumeStatus::Resolved);
    let Some(payload) = payload.filter(|payload| payload.contains_key("outcome")) else {
        return Ok(None);
    };
    decision::check_members("the payload of a settlement", payload, &OUTCOME)?;
    let known = payload.iter().filter(|(_, value)| !value.is_null());
    let outcome = known.map(|(name, value)| (name.clone(), value.clone())).collect();
    Ok(Some(Settlement { call_id: entry.interrupt_id.clone(), outcome }))
}

/// The member of a payload with the arguments that the approver has edited.
const EDITED: &str = "editedArgs";

/// The members of the payload of a decision.
const PAYLOAD_MEMBERS: [&str; 4] = ["approved", "reason", "answer", EDITED];

/// Returns an answer to an interrupt. An abandoned one is a rejection.
fn read_decision(entry: ResumeEntry) -> Result<Decision, Refusal> {
    let ResumeEntry { interrupt_id, status, payload, others: _ } = entry;
    let members = payload.as_object().into_iter().flatten();
    decision::check_members("the payload of an interrupt", members, &PAYLOAD_MEMBERS)?;
    let approved = payload.as_bool().or_else(|| payload["approved"].as_bool());
    let approve = match (status, approved) {
        (ResumeStatus::Cancelled, Some(true)) => {
            let detail = "a cancelled interrupt is a rejection, but its payload approves";
            let hint = r#"send the status "resolved" to approve, or no payload"#;
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
        }
        (ResumeStatus::Cancelled, _) => false,
        (ResumeStatus::Resolved, Some(approve)) => approve,
        (ResumeStatus::Resolved, None) => {
            let detail = "the payload of a resolved interrupt does not say whether it is approved";
            let hint = r#"send  "payload": {"approved": true}"#;
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
        }
    };
    let comment = payload["reason"].as_str().map(str::to_owned);
    let answer = payload.get("answer").cloned();
    let approved_arguments =
        decision::approved_arguments(EDITED, &payload[EDITED], answer.as_ref())?;
    Ok(Decision { call_id: interrupt_id, approve, comment, answer, approved_arguments })
}

/// Encodes the events of a run.
struct AgUiEncoder {
    thread: String,
    run_of_client: String,
    run_id: String,
    seen: Seen,
    /// The items that the client got.
    shown: HashSet<usize>,
}

impl AgUiEncoder {
    /// Returns the id of an item. It is the same in all streams of the run.
    fn item_id(&self, turn: &Turn, at: usize) -> String {
        let item = &turn.items[at];
        let prefix = match &item.content {
            Content::Message(_) => "msg",
            Content::Reasoning(_) => "rs",
            Content::Call(call) => return format!("result_{}", call.call_id),
            Content::Approval(interrupt) => return format!("result_{}", interrupt.call_id()),
        };
        format!("{prefix}_{}_{}", item.opened_by, self.run_id)
    }

    fn encode_opened(&mut self, turn: &Turn, at: usize, out: &mut String) {
        let item = &turn.items[at];
        // A text that was replaced before this client could get it.
        if item.state == ItemState::Void {
            return;
        }
        self.shown.insert(at);
        let id = self.item_id(turn, at);
        match &item.content {
            Content::Message(_) => {
                let start = json!({"messageId": id, "role": "assistant"});
                write_event("TEXT_MESSAGE_START", start, out);
            }
            Content::Reasoning(_) => {
                write_event("REASONING_START", json!({"messageId": id}), out);
                let start = json!({"messageId": id, "role": "reasoning"});
                write_event("REASONING_MESSAGE_START", start, out);
            }
            // The client has it from the turn that requested it.
            Content::Call(call) if call.is_earlier || self.seen.calls.contains(&call.call_id) => {}
            Content::Call(CallItem { call_id, name, arguments, .. }) => {
                let start = json!({"toolCallId": call_id, "toolCallName": name});
                write_event("TOOL_CALL_START", start, out);
                let text = match arguments {
                    JsonValue::String(text) => text.clone(),
                    other => other.to_string(),
                };
                write_event("TOOL_CALL_ARGS", json!({"toolCallId": call_id, "delta": text}), out);
                write_event("TOOL_CALL_END", json!({"toolCallId": call_id}), out);
            }
            // An interrupt at the end of the run.
            Content::Approval(_) => {}
        }
    }

    fn encode_closed(&self, turn: &Turn, at: usize, out: &mut String) {
        let id = self.item_id(turn, at);
        match &turn.items[at].content {
            Content::Message(_) => write_event("TEXT_MESSAGE_END", json!({"messageId": id}), out),
            Content::Reasoning(_) => {
                write_event("REASONING_MESSAGE_END", json!({"messageId": id}), out);
                write_event("REASONING_END", json!({"messageId": id}), out);
            }
            Content::Call(call) => {
                if let Some(outcome) = &call.outcome
                    && !self.seen.results.contains(&call.call_id)
                {
                    write_tool_result(call, outcome, &id, out);
                }
            }
            Content::Approval(_) => {}
        }
    }

    fn encode_end(&self, turn: &Turn, out: &mut String) {
        let outcome = match &turn.end {
            Some(TurnEnd::Failed { code, .. }) if code == "aborted" => json!({"type": "cancelled"}),
            Some(TurnEnd::Failed { code, message }) => {
                return write_event("RUN_ERROR", json!({"message": message, "code": code}), out);
            }
            Some(TurnEnd::Waits(reason)) => {
                json!({"type": "interrupt", "interrupts": self.interrupts(turn, reason)})
            }
            Some(TurnEnd::Done) | None => json!({"type": "success"}),
        };
        let finished = json!({"threadId": self.thread, "runId": self.run_of_client,
            "outcome": outcome});
        write_event("RUN_FINISHED", finished, out);
    }

    /// Returns the approvals that wait, or what else the run waits for.
    fn interrupts(&self, turn: &Turn, reason: &str) -> Vec<JsonValue> {
        let mut all = Vec::new();
        for interrupt in turn.awaited_approvals() {
            let call_id = interrupt.call_id();
            let mut entry = json!({"id": call_id, "reason": "tool_call", "toolCallId": call_id,
                "message": interrupt.message(), "metadata": interrupt.to_json(),
                "responseSchema": {"type": "object", "required": ["approved"], "properties": {
                    "approved": {"type": "boolean"}, "reason": {"type": "string"}}}});
            match interrupt.form() {
                Some(form) => entry["responseSchema"]["properties"]["answer"] = form.clone(),
                None => entry["responseSchema"]["properties"][EDITED] = json!({"type": "object"}),
            }
            if let Some(expires_at) = interrupt.expires_at() {
                entry["expiresAt"] = json!(expires_at);
            }
            all.push(entry);
        }
        for call in turn.waits.iter().flat_map(|wait| &wait.unsettled) {
            let message = format!(
                "whether the call of {} had an effect is unknown: {}",
                call.name,
                call.why_unknown()
            );
            all.push(json!({"id": call.call_id, "reason": "settlement",
                "toolCallId": call.call_id, "message": message,
                "responseSchema": {"type": "object", "required": ["outcome"], "properties": {
                    "outcome": {"enum": ["succeeded", "failed"]}, "result": {},
                    "error": {"type": "string"}, "evidence": {}}}}));
        }
        if all.is_empty() {
            let message = match &turn.waits {
                Some(wait) => wait.message(),
                None => format!("the run waits for {reason}"),
            };
            let mut entry = json!({"id": self.run_id, "reason": reason, "message": message});
            if let Some(handoff) = turn.waits.as_ref().and_then(|wait| wait.handoff.as_ref()) {
                entry["metadata"] = handoff.to_json();
            }
            all.push(entry);
        }
        all
    }
}

impl Encoder for AgUiEncoder {
    fn encode(&mut self, turn: &Turn, change: &Change, out: &mut String) {
        match change {
            Change::Started => {
                let started = json!({"threadId": self.thread, "runId": self.run_of_client});
                write_event("RUN_STARTED", started, out);
            }
            Change::Opened(at) => self.encode_opened(turn, *at, out),
            Change::Text(at, _) | Change::Closed(at) if !self.shown.contains(at) => {}
            Change::Text(at, text) => {
                let kind = if turn.items[*at].is_message() {
                    "TEXT_MESSAGE_CONTENT"
                } else {
                    "REASONING_MESSAGE_CONTENT"
                };
                let id = self.item_id(turn, *at);
                match self.seen.take_unseen(&id, text) {
                    "" => {}
                    rest => write_event(kind, json!({"messageId": id, "delta": rest}), out),
                }
            }
            Change::Closed(at) => self.encode_closed(turn, *at, out),
            // The result has the arguments that ran: the protocol cannot change those of a call.
            Change::Edited(_) | Change::CallsRun | Change::Waits | Change::Continues => {}
            Change::Ended => self.encode_end(turn, out),
        }
    }

    fn refuse(&mut self, refusal: &Refusal, out: &mut String) {
        let error = json!({"message": refusal.to_string(), "code": refusal.code.as_str()});
        write_event("RUN_ERROR", error, out);
    }
}

/// The result of a call. What its text does not say is an event of its own before it.
fn write_tool_result(call: &CallItem, outcome: &CallOutcome, id: &str, out: &mut String) {
    if let Some(result) = call.result_details() {
        write_event("CUSTOM", json!({"name": "tool_result", "value": result}), out);
    }
    let result = json!({"messageId": id, "toolCallId": call.call_id,
        "content": outcome.labelled_output(), "role": "tool"});
    write_event("TOOL_CALL_RESULT", result, out);
}

fn write_event(kind: &str, mut data: JsonValue, out: &mut String) {
    data["type"] = json!(kind);
    out.push_str(&format!("data: {data}\n\n"));
}
