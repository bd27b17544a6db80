//! The messages of `a2a.proto` in the encoding of Protocol Buffers, from and to their `ProtoJSON`. Only the messages that
//! requests and responses of this server use.

use abide_schema::limits::A2A_VALUES;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Number, Value as JsonValue, json};

use super::params::{field, format_time, parse_time};

/// The type of a field.
enum Type {
    Text,
    /// Base64 in JSON.
    Bytes,
    Bool,
    Int32,
    /// Names in the order of their numbers, from 0.
    Enum(&'static [&'static str]),
    Message(&'static [Field]),
    /// `google.protobuf.Struct`: an object.
    Struct,
    /// `google.protobuf.Value`: anything.
    Value,
    /// `google.protobuf.Timestamp`: a text.
    Timestamp,
    /// A map from texts to messages. Only written.
    Map(&'static [Field]),
}

/// A field of a message.
struct Field {
    number: u32,
    name: &'static str,
    kind: Type,
    is_list: bool,
}

const fn one(number: u32, name: &'static str, kind: Type) -> Field {
    Field { number, name, kind, is_list: false }
}

const fn list(number: u32, name: &'static str, kind: Type) -> Field {
    Field { number, name, kind, is_list: true }
}

const fn parts(number: u32) -> Field {
    list(number, "parts", Message(PART))
}

const fn metadata(number: u32) -> Field {
    one(number, "metadata", Struct)
}

const fn extensions(number: u32) -> Field {
    list(number, "extensions", Text)
}

/// A message: its fields.
#[derive(Clone, Copy)]
pub(super) struct MessageType(&'static [Field]);

use Type::{Bool, Bytes, Int32, Message, Struct, Text, Timestamp};

const STATES: Type = Type::Enum(&[
    "TASK_STATE_UNSPECIFIED",
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_REJECTED",
    "TASK_STATE_AUTH_REQUIRED",
]);
const ROLES: Type = Type::Enum(&["ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT"]);

const PART: &[Field] = &[
    one(1, "text", Text),
    one(2, "raw", Bytes),
    one(3, "url", Text),
    one(4, "data", Type::Value),
    metadata(5),
    one(6, "filename", Text),
    one(7, "mediaType", Text),
];
const MESSAGE: &[Field] = &[
    one(1, "messageId", Text),
    one(2, "contextId", Text),
    one(3, "taskId", Text),
    one(4, "role", ROLES),
    parts(5),
    metadata(6),
    extensions(7),
    list(8, "referenceTaskIds", Text),
];
const ARTIFACT: &[Field] = &[
    one(1, "artifactId", Text),
    one(2, "name", Text),
    one(3, "description", Text),
    parts(4),
    metadata(5),
    extensions(6),
];
const STATUS: &[Field] =
    &[one(1, "state", STATES), one(2, "message", Message(MESSAGE)), one(3, "timestamp", Timestamp)];
const TASK_FIELDS: &[Field] = &[
    one(1, "id", Text),
    one(2, "contextId", Text),
    one(3, "status", Message(STATUS)),
    list(4, "artifacts", Message(ARTIFACT)),
    list(5, "history", Message(MESSAGE)),
    metadata(6),
];
const STATUS_UPDATE: &[Field] = &[
    one(1, "taskId", Text),
    one(2, "contextId", Text),
    one(3, "status", Message(STATUS)),
    metadata(4),
];
const ARTIFACT_UPDATE: &[Field] = &[
    one(1, "taskId", Text),
    one(2, "contextId", Text),
    one(3, "artifact", Message(ARTIFACT)),
    one(4, "append", Bool),
    one(5, "lastChunk", Bool),
    metadata(6),
];
const AUTHENTICATION: &[Field] = &[one(1, "scheme", Text), one(2, "credentials", Text)];
const PUSH_CONFIG_FIELDS: &[Field] = &[
    one(1, "tenant", Text),
    one(2, "id", Text),
    one(3, "taskId", Text),
    one(4, "url", Text),
    one(5, "token", Text),
    one(6, "authentication", Message(AUTHENTICATION)),
];
const INTERFACE: &[Field] = &[
    one(1, "url", Text),
    one(2, "protocolBinding", Text),
    one(3, "tenant", Text),
    one(4, "protocolVersion", Text),
];
const CAPABILITIES: &[Field] = &[
    one(1, "streaming", Bool),
    one(2, "pushNotifications", Bool),
    one(4, "extendedAgentCard", Bool),
];
const SECURITY_SCHEME: &[Field] =
    &[one(2, "httpAuthSecurityScheme", Message(&[one(2, "scheme", Text)]))];
const SECURITY_REQUIREMENT: &[Field] = &[one(1, "schemes", Type::Map(&[list(1, "list", Text)]))];
const SKILL: &[Field] =
    &[one(1, "id", Text), one(2, "name", Text), one(3, "description", Text), list(4, "tags", Text)];
const SIGNATURE: &[Field] = &[one(1, "protected", Text), one(2, "signature", Text)];
const CONFIGURATION: &[Field] = &[
    list(1, "acceptedOutputModes", Text),
    one(2, "taskPushNotificationConfig", Message(PUSH_CONFIG_FIELDS)),
    one(3, "historyLength", Int32),
    one(4, "returnImmediately", Bool),
];

pub(super) const TASK: MessageType = MessageType(TASK_FIELDS);
pub(super) const SEND_REQUEST: MessageType = MessageType(&[
    one(1, "tenant", Text),
    one(2, "message", Message(MESSAGE)),
    one(3, "configuration", Message(CONFIGURATION)),
    metadata(4),
]);
/// Of `CancelTask`, `SubscribeToTask`, and, with the length, `GetTask`.
pub(super) const TASK_REQUEST: MessageType =
    MessageType(&[one(1, "tenant", Text), one(2, "id", Text)]);
pub(super) const GET_REQUEST: MessageType =
    MessageType(&[one(1, "tenant", Text), one(2, "id", Text), one(3, "historyLength", Int32)]);
pub(super) const LIST_REQUEST: MessageType = MessageType(&[
    one(1, "tenant", Text),
    one(2, "contextId", Text),
    one(3, "status", STATES),
    one(4, "pageSize", Int32),
    one(5, "pageToken", Text),
    one(6, "historyLength", Int32),
    one(7, "statusTimestampAfter", Timestamp),
    one(8, "includeArtifacts", Bool),
]);
pub(super) const LIST_RESPONSE: MessageType = MessageType(&[
    list(1, "tasks", Message(TASK_FIELDS)),
    one(2, "nextPageToken", Text),
    one(3, "pageSize", Int32),
    one(4, "totalSize", Int32),
]);
pub(super) const SEND_RESPONSE: MessageType =
    MessageType(&[one(1, "task", Message(TASK_FIELDS)), one(2, "message", Message(MESSAGE))]);
pub(super) const STREAM_RESPONSE: MessageType = MessageType(&[
    one(1, "task", Message(TASK_FIELDS)),
    one(2, "message", Message(MESSAGE)),
    one(3, "statusUpdate", Message(STATUS_UPDATE)),
    one(4, "artifactUpdate", Message(ARTIFACT_UPDATE)),
]);
pub(super) const PUSH_CONFIG: MessageType = MessageType(PUSH_CONFIG_FIELDS);
/// To read a configuration, or to delete it.
pub(super) const PUSH_CONFIG_REQUEST: MessageType =
    MessageType(&[one(1, "tenant", Text), one(2, "taskId", Text), one(3, "id", Text)]);
pub(super) const PUSH_CONFIGS_REQUEST: MessageType =
    MessageType(&[one(1, "taskId", Text), one(4, "tenant", Text)]);
pub(super) const PUSH_CONFIGS: MessageType =
    MessageType(&[list(1, "configs", Message(PUSH_CONFIG_FIELDS)), one(2, "nextPageToken", Text)]);
pub(super) const EMPTY: MessageType = MessageType(&[]);
pub(super) const CARD: MessageType = MessageType(&[
    one(1, "name", Text),
    one(2, "description", Text),
    list(3, "supportedInterfaces", Message(INTERFACE)),
    one(5, "version", Text),
    one(7, "capabilities", Message(CAPABILITIES)),
    one(8, "securitySchemes", Type::Map(SECURITY_SCHEME)),
    list(9, "securityRequirements", Message(SECURITY_REQUIREMENT)),
    list(10, "defaultInputModes", Text),
    list(11, "defaultOutputModes", Text),
    list(12, "skills", Message(SKILL)),
    list(13, "signatures", Message(SIGNATURE)),
]);
/// Of a request of which the other fields do not matter.
pub(super) const TENANT: MessageType = MessageType(&[one(1, "tenant", Text)]);

impl MessageType {
    /// Encodes a message. Fields that it does not have, and values of another type, are omitted.
    pub(super) fn encode(self, message: &JsonValue) -> Vec<u8> {
        let mut out = Vec::new();
        write_fields(self.0, message, &mut out);
        out
    }

    /// Decodes a message.
    pub(super) fn decode(self, bytes: &[u8]) -> Result<JsonValue, NotDecoded> {
        let mut left = FIELDS;
        match read_message(self.0, bytes, DEPTH, &mut left) {
            Some(message) => Ok(message),
            None if left == 0 => Err(NotDecoded::TooManyFields),
            None => Err(NotDecoded::Malformed),
        }
    }
}

fn write_fields(types: &[Field], message: &JsonValue, out: &mut Vec<u8>) {
    for Field { number, name, kind, is_list } in types {
        match (is_list, field(message, name)) {
            (_, JsonValue::Null) => {}
            (true, values) => {
                for value in values.as_array().into_iter().flatten() {
                    write_value(kind, *number, value, out);
                }
            }
            (false, value) => write_value(kind, *number, value, out),
        }
    }
}

fn write_value(kind: &Type, number: u32, value: &JsonValue, out: &mut Vec<u8>) {
    match kind {
        Text => write_bytes(number, value.as_str().unwrap_or_default().as_bytes(), out),
        Bytes => {
            let bytes = BASE64_STANDARD.decode(value.as_str().unwrap_or_default());
            write_bytes(number, &bytes.unwrap_or_default(), out);
        }
        Bool => write_number(number, u64::from(value == &JsonValue::Bool(true)), out),
        // Sign-extended, as the encoding wants.
        Int32 => write_number(number, value.as_i64().unwrap_or_default().cast_unsigned(), out),
        Type::Enum(names) => {
            let position = names.iter().position(|name| value == *name);
            write_number(number, position.unwrap_or_default() as u64, out);
        }
        Message(types) => write_nested(number, out, |out| write_fields(types, value, out)),
        Type::Map(types) => {
            for (name, value) in value.as_object().into_iter().flatten() {
                write_nested(number, out, |out| {
                    write_bytes(1, name.as_bytes(), out);
                    write_nested(2, out, |out| write_fields(types, value, out));
                });
            }
        }
        Struct => write_nested(number, out, |out| write_struct(value, out)),
        Type::Value => write_nested(number, out, |out| write_json(value, out)),
        Timestamp => write_nested(number, out, |out| {
            let micros = value.as_str().and_then(parse_time).unwrap_or_default();
            write_number(1, micros.div_euclid(1_000_000).cast_unsigned(), out);
            write_number(2, (micros.rem_euclid(1_000_000) * 1_000).cast_unsigned(), out);
        }),
    }
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn write_number(number: u32, value: u64, out: &mut Vec<u8>) {
    write_varint(u64::from(number) << 3, out);
    write_varint(value, out);
}

pub(super) fn write_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    write_varint(u64::from(number) << 3 | 2, out);
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn write_nested(number: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    write_bytes(number, &inner, out);
}

fn write_struct(value: &JsonValue, out: &mut Vec<u8>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        write_nested(1, out, |out| {
            write_bytes(1, name.as_bytes(), out);
            write_nested(2, out, |out| write_json(value, out));
        });
    }
}

fn write_json(value: &JsonValue, out: &mut Vec<u8>) {
    match value {
        JsonValue::Null => write_number(1, 0, out),
        JsonValue::Number(number) => {
            write_varint(2 << 3 | 1, out);
            out.extend_from_slice(&number.as_f64().unwrap_or_default().to_le_bytes());
        }
        JsonValue::String(text) => write_bytes(3, text.as_bytes(), out),
        JsonValue::Bool(flag) => write_number(4, u64::from(*flag), out),
        JsonValue::Object(_) => write_nested(5, out, |out| write_struct(value, out)),
        JsonValue::Array(values) => write_nested(6, out, |out| {
            for value in values {
                write_nested(1, out, |out| write_json(value, out));
            }
        }),
    }
}

/// Why bytes are not decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotDecoded {
    /// They are not a message of the type.
    Malformed,
    TooManyFields,
}

/// Fields that are read. The value of a list is two fields.
pub(super) const FIELDS: usize = 2 * A2A_VALUES;

/// Levels of nesting that are read, as in JSON.
const DEPTH: usize = 100;

/// A field as it was sent.
enum Sent<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

/// Takes the next field of a message: its number and its value. `left` is the number of fields that may follow.
fn read_field<'a>(rest: &mut &'a [u8], left: &mut usize) -> Option<(u32, Sent<'a>)> {
    *left = left.checked_sub(1)?;
    let tag = read_varint(rest)?;
    let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0)?;
    let sent = match tag & 7 {
        0 => Sent::Varint(read_varint(rest)?),
        1 => Sent::Fixed(u64::from_le_bytes(take_bytes(rest, 8)?.try_into().ok()?)),
        2 => {
            let length = usize::try_from(read_varint(rest)?).ok()?;
            Sent::Bytes(take_bytes(rest, length)?)
        }
        5 => Sent::Fixed(u64::from(u32::from_le_bytes(take_bytes(rest, 4)?.try_into().ok()?))),
        _ => return None,
    };
    Some((number, sent))
}

fn take_bytes<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take_bytes(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn read_message(
    types: &[Field],
    mut rest: &[u8],
    depth: usize,
    left: &mut usize,
) -> Option<JsonValue> {
    let depth = depth.checked_sub(1)?;
    let mut message = Map::new();
    while !rest.is_empty() {
        let (number, sent) = read_field(&mut rest, left)?;
        let Some(Field { name, kind, is_list, .. }) =
            types.iter().find(|field| field.number == number)
        else {
            continue;
        };
        let value = read_value(kind, &sent, depth, left)?;
        if !is_list {
            message.insert((*name).to_owned(), value);
        } else if let Some(values) =
            message.entry(*name).or_insert_with(|| json!([])).as_array_mut()
        {
            values.push(value);
        }
    }
    Some(message.into())
}

fn read_value(kind: &Type, sent: &Sent<'_>, depth: usize, left: &mut usize) -> Option<JsonValue> {
    Some(match (kind, sent) {
        (Text, Sent::Bytes(bytes)) => json!(std::str::from_utf8(bytes).ok()?),
        (Bytes, Sent::Bytes(bytes)) => json!(BASE64_STANDARD.encode(bytes)),
        (Bool, Sent::Varint(value)) => json!(*value != 0),
        (Int32, Sent::Varint(value)) => json!(*value as i32),
        (Type::Enum(names), Sent::Varint(value)) => {
            let name = usize::try_from(*value).ok().and_then(|value| names.get(value));
            name.map_or_else(|| json!(value), |name| json!(name))
        }
        (Message(types), Sent::Bytes(bytes)) => read_message(types, bytes, depth, left)?,
        (Struct, Sent::Bytes(bytes)) => read_struct(bytes, depth, left)?,
        (Type::Value, Sent::Bytes(bytes)) => read_json(bytes, depth, left)?,
        (Timestamp, Sent::Bytes(bytes)) => {
            let mut rest = *bytes;
            let mut seconds = 0_i64;
            let mut nanos = 0_i64;
            while !rest.is_empty() {
                match read_field(&mut rest, left)? {
                    (1, Sent::Varint(value)) => seconds = value.cast_signed(),
                    (2, Sent::Varint(value)) => nanos = value.cast_signed(),
                    _ => {}
                }
            }
            // The years 1 to 9999.
            let seconds =
                Some(seconds).filter(|it| (-62_135_596_800..253_402_300_800).contains(it))?;
            json!(format_time(seconds * 1_000_000 + nanos.clamp(0, 999_999_999) / 1_000))
        }
        _ => return None,
    })
}

fn read_struct(mut rest: &[u8], depth: usize, left: &mut usize) -> Option<JsonValue> {
    let depth = depth.checked_sub(1)?;
    let mut object = Map::new();
    while !rest.is_empty() {
        let (1, Sent::Bytes(mut entry)) = read_field(&mut rest, left)? else { continue };
        let mut name = "";
        let mut value = JsonValue::Null;
        while !entry.is_empty() {
            match read_field(&mut entry, left)? {
                (1, Sent::Bytes(bytes)) => name = std::str::from_utf8(bytes).ok()?,
                (2, Sent::Bytes(bytes)) => value = read_json(bytes, depth, left)?,
                _ => {}
            }
        }
        object.insert(name.to_owned(), value);
    }
    Some(object.into())
}

fn read_json(mut rest: &[u8], depth: usize, left: &mut usize) -> Option<JsonValue> {
    let depth = depth.checked_sub(1)?;
    let mut value = JsonValue::Null;
    while !rest.is_empty() {
        value = match read_field(&mut rest, left)? {
            (1, Sent::Varint(_)) => JsonValue::Null,
            (2, Sent::Fixed(bits)) => number_to_json(f64::from_bits(bits))?,
            (3, Sent::Bytes(bytes)) => json!(std::str::from_utf8(bytes).ok()?),
            (4, Sent::Varint(flag)) => json!(flag != 0),
            (5, Sent::Bytes(bytes)) => read_struct(bytes, depth, left)?,
            (6, Sent::Bytes(mut list)) => {
                let mut values = Vec::new();
                while !list.is_empty() {
                    if let (1, Sent::Bytes(bytes)) = read_field(&mut list, left)? {
                        values.push(read_json(bytes, depth, left)?);
                    }
                }
                values.into()
            }
            _ => value,
        };
    }
    Some(value)
}

/// Returns a number of JSON: whole numbers have no fraction. `None` if it is not finite.
fn number_to_json(value: f64) -> Option<JsonValue> {
    /// The largest number below which all whole numbers are exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        return Some(json!(value as i64));
    }
    Number::from_f64(value).map(JsonValue::Number)
}

#[cfg(test)]
mod tests;
