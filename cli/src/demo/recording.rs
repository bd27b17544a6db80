//! A recorded conversation of an agent: its messages as arguments of `append_message`, and its tool calls with
//! their results.
//!
//! Recordings are not validated at their source. A provider's call id can be null or occur twice, so a call is
//! identified by its position. Arguments may not be JSON, and a call may have no result.

use std::collections::BTreeSet;

use abide_client::Json;
use abide_client::rows::AgentState;
use serde_json::{Map, Value as JsonValue, json};

/// Calls of this tool request a handoff.
const HANDOFF_TOOL: &str = "transfer_to_human_agents";

/// One conversation.
#[derive(Debug, PartialEq)]
pub(crate) struct Recording {
    /// Its id.
    pub(crate) name: String,
    /// Its metadata: source, model, domain, reward …
    pub(crate) about: Map<String, JsonValue>,
    /// Its messages, in order.
    pub(crate) messages: Vec<Message>,
    /// Its tool calls, in order.
    pub(crate) calls: Vec<Call>,
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    /// The role; any name.
    pub(crate) role: String,
    /// The text.
    pub(crate) content: Option<String>,
    /// All other recorded members, unchanged.
    pub(crate) data: Option<JsonValue>,
    /// The call whose result it is, as index into [`Recording::calls`].
    pub(crate) answers: Option<usize>,
}

/// One tool call.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    /// The index of its message, and its index there.
    pub(crate) place: (usize, usize),
    /// The tool.
    pub(crate) tool: String,
    /// The provider's id of the call: an attribute, never a key.
    pub(crate) provider_id: Option<String>,
    /// The arguments; invalid JSON is kept as a JSON string.
    pub(crate) arguments: JsonValue,
    /// Its result, if it was recorded.
    pub(crate) outcome: Option<Outcome>,
}

/// The result of a tool call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The text that the agent received.
    pub(crate) text: Option<String>,
    /// Whether it was recorded as an error.
    pub(crate) failed: bool,
}

impl Call {
    /// Whether the call requests a handoff, not a tool.
    pub(crate) fn is_handoff(&self) -> bool {
        self.tool == HANDOFF_TOOL
    }

    /// Abide's id of the call: derived from session and position, because the provider's id is not unique.
    pub(crate) fn id(&self, session: &str) -> String {
        format!("{session}/{}/{}", self.place.0, self.place.1)
    }
}

impl Message {
    /// Whether a row of `agent_state` is equal to this message.
    pub(crate) fn matches_row(&self, row: &AgentState) -> bool {
        // JSON columns have one canonical text for each value.
        let data = self.data.clone().map(Json::from);
        row.role == self.role && row.content == self.content && row.data == data
    }
}

impl Recording {
    /// Parses one line of the shared format.
    ///
    /// # Errors
    /// A phrase that describes the error.
    pub(crate) fn parse(line: &str) -> Result<Recording, String> {
        let json: JsonValue =
            serde_json::from_str(line).map_err(|why| format!("it is not JSON: {why}"))?;
        let JsonValue::Object(mut about) = json else {
            return Err("it is not a JSON object".to_owned());
        };
        let Some(JsonValue::Array(listed)) = about.remove("messages") else {
            return Err("it has no list of messages".to_owned());
        };
        let name = about.remove("id").and_then(|id| id.as_str().map(str::to_owned));
        let mut recording = Recording {
            name: name.ok_or_else(|| "it has no id".to_owned())?,
            about,
            messages: Vec::with_capacity(listed.len()),
            calls: Vec::new(),
        };
        for (at, message) in listed.into_iter().enumerate() {
            recording.push_message(message).map_err(|why| format!("message {at} {why}"))?;
        }
        Ok(recording)
    }

    /// The tools that it calls, without handoffs.
    pub(crate) fn tools(&self) -> BTreeSet<&str> {
        let calls = self.calls.iter().filter(|call| !call.is_handoff());
        calls.map(|call| call.tool.as_str()).collect()
    }

    /// The tool calls of message `at`.
    pub(crate) fn calls_of(&self, at: usize) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |call| call.place.0 == at)
    }

    fn push_message(&mut self, message: JsonValue) -> Result<(), String> {
        let at = self.messages.len();
        let JsonValue::Object(mut rest) = message else {
            return Err("is not a JSON object".to_owned());
        };
        let Some(JsonValue::String(role)) = rest.remove("role") else {
            return Err("has no role".to_owned());
        };
        if let Some(calls) = rest.get("tool_calls") {
            self.push_calls(at, calls)?;
        }
        let content = match rest.remove("content") {
            Some(JsonValue::String(text)) => Some(text),
            None | Some(JsonValue::Null) => None,
            // Some frameworks record a message in parts; they are kept unchanged in `data`.
            Some(parts) => {
                rest.insert("content".to_owned(), parts);
                None
            }
        };
        let answers =
            (role == "tool").then(|| self.find_answered_call(rest.get("tool_call_id"))).flatten();
        if let Some(call) = answers {
            let failed = rest.get("error").and_then(JsonValue::as_bool).unwrap_or(false);
            self.calls[call].outcome = Some(Outcome { text: content.clone(), failed });
        }
        let data = (!rest.is_empty()).then_some(JsonValue::Object(rest));
        self.messages.push(Message { role, content, data, answers });
        Ok(())
    }

    fn push_calls(&mut self, at: usize, calls: &JsonValue) -> Result<(), String> {
        let listed = match calls {
            JsonValue::Null => &Vec::new(),
            JsonValue::Array(listed) => listed,
            _ => return Err("has tool_calls that are not a list".to_owned()),
        };
        for (n, call) in listed.iter().enumerate() {
            let tool = call["name"]
                .as_str()
                .ok_or_else(|| format!("has a tool call {n} without a name"))?;
            self.calls.push(Call {
                place: (at, n),
                tool: tool.to_owned(),
                provider_id: call["id"].as_str().map(str::to_owned),
                arguments: parse_arguments(&call["arguments"]),
                outcome: None,
            });
        }
        Ok(())
    }

    /// The call that a result belongs to: the first open call with that id, in the latest message that has one. Ids
    /// are not unique; among equal ids the position decides.
    fn find_answered_call(&self, id: Option<&JsonValue>) -> Option<usize> {
        let id = id.and_then(JsonValue::as_str);
        let open_calls: Vec<(usize, &Call)> = self
            .calls
            .iter()
            .enumerate()
            .filter(|(_, call)| call.outcome.is_none() && call.provider_id.as_deref() == id)
            .collect();
        let (_, last) = open_calls.last()?;
        let latest_message = last.place.0;
        let first_of_message = open_calls.iter().find(|(_, call)| call.place.0 == latest_message);
        first_of_message.map(|(at, _)| *at)
    }
}

/// The arguments of a call, recorded as text: parsed if they are JSON.
fn parse_arguments(recorded: &JsonValue) -> JsonValue {
    match recorded {
        JsonValue::String(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
