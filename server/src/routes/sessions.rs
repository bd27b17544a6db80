//! Sessions over REST: the collection, the state now or at a checkpoint of a run, the abort of what is active, and forks.

pub(super) mod resource;

use abide_engine::Engine;
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal, Seq};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};

use super::reducer_route::{ReducerRoute, arguments};
use super::response::{committed_value, counted_value};
use super::rows::{query_rows, row_of_result, stored_ids};
use super::runs::{abort_reason, find as find_run, path, reducer_call};
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::problem::Problem;
use crate::query_string::invalid_query_string;
use crate::single::idempotency_key;

const SESSION: &str = "SELECT * FROM sessions WHERE id = :id";

/// The active run, or else the newest one.
const RUN: &str = "SELECT * FROM runs WHERE session_id = :id \
    ORDER BY ended_at IS NOT NULL, created_at DESC, seq DESC LIMIT 1";

/// The last messages, the newest first.
const MESSAGES: &str =
    "SELECT * FROM agent_state WHERE session_id = :id ORDER BY id DESC LIMIT :last";

const ACTIVE: &str =
    "SELECT id FROM runs WHERE session_id = :id AND status IN ('running', 'waiting')";

/// The commits after which the state of a run is a checkpoint, and the event of the next step.
const STEPS: &str = "SELECT s.seq, s.turn, s.events, \
      (SELECT n.seq FROM run_events n WHERE n.run_id = :id AND n.number = s.events + 1) AS next \
    FROM (SELECT seq, turn, MAX(number) AS events FROM run_events \
      WHERE run_id = :id AND number > :after GROUP BY seq \
      HAVING MAX(kind IN ('usage', 'tool_result', 'interrupt', 'done', 'error')) = 1) AS s \
    ORDER BY s.seq LIMIT :limit";

/// Checkpoints in one answer.
const CHECKPOINTS: usize = 500;

/// Messages in a state without `last`, and at most.
const LAST: usize = 100;
const LAST_MAX: usize = 10_000;

/// The query string.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateQuery {
    /// The event of the log after which the state is read.
    at: Option<i64>,
    /// The number of messages.
    last: Option<usize>,
}

/// Returns the state of a session.
pub(super) async fn get(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<StateQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let id = path(id, "id of the session")?;
    let Query(StateQuery { at, last }) =
        query.map_err(|why| invalid_query_string(Code::BadArguments, &why).hint(state_hint()))?;
    let last = last.unwrap_or(LAST);
    if last > LAST_MAX || at.is_some_and(|at| at < 0) {
        let detail = "invalid query string: at or last is out of range";
        return Err(Refusal::new(Code::BadArguments, detail).hint(state_hint()).into());
    }
    let (seq, session) = find(&app.engine, &by, &id, at.map(Seq)).await?;
    // The other queries read the same point in time.
    let of_session = [("id", session["id"].clone())];
    let (_, runs) = query_rows(&app.engine, &by, RUN, of_session, Some(seq)).await?;
    let of_messages = [("id", session["id"].clone()), ("last", json!(last))];
    let (_, mut messages) = query_rows(&app.engine, &by, MESSAGES, of_messages, Some(seq)).await?;
    messages.reverse();
    let run = runs.into_iter().next();
    let reply = move || json!({"seq": seq, "session": session, "run": run, "messages": messages});
    Ok(counted_value(&app, &by, reply).await?)
}

fn state_hint() -> String {
    format!("omit it, or send ?at=SEQ of a checkpoint and &last= of at most {LAST_MAX}")
}

/// Where a page of checkpoints begins.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckpointsQuery {
    /// The number of events at the last checkpoint of the page before.
    after: Option<i64>,
}

/// Lists the checkpoints of a run, a page at a time.
pub(super) async fn checkpoints(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<CheckpointsQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let id = path(id, "id of the run")?;
    let Query(CheckpointsQuery { after }) = query.map_err(|why| {
        let hint = "omit it, or send ?after= with next of the previous page";
        invalid_query_string(Code::BadArguments, &why).hint(hint)
    })?;
    let (_, run) = find_run(&app.engine, &by, &id).await?;
    let of_run = [
        ("id", run["id"].clone()),
        ("after", json!(after.unwrap_or(0))),
        ("limit", json!(CHECKPOINTS + 1)),
    ];
    let (seq, mut found) = query_rows(&app.engine, &by, STEPS, of_run, None).await?;
    let has_more = found.len() > CHECKPOINTS;
    found.truncate(CHECKPOINTS);
    let next = found.last().filter(|_| has_more).map(|last| last["events"].clone());
    // Other rows of a step follow its events in the log. They are present at the last event before the next step.
    // Nothing follows the end of a run, so its last checkpoint stays where it is.
    let end = run["seq"].as_i64().filter(|_| !run["ended_at"].is_null());
    let last = end.unwrap_or(seq.0);
    let mut all = Vec::new();
    for step in &found {
        let at = step["next"].as_i64().map_or(last, |next| next - 1);
        all.push(json!({"at": at, "turn": step["turn"], "events": step["events"]}));
    }
    let reply = json!({"seq": seq, "session_id": run["session_id"], "checkpoints": all,
        "next": next});
    Ok(counted_value(&app, &by, move || reply).await?)
}

/// Aborts the active run of a session. `aborted` is false if there is none.
pub(super) async fn abort(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let id = path(id, "id of the session")?;
    let reason = abort_reason(&content).await?;
    if idempotency_key(&headers)?.is_some() {
        // The active run can be another one when the request is repeated, so there is no first answer to repeat.
        let detail = "the abort of a session takes no Idempotency-Key";
        let hint = "POST /v1/runs/{id}/abort takes one";
        return Err(Refusal::new(Code::BadRequest, detail).hint(hint).into());
    }
    let (seq, session) = find(&app.engine, &by, &id, None).await?;
    let of_session = [("id", session["id"].clone())];
    let (_, active) = query_rows(&app.engine, &by, ACTIVE, of_session, None).await?;
    let mut reply = json!({"seq": seq, "aborted": false, "run": null});
    if let Some(run) = active.first() {
        let abort = reducer_call("abort_run", json!({"id": run["id"], "reason": reason}));
        match app.engine.call(&by, &abort.reducer, &abort.args, None).await {
            Ok(done) => {
                let run = row_of_result(&done.result);
                reply = json!({"seq": done.seq, "aborted": true, "run": run});
            }
            // It ended between the query and the call.
            Err(refusal) if refusal.code == Code::BadTransition => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(committed_value(&app, &by, move || reply).await?)
}

/// Forks a session.
pub(super) async fn fork(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let shape = r#"{"at": 42, "id": "…"}, or nothing"#;
    let id = path(id, "id of the session")?;
    let args = arguments(&content, shape, "session_id", &id).await?;
    if let Some(at) = args["at"].as_i64() {
        check_begun(&app.engine, &by, &id, at).await?;
    }
    let route =
        ReducerRoute { reducer: "fork_session", result: "fork", status: StatusCode::CREATED };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Refuses an event before the session: the fork would be empty.
async fn check_begun(engine: &Engine, by: &Caller, id: &str, at: i64) -> Result<(), Refusal> {
    let sql = "SELECT min(seq) AS first FROM events WHERE session_id = :id";
    for stored in stored_ids(by, id) {
        // A policy can hide the events; then the fork is made.
        let Ok((_, found)) = query_rows(engine, by, sql, [("id", json!(stored))], None).await
        else {
            continue;
        };
        let first = found.first().and_then(|row| row["first"].as_i64());
        if let Some(first) = first.filter(|first| (1..*first).contains(&at)) {
            let detail = format!("session {id} begins at event {first}, after event {at}");
            return Err(Refusal::new(Code::BadArguments, detail)
                .hint_query("SELECT seq, reducer FROM events WHERE session_id = :id"));
        }
    }
    Ok(())
}

/// Finds a session, now or as of an event of the log.
async fn find(
    engine: &Engine,
    by: &Caller,
    id: &str,
    at: Option<Seq>,
) -> Result<(Seq, JsonValue), Refusal> {
    for stored in stored_ids(by, id) {
        let of_session = [("id", json!(stored))];
        let (seq, found) = query_rows(engine, by, SESSION, of_session, at).await?;
        if let Some(session) = found.into_iter().next() {
            return Ok((seq, JsonValue::Object(session)));
        }
    }
    Err(Refusal::new(Code::NotFound, format!("there is no session {id}"))
        .hint_query("SELECT id, agent, status FROM sessions"))
}
