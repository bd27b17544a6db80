//! Gemini's `streamGenerateContent`.
//!
//! <https://ai.google.dev/api/generate-content>. Gemini 3 and later reject a conversation if the signature of a
//! call is missing, so signatures are stored with the message.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::body::{all_instructions, arguments_object, set, take_turns};
use super::decoder::{Decoder, PartialResponse, parse};
use super::partial::{Partial, Piece};
use crate::classify;
use crate::{ModelCall, ModelError, ModelMessage, ModelRequest, Stop, ToolSpec};

/// The field of our messages with data for this protocol: `calls`, the signature of each call or null, and `text`,
/// that of the text.
const CARRY: &str = "gemini";

pub(super) fn body(request: &ModelRequest) -> Value {
    let turns = take_turns(request.messages.iter().filter_map(written));
    let contents: Vec<Value> =
        turns.into_iter().map(|(role, parts)| json!({ "role": role, "parts": parts })).collect();
    let mut body = Map::new();
    let system = all_instructions(request).map(|text| json!({ "parts": [{ "text": text }] }));
    set(&mut body, "systemInstruction", system);
    set(&mut body, "contents", Some(contents));
    let tools: Vec<Value> = request.tools.iter().map(tool).collect();
    let tools = (!tools.is_empty()).then(|| json!([{ "functionDeclarations": tools }]));
    set(&mut body, "tools", tools);
    let mut config = Map::new();
    set(&mut config, "temperature", request.temperature);
    set(&mut config, "maxOutputTokens", request.max_tokens);
    if let Some(schema) = &request.response_schema {
        set(&mut config, "responseMimeType", Some("application/json"));
        set(&mut config, "responseJsonSchema", Some(schema));
    }
    set(&mut body, "generationConfig", (!config.is_empty()).then_some(config));
    Value::Object(body)
}

fn written(message: &ModelMessage) -> Option<(&'static str, Vec<Value>)> {
    match message {
        ModelMessage::System { .. } => None,
        ModelMessage::User { text } => Some(("user", vec![json!({ "text": text })])),
        ModelMessage::Assistant { text, calls, carry, .. } => {
            let carried = carry.as_ref().map_or(&Value::Null, |carry| &carry[CARRY]);
            let parts =
                (!text.is_empty()).then(|| signed(json!({ "text": text }), &carried["text"]));
            let called = calls.iter().enumerate().map(|(at, call)| {
                let function = json!({
                    "name": call.name, "args": arguments_object(&call.arguments)
                });
                let function = with_id(function, &call.id);
                signed(json!({ "functionCall": function }), &carried["calls"][at])
            });
            Some(("model", parts.into_iter().chain(called).collect()))
        }
        ModelMessage::Tool { call_id, name, content, is_error } => {
            let outcome = if *is_error { "error" } else { "output" };
            let function = json!({ "name": name, "response": { outcome: content } });
            Some(("user", vec![json!({ "functionResponse": with_id(function, call_id) })]))
        }
    }
}

fn with_id(mut function: Value, id: &str) -> Value {
    if !id.is_empty() {
        function["id"] = json!(id);
    }
    function
}

fn signed(mut part: Value, signature: &Value) -> Value {
    if signature.is_string() {
        part["thoughtSignature"] = signature.clone();
    }
    part
}

fn tool(tool: &ToolSpec) -> Value {
    json!({
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": tool.parameters,
    })
}

/// Decodes the stream. A call arrives complete, or in pieces if that was requested.
#[derive(Default)]
pub(super) struct Gemini {
    open: Option<Partial>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk {
    #[serde(default)]
    candidates: Vec<Candidate>,
    #[serde(default)]
    usage_metadata: Value,
    model_version: Option<String>,
    #[serde(default)]
    prompt_feedback: Value,
    #[serde(default)]
    error: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate {
    content: Option<Content>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    text: Option<String>,
    #[serde(default)]
    thought: bool,
    thought_signature: Option<String>,
    function_call: Option<FunctionCall>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FunctionCall {
    id: Option<String>,
    name: Option<String>,
    /// The original text, so that the arguments are exactly the model's.
    args: Option<Box<RawValue>>,
    #[serde(default)]
    partial_args: Vec<Piece>,
    #[serde(default)]
    will_continue: bool,
}

impl Decoder for Gemini {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        let chunk: Chunk = parse(data)?;
        if !chunk.error.is_null() {
            return Err(classify::of_event(&json!({ "error": chunk.error })));
        }
        gathered.model(chunk.model_version.as_deref());
        usage(&chunk.usage_metadata, gathered);
        if let Some(reason) = chunk.prompt_feedback["blockReason"].as_str() {
            tracing::debug!(reason, "the provider held back the whole answer");
            gathered.stop = Some(Stop::Filtered);
        }
        let Some(candidate) = chunk.candidates.into_iter().next() else { return Ok(()) };
        for part in candidate.content.into_iter().flat_map(|content| content.parts) {
            self.part(part, gathered)?;
        }
        if let Some(reason) = candidate.finish_reason {
            gathered.stop = Some(stop(&reason));
            self.close(gathered);
        }
        Ok(())
    }

    /// The event that ends a call in pieces is sometimes missing.
    fn close(&mut self, gathered: &mut PartialResponse) {
        if gathered.stop.is_some()
            && let Some(open) = self.open.take()
        {
            assembled(open, gathered);
        }
    }
}

impl Gemini {
    fn part(&mut self, part: Part, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        let signature = part.thought_signature;
        if let Some(call) = part.function_call {
            return self.function_call(call, signature, gathered);
        }
        let text = part.text.unwrap_or_default();
        if part.thought {
            gathered.reasoning(&text);
        } else {
            gathered.text(&text);
            if let Some(signature) = signature {
                carry(gathered)["text"] = json!(signature);
            }
        }
        Ok(())
    }

    /// A part with a name starts a call; a part without one continues the current call.
    fn function_call(
        &mut self,
        call: FunctionCall,
        signature: Option<String>,
        gathered: &mut PartialResponse,
    ) -> Result<(), ModelError> {
        let (id, args) = (call.id.unwrap_or_default(), call.args);
        if let Some(name) = call.name {
            if let Some(open) = self.open.take() {
                assembled(open, gathered);
            }
            if !call.will_continue && call.partial_args.is_empty() {
                let arguments = args.map_or_else(|| "{}".to_owned(), |args| args.get().to_owned());
                called(ModelCall { id, name, arguments }, signature, gathered);
                return Ok(());
            }
            self.open = Some(Partial::new(id, name, signature));
        }
        let Some(open) = &mut self.open else {
            return Err(ModelError::invalid_response(
                "the stream continues a call that it did not start",
            ));
        };
        call.partial_args.into_iter().try_for_each(|piece| open.take(piece))?;
        if !call.will_continue
            && let Some(open) = self.open.take()
        {
            assembled(open, gathered);
        }
        Ok(())
    }
}

fn assembled(mut open: Partial, gathered: &mut PartialResponse) {
    let signature = open.signature.take();
    called(open.into_call(), signature, gathered);
}

fn called(call: ModelCall, signature: Option<String>, gathered: &mut PartialResponse) {
    let at = gathered.calls.len();
    gathered.call(call);
    if let Some(signature) = signature {
        let carried = &mut carry(gathered)["calls"];
        if let Some(signatures) = carried.as_array_mut() {
            signatures.resize(at, Value::Null);
            signatures.push(json!(signature));
        }
    }
}

fn carry(gathered: &mut PartialResponse) -> &mut Value {
    let empty = || json!({ CARRY: { "calls": [], "text": null } });
    &mut gathered.carry.get_or_insert_with(empty)[CARRY]
}

/// Every chunk may have token counts; later ones replace earlier ones. Thinking tokens are not included in those of
/// the answer.
fn usage(counts: &Value, gathered: &mut PartialResponse) {
    let number = |field: &str| counts[field].as_u64();
    let sum = |first: Option<u64>, second: Option<u64>| match (first, second) {
        (None, None) => None,
        (first, second) => Some(first.unwrap_or(0).saturating_add(second.unwrap_or(0))),
    };
    let usage = &mut gathered.usage;
    let input = sum(number("promptTokenCount"), number("toolUsePromptTokenCount"));
    usage.input_tokens = input.or(usage.input_tokens);
    let output = sum(number("candidatesTokenCount"), number("thoughtsTokenCount"));
    usage.output_tokens = output.or(usage.output_tokens);
    usage.cached_tokens = number("cachedContentTokenCount").or(usage.cached_tokens);
    usage.reasoning_tokens = number("thoughtsTokenCount").or(usage.reasoning_tokens);
}

fn stop(reason: &str) -> Stop {
    match reason {
        "STOP" => Stop::End,
        "MAX_TOKENS" => Stop::Length,
        "UNEXPECTED_TOOL_CALL" => Stop::UnknownTool("a tool".to_owned()),
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "LANGUAGE" => {
            Stop::Filtered
        }
        other => Stop::Other(other.to_owned()),
    }
}
