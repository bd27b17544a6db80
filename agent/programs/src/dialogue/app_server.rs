//! Codex's app server (`codex app-server`): JSON-RPC over stdio, with threads, turns and items. In contrast to
//! `codex exec`, it asks for approvals.
//!
//! Which actions need an approval is configured in Codex: `-c approval_policy=on-request -c sandbox_mode=read-only`.
//! An approval is given for one action only, never for a session.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::json_rpc::{Incoming, notification, request, request_failure, response};
use super::json_rpc_client::{
    INITIALIZE, INTERRUPT, JsonRpcClient, PROMPT, PermissionOutcome, SESSION,
};
use super::{Decision, Dialogue, Reply};
use crate::event::{Completeness, ErrorKind, Failure, NoticeCode, ProgramEvent, Usage};
use crate::parser::streamed::{Remainder, Streamed, TextKind, text_delta};
use crate::parser::{
    CUT_MESSAGE, Parser, content_text, has_error, id_text, is_blank, notice, parse_object, reason,
    some_text, status, text_at, without,
};
use crate::prompt::Prompt;

/// The requests that are decided by a user, with the name of the tool.
const APPROVALS: [(&str, &str); 3] = [
    ("item/commandExecution/requestApproval", "command_execution"),
    ("item/fileChange/requestApproval", "file_change"),
    ("item/permissions/requestApproval", "request_permissions"),
];

/// The conversation with Codex. Without a prompt, it is only the parser of such a conversation.
#[derive(Debug, Default)]
pub(crate) struct AppServer {
    /// The session is the thread.
    client: JsonRpcClient<Approval>,
    turn: Option<String>,
    /// The calls of tools that have started and not finished, as they were reported.
    items: BTreeMap<String, Value>,
    started: BTreeSet<String>,
    /// The items that have ended.
    ended: BTreeSet<String>,
    streamed: BTreeMap<String, Streamed>,
    /// The message that began last. Pieces without an id belong to it.
    open_message: String,
    /// The reasoning that began last.
    open_thought: String,
    /// The last message of the agent that has text.
    last: String,
    /// Whether the last message has begun, and has not completed.
    is_last_open: bool,
    /// The usage of the thread before the turn.
    before: Option<Usage>,
    used: Option<Usage>,
    reported: Option<String>,
}

/// A request for an approval, as it was shown to a person.
#[derive(Debug)]
struct Approval {
    tool: String,
    params: Value,
    item_id: Option<String>,
    input: Value,
}

impl Approval {
    fn new(tool: &str, params: &Value, items: &BTreeMap<String, Value>) -> Self {
        let item_id = id_text(params, "itemId");
        let item = item_id.as_ref().and_then(|id| items.get(id)).unwrap_or(&Value::Null);
        let input = approval_input(tool, params, item);
        Self { tool: tool.to_owned(), params: params.clone(), item_id, input }
    }

    /// Returns the permissions that are requested, if it is not for an action.
    fn permissions(&self) -> Option<&Value> {
        (self.tool == "request_permissions").then(|| &self.params["permissions"])
    }

    /// Returns the answer that denies it and lets the turn go on.
    fn denial(&self) -> Value {
        match self.permissions() {
            Some(_) => cancellation(self.permissions()),
            None => json!({"decision": "decline"}),
        }
    }
}

impl AppServer {
    pub(crate) fn new(folder: String, resumes: Option<String>) -> Self {
        Self { client: JsonRpcClient::new(folder, resumes), ..Self::default() }
    }
}

impl Parser for AppServer {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let Some(object) = parse_object(line) else { return Vec::new() };
        let message = Value::Object(object);
        let mut events = Vec::new();
        match Incoming::from_message(&message) {
            Some(Incoming::Answer { id, result }) => match self.client.match_answer(id) {
                Some(INITIALIZE) => self.handle_initialize(result, &mut events),
                Some(SESSION) => self.handle_session(result, &mut events),
                Some(PROMPT) => self.handle_turn_start(result, &mut events),
                _ => events.push(self.client.unexpected_answer(id, result, &message)),
            },
            Some(Incoming::Request { id, method, params }) => {
                match APPROVALS.iter().find(|(name, _)| *name == method) {
                    Some((_, tool)) => self.request_approval(id, tool, params, &mut events),
                    None => {
                        self.decline(id, method);
                        events.push(status(message.clone()));
                    }
                }
            }
            // Agents that this agent has started have threads of their own.
            Some(Incoming::Notification { method, params }) if self.is_own(params) => {
                self.handle_notification(method, params, &mut events);
            }
            _ => events.push(status(message)),
        }
        events
    }

    fn reads_json(&self) -> bool {
        true
    }

    fn reply(&mut self) -> Option<String> {
        self.client.outgoing.next()
    }
}

impl Dialogue for AppServer {
    fn opening(&mut self, prompt: &Prompt) -> String {
        self.client.opening(prompt, json!({}))
    }

    fn decide(&mut self, request_id: &str, asked: &Value, decision: Decision) -> Reply {
        let Some((id, approval)) = self.client.take_approval(request_id) else {
            return Reply::default();
        };
        let mut events = Vec::new();
        let PermissionOutcome { allowed, interrupts } =
            PermissionOutcome::from_decision(decision, asked, &mut events);
        let answer = match (approval.permissions(), allowed, interrupts) {
            (Some(permissions), true, _) => json!({"permissions": permissions, "scope": "turn"}),
            (Some(_), false, _) => json!({"permissions": {}, "scope": "turn"}),
            (None, true, _) => json!({"decision": "accept"}),
            (None, false, false) => json!({"decision": "decline"}),
            (None, false, true) => json!({"decision": "cancel"}),
        };
        Reply { text: response(&id, answer), events }
    }

    fn interrupt(&mut self) -> Option<Reply> {
        let mut reply = self.client.interrupt(|approval| cancellation(approval.permissions()));
        // Without a turn, the interrupt is sent when it begins.
        reply.text.extend(self.interrupt_request());
        Some(reply)
    }

    fn is_server(&self) -> bool {
        true
    }
}

impl AppServer {
    fn handle_initialize(
        &mut self,
        answer: Result<&Value, &Value>,
        events: &mut Vec<ProgramEvent>,
    ) {
        if let Err(error) = answer {
            events.push(ProgramEvent::Error(request_failure("initialize", error)));
            return;
        }
        self.client.outgoing.push(notification("initialized", json!({})));
        let mut params = json!({"cwd": self.client.folder});
        let method = match &self.client.resumes {
            None => "thread/start",
            Some(thread) => {
                params["threadId"] = json!(thread);
                "thread/resume"
            }
        };
        self.client.ask(SESSION, method, params);
        events.push(status(json!({"initialize": answer.unwrap_or(&Value::Null)})));
    }

    fn handle_session(&mut self, answer: Result<&Value, &Value>, events: &mut Vec<ProgramEvent>) {
        let opened = match answer {
            Ok(opened) => opened,
            Err(error) => {
                let resumes = self.client.resumes.is_some();
                let what = if resumes { "thread/resume" } else { "thread/start" };
                events.push(ProgramEvent::Error(request_failure(what, error)));
                return;
            }
        };
        events.push(status(json!({"thread": without(opened, &["thread"])})));
        let thread = some_text(&opened["thread"], "id");
        let Some(thread) = self.client.record_session(thread, "thread", events) else { return };
        let input = json!([{"type": "text", "text": self.client.prompt, "text_elements": []}]);
        let params = json!({"threadId": thread, "input": input});
        self.client.ask(PROMPT, "turn/start", params);
    }

    fn handle_turn_start(
        &mut self,
        answer: Result<&Value, &Value>,
        events: &mut Vec<ProgramEvent>,
    ) {
        match answer {
            Ok(begun) => self.turn = id_text(&begun["turn"], "id").or(self.turn.take()),
            Err(error) => events.push(ProgramEvent::Error(request_failure("turn/start", error))),
        }
        if let Some(text) = self.interrupt_request().filter(|_| self.client.interrupted) {
            self.client.outgoing.push(text);
        }
    }

    fn interrupt_request(&self) -> Option<String> {
        let thread = self.client.session.id()?;
        let turn = self.turn.as_ref()?;
        let params = json!({"threadId": thread, "turnId": turn});
        Some(request(INTERRUPT, "turn/interrupt", params))
    }

    /// Returns `true` if a notification is about our thread and our turn.
    fn is_own(&self, params: &Value) -> bool {
        let thread = self.client.session.id();
        let turn = self.turn.as_deref();
        let turn_id = id_text(params, "turnId").or_else(|| id_text(&params["turn"], "id"));
        some_text(params, "threadId").is_none_or(|id| thread.is_none_or(|own| own == id))
            && turn_id.is_none_or(|id| turn.is_none_or(|own| own == id))
    }

    fn handle_notification(
        &mut self,
        method: &str,
        params: &Value,
        events: &mut Vec<ProgramEvent>,
    ) {
        let item_id = id_text(params, "itemId");
        let delta = params["delta"].as_str();
        match (method, delta) {
            ("item/agentMessage/delta", Some(chunk)) => {
                let id = item_id.unwrap_or_else(|| self.open_message.clone());
                self.read_chunk(TextKind::Said, &id, chunk, events);
            }
            ("item/reasoning/summaryTextDelta" | "item/reasoning/textDelta", Some(chunk)) => {
                let id = item_id.unwrap_or_else(|| self.open_thought.clone());
                self.read_chunk(TextKind::Thought, &id, chunk, events);
            }
            ("item/started", _) => self.read_item(&params["item"], false, events),
            ("item/completed", _) => self.read_item(&params["item"], true, events),
            ("thread/tokenUsage/updated", _) => self.read_usage(params, events),
            ("turn/started", _) if self.turn.is_none() => {
                self.turn = id_text(&params["turn"], "id");
            }
            ("turn/completed", _) => self.end_turn(&params["turn"], events),
            ("error", _) => {
                let message = reason(&params["error"], "the program reported an error");
                self.reported = Some(message.clone());
                events.push(notice(NoticeCode::Reported, message));
            }
            ("serverRequest/resolved", _) => {
                events.extend(self.client.withdraw(params["requestId"].to_string()));
            }
            _ => events.push(status(json!({"method": method, "params": params}))),
        }
    }

    fn read_chunk(
        &mut self,
        kind: TextKind,
        id: &str,
        chunk: &str,
        events: &mut Vec<ProgramEvent>,
    ) {
        self.streamed.entry(id.to_owned()).or_default().add_chunk(0, kind, chunk);
        self.is_last_open |= kind == TextKind::Said;
        events.extend(text_delta(kind, chunk, id));
    }

    fn read_item(&mut self, item: &Value, has_ended: bool, events: &mut Vec<ProgramEvent>) {
        let id = id_text(item, "id").unwrap_or_default();
        if self.ended.contains(&id) {
            // A repetition, or a start that comes after the end.
            return;
        }
        match text_at(item, "type") {
            "agentMessage" if has_ended => self.read_message(&id, item, events),
            "agentMessage" => {
                self.open_message.clone_from(&id);
                self.is_last_open = true;
            }
            "reasoning" if !has_ended => self.open_thought.clone_from(&id),
            "userMessage" | "reasoning" => {}
            kind if !id.is_empty() && is_call(kind) => {
                self.read_call(&id, kind, item, has_ended, events)
            }
            _ => events.push(status(item.clone())),
        }
        if has_ended && !id.is_empty() {
            self.ended.insert(id);
        }
    }

    /// A complete message. If it has no text, its pieces count.
    fn read_message(&mut self, id: &str, item: &Value, events: &mut Vec<ProgramEvent>) {
        self.is_last_open = false;
        // Pieces without an id, of a message whose start was not reported.
        let streamed = self.streamed.remove(id).or_else(|| self.streamed.remove(""));
        let mut streamed = streamed.unwrap_or_default();
        let whole = some_text(item, "text").or_else(|| content_text(&item["content"]));
        let whole = whole.filter(|text| !text.is_empty());
        let Some(whole) = whole.or_else(|| streamed.text(TextKind::Said)) else { return };
        match streamed.complete_block(TextKind::Said, &whole) {
            Remainder::New(rest) => events.extend(text_delta(TextKind::Said, &rest, id)),
            Remainder::Differs => events.push(notice(
                NoticeCode::TextDiffers,
                "the complete text of a streamed message differs from its chunks",
            )),
        }
        self.last = whole;
    }

    fn read_call(
        &mut self,
        id: &str,
        kind: &str,
        item: &Value,
        has_ended: bool,
        events: &mut Vec<ProgramEvent>,
    ) {
        if self.started.insert(id.to_owned()) {
            events.push(ProgramEvent::ToolCallStarted {
                id: id.to_owned(),
                name: tool_name(kind, item),
                arguments: call_arguments(kind, item),
                parent: None,
            });
        }
        if !has_ended {
            self.items.insert(id.to_owned(), item.clone());
            self.client.deny_changed(
                |asked| {
                    asked.item_id.as_deref() == Some(id)
                        && asked.input != approval_input(&asked.tool, &asked.params, item)
                },
                Approval::denial,
                events,
            );
            return;
        }
        self.items.remove(id);
        let exit_code = item["exitCode"].as_i64();
        let failures = ["failed", "declined", "error", "cancelled", "interrupted"];
        let failed = failures.contains(&text_at(item, "status"));
        let output = match kind {
            _ if has_error(item) => &item["error"],
            "commandExecution" => &item["aggregatedOutput"],
            "fileChange" => &item["status"],
            _ => &item["result"],
        };
        events.push(ProgramEvent::ToolCallFinished {
            id: id.to_owned(),
            output: output.clone(),
            is_error: failed || has_error(item) || exit_code.is_some_and(|code| code != 0),
            exit_code,
            parent: None,
        });
    }

    fn request_approval(
        &mut self,
        id: &Value,
        tool: &str,
        params: &Value,
        events: &mut Vec<ProgramEvent>,
    ) {
        let approval = Approval::new(tool, params, &self.items);
        let call_id = approval.item_id.clone();
        let input = approval.input.clone();
        let cancelled = cancellation(approval.permissions());
        let Some(request_id) = self.client.open_approval(id, approval, cancelled, events) else {
            return;
        };
        events.push(ProgramEvent::ApprovalRequested {
            request_id,
            tool: tool.to_owned(),
            input,
            call_id,
            details: without(params, &["threadId", "turnId", "itemId"]),
        });
    }

    /// Requests that no user can answer here. The program must not wait for them.
    fn decline(&mut self, id: &Value, method: &str) {
        match method {
            "mcpServer/elicitation/request" => {
                let declined = json!({"action": "decline", "content": null});
                self.client.outgoing.push(response(id, declined));
            }
            _ => self.client.refuse(id, method),
        }
    }

    /// The usage of the turn: the total of the thread, without what it was before.
    fn read_usage(&mut self, params: &Value, events: &mut Vec<ProgramEvent>) {
        let reported = &params["tokenUsage"];
        let (Some(total), Some(last)) =
            (read_counts(&reported["total"]), read_counts(&reported["last"]))
        else {
            return;
        };
        // A thread that is resumed reports the usage of its earlier turns.
        if self.turn.is_none() || self.turn != id_text(params, "turnId") {
            return;
        }
        let before = self.before.get_or_insert_with(|| subtract(&total, &last));
        let used = subtract(&total, before);
        events.push(ProgramEvent::Usage(used.clone()));
        self.used = Some(used);
    }

    fn end_turn(&mut self, turn: &Value, events: &mut Vec<ProgramEvent>) {
        // Some servers send items in the last message only.
        for item in turn["items"].as_array().into_iter().flatten() {
            self.read_item(item, true, events);
        }
        events.extend(self.client.withdraw_all());
        let usage =
            self.used.take().map(|usage| Usage { completeness: Completeness::Complete, ..usage });
        events.extend(usage.clone().map(ProgramEvent::Usage));
        let details = without(turn, &["items"]);
        let answer = self.client.answer(std::mem::take(&mut self.last), usage, details);
        let (kind, otherwise) = match text_at(turn, "status") {
            // An error counts, whatever the status is.
            "completed" if !has_error(turn) => {
                events.push(if self.is_last_open {
                    ProgramEvent::Error(Failure {
                        answer: Some(Box::new(answer)),
                        ..Failure::new(ErrorKind::BadModelOutput, CUT_MESSAGE)
                    })
                } else {
                    ProgramEvent::Final(answer)
                });
                return;
            }
            "interrupted" => (ErrorKind::Cancelled, "the turn was interrupted"),
            _ => (ErrorKind::RuntimeCrash, "the turn failed"),
        };
        let otherwise = self.reported.take().unwrap_or_else(|| otherwise.to_owned());
        let why = reason(&turn["error"], &otherwise);
        events.push(ProgramEvent::Error(Failure {
            answer: Some(Box::new(answer)),
            ..Failure::new(kind, why)
        }));
    }
}

/// Returns the arguments that a person sees: those of the request, else those of the item.
fn approval_input(tool: &str, params: &Value, item: &Value) -> Value {
    let own = |key: &str| if is_blank(&params[key]) { &item[key] } else { &params[key] };
    match tool {
        "command_execution" => json!({"command": own("command"), "cwd": own("cwd")}),
        "file_change" => json!({"changes": own("changes")}),
        _ => json!({"permissions": params["permissions"]}),
    }
}

/// Returns the answer that denies an approval and ends the turn.
fn cancellation(permissions: Option<&Value>) -> Value {
    match permissions {
        Some(_) => json!({"permissions": {}, "scope": "turn"}),
        None => json!({"decision": "cancel"}),
    }
}

fn is_call(kind: &str) -> bool {
    ["commandExecution", "fileChange", "webSearch", "imageView"].contains(&kind)
        || kind.ends_with("ToolCall")
}

/// Returns the name of a tool, as `codex exec` reports it.
fn tool_name(kind: &str, item: &Value) -> String {
    match (kind, some_text(item, "server"), some_text(item, "tool")) {
        ("commandExecution", ..) => "command_execution".to_owned(),
        ("fileChange", ..) => "file_change".to_owned(),
        ("webSearch", ..) => "web_search".to_owned(),
        ("mcpToolCall", Some(server), Some(tool)) => format!("mcp__{server}__{tool}"),
        (_, _, Some(tool)) => tool,
        _ => kind.to_owned(),
    }
}

fn call_arguments(kind: &str, item: &Value) -> Value {
    match kind {
        "commandExecution" => json!({"command": item["command"], "cwd": item["cwd"]}),
        "fileChange" => json!({"changes": item["changes"]}),
        "mcpToolCall" | "dynamicToolCall" => item["arguments"].clone(),
        _ => without(item, &["id", "type", "status", "result", "error"]),
    }
}

fn read_counts(reported: &Value) -> Option<Usage> {
    let usage = Usage {
        input_tokens: reported["inputTokens"].as_u64(),
        output_tokens: reported["outputTokens"].as_u64(),
        cached_tokens: reported["cachedInputTokens"].as_u64(),
        cache_write_tokens: None,
        reasoning_tokens: reported["reasoningOutputTokens"].as_u64(),
        completeness: Completeness::Partial,
    };
    (!usage.is_empty()).then_some(usage)
}

fn subtract(total: &Usage, part: &Usage) -> Usage {
    Usage {
        input_tokens: subtract_count(total.input_tokens, part.input_tokens),
        output_tokens: subtract_count(total.output_tokens, part.output_tokens),
        cached_tokens: subtract_count(total.cached_tokens, part.cached_tokens),
        cache_write_tokens: subtract_count(total.cache_write_tokens, part.cache_write_tokens),
        reasoning_tokens: subtract_count(total.reasoning_tokens, part.reasoning_tokens),
        completeness: total.completeness,
    }
}

fn subtract_count(total: Option<u64>, part: Option<u64>) -> Option<u64> {
    total.map(|total| total.saturating_sub(part.unwrap_or_default()))
}
