//! Interprets the lines of a run, from a process or stored: the events of each line, and the facts
//! that decide how the run ends. Terminal events are held back. Pure.

use serde_json::Value;

use crate::command;
use crate::config::{CliConfig, TerminalRule};
use crate::control::OpenApprovals;
use crate::dialogue::{Decision, Dialogue};
use crate::event::{ErrorKind, Failure, NoticeCode, ProgramEvent, ProgramResult};
use crate::parser::{self, Parser};
use crate::run_result::RunFacts;

/// The state of a run that is read.
pub(crate) struct Reading {
    pub(crate) dialogue: Box<dyn Dialogue>,
    pub(crate) facts: RunFacts,
    rule: TerminalRule,
    open: OpenApprovals,
    fallback: FallbackAnswer,
    /// Whether the rule, and not the parser, made an answer of a line that has no text.
    has_answer_without_text: bool,
    /// How many lines were read; blank ones are none.
    lines: usize,
    /// The number of the first line whose content is lost.
    lost_line: Option<usize>,
}

/// The events of one line.
pub(crate) struct ReadLine {
    pub(crate) events: Vec<ProgramEvent>,
    /// Whether the line reports the program's session.
    pub(crate) opens_session: bool,
    /// Whether the line reports an answer or a failure of the run.
    pub(crate) has_end: bool,
}

impl Reading {
    pub(crate) fn new(
        dialogue: Box<dyn Dialogue>,
        rule: TerminalRule,
        open: OpenApprovals,
    ) -> Reading {
        let facts = RunFacts::default();
        let fallback = FallbackAnswer::default();
        let has_answer_without_text = false;
        Reading {
            dialogue,
            facts,
            rule,
            open,
            fallback,
            has_answer_without_text,
            lines: 0,
            lost_line: None,
        }
    }

    /// Reads a line.
    pub(crate) fn line(&mut self, raw: &str) -> ReadLine {
        self.lines += 1;
        // The answer of a server is complete. What it writes while it is ended may be cut.
        let is_after_the_end =
            self.facts.dismissed || self.dialogue.is_server() && self.has_ended();
        let mut events = self.dialogue.parse_line(raw);
        if events.is_empty()
            && raw.trim_start().starts_with('{')
            && let Err(why) = parser::parse_value(raw)
        {
            let message = format!("a line of the program cannot be read: {why}");
            events.push(ProgramEvent::Notice { code: NoticeCode::LineUnread, message });
            if self.dialogue.reads_json() && !is_after_the_end {
                self.lost_line.get_or_insert(self.lines);
            }
        }
        let ends = events.iter().any(ProgramEvent::is_terminal);
        let opens_session =
            events.iter().any(|event| matches!(event, ProgramEvent::SessionId { .. }));
        let mut events = self.keep(events);
        let mut has_end = ends;
        if let TerminalRule::Line { pointer, equals, text } = &self.rule
            && !ends
        {
            let line = parser::parse_value(raw).unwrap_or_default();
            if line.pointer(pointer) == Some(equals) {
                let final_text = text.as_ref().and_then(|text| line.pointer(text)?.as_str());
                let text = final_text.unwrap_or(&self.fallback.text).trim_end().to_owned();
                self.has_answer_without_text |= self.rule.is_line_without_text();
                has_end = true;
                let answer = ProgramResult { text, details: line, ..ProgramResult::default() };
                events.extend(self.keep(vec![ProgramEvent::Final(answer)]));
            }
        }
        ReadLine { events, opens_session, has_end }
    }

    /// Reads the end of the output of a program that has exited, successfully or not.
    pub(crate) fn finish(&mut self, exited_well: bool) -> Vec<ProgramEvent> {
        let last = self.dialogue.finish();
        let events = self.keep(last);
        if self.rule == TerminalRule::ExitZero && exited_well && self.facts.answer.is_none() {
            let text = self.fallback.text.trim_end().to_owned();
            let details = std::mem::take(&mut self.fallback.status);
            self.has_answer_without_text = !details.is_null();
            self.facts.answer = Some(ProgramResult { text, details, ..ProgramResult::default() });
        }
        self.complete_answer(exited_well);
        events
    }

    /// Gives an answer without text the agent's last text. A program that reports success and has said nothing has failed, and so
    /// has one of which a line is lost.
    fn complete_answer(&mut self, exited_well: bool) {
        let Some(answer) = &mut self.facts.answer else { return };
        if let Some(number) = self.lost_line.filter(|_| exited_well) {
            let what = format!(
                "line {number} of the program cannot be read: a part of the answer may be missing"
            );
            let failure = Failure::new(ErrorKind::BadModelOutput, what);
            self.facts.failure.get_or_insert(failure);
        }
        if answer.text.trim().is_empty() {
            answer.text = self.fallback.text.trim_end().to_owned();
        }
        let has_content = !answer.text.is_empty() || answer.structured.is_some();
        if exited_well && !has_content && !self.has_answer_without_text {
            let what = "the program reported success and gave no answer";
            self.facts.failure.get_or_insert_with(|| Failure::new(ErrorKind::NoAnswer, what));
        }
    }

    /// Returns `true` if the program has reported an answer or a failure, so that only its exit is missing.
    pub(crate) fn has_ended(&self) -> bool {
        self.facts.answer.is_some() || self.facts.failure.is_some()
    }

    /// Keeps the last answer. If it has no text, the text of the one before stays.
    fn keep_answer(&mut self, answer: ProgramResult) -> Option<ProgramEvent> {
        let extra = |message: &str| ProgramEvent::Notice {
            code: NoticeCode::ExtraFinal,
            message: message.to_owned(),
        };
        if self.facts.failure.is_some() {
            return Some(extra("the program gave an answer after a failure; the failure counts"));
        }
        let previous = self.facts.answer.take();
        let is_extra = previous.is_some();
        self.facts.answer = Some(match previous {
            Some(previous) if answer.text.trim().is_empty() && answer.structured.is_none() => {
                let ProgramResult { text, structured, .. } = previous;
                ProgramResult { text, structured, ..answer }
            }
            _ => answer,
        });
        is_extra.then(|| extra("the program gave another answer; the last one is used"))
    }

    /// Records the relevant events, and holds back terminal ones.
    pub(crate) fn keep(&mut self, events: Vec<ProgramEvent>) -> Vec<ProgramEvent> {
        events.into_iter().filter_map(|event| self.keep_one(event)).collect()
    }

    fn keep_one(&mut self, event: ProgramEvent) -> Option<ProgramEvent> {
        self.fallback.note(&event);
        match event {
            ProgramEvent::Final(answer) => self.keep_answer(answer),
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
                self.open.insert(request_id.clone(), input.clone());
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

    /// Returns the events of the next line.
    pub fn line(&mut self, raw: &str) -> Vec<ProgramEvent> {
        let events = self.0.line(raw).events;
        // The decisions are not stored. After one, the program may go on with the call.
        for event in &events {
            if let ProgramEvent::ApprovalRequested { request_id, input, .. } = event {
                self.0.dialogue.decide(request_id, input, Decision::Allow { input: None });
            }
        }
        // Nothing is written any more.
        while self.0.dialogue.reply().is_some() {}
        events
    }

    /// Returns the last events, and how the run ends if its program has exited, successfully or not.
    #[must_use]
    pub fn end(mut self, exited_well: bool) -> (Vec<ProgramEvent>, StoredEnd) {
        let events = self.0.finish(exited_well);
        let RunFacts { answer, failure, .. } = self.0.facts;
        (events, StoredEnd { answer, failure })
    }
}
