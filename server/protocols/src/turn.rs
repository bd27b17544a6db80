//! A turn of a run, or several, as a list of items: messages, reasoning, tool calls and requests for approval. It depends on the
//! events only, so that each reader of a run sees the same items with the same indices.
//!
//! An answer that starts again (`restart`) continues its items as far as its text is the same. If the text differs,
//! the items are void and new ones follow.

use std::collections::HashMap;

use serde_json::{Map, Value as JsonValue, json};

use crate::call::{CallItem, CallOutcome, Interrupt};

/// An event of a run.
pub(super) struct RunEvent {
    pub(super) number: i64,
    pub(super) turn: i64,
    pub(super) kind: String,
    pub(super) data: JsonValue,
    /// In microseconds.
    pub(super) created_at: i64,
}

/// The state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemState {
    Open,
    Complete,
    /// The turn ended before it was complete.
    Incomplete,
    /// Its text is not part of the answer.
    Void,
}

/// The kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Message,
    Reasoning,
}

/// The content of an item.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    Message(String),
    Reasoning(String),
    Call(CallItem),
    /// A call that waits for a decision.
    Approval(Interrupt),
}

/// An item of a turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    /// The number of the event that opened it.
    pub(super) opened_by: i64,
    pub(super) state: ItemState,
    pub(super) content: Content,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TurnEnd {
    Done,
    /// The run waits for an approval or something else.
    Waits(String),
    Failed {
        code: String,
        message: String,
    },
}

/// A change of a turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// The turn has begun.
    Started,
    /// The item at this index is new.
    Opened(usize),
    /// A piece of text of an item.
    Text(usize, String),
    /// The approver has changed the arguments of this call, which runs with them.
    Edited(usize),
    /// The item will not change any more, unless its text becomes void.
    Closed(usize),
    /// The calls of the answer run, so none of them waits for an approval of another.
    CallsRun,
    /// The run waits; [`Turn::waits`] has the reason.
    Waits,
    /// The run, which has waited, continues.
    Continues,
    /// The turn has ended.
    Ended,
}

/// Why a run waits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wait {
    pub(super) reason: String,
    /// The number of the event with which it began.
    pub(super) event: i64,
    /// It waits for decisions on calls, which are items.
    pub(super) has_approvals: bool,
    /// The calls whose outcome is unknown until they are settled.
    pub(super) unsettled: Vec<CallItem>,
    /// The supervisor's request that it waits for.
    pub(super) handoff: Option<OpenHandoff>,
}

/// A request for a supervisor, from an `interrupt` event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenHandoff {
    pub(super) id: String,
    /// Why it was requested.
    pub(super) reason: String,
}

impl OpenHandoff {
    fn from_event(data: &JsonValue) -> Option<OpenHandoff> {
        let handoff = &data["handoff"];
        let id = handoff["id"].as_str()?.to_owned();
        Some(OpenHandoff { id, reason: text_or_empty(&handoff["reason"]).to_owned() })
    }

    /// Returns the request as programs read it.
    pub(super) fn to_json(&self) -> JsonValue {
        json!({"handoffId": self.id, "reason": self.reason})
    }
}

impl Wait {
    /// Returns the reason for those who settle calls, even if the run waits for approvals too.
    pub(super) fn reason(&self) -> &str {
        if self.unsettled.is_empty() { &self.reason } else { "settlement" }
    }

    /// Returns a sentence about what the run waits for.
    pub(super) fn message(&self) -> String {
        if self.unsettled.is_empty() {
            return match &self.handoff {
                Some(OpenHandoff { id, reason }) => {
                    format!("the run waits for a supervisor (handoff {id}): {reason}")
                }
                None => format!("the run waits for {}", self.reason),
            };
        }
        let calls = self
            .unsettled
            .iter()
            .map(|call| format!("{} ({}: {})", call.name, call.call_id, call.why_unknown()));
        format!(
            "the run waits until the outcome of {} is settled: whether it had an effect is unknown",
            calls.collect::<Vec<_>>().join(", ")
        )
    }
}

/// Tokens of a turn, as far as they were reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) input: i64,
    pub(super) output: i64,
    pub(super) cached: i64,
    pub(super) reasoning: i64,
}

/// The position in an answer that starts again.
struct Replay {
    /// The index in the parts of the answer.
    part: usize,
    /// The new text of this part so far.
    text: String,
}

/// A turn of a run, or consecutive turns.
pub(super) struct Turn {
    first: i64,
    last: i64,
    pub(super) items: Vec<Item>,
    /// When it began, in microseconds.
    pub(super) started_at: Option<i64>,
    pub(super) ended_at: Option<i64>,
    pub(super) usage: Option<Usage>,
    pub(super) end: Option<TurnEnd>,
    /// Why the run waits after the events so far.
    pub(super) waits: Option<Wait>,
    /// The output of a run that is done, without its text.
    pub(super) output: Map<String, JsonValue>,
    /// The number of the last event, its time in microseconds, and its turn.
    pub(super) event: i64,
    pub(super) event_at: i64,
    pub(super) event_turn: i64,
    /// Calls of earlier turns without a result.
    earlier: HashMap<String, CallItem>,
    /// The items of the current answer of the model.
    parts: Vec<usize>,
    /// The answer is complete.
    answered: bool,
    replay: Option<Replay>,
    bytes: usize,
}

impl Turn {
    /// Returns the turn with this number, before its first event.
    pub(super) fn new(number: i64) -> Turn {
        Turn::span(number, number)
    }

    /// These turns as one.
    pub(super) fn span(first: i64, last: i64) -> Turn {
        Turn {
            first,
            last,
            items: Vec::new(),
            started_at: None,
            ended_at: None,
            usage: None,
            end: None,
            waits: None,
            output: Map::new(),
            event: 0,
            event_at: 0,
            event_turn: 0,
            earlier: HashMap::new(),
            parts: Vec::new(),
            answered: false,
            replay: None,
            bytes: 0,
        }
    }

    /// Returns the same turn before its first item.
    pub(super) fn at_start(&self) -> Turn {
        Turn { started_at: self.started_at, ..Turn::span(self.first, self.last) }
    }

    /// Returns the calls for whose approval the run waits, as of the events. An interrupt names all of them; approvals
    /// of an earlier interrupt have been decided. Decisions since the last interrupt are no events until the run
    /// continues.
    pub(super) fn awaited_approvals(&self) -> Vec<&Interrupt> {
        let awaited = self.items.iter().filter(|item| self.awaits(item));
        let approvals = awaited.filter_map(|item| match &item.content {
            Content::Approval(interrupt) => Some(interrupt),
            _ => None,
        });
        approvals.collect()
    }

    /// Returns the results of tool calls that failed, did not run, or ran with other arguments than those of the model.
    pub(super) fn call_results(&self) -> Vec<JsonValue> {
        let calls = self.items.iter().filter_map(|item| match &item.content {
            Content::Call(call) => call.result_details(),
            _ => None,
        });
        calls.collect()
    }

    /// Returns `true` if the run waits because of what opened this item.
    fn awaits(&self, item: &Item) -> bool {
        self.waits.as_ref().is_some_and(|wait| wait.event == item.opened_by)
    }

    /// Returns the approximate memory of its items in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the next event of the run; returns what has changed. Events of earlier turns change nothing.
    pub(super) fn add(&mut self, event: &RunEvent) -> Vec<Change> {
        let mut changes = Vec::new();
        (self.event, self.event_at) = (event.number, event.created_at);
        self.event_turn = event.turn;
        if event.turn < self.first {
            self.remember_call(event);
            return changes;
        }
        if event.turn > self.last || self.end.is_some() {
            return changes;
        }
        if self.started_at.is_none() {
            self.started_at = Some(event.created_at);
            changes.push(Change::Started);
        }
        if self.waits.take().is_some() && !matches!(event.kind.as_str(), "done" | "error") {
            changes.push(Change::Continues);
        }
        let data = &event.data;
        match event.kind.as_str() {
            "token" => {
                self.add_chunk(TextKind::Message, text_or_empty(&data["content"]), &mut changes)
            }
            "reasoning" => {
                self.add_chunk(TextKind::Reasoning, text_or_empty(&data["content"]), &mut changes)
            }
            // After a complete answer it is the next one that starts again.
            "restart" if !self.parts.is_empty() && !self.answered => {
                self.replay = Some(Replay { part: 0, text: String::new() });
            }
            "usage" => {
                self.settle_replay(&mut changes);
                self.answered = true;
                self.add_usage(data);
            }
            "tool_call" => {
                self.close_answer(ItemState::Complete, &mut changes);
                self.open(Content::Call(CallItem::from_event(data)), &mut changes);
            }
            "tool_result" => self.record_result(data, &mut changes),
            "status" => self.record_status(data, &mut changes),
            "interrupt" => {
                self.close_answer(ItemState::Complete, &mut changes);
                self.ask_for_approvals(data, &mut changes);
                let reason = text_or_empty(&data["reason"]).to_owned();
                self.waits = Some(Wait {
                    reason: reason.clone(),
                    event: event.number,
                    has_approvals: Interrupt::from_event(data).next().is_some(),
                    unsettled: CallItem::unsettled(data).collect(),
                    handoff: OpenHandoff::from_event(data),
                });
                changes.push(Change::Waits);
                if event.turn == self.last {
                    self.finish(event, TurnEnd::Waits(reason), &mut changes);
                }
            }
            "done" => {
                self.record_answer(&data["assistant_data"], &mut changes);
                self.finish(event, TurnEnd::Done, &mut changes);
            }
            "error" => {
                self.replay = None;
                self.close_answer(ItemState::Incomplete, &mut changes);
                self.cancel_calls(&mut changes);
                let [code, message] =
                    ["code", "message"].map(|name| text_or_empty(&data[name]).to_owned());
                self.finish(event, TurnEnd::Failed { code, message }, &mut changes);
            }
            _ => {}
        }
        changes
    }

    /// Calls of earlier turns whose results can be in this one.
    fn remember_call(&mut self, event: &RunEvent) {
        let data = &event.data;
        match event.kind.as_str() {
            "tool_call" => {
                let call = CallItem::from_event(data);
                self.earlier.insert(call.call_id.clone(), call);
            }
            "interrupt" => {
                for call in Interrupt::from_event(data).map(|interrupt| interrupt.call()) {
                    self.earlier.insert(call.call_id.clone(), call);
                }
            }
            "tool_result" => {
                self.earlier.remove(text_or_empty(&data["tool_call_id"]));
            }
            "status" if data["child"]["event"] == "tool_result" => {
                self.earlier.remove(text_or_empty(&data["child"]["data"]["tool_call_id"]));
            }
            _ => {}
        }
    }

    fn open(&mut self, content: Content, changes: &mut Vec<Change>) -> usize {
        self.bytes += match &content {
            Content::Call(call) => call.arguments.to_string().len(),
            Content::Approval(interrupt) => interrupt.to_json().to_string().len(),
            Content::Message(_) | Content::Reasoning(_) => 0,
        };
        self.bytes += size_of::<Item>();
        let opened_by = self.event;
        self.items.push(Item { opened_by, state: ItemState::Open, content });
        let at = self.items.len() - 1;
        changes.push(Change::Opened(at));
        at
    }

    fn close(&mut self, at: usize, state: ItemState, changes: &mut Vec<Change>) {
        let item = &mut self.items[at];
        if item.state == ItemState::Open {
            item.state = state;
            changes.push(Change::Closed(at));
        } else if state == ItemState::Void {
            item.state = state;
        }
    }

    /// A piece of an answer.
    fn add_chunk(&mut self, kind: TextKind, text: &str, changes: &mut Vec<Change>) {
        if self.answered {
            self.close_answer(ItemState::Complete, changes);
        }
        match self.replay.take() {
            Some(replay) => self.add_repeated_text(replay, kind, text, changes),
            None => self.append_text(kind, text, changes),
        }
    }

    /// Adds text to the last part of the answer, or to a new part.
    fn append_text(&mut self, kind: TextKind, text: &str, changes: &mut Vec<Change>) {
        if text.is_empty() {
            return;
        }
        let last = self.parts.last().copied().filter(|at| {
            let item = &self.items[*at];
            item.state == ItemState::Open && item.text_kind() == Some(kind)
        });
        let at = match last {
            Some(at) => at,
            None => {
                if let Some(at) = self.parts.last().copied() {
                    self.close(at, ItemState::Complete, changes);
                }
                let content = match kind {
                    TextKind::Message => Content::Message(String::new()),
                    TextKind::Reasoning => Content::Reasoning(String::new()),
                };
                let at = self.open(content, changes);
                self.parts.push(at);
                at
            }
        };
        if let Content::Message(whole) | Content::Reasoning(whole) = &mut self.items[at].content {
            whole.push_str(text);
            self.bytes += text.len();
        }
        changes.push(Change::Text(at, text.to_owned()));
    }

    /// A piece of an answer that has started again: nothing changes while it is the same as before.
    fn add_repeated_text(
        &mut self,
        mut replay: Replay,
        kind: TextKind,
        text: &str,
        changes: &mut Vec<Change>,
    ) {
        let is_last = replay.part + 1 == self.parts.len();
        let item = &self.items[self.parts[replay.part]];
        let before = item.text();
        let stored = item.text_kind().unwrap_or(TextKind::Reasoning);
        if stored != kind {
            if replay.text != before {
                let part = std::mem::take(&mut replay.text);
                self.replace_from(replay.part, stored, &part, changes);
                self.append_text(kind, text, changes);
            } else if is_last {
                self.append_text(kind, text, changes);
            } else {
                replay = Replay { part: replay.part + 1, text: String::new() };
                self.add_repeated_text(replay, kind, text, changes);
            }
            return;
        }
        replay.text.push_str(text);
        if before == replay.text && is_last {
            return;
        }
        if before.starts_with(&replay.text) {
            self.replay = Some(replay);
        } else if is_last && replay.text.starts_with(before) {
            let rest = replay.text[before.len()..].to_owned();
            self.append_text(kind, &rest, changes);
        } else {
            self.replace_from(replay.part, kind, &replay.text, changes);
        }
    }

    /// Voids the parts of the answer from an index on, and adds text in their place.
    fn replace_from(&mut self, part: usize, kind: TextKind, text: &str, changes: &mut Vec<Change>) {
        for at in self.parts.split_off(part) {
            self.close(at, ItemState::Void, changes);
        }
        self.append_text(kind, text, changes);
    }

    /// The answer is complete: an answer that has started again can be shorter than before.
    fn settle_replay(&mut self, changes: &mut Vec<Change>) {
        let Some(Replay { part, text }) = self.replay.take() else { return };
        let item = &self.items[self.parts[part]];
        let kind = item.text_kind().unwrap_or(TextKind::Reasoning);
        if item.text() != text {
            self.replace_from(part, kind, &text, changes);
        } else {
            for at in self.parts.split_off(part + 1) {
                self.close(at, ItemState::Void, changes);
            }
        }
    }

    fn close_answer(&mut self, state: ItemState, changes: &mut Vec<Change>) {
        self.settle_replay(changes);
        self.answered = false;
        for at in std::mem::take(&mut self.parts) {
            self.close(at, state, changes);
        }
    }

    /// What the runtime says about a run.
    fn record_status(&mut self, data: &JsonValue, changes: &mut Vec<Change>) {
        let child = &data["child"];
        if data["status"] == "working" || !child.is_null() {
            changes.push(Change::CallsRun);
        }
        if data["status"] == "tool_approval"
            && data.get("approved_args").is_some()
            && let Some(at) = self.open_call(data, changes)
        {
            self.edit_arguments(at, data, changes);
        }
        // Of a delegated run, whose calls are known if they needed an approval.
        if child["event"] == "tool_result" {
            self.record_result(&child["data"], changes);
        }
    }

    /// The arguments that the approver of a call has put in place of those of the model, with the first event that has them.
    fn edit_arguments(&mut self, at: usize, data: &JsonValue, changes: &mut Vec<Change>) {
        let Some(arguments) = data.get("approved_args") else { return };
        if let Content::Call(call) = &mut self.items[at].content
            && !call.is_edited
        {
            (call.arguments, call.is_edited) = (arguments.clone(), true);
            self.bytes += arguments.to_string().len();
            changes.push(Change::Edited(at));
        }
    }

    /// Returns the index of the open call that an event is about. A call of an earlier turn becomes an item.
    fn open_call(&mut self, data: &JsonValue, changes: &mut Vec<Change>) -> Option<usize> {
        let call_id = text_or_empty(&data["tool_call_id"]);
        let open = self.items.iter().position(|item| match &item.content {
            Content::Call(call) => call.call_id == call_id && item.state == ItemState::Open,
            _ => false,
        });
        let earlier = self.earlier.remove(call_id);
        if open.is_some() {
            return open;
        }
        let call = CallItem { is_earlier: true, ..earlier? };
        Some(self.open(Content::Call(call), changes))
    }

    fn record_result(&mut self, data: &JsonValue, changes: &mut Vec<Change>) {
        let Some(at) = self.open_call(data, changes) else { return };
        self.edit_arguments(at, data, changes);
        let outcome = CallOutcome::from_event(data);
        self.bytes += outcome.output.len();
        if let Content::Call(call) = &mut self.items[at].content {
            call.outcome = Some(outcome);
        }
        self.close(at, ItemState::Complete, changes);
    }

    /// The run has ended, so its open calls get no result.
    fn cancel_calls(&mut self, changes: &mut Vec<Change>) {
        for at in 0..self.items.len() {
            let item = &mut self.items[at];
            if let (Content::Call(call), ItemState::Open) = (&mut item.content, item.state) {
                call.outcome = Some(CallOutcome::without_result());
                self.close(at, ItemState::Complete, changes);
            }
        }
    }

    fn ask_for_approvals(&mut self, data: &JsonValue, changes: &mut Vec<Change>) {
        for interrupt in Interrupt::from_event(data) {
            let is_known = self.earlier.contains_key(interrupt.call_id())
                || self.items.iter().any(|item| match &item.content {
                    Content::Call(other) => other.call_id == interrupt.call_id(),
                    _ => false,
                });
            // A call of a delegated run is not among the calls of this run.
            if !is_known {
                self.open(Content::Call(interrupt.call()), changes);
            }
            let at = self.open(Content::Approval(interrupt), changes);
            self.close(at, ItemState::Complete, changes);
        }
    }

    /// The answer of the run. It is normally the text of the last message.
    fn record_answer(&mut self, data: &JsonValue, changes: &mut Vec<Change>) {
        self.settle_replay(changes);
        let answer = text_or_empty(&data["content"]);
        let last = self.items.iter().rposition(Item::is_message);
        let before = last.map_or("", |at| self.items[at].text()).to_owned();
        if before != answer {
            let is_open = last.is_some_and(|at| self.parts.last() == Some(&at));
            match answer.strip_prefix(before.as_str()).filter(|_| is_open) {
                Some(rest) => self.append_text(TextKind::Message, rest, changes),
                None => {
                    for at in std::mem::take(&mut self.parts) {
                        let is_message = self.items[at].is_message();
                        let state = if is_message { ItemState::Void } else { ItemState::Complete };
                        self.close(at, state, changes);
                    }
                    self.append_text(TextKind::Message, answer, changes);
                }
            }
        }
        self.close_answer(ItemState::Complete, changes);
        if let Some(output) = data.as_object() {
            let rest = output.iter().filter(|(name, _)| *name != "content");
            self.output = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
            self.bytes += self.output.values().map(|value| value.to_string().len()).sum::<usize>();
        }
        if data.get("structured").is_some() {
            self.void_rejected_answers();
        }
    }

    /// Only the last answer matches the schema; those before it were rejected.
    fn void_rejected_answers(&mut self) {
        let after = self.items.iter().rposition(|item| matches!(item.content, Content::Call(_)));
        let after = after.map_or(0, |at| at + 1);
        let last = self.items.iter().rposition(Item::is_message);
        for (at, item) in self.items.iter_mut().enumerate().skip(after) {
            if item.is_message() && Some(at) != last {
                item.state = ItemState::Void;
            }
        }
    }

    fn add_usage(&mut self, data: &JsonValue) {
        let count = |name: &str| data[name].as_i64().unwrap_or(0);
        let sum = self.usage.get_or_insert_default();
        sum.input += count("input_tokens");
        sum.output += count("output_tokens");
        sum.cached += count("cached_tokens");
        sum.reasoning += count("reasoning_tokens");
    }

    fn finish(&mut self, event: &RunEvent, end: TurnEnd, changes: &mut Vec<Change>) {
        self.ended_at = Some(event.created_at);
        self.end = Some(end);
        changes.push(Change::Ended);
    }
}

impl Item {
    pub(super) fn is_message(&self) -> bool {
        self.text_kind() == Some(TextKind::Message)
    }

    /// Returns the kind of a text; `None` for other items.
    fn text_kind(&self) -> Option<TextKind> {
        match self.content {
            Content::Message(_) => Some(TextKind::Message),
            Content::Reasoning(_) => Some(TextKind::Reasoning),
            _ => None,
        }
    }

    /// Returns the text of a message or of reasoning; empty if it is void.
    pub(super) fn text(&self) -> &str {
        match &self.content {
            Content::Message(text) | Content::Reasoning(text) if self.state != ItemState::Void => {
                text
            }
            _ => "",
        }
    }
}

fn text_or_empty(value: &JsonValue) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests;
