//! One run of a program, from its start to the end of its process group.

use std::time::Duration;

use abide_json_integers as integers;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStdin;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Output;
use crate::outcome::{Failure, ToolOutcome};
use abide_sandbox::Report;
use abide_sandbox::{End, Launch, OutputTail, StopRules};

/// The parameters of one run.
pub(super) struct Run<'a> {
    pub(super) name: &'a str,
    pub(super) timeout: Duration,
    pub(super) grace: Duration,
    pub(super) max_output_bytes: usize,
    pub(super) ok_exit_codes: &'a [i32],
    pub(super) output: Output,
}

impl Run<'_> {
    pub(super) async fn run(
        &self,
        launch: &Launch,
        input: Vec<u8>,
        cancel: &CancellationToken,
    ) -> ToolOutcome {
        let deadline = Instant::now() + self.timeout;
        let (mut child, group) = match launch.spawn() {
            Ok(started) => started,
            Err(why) => {
                let program = launch.argv.first().map_or("", String::as_str);
                let text = format!("{} did not run: cannot start {program}: {why}", self.name);
                return ToolOutcome::failed(Failure::Unavailable, text);
            }
        };
        let mut stdout = Vec::new();
        let stderr = OutputTail::new(launch);
        let (end, code) = {
            let stdin = child.stdin.take().expect("stdin is piped");
            let out = child.stdout.take().expect("stdout is piped");
            let err = child.stderr.take().expect("stderr is piped");
            let max = self.max_output_bytes;
            let pump = async {
                // Oversized output ends the run immediately, regardless of the other pipes.
                let read = read_up_to(out, &mut stdout, max);
                let others = async {
                    tokio::join!(stderr.drain(err), write(stdin, &input));
                    Ok(())
                };
                tokio::try_join!(read, others).is_ok()
            };
            let rules = StopRules { deadline, grace: self.grace, cancel };
            rules.watch(&mut child, &group, pump).await
        };
        self.outcome(end, code, stdout, &stderr)
    }

    fn outcome(&self, end: End, code: i32, stdout: Vec<u8>, stderr: &OutputTail) -> ToolOutcome {
        let name = self.name;
        let mut content = Map::from_iter([("exit_code".to_owned(), json!(code))]);
        let (text, dropped) = stderr.text();
        if !text.is_empty() {
            content.insert("stderr".to_owned(), json!(text));
        }
        if dropped > 0 {
            content.insert("stderr_bytes_before".to_owned(), json!(dropped));
        }
        let text = String::from_utf8_lossy(&stdout).trim_end().to_owned();
        match String::from_utf8(stdout) {
            Ok(stdout) => content.insert("stdout".to_owned(), json!(stdout)),
            Err(why) => {
                let encoded = STANDARD.encode(why.as_bytes());
                content.insert("stdout_base64".to_owned(), json!(encoded))
            }
        };
        let failure = match (end, stderr.report()) {
            (_, Some(Report::NotStarted(why))) => {
                content.clear();
                Some((Failure::Unavailable, format!("{name} did not run: {why}")))
            }
            (End::Exited, Some(Report::Stopped(why))) => {
                Some((Failure::Tool, format!("{name} was stopped: {why}")))
            }
            (end, _) => self.failure(end, code, &mut content, &text),
        };
        if let Some((failure, _)) = &failure {
            content.insert("failure".to_owned(), json!(failure));
        }
        let text = match &failure {
            None if text.is_empty() => format!("no output{}", stderr.as_suffix()),
            None => text,
            Some((_, why)) if text.is_empty() => format!("{why}{}", stderr.as_suffix()),
            Some((_, why)) => format!("{why}{}\nstdout:\n{text}", stderr.as_suffix()),
        };
        ToolOutcome {
            content: Value::Object(content),
            text,
            is_error: failure.is_some(),
            exit_code: code,
            failure: failure.map(|(failure, _)| failure),
        }
    }

    /// Why a run that was started failed, if it did.
    fn failure(
        &self,
        end: End,
        code: i32,
        content: &mut Map<String, Value>,
        text: &str,
    ) -> Option<(Failure, String)> {
        let name = self.name;
        match end {
            End::TimedOut => {
                let seconds = self.timeout.as_secs_f64();
                Some((Failure::TimedOut, format!("{name} timed out after {seconds} s")))
            }
            End::Cancelled => Some((Failure::Cancelled, format!("{name} was cancelled"))),
            End::TooLarge => {
                let max = self.max_output_bytes;
                let why = format!("{name} was stopped: its output exceeds {max} bytes");
                Some((Failure::TooLarge, why))
            }
            End::Exited if !self.ok_exit_codes.contains(&code) => {
                Some((Failure::Tool, format!("{name} failed with exit code {code}")))
            }
            End::Exited => self.read(content, text),
        }
    }

    /// Parses the output of a successful program in the configured format.
    fn read(&self, content: &mut Map<String, Value>, text: &str) -> Option<(Failure, String)> {
        if self.output == Output::Text {
            return None;
        }
        let text = integers::readable(text.as_bytes());
        match serde_json::from_str::<Value>(&text) {
            Ok(value) => {
                if let Err(found) = integers::check(&text) {
                    let why =
                        format!("{} ran, but its output cannot be stored: {found}", self.name);
                    return Some((Failure::Tool, why));
                }
                content.insert("output".to_owned(), value);
                None
            }
            Err(why) => {
                let why = format!("{} ran, but its output is not valid JSON: {why}", self.name);
                Some((Failure::Tool, why))
            }
        }
    }
}

/// The output exceeds the maximum size.
struct TooLarge;

/// Reads to the end.
async fn read_up_to(
    mut from: impl AsyncRead + Unpin,
    to: &mut Vec<u8>,
    max: usize,
) -> Result<(), TooLarge> {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let fits = read.min(max - to.len());
        to.extend_from_slice(&buffer[..fits]);
        if fits < read {
            return Err(TooLarge);
        }
    }
    Ok(())
}

/// Writes the input. It is not an error if a program does not read all of it.
async fn write(mut stdin: ChildStdin, input: &[u8]) {
    let _ = stdin.write_all(input).await;
    let _ = stdin.shutdown().await;
}
