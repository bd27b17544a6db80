//! The runtime contract, for who is not the runtime: stream a run's events, invoke an agent, ask for the state, abort,
//! and the checkpoints behind it. All of it is rows, so it is the same for who was there from the beginning and who
//! comes later, in this process or another.

use std::collections::VecDeque;

use abide_client::{
    Abide, AgentState, Code, Error, NewRun, NewSession, Refusal, Run, RunEvent, RunEventKind,
    RunStatus, Seq, Session, Subscription,
};
use serde_json::Value;

/// An event of a run, as a consumer takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentEvent {
    /// Its number among all events: what `Last-Event-ID` names.
    pub id: i64,
    /// Its number in the run.
    pub number: i64,
    /// Which turn of the run.
    pub turn: i64,
    /// What it tells.
    pub kind: RunEventKind,
    /// The rest of it, in the fields of its kind.
    pub data: Value,
}

impl AgentEvent {
    /// Whether a turn ends with it.
    #[must_use]
    pub fn ends_turn(&self) -> bool {
        matches!(self.kind, RunEventKind::Done | RunEventKind::Error | RunEventKind::Interrupt)
    }

    /// Whether the run ends with it.
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

/// Where a session's work stands, all of it at one moment.
#[derive(Clone, Debug)]
pub struct RunState {
    /// The event of the log that it is the state after.
    pub seq: Seq,
    /// The session.
    pub session: Session,
    /// The run that it has, or the newest that it had.
    pub run: Option<Run>,
    /// Its messages, in order.
    pub messages: Vec<AgentState>,
}

/// A moment of a run from which it would go on, had its driver been killed then: an answer, a result or the
/// end of a turn was on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The event of the log; [`state_at`] tells what was there after it.
    pub seq: Seq,
    /// Which turn of the run.
    pub turn: i64,
    /// How many of the run's events had been told.
    pub events: i64,
}

/// The events of a run as they are told, those that were told before included.
pub struct Events {
    subscription: Subscription,
    told: i64,
    /// How many there are, where the run is over.
    of: Option<i64>,
    waiting: VecDeque<AgentEvent>,
}

impl Events {
    /// Those of a run after a number, from the first with 0. A number that the run has not come to is taken for
    /// that of its last event so far.
    ///
    /// # Errors
    /// [`Error`] of the subscription; [`Error::Refused`] with `not_found` where there is no such run.
    pub async fn of(abide: &Abide, run_id: &str, after: i64) -> Result<Events, Error> {
        let sql = "SELECT status, events FROM runs WHERE id = :id";
        let runs: Vec<(RunStatus, i64)> = abide.sql(sql).param("id", run_id).fetch().await?;
        let run = runs.into_iter().next();
        let (status, events) = run.ok_or_else(|| missing("run", run_id))?;
        let told = after.clamp(0, events);
        // A run tells nothing after its end, so what it has told by then is all.
        let of = status.is_terminal().then_some(events);
        let subscription = abide
            .subscribe("SELECT * FROM run_events WHERE run_id = :id AND number > :after")
            .param("id", run_id)
            .param("after", told)
            .await?;
        Ok(Events { subscription, told, of, waiting: VecDeque::new() })
    }

    /// The next; `None` after the last, which ends the run, and from then on. While a run waits so does this.
    ///
    /// # Errors
    /// [`Error`] where a row cannot be read, or Abide is not there any more before the run is over.
    pub async fn next(&mut self) -> Result<Option<AgentEvent>, Error> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.told = event.number;
                if event.ends_run() {
                    self.of = Some(event.number);
                }
                return Ok(Some(event));
            }
            if self.of.is_some_and(|last| self.told >= last) {
                return Ok(None);
            }
            let Some(update) = self.subscription.next().await else {
                return Err(self.subscription.error().cloned().unwrap_or(Error::Closed));
            };
            let mut new: Vec<RunEvent> = update.inserts()?;
            new.retain(|event| event.number > self.told);
            new.sort_by_key(|event| event.number);
            self.waiting.extend(new.into_iter().map(AgentEvent::from));
        }
    }
}

/// Makes a session for an agent and begins a run of it with what the user says.
///
/// # Errors
/// [`Error`] of the calls.
pub async fn begin(abide: &Abide, agent: &str, input: &str) -> Result<Run, Error> {
    let session = abide.create_session(NewSession::of(agent)).await?;
    Ok(abide.start_run(NewRun::of(&session.id).input(input)).await?.into_inner())
}

/// Begins a run as [`begin`] does and follows it to the end of its first turn: the event that ends it.
///
/// # Errors
/// [`Error`] of the calls.
pub async fn invoke(abide: &Abide, agent: &str, input: &str) -> Result<AgentEvent, Error> {
    let run = begin(abide, agent, input).await?;
    until_turn_ends(abide, &run.id, 0).await
}

/// Follows a run to the end of its turn: the event that ends it, the first after a number.
///
/// # Errors
/// [`Error`] of the subscription; [`Error::Closed`] where the run is over, and no event after that number
/// ends a turn.
pub async fn until_turn_ends(abide: &Abide, run_id: &str, after: i64) -> Result<AgentEvent, Error> {
    let mut events = Events::of(abide, run_id, after).await?;
    while let Some(event) = events.next().await? {
        if event.ends_turn() {
            return Ok(event);
        }
    }
    Err(Error::Closed)
}

/// Says that nobody wants what a session's agent does any more. Whether there was a run to end: it tells how it
/// ended when its driver has stopped.
///
/// # Errors
/// [`Error`] of the query or the call.
pub async fn abort(abide: &Abide, session_id: &str) -> Result<bool, Error> {
    let sql = "SELECT id FROM runs WHERE session_id = :id AND status IN ('running', 'waiting')";
    let runs: Vec<(String,)> = abide.sql(sql).param("id", session_id).fetch().await?;
    let Some((id,)) = runs.into_iter().next() else { return Ok(false) };
    match abide.abort_run(&id).await {
        Ok(_) => Ok(true),
        // It ended between the two.
        Err(error) if error.code() == Some(Code::BadTransition) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where a session's work stands.
///
/// # Errors
/// [`Error`] of the queries; [`Error::Refused`] with `not_found` where there is no such session.
pub async fn state(abide: &Abide, session_id: &str) -> Result<RunState, Error> {
    read_state(abide, session_id, None).await
}

/// Where it stood after an event of the log, such as that of a [`Checkpoint`].
///
/// # Errors
/// As [`state`]; a refusal where the past does not reach so far back.
pub async fn state_at(abide: &Abide, session_id: &str, seq: Seq) -> Result<RunState, Error> {
    read_state(abide, session_id, Some(seq)).await
}

/// The moments of a run from which it would go on, in order.
///
/// # Errors
/// [`Error`] of the query.
pub async fn checkpoints(abide: &Abide, run_id: &str) -> Result<Vec<Checkpoint>, Error> {
    let sql = "SELECT seq, turn, max(number), max(kind IN \
               ('usage', 'tool_result', 'interrupt', 'done', 'error')) \
               FROM run_events WHERE run_id = :id GROUP BY seq ORDER BY seq";
    let found = abide.sql(sql).param("id", run_id).rows().await?;
    let steps: Vec<(Seq, i64, i64, bool)> = found.typed()?;
    // What a step put on record beside its events comes after them in the log. It is there by the last moment
    // before the next step.
    let next = steps.iter().skip(1).map(|(seq, ..)| Seq(seq.0 - 1)).chain([found.seq]);
    let all = steps.iter().zip(next).filter(|((.., counts), _)| *counts);
    Ok(all
        .map(|((_, turn, events, _), seq)| Checkpoint { seq, turn: *turn, events: *events })
        .collect())
}

async fn read_state(abide: &Abide, session_id: &str, at: Option<Seq>) -> Result<RunState, Error> {
    let sql = abide.sql("SELECT * FROM sessions WHERE id = :id").param("id", session_id);
    let found = match at {
        Some(at) => sql.as_of(at).rows().await?,
        None => sql.rows().await?,
    };
    // The rest is asked of the same moment, whatever has happened since.
    let seq = found.seq;
    let session = found.typed()?.into_iter().next();
    let session: Session = session.ok_or_else(|| missing("session", session_id))?;
    let sql = "SELECT * FROM runs WHERE session_id = :id \
               ORDER BY ended_at IS NOT NULL, created_at DESC, seq DESC LIMIT 1";
    let runs: Vec<Run> = abide.sql(sql).param("id", session_id).as_of(seq).fetch().await?;
    let sql = "SELECT * FROM agent_state WHERE session_id = :id ORDER BY id";
    let messages = abide.sql(sql).param("id", session_id).as_of(seq).fetch().await?;
    Ok(RunState { seq, session, run: runs.into_iter().next(), messages })
}

fn missing(what: &str, id: &str) -> Error {
    Error::Refused(Refusal::new(Code::NotFound, format!("there is no {what} {id}")))
}
