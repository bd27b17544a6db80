//! Texts of queries, by an unrestricted caller and by a tenant: each is refused, or its first
//! result equals SQLite's result for the original text.

use std::collections::{BTreeMap, BTreeSet};

use abide_engine::{Connection, SubscribeRequest, Update};
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal, Row, Value};
use serde_json::Map;

use crate::engine::FuzzEngine;

/// See the [module](self).
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    FuzzEngine::with(|bench| {
        let scope = BTreeMap::from([("tenant".to_owned(), "t1".to_owned())]);
        let tenant = Caller::with("tenant", "app", BTreeSet::new(), scope);
        for caller in [Caller::local(), tenant] {
            bench.runtime.block_on(compare(bench, &caller, text));
        }
    });
}

async fn compare(bench: &FuzzEngine, caller: &Caller, text: &str) {
    let params = Map::new();
    let asked = bench.engine.query(caller, text, &params, None).await;
    let mut connection = bench.engine.connect(caller);
    let begun = connection.subscribe(&SubscribeRequest::new("q", text, &params)).await;
    let live = match begun {
        Ok(()) => rows(&mut connection).await,
        Err(refusal) => Err(refusal),
    };
    for refusal in [asked.as_ref().err(), live.as_ref().err()].into_iter().flatten() {
        assert_ne!(refusal.code, Code::Internal, "{text:?}: {refusal}");
        assert!(!refusal.detail.is_empty(), "{text:?}");
    }
    let (Ok(asked), Ok(live)) = (asked, live) else { return };
    assert_eq!(asked.rows.len(), live.len(), "{text:?}");
    if is_determined(text, &live) {
        assert_eq!(sorted(&asked.rows), sorted(&live), "{text:?}");
    }
}

/// The first result of a subscription.
async fn rows(connection: &mut Connection) -> Result<Vec<Row>, Refusal> {
    let mut rows = Vec::new();
    loop {
        match connection.next().await {
            Update::Snapshot(part) => {
                // Hidden order columns come after the visible ones.
                let width = part.info.shape.columns.iter().filter(|column| !column.hidden).count();
                rows.extend(part.rows.iter().map(|row| row[..width.min(row.len())].into()));
                if !part.more {
                    return Ok(rows);
                }
            }
            Update::Error { refusal, .. } => return Err(refusal),
            _ => {}
        }
    }
}

/// Whether the result is deterministic: it does not depend on which rows a LIMIT takes, or on the
/// order of concatenation or addition.
fn is_determined(text: &str, rows: &[Row]) -> bool {
    let text = text.to_ascii_lowercase();
    let chosen = ["limit", "group_concat", "string_agg", "json_group", "over", "group by"];
    !chosen.iter().any(|word| text.contains(word))
        && !rows.iter().any(|row| row.iter().any(|cell| matches!(cell, Value::Real(_))))
}

fn sorted(rows: &[Row]) -> Vec<String> {
    let mut texts: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
    texts.sort();
    texts
}
