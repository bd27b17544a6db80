//! The server's messages on WebSocket and SSE, as JSON text.
//!
//! Composed by hand, because rows and deltas are encoded once for all subscribers and results come from
//! the engine as text: nothing here is parsed or copied twice. A test checks that these forms and those of
//! [`abide_schema::wire::ServerMessage`] agree.

use abide_engine::{
    Change, CommittedBatch, CommittedCall, Engine, QueryResult, SnapshotPart, Update,
};
use abide_schema::reducer::Caller;
use abide_schema::value::write_row_json;
use abide_schema::wire::{Explanation, ServerMessage, SubscriptionInfo};
use abide_schema::{Checksum, Refusal, Row, Value};
use serde::Serialize;

/// A JSON text under construction.
struct JsonWriter(Vec<u8>);

impl JsonWriter {
    fn with_capacity(bytes: usize) -> JsonWriter {
        JsonWriter(Vec::with_capacity(bytes))
    }

    /// Appends text that is already JSON.
    fn raw(&mut self, json: impl AsRef<[u8]>) -> &mut JsonWriter {
        self.0.extend_from_slice(json.as_ref());
        self
    }

    /// Appends a value.
    fn value(&mut self, value: &(impl Serialize + ?Sized)) -> &mut JsonWriter {
        serde_json::to_writer(&mut self.0, value).expect("writing JSON into memory cannot fail");
        self
    }

    /// Appends items with commas between.
    fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut one: impl FnMut(&mut JsonWriter, T),
    ) -> &mut JsonWriter {
        self.raw("[");
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.raw(",");
            }
            one(self, item);
        }
        self.raw("]")
    }

    fn rows<'a, R: AsRef<[Value]> + 'a>(
        &mut self,
        rows: impl IntoIterator<Item = &'a R>,
    ) -> &mut JsonWriter {
        self.list(rows, |json, row| write_row_json(row.as_ref(), &mut json.0))
    }

    /// The shape of a result: the same in a snapshot and in the answer to a resume.
    fn info(&mut self, info: &SubscriptionInfo) -> &mut JsonWriter {
        let shape = &info.shape;
        self.raw(r#","columns":"#).value(&shape.columns);
        self.raw(r#","key":"#).value(&shape.key);
        self.raw(r#","order":"#).value(&shape.order);
        if shape.top_n {
            self.raw(r#","top_n":true"#);
        }
        self
    }

    /// Without the closing bracket.
    fn change(&mut self, change: &Change) {
        self.raw(r#"{"id":"#).value(&*change.id).raw(",").raw(change.delta.json());
        self.checksum(change.checksum);
        if let Some(info) = &change.info {
            self.info(info).raw(r#","plan":"#).value(&info.plan);
        }
    }

    fn checksum(&mut self, checksum: Option<Checksum>) {
        if let Some(checksum) = checksum {
            self.raw(r#","checksum":"#).value(&checksum);
        }
    }

    fn text(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.0)).expect("JSON is UTF-8")
    }
}

/// The first message of a WebSocket of a caller.
pub fn hello(engine: &Engine, caller: &Caller) -> String {
    let hello = ServerMessage::Hello {
        server: "abide".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seq: engine.durable_seq(),
        timeline: engine.timeline().to_owned(),
        namespace: caller.namespace().to_owned(),
    };
    hello.to_text()
}

/// An update of a connection.
pub fn update(update: &Update) -> String {
    match update {
        Update::Snapshot(part) => snapshot(part),
        Update::Delta { from, to, changes } => {
            let capacity = changes.iter().map(|change| {
                change.id.len()
                    + change.delta.json().len()
                    + if change.info.is_some() { 512 } else { 64 }
            });
            let mut json = JsonWriter::with_capacity(64 + capacity.sum::<usize>());
            json.raw(r#"{"op":"delta","from":"#).value(from).raw(r#","to":"#).value(to);
            json.raw(r#","changes":"#).list(changes, |json, change| {
                json.change(change);
                json.raw("}");
            });
            json.raw("}").text()
        }
        Update::Rerun { seq, change, stale } => {
            let mut json = JsonWriter::with_capacity(96 + change.delta.json().len());
            json.raw(r#"{"op":"rerun","seq":"#).value(seq).raw(r#","changes":["#);
            json.change(change);
            json.raw(if *stale { r#","stale":true}]}"# } else { "}]}" }).text()
        }
        Update::Progress { seq } => ServerMessage::Progress { seq: *seq }.to_text(),
        Update::Error { id, refusal } => error(Some(id), refusal),
    }
}

/// About how long the text of an update is.
pub(crate) fn size(update: &Update) -> usize {
    let of_change = |change: &Change| change.id.len() + change.delta.json().len() + 64;
    match update {
        Update::Snapshot(part) => {
            256 + part.rows.iter().flat_map(|row| row.iter()).map(Value::size).sum::<usize>()
        }
        Update::Delta { changes, .. } => 64 + changes.iter().map(of_change).sum::<usize>(),
        Update::Rerun { change, .. } => 96 + of_change(change),
        Update::Progress { .. } | Update::Error { .. } => 256,
    }
}

fn snapshot(part: &SnapshotPart) -> String {
    let mut json = JsonWriter::with_capacity(256 + 64 * part.rows.len());
    json.raw(r#"{"op":"snapshot","id":"#).value(&*part.id);
    json.raw(r#","seq":"#).value(&part.seq);
    json.info(&part.info);
    json.raw(r#","rows":"#).rows(&part.rows);
    if part.more {
        json.raw(r#","more":true"#);
    } else {
        json.raw(r#","plan":"#).value(&part.info.plan).checksum(part.checksum);
    }
    if part.reset {
        json.raw(r#","reset":true"#);
    }
    if part.history_changed {
        json.raw(r#","history_changed":true"#);
    }
    json.raw("}").text()
}

/// A refusal. `id` is the request that it concerns, if known.
pub fn error(id: Option<&str>, refusal: &Refusal) -> String {
    crate::problem::note(refusal);
    ServerMessage::error(id.map(str::to_owned), refusal).to_text()
}

/// The answer to `ping`.
pub(crate) fn pong() -> String {
    ServerMessage::Pong.to_text()
}

/// The result of a call: on a WebSocket with its id, over HTTP without.
pub fn call(id: Option<&str>, done: &CommittedCall) -> String {
    let mut json = JsonWriter::with_capacity(128 + done.result.len());
    head(&mut json, "result", id);
    json.raw(r#""seq":"#).value(&done.seq);
    json.raw(r#","result":"#).raw(&done.result);
    json.raw(r#","duplicate":"#).value(&done.duplicate);
    json.raw("}").text()
}

/// The result of a batch.
pub fn batch(id: Option<&str>, done: &CommittedBatch) -> String {
    let results = done.results.iter().map(|done| done.result.len() + 64);
    let mut json = JsonWriter::with_capacity(128 + results.sum::<usize>());
    head(&mut json, "result", id);
    json.raw(r#""seq":"#).value(&done.seq);
    json.raw(r#","results":"#).list(&done.results, |json, done| {
        json.raw(r#"{"seq":"#).value(&done.seq);
        json.raw(r#","result":"#).raw(&done.result).raw("}");
    });
    json.raw(r#","duplicate":"#).value(&done.duplicate);
    json.raw("}").text()
}

/// The result of a query.
pub fn rows(id: Option<&str>, answer: &QueryResult) -> String {
    let mut json = JsonWriter::with_capacity(128 + 64 * answer.rows.len());
    head(&mut json, "rows", id);
    json.raw(r#""seq":"#).value(&answer.seq);
    json.raw(r#","columns":"#).value(&answer.columns);
    json.raw(r#","rows":"#).rows(&answer.rows);
    json.raw("}").text()
}

/// The result of a query over HTTP, encoded in parts. Rows are freed as they are encoded.
pub(crate) struct ChunkedRows {
    rows: std::vec::IntoIter<Row>,
    json: JsonWriter,
    first: bool,
    part_bytes: usize,
}

impl ChunkedRows {
    /// With parts of about this many bytes.
    pub(crate) fn new(answer: QueryResult, part_bytes: usize) -> ChunkedRows {
        let mut json = JsonWriter::with_capacity(2 * part_bytes);
        json.raw(r#"{"seq":"#).value(&answer.seq);
        json.raw(r#","columns":"#).value(&answer.columns).raw(r#","rows":["#);
        ChunkedRows { rows: answer.rows.into_iter(), json, first: true, part_bytes }
    }
}

impl Iterator for ChunkedRows {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        while self.json.0.len() < self.part_bytes {
            let Some(row) = self.rows.next() else {
                if self.part_bytes == 0 {
                    return None;
                }
                // The last part.
                self.part_bytes = 0;
                self.json.raw("]}");
                return Some(std::mem::take(&mut self.json.0));
            };
            if !std::mem::take(&mut self.first) {
                self.json.raw(",");
            }
            write_row_json(&row, &mut self.json.0);
        }
        match self.part_bytes {
            0 => None,
            bytes => Some(std::mem::replace(&mut self.json.0, Vec::with_capacity(2 * bytes))),
        }
    }
}

/// The answer to `explain`: on a WebSocket with its id, over HTTP without.
pub(crate) fn explanation(id: Option<String>, explanation: Explanation) -> String {
    match id {
        Some(id) => {
            let explanation = Box::new(explanation);
            ServerMessage::Explanation { id, explanation }.to_text()
        }
        None => JsonWriter::with_capacity(1 << 10).value(&explanation).text(),
    }
}

fn head(json: &mut JsonWriter, op: &str, id: Option<&str>) {
    json.raw("{");
    if let Some(id) = id {
        json.raw(r#""op":"#).value(op).raw(r#","id":"#).value(id).raw(",");
    }
}
