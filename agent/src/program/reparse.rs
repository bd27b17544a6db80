//! Stored lines of a program, read again with the current parser: what a better parser, or other rules, make of a run that
//! has ended. The rows of the run stay as they are; the new reading can be stored next to them, as a correction.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_client::arguments::{
    CorrectRun, CorrectedLine, CorrectedResult, ModelUsage, NewRunEvent,
};
use abide_client::rows::{Run, RunCorrection, RunEventKind, RunStatus};
use abide_client::rules::recorded_result;
use abide_client::{Abide, Json};
use abide_definitions::agent::AgentDefinition;
use abide_programs::{
    ErrorKind, Failure, Line, ProgramEvent, ProgramResult, StoredEnd, StoredLines,
};
use serde_json::{Map, Value, json};

use crate::catalog::agents::Catalog;
use crate::catalog::revision;
use crate::model::structured::{self, StructuredAnswer};
use crate::program::output::ProgramOutput;
use crate::program::run::{may_be_empty, spent};
use crate::run::error::RuntimeError;

/// How many events are read at once: fewer than a query returns at most.
const PAGE: i64 = 5_000;

/// The result of the current parser for the lines of a run.
#[derive(Clone, Debug)]
pub struct Reparsed {
    /// The run.
    pub run_id: String,
    /// The agent.
    pub agent: String,
    /// Whether its definition is that of the folder, and not the one that the run was started with.
    pub is_current: bool,
    /// How many lines were read.
    pub lines: usize,
    /// The differences from the last correction of the run, or else from the run.
    pub changes: Vec<ReparsedChange>,
    /// The result of the run as the current parser reads it.
    pub result: CorrectedResult,
    /// The lines that it reads differently than the events of the run.
    pub corrected: Vec<CorrectedLine>,
}

/// Something that the current parser makes of a run, and that differs from what is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct ReparsedChange {
    /// The number of the line's event in the run; `None` for the result of the run.
    pub number: Option<i64>,
    /// The stored value: events with their data, or the parts of the result.
    pub before: Vec<String>,
    /// The value of the current parser.
    pub after: Vec<String>,
}

/// Why the lines of a run cannot be read again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReparseError {
    /// There is no such run.
    #[error("there is no run {0}")]
    Missing(String),
    /// It has not ended.
    #[error("run {0} has not ended")]
    Active(String),
    /// Its agent is not a program.
    #[error("the agent {0} of the run is not a program (cli)")]
    NoProgram(String),
    /// Its parser is not here.
    #[error("{0}")]
    Parser(String),
    /// A query failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl From<abide_client::Error> for ReparseError {
    fn from(error: abide_client::Error) -> ReparseError {
        ReparseError::Runtime(error.into())
    }
}

impl Reparsed {
    /// Reads the lines of a run again. The definition of the agent is that of the catalog, if it has one there, and else
    /// the one that the run was started with.
    ///
    /// # Errors
    /// [`ReparseError`].
    pub async fn read(
        abide: &Abide,
        catalog: &Arc<Catalog>,
        run_id: &str,
    ) -> Result<Reparsed, ReparseError> {
        let sql = "SELECT * FROM runs WHERE id = :id";
        let found: Vec<Run> = abide.sql(sql).param("id", run_id).fetch().await?;
        let run =
            found.into_iter().next().ok_or_else(|| ReparseError::Missing(run_id.to_owned()))?;
        if run.ended_at.is_none() {
            return Err(ReparseError::Active(run.id));
        }
        let (definition, is_current) = load_definition(abide, catalog, &run).await?;
        let Some(config) = &definition.cli else { return Err(ReparseError::NoProgram(run.agent)) };
        let mut reading = RunReading::new(last_correction(abide, &run.id).await?.as_ref());
        let mut lines = 0;
        for segment in segments(stored(abide, &run.id).await?) {
            lines += segment.len();
            let parser = catalog.parsers().parser(config);
            let parser = StoredLines::new(config, parser).map_err(ReparseError::Parser)?;
            reading.segment(&run, parser, segment);
        }
        let before = reading.before.take().unwrap_or_else(|| recorded_result(&run));
        let result = match lines {
            0 => before.clone(),
            _ => reading.corrected_result(&run, &definition),
        };
        let RunReading { mut changes, corrected, .. } = reading;
        changes.extend(compare_results(&before, &result));
        let run_id = run.id;
        let agent = run.agent;
        Ok(Reparsed { run_id, agent, is_current, lines, changes, result, corrected })
    }

    /// Stores it as a correction of the run, if something differs.
    ///
    /// # Errors
    /// The call is refused.
    pub async fn store(
        &self,
        abide: &Abide,
        reason: Option<String>,
    ) -> Result<Option<RunCorrection>, abide_client::Error> {
        if self.changes.is_empty() {
            return Ok(None);
        }
        let id = self.run_id.clone();
        let result = self.result.clone();
        let lines = self.corrected.clone();
        let correction = abide.call(CorrectRun { id, result, lines, reason }).await?;
        Ok(Some(correction.into_inner()))
    }
}

/// Returns the last correction of a run.
async fn last_correction(
    abide: &Abide,
    run_id: &str,
) -> Result<Option<RunCorrection>, ReparseError> {
    let sql = "SELECT * FROM run_corrections WHERE run_id = :id ORDER BY number DESC LIMIT 1";
    let found: Vec<RunCorrection> = abide.sql(sql).param("id", run_id).fetch().await?;
    Ok(found.into_iter().next())
}

/// Returns the definition of the agent, and whether it is that of the folder.
async fn load_definition(
    abide: &Abide,
    catalog: &Arc<Catalog>,
    run: &Run,
) -> Result<(AgentDefinition, bool), ReparseError> {
    let folder = catalog.read_in_background().await?;
    let of_folder = folder.definitions.into_iter().find(|it| it.name == run.agent);
    if let Some(definition) = of_folder.filter(|definition| definition.cli.is_some()) {
        return Ok((definition, true));
    }
    Ok((revision::load_definition(abide, &run.agent, run.revision).await?, false))
}

/// An event of a run: its kind and its data.
type Event = (RunEventKind, Value);

/// A stored line, and the events that were made of it.
struct StoredLine {
    number: i64,
    raw: String,
    events: Vec<Event>,
}

/// Returns all events of a run.
async fn stored(
    abide: &Abide,
    run_id: &str,
) -> Result<Vec<(i64, RunEventKind, Value)>, ReparseError> {
    let sql = "SELECT number, kind, data FROM run_events WHERE run_id = :id AND number > :after \
               ORDER BY number LIMIT :most";
    let mut events: Vec<(i64, RunEventKind, Value)> = Vec::new();
    loop {
        let after = events.last().map_or(0, |(number, ..)| *number);
        let query = abide.sql(sql).param("id", run_id).param("after", after);
        let page: Vec<(i64, RunEventKind, Json)> = query.param("most", PAGE).fetch().await?;
        let is_last = (page.len() as i64) < PAGE;
        let page = page.into_iter().map(|(number, kind, data)| (number, kind, data.value()));
        events.extend(page);
        if is_last {
            return Ok(events);
        }
    }
}

/// Returns the lines of each process: a runtime that continues a run starts another one.
fn segments(events: Vec<(i64, RunEventKind, Value)>) -> Vec<Vec<StoredLine>> {
    let mut segments: Vec<Vec<StoredLine>> = vec![Vec::new()];
    for (number, kind, data) in events {
        match kind {
            RunEventKind::Restart => segments.push(Vec::new()),
            RunEventKind::Line => {
                let raw = data["raw"].as_str().unwrap_or_default().to_owned();
                let line = StoredLine { number, raw, events: Vec::new() };
                segments.last_mut().expect("there is one").push(line);
            }
            _ => {
                let line = segments.last_mut().and_then(|segment| segment.last_mut());
                if let Some(line) = line.filter(|_| is_of_parser(kind, &data)) {
                    line.events.push((kind, data));
                }
            }
        }
    }
    segments.retain(|segment| !segment.is_empty());
    segments
}

/// Returns `true` if an event was made of a line, and not of what the runtime did.
fn is_of_parser(kind: RunEventKind, data: &Value) -> bool {
    use RunEventKind::{
        Planning, Reasoning, Status, StepComplete, Token, ToolCall, ToolResult, Usage,
    };
    match kind {
        Token | Reasoning | ToolCall | ToolResult | Usage | Planning | StepComplete => true,
        Status => {
            let code = data["program"]["code"].as_str().unwrap_or_default();
            let is_of_input = ["stdin_unread", "denied"].contains(&code);
            !data["program_session"].is_null() || !(data["program"].is_null() || is_of_input)
        }
        _ => false,
    }
}

fn event_texts(events: &[Event]) -> Vec<String> {
    events.iter().map(|(kind, data)| format!("{} {data}", kind.as_str())).collect()
}

/// Returns the parts of a result that differ.
fn compare_results(before: &CorrectedResult, after: &CorrectedResult) -> Option<ReparsedChange> {
    let before = parts(before);
    let after = parts(after);
    let names: Vec<&String> =
        before.keys().filter(|name| before.get(*name) != after.get(*name)).collect();
    (!names.is_empty()).then(|| ReparsedChange {
        number: None,
        before: part_texts(&before, &names),
        after: part_texts(&after, &names),
    })
}

fn part_texts(parts: &Map<String, Value>, names: &[&String]) -> Vec<String> {
    names.iter().map(|name| format!("{name} {}", parts[name.as_str()])).collect()
}

/// Returns the parts of a result, by name.
fn parts(result: &CorrectedResult) -> Map<String, Value> {
    match json!(result) {
        Value::Object(parts) => parts,
        _ => Map::new(),
    }
}

/// The codes of failures that the lines of a program can explain. Others come from the runtime: a time limit, an abort.
const OF_LINES: [ErrorKind; 6] = [
    ErrorKind::BadModelOutput,
    ErrorKind::NoAnswer,
    ErrorKind::RuntimeCrash,
    ErrorKind::LoopLimit,
    ErrorKind::Refused,
    ErrorKind::AnswerTruncated,
];

/// Returns `true` if the lines decide how a run has ended.
fn is_decided_by_lines(run: &Run) -> bool {
    run.status != RunStatus::Aborted
        && run
            .error_code
            .as_deref()
            .is_none_or(|code| OF_LINES.iter().any(|kind| kind.code() == code))
}

/// Returns `true` if the exit of the program does not decide how the run has ended. The exit of a program that failed
/// is not stored.
fn has_exited_well(run: &Run) -> bool {
    let has_exited = [ErrorKind::BadModelOutput, ErrorKind::NoAnswer].map(ErrorKind::code);
    run.error_code.as_deref().is_none_or(|code| has_exited.contains(&code))
}

/// The processes of a run, as the current parser reads them.
#[derive(Default)]
struct RunReading {
    calls: i64,
    /// Of the last process: earlier ones were killed before they could report it.
    end: Option<Result<ProgramResult, Failure>>,
    spent: ModelUsage,
    /// The result of the last correction, and its lines.
    before: Option<CorrectedResult>,
    before_lines: BTreeMap<i64, Vec<Event>>,
    /// Differences from what is stored.
    changes: Vec<ReparsedChange>,
    /// Differences from the events of the run.
    corrected: Vec<CorrectedLine>,
}

impl RunReading {
    fn new(correction: Option<&RunCorrection>) -> RunReading {
        let Some(correction) = correction else { return RunReading::default() };
        let lines: Vec<CorrectedLine> =
            serde_json::from_value(correction.lines.value()).unwrap_or_default();
        RunReading {
            before: serde_json::from_value(correction.after.value()).ok(),
            before_lines: lines
                .into_iter()
                .map(|line| (line.number, line.events.into_iter().map(into_event).collect()))
                .collect(),
            ..RunReading::default()
        }
    }

    /// Reads the lines of one process.
    fn segment(&mut self, run: &Run, mut parser: StoredLines, segment: Vec<StoredLine>) {
        let mut output = ProgramOutput::default();
        let mut read: Vec<Vec<Event>> = Vec::new();
        for line in &segment {
            let events = parser.line(&line.raw);
            read.push(new_events(&mut output, &run.agent, events));
        }
        let (mut events, StoredEnd { answer, failure }) = parser.end(has_exited_well(run));
        events.extend(match failure {
            Some(mut failure) => {
                failure.answer = answer.map(Box::new).or(failure.answer);
                Some(ProgramEvent::Error(failure))
            }
            None => answer.map(ProgramEvent::Final),
        });
        let last = new_events(&mut output, &run.agent, events);
        let end = output.answer.take().map(|end| end.map(|answer| *answer));
        if let Some(Err(failure)) = &end {
            output.failed.clone_from(&failure.answer);
        }
        let calls = output.new_calls().map_or(0, |spent| spent.tool_calls);
        self.calls += calls;
        self.spent = match &end {
            Some(Ok(answer)) => spent(answer, calls),
            _ => spent(&output.last_answer(), calls),
        };
        self.end = end;
        if let Some(end) = read.last_mut() {
            end.extend(last);
        }
        for (line, events) in segment.into_iter().zip(read) {
            self.compare(line, events);
        }
    }

    /// Compares a line with the events that were made of it, and with the last correction.
    fn compare(&mut self, line: StoredLine, read: Vec<Event>) {
        let before = self.before_lines.get(&line.number).unwrap_or(&line.events);
        if *before != read {
            let before = event_texts(before);
            let after = event_texts(&read);
            self.changes.push(ReparsedChange { number: Some(line.number), before, after });
        }
        if line.events != read {
            let events = read.into_iter().filter_map(|(kind, data)| match data {
                Value::Object(data) => Some(NewRunEvent { kind, data }),
                _ => None,
            });
            let events = events.collect();
            self.corrected.push(CorrectedLine { number: line.number, events });
        }
    }

    fn corrected_result(&self, run: &Run, definition: &AgentDefinition) -> CorrectedResult {
        let failed = |code: &str, why: &str| {
            let is_same = run.error_code.as_deref() == Some(code);
            // The stored message also has what the program wrote to stderr.
            let message = run.error_message.clone().filter(|_| is_same);
            let message = message.or_else(|| (!why.is_empty()).then(|| why.to_owned()));
            (RunStatus::Failed, Some(code.to_owned()), message, None)
        };
        let (status, error_code, error_message, answer) = match &self.end {
            _ if !is_decided_by_lines(run) => {
                (run.status, run.error_code.clone(), run.error_message.clone(), None)
            }
            Some(Err(failure)) if may_be_empty(definition, failure) => {
                (RunStatus::Done, None, None, Some(String::new()))
            }
            Some(Err(failure)) => failed(failure.kind.code(), &failure.message),
            _ if !has_exited_well(run) => {
                (run.status, run.error_code.clone(), run.error_message.clone(), None)
            }
            Some(Ok(answer)) => match mismatch(definition, answer) {
                Some(why) => failed(ErrorKind::BadModelOutput.code(), &why),
                None => (RunStatus::Done, None, None, Some(answer.text.clone())),
            },
            None => failed(ErrorKind::BadModelOutput.code(), "the program gave no answer"),
        };
        CorrectedResult {
            status,
            error_code,
            error_message,
            answer,
            tool_calls: self.calls,
            input_tokens: self.spent.input_tokens.unwrap_or(0),
            output_tokens: self.spent.output_tokens.unwrap_or(0),
            cost_micros: self.spent.cost_micros,
        }
    }
}

/// Why an answer does not match the schema of the agent.
fn mismatch(definition: &AgentDefinition, answer: &ProgramResult) -> Option<String> {
    let schema = definition.response_format.as_ref()?;
    match structured::check_program_answer(schema, answer.structured.clone(), &answer.text) {
        StructuredAnswer::Mismatch(why) => Some(structured::mismatch(&why).message),
        StructuredAnswer::Free | StructuredAnswer::Fits(_) => None,
    }
}

/// Returns the events that a runtime would record for events of a program.
fn new_events(output: &mut ProgramOutput, agent: &str, events: Vec<ProgramEvent>) -> Vec<Event> {
    output.add_line(agent, Line { raw: None, events });
    let new = std::mem::take(&mut output.new_events).into_iter().map(into_event);
    new.filter(|(kind, data)| is_of_parser(*kind, data)).collect()
}

fn into_event(NewRunEvent { kind, data }: NewRunEvent) -> Event {
    (kind, Value::Object(data))
}
