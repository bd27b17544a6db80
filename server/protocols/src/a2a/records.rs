//! The messages of clients, in a collection of their scope for each agent. `m/` and a digest of the caller, the context and
//! the id of a message is what became of it: a message is accepted once. `h/`, the task and a number are the messages of a
//! task in order.

use abide_schema::limits::A2A_HISTORY;
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Refusal, Value};
use abide_server::port::{rows::deny_hidden, runs};
use serde_json::{Value as JsonValue, json};

use super::message::Message;
use crate::start::{derived_id, first_texts, params};
use crate::state::ProtocolState;

/// The result of a message.
pub(super) struct Record {
    pub(super) digest: String,
    pub(super) task_id: String,
    /// The turn of the task that the message began.
    pub(super) turn: i64,
}

fn collection_id(agent: &str) -> String {
    format!("a2a/{agent}")
}

/// Returns the key of the result of a message. Ids of other callers of the scope are not found: the collection belongs
/// to no session, so a policy of sessions does not hide it.
fn result_key(by: &Caller, context: &str, message_id: &str) -> String {
    derived_id("m/", by, "a2a message", &json!([context, message_id]).to_string())
}

/// Returns the result of the message with an id in a context, if it was accepted before.
pub(super) async fn find(
    app: &ProtocolState,
    by: &Caller,
    agent: &str,
    context: &str,
    message_id: &str,
) -> Result<Option<Record>, Refusal> {
    let sql = "SELECT data FROM entries WHERE collection_id = :collection AND key = :key";
    let collection = format!("{}{}", by.namespace(), collection_id(agent));
    let key = result_key(by, context, message_id);
    let params = params([("collection", json!(collection)), ("key", json!(key))]);
    let found = first_texts(&app.engine, by, sql, params).await?;
    let Some(data) = found.first() else { return Ok(None) };
    let data: JsonValue = serde_json::from_str(data).unwrap_or_default();
    Ok(Some(Record {
        digest: data["digest"].as_str().unwrap_or_default().to_owned(),
        task_id: data["task"].as_str().unwrap_or_default().to_owned(),
        turn: data["turn"].as_i64().unwrap_or(1),
    }))
}

/// Returns the call that stores a message of a context. It is a conflict if the context has one with this id, or
/// another one that begins the same turn.
pub(super) fn record_call(
    by: &Caller,
    agent: &str,
    context: &str,
    message: &Message,
    task_id: &str,
    turn: i64,
) -> BatchCall {
    let record = json!({"digest": message.digest, "task": task_id, "turn": turn});
    let puts = json!([
        {"key": result_key(by, context, &message.id), "data": record, "expected_seq": 0},
        {"key": format!("h/{task_id}/{turn:08}"), "data": message.to_json(), "expected_seq": 0},
    ]);
    let args = json!({"collection_id": collection_id(agent), "kind": "a2a", "puts": puts});
    runs::reducer_call("write_entries", args)
}

/// Returns the newest messages of a task, in order, at most `max`.
pub(super) async fn load_history(
    app: &ProtocolState,
    by: &Caller,
    agent: &str,
    task_id: &str,
    max: Option<u32>,
) -> Result<Vec<JsonValue>, Refusal> {
    let max = max.map_or(A2A_HISTORY, |max| A2A_HISTORY.min(max as usize));
    // `0` follows `/`.
    let sql = "SELECT data FROM entries WHERE collection_id = :collection AND key > :from \
               AND key < :to ORDER BY key DESC LIMIT :most";
    let collection = format!("{}{}", by.namespace(), collection_id(agent));
    let params = params([
        ("collection", json!(collection)),
        ("from", json!(format!("h/{task_id}/"))),
        ("to", json!(format!("h/{task_id}0"))),
        ("most", json!(max)),
    ]);
    let found = app.engine.query(by, sql, &params, None).await.map_err(deny_hidden)?;
    let messages = found.rows.iter().rev().filter_map(|row| match row.first() {
        Some(Value::Text(text)) => serde_json::from_str(text).ok(),
        _ => None,
    });
    Ok(messages.collect())
}
