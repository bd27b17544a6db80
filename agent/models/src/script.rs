//! A provider that answers from a small file, for demonstrations, tests and benches.
//!
//! ```yaml
//! answers:
//!   - text: Let me look.
//!     calls: [{ name: read_file, arguments: { path: README.md } }]
//!   - text: It says hello.
//! ```
//!
//! Which answer comes next follows from the request: the one after as many as it holds. So a run that
//! is killed goes on where it was, and any number of sessions may ask at once.

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
    ModelAnswer, ModelCall, ModelError, ModelErrorKind, ModelProvider, ModelRequest, ModelStream,
    Pace, RecordingError, Stop, Usage,
};

/// A file of answers, and the provider that gives them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The answers, in order.
    answers: Vec<ScriptedAnswer>,
    /// Whether the first comes again after the last. Otherwise the error is `no_recording`.
    #[serde(default)]
    repeat: bool,
    /// How many milliseconds pass before the first word.
    #[serde(default)]
    first_token_ms: u64,
    /// How many milliseconds pass before each later word.
    #[serde(default)]
    token_ms: u64,
    #[serde(skip)]
    id: String,
}

/// One answer.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedAnswer {
    /// The text.
    #[serde(default)]
    pub text: String,
    /// What was thought.
    #[serde(default)]
    pub reasoning: Option<String>,
    /// The calls.
    #[serde(default)]
    pub calls: Vec<ScriptedCall>,
    /// What it is said to have taken: `input_tokens` and `output_tokens`.
    #[serde(default)]
    pub usage: Option<ScriptedUsage>,
    /// A failure that comes first.
    #[serde(default)]
    pub error: Option<ScriptedError>,
    /// How often that failure came.
    #[serde(skip)]
    failed: AtomicU32,
}

/// One call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// Its id; `call_` and two numbers (the answer's, the call's in it) if absent.
    #[serde(default)]
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments: any value, or a text that is taken as it is.
    #[serde(default = "no_arguments")]
    pub arguments: Value,
}

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedUsage {
    /// Of the request.
    pub input_tokens: Option<u64>,
    /// Of the answer.
    pub output_tokens: Option<u64>,
}

/// A failure that comes before an answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedError {
    /// Its kind.
    pub kind: ModelErrorKind,
    /// How often it comes, over all sessions; once if absent.
    #[serde(default = "once")]
    pub times: u32,
    /// What it asks to be waited.
    #[serde(default)]
    pub retry_after_seconds: Option<u64>,
}

impl Script {
    /// Reads a file: YAML, or JSON.
    ///
    /// # Errors
    /// It cannot be read, or is no script.
    pub fn from_file(path: &Path) -> Result<Self, RecordingError> {
        let wrong = |what: String| RecordingError::new(path, what);
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::from_text(&text).map_err(wrong)
    }

    /// Reads a text: YAML, or JSON.
    ///
    /// # Errors
    /// One sentence: what is wrong with it.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let script: Self = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        Ok(script.named("script"))
    }

    /// The same under another name.
    #[must_use]
    pub fn named(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }

    fn next(&self, request: &ModelRequest) -> Result<ModelAnswer, ModelError> {
        let said = request.messages.iter().filter(|message| is_answer(message)).count();
        let holds = self.answers.len();
        let at = if self.repeat && holds > 0 { said % holds } else { said };
        let Some(answer) = self.answers.get(at) else {
            let wanted = said + 1;
            let message = format!("the script holds {holds} answers, and this would be {wanted}");
            return Err(ModelError::new(ModelErrorKind::NoRecording, message));
        };
        answer.fail()?;
        let calls: Vec<ModelCall> = answer
            .calls
            .iter()
            .enumerate()
            .map(|(number, call)| call.made(said + 1, number + 1))
            .collect();
        let usage = answer.usage.map_or(Usage::default(), |usage| Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            ..Usage::default()
        });
        Ok(ModelAnswer {
            text: answer.text.clone(),
            reasoning: answer.reasoning.clone(),
            stop: if calls.is_empty() { Stop::End } else { Stop::ToolUse },
            calls,
            usage: usage.judged(),
            provider: self.id.clone(),
            model: request.model.clone(),
            carry: None,
            cost_micros: None,
        })
    }
}

impl ModelProvider for Script {
    fn id(&self) -> &str {
        &self.id
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let pace = Pace {
            first: Duration::from_millis(self.first_token_ms),
            token: Duration::from_millis(self.token_ms),
        };
        tell(self.next(&request), pace)
    }
}

impl ScriptedAnswer {
    /// The failure that comes first, as long as it does.
    fn fail(&self) -> Result<(), ModelError> {
        let Some(ScriptedError { kind, times, retry_after_seconds }) = &self.error else {
            return Ok(());
        };
        let more = |failed: u32| (failed < *times).then_some(failed + 1);
        if self.failed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return Ok(());
        }
        let retry_after = retry_after_seconds.map(Duration::from_secs);
        Err(ModelError { retry_after, ..ModelError::new(*kind, "the script says so") })
    }
}

impl ScriptedCall {
    fn made(&self, answer: usize, number: usize) -> ModelCall {
        let arguments = match &self.arguments {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let id = self.id.clone().unwrap_or_else(|| format!("call_{answer}_{number}"));
        ModelCall { id, name: self.name.clone(), arguments }
    }
}

fn no_arguments() -> Value {
    Value::Object(serde_json::Map::new())
}

fn once() -> u32 {
    1
}
