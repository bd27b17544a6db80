//! Request ids: map a caller's id for a request to its calls, so that a retry is answered and
//! not run again; and rebuild that mapping in a replay of the log.
//!
//! The events of a request are consecutive in the log, each with the request's id. So they determine
//! the request, unless some calls of a batch were duplicates: those have no event. Such a batch ends with
//! a separate event, [`RECORD`], whose arguments contain the request's calls.

use abide_schema::event::{Event, Hash, Salt};
use abide_schema::id::forbidden_character;
use abide_schema::reducer::{Abort, Call, Caller, Context, Reply};
use abide_schema::{CallArguments, Code, Json, Refusal, Seq, limits};
use abide_store::RequestIdRow;
use serde_json::{Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use crate::commit::registry::{PreparedCall, RECORD};

const FINGERPRINT_TAG: &[u8] = b"abide.request.v1\n";

/// The caller's id for a unit.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    /// Hash over the reducers and their arguments, in order.
    pub(crate) fingerprint: Hash,
}

impl Request {
    /// Creates the request of these calls.
    ///
    /// # Errors
    /// `bad_request` if the id is empty, too long, or has a forbidden character.
    pub(crate) fn new(id: &str, calls: &[PreparedCall]) -> Result<Request, Refusal> {
        if id.is_empty() || id.len() > limits::NAME_BYTES {
            let detail = format!("a request id must have 1 to {} bytes", limits::NAME_BYTES);
            return Err(Refusal::new(Code::BadRequest, detail));
        }
        if let Some(c) = forbidden_character(id) {
            let detail =
                format!("a request id must not contain the character U+{:04X}", u32::from(c));
            return Err(Refusal::new(Code::BadRequest, detail).hint("use a UUID"));
        }
        let mut fingerprint = Fingerprint::default();
        calls.iter().for_each(|call| fingerprint.add(call));
        Ok(Request { id: id.to_owned(), fingerprint: fingerprint.finish() })
    }

    /// Returns its stored form, with the seq of each call and the salt of its last event.
    pub(crate) fn row(&self, caller: &Caller, seqs: &[Seq], salt: &Salt) -> RequestIdRow {
        RequestIdRow {
            caller: caller.principal().to_owned(),
            request_id: self.id.clone(),
            fingerprint: self.salted_fingerprint(salt),
            seqs: Json::from(json!(seqs)),
        }
    }

    /// Returns `true` if this is the request that was stored in this row.
    pub(crate) fn is_stored_in(&self, row: &RequestIdRow) -> bool {
        let salt = row.fingerprint.first_chunk();
        salt.is_some_and(|salt| self.salted_fingerprint(salt) == row.fingerprint)
    }

    /// Returns the salt, and a digest of salt and fingerprint. Without the salt a stored fingerprint would confirm a guess of
    /// the arguments after the event was erased.
    fn salted_fingerprint(&self, salt: &Salt) -> Vec<u8> {
        let digest = Sha256::new_with_prefix(FINGERPRINT_TAG)
            .chain_update(salt)
            .chain_update(self.fingerprint)
            .finalize();
        [salt.as_slice(), &digest].concat()
    }

    /// Returns the call whose event records it; see [`RECORD`].
    pub(crate) fn record(&self, seqs: &[Seq]) -> PreparedCall {
        record_call(&json!({"fingerprint": self.fingerprint, "seqs": seqs}))
    }
}

/// The hash over the calls so far.
#[derive(Debug, Default)]
struct Fingerprint(Sha256);

impl Fingerprint {
    fn add(&mut self, call: &PreparedCall) {
        self.0.update((call.reducer.len() as u64).to_be_bytes());
        self.0.update(call.reducer.as_bytes());
        self.0.update(call.digest);
    }

    fn finish(self) -> Hash {
        self.0.finalize().into()
    }
}

/// Returns the call of a [`RECORD`] event with these arguments. It writes no rows.
pub(crate) fn record_call(arguments: &JsonValue) -> PreparedCall {
    struct RecordRequest;
    impl Call for RecordRequest {
        fn run(self: Box<Self>, _: &mut Context<'_>) -> Result<Reply, Abort> {
            Ok(record_reply())
        }
    }
    fn decode(_: &CallArguments) -> Result<Box<dyn Call>, Refusal> {
        Ok(Box::new(RecordRequest))
    }
    let call = PreparedCall::new(RECORD, decode, CallArguments::from_value(arguments));
    call.expect("nothing is decoded")
}

/// Returns the reply of a [`RECORD`] call.
pub(crate) fn record_reply() -> Reply {
    Reply { result: "null".to_owned(), duplicate_of: None, refusal: None }
}

/// The arguments of a [`RECORD`] event are invalid.
#[derive(Debug)]
pub(crate) struct UnreadableRecord;

/// Rebuilds the request ids of a log from its events.
#[derive(Debug, Default)]
pub(crate) struct RequestIdRebuilder {
    open: Option<OpenRequest>,
}

/// A request of which more events may follow.
#[derive(Debug)]
struct OpenRequest {
    caller: Caller,
    id: String,
    fingerprint: Fingerprint,
    seqs: Vec<Seq>,
    /// The content of its [`RECORD`] event, if it has one.
    recorded: Option<RecordedRequest>,
    /// The salt of its last event so far.
    salt: Salt,
}

#[derive(Debug)]
struct RecordedRequest {
    fingerprint: Hash,
    seqs: Vec<Seq>,
}

impl RequestIdRebuilder {
    /// Processes the next event, made by this call of this caller. Returns the request that ended with the
    /// previous event.
    pub(crate) fn add(
        &mut self,
        event: &Event,
        caller: Caller,
        call: &PreparedCall,
    ) -> Result<Option<RequestIdRow>, UnreadableRecord> {
        let ended = if self.continues(event) { None } else { self.finish() };
        let Some(id) = &event.request_id else { return Ok(ended) };
        let open = self.open.get_or_insert_with(|| OpenRequest {
            caller,
            id: id.clone(),
            fingerprint: Fingerprint::default(),
            seqs: Vec::new(),
            recorded: None,
            salt: event.salt,
        });
        open.salt = event.salt;
        if call.reducer == RECORD {
            open.recorded = Some(read_record(&event.arguments).ok_or(UnreadableRecord)?);
        } else {
            open.fingerprint.add(call);
            open.seqs.push(event.seq);
        }
        Ok(ended)
    }

    /// Returns `true` if an event belongs to the request of the preceding events.
    pub(crate) fn continues(&self, event: &Event) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.caller.id() == event.caller
                && open.caller.authority() == event.authority.as_deref()
                && Some(&open.id) == event.request_id.as_ref()
        })
    }

    /// Returns the request of the last events, once no more of its events can follow.
    pub(crate) fn finish(&mut self) -> Option<RequestIdRow> {
        let OpenRequest { caller, id, fingerprint, seqs, recorded, salt } = self.open.take()?;
        let RecordedRequest { fingerprint, seqs } =
            recorded.unwrap_or_else(|| RecordedRequest { fingerprint: fingerprint.finish(), seqs });
        Some(Request { id, fingerprint }.row(&caller, &seqs, &salt))
    }

    /// Discards the request of the last events: the replay ends within it.
    pub(crate) fn forget(&mut self) {
        self.open = None;
    }
}

fn read_record(arguments: &str) -> Option<RecordedRequest> {
    let mut record: JsonValue = serde_json::from_str(arguments).ok()?;
    Some(RecordedRequest {
        fingerprint: serde_json::from_value(record["fingerprint"].take()).ok()?,
        seqs: serde_json::from_value(record["seqs"].take()).ok()?,
    })
}

/// Returns the seqs of a request id; none if they are unreadable.
pub(crate) fn seqs_of(row: &RequestIdRow) -> Vec<Seq> {
    row.event_seqs().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_record_is_an_error() {
        let take = |arguments: &JsonValue| {
            let call = record_call(arguments);
            let event = Event {
                seq: Seq(1),
                at: abide_schema::Micros(0),
                caller: "ann".to_owned(),
                authority: None,
                request_id: Some("r".to_owned()),
                session_id: None,
                reducer: RECORD.to_owned(),
                arguments: call.arguments.text().to_owned(),
                outcome: "null".to_owned(),
                salt: [0; 16],
                rows_hash: [6; 32],
                prev_hash: Hash::default(),
                hash: Hash::default(),
            };
            let mut rebuilder = RequestIdRebuilder::default();
            rebuilder
                .add(&event, Caller::new("ann"), &call)
                .map(|_| rebuilder.finish().map(|row| seqs_of(&row)))
        };
        let fingerprint: Hash = [7; 32];
        let good = take(&json!({"fingerprint": fingerprint, "seqs": [3, 9]}));
        assert_eq!(good.expect("it can be read"), Some(vec![Seq(3), Seq(9)]));
        for wrong in [
            json!({}),
            json!({"fingerprint": [1], "seqs": [3]}),
            json!({"fingerprint": fingerprint, "seqs": "3"}),
        ] {
            assert!(take(&wrong).is_err(), "{wrong}");
        }
    }
}
