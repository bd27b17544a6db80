//! What is played: each recorded conversation as a session, and what its tools and people will say.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value as JsonValue, json};

use super::recording::{Call, Outcome, Recording};

/// The whole play.
#[derive(Debug)]
pub(crate) struct Script {
    /// One for each conversation.
    pub(crate) parts: Vec<Part>,
    /// The tools that are called, by name.
    pub(crate) tools: BTreeSet<String>,
    /// What comes of each call that has a result, by Abide's key of it.
    outcomes: HashMap<String, Outcome>,
}

/// One conversation as a session.
#[derive(Debug)]
pub(crate) struct Part {
    /// The session's id.
    pub(crate) session: String,
    /// What is replayed in it.
    pub(crate) recording: Recording,
}

impl Script {
    /// Gives each conversation its session.
    pub(crate) fn of(recordings: Vec<Recording>) -> Script {
        let parts: Vec<Part> = (recordings.into_iter().enumerate())
            .map(|(at, recording)| Part { session: format!("demo-{}", at + 1), recording })
            .collect();
        let tools = parts.iter().flat_map(|part| part.recording.tools());
        let tools = tools.map(str::to_owned).collect();
        let outcomes = parts.iter().flat_map(|part| {
            part.recording.calls.iter().filter_map(|call| {
                let outcome = call.outcome.clone()?;
                Some((call.id(&part.session), outcome))
            })
        });
        let outcomes = outcomes.collect();
        Script { parts, tools, outcomes }
    }

    /// What comes of a call; none if its recording ends before the result.
    pub(crate) fn outcome(&self, call_id: &str) -> Option<&Outcome> {
        self.outcomes.get(call_id)
    }

    /// How many calls of reducers the play takes, all going well.
    pub(crate) fn expected_events(&self) -> u64 {
        let of_parts: usize = self.parts.iter().map(Part::expected_events).sum();
        (self.tools.len() + of_parts) as u64
    }
}

impl Part {
    /// The arguments that make the session.
    pub(crate) fn session_arguments(&self) -> JsonValue {
        let Recording { name, about, .. } = &self.recording;
        let agent = about.get("domain").and_then(JsonValue::as_str);
        let agent = agent.filter(|agent| !agent.is_empty()).unwrap_or("agent");
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

    /// The arguments that ask for a tool call.
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

    /// The arguments that ask for a person.
    pub(crate) fn handoff_arguments(&self, call: &Call) -> JsonValue {
        let said = ["summary", "reason"].iter().find_map(|key| call.arguments.get(key)?.as_str());
        json!({
            "session_id": self.session,
            "reason": said.unwrap_or("the agent asks for a person"),
            "required_capability": "human",
            "data": {
                "call_id": call.id(&self.session),
                "provider_call_id": call.provider_id,
                "arguments": call.arguments,
            },
        })
    }

    /// Whether nothing is left open at the end, so that the session can be completed.
    pub(crate) fn ends(&self) -> bool {
        self.recording.calls.iter().all(|call| call.outcome.is_some())
    }

    fn expected_events(&self) -> usize {
        // A call that is answered is asked for, claimed and completed.
        let of_call = |call: &Call| if call.outcome.is_some() { 3 } else { 1 };
        let calls: usize = self.recording.calls.iter().map(of_call).sum();
        1 + self.recording.messages.len() + calls + usize::from(self.ends())
    }
}
