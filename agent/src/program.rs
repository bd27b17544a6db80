//! A foreign program as the agent. Its output lines are recorded as events of the run, each with the original line.
//! Its final message is the answer.
//!
//! A program cannot be continued in the middle. If its driver crashed, the program is resumed if it reported a
//! session id. Otherwise the run fails: the program is not restarted, because its effects are unknown.

use abide_client::{Error, ModelUsage, RunEvent, RunEventKind};
use abide_programs::{
    Answer, CliConfig, Decision, InheritEnv, InputFormat, Prompt, Running, Usage, run,
};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Map, json};

use abide_models::{ModelMessage, ModelRequest};
use abide_tools::Environment;

use crate::budget;
use crate::driver::Driver;
use crate::program_approvals::{self, OpenApprovals};
use crate::program_output::ProgramOutput;
use crate::run_lease::run_event;
use crate::step::{DriveResult, Failure, Step, StepError, overtime};
use crate::structured::{self, StructuredAnswer};
use crate::transcript::{self, AssistantEntry};

/// Maximum number of lines recorded in one batch.
const LINES: usize = 200;

/// Pending decisions, each with the program's request id.
type Decisions = FuturesUnordered<BoxFuture<'static, (String, Result<Decision, Error>)>>;

/// Runs the program to its end.
pub(crate) async fn drive(driver: &mut Driver) -> Step<DriveResult> {
    driver.look_at_messages().await?;
    // Its usage is known at its end only.
    budget::reserve(driver, &ModelRequest::default(), None).await?;
    let config = driver.definition.cli.clone().unwrap_or_else(|| CliConfig::new(["false"]));
    let mut config = resumed(driver, config).await?;
    inherit(&driver.shared.environment, &mut config);
    program_approvals::take_back_all(driver).await?;
    let deaf = config.input_format == InputFormat::Text;
    let (mut output, mut open) = (ProgramOutput::default(), OpenApprovals::default());
    let mut decisions: Decisions = FuturesUnordered::new();
    let mut running = run(config, prompt(driver), None);
    while output.answer.is_none() {
        tokio::select! {
            biased;
            () = driver.stop.cancelled() => {
                return Err(leave(driver, running, open, StepError::Aborted).await);
            }
            () = driver.until_deadline() => {
                return Err(leave(driver, running, open, overtime()).await);
            }
            Some((request_id, decision)) = decisions.next() => {
                open.answered(&request_id);
                // If the request is no longer open, the program has withdrawn it or has exited.
                let _ = running.answer(&request_id, decision?);
            }
            line = running.next() => match line {
                Some(line) => output.line(&driver.definition.name, line),
                None => break,
            },
        }
        gather(driver, &mut running, &mut output);
        if output.is_pending() {
            driver.record(&std::mem::take(&mut output.told), None, Vec::new()).await?;
            consent(driver, &running, &mut output, (&mut open, &mut decisions), deaf).await?;
        }
    }
    open.close(driver).await?;
    match output.answer {
        Some(Ok(answer)) => finish(driver, *answer, output.tool_calls).await,
        Some(Err(failure)) => Err(StepError::Failed(failure)),
        None => {
            Err(StepError::Failed(Failure::new("bad_model_output", "the program gave no answer")))
        }
    }
}

/// Collects the lines that are already available, so that one write covers many lines.
fn gather(driver: &Driver, running: &mut Running, output: &mut ProgramOutput) {
    while output.told.len() < LINES && output.answer.is_none() {
        match running.next().now_or_never() {
            Some(Some(line)) => output.line(&driver.definition.name, line),
            _ => break,
        }
    }
}

/// Records the program's permission requests, and cancels the withdrawn ones.
async fn consent(
    driver: &Driver,
    running: &Running,
    output: &mut ProgramOutput,
    (open, decisions): (&mut OpenApprovals, &mut Decisions),
    deaf: bool,
) -> Step {
    for asked in std::mem::take(&mut output.asked) {
        if deaf {
            // Its stdin is closed, so the request cannot be answered. It is published as a status.
            let asks = json!({"status": "thinking", "asks": asked.tool, "input": asked.input});
            driver.record(&[run_event(RunEventKind::Status, asks)], None, Vec::new()).await?;
            continue;
        }
        let request_id = asked.request_id.clone();
        match open.ask(driver, asked).await? {
            Ok(call_id) => {
                let (abide, settings) = (driver.abide.clone(), driver.shared.settings.clone());
                let decision = program_approvals::decision(abide, settings, call_id);
                decisions.push(decision.map(|decided| (request_id, decided)).boxed());
            }
            Err(denied) => drop(running.answer(&request_id, denied)),
        }
    }
    for request_id in std::mem::take(&mut output.withdrawn) {
        open.withdraw(driver, &request_id).await?;
    }
    Ok(())
}

/// Stops the program. Its output up to its exit is recorded.
async fn leave(
    driver: &Driver,
    mut running: Running,
    open: OpenApprovals,
    why: StepError,
) -> StepError {
    running.cancel();
    let mut output = ProgramOutput::default();
    while let Some(line) = running.next().await {
        output.line(&driver.definition.name, line);
    }
    for told in output.told.chunks(LINES) {
        if let Err(halt) = driver.record(told, None, Vec::new()).await {
            return halt;
        }
    }
    match open.close(driver).await {
        Ok(()) => why,
        Err(halt) => halt,
    }
}

/// The configuration, with the session id of the previous program if there was one.
async fn resumed(driver: &Driver, mut config: CliConfig) -> Step<CliConfig> {
    let sql = "SELECT * FROM run_events WHERE run_id = :id AND kind IN ('line', 'status') \
               ORDER BY number";
    let before: Vec<RunEvent> = driver.abide.sql(sql).param("id", &driver.run.id).fetch().await?;
    let session = before
        .iter()
        .rev()
        .find_map(|event| event.data.value()["program_session"].as_str().map(str::to_owned));
    let began = before.iter().any(|event| event.kind == RunEventKind::Line);
    match (began, session) {
        (false, _) => Ok(config),
        (true, Some(session)) => {
            config.session = Some(session);
            Ok(config)
        }
        (true, None) => {
            let why =
                "the runtime ended while the program ran, and the program has no session to resume";
            Err(StepError::Failed(Failure::new("runtime_crash", why)))
        }
    }
}

/// Adds the inherited environment variables. Some exist only in the memory of this process.
fn inherit(environment: &Environment, config: &mut CliConfig) {
    let all = config.inherit_env == InheritEnv::All;
    for (name, value) in environment.iter() {
        if all || config.env_allowlist.iter().any(|allowed| allowed == name) {
            config.env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
}

fn prompt(driver: &Driver) -> Prompt {
    let messages = transcript::messages(&driver.entries).into_iter().filter_map(|it| match it {
        ModelMessage::System { text } => Some(("system".to_owned(), text)),
        ModelMessage::User { text } => Some(("user".to_owned(), text)),
        ModelMessage::Assistant { text, .. } => Some(("assistant".to_owned(), text)),
        ModelMessage::Tool { .. } => None,
    });
    Prompt { system: driver.definition.instructions.clone(), messages: messages.collect() }
}

async fn finish(driver: &Driver, answer: Answer, tool_calls: i64) -> Step<DriveResult> {
    let mut output = Map::from_iter([("content".to_owned(), json!(answer.text))]);
    if let Some(schema) = &driver.definition.response_format {
        match structured::of_program(schema, answer.structured.clone(), &answer.text) {
            StructuredAnswer::Fits(value) => drop(output.insert("structured".to_owned(), value)),
            StructuredAnswer::Mismatch(why) => return Err(structured::failed(&why)),
            StructuredAnswer::Free => {}
        }
    }
    let spent = spent(&answer, tool_calls);
    output.insert("cost_usd".to_owned(), json!(answer.cost_usd));
    output.insert("usage".to_owned(), json!(answer.usage));
    output.insert("program_session".to_owned(), json!(answer.session_id));
    output.insert("exit".to_owned(), json!(answer.exit));
    let said = AssistantEntry {
        run_id: driver.run.id.clone(),
        provider: "cli".to_owned(),
        ..AssistantEntry::default()
    };
    let message = driver.message("assistant", answer.text.as_str(), &said).into();
    let done = driver.run_lease.done(output).into();
    driver.record(&[], Some(&spent), vec![message, done]).await?;
    Ok(DriveResult::Ended)
}

/// The usage that the program reports.
fn spent(answer: &Answer, tool_calls: i64) -> ModelUsage {
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
