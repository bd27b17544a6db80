//! Parts of request bodies that several protocols share.

use std::borrow::Cow;

use abide_json_integers as integers;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::ModelRequest;

/// Returns the arguments of an earlier call for a protocol that requires an object. Other values, and those whose
/// integers would lose digits, are passed unchanged in the field `unparsed`. If they were omitted, the model could not
/// see its mistake.
pub(super) fn arguments_object(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(object)) if integers::check(arguments).is_ok() => Value::Object(object),
        _ if arguments.trim().is_empty() => json!({}),
        _ => json!({ "unparsed": arguments }),
    }
}

/// Returns the arguments of an earlier call for a protocol that transports them as text. Servers parse the text and
/// refuse the whole request if it is no object: so such a text is sent as [`arguments_object`] wraps it. What can be
/// parsed is sent as the model wrote it.
pub(super) fn arguments_object_text(arguments: &str) -> Cow<'_, str> {
    if serde_json::from_str::<Map<String, Value>>(arguments).is_ok() {
        Cow::Borrowed(arguments)
    } else {
        Cow::Owned(arguments_object(arguments).to_string())
    }
}

/// Returns the system prompt and all system messages, for a protocol that supports only the former.
pub(super) fn all_instructions(request: &ModelRequest) -> Option<String> {
    let amid = request.messages.iter().filter_map(|message| match message {
        crate::ModelMessage::System { text } => Some(text.as_str()),
        _ => None,
    });
    let all: Vec<&str> = request.system.as_deref().into_iter().chain(amid).collect();
    (!all.is_empty()).then(|| all.join("\n\n"))
}

/// Sets a field if there is a value.
pub(super) fn set<T: Serialize>(body: &mut Map<String, Value>, field: &str, value: Option<T>) {
    if let Some(value) = value {
        body.insert(field.to_owned(), json!(value));
    }
}

/// Merges consecutive messages of one role, for protocols in which user and model must alternate. The second part
/// is the list of contents.
pub(super) fn take_turns(
    contents: impl IntoIterator<Item = (&'static str, Vec<Value>)>,
) -> Vec<(&'static str, Vec<Value>)> {
    let mut turns: Vec<(&'static str, Vec<Value>)> = Vec::new();
    for (role, mut content) in contents {
        match turns.last_mut() {
            Some((last, contents)) if *last == role => contents.append(&mut content),
            _ if content.is_empty() => {}
            _ => turns.push((role, content)),
        }
    }
    turns
}
