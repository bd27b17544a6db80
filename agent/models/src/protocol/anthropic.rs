//! Anthropic's Messages.
//!
//! <https://docs.claude.com/en/docs/build-with-claude/streaming>. Blocks of server-side tools are ignored, because
//! we offer none.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::body::{all_instructions, arguments_object, set, take_turns};
use super::decoder::{Decoder, PartialResponse, arguments_text, parse};
use crate::classify;
use crate::{ModelCall, ModelError, ModelMessage, ModelRequest, Stop, ToolSpec};

/// The protocol requires a value. All current models support this one.
const MAX_TOKENS: u32 = 8192;

/// The field of our messages with data for this protocol: signed thinking blocks.
const CARRY: &str = "anthropic";

pub(super) fn body(request: &ModelRequest) -> Value {
    let turns = take_turns(request.messages.iter().filter_map(written));
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
    let tools: Vec<Value> = request.tools.iter().map(tool).collect();
    set(&mut body, "tools", (!tools.is_empty()).then_some(tools));
    set(&mut body, "temperature", request.temperature);
    let format = request
        .response_schema
        .as_ref()
        .map(|schema| json!({ "format": { "type": "json_schema", "schema": schema } }));
    set(&mut body, "output_config", format);
    Value::Object(body)
}

fn written(message: &ModelMessage) -> Option<(&'static str, Vec<Value>)> {
    match message {
        ModelMessage::System { .. } => None,
        ModelMessage::User { text } => {
            Some(("user", vec![json!({ "type": "text", "text": text })]))
        }
        ModelMessage::Assistant { text, calls, carry, .. } => {
            let thoughts = carry.as_ref().and_then(|carry| carry[CARRY].as_array());
            let mut content: Vec<Value> = thoughts.into_iter().flatten().cloned().collect();
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

fn tool(tool: &ToolSpec) -> Value {
    json!({
        "name": tool.name, "description": tool.description, "input_schema": tool.parameters
    })
}

/// Decodes the stream: blocks that start, grow and end, by their index.
#[derive(Default)]
pub(super) struct Anthropic {
    blocks: BTreeMap<u64, Block>,
    input: Input,
}

enum Block {
    /// A call, with the initial input of its block if that is an object.
    Call { call: ModelCall, input: Option<String> },
    /// The initial thinking block, and the text added to it.
    Thinking { block: Value, thinking: String, signature: String },
    /// A block that is not sent back, or whose end does not matter.
    Other,
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
        let event: Value = parse(data)?;
        let index = event["index"].as_u64().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                gathered.model(event["message"]["model"].as_str());
                self.usage(&event["message"]["usage"], gathered);
            }
            "content_block_start" => {
                let block = begun(&event["content_block"], data, gathered);
                self.blocks.insert(index, block);
            }
            "content_block_delta" => self.delta(index, &event["delta"], gathered),
            "content_block_stop" => {
                if let Some(block) = self.blocks.remove(&index) {
                    ended(block, gathered);
                }
            }
            "message_delta" => {
                self.usage(&event["usage"], gathered);
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    gathered.stop = Some(stop(reason));
                }
            }
            "message_stop" => {
                gathered.over = true;
                self.close(gathered);
            }
            "error" => return Err(classify::of_event(&event)),
            _ => {}
        }
        Ok(())
    }

    /// A call that was truncated by the token limit has no end event.
    fn close(&mut self, gathered: &mut PartialResponse) {
        if gathered.stop.is_some() {
            std::mem::take(&mut self.blocks).into_values().for_each(|block| ended(block, gathered));
        }
    }
}

impl Anthropic {
    fn delta(&mut self, index: u64, delta: &Value, gathered: &mut PartialResponse) {
        let piece = |field: &str| delta[field].as_str().unwrap_or_default();
        match (delta["type"].as_str(), self.blocks.get_mut(&index)) {
            (Some("text_delta"), _) => gathered.text(piece("text")),
            (Some("thinking_delta"), block) => {
                gathered.reasoning(piece("thinking"));
                if let Some(Block::Thinking { thinking, .. }) = block {
                    thinking.push_str(piece("thinking"));
                }
            }
            (Some("signature_delta"), Some(Block::Thinking { signature, .. })) => {
                signature.push_str(piece("signature"));
            }
            (Some("input_json_delta"), Some(Block::Call { call, .. })) => {
                call.arguments.push_str(piece("partial_json"));
            }
            _ => {}
        }
    }

    /// Later token counts replace earlier ones.
    fn usage(&mut self, usage: &Value, gathered: &mut PartialResponse) {
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

fn begun(block: &Value, data: &str, gathered: &mut PartialResponse) -> Block {
    let text = |field: &str| block[field].as_str().unwrap_or_default();
    match block["type"].as_str() {
        Some("text") => {
            gathered.text(text("text"));
            Block::Other
        }
        Some("tool_use") => {
            let (id, name) = (text("id").to_owned(), text("name").to_owned());
            let call = ModelCall { id, name, arguments: String::new() };
            let input = Some(&block["input"]).filter(|input| input.is_object());
            let path = ["content_block", "input"];
            Block::Call { call, input: input.map(|input| arguments_text(input, data, &path)) }
        }
        Some("thinking") => {
            gathered.reasoning(text("thinking"));
            thinking(block)
        }
        Some("redacted_thinking") => thinking(block),
        _ => Block::Other,
    }
}

fn thinking(block: &Value) -> Block {
    let text = |field: &str| block[field].as_str().unwrap_or_default().to_owned();
    let (thinking, signature) = (text("thinking"), text("signature"));
    Block::Thinking { block: block.clone(), thinking, signature }
}

fn ended(block: Block, gathered: &mut PartialResponse) {
    match block {
        Block::Call { mut call, input } => {
            // A call without arguments has one empty chunk of them, or none.
            if call.arguments.is_empty() {
                call.arguments = input.unwrap_or_default();
            }
            gathered.call(call);
        }
        Block::Thinking { mut block, thinking, signature } => {
            if block["type"] == "thinking" {
                block["thinking"] = json!(thinking);
                block["signature"] = json!(signature);
            }
            let carry = gathered.carry.get_or_insert_with(|| json!({ CARRY: [] }));
            if let Some(blocks) = carry[CARRY].as_array_mut() {
                blocks.push(block);
            }
        }
        Block::Other => {}
    }
}

fn stop(reason: &str) -> Stop {
    match reason {
        "end_turn" | "stop_sequence" => Stop::End,
        "tool_use" => Stop::ToolUse,
        "max_tokens" | "model_context_window_exceeded" => Stop::Length,
        "refusal" => Stop::Filtered,
        other => Stop::Other(other.to_owned()),
    }
}
