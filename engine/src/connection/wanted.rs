//! A subscription as it is asked for.

use abide_schema::{Code, Refusal, Seq};
use serde_json::{Map, Value as JsonValue};

/// A subscription as it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The caller's name for it.
    pub id: &'a str,
    /// One SELECT.
    pub sql: &'a str,
    /// Its parameters, by name without the sigil, or by number.
    pub params: &'a Map<String, JsonValue>,
    /// Where it starts.
    pub start: Start,
    /// Whether the result's checksum is told with it and with each of its changes.
    pub checksum: bool,
    /// Whether the statements that make its deltas are told.
    pub explain: bool,
}

impl<'a> Wanted<'a> {
    /// From now on, with nothing told beside the rows.
    #[must_use]
    pub fn new(id: &'a str, sql: &'a str, params: &'a Map<String, JsonValue>) -> Wanted<'a> {
        Wanted { id, sql, params, start: Start::Now, checksum: false, explain: false }
    }
}

/// Where a subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the whole result.
    Now,
    /// With what changed after this seq: the caller has the result as it was then.
    After(Seq),
    /// With the result as it was after this seq, and then what changed since.
    AsOf(Seq),
}

impl Start {
    /// From the two fields of a message.
    ///
    /// # Errors
    /// `bad_request` where both are given.
    pub fn of(from: Option<Seq>, as_of: Option<Seq>) -> Result<Start, Refusal> {
        match (from, as_of) {
            (None, None) => Ok(Start::Now),
            (Some(from), None) => Ok(Start::After(from)),
            (None, Some(past)) => Ok(Start::AsOf(past)),
            (Some(_), Some(_)) => {
                let refusal = Refusal::new(Code::BadRequest, "both from and as_of are given");
                Err(refusal.hint("from: what changed since; as_of: the result of then, too"))
            }
        }
    }
}
