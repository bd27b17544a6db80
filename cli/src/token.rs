//! `abide token`: creates, lists and revokes tokens. A token is printed once; the file has only its hash.

use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_client::arguments::{CreateToken, RevokeToken};
use abide_client::{Abide, Call, Secret};
use abide_schema::{Caller, Code, Refusal};
use abide_server::ClientCertificate;
use clap::{Args, Subcommand};
use serde_json::{Value as JsonValue, json};

use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::grants::GrantOptions;
use crate::output::{note, print_json, print_line};
use crate::{call, sql, units};

/// Arguments of `abide token`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Token {
    #[command(subcommand)]
    what: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token and print it once, alone on stdout
    Create(Create),
    /// List the tokens, without their secrets
    List,
    /// Revoke a token immediately; its connections are closed
    Revoke(Revoke),
}

#[derive(Args, Debug)]
struct Create {
    /// The identity that the token belongs to
    identity: String,

    /// Also create the identity, with this role: app, agent, worker, supervisor, auditor, admin, or a
    /// role of your own
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,

    #[command(flatten)]
    grants: GrantOptions,

    /// Register this client certificate (PEM) in place of a token: on a server with --tls-client-ca, whoever
    /// has its key is the identity
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,

    /// When it expires: after 12h, 30d; without this, never
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    expires: Option<Duration>,

    /// A label, for people
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
}

#[derive(Args, Debug)]
struct Revoke {
    /// The token's id, as in `abide token list`, or the token itself (only its id is sent)
    id: String,
}

const EXAMPLES: &str = "\
Examples:
  abide token create root --role admin --capability '*' --db abide.db   # the first, directly on the file
  export ABIDE_TOKEN=$(abide token create root --role admin --capability '*' --db abide.db)
  abide token create acme-app --role app --scope tenant=acme --expires 90d
  abide token create acme-app --label 'the new server'           # one more token of it
  abide token create w1 --role worker --certificate w1.pem       # a client certificate: docs/tls.md
  abide token list
  abide token revoke 7kq2…

Once a file has a token, its server requires one for every request. --db needs no token: access to
the file is access to everything in it.";

/// Runs the command.
///
/// # Errors
/// The call is refused.
pub(crate) async fn run(options: &Options, args: Token) -> Result<(), Failure> {
    match args.what {
        TokenCommand::Create(args) => create(options, args).await,
        TokenCommand::List => list(options).await,
        TokenCommand::Revoke(args) => revoke(options, args).await,
    }
}

async fn create(options: &Options, args: Create) -> Result<(), Failure> {
    if args.role.is_none() && !args.grants.is_empty() {
        let hint =
            "add --role to create the identity; `abide identity change` changes one that exists";
        return Err(Failure::usage(
            "capabilities, scope and limits belong to an identity, not to a token",
            hint,
        ));
    }
    let credential = Credential::new(args.certificate.as_deref())?;
    // Without a role the identity must exist, and so must its file.
    let access = if args.role.is_some() { Access::Create } else { Access::Write };
    let new_file = options.db.as_ref().filter(|file| !file.exists());
    let abide = connect(options, access).await?;
    if let Some(file) = new_file.filter(|_| !options.json) {
        note(format!("created {}", file.display()));
    }
    let lacks_admin = lacks_admin(options, &abide, &args).await;
    let made = create_token(&abide, &args, &credential).await;
    abide.close().await;
    let token = made.map_err(|failure| suggest_role_option(failure, &args))?;
    if lacks_admin {
        note(no_admin_warning(options));
    }
    let printed = print_created(options, &args.identity, &credential, &token);
    match credential {
        Credential::Token(secret) => printed.map_err(|failure| unprinted_token(&failure, &secret)),
        Credential::Certificate(_) => printed,
    }
}

/// Shows what was registered, and the secret of a token.
fn print_created(
    options: &Options,
    identity: &str,
    credential: &Credential,
    token: &JsonValue,
) -> Result<(), Failure> {
    if options.json {
        return print_json(&match credential {
            Credential::Token(secret) => json!({"token": secret.text(), "row": token}),
            Credential::Certificate(it) => json!({"certificate": it.fingerprint(), "row": token}),
        });
    }
    let until = match token["expires_at"].as_i64() {
        Some(at) => format!("valid until {}", crate::cells::format_time(abide_schema::Micros(at))),
        None => "without an expiry".to_owned(),
    };
    match credential {
        Credential::Token(secret) => {
            note(format!("token {} of {identity}, {until}. It is printed only once:", secret.id()));
            print_line(secret.text())
        }
        Credential::Certificate(certificate) => {
            note(format!("certificate of {identity}, {until}. Its SHA-256 fingerprint:"));
            print_line(certificate.fingerprint())
        }
    }
}

/// The failure to print a token that is registered: nobody has it, and it is valid.
fn unprinted_token(failure: &Failure, secret: &Secret) -> Failure {
    let id = secret.id();
    let (code, why) = match failure.refusal() {
        Some(refusal) => (refusal.code, refusal.detail.as_str()),
        None => (Code::BadRequest, "the output is closed"),
    };
    Refusal::new(code, format!("token {id} was created, and nobody has it: {why}"))
        .hint(format!("`abide token revoke {id}` revokes it"))
        .into()
}

/// What the command registers.
enum Credential {
    /// A new token.
    Token(Secret),
    /// The certificate of a client.
    Certificate(ClientCertificate),
}

impl Credential {
    fn new(certificate: Option<&Path>) -> Result<Credential, Refusal> {
        if let Some(path) = certificate {
            return Ok(Credential::Certificate(ClientCertificate::open(path)?));
        }
        Secret::new()
            .map(Credential::Token)
            .map_err(|why| Refusal::new(Code::Internal, format!("no token can be created: {why}")))
    }

    /// The call that registers it. The fingerprint of a certificate is a hash that no token has.
    fn create_token(&self, identity: &str) -> CreateToken {
        match self {
            Credential::Token(secret) => secret.create_token(identity),
            Credential::Certificate(it) => CreateToken {
                label: Some("client certificate".to_owned()),
                ..CreateToken::new(it.token_id(), identity, it.fingerprint(), it.last_four())
            },
        }
    }
}

/// The hint of an identity that does not exist: an option of this command creates it.
fn suggest_role_option(failure: Failure, args: &Create) -> Failure {
    match failure {
        Failure::Refused(refusal) if refusal.code == Code::NotFound && args.role.is_none() => {
            let hint = "--role ROLE also creates the identity; `abide identity list` lists them";
            Failure::Refused(refusal.hint(hint))
        }
        failure => failure,
    }
}

/// Whether the file has no token of an admin without a scope and with every capability, and the new one is none either. Only a caller who sees
/// all tokens can say so: one with the file, or of a server that requires no token yet.
async fn lacks_admin(options: &Options, abide: &Abide, args: &Create) -> bool {
    if options.db.is_none() && options.token.is_some() {
        return false;
    }
    let sql = "SELECT
        (SELECT count(*) FROM tokens AS t JOIN identities AS i ON i.id = t.identity_id
         WHERE i.role = 'admin' AND i.scope = '{}'
           AND EXISTS (SELECT 1 FROM json_each(i.capabilities) WHERE value = '*')
           AND t.revoked_at IS NULL AND i.disabled_at IS NULL)
        + (SELECT count(*) FROM identities
           WHERE id = :id AND role = 'admin' AND scope = '{}' AND disabled_at IS NULL
           AND EXISTS (SELECT 1 FROM json_each(capabilities) WHERE value = '*'))";
    let admins = abide.sql(sql).param("id", &args.identity).fetch::<i64>().await;
    let has_all = args.grants.capabilities.iter().any(|name| name == Caller::EVERY_CAPABILITY);
    let is_admin = args.role.as_deref() == Some("admin") && args.grants.scope.is_empty() && has_all;
    // If the query fails, so does the call, with the reason.
    !is_admin && admins.is_ok_and(|admins| admins == [0])
}

fn no_admin_warning(options: &Options) -> String {
    let file = match &options.db {
        Some(file) => file.display().to_string(),
        None => "FILE (after the server has stopped)".to_owned(),
    };
    format!(
        "warning: no token of role admin without a scope and with the capability '*' exists, so nobody can manage every identity; create one with `abide token create root --role admin --capability '*' --db {file}`"
    )
}

/// Creates the token, and its identity if requested: both or neither.
async fn create_token(
    abide: &Abide,
    args: &Create,
    credential: &Credential,
) -> Result<JsonValue, Failure> {
    args.grants.check()?;
    let expires_in = args.expires.map(|span| span.as_millis());
    let token = credential.create_token(&args.identity);
    let token = CreateToken {
        label: args.label.clone().or(token.label),
        expires_in_ms: expires_in.map(|span| i64::try_from(span).unwrap_or(i64::MAX)),
        ..token
    };
    let identity =
        args.role.as_ref().map(|role| Call::from(args.grants.identity(&args.identity, role)));
    let calls: Vec<Call> = identity.into_iter().chain([token.into()]).collect();
    let mut done = abide.batch(calls).await?.into_inner();
    Ok(done.pop().map(|done| done.result).unwrap_or_default())
}

async fn list(options: &Options) -> Result<(), Failure> {
    let tokens = "SELECT t.id, t.identity_id, i.role, i.scope, '…' || t.last_four AS ends, t.label,
        t.expires_at, t.revoked_at, i.disabled_at, t.created_by, t.created_at
        FROM tokens AS t JOIN identities AS i ON i.id = t.identity_id ORDER BY t.created_at, t.id";
    sql::list(options, tokens, "no tokens").await
}

async fn revoke(options: &Options, args: Revoke) -> Result<(), Failure> {
    // If the whole token is given, only its id is sent.
    let id = match args.id.strip_prefix("abide_").and_then(|rest| rest.split_once('_')) {
        Some((id, _)) => id.to_owned(),
        None => args.id,
    };
    call::call_and_print(options, RevokeToken::new(id)).await
}
