//! Gemini's `streamGenerateContent`.
//!
//! <https://ai.google.dev/api/generate-content>. Gemini 3 and later reject a conversation if the signature of a
//! call is missing, so signatures are stored with the message.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::body::{all_instructions, arguments_object, set, take_turns};
use super::calls::{Arguments, CallPart, has_unread_arguments, may_be_beside, unread_arguments};
use super::decoder::{
    Decoder, PartialResponse, UNREADABLE, error_report, is_damaged, original_arguments, parse,
};
use super::partial::PathPiece;
use super::stop::StopReasons;
use crate::classify;
use crate::{ModelCall, ModelError, ModelMessage, ModelRequest, Stop, ToolSpec};

/// The field of our messages with data for this protocol: `calls`, the signature of each call or null, and `text`,
/// that of the text.
const CARRY: &str = "gemini";

pub(super) fn body(request: &ModelRequest, messages: &[ModelMessage]) -> Value {
    let turns = take_turns(messages.iter().filter_map(write_message));
    let contents: Vec<Value> =
        turns.into_iter().map(|(role, parts)| json!({ "role": role, "parts": parts })).collect();
    let mut body = Map::new();
    let system = all_instructions(request).map(|text| json!({ "parts": [{ "text": text }] }));
    set(&mut body, "systemInstruction", system);
    set(&mut body, "contents", Some(contents));
    let tools: Vec<Value> = request.tools.iter().map(write_tool).collect();
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

fn write_message(message: &ModelMessage) -> Option<(&'static str, Vec<Value>)> {
    match message {
        ModelMessage::System { .. } => None,
        ModelMessage::User { text } => Some(("user", vec![json!({ "text": text })])),
        ModelMessage::Assistant { text, calls, carry, .. } => {
            let carried = carry.as_ref().map_or(&Value::Null, |carry| &carry[CARRY]);
            let parts = (!text.is_empty())
                .then(|| with_signature(json!({ "text": text }), &carried["text"]));
            let called = calls.iter().enumerate().map(|(at, call)| {
                let function = json!({
                    "name": call.name, "args": arguments_object(&call.arguments)
                });
                let function = with_id(function, &call.id);
                with_signature(json!({ "functionCall": function }), &carried["calls"][at])
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

fn with_signature(mut part: Value, signature: &Value) -> Value {
    if signature.is_string() {
        part["thoughtSignature"] = signature.clone();
    }
    part
}

fn write_tool(tool: &ToolSpec) -> Value {
    json!({
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": tool.parameters,
    })
}

/// Decodes the stream. A call arrives complete, or in pieces if that was requested. Some gateways write `function_call`
/// instead of `functionCall`, and so on.
pub(super) struct Gemini;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk {
    candidates: Option<Vec<Candidate>>,
    #[serde(default, alias = "usage_metadata")]
    usage_metadata: Value,
    #[serde(alias = "model_version")]
    model_version: Option<String>,
    #[serde(default, alias = "prompt_feedback")]
    prompt_feedback: Value,
    #[serde(default)]
    error: Value,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate {
    content: Option<Content>,
    #[serde(alias = "finish_reason")]
    finish_reason: Option<String>,
    #[serde(alias = "finish_message")]
    finish_message: Option<String>,
    #[serde(default)]
    error: Value,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Default, Deserialize)]
struct Content {
    parts: Option<Vec<Part>>,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    text: Option<String>,
    thought: Option<bool>,
    #[serde(alias = "thought_signature")]
    thought_signature: Option<String>,
    #[serde(alias = "function_call")]
    function_call: Option<FunctionCall>,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FunctionCall {
    id: Option<String>,
    name: Option<String>,
    /// The original text, so that the arguments are exactly the model's.
    args: Option<Box<RawValue>>,
    #[serde(alias = "partial_args")]
    partial_args: Option<Vec<PathPiece>>,
    #[serde(alias = "will_continue")]
    will_continue: Option<bool>,
    /// All other fields.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Decoder for Gemini {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        if data.trim() == "[DONE]" {
            gathered.over = gathered.is_complete(); // Some proxies send it here too.
            return Ok(());
        }
        let chunk: Chunk = parse(data)?;
        if classify::is_error(&chunk.error) {
            return Err(classify::error_from_event(&json!({ "error": chunk.error })));
        }
        gathered.set_model(chunk.model_version.as_deref());
        read_usage(&chunk.usage_metadata, gathered);
        let block_reason = chunk.prompt_feedback["blockReason"].as_str().unwrap_or_default();
        if !matches!(block_reason, "" | "BLOCK_REASON_UNSPECIFIED") {
            tracing::debug!(block_reason, "the provider held back the whole answer");
            gathered.set_stop(Stop::Filtered);
        }
        let candidate = chunk.candidates.into_iter().flatten().next();
        let Some(candidate) = candidate else {
            return error_report(data);
        };
        gathered.recognize();
        if classify::is_error(&candidate.error) {
            return Err(classify::error_from_event(&json!({ "error": candidate.error })));
        }
        let reason = candidate.finish_reason.as_deref().unwrap_or_default();
        let content = candidate.content.unwrap_or_default();
        let beside = [&chunk.others, &candidate.others, &content.others];
        if beside.into_iter().any(|fields| has_unread_arguments(fields, "")) {
            gathered.calls.note_unread();
        }
        let parts = content.parts.unwrap_or_default();
        let listed: Vec<ModelCall> = parts.iter().filter_map(whole_call).collect();
        let mut repeated = if gathered.calls.are_repeated_by(&listed, !reason.is_empty()) {
            gathered.calls.repeat(listed.iter().map(listed_part).collect())?
        } else {
            Vec::new()
        }
        .into_iter();
        for (at, part) in parts.into_iter().enumerate() {
            if whole_call(&part).is_some()
                && let Some(place) = repeated.next()
            {
                sign(place, part.thought_signature, gathered);
            } else {
                read_part(part, data, at, gathered)?;
            }
        }
        if !reason.is_empty() {
            let details = json!({ "message": candidate.finish_message });
            gathered.set_stop(STOP_REASONS.read(reason, &details)?);
        }
        Ok(())
    }
}

/// Adds the part at this place of a frame.
fn read_part(
    part: Part,
    data: &str,
    at: usize,
    gathered: &mut PartialResponse,
) -> Result<(), ModelError> {
    let is_named = has_unread_arguments(&part.others, "");
    if let Some(call) = part.function_call {
        if is_named {
            return Err(unread_arguments());
        }
        if may_be_beside(&part.others, &[]) || may_be_beside(&call.others, &[]) {
            gathered.calls.note_unread();
        }
        return read_call(call, data, at, part.thought_signature, gathered);
    }
    if is_named {
        gathered.calls.note_unread();
    }
    let signature = part.thought_signature.filter(|signature| !signature.is_empty());
    let text = part.text.unwrap_or_default();
    if part.thought == Some(true) {
        gathered.push_reasoning(&text);
    } else {
        gathered.push_text(&text);
        if let Some(signature) = signature {
            carry(gathered)["text"] = json!(signature);
        }
    }
    Ok(())
}

/// Adds a call, or a part of one. A part with a name starts a call; a part without one continues it.
fn read_call(
    call: FunctionCall,
    data: &str,
    at: usize,
    signature: Option<String>,
    gathered: &mut PartialResponse,
) -> Result<(), ModelError> {
    if has_unread_arguments(&call.others, "args") {
        return Err(unread_arguments());
    }
    let id = call.id.unwrap_or_default();
    let name = call.name.unwrap_or_default();
    let pieces = call.partial_args.unwrap_or_default();
    let continues = call.will_continue == Some(true);
    let at = at.to_string();
    let path = ["candidates", "0", "content", "parts", &at, "functionCall", "args"];
    // An empty object can be the place where arguments in a later part belong.
    let arguments = match call.args.filter(|args| !is_empty_object(args)) {
        Some(args) => Arguments::Piece(original_arguments(&args, data, &path)),
        None => Arguments::None,
    };
    let index = index_of(&id);
    let place = if name.is_empty() {
        let why = "the stream continues a call that it did not start";
        let place = gathered.calls.with_id_or_last(&id);
        let place = place.ok_or_else(|| ModelError::invalid_response(why))?;
        gathered.calls.add_arguments(place, arguments)?;
        place
    } else if id.is_empty() || (pieces.is_empty() && !continues) {
        let part = CallPart { id: &id, name: &name, index, arguments, ..CallPart::default() };
        gathered.calls.add_whole(part)?
    } else {
        let part = CallPart { id: &id, name: &name, index, arguments, ..CallPart::default() };
        gathered.calls.announce(part, String::new())?
    };
    sign(place, signature, gathered);
    if !pieces.is_empty() && is_damaged(data) {
        gathered.calls.add_arguments(place, Arguments::Piece(UNREADABLE.to_owned()))?;
    }
    for piece in pieces {
        gathered.calls.add_arguments(place, Arguments::At(piece))?;
    }
    gathered.calls.set_continues(place, continues);
    if !continues {
        // Without arguments, the field is absent.
        gathered.calls.end(place);
    }
    Ok(())
}

fn listed_part(call: &ModelCall) -> CallPart<'_> {
    CallPart { index: index_of(&call.id), ..CallPart::from_call(call) }
}

/// Returns the index of a call. The protocol has none, and one id is one call: at one index, other arguments contradict it.
fn index_of(id: &str) -> Option<u64> {
    (!id.is_empty()).then_some(0)
}

/// Returns the call of a part that has all of it.
fn whole_call(part: &Part) -> Option<ModelCall> {
    let call = part.function_call.as_ref()?;
    let is_whole = call.partial_args.is_none()
        && !has_unread_arguments(&part.others, "")
        && call.will_continue != Some(true)
        && !has_unread_arguments(&call.others, "args");
    let name = call.name.clone().filter(|name| is_whole && !name.is_empty())?;
    let arguments = call.args.as_ref().map_or("{}", |args| args.get()).to_owned();
    Some(ModelCall { id: call.id.clone().unwrap_or_default(), name, arguments })
}

/// Stores the signature of the call at this place.
fn sign(place: usize, signature: Option<String>, gathered: &mut PartialResponse) {
    if let Some(signature) = signature.filter(|signature| !signature.is_empty())
        && let Some(signatures) = carry(gathered)["calls"].as_array_mut()
    {
        signatures.resize(signatures.len().max(place + 1), Value::Null);
        signatures[place] = json!(signature);
    }
}

fn is_empty_object(arguments: &RawValue) -> bool {
    serde_json::from_str::<Map<String, Value>>(arguments.get()).is_ok_and(|it| it.is_empty())
}

fn carry(gathered: &mut PartialResponse) -> &mut Value {
    gathered.call_carry = Some("/gemini/calls");
    &mut gathered.carry.get_or_insert_with(|| json!({ CARRY: { "calls": [], "text": null } }))
        [CARRY]
}

/// Every chunk may have token counts; later ones replace earlier ones. Thinking tokens are not included in those of
/// the answer.
fn read_usage(counts: &Value, gathered: &mut PartialResponse) {
    let number = |field: &str| counts[field].as_u64();
    let usage = &mut gathered.usage;
    let input = add_counts(number("promptTokenCount"), number("toolUsePromptTokenCount"));
    usage.input_tokens = input.or(usage.input_tokens);
    let output = add_counts(number("candidatesTokenCount"), number("thoughtsTokenCount"));
    usage.output_tokens = output.or(usage.output_tokens);
    usage.cached_tokens = number("cachedContentTokenCount").or(usage.cached_tokens);
    usage.reasoning_tokens = number("thoughtsTokenCount").or(usage.reasoning_tokens);
}

/// Returns the sum of two counts; `None` if the provider has stated neither.
fn add_counts(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    match (first, second) {
        (None, None) => None,
        (first, second) => Some(first.unwrap_or(0).saturating_add(second.unwrap_or(0))),
    }
}

/// <https://ai.google.dev/api/generate-content#FinishReason>
const STOP_REASONS: StopReasons = StopReasons {
    end: &["stop"],
    tool_use: &[],
    length: &["max_tokens"],
    filtered: &[
        "safety",
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
