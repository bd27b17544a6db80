//! The body of `POST /v1/responses`. What an agent cannot do is refused if ignoring it would change the meaning of the
//! request. Settings of the model, such as `temperature`, are those of the agent's definition.

use abide_schema::{Code, Refusal};
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue};

use crate::decision::{self, Decision};
use crate::start::Message;

/// An example of a body.
pub(super) const EXAMPLE_BODY: &str = r#"{"model": "AGENT", "input": "…"}"#;

/// The fields that have an effect; others are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct CreateResponse {
    /// The agent.
    pub(super) model: String,
    pub(super) input: Option<JsonValue>,
    pub(super) instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    pub(super) stream: Option<bool>,
    pub(super) background: Option<bool>,
    /// Stored with a new session.
    pub(super) metadata: Option<Map<String, JsonValue>>,
    store: Option<bool>,
    tools: Option<Vec<JsonValue>>,
    tool_choice: Option<JsonValue>,
    text: Option<JsonValue>,
    conversation: Option<JsonValue>,
    prompt: Option<JsonValue>,
}

impl CreateResponse {
    /// Refuses what an agent cannot do.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.store == Some(false) {
            return refuse("a response is always stored", "omit store");
        }
        if self.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            let hint = "an agent has the tools of its definition: docs/agents.md; omit tools";
            return refuse("a request cannot add tools to an agent", hint);
        }
        if !self.tool_choice.as_ref().is_none_or(|choice| choice.is_null() || choice == "auto") {
            return refuse("tool_choice must be auto", "omit tool_choice");
        }
        let format = self.text.as_ref().map_or(&JsonValue::Null, |text| &text["format"]["type"]);
        if !format.is_null() && format != "text" {
            let hint = "set response_format in the agent's definition; omit text.format";
            return refuse("text.format must be text", hint);
        }
        if self.conversation.as_ref().is_some_and(|it| !it.is_null()) {
            let hint = "use previous_response_id";
            return refuse("conversation is not supported", hint);
        }
        if self.prompt.as_ref().is_some_and(|it| !it.is_null()) {
            return refuse("prompt is not supported", "the agent's definition has its prompt");
        }
        if self.previous_response_id.is_some()
            && self.metadata.as_ref().is_some_and(|it| !it.is_empty())
        {
            let hint = "send metadata only with the first request of a session";
            return refuse("metadata cannot be set for an existing session", hint);
        }
        Ok(())
    }
}

fn refuse(detail: &str, hint: &str) -> Result<(), Refusal> {
    Err(Refusal::new(Code::BadArguments, detail).hint(hint.to_owned()))
}

/// The content of a request.
pub(super) enum Input {
    /// Messages, the last one from the user.
    Messages { before: Vec<Message>, input: String },
    /// Decisions on the calls of the previous response.
    Decisions(Vec<Decision>),
}

/// The prefix of the id of an approval request; the id of the call follows.
pub(super) const APPROVAL: &str = "mcpr_";

/// Reads `input` and `instructions`.
pub(super) fn read_input(wanted: &CreateResponse) -> Result<Input, Refusal> {
    let mut messages = Vec::new();
    let mut decisions = Vec::new();
    if let Some(text) = wanted.instructions.as_ref().filter(|text| !text.is_empty()) {
        messages.push(Message { role: "developer".to_owned(), text: text.clone() });
    }
    match &wanted.input {
        Some(JsonValue::String(text)) => {
            messages.push(Message { role: "user".to_owned(), text: text.clone() });
        }
        Some(JsonValue::Array(items)) => {
            for item in items {
                read_item(item, &mut messages, &mut decisions)?;
            }
        }
        _ => return Err(bad_input("input must be a string or a list of items")),
    }
    // The decisions of a history were made before: their requests are in it, and a message follows.
    let has_requests = match &wanted.input {
        Some(JsonValue::Array(items)) => {
            items.iter().any(|item| item["type"] == "mcp_approval_request")
        }
        _ => false,
    };
    let is_history = wanted.previous_response_id.is_none() && has_requests;
    if !decisions.is_empty() && !is_history {
        return if messages.is_empty() {
            Ok(Input::Decisions(decisions))
        } else {
            Err(bad_input("input has both a message and an mcp_approval_response"))
        };
    }
    match messages.pop() {
        Some(Message { role, text }) if role == "user" => {
            Ok(Input::Messages { before: messages, input: text })
        }
        _ => Err(bad_input("the last item of input is not a message of the user")),
    }
}

fn bad_input(detail: &str) -> Refusal {
    let hint = r#"for example  "input": [{"role": "user", "content": "…"}]"#;
    Refusal::new(Code::BadArguments, detail).hint(hint)
}

/// The member of an approval with changed arguments. The protocol has none of its own.
const APPROVED_ARGUMENTS: &str = "approved_arguments";

/// The members of an approval. Clients give items a status.
const APPROVAL_MEMBERS: [&str; 7] =
    ["type", "id", "status", "approval_request_id", "approve", "reason", APPROVED_ARGUMENTS];

fn read_item(
    item: &JsonValue,
    messages: &mut Vec<Message>,
    decisions: &mut Vec<Decision>,
) -> Result<(), Refusal> {
    match item["type"].as_str() {
        None | Some("message") => messages.push(read_message(item)?),
        Some("mcp_approval_response") => {
            let id = item["approval_request_id"].as_str().unwrap_or_default();
            if id.is_empty() {
                return Err(bad_input("an mcp_approval_response needs approval_request_id"));
            }
            let Some(approve) = item["approve"].as_bool() else {
                return Err(bad_input("an mcp_approval_response needs approve: true or false"));
            };
            let Some(call_id) = id.strip_prefix(APPROVAL) else {
                let detail = format!("there is no approval request {id}");
                let hint = "approval_request_id is the id of an item of type mcp_approval_request";
                return Err(Refusal::new(Code::NotFound, detail).hint(hint));
            };
            let members = item.as_object().into_iter().flatten();
            decision::check_members("an mcp_approval_response", members, &APPROVAL_MEMBERS)?;
            decisions.push(Decision {
                call_id: call_id.to_owned(),
                approve,
                comment: item["reason"].as_str().map(str::to_owned),
                answer: None,
                approved_arguments: decision::approved_arguments(
                    APPROVED_ARGUMENTS,
                    &item[APPROVED_ARGUMENTS],
                    None,
                )?,
            });
        }
        // The session has its own record of them. A client that keeps the history sends the whole output of a response.
        Some("reasoning" | "mcp_call" | "mcp_approval_request" | "mcp_list_tools") => {}
        Some(other) => {
            let detail = format!("an input item of type {other} is not supported");
            let hint = "continue the session with previous_response_id; it has its own items";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
        }
    }
    Ok(())
}

const ROLES: [&str; 4] = ["user", "assistant", "system", "developer"];

fn read_message(item: &JsonValue) -> Result<Message, Refusal> {
    let role = item["role"].as_str().filter(|role| ROLES.contains(role));
    let role = role.ok_or_else(|| bad_input("the role of a message is missing or unknown"))?;
    // The instructions of a definition have the role system. A caller does not get their authority.
    let role = if role == "system" { "developer" } else { role };
    let text = match &item["content"] {
        JsonValue::String(text) => text.clone(),
        JsonValue::Array(parts) => parts.iter().map(read_part).collect::<Result<String, _>>()?,
        _ => {
            return Err(bad_input(
                "the content of a message must be a string or a list of text parts",
            ));
        }
    };
    Ok(Message { role: role.to_owned(), text })
}

fn read_part(part: &JsonValue) -> Result<&str, Refusal> {
    let kind = part["type"].as_str().unwrap_or_default();
    match (kind, part["text"].as_str()) {
        ("input_text" | "output_text" | "text", Some(text)) => Ok(text),
        _ => Err(bad_input(&format!("content of type {kind:?} is not supported"))),
    }
}
