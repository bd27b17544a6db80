//! What the doors do not know of agents themselves: whether a definition is one. Whoever has the tools says so, and
//! hands it in with [`serve_with`](crate::serve_with).

use std::sync::Arc;

use abide_schema::Refusal;
use serde_json::Value as JsonValue;

/// A workshop of agents, as the doors ask it.
pub trait Agents: std::fmt::Debug + Send + Sync {
    /// What is to be registered for a definition, a JSON object: the arguments of `register_agent`, those of
    /// agents that it defines on the spot first, its own last. It may read files.
    ///
    /// # Errors
    /// `bad_arguments` where it is no definition, names a tool or a middleware that there is not, or asks for
    /// what only the server's own folder may say.
    fn registrations(&self, definition: JsonValue) -> Result<Vec<JsonValue>, Refusal>;

    /// What definitions can be made of: `tools`, `middleware` and whatever else there is, by name.
    fn capabilities(&self) -> JsonValue;
}

/// The workshop of a server, where it has one.
pub(crate) type Workshop = Option<Arc<dyn Agents>>;
