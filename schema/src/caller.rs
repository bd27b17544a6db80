//! The caller of a request: its id, role, capabilities, scope and limits.
//!
//! The server or the embedding program determines the caller, never the request itself. It is passed
//! unchanged to the reducer with a call, and to the reader with a query.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as JsonValue, json};

use crate::refusal::{Code, Refusal};
use crate::{Micros, Seq, canonical};

/// Restricts the rows that a caller can access: keys chosen by the deployment, such as `tenant`, each with
/// the caller's value. Empty: no restriction.
pub type Scope = BTreeMap<String, String>;

/// Rate limits and quotas of a caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CallLimits {
    /// The rate limit: a burst of `calls`, refilled at the rate of `calls` per `per_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateLimit>,
    /// The quota: at most `calls` in each period of `per_ms`, counted from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<RateLimit>,
}

impl CallLimits {
    /// Returns `true` if there is a rate limit or a quota.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.rate.is_some() || self.quota.is_some()
    }
}

/// A number of calls per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// The number.
    pub calls: i64,
    /// The period in milliseconds.
    pub per_ms: i64,
}

impl RateLimit {
    /// Returns `true` if this allows no more than another in any period: neither a larger burst nor a higher rate.
    #[must_use]
    pub fn is_within(self, other: RateLimit) -> bool {
        // The rates are fractions, compared without division.
        let own_rate = i128::from(self.calls) * i128::from(other.per_ms);
        let other_rate = i128::from(other.calls) * i128::from(self.per_ms);
        self.calls <= other.calls && own_rate <= other_rate
    }
}

/// A built-in role. The declaration of a reducer names those that may call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltInRole {
    /// May call every reducer.
    Admin,
    /// An application. May call every reducer that does not declare its roles.
    App,
    /// An agent that drives its runs.
    Agent,
    /// Runs tool calls.
    Worker,
    /// A person who supervises sessions.
    Supervisor,
    /// Only reads.
    Auditor,
}

impl BuiltInRole {
    /// Every built-in role.
    pub const ALL: [BuiltInRole; 6] = [
        BuiltInRole::Admin,
        BuiltInRole::App,
        BuiltInRole::Agent,
        BuiltInRole::Worker,
        BuiltInRole::Supervisor,
        BuiltInRole::Auditor,
    ];

    /// Returns its name, which callers have as their role.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BuiltInRole::Admin => Caller::ADMIN,
            BuiltInRole::App => "app",
            BuiltInRole::Agent => "agent",
            BuiltInRole::Worker => "worker",
            BuiltInRole::Supervisor => "supervisor",
            BuiltInRole::Auditor => "auditor",
        }
    }

    /// Returns the built-in role with a name.
    #[must_use]
    pub fn with_name(name: &str) -> Option<BuiltInRole> {
        BuiltInRole::ALL.into_iter().find(|role| role.name() == name)
    }

    /// `true` if this role may call a reducer that declares these roles.
    #[must_use]
    pub fn may_call(self, declared: &[BuiltInRole]) -> bool {
        self == BuiltInRole::Admin || declared.contains(&self)
    }
}

/// The caller of a request. Clones share its data. Two callers are equal if id, role, capabilities, scope, the
/// scope before narrowing and limits are; credentials are not compared.
#[derive(Clone)]
pub struct Caller(Arc<Authority>);

#[derive(Clone)]
struct Authority {
    id: String,
    role: String,
    capabilities: BTreeSet<String>,
    scope: Scope,
    limits: CallLimits,
    /// As recorded in the log.
    recorded: Option<String>,
    /// The id and the scope; `None` if the scope is empty.
    principal: Option<String>,
    credential: Option<AdmittedCredential>,
    /// The caller that the credential was checked for, if this one has a narrower scope.
    narrowed_from: Option<Caller>,
    /// See [`Caller::own_scope`].
    own_scope: Option<Scope>,
    /// The prefix of ids that it chooses.
    namespace: String,
}

/// The credential with which a server admitted a caller. It is checked again when a call runs, because it can
/// be revoked while the call waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedCredential {
    /// The credential that was presented.
    pub credential: Credential,
    /// The version of the credential tables in which it was found valid: the seq of the last commit that
    /// changed one of them.
    pub state: Seq,
}

/// See [`AdmittedCredential`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// None, while no credentials are required.
    Anonymous,
    /// A token stored in the database.
    Token {
        /// Its id.
        id: String,
        /// Its SHA-256, in hexadecimal.
        hash: String,
        /// When it expires.
        expires_at: Option<Micros>,
        /// When the client certificate expires whose fingerprint is the hash. `None` for a token.
        certificate_not_after: Option<Micros>,
    },
    /// Claims signed by an issuer.
    Claims {
        /// The capabilities in the claims; those of the role are added.
        capabilities: BTreeSet<String>,
        /// When they expire.
        expires_at: Micros,
    },
}

impl Credential {
    /// When it expires, if it does.
    #[must_use]
    pub fn expires_at(&self) -> Option<Micros> {
        match self {
            Credential::Anonymous => None,
            Credential::Token { expires_at, certificate_not_after, .. } => {
                [*expires_at, *certificate_not_after].into_iter().flatten().min()
            }
            Credential::Claims { expires_at, .. } => Some(*expires_at),
        }
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Caller) -> bool {
        let a = &*self.0;
        let b = &*other.0;
        Arc::ptr_eq(&self.0, &other.0)
            || (a.id == b.id
                && a.role == b.role
                && a.capabilities == b.capabilities
                && a.scope == b.scope
                && a.own_scope == b.own_scope
                && a.limits == b.limits)
    }
}

impl Eq for Caller {}

impl Caller {
    /// The id of the engine itself, for calls that are due by time. The name is reserved.
    pub const SYSTEM: &'static str = "system";

    /// The prefix of ids of an issuer's subjects.
    pub const ISSUED: &'static str = "jwt:";

    /// The role that may call every reducer.
    pub const ADMIN: &'static str = "admin";

    /// In a set of capabilities, stands for all of them.
    pub const EVERY_CAPABILITY: &'static str = "*";

    /// Creates an unrestricted caller with an id. A caller is unrestricted if it has the role `admin`, the capability `*` and
    /// no scope: an embedding program, `--db`, the socket of `abide open`, loopback without tokens, or such an identity.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Caller {
        let capabilities = [Caller::EVERY_CAPABILITY.to_owned()].into();
        Caller::with(id, Caller::ADMIN, capabilities, Scope::new())
    }

    /// Returns a caller with a role, capabilities and a scope.
    #[must_use]
    pub fn with(
        id: impl Into<String>,
        role: impl Into<String>,
        capabilities: BTreeSet<String>,
        scope: Scope,
    ) -> Caller {
        let role = role.into();
        let unrestricted = role == Caller::ADMIN
            && scope.is_empty()
            && capabilities.contains(Caller::EVERY_CAPABILITY);
        let bounds = json!({"role": role, "capabilities": capabilities, "scope": scope});
        let recorded = (!unrestricted).then(|| canonical::to_text(&bounds));
        let id = id.into();
        let limits = CallLimits::default();
        let namespace = namespace(&scope);
        // Ids contain no tab, so no two callers share a principal.
        let principal = (!scope.is_empty()).then(|| format!("{id}\t{}", json!(scope)));
        Caller(Arc::new(Authority {
            id,
            role,
            capabilities,
            scope,
            limits,
            recorded,
            principal,
            credential: None,
            narrowed_from: None,
            own_scope: None,
            namespace,
        }))
    }

    /// Returns the same caller, admitted with a credential that is checked again when a call runs.
    #[must_use]
    pub fn admitted(self, credential: AdmittedCredential) -> Caller {
        let mut authority = Arc::unwrap_or_clone(self.0);
        authority.credential = Some(credential);
        Caller(Arc::new(authority))
    }

    /// Returns the credential that it was admitted with. `None` for a caller whose permission cannot be revoked: a
    /// program that embeds the engine, the engine itself, and the server's own token.
    #[must_use]
    pub fn credential(&self) -> Option<&AdmittedCredential> {
        self.0.credential.as_ref()
    }

    /// Returns the same caller with these limits.
    #[must_use]
    pub fn limited(self, limits: CallLimits) -> Caller {
        let mut authority = Arc::unwrap_or_clone(self.0);
        authority.limits = limits;
        Caller(Arc::new(authority))
    }

    /// Returns the same caller, restricted to this scope in addition to its own. For services that act for one tenant
    /// at a time.
    ///
    /// # Errors
    /// `denied` if its own scope has a different value for one of the keys.
    pub fn acting_for(&self, scope: &Scope) -> Result<Caller, Refusal> {
        let Authority { id, role, capabilities, limits, .. } = &*self.0;
        let mut both = self.0.scope.clone();
        for (key, value) in scope {
            if both.entry(key.clone()).or_insert_with(|| value.clone()) != value {
                let detail = format!("scope.{key} is outside the caller's own scope");
                return Err(Refusal::new(Code::Denied, detail));
            }
        }
        let is_narrower = both != self.0.scope;
        let sees_all = role == Caller::ADMIN && self.0.scope.is_empty();
        let own_scope = match &self.0.own_scope {
            None if is_narrower && !sees_all => Some(self.0.scope.clone()),
            own_scope => own_scope.clone(),
        };
        let narrowed = Caller::with(id, role, capabilities.clone(), both)
            .limited(*limits)
            .narrowed_from_scope(own_scope);
        let Some(credential) = &self.0.credential else { return Ok(narrowed) };
        let mut authority = Arc::unwrap_or_clone(narrowed.admitted(credential.clone()).0);
        authority.narrowed_from = Some(self.checked_as().clone());
        Ok(Caller(Arc::new(authority)))
    }

    /// Returns the scope that a caller had before [`Caller::acting_for`] narrowed it. Policies permit only what they
    /// permit in both scopes: otherwise a caller could choose a scope in which a policy shows more. `None` for a caller
    /// that is not narrowed, and for one that saw every row before.
    #[must_use]
    pub fn own_scope(&self) -> Option<&Scope> {
        self.0.own_scope.as_ref()
    }

    /// Adds the scope before narrowing. The log contains both scopes, because a replay evaluates the same policies.
    fn narrowed_from_scope(self, own_scope: Option<Scope>) -> Caller {
        let Some(own_scope) = own_scope else { return self };
        let mut authority = Arc::unwrap_or_clone(self.0);
        let Authority { role, capabilities, scope, .. } = &authority;
        let bounds = json!({
            "role": role, "capabilities": capabilities, "scope": scope, "own_scope": own_scope,
        });
        authority.recorded = Some(canonical::to_text(&bounds));
        authority.own_scope = Some(own_scope);
        Caller(Arc::new(authority))
    }

    /// Returns the caller that the credential was checked for: this one without the scope added by
    /// [`Caller::acting_for`].
    #[must_use]
    pub fn checked_as(&self) -> &Caller {
        self.0.narrowed_from.as_ref().unwrap_or(self)
    }

    /// Returns the key for rate limits and queue lanes. It is the principal of the caller that
    /// the credential was checked for, so that a caller gains no quota by narrowing its scope.
    #[must_use]
    pub fn quota_key(&self) -> &str {
        self.checked_as().principal()
    }

    /// Returns the caller on loopback while no credentials exist.
    #[must_use]
    pub fn local() -> Caller {
        Caller::new("local")
    }

    /// Returns the caller that stands for the engine itself.
    #[must_use]
    pub fn system() -> Caller {
        Caller::new(Caller::SYSTEM)
    }

    /// Returns the identity's id, as in the log. Subjects of an issuer have ids that no identity
    /// of the database can have: `jwt:<issuer>#<subject>`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Returns the namespace of its request ids: the id and the scope. One subject with two scopes is two principals.
    #[must_use]
    pub fn principal(&self) -> &str {
        self.0.principal.as_deref().unwrap_or(&self.0.id)
    }

    /// Returns its role, which determines the reducers it may call: `app`, `agent`, `worker`, `supervisor`, `auditor`,
    /// `admin` or a custom role.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.0.role
    }

    /// Returns its capabilities; `*` means all.
    #[must_use]
    pub fn capabilities(&self) -> &BTreeSet<String> {
        &self.0.capabilities
    }

    /// Returns its scope.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// Returns the prefix of the ids that it chooses: `tenant=acme/` for the scope `{"tenant": "acme"}`, empty without
    /// a scope. Keys are sorted and joined by `,`; separators within keys and values are percent-encoded, so the
    /// namespaces of different scopes are disjoint.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// Returns its limits.
    #[must_use]
    pub fn limits(&self) -> CallLimits {
        self.0.limits
    }

    /// Returns `true` if it has a capability.
    #[must_use]
    pub fn can(&self, capability: &str) -> bool {
        let capabilities = &self.0.capabilities;
        capabilities.contains(Caller::EVERY_CAPABILITY) || capabilities.contains(capability)
    }

    /// Returns `true` if it is unrestricted: see [`Caller::new`].
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.0.recorded.is_none()
    }

    /// Returns its restrictions as recorded in the log: canonical JSON of `role`, `capabilities` and `scope`, and of
    /// `own_scope` if it has one. `None` for an unrestricted caller.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        self.0.recorded.as_deref()
    }

    /// Restores the caller of an event from its id and [`Caller::authority`]. An invalid form yields a caller
    /// without any permission.
    #[must_use]
    pub fn recorded(id: &str, authority: Option<&str>) -> Caller {
        #[derive(Default, Deserialize)]
        struct RecordedCaller {
            role: String,
            capabilities: BTreeSet<String>,
            scope: Scope,
            own_scope: Option<Scope>,
        }
        let Some(authority) = authority else { return Caller::new(id) };
        let bounds: RecordedCaller = serde_json::from_str(authority).unwrap_or_default();
        let RecordedCaller { role, capabilities, scope, own_scope } = bounds;
        Caller::with(id, role, capabilities, scope).narrowed_from_scope(own_scope)
    }

    /// Returns `true` if something with that scope, a JSON object or NULL, is within its own: every key of the
    /// caller's scope is present with the same value.
    #[must_use]
    pub fn reaches(&self, scope: Option<&JsonValue>) -> bool {
        self.0.scope.iter().all(|(key, value)| {
            scope.and_then(|scope| scope.get(key)).and_then(JsonValue::as_str) == Some(value)
        })
    }
}

/// The bytes of a scope that its namespace escapes: all but letters, digits, `-`, `_` and `.`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Returns the namespace of a scope, see [`Caller::namespace`].
#[must_use]
pub fn namespace(scope: &Scope) -> String {
    if scope.is_empty() {
        return String::new();
    }
    let pairs = scope.iter().map(|(key, value)| {
        let key = utf8_percent_encode(key, ESCAPED);
        format!("{key}={}", utf8_percent_encode(value, ESCAPED))
    });
    format!("{}/", pairs.collect::<Vec<_>>().join(","))
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Authority { id, role, capabilities, scope, .. } = &*self.0;
        let mut fields = f.debug_struct("Caller");
        fields.field("id", id).field("role", role);
        fields.field("capabilities", capabilities).field("scope", scope).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unrestricted_caller_has_all_permissions() {
        let local = Caller::local();
        assert!(local.is_unrestricted() && local.can("refunds") && local.reaches(None));
        assert_eq!(local.authority(), None);
        assert_eq!(Caller::recorded("local", None), local);
    }

    #[test]
    fn the_log_records_the_scope_before_narrowing() {
        let scope = |key: &str, value: &str| Scope::from([(key.to_owned(), value.to_owned())]);
        let acme = Caller::with("ann", "agent", BTreeSet::new(), scope("tenant", "acme"));
        let blue = acme.acting_for(&scope("team", "blue")).expect("another key");
        assert_eq!(blue.own_scope(), Some(acme.scope()));
        let deeper = blue.acting_for(&scope("desk", "1")).expect("another key");
        assert_eq!(deeper.own_scope(), Some(acme.scope()), "it is the original scope");
        assert_eq!(Caller::recorded("ann", blue.authority()), blue);
        let both = blue.scope().clone();
        assert_ne!(blue, Caller::with("ann", "agent", BTreeSet::new(), both));
        let same = acme.acting_for(&scope("tenant", "acme")).expect("its own");
        assert_eq!(same, acme);
        let all = Caller::local().acting_for(&scope("team", "blue")).expect("nothing bounds it");
        assert_eq!(all.own_scope(), None);
    }

    #[test]
    fn a_narrowed_caller_is_restricted_by_both_scopes() {
        let scope = |key: &str, value: &str| Scope::from([(key.to_owned(), value.to_owned())]);
        let wide = Caller::local();
        let acme = wide.acting_for(&scope("tenant", "acme")).expect("nothing bounds it");
        assert_eq!((acme.id(), acme.is_unrestricted()), ("local", false));
        let blue = acme.acting_for(&scope("team", "blue")).expect("another key");
        assert_eq!(blue.namespace(), "team=blue,tenant=acme/");
        let refused = blue.acting_for(&scope("tenant", "zeta")).expect_err("another text");
        assert_eq!(refused.code, Code::Denied);
        assert_eq!(wide.acting_for(&Scope::new()), Ok(wide));
    }

    /// Quotas follow the credential.
    #[test]
    fn narrowing_adds_no_quota() {
        let scope = |key: &str, value: &str| Scope::from([(key.to_owned(), value.to_owned())]);
        let credential =
            || AdmittedCredential { credential: Credential::Anonymous, state: Seq::ZERO };
        let zeta = |id: &str| {
            let caller = Caller::with(id, "app", BTreeSet::new(), scope("tenant", "zeta"));
            caller.admitted(credential())
        };
        let one = zeta("one");
        let two = zeta("two");
        let narrowed = one.acting_for(&scope("team", "blue")).expect("another key");
        assert_ne!(narrowed.principal(), one.principal());
        assert_eq!(narrowed.quota_key(), one.quota_key());
        assert_ne!(one.quota_key(), two.quota_key());
    }

    #[test]
    fn namespaces_of_different_scopes_are_disjoint() {
        let scope = |pairs: &[(&str, &str)]| -> Scope {
            pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        let cases = [
            (scope(&[]), ""),
            (scope(&[("tenant", "acme")]), "tenant=acme/"),
            (scope(&[("tenant", "acme/s1")]), "tenant=acme%2Fs1/"),
            (scope(&[("tenant", "acme,team=x")]), "tenant=acme%2Cteam%3Dx/"),
            (scope(&[("tenant", "acme"), ("team", "x")]), "team=x,tenant=acme/"),
            (scope(&[("tenant", "~ä")]), "tenant=%7E%C3%A4/"),
        ];
        for (scope, expected) in cases {
            let caller = Caller::with("ann", "app", BTreeSet::new(), scope);
            assert_eq!(caller.namespace(), expected);
        }
    }

    #[test]
    fn a_scope_matches_if_every_key_has_the_same_value() {
        let scope = [("tenant".to_owned(), "acme".to_owned()), ("n".to_owned(), "1".to_owned())];
        let caller = Caller::with("ann", "app", BTreeSet::new(), scope.into());
        assert!(!caller.is_unrestricted() && !caller.can("refunds"));
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
