//! `/v1/agents/{name}/chat`: the UI message stream of the AI SDK, as `useChat` with its default transport speaks it.
//! The chat is a session, and each message of the assistant is a run.

use std::collections::HashSet;

use abide_schema::{Code, Refusal};
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};

use super::follow::{Encoder, Follower, stream_turn};
use super::start::{Decision, RunRow};
use super::thread::{self, ThreadInput};
use super::turn::{CallItem, Change, Content, ItemState, Turn, TurnEnd, Usage};
use crate::app_state::{AppState, SessionExtension};
use crate::body::RequestBody;
use crate::connections::lifecycle::ConnectionPermit;
use crate::problem::Problem;
use crate::routes::runs::path;

/// An example of a body.
const EXAMPLE_BODY: &str = r#"{"id": "CHAT", "trigger": "submit-message", "messages": [{"id": "m1",
    "role": "user", "parts": [{"type": "text", "text": "…"}]}]}"#;

#[derive(Debug, Deserialize)]
struct ChatRequest {
    /// The chat.
    id: String,
    /// Only the last one is read; the session has the others.
    messages: Vec<UiMessage>,
    trigger: Option<String>,
}

#[derive(Debug, Deserialize)]
struct UiMessage {
    id: Option<String>,
    role: String,
    parts: Vec<JsonValue>,
}

/// `POST`: a message of the user, or the user's decisions on tool calls.
pub(in crate::routes) async fn send(
    State(app): State<AppState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    agent: Result<Path<String>, PathRejection>,
    content: RequestBody,
) -> Result<Response, Problem> {
    let agent = path(agent, "name of the agent")?;
    let wanted: ChatRequest = content.envelope_in_turn(EXAMPLE_BODY).await?;
    let chat = wanted.id.clone();
    let input = read(wanted)?;
    let sent = thread::send(&app, &session.caller, &content, (agent, chat), input).await;
    drop(content);
    let (run, turns) = sent?;
    let follower = Follower::new(&app, session, &run, turns).await?;
    Ok(streamed(follower, &run, place))
}

/// `GET {id}/stream`: the last message of the assistant from its beginning, and its continuation.
pub(in crate::routes) async fn resume(
    State(app): State<AppState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let (agent, chat) = match names {
        Ok(Path(names)) => names,
        Err(_) => return Err(Refusal::new(Code::NotFound, "the path is not UTF-8").into()),
    };
    let run = thread::newest(&app, &session.caller, &chat).await?;
    let Some(run) = run.filter(|run| run.agent == agent) else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let follower = Follower::new(&app, session, &run, Turn::span(1, run.turn)).await?;
    Ok(streamed(follower, &run, place))
}

fn streamed(follower: Follower, run: &RunRow, place: ConnectionPermit) -> Response {
    let encoder = ChatEncoder { run_id: run.id.clone(), shown: HashSet::new() };
    let mut response = stream_turn(follower, encoder, place);
    let version = ("x-vercel-ai-ui-message-stream", HeaderValue::from_static("v1"));
    response.headers_mut().insert(version.0, version.1);
    response
}

fn read(wanted: ChatRequest) -> Result<ThreadInput, Refusal> {
    if wanted.trigger.as_deref() == Some("regenerate-message") {
        let detail = "a message of the assistant cannot be generated again";
        let hint = "send another message; a session has no branches";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    let bad = |detail: &str| {
        Refusal::new(Code::BadArguments, detail).hint(format!("send {EXAMPLE_BODY}"))
    };
    let last = wanted.messages.into_iter().last().ok_or_else(|| bad("there is no message"))?;
    match last.role.as_str() {
        "user" => {
            let mut text = String::new();
            for part in &last.parts {
                match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text"), Some(piece)) => text.push_str(piece),
                    _ => return Err(bad("each part of a message must be a text part")),
                }
            }
            let id = last.id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
            Ok(ThreadInput::Message { id, text })
        }
        "assistant" => {
            let decisions: Vec<Decision> = last.parts.iter().filter_map(decision).collect();
            if decisions.is_empty() {
                return Err(bad("the last message is neither of the user nor has a decision"));
            }
            Ok(ThreadInput::Decisions(decisions))
        }
        _ => Err(bad("the last message is not of the user or the assistant")),
    }
}

/// The user's decision on a tool call, if this part of a message has one that did not take effect yet.
fn decision(part: &JsonValue) -> Option<Decision> {
    if part["state"] != "approval-responded" {
        return None;
    }
    let approval = &part["approval"];
    Some(Decision {
        call_id: approval["id"].as_str()?.to_owned(),
        approve: approval["approved"].as_bool()?,
        comment: approval["reason"].as_str().map(str::to_owned),
        answer: None,
    })
}

/// Encodes a message of the assistant.
struct ChatEncoder {
    run_id: String,
    /// The items that the client got.
    shown: HashSet<usize>,
}

impl ChatEncoder {
    fn opened(&mut self, turn: &Turn, at: usize, out: &mut String) {
        let item = &turn.items[at];
        // A text that was replaced before this client could get it.
        if item.state == ItemState::Void {
            return;
        }
        self.shown.insert(at);
        match &item.content {
            Content::Message(_) => part("text-start", json!({"id": id(at)}), out),
            Content::Reasoning(_) => part("reasoning-start", json!({"id": id(at)}), out),
            // The client has it from the turn that requested it.
            Content::Call(call) if call.is_earlier => {}
            Content::Call(CallItem { call_id, name, arguments, .. }) => {
                let call = json!({"toolCallId": call_id, "toolName": name, "input": arguments,
                    "dynamic": true, "providerExecuted": true});
                part("tool-input-available", call, out);
            }
            // At the end: one that was decided is not shown again to a client that loads the chat.
            Content::Approval(_) => {}
        }
    }

    fn closed(&self, turn: &Turn, at: usize, out: &mut String) {
        match &turn.items[at].content {
            Content::Message(_) => part("text-end", json!({"id": id(at)}), out),
            Content::Reasoning(_) => part("reasoning-end", json!({"id": id(at)}), out),
            Content::Call(call) => {
                let common = |name: &str, text: &str| {
                    json!({"toolCallId": call.call_id, name: text, "dynamic": true,
                        "providerExecuted": true})
                };
                match &call.output {
                    Some((text, true)) => {
                        part("tool-output-error", common("errorText", text), out);
                    }
                    Some((text, false)) => {
                        part("tool-output-available", common("output", text), out);
                    }
                    None => {}
                }
            }
            Content::Approval(_) => {}
        }
    }

    fn ended(turn: &Turn, out: &mut String) {
        let usage = turn.usage.as_ref().map(usage);
        let finish = |reason: &str| json!({"finishReason": reason, "messageMetadata": usage});
        for call in turn.awaited_approvals() {
            let request = json!({"approvalId": call.call_id, "toolCallId": call.call_id});
            part("tool-approval-request", request, out);
        }
        part("finish-step", json!({}), out);
        match &turn.end {
            Some(TurnEnd::Failed { code, .. }) if code == "aborted" => {
                part("abort", json!({"reason": "the run was aborted"}), out);
            }
            Some(TurnEnd::Failed { code, message }) => {
                part("error", json!({"errorText": format!("{message} ({code})")}), out);
            }
            Some(TurnEnd::Waits(_)) => part("finish", finish("tool-calls"), out),
            Some(TurnEnd::Done) | None => part("finish", finish("stop"), out),
        }
        out.push_str("data: [DONE]\n\n");
    }
}

impl Encoder for ChatEncoder {
    fn encode(&mut self, turn: &Turn, change: &Change, out: &mut String) {
        match change {
            Change::Started => {
                let metadata = json!({"runId": self.run_id});
                let message = format!("msg_{}", self.run_id);
                let start = json!({"messageId": message, "messageMetadata": metadata});
                part("start", start, out);
                part("start-step", json!({}), out);
            }
            Change::Opened(at) => self.opened(turn, *at, out),
            Change::Text(at, _) | Change::Closed(at) if !self.shown.contains(at) => {}
            Change::Text(at, text) => {
                let kind = match turn.items[*at].is_message() {
                    true => "text-delta",
                    false => "reasoning-delta",
                };
                part(kind, json!({"id": id(*at), "delta": text}), out);
            }
            Change::Closed(at) => self.closed(turn, *at, out),
            Change::Waits | Change::Continues => {}
            Change::Ended => ChatEncoder::ended(turn, out),
        }
    }

    fn refuse(&mut self, refusal: &Refusal, out: &mut String) {
        part("error", json!({"errorText": refusal.to_string()}), out);
    }
}

fn id(at: usize) -> String {
    format!("item_{at}")
}

fn part(kind: &str, mut data: JsonValue, out: &mut String) {
    data["type"] = json!(kind);
    out.push_str(&format!("data: {data}\n\n"));
}

fn usage(usage: &Usage) -> JsonValue {
    json!({"usage": {"inputTokens": usage.input, "outputTokens": usage.output,
        "totalTokens": usage.input + usage.output, "cachedInputTokens": usage.cached,
        "reasoningTokens": usage.reasoning}})
}

#[cfg(test)]
mod tests {
    use super::super::turn::tests::events_of_a_decided_approval;
    use super::*;

    /// The stream of a loaded chat requests an approval only while the run waits for it.
    #[test]
    fn a_decided_approval_is_not_requested_again() {
        for (last, requests) in [(1, 1), (2, 0)] {
            let mut turn = Turn::span(1, last);
            let mut encoder = ChatEncoder { run_id: "r1".to_owned(), shown: HashSet::new() };
            let mut text = String::new();
            for event in events_of_a_decided_approval() {
                for change in turn.add(&event) {
                    encoder.encode(&turn, &change, &mut text);
                }
            }
            assert_eq!(text.matches("tool-approval-request").count(), requests, "{text}");
        }
    }
}
