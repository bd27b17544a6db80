//! The changes between two recordings of a run.

use std::collections::BTreeSet;
use std::fmt;

use crate::recorded_run::recording::{
    CallGate, RecordedCall, RecordedConversation, RecordedMessage, RecordedOutcome, RecordedRun,
};

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunChange {
    /// The part of the run.
    pub kind: RunChangeKind,
    /// Where: the delegated run, if it is one, and the position in it.
    pub position: String,
    /// As it was recorded; empty if it is new.
    pub before: String,
    /// As it is now; empty if it is gone.
    pub after: String,
}

/// The part of a run that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunChangeKind {
    /// A text of the model, as the session has it.
    Answer,
    /// A tool call of the model, or its arguments.
    ToolCall,
    /// The result of a call, as the model sees it.
    ToolResult,
    /// Whether a call needs an approval.
    Approval,
    /// How the run ended.
    Outcome,
    /// Number of answers, calls or tokens.
    Usage,
    /// A message of another author.
    Message,
    /// A delegated run.
    Delegation,
    /// The instructions. A recorded answer is the same with any instructions, so this alone is not a failure.
    Instructions,
}

impl RunChangeKind {
    /// Returns `true` if it is only a note.
    #[must_use]
    pub fn is_note(self) -> bool {
        self == RunChangeKind::Instructions
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RunChangeKind::Answer => "answer",
            RunChangeKind::ToolCall => "tool_call",
            RunChangeKind::ToolResult => "tool_result",
            RunChangeKind::Approval => "approval",
            RunChangeKind::Outcome => "outcome",
            RunChangeKind::Usage => "usage",
            RunChangeKind::Message => "message",
            RunChangeKind::Delegation => "delegation",
            RunChangeKind::Instructions => "instructions",
        }
    }
}

impl fmt::Display for RunChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.position)?;
        for (sign, text) in [('-', &self.before), ('+', &self.after)] {
            for line in text.lines() {
                write!(f, "\n  {sign} {line}")?;
            }
        }
        Ok(())
    }
}

impl RecordedRun {
    /// Returns the differences from this recording to another one, in the order of the run.
    #[must_use]
    pub fn changes(&self, now: &RecordedRun) -> Vec<RunChange> {
        let mut changes = Vec::new();
        let ids = self.conversations.iter().chain(&now.conversations).map(|it| it.id.as_str());
        let mut seen = BTreeSet::new();
        for id in ids.filter(|id| seen.insert(*id)) {
            let position = if id == self.name() { String::new() } else { format!("run {id}, ") };
            let mut differ = Changes { changes: &mut changes, position };
            match (self.conversation(id), now.conversation(id)) {
                (Some(before), Some(after)) => differ.compare(before, after),
                (Some(_), None) => {
                    differ.add(RunChangeKind::Delegation, "the run", "delegated", "");
                }
                (None, _) => differ.add(RunChangeKind::Delegation, "the run", "", "delegated"),
            }
        }
        changes
    }

    fn conversation(&self, id: &str) -> Option<&RecordedConversation> {
        self.conversations.iter().find(|conversation| conversation.id == id)
    }
}

struct Changes<'a> {
    changes: &'a mut Vec<RunChange>,
    position: String,
}

impl Changes<'_> {
    fn add(
        &mut self,
        kind: RunChangeKind,
        position: &str,
        before: impl Into<String>,
        after: impl Into<String>,
    ) {
        let before = before.into();
        let after = after.into();
        if before != after {
            let position = format!("{}{position}", self.position);
            self.changes.push(RunChange { kind, position, before, after });
        }
    }

    fn compare(&mut self, before: &RecordedConversation, after: &RecordedConversation) {
        let was = before.instructions.as_deref().unwrap_or_default();
        let is = after.instructions.as_deref().unwrap_or_default();
        self.add(RunChangeKind::Instructions, "instructions", was, is);
        let mut answers = 0;
        let mut at = 0;
        let none = RecordedMessage::default();
        let was = in_order(&before.messages);
        let is = in_order(&after.messages);
        while at < was.len().max(is.len()) {
            let was = was.get(at).copied().unwrap_or(&none);
            let is = is.get(at).copied().unwrap_or(&none);
            at += 1;
            let role = if was.role.is_empty() { &is.role } else { &was.role };
            answers += usize::from(role == "assistant");
            if !was.role.is_empty() && !is.role.is_empty() && was.role != is.role {
                let position = format!("message {at}");
                self.add(RunChangeKind::Message, &position, message_text(was), message_text(is));
                continue;
            }
            match role.as_str() {
                "assistant" => self.compare_answers(answers, was, is),
                "tool" => self.compare_results(was, is),
                role => {
                    let position = format!("message {at} of {role}");
                    self.add(RunChangeKind::Message, &position, content(was), content(is));
                }
            }
        }
        self.compare_outcomes(&before.outcome, &after.outcome);
    }

    fn compare_answers(&mut self, number: usize, was: &RecordedMessage, is: &RecordedMessage) {
        let position = format!("answer {number}");
        self.add(RunChangeKind::Answer, &position, content(was), content(is));
        let max = was.tool_calls.len().max(is.tool_calls.len());
        for at in 0..max {
            let position = format!("answer {number}, call {}", at + 1);
            let was = was.tool_calls.get(at);
            let is = is.tool_calls.get(at);
            let was_text = was.map(call_text).unwrap_or_default();
            let is_text = is.map(call_text).unwrap_or_default();
            self.add(RunChangeKind::ToolCall, &position, was_text, is_text);
            if let (Some(was), Some(is)) = (was, is) {
                self.compare_gates(&position, was, is);
            }
        }
    }

    /// What the definitions do with a call whose result the model did not get. A run can end before that is known.
    fn compare_gates(&mut self, position: &str, was: &RecordedCall, is: &RecordedCall) {
        if let Some(gate) = was.gate.filter(|_| was.name == is.name) {
            let now = is.gate.map_or("is not requested", gate_text);
            self.add(RunChangeKind::Approval, position, gate_text(gate), now);
        }
    }

    fn compare_results(&mut self, was: &RecordedMessage, is: &RecordedMessage) {
        let name = was.name.as_ref().or(is.name.as_ref()).cloned().unwrap_or_default();
        let position = was.position.as_ref().or(is.position.as_ref()).cloned().unwrap_or_default();
        let result_position = format!("result of {name} ({position})");
        let was_text = result_text(was);
        let is_text = result_text(is);
        let same_text = was_text == is_text;
        self.add(RunChangeKind::ToolResult, &result_position, was_text, is_text);
        if same_text && was.status.is_some() {
            self.add(RunChangeKind::ToolResult, &result_position, ending(was), ending(is));
        }
        if was.name.is_some() && is.name.is_some() {
            let call_position = format!("call of {name} ({position})");
            let was_approval = approval_text(was);
            let is_approval = approval_text(is);
            self.add(RunChangeKind::Approval, &call_position, was_approval, is_approval);
        }
    }

    fn compare_outcomes(&mut self, was: &RecordedOutcome, is: &RecordedOutcome) {
        self.add(RunChangeKind::Outcome, "outcome", outcome_text(was), outcome_text(is));
        self.add(RunChangeKind::Usage, "usage", usage_text(was), usage_text(is));
    }
}

fn content(message: &RecordedMessage) -> &str {
    message.content.as_deref().unwrap_or_default()
}

fn call_text(call: &RecordedCall) -> String {
    format!("{} {}", call.name, call.arguments)
}

fn gate_text(gate: CallGate) -> &'static str {
    match gate {
        CallGate::Approval => "needs an approval: not decided",
        CallGate::Open => "needs no approval",
        CallGate::Refused => "is refused",
    }
}

/// Returns the text of a result; an empty text if it has no content.
fn result_text(message: &RecordedMessage) -> String {
    let error = if message.error { "error: " } else { "" };
    message.content.as_ref().map(|text| format!("{error}{text}")).unwrap_or_default()
}

/// Returns what was decided about the call of a result.
fn approval_text(message: &RecordedMessage) -> &'static str {
    match &message.approval {
        Some(approval) if approval.omitted => "needs no approval",
        Some(approval) if approval.approved => "needs an approval: approved",
        Some(_) => "needs an approval: rejected",
        None => "needs no approval",
    }
}

fn outcome_text(outcome: &RecordedOutcome) -> String {
    let mut text = outcome.status.clone();
    if let Some(code) = &outcome.error_code {
        text.push_str(&format!(" {code}"));
    }
    if let Some(content) = &outcome.content {
        text.push_str(&format!(": {content}"));
    }
    if let Some(structured) = &outcome.structured {
        text.push_str(&format!(" {structured}"));
    }
    text
}

fn usage_text(outcome: &RecordedOutcome) -> String {
    format!(
        "{} answers, {} tool calls, {} input tokens, {} output tokens",
        outcome.answers, outcome.tool_calls, outcome.input_tokens, outcome.output_tokens
    )
}

/// Returns the messages, with the results of each answer in the order of its calls. A call that is refused has its
/// result first.
fn in_order(messages: &[RecordedMessage]) -> Vec<&RecordedMessage> {
    let mut ordered: Vec<&RecordedMessage> = messages.iter().collect();
    for results in ordered.chunk_by_mut(|one, next| one.role == "tool" && next.role == "tool") {
        results.sort_by_key(|result| {
            let position = result.position.as_deref().unwrap_or_default();
            position.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u64>>()
        });
    }
    ordered
}

/// What became of the call of a result.
fn ending(message: &RecordedMessage) -> String {
    format!("{:?}, exit code {}", message.status(), message.exit_code.unwrap_or_default())
        .to_lowercase()
}

/// Returns a message in one text.
fn message_text(message: &RecordedMessage) -> String {
    format!("{}: {}", message.role, message.content.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that is refused has its result before those of calls that run, so the results were compared with those of other
    /// calls.
    #[test]
    fn results_are_compared_by_call() {
        let message = |role: &str, position: &str| RecordedMessage {
            role: role.to_owned(),
            position: Some(position.to_owned()),
            ..RecordedMessage::default()
        };
        let tool = |position: &str| message("tool", position);
        let messages =
            [message("assistant", ""), tool("1.2"), tool("1.10"), tool("1.1"), message("user", "")];
        let ordered: Vec<_> =
            in_order(&messages).into_iter().filter_map(|it| it.position.as_deref()).collect();
        assert_eq!(ordered, ["", "1.1", "1.2", "1.10", ""]);
    }
}
