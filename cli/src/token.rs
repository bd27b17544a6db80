//! `abide token`: tokens are made here, told once, and known to the file by their hash.

use std::time::Duration;

use abide_client::{Abide, Call, Secret};
use abide_schema::{Code, Refusal};
use clap::{Args, Subcommand};
use serde_json::{Value as JsonValue, json};

use crate::connect::{Absent, connect};
use crate::failure::Failure;
use crate::granted::Granted;
use crate::options::Options;
use crate::output::{note, say, say_json};
use crate::{call, span, sql};

/// What `abide token` is given.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Token {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a token and tell it, once: on stdout, alone
    Create(Create),
    /// Show the tokens: whose, since when, until when; never what they are
    List,
    /// Revoke a token, at once, also where somebody is connected with it
    Revoke(Revoke),
}

#[derive(Args, Debug)]
struct Create {
    /// Whose it is
    identity: String,

    /// Makes the identity as well, in this role: app, agent, worker, supervisor, auditor, admin, or one
    /// of your own
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,

    #[command(flatten)]
    granted: Granted,

    /// For how long it counts: 12h, 30d; for ever unless said
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    expires: Option<Duration>,

    /// What it is for, for people
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
}

#[derive(Args, Debug)]
struct Revoke {
    /// The token's id, as `abide token list` shows it (or the token itself, of which only that is used)
    id: String,
}

const EXAMPLES: &str = "\
Examples:
  abide token create root --role admin --can '*' --db abide.db   # the first, on the file itself
  export ABIDE_TOKEN=$(abide token create root --role admin --can '*' --db abide.db)
  abide token create acme-app --role app --scope tenant=acme --expires 90d
  abide token create acme-app --label 'the new server'           # one more of the same
  abide token list
  abide token revoke 7kq2…

Once there is a token in a file, a server of it asks for one everywhere. Whoever can read the file
needs none: --db works on it directly.";

/// Does it.
///
/// # Errors
/// It is refused.
pub(crate) async fn run(options: &Options, args: Token) -> Result<(), Failure> {
    match args.what {
        What::Create(args) => create(options, args).await,
        What::List => list(options).await,
        What::Revoke(args) => revoke(options, args).await,
    }
}

async fn create(options: &Options, args: Create) -> Result<(), Failure> {
    if args.role.is_none() && !args.granted.is_empty() {
        let hint = "give --role too to make the identity; abide identity change  changes one";
        return Err(Failure::usage("capabilities, scope and limits are an identity's", hint));
    }
    let randomness = |why| Refusal::new(Code::Internal, format!("no token can be made: {why}"));
    let secret = Secret::new().map_err(randomness)?;
    let abide = connect(options, Absent::Make).await?;
    let made = make(&abide, &args, &secret).await;
    abide.close().await;
    let token = made?;
    if options.json {
        return say_json(&json!({"token": secret.text(), "row": token}));
    }
    let until = match token["expires_at"].as_i64() {
        Some(at) => format!("until {}", crate::cells::moment(abide_schema::Micros(at))),
        None => "for ever".to_owned(),
    };
    note(format!(
        "token {} of {}, {until}. This is the only time that it is told:",
        secret.id(),
        args.identity
    ));
    say(secret.text())
}

/// Makes the identity, if it is to be made, and the token: both or neither.
async fn make(abide: &Abide, args: &Create, secret: &Secret) -> Result<JsonValue, Failure> {
    let mut token = secret.create(&args.identity);
    if let Some(label) = &args.label {
        token = token.arg("label", label);
    }
    if let Some(span) = args.expires {
        token = token.arg("expires_in_ms", u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    }
    let identity = args
        .role
        .as_ref()
        .map(|role| Call::new("create_identity", args.granted.identity(&args.identity, role)));
    let calls: Vec<Call> = identity.into_iter().chain([token]).collect();
    let mut done = abide.batch(calls).await?.into_inner();
    Ok(done.pop().map(|done| done.result).unwrap_or_default())
}

async fn list(options: &Options) -> Result<(), Failure> {
    let tokens = "SELECT t.id, t.identity_id, i.role, i.scope, '…' || t.last_four AS ends, t.label,
        t.expires_at, t.revoked_at, i.disabled_at, t.created_by, t.created_at
        FROM tokens AS t JOIN identities AS i ON i.id = t.identity_id ORDER BY t.created_at, t.id";
    sql::ask(options, tokens).await
}

async fn revoke(options: &Options, args: Revoke) -> Result<(), Failure> {
    // Whoever pastes the whole token means its id, and the rest goes nowhere.
    let id = match args.id.strip_prefix("abide_").and_then(|rest| rest.split_once('_')) {
        Some((id, _)) => id.to_owned(),
        None => args.id,
    };
    let abide = connect(options, Absent::Make).await?;
    let revoked = abide.call("revoke_token", json!({"id": id})).await;
    abide.close().await;
    call::show(options, &revoked?)
}
