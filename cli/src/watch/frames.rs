//! Updates for programs: the frames of the protocol, one JSON object a line.

use abide_client::{Subscription, Update, Value};
use serde_json::{Value as JsonValue, json};

/// The subscription's name in the frames.
const ID: &str = "watch";

/// Makes frames of updates.
#[derive(Debug, Default)]
pub(super) struct Frames {
    begun: bool,
}

impl Frames {
    /// The frame of an update: a snapshot at first, deltas from then on.
    pub(super) fn take(&mut self, subscription: &Subscription, update: &Update) -> JsonValue {
        let inserts: Vec<JsonValue> = update.insert_rows().map(row).collect();
        if !self.begun || update.reset {
            self.begun = true;
            return json!({
                "op": "snapshot",
                "id": ID,
                "seq": update.seq,
                "columns": subscription.columns(),
                "key": subscription.key(),
                "rows": inserts,
            });
        }
        let change = json!({
            "id": ID,
            "deletes": update.delete_keys().map(row).collect::<Vec<_>>(),
            "inserts": inserts,
            "updates": update.update_rows().map(row).collect::<Vec<_>>(),
        });
        json!({"op": "delta", "from": update.from, "to": update.seq, "changes": [change]})
    }
}

fn row(row: &[Value]) -> JsonValue {
    row.iter().map(Value::to_json).collect()
}
