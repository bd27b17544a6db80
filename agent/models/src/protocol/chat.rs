//! OpenAI's Chat Completions, which most servers support in some dialect.
//!
//! <https://platform.openai.com/docs/api-reference/chat-streaming>

use serde_json::{Map, Value, json};

use super::body::set;
use super::calls::{Arguments, CallPart};
use super::decoder::{Decoder, PartialResponse, arguments_text, parse};
use super::stop::StopReasons;
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

/// Decodes the stream. Nothing marks the end of a single call.
pub(super) struct Chat;

impl Decoder for Chat {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        if data == "[DONE]" {
            gathered.over = true;
            // A server that ends the stream correctly but without a stop reason is accepted.
            if gathered.has_begun() {
                gathered.stop.get_or_insert(Stop::Other("unstated".to_owned()));
            }
            return Ok(());
        }
        let chunk: Value = parse(data)?;
        if classify::is_error(&chunk["error"]) || chunk["object"] == "error" {
            return Err(classify::of_event(&chunk));
        }
        gathered.model(chunk["model"].as_str());
        for usage in [&chunk["x_groq"]["usage"], &chunk["usage"]] {
            read_usage(usage, gathered);
        }
        let choices = chunk["choices"].as_array().into_iter().flatten();
        let first = |choice: &(usize, &Value)| choice.1["index"].as_u64().unwrap_or(0) == 0;
        let Some((at, choice)) = choices.enumerate().find(first) else { return Ok(()) };
        if classify::is_error(&choice["error"]) {
            return Err(classify::of_event(choice));
        }
        // Some servers send everything at once, as without a stream.
        let is_whole = is_blank(&choice["delta"]) && !gathered.has_begun();
        let field = if is_whole { "message" } else { "delta" };
        delta(&choice[field], data, (at, field), gathered)?;
        if is_whole {
            gathered.text(choice["text"].as_str().unwrap_or_default());
        }
        let reason = choice["finish_reason"].as_str().unwrap_or_default();
        if !reason.is_empty() {
            gathered.stop = Some(STOP_REASONS.read(reason, choice)?);
        }
        Ok(())
    }
}

/// Whether a delta adds nothing.
fn is_blank(delta: &Value) -> bool {
    delta.as_object().is_none_or(|fields| {
        fields.iter().all(|(name, value)| name == "role" || value.is_null() || *value == "")
    })
}

/// Adds a delta, which is in this field of the choice at this place of a frame.
fn delta(
    delta: &Value,
    data: &str,
    (at, field): (usize, &str),
    gathered: &mut PartialResponse,
) -> Result<(), ModelError> {
    let reasoning = [&delta["reasoning_content"], &delta["reasoning"]];
    let reasoning = reasoning.into_iter().filter_map(Value::as_str);
    gathered.reasoning(reasoning.max_by_key(|piece| !piece.is_empty()).unwrap_or_default());
    match &delta["content"] {
        Value::String(piece) => gathered.text(piece),
        Value::Array(parts) => parts.iter().for_each(|part| read_part(part, gathered)),
        part => read_part(part, gathered),
    }
    if let Some(piece) = delta["refusal"].as_str() {
        gathered.refusal(piece);
    }
    let at = at.to_string();
    let path = ["choices", &at, field];
    for (position, call) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let position = position.to_string();
        call_part(call, data, &[&path[..], &["tool_calls", &position]].concat(), gathered)?;
    }
    // Servers that call a single tool: an object, or the field before `tool_calls` existed.
    if delta["tool_calls"].is_object() {
        call_part(&delta["tool_calls"], data, &[&path[..], &["tool_calls"]].concat(), gathered)?;
    }
    let function = &delta["function_call"];
    function_part(
        function,
        data,
        &[&path[..], &["function_call"]].concat(),
        CallPart::default(),
        gathered,
    )
}

/// Adds a part of a call, which is at a path of a frame.
fn call_part(
    call: &Value,
    data: &str,
    path: &[&str],
    gathered: &mut PartialResponse,
) -> Result<(), ModelError> {
    let id = call["id"].as_str().unwrap_or_default();
    let part = CallPart { id, index: call["index"].as_u64(), ..CallPart::default() };
    match &call["function"] {
        Value::Null => function_part(call, data, path, part, gathered),
        function => function_part(function, data, &[path, &["function"]].concat(), part, gathered),
    }
}

/// Adds a part of a call, of which a frame has name and arguments at a path.
fn function_part<'a>(
    function: &'a Value,
    data: &str,
    path: &[&str],
    part: CallPart<'a>,
    gathered: &mut PartialResponse,
) -> Result<(), ModelError> {
    let name = function["name"].as_str().unwrap_or_default();
    let arguments = match &function["arguments"] {
        Value::Null => Arguments::None,
        value => Arguments::Piece(arguments_text(value, data, &[path, &["arguments"]].concat())),
    };
    gathered.calls.part(CallPart { name, arguments, ..part })
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

/// As of OpenAI, and of the servers with its API: vLLM, SGLang, llama.cpp, Mistral, DeepSeek, GLM, OpenRouter, and
/// gateways to other protocols.
const STOP_REASONS: StopReasons = StopReasons {
    end: &["stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed"],
    tool_use: &["tool_calls", "tool_call", "tool_use", "function_call"],
    length: &["length", "max_tokens", "model_length", "model_context_window_exceeded"],
    filtered: &["content_filter", "content_filtered", "refusal", "safety", "sensitive"],
    failed: &[
        "error",
        "abort",
        "aborted",
        "cancelled",
        "failed",
        "network_error",
        "server_error",
        "timeout",
        "insufficient_system_resource",
        "malformed_function_call",
    ],
};
