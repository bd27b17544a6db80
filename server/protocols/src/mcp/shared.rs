//! State shared by all requests: sessions, the key that signs states, and calls that can be cancelled.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_engine::Engine;
use abide_schema::reducer::Caller;
use serde_json::{Value as JsonValue, json};
use tokio_util::sync::CancellationToken;

use super::sessions::{McpSessions, identity};
use super::state_seal::StateSeal;

/// The [`identity`] of a caller, and the idempotency key of a call.
type Key = (String, String);

/// State shared by all requests.
#[derive(Debug, Default)]
pub(crate) struct McpState {
    pub(super) sessions: McpSessions,
    pub(super) seal: StateSeal,
    /// Calls without a session that are being answered, with their numbers.
    calls: Mutex<HashMap<Key, (u64, CancellationToken)>>,
    next_call: AtomicU64,
    /// The tools of reducers, by name: their schemas take longer to make than to send.
    reducers: Mutex<HashMap<String, JsonValue>>,
}

impl McpState {
    /// Returns the tool of a reducer; `None` if there is no reducer with this name.
    pub(super) fn reducer_tool(&self, engine: &Engine, name: &str) -> Option<JsonValue> {
        let mut known = self.reducers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tool) = known.get(name) {
            return Some(tool.clone());
        }
        let reducer = engine.describe_reducer(name)?;
        let tool = json!({"name": name, "description": reducer["description"],
            "inputSchema": reducer["arguments"], "annotations": {"openWorldHint": false}});
        known.insert(name.to_owned(), tool.clone());
        Some(tool)
    }

    /// Registers a call, so that its caller can cancel it. Of calls with the same key it is the last one.
    pub(super) fn begin(
        self: &Arc<Self>,
        by: &Caller,
        key: &str,
        token: CancellationToken,
    ) -> CancellableCall {
        let key = (identity(by), key.to_owned());
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        self.lock_calls().insert(key.clone(), (number, token));
        CancellableCall { key, number, state: Arc::clone(self) }
    }

    /// Cancels a call of a caller.
    pub(super) fn cancel(&self, by: &Caller, key: &str) {
        if let Some((_, token)) = self.lock_calls().get(&(identity(by), key.to_owned())) {
            token.cancel();
        }
    }

    fn lock_calls(&self) -> MutexGuard<'_, HashMap<Key, (u64, CancellationToken)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that can be cancelled, until it is answered.
#[derive(Debug)]
pub(super) struct CancellableCall {
    key: Key,
    number: u64,
    state: Arc<McpState>,
}

impl Drop for CancellableCall {
    fn drop(&mut self) {
        let mut calls = self.state.lock_calls();
        if calls.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            calls.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use abide_schema::Scope;

    use super::*;

    fn caller(id: &str, role: &str, tenant: Option<&str>) -> Caller {
        let scope = tenant.map(|tenant| ("tenant".to_owned(), tenant.to_owned()));
        Caller::with(id, role, BTreeSet::new(), Scope::from_iter(scope))
    }

    /// A caller could cancel calls, and answer for requests, of the same subject with another role: they were bound to the
    /// principal, which has no role. The class is state in memory that is found by less than the whole identity.
    #[test]
    fn state_in_memory_is_bound_to_the_whole_identity() {
        let owner = || caller("jwt:https://a#ann", "app", Some("acme"));
        let state = Arc::new(McpState::default());
        let token = CancellationToken::new();
        let _call = state.begin(&owner(), "k", token.clone());
        let signed = state.seal.sign(&identity(&owner()), "tools/call", json!(1)).expect("a key");
        for (why, other) in [
            ("issuer", caller("jwt:https://b#ann", "app", Some("acme"))),
            ("role", caller("jwt:https://a#ann", "worker", Some("acme"))),
            ("scope", caller("jwt:https://a#ann", "app", Some("zeta"))),
            ("no scope", caller("jwt:https://a#ann", "app", None)),
        ] {
            state.cancel(&other, "k");
            assert!(!token.is_cancelled(), "{why}");
            assert!(state.seal.open(&identity(&other), "tools/call", &signed).is_err(), "{why}");
        }
        assert!(state.seal.open(&identity(&owner()), "tools/call", &signed).is_ok());
        state.cancel(&owner(), "k");
        assert!(token.is_cancelled());
    }
}
