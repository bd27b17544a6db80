//! Interface to the agent host, which checks agent definitions because it has the tools. Pass it to
//! [`serve_with`](crate::serve_with).

use std::sync::Arc;

use abide_schema::Refusal;
use abide_schema::metrics::MetricFamily;
use serde_json::Value as JsonValue;

/// An agent host, as the server uses it.
pub trait AgentRegistry: std::fmt::Debug + Send + Sync {
    /// Converts a definition, a JSON object, to arguments of `register_agent`: first those of its inline agents,
    /// its own last. It may read files.
    ///
    /// # Errors
    /// `bad_arguments` if it is not a valid definition, names an unknown tool or middleware, or uses
    /// settings that are only allowed in the server's own folder.
    fn registrations(&self, definition: JsonValue) -> Result<Vec<JsonValue>, Refusal>;

    /// Returns the available building blocks of definitions, by name: `tools`, `middleware` and others.
    fn capabilities(&self) -> JsonValue;

    /// Its metrics for `/metrics`: those of the agents that it drives.
    fn metrics(&self) -> Vec<MetricFamily> {
        Vec::new()
    }
}

/// The agent host of a server, if it has one.
pub(crate) type AgentRegistryHandle = Option<Arc<dyn AgentRegistry>>;
