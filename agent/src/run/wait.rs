//! Waits of a run: for a decision, without a driver ([`Driver::suspend`]), and for calls that others run, with this driver
//! ([`Driver::wait_for_calls`]).

use abide_client::rows::{Run, RunStatus, ToolCall, ToolCallStatus};
use abide_client::{Error, Micros};
use serde_json::{Map, Value, json};

use crate::delegation::task;
use crate::run::decide::{Action, CallStep};
use crate::run::driver::Driver;
use crate::run::step::{Step, StepError, overtime};
use crate::tools;
use crate::tools::registry;

/// The calls of a session that have not ended. Those that have are never read again: there may be thousands.
const OPEN_CALLS: &str = "SELECT call_id, status, retry_at FROM tool_calls WHERE session_id = :sid \
     AND status IN ('pending', 'awaiting_approval', 'claimed', 'unknown')";

/// Maximum size of the reason of an unknown outcome in an interrupt. The row of the call has all of it.
const REASON_BYTES: usize = 4096;

impl Driver {
    /// Suspends the run until a decision: it waits without a driver. The reducer `wait_run` decides whether it waits, because the
    /// decision may have been made in the meantime. Returns `true` if it does; then the work of this driver has ended, and the
    /// reducer of the decision makes the run claimable again (`reducers/src/run/wait.rs`).
    pub(crate) async fn suspend(&self, undecided: &[ToolCall], reason: &str) -> Step<bool> {
        let below = task::undecided(self, self.state.waiting.clone()).await?;
        let undecided = undecided.to_vec();
        let session_id = &self.state.run.session_id;
        let own_calls = tools::exchange::to_decide(&self.abide, session_id, undecided).await?;
        let own = own_calls
            .iter()
            .filter(|call| !registry::starts_run(self, call) || is_open(call))
            .map(|call| (&self.state.run, call));
        let of_others = below.calls.iter().map(|(run, call)| (run, call));
        let mut all: Vec<Value> =
            own.chain(of_others).map(|(run, call)| self.request_of(run, call)).collect();
        tools::approval::add_changed_files(self, &mut all).await;
        tools::approval::add_questions(self, &mut all).await?;
        let reason = match reason {
            "approval" => decision_of(&all),
            other => other,
        };
        // Without a call to decide on, it is a session that has to be resumed or taken back.
        let (session_id, reason) = match below.runs.first().filter(|_| all.is_empty()) {
            Some(run) => (&run.session_id, run.reason.as_deref().unwrap_or(reason)),
            None => (&self.state.run.session_id, reason),
        };
        let mut interrupt = interrupt(session_id, all, reason);
        interrupt.insert("agent".to_owned(), json!(self.agent.definition.name));
        match (reason, below.runs.first()) {
            ("pause", paused) => {
                interrupt.insert("run_id".to_owned(), json!(paused.map(|run| run.id.as_str())));
                if let Some(run) = paused {
                    interrupt.insert("stage".to_owned(), json!(self.stage_of(&run.id).await?));
                }
            }
            ("handoff", _) => {
                if let Some((id, why)) = self.open_handoff(session_id).await? {
                    interrupt.insert("handoff".to_owned(), json!({"id": id, "reason": why}));
                }
            }
            _ => {}
        }
        let ends_at = self.wait_deadline().map(Micros);
        let run = self.abide.call(self.run_lease.wait(interrupt, ends_at)).await?.into_inner();
        Ok(run.status == RunStatus::Waiting)
    }

    /// Returns the stage at which a delegated run is paused.
    async fn stage_of(&self, run_id: &str) -> Result<Option<String>, Error> {
        let sql = "SELECT stage FROM pauses WHERE run_id = :id";
        let found: Vec<(Option<String>,)> = self.abide.sql(sql).param("id", run_id).fetch().await?;
        Ok(found.into_iter().next().and_then(|(stage,)| stage))
    }

    /// Returns the handoff that a session waits for, and why it was requested.
    async fn open_handoff(&self, session_id: &str) -> Result<Option<(String, String)>, Error> {
        let sql = "SELECT id, reason FROM handoff_requests WHERE session_id = :sid \
                   AND status IN ('pending', 'claimed')";
        let found = self.abide.sql(sql).param("sid", session_id).fetch().await?;
        Ok(found.into_iter().next())
    }

    /// Returns a call that needs a decision. One of a delegated run names the run.
    fn request_of(&self, run: &Run, call: &ToolCall) -> Value {
        let mut request = json!({"tool_call_id": call.call_id, "tool_name": call.tool_name,
            "args": call.arguments.value(), "status": call.status.as_str()});
        if let Some(why) = call.error.as_deref().filter(|_| call.status == ToolCallStatus::Unknown)
        {
            request["error"] = json!(&why[..why.floor_char_boundary(REASON_BYTES)]);
        }
        if run.id != self.state.run.id {
            request["run_id"] = json!(run.id);
            request["session_id"] = json!(run.session_id);
            request["agent"] = json!(run.agent);
        }
        request
    }

    /// Waits until a call of the session changes. The driver and its lease stay; the permit goes to another run meanwhile.
    pub(crate) async fn wait_for_calls(&mut self) -> Step {
        let mut changes =
            self.abide.subscribe(OPEN_CALLS).param("sid", &self.state.run.session_id).await?;
        // The first update is the current state. It may differ from the state that was read before.
        changes.try_next().await?;
        self.read_all().await?;
        if self.state.decide() != Action::Calls(CallStep::Await) {
            return Ok(());
        }
        let needs_permit = self.permit.take().is_some();
        tokio::select! {
            // A run that one of the calls has started continues.
            changed = task::one_changes(self, &self.state.waiting) => changed.map_err(StepError::from),
            update = changes.next() => match update {
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err(StepError::Refused(error)),
                None => Err(StepError::Refused(Error::Closed)),
            },
            () = self.stop.cancelled() => Err(StepError::Aborted),
            () = self.shutdown.draining() => Err(StepError::Released),
            () = self.until_deadline() => Err(overtime()),
        }?;
        if needs_permit {
            self.permit = tokio::select! {
                permit = self.shared.run_permit(&self.scope) => Some(permit),
                () = self.stop.cancelled() => return Err(StepError::Aborted),
                () = self.shutdown.draining() => return Err(StepError::Released),
                () = self.until_deadline() => return Err(overtime()),
            };
        }
        Ok(())
    }
}

/// Returns `true` if a call needs a decision itself.
fn is_open(call: &ToolCall) -> bool {
    matches!(call.status, ToolCallStatus::AwaitingApproval | ToolCallStatus::Unknown)
}

/// Returns the decision that the calls of an interrupt need, as the row of the run names it: a settlement if no call
/// needs an approval.
fn decision_of(all: &[Value]) -> &'static str {
    let has = |status: ToolCallStatus| all.iter().any(|call| call["status"] == status.as_str());
    let settles = has(ToolCallStatus::Unknown) && !has(ToolCallStatus::AwaitingApproval);
    if settles { "settlement" } else { "approval" }
}

/// Returns the event that asks for a decision: the first call in top-level fields, for clients that show one call at a
/// time, and a list of all calls.
fn interrupt(session_id: &str, all: Vec<Value>, reason: &str) -> Map<String, Value> {
    let mut fields = match all.first().cloned() {
        Some(Value::Object(first)) => first,
        _ => Map::new(),
    };
    fields.remove("status");
    fields.remove("error");
    fields.remove("run_id");
    fields.remove("agent");
    fields.remove("files");
    fields.remove("files_complete");
    fields.insert("session_id".to_owned(), json!(session_id));
    fields.insert("reason".to_owned(), json!(reason));
    fields.insert("action_requests".to_owned(), json!(all));
    fields
}
