//! A session's messages in the form that a model reads. They are derived from the rows for each request.
//!
//! Model providers reject a conversation in which a tool call has no result. A call whose run ended before the result was
//! delivered gets its stored outcome, see `tools::undelivered`.

use std::collections::BTreeSet;

use abide_definitions::profile_settings::ContextSettings;
use abide_definitions::reduction_rules::ReductionRules;
use abide_models::{ModelCall, ModelMessage};
use serde_json::Value;

use crate::context::entry::{
    MEMORY, PARTIAL, REPAIR, RequestedCall, SessionEntry, ToolEntry, WARNING, is_of_run, is_result,
};
use crate::context::reduction;

/// Returns the conversation for a model.
pub(crate) fn messages(entries: &[SessionEntry]) -> Vec<ModelMessage> {
    messages_with(entries, None)
}

/// Returns the conversation for a model, with large results and arguments reduced in messages up to this id. Roles, ids
/// and the order stay.
pub(crate) fn reduced_messages(
    entries: &[SessionEntry],
    through_id: i64,
    settings: &ContextSettings,
) -> Vec<ModelMessage> {
    messages_with(entries, Some((through_id, settings)))
}

fn messages_with(
    entries: &[SessionEntry],
    reduced: Option<(i64, &ContextSettings)>,
) -> Vec<ModelMessage> {
    let mut conversation = Conversation::default();
    for entry in entries {
        let settings = reduced.filter(|(through_id, _)| entry.id <= *through_id);
        conversation.add(entry, settings.map(|(_, settings)| settings));
    }
    conversation.end_answer();
    conversation.messages
}

/// The result of a call of which neither a message nor a row has the outcome, such as a call in an imported history. It may have
/// taken effect, and a model that is told otherwise repeats it.
pub(crate) const NO_RESULT: &str = "There is no result: the run ended before the call returned one. The call may \
    have taken effect: find out before you repeat it.";

/// The messages for a model so far.
#[derive(Default)]
struct Conversation<'a> {
    messages: Vec<ModelMessage>,
    /// The last answer.
    answer: Option<&'a SessionEntry>,
    /// The calls of the last answer that have no result yet.
    open: Vec<&'a RequestedCall>,
    /// Calls of earlier answers that have got their stored outcome in place of a message.
    closed: BTreeSet<&'a str>,
    /// Messages that arrived before the results of all calls. Providers expect the results next to the answer.
    later: Vec<ModelMessage>,
}

impl<'a> Conversation<'a> {
    /// Adds an entry. `settings` reduce it.
    fn add(&mut self, entry: &'a SessionEntry, settings: Option<&ContextSettings>) {
        if let Some(result) = entry.tool().filter(|_| is_result(entry)) {
            self.add_result(entry, result, settings);
        } else if entry.role == "assistant" && ["message", PARTIAL].contains(&entry.kind.as_str()) {
            self.add_answer(entry, settings);
        } else if let Some(message) = message(entry) {
            if self.open.is_empty() {
                self.messages.push(message)
            } else {
                self.later.push(message)
            }
        }
    }

    fn add_result(
        &mut self,
        entry: &SessionEntry,
        result: &ToolEntry,
        settings: Option<&ContextSettings>,
    ) {
        // A fork writes results at the end of its history, also those of calls of earlier answers.
        if self.closed.contains(result.call_id.as_str()) {
            return;
        }
        let text = entry.content.as_deref().unwrap_or_default();
        let content = settings.and_then(|settings| {
            let rules = &settings.reduce_results;
            reduction::result_replacement(rules, &result.name, &result.call_id, text)
        });
        let mut content = content.unwrap_or_else(|| text.to_owned());
        if let Some(arguments) = &result.approved_arguments {
            content = with_approved_arguments(arguments, &content);
        }
        self.messages.push(ModelMessage::Tool {
            call_id: result.provider_call_id.clone(),
            name: result.name.clone(),
            content,
            is_error: result.is_error,
        });
        self.open.retain(|call| call.call_id != result.call_id);
        if self.open.is_empty() {
            self.messages.append(&mut self.later);
        }
    }

    fn add_answer(&mut self, entry: &'a SessionEntry, settings: Option<&ContextSettings>) {
        let Some(answer) = entry.assistant() else { return };
        self.end_answer();
        self.answer = Some(entry);
        self.open.extend(&answer.calls);
        let calls = answer.calls.iter().map(|call| ModelCall {
            id: call.provider_call_id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        });
        let mut message = ModelMessage::Assistant {
            text: entry.content.clone().unwrap_or_default(),
            reasoning: answer.reasoning.clone(),
            calls: calls.collect(),
            carry: answer.carry.clone(),
        };
        if let Some(settings) = settings {
            reduce_arguments(&mut message, &self.open, &settings.reduce_arguments);
        }
        self.messages.push(message);
    }

    /// Ends the last answer. Its calls without a message with their result get the stored outcome.
    fn end_answer(&mut self) {
        for call in self.open.drain(..) {
            self.closed.insert(&call.call_id);
            let stored = self.answer.and_then(|answer| answer.undelivered(&call.call_id));
            self.messages.push(ModelMessage::Tool {
                call_id: call.provider_call_id.clone(),
                name: call.name.clone(),
                content: stored.map_or(NO_RESULT, |stored| &stored.text).to_owned(),
                is_error: stored.is_none_or(|stored| stored.is_error),
            });
        }
        self.messages.append(&mut self.later);
    }
}

/// Creates a result of a call that ran with other arguments than the model's. The request of the model stays as it was:
/// providers check what they have signed.
pub(crate) fn with_approved_arguments(arguments: &Value, result: &str) -> String {
    format!("The approver changed the arguments to {arguments}.\n{result}")
}

/// Returns a message that is neither an answer nor a result; `None` if the model does not see it.
fn message(entry: &SessionEntry) -> Option<ModelMessage> {
    let text = entry.content.clone().unwrap_or_default();
    Some(match (entry.role.as_str(), entry.kind.as_str()) {
        ("user", "message") => ModelMessage::User { text },
        // Some providers support instructions only at the beginning, and would move it there.
        ("system", REPAIR | WARNING) if is_of_run(entry) => ModelMessage::User { text },
        // The facts of a turn are part of the instructions.
        ("system", MEMORY) if is_of_run(entry) => return None,
        ("system", _) => ModelMessage::System { text },
        // A supervisor writes to the session as its user does. Handoffs are treated the same.
        (role, "message" | "handoff") => ModelMessage::User { text: format!("[{role}] {text}") },
        _ => return None,
    })
}

/// Reduces large arguments of an answer. Data of the provider may contain them, too, so it is omitted then.
fn reduce_arguments(message: &mut ModelMessage, asked: &[&RequestedCall], rules: &ReductionRules) {
    let ModelMessage::Assistant { calls, carry, reasoning, .. } = message else { return };
    for (call, asked) in calls.iter_mut().zip(asked) {
        let name = &call.name;
        let id = &asked.call_id;
        if let Some(reduced) = reduction::arguments_replacement(rules, name, id, &call.arguments) {
            call.arguments = reduced;
            (*carry, *reasoning) = (None, None);
        }
    }
}

#[cfg(test)]
mod tests;
