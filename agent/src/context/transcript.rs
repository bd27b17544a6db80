//! A session's messages in the form that a model reads. They are derived from the rows for each request.
//!
//! Model providers reject a conversation in which a tool call has no result. If a call has none because its run was
//! aborted, a placeholder result is added.

use abide_definitions::profile_settings::ContextSettings;
use abide_definitions::reduction_rules::ReductionRules;
use abide_models::{ModelCall, ModelMessage};

use crate::context::entry::{
    MEMORY, PARTIAL, REPAIR, RequestedCall, SessionEntry, WARNING, is_of_run, is_result,
};
use crate::context::reduction;

/// The conversation for a model.
pub(crate) fn messages(entries: &[SessionEntry]) -> Vec<ModelMessage> {
    messages_with(entries, None)
}

/// The conversation for a model, with large results and arguments reduced in messages up to this id. Roles, ids and the order stay.
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
    let mut messages_out = Vec::new();
    let mut open: Vec<RequestedCall> = Vec::new();
    for entry in entries {
        let settings = reduced.filter(|(through_id, _)| entry.id <= *through_id);
        if let Some(result) = entry.result().filter(|_| is_result(entry)) {
            open.retain(|call| call.call_id != result.call_id);
            let text = entry.content.as_deref().unwrap_or_default();
            let content = settings.and_then(|(_, settings)| {
                let rules = &settings.reduce_results;
                reduction::of_result(rules, &result.name, &result.call_id, text)
            });
            messages_out.push(ModelMessage::Tool {
                call_id: result.provider_call_id.clone(),
                name: result.name.clone(),
                content: content.unwrap_or_else(|| text.to_owned()),
                is_error: result.is_error,
            });
            continue;
        }
        let Some(mut message) = of(entry, &mut open, &mut messages_out) else { continue };
        if let Some((_, settings)) = settings {
            reduce_arguments(&mut message, &open, &settings.reduce_arguments);
        }
        messages_out.push(message);
    }
    give_up(&mut open, &mut messages_out);
    messages_out
}

/// Reduces large arguments of an answer. Data of the provider may contain them, too, so it is omitted then.
fn reduce_arguments(message: &mut ModelMessage, asked: &[RequestedCall], rules: &ReductionRules) {
    let ModelMessage::Assistant { calls, carry, reasoning, .. } = message else { return };
    for (call, asked) in calls.iter_mut().zip(asked) {
        let (name, id) = (&call.name, &asked.call_id);
        if let Some(reduced) = reduction::of_arguments(rules, name, id, &call.arguments) {
            call.arguments = reduced;
            (*carry, *reasoning) = (None, None);
        }
    }
}

/// Adds a message that is not a tool result. Calls that are still open get a placeholder result first.
fn of(
    entry: &SessionEntry,
    open: &mut Vec<RequestedCall>,
    messages_out: &mut Vec<ModelMessage>,
) -> Option<ModelMessage> {
    let text = entry.content.clone().unwrap_or_default();
    let message = match (entry.role.as_str(), entry.kind.as_str()) {
        ("user", "message") => ModelMessage::User { text },
        ("assistant", "message" | PARTIAL) => {
            let answer = entry.answer()?;
            give_up(open, messages_out);
            open.clone_from(&answer.calls);
            let calls = answer.calls.iter().map(|call| ModelCall {
                id: call.provider_call_id.clone(),
                name: call.name.clone(),
                arguments: call.arguments.clone(),
            });
            return Some(ModelMessage::Assistant {
                text,
                reasoning: answer.reasoning.clone(),
                calls: calls.collect(),
                carry: answer.carry.clone(),
            });
        }
        // Some providers support instructions only at the beginning, and would move it there.
        ("system", REPAIR | WARNING) if is_of_run(entry) => ModelMessage::User { text },
        // The facts of a turn are part of the instructions.
        ("system", MEMORY) if is_of_run(entry) => return None,
        ("system", _) => ModelMessage::System { text },
        // A supervisor writes to the session as its user does. Handoffs are treated the same.
        (role, "message" | "handoff") => ModelMessage::User { text: format!("[{role}] {text}") },
        _ => return None,
    };
    give_up(open, messages_out);
    Some(message)
}

fn give_up(open: &mut Vec<RequestedCall>, messages_out: &mut Vec<ModelMessage>) {
    for call in open.drain(..) {
        messages_out.push(ModelMessage::Tool {
            call_id: call.provider_call_id,
            name: call.name,
            content: "There is no result: the run ended before the call.".to_owned(),
            is_error: true,
        });
    }
}
