//! A record for each tool call whose outcome becomes unknown: it waits until a person settles it.

use std::time::Duration;

use abide_engine::Engine;
use abide_schema::{Caller, Refusal, Seq, Value};
use serde_json::{Map, Value as JsonValue};
use tokio::time::{Instant, sleep};

use crate::connections::lifecycle::{Lifecycle, Phase};

/// Calls that became unknown after an event. There are few: each one waits for a person.
const UNKNOWN: &str = "SELECT seq, call_id, tool_name FROM tool_calls \
    WHERE status = 'unknown' AND seq > :seen ORDER BY seq LIMIT 20";

/// The LIMIT of [`UNKNOWN`].
const MOST: usize = 20;

/// The least pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// The part of the time of a reader that the looks may take, as its inverse: somebody may leave very many calls unknown.
const SHARE: u32 = 50;

/// Logs calls that become unknown, until the server stops.
pub(crate) async fn log(engine: Engine, lifecycle: Lifecycle) {
    if engine.table_columns(&Caller::local(), "tool_calls").is_none() {
        return;
    }
    tokio::select! {
        () = lifecycle.wait_for(Phase::Draining) => {}
        () = log_all(&engine) => {}
    }
}

async fn log_all(engine: &Engine) {
    let mut changes = engine.watch_tables(&["tool_calls"]);
    let mut seen = engine.durable_seq();
    while changes.changed().await.is_ok() {
        let begun = Instant::now();
        match read(engine, seen).await {
            Ok((last, has_more)) => {
                seen = last;
                if has_more {
                    changes.mark_changed();
                }
            }
            Err(refusal) => {
                tracing::debug!(%refusal, "the calls with an unknown outcome cannot be read now");
                // What it missed is read again.
                changes.mark_changed();
            }
        }
        sleep(PAUSE.max(begun.elapsed() * SHARE)).await;
    }
}

/// Logs the calls that became unknown after an event. Returns the last event that was seen, and whether there may be more.
async fn read(engine: &Engine, seen: Seq) -> Result<(Seq, bool), Refusal> {
    let params: Map<String, JsonValue> = [("seen".to_owned(), seen.0.into())].into_iter().collect();
    let found = engine.read_uncounted(UNKNOWN, &params).await?;
    let mut last = seen;
    for row in &found.rows {
        let [Value::Integer(seq), Value::Text(call_id), Value::Text(tool)] = &row[..] else {
            continue;
        };
        last = Seq(*seq);
        tracing::warn!(name: "call_unknown", call_id, tool, seq, "the outcome of a tool call is unknown: settle it");
    }
    Ok((last, found.rows.len() == MOST))
}
