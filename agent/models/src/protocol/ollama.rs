//! Ollama's own `/api/chat`.
//!
//! <https://github.com/ollama/ollama/blob/main/docs/api.md>. Older versions send calls without ids: a missing id
//! becomes an empty one.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::body::{arguments_object, set};
use super::decoder::{Decoder, PartialResponse, parse};
use crate::classify;
use crate::{ModelCall, ModelError, ModelMessage, ModelRequest, Stop};

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
    #[serde(default)]
    done: bool,
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
    name: String,
    /// The original text, so that the arguments are exactly the model's.
    arguments: Option<Box<RawValue>>,
}

impl Decoder for Ollama {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        let line: Line = parse(data)?;
        if !line.error.is_null() {
            return Err(classify::of_event(&json!({ "error": line.error })));
        }
        gathered.model(line.model.as_deref());
        if let Some(message) = line.message {
            gathered.reasoning(message.thinking.as_deref().unwrap_or_default());
            gathered.text(message.content.as_deref().unwrap_or_default());
            message.tool_calls.into_iter().flatten().for_each(|call| gathered.call(called(call)));
        }
        if line.done {
            gathered.over = true;
            gathered.usage.input_tokens = line.prompt_eval_count;
            gathered.usage.output_tokens = line.eval_count;
            gathered.stop = Some(match line.done_reason.as_deref() {
                None | Some("stop") => Stop::End,
                Some("length") => Stop::Length,
                Some(other) => Stop::Other(other.to_owned()),
            });
        }
        Ok(())
    }
}

fn called(call: Call) -> ModelCall {
    let arguments = call.function.arguments.as_ref().map_or("{}", |arguments| arguments.get());
    // Some servers with this protocol send the arguments as a JSON string.
    let text = serde_json::from_str::<String>(arguments);
    ModelCall {
        id: call.id.unwrap_or_default(),
        name: call.function.name,
        arguments: text.unwrap_or_else(|_| arguments.to_owned()),
    }
}
