//! Parses text messages: decides whether a text is a message of `abide.v1`, and what the refusal of another one says.
//!
//! The arguments of a call become [`CallArguments`] while the message is parsed. Whether they fit the reducer is decided
//! by the engine, because this module knows no reducer.

use abide_schema::limits::{MESSAGE_BYTES, NAME_BYTES};
use abide_schema::wire::ClientMessage;
use abide_schema::{CallArguments, Code, Refusal, integers, json_values};
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value as JsonValue;

/// Each op, with an example message.
const OPS: [(&str, &str); 9] = [
    ("subscribe", r#"{"op":"subscribe","id":"q1","sql":"SELECT …","params":{…},"after_seq":40}"#),
    ("unsubscribe", r#"{"op":"unsubscribe","id":"q1"}"#),
    ("call", r#"{"op":"call","id":"c1","reducer":"…","args":{…},"request_id":"…"}"#),
    ("batch", r#"{"op":"batch","id":"b1","calls":[{"reducer":"…","args":{…}},…]}"#),
    ("sql", r#"{"op":"sql","id":"s1","sql":"SELECT …","params":{…},"as_of":40}"#),
    ("explain", r#"{"op":"explain","id":"e1","sql":"SELECT …","params":{…}}"#),
    ("cancel", r#"{"op":"cancel","id":"s1"}"#),
    ("ack", r#"{"op":"ack","seq":42}"#),
    ("ping", r#"{"op":"ping"}"#),
];

/// A message whose calls have their arguments in the form that the engine takes.
pub(super) type ReadMessage = ClientMessage<CallArguments>;

/// Parses a message.
///
/// # Errors
/// The refusal, with the id of the message if that can be parsed: the text is too large, has too many values, is no JSON
/// object, is not one of the ops, or has an integer beyond 64 bits or an id that is too long.
pub fn read(text: &str) -> Result<ReadMessage, (Option<String>, Refusal)> {
    if text.len() > MESSAGE_BYTES {
        let id = serde_json::from_str::<MessageId>(text).ok().map(|named| named.id);
        return Err((id.filter(|id| id.len() <= NAME_BYTES), too_large()));
    }
    json_values::check(text).map_err(|refusal| {
        let id = serde_json::from_str::<MessageId>(text).ok().map(|named| named.id);
        (id.filter(|id| id.len() <= NAME_BYTES), refusal)
    })?;
    // Serde would also accept an array, its items as the fields in order.
    let object = text.trim_ascii_start().starts_with('{');
    let message = if object {
        serde_json::from_str(text)
    } else {
        Err(serde_json::Error::custom("no object"))
    };
    let message = message.map_err(|why| explain_unreadable(text, &why))?;
    if let Err(refusal) = check_values(&message, text) {
        let id = message_id(&message).filter(|id| id.len() <= NAME_BYTES);
        return Err((id.map(str::to_owned), refusal));
    }
    match message_id(&message) {
        // It is repeated in every reply and every delta.
        Some(id) if id.len() > NAME_BYTES => {
            let detail = format!("the id has {} bytes; the limit is {NAME_BYTES}", id.len());
            Err((None, Refusal::new(Code::LimitExceeded, detail).hint("number them: q1, q2, …")))
        }
        _ => Ok(message),
    }
}

/// The part of a refused message that is parsed.
#[derive(Deserialize)]
struct MessageId {
    id: String,
}

pub(super) fn too_large() -> Refusal {
    let detail = format!("the message is larger than {MESSAGE_BYTES} bytes");
    Refusal::new(Code::LimitExceeded, detail)
        .hint("split it, or store large content elsewhere and append a reference to it")
}

/// Refuses an integer beyond signed 64 bits, and a reserved name. Arguments of calls have noted them while they were parsed (the
/// engine refuses the name); the parameters of the other ops have not.
fn check_values(message: &ReadMessage, text: &str) -> Result<(), Refusal> {
    let has_large_number = match message {
        ClientMessage::Call { args, .. } => args.has_large_number(),
        ClientMessage::Batch { calls, .. } => calls.iter().any(|call| call.args.has_large_number()),
        _ => {
            integers::check_names(text)?;
            true
        }
    };
    if has_large_number {
        integers::check(text)?;
    }
    Ok(())
}

fn message_id(message: &ReadMessage) -> Option<&str> {
    match message {
        ClientMessage::Subscribe { id, .. }
        | ClientMessage::Unsubscribe { id }
        | ClientMessage::Call { id, .. }
        | ClientMessage::Batch { id, .. }
        | ClientMessage::Sql { id, .. }
        | ClientMessage::Explain { id, .. }
        | ClientMessage::Cancel { id } => Some(id),
        ClientMessage::Ack { .. } | ClientMessage::Ping => None,
    }
}

fn explain_unreadable(text: &str, why: &serde_json::Error) -> (Option<String>, Refusal) {
    let object = match serde_json::from_str(text) {
        Ok(JsonValue::Object(object)) => object,
        Ok(_) => {
            let refusal = Refusal::new(Code::BadRequest, "the message is not a JSON object");
            return (None, refusal.hint("abide.v1 is one JSON object per text message"));
        }
        Err(why) => {
            if let Err(found) = integers::check_surrogates(text) {
                let id = serde_json::from_str::<MessageId>(&integers::readable(text.as_bytes()));
                let id = id.ok().map(|named| named.id).filter(|id| id.len() <= NAME_BYTES);
                return (id, found.into());
            }
            let detail = format!("the message is not JSON: {why}");
            let refusal = Refusal::new(Code::BadRequest, detail);
            return (None, refusal.hint("abide.v1 is one JSON object per text message"));
        }
    };
    let id = object.get("id").and_then(JsonValue::as_str).filter(|id| id.len() <= NAME_BYTES);
    let given = object.get("op").and_then(JsonValue::as_str);
    let known = given.and_then(|given| OPS.iter().find(|(op, _)| *op == given));
    let refusal = match (known, given) {
        (Some((op, looks)), _) => Refusal::new(Code::BadRequest, format!("{op}: {why}"))
            .hint(format!("send a message like {looks}")),
        (None, given) => {
            let names = OPS.map(|(op, _)| op).join(", ");
            let detail = given.map_or_else(
                || "the message has no op".to_owned(),
                |given| format!("unknown op {given:?}"),
            );
            Refusal::new(Code::BadRequest, detail).hint(format!("\"op\" is one of {names}"))
        }
    };
    (id.map(str::to_owned), refusal)
}
