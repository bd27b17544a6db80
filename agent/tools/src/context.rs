//! The context of a call in the form that each kind of tool receives. A model's arguments never become a part of it.

use serde_json::{Value, json};

use crate::tool::{Invocation, ToolContext};

/// The variable with the context, for programs.
pub(crate) const VARIABLE: &str = "ABIDE_CONTEXT";

/// Maximum size of the metadata in a context, as JSON. The system limits a variable to 128 KiB, and servers limit
/// headers.
const METADATA_BYTES: usize = 4 << 10;

impl ToolContext {
    /// Returns the context of a call as JSON: `call_id`, `session_id`, `thread_id`, `run_id`, `agent`, `scope` and
    /// `metadata`. Metadata of more than 4 KiB is omitted.
    #[must_use]
    pub fn to_json(&self, call_id: &str) -> Value {
        let metadata = Value::Object(self.metadata.clone());
        let is_small = metadata.to_string().len() <= METADATA_BYTES;
        json!({
            "call_id": call_id,
            "session_id": self.session_id,
            "thread_id": self.thread_id,
            "run_id": self.run_id,
            "agent": self.agent,
            "scope": self.scope,
            "metadata": if is_small { metadata } else { Value::Null },
        })
    }
}

impl Invocation {
    /// Returns the context as JSON.
    pub(crate) fn context_json(&self) -> Value {
        self.context.to_json(&self.call_id)
    }
}
