//! What travels over `abide.v1`: one JSON object a message. Both ends read and write these types;
//! only the hot frames (`delta`, `snapshot`) are also composed by hand from shared bytes, and a test
//! holds the two forms together.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value as JsonValue};

use crate::id::Seq;
use crate::refusal::{Code, Refusal};

/// The WebSocket subprotocol.
pub const SUBPROTOCOL: &str = "abide.v1";

/// One call of a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchCall {
    /// The rule.
    pub reducer: String,
    /// Its arguments; left out means none.
    #[serde(default)]
    pub args: JsonValue,
}

/// From client to server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientMessage {
    /// Keep me told of a query's result.
    Subscribe {
        /// The client's name for the subscription.
        id: String,
        /// One SELECT.
        sql: String,
        /// Its parameters, by name without the sigil, or by number.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        params: Map<String, JsonValue>,
        /// I have everything up to here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Seq>,
    },
    /// No more of it.
    Unsubscribe {
        /// The subscription.
        id: String,
    },
    /// Run a reducer.
    Call {
        /// The client's name for the answer.
        id: String,
        /// The rule.
        reducer: String,
        /// Its arguments.
        #[serde(default)]
        args: JsonValue,
        /// Makes a retry safe.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    /// Run several in one transaction, all or nothing.
    Batch {
        /// The client's name for the answer.
        id: String,
        /// The calls, in order.
        calls: Vec<BatchCall>,
        /// Makes a retry safe.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    /// Run a query once.
    Sql {
        /// The client's name for the answer.
        id: String,
        /// One read-only statement.
        sql: String,
        /// Its parameters.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        params: Map<String, JsonValue>,
        /// The past state to ask.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        as_of: Option<Seq>,
    },
    /// Everything up to here has been worked in; the server may forget.
    Ack {
        /// Up to here.
        seq: Seq,
    },
    /// Are you there?
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

/// What a subscription's result looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Its columns, hidden ones last.
    pub columns: Vec<Column>,
    /// The columns that tell rows apart; empty where nothing does.
    pub key: Vec<String>,
    /// Its order; empty where the query states none.
    pub order: Vec<OrderTerm>,
}

/// What one commit changed in one subscription's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The subscription.
    pub id: String,
    /// Keys of rows that left, or whole rows where there is no key; `{"at": position}` of a window.
    #[serde(default)]
    pub deletes: Vec<JsonValue>,
    /// Rows that came; `{"at": position, "row": […]}` of a window (ORDER BY with LIMIT).
    #[serde(default)]
    pub inserts: Vec<JsonValue>,
    /// New forms of rows that stayed, likewise.
    #[serde(default)]
    pub updates: Vec<JsonValue>,
    /// The result may have changed (in a rerun: once more), and it would have cost too much to say how
    /// at once: a rerun follows, and until then the rows are those of before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}

/// The result of one call within a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallResult {
    /// Its place in the log.
    pub seq: Seq,
    /// What the reducer returned.
    pub result: JsonValue,
}

/// The answer to a call (`POST /v1/call/…`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallAnswer {
    /// Its place in the log.
    pub seq: Seq,
    /// What the reducer returned.
    pub result: Box<RawValue>,
    /// Whether an earlier call had already done it.
    pub duplicate: bool,
}

/// The answer to a batch (`POST /v1/batch`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchAnswer {
    /// The seq of its last event.
    pub seq: Seq,
    /// One for each call.
    pub results: Vec<CallResult>,
    /// Whether an earlier batch had already done it.
    pub duplicate: bool,
}

/// The answer to a query (`POST /v1/sql`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryAnswer {
    /// The state it was asked of; durable.
    pub seq: Seq,
    /// Column names.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<JsonValue>>,
}

/// From server to client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ServerMessage {
    /// The first message of a connection.
    Hello {
        /// `abide`.
        server: String,
        /// The server's version.
        version: String,
        /// The durable head.
        seq: Seq,
    },
    /// A subscription's result, whole or a part of it.
    Snapshot {
        /// The subscription.
        id: String,
        /// The state it was read at.
        seq: Seq,
        /// Its columns, hidden ones last.
        columns: Vec<Column>,
        /// The columns that tell rows apart; empty where nothing does.
        key: Vec<String>,
        /// Its order; empty where the query states none.
        order: Vec<OrderTerm>,
        /// The rows of this part.
        rows: Vec<Vec<JsonValue>>,
        /// More parts follow.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
        /// What the client held before is void.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        reset: bool,
    },
    /// What one commit changed in the connection's results.
    Delta {
        /// The connection had been told everything up to here.
        from: Seq,
        /// And now up to here.
        to: Seq,
        /// The subscriptions that changed.
        changes: Vec<Change>,
    },
    /// A query that was stale was run again: this brings it, alone, to a seq. Frames that end at or
    /// before that are doubles for it.
    Rerun {
        /// Up to here.
        seq: Seq,
        /// What changed since it was last told: one entry.
        changes: Vec<Change>,
    },
    /// Nothing of yours up to here.
    Progress {
        /// Up to here.
        seq: Seq,
    },
    /// The answer to `call` or `batch`.
    Result {
        /// The client's name for it.
        id: String,
        /// The seq of the (last) event.
        seq: Seq,
        /// What the reducer returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<JsonValue>,
        /// One for each call of a batch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        results: Option<Vec<CallResult>>,
        /// Whether an earlier request had already done it.
        duplicate: bool,
    },
    /// The answer to `sql`.
    Rows {
        /// The client's name for it.
        id: String,
        /// The state it was asked of.
        seq: Seq,
        /// Column names.
        columns: Vec<String>,
        /// Rows.
        rows: Vec<Vec<JsonValue>>,
    },
    /// The answer to `ping`.
    Pong,
    /// Something was refused, or a subscription ended.
    Error {
        /// What it is about; absent where the message could not be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The stable code.
        code: Code,
        /// One sentence.
        detail: String,
        /// What to do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
}

impl ServerMessage {
    /// A refusal as a message.
    #[must_use]
    pub fn error(id: Option<String>, refusal: &Refusal) -> ServerMessage {
        ServerMessage::Error {
            id,
            code: refusal.code,
            detail: refusal.detail.clone(),
            hint: refusal.hint.clone(),
        }
    }

    /// The message as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a message has string keys and serialises")
    }
}
