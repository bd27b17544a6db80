//! The engine's own tables, declared like any other.

use abide_schema::event::{Event, Hash};
use abide_schema::{Micros, Row, Seq, Table as _, TableSpec, Value, table};

/// Also rejects `REPLACE INTO events`: SQLite removes the old row of a REPLACE without firing the
/// trigger on DELETE.
const APPENDED: &str = "CREATE TRIGGER events_appended BEFORE INSERT ON events
WHEN NEW.seq <> 1 + (SELECT coalesce(max(seq), 0) FROM events)
BEGIN SELECT RAISE(FAIL, 'denied: the log grows by its next number only'); END";

/// The append-only log: one row for every call with an effect, chained by hash.
#[table(
    name = "events",
    index(session_id, where = "session_id IS NOT NULL"),
    trigger = APPENDED,
    trigger = "CREATE TRIGGER events_no_update BEFORE UPDATE ON events
BEGIN SELECT RAISE(FAIL, 'denied: the log is append-only'); END",
    trigger = "CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN SELECT RAISE(FAIL, 'denied: the log is append-only'); END"
)]
pub struct EventRow {
    /// Its position: 1, 2, 3 … without gaps.
    #[column(key)]
    pub seq: Seq,
    /// The time of the call.
    pub at: Micros,
    /// The session of the call.
    pub session_id: Option<String>,
    /// The reducer.
    pub reducer: String,
    /// The caller's id.
    pub caller: String,
    /// The caller's request id of the call.
    pub request_id: Option<String>,
    /// The arguments, canonical JSON.
    pub arguments: String,
    /// The result as returned, JSON; a long argument that it repeats is only marked.
    pub outcome: String,
    /// The hash of the previous event.
    pub prev_hash: Vec<u8>,
    /// The hash of this event.
    pub hash: Vec<u8>,
    /// The caller's restrictions: role, capabilities and scope, canonical JSON. NULL if there were
    /// none.
    pub authority: Option<String>,
    /// Random bytes that blind the hash.
    pub salt: Vec<u8>,
    /// The digest of the rows that the call has written.
    pub rows_hash: Vec<u8>,
}

/// The events of a request id, so that a retry returns the same result without running again.
#[table(name = "request_ids", without_rowid)]
pub struct RequestIdRow {
    /// The owner of the id: the caller's id, followed by a tab and the scope if there is one.
    #[column(key)]
    pub caller: String,
    /// The id.
    #[column(key)]
    pub request_id: String,
    /// A salt of 16 bytes and a SHA-256 of it and of the request, to detect a different request under the same id.
    pub fingerprint: Vec<u8>,
    /// The seq of each call's event, in order, as a JSON array.
    pub seqs: abide_schema::Json,
}

impl RequestIdRow {
    /// Returns the seq of each call's event; `None` if the column has anything else.
    #[must_use]
    pub fn event_seqs(&self) -> Option<Vec<Seq>> {
        serde_json::from_value(self.seqs.value()).ok()
    }
}

/// The rows that a commit overwrote in one table: the undo images for resume and time travel.
#[table(name = "change_log", without_rowid)]
pub struct ChangeLogRow {
    /// The last event of the commit. First in the key, so that a commit writes one page of this
    /// table however many tables it changed.
    #[column(key)]
    pub seq: Seq,
    /// The table that changed.
    #[column(key)]
    pub table_name: String,
    /// The last event before the commit. There is no state between the two.
    pub from_seq: Seq,
    /// The old images, see `abide_store::change_log`.
    pub images: Vec<u8>,
}

/// Metadata of the file.
#[table(name = "meta", without_rowid)]
pub(crate) struct MetaRow {
    /// The key: `log_id`, `timelines`, `change_log_floor`, `last_step`,
    /// `module.<name>`.
    #[column(key)]
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: String,
}

/// The engine's tables, in order of creation.
pub(crate) fn tables() -> [&'static TableSpec; 4] {
    [EventRow::SPEC, RequestIdRow::SPEC, ChangeLogRow::SPEC, MetaRow::SPEC]
}

/// An event as a row of `events`.
#[must_use]
pub fn event_row(event: &Event) -> Row {
    let row = EventRow {
        seq: event.seq,
        at: event.at,
        session_id: event.session_id.clone(),
        reducer: event.reducer.clone(),
        caller: event.caller.clone(),
        request_id: event.request_id.clone(),
        arguments: event.arguments.clone(),
        outcome: event.outcome.clone(),
        prev_hash: event.prev_hash.to_vec(),
        hash: event.hash.to_vec(),
        authority: event.authority.clone(),
        salt: event.salt.to_vec(),
        rows_hash: event.rows_hash.to_vec(),
    };
    Row::from(row.into_row())
}

/// Decodes the event of a row; `None` if the row is not valid.
pub(crate) fn decode_event(cells: &[Value]) -> Option<Event> {
    let [
        seq,
        at,
        session_id,
        reducer,
        caller,
        request_id,
        arguments,
        outcome,
        prev_hash,
        hash,
        authority,
        salt,
        rows_hash,
    ] = cells
    else {
        return None;
    };
    Some(Event {
        seq: Seq(read_integer(seq)?),
        at: Micros(read_integer(at)?),
        session_id: read_optional_text(session_id)?,
        reducer: read_text(reducer)?,
        caller: read_text(caller)?,
        request_id: read_optional_text(request_id)?,
        arguments: read_text(arguments)?,
        outcome: read_text(outcome)?,
        prev_hash: read_hash(prev_hash)?,
        hash: read_hash(hash)?,
        authority: read_optional_text(authority)?,
        salt: match salt {
            Value::Blob(salt) => salt.as_slice().try_into().ok()?,
            _ => return None,
        },
        rows_hash: read_hash(rows_hash)?,
    })
}

fn read_integer(cell: &Value) -> Option<i64> {
    match cell {
        Value::Integer(n) => Some(*n),
        _ => None,
    }
}

fn read_text(cell: &Value) -> Option<String> {
    match cell {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    }
}

/// Returns `Some(None)` for NULL.
fn read_optional_text(cell: &Value) -> Option<Option<String>> {
    match cell {
        Value::Null => Some(None),
        cell => read_text(cell).map(Some),
    }
}

fn read_hash(cell: &Value) -> Option<Hash> {
    match cell {
        Value::Blob(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    }
}
