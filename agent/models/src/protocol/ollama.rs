//! Ollama's own `/api/chat`.
//!
//! <https://github.com/ollama/ollama/blob/main/docs/api.md>. Older versions send calls without ids.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::body::{arguments_object, set};
use super::calls::{Arguments, CallPart, has_unread_arguments, may_be_beside, unread_arguments};
use super::decoder::{
    Decoder, PartialResponse, arguments_text, error_report, index, original_arguments, parse,
};
use super::stop::StopReasons;
use crate::classify;
use crate::{ModelCall, ModelError, ModelMessage, ModelRequest, Stop};

pub(super) fn body(request: &ModelRequest) -> Value {
    let system = request.system.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages: Vec<Value> = system.chain(request.messages.iter().map(write_message)).collect();
    let mut body = Map::new();
    set(&mut body, "model", Some(&request.model));
    set(&mut body, "messages", Some(messages));
    set(&mut body, "stream", Some(true));
    let tools = request.tools.iter().map(|tool| json!({ "type": "function", "function": tool }));
    let tools: Vec<Value> = tools.collect();
    set(&mut body, "tools", (!tools.is_empty()).then_some(tools));
    set(&mut body, "format", request.response_schema.as_ref());
    let mut options = Map::new();
    set(&mut options, "temperature", request.temperature);
    set(&mut options, "num_predict", request.max_tokens);
    set(&mut body, "options", (!options.is_empty()).then_some(options));
    Value::Object(body)
}

fn write_message(message: &ModelMessage) -> Value {
    match message {
        ModelMessage::System { text } => json!({ "role": "system", "content": text }),
        ModelMessage::User { text } => json!({ "role": "user", "content": text }),
        ModelMessage::Assistant { text, calls, .. } => {
            let calls = calls.iter().map(|call| {
                let arguments = arguments_object(&call.arguments);
                json!({ "function": { "name": call.name, "arguments": arguments } })
            });
            let calls: Vec<Value> = calls.collect();
            let mut message = json!({ "role": "assistant", "content": text });
            if !calls.is_empty() {
                message["tool_calls"] = json!(calls);
            }
            message
        }
        ModelMessage::Tool { name, content, .. } => {
            json!({ "role": "tool", "tool_name": name, "content": content })
        }
    }
}

/// Decodes the stream: one object per line, with complete calls.
pub(super) struct Ollama;

#[derive(Deserialize)]
struct Line {
    message: Option<Message>,
    done: Option<bool>,
    done_reason: Option<String>,
    model: Option<String>,
    prompt_eval_count: Option<u64>,
    eval_count: Option<u64>,
    #[serde(default)]
    error: Value,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<Call>>,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
struct Call {
    id: Option<String>,
    function: Function,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
struct Function {
    name: Option<String>,
    #[serde(default)]
    index: Value,
    /// The original text, so that the arguments are exactly the model's.
    arguments: Option<Box<RawValue>>,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Decoder for Ollama {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        let line: Line = parse(data)?;
        if classify::is_error(&line.error) {
            return Err(classify::error_from_event(&json!({ "error": line.error })));
        }
        if line.message.is_none() {
            error_report(data)?;
        }
        if has_unread_arguments(&line.others, "") {
            gathered.calls.note_unread();
        }
        gathered.set_model(line.model.as_deref());
        let reason = line.done_reason.as_deref().unwrap_or_default();
        let is_last = line.done == Some(true) || !reason.is_empty();
        if let Some(message) = line.message {
            gathered.push_reasoning(message.thinking.as_deref().unwrap_or_default());
            gathered.push_text(message.content.as_deref().unwrap_or_default());
            let calls = message.tool_calls.unwrap_or_default();
            for call in &calls {
                let beside = [&call.others, &call.function.others];
                if beside.into_iter().any(|fields| has_unread_arguments(fields, "")) {
                    return Err(unread_arguments());
                }
                if beside.into_iter().any(|fields| may_be_beside(fields, &[])) {
                    gathered.calls.note_unread();
                }
            }
            if has_unread_arguments(&message.others, "") {
                gathered.calls.note_unread();
            }
            let indexes: Vec<Option<u64>> = calls.iter().map(index_of).collect();
            let calls = calls.into_iter().enumerate();
            let calls: Vec<ModelCall> = calls.map(|(at, call)| read_call(call, data, at)).collect();
            if gathered.calls.are_repeated_by(&calls, is_last) {
                let parts = calls.iter().zip(indexes);
                let parts =
                    parts.map(|(call, index)| CallPart { index, ..CallPart::from_call(call) });
                gathered.calls.repeat(parts.collect())?;
            } else {
                for (call, index) in calls.iter().zip(indexes) {
                    let arguments = Arguments::Piece(call.arguments.clone());
                    gathered.calls.add_whole(CallPart {
                        index,
                        arguments,
                        ..CallPart::from_call(call)
                    })?;
                }
            }
        }
        if is_last {
            gathered.over = true;
            gathered.usage.input_tokens = line.prompt_eval_count;
            gathered.usage.output_tokens = line.eval_count;
            gathered.set_stop(match reason {
                "" => Stop::End,
                reason => STOP_REASONS.read(reason, &Value::Null)?,
            });
        }
        Ok(())
    }
}

/// Returns the index of a call. Some servers give none, but an id: one id is one call, which other arguments contradict.
fn index_of(call: &Call) -> Option<u64> {
    let has_id = call.id.as_ref().is_some_and(|id| !id.is_empty());
    index(&call.function.index).or(has_id.then_some(0))
}

/// Returns the call at this place of a frame. Calls are complete, but some servers with this protocol send the
/// arguments as a JSON string.
fn read_call(call: Call, data: &str, at: usize) -> ModelCall {
    let at = at.to_string();
    let path = ["message", "tool_calls", &at, "function", "arguments"];
    let arguments = match &call.function.arguments {
        None => String::new(),
        Some(raw) => match serde_json::from_str(raw.get()) {
            Ok(text @ Value::String(_)) => arguments_text(&text, data, &path),
            _ => original_arguments(raw, data, &path),
        },
    };
    ModelCall {
        id: call.id.unwrap_or_default(),
        name: call.function.name.unwrap_or_default(),
        arguments,
    }
}

/// A model that is loaded or unloaded gives no answer.
const STOP_REASONS: StopReasons = StopReasons {
    end: &["stop"],
    tool_use: &["tool_calls"],
    length: &["length"],
    filtered: &[],
    failed: &["error", "load", "unload"],
};
