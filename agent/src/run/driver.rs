//! The driver of one run: what it holds, and the agent that acts for it.
//!
//! Its methods are in the files of their subjects: the loop in `run/drive.rs`, reading in `run/read.rs`, recording in
//! `run/record.rs`, limits in `run/limits.rs`, waits in `run/wait.rs`. A driver is made by a claim, in `run/drivers.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use abide_client::{Abide, Scope};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::guardrail::Guardrail;
use abide_definitions::middleware::Middleware;
use abide_tools::{ScopePermit, ToolContext};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::catalog;
use crate::context::entry::HandoffEntry;
use crate::run::active_agent::ActiveAgent;
use crate::run::context::RuntimeContext;
use crate::run::error::RuntimeError;
use crate::run::lease::RunLease;
use crate::run::shutdown::Shutdown;
use crate::run::state::{NewRows, RunState};
use crate::run::step::{RunFailure, Step, StepError};
use crate::watchdog::HealthState;

/// The driver of one run.
pub(crate) struct Driver {
    pub(crate) shared: Arc<RuntimeContext>,
    /// A client limited to the scope of the run's session, so rows or model output cannot make it reach other data.
    pub(crate) abide: Abide,
    /// The scope of the run's session.
    pub(crate) scope: Scope,
    /// The permit to drive the run; `None` while it waits for calls of others, and for a delegated run.
    pub(crate) permit: Option<ScopePermit>,
    pub(crate) run_lease: RunLease,
    /// Cancelled when the run is aborted or its lease is lost.
    pub(crate) stop: CancellationToken,
    /// How the runtime stops: when it drains, the run is released after its step.
    pub(crate) shutdown: Shutdown,
    /// The definition of the run's own agent. It differs from the active one only while a handoff is in effect.
    pub(crate) own_definition: Arc<AgentDefinition>,
    /// The middleware of all agents when this driver began.
    pub(crate) deployment: Arc<Vec<Middleware>>,
    pub(crate) agent: ActiveAgent,
    pub(crate) state: RunState,
    /// The measurements of the run.
    pub(crate) health: HealthState,
    /// Whether no budget limits the run, as the last reservation has shown.
    pub(crate) has_no_budget: AtomicBool,
    /// Whether this driver has asked the model.
    pub(crate) has_asked_model: bool,
    /// The event that imported the run; 0 if there is none.
    pub(crate) imported_seq: OnceCell<i64>,
}

impl Driver {
    /// Takes over rows. If another agent is active afterwards, it is loaded.
    pub(crate) async fn apply(&mut self, rows: NewRows) -> Step {
        if self.state.apply(rows) {
            self.activate().await?;
        }
        Ok(())
    }

    /// Loads the definition of the active agent.
    async fn activate(&mut self) -> Step {
        let active = self.state.handoff().cloned();
        let abide = &self.shared.abide;
        let definition = match &active {
            Some(HandoffEntry { agent: Some(agent), revision, .. }) => {
                Arc::new(match catalog::revision::load_definition(abide, agent, *revision).await {
                    Ok(definition) => definition,
                    Err(RuntimeError::Abide(error)) => return Err(error.into()),
                    Err(unreadable) => {
                        let why = RunFailure::new("malformed_definition", unreadable.to_string());
                        return Err(StepError::Failed(why));
                    }
                })
            }
            _ => Arc::clone(&self.own_definition),
        };
        if let Err(refused) = self.shared.middleware.check(&definition) {
            let why = RunFailure::new(refused.code(), refused.to_string());
            return Err(StepError::Failed(why));
        }
        let loaded = ActiveAgent::load(abide, &self.shared.tools, definition).await?;
        self.agent = loaded.map_err(StepError::Failed)?;
        Ok(())
    }

    /// Returns the guardrails that apply to the run now: those of its own agent, and those of the active agent.
    pub(crate) fn guardrails(&self) -> impl Iterator<Item = &Guardrail> {
        self.middleware().filter_map(Middleware::guardrail)
    }

    /// Returns the middleware of the run now, in order: that of all agents, that of its own agent, and that of the
    /// active agent.
    pub(crate) fn middleware(&self) -> impl Iterator<Item = &Middleware> {
        let active = self.state.handoff().map(|_| &*self.agent.definition);
        let of_all = active.into_iter().flat_map(|it| &it.deployment_middleware);
        // What applies to all agents applies once.
        let is_new = |it: &&Middleware| {
            !self.deployment.contains(it) && !self.own_definition.deployment_middleware.contains(it)
        };
        let own = self.own_definition.all_middleware(&self.deployment);
        own.chain(of_all.filter(is_new)).chain(active.into_iter().flat_map(|it| &it.middleware))
    }

    /// Returns what tools and middleware learn about their run, with the session as it was last read.
    pub(crate) fn tool_context(&self) -> ToolContext {
        let Some(session) = &self.state.session else { return ToolContext::default() };
        let scope = match session.scope.value() {
            Value::Object(scope) => scope,
            _ => Map::new(),
        };
        ToolContext {
            session_id: session.id.clone(),
            agent: self.agent.definition.name.clone(),
            scope,
            run_id: Some(self.state.run.id.clone()),
            // A session is one thread of messages.
            thread_id: Some(session.id.clone()),
            metadata: match session.metadata.value() {
                Value::Object(metadata) => metadata,
                _ => Map::new(),
            },
        }
    }
}
