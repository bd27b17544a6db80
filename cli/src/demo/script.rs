//! The script of the demo: each recorded conversation as a session, with the results of its tools and supervisors.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value as JsonValue, json};

use super::recording::{Call, Outcome, Recording};

/// The whole script.
#[derive(Debug)]
pub(crate) struct Script {
    /// One part for each conversation.
    pub(crate) parts: Vec<Part>,
    /// The names of the called tools.
    pub(crate) tools: BTreeSet<String>,
    /// The result of each call that has one, by Abide's id of the call.
    outcomes: HashMap<String, Outcome>,
}

/// One conversation as a session.
#[derive(Debug)]
pub(crate) struct Part {
    /// The id of the session.
    pub(crate) session: String,
    /// The recording.
    pub(crate) recording: Recording,
}

impl Script {
    /// Assigns a session to each conversation.
    pub(crate) fn new(recordings: Vec<Recording>) -> Script {
        let parts: Vec<Part> = (recordings.into_iter().enumerate())
            .map(|(at, recording)| Part { session: format!("demo-{}", at + 1), recording })
            .collect();
        let tools =
            parts.iter().flat_map(|part| part.recording.tools()).map(str::to_owned).collect();
        let mut outcomes = HashMap::new();
        for part in &parts {
            for call in &part.recording.calls {
                if let Some(outcome) = &call.outcome {
                    outcomes.insert(call.id(&part.session), outcome.clone());
                }
            }
        }
        Script { parts, tools, outcomes }
    }

    /// The result of a call; `None` if the recording ends before it.
    pub(crate) fn outcome(&self, call_id: &str) -> Option<&Outcome> {
        self.outcomes.get(call_id)
    }

    /// Number of reducer calls without retries: each tool is registered once, before the conversations.
    pub(crate) fn expected_events(&self) -> u64 {
        let of_parts: usize = self.parts.iter().map(Part::expected_events).sum();
        (self.tools.len() + of_parts) as u64
    }
}

impl Part {
    /// The arguments that create the session.
    pub(crate) fn session_arguments(&self) -> JsonValue {
        let Recording { name, about, .. } = &self.recording;
        let agent = about
            .get("domain")
            .and_then(JsonValue::as_str)
            .filter(|agent| !agent.is_empty())
            .unwrap_or("agent");
        json!({"id": self.session, "agent": agent, "title": name, "metadata": about})
    }

    /// The arguments that append message `at`.
    pub(crate) fn message_arguments(&self, at: usize) -> JsonValue {
        let message = &self.recording.messages[at];
        let mut arguments = json!({
            "session_id": self.session,
            "role": message.role,
            "content": message.content,
        });
        if let Some(data) = &message.data {
            arguments["data"] = data.clone();
        }
        arguments
    }

    /// The arguments that request a tool call.
    pub(crate) fn call_arguments(&self, call: &Call) -> JsonValue {
        let mut arguments = json!({
            "call_id": call.id(&self.session),
            "session_id": self.session,
            "tool_name": call.tool,
            "arguments": call.arguments,
        });
        if let Some(id) = &call.provider_id {
            arguments["provider_call_id"] = id.as_str().into();
        }
        arguments
    }

    /// The arguments that request a handoff.
    pub(crate) fn handoff_arguments(&self, call: &Call) -> JsonValue {
        let text = ["summary", "reason"].iter().find_map(|key| call.arguments.get(key)?.as_str());
        json!({
            "session_id": self.session,
            "reason": text.unwrap_or("the agent requests a handoff"),
            "required_capability": "human",
            "data": {
                "call_id": call.id(&self.session),
                "provider_call_id": call.provider_id,
                "arguments": call.arguments,
            },
        })
    }

    /// Whether no call and no handoff stays open, so that the session can be completed.
    pub(crate) fn is_complete(&self) -> bool {
        self.recording.calls.iter().all(|call| call.outcome.is_some())
    }

    /// Number of reducer calls of the conversation.
    fn expected_events(&self) -> usize {
        // A call with a result is requested, claimed and completed; a handoff is requested, claimed and resolved.
        let calls: usize = self
            .recording
            .calls
            .iter()
            .map(|call| if call.outcome.is_some() { 3 } else { 1 })
            .sum();
        // The first call creates the session, the last one completes it.
        1 + self.recording.messages.len() + calls + usize::from(self.is_complete())
    }
}
