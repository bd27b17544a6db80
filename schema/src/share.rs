//! Shares of a limit that all callers use together: one tenant leaves room for others, and all of them for the operator.
//!
//! A tenant with its own admin can create identities with further scope keys, but it cannot omit those of its own scope. So the
//! tenant of a scope consists of the values of those keys that all scopes have.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::caller::{Caller, Scope};

/// Reciprocal of the part of a limit that one tenant can use.
const SHARE: usize = 4;

/// Reciprocal of the part of a limit that the others leave for the operator.
const RESERVED: usize = 8;

/// Whose uses of a limit are counted together: all callers with equal keys use one share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShareKey {
    /// The engine itself and unrestricted callers. They have the whole limit.
    Operator,
    /// A caller without a scope, by its id.
    Caller(Arc<str>),
    /// The callers of a scope.
    Scope(Arc<Scope>),
}

impl ShareKey {
    /// Returns the key of a caller. It is that of the caller that the credential was checked for: a narrower scope adds
    /// no share.
    #[must_use]
    pub fn for_caller(caller: &Caller) -> ShareKey {
        let checked = caller.checked_as();
        if checked.is_unrestricted() {
            ShareKey::Operator
        } else if checked.scope().is_empty() {
            ShareKey::Caller(checked.id().into())
        } else {
            ShareKey::Scope(Arc::new(checked.scope().clone()))
        }
    }
}

/// The scope keys that all scopes have that were seen so far.
#[derive(Debug, Default)]
pub struct CommonScopeKeys(Option<BTreeSet<String>>);

impl CommonScopeKeys {
    /// Includes the scope of a key.
    pub fn include(&mut self, key: &ShareKey) {
        if let ShareKey::Scope(scope) = key {
            self.include_scope(scope);
        }
    }

    /// Includes a scope: keys that it does not have are no longer common. One without keys is that of the operator, and does
    /// not count.
    pub fn include_scope(&mut self, scope: &Scope) {
        if scope.is_empty() {
            return;
        }
        let common = self.0.get_or_insert_with(|| scope.keys().cloned().collect());
        common.retain(|key| scope.contains_key(key));
    }

    /// Returns the tenant of a scope: the scope without the keys that not all scopes have. If no key is common, or the scope
    /// lacks one of them, it is a tenant of its own.
    #[must_use]
    pub fn tenant_of<'a>(&self, scope: &'a Scope) -> Cow<'a, Scope> {
        match &self.0 {
            Some(common)
                if !common.is_empty()
                    && common.len() < scope.len()
                    && common.iter().all(|key| scope.contains_key(key)) =>
            {
                Cow::Owned(restrict(scope, common))
            }
            _ => Cow::Borrowed(scope),
        }
    }

    /// Returns `true` if two keys are those of one tenant. If no scope key is common, each scope is a tenant.
    #[must_use]
    pub fn are_of_one_tenant(&self, one: &ShareKey, other: &ShareKey) -> bool {
        match (one, other, &self.0) {
            (ShareKey::Scope(one), ShareKey::Scope(other), Some(common)) if !common.is_empty() => {
                common.iter().all(|key| one.get(key) == other.get(key))
            }
            _ => one == other,
        }
    }
}

/// Returns these keys of a scope.
fn restrict(scope: &Scope, keys: &BTreeSet<String>) -> Scope {
    let pairs = scope.iter().filter(|(key, _)| keys.contains(*key));
    pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The tenant has used its share.
    Own,
    /// Others have used the rest.
    Others,
}

/// The uses of one limit.
#[derive(Debug)]
pub struct Shares {
    limit: usize,
    total: usize,
    used: BTreeMap<ShareKey, usize>,
}

impl Shares {
    /// Creates the shares of a limit that nobody uses yet.
    #[must_use]
    pub fn new(limit: usize) -> Shares {
        Shares { limit, total: 0, used: BTreeMap::new() }
    }

    /// Returns the share of one tenant.
    #[must_use]
    pub fn share(limit: usize) -> usize {
        (limit / SHARE).max(1)
    }

    /// Checks that there is room for one more use of a tenant, in addition to `pending` uses that it is about to add.
    ///
    /// # Errors
    /// There is no room.
    pub fn check(
        &self,
        key: &ShareKey,
        pending: usize,
        common: &CommonScopeKeys,
    ) -> Result<(), NoRoom> {
        let total = self.total + pending;
        let share = Shares::share(self.limit);
        let reserved = self.limit / RESERVED;
        // Most limits are hardly used: then the uses of the tenant need not be added up.
        if total < share.min(self.limit - reserved) {
            return Ok(());
        }
        let is_operator = *key == ShareKey::Operator;
        // The uses of the operator do not reduce the part of the others, unless they exceed the reserve.
        let used_by_operator = self.used.get(&ShareKey::Operator).copied().unwrap_or_default();
        let is_full = total >= self.limit
            || (!is_operator && total - used_by_operator >= self.limit - reserved);
        let own = pending + self.used_by(key, common);
        // The operator may use more than a share as long as there is room.
        if own >= share && (is_full || !is_operator) {
            return Err(NoRoom::Own);
        }
        if is_full { Err(NoRoom::Others) } else { Ok(()) }
    }

    /// Returns the number of uses of the tenant of this key.
    #[must_use]
    pub fn used_by(&self, key: &ShareKey, common: &CommonScopeKeys) -> usize {
        let own = self.used.iter().filter(|(other, _)| common.are_of_one_tenant(key, other));
        own.map(|(_, count)| count).sum()
    }

    /// Adds so many uses.
    pub fn add(&mut self, key: &ShareKey, uses: usize) {
        self.total += uses;
        match self.used.get_mut(key) {
            Some(count) => *count += uses,
            None => drop(self.used.insert(key.clone(), uses)),
        }
    }

    /// Removes so many uses that were added.
    pub fn remove(&mut self, key: &ShareKey, uses: usize) {
        let Some(count) = self.used.get_mut(key) else { return };
        self.total -= uses;
        *count -= uses;
        if *count == 0 {
            self.used.remove(key);
        }
    }

    /// Returns the number of uses of all keys.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: &[(&str, &str)]) -> ShareKey {
        let pairs = scope.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        ShareKey::for_caller(&Caller::with("ann", "app", BTreeSet::new(), pairs.collect()))
    }

    /// Adds uses until there is no room: their number, and why.
    fn fill(shares: &mut Shares, key: &ShareKey, common: &mut CommonScopeKeys) -> (usize, NoRoom) {
        common.include(key);
        for number in 0.. {
            if let Err(why) = shares.check(key, 0, common) {
                return (number, why);
            }
            shares.add(key, 1);
        }
        unreachable!("the limit is finite")
    }

    #[test]
    fn one_tenant_leaves_room_for_others_and_all_for_the_operator() {
        let mut shares = Shares::new(80);
        let mut common = CommonScopeKeys::default();
        let mut used = |key: &ShareKey| fill(&mut shares, key, &mut common);
        assert_eq!(used(&key(&[("tenant", "a")])), (20, NoRoom::Own));
        assert_eq!(used(&key(&[("tenant", "b")])), (20, NoRoom::Own));
        assert_eq!(used(&key(&[])), (20, NoRoom::Own), "without a scope, by its id");
        assert_eq!(used(&key(&[("tenant", "c")])), (10, NoRoom::Others));
        assert_eq!(used(&ShareKey::Operator), (10, NoRoom::Others));
        assert_eq!(fill(&mut Shares::new(80), &ShareKey::Operator, &mut common), (80, NoRoom::Own));
        (0..20).for_each(|_| shares.remove(&key(&[("tenant", "a")]), 1));
        assert_eq!(fill(&mut shares, &key(&[("tenant", "a")]), &mut common), (20, NoRoom::Own));
    }

    /// An operator with more than seven eighths of the uses left no room for any other caller.
    #[test]
    fn what_the_operator_leaves_is_for_the_others() {
        let mut shares = Shares::new(80);
        let mut common = CommonScopeKeys::default();
        shares.add(&ShareKey::Operator, 75);
        assert_eq!(fill(&mut shares, &key(&[]), &mut common), (5, NoRoom::Others));
        assert_eq!(shares.check(&ShareKey::Operator, 0, &common), Err(NoRoom::Own));
    }

    #[test]
    fn a_tenant_has_the_keys_that_all_scopes_have() {
        let scope = |pairs: &[(&str, &str)]| -> Scope {
            pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        let mut common = CommonScopeKeys::default();
        let desk = scope(&[("tenant", "a"), ("desk", "1")]);
        assert_eq!(*common.tenant_of(&desk), desk, "no scope was seen");
        common.include_scope(&desk);
        common.include_scope(&scope(&[("tenant", "b")]));
        common.include_scope(&Scope::new());
        assert_eq!(*common.tenant_of(&desk), scope(&[("tenant", "a")]));
        let team = scope(&[("team", "c")]);
        assert_eq!(*common.tenant_of(&team), team, "it lacks the key");
    }

    /// The admin of a tenant creates identities with further keys.
    #[test]
    fn further_scope_keys_add_no_share() {
        let mut shares = Shares::new(80);
        let mut common = CommonScopeKeys::default();
        let desk = |desk: &str| key(&[("tenant", "a"), ("desk", desk)]);
        assert_eq!(fill(&mut shares, &desk("1"), &mut common), (20, NoRoom::Own));
        assert_eq!(fill(&mut shares, &key(&[("tenant", "b")]), &mut common), (20, NoRoom::Own));
        assert_eq!(fill(&mut shares, &desk("2"), &mut common), (0, NoRoom::Own));
        let narrowed = Caller::with("ann", "app", BTreeSet::new(), Scope::new());
        let scope = Scope::from([("tenant".to_owned(), "a".to_owned())]);
        let narrowed = narrowed.acting_for(&scope).expect("it has no scope");
        assert_eq!(
            ShareKey::for_caller(&narrowed),
            ShareKey::Scope(Arc::new(scope)),
            "no credential"
        );
    }
}
