//! Requests of protocols that begin a run or continue one: a message, or decisions on its calls.

use std::collections::BTreeSet;

use abide_engine::Engine;
use abide_schema::reducer::{Caller, DERIVED};
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Refusal, Value, limits};
use abide_server::port::{begin, rows::deny_hidden, rows::objects, runs};
use serde_json::{Map, Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use crate::call::Interrupt;
use crate::decision::Decision;
use crate::state::ProtocolState;

/// The columns of a run that protocols use.
#[derive(Clone, Debug)]
pub(super) struct RunRow {
    pub(super) id: String,
    pub(super) session_id: String,
    pub(super) agent: String,
    pub(super) turn: i64,
    pub(super) has_ended: bool,
    /// In microseconds.
    pub(super) created_at: i64,
    /// Another run has delegated it.
    pub(super) is_delegated: bool,
}

impl RunRow {
    pub(super) fn from_row(row: &JsonValue) -> RunRow {
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| row[name].as_i64().unwrap_or_default();
        RunRow {
            id: text("id"),
            session_id: text("session_id"),
            agent: text("agent"),
            turn: number("turn"),
            has_ended: !row["ended_at"].is_null(),
            created_at: number("created_at"),
            is_delegated: !row["parent_id"].is_null(),
        }
    }
}

/// Returns a run by its id.
pub(super) async fn find(engine: &Engine, by: &Caller, id: &str) -> Result<RunRow, Refusal> {
    let (_, run) = runs::find(engine, by, id).await?;
    Ok(RunRow::from_row(&run))
}

/// Returns an id without the namespace of the caller, as the caller knows it. The caller finds both.
pub(super) fn id_for_caller<'a>(by: &Caller, id: &'a str) -> &'a str {
    id.strip_prefix(by.namespace()).unwrap_or(id)
}

/// Returns the run of the same session that was started before it.
pub(super) async fn find_previous(
    engine: &Engine,
    by: &Caller,
    run: &RunRow,
) -> Result<Option<(String, i64)>, Refusal> {
    let sql = "SELECT id, turn FROM runs WHERE session_id = :session AND created_at < :before \
               ORDER BY created_at DESC LIMIT 1";
    let params = params([("session", json!(run.session_id)), ("before", json!(run.created_at))]);
    let found = engine.query(by, sql, &params, None).await.map_err(deny_hidden)?;
    Ok(found.rows.first().and_then(|row| match &**row {
        [Value::Text(id), Value::Integer(turn)] => Some((id.to_string(), *turn)),
        _ => None,
    }))
}

/// Returns the newest run of a session.
pub(super) async fn newest_run_id(
    engine: &Engine,
    by: &Caller,
    session_id: &str,
) -> Result<Option<String>, Refusal> {
    let sql = "SELECT id FROM runs WHERE session_id = :session ORDER BY created_at DESC LIMIT 1";
    first_texts(engine, by, sql, params([("session", json!(session_id))])).await.map(|mut ids| {
        ids.truncate(1);
        ids.pop()
    })
}

/// Returns the id under which a session is stored, if the caller can see it.
pub(super) async fn find_session_id(
    engine: &Engine,
    by: &Caller,
    id: &str,
) -> Result<Option<String>, Refusal> {
    let sql = "SELECT id FROM sessions WHERE id = :id";
    let mut found = first_texts(engine, by, sql, params([("id", json!(id))])).await?;
    // As in reducers: an id chosen by a caller with a scope is stored in the namespace of that scope.
    if found.is_empty() && !by.namespace().is_empty() {
        let id = format!("{}{id}", by.namespace());
        found = first_texts(engine, by, sql, params([("id", json!(id))])).await?;
    }
    Ok(found.pop())
}

/// Returns the ids of [`undecided_calls`].
pub(super) async fn undecided_call_ids(
    engine: &Engine,
    by: &Caller,
    run: &RunRow,
) -> Result<Vec<String>, Refusal> {
    let calls = undecided_calls(engine, by, run).await?;
    Ok(calls.iter().map(|interrupt| interrupt.call_id().to_owned()).collect())
}

/// Returns the calls for which the last interrupt of a run asks, including those of delegated runs, and that are not
/// decided.
pub(super) async fn undecided_calls(
    engine: &Engine,
    by: &Caller,
    run: &RunRow,
) -> Result<Vec<Interrupt>, Refusal> {
    let sql = "SELECT data FROM run_events WHERE run_id = :run AND turn = :turn \
               AND kind = 'interrupt'";
    let params_of_run = params([("run", json!(run.id)), ("turn", json!(run.turn))]);
    let found = first_texts(engine, by, sql, params_of_run).await?;
    let interrupt: JsonValue =
        found.first().and_then(|data| serde_json::from_str(data).ok()).unwrap_or_default();
    let mut pending = Vec::new();
    for interrupt in Interrupt::from_event(&interrupt) {
        let sql = "SELECT call_id FROM approvals WHERE call_id = :id AND status = 'pending'";
        let id = params([("id", json!(interrupt.call_id()))]);
        if !first_texts(engine, by, sql, id).await?.is_empty() {
            pending.push(interrupt);
        }
    }
    Ok(pending)
}

/// Returns the interrupts for calls that wait outside of a run, with what the caller may see of their approvals.
pub(super) async fn load_interrupts(
    engine: &Engine,
    by: &Caller,
    requests: Vec<JsonValue>,
) -> Result<Vec<Interrupt>, Refusal> {
    let sql = "SELECT id AS approval_id, prompt, defaults, expires_at FROM approvals \
               WHERE call_id = :id";
    let mut all = Vec::new();
    for mut request in requests {
        let id = params([("id", request["tool_call_id"].clone())]);
        match engine.query(by, sql, &id, None).await {
            Ok(found) => {
                for row in objects(&found) {
                    for (name, value) in row.into_iter().filter(|(_, value)| !value.is_null()) {
                        request[name] = value;
                    }
                }
            }
            // A policy hides them.
            Err(refusal) if refusal.code == Code::Denied => {}
            Err(refusal) => return Err(deny_hidden(refusal)),
        }
        all.push(Interrupt::new(request));
    }
    Ok(all)
}

pub(super) async fn first_texts(
    engine: &Engine,
    by: &Caller,
    sql: &str,
    params: Map<String, JsonValue>,
) -> Result<Vec<String>, Refusal> {
    let found = engine.query(by, sql, &params, None).await.map_err(deny_hidden)?;
    let texts = found.rows.iter().filter_map(|row| match row.first() {
        Some(Value::Text(text)) => Some(text.to_string()),
        _ => None,
    });
    Ok(texts.collect())
}

pub(super) fn params<const N: usize>(pairs: [(&str, JsonValue); N]) -> Map<String, JsonValue> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns an id for what a caller names by `name`: the same for the same caller and name.
pub(super) fn derived_id(prefix: &str, by: &Caller, kind: &str, name: &str) -> String {
    let text = json!([kind, by.principal(), name]).to_string();
    let digest = Sha256::digest(text.as_bytes());
    format!("{prefix}{}", hex::encode(&digest[..13]))
}

/// A message for a session.
pub(super) struct Message {
    pub(super) role: String,
    pub(super) text: String,
}

/// A session that a request creates.
pub(super) struct NewSession {
    pub(super) id: String,
    pub(super) metadata: Option<Map<String, JsonValue>>,
}

/// A request that begins a run.
pub(super) struct NewRun {
    pub(super) agent: String,
    pub(super) session_id: String,
    /// If the session does not exist.
    pub(super) new_session: Option<NewSession>,
    /// The messages before the input.
    pub(super) before: Vec<Message>,
    pub(super) input: String,
    /// An id that is the same for a repeated request.
    pub(super) id: Option<String>,
    /// A call that stores something about the request, in the same transaction.
    pub(super) record: Option<BatchCall>,
    /// A call about the run that has begun, in the same transaction.
    pub(super) follow_up: Option<BatchCall>,
}

impl NewRun {
    /// Returns the calls of the request.
    fn into_calls(self) -> StartCalls {
        let mut calls = Vec::new();
        if let Some(NewSession { id, metadata }) = self.new_session {
            let session = json!({"id": id, "agent": self.agent, "metadata": metadata});
            calls.push(runs::reducer_call("create_session", session));
        }
        for Message { role, text } in self.before {
            let message = json!({"session_id": self.session_id, "role": role, "content": text});
            calls.push(runs::reducer_call("append_message", message));
        }
        calls.extend(self.record);
        let run = json!({"session_id": self.session_id, "agent": self.agent, "input": self.input,
            "id": self.id});
        calls.push(runs::reducer_call("start_run", run));
        let start = calls.len() - 1;
        calls.extend(self.follow_up);
        StartCalls { calls, start }
    }
}

/// The calls that begin a run.
struct StartCalls {
    calls: Vec<BatchCall>,
    /// The position of the call that begins the run. The messages of its session are before it.
    start: usize,
}

/// The events of a run.
pub(super) const EVENTS: &str = "SELECT number, turn, kind, data, created_at FROM run_events \
    WHERE run_id = :run ORDER BY number";

/// Bytes of messages in one batch of a history: less than one batch may have, with room for the names of arguments.
const HISTORY_BATCH_BYTES: usize = limits::BATCH_BYTES / 2;

/// Messages in one batch of a history, with room for the calls that begin the run.
const HISTORY_BATCH_CALLS: usize = limits::BATCH_CALLS / 2;

impl StartCalls {
    /// Takes the first messages of a long history from the calls, as batches that a restricted caller may send.
    fn take_history(&mut self) -> Vec<Vec<BatchCall>> {
        let mut counts = Vec::new();
        let mut taken = 0;
        let mut bytes = 0;
        for (position, call) in self.calls[..self.start].iter().enumerate() {
            let own_bytes = call.args["content"].as_str().map_or(0, str::len);
            bytes += own_bytes;
            let is_full = bytes > HISTORY_BATCH_BYTES || position - taken == HISTORY_BATCH_CALLS;
            if is_full && position > taken {
                counts.push(position - taken);
                taken = position;
                bytes = own_bytes;
            }
        }
        // The last batch has the input besides, which may be its largest call.
        if bytes > HISTORY_BATCH_BYTES {
            counts.push(self.start - taken);
            taken = self.start;
        }
        self.start -= taken;
        let mut batches = Vec::new();
        for count in counts {
            batches.push(self.calls.drain(..count).collect());
        }
        batches
    }
}

/// Begins a run. A history that is longer than one batch may be is stored before, without effect until the run begins; all
/// else is all or nothing. `bytes` is the size of the request, `key` its request id. The run does not begin if its
/// events cannot be read: a client that repeats the refused request would begin another one each time.
pub(super) async fn start(
    app: &ProtocolState,
    by: &Caller,
    bytes: usize,
    new: NewRun,
    key: Option<&str>,
) -> Result<RunRow, Refusal> {
    let of_no_run = params([("run", json!(""))]);
    app.engine.connect(by).check_subscribe(EVENTS, &of_no_run).await.map_err(deny_hidden)?;
    let permit = app.port.admit_call(by, bytes).await?;
    let mut begin_calls = new.into_calls();
    for (number, history) in begin_calls.take_history().into_iter().enumerate() {
        // Each has its own request id, so that a repeated request continues where it ended.
        let key = key.map(|key| format!("{key} {number}"));
        let stored = app.engine.batch(by, &history, key.as_deref()).await;
        stored.map_err(Refusal::outside_batch)?;
    }
    let begun = begin(permit, app.engine.batch(by, &begin_calls.calls, key)).await;
    let done = begun.map_err(Refusal::outside_batch)?;
    let result = done
        .results
        .get(begin_calls.start)
        .ok_or_else(|| Refusal::new(Code::Internal, "the batch has no result"))?;
    Ok(RunRow::from_row(&serde_json::from_str(&result.result).unwrap_or_default()))
}

/// Returns `true` if a call of a run waits for its settlement. A call that the caller cannot see does not.
pub(super) async fn is_unsettled(
    engine: &Engine,
    by: &Caller,
    run: &RunRow,
    call_id: &str,
) -> Result<bool, Refusal> {
    let sql = "SELECT call_id FROM tool_calls WHERE call_id = :id AND status = 'unknown' \
               AND session_id = :session";
    let params = params([("id", json!(call_id)), ("session", json!(run.session_id))]);
    Ok(!first_texts(engine, by, sql, params).await?.is_empty())
}

/// The outcome of a call that was unknown, as a person has found it out.
pub(super) struct Settlement {
    pub(super) call_id: String,
    /// The other arguments of `settle_tool_call`.
    pub(super) outcome: Map<String, JsonValue>,
}

impl Settlement {
    /// Returns the call that records it.
    pub(super) fn into_call(self) -> BatchCall {
        let mut args = self.outcome;
        args.insert("call_id".to_owned(), json!(self.call_id));
        runs::reducer_call("settle_tool_call", JsonValue::Object(args))
    }
}

/// Decides on calls of a run, and returns the run. All calls that wait must be decided, because the run continues
/// when none waits. A repeated request finds the same decisions and changes nothing. `before` stores something about the
/// request, in the same transaction.
pub(super) async fn decide(
    app: &ProtocolState,
    by: &Caller,
    run: &RunRow,
    decisions: Vec<Decision>,
    before: Vec<BatchCall>,
) -> Result<RunRow, Refusal> {
    check_calls(&app.engine, by, run, decisions.iter().map(|it| it.call_id.as_str())).await?;
    let pending = undecided_call_ids(&app.engine, by, run).await?;
    if let Some(missing) = pending.iter().find(|id| !decisions.iter().any(|it| it.call_id == **id))
    {
        let detail = format!("there is no decision on the call {missing}");
        let hint = "send the decisions on all calls that wait for one in one request";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    decide_some(app, by, run, decisions, before).await
}

/// Interrupts of a run that are searched for a call; a repeated request is about one of the newest.
const INTERRUPTS: usize = 100;

/// Checks that a run has asked for decisions on these calls. A decision on a call of another run belongs to the address of that run:
/// the client of this one may not even know what it decides.
///
/// # Errors
/// `not_found` names a call for which the run has not asked.
pub(super) async fn check_calls(
    engine: &Engine,
    by: &Caller,
    run: &RunRow,
    call_ids: impl Iterator<Item = &str>,
) -> Result<(), Refusal> {
    let own_id = id_for_caller(by, &run.id);
    let mut requested: Option<BTreeSet<String>> = None;
    for call_id in call_ids {
        // The calls of a run and of the runs that it has delegated.
        let id = id_for_caller(by, call_id);
        if id.strip_prefix(own_id).is_some_and(|rest| rest.starts_with(DERIVED)) {
            continue;
        }
        if requested.is_none() {
            let ids = requested_decisions(engine, by, run).await?;
            requested = Some(ids.iter().map(|id| id_for_caller(by, id).to_owned()).collect());
        }
        if requested.as_ref().is_none_or(|requested| !requested.contains(id)) {
            let detail = format!("run {} has not asked for a decision on {call_id}", run.id);
            return Err(Refusal::new(Code::NotFound, detail)
                .hint("send the decision to the address of the run that has asked for it"));
        }
    }
    Ok(())
}

/// Returns the calls for which the newest interrupts of a run ask.
async fn requested_decisions(
    engine: &Engine,
    by: &Caller,
    run: &RunRow,
) -> Result<BTreeSet<String>, Refusal> {
    let sql = format!(
        "SELECT data FROM run_events WHERE run_id = :run AND kind = 'interrupt' \
         ORDER BY number DESC LIMIT {INTERRUPTS}"
    );
    let found = first_texts(engine, by, &sql, params([("run", json!(run.id))])).await?;
    let interrupts = found.iter().filter_map(|data| serde_json::from_str(data).ok());
    let requests = interrupts.flat_map(|interrupt: JsonValue| {
        interrupt["action_requests"].as_array().cloned().unwrap_or_default()
    });
    Ok(requests.filter_map(|it| it["tool_call_id"].as_str().map(str::to_owned)).collect())
}

/// Decides on some of the calls of a run, and returns the run.
pub(super) async fn decide_some(
    app: &ProtocolState,
    by: &Caller,
    run: &RunRow,
    decisions: Vec<Decision>,
    before: Vec<BatchCall>,
) -> Result<RunRow, Refusal> {
    let calls = decisions.into_iter().map(Decision::into_call);
    let calls: Vec<BatchCall> = before.into_iter().chain(calls).collect();
    app.engine.batch(by, &calls, None).await.map_err(Refusal::outside_batch)?;
    find(&app.engine, by, &run.id).await
}
