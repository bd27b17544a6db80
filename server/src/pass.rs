//! What a request or a connection was let in with, and how long that counts.

use abide_engine::Engine;
use abide_schema::caller::Caller;
use abide_schema::{Code, Micros, Refusal, Seq};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::access::Access;
use crate::directory::Directory;

/// What somebody was let in with.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// Nothing: no credentials are asked for.
    Nothing,
    /// The server's own token.
    OwnToken,
    /// A token of the file: its id and its hash. The token itself is not kept.
    Token { id: String, hash: String },
    /// A JWT that was signed by who is trusted, until it expires.
    Jwt { expires_at: Micros },
}

/// Somebody who was let in.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) caller: Caller,
    proof: Proof,
    /// The state of the tables of credentials in which it was found to count.
    state: Seq,
}

/// Lets people in, and looks again whether they may stay.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) access: Access,
    pub(crate) engine: Engine,
    directory: Option<Directory>,
}

impl Gate {
    pub(crate) fn new(access: Access, engine: Engine) -> Gate {
        let directory = Directory::of(&engine);
        Gate { access, engine, directory }
    }

    /// Whether whoever comes has to show something.
    pub(crate) async fn asks(&self) -> Result<bool, Refusal> {
        match &self.directory {
            _ if self.access.asks() => Ok(true),
            Some(directory) => directory.asks().await,
            None => Ok(false),
        }
    }

    /// Lets in somebody who needs to show nothing.
    pub(crate) fn open(&self) -> Pass {
        Pass { caller: Caller::local(), proof: Proof::Nothing, state: self.state() }
    }

    /// Lets in whoever shows this.
    pub(crate) async fn admit(&self, shown: &str) -> Result<Pass, Refusal> {
        let state = self.state();
        if self.access.is_own_token(shown) {
            return Ok(Pass { caller: Caller::new("token"), proof: Proof::OwnToken, state });
        }
        if let Some((id, hash)) = token_parts(shown) {
            let caller = self.token(&id, &hash).await?;
            return Ok(Pass { caller, proof: Proof::Token { id, hash }, state });
        }
        let Some(jwt) = self.access.jwt() else { return Err(unknown()) };
        let claimed = jwt.verify(shown, self.engine.now())?;
        let role = match &self.directory {
            Some(directory) => directory.role(claimed.caller.role()).await?,
            None => Default::default(),
        };
        let mut capabilities = claimed.caller.capabilities().clone();
        capabilities.extend(role.capabilities);
        let (id, own) = (claimed.caller.id(), claimed.caller.role());
        let caller = Caller::with(id, own, capabilities, claimed.caller.scope().clone());
        let pass = Pass {
            caller: caller.limited(role.limits),
            proof: Proof::Jwt { expires_at: claimed.expires_at },
            state,
        };
        self.check_enabled(&pass.caller).await?;
        Ok(pass)
    }

    /// Looks again whether somebody may stay. Cheap where nothing has changed.
    pub(crate) async fn check(&self, pass: &mut Pass) -> Result<(), Refusal> {
        if let Proof::Jwt { expires_at } = pass.proof
            && expires_at <= self.engine.now()
        {
            return Err(expired("the token", expires_at));
        }
        let state = self.state();
        match &pass.proof {
            Proof::OwnToken => return Ok(()),
            Proof::Nothing | Proof::Jwt { .. } if pass.state == state => return Ok(()),
            Proof::Nothing if self.asks().await? => {
                let detail = "credentials are asked for from now on";
                return Err(Refusal::new(Code::Unauthenticated, detail)
                    .hint("connect again with a token: Authorization: Bearer <token>"));
            }
            Proof::Nothing => {}
            Proof::Jwt { .. } => self.check_enabled(&pass.caller).await?,
            Proof::Token { id, hash } => {
                // Asked each time, as time alone may have ended it.
                let caller = self.token(id, hash).await?;
                if caller != pass.caller {
                    let detail = format!("what {} may has changed", caller.id());
                    let hint = "connect again, with the same token";
                    return Err(Refusal::new(Code::Unauthenticated, detail).hint(hint));
                }
            }
        }
        pass.state = state;
        Ok(())
    }

    /// Returns when somebody may stay no longer, with what they are told.
    pub(crate) async fn until_void(&self, mut pass: Pass) -> Refusal {
        loop {
            if let Err(refusal) = self.check(&mut pass).await {
                if !refusal.code.retryable() {
                    return refusal;
                }
                // It could not be looked up just now.
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            let changed = async {
                match &self.directory {
                    Some(directory) => directory.changed_since(pass.state).await,
                    None => std::future::pending().await,
                }
            };
            let expires = async {
                match self.expires_at(&pass).await {
                    Some(at) => tokio::time::sleep(until(self.engine.now(), at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = expires => {}
            }
        }
    }

    async fn expires_at(&self, pass: &Pass) -> Option<Micros> {
        match (&pass.proof, &self.directory) {
            (Proof::Jwt { expires_at }, _) => Some(*expires_at),
            (Proof::Token { id, .. }, Some(directory)) => {
                directory.token(id).await.ok()??.expires_at
            }
            _ => None,
        }
    }

    fn state(&self) -> Seq {
        self.directory.as_ref().map_or(Seq::ZERO, Directory::state)
    }

    async fn token(&self, id: &str, hash: &str) -> Result<Caller, Refusal> {
        let entry = match &self.directory {
            Some(directory) => directory.token(id).await?,
            None => None,
        };
        let Some(entry) = entry else { return Err(unknown()) };
        if !bool::from(entry.hash.as_bytes().ct_eq(hash.as_bytes())) {
            return Err(unknown());
        }
        // From here on it is known whose it is, and they may be told why it does not count.
        let refused = if let Some(at) = entry.revoked_at {
            let refusal =
                Refusal::new(Code::Unauthenticated, format!("the token {id} was revoked at {at}"));
            refusal.hint("ask whoever runs the server for another")
        } else if let Some(at) = entry.expires_at.filter(|at| *at <= self.engine.now()) {
            expired(&format!("the token {id}"), at)
        } else if entry.disabled_at.is_some() {
            disabled(entry.caller.id())
        } else {
            return Ok(entry.caller.clone());
        };
        self.engine.note_denied(entry.caller.id(), "to come in", &refused.detail);
        Err(refused)
    }

    async fn check_enabled(&self, caller: &Caller) -> Result<(), Refusal> {
        let Some(directory) = &self.directory else { return Ok(()) };
        if !directory.is_disabled(caller.id()).await? {
            return Ok(());
        }
        let refused = disabled(caller.id());
        self.engine.note_denied(caller.id(), "to come in", &refused.detail);
        Err(refused)
    }
}

/// How long after a failed look the next one is.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(200);

/// From now to a moment, and a little over, so that it has come; an hour at most, as clocks are set.
fn until(now: Micros, at: Micros) -> std::time::Duration {
    let us = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0);
    let us = us.saturating_add(1_000);
    std::time::Duration::from_micros(us).min(std::time::Duration::from_secs(3_600))
}

/// The id of a token that reads `abide_<id>_<secret>`, and the SHA-256 of all of it in hexadecimal.
fn token_parts(shown: &str) -> Option<(String, String)> {
    let (id, secret) = shown.strip_prefix("abide_")?.split_once('_')?;
    let fits = (1..=64).contains(&id.len()) && (16..=256).contains(&secret.len());
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !fits || !is_plain(id) || !is_plain(secret) {
        return None;
    }
    let digest = Sha256::digest(shown.as_bytes());
    let hash = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some((id.to_owned(), hash))
}

/// The same words for whatever is not known, so that nothing can be learned by trying.
pub(crate) fn unknown() -> Refusal {
    Refusal::new(Code::Unauthenticated, "the token is not known")
        .hint("ask whoever runs the server for the current one")
}

pub(crate) fn expired(what: &str, at: Micros) -> Refusal {
    Refusal::new(Code::Unauthenticated, format!("{what} expired at {at}"))
        .hint("ask whoever issues them for a new one")
}

fn disabled(id: &str) -> Refusal {
    Refusal::new(Code::Unauthenticated, format!("the identity {id} is disabled"))
        .hint("abide identity enable  gives it back what it had")
}
