//! Ollama's own `/api/chat`.
//!
//! <https://github.com/ollama/ollama/blob/main/docs/api.md>. Older versions send calls without ids.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::body::{arguments_object, set};
use super::calls::{Arguments, CallPart};
use super::decoder::{Decoder, PartialResponse, arguments_text, original_arguments, parse};
use super::stop::StopReasons;
use crate::classify;
use crate::{ModelError, ModelMessage, ModelRequest, Stop};

pub(super) fn body(request: &ModelRequest) -> Value {
    let system = request.system.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages: Vec<Value> = system.chain(request.messages.iter().map(written)).collect();
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

fn written(message: &ModelMessage) -> Value {
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
}

#[derive(Deserialize)]
struct Message {
    content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: Option<String>,
    /// The original text, so that the arguments are exactly the model's.
    arguments: Option<Box<RawValue>>,
}

impl Decoder for Ollama {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        let line: Line = parse(data)?;
        if classify::is_error(&line.error) {
            return Err(classify::of_event(&json!({ "error": line.error })));
        }
        gathered.model(line.model.as_deref());
        if let Some(message) = line.message {
            gathered.reasoning(message.thinking.as_deref().unwrap_or_default());
            gathered.text(message.content.as_deref().unwrap_or_default());
            for (at, call) in message.tool_calls.into_iter().flatten().enumerate() {
                read_call(call, data, at, gathered)?;
            }
        }
        let reason = line.done_reason.as_deref().unwrap_or_default();
        if line.done == Some(true) || !reason.is_empty() {
            gathered.over = true;
            gathered.usage.input_tokens = line.prompt_eval_count;
            gathered.usage.output_tokens = line.eval_count;
            gathered.stopped(match reason {
                "" => Stop::End,
                reason => STOP_REASONS.read(reason, &Value::Null)?,
            });
        }
        Ok(())
    }
}

/// Adds the call at this place of a frame. Calls are complete, but some servers with this protocol send the
/// arguments as a JSON string.
fn read_call(
    call: Call,
    data: &str,
    at: usize,
    gathered: &mut PartialResponse,
) -> Result<(), ModelError> {
    let at = at.to_string();
    let path = ["message", "tool_calls", &at, "function", "arguments"];
    let arguments = match &call.function.arguments {
        None => Arguments::None,
        Some(raw) => Arguments::Piece(match serde_json::from_str(raw.get()) {
            Ok(text @ Value::String(_)) => arguments_text(&text, data, &path),
            _ => original_arguments(raw, data, &path),
        }),
    };
    let (id, name) = (call.id.unwrap_or_default(), call.function.name.unwrap_or_default());
    gathered.calls.whole(CallPart { id: &id, name: &name, arguments, ..CallPart::default() })?;
    Ok(())
}

/// A model that is loaded or unloaded gives no answer.
const STOP_REASONS: StopReasons = StopReasons {
    end: &["stop"],
    tool_use: &["tool_calls"],
    length: &["length"],
    filtered: &[],
    failed: &["error", "load", "unload"],
};
