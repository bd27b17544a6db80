//! What a client asks for when it subscribes. `subscription` is what it then has.

use abide_schema::{Code, Refusal, Seq};
use serde_json::{Map, Value as JsonValue};

/// A request for a subscription.
#[derive(Clone, Copy, Debug)]
pub struct SubscribeRequest<'a> {
    /// The caller's id for it.
    pub id: &'a str,
    /// One SELECT.
    pub sql: &'a str,
    /// Its parameters, by name without the sigil, or by number.
    pub params: &'a Map<String, JsonValue>,
    /// Where it starts.
    pub start: Start,
    /// The timeline of [`Start::After`]: the subscription starts with the whole result after `resync_required` if the
    /// file does not have that state, because it was restored from a backup or is another file. `None` trusts the seq.
    pub timeline: Option<&'a str>,
    /// Whether the result's checksum is sent with it and with each of its changes.
    pub checksum: bool,
    /// Whether the statements that produce its deltas are sent.
    pub explain: bool,
}

impl<'a> SubscribeRequest<'a> {
    /// Creates a request that starts now, without checksum and statements.
    #[must_use]
    pub fn new(
        id: &'a str,
        sql: &'a str,
        params: &'a Map<String, JsonValue>,
    ) -> SubscribeRequest<'a> {
        SubscribeRequest {
            id,
            sql,
            params,
            start: Start::Now,
            timeline: None,
            checksum: false,
            explain: false,
        }
    }

    /// Returns the bytes of the names and values of its parameters.
    pub(super) fn parameter_bytes(&self) -> usize {
        self.params.iter().map(|(name, value)| name.len() + bytes_of(value)).sum()
    }
}

/// Returns the approximate bytes of a value in memory.
fn bytes_of(value: &JsonValue) -> usize {
    let inner: usize = match value {
        JsonValue::String(text) => text.len(),
        JsonValue::Array(items) => items.iter().map(bytes_of).sum(),
        JsonValue::Object(members) => {
            members.iter().map(|(name, value)| name.len() + bytes_of(value)).sum()
        }
        JsonValue::Null | JsonValue::Bool(_) | JsonValue::Number(_) => 0,
    };
    size_of::<JsonValue>() + inner
}

/// Where a subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the whole result.
    Now,
    /// With the changes after this seq: the caller has the result as of it.
    After(Seq),
    /// With the result as of this seq, followed by the changes since.
    AsOf(Seq),
}

impl Start {
    /// Returns the start that the two fields of a message mean.
    ///
    /// # Errors
    /// `bad_request` if both are given.
    pub fn from_message(after_seq: Option<Seq>, as_of: Option<Seq>) -> Result<Start, Refusal> {
        match (after_seq, as_of) {
            (None, None) => Ok(Start::Now),
            (Some(after), None) => Ok(Start::After(after)),
            (None, Some(past)) => Ok(Start::AsOf(past)),
            (Some(_), Some(_)) => {
                let refusal =
                    Refusal::new(Code::BadRequest, "after_seq and as_of cannot be combined");
                Err(refusal.hint(
                    "after_seq: only later changes; as_of: the result then, and later changes",
                ))
            }
        }
    }
}
