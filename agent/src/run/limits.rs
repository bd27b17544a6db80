//! The limits of a run: time, tokens, cost and answers, of its own agent and of one that has taken over.

use std::time::Duration;

use abide_definitions::agent::AgentDefinition;
use abide_models::dollars;

use crate::run::driver::Driver;
use crate::run::step::{RunFailure, Step, StepError, overtime};

impl Driver {
    /// Checks the run's limits before the model is asked again.
    pub(crate) fn check_limits(&self) -> Step {
        let definition = &self.agent.definition;
        let limits = &definition.limits;
        let consumed = self.state.consumed();
        let default = definition.settings().limits.recursion_limit();
        let iterations = definition.config.recursion_limit.unwrap_or(default);
        if consumed.iterations >= iterations {
            let why = format!("the model has answered {iterations} times");
            return Err(exceeded("recursion_limit", why));
        }
        if let Some(max) = limits.tokens.filter(|max| consumed.tokens >= *max) {
            let why = format!("the run has reached its limit of {max} tokens");
            return Err(exceeded("token_limit", why));
        }
        let cost = dollars(consumed.cost_micros);
        if let Some(max) = limits.cost_usd.filter(|max| cost >= *max) {
            let why = format!("the run has reached its limit of {max} dollars");
            return Err(exceeded("cost_limit", why));
        }
        let now = self.shared.settings.now();
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            return Err(overtime());
        }
        Ok(())
    }

    /// Returns the run's deadline, in microseconds since 1970. The run does not wait while it has a driver.
    pub(crate) fn deadline(&self) -> Option<i64> {
        let run = &self.state.run;
        let own = ends_after(&self.own_definition, run.created_at.0, self.state.work_began());
        let given = run.deadline_at.map(|at| at.0);
        [own, self.handoff_deadline(), given].into_iter().flatten().min()
    }

    /// Returns the deadline of an agent that has taken over the turn.
    fn handoff_deadline(&self) -> Option<i64> {
        let handoff = self.state.handoff()?;
        let work_began = self.state.work_began().saturating_add(handoff.worked_us);
        ends_after(&self.agent.definition, handoff.at, work_began)
    }

    /// Returns when a wait that begins now ends the run: the deadline of an agent that has taken over the turn, if waits count. The
    /// row of the run does not have it, so each wait reports it.
    pub(crate) fn wait_deadline(&self) -> Option<i64> {
        self.handoff_deadline().filter(|_| self.agent.definition.limits.wall_clock_counts_waits)
    }

    /// Completes at the run's deadline; never if it has none.
    pub(crate) async fn until_deadline(&self) {
        sleep_until(self.deadline(), self.shared.settings.now()).await;
    }
}

/// Completes at a deadline, in microseconds since 1970; never if there is none.
pub(crate) async fn sleep_until(deadline: Option<i64>, now: i64) {
    match deadline {
        Some(deadline) => {
            let left = (deadline - now).max(0).unsigned_abs();
            tokio::time::sleep(Duration::from_micros(left)).await;
        }
        None => std::future::pending().await,
    }
}

fn exceeded(code: &str, message: String) -> StepError {
    StepError::Failed(RunFailure::new(code, message))
}

/// When an agent that began at this time reaches its time limit, in microseconds since 1970. `work_began` is when it would have
/// begun if the run had not waited since then: waits count only if the definition says so.
fn ends_after(definition: &AgentDefinition, began: i64, work_began: i64) -> Option<i64> {
    let seconds = definition.limits.wall_clock_seconds?;
    let since = if definition.limits.wall_clock_counts_waits { began } else { work_began };
    Some(since.saturating_add(seconds.saturating_mul(1_000_000)))
}
