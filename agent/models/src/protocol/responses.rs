//! OpenAI's Responses. Nothing is stored at the provider: every request contains the whole conversation.
//!
//! <https://platform.openai.com/docs/api-reference/responses-streaming>. Items of server-side tools (searches,
//! programs, shells) are ignored, because we offer none.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use super::body::{arguments_object_text, set};
use super::calls::{
    Arguments, CallPart, OpenCalls, has_unread_arguments, may_be_beside, may_have_arguments,
    unread_arguments,
};
use super::decoder::{Decoder, PartialResponse, arguments_text, parse};
use super::stop::StopReasons;
use crate::classify::{self, truncated_line};
use crate::{ModelError, ModelMessage, ModelRequest, Stop, ToolSpec};

/// The field of our messages with data for this protocol: encrypted reasoning items.
const CARRY: &str = "openai_responses";

pub(super) fn body(request: &ModelRequest, messages: &[ModelMessage]) -> Value {
    let mut input = Vec::new();
    for message in messages {
        write_message(message, &mut input);
    }
    let mut body = Map::new();
    set(&mut body, "model", Some(&request.model));
    set(&mut body, "instructions", request.system.as_ref());
    set(&mut body, "input", Some(input));
    set(&mut body, "stream", Some(true));
    set(&mut body, "store", Some(false));
    let tools: Vec<Value> = request.tools.iter().map(write_tool).collect();
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

fn write_message(message: &ModelMessage, input: &mut Vec<Value>) {
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
                    "arguments": arguments_object_text(&call.arguments),
                })
            }));
        }
        ModelMessage::Tool { call_id, content, .. } => input.push(json!({
            "type": "function_call_output", "call_id": call_id, "output": content
        })),
    }
}

/// `strict` is on by default, and would reject most schemas.
fn write_tool(tool: &ToolSpec) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": false,
    })
}

/// Decodes the stream. Text and calls arrive in pieces, then whole in the events that end their part and their item,
/// then again in the last event. Some servers omit some of these.
#[derive(Default)]
pub(super) struct Responses {
    /// The texts of the events that end a text.
    texts: MessageTexts,
    /// The texts of the events that end a part of a message.
    parts: MessageTexts,
    /// The texts of the events that end an item.
    items: MessageTexts,
    /// The items whose texts arrive in pieces.
    with_deltas: BTreeSet<ItemPlace>,
    /// The type of the last item that is neither text, reasoning nor a call of our tools.
    unread: Option<String>,
    /// The type and the status of a message or a call that is not complete.
    unfinished: Option<(String, String)>,
    /// The type of the last item that waits for a result which no tool of ours can give.
    unanswerable: Option<String>,
    order: Order,
}

/// The order of the events by their sequence numbers. Not all servers number events, and some give all events the same
/// number, which says nothing.
#[derive(Default)]
struct Order {
    /// The largest number so far.
    last: Option<u64>,
    /// Whether different numbers have arrived, so that the numbers identify events.
    is_numbered: bool,
    /// A hash of each event, by its number.
    seen: BTreeMap<u64, u64>,
    /// Where the numbers first had a gap or went back: the largest number before, and the number that came.
    disorder: Option<(u64, u64)>,
}

/// Whether an event has arrived before.
#[derive(PartialEq, Eq)]
enum Arrival {
    First,
    /// With the same number and the same text: a proxy sent it twice.
    Repeated,
}

/// Items of tools that the client runs, or must allow. We offer none of them.
const CLIENT_ITEMS: [&str; 6] = [
    "custom_tool_call",
    "computer_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "mcp_approval_request",
];

/// The texts of several messages.
#[derive(Default)]
struct MessageTexts {
    /// The texts in their order, and whether each is a refusal.
    texts: Vec<(String, bool)>,
    /// Where the text of a part of an item is. A part without an index is recognized by its text.
    by_part: BTreeMap<(ItemPlace, Option<u64>, String), usize>,
    ids: BTreeSet<String>,
    output_indexes: BTreeSet<u64>,
}

/// What an event says about the item to which it belongs.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ItemPlace {
    id: String,
    output_index: Option<u64>,
}

impl Decoder for Responses {
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError> {
        if data.trim() == "[DONE]" {
            return Ok(()); // Some proxies send it here too.
        }
        let event: Value = parse(data)?;
        if self.order.note(&event, data) == Arrival::Repeated {
            return Ok(());
        }
        if classify::is_error(&event["error"]) || classify::is_error(&event["response"]["error"]) {
            return Err(classify::error_from_event(&event));
        }
        if event["type"].is_null() && classify::reports_error(&event) {
            return Err(classify::error_from_event(&event));
        }
        let fields = event.as_object();
        if fields.is_some_and(|fields| has_unread_arguments(fields, "arguments")) {
            gathered.calls.note_unread();
        }
        let delta = event["delta"].as_str().unwrap_or_default();
        let kind = event["type"].as_str().unwrap_or_default();
        if kind.starts_with("response.") {
            gathered.recognize();
        }
        match kind {
            "response.output_text.delta" => {
                self.with_deltas.insert(ItemPlace::from_event(&event));
                gathered.push_text(delta);
            }
            "response.refusal.delta" => {
                self.with_deltas.insert(ItemPlace::from_event(&event));
                gathered.push_refusal(delta);
            }
            "response.output_text.done" | "response.refusal.done" => {
                self.texts.add_part(
                    ItemPlace::from_event(&event),
                    event["content_index"].as_u64(),
                    &event,
                );
            }
            "response.content_part.done" => {
                let at = event["content_index"].as_u64();
                self.parts.add_part(ItemPlace::from_event(&event), at, &event["part"]);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                gathered.push_reasoning(delta);
            }
            "response.output_item.added" => {
                let item = &event["item"];
                if item["type"] == "function_call" {
                    check_call(item, &mut gathered.calls)?;
                    let arguments =
                        arguments_text(&item["arguments"], data, &["item", "arguments"]);
                    gathered.calls.announce(call_part(&event, item, Arguments::None), arguments)?;
                }
            }
            "response.function_call_arguments.delta" => {
                let piece = Arguments::Piece(arguments_text(&event["delta"], data, &["delta"]));
                gathered.calls.add_part(call_part(&event, &Value::Null, piece))?;
            }
            "response.function_call_arguments.done" => {
                let whole = arguments_text(&event["arguments"], data, &["arguments"]);
                let part = call_part(&event, &Value::Null, Arguments::Whole(whole));
                gathered.calls.complete(part, false)?;
            }
            "response.output_item.done" => {
                let item = &event["item"];
                self.read_status(item);
                if item["type"] == "function_call" {
                    check_call(item, &mut gathered.calls)?;
                    let whole = arguments_text(&item["arguments"], data, &["item", "arguments"]);
                    gathered
                        .calls
                        .complete(call_part(&event, item, Arguments::Whole(whole)), true)?;
                } else {
                    let output_index = event["output_index"].as_u64();
                    self.items
                        .add(ItemPlace { id: as_text(&item["id"]).to_owned(), output_index }, item);
                    self.read_item(item, gathered);
                }
            }
            "response.created" | "response.in_progress" => {
                gathered.set_model(event["response"]["model"].as_str());
            }
            kind @ ("response.completed" | "response.incomplete") => {
                let status = kind.trim_start_matches("response.");
                self.end(&event["response"], status, data, gathered)?;
            }
            "error" => return Err(classify::error_from_event(&event)),
            kind @ ("response.failed" | "response.cancelled") => {
                let status = kind.trim_start_matches("response.");
                return Err(classify::error_from_stop(status, &event["response"]));
            }
            // It may be a piece of the arguments, without which the call would run with the others.
            kind if kind.ends_with(".delta")
                && gathered.calls.has_item(as_text(&event["item_id"])) =>
            {
                return Err(unread_arguments());
            }
            _ if gathered.calls.has_item(as_text(&event["item_id"]))
                && may_have_arguments(&event, &[]) =>
            {
                gathered.calls.note_unread();
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the part of a call in an event that may have its item.
fn call_part<'a>(event: &'a Value, item: &'a Value, arguments: Arguments) -> CallPart<'a> {
    CallPart {
        id: as_text(&item["call_id"]),
        item: some_text(&event["item_id"]).unwrap_or_else(|| as_text(&item["id"])),
        index: event["output_index"].as_u64(),
        name: some_text(&item["name"]).unwrap_or_else(|| as_text(&event["name"])),
        arguments,
    }
}

/// Checks that an item, which is a call, has its arguments only where they are read.
fn check_call(item: &Value, calls: &mut OpenCalls) -> Result<(), ModelError> {
    let Some(fields) = item.as_object() else { return Ok(()) };
    if has_unread_arguments(fields, "arguments") {
        return Err(unread_arguments());
    }
    if may_be_beside(fields, &["arguments", "parsed_arguments"]) {
        calls.note_unread();
    }
    Ok(())
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn some_text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

impl Order {
    /// Notes the number of an event; `data` is its text. An event without a number counts as new.
    fn note(&mut self, event: &Value, data: &str) -> Arrival {
        let Some(number) = event["sequence_number"].as_u64() else { return Arrival::First };
        let mut hasher = DefaultHasher::new();
        data.hash(&mut hasher);
        let hash = hasher.finish();
        self.is_numbered |= self.last.is_some_and(|last| last != number);
        if self.is_numbered && self.seen.get(&number) == Some(&hash) {
            return Arrival::Repeated;
        }
        self.seen.insert(number, hash);
        if let Some(last) = self.last {
            let is_next = last.checked_add(1) == Some(number);
            if self.is_numbered && !is_next && self.disorder.is_none() {
                self.disorder = Some((last, number));
            }
        }
        self.last = self.last.max(Some(number));
        Arrival::First
    }
}

impl ItemPlace {
    fn from_event(event: &Value) -> Self {
        let output_index = event["output_index"].as_u64();
        Self { id: as_text(&event["item_id"]).to_owned(), output_index }
    }

    fn is_stated(&self) -> bool {
        !self.id.is_empty() || self.output_index.is_some()
    }
}

impl MessageTexts {
    /// Adds the texts of an item, if it is a message.
    fn add(&mut self, place: ItemPlace, item: &Value) {
        if item["type"] != "message" {
            return;
        }
        let content = &item["content"];
        let parts = content.as_array().map_or(std::slice::from_ref(content), Vec::as_slice);
        for (at, part) in parts.iter().enumerate() {
            let item = ItemPlace { id: place.id.clone(), ..place };
            self.add_part(item, Some(at as u64), part);
        }
    }

    /// Adds a part of a message, or replaces the one that has come before at the same place.
    fn add_part(&mut self, item: ItemPlace, content_index: Option<u64>, part: &Value) {
        if part["type"] == "reasoning_text" {
            return;
        }
        let refusal = as_text(&part["refusal"]);
        let stated = part.as_str().unwrap_or(as_text(&part["text"]));
        let is_refusal = !refusal.is_empty();
        let added = ([stated, refusal].concat(), is_refusal);
        if added.0.is_empty() {
            return;
        }
        if !item.id.is_empty() {
            self.ids.insert(item.id.clone());
        }
        self.output_indexes.extend(item.output_index);
        let unindexed = if content_index.is_some() { "" } else { &added.0 };
        if !item.is_stated() {
            return self.texts.push(added);
        }
        match self.by_part.entry((item, content_index, unindexed.to_owned())) {
            Entry::Occupied(same) => self.texts[*same.get()] = added,
            Entry::Vacant(place) => {
                place.insert(self.texts.len());
                self.texts.push(added);
            }
        }
    }

    fn text(&self) -> String {
        self.texts.iter().map(|(text, _)| text.as_str()).collect()
    }

    fn has_refusal(&self) -> bool {
        self.texts.iter().any(|(_, is_refusal)| *is_refusal)
    }

    /// Returns `true` if it has a text of an item, as far as this is known.
    fn contains(&self, item: &ItemPlace) -> bool {
        let has_index = item.output_index.is_some_and(|at| self.output_indexes.contains(&at));
        let has_unplaced = self.texts.len() > self.by_part.len();
        has_index || has_unplaced || self.ids.contains(&item.id) || !item.is_stated()
    }
}

impl Responses {
    /// Reads the status of an item in an event that ends it. An item without a status is complete.
    fn read_status(&mut self, item: &Value) {
        let kind = as_text(&item["type"]);
        let status = as_text(&item["status"]);
        // OpenAI leaves a call of a program that runs there in progress until it has the result.
        let waits = status == "in_progress" && item["caller"]["type"] == "program";
        let is_complete = matches!(status, "" | "completed") || waits;
        if !is_complete && matches!(kind, "message" | "function_call") {
            self.unfinished = Some((kind.to_owned(), truncated_line(status)));
        }
    }

    /// Reads an item that is not a call.
    fn read_item(&mut self, item: &Value, gathered: &mut PartialResponse) {
        match item["type"].as_str() {
            Some("reasoning") if item["encrypted_content"].is_string() => {
                let carry = gathered.carry.get_or_insert_with(|| json!({ CARRY: [] }));
                // The last event repeats the item, encrypted once more.
                let is_same = |it: &Value| {
                    it["id"].is_string() && it["id"] == item["id"]
                        || it["encrypted_content"] == item["encrypted_content"]
                };
                if let Some(sealed) = carry[CARRY].as_array_mut()
                    && !sealed.iter().any(is_same)
                {
                    sealed.push(item.clone());
                }
            }
            Some("message" | "reasoning" | "function_call") | None => {}
            Some(kind) if CLIENT_ITEMS.contains(&kind) => {
                self.unanswerable = Some(kind.to_owned());
            }
            Some(unread) => self.unread = Some(unread.to_owned()),
        }
    }

    /// Sets the text of the answer to that of the last event. If it has none, the longest text of the events that end items, parts and
    /// texts counts, unless it lacks an item of which pieces have arrived.
    fn settle_text(&self, listed: &MessageTexts, gathered: &mut PartialResponse) {
        if !listed.texts.is_empty() {
            return gathered.settle_text(&listed.text(), listed.has_refusal());
        }
        let ended = [&self.texts, &self.parts, &self.items];
        let ended = ended.map(|texts| (texts.text(), texts));
        let longest = ended.into_iter().max_by_key(|(text, _)| text.len());
        let Some((whole, texts)) = longest.filter(|(text, _)| !text.is_empty()) else { return };
        if self.with_deltas.iter().all(|item| texts.contains(item)) {
            gathered.settle_text(&whole, texts.has_refusal());
        } else {
            gathered.complete_text(&whole, texts.has_refusal());
        }
    }

    /// Reads the last event. Its type is the status of a response that states none.
    fn end(
        &mut self,
        response: &Value,
        status: &str,
        data: &str,
        gathered: &mut PartialResponse,
    ) -> Result<(), ModelError> {
        gathered.over = true;
        gathered.set_model(response["model"].as_str());
        read_usage(&response["usage"], gathered);
        let mut texts = MessageTexts::default();
        let mut calls = Vec::new();
        for (at, item) in response["output"].as_array().into_iter().flatten().enumerate() {
            let place = ItemPlace { id: String::new(), output_index: Some(at as u64) };
            texts.add(place, item);
            self.read_status(item);
            self.read_item(item, gathered);
            if item["type"] == "function_call" {
                check_call(item, &mut gathered.calls)?;
                let path = ["response", "output", &at.to_string(), "arguments"];
                let whole = Arguments::Whole(arguments_text(&item["arguments"], data, &path));
                let call = call_part(&Value::Null, item, whole);
                calls.push(CallPart { index: Some(at as u64), ..call });
            }
        }
        gathered.calls.repeat(calls)?;
        // A proxy may have left out events that say nothing. What was said as a whole has no missing piece.
        if let (Some((last, next)), Some(name)) = (self.order.disorder, gathered.calls.in_pieces())
        {
            let why = if last < next {
                format!(
                    "the stream has no event between those with the sequence numbers {last} and {next}: \
                     a piece of a call of `{name}` may be missing"
                )
            } else {
                format!(
                    "the stream has the sequence number {next} after {last}: the pieces of a call of \
                     `{name}` may be in another order"
                )
            };
            return Err(ModelError::invalid_response(why));
        }
        self.settle_text(&texts, gathered);
        let stop = stop(response, status)?;
        if stop == Stop::End
            && let Some((kind, status)) = self.unfinished.take()
        {
            let why = format!("the provider ended the answer, but its {kind} is `{status}`");
            return Err(ModelError::invalid_response(why));
        }
        gathered.set_stop(match (self.unanswerable.take(), self.unread.take()) {
            (Some(kind), _) if stop == Stop::End => Stop::UnknownTool(kind),
            // The model called a server-side tool, which cannot be answered here.
            (_, Some(kind)) if stop == Stop::End && !gathered.has_begun() => {
                Stop::UnknownTool(kind)
            }
            _ => stop,
        });
        Ok(())
    }
}

fn read_usage(usage: &Value, gathered: &mut PartialResponse) {
    let counts = &mut gathered.usage;
    counts.input_tokens = usage["input_tokens"].as_u64();
    counts.output_tokens = usage["output_tokens"].as_u64();
    counts.cached_tokens = usage["input_tokens_details"]["cached_tokens"].as_u64();
    counts.reasoning_tokens = usage["output_tokens_details"]["reasoning_tokens"].as_u64();
}

/// Returns why a response ended: by the reason that it is incomplete, or by its status.
fn stop(response: &Value, otherwise: &str) -> Result<Stop, ModelError> {
    match as_text(&response["incomplete_details"]["reason"]) {
        "" => {
            let status = some_text(&response["status"]).unwrap_or(otherwise);
            STOP_REASONS.read(status, response)
        }
        // An unknown reason, too, means that something is missing.
        reason => match STOP_REASONS.read(reason, response)? {
            Stop::Other(_) => Err(classify::error_from_stop(reason, response)),
            stop => Ok(stop),
        },
    }
}

/// Values of `status`, and of the reason in `incomplete_details`.
const STOP_REASONS: StopReasons = StopReasons {
    end: &["completed"],
    tool_use: &[],
    length: &["max_output_tokens"],
    filtered: &["content_filter"],
    failed: &["incomplete", "failed", "cancelled", "in_progress", "queued", "max_tool_calls"],
};
