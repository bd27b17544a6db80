//! A command-line program as the agent. Its output lines are recorded as events of the run, each with the original line.
//! Its final message is the answer.
//!
//! When the runtime drains, a program can go on and end. When the runtime stops, the program gets a signal, and the next runtime
//! resumes it.
//!
//! A program cannot be continued in the middle. If its driver crashed, the program may still run: the next driver ends
//! it first, so that there is never a second one. Then the program is resumed if it reported a session id. Without a
//! session id it is started again only if it cannot have done anything; otherwise the run fails, because its effects are
//! unknown (`PreviousProgram::resume_in`).

use abide_client::arguments::ModelUsage;
use abide_client::rows::RunEventKind;
use abide_client::{Call, Error, Json};
use abide_definitions::agent::AgentDefinition;
use abide_programs::{
    CliConfig, Decision, ErrorKind, ParserChoice, ProcessIdentity, Program, ProgramResult, Prompt,
    PromptMessage, Running, Usage, spawn_paused,
};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Map, Value, json};

use abide_models::{ModelMessage, ModelRequest};
use abide_tools::Environment;

use crate::context::entry::{AssistantEntry, PARTIAL};
use crate::middleware::observability;
use crate::model;
use crate::model::outgoing::{self, Purpose};
use crate::model::structured::{self, StructuredAnswer};
use crate::program::approvals::{self, OpenApprovals};
use crate::program::output::ProgramOutput;
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{DriveResult, RunFailure, Step, StepError, overtime};

/// Maximum number of lines recorded in one batch.
const LINES: usize = 200;

/// Pending decisions, each with the program's request id and the id of the call.
type Decisions = FuturesUnordered<BoxFuture<'static, (String, String, Result<Decision, Error>)>>;

/// Runs the program to its end.
pub(crate) async fn drive(driver: &mut Driver) -> Step<DriveResult> {
    driver.check_shutdown()?;
    let config = driver.agent.definition.cli.clone().unwrap_or_else(|| CliConfig::new(["false"]));
    let previous = PreviousProgram::read(driver).await?;
    // Also if the run is to be aborted.
    previous.end(&config).await?;
    driver.read_state().await?;
    let mut config = previous.resume_in(config)?;
    inherit(&driver.shared.environment, &mut config)?;
    approvals::take_back_all(driver).await?;
    let deaf = !config.takes_decisions();
    let mut output = ProgramOutput::default();
    let mut open = OpenApprovals::default();
    let mut decisions: Decisions = FuturesUnordered::new();
    // Its usage is known at its end only. A program that was left behind has ended before, even if nothing is left.
    model::budget::reserve(driver, &ModelRequest::default(), None).await?;
    outgoing::ready(driver, Purpose::Program).await?;
    let mut running = begin(driver, config, &previous).await?;
    while output.answer.is_none() {
        tokio::select! {
            biased;
            () = driver.stop.cancelled() => {
                return Err(stop_program(driver, running, open, output, StepError::Aborted).await);
            }
            () = driver.until_deadline() => {
                return Err(stop_program(driver, running, open, output, overtime()).await);
            }
            () = driver.shutdown.stopped() => {
                return release_program(driver, running, open, output).await;
            }
            Some((request_id, call_id, decision)) = decisions.next() => {
                let decision = decision?;
                if open.remove(&request_id, &call_id) {
                    // Otherwise, the program has withdrawn the request or has exited.
                    let _ = running.answer(&request_id, decision);
                }
            }
            line = running.next() => match line {
                Some(line) => output.add_line(&driver.agent.definition.name, line),
                None => break,
            },
        }
        collect_available_lines(driver, &mut running, &mut output);
        if output.is_pending() {
            let events = std::mem::take(&mut output.new_events);
            driver.record(&events, output.new_calls().as_ref(), Vec::new()).await?;
            observability::program_tools(driver, output.calls.take_ended());
            if std::mem::take(&mut output.has_opened) {
                running.send_prompt();
            }
            record_approvals(driver, &running, &mut output, &mut open, &mut decisions, deaf)
                .await?;
        }
    }
    open.close(driver).await?;
    match output.answer.take() {
        Some(Ok(answer)) => finish(driver, *answer, output).await,
        Some(Err(failure)) if may_be_empty(&driver.agent.definition, &failure) => {
            finish(driver, failure.answer.map(|answer| *answer).unwrap_or_default(), output).await
        }
        Some(Err(failure)) => {
            let failed = driver.run_lease.fail(failure.kind.code(), &failure.message);
            output.failed = failure.answer;
            record_output(driver, output, vec![failed.into()]).await?;
            Ok(DriveResult::Ended)
        }
        None => Err(StepError::Failed(RunFailure::new(
            "bad_model_output",
            "the program gave no answer",
        ))),
    }
}

/// Returns `true` if a program reported success without any text, and that is an answer of its agent.
pub(crate) fn may_be_empty(
    definition: &AgentDefinition,
    failure: &abide_programs::Failure,
) -> bool {
    definition.allow_empty_answers && failure.kind == ErrorKind::NoAnswer
}

/// Starts the program. Its identity is stored before it gets the prompt, and so is the session of a program that reports it
/// before.
async fn begin(driver: &Driver, config: CliConfig, previous: &PreviousProgram) -> Step<Running> {
    let parser = driver.shared.parsers.parser(&config);
    let kind = config.kind();
    let running = spawn_paused(config, previous.prompt(conversation(driver), kind), parser);
    let mut events = Vec::new();
    if previous.has_begun() {
        events.push(model::restart::program_event(driver).await?);
    }
    if let Some(process) = running.process() {
        let data = json!({"status": "thinking", "process": process});
        events.push(run_event(RunEventKind::Status, data));
    }
    if !events.is_empty() {
        driver.record(&events, None, Vec::new()).await?;
    }
    running.open_session();
    Ok(running)
}

/// Records what a program that gave no answer has left: its output, its usage, and the text of the answer so far.
async fn record_output(driver: &Driver, mut output: ProgramOutput, then: Vec<Call>) -> Step {
    let mut events = std::mem::take(&mut output.new_events);
    let rest = events.split_off(events.len().min(LINES));
    let calls = output.new_calls().map_or(0, |spent| spent.tool_calls);
    observability::program_tools(driver, output.calls.take_all());
    let answer = output.last_answer();
    let entry = AssistantEntry {
        run_id: driver.state.run.id.clone(),
        provider: "cli".to_owned(),
        ..AssistantEntry::default()
    };
    let text = answer.text.trim_end();
    let message = driver.message("assistant", text, &entry).kind(PARTIAL);
    let message = (!text.is_empty()).then(|| Call::from(message));
    let spent = spent(&answer, calls);
    driver.record(&events, None, Vec::new()).await?;
    for events in rest.chunks(LINES) {
        driver.record(events, None, Vec::new()).await?;
    }
    driver.record(&[], Some(&spent), message.into_iter().chain(then).collect()).await
}

/// Collects the lines that are already available, so that one write covers many lines.
fn collect_available_lines(driver: &Driver, running: &mut Running, output: &mut ProgramOutput) {
    while output.new_events.len() < LINES && output.answer.is_none() {
        match running.next().now_or_never() {
            Some(Some(line)) => output.add_line(&driver.agent.definition.name, line),
            _ => break,
        }
    }
}

/// Records the program's permission requests, and cancels the withdrawn ones.
async fn record_approvals(
    driver: &Driver,
    running: &Running,
    output: &mut ProgramOutput,
    open: &mut OpenApprovals,
    decisions: &mut Decisions,
    deaf: bool,
) -> Step {
    for request_id in std::mem::take(&mut output.withdrawn) {
        open.withdraw(driver, &request_id).await?;
    }
    for asked in std::mem::take(&mut output.approval_requests) {
        if deaf {
            // Its stdin is closed, so the request cannot be answered. It is published as a status.
            let asks = json!({"status": "thinking", "asks": asked.tool, "input": asked.input});
            driver.record(&[run_event(RunEventKind::Status, asks)], None, Vec::new()).await?;
            continue;
        }
        let request_id = asked.request_id.clone();
        match open.ask(driver, asked).await? {
            Ok(call_id) => {
                let abide = driver.abide.clone();
                let settings = driver.shared.settings.clone();
                let decision = approvals::decision(abide, settings, call_id.clone());
                decisions.push(decision.map(|decided| (request_id, call_id, decided)).boxed());
            }
            Err(denied) => drop(running.answer(&request_id, denied)),
        }
    }
    Ok(())
}

/// Stops the program. Its output up to its exit is recorded.
async fn stop_program(
    driver: &Driver,
    mut running: Running,
    mut open: OpenApprovals,
    mut output: ProgramOutput,
    why: StepError,
) -> StepError {
    running.cancel();
    while let Some(line) = running.next().await {
        output.add_line(&driver.agent.definition.name, line);
    }
    if let Some(Err(failure)) = output.answer.take() {
        output.failed = failure.answer;
    }
    if let Err(halt) = record_output(driver, output, Vec::new()).await {
        return halt;
    }
    match open.close(driver).await {
        Ok(()) => why,
        Err(halt) => halt,
    }
}

/// Ends the program because the runtime stops. Its lines are recorded, and the next runtime resumes its session.
async fn release_program(
    driver: &Driver,
    mut running: Running,
    mut open: OpenApprovals,
    mut output: ProgramOutput,
) -> Step<DriveResult> {
    running.end(driver.shutdown.signal());
    while let Some(line) = running.next().await {
        output.add_line(&driver.agent.definition.name, line);
    }
    let events = std::mem::take(&mut output.new_events);
    let calls = output.new_calls();
    for (nth, events) in events.chunks(LINES).enumerate() {
        let spent = if nth == 0 { calls.as_ref() } else { None };
        driver.record(events, spent, Vec::new()).await?;
    }
    open.close(driver).await?;
    Ok(DriveResult::Released)
}

/// The records of previous drivers of the run about the program.
struct PreviousProgram {
    /// The last process.
    process: Option<ProcessIdentity>,
    /// The program's own session.
    session: Option<String>,
    /// Whether the program wrote a line.
    has_lines: bool,
    /// Whether the program has reported a text or a call, so that its session has the prompt.
    has_worked: bool,
}

/// What a resumed program is told. Its session has the task and its steps so far: with its first prompt, it would do again what
/// it has done.
const RESUMED: &str = "The process of this session was ended before its work was complete, and the \
    session has been resumed. The last steps may have taken effect even if their results are missing \
    here. Check what has already been done before you continue, and do not repeat it. Then complete \
    the rest of the task.";

/// What a resumed program is told in addition if it may have no prompt yet.
const TASK_ABOVE: &str = "The messages above are the task. They may be in the session already: then \
    they are not a new task.";

impl PreviousProgram {
    async fn read(driver: &Driver) -> Step<PreviousProgram> {
        let sql = "SELECT EXISTS (SELECT 1 FROM run_events WHERE run_id = :id AND kind = 'line'), \
                   EXISTS (SELECT 1 FROM run_events WHERE run_id = :id \
                           AND kind IN ('token', 'reasoning', 'tool_call', 'tool_result'))";
        let found: Vec<(bool, bool)> =
            driver.abide.sql(sql).param("id", &driver.state.run.id).fetch().await?;
        let (has_lines, has_worked) = found.first().copied().unwrap_or_default();
        let process = last_status(driver, "process").await?;
        let session = last_status(driver, "program_session").await?;
        Ok(PreviousProgram {
            process: process.and_then(|process| serde_json::from_value(process).ok()),
            session: session.and_then(|session| session.as_str().map(str::to_owned)),
            has_lines,
            has_worked,
        })
    }

    /// Returns `true` if a program was started for the run before.
    fn has_begun(&self) -> bool {
        self.process.is_some() || self.has_lines
    }

    /// Ends the program of a driver that crashed. Two programs would both finish and have their effects.
    async fn end(&self, config: &CliConfig) -> Step {
        let Some(process) = &self.process else { return Ok(()) };
        match process.end(config.grace).await {
            Ok(false) => Ok(()),
            Ok(true) => {
                tracing::info!(
                    name: "program_ended",
                    pid = process.pid,
                    "ended the program that a runtime left behind"
                );
                Ok(())
            }
            Err(error) => {
                let why = format!("the program of the previous runtime cannot be ended: {error}");
                Err(StepError::Failed(RunFailure::new("runtime_crash", why)))
            }
        }
    }

    /// Returns the configuration that resumes the program's session. A program that has written nothing is started
    /// again if its format is known: such programs report their session before they do anything. A program with a
    /// protocol of its own is started again whatever it has written: it gets its prompt when its session is stored.
    fn resume_in(&self, mut config: CliConfig) -> Step<CliConfig> {
        let kind = config.kind();
        match &self.session {
            Some(session) => config.session = Some(session.clone()),
            None if kind.has_protocol()
                && !matches!(config.parser, Some(ParserChoice::Named(_))) => {}
            None if self.has_lines || (self.has_begun() && kind == Program::Generic) => {
                let why = "the runtime ended while the program ran, and the program has no \
                           session to resume";
                return Err(StepError::Failed(RunFailure::new("runtime_crash", why)));
            }
            None => {}
        }
        Ok(config)
    }

    /// Returns the prompt of the next process: the whole conversation, or for a resumed session that it continues. Known
    /// programs report their session after they have read their prompt. Others can report it before: unless they have reported
    /// some work, they also get the conversation.
    fn prompt(&self, conversation: Prompt, kind: Program) -> Prompt {
        if self.session.is_none() {
            return conversation;
        }
        let reads_before = !kind.has_protocol() && kind != Program::Generic;
        if reads_before || self.has_worked {
            return Prompt::user(RESUMED);
        }
        let mut prompt = conversation;
        prompt.messages.push(PromptMessage::new("user", format!("{RESUMED} {TASK_ABOVE}")));
        prompt
    }
}

/// Returns a field of the last status event that has it. Only events that drivers of this identity recorded count:
/// other holders of the run must not choose which process is ended, or which session is resumed.
async fn last_status(driver: &Driver, field: &str) -> Step<Option<Value>> {
    let sql = format!(
        "SELECT r.data -> '$.{field}' FROM run_events r JOIN events e ON e.seq = r.seq \
         WHERE r.run_id = :id AND r.kind = 'status' AND r.data -> '$.{field}' IS NOT NULL \
         AND e.caller = (SELECT caller FROM events WHERE seq = :token) \
         ORDER BY r.number DESC LIMIT 1"
    );
    let query = driver.abide.sql(sql).param("id", &driver.state.run.id);
    let found: Vec<(Json,)> = query.param("token", driver.run_lease.fencing_token).fetch().await?;
    Ok(found.first().map(|(value,)| value.value()).filter(|value| !value.is_null()))
}

/// Adds the inherited and the named environment variables. Some exist only in the memory of this process.
fn inherit(environment: &Environment, config: &mut CliConfig) -> Step {
    for value in config.env.values_mut() {
        *value = value
            .clone()
            .resolved(|env| {
                environment.iter().find(|(name, _)| *name == env).map(|(_, value)| value.to_owned())
            })
            .map_err(|why| {
                let why = format!("cannot start the program: {why}");
                StepError::Failed(RunFailure::new("runtime_crash", why))
            })?;
    }
    for (name, value) in environment.iter() {
        if config.inherits(name) {
            config.env.entry(name.to_owned()).or_insert_with(|| value.to_owned().into());
        }
    }
    Ok(())
}

/// Returns the messages that the agent gets, as a prompt.
fn conversation(driver: &Driver) -> Prompt {
    let messages = driver
        .state
        .conversation(&driver.agent.definition.settings().context)
        .into_iter()
        .filter_map(|it| match it {
            ModelMessage::System { text } => Some(PromptMessage::new("system", text)),
            ModelMessage::User { text } => Some(PromptMessage::new("user", text)),
            ModelMessage::Assistant { text, .. } => Some(PromptMessage::new("assistant", text)),
            ModelMessage::Tool { .. } => None,
        });
    Prompt { system: driver.agent.definition.instructions.clone(), messages: messages.collect() }
}

async fn finish(
    driver: &Driver,
    answer: ProgramResult,
    mut program: ProgramOutput,
) -> Step<DriveResult> {
    let mut output = Map::from_iter([("content".to_owned(), json!(answer.text))]);
    if let Some(schema) = &driver.agent.definition.response_format {
        match structured::check_program_answer(schema, answer.structured.clone(), &answer.text) {
            StructuredAnswer::Fits(value) => drop(output.insert("structured".to_owned(), value)),
            StructuredAnswer::Mismatch(why) => {
                let RunFailure { code, message } = structured::mismatch(&why);
                let failed = driver.run_lease.fail(code, message);
                program.failed = Some(Box::new(answer));
                record_output(driver, program, vec![failed.into()]).await?;
                return Ok(DriveResult::Ended);
            }
            StructuredAnswer::Free => {}
        }
    }
    let calls = program.new_calls().map_or(0, |spent| spent.tool_calls);
    observability::program_tools(driver, program.calls.take_all());
    let spent = spent(&answer, calls);
    output.insert("cost_usd".to_owned(), json!(answer.cost_usd));
    output.insert("usage".to_owned(), json!(answer.usage));
    output.insert("program_session".to_owned(), json!(answer.session_id));
    output.insert("exit".to_owned(), json!(answer.exit));
    let entry = AssistantEntry {
        run_id: driver.state.run.id.clone(),
        provider: "cli".to_owned(),
        ..AssistantEntry::default()
    };
    let message = driver.message("assistant", answer.text.as_str(), &entry).into();
    let done = driver.run_lease.finish(output).into();
    driver.record(&[], Some(&spent), vec![message, done]).await?;
    Ok(DriveResult::Ended)
}

/// Returns the usage that the program reports.
pub(crate) fn spent(answer: &ProgramResult, tool_calls: i64) -> ModelUsage {
    let usage = answer.usage.as_ref();
    let count = |of: fn(&Usage) -> Option<u64>| {
        usage.and_then(of).and_then(|tokens| i64::try_from(tokens).ok())
    };
    // The reported cost, rounded to microdollars. An invalid number is ignored.
    let micros = answer.cost_usd.map(|dollars| (dollars * 1e6).round());
    let micros = micros.filter(|micros| (0.0..=f64::from(u32::MAX)).contains(micros));
    ModelUsage {
        iteration: true,
        tool_calls,
        input_tokens: count(|usage| usage.input_tokens),
        output_tokens: count(|usage| usage.output_tokens),
        cost_micros: micros.map(|micros| micros as i64),
    }
}
