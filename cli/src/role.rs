//! `abide role`: what callers of a role may call.

use std::collections::BTreeSet;

use abide_client::{Allowance, CallLimits, NewRole};
use abide_reducers::role::BUILT_IN;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::connect::{Absent, connect};
use crate::failure::Failure;
use crate::granted::allowance;
use crate::options::Options;
use crate::output::say;
use crate::terminal::Terminal;
use crate::{call, sql};

/// What `abide role` is given.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Role {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a role of your own, or change one
    Set(Set),
    /// Show the roles: the built-in ones, and those of the file
    List,
    /// Remove a role: who has it may call nothing any more
    Remove(Remove),
}

#[derive(Args, Debug)]
struct Set {
    /// Its name
    name: String,

    /// The reducers that it may call; with commas, or several times; '*' is all but those that manage
    /// identities
    #[arg(long = "may", value_name = "REDUCER", value_delimiter = ',', required = true)]
    may: Vec<String>,

    /// What everybody in it may be entrusted with
    #[arg(long = "can", value_name = "CAPABILITY", value_delimiter = ',')]
    can: Vec<String>,

    /// How fast each in it may call, unless the identity says otherwise: 100/1s
    #[arg(long, value_name = "CALLS/TIME", value_parser = allowance)]
    rate: Option<Allowance>,

    /// How much each in it may call in each span of time: 10000/1d
    #[arg(long, value_name = "CALLS/TIME", value_parser = allowance)]
    quota: Option<Allowance>,

    /// What it is for, for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

#[derive(Args, Debug)]
struct Remove {
    /// Its name
    name: String,
}

const EXAMPLES: &str = "\
Examples:
  abide role set clerk --may append_message,decide_approval --can refunds
  abide role list
  abide role remove clerk";

/// Does it.
///
/// # Errors
/// It is refused.
pub(crate) async fn run(options: &Options, args: Role) -> Result<(), Failure> {
    let (reducer, args) = match args.what {
        What::List => return list(options).await,
        What::Remove(args) => ("remove_role", json!({"name": args.name})),
        What::Set(args) => {
            let limits = CallLimits { rate: args.rate, quota: args.quota };
            let role = NewRole {
                name: args.name,
                reducers: args.may.into_iter().collect::<BTreeSet<_>>(),
                capabilities: args.can.into_iter().collect(),
                description: args.description,
                limits: (limits != CallLimits::default()).then_some(limits),
            };
            ("set_role", json!(role))
        }
    };
    let abide = connect(options, Absent::Make).await?;
    let called = abide.call(reducer, args).await;
    abide.close().await;
    call::show(options, &called?)
}

async fn list(options: &Options) -> Result<(), Failure> {
    if !options.json {
        let terminal = Terminal::of_stdout();
        for (name, reducers) in BUILT_IN {
            let may = match reducers {
                ["*"] if name == "admin" => "everything".to_owned(),
                ["*"] => "everything but to manage identities, roles and policies".to_owned(),
                [] => "nothing: it reads".to_owned(),
                reducers => reducers.join(", "),
            };
            say(terminal.bold(format!("{name:<10}")) + "  " + &may)?;
        }
        say("")?;
    }
    let roles = "SELECT name, reducers, capabilities, limits, description FROM roles ORDER BY name";
    sql::ask(options, roles).await
}
