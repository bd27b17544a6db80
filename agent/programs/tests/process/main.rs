//! Runs of real processes: one for each kind of failure and each operation on a run. No test sleeps; deadlines that
//! must expire are short.

mod acp;
mod app_server;
mod approvals;
mod failures;
mod identity;
mod limits;
mod output;
mod stdin;

use std::fmt::Write as _;
use std::time::Duration;

use abide_programs::{CliConfig, Line, Program, ProgramEvent, Prompt, Running, run};
use futures_util::StreamExt as _;
use serde_json::Value;

/// A final line in Claude Code's format.
const FINAL: &str = r#"{"type":"result","subtype":"success","is_error":false,"result":"42"}"#;

/// Long: a run that reaches it has failed.
const NEVER: Duration = Duration::from_secs(60);

/// Short: the test waits for it.
const SOON: Duration = Duration::from_millis(300);

/// The configuration of the fake agent with these steps, parsed as Claude Code's output.
fn fake(steps: &[&str]) -> CliConfig {
    let command = std::iter::once(env!("CARGO_BIN_EXE_abide-fake-agent")).chain(steps.to_vec());
    let program = Some(Program::Claude);
    CliConfig { program, timeout: NEVER, grace: NEVER, ..CliConfig::new(command) }
}

/// The lines that the program received, as it echoes them.
fn echoed(lines: &[Line]) -> Vec<Value> {
    let echoed = lines.iter().filter_map(|line| {
        let line: Value = serde_json::from_str(line.raw.as_deref()?).ok()?;
        serde_json::from_str(line["echo"].as_str()?).ok()
    });
    echoed.collect()
}

fn start(config: CliConfig) -> Running {
    run(config, Prompt::user("What is 6 × 7?"), None)
}

/// All lines of a run. Checks that it ends with exactly one terminal event.
async fn rendered(mut running: Running) -> String {
    let mut rendered = String::new();
    let mut ends = Vec::new();
    while let Some(line) = running.next().await {
        assert!(ends.is_empty(), "{line:?} follows the terminal event");
        ends.extend(line.events.iter().filter(|event| event.is_terminal()).cloned());
        write_line(&mut rendered, &line);
    }
    assert_eq!(ends.len(), 1, "one terminal event");
    rendered
}

/// The raw line, shortened, and its events.
fn write_line(rendered: &mut String, line: &Line) {
    let raw = line
        .raw
        .as_deref()
        .map_or("·".to_owned(), |text| text.chars().take(100).collect::<String>());
    let events: Vec<String> = line.events.iter().map(event).collect();
    writeln!(rendered, "{raw} => {}", events.join(", ")).expect("writing to a string succeeds");
}

/// An event in short form.
fn event(event: &ProgramEvent) -> String {
    match event {
        ProgramEvent::AssistantDelta { text, .. } => format!("says {text:?}"),
        ProgramEvent::ThinkingDelta { text, .. } => format!("thinks {text:?}"),
        ProgramEvent::ToolCallStarted { name, arguments, .. } => format!("{name} {arguments}"),
        ProgramEvent::Status { .. } => "status".to_owned(),
        ProgramEvent::Notice { code, message } => format!("{code:?}: {message}"),
        ProgramEvent::ApprovalRequested { request_id, tool, input, .. } => {
            format!("{request_id} asks for {tool} {input}")
        }
        ProgramEvent::Final(answer) => {
            let exit = answer.exit.expect("the process has an exit status");
            format!("final {:?}, {exit}", answer.text)
        }
        ProgramEvent::Error(failure) => {
            let answer =
                failure.answer.as_ref().map(|answer| format!(", answer {:?}", answer.text));
            format!("{}: {}{}", failure.kind, failure.message, answer.unwrap_or_default())
        }
        other => format!("{other:?}"),
    }
}

/// Reads lines until an event matches; the run continues.
async fn until(running: &mut Running, test: impl Fn(&ProgramEvent) -> bool) -> Vec<Line> {
    let mut lines = Vec::new();
    while let Some(line) = running.next().await {
        let found = line.events.iter().any(&test);
        lines.push(line);
        if found {
            return lines;
        }
    }
    panic!("the run ended before that: {lines:?}");
}

/// The terminal event of a run.
async fn end(running: Running) -> ProgramEvent {
    let lines: Vec<Line> = running.collect().await;
    lines
        .into_iter()
        .last()
        .and_then(|mut line| line.events.pop())
        .expect("there is a terminal event")
}
