//! OpenAI's Chat Completions, which most servers support in some dialect.
//!
//! <https://platform.openai.com/docs/api-reference/chat-streaming>

use serde_json::{Map, Value, json};

use super::body::set;
use super::decoder::{Decoder, PartialResponse, arguments_text, parse};
use crate::classify;
use crate::{ModelCall, ModelError, ModelMessage, ModelRequest, Stop, ToolSpec};

/// The dialects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI itself.
    OpenAi,
    /// Other servers.
    Compatible,
}

pub(super) fn body(request: &ModelRequest, dialect: Dialect) -> Value {
    let system = request.system.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages = request.messages.iter().map(|message| written(message, dialect));
    let messages: Vec<Value> = system.chain(messages).collect();
    let mut body = Map::new();
    set(&mut body, "model", Some(&request.model));
    set(&mut body, "messages", Some(messages));
    set(&mut body, "stream", Some(true));
    set(&mut body, "stream_options", Some(json!({ "include_usage": true })));
    let tools: Vec<Value> = request.tools.iter().map(tool).collect();
    set(&mut body, "tools", (!tools.is_empty()).then_some(tools));
    set(&mut body, "temperature", request.temperature);
    // Newer OpenAI models reject the old name, and other servers support only that.
    let limit = match dialect {
        Dialect::OpenAi => "max_completion_tokens",
        Dialect::Compatible => "max_tokens",
    };
    set(&mut body, limit, request.max_tokens);
    let format = request.response_schema.as_ref().map(|schema| {
        let schema = json!({ "name": "answer", "schema": schema });
        json!({ "type": "json_schema", "json_schema": schema })
    });
    set(&mut body, "response_format", format);
    Value::Object(body)
}

fn written(message: &ModelMessage, dialect: Dialect) -> Value {
    match message {
        ModelMessage::System { text } => json!({ "role": "system", "content": text }),
        ModelMessage::User { text } => json!({ "role": "user", "content": text }),
        ModelMessage::Assistant { text, calls, .. } if calls.is_empty() => {
            json!({ "role": "assistant", "content": text })
        }
        ModelMessage::Assistant { text, reasoning, calls, .. } => {
            let content = (!text.is_empty()).then_some(text);
            let calls: Vec<Value> = calls.iter().map(call).collect();
            let mut message =
                json!({ "role": "assistant", "content": content, "tool_calls": calls });
            // DeepSeek and Kimi expect the reasoning that preceded a call.
            if let (Dialect::Compatible, Some(reasoning)) = (dialect, reasoning) {
                message["reasoning_content"] = json!(reasoning);
            }
            message
        }
        ModelMessage::Tool { call_id, content, .. } => {
            json!({ "role": "tool", "tool_call_id": call_id, "content": content })
        }
    }
}

fn call(call: &ModelCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

fn tool(tool: &ToolSpec) -> Value {
    json!({ "type": "function", "function": tool })
}

/// Decodes the stream. Calls arrive in chunks, by their index. They are returned when the model stops, because
/// nothing marks the end of a single call.
#[derive(Default)]
pub(super) struct Chat {
    open: Vec<Open>,
}

struct Open {
    index: u64,
    call: ModelCall,
}

impl Decoder for Chat {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        if data == "[DONE]" {
            gathered.over = true;
            // A server that ends the stream correctly but without a stop reason is accepted.
            if gathered.has_begun() || !self.open.is_empty() {
                gathered.stop.get_or_insert(Stop::Other("unstated".to_owned()));
            }
            self.close(gathered);
            return Ok(());
        }
        let chunk: Value = parse(data)?;
        if !chunk["error"].is_null() {
            return Err(classify::of_event(&chunk));
        }
        gathered.model(chunk["model"].as_str());
        for usage in [&chunk["x_groq"]["usage"], &chunk["usage"]] {
            read_usage(usage, gathered);
        }
        let choices = chunk["choices"].as_array().into_iter().flatten();
        let first = |choice: &(usize, &Value)| choice.1["index"].as_u64().unwrap_or(0) == 0;
        let Some((at, choice)) = choices.enumerate().find(first) else { return Ok(()) };
        self.delta(&choice["delta"], data, at, gathered);
        if let Some(reason) = choice["finish_reason"].as_str() {
            gathered.stop = Some(stop(reason));
            self.close(gathered);
        }
        Ok(())
    }

    fn close(&mut self, gathered: &mut PartialResponse) {
        if gathered.stop.is_some() {
            self.open.drain(..).for_each(|open| gathered.call(open.call));
        }
    }
}

impl Chat {
    /// Adds the delta of the choice at an index of a frame.
    fn delta(&mut self, delta: &Value, data: &str, at: usize, gathered: &mut PartialResponse) {
        let reasoning = [&delta["reasoning_content"], &delta["reasoning"]];
        if let Some(piece) = reasoning.into_iter().find_map(Value::as_str) {
            gathered.reasoning(piece);
        }
        match &delta["content"] {
            Value::String(piece) => gathered.text(piece),
            Value::Array(parts) => parts.iter().for_each(|part| read_part(part, gathered)),
            _ => {}
        }
        if let Some(piece) = delta["refusal"].as_str() {
            gathered.refusal(piece);
        }
        for (position, piece) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let whole = |arguments: &Value| {
                let (at, position) = (at.to_string(), position.to_string());
                let call = ["choices", &at, "delta", "tool_calls", &position];
                let path = [&call[..], &["function", "arguments"]].concat();
                arguments_text(arguments, data, &path)
            };
            self.piece(position as u64, piece, whole);
        }
    }

    /// Adds a chunk of a call. Some servers repeat ids or leave them empty in later chunks, some omit the index,
    /// and some use the same index for all calls: a new id with a name is a new call.
    fn piece(&mut self, position: u64, piece: &Value, text: impl FnOnce(&Value) -> String) {
        let index = piece["index"].as_u64().unwrap_or(position);
        let id = piece["id"].as_str().unwrap_or_default();
        let name = piece["function"]["name"].as_str().unwrap_or_default();
        let known = self.open.iter_mut().rev().find(|open| open.index == index);
        let known = known.filter(|open| {
            let another = !id.is_empty() && !open.call.id.is_empty() && open.call.id != id;
            !another || name.is_empty()
        });
        let call = match known {
            Some(open) => &mut open.call,
            None => {
                let call = ModelCall::default();
                self.open.push(Open { index, call });
                &mut self.open.last_mut().expect("one was just pushed").call
            }
        };
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            name.clone_into(&mut call.name);
        }
        match &piece["function"]["arguments"] {
            Value::Null => {}
            Value::String(piece) => call.arguments.push_str(piece),
            whole => call.arguments.push_str(&text(whole)),
        }
    }
}

/// A part of a multi-part content, as Mistral's reasoning models send it.
fn read_part(part: &Value, gathered: &mut PartialResponse) {
    match part["type"].as_str() {
        Some("thinking") => {
            let thoughts = part["thinking"].as_array().into_iter().flatten();
            let pieces = thoughts.filter_map(|thought| thought["text"].as_str());
            pieces.for_each(|piece| gathered.reasoning(piece));
        }
        _ => gathered.text(part["text"].as_str().unwrap_or_default()),
    }
}

fn read_usage(usage: &Value, gathered: &mut PartialResponse) {
    if usage.is_null() {
        return;
    }
    let counts = &mut gathered.usage;
    counts.input_tokens = usage["prompt_tokens"].as_u64().or(counts.input_tokens);
    counts.output_tokens = usage["completion_tokens"].as_u64().or(counts.output_tokens);
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    counts.cached_tokens = cached.as_u64().or(counts.cached_tokens);
    let reasoning = &usage["completion_tokens_details"]["reasoning_tokens"];
    counts.reasoning_tokens = reasoning.as_u64().or(counts.reasoning_tokens);
}

fn stop(reason: &str) -> Stop {
    match reason {
        "stop" => Stop::End,
        "tool_calls" | "function_call" => Stop::ToolUse,
        "length" => Stop::Length,
        "content_filter" => Stop::Filtered,
        other => Stop::Other(other.to_owned()),
    }
}
