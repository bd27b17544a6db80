//! What all drivers of a runtime share: connection, tools, models, settings and the leases of their runs.

use std::collections::BTreeMap;
use std::sync::Mutex;

use abide_client::{Abide, Error, Json, Scope};
use abide_models::Models;
use abide_programs::Parsers;
use abide_tools::{BackendName, Environment, ToolOutcome, Tools};
use serde_json::Value;

use crate::catalog::shared_setting::SharedSetting;
use crate::catalog::trusted_programs::TrustedPrograms;
use crate::definition::guardrail::GuardrailFunctions;
use crate::definition::middleware::Middleware;
use crate::definition::pause_rule::PauseCallback;
use crate::middleware::agent_middleware::RegisteredMiddleware;
use crate::run::lease::RunLease;
use crate::run::settings::Settings;
use crate::trace::metrics::AgentMetrics;

/// State shared by all drivers of a runtime.
pub(crate) struct RuntimeContext {
    pub(crate) abide: Abide,
    /// The active runs, as they were claimed. Only the claim returns the fencing token; it cannot be read later.
    pub(crate) run_leases: Mutex<BTreeMap<String, RunLease>>,
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
    /// While a recording is repeated: what the tools of the memory returned, by call.
    pub(crate) recorded_outcomes: BTreeMap<String, ToolOutcome>,
}

impl RuntimeContext {
    /// A client whose scope is that of a session.
    pub(crate) async fn acting_for(&self, session_id: &str) -> Result<Abide, Error> {
        let scope = self.scope_of(session_id).await?;
        self.abide.acting_for(&scope).await
    }

    /// The scope of a session, as far as it restricts callers.
    pub(crate) async fn scope_of(&self, session_id: &str) -> Result<Scope, Error> {
        let sql = "SELECT scope FROM sessions WHERE id = :id";
        let found: Vec<(Json,)> = self.abide.sql(sql).param("id", session_id).fetch().await?;
        // A scope restricts a caller only by string values; other values are ignored.
        Ok(match found.first().map(|(scope,)| scope.value()) {
            Some(Value::Object(scope)) => {
                let texts = scope.into_iter().filter_map(|(key, value)| match value {
                    Value::String(text) => Some((key, text)),
                    _ => None,
                });
                texts.collect()
            }
            _ => Scope::new(),
        })
    }
}
