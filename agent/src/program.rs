//! A foreign program that is the agent: its lines become events of the run, kept as they came beside what they
//! were read as, and its last word is the answer.
//!
//! A program cannot be taken up in the middle. Where its driver vanished, it is resumed if it told a session
//! of its own, and the run fails if it did not: it is not begun again, because nobody knows what it has done.

use abide_client::{Message, RunEvent};
use abide_programs::{Answer, CliConfig, Line, ProgramEvent, Prompt, Running, run};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::drive::{Driven, Driver, Failure, Halt, Step, overtime};
use crate::transcript::{self, Said};
use abide_models::ModelMessage;

/// Lines that are told at once.
const LINES: usize = 200;

/// Runs the program to its end.
pub(crate) async fn drive(driver: &mut Driver) -> Step<Driven> {
    driver.look_at_messages().await?;
    let config = driver.definition.cli.clone().unwrap_or_else(|| CliConfig::new(["false"]));
    let config = resumed(driver, config).await?;
    let prompt = prompt(driver);
    let mut running = run(config, prompt, None);
    let (mut told, mut answer) = (Vec::new(), None);
    loop {
        let line = tokio::select! {
            biased;
            () = driver.stop.cancelled() => return Err(leave(driver, running, Halt::Aborted).await),
            () = driver.until_deadline() => return Err(leave(driver, running, overtime()).await),
            line = running.next() => line,
        };
        let Some(line) = line else { break };
        read(driver, line, &mut told, &mut answer);
        // What is there already goes along: one write for many lines.
        while told.len() < LINES && answer.is_none() {
            match futures_util::FutureExt::now_or_never(running.next()) {
                Some(Some(line)) => read(driver, line, &mut told, &mut answer),
                _ => break,
            }
        }
        driver.record(&std::mem::take(&mut told), None, Vec::new()).await?;
    }
    match answer {
        Some(Ok(answer)) => finish(driver, *answer).await,
        Some(Err(failure)) => Err(Halt::Failed(failure)),
        None => Err(Halt::Failed(Failure::new("bad_model_output", "the program gave no answer"))),
    }
}

/// Ends the program before its time; what it said until it was gone is kept.
async fn leave(driver: &Driver, mut running: Running, why: Halt) -> Halt {
    running.cancel();
    let (mut told, mut answer) = (Vec::new(), None);
    while let Some(line) = running.next().await {
        read(driver, line, &mut told, &mut answer);
    }
    for told in told.chunks(LINES) {
        if let Err(halt @ Halt::Refused(_)) = driver.record(told, None, Vec::new()).await {
            return halt;
        }
    }
    why
}

type Last = Option<Result<Box<Answer>, Failure>>;

fn read(driver: &Driver, line: Line, told: &mut Vec<Value>, answer: &mut Last) {
    if let Some(raw) = line.raw {
        told.push(json!({"kind": "line", "data": {"raw": raw}}));
    }
    for event in line.events {
        let (kind, data) = match event {
            ProgramEvent::AssistantDelta { text, .. } => ("token", json!({"content": text})),
            ProgramEvent::ThinkingDelta { text, .. } => ("reasoning", json!({"content": text})),
            ProgramEvent::ToolCallStarted { id, name, arguments, .. } => {
                ("tool_call", json!({"name": name, "args": arguments, "id": id}))
            }
            ProgramEvent::ToolCallFinished { id, output, is_error, exit_code, .. } => {
                let exit_code = exit_code.unwrap_or_else(|| i64::from(is_error));
                (
                    "tool_result",
                    json!({"tool_call_id": id, "output": output, "exit_code": exit_code}),
                )
            }
            ProgramEvent::SessionId { id } => {
                ("status", json!({"status": "thinking", "program_session": id}))
            }
            ProgramEvent::Usage(usage) => {
                let mut data = json!(usage);
                data["provider"] = json!("cli");
                data["model"] = json!(driver.definition.name);
                ("usage", data)
            }
            ProgramEvent::Final(last) => {
                *answer = Some(Ok(Box::new(last)));
                continue;
            }
            ProgramEvent::Error(failure) => {
                *answer = Some(Err(Failure::new(failure.kind.code(), failure.message)));
                continue;
            }
            other => ("status", json!({"status": "thinking", "program": other})),
        };
        told.push(json!({"kind": kind, "data": data}));
    }
}

/// The configuration, with the program's own session where there was one before.
async fn resumed(driver: &Driver, mut config: CliConfig) -> Step<CliConfig> {
    let sql = "SELECT * FROM run_events WHERE run_id = :id AND kind IN ('line', 'status') \
               ORDER BY number";
    let before: Vec<RunEvent> =
        driver.shop.abide.sql(sql).param("id", &driver.run.id).fetch().await?;
    let session = before
        .iter()
        .rev()
        .find_map(|event| event.data.value()["program_session"].as_str().map(str::to_owned));
    let began = before.iter().any(|event| event.kind == abide_client::RunEventKind::Line);
    match (began, session) {
        (false, _) => Ok(config),
        (true, Some(session)) => {
            config.session = Some(session);
            Ok(config)
        }
        (true, None) => {
            let why =
                "the runtime ended while the program ran, and it has no session to go on with";
            Err(Halt::Failed(Failure::new("runtime_crash", why)))
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

async fn finish(driver: &Driver, answer: Answer) -> Step<Driven> {
    let said =
        Said { run_id: driver.run.id.clone(), provider: "cli".to_owned(), ..Said::default() };
    let message = driver.message(Message::assistant(&answer.text), &said);
    let mut output = serde_json::Map::from_iter([("content".to_owned(), json!(answer.text))]);
    output.insert("cost_usd".to_owned(), json!(answer.cost_usd));
    output.insert("usage".to_owned(), json!(answer.usage));
    output.insert("program_session".to_owned(), json!(answer.session_id));
    output.insert("exit".to_owned(), json!(answer.exit));
    let done = driver.hold.done(&output);
    driver.shop.abide.batch([message, done]).await?;
    Ok(Driven::Ended)
}
