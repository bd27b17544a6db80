//! The driver of one run: what it holds, and the agent that acts for it. `read` and `record` are the ways in which every step reads
//! and records; the loop is in `drive`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use abide_client::{Abide, Scope, Session};
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
use crate::run::state::{Recorded, RunState};
use crate::run::step::{Failure, Step, StepError};
use crate::watchdog::state::HealthState;

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
    /// The definition of the run's own agent. It differs from the active one only while a handoff is in effect.
    pub(crate) own: Arc<AgentDefinition>,
    /// The middleware of all agents when this driver began.
    pub(crate) deployment: Arc<Vec<Middleware>>,
    pub(crate) agent: ActiveAgent,
    pub(crate) state: RunState,
    /// The measurements of the run.
    pub(crate) health: HealthState,
    /// Whether no budget limits the run.
    pub(crate) unlimited: AtomicBool,
    /// Whether this driver has asked the model.
    pub(crate) has_asked: bool,
    /// The event that imported the run; 0 if there is none.
    pub(crate) imported_seq: OnceCell<i64>,
}

impl Driver {
    /// Takes over rows. If another agent is active afterwards, it is loaded.
    pub(crate) async fn apply(&mut self, recorded: Recorded) -> Step {
        if self.state.apply(recorded) {
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
                Arc::new(match catalog::revision::definition(abide, agent, *revision).await {
                    Ok(definition) => definition,
                    Err(RuntimeError::Abide(error)) => return Err(error.into()),
                    Err(unreadable) => {
                        let why = Failure::new("malformed_definition", unreadable.to_string());
                        return Err(StepError::Failed(why));
                    }
                })
            }
            _ => Arc::clone(&self.own),
        };
        if let Err(refused) = self.shared.middleware.check(&definition) {
            let why = Failure::new(refused.code(), refused.to_string());
            return Err(StepError::Failed(why));
        }
        let loaded = ActiveAgent::load(abide, &self.shared.tools, definition).await?;
        self.agent = loaded.map_err(StepError::Failed)?;
        Ok(())
    }

    /// The guardrails that apply to the run now: those of its own agent, and those of the active agent.
    pub(crate) fn guardrails(&self) -> impl Iterator<Item = &Guardrail> {
        self.middleware().filter_map(Middleware::guardrail)
    }

    /// The middleware of the run now, in order: that of all agents, that of its own agent, and that of the active agent.
    pub(crate) fn middleware(&self) -> impl Iterator<Item = &Middleware> {
        let active = self.state.handoff().map(|_| &*self.agent.definition);
        let of_all = active.into_iter().flat_map(|it| &it.deployment_middleware);
        // What applies to all agents applies once.
        let is_new = |it: &&Middleware| {
            !self.deployment.contains(it) && !self.own.deployment_middleware.contains(it)
        };
        let own = self.own.all_middleware(&self.deployment);
        own.chain(of_all.filter(is_new)).chain(active.into_iter().flat_map(|it| &it.middleware))
    }

    /// The context of a tool, with the session as it was last read.
    pub(crate) fn tool_context(&self) -> ToolContext {
        self.state.session.as_ref().map(|session| self.context(session)).unwrap_or_default()
    }

    /// The context that tools are called with.
    pub(crate) fn context(&self, session: &Session) -> ToolContext {
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
