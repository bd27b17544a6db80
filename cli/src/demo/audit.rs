//! Compares the file with the acknowledged writes and with the recordings, after the server has stopped.

use std::collections::HashMap;
use std::path::Path;

use abide_client::rows::{AgentState, HandoffRequest, ToolCall, ToolCallStatus};
use abide_client::{Abide, Config, Error, Value};
use abide_engine::verify_file;
use abide_schema::canonical;
use serde_json::{Value as JsonValue, json};

use super::ledger::Acknowledged;
use super::script::{Part, Script};
use crate::failure::Failure;
use crate::log_pages::LogPages;

/// The result of the audit.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Number of events in the log.
    pub(crate) events: u64,
    /// The hash of the last event.
    pub(crate) head: String,
    /// Acknowledged writes whose event is missing or different.
    pub(crate) lost: Vec<String>,
    /// Messages, tool calls and handoffs that differ from the recording.
    pub(crate) differing: Vec<String>,
    /// Pending tool calls, whose recordings have no result.
    pub(crate) pending: u64,
}

/// Audits the whole file.
///
/// # Errors
/// The log does not verify, or the file cannot be read.
pub(crate) async fn audit_file(
    config: Config,
    db: &Path,
    script: &Script,
    acknowledged: Vec<Acknowledged>,
) -> Result<Audit, Failure> {
    let modules = abide_engine::Config::from(config.clone()).modules;
    let verified = verify_file(db, modules, &mut |_| {})?;
    let mut audit = Audit {
        events: verified.events.0.unsigned_abs(),
        head: hex::encode(verified.hash),
        ..Audit::default()
    };
    let file = Abide::open_with(db, config)?;
    audit.lost = find_lost_writes(&file, acknowledged).await?;
    for part in &script.parts {
        compare_messages(&file, part, &mut audit).await?;
        compare_tool_calls(&file, part, &mut audit).await?;
        compare_handoffs(&file, part, &mut audit).await?;
    }
    file.close().await;
    Ok(audit)
}

/// The acknowledged writes that are not in the log, or differ from it.
async fn find_lost_writes(
    file: &Abide,
    acknowledged: Vec<Acknowledged>,
) -> Result<Vec<String>, Error> {
    let mut missing: HashMap<i64, Vec<Acknowledged>> = HashMap::new();
    for write in acknowledged {
        missing.entry(write.seq.0).or_default().push(write);
    }
    let columns = "seq, reducer, arguments";
    let mut log = LogPages::new(file, columns, None, abide_client::Seq::ZERO);
    while let Some(page) = log.next().await? {
        for row in &page.rows {
            let [Value::Integer(seq), Value::Text(reducer), Value::Text(arguments)] = &row[..]
            else {
                continue;
            };
            let Some(writes) = missing.get_mut(seq) else { continue };
            writes.retain(|write| {
                write.reducer != reducer || canonical::to_text(&write.arguments) != *arguments
            });
        }
    }
    let mut lost: Vec<Acknowledged> = missing.into_values().flatten().collect();
    lost.sort_by_key(|write| write.seq);
    Ok(lost.iter().map(|write| format!("{} at event {}", write.reducer, write.seq)).collect())
}

/// Compares every message, byte for byte and in order.
async fn compare_messages(file: &Abide, part: &Part, audit: &mut Audit) -> Result<(), Error> {
    let sql = "SELECT * FROM agent_state WHERE session_id = :session AND kind = 'message'
                ORDER BY id";
    let rows: Vec<AgentState> = file.sql(sql).param("session", &part.session).fetch().await?;
    let recorded = &part.recording.messages;
    for at in 0..recorded.len().max(rows.len()) {
        let same = match (recorded.get(at), rows.get(at)) {
            (Some(message), Some(row)) => message.matches_row(row),
            _ => false,
        };
        if !same {
            audit.differing.push(format!("message {at} of {}", part.session));
        }
    }
    Ok(())
}

/// Compares every tool call: its arguments, its result, and that it took one attempt.
async fn compare_tool_calls(file: &Abide, part: &Part, audit: &mut Audit) -> Result<(), Error> {
    let sql = "SELECT * FROM tool_calls WHERE session_id = :session";
    let rows: Vec<ToolCall> = file.sql(sql).param("session", &part.session).fetch().await?;
    let mut rows: HashMap<String, ToolCall> =
        rows.into_iter().map(|row| (row.call_id.clone(), row)).collect();
    for call in part.recording.calls.iter().filter(|call| !call.is_handoff()) {
        let id = call.id(&part.session);
        let same = rows.remove(&id).is_some_and(|row| {
            let is_same_request = row.arguments.as_str() == canonical::to_text(&call.arguments)
                && row.provider_call_id == call.provider_id
                && row.tool_name == call.tool;
            let is_same_outcome = match &call.outcome {
                None => {
                    audit.pending += 1;
                    row.status == ToolCallStatus::Pending && row.attempt == 0
                }
                Some(outcome) if outcome.failed => {
                    row.status == ToolCallStatus::Failed
                        && row.error.as_deref() == Some(outcome.text.as_deref().unwrap_or(""))
                        && row.attempt == 1
                }
                Some(outcome) => {
                    let text = canonical::to_text(&json!(outcome.text));
                    row.status == ToolCallStatus::Succeeded
                        && row.result.is_some_and(|result| result.as_str() == text)
                        && row.attempt == 1
                }
            };
            is_same_request && is_same_outcome
        });
        if !same {
            audit.differing.push(format!("tool call {id}"));
        }
    }
    audit.differing.extend(rows.into_keys().map(|id| format!("tool call {id}, never recorded")));
    Ok(())
}

/// Compares every handoff: requested once, and answered as recorded.
async fn compare_handoffs(file: &Abide, part: &Part, audit: &mut Audit) -> Result<(), Error> {
    let sql = "SELECT * FROM handoff_requests WHERE session_id = :session ORDER BY created_at";
    let rows: Vec<HandoffRequest> = file.sql(sql).param("session", &part.session).fetch().await?;
    for call in part.recording.calls.iter().filter(|call| call.is_handoff()) {
        let id = call.id(&part.session);
        let outcome = call.outcome.as_ref();
        let mut own = rows.iter().filter(|row| {
            let data = row.data.as_ref().map_or(JsonValue::Null, |data| data.value());
            data["call_id"].as_str() == Some(id.as_str())
        });
        let row = own.next();
        let again = own.next();
        let text = outcome.map(|outcome| outcome.text.as_deref().unwrap_or_default());
        // A handoff without an answer may not have been requested, because the session was already handed off.
        let same = again.is_none()
            && match (row, text) {
                (Some(row), text) => row.resolution.as_deref() == text,
                (None, text) => text.is_none(),
            };
        if !same {
            audit.differing.push(format!("handoff {id}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
