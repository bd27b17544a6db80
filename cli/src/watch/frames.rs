//! Updates for programs: the frames of the protocol, one JSON object a line.

use abide_client::{Column, Seq, Subscription, Update, Value};
use serde::Serialize;
use serde_json::Value as JsonValue;

/// The subscription's name in the frames.
const ID: &str = "watch";

/// An update as the protocol tells it. The rows are in the query's order in a snapshot; who needs
/// the order's terms speaks the protocol itself.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Frame<'a> {
    Snapshot { id: &'static str, seq: Seq, columns: &'a [Column], key: &'a [String], rows: Rows },
    Delta { from: Seq, to: Seq, changes: [Change; 1] },
}

/// What changed.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    id: &'static str,
    deletes: Rows,
    inserts: Rows,
    updates: Rows,
}

type Rows = Vec<Vec<JsonValue>>;

/// Makes frames of updates.
#[derive(Debug, Default)]
pub(super) struct Frames {
    begun: bool,
}

impl Frames {
    /// The frame of an update: a snapshot at first, deltas from then on.
    pub(super) fn take<'a>(&mut self, live: &'a Subscription, update: &Update) -> Frame<'a> {
        let inserts = update.insert_rows().map(row).collect();
        if !self.begun || update.reset {
            self.begun = true;
            let (columns, key) = (live.columns(), live.key());
            return Frame::Snapshot { id: ID, seq: update.seq, columns, key, rows: inserts };
        }
        let deletes = update.delete_keys().map(row).collect();
        let updates = update.update_rows().map(row).collect();
        let change = Change { id: ID, deletes, inserts, updates };
        Frame::Delta { from: update.from, to: update.seq, changes: [change] }
    }
}

fn row(row: &[Value]) -> Vec<JsonValue> {
    row.iter().map(Value::to_json).collect()
}
