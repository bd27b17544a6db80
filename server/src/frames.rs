//! The server's messages on WebSocket and SSE, as JSON text.
//!
//! Clients read all of them as [`ServerMessage`]. The frequent ones are written as the structs of this file, which borrow
//! what they contain: the rows of a delta are encoded once for all subscribers, results come from the engine as text, and
//! neither is parsed into values or copied twice. A test checks that both forms agree. The rows of a query are encoded
//! while SQLite reads them (`EncodedResult`).

use std::ops::{ControlFlow, Not};

use abide_engine::buffers::Reservation;
use abide_engine::{
    Change, CommittedBatch, CommittedCall, DeltaJson, Engine, QueryResult, RowRef, RowSink, Update,
};
use abide_schema::limits::COUNTED_BYTES;
use abide_schema::reducer::Caller;
use abide_schema::wire::{
    Explanation, Plan, QueryResponseWriter, ServerMessage, Shape, SubscriptionInfo,
};
use abide_schema::{Checksum, Refusal, Row, Seq, Value, ValueRef};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{limits, unsent};

/// An update of subscriptions.
#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum UpdateFrame<'a> {
    Snapshot {
        id: &'a str,
        seq: Seq,
        #[serde(flatten)]
        shape: &'a Shape,
        #[serde(serialize_with = "list_rows")]
        rows: &'a [Row],
        #[serde(skip_serializing_if = "Not::not")]
        more: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        plan: Option<&'a Plan>,
        #[serde(skip_serializing_if = "Option::is_none")]
        checksum: Option<Checksum>,
        #[serde(skip_serializing_if = "Not::not")]
        reset: bool,
        #[serde(skip_serializing_if = "Not::not")]
        history_changed: bool,
    },
    Delta {
        from: Seq,
        to: Seq,
        changes: Vec<ChangeFrame<'a>>,
    },
    Rerun {
        seq: Seq,
        changes: [ChangeFrame<'a>; 1],
    },
}

/// The change of one subscription.
#[derive(Serialize)]
struct ChangeFrame<'a> {
    id: &'a str,
    #[serde(flatten)]
    rows: Option<&'a DeltaJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<Checksum>,
    #[serde(flatten)]
    info: Option<&'a SubscriptionInfo>,
    #[serde(skip_serializing_if = "Not::not")]
    stale: bool,
}

impl<'a> ChangeFrame<'a> {
    fn new(change: &'a Change, stale: bool) -> ChangeFrame<'a> {
        ChangeFrame {
            id: &change.id,
            rows: change.delta.json(),
            checksum: change.checksum,
            info: change.info.as_deref(),
            stale: stale || change.delta.is_stale(),
        }
    }
}

/// An answer: on a WebSocket with its op and the id of its request, over HTTP without.
#[derive(Serialize)]
struct Answer<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize)]
struct CallContent<'a> {
    seq: Seq,
    result: &'a RawValue,
    /// `None` within a batch, which is a duplicate as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
}

impl<'a> CallContent<'a> {
    fn new(done: &'a CommittedCall, duplicate: Option<bool>) -> CallContent<'a> {
        // The text is copied as it is.
        let result = serde_json::from_str(&done.result).expect("the result of a reducer is JSON");
        CallContent { seq: done.seq, result, duplicate }
    }
}

#[derive(Serialize)]
struct BatchContent<'a> {
    seq: Seq,
    results: Vec<CallContent<'a>>,
    duplicate: bool,
}

/// Returns the first message of a WebSocket of a caller.
pub fn encode_hello(engine: &Engine, caller: &Caller) -> String {
    let hello = ServerMessage::Hello {
        server: "abide".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seq: engine.durable_seq(),
        timeline: engine.timeline().to_owned(),
        namespace: caller.namespace().to_owned(),
    };
    hello.to_text()
}

/// Returns an update of a connection.
pub fn encode_update(update: &Update) -> String {
    let frame = match update {
        Update::Snapshot(part) => UpdateFrame::Snapshot {
            id: &part.id,
            seq: part.seq,
            shape: &part.info.shape,
            rows: &part.rows,
            more: part.more,
            plan: (!part.more).then_some(&part.info.plan),
            checksum: part.checksum.filter(|_| !part.more),
            reset: part.reset,
            history_changed: part.history_changed,
        },
        Update::Delta { from, to, changes } => {
            let changes = changes.iter().map(|change| ChangeFrame::new(change, false)).collect();
            UpdateFrame::Delta { from: *from, to: *to, changes }
        }
        Update::Rerun { seq, change, stale } => {
            UpdateFrame::Rerun { seq: *seq, changes: [ChangeFrame::new(change, *stale)] }
        }
        Update::Progress { seq } => return ServerMessage::Progress { seq: *seq }.to_text(),
        Update::Error { id, refusal } => return encode_error(Some(id), refusal),
    };
    to_json_text(&frame, update_size(update))
}

/// About how long the text of an update is.
pub(crate) fn update_size(update: &Update) -> usize {
    match update {
        Update::Snapshot(part) => 256 + size_of_cells(&part.rows),
        Update::Delta { changes, .. } => 64 + changes.iter().map(change_size).sum::<usize>(),
        Update::Rerun { change, .. } => 96 + change_size(change),
        Update::Progress { .. } | Update::Error { .. } => 256,
    }
}

fn change_size(change: &Change) -> usize {
    change.id.len() + change.delta.json().map_or(0, DeltaJson::bytes) + 100
}

/// Returns a refusal. `id` is the request that it concerns, if known.
pub fn encode_error(id: Option<&str>, refusal: &Refusal) -> String {
    crate::problem::note(refusal);
    ServerMessage::error(id.map(str::to_owned), refusal).to_text()
}

/// Returns the answer to `ping`.
pub(crate) fn encode_pong() -> String {
    ServerMessage::Pong.to_text()
}

/// Returns the result of a call.
pub fn encode_call(id: Option<&str>, done: &CommittedCall) -> String {
    encode_answer("result", id, CallContent::new(done, Some(done.duplicate)), done.result.len())
}

/// Returns the result of a batch.
pub fn encode_batch(id: Option<&str>, done: &CommittedBatch) -> String {
    let CommittedBatch { seq, results, duplicate } = done;
    let bytes = results.iter().map(|done| done.result.len() + 64).sum();
    let results = results.iter().map(|done| CallContent::new(done, None)).collect();
    encode_answer("result", id, BatchContent { seq: *seq, results, duplicate: *duplicate }, bytes)
}

/// Returns the result of a query that is in memory.
pub fn encode_rows(id: &str, answered: &QueryResult) -> String {
    let mut writer = QueryResponseWriter::for_message(id);
    writer.begin(answered.seq, &answered.columns);
    for row in &answered.rows {
        writer.row(row.iter().map(Value::borrowed));
    }
    writer.end();
    writer.take_text()
}

/// Returns the answer to `explain`.
pub(crate) fn encode_explanation(id: Option<&str>, explanation: &Explanation) -> String {
    encode_answer("explanation", id, explanation, 1 << 10)
}

/// The result of a query, encoded while it is read.
#[derive(Debug)]
pub(crate) struct EncodedResult {
    writer: QueryResponseWriter,
    /// A refusal ends the query before its last row, and frees the text.
    text: Result<CountedText, Refusal>,
}

/// The text of a result, in parts: so it is not copied as it grows, and a part is freed once the socket has taken it.
/// Each part is counted for the caller when it is made, because JSON can be six times as long as the cells that the
/// engine limits.
#[derive(Debug)]
pub(crate) struct CountedText {
    pub(crate) parts: Vec<String>,
    /// Counts the parts until they are sent. A text below [`COUNTED_BYTES`] is not counted.
    pub(crate) reservation: Reservation,
    /// The bytes of the next part that are counted already.
    counted_ahead: usize,
}

impl EncodedResult {
    /// Creates the result of a response over HTTP. `reservation` is one of the caller, without bytes.
    pub(crate) fn for_response(reservation: Reservation) -> EncodedResult {
        EncodedResult::new(QueryResponseWriter::for_response(), reservation)
    }

    /// Creates the result of a message on a WebSocket, which answers the message with this id.
    pub(crate) fn for_message(id: &str, reservation: Reservation) -> EncodedResult {
        EncodedResult::new(QueryResponseWriter::for_message(id), reservation)
    }

    fn new(writer: QueryResponseWriter, reservation: Reservation) -> EncodedResult {
        EncodedResult {
            writer,
            text: Ok(CountedText { parts: Vec::new(), reservation, counted_ahead: 0 }),
        }
    }

    /// Returns the text of a query that has succeeded.
    ///
    /// # Errors
    /// `overloaded` if the caller has too much buffered, `limit_exceeded` if the text is too long.
    pub(crate) fn into_text(self) -> Result<CountedText, Refusal> {
        let EncodedResult { mut writer, text } = self;
        let mut text = text?;
        writer.end();
        if text.parts.is_empty() && writer.pending_bytes() < COUNTED_BYTES {
            text.parts.push(writer.take_text());
        } else {
            text.push(&mut writer)?;
        }
        Ok(text)
    }
}

impl RowSink for EncodedResult {
    fn begin(&mut self, seq: Seq, columns: Vec<String>) {
        self.writer.begin(seq, &columns);
    }

    fn row(&mut self, row: RowRef<'_>) -> ControlFlow<()> {
        let Ok(text) = &mut self.text else { return ControlFlow::Break(()) };
        if let Err(refusal) = text.write_row(&mut self.writer, row) {
            self.text = Err(refusal);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl CountedText {
    /// Returns the number of bytes of all parts.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(String::len).sum()
    }

    /// Writes a row. A long one is counted before it is written: one value can become a hundred megabytes.
    fn write_row(
        &mut self,
        writer: &mut QueryResponseWriter,
        row: RowRef<'_>,
    ) -> Result<(), Refusal> {
        if row.cells().map(ValueRef::size).sum::<usize>() >= limits::ANSWER_PART_BYTES {
            // A comma for each cell, and two brackets with theirs.
            let bytes = row.cells().map(|cell| cell.json_bytes() + 1).sum::<usize>() + 3;
            self.count(writer.pending_bytes() + bytes)?;
            writer.reserve(bytes);
        }
        writer.row(row.cells());
        if writer.pending_bytes() >= limits::ANSWER_PART_BYTES {
            self.push(writer)?;
        }
        Ok(())
    }

    /// Counts what the writer has, and adds it as a part.
    fn push(&mut self, writer: &mut QueryResponseWriter) -> Result<(), Refusal> {
        self.count(writer.pending_bytes())?;
        self.parts.push(writer.take_text());
        self.counted_ahead = 0;
        Ok(())
    }

    /// Counts the next part, which has this many bytes so far or soon.
    fn count(&mut self, bytes: usize) -> Result<(), Refusal> {
        let more = bytes.saturating_sub(self.counted_ahead);
        unsent::check_length(self.reservation.bytes() + more)?;
        self.reservation.grow(more)?;
        self.counted_ahead += more;
        Ok(())
    }

    /// Joins the parts, and frees each after it was copied.
    pub(crate) fn join(self) -> (String, Reservation) {
        let mut text = String::with_capacity(self.bytes());
        for part in self.parts {
            text.push_str(&part);
        }
        (text, self.reservation)
    }
}

/// Returns an answer whose content has about this many bytes.
fn encode_answer(
    op: &'static str,
    id: Option<&str>,
    content: impl Serialize,
    bytes: usize,
) -> String {
    to_json_text(&Answer { op: id.map(|_| op), id, content }, bytes)
}

/// Returns a message as text, of about this many bytes: a buffer that has to grow is copied.
fn to_json_text(message: &impl Serialize, bytes: usize) -> String {
    let mut json = Vec::with_capacity(bytes + 256);
    write_json(&mut json, message);
    String::from_utf8(json).expect("JSON is UTF-8")
}

fn write_json(json: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(json, value).expect("writing JSON into memory cannot fail");
}

fn list_rows<S: Serializer>(rows: &[Row], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rows.iter().map(|row| &**row))
}

fn size_of_cells(rows: &[Row]) -> usize {
    rows.iter().flat_map(|row| row.iter()).map(Value::size).sum()
}
