//! Identities, tokens and roles. Tokens are generated on the client; only their hash is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use abide_reducers::{Identity, Role, Token};
use abide_schema::caller::CallLimits;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::builtin::millis;
use crate::{Abide, Call, Request};

/// Arguments of `create_identity`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewIdentity {
    /// Its id, as it appears in the log.
    pub id: String,
    /// `app`, `agent`, `worker`, `supervisor`, `auditor`, `admin`, or a custom role.
    pub role: String,
    /// Its capabilities; `*` means all.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub capabilities: BTreeSet<String>,
    /// Restricts the rows it can see, such as `tenant` = `acme`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub scope: BTreeMap<String, String>,
    /// Its rate limits and quotas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<CallLimits>,
}

/// Arguments of `set_role`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewRole {
    /// Its name.
    pub name: String,
    /// The reducers that it may call; `*` means all except those that manage identities.
    pub reducers: BTreeSet<String>,
    /// Capabilities of every identity with this role.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub capabilities: BTreeSet<String>,
    /// A description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Limits of an identity that does not set its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<CallLimits>,
}

/// A newly generated token: 256 random bits. It cannot be recovered later.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
}

/// Number of letters in a token's id.
const ID_LETTERS: usize = 12;

impl Secret {
    /// Generates a token.
    ///
    /// # Errors
    /// The error of the operating system if it has no randomness available.
    pub fn new() -> std::io::Result<Secret> {
        let (mut id, mut secret) = ([0; ID_LETTERS], [0; 32]);
        let filled = getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut secret));
        filled.map_err(|why| std::io::Error::other(why.to_string()))?;
        // Lower-case letters and digits without look-alikes: five bits each.
        let letters = b"abcdefghjkmnpqrstuvwxyz023456789";
        let id: String =
            id.iter().map(|byte| char::from(letters[usize::from(byte & 31)])).collect();
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Secret { text: format!("abide_{id}_{secret}") })
    }

    /// The token itself. It grants access to its bearer.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its id, which is not secret: `revoke_token` takes it.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text.split('_').nth(1).expect("a token has an id")
    }

    /// SHA-256 of the token, in hexadecimal.
    #[must_use]
    pub fn hash(&self) -> String {
        Sha256::digest(self.text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The call that registers it as a token of an identity; send it alone or in a batch.
    #[must_use]
    pub fn create(&self, identity_id: &str) -> Call {
        let last_four = &self.text[self.text.len() - 4..];
        let (id, hash) = (self.id(), self.hash());
        let args =
            json!({"id": id, "identity_id": identity_id, "hash": hash, "last_four": last_four});
        Call::new("create_token", args)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret(abide_{}_…)", self.id())
    }
}

impl Abide {
    /// Creates an identity.
    pub fn create_identity(&self, identity: NewIdentity) -> Request<Identity> {
        Request::new(self, "create_identity", identity)
    }

    /// Disables an identity immediately, until it is enabled again.
    pub fn disable_identity(&self, id: &str) -> Request<Identity, crate::options::Reason> {
        Request::new(self, "disable_identity", json!({"id": id}))
    }

    /// Enables a disabled identity again.
    pub fn enable_identity(&self, id: &str) -> Request<Identity> {
        Request::new(self, "enable_identity", json!({"id": id}))
    }

    /// Registers a new token for an identity. Only its hash is sent.
    pub fn create_token(
        &self,
        identity_id: &str,
        secret: &Secret,
        expires_in: Option<Duration>,
    ) -> Request<Token> {
        let request = Request::of(self, secret.create(identity_id));
        match expires_in {
            Some(span) => request.arg("expires_in_ms", millis(span)),
            None => request,
        }
    }

    /// Revokes a token by its id, immediately.
    pub fn revoke_token(&self, id: &str) -> Request<Token> {
        Request::new(self, "revoke_token", json!({"id": id}))
    }

    /// Creates or changes a role.
    pub fn set_role(&self, role: NewRole) -> Request<Role> {
        Request::new(self, "set_role", role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_only_by_text() {
        let secret = Secret::new().expect("there is randomness");
        let parts: Vec<&str> = secret.text().split('_').collect();
        assert_eq!((parts.len(), parts[0], parts[1].len(), parts[2].len()), (3, "abide", 12, 64));
        let told = format!("{secret:?} {:?}", secret.create("ann"));
        assert!(!told.contains(parts[2]) && told.contains(parts[1]), "{told}");
        assert_ne!(secret, Secret::new().expect("there is randomness"));
    }
}
