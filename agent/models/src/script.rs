//! A provider that answers from a small file, for demos, tests and benchmarks.
//!
//! ```yaml
//! answers:
//!   - text: Let me look.
//!     calls: [{ name: read_file, arguments: { path: README.md } }]
//!   - text: It says hello.
//! ```
//!
//! The next answer depends only on the request: its index is the number of answers in the request. A run that is
//! killed and resumed therefore continues, and any number of sessions can use it concurrently.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::recording::is_answer;
use crate::replay::tell;
use crate::{
    ModelCall, ModelError, ModelErrorKind, ModelProvider, ModelRequest, ModelResponse, ModelStream,
    RecordingError, ReplaySpeed, RequestPurpose, Stop, StructuredOutput, Usage,
};

/// A file of answers, and the provider that returns them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a script: a map with answers")]
pub struct Script {
    /// The answers, in order.
    answers: Vec<ScriptedResponse>,
    /// The answer to a request for a summary. Without one the error is `no_recording`, and the summary is made without
    /// a model.
    #[serde(default)]
    summary: Option<String>,
    /// Whether to start over after the last answer. Otherwise the error is `no_recording`.
    #[serde(default)]
    repeat: bool,
    /// Delay before the first word, in milliseconds.
    #[serde(default)]
    first_token_ms: u64,
    /// Delay before each later word, in milliseconds.
    #[serde(default)]
    token_ms: u64,
    #[serde(skip)]
    id: String,
}

/// One answer.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an answer: a map with text, calls or error")]
pub struct ScriptedResponse {
    /// The text.
    #[serde(default)]
    pub text: String,
    /// The reasoning.
    #[serde(default)]
    pub reasoning: Option<String>,
    /// The calls.
    #[serde(default)]
    pub calls: Vec<ScriptedCall>,
    /// The reported usage: `input_tokens` and `output_tokens`.
    #[serde(default)]
    pub usage: Option<ScriptedUsage>,
    /// Why the model stopped: `length`, `filtered`, `{other: REASON}`. By default the answer is complete.
    #[serde(default)]
    pub stop: Option<Stop>,
    /// A failure before the answer.
    #[serde(default)]
    pub error: Option<ScriptedError>,
    /// How often that failure has occurred.
    #[serde(skip)]
    failed: AtomicU32,
}

/// One call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a tool call: a map with name and arguments")]
pub struct ScriptedCall {
    /// The id; the default is `call_` and two numbers (the index of the answer and of the call).
    #[serde(default)]
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments: any value. A string is used as the argument text.
    #[serde(default = "no_arguments")]
    pub arguments: Value,
}

/// Token counts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "token counts: a map with input_tokens and output_tokens")]
pub struct ScriptedUsage {
    /// Of the request.
    pub input_tokens: Option<u64>,
    /// Of the answer.
    pub output_tokens: Option<u64>,
}

/// A failure before an answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a failure: a map with kind and times")]
pub struct ScriptedError {
    /// The kind.
    pub kind: ModelErrorKind,
    /// How often it occurs, over all sessions; the default is once.
    #[serde(default = "once")]
    pub times: u32,
    /// The retry delay to report, in seconds.
    #[serde(default)]
    pub retry_after_seconds: Option<u64>,
}

impl Script {
    /// Reads a file: YAML, or JSON.
    ///
    /// # Errors
    /// The file cannot be read, or is not a script.
    pub fn from_file(path: &Path) -> Result<Self, RecordingError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| RecordingError::new(path, error.to_string(), None))?;
        Self::parse(&text)
            .map_err(|error| RecordingError::new(path, sentence(&error), error.position()))
    }

    /// Parses a text: YAML, or JSON.
    ///
    /// # Errors
    /// One sentence about the error.
    pub fn from_text(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|error| sentence(&error))
    }

    fn parse(text: &str) -> Result<Self, abide_yaml::Error> {
        let script: Self = abide_yaml::from_str(text)?;
        Ok(script.named("script"))
    }

    /// Sets the id.
    #[must_use]
    pub fn named(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }

    fn next(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        if request.purpose == RequestPurpose::Summary {
            return self.summarise(request);
        }
        let answers = request.omitted_answers
            + request.messages.iter().filter(|message| is_answer(message)).count();
        let holds = self.answers.len();
        let at = if self.repeat && holds > 0 { answers % holds } else { answers };
        let Some(answer) = self.answers.get(at) else {
            let wanted = answers + 1;
            let word = if holds == 1 { "answer" } else { "answers" };
            let message =
                format!("the script has {holds} {word}, but number {wanted} is requested");
            return Err(ModelError::new(ModelErrorKind::NoRecording, message));
        };
        answer.fail()?;
        let calls: Vec<ModelCall> = answer
            .calls
            .iter()
            .enumerate()
            .map(|(number, call)| call.to_call(answers + 1, number + 1))
            .collect();
        let usage = answer.usage.map_or(Usage::default(), |usage| Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            ..Usage::default()
        });
        Ok(ModelResponse {
            text: answer.text.clone(),
            reasoning: answer.reasoning.clone(),
            stop: answer.stop.clone().unwrap_or(if calls.is_empty() {
                Stop::End
            } else {
                Stop::ToolUse
            }),
            calls,
            usage: usage.with_completeness(),
            provider: self.id.clone(),
            model: request.model.clone(),
            carry: None,
            cost_micros: None,
        })
    }
}

impl Script {
    fn summarise(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let Some(summary) = &self.summary else {
            let message = "the script has no summary";
            return Err(ModelError::new(ModelErrorKind::NoRecording, message));
        };
        Ok(ModelResponse {
            text: summary.clone(),
            reasoning: None,
            calls: Vec::new(),
            stop: Stop::End,
            usage: Usage::default(),
            cost_micros: None,
            provider: self.id.clone(),
            model: request.model.clone(),
            carry: None,
        })
    }
}

impl ModelProvider for Script {
    fn id(&self) -> &str {
        &self.id
    }

    fn structured_output(&self) -> StructuredOutput {
        StructuredOutput::Tool
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let speed = ReplaySpeed {
            first: Duration::from_millis(self.first_token_ms),
            token: Duration::from_millis(self.token_ms),
        };
        tell(self.next(&request), speed)
    }
}

impl ScriptedResponse {
    /// Returns the configured failure, while it has occurrences left.
    fn fail(&self) -> Result<(), ModelError> {
        let Some(ScriptedError { kind, times, retry_after_seconds }) = &self.error else {
            return Ok(());
        };
        let counted = self.failed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |failed| {
            (failed < *times).then_some(failed + 1)
        });
        if counted.is_err() {
            return Ok(());
        }
        let retry_after = retry_after_seconds.map(Duration::from_secs);
        Err(ModelError { retry_after, ..ModelError::new(*kind, "scripted failure") })
    }
}

impl ScriptedCall {
    fn to_call(&self, answer: usize, number: usize) -> ModelCall {
        let arguments = match &self.arguments {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let id = self.id.clone().unwrap_or_else(|| format!("call_{answer}_{number}"));
        ModelCall { id, name: self.name.clone(), arguments }
    }
}

/// The error and its place. The caller names the file.
fn sentence(error: &abide_yaml::Error) -> String {
    match error.position() {
        Some(at) => format!("{error} at line {}, column {}", at.line, at.column),
        None => error.to_string(),
    }
}

fn no_arguments() -> Value {
    Value::Object(serde_json::Map::new())
}

fn once() -> u32 {
    1
}
