//! The agent catalog, as the server uses it to check posted definitions.

use std::fmt;
use std::sync::{Arc, OnceLock};

use abide_agent::{
    AgentMetrics, BackendName, Catalog, DefinitionError, Environment, Launcher, Middleware, Tools,
    available_backends,
};
use abide_schema::metrics::MetricFamily;
use abide_schema::{Code, Refusal};
use abide_server::AgentRegistry;
use serde_json::{Value, json};

/// The agent project of a server.
pub(super) struct CatalogRegistry {
    catalog: Arc<Catalog>,
    tools: Tools,
    metrics: AgentMetrics,
    /// The sandboxes of this machine, once they were tried.
    backends: Arc<OnceLock<Vec<Value>>>,
}

impl CatalogRegistry {
    /// A registry that starts to try the sandboxes of this machine.
    pub(super) fn new(
        catalog: Arc<Catalog>,
        tools: Tools,
        metrics: AgentMetrics,
        environment: Environment,
    ) -> CatalogRegistry {
        let backends = Arc::new(OnceLock::new());
        let tried = Arc::clone(&backends);
        // A program such as `docker` may take seconds to answer.
        std::thread::spawn(move || {
            tried.get_or_init(|| available_backends(&Launcher::this_program(), &environment));
        });
        CatalogRegistry { catalog, tools, metrics, backends }
    }
}

impl fmt::Debug for CatalogRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogRegistry")
            .field("tools", &self.tools.names())
            .finish_non_exhaustive()
    }
}

impl AgentRegistry for CatalogRegistry {
    fn registrations(&self, definition: Value) -> Result<Vec<Value>, Refusal> {
        let name = definition["name"].as_str().unwrap_or_default().to_owned();
        let agents =
            self.catalog.posted(&definition).map_err(|error| definition_refusal(&name, &error))?;
        agents.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(|why| {
            Refusal::new(Code::Internal, format!("the definition cannot be written: {why}"))
        })
    }

    fn capabilities(&self) -> Value {
        json!({
            "tools": self.tools.names(),
            "middleware": Middleware::names(),
            "sandbox": self.catalog.sandbox_name().map(BackendName::as_str),
            "sandbox_backends": self.backends.wait(),
            // An agent that is a program has the tools of the program, and none of these.
            "programs": {"tools": false, "approvals": ["claude", "acp", "codex-app-server"]},
        })
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        self.metrics.families()
    }
}

/// A refusal with the catalog's own error code, for programs.
fn definition_refusal(name: &str, error: &DefinitionError) -> Refusal {
    let detail = format!("agent {name} is not valid: {}: {error}", error.code());
    let hint = match error.suggestion() {
        hint if error.code() == "unknown_tool"
            && !hint.as_ref().is_some_and(|hint| hint.starts_with("did you mean")) =>
        {
            "GET /capabilities lists the tools".to_owned()
        }
        Some(suggestion) => suggestion,
        None => "docs/agents.md describes the fields of a definition".to_owned(),
    };
    Refusal::new(Code::BadArguments, detail).hint(hint)
}
