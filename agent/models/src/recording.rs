//! Recorded conversations: the input and output of a model, read from files.
//!
//! One JSON object per line, compressed with zstd if the name ends in `.zst`:
//!
//! ```text
//! {"id", "model"?, "messages": [{"role", "content", "tool_calls": [{"id", "name", "arguments"}]?,
//!                               "tool_call_id"?, "name"?, "error"?, "requestor"?}]}
//! ```
//!
//! Recordings have irregularities. They are handled as follows:
//! - `content` may be null next to calls: it becomes an empty text. A call's `id` may be null: it becomes an empty
//!   id.
//! - `arguments` is a text, JSON or not, and is kept unchanged.
//! - System messages at the beginning are the system prompt; later ones stay where they are.
//! - An unknown role (`subtask_creator`) is treated as a user.
//! - The model never saw the calls of the *user* and their results (`requestor` is `user`). They are omitted, and
//!   so is a user message without other content.
//! - Ids may be duplicated or missing, so a result is matched with a call by position and id:
//!   [`Conversation::results`].

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use abide_yaml::Position;
use ruzstd::decoding::StreamingDecoder;
use serde::Deserialize;

use crate::{ModelCall, ModelMessage};

/// A recorded conversation, as the model saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The name.
    pub id: String,
    /// The recorded model, if known.
    pub model: Option<String>,
    /// The system prompt, if recorded.
    pub system: Option<String>,
    /// The messages, oldest first.
    pub messages: Vec<ModelMessage>,
}

/// Why a recording or a script cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read file `{}`: {what}", path.display())]
pub struct RecordingError {
    path: PathBuf,
    what: String,
    position: Option<Position>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The file.
    pub path: PathBuf,
    /// The line and the column.
    pub position: Position,
}

impl RecordingError {
    pub(crate) fn new(path: &Path, what: impl Into<String>, position: Option<Position>) -> Self {
        Self { path: path.to_owned(), what: what.into(), position }
    }

    /// Returns the place of the wrong value, if the file has one.
    #[must_use]
    pub fn place(&self) -> Option<FilePlace> {
        self.position.map(|position| FilePlace { path: self.path.clone(), position })
    }
}

#[derive(Deserialize)]
struct Line {
    id: String,
    #[serde(default)]
    model: Option<String>,
    messages: Vec<RecordedMessage>,
}

#[derive(Deserialize)]
struct RecordedMessage {
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

/// Reads the conversations of a file.
///
/// # Errors
/// The file cannot be read, or a line is not a conversation.
pub fn read_conversations(path: &Path) -> Result<Vec<Conversation>, RecordingError> {
    let text = unpacked(path).map_err(|what| RecordingError::new(path, what, None))?;
    let mut conversations = Vec::new();
    for (number, line) in (1_u64..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let conversation = Conversation::from_json(line).map_err(|error| {
            let column = error.column().max(1) as u64;
            let position = Position { line: number, column };
            RecordingError::new(path, format!("line {number}: {error}"), Some(position))
        })?;
        conversations.push(conversation);
    }
    Ok(conversations)
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
    /// Parses a conversation from a line.
    ///
    /// # Errors
    /// The line is not a conversation.
    pub fn from_json(line: &str) -> Result<Self, serde_json::Error> {
        let Line { id, model, messages } = serde_json::from_str(line)?;
        let mut conversation = Self { id, model, system: None, messages: Vec::new() };
        for message in messages {
            conversation.push(message);
        }
        Ok(conversation)
    }

    /// Returns the number of answers.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.messages.iter().filter(|message| is_answer(message)).count()
    }

    /// Returns the results of the calls of the message at `at`: for each call the first later result with its id that
    /// is not used by another call, up to the next message with calls.
    #[must_use]
    pub fn results(&self, at: usize) -> Vec<Option<&ModelMessage>> {
        let Some(ModelMessage::Assistant { calls, .. }) = self.messages.get(at) else {
            return Vec::new();
        };
        let later = &self.messages[at + 1..];
        let until = later
            .iter()
            .position(|message| match message {
                ModelMessage::Assistant { calls, .. } => !calls.is_empty(),
                _ => false,
            })
            .unwrap_or(later.len());
        let mut open: Vec<&ModelMessage> = later[..until].iter().collect();
        let mut result = |call: &ModelCall| {
            let place = open.iter().position(|message| match message {
                ModelMessage::Tool { call_id, .. } => *call_id == call.id,
                _ => false,
            })?;
            Some(open.remove(place))
        };
        calls.iter().map(&mut result).collect()
    }

    fn push(&mut self, message: RecordedMessage) {
        let text = message.content.unwrap_or_default();
        let calls = message.tool_calls.unwrap_or_default();
        let message = match message.role.as_str() {
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
                let reasoning = None;
                let carry = None;
                ModelMessage::Assistant { text, reasoning, calls: calls.collect(), carry }
            }
            "tool" if message.requestor.as_deref() == Some("user") => return,
            "tool" => {
                let call_id = message.tool_call_id.unwrap_or_default();
                let name = message.name.unwrap_or_else(|| self.called(&call_id));
                let failed = message.error.is_some_and(|error| !error.is_null() && error != false);
                ModelMessage::Tool { call_id, name, content: text, is_error: failed }
            }
            _ if text.is_empty() && !calls.is_empty() => return,
            _ => ModelMessage::User { text },
        };
        self.messages.push(message);
    }

    /// Returns the tool of a result without a name: that of the last call with its id.
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

/// Joins two parts of a system prompt.
pub(crate) fn joined(first: Option<String>, then: String) -> String {
    first.map_or(then.clone(), |first| format!("{first}\n\n{then}"))
}
