//! A session that the client has named, as chats and threads of protocols are: it is created by its first message.

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use serde_json::json;

use super::start::{self, Decision, NewRun, NewSession, RunRow, Settlement};
use super::turn::Turn;
use crate::app_state::AppState;
use crate::body::RequestBody;

/// The content of a request in a thread.
pub(super) enum ThreadInput {
    /// A message of the user. The same id and text in the same thread are the same run.
    Message { id: String, text: String },
    /// Decisions on the calls that wait, and the outcomes of calls whose outcome is unknown.
    Decisions(Vec<Decision>, Vec<Settlement>),
}

/// Begins or continues a run. Returns it, and its turns that answer the request.
pub(super) async fn send(
    app: &AppState,
    by: &Caller,
    content: &RequestBody,
    (agent, thread): (String, String),
    input: ThreadInput,
) -> Result<(RunRow, Turn), Refusal> {
    match input {
        ThreadInput::Message { id, text } => {
            let name = json!([thread, id, text]).to_string();
            let run_id = start::derived_id("run_", by, "thread", &name);
            let new = |new_session| NewRun {
                agent: agent.clone(),
                session_id: thread.clone(),
                new_session,
                before: Vec::new(),
                input: text.clone(),
                id: Some(run_id.clone()),
                record: None,
                follow_up: None,
            };
            let session = start::session(&app.engine, by, &thread).await?;
            let made = || NewSession { id: thread.clone(), metadata: None };
            let first = new(session.is_none().then(made));
            let started = start::start(app, by, content.bytes(), first, None).await;
            let run = match started {
                // Another request has created the session in the meantime.
                Err(refusal) if session.is_none() && refusal.code == Code::Conflict => {
                    start::start(app, by, content.bytes(), new(None), None).await?
                }
                Err(refusal) => return Err(with_way_out(app, by, &thread, refusal).await),
                Ok(run) => run,
            };
            let turns = Turn::span(1, run.turn);
            Ok((run, turns))
        }
        ThreadInput::Decisions(decisions, settlements) => {
            let run = newest(app, by, &thread).await?.filter(|run| run.agent == agent);
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

/// Refuses decisions on what needs another answer.
async fn check_answers(
    app: &AppState,
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
async fn with_way_out(app: &AppState, by: &Caller, thread: &str, refusal: Refusal) -> Refusal {
    let is_active = refusal.code == Code::Conflict
        && matches!(newest(app, by, thread).await, Ok(Some(run)) if !run.has_ended);
    if is_active {
        refusal.hint(format!("wait until it ends, or stop it: POST /v1/sessions/{thread}/abort"))
    } else {
        refusal
    }
}

/// The newest run of a thread, if there is one.
pub(super) async fn newest(
    app: &AppState,
    by: &Caller,
    thread: &str,
) -> Result<Option<RunRow>, Refusal> {
    let Some(session) = start::session(&app.engine, by, thread).await? else { return Ok(None) };
    match start::newest(&app.engine, by, &session).await? {
        Some(id) => start::find(&app.engine, by, &id).await.map(Some),
        None => Ok(None),
    }
}
