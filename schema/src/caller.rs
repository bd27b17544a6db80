//! Who calls, and what comes with it: a role, capabilities, and a scope.
//!
//! A caller is named by the door that let the call in, never by the call itself. It travels with the
//! call to the reducer, and with the question to the reader, unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as JsonValue, json};

use crate::canonical;

/// What bounds a caller's sight: keys that whoever runs the deployment chose, such as `tenant`, and
/// the one value of each that the caller is concerned with. Empty: everything.
pub type Scope = BTreeMap<String, String>;

/// How much a caller may call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CallLimits {
    /// The pace: after a pause so many at once, and then at this rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Allowance>,
    /// So many in each span, counted from its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Allowance>,
}

/// So many calls in so many milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// How many.
    pub calls: i64,
    /// In how many milliseconds.
    pub per_ms: i64,
}

/// Who calls. Clones share what it holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Caller(Arc<Authority>);

#[derive(Clone, PartialEq, Eq)]
struct Authority {
    id: String,
    role: String,
    capabilities: BTreeSet<String>,
    scope: Scope,
    limits: CallLimits,
    /// As the log keeps it.
    recorded: Option<String>,
}

impl Caller {
    /// The engine itself, when time has come for something. Nobody else is called so.
    pub const SYSTEM: &'static str = "system";

    /// The role that may call everything.
    pub const ADMIN: &'static str = "admin";

    /// Stands in a set of capabilities for all of them.
    pub const EVERY_CAPABILITY: &'static str = "*";

    /// A caller of that id whom nothing bounds: an admin with every capability and no scope. This is
    /// who embeds the engine, and who comes over loopback while there are no credentials.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Caller {
        let capabilities = [Caller::EVERY_CAPABILITY.to_owned()].into();
        Caller::with(id, Caller::ADMIN, capabilities, Scope::new())
    }

    /// A caller with a role, capabilities and a scope.
    #[must_use]
    pub fn with(
        id: impl Into<String>,
        role: impl Into<String>,
        capabilities: BTreeSet<String>,
        scope: Scope,
    ) -> Caller {
        let role = role.into();
        let unbounded = role == Caller::ADMIN
            && scope.is_empty()
            && capabilities.contains(Caller::EVERY_CAPABILITY);
        let bounds = json!({"role": role, "capabilities": capabilities, "scope": scope});
        let recorded = (!unbounded).then(|| canonical::to_text(&bounds));
        let (id, limits) = (id.into(), CallLimits::default());
        Caller(Arc::new(Authority { id, role, capabilities, scope, limits, recorded }))
    }

    /// The same caller, who may call no more than this.
    #[must_use]
    pub fn limited(self, limits: CallLimits) -> Caller {
        let mut authority = Arc::unwrap_or_clone(self.0);
        authority.limits = limits;
        Caller(Arc::new(authority))
    }

    /// Who comes over loopback while there are no credentials.
    #[must_use]
    pub fn local() -> Caller {
        Caller::new("local")
    }

    /// The engine itself.
    #[must_use]
    pub fn system() -> Caller {
        Caller::new(Caller::SYSTEM)
    }

    /// The identity's id, as the log keeps it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// What it may call follows from this: `app`, `agent`, `worker`, `supervisor`, `auditor`, `admin`
    /// or a role of the deployment's own.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.0.role
    }

    /// What it may be entrusted with; `*` stands for everything.
    #[must_use]
    pub fn capabilities(&self) -> &BTreeSet<String> {
        &self.0.capabilities
    }

    /// What bounds its sight.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// How much it may call.
    #[must_use]
    pub fn limits(&self) -> CallLimits {
        self.0.limits
    }

    /// Whether it has a capability.
    #[must_use]
    pub fn can(&self, capability: &str) -> bool {
        let held = &self.0.capabilities;
        held.contains(Caller::EVERY_CAPABILITY) || held.contains(capability)
    }

    /// Whether nothing bounds it: an admin with every capability and no scope.
    #[must_use]
    pub fn is_unbounded(&self) -> bool {
        self.0.recorded.is_none()
    }

    /// All that bounds it, as the log keeps it: canonical JSON of `role`, `capabilities` and `scope`.
    /// `None` for who is bounded by nothing.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        self.0.recorded.as_deref()
    }

    /// The caller of an event, from its id and [`Caller::authority`]. What is not of that form bounds it
    /// to nothing at all.
    #[must_use]
    pub fn recorded(id: &str, authority: Option<&str>) -> Caller {
        #[derive(Default, Deserialize)]
        struct Bounds {
            role: String,
            capabilities: BTreeSet<String>,
            scope: Scope,
        }
        let Some(authority) = authority else { return Caller::new(id) };
        let bounds: Bounds = serde_json::from_str(authority).unwrap_or_default();
        Caller::with(id, bounds.role, bounds.capabilities, bounds.scope)
    }

    /// Whether something with that scope, a JSON object or NULL, is within its own: every key that
    /// bounds the caller stands there, with the same text.
    #[must_use]
    pub fn reaches(&self, scope: Option<&JsonValue>) -> bool {
        let is_there = |(key, value): (&String, &String)| {
            scope.and_then(|scope| scope.get(key)).and_then(JsonValue::as_str) == Some(value)
        };
        self.0.scope.iter().all(is_there)
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Authority { id, role, capabilities, scope, .. } = &*self.0;
        let mut told = f.debug_struct("Caller");
        told.field("id", id).field("role", role);
        told.field("capabilities", capabilities).field("scope", scope).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_is_bounded_by_nothing_has_everything() {
        let local = Caller::local();
        assert!(local.is_unbounded() && local.can("refunds") && local.reaches(None));
        assert_eq!(local.authority(), None);
        assert_eq!(Caller::recorded("local", None), local);
    }

    #[test]
    fn a_scope_is_reached_where_every_key_has_the_same_text() {
        let scope = [("tenant".to_owned(), "acme".to_owned()), ("n".to_owned(), "1".to_owned())];
        let caller = Caller::with("ann", "app", BTreeSet::new(), scope.into());
        assert!(!caller.is_unbounded() && !caller.can("refunds"));
        let cases = [
            (json!({"tenant": "acme", "n": "1"}), true),
            (json!({"tenant": "acme", "n": "1", "team": "blue"}), true),
            (json!({"tenant": "acme"}), false),
            (json!({"tenant": "acme", "n": 1}), false),
            (json!({"tenant": "ACME", "n": "1"}), false),
            (json!({"tenant": ["acme"], "n": "1"}), false),
            (json!("acme"), false),
            (json!(null), false),
        ];
        for (scope, reached) in cases {
            assert_eq!(caller.reaches(Some(&scope)), reached, "{scope}");
        }
        assert!(!caller.reaches(None));
        let authority = caller.authority();
        let expected = r#"{"capabilities":[],"role":"app","scope":{"n":"1","tenant":"acme"}}"#;
        assert_eq!(authority, Some(expected));
        assert_eq!(Caller::recorded("ann", authority), caller);
    }
}
