//! `/v1/agents/{name}/chat`: the UI message stream of the AI SDK, as `useChat` with its default transport speaks it.
//! The chat is a session, and each message of the assistant is a run.

use std::collections::HashSet;

use abide_schema::{Code, Refusal};
use abide_server::port::{ConnectionPermit, Problem, RequestBody, SessionExtension, path};
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};

use crate::call::{CallItem, CallStatus, Interrupt};
use crate::decision::{self, Decision};
use crate::follow::{Encoder, Follower, stream_turn};
use crate::start::RunRow;
use crate::state::ProtocolState;
use crate::thread::{self, NO_BRANCHES, ShownMessage, ThreadInput, ThreadRequest, UserMessage};
use crate::turn::{Change, Content, ItemState, Turn, TurnEnd, Usage, Wait};

/// An example of a body.
const EXAMPLE_BODY: &str = concat!(
    r#"{"id": "CHAT", "trigger": "submit-message", "#,
    r#""messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "…"}]}]}"#
);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChatRequest {
    /// The chat.
    id: String,
    /// The last one is the input. The others must be those of the session, as far as the client has them.
    messages: Vec<UiMessage>,
    trigger: Option<String>,
    /// The message that the client has replaced, or continues.
    message_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct UiMessage {
    id: Option<String>,
    role: String,
    parts: Vec<JsonValue>,
}

/// `POST`: a message of the user, or the user's decisions on tool calls.
pub(crate) async fn send(
    State(app): State<ProtocolState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    agent: Result<Path<String>, PathRejection>,
    content: RequestBody,
) -> Result<Response, Problem> {
    let agent = path(agent, "name of the agent")?;
    let wanted: ChatRequest = content.envelope_in_turn(EXAMPLE_BODY).await?;
    let request = read_request(agent, wanted)?;
    let rejected = rejected_calls(&request.input);
    let sent = thread::send(&app, &session.caller, &content, request).await;
    drop(content);
    let (run, turns) = sent?;
    let follower = Follower::new(&app, session, &run, turns).await?;
    Ok(streamed(follower, &run, rejected, place))
}

/// `GET {id}/stream`: the last message of the assistant from its beginning, and its continuation.
pub(crate) async fn resume(
    State(app): State<ProtocolState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let (agent, chat) = match names {
        Ok(Path(names)) => names,
        Err(_) => return Err(Refusal::new(Code::NotFound, "the path is not UTF-8").into()),
    };
    let run = thread::newest_run(&app, &session.caller, &chat).await?;
    let Some(run) = run.filter(|run| run.agent == agent) else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let follower = Follower::new(&app, session, &run, Turn::span(1, run.turn)).await?;
    Ok(streamed(follower, &run, HashSet::new(), place))
}

fn streamed(
    follower: Follower,
    run: &RunRow,
    rejected: HashSet<String>,
    place: ConnectionPermit,
) -> Response {
    let encoder = ChatEncoder { run_id: run.id.clone(), rejected, ..ChatEncoder::default() };
    let mut response = stream_turn(follower, encoder, place);
    let version = ("x-vercel-ai-ui-message-stream", HeaderValue::from_static("v1"));
    response.headers_mut().insert(version.0, version.1);
    response
}

fn bad_body(detail: &str) -> Refusal {
    Refusal::new(Code::BadArguments, detail).hint(format!("send {EXAMPLE_BODY}"))
}

fn read_request(agent: String, mut wanted: ChatRequest) -> Result<ThreadRequest, Refusal> {
    if wanted.trigger.as_deref() == Some("regenerate-message") {
        let detail = "a message of the assistant cannot be generated again";
        return Err(Refusal::new(Code::BadArguments, detail).hint(NO_BRANCHES));
    }
    let last = wanted.messages.pop().ok_or_else(|| bad_body("there is no message"))?;
    let input = match last.role.as_str() {
        "user" => {
            let id = last.id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
            // A client names a message of the user only if it has replaced one.
            if wanted.message_id.as_ref() == Some(&id) {
                let detail = format!("the message {id} cannot be edited");
                return Err(Refusal::new(Code::BadArguments, detail).hint(NO_BRANCHES));
            }
            let text = last
                .text()
                .ok_or_else(|| bad_body("each part of a message must be a text part"))?;
            ThreadInput::Message(UserMessage { id, text })
        }
        "assistant" => {
            let mut decisions = Vec::new();
            for part in &last.parts {
                decisions.extend(read_decision(part)?);
            }
            if decisions.is_empty() {
                return Err(bad_body("the last message is neither of the user nor has a decision"));
            }
            ThreadInput::Decisions(decisions, Vec::new())
        }
        _ => return Err(bad_body("the last message is not of the user or the assistant")),
    };
    let history = wanted.messages.iter().filter_map(UiMessage::to_shown).collect();
    Ok(ThreadRequest { agent, thread: wanted.id, history, input })
}

impl UiMessage {
    /// Its text; `None` if it has other parts.
    fn text(&self) -> Option<String> {
        let texts = self.parts.iter().map(|part| match (part["type"].as_str(), &part["text"]) {
            (Some("text"), JsonValue::String(text)) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Returns the message as a part of a history, if it has an id that says what it is.
    fn to_shown(&self) -> Option<ShownMessage> {
        let id = self.id.as_ref()?;
        match self.role.as_str() {
            "user" => Some(ShownMessage::User(UserMessage { id: id.clone(), text: self.text()? })),
            "assistant" => id.strip_prefix(MESSAGE).map(|run| ShownMessage::OfRun(run.to_owned())),
            _ => None,
        }
    }
}

/// The prefix of the ids of the assistant's messages; the id of the run follows.
const MESSAGE: &str = "msg_";

/// Returns the calls that the client has rejected. It shows them as denied, with the reason that it has.
fn rejected_calls(input: &ThreadInput) -> HashSet<String> {
    let decisions = match input {
        ThreadInput::Decisions(decisions, _) => decisions.as_slice(),
        ThreadInput::Message(_) => &[],
    };
    let rejected = decisions.iter().filter(|decision| !decision.approve);
    rejected.map(|decision| decision.call_id.clone()).collect()
}

/// Returns the user's decision on a tool call, if this part of a message has one that did not take effect yet.
fn read_decision(part: &JsonValue) -> Result<Option<Decision>, Refusal> {
    let approval = &part["approval"];
    let (Some(call_id), Some(approve)) = (approval["id"].as_str(), approval["approved"].as_bool())
    else {
        return Ok(None);
    };
    if part["state"] != "approval-responded" {
        return Ok(None);
    }
    let members = approval.as_object().into_iter().flatten();
    decision::check_members("the approval of a part", members, &APPROVAL_MEMBERS)?;
    let approved_arguments =
        decision::approved_arguments(APPROVED_ARGUMENTS, &approval[APPROVED_ARGUMENTS], None)?;
    Ok(Some(Decision {
        call_id: call_id.to_owned(),
        approve,
        comment: approval["reason"].as_str().map(str::to_owned),
        answer: None,
        approved_arguments,
    }))
}

/// The member of an approval with changed arguments. The AI SDK has none of its own.
const APPROVED_ARGUMENTS: &str = "approvedArguments";

/// The members of an approval. The AI SDK sets `isAutomatic`.
const APPROVAL_MEMBERS: [&str; 5] = ["id", "approved", "reason", APPROVED_ARGUMENTS, "isAutomatic"];

/// Encodes a message of the assistant.
///
/// A client continues after an approval only if no other call of the message is without an output. While a call waits for
/// its approval, the other calls of the answer do not start. So a call is kept back until it is known that it runs, and is
/// sent with its result if it had to wait.
#[derive(Debug, Default)]
struct ChatEncoder {
    run_id: String,
    /// The calls that this client has rejected.
    rejected: HashSet<String>,
    /// The items that the client got.
    shown: HashSet<usize>,
    /// Calls that may wait for the approval of another, with the time of the event that has requested them.
    held: Vec<(usize, i64)>,
    /// Calls that wait for the approval of another.
    deferred: HashSet<usize>,
}

impl ChatEncoder {
    fn encode_opened(&mut self, turn: &Turn, at: usize, out: &mut String) {
        let item = &turn.items[at];
        match &item.content {
            // At the end: one that was decided is not shown again to a client that loads the chat.
            Content::Approval(_) => {}
            // The client has it from the turn that asked for its approval.
            Content::Call(call) if call.is_earlier && call.needed_approval => {
                self.shown.insert(at);
            }
            Content::Call(_) => self.held.push((at, turn.event_at)),
            Content::Message(_) | Content::Reasoning(_) => {
                self.release(turn, out);
                // A text that was replaced before this client could get it.
                if item.state == ItemState::Void {
                    return;
                }
                self.shown.insert(at);
                let kind = if item.is_message() { "text-start" } else { "reasoning-start" };
                write_part(kind, json!({"id": item_id(at)}), out);
            }
        }
    }

    fn show_call(&mut self, turn: &Turn, at: usize, out: &mut String) {
        self.shown.insert(at);
        write_call(turn, at, out);
    }

    fn encode_closed(&mut self, turn: &Turn, at: usize, out: &mut String) {
        match &turn.items[at].content {
            Content::Message(_) if self.shown.contains(&at) => {
                write_part("text-end", json!({"id": item_id(at)}), out);
            }
            Content::Reasoning(_) if self.shown.contains(&at) => {
                write_part("reasoning-end", json!({"id": item_id(at)}), out);
            }
            Content::Call(call) => {
                self.show_before_result(turn, at, out);
                self.encode_outcome(call, out);
            }
            Content::Message(_) | Content::Reasoning(_) | Content::Approval(_) => {}
        }
    }

    /// The output of a call that has ended. What its text does not say is a part of its own.
    fn encode_outcome(&self, call: &CallItem, out: &mut String) {
        let Some(outcome) = &call.outcome else { return };
        let is_denied =
            outcome.status == CallStatus::Rejected && self.rejected.contains(&call.call_id);
        if is_denied {
            write_part("tool-output-denied", json!({"toolCallId": call.call_id}), out);
        } else {
            write_output(&call.call_id, &outcome.output, call.has_failed(), out);
        }
        if let Some(result) = call.result_details() {
            write_data_part("tool-result", &call.call_id, result, out);
        }
    }

    /// The arguments that run, in place of those of the model. A client cannot change a call of an earlier stream, so it gets them
    /// with the result.
    fn encode_edited(&self, turn: &Turn, at: usize, out: &mut String) {
        let is_here = match &turn.items[at].content {
            Content::Call(call) => !call.is_earlier && self.shown.contains(&at),
            _ => false,
        };
        if is_here {
            write_call(turn, at, out);
        }
    }

    /// Shows a call that has ended. Its result shows that the other calls run too, unless it was recorded with the
    /// request, as that of a call with wrong arguments.
    fn show_before_result(&mut self, turn: &Turn, at: usize, out: &mut String) {
        if self.deferred.remove(&at) {
            self.show_call(turn, at, out);
        }
        let Some(place) = self.held.iter().position(|(held, _)| *held == at) else { return };
        if self.held[place].1 < turn.event_at {
            self.release(turn, out);
        } else {
            self.held.remove(place);
            self.show_call(turn, at, out);
        }
    }

    /// The run waits. If it waits for approvals, it shows only the calls that need them: the others have not started.
    fn encode_wait(&mut self, turn: &Turn, out: &mut String) {
        let awaited: HashSet<&str> = call_ids(&turn.awaited_approvals());
        for (at, _) in std::mem::take(&mut self.held) {
            let needs_approval = match &turn.items[at].content {
                Content::Call(call) => awaited.contains(call.call_id.as_str()),
                _ => false,
            };
            if awaited.is_empty() || needs_approval {
                self.show_call(turn, at, out);
            } else {
                self.deferred.insert(at);
            }
        }
    }

    fn encode_end(&mut self, turn: &Turn, out: &mut String) {
        self.release(turn, out);
        let usage = turn.usage.as_ref().map(usage_to_json);
        let finish = |reason: &str| json!({"finishReason": reason, "messageMetadata": usage});
        let awaited = turn.awaited_approvals();
        if !awaited.is_empty() {
            self.suspend_running_calls(turn, &call_ids(&awaited), out);
        }
        for interrupt in awaited {
            let call_id = interrupt.call_id();
            let request = json!({"approvalId": call_id, "toolCallId": call_id});
            write_part("tool-approval-request", request, out);
            // The request itself has no place for the question.
            let mut data = interrupt.to_json();
            data["message"] = json!(interrupt.message());
            write_data_part("approval", call_id, data, out);
        }
        if let Some(data) = turn.waits.as_ref().and_then(describe_wait) {
            write_data_part("waiting", "waiting", data, out);
        }
        write_part("finish-step", json!({}), out);
        match &turn.end {
            Some(TurnEnd::Failed { code, .. }) if code == "aborted" => {
                write_part("abort", json!({"reason": "the run was aborted"}), out);
            }
            Some(TurnEnd::Failed { code, message }) => {
                write_part("error", json!({"errorText": format!("{message} ({code})")}), out);
            }
            Some(TurnEnd::Waits(_)) => write_part("finish", finish("tool-calls"), out),
            Some(TurnEnd::Done) | None => write_part("finish", finish("stop"), out),
        }
        out.push_str("data: [DONE]\n\n");
    }

    /// Gives calls that have begun an output for as long as the run waits: a call whose delegated run asks for an approval, for example.
    /// Without it the client would wait for their end before it sends the decisions. Their results replace it.
    fn suspend_running_calls(&self, turn: &Turn, awaited: &HashSet<&str>, out: &mut String) {
        for (at, item) in turn.items.iter().enumerate() {
            let Content::Call(call) = &item.content else { continue };
            let is_running = item.state == ItemState::Open && self.shown.contains(&at);
            if is_running && !awaited.contains(call.call_id.as_str()) {
                write_output(&call.call_id, "The call waits for a decision.", false, out);
            }
        }
    }
}

/// What a run waits for, unless it is only approvals, which have their own parts.
fn describe_wait(wait: &Wait) -> Option<JsonValue> {
    if wait.has_approvals && wait.unsettled.is_empty() {
        return None;
    }
    let mut calls = Vec::new();
    for call in &wait.unsettled {
        calls.push(json!({"toolCallId": call.call_id, "toolName": call.name,
            "input": call.arguments, "why": call.why_unknown()}));
    }
    let mut data = json!({"reason": wait.reason(), "message": wait.message(), "calls": calls});
    if let Some(handoff) = &wait.handoff {
        data["handoff"] = handoff.to_json();
    }
    Some(data)
}

fn call_ids<'a>(awaited: &[&'a Interrupt]) -> HashSet<&'a str> {
    awaited.iter().map(|interrupt| interrupt.call_id()).collect()
}

fn write_call(turn: &Turn, at: usize, out: &mut String) {
    if let Content::Call(CallItem { call_id, name, arguments, .. }) = &turn.items[at].content {
        let call = json!({"toolCallId": call_id, "toolName": name, "input": arguments,
            "dynamic": true, "providerExecuted": true});
        write_part("tool-input-available", call, out);
    }
}

fn write_output(call_id: &str, text: &str, is_error: bool, out: &mut String) {
    let mut data = json!({"toolCallId": call_id, "dynamic": true, "providerExecuted": true});
    if is_error {
        data["errorText"] = json!(text);
        write_part("tool-output-error", data, out);
    } else {
        data["output"] = json!(text);
        write_part("tool-output-available", data, out);
    }
}

impl Encoder for ChatEncoder {
    fn encode(&mut self, turn: &Turn, change: &Change, out: &mut String) {
        match change {
            Change::Started => {
                let metadata = json!({"runId": self.run_id});
                let message = format!("{MESSAGE}{}", self.run_id);
                let start = json!({"messageId": message, "messageMetadata": metadata});
                write_part("start", start, out);
                write_part("start-step", json!({}), out);
            }
            Change::Opened(at) => self.encode_opened(turn, *at, out),
            Change::Text(at, _) if !self.shown.contains(at) => {}
            Change::Text(at, text) => {
                let kind =
                    if turn.items[*at].is_message() { "text-delta" } else { "reasoning-delta" };
                write_part(kind, json!({"id": item_id(*at), "delta": text}), out);
            }
            Change::Edited(at) => self.encode_edited(turn, *at, out),
            Change::Closed(at) => self.encode_closed(turn, *at, out),
            Change::CallsRun => self.release(turn, out),
            Change::Waits => self.encode_wait(turn, out),
            Change::Continues => {}
            Change::Ended => self.encode_end(turn, out),
        }
    }

    fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    fn release(&mut self, turn: &Turn, out: &mut String) {
        for (at, _) in std::mem::take(&mut self.held) {
            self.show_call(turn, at, out);
        }
    }

    fn refuse(&mut self, refusal: &Refusal, out: &mut String) {
        write_part("error", json!({"errorText": refusal.to_string()}), out);
    }
}

fn item_id(at: usize) -> String {
    format!("item_{at}")
}

/// A part that pages can show in their own way. A later one with the same name and id replaces it.
fn write_data_part(name: &str, id: &str, data: JsonValue, out: &mut String) {
    write_part(&format!("data-{name}"), json!({"id": id, "data": data}), out);
}

fn write_part(kind: &str, mut data: JsonValue, out: &mut String) {
    data["type"] = json!(kind);
    out.push_str(&format!("data: {data}\n\n"));
}

fn usage_to_json(usage: &Usage) -> JsonValue {
    json!({"usage": {"inputTokens": usage.input, "outputTokens": usage.output,
        "totalTokens": usage.input + usage.output, "cachedInputTokens": usage.cached,
        "reasoningTokens": usage.reasoning}})
}

#[cfg(test)]
mod tests;
