//! Which rows of a run are read, and when: all before the first action and after something else may have changed them, none after a
//! step that was recorded on the condition that nothing else had (`run/step_batch.rs`).

use abide_client::rows::{AgentState, Pause, Run, Session, ToolCall};
use abide_client::{Code, Error, Refusal, Seq};
use serde::de::DeserializeOwned;

use crate::context::entry::{self, SessionEntry};
use crate::context::summarized::SummarizedContext;
use crate::delegation::task;
use crate::run::decide;
use crate::run::driver::Driver;
use crate::run::lease::RunLease;
use crate::run::state::{CurrentRows, NewRows};
use crate::run::step::{RunFailure, Step, StepError};
use crate::tools::registry;

impl Driver {
    /// Makes the state current. Nothing is read of the run and its session if the last step was recorded on the condition that
    /// nothing else has changed.
    pub(crate) async fn refresh(&mut self) -> Step {
        if self.stop.is_cancelled() || !self.state.take_current() {
            return self.read_all().await;
        }
        self.read_waiting().await
    }

    /// Reads everything that the next action depends on.
    pub(crate) async fn read_all(&mut self) -> Step {
        self.read_state().await?;
        self.read_waiting().await
    }

    /// Reads the current state: the run, its session, its new messages, and the calls of its last answer.
    pub(crate) async fn read_state(&mut self) -> Step {
        if self.stop.is_cancelled() {
            return Err(StepError::Aborted);
        }
        self.read_context().await?;
        let rows = self.current_rows().await?;
        self.apply(NewRows::Current(Box::new(rows))).await?;
        let calls = self.current_calls().await?;
        self.apply(NewRows::Calls(calls)).await
    }

    /// Reads the messages that the model sees, before the first step.
    async fn read_context(&mut self) -> Step {
        if self.state.context.is_some() {
            return Ok(());
        }
        let session_id = &self.state.run.session_id;
        let context = SummarizedContext::load(&self.abide, session_id).await?;
        let kept = context.kept_entries(&self.abide, session_id).await?;
        self.apply(NewRows::Context { context, kept }).await
    }

    /// Reads the newest summary, after a step has recorded it, and forgets the messages that it stands for.
    pub(crate) async fn read_summary(&mut self) -> Step {
        let context = SummarizedContext::load(&self.abide, &self.state.run.session_id).await?;
        self.apply(NewRows::Summary(context)).await
    }

    async fn current_rows(&self) -> Step<CurrentRows> {
        let run_id = &self.run_lease.run_id;
        // At the same time, because each takes mostly waiting. While the lease is held, only this driver changes the run, and
        // its last step has ended, so the messages are not older than the run.
        let (run, session, pause, new) = tokio::try_join!(
            self.row::<Run>("SELECT * FROM runs WHERE id = :id", run_id),
            self.row::<Session>(
                "SELECT * FROM sessions WHERE id = :id",
                &self.state.run.session_id
            ),
            self.row::<Pause>("SELECT * FROM pauses WHERE run_id = :id", run_id),
            self.new_messages(),
        )?;
        let seq = [run.1, session.1, pause.1, new.1].into_iter().min();
        let run = run.0.ok_or_else(|| gone("run"))?;
        // A runtime with a restricted role does not see the token. Then the next recorded step detects a lost
        // lease.
        let token = run.fencing_token.unwrap_or(self.run_lease.fencing_token);
        if token != self.run_lease.fencing_token {
            return Err(StepError::Refused(Error::Refused(lost(&self.run_lease))));
        }
        if run.abort_requested_at.is_some() {
            return Err(StepError::Aborted);
        }
        let session = session.0.ok_or_else(|| gone("session"))?;
        Ok(CurrentRows { run, session, pause: pause.0, new: new.0, seq })
    }

    /// Returns a row, and the event as of which it was read.
    async fn row<T: DeserializeOwned>(&self, sql: &str, id: &str) -> Step<(Option<T>, Seq)> {
        let found = self.abide.sql(sql).param("id", id).rows().await?;
        Ok((found.typed()?.into_iter().next(), found.seq))
    }

    /// Returns the messages after those that are known, and the event as of which they were read.
    async fn new_messages(&self) -> Step<(Vec<SessionEntry>, Seq)> {
        let sql = "SELECT * FROM agent_state WHERE session_id = :sid AND id > :newest ORDER BY id";
        let query = self.abide.sql(sql).param("sid", &self.state.run.session_id);
        let found = query.param("newest", self.state.newest_id()).rows().await?;
        let rows: Vec<AgentState> = found.typed()?;
        Ok((rows.into_iter().map(SessionEntry::from).collect(), found.seq))
    }

    /// Returns the rows of the calls of the last answer, if one of them has no result.
    async fn current_calls(&self) -> Step<Vec<ToolCall>> {
        let Some((at, answer)) = self.state.last_answer() else { return Ok(Vec::new()) };
        let after = &self.state.entries[at + 1..];
        if entry::open_calls(answer, after).next().is_none() {
            return Ok(Vec::new());
        }
        let ids: Vec<&str> = answer.calls.iter().map(|call| call.call_id.as_str()).collect();
        let ids = serde_json::to_string(&ids).unwrap_or_default();
        // With `+` the ids are looked up. Otherwise all calls of the session would be read.
        let sql = "SELECT * FROM tool_calls \
             WHERE call_id IN (SELECT value FROM json_each(:ids)) AND +session_id = :sid";
        let query = self.abide.sql(sql).param("ids", ids);
        Ok(query.param("sid", &self.state.run.session_id).fetch().await?)
    }

    /// Reads the runs that calls of the last answer have started and that wait for a decision.
    async fn read_waiting(&mut self) -> Step {
        let is_suspended = self.state.session.as_ref().and_then(decide::suspension).is_some();
        self.state.waiting = if is_suspended {
            Vec::new()
        } else {
            task::waiting(self, registry::started_runs(self, &self.state.calls)).await?
        };
        Ok(())
    }
}

fn gone(what: &str) -> StepError {
    StepError::Failed(RunFailure::new("not_found", format!("the {what} is no longer visible")))
}

fn lost(run_lease: &RunLease) -> Refusal {
    let detail =
        format!("the lease of run {} expired, and another driver claimed it", run_lease.run_id);
    Refusal::new(Code::LeaseLost, detail)
        .hint("this driver stops; the run continues with the other one")
}
