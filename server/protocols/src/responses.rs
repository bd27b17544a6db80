//! `/v1/responses`: the Responses API of OpenAI (Open Responses). A response is one turn of a run: its id contains the
//! number of the turn and the id of the run. `previous_response_id` is the session of that run.

mod encode;
mod error;
mod request;

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use abide_server::port::{
    AuthSession, CallerExtension, ConnectionPermit, ParseTurn, Problem, RequestBody,
    SessionExtension, idempotency_key, invalid_query_string, json_response as as_json,
    off_the_runtime, path, rows::deny_hidden, unsent,
};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};
use tokio::time::timeout;

use crate::decision::Decision;
use crate::follow::{Follower, stream_turn};
use crate::incoming::Incoming;
use crate::start::{self, NewRun, NewSession, RunRow};
use crate::state::ProtocolState;
use crate::turn::Turn;
use crate::{limits, whole};
use encode::{Echo, ResponseEncoder};
pub(crate) use error::add_error;
use request::{CreateResponse, Input};

/// The id of a response: a turn of a run. It contains both, so it needs no storage.
struct ResponseId<'a> {
    turn: i64,
    run_id: &'a str,
}

impl ResponseId<'_> {
    /// Parses `resp_<turn>_<run>`.
    fn parse(id: &str) -> Result<ResponseId<'_>, Refusal> {
        let parts = id.strip_prefix("resp_").and_then(|rest| rest.split_once('_'));
        let parsed = parts.and_then(|(turn, run_id)| {
            let number: i64 = turn.parse().ok()?;
            // One response has one id.
            let is_canonical = number > 0 && turn == number.to_string();
            is_canonical.then_some(ResponseId { turn: number, run_id })
        });
        parsed.ok_or_else(|| unknown_response(id))
    }
}

/// Returns the id of the response for a turn.
fn response_id(run_id: &str, turn: i64) -> String {
    format!("resp_{turn}_{run_id}")
}

/// Returns the refusal for an id without a response.
fn unknown_response(id: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("there is no response {id}"))
        .hint("use the id of a response that POST /v1/responses has returned")
}

/// Returns the run of a response, if it has that turn.
async fn find(app: &ProtocolState, by: &Caller, id: &str) -> Result<(RunRow, i64), Refusal> {
    let ResponseId { turn, run_id } = ResponseId::parse(id)?;
    let run = start::find(&app.engine, by, run_id).await.map_err(|refusal| match refusal.code {
        Code::NotFound => unknown_response(id),
        _ => refusal,
    })?;
    if turn <= run.turn { Ok((run, turn)) } else { Err(unknown_response(id)) }
}

/// `POST /v1/responses`: sends input to an agent, and returns its answer.
pub(crate) async fn create(incoming: Incoming) -> Result<Response, Problem> {
    let Incoming { app, session, place, headers, content } = incoming;
    let wanted: CreateResponse = content.envelope_in_turn(request::EXAMPLE_BODY).await?;
    wanted.check()?;
    let key = idempotency_key(&headers)?;
    let stream = wanted.stream == Some(true);
    let background = wanted.background == Some(true);
    let instructions = json!(wanted.instructions);
    let (run, turn) = begin_run(&app, &session.caller, &content, wanted, key).await?;
    drop(content);
    let encoder = new_encoder(&app, &session.caller, &run, turn, instructions).await?;
    if background && !stream {
        return respond_now(&app, session, &run, turn, encoder).await;
    }
    let by = session.caller.clone();
    let mut follower = Follower::new(&app, session, &run, Turn::new(turn)).await?;
    if stream {
        return Ok(stream_turn(follower, encoder, place));
    }
    follower.read_until_end().await?;
    let permit = whole::acquire_permit(&app, &by, follower.turn.bytes()).await;
    respond_whole(&app, &by, follower, encoder, permit).await
}

/// A response as it is now.
async fn respond_now(
    app: &ProtocolState,
    session: AuthSession,
    run: &RunRow,
    turn: i64,
    encoder: ResponseEncoder,
) -> Result<Response, Problem> {
    let by = session.caller.clone();
    let permit = whole::acquire_load_permit(app, &by, run).await?;
    let mut follower = Follower::new(app, session, run, Turn::new(turn)).await?;
    follower.read_until_now().await?;
    respond_whole(app, &by, follower, encoder, permit).await
}

/// Returns the turn that was read, as one text.
async fn respond_whole(
    app: &ProtocolState,
    by: &Caller,
    follower: Follower,
    encoder: ResponseEncoder,
    permit: Option<ParseTurn>,
) -> Result<Response, Problem> {
    let text = off_the_runtime(move || encoder.to_json(&follower.turn).to_string()).await?;
    drop(permit);
    Ok(unsent::response(&app.engine.buffers().account(by), text)?)
}

/// Starts a run, or continues the one that waits for the decisions of the request. Returns it, and the turn of the
/// response.
async fn begin_run(
    app: &ProtocolState,
    by: &Caller,
    content: &RequestBody,
    wanted: CreateResponse,
    key: Option<&str>,
) -> Result<(RunRow, i64), Refusal> {
    let previous = match &wanted.previous_response_id {
        Some(id) => Some(find(app, by, id).await?),
        None => None,
    };
    match (request::read_input(&wanted)?, previous) {
        (Input::Decisions(decisions), Some((run, turn))) => {
            decide(app, by, &run, turn, decisions).await
        }
        (Input::Decisions(_), None) => {
            let detail = "an mcp_approval_response needs previous_response_id";
            let hint = "name the response with the mcp_approval_request";
            Err(Refusal::new(Code::BadArguments, detail).hint(hint))
        }
        (Input::Messages { before, input }, previous) => {
            let id = key.map(|key| start::derived_id("run_", by, "response", key));
            let (session_id, new_session) = match previous {
                Some((run, _)) => {
                    check_is_newest(app, by, &run, id.as_deref()).await?;
                    (run.session_id, None)
                }
                None => {
                    let made = new_session(by, key, wanted.metadata);
                    (made.id.clone(), Some(made))
                }
            };
            let agent = wanted.model;
            let record = None;
            let follow_up = None;
            let new =
                NewRun { agent, session_id, new_session, before, input, id, record, follow_up };
            let run = start::start(app, by, content.bytes(), new, key).await?;
            let turn = 1;
            Ok((run, turn))
        }
    }
}

/// Returns a session for a request without `previous_response_id`. A repeated request must use the same one.
fn new_session(
    by: &Caller,
    key: Option<&str>,
    metadata: Option<serde_json::Map<String, JsonValue>>,
) -> NewSession {
    let name = key.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    NewSession { id: start::derived_id("s_", by, "response", &name), metadata }
}

/// A session is a list of runs. A response continues the session only if it is of its newest run.
async fn check_is_newest(
    app: &ProtocolState,
    by: &Caller,
    run: &RunRow,
    repeated: Option<&str>,
) -> Result<(), Refusal> {
    let newest = start::newest_run_id(&app.engine, by, &run.session_id).await?;
    let newest = newest.unwrap_or_else(|| run.id.clone());
    // A repeated request finds the run that it has started.
    let is_own = repeated.is_some_and(|id| newest == format!("{}{id}", by.namespace()));
    if newest == run.id || is_own {
        return Ok(());
    }
    let detail = "the session of previous_response_id has continued with another response";
    let hint = "use the id of the newest response; a session has no branches";
    Err(Refusal::new(Code::Conflict, detail).hint(hint))
}

async fn decide(
    app: &ProtocolState,
    by: &Caller,
    run: &RunRow,
    turn: i64,
    decisions: Vec<Decision>,
) -> Result<(RunRow, i64), Refusal> {
    let run = start::decide(app, by, run, decisions, Vec::new()).await?;
    if run.turn > turn { Ok((run, turn + 1)) } else { Ok((run, turn)) }
}

/// Returns the encoder of a response. `instructions` are those of the request; they are stored as a message of the
/// session.
async fn new_encoder(
    app: &ProtocolState,
    by: &Caller,
    run: &RunRow,
    turn: i64,
    instructions: JsonValue,
) -> Result<ResponseEncoder, Refusal> {
    let previous = match turn {
        1 => start::find_previous(&app.engine, by, run).await?,
        _ => Some((run.id.clone(), turn - 1)),
    };
    let previous = previous.map(|(run_id, turn)| response_id(&run_id, turn));
    let metadata = load_session_metadata(app, by, run).await?;
    Ok(ResponseEncoder::new(run, turn, previous, Echo { instructions, metadata }))
}

/// Returns the metadata of the session of a run; empty if the caller may not see them.
async fn load_session_metadata(
    app: &ProtocolState,
    by: &Caller,
    run: &RunRow,
) -> Result<JsonValue, Refusal> {
    let sql = "SELECT metadata FROM sessions WHERE id = :id";
    let params = start::params([("id", json!(run.session_id))]);
    let found = match start::first_texts(&app.engine, by, sql, params).await {
        Err(refusal) if refusal.code == Code::Denied => Vec::new(),
        found => found?,
    };
    let stored = found.first().and_then(|text| serde_json::from_str(text).ok());
    Ok(stored.filter(JsonValue::is_object).unwrap_or_else(|| json!({})))
}

#[derive(Debug, Deserialize)]
pub(crate) struct Retrieval {
    #[serde(default)]
    stream: bool,
    starting_after: Option<i64>,
}

/// `GET /v1/responses/{id}`: a response as it is now, or with `stream=true` its events after `starting_after`.
pub(crate) async fn retrieve(
    State(app): State<ProtocolState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    id: Result<Path<String>, PathRejection>,
    wanted: Result<Query<Retrieval>, QueryRejection>,
) -> Result<Response, Problem> {
    let id = path(id, "id of the response")?;
    let Query(wanted) = wanted.map_err(|why| {
        invalid_query_string(Code::BadRequest, &why)
            .hint("only stream=true and starting_after=NUMBER are supported")
    })?;
    let (run, turn) = find(&app, &session.caller, &id).await?;
    let encoder = new_encoder(&app, &session.caller, &run, turn, JsonValue::Null).await?;
    if !wanted.stream {
        return respond_now(&app, session, &run, turn, encoder).await;
    }
    let follower = Follower::new(&app, session, &run, Turn::new(turn)).await?;
    let encoder = encoder.after(wanted.starting_after.unwrap_or(-1));
    Ok(stream_turn(follower, encoder, place))
}

/// `POST /v1/responses/{id}/cancel`: aborts the run of a response that is in progress; returns the response.
pub(crate) async fn cancel(
    State(app): State<ProtocolState>,
    Extension(session): SessionExtension,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let id = path(id, "id of the response")?;
    let (run, turn) = find(&app, &session.caller, &id).await?;
    if turn == run.turn && !run.has_ended {
        abort_run(&app, &session, &run).await?;
    }
    let by = session.caller.clone();
    let encoder = new_encoder(&app, &by, &run, turn, JsonValue::Null).await?;
    let permit = whole::acquire_load_permit(&app, &by, &run).await?;
    let mut follower = Follower::new(&app, session, &run, Turn::new(turn)).await?;
    // The driver stops its tools first.
    match timeout(limits::ABORT_TIMEOUT, follower.read_until_end()).await {
        Ok(ended) => ended?,
        Err(_) => follower.read_until_now().await?,
    }
    respond_whole(&app, &by, follower, encoder, permit).await
}

async fn abort_run(
    app: &ProtocolState,
    session: &AuthSession,
    run: &RunRow,
) -> Result<(), Refusal> {
    let args = json!({"id": run.id, "reason": "the response was cancelled"});
    match app.engine.call(&session.caller, "abort_run", &args, None).await {
        // The run has ended in the meantime.
        Err(refusal) if refusal.code == Code::BadTransition => Ok(()),
        done => done.map(drop),
    }
}

/// The agents, which are models for a client of this protocol.
const MODELS: &str = "SELECT name, created_at FROM agents \
    WHERE hidden = 0 AND retired_at IS NULL ORDER BY name";

/// `GET /v1/models`: the agents that can run.
pub(crate) async fn models(
    State(app): State<ProtocolState>,
    by: CallerExtension,
) -> Result<Response, Problem> {
    let found = app.engine.query(&by, MODELS, &serde_json::Map::new(), None).await;
    let found = found.map_err(deny_hidden)?;
    let models = found.rows.iter().map(|row| {
        let cells: Vec<JsonValue> = row.iter().map(abide_schema::Value::to_json).collect();
        let created = cells[1].as_i64().unwrap_or_default() / 1_000_000;
        json!({"id": cells[0], "object": "model", "created": created, "owned_by": "abide"})
    });
    let all: Vec<JsonValue> = models.collect();
    Ok(as_json(json!({"object": "list", "data": all}).to_string()))
}
