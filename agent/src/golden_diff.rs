//! What has changed between two recordings of a run.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::golden::{GoldenConversation, GoldenMessage, GoldenOutcome, GoldenRun};

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoldenChange {
    /// What it concerns.
    pub kind: GoldenChangeKind,
    /// Where: the delegated run, if it is one, and the place in it.
    pub place: String,
    /// As it was recorded; empty if it is new.
    pub before: String,
    /// As it is now; empty if it is gone.
    pub after: String,
}

/// What a difference concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoldenChangeKind {
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
    /// The instructions. A recorded answer is the same with any instructions, so this alone is no failure.
    Instructions,
}

impl GoldenChangeKind {
    /// Whether it is only a note.
    #[must_use]
    pub fn is_note(self) -> bool {
        self == GoldenChangeKind::Instructions
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            GoldenChangeKind::Answer => "answer",
            GoldenChangeKind::ToolCall => "tool_call",
            GoldenChangeKind::ToolResult => "tool_result",
            GoldenChangeKind::Approval => "approval",
            GoldenChangeKind::Outcome => "outcome",
            GoldenChangeKind::Usage => "usage",
            GoldenChangeKind::Message => "message",
            GoldenChangeKind::Delegation => "delegation",
            GoldenChangeKind::Instructions => "instructions",
        }
    }
}

impl fmt::Display for GoldenChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        for (sign, text) in [('-', &self.before), ('+', &self.after)] {
            for line in text.lines() {
                write!(f, "\n  {sign} {line}")?;
            }
        }
        Ok(())
    }
}

impl GoldenRun {
    /// The differences from this recording to another one, in the order of the run.
    #[must_use]
    pub fn changes(&self, now: &GoldenRun) -> Vec<GoldenChange> {
        let mut changes = Vec::new();
        let ids = self.conversations.iter().chain(&now.conversations).map(|it| it.id.as_str());
        let mut seen = BTreeSet::new();
        for id in ids.filter(|id| seen.insert(*id)) {
            let find = |run: &'_ GoldenRun| {
                run.conversations.iter().position(|conversation| conversation.id == id)
            };
            let place = match id == self.name() {
                true => String::new(),
                false => format!("run {id}, "),
            };
            let mut differ = Changes { changes: &mut changes, place };
            match (find(self), find(now)) {
                (Some(before), Some(after)) => {
                    differ.compare(&self.conversations[before], &now.conversations[after]);
                }
                (before, _) => {
                    let text =
                        |there: bool| if there { "delegated".to_owned() } else { String::new() };
                    let (was, is) = (text(before.is_some()), text(before.is_none()));
                    differ.add(GoldenChangeKind::Delegation, "the run", was, is);
                }
            }
        }
        changes
    }
}

struct Changes<'a> {
    changes: &'a mut Vec<GoldenChange>,
    place: String,
}

impl Changes<'_> {
    fn add(
        &mut self,
        kind: GoldenChangeKind,
        place: &str,
        before: impl Into<String>,
        after: impl Into<String>,
    ) {
        let (before, after) = (before.into(), after.into());
        if before != after {
            let place = format!("{}{place}", self.place);
            self.changes.push(GoldenChange { kind, place, before, after });
        }
    }

    fn compare(&mut self, before: &GoldenConversation, after: &GoldenConversation) {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (was, is) = (text(&before.instructions), text(&after.instructions));
        self.add(GoldenChangeKind::Instructions, "instructions", was, is);
        let (mut answers, mut at) = (0, 0);
        let none = GoldenMessage::default();
        let (was, is) = (&before.messages, &after.messages);
        while at < was.len().max(is.len()) {
            let (was, is) = (was.get(at).unwrap_or(&none), is.get(at).unwrap_or(&none));
            at += 1;
            let role = if was.role.is_empty() { &is.role } else { &was.role };
            answers += usize::from(role == "assistant");
            if !was.role.is_empty() && !is.role.is_empty() && was.role != is.role {
                let place = format!("message {at}");
                self.add(GoldenChangeKind::Message, &place, whole(was), whole(is));
                continue;
            }
            match role.as_str() {
                "assistant" => self.answer(answers, was, is),
                "tool" => self.result(was, is),
                role => {
                    let place = format!("message {at} of {role}");
                    self.add(
                        GoldenChangeKind::Message,
                        &place,
                        text(&was.content),
                        text(&is.content),
                    );
                }
            }
        }
        self.outcome(&before.outcome, &after.outcome);
    }

    fn answer(&mut self, number: usize, was: &GoldenMessage, is: &GoldenMessage) {
        let text = |said: &GoldenMessage| said.content.clone().unwrap_or_default();
        let place = format!("answer {number}");
        self.add(GoldenChangeKind::Answer, &place, text(was), text(is));
        let most = was.tool_calls.len().max(is.tool_calls.len());
        for at in 0..most {
            let told = |said: &GoldenMessage| {
                let call = said.tool_calls.get(at);
                call.map(|call| format!("{} {}", call.name, call.arguments)).unwrap_or_default()
            };
            let place = format!("answer {number}, call {}", at + 1);
            self.add(GoldenChangeKind::ToolCall, &place, told(was), told(is));
        }
    }

    fn result(&mut self, was: &GoldenMessage, is: &GoldenMessage) {
        let name = was.name.as_ref().or(is.name.as_ref()).cloned().unwrap_or_default();
        let place = was.place.as_ref().or(is.place.as_ref()).cloned().unwrap_or_default();
        let told = |said: &GoldenMessage| {
            let error = if said.error { "error: " } else { "" };
            said.content.as_ref().map(|text| format!("{error}{text}")).unwrap_or_default()
        };
        let of_call = format!("result of {name} ({place})");
        self.add(GoldenChangeKind::ToolResult, &of_call, told(was), told(is));
        let decided = |said: &GoldenMessage| match &said.approval {
            Some(approval) if approval.approved => "needs an approval: approved",
            Some(_) => "needs an approval: rejected",
            None => "needs no approval",
        };
        if was.name.is_some() && is.name.is_some() {
            let of_call = format!("call of {name} ({place})");
            self.add(GoldenChangeKind::Approval, &of_call, decided(was), decided(is));
        }
    }

    fn outcome(&mut self, was: &GoldenOutcome, is: &GoldenOutcome) {
        let told = |outcome: &GoldenOutcome| {
            let code = outcome.error_code.as_ref().map(|code| format!(" {code}"));
            let content = outcome.content.as_ref().map(|text| format!(": {text}"));
            let structured = outcome.structured.as_ref().map(Value::to_string);
            let structured = structured.map(|value| format!(" {value}")).unwrap_or_default();
            let (code, content) = (code.unwrap_or_default(), content.unwrap_or_default());
            format!("{}{code}{content}{structured}", outcome.status)
        };
        self.add(GoldenChangeKind::Outcome, "outcome", told(was), told(is));
        let told = |outcome: &GoldenOutcome| {
            format!(
                "{} answers, {} tool calls, {} input tokens, {} output tokens",
                outcome.answers, outcome.tool_calls, outcome.input_tokens, outcome.output_tokens
            )
        };
        self.add(GoldenChangeKind::Usage, "usage", told(was), told(is));
    }
}

/// A message in one text.
fn whole(message: &GoldenMessage) -> String {
    format!("{}: {}", message.role, message.content.as_deref().unwrap_or_default())
}
