//! `abide identity`: who may call, and with which rights.

use abide_client::arguments::{ChangeIdentity, DisableIdentity, EnableIdentity};
use clap::{Args, Subcommand, ValueEnum};

use crate::failure::Failure;
use crate::global_options::Options;
use crate::grants::GrantOptions;
use crate::{call, sql};

/// Arguments of `abide identity`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Identity {
    #[command(subcommand)]
    what: IdentityCommand,
}

#[derive(Debug, Subcommand)]
enum IdentityCommand {
    /// Create an identity; `abide token create` creates its tokens
    Create(Create),
    /// List the identities
    List,
    /// Change an identity: each given option replaces the old value
    Change(Change),
    /// Disable an identity immediately; its connections are closed
    Disable(Disable),
    /// Enable a disabled identity, with the rights that it had
    Enable(IdentityArgument),
}

#[derive(Args, Debug)]
struct Create {
    /// The id, as the log records it
    id: String,

    /// app, agent, worker, supervisor, auditor, admin, or a role of your own
    #[arg(long, value_name = "ROLE")]
    role: String,

    #[command(flatten)]
    grants: GrantOptions,
}

#[derive(Args, Debug)]
struct Change {
    /// The id of the identity
    id: String,

    /// The new role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,

    #[command(flatten)]
    grants: GrantOptions,

    /// Remove these attributes; repeat the option or separate them by commas
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    clear: Vec<Grant>,
}

/// The attributes that an identity can lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Grant {
    /// All capabilities
    Capabilities,
    /// The scope: the identity reaches rows of all scopes
    Scope,
    /// The rate limit and the quota
    Limits,
}

#[derive(Args, Debug)]
struct Disable {
    /// The id of the identity
    id: String,

    /// The reason, for the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Args, Debug)]
struct IdentityArgument {
    /// The id of the identity
    id: String,
}

const EXAMPLES: &str = "\
Examples:
  abide identity create acme-app --role app --scope tenant=acme --rate 100/1s
  abide identity create ann --role supervisor --capability refunds,appeals --scope tenant=acme
  abide identity change ann --capability refunds
  abide identity change ann --clear capabilities,limits
  abide identity disable ann --reason 'left the company'
  abide identity list --db abide.db                # no server needed";

/// Runs the command.
///
/// # Errors
/// The call is refused.
pub(crate) async fn run(options: &Options, args: Identity) -> Result<(), Failure> {
    match args.what {
        IdentityCommand::List => {
            let identities = "SELECT id, role, capabilities, scope, limits, disabled_at,
                disabled_reason, created_by, created_at FROM identities ORDER BY id";
            sql::list(options, identities, "no identities").await
        }
        IdentityCommand::Create(args) => {
            args.grants.check()?;
            call::call_and_print(options, args.grants.identity(&args.id, &args.role)).await
        }
        IdentityCommand::Change(args) => {
            args.grants.check()?;
            call::call_and_print(options, change_arguments(args)?).await
        }
        IdentityCommand::Disable(Disable { id, reason }) => {
            call::call_and_print(options, DisableIdentity { id, reason }).await
        }
        IdentityCommand::Enable(args) => {
            call::call_and_print(options, EnableIdentity::new(args.id)).await
        }
    }
}

/// # Errors
/// A field is both given and cleared.
fn change_arguments(Change { id, role, grants, clear }: Change) -> Result<ChangeIdentity, Failure> {
    let given = ChangeIdentity {
        capabilities: grants.capability_set(),
        scope: grants.scope(),
        limits: grants.limits(),
        role,
        ..ChangeIdentity::new(id)
    };
    Ok(ChangeIdentity {
        capabilities: clear_or_keep(given.capabilities, Grant::Capabilities, &clear)?,
        scope: clear_or_keep(given.scope, Grant::Scope, &clear)?,
        limits: clear_or_keep(given.limits, Grant::Limits, &clear)?,
        ..given
    })
}

/// The given value, or the empty one if it is to be cleared.
fn clear_or_keep<T: Default>(
    given: Option<T>,
    field: Grant,
    clear: &[Grant],
) -> Result<Option<T>, Failure> {
    match (clear.contains(&field), given) {
        (false, given) => Ok(given),
        (true, None) => Ok(Some(T::default())),
        (true, Some(_)) => {
            let field = format!("{field:?}").to_lowercase();
            let detail = format!("--clear {field} removes what another option sets");
            Err(Failure::usage(detail, "an option replaces the old value; leave out --clear"))
        }
    }
}
