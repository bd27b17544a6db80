//! `abide role`: defines which reducers a role may call.

use abide_client::arguments::{CallLimits, RateLimit, RemoveRole, SetRole};
use abide_schema::reducer::BuiltInRole;
use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::global_options::Options;
use crate::grants::parse_rate_limit;
use crate::output::print_line;
use crate::terminal::Terminal;
use crate::{call, sql};

/// Arguments of `abide role`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Role {
    #[command(subcommand)]
    what: RoleCommand,
}

#[derive(Debug, Subcommand)]
enum RoleCommand {
    /// Create or change a role of your own
    Set(Set),
    /// List the built-in roles, and your own
    List,
    /// Remove a role; its identities may call nothing then
    Remove(Remove),
}

#[derive(Args, Debug)]
struct Set {
    /// The name of the role
    name: String,

    /// The reducers that it may call, repeated or separated by commas; '*' is all except those that
    /// manage identities, tokens, roles and policies
    #[arg(long = "allow", value_name = "REDUCER", value_delimiter = ',', required = true)]
    reducers: Vec<String>,

    /// The capabilities of its identities
    #[arg(long = "capability", value_name = "CAPABILITY", value_delimiter = ',')]
    capabilities: Vec<String>,

    /// The rate limit of each of its identities that has no rate of its own: 100/1s
    #[arg(long, value_name = "CALLS/TIME", value_parser = parse_rate_limit)]
    rate: Option<RateLimit>,

    /// The quota of each of its identities: 10000/1d
    #[arg(long, value_name = "CALLS/TIME", value_parser = parse_rate_limit)]
    quota: Option<RateLimit>,

    /// A description, for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

#[derive(Args, Debug)]
struct Remove {
    /// The name of the role
    name: String,
}

const EXAMPLES: &str = "\
Examples:
  abide role set clerk --allow append_message,decide_approval --capability refunds
  abide role list
  abide role remove clerk";

/// Runs the command.
///
/// # Errors
/// The call is refused.
pub(crate) async fn run(options: &Options, args: Role) -> Result<(), Failure> {
    match args.what {
        RoleCommand::List => list(options).await,
        RoleCommand::Remove(args) => {
            call::call_and_print(options, RemoveRole::new(args.name)).await
        }
        RoleCommand::Set(args) => {
            let limits = CallLimits { rate: args.rate, quota: args.quota };
            let role = SetRole {
                name: args.name,
                reducers: args.reducers.into_iter().collect(),
                capabilities: (!args.capabilities.is_empty())
                    .then(|| args.capabilities.into_iter().collect()),
                description: args.description,
                limits: (limits != CallLimits::default()).then_some(limits),
            };
            call::call_and_print(options, role).await
        }
    }
}

async fn list(options: &Options) -> Result<(), Failure> {
    if !options.json {
        let terminal = Terminal::from_stdout();
        let built_in = abide_reducers::modules();
        for role in BuiltInRole::ALL {
            let may = match role {
                BuiltInRole::Admin => "everything".to_owned(),
                BuiltInRole::App => {
                    "everything except identities, tokens, roles and policies".to_owned()
                }
                role => {
                    let names: Vec<&str> = built_in
                        .iter()
                        .chain(&options.modules)
                        .flat_map(|module| &module.reducers)
                        .filter(|reducer| role.may_call(reducer.roles))
                        .map(|reducer| reducer.name)
                        .collect();
                    if names.is_empty() {
                        "nothing; it only reads".to_owned()
                    } else {
                        names.join(", ")
                    }
                }
            };
            let name = role.name();
            print_line(terminal.bold(format!("{name:<10}")) + "  " + &may)?;
        }
        print_line("")?;
    }
    let roles = "SELECT name, reducers, capabilities, limits, description FROM roles ORDER BY name";
    sql::list(options, roles, "no roles of your own").await
}
