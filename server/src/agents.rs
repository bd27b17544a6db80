//! Interface to the agent host, which checks agent definitions because it has the tools. Pass it to
//! [`serve_with`](crate::serve_with).

use std::sync::Arc;

use abide_schema::Refusal;
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

    /// Its metrics for `/metrics`: counters of the agents that it drives.
    fn metrics(&self) -> Vec<AgentMetricFamily> {
        Vec::new()
    }
}

/// Samples of one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentMetricFamily {
    /// The name, without the prefix `abide_`.
    pub name: &'static str,
    /// Its meaning, in one sentence.
    pub meaning: &'static str,
    /// `counter` or `histogram`.
    pub kind: &'static str,
    /// The samples.
    pub samples: Vec<AgentMetricSample>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentMetricSample {
    /// The suffix of the name: `_bucket`, `_sum` and `_count` of a histogram.
    pub suffix: &'static str,
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

/// The agent host of a server, if it has one.
pub(crate) type AgentRegistryHandle = Option<Arc<dyn AgentRegistry>>;
