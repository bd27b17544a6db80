//! Updates for programs: frames of the protocol, one JSON object per line.

use abide_client::query_plan::Column;
use abide_client::{Positions, Seq, Subscription, Update, Value};
use serde::Serialize;
use serde_json::{Value as JsonValue, json};

/// The id of the subscription in the frames.
const ID: &str = "watch";

/// An update in the form of the protocol. The rows of a snapshot are in the query's order; the terms of the order
/// are not included.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Frame<'a> {
    Snapshot {
        id: &'static str,
        seq: Seq,
        columns: &'a [Column],
        key: &'a [String],
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        top_n: bool,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        reset: bool,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        history_changed: bool,
        rows: Rows,
    },
    Delta {
        from: Seq,
        to: Seq,
        changes: [Change; 1],
    },
}

/// The changes: keys and rows; in a top-N result, positions.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    id: &'static str,
    deletes: Vec<JsonValue>,
    inserts: Vec<JsonValue>,
    updates: Vec<JsonValue>,
}

type Rows = Vec<JsonValue>;

/// Converts updates to frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    begun: bool,
}

impl Frames {
    /// The frame of an update: first a snapshot, then deltas; a snapshot again if the history changed.
    pub(super) fn next_frame<'a>(&mut self, live: &'a Subscription, update: &Update) -> Frame<'a> {
        let history_changed = update.history_changed;
        if !self.begun || update.reset || history_changed {
            let reset = std::mem::replace(&mut self.begun, true);
            let columns = live.columns();
            let key = live.key();
            let top_n = live.is_top_n();
            return Frame::Snapshot {
                id: ID,
                seq: update.seq,
                columns,
                key,
                top_n,
                reset,
                history_changed,
                rows: live.rows().map(row).collect(),
            };
        }
        let inserts: Rows = update.insert_rows().map(row).collect();
        let updates: Rows = update.update_rows().map(row).collect();
        let change = match update.positions() {
            Some(Positions { deletes, inserts: came, updates: changed }) => Change {
                id: ID,
                deletes: deletes.iter().map(|at| json!({"at": at})).collect(),
                inserts: add_positions(came, inserts),
                updates: add_positions(changed, updates),
            },
            None => {
                let deletes = update.delete_keys().map(row).collect();
                Change { id: ID, deletes, inserts, updates }
            }
        };
        Frame::Delta { from: update.from, to: update.seq, changes: [change] }
    }
}

fn row(row: &[Value]) -> JsonValue {
    row.iter().map(Value::to_json).collect()
}

fn add_positions(positions: &[usize], rows: Rows) -> Rows {
    positions.iter().zip(rows).map(|(at, row)| json!({"at": at, "row": row})).collect()
}
