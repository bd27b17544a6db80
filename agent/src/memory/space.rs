//! Where the facts of an agent are: the space, and a client that reaches it.

use abide_client::arguments::{NewMemory, SaveMemories};
use abide_client::{Abide, Error};
use abide_definitions::profile_settings::{MemoryScope, MemoryScopeRule, MemorySettings};

use crate::run::context::RuntimeContext;

/// Where an agent keeps its facts.
#[derive(Debug)]
pub(crate) struct MemorySpace {
    /// A client that reaches these facts: sessions with narrower scopes can share them.
    pub(crate) client: Abide,
    /// The space, as in `memories`.
    pub(crate) name: String,
    namespace: String,
    session_id: Option<String>,
}

impl MemorySpace {
    /// Returns the space of an agent's facts in a session. `abide` is a client within the scope of the session.
    pub(crate) async fn find(
        shared: &RuntimeContext,
        abide: &Abide,
        session_id: &str,
        agent: &str,
        settings: &MemorySettings,
    ) -> Result<MemorySpace, Error> {
        let namespace = match settings.namespace.as_str() {
            "" => agent.to_owned(),
            shared => shared.to_owned(),
        };
        let client = match &settings.scope {
            MemoryScope::Rule(_) => abide.clone(),
            MemoryScope::Keys(keys) => {
                let mut scope = shared.scope_of(session_id).await?;
                if keys.iter().all(|key| scope.contains_key(key)) {
                    scope.retain(|key, _| keys.contains(key));
                }
                shared.abide.acting_for(&scope).await?
            }
        };
        let session_id = match settings.scope {
            MemoryScope::Rule(MemoryScopeRule::Session) => Some(session_id.to_owned()),
            _ => None,
        };
        let mut space = MemorySpace { client, name: String::new(), namespace, session_id };
        // Without facts the call changes nothing and returns the space.
        let found = space.client.call(space.save(Vec::new())).await?.into_inner();
        space.name.clone_from(&found.space);
        Ok(space)
    }

    /// Returns the call that saves facts.
    pub(crate) fn save(&self, facts: Vec<NewMemory>) -> SaveMemories {
        let session_id = self.session_id.clone();
        SaveMemories { session_id, ..SaveMemories::new(&self.namespace, facts) }
    }
}
