//! State shared by all drivers of a runtime: connection, tools, models, settings and the leases of their runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_client::{Abide, Error, Json, Scope};
use abide_definitions::guardrail::GuardrailFunctions;
use abide_definitions::middleware::Middleware;
use abide_definitions::pause_rule::PauseCallback;
use abide_models::Models;
use abide_programs::Parsers;
use abide_tools::{BackendName, Environment, ScopeLimiter, ScopePermit, ToolOutcome, Tools};
use serde_json::Value;

use crate::catalog::shared_setting::SharedSetting;
use crate::catalog::trusted_programs::TrustedPrograms;
use crate::middleware::agent_middleware::RegisteredMiddleware;
use crate::run::heartbeat::HeldLeases;
use crate::run::settings::Settings;
use crate::trace::metrics::AgentMetrics;

/// State shared by all drivers of a runtime.
pub(crate) struct RuntimeContext {
    pub(crate) abide: Abide,
    pub(crate) leases: Arc<HeldLeases>,
    pub(crate) tools: Tools,
    pub(crate) models: SharedSetting<Models>,
    pub(crate) settings: Settings,
    pub(crate) trusted_programs: TrustedPrograms,
    /// The environment variables that programs may inherit.
    pub(crate) environment: Environment,
    /// The guardrails in Rust.
    pub(crate) guardrails: GuardrailFunctions,
    /// The middleware in Rust.
    pub(crate) middleware: RegisteredMiddleware,
    /// The parsers in Rust.
    pub(crate) parsers: Parsers,
    /// The callback that can pause a run.
    pub(crate) pause_callback: PauseCallback,
    /// The sandbox of the tools.
    pub(crate) sandbox: SharedSetting<Option<BackendName>>,
    /// The middleware of all agents.
    pub(crate) deployment: SharedSetting<Vec<Middleware>>,
    /// Counters for `/metrics`.
    pub(crate) metrics: AgentMetrics,
    /// Limits the runs that are driven at a time.
    pub(crate) run_limiter: ScopeLimiter,
    /// While a recording is repeated: the outcomes in it, by call. The tools of the runtime whose outcomes depend on more than their
    /// arguments return them (memory, supervisors), and calls that were cancelled or rejected end so again (`tools/repeated.rs`).
    pub(crate) recorded_outcomes: BTreeMap<String, ToolOutcome>,
}

impl RuntimeContext {
    /// Returns the scope of a session, as far as it restricts callers.
    pub(crate) async fn scope_of(&self, session_id: &str) -> Result<Scope, Error> {
        let sql = "SELECT scope FROM sessions WHERE id = :id";
        let found: Vec<(Json,)> = self.abide.sql(sql).param("id", session_id).fetch().await?;
        Ok(found.first().map(|(scope,)| restriction(scope)).unwrap_or_default())
    }

    /// Returns the scope of the session of a run, and whether another run has delegated it; `None` if there is no such
    /// run.
    pub(crate) async fn scope_of_run(&self, run_id: &str) -> Result<Option<(Scope, bool)>, Error> {
        let sql = "SELECT s.scope, r.parent_id IS NOT NULL FROM runs r \
                   JOIN sessions s ON s.id = r.session_id WHERE r.id = :id";
        let found: Vec<(Json, i64)> = self.abide.sql(sql).param("id", run_id).fetch().await?;
        Ok(found.first().map(|(scope, is_delegated)| (restriction(scope), *is_delegated != 0)))
    }

    /// Waits until a run of this scope may be driven.
    pub(crate) async fn run_permit(&self, scope: &Scope) -> ScopePermit {
        self.run_limiter.permit(scope.clone()).await
    }
}

/// A scope restricts a caller only by string values; other values are ignored.
pub(crate) fn restriction(scope: &Json) -> Scope {
    let Value::Object(scope) = scope.value() else { return Scope::new() };
    let texts = scope.into_iter().filter_map(|(key, value)| match value {
        Value::String(text) => Some((key, text)),
        _ => None,
    });
    texts.collect()
}
