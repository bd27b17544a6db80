//! The tenants that the callers of this process belong to, as far as their scopes show. Which scopes are of one tenant is
//! defined by [`CommonScopeKeys`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_schema::caller::{Caller, Scope, namespace};
use abide_schema::share::CommonScopeKeys;

/// Names the tenant of each caller, for limits of which the callers of one tenant use one share. Clones share the scopes that
/// they have seen.
#[derive(Clone, Debug, Default)]
pub struct Tenants(Arc<Mutex<CommonScopeKeys>>);

impl Tenants {
    /// Returns the namespace of those scope keys that all scopes have. If no scope key is common, that of the whole
    /// scope; of a caller without a scope, [`Caller::principal`]. The scope is that of the credential: a narrower one
    /// adds no share.
    #[must_use]
    pub fn key(&self, caller: &Caller) -> String {
        let checked = caller.checked_as();
        let scope = checked.scope();
        if scope.is_empty() {
            return checked.principal().to_owned();
        }
        let mut common = self.lock();
        common.include_scope(scope);
        let tenant = common.tenant_of(scope);
        if tenant.len() == scope.len() {
            return checked.namespace().to_owned();
        }
        namespace(&tenant)
    }

    /// Returns the namespace of the tenant that a stored scope belongs to, see [`Tenants::tenant_of`].
    #[must_use]
    pub fn key_for_scope(&self, scope: &Scope) -> String {
        namespace(&self.lock().tenant_of(scope))
    }

    /// Returns the tenant that a stored scope belongs to: the scope without the keys that not all scopes have. It is no
    /// scope of a caller, so it does not change which keys all scopes have.
    #[must_use]
    pub fn tenant_of(&self, scope: &Scope) -> Scope {
        self.lock().tenant_of(scope).into_owned()
    }

    fn lock(&self) -> MutexGuard<'_, CommonScopeKeys> {
        // Every change is one step, so a poisoned lock is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn further_scope_keys_do_not_change_the_name_of_a_tenant() {
        let tenants = Tenants::default();
        let tenant_key = |id: &str, scope: &[(&str, &str)]| {
            let pairs = scope.iter().map(|(key, value)| (key.to_string(), value.to_string()));
            tenants.key(&Caller::with(id, "app", BTreeSet::new(), pairs.collect()))
        };
        assert_eq!(tenant_key("ann", &[("tenant", "a")]), "tenant=a/");
        assert_eq!(tenant_key("bob", &[("tenant", "a"), ("desk", "1")]), "tenant=a/");
        assert_eq!(tenant_key("bob", &[("tenant", "a"), ("desk", "2")]), "tenant=a/");
        assert_eq!(tenant_key("eve", &[("tenant", "b"), ("desk", "2")]), "tenant=b/");
        assert_eq!(tenant_key("root", &[]), "root");
        assert_eq!(tenant_key("sam", &[("team", "a")]), "team=a/", "no key is common");
    }
}
