//! Recorded conversations: what a model was told and what it said, read from files.
//!
//! One JSON object a line, packed by zstd where the name ends in `.zst`:
//!
//! ```text
//! {"id", "model"?, "messages": [{"role", "content", "tool_calls": [{"id", "name", "arguments"}]?,
//!                               "tool_call_id"?, "name"?, "error"?, "requestor"?}]}
//! ```
//!
//! Recordings are odd, and here is what becomes of it:
//! - `content` may be null where calls are made: an empty text. A call's `id` may be null: an empty id.
//! - `arguments` is a text, JSON or not, and stays that text.
//! - System messages at the beginning are the system prompt; later ones stay where they are.
//! - A role that is none of ours (`subtask_creator`) speaks to the model: it counts as a user.
//! - What the *user* calls, and what it gets for it (`requestor` is `user`), the model never saw: it is
//!   left out, and so is a message of the user that holds nothing else.
//! - A result pairs with a call by place and id together, since ids come twice or not at all:
//!   [`Conversation::results`].

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use ruzstd::decoding::StreamingDecoder;
use serde::Deserialize;

use crate::{ModelCall, ModelMessage};

/// A recorded conversation, as a model saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Its name.
    pub id: String,
    /// The model that was recorded, as far as is known.
    pub model: Option<String>,
    /// What stood above it; none if that was not recorded.
    pub system: Option<String>,
    /// What was said, oldest first.
    pub messages: Vec<ModelMessage>,
}

/// Why recordings, or a script, cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the file `{path}` cannot be read: {what}")]
pub struct RecordingError {
    path: String,
    what: String,
}

impl RecordingError {
    pub(crate) fn new(path: &Path, what: impl Into<String>) -> Self {
        Self { path: path.display().to_string(), what: what.into() }
    }
}

#[derive(Deserialize)]
struct Line {
    id: String,
    #[serde(default)]
    model: Option<String>,
    messages: Vec<Said>,
}

#[derive(Deserialize)]
struct Said {
    role: String,
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<Call>>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    error: Option<serde_json::Value>,
    #[serde(default)]
    requestor: Option<String>,
}

#[derive(Deserialize)]
struct Call {
    id: Option<String>,
    name: String,
    arguments: String,
}

/// The conversations of a file.
///
/// # Errors
/// The file cannot be read, or a line is no conversation.
pub fn read_conversations(path: &Path) -> Result<Vec<Conversation>, RecordingError> {
    let wrong = |what: String| RecordingError::new(path, what);
    let text = unpacked(path).map_err(wrong)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let conversation = |(at, line): (usize, &str)| {
        Conversation::from_json(line).map_err(|error| wrong(format!("line {}: {error}", at + 1)))
    };
    lines.map(conversation).collect()
}

fn unpacked(path: &Path) -> Result<String, String> {
    let mut file = BufReader::new(File::open(path).map_err(|error| error.to_string())?);
    let mut text = String::new();
    let read = if path.extension().is_some_and(|extension| extension == "zst") {
        let decoder = StreamingDecoder::new(file).map_err(|error| error.to_string());
        decoder?.read_to_string(&mut text)
    } else {
        file.read_to_string(&mut text)
    };
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

impl Conversation {
    /// A conversation from its line.
    ///
    /// # Errors
    /// It is none.
    pub fn from_json(line: &str) -> Result<Self, serde_json::Error> {
        let Line { id, model, messages } = serde_json::from_str(line)?;
        let mut conversation = Self { id, model, system: None, messages: Vec::new() };
        for said in messages {
            conversation.push(said);
        }
        Ok(conversation)
    }

    /// How many answers it holds.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.messages.iter().filter(|message| is_answer(message)).count()
    }

    /// The results of the calls of the message at `at`, call by call: the first later result that has
    /// the call's id and is no other call's, up to the next message that makes calls.
    #[must_use]
    pub fn results(&self, at: usize) -> Vec<Option<&ModelMessage>> {
        let Some(ModelMessage::Assistant { calls, .. }) = self.messages.get(at) else {
            return Vec::new();
        };
        let later = &self.messages[at + 1..];
        let calls_again = |message: &ModelMessage| match message {
            ModelMessage::Assistant { calls, .. } => !calls.is_empty(),
            _ => false,
        };
        let until = later.iter().position(calls_again).unwrap_or(later.len());
        let mut open: Vec<&ModelMessage> = later[..until].iter().collect();
        let answers = |call: &ModelCall, message: &ModelMessage| match message {
            ModelMessage::Tool { call_id, .. } => *call_id == call.id,
            _ => false,
        };
        let mut result = |call| {
            let place = open.iter().position(|message| answers(call, message))?;
            Some(open.remove(place))
        };
        calls.iter().map(&mut result).collect()
    }

    fn push(&mut self, said: Said) {
        let text = said.content.unwrap_or_default();
        let calls = said.tool_calls.unwrap_or_default();
        let message = match said.role.as_str() {
            "system" if self.messages.is_empty() => {
                self.system = Some(joined(self.system.take(), text));
                return;
            }
            "system" => ModelMessage::System { text },
            "assistant" => {
                let calls = calls.into_iter().map(|call| ModelCall {
                    id: call.id.unwrap_or_default(),
                    name: call.name,
                    arguments: call.arguments,
                });
                let (reasoning, carry) = (None, None);
                ModelMessage::Assistant { text, reasoning, calls: calls.collect(), carry }
            }
            "tool" if said.requestor.as_deref() == Some("user") => return,
            "tool" => {
                let call_id = said.tool_call_id.unwrap_or_default();
                let name = said.name.unwrap_or_else(|| self.called(&call_id));
                let failed = said.error.is_some_and(|error| !error.is_null() && error != false);
                ModelMessage::Tool { call_id, name, content: text, is_error: failed }
            }
            _ if text.is_empty() && !calls.is_empty() => return,
            _ => ModelMessage::User { text },
        };
        self.messages.push(message);
    }

    /// The tool that a result without a name is of: that of the last call with its id.
    fn called(&self, id: &str) -> String {
        let calls = self.messages.iter().rev().filter_map(|message| match message {
            ModelMessage::Assistant { calls, .. } => Some(calls.iter()),
            _ => None,
        });
        let call = calls.flatten().find(|call| call.id == id);
        call.map(|call| call.name.clone()).unwrap_or_default()
    }
}

pub(crate) fn is_answer(message: &ModelMessage) -> bool {
    matches!(message, ModelMessage::Assistant { .. })
}

/// Two parts of a system prompt as one.
pub(crate) fn joined(first: Option<String>, then: String) -> String {
    first.map_or(then.clone(), |first| format!("{first}\n\n{then}"))
}
