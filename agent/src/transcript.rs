//! A session's messages, as a model reads them. The rows stand; what a model is shown is made of them anew
//! each time.
//!
//! A model takes no conversation in which a call has no result, so a call that nobody ever answered (its run was
//! aborted) is given one here: that there is none.

use abide_client::{AgentState, Json};
use abide_models::{ModelCall, ModelMessage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an assistant's message holds beside its text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    /// The run that it is part of.
    pub(crate) run_id: String,
    /// Which answer of the run it is, from 1.
    pub(crate) iteration: i64,
    /// What it asks to be called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) calls: Vec<AskedCall>,
    /// What the model thought, as far as it told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    /// What only its provider reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) carry: Option<Value>,
    /// Who answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) provider: String,
    /// With which model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) model: String,
    /// How often the model had been asked by then, this time included, since the run may make no more calls.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) past_limit: i64,
    /// What was said before a guardrail put something else in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) original: Option<String>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A call that a model asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AskedCall {
    /// Ours: of run, iteration and place, so that it is the same whoever asks again.
    pub(crate) call_id: String,
    /// The tool.
    pub(crate) name: String,
    /// The arguments, the text that the model gave.
    pub(crate) arguments: String,
    /// The provider's id: what it wants to see with the result, and no key.
    pub(crate) provider_call_id: String,
}

/// What a tool's message holds beside its text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Result {
    /// The call that it answers.
    pub(crate) call_id: String,
    /// The provider's id of it.
    pub(crate) provider_call_id: String,
    /// The tool.
    pub(crate) name: String,
    /// Whether it went wrong.
    pub(crate) is_error: bool,
    /// A program's exit code, or 0 and 1.
    pub(crate) exit_code: i32,
}

/// The kind of an answer that broke off.
pub(crate) const PARTIAL: &str = "partial";

/// The kind of what a model is told whose answer is not what was asked for.
pub(crate) const REPAIR: &str = "repair";

/// What such an entry holds beside its text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Repair {
    /// The run whose answer it was.
    pub(crate) run_id: String,
}

/// What an entry's `data` holds, as far as it can be read.
pub(crate) fn data<T: for<'de> Deserialize<'de> + Default>(entry: &AgentState) -> T {
    let json = entry.data.as_ref().map(Json::as_str);
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
}

/// The conversation, for a model.
pub(crate) fn messages(entries: &[AgentState]) -> Vec<ModelMessage> {
    let mut told = Vec::new();
    let mut open: Vec<AskedCall> = Vec::new();
    for entry in entries {
        if entry.role == "tool" && entry.kind == "message" {
            let result: Result = data(entry);
            open.retain(|call| call.call_id != result.call_id);
            told.push(ModelMessage::Tool {
                call_id: result.provider_call_id,
                name: result.name,
                content: entry.content.clone().unwrap_or_default(),
                is_error: result.is_error,
            });
            continue;
        }
        let Some(message) = of(entry, &mut open, &mut told) else { continue };
        told.push(message);
    }
    give_up(&mut open, &mut told);
    told
}

/// A message that is not a tool's; what was open before it is given up.
fn of(
    entry: &AgentState,
    open: &mut Vec<AskedCall>,
    told: &mut Vec<ModelMessage>,
) -> Option<ModelMessage> {
    let text = entry.content.clone().unwrap_or_default();
    let message = match (entry.role.as_str(), entry.kind.as_str()) {
        ("user", "message") => ModelMessage::User { text },
        ("assistant", "message" | PARTIAL) => {
            let said: Said = data(entry);
            give_up(open, told);
            open.clone_from(&said.calls);
            let calls = said.calls.into_iter().map(|call| ModelCall {
                id: call.provider_call_id,
                name: call.name,
                arguments: call.arguments,
            });
            let (reasoning, carry) = (said.reasoning, said.carry);
            return Some(ModelMessage::Assistant {
                text,
                reasoning,
                calls: calls.collect(),
                carry,
            });
        }
        // Providers that know no instructions amid a conversation would lift it above all of it.
        ("system", REPAIR) => ModelMessage::User { text },
        ("system", _) => ModelMessage::System { text },
        // A supervisor speaks to the session, as its user does; so does whatever else was handed in.
        (role, "message" | "handoff") => ModelMessage::User { text: format!("[{role}] {text}") },
        _ => return None,
    };
    give_up(open, told);
    Some(message)
}

fn give_up(open: &mut Vec<AskedCall>, told: &mut Vec<ModelMessage>) {
    for call in open.drain(..) {
        told.push(ModelMessage::Tool {
            call_id: call.provider_call_id,
            name: call.name,
            content: "There is no result: the run ended before it.".to_owned(),
            is_error: true,
        });
    }
}
