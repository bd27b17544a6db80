//! A turn as a response object, and its changes as the events of a stream.
//!
//! Each event has a `sequence_number` that depends on the events of the run only, so that a client can continue after
//! the last number that it has.

use abide_schema::Refusal;
use serde_json::{Value as JsonValue, json};

use super::request::APPROVAL;
use super::response_id;
use crate::call::CallItem;
use crate::follow::Encoder;
use crate::start::RunRow;
use crate::turn::{Change, Content, Item, ItemState, Turn, TurnEnd, Usage};

/// What a response repeats of its request.
#[derive(Clone, Debug)]
pub(super) struct Echo {
    /// The text of the request, or null.
    pub(super) instructions: JsonValue,
    /// Of the session.
    pub(super) metadata: JsonValue,
}

/// Encodes one response.
pub(super) struct ResponseEncoder {
    id: String,
    /// The run and the turn, for the ids of items.
    name: String,
    agent: String,
    previous: Option<String>,
    created_at: i64,
    echo: Echo,
    /// The number of the next event.
    sequence: i64,
    /// The last event that the client has.
    after: i64,
}

impl ResponseEncoder {
    pub(super) fn new(
        run: &RunRow,
        turn: i64,
        previous: Option<String>,
        echo: Echo,
    ) -> ResponseEncoder {
        ResponseEncoder {
            id: response_id(&run.id, turn),
            name: format!("{turn}_{}", run.id),
            agent: run.agent.clone(),
            previous,
            created_at: run.created_at,
            echo,
            sequence: 0,
            after: -1,
        }
    }

    /// Sends only the events after a sequence number.
    pub(super) fn after(self, after: i64) -> ResponseEncoder {
        ResponseEncoder { after, ..self }
    }

    /// Returns the whole response.
    pub(super) fn to_json(&self, turn: &Turn) -> JsonValue {
        let output =
            (0..turn.items.len()).map(|at| self.item_to_json(turn, at)).collect::<Vec<_>>();
        let (status, error, incomplete) = match &turn.end {
            None => ("in_progress", JsonValue::Null, JsonValue::Null),
            Some(TurnEnd::Done) => ("completed", JsonValue::Null, JsonValue::Null),
            Some(TurnEnd::Waits(reason)) => {
                if !turn.awaited_approvals().is_empty() {
                    ("completed", JsonValue::Null, JsonValue::Null)
                } else {
                    ("incomplete", JsonValue::Null, json!({"reason": reason}))
                }
            }
            Some(TurnEnd::Failed { code, .. }) if code == "aborted" => {
                ("cancelled", JsonValue::Null, JsonValue::Null)
            }
            Some(TurnEnd::Failed { code, .. }) if code == "answer_truncated" => {
                ("incomplete", JsonValue::Null, json!({"reason": "max_output_tokens"}))
            }
            Some(TurnEnd::Failed { code, message }) => {
                ("failed", json!({"code": code, "message": message}), JsonValue::Null)
            }
        };
        json!({
            "id": self.id,
            "object": "response",
            "created_at": turn.started_at.unwrap_or(self.created_at) / 1_000_000,
            "completed_at": turn.ended_at.filter(|_| status == "completed").map(|at| at / 1_000_000),
            "status": status,
            "error": error,
            "incomplete_details": incomplete,
            "model": self.agent,
            "output": output,
            "previous_response_id": self.previous,
            "usage": turn.usage.as_ref().map(usage_to_json),
            "background": true,
            "store": true,
            "frequency_penalty": 0.0,
            "instructions": self.echo.instructions,
            "max_output_tokens": null,
            "max_tool_calls": null,
            "metadata": self.echo.metadata,
            "parallel_tool_calls": true,
            "presence_penalty": 0.0,
            "prompt_cache_key": null,
            "reasoning": null,
            "safety_identifier": null,
            "service_tier": "default",
            // The agent's definition determines it; the schema demands a number.
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": 1.0,
            "truncation": "disabled",
            "user": null,
        })
    }

    fn item_id(&self, item: &Item, at: usize) -> String {
        let prefix = match &item.content {
            Content::Message(_) => "msg_",
            Content::Reasoning(_) => "rs_",
            Content::Call(_) => "mcp_",
            Content::Approval(interrupt) => return format!("{APPROVAL}{}", interrupt.call_id()),
        };
        format!("{prefix}{at}_{}", self.name)
    }

    fn item_to_json(&self, turn: &Turn, at: usize) -> JsonValue {
        let item = &turn.items[at];
        let id = self.item_id(item, at);
        let status = match item.state {
            ItemState::Complete => "completed",
            ItemState::Open if turn.end.is_none() => "in_progress",
            ItemState::Open | ItemState::Incomplete | ItemState::Void => "incomplete",
        };
        // A void item stays in its place, so that indices are those of the stream.
        let parts = match item.text() {
            "" => Vec::new(),
            _ => vec![part_of_text(item, item.text())],
        };
        match &item.content {
            Content::Message(_) => json!({"id": id, "type": "message", "role": "assistant",
                "status": status, "content": parts}),
            Content::Reasoning(_) => json!({"id": id, "type": "reasoning", "summary": [],
                "status": status, "content": parts}),
            Content::Call(call) => self.call_to_json(call, &id, status),
            // The protocol has no place for the question. Clients ignore members that they do not know.
            Content::Approval(interrupt) => json!({"id": id, "type": "mcp_approval_request",
                "name": interrupt.tool(), "arguments": arguments_text(interrupt.arguments()),
                "server_label": self.agent, "abide": interrupt.to_json()}),
        }
    }

    /// Returns a tool call of the agent. The client does not run it, so it has the form of a call of a remote server.
    fn call_to_json(&self, call: &CallItem, id: &str, status: &str) -> JsonValue {
        let text = call.outcome.as_ref().map(|outcome| &outcome.output);
        let (output, error) = if call.has_failed() { (None, text) } else { (text, None) };
        let status = if call.has_failed() { "failed" } else { status };
        let mut item = json!({"id": id, "type": "mcp_call", "status": status, "name": call.name,
            "arguments": arguments_text(&call.arguments), "server_label": self.agent, "output": output,
            "error": error, "approval_request_id": null});
        if let Some(result) = call.result_details() {
            item["abide"] = result;
        }
        item
    }

    /// Appends an event, unless the client has it.
    fn write_event(&mut self, kind: &str, mut data: JsonValue, out: &mut String) {
        let number = self.sequence;
        self.sequence += 1;
        if number <= self.after {
            return;
        }
        data["type"] = json!(kind);
        data["sequence_number"] = json!(number);
        out.push_str(&format!("event: {kind}\nid: {number}\ndata: {data}\n\n"));
    }

    /// Appends an event with the response. It is encoded only if the client does not have it.
    fn write_response_event(&mut self, kind: &str, turn: &Turn, out: &mut String) {
        let response =
            if self.sequence > self.after { self.to_json(turn) } else { JsonValue::Null };
        self.write_event(kind, json!({"response": response}), out);
    }

    fn encode_opened(&mut self, turn: &Turn, at: usize, out: &mut String) {
        let item = &turn.items[at];
        let mut shown = self.item_to_json(turn, at);
        let id = self.item_id(item, at);
        if let Content::Call(_) = &item.content {
            // Its result can already be known, but belongs to a later event.
            for (name, value) in
                [("status", json!("in_progress")), ("output", json!(null)), ("error", json!(null))]
            {
                shown[name] = value;
            }
            shown["arguments"] = json!("");
            shown.as_object_mut().map(|shown| shown.remove("abide"));
        } else if shown.get("content").is_some() {
            shown["content"] = json!([]);
            shown["status"] = json!("in_progress");
        }
        self.write_event(
            "response.output_item.added",
            json!({"output_index": at, "item": shown}),
            out,
        );
        let place = json!({"item_id": id, "output_index": at});
        match &item.content {
            Content::Message(_) | Content::Reasoning(_) => {
                let added = with_members(
                    place,
                    &[("content_index", json!(0)), ("part", part_of_text(item, ""))],
                );
                self.write_event("response.content_part.added", added, out);
            }
            Content::Call(call) => {
                self.write_event("response.mcp_call.in_progress", place.clone(), out);
                let text = json!(arguments_text(&call.arguments));
                let delta = with_members(place.clone(), &[("delta", text.clone())]);
                self.write_event("response.mcp_call_arguments.delta", delta, out);
                let done = with_members(place, &[("arguments", text)]);
                self.write_event("response.mcp_call_arguments.done", done, out);
            }
            Content::Approval(_) => {}
        }
    }

    fn encode_text(&mut self, turn: &Turn, at: usize, delta: &str, out: &mut String) {
        let item = &turn.items[at];
        let place = json!({"item_id": self.item_id(item, at), "output_index": at,
            "content_index": 0, "delta": delta});
        if item.is_message() {
            let data = with_members(place, &[("logprobs", json!([]))]);
            self.write_event("response.output_text.delta", data, out);
        } else {
            self.write_event("response.reasoning_text.delta", place, out)
        }
    }

    fn encode_closed(&mut self, turn: &Turn, at: usize, out: &mut String) {
        let item = &turn.items[at];
        let place = json!({"item_id": self.item_id(item, at), "output_index": at});
        match &item.content {
            Content::Message(_) | Content::Reasoning(_) => {
                let place = with_members(place, &[("content_index", json!(0))]);
                let text = with_members(place.clone(), &[("text", json!(item.text()))]);
                if item.is_message() {
                    let text = with_members(text, &[("logprobs", json!([]))]);
                    self.write_event("response.output_text.done", text, out);
                } else {
                    self.write_event("response.reasoning_text.done", text, out)
                }
                let done = with_members(place, &[("part", part_of_text(item, item.text()))]);
                self.write_event("response.content_part.done", done, out);
            }
            Content::Call(call) => {
                let kind = if call.has_failed() { "failed" } else { "completed" };
                self.write_event(&format!("response.mcp_call.{kind}"), place, out);
            }
            Content::Approval(_) => {}
        }
        let item = self.item_to_json(turn, at);
        self.write_event(
            "response.output_item.done",
            json!({"output_index": at, "item": item}),
            out,
        );
    }

    fn encode_end(&mut self, turn: &Turn, out: &mut String) {
        for at in 0..turn.items.len() {
            // A call that waits for an approval: it continues in the next response.
            if turn.items[at].state == ItemState::Open {
                let data = json!({"output_index": at, "item": self.item_to_json(turn, at)});
                self.write_event("response.output_item.done", data, out);
            }
        }
        let kind = match &turn.end {
            Some(TurnEnd::Failed { code, .. })
                if matches!(code.as_str(), "aborted" | "answer_truncated") =>
            {
                "response.incomplete"
            }
            Some(TurnEnd::Failed { .. }) => "response.failed",
            Some(TurnEnd::Waits(_)) if turn.awaited_approvals().is_empty() => "response.incomplete",
            _ => "response.completed",
        };
        self.write_response_event(kind, turn, out);
        out.push_str("data: [DONE]\n\n");
    }
}

impl Encoder for ResponseEncoder {
    fn encode(&mut self, turn: &Turn, change: &Change, out: &mut String) {
        match change {
            Change::Started => {
                self.write_response_event("response.created", &turn.at_start(), out);
                self.write_response_event("response.in_progress", &turn.at_start(), out);
            }
            Change::Opened(at) => self.encode_opened(turn, *at, out),
            Change::Text(at, text) => self.encode_text(turn, *at, text, out),
            Change::Closed(at) => self.encode_closed(turn, *at, out),
            // The item of a call that is complete has the arguments that ran.
            Change::Edited(_) | Change::CallsRun | Change::Waits | Change::Continues => {}
            Change::Ended => self.encode_end(turn, out),
        }
    }

    /// The response goes on: the client can continue after the last event.
    fn refuse(&mut self, refusal: &Refusal, out: &mut String) {
        let data = json!({"type": "error", "code": refusal.code.as_str(),
            "message": refusal.detail, "param": null, "sequence_number": self.sequence});
        out.push_str(&format!("event: error\ndata: {data}\n\n"));
    }
}

fn part_of_text(item: &Item, text: &str) -> JsonValue {
    if item.is_message() {
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
    } else {
        json!({"type": "reasoning_text", "text": text})
    }
}

fn with_members(mut object: JsonValue, more: &[(&str, JsonValue)]) -> JsonValue {
    for (name, value) in more {
        object[*name] = value.clone();
    }
    object
}

/// Arguments are a JSON text in this protocol. Arguments that are not JSON are stored as a text.
fn arguments_text(arguments: &JsonValue) -> String {
    match arguments {
        JsonValue::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn usage_to_json(usage: &Usage) -> JsonValue {
    json!({
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    })
}
