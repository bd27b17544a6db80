//! What travels over `abide.v1`: one JSON object a message. Both ends read and write these types;
//! only the hot frames (`delta`, `snapshot`) are also composed by hand from shared bytes, and a test
//! holds the two forms together.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value as JsonValue};

use crate::checksum::Checksum;
use crate::id::Seq;
use crate::refusal::{Code, Refusal};

/// The WebSocket subprotocol.
pub const SUBPROTOCOL: &str = "abide.v1";

/// The header that narrows a request, or all of a WebSocket, to a scope: a JSON object of strings.
pub const SCOPE_HEADER: &str = "abide-scope";

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
        /// Begin with the result as it was after this event, and tell what changed since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        as_of: Option<Seq>,
        /// Tell the result's checksum with it and with each of its changes.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        checksum: bool,
        /// Tell the statements that make its deltas, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        explain: bool,
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
    /// How would this query be kept live, and at what cost?
    Explain {
        /// The client's name for the answer.
        id: String,
        /// One SELECT.
        sql: String,
        /// Its parameters; those left out are NULL.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        params: Map<String, JsonValue>,
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
    /// Set where the query has a LIMIT: its deltas tell positions instead of keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub window: bool,
}

/// How a live query is kept, in a few words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The rule by which its deltas are made.
    pub rule: String,
    /// What a commit that concerns the query costs.
    pub cost: String,
    /// What is kept in memory while somebody is subscribed.
    pub state: String,
    /// The statements that make its deltas, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<String>,
}

/// A table that a statement of a live query reads from end to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableScan {
    /// The table.
    pub table: String,
    /// The columns by which its rows are looked for; empty where no index would help.
    pub columns: Vec<String>,
    /// What the statement is for: `term`, from changed rows to the rows they join, `lookup`, from
    /// changed rows to the subscriptions they concern, or `evaluation`, of a whole query or group.
    pub part: String,
    /// The statement.
    pub statement: String,
    /// The index that would spare it, as `#[table]` declares it; absent where none would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declare: Option<String>,
    /// The same as the SQL it stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<String>,
}

/// The answer to `explain`: what a live query is, does and costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// How it is kept, with the statements.
    pub plan: Plan,
    /// By table, the equalities a change must meet to be looked at.
    pub routed_by: Vec<String>,
    /// The tables that its statements read whole.
    pub scans: Vec<TableScan>,
    /// The SELECT that yields the whole result.
    pub snapshot: String,
    /// What `?1`, `?2` … of the snapshot are.
    pub params: Vec<JsonValue>,
    /// What the result looks like.
    #[serde(flatten)]
    pub shape: Shape,
    /// Why it is refused all the same, as a problem document; absent where it can be subscribed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<JsonValue>,
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
    /// The checksum of the result after it, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
    /// In the answer to a resume, what a snapshot would have told beside its rows.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<Opening>,
}

/// What the first answer to a subscription tells beside rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// What the result looks like.
    #[serde(flatten)]
    pub shape: Shape,
    /// How it is kept.
    pub plan: Plan,
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
        /// The query has a LIMIT: its deltas tell positions instead of keys.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        window: bool,
        /// How it is kept; in the last part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<Plan>,
        /// The checksum of the whole result, where that was asked for; in the last part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum: Option<Checksum>,
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
    /// The answer to `explain`.
    Explanation {
        /// The client's name for it.
        id: String,
        /// What was asked for.
        #[serde(flatten)]
        explanation: Box<Explanation>,
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
        /// After how long the same can be asked again, where the caller's own pace or quota says no.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
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
            retry_after_ms: refusal.retry_after_ms,
        }
    }

    /// The message as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a message has string keys and serialises")
    }
}
