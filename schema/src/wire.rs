//! The wire format of `abide.v1`: one JSON object per message. Both ends read and write these types;
//! only the frequent messages of a server have a second form in `server/src/frames.rs`, which borrows rows and results, and a test
//! keeps the two consistent.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value as JsonValue};

use crate::call_arguments::CallArguments;
use crate::checksum::Checksum;
use crate::id::Seq;
use crate::refusal::{Code, Refusal};
use crate::value::ValueRef;

/// The WebSocket subprotocol.
pub const SUBPROTOCOL: &str = "abide.v1";

/// The beginning of every subprotocol of Abide; the number of its version follows.
const SUBPROTOCOL_FAMILY: &str = "abide.v";

/// What to update if two programs speak different versions of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateSide {
    /// This program is older.
    Own,
    /// The other program is older.
    Other,
}

impl UpdateSide {
    /// Compares a subprotocol of another program with [`SUBPROTOCOL`]. `None` if it is the same one, or none of Abide.
    #[must_use]
    pub fn of(other: &str) -> Option<UpdateSide> {
        let version =
            |protocol: &str| protocol.strip_prefix(SUBPROTOCOL_FAMILY)?.parse::<u32>().ok();
        let own = version(SUBPROTOCOL)?;
        match version(other)? {
            other if other > own => Some(UpdateSide::Own),
            other if other < own => Some(UpdateSide::Other),
            _ => None,
        }
    }
}

/// The header that restricts a request or a whole WebSocket to a scope: a JSON object of strings.
pub const SCOPE_HEADER: &str = "abide-scope";

/// The header of the response that opens a WebSocket, if the server requires no credentials: it does not check a token.
pub const AUTHENTICATION_HEADER: &str = "abide-authentication";

/// The value of [`AUTHENTICATION_HEADER`].
pub const AUTHENTICATION_OFF: &str = "off";

/// One call of a batch. A server reads the arguments as [`CallArguments`], without a value in between.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchCall<A = JsonValue> {
    /// The reducer.
    pub reducer: String,
    /// Its arguments; default none.
    #[serde(default)]
    pub args: A,
}

impl From<&BatchCall> for BatchCall<CallArguments> {
    fn from(call: &BatchCall) -> BatchCall<CallArguments> {
        let BatchCall { reducer, args } = call;
        BatchCall { reducer: reducer.clone(), args: CallArguments::from(args) }
    }
}

/// Messages from client to server. A server reads the arguments of calls as [`CallArguments`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientMessage<A = JsonValue> {
    /// Subscribes to a query's result.
    Subscribe {
        /// The client's id for the subscription.
        id: String,
        /// One SELECT.
        sql: String,
        /// Its parameters, by name without the sigil, or by number.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        params: Map<String, JsonValue>,
        /// The client has the result after this event; send only the later changes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_seq: Option<Seq>,
        /// The timeline on which the client has `after_seq`: that of the `hello` of the connection that brought it there. If the
        /// server does not have that state, it sends `resync_required` and the whole result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeline: Option<String>,
        /// Start with the result as of this event, followed by the changes since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        as_of: Option<Seq>,
        /// Send the result's checksum with the snapshot and with each delta.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        checksum: bool,
        /// Include the statements that produce the deltas.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        explain: bool,
    },
    /// Ends a subscription.
    Unsubscribe {
        /// The subscription.
        id: String,
    },
    /// Calls a reducer.
    Call {
        /// The client's id for the reply.
        id: String,
        /// The reducer.
        reducer: String,
        /// Its arguments.
        #[serde(default)]
        args: A,
        /// Makes a retry safe.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    /// Runs several calls in one transaction, all or nothing.
    Batch {
        /// The client's id for the reply.
        id: String,
        /// The calls, in order.
        calls: Vec<BatchCall<A>>,
        /// Makes a retry safe.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    /// Runs a query once.
    Sql {
        /// The client's id for the reply.
        id: String,
        /// One read-only statement.
        sql: String,
        /// Its parameters.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        params: Map<String, JsonValue>,
        /// The past state to read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        as_of: Option<Seq>,
    },
    /// Explains how a query would be maintained live, and at what cost.
    Explain {
        /// The client's id for the reply.
        id: String,
        /// One SELECT.
        sql: String,
        /// Its parameters; omitted ones are NULL.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        params: Map<String, JsonValue>,
    },
    /// Cancels a `sql` or an `explain` of this connection: it gets no answer, unless that was sent already. Cancels nothing
    /// else.
    Cancel {
        /// The query.
        id: String,
    },
    /// Acknowledges everything up to a seq.
    Ack {
        /// The acknowledged seq.
        seq: Seq,
    },
    /// Asks for a `pong`.
    Ping,
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its declared type, empty for an expression.
    #[serde(rename = "type")]
    pub kind: String,
    /// Set on trailing columns that only carry the sort order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

/// One term of a result's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderTerm {
    /// The column, by name.
    pub column: String,
    /// Its position among the columns, since names may repeat.
    pub index: usize,
    /// Largest first.
    pub desc: bool,
    /// `first` or `last`.
    pub nulls: String,
    /// `BINARY`, `NOCASE` or `RTRIM`.
    pub collation: String,
}

/// The shape of a subscription's result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Its columns, hidden ones last.
    pub columns: Vec<Column>,
    /// The columns that identify a row; empty if there are none.
    pub key: Vec<String>,
    /// Its order; empty if the query has no ORDER BY.
    pub order: Vec<OrderTerm>,
    /// Set if the query has a LIMIT: its deltas contain positions instead of keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub top_n: bool,
}

/// How a live query is maintained, in a few words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The rule that produces its deltas.
    pub rule: String,
    /// The cost of a commit that affects the query.
    pub cost: String,
    /// The memory that it uses while it has subscribers.
    pub state: String,
    /// The statements that produce its deltas, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<String>,
}

/// A table that a statement of a live query scans in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableScan {
    /// The table.
    pub table: String,
    /// The columns that the statement searches by; empty if no index would help.
    pub columns: Vec<String>,
    /// The purpose of the statement: `term`, from changed rows to the rows they join, `lookup`, from
    /// changed rows to the subscriptions they affect, or `evaluation`, of a whole query or group.
    pub part: String,
    /// The statement.
    pub statement: String,
    /// The index that would avoid the scan, as `#[table]` declares it; absent if none would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declare: Option<String>,
    /// The index as SQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<String>,
}

/// The answer to `explain`: what a live query is, does and costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// How it is maintained, with the statements.
    pub plan: Plan,
    /// By table, the equalities that a changed row must match to affect the query.
    pub routed_by: Vec<String>,
    /// The tables that its statements scan in full.
    pub scans: Vec<TableScan>,
    /// The SELECT that returns the whole result.
    pub snapshot: String,
    /// The values of `?1`, `?2` … in the snapshot.
    pub params: Vec<JsonValue>,
    /// The shape of the result.
    #[serde(flatten)]
    pub shape: Shape,
    /// Why it would be refused, as a problem document; absent if it can be subscribed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<JsonValue>,
}

/// The changes of one commit in one subscription's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The subscription.
    pub id: String,
    /// Keys of deleted rows, or whole rows if there is no key; `{"at": position}` for a top-N result.
    #[serde(default)]
    pub deletes: Vec<JsonValue>,
    /// Inserted rows; `{"at": position, "row": […]}` for a top-N result (ORDER BY with LIMIT).
    #[serde(default)]
    pub inserts: Vec<JsonValue>,
    /// New versions of updated rows, likewise.
    #[serde(default)]
    pub updates: Vec<JsonValue>,
    /// The result may have changed (in a rerun: again), but a delta would have been too expensive: a rerun
    /// follows, and until then the rows are outdated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// The checksum of the new result, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
    /// In the answer to a resume, what a snapshot contains besides its rows.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<SubscriptionInfo>,
}

/// The parts of the first answer to a subscription other than rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionInfo {
    /// The shape of the result.
    #[serde(flatten)]
    pub shape: Shape,
    /// How it is maintained.
    pub plan: Plan,
}

/// The result of one call within a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallResult {
    /// Its position in the log.
    pub seq: Seq,
    /// The result of the reducer.
    pub result: JsonValue,
}

/// The answer to a call (`POST /v1/call/…`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallResponse {
    /// Its position in the log.
    pub seq: Seq,
    /// The result of the reducer.
    pub result: Box<RawValue>,
    /// Whether an earlier call with the same request id already took effect.
    pub duplicate: bool,
}

/// The answer to a batch (`POST /v1/batch`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchResponse {
    /// The seq of its last event.
    pub seq: Seq,
    /// One for each call.
    pub results: Vec<CallResult>,
    /// Whether an earlier batch with the same request id already took effect.
    pub duplicate: bool,
}

/// The answer to a query (`POST /v1/sql`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryResponse {
    /// The state that the query read; it is durable.
    pub seq: Seq,
    /// Column names.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<JsonValue>>,
}

/// Writes the text of a [`QueryResponse`] row by row, without values in between. Its owner takes the text in parts of any
/// size, so that a result need not be in memory as a whole.
#[derive(Debug)]
pub struct QueryResponseWriter {
    text: Vec<u8>,
    has_rows: bool,
}

impl QueryResponseWriter {
    /// Starts a response.
    #[must_use]
    pub fn for_response() -> QueryResponseWriter {
        QueryResponseWriter { text: b"{".to_vec(), has_rows: false }
    }

    /// Starts the answer to the `sql` message with this id: a [`ServerMessage::Rows`].
    #[must_use]
    pub fn for_message(id: &str) -> QueryResponseWriter {
        let mut text = br#"{"op":"rows","id":"#.to_vec();
        push_json(&mut text, id);
        text.push(b',');
        QueryResponseWriter { text, has_rows: false }
    }

    /// Writes everything before the rows.
    pub fn begin(&mut self, seq: Seq, columns: &[String]) {
        self.text.extend_from_slice(br#""seq":"#);
        push_json(&mut self.text, &seq);
        self.text.extend_from_slice(br#","columns":"#);
        push_json(&mut self.text, columns);
        self.text.extend_from_slice(br#","rows":["#);
    }

    /// Writes a row.
    pub fn row<'a>(&mut self, cells: impl IntoIterator<Item = ValueRef<'a>>) {
        self.text.extend_from_slice(if self.has_rows { b",[" } else { b"[" });
        self.has_rows = true;
        for (at, cell) in cells.into_iter().enumerate() {
            if at > 0 {
                self.text.push(b',');
            }
            push_json(&mut self.text, &cell);
        }
        self.text.push(b']');
    }

    /// Makes room for a row of this many bytes, so that the text is not copied while a long row is written.
    pub fn reserve(&mut self, bytes: usize) {
        self.text.reserve_exact(bytes);
    }

    /// Writes everything after the rows.
    pub fn end(&mut self) {
        self.text.extend_from_slice(b"]}");
    }

    /// The number of bytes that were not taken yet.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.text.len()
    }

    /// Takes the text since the last call.
    #[must_use]
    pub fn take_text(&mut self) -> String {
        // The next part is probably about as long as this one, unless one row has made this one long.
        let capacity = (self.text.len() + self.text.len() / 8).min(PART_CAPACITY);
        let text = std::mem::replace(&mut self.text, Vec::with_capacity(capacity));
        String::from_utf8(text).expect("JSON is UTF-8")
    }
}

/// The largest part for which [`QueryResponseWriter::take_text`] reserves memory.
const PART_CAPACITY: usize = 128 << 10;

fn push_json(text: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(text, value).expect("writing JSON into memory cannot fail");
}

/// Messages from server to client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ServerMessage {
    /// The first message of a connection.
    Hello {
        /// `abide`.
        server: String,
        /// The server's version.
        version: String,
        /// The last durable seq.
        seq: Seq,
        /// The history that the seqs of this connection belong to. A copy of the file that was continued separately has
        /// other events with the same seqs, and another timeline.
        #[serde(default)]
        timeline: String,
        /// The prefix of the stored form of each id that the caller of this connection chooses, see
        /// [`Caller::namespace`](crate::reducer::Caller::namespace). Empty for a caller without a scope.
        #[serde(default)]
        namespace: String,
    },
    /// A subscription's result, in one or several parts.
    Snapshot {
        /// The subscription.
        id: String,
        /// The state that was read.
        seq: Seq,
        /// Its columns, hidden ones last.
        columns: Vec<Column>,
        /// The columns that identify a row; empty if there are none.
        key: Vec<String>,
        /// Its order; empty if the query has no ORDER BY.
        order: Vec<OrderTerm>,
        /// The rows of this part.
        rows: Vec<Vec<JsonValue>>,
        /// More parts follow.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
        /// The rows that the client held before are void.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        reset: bool,
        /// The rows that the client held before, and its seq, are from a history that the file does not have.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        history_changed: bool,
        /// The query has a LIMIT: its deltas contain positions instead of keys.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        top_n: bool,
        /// How it is maintained; in the last part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<Plan>,
        /// The checksum of the whole result, if requested; in the last part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum: Option<Checksum>,
    },
    /// The changes of a commit in the connection's subscriptions.
    Delta {
        /// The connection had received everything up to here.
        from: Seq,
        /// It has now received everything up to here.
        to: Seq,
        /// The subscriptions that changed.
        changes: Vec<Change>,
    },
    /// An outdated query was run again: this brings its subscription alone to a seq. Later frames that end at
    /// or before that seq are duplicates for it.
    Rerun {
        /// The seq of the result.
        seq: Seq,
        /// The changes since the last delta: one entry.
        changes: Vec<Change>,
    },
    /// No changes for this connection up to a seq.
    Progress {
        /// The seq.
        seq: Seq,
    },
    /// The answer to `call` or `batch`.
    Result {
        /// The client's id for it.
        id: String,
        /// The seq of the (last) event.
        seq: Seq,
        /// The result of the reducer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<JsonValue>,
        /// One for each call of a batch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        results: Option<Vec<CallResult>>,
        /// Whether an earlier request with the same request id already took effect.
        duplicate: bool,
    },
    /// The answer to `sql`.
    Rows {
        /// The client's id for it.
        id: String,
        /// The state that was read.
        seq: Seq,
        /// Column names.
        columns: Vec<String>,
        /// Rows.
        rows: Vec<Vec<JsonValue>>,
    },
    /// The answer to `explain`.
    Explanation {
        /// The client's id for it.
        id: String,
        /// The explanation.
        #[serde(flatten)]
        explanation: Box<Explanation>,
    },
    /// The answer to `ping`.
    Pong,
    /// A request was refused, or a subscription ended.
    Error {
        /// The id of the request or subscription; absent if the message could not be parsed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The stable code.
        code: Code,
        /// One sentence.
        detail: String,
        /// How to fix it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
        /// How long to wait before a retry, if the caller's own rate limit or quota refused the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// The position of the refused call in its batch, from 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch_position: Option<usize>,
    },
}

impl ServerMessage {
    /// Returns a refusal as a message.
    #[must_use]
    pub fn error(id: Option<String>, refusal: &Refusal) -> ServerMessage {
        ServerMessage::Error {
            id,
            code: refusal.code,
            detail: refusal.detail.clone(),
            hint: refusal.hint.clone(),
            retry_after_ms: refusal.retry_after_ms,
            batch_position: refusal.batch_position,
        }
    }

    /// Returns the message as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a message has string keys and serialises")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::value::Value;

    #[test]
    fn a_response_is_the_same_when_written_row_by_row() {
        let cells = [
            Value::Null,
            Value::Integer((1 << 53) + 1),
            Value::Real(f64::NEG_INFINITY),
            Value::Text("{\"a\": [\u{1b}]}\n".to_owned()),
            Value::Blob(vec![0xff, 0]),
        ];
        for rows in [0, 1, 2] {
            let columns = ["a".to_owned(), "\"b\"".to_owned()];
            let rows = vec![cells.iter().map(Value::to_json).collect(); rows];
            let response = QueryResponse { seq: Seq(7), columns: columns.into(), rows };
            let QueryResponse { seq, columns, rows } = &response;
            let mut writer = QueryResponseWriter::for_response();
            writer.begin(*seq, columns);
            let mut text = writer.take_text();
            for _ in rows {
                writer.row(cells.iter().map(Value::borrowed));
                text.push_str(&writer.take_text());
            }
            writer.end();
            text.push_str(&writer.take_text());
            assert_eq!(text, serde_json::to_string(&response).expect("it serialises"));
        }
    }

    #[test]
    fn the_message_has_the_id_of_its_request() {
        let mut writer = QueryResponseWriter::for_message("\"1\"");
        writer.begin(Seq(7), &["a".to_owned()]);
        writer.row([ValueRef::Integer(1)]);
        writer.end();
        let text = writer.take_text();
        let read: JsonValue = serde_json::from_str(&text).expect("it is JSON");
        let rows = json!({"op": "rows", "id": "\"1\"", "seq": 7, "columns": ["a"], "rows": [[1]]});
        assert_eq!(read, rows);
    }
}
