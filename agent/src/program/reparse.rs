//! Stored lines of a program, read again with the current parser: what a better parser, or other rules, make of a run that
//! has ended. The rows of the run stay as they are.

use abide_client::{Abide, Json, ModelUsage, NewRunEvent, Run, RunEventKind};
use abide_programs::{CliConfig, ErrorKind, Line, ProgramEvent, StoredEnd, StoredLines};
use serde_json::{Map, Value, json};

use crate::catalog::agents::Catalog;
use crate::catalog::revision;
use crate::definition::agent::AgentDefinition;
use crate::program::output::ProgramOutput;
use crate::program::run::spent;
use crate::run::error::RuntimeError;

/// How many events are read at once: fewer than a query returns at most.
const PAGE: i64 = 5_000;

/// The result of the current parser for the lines of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Reparsed {
    /// The agent.
    pub agent: String,
    /// Whether its definition is that of the folder, and not the one that the run was started with.
    pub is_current: bool,
    /// How many lines were read.
    pub lines: usize,
    /// The differences.
    pub changes: Vec<ReparsedChange>,
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
    pub async fn of(
        abide: &Abide,
        catalog: &Catalog,
        run_id: &str,
    ) -> Result<Reparsed, ReparseError> {
        let sql = "SELECT * FROM runs WHERE id = :id";
        let found: Vec<Run> = abide.sql(sql).param("id", run_id).fetch().await?;
        let missing = || ReparseError::Missing(run_id.to_owned());
        let run = found.into_iter().next().ok_or_else(missing)?;
        if run.ended_at.is_none() {
            return Err(ReparseError::Active(run.id));
        }
        let (config, is_current) = config(abide, catalog, &run).await?;
        let mut reading = RunReading::default();
        let mut changes = Vec::new();
        let mut lines = 0;
        for segment in segments(stored(abide, &run.id).await?) {
            lines += segment.len();
            let parser = catalog.parsers().parser(&config);
            let parser = StoredLines::new(&config, parser).map_err(ReparseError::Parser)?;
            changes.extend(reading.segment(&run, parser, segment));
        }
        if lines > 0 {
            changes.extend(between(&stored_result(&run), &reading.result(&run)));
        }
        Ok(Reparsed { agent: run.agent, is_current, lines, changes })
    }
}

/// The configuration of the program, and whether it is that of the folder.
async fn config(
    abide: &Abide,
    catalog: &Catalog,
    run: &Run,
) -> Result<(CliConfig, bool), ReparseError> {
    let of_folder = catalog.read().0.into_iter().find(|it| it.name == run.agent);
    if let Some(AgentDefinition { cli: Some(cli), .. }) = of_folder {
        return Ok((cli, true));
    }
    let of_run = revision::definition(abide, &run.agent, run.revision).await?;
    let cli = of_run.cli.ok_or_else(|| ReparseError::NoProgram(run.agent.clone()))?;
    Ok((cli, false))
}

/// An event of a run: its kind and its data.
type Event = (RunEventKind, Value);

/// A stored line, and the events that were made of it.
struct StoredLine {
    number: i64,
    raw: String,
    events: Vec<Event>,
}

/// All events of a run.
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

/// The lines of each process: a runtime that continues a run starts another one.
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

/// Whether an event was made of a line, and not of what the runtime did.
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

fn texts(events: &[Event]) -> Vec<String> {
    events.iter().map(|(kind, data)| format!("{} {data}", kind.as_str())).collect()
}

/// The parts of a result that differ.
fn between(before: &Map<String, Value>, after: &Map<String, Value>) -> Option<ReparsedChange> {
    let differs = |name: &&String| before.get(*name) != after.get(*name);
    let names: Vec<&String> = before.keys().filter(differs).collect();
    let texts = |of: &Map<String, Value>| {
        names
            .iter()
            .map(|name| format!("{name} {}", of.get(*name).unwrap_or(&Value::Null)))
            .collect()
    };
    (!names.is_empty()).then(|| ReparsedChange {
        number: None,
        before: texts(before),
        after: texts(after),
    })
}

/// The result of a run as it is stored.
fn stored_result(run: &Run) -> Map<String, Value> {
    let output = run.output.as_ref().map(Json::value).unwrap_or_default();
    let spent = ModelUsage {
        input_tokens: Some(run.input_tokens),
        output_tokens: Some(run.output_tokens),
        cost_micros: run.cost_micros,
        ..ModelUsage::default()
    };
    result(json!(output["content"].as_str()), run.tool_calls, &spent)
}

/// The parts of a result, by name.
fn result(answer: Value, calls: i64, spent: &ModelUsage) -> Map<String, Value> {
    let pairs = [
        ("answer", answer),
        ("tool_calls", json!(calls)),
        ("input_tokens", json!(spent.input_tokens.unwrap_or(0))),
        ("output_tokens", json!(spent.output_tokens.unwrap_or(0))),
        ("cost_micros", json!(spent.cost_micros.unwrap_or(0))),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Whether the exit of the program does not decide how the run has ended.
fn has_exited_well(run: &Run) -> bool {
    run.error_code.as_deref().is_none_or(|code| code == ErrorKind::BadModelOutput.code())
}

/// The processes of a run, as the current parser reads them.
#[derive(Default)]
struct RunReading {
    calls: i64,
    /// Of the last process: earlier ones were killed before they could report it.
    answer: Option<String>,
    spent: ModelUsage,
}

impl RunReading {
    /// Reads the lines of one process. Returns those that the parser now reads differently.
    fn segment(
        &mut self,
        run: &Run,
        mut parser: StoredLines,
        segment: Vec<StoredLine>,
    ) -> Vec<ReparsedChange> {
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
        let answer = match output.answer.take() {
            Some(Ok(answer)) => Some(answer),
            Some(Err(failure)) => {
                output.failed = failure.answer;
                None
            }
            None => None,
        };
        let calls = output.new_calls().map_or(0, |spent| spent.tool_calls);
        self.calls += calls;
        self.spent = match &answer {
            Some(answer) => spent(answer, calls),
            None => spent(&output.last_answer(), calls),
        };
        self.answer = answer.map(|answer| answer.text);
        if let Some(end) = read.last_mut() {
            end.extend(last);
        }
        let differs = segment.into_iter().zip(read).filter(|(line, read)| line.events != *read);
        let change = |(line, read): (StoredLine, Vec<Event>)| ReparsedChange {
            number: Some(line.number),
            before: texts(&line.events),
            after: texts(&read),
        };
        differs.map(change).collect()
    }

    fn result(&self, run: &Run) -> Map<String, Value> {
        let answer = self.answer.as_ref().filter(|_| has_exited_well(run));
        result(json!(answer), self.calls, &self.spent)
    }
}

/// The events that a runtime would record for events of a program.
fn new_events(output: &mut ProgramOutput, agent: &str, events: Vec<ProgramEvent>) -> Vec<Event> {
    output.line(agent, Line { raw: None, events });
    let new = std::mem::take(&mut output.new_events).into_iter();
    let new = new.map(|NewRunEvent { kind, data }| (kind, Value::Object(data)));
    new.filter(|(kind, data)| is_of_parser(*kind, data)).collect()
}
