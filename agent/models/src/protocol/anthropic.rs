//! Anthropic's Messages.
//!
//! <https://docs.claude.com/en/docs/build-with-claude/streaming>. Blocks of server-side tools are ignored, because
//! we offer none.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::body::{all_instructions, arguments_object, set, take_turns};
use super::calls::{
    Arguments, CallPart, has_unread_arguments, may_have_arguments, unread_arguments,
};
use super::decoder::{Decoder, PartialResponse, arguments_text, check_delta, parse};
use super::stop::StopReasons;
use crate::classify;
use crate::{ModelError, ModelMessage, ModelRequest, ToolSpec};

/// The protocol requires a value. All current models support this one.
const MAX_TOKENS: u32 = 8192;

/// The field of our messages with data for this protocol: signed thinking blocks.
const CARRY: &str = "anthropic";

pub(super) fn body(request: &ModelRequest, messages: &[ModelMessage]) -> Value {
    let turns = take_turns(messages.iter().filter_map(write_message));
    let messages: Vec<Value> = turns
        .into_iter()
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect();
    let mut body = Map::new();
    set(&mut body, "model", Some(&request.model));
    set(&mut body, "system", all_instructions(request));
    set(&mut body, "messages", Some(messages));
    set(&mut body, "stream", Some(true));
    set(&mut body, "max_tokens", Some(request.max_tokens.unwrap_or(MAX_TOKENS)));
    let tools: Vec<Value> = request.tools.iter().map(write_tool).collect();
    set(&mut body, "tools", (!tools.is_empty()).then_some(tools));
    set(&mut body, "temperature", request.temperature);
    let format = request
        .response_schema
        .as_ref()
        .map(|schema| json!({ "format": { "type": "json_schema", "schema": schema } }));
    set(&mut body, "output_config", format);
    Value::Object(body)
}

fn write_message(message: &ModelMessage) -> Option<(&'static str, Vec<Value>)> {
    match message {
        ModelMessage::System { .. } => None,
        ModelMessage::User { text } => {
            Some(("user", vec![json!({ "type": "text", "text": text })]))
        }
        ModelMessage::Assistant { text, calls, carry, .. } => {
            let thoughts = carry.as_ref().and_then(|carry| carry[CARRY].as_array());
            let thoughts = thoughts.into_iter().flatten();
            let mut content: Vec<Value> = thoughts.filter(|it| is_sealed(it)).cloned().collect();
            if !text.is_empty() {
                content.push(json!({ "type": "text", "text": text }));
            }
            content.extend(calls.iter().map(|call| {
                let input = arguments_object(&call.arguments);
                json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
            }));
            Some(("assistant", content))
        }
        ModelMessage::Tool { call_id, content, is_error, .. } => {
            let mut result =
                json!({ "type": "tool_result", "tool_use_id": call_id, "content": content });
            if *is_error {
                result["is_error"] = json!(true);
            }
            Some(("user", vec![result]))
        }
    }
}

fn write_tool(tool: &ToolSpec) -> Value {
    json!({
        "name": tool.name, "description": tool.description, "input_schema": tool.parameters
    })
}

/// Decodes the stream: blocks that start, grow and end, by their index.
#[derive(Default)]
pub(super) struct Anthropic {
    has_started: bool,
    /// The open blocks.
    blocks: BTreeMap<u64, Block>,
    /// The positions of the calls whose blocks have ended, by their index.
    ended_calls: BTreeMap<u64, usize>,
    input: Input,
}

enum Block {
    /// A call, which is at this position of [`PartialResponse::calls`]. `is_object`: without other arguments they are `{}`,
    /// because the block says so.
    Call { at: usize, is_object: bool },
    /// The initial thinking block, and the text added to it.
    Thinking { block: Value, thinking: String, signature: String },
    /// A text.
    Text,
    /// A block of a server-side tool. Its input is not that of a call.
    Unread,
}

/// Tokens of the request, which the protocol reports in three parts.
#[derive(Default)]
struct Input {
    fresh: Option<u64>,
    to_cache: Option<u64>,
    from_cache: Option<u64>,
}

impl Decoder for Anthropic {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        if data.trim() == "[DONE]" {
            gathered.over = gathered.is_complete(); // Some proxies send it here too.
            return Ok(());
        }
        let event: Value = parse(data)?;
        if event["type"] == "error" || event["type"].is_null() && classify::reports_error(&event) {
            return Err(classify::error_from_event(&event));
        }
        for part in [&event, &event["message"], &event["delta"]] {
            if classify::is_error(&part["error"]) {
                return Err(classify::error_from_event(part));
            }
        }
        let index = event["index"].as_u64();
        let kind = event_type(&event);
        if has_unread(&event, kind) {
            gathered.calls.note_unread();
        }
        match kind {
            "message_start" => {
                // The second one is another answer: a gateway has tried again after a failure.
                if self.has_started || gathered.has_begun() {
                    let why = "the stream begins a second message";
                    return Err(ModelError::invalid_response(why));
                }
                self.has_started = true;
                gathered.recognize();
                let message = &event["message"];
                gathered.set_model(message["model"].as_str());
                self.read_usage(&message["usage"], gathered);
                // Empty, except from servers that send everything at once.
                for (at, block) in message["content"].as_array().into_iter().flatten().enumerate() {
                    let index = Some(at as u64);
                    let at = at.to_string();
                    let path = ["message", "content", &at, "input"];
                    self.begin_block(index, block, data, &path, gathered)?;
                    self.end_block(index, gathered);
                }
                read_stop(message, gathered)?;
            }
            "content_block_start" => {
                let path = ["content_block", "input"];
                self.begin_block(index, &event["content_block"], data, &path, gathered)?;
            }
            "content_block_delta" => self.read_delta(index, &event["delta"], data, gathered)?,
            "content_block_stop" => self.end_block(index, gathered),
            "message_delta" => {
                self.read_usage(&event["usage"], gathered);
                read_stop(&event["delta"], gathered)?;
            }
            "message_stop" => {
                gathered.over = true;
                self.close(gathered);
            }
            _ => {}
        }
        Ok(())
    }

    /// A block that was truncated by the token limit has no end event.
    fn close(&mut self, gathered: &mut PartialResponse) {
        if gathered.stop.is_some() {
            for block in std::mem::take(&mut self.blocks).into_values() {
                keep_thinking(block, gathered);
            }
        }
    }
}

impl Anthropic {
    /// Begins a block, which is at a path of a frame. Another block with the same index has ended.
    fn begin_block(
        &mut self,
        index: Option<u64>,
        block: &Value,
        data: &str,
        path: &[&str],
        gathered: &mut PartialResponse,
    ) -> Result<(), ModelError> {
        if has_unread_in_block(block) {
            gathered.calls.note_unread();
        }
        let begun = match block["type"].as_str() {
            Some("text") => {
                gathered.push_text(text_at(block, "text"));
                Block::Text
            }
            Some("tool_use") => {
                let id = text_at(block, "id");
                let name = text_at(block, "name");
                // The pieces of the input follow, unless it is already here.
                let initial = if is_blank(&block["input"]) {
                    String::new()
                } else {
                    arguments_text(&block["input"], data, path)
                };
                let part = CallPart { id, name, index, ..CallPart::default() };
                let at = gathered.calls.announce(part, initial)?;
                Block::Call { at, is_object: !block["input"].is_null() }
            }
            Some("thinking") => {
                gathered.push_reasoning(text_at(block, "thinking"));
                thinking(block)
            }
            Some("redacted_thinking") => thinking(block),
            _ => Block::Unread,
        };
        let index = index.unwrap_or_default();
        self.ended_calls.remove(&index);
        if let Some(replaced) = self.blocks.insert(index, begun) {
            keep_thinking(replaced, gathered);
        }
        Ok(())
    }

    fn end_block(&mut self, index: Option<u64>, gathered: &mut PartialResponse) {
        let index = self.index_of(index);
        if let Some(block) = self.blocks.remove(&index) {
            if let Block::Call { at, is_object } = block {
                self.ended_calls.insert(index, at);
                if is_object {
                    gathered.calls.end(at);
                }
            }
            keep_thinking(block, gathered);
        }
    }

    /// Returns the index of the block that an event names. Without an index, it is the only open block.
    fn index_of(&self, index: Option<u64>) -> u64 {
        index.unwrap_or_else(|| match self.blocks.len() {
            1 => *self.blocks.keys().next().expect("there is one"),
            _ => 0,
        })
    }

    fn read_delta(
        &mut self,
        index: Option<u64>,
        delta: &Value,
        data: &str,
        gathered: &mut PartialResponse,
    ) -> Result<(), ModelError> {
        check_delta(delta)?;
        if has_unread_in_delta(delta) {
            gathered.calls.note_unread();
        }
        let index = self.index_of(index);
        let kind = delta["type"].as_str().unwrap_or_default();
        match (kind, self.blocks.get_mut(&index)) {
            ("text_delta", Some(Block::Call { .. })) => return Err(unread_arguments()),
            ("text_delta", _) => gathered.push_text(text_at(delta, "text")),
            ("thinking_delta" | "signature_delta", block) => {
                gathered.push_reasoning(text_at(delta, "thinking"));
                // Some gateways send the signature with the last piece of the text.
                if let Some(Block::Thinking { thinking, signature, .. }) = block {
                    thinking.push_str(text_at(delta, "thinking"));
                    signature.push_str(text_at(delta, "signature"));
                }
            }
            ("citations_delta", _) | (_, Some(Block::Unread)) => {}
            ("input_json_delta", block) => {
                let at = match block {
                    Some(Block::Call { at, is_object }) => {
                        *is_object &= !delta["partial_json"].is_null();
                        Some(*at)
                    }
                    Some(_) => None,
                    // A piece that follows the end of its block.
                    None => self.ended_calls.get(&index).copied(),
                };
                let path = ["delta", "partial_json"];
                let arguments = arguments_text(&delta["partial_json"], data, &path);
                let Some(at) = at else {
                    let why = "the stream has arguments of a call that it did not start";
                    return Err(ModelError::invalid_response(why));
                };
                if delta["partial_json"].is_null() && has_content(delta) {
                    return Err(unread_arguments());
                }
                gathered.calls.add_arguments(at, Arguments::Piece(arguments))?;
            }
            // It may be a piece of the arguments, without which the call would run with the others.
            (_, block) => {
                let is_of_call = matches!(block, Some(Block::Call { .. }))
                    || self.ended_calls.contains_key(&index)
                    || !delta["partial_json"].is_null();
                if is_of_call && has_content(delta) {
                    return Err(unread_arguments());
                }
            }
        }
        Ok(())
    }

    /// Later token counts replace earlier ones.
    fn read_usage(&mut self, usage: &Value, gathered: &mut PartialResponse) {
        let input = &mut self.input;
        input.fresh = usage["input_tokens"].as_u64().or(input.fresh);
        input.to_cache = usage["cache_creation_input_tokens"].as_u64().or(input.to_cache);
        input.from_cache = usage["cache_read_input_tokens"].as_u64().or(input.from_cache);
        let cached = input.to_cache.unwrap_or(0).saturating_add(input.from_cache.unwrap_or(0));
        let counts = &mut gathered.usage;
        counts.input_tokens = input.fresh.map(|fresh| fresh.saturating_add(cached));
        counts.cached_tokens = input.from_cache;
        counts.output_tokens = usage["output_tokens"].as_u64().or(counts.output_tokens);
        let thinking = &usage["output_tokens_details"]["thinking_tokens"];
        counts.reasoning_tokens = thinking.as_u64().or(counts.reasoning_tokens);
    }
}

/// Returns `true` if a delta has anything beside its type.
fn has_content(delta: &Value) -> bool {
    let mut fields = delta.as_object().into_iter().flatten();
    fields.any(|(name, value)| name != "type" && !value.is_null() && value != "")
}

/// Returns the type of an event. Some gateways write it only as the name of the event, which repeats it: then the members tell it.
fn event_type(event: &Value) -> &str {
    if let Some(stated) = event["type"].as_str().filter(|stated| !stated.is_empty()) {
        return stated;
    }
    let has_index = !event["index"].is_null();
    if !event["message"].is_null() {
        "message_start"
    } else if !event["content_block"].is_null() {
        "content_block_start"
    } else if !event["delta"]["stop_reason"].is_null() || !event["usage"].is_null() && !has_index {
        "message_delta"
    } else if !event["delta"].is_null() {
        "content_block_delta"
    } else if has_index {
        "content_block_stop"
    } else {
        ""
    }
}

/// Returns `true` if an event has something that may be arguments of a call, apart from what is read of an event with
/// this type.
fn has_unread(event: &Value, kind: &str) -> bool {
    let read: &[&str] = match kind {
        "message_start" => &["message"],
        "content_block_start" => &["content_block"],
        "content_block_delta" | "message_delta" => &["delta"],
        _ => &[],
    };
    let is_in_part = match kind {
        // It comes before all calls, so only what is named like arguments matters.
        "message_start" => {
            let message = event["message"].as_object();
            message.is_some_and(|fields| has_unread_arguments(fields, ""))
        }
        "message_delta" => may_have_arguments(&event["delta"], &["stop_sequence"]),
        // All of it is unknown.
        "" => event.as_object().is_some_and(|fields| !fields.is_empty()),
        _ => false,
    };
    is_in_part || may_have_arguments(event, read)
}

/// Returns `true` if a block has something that may be arguments of a call, apart from what is read of it.
fn has_unread_in_block(block: &Value) -> bool {
    let read: &[&str] = match block["type"].as_str().unwrap_or_default() {
        "tool_use" => &["input"],
        "text" => &["text", "citations"],
        "thinking" | "redacted_thinking" => &["thinking", "signature", "data"],
        // Tools of the server, and their results.
        kind if kind.ends_with("_tool_use") || kind.ends_with("_tool_result") => return false,
        _ => &[],
    };
    may_have_arguments(block, read)
}

/// Returns `true` if a delta has something that may be arguments of a call, apart from what is read of it.
fn has_unread_in_delta(delta: &Value) -> bool {
    let read: &[&str] = match delta["type"].as_str().unwrap_or_default() {
        "text_delta" => &["text"],
        "thinking_delta" => &["thinking"],
        "citations_delta" => &["citation"],
        "input_json_delta" => &["partial_json"],
        _ => &[],
    };
    may_have_arguments(delta, read)
}

/// Returns `true` if an input says nothing yet. Any other value is what the model wrote, even if it is no object.
fn is_blank(input: &Value) -> bool {
    match input {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.trim().is_empty(),
        _ => false,
    }
}

fn read_stop(message: &Value, gathered: &mut PartialResponse) -> Result<(), ModelError> {
    let reason = message["stop_reason"].as_str().unwrap_or_default();
    if !reason.is_empty() {
        gathered.set_stop(STOP_REASONS.read(reason, message)?);
    }
    Ok(())
}

/// Returns `true` if a block of thoughts has what proves its origin. The provider refuses a conversation with another
/// one.
fn is_sealed(block: &Value) -> bool {
    let field = if block["type"] == "redacted_thinking" { "data" } else { "signature" };
    block[field].as_str().is_some_and(|seal| !seal.is_empty())
}

fn thinking(block: &Value) -> Block {
    let thinking = text_at(block, "thinking").to_owned();
    let signature = text_at(block, "signature").to_owned();
    Block::Thinking { block: block.clone(), thinking, signature }
}

fn text_at<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

/// Keeps a block of thoughts that has ended, for the next request. Other blocks are not needed any more.
fn keep_thinking(ended: Block, gathered: &mut PartialResponse) {
    let Block::Thinking { mut block, thinking, signature } = ended else { return };
    if block["type"] == "thinking" {
        block["thinking"] = json!(thinking);
        block["signature"] = json!(signature);
    }
    if !is_sealed(&block) {
        return;
    }
    let carry = gathered.carry.get_or_insert_with(|| json!({ CARRY: [] }));
    if let Some(blocks) = carry[CARRY].as_array_mut() {
        blocks.push(block);
    }
}

/// <https://docs.claude.com/en/api/handling-stop-reasons>. It documents none that means failure,
/// but the turn of `pause_turn` is not over, and we cannot continue it.
const STOP_REASONS: StopReasons = StopReasons {
    end: &["end_turn", "stop_sequence", "stop"],
    tool_use: &["tool_use", "tool_calls"],
    length: &["max_tokens", "model_context_window_exceeded"],
    filtered: &["refusal"],
    failed: &["error", "pause_turn"],
};
