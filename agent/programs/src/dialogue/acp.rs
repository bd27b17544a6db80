//! The Agent Client Protocol, version 1 (<https://agentclientprotocol.com>): JSON-RPC over stdio.
//!
//! Abide is the client. It offers neither files nor terminals: the agent uses those of its own process, and asks for
//! permission. A permission is given for one call only, never for all later ones.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::json_rpc::{Incoming, notification, request_failure, response};
use super::json_rpc_client::{INITIALIZE, JsonRpcClient, PROMPT, PermissionOutcome, SESSION};
use super::{Decision, Dialogue, Reply};
use crate::event::{Completeness, ErrorKind, Failure, NoticeCode, ProgramEvent, Usage};
use crate::parser::{
    Parser, content_text, has_error, id_text, is_blank, notice, parse_object, reason, some_text,
    status, text_at,
};
use crate::prompt::Prompt;

/// The kind of a call of which nothing else is known.
const OTHER: &str = "other";

/// The version of the protocol.
const VERSION: u64 = 1;

/// The conversation with an agent. Without a prompt, it is only the parser of such a conversation.
#[derive(Debug, Default)]
pub(crate) struct AcpDialogue {
    client: JsonRpcClient<Permission>,
    /// Whether the session exists: earlier updates repeat the history of a session that is loaded.
    has_session: bool,
    calls: BTreeMap<String, Call>,
    /// The last message with text. A message ends when another one or a call begins.
    last: Message,
}

/// A request for a permission, as it was shown to a person.
#[derive(Debug)]
struct Permission {
    options: Value,
    call_id: Option<String>,
    tool: String,
    arguments: Value,
    content: Value,
}

impl Permission {
    /// Returns the id of an option of a kind. An id that two options have is none: it does not say what is decided.
    fn option(&self, kind: &str) -> Option<&Value> {
        let options = || self.options.as_array().into_iter().flatten();
        let id = &options().find(|option| option["kind"] == kind)?["optionId"];
        let is_unique = options().filter(|option| option["optionId"] == *id).count() == 1;
        (id.is_string() && is_unique).then_some(id)
    }

    /// Returns the answer that denies only this call.
    fn denial(&self) -> Value {
        permission_answer(self.option("reject_once"))
    }

    /// Returns `true` if a call is another one than the person saw. A kind or a content that is reported later adds to
    /// it.
    fn differs_from(&self, call: &Call) -> bool {
        let has_other_tool = self.tool != OTHER && self.tool != call.tool();
        let has_other_content = !is_blank(&self.content) && self.content != call.content;
        has_other_tool || self.arguments != call.arguments() || has_other_content
    }
}

/// A message of the agent.
#[derive(Debug, Default)]
struct Message {
    id: Option<String>,
    text: String,
    has_ended: bool,
}

/// The known facts about a call of a tool.
#[derive(Debug, Default)]
struct Call {
    name: Option<String>,
    kind: Option<String>,
    title: Option<String>,
    input: Value,
    content: Value,
    output: Value,
    has_started: bool,
    has_finished: bool,
}

impl AcpDialogue {
    pub(crate) fn new(folder: String, resumes: Option<String>) -> Self {
        Self { client: JsonRpcClient::new(folder, resumes), ..Self::default() }
    }
}

impl Parser for AcpDialogue {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let Some(object) = parse_object(line) else { return Vec::new() };
        let message = Value::Object(object);
        let mut events = Vec::new();
        match Incoming::from_message(&message) {
            Some(Incoming::Answer { id, result }) => match self.client.match_answer(id) {
                Some(INITIALIZE) => self.handle_initialize(result, &mut events),
                Some(SESSION) => self.handle_session(result, &mut events),
                Some(PROMPT) => self.handle_prompt_answer(result, &mut events),
                _ => events.push(self.client.unexpected_answer(id, result, &message)),
            },
            Some(Incoming::Request { id, method: "session/request_permission", params }) => {
                self.request_permission(id, params, &mut events);
            }
            Some(Incoming::Request { id, method, .. }) => {
                self.client.refuse(id, method);
                events.push(status(message.clone()));
            }
            Some(Incoming::Notification { method: "session/update", params })
                if self.is_own(params) =>
            {
                self.handle_update(&params["update"], &mut events);
            }
            Some(Incoming::Notification { method: "$/cancel_request", params }) => {
                events.extend(self.client.withdraw(params["requestId"].to_string()));
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

impl Dialogue for AcpDialogue {
    fn opening(&mut self, prompt: &Prompt) -> String {
        let files = json!({"readTextFile": false, "writeTextFile": false});
        let capabilities = json!({"fs": files, "terminal": false});
        let params = json!({"protocolVersion": VERSION, "clientCapabilities": capabilities});
        self.client.opening(prompt, params)
    }

    fn decide(&mut self, request_id: &str, asked: &Value, decision: Decision) -> Reply {
        let Some((id, permission)) = self.client.take_approval(request_id) else {
            return Reply::default();
        };
        let mut events = Vec::new();
        let ruling = PermissionOutcome::from_decision(decision, asked, &mut events);
        let once = permission.option("allow_once").filter(|_| ruling.allowed);
        let answer = once.map_or_else(|| permission.denial(), |once| permission_answer(Some(once)));
        let mut text = response(&id, answer);
        if ruling.interrupts {
            let Reply { text: cancel, events: withdrawn } = self.cancel();
            text.push_str(&cancel);
            events.extend(withdrawn);
        }
        Reply { text, events }
    }

    fn interrupt(&mut self) -> Option<Reply> {
        Some(self.cancel())
    }

    fn is_server(&self) -> bool {
        true
    }
}

impl AcpDialogue {
    fn handle_initialize(
        &mut self,
        answer: Result<&Value, &Value>,
        events: &mut Vec<ProgramEvent>,
    ) {
        let offers = match answer {
            Ok(offers) => offers,
            Err(error) => {
                events.push(ProgramEvent::Error(request_failure("initialize", error)));
                return;
            }
        };
        events.push(status(json!({"initialize": offers})));
        let unsupported =
            |why: String| ProgramEvent::Error(Failure::new(ErrorKind::CapabilityUnsupported, why));
        if offers["protocolVersion"] != VERSION {
            let version = &offers["protocolVersion"];
            let why = format!("the program speaks version {version} of ACP, and not {VERSION}");
            events.push(unsupported(why));
            return;
        }
        let capabilities = &offers["agentCapabilities"];
        let mut params = json!({"cwd": self.client.folder, "mcpServers": []});
        let method = match &self.client.resumes {
            None => "session/new",
            Some(session) => {
                params["sessionId"] = json!(session);
                if !capabilities["sessionCapabilities"]["resume"].is_null() {
                    "session/resume"
                } else if capabilities["loadSession"] == true {
                    "session/load"
                } else {
                    let why =
                        "the program cannot continue a session: it does not offer loadSession";
                    events.push(unsupported(why.to_owned()));
                    return;
                }
            }
        };
        self.client.ask(SESSION, method, params);
    }

    fn handle_session(&mut self, answer: Result<&Value, &Value>, events: &mut Vec<ProgramEvent>) {
        let session = match answer {
            Ok(opened) => some_text(opened, "sessionId").or_else(|| self.client.resumes.clone()),
            Err(error) => {
                let resumes = self.client.resumes.is_some();
                let what = if resumes { "to continue a session" } else { "session/new" };
                events.push(ProgramEvent::Error(request_failure(what, error)));
                return;
            }
        };
        self.has_session = true;
        let Some(session) = self.client.record_session(session, "session", events) else { return };
        let prompt = json!([{"type": "text", "text": self.client.prompt}]);
        let params = json!({"sessionId": session, "prompt": prompt});
        self.client.ask(PROMPT, "session/prompt", params);
    }

    /// The end of the turn.
    fn handle_prompt_answer(
        &mut self,
        answer: Result<&Value, &Value>,
        events: &mut Vec<ProgramEvent>,
    ) {
        events.extend(self.client.withdraw_all());
        // Calls that the agent has announced, and about which it has said nothing more.
        for (id, call) in &mut self.calls {
            if !call.has_started && call.is_described() {
                call.has_started = true;
                events.push(call.start(id));
            }
        }
        let ended = match answer {
            Ok(ended) => ended,
            Err(error) => {
                events.push(ProgramEvent::Error(request_failure("session/prompt", error)));
                return;
            }
        };
        let usage = read_usage(ended);
        events.extend(usage.clone().map(ProgramEvent::Usage));
        let text_so_far = std::mem::take(&mut self.last).text;
        let answer = self.client.answer(text_so_far, usage, ended.clone());
        let failure = match text_at(ended, "stopReason") {
            // An error counts, whatever the reason is.
            _ if has_error(ended) => {
                Some((ErrorKind::RuntimeCrash, reason(&ended["error"], "the turn failed")))
            }
            "end_turn" => None,
            "max_tokens" => Some((
                ErrorKind::AnswerTruncated,
                "the model's answer was cut off at the token limit".to_owned(),
            )),
            "max_turn_requests" => {
                Some((ErrorKind::LoopLimit, "the program has used all its turns".to_owned()))
            }
            "refusal" => Some((ErrorKind::Refused, "the model refused to answer".to_owned())),
            "cancelled" => Some((ErrorKind::Cancelled, "the turn was cancelled".to_owned())),
            other => {
                let why = format!("the turn ended with the unknown reason {other:?}");
                Some((ErrorKind::BadModelOutput, why))
            }
        };
        events.push(match failure {
            None => ProgramEvent::Final(answer),
            Some((kind, why)) => ProgramEvent::Error(Failure {
                answer: Some(Box::new(answer)),
                ..Failure::new(kind, why)
            }),
        });
    }

    /// Returns `true` if an update is about the session of the turn. An agent can have others, for agents that it has
    /// started.
    fn is_own(&self, params: &Value) -> bool {
        let session = self.client.session.id();
        some_text(params, "sessionId").is_none_or(|id| session.is_none_or(|own| own == id))
    }

    fn handle_update(&mut self, update: &Value, events: &mut Vec<ProgramEvent>) {
        let kind = text_at(update, "sessionUpdate");
        let chunk = content_text(&update["content"]).filter(|chunk| !chunk.is_empty());
        match (kind, chunk) {
            // The history of a session that is loaded.
            ("user_message_chunk" | "agent_message_chunk" | "agent_thought_chunk", _)
            | ("tool_call" | "tool_call_update" | "plan", _)
                if !self.has_session => {}
            ("agent_message_chunk", Some(text)) => {
                let message = id_text(update, "messageId");
                self.last.add(message.as_ref(), &text);
                events.push(ProgramEvent::AssistantDelta { text, message, parent: None });
            }
            ("agent_thought_chunk", Some(text)) => {
                let message = id_text(update, "messageId");
                events.push(ProgramEvent::ThinkingDelta { text, message, parent: None });
            }
            ("tool_call" | "tool_call_update", _) => match id_text(update, "toolCallId") {
                Some(id) => self.update_call(id, update, events),
                None => events.push(status(update.clone())),
            },
            _ => events.push(status(update.clone())),
        }
    }

    /// A change of a call. Its start is sent when its arguments are known: when it runs, because those of a pending call
    /// may still arrive.
    fn update_call(&mut self, id: String, update: &Value, events: &mut Vec<ProgramEvent>) {
        self.last.has_ended |= !self.calls.contains_key(&id);
        let call = self.calls.entry(id.clone()).or_default();
        if call.has_finished {
            // A repetition, or a late one.
            return;
        }
        call.merge(update);
        self.client.deny_changed(
            |asked| asked.call_id.as_ref() == Some(&id) && asked.differs_from(call),
            Permission::denial,
            events,
        );
        let state = text_at(update, "status");
        let is_error = ["failed", "error", "cancelled", "canceled", "rejected"].contains(&state);
        let ends = is_error || state == "completed";
        if !call.has_started && (ends || state == "in_progress") {
            call.has_started = true;
            events.push(call.start(&id));
        }
        if ends {
            call.has_finished = true;
            events.push(ProgramEvent::ToolCallFinished {
                id,
                output: call.tool_output(),
                is_error,
                exit_code: call.exit_code(),
                parent: None,
            });
        }
    }

    /// A request for permission. After a cancellation, it is answered at once, as the protocol requires. So is one that cannot be
    /// allowed for one call only, because no person may decide on more.
    fn request_permission(&mut self, id: &Value, params: &Value, events: &mut Vec<ProgramEvent>) {
        let about = &params["toolCall"];
        let options = &params["options"];
        let call_id = id_text(about, "toolCallId");
        // Without an id it is a call of its own: the arguments of another one must not be shown for it.
        let mut unnamed = Call::default();
        let call = match &call_id {
            Some(id) => {
                let is_announced = self.calls.contains_key(id);
                let call = self.calls.entry(id.clone()).or_default();
                call.merge(about);
                if is_announced && !call.has_started {
                    call.has_started = true;
                    events.push(call.start(id));
                }
                call
            }
            None => {
                unnamed.merge(about);
                &mut unnamed
            }
        };
        self.client.deny_changed(
            |asked| call_id.is_some() && asked.call_id == call_id && asked.differs_from(call),
            Permission::denial,
            events,
        );
        let permission = Permission {
            options: options.clone(),
            call_id: call_id.clone(),
            tool: call.tool(),
            arguments: call.arguments(),
            content: call.content.clone(),
        };
        if permission.option("allow_once").is_none() && !self.client.interrupted {
            self.client.outgoing.push(response(id, permission.denial()));
            let why = "the program offers no permission for one call only: it is denied";
            events.push(notice(NoticeCode::Denied, why));
            events.push(status(params.clone()));
            return;
        }
        let details = json!({"title": call.title, "content": call.content, "options": options});
        let tool = call.tool();
        let input = call.arguments();
        let Some(request_id) =
            self.client.open_approval(id, permission, permission_answer(None), events)
        else {
            events.push(status(params.clone()));
            return;
        };
        events.push(ProgramEvent::ApprovalRequested { request_id, tool, input, call_id, details });
    }

    /// Cancels the turn, and with it all pending requests.
    fn cancel(&mut self) -> Reply {
        let mut reply = self.client.interrupt(|_| permission_answer(None));
        if let Some(session) = self.client.session.id() {
            reply.text.push_str(&notification("session/cancel", json!({"sessionId": session})));
        }
        reply
    }
}

impl Message {
    /// Adds a piece. Pieces without an id belong to the message that began last.
    fn add(&mut self, id: Option<&String>, piece: &str) {
        let is_same = id.is_some() && id == self.id.as_ref();
        let is_other = id.is_some() && self.id.is_some() && !is_same;
        if is_other || self.has_ended && !is_same {
            *self = Message::default();
        }
        if let Some(id) = id {
            self.id = Some(id.clone());
        }
        self.text.push_str(piece);
    }
}

impl Call {
    fn is_described(&self) -> bool {
        self.name.is_some() || self.kind.is_some() || self.title.is_some()
    }

    fn start(&self, id: &str) -> ProgramEvent {
        ProgramEvent::ToolCallStarted {
            id: id.to_owned(),
            name: self.tool(),
            arguments: self.arguments(),
            parent: None,
        }
    }

    /// Adds what an update reports. Missing and empty fields keep their values.
    fn merge(&mut self, update: &Value) {
        for (field, key) in
            [(&mut self.name, "name"), (&mut self.kind, "kind"), (&mut self.title, "title")]
        {
            if let Some(text) = some_text(update, key) {
                *field = Some(text);
            }
        }
        for (field, key) in [
            (&mut self.input, "rawInput"),
            (&mut self.content, "content"),
            (&mut self.output, "rawOutput"),
        ] {
            if !is_blank(&update[key]) {
                field.clone_from(&update[key]);
            }
        }
    }

    /// Returns the name of the tool. Programs that do not send it send its kind.
    fn tool(&self) -> String {
        self.name.clone().or_else(|| self.kind.clone()).unwrap_or_else(|| OTHER.to_owned())
    }

    /// Returns the arguments. A program that does not send them describes the call in a title.
    fn arguments(&self) -> Value {
        if self.input.is_null() { json!({"title": self.title}) } else { self.input.clone() }
    }

    fn tool_output(&self) -> Value {
        if !self.output.is_null() {
            return self.output.clone();
        }
        let blocks = self.content.as_array();
        let texts = blocks.map(|blocks| blocks.iter().map(|it| content_text(&it["content"])));
        match texts.and_then(|texts| texts.collect::<Option<Vec<String>>>()) {
            Some(texts) => Value::from(texts.join("\n")),
            None => self.content.clone(),
        }
    }

    fn exit_code(&self) -> Option<i64> {
        let output = &self.output;
        let places = [&output["exitCode"], &output["exit_code"], &output["metadata"]["exit"]];
        places.into_iter().find_map(Value::as_i64)
    }
}

/// Returns the answer to a permission request: an option, or that the turn was cancelled.
fn permission_answer(option: Option<&Value>) -> Value {
    match option {
        Some(option) => json!({"outcome": {"outcome": "selected", "optionId": option}}),
        None => json!({"outcome": {"outcome": "cancelled"}}),
    }
}

/// Returns the usage of the turn: the draft of the protocol, or Gemini CLI's extension.
fn read_usage(ended: &Value) -> Option<Usage> {
    let usage = &ended["usage"];
    let quota = &ended["_meta"]["quota"]["token_count"];
    let usage = Usage {
        input_tokens: usage["inputTokens"].as_u64().or_else(|| quota["input_tokens"].as_u64()),
        output_tokens: usage["outputTokens"].as_u64().or_else(|| quota["output_tokens"].as_u64()),
        cached_tokens: usage["cachedReadTokens"].as_u64(),
        cache_write_tokens: usage["cachedWriteTokens"].as_u64(),
        reasoning_tokens: usage["thoughtTokens"].as_u64(),
        completeness: Completeness::Complete,
    };
    (!usage.is_empty()).then_some(usage)
}
