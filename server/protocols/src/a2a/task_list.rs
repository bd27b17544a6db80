//! The list of tasks: the runs of an agent, the last changed first. The table `run_lists` has them by scope, so the runs of other
//! scopes and agents cost nothing.

use std::collections::BTreeSet;

use abide_schema::{Caller, Value};
use abide_server::port::rows::deny_hidden;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Map, Value as JsonValue, json};

use super::error::{A2aError, A2aResult};
use super::params::{parse_time, text_field};
use super::task::{CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING};
use crate::start::params;
use crate::state::ProtocolState;

/// The columns of a row of the list.
const COLUMNS: &str = "r.id, r.session_id, r.agent, r.turn, r.status, r.reason, r.events, \
                       r.ended_at, r.created_at, r.updated_at, r.parent_id";

/// Where active runs are, see `run_lists`.
const ACTIVE: i64 = i64::MAX;

/// Conditions of a list of tasks.
pub(super) struct Filter {
    /// The tables and the conditions of the client.
    from: String,
    is_of_context: bool,
    params: Map<String, JsonValue>,
}

impl Filter {
    pub(super) fn parse(by: &Caller, agent: &str, given: &JsonValue) -> A2aResult<Filter> {
        let mut params = params([("agent", json!(agent))]);
        let context = text_field(given, "contextId")?;
        let mut from = match context {
            Some(context) => {
                params.insert("context".to_owned(), json!(context));
                let own = format!("{}{context}", by.namespace());
                params.insert("own_context".to_owned(), json!(own));
                "FROM runs r WHERE r.session_id IN (:context, :own_context) AND r.agent = :agent \
                 AND r.parent_id IS NULL"
            }
            None => {
                // The list of each key of the scope has all runs that the caller can see. Which one is the shortest is not
                // known.
                let part = by.scope().iter().next_back();
                let part = part.map(|(key, value)| json!([key, value]).to_string());
                params.insert("part".to_owned(), json!(part.unwrap_or_default()));
                "FROM run_lists l JOIN runs r ON r.id = l.run_id \
                 WHERE l.agent = :agent AND l.part = :part"
            }
        }
        .to_owned();
        if let Some(state) =
            text_field(given, "status")?.filter(|it| *it != "TASK_STATE_UNSPECIFIED")
        {
            from.push_str(" AND ");
            from.push_str(condition(state)?);
        }
        if let Some(after) = text_field(given, "statusTimestampAfter")? {
            from.push_str(" AND r.updated_at >= :after");
            if context.is_none() {
                from.push_str(" AND l.ended_at >= :after");
            }
            let after = parse_time(after).ok_or_else(|| {
                A2aError::invalid("statusTimestampAfter is not a time of RFC 3339")
            })?;
            params.insert("after".to_owned(), json!(after));
        }
        Ok(Filter { from, is_of_context: context.is_some(), params })
    }

    /// Returns the number of all tasks.
    pub(super) async fn count(&self, app: &ProtocolState, by: &Caller) -> A2aResult<i64> {
        let sql = format!("SELECT count(*) {}", self.from);
        let counted = app.engine.query(by, &sql, &self.params, None).await;
        let counted = counted.map_err(deny_hidden)?;
        Ok(match counted.rows.first().and_then(|row| row.first()) {
            Some(Value::Integer(total)) => *total,
            _ => 0,
        })
    }

    /// Returns the rows after a place, the last changed first.
    pub(super) async fn rows(
        &self,
        app: &ProtocolState,
        by: &Caller,
        after: Option<&PageToken>,
        most: usize,
    ) -> A2aResult<Vec<JsonValue>> {
        let by_update = Part { condition: "", at: "r.updated_at", id: "r.id" };
        if self.is_of_context {
            return self.read(app, by, by_update, after, most).await;
        }
        // Active runs first: one that ends meanwhile is then found twice, and not missed.
        let is_active = format!("AND l.ended_at = {ACTIVE}");
        let active = Part { condition: &is_active, ..by_update };
        let mut rows = self.read(app, by, active, after, most).await?;
        let has_ended = format!("AND l.ended_at < {ACTIVE}");
        let ended = Part { condition: &has_ended, at: "l.ended_at", id: "l.run_id" };
        let ended = self.read(app, by, ended, after, most).await?;
        let again: BTreeSet<&str> = ended.iter().filter_map(|row| row["id"].as_str()).collect();
        rows.retain(|row| row["id"].as_str().is_none_or(|id| !again.contains(id)));
        rows.extend(ended);
        rows.sort_by_key(|row| {
            std::cmp::Reverse((
                row["updated_at"].as_i64(),
                row["id"].as_str().unwrap_or_default().to_owned(),
            ))
        });
        rows.truncate(most);
        Ok(rows)
    }

    async fn read(
        &self,
        app: &ProtocolState,
        by: &Caller,
        part: Part<'_>,
        after: Option<&PageToken>,
        most: usize,
    ) -> A2aResult<Vec<JsonValue>> {
        let Part { condition, at, id } = part;
        let mut params = self.params.clone();
        let mut page = String::new();
        if let Some(token) = after {
            page = format!("AND ({at}, {id}) < (:at, :id)");
            params.insert("at".to_owned(), json!(token.updated_at));
            params.insert("id".to_owned(), json!(token.id));
        }
        let from = &self.from;
        let sql = format!(
            "SELECT {COLUMNS} {from} {condition} {page} ORDER BY {at} DESC, {id} DESC LIMIT {most}"
        );
        let found = app.engine.query(by, &sql, &params, None).await.map_err(deny_hidden)?;
        let rows = found.rows.iter().map(|row| {
            let cells = found.columns.iter().zip(row.iter());
            cells.map(|(name, cell)| (name.clone(), cell.to_json())).collect()
        });
        Ok(rows.collect())
    }
}

/// A part of the list, in descending order of two columns.
#[derive(Clone, Copy)]
struct Part<'a> {
    condition: &'a str,
    at: &'a str,
    id: &'a str,
}

/// Returns the SQL condition for a state.
fn condition(state: &str) -> A2aResult<&'static str> {
    Ok(match state {
        SUBMITTED => "status = 'running' AND events <= 1",
        WORKING => {
            "(status = 'running' AND events > 1 OR status = 'waiting' AND reason <> 'approval')"
        }
        INPUT_REQUIRED => "status = 'waiting' AND reason = 'approval'",
        COMPLETED => "status = 'done'",
        FAILED => "status = 'failed'",
        CANCELED => "status = 'aborted'",
        "TASK_STATE_REJECTED" | "TASK_STATE_AUTH_REQUIRED" => "0",
        _ => return Err(A2aError::invalid(format!("there is no state {state}"))),
    })
}

/// Returns the state of a row of `runs`.
pub(super) fn state_of_row(row: &JsonValue) -> &'static str {
    match (row["status"].as_str().unwrap_or_default(), row["reason"].as_str()) {
        ("done", _) => COMPLETED,
        ("failed", _) => FAILED,
        ("aborted", _) => CANCELED,
        ("waiting", Some("approval")) => INPUT_REQUIRED,
        ("running", _) if row["events"].as_i64().unwrap_or_default() <= 1 => SUBMITTED,
        _ => WORKING,
    }
}

/// The place of a task in the list.
pub(super) struct PageToken {
    updated_at: i64,
    id: String,
}

impl PageToken {
    pub(super) fn after_row(row: &JsonValue) -> String {
        let place = json!([row["updated_at"], row["id"]]).to_string();
        BASE64_URL_SAFE_NO_PAD.encode(place)
    }

    pub(super) fn parse(token: &str) -> A2aResult<PageToken> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok();
        let place = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let (updated_at, id) = place
            .ok_or_else(|| A2aError::invalid("pageToken is not the nextPageToken of a page"))?;
        Ok(PageToken { updated_at, id })
    }
}
