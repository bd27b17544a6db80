//! Checks whether a caller's credential is still valid. It is read from the credential tables, by the server when
//! it admits a caller and by the writer when a call runs.
//!
//! The server checks before the call is queued. Without the second check, calls queued with a token would run
//! even after its revocation was acknowledged.

use std::collections::{BTreeSet, HashMap};

use abide_schema::caller::{AdmittedCredential, CallLimits, Caller, Credential, Scope};
use abide_schema::reducer::CredentialQueries;
use abide_schema::{Code, Micros, Module, Refusal, Seq, TableSpec, Value};
use abide_store::{StoreError, Writer};
use serde::de::DeserializeOwned;

/// A token as stored in the database.
#[derive(Debug)]
pub struct TokenEntry {
    id: String,
    hash: String,
    expires_at: Option<Micros>,
    revoked_at: Option<Micros>,
    disabled_at: Option<Micros>,
    caller: Caller,
    /// The state of the tables in which it was read.
    state: Seq,
}

impl TokenEntry {
    /// Returns the token of a row of [`CredentialQueries::token`], read in a state of the tables. `None` if the row has
    /// another form.
    #[must_use]
    pub fn from_row(token: &str, row: &[Value], state: Seq) -> Option<TokenEntry> {
        let [
            hash,
            expires_at,
            revoked_at,
            id,
            own_role,
            capabilities,
            scope,
            own_limits,
            disabled_at,
            role_capabilities,
            role_limits,
        ] = row
        else {
            return None;
        };
        let role = RoleEntry::from_row(&[role_capabilities.clone(), role_limits.clone()])?;
        let mut capabilities: BTreeSet<String> = read_json(capabilities)?;
        capabilities.extend(role.capabilities);
        let scope: Scope = read_json(scope)?;
        let caller = Caller::with(read_text(id)?, read_text(own_role)?, capabilities, scope);
        let own_limits: Option<CallLimits> = match own_limits {
            Value::Null => None,
            limits => Some(read_json(limits)?),
        };
        let id = token.to_owned();
        let hash = read_text(hash)?;
        let expires_at = read_time(expires_at);
        let credential = Credential::Token {
            id: id.clone(),
            hash: hash.clone(),
            expires_at,
            certificate_not_after: None,
        };
        let caller = caller.limited(own_limits.unwrap_or(role.limits));
        Some(TokenEntry {
            id,
            hash,
            expires_at,
            revoked_at: read_time(revoked_at),
            disabled_at: read_time(disabled_at),
            caller: caller.admitted(AdmittedCredential { credential, state }),
            state,
        })
    }

    /// Returns the SHA-256 of the token, in hexadecimal.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns when it expires.
    #[must_use]
    pub fn expires_at(&self) -> Option<Micros> {
        self.expires_at
    }

    /// Returns its identity, valid or not.
    #[must_use]
    pub fn owner(&self) -> &Caller {
        &self.caller
    }

    /// Returns the caller that presents it: the token, or the client certificate with this end of its validity.
    ///
    /// # Errors
    /// `unauthenticated` if it is revoked or expired, or its identity is disabled.
    pub fn caller(
        &self,
        certificate_not_after: Option<Micros>,
        now: Micros,
    ) -> Result<Caller, Refusal> {
        let id = &self.id;
        if let Some(at) = self.revoked_at {
            let detail = format!("the token {id} was revoked at {at}");
            return Err(Refusal::new(Code::Unauthenticated, detail)
                .hint("ask the operator of the server for a new token"));
        }
        if let Some(at) = self.expires_at.filter(|at| *at <= now) {
            return Err(expired(&format!("the token {id}"), at));
        }
        if self.disabled_at.is_some() {
            return Err(disabled(self.caller.id()));
        }
        let Some(not_after) = certificate_not_after else { return Ok(self.caller.clone()) };
        if not_after <= now {
            return Err(expired(CERTIFICATE, not_after));
        }
        let credential = Credential::Token {
            id: self.id.clone(),
            hash: self.hash.clone(),
            expires_at: self.expires_at,
            certificate_not_after,
        };
        Ok(self.caller.clone().admitted(AdmittedCredential { credential, state: self.state }))
    }
}

/// The permissions that a role adds to its callers.
#[derive(Clone, Debug, Default)]
pub struct RoleEntry {
    /// Capabilities.
    pub capabilities: BTreeSet<String>,
    /// Limits if the identity has none of its own.
    pub limits: CallLimits,
}

impl RoleEntry {
    /// Returns the permissions in a row of [`CredentialQueries::role`]. `None` if the row has another form.
    #[must_use]
    pub fn from_row(row: &[Value]) -> Option<RoleEntry> {
        let [capabilities, limits] = row else { return None };
        Some(RoleEntry {
            capabilities: read_json_or_default(capabilities)?,
            limits: read_json_or_default(limits)?,
        })
    }

    /// Returns the caller named by an issuer's claims, with the role's additions.
    #[must_use]
    pub fn admit(self, claimed: &Caller, expires_at: Micros, state: Seq) -> Caller {
        let claims = claimed.capabilities().clone();
        let capabilities = claims.iter().cloned().chain(self.capabilities).collect();
        let scope = claimed.scope().clone();
        let caller = Caller::with(claimed.id(), claimed.role(), capabilities, scope);
        let credential = Credential::Claims { capabilities: claims, expires_at };
        caller.limited(self.limits).admitted(AdmittedCredential { credential, state })
    }
}

/// Returns the caller that an issuer's claims name, without what its role adds.
#[must_use]
pub fn claimed(caller: &Caller, capabilities: &BTreeSet<String>) -> Caller {
    Caller::with(caller.id(), caller.role(), capabilities.clone(), caller.scope().clone())
}

/// Returns `true` if a row of [`CredentialQueries::disabled`] disables a caller: the identity is disabled, and the
/// caller is within its scope. An identity of one tenant does not disable a subject of another. A row of another form
/// disables every caller.
#[must_use]
pub fn disables(row: &[Value], caller: &Caller) -> bool {
    let [disabled, scope] = row else { return true };
    let scope: Option<Scope> = read_json(scope);
    *disabled == Value::Integer(1)
        && scope.is_none_or(|scope| {
            scope.iter().all(|(key, value)| caller.scope().get(key) == Some(value))
        })
}

/// What an expired certificate is called in its refusal.
const CERTIFICATE: &str = "the client certificate";

/// Returns the refusal of a credential that has expired.
#[must_use]
pub fn expired(what: &str, at: Micros) -> Refusal {
    Refusal::new(Code::Unauthenticated, format!("{what} expired at {at}"))
        .hint("ask the issuer for a new one")
}

/// Returns the refusal of a credential that has expired by then; `None` if it has not.
#[must_use]
pub fn expiry(credential: &Credential, now: Micros) -> Option<Refusal> {
    let at = credential.expires_at().filter(|at| *at <= now)?;
    Some(match credential {
        Credential::Token { certificate_not_after, .. } if *certificate_not_after == Some(at) => {
            expired(CERTIFICATE, at)
        }
        Credential::Token { id, .. } => expired(&format!("the token {id}"), at),
        _ => expired("the token", at),
    })
}

/// Returns the refusal of a caller whose identity is disabled.
#[must_use]
pub fn disabled(id: &str) -> Refusal {
    Refusal::new(Code::Unauthenticated, format!("the identity {id} is disabled"))
        .hint(format!("an administrator enables it again with: abide identity enable {id}"))
}

/// Returns the refusal of a caller whose permissions have changed since it was admitted.
#[must_use]
pub fn changed(id: &str) -> Refusal {
    let detail = format!("the permissions of {id} have changed");
    Refusal::new(Code::Unauthenticated, detail).hint("connect again, with the same token")
}

/// Returns the refusal of an anonymous caller once credentials exist.
#[must_use]
pub fn required() -> Refusal {
    Refusal::new(Code::Unauthenticated, "this server now requires credentials")
        .hint("connect again with a token: Authorization: Bearer <token>")
}

/// The writer's check. A credential admitted in the current state of the tables is valid, and costs one
/// comparison; an older one is looked up once for each later state.
#[derive(Debug)]
pub(crate) struct CredentialChecker {
    credential_queries: Option<CredentialQueries>,
    /// The open transaction has written one of the tables.
    dirty: bool,
    /// Results of lookups in the current state.
    lookups: HashMap<String, Result<Caller, Refusal>>,
}

/// Maximum number of cached lookups.
const CACHED_LOOKUPS: usize = 10_000;

impl CredentialChecker {
    pub(crate) fn new(modules: &[Module]) -> CredentialChecker {
        let credential_queries = modules.iter().find_map(|module| module.credential_queries);
        CredentialChecker { credential_queries, dirty: false, lookups: HashMap::new() }
    }

    /// A call wrote a row of this table.
    pub(crate) fn record_write(&mut self, table: &TableSpec) {
        if self
            .credential_queries
            .is_some_and(|credential_queries| credential_queries.tables.contains(&table.name))
        {
            self.dirty = true;
            self.lookups.clear();
        }
    }

    /// Calls were rolled back.
    pub(crate) fn forget(&mut self) {
        if self.dirty {
            self.lookups.clear();
        }
    }

    /// The transaction was committed or rolled back.
    pub(crate) fn end_transaction(&mut self) {
        self.forget();
        self.dirty = false;
    }

    /// `true` if a credential of that state needs no lookup.
    pub(crate) fn is_current(&self, credential: &AdmittedCredential, state: Seq) -> bool {
        !self.dirty && credential.state == state
    }

    /// Checks a credential against the rows in the open transaction.
    pub(crate) fn check(
        &mut self,
        store: &Writer,
        caller: &Caller,
        credential: &AdmittedCredential,
        now: Micros,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let Some(credential_queries) = self.credential_queries else { return Ok(Ok(())) };
        let caller = caller.checked_as();
        let key = format!("{:?} {:?}", caller.principal(), credential.credential);
        if !self.lookups.contains_key(&key) {
            if self.lookups.len() >= CACHED_LOOKUPS {
                self.lookups.clear();
            }
            let found = look_up(&credential_queries, store, caller, &credential.credential, now)?;
            self.lookups.insert(key.clone(), found);
        }
        Ok(match &self.lookups[&key] {
            Err(refusal) => Err(refusal.clone()),
            Ok(found) if found != caller => Err(changed(caller.id())),
            Ok(_) => Ok(()),
        })
    }
}

/// Returns the caller that a credential admits by the current rows, or why the credential is no longer valid.
///
/// The result is compared with the caller as it was admitted. The comparison ignores the state in which a caller was
/// admitted, so the state here is [`Seq::ZERO`].
fn look_up(
    credential_queries: &CredentialQueries,
    store: &Writer,
    caller: &Caller,
    credential: &Credential,
    now: Micros,
) -> Result<Result<Caller, Refusal>, StoreError> {
    Ok(match credential {
        Credential::Anonymous => {
            let row = first_row(store, credential_queries.requires_credentials, &[])?;
            let is_required = row.is_some_and(|row| row.first() == Some(&Value::Integer(1)));
            if is_required { Err(required()) } else { Ok(caller.clone()) }
        }
        Credential::Token { id, hash, certificate_not_after, .. } => {
            let row = first_row(store, credential_queries.token, &[id.as_str().into()])?;
            let Some(row) = row else { return Ok(Err(changed(caller.id()))) };
            match TokenEntry::from_row(id, &row, Seq::ZERO) {
                Some(entry) if entry.hash == *hash => entry.caller(*certificate_not_after, now),
                Some(_) => Err(changed(caller.id())),
                None => Err(unreadable()),
            }
        }
        Credential::Claims { capabilities, expires_at } => {
            let disabled_row =
                first_row(store, credential_queries.disabled, &[caller.id().into()])?;
            if disabled_row.is_some_and(|row| disables(&row, caller)) {
                return Ok(Err(disabled(caller.id())));
            }
            let role_row = first_row(store, credential_queries.role, &[caller.role().into()])?;
            let role = match role_row {
                Some(row) => RoleEntry::from_row(&row),
                // A role without a row adds nothing.
                None => Some(RoleEntry::default()),
            };
            match role {
                Some(role) => {
                    Ok(role.admit(&claimed(caller, capabilities), *expires_at, Seq::ZERO))
                }
                None => Err(unreadable()),
            }
        }
    })
}

/// Returns the first row of a query in the open transaction.
fn first_row(
    store: &Writer,
    sql: &str,
    params: &[Value],
) -> Result<Option<Vec<Value>>, StoreError> {
    let mut found = None;
    store.run(sql, params, &mut |row| {
        found.get_or_insert_with(|| row.to_vec());
    })?;
    Ok(found)
}

fn unreadable() -> Refusal {
    Refusal::new(Code::Internal, "the credentials cannot be read")
}

fn read_text(value: &Value) -> Option<String> {
    if let Value::Text(text) = value { Some(text.clone()) } else { None }
}

fn read_json<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_str(&read_text(value)?).ok()
}

/// Parses a cell; NULL is the default.
fn read_json_or_default<T: DeserializeOwned + Default>(value: &Value) -> Option<T> {
    if *value == Value::Null { Some(T::default()) } else { read_json(value) }
}

fn read_time(value: &Value) -> Option<Micros> {
    if let Value::Integer(at) = value { Some(Micros(*at)) } else { None }
}
