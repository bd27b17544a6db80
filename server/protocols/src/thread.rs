//! A session that the client has named, as chats and threads of protocols are: it is created by its first message.
//!
//! The id of a run follows from the id of the message that begins it, and ends with a digest of its text. So the same message is
//! the same run, and a message that the client has edited is recognised.

use std::collections::HashMap;

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use abide_server::port::RequestBody;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::decision::Decision;
use crate::start::{self, NewRun, NewSession, RunRow, Settlement};
use crate::state::ProtocolState;
use crate::turn::Turn;

/// A request in a thread.
pub(super) struct ThreadRequest {
    pub(super) agent: String,
    pub(super) thread: String,
    /// What the client shows before the input, the oldest first. It may be less than the session has.
    pub(super) history: Vec<ShownMessage>,
    pub(super) input: ThreadInput,
}

/// A message that a client shows.
pub(super) enum ShownMessage {
    /// A message of the user.
    User(UserMessage),
    /// A message of this run.
    OfRun(String),
}

/// A message of the user. The same id and text in the same thread are the same run.
pub(super) struct UserMessage {
    pub(super) id: String,
    pub(super) text: String,
}

impl UserMessage {
    /// Returns the id of the run that the message begins, without the digest of its text.
    fn run_prefix(&self, by: &Caller, thread: &str) -> String {
        start::derived_id("run_", by, "thread", &json!([thread, self.id]).to_string())
    }

    /// Returns the id of the run that the message begins.
    fn run_id(&self, by: &Caller, thread: &str) -> String {
        let digest = Sha256::digest(self.text.as_bytes());
        format!("{}-{}", self.run_prefix(by, thread), hex::encode(&digest[..8]))
    }
}

/// The content of a request in a thread.
pub(super) enum ThreadInput {
    Message(UserMessage),
    /// Decisions on the calls that wait, and the outcomes of calls whose outcome is unknown.
    Decisions(Vec<Decision>, Vec<Settlement>),
}

/// Begins or continues a run. Returns it, and its turns that answer the request.
pub(super) async fn send(
    app: &ProtocolState,
    by: &Caller,
    content: &RequestBody,
    request: ThreadRequest,
) -> Result<(RunRow, Turn), Refusal> {
    let session = start::find_session_id(&app.engine, by, &request.thread).await?;
    if let Some(session) = &session {
        check_history(app, by, session, &request).await?;
    }
    let ThreadRequest { agent, thread, input, .. } = request;
    match input {
        ThreadInput::Message(message) => {
            let run_id = message.run_id(by, &thread);
            let new_run = |new_session| NewRun {
                agent: agent.clone(),
                session_id: thread.clone(),
                new_session,
                before: Vec::new(),
                input: message.text.clone(),
                id: Some(run_id.clone()),
                record: None,
                follow_up: None,
            };
            let first = new_run(
                session.is_none().then(|| NewSession { id: thread.clone(), metadata: None }),
            );
            let started = start::start(app, by, content.bytes(), first, None).await;
            let run = match started {
                // Another request has created the session in the meantime.
                Err(refusal) if session.is_none() && refusal.code == Code::Conflict => {
                    start::start(app, by, content.bytes(), new_run(None), None).await?
                }
                Err(refusal) => return Err(hint_at_abort(app, by, &thread, refusal).await),
                Ok(run) => run,
            };
            let turns = Turn::span(1, run.turn);
            Ok((run, turns))
        }
        ThreadInput::Decisions(decisions, settlements) => {
            let run = newest_run(app, by, &thread).await?.filter(|run| run.agent == agent);
            let run = run.ok_or_else(|| {
                Refusal::new(Code::NotFound, format!("agent {agent} has no run in {thread}"))
                    .hint("send a message first")
            })?;
            let before = run.turn;
            check_answers(app, by, &run, &decisions).await?;
            let settled = settlements.iter().map(|it| it.call_id.as_str());
            start::check_calls(&app.engine, by, &run, settled).await?;
            let settlements = settlements.into_iter().map(Settlement::into_call).collect();
            let run = start::decide(app, by, &run, decisions, settlements).await?;
            let first = (before + 1).min(run.turn);
            let turns = Turn::span(first, run.turn);
            Ok((run, turns))
        }
    }
}

/// Refuses a history that is not the one of the session: the agent would answer something else than what the client shows. A message with
/// an id of the session has its text, and the last message of a run is one of the newest run. Other messages are not checked, because
/// clients also show messages that were refused or that they have from elsewhere.
async fn check_history(
    app: &ProtocolState,
    by: &Caller,
    session: &str,
    request: &ThreadRequest,
) -> Result<(), Refusal> {
    let ThreadRequest { agent, thread, history, input } = request;
    let input = match input {
        ThreadInput::Message(message) => Some(message),
        ThreadInput::Decisions(..) => None,
    };
    let users = history.iter().filter_map(|shown| match shown {
        ShownMessage::User(message) => Some(message),
        ShownMessage::OfRun(_) => None,
    });
    let prefixes: Vec<String> =
        users.chain(input).map(|message| stored_id(by, &message.run_prefix(by, thread))).collect();
    let length = prefixes.first().map_or(0, String::len);
    let sql = "SELECT id FROM runs WHERE session_id = :session \
               AND substr(id, 1, :length) IN (SELECT value FROM json_each(:prefixes))";
    let params = start::params([
        ("session", json!(session)),
        ("length", json!(length)),
        ("prefixes", json!(json!(prefixes).to_string())),
    ]);
    let found = start::first_texts(&app.engine, by, sql, params).await?;
    let runs: HashMap<&str, &str> = found.iter().map(|id| (&id[..length], id.as_str())).collect();
    let mut last = None;
    for shown in history {
        last = match shown {
            ShownMessage::User(message) => find_run_id(&runs, by, thread, message)?.or(last),
            ShownMessage::OfRun(run) => Some(run.as_str()),
        };
    }
    // A message that is repeated has a run, whatever has followed.
    let Some(message) = input else { return Ok(()) };
    if find_run_id(&runs, by, thread, message)?.is_some() {
        return Ok(());
    }
    let Some(last) = last else { return Ok(()) };
    let newest = newest_run(app, by, thread).await?.filter(|run| run.agent == *agent);
    match newest {
        Some(newest) if newest.id != last && is_in_session(app, by, last, session).await? => {
            let detail = format!(
                "the message {} does not follow the end of the session: run {} has followed run {last}",
                message.id, newest.id
            );
            Err(Refusal::new(Code::Conflict, detail).hint(NO_BRANCHES))
        }
        _ => Ok(()),
    }
}

/// Returns the run of a message of the session. `runs` has the runs by their ids without the digests.
fn find_run_id<'a>(
    runs: &HashMap<&str, &'a str>,
    by: &Caller,
    thread: &str,
    message: &UserMessage,
) -> Result<Option<&'a str>, Refusal> {
    let Some(run) = runs.get(stored_id(by, &message.run_prefix(by, thread)).as_str()) else {
        return Ok(None);
    };
    if *run != stored_id(by, &message.run_id(by, thread)) {
        let detail = format!("the message {} was sent with another text", message.id);
        return Err(Refusal::new(Code::BadArguments, detail).hint(NO_BRANCHES));
    }
    Ok(Some(*run))
}

/// Returns an id with the namespace of the caller.
fn stored_id(by: &Caller, id: &str) -> String {
    format!("{}{id}", by.namespace())
}

/// What a client can do instead of editing a message.
pub(super) const NO_BRANCHES: &str =
    "load the messages of the session and send another one: a session has no branches";

/// Returns `true` if a run belongs to a session.
async fn is_in_session(
    app: &ProtocolState,
    by: &Caller,
    run_id: &str,
    session: &str,
) -> Result<bool, Refusal> {
    match start::find(&app.engine, by, run_id).await {
        Ok(run) => Ok(run.session_id == session),
        Err(refusal) if refusal.code == Code::NotFound => Ok(false),
        Err(refusal) => Err(refusal),
    }
}

/// Refuses decisions on what needs another answer.
async fn check_answers(
    app: &ProtocolState,
    by: &Caller,
    run: &RunRow,
    decisions: &[Decision],
) -> Result<(), Refusal> {
    for Decision { call_id, .. } in decisions {
        if *call_id == run.id {
            let detail = format!("run {call_id} does not wait for a decision on a call");
            let hint = "GET /v1/runs/{id} has the reason; POST /v1/runs/{id}/resume continues \
                        a run that is paused";
            return Err(Refusal::new(Code::Conflict, detail).hint(hint));
        }
        if start::is_unsettled(&app.engine, by, run, call_id).await? {
            let detail = format!(
                "the outcome of the call {call_id} is unknown: it needs a settlement, not an approval"
            );
            let hint = r#"find out whether it had an effect, and send "payload": {"outcome": "succeeded"}"#;
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
        }
    }
    Ok(())
}

/// Names the route that ends the run which keeps a message from being sent: the page of the thread may have stopped reading
/// without stopping the run.
async fn hint_at_abort(
    app: &ProtocolState,
    by: &Caller,
    thread: &str,
    refusal: Refusal,
) -> Refusal {
    let is_active = refusal.code == Code::Conflict
        && matches!(newest_run(app, by, thread).await, Ok(Some(run)) if !run.has_ended);
    if is_active {
        refusal.hint(format!("wait until it ends, or stop it: POST /v1/sessions/{thread}/abort"))
    } else {
        refusal
    }
}

/// Returns the newest run of a thread, if there is one.
pub(super) async fn newest_run(
    app: &ProtocolState,
    by: &Caller,
    thread: &str,
) -> Result<Option<RunRow>, Refusal> {
    let Some(session) = start::find_session_id(&app.engine, by, thread).await? else {
        return Ok(None);
    };
    match start::newest_run_id(&app.engine, by, &session).await? {
        Some(id) => start::find(&app.engine, by, &id).await.map(Some),
        None => Ok(None),
    }
}
