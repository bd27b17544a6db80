//! How others follow a run: its events in order, its state, its end. All of it is read from rows, so it is the same
//! for who was there from the beginning and who comes later.

use abide_client::{
    Abide, Error, NewRun, NewSession, Run, RunEvent, RunEventKind, Session, Subscription,
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

/// Where a session's work stands.
#[derive(Clone, Debug)]
pub struct RunState {
    /// The session.
    pub session: Session,
    /// Its newest run, if it had one.
    pub run: Option<Run>,
}

/// The events of a run as they are told, those that were told before included.
pub struct Events {
    subscription: Subscription,
    told: i64,
    waiting: std::collections::VecDeque<AgentEvent>,
}

impl Events {
    /// Those of a run after a number, from the first with 0.
    ///
    /// # Errors
    /// [`Error`] of the subscription.
    pub async fn of(abide: &Abide, run_id: &str, after: i64) -> Result<Events, Error> {
        let subscription = abide
            .subscribe("SELECT * FROM run_events WHERE run_id = :id AND number > :after")
            .param("id", run_id)
            .param("after", after)
            .await?;
        Ok(Events { subscription, told: after, waiting: std::collections::VecDeque::new() })
    }

    /// The next; `None` after the last, which ends the run, or when Abide is not there any more.
    ///
    /// # Errors
    /// [`Error`] where a row cannot be read.
    pub async fn next(&mut self) -> Result<Option<AgentEvent>, Error> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.told = event.number;
                return Ok(Some(event));
            }
            let Some(update) = self.subscription.next().await else {
                return match self.subscription.error() {
                    Some(error) => Err(error.clone()),
                    None => Ok(None),
                };
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

/// Follows a run to the end of its turn: the event that ends it.
///
/// # Errors
/// [`Error`] of the subscription.
pub async fn until_turn_ends(abide: &Abide, run_id: &str, after: i64) -> Result<AgentEvent, Error> {
    let mut events = Events::of(abide, run_id, after).await?;
    while let Some(event) = events.next().await? {
        if event.ends_turn() {
            return Ok(event);
        }
    }
    Err(Error::Closed)
}

/// Where a session's work stands.
///
/// # Errors
/// [`Error`] of the queries; [`Error::Refused`] with `not_found` where there is no such session.
pub async fn state(abide: &Abide, session_id: &str) -> Result<RunState, Error> {
    let sql = "SELECT * FROM sessions WHERE id = :id";
    let sessions: Vec<Session> = abide.sql(sql).param("id", session_id).fetch().await?;
    let missing = || {
        let detail = format!("there is no session {session_id}");
        Error::Refused(abide_client::Refusal::new(abide_client::Code::NotFound, detail))
    };
    let session = sessions.into_iter().next().ok_or_else(missing)?;
    let sql = "SELECT * FROM runs WHERE session_id = :id ORDER BY created_at DESC LIMIT 1";
    let runs: Vec<Run> = abide.sql(sql).param("id", session_id).fetch().await?;
    Ok(RunState { session, run: runs.into_iter().next() })
}
