//! Admission of requests and connections by their credentials, and for how long it is valid.

use abide_engine::Engine;
use abide_engine::credentials::{RoleEntry, changed, claimed, disabled, expiry, required};
use abide_schema::caller::{AdmittedCredential, Caller, Credential};
use abide_schema::{Micros, Refusal, Seq};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::auth::access_config::AccessConfig;
use crate::auth::credential_store::CredentialStore;
use crate::auth::{unknown, unknown_certificate};
use crate::tls::ClientCertificate;

/// A caller that was admitted. A caller without a credential presented the server's own token.
#[derive(Clone, Debug)]
pub struct AuthSession {
    /// The caller.
    pub caller: Caller,
}

/// Admits callers and checks their credentials again.
#[derive(Clone, Debug)]
pub(crate) struct Authenticator {
    pub(crate) access: AccessConfig,
    pub(crate) engine: Engine,
    credential_store: Option<CredentialStore>,
}

impl Authenticator {
    pub(crate) fn new(access: AccessConfig, engine: Engine) -> Authenticator {
        let credential_store = CredentialStore::for_engine(&engine);
        Authenticator { access, engine, credential_store }
    }

    /// Returns `true` if credentials are required.
    pub(crate) async fn requires_credentials(&self) -> Result<bool, Refusal> {
        match &self.credential_store {
            _ if self.access.requires_credentials() => Ok(true),
            Some(credential_store) => credential_store.requires_credentials().await,
            None => Ok(false),
        }
    }

    /// Admits a caller while no credentials are required.
    pub(crate) fn open(&self) -> AuthSession {
        let credential =
            AdmittedCredential { credential: Credential::Anonymous, state: self.state() };
        AuthSession { caller: Caller::local().admitted(credential) }
    }

    /// Admits the bearer of a token.
    pub(crate) async fn admit(&self, shown: &str) -> Result<AuthSession, Refusal> {
        // Its permission cannot be revoked, as that of a program that embeds the engine.
        if let Some(caller) = self.access.find_bearer(shown) {
            return Ok(AuthSession { caller });
        }
        if let Some((id, hash)) = token_parts(shown) {
            return Ok(AuthSession { caller: self.admit_token(&id, &hash, None).await? });
        }
        let Some(jwt) = self.access.jwt() else { return Err(unknown()) };
        let claimed = jwt.verify(shown, self.engine.now())?;
        let caller = self.admit_claims(&claimed.caller, claimed.expires_at).await?;
        Ok(AuthSession { caller })
    }

    /// Admits the holder of a certificate. Its fingerprint is a hash in `tokens`, so that it is revoked, and checked again
    /// when a call runs, as a token. Its dates are checked here too: a connection outlives its handshake.
    pub(crate) async fn admit_certificate(
        &self,
        certificate: &ClientCertificate,
    ) -> Result<AuthSession, Refusal> {
        let id = certificate.token_id();
        let not_after = Some(certificate.not_after());
        let caller = self.admit_token(id, certificate.fingerprint(), not_after).await?;
        Ok(AuthSession { caller })
    }

    /// Checks again whether a caller is still admitted. Cheap if nothing has changed.
    pub(crate) async fn check(&self, session: &mut AuthSession) -> Result<(), Refusal> {
        let Some(credential) = session.caller.credential() else { return Ok(()) };
        if let Some(expired) = expiry(&credential.credential, self.engine.now()) {
            return Err(expired);
        }
        let state = self.state();
        if credential.state == state {
            return Ok(());
        }
        let checked = session.caller.checked_as();
        let caller = match &credential.credential {
            Credential::Anonymous if self.requires_credentials().await? => return Err(required()),
            Credential::Anonymous => {
                let credential = AdmittedCredential { credential: Credential::Anonymous, state };
                checked.clone().admitted(credential)
            }
            Credential::Token { id, hash, certificate_not_after, .. } => {
                self.admit_token(id, hash, *certificate_not_after).await?
            }
            Credential::Claims { capabilities, expires_at } => {
                self.admit_claims(&claimed(checked, capabilities), *expires_at).await?
            }
        };
        if caller != *checked {
            return Err(changed(caller.id()));
        }
        session.caller = if checked.scope() == session.caller.scope() {
            caller
        } else {
            caller.acting_for(session.caller.scope())?
        };
        Ok(())
    }

    /// Returns when the credential is no longer valid, with the refusal.
    pub(crate) async fn until_invalid(&self, mut session: AuthSession) -> Refusal {
        loop {
            if let Err(refusal) = self.check(&mut session).await {
                if !refusal.code.retryable() {
                    return refusal;
                }
                // The lookup failed temporarily.
                tokio::time::sleep(LOOKUP_RETRY_PAUSE).await;
                continue;
            }
            let credential = session.caller.credential();
            let (state, expires_at) = match credential {
                Some(credential) => (credential.state, credential.credential.expires_at()),
                None => std::future::pending().await,
            };
            let changed = async {
                match &self.credential_store {
                    Some(credential_store) => credential_store.changed_since(state).await,
                    None => std::future::pending().await,
                }
            };
            let expires = async {
                match expires_at {
                    Some(at) => tokio::time::sleep(time_until(self.engine.now(), at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = expires => {}
            }
        }
    }

    fn state(&self) -> Seq {
        self.credential_store.as_ref().map_or(Seq::ZERO, CredentialStore::state)
    }

    /// Returns the identity of a row in `tokens` with this hash, which is that of a token or of a certificate.
    async fn admit_token(
        &self,
        id: &str,
        hash: &str,
        certificate_not_after: Option<Micros>,
    ) -> Result<Caller, Refusal> {
        let refusal = if certificate_not_after.is_some() { unknown_certificate } else { unknown };
        let entry = match &self.credential_store {
            Some(credential_store) => credential_store.find_token(id).await?,
            None => None,
        };
        let Some(entry) = entry else { return Err(refusal()) };
        if !bool::from(entry.hash().as_bytes().ct_eq(hash.as_bytes())) {
            return Err(refusal());
        }
        // The token's owner is authenticated from here on, and may learn why the token is invalid.
        let admitted = entry.caller(certificate_not_after, self.engine.now());
        if let Err(refusal) = &admitted {
            self.engine.note_denied(entry.owner(), "authenticate", &refusal.detail);
        }
        admitted
    }

    /// Returns the caller named by an issuer's claims, with the role's additions from the database.
    async fn admit_claims(&self, claimed: &Caller, expires_at: Micros) -> Result<Caller, Refusal> {
        let state = self.state();
        let Some(credential_store) = &self.credential_store else {
            return Ok(RoleEntry::default().admit(claimed, expires_at, state));
        };
        let role = credential_store.find_role(claimed.role()).await?;
        let caller = role.admit(claimed, expires_at, state);
        if credential_store.is_disabled(&caller).await? {
            let refused = disabled(caller.id());
            self.engine.note_denied(&caller, "authenticate", &refused.detail);
            return Err(refused);
        }
        Ok(caller)
    }
}

/// Pause after a failed lookup.
const LOOKUP_RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// Time until a moment, plus a little, so that it has passed; at most an hour, because clocks may be changed.
fn time_until(now: Micros, at: Micros) -> std::time::Duration {
    let us = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0);
    let us = us.saturating_add(1_000);
    std::time::Duration::from_micros(us).min(std::time::Duration::from_secs(3_600))
}

/// Returns the id of a token of the form `abide_<id>_<secret>`, and the SHA-256 of the whole token in hexadecimal.
fn token_parts(shown: &str) -> Option<(String, String)> {
    let (id, secret) = shown.strip_prefix("abide_")?.split_once('_')?;
    let fits = (1..=64).contains(&id.len()) && (16..=256).contains(&secret.len());
    let is_alphanumeric = id.bytes().chain(secret.bytes()).all(|byte| byte.is_ascii_alphanumeric());
    if !fits || !is_alphanumeric {
        return None;
    }
    Some((id.to_owned(), hex::encode(Sha256::digest(shown.as_bytes()))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use abide_engine::{Clock, Config};
    use abide_schema::Code;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use serde_json::{Value as JsonValue, json};

    use super::*;

    #[derive(Debug)]
    struct ManualClock(AtomicI64);

    impl Clock for ManualClock {
        fn now(&self) -> Micros {
            Micros(self.0.load(Ordering::SeqCst))
        }
    }

    /// 2100-01-01, in seconds.
    const NOT_AFTER_S: i64 = 4_102_444_800;

    /// Returns a certificate that expires then.
    fn certificate() -> ClientCertificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("it has no names");
        params.not_after = date_time_ymd(2100, 1, 1);
        let certificate = params.self_signed(&key).expect("it is signed");
        ClientCertificate::of(certificate.der()).expect("it has dates")
    }

    async fn call(engine: &Engine, reducer: &str, args: JsonValue) {
        let called = engine.call(&Caller::local(), reducer, &args, None).await;
        called.unwrap_or_else(|why| panic!("{reducer} {args}: {why}"));
    }

    /// A certificate was checked by the handshake alone, so that a connection outlived it.
    #[tokio::test]
    async fn a_certificate_admits_until_it_expires_or_its_row_does() {
        for (expires_in_ms, expected) in [
            (None, "the client certificate expired at 2100-01-01T00:00:00Z"),
            (Some(90_000), "the client certificate expired at 2100-01-01T00:00:00Z"),
            (Some(30_000), "the token ID expired at 2099-12-31T23:59:30Z"),
        ] {
            let certificate = certificate();
            let id = certificate.token_id();
            let folder = tempfile::tempdir().expect("a folder");
            let clock = Arc::new(ManualClock(AtomicI64::new((NOT_AFTER_S - 60) * 1_000_000)));
            let mut config = Config::new(abide_reducers::modules());
            config.clock = Arc::clone(&clock) as Arc<dyn Clock>;
            let engine = Engine::open(folder.path().join("a.db"), config).expect("an engine");
            call(&engine, "create_identity", json!({"id": "w1", "role": "worker"})).await;
            let token = json!({"id": id, "identity_id": "w1", "hash": certificate.fingerprint(),
                "last_four": certificate.last_four(), "expires_in_ms": expires_in_ms});
            call(&engine, "create_token", token).await;

            let access = AccessConfig::loopback().with_client_certificates();
            let authenticator = Authenticator::new(access, engine.clone());
            let mut session =
                authenticator.admit_certificate(&certificate).await.expect("it is registered");
            // The session is looked up again after a change, and keeps the end of its certificate.
            call(&engine, "create_identity", json!({"id": "w2", "role": "worker"})).await;
            authenticator.check(&mut session).await.expect("nothing of its own has changed");
            clock.0.fetch_add(60_000_000, Ordering::SeqCst);

            let again = authenticator.admit_certificate(&certificate).await;
            let tool = json!({"name": "refund", "effect": "at_most_once"});
            let called = engine.call(&session.caller, "register_tool", &tool, None).await;
            for refusal in [
                again.expect_err("a request on an open connection"),
                authenticator.check(&mut session).await.expect_err("an open session"),
                called.map(|_| ()).expect_err("a call that was admitted before"),
                authenticator.until_invalid(session).await,
            ] {
                assert_eq!(refusal.code, Code::Unauthenticated);
                assert_eq!(refusal.detail.replace(id, "ID"), expected);
            }
        }
    }
}
