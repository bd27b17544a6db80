//! The runtime contract for clients: stream a run's events, invoke an agent, read the state, abort, and list
//! checkpoints. Everything is rows, so a client that connects later, or in another process, sees the same.

use std::collections::VecDeque;

use abide_client::arguments::{AbortRun, CreateSession, StartRun};
use abide_client::rows::{AgentState, Run, RunEvent, RunEventKind, RunStatus, Session};
use abide_client::{Abide, Code, Error, Refusal, Seq, Subscription};
use serde_json::Value;

/// An event of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentEvent {
    /// Its number among all events: the value of `Last-Event-ID`.
    pub id: i64,
    /// Its number in the run.
    pub number: i64,
    /// The turn of the run that it belongs to.
    pub turn: i64,
    /// Its kind.
    pub kind: RunEventKind,
    /// Its other fields, which depend on the kind.
    pub data: Value,
}

impl AgentEvent {
    /// Returns `true` if the event ends a turn.
    #[must_use]
    pub fn ends_turn(&self) -> bool {
        matches!(self.kind, RunEventKind::Done | RunEventKind::Error | RunEventKind::Interrupt)
    }

    /// Returns the number of the first piece of an answer, if the event announces that the answer starts again. The
    /// `token` and `reasoning` events from that number up to this event are void.
    #[must_use]
    pub fn void_since(&self) -> Option<i64> {
        match self.kind {
            RunEventKind::Restart => self.data["since"].as_i64(),
            _ => None,
        }
    }

    /// Returns `true` if the event ends the run.
    #[must_use]
    pub fn ends_run(&self) -> bool {
        matches!(self.kind, RunEventKind::Done | RunEventKind::Error)
    }
}

impl From<RunEvent> for AgentEvent {
    fn from(event: RunEvent) -> AgentEvent {
        let RunEvent { id, number, turn, kind, data, .. } = event;
        AgentEvent { id, number, turn, kind, data: data.value() }
    }
}

/// The state of a session at one point in time.
#[derive(Clone, Debug)]
pub struct SessionState {
    /// The event of the log after which the state was read.
    pub seq: Seq,
    /// The session.
    pub session: Session,
    /// The active run, or else the newest one.
    pub run: Option<Run>,
    /// The session's messages, in order.
    pub messages: Vec<AgentState>,
}

/// A point from which a run can be resumed after a crash of its driver: an answer, a result or the end of a turn is
/// recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The event of the log; [`state_at`] returns the state after it.
    pub seq: Seq,
    /// The turn of the run.
    pub turn: i64,
    /// How many events of the run were recorded by then.
    pub events: i64,
}

/// The events of a run, past and future.
pub struct RunEvents {
    subscription: Subscription,
    last_number: i64,
    /// The number of its last event, if the run is over.
    last_of_run: Option<i64>,
    waiting: VecDeque<AgentEvent>,
}

impl RunEvents {
    /// Returns the events of a run after a number; 0 for all. A number beyond the run's last event is replaced by the
    /// number of that event.
    ///
    /// # Errors
    /// [`Error`] of the subscription; [`Error::Refused`] with `not_found` if there is no such run.
    pub async fn subscribe(abide: &Abide, run_id: &str, after: i64) -> Result<RunEvents, Error> {
        let sql = "SELECT status, events FROM runs WHERE id = :id";
        let runs: Vec<(RunStatus, i64)> = abide.sql(sql).param("id", run_id).fetch().await?;
        let run = runs.into_iter().next();
        let (status, events) = run.ok_or_else(|| missing("run", run_id))?;
        let last_number = after.clamp(0, events);
        // A run records no event after its end, so the count is final.
        let last_of_run = status.is_terminal().then_some(events);
        let subscription = abide
            .subscribe("SELECT * FROM run_events WHERE run_id = :id AND number > :after")
            .param("id", run_id)
            .param("after", last_number)
            .await?;
        Ok(RunEvents { subscription, last_number, last_of_run, waiting: VecDeque::new() })
    }

    /// Returns the next event; `None` after the event that ends the run. Waits while the run waits.
    ///
    /// # Errors
    /// [`Error`] if a row cannot be decoded, or the connection is lost before the run is over.
    pub async fn next(&mut self) -> Result<Option<AgentEvent>, Error> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.last_number = event.number;
                if event.ends_run() {
                    self.last_of_run = Some(event.number);
                }
                return Ok(Some(event));
            }
            if self.last_of_run.is_some_and(|last| self.last_number >= last) {
                return Ok(None);
            }
            let update = self.subscription.try_next().await?.ok_or(Error::Closed)?;
            let mut new: Vec<RunEvent> = update.inserts()?;
            new.retain(|event| event.number > self.last_number);
            new.sort_by_key(|event| event.number);
            self.waiting.extend(new.into_iter().map(AgentEvent::from));
        }
    }
}

/// Creates a session for an agent and starts a run with the user's input.
///
/// # Errors
/// [`Error`] of the calls.
pub async fn begin(abide: &Abide, agent: &str, input: &str) -> Result<Run, Error> {
    let session = abide.call(CreateSession::new(agent)).await?.into_inner();
    Ok(abide.call(StartRun::new(&session.id).input(input)).await?.into_inner())
}

/// Starts a run as [`begin`] does and waits for the event that ends its first turn.
///
/// # Errors
/// [`Error`] of the calls.
pub async fn invoke(abide: &Abide, agent: &str, input: &str) -> Result<AgentEvent, Error> {
    let run = begin(abide, agent, input).await?;
    let end = until_turn_ends(abide, &run.id, 0).await?;
    // A run that is moved to another file ends there.
    end.ok_or_else(|| missing("end of the first turn of run", &run.id))
}

/// Returns the event that ends the turn: the first such event after the given number; `None` if the run is over and no
/// event after that number ends a turn.
///
/// # Errors
/// [`Error`] of the subscription.
pub async fn until_turn_ends(
    abide: &Abide,
    run_id: &str,
    after: i64,
) -> Result<Option<AgentEvent>, Error> {
    let mut events = RunEvents::subscribe(abide, run_id, after).await?;
    while let Some(event) = events.next().await? {
        if event.ends_turn() {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

/// Requests the abort of a session's active run. Returns whether there was one. The run's last event follows when
/// its driver has stopped.
///
/// # Errors
/// [`Error`] of the query or the call.
pub async fn abort(abide: &Abide, session_id: &str) -> Result<bool, Error> {
    let sql = "SELECT id FROM runs WHERE session_id = :id AND status IN ('running', 'waiting')";
    let runs: Vec<(String,)> = abide.sql(sql).param("id", session_id).fetch().await?;
    let Some((id,)) = runs.into_iter().next() else { return Ok(false) };
    match abide.call(AbortRun::new(id)).await {
        Ok(_) => Ok(true),
        // The run ended between the query and the call.
        Err(error) if error.code() == Some(Code::BadTransition) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the current state of a session.
///
/// # Errors
/// [`Error`] of the queries; [`Error::Refused`] with `not_found` if there is no such session.
pub async fn state(abide: &Abide, session_id: &str) -> Result<SessionState, Error> {
    read_state(abide, session_id, None).await
}

/// Returns the state of a session after an event of the log, such as that of a [`Checkpoint`].
///
/// # Errors
/// As [`state`]; a refusal if the history no longer reaches back to that event.
pub async fn state_at(abide: &Abide, session_id: &str, seq: Seq) -> Result<SessionState, Error> {
    read_state(abide, session_id, Some(seq)).await
}

/// Returns the checkpoints of a run, in order.
///
/// # Errors
/// [`Error`] of the query.
pub async fn checkpoints(abide: &Abide, run_id: &str) -> Result<Vec<Checkpoint>, Error> {
    let sql = "SELECT seq, turn, max(number), max(kind IN \
               ('usage', 'tool_result', 'interrupt', 'done', 'error')) \
               FROM run_events WHERE run_id = :id GROUP BY seq ORDER BY seq";
    let found = abide.sql(sql).param("id", run_id).rows().await?;
    let steps: Vec<(Seq, i64, i64, bool)> = found.typed()?;
    // Other rows of a step follow its events in the log. They are present at the last event before the next step.
    let next = steps.iter().skip(1).map(|(seq, ..)| Seq(seq.0 - 1)).chain([found.seq]);
    let all = steps.iter().zip(next).filter(|((.., counts), _)| *counts);
    Ok(all
        .map(|((_, turn, events, _), seq)| Checkpoint { seq, turn: *turn, events: *events })
        .collect())
}

/// Returns the state of a session after an event of the log; the current state without an event.
async fn read_state(
    abide: &Abide,
    session_id: &str,
    after: Option<Seq>,
) -> Result<SessionState, Error> {
    let select_session = abide.sql("SELECT * FROM sessions WHERE id = :id").param("id", session_id);
    let found = match after {
        Some(seq) => select_session.as_of(seq).rows().await?,
        None => select_session.rows().await?,
    };
    // The other queries read the same point in time.
    let seq = found.seq;
    let sessions: Vec<Session> = found.typed()?;
    let session = sessions.into_iter().next().ok_or_else(|| missing("session", session_id))?;
    // The active run is first: its `ended_at` is NULL, and false sorts before true.
    let select_run = "SELECT * FROM runs WHERE session_id = :id \
                      ORDER BY ended_at IS NOT NULL, created_at DESC, seq DESC LIMIT 1";
    let runs: Vec<Run> = abide.sql(select_run).param("id", session_id).as_of(seq).fetch().await?;
    let select_messages = "SELECT * FROM agent_state WHERE session_id = :id ORDER BY id";
    let messages = abide.sql(select_messages).param("id", session_id).as_of(seq).fetch().await?;
    Ok(SessionState { seq, session, run: runs.into_iter().next(), messages })
}

/// Returns the refusal of an id that does not exist.
fn missing(what: &str, id: &str) -> Error {
    Error::Refused(Refusal::new(Code::NotFound, format!("there is no {what} {id}")))
}
