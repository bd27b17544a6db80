//! Interprets the lines of a run, from a process or stored: the events of each line, and the facts
//! that decide how the run ends. Terminal events are held back. Pure.

use abide_json_integers as integers;
use serde_json::Value;

use crate::command;
use crate::config::{CliConfig, TerminalRule};
use crate::control::OpenApprovals;
use crate::dialogue::Dialogue;
use crate::event::{Failure, NoticeCode, ProgramEvent, ProgramResult};
use crate::parser::Parser;
use crate::run_result::RunFacts;

/// The state of a run that is read.
pub(crate) struct Reading {
    pub(crate) dialogue: Box<dyn Dialogue>,
    pub(crate) facts: RunFacts,
    rule: TerminalRule,
    open: OpenApprovals,
    fallback: FallbackAnswer,
}

/// The events of one line.
pub(crate) struct ReadLine {
    pub(crate) events: Vec<ProgramEvent>,
    /// Whether the line reports the program's session.
    pub(crate) opens_session: bool,
}

impl Reading {
    pub(crate) fn new(
        dialogue: Box<dyn Dialogue>,
        rule: TerminalRule,
        open: OpenApprovals,
    ) -> Reading {
        let facts = RunFacts::default();
        let fallback = FallbackAnswer::default();
        Reading { dialogue, facts, rule, open, fallback }
    }

    /// Reads a line.
    pub(crate) fn line(&mut self, raw: &str) -> ReadLine {
        let events = self.dialogue.parse_line(raw);
        let ends = events.iter().any(ProgramEvent::is_terminal);
        let is_session = |event: &ProgramEvent| matches!(event, ProgramEvent::SessionId { .. });
        let opens_session = events.iter().any(is_session);
        let mut events = self.keep(events);
        if let TerminalRule::Line { pointer, equals, text } = &self.rule
            && !ends
        {
            let line = serde_json::from_str::<Value>(&integers::quoted(raw)).unwrap_or_default();
            if line.pointer(pointer) == Some(equals) {
                let final_text = text.as_ref().and_then(|text| line.pointer(text)?.as_str());
                let text = final_text.unwrap_or(&self.fallback.text).trim_end().to_owned();
                let answer = ProgramResult { text, details: line, ..ProgramResult::default() };
                events.extend(self.keep(vec![ProgramEvent::Final(answer)]));
            }
        }
        ReadLine { events, opens_session }
    }

    /// Reads the end of the output of a program that has exited, successfully or not.
    pub(crate) fn finish(&mut self, exited_well: bool) -> Vec<ProgramEvent> {
        let last = self.dialogue.finish();
        let events = self.keep(last);
        if self.rule == TerminalRule::ExitZero && exited_well && self.facts.answer.is_none() {
            let text = self.fallback.text.trim_end().to_owned();
            let details = std::mem::take(&mut self.fallback.status);
            self.facts.answer = Some(ProgramResult { text, details, ..ProgramResult::default() });
        }
        events
    }

    /// Records the relevant events, and holds back terminal ones.
    pub(crate) fn keep(&mut self, events: Vec<ProgramEvent>) -> Vec<ProgramEvent> {
        events.into_iter().filter_map(|event| self.keep_one(event)).collect()
    }

    fn keep_one(&mut self, event: ProgramEvent) -> Option<ProgramEvent> {
        self.fallback.note(&event);
        match event {
            ProgramEvent::Final(_)
                if self.facts.answer.is_some() || self.facts.failure.is_some() =>
            {
                let message = "the program gave another answer; the first one is used".to_owned();
                Some(ProgramEvent::Notice { code: NoticeCode::ExtraFinal, message })
            }
            ProgramEvent::Final(answer) => {
                self.facts.answer = Some(answer);
                None
            }
            ProgramEvent::Error(failure) if self.facts.failure.is_some() => {
                let message = failure.message;
                Some(ProgramEvent::Notice { code: NoticeCode::Reported, message })
            }
            ProgramEvent::Error(failure) => {
                self.facts.failure = Some(failure);
                None
            }
            event => {
                self.note(&event);
                Some(event)
            }
        }
    }

    fn note(&mut self, event: &ProgramEvent) {
        match event {
            ProgramEvent::ApprovalRequested { request_id, input, .. } => {
                self.open.asked(request_id.clone(), input.clone());
            }
            ProgramEvent::ApprovalWithdrawn { request_id } => {
                self.open.take(request_id);
            }
            ProgramEvent::Notice { code: NoticeCode::Reported, message } => {
                self.facts.reported = Some(message.clone());
            }
            _ => {}
        }
    }
}

/// The text that serves as an answer if the program has no final line.
#[derive(Debug, Default)]
struct FallbackAnswer {
    /// The agent's last message.
    text: String,
    message: Option<String>,
    /// The last status.
    status: Value,
}

impl FallbackAnswer {
    fn note(&mut self, event: &ProgramEvent) {
        match event {
            ProgramEvent::AssistantDelta { text, message, parent: None } => {
                if self.message != *message {
                    self.message.clone_from(message);
                    self.text.clear();
                }
                self.text.push_str(text);
            }
            ProgramEvent::Status { data } => self.status.clone_from(data),
            _ => {}
        }
    }
}

/// Reads the stored lines of a run again, with a parser that may have changed since.
pub struct StoredLines(Reading);

/// How a run ends, by its lines alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredEnd {
    /// The answer.
    pub answer: Option<ProgramResult>,
    /// The failure that the program reported.
    pub failure: Option<Failure>,
}

impl StoredLines {
    /// Begins with the first line of a program. Without a parser, the one of the configuration is used: see
    /// [`run`](crate::run).
    ///
    /// # Errors
    /// The configuration names a parser that is missing here.
    pub fn new(config: &CliConfig, parser: Option<Box<dyn Parser>>) -> Result<StoredLines, String> {
        let dialogue = command::dialogue(config, parser)?;
        let rule = config.terminal.clone();
        Ok(StoredLines(Reading::new(dialogue, rule, OpenApprovals::default())))
    }

    /// The events of the next line.
    pub fn line(&mut self, raw: &str) -> Vec<ProgramEvent> {
        let events = self.0.line(raw).events;
        // Nothing is written any more.
        while self.0.dialogue.reply().is_some() {}
        events
    }

    /// The last events, and how the run ends if its program has exited, successfully or not.
    #[must_use]
    pub fn end(mut self, exited_well: bool) -> (Vec<ProgramEvent>, StoredEnd) {
        let events = self.0.finish(exited_well);
        let RunFacts { answer, failure, .. } = self.0.facts;
        (events, StoredEnd { answer, failure })
    }
}
