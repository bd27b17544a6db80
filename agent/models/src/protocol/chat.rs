//! OpenAI's Chat Completions, which most servers support in some dialect.
//!
//! <https://platform.openai.com/docs/api-reference/chat-streaming>

use serde_json::{Map, Value, json};

use super::body::{arguments_object_text, set};
use super::calls::{
    Arguments, CallPart, OpenCalls, has_unread_arguments, may_be_beside, may_have_arguments,
    unread_arguments,
};
use super::decoder::{
    Decoder, PartialResponse, UNSTATED, arguments_text, check_delta, id_text, index, parse,
};
use super::stop::StopReasons;
use crate::classify;
use crate::{ModelCall, ModelError, ModelMessage, ModelRequest, Stop, ToolSpec};

/// The field of our messages with data for this protocol: the `extra_content` of each call, or null. Gemini's endpoint for
/// this protocol puts the signatures of thoughts there, and rejects a conversation without them.
const CARRY: &str = "chat_completions";

/// The dialects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI itself.
    OpenAi,
    /// Other servers.
    Compatible,
}

pub(super) fn body(request: &ModelRequest, messages: &[ModelMessage], dialect: Dialect) -> Value {
    let system = request.system.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages = messages.iter().map(|message| write_message(message, dialect));
    let messages: Vec<Value> = system.chain(messages).collect();
    let mut body = Map::new();
    set(&mut body, "model", Some(&request.model));
    set(&mut body, "messages", Some(messages));
    set(&mut body, "stream", Some(true));
    set(&mut body, "stream_options", Some(json!({ "include_usage": true })));
    let tools: Vec<Value> = request.tools.iter().map(write_tool).collect();
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

fn write_message(message: &ModelMessage, dialect: Dialect) -> Value {
    match message {
        ModelMessage::System { text } => json!({ "role": "system", "content": text }),
        ModelMessage::User { text } => json!({ "role": "user", "content": text }),
        ModelMessage::Assistant { text, calls, .. } if calls.is_empty() => {
            json!({ "role": "assistant", "content": text })
        }
        ModelMessage::Assistant { text, reasoning, calls, carry } => {
            let content = (!text.is_empty()).then_some(text);
            let mut calls: Vec<Value> = calls.iter().map(write_call).collect();
            if dialect == Dialect::Compatible
                && let Some(carried) = carry.as_ref().and_then(|carry| carry[CARRY].as_array())
            {
                for (call, extra) in calls.iter_mut().zip(carried) {
                    if !extra.is_null() {
                        call["extra_content"] = extra.clone();
                    }
                }
            }
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

fn write_call(call: &ModelCall) -> Value {
    let function =
        json!({ "name": call.name, "arguments": arguments_object_text(&call.arguments) });
    json!({ "id": call.id, "type": "function", "function": function })
}

fn write_tool(tool: &ToolSpec) -> Value {
    json!({ "type": "function", "function": tool })
}

/// Decodes the stream. Nothing marks the end of a single call.
pub(super) struct Chat {
    /// Whether an answer without a stop reason is an error.
    requires_stop_reason: bool,
    /// Whether anything has arrived in pieces.
    has_deltas: bool,
    /// Whether any `tool_calls` have arrived. Then `function_call`, the older form, repeats one of them.
    has_tool_calls: bool,
}

/// The item of the call in `function_call`, of which an answer has one.
const FUNCTION_CALL: &str = "function_call";

/// Where a message or a part of one is in a frame.
struct Place<'a> {
    data: &'a str,
    /// The index of the choice.
    choice: String,
    /// The field of the choice.
    field: &'a str,
}

impl Decoder for Chat {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        if data.trim() == "[DONE]" {
            return self.read_done(gathered);
        }
        let chunk: Value = parse(data)?;
        let has_choices = chunk["choices"].as_array().is_some_and(|choices| !choices.is_empty());
        // A chunk with choices may have a `message` or a `code` without being an error.
        let is_report = if has_choices {
            classify::reports_error(&json!({ "base_resp": chunk["base_resp"] }))
        } else {
            classify::reports_error(&chunk)
        };
        if classify::is_error(&chunk["error"]) || is_report {
            return Err(classify::error_from_event(&chunk));
        }
        if has_choices {
            gathered.recognize();
        }
        gathered.set_model(chunk["model"].as_str());
        for usage in [&chunk["x_groq"]["usage"], &chunk["usage"]] {
            read_usage(usage, gathered);
        }
        let choices = chunk["choices"].as_array().into_iter().flatten();
        let mut choices = choices.enumerate();
        let first = choices.find(|(_, choice)| index(&choice["index"]).unwrap_or(0) == 0);
        let Some((at, choice)) = first else { return Ok(()) };
        for part in [choice, &choice["delta"], &choice["message"]] {
            if classify::is_error(&part["error"]) {
                return Err(classify::error_from_event(part));
            }
        }
        check_delta(&choice["delta"])?;
        check_delta(&choice["message"])?;
        // Arguments in a place that is not read: no call may run without them.
        for (part, name) in [(&chunk, "choices"), (choice, "message")] {
            let is_named =
                part.as_object().is_some_and(|fields| has_unread_arguments(fields, name));
            if is_named || may_have_arguments(&part["tool_calls"], &[]) {
                gathered.calls.note_unread();
            }
        }
        let has_calls = has_tool_calls(&choice["delta"]) || has_tool_calls(&choice["message"]);
        if has_calls && !self.has_tool_calls {
            self.has_tool_calls = true;
            gathered.calls.remove_item(FUNCTION_CALL);
        }
        if !is_blank(&choice["delta"]) {
            self.has_deltas = true;
            let place = Place::new(data, at, "delta");
            let is_last = !as_text(&choice["finish_reason"]).is_empty();
            self.read_delta(&choice["delta"], &place, is_last, gathered)?;
        }
        self.read_message(&choice["message"], &Place::new(data, at, "message"), gathered)?;
        gathered.push_text(choice["text"].as_str().unwrap_or_default());
        let reason = as_text(&choice["finish_reason"]);
        if !reason.is_empty() {
            gathered.set_stop(STOP_REASONS.read(reason, choice)?);
        }
        Ok(())
    }
}

impl Chat {
    pub(super) fn new(requires_stop_reason: bool) -> Self {
        Self { requires_stop_reason, has_deltas: false, has_tool_calls: false }
    }

    /// Reads `[DONE]`, with which the stream ends. An answer that has no stop reason gets one.
    fn read_done(&self, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        gathered.over = true;
        if !gathered.has_begun() || gathered.is_complete() {
            return Ok(());
        }
        // A text without a stop reason may have been cut off by an error.
        if self.requires_stop_reason && gathered.calls.is_empty() {
            let why = "the provider ended the answer without a `finish_reason`: if it never \
                       sends one, set `requires_stop_reason: false`";
            return Err(ModelError::invalid_response(why));
        }
        gathered.set_stop(Stop::Other(UNSTATED.to_owned()));
        Ok(())
    }

    /// Reads a whole message. Some servers send it in place of the pieces, after them, or as it grows.
    fn read_message(
        &self,
        message: &Value,
        place: &Place<'_>,
        gathered: &mut PartialResponse,
    ) -> Result<(), ModelError> {
        if is_blank(message) {
            return Ok(());
        }
        let mut whole = PartialResponse::default();
        self.read_delta(message, place, true, &mut whole)?;
        if gathered.reasoning.is_empty() {
            gathered.push_reasoning(&whole.reasoning);
        }
        if self.has_deltas || whole.text.starts_with(&gathered.text) {
            gathered.complete_text(&whole.text, whole.has_refusal());
        } else if whole.has_refusal() {
            gathered.push_refusal(&whole.text);
        } else {
            gathered.push_text(&whole.text);
        }
        if whole.calls.has_unread() {
            gathered.calls.note_unread();
        }
        let calls = whole.calls.finish(false)?;
        let places = gathered.calls.repeat(calls.iter().map(CallPart::from_call).collect())?;
        let listed = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        if listed.len() == places.len() {
            for (call, at) in listed.iter().zip(places) {
                carry(call, at, gathered);
            }
        }
        Ok(())
    }

    /// Reads a delta, or a message as one. `is_last`: the event has the stop reason.
    fn read_delta(
        &self,
        delta: &Value,
        place: &Place<'_>,
        is_last: bool,
        gathered: &mut PartialResponse,
    ) -> Result<(), ModelError> {
        let reasoning = [&delta["reasoning_content"], &delta["reasoning"]];
        let reasoning = reasoning.into_iter().filter_map(Value::as_str);
        gathered
            .push_reasoning(reasoning.max_by_key(|piece| !piece.is_empty()).unwrap_or_default());
        match &delta["content"] {
            Value::Array(parts) => parts.iter().for_each(|part| read_part(part, gathered)),
            part => read_part(part, gathered),
        }
        if let Some(piece) = delta["refusal"].as_str() {
            gathered.push_refusal(piece);
        }
        let is_named = delta.as_object().is_some_and(|fields| has_unread_arguments(fields, ""));
        if is_named || delta["tool_calls"].as_str().is_some_and(|text| !text.is_empty()) {
            gathered.calls.note_unread();
        }
        let list = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        if can_repeat(list, is_last, &gathered.calls) {
            let mut listed = OpenCalls::default();
            read_calls(list, place, &mut listed)?;
            if listed.has_unread() {
                gathered.calls.note_unread();
            }
            let listed = listed.finish(false).unwrap_or_default();
            if gathered.calls.are_repeated_by(&listed, is_last) {
                gathered.calls.repeat(listed.iter().map(CallPart::from_call).collect())?;
                return Ok(());
            }
        }
        for (call, at) in list.iter().zip(read_calls(list, place, &mut gathered.calls)?) {
            carry(call, at, gathered);
        }
        // Servers that call a single tool: an object, or the field before `tool_calls` existed.
        if delta["tool_calls"].is_object() {
            let call = &delta["tool_calls"];
            let at = read_call(call, place, &["tool_calls"], &mut gathered.calls)?;
            carry(call, at, gathered);
        }
        let function = &delta["function_call"];
        if self.has_tool_calls || is_blank(function) {
            return Ok(());
        }
        let part = CallPart { item: FUNCTION_CALL, ..CallPart::default() };
        read_function(function, place, &["function_call"], part, &mut gathered.calls)?;
        Ok(())
    }
}

impl<'a> Place<'a> {
    fn new(data: &'a str, choice: usize, field: &'a str) -> Self {
        Place { data, choice: choice.to_string(), field }
    }

    /// Returns the arguments in this field of the message, as text.
    fn arguments(&self, arguments: &Value, path: &[&str]) -> String {
        let path = [&["choices", &self.choice, self.field], path].concat();
        arguments_text(arguments, self.data, &path)
    }
}

/// Returns `true` if a delta, or a function in it, adds nothing.
fn is_blank(delta: &Value) -> bool {
    delta.as_object().is_none_or(|fields| {
        fields.iter().all(|(name, value)| name == "role" || value.is_null() || *value == "")
    })
}

/// Returns `true` if a delta or a message has calls.
fn has_tool_calls(delta: &Value) -> bool {
    match &delta["tool_calls"] {
        Value::Array(calls) => !calls.is_empty(),
        calls => calls.is_object(),
    }
}

/// Returns `true` if a list of calls can repeat those that have arrived. A single call at another index is another
/// call.
fn can_repeat(list: &[Value], is_last: bool, arrived: &OpenCalls) -> bool {
    match list {
        [] => false,
        [single] => is_last && index(&single["index"]).is_none_or(|index| arrived.has_index(index)),
        _ => !arrived.is_empty(),
    }
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Adds the parts of calls in a list of a message. Returns the positions of the calls.
fn read_calls(
    list: &[Value],
    place: &Place<'_>,
    calls: &mut OpenCalls,
) -> Result<Vec<usize>, ModelError> {
    list.iter()
        .enumerate()
        .map(|(at, call)| read_call(call, place, &["tool_calls", &at.to_string()], calls))
        .collect()
}

/// Stores what a call has for the next request, opaque to us. The call is at a position of the answer.
fn carry(call: &Value, at: usize, gathered: &mut PartialResponse) {
    let extra = &call["extra_content"];
    if extra.as_object().is_none_or(Map::is_empty) {
        return;
    }
    gathered.call_carry = Some("/chat_completions");
    let carried = gathered.carry.get_or_insert_with(|| json!({ CARRY: [] }));
    if let Some(carried) = carried[CARRY].as_array_mut() {
        carried.resize(carried.len().max(at + 1), Value::Null);
        carried[at] = extra.clone();
    }
}

/// Adds a part of a call, which is at a path of the message. Returns the position of the call.
fn read_call(
    call: &Value,
    place: &Place<'_>,
    path: &[&str],
    calls: &mut OpenCalls,
) -> Result<usize, ModelError> {
    let id = id_text(&call["id"]);
    let part = CallPart { id: &id, index: index(&call["index"]), ..CallPart::default() };
    match &call["function"] {
        Value::Null => read_function(call, place, path, part, calls),
        _ if call.as_object().is_some_and(|fields| has_unread_arguments(fields, "")) => {
            Err(unread_arguments())
        }
        function => {
            if may_have_arguments(call, &["function"]) {
                calls.note_unread();
            }
            read_function(function, place, &[path, &["function"]].concat(), part, calls)
        }
    }
}

/// Adds a part of a call, of which a message has name and arguments at a path.
fn read_function<'a>(
    function: &'a Value,
    place: &Place<'_>,
    path: &[&str],
    part: CallPart<'a>,
    calls: &mut OpenCalls,
) -> Result<usize, ModelError> {
    let fields = function.as_object();
    if fields.is_some_and(|fields| has_unread_arguments(fields, "arguments")) {
        return Err(unread_arguments());
    }
    if fields.is_some_and(|fields| may_be_beside(fields, &["arguments", "parsed_arguments"])) {
        calls.note_unread();
    }
    let name = function["name"].as_str().unwrap_or_default();
    let arguments = match &function["arguments"] {
        Value::Null => Arguments::None,
        value => Arguments::Piece(place.arguments(value, &[path, &["arguments"]].concat())),
    };
    calls.add_part(CallPart { name, arguments, ..part })
}

/// Reads a content, or a part of one: a text, or an object with a type.
fn read_part(part: &Value, gathered: &mut PartialResponse) {
    let text = [part, &part["text"], &part["text"]["value"]].into_iter().find_map(Value::as_str);
    let text = text.unwrap_or_default();
    match part["type"].as_str() {
        // Mistral's reasoning models.
        Some("thinking") => match &part["thinking"] {
            Value::Array(thoughts) => thoughts
                .iter()
                .filter_map(|thought| thought["text"].as_str())
                .for_each(|piece| gathered.push_reasoning(piece)),
            thought => gathered.push_reasoning(thought.as_str().unwrap_or(text)),
        },
        Some("reasoning" | "reasoning_text" | "summary_text") => gathered.push_reasoning(text),
        Some("refusal") => gathered.push_refusal(part["refusal"].as_str().unwrap_or(text)),
        _ => gathered.push_text(text),
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
/// gateways to other protocols, as Gemini's.
const STOP_REASONS: StopReasons = StopReasons {
    end: &["stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed"],
    tool_use: &["tool_calls", "tool_call", "tool_use", "function_call"],
    length: &[
        "length",
        "max_tokens",
        "model_length",
        "model_context_window_exceeded",
        "context_window",
        "max_len",
        "max_new_tokens",
        "truncated",
    ],
    filtered: &[
        "content_filter",
        "content_filtered",
        "refusal",
        "safety",
        "sensitive",
        "guardrail_intervened",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "language",
        "model_armor",
        "image_safety",
        "image_prohibited_content",
        "image_recitation",
    ],
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
        "incomplete",
        "oom",
        "pause_turn",
        "repetition",
        "time_limit",
        "finish_reason_unspecified",
        "other",
        "malformed_function_call",
        "malformed_response",
        "too_many_tool_calls",
        "missing_thought_signature",
        "image_other",
        "no_image",
    ],
};
