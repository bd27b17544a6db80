//! OpenAI's Responses. Nothing is stored at the provider: every request contains the whole conversation.
//!
//! <https://platform.openai.com/docs/api-reference/responses-streaming>. Items of server-side tools (searches,
//! programs, shells) are ignored, because we offer none.

use serde_json::{Map, Value, json};

use super::body::set;
use super::decoder::{Decoder, PartialResponse, parse};
use crate::classify;
use crate::{ModelCall, ModelError, ModelMessage, ModelRequest, Stop, ToolSpec};

/// The field of our messages with data for this protocol: encrypted reasoning items.
const CARRY: &str = "openai_responses";

pub(super) fn body(request: &ModelRequest) -> Value {
    let mut input = Vec::new();
    for message in &request.messages {
        write(message, &mut input);
    }
    let mut body = Map::new();
    set(&mut body, "model", Some(&request.model));
    set(&mut body, "instructions", request.system.as_ref());
    set(&mut body, "input", Some(input));
    set(&mut body, "stream", Some(true));
    set(&mut body, "store", Some(false));
    let tools: Vec<Value> = request.tools.iter().map(tool).collect();
    set(&mut body, "tools", (!tools.is_empty()).then_some(tools));
    set(&mut body, "temperature", request.temperature);
    set(&mut body, "max_output_tokens", request.max_tokens);
    let format = request.response_schema.as_ref().map(|schema| {
        let format = json!({
            "type": "json_schema", "name": "answer", "schema": schema, "strict": false
        });
        json!({ "format": format })
    });
    set(&mut body, "text", format);
    Value::Object(body)
}

fn write(message: &ModelMessage, input: &mut Vec<Value>) {
    match message {
        ModelMessage::System { text } => input.push(json!({ "role": "system", "content": text })),
        ModelMessage::User { text } => input.push(json!({ "role": "user", "content": text })),
        ModelMessage::Assistant { text, calls, carry, .. } => {
            let sealed = carry.as_ref().and_then(|carry| carry[CARRY].as_array());
            input.extend(sealed.into_iter().flatten().cloned());
            if !text.is_empty() {
                input.push(json!({ "role": "assistant", "content": text }));
            }
            input.extend(calls.iter().map(|call| {
                json!({
                    "type": "function_call",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": call.arguments,
                })
            }));
        }
        ModelMessage::Tool { call_id, content, .. } => input.push(json!({
            "type": "function_call_output", "call_id": call_id, "output": content
        })),
    }
}

/// `strict` is on by default, and would reject most schemas.
fn tool(tool: &ToolSpec) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": false,
    })
}

/// Decodes the stream. A call is complete in the event that ends its item.
#[derive(Default)]
pub(super) struct Responses {
    /// The type of the last item that is neither text, reasoning nor a call of our tools.
    unread: Option<String>,
}

impl Decoder for Responses {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        if data == "[DONE]" {
            return Ok(()); // Some proxies send it here too.
        }
        let event: Value = parse(data)?;
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "response.output_text.delta" => gathered.text(delta),
            "response.refusal.delta" => gathered.refusal(delta),
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                gathered.reasoning(delta);
            }
            "response.output_item.done" => self.item(&event["item"], gathered),
            "response.created" => gathered.model(event["response"]["model"].as_str()),
            "response.completed" | "response.incomplete" => {
                self.ended(&event["response"], gathered);
            }
            "response.failed" | "error" => return Err(classify::of_event(&event)),
            "" if !event["error"].is_null() => return Err(classify::of_event(&event)),
            _ => {}
        }
        Ok(())
    }
}

impl Responses {
    fn item(&mut self, item: &Value, gathered: &mut PartialResponse) {
        let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
        match item["type"].as_str() {
            Some("function_call") => gathered.call(ModelCall {
                id: text("call_id"),
                name: text("name"),
                arguments: text("arguments"),
            }),
            Some("reasoning") if item["encrypted_content"].is_string() => {
                let carry = gathered.carry.get_or_insert_with(|| json!({ CARRY: [] }));
                if let Some(sealed) = carry[CARRY].as_array_mut() {
                    sealed.push(item.clone());
                }
            }
            Some("message" | "reasoning") | None => {}
            Some(unread) => self.unread = Some(unread.to_owned()),
        }
    }

    fn ended(&mut self, response: &Value, gathered: &mut PartialResponse) {
        gathered.over = true;
        gathered.model(response["model"].as_str());
        // Some servers stream nothing and send everything at the end.
        if !gathered.has_begun() {
            for output in response["output"].as_array().into_iter().flatten() {
                let parts = output["content"].as_array().into_iter().flatten();
                let texts = parts.filter(|_| output["type"] == "message");
                for part in texts {
                    gathered.text(part["text"].as_str().unwrap_or_default());
                    gathered.refusal(part["refusal"].as_str().unwrap_or_default());
                }
                self.item(output, gathered);
            }
        }
        read_usage(&response["usage"], gathered);
        let stop = stop(response);
        gathered.stop = Some(match self.unread.take() {
            // The model called a server-side tool, which cannot be answered here.
            Some(unread) if stop == Stop::End && !gathered.has_begun() => Stop::UnknownTool(unread),
            _ => stop,
        });
    }
}

fn read_usage(usage: &Value, gathered: &mut PartialResponse) {
    let counts = &mut gathered.usage;
    counts.input_tokens = usage["input_tokens"].as_u64();
    counts.output_tokens = usage["output_tokens"].as_u64();
    counts.cached_tokens = usage["input_tokens_details"]["cached_tokens"].as_u64();
    counts.reasoning_tokens = usage["output_tokens_details"]["reasoning_tokens"].as_u64();
}

fn stop(response: &Value) -> Stop {
    let reason = response["incomplete_details"]["reason"].as_str();
    match (response["status"].as_str(), reason) {
        (_, Some("max_output_tokens")) => Stop::Length,
        (_, Some("content_filter")) => Stop::Filtered,
        (_, Some(other)) | (Some(other @ ("incomplete" | "cancelled")), None) => {
            Stop::Other(other.to_owned())
        }
        _ => Stop::End,
    }
}
