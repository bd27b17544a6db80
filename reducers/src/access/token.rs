//! Tokens: the credentials of identities. Only the SHA-256 of a token is stored: the client generates it,
//! and neither the log, the rows nor the backups of a file grant access.
//!
//! One round of SHA-256 is enough, and a password hash would be wrong: a token is 256 random bits and
//! cannot be guessed, and it is verified with every request.
//!
//! A token has the form `abide_<id>_<secret>`. The id is not secret: it finds the row, so that one
//! constant-time comparison of hashes remains.

use abide_schema::reducer::{CredentialQueries, ReducerResult, RowVisibility};
use abide_schema::{Abort, Code, Context, Micros, Module, Refusal, Seq, reducer, table};

use crate::{access::identity, check};

/// A token of an identity.
#[table(name = "tokens", index(identity_id))]
pub struct Token {
    /// Its id, the part of it that is not secret.
    #[column(key)]
    pub id: String,
    /// The identity.
    #[column(references = "identities(id)")]
    pub identity_id: String,
    /// SHA-256 of the whole token, in hexadecimal.
    pub hash: String,
    /// Its last four letters, to recognise it.
    pub last_four: String,
    /// A description for people.
    pub label: Option<String>,
    /// When it expires.
    pub expires_at: Option<Micros>,
    /// When it was revoked.
    pub revoked_at: Option<Micros>,
    /// The caller that created it.
    pub created_by: String,
    /// When it was created.
    pub created_at: Micros,
    /// The event that last changed it.
    pub seq: Seq,
}

const DIRECTORY: CredentialQueries = CredentialQueries {
    tables: &["tokens", "identities", "roles"],
    requires_credentials: "SELECT EXISTS (SELECT 1 FROM tokens)",
    token:
        "SELECT t.hash, t.expires_at, t.revoked_at, i.id, i.role, i.capabilities, i.scope, i.limits,
        i.disabled_at, r.capabilities, r.limits
        FROM tokens AS t JOIN identities AS i ON i.id = t.identity_id
        LEFT JOIN roles AS r ON r.name = i.role WHERE t.id = :id",
    role: "SELECT capabilities, limits FROM roles WHERE name = :name",
    disabled: "SELECT disabled_at IS NOT NULL, scope FROM identities WHERE id = :id",
};

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("token")
        .visible::<Token>(RowVisibility::Where(check::MANAGERS, &["hash"]))
        .credential_queries(DIRECTORY)
        .reducer(create_token::definition())
        .reducer(revoke_token::definition())
        .secret(&create_token::definition(), "hash")
        .secret(&revoke_token::definition(), "hash")
}

/// Registers a token by its hash: SHA-256 of `abide_<id>_<secret>`, in hexadecimal. The token itself stays
/// with its creator. `abide token create` does all of that.
#[reducer(roles(admin))]
pub fn create_token(
    ctx: &mut Context<'_>,
    /// The token's id, which is not secret.
    id: String,
    #[id(identity::Identity)] identity_id: String,
    /// SHA-256 of the token, in hexadecimal.
    hash: String,
    /// Its last four characters, by which people recognise it.
    last_four: String,
    /// A label for people.
    label: Option<String>,
    /// Lifetime in milliseconds; without it the token does not expire.
    expires_in_ms: Option<i64>,
) -> Result<ReducerResult<Token>, Abort> {
    check_form(&id, &hash, &last_four)?;
    check::optional_name("label", label.as_deref())?;
    let identity = identity::find(ctx, &identity_id)?;
    identity::check_within(ctx, &identity)?;
    identity::check_pace(ctx, &identity)?;
    if identity::is_issued(&identity_id) {
        let detail = format!(
            "identity {identity_id} is a subject of an issuer and cannot have tokens in the database"
        );
        return Err(Refusal::new(Code::BadArguments, detail)
            .hint("get tokens from its issuer; `abide identity disable` disables it")
            .into());
    }
    if let Some(before) = ctx.get::<Token>(&id)? {
        if before.hash == hash && before.identity_id == identity_id {
            return Ok(ReducerResult::Duplicate(before.seq, before));
        }
        return Err(Refusal::new(Code::Conflict, format!("token {id} already exists"))
            .hint(format!(
                "`abide token create {}` chooses an unused id",
                check::shell_word(&identity_id)
            ))
            .into());
    }
    let token = Token {
        id,
        identity_id,
        hash,
        last_four,
        label,
        expires_at: check::time_after("expires_in_ms", ctx.now, expires_in_ms)?,
        revoked_at: None,
        created_by: ctx.caller.id().to_owned(),
        created_at: ctx.now,
        seq: ctx.seq,
    };
    ctx.insert(token).map(ReducerResult::Fresh)
}

/// Revokes a token immediately, including open connections.
#[reducer(roles(admin))]
pub fn revoke_token(ctx: &mut Context<'_>, id: String) -> Result<ReducerResult<Token>, Abort> {
    let mut token = ctx.get::<Token>(&id)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no token {id}"))
            .hint("`abide token list` lists them")
    })?;
    let identity = identity::find(ctx, &token.identity_id)?;
    identity::check_within(ctx, &identity)?;
    if token.revoked_at.is_some() {
        return Ok(ReducerResult::Duplicate(token.seq, token));
    }
    token.revoked_at = Some(ctx.now);
    token.seq = ctx.seq;
    ctx.update(&token)?;
    Ok(ReducerResult::Fresh(token))
}

// An invalid hash may be the token itself, which must not get into the log.
fn check_form(id: &str, hash: &str, last_four: &str) -> Result<(), Refusal> {
    let is_hash = hash.len() == 64
        && is_lower_alphanumeric(hash)
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let detail = if !(8..=32).contains(&id.len()) || !is_lower_alphanumeric(id) {
        "id must be 8 to 32 lower-case letters and digits"
    } else if !is_hash {
        "hash must be a SHA-256 in 64 lower-case hexadecimal digits"
    } else if last_four.len() != 4 || !last_four.bytes().all(|b| b.is_ascii_alphanumeric()) {
        "last_four must be four letters or digits"
    } else {
        return Ok(());
    };
    Err(Refusal::new(Code::BadArguments, detail)
        .hint("`abide token create` creates a token and shows it once"))
}

fn is_lower_alphanumeric(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}
